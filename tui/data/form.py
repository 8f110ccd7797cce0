"""A kind's settings as the fields of a form, made from its models. What is typed is checked as on the command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from chessreg.errors import ChessregError
from chessreg.registry.names import check_name
from chessreg.runs.kind import Kind
from chessreg.runs.settings import WORDS, Setting, flat, merged, nested, settings_of, shown
from chessreg.scheduling.launch import LaunchOptions

Part = Literal["spec", "options", "launch"]


@dataclass(frozen=True, kw_only=True)
class Field(Setting):
    """One setting of a form: of the spec, of the execution options, or of the launch."""

    part: Part

    @property
    def key(self) -> str:
        """The path, unique in the form: no kind has one name in two parts, but `name` is also the launch's."""
        return f"launch.{self.path}" if self.part == "launch" else self.path


def fields_of(model: type[BaseModel], part: Part) -> list[Field]:
    return [Field(part=part, **vars(setting)) for setting in settings_of(model)]


@dataclass
class Checked:
    """The settings that a form stands for, or what is wrong with it: by field, and as a whole."""

    spec: Any = None
    options: Any = None
    launch: LaunchOptions = field(default_factory=LaunchOptions)
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
            *fields_of(kind.spec, "spec"),
            *fields_of(kind.options, "options"),
            *fields_of(LaunchOptions, "launch"),
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
        values: dict[str, dict[str, Any]] = {"spec": {}, "options": {}, "launch": {}}
        for key, text in self.given.items():
            one = self.by_key[key]
            try:
                values[one.part][one.path] = one.parsed(text)
            except ValueError as error:
                result.errors[key] = str(error)
        base = self.kind.preset(self.preset) if self.preset else {}
        result.spec = self._built(self.kind.spec, values["spec"], "", result, base)
        result.options = self._built(self.kind.options, values["options"], "", result)
        result.launch = self._built(LaunchOptions, values["launch"], "launch.", result) or LaunchOptions()
        if result.launch.name:
            try:
                check_name(result.launch.name)
            except ChessregError as error:
                result.errors["launch.name"] = error.message
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
            flag, text = one.flag, self.given[one.key].strip()
            if one.form == "yes or no":
                on = WORDS.get(text.lower(), False)
                if one.part != "launch":
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
        named = {self.by_key[key].path.partition(".")[0] for key in self.given if self.by_key[key].part != "launch"}
        return tuple(sorted(named | ({*self.kind.preset(self.preset)} if self.preset else set())))
