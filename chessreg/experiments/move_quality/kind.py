"""`move-quality`: what the moves of a model cost it in centipawns, at fixed engine nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.settings.interventions import InterventionSettings, vector_rows
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import How, Ref, Spec

if TYPE_CHECKING:
    from chessreg.games.boardframe import BoardFrame
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

MOVE, GAME = "centipawn_loss", "game"  # the names of the two sorts of rows
TURNS_PER_GAME = 40  # for estimates


class MoveQualitySpec(Spec):
    model_config = ConfigDict(validate_default=True)

    play: Annotated[str | None, Ref("run:play")] = Field(None, description="a play run: its model's moves are judged")
    checkpoint: Annotated[str | None, Ref("checkpoint")] = Field(
        None, description="or a model, whose first tries on the positions of a dataset are judged"
    )
    dataset: Annotated[str | None, Ref("dataset")] = Field(None, description="the games of these positions")
    games: int = Field(0, ge=0, description="at most this many games, the first ones; 0: all")
    black: bool = Field(False, description="of a dataset: Black's turns instead of White's")
    every: int = Field(1, ge=1, description="of a dataset: every Nth of these turns")
    limit: str = Field("nodes=10000", description="the judge's limit for one search: nodes=N or depth=N")
    cap: int = Field(1000, ge=1, description="evaluations count as at most so many centipawns; so do mates")
    intervention: InterventionSettings = Field(
        default_factory=InterventionSettings, description="of a dataset: what is added to the model"
    )

    @field_validator("limit")
    @classmethod
    def _no_clock(cls, limit: str) -> str:
        from chessreg.games.engines import parse_limit

        parsed = parse_limit(limit)
        if parsed.kind == "time":
            raise BadInputError("under a time limit the same move costs differently on every machine", "nodes=10000")
        return parsed.text

    @model_validator(mode="after")
    def _one_source(self) -> MoveQualitySpec:
        given = {name for name in ("checkpoint", "dataset") if getattr(self, name) is not None}
        if self.play is None and len(given) < 2:
            raise BadInputError("there are no moves to judge", "give --play RUN, or --checkpoint and --dataset")
        if self.play is not None:
            given |= {name for name in ("black",) if self.black} | ({"every"} if self.every != 1 else set())
            given |= {"intervention"} if self.intervention.active else set()
            if given:
                raise BadInputError(
                    f"--play judges a run's own games; {', '.join(sorted(given))} cannot be set beside it",
                    "leave it out",
                )
        return self


class MoveQualityHow(How):
    batch_games: int = Field(32, ge=1, description="games that go through the model together")
    engine_processes: int = Field(0, ge=0, description="engines that search at once; 0: one for each core")


class MoveDetail(BaseModel):
    """Columns of a judged move (name `centipawn_loss`, item its ply), and of a game (name `game`, item -1)."""

    best: str | None = Field(None, description="of a move: what the judge would have played, UCI")
    best_cp: int | None = Field(None, description="of a move: the evaluation with it, capped, the mover's view")
    move_cp: int | None = Field(None, description="of a move: the evaluation with the move played, the same way")
    legal: bool | None = Field(None, description="of a move: false for a first try that is no legal move")
    color: str | None = Field(None, description="of a game: the model's")
    game: int | None = Field(None, description="of a game: its row in the dataset, or its unit in the play run")
    judged: int | None = Field(None, description="of a game: moves judged")
    illegal: int | None = Field(None, description="of a game: first tries that were no legal move, not judged")
    median: float | None = Field(None, description="of a game: the median loss")
    checkpoint_id: str | None = Field(None, description="of a game: the model, hex")
    intervention_id: str | None = Field(None, description="of a game: what was added to the model, hex")
    engine_id: str | None = Field(None, description="of a game: the judge, hex")


class MoveQuality(Kind):
    """Centipawn loss of a model's moves, of a play run or as first tries on the positions of a dataset.

    Loss is the judge's evaluation with its own best move minus that with the move played, both searched from the same
    position under the same limit, both capped, never below 0. One unit is one game. Rows of `prediction`: one a move
    (name `centipawn_loss`, item the ply, value the loss, text the move) and one a game (name `game`, item -1, value
    the mean loss, empty where nothing was judged).
    """

    name = "move-quality"
    families = ("prediction",)
    spec = MoveQualitySpec
    how = MoveQualityHow
    detail: ClassVar[Mapping[str, type[BaseModel]]] = {"prediction": MoveDetail}
    example = "--checkpoint reference --dataset sample:test --games 4 --every 8 --limit nodes=100"

    def units(self, spec: MoveQualitySpec, inputs: Inputs) -> int:
        from chessreg.experiments.move_quality.judged import source

        return source(spec, inputs).count

    def check(self, spec: MoveQualitySpec, inputs: Inputs) -> None:
        """Raise for what would only fail later: the engine, a vector, a tokenizer that is not here."""
        from chessreg.encodings.tokenizers import tokenizer
        from chessreg.games.engines import find_stockfish

        find_stockfish()
        if spec.checkpoint is not None:
            checkpoint, _ = inputs.checkpoint(spec.checkpoint)
            tokenizer(checkpoint.tokenizer)
            if spec.intervention.active:
                vector_rows(spec.intervention, checkpoint, inputs)

    def estimate(self, spec: MoveQualitySpec, inputs: Inputs) -> Estimate:
        games = self.units(spec, inputs)
        return Estimate(
            {"prediction": games * (1 + TURNS_PER_GAME // spec.every)},
            remarks=(f"about {TURNS_PER_GAME} turns a game; each takes one search, two where the moves differ",),
        )

    def run(self, task: Task[MoveQualitySpec, MoveQualityHow]) -> None:
        from chessreg.experiments.move_quality.judged import judge

        judge(task)

    def frames(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """A board for each judged move of a game: the move as an arrow, the judge's beside it where it differs."""
        from chessreg.experiments.move_quality.judged import frames_of_moves

        return frames_of_moves(row, inputs)
