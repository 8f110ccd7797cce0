"""What an edit is: the settings of a run, the edits that they make, and the columns of its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.settings.games import GameSelection
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.games.typed import typed_moves
from chessreg.registry import tables
from chessreg.runs.fitted import best_layer
from chessreg.runs.spec import Added, AtMost, CheckpointRef, ExecutionOptions, Layers, Moves, Ref, Stored, clipped

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs

MOST_EDITS = 10_000  # of one state
CLEAN = "clean"
WHITE, BLACK = "white-segments", "black-segments"
BY_SIDE = "by-side"  # every token, with the direction of the side that is to move there

PAPER = {
    "games": 200,
    "keep_duplicates": True,
    "per_game": 30,
    "last_move": 30,
    "scale_rule": "single_scale",
    "token_mask": "last",
    "king": "skip",
    "guard": "author",
    "samples": 5,
    "max_tokens": 7,
}


class EditSpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    probe: Annotated[str, Ref("run:probe")] = Field(description="piece probes of that model: the directions")
    black_probe: Annotated[str | None, Added(), Ref("run:probe")] = Field(
        None, description="piece probes fitted where Black is to move: the tokens of his moves are edited with these"
    )
    dataset: Annotated[str | None, Ref("dataset")] = Field(  # type: ignore[assignment]
        None, description="games: a dataset, or one part of it (NAME:PART)"
    )
    moves: Annotated[str, Added()] = Field(
        "", description="edit one position instead: the moves that lead there (SAN), or a FEN near the start"
    )
    games: int = Field(200, ge=1, description="games to take states from, the first in file order (Karvonen: 200)")
    per_game: int = Field(30, ge=1, description="states of each game (Karvonen: White's first 30 moves)")
    last_move: Moves = Field(30, ge=1, description="states are among White's moves 1 to this one")
    layers: Layers = Field((), description="layers to edit, 0-based; none: the one that validation chooses")
    layers_label: str = Field("", description="what a paper calls these layers, such as 4-7: text beside the list")
    layer_sets: tuple[str, ...] = Field((), description="layer sets to try: 5,3-6,5+7+9 or each; instead of --layers")
    scale: float = Field(1.5, description="length of what is subtracted (Karvonen Table 6: 1.5 and 2.0)")
    scales: tuple[float, ...] = Field((), description="several to try with every layer set; instead of --scale")
    scale_rule: str = Field("single_scale", description="or single_target, average_target: --scale is a logit, offset")
    piece: float = Field(1.0, description="coefficient of the piece's direction, before the sum is normalised")
    blank: float = Field(0.0, description="coefficient of the empty-square direction, taken off the piece's")
    token_mask: Annotated[Literal["all", "last", "white-segments"], Stored("positions")] = Field(
        "all", description="tokens that are edited"
    )
    king: Literal["skip", "include"] = Field("skip", description="states in which the king is about to move")
    guard: Literal["author", "fixed"] = Field("author", description="fixed: leave out modified boards without a move")
    controls: Annotated[int, AtMost(1000, "more say no more")] = Field(
        1, ge=0, description="random directions of the same length, per state"
    )
    shuffled: Annotated[int, AtMost(1000, "more say no more")] = Field(
        1, ge=0, description="directions for another piece on that square, of the same length"
    )
    shuffled_probe: Annotated[str | None, Ref("run:probe")] = Field(
        None, description="probes of shuffled labels: their directions as the shuffled control"
    )
    wrong_layer: Annotated[bool, Added()] = Field(
        False, description="also a control: the same directions, each half the model's depth away from its layer"
    )
    sham: Annotated[bool, Added()] = Field(
        False, description="also a control: the edit with length 0, which must change nothing"
    )
    samples: Annotated[int, AtMost(1000, "more say no more")] = Field(
        5, ge=0, description="texts drawn per condition (Karvonen: 5)"
    )
    temperature: float = Field(1.0, gt=0, description="of the drawn texts")
    max_tokens: Annotated[int, Stored("max_characters"), AtMost(1000, "no move is longer")] = Field(
        10, ge=2, description="tokens after which a longer text is cut (Karvonen: 7)"
    )
    spellings: bool = Field(True, description="also the exact probability of every way to write a legal move")
    allow_overlap: AllowOverlap = ALLOW_OVERLAP

    @field_validator("token_mask", mode="before")
    @classmethod
    def _hyphens(cls, mask: Any) -> Any:
        return mask.replace("_", "-") if isinstance(mask, str) else mask

    @field_validator("moves")
    @classmethod
    def _one_spelling(cls, moves: str) -> str:
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
        if self.black_probe is not None and (self.token_mask != "all" or self.scale_rule != "single_scale"):
            raise BadInputError(
                "with --black-probe all tokens are edited, by a length",
                "leave out --token-mask, and --scale-rule or say single_scale",
            )
        if not (self.piece or self.blank):
            raise BadInputError("--piece 0 and --blank 0 leave no direction")
        if self.per_game > self.last_move:
            raise BadInputError(f"a game has {self.last_move} states at most, --per-game asks for {self.per_game}")
        return self


class EditHow(ExecutionOptions):
    batch_states: int = Field(32, ge=1, description="states in one batch")


class EditRow(BaseModel):
    """The columns that edits add to their trials; on the greedy row of each condition."""

    piece: str | None = None
    square: str | None = None
    move: str | None = None  # the clean model's move, UCI
    skipped: str | None = None  # illegal, king, no moves, too long
    position: str | None = None  # Zobrist hash: equal where two states are the same position
    half: str | None = None  # choose or report: states.selection_split
    setting: int | None = None  # number of the edit in a sweep
    scales: list[float] | None = None  # what the scale rule gave, a layer
    spelled_original: float | None = None  # exact probability of all that is read as a legal move
    spelled_modified: float | None = None
    spelled_missed: float | None = None  # at most so much more
    # Against the clean model in the same state, over the moves that are legal on both boards:
    shared_mass: float | None = None  # exact probability of these moves
    shared_moved: float | None = None  # share of it that went from one of them to another (total variation)
    shared_kl: float | None = None  # Kullback-Leibler divergence of the clean choice among them, nats
    # What the probe of the last layer that has one reads where the move begins:
    read_empty: float | None = None  # probability that the square of the piece is empty
    squares_changed: float | None = None  # share of the 63 other squares whose most probable class is another


# -- which edits a run tries: sets of layers times values of the scale rule -------------------------

EACH = "each"


@dataclass(frozen=True)
class Setting:
    """One edit: number in its run, layers (0-based, rising), and the scale rule's value."""

    number: int
    layers: tuple[int, ...]
    value: float


def parse_layers(text: str) -> tuple[int, ...]:
    """A set of layers: `5`, `3-6` (both included), `5+7+9`. Raises BadInputError for anything else.

    >>> parse_layers("3-5+7")
    (3, 4, 5, 7)
    """
    found: set[int] = set()
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise BadInputError(f"{clipped(text)!r} is no set of layers", "write 5, 3-6 or 5+7+9")
        if len(match[2] or match[1]) > 4:
            raise BadInputError(f"{clipped(text)!r} names layers that no model has", "write 5, 3-6 or 5+7+9")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def settings_of(spec: EditSpec, inputs: Inputs) -> list[Setting]:
    """Every edit of the run, layer sets first. Raises BadInputError when the spec names layers or values twice."""
    sets: Sequence[tuple[int, ...]]
    if spec.layer_sets == (EACH,):
        sets = [(layer,) for layer in probed_layers(spec.probe, inputs)]
    elif spec.layer_sets:
        sets = list(map(parse_layers, spec.layer_sets))
    else:
        sets = [tuple(sorted(set(spec.layers))) or (chosen_layer(spec.probe, inputs),)]
    values = spec.scales or (spec.scale,)
    for name, given in (("--layer-sets", sets), ("--scales", values)):
        if len(set(given)) < len(given):
            raise BadInputError(f"{name} names one of its values twice")
    if len(sets) * len(values) > MOST_EDITS:
        count = f"{len(sets) * len(values):,} edits of every state"
        raise BadInputError(f"--layer-sets times --scales are {count}, one run takes {MOST_EDITS:,}")
    return [Setting(n, *pair) for n, pair in enumerate((s, v) for s in sets for v in values)]


def probed_layers(recipe: str, inputs: Inputs) -> list[int]:
    """The layers that a probe run has probes of."""
    return sorted({row.layer for row in inputs.rows(tables.Probe, inputs.run(recipe, "probe"))})


def chosen_layer(recipe: str, inputs: Inputs) -> int:
    """The only layer there is, or the one that the probe's validation games choose."""
    layers = probed_layers(recipe, inputs)
    return layers[0] if len(layers) == 1 else best_layer(inputs, recipe)
