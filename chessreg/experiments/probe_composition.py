"""`probe-composition`: compares the direction of a colored piece with the sum of its color's and its type's
directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from chessreg.errors import BadInputError
from chessreg.games.datasets.labels import get_label
from chessreg.models.hook_points import to_hook_pattern
from chessreg.registry import tables
from chessreg.runs.fitted import ClassDirection, FittedProbe, load_probe, make_class_directions, read_probe_rows
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, RunEstimate, SparseRow
from chessreg.runs.spec import ExecutionOptions, Layers, Ref, Spec

if TYPE_CHECKING:
    from chessreg.games.boards.boardframe import BoardFrame
    from chessreg.runs.task import Task

PIECE_LETTERS = tuple("pnbrqkPNBRQK")
EMPTY = "."
SECONDS_PER_LAYER = 0.1


class CompositionSpec(Spec):
    joint_probe: Annotated[str, Ref("run:probe")] = Field(description="probes of label piece (Davis's joint)")
    color_probe: Annotated[str | None, Ref("run:probe")] = Field(
        None, description="probes of label color. Left out: the joint probe's mean over types"
    )
    type_probe: Annotated[str | None, Ref("run:probe")] = Field(
        None, description="probes of label type. Left out: the joint probe's mean over colors"
    )
    layers: Layers = Field((), description="layers, 0-based. Left out: all layers that every probe has")
    direction: ClassDirection = Field(
        "raw",
        description="direction of a class: raw, its weights (Davis); class-centred, minus their mean over "
        "classes; empty-minus-piece, minus the empty square's weights",
    )


class CompositionRow(SparseRow):
    """One class on one square. Cosines are with the joint direction of that class. The empty class has only the cosine.

    `value` of the row is the cosine of color plus type.
    """

    square: int
    piece: str  # a letter of PNBRQKpnbrqk, or . for the empty square
    layer: int
    hook_point: str
    positions: str
    parts: str  # probes, or means of the joint probe's weights
    named: str | None = None  # the joint class, one of 13, whose direction is closest to color plus type
    wrong_color: float | None = None  # the other color plus type
    wrong_type: float | None = None  # color plus another type, mean over the five
    color_alone: float | None = None
    type_alone: float | None = None


class ProbeComposition(Kind):
    """Composition: the cosine of color plus type with the joint direction of each piece and square, and controls.

    Davis 2026, introduction. Retrieval: the class, of all 13, whose joint direction is closest to the sum. Without
    probes of color and type, the parts are means of the joint probe's own directions, its additive share. One unit is
    one layer.
    """

    name = "probe-composition"
    example = "--joint-probe reference-board"
    tables = ("prediction",)
    spec = CompositionSpec
    columns = {"prediction": CompositionRow}  # noqa: RUF012
    queries = ("probe composition",)

    def units(self, spec: CompositionSpec, inputs: Inputs) -> int:
        return len(resolve_composed_layers(spec, inputs))

    def estimate(self, spec: CompositionSpec, inputs: Inputs) -> RunEstimate:
        layers = self.units(spec, inputs)
        rows = layers * 64 * (len(PIECE_LETTERS) + (spec.color_probe is not None))
        return RunEstimate({"prediction": rows}, cpu_seconds=layers * SECONDS_PER_LAYER)

    def check(self, spec: CompositionSpec, inputs: Inputs) -> None:
        resolve_composed_layers(spec, inputs)

    def run(self, task: Task[CompositionSpec, ExecutionOptions]) -> None:
        spec = task.spec
        layers = resolve_composed_layers(spec, task.inputs)
        for unit in task.units:
            joint = load_probe(task.inputs, spec.joint_probe, layers[unit])
            references = filter(None, (spec.color_probe, spec.type_probe))
            parts = [load_probe(task.inputs, reference, layers[unit]) for reference in references]
            sites = read_probe_rows(task.inputs, spec.joint_probe)[layers[unit]].positions
            for row, cosine in build_composition_rows(joint, parts, spec.direction, sites):
                item = row.square * 13 + (*PIECE_LETTERS, EMPTY).index(row.piece)
                task.emit("prediction", unit, row, item=item, name="cosine", text=row.named, value=cosine)
            task.done(unit)

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """Return one board for each piece: heat is the cosine, and squares with another closest class are marked."""
        rows = inputs.read_unit_rows(tables.Prediction, row, tables.Prediction.item)
        return build_composition_frames([(row.detail or {}, row.value or 0.0) for row in rows])


def build_composition_frames(rows: list[tuple[dict[str, Any], float]]) -> list[BoardFrame]:
    """Return the boards of one layer, from the extra columns and cosines of its rows."""
    from chessreg.games.boards.boardframe import BoardFrame

    views = []
    for piece in (*PIECE_LETTERS, EMPTY):
        rows_by_square = {int(extra["square"]): (extra, cosine) for extra, cosine in rows if extra["piece"] == piece}
        if not rows_by_square:
            continue
        extra = next(iter(rows_by_square.values()))[0]
        mean = float(np.mean([cosine for _, cosine in rows_by_square.values()]))
        views.append(
            BoardFrame(
                title=f"{piece if piece != EMPTY else 'empty'} at {extra['positions']}, layer {extra['layer']}: "
                f"cosine of color plus type {mean:.3f}",
                squares="".join(piece if square in rows_by_square else EMPTY for square in range(64)),
                marks={square: "wrong" for square, (d, _) in rows_by_square.items() if d.get("named", piece) != piece},
                heat={square: min(max(cosine, 0.0), 1.0) for square, (_, cosine) in rows_by_square.items()},
                heat_label="cosine with the joint direction",
            )
        )
    return views


def resolve_composed_layers(spec: CompositionSpec, inputs: Inputs) -> tuple[int, ...]:
    """Return the layers to compare. Raises BadInputError for probes of another label, model, hook point or phase."""
    if (spec.color_probe is None) != (spec.type_probe is None):
        raise BadInputError(
            "--color-probe and --type-probe must be given together",
            "give both, or neither for the means of the joint probe",
        )
    rows_by_flag = {
        "--joint-probe": (spec.joint_probe, "piece"),
        "--color-probe": (spec.color_probe, "color"),
        "--type-probe": (spec.type_probe, "type"),
    }
    rows = {flag: read_probe_rows(inputs, probe) for flag, (probe, _) in rows_by_flag.items() if probe is not None}
    joint = next(iter(rows["--joint-probe"].values()))
    for flag, by_layer in rows.items():
        one, wanted_point = next(iter(by_layer.values())), rows_by_flag[flag][1]
        if one.label != wanted_point or one.classes != len(get_label(wanted_point).classes):
            raise BadInputError(
                f"{flag} reads {one.label} ({one.classes} classes), not {wanted_point}", "chessreg probe list"
            )
        for title, other, first in (
            ("model", one.checkpoint_id, joint.checkpoint_id),
            ("model", one.detail.get("model"), joint.detail.get("model")),
            ("tokens", one.positions, joint.positions),
            ("hook point", to_hook_pattern(one.hook_point), to_hook_pattern(joint.hook_point)),
        ):
            if other != first:
                values = "" if title == "model" else f" ({other}, not {first})"
                raise BadInputError(f"{flag} differs from --joint-probe in its {title}{values}", "chessreg probe list")
    shared_layers = sorted(set.intersection(*(set(by_layer) for by_layer in rows.values())))
    if missing_layers := sorted(set(spec.layers) - set(shared_layers)):
        raise BadInputError(
            f"layer {missing_layers[0]} is not in each of the probes",
            f"their common layers are {', '.join(map(str, shared_layers)) or 'none'}",
        )
    if not shared_layers:
        raise BadInputError("the probes have no layer in common", "chessreg probe list")
    return spec.layers or tuple(shared_layers)


def build_composition_rows(
    joint: FittedProbe, parts: list[FittedProbe], direction: ClassDirection, positions: str
) -> list[tuple[CompositionRow, float]]:
    """Return the rows of one layer, with the cosine of each. parts: the probes of color and type, or empty.

    Raises BadInputError for probes of different widths.
    """
    composition = compose_directions(joint, parts, direction)
    common_values: dict[str, Any] = {
        "layer": joint.layer, "hook_point": joint.hook_point, "positions": positions,
        "parts": "probes" if parts else "means",
    }  # fmt: skip
    rows = []
    for square in range(64):
        for number, piece in enumerate(PIECE_LETTERS):
            values = {name: float(cosines[square, number]) for name, cosines in composition.controls.items()}
            nearest_class = get_label("piece").classes[composition.nearest[square, number]]
            row = CompositionRow(square=square, piece=piece, named=nearest_class, **common_values, **values)
            rows.append((row, float(composition.cosine[square, number])))
        if composition.empty is not None:
            nearest_class = get_label("piece").classes[composition.nearest_to_empty[square]]
            rows.append(
                (
                    CompositionRow(square=square, piece=EMPTY, named=nearest_class, **common_values),
                    float(composition.empty[square]),
                )
            )
    return rows


@dataclass(frozen=True)
class Composition:
    """The directions of color plus type, compared with the directions of a joint probe at one layer.

    `cosine` float64 [64, 12], in the order of PIECE_LETTERS, is the cosine of each sum with the joint direction of its
    piece; `controls` has the cosines of other sums. `nearest` int64 [64, 12] is the class of label `piece` that is
    closest to each sum. `empty` and `nearest_to_empty` are the same for the empty square, [64]; without probes of color
    and type they are None and empty.
    """

    cosine: np.ndarray
    nearest: np.ndarray
    controls: dict[str, np.ndarray]
    empty: np.ndarray | None
    nearest_to_empty: np.ndarray


def compose_directions(joint: FittedProbe, parts: list[FittedProbe], direction: ClassDirection = "raw") -> Composition:
    """Return cos(W_color + W_type, W_joint) of every piece on every square, with its controls (Davis 2026,
    section 1)."""
    if widths := {len(part.weight) for part in parts} - {len(joint.weight)}:
        raise BadInputError(f"the joint probe reads d_model {len(joint.weight)}, but another reads {widths.pop()}")
    classes = get_label("piece").classes
    joint_directions = stack_class_directions(joint, direction, classes.index(EMPTY))  # [64, class, d_model]
    piece_directions = joint_directions[:, [classes.index(piece) for piece in PIECE_LETTERS]].reshape(
        64, 2, 6, -1
    )  # color, type
    if parts:
        by_label = {part.label: part for part in parts}
        color_all = stack_class_directions(by_label["color"], direction, get_label("color").classes.index("empty"))
        type_all = stack_class_directions(by_label["type"], direction, get_label("type").classes.index(EMPTY))
        color, kinds = color_all[:, [0, 2]], type_all[:, :6]
        empty_cosines = compute_cosines((color_all[:, 1] + type_all[:, 6])[:, None], joint_directions)  # [64, class]
        empty, nearest_to_empty = empty_cosines[:, classes.index(EMPTY)], empty_cosines.argmax(-1)
    else:
        color, kinds, empty, nearest_to_empty = (
            piece_directions.mean(2),
            piece_directions.mean(1),
            None,
            np.empty(0, np.int64),
        )
    color, kinds = color[:, :, None], kinds[:, None]  # [64, 2, 1, d], [64, 1, 6, d]
    total = color + kinds
    nearest = compute_cosines(total.reshape(64, 12, 1, -1), joint_directions[:, None]).argmax(-1)
    other_cosines = [compute_cosines(color + np.roll(kinds, step, 2), piece_directions) for step in range(1, 6)]
    controls = {
        "wrong_color": compute_cosines(color[:, ::-1] + kinds, piece_directions),
        "wrong_type": np.mean(other_cosines, 0),
        "color_alone": compute_cosines(color, piece_directions),
        "type_alone": compute_cosines(kinds, piece_directions),
    }
    by_name = {name: values.reshape(64, 12) for name, values in controls.items()}
    return Composition(
        compute_cosines(total, piece_directions).reshape(64, 12), nearest, by_name, empty, nearest_to_empty
    )


def stack_class_directions(probe: FittedProbe, direction: ClassDirection, empty: int) -> np.ndarray:
    """Return the directions of every class, float64 [squares, classes, d_model]."""
    return make_class_directions(probe.weight.astype(np.float64), direction, empty).transpose(1, 2, 0)


def compute_cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return cosines along the last axis, -1 to 1; 0 for a zero direction."""
    size = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    product = (one * other).sum(-1)
    return np.divide(product, size, out=np.zeros_like(product), where=size > 0)
