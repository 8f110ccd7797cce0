"""`edit` and `edit-next-token`: change the board inside the model, and measure which moves are legal for it.

Both kinds share settings, checks and conditions. They read different outputs of the edited model, so their rows differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from chessreg.errors import BadInputError
from chessreg.experiments.edit.checks import check_context, check_edit_spec
from chessreg.experiments.edit.spec import (
    DAVIS_PRESETS,
    PAPER,
    EditOptions,
    EditRow,
    EditSettings,
    EditSpec,
    NextTokenEditOptions,
    NextTokenEditRow,
    NextTokenEditSpec,
    list_edit_settings,
)
from chessreg.experiments.edit.states import build_state_after, build_states
from chessreg.experiments.settings import games as selections
from chessreg.experiments.settings import overlap
from chessreg.experiments.settings.overlap import EvaluatedGames
from chessreg.games.boards.boardframe import BoardFrame
from chessreg.games.datasets.dataset import convert_column_to_numpy
from chessreg.runs.cost import LEGAL_MOVE_TOKENS, TOKENS_PER_MOVE, count_reading_operations
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, RunEstimate

if TYPE_CHECKING:
    from chessreg.runs.task import Task


__all__ = ["BoardEdit", "EditOptions", "EditSpec", "NextTokenEdit", "NextTokenEditOptions", "NextTokenEditSpec"]


MAX_TRIALS = 100_000_000  # of one run


class EditKind(Kind):
    """The base of both kinds of edits. One unit is one state, and every state has a row for each condition."""

    tables = ("trial", "metric_point")

    def units(self, spec: EditSettings, inputs: Inputs) -> int:
        check_edit_spec(spec, inputs)
        return 1 if spec.moves else len(selections.select_games(spec, inputs)[1]) * spec.states_per_game

    def estimate(self, spec: EditSettings, inputs: Inputs) -> RunEstimate:
        setting_count = len(list_edit_settings(spec, inputs))
        each = 1 + len(spec.other_directions) + sum(spec.control_draws.values())
        remarks = (f"{setting_count} edits of every state: layers x scales",) if setting_count > 1 else ()
        states = self.units(spec, inputs)
        edits = states * (1 + setting_count * each)
        return RunEstimate({"trial": edits}, 0, remarks, self.operations(spec, inputs, states, edits))

    def operations(self, spec: Any, inputs: Inputs, states: int, edits: int) -> float:
        """Return the operations of `edits` edits of `states` states; each edit reads half of the game again."""
        games = states / spec.states_per_game
        return count_reading_operations(spec.checkpoint, inputs, games + edits / 2)

    def check(self, spec: EditSettings, inputs: Inputs) -> None:
        if (trials := self.estimate(spec, inputs).rows["trial"]) > MAX_TRIALS:
            raise BadInputError(
                f"this grid has {trials:,} rows, more than {MAX_TRIALS:,}", "lower --games or --random-controls"
            )
        if spec.moves:  # a single position given by the user claims nothing about unseen games
            return
        games, places = selections.select_games(spec, inputs)
        overlap.refuse_overlap(inputs, spec.checkpoint, games, places, spec.allow_overlap)
        for probe in spec.probes.values():
            overlap.refuse_overlap(inputs, probe, games, places, spec.allow_overlap, subject="the probe")


class BoardEdit(EditKind):
    """Board edits: subtract the probe's direction of the piece about to move, and measure legal moves on each board.

    Karvonen 2024, section 4.1 and Tables 2, 6 and 8. A state whose clean greedy text is not a legal move, or moves the
    king, is recorded as skipped. Sampled texts are recorded with the exact probability of a legal move on the original
    and on the modified board, in canonical spelling and in every spelling. Layer sets times scales are one run, with
    every state under each of them: `chessreg query "best board edit"` chooses on half of the games and reports on the
    rest. One unit is one state. With --moves the only state is the position after these moves, with either side to
    move. `edit-next-token` reads the next token instead.
    """

    name = "edit"
    main_settings = (
        "games",
        "per_game",
        "layers",
        "layer_sets",
        "scale",
        "scale_rule",
        "token_mask",
        "random_controls",
        "shuffled_label_controls",
        "samples",
    )
    version = 2
    example = "--checkpoint reference --probe reference-board --dataset sample:test --games 5 --per-game 2"
    spec = EditSpec
    options = EditOptions
    columns = {"trial": EditRow}  # noqa: RUF012
    queries = ("board intervention legality", "best board edit", "edit specificity")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper-8": {**PAPER, "layers": (3, 4, 5, 6), "layers_label": "4-7", "scale": 1.5},
        "paper-16": {**PAPER, "layers": (5, 7, 9, 11, 13), "layers_label": "range(5,15,2)", "scale": 2.0},
        "author-2024": {**PAPER, "token_mask": "all", "layers": (5,), "scale": 1.5},
    }

    def select_queries(self, spec: EditSpec) -> tuple[str, ...]:
        tries = bool(spec.layer_sets) or len(spec.scales) > 1
        return tuple(query for query in self.queries if query != "best board edit" or tries)

    def estimate(self, spec: EditSpec, inputs: Inputs) -> RunEstimate:  # type: ignore[override]
        greedy = super().estimate(spec, inputs)
        return replace(greedy, rows={"trial": greedy.rows["trial"] * (1 + spec.samples)})

    def operations(self, spec: EditSpec, inputs: Inputs, states: int, edits: int) -> float:
        """Return the operations of reading the states, writing moves, and measuring the legal moves of both boards."""
        each = (1 + spec.samples) * TOKENS_PER_MOVE + 2 * LEGAL_MOVE_TOKENS * (2 if spec.spellings else 1)
        more = count_reading_operations(spec.checkpoint, inputs, 0, edits * each)
        return super().operations(spec, inputs, states, edits if spec.token_mask == "all" else 0) + more

    def run(self, task: Task[EditSpec, EditOptions]) -> None:
        from chessreg.experiments.edit.editor import Editor

        spec, editor = task.spec, Editor(task)
        if spec.moves:
            editor.emit_states([build_state_after(spec.sans, editor.encoding)])
            task.done(0)
            return
        games, places = selections.select_games(spec, task.inputs)
        for start in range(0, len(task.units), task.options.batch_states):
            units = task.units[start : start + task.options.batch_states]
            editor.emit_states(build_states(spec, editor.encoding, games, places, units))
            if 0 in units:
                emit_edit_overlap(task, games, places)
            for unit in units:
                task.done(unit)

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        from chessreg.experiments.edit.board_views import build_state_frames

        return build_state_frames(row, inputs)


class NextTokenEdit(EditKind):
    """Edits of a model whose next token names a square or a move: legal move mass before and after.

    Davis, Vasquez Ferrer & Sukthankar 2026, section 4. The edit removes the piece on the model's most probable square,
    with a length that is a share of the residual's norm; with --moves it changes the squares of --board. The
    probability of tokens that begin a legal move is summed on the original board, on the edit's target board,
    and on a later board of the game. A prefix without a piece on that square is recorded as skipped. Layer sets times
    scales are one run. One unit is one prefix of a game. `chessreg board RUN:UNIT` shows the probability of all squares
    before and after.
    """

    name = "edit-next-token"
    main_settings = (
        "games",
        "prefixes",
        "moves",
        "board",
        "layers",
        "scale",
        "token_mask",
        "random_controls",
        "shuffled_label_controls",
        "patch",
    )
    example = "--checkpoint uci --probe uci-board --dataset sample:test --games 5 --prefixes 4,14"
    spec = NextTokenEditSpec
    options = NextTokenEditOptions
    columns = {"trial": NextTokenEditRow}  # noqa: RUF012
    queries = (
        "legal move mass by edit", "legal move mass by layer", "legal move mass by square", "edit strength",
        "legal move mass between edits", "legal move mass by expansion",
    )  # fmt: skip
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = DAVIS_PRESETS

    def estimate(self, spec: EditSettings, inputs: Inputs) -> RunEstimate:
        run_estimate = super().estimate(spec, inputs)
        return replace(
            run_estimate, bytes=4 * run_estimate.rows["trial"] * inputs.encoding(spec.checkpoint).answer_size
        )

    def check(self, spec: NextTokenEditSpec, inputs: Inputs) -> None:  # type: ignore[override]
        if spec.prefixes:
            games, places = selections.select_games(spec, inputs)
            longest_game = int(convert_column_to_numpy(games.table(["plies"]).column("plies"))[places].max())
            if longest_game <= min(spec.prefixes):
                raise BadInputError(
                    f"--prefixes {min(spec.prefixes)}: every game ends earlier, the longest after {longest_game} plies",
                    "give shorter --prefixes, or longer games",
                )
            check_context(spec, inputs)
        super().check(spec, inputs)

    def run(self, task: Task[NextTokenEditSpec, NextTokenEditOptions]) -> None:
        from chessreg.experiments.edit.site_editor import SiteEditor

        SiteEditor(task).run(lambda games, places: emit_edit_overlap(task, games, places))

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        from chessreg.experiments.edit.three_boards import build_case_frames

        return build_case_frames(row, inputs)


def emit_edit_overlap(task: Task[Any, Any], games: Any, places: np.ndarray) -> None:
    """Emit the overlap of the edited games with the training games of the model and the probes, as metric points of
    unit 0."""
    evaluated_games = EvaluatedGames.from_items(games, places)
    inputs = {"checkpoint": task.spec.checkpoint, "probe": task.spec.probe, "black-probe": task.spec.black_probe}
    for name, reference in inputs.items():
        if reference is None:
            continue
        measured_overlap = overlap.measure_overlap(task.inputs, reference, evaluated_games)
        for column, value in measured_overlap.columns().items():
            if isinstance(value, int):
                task.emit("metric_point", 0, name=f"overlap/{name}/{column}", step=0, value=float(value))
