"""What a file with a kind of experiment needs: `from chessreg.kinds import Kind, Spec`.

`Kind` is subclassed, `Spec` holds the settings that decide the result and `ExecutionOptions` those that do not; `Ref`
marks a setting that names an input.

A kind that reads games has a spec that is a `GameSelection`: `games, rows = select(spec, inputs)` gives the dataset and
the rows of the games that it names, `games.moves(rows)` their packed moves, and `unpack_moves` those of one game.
CONTRIBUTING.md shows one from start to end.
"""

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.experiments.settings.games import GameBatches, GameSelection, select_games
from chessreg.games.boards.boardframe import Arrow, BoardFrame, Mark
from chessreg.games.boards.moves import unpack_moves
from chessreg.noise import generator, uniform
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import (
    CheckpointRef,
    DatasetRef,
    ExecutionOptions,
    Ref,
    Settings,
    Spec,
)
from chessreg.runs.task import Task

__all__ = [
    "Arrow",
    "BadInputError",
    "BoardFrame",
    "CheckpointRef",
    "ChessregError",
    "DatasetRef",
    "Estimate",
    "ExecutionOptions",
    "GameBatches",
    "GameSelection",
    "Inputs",
    "Kind",
    "Mark",
    "NotFoundError",
    "Ref",
    "Settings",
    "Spec",
    "Task",
    "generator",
    "select_games",
    "uniform",
    "unpack_moves",
]
