"""A spec's fields as command-line options: names, choices, defaults and help come from the model itself."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from chessreg.errors import BadInputError
from chessreg.runs.spec import Settings, reference_of, stored_name


class Numbers(click.ParamType):
    """Several values in one option: `0,2,5-7`, or words `a,b`."""

    name = "list"

    def __init__(self, item: type) -> None:
        self.item = item
        self.name = f"{item.__name__},…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        found: list[Any] = []
        try:
            for piece in str(value).split(","):
                low, dash, high = piece.strip().partition("-")
                if self.item is int and dash and low:
                    found += range(int(low), int(high) + 1)
                elif piece.strip():
                    found.append(self.item(piece.strip()))
        except ValueError:
            self.fail(f"{value!r} is not a list of {self.item.__name__}s such as 0,2,5-7", param, ctx)
        return tuple(found)


def bare(annotation: Any) -> Any:
    """The annotation without Annotated and without `| None`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [a for a in get_args(annotation) if a is not type(None)]
        return bare(inner[0]) if len(inner) == 1 else str
    return annotation


def click_type(annotation: Any) -> Any:
    kind = bare(annotation)
    if get_origin(kind) is Literal:
        return click.Choice([str(c) for c in get_args(kind)])
    if get_origin(kind) is tuple:
        return Numbers(bare(get_args(kind)[0]))
    return {int: int, float: float, bool: bool}.get(kind, str)


def shown_default(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value)


def option(name: str, field: FieldInfo) -> click.Option:
    """One field as an option without a click default, so that given and defaulted stay apart."""
    flag = "--" + name.replace("_", "-")
    kind = click_type(field.annotation)
    reference = reference_of(field)
    default = field.get_default(call_default_factory=True)
    required = default is PydanticUndefined
    text = field.description or ""
    text += "  [required]" if required else f"  [default: {shown_default(default)}]"
    if kind is bool:
        return click.Option([f"{flag}/--no-{flag[2:]}", parameter_name(name)], default=None, help=text)
    metavar = reference.noun.removeprefix("run:").upper() if reference else None
    return click.Option([flag, parameter_name(name)], type=kind, default=None, help=text, metavar=metavar)


def options(model: type[BaseModel], prefix: str = "") -> list[click.Option]:
    """Options for every field; nested settings get dotted names (`--edit.scale`)."""
    made: list[click.Option] = []
    for name, field in model.model_fields.items():
        kind = bare(field.annotation)
        if isinstance(kind, type) and issubclass(kind, Settings):
            made += options(kind, f"{prefix}{name}.")
        else:
            made.append(option(prefix + name, field))
            if (earlier := stored_name(name, field)) != name:
                made.append(earlier_option(prefix + earlier, prefix + name, field))
    return made


def earlier_option(path: str, present: str, field: FieldInfo) -> click.Option:
    """The hidden option of a renamed field's earlier name, which says what it is called now."""

    def say(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is not None:
            click.echo(f"--{path} is called --{present.replace('_', '-')} now", err=True)
        return value

    made = option(path, field)
    made.hidden, made.callback = True, say
    return made


def parameter_name(path: str) -> str:
    """The name that click gives the option of a field path."""
    return path.replace(".", "_").replace("-", "_").lower()


def given_values(model: type[BaseModel], params: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values given on the command line, nested as the model is."""
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind = bare(field.annotation)
        if isinstance(kind, type) and issubclass(kind, Settings):
            nested = given_values(kind, params, f"{prefix}{name}.")
            if nested:
                values[name] = nested
        else:
            for each in (stored_name(name, field), name):
                if params.get(parameter_name(prefix + each)) is not None:
                    values[name] = params[parameter_name(prefix + each)]
    return values


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, nested settings merged."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def build(model: type[Any], values: dict[str, Any]) -> Any:
    """The settings object; every pydantic complaint at once, named as options."""
    try:
        return model(**values)
    except ValidationError as error:
        complaints = [
            f"--{'.'.join(str(p) for p in e['loc'] if isinstance(p, str)).replace('_', '-')}: {e['msg'].lower()}"
            for e in error.errors()
        ]
        raise BadInputError("; ".join(complaints), "add --help to see every setting") from error
