"""The states of edits: positions with White to move, and the same board without the piece about to move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import chess
import chess.polyglot
import numpy as np

from chessreg.experiments.settings.games import build_turn_prompts, select_games
from chessreg.games.boards.moves import unpack_moves
from chessreg.games.boards.typed import play_sans
from chessreg.noise import Stream, generator, uniform
from chessreg.steering.directions import classify_piece

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.experiments.edit.spec import EditSettings
    from chessreg.games.datasets.dataset import Games
    from chessreg.registry.tables import Trial
    from chessreg.runs.inputs import Inputs

NO_GAME = -1  # the item of a position outside any dataset

SKIP_REASONS = {
    "illegal": "the most probable move is illegal",
    "no square": "the most probable token names no square",
    "empty": "the most probable token names an empty square",
    "king": "the king is about to move",
    "no direction": "the probe has no direction for the piece",
    "no moves": "the modified board has no legal move",
    "too long": "the game up to there is longer than the model's context",
    "too short": "the game ends before the later board",
}
"""Stored reason why a state was skipped → text."""


def describe_skip(trial: Trial) -> str:
    """Return the reason why a state was skipped, with the model's text if there is one."""
    reason = str((trial.detail or {}).get("skipped"))
    text = f" (the model writes {trial.text!r})" if trial.text else ""
    return f"skipped: {SKIP_REASONS.get(reason, reason)}{text}"


@dataclass(frozen=True)
class State:
    """One position with White to move. The model writes the move after the tokens of `prompt`."""

    unit: int
    item: int
    ply: int
    prompt: tuple[int, ...]
    board: chess.Board

    @property
    def position(self) -> str:
        """The position's Zobrist hash (placement, side to move, castling, en passant), 16 hexadecimal digits.

        It identifies distinct positions: the paper's 5,000 states repeat early ones.
        """
        return f"{chess.polyglot.zobrist_hash(self.board):016x}"


@dataclass(frozen=True)
class Removal:
    """A state without the piece about to move: the clean model's move, the piece, and the board without it."""

    state: State
    move: chess.Move
    piece: chess.Piece
    modified_board: chess.Board

    @property
    def boards(self) -> tuple[chess.Board, chess.Board]:
        """The original and the modified board."""
        return self.state.board, self.modified_board

    @property
    def square(self) -> int:
        """The square of the removed piece, 0 (a1) to 63 (h8)."""
        return self.move.from_square

    @property
    def label(self) -> int:
        """The class of the removed piece in the labels `piece`."""
        return classify_piece(self.piece)


def build_states(
    spec: EditSettings, encoding: Encoding, games: Games, places: np.ndarray, units: Sequence[int]
) -> list[State]:
    """Return the states of these units. Unit u is state u % `spec.per_game` of the game at row `places[u //
    spec.per_game]`. A short game has fewer states."""
    states = []
    for unit in units:
        item = int(places[unit // spec.per_game])
        [prompts] = build_turn_prompts(encoding, games, np.array([item]), "white")
        plies = list(prompts)
        count = min(spec.last_move, len(plies))
        order = (
            generator(spec.seed, Stream.EDIT_STATES, item).permutation(count)
            if spec.per_game < spec.last_move
            else None
        )
        indices = np.sort(order[: spec.per_game]) if order is not None else np.arange(count)
        if unit % spec.per_game >= len(indices):
            continue
        ply, board = plies[int(indices[unit % spec.per_game])], chess.Board()
        for move in unpack_moves(games.moves([item])[0])[:ply]:
            board.push(move)
        states.append(State(unit, item, ply, prompts[ply], board))
    return states


def build_state_after(sans: Sequence[str], encoding: Encoding) -> State:
    """Return the position after these moves (canonical SAN), the only state of a run with --moves."""
    return State(0, NO_GAME, len(sans), encoding.prompt(sans), play_sans(sans))


def load_state(spec: EditSettings, encoding: Encoding, inputs: Inputs, unit: int) -> State:
    """Return the state of a unit of a run."""
    if spec.moves:
        return build_state_after(spec.sans, encoding)
    [state] = build_states(spec, encoding, *select_games(spec, inputs), [unit])
    return state


def remove_moving_piece(state: State, move: chess.Move) -> Removal:
    """Return the state without the piece about to move, otherwise unchanged (Karvonen 2024, section 4.2)."""
    modified_board = state.board.copy(stack=False)
    piece = modified_board.remove_piece_at(move.from_square)
    assert piece
    return Removal(state, move, piece, modified_board)


def explain_skip(spec: EditSettings, board: chess.Board, move: chess.Move | None) -> str | None:
    """Return the reason to skip a state, given the clean model's greedy move: `illegal`, `king`, `no moves`, or None.

    The author's guard asks for legal moves of the original board, which always has one. The fixed guard asks for
    legal moves of the modified board.
    """
    if move is None:
        return "illegal"
    if spec.king == "skip" and board.piece_type_at(move.from_square) == chess.KING:
        return "king"
    if spec.guard == "fixed":
        modified_board = board.copy(stack=False)
        modified_board.remove_piece_at(move.from_square)
        if not any(modified_board.legal_moves):
            return "no moves"
    return None


def assign_half(spec: EditSettings, item: int) -> str:
    """Return `choose` or `report`, drawn by game. Settings are chosen on one half of the games and reported on the
    other."""
    return "choose" if uniform(spec.seed, Stream.EDIT_HALF, item) < 0.5 else "report"
