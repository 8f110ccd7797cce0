"""The work of kind `edit`: batches of states in the clean, the edited and the control models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import chess
import numpy as np
from torch import Tensor

from chessreg.experiments.edit.model import PieceRemovals
from chessreg.experiments.edit.spec import BLACK_SEGMENTS, CLEAN, EditOptions, EditRow, EditSpec, TrialRow
from chessreg.experiments.edit.states import Removal, State, assign_half, explain_skip, remove_moving_piece
from chessreg.models.decoding.legal import Mass, Trie, compute_accepted_masses, score_sequences
from chessreg.models.decoding.sampling import Key, SampledText, sample_trees
from chessreg.models.decoding.session import open_decoding_session
from chessreg.models.decoding.tree import Prefix, TokenTree
from chessreg.models.devices import prepare_device
from chessreg.models.edits import ResidualEdit
from chessreg.runs.task import Task
from chessreg.steering.directions import EMPTY

GREEDY_SAMPLE = -1
MIN_PROBABILITY = 1e-300  # floor of a probability in the edited model, which keeps a divergence finite


@dataclass(frozen=True)
class RemovalAnswers:
    """The canonical and the accepted texts of the moves on the two boards of a removal, as token ids."""

    canonical: tuple[frozenset[Prefix], frozenset[Prefix]]  # of the original and the modified board
    shared_texts: tuple[tuple[Prefix, ...], ...]  # for each move that is legal on both boards, its texts on either
    accepted_texts: Trie  # of both boards; empty without the setting `spellings`


class Editor:
    """The edited model of one task: runs every condition of a batch of states and emits their rows."""

    def __init__(self, task: Task[EditSpec, EditOptions]) -> None:
        self.task, self.spec = task, task.spec
        self.removals = PieceRemovals(task.spec, task.inputs, prepare_device(task.options.device, task.options.threads))
        self.model, self.encoding = self.removals.model, self.removals.encoding
        self.interventions = self.removals.record(task)

    def emit_states(self, states: Sequence[State]) -> None:
        """Emit all rows of these states."""
        prompts = [state.prompt for state in states]
        history = self.encoding.content == "history"
        room = self.model.block_size - (self.spec.max_tokens if history else self.encoding.max_move_tokens - 1)
        for state, prompt in zip(states, prompts, strict=True):
            if len(prompt) > room:
                self.emit_skipped(state, None, None, "too long")
        fitting_rows = [i for i, prompt in enumerate(prompts) if len(prompt) <= room]
        if not fitting_rows:
            return
        states, prompts = [states[i] for i in fitting_rows], [prompts[i] for i in fitting_rows]
        session = open_decoding_session(self.model, len(states))
        session.feed(prompts)
        trees = TokenTree(session)
        # The canonical moves of the original board come first: they include most texts, also the greedy one. The order
        # of a set of token ids is deterministic; another order of nodes would change the last bits.
        boards = [state.board for state in states]
        canonical = [frozenset(self.encoding.answers(board).values()) for board in boards]
        trees.grow([[ids[:-1] for ids in move_ids] for move_ids in canonical])
        greedy = self.write(trees, boards, [[(0,)]] * len(states), [0.0])
        removals, rows = [], []
        for row, (state, [greedy_text]) in enumerate(zip(states, greedy, strict=True)):
            move = self.encoding.parse(greedy_text.tokens, state.board)
            reason = explain_skip(self.spec, state.board, move)
            if move is None or reason:
                self.emit_skipped(state, greedy_text, move, reason or "illegal")
            elif not self.removals.has_directions(removal := remove_moving_piece(state, move)):
                self.emit_skipped(state, greedy_text, move, "no direction")
            else:
                removals.append(removal)
                rows.append(row)
        if not removals:
            return
        answers = [self.list_removal_answers(removal) for removal in removals]
        session.select(rows)
        clean = self.emit_condition(CLEAN, trees.take(rows), removals, answers)
        edited_prompts = [prompts[row] for row in rows]
        real: list[ResidualEdit] = []
        for condition in self.removals.list_conditions():
            edits = self.removals.build_edits(
                condition, edited_prompts, removals, None if condition.source == "edit" else real
            )
            real = edits if condition.source == "edit" else real
            branch = TokenTree(session.branch(edits))
            self.emit_condition(condition.name, branch, removals, answers, clean, edits, condition.setting.number)

    def list_removal_answers(self, removal: Removal) -> RemovalAnswers:
        """Return the texts of the legal moves on both boards of a removal, for scoring."""
        original, modified_answers = (self.encoding.answers(board) for board in removal.boards)
        shared_texts = tuple(
            tuple(sorted({original[move], modified_answers[move]})) for move in original if move in modified_answers
        )
        accepted_ids = [self.encoding.accepted_ids(board) for board in removal.boards] if self.spec.spellings else []
        canonical = frozenset(original.values()), frozenset(modified_answers.values())
        return RemovalAnswers(canonical, shared_texts, Trie.from_sets(accepted_ids))

    def write(
        self,
        trees: TokenTree,
        boards: Sequence[chess.Board],
        keys: Sequence[Sequence[Key]],
        temperature: Sequence[float],
    ) -> list[list[SampledText]]:
        """Sample texts in each tree on its board, and return them by tree.

        `keys` has one list per tree with the random key of each sample. `temperature` has one value per tree; 0 is
        greedy.
        """
        limit = self.spec.max_tokens
        return sample_trees(trees, self.encoding, boards, keys, temperature=temperature, max_tokens=limit)

    def emit_condition(
        self,
        name: str,
        trees: TokenTree,
        removals: Sequence[Removal],
        answers: Sequence[RemovalAnswers],
        clean: Sequence[StateReading] | None = None,
        edits: Sequence[ResidualEdit] = (),
        setting: int | None = None,
    ) -> list[StateReading]:
        """Emit the rows of one condition, and return the readings of the states under it.

        For every state they have the exact legal mass on both boards, the greedy text and the sampled texts. With
        `clean`, the readings of the clean model, they also have the side effects of the edit.
        """
        spec = self.spec
        probabilities = score_canonical_answers(trees, [state_answers.canonical for state_answers in answers])
        masses = [
            (sum_mass(p, state_answers.canonical[0]), sum_mass(p, state_answers.canonical[1]))
            for p, state_answers in zip(probabilities, answers, strict=True)
        ]
        every: list[list[Mass]] = [[]] * len(removals)
        if spec.spellings:
            tries = [state_answers.accepted_texts for state_answers in answers]
            every = compute_accepted_masses(trees, tries, self.encoding, spec.max_tokens, sets=2)
        keys = [
            [(0,), *((spec.seed, "edit", removal.state.unit, sample) for sample in range(spec.samples))]
            for removal in removals
        ]
        boards = [removal.state.board for removal in removals]
        texts = self.write(trees, boards, keys, [0.0, *[spec.temperature] * spec.samples])
        # This is read last: it computes the last tokens of the prompts again. Without edits it uses a branch, because
        # the session itself continues.
        session = trees.session if edits else trees.session.branch(())
        logits = self.removals.read(session, [removal.state.prompt for removal in removals], edits)
        readings = [
            StateReading.from_logits(*each) for each in zip(logits, probabilities, answers, removals, strict=True)
        ]
        for row, removal in enumerate(removals):
            detail = EditRow(
                piece=removal.piece.symbol(),
                square=chess.square_name(removal.square),
                move=removal.move.uci(),
                position=removal.state.position,
                half=assign_half(spec, removal.state.item),
                setting=setting,
                scales=[get_edit_scale(edit, row) for edit in edits if edit.token_mask != BLACK_SEGMENTS] or None,
            )
            detail = detail.model_copy(update=readings[row].build_columns(clean[row] if clean else None))
            if every[row]:
                original, modified_mass = every[row]
                detail.spelled_original, detail.spelled_modified = original.probability, modified_mass.probability
                detail.spelled_missed = max(original.unexplored, modified_mass.unexplored)
            self.emit(name, removal, GREEDY_SAMPLE, texts[row][0], masses[row], detail)
            for sample, sampled_text in enumerate(texts[row][1:]):
                self.emit(name, removal, sample, sampled_text)
        return readings

    def emit(
        self,
        name: str,
        removal: Removal,
        sample: int,
        sampled_text: SampledText,
        mass: tuple[float, float] | tuple[None, None] = (None, None),
        detail: EditRow | None = None,
    ) -> None:
        """Emit one row of `trial`: a text that the model wrote under a condition, and whether it is legal on each
        board.

        `mass` is the legal move mass on the original and the modified board, each None if not measured.
        """
        state = removal.state
        self.task.emit(
            "trial",
            state.unit,
            detail,
            condition=name,
            sample=sample,
            intervention_id=self.interventions[name],
            item=state.item,
            ply=state.ply,
            fen=state.board.fen() if name == CLEAN and sample == GREEDY_SAMPLE else None,
            text=sampled_text.text,
            legal_original=self.encoding.parse(sampled_text.tokens, state.board) is not None,
            legal_modified=self.encoding.parse(sampled_text.tokens, removal.modified_board) is not None,
            mass_original=mass[0],
            mass_modified=mass[1],
        )

    def emit_skipped(
        self, state: State, sampled_text: SampledText | None, move: chess.Move | None, reason: str
    ) -> None:
        text = sampled_text.text if sampled_text else ""
        row = EditRow(skipped=reason, move=move.uci() if move else None)
        emit_skipped(self.task, state, row, text, legal=move is not None)


def emit_skipped(task: Task[Any, Any], state: State, row: TrialRow, text: str, *, legal: bool | None = None) -> None:
    """Emit the row of a skipped state. `row` has the reason, and `text` is the text that the model would write."""
    half = assign_half(task.spec, state.item)
    task.emit(
        "trial",
        state.unit,
        row.model_copy(update={"position": state.position, "half": half}),
        condition="skipped",
        sample=GREEDY_SAMPLE,
        item=state.item,
        ply=state.ply,
        fen=state.board.fen(),
        text=text,
        legal_original=legal,
    )


@dataclass(frozen=True)
class StateReading:
    """Readings that separate the aim of an edit from its side effects in one state."""

    square: int  # of the removed piece
    empty: float  # probability that this square is empty
    classes: np.ndarray  # most probable class of every square, int64 [64]
    # exact probability of each move that is legal on both boards, in either spelling, float64 [moves]
    shared_probabilities: np.ndarray

    @classmethod
    def from_logits(
        cls, logits: np.ndarray, probabilities: Mapping[Prefix, float], answers: RemovalAnswers, removal: Removal
    ) -> StateReading:
        """Return the readings of an edited state.

        `logits` float32 [64, 13] are the probe's. `probabilities` maps the token ids of each canonical answer to its
        probability. `answers` and `removal` are the state's answers and removed piece.
        """
        shared_probabilities = [sum(probabilities[ids] for ids in texts) for texts in answers.shared_texts]
        exponentials = np.exp(logits[removal.square].astype(np.float64) - logits[removal.square].max())
        return cls(
            removal.square,
            float(exponentials[EMPTY] / exponentials.sum()),
            logits.argmax(1),
            np.array(shared_probabilities, np.float64),
        )

    def build_columns(self, clean: StateReading | None) -> dict[str, float | None]:
        """Return the columns of EditRow with these readings. Without `clean`, comparisons with the clean model are left
        out."""
        values: dict[str, float | None] = {
            "shared_mass": min(float(self.shared_probabilities.sum()), 1.0),
            "read_empty": self.empty,
        }
        if clean is None:
            return values
        values["squares_changed"] = int((self.classes != clean.classes)[np.arange(64) != self.square].sum()) / 63
        if self.shared_probabilities.sum() > 0 and clean.shared_probabilities.sum() > 0:
            values["shared_moved"], values["shared_kl"] = compute_divergences(
                clean.shared_probabilities, self.shared_probabilities
            )
        return values


def compute_divergences(clean: np.ndarray, edited_probabilities: np.ndarray) -> tuple[float, float]:
    """Return how far the edited choice among moves is from the clean one, independent of their total probability.

    The two values are the total variation (0 to 1), and the Kullback-Leibler divergence of clean from edited, in nats.

    >>> compute_divergences(np.array([0.2, 0.2]), np.array([0.5, 0.5]))
    (0.0, 0.0)
    """
    p, q = clean / clean.sum(), edited_probabilities / edited_probabilities.sum()
    is_positive = p > 0
    kl = float((p[is_positive] * (np.log(p[is_positive]) - np.log(np.maximum(q[is_positive], MIN_PROBABILITY)))).sum())
    return float(np.abs(p - q).sum() / 2), max(kl, 0.0)


def score_canonical_answers(
    trees: TokenTree, boards: Sequence[tuple[frozenset[Prefix], ...]]
) -> list[dict[Prefix, float]]:
    """Return for each row the exact probability of every answer of any of its boards."""
    rows = [sorted(frozenset[Prefix]().union(*answers)) for answers in boards]
    log_scores = score_sequences(trees, rows)
    return [dict(zip(row, np.exp(values).tolist(), strict=True)) for row, values in zip(rows, log_scores, strict=True)]


def sum_mass(probabilities: Mapping[Prefix, float], answers: frozenset[Prefix]) -> float:
    """Return the probability of writing one of these answers."""
    return min(sum(probabilities[ids] for ids in sorted(answers)), 1.0)


def get_edit_scale(edit: ResidualEdit, row: int) -> float:
    """Return the scale of an edit for one of its rows."""
    return float(edit.scale[row] if isinstance(edit.scale, Tensor) and edit.scale.dim() else edit.scale)
