"""One game between the model and an opponent, from its opening to its end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

import chess

from chessreg.experiments.play.policies import Choice
from chessreg.games.adjudication import ADJUDICATED, GameEnd, Termination, game_over, lost_by
from chessreg.games.openings import Opening


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
