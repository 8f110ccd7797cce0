"""Models that predict values instead of moves: the expected return of every legal move.

DeepMind's engines do the same (Ruoss et al. 2024, section 2.3). With action values, each legal move is one pass; with
state values, each position after a legal move is, whose return is the opponent's. The return is predicted as a
distribution over equal buckets of [0, 1]; a bucket's value is its middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import chess
import numpy as np
import torch
from torch import Tensor

from chessreg.encodings.fen77 import Fen77
from chessreg.errors import DivergedError
from chessreg.models.edits import ResidualEdit

if TYPE_CHECKING:
    from chessreg.models.language_model import LanguageModel

BATCH_PASSES = 256
REPETITION_RETURN = 0.5  # the return of a move that allows a draw claim by repetition
MIN_REVERSIBLE_PLIES = 7  # reversible plies before a threefold repetition is possible


def compute_bucket_values(buckets: int) -> np.ndarray:
    """Return the middle of each bucket, float64 [buckets].

    >>> compute_bucket_values(4).tolist()
    [0.125, 0.375, 0.625, 0.875]
    """
    return (np.arange(buckets) + 0.5) / buckets


def find_buckets(returns: np.ndarray, buckets: int) -> np.ndarray:
    """Return the bucket int64 [n] of each return in [0, 1]; an edge belongs to the bucket below it.

    >>> find_buckets(np.array([0.0, 0.25, 0.26, 1.0]), 4).tolist()
    [0, 0, 1, 3]
    """
    edges = np.linspace(0.0, 1.0, buckets + 1)[1:-1]
    return np.searchsorted(edges, returns, side="left")


@dataclass(frozen=True, eq=False)
class MoveValues:
    """The predicted returns of a position's legal moves, ordered by action.

    `log_probs` float32 [moves, buckets] is the distribution of the mover's return; `state` float32 [buckets] that of
    the position itself, for a model of state values.
    """

    moves: tuple[chess.Move, ...]
    log_probs: np.ndarray
    state: np.ndarray | None = None

    @property
    def returns(self) -> np.ndarray:
        """The expected return of each move, float64 [moves]."""
        return np.exp(self.log_probs.astype(np.float64)) @ compute_bucket_values(self.log_probs.shape[-1])


def score_moves(
    model: LanguageModel,
    boards: Sequence[chess.Board],
    edits: Sequence[ResidualEdit] = (),
    rows: Sequence[int] | None = None,
) -> list[MoveValues]:
    """Return the values of all legal moves of these boards, under edits.

    Board i uses the directions of row `rows[i]` of an edit with one direction per row. Raises DivergedError for NaN.
    """
    fen = Fen77()
    every = [tuple(sorted(board.legal_moves, key=lambda move: fen.action_ids[move.uci()])) for board in boards]
    is_state = model.head == "state-value"
    positions: list[str] = []
    for board, moves in zip(boards, every, strict=True):
        positions += [board.fen()] if is_state else [board.fen()] * len(moves)
        for move in moves if is_state else ():
            board.push(move)
            positions.append(board.fen())
            board.pop()
    counts = [len(moves) + is_state for moves in every]
    owner = torch.tensor(np.repeat(range(len(boards)) if rows is None else rows, counts))
    actions = torch.tensor([fen.action_ids[move.uci()] for moves in every for move in moves])
    tokens = torch.from_numpy(fen.boards(positions).ids.reshape(-1, fen.length).astype(np.int64))
    parts: list[Tensor] = [torch.zeros(0, 1)]
    for start in range(0, len(tokens), BATCH_PASSES):
        batch = slice(start, start + BATCH_PASSES)
        row_edits = [edit.take(owner[batch]) if edit.per_row else edit for edit in edits]
        log_returns = model.return_log_probs(tokens[batch], None if is_state else actions[batch], edits=row_edits)
        if bool(log_returns.isnan().any()):
            raise DivergedError("the model's values are NaN", "a smaller scale" if edits else "")
        parts.append(log_returns.cpu())
    log_probs = torch.cat(parts[1:]).numpy() if len(tokens) else np.zeros((0, 1), np.float32)
    move_values = []
    for moves, move_log_probs in zip(every, np.split(log_probs, np.cumsum(counts)[:-1]), strict=True):
        # the return after a move is the opponent's, so the buckets are reversed
        move_values.append(
            MoveValues(moves, move_log_probs[1:, ::-1], move_log_probs[0])
            if is_state
            else MoveValues(moves, move_log_probs)
        )
    return move_values


def assign_repetition_values(board: chess.Board, values: MoveValues) -> np.ndarray:
    """Return the expected returns float64 [moves], 0.5 for a move that allows a draw claim by repetition.

    As in DeepMind's engines. The board's move stack is the game's history.
    """
    returns = values.returns.copy()
    for place, move in enumerate(values.moves):
        board.push(move)
        if board.halfmove_clock >= MIN_REVERSIBLE_PLIES and (
            board.is_fivefold_repetition() or board.can_claim_threefold_repetition()
        ):
            returns[place] = REPETITION_RETURN
        board.pop()
    return returns


def score_positions(
    model: LanguageModel, positions: Sequence[Sequence[int]], edits: Sequence[ResidualEdit], rows: Sequence[int]
) -> list[MoveValues]:
    """Return `score_moves` for positions given as 77 tokens each. Position i uses row `rows[i]` of the edits."""
    fen = Fen77()
    return score_moves(model, [chess.Board(fen.decode(tokens)) for tokens in positions], edits, rows)


def compute_action_log_probs(values: Sequence[MoveValues], actions: int) -> Tensor:
    """Return the log-softmax of the expected returns of the legal moves, -inf for other actions: float32 [positions,
    actions]."""
    fen, log_probs = Fen77(), torch.full((len(values), actions), -torch.inf)
    for place, each in enumerate(values):
        if each.moves:
            legal = [fen.action_ids[move.uci()] for move in each.moves]
            log_probs[place, legal] = torch.log_softmax(torch.from_numpy(each.returns).float(), -1)
    return log_probs
