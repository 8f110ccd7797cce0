"""The work behind `edit`: batches of states through clean, edited and control models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import chess
import numpy as np
import torch

from chessreg.experiments.edit import EditHow, EditRow, EditSpec, State, intervention_row
from chessreg.experiments.probe import best_layer, load_probe
from chessreg.games.tokenizers import tokenizer
from chessreg.jobs.task import Task
from chessreg.models.devices import prepare
from chessreg.models.edits import Edit
from chessreg.models.language_model import LanguageModel
from chessreg.models.legal import text_logprobs
from chessreg.models.sampling import sample_moves
from chessreg.noise import generator


@dataclass(frozen=True)
class Removal:
    """A state whose piece about to move is taken off: the clean move, the piece, and the board without it."""

    state: State
    move: chess.Move
    piece: chess.Piece
    modified: chess.Board

    @property
    def boards(self) -> tuple[chess.Board, chess.Board]:
        return self.state.board, self.modified


class Editor:
    """A model with its probes, ready to edit states for one task."""

    def __init__(self, task: Task[EditSpec, EditHow]) -> None:
        self.task, self.spec = task, task.spec
        checkpoint, folder = task.inputs.checkpoint(self.spec.checkpoint)
        self.model = LanguageModel.load(folder, device=prepare(task.how.device, task.how.threads))
        self.tokenizer = tokenizer(self.model.info.tokenizer)
        self.layers = self.spec.layers or (best_layer(task.inputs, self.spec.probe),)
        self.probes = {layer: load_probe(task.inputs, self.spec.probe, layer).weight for layer in self.layers}
        recipes = [f"{self.spec.probe}/layer-{layer}" for layer in self.layers]
        self.interventions: dict[str, Any] = {"clean": None}
        for name, source, of in [
            ("edit", "probe:piece", recipes),
            *((f"random-{k}", "random", [f"seed:{self.spec.seed}/{k}"]) for k in range(self.spec.controls)),
        ]:
            row = intervention_row(self.spec, checkpoint.id, self.layers, source, of)
            task.record("intervention", **row)
            self.interventions[name] = row["id"]

    def batch(self, states: list[State]) -> None:
        """All rows of these states."""
        if not states:
            return
        prompts = [[int(i) for i in self.tokenizer.encode(state.prompt)] for state in states]
        session = self.model.session(len(states))
        session.feed(prompts)
        greedy = sample_moves(session, self.tokenizer, [(0,)] * len(states), temperature=0.0)
        removals, rows = [], []
        for row, (state, sampled) in enumerate(zip(states, greedy, strict=True)):
            move = self.tokenizer.parse(sampled.text, state.board)
            reason = "illegal" if move is None else "king" if king_moves(state.board, move) else None
            if move is None or reason:
                self.skipped(state, sampled.text, move, reason or "illegal")
            else:
                removals.append(removal(state, move))
                rows.append(row)
        if not removals:
            return
        session.select(rows)
        self.condition("clean", session, removals)
        kept = [prompts[row] for row in rows]
        for name in [n for n in self.interventions if n != "clean"]:
            edited = self.model.session(len(removals), edits=self.edits(name, removals))
            edited.feed(kept)
            self.condition(name, edited, removals)

    def edits(self, name: str, removals: Sequence[Removal]) -> list[Edit]:
        """One Edit per layer, with a unit direction of its own for each state."""
        made = []
        for layer, weight in self.probes.items():
            directions = np.stack([self.direction(name, layer, weight, r) for r in removals])
            made.append(Edit(layer, torch.from_numpy(directions), self.spec.scale, self.spec.positions, op="subtract"))
        return made

    def direction(self, name: str, layer: int, weight: np.ndarray, removed: Removal) -> np.ndarray:
        """Unit vector float32 [d_model]: the probe's for the piece on its square, or a seeded random one."""
        vector: np.ndarray
        if name != "edit":
            noise = generator(self.spec.seed, name, layer, removed.state.unit)
            vector = noise.standard_normal(len(weight))
        else:
            square = removed.move.from_square
            kind = 6 + removed.piece.piece_type * (1 if removed.piece.color else -1)
            vector = weight[:, square, kind] - self.spec.blank * weight[:, square, 6]
        return (vector / np.linalg.norm(vector)).astype(np.float32)

    def condition(self, name: str, session: Any, removals: Sequence[Removal]) -> None:
        """Greedy text, exact legal mass on both boards and sampled texts of every state under one condition."""
        spec = self.spec
        masses = self.masses(session, removals)
        greedy = sample_moves(session, self.tokenizer, [(0,)] * len(removals), temperature=0.0)
        for removed, mass, sampled in zip(removals, masses, greedy, strict=True):
            detail = EditRow(
                piece=removed.piece.symbol(),
                square=chess.square_name(removed.move.from_square),
                move=removed.move.uci(),
            )
            self.emit(name, removed, -1, sampled.text, mass, detail)
        if not spec.samples:
            return
        session.fork(spec.samples)
        keys = [(spec.seed, "edit", r.state.unit, sample) for r in removals for sample in range(spec.samples)]
        drawn = sample_moves(session, self.tokenizer, keys, temperature=spec.temperature)
        for place, sampled in enumerate(drawn):
            self.emit(name, removals[place // spec.samples], place % spec.samples, sampled.text, None, None)

    def masses(self, session: Any, removals: Sequence[Removal]) -> list[tuple[float, float]]:
        """The model's exact probability of a legal move on the original and on the modified board, per state."""
        spelt = [
            [{self.tokenizer.spell(board, move) for move in board.legal_moves} for board in r.boards] for r in removals
        ]
        texts = [sorted(original | modified) for original, modified in spelt]
        scored = text_logprobs(session, texts, self.tokenizer)
        found = []
        for row, values, (original, modified) in zip(texts, scored, spelt, strict=True):
            probability = dict(zip(row, np.exp(values).tolist(), strict=True))
            found.append((sum(probability[t] for t in original), sum(probability[t] for t in modified)))
        return found

    def emit(
        self,
        name: str,
        removed: Removal,
        sample: int,
        text: str,
        mass: tuple[float, float] | None,
        detail: EditRow | None,
    ) -> None:
        state = removed.state
        self.task.emit(
            "trial",
            state.unit,
            detail,
            condition=name,
            sample=sample,
            intervention_id=self.interventions[name],
            item=state.item,
            ply=state.ply,
            fen=state.board.fen() if name == "clean" and sample == -1 else None,
            text=text[:32],
            legal_original=self.tokenizer.parse(text, state.board) is not None,
            legal_modified=self.tokenizer.parse(text, removed.modified) is not None,
            mass_original=min(mass[0], 1.0) if mass else None,
            mass_modified=min(mass[1], 1.0) if mass else None,
        )

    def skipped(self, state: State, text: str, move: chess.Move | None, reason: str) -> None:
        self.task.emit(
            "trial",
            state.unit,
            EditRow(move=move.uci() if move else None, skipped=reason),
            condition="skipped",
            sample=-1,
            intervention_id=None,
            item=state.item,
            ply=state.ply,
            fen=state.board.fen(),
            text=text[:32],
            legal_original=move is not None,
            legal_modified=None,
            mass_original=None,
            mass_modified=None,
        )


def king_moves(board: chess.Board, move: chess.Move) -> bool:
    return board.piece_type_at(move.from_square) == chess.KING


def removal(state: State, move: chess.Move) -> Removal:
    """The state without the piece about to move, nothing else changed (Karvonen specification 6.1, step 5)."""
    modified = state.board.copy(stack=False)
    piece = modified.remove_piece_at(move.from_square)
    assert piece
    return Removal(state, move, piece, modified)
