"""The result tables: score, trial, game (with match and illegal attempts), rating, prediction, metric point, statistic.

Every key begins with (run, unit), so a repeated row collides with the first. The attempt is not part of the key.
"""

import hashlib
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from chessreg.registry.tables.types import (
    Base,
    FiniteFloat,
    Json,
    ModelText,
    SmallInt,
    check_constraint,
    get_bulk_table_args,
)


def hash_packed_moves(packed_moves: bytes) -> int:
    """Return the 64-bit hash of a packed move list (column `move_hash`), as a signed integer."""
    return int.from_bytes(hashlib.blake2b(packed_moves, digest_size=8).digest(), "little", signed=True)


class Score(Base):
    """How often one predictor was correct on one item (a game) of one split. All averages derive from these rows."""

    __tablename__ = "score"
    __table_args__ = get_bulk_table_args(check_constraint("correct", "correct >= 0 AND correct <= n"))
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    unit: Mapped[int] = mapped_column(primary_key=True)
    split: Mapped[str] = mapped_column(String(32), primary_key=True)  # train, validation, test
    item: Mapped[int] = mapped_column(primary_key=True)  # the game's row in its dataset; -1 for a total
    attempt_id: Mapped[UUID]
    layer: Mapped[int | None] = mapped_column(SmallInt)
    n: Mapped[int]
    correct: Mapped[int]
    counts: Mapped[bytes | None] = mapped_column(LargeBinary)  # int32 little endian [3, classes]: TP, FP, FN
    detail: Mapped[dict[str, Any] | None] = mapped_column(Json)


class Trial(Base):
    """One decision of a model in one position under one condition."""

    __tablename__ = "trial"
    __table_args__ = get_bulk_table_args()
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    unit: Mapped[int] = mapped_column(primary_key=True)
    condition: Mapped[str] = mapped_column(String(64), primary_key=True)  # clean, edit, random-0, …
    sample: Mapped[int] = mapped_column(SmallInt, primary_key=True)  # -1: greedy and exact probabilities
    attempt_id: Mapped[UUID]
    intervention_id: Mapped[UUID | None]
    item: Mapped[int]  # the game's row in its dataset
    ply: Mapped[int] = mapped_column(SmallInt)
    fen: Mapped[str | None] = mapped_column(String(100))  # on the first row of a unit
    text: Mapped[str] = mapped_column(ModelText(32))
    legal_original: Mapped[bool | None] = mapped_column(Boolean)
    legal_modified: Mapped[bool | None] = mapped_column(Boolean)
    mass_original: Mapped[float | None] = mapped_column(FiniteFloat)  # exact probability of a legal move
    mass_modified: Mapped[float | None] = mapped_column(FiniteFloat)
    detail: Mapped[dict[str, Any] | None] = mapped_column(Json)


class Match(Base):
    """The settings shared by all games of one arm."""

    __tablename__ = "match"
    __table_args__ = (check_constraint("color", "color IN ('white', 'black')"),)
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(SmallInt, primary_key=True)
    player: Mapped[str] = mapped_column(String(255))  # name of the checkpoint at the time, or of an imported player
    checkpoint_id: Mapped[UUID | None] = mapped_column(index=True)
    intervention_id: Mapped[UUID | None] = mapped_column(index=True)
    engine_id: Mapped[UUID | None]
    opponent: Mapped[str] = mapped_column(String(128))  # stockfish:0@nodes=100, random, …
    opponent_checkpoint_id: Mapped[UUID | None]  # if the opponent is a model
    level: Mapped[int | None]
    limit: Mapped[str | None] = mapped_column(String(32))
    color: Mapped[str] = mapped_column(String(16))  # the model's: white, black
    opening: Mapped[str] = mapped_column(String(64))  # standard, random:20, book:<digest>
    opening_seed: Mapped[int] = mapped_column(BigInteger)
    policy: Mapped[str] = mapped_column(String(64))  # retry:5, legal
    move_limit: Mapped[int | None]  # None: unlimited or unknown
    planned: Mapped[int]
    detail: Mapped[dict[str, Any] | None] = mapped_column(Json)


class Game(Base):
    """One game. Moves are uint16 little endian: from | to << 6 | promotion << 12."""

    __tablename__ = "game"
    __table_args__ = get_bulk_table_args(
        check_constraint("result", "result IN ('1-0', '0-1', '1/2-1/2', '*')"),
        check_constraint("turns", "first_try_legal >= 0 AND first_try_legal <= turns"),
    )
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    unit: Mapped[int] = mapped_column(primary_key=True)
    match: Mapped[int] = mapped_column(SmallInt)
    attempt_id: Mapped[UUID]
    opening_number: Mapped[int]  # within the match; a game number if all start from the standard position
    opening_plies: Mapped[int] = mapped_column(SmallInt)
    plies: Mapped[int] = mapped_column(SmallInt)
    result: Mapped[str] = mapped_column(String(8))  # 1-0, 0-1, 1/2-1/2, * (stopped at the move limit)
    termination: Mapped[str] = mapped_column(String(32))
    adjudication_cp: Mapped[int | None]  # White's view, at the move limit
    turns: Mapped[int] = mapped_column(SmallInt)  # turns of the model
    first_try_legal: Mapped[int | None] = mapped_column(SmallInt)  # turns whose first try was legal
    tries: Mapped[bytes | None] = mapped_column(LargeBinary)  # uint8 [turns]: tries needed; None: not recorded
    moves: Mapped[bytes] = mapped_column(LargeBinary)
    move_hash: Mapped[int] = mapped_column(  # computed from the moves on insertion
        BigInteger, default=lambda context: hash_packed_moves(context.get_current_parameters()["moves"])
    )
    seconds: Mapped[float | None] = mapped_column(FiniteFloat)
    detail: Mapped[dict[str, Any] | None] = mapped_column(Json)


class IllegalAttempt(Base):
    """A generated text that was not a legal move. Only turns that needed a retry have rows."""

    __tablename__ = "illegal_attempt"
    __table_args__ = get_bulk_table_args()
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    unit: Mapped[int] = mapped_column(primary_key=True)
    ply: Mapped[int] = mapped_column(SmallInt, primary_key=True)
    number: Mapped[int] = mapped_column(SmallInt, primary_key=True)
    attempt_id: Mapped[UUID]
    text: Mapped[str] = mapped_column(ModelText(32))


class RatingRecord(Base):
    """An estimated rating of a player in a pool of games."""

    __tablename__ = "rating"
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    unit: Mapped[int] = mapped_column(primary_key=True)
    player: Mapped[str] = mapped_column(String(255), primary_key=True)
    attempt_id: Mapped[UUID]
    estimator: Mapped[str] = mapped_column(String(64))
    rating: Mapped[float | None] = mapped_column(FiniteFloat)  # None: all games won or lost, so only a bound is known
    low: Mapped[float | None] = mapped_column(FiniteFloat)
    high: Mapped[float | None] = mapped_column(FiniteFloat)
    games: Mapped[int]
    detail: Mapped[dict[str, Any] | None] = mapped_column(Json)


class Prediction(Base):
    """One predicted quantity for one item, such as a move for a puzzle or a value for a position."""

    __tablename__ = "prediction"
    __table_args__ = get_bulk_table_args()
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    unit: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    attempt_id: Mapped[UUID]
    text: Mapped[str | None] = mapped_column(Text)
    value: Mapped[float | None] = mapped_column(FiniteFloat)
    detail: Mapped[dict[str, Any] | None] = mapped_column(Json)


class MetricPoint(Base):
    """One value of one named metric at one step."""

    __tablename__ = "metric_point"
    __table_args__ = get_bulk_table_args()
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    unit: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    attempt_id: Mapped[UUID]
    value: Mapped[float] = mapped_column(FiniteFloat)


class Statistic(Base):
    """The result of a test or an estimate for one unit: value, interval, p-value and sample size."""

    __tablename__ = "statistic"
    __table_args__ = get_bulk_table_args(check_constraint("p", "p >= 0 AND p <= 1"), check_constraint("n", "n >= 0"))
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    unit: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    attempt_id: Mapped[UUID]
    value: Mapped[float | None] = mapped_column(FiniteFloat)
    low: Mapped[float | None] = mapped_column(FiniteFloat)
    high: Mapped[float | None] = mapped_column(FiniteFloat)
    p: Mapped[float | None] = mapped_column(FiniteFloat)
    n: Mapped[int | None]
    detail: Mapped[dict[str, Any] | None] = mapped_column(Json)


Index("ix_game_termination", Game.termination)
