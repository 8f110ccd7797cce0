"""A kind of two files: does a capture make a capture on the next ply more likely? captures_kind.sql is its table.

chessreg query tests/kinds/captures_kind.sql
chessreg run tests/kinds/captures_kind.py --games 40
chessreg query "captures after captures"
"""

from itertools import pairwise

import chess
from pydantic import BaseModel, Field
from sqlalchemy import select

from chessreg.kinds import Kind, Spec, generator
from chessreg.registry.tables import Prediction


class CapturesSpec(Spec):
    games: int = Field(20, ge=1, description="random games")
    plies: int = Field(60, ge=2, description="plies of each")
    shuffles: int = Field(200, ge=1, description="orders of the plies that stand for chance")


class CapturesRow(BaseModel):
    captures: str  # a 1 for every ply that captures, else 0


class Captures(Kind):
    """Whether captures follow captures in random games."""

    name = "captures"
    example = "--games 10 --shuffles 50"
    tables = ("prediction", "statistic")
    spec = CapturesSpec
    columns = {"prediction": CapturesRow}

    def units(self, spec, inputs):
        return spec.games

    def run(self, task):
        for unit in task.units:
            drawn, board, captures = generator(task.spec.seed, "captures", unit), chess.Board(), ""
            while len(captures) < task.spec.plies and (moves := list(board.legal_moves)):
                move = drawn.choice(moves)
                captures += str(int(board.is_capture(move)))
                board.push(move)
            task.emit("prediction", unit, CapturesRow(captures=captures), item=unit, name="plies", value=len(captures))
            task.done(unit)

    def reduce(self, task):
        with task.inputs.database.read() as session:
            rows = session.scalars(select(Prediction).where(Prediction.run_id == task.run_id).order_by(Prediction.unit))
            games = [row.detail["captures"] for row in rows]
        drawn = generator(task.spec.seed, "captures", "shuffles")
        value, by_chance = share(games), []
        for _ in range(task.spec.shuffles):
            by_chance.append(share(["".join(drawn.permutation(list(game))) for game in games]))
        p = (1 + sum(other >= value for other in by_chance)) / (1 + len(by_chance))
        n = sum(game[:-1].count("1") for game in games)
        task.emit("statistic", task.resolved.units - 1, name="capture after capture", value=value, p=p, n=n)


def share(games):
    """Captures among the plies that follow a capture."""
    after = [later for game in games for earlier, later in pairwise(game) if earlier == "1"]
    return after.count("1") / max(len(after), 1)
