"""Saved probes and activation vectors of all versions of Karvonen's code (train_test_chess.py and caa.py).

A probe file is a dict with `linear_probe` and logged values or, in the oldest version, only the tensor. A vector file
has `difference_vector` and usually the two averages; the oldest have only the averages. A vector made from a skill
probe is that probe's file with the same three tensors added. All are read by torch's weights-only unpickler, which runs
no code of the file.

A single tensor in a `.npy`, `.pt` or `.safetensors` file is a vector that the user made with another program.

The squares of a probe [1, d_model, 8, 8, classes] are [rank - 1, file], so that they flatten to a1, b1 … h8.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError, get_first_line
from chessreg.models.importers.source import (
    describe_contents,
    is_safetensors,
    read_safetensors,
    read_torch_file,
    to_plain_values,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

LABELS = {
    "chess_piece_probe": "piece",
    "chess_color_probe": "color",
    "chess_threat_probe": "threat",
    "chess_legal_move_probe": "legal-move",
    "chess_pin_probe": "pin",
    "chess_prev_move_probe": "previous-move",
    "chess_random_probe": "random",
    "chess_skill_probe": "skill",
}
SHAPES = {(8, 8, 13): "piece", (8, 8, 3): "color", (1, 1, 2): "skill", (1, 1): "rating"}
POSITIONS = re.compile(r"find_(dots|even_spaces|odd_spaces|spaces)(_indices)?(_offset_one)?(_indices)?")
SIDES = ("difference_vector", "average_high_elo_activation", "average_low_elo_activation")
LICHESS_DOTS = 33  # in every game of the author's Lichess sets (3.3)
TRANSFORMER_LENS = "tf_lens_"  # prefix of the author's folded models, whose residual stream is centred (2.3)
COUNTS = (
    "layer",
    "n_layers",
    "pos_start",
    "pos_end",
    "iters",
    "epochs",
    "num_games",
    "count_high_elo",
    "count_low_elo",
)
WORDS = ("config_name", "linear_probe_name", "model_name", "indexing_function_name", "column_name", "dataset_prefix")
MAX_COUNT = 1 << 53  # integers up to this are exact in any program
DIFFERENCE_TOLERANCE = 1e-4  # relative to the norm: difference_vector must equal the high average minus the low one


@dataclass(frozen=True)
class FileOrigin:
    """The origin of a file's tensors, from its metadata or else its name. None: unknown."""

    layer: int | None
    label: str | None
    model: str | None
    n_layers: int | None
    positions: str | None
    first_position: int | None  # 0-based within a game
    metadata: dict[str, Any] = field(default_factory=dict)  # every number and text in the file, unchanged
    residual_index: int | None = None  # Davis's index: 0 the embeddings, L the output of the L-th block
    phase: int | None = None  # phase of the token, in UCI squares
    raw: bool = False  # from Hugging Face's hidden states, which are not centred
    file: str = ""  # the file's name in messages
    hook_point: str | None = None  # with * for the layer
    residual: str | None = None  # raw or centred, if the file states it
    columns: dict[str, Any] = field(default_factory=dict)  # of the imported row, as the file states them
    detail: dict[str, Any] = field(default_factory=dict)  # further facts about the tensors, as the file states them

    @property
    def is_centred(self) -> bool | None:
        """Whether the residual stream has mean 0 over d_model; None if the model is not named."""
        if self.raw or self.residual:
            return self.residual == "centred"
        return None if self.model is None else self.model.startswith(TRANSFORMER_LENS)

    @property
    def positions_per_game(self) -> int | None:
        """The number of positions read per game, if known: for dots in the author's Lichess games."""
        if self.positions != "dots" or self.first_position is None or self.metadata.get("dataset_prefix") != "lichess_":
            return None
        return int(self.metadata.get("pos_end") or LICHESS_DOTS) - self.first_position


@dataclass(frozen=True)
class ProbeFile:
    """A linear probe without bias; weight float32 [d_model, 64 or 1, classes], 1 class for a regression."""

    weight: np.ndarray
    origin: FileOrigin

    @property
    def epochs(self) -> int | None:
        """Passes over the games. The file's `epochs` is the index of the last pass."""
        last_epoch = self.origin.metadata.get("epochs")
        return None if last_epoch is None else int(last_epoch) + 1

    @property
    def train_games(self) -> int | None:
        """The number of training games. The file's `iters` counts games over all epochs; `num_games` includes held-out
        games."""
        iterations = self.origin.metadata.get("iters")
        return None if iterations is None or not self.epochs else round(iterations / self.epochs)


@dataclass(frozen=True)
class VectorFile:
    """A direction float32 [d_model], the two sides whose difference it is (if in the file), and its source.

    `source` is contrastive, cascade, probe, or user for a single tensor. Contrastive sides are sums over
    `origin.positions_per_game` positions.
    """

    vector: np.ndarray
    high: np.ndarray | None
    low: np.ndarray | None
    source: str
    origin: FileOrigin


def read_karvonen_probe(path: Path, name: str | None = None) -> ProbeFile:
    """Return a saved probe. `name` is the file's original name if `path` is a copy. Raises BadInputError."""
    name = path.name if name is None else name
    content = read_torch_file(path)
    log_values = content if isinstance(content, dict) else {}
    tensor = content.get("linear_probe") if isinstance(content, dict) else content
    if tensor is None or not hasattr(tensor, "dim"):
        hint = f"chessreg import vector {name}" if is_vector(log_values) else "a probe file has `linear_probe`"
        raise BadInputError(f"{name} holds no linear probe, but {describe_contents(content)}", hint)
    if tensor.dim() not in (4, 5) or tensor.shape[0] != 1 or tuple(tensor.shape[2:4]) not in ((8, 8), (1, 1)):
        raise BadInputError(
            f"{name}: its probe has shape {list(tensor.shape)}", "known are [1, d_model, 8 or 1, 8 or 1, classes]"
        )
    check_floats(tensor, name)
    origin = read_origin(log_values, name)
    if origin.label is None:
        guessed_shape = SHAPES.get(tuple(tensor.shape[2:]))
        origin = FileOrigin(**{**vars(origin), "label": guessed_shape})
    weight = tensor[0].unflatten(-1, (-1, 1)) if tensor.dim() == 4 else tensor[0]
    return ProbeFile(to_float_array(weight.flatten(1, 2), name), origin)


def read_karvonen_vector(path: Path, name: str | None = None) -> VectorFile:
    """Return a saved activation vector, the difference of a skill probe's two classes, or the single tensor [d_model]
    of a file. Raises BadInputError."""
    name = path.name if name is None else name
    content = read_content(path, name)
    if is_tensor(content) or (isinstance(content, dict) and content.keys() == {SIDES[0]}):
        tensor = content if is_tensor(content) else content[SIDES[0]]
        vector = get_one_dimensional(tensor, "its tensor", name)
        assert vector is not None
        return VectorFile(vector, None, None, "user", read_origin({}, name))
    if not (is_vector(content) or (isinstance(content, dict) and "linear_probe" in content)):
        hint = f"save one tensor [d_model] alone, or a dict with `{SIDES[0]}`, or with `{SIDES[1]}` and `{SIDES[2]}`"
        raise BadInputError(f"{name} holds no activation vector, but {describe_contents(content)}", hint)
    origin = read_origin(content, name)
    cascade = re.search(r"type=caa_cascade", name) is not None
    source = "probe" if "linear_probe" in content else "cascade" if cascade else "contrastive"
    if not is_vector(content):
        weight = read_karvonen_probe(path, name).weight
        if weight.shape[1:] != (1, 2):
            raise BadInputError(
                f"{name} is a probe of {weight.shape[1]} squares and {weight.shape[2]} classes, not one direction",
                f"chessreg import probe {name}",
            )
        low, high = weight[:, 0, 0], weight[:, 0, 1]
        return VectorFile(high - low, high, low, source, origin)
    difference, high_side, low_side = (get_one_dimensional(content.get(key), key, name) for key in SIDES)
    if SIDES[0] not in content and high_side is not None and low_side is not None:
        if high_side.shape != low_side.shape:
            raise BadInputError(f"{name}: its averages differ in length: {len(high_side)} and {len(low_side)}")
        difference = high_side - low_side
    if difference is None:
        raise BadInputError(f"{name}: its difference_vector is not a tensor")
    if high_side is not None and low_side is not None and not is_difference(difference, high_side, low_side):
        raise BadInputError(f"{name}: its difference_vector is not its high average minus its low one")
    return VectorFile(difference, high_side, low_side, source, origin)


def read_content(path: Path, name: str) -> Any:
    """Return the content of a `.npy`, `.safetensors` or torch file, recognized by its first bytes.

    A safetensors file with one tensor gives that tensor. Raises BadInputError for a damaged file or several tensors.
    """
    import numpy as np
    import torch

    if is_safetensors(path):
        tensors = read_safetensors(path)
        if len(tensors) != 1:
            raise BadInputError(f"{name} holds {len(tensors)} tensors, not one", "save one vector [d_model] per file")
        return next(iter(tensors.values()))
    with path.open("rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            return read_torch_file(path)
        file.seek(0)
        try:
            return torch.from_numpy(np.lib.format.read_array(file, allow_pickle=False))
        except (ValueError, TypeError, EOFError) as error:
            raise BadInputError(f"{name} is not a NumPy file of floats: {get_first_line(error)}") from error


def is_tensor(content: Any) -> bool:
    """Return whether this is a torch tensor."""
    return hasattr(content, "is_floating_point")


def is_vector(content: Any) -> bool:
    """Return whether this is the content of a vector file: the difference, or both averages."""
    return isinstance(content, dict) and (SIDES[0] in content or (SIDES[1] in content and SIDES[2] in content))


def check_logged(log_values: dict[str, Any], name: str) -> None:
    """Raise BadInputError for impossible logged values: a negative or fractional count, or an overlong text."""
    description = log_values.get("metadata") or {}
    if not isinstance(description, dict):
        raise BadInputError(f"{name}: its metadata is {describe_contents(description)}, not a dict")
    for record in (log_values, description):
        for key in COUNTS:
            value = to_plain_values(record.get(key))
            is_count = isinstance(value, int | float) and value == int(value) and 0 <= value < MAX_COUNT
            if record.get(key) is not None and not is_count:
                raise BadInputError(f"{name}: its {key} is {str(record[key])[:60]!r}, not a whole number from 0 on")
        for key in WORDS:
            value = record.get(key)
            if value is not None and not (isinstance(value, str) and len(value) <= 200 and value.isprintable()):
                raise BadInputError(f"{name}: its {key} is {str(value)[:60]!r}, not a name")


def read_origin(log_values: dict[str, Any], name: str) -> FileOrigin:
    """Return the origin of a file's tensors, from its logged values, else from its name. Raises BadInputError."""
    check_logged(log_values, name)
    config = log_values.get("config_name") or log_values.get("linear_probe_name")
    if not config:
        config = next((key for key in LABELS if key in name), None)
    layer = log_values.get("layer")
    if layer is None and (match := re.search(r"layer[_=](\d+)", name)):
        layer = int(match[1])
    model = log_values.get("model_name")
    if not model and (match := re.search(rf"{TRANSFORMER_LENS}\w+?layers\w*?ckpt(_no_optimizer)?", name)):
        model = match[0]
    n_layers = log_values.get("n_layers")
    if n_layers is None and (match := re.search(r"_?(\d+)layers", str(model or name))):
        n_layers = int(match[1])
    first_position = log_values.get("pos_start")
    if first_position is None and (match := re.search(r"pos_start_(\d+)", name)):
        first_position = int(match[1])
    indexing = log_values.get("indexing_function_name")
    positions = translate_positions(str(indexing)) if indexing else None
    if positions is None and log_values:  # defaults of the author's first files
        positions = "even-spaces" if "black_player" in name else "dots"
    plain_values = {
        key: to_plain_values(value) for key, value in log_values.items() if key not in (*SIDES, "linear_probe")
    }
    return FileOrigin(
        layer=None if layer is None else int(layer),
        label=translate_label(str(config)) if config else None,
        model=str(model) if model else None,
        n_layers=None if n_layers is None else int(n_layers),
        positions=positions,
        first_position=None if first_position is None else int(first_position),
        metadata={key: value for key, value in plain_values.items() if value is not None},
        file=name,
    )


def translate_label(config: str) -> str:
    """Return chessreg's name of one of the author's labels; a label that does not exist keeps its name."""
    return LABELS.get(config, config.removeprefix("chess_").removesuffix("_probe").replace("_", "-"))


def translate_positions(indexing: str) -> str:
    """Return chessreg's name of one of the author's indexing functions; an unknown one keeps its name."""
    match = POSITIONS.fullmatch(indexing)
    return match[1].replace("_", "-") + ("+1" if match[3] else "") if match else indexing


def check_floats(tensor: Tensor, name: str) -> None:
    """Raise BadInputError for a tensor that is empty, sparse or not of floats."""
    if not tensor.is_floating_point() or tensor.is_sparse or not tensor.numel():
        problem = "empty" if not tensor.numel() else f"{tensor.layout} of {tensor.dtype}".replace("torch.", "")
        raise BadInputError(f"{name}: its tensor {list(tensor.shape)} is {problem}, not dense and of floats")


def to_float_array(tensor: Tensor, name: str) -> np.ndarray:
    """Return a tensor as a float32 array. Raises BadInputError for NaN or infinite values."""
    import numpy as np

    values = np.ascontiguousarray(tensor.detach().float().numpy())
    if not np.isfinite(values).all():
        raise BadInputError(f"{name} holds NaN or infinite values")
    return values


def get_one_dimensional(tensor: Any, key: str, name: str) -> np.ndarray | None:
    """Return a tensor [d_model] or [1, d_model] as an array [d_model], None for None. Raises BadInputError for anything
    else."""
    if tensor is None:
        return None
    if not hasattr(tensor, "dim"):
        raise BadInputError(f"{name}: {key} is not a tensor of floats [d_model] but a {type(tensor).__name__}")
    if tensor.dim() == 2 and len(tensor) == 1:
        tensor = tensor[0]
    if tensor.dim() != 1 or not tensor.is_floating_point():
        kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        raise BadInputError(f"{name}: {key} is not a tensor of floats [d_model] but {kind}")
    check_floats(tensor, name)
    return to_float_array(tensor, name)


def is_difference(vector: np.ndarray, high: np.ndarray, low: np.ndarray) -> bool:
    """Return whether the vector equals high - low within DIFFERENCE_TOLERANCE."""
    import numpy as np

    if not vector.shape == high.shape == low.shape:
        return False
    return bool(
        np.linalg.norm(high - low - vector) <= DIFFERENCE_TOLERANCE * max(np.linalg.norm(high), np.linalg.norm(low))
    )
