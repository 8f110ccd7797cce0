"""A kind's settings as the fields of a form, made from its models. What is typed is checked as on the command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic import Field as Setting
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from chessreg.cli.spec_options import Numbers, bare, merged, shown_default
from chessreg.errors import ChessregError
from chessreg.runs.kind import Kind
from chessreg.runs.spec import Settings, reference_of
from chessreg.scheduling.launch import flat, nested

YES, NO = "yes", "no"
WORDS = {"yes": True, "true": True, "on": True, "y": True, "1": True, "no": False, "false": False, "off": False,
         "n": False, "0": False}  # fmt: skip
FILES = ("book", "results", "probe-file", "vector-file")  # references that are files of the user's


class Asked(BaseModel):
    """What is asked of the executor, as options of `chessreg launch`."""

    model_config = ConfigDict(extra="forbid")
    name: str | None = Setting(None, description="name of the run")
    on: str = Setting("local", description="local, slurm, slurm:PROFILE, ray or ray:ADDRESS")
    shards: int = Setting(1, ge=1, description="ranges of units, side by side")
    priority: int = Setting(0, description="higher ones start first")
    share_gpu: bool = Setting(False, description="may stand on a GPU with others that may")
    gpu_memory: float = Setting(0.0, ge=0, description="GiB that must be free on its GPU")


@dataclass(frozen=True)
class Field:
    """One setting of a form."""

    part: Literal["what", "how", "asked"]
    path: str  # dotted where it is nested
    form: Literal["text", "number", "yes or no", "choice", "list", "reference", "references"]
    default: Any
    text: str
    choices: tuple[str, ...] = ()
    noun: str = ""  # of a reference: dataset, checkpoint, run, run:KIND, or one of FILES
    item: type = str  # of a list
    optional: bool = False

    @property
    def key(self) -> str:
        """The path, unique in the form: no kind has one name in two parts, but `name` is also asked."""
        return f"asked.{self.path}" if self.part == "asked" else self.path

    @property
    def needed(self) -> bool:
        return self.default is PydanticUndefined

    @property
    def picked(self) -> bool:
        """Whether there is a list to pick a value from."""
        return bool(self.noun) and self.noun not in FILES

    @property
    def shown_default(self) -> str:
        return "" if self.needed else shown(self.default)

    def parsed(self, text: str) -> Any:
        """The value that a text means; what a number must be is the model's business. Raises ValueError with words."""
        text = text.strip()
        if self.optional and text.lower() in ("", "none"):
            return None
        if self.form == "yes or no":
            if text.lower() not in WORDS:
                raise ValueError("yes or no")
            return WORDS[text.lower()]
        if self.form == "choice" and text not in self.choices:
            raise ValueError(f"one of {', '.join(self.choices)}")
        if self.form == "references":
            return tuple(piece.strip() for piece in text.split(",") if piece.strip())
        if self.form == "list":
            if text.lower() == "none":
                return ()
            try:
                return Numbers(self.item).convert(text, None, None)
            except click.UsageError as error:
                raise ValueError(error.message) from None
        if not text and self.noun:
            raise ValueError("it is needed" if self.needed else "a name or an id")
        return text


def shown(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, bool):
        return YES if value else NO
    return shown_default(value)


def fields_of(model: type[BaseModel], part: Literal["what", "how", "asked"], prefix: str = "") -> list[Field]:
    """The fields of a model, those of nested settings dotted."""
    found: list[Field] = []
    for name, info in model.model_fields.items():
        kind = bare(info.annotation)
        if isinstance(kind, type) and issubclass(kind, Settings):
            found += fields_of(kind, part, f"{prefix}{name}.")
        else:
            found.append(field_of(part, prefix + name, info))
    return found


def field_of(part: Literal["what", "how", "asked"], path: str, info: FieldInfo) -> Field:
    kind, reference = bare(info.annotation), reference_of(info)
    default = info.get_default(call_default_factory=True)
    optional = type(None) in get_args(info.annotation) or default is None
    common = {"part": part, "path": path, "default": default, "text": info.description or "", "optional": optional}
    if reference is not None:
        several = get_origin(kind) is tuple
        return Field(form="references" if several else "reference", noun=reference.noun, **common)
    if kind is bool:
        return Field(form="yes or no", choices=(YES, NO), **common)
    if get_origin(kind) is Literal:
        return Field(form="choice", choices=tuple(map(str, get_args(kind))), **common)
    if get_origin(kind) is tuple:
        return Field(form="list", item=bare(get_args(kind)[0]), **common)
    return Field(form="number" if kind in (int, float) else "text", **common)


@dataclass
class Checked:
    """The settings that a form stands for, or what is wrong with it: by field, and as a whole."""

    spec: Any = None
    how: Any = None
    asked: Asked = field(default_factory=Asked)
    errors: dict[str, str] = field(default_factory=dict)
    general: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.errors and not self.general


class Form:
    """The settings of one kind as they are filled in: what was typed is kept apart from presets and defaults."""

    def __init__(self, kind: Kind, reference: str, given: Mapping[str, str] | None = None) -> None:
        self.kind, self.reference = kind, reference
        self.fields = [
            *fields_of(kind.spec, "what"),
            *fields_of(kind.options, "how"),
            *fields_of(Asked, "asked"),
        ]
        self.by_key = {each.key: each for each in self.fields}
        self.given: dict[str, str] = dict(given or {})
        self.preset = ""

    def snapshot(self) -> Form:
        """The form as it is now, for another thread: typing goes on meanwhile."""
        same = Form(self.kind, self.reference, self.given)
        same.preset = self.preset
        return same

    @property
    def presets(self) -> tuple[str, ...]:
        return ("", *self.kind.presets)

    @property
    def filled(self) -> dict[str, Any]:
        """What the preset fills in, by path."""
        return flat(self.kind.preset(self.preset)) if self.preset else {}

    def give(self, key: str, text: str | None) -> None:
        """What was typed into a field; None takes it back."""
        one = self.by_key[key]
        if text is None or (not text.strip() and one.form != "list"):
            self.given.pop(key, None)
        else:
            self.given[key] = text

    def text(self, key: str) -> str:
        """What the field shows."""
        if key in self.given:
            return self.given[key]
        if key in self.filled:
            return shown(self.filled[key])
        return self.by_key[key].shown_default

    def source(self, key: str) -> str:
        """Where the value comes from: given, a preset, the default; or that it is needed."""
        if key in self.given:
            return "given"
        if key in self.filled:
            return "preset"
        return "needed" if self.by_key[key].needed else "default"

    # -- checking -------------------------------------------------------------------------------------------------

    def check(self) -> Checked:
        """What the models make of it. Nothing is looked up: names are looked for when it is planned."""
        result = Checked()
        values: dict[str, dict[str, Any]] = {"what": {}, "how": {}, "asked": {}}
        for key, text in self.given.items():
            one = self.by_key[key]
            try:
                values[one.part][one.path] = one.parsed(text)
            except ValueError as error:
                result.errors[key] = str(error)
        base = self.kind.preset(self.preset) if self.preset else {}
        result.spec = self._built(self.kind.spec, values["what"], "", result, base)
        result.how = self._built(self.kind.options, values["how"], "", result)
        result.asked = self._built(Asked, values["asked"], "asked.", result) or Asked()
        if result.asked.name:
            from chessreg.registry.names import check_name

            try:
                check_name(result.asked.name)
            except ChessregError as error:
                result.errors["asked.name"] = error.message
        return result

    def _built(
        self,
        model: type[Any],
        values: dict[str, Any],
        prefix: str,
        result: Checked,
        base: dict[str, Any] | None = None,
    ) -> Any:
        try:
            return model(**merged(base or {}, nested(values)))
        except ValidationError as error:
            for complaint in error.errors():
                key = prefix + ".".join(part for part in complaint["loc"] if isinstance(part, str))
                words = complaint["msg"].removeprefix("Value error, ")
                if complaint["type"] == "missing":
                    words = "it is needed"
                if key in self.by_key:
                    result.errors.setdefault(key, words[:1].lower() + words[1:])
                else:
                    result.general.append(words)
        except ChessregError as error:  # a kind's own words, of one setting or of several together
            words = error.message + (f" ({error.hint})" if error.hint else "")
            guilty = [path for path in values if self._fits_without(model, values, path, base or {})]
            if len(guilty) == 1:
                result.errors.setdefault(prefix + guilty[0], words)
            else:
                result.general.append(words)
        return None

    @staticmethod
    def _fits_without(model: type[Any], values: dict[str, Any], path: str, base: dict[str, Any]) -> bool:
        """Whether the model takes the values but this one."""
        try:
            model(**merged(base, nested({key: value for key, value in values.items() if key != path})))
        except ChessregError:
            return False
        except ValidationError:
            pass  # what else is wrong, is said by itself
        return True

    # -- as a command ---------------------------------------------------------------------------------------------

    def words(self) -> list[str]:
        """The command that launches the same: every option that was given, and no other."""
        found = ["chessreg", "launch", self.reference]
        if self.preset:
            found += ["--preset", self.preset]
        for one in self.fields:
            if one.key not in self.given:
                continue
            flag, text = "--" + one.path.replace("_", "-"), self.given[one.key].strip()
            if one.form == "yes or no":
                on = WORDS.get(text.lower(), False)
                if one.part != "asked":
                    found.append(flag if on else f"--no-{flag[2:]}")
                elif on:
                    found.append(flag)
            elif not (one.optional and text.lower() in ("", "none")):
                found += [flag, text]
        return found

    def command(self) -> str:
        return shlex.join(self.words())

    @property
    def given_names(self) -> tuple[str, ...]:
        """Settings that were not left at their defaults, as a run records them."""
        named = {self.by_key[key].path.partition(".")[0] for key in self.given if self.by_key[key].part != "asked"}
        return tuple(sorted(named | ({*self.kind.preset(self.preset)} if self.preset else set())))
