"""A Hugging Face folder: config.json and weights in the files that transformers resolves.

transformers reads every causal model (GPT-2, Llama, GPT-NeoX, …), and the conversion is compared with its logits. GPT-2
and Llama have adapters; other models go through TransformerLens' bridge and keep the layout of their files. A folder
saved by chessreg is read by the adapter of its architecture.
"""

from __future__ import annotations

import copy
import functools
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError
from chessreg.models.checkpoint import INFO, WEIGHTS, CheckpointInfo, load_model, read_info
from chessreg.models.importers.nanogpt import compute_gpt2_logits
from chessreg.models.importers.registry import Imported, is_compared_exactly, recognize_format
from chessreg.models.importers.source import (
    CheckpointSource,
    check_checksums,
    check_torch_file,
    open_checkpoint,
    refuse_code,
)

if TYPE_CHECKING:
    from torch import Tensor

    from chessreg.models.adapters import GPT2, Network
    from chessreg.models.adapters.fen_encoder import FenEncoder
    from chessreg.models.adapters.gpt2 import GPT2Config

# Options that change a GPT-2's function; a folder with another value is refused rather than misread.
PLAIN = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
HEAD, ADAPTER = "lm_head.weight", "adapter_config.json"


class HuggingFaceFolder:
    """A folder with a config.json."""

    name = "huggingface"

    def recognises(self, source: CheckpointSource) -> bool:
        return source.path.is_dir() and (source.path / "config.json").is_file()

    def encoding_of(self, source: CheckpointSource) -> str | None:
        return None

    def read(self, source: CheckpointSource) -> Imported:
        """Return the import of a Hugging Face folder. Raises BadInputError without a config.json."""
        if not self.recognises(source):
            raise BadInputError(f"{source.path.name} is not a Hugging Face folder: it has no config.json")
        info = read_info(source.path) if (source.path / INFO).is_file() else None  # saved by chessreg
        config = read_model_config(source.path)
        read_folder = READERS.get(config["model_type"], read_own) if has_adapter(info) else read_foreign
        model, reference = read_folder(source.path, config)
        return Imported(
            model=model,
            reference=reference,
            residual=info.residual if info else "raw",
            tokens_seen=info.tokens_seen if info else None,
            source={"original": info.source} if info else {},
            remarks=describe_unread_weights(source.path),
        )


def has_adapter(info: CheckpointInfo | None) -> bool:
    """Return whether the architecture of a folder saved by chessreg has an adapter."""
    from chessreg.models.adapters import ADAPTERS

    return info is not None and info.architecture.get("family") in ADAPTERS


def check_folder(path: Path) -> None:
    """Raise the errors of an import for a path of unknown format and for a folder with an unreadable config.json."""
    if isinstance(recognize_format(open_checkpoint(path)), HuggingFaceFolder):
        read_model_config(path)


def describe_unread_weights(folder: Path) -> list[str]:
    """Return a sentence for each kind of weights in the folder that is not read."""
    notes = []
    if (folder / ADAPTER).is_file():
        notes.append(f"{ADAPTER}: the adapter is not applied; merge it with peft's merge_and_unload to import both")
    other_files = sorted(
        p.name for p in folder.glob("*.safetensors") if p.name != WEIGHTS and not p.name.startswith(".")
    )
    if other_files and (folder / WEIGHTS).is_file():
        notes.append(
            f"the weights are those of {WEIGHTS}, as transformers reads them; not read: {', '.join(other_files)}"
        )
    return notes


def read_model_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json, which must name a model_type. Raises BadInputError."""
    try:
        config: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{folder.name}/config.json is not JSON") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise BadInputError(f"{folder.name}/config.json names no model_type")
    return config


def read_fen_encoder(folder: Path, config: dict[str, Any]) -> tuple[FenEncoder, Callable[[Tensor], Tensor]]:
    """Return a FEN encoder and its reference: logits computed from the raw weights.

    The reference is a GPT-2 pass, possibly without its mask, over the preceding token and the 77, at the last token.
    """
    import torch
    import torch.nn.functional as F

    from chessreg.models.adapters.base import read_weights
    from chessreg.models.adapters.fen_encoder import FenEncoder

    model = load_model(folder)
    if not isinstance(model, FenEncoder):
        raise BadInputError(f"{folder.name}/config.json names fen-encoder, but {INFO} another architecture")
    raw = read_weights(folder, torch.float32)
    head = raw.get("action_head.weight", raw["wte.weight"])
    weights = {f"transformer.{name}": tensor for name, tensor in raw.items()} | {HEAD: head}
    first_token, causal = model.first_token, model.config.attention == "causal"

    def reference(tokens: Tensor) -> Tensor:
        padded_tokens = F.pad(tokens, (1, 0), value=first_token)
        return compute_gpt2_logits(weights, padded_tokens, model.config.n_head, causal=causal)[:, -1:]

    return model, reference


def read_own(folder: Path, config: dict[str, Any]) -> tuple[Network, Callable[[Tensor], Tensor]]:
    """Return the model read by its adapter, and the same in float64: no other code computes this architecture."""
    import torch

    return load_model(folder), load_model(folder, torch.float64)


def read_foreign(folder: Path, config: dict[str, Any]) -> tuple[Network, Callable[[Tensor], Tensor]]:
    """Return the model as a Network, and the logits of transformers for the same folder."""
    import torch

    from chessreg.models.adapters.bridge import list_weights, load_hugging_face, make_config
    from chessreg.models.adapters.gpt2 import GPT2
    from chessreg.models.adapters.llama import is_supported, wrap_hugging_face

    family = config["model_type"]
    if family == "gpt2":
        check_gpt2(folder, config)
    pickles = {} if any(folder.glob("model.safetensors*")) else check_pickles(folder)
    hf = load_hugging_face(folder, torch.float32)
    for file, members in pickles.items():
        check_checksums(file, members)
    is_supported_family = family == "gpt2" or (family == "llama" and is_supported(make_config(hf.config)))
    library = hf if is_supported_family else copy.deepcopy(hf)  # the bridge changes its model in place
    if family == "gpt2":
        weights = {name: weight.detach() for name, weight in list_weights(hf).items()}
        return GPT2.from_weights(make_gpt2_config(config, HEAD not in weights), weights), functools.partial(
            compute_library_logits, library
        )
    return wrap_hugging_face(hf), functools.partial(compute_library_logits, library)


def compute_library_logits(library: Any, tokens: Tensor) -> Tensor:
    """Return the logits of a transformers model, in float64 unless it is large, to save memory."""
    if is_compared_exactly(library):
        library.double()
    logits: Tensor = library(tokens, use_cache=False).logits
    return logits


def check_pickles(folder: Path) -> dict[Path, list[zipfile.ZipInfo]]:
    """Return the files pytorch_model*.bin and the members of their zips.

    Raises BadInputError for a damaged file and for one that would execute code; transformers would refuse it too, but
    suggest a way to load it.
    """
    members = {file: check_torch_file(file) for file in sorted(folder.glob("pytorch_model*.bin"))}
    for file in members:
        refuse_code(file)
    return members


def read_own_gpt2(folder: Path, config: dict[str, Any]) -> tuple[GPT2, Callable[[Tensor], Tensor]]:
    """Return a GPT-2 saved by chessreg, and a forward pass over its raw weights that shares no code with it."""
    import torch

    from chessreg.models.adapters.base import read_weights
    from chessreg.models.adapters.gpt2 import GPT2

    check_gpt2(folder, config)
    raw = read_weights(folder, torch.float32)
    gpt2_config = make_gpt2_config(config, HEAD not in raw)
    weights = {n: t.t() if ".h." in n and t.dim() == 2 else t for n, t in raw.items()}
    reference = functools.partial(
        compute_gpt2_logits,
        weights,
        n_head=gpt2_config.n_head,
        activation=gpt2_config.activation,
        epsilon=gpt2_config.layer_norm_epsilon,
    )
    return GPT2.from_weights(gpt2_config, raw), reference


def make_gpt2_config(config: dict[str, Any], tied_head: bool) -> GPT2Config:
    """Return the shape in a GPT-2's config.json."""
    from chessreg.models.adapters.gpt2 import GPT2Config

    return GPT2Config.from_file(config, tied_head)


def check_gpt2(folder: Path, config: dict[str, Any]) -> None:
    """Raise BadInputError unless the configuration is that of a standard GPT-2."""
    from chessreg.models.adapters.gpt2 import ACTIVATIONS

    required_keys = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")
    if not all(type(config.get(k)) is int and config[k] > 0 for k in required_keys):
        raise BadInputError(f"{folder.name}/config.json must give {', '.join(required_keys)} as positive integers")
    for option, value in PLAIN.items():
        if config.get(option, value) != value:
            raise BadInputError(f"{folder.name}: a GPT-2 with {option} = {config[option]} cannot be read")
    activation = config.get("activation_function", "gelu_new")
    if activation not in ACTIVATIONS:
        raise BadInputError(f"{folder.name}: activation {activation} is not one of {', '.join(ACTIVATIONS)}")


Reader = Callable[[Path, dict[str, Any]], tuple["Network", Callable[["Tensor"], "Tensor"]]]
READERS: dict[str, Reader] = {"gpt2": read_own_gpt2, "fen-encoder": read_fen_encoder, "llama": read_foreign}
"""Readers of folders saved by chessreg, for families that code other than their adapter can compute."""
