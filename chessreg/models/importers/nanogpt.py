"""nanoGPT's ckpt.pt, as Karvonen's training code writes it (specification of Karvonen 2024, 2.1)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError
from chessreg.models.checkpoint import gpt2_config, hf_model
from chessreg.models.importers.registry import Imported
from chessreg.models.importers.source import Source

if TYPE_CHECKING:
    from torch import Tensor

SHAPE = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")


class NanoGPTFile:
    """A torch file whose dict has `model` (weights) and `model_args` (the shape)."""

    name = "nanogpt"

    def recognises(self, source: Source) -> bool:
        content = source.content
        return isinstance(content, dict) and "model" in content and "model_args" in content

    def read(self, source: Source) -> Imported:
        from chessreg.models.reference import gpt2_logits

        if not self.recognises(source):
            raise BadInputError(f"{source.path.name} has no nanoGPT weights: {source.description}")
        shape = model_shape(source)
        raw = model_weights(source)
        config = gpt2_config(
            n_layer=shape["n_layer"],
            n_head=shape["n_head"],
            n_embd=shape["n_embd"],
            block_size=shape["block_size"],
            vocab_size=shape["vocab_size"],
        )
        weights = {
            # Hugging Face's Conv1D keeps its matrices [in, out], nanoGPT's Linear [out, in]
            name: (tensor.t() if ".h." in name and tensor.dim() == 2 else tensor).float().clone().contiguous()
            for name, tensor in raw.items()
        }
        recorded = {
            k: v for k in ("iter_num", "best_val_loss", "config") if (v := plain(source.content.get(k))) is not None
        }
        return Imported(
            model=hf_model(config, weights),
            reference=functools.partial(gpt2_logits, raw, n_head=shape["n_head"]),
            source={"model_args": plain(source.content["model_args"]), **recorded},
        )


def model_shape(source: Source) -> dict[str, int]:
    """n_layer, n_head, n_embd, block_size and vocab_size out of model_args."""
    arguments = source.content["model_args"]
    if not isinstance(arguments, dict) or not all(type(arguments.get(k)) is int and arguments[k] > 0 for k in SHAPE):
        raise BadInputError(f"{source.path.name}: model_args must give {', '.join(SHAPE)} as positive integers")
    shape = {k: int(arguments[k]) for k in SHAPE}
    if shape["n_embd"] % shape["n_head"]:
        raise BadInputError(f"{source.path.name}: n_embd {shape['n_embd']} is no multiple of n_head {shape['n_head']}")
    return shape


def model_weights(source: Source) -> dict[str, Tensor]:
    """The weights under nanoGPT's names, without torch.compile's prefix, mask buffers and the tied head."""
    import torch

    raw = source.content["model"]
    if not isinstance(raw, dict) or not all(
        isinstance(v, torch.Tensor) and v.is_floating_point() for v in raw.values()
    ):
        raise BadInputError(f"{source.path.name}: model is not a dict of tensors of floats")
    weights = {str(name).removeprefix("_orig_mod."): tensor.detach() for name, tensor in raw.items()}
    weights = {
        name: tensor for name, tensor in weights.items() if not name.endswith((".attn.bias", ".attn.masked_bias"))
    }
    head = weights.pop("lm_head.weight", None)
    embedding = weights.get("transformer.wte.weight")
    if head is not None and (embedding is None or not torch.equal(head, embedding)):
        raise BadInputError(f"{source.path.name}: its output head is not the token embedding, as nanoGPT's is")
    return weights


def plain(value: Any) -> Any:
    """The value as JSON can hold it: numbers, strings and dicts and lists of them; None for anything else."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "item") and getattr(value, "numel", lambda: 0)() == 1:
        value = value.item()
    if isinstance(value, float) and value - value != 0:  # JSON has no NaN and no infinity
        return None
    return value if isinstance(value, bool | int | float | str) else None
