"""Shared parts of the commands: the home (registry and store), `--json`, output, and groups that import lazily."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from chessreg.terminal import make_json_visible, make_visible, wrap_drawing_stream

if TYPE_CHECKING:
    from chessreg.registry.database import Database
    from chessreg.registry.place import RegistryPlace
    from chessreg.session import Session


Columns = list[str] | Mapping[str, str] | None


def print_json(data: Any) -> None:
    """Print one JSON document on stdout."""
    from chessreg.rows import to_plain

    document = json.dumps(to_plain(data), indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(make_json_visible(document) + "\n")


def print_table(rows: list[dict[str, Any]], columns: Columns = None, *, name_empty: bool = True) -> None:
    """Print a table on stdout, one line per row, without the columns that have no value in any row.

    On a narrow terminal long texts are shortened, then columns are dropped from the right. A line on stderr names the
    columns that are left out, those without a value only with `name_empty`.
    """
    if not rows:
        print("nothing yet", file=sys.stderr)
        return
    from chessreg.rows import format_rows

    width = get_screen_width()
    table, hidden_columns = format_rows(rows, _make_headings(columns, rows[0]), width)
    sys.stdout.write("\n".join(table) + "\n")
    for line in (hidden_columns if name_empty else hidden_columns._replace(empty=[])).describe(width or 120, "--json"):
        sys.stdout.flush()
        print(line, file=sys.stderr)


def get_screen_width() -> int | None:
    """Return the width of the terminal on stdout in characters, or None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_record(record: Mapping[str, Any], columns: Columns = None) -> None:
    """Print one object, one line per field that has a value."""
    from chessreg.rows import format_cell

    headings = _make_headings(columns, record)
    lines = {heading: text for name, heading in headings.items() if (text := format_cell(record.get(name)))}
    width = max(map(len, lines), default=0)
    for heading, text in lines.items():
        sys.stdout.write(f"{heading:<{width}}  {text}\n")


def _make_headings(columns: Columns, row: Mapping[str, Any]) -> dict[str, str]:
    """Return field → heading: as given, or else made from the names of the fields."""
    if isinstance(columns, Mapping):
        return dict(columns)
    return {name: name.replace("_", " ") for name in (columns or list(row))}


@contextmanager
def show_progress_line(title: str, quiet: bool = False) -> Iterator[Callable[[float, str], None]]:
    """Yield a function that reports progress (fraction 0 to 1, text), if stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda fraction, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    title_column, note = (TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[note]"))
    columns = title_column, BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), note
    with Progress(*columns, console=Console(file=wrap_drawing_stream(sys.stderr)), transient=True) as progress:
        task = progress.add_task(title, total=1.0, note="")
        last = 0.0

        def report(fraction: float, text: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last > 0.1 or fraction >= 1:
                last = now
                progress.update(task, completed=fraction, note=make_visible(text))

        yield report


Function = TypeVar("Function", bound=Callable[..., Any])


class Home:
    """The registry and store of a command, opened at first use and closed when the command ends."""

    def __init__(
        self, registry: str | None = None, store: str | None = None, json: bool = False, debug: bool = False
    ) -> None:
        self.given_registry, self.given_store = registry, store
        self.json, self.debug = json, debug
        self._session: Session | None = None
        self._database: Database | None = None

    @cached_property
    def place(self) -> RegistryPlace:
        """The registry's place: --registry, else CHESSREG_REGISTRY, else ./.chessreg/registry.db.

        From then on the files of this process are private to its user, or to the group that shares the store.
        """
        from chessreg.registry.place import resolve_place, resolve_store_path
        from store.files import keep_private

        place = resolve_place(self.given_registry)
        keep_private(shared_by=resolve_store_path(self.given_store, place))
        return place

    def is_registry(self, path: Path) -> bool:
        """Return whether `path` leads to a file of the registry."""
        from chessreg.registry.file_gate import get_file_key, list_registry_file_keys

        return self.place.path is not None and get_file_key(path) in list_registry_file_keys(self.place.path)

    @property
    def is_named(self) -> bool:
        """Whether an option or variable names the registry or the store. A command that only reads then creates nothing
        there."""
        paths = self.given_registry, self.given_store
        return any(path is not None for path in paths) or bool(
            os.environ.get("CHESSREG_REGISTRY") or os.environ.get("CHESSREG_STORE")
        )

    @property
    def registry_reference(self) -> str:
        """The registry's place for another process, including its password."""
        return self.place.reference

    @property
    def store_path(self) -> Path:
        """The store's folder: --store, else CHESSREG_STORE, else store/ next to the registry's file."""
        from chessreg.registry.place import resolve_store_path

        return resolve_store_path(self.given_store, self.place)

    def session(self, create: bool = False) -> Session:
        """Open the registry and store. With `create` (commands that add), create a missing registry and print its
        place.

        Raises NotFoundError if the registry does not exist.
        """
        if self._session is None and self.open(create):
            click.echo(f"made the registry {make_visible(self.place.masked_location)}", err=True)
        assert self._session is not None
        return self._session

    def open_for_adding(self, needs: Iterable[str | None] = (), check: Callable[[], object] = lambda: None) -> Session:
        """Open the registry and store for a command that adds. If the registry does not exist, `check` must pass before
        it is created, and a command that names existing entities (`needs`) raises NotFoundError."""
        path = self.place.path
        if self._session is None and path is not None and not path.exists():
            if any(needs):
                return self.session()
            check()
        return self.session(create=True)

    def open(self, create: bool) -> bool:
        """Open the registry and store. Return whether the registry was created now."""
        from chessreg.session import open_session

        path = self.place.path
        is_project = path is not None and path.parent.name == ".chessreg" and not path.exists()
        self._session = open_session(self.place, self.store_path, create=create)
        if is_project and path is not None:
            (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")  # keep results out of Git
        return self._session.database.is_new

    def database(self) -> Database:
        """Open the registry without the store. Raises NotFoundError if the registry does not exist."""
        if self._session is not None:
            return self._session.database
        if self._database is None:
            from chessreg.registry.database import Database

            self._database = Database.open(self.place, create=False)
        return self._database

    def close(self) -> None:
        """Close the registry and store, and release the lease."""
        if self._session is not None:
            self._session.close()
        if self._database is not None:
            self._database.close()
        self._session = self._database = None


def pass_home(function: Function) -> Function:
    """Give a command the Home of this invocation as its first argument."""
    decorator: Any = click.make_pass_decorator(Home, ensure=True)(function)
    return cast(Function, decorator)


class FilePath(click.Path):
    """A file or folder. An empty name, which would be the current folder, and a web address are refused, and so is `-`
    unless `allow_dash`: then it is stdout."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Fails for an empty name, a URL and a file of the registry in use."""
        if not str(value).strip():
            self.fail("the name of the file is empty", param, ctx)
        if str(value) == "-" and not self.allow_dash:
            self.fail("- (stdin or stdout) is not supported: name a file", param, ctx)
        if re.match(r"(https?|ftp)://", str(value)):
            self.fail(f"{value} is a URL: download the file, or use a name that `chessreg fetch` lists", param, ctx)
        home = ctx.find_object(Home) if ctx is not None else None
        if home is not None and home.is_registry(Path(value)):
            self.fail(f"{value} belongs to the registry that this command uses: name another file", param, ctx)
        return super().convert(value, param, ctx)


STDOUT = Path("-")  # value of a FilePath with `allow_dash`


class NameText(click.ParamType):
    """A name for a new entity. An invalid name is refused before the command changes anything."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name. Raises BadInputError if `require_name` does not accept it."""
        from chessreg.registry.names import require_name

        require_name(value)
        return value


class NoteText(click.ParamType):
    """The text of a note for a new entity. An empty note is refused before the command changes anything."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from chessreg.registry.names import require_annotation_text
        from chessreg.registry.tables import AnnotationWord

        require_annotation_text(AnnotationWord.NOTE, value)
        return value


class Numbers(click.ParamType):
    """Several values in one option: `0,2,5-7`, or words `a,b`; each of `empty_words` is the empty list. An empty text
    is refused, because an unset shell variable gives it."""

    def __init__(self, item: type, is_required: bool = False, empty_words: Sequence[str] = ("none",)) -> None:
        self.item, self.is_required, self.empty_words = item, is_required, empty_words
        self.name = f"{item.__name__},…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Return the values of a comma-separated list as a tuple. `none` is the empty tuple if the setting is not
        required."""
        if isinstance(value, tuple):
            return value
        from chessreg.runs.spec import parse_list

        if str(value).strip().lower() in self.empty_words and not self.is_required:
            return ()
        try:
            values = parse_list(str(value), self.item)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not values:
            self.fail("it is required" if self.is_required else "it is empty: leave it out, or write none", param, ctx)
        return values


def add_json_option(function: Function) -> Function:
    """Add `--json` to a command; it becomes `home.json`."""

    def store_value(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
        ctx.ensure_object(Home).json = value

    option: Callable[[Function], Function] = click.option(
        "--json", is_flag=True, expose_value=False, is_eager=True, callback=store_value, help="Print one JSON document."
    )
    return option(function)


def add_sort_option(function: Function) -> Function:
    """Add `--sort COLUMN` to a list; the function's parameter is `sort`."""
    option: Callable[[Function], Function] = click.option(
        "--sort",
        metavar="COLUMN,…",
        help="Sort by these columns; -COLUMN sorts the largest first. Left out: the order of the list.",
    )
    return option(function)


def add_last_option(default: int = 0) -> Callable[[Function], Function]:
    """Return a decorator that adds `--last N` to a list command. The command's parameter is `last`; 0 means all
    rows."""
    option: Callable[[Function], Function] = click.option(
        "--last",
        type=click.IntRange(min=0),
        default=default,
        show_default=True,
        metavar="N",
        help="List only the newest N; 0: all.",
    )
    return option


def print_output(
    to: Home | bool,
    data: list[dict[str, Any]] | dict[str, Any],
    columns: list[str] | Mapping[str, str] | None = None,
) -> None:
    """Print rows or one object on stdout: as a JSON document, or as a table for people.

    `to` is the Home or whether to print JSON. `columns` picks and orders the columns of the table (a mapping also
    gives their headings); JSON always has every field.
    """
    if to.json if isinstance(to, Home) else to:
        print_json(data)
    elif isinstance(data, dict):
        print_record(data, columns)
    else:
        print_table(data, columns)


class LazyCommand(NamedTuple):
    """A command whose module is imported when the command is called. `help` is its line in the help of its group."""

    target: str  # "module:attribute"
    help: str
    of: str = ""  # argument of the attribute, if one function makes several commands

    @property
    def is_present(self) -> bool:
        """Whether its module can be found, without running it."""
        try:
            return importlib.util.find_spec(self.target.partition(":")[0]) is not None
        except ModuleNotFoundError:
            return False

    def load(self) -> click.Command:
        """Import the module of the command, and return the command."""
        module, _, attribute = self.target.partition(":")
        base_command = getattr(importlib.import_module(module), attribute)
        command: click.Command = base_command(self.of) if self.of else base_command
        return command


class Group(click.Group):
    """A group of commands. Its help shows the first sentence of each command in full."""

    def short_helps(self, ctx: click.Context) -> dict[str, str]:
        """Return each command's name → its line in help and completion. Hidden commands are left out."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        return {name: command.get_short_help_str(LONGEST_SHORT_HELP) for name, command in commands
                if command is not None and not command.hidden}  # fmt: skip

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` names. The error for an unknown command suggests existing ones."""
        from chessreg.errors import NotFoundError

        name_error: NotFoundError | None = None
        try:
            command = self.get_command(ctx, args[0])
        except NotFoundError as error:  # of a group whose commands are kinds or papers
            command, name_error = None, error
        if command is None and not args[0].startswith("-"):
            self._fail_with_suggestions(ctx, args, name_error)
        return super().resolve_command(ctx, args)

    def _fail_with_suggestions(self, ctx: click.Context, args: list[str], unknown: Exception | None) -> None:
        """Fail with at most three commands that the user may mean.

        `unknown` is the error of a custom kind; it is raised if `args` name a file or class, or if nothing is similar.
        """
        import difflib

        from chessreg.cli.suggest import suggest_commands

        root = ctx.find_root()
        path = ctx.command_path.split()[1:]
        assert isinstance(root.command, click.Group)
        suggestions = [f"chessreg {line}" for line in suggest_commands(root.command, root, [*path, *args])]
        is_reference = ".py" in args[0] or ":" in args[0]  # of a file or class with a kind, not a misspelled command
        if unknown is not None and (is_reference or not suggestions):
            raise unknown
        if not suggestions:
            similar_names = difflib.get_close_matches(args[0], self.list_commands(ctx), n=2)
            suggestions = [" ".join(["chessreg", *path, name]) for name in similar_names]
        hint = f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""
        ctx.fail(f"command {' '.join([*path, args[0]])!r} does not exist{hint}")

    def sections(self, ctx: click.Context) -> dict[str, list[str]]:
        """Return the titles of the help's sections → the names of the commands in each."""
        return {"Commands": self.list_commands(ctx)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in the sections of the group, all with the same column width."""
        helps = self.short_helps(ctx)
        width = max(map(len, helps), default=0)
        for title, names in self.sections(ctx).items():
            if rows := [(f"{name:<{width}}", helps[name]) for name in names if name in helps]:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the subcommands that begin with `incomplete`, without importing them."""
        helps = self.short_helps(ctx)
        items = [CompletionItem(name, help=text) for name, text in helps.items() if name.startswith(incomplete)]
        return items + click.Command.shell_complete(self, ctx, incomplete)


LONGEST_SHORT_HELP = 100  # characters


class LazyGroup(Group):
    """A group whose commands are listed in a table, so that its help imports none of them."""

    def __init__(self, *arguments: Any, lazy: Mapping[str, LazyCommand] | None = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = [name for name, command in self.lazy.items() if command.is_present]
        return names + [name for name in super().list_commands(ctx) if name not in self.lazy]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in self.lazy and self.lazy[name].is_present:
            return self.lazy[name].load()
        return super().get_command(ctx, name)

    def short_helps(self, ctx: click.Context) -> dict[str, str]:
        helps = {}
        for name in self.list_commands(ctx):
            if name in self.lazy:
                helps[name] = self.lazy[name].help
            elif (command := super().get_command(ctx, name)) is not None and not command.hidden:
                helps[name] = command.get_short_help_str(LONGEST_SHORT_HELP)
        return helps


def open_with_waiting_results(home: Home) -> Database:
    """Import all waiting fragments and return the registry. If it cannot be written, warn and return it unchanged."""
    session = home.session()
    if reason := session.bring_up_to_date():
        click.echo(f"not up to date: {reason}", err=True)
    return session.database
