"""Llama for inference: Hugging Face's LlamaForCausalLM without transformers, with a key-value cache.

Pre-norm blocks with RMSNorm, rotary positions, grouped queries and a gated MLP. Parts are named as in LlamaForCausalLM,
and folders are written as they were read. Models with other rotary positions or activations go through TransformerLens'
bridge, which is slower and gives the same results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chessreg.models.adapters.base import (
    ADAPTERS,
    CausalDecoder,
    Network,
    WithoutInitialization,
    check_weights,
    read_config,
    read_weights,
)
from chessreg.models.adapters.bridge import (
    BridgedModel,
    list_weights,
    make_config,
    make_untrained_model,
    reorder_config,
)
from chessreg.models.adapters.gpt2 import GPT2, GPT2Config, attend_fused
from chessreg.models.slot_cache import RowKeys, SlotCache, attend_by_rows

EMBEDDING, HEAD, PREFIX = "model.embed_tokens.weight", "lm_head.weight", "model."
Turns = tuple[Tensor, Tensor]
"""Cosine and sine of the angle by which a token's position rotates each pair of features, [batch, 1,
length, d_head]."""


class LlamaAttention(nn.Module):
    """Grouped-query self-attention with rotary positions."""

    def __init__(self, config: Mapping[str, Any], layer: int) -> None:
        super().__init__()
        d, bias = config["hidden_size"], bool(config.get("attention_bias"))
        self.layer, self.n_head, self.d_head = layer, config["num_attention_heads"], get_head_width(config)
        self.n_shared = config.get("num_key_value_heads") or self.n_head  # heads of keys and values
        self.q_proj = nn.Linear(d, self.n_head * self.d_head, bias)
        self.k_proj = nn.Linear(d, self.n_shared * self.d_head, bias)
        self.v_proj = nn.Linear(d, self.n_shared * self.d_head, bias)
        self.o_proj = nn.Linear(self.n_head * self.d_head, d, bias)

    def forward(self, x: Tensor, turns: Turns, cache: SlotCache | None, mask: Tensor | None) -> Tensor:
        """Return the attention output float [batch, length, d_model], with rotary position embeddings."""
        batch, length, _ = x.shape
        q, k, v = (
            head_values(x).view(batch, length, -1, self.d_head).transpose(1, 2)
            for head_values in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate_features(q, turns), rotate_features(k, turns)
        if self.n_shared < self.n_head:  # several queries share one
            k, v = (part.repeat_interleave(self.n_head // self.n_shared, 1) for part in (k, v))
        keys_and_values = (k, v) if cache is None else cache.update(k, v, self.layer)
        output = (
            attend_by_rows(q, keys_and_values)
            if isinstance(keys_and_values, RowKeys)
            else attend_fused(q, keys_and_values[0], keys_and_values[1], mask, 0.0)
        )
        head_values: Tensor = self.o_proj(output.transpose(1, 2).reshape(batch, length, -1))
        return head_values


class LlamaMLP(nn.Module):
    """The gated MLP of a Llama block."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        d, d_mlp, bias = config["hidden_size"], config["intermediate_size"], bool(config.get("mlp_bias"))
        self.gate_proj, self.up_proj = nn.Linear(d, d_mlp, bias), nn.Linear(d, d_mlp, bias)
        self.down_proj = nn.Linear(d_mlp, d, bias)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class LlamaBlock(nn.Module):
    """Attention and MLP, each after an RMSNorm, each added to the residual stream."""

    def __init__(self, config: Mapping[str, Any], layer: int) -> None:
        super().__init__()
        d, epsilon = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(d, epsilon), nn.RMSNorm(d, epsilon)
        self.self_attn = LlamaAttention(config, layer)
        self.mlp = LlamaMLP(config)

    def forward(self, residual: Tensor, turns: Turns, cache: SlotCache | None, mask: Tensor | None) -> Tensor:
        residual = residual + self.self_attn(self.input_layernorm(residual), turns, cache, mask)
        return residual + self.mlp(self.post_attention_layernorm(residual))


class Llama(CausalDecoder):
    """Maps token ids to logits. `config` is the content of config.json, which is written back unchanged."""

    architecture = "llama"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)
        self.n_layer, self.d_model = config["num_hidden_layers"], config["hidden_size"]
        self.block_size = config["max_position_embeddings"]
        self.vocab_size = self.outputs = config["vocab_size"]
        self.angles = compute_rotary_angles(config)
        self.embed_tokens = nn.Embedding(self.vocab_size, self.d_model)
        self.first_residual = nn.Identity()
        self.layers = nn.ModuleList(LlamaBlock(config, layer) for layer in range(self.n_layer))
        self.final = nn.RMSNorm(self.d_model, config["rms_norm_eps"])
        if not config["tie_word_embeddings"]:
            self.lm_head = nn.Linear(self.d_model, self.vocab_size, bias=False)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return list(self.layers)

    def get_embedding_and_norm(self) -> tuple[nn.Module, nn.Module]:
        return self.embed_tokens, self.final

    def compute_embeddings(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        embedding: Tensor = self.embed_tokens(tokens)
        return embedding

    def block_arguments(self, tokens: Tensor, positions: Tensor | None, dtype: torch.dtype) -> tuple[Turns]:
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        angle = positions[:, None, :, None].float() * self.angles.to(tokens.device)
        turns = torch.cat((angle, angle), -1)
        return ((turns.cos().to(dtype), turns.sin().to(dtype)),)

    def unembed(self, hidden: Tensor) -> Tensor:
        is_tied = self.config["tie_word_embeddings"]
        return F.linear(hidden, self.embed_tokens.weight if is_tied else self.lm_head.weight)

    def norm(self, layer: int | None = None) -> nn.Module:
        if layer is None or layer == self.n_layer - 1:
            return self.final
        next_norm: nn.Module = self.layers[layer + 1].input_layernorm  # type: ignore[assignment]
        return next_norm

    def shape(self) -> dict[str, Any]:
        return {
            "family": self.architecture,
            "n_layer": self.n_layer,
            "n_head": self.config["num_attention_heads"],
            "n_embd": self.d_model,
            "d_mlp": self.config["intermediate_size"],
            "block_size": self.block_size,
            "vocab_size": self.vocab_size,
            "activation": self.config["hidden_act"],
            "tied_head": bool(self.config["tie_word_embeddings"]),
        }

    def count_parameters(self) -> tuple[int, int]:
        counts = {name: parameter.numel() for name, parameter in self.named_parameters()}
        embeddings = sum(counts.get(name, 0) for name in ("embed_tokens.weight", HEAD))
        return sum(counts.values()), sum(counts.values()) - embeddings

    def files(self, dtype: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        stored_dtype = getattr(torch, dtype)
        weights = {
            get_llama_file_name(n): t.detach().to("cpu", stored_dtype).contiguous()
            for n, t in self.state_dict().items()
        }
        return {**self.config, "dtype": dtype}, dict(sorted(weights.items()))

    @classmethod
    def from_weights(cls, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Llama:
        """Return a model in eval mode with these weights, named as in LlamaForCausalLM's file, without lm_head if it is
        tied.

        Raises BadInputError for weights that are missing, unknown, not finite or of another shape.
        """
        with WithoutInitialization():
            model = cls(config)
        names = {get_llama_file_name(name): name for name in model.state_dict()}
        shapes = {name: tuple(model.get_parameter(parameter_name).shape) for name, parameter_name in names.items()}
        check_weights(weights, shapes, "Llama")
        model.load_state_dict({names[name]: tensor for name, tensor in weights.items()}, assign=True)
        return model.eval()

    @classmethod
    def load(cls, folder: Path, shape: Mapping[str, Any], dtype: torch.dtype) -> Network:  # type: ignore[override]
        config = read_config(folder)
        return (
            cls.from_weights(config, read_weights(folder, dtype))
            if is_supported(config)
            else BridgedModel.load(folder, shape, dtype)
        )

    def with_vocabulary(self, rows: Sequence[int]) -> Llama:
        weights = {get_llama_file_name(name): tensor for name, tensor in self.state_dict().items()}
        for name in (EMBEDDING, HEAD):
            if name in weights:
                weights[name] = weights[name][list(rows)]
        return Llama.from_weights(reorder_config(self.config, rows), weights)

    def make_untrained(self, seed: int) -> Llama:
        """Return a model as transformers initializes it, from `seed`."""
        initial_weights = list_weights(make_untrained_model(self.config, seed))
        return Llama.from_weights(self.config, {name: weight.detach() for name, weight in initial_weights.items()})


def wrap_hugging_face(hf: Any) -> Network:
    """Return a transformers model as a Network: GPT-2 and Llama by their adapters, others by a bridge, which changes
    them."""
    config = make_config(hf.config)
    if hf.config.model_type == GPT2.architecture:
        weights = {name: weight.detach() for name, weight in list_weights(hf).items()}
        return GPT2.from_weights(GPT2Config.from_file(config, HEAD not in weights), weights)
    if hf.config.model_type == Llama.architecture and is_supported(config):
        return Llama.from_weights(config, {name: weight.detach() for name, weight in list_weights(hf).items()})
    return BridgedModel(hf)


def is_supported(config: Mapping[str, Any]) -> bool:
    """Return whether the adapter can compute a Llama with this config.json."""
    positions = read_rotary_settings(config)
    return (
        config.get("hidden_act") == "silu"
        and positions.get("rope_type", "default") in ("default", "linear", "llama3")
        and positions.get("partial_rotary_factor", 1.0) == 1.0
        and config["num_attention_heads"] % (config.get("num_key_value_heads") or config["num_attention_heads"]) == 0
    )


def read_rotary_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of rotary positions in config.json; older files store the base as a separate key."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {"rope_theta": config.get("rope_theta", 10_000.0), **settings}


def compute_rotary_angles(config: Mapping[str, Any]) -> Tensor:
    """Return the angle per position of each pair of features, in radians, float32 [d_head / 2].

    `llama3` (Llama 3.1) slows features down that would not complete a rotation within the original context.
    """
    settings, d = read_rotary_settings(config), get_head_width(config)
    turn = 1.0 / settings["rope_theta"] ** (torch.arange(0, d, 2, dtype=torch.float32, device="cpu") / d)
    if settings.get("rope_type") == "linear":
        return turn / settings["factor"]
    if settings.get("rope_type") == "llama3":
        rounds = settings["original_max_position_embeddings"] * turn / (2 * math.pi)
        low, high = settings["low_freq_factor"], settings["high_freq_factor"]
        unscaled_share = ((rounds - low) / (high - low)).clamp(0.0, 1.0)
        return turn * (unscaled_share + (1.0 - unscaled_share) / settings["factor"])
    return turn


def rotate_features(x: Tensor, turns: Turns) -> Tensor:
    """Rotate queries or keys [batch, head, length, d_head]; features i and i + d_head / 2 form a pair."""
    one, other = x.chunk(2, -1)
    return x * turns[0] + torch.cat((-other, one), -1) * turns[1]


def get_head_width(config: Mapping[str, Any]) -> int:
    """Return the number of features per head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def get_llama_file_name(name: str) -> str:
    """Return the name in the file of a weight in memory."""
    return name if name == HEAD else PREFIX + name.replace("final.", "norm.")


ADAPTERS[Llama.architecture] = Llama
