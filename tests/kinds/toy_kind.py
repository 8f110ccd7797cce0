"""A whole kind of experiment in one file: how often a random move from a random position gives check.

chessreg run tests/kinds/toy_kind.py --positions 20
chessreg query --sql "select checks, count(*) from toy group by checks order by checks"
"""

import time

import chess
from pydantic import BaseModel, Field

from chessreg.kinds import Arrow, BoardFrame, Kind, RunEstimate, Spec, generator


class ToySpec(Spec):
    positions: int = Field(10, ge=1, description="random positions to look at")
    plies: int = Field(12, ge=0, description="random plies before each")
    pause: float = Field(0.0, description="seconds to wait at each position")


class ToyRow(BaseModel):
    fen: str
    move: str
    checks: bool


class Toy(Kind):
    """How often a random move from a random position gives check."""

    name = "toy"
    example = "--positions 20"
    tables = ("score",)
    spec = ToySpec
    columns = {"score": ToyRow}

    def units(self, spec, inputs):
        return spec.positions

    def estimate(self, spec, inputs):
        return RunEstimate(rows={"score": spec.positions})

    def run(self, task):
        for unit in task.units:
            random, board = generator(task.spec.seed, "toy", unit), chess.Board()
            for _ in range(task.spec.plies):
                board.push(random.choice(list(board.legal_moves)))
            move = random.choice(list(board.legal_moves))
            row = ToyRow(fen=board.fen(), move=move.uci(), checks=board.gives_check(move))
            task.emit("score", unit, row, split="toy", item=unit, n=1, correct=int(row.checks))
            time.sleep(task.spec.pause)
            task.done(unit)

    def board_views(self, row, inputs):
        move = chess.Move.from_uci(row["move"])
        arrow = Arrow(move.from_square, move.to_square, label=row["move"])
        return [BoardFrame.from_board(chess.Board(row["fen"]), arrows=(arrow,))]
