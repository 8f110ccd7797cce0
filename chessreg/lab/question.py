"""Questions to the lab: a position given by the user, or a state of an edit run, with the models and tools to use."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import UUID

import chess
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import aliased

from chessreg import encodings
from chessreg.errors import BadInputError, ChessregError
from chessreg.experiments.edit.spec import EditSettings, EditSpec, NextTokenEditSpec, list_edit_settings
from chessreg.games.boards.moves import convert_packed_to_sans as all_sans
from chessreg.games.boards.typed import INITIAL, continue_typed_sans, parse_typed_sans
from chessreg.games.datasets.labels import normalize_board_changes
from chessreg.games.engines.opponents import format_decimal
from chessreg.named import clip_text
from chessreg.registry import names, tables
from chessreg.registry.identity import shorten_id
from chessreg.runs.spec import Layers, Settings, format_complaint, format_flag
from chessreg.steering.controls import PATCH

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from chessreg.runs.inputs import Inputs


EDIT = "edit"
EXTRA_EDIT_SETTINGS = (
    "scale_rule", "piece", "blank", "black_probe", "king", "guard", "random_controls", "shuffled_label_controls",
    "shuffled_probe", "wrong_layer_control", "sham_control", "patch", "random_draw", "other_probes",
    "other_black_probes", "mask_unused", "embedding_probe", "class_mean", "probe_tokens", "probe_shift", "decay", "sae",
    "expansion", "seed",
)  # fmt: skip
"""Settings of both kinds of edits that the lab accepts in addition to the settings of a position."""


class LabPosition(Settings):
    """A position given by its moves, and the edit of the model in it.

    With a vector, its direction is added. Without one, the probe's direction of the piece that the clean model moves is
    subtracted, as in kind `edit`. With `board`, the probe's directions for these changes of squares are added. The
    probe reads every layer that it has, even if a vector is added. With `later`, the moves that follow, the condition
    `patch` adds the residual of the board after them. Runs are given by name, id or input reference. Without layers,
    the edit uses the probe's best layer, or all layers of the vector. `condition` is the edit or one of its controls.
    `settings` are further settings of an edit run, by name, spelled as in its options.
    """

    checkpoint: str = Field(description="the model")
    moves: str = Field(
        "", description="position: moves in SAN or UCI, startpos, or a FEN near the start. Left out: the start position"
    )
    fen: str = Field("", description="any position, for a model of positions. Left out: --moves gives the position")
    probe: str | None = Field(
        None, description="piece probe whose boards are shown and whose direction is subtracted. Left out: no probe"
    )
    vector: str | None = Field(None, description="vector run whose directions are added instead. Left out: no vector")
    layers: Layers = Field(
        (), description="layers, 0-based. Left out: the probe's best layer, or all layers of the vector"
    )
    scale: float = Field(1.5, description="strength of the edit; default 0.5 if the next token is read")
    token_mask: Literal["all", "last", "white-segments", "turns"] = Field("last", description="tokens to edit")
    measure: Literal["moves", "next-token"] = Field(
        "moves", description="measured output: whole moves, or the next token (always with --board)"
    )
    board: str = Field(
        "",
        description="squares to change, such as d5=. d7=p. Left out: the piece that the clean model moves is removed",
    )
    later: str = Field(
        "",
        description="later moves; --condition patch adds the residual of the board after them. Left out: no patch",
    )
    condition: str = Field(EDIT, description="the edit, or a control: random-0, shuffled-0, …; with STATE also edit-3")
    unit: int = Field(0, ge=0, description="draw random controls as for this state of a run")
    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_settings(cls, **settings: Any) -> LabPosition:
        """Return a question. Raises BadInputError for settings that do not fit together."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise summarize_validation_error(error) from None

    @field_validator("moves")
    @classmethod
    def _normalize_moves(cls, moves: str) -> str:
        return " ".join(parse_typed_sans(moves))

    @field_validator("fen")
    @classmethod
    def _normalize_fen(cls, fen: str) -> str:
        if not fen.strip():
            return ""
        try:
            board = chess.Board(fen.strip())
        except ValueError as error:
            raise BadInputError(f"{clip_text(fen)!r} is not a FEN: {error}") from error
        if not board.is_valid():
            raise BadInputError(f"{clip_text(fen)!r} is not a position of a chess game")
        return board.fen()

    @field_validator("board")
    @classmethod
    def _normalize_board(cls, board: str) -> str:
        return normalize_board_changes(board)

    @model_validator(mode="before")
    @classmethod
    def _set_measure(cls, values: Any) -> Any:
        if isinstance(values, dict) and (values.get("board") or values.get("measure") == "next-token"):
            scale = NextTokenEditSpec.model_fields["scale"].default
            return {"scale": scale, **values, "measure": "next-token"}
        return values

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if self.fen and self.moves:
            raise BadInputError("--moves and --fen both give the position", "leave out --moves or --fen")
        if self.layers and not (self.probe or self.vector):
            raise BadInputError("--layers needs a probe or a vector to edit with", "give --probe or --vector")
        if self.vector and self.token_mask not in ("all", "last"):
            raise BadInputError(
                f"--token-mask {self.token_mask} is not available for a vector", "--token-mask all, or last"
            )
        if self.board and (self.vector or not self.probe):
            raise BadInputError(
                "--board is edited with the directions of a probe", "give --probe, and leave out --vector"
            )
        if self.later:
            if not self.next_token:
                raise BadInputError("--later needs a model whose next token is read", "add --measure next-token")
            object.__setattr__(self, "later", continue_typed_sans(self.moves, self.later))
        if self.vector and self.condition != EDIT:
            raise BadInputError(f"--condition {self.condition} needs the edit of a probe", "leave out --vector")
        for name, _ in self.settings:
            setting_names = [setting for setting in EXTRA_EDIT_SETTINGS if setting in self.spec_class.model_fields]
            if name not in setting_names:
                hint = f"choose one of {', '.join(setting.replace('_', '-') for setting in setting_names)}"
                raise BadInputError(f"{clip_text(name)!r} is not a setting of this edit in the lab", hint)
        return self

    @property
    def further_settings(self) -> dict[str, Any]:
        """The further settings as arguments of the spec of an edit."""
        fields = self.spec_class.model_fields
        tuple_fields = {name for name, field in fields.items() if isinstance(field.default, tuple)}
        return {name: tuple(text.split(",")) if name in tuple_fields else text for name, text in self.settings}

    @property
    def spec_class(self) -> type[EditSettings]:
        """The spec class of the runs that store such edits."""
        return NextTokenEditSpec if self.next_token else EditSpec

    def spec(self) -> EditSettings:
        """Return the spec of the edit run that stores this edit. Raises BadInputError for the edit of a vector."""
        if self.probe is None or self.vector is not None:
            raise BadInputError(
                "an edit run stores the edit of a probe", "store a vector's edit with chessreg run play"
            )
        if self.fen:
            raise BadInputError("a position given by --fen cannot be stored", "give the moves that lead to it")
        values: dict[str, Any] = {"king": "include", **self.further_settings}
        if self.next_token:
            values |= {"board": self.board, "later": self.later}
            values |= {"patch": "unit"} if self.later and "patch" not in values else {}
        try:
            return self.spec_class(
                checkpoint=self.checkpoint,
                probe=self.probe,
                moves=self.moves or INITIAL,
                layers=self.layers,
                scale=self.scale,
                token_mask=self.token_mask,
                **values,
            )
        except ValidationError as error:
            raise summarize_validation_error(error) from None

    @property
    def storing_arguments(self) -> list[str]:
        """The arguments of `chessreg` that store the edit as a run. Raises the errors of `spec`."""
        spec = self.spec()
        words = ["run", "edit-next-token" if self.next_token else "edit", "--checkpoint", spec.checkpoint]
        words += ["--probe", spec.probe, "--moves", spec.moves]
        words += ["--board", self.board] if self.board else []
        words += ["--layers", ",".join(map(str, spec.layers))] if spec.layers else []
        words += ["--scale", format_decimal(spec.scale)]
        if not self.next_token or spec.token_mask != "last":
            words += ["--token-mask", spec.token_mask]
        words += ["--later", self.later] if self.later else []
        patch = {"patch": spec.patch} if isinstance(spec, NextTokenEditSpec) and self.later else {}
        values = {"king": spec.king, **patch, **dict(self.settings)}
        for name, text in values.items():
            flag = name.replace("_", "-")
            is_flag = isinstance(self.spec_class.model_fields[name].default, bool)
            words += [f"--{flag}" if text == "true" else f"--no-{flag}"] if is_flag else [f"--{flag}", text]
        return words

    @property
    def next_token(self) -> bool:
        """Whether the next token is read instead of whole moves."""
        return self.measure == "next-token"

    @property
    def command(self) -> list[str]:
        """The arguments of `chessreg` that show the same answer."""
        at = ["--fen", self.fen] if self.fen else ["--moves", self.moves]
        words = ["lab", "--checkpoint", self.checkpoint, *at]
        for name, value in (("--probe", self.probe), ("--vector", self.vector)):
            words += [name, value] if value else []
        words += ["--layers", ",".join(map(str, self.layers))] if self.layers else []
        words += ["--board", self.board] if self.board else ["--measure", self.measure] if self.next_token else []
        words += ["--later", self.later] if self.later else []
        words += ["--scale", format_decimal(self.scale)]
        words += ["--condition", self.condition] if self.condition != EDIT else []
        words += ["--unit", str(self.unit)] if self.unit and self.condition != EDIT else []
        words += [] if self.token_mask == "last" else ["--token-mask", self.token_mask]
        for name, text in self.settings:
            words += ["--setting", f"{name.replace('_', '-')}={text}"]
        return words


def summarize_validation_error(error: ValidationError) -> ChessregError:
    """Return the first error of a validation as one line."""
    first_error = error.errors(include_url=False)[0]
    cause = first_error.get("ctx", {}).get("error")
    complaint = (
        f"{format_flag(first_error['loc'])}: {format_complaint(first_error)}"
        if first_error["loc"]
        else format_complaint(first_error)
    )
    return cause if isinstance(cause, ChessregError) else BadInputError(complaint)


class StoredState(BaseModel):
    """A state of an edit run under one of its conditions; by default under the first edit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str  # its id in hexadecimal digits
    unit: int
    condition: str | None = None


class VectorScales(BaseModel):
    """The scales at which the vectors of a run are as long as the model's residuals."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str  # its name or id


# -- available models and tools -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Tool:
    """A run that gives directions: probes of pieces, or vectors. `layers` are the layers of the run."""

    kind: str  # probe or vector
    name: str
    run_id: UUID
    layers: tuple[int, ...]


@dataclass(frozen=True)
class CheckpointChoice:
    """A checkpoint with the tools fitted on it, probes first, then by creation, newest first."""

    name: str
    checkpoint_id: UUID
    tools: tuple[Tool, ...] = field(default=())
    next_token: bool = False  # whether one token that the model writes names a square or a move


@dataclass(frozen=True)
class StoredEdit:
    """The edit of a stored state under a condition of its run, with the settings that ask the lab for it."""

    checkpoint_id: UUID
    probe_run: UUID
    sans: tuple[str, ...]
    layers: tuple[int, ...]
    scale: float
    rule: str
    token_mask: str
    next_token: bool
    board: str
    later: tuple[str, ...]  # the moves to the later board of a patch
    condition: str  # its name in a run with a single setting
    stored_condition: str  # its name in the run
    unit: int
    settings: tuple[tuple[str, str], ...]


def load_stored_edit(inputs: Inputs, run_id: UUID, row: tables.Trial) -> StoredEdit:
    """Return the edit behind a trial of a condition other than `clean`. Its unit determines how random controls are
    drawn."""
    with inputs.database.read() as session:
        run = session.get_one(tables.Run, run_id)
        spec_class = NextTokenEditSpec if run.kind == "edit-next-token" else EditSpec
        spec: EditSpec | NextTokenEditSpec = spec_class(**run.spec)
    detail = row.detail or {}
    settings = list_edit_settings(spec, inputs)
    setting = settings[detail.get("setting") or 0]
    case_spec = spec if isinstance(spec, NextTokenEditSpec) else None
    sans, later = spec.sans, tuple(case_spec.later.split()) if case_spec else ()
    if row.item >= 0 and spec.dataset is not None:
        items, _ = inputs.dataset(spec.dataset)
        game = tuple(all_sans(items.moves([row.item])[0]))
        sans, later = game[: row.ply], game[row.ply : row.ply + case_spec.future] if case_spec else ()
    source, number = re.fullmatch(r"(.*?)(?:-(\d+))?", row.condition, re.DOTALL).groups()  # type: ignore[union-attr]
    is_patched = (
        source == PATCH and case_spec is not None and (case_spec.future_unit == "plies" or bool(case_spec.later))
    )
    if not is_patched:  # the later board may be inside a move
        later = ()
    name = EDIT if source == PATCH and not is_patched else source
    if source in spec.control_draws:
        name = f"{source}-{int(number) % spec.control_draws[source]}"
    keys = [key for key in EXTRA_EDIT_SETTINGS if key in spec_class.model_fields and (key != PATCH or is_patched)]
    changed_settings = {key: getattr(spec, key) for key in keys}
    plain = {key: spec_class.model_fields[key].get_default() for key in changed_settings} | {"king": "include"}
    set_fields = tuple(
        (key, spell_question_setting(value)) for key, value in changed_settings.items() if value != plain[key]
    )
    checkpoint, probe = inputs.checkpoint(spec.checkpoint)[0].id, inputs.run(spec.probe, "probe").id
    return StoredEdit(
        checkpoint, probe, sans, setting.layers, setting.value,
        spec.scale_rule, spec.token_mask, case_spec is not None, case_spec.board if case_spec else "", later, name,
        row.condition, row.unit, set_fields,
    )  # fmt: skip


def find_strongest_edit(inputs: Inputs) -> StoredEdit | None:
    """Return the stored edit that moves most probability to legal moves of its target board.

    Edits are compared by their mean change of the legal move mass over the states of a complete run. The returned state
    changes most. Return None if no edit raises the mass, or if its model, probe or games are not available.
    """
    edited_trial, clean = aliased(tables.Trial), aliased(tables.Trial)
    gain = edited_trial.mass_modified - clean.mass_modified
    is_same_sample = and_(
        clean.run_id == edited_trial.run_id, clean.unit == edited_trial.unit, clean.sample == edited_trial.sample
    )
    trials = (
        select(edited_trial)
        .join(clean, is_same_sample)
        .join(tables.Run, tables.Run.id == edited_trial.run_id)
        .where(
            edited_trial.sample == -1,
            clean.condition == "clean",
            gain.is_not(None),
            tables.Run.completed_at.is_not(None),
        )
        .where(or_(edited_trial.condition == EDIT, edited_trial.condition.like(f"{EDIT}-%")))
    )
    run_conditions = trials.with_only_columns(edited_trial.run_id, edited_trial.condition).group_by(
        edited_trial.run_id, edited_trial.condition
    )
    with inputs.database.read() as session:
        best_row = session.execute(
            run_conditions.having(func.avg(gain) > 0)
            .order_by(func.avg(gain).desc(), edited_trial.run_id, edited_trial.condition)
            .limit(1)
        ).first()
        if best_row is None:
            return None
        condition_trials = trials.where(
            edited_trial.run_id == best_row.run_id, edited_trial.condition == best_row.condition
        )
        row = session.scalars(condition_trials.order_by(gain.desc(), edited_trial.unit).limit(1)).one()
        session.expunge_all()
    try:
        return load_stored_edit(inputs, best_row.run_id, row)
    except ChessregError:
        return None


def list_checkpoint_choices(session: Session) -> list[CheckpointChoice]:
    """Return the checkpoints with weights. Checkpoints with most tools come first, then the newest."""
    tools: dict[UUID, list[Tool]] = defaultdict(list)
    for kind, table in (("probe", tables.ProbeRecord), ("vector", tables.VectorRecord)):
        query = select(table.run_id, table.checkpoint_id, table.layer).join(tables.Run, tables.Run.id == table.run_id)
        query = query.where(tables.Run.completed_at.is_not(None))
        if kind == "probe":
            query = query.where(tables.ProbeRecord.label == "piece", tables.ProbeRecord.classes == 13)
        layers: dict[tuple[UUID, UUID], list[int]] = defaultdict(list)
        for run_id, checkpoint_id, layer in session.execute(
            query.order_by(tables.Run.created_at.desc(), tables.Run.id, table.layer)
        ):
            if checkpoint_id is not None:
                layers[run_id, checkpoint_id].append(layer)
        run_names = names.read_names_of(session, "run", {run_id for run_id, _ in layers})
        for (run_id, checkpoint_id), probe_layers in layers.items():
            tools[checkpoint_id].append(
                Tool(kind, run_names.get(run_id) or shorten_id(run_id), run_id, tuple(probe_layers))
            )
    models = names.read_noun_names(session, "checkpoint")
    checkpoint = tables.Checkpoint
    ids = session.scalars(
        select(checkpoint.id)
        .where(checkpoint.source_format != "external")
        .order_by(checkpoint.created_at.desc(), checkpoint.id)
    )
    encoding_names = dict(session.execute(select(checkpoint.id, checkpoint.tokenizer)).all())
    choices = [
        CheckpointChoice(models.get(id) or shorten_id(id), id, tuple(tools[id]), has_square_tokens(encoding_names[id]))
        for id in ids
    ]
    return sorted(choices, key=lambda choice: -len(choice.tools))


def spell_question_setting(value: Any) -> str:
    """Return a setting spelled as in its option."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def has_square_tokens(name: str | None) -> bool:
    """Return whether one token of the encoding `name` names a square or a move; False for a prompt tokenizer."""
    if name not in encodings.list_encodings():
        return False
    encoding = encodings.get_encoding(name)
    return any(encoding.find_origin(number) is not None for number in range(encoding.answer_size))
