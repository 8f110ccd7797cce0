"""The work behind `edit`: batches of states through the clean, the edited and the control models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import chess
import numpy as np
from torch import Tensor

from chessreg.encodings.spellings import spellings
from chessreg.experiments.edit.model import BLACK, CLEAN, EditedModel, intervention_row
from chessreg.experiments.edit.spec import EditHow, EditRow, EditSpec
from chessreg.experiments.edit.states import Removal, State, reason_to_skip, removal, selection_split
from chessreg.models.devices import prepare
from chessreg.models.edits import Edit
from chessreg.models.legal import Mass, Trie, accepted_mass, sequence_logprobs
from chessreg.models.sampling import SampledText, sample_trees
from chessreg.models.tree import Beginning, Continuations
from chessreg.runs.task import Task

GREEDY = -1


@dataclass(frozen=True)
class Spelt:
    """The texts of a removal's two boards: canonical ones as token ids, and all spellings."""

    canonical: tuple[frozenset[Beginning], frozenset[Beginning]]
    every: Trie  # of the original and the modified board; empty when they are not asked for


class Editor:
    """An edited model at work for one task: every condition of a batch of states, and their rows."""

    def __init__(self, task: Task[EditSpec, EditHow]) -> None:
        self.task, self.spec = task, task.spec
        self.edited = EditedModel(task.spec, task.inputs, prepare(task.how.device, task.how.threads))
        self.model, self.tokenizer = self.edited.model, self.edited.tokenizer
        self.interventions: dict[str, UUID | None] = {CLEAN: None}
        for condition in self.edited.conditions():
            row = intervention_row(self.edited, condition)
            task.record("intervention", **row)
            self.interventions[condition.name] = row["id"]

    def batch(self, states: Sequence[State]) -> None:
        """All rows of these states."""
        prompts = [self.tokenizer.encode(state.prompt).tolist() for state in states]
        room = self.model.block_size - self.spec.max_characters
        for state, prompt in zip(states, prompts, strict=True):
            if len(prompt) > room:
                self.skipped(state, "", None, "too long")
        fitting = [i for i, prompt in enumerate(prompts) if len(prompt) <= room]
        if not fitting:
            return
        states, prompts = [states[i] for i in fitting], [prompts[i] for i in fitting]
        session = self.model.session(len(states))
        session.feed(prompts)
        trees = Continuations(session)
        # the canonical moves of the original board first: most texts, the greedy one among them, are then there
        trees.grow([[ids[:-1] for ids in self.canonical(state.board)] for state in states])
        greedy = self.write(trees, [[(0,)]] * len(states), [0.0])
        removals, rows = [], []
        for row, (state, [sampled]) in enumerate(zip(states, greedy, strict=True)):
            move = self.tokenizer.parse(sampled.text, state.board)
            reason = reason_to_skip(self.spec, state.board, move)
            if move is None or reason:
                self.skipped(state, sampled.text, move, reason or "illegal")
            else:
                removals.append(removal(state, move))
                rows.append(row)
        if not removals:
            return
        spelt = [self.spell(removed) for removed in removals]
        session.select(rows)
        self.condition(CLEAN, trees.take(rows), removals, spelt)
        kept = [prompts[row] for row in rows]
        real: list[Edit] = []
        for condition in self.edited.conditions():
            if condition.source == "edit":
                edits = real = self.edited.edits(condition.setting, kept, removals)
            else:
                edits = self.edited.controls(condition, removals, real)
            branch = Continuations(session.branch(edits))
            self.condition(condition.name, branch, removals, spelt, edits, condition.setting.number)

    def canonical(self, board: chess.Board) -> frozenset[Beginning]:
        texts = (self.tokenizer.spell(board, move) for move in board.legal_moves)
        return frozenset(tuple(self.tokenizer.encode(text).tolist()) for text in texts)

    def spell(self, removed: Removal) -> Spelt:
        original, modified = (self.canonical(board) for board in removed.boards)
        alphabet = self.tokenizer.decode(np.arange(self.tokenizer.size))
        every = [spellings(board, alphabet) for board in removed.boards] if self.spec.spellings else []
        return Spelt((original, modified), Trie.of(every, self.tokenizer))

    def write(
        self, trees: Continuations, keys: Sequence[Sequence[tuple[int | str, ...]]], temperature: Sequence[float]
    ) -> list[list[SampledText]]:
        return sample_trees(trees, self.tokenizer, keys, temperature=temperature, max_tokens=self.spec.max_characters)

    def condition(
        self,
        name: str,
        trees: Continuations,
        removals: Sequence[Removal],
        spelt: Sequence[Spelt],
        edits: Sequence[Edit] = (),
        setting: int | None = None,
    ) -> None:
        """Exact legal mass on both boards, greedy text and sampled texts of every state under one condition."""
        spec = self.spec
        masses = canonical_masses(trees, spelt)
        every: list[list[Mass]] = [[]] * len(removals)
        if spec.spellings:
            tries = [texts.every for texts in spelt]
            every = accepted_mass(trees, tries, self.tokenizer, spec.max_characters, sets=2)
        keys = [
            [(0,), *((spec.seed, "edit", removed.state.unit, sample) for sample in range(spec.samples))]
            for removed in removals
        ]
        texts = self.write(trees, keys, [0.0, *[spec.temperature] * spec.samples])
        for row, removed in enumerate(removals):
            detail = EditRow(
                piece=removed.piece.symbol(),
                square=chess.square_name(removed.square),
                move=removed.move.uci(),
                position=removed.state.position,
                half=selection_split(spec, removed.state.item),
                setting=setting,
                scales=[scale_of(edit, row) for edit in edits if edit.positions != BLACK] or None,
            )
            if every[row]:
                original, modified = every[row]
                detail.spelled_original, detail.spelled_modified = original.found, modified.found
                detail.spelled_missed = max(original.missed, modified.missed)
            self.emit(name, removed, GREEDY, texts[row][0].text, masses[row], detail)
            for sample, sampled in enumerate(texts[row][1:]):
                self.emit(name, removed, sample, sampled.text)

    def emit(
        self,
        name: str,
        removed: Removal,
        sample: int,
        text: str,
        mass: tuple[float, float] | tuple[None, None] = (None, None),
        detail: EditRow | None = None,
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
            fen=state.board.fen() if name == CLEAN and sample == GREEDY else None,
            text=text[:32],
            legal_original=self.tokenizer.parse(text, state.board) is not None,
            legal_modified=self.tokenizer.parse(text, removed.modified) is not None,
            mass_original=mass[0],
            mass_modified=mass[1],
        )

    def skipped(self, state: State, text: str, move: chess.Move | None, reason: str) -> None:
        self.task.emit(
            "trial",
            state.unit,
            EditRow(
                move=move.uci() if move else None,
                skipped=reason,
                position=state.position,
                half=selection_split(self.spec, state.item),
            ),
            condition="skipped",
            sample=GREEDY,
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


def canonical_masses(trees: Continuations, spelt: Sequence[Spelt]) -> list[tuple[float, float]]:
    """The exact probability of a legal move in canonical SAN, on the original and on the modified board, per state."""
    boards = [texts.canonical for texts in spelt]
    found = canonical_probabilities(trees, boards)
    return [(mass_of(p, original), mass_of(p, modified)) for p, (original, modified) in zip(found, boards, strict=True)]


def canonical_probabilities(
    trees: Continuations, boards: Sequence[tuple[frozenset[Beginning], ...]]
) -> list[dict[Beginning, float]]:
    """Text as token ids → its exact probability, of every text of any board of each row."""
    rows = [sorted(frozenset[Beginning]().union(*texts)) for texts in boards]
    scored = sequence_logprobs(trees, rows)
    return [dict(zip(row, np.exp(values).tolist(), strict=True)) for row, values in zip(rows, scored, strict=True)]


def mass_of(probabilities: Mapping[Beginning, float], texts: frozenset[Beginning]) -> float:
    """The probability of writing one of these texts."""
    return min(sum(probabilities[ids] for ids in sorted(texts)), 1.0)


def scale_of(edit: Edit, row: int) -> float:
    """The scale of an edit for one of its rows."""
    return float(edit.scale[row] if isinstance(edit.scale, Tensor) and edit.scale.dim() else edit.scale)
