"""`imported-aggregates`: published means whose games are not available."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from chessreg.errors import BadInputError
from chessreg.experiments.imported import players
from chessreg.experiments.imported.file import (
    FileSpec,
    ImportedFile,
    ImportOptions,
    locate_import,
    record_imported_file,
)
from chessreg.games.foreign import FORMATS, grid
from chessreg.games.foreign.game import read_source_text
from chessreg.runs.cost import parse_seconds
from chessreg.runs.kind import RunEstimate
from chessreg.steering.interventions import add_row_id

if TYPE_CHECKING:
    from uuid import UUID

    from chessreg.games.foreign.grid import Aggregate
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

OPPONENT = "several engines"
"""The stored opponent of a mean over levels of Stockfish; the file does not list the levels."""


class ImportedAggregatesSpec(FileSpec):
    bundled_file = "sample-aggregates.csv"
    format: str = Field("grid-search", description="grid-search")
    rename: tuple[str, ...] = Field((), description="OLD=NEW: replace a model's name. Left out: names as in the file")

    @field_validator("format")
    @classmethod
    def _check_format(cls, format: str) -> str:
        if FORMATS[format].holds != "aggregates":
            raise BadInputError(f"a {format} file holds {FORMATS[format].holds}", "chessreg import results FILE")
        return format

    @field_validator("rename")
    @classmethod
    def _check_renames(cls, rename: tuple[str, ...]) -> tuple[str, ...]:
        players.parse_renames(rename)
        return rename


class ImportedAggregates(ImportedFile):
    """Scores and completion rates by intervention, published without their games.

    The grid searches of Karvonen's skill interventions. One unit is one row: a mean over several opponents, without
    draws. Model, intervention and opening become entities of the registry. `chessreg query "imported interventions"`
    lists the rows. A mean over opponents gives no Elo rating.
    """

    name = "imported-aggregates"
    tables = ("metric_point",)
    spec = ImportedAggregatesSpec
    queries = ("imported interventions",)
    example = "--file sample"

    def units(self, spec: ImportedAggregatesSpec, inputs: Inputs) -> int:
        return len(read_aggregates(spec, inputs)[0])

    def estimate(self, spec: ImportedAggregatesSpec, inputs: Inputs) -> RunEstimate:
        rows, path = read_aggregates(spec, inputs)
        size = path.stat().st_size
        return RunEstimate(
            {"metric_point": sum(len(row.values) for row in rows)}, size, cpu_seconds=parse_seconds(size)
        )

    def run(self, task: Task[ImportedAggregatesSpec, ImportOptions]) -> None:
        rows, _ = read_aggregates(task.spec, task.inputs)
        rename = players.parse_renames(task.spec.rename)
        record_imported_file(task, task.spec.file, "results")
        for name in dict.fromkeys(row.model for row in rows):
            player_name = players.rename_player(rename, name)
            task.record("checkpoint", **players.build_external_row(player_name, players.parse_layer_count(name)))
        for unit in task.units:
            row = rows[unit]
            player_name = players.rename_player(rename, row.model)
            checkpoint_id = players.derive_external_id(player_name)
            intervention = build_aggregate_intervention(row, checkpoint_id) if row.source else None
            if intervention is not None:
                task.record("intervention", **intervention)
            task.record(
                "match",
                of_unit=unit,
                run_id=task.run_id,
                number=unit,
                player=player_name,
                checkpoint_id=checkpoint_id,
                intervention_id=intervention["id"] if intervention else None,
                opponent=OPPONENT,
                color="white",
                opening=row.opening,
                opening_seed=0,
                policy="retry:5",
                move_limit=90,
                planned=int(row.values.get("n", 0)),
                detail={**row.detail, "metric": row.metric},
            )
            for name, value in row.values.items():
                task.emit("metric_point", unit, name=name, step=0, value=value)
            task.done(unit)

    def report(self, spec: ImportedAggregatesSpec, inputs: Inputs) -> dict[str, Any]:
        return summarize_aggregates(read_aggregates(spec, inputs)[0])


def read_aggregates(spec: ImportedAggregatesSpec, inputs: Inputs) -> tuple[list[Aggregate], Path]:
    """Return the file's rows and its path in the store. Raises BadInputError for an unreadable row."""
    path = locate_import(spec, inputs)
    text = read_source_text(path)
    if not grid.is_grid_search(text):
        raise BadInputError("the file lacks the columns of the grid-search CSV", f"{', '.join(sorted(grid.COLUMNS))}")
    return grid.read_grid_search(text), path


def build_aggregate_intervention(row: Aggregate, checkpoint_id: UUID) -> dict[str, Any]:
    """Return the intervention row for a row's file name. Its vector is not in the registry, so `input_references` is
    empty."""
    columns = {
        "checkpoint_id": checkpoint_id,
        "source": row.source,
        "input_references": [],
        "layers": list(row.layers),
        "scale": row.coefficient,
        "scale_rule": "constant",
        "token_mask": "all",
        "detail": {key: row.detail[key] for key in ("name", "truncated_name", "levels", "pos_start")},
    }
    return add_row_id(columns)


def summarize_aggregates(rows: list[Aggregate]) -> dict[str, Any]:
    """Return the number of rows, models and metrics of an import, and the rows with incomplete data (`oddities`)."""
    odd = {
        "layers cut off": ([r.row for r in rows if r.detail["truncated_name"]], "the author's file name was cut"),
        "layers not told": ([r.row for r in rows if r.source and not r.layers], "the file name has no layer"),
        "number of games not told": ([r.row for r in rows if "n" not in r.values], "n is empty"),
    }
    return {
        "rows": len(rows),
        "aggregates": len(rows),
        "rejected": [],
        "models": dict(sorted(Counter(row.model for row in rows).items())),
        "metrics": dict(sorted(Counter(row.metric for row in rows).items())),
        "oddities": [
            {"code": code, "count": len(places), "rows": places, "texts": [text]}
            for code, (places, text) in odd.items()
            if places
        ],
    }
