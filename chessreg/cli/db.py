"""`chessreg db`: the registry's schema and backups."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import FilePath, Group, Home, add_json_option, open_with_waiting_results, pass_home, print_output
from chessreg.named import format_count

if TYPE_CHECKING:
    from chessreg.registry.database import Database


@click.group(cls=Group)
def db() -> None:
    """The registry's schema and backups."""


@db.command()
@click.option(
    "--shared", is_flag=True, help="Create the tables even in a database that contains other programs' tables."
)
@add_json_option
@pass_home
def upgrade(home: Home, shared: bool) -> None:
    """Upgrade the registry to this version's schema, or create it if it does not exist.

    Installed packages also get their tables. A SQLite registry is first copied to backups/ next to it. A PostgreSQL
    registry is not copied: run `chessreg db backup` first.
    """
    from chessreg.registry import migrations

    before, _ = _describe_schema(home)
    revision = migrations.upgrade_registry(home.place, shared=shared)
    make_noun_tables(home.database())
    print_output(home, {"registry": home.place.masked_location, "before": before, "schema": revision.current})


@db.command()
@add_json_option
@pass_home
@click.pass_context
def status(ctx: click.Context, home: Home) -> None:
    """Show the registry's schema and the schema that this version needs. Exit status 1 if they differ."""
    from chessreg.registry import migrations

    schema = migrations.read_schema_status(home.place)
    record = {
        "registry": home.place.masked_location,
        "current": schema.current,
        "head": schema.head,
        "state": schema.state,
    }
    print_output(home, record)
    if schema.state != "equal":
        hint = {"behind": "chessreg db upgrade", "unknown": "pip install -U chessreg", "empty": "chessreg init"}
        if not home.json and schema.state in hint:
            click.echo(f"hint: {hint[schema.state]}", err=True)
        ctx.exit(1)


@db.command()
@click.option(
    "--to",
    "target",
    type=FilePath(path_type=Path, dir_okay=False),
    help="File to write. Left out: a dated file in backups/ next to the registry.",
)
@add_json_option
@pass_home
def backup(home: Home, target: Path | None) -> None:
    """Copy the registry to one file, also while it is in use.

    SQLite: a database file, by default in backups/ next to the registry. PostgreSQL: pg_dump's custom format.
    """
    from chessreg.registry import migrations

    copy = migrations.back_up_registry(home.place, target)
    print_output(home, {"registry": home.place.masked_location, "backup": str(copy), "bytes": copy.stat().st_size})


def _describe_schema(home: Home) -> tuple[str | None, str]:
    """Return the revision of the registry's schema (None if there is no registry) and its state in words."""
    from chessreg.errors import NotFoundError
    from chessreg.registry import migrations

    try:
        schema = migrations.read_schema_status(home.place)
    except NotFoundError:
        if home.place.path is None:
            raise
        return None, "empty"
    return schema.current, schema.state


@click.command()
@add_json_option
@pass_home
def init(home: Home) -> None:
    """Create the registry and the store of this folder. Existing ones are kept.

    They are created in ./.chessreg/. With --registry alone, the store is created next to that file. The first command
    that adds something also creates them, and prints their paths.
    """
    home.open(create=True)
    session = home.session()
    make_noun_tables(session.database)
    facts = {"registry": home.place.masked_location, "store": str(session.store.root)}
    print_output(home, {**facts, "data_version": session.database.data_version()}, list(facts))


def make_noun_tables(database: Database) -> None:
    """Create the tables of nouns from installed packages; warn about packages that cannot be loaded."""
    from chessreg.registry import brought

    for message in brought.load_package_nouns():
        click.echo(f"note: {message}", err=True)
    with database.read() as sql:
        missing_tables = brought.find_missing_tables(sql)
    if missing_tables:
        with database.write() as sql:
            brought.create_missing_tables(sql)


BIN_DAYS = 7.0


@click.command()
@click.option(
    "--remove",
    is_flag=True,
    help="Move them into the store's bin, and delete the files that killed processes left "
    "in its staging folder. [default: list them]",
)
@click.option("--restore", is_flag=True, help="Move the files in the bin back.")
@click.option("--empty", is_flag=True, help="Delete files that have been in the bin for --days.")
@click.option(
    "--days", type=click.FloatRange(min=0), default=BIN_DAYS, show_default=True, help="Days that files stay in the bin."
)
@add_json_option
@pass_home
def gc(home: Home, remove: bool, restore: bool, empty: bool, days: float) -> None:
    """List unused bytes: leftovers, and files that only archived runs, datasets or checkpoints use. Rows are never
    removed.

    Removed files go to a bin. `--restore` moves them back, and `--empty` deletes them. Unfinished files of killed
    processes are deleted immediately.

    \b
    Example: chessreg gc --remove
    """
    from chessreg.entities import gc as collector
    from chessreg.errors import BadInputError

    if remove + restore + empty > 1:
        raise BadInputError("--remove, --restore and --empty exclude each other", "give one of them")
    database = open_with_waiting_results(home)
    store = home.session().store
    if empty:
        removed_bytes = collector.empty_bin(store, days * collector.SECONDS_PER_DAY)
        if home.json:
            print_output(home, {"bytes": removed_bytes})
        click.echo(f"{removed_bytes:,} bytes are deleted permanently", err=True)
        return
    if restore:
        rows = collector.restore_from_bin(store)
        outcome = "are back"
    else:
        now = time.time()
        rows = collector.find_unused(database, store, now=now)
        if remove:
            collector.move_to_bin(store, rows, now)
        outcome = f"are in the bin; it keeps them {days:g} days or more" if remove else "could go: chessreg gc --remove"
    print_output(home, [asdict(row) for row in rows], ["what", "why", "bytes", "path"])
    click.echo(f"{format_count(len(rows), 'item')}, {sum(row.bytes for row in rows):,} bytes, {outcome}", err=True)


@click.command()
@click.option(
    "--list", "only_list", is_flag=True, help="List the waiting and rejected fragments without importing any."
)
@click.option("--again", is_flag=True, help="Also retry results that were set aside as damaged or unknown.")
@add_json_option
@pass_home
def recover(home: Home, only_list: bool, again: bool) -> None:
    """Import the results that wait in the store, once each, also after an outage or a crash.

    Every other command does this automatically when the registry answers; this one also prints the remaining results
    and the reasons. Exit status 1 while something waits or is set aside.

    \b
    Example: chessreg recover --list
    """
    from chessreg.runs import ingest

    session = home.session()
    totals: dict[str, Any] = {}
    if not only_list:
        if again:
            ingest.requeue_quarantined(session.store)
        totals = ingest.ingest_waiting(session.database, session.store)
    waiting_fragments = ingest.list_waiting(session.database, session.store)
    now = time.time()
    if home.json:
        print_output(home, {**totals, "left": waiting_fragments})
    else:
        if totals:
            click.echo(
                f"{format_count(totals['fragments'], 'fragment')} imported, {format_count(totals['rows'], 'row')}",
                err=True,
            )
        if waiting_fragments:
            left_rows = [
                {**row, "age": f"{max(now - row['created'], 0):.0f} s" if row["created"] else ""}
                for row in waiting_fragments
            ]
            print_output(home, left_rows, ["fragment", "state", "run", "rows", "age", "why"])
        else:
            click.echo("nothing waits", err=True)
    if waiting_fragments and not only_list:
        click.get_current_context().exit(1)
