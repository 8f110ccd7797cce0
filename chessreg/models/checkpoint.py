"""A checkpoint on disk: a folder with config.json, model.safetensors and chessreg.json.

The first two are Hugging Face's GPT-2 format, which any other tool loads. chessreg.json adds what that format has no
place for: tokenizer, residual convention, where the weights came from. torch is imported only by what handles weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chessreg.errors import BadInputError, NotFoundError

if TYPE_CHECKING:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from chessreg.models.gpt import GPT

FORMAT_VERSION = 1
CONFIG, WEIGHTS, INFO = "config.json", "model.safetensors", "chessreg.json"
HEAD = "lm_head.weight"
EMBEDDINGS = ("transformer.wte.weight", "transformer.wpe.weight", HEAD)


@dataclass(frozen=True)
class CheckpointInfo:
    """What chessreg.json says.

    residual is "raw", or "centred" for weights whose residual stream has mean 0 over d_model (specification of
    Karvonen's TransformerLens files). parameters counts each weight once, a tied head included in the embedding, and
    leaves out biases that are all zero and frozen; parameters_without_embeddings also leaves out token and position
    embeddings and an output head of its own. source holds format, digest and whatever the importer or trainer recorded.
    """

    tokenizer: str
    architecture: dict[str, Any]
    parameters: int
    parameters_without_embeddings: int
    block_size: int
    residual: Literal["raw", "centred"] = "raw"
    tokens_seen: int | None = None
    source: dict[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @classmethod
    def of(
        cls,
        model: GPT2LMHeadModel,
        tokenizer: str,
        *,
        residual: Literal["raw", "centred"] = "raw",
        tokens_seen: int | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> CheckpointInfo:
        """The info of a model in memory; architecture and counts are read off it."""
        total, without = count_parameters(model)
        return cls(
            tokenizer=tokenizer,
            architecture=architecture(model),
            parameters=total,
            parameters_without_embeddings=without,
            block_size=model.config.n_positions,
            residual=residual,
            tokens_seen=tokens_seen,
            source=dict(source or {}),
        )


def has_biases(model: GPT2LMHeadModel) -> bool:
    """Whether any bias is not zero. GPT-2 layers always carry biases; Karvonen's models use none of them."""
    return any(bool(p.any()) for name, p in model.named_parameters() if name.endswith(".bias"))


def architecture(model: GPT2LMHeadModel) -> dict[str, Any]:
    """The shape of the model under the names of GPTConfig, for records and for `gpt2_config`."""
    config = model.config
    return {
        "family": "gpt2",
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_embd": config.n_embd,
        "d_mlp": config.n_inner or 4 * config.n_embd,
        "block_size": config.n_positions,
        "vocab_size": config.vocab_size,
        "activation": config.activation_function,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "bias": has_biases(model),
        "tied_head": bool(config.tie_word_embeddings),
    }


def gpt2_config(
    *,
    n_layer: int,
    n_head: int,
    n_embd: int,
    block_size: int,
    vocab_size: int,
    activation: str = "gelu",
    d_mlp: int | None = None,
    layer_norm_epsilon: float = 1e-5,
    tied_head: bool = True,
) -> GPT2Config:
    """Hugging Face's configuration of this shape. activation "gelu" is the exact one; GPT-2's own is "gelu_new".

    tied_head False: the output head is a matrix of its own, as in models whose final LayerNorm is folded into it.
    """
    from transformers import GPT2Config

    return GPT2Config(
        n_layer=n_layer,
        n_head=n_head,
        n_embd=n_embd,
        n_inner=d_mlp,
        n_positions=block_size,
        vocab_size=vocab_size,
        activation_function=activation,
        layer_norm_epsilon=layer_norm_epsilon,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=tied_head,
        attn_implementation="sdpa",
    )


def count_parameters(model: GPT2LMHeadModel) -> tuple[int, int]:
    """Parameters with and without embeddings (tokens, positions, untied head); see CheckpointInfo for what counts."""
    biases = has_biases(model)
    counted = {name: p.numel() for name, p in model.named_parameters() if biases or not name.endswith(".bias")}
    embeddings = sum(counted.get(name, 0) for name in EMBEDDINGS)
    return sum(counted.values()), sum(counted.values()) - embeddings


def freeze_absent_biases(model: GPT2LMHeadModel) -> GPT2LMHeadModel:
    """Freeze biases that are all zero, so that fine-tuning does not train parameters the model never had."""
    if not has_biases(model):
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.requires_grad_(False)
    return model


def hf_model(config: GPT2Config, weights: Mapping[str, torch.Tensor]) -> GPT2LMHeadModel:
    """A GPT2LMHeadModel in eval mode holding these weights; biases that they lack are zero and frozen.

    weights are named as in GPT2LMHeadModel's state_dict, without lm_head where it is tied.
    Raises BadInputError naming weights that are missing, unknown or of another shape than the configuration says.
    """
    import torch
    from transformers import GPT2LMHeadModel

    check_shape(config, weights)
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    expected = {name: p.shape for name, p in model.named_parameters()}
    dtype = next(iter(weights.values())).dtype if weights else torch.float32
    full = {n: torch.zeros(s, dtype=dtype) for n, s in expected.items() if n.endswith(".bias")} | dict(weights)
    check_weights(full, {name: tuple(shape) for name, shape in expected.items()})
    model.load_state_dict(full, strict=False, assign=True)
    model.tie_weights()
    return freeze_absent_biases(model).eval()


def check_shape(config: GPT2Config, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise BadInputError unless embeddings and number of layers fit, before a model of the claimed size is built."""
    for name, rows in (("transformer.wte.weight", config.vocab_size), ("transformer.wpe.weight", config.n_positions)):
        found = list(weights[name].shape) if name in weights else "no such weight"
        if found != [rows, config.n_embd]:
            raise BadInputError(f"weight {name}: the configuration says {[rows, config.n_embd]}, found {found}")
    layers = sum(name.endswith(".ln_1.weight") for name in weights)
    if layers != config.n_layer:
        raise BadInputError(f"the configuration says {config.n_layer} layers, the weights have {layers}")


def check_weights(weights: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise BadInputError unless weights have exactly these names and shapes and are finite floats."""
    import torch

    if missing := sorted(expected.keys() - weights.keys()):
        raise BadInputError(f"weights are missing: {', '.join(missing[:3])} ({len(missing)} in all)")
    if unknown := sorted(weights.keys() - expected.keys()):
        raise BadInputError(
            f"weights that no GPT-2 of this shape has: {', '.join(unknown[:3])} ({len(unknown)} in all)"
        )
    for name, shape in expected.items():
        tensor = weights[name]
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            raise BadInputError(f"weight {name} is not a tensor of floats")
        if tuple(tensor.shape) != shape:
            raise BadInputError(f"weight {name} has shape {list(tensor.shape)}, the configuration says {list(shape)}")
        if not bool(torch.isfinite(tensor).all()):
            raise BadInputError(f"weight {name} holds NaN or infinite values")


def from_training(gpt: GPT) -> GPT2LMHeadModel:
    """A trained GPT as the Hugging Face model with equal logits, float32 on the CPU. The GPT is not changed."""
    config = gpt.config
    renamed = {"attn_proj": "attn.c_proj", "mlp_proj": "mlp.c_proj", "c_attn": "attn.c_attn", "c_fc": "mlp.c_fc"}
    weights = {}
    for name, tensor in gpt.state_dict().items():
        for ours, theirs in renamed.items():
            name = name.replace(f".{ours}.", f".{theirs}.")
        transpose = name.startswith("h.") and tensor.dim() == 2  # Hugging Face's Conv1D is [in, out]
        copy = (tensor.t() if transpose else tensor).detach().float().cpu().clone()
        weights[f"transformer.{name}"] = copy.contiguous()
    shape = {k: getattr(config, k) for k in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")}
    return hf_model(gpt2_config(**shape), weights)


def save_checkpoint(
    model: GPT2LMHeadModel,
    folder: Path,
    info: CheckpointInfo,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> None:
    """Write the three files; equal models give equal bytes. The model is not changed. Existing files are replaced."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    stored = getattr(torch, dtype)
    weights = {
        name: tensor.detach().to("cpu", stored).contiguous()
        for name, tensor in sorted(model.state_dict().items())
        if name != HEAD or not model.config.tie_word_embeddings
    }
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    config = model.config
    written = {  # explicit, not config.to_json_file: that names the version of transformers, and digests would differ
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "dtype": dtype,
        **{k: getattr(config, k) for k in ("n_layer", "n_head", "n_embd", "n_inner", "n_positions", "vocab_size")},
        **{k: getattr(config, k) for k in ("activation_function", "layer_norm_epsilon", "initializer_range")},
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": bool(config.tie_word_embeddings),
        "use_cache": True,
    }
    (folder / CONFIG).write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    (folder / INFO).write_text(json.dumps(asdict(info), indent=2, sort_keys=True) + "\n")


def read_info(folder: Path) -> CheckpointInfo:
    """What chessreg.json says. Raises NotFoundError without a checkpoint there, BadInputError for an unreadable one."""
    path = Path(folder) / INFO
    if not path.is_file():
        raise NotFoundError(
            f"{folder} is not a checkpoint: it has no {INFO}", "chessreg import checkpoint FILE makes one"
        )
    try:
        content = json.loads(path.read_text())
        version = content["format_version"]
        if version != FORMAT_VERSION:
            raise BadInputError(f"{path} has format {version}; this chessreg reads format {FORMAT_VERSION}")
        return CheckpointInfo(**{f.name: content[f.name] for f in fields(CheckpointInfo)})
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{path} is not a checkpoint's {INFO}: {error}") from error


def load_model(folder: Path, dtype: torch.dtype | None = None) -> GPT2LMHeadModel:
    """The model of a checkpoint folder on the CPU, in eval mode, float32 unless another dtype is asked for."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    info = read_info(folder)
    try:
        config = json.loads((Path(folder) / CONFIG).read_text())
        weights = load_file(Path(folder) / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise BadInputError(f"checkpoint {folder} cannot be read: {error}") from error
    shape = {k: info.architecture[k] for k in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "activation")}
    made = gpt2_config(
        **shape,
        d_mlp=config["n_inner"],
        layer_norm_epsilon=info.architecture["layer_norm_epsilon"],
        tied_head=info.architecture.get("tied_head", True),
    )
    return hf_model(made, {name: tensor.to(dtype or torch.float32) for name, tensor in weights.items()})


def digest(folder: Path) -> str:
    """sha256 over configuration, weights, tokenizer and residual convention: the checkpoint's identity."""
    info = read_info(folder)
    total = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        with (Path(folder) / name).open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    total.update(f"{info.tokenizer}\n{info.residual}".encode())
    return total.hexdigest()
