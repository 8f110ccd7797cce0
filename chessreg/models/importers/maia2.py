"""Maia-2: a `.pt` as the package maia2 saves and loads, or its state dict alone.

The shapes determine everything except the number of attention heads and the players' ratings. The package's models have
heads of 64 features. Each normalization of a convolution is merged into that convolution.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError
from chessreg.models.importers.registry import Imported, register_format
from chessreg.models.importers.source import STATE_DICTS, CheckpointSource, remove_wrappers

if TYPE_CHECKING:
    from torch import Tensor

    from chessreg.models.adapters.maia2 import Maia2Config

FIRST_WEIGHT = "chess_cnn.conv1.weight"
RATING_WEIGHT = "elo_embedding.weight"
HEAD_WIDTH = 64
NORM_PARTS = ("weight", "bias", "running_mean", "running_var")
NORM_EPSILON = 1e-5
DEFAULT_RATING = 1500


class Maia2File:
    """A dict with a state dict of the package's MAIA2Model, perhaps inside DataParallel or torch.compile."""

    name = "maia2"

    def recognises(self, source: CheckpointSource) -> bool:
        return find_maia2_weights(source) is not None

    def encoding_of(self, source: CheckpointSource) -> str | None:
        return "maia-2"

    def read(self, source: CheckpointSource) -> Imported:
        """Return the import. Raises BadInputError for other weights than those of a Maia-2 model."""
        from chessreg.models.adapters.base import check_weights
        from chessreg.models.adapters.maia2 import Maia2

        raw = find_maia2_weights(source)
        if raw is None:
            raise BadInputError(f"{source.path.name} has no weights of Maia-2: {source.description}")
        config = infer_maia2_config(raw, source)
        raw = {name: tensor for name, tensor in raw.items() if not name.endswith(".num_batches_tracked")}
        check_weights(raw, list_maia2_shapes(config), Maia2.title)
        if any(bool((tensor < 0).any()) for name, tensor in raw.items() if name.endswith(".running_var")):
            raise BadInputError(f"{source.path.name} is damaged: a variance in chess_cnn is negative")
        return Imported(
            model=Maia2.from_weights(config, rename_maia2_weights(raw, config)),
            reference=functools.partial(compute_maia2_logits, raw, config=config),
            remarks=[
                f"plays as a player rated {config.rating} against {config.opponent_rating} (Lichess); --rating and "
                "--opponent-rating import it with other ratings"
            ],
        )


def find_maia2_weights(source: CheckpointSource) -> dict[str, Tensor] | None:
    """Return a file's weights of Maia-2 without wrappers' name parts and prefixes, None if it has none.

    Raises BadInputError for two weights with one name.
    """
    content = source.content
    for key in STATE_DICTS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not any(str(name).endswith(FIRST_WEIGHT) for name in content):
        return None
    weights = remove_wrappers(content, source.path.name)
    prefix = min(name for name in weights if name.endswith(FIRST_WEIGHT)).removesuffix(FIRST_WEIGHT)
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items()}


def infer_maia2_config(raw: Mapping[str, Any], source: CheckpointSource) -> Maia2Config:
    """Return the shape of the model and the given ratings. Raises BadInputError for another shape than Maia-2's."""
    from chessreg.models.adapters.maia2 import MOVES, PLANES, RATING_CATEGORIES, Maia2Config

    def size(name: str, axis: int, axes: int = 2) -> int:
        shape = tuple(getattr(raw.get(name), "shape", ()))
        if len(shape) != axes:
            problem = f"has shape {list(shape)}" if name in raw else "is missing"
            raise BadInputError(f"{source.path.name} is not a Maia-2 model: weight {name} {problem}")
        if not shape[axis]:
            raise BadInputError(f"{source.path.name} is not a Maia-2 model: weight {name} is empty")
        return shape[axis]

    for name, axis, axes, expected_size, title in (
        (FIRST_WEIGHT, 1, 4, PLANES, "planes of the board"),
        (RATING_WEIGHT, 0, 2, RATING_CATEGORIES, "categories of ratings"),
        ("fc_1.weight", 0, 2, MOVES, "moves"),
    ):
        if (actual_size := size(name, axis, axes)) != expected_size:
            raise BadInputError(f"{source.path.name} has {actual_size:,} {title}, but Maia-2 has {expected_size:,}")
    layers, settings = count_numbers(raw, r"transformer\.elo_layers\.(\d+)\."), source.unrecorded_settings
    if not layers:
        raise BadInputError(f"{source.path.name} is not a Maia-2 model: it has no transformer.elo_layers")
    inner = size("transformer.elo_layers.0.0.elo_query.weight", 0)
    heads = settings.heads or inner // HEAD_WIDTH
    if not heads or inner % heads:
        raise BadInputError(f"{inner} features of attention are not those of {heads} heads", "give --heads N")
    rating = DEFAULT_RATING if settings.rating is None else settings.rating
    return Maia2Config(
        n_layer=layers,
        n_head=heads,
        n_embd=size("fc_1.weight", 1),
        d_head=inner // heads,
        d_mlp=size("transformer.elo_layers.0.1.net.1.weight", 0),
        patches=size("chess_cnn.conv_last.weight", 0, 4),
        channels=size(FIRST_WEIGHT, 0, 4),
        convolutions=count_numbers(raw, r"chess_cnn\.layers\.(\d+)\."),
        d_rating=size(RATING_WEIGHT, 1),
        rating=rating,
        opponent_rating=rating if settings.opponent_rating is None else settings.opponent_rating,
    )


def count_numbers(raw: Mapping[str, Any], pattern: str) -> int:
    """Return how many different numbers the names have in the pattern's group."""
    return len({match[1] for name in raw if (match := re.match(pattern, name))})


def list_maia2_shapes(config: Maia2Config) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the package's weights, without counters."""
    from chessreg.models.adapters.maia2 import MOVES, PLANES, RATING_CATEGORIES, SIDE_INFO, VALUE_WIDTH

    width, inner, maps = config.n_embd, config.n_head * config.d_head, config.channels
    shapes: dict[str, tuple[int, ...]] = {"pos_embedding": (1, config.patches, width)}
    shapes[RATING_WEIGHT] = RATING_CATEGORIES, config.d_rating

    def convolution(name: str, norm: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"] = outputs, inputs, 3, 3
        shapes.update({f"{norm}.{part}": (outputs,) for part in NORM_PARTS})

    def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = outputs, inputs
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    convolution("chess_cnn.conv1", "chess_cnn.bn1", PLANES, maps)
    for number in range(config.convolutions):
        for part in (1, 2):
            block = f"chess_cnn.layers.{number}"
            convolution(f"{block}.conv{part}", f"{block}.bn{part}", maps, maps)
    convolution("chess_cnn.conv_last", "chess_cnn.bn_last", maps, config.patches)
    linear("to_patch_embedding.0", 64, width)
    norms = ["to_patch_embedding.1", "transformer.norm", "last_ln"]
    for layer in range(config.n_layer):
        attention, mlp = (f"transformer.elo_layers.{layer}.{part}" for part in (0, 1))
        norms += [f"{attention}.norm", f"{mlp}.net.0"]
        linear(f"{attention}.to_qkv", width, 3 * inner, bias=False)
        linear(f"{attention}.elo_query", 2 * config.d_rating, inner, bias=False)
        linear(f"{attention}.to_out.0", inner, width)
        linear(f"{mlp}.net.1", width, config.d_mlp)
        linear(f"{mlp}.net.4", config.d_mlp, width)
    shapes |= {f"{norm}.{part}": (width,) for norm in norms for part in ("weight", "bias")}
    for name, inputs, outputs in (
        ("fc_1", width, MOVES), ("fc_2", width, SIDE_INFO), ("fc_3_1", width, VALUE_WIDTH), ("fc_3", VALUE_WIDTH, 1),
    ):  # fmt: skip
        linear(name, inputs, outputs)
    return shapes


def rename_maia2_weights(raw: Mapping[str, Tensor], config: Maia2Config) -> dict[str, Tensor]:
    """Return the weights float32 by the adapter's names, each convolution with its normalization."""
    weights: dict[str, Tensor] = {}

    def take(own_name: str, file_name: str) -> None:
        for part in ("weight", "bias"):
            if (tensor := raw.get(f"{file_name}.{part}")) is not None:
                weights[f"{own_name}.{part}"] = tensor.float().contiguous()

    def merge(own_name: str, convolution: str, norm: str) -> None:
        scale, shift, mean, variance = (raw[f"{norm}.{part}"].double() for part in NORM_PARTS)
        factor = scale / (variance + NORM_EPSILON).sqrt()
        weights[f"{own_name}.weight"] = (raw[f"{convolution}.weight"].double() * factor[:, None, None, None]).float()
        weights[f"{own_name}.bias"] = (shift - mean * factor).float()

    merge("stem", "chess_cnn.conv1", "chess_cnn.bn1")
    for number in range(config.convolutions):
        block = f"chess_cnn.layers.{number}"
        merge(f"cnn.{number}.first", f"{block}.conv1", f"{block}.bn1")
        merge(f"cnn.{number}.second", f"{block}.conv2", f"{block}.bn2")
    merge("to_patches", "chess_cnn.conv_last", "chess_cnn.bn_last")
    for own_name, file_name in (
        ("embed", "to_patch_embedding.0"), ("embed_norm", "to_patch_embedding.1"), ("ratings", "elo_embedding"),
        ("ln_f", "transformer.norm"), ("head_norm", "last_ln"), ("policy", "fc_1"), ("side_info", "fc_2"),
        ("value_in", "fc_3_1"), ("value_out", "fc_3"),
    ):  # fmt: skip
        take(own_name, file_name)
    weights["positions.weight"] = raw["pos_embedding"][0].float().contiguous()
    for layer in range(config.n_layer):
        attention, mlp = (f"transformer.elo_layers.{layer}.{part}" for part in (0, 1))
        for own_name, file_name in (
            ("ln_1", f"{attention}.norm"), ("attn.qkv", f"{attention}.to_qkv"), ("attn.out", f"{attention}.to_out.0"),
            ("attn.of_ratings", f"{attention}.elo_query"), ("ln_2", f"{mlp}.net.0"), ("up", f"{mlp}.net.1"),
            ("down", f"{mlp}.net.4"),
        ):  # fmt: skip
            take(f"h.{layer}.{own_name}", file_name)
    return weights


def compute_maia2_logits(raw: Mapping[str, Tensor], tokens: Tensor, config: Maia2Config) -> Tensor:
    """Return policy logits float64 [batch, 1, 1880] of positions [batch, 77].

    An independent, deliberately simple implementation of the published description over the raw weights.
    """
    import torch
    import torch.nn.functional as F

    from chessreg.models.adapters.maia2 import get_rating_category

    weights = {name: tensor.double() for name, tensor in raw.items()}

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].mT + weights.get(f"{name}.bias", 0.0)

    def layer_norm(x: Tensor, name: str) -> Tensor:
        centred_x = x - x.mean(-1, keepdim=True)
        scaled_x = centred_x / (centred_x.square().mean(-1, keepdim=True) + NORM_EPSILON).sqrt()
        return scaled_x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def convolve(x: Tensor, name: str, norm: str) -> Tensor:
        scale, shift, mean, variance = (weights[f"{norm}.{part}"][:, None, None] for part in NORM_PARTS)
        convolved_x = F.conv2d(x, weights[f"{name}.weight"], padding=1)
        return (convolved_x - mean) / (variance + NORM_EPSILON).sqrt() * scale + shift

    maps = torch.stack([draw_planes(row) for row in tokens.tolist()]).double()
    maps = convolve(maps, "chess_cnn.conv1", "chess_cnn.bn1").relu()
    for number in range(config.convolutions):
        block = f"chess_cnn.layers.{number}"
        inner = convolve(maps, f"{block}.conv1", f"{block}.bn1").relu()
        maps = (convolve(inner, f"{block}.conv2", f"{block}.bn2") + maps).relu()
    patches = convolve(maps, "chess_cnn.conv_last", "chess_cnn.bn_last").flatten(2)
    x = layer_norm(linear(patches, "to_patch_embedding.0"), "to_patch_embedding.1") + weights["pos_embedding"]
    rows = [get_rating_category(rating) for rating in (config.rating, config.opponent_rating)]
    ratings = torch.cat([weights[RATING_WEIGHT][row] for row in rows])
    for layer in range(config.n_layer):
        attention, mlp = (f"transformer.elo_layers.{layer}.{part}" for part in (0, 1))
        q, k, v = linear(layer_norm(x, f"{attention}.norm"), f"{attention}.to_qkv").tensor_split(3, -1)
        q = q + linear(ratings, f"{attention}.elo_query")
        head_outputs = []
        for head in range(config.n_head):
            part = slice(head * config.d_head, (head + 1) * config.d_head)
            scores = q[..., part] @ k[..., part].mT / config.d_head**0.5
            head_outputs.append(scores.softmax(-1) @ v[..., part])
        x = x + linear(torch.cat(head_outputs, -1), f"{attention}.to_out.0")
        inner = linear(layer_norm(x, f"{mlp}.net.0"), f"{mlp}.net.1")
        x = x + linear(inner * 0.5 * (1 + torch.erf(inner / 2**0.5)), f"{mlp}.net.4")
    hidden = layer_norm(layer_norm(x, "transformer.norm").mean(1, keepdim=True), "last_ln")
    return linear(hidden, "fc_1")


def draw_planes(row: list[int]) -> Tensor:
    """Return the planes float32 [18, 8, 8] of one position of 77 tokens, square by square."""
    import torch

    from chessreg.encodings.maia2 import Maia2Encoding

    text = [Maia2Encoding.vocabulary[number] for number in row]
    black = text[0] == "b"
    planes = torch.zeros(18, 8, 8)
    planes[12] = 1
    for place, character in enumerate(text[1:65]):
        rank, file = divmod(place, 8)  # rank 8 first
        if character in "PNBRQKpnbrqk":
            is_own = character.islower() == black
            planes["pnbrqk".index(character.lower()) + (0 if is_own else 6), rank if black else 7 - rank, file] = 1
    for plane, right in enumerate("kqKQ" if black else "KQkq", 13):
        planes[plane] = float(right in text[65:69])
    if text[69] in "abcdefgh" and text[70] in "12345678":
        rank = int(text[70])
        planes[17, 8 - rank if black else rank - 1, "abcdefgh".index(text[69])] = 1
    return planes


register_format(Maia2File())
