"""Probes and vectors as single safetensors files that describe themselves, as `chessreg push` publishes them.

A probe file has `weight` float32 [d_model, squares, classes]. A vector file has `difference_vector` float32 [d_model]
and, if it is a difference of two sides, `average_high_elo_activation` and `average_low_elo_activation`. The header's
entry `chessreg` is a JSON object with the fields of `DirectionFacts`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chessreg.errors import BadInputError, get_first_line, reraise_lack_of_memory
from chessreg.models.importers.directions import SIDES, FileOrigin, ProbeFile, VectorFile

if TYPE_CHECKING:
    import numpy as np

HEADER = "chessreg"
MAX_HEADER_CHARS = 1 << 20
SOURCES = ("contrastive", "cascade", "probe")
DETAILS = {
    "probe": ("skill", "mean", "std", "majority"),
    "vector": (
        "positions", "positions_summed", "first_ply", "last_ply", "rating", "games_high", "games_low", "norm_high",
        "norm_low", "side", "board", "direction_norm", "norm_before_matching",
    ),
}  # fmt: skip
"""The entries of a row's `detail` that describe the tensors themselves. Others refer to the registry that has them."""
COLUMNS = {"probe": ("train_games", "train_positions", "epochs"), "vector": ("source",)}
"""The columns of a row that a file keeps, besides those that are fields of `DirectionFacts`."""


@dataclass(frozen=True)
class DirectionFacts:
    """The facts in the header of a file. `hook_point` has `*` for the layer."""

    content: Literal["probe", "vector"]
    layer: int
    hook_point: str
    label: str
    positions: str
    residual: Literal["raw", "centred"]
    model: str | None = None
    n_layers: int | None = None
    first_position: int | None = None
    phase: int | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)


def write_direction_file(path: Path, tensors: Mapping[str, np.ndarray], facts: DirectionFacts) -> None:
    """Write the tensors of one layer with their facts."""
    from safetensors.numpy import save_file

    save_file(dict(tensors), path, {HEADER: json.dumps(asdict(facts), sort_keys=True)})


def read_direction_facts(path: Path, name: str) -> DirectionFacts | None:
    """Return the facts in a file's header, None for a file of another program. Raises BadInputError for wrong facts."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            text = (file.metadata() or {}).get(HEADER)
    except (SafetensorError, OSError, ValueError) as error:
        reraise_lack_of_memory(error)
        raise BadInputError(f"{name or 'the file'} is damaged: {get_first_line(error)}") from error
    if text is None:
        return None
    try:
        if len(text) > MAX_HEADER_CHARS:
            raise ValueError(f"more than {MAX_HEADER_CHARS:,} characters")
        content = json.loads(text)
        facts = DirectionFacts(**content)
        check_facts(facts)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInputError(f"{name or 'the file'}: its header cannot be read: {get_first_line(error)}") from error
    return facts


def check_facts(facts: DirectionFacts) -> None:
    """Raise ValueError or TypeError for a value of a wrong type, and for entries that are not known."""
    texts = {"hook_point": 128, "label": 64, "positions": 32, "model": 200}
    for name, length in texts.items():
        value = getattr(facts, name)
        if name == "model" and value is None:
            continue
        if not isinstance(value, str) or not value.isprintable() or len(value) > length:
            raise TypeError(f"{name} is {str(value)[:60]!r}")
    for name in ("layer", "n_layers", "first_position", "phase"):
        value = getattr(facts, name)
        if (name == "layer" or value is not None) and (type(value) is not int or not 0 <= value < 1 << 31):
            raise TypeError(f"{name} is {str(value)[:60]!r}")
    if facts.content not in COLUMNS or facts.residual not in ("raw", "centred"):
        raise ValueError(f"content {str(facts.content)[:20]!r} with the residual {str(facts.residual)[:20]!r}")
    for name, known_names in (("columns", COLUMNS), ("detail", DETAILS)):
        values = getattr(facts, name)
        if not isinstance(values, dict) or not values.keys() <= set(known_names[facts.content]):
            raise ValueError(f"{name} has other entries than {', '.join(known_names[facts.content])}")
    for name, value in facts.columns.items():
        expected_type = str if name == "source" else float if name == "epochs" else int
        if value is not None and (
            type(value) not in {expected_type, int if expected_type is float else expected_type} or value == ""
        ):
            raise TypeError(f"{name} is {str(value)[:60]!r}")
        if isinstance(value, str) and (len(value) > 64 or not value.isprintable()):
            raise ValueError(f"{name} is {value[:60]!r}")
        if isinstance(value, int | float) and not 0 <= value < 1 << 53:
            raise ValueError(f"{name} is {value}")
    check_detail(facts.detail)


def check_detail(detail: dict[str, Any]) -> None:
    """Raise ValueError or TypeError for a fact about a probe that its readers could not use."""
    from chessreg.games.datasets.skill import SkillReport

    for name in ("mean", "std"):
        if name in detail and not (isinstance(detail[name], float | int) and 0 < detail[name] < 1e6):
            raise TypeError(f"{name} is {str(detail[name])[:60]!r}")
    classes = detail.get("majority", [])
    if not isinstance(classes, list) or any(type(one) is not int or not 0 <= one < 128 for one in classes):
        raise TypeError("majority is not a list of classes")
    if "skill" in detail:
        str(SkillReport(**detail["skill"]))


def read_own_probe(path: Path, name: str) -> ProbeFile | None:
    """Return the probe of a file that chessreg wrote, None for another file. Raises BadInputError."""
    facts = read_direction_facts(path, name)
    if facts is None:
        return None
    file_name = name or "the file"
    if facts.content != "probe":
        raise BadInputError(f"{file_name} has a vector, not a probe", f"chessreg import vector {name or 'FILE'}")
    tensors = read_float_tensors(path, file_name)
    weight = tensors.get("weight")
    if weight is None or weight.ndim != 3 or weight.shape[1] not in (1, 64) or not weight.size:
        raise BadInputError(f"{file_name} has no tensor weight [d_model, 1 or 64 squares, classes]")
    return ProbeFile(weight, make_origin(facts, file_name))


def read_own_vector(path: Path, name: str) -> VectorFile | None:
    """Return the vector of a file that chessreg wrote, None for another file. Raises BadInputError."""
    facts = read_direction_facts(path, name)
    if facts is None:
        return None
    file_name = name or "the file"
    if facts.content != "vector":
        raise BadInputError(f"{file_name} has a probe, not a vector", f"chessreg import probe {name or 'FILE'}")
    tensors = read_float_tensors(path, file_name)
    vector, high, low = (tensors.get(side) for side in SIDES)
    sides = [one for one in (vector, high, low) if one is not None]
    if vector is None or any(one.ndim != 1 or one.shape != vector.shape for one in sides) or not vector.any():
        raise BadInputError(f"{file_name} has no tensor {SIDES[0]} [d_model], or its sides have another length")
    source = str(facts.columns.get("source", "")).partition(":")[0]
    return VectorFile(vector, high, low, source if source in SOURCES else "user", make_origin(facts, file_name))


def read_float_tensors(path: Path, name: str) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file as float32. Raises BadInputError for other types, NaN and infinity."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise BadInputError(f"{name} is damaged: {get_first_line(error)}") from error
    for key, tensor in tensors.items():
        if tensor.dtype.kind != "f" or not np.isfinite(tensor).all():
            raise BadInputError(f"{name}: {key[:60]} does not have finite floats")
    return {key: np.ascontiguousarray(tensor, np.float32) for key, tensor in tensors.items()}


def make_origin(facts: DirectionFacts, file: str) -> FileOrigin:
    """Return the facts of a header as the origin of an import."""
    shared_names = {one.name for one in fields(FileOrigin)} & {one.name for one in fields(DirectionFacts)}
    return FileOrigin(**{name: getattr(facts, name) for name in shared_names}, file=file)
