"""A Hugging Face folder: config.json and model.safetensors (or a pytorch_model.bin of plain tensors).

A GPT-2 is read here. What chessreg saved of another architecture that has an adapter is read by that adapter. Every
other causal model (Llama, GPT-NeoX, …) is read by the library transformers, and keeps its files' layout. A Llama has an
adapter of its own, others go through TransformerLens' bridge; the logits are compared with those of the library.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError
from chessreg.models.checkpoint import INFO, CheckpointInfo, load_model, read_info
from chessreg.models.importers.nanogpt import gpt2_logits
from chessreg.models.importers.registry import Imported, recognise
from chessreg.models.importers.source import Source, open_source, read_torch_file, refuse_code

if TYPE_CHECKING:
    from torch import Tensor

    from chessreg.models.adapters import GPT2, Network
    from chessreg.models.adapters.fen_encoder import FenEncoder

# Options of GPT-2 that change its function; a folder that sets one otherwise is refused rather than misread.
PLAIN = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
HEAD = "lm_head.weight"
BUFFERS = (".attn.bias", ".attn.masked_bias")


class HuggingFaceFolder:
    name = "huggingface"

    def recognises(self, source: Source) -> bool:
        return source.path.is_dir() and (source.path / "config.json").is_file()

    def read(self, source: Source) -> Imported:
        if not self.recognises(source):
            raise BadInputError(f"{source.path.name} is no Hugging Face folder: it has no config.json")
        ours = read_info(source.path) if (source.path / INFO).is_file() else None  # one of our own comes home
        config = read_config(source.path)
        read = READERS.get(config["model_type"]) or (read_own if has_adapter(ours) else read_other)
        model, reference = read(source.path, config)
        return Imported(
            model=model,
            reference=reference,
            residual=ours.residual if ours else "raw",
            tokens_seen=ours.tokens_seen if ours else None,
            source={"original": ours.source} if ours else {},
        )


def has_adapter(info: CheckpointInfo | None) -> bool:
    """Whether a folder of chessreg's own is of an architecture that an adapter reads."""
    from chessreg.models.adapters import ADAPTERS

    return info is not None and info.architecture.get("family") in ADAPTERS


def check_folder(path: Path) -> None:
    """Raise what an import would for a path of no known format, and for a folder whose config.json cannot be read."""
    if isinstance(recognise(open_source(path)), HuggingFaceFolder):
        read_config(path)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json, with its model_type."""
    try:
        config: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{folder.name}/config.json is not JSON") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise BadInputError(f"{folder.name}/config.json names no model_type")
    return config


def read_fen_encoder(folder: Path, config: dict[str, Any]) -> tuple[FenEncoder, Callable[[Tensor], Tensor]]:
    """A FEN encoder, and a pass over its raw weights: that of a GPT-2, perhaps without its mask, over the token before
    the 77 and these, of which the last one's logits count."""
    import torch
    import torch.nn.functional as F

    from chessreg.models.adapters.base import read_weights as raw_weights
    from chessreg.models.adapters.fen_encoder import FenEncoder

    model = load_model(folder)
    if not isinstance(model, FenEncoder):
        raise BadInputError(f"{folder.name}/config.json says fen-encoder, its {INFO} another architecture")
    raw = raw_weights(folder, torch.float32)
    head = raw.get("action_head.weight", raw["wte.weight"])
    named = {f"transformer.{name}": tensor for name, tensor in raw.items()} | {HEAD: head}
    first, causal = model.first, model.config.attention == "causal"

    def reference(tokens: Tensor) -> Tensor:
        whole = F.pad(tokens, (1, 0), value=first)
        return gpt2_logits(named, whole, model.config.n_head, causal=causal)[:, -1:]

    return model, reference


def read_own(folder: Path, config: dict[str, Any]) -> tuple[Network, Callable[[Tensor], Tensor]]:
    """The model as its adapter reads it, and as it reads it in float64: no other code knows this architecture."""
    import torch

    return load_model(folder), load_model(folder, torch.float64)


def read_other(folder: Path, config: dict[str, Any]) -> tuple[Network, Callable[[Tensor], Tensor]]:
    """The model as it is served, and the library's own."""
    import torch

    from chessreg.models.adapters.bridge import hugging_face_model
    from chessreg.models.adapters.llama import served

    for pickled in sorted(folder.glob("*.bin")):
        refuse_code(pickled)  # the library would too, and name the way round it
    hf = hugging_face_model(folder, torch.float32)
    whole = copy.deepcopy(hf).double()
    return served(hf), lambda tokens: whole(tokens, use_cache=False).logits


def read_gpt2(folder: Path, config: dict[str, Any]) -> tuple[GPT2, Callable[[Tensor], Tensor]]:
    """The model, and a forward pass over its raw weights that shares no code with it."""
    from chessreg.models.adapters.gpt2 import GPT2, GPT2Config

    check_gpt2(folder, config)
    raw = read_weights(folder, tied=config.get("tie_word_embeddings", True))
    made = GPT2Config(
        n_layer=config["n_layer"],
        n_head=config["n_head"],
        n_embd=config["n_embd"],
        block_size=config["n_positions"],
        vocab_size=config["vocab_size"],
        d_mlp=config.get("n_inner"),
        activation=config.get("activation_function", "gelu_new"),
        layer_norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
        tied_head=HEAD not in raw,
    )
    transposed = {n: t.t() if ".h." in n and t.dim() == 2 else t for n, t in raw.items()}
    reference = functools.partial(
        gpt2_logits, transposed, n_head=made.n_head, activation=made.activation, epsilon=made.layer_norm_epsilon
    )
    return GPT2.of_weights(made, {name: tensor.float().contiguous() for name, tensor in raw.items()}), reference


def check_gpt2(folder: Path, config: dict[str, Any]) -> None:
    """Raise BadInputError unless the configuration is that of a plain GPT-2."""
    from chessreg.models.adapters.gpt2 import ACTIVATIONS

    needed = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")
    if not all(type(config.get(k)) is int and config[k] > 0 for k in needed):
        raise BadInputError(f"{folder.name}/config.json must give {', '.join(needed)} as positive integers")
    for option, value in PLAIN.items():
        if config.get(option, value) != value:
            raise BadInputError(f"{folder.name}: a GPT-2 with {option} = {config[option]} cannot be read")
    activation = config.get("activation_function", "gelu_new")
    if activation not in ACTIVATIONS:
        raise BadInputError(f"{folder.name}: activation {activation} is none of {', '.join(ACTIVATIONS)}")


def read_weights(folder: Path, tied: bool = True) -> dict[str, Tensor]:
    """Weights under the names of GPT2LMHeadModel (a bare GPT2Model lacks the prefix), without buffers and tied head.

    Where the configuration says that the head is not tied, it is kept as a weight of its own.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise BadInputError(f"{folder.name}/{file.name} is damaged or no safetensors file") from error
    if not files:
        pickled = folder / "pytorch_model.bin"
        if not pickled.is_file():
            raise BadInputError(f"{folder.name} has no weights: neither *.safetensors nor pytorch_model.bin")
        weights = read_torch_file(pickled)
    if not isinstance(weights, dict) or not all(hasattr(t, "dim") for t in weights.values()):
        raise BadInputError(f"{folder.name}: its weights are not a dict of tensors")
    head = weights.pop(HEAD, None)
    named = {n if n.startswith("transformer.") else f"transformer.{n}": t for n, t in weights.items()}
    named = {name: tensor for name, tensor in named.items() if not name.endswith(BUFFERS)}
    if not all(tensor.is_floating_point() for tensor in named.values()):
        raise BadInputError(f"{folder.name}: its weights are not all floats")
    embedding = named.get("transformer.wte.weight")
    if tied and head is not None and embedding is not None and not head.equal(embedding):
        raise BadInputError(f"{folder.name}: its output head is not the token embedding, as its config.json says")
    if not tied and head is None:
        raise BadInputError(f"{folder.name} has no {HEAD}, and its config.json says that its head is not tied")
    return named if tied or head is None else {**named, HEAD: head}


Reader = Callable[[Path, dict[str, Any]], tuple["Network", Callable[["Tensor"], "Tensor"]]]
READERS: dict[str, Reader] = {"gpt2": read_gpt2, "fen-encoder": read_fen_encoder, "llama": read_other}
"""Families whose logits are compared with those of code that shares nothing with their adapter."""
