"""`chessreg config`: settings of a project."""

from __future__ import annotations

from pathlib import Path

import click

from chessreg.cli.base import FilePath, Home, add_json_option, pass_home, print_output

SOURCE_TEXT = "source-text"


@click.command()
@click.argument("name", type=click.Choice([SOURCE_TEXT]), metavar="SETTING", required=False)
@click.argument("value", type=click.Choice(["on", "off"]), metavar="on|off", required=False)
@click.option(
    "--folder", type=FilePath(exists=True, file_okay=False, path_type=Path), default=".",
    help="Project to show or change. Left out: the current folder.",
)  # fmt: skip
@add_json_option
@pass_home
def config(home: Home, name: str | None, value: str | None, folder: Path) -> None:
    """Show or change the setting of a project.

    The setting applies to the folder and its subfolders. It is stored in your settings folder on this machine.

    source-text: record the text of the git patch and of small untracked files with each attempt. By default only their
    names and digests are recorded. The text is stored in the registry, and merge and push copy it.

    \b
    Example: chessreg config source-text on
             chessreg config
    """
    from chessreg import settings

    if value is not None:
        settings.record_source_text(folder, value == "on")
    current, project = settings.is_source_text_recorded(folder)
    word, origin = "on" if current else "off", "default" if project is None else str(project)
    print_output(home, [{"setting": SOURCE_TEXT, "value": word, "from": origin}])
