"""`play`: games of a model against an opponent of the ladder, many at once, with an intervention as an option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.play.matchspec import MatchSpec
from chessreg.experiments.settings.interventions import InterventionSettings, vector_rows
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import CheckpointRef, How, Ref

if TYPE_CHECKING:
    from pydantic import ValidationInfo

    from chessreg.games.boardframe import BoardFrame
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

BYTES_PER_GAME = 900  # a fragment's share of one game

PAPER: dict[str, Any] = {
    "opponent": "stockfish:0@nodes=100000",
    "color": "white",
    "finished_openings": "redraw",
    "policy": "retry:5",  # at the temperatures that are its default
    "move_tokens": 10,
    "resignation": "counts",
    "move_limit": 90,
    "context": "crop",
    "adjudication": "nodes=100000",
    "adjudicate_at": 0,
}
"""What Karvonen 2024 states (sections 2.2 and 4.3, Appendix E); its code where it is silent (specification 7.2)."""

AUTHOR_2024: dict[str, Any] = {
    **PAPER,
    "opponent": "stockfish:0@time=0.1",
    "finished_openings": "keep",
    "adjudication": "time=0.1",
    "adjudicate_at": 90,
}
"""What the code of chess_gpt_eval does (specification 7.2, 7.3, 7.6): MAX_MOVES = 89 plays 90 full moves, and the
notebook evaluates every stopped game as it stood after White's 90th move, random opening included."""


class PlaySpec(MatchSpec):
    model_config = ConfigDict(validate_default=True)  # defaults are spelled out too: equal specs hash equally

    checkpoint: CheckpointRef = Field(description="the model that plays")
    opponent: str = Field(
        "stockfish:0",
        description="random, capture, stockfish:-1, or stockfish:LEVEL@nodes=N (0 to 20; default 100,000 nodes)",
    )
    games: int = Field(100, ge=1, description="games to play")
    color: Literal["white", "black"] = Field("white", description="the model's colour")
    opening: str = Field(
        "standard", description="standard, random:PLIES or book:FILE; game n of every arm starts from opening n"
    )
    finished_openings: Literal["redraw", "keep"] = Field(
        "redraw",
        description="random plies that end the game: draw anew, or keep it (chess_gpt_eval: 5 restarts at most)",
    )
    book: Annotated[str | None, Ref("book")] = Field(None, description="the file of book:FILE, filled in from it")
    opening_seed: int = Field(0, description="seed of the openings, apart from the seed of the play")
    policy: str = Field("retry:5", description="retry:N (sample up to N times, then forfeit) or legal")
    temperatures: tuple[float, ...] = Field(
        (), description="one for each try; none given: retry 0.001,0.201,0.401,0.5,0.5 (Karvonen), legal 1"
    )
    move_tokens: int = Field(
        0, ge=0, le=64, description="characters that a try may write; 0: the tokenizer's limit (10 in PGN)"
    )
    resignation: Literal["counts", "illegal"] = Field(
        "counts", description="a game result written as a move: counts as resigning (Karvonen), or as an illegal try"
    )
    move_limit: int = Field(90, ge=1, description="full moves after the opening, then the game is stopped")
    adjudication: str = Field("nodes=100000", description="Stockfish's limit for evaluating a stopped game, or none")
    adjudicate_at: int = Field(
        0, ge=0, description="evaluate it as it stood after White's move of this number; 0: as it ended"
    )
    context: Literal["adjudicate", "forfeit", "crop"] = Field(
        "adjudicate", description="when the model's context is full: stop the game, forfeit it, or drop the oldest text"
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="what the model computes in (the author: float16 on a GPU)"
    )
    intervention: InterventionSettings = Field(default_factory=InterventionSettings)

    @field_validator("temperatures")
    @classmethod
    def _every_try(cls, temperatures: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        from chessreg.experiments.play.policies import make_policy

        if any(not 0 <= value < 100 for value in temperatures):
            raise BadInputError("a temperature is 0 (the most probable token) or positive", "--temperatures 0.001,0.5")
        return make_policy(info.data["policy"], temperatures).temperatures

    @field_validator("move_tokens")
    @classmethod
    def _only_where_text_is_written(cls, move_tokens: int, info: ValidationInfo) -> int:
        from chessreg.experiments.play.policies import make_policy

        return make_policy(info.data["policy"], (), move_tokens=move_tokens).move_tokens

    @field_validator("finished_openings")
    @classmethod
    def _only_where_plies_are_drawn(cls, rule: str, info: ValidationInfo) -> str:
        """Equal specs hash equally: without random plies there is nothing to keep."""
        return rule if info.data.get("opening", "").startswith("random") else "redraw"

    @property
    def opening_source(self) -> str:
        """The openings' text as the match keeps it."""
        if self.finished_openings == "keep" and self.opening.startswith("random:"):
            return self.opening.replace("random:", "random-2024:")
        return self.opening


class PlayHow(How):
    batch_games: int = Field(32, ge=1, description="games in play at once")
    engine_processes: int = Field(0, ge=0, description="engines that search at once; 0: one for each core")


class GameDetail(BaseModel):
    """Columns of a game that only this kind has."""

    legal_mass: float | None = Field(None, description="mean exact probability of a legal move, policy legal only")
    training_openings: int | None = Field(
        None,
        description="training games of the model with the same first 20 plies; none: it is not known what they are",
    )
    training_games: int | None = Field(None, description="training games of the model with exactly these moves")


class Play(Kind):
    """Games of a model against Stockfish or a simple mover, with or without an intervention.

    Karvonen 2024, Figure 2 and Tables 3 and 7. One unit is one game; game n has opening n in every arm, so arms are
    compared in pairs. Stockfish's handicapped levels cannot be seeded: reproducing a match compares distributions.
    """

    name = "play"
    version = 2  # 2: the context is cropped as the author crops it, to the model's last position
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": PAPER, "author-2024": AUTHOR_2024}
    families = ("game", "illegal_attempt")
    determinism = "statistical"
    spec = PlaySpec
    how = PlayHow
    detail: ClassVar[Mapping[str, type[BaseModel]]] = {"game": GameDetail}
    queries = ("elo by intervention", "games by termination")
    example = "--checkpoint reference --opponent random --games 20 --policy legal --opening random:6 --name games"

    def units(self, spec: PlaySpec, inputs: Inputs) -> int:
        return spec.games

    def check(self, spec: PlaySpec, inputs: Inputs) -> None:
        """Raise for what would only fail later: an engine, a checkpoint, a vector or a book that is not here."""
        from chessreg.encodings.tokenizers import tokenizer
        from chessreg.games.engines import find_stockfish, parse_engine

        checkpoint, _ = inputs.checkpoint(spec.checkpoint)
        tokenizer(checkpoint.tokenizer)
        if spec.intervention.active:
            vector_rows(spec.intervention, checkpoint, inputs)
        if spec.book is not None:
            inputs.artefact("book", spec.book)
        if parse_engine(spec.opponent).needs_process:
            find_stockfish()
        elif spec.adjudication != "none":
            try:
                find_stockfish()
            except NotFoundError as error:
                raise NotFoundError(
                    f"{error.message}: it evaluates the games that reach the move limit",
                    f"{error.hint}; or give --adjudication none",
                ) from error

    def estimate(self, spec: PlaySpec, inputs: Inputs) -> Estimate:
        remarks = (f"at most {2 * spec.move_limit} plies a game; illegal tries are as many as the model makes",)
        return Estimate({"game": spec.games}, spec.games * BYTES_PER_GAME, remarks)

    def run(self, task: Task[PlaySpec, PlayHow]) -> None:
        from chessreg.experiments.play.match import play_match

        play_match(task)

    def frames(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """A board for the start and one after every ply, with the illegal tries."""
        from uuid import UUID

        from chessreg.experiments.play.stored import stored_games

        run_id = row["run_id"] if isinstance(row["run_id"], UUID) else UUID(str(row["run_id"]))
        return next(stored_games(inputs.database, [(run_id, int(row["unit"]))])).frames()
