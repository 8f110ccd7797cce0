"""`edit`: take a piece off the board inside the model, and see whether its moves become legal on the other board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

import chess
import numpy as np
from sqlalchemy import select

from chessreg.encodings import Encoding, Tokens
from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.edit.spec import BLACK, PAPER, EditHow, EditRow, EditSpec, settings_of
from chessreg.experiments.edit.states import after_moves, states
from chessreg.experiments.settings import games as selections
from chessreg.experiments.settings import overlap
from chessreg.experiments.settings.overlap import Evaluated
from chessreg.games.boardframe import BoardFrame, move_arrows
from chessreg.models.hook_points import check_editable
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Estimate, Kind

if TYPE_CHECKING:
    from chessreg.runs.task import Task


MOST_TRIALS = 100_000_000  # of one run


class BoardEdit(Kind):
    """Board-state edits: subtract the probe's direction for the piece about to move; legal moves on either board.

    Karvonen 2024, section 4.1 and Tables 2, 6 and 8. A state whose clean greedy text is no legal move, or moves the
    king, is recorded as skipped. Beside sampled texts stands the exact probability of a legal move on the original and
    on the modified board, in canonical spelling and in every spelling. Layer sets times scales are one run, every
    state under each of them: `chessreg query "best board edit"` chooses on half of the games and reports on the rest.
    One unit is one state. With --moves the only state is the position after them, whoever is to move.
    """

    name = "edit"
    version = 2
    example = "--checkpoint reference --probe reference-board --dataset sample:test --games 5 --per-game 2"
    tables = ("trial", "metric_point")
    spec = EditSpec
    options = EditHow
    columns = {"trial": EditRow}  # noqa: RUF012
    queries = ("board intervention legality", "best board edit", "edit specificity")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper-8": {**PAPER, "layers": (3, 4, 5, 6), "layers_label": "4-7", "scale": 1.5},
        "paper-16": {**PAPER, "layers": (5, 7, 9, 11, 13), "layers_label": "range(5,15,2)", "scale": 2.0},
        "author-2024": {**PAPER, "token_mask": "all", "layers": (5,), "scale": 1.5},
    }

    def units(self, spec: EditSpec, inputs: Inputs) -> int:
        check(spec, inputs)
        return 1 if spec.moves else len(selections.select(spec, inputs)[1]) * spec.per_game

    def estimate(self, spec: EditSpec, inputs: Inputs) -> Estimate:
        tried = settings_of(spec, inputs)
        conditions = 1 + len(tried) * (1 + spec.controls + spec.shuffled + spec.wrong_layer + spec.sham)
        remarks = (f"{len(tried)} edits of every state: layers x scales",) if len(tried) > 1 else ()
        return Estimate({"trial": self.units(spec, inputs) * conditions * (1 + spec.samples)}, remarks=remarks)

    def check(self, spec: EditSpec, inputs: Inputs) -> None:
        if (trials := self.estimate(spec, inputs).rows["trial"]) > MOST_TRIALS:
            raise BadInputError(
                f"this grid has {trials:,} cells", f"lower --samples, --controls or --games: {MOST_TRIALS:,} fit"
            )
        if spec.moves:  # one position that somebody looks at claims nothing about unseen games
            return
        games, places = selections.select(spec, inputs)
        overlap.refuse(inputs, spec.checkpoint, games, places, spec.allow_overlap)
        for probe in filter(None, (spec.probe, spec.black_probe)):
            overlap.refuse(inputs, probe, games, places, spec.allow_overlap, what="the probe")

    def run(self, task: Task[EditSpec, EditHow]) -> None:
        from chessreg.experiments.edit.editor import Editor

        spec = task.spec
        editor = Editor(task)
        if spec.moves:
            editor.batch([after_moves(spec.moves, editor.encoding)])
            task.done(0)
            return
        games, places = selections.select(spec, task.inputs)
        for start in range(0, len(task.units), task.options.batch_states):
            units = task.units[start : start + task.options.batch_states]
            editor.batch(states(spec, editor.encoding, games, places, units))
            if 0 in units:
                measure_overlap(task, games, places)
            for unit in units:
                task.done(unit)

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        return frames_of_state(row, inputs)


def check(spec: EditSpec, inputs: Inputs) -> None:
    """Raises BadInputError or NotFoundError when probe, model and settings do not go together."""
    from chessreg.experiments.edit.directions import scale_rule

    checkpoint, _ = inputs.checkpoint(spec.checkpoint)
    encoding = inputs.encoding(spec.checkpoint)
    if spec.token_mask not in ("all", "last") and spec.token_mask not in encoding.site_names:
        raise BadInputError(f"{encoding.name} has no tokens called {spec.token_mask}", "--token-mask all, or last")
    if spec.wrong_layer and checkpoint.layers == 1:
        raise BadInputError("--wrong-layer needs another layer, and this model has one")
    if spec.black_probe is not None and BLACK not in encoding.site_names:
        raise BadInputError(f"--black-probe edits the tokens of {BLACK}, which {encoding.name} does not have")
    named = {"--probe": spec.probe, "--black-probe": spec.black_probe, "--shuffled-probe": spec.shuffled_probe}
    named_probes = {name: recipe for name, recipe in named.items() if recipe is not None}
    known: set[int] = set()
    for name, recipe in named_probes.items():
        probes: Sequence[tables.Probe] = inputs.rows(tables.Probe, inputs.run(recipe, "probe"))
        if probes[0].checkpoint_id is None:
            raise BadInputError(
                f"{name} is an import that does not say which checkpoint it was fitted on",
                "chessreg import probe FILE --checkpoint CHECKPOINT",
            )
        if probes[0].checkpoint_id != checkpoint.id:
            raise BadInputError(f"{name} was fitted on another checkpoint than --checkpoint", "chessreg probe list")
        if probes[0].classes != 13 or (name != "--shuffled-probe" and probes[0].label != "piece"):
            raise BadInputError(f"an edit needs probes of label piece, these read {probes[0].label}")
        check_editable(name, probes[0].hook_point)
        if checkpoint.residual == "centred" and not probes[0].detail["centred"]:
            raise BadInputError(
                f"{name} reads residuals with their mean, this checkpoint's are centred",
                "fit probes on this checkpoint",
            )
        if name == "--black-probe" and of_white(probes[0].positions, encoding):
            raise BadInputError(
                f"{name} was fitted at {probes[0].positions}, where White is to move",
                "fit it on a cache of Black's turns: black-turns",
            )
        layers = {row.layer for row in probes}
        known = known & layers if known else layers
    scale_rule(spec.scale_rule)
    for setting in settings_of(spec, inputs):
        if missing := [layer for layer in setting.layers if layer not in known]:
            raise BadInputError(
                f"there is no probe of layer {missing[0]}", f"there are probes of {', '.join(map(str, sorted(known)))}"
            )


def of_white(site: str, encoding: Encoding) -> bool:
    """Whether White is to move at every site of this name."""
    sites = encoding.sites(site, Tokens.of([encoding.prompt(["e4", "e5", "Nf3", "Nc6"])]))
    return len(sites) > 0 and bool((sites.ply % 2 == 0).all())


def measure_overlap(task: Task[EditSpec, EditHow], games: Any, places: np.ndarray) -> None:
    """What the edited games share with the training games of the model and of the probe, as metric points of unit 0."""
    evaluated = Evaluated.of(games, places)
    inputs = {"checkpoint": task.spec.checkpoint, "probe": task.spec.probe, "black-probe": task.spec.black_probe}
    for name, recipe in inputs.items():
        if recipe is None:
            continue
        found = overlap.measure(task.inputs, recipe, evaluated)
        for column, value in found.columns().items():
            if isinstance(value, int):
                task.emit("metric_point", 0, name=f"overlap/{name}/{column}", step=0, value=float(value))


# -- the boards behind a state ---------------------------------------------------


def frames_of_state(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """The original board with the clean model's texts and the modified one with the edited model's; as heat what the
    probe reads of the removed piece in each, while model and probe are here."""
    boards, condition = boards_of_state(row, inputs)
    return with_heat(boards, inputs, row, condition) if condition else boards


def boards_of_state(row: Mapping[str, Any], inputs: Inputs) -> tuple[list[BoardFrame], str]:
    """The two boards as the rows tell them, without a model, and the condition of the second; of a state that was
    skipped the one board, and no condition."""
    trial = tables.Trial
    with inputs.database.read() as session:
        rows = session.scalars(
            select(trial)
            .where(trial.run_id == UUID(str(row["run_id"])), trial.unit == int(row["unit"]))
            .order_by(trial.condition, trial.sample)
        ).all()
        spec = EditSpec(**session.get_one(tables.Run, UUID(str(row["run_id"]))).spec)
        session.expunge_all()
    encoding = inputs.encoding(spec.checkpoint)
    first = next(r for r in rows if r.fen)
    where = f"game {first.item}, ply {first.ply}" if first.item >= 0 else f"after {first.ply} plies"
    original = chess.Board(first.fen)
    detail = first.detail or {}
    if first.condition == "skipped":
        caption = (f"skipped: the greedy text {first.text!r} is {detail['skipped']}",)
        return [BoardFrame.from_board(original, title=where, caption=caption)], ""
    square = chess.parse_square(detail["square"])
    modified = original.copy(stack=False)
    modified.remove_piece_at(square)
    wanted = row.get("condition") or "clean"
    condition = wanted if wanted != "clean" else next(r.condition for r in rows if r.condition.startswith("edit"))
    clean, edited = ([r for r in rows if r.condition == name] for name in ("clean", condition))
    boards = [
        BoardFrame.from_board(
            original,
            title=f"clean, {where}",
            marks={square: "from"},
            arrows=move_arrows(original, [encoding.parse(r.text, original) for r in clean]),
            caption=caption_of(clean),
        ),
        BoardFrame.from_board(
            modified,
            title=f"{condition}: without the piece on {detail['square']}",
            marks={square: "removed"},
            arrows=move_arrows(modified, [encoding.parse(r.text, modified) for r in edited]),
            caption=caption_of(edited),
        ),
    ]
    return boards, condition


def with_heat(boards: list[BoardFrame], inputs: Inputs, row: Mapping[str, Any], condition: str) -> list[BoardFrame]:
    """The two boards with the probability of the removed piece as heat; as they are without the bytes of the model."""
    from chessreg.experiments.edit.heat import PIECE_CLASSES, WHICH, readings

    try:
        found = readings(inputs, UUID(str(row["run_id"])), int(row["unit"]), condition)
    except NotFoundError:
        return boards
    label = f"probability of {PIECE_CLASSES[found.label]} to the probe of layer {found.layer}"
    warm = []
    for frame, which in zip(boards, WHICH, strict=True):
        values = np.clip(found.values(which, found.label, "probability"), 0.0, 1.0).tolist()
        warm.append(replace(frame, heat=dict(enumerate(values)), heat_label=label))
    return warm


def caption_of(rows: list[tables.Trial]) -> tuple[str, ...]:
    greedy = next(r for r in rows if r.sample == -1)
    texts = ", ".join(f"{r.text}{'' if r.legal_original or r.legal_modified else '?'}" for r in rows if r.sample >= 0)
    lines = [f"greedy {greedy.text}; sampled {texts}"]
    if greedy.mass_original is not None and greedy.mass_modified is not None:
        lines.append(f"legal mass {greedy.mass_original:.3f} on the original board, {greedy.mass_modified:.3f} without")
    return tuple(lines)
