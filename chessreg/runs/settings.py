"""A kind's settings as data: each field of its models described once, for command line, dry run and launch form."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from chessreg.errors import BadInputError
from chessreg.runs.spec import Settings, reference_of, stored_name

YES, NO = "yes", "no"
WORDS = {"yes": True, "true": True, "on": True, "y": True, "1": True, "no": False, "false": False, "off": False,
         "n": False, "0": False}  # fmt: skip
FILES = ("book", "results", "probe-file", "vector-file")  # references that are files of the user's
Form = Literal["text", "number", "yes or no", "choice", "list", "reference", "references"]


@dataclass(frozen=True)
class Setting:
    """One setting: how it is typed, what it may be, its default and what it means."""

    path: str  # dotted where it is nested
    form: Form
    default: Any
    text: str
    type: type = str  # of the value, or of one item of a list
    choices: tuple[str, ...] = ()
    noun: str = ""  # of a reference: dataset, checkpoint, run, run:KIND, or one of FILES
    optional: bool = False  # may be None
    earlier: str = ""  # the path of a renamed field's earlier name

    @property
    def flag(self) -> str:
        return "--" + self.path.replace("_", "-")

    @property
    def needed(self) -> bool:
        return self.default is PydanticUndefined

    @property
    def several(self) -> bool:
        return self.form in ("list", "references")

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
            return () if text.lower() == "none" else several(text, self.type)
        if not text and self.noun:
            raise ValueError("it is needed" if self.needed else "a name or an id")
        return text


def settings_of(model: type[BaseModel], prefix: str = "") -> list[Setting]:
    """The settings of a model in their order, those of nested settings dotted."""
    found: list[Setting] = []
    for name, field in model.model_fields.items():
        kind = bare(field.annotation)
        if isinstance(kind, type) and issubclass(kind, Settings):
            found += settings_of(kind, f"{prefix}{name}.")
        else:
            earlier = stored_name(name, field)
            found.append(setting_of(prefix + name, field, prefix + earlier if earlier != name else ""))
    return found


def setting_of(path: str, field: FieldInfo, earlier: str) -> Setting:
    kind, reference = bare(field.annotation), reference_of(field)
    default = field.get_default(call_default_factory=True)
    optional = type(None) in get_args(field.annotation) or default is None
    several = get_origin(kind) is tuple
    item = bare(get_args(kind)[0]) if several else kind
    common: dict[str, Any] = {
        "path": path,
        "earlier": earlier,
        "default": default,
        "text": field.description or "",
        "optional": optional,
        "type": item if item in (int, float, bool) else str,
    }
    if reference is not None:
        return Setting(form="references" if several else "reference", noun=reference.noun, **common)
    if kind is bool:
        return Setting(form="yes or no", choices=(YES, NO), **common)
    if get_origin(kind) is Literal:
        return Setting(form="choice", choices=tuple(map(str, get_args(kind))), **common)
    if several:
        return Setting(form="list", **common)
    return Setting(form="number" if kind in (int, float) else "text", **common)


def bare(annotation: Any) -> Any:
    """The annotation without Annotated and without `| None`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [a for a in get_args(annotation) if a is not type(None)]
        return bare(inner[0]) if len(inner) == 1 else str
    return annotation


def several(text: str, item: type) -> tuple[Any, ...]:
    """The values of a list: `0,2,5-7`, or words `a,b`. Raises ValueError with words.

    >>> several("0,2,5-7", int)
    (0, 2, 5, 6, 7)
    """
    found: list[Any] = []
    try:
        for piece in text.split(","):
            low, dash, high = piece.strip().partition("-")
            if item is int and dash and low:
                found += range(int(low), int(high) + 1)
            elif piece.strip():
                found.append(item(piece.strip()))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of {item.__name__}s such as 0,2,5-7") from None
    return tuple(found)


def shown(value: Any) -> str:
    """A value as one would type it in a form."""
    if isinstance(value, bool):
        return YES if value else NO
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value)


# -- values ------------------------------------------------------------------------------------------------------------


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted paths."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted paths as nested tables."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        *tables, last = path.split(".")
        place = found
        for table in tables:
            place = place.setdefault(table, {})
        place[last] = value
    return found


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, nested settings merged."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def build(model: type[Any], values: dict[str, Any]) -> Any:
    """The settings object. Raises BadInputError with every complaint at once, named as options."""
    try:
        return model(**values)
    except ValidationError as error:
        complaints = [
            f"--{'.'.join(str(p) for p in e['loc'] if isinstance(p, str)).replace('_', '-')}: {e['msg'].lower()}"
            for e in error.errors()
        ]
        raise BadInputError("; ".join(complaints), "add --help to see every setting") from error
