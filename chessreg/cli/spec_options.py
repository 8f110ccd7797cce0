"""Settings as command-line options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
from pydantic import BaseModel

from chessreg.runs.settings import Setting, nested, settings_of, several


class Numbers(click.ParamType):
    """Several values in one option: `0,2,5-7`, or words `a,b`."""

    def __init__(self, item: type) -> None:
        self.item, self.name = item, f"{item.__name__},…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return several(str(value), self.item)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def options(model: type[BaseModel]) -> list[click.Option]:
    """An option for every setting, without a click default, so that given and defaulted stay apart."""
    made = []
    for setting in settings_of(model):
        made.append(option(setting))
        if setting.earlier:
            made.append(earlier_option(setting))
    return made


def earlier_option(setting: Setting) -> click.Option:
    """The hidden option of a renamed setting's earlier name, which says what it is called now."""
    earlier = replace(setting, path=setting.earlier)

    def say(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if value is not None:
            click.echo(f"{earlier.flag} is called {setting.flag} now", err=True)
        return value

    made = option(earlier)
    made.hidden, made.callback = True, say
    return made


def option(setting: Setting) -> click.Option:
    default = "required" if setting.needed else f"default: {shown_default(setting)}"
    names, text = [setting.flag, parameter(setting.path)], f"{setting.text}  [{default}]"
    if setting.form == "yes or no":
        names[0] = f"{setting.flag}/--no-{setting.flag[2:]}"
        return click.Option(names, default=None, help=text)
    kind: Any = setting.type
    if setting.form == "choice":
        kind = click.Choice(setting.choices)
    elif setting.several:
        kind = Numbers(setting.type)
    metavar = setting.noun.removeprefix("run:").upper() or None
    return click.Option(names, type=kind, default=None, help=text, metavar=metavar)


def shown_default(setting: Setting) -> str:
    return str(setting.default) if isinstance(setting.default, bool) else setting.shown_default


def parameter(path: str) -> str:
    """The name that click gives the option of a setting's path."""
    return path.replace(".", "_").replace("-", "_").lower()


def given_values(model: type[BaseModel], params: dict[str, Any]) -> dict[str, Any]:
    """The values given on the command line, nested as the model is."""
    found = {}
    for setting in settings_of(model):
        for path in filter(None, (setting.earlier, setting.path)):
            if (value := params.get(parameter(path))) is not None:
                found[setting.path] = value
    return nested(found)
