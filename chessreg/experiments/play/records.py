"""What a match leaves in the registry: the rows of its engine and of its games."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from chessreg.errors import BadInputError
from chessreg.games.engines import EngineSpec, engine_identity
from chessreg.games.moves import pack
from chessreg.registry import tables
from chessreg.registry.identity import digest_of, short, uuid_of
from chessreg.registry.names import name_of

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from chessreg.experiments.play.game import PlayedGame
    from chessreg.runs.task import Task


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
