"""Positions whose legal moves all have a win probability (ChessBench's action values), and metrics on them.

The metrics of Ruoss et al. 2024 (Appendix A) compare a model with these win probabilities. A model of values predicts
the return of every legal move. Any other model is measured by its probabilities of the legal moves, as the paper
measures behavioral cloning. It has no L2 error, and its log loss is that of the best move.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import chess
import numpy as np

from chessreg.encodings.fen77 import Fen77
from chessreg.experiments.settings.decisions import Decisions

if TYPE_CHECKING:
    from chessreg.models.decoding.values import MoveValues
    from chessreg.runs.inputs import Inputs


@dataclass(frozen=True)
class ScoredDecisions(Decisions):
    """Distinct positions, each at the row of its first move.

    `returns[i]` float64 [moves] are the win probabilities of the legal moves of position i, in the order of their
    actions. `best[i]` is the first of the best moves, UCI.
    """

    returns: tuple[np.ndarray, ...] = ()
    best: tuple[str, ...] = ()

    def select(self, mask: np.ndarray) -> ScoredDecisions:
        """Return the decisions that an index array or mask selects."""
        index = np.arange(len(self))[mask].tolist()
        returns, best_scores = tuple(self.returns[i] for i in index), tuple(self.best[i] for i in index)
        return ScoredDecisions(self.positions, self.places[mask], returns=returns, best=best_scores)

    def read_columns(self, *names: str) -> dict[str, list[Any]]:
        values = super().read_columns(*(name for name in names if name != "best"))
        return values | ({"best": list(self.best)} if "best" in names else {})


@dataclass(frozen=True)
class ScoredStates(Decisions):
    """Positions with a known win probability of their own, but of no move (ChessBench's state values). `returns`
    float64 [n] is for the side to move."""

    returns: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def select(self, mask: np.ndarray) -> ScoredStates:
        """Return the states that an index array or mask selects."""
        return ScoredStates(self.positions, self.places[mask], returns=self.returns[mask])


def load_scored_states(inputs: Inputs, reference: str, field: str) -> ScoredStates | None:
    """Return the positions of a dataset whose rows have a win probability but neither a move nor a best move.

    Returns None for any other dataset.
    """
    items, part = inputs.items(reference, field)
    if items.content == "games":
        return None
    places = items.rows(part)
    table = items.take(places, ["best", "action", "win_prob"])
    if not len(places) or table["win_prob"].null_count or any(
        table[name].null_count < len(places) for name in ("best", "action")
    ):  # fmt: skip
        return None
    return ScoredStates(items, places, returns=np.array(table["win_prob"].to_pylist(), np.float64))


def load_scored_decisions(inputs: Inputs, reference: str, field: str) -> ScoredDecisions | None:
    """Return the positions of a dataset whose rows give every legal move a win probability, in the order of their first
    rows.

    Positions with a missing or an additional move are left out, as in the paper. Return None for another kind of
    dataset, and if no position is complete.
    """
    items, part = inputs.items(reference, field)
    if items.content == "games":
        return None
    places = items.rows(part)
    table = items.take(places, ["fen", "best", "action", "win_prob"])
    complete = all(table[name].null_count < len(places) for name in ("action", "win_prob"))
    if not len(places) or table["best"].null_count < len(places) or not complete:
        return None
    fen, first_places, moves = Fen77(), dict[str, int](), dict[str, dict[str, float]]()
    columns = (table[name].to_pylist() for name in ("fen", "action", "win_prob"))
    for place, text, move, value in zip(places.tolist(), *columns, strict=True):
        if move is not None and value is not None:
            first_places.setdefault(text, place)
            moves.setdefault(text, {})[move] = value
    chosen_moves, returns, best_moves = [], [], []
    for text, values in moves.items():
        if values.keys() == {move.uci() for move in chess.Board(text).legal_moves}:
            sorted_moves = sorted(values, key=fen.action_ids.__getitem__)
            chosen_moves.append(first_places[text])
            returns.append(np.array([values[move] for move in sorted_moves]))
            best_moves.append(sorted_moves[int(returns[-1].argmax())])
    if not chosen_moves:
        return None
    return ScoredDecisions(items, np.array(chosen_moves, np.int64), returns=tuple(returns), best=tuple(best_moves))


@dataclass(frozen=True)
class ReturnMetrics:
    """The metrics of one position.

    `top` is True if the model's first move is one of the best. `log_loss` and `entropy` are in bits. `tau` is Kendall's
    τ-b between the orders of the moves. `tau_argsort` is the value that DeepMind's code reports instead: that of the
    two permutations that sort the moves. `l2` is the mean squared error of win probabilities. `consistency` is the
    squared difference between a state's value and that of its best move. If only the position's own value is known, all
    but `log_loss`, `entropy` and `l2` are None.
    """

    log_loss: float
    entropy: float
    top: bool | None = None
    tau: float | None = None
    tau_argsort: float | None = None
    l2: float | None = None
    consistency: float | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The metrics by name."""
        return asdict(self)


def compute_value_metrics(values: MoveValues, returns: np.ndarray) -> ReturnMetrics:
    """Return the metrics of a model of values. `returns` float64 [moves] are in the order of actions."""
    from chessreg.models.decoding.values import compute_bucket_values, find_buckets

    log_probs = values.log_probs.astype(np.float64)
    buckets = find_buckets(returns.astype(np.float32), log_probs.shape[1])
    predicted_returns, consistency = values.returns, None
    if values.state is not None:
        state = np.exp(values.state.astype(np.float64)) @ compute_bucket_values(len(values.state))
        consistency = float((state - predicted_returns.max()) ** 2)
    return ReturnMetrics(
        top=bool(returns[predicted_returns.argmax()] == returns.max()),
        log_loss=-float(log_probs[np.arange(len(returns)), buckets].mean()) / math.log(2),
        entropy=-float((np.exp(log_probs) * log_probs).sum(1).mean()) / math.log(2),
        tau=compute_kendall_tau(predicted_returns, returns),
        tau_argsort=compute_kendall_tau(np.argsort(predicted_returns), np.argsort(returns.astype(np.float32))),
        l2=float(((predicted_returns - returns) ** 2).mean()),
        consistency=consistency,
    )


def compute_state_metrics(values: MoveValues, value: float) -> ReturnMetrics:
    """Return the metrics of a value model on a position, where `value` is the side to move's win probability (0 to 1).

    A model of action values predicts the value of its best move.
    """
    from chessreg.models.decoding.values import compute_bucket_values, find_buckets

    state_distribution = values.state if values.state is not None else values.log_probs[values.returns.argmax()]
    log_probs = state_distribution.astype(np.float64)
    [bucket] = find_buckets(np.array([value], np.float32), len(log_probs))
    return ReturnMetrics(
        log_loss=-float(log_probs[bucket]) / math.log(2),
        entropy=-float(np.exp(log_probs) @ log_probs) / math.log(2),
        l2=float((np.exp(log_probs) @ compute_bucket_values(len(log_probs)) - value) ** 2),
    )


def compute_move_metrics(log_probs: np.ndarray, returns: np.ndarray) -> ReturnMetrics:
    """Return the metrics of a model of moves, from unnormalized log-probabilities float64 [moves] in the order of
    actions."""
    normalized_log_probs = log_probs - np.logaddexp.reduce(log_probs)
    return ReturnMetrics(
        top=bool(returns[normalized_log_probs.argmax()] == returns.max()),
        log_loss=-float(normalized_log_probs[returns.argmax()]) / math.log(2),
        entropy=-float((np.exp(normalized_log_probs) * normalized_log_probs).sum()) / math.log(2),
        tau=compute_kendall_tau(normalized_log_probs, returns),
        tau_argsort=compute_kendall_tau(
            np.argsort(np.exp(normalized_log_probs)), np.argsort(returns.astype(np.float32))
        ),
    )


def compute_kendall_tau(one: np.ndarray, other: np.ndarray) -> float:
    """Return Kendall's τ-b of two orders of the same items; 1 for a single item, 0 if one order ties all of them.

    >>> compute_kendall_tau(np.array([1, 2, 3]), np.array([1, 3, 2]))
    0.3333333333333333
    """
    if len(one) == 1:
        return 1.0
    upper = np.triu_indices(len(one), 1)
    signs = [np.sign(values[:, None] - values[None, :])[upper] for values in (one.astype(float), other.astype(float))]
    untied_pairs = [np.count_nonzero(sign) for sign in signs]
    return (
        float((signs[0] * signs[1]).sum() / math.sqrt(untied_pairs[0] * untied_pairs[1])) if all(untied_pairs) else 0.0
    )
