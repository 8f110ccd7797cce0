"""`chessreg tui`: the terminal UI as a command of chessreg. Imports textual only when it starts."""

from __future__ import annotations

import gc
import os
import sys
import threading
from typing import TYPE_CHECKING

import click

from chessreg.cli.base import Home, pass_home

if TYPE_CHECKING:
    from chessreg.session import Session
    from tui.widgets.board import Glyphs


@click.command()
@click.option("--read-only", is_flag=True, help="Change nothing, and ingest no waiting results.")
@click.option(
    "--ascii",
    "letters",
    is_flag=True,
    help="Use only ASCII characters, with pieces as letters; the default with LANG=C.",
)
@click.option("--keys", "list_keys", is_flag=True, help="Print all actions and their keys as a file to customize.")
@click.option("--web", is_flag=True, help="Serve the terminal UI to a browser.")
@click.option("--write", is_flag=True, help="With --web: allow changes; without it, the page is read-only.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --web: the address to listen on.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="With --web: the port to listen on."
)
@pass_home
def tui(
    home: Home, read_only: bool, letters: bool, list_keys: bool, web: bool, write: bool, host: str, port: int
) -> None:
    """Browse runs, games, boards and tables in the terminal. ? shows the keys.

    Custom keys are read from ~/.config/chessreg/keys.toml, in the format that --keys prints.

    --web prints a URL with a random token. Anyone with the URL can use the page.

    \b
    Example: chessreg tui --read-only
             chessreg tui --web --port 8000
    """
    from chessreg.errors import BadInputError

    if list_keys:
        from tui.keys import format_key_file

        click.echo(format_key_file(), nl=False)
        return
    if write and (read_only or not web):
        raise BadInputError("--write needs --web, and contradicts --read-only", "chessreg tui --web --write")
    place, store_path = home.place, home.store_path
    if web:
        from tui.web import serve_pages

        home.database()  # an error is reported here, not by every page
        home.close()
        options = [*([] if write else ["--read-only"]), *(["--ascii"] if letters else [])]
        serve_pages(place.reference, store_path, options, host, port)
        return
    is_served = bool(os.environ.get("TEXTUAL_DRIVER"))  # a browser is at the other end
    streams = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    if not is_served and (other := [name for name, stream in streams.items() if not stream.isatty()]):
        raise BadInputError(
            f"the terminal UI needs a terminal: {' and '.join(other)} {'is' if len(other) == 1 else 'are'} redirected",
            "chessreg runs list prints the runs",
        )
    gc.disable()  # until the screens' code is there: see tui.entries
    from tui.app import ChessregApp
    from tui.escape import install_parser
    from tui.keys import load_keys
    from tui.themes import load_themes
    from tui.widgets.images import Terminal, ask_terminal

    def open_session() -> Session:
        from tui.registry import open_tui_session

        return open_tui_session(place, store_path, read_only, create=not home.is_named)

    is_plain = not is_served and not has_unicode()
    glyphs: Glyphs | None = "letters" if letters or is_plain else None
    terminal = Terminal() if is_served or letters or is_plain else ask_terminal()
    app = ChessregApp(
        open_session, place.masked_location, read_only=read_only, glyphs=glyphs, themes=load_themes(), keys=load_keys(),
        plain=letters or is_plain,
        images=terminal.widget, typed_text=terminal.typed_text,
    )  # fmt: skip
    install_parser()
    error = app.run()
    if error is not None:
        raise error
    end_process()


def end_process() -> None:
    """End the process immediately if an app thread is still running.

    Python stops daemon threads at exit. If a thread is in C++ code such as DuckDB's, the process would abort with
    `terminate called`.
    """
    if any(thread.daemon and thread.name.startswith(("database-", "warm")) for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


COERCED_LOCALES = ("C.UTF-8", "C.utf8", "UTF-8")


def has_unicode() -> bool:
    """Return whether the terminal's locale and type probably support chess figurines.

    In the locale C, Python switches to UTF-8 and sets LC_CTYPE (PEP 538), so that LC_CTYPE does not describe the
    terminal.
    """
    locale_name = os.environ.get("LC_CTYPE", "")
    locale = (
        os.environ.get("LC_ALL")
        or ("" if locale_name in COERCED_LOCALES else locale_name)
        or os.environ.get("LANG", "")
    )
    if locale in ("C", "POSIX") or os.environ.get("TERM") in ("linux", "dumb"):
        return False
    return (sys.stdout.encoding or "").lower().startswith("utf")
