"""`chessreg tui`: the terminal UI as a command of chessreg. Imports textual only when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chessreg.cli.base import Home, pass_home

if TYPE_CHECKING:
    from chessreg.session import Session


@click.command()
@click.option("--read-only", is_flag=True, help="Change nothing: not even waiting results are taken in.")
@click.option("--ascii", "letters", is_flag=True, help="Pieces as letters, for terminals without figurines.")
@pass_home
def tui(home: Home, read_only: bool, letters: bool) -> None:
    """Look at runs, games, boards and tables in the terminal. ? shows the keys.

    \b
    Example: chessreg tui --read-only
    """
    import sys

    from chessreg.errors import BadInputError

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInputError("chessreg tui needs a terminal", "chessreg runs list prints the runs")
    place, store_path = home.place, home.store_path
    from tui.app import ChessregApp
    from tui.widgets.squares import Glyphs

    def opener() -> Session:
        from tui.registry import open_session

        return open_session(place.url, store_path, read_only)

    glyphs: Glyphs | None = "letters" if letters or not speaks_unicode() else None
    app = ChessregApp(opener, place.shown, read_only=read_only, glyphs=glyphs)
    error = app.run()
    if error is not None:
        raise error


def speaks_unicode() -> bool:
    """Whether the terminal's encoding and kind can be expected to draw figurines."""
    import os
    import sys

    return (sys.stdout.encoding or "").lower().startswith("utf") and os.environ.get("TERM") not in ("linux", "dumb")
