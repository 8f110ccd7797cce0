"""`edit`: take a piece off the board inside the model, and see whether its moves become legal on the other board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from chessreg.errors import BadInputError
from chessreg.experiments.selection import GameSelection, select
from chessreg.jobs.inputs import Inputs
from chessreg.jobs.kind import Estimate, Kind
from chessreg.jobs.spec import CheckpointRef, How, Ref
from chessreg.noise import generator
from chessreg.registry.identity import digest_of, uuid_of

if TYPE_CHECKING:
    import chess

    from chessreg.games.boardframe import BoardFrame
    from chessreg.jobs.task import Task

MOVE_WHITE = "dots"


class EditSpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    probe: Annotated[str, Ref("run:probe")] = Field(description="piece probes of that model: the directions")
    games: int = Field(200, ge=1, description="games to take states from, the first in file order (Karvonen: 200)")
    per_game: int = Field(30, ge=1, description="states of each game (Karvonen: White's first 30 moves)")
    last_move: int = Field(30, ge=1, description="states are among White's moves 1 to this one")
    layers: tuple[int, ...] = Field((), description="layers to edit, 0-based; none: the one that validation chooses")
    scale: float = Field(1.5, description="length of what is subtracted (Karvonen Table 6: 1.5 and 2.0)")
    blank: float = Field(0.0, description="coefficient of the empty-square direction, taken off the piece's")
    positions: Literal["all", "last"] = Field("all", description="positions of the sequence that are edited")
    controls: int = Field(1, ge=0, description="random directions of the same length, per state")
    samples: int = Field(5, ge=0, description="texts drawn per condition (Karvonen: 5)")
    temperature: float = Field(1.0, gt=0, description="of the drawn texts")


class EditHow(How):
    batch_states: int = Field(16, ge=1, description="states in one batch")


class EditRow(BaseModel):
    """The columns that edits add to their trials; on the greedy row of each condition."""

    piece: str | None = None
    square: str | None = None
    move: str | None = None  # the clean model's move, UCI
    skipped: str | None = None


@dataclass(frozen=True)
class State:
    """One position with White to move."""

    unit: int
    item: int
    ply: int
    prompt: str
    board: chess.Board


class Edit(Kind):
    """Board-state edits: subtract the probe's direction for the piece about to move; legal moves on either board.

    Karvonen 2024, section 4.1 and Table 2. A state whose clean greedy text is no legal move, or moves the king, is
    recorded as skipped. Beside five sampled texts stands the exact probability of a legal move on the original and on
    the modified board (canonical spelling). One unit is one state.
    """

    name = "edit"
    example = "--checkpoint reference --probe reference-board --dataset sample:test --games 5 --per-game 2"
    families = ("trial",)
    spec = EditSpec
    how = EditHow
    detail = {"trial": EditRow}  # noqa: RUF012
    queries = ("board intervention legality",)

    def units(self, spec: EditSpec, inputs: Inputs) -> int:
        check(spec, inputs)
        return len(select(spec, inputs)[1]) * spec.per_game

    def estimate(self, spec: EditSpec, inputs: Inputs) -> Estimate:
        units = self.units(spec, inputs)
        return Estimate({"trial": units * (2 + spec.controls) * (1 + spec.samples)})

    def run(self, task: Task[EditSpec, EditHow]) -> None:
        from chessreg.experiments.editing.editor import Editor

        editor = Editor(task)
        games, places = select(task.spec, task.inputs)
        for start in range(0, len(task.units), task.how.batch_states):
            units = task.units[start : start + task.how.batch_states]
            editor.batch(states(task.spec, games, places, units))
            for unit in units:
                task.done(unit)

    def frames(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        from chessreg.experiments.editing.frames import frames_of_state

        return frames_of_state(row, inputs)


def check(spec: EditSpec, inputs: Inputs) -> None:
    """Raises BadInputError when probe and model do not go together."""
    from chessreg.registry import tables

    checkpoint, _ = inputs.checkpoint(spec.checkpoint)
    probes = inputs.rows(tables.Probe, inputs.run(spec.probe, "probe"))
    if probes[0].checkpoint_id != checkpoint.id:
        raise BadInputError("--probe was fitted on another checkpoint than --checkpoint", "chessreg probe list")
    if probes[0].label != "piece":
        raise BadInputError(f"an edit needs probes of label piece, these read {probes[0].label}")
    if spec.per_game > spec.last_move:
        raise BadInputError(f"a game has {spec.last_move} states at most, --per-game asks for {spec.per_game}")


def states(spec: EditSpec, games: Any, places: np.ndarray, units: Sequence[int]) -> list[State]:
    """The states of these units. Unit u is state u % per_game of game u // per_game; a short game has fewer."""
    import chess

    from chessreg.games.positions import find

    found = []
    for unit in units:
        item = int(places[unit // spec.per_game])
        text = games.texts(np.array([item]))[0]
        characters, plies = find(MOVE_WHITE, text)
        count = min(spec.last_move, len(characters))
        order = generator(spec.seed, "edit states", item).permutation(count) if spec.per_game < spec.last_move else None
        chosen = np.sort(order[: spec.per_game]) if order is not None else np.arange(count)
        if unit % spec.per_game >= len(chosen):
            continue
        number = int(chosen[unit % spec.per_game])
        ply, board = int(plies[number]), chess.Board()
        for san in text[1:].split()[:ply]:
            board.push_san(san.split(".")[-1])
        found.append(State(unit, item, ply, text[: characters[number] + 1], board))
    return found


def intervention_row(
    spec: EditSpec, checkpoint_id: Any, layers: Sequence[int], source: str, recipes: Sequence[str]
) -> dict[str, Any]:
    """A row of the intervention table; its id derives from the rest."""
    row = {
        "checkpoint_id": checkpoint_id.hex,
        "source": source,
        "recipes": list(recipes),
        "layers": list(layers),
        "scale": spec.scale,
        "scale_rule": "single_scale",
        "positions": spec.positions,
        "detail": {"blank": spec.blank},
    }
    return {"id": uuid_of(digest_of(row)), **row}
