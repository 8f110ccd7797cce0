"""Lists and shows probes. `runs.fitted` reads and writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import chess
import numpy as np
from sqlalchemy import func, select

from chessreg.entities.base import Entity, Row, add_model_names, format_run_annotations
from chessreg.entities.display import (
    Column,
    Option,
    Part,
    ShowOutput,
    Thing,
    build_layer_chart,
    format_layers,
    format_share,
    list_facts,
)
from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.datasets import labels
from chessreg.registry import tables
from chessreg.runs.fitted import compute_cosine_similarity, load_probe
from chessreg.runs.inputs import Inputs

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session


class Probes(Entity):
    """Probes: list, show. `chessreg run probe` fits them, `chessreg import probe` imports existing ones."""

    table = tables.ProbeRecord
    plural = "probes"
    place = 40
    columns = (
        Column("run_id", "run"), Column("name", "name"), Column("model", "model"), Column("layer", "layer"),
        Column("label", "label"), Column("positions", "positions"), Column("train_games", "games"),
        Column("epochs", "epochs"), Column("norm", "norm"), Column("validation_accuracy", "validation", "share"),
        Column("test_accuracy", "test", "share"),
    )  # fmt: skip
    overview_columns = (
        columns[2], columns[4], Column("layers", "layers"), Column("best_layer", "best layer"), *columns[9:11],
        *columns[5:8], Column("tags", "tags"),
    )  # fmt: skip
    none_yet = "no probes yet: chessreg run probe --cache CACHE"
    measured = (
        Column("validation_accuracy", "validation accuracy", "share"),
        Column("test_accuracy", "test accuracy", "share"),
    )  # fmt: skip
    hidden = ("detail", "norms", "cosines", "checkpoint", "checkpoint_id")
    list_help = "List the probes, one line per layer, with their accuracy on held-out games."
    show_help = """Show one probe: its input, label, training data, accuracy and norms.

    A norm is that of a class's direction; for a board, the mean over its squares."""
    example = "reference-board --layer 5 --square e2"
    show_options = (
        Option("layer", "Layer of the probe. Left out: the layer with the highest validation accuracy.", int),
        Option(
            "square",
            "Show the norm of each class's direction on this square. Left out: the mean over all squares.",
            metavar="SQUARE",
        ),
    )

    def rows(self, sql: SqlSession, reference: str | None = None) -> list[Row]:
        """Return probes with their accuracy on validation and test games (None: not tested)."""
        validation, test = read_probe_accuracies(sql, "validation"), read_probe_accuracies(sql, "test")
        rows = super().rows(sql, reference)
        for row in rows:
            unit = row["run_id"], row["unit"]
            row |= {"validation_accuracy": validation.get(unit), "test_accuracy": test.get(unit)}
        return add_model_names(rows)

    def summarize_rows(self, rows: list[Row]) -> Row:
        """Return the row of the layer with the highest validation accuracy."""
        best_row = self.choose_best(rows)
        return {
            **best_row,
            "layers": format_layers(row["layer"] for row in rows),
            "best_layer": best_row["layer"] if len(rows) > 1 else None,
        }

    def choose_best(self, rows: list[Row], reference: str = "", layers: str = "") -> Row:
        return max(rows, key=lambda row: (row["validation_accuracy"] or 0.0, -row["layer"]))

    def show(self, session: Session, reference: str, **options: Any) -> ShowOutput:
        with session.database.read() as sql:
            row = self.choose_row(self.rows(sql, reference), reference, options.get("layer"))
        square, remarks = options.get("square"), []
        try:
            row["norms"], row["cosines"] = compute_norms_and_cosines(session.inputs, row, square)
        except NotFoundError as error:
            row["norms"], row["cosines"] = {}, {}
            remarks.append(f"no norms: {error.message}")
        place = f" on {square}" if square else ""
        norms = ", ".join(f"{name} {norm:.4f}" for name, norm in row["norms"].items())
        lines = [f"norm of each class{place}: {norms}"] if norms else []
        lines += [f"cosine of {pair}: {value:.4f}" for pair, value in row["cosines"].items()]
        return self.make_output(row, lines, remarks)

    def read_details(self, session: Session, id: UUID) -> Thing:
        with session.database.read() as sql:
            layers, annotations = self.rows(sql, id.hex), format_run_annotations(sql, id)
        best_row = self.choose_best(layers)
        right = f" · best layer {best_row['layer']}"
        if best_row["test_accuracy"]:
            right += f": {format_share(best_row['test_accuracy'])} right in test"
        fields = (
            Column("layer", "layer"), Column("hook_point", "hook point"), *self.columns[9:11], Column("norm", "norm"),
            Column("epochs", "epochs"), Column("train_positions", "positions fitted"),
        )  # fmt: skip
        by_layer = {"validation_accuracy": "validation", "test_accuracy": "test"}
        chart = build_layer_chart("accuracy by layer", "accuracy", layers, by_layer, format_share)
        return Thing(
            f"probe of {best_row['label']} in {best_row['model']} · {best_row['positions']}{right}",
            annotations,
            [
                Part(f"layers {len(layers)}", fields, layers, chart),
                *build_f1_parts(session, id),
                list_facts(best_row, self.measured),
            ],
        )


BAR_CELLS = 14


def build_f1_parts(session: Session, id: UUID) -> list[Part]:
    """Return the F1 of each class, from query `probe f1 by class`, for the layer with the highest validation accuracy.

    Returns [] if the run is not complete or its label has no classes.
    """
    rows: list[Row] = []
    for row in session.query("probe f1 by class", run=id.hex).rows:
        low, high = row["f1_low"], row["f1_high"]
        rows.append({
            **row, "f1": f"{row['f1']:.4f}" if row["f1"] is not None else "", "f1_value": row["f1"],
            "bar": "█" * round(BAR_CELLS * (row["f1"] or 0)),
            "interval": f"{low:.4f} to {high:.4f}" if low is not None and high is not None else "",
        })  # fmt: skip
    columns = (
        Column("name", "class"), Column("f1", "F1", number=True), Column("interval", "95 %", number=True),
        Column("bar", ""), Column("true_positives", "right"), Column("false_positives", "wrong"),
        Column("false_negatives", "missed"),
    )  # fmt: skip
    return [Part(f"F1 by class, layer {rows[0]['layer']}", columns, rows)] if rows else []


def read_probe_accuracies(sql: SqlSession, split: str = "test") -> dict[tuple[UUID, int], float]:
    """Return (run, unit) → accuracy of the probe on one split, over all its games."""
    score = tables.Score
    scores = sql.execute(
        select(score.run_id, score.unit, func.sum(score.correct), func.sum(score.n))
        .join(tables.ProbeRecord, (tables.ProbeRecord.run_id == score.run_id) & (tables.ProbeRecord.unit == score.unit))
        .where(score.split == split, score.item >= 0)
        .group_by(score.run_id, score.unit)
    )
    return {(run_id, unit): int(correct) / int(n) for run_id, unit, correct, n in scores if n}


def compute_norms_and_cosines(
    inputs: Inputs, row: Row, square: str | None
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the norms of a probe's directions by class, and the cosine between the classes if there are exactly two.

    Raises NotFoundError if the probe's bytes are not in this store, BadInputError if the probe does not read `square`.
    """
    weight = load_probe(inputs, inputs.reference("run:probe", row["run_id"].hex), row["layer"]).weight
    squares, class_names = weight.shape[1], list_class_names(row["label"], weight.shape[2])
    if square is not None:
        if squares != 64 or square not in chess.SQUARE_NAMES:
            reason = "reads no squares" if squares != 64 else f"has no square {square!r}"
            raise BadInputError(f"this probe {reason}", "only board probes have squares, a1 to h8")
        weight = weight[:, [chess.parse_square(square)]]
    norms = np.linalg.norm(weight, axis=0).mean(0)
    cosines = {}
    if weight.shape[1:] == (1, 2):
        cosines[f"{class_names[0]} and {class_names[1]}"] = compute_cosine_similarity(weight[:, 0, 0], weight[:, 0, 1])
    return dict(zip(class_names, map(float, norms), strict=True)), cosines


def list_class_names(label: str, classes: int) -> list[str]:
    """Return the names of a label's classes. Classes without a name are numbered, except skill's `low` and `high`."""
    label = label.removesuffix(labels.SHUFFLED_SUFFIX)
    label_classes = labels.get_label(label).classes if label in labels.LABELS else ()
    if len(label_classes) == classes:
        return list(label_classes)
    return ["low", "high"] if label == "skill" and classes == 2 else [str(number) for number in range(classes)]
