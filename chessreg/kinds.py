"""The public interface for experiment kinds: `from chessreg.kinds import Kind, Spec`.

- **A kind.** Subclass `Kind`, or `Probe` for a probe that is fitted on cached activations. `Spec` holds the settings
  that determine the result, `ExecutionOptions` all others. A setting annotated with `Ref` (or `CheckpointRef`,
  `DatasetRef`) names an input.
- **Games.** `GameSelection` is a spec with `--dataset` and `--games`. `games, rows = select_games(spec, inputs)`
  returns the dataset and the rows of the selected games; `games.moves(rows)` returns their packed moves, and
  `unpack_moves` converts the moves of one game.
- **Models and activations.** `task.model`, `task.cache`, `task.labels`, `task.probe` and `task.vector` load inputs by
  their reference.
- **Edits.** `ResidualEdit` changes the residual stream of `task.model(…)`; `make_class_directions` returns a probe's
  directions.

CONTRIBUTING.md has complete examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.experiments.probe import Probe, ProbeOptions, ProbeScore, ProbeSpec
from chessreg.experiments.settings.games import GameBatches, GameSelection, select_games
from chessreg.games.boards.boardframe import Arrow, BoardFrame, Mark
from chessreg.games.boards.moves import unpack_moves
from chessreg.noise import generator, uniform
from chessreg.runs.activations import CachedActivations
from chessreg.runs.fitted import Direction, FittedProbe, make_class_directions
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import (
    CheckpointRef,
    DatasetRef,
    ExecutionOptions,
    Layers,
    Ref,
    Settings,
    Spec,
)
from chessreg.runs.task import Task

if TYPE_CHECKING:
    from chessreg.experiments.probe.data import ProbeData
    from chessreg.experiments.probe.training import ProbeTraining
    from chessreg.models.edits import ResidualEdit

__all__ = [
    "Arrow",
    "BadInputError",
    "BoardFrame",
    "CachedActivations",
    "CheckpointRef",
    "ChessregError",
    "DatasetRef",
    "Direction",
    "ExecutionOptions",
    "FittedProbe",
    "GameBatches",
    "GameSelection",
    "Inputs",
    "Kind",
    "Layers",
    "Mark",
    "NotFoundError",
    "Probe",
    "ProbeData",
    "ProbeOptions",
    "ProbeScore",
    "ProbeSpec",
    "ProbeTraining",
    "Ref",
    "ResidualEdit",
    "RunEstimate",
    "Settings",
    "Spec",
    "Task",
    "generator",
    "make_class_directions",
    "select_games",
    "uniform",
    "unpack_moves",
]

_IMPORT_TORCH = {
    "ProbeData": "chessreg.experiments.probe.data",
    "ProbeTraining": "chessreg.experiments.probe.training",
    "ResidualEdit": "chessreg.models.edits",
}


def __getattr__(name: str) -> Any:
    """Import the classes that need torch on first use, so that `--help` of a user's kind does not import it."""
    from importlib import import_module

    if name in _IMPORT_TORCH:
        return getattr(import_module(_IMPORT_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
