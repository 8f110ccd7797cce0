"""nanoGPT's ckpt.pt, as written by Karvonen's training code (train_ChessGPT)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from chessreg.errors import BadInputError
from chessreg.models.importers.registry import Imported, register_format
from chessreg.models.importers.source import CheckpointSource, normalize_names, to_plain_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

APPROXIMATE = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
BUFFERS = (".attn.bias", ".attn.masked_bias")
"""Names of causal masks, which older versions of torch and transformers saved as weights."""
SHAPE = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")


class NanoGPTFile:
    """A torch file whose dict has `model` (weights) and `model_args` (the shape)."""

    name = "nanogpt"

    def recognises(self, source: CheckpointSource) -> bool:
        content = source.content
        return isinstance(content, dict) and "model" in content and "model_args" in content

    def encoding_of(self, source: CheckpointSource) -> str | None:
        return None

    def read(self, source: CheckpointSource) -> Imported:
        """Return the import as a GPT-2. Raises BadInputError if the file has no nanoGPT weights."""
        from chessreg.models.adapters.gpt2 import GPT2, GPT2Config

        if not self.recognises(source):
            raise BadInputError(f"{source.path.name} has no nanoGPT weights: {source.description}")
        shape = read_shape(source)
        raw = read_model_weights(source)
        config = GPT2Config(
            n_layer=shape["n_layer"],
            n_head=shape["n_head"],
            n_embd=shape["n_embd"],
            block_size=shape["block_size"],
            vocab_size=shape["vocab_size"],
        )
        settings = {
            k: v
            for k in ("iter_num", "best_val_loss", "config")
            if (v := to_plain_values(source.content.get(k))) is not None
        }
        return Imported(
            model=GPT2.from_weights(config, to_file_layout(raw)),
            reference=functools.partial(compute_gpt2_logits, raw, n_head=shape["n_head"]),
            source={"model_args": to_plain_values(source.content["model_args"]), **settings},
        )


def read_shape(source: CheckpointSource) -> dict[str, int]:
    """Return n_layer, n_head, n_embd, block_size and vocab_size from model_args. Raises BadInputError."""
    arguments = to_plain_values(source.content["model_args"])
    if not isinstance(arguments, dict) or not all(type(arguments.get(k)) is int and arguments[k] > 0 for k in SHAPE):
        raise BadInputError(f"{source.path.name}: model_args must give {', '.join(SHAPE)} as positive integers")
    shape = {k: int(arguments[k]) for k in SHAPE}
    if shape["n_embd"] % shape["n_head"]:
        raise BadInputError(
            f"{source.path.name}: n_embd {shape['n_embd']} is not a multiple of n_head {shape['n_head']}"
        )
    return shape


def read_model_weights(source: CheckpointSource) -> dict[str, Tensor]:
    """Return the weights by nanoGPT's names, without wrappers' prefixes, mask buffers and the tied head.

    Raises BadInputError for other values and for an untied head.
    """
    import torch

    raw = source.content["model"]
    if not isinstance(raw, dict):
        raise BadInputError(f"{source.path.name}: model is not a dict of tensors of floats")
    weights = {
        name: tensor for name, tensor in normalize_names(raw, source.path.name).items() if not name.endswith(BUFFERS)
    }
    if not all(isinstance(v, torch.Tensor) and v.is_floating_point() for v in weights.values()):
        raise BadInputError(f"{source.path.name}: model is not a dict of tensors of floats")
    weights = {name: tensor.detach() for name, tensor in weights.items()}
    head = weights.pop("lm_head.weight", None)
    embedding = weights.get("transformer.wte.weight")
    if head is not None and (embedding is None or not torch.equal(head, embedding)):
        raise BadInputError(f"{source.path.name}: its output head is not the token embedding, as nanoGPT's is")
    return weights


def to_file_layout(raw: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return nanoGPT's weights in the layout of GPT2LMHeadModel, float32; views of the given tensors if possible.

    Its Conv1D keeps matrices [in, out], nanoGPT's Linear [out, in].
    """
    return {
        name: (tensor.t() if ".h." in name and tensor.dim() == 2 else tensor).float() for name, tensor in raw.items()
    }


def compute_gpt2_logits(
    weights: Mapping[str, Tensor],
    tokens: Tensor,
    n_head: int,
    activation: str = "gelu",
    epsilon: float = 1e-5,
    causal: bool = True,
) -> Tensor:
    """Return logits float64 [batch, length, vocab] of tokens [batch, length].

    Weights are named as in nanoGPT (`transformer.h.0.attn.c_attn.weight`), matrices are [out, in], biases optional. An
    independent, deliberately simple implementation: it reveals a wrong transpose, name, activation or epsilon.
    """

    import torch
    import torch.nn.functional as F

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"].double(), bias(name))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"].double(), bias(name), epsilon)

    def bias(name: str) -> Tensor | None:
        tensor = weights.get(f"{name}.bias")
        return None if tensor is None else tensor.double()

    length = tokens.shape[1]
    hidden = torch.full((length, length), -torch.inf, dtype=torch.float64).triu(1 if causal else length)
    residual = weights["transformer.wte.weight"].double()[tokens]
    residual = residual + weights["transformer.wpe.weight"].double()[:length]
    n_layer = sum(name.endswith(".ln_1.weight") for name in weights)
    for layer in range(n_layer):
        block = f"transformer.h.{layer}"
        heads = linear(norm(residual, f"{block}.ln_1"), f"{block}.attn.c_attn").unflatten(-1, (3, n_head, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        pattern = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + hidden, -1)
        residual = residual + linear((pattern @ v).transpose(1, 2).flatten(2), f"{block}.attn.c_proj")
        inner = linear(norm(residual, f"{block}.ln_2"), f"{block}.mlp.c_fc")
        residual = residual + linear(F.gelu(inner, approximate=APPROXIMATE[activation]), f"{block}.mlp.c_proj")
    head = weights.get("lm_head.weight", weights["transformer.wte.weight"])
    return norm(residual, "transformer.ln_f") @ head.double().T


register_format(NanoGPTFile())
