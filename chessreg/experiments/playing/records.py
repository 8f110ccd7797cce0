"""What a match leaves in the registry: the rows of its engine and of its games."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from chessreg.games.engines import EngineSpec, engine_identity
from chessreg.games.moves import pack
from chessreg.registry.identity import digest_of, short, uuid_of
from chessreg.registry.names import name_of

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from chessreg.experiments.playing.game import PlayedGame


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
