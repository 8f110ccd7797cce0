"""`legality`: how often the move a model would write next is legal, by ply, on games it did not see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from chessreg.experiments.play.first_tries import STRIDE_PLIES, first_tries
from chessreg.experiments.settings.games import GameSelection, select
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import CheckpointRef, How

if TYPE_CHECKING:
    from chessreg.encodings.tokenizers import Tokenizer
    from chessreg.games.boardframe import BoardFrame
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.task import Task


class LegalitySpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    games: int = Field(500, ge=1, description="games, the first in file order")
    black: bool = Field(False, description="look at Black's turns instead of White's")
    every: int = Field(1, ge=1, description="look at every Nth of these turns")
    mass: bool = Field(False, description="also the exact probability of a legal move (canonical spelling)")


class LegalityHow(How):
    batch_games: int = Field(32, ge=1, description="games that go through the model together")


class Legality(Kind):
    """First-try legal rate on given games: the greedy text at every turn, and the exact legal move mass.

    The legal-move rate of Karvonen 2024, section 2.2, on games of a dataset instead of games against an engine. One
    unit is one game; its texts are written turn by turn on a kept key-value cache.
    """

    name = "legality"
    example = "--checkpoint reference --dataset sample:test --games 6 --every 4"
    families = ("trial",)
    spec = LegalitySpec
    how = LegalityHow
    queries = ("legal moves by ply",)

    def units(self, spec: LegalitySpec, inputs: Inputs) -> int:
        inputs.checkpoint(spec.checkpoint)
        return len(select(spec, inputs)[1])

    def estimate(self, spec: LegalitySpec, inputs: Inputs) -> Estimate:
        games, places = select(spec, inputs)
        plies = games.table(["plies"]).column("plies").to_numpy()[places].astype(np.int64)
        return Estimate({"trial": int((plies // (STRIDE_PLIES * spec.every) + 1).sum())})

    def run(self, task: Task[LegalitySpec, LegalityHow]) -> None:
        from chessreg.encodings.tokenizers import tokenizer
        from chessreg.models.devices import prepare
        from chessreg.models.language_model import LanguageModel

        _, folder = task.inputs.checkpoint(task.spec.checkpoint)
        model = LanguageModel.load(folder, device=prepare(task.how.device, task.how.threads))
        pgn = tokenizer(model.info.tokenizer)
        games, places = select(task.spec, task.inputs)
        for start in range(0, len(task.units), task.how.batch_games):
            units = task.units[start : start + task.how.batch_games]
            walk(task, model, pgn, units, games.texts(places[units]), places[units])
            for unit in units:
                task.done(unit)

    def frames(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        from chessreg.experiments.edit.frames import frames_of_turns

        return frames_of_turns(row, inputs)


def walk(
    task: Task[LegalitySpec, LegalityHow],
    model: LanguageModel,
    pgn: Tokenizer,
    units: list[int],
    texts: list[str],
    places: np.ndarray,
) -> None:
    """Judge what the model writes at the turns of these games."""
    spec = task.spec
    for ply, turns in enumerate(first_tries(model, pgn, texts, black=spec.black, every=spec.every, mass=spec.mass)):
        for turn in turns:
            task.emit(
                "trial",
                units[turn.game],
                condition="clean",
                sample=-ply - 1,  # greedy texts count down, one for each ply
                intervention_id=None,
                item=int(places[turn.game]),
                ply=ply,
                fen=turn.board.fen(),
                text=turn.text[:32],
                legal_original=turn.move is not None,
                legal_modified=None,
                mass_original=turn.mass,
                mass_modified=None,
            )
        task.progress((units[0] + 1) / (task.units[-1] + 1), f"ply {ply}")
