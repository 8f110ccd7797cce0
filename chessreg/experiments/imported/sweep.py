"""`imported-sweep`: published wins, draws and losses by level whose games are not available."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.imported import players
from chessreg.experiments.imported.file import (
    FileSpec,
    ImportedFile,
    ImportOptions,
    locate_import,
    record_imported_file,
)
from chessreg.games.boards.openings import parse_opening
from chessreg.games.engines.assist import Assist
from chessreg.games.engines.opponents import parse_limit
from chessreg.games.foreign import sweep
from chessreg.games.foreign.game import UNKNOWN, make_engine_player, read_source_text
from chessreg.registry.names import read_name
from chessreg.runs.cost import parse_seconds
from chessreg.runs.kind import RunEstimate
from chessreg.runs.spec import Ref

if TYPE_CHECKING:
    from uuid import UUID

    from chessreg.games.foreign.sweep import LevelCount
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

METRICS = ("wins", "draws", "losses")


class ImportedSweepSpec(FileSpec):
    bundled_file = "sample-sweep.csv"
    format: Literal["sweep"] = Field("sweep", description="sweep")
    players: tuple[str, ...] = Field((), description="model that played, by name. Left out: --checkpoint")
    checkpoint: Annotated[str | None, Ref("checkpoint")] = Field(
        None, description="checkpoint of this registry that played. Left out: --players"
    )
    color: Literal["both", "white", "black"] = Field(
        "both", description="the model's color; the file does not state it"
    )
    assist: Assist | Literal["unknown"] = Field(
        "unknown", description="when Stockfish played the model's move: none, author or on-repetition, as for play"
    )
    engine_version: str = Field(UNKNOWN, description="Stockfish's version; the file does not state it")
    limit: str = Field(
        UNKNOWN, description="limit of each of Stockfish's moves, such as time=0.1; the file does not state it"
    )
    opening: str = Field("standard", description="standard or random:PLIES; the file does not state it")
    policy: str = Field("retry:5", description="how the model's moves were chosen (Junkin's code: retry:5)")

    @field_validator("limit")
    @classmethod
    def _limit(cls, limit: str) -> str:
        return limit if limit == UNKNOWN else parse_limit(limit).text

    @field_validator("opening")
    @classmethod
    def _opening(cls, opening: str) -> str:
        if opening.partition(":")[0] not in ("standard", "random"):
            raise BadInputError(f"{opening!r}: imported results have standard or random openings", "--opening random:6")
        return parse_opening(opening).text

    @model_validator(mode="after")
    def _check_one_model(self) -> ImportedSweepSpec:
        if len(self.players) + (self.checkpoint is not None) != 1:
            raise BadInputError(
                "a sweep does not name the player of its results", "give --players NAME, or --checkpoint"
            )
        return self


class ImportedSweep(ImportedFile):
    """Wins, draws and losses by level of Stockfish, published without their games.

    Junkin 2025, Appendix I. One unit is one line of the file. The results appear in `wins by level` and in ratings
    next to games of this registry, marked as imported. Each game counts separately, because the openings are not
    published.
    """

    name = "imported-sweep"
    tables = ("metric_point",)
    spec = ImportedSweepSpec
    queries = ("wins by level",)
    example = "--file sample --players another"

    def units(self, spec: ImportedSweepSpec, inputs: Inputs) -> int:
        return len(read_counts(spec, inputs)[0])

    def estimate(self, spec: ImportedSweepSpec, inputs: Inputs) -> RunEstimate:
        counts, path = read_counts(spec, inputs)
        size = path.stat().st_size
        return RunEstimate({"metric_point": 3 * len(counts)}, size, cpu_seconds=parse_seconds(size))

    def run(self, task: Task[ImportedSweepSpec, ImportOptions]) -> None:
        counts, _ = read_counts(task.spec, task.inputs)
        record_imported_file(task, task.spec.file, "results")
        model_name, checkpoint_id = record_sweep_model(task)
        for unit in task.units:
            count, spec = counts[unit], task.spec
            opponent = make_engine_player(
                f"Stockfish {count.level}", count.level, None if spec.limit == UNKNOWN else spec.limit
            )
            engine = players.build_foreign_engine_row(opponent, spec.engine_version)
            task.record("engine", **engine)
            task.record(
                "match",
                of_unit=unit,
                run_id=task.run_id,
                number=unit,
                player=model_name[:255],
                checkpoint_id=checkpoint_id,
                intervention_id=None,
                engine_id=engine["id"],
                opponent=opponent.text,
                level=opponent.level,
                limit=opponent.limit,
                color="black" if spec.color == "black" else "white",
                opening=spec.opening,
                opening_seed=0,
                policy=spec.policy,
                move_limit=None,
                planned=count.games,
                detail={"format": spec.format, "colors": spec.color, "assist": spec.assist, "line": count.line},
            )
            for name in METRICS:
                task.emit("metric_point", unit, name=name, step=0, value=float(getattr(count, name)))
            task.done(unit)

    def report(self, spec: ImportedSweepSpec, inputs: Inputs) -> dict[str, Any]:
        return summarize_sweep(read_counts(spec, inputs)[0])


def read_counts(spec: ImportedSweepSpec, inputs: Inputs) -> tuple[list[LevelCount], Path]:
    """Return the file's lines and its path in the store. Raises BadInputError for an unreadable line."""
    path = locate_import(spec, inputs)
    return sweep.read_sweep(read_source_text(path)), path


def record_sweep_model(task: Task[ImportedSweepSpec, ImportOptions]) -> tuple[str, UUID]:
    """Return name and checkpoint id of the model. An external model is recorded first."""
    spec = task.spec
    if spec.checkpoint is not None:
        row, _ = task.inputs.checkpoint(spec.checkpoint)
        with task.inputs.database.read() as session:
            return read_name(session, "checkpoint", row.id) or f"checkpoint {row.id.hex[-6:]}", row.id
    external = players.build_external_row(spec.players[0], players.parse_layer_count(spec.players[0]))
    task.record("checkpoint", **external)
    return spec.players[0], external["id"]


def summarize_sweep(counts: list[LevelCount]) -> dict[str, Any]:
    """Return the number of games and results of an import, and its repeated or shorter levels (`oddities`)."""
    levels = [count.level for count in counts]
    repeated_counts = [count for place, count in enumerate(counts) if count.level in levels[:place]]
    oddities = [("level told twice", repeated_counts, "both lines count")] if repeated_counts else []
    if len({count.games for count in counts}) > 1:
        most = max(count.games for count in counts)
        short_counts = [count for count in counts if count.games < most]
        oddities.append(("fewer games", short_counts, f"{short_counts[0].games} games, elsewhere up to {most}"))
    return {
        "rows": len(counts),
        "games": sum(count.games for count in counts),
        "results": {name: sum(getattr(count, name) for count in counts) for name in METRICS},
        "rejected": [],
        "oddities": [
            {"code": code, "count": len(odd), "rows": [count.line for count in odd], "texts": [text]}
            for code, odd, text in oddities
        ],
    }
