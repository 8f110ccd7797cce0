"""Lists and shows directions in the residual stream, and compares them by norm and cosine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import numpy as np
from sqlalchemy import select

from chessreg.entities.base import Entity, Row, add_model_names, format_run_annotations
from chessreg.entities.display import (
    Column,
    Option,
    Part,
    ShowOutput,
    Thing,
    build_layer_chart,
    format_layers,
    list_facts,
)
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.named import format_count
from chessreg.registry import names, tables
from chessreg.runs.fitted import compute_cosine_similarity, load_vector_row, read_vector_rows
from chessreg.runs.inputs import Inputs
from store.errors import NotInStoreError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.models.language_model import LanguageModel
    from chessreg.session import Session

MAX_COMPARED_VECTORS = 200  # the newest


MAX_MEASURED_PARAMETERS = 200_000_000  # a larger model takes long to load


STEERING_SHARES = (0.1, 0.3)
"""The range of lengths of an added vector that leaves most moves of a model legal, as shares of the residual's length.

docs/own-model.md has the measurements.
"""


class RelativeNorm(NamedTuple):
    """The norm of a vector, and the mean norm of its model's residual at its layer in sample games."""

    layer: int
    norm: float
    residual: float

    @property
    def scales_to_try(self) -> tuple[float, float]:
        """The lowest and highest `--intervention.scale` to start with, rounded to two digits.

        They make the vector `STEERING_SHARES` times as long as the residual.
        """
        low, high = (float(f"{share * self.residual / self.norm:.2g}") for share in STEERING_SHARES)
        return low, high

    def compute_percent(self, scale: float) -> float:
        """Return the length of the scaled vector in percent of the residual's, rounded to two digits."""
        return float(f"{100 * abs(scale) * self.norm / self.residual:.2g}")


def measure_relative_norms(
    inputs: Inputs, reference: str, load_model: Callable[[str], LanguageModel]
) -> list[RelativeNorm]:
    """Return the norms of a vector run's vectors next to those of the model's residuals, as a guide to the scale.

    `load_model` returns the model of a checkpoint's id. Returns [] if the model is unknown, too large to load for this,
    or does not read games. Raises NotFoundError if the model is not in this store.
    """
    from chessreg.models.importers.game_check import measure_residual_norms

    vectors = inputs.rows(tables.VectorRecord, inputs.run(inputs.reference("run:vector", reference)))
    checkpoint = vectors[0].checkpoint_id
    if checkpoint is None:
        return []
    with inputs.database.read() as sql:
        if (sql.get_one(tables.Checkpoint, checkpoint).parameters or 0) > MAX_MEASURED_PARAMETERS:
            return []
    residuals = measure_residual_norms(load_model(checkpoint.hex), {vector.hook_point for vector in vectors})
    return [
        RelativeNorm(vector.layer, vector.norm, residuals[vector.hook_point])
        for vector in vectors
        if vector.norm and residuals.get(vector.hook_point)
    ]


def list_cosines(inputs: Inputs, reference: str, layer: int) -> list[dict[str, Any]]:
    """Compare a vector with the others of its layer and model, nearest first.

    Returns run_id, name, source, seed, norm and cosine of each. If only one of two vectors is of centred residuals,
    both are compared without their means. Reads at most the newest MAX_COMPARED_VECTORS vectors and leaves out those
    whose file is not in this store. Returns [] if the vector's own file is not in this store. Raises BadInputError if
    the run has no such layer.
    """
    rows = read_vector_rows(inputs, reference)
    if layer not in rows:
        raise BadInputError(f"that vector run has no layer {layer}", f"it has {', '.join(map(str, sorted(rows)))}")
    vector_row = rows[layer]
    try:
        vector = load_vector_row(inputs, reference, vector_row).vector
    except (NotFoundError, NotInStoreError):
        return []
    other_vectors = list(read_other_vectors(inputs, vector_row))
    with inputs.database.read() as session:
        run_names = names.read_names_of(session, "run", {row.run_id for row, _ in other_vectors})
    cosine_rows = []
    for row, other in other_vectors:
        centre = row.detail.get("residual") != vector_row.detail.get("residual")
        cosine_rows.append({
            "run_id": row.run_id, "name": run_names.get(row.run_id),
            "source": row.source, "seed": row.detail.get("seed"),
            "norm": row.norm, "cosine": compute_cosine_similarity(vector, other, centre),
        })  # fmt: skip
    return sorted(cosine_rows, key=lambda entry: -abs(entry["cosine"]))  # stable, so newer ones come first


def read_other_vectors(
    inputs: Inputs, own_vector: tables.VectorRecord
) -> Iterator[tuple[tables.VectorRecord, np.ndarray]]:
    """Yield the other vectors of the same model and layer with their values [d_model], newest first."""
    vector = tables.VectorRecord
    with inputs.database.read() as session:
        rows = session.execute(
            select(vector, tables.Run.spec_hash)
            .join(tables.Run, tables.Run.id == vector.run_id)
            .where(vector.checkpoint_id == own_vector.checkpoint_id, vector.layer == own_vector.layer)
            .where((vector.run_id != own_vector.run_id) | (vector.unit != own_vector.unit))
            .order_by(tables.Run.created_at.desc(), vector.run_id, vector.unit)
            .limit(MAX_COMPARED_VECTORS)
        ).all()
        session.expunge_all()
    for row, spec_hash in rows:
        if own_vector.checkpoint_id is None and row.detail.get("model") != own_vector.detail.get("model"):
            continue  # imported vectors of unknown models are matched by the model's recorded name
        try:
            values = load_vector_row(inputs, f"run:{spec_hash}", row).vector
        except (NotFoundError, NotInStoreError):
            continue  # its bytes are not in this store
        yield row, values


def compare_vector_runs(inputs: Inputs, one: str, other: str) -> dict[int, float]:
    """Return layer → cosine (-1 to 1) between two vector runs, for every layer that both have.

    If only one of two vectors is of centred residuals, both are compared without their means. Raises NotFoundError if
    the bytes of a run are not in this store.
    """
    left_rows, right = read_vector_rows(inputs, one), read_vector_rows(inputs, other)
    return {
        layer: compute_cosine_similarity(
            load_vector_row(inputs, one, left_rows[layer]).vector,
            load_vector_row(inputs, other, right[layer]).vector,
            left_rows[layer].detail.get("residual") != right[layer].detail.get("residual"),
        )
        for layer in sorted(left_rows.keys() & right.keys())
    }


class Vectors(Entity):
    """Directions: list, show. `chessreg run vector` fits them, `chessreg import vector` imports existing ones."""

    table = tables.VectorRecord
    plural = "vectors"
    place = 50
    columns = (
        Column("run_id", "run"), Column("name", "name"), Column("model", "model"), Column("layer", "layer"),
        Column("source", "source"), Column("positions", "positions"), Column("games", "games"), Column("norm", "norm"),
        Column("norm_high", "norm high"), Column("norm_low", "norm low"),
    )  # fmt: skip
    overview_columns = (
        columns[2], columns[4], Column("layers", "layers"), Column("norms", "norm", number=True), *columns[5:7],
        Column("tags", "tags"),
    )  # fmt: skip
    none_yet = "no vectors yet: chessreg run vector --source contrastive --cache CACHE"
    hidden = ("detail", "cosines", "checkpoint", "checkpoint_id")
    list_help = "List the directions, one line per layer."
    show_help = "Show one direction: its inputs, its norms, and its cosines with others of its layer and model."
    example = "skill --layer 5"
    show_options = (
        Option("layer", "Layer of the direction. Left out: the run's only layer.", int),
        Option(
            "against",
            "Another vector run: print the cosine with it in every common layer. Left out: no comparison.",
            metavar="RUN",
        ),
    )

    def rows(self, sql: SqlSession, reference: str | None = None) -> list[Row]:
        """Return the rows of all vectors, or of the run `reference`, with their model.

        A vector of a contrast also has the number of its games, and the norms of the mean activations of the high and
        the low class (`norm_high`, `norm_low`). These are None for other vectors.
        """
        rows = add_model_names(super().rows(sql, reference))
        for row in rows:
            detail = row["detail"]
            sides = [detail.get(f"games_{side}") for side in ("high", "low")]
            row["games"] = None if None in sides else sum(sides)
            row |= {name: detail.get(name) for name in ("norm_high", "norm_low")}
        return rows

    def summarize_rows(self, rows: list[Row]) -> Row:
        """Return the row of the first layer, with the smallest and largest norm over all layers."""
        norms = [row["norm"] for row in rows]
        least, highest = f"{min(norms):.4g}", f"{max(norms):.4g}"
        return {
            **rows[0],
            "layers": format_layers(row["layer"] for row in rows),
            "norms": least if min(norms) == max(norms) else f"{least} to {highest}",
        }

    def show(self, session: Session, reference: str, **options: Any) -> ShowOutput:
        with session.database.read() as sql:
            rows = self.rows(sql, reference)
        inputs = session.inputs
        vector_reference = inputs.reference("run:vector", rows[0]["run_id"].hex)
        if (against := options.get("against")) is not None:
            comparison = compare_vector_runs(inputs, vector_reference, inputs.reference("run:vector", against))
            if not comparison:
                raise BadInputError(f"{reference} and {against} have no layer in common", "chessreg vector list")
            return ShowOutput([{"layer": number, "cosine": value} for number, value in comparison.items()])
        row, remarks = self.choose_row(rows, reference, options.get("layer")), []
        try:
            row["cosines"] = list_cosines(inputs, vector_reference, row["layer"])
        except NotFoundError as error:
            row["cosines"] = []
            remarks.append(f"no cosines: {error.message}")
        near_vectors = [
            f"cosine {other['cosine']:+z.4f}  {other['name'] or other['run_id'].hex[-6:]}, {other['source']}"
            for other in row["cosines"][:10]
        ]
        return self.make_output(row, near_vectors, remarks)

    def read_details(self, session: Session, id: UUID) -> Thing:
        with session.database.read() as sql:
            layers, annotations = self.rows(sql, id.hex), format_run_annotations(sql, id)
        first_layer, near_vectors = layers[0], list_near_vectors(session.inputs, id, [row["layer"] for row in layers])
        fields = (Column("layer", "layer"), Column("hook_point", "hook point"), *self.columns[7:10], self.columns[6])
        sides = {"norm": "vector", "norm_high": "high side", "norm_low": "low side"}
        chart = build_layer_chart("norm by layer", "norm", layers, sides, "{:.4g}".format)
        other_vectors = (
            Column("layer", "layer"), Column("cosine", "cosine", number=True), Column("name", "of"),
            Column("source", "source"), Column("norm", "norm"),
        )  # fmt: skip
        return Thing(
            f"{first_layer['source']} vectors of {first_layer['model']} · {first_layer['positions']} · "
            f"{format_count(len(layers), 'layer')}",
            annotations,
            [
                Part(f"layers {len(layers)}", fields, layers, chart),
                Part(f"cosines {len(near_vectors)}", other_vectors, near_vectors),
                list_facts(first_layer),
            ],
        )


def list_near_vectors(inputs: Inputs, run_id: UUID, layers: Sequence[int]) -> list[Row]:
    """Return cosines with other vectors of the same model and layer, nearest first within each layer."""
    rows: list[Row] = []
    for layer in layers:
        try:
            cosines = list_cosines(inputs, inputs.reference("run:vector", run_id.hex), layer)
        except ChessregError:  # its file is not in this store
            continue
        rows += [{"layer": layer, **row, "name": row["name"] or row["run_id"].hex[-6:],
                   "cosine": f"{row['cosine']:+z.4f}"} for row in cosines]  # fmt: skip
    return rows
