"""What an edit is: the settings of a run, the edits that they make, and the columns of its rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.settings.games import GameSelection
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.games.labels import in_one_order
from chessreg.games.typed import INITIAL, moves_after, typed_moves
from chessreg.named import clipped
from chessreg.registry import tables
from chessreg.runs.fitted import best_layer
from chessreg.runs.kind import SparseRow
from chessreg.runs.spec import (
    AtMost,
    CheckpointRef,
    Distinct,
    ExecutionOptions,
    Layers,
    Moves,
    NotWith,
    Ref,
)

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs

MOST_EDITS = 10_000  # of one state
LONGEST_GAME = 17_697  # plies
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

NEXT_TOKEN: Mapping[str, Any] = {  # what is filled in where the next token is read (Davis specification 6.1)
    "scale": 0.5,
    "scale_rule": "ln-final",
    "token_mask": "last",
    "samples": 0,
    "spellings": False,
}
DAVIS: Mapping[str, Any] = {  # specification 6.3: the grid of the published code; --scale is filled in as above
    **{name: value for name, value in NEXT_TOKEN.items() if name != "scale"},
    "measure": "next-token",
    "games": 2000,
    "prefixes": (4, 9, 14, 19, 24, 29, 34),
    "controls": 1,
    "future": 6,
}
PROTOCOLS: Mapping[str, Mapping[str, Any]] = {  # what paper, code and correction differ in (specification 8, end)
    "paper": {
        "future_unit": "tokens", "patch": "unit", "random_draw": "sphere", "phase": "match", "probe_shift": 0,
    },
    "published-code": {
        "future_unit": "plies", "patch": "raw", "random_draw": "uniform-matrix", "phase": "any", "probe_shift": -1,
    },
    "corrected": {
        "future_unit": "plies", "patch": "unit", "random_draw": "sphere", "phase": "match", "probe_shift": 0,
    },
}  # fmt: skip
DAVIS_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "davis-paper": {**DAVIS, **PROTOCOLS["paper"], "shuffled": 0, "king": "skip"},
    "davis-published-code": {**DAVIS, **PROTOCOLS["published-code"], "shuffled": 0, "king": "include"},
    "davis-corrected": {**DAVIS, **PROTOCOLS["corrected"], "shuffled": 1, "king": "skip"},
}


class EditSpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    probe: Annotated[str, Ref("run:probe")] = Field(description="piece probes of that model: the directions")
    black_probe: Annotated[str | None, Ref("run:probe")] = Field(
        None, description="piece probes fitted where Black is to move: the tokens of his moves are edited with these"
    )
    dataset: Annotated[str | None, Ref("dataset")] = Field(  # type: ignore[assignment]
        None, description="games: a dataset, or one part of it (NAME:PART)"
    )
    moves: str = Field(
        "", description="edit one position instead: the moves that lead there (SAN or UCI), startpos, or a FEN near it"
    )
    games: int = Field(200, ge=1, description="games to take states from, the first in file order (Karvonen: 200)")
    per_game: int = Field(30, ge=1, description="states of each game (Karvonen: White's first 30 moves)")
    last_move: Moves = Field(30, ge=1, description="states are among White's moves 1 to this one")
    layers: Annotated[Layers, NotWith("layer_sets", "what to edit")] = Field(
        (), description="layers to edit, 0-based; none: the one that validation chooses"
    )
    layers_label: str = Field("", description="what a paper calls these layers, such as 4-7: text beside the list")
    layer_sets: tuple[str, ...] = Field((), description="layer sets to try: 5,3-6,5+7+9 or each; instead of --layers")
    scale: Annotated[float, NotWith("scales", "how strongly to edit")] = Field(
        1.5,
        description="length of what is subtracted (Karvonen Table 6: 1.5 and 2.0), or what --scale-rule says; below 0 "
        "it is added. With --measure next-token: 0.5, Davis's α",
    )
    scales: tuple[float, ...] = Field((), description="several to try with every layer set; instead of --scale")
    scale_rule: str = Field(
        "single_scale",
        description="what --scale is: single_scale a length; single_target a logit, average_target an offset to a mean "
        "one; ln-final (Davis), ln-next or residual-norm a share of a norm of the residual",
    )
    piece: float = Field(1.0, description="coefficient of the piece's direction, before the sum is normalised")
    blank: float = Field(0.0, description="coefficient of the empty-square direction, taken off the piece's")
    token_mask: Literal["all", "last", "white-segments", "turns"] = Field("all", description="tokens that are edited")
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
    wrong_layer: bool = Field(
        False, description="also a control: the same directions, each half the model's depth away from its layer"
    )
    sham: bool = Field(False, description="also a control: the edit with length 0, which must change nothing")
    sae: Annotated[str | None, Ref("run:sae")] = Field(
        None,
        description="also a control: at the same layers and tokens the residual as these SAEs reconstruct it, and "
        "nothing subtracted (encode-decode)",
    )
    expansion: int | None = Field(
        None, ge=1, description="which expansion of --sae, as latents per dimension; none: its only one"
    )
    samples: Annotated[int, AtMost(1000, "more say no more")] = Field(
        5, ge=0, description="texts drawn per condition (Karvonen: 5)"
    )
    temperature: float = Field(1.0, gt=0, description="of the drawn texts")
    max_tokens: Annotated[int, AtMost(1000, "no move is longer")] = Field(
        10, ge=2, description="tokens after which a longer text is cut (Karvonen: 7)"
    )
    spellings: bool = Field(True, description="also the exact probability of every way to write a legal move")
    measure: Literal["moves", "next-token"] = Field(
        "moves", description="what is read: whole moves, or the next token, which names a square or a move (Davis)"
    )
    prefixes: Annotated[tuple[int, ...], Distinct()] = Field(
        (), description="states are after so many plies of each game, whoever is to move (Davis: 4,9,14,…,34)"
    )
    board: str = Field(
        "",
        description="with --moves: squares to change, such as d5=. d7=p; none: the piece on the most probable square "
        "is taken off",
    )
    future: Annotated[int, AtMost(17_697, "no game of chess is longer")] = Field(
        6, ge=1, description="the later board of the same game, so much further on (Davis: 6)"
    )
    future_unit: Literal["plies", "tokens"] = Field(
        "plies", description="what --future counts: plies as Davis's code, or tokens as his text"
    )
    patch: Literal["none", "unit", "raw"] = Field(
        "none", description="also an edit: the residual of the later board, normalised, or as it is (published code)"
    )
    later: str = Field("", description="with --moves: the moves that follow there, to the later board (SAN or UCI)")
    random_draw: Literal["sphere", "uniform-matrix"] = Field(
        "sphere", description="random directions: of unit length, or Davis's code: rows of one uniform unit matrix"
    )
    other_probes: Annotated[tuple[str, ...], Distinct(), Ref("run:probe")] = Field(
        (), description="more piece probes of the model, each an edit of its own (SAE-Probe, CD-Probe, DM-Probe)"
    )
    other_black_probes: Annotated[tuple[str, ...], Distinct(), Ref("run:probe")] = Field(
        (), description="as --black-probe for --probe: one for each of --other-probes"
    )
    class_mean: Literal["keep", "remove"] = Field(
        "keep", description="remove: directions without the mean of their square's classes, which no probe can tell"
    )
    phase: Literal["match", "any"] = Field(
        "match", description="match: probes must be fitted at tokens such as are edited; any: as Davis's code"
    )
    probe_shift: Annotated[int, AtMost(1000, "no model has more layers")] = Field(
        0, ge=-1000, description="layer of the probe minus the layer it edits (Davis's code: -1)"
    )
    decay: float = Field(
        0.0, ge=0, description="k of a scale that falls with the token's index i: scale times exp(-k i)"
    )
    allow_overlap: AllowOverlap = ALLOW_OVERLAP

    @model_validator(mode="before")
    @classmethod
    def _of_next_token(cls, values: Any) -> Any:
        """Where the next token is read, Davis's settings are the defaults of those that are recorded in any case."""
        if not isinstance(values, dict) or not (values.get("board") or values.get("measure") == "next-token"):
            return values
        filled = {name: value for name, value in NEXT_TOKEN.items() if name not in values}
        if values.get("scales"):
            filled.pop("scale", None)
        return {"measure": "next-token", **filled, **values}

    @field_validator("board")
    @classmethod
    def _one_order(cls, board: str) -> str:
        return in_one_order(board)

    @field_validator("token_mask", mode="before")
    @classmethod
    def _hyphens(cls, mask: Any) -> Any:
        return mask.replace("_", "-") if isinstance(mask, str) else mask

    @field_validator("moves")
    @classmethod
    def _one_spelling(cls, moves: str) -> str:
        return " ".join(typed_moves(moves)) or (INITIAL if moves.strip() else "")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Settings without effect would make two runs of one experiment."""
        if (self.dataset is None) == (not self.moves):
            raise BadInputError("an edit is of games or of one position", "give --dataset or --moves")
        if self.later and self.moves:
            object.__setattr__(self, "later", moves_after(" ".join(self.sans), self.later))
        if self.layers_label and not self.layers:
            raise BadInputError("--layers-label names the layers of --layers", "give --layers")
        if self.shuffled_probe is not None and self.shuffled == 0:
            raise BadInputError("--shuffled-probe is given, but --shuffled 0 leaves that control out")
        if self.shuffled_probe is not None and self.shuffled > 1:
            raise BadInputError(f"one shuffled probe gives one direction, --shuffled asks for {self.shuffled}")
        self._check_next_token()
        with_black = self.black_probe is not None and self.measure == "moves"
        if with_black and (self.token_mask != "all" or self.scale_rule != "single_scale"):
            raise BadInputError(
                "with --black-probe all tokens are edited, by a length",
                "leave out --token-mask, and --scale-rule or say single_scale",
            )
        if not (self.piece or self.blank):
            raise BadInputError("--piece 0 and --blank 0 leave no direction")
        if self.per_game > self.last_move:
            raise BadInputError(f"a game has {self.last_move} states at most, --per-game asks for {self.per_game}")
        return self

    def _check_next_token(self) -> None:
        if self.expansion is not None and self.sae is None:
            raise BadInputError("--expansion chooses among the SAEs of --sae", "give --sae RUN, or leave it out")
        if self.measure == "moves":
            fields = type(self).model_fields
            for name in ONLY_NEXT_TOKEN:
                if getattr(self, name) != fields[name].get_default():
                    raise BadInputError(f"--{name.replace('_', '-')} is of edits that read the next token",
                                        "add --measure next-token")  # fmt: skip
            if self.token_mask == "turns":
                raise BadInputError("--token-mask turns is of edits that read the next token", "--token-mask all")
            return
        if self.sae is not None:
            raise BadInputError("--sae is of edits that read whole moves", "leave it out, or --measure moves")
        if self.samples or self.spellings:
            raise BadInputError("with --measure next-token no texts are drawn", "--samples 0 --no-spellings")
        if self.token_mask == "white-segments":
            raise BadInputError("with --measure next-token --token-mask is last, turns or all")
        if self.token_mask != "last" and (self.black_probe is not None or self.decay):
            raise BadInputError("--black-probe and --decay are of edits of the last token", "--token-mask last")
        if self.board and not self.moves:
            raise BadInputError("--board changes the position of --moves", "give --moves, or leave out --board")
        if self.moves and self.prefixes:
            raise BadInputError("--prefixes needs games", "give --dataset instead of --moves")
        if self.moves and self.patch != "none" and not self.later:
            raise BadInputError("--patch needs a later board", "give --later MOVES, or --dataset instead of --moves")
        if self.later and not self.moves:
            raise BadInputError("--later follows on --moves", "of games --future says how far the later board is")
        if self.patch == "raw" and self.token_mask != "last":
            raise BadInputError("a patch is of the last token", "--token-mask last")
        if any(not 0 <= plies <= LONGEST_GAME for plies in self.prefixes):
            raise BadInputError(f"--prefixes are plies, 0 to {LONGEST_GAME:,}")
        if self.prefixes and (self.per_game, self.last_move) != (30, 30):
            raise BadInputError("--prefixes says which states are taken, and so do --per-game and --last-move")
        if self.other_black_probes and len(self.other_black_probes) != len(self.other_probes):
            raise BadInputError("--other-black-probes has one for each of --other-probes, or none")
        if bool(self.other_probes and self.black_probe) != bool(self.other_black_probes):
            raise BadInputError("--black-probe and --other-black-probes go together", "give both, or none")

    @property
    def sans(self) -> tuple[str, ...]:
        """Of one position the moves that lead there."""
        return tuple(self.moves.split()) if self.moves != INITIAL else ()

    @property
    def states_per_game(self) -> int:
        """Units of each game; shorter games have fewer states."""
        return len(self.prefixes) or self.per_game

    @property
    def protocol(self) -> str:
        """Which of Davis's protocols the settings are; none of them: empty."""
        if self.measure != "next-token":
            return ""
        for name, settings in PROTOCOLS.items():
            if all(getattr(self, field) == value for field, value in settings.items()):
                return name
        return ""


ONLY_NEXT_TOKEN = (
    "prefixes", "board", "later", "future", "future_unit", "patch", "random_draw", "other_probes", "other_black_probes",
    "class_mean", "phase", "probe_shift", "decay",
)  # fmt: skip


class EditOptions(ExecutionOptions):
    batch_states: int = Field(32, ge=1, description="states in one batch")
    group_states: int = Field(
        1024, ge=1, description="states whose probabilities of the next token are stored, and count, together"
    )


class EditRow(SparseRow):
    """The columns that edits add to their trials; on the greedy row of each condition."""

    piece: str | None = None
    square: str | None = None
    move: str | None = None  # the clean model's move, UCI
    skipped: str | None = None  # illegal, king, no moves, too long, no direction
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
    # Where the next token is read (Davis specification 6.4), of trials with this condition:
    target: str | None = None  # FEN of the board that the edit aims at; on the clean row
    target_status: int | None = None  # its python-chess status bits: no king, opposite check, …
    later: str | None = None  # FEN of the later board of the game
    mass_future: float | None = None  # probability of tokens that begin a legal move there
    argmax_kept: bool | None = None  # the most probable token is the clean model's
    p_argmax: float | None = None  # its probability
    p_square: float | None = None  # probability of tokens that move the piece of the favourite square
    kl: float | None = None  # Kullback-Leibler divergence of the clean distribution from this one, nats
    reference_norm: float | None = None  # norm that the scale is a share of, at the lowest edited layer
    vector_norm: float | None = None  # of the direction there
    edit_norm: float | None = None  # length of what is added there
    row: int | None = None  # in the stored probabilities


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
    layers: set[int] = set()
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise BadInputError(f"{clipped(text)!r} is no set of layers", "write 5, 3-6 or 5+7+9")
        if len(match[2] or match[1]) > 4:
            raise BadInputError(f"{clipped(text)!r} names layers that no model has", "write 5, 3-6 or 5+7+9")
        layers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(layers))


def settings_of(spec: EditSpec, inputs: Inputs) -> list[Setting]:
    """Every edit of the run, layer sets first. Raises BadInputError when the spec names layers or values twice."""
    sets: Sequence[tuple[int, ...]]
    if spec.layer_sets == (EACH,):
        sets = [(layer,) for layer in edited_layers(spec, inputs)]
    elif spec.layer_sets:
        sets = list(map(parse_layers, spec.layer_sets))
    else:
        sets = [tuple(sorted(set(spec.layers))) or (chosen_layer(spec.probe, inputs) - spec.probe_shift,)]
    values = spec.scales or (spec.scale,)
    for name, values_given in (("--layer-sets", sets), ("--scales", values)):
        if len(set(values_given)) < len(values_given):
            raise BadInputError(f"{name} names one of its values twice")
    if len(sets) * len(values) > MOST_EDITS:
        count = f"{len(sets) * len(values):,} edits of every state"
        raise BadInputError(f"--layer-sets times --scales are {count}, one run takes {MOST_EDITS:,}")
    return [Setting(n, *pair) for n, pair in enumerate((s, v) for s in sets for v in values)]


def probed_layers(reference: str, inputs: Inputs) -> list[int]:
    """The layers that a probe run has probes of."""
    return sorted({row.layer for row in inputs.rows(tables.Probe, inputs.run(reference, "probe"))})


def edited_layers(spec: EditSpec, inputs: Inputs) -> list[int]:
    """The model's layers for which there is a probe."""
    layers = inputs.checkpoint(spec.checkpoint)[0].layers
    probed = [layer - spec.probe_shift for layer in probed_layers(spec.probe, inputs)]
    return [layer for layer in probed if 0 <= layer < layers]


def chosen_layer(reference: str, inputs: Inputs) -> int:
    """The only layer there is, or the one that the probe's validation games choose."""
    layers = probed_layers(reference, inputs)
    return layers[0] if len(layers) == 1 else best_layer(inputs, reference)
