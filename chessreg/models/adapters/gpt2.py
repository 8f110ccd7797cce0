"""GPT-2 for training and inference: Karvonen's, nanoGPT's and Hugging Face's models, without transformers.

Pre-LN blocks with learned positions. In memory, parts are named as in Hugging Face's GPT2LMHeadModel and matrices are
torch's Linear, [out, in]. The files keep Hugging Face's layout, [in, out], so that any other tool reads them. A loaded
matrix is a transposed view of the file's, so the product equals that of Hugging Face's Conv1D to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chessreg.errors import BadInputError
from chessreg.models.adapters.base import (
    ADAPTERS,
    CausalDecoder,
    WithoutInitialization,
    check_weights,
    read_config,
    read_weights,
)
from chessreg.models.slot_cache import RowKeys, SlotCache, attend_by_rows

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
"""Attention of q, k, v [batch, head, length, d_head] under a mask (None: the model's default) and with dropout."""

PREFIX, EMBEDDING, HEAD = "transformer.", "transformer.wte.weight", "lm_head.weight"
MATRICES = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")


def gelu_new(x: Tensor) -> Tensor:
    """Return GPT-2's approximation of GELU, with the operations in the order of Hugging Face's NewGELUActivation."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": gelu_new,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
TRAINING_ACTIVATIONS = {"gelu_new": ACTIVATIONS["gelu_pytorch_tanh"]}
"""The same functions as one kernel, with other last digits: a training step on a CPU takes a sixth less time."""


@dataclass(frozen=True)
class GPT2Config:
    """The shape of a GPT-2. activation "gelu" is the exact function, as in nanoGPT; GPT-2 itself uses "gelu_new".

    With `tied_head` False, the output head is a separate matrix, as in models whose final LayerNorm is folded into it.
    """

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int
    activation: str = "gelu"
    d_mlp: int | None = None
    layer_norm_epsilon: float = 1e-5
    tied_head: bool = True
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.n_embd % self.n_head:
            raise BadInputError(f"n_embd {self.n_embd} is not a multiple of n_head {self.n_head}")
        if self.activation not in ACTIVATIONS:
            raise BadInputError(f"activation {self.activation} is not one of {', '.join(ACTIVATIONS)}")

    @classmethod
    def from_file(cls, config: Mapping[str, Any], tied_head: bool) -> GPT2Config:
        """Return the shape in a config.json with transformers' names."""
        return cls(
            n_layer=config["n_layer"],
            n_head=config["n_head"],
            n_embd=config["n_embd"],
            block_size=config["n_positions"],
            vocab_size=config["vocab_size"],
            d_mlp=config.get("n_inner"),
            activation=config.get("activation_function", "gelu_new"),
            layer_norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
            tied_head=tied_head,
        )


def attend_fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool = True) -> Tensor:
    """Attend with PyTorch's fused kernel and return [batch, heads, queries, head width].

    `q`, `k` and `v` are [batch, heads, tokens, head width]. Without a `mask`, attention is causal if `causal`, except
    that a single query sees every key. `dropout` is the probability of dropping a weight.
    """
    causal = causal and mask is None and q.shape[2] > 1
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=q.shape[-1] ** -0.5
    )


class GPT2Attention(nn.Module):
    """Multi-head self-attention of a GPT-2 block."""

    def __init__(self, config: GPT2Config, layer: int, kernel: Kernel) -> None:
        super().__init__()
        self.n_head, self.layer, self.kernel, self.dropout = config.n_head, layer, kernel, config.dropout
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, config.bias)

    def forward(self, x: Tensor, cache: SlotCache | None, mask: Tensor | None) -> Tensor:
        return self.project_output(self.mix_values(x, cache, mask))

    def project_output(self, values: Tensor) -> Tensor:
        """Return the part added to the residual stream, given the mixed values [..., d] of the heads."""
        return F.dropout(self.c_proj(values), self.dropout, self.training)

    def mix_values(self, x: Tensor, cache: SlotCache | None = None, mask: Tensor | None = None) -> Tensor:
        """Return the mixed values of the heads, concatenated: [batch, length, d]."""
        batch, length, d = x.shape
        parts = self.c_attn(x).view(batch, length, 3, self.n_head, d // self.n_head)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        keys_and_values = (k, v) if cache is None else cache.update(k, v, self.layer)
        if isinstance(keys_and_values, RowKeys):
            output = attend_by_rows(q, keys_and_values)
        else:
            output = self.kernel(
                q, keys_and_values[0], keys_and_values[1], mask, self.dropout if self.training else 0.0
            )
        return output.transpose(1, 2).reshape(batch, length, d)

    def project(self, x: Tensor, queries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q of the query tokens [batch, m, d] and k, v of all tokens [batch, length, d], each as [batch, head,
        token]."""
        d = x.shape[-1]
        weight, bias = self.c_attn.weight, self.c_attn.bias
        own_bias, kv_bias = (None, None) if bias is None else (bias[:d], bias[d:])
        q = F.linear(queries, weight[:d], own_bias).unflatten(-1, (self.n_head, -1)).transpose(1, 2)
        k, v = F.linear(x, weight[d:], kv_bias).unflatten(-1, (2, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def at_places(self, x: Tensor, row: Tensor, token: Tensor, causal: bool) -> Tensor:
        """Return the output of `forward` at tokens `token` int64 [n] of rows `row` int64 [n]: [n, d].

        If these tokens are few per row, only their queries are computed.
        """
        counts, order = row.bincount(minlength=len(x)), row.argsort(stable=True)
        most, length = int(counts.max()), x.shape[1]
        if 2 * most > length:  # the causal kernel skips half of the work
            return self.project_output(self.mix_values(x)[row, token])
        place = torch.empty_like(row)
        place[order] = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row[order]]
        at = token.new_zeros(len(x), most)
        at[row, place] = token
        q, k, v = self.project(x, x.gather(1, at[:, :, None].expand(-1, -1, x.shape[-1])))
        visible = at[:, None, :, None] >= torch.arange(length, device=row.device) if causal else None
        return self.project_output(self.kernel(q, k, v, visible, 0.0).transpose(1, 2).flatten(2)[row, place])

    def last(self, x: Tensor) -> Tensor:
        """Return the output of `forward` at the last token, [batch, 1, d]; it sees all tokens, and only its query is
        computed."""
        batch, _, d = x.shape
        q, k, v = self.project(x, x[:, -1:])
        scores = torch.softmax((q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5, -1)
        output = F.dropout(scores, self.dropout, self.training) @ v
        return self.project_output(output.transpose(1, 2).reshape(batch, 1, d))


class GPT2MLP(nn.Module):
    """The MLP of a GPT-2 block."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        d_mlp = config.d_mlp or 4 * config.n_embd
        self.activation, self.dropout = ACTIVATIONS[config.activation], config.dropout
        self.training_activation = TRAINING_ACTIVATIONS.get(config.activation, self.activation)
        self.c_fc = nn.Linear(config.n_embd, d_mlp, config.bias)
        self.c_proj = nn.Linear(d_mlp, config.n_embd, config.bias)

    def forward(self, x: Tensor) -> Tensor:
        activation = self.training_activation if self.training else self.activation
        return F.dropout(self.c_proj(activation(self.c_fc(x))), self.dropout, self.training)


class GPT2Block(nn.Module):
    """Attention and MLP, each after a LayerNorm, each added to the residual stream."""

    def __init__(self, config: GPT2Config, layer: int, kernel: Kernel) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias)
        self.attn = GPT2Attention(config, layer, kernel)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias)
        self.mlp = GPT2MLP(config)

    def forward(self, residual: Tensor, cache: SlotCache | None = None, mask: Tensor | None = None) -> Tensor:
        residual = residual + self.attn(self.ln_1(residual), cache, mask)
        return residual + self.mlp(self.ln_2(residual))

    def at_places(self, residual: Tensor, row: Tensor, token: Tensor, causal: bool) -> Tensor:
        """Return the output of `forward` at tokens `token` int64 [n] of rows `row` int64 [n]: [n, d_model].

        Queries and MLP are computed only for these tokens.
        """
        residual_rows = residual[row, token] + self.attn.at_places(self.ln_1(residual), row, token, causal)
        return residual_rows + self.mlp(self.ln_2(residual_rows))

    def last(self, residual: Tensor) -> Tensor:
        """Return the output of `forward` at the last token, [batch, 1, d_model], at a sixth of the cost."""
        residual = residual[:, -1:] + self.attn.last(self.ln_1(residual))
        return residual + self.mlp(self.ln_2(residual))


class GPT2(CausalDecoder):
    """Maps token ids to logits. `kernel` is the attention without a cache; training passes another one."""

    architecture = "gpt2"

    def __init__(self, config: GPT2Config, kernel: Kernel = attend_fused) -> None:
        super().__init__()
        self.config = config
        self.n_layer, self.d_model, self.block_size = config.n_layer, config.n_embd, config.block_size
        self.vocab_size = self.outputs = config.vocab_size
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.first_residual = nn.Identity()
        self.h = nn.ModuleList(GPT2Block(config, layer, kernel) for layer in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias)
        if not config.tied_head:
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return list(self.h)

    def get_embedding_and_norm(self) -> tuple[nn.Module, nn.Module]:
        return self.wte, self.ln_f

    def compute_embeddings(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        position_embeddings = self.wpe.weight[: tokens.shape[1]] if positions is None else self.wpe(positions)
        return F.dropout(self.wte(tokens) + position_embeddings, self.config.dropout, self.training)

    def unembed(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.wte.weight if self.config.tied_head else self.lm_head.weight)

    def norm(self, layer: int | None = None) -> nn.Module:
        if layer is None or layer == self.n_layer - 1:
            return self.ln_f
        next_norm: nn.Module = self.h[layer + 1].ln_1  # type: ignore[assignment]
        return next_norm

    def bias_matrix(self, layer: int) -> nn.Linear:
        matrix: nn.Linear = self.h[layer].mlp.c_proj  # type: ignore[assignment, union-attr]
        return matrix

    def matrices(self) -> list[nn.Parameter]:
        """Return the weight matrices of the blocks, which Muon optimizes; AdamW optimizes embeddings and norms."""
        return [p for p in self.h.parameters() if p.dim() == 2]

    def initialise(self) -> None:
        """Draw nanoGPT's initial weights from torch's generator.

        They are N(0, 0.02), for matrices that write to the residual stream N(0, 0.02 / sqrt(2 layers)); biases are 0.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, 0.0, compute_initial_deviation(name, self.n_layer))
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)

    @property
    def has_biases(self) -> bool:
        """Whether any bias is nonzero. A loaded GPT-2 always has bias tensors, but Karvonen's models do not
        use them."""
        return any(bool(p.any()) for name, p in self.named_parameters() if name.endswith(".bias"))

    def shape(self) -> dict[str, Any]:
        config = asdict(self.config) | {"d_mlp": self.config.d_mlp or 4 * self.config.n_embd, "bias": self.has_biases}
        del config["dropout"]
        return {"family": self.architecture, **config}

    def count_parameters(self) -> tuple[int, int]:
        """Return the counts; biases that are all zero do not count, because the original model has none."""
        biases = self.has_biases
        counts = {n: p.numel() for n, p in self.named_parameters() if biases or not n.endswith(".bias")}
        embeddings = sum(counts.get(name, 0) for name in ("wte.weight", "wpe.weight", HEAD))
        return sum(counts.values()), sum(counts.values()) - embeddings

    def files(self, dtype: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config = self.config
        stored_dtype = getattr(torch, dtype)
        weights = {n: t.to(stored_dtype).contiguous() for n, t in sorted(self.weights().items())}
        tensors = {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "dtype": dtype,
            **{k: getattr(config, k) for k in ("n_layer", "n_head", "n_embd", "vocab_size", "layer_norm_epsilon")},
            "n_inner": config.d_mlp,
            "n_positions": config.block_size,
            "activation_function": config.activation,
            "initializer_range": 0.02,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
            "bos_token_id": None,
            "eos_token_id": None,
            "tie_word_embeddings": config.tied_head,
            "use_cache": True,
        }
        return tensors, weights

    def weights(self) -> dict[str, Tensor]:
        """Return the weights with Hugging Face's names and layout, on the CPU, including zero biases."""
        weights = {}
        for name, tensor in self.state_dict().items():
            tensor = tensor.detach().cpu()
            weights[get_gpt2_file_name(name)] = tensor.t() if name.endswith(MATRICES) else tensor
        for name, shape in compute_file_shapes(self.config).items():
            if name not in weights:
                weights[name] = torch.zeros(shape, dtype=self.wte.weight.dtype)
        return weights

    @classmethod
    def from_weights(cls, config: GPT2Config, weights: Mapping[str, Tensor]) -> GPT2:
        """Return a model in eval mode with these weights; missing biases are zero and frozen.

        Weights are named and laid out as in GPT2LMHeadModel's state_dict, without lm_head if it is tied. Raises
        BadInputError for weights that are missing, unknown or of another shape than the configuration says.
        """
        check_shape(config, weights)
        expected_shapes = compute_file_shapes(config)
        dtype = next(iter(weights.values())).dtype
        own_shapes = {
            name: shape for name, shape in expected_shapes.items() if name in weights or not name.endswith(".bias")
        }
        check_weights(weights, own_shapes, "GPT-2")  # before biases of the claimed size are allocated
        full_weights = {n: torch.zeros(s, dtype=dtype) for n, s in expected_shapes.items() if n not in weights} | dict(
            weights
        )
        with WithoutInitialization():
            model = cls(config)
        inside = {n.removeprefix(PREFIX): t.t() if n.endswith(MATRICES) else t for n, t in full_weights.items()}
        model.load_state_dict(inside, assign=True)
        if not model.has_biases:  # fine-tuning must not train biases that the model never had
            for name, parameter in model.named_parameters():
                if name.endswith(".bias"):
                    parameter.requires_grad_(False)
        return model.eval()

    @classmethod
    def load(cls, folder: Path, shape: Mapping[str, Any], dtype: torch.dtype) -> GPT2:
        names = ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "activation", "layer_norm_epsilon")
        d_mlp = read_config(folder)["n_inner"]  # None means four times n_embd and is written back as None
        config = GPT2Config(**{n: shape[n] for n in names}, d_mlp=d_mlp, tied_head=shape.get("tied_head", True))
        return cls.from_weights(config, read_weights(folder, dtype))

    def with_vocabulary(self, rows: Sequence[int]) -> GPT2:
        weights = self.weights()
        for name in (EMBEDDING, HEAD):
            if name in weights:
                weights[name] = weights[name][list(rows)]
        return GPT2.from_weights(replace(self.config, vocab_size=len(rows)), weights)

    def copy_trained(self) -> GPT2:
        """Return a copy in float32 on the CPU, in eval mode."""
        shape = replace(self.config, bias=True, dropout=0.0)
        return GPT2.from_weights(shape, {name: tensor.float().clone() for name, tensor in self.weights().items()})

    def make_untrained(self, seed: int) -> GPT2:
        """Return a model with initial weights as `initialise` draws them, from a separate generator; biases are 0 and
        frozen."""
        return make_random_gpt2(self.config, seed)


def make_random_gpt2(config: GPT2Config, seed: int) -> GPT2:
    """Return an untrained model of this shape, a pure function of (config, seed): the random-init control of every
    probe."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in compute_file_shapes(config).items():
        if len(shape) > 1:
            weights[name] = torch.empty(shape).normal_(
                0.0, compute_initial_deviation(name, config.n_layer), generator=generator
            )
        elif not name.endswith(".bias"):
            weights[name] = torch.ones(shape)
    return GPT2.from_weights(config, weights)


def compute_initial_deviation(name: str, n_layer: int) -> float:
    """Return the standard deviation of a matrix's initial weights."""
    return 0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02


def get_gpt2_file_name(name: str) -> str:
    """Return the name in the file of a weight in memory."""
    return name if name == HEAD else PREFIX + name


def compute_file_shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Return every weight of GPT2LMHeadModel with its shape in the file, including biases, in its order of
    parameters."""
    d, d_mlp = config.n_embd, config.d_mlp or 4 * config.n_embd
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (config.vocab_size, d), "wpe.weight": (config.block_size, d)}
    for layer in range(config.n_layer):
        parts = {"ln_1": (d,), "attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d), "ln_2": (d,)}
        for part, shape in {**parts, "mlp.c_fc": (d, d_mlp), "mlp.c_proj": (d_mlp, d)}.items():
            shapes[f"h.{layer}.{part}.weight"] = shape
            shapes[f"h.{layer}.{part}.bias"] = shape[-1:]
    shapes |= {"ln_f.weight": (d,), "ln_f.bias": (d,)}
    prefixed_shapes = {PREFIX + name: shape for name, shape in shapes.items()}
    return prefixed_shapes if config.tied_head else {**prefixed_shapes, HEAD: (config.vocab_size, d)}


def check_shape(config: GPT2Config, weights: Mapping[str, Tensor]) -> None:
    """Raise BadInputError unless embeddings and number of layers match, before a model of the claimed size is
    allocated."""
    for name, rows in (("transformer.wte.weight", config.vocab_size), ("transformer.wpe.weight", config.block_size)):
        shape = list(weights[name].shape) if name in weights else "no such weight"
        if shape != [rows, config.n_embd]:
            raise BadInputError(f"weight {name} has shape {shape}, not {[rows, config.n_embd]} as configured")
    layers = sum(name.endswith(".ln_1.weight") for name in weights)
    if layers != config.n_layer:
        raise BadInputError(f"the weights have {layers} layers, not {config.n_layer} as configured")


ADAPTERS[GPT2.architecture] = GPT2
