"""The work of kind `edit-next-token`: prefixes of games under all conditions.

Davis 2026, sections 3.5 and 3.6. For each case and condition it records the probability of the tokens that begin a
legal move on the original, the target and the later board (LMPM), the most probable token, and the length of the edit.
The whole distribution is written to the store (three_boards.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import chess
import numpy as np
import torch
from torch import Tensor

from chessreg.errors import BadInputError
from chessreg.experiments.edit.cases import (
    Case,
    GamePrefix,
    apply_board_changes,
    build_prefixes,
    build_single_prefix,
    explain_case_skip,
    remove_favourite,
)
from chessreg.experiments.edit.editor import GREEDY_SAMPLE, emit_skipped
from chessreg.experiments.edit.model import EditedModel, name_direction_source
from chessreg.experiments.edit.spec import CLEAN, NextTokenEditOptions, NextTokenEditRow, NextTokenEditSpec
from chessreg.experiments.edit.states import State, assign_half
from chessreg.experiments.edit.three_boards import write_probabilities
from chessreg.experiments.settings import games as selections
from chessreg.models.decoding.next_tokens import NextTokens, get_masked_ids
from chessreg.models.decoding.session import open_decoding_session
from chessreg.models.devices import prepare_device
from chessreg.models.edits import ResidualEdit
from chessreg.runs.fitted import FittedProbe
from chessreg.runs.task import Task
from chessreg.steering import controls
from chessreg.steering.conditions import EditCondition
from chessreg.steering.controls import OTHER, PATCH, RANDOM, SHAM, SHUFFLED, WRONG_LAYER
from chessreg.steering.directions import PIECES, Change, compute_change_directions, normalize_rows

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games

MAX_GROUP_VALUES = 64_000_000  # stored probabilities in one group: bounds memory
ORIGINAL, TARGET, LATER = range(3)
PROTOCOL = ("protocol", "future", "future_unit", "patch", "random_draw", "class_mean", "probe_tokens", "probe_shift",
            "decay")  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One condition of a batch of cases.

    `logprobs` float64 [cases, outputs]. The norms are float64 [cases] at the lowest edited layer: of the reference that
    the scale is a share of (None if the scale is a length), of the direction, and of the added vector.
    """

    condition: str
    setting: int | None
    scales: np.ndarray | None
    logprobs: np.ndarray
    reference_norm: np.ndarray | None = None
    vector_norm: np.ndarray | None = None
    edit_norm: np.ndarray | None = None


class CaseEdits(EditedModel[NextTokenEditSpec]):
    """A model with directions for the changes of a case's board added to its residual at the token of the case."""

    @cached_property
    def other_probes(self) -> list[tuple[dict[int, FittedProbe], dict[int, FittedProbe]]]:
        """The other probes where White and where Black is to move, by layer."""
        blacks = self.spec.other_black_probes or (None,) * len(self.spec.other_probes)
        pairs = zip(self.spec.other_probes, blacks, strict=True)
        return [(self.load_probes(white), self.load_probes(black)) for white, black in pairs]

    def describe_origin(self, condition: EditCondition) -> tuple[str, list[str]]:
        spec, layers = self.spec, condition.setting.layers
        if condition.source == PATCH:
            later = spec.later or f"{spec.future}-{spec.future_unit}"
            return PATCH, [f"later:{later}", f"length:{spec.patch}"]
        if condition.source != OTHER:
            return super().describe_origin(condition)
        reference = spec.other_probes[condition.draw]
        black = [spec.other_black_probes[condition.draw]] if spec.other_black_probes else []
        probes = [f"{reference}/layer-{spec.find_probed_layer(layer)}" for layer in layers]
        return name_direction_source(self.other_probes[condition.draw][0][layers[0]]), probes + black

    def list_further_settings(self) -> dict[str, Any]:
        return {name: getattr(self.spec, name) for name in PROTOCOL}

    def build_edits(self, case: Case, condition: EditCondition) -> list[ResidualEdit]:
        """Return one case's edits under a condition, one per layer.

        Raises BadInputError for a patch that does not fit the model's context, and if the probe has no direction for
        the case.
        """
        layers, scales = self.find_edited_layers(condition), self.compute_scales(condition, [case])
        tokens, none = None, np.zeros(1, np.int64)
        if condition.source == PATCH:
            prompt = case.prefix.later_prompt
            if len(prompt) > self.model.block_size:
                raise BadInputError(
                    f"the later board comes after {len(prompt)} tokens, which do not fit the model's context"
                )
            tokens = NextTokens(self.model, [prompt], [(0, len(prompt) - 1)], layers)
        vectors = {layer: self.compute_vectors(tokens, [case], none, none, condition, layer, {}) for layer in layers}
        if not any(vector.any() for vector in vectors.values()):
            raise BadInputError("the probe has no direction for this change of the board")
        return [self.edit(layer, vectors[layer], scales) for layer in layers]

    def edit(self, layer: int, vectors: np.ndarray, scales: np.ndarray) -> ResidualEdit:
        """Return the edit that adds vectors [cases, d_model] after a layer, with lengths given by the scale rule and
        `scales`."""
        return ResidualEdit(
            layer,
            torch.from_numpy(vectors).to(self.model.device),
            torch.from_numpy(scales).float().to(self.model.device),
            self.spec.token_mask,
            reference=self.get_norm_reference(layer),
        )

    def compute_scales(self, condition: EditCondition, cases: Sequence[Case]) -> np.ndarray:
        """Return the value of the scale rule at the edited token of each case, float64 [cases]. With --decay it falls
        with the token's index."""
        value = 0.0 if condition.source == SHAM else condition.setting.value
        index = np.array([len(case.state.prompt) - 1 for case in cases], np.float64)
        return value * np.exp(-self.spec.decay * index)

    def compute_vectors(
        self,
        tokens: NextTokens | None,
        cases: Sequence[Case],
        sites: np.ndarray,
        later: np.ndarray,
        condition: EditCondition,
        layer: int,
        cached_vectors: dict[tuple[str, int, int], np.ndarray],
    ) -> np.ndarray:
        """Return the unscaled vectors that a condition adds at a layer, float32 [cases, d_model].

        `sites` int64 [cases] are the sites of the cases in `tokens`, and `later` int64 the sites of the later boards.
        `cached_vectors` keeps vectors by source, draw and layer.
        """
        source = "edit" if condition.source == SHAM else condition.source
        key = source, condition.draw, layer
        if key in cached_vectors:
            return cached_vectors[key]
        directions: np.ndarray
        if source == RANDOM:
            directions = self.draw_random(cases, condition.draw, layer)
        elif source == PATCH:
            assert tokens is not None
            at = torch.from_numpy(later[sites]).to(self.model.device)
            directions = tokens.residual(layer)[at].float().cpu().numpy()
            directions = normalize_rows(directions) if self.spec.patch == "unit" else directions
        else:
            directions = self.compute_probe_directions(cases, condition, layer)
        cached_vectors[key] = directions
        return directions

    def draw_random(self, cases: Sequence[Case], draw: int, layer: int) -> np.ndarray:
        """Return random directions float32 [cases, d_model]."""
        seed, units = self.spec.seed, [case.state.unit for case in cases]
        if self.spec.random_draw == "sphere":
            return controls.draw_random_directions(seed, draw, layer, units, self.model.d_model)
        shape = self.model.n_layers, self.model.d_model
        return controls.draw_uniform_matrix_directions(seed, draw, layer, units, shape)

    def compute_probe_directions(self, cases: Sequence[Case], condition: EditCondition, layer: int) -> np.ndarray:
        """Return a probe's directions for the changes of each board float32 [cases, d_model], by the side to move."""
        spec, draw = self.spec, condition.draw
        if condition.source == WRONG_LAYER:
            layer = next(
                layer_number
                for layer_number in condition.setting.layers
                if self.find_wrong_layer(layer_number) == layer
            )
        white, black = self.probes, self.black
        if condition.source == OTHER:
            white, black = self.other_probes[draw]
        elif condition.source == SHUFFLED and self.shuffled_probes:
            white, black = self.shuffled_probes, {}
        is_permuted = condition.source == SHUFFLED and not self.shuffled_probes
        directions = np.zeros((len(cases), self.model.d_model), np.float32)
        for turn, probes in ((chess.WHITE, white), (chess.BLACK, black or white)):
            rows = [row for row, case in enumerate(cases) if case.state.board.turn == turn]
            if not rows:
                continue
            changes: list[Sequence[Change]] = [cases[row].changes for row in rows]
            if is_permuted:
                units = [cases[row].state.unit for row in rows]
                changes = [
                    controls.shuffle_pieces(spec.seed, draw, unit, layer_number, lambda square: PIECES)
                    for unit, layer_number in zip(units, changes, strict=True)
                ]
            weight = probes[layer].weight
            directions[rows] = compute_change_directions(
                weight, changes, spec.piece, spec.blank, spec.class_mean == "remove"
            )
        return directions


class SiteEditor(CaseEdits):
    """The edited model of one task: runs every condition of a batch of cases and emits their rows."""

    def __init__(self, task: Task[NextTokenEditSpec, NextTokenEditOptions]) -> None:
        super().__init__(task.spec, task.inputs, prepare_device(task.options.device, task.options.threads))
        self.task, self.all_conditions = task, self.list_conditions()
        self.interventions = self.record(task)
        size = self.model.outputs
        self.origins = np.array([-1 if (o := self.encoding.find_origin(i)) is None else o for i in range(size)])
        self.edited_layers = sorted(
            {layer for condition in self.all_conditions for layer in self.find_edited_layers(condition)}
        )

    def run(self, overlap: Callable[[Games, np.ndarray], None]) -> None:
        """Do all units of the task, in groups. The probabilities of a group are stored together, and its units are done
        together.

        `overlap` is called once with the games, and emits their overlap with training games.
        """
        task, spec = self.task, self.spec
        most = max(1, MAX_GROUP_VALUES // ((1 + len(self.all_conditions)) * self.model.outputs))
        size = min(task.options.group_states, most)
        games, places = (None, None) if spec.moves else selections.select_games(spec, task.inputs)
        for start in range(0, len(task.units), size):
            group = task.units[start : start + size]
            units: list[int] = []
            probabilities: list[np.ndarray] = []
            for begin in range(0, len(group), task.options.batch_states):
                batch = group[begin : begin + task.options.batch_states]
                if games is None or places is None:
                    prefixes = [build_single_prefix(spec, self.encoding)]
                else:
                    prefixes = build_prefixes(spec, self.encoding, games, places, batch)
                stored_batch = self.emit_prefixes(prefixes, len(units))
                units += [case.state.unit for case in stored_batch.cases]
                probabilities.append(stored_batch.probabilities)
                task.progress((start + begin + len(batch)) / max(len(task.units), 1), f"{len(units):,} cases")
            if games is not None and places is not None and 0 in group:
                overlap(games, places)
            if units:
                names = [CLEAN, *(condition.name for condition in self.all_conditions)]
                write_probabilities(task, group[0], units, names, np.concatenate(probabilities))
            task.done(*group)

    def emit_prefixes(self, prefixes: Sequence[GamePrefix], row: int) -> StoredBatch:
        """Emit the rows of these prefixes. `row` is the index of the first one in the stored probabilities of the
        group."""
        room, is_patched = self.model.block_size, self.spec.patch != "none"
        fitting_prefixes: list[GamePrefix] = []
        for prefix in prefixes:
            if len(prefix.state.prompt) > room or (is_patched and len(prefix.later_prompt) > room):
                self.emit_skipped(prefix, None, "too long")
            else:
                fitting_prefixes.append(prefix)
        if not fitting_prefixes:
            return StoredBatch([], np.zeros((0, 1 + len(self.all_conditions), self.model.outputs), np.float32))
        tokens, later = self.compute_clean(fitting_prefixes, is_patched)
        logprobs = self.mask_unused_outputs(tokens.logprobs)
        cases, sites = self.select_cases(fitting_prefixes, logprobs)
        if not cases:
            return StoredBatch([], np.zeros((0, 1 + len(self.all_conditions), self.model.outputs), np.float32))
        outcomes = [Outcome(CLEAN, None, None, logprobs[sites])]
        outcomes += self.compute_outcomes(tokens, cases, sites, later)
        legal = np.stack([self.find_legal_ids(case) for case in cases])
        for outcome in outcomes:
            self.emit_condition_rows(outcome, outcomes[0], cases, legal, row)
        return StoredBatch(cases, np.exp(np.stack([o.logprobs for o in outcomes], 1)).astype(np.float32))

    def compute_clean(self, fitting_prefixes: Sequence[GamePrefix], is_patched: bool) -> tuple[NextTokens, np.ndarray]:
        """Return the clean model's next-token distribution after each prefix, and the sites of the later boards.

        The sites are int64 [prefixes]. Later boards are read only if `is_patched`; otherwise their sites have no
        meaning.
        """
        rows: list[tuple[int, ...]] = []
        places: dict[int, int] = {}
        sites: list[tuple[int, int]] = []
        later: list[tuple[int, int]] = []
        history = self.encoding.content == "history"
        for prefix in fitting_prefixes:
            item = prefix.state.item
            for site_list, prompt in ((sites, prefix.state.prompt), (later, prefix.later_prompt if is_patched else ())):
                if not prompt:
                    continue
                if history and item in places:  # one row per game, because its prefixes begin alike
                    place = places[item]
                    rows[place] = max(rows[place], prompt, key=len)
                else:
                    place = places[item] = len(rows)
                    rows.append(prompt)
                site_list.append((place, len(prompt) - 1))
        # a prefix without a later board is skipped, so its site does not matter
        later_rows = iter(range(len(sites), len(sites) + len(later)))
        later_sites = np.array(
            [next(later_rows) if is_patched and prefix.later_prompt else 0 for prefix in fitting_prefixes], np.int64
        )
        return NextTokens(self.model, rows, [*sites, *later], self.edited_layers), later_sites

    def select_cases(
        self, fitting_prefixes: Sequence[GamePrefix], logprobs: np.ndarray
    ) -> tuple[list[Case], np.ndarray]:
        """Return the prefixes to edit as cases, and their numbers. Emit a row with the reason for each other prefix."""
        cases, sites = [], []
        for number, prefix in enumerate(fitting_prefixes):
            best_id = int(logprobs[number].argmax())
            square = None if self.origins[best_id] < 0 else int(self.origins[best_id])
            if reason := explain_case_skip(self.spec, prefix, square):
                self.emit_skipped(prefix, best_id, reason)
                continue
            if self.spec.board:
                cases.append(apply_board_changes(prefix, self.spec.board))
            else:
                assert square is not None
                cases.append(remove_favourite(prefix, square))
            sites.append(number)
        return cases, np.array(sites, np.int64)

    # -- conditions -------------------------------------------------------------------------------------------------

    def compute_outcomes(
        self, tokens: NextTokens, cases: Sequence[Case], sites: np.ndarray, later: np.ndarray
    ) -> list[Outcome]:
        """Return the outcomes of all conditions except the clean one. Conditions with equal layers share a pass.

        `tokens` holds the clean pass over the cases' prefixes. `sites` int64 [cases] are the tokens to edit, and
        `later` int64 [cases] the sites of the later boards, which only patches read.
        """
        if self.spec.token_mask != "last":
            return [
                self.edit_several_tokens(tokens, cases, sites, later, condition) for condition in self.all_conditions
            ]
        conditions_by_layers: dict[tuple[int, ...], list[EditCondition]] = {}
        for condition in self.all_conditions:
            conditions_by_layers.setdefault(self.find_edited_layers(condition), []).append(condition)
        outcomes: dict[str, Outcome] = {}
        cached_vectors: dict[tuple[str, int, int], np.ndarray] = {}  # a direction is the same at every scale
        for layers, conditions in conditions_by_layers.items():
            vectors = {
                layer: [
                    self.compute_vectors(tokens, cases, sites, later, layer_conditions, layer, cached_vectors)
                    for layer_conditions in conditions
                ]
                for layer in layers
            }
            scales = np.concatenate([self.compute_scales(layer_conditions, cases) for layer_conditions in conditions])
            edits = [self.edit(layer, np.concatenate(vectors[layer]), scales) for layer in layers]
            logprobs = self.mask_unused_outputs(tokens.predict_edited(np.tile(sites, len(conditions)), edits))
            for number, layer_conditions in enumerate(conditions):
                part = slice(number * len(cases), (number + 1) * len(cases))
                lengths = self.compute_norms(tokens, sites, layers[0], vectors[layers[0]][number], scales[part])
                outcomes[layer_conditions.name] = Outcome(
                    layer_conditions.name, layer_conditions.setting.number, scales[part], logprobs[part], *lengths
                )
        return [outcomes[condition.name] for condition in self.all_conditions]

    def edit_several_tokens(
        self, tokens: NextTokens, cases: Sequence[Case], sites: np.ndarray, later: np.ndarray, condition: EditCondition
    ) -> Outcome:
        """Return the outcome of a condition that edits several tokens of each prefix, with the arguments of
        `compute_outcomes`. The length of the edit at each token follows equation 1 of Davis 2026."""
        layers, scales = self.find_edited_layers(condition), self.compute_scales(condition, cases)
        vectors = {layer: self.compute_vectors(tokens, cases, sites, later, condition, layer, {}) for layer in layers}
        edits = [self.edit(layer, vectors[layer], scales) for layer in layers]
        logprobs = open_decoding_session(self.model, len(cases), edits).feed([case.state.prompt for case in cases])
        lengths = self.compute_norms(tokens, sites, layers[0], vectors[layers[0]], scales)
        values = self.mask_unused_outputs(logprobs)
        return Outcome(condition.name, condition.setting.number, scales, values, *lengths)

    def mask_unused_outputs(self, logprobs: torch.Tensor) -> np.ndarray:
        """Return log-probabilities [n, outputs] as float64; with `mask_unused` only tokens that games are written with
        have probability."""
        values: np.ndarray = logprobs.cpu().numpy().astype(np.float64)
        unused_ids = sorted(get_masked_ids(self.encoding)) if self.spec.mask_unused else []
        if unused_ids:
            values[:, unused_ids] = -np.inf
            values -= np.logaddexp.reduce(values, axis=1, keepdims=True)
        return values

    def compute_norms(
        self, tokens: NextTokens, sites: np.ndarray, layer: int, vectors: np.ndarray, scales: np.ndarray
    ) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
        """Return three norms at a layer, each float64 [cases]: of the reference (None without one), of the direction,
        and of the added vector.

        `sites` int64 [cases] are the edited tokens, `vectors` [cases, d_model] the directions, and `scales` float
        [cases] their factors.
        """
        size = np.linalg.norm(vectors.astype(np.float64), axis=1)
        reference = self.get_norm_reference(layer)
        if reference is None:
            return None, size, np.abs(scales) * size
        with torch.inference_mode():
            residual: Tensor = tokens.residual(layer)[torch.from_numpy(sites).to(self.model.device)]
            norm = reference(residual).float().norm(dim=-1).cpu().numpy().astype(np.float64)
        return norm, size, np.abs(scales) * norm * size

    # -- rows -------------------------------------------------------------------------------------------------------

    def find_legal_ids(self, case: Case) -> np.ndarray:
        """Return which ids begin a legal move on the original, the target and the later board, bool [3, outputs]."""
        starting_ids = np.zeros((3, self.model.outputs), bool)
        for number, board in enumerate(case.boards):
            if board is not None:
                starting_ids[number, sorted({ids[0] for ids in self.encoding.answers(board).values()})] = True
        return starting_ids

    def emit_condition_rows(
        self, outcome: Outcome, clean: Outcome, cases: Sequence[Case], legal: np.ndarray, row: int
    ) -> None:
        """Emit one condition's row of every case.

        `clean` is the outcome to compare with, `legal` bool [cases, 3, outputs] as from `find_legal_ids`, and `row` the
        index of the first case in the stored probabilities of the group.
        """
        probabilities = np.exp(outcome.logprobs)
        masses = np.minimum(np.einsum("ckv,cv->ck", legal.astype(np.float64), probabilities), 1.0)
        best_ids, before = outcome.logprobs.argmax(1), clean.logprobs.argmax(1)
        kl = compute_divergence(clean.logprobs, outcome.logprobs)
        for place, case in enumerate(cases):
            token, first = int(best_ids[place]), outcome is clean
            if outcome.vector_norm is not None and outcome.vector_norm[place] == 0:
                continue  # the probe has no direction for this case
            later = case.prefix.later
            values: dict[str, float | None] = {
                name: None if column is None else float(column[place])
                for name, column in (
                    ("reference_norm", outcome.reference_norm),
                    ("vector_norm", outcome.vector_norm),
                    ("edit_norm", outcome.edit_norm),
                )
            }
            square = case.square
            detail = NextTokenEditRow(
                piece=case.piece.symbol() if case.piece else None,
                square=None if square is None else chess.square_name(square),
                position=case.state.position,
                half=assign_half(self.spec, case.state.item),
                setting=outcome.setting,
                scales=None if outcome.scales is None else [float(outcome.scales[place])],
                target=case.target.fen() if first else None,
                target_status=int(case.target.status()) if first else None,
                later=later.fen() if first and later is not None else None,
                mass_future=None if later is None else float(masses[place, LATER]),
                argmax_kept=bool(best_ids[place] == before[place]),
                p_argmax=float(probabilities[place, token]),
                p_square=None if square is None else float(probabilities[place, self.origins == square].sum()),
                kl=float(kl[place]),
                row=row + place,
                **values,
            )
            self.task.emit(
                "trial",
                case.state.unit,
                detail,
                condition=outcome.condition,
                sample=GREEDY_SAMPLE,
                intervention_id=self.interventions[outcome.condition],
                item=case.state.item,
                ply=case.state.ply,
                fen=case.state.board.fen() if first else None,
                text=self.decode_token(token),
                legal_original=bool(legal[place, ORIGINAL, token]),
                legal_modified=bool(legal[place, TARGET, token]),
                mass_original=float(masses[place, ORIGINAL]),
                mass_modified=float(masses[place, TARGET]),
            )

    def decode_token(self, token: int) -> str:
        """Return the text of a written token."""
        if self.encoding.answer_size == self.encoding.size:
            return self.encoding.vocabulary[token]
        return self.encoding.answer_text([token])

    def emit_skipped(self, prefix: GamePrefix, best_id: int | None, reason: str) -> None:
        """Emit the row of a skipped prefix, with the reason."""
        state: State = prefix.state
        square = None if best_id is None or self.origins[best_id] < 0 else int(self.origins[best_id])
        piece = None if square is None else state.board.piece_at(square)
        row = NextTokenEditRow(
            skipped=reason,
            piece=piece.symbol() if piece else None,
            square=None if square is None else chess.square_name(square),
        )
        emit_skipped(self.task, state, row, "" if best_id is None else self.decode_token(best_id))


@dataclass(frozen=True)
class StoredBatch:
    """The cases of a batch, and the probabilities of the next token float32 [cases, conditions, outputs]."""

    cases: list[Case]
    probabilities: np.ndarray


def compute_divergence(clean: np.ndarray, edited_logprobs: np.ndarray) -> np.ndarray:
    """Return the Kullback-Leibler divergence of the clean from the edited distribution, nats [n], from
    log-probabilities [n, m].

    >>> compute_divergence(np.log([[0.5, 0.5]]), np.log([[0.5, 0.5]])).tolist()
    [0.0]
    """
    min_logprob = math.log(np.finfo(np.float64).tiny)
    difference = np.where(clean > min_logprob, clean - np.maximum(edited_logprobs, min_logprob), 0.0)
    return np.maximum((np.exp(clean) * difference).sum(1), 0.0)
