"""`chessreg tui`: the terminal UI as a command of chessreg. Imports textual only when it starts."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

import click

from chessreg.cli.base import Home, pass_home

if TYPE_CHECKING:
    from chessreg.session import Session
    from tui.widgets.board import Glyphs


@click.command()
@click.option("--read-only", is_flag=True, help="Change nothing: not even waiting results are taken in.")
@click.option("--ascii", "letters", is_flag=True, help="Pieces as letters, for terminals without figurines.")
@click.option("--web", is_flag=True, help="Serve it to a browser instead of this terminal.")
@click.option("--write", is_flag=True, help="With --web: let the page change things; else it is read-only.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --web: the address that it listens on.")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="With --web: its port.")
@pass_home
def tui(home: Home, read_only: bool, letters: bool, web: bool, write: bool, host: str, port: int) -> None:
    """Look at runs, games, boards and tables in the terminal. ? shows the keys.

    --web prints a URL with a random token: who has it can use the page, nobody else.

    \b
    Example: chessreg tui --read-only
             chessreg tui --web --port 8000
    """
    from chessreg.errors import BadInputError

    if write and (read_only or not web):
        raise BadInputError("--write lets a page of --web change things", "give it with --web and without --read-only")
    place, store_path = home.place, home.store_path
    if web:
        from tui.web import serve

        home.database()  # said here, not by every page
        home.close()
        options = [*([] if write else ["--read-only"]), *(["--ascii"] if letters else [])]
        serve(place.url, store_path, options, host, port)
        return
    served = bool(os.environ.get("TEXTUAL_DRIVER"))  # a browser is at the other end
    if not served and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInputError("chessreg tui needs a terminal", "chessreg runs list prints the runs")
    gc.disable()  # until the screens' code is there: see tui.entries
    from tui.app import ChessregApp
    from tui.themes import own_themes

    def opener() -> Session:
        from tui.registry import open_session

        return open_session(place.url, store_path, read_only, create=not home.named)

    glyphs: Glyphs | None = "letters" if letters or not (served or speaks_unicode()) else None
    app = ChessregApp(opener, place.shown, read_only=read_only, glyphs=glyphs, themes=own_themes())
    error = app.run()
    if error is not None:
        raise error


def speaks_unicode() -> bool:
    """Whether the terminal's encoding and kind can be expected to draw figurines."""
    return (sys.stdout.encoding or "").lower().startswith("utf") and os.environ.get("TERM") not in ("linux", "dumb")
