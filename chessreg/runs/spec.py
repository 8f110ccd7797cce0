"""Specs, which determine a result and are hashed, and execution options, which do not and are recorded per attempt.

`SettingField` describes each field once, for the command line, dry runs and the launch form.

A kind with several forms of one experiment has a discriminated union of specs, `Annotated[A | B,
Field(discriminator="tag")]`. The required setting `tag` selects the variant. Functions here accept a class or such a
union as `model`.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError, PydanticUndefined

from chessreg.errors import BadInputError
from chessreg.marks import BOUNDS, Doc
from chessreg.marks import AtMost as AtMost
from chessreg.marks import Distinct as Distinct
from chessreg.marks import Share as Share
from chessreg.named import clip_text


@dataclass(frozen=True)
class Ref:
    """Marks a spec field that names a dataset, a checkpoint, or a run of some kind.

    Users give a name or an id; the resolved spec holds an input reference (`runs.inputs`).
    """

    noun: str  # "dataset", "checkpoint", or "run:KIND"


@dataclass(frozen=True)
class NotWith:
    """Marks a field that excludes another. If both were set, one would have no effect, and two specs would describe one
    run.

    It is not part of the recorded schema.
    """

    other: str
    what: str

    def refuse(self, name: str, settings: BaseModel) -> None:
        """Raise BadInputError if both fields differ from their defaults."""
        fields = type(settings).model_fields
        if all(getattr(settings, field) != fields[field].default for field in (name, self.other)):
            raise BadInputError(
                f"{format_flag([name])} and {format_flag([self.other])} both set {self.what}", "give one of them"
            )


Plies = Annotated[int, AtMost(17_697, "no game of chess is longer")]  # 8,848.5 moves under the 75-move rule
Moves = Annotated[int, AtMost(8_849, "no game of chess is longer")]

Layers = Annotated[tuple[int, ...], Distinct()]
Processes = Annotated[int, AtMost(1024, "more only wait for each other")]
Beta = Annotated[float, Share()]

MAX_INTEGER = 2**63 - 1  # of a database column and JSON
MAX_FLOAT = 3e38  # weights and activations are at most float32
MAX_TEXT_CHARS = 10_000
MAX_LIST_VALUES = 10_000
CONTROL_PATTERN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # except tab and line feed, since moves may be pasted


class Settings(BaseModel):
    """Base class of specs and execution options: immutable, without unknown fields, NaN and extreme values."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _require_bounds(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse values outside the bounds of their field, extreme numbers, and an empty list where one is required."""
        refuse_extremes(value)
        field = cls.model_fields[str(info.field_name)]
        if value == () and field.is_required():
            raise ValueError("it is empty")
        for mark in list_field_marks(field):
            if isinstance(mark, BOUNDS):
                mark.refuse(value)
        return value

    @model_validator(mode="after")
    def _check_idle_settings(self) -> Self:
        for name, field in type(self).model_fields.items():
            for mark in field.metadata:
                if isinstance(mark, NotWith):
                    mark.refuse(name, self)
        return self

    def without_effect(self) -> dict[str, str]:
        """Return setting → reason for settings that have no effect together with the others.

        They are refused if typed and ignored in presets. Nested settings are named by dotted paths.
        """
        idle: dict[str, str] = {}
        fields = type(self).model_fields
        for name, field in fields.items():
            if isinstance(inner := getattr(self, name), Settings):
                idle |= {f"{name}.{path}": reason for path, reason in inner.without_effect().items()}
            for mark in field.metadata:
                if isinstance(mark, NotWith) and getattr(self, mark.other) != fields[mark.other].default:
                    idle[name] = f"{format_flag([mark.other])} sets {mark.what}"
        return idle


class Spec(Settings):
    """The settings that determine a run's result. Settings that differ from their default are hashed."""

    seed: int = Field(0, description="seed of all random draws")
    replicate: int = Field(0, ge=0, description="number of the repetition of an identical spec")


class ExecutionOptions(Settings):
    """Options that do not affect the result. They are recorded with the attempt and not part of the run's identity."""

    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    threads: int = Field(0, ge=0, description="CPU threads; 0: all granted cores")


DatasetRef = Annotated[str, Ref("dataset")]
CheckpointRef = Annotated[str, Ref("checkpoint")]


def list_field_marks(field: FieldInfo) -> list[Any]:
    """Return the annotations of a field, including those inside `CheckpointRef | None`."""
    inner_marks = [mark for part in get_args(field.annotation) for mark in getattr(part, "__metadata__", ())]
    return [*field.metadata, *inner_marks]


def get_field_reference(field: FieldInfo) -> Ref | None:
    """Return the Ref of a field, or None if it does not name an input."""
    return next((mark for mark in list_field_marks(field) if isinstance(mark, Ref)), None)


def get_hashed_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that differ from their default, as JSON values.

    The hash of a spec covers only these, so a new field with a default leaves the hashes of recorded runs unchanged. A
    kind that changes a default must increase its `version`.
    """
    values = settings.model_dump(mode="json")
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, Settings):
            values[name] = get_hashed_settings(value)
        if not field.is_required() and (value == field.get_default(call_default_factory=True) or values[name] == {}):
            del values[name]
    return values


def refuse_extremes(value: Any) -> None:
    """Raise ValueError for a value that is too large, too long or has control characters, alone or in a list."""
    if isinstance(value, (tuple, list)):
        if len(value) > MAX_LIST_VALUES:
            raise ValueError(f"{len(value):,} values are more than {MAX_LIST_VALUES:,}")
        for item in value:
            refuse_extremes(item)
    elif (isinstance(value, int) and abs(value) > MAX_INTEGER) or (isinstance(value, float) and abs(value) > MAX_FLOAT):
        raise ValueError("the number is too large")
    elif isinstance(value, str) and len(value) > MAX_TEXT_CHARS:
        raise ValueError(f"{len(value):,} characters are more than {MAX_TEXT_CHARS:,}")
    elif isinstance(value, str) and CONTROL_PATTERN.search(value):
        raise ValueError("it contains a control character")


NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
YES, NO = "yes", "no"
YES_NO_WORDS = {"yes": True, "true": True, "on": True, "y": True, "1": True, "no": False, "false": False, "off": False,
         "n": False, "0": False}  # fmt: skip
FILE_NOUNS = ("book", "results", "probe-file", "vector-file", "sae-folder")  # references to users' files
Form = Literal["text", "number", "yes or no", "choice", "list", "reference", "references"]


@dataclass(frozen=True)
class SettingField:
    """One setting: how to type it, its possible values, its default and its description."""

    path: str  # dotted if nested
    form: Form
    default: Any
    text: str
    type: type = str  # of the value, or of one list item
    choices: tuple[str, ...] = ()
    noun: str = ""  # for a reference: dataset, checkpoint, run, run:KIND, or one of FILE_NOUNS
    optional: bool = False  # accepts none

    @property
    def flag(self) -> str:
        """The command-line option, such as `--batch-games`."""
        return "--" + self.path.replace("_", "-")

    @property
    def is_required(self) -> bool:
        """Whether the setting is required."""
        return self.default is PydanticUndefined

    @property
    def is_list(self) -> bool:
        """Whether the setting takes a list."""
        return self.form in ("list", "references")

    @property
    def is_reference(self) -> bool:
        """Whether the user can choose the value from a list of entities."""
        return bool(self.noun) and self.noun not in FILE_NOUNS

    @property
    def shown_default(self) -> str:
        """The default as text, empty for a required setting."""
        return "" if self.is_required else "all" if self.is_all(self.default) else format_value(self.default)

    @property
    def empty_words(self) -> tuple[str, ...]:
        """The words that are typed for no value: `none`, and `all` if that is the meaning of no value."""
        return ("none", "all") if ". Left out: all" in self.text else ("none",)

    def is_all(self, value: Any) -> bool:
        """Whether a value, as recorded or as parsed, is no value and means all, such as all layers."""
        return value in (None, (), []) and "all" in self.empty_words

    def parse_text(self, text: str) -> Any:
        """Return the value of a typed text. Ranges of numbers are checked by the model. Raises ValueError with a
        message."""
        text = text.strip()
        if self.optional and text.lower() in ("", *self.empty_words):
            return None
        if self.form == "yes or no":
            if text.lower() not in YES_NO_WORDS:
                raise ValueError("yes or no")
            return YES_NO_WORDS[text.lower()]
        if self.form == "choice" and text not in self.choices:
            raise ValueError(f"one of {', '.join(self.choices)}")
        if self.form == "references":
            return tuple(piece.strip() for piece in text.split(",") if piece.strip())
        if self.form == "list":
            return () if text.lower() in self.empty_words else parse_list(text, self.type)
        if not text and self.noun:
            raise ValueError("it is required" if self.is_required else "a name or an id")
        return text


def describe_settings(model: Any) -> tuple[SettingField, ...]:
    """Return the settings of a model in order, with dotted paths for nested ones.

    For a union: its tag, then the settings of all variants, each path once. A setting is required if all variants
    require it.
    """
    if not (tag := find_variant_tag(model)):
        return _describe_class(model)
    settings: dict[str, SettingField] = {tag: describe_tag(model)}
    for each in (
        each for variant in list_variant_models(model) for each in _describe_class(variant) if each.path != tag
    ):
        first_setting = settings.setdefault(each.path, each)
        choices = tuple(dict.fromkeys((*first_setting.choices, *each.choices)))
        default = each.default if first_setting.is_required else first_setting.default
        settings[each.path] = replace(
            first_setting, choices=choices, default=default, optional=first_setting.optional or each.optional
        )
    return tuple(settings.values())


def list_visible_settings(model: Any, value: str | None) -> tuple[SettingField, ...]:
    """Return the settings to show to a user. For a union: the tag, then those of the variant with the tag `value`.

    Required settings come first. Without a known `value`, only settings shared by all variants are returned.
    """
    if not (tag := find_variant_tag(model)):
        return _describe_class(model)
    variants = list_variants(model)
    variant_models = [variants[value]] if value in variants else list(list_variant_models(model))
    first_class, *other_classes = (_describe_class(variant) for variant in variant_models)
    alike = (each for each in first_class if each.path != tag and all(each in other for other in other_classes))
    return (describe_tag(model, variant_models), *sorted(alike, key=lambda each: not each.is_required))


@cache
def _describe_class(model: type[BaseModel], prefix: str = "") -> tuple[SettingField, ...]:
    """Return the settings of a class in order; those of nested classes have a dotted name."""
    settings: list[SettingField] = []
    for name, field in model.model_fields.items():
        kind = strip_annotation(field.annotation)
        if isinstance(kind, type) and issubclass(kind, Settings):
            settings += _describe_class(kind, f"{prefix}{name}.")
        else:
            settings.append(describe_field(prefix + name, field))
    return tuple(settings)


def describe_field(path: str, field: FieldInfo) -> SettingField:
    """Return the description of one field."""
    kind, reference = strip_annotation(field.annotation), get_field_reference(field)
    default = field.get_default(call_default_factory=True)
    optional = type(None) in get_args(field.annotation) or default is None
    is_list = get_origin(kind) is tuple
    item = strip_annotation(get_args(kind)[0]) if is_list else kind
    common_facts: dict[str, Any] = {
        "path": path,
        "default": default,
        "text": field.description or next((mark.text for mark in list_field_marks(field) if isinstance(mark, Doc)), ""),
        "optional": optional,
        "type": item if item in (int, float, bool) else str,
    }
    if reference is not None:
        return SettingField(form="references" if is_list else "reference", noun=reference.noun, **common_facts)
    if kind is bool:
        return SettingField(form="yes or no", choices=(YES, NO), **common_facts)
    if get_origin(kind) is Literal:
        return SettingField(form="choice", choices=tuple(map(str, get_args(kind))), **common_facts)
    if is_list:
        return SettingField(form="list", **common_facts)
    return SettingField(form="number" if kind in (int, float) else "text", **common_facts)


def strip_annotation(annotation: Any) -> Any:
    """Return an annotation without Annotated and `| None`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [a for a in get_args(annotation) if a is not type(None)]
        return strip_annotation(inner[0]) if len(inner) == 1 else str
    return annotation


def parse_list(text: str, item: type) -> tuple[Any, ...]:
    """Parse a list such as `0,2,5-7` or `a,b`. Raises ValueError with a message.

    >>> parse_list("0,2,5-7", int)
    (0, 2, 5, 6, 7)
    """
    values: list[Any] = []
    for piece in text.split(",", MAX_LIST_VALUES + 1):
        low, dash, high = piece.strip().partition("-")
        try:
            if item is int and dash and low:
                if int(high) < int(low):
                    raise ValueError
                values += range(int(low), min(int(high), int(low) + MAX_LIST_VALUES) + 1)
            elif piece.strip():
                values.append(item(piece.strip()))
        except (ValueError, OverflowError):
            raise ValueError(f"{clip_text(text)!r} is not a list of {item.__name__}s such as 0,2,5-7") from None
        if len(values) > MAX_LIST_VALUES:
            raise ValueError(f"{clip_text(text)!r} is more than {MAX_LIST_VALUES:,} values")
    return tuple(values)


def format_value(value: Any) -> str:
    """Return a value as it is typed in a form."""
    if isinstance(value, bool):
        return YES if value else NO
    if value is None:
        return "none"
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value)) or "none"
    return str(value)


# -- discriminated unions ---------------------------------------------------------------------------------------------


def find_variant_tag(model: Any) -> str:
    """Return the name of the setting that selects a variant of a union. Empty for a single class."""
    marks = get_args(model)[1:] if get_origin(model) is Annotated else ()
    return next((str(mark.discriminator) for mark in marks if isinstance(mark, FieldInfo) and mark.discriminator), "")


def list_variants(model: Any) -> dict[str, type[Settings]]:
    """Return tag value → class of the variant, in order. Empty for a single class."""
    if not (tag := find_variant_tag(model)):
        return {}
    return {value: each for each in list_variant_models(model) for value in get_args(each.model_fields[tag].annotation)}


def list_variant_models(model: Any) -> tuple[type[Settings], ...]:
    """Return the classes of a union, or the single class."""
    return get_args(get_args(model)[0]) if find_variant_tag(model) else (model,)


def list_setting_names(model: Any) -> set[str]:
    """Return the names of the settings of a class, or of all variants of a union."""
    return {name for variant in list_variant_models(model) for name in variant.model_fields}


def describe_tag(model: Any, inherited_classes: Sequence[type[Settings]] = ()) -> SettingField:
    """Return the tag of a union as a setting. Its text describes the variants in `inherited_classes`, each after its
    value.
    """
    tag, variants = find_variant_tag(model), list_variants(model)
    texts = (
        f"{value}: {each.model_fields[tag].description}"
        for value, each in variants.items()
        if each in inherited_classes
    )
    return SettingField(
        path=tag, form="choice", default=PydanticUndefined, text="; ".join(texts), choices=tuple(variants)
    )


def choose_variant(model: Any, values: Mapping[str, Any]) -> type[Settings]:
    """Return the class that these settings belong to. Raises ValidationError for a missing or unknown tag."""
    if not (tag := find_variant_tag(model)):
        variant: type[Settings] = model
        return variant
    variants, tag_value = list_variants(model), values.get(tag)
    if isinstance(tag_value, str) and tag_value in variants:
        return variants[tag_value]
    problem = PydanticCustomError("literal_error" if tag in values else "missing", f"one of {', '.join(variants)}")
    raise ValidationError.from_exception_data(tag, [InitErrorDetails(type=problem, loc=(tag,), input=tag_value)])


def parse_settings(model: Any, values: Mapping[str, Any]) -> Any:
    """Return the settings object with these values, including the tag.

    Raises ValidationError, and BadInputError for a setting of another variant.
    """
    chosen_variant, tag = choose_variant(model, values), find_variant_tag(model)
    for name in (name for name in values if tag and name not in chosen_variant.model_fields):
        if owners := [value for value, variant in list_variants(model).items() if name in variant.model_fields]:
            raise BadInputError(
                f"{format_flag([name])} belongs to {format_flag([tag])} {' or '.join(owners)}, not to {values[tag]}",
                f"leave it out, or give {format_flag([tag])} {owners[0]}",
            )
    return chosen_variant(**values)


# -- values ------------------------------------------------------------------------------------------------------------


def flatten_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted paths."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def describe_source(path: str, explicit: Iterable[str]) -> str:
    """Return `given` if the setting with this dotted path, or the settings that contain it, were typed, else
    `default`."""
    return "given" if {path, path.partition(".")[0]} & set(explicit) else "default"


def name_all_settings(model: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of settings by dotted path, with "all" for those that were left out and then mean all."""
    settings = {each.path: each for each in describe_settings(model)}
    return {
        path: "all" if path in settings and settings[path].is_all(value) else value for path, value in values.items()
    }


def nest_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted paths as nested tables."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *tables, last_name = path.split(".")
        place = tree
        for table in tables:
            place = place.setdefault(table, {})
        place[last_name] = value
    return tree


def merge_settings(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `over`. Nested settings are merged."""
    result = dict(base)
    for key, value in over.items():
        are_mappings = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge_settings(result[key], value) if are_mappings else value
    return result


def make_settings(model: Any, typed_values: dict[str, Any], preset: Mapping[str, Any] = NO_SETTINGS) -> Any:
    """Return the settings object of the typed values on top of a preset.

    Raises ValidationError, and BadInputError for a typed setting that has no effect.
    """
    settings = parse_settings(model, merge_settings(dict(preset), typed_values))
    for name, reason in settings.without_effect().items() if isinstance(settings, Settings) else ():
        if name in typed_values and typed_values[name] != type(settings).model_fields[name].default:
            raise BadInputError(
                f"{format_flag([name])} {format_value(typed_values[name])} has no effect: {reason}", "leave it out"
            )
    return settings


def build_settings(model: Any, typed_values: dict[str, Any], preset: Mapping[str, Any] = NO_SETTINGS) -> Any:
    """Return the settings object, like `make_settings`. Raises BadInputError listing all problems by option."""
    try:
        return make_settings(model, typed_values, preset)
    except ValidationError as error:
        complaints = [
            f"{format_flag(e['loc'])}: {format_complaint(e)}"
            if e["loc"]
            else format_complaint(e)  # concerns several settings
            for e in error.errors(include_url=False)
        ]
        complaint_text = "; ".join(dict.fromkeys(complaints[:MAX_COMPLAINTS]))
        more = f"; and {len(complaints) - MAX_COMPLAINTS:,} more" if len(complaints) > MAX_COMPLAINTS else ""
        raise BadInputError(complaint_text + more, "add --help to see every setting") from error


MAX_COMPLAINTS = 5  # listed in one message


def format_flag(path: Sequence[int | str]) -> str:
    """Return the command-line option of a field's path."""
    return "--" + ".".join(str(p) for p in path if isinstance(p, str)).replace("_", "-")


def format_complaint(error: ErrorDetails) -> str:
    """Return the message of a pydantic error: our own text, or pydantic's in lower case."""
    cause = error.get("ctx", {}).get("error")
    return str(cause) if isinstance(cause, ValueError) else error["msg"].lower()
