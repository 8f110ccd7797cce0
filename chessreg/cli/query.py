"""`chessreg query`: the papers' tables, the rows behind them, and custom SELECT statements."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chessreg.cli.base import STDOUT, FilePath, Home, get_screen_width, pass_home, print_output
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.named import format_count
from chessreg.terminal import make_json_visible, wrap_data_stream

if TYPE_CHECKING:
    from chessreg.queries.catalogue import Entry, QueryColumn
    from chessreg.queries.result import QueryResult
    from chessreg.registry.database import Database


F = TypeVar("F", bound=Callable[..., Any])
FORMATS = [
    "table",
    "markdown",
    "latex",
    "records",
    "csv",
    "json",
    "jsonl",
    "parquet",
]  # chessreg.queries.render.FORMATS, unimported


PRINTED_SHORT = (None, "table", "records")  # formats in which --max-rows limits the rows
MOST_ROWS_BEHIND = 40  # rows that --rows prints unless --max-rows is given
WIDE_LINE = 160  # longest line, in characters, that is printed to a file or a pipe without a hint

SCOPE = ("checkpoint", "run", "tag", "machine", "since", "where", "partial")  # the options of a Scope


@dataclass(frozen=True)
class QueryOptions:
    """The options of `chessreg query`."""

    name: str | None
    list_: bool
    columns: bool
    sql: str | None
    explain: bool
    scoring: str
    rows: int | None
    max_rows: int | None
    sort: str | None
    kept_columns: str | None
    wide: bool
    records: bool
    pager: bool
    provenance: bool
    published: bool
    format_: str | None
    as_json: bool
    output: Path | None
    timeout: float | None
    memory: str | None
    scope: dict[str, Any]


def add_scope_options(function: F) -> F:
    """Return the options that narrow every named query and plot."""
    options: list[Callable[[F], F]] = [
        click.option(
            "--checkpoint", multiple=True, metavar="NAME", help="Use only this checkpoint; repeatable. Left out: all."
        ),
        click.option("--run", multiple=True, metavar="NAME", help="Use only this run; repeatable. Left out: all."),
        click.option("--tag", multiple=True, help="Use only runs or checkpoints with this tag. Left out: all."),
        click.option("--machine", multiple=True, metavar="HOST", help="Use only runs of this machine. Left out: all."),
        click.option(
            "--since",
            metavar="WHEN",
            help="Use only runs created since this date or age: 2026-01-31, 7d, 12h. Left out: all.",
        ),
        click.option(
            "--where",
            metavar="SQL",
            help="SQL condition on columns of the table, or of the rows behind it. Left out: no condition.",
        ),
        click.option("--partial", is_flag=True, help="Include runs that are not complete."),
        click.option(
            "--scoring",
            type=click.Choice(["paper", "author-2024"]),
            default="paper",
            show_default=True,
            help="How games are scored: as in the paper, or as in its code.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@click.argument("name", required=False)
@click.option("--list", "list_", is_flag=True, help="List the queries.")
@click.option("--columns", is_flag=True, help="Explain the columns of NAME, or with --rows those of its rows.")
@click.option(
    "--sql",
    metavar="SELECT",
    help="Run this SELECT statement instead of a catalogue query; - reads it from stdin. Left out: run NAME.",
)
@click.option("--explain", is_flag=True, help="Print the tables that the SELECT of --sql would read, and read nothing.")
@add_scope_options
@click.option(
    "--rows",
    type=int,
    metavar="N",
    help="Print the games, trials or scores behind row N of the table. Left out: print the table.",
)
@click.option(
    "--max-rows",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Print at most N rows of a table; 0: all.  [default: {MOST_ROWS_BEHIND} with --rows, otherwise all]",
)
@click.option(
    "--sort",
    metavar="COLUMN,…",
    help="Sort by these columns; -COLUMN sorts the largest first. Left out: the order of the query.",
)
@click.option(
    "--show",
    "kept_columns",
    metavar="COLUMN,…",
    help="Print only these columns; --columns lists them. Left out: the default columns.",
)
@click.option("--wide", is_flag=True, help="Print all columns, not only the default ones.")
@click.option("--records", is_flag=True, help="Print each row as a block with one line per column.")
@click.option("--pager", is_flag=True, help="Show the output in $PAGER.")
@click.option("--provenance", is_flag=True, help="Print the query's hash, the registry's schema and the rows read.")
@click.option("--published", is_flag=True, help="Print the paper's numbers next to yours.")
@click.option("--format", "format_", type=click.Choice(FORMATS), help="Output format.  [default: table]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--output", type=FilePath(dir_okay=False, allow_dash=True, path_type=Path), metavar="FILE",
              help="Write this file (.md .tex .csv .json .jsonl .parquet). Left out or -: print it.")  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(min=0.001), metavar="SECONDS", help="Stop after this time.  [default: 300]"
)
@click.option("--memory", metavar="SIZE", help="Memory limit of the query.  [default: 4GB]")
@pass_home
def query(home: Home, **options: Any) -> None:
    """Print a table: NAME is a query's title or alias (--list) or a file `my_kind.sql`; --sql runs a custom SELECT
    statement.

    \b
    chessreg query "elo by intervention" --checkpoint reference --show checkpoint,intervention,n,score
    chessreg query "probe accuracy by layer" --format latex --output table1.tex
    chessreg query --sql "SELECT termination, count(*) FROM games GROUP BY termination"

    --sql "SHOW TABLES" lists the views, and --sql "DESCRIBE games" the columns of one.

    With --sql, --format csv and jsonl write rows as they are read, in constant memory. Without an ORDER BY, answers
    above 32 MiB are not sorted.
    """
    scope = {name: options.pop(name) for name in SCOPE}
    options["output"] = None if options["output"] == STDOUT else options["output"]
    question = QueryOptions(**options, scope=scope)
    as_json = question.as_json or home.json
    if question.list_:
        show_list(home, as_json)
        return
    if (question.name is None) == (question.sql is None):
        raise click.UsageError("give the NAME of a query, or --sql; --list prints all queries")
    if question.explain and question.sql is None:
        raise click.UsageError("--explain requires --sql")
    if question.max_rows is not None and (as_json or question.format_ not in PRINTED_SHORT or question.output):
        raise click.UsageError("--max-rows applies to printed tables and records; other formats have all rows")
    if question.columns and question.rows is None:
        show_columns(find_named_entry(home, question.name).columns, as_json)
        return
    if question.sql is not None:
        if question.sort is not None:
            raise click.UsageError("--sort applies to named queries; add ORDER BY to the SELECT of --sql")
        if question.rows is not None or question.published or any(scope.values()):
            raise click.UsageError("scope options, --rows and --published apply to named queries, not to --sql")
        from chessreg.queries.ask import run_sql

        text = sys.stdin.read() if question.sql == "-" else question.sql
        if question.explain:
            show_reads(home, text, as_json)
            return
        if question.format_ in ("csv", "jsonl") and not (question.kept_columns or as_json or question.output):
            print_parts(open_registry_for_query(home), text, question)
            return
        result = run_sql(open_registry_for_query(home), text, timeout=question.timeout, memory=question.memory)
    else:
        result = answer_query(home, question)
    if question.columns:
        show_columns(result.column_notes, as_json)
        return
    if as_json and question.format_ not in (None, "json"):
        raise click.UsageError("--json and --format contradict each other")
    if question.kept_columns:
        result = result.select_columns([name.strip().replace(" ", "_") for name in question.kept_columns.split(",")])
    if question.records and question.format_ not in (None, "records"):
        raise click.UsageError("--records and --format contradict each other")
    print_result(result, "json" if as_json else "records" if question.records else question.format_, question)
    if not question.memory:
        from chessreg.queries.engine import open_shared_engine

        sys.stdout.flush()
        open_shared_engine(home.database()).keep()


def print_parts(database: Database, sql: str, question: QueryOptions) -> None:
    """Print rows on stdout while they are read."""
    from chessreg.queries import render
    from chessreg.queries.ask import stream_sql

    assert question.format_
    last_part = None
    with closing(stream_sql(database, sql, timeout=question.timeout, memory=question.memory)) as parts:
        for number, last_part in enumerate(parts):
            wrap_data_stream(sys.stdout).write(render.STREAM_FORMATTERS[question.format_](last_part, not number))
    assert last_part is not None
    if not last_part.meta["rows"]:
        click.echo("no rows", err=True)
    click.echo(render.format_provenance(last_part), err=True)


def find_named_entry(home: Home, name: str | None) -> Entry:
    """Return the catalogue query with this title or alias, or that of a custom kind recorded in the registry.

    Raises UsageError without a name and NotFoundError for an unknown one.
    """
    from chessreg.queries.catalogue import find_entry as find_in_catalogue

    if name is None:
        raise click.UsageError("give the NAME of a query; --list prints all queries")
    try:
        return find_in_catalogue(name, complete_kinds=list_kinds_with_runs(home))
    except NotFoundError as error:  # unless a custom kind that ran here has it
        try:
            database = home.database()
        except ChessregError:
            raise error from None
    from chessreg.queries.ask import find_recorded_entry

    return find_recorded_entry(database, name)


def open_registry_for_query(home: Home) -> Database:
    """Return the registry after importing waiting rows. The store is opened only if rows wait; a missing store is
    reported."""
    store = home.store_path
    if not (store / "store.json").is_file() or any((store / "fragments" / "incoming").glob("*")):
        from chessreg.cli.base import open_with_waiting_results

        return open_with_waiting_results(home)
    return home.database()


def answer_query(home: Home, question: QueryOptions) -> QueryResult:
    """Return the table of a named query, or the rows behind one of its rows."""
    from chessreg.queries.ask import query_rows_behind, run_query
    from chessreg.queries.row_columns import describe_row_columns
    from chessreg.queries.scope import Scope

    entry = find_named_entry(home, question.name)
    database, scope = open_registry_for_query(home), Scope.from_options(question.scope)
    render_options: dict[str, Any] = {
        "scoring": question.scoring, "sort": question.sort, "timeout": question.timeout, "memory": question.memory
    }  # fmt: skip
    if question.rows is not None:
        if question.published:
            raise click.UsageError("--rows and --published exclude each other")
        rows = query_rows_behind(database, entry, question.rows, scope, **render_options)
        explain = f"chessreg query {shlex.quote(entry.title)} --rows {question.rows} --columns"
        column_notes = describe_row_columns(entry, rows.columns)
        return replace(rows, column_notes=column_notes, notes=[*rows.notes, f"{explain} explains the columns"])
    result = run_query(database, entry, scope, **render_options)
    if question.name and not (entry.is_called(question.name) if len(result) else entry.is_titled(question.name)):
        result = replace(result, notes=[f'this is "{entry.title}": {entry.question}', *result.notes])
    if question.published:
        from chessreg.queries.published import compare_with_published

        return compare_with_published(database, result)
    return result


def print_result(result: QueryResult, format_: str | None, question: QueryOptions) -> None:
    """Print the data on stdout, or write it to a file; print notes, and the provenance if asked for, on stderr."""
    from chessreg.queries import render

    format = format_ or (render.SUFFIXES.get(question.output.suffix.lower()) if question.output else None)
    if result.meta.get("published") and format in (None, "table", "markdown", "latex"):
        from chessreg.queries.published import drop_unmatched

        result = drop_unmatched(result)
    if question.output is not None:
        written_text = render.write_result(result, question.output, format_, wide=question.wide)
        click.echo(f"{question.output}: {format_count(len(result), 'row')} as {written_text}", err=True)
    elif format_ == "parquet":
        if sys.stdout.isatty():
            raise BadInputError("Parquet cannot be printed", "add --output FILE.parquet")
        sys.stdout.buffer.write(render.encode_parquet(result))
    else:
        first = question.max_rows or None
        if question.max_rows is None and question.rows is not None and not question.pager and format_ in PRINTED_SHORT:
            first = MOST_ROWS_BEHIND
        width = get_screen_width()
        text = render.render_result(result, format_ or "table", width, wide=question.wide, first=first)
        assert isinstance(text, str)
        result = replace(result, notes=[*list_print_notes(len(result), first, text, width, format_), *result.notes])
        if question.pager:
            click.echo_via_pager(text)
        elif len(result) or format_ not in (None, "table"):
            (sys.stdout if format_ in (None, "table", "json") else wrap_data_stream(sys.stdout)).write(
                make_json_visible(text) if format_ == "json" else text
            )
    if format_ != "json" or question.output is not None:
        for note in result.notes:
            click.echo(note, err=True)
        if question.provenance:
            click.echo(render.format_provenance(result), err=True)


def list_print_notes(rows: int, first: int | None, text: str, width: int | None, format_: str | None) -> list[str]:
    """Return the notes on a printed table of `rows` rows. If only the `first` rows are printed, a note names the option
    that prints all. If `text` is not printed on a terminal (`width` is None) and has long lines, a note suggests
    records."""
    notes = []
    if first is not None and rows > first:
        notes.append(f"the first {format_count(first, 'row')} of {rows:,}: --max-rows 0 prints all")
    longest = max(map(len, text.splitlines()), default=0)
    if format_ in (None, "table") and width is None and longest > WIDE_LINE:
        notes.append(f"lines have up to {longest:,} characters: --records prints each row as a block")
    return notes


def list_custom_kind_files(home: Home) -> tuple[Path, ...]:
    """Return the trusted files of custom kinds that this registry has used; none if no registry answers."""
    from chessreg.registry import sqlite
    from chessreg.runs.trust import can_load

    path = home.place.path
    if path is not None and not path.exists():
        return ()
    if path is not None:  # without SQLAlchemy, whose import takes longer than the list
        with suppress(sqlite.dbapi.Error):
            sources = sqlite.read_rows(
                path, "SELECT DISTINCT source FROM kind WHERE typeof(source) = 'text' AND source LIKE '%.py:%'"
            )
            return tuple(sorted(filter(can_load, {Path(source.rpartition(":")[0]) for (source,) in sources})))
    from chessreg.queries.ask import list_trusted_kind_files

    try:
        return list_trusted_kind_files(home.database())
    except ChessregError:
        return ()


TOPICS = (
    "training", "language modelling", "legal moves", "probes", "sparse autoencoders", "board state", "board edits",
    "steering vectors", "play", "ratings",
)  # fmt: skip
"""The order in which `--list` prints the topics."""


def show_list(home: Home, as_json: bool) -> None:
    """Print the query catalogue by topic and mark the queries that this registry has complete runs for."""
    from chessreg.queries.catalogue import list_entries

    entries = list_entries(list_custom_kind_files(home))
    answerable_titles = find_answerable_queries(home, entries)
    if as_json:
        rows = [
            {
                "title": e.title, "topic": e.topic, "question": e.question, "aliases": list(e.aliases),
                "paper": e.paper, "made_by": e.made_by,
                "has_runs": None if answerable_titles is None else e.title in answerable_titles,
            }
            for e in entries
        ]  # fmt: skip
        print_output(True, rows)
        return
    width = max(len(e.title) for e in entries)
    for topic in dict.fromkeys([*TOPICS, *(e.topic for e in entries)]):
        click.secho(topic[:1].upper() + topic[1:], bold=True)
        for e in entries:
            if e.topic == topic:
                mark = "•" if answerable_titles and e.title in answerable_titles else " "
                click.echo(f"{mark} {e.title:<{width}}  {e.question or e.paper}")
    legend = (
        "• this registry has data for it" if answerable_titles else "this registry has no complete run for a query yet"
    )
    click.echo(legend, err=True)


def read_if_available(
    home: Home, read_file: Callable[[Path], frozenset[str]], read_database: Callable[[Database], frozenset[str]]
) -> frozenset[str] | None:
    """Return the answer of one function for the registry, or None if there is no registry or it cannot be read."""
    from chessreg.registry import sqlite

    path = home.place.path
    if path is not None:  # without SQLAlchemy, whose import takes longer than the list
        with suppress(sqlite.dbapi.Error, OSError):
            return read_file(path) if path.exists() else None
        return None
    try:
        return read_database(home.database())
    except ChessregError:
        return None


def list_kinds_with_runs(home: Home) -> frozenset[str] | None:
    """Return the kinds with complete runs, or None if the registry cannot be read."""
    from chessreg.registry import sqlite

    def read_kinds(path: Path) -> frozenset[str]:
        rows = sqlite.read_rows(path, "SELECT DISTINCT kind FROM run WHERE completed_at IS NOT NULL")
        return frozenset(str(kind) for (kind,) in rows)

    def read_database(database: Database) -> frozenset[str]:
        from chessreg.queries.ask import list_complete_kinds

        return list_complete_kinds(database)

    return read_if_available(home, read_kinds, read_database)


def find_answerable_queries(home: Home, entries: Sequence[Entry]) -> frozenset[str] | None:
    """Return the titles of the queries for which the registry has complete runs, or None if it cannot be read."""
    from chessreg.queries.catalogue import find_answerable_titles
    from chessreg.registry import sqlite

    def read_database(database: Database) -> frozenset[str]:
        from chessreg.queries.ask import list_answerable_titles

        return list_answerable_titles(database, entries)

    return read_if_available(
        home, lambda path: find_answerable_titles(entries, lambda sql: sqlite.read_rows(path, sql)), read_database
    )


def show_reads(home: Home, sql: str, as_json: bool) -> None:
    """Print the number of rows that a SQL statement reads from each table, without running it."""
    from chessreg.queries.ask import count_rows_read, format_row_count

    row_counts = count_rows_read(open_registry_for_query(home), sql)
    if as_json:
        print_output(True, [{"table": table, "rows": rows, "more": more} for table, (rows, more) in row_counts.items()])
        return
    for table, number in row_counts.items():
        click.echo(f"{table}: {format_row_count(*number)} rows")


def show_columns(columns: Sequence[QueryColumn], as_json: bool) -> None:
    """Print the name, unit and description of each column of a query."""
    rows = [{"name": c.name, "unit": c.unit, "text": c.text, "hidden": c.hidden} for c in columns]
    if as_json:
        print_output(True, rows)
        return
    width = max(len(c.name) + len(c.unit) + 3 for c in columns)
    for column in columns:
        name = f"{column.name} [{column.unit}]" if column.unit else column.name
        click.echo(f"{name:<{width}}  {column.text}")


SUFFIXES = ".svg, .png or .pdf"


@click.command()
@click.argument("name", required=False)
@click.option("--list", "list_", is_flag=True, help="List the plots.")
@click.option("--output", "--out", "output", type=FilePath(dir_okay=False, allow_dash=True, path_type=Path),
              metavar="FILE",
              help=f"File to write ({SUFFIXES}); - is stdout, as SVG.  [default: the plot's name, .svg]")  # fmt: skip
@add_scope_options
@click.option("--provenance", is_flag=True, help="Print the query's hash, the registry's schema and the rows read.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@pass_home
def plot(
    home: Home,
    name: str | None,
    list_: bool,
    output: Path | None,
    provenance: bool,
    as_json: bool,
    scoring: str,
    **scope: Any,
) -> None:
    """Draw the plot NAME (title or alias, --list) with 95 % intervals.

    \b
    chessreg plot "win rate by level" --checkpoint reference
    chessreg plot "probe accuracy by layer" --output figure3.png
    """
    from chessreg.queries.catalogue import find_plot

    as_json = as_json or home.json
    if list_:
        show_plots(home, as_json)
        return
    if name is None:
        raise click.UsageError("give the NAME of a plot; --list prints all plots")
    entry, plot_spec = find_plot(name, list_custom_kind_files(home))
    target = output or Path(f"{plot_spec.title.replace(' ', '-')}.svg")
    from chessreg.queries import plot as plots
    from chessreg.queries.ask import query_plot_rows
    from chessreg.queries.render import format_provenance
    from chessreg.queries.scope import Scope

    if target == STDOUT and as_json:
        raise BadInputError("--json prints on stdout too", "name a file instead of -")
    if target != STDOUT:
        plots.check_suffix(target)
    result = query_plot_rows(
        open_registry_for_query(home), entry, plot_spec, Scope.from_options(scope), scoring=scoring
    )
    figure = plots.draw_figure(result, plot_spec)
    if target == STDOUT:
        wrap_data_stream(sys.stdout).write(plots.encode_figure(figure, ".svg").decode())
    else:
        plots.write_figure(figure, target)
    if as_json:
        print_output(True, {"file": str(target), "plot": plot_spec.title, "query": entry.title, "points": len(result)})
        return
    for note in result.notes:
        click.echo(note, err=True)
    if provenance:
        click.echo(format_provenance(result), err=True)
    if target != STDOUT:
        click.echo(str(target))


def show_plots(home: Home, as_json: bool) -> None:
    """Print the plots of the catalogue: title, axes and query."""
    from chessreg.queries.catalogue import list_entries

    rows = [
        {"title": p.title, "aliases": list(p.aliases), "query": e.title, "x": p.x, "y": p.y, "form": p.form}
        for e in list_entries(list_custom_kind_files(home))
        for p in e.plots
    ]
    if as_json:
        print_output(True, rows)
        return
    width = max(len(str(row["title"])) for row in rows)
    for row in sorted(rows, key=lambda row: str(row["title"])):
        click.echo(f'{row["title"]:<{width}}  {row["y"]} by {row["x"]} of "{row["query"]}"')
