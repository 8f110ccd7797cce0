"""The launch form: a kind's settings as fields, candidates for references, the launch plan, and launching."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from pydantic import ValidationError
from sqlalchemy import or_, select, true

from chessreg.entities.display import format_layers
from chessreg.errors import ChessregError, NotFoundError
from chessreg.folders import expand_path
from chessreg.registry import names, tables
from chessreg.registry.database import select_by_keys
from chessreg.registry.identity import make_uuid
from chessreg.registry.names import require_name
from chessreg.registry.tables import Job
from chessreg.runs.inputs import IMPORTED_PREFIX, PROBE, REFERENCE_PATTERN, Inputs, is_kind_accepted
from chessreg.runs.kind import Kind, is_checkpoint_maker
from chessreg.runs.resolve import resolve_and_hash
from chessreg.runs.spec import (
    FILE_NOUNS,
    YES_NO_WORDS,
    SettingField,
    describe_settings,
    find_variant_tag,
    flatten_settings,
    format_value,
    list_visible_settings,
    make_settings,
    nest_settings,
)
from chessreg.scheduling.executors import EXECUTORS, slurm_script
from chessreg.scheduling.launch import (
    ExpectedInputs,
    LaunchOptions,
    Order,
    PlannedRun,
    make_cell_name,
    plan_orders,
    preview_run,
)
from chessreg.scheduling.launch import launch_orders as launch_orders
from tui import show
from tui.data.pages import Row

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session


Part = Literal["spec", "options", "launch"]


@dataclass(frozen=True, kw_only=True)
class Field(SettingField):
    """One setting of a form: of the spec, of the execution options, or of the launch."""

    part: Part

    @property
    def key(self) -> str:
        """The path of the field, unique in the form. A kind has no name in two parts, but `name` is also a field of the
        launch."""
        return f"launch.{self.path}" if self.part == "launch" else self.path


def make_form_fields(settings: Iterable[SettingField], part: Part) -> list[Field]:
    return [Field(part=part, **vars(setting)) for setting in settings]


@dataclass
class FormCheck:
    """The settings of a form, or its errors: by field (`errors`) and in general (`general`)."""

    spec: Any = None
    options: Any = None
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    errors: dict[str, str] = field(default_factory=dict)
    general: list[str] = field(default_factory=list)
    cells: list[tuple[Form, FormCheck]] = field(default_factory=list)  # of a sweep: a form for each run

    @property
    def is_valid(self) -> bool:
        return not self.errors and not self.general


class Form:
    """The settings of one kind while the user fills in the form. Typed values are kept apart from presets
    and defaults."""

    def __init__(self, kind: Kind, reference: str, typed_texts: Mapping[str, str] | None = None) -> None:
        self.kind, self.reference = kind, reference
        self.typed_texts: dict[str, str] = dict(typed_texts or {})  # also of variants that are not chosen now
        self.preset = ""
        self._by_variant: dict[str, dict[str, Field]] = {}
        self.cell: dict[str, Any] = {}  # of a run of a sweep: the values that make it another than the others

    @classmethod
    def from_draft(cls, kind: Kind, reference: str, draft: Mapping[str, Any]) -> Form:
        """Restore a form from a draft (`typed`, `preset`). Settings that the kind no longer has are dropped."""
        form = cls(kind, reference)
        typed_values = draft.get("typed")
        if isinstance(typed_values, Mapping):
            form.typed_texts = {
                key: text for key, text in typed_values.items() if key in form.every_key and isinstance(text, str)
            }
        form.preset = draft["preset"] if draft.get("preset") in form.presets else ""
        return form

    def make_fields(self, settings: Iterable[SettingField]) -> list[Field]:
        """Return the fields of the form: these settings of the spec, the execution options and the launch options."""
        return [
            *make_form_fields(settings, "spec"),
            *make_form_fields(describe_settings(self.kind.options), "options"),
            *make_form_fields(describe_settings(LaunchOptions), "launch"),
        ]

    @cached_property
    def every_key(self) -> frozenset[str]:
        """The keys of the fields of every variant."""
        return frozenset(each.key for each in self.make_fields(describe_settings(self.kind.spec)))

    @property
    def variant(self) -> str:
        """The tag value of a kind whose spec is a union, typed or from the preset; empty for other kinds."""
        if not (tag := find_variant_tag(self.kind.spec)):
            return ""
        return self.typed_texts.get(tag, "").strip() or str(self.preset_values.get(tag, ""))

    @property
    def fields_by_key(self) -> dict[str, Field]:
        """Fields of the chosen variant; before one is chosen, the fields that all variants have."""
        variant = self.variant
        if variant not in self._by_variant:
            fields = self.make_fields(list_visible_settings(self.kind.spec, variant))
            self._by_variant[variant] = {each.key: each for each in fields}
        return self._by_variant[variant]

    @property
    def fields(self) -> list[Field]:
        return list(self.fields_by_key.values())

    @property
    def given_texts(self) -> dict[str, str]:
        """The typed values, without settings of variants that are not chosen."""
        return {key: text for key, text in self.typed_texts.items() if key in self.fields_by_key}

    def copy_typed(self) -> Form:
        """Return a copy for another thread while the user continues typing."""
        return self.copy_with(self.typed_texts)

    def copy_with(self, typed_texts: Mapping[str, str]) -> Form:
        """Return a form of the same kind and preset with these typed values."""
        form = Form(self.kind, self.reference, typed_texts)
        form.preset = self.preset
        form._by_variant = self._by_variant  # depends on the kind alone, and a sweep has dozens of forms per key press
        return form

    @property
    def presets(self) -> tuple[str, ...]:
        return ("", *self.kind.presets)

    @property
    def preset_values(self) -> dict[str, Any]:
        """The values set by the preset, by path."""
        return flatten_settings(self.kind.preset(self.preset)) if self.preset else {}

    def set_text(self, key: str, text: str | None) -> None:
        """Set the typed text of a field; None clears it."""
        one = self.fields_by_key[key]
        if text is None or (not text.strip() and one.form != "list"):
            self.typed_texts.pop(key, None)
        else:
            self.typed_texts[key] = text

    def text(self, key: str) -> str:
        """Return the displayed text of the field."""
        if key in self.typed_texts:
            return self.typed_texts[key]
        if key in self.preset_values:
            return format_value(self.preset_values[key])
        return self.fields_by_key[key].shown_default

    def source(self, key: str) -> str:
        """Return the source of the value: `given`, `preset`, `default`, `required`, or `changed` (given instead of the
        preset's)."""
        if key in self.typed_texts:
            has_changed = key in self.preset_values and self.typed_texts[key].strip() != format_value(
                self.preset_values[key]
            )
            return "changed" if has_changed else "given"
        if key in self.preset_values:
            return "preset"
        return "required" if self.fields_by_key[key].is_required else "default"

    # -- sweeps ---------------------------------------------------------------------------------------------------

    @property
    def swept_values(self) -> dict[str, list[str]]:
        """The settings with several values, `1|2|4`, in the form's order: every combination is a run."""
        spec = ((one.key, self.typed_texts.get(one.key, "")) for one in self.fields if one.part == "spec")
        return {key: [piece.strip() for piece in text.split("|")] for key, text in spec if "|" in text}

    def make_run_forms(self) -> list[Form]:
        """Return one form per run: a single form if no setting has several values."""
        swept_values = self.swept_values
        if not swept_values:
            return [self]
        forms = []
        for values in itertools.product(*swept_values.values()):
            form = self.copy_with(self.typed_texts | dict(zip(swept_values, values, strict=True)))
            form.cell = {key: form.value(key) for key in swept_values}
            forms.append(form)
        return forms

    def value(self, key: str) -> Any:
        """Return the typed value, parsed; the text itself if it cannot be parsed."""
        try:
            return self.fields_by_key[key].parse_text(self.typed_texts[key])
        except ValueError:
            return self.typed_texts[key]

    # -- checking -------------------------------------------------------------------------------------------------

    def check(self) -> FormCheck:
        """Validate the form, and each run of a sweep. References are looked up later, when the launch is planned."""
        swept_values = self.swept_values
        runs = math.prod(map(len, swept_values.values()))
        if runs > MAX_SWEEP_RUNS:
            return FormCheck(
                general=[f"{runs:,} runs are more than a form can launch ({MAX_SWEEP_RUNS}); use --sweep with a file"]
            )
        for key, values in swept_values.items():
            if len(set(values)) < len(values) or not all(values):
                return FormCheck(errors={key: "values separated by |, each once"})
        if not swept_values:
            return self._check()
        cells = [(form, form._check()) for form in self.make_run_forms()]
        first = cells[0][1]
        form_check = FormCheck(first.spec, first.options, first.launch, cells=cells)
        for _, cell_check in cells:
            form_check.errors = {
                key: text for key, text in cell_check.errors.items() if key in self.fields_by_key
            } | form_check.errors
            hidden_errors = [
                f"{key}: {text}" for key, text in cell_check.errors.items() if key not in self.fields_by_key
            ]
            form_check.general += [
                text for text in (*cell_check.general, *hidden_errors) if text not in form_check.general
            ]
        return form_check

    def _check(self) -> FormCheck:
        result = FormCheck()
        values: dict[str, dict[str, Any]] = {"spec": {}, "options": {}, "launch": {}}
        for key, text in self.given_texts.items():
            one = self.fields_by_key[key]
            try:
                values[one.part][one.path] = one.parse_text(text)
            except ValueError as error:
                result.errors[key] = str(error)
        base = self.kind.preset(self.preset) if self.preset else {}
        result.spec = self._build_settings(self.kind.spec, values["spec"], "", result, base)
        result.options = self._build_settings(self.kind.options, values["options"], "", result)
        result.launch = self._build_settings(LaunchOptions, values["launch"], "launch.", result) or LaunchOptions()
        if result.launch.name:
            try:
                require_name(result.launch.name)
            except ChessregError as error:
                result.errors["launch.name"] = error.message
        return result

    def _build_settings(
        self,
        model: Any,
        values: dict[str, Any],
        prefix: str,
        result: FormCheck,
        base: dict[str, Any] | None = None,
    ) -> Any:
        """Return the settings of `model` with these values, or None after adding their errors to `result`.

        `prefix` precedes the names of the values in `result`, and `base` are the values of a preset.
        """
        try:
            return make_settings(model, nest_settings(values), base or {})
        except ValidationError as error:
            for complaint in error.errors():
                key = prefix + ".".join(part for part in complaint["loc"] if isinstance(part, str))
                message = complaint["msg"].removeprefix("Value error, ")
                if complaint["type"] == "missing":
                    message = "it is required"
                if key in self.fields_by_key:
                    result.errors.setdefault(key, message[:1].lower() + message[1:])
                else:
                    result.general.append(message)
        except ChessregError as error:  # a kind's own words, of one setting or of several together
            message = error.message + (f" ({error.hint})" if error.hint else "")
            wrong_paths = [path for path in values if self._is_valid_without(model, values, path, base or {})]
            if len(wrong_paths) == 1:
                result.errors.setdefault(prefix + wrong_paths[0], message)
            else:
                result.general.append(message)
        return None

    @staticmethod
    def _is_valid_without(model: Any, values: dict[str, Any], path: str, base: dict[str, Any]) -> bool:
        """Return whether the model accepts the values without the setting `path`."""
        try:
            make_settings(model, nest_settings({key: value for key, value in values.items() if key != path}), base)
        except ChessregError:
            return False
        except ValidationError as error:  # other errors are reported separately
            return all(".".join(map(str, complaint["loc"])) != path for complaint in error.errors())  # it is needed
        return True

    # -- as a command ---------------------------------------------------------------------------------------------

    def build_arguments(self) -> list[str]:
        """Return the equivalent command, with exactly the options that were typed."""
        arguments, swept_values = ["chessreg", "launch", self.reference], self.swept_values
        if self.preset:
            arguments += ["--preset", self.preset]
        for one in self.fields:
            if one.key not in self.typed_texts:
                continue
            flag, text = one.flag, self.typed_texts[one.key].strip()
            if one.key in swept_values:
                arguments += ["--grid", f"{one.path}={'|'.join(swept_values[one.key])}"]
                continue
            if one.optional and text.lower() in ("", "none"):
                if self.preset_values.get(one.key, one.default) is not None:  # clear a preset's number, as in the form;
                    arguments += [flag, "none"]  # the command line rejects other settings
            elif one.form == "yes or no":
                switch = YES_NO_WORDS.get(text.lower(), False)
                if one.part != "launch":
                    arguments.append(flag if switch else f"--no-{flag[2:]}")
                elif switch:
                    arguments.append(flag)
            else:
                arguments += [flag, text]
        return arguments

    def command(self) -> str:
        return shlex.join(self.build_arguments())

    @property
    def explicit_names(self) -> tuple[str, ...]:
        """Dotted paths of the settings that were not left at their defaults, as a run records them."""
        explicit_paths = {
            self.fields_by_key[key].path for key in self.given_texts if self.fields_by_key[key].part != "launch"
        }
        return tuple(
            sorted(explicit_paths | flatten_settings(self.kind.preset(self.preset) if self.preset else {}).keys())
        )


MAX_LISTED_RUNS = 500  # newest runs that are listed
MAX_SWEEP_RUNS = 64  # of a sweep from a form, which is checked on every key press


FITTING_KINDS = ("cache", "finetune", "probe", "sae", "train", "vector")  # their games are for fitting


def is_evaluated_on(kind: str, path: str) -> bool:
    """Return whether a kind evaluates on the games of the setting `path`: held-out and test games, and those of kinds
    that fit nothing."""
    return kind not in FITTING_KINDS or path.startswith(("heldout", "test"))


def list_candidates(
    session: Session, noun: str, filter_text: str = "", model: str = "", *, evaluates: bool = False
) -> list[Row]:
    """Return rows with a `value` to type and a description `about`.

    Runs of the checkpoint `model` come first, then starred rows, then trained or complete ones, each newest first.
    A dataset's parts come before the whole dataset, which overlaps them: the first part first, or the last part if
    `evaluates`, as do caches of parts. Every word of the filter must match.
    """
    with session.database.read() as sql:
        if noun == "dataset":
            rows = list_dataset_candidates(sql, evaluates)
        elif noun == "checkpoint":
            rows = [*list_pending_candidates(sql, noun), *list_checkpoint_candidates(sql)]
        else:
            kind = noun.partition(":")[2]
            model_runs = find_runs_of_model(sql, model) if model else set[UUID]()
            rows = [*list_pending_candidates(sql, kind), *list_run_candidates(session, sql, kind, model_runs)]
    last = -1 if evaluates else 1
    rows.sort(key=lambda row: (-row.get("rank", 0), last * row.get("begins", 0.0)))  # stable: newest first
    words = filter_text.lower().split()
    return [row for row in rows if all(word in f"{row['value']} {row['about']}".lower() for word in words)]


def list_dataset_candidates(sql: SqlSession, evaluates: bool) -> list[Row]:
    """Return datasets with their number of games or positions, each after its parts."""
    from chessreg.entities.dataset import get_dataset_content

    dataset_names, starred_ids = names.read_noun_names(sql, "dataset"), find_starred(sql, "dataset")
    split = tables.Split
    rows: list[Row] = []
    for dataset in sql.scalars(select(tables.Dataset).order_by(tables.Dataset.created_at.desc(), tables.Dataset.id)):
        name = dataset_names.get(dataset.id) or dataset.id.hex[-6:]
        rank, unit = STARRED_RANK if dataset.id in starred_ids else 0, get_dataset_content(dataset).removesuffix("s")
        count = dataset.plies if unit == "position" else dataset.games
        parts = sql.scalars(select(split).where(split.dataset_id == dataset.id).order_by(split.low, split.name)).all()
        for part in reversed(parts) if evaluates else parts:
            description = show.format_count(part.games, unit)
            rows.append({"value": f"{name}:{part.name}", "about": description, "at": part.created_at, "rank": rank})
        rows.append({"value": name, "about": f"{format_star(rank)}{show.format_count(count, unit)}",
                     "at": dataset.created_at, "rank": rank})  # fmt: skip
    return rows


OF_MODEL_RANK, STARRED_RANK, READY_RANK = 4, 2, 1  # ranks of candidates, which are added
UNTRAINED_FORMAT = "random-init"  # the source format of a control


def format_star(rank: int) -> str:
    """Return the mark of a starred candidate, by its rank.

    >>> format_star(OF_MODEL_RANK + READY_RANK), format_star(STARRED_RANK + READY_RANK)
    ('', '★ ')
    """
    return "★ " if rank & STARRED_RANK else ""


def find_starred(sql: SqlSession, noun: str) -> set[UUID]:
    """Return the ids of the starred entities of a noun."""
    now = names.CURRENT_ANNOTATIONS.c
    statement = select(now.target).where(now.noun == noun, now.word == tables.AnnotationWord("star").value)
    return {UUID(hex=target) for target in sql.scalars(statement)}


def list_checkpoint_candidates(sql: SqlSession) -> list[Row]:
    """Return checkpoints with weights; external models cannot be evaluated."""
    checkpoint_names, checkpoint = names.read_noun_names(sql, "checkpoint"), tables.Checkpoint
    query = select(checkpoint, tables.Artifact.created_at).join(
        tables.Artifact, tables.Artifact.digest == checkpoint.artifact
    )
    starred_ids, rows = find_starred(sql, "checkpoint"), list[Row]()
    records = sql.execute(query.order_by(tables.Artifact.created_at.desc(), checkpoint.id)).all()
    runs_called = names.read_names_of(sql, "run", {one.run_id for one, _ in records if one.run_id})
    for one, at in records:
        description = f"{one.architecture} · {one.layers} × {one.d_model} · {one.parameters or 0:,} parameters"
        if one.run_id is not None:
            description += f" · of run {runs_called.get(one.run_id) or one.run_id.hex[-6:]}"
        rank = (STARRED_RANK if one.id in starred_ids else 0) + (
            READY_RANK if one.source_format != UNTRAINED_FORMAT else 0
        )
        value = checkpoint_names.get(one.id) or one.id.hex[-6:]
        rows.append({"value": value, "about": format_star(rank) + description, "at": at, "rank": rank})
    return rows


def find_runs_of_model(sql: SqlSession, reference: str) -> set[UUID]:
    """Return the runs that use a checkpoint directly or through other runs; empty for an unknown checkpoint."""
    try:
        checkpoint = sql.get_one(tables.Checkpoint, names.resolve_id(sql, "checkpoint", reference))
    except ChessregError:
        return set()
    run_input = tables.RunInput
    run_ids = fresh = set(sql.scalars(select(run_input.run_id).where(run_input.digest == checkpoint.artifact)))
    while fresh:
        fresh = {
            id for (id,) in select_by_keys(sql, select(run_input.run_id), run_input.source_run_id, fresh)
        } - run_ids
        run_ids = run_ids | fresh
    return run_ids


def list_run_candidates(session: Session, sql: SqlSession, kind: str, of_model: Collection[UUID] = ()) -> list[Row]:
    """Return the newest runs of a kind and of kinds accepted in its place.

    Runs in `of_model`, those of the chosen model, come first. The field `begins` is where a cache's part of its dataset
    begins.
    """
    from chessreg.entities.run import format_typed_reference
    from tui.data.run_rows import make_run_rows

    run = tables.Run
    conditions = [run.kind == kind, run.kind == IMPORTED_PREFIX + kind] if kind not in ("", "run") else []
    if kind == PROBE:
        conditions.append(run.kind.like(f"%-{PROBE}"))
    records = list(
        sql.scalars(
            select(run)
            .where(or_(*conditions) if conditions else true())
            .order_by(run.created_at.desc(), run.id)
            .limit(MAX_LISTED_RUNS)
        )
    )
    ids = [record.id for record in records]
    controls, fitted_layers = find_control_runs(sql, ids), describe_fitted_layers(sql, ids)
    rows: list[Row] = []
    for row in make_run_rows(sql, records, {}):
        if row["archived"] or row["invalid"]:
            continue
        control = row["id"] in controls
        rank = (STARRED_RANK if row["starred"] else 0) + (
            READY_RANK if row["state"] == "complete" and not control else 0
        )
        rank += OF_MODEL_RANK if row["id"] in of_model else 0
        description = f"{format_star(rank)}{row['kind']} · {row['state']} · {row['done']:,}/{row['units']:,} units"
        begins = 0.0
        if kind == CACHE and isinstance(reference := row["spec"].get("dataset"), str):
            description += f" · of {format_typed_reference(sql, reference)}"
            begins = find_part_begin(reference)
        description += f" · {fitted_layers[row['id']]}" if row["id"] in fitted_layers else ""
        description += " · of a random-init control" if control else ""
        value = row["name"] or row["id"].hex[-6:]
        rows.append({"value": value, "about": description, "at": row["created_at"], "rank": rank, "begins": begins})
    return rows


CACHE = "cache"
PART_PATTERN = re.compile(r"\[\d+,([\d.]+),[\d.]+\]$")


def find_part_begin(reference: str) -> float:
    """Return where the part of a dataset begins that an input reference names, from 0 to 1; 0 for a whole dataset.

    >>> find_part_begin("dataset:86f0[0,0.8,1.0]"), find_part_begin("dataset:86f0")
    (0.8, 0.0)
    """
    match = PART_PATTERN.search(reference)
    return float(match[1]) if match else 0.0


def describe_fitted_layers(sql: SqlSession, ids: Sequence[UUID]) -> dict[UUID, str]:
    """Return the model and the layers of probes, vectors and SAEs, by the run that made them: `of deep, layers 0-2`."""
    layers: dict[UUID, set[int]] = {}
    models: dict[UUID, UUID | None] = {}
    for table in (tables.ProbeRecord, tables.VectorRecord, tables.SaeRecord):
        query = select(table.run_id, table.layer, table.checkpoint_id)
        for run_id, layer, checkpoint in select_by_keys(sql, query, table.run_id, ids):
            layers.setdefault(run_id, set()).add(layer)
            models[run_id] = checkpoint
    names_by_id = names.read_names_of(sql, "checkpoint", {id for id in models.values() if id is not None})
    layers_by_run = {}
    for run_id, its in layers.items():
        model = models[run_id]
        of = "" if model is None else f"of {names_by_id.get(model) or show.abbreviate_id(model)}, "
        layers_by_run[run_id] = f"{of}layer{'s' * (len(its) > 1)} {format_layers(its)}"
    return layers_by_run


def find_control_runs(sql: SqlSession, ids: Sequence[UUID]) -> set[UUID]:
    """Return the runs among `ids` that use an untrained model."""
    run_input, checkpoint = tables.RunInput, tables.Checkpoint
    query = select(run_input.run_id).join(checkpoint, checkpoint.artifact == run_input.digest)
    return set(sql.scalars(query.where(checkpoint.source_format == UNTRAINED_FORMAT, run_input.run_id.in_(ids))))


def is_run_accepted(kind: str, wanted_kind: str) -> bool:
    """Return whether a setting that requires a run of kind `wanted_kind`, any run ("" or "run") or a checkpoint accepts
    a run of `kind`."""
    if wanted_kind == "checkpoint":
        return is_checkpoint_maker(kind)
    return wanted_kind in ("", "run") or is_kind_accepted(kind, wanted_kind)


def list_pending_candidates(sql: SqlSession, wanted_kind: str) -> list[Row]:
    """Return runs of queued jobs that have not started or whose checkpoint is missing. A launch that names one waits
    for it."""
    query = select(Job).where(Job.ended_at.is_(None), Job.shard == 0).order_by(Job.created_at.desc(), Job.id)
    rows: list[Row] = []
    for job in sql.scalars(query):
        model = is_checkpoint_maker(job.kind)
        run = sql.get(tables.Run, job.run_id)
        if is_run_accepted(job.kind, wanted_kind) and (run is None or (model and run.completed_at is None)):
            name = names.read_name(sql, "run", job.run_id) or job.run_id.hex[-6:]
            rows.append({"value": name, "about": f"{job.kind} · a job, {job.state.value}", "at": job.created_at})
    return rows


def find_existing_runs(session: Session, form: Form, key: str, values: Iterable[str]) -> dict[str, str]:
    """Return value → name of a complete run, for the values of the setting `key` that the form need not run again.

    Empty for a sweep, and while another required setting is missing.
    """
    inputs = Inputs(session.database, session.store)
    inputs.reference = cache(inputs.reference)  # type: ignore[method-assign]  # files of other settings are read once
    runs: dict[str, UUID] = {}
    for value in values:
        form_check = form.copy_with(form.typed_texts | {key: value}).check()
        if not form_check.is_valid or form_check.cells:
            break  # because of other settings
        with suppress(ChessregError):  # an input that does not exist yet
            runs[value] = make_uuid(resolve_and_hash(form.kind, form_check.spec, inputs)[1])
    with session.database.read() as sql:
        complete = select(tables.Run.id).where(tables.Run.completed_at.is_not(None))
        existing_ids = {id for (id,) in select_by_keys(sql, complete, tables.Run.id, set(runs.values()))}
        run_names = names.read_names_of(sql, "run", existing_ids)
    return {value: run_names.get(id) or show.abbreviate_id(id) for value, id in runs.items() if id in existing_ids}


@dataclass
class FormPlan:
    """The effect of launching a form, or the reason why it cannot be launched."""

    plan: Row | None = None
    errors: dict[str, str] = field(default_factory=dict)
    trouble: str = ""
    hint: str = ""


def make_orders(form: Form, form_check: FormCheck) -> list[Order]:
    """Return the orders of a form, one per run of its sweep, named by their swept values."""
    orders = []
    for number, (cell, cell_check) in enumerate(form_check.cells or [(form, form_check)]):
        launch = cell_check.launch.model_dump()
        launch["name"] = make_cell_name(cell_check.launch.name, cell.cell, number)
        orders.append(Order(form.kind, cell_check.spec, cell_check.options, cell.explicit_names, **launch))
    return orders


def plan_form(session: Session, form: Form, form_check: FormCheck) -> FormPlan:
    """Look up the form's references and plan the launch. Nothing is queued."""
    result = FormPlan()
    for cell, _ in form_check.cells or [(form, form_check)]:
        result.errors |= find_unresolved(session, cell)
    if result.errors:
        return result
    try:
        planned_runs = plan_orders(make_orders(form, form_check), session.database, session.store)
        result.plan = combine_plans([preview_run(each, session.database, session.store) for each in planned_runs])
        if len(planned_runs) == 1:
            result.plan = {**result.plan, **read_existing_run(session, planned_runs[0])}
    except ChessregError as error:
        result.trouble, result.hint = error.message, error.hint or ""
    return result


def read_existing_run(session: Session, planned_run: PlannedRun) -> Row:
    """Return the name of a planned run that exists (`existing`), and its first unfinished job (`job_id`, or None)."""
    with session.database.read() as sql:
        name = names.read_name(sql, "run", planned_run.run_id)
        active_jobs = select(Job.id).where(Job.run_id == planned_run.run_id, Job.ended_at.is_(None)).order_by(Job.shard)
        job_id = sql.scalars(active_jobs).first()
    return {
        "existing": name or f"{planned_run.order.kind.name} {show.abbreviate_id(planned_run.run_id)}",
        "job_id": job_id,
    }


def combine_plans(plans: Sequence[Row]) -> Row:
    """Return the plans of a sweep as one plan.

    Its numbers are sums, or None if the number is unknown for a run; `runs` is the number of runs.
    """
    first = {**plans[0], "runs": len(plans)}
    if len(plans) == 1:
        return first

    def sum_plans(name: str) -> Any:
        values = [each[name] for each in plans if name != "seconds" or each["status"] == "queued"]
        return None if any(value is None for value in values) else sum(values)

    counts: dict[str, int] = {}
    for each in plans:
        for table, count in (each["rows"] or {}).items():
            counts[table] = counts.get(table, 0) + count
    are_rows_known = all(each["rows"] is not None for each in plans)
    remarks = list(dict.fromkeys(remark for each in plans for remark in each["remarks"]))
    statuses = [each["status"] for each in plans if each["status"] != "complete"]
    return {
        **first,
        "status": "complete" if not statuses else "queued" if "queued" in statuses else statuses[0],
        "queued": sum(each["status"] == "queued" for each in plans),
        **{name: sum_plans(name) for name in ("units", "missing", "bytes", "seconds")},
        "rows": counts if are_rows_known else None,
        "like": max(each["like"] for each in plans),
        "basis": max((each["basis"] for each in plans), key=len),
        "waits_for": list(dict.fromkeys(name for each in plans for name in each["waits_for"])),
        "remarks": [("each run: " if all(r in each["remarks"] for each in plans) else "") + r for r in remarks],
    }


def find_unresolved(session: Session, form: Form) -> dict[str, str]:
    """Return the fields whose reference cannot be resolved, with the reason."""
    inputs, errors = ExpectedInputs(session.database, session.store), {}
    for one in form.fields:
        text = form.text(one.key)
        if not one.noun or form.source(one.key) not in ("given", "changed", "preset") or not text:
            continue
        value = one.parse_text(text)
        for reference in value if isinstance(value, tuple) else [value]:
            try:
                if reference is not None and one.noun in FILE_NOUNS:
                    require_file(reference)
                elif reference is not None:
                    inputs.reference(one.noun, reference)
            except ChessregError as error:
                errors[one.key] = error.message + (f" ({error.hint})" if error.hint else "")
    return errors


def require_file(reference: str) -> None:
    if not REFERENCE_PATTERN.match(reference) and reference != "sample" and not expand_path(reference).exists():
        raise NotFoundError(f"{reference} does not exist")


MAX_NAMED_RUNS = 3  # in a message


def queue_form(session: Session, form: Form, form_check: FormCheck) -> tuple[UUID | None, str]:
    """Queue the form and start a supervisor, as `chessreg launch` does.

    Return the launch id, or None and the reason, which names the existing runs. Raises the errors of planning.
    """
    from chessreg.runs.ingest import ingest_fragments
    from chessreg.scheduling.presence import Presence

    ingest_fragments(session.database, session.store)
    group, planned_runs = launch_orders(make_orders(form, form_check), session.database, session.store)
    if group is None:
        reasons = [
            f"{read_existing_run(session, each)['existing']} is {each.status.replace('already_', 'already ')}"
            for each in planned_runs[:MAX_NAMED_RUNS]
        ]
        more = len(planned_runs) - len(reasons)
        return None, ", ".join(reasons) + (f", and {more} more" if more else "")
    Presence(session.store).start(session.database.reference)
    return group, ""


# -- choices -----------------------------------------------------------------------------------------------------------


def list_executors() -> tuple[str, ...]:
    """Return the executors available on this machine, including each Slurm profile."""
    executors: list[str] = []
    for word in EXECUTORS:
        executors.append(word)
        if word == "slurm":
            for file in slurm_script.read_profile_files(Path.cwd()):
                if file.refusal is None:
                    executors += [f"slurm:{name}" for name in file.tables if name != slurm_script.DEFAULT_PROFILE]
    return tuple(dict.fromkeys(executors))


def list_kind_rows(session: Session) -> list[Row]:
    """Return all experiment kinds: built-in kinds and kinds from files recorded in this registry.

    The summary of an untrusted file states the problem. Missing files are left out.
    """
    from chessreg.runs.kind import find_kind_of_record, load_kinds
    from chessreg.runs.trust import NotTrustedError

    rows_by_kind = {name: make_kind_row(one, name) for name, one in load_kinds().items()}
    with session.database.read() as sql:
        records = list(sql.scalars(select(tables.KindRecord).order_by(tables.KindRecord.version.desc())))
    for record in records:
        if record.name not in rows_by_kind and ".py:" in record.source:
            try:
                rows_by_kind[record.name] = make_kind_row(
                    find_kind_of_record(record, session.store.read_only), record.source
                )
            except NotTrustedError as error:
                rows_by_kind[record.name] = make_untrusted_row(record, error)
            except ChessregError:
                continue
    return [row for _, row in sorted(rows_by_kind.items())]


def read_run_form(session: Session, run_id: UUID) -> Form:
    """Return the form of a run's kind with the settings that were given to the run, except its name.

    A run that has not started is read from its job.
    """
    from chessreg.entities.run import format_typed_reference
    from chessreg.runs.kind import find_own_kind, find_recorded_kind

    with session.database.read() as sql:
        run = sql.get(tables.Run, run_id)
        if run is not None:
            name, spec, explicit = run.kind, run.spec, run.explicit
            source = sql.get_one(tables.KindRecord, (run.kind, run.version)).source
        else:
            job = sql.scalars(select(tables.Job).where(tables.Job.run_id == run_id).limit(1)).one()
            name, spec, explicit, source = job.kind, *(job.detail[key] for key in ("spec", "explicit", "source"))
        kind = find_own_kind(name) or find_recorded_kind(source, session.store.read_only)
        form = Form(kind, source if ".py:" in source else name)
        settings = flatten_settings(spec)
        for key in form.every_key & settings.keys() & set(explicit):
            value = settings[key]
            if isinstance(value, list) and value:
                form.typed_texts[key] = ",".join(format_typed_reference(sql, each) for each in value)
            else:
                form.typed_texts[key] = (
                    format_typed_reference(sql, value) if isinstance(value, str) else format_value(value)
                )
    return form


def find_form_kind(session: Session, reference: str, is_typed: bool) -> Kind:
    """Return the kind of a name or file. `is_typed` means that the user typed the reference, and therefore trusts the
    file."""
    from chessreg.runs.kind import find_kind, find_recorded_kind

    if ":" not in reference and ".py" not in reference:
        return find_kind(reference)
    return (
        find_kind(reference)
        if is_typed and not session.store.read_only
        else find_recorded_kind(reference, session.store.read_only)
    )


def make_untrusted_row(record: tables.KindRecord, error: ChessregError) -> Row:
    """Return the row of a recorded kind that cannot be loaded, with the error as its summary."""
    return {
        "name": record.name,
        "summary": str(error),
        "presets": "",
        "source": record.source,
        "reference": record.source,
    }


def make_kind_row(kind: Kind, reference: str) -> Row:
    """Return the row of a kind in the list of kinds. `reference` is its name, or its file."""
    return {
        "name": kind.name,
        "summary": kind.summary,
        "presets": ", ".join(kind.presets),
        "source": "" if reference == kind.name else reference,
        "reference": reference,
    }
