"""TransformerLens' state dict of a GPT-2, as saved by Karvonen's conversion (chess_llm_interpretability).

His `.pth` files are folded: each LayerNorm's weight is multiplied into the matrix that reads its output, every matrix
that writes to the residual stream is centred over d_model, and the unembedding is centred over the vocabulary. This is
not undone: the model gets LayerNorm weights of one and a separate output head, and because its residual stream has mean
0 at every position, the checkpoint records `centred` (2.3).
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from chessreg.errors import BadInputError
from chessreg.models.importers.registry import Imported, register_format
from chessreg.models.importers.source import CheckpointSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

BUFFERS = (".attn.mask", ".attn.IGNORE")
ATTENTION = ("attn.W_Q", "attn.W_K", "attn.W_V", "attn.W_O", "attn.b_Q", "attn.b_K", "attn.b_V", "attn.b_O")
BLOCK = (*ATTENTION, "mlp.W_in", "mlp.b_in", "mlp.W_out", "mlp.b_out")
NORM = ("ln1.w", "ln1.b", "ln2.w", "ln2.b")
OUTSIDE = ("embed.W_E", "pos_embed.W_pos", "unembed.W_U", "unembed.b_U")
FINAL = ("ln_final.w", "ln_final.b")
CENTRED_WITHIN = (
    1e-4  # relative to a matrix's typical size; float32 centring leaves about 1e-7, an uncentred matrix about 1
)


class TransformerLensFile:
    """A torch file with the state dict of a HookedTransformer: `embed.W_E`, `blocks.0.attn.W_Q`, `unembed.W_U`, …"""

    name = "transformer_lens"

    def recognises(self, source: CheckpointSource) -> bool:
        weights = source.weights
        return weights is not None and "embed.W_E" in weights and "unembed.W_U" in weights

    def encoding_of(self, source: CheckpointSource) -> str | None:
        return None

    def read(self, source: CheckpointSource) -> Imported:
        """Return the import as a GPT-2, with shapes from the weights. Raises BadInputError without TransformerLens
        weights."""
        from chessreg.models.adapters.gpt2 import GPT2, GPT2Config

        if not self.recognises(source):
            raise BadInputError(f"{source.path.name} has no TransformerLens weights: {source.description}")
        raw = read_state_dict(source)
        layers = sum(name.endswith(".mlp.W_in") for name in raw)
        heads, d_model, _ = raw["blocks.0.attn.W_Q"].shape
        config = GPT2Config(
            n_layer=layers,
            n_head=heads,
            n_embd=d_model,
            block_size=len(raw["pos_embed.W_pos"]),
            vocab_size=len(raw["embed.W_E"]),
            d_mlp=raw["blocks.0.mlp.W_in"].shape[1],
            tied_head=False,
        )
        is_folded = "ln_final.w" not in raw
        return Imported(
            model=GPT2.from_weights(config, convert_weights(raw, layers)),
            reference=functools.partial(compute_transformer_lens_logits, raw),
            residual="centred" if has_centred_weights(raw, layers) else "raw",
            source={"folded": is_folded},
        )


def read_state_dict(source: CheckpointSource) -> dict[str, Tensor]:
    """Return the file's tensors without mask buffers, with names and shapes checked. Raises BadInputError."""
    import torch

    name = source.path.name
    raw = {key: value for key, value in (source.weights or {}).items() if not key.endswith(BUFFERS)}
    if not all(isinstance(v, torch.Tensor) and v.is_floating_point() for v in raw.values()):
        raise BadInputError(f"{name}: its weights are not all tensors of floats")
    raw = {key: value.detach() for key, value in raw.items()}
    numbers = {int(match[1]) for key in raw if (match := re.match(r"blocks\.(\d+)\.", key))}
    if not numbers or numbers != set(range(len(numbers))):
        raise BadInputError(f"{name}: its blocks are not numbered 0, 1, 2, …")
    has_norms = "ln_final.w" in raw
    parts = (*BLOCK, *(NORM if has_norms else ()))
    expected_keys = {
        *OUTSIDE,
        *(FINAL if has_norms else ()),
        *(f"blocks.{n}.{part}" for n in numbers for part in parts),
    }
    if missing_keys := sorted(expected_keys - raw.keys()):
        raise BadInputError(f"{name}: weights are missing: {', '.join(missing_keys[:3])} ({len(missing_keys)} in all)")
    if unknown := sorted(raw.keys() - expected_keys):
        raise BadInputError(
            f"{name}: weights that no such GPT-2 has: {', '.join(unknown[:3])} ({len(unknown)} in all)",
            "chessreg reads HookedTransformers with standard positions, one causal attention and one MLP a block",
        )
    check_shapes(name, raw, len(numbers))
    if bool(raw["unembed.b_U"].any()):
        raise BadInputError(
            f"{name}: its unembedding has a bias, which GPT-2's Hugging Face format has no place for",
            "import the checkpoint that it was converted from",
        )
    return raw


def check_shapes(name: str, raw: Mapping[str, Tensor], layers: int) -> None:
    """Raise BadInputError unless all shapes are consistent."""
    query = raw["blocks.0.attn.W_Q"]
    if query.dim() != 3 or raw["embed.W_E"].dim() != 2 or raw["blocks.0.mlp.W_in"].dim() != 2:
        raise BadInputError(f"{name}: blocks.0.attn.W_Q is not [head, d_model, d_head], or a matrix is not 2-D")
    head, d_model, d_head = query.shape
    vocabulary, mlp = len(raw["embed.W_E"]), raw["blocks.0.mlp.W_in"].shape[1]
    if head * d_head != d_model:
        raise BadInputError(f"{name}: {head} heads of {d_head} do not make up a d_model of {d_model}")
    read_shape, write = (head, d_model, d_head), (head, d_head, d_model)
    shapes = dict(zip(ATTENTION, [read_shape] * 3 + [write] + [(head, d_head)] * 3 + [(d_model,)], strict=False))
    shapes |= {"mlp.W_in": (d_model, mlp), "mlp.b_in": (mlp,), "mlp.W_out": (mlp, d_model), "mlp.b_out": (d_model,)}
    expected_shapes: dict[str, tuple[int, ...]] = {
        f"blocks.{layer}.{part}": shape for layer in range(layers) for part, shape in shapes.items()
    }
    expected_shapes |= {"embed.W_E": (vocabulary, d_model), "pos_embed.W_pos": (len(raw["pos_embed.W_pos"]), d_model)}
    expected_shapes |= {"unembed.W_U": (d_model, vocabulary), "unembed.b_U": (vocabulary,)}
    for key, tensor in raw.items():
        shape = expected_shapes.get(key, (d_model,))  # the rest are LayerNorms
        if tuple(tensor.shape) != shape:
            raise BadInputError(
                f"{name}: weight {key} has shape {list(tensor.shape)}, other weights require {list(shape)}"
            )


def convert_weights(raw: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Return the weights by GPT2LMHeadModel's names, float32, with unchanged values."""
    import torch

    d_model = raw["embed.W_E"].shape[1]
    weights = {
        "transformer.wte.weight": raw["embed.W_E"],
        "transformer.wpe.weight": raw["pos_embed.W_pos"],
        "lm_head.weight": raw["unembed.W_U"].T,
        "transformer.ln_f.weight": raw.get("ln_final.w", torch.ones(d_model)),
        "transformer.ln_f.bias": raw.get("ln_final.b", torch.zeros(d_model)),
    }
    for layer in range(layers):
        file_prefix, own_prefix = f"blocks.{layer}", f"transformer.h.{layer}"
        for number in (1, 2):
            weights[f"{own_prefix}.ln_{number}.weight"] = raw.get(f"{file_prefix}.ln{number}.w", torch.ones(d_model))
            weights[f"{own_prefix}.ln_{number}.bias"] = raw.get(f"{file_prefix}.ln{number}.b", torch.zeros(d_model))
        # [head, d_model, d_head] → [d_model, head * d_head]; Hugging Face's Conv1D keeps its matrices [in, out]
        qkv = [raw[f"{file_prefix}.attn.W_{i}"].permute(1, 0, 2).flatten(1) for i in "QKV"]
        weights[f"{own_prefix}.attn.c_attn.weight"] = torch.cat(qkv, dim=1)
        weights[f"{own_prefix}.attn.c_attn.bias"] = torch.cat(
            [raw[f"{file_prefix}.attn.b_{i}"].flatten() for i in "QKV"]
        )
        weights[f"{own_prefix}.attn.c_proj.weight"] = raw[f"{file_prefix}.attn.W_O"].flatten(0, 1)
        weights[f"{own_prefix}.attn.c_proj.bias"] = raw[f"{file_prefix}.attn.b_O"]
        weights[f"{own_prefix}.mlp.c_fc.weight"] = raw[f"{file_prefix}.mlp.W_in"]
        weights[f"{own_prefix}.mlp.c_fc.bias"] = raw[f"{file_prefix}.mlp.b_in"]
        weights[f"{own_prefix}.mlp.c_proj.weight"] = raw[f"{file_prefix}.mlp.W_out"]
        weights[f"{own_prefix}.mlp.c_proj.bias"] = raw[f"{file_prefix}.mlp.b_out"]
    return {name: tensor.float().clone().contiguous() for name, tensor in weights.items()}


def has_centred_weights(raw: Mapping[str, Tensor], layers: int) -> bool:
    """Return whether everything written to the residual stream has mean 0 over d_model, judged by the weights."""
    stream_weights = [raw["embed.W_E"], raw["pos_embed.W_pos"]]
    for layer in range(layers):
        stream_weights += [raw[f"blocks.{layer}.{part}"] for part in ("attn.W_O", "attn.b_O", "mlp.W_out", "mlp.b_out")]
    return all(
        float(t.float().mean(-1).abs().max()) <= CENTRED_WITHIN * max(float(t.float().abs().mean()), 1e-12)
        for t in stream_weights
    )


def compute_transformer_lens_logits(weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Return logits float64 [batch, length, vocab] from a HookedTransformer's state dict, with LayerNorms folded in or
    not.

    The reference for the conversion. Heads stay separate, as in the file: W_Q [head, d_model, d_head], W_O [head,
    d_head, d_model]; exact GELU.
    """

    import torch
    import torch.nn.functional as F

    def norm(x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        return x if f"{name}.w" not in weights else x * weights[f"{name}.w"].double() + weights[f"{name}.b"].double()

    length = tokens.shape[1]
    is_visible = torch.ones(length, length, dtype=torch.bool).tril()
    residual = weights["embed.W_E"].double()[tokens] + weights["pos_embed.W_pos"].double()[:length]
    for layer in range(sum(name.endswith(".mlp.W_in") for name in weights)):
        part = {
            name.rsplit(".", 1)[1]: tensor.double()
            for name, tensor in weights.items()
            if name.startswith((f"blocks.{layer}.attn.", f"blocks.{layer}.mlp."))
        }
        x = norm(residual, f"blocks.{layer}.ln1")
        q, k, v = (torch.einsum("bpd,hde->bhpe", x, part[f"W_{i}"]) + part[f"b_{i}"][:, None] for i in "QKV")
        scores = torch.einsum("bhqe,bhke->bhqk", q, k) / q.shape[-1] ** 0.5
        pattern = scores.masked_fill(~is_visible, -torch.inf).softmax(-1)
        residual = residual + torch.einsum("bhqk,bhke,hed->bqd", pattern, v, part["W_O"]) + part["b_O"]
        x = norm(residual, f"blocks.{layer}.ln2") @ part["W_in"] + part["b_in"]
        residual = residual + F.gelu(x) @ part["W_out"] + part["b_out"]
    return norm(residual, "ln_final") @ weights["unembed.W_U"].double() + weights["unembed.b_U"].double()


register_format(TransformerLensFile())
