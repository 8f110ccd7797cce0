"""`chessreg config`: settings of a project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from chessreg.cli.base import FilePath, Home, emit, json_option, pass_home


@click.command()
@click.argument("name", metavar="SETTING", required=False)
@click.argument("value", type=click.Choice(["on", "off"]), metavar="on|off", required=False)
@click.option(
    "--folder", type=FilePath(exists=True, file_okay=False, path_type=Path), default=".",
    help="Project to show or change. The default is the current folder.",
)  # fmt: skip
@json_option
@pass_home
def config(home: Home, name: str | None, value: str | None, folder: Path) -> None:
    """Show the settings of a project, or change one.

    A setting holds for the folder and the folders below it. It is kept in your settings folder, on this machine.

    source-text: record the text of the git patch and of small untracked files with each attempt. By default only
    their names and digests are recorded. The text is in the registry then, and goes along with merge and push.

    \b
    Example: chessreg config source-text on
             chessreg config
    """
    from chessreg import settings
    from chessreg.errors import NotFoundError

    if name is not None and name not in settings.SETTINGS:
        raise NotFoundError(f"there is no setting {name!r}", f"settings are {', '.join(settings.SETTINGS)}")
    if name is not None and value is not None:
        settings.change(name, folder, value == "on")
    rows: list[dict[str, Any]] = []
    for setting in [settings.SETTINGS[name]] if name is not None else settings.SETTINGS.values():
        current, project = settings.value_of(setting.name, folder)
        said_by = str(project) if project is not None else "default"
        word = "on" if current else "off"
        rows.append({"setting": setting.name, "value": word, "from": said_by, "does": setting.help})
    emit(home, rows, ["setting", "value", "from", "does"])
