"""`engine-match`: games between two engines of the ladder, to tell what a level is worth under a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field

from chessreg.experiments.play.matchspec import MatchSpec
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import How, Ref

if TYPE_CHECKING:
    from chessreg.games.boardframe import BoardFrame
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

BYTES_PER_GAME = 700  # a fragment's share of one game


class EngineMatchSpec(MatchSpec):
    model_config = ConfigDict(validate_default=True)

    player: str = Field("stockfish:0@time=0.1", description="the engine whose score is asked for, as for play")
    opponent: str = Field("stockfish:0@time=0.1", description="the engine that it meets")
    games: int = Field(100, ge=1, description="games to play")
    color: Literal["white", "black"] = Field("white", description="the player's colour")
    opening: str = Field("standard", description="standard, random:PLIES or book:FILE")
    book: Annotated[str | None, Ref("book")] = Field(None, description="the file of book:FILE, filled in from it")
    opening_seed: int = Field(0, description="seed of the openings")
    move_limit: int = Field(0, ge=0, description="full moves after the opening, then the game is stopped; 0: no limit")
    adjudication: str = Field("nodes=100000", description="Stockfish's limit for evaluating a stopped game, or none")

    @property
    def opening_source(self) -> str:
        return self.opening


class EngineMatchHow(How):
    engine_processes: int = Field(0, ge=0, description="games in play at once; 0: one for each core")


class EngineMatch(Kind):
    """Games between two engines: how much a level changes with its limit (Karvonen 2024, Appendix E).

    One unit is one game. Under a time limit there are never more searches at once than free cores.
    """

    name = "engine-match"
    families = ("game",)
    determinism = "statistical"
    spec = EngineMatchSpec
    how = EngineMatchHow
    queries = ("elo by intervention", "games by termination")
    example = "--player capture --opponent random --games 6 --opening random:6 --move-limit 20 --adjudication none"

    def units(self, spec: EngineMatchSpec, inputs: Inputs) -> int:
        return spec.games

    def check(self, spec: EngineMatchSpec, inputs: Inputs) -> None:
        """Raise for what would only fail later: an engine or a book that is not here."""
        from chessreg.games.engines import find_stockfish, parse_engine

        if spec.book is not None:
            inputs.artefact("book", spec.book)
        judged = spec.move_limit > 0 and spec.adjudication != "none"
        if judged or any(parse_engine(engine).needs_process for engine in (spec.player, spec.opponent)):
            find_stockfish()

    def estimate(self, spec: EngineMatchSpec, inputs: Inputs) -> Estimate:
        return Estimate({"game": spec.games}, spec.games * BYTES_PER_GAME)

    def run(self, task: Task[EngineMatchSpec, EngineMatchHow]) -> None:
        from chessreg.experiments.play.duel import play_duel

        play_duel(task)

    def frames(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """A board for the start and one after every ply."""
        from uuid import UUID

        from chessreg.experiments.play.stored import stored_games

        return next(stored_games(inputs.database, [(UUID(str(row["run_id"])), int(row["unit"]))])).frames()
