"""What every command uses: the home (registry and store), `--json`, output, and groups that import when needed."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from chessreg.cli.output import print_json, print_record, print_table

if TYPE_CHECKING:
    from chessreg.registry.database import Database
    from chessreg.registry.urls import Place
    from chessreg.session import Session


F = TypeVar("F", bound=Callable[..., Any])


class Home:
    """Where a command works: its registry and store, opened when first asked for and closed when it ends."""

    def __init__(
        self, registry: str | None = None, store: str | None = None, json: bool = False, debug: bool = False
    ) -> None:
        self.given_registry, self.given_store = registry, store
        self.json, self.debug = json, debug
        self._session: Session | None = None
        self._database: Database | None = None

    @cached_property
    def place(self) -> Place:
        """The registry's place: --registry, else CHESSREG_REGISTRY, else ./.chessreg/registry.db."""
        from chessreg.registry.urls import place_of

        return place_of(self.given_registry)

    @property
    def registry_url(self) -> str:
        """The registry's URL, password and all."""
        return self.place.url

    @property
    def store_path(self) -> Path:
        """The store's folder: --store, else CHESSREG_STORE, else store/ beside the registry's file."""
        from chessreg.registry.urls import store_path_of

        return store_path_of(self.given_store, self.place)

    def session(self) -> Session:
        """The registry and store, open; made if they are not there."""
        if self._session is None:
            from chessreg.session import open_session

            self._session = open_session(self.registry_url, self.store_path)
        return self._session

    def database(self, create: bool = True) -> Database:
        """The registry alone."""
        if self._session is not None:
            return self._session.database
        if self._database is None:
            from chessreg.registry.database import Database

            self._database = Database.open(self.registry_url, create=create)
        return self._database

    def close(self) -> None:
        """Close what was opened, and give a lease back."""
        if self._session is not None:
            self._session.close()
        if self._database is not None:
            self._database.close()
        self._session = self._database = None


def pass_home(function: F) -> F:
    """Give a command the Home of this invocation as its first argument."""
    decorated: Any = click.make_pass_decorator(Home, ensure=True)(function)
    return cast(F, decorated)


def json_option(function: F) -> F:
    """Add `--json` to a command; it becomes `home.json`."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
        ctx.ensure_object(Home).json = value

    option: Callable[[F], F] = click.option(
        "--json", is_flag=True, expose_value=False, is_eager=True, callback=keep, help="Print one JSON document."
    )
    return option(function)


def emit(
    to: Home | bool,
    data: list[dict[str, Any]] | dict[str, Any],
    columns: list[str] | Mapping[str, str] | None = None,
) -> None:
    """Print rows or one object on stdout: as a JSON document, or as a table for people.

    `to` is the Home or whether to print JSON. `columns` picks and orders the columns of the table (a mapping also
    gives their headings); JSON always has every field.
    """
    if not isinstance(to, (Home, bool)):
        raise TypeError("emit(home or flag, rows or object, columns)")
    if to.json if isinstance(to, Home) else to:
        print_json(data)
    elif isinstance(data, dict):
        print_record(data, columns)
    else:
        print_table(data, columns)


class LazyCommand(NamedTuple):
    """A command that is imported when it is called: where it is, and the line that the help shows."""

    target: str  # "module:attribute"
    help: str
    of: str = ""  # what the attribute makes the command of, where one function makes several

    @property
    def present(self) -> bool:
        """Whether its module can be found; nothing of it is run."""
        try:
            return importlib.util.find_spec(self.target.partition(":")[0]) is not None
        except ModuleNotFoundError:
            return False

    def load(self) -> click.Command:
        """Import it."""
        module, _, attribute = self.target.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        command: click.Command = found(self.of) if self.of else found
        return command


class LazyGroup(click.Group):
    """A group whose commands are named in a table: its help imports none of them."""

    def __init__(self, *arguments: Any, lazy: Mapping[str, LazyCommand] | None = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        there = [name for name, command in self.lazy.items() if command.present]
        return there + [name for name in super().list_commands(ctx) if name not in self.lazy]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in self.lazy and self.lazy[name].present:
            return self.lazy[name].load()
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the commands that are spelled like an unknown one."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=2)
            also = f"; did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"there is no command {args[0]!r}{also}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            if name in self.lazy:
                rows.append((name, self.lazy[name].help))
            elif (command := super().get_command(ctx, name)) is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(100)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def fresh(home: Home) -> Database:
    """The registry with every waiting fragment taken in. One that cannot be written is listed as it is."""
    from chessreg.errors import ChessregError
    from chessreg.runs.ingest import ingest
    from chessreg.runs.watch import Watcher

    session, began = home.session(), time.monotonic()
    watcher = Watcher(session.store)
    try:
        ingest(session.database, session.store)
        watcher.look(session.database, began)
    except ChessregError as error:
        watcher.forget()
        click.echo(f"not up to date: {error.message}", err=True)
    return session.database
