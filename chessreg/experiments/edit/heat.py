"""Probe readings before and after an edit: logits of every class on every square, at the site where the move begins."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal
from uuid import UUID

import chess
import numpy as np
import torch

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.edit.model import PieceRemovals, compute_square_logits
from chessreg.experiments.edit.spec import CLEAN, EditSpec
from chessreg.experiments.edit.states import Removal, State, describe_skip, load_state, remove_moving_piece
from chessreg.games.boards.boardframe import get_board_letters
from chessreg.games.boards.picture import HeatPanel
from chessreg.games.datasets.labels import PIECE_CLASSES
from chessreg.registry import tables
from chessreg.registry.identity import shorten_id
from chessreg.runs.fitted import load_probe
from chessreg.steering.directions import EMPTY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chessreg.models.edits import ResidualEdit
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.fitted import FittedProbe
    from chessreg.runs.inputs import Inputs
    from chessreg.steering.conditions import EditCondition

Measure = Literal["probability", "logprob", "logit"]
MODEL_SIDES: tuple[Literal["clean", "edited"], ...] = ("clean", "edited")


@dataclass(frozen=True)
class ProbeReadings:
    """A probe's logits where the move begins, float32 [64, 13], in the clean and in the edited model."""

    clean: np.ndarray
    edited_logits: np.ndarray
    layer: int
    condition: str
    original: chess.Board
    modified_board: chess.Board
    square: int
    label: int  # class of the removed piece

    def values(self, side_name: Literal["clean", "edited"], label: int, measure: Measure = "logprob") -> np.ndarray:
        """Return the values of one class on every square, float64 [64]: its logit, or its log-softmax or softmax over
        the classes."""
        logits = (self.clean if side_name == "clean" else self.edited_logits).astype(np.float64)
        if measure == "logit":
            return logits[:, label]
        logits = logits - logits.max(1, keepdims=True)
        logprobs: np.ndarray = (logits - np.log(np.exp(logits).sum(1, keepdims=True)))[:, label]
        return np.exp(logprobs) if measure == "probability" else logprobs


def parse_piece_class(letter: str) -> int:
    """Return the class of a piece letter: `P` white pawn, `k` black king, `.` empty. Raises BadInputError for other
    letters."""
    if letter not in PIECE_CLASSES:
        raise BadInputError(f"{letter!r} is not a class of a piece probe", f"give one of {' '.join(PIECE_CLASSES)}")
    return PIECE_CLASSES.index(letter)


@dataclass(frozen=True)
class LoadedState:
    """A state of an edit run with the edits of one condition."""

    spec: EditSpec
    removals: PieceRemovals
    condition: EditCondition
    state: State
    removal: Removal
    edits: list[ResidualEdit]


def load_edited_state(inputs: Inputs, run_id: UUID, unit: int, condition: str | None = None) -> LoadedState:
    """Return the state of `unit` with the edits of `condition`; of the run's first edit if that is None.

    Raises NotFoundError for a state or condition that does not exist, and BadInputError for a state without an edit.
    """
    with inputs.database.read() as session:
        run = session.get_one(tables.Run, run_id)
        settings, kind = run.spec, run.kind
        row = session.get(tables.Trial, (run_id, unit, CLEAN, -1))
        skipped_trial = session.get(tables.Trial, (run_id, unit, "skipped", -1))
    if kind != "edit":
        raise BadInputError(
            f"run {shorten_id(run_id)} is of kind {kind}, but probe readings are compared in runs of kind edit",
            f"chessreg board {shorten_id(run_id)}:{unit}",
        )
    if row is None:
        if skipped_trial is None:
            raise NotFoundError(f"run {shorten_id(run_id)} has no state {unit}", "chessreg runs show RUN")
        raise BadInputError(
            f"state {unit} was {describe_skip(skipped_trial)}",
            f"the run alone means its first edited state: {shorten_id(run_id)}",
        )
    spec = EditSpec(**settings)
    edited_state = _load_removals(spec, inputs)
    edit_condition = edited_state.find_condition(condition)
    state = load_state(spec, edited_state.encoding, inputs, unit)
    removal = remove_moving_piece(state, chess.Move.from_uci((row.detail or {})["move"]))
    return LoadedState(
        spec,
        edited_state,
        edit_condition,
        state,
        removal,
        edited_state.build_edits(edit_condition, [state.prompt], [removal]),
    )


def load_readings(
    inputs: Inputs, run_id: UUID, unit: int, condition: str | None = None, layer: int | None = None
) -> ProbeReadings:
    """Return the readings of a probe in a state before and after an edit.

    `layer` is the probe's layer; by default the last edited layer. `condition` defaults to the first edit. Raises the
    errors of `load_edited_state`.
    """
    place = load_edited_state(inputs, run_id, unit, condition)
    removal, setting = place.removal, place.condition.setting
    at = max(setting.layers) if layer is None else layer
    probe = load_probe(inputs, place.spec.probe, at)
    model, prompt = place.removals.model, place.state.prompt
    clean, after = (compute_probe_logits(model, prompt, [probe], active)[0] for active in ([], place.edits))
    name, board = place.condition.name, place.state.board
    return ProbeReadings(clean, after, at, name, board, removal.modified_board, removal.square, removal.label)


def compute_probe_logits(
    model: LanguageModel, prompt: Sequence[int], probes: Sequence[FittedProbe], edits: Sequence[ResidualEdit]
) -> np.ndarray:
    """Return the logits float32 [probes, 64, 13] of probes of several layers, read at the last token of `prompt` (token
    ids) in one forward pass with `edits`."""
    last_token = torch.tensor([[len(prompt) - 1]])
    layers = [probe.layer for probe in probes]
    residuals = model.residuals(torch.tensor([list(prompt)]), layers, last_token, edits=edits)[:, 0, 0]
    return compute_square_logits(residuals, model, prompt, probes, edits)


def build_edit_panels(readings: ProbeReadings, label: int, measure: Measure, clip: float | None) -> list[HeatPanel]:
    """Return the panels of Figure 5 (Karvonen 2024): class `label` on every square before and after the edit, and below
    it the class of empty squares.

    `measure` is the quantity to show. `clip` limits the color scale of logarithms and logits; None: the range of the
    values.
    """
    panels = []
    for row in dict.fromkeys((label, EMPTY)):
        name = "empty" if row == EMPTY else PIECE_CLASSES[row]
        values = {side_name: readings.values(side_name, row, measure) for side_name in MODEL_SIDES}
        low, high = choose_color_range(list(values.values()), measure, clip)
        for side_name in MODEL_SIDES:
            board = readings.original if side_name == "clean" else readings.modified_board
            title = f"{name}, {'original' if side_name == 'clean' else 'edited'} model, {measure}"
            clipped_values = np.clip(values[side_name], low, high)
            panels.append(HeatPanel(title, clipped_values, low, high, get_board_letters(board), (readings.square,)))
    return panels


def build_reading_panels(readings: ProbeReadings, label: int, measure: Measure, clip: float) -> list[HeatPanel]:
    """Return the panels of Figure 1 (Karvonen 2024): the true squares of class `label`, the clean model's reading
    limited to `clip`, and the reading without a limit. `measure` is the quantity to show."""
    values, name = readings.values("clean", label, measure), PIECE_CLASSES[label]
    letters = get_board_letters(readings.original)
    truth = np.array([float(letter == name) for letter in letters])
    low, high = choose_color_range([values], measure, clip)
    color_range = choose_color_range([values], measure, None)
    return [
        HeatPanel(f"{name} on the board", truth, 0.0, 1.0, letters),
        HeatPanel(f"{measure}, clipped at {clip:g}", np.clip(values, low, high), low, high),
        HeatPanel(measure, values, *color_range),
    ]


def choose_color_range(values: list[np.ndarray], measure: Measure, clip: float | None) -> tuple[float, float]:
    """Return the values drawn white and black: 0 and 1 for a probability, -clip and 0 for a logarithm, ±clip for a
    logit."""
    if measure == "probability":
        return 0.0, 1.0
    if clip is not None:
        return -clip, 0.0 if measure == "logprob" else clip
    low, high = float(np.min(values)), float(np.max(values))
    return low, high if high > low else low + 1.0


@lru_cache(maxsize=1)
def _load_removals(spec: EditSpec, inputs: Inputs) -> PieceRemovals:
    """Return the model of a run. It stays in memory for the next board."""
    return PieceRemovals(spec, inputs, "cpu")
