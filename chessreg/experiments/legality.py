"""`legality`: how often the move a model would write next is legal, by ply, on games it did not see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from chessreg.experiments.selection import GameSelection, select
from chessreg.jobs.inputs import Inputs
from chessreg.jobs.kind import Estimate, Kind
from chessreg.jobs.spec import CheckpointRef, How

if TYPE_CHECKING:
    import chess

    from chessreg.games.boardframe import BoardFrame
    from chessreg.jobs.task import Task
    from chessreg.models.decoding import DecodingSession

STRIDE_PLIES = 2  # White's turns, or Black's


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
        from chessreg.games.tokenizers import tokenizer
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
        from chessreg.experiments.editing.frames import frames_of_turns

        return frames_of_turns(row, inputs)


def walk(
    task: Task[LegalitySpec, LegalityHow], model: Any, pgn: Any, units: list[int], texts: list[str], places: np.ndarray
) -> None:
    """Go through these games together, turn by turn; at each turn write a move, judge it, and go on as the game did."""
    import chess

    from chessreg.models.sampling import sample_moves

    spec = task.spec
    moves = [[word.split(".")[-1] for word in text[1:].split()] for text in texts]
    boards = [chess.Board() for _ in texts]
    session: DecodingSession = model.session(len(texts))
    ply = 0
    while any(ply < len(played) for played in moves):
        active = [r for r, played in enumerate(moves) if ply < len(played)]
        if ply % STRIDE_PLIES == spec.black and ply // STRIDE_PLIES % spec.every == 0:
            prompts = [list(map(int, pgn.encode(pgn.prompt(moves[r][:ply])))) for r in active]
            room = [r for r, p in zip(active, prompts, strict=True) if len(p) + pgn.max_move_tokens < model.block_size]
            session.sync([prompts[active.index(r)] if r in room else session.tokens[r] for r in range(len(texts))])
            if room:
                written = sample_moves(session, pgn, [(0,)] * len(room), temperature=0.0, rows=room)
                masses = legal_masses(session, pgn, boards, room) if spec.mass else [None] * len(room)
                for r, sampled, mass in zip(room, written, masses, strict=True):
                    task.emit(
                        "trial",
                        units[r],
                        condition="clean",
                        sample=-ply - 1,  # greedy texts count down, one for each ply
                        intervention_id=None,
                        item=int(places[r]),
                        ply=ply,
                        fen=boards[r].fen(),
                        text=sampled.text[:32],
                        legal_original=pgn.parse(sampled.text, boards[r]) is not None,
                        legal_modified=None,
                        mass_original=mass,
                        mass_modified=None,
                    )
        for r in active:
            boards[r].push_san(moves[r][ply])
        ply += 1
        task.progress((units[0] + 1) / (task.units[-1] + 1), f"ply {ply}")


def legal_masses(session: DecodingSession, pgn: Any, boards: list[chess.Board], rows: list[int]) -> list[float]:
    """The exact probability that each row's next text is a legal move, 0 to 1."""
    from chessreg.models.legal import legal_move_mass, move_logprobs

    scored = move_logprobs(session, [boards[r] for r in rows], pgn, rows)
    return [min(legal_move_mass(row), 1.0) for row in scored]
