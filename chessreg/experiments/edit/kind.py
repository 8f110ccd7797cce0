"""`edit`: take a piece off the board inside the model, and see whether its moves become legal on the other board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BaseModel, Field, field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.settings import overlap
from chessreg.experiments.settings.games import GameSelection, select
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap, Evaluated
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import Added, CheckpointRef, How, Ref

if TYPE_CHECKING:
    from chessreg.games.boardframe import BoardFrame
    from chessreg.runs.task import Task

PAPER = {
    "games": 200,
    "keep_duplicates": True,
    "per_game": 30,
    "last_move": 30,
    "scale_rule": "single_scale",
    "positions": "last",
    "king": "skip",
    "guard": "author",
    "samples": 5,
    "max_characters": 7,
}


class EditSpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    probe: Annotated[str, Ref("run:probe")] = Field(description="piece probes of that model: the directions")
    black_probe: Annotated[str | None, Added(), Ref("run:probe")] = Field(
        None, description="piece probes fitted where Black is to move: Black's characters are edited with these"
    )
    dataset: Annotated[str | None, Ref("dataset")] = Field(  # type: ignore[assignment]
        None, description="games: a dataset, or one part of it (NAME:PART)"
    )
    moves: Annotated[str, Added()] = Field(
        "", description="edit one position instead: the moves that lead there (SAN), or a FEN near the start"
    )
    games: int = Field(200, ge=1, description="games to take states from, the first in file order (Karvonen: 200)")
    per_game: int = Field(30, ge=1, description="states of each game (Karvonen: White's first 30 moves)")
    last_move: int = Field(30, ge=1, description="states are among White's moves 1 to this one")
    layers: tuple[int, ...] = Field((), description="layers to edit, 0-based; none: the one that validation chooses")
    layers_label: str = Field("", description="what a paper calls these layers, such as 4-7: text beside the list")
    layer_sets: tuple[str, ...] = Field((), description="layer sets to try: 5,3-6,5+7+9 or each; instead of --layers")
    scale: float = Field(1.5, description="length of what is subtracted (Karvonen Table 6: 1.5 and 2.0)")
    scales: tuple[float, ...] = Field((), description="several to try with every layer set; instead of --scale")
    scale_rule: str = Field("single_scale", description="or single_target, average_target: --scale is a logit, offset")
    piece: float = Field(1.0, description="coefficient of the piece's direction, before the sum is normalised")
    blank: float = Field(0.0, description="coefficient of the empty-square direction, taken off the piece's")
    positions: Literal["all", "last", "white-segments"] = Field("all", description="positions that are edited")
    king: Literal["skip", "include"] = Field("skip", description="states in which the king is about to move")
    guard: Literal["author", "fixed"] = Field("author", description="fixed: leave out modified boards without a move")
    controls: int = Field(1, ge=0, description="random directions of the same length, per state")
    shuffled: int = Field(1, ge=0, description="directions for another piece on that square, of the same length")
    shuffled_probe: Annotated[str | None, Ref("run:probe")] = Field(
        None, description="probes of shuffled labels: their directions as the shuffled control"
    )
    samples: int = Field(5, ge=0, description="texts drawn per condition (Karvonen: 5)")
    temperature: float = Field(1.0, gt=0, description="of the drawn texts")
    max_characters: int = Field(10, ge=2, description="a longer text is cut here (Karvonen: 7)")
    spellings: bool = Field(True, description="also the exact probability of every spelling of a legal move")
    allow_overlap: AllowOverlap = ALLOW_OVERLAP

    @field_validator("positions", mode="before")
    @classmethod
    def _hyphens(cls, positions: Any) -> Any:
        return positions.replace("_", "-") if isinstance(positions, str) else positions

    @field_validator("moves")
    @classmethod
    def _one_spelling(cls, moves: str) -> str:
        from chessreg.games.typed import typed_moves

        return " ".join(typed_moves(moves))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Settings without effect would make two runs of one experiment."""
        if (self.dataset is None) == (not self.moves):
            raise BadInputError("an edit is of games or of one position", "give --dataset or --moves")
        if self.layers and self.layer_sets:
            raise BadInputError("--layers and --layer-sets both say what to edit", "give one of them")
        if self.scales and "scale" in self.model_fields_set and self.scale != EditSpec.model_fields["scale"].default:
            raise BadInputError("--scale and --scales both say how strongly to edit", "give one of them")
        if self.layers_label and not self.layers:
            raise BadInputError("--layers-label names the layers of --layers", "give --layers")
        if self.shuffled_probe is not None and self.shuffled == 0:
            raise BadInputError("--shuffled-probe is given, but --shuffled 0 leaves that control out")
        if self.shuffled_probe is not None and self.shuffled > 1:
            raise BadInputError(f"one shuffled probe gives one direction, --shuffled asks for {self.shuffled}")
        if self.black_probe is not None and (self.positions != "all" or self.scale_rule != "single_scale"):
            raise BadInputError(
                "with --black-probe all positions are edited, by a length",
                "leave out --positions, and --scale-rule or say single_scale",
            )
        if not (self.piece or self.blank):
            raise BadInputError("--piece 0 and --blank 0 leave no direction")
        if self.per_game > self.last_move:
            raise BadInputError(f"a game has {self.last_move} states at most, --per-game asks for {self.per_game}")
        return self


class EditHow(How):
    batch_states: int = Field(32, ge=1, description="states in one batch")


class EditRow(BaseModel):
    """The columns that edits add to their trials; on the greedy row of each condition."""

    piece: str | None = None
    square: str | None = None
    move: str | None = None  # the clean model's move, UCI
    skipped: str | None = None  # illegal, king, no moves, too long
    position: str | None = None  # Zobrist hash: equal where two states are the same position
    half: str | None = None  # choose or report, by game: settings are compared on one and told on the other
    setting: int | None = None  # number of the edit in a sweep
    scales: list[float] | None = None  # what the scale rule gave, a layer
    spelled_original: float | None = None  # exact probability of a legal move in any spelling that parse_san takes
    spelled_modified: float | None = None
    spelled_missed: float | None = None  # at most so much more


class Edit(Kind):
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
    families = ("trial", "metric_point")
    spec = EditSpec
    how = EditHow
    detail = {"trial": EditRow}  # noqa: RUF012
    queries = ("board intervention legality", "best board edit")
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper-8": {**PAPER, "layers": (3, 4, 5, 6), "layers_label": "4-7", "scale": 1.5},
        "paper-16": {**PAPER, "layers": (5, 7, 9, 11, 13), "layers_label": "range(5,15,2)", "scale": 2.0},
        "author-2024": {**PAPER, "positions": "all", "layers": (5,), "scale": 1.5},
    }

    def units(self, spec: EditSpec, inputs: Inputs) -> int:
        check(spec, inputs)
        return 1 if spec.moves else len(select(spec, inputs)[1]) * spec.per_game

    def estimate(self, spec: EditSpec, inputs: Inputs) -> Estimate:
        from chessreg.experiments.edit.settings import settings_of

        tried = settings_of(spec, inputs)
        conditions = 1 + len(tried) * (1 + spec.controls + spec.shuffled)
        remarks = (f"{len(tried)} edits of every state: layers x scales",) if len(tried) > 1 else ()
        return Estimate({"trial": self.units(spec, inputs) * conditions * (1 + spec.samples)}, remarks=remarks)

    def check(self, spec: EditSpec, inputs: Inputs) -> None:
        if spec.moves:  # one position that somebody looks at claims nothing about unseen games
            return
        games, places = select(spec, inputs)
        overlap.refuse(inputs, spec.checkpoint, games, places, spec.allow_overlap)
        for probe in filter(None, (spec.probe, spec.black_probe)):
            overlap.refuse(inputs, probe, games, places, spec.allow_overlap, what="the probe")

    def run(self, task: Task[EditSpec, EditHow]) -> None:
        from chessreg.experiments.edit.editor import Editor
        from chessreg.experiments.edit.states import given, states

        spec = task.spec
        editor = Editor(task)
        if spec.moves:
            editor.batch([given(spec.moves)])
            task.done(0)
            return
        games, places = select(spec, task.inputs)
        for start in range(0, len(task.units), task.how.batch_states):
            units = task.units[start : start + task.how.batch_states]
            editor.batch(states(spec, games, places, units))
            if 0 in units:
                measure_overlap(task, games, places)
            for unit in units:
                task.done(unit)

    def frames(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        from chessreg.experiments.edit.frames import frames_of_state

        return frames_of_state(row, inputs)


def check(spec: EditSpec, inputs: Inputs) -> None:
    """Raises BadInputError or NotFoundError when probe, model and settings do not go together."""
    from chessreg.experiments.edit.scales import scale_rule
    from chessreg.experiments.edit.settings import settings_of

    checkpoint, _ = inputs.checkpoint(spec.checkpoint)
    named = {"--probe": spec.probe, "--black-probe": spec.black_probe, "--shuffled-probe": spec.shuffled_probe}
    given = {name: recipe for name, recipe in named.items() if recipe is not None}
    known: set[int] = set()
    for name, recipe in given.items():
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
        if checkpoint.residual == "centred" and not probes[0].detail["centred"]:
            raise BadInputError(
                f"{name} reads residuals with their mean, this checkpoint's are centred",
                "fit probes on this checkpoint",
            )
        if name == "--black-probe" and probes[0].positions in ("dots", "odd-spaces"):
            raise BadInputError(
                f"{name} was fitted at {probes[0].positions}, where White is to move",
                "fit it on a cache of --positions even-spaces",
            )
        layers = {row.layer for row in probes}
        known = known & layers if known else layers
    scale_rule(spec.scale_rule)
    for setting in settings_of(spec, inputs):
        if missing := [layer for layer in setting.layers if layer not in known]:
            raise BadInputError(
                f"there is no probe of layer {missing[0]}", f"there are probes of {', '.join(map(str, sorted(known)))}"
            )


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
