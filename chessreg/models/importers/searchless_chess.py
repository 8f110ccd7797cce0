"""DeepMind's searchless chess models (Ruoss et al. 2024): the parameters of their Haiku transformer, in an orbax folder
as published, or in a `.npz` with one array per `MODULE/PARAMETER`.

Names and shapes determine everything except the number of heads, the attention and the kind of value. The published
models have 8 heads (4 at a width of 64) and no mask. 1,968 outputs mean behavioral cloning; a value model with
positions for an action is read as a model of action values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chessreg.errors import BadInputError
from chessreg.models.importers.orbax import AVERAGED_PARAMETERS, PARAMETERS, find_parameters_folder, has_arrays
from chessreg.models.importers.registry import Imported, register_format
from chessreg.models.importers.source import CheckpointSource

if TYPE_CHECKING:
    from torch import Tensor

    from chessreg.models.adapters.base import HeadKind
    from chessreg.models.adapters.searchless_chess import SearchlessConfig

TABLE, POSITIONS = "embed/embeddings", "embed_1/embeddings"
ATTENTION = "multi_head_dot_product_attention"
ACTION_COUNT = 1968
STATE_POSITIONS = 78  # of the published model of state values
HEADS = {64: 4, 256: 8, 1024: 8}
"""Width of a published model → its attention heads."""


class SearchlessChessParameters:
    """A folder of orbax, or a `.npz`, with the parameters of their transformer."""

    name = "searchless_chess"

    def recognises(self, source: CheckpointSource) -> bool:
        content = source.content
        return isinstance(content, dict) and isinstance(content.get(TABLE), np.ndarray)

    def encoding_of(self, source: CheckpointSource) -> str | None:
        return "fen-77"

    def read(self, source: CheckpointSource) -> Imported:
        """Return the import. The head count is `--heads`, or inferred from the width."""
        from chessreg.models.adapters.searchless_chess import SearchlessChess

        raw = read_parameters(source)
        config = infer_config(source)
        heads_source = "--heads" if source.unrecorded_settings.heads else "its width"
        remarks = [f"{config.n_head} attention heads, from {heads_source}; {config.attention} attention"]
        if config.head == "action-value" and source.unrecorded_settings.head is None:
            remarks.append("read as a model of action values; --predicts state-value for one that reads no action")
        origin, averages = describe_folder(source.path)
        return Imported(
            model=SearchlessChess.from_weights(config, rename_parameters(raw, config)),
            reference=functools.partial(compute_haiku_logits, raw, config=config),
            source={"n_head_from": heads_source, **origin},
            remarks=remarks + averages,
        )


def describe_folder(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return which parameters of an orbax folder are read and of which training step, and a remark if it has averaged
    ones too. Empty for a file.

    Their engines load `params`; their notebook loads `params_ema`, an exponential moving average with decay 0.99.
    """
    folder = find_parameters_folder(path) if path.is_dir() else None
    if folder is None:
        return {}, []
    origin: dict[str, Any] = {"parameters": folder.name}
    if folder.parent.name.isdigit():
        origin["step"] = int(folder.parent.name)
    averaged_folder = folder.with_name(AVERAGED_PARAMETERS)
    if folder.name != PARAMETERS or not has_arrays(averaged_folder):
        return origin, []
    return origin, [f"read from {PARAMETERS}, as their engines do; {averaged_folder} has the averaged parameters"]


def read_parameters(source: CheckpointSource) -> dict[str, Tensor]:
    """Return the parameters as float32 tensors by `MODULE/PARAMETER`. Raises BadInputError for other arrays."""
    import torch

    arrays = source.content
    if not isinstance(arrays, dict) or not isinstance(arrays.get(TABLE), np.ndarray):
        raise BadInputError(f"{source.path.name} has no parameters of searchless_chess: {source.description}")
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.floating) and array.dtype.name != "bfloat16":
            raise BadInputError(f"{source.path.name}: {name} is not an array of floats")
    return {name: torch.from_numpy(np.ascontiguousarray(array, np.float32)) for name, array in arrays.items()}


def get_haiku_name(name: str, number: int) -> str:
    """Return Haiku's name of module number `number` with this name."""
    return f"{name}_{number}" if number else name


def infer_config(source: CheckpointSource) -> SearchlessConfig:
    """Return the shape of the model. Raises BadInputError if neither names, shapes nor the user determine it."""
    from chessreg.models.adapters.searchless_chess import SearchlessConfig

    raw, name, settings = read_parameters(source), source.path.name, source.unrecorded_settings
    layers = sum(key.startswith(ATTENTION) and key.endswith("/linear_3/w") for key in raw)
    head = raw.get(f"{get_haiku_name('linear', 3 * layers)}/b")
    if raw[TABLE].dim() != 2 or not layers or head is None or "linear/w" not in raw:
        raise BadInputError(f"{name} is not a transformer of searchless_chess: {', '.join(sorted(raw)[:5])}")
    width = raw[TABLE].shape[1]
    heads = settings.heads or HEADS.get(width)
    if heads is None or width % heads:
        raise BadInputError(
            f"{name} does not record the number of attention heads for its {width} features", "give --heads N"
        )
    positions = raw[POSITIONS].shape[0] if POSITIONS in raw else None
    return SearchlessConfig(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        head=choose_head(source, len(head), positions),
        attention=settings.attention or "bidirectional",
        d_mlp=raw["linear/w"].shape[1],
        rows=raw[TABLE].shape[0],
        positions=positions,
        **({"buckets": len(head)} if len(head) != ACTION_COUNT else {}),
        qk_norm=f"{ATTENTION}/layer_norm/scale" in raw,
        final_norm=f"{get_haiku_name('layer_norm', 2 * layers)}/scale" in raw,
    )


def choose_head(source: CheckpointSource, outputs: int, positions: int | None) -> HeadKind:
    """Return the kind of prediction: actions, or the return of an action or of a state. Raises BadInputError."""
    head = source.unrecorded_settings.head
    if outputs == ACTION_COUNT:
        if head is not None:
            raise BadInputError(f"{source.path.name} predicts actions, not values", "leave --predicts out")
        return "action"
    if head is None and positions is None:
        raise BadInputError(f"{source.path.name} does not record the kind of its predicted values", "give --predicts")
    return head or ("state-value" if positions == STATE_POSITIONS else "action-value")


def rename_parameters(raw: Mapping[str, Tensor], config: SearchlessConfig) -> dict[str, Tensor]:
    """Return the parameters by the adapter's names, matrices [out, in]; unknown parameters keep their names."""
    remaining_weights, weights = dict(raw), {}

    def take(own_name: str, module: str, **parameters: str) -> None:
        for parameter, file_name in parameters.items():
            if (tensor := remaining_weights.pop(f"{module}/{file_name}", None)) is not None:
                matrix = file_name == "w"
                weights[f"{own_name}.{parameter}"] = tensor.t().contiguous() if matrix else tensor

    norm = {"weight": "scale", "bias": "offset"}
    take("embed", "embed", weight="embeddings")
    take("positions", "embed_1", weight="embeddings")
    for layer in range(config.n_layer):
        attention = get_haiku_name(ATTENTION, layer)
        for number, own_name in enumerate(("q", "k", "v", "out")):
            take(f"h.{layer}.attn.{own_name}", f"{attention}/{get_haiku_name('linear', number)}", weight="w")
        for number, own_name in enumerate(("q_norm", "k_norm")):
            take(f"h.{layer}.attn.{own_name}", f"{attention}/{get_haiku_name('layer_norm', number)}", **norm)
        for number, own_name in enumerate(("ln_1", "ln_2")):
            take(f"h.{layer}.{own_name}", get_haiku_name("layer_norm", 2 * layer + number), **norm)
        for number, own_name in enumerate(("gate", "up", "down")):
            take(f"h.{layer}.{own_name}", get_haiku_name("linear", 3 * layer + number), weight="w")
    take("ln_f", get_haiku_name("layer_norm", 2 * config.n_layer), **norm)
    take("head_matrix", get_haiku_name("linear", 3 * config.n_layer), weight="w", bias="b")
    return {**weights, **remaining_weights}


def compute_haiku_logits(raw: Mapping[str, Tensor], tokens: Tensor, config: SearchlessConfig) -> Tensor:
    """Return logits float64 [batch, 1, outputs] after the last of tokens [batch, 77] (and action 0 for action values).

    An independent, deliberately simple implementation of the published description over the raw parameters.
    """
    import torch

    weights = {name: tensor.double() for name, tensor in raw.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        centred_x = x - x.mean(-1, keepdim=True)
        scaled_x = centred_x / (centred_x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled_x * weights[f"{name}/scale"] + weights[f"{name}/offset"]

    zero = torch.zeros_like(tokens[:, :1])
    padded_tokens = torch.cat([zero, tokens, *([zero] if config.head == "action-value" else [])], 1)
    length, width = padded_tokens.shape[1], config.n_embd
    residual = weights[TABLE][padded_tokens] * math.sqrt(width)
    if POSITIONS in weights:
        residual = residual + weights[POSITIONS][:length]
    else:
        half = torch.arange(0, width + 1, 2, dtype=torch.float64)
        angles = torch.arange(length, dtype=torch.float64)[:, None] / 10_000 ** (half / width)
        residual = residual + torch.cat([torch.sin(angles), torch.cos(angles)], 1)[:, :width]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1) if config.attention == "causal" else None
    for layer in range(config.n_layer):
        x, name = norm(residual, get_haiku_name("layer_norm", 2 * layer)), get_haiku_name(ATTENTION, layer)
        q, k, v = (x @ weights[f"{name}/{get_haiku_name('linear', part)}/w"] for part in range(3))
        if config.qk_norm:
            q, k = norm(q, f"{name}/layer_norm"), norm(k, f"{name}/layer_norm_1")
        head_outputs = []
        for head in range(config.n_head):
            part = slice(head * width // config.n_head, (head + 1) * width // config.n_head)
            scores = q[..., part] @ k[..., part].mT / math.sqrt(width // config.n_head)
            scores = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
            head_outputs.append(scores.softmax(-1) @ v[..., part])
        residual = residual + torch.cat(head_outputs, -1) @ weights[f"{name}/linear_3/w"]
        x = norm(residual, get_haiku_name("layer_norm", 2 * layer + 1))
        gate, up, down = (weights[f"{get_haiku_name('linear', 3 * layer + part)}/w"] for part in range(3))
        gate_values = x @ gate
        residual = residual + (gate_values * gate_values.sigmoid() * (x @ up)) @ down
    if config.final_norm:
        residual = norm(residual, get_haiku_name("layer_norm", 2 * config.n_layer))
    last_name = get_haiku_name("linear", 3 * config.n_layer)
    return residual[:, -1:] @ weights[f"{last_name}/w"] + weights[f"{last_name}/b"]


register_format(SearchlessChessParameters())
