"""`edit`: take a piece off the board inside the model, and see whether its moves become legal on the other board."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

import chess
import numpy as np

from chessreg.encodings import Encoding, Tokens
from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.edit.spec import BLACK, DAVIS_PRESETS, PAPER, EditOptions, EditRow, EditSpec, settings_of
from chessreg.experiments.edit.states import after_moves, states
from chessreg.experiments.settings import games as selections
from chessreg.experiments.settings import overlap
from chessreg.experiments.settings.overlap import Evaluated
from chessreg.experiments.settings.sites import site_name
from chessreg.games.boardframe import BoardFrame, move_arrows
from chessreg.games.dataset import numbers
from chessreg.models.hook_points import check_editable, hook_point
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Estimate, Kind

if TYPE_CHECKING:
    from chessreg.runs.task import Task


__all__ = ["BoardEdit", "EditOptions", "EditSpec"]


MOST_TRIALS = 100_000_000  # of one run


class BoardEdit(Kind):
    """Board-state edits: subtract the probe's direction for the piece about to move; legal moves on either board.

    Karvonen 2024, section 4.1 and Tables 2, 6 and 8. A state whose clean greedy text is no legal move, or moves the
    king, is recorded as skipped. Beside sampled texts stands the exact probability of a legal move on the original and
    on the modified board, in canonical spelling and in every spelling. Layer sets times scales are one run, every
    state under each of them: `chessreg query "best board edit"` chooses on half of the games and reports on the rest.
    One unit is one state. With --moves the only state is the position after them, whoever is to move.

    With --measure next-token, which --board implies, the model's next token is read instead (Davis, Vasquez Ferrer &
    Sukthankar 2026, section 4): the piece on its most probable square is taken off by a share of the residual's norm,
    and the probability of tokens that begin a legal move is summed on the original board, without the piece, and on a
    later board of the game. `chessreg board RUN:UNIT` shows all squares before and after.
    """

    name = "edit"
    version = 2
    example = "--checkpoint reference --probe reference-board --dataset sample:test --games 5 --per-game 2"
    tables = ("trial", "metric_point")
    spec = EditSpec
    options = EditOptions
    columns = {"trial": EditRow}  # noqa: RUF012
    queries = (
        "board intervention legality", "best board edit", "edit specificity", "legal move mass by edit",
        "legal move mass by layer", "legal move mass by square", "edit strength", "legal move mass between edits",
        "legal move mass by expansion",
    )  # fmt: skip
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper-8": {**PAPER, "layers": (3, 4, 5, 6), "layers_label": "4-7", "scale": 1.5},
        "paper-16": {**PAPER, "layers": (5, 7, 9, 11, 13), "layers_label": "range(5,15,2)", "scale": 2.0},
        "author-2024": {**PAPER, "token_mask": "all", "layers": (5,), "scale": 1.5},
        **DAVIS_PRESETS,
    }

    def units(self, spec: EditSpec, inputs: Inputs) -> int:
        check(spec, inputs)
        return 1 if spec.moves else len(selections.select(spec, inputs)[1]) * spec.states_per_game

    def estimate(self, spec: EditSpec, inputs: Inputs) -> Estimate:
        tried = settings_of(spec, inputs)
        each = 1 + spec.controls + spec.shuffled + spec.wrong_layer + spec.sham + (spec.sae is not None)
        each += len(spec.other_probes) + (spec.patch != "none")
        conditions = 1 + len(tried) * each
        remarks = (f"{len(tried)} edits of every state: layers x scales",) if len(tried) > 1 else ()
        trials = self.units(spec, inputs) * conditions * (1 + spec.samples)
        size = 4 * trials * inputs.encoding(spec.checkpoint).answer_size if spec.measure == "next-token" else 0
        return Estimate({"trial": trials}, size, remarks)

    def check(self, spec: EditSpec, inputs: Inputs) -> None:
        if (trials := self.estimate(spec, inputs).rows["trial"]) > MOST_TRIALS:
            raise BadInputError(
                f"this grid has {trials:,} cells", f"lower --samples, --controls or --games: {MOST_TRIALS:,} fit"
            )
        if spec.moves:  # one position that somebody looks at claims nothing about unseen games
            return
        games, places = selections.select(spec, inputs)
        longest = int(numbers(games.table(["plies"]).column("plies"))[places].max())
        if spec.prefixes and longest <= min(spec.prefixes):
            raise BadInputError(
                f"no game goes on after {min(spec.prefixes)} plies, the longest has {longest}",
                "shorter --prefixes, or longer games",
            )
        overlap.refuse(inputs, spec.checkpoint, games, places, spec.allow_overlap)
        others = (*spec.other_probes, *spec.other_black_probes)
        for probe in filter(None, (spec.probe, spec.black_probe, *others)):
            overlap.refuse(inputs, probe, games, places, spec.allow_overlap, what="the probe")

    def run(self, task: Task[EditSpec, EditOptions]) -> None:
        from chessreg.experiments.edit.editor import Editor

        spec = task.spec
        if spec.measure == "next-token":
            from chessreg.experiments.edit.site_editor import SiteEditor

            SiteEditor(task).run(partial(measure_overlap, task))
            return
        editor = Editor(task)
        if spec.moves:
            editor.batch([after_moves(spec.sans, editor.encoding)])
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
        from chessreg.experiments.edit.three_boards import reads_next_token, views_of_case

        return views_of_case(row, inputs) if reads_next_token(row, inputs) else views_of_state(row, inputs)


def check(spec: EditSpec, inputs: Inputs) -> None:
    """Raises BadInputError or NotFoundError when probe, model and settings do not go together."""
    from chessreg.experiments.edit.directions import scale_rule

    checkpoint, _ = inputs.checkpoint(spec.checkpoint)
    encoding = inputs.encoding(spec.checkpoint)
    if spec.token_mask not in ("all", "last") and spec.token_mask not in encoding.site_names:
        raise BadInputError(f"{encoding.name} has no tokens called {spec.token_mask}", "--token-mask all, or last")
    if spec.wrong_layer and checkpoint.layers == 1:
        raise BadInputError("--wrong-layer needs another layer, and this model has one")
    next_token = spec.measure == "next-token"
    if spec.black_probe is not None and not next_token and BLACK not in encoding.site_names:
        raise BadInputError(f"--black-probe edits the tokens of {BLACK}, which {encoding.name} does not have")
    named = {"--probe": spec.probe, "--black-probe": spec.black_probe, "--shuffled-probe": spec.shuffled_probe}
    for option, references in (
        ("--other-probes", spec.other_probes),
        ("--other-black-probes", spec.other_black_probes),
    ):
        named |= {f"{option} ({place})": reference for place, reference in enumerate(references, 1)}
    named_probes = {name: reference for name, reference in named.items() if reference is not None}
    known: set[int] | None = None
    for name, reference in named_probes.items():
        probes: Sequence[tables.Probe] = inputs.rows(tables.Probe, inputs.run(reference, "probe"))
        check_probe(name, probes[0], spec, checkpoint, encoding)
        layers = {row.layer for row in probes}
        known = layers if known is None else known & layers
    assert known is not None
    rule = scale_rule(spec.scale_rule)
    if next_token:
        check_next_token(spec, inputs, encoding, checkpoint)
        if rule.target is not None:
            raise BadInputError(
                f"--scale-rule {rule.name} is of whole moves", f"--scale-rule {', '.join(RELATIVE)} or single_scale"
            )
    check_layers(spec, inputs, known, checkpoint)
    if spec.sae is not None:
        check_saes(
            inputs, spec.sae, spec.expansion, {n for each in settings_of(spec, inputs) for n in each.layers}, checkpoint
        )


def check_probe(
    name: str, probe: tables.Probe, spec: EditSpec, checkpoint: tables.Checkpoint, encoding: Encoding
) -> None:
    """Raises BadInputError for a probe, of the option `name`, that does not fit the model or the settings."""
    if probe.checkpoint_id is None:
        raise BadInputError(
            f"{name} is an import that does not say which checkpoint it was fitted on",
            "chessreg import probe FILE --checkpoint CHECKPOINT",
        )
    if probe.checkpoint_id != checkpoint.id:
        raise BadInputError(f"{name} was fitted on another checkpoint than --checkpoint", "chessreg probe list")
    if probe.classes != 13 or (name != "--shuffled-probe" and probe.label != "piece"):
        raise BadInputError(f"an edit needs probes of label piece, these read {probe.label}")
    check_editable(name, probe.hook_point)
    if checkpoint.residual == "centred" and not probe.detail["centred"]:
        raise BadInputError(
            f"{name} reads residuals with their mean, this checkpoint's are centred",
            "fit probes on this checkpoint",
        )
    if name == "--black-probe" and of_white(probe.positions, encoding):
        raise BadInputError(
            f"{name} was fitted at {probe.positions}, where White is to move",
            "fit it on a cache of Black's turns: black-turns",
        )
    if spec.scale_rule in RELATIVE and spec.measure != "next-token" and centred(checkpoint, probe):
        raise BadInputError(
            f"{name} reads residuals without their mean, and --scale-rule {spec.scale_rule} is of them as they are",
            "--scale-rule single_scale, or --measure next-token",
        )


def check_layers(spec: EditSpec, inputs: Inputs, known: set[int], checkpoint: tables.Checkpoint) -> None:
    """Raises BadInputError for an edited layer that the model or the probes (`known`: their layers) do not have."""
    for setting in settings_of(spec, inputs):
        if missing := [layer for layer in setting.layers if layer + spec.probe_shift not in known]:
            shifted = f" for layer {missing[0]}: --probe-shift is {spec.probe_shift}" if spec.probe_shift else ""
            raise BadInputError(
                f"there is no probe of layer {missing[0] + spec.probe_shift}{shifted}",
                f"there are probes of {', '.join(map(str, sorted(known))) or 'no layer that all of them have'}",
            )
        if missing := [layer for layer in setting.layers if not 0 <= layer < checkpoint.layers]:
            message, hint = f"the model has no layer {missing[0]}", f"it has layers 0 to {checkpoint.layers - 1}"
            if (shift := spec.probe_shift) and not spec.layers and not spec.layer_sets:
                message += f": the probe of {missing[0] + shift} is best, and --probe-shift {shift}"
                hint += "; choose with --layers"
            raise BadInputError(message, hint)


def check_saes(
    inputs: Inputs, reference: str, expansion: int | None, layers: Iterable[int], checkpoint: tables.Checkpoint
) -> None:
    """Raises BadInputError unless an SAE run has the residual of every edited layer of this checkpoint, and
    NotFoundError for an expansion that it lacks."""
    from chessreg.experiments.sae.stored import sae_rows

    rows = sae_rows(inputs, reference, expansion)
    if any(row.checkpoint_id != checkpoint.id for row in rows):
        raise BadInputError("--sae was trained on another checkpoint than --checkpoint", "chessreg sae list")
    there = {row.hook_point for row in rows}
    if missing := [layer for layer in sorted(layers) if hook_point(layer) not in there]:
        raise BadInputError(
            f"--sae has no SAE of {hook_point(missing[0])}, which is edited",
            f"it has those of {', '.join(sorted(there))}",
        )


RELATIVE = ("ln-final", "ln-next", "residual-norm")  # scale rules whose value is a share of the residual's norm


def centred(checkpoint: tables.Checkpoint, probe: tables.Probe) -> bool:
    """Whether a probe reads residuals without their mean, of a model whose residuals have one."""
    return checkpoint.residual == "raw" and bool(probe.detail["centred"])


def check_next_token(spec: EditSpec, inputs: Inputs, encoding: Encoding, checkpoint: tables.Checkpoint) -> None:
    """Raises BadInputError for what edits that read the next token cannot be made with."""
    from chessreg.experiments.edit.cases import of_moves, with_changes

    if all(encoding.origin_of(number) is None for number in range(encoding.answer_size)):
        raise BadInputError(
            f"one token of {encoding.name} does not name a square or a move",
            "--measure moves, or a model of UCI squares",
        )
    if spec.future_unit == "tokens" and encoding.content == "position":
        raise BadInputError(f"{encoding.name} writes positions, which have no later tokens", "--future-unit plies")
    if spec.token_mask not in ("all", "last") and encoding.content == "position":
        raise BadInputError(f"{encoding.name} writes positions", "--token-mask last, or all")
    if spec.moves:
        prefix = of_moves(spec, encoding)
        if len(prefix.state.prompt) > checkpoint.block_size:
            raise BadInputError(
                f"--moves are {len(prefix.state.prompt)} tokens, the model has {checkpoint.block_size} positions",
                "give fewer moves",
            )
        if spec.board:
            with_changes(prefix, spec.board)
        plies = [prefix.state.ply]
    else:
        plies = list(spec.prefixes) or [2]
    if spec.phase == "match" and spec.token_mask == "last":
        for ply in sorted({min(ply, 4 + ply % 2) for ply in plies}):
            check_phase(spec, inputs, encoding, ply)


def check_phase(spec: EditSpec, inputs: Inputs, encoding: Encoding, ply: int) -> None:
    """Raises BadInputError for a probe that was fitted at other tokens than those after so many plies."""
    side = ("White", "Black")[ply % 2]
    black = side == "Black" and spec.black_probe is not None
    references = {"--black-probe": (spec.black_probe,), "--other-black-probes": spec.other_black_probes}
    if not black:
        references = {"--probe": (spec.probe,), "--other-probes": spec.other_probes}
    prompt = encoding.prompt(KNIGHTS[:ply])
    tokens = Tokens.of([prompt])
    fitted = [(option, reference) for option, own in references.items() for reference in own if reference is not None]
    for option, reference in fitted:
        probe = inputs.rows(tables.Probe, inputs.run(reference, "probe"))[0]
        site = site_name(probe.positions, encoding)
        known = site in encoding.site_names
        if known and len(prompt) - 1 in encoding.sites(site, tokens).token:
            continue
        where = f"at {site}" if known else "at tokens that it does not name"
        hint = "--phase any, or a probe that was fitted there"
        if side == "Black" and not black:
            hint += ": --black-probe"
        raise BadInputError(f"{option} was fitted {where}, and {side} is to move after {ply} plies", hint)


KNIGHTS = ("Nf3", "Nf6", "Ng1", "Ng8", "Nf3")  # some game, whose tokens have every phase of a turn


def of_white(site: str, encoding: Encoding) -> bool:
    """Whether White is to move at every site of this name."""
    sites = encoding.sites(site_name(site, encoding), Tokens.of([encoding.prompt(["e4", "e5", "Nf3", "Nc6"])]))
    return len(sites) > 0 and bool((sites.ply % 2 == 0).all())


def measure_overlap(task: Task[EditSpec, EditOptions], games: Any, places: np.ndarray) -> None:
    """What the edited games share with the training games of the model and of the probe, as metric points of unit 0."""
    evaluated = Evaluated.of(games, places)
    inputs = {"checkpoint": task.spec.checkpoint, "probe": task.spec.probe, "black-probe": task.spec.black_probe}
    for name, reference in inputs.items():
        if reference is None:
            continue
        counted = overlap.measure(task.inputs, reference, evaluated)
        for column, value in counted.columns().items():
            if isinstance(value, int):
                task.emit("metric_point", 0, name=f"overlap/{name}/{column}", step=0, value=float(value))


# -- the boards behind a state ---------------------------------------------------


def views_of_state(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """The original board with the clean model's texts and the modified one with the edited model's; as heat what the
    probe reads of the removed piece in each, while model and probe are here."""
    boards, condition = boards_of_state(row, inputs)
    return with_heat(boards, inputs, row, condition) if condition else boards


def boards_of_state(row: Mapping[str, Any], inputs: Inputs) -> tuple[list[BoardFrame], str]:
    """The two boards as the rows tell them, without a model, and the condition of the second; of a state that was
    skipped the one board, and no condition."""
    rows = inputs.unit_rows(tables.Trial, row, tables.Trial.condition, tables.Trial.sample)
    encoding = inputs.encoding(EditSpec(**inputs.spec_of(row)).checkpoint)
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
        heat_readings = readings(inputs, UUID(str(row["run_id"])), int(row["unit"]), condition)
    except NotFoundError:
        return boards
    label = f"probability of {PIECE_CLASSES[heat_readings.label]} to the probe of layer {heat_readings.layer}"
    warm = []
    for frame, which in zip(boards, WHICH, strict=True):
        values = np.clip(heat_readings.values(which, heat_readings.label, "probability"), 0.0, 1.0).tolist()
        warm.append(replace(frame, heat=dict(enumerate(values)), heat_label=label))
    return warm


def caption_of(rows: list[tables.Trial]) -> tuple[str, ...]:
    greedy = next(r for r in rows if r.sample == -1)
    texts = ", ".join(f"{r.text}{'' if r.legal_original or r.legal_modified else '?'}" for r in rows if r.sample >= 0)
    lines = [f"greedy {greedy.text}; sampled {texts}"]
    if greedy.mass_original is not None and greedy.mass_modified is not None:
        lines.append(f"legal mass {greedy.mass_original:.3f} on the original board, {greedy.mass_modified:.3f} without")
    return tuple(lines)
