"""Specs and rows of edits: the shared settings, the settings of each kind, and the columns of their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.settings.games import GameSelection
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP, AllowOverlap
from chessreg.games.boards.typed import INITIAL, continue_typed_sans, parse_typed_sans
from chessreg.games.datasets.labels import normalize_board_changes
from chessreg.named import clip_text
from chessreg.registry import tables
from chessreg.runs.fitted import find_best_layer
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
from chessreg.steering.conditions import EditSetting
from chessreg.steering.controls import ENCODE_DECODE, OTHER, PATCH, RANDOM, SHAM, SHUFFLED, WRONG_LAYER

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs

MAX_EDITS = 10_000  # of one state
MAX_GAME_PLIES = 17_697  # the longest possible game
EMBEDDING_PROBE = "--embedding-probe"
EMBEDDINGS = -1  # represents the layer before block 0
CLEAN = "clean"
WHITE_SEGMENTS, BLACK_SEGMENTS = "white-segments", "black-segments"
BY_SIDE = "by-side"  # every token, with the direction of the side to move there

PAPER: Mapping[str, Any] = {
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

# The grid of Davis's published code. The protocols differ in the settings that paper, code and correction do not share.
DAVIS: Mapping[str, Any] = {"games": 2000, "prefixes": (4, 9, 14, 19, 24, 29, 34), "random_controls": 1, "future": 6}
PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "paper": {
        "future_unit": "tokens", "patch": "unit", "random_draw": "sphere", "probe_tokens": "match", "probe_shift": 0,
    },
    "published-code": {
        "future_unit": "plies", "patch": "raw", "random_draw": "uniform-matrix", "probe_tokens": "any",
        "probe_shift": -1,
    },
    "corrected": {
        "future_unit": "plies", "patch": "unit", "random_draw": "sphere", "probe_tokens": "match", "probe_shift": 0,
    },
}  # fmt: skip
DAVIS_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "davis-paper": {**DAVIS, **PROTOCOLS["paper"], "shuffled_label_controls": 0, "king": "skip"},
    "davis-published-code": {**DAVIS, **PROTOCOLS["published-code"], "shuffled_label_controls": 0, "king": "include"},
    "davis-corrected": {**DAVIS, **PROTOCOLS["corrected"], "shuffled_label_controls": 1, "king": "skip"},
}

EXCLUDES_SCALES = NotWith("scales", "the strength of the edit")


class EditSettings(GameSelection):
    """The settings that both kinds of edits share."""

    checkpoint: CheckpointRef = Field(description="the model")
    probe: Annotated[str, Ref("run:probe")] = Field(description="piece probes of that model: the directions")
    black_probe: Annotated[str | None, Ref("run:probe")] = Field(
        None,
        description="piece probes fitted where Black is to move, for edits there. Left out: --probe for these as well",
    )
    dataset: Annotated[str | None, Ref("dataset")] = Field(  # type: ignore[assignment]
        None, description="games: a dataset, or one part of it (NAME:PART). Left out: --moves"
    )
    moves: str = Field(
        "",
        description="edit one position: the moves that lead to it (SAN or UCI), startpos, or a FEN near it. Left out: "
        "positions of --dataset",
    )
    games: int = Field(200, ge=1, description="games to use, the first in file order (Karvonen: 200)")
    per_game: int = Field(30, ge=1, description="states per game (Karvonen: White's first 30 moves)")
    last_move: Moves = Field(30, ge=1, description="last of White's moves to use as a state")
    layers: Annotated[Layers, NotWith("layer_sets", "the layers to edit")] = Field(
        (), description="layers to edit, 0-based. Left out: the layer that validation chooses"
    )
    layers_label: str = Field(
        "", description="a paper's name for these layers, such as 4-7, shown next to them. Left out: the numbers only"
    )
    layer_sets: tuple[str, ...] = Field((), description="layer sets to try: 5,3-6,5+7+9 or each. Left out: --layers")
    scale: Annotated[float, EXCLUDES_SCALES] = Field(
        1.5,
        description="length of the subtracted vector (Karvonen Table 6: 1.5 and 2.0), or the value of "
        "--scale-rule; a negative scale adds",
    )
    scales: tuple[float, ...] = Field(
        (), description="values of --scale to try with every layer set. Left out: --scale"
    )
    scale_rule: str = Field(
        "single_scale",
        description="meaning of --scale: single_scale a length; single_target a logit; average_target an "
        "offset to a mean logit; ln-final, ln-next or residual-norm a share of a norm of the "
        "residual",
    )
    piece: float = Field(1.0, description="coefficient of the piece's direction, before the sum is normalized")
    blank: float = Field(
        0.0, description="coefficient of the empty square's direction, which is subtracted from the piece's"
    )
    token_mask: str = Field("all", description="tokens to edit")
    king: Literal["skip", "include"] = Field("skip", description="states in which the king is about to move")
    guard: Literal["author", "fixed"] = Field("author", description="fixed: skip modified boards without a legal move")
    random_controls: Annotated[int, AtMost(1000, "more draws add no information")] = Field(
        1, ge=0, description="random directions of the same length, per state"
    )
    shuffled_label_controls: Annotated[int, AtMost(1000, "more draws add no information")] = Field(
        1, ge=0, description="directions for another piece on that square, of the same length"
    )
    shuffled_probe: Annotated[str | None, Ref("run:probe")] = Field(
        None,
        description="probes of shuffled labels, whose directions are the shuffled-label control. Left out: directions "
        "of other pieces",
    )
    wrong_layer_control: bool = Field(
        False, description="also edit with each direction moved by half the model's depth"
    )
    sham_control: bool = Field(False, description="also edit with length 0, which must not change anything")
    allow_overlap: AllowOverlap = ALLOW_OVERLAP

    def without_effect(self) -> dict[str, str]:
        idle = super().without_effect()
        selection = ("games", "min_plies", "keep_duplicates", "per_game", "last_move", "allow_overlap")
        return idle | (dict.fromkeys(selection, "--moves gives one position") if self.moves else {})

    @field_validator("moves")
    @classmethod
    def _normalize_moves(cls, moves: str) -> str:
        return " ".join(parse_typed_sans(moves)) or (INITIAL if moves.strip() else "")

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        """Refuse settings without effect, because two specs of the same experiment must not differ."""
        if (self.dataset is None) == (not self.moves):
            raise BadInputError("an edit needs either games or one position", "give --dataset or --moves")
        if self.layers_label and not self.layers:
            raise BadInputError("--layers-label names the layers of --layers, which are missing", "give --layers")
        if self.shuffled_probe is not None and self.shuffled_label_controls != 1:
            raise BadInputError(
                "--shuffled-probe gives one direction, but --shuffled-label-controls is "
                f"{self.shuffled_label_controls}",
                "--shuffled-label-controls 1",
            )
        if not (self.piece or self.blank):
            raise BadInputError("--piece 0 and --blank 0 leave no direction")
        if self.per_game > self.last_move:
            raise BadInputError(f"--per-game {self.per_game} is more than --last-move {self.last_move}")
        return self

    @property
    def sans(self) -> tuple[str, ...]:
        """The moves that lead to the single position."""
        return tuple(self.moves.split()) if self.moves != INITIAL else ()

    @property
    def states_per_game(self) -> int:
        """Units per game. Shorter games have fewer states."""
        return self.per_game

    @property
    def probes(self) -> dict[str, str]:
        """The probes that give directions, by option."""
        probe_by_option = {
            "--probe": self.probe,
            "--black-probe": self.black_probe,
            "--shuffled-probe": self.shuffled_probe,
        }
        return {option: reference for option, reference in probe_by_option.items() if reference is not None}

    @property
    def control_draws(self) -> dict[str, int]:
        """The number of draws of each control, by control."""
        draw_counts = {RANDOM: self.random_controls, SHUFFLED: self.shuffled_label_controls}
        return draw_counts | {WRONG_LAYER: int(self.wrong_layer_control), SHAM: int(self.sham_control)}

    @property
    def other_directions(self) -> dict[str, tuple[str, int]]:
        """Source and number of each alternative to the probe's directions, by name."""
        return {}

    def find_probed_layer(self, layer: int) -> int:
        """Return the layer of the probe that edits `layer`; EMBEDDINGS for a probe of the embeddings."""
        return layer

    def probe_at(self, reference: str, layer: int) -> tuple[str, int]:
        """Return the run and the layer of the probe that edits `layer`, for the probe run `reference`."""
        return reference, self.find_probed_layer(layer)


class EditSpec(EditSettings):
    """Edits of a model that then writes whole moves."""

    token_mask: Literal["all", "last", "white-segments"] = Field("all", description="tokens to edit")
    sae: Annotated[str | None, Ref("run:sae")] = Field(
        None,
        description="SAEs whose reconstruction replaces the residual at the same layers and tokens (encode-decode "
        "control). Left out: without that control",
    )
    expansion: int | None = Field(
        None, ge=1, description="expansion of --sae, in latents per dimension. Left out: the only one"
    )
    samples: Annotated[int, AtMost(1000, "more samples add no information")] = Field(
        5, ge=0, description="texts sampled per condition (Karvonen: 5)"
    )
    temperature: float = Field(1.0, gt=0, description="temperature of the sampled texts")
    max_tokens: Annotated[int, AtMost(1000, "every move is shorter")] = Field(
        10, ge=2, description="tokens after which a text is cut (Karvonen: 7)"
    )
    spellings: bool = Field(True, description="also compute the exact probability of every spelling of a legal move")

    @model_validator(mode="after")
    def _check_probe_options(self) -> Self:
        if self.expansion is not None and self.sae is None:
            raise BadInputError(
                "--expansion chooses among the SAEs of --sae, which is missing",
                "give --sae RUN, or leave out --expansion",
            )
        if self.black_probe is not None and (self.token_mask != "all" or self.scale_rule != "single_scale"):
            raise BadInputError(
                "--black-probe edits all tokens, by a length",
                "leave out --token-mask; leave out --scale-rule, or set single_scale",
            )
        return self

    @property
    def control_draws(self) -> dict[str, int]:
        return super().control_draws | {ENCODE_DECODE: int(self.sae is not None)}


class NextTokenEditSpec(EditSettings):
    """Edits of a model whose next token names a square or a move (Davis 2026, sections 3.5 and 3.6)."""

    scale: Annotated[float, EXCLUDES_SCALES] = Field(
        0.5, description="share of the residual's norm to add (Davis's α), or the value of --scale-rule"
    )
    scale_rule: str = Field(
        "ln-final",
        description="meaning of --scale: a share of the residual's norm after the final LayerNorm (ln-final: "
        "Davis), after the next one (ln-next) or without one (residual-norm); or single_scale: a "
        "length",
    )
    token_mask: Literal["last", "turns", "all"] = Field("last", description="tokens to edit")
    prefixes: Annotated[
        tuple[int, ...],
        Distinct(),
        NotWith("per_game", "the states to use"),
        NotWith("last_move", "the states to use"),
    ] = Field(
        (),
        description="plies after which each game is edited, for either side (Davis: 4,9,14,…,34). Left out: states of "
        "--per-game",
    )
    board: str = Field(
        "",
        description="with --moves: squares to change, such as d5=. d7=p. Left out: the piece on the most probable "
        "square is removed",
    )
    future: Annotated[int, AtMost(MAX_GAME_PLIES, "every chess game is shorter")] = Field(
        6, ge=1, description="distance to the later board of the same game (Davis: 6)"
    )
    future_unit: Literal["plies", "tokens"] = Field(
        "plies", description="unit of --future: plies as in Davis's code, or tokens as in his text"
    )
    patch: Literal["none", "unit", "raw"] = Field(
        "none",
        description="also add the residual of the later board: normalized, or unchanged (published code). Left out: no "
        "patch",
    )
    later: str = Field(
        "", description="with --moves: the moves to the later board (SAN or UCI). Left out: no later board"
    )
    random_draw: Literal["sphere", "uniform-matrix"] = Field(
        "sphere", description="random directions: of unit length, or rows of one uniform unit matrix as in Davis's code"
    )
    other_probes: Annotated[tuple[str, ...], Distinct(), Ref("run:probe")] = Field(
        (),
        description="more piece probes of the model, each a separate edit (SAE-Probe, CD-Probe, DM-Probe). Left out: "
        "--probe alone",
    )
    other_black_probes: Annotated[tuple[str, ...], Distinct(), Ref("run:probe")] = Field(
        (), description="one --black-probe for each of --other-probes. Left out: none"
    )
    class_mean: Literal["keep", "remove"] = Field(
        "keep",
        description="remove: directions without the mean of their square's classes, which does not "
        "change a probe's reading",
    )
    probe_tokens: Literal["match", "any"] = Field(
        "match", description="match: require probes fitted at the edited kind of token; any: as in Davis's code"
    )
    probe_shift: Annotated[int, AtMost(1000, "every model has fewer layers")] = Field(
        0, ge=-1000, description="layer of the probe minus the layer that it edits (Davis's code: -1)"
    )
    mask_unused: bool = Field(
        True, description="give no probability to tokens that games are never written with (LCB's piece letters)"
    )
    embedding_probe: Annotated[str | None, Ref("run:probe")] = Field(
        None,
        description="piece probes of the embeddings (blocks.0.hook_resid_pre), for layer 0 with --probe-shift "
        "-1, as in Davis's code; left out: layer 0 cannot be edited with that shift",
    )
    decay: float = Field(
        0.0, ge=0, description="k of a scale that falls with the token's index i: scale times exp(-k i)"
    )

    @field_validator("board")
    @classmethod
    def _normalize_board(cls, board: str) -> str:
        return normalize_board_changes(board)

    @model_validator(mode="after")
    def _check_case_options(self) -> Self:
        if self.later and self.moves:
            object.__setattr__(self, "later", continue_typed_sans(" ".join(self.sans), self.later))
        if self.token_mask != "last" and (self.black_probe is not None or self.decay):
            raise BadInputError("--black-probe and --decay need edits of the last token", "--token-mask last")
        if self.board and not self.moves:
            raise BadInputError(
                "--board changes the position of --moves, which is missing", "give --moves, or leave out --board"
            )
        if self.moves and self.prefixes:
            raise BadInputError(
                "--prefixes needs games, but --moves gives one position", "give --dataset instead of --moves"
            )
        if self.moves and self.patch != "none" and not self.later:
            raise BadInputError("--patch needs a later board", "give --later MOVES, or --dataset instead of --moves")
        if self.embedding_probe is not None and self.probe_shift != -1:
            raise BadInputError(
                f"--embedding-probe edits layer 0 with --probe-shift -1, not {self.probe_shift}",
                "give --probe-shift -1, or leave out --embedding-probe",
            )
        if self.later and not self.moves:
            raise BadInputError(
                "--later continues --moves, which is missing",
                "for games, set the distance to the later board with --future",
            )
        if self.patch == "raw" and self.token_mask != "last":
            raise BadInputError("--patch raw needs an edit of the last token", "--token-mask last")
        if any(not 0 <= plies <= MAX_GAME_PLIES for plies in self.prefixes):
            raise BadInputError(f"--prefixes must be plies from 0 to {MAX_GAME_PLIES:,}")
        if self.other_black_probes and len(self.other_black_probes) != len(self.other_probes):
            raise BadInputError("--other-black-probes must have one entry for each of --other-probes")
        if bool(self.other_probes and self.black_probe) != bool(self.other_black_probes):
            raise BadInputError(
                "--other-probes with --black-probe needs --other-black-probes, and vice versa", "give both, or neither"
            )
        return self

    @property
    def states_per_game(self) -> int:
        return len(self.prefixes) or self.per_game

    @property
    def probes(self) -> dict[str, str]:
        probe_options = {"--other-probes": self.other_probes, "--other-black-probes": self.other_black_probes}
        embedding_probes = {} if self.embedding_probe is None else {EMBEDDING_PROBE: self.embedding_probe}
        return (
            super().probes
            | embedding_probes
            | {
                f"{option} ({place})": reference
                for option, references in probe_options.items()
                for place, reference in enumerate(references, 1)
            }
        )

    @property
    def other_directions(self) -> dict[str, tuple[str, int]]:
        other_names = {f"{OTHER}{number + 1}": (OTHER, number) for number in range(len(self.other_probes))}
        return other_names if self.patch == "none" else other_names | {PATCH: (PATCH, 0)}

    def find_probed_layer(self, layer: int) -> int:
        return layer + self.probe_shift

    def probe_at(self, reference: str, layer: int) -> tuple[str, int]:
        probed_layer = self.find_probed_layer(layer)
        if probed_layer == EMBEDDINGS and reference == self.probe and self.embedding_probe is not None:
            return self.embedding_probe, 0
        return reference, probed_layer

    @property
    def protocol(self) -> str:
        """The name of Davis's protocol that the settings follow; empty if they follow none."""
        for name, settings in PROTOCOLS.items():
            if all(getattr(self, field) == value for field, value in settings.items()):
                return name
        return ""


class EditOptions(ExecutionOptions):
    batch_states: int = Field(32, ge=1, description="states in one batch")


class NextTokenEditOptions(EditOptions):
    group_states: int = Field(
        1024,
        ge=1,
        description="states whose probabilities are stored together; an interruption loses at most one group",
    )


class TrialRow(SparseRow):
    """Columns that both kinds of edits add to their trials, on the greedy row of each condition."""

    piece: str | None = None
    square: str | None = None
    skipped: str | None = None  # illegal, king, no moves, too long, no direction, too short, no square or empty
    position: str | None = None  # Zobrist hash; equal for two states of the same position
    half: str | None = None  # choose or report: see states.assign_half
    setting: int | None = None  # number of the edit in a sweep
    scales: list[float] | None = None  # scale of each layer, from the scale rule


class EditRow(TrialRow):
    """Columns of edits after which whole moves are read."""

    move: str | None = None  # the clean model's move, UCI
    spelled_original: float | None = None  # exact probability of all texts that are read as a legal move
    spelled_modified: float | None = None
    spelled_missed: float | None = None  # upper bound of the probability missing from it
    # Compared with the clean model in the same state, over the moves that are legal on both boards:
    shared_mass: float | None = None  # exact probability of these moves
    shared_moved: float | None = None  # share of it that moved from one move to another (total variation)
    shared_kl: float | None = None  # Kullback-Leibler divergence of the clean from the edited choice, nats
    # Readings of the last layer's probe where the move begins:
    read_empty: float | None = None  # probability that the square of the piece is empty
    squares_changed: float | None = None  # share of the 63 other squares whose most probable class changed


class NextTokenEditRow(TrialRow):
    """Columns of edits after which the next token is read (Davis 2026, section 3.6)."""

    target: str | None = None  # FEN of the edit's target board; on the clean row
    target_status: int | None = None  # its python-chess status bits: no king, opposite check, …
    later: str | None = None  # FEN of the later board of the game
    mass_future: float | None = None  # probability of the tokens that begin a legal move there
    argmax_kept: bool | None = None  # whether the most probable token is the clean model's
    p_argmax: float | None = None  # probability of the most probable token
    p_square: float | None = None  # probability of the tokens that move the piece of the most probable square
    kl: float | None = None  # Kullback-Leibler divergence of the clean from the edited distribution, nats
    reference_norm: float | None = None  # norm that the scale is a share of, at the lowest edited layer
    vector_norm: float | None = None  # norm of the direction at that layer
    edit_norm: float | None = None  # length of the added vector at that layer
    row: int | None = None  # index in the stored probabilities


# -- edits of a run: sets of layers times values of the scale rule ------------------------------------

EACH_LAYER = "each"


def parse_layers(text: str) -> tuple[int, ...]:
    """Return the layers of a set: `5`, `3-6` (both included), `5+7+9`. Raises BadInputError for other texts.

    >>> parse_layers("3-5+7")
    (3, 4, 5, 7)
    """
    layers: set[int] = set()
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise BadInputError(f"{clip_text(text)!r} is not a set of layers", "write 5, 3-6 or 5+7+9")
        if len(match[2] or match[1]) > 4:
            raise BadInputError(f"{clip_text(text)!r} names layers that no model has", "write 5, 3-6 or 5+7+9")
        layers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(layers))


def list_edit_settings(spec: EditSettings, inputs: Inputs) -> list[EditSetting]:
    """Return every edit of the run, in the order of its layer sets. Raises BadInputError for repeated layers or
    values."""
    sets: Sequence[tuple[int, ...]]
    if spec.layer_sets == (EACH_LAYER,):
        sets = [(layer,) for layer in list_editable_layers(spec, inputs)]
    elif spec.layer_sets:
        sets = list(map(parse_layers, spec.layer_sets))
    else:
        sets = [tuple(sorted(set(spec.layers))) or choose_layers(spec, inputs)]
    values = spec.scales or (spec.scale,)
    for name, values_given in (("--layer-sets", sets), ("--scales", values)):
        if len(set(values_given)) < len(values_given):
            raise BadInputError(f"{name} contains a value twice")
    if len(sets) * len(values) > MAX_EDITS:
        count = f"{len(sets) * len(values):,} edits of every state"
        raise BadInputError(f"--layer-sets times --scales are {count}; a run has at most {MAX_EDITS:,}")
    return [EditSetting(n, *pair) for n, pair in enumerate((s, v) for s in sets for v in values)]


def list_probed_layers(reference: str, inputs: Inputs) -> list[int]:
    """Return the layers for which a probe run has probes."""
    return sorted({row.layer for row in inputs.rows(tables.ProbeRecord, inputs.run(reference, "probe"))})


def list_editable_layers(spec: EditSettings, inputs: Inputs) -> list[int]:
    """Return the model's layers for which a probe exists."""
    layers, probed_layers = inputs.checkpoint(spec.checkpoint)[0].layers, list_probed_layers(spec.probe, inputs)
    if isinstance(spec, NextTokenEditSpec) and spec.embedding_probe is not None:
        probed_layers = [EMBEDDINGS, *probed_layers]
    return [layer for layer in range(layers) if spec.find_probed_layer(layer) in probed_layers]


def choose_layers(spec: EditSettings, inputs: Inputs) -> tuple[int, ...]:
    """Return the layer of the only probe, or the layer that is best on the probe's validation games."""
    layers = list_probed_layers(spec.probe, inputs)
    best_layer = layers[0] if len(layers) == 1 else find_best_layer(inputs, spec.probe)
    return (best_layer - spec.find_probed_layer(0),)
