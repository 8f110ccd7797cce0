"""What every match has in common: its settings, where its games start, one game, and its rows in the registry."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self
from uuid import UUID

import chess
import numpy as np
from pydantic import field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.games.adjudication import ADJUDICATED, GameEnd, Termination, game_over, lost_by
from chessreg.games.engines import EngineSpec, engine_identity, parse_engine, parse_limit
from chessreg.games.moves import pack
from chessreg.games.openings import Book, Opening, OpeningSpec, openings, parse_opening
from chessreg.registry import tables
from chessreg.registry.identity import digest_of, short, uuid_of
from chessreg.registry.names import name_of
from chessreg.registry.tables.types import utc_now
from chessreg.runs.spec import Spec

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from chessreg.experiments.play.policies import Choice
    from chessreg.runs.task import Task


class MatchSpec(Spec):
    """What the specs of all matches make of their settings `opening`, `book` and `adjudication`: one spelling, so that
    equal matches hash equally, and an error that says what to write. Each spec has these fields with its own defaults.
    """

    @model_validator(mode="before")
    @classmethod
    def _split_book(cls, values: Any) -> Any:
        """`book:FILE` becomes the source `book` and its file, which is then named by its content."""
        if isinstance(values, dict) and str(values.get("opening", "")).startswith("book:"):
            return {**values, "opening": "book", "book": values["opening"].removeprefix("book:")}
        return values

    @field_validator("opening", check_fields=False)
    @classmethod
    def _source(cls, opening: str) -> str:
        return opening if opening == "book" else parse_opening(opening).text

    @field_validator("player", "opponent", check_fields=False)
    @classmethod
    def _one_spelling(cls, engine: str) -> str:
        return parse_engine(engine).text

    @field_validator("adjudication", check_fields=False)
    @classmethod
    def _limit(cls, adjudication: str) -> str:
        return "none" if adjudication == "none" else parse_limit(adjudication).text

    @model_validator(mode="after")
    def _book_has_file(self) -> Self:
        if (getattr(self, "opening", "") == "book") != (getattr(self, "book", None) is not None):
            raise BadInputError("openings of a book need its file", "write --opening book:FILE")
        return self


# -- openings ----------------------------------------------------------------------------------------------------


class Starts(Protocol):
    """The settings of a spec that say where its games start."""

    @property
    def book(self) -> str | None: ...
    @property
    def opening_seed(self) -> int: ...
    @property
    def opening_source(self) -> str: ...


def opening_maker(task: Task[Any, Any]) -> Callable[[int], Opening]:
    """Opening n of this match, the same in every arm with this opening and opening seed."""
    spec: Starts = task.spec
    source = OpeningSpec("book", str(book_file(task)[1])) if spec.book else parse_opening(spec.opening_source)
    return lambda number: openings(source, spec.opening_seed, [number])[0]


def record_opening(task: Task[Any, Any]) -> str:
    """What the match calls its openings; a book is recorded first."""
    spec: Starts = task.spec
    return record_book(task) if spec.book else spec.opening_source


def record_book(task: Task[Any, Any]) -> str:
    """The book of this match as a row, and the name that the match has for it."""
    digest, path = book_file(task)
    task.record(
        "artefact", digest=digest, kind="book", bytes=path.stat().st_size, state="complete", created_at=utc_now()
    )
    task.record(
        "opening_book",
        digest=digest,
        source=path.name,
        format=path.suffix.removeprefix("."),
        openings=len(Book.read(path).lines),
        created_at=utc_now(),
    )
    return f"book:{digest[:32]}"


def book_file(task: Task[Any, Any]) -> tuple[str, Path]:
    """Digest and file of the book."""
    assert task.spec.book
    found = task.inputs.artefact("book", task.spec.book)
    return found.digest, task.store.artefact(found.digest).file


# -- one game ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """What ends a game besides the rules of chess (specification 7.2).

    `move_limit` full moves are counted from the end of the opening. `context_full` says what happens when the model's
    positions cannot hold one more move: `adjudicate` (like the move limit), `forfeit`, or `crop` (go on with the newest
    characters, as chess_gpt_eval does). A stopped game is evaluated as it ended, or as it stood after White's move
    number `adjudicate_at` where that is not 0 and the game came so far (chess_gpt_eval's notebook: 90).
    """

    colour: chess.Color
    move_limit: int = 90
    context_full: Literal["adjudicate", "forfeit", "crop"] = "adjudicate"
    adjudicate_at: int = 0


@dataclass
class PlayedGame:
    """A game in play. `tries` has one entry for each turn of the model, `illegal` is (ply, number, text)."""

    unit: int
    opening: Opening
    rules: Rules
    board: chess.Board = field(init=False)
    sans: list[str] = field(init=False)
    tries: list[int] = field(default_factory=list)
    first_try_legal: int = 0
    illegal: list[tuple[int, int, str]] = field(default_factory=list)
    legal_mass: list[float] = field(default_factory=list)
    end: GameEnd | None = None
    adjudication_cp: int | None = None
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.board = self.opening.board()
        self.sans = list(self.opening.sans)
        self.end = game_over(self.board)  # random-2024 hands over finished games

    @property
    def model_to_move(self) -> bool:
        return self.end is None and self.board.turn == self.rules.colour

    @property
    def ply(self) -> int:
        return len(self.sans)

    @property
    def adjudicated(self) -> bool:
        """Stopped in play: an evaluation says what it counts for."""
        return self.end is not None and self.end.termination in ADJUDICATED and self.end.result == "*"

    def judged_board(self) -> chess.Board:
        """The position that is evaluated when the game is stopped."""
        plies = 2 * self.rules.adjudicate_at - 1
        if not 0 < plies < self.ply:
            return self.board
        board = self.board.root()
        for move in self.board.move_stack[:plies]:
            board.push(move)
        return board

    def push(self, move: chess.Move) -> None:
        """Play a legal move, and end the game if that ends it."""
        self.sans.append(self.board.san_and_push(move))
        self.end = game_over(self.board)
        if self.end is None and self.ply - len(self.opening.moves) >= 2 * self.rules.move_limit:
            self.end = GameEnd(Termination.MOVE_LIMIT, "*")

    def take(self, choice: Choice) -> None:
        """The model's turn: its move, or the forfeit or resignation that ends the game."""
        self.tries.append(choice.tries)
        self.first_try_legal += choice.move is not None and not choice.illegal
        self.illegal += [(self.ply, number, text) for number, text in enumerate(choice.illegal)]
        if choice.legal_mass is not None:
            self.legal_mass.append(choice.legal_mass)
        if choice.move is not None:
            self.push(choice.move)
        else:
            why = Termination.RESIGNATION if choice.resigned else Termination.FORFEIT_ILLEGAL
            self.end = lost_by(self.rules.colour, why)

    def fill_context(self) -> None:
        """The model cannot read on: end the game as the rules say."""
        if self.rules.context_full == "forfeit":
            self.end = lost_by(self.rules.colour, Termination.CONTEXT_FULL)
        else:
            self.end = GameEnd(Termination.CONTEXT_FULL, "*")


# -- rows --------------------------------------------------------------------------------------------------------


def engine_row(spec: EngineSpec) -> dict[str, Any]:
    """The row of `engine` for this opponent: the Stockfish binary as it is here, or a built-in mover.

    Raises NotFoundError when the opponent needs Stockfish and there is none.
    """
    if spec.needs_process:
        found = engine_identity()
        columns: dict[str, Any] = {
            "name": found.name,
            "version": found.version,
            "binary_sha256": found.sha256,
            "options": dict(found.options),
        }
    else:
        columns = {"name": spec.kind, "version": "1", "binary_sha256": None, "options": {}}
    return {"id": uuid_of(digest_of(columns)), **columns}


def check_engine(task: Task[Any, Any], number: int, engine: dict[str, Any]) -> None:
    """Raise BadInputError when an earlier attempt of this run met another engine: its games cannot be pooled with
    these."""
    with task.inputs.database.read() as session:
        before = session.get(tables.Match, (task.run_id, number))
        if before is not None and before.engine_id != engine["id"]:
            other = session.get_one(tables.Engine, before.engine_id)
            raise BadInputError(
                f"the games of this run so far were played against {other.name} {other.version}, "
                f"here is another program: {engine['name']} {engine['version']}",
                "--replicate 1 begins a run of its own",
            )


def game_columns(game: PlayedGame) -> dict[str, Any]:
    """The columns of a finished game beside its key and its detail."""
    assert game.end is not None
    return {
        "opening_number": game.opening.number,
        "opening_plies": len(game.opening.moves),
        "plies": game.ply,
        "result": game.end.result,
        "termination": str(game.end.termination),
        "adjudication_cp": game.adjudication_cp,
        "turns": len(game.tries),
        "first_try_legal": game.first_try_legal,
        "tries": np.array(game.tries, np.uint8).tobytes(),
        "moves": pack(game.board.move_stack),
        "seconds": game.seconds,
    }


def player_name(session: Session, checkpoint_id: UUID) -> str:
    """What a match calls the model: the checkpoint's name now, or its short id."""
    return name_of(session, "checkpoint", checkpoint_id) or f"checkpoint {short(checkpoint_id)}"
