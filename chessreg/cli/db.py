"""`chessreg db`: the registry's schema and backups."""

from __future__ import annotations

from pathlib import Path

import click

from chessreg.cli.base import Home, emit, json_option, pass_home


@click.group()
def db() -> None:
    """The registry's schema and backups."""


@db.command()
@click.option("--shared", is_flag=True, help="Also in a database that holds other programs' tables.")
@json_option
@pass_home
def upgrade(home: Home, shared: bool) -> None:
    """Bring the registry to this chessreg's schema, making it if there is none.

    A SQLite registry is copied first, to backups/ beside it; a PostgreSQL one is not: `chessreg db backup` does it.
    """
    from chessreg.registry import migrations

    before, _ = _status(home)
    after = migrations.upgrade(home.place, shared=shared)
    emit(home, {"registry": home.place.shown, "before": before, "schema": after.current})


@db.command()
@json_option
@pass_home
@click.pass_context
def status(ctx: click.Context, home: Home) -> None:
    """Say which schema the registry has and which this chessreg needs. Exit status 1 when they differ."""
    from chessreg.registry import migrations

    found = migrations.status(home.place)
    record = {"registry": home.place.shown, "current": found.current, "head": found.head, "state": found.state}
    emit(home, record)
    if found.state != "equal":
        hint = {"behind": "chessreg db upgrade", "ahead": "pip install -U chessreg", "empty": "chessreg init"}
        if not home.json and found.state in hint:
            click.echo(f"hint: {hint[found.state]}", err=True)
        ctx.exit(1)


@db.command()
@click.option("--to", "target", type=click.Path(path_type=Path, dir_okay=False), help="The file to write.")
@json_option
@pass_home
def backup(home: Home, target: Path | None) -> None:
    """Copy the registry to one file, while it is in use.

    SQLite: a database file, by default in backups/ beside the registry. PostgreSQL: pg_dump's custom format.
    """
    from chessreg.registry import migrations

    made = migrations.backup(home.place, target)
    emit(home, {"registry": home.place.shown, "backup": str(made), "bytes": made.stat().st_size})


def _status(home: Home) -> tuple[str | None, str]:
    from chessreg.errors import NotFoundError
    from chessreg.registry import migrations

    try:
        found = migrations.status(home.place)
    except NotFoundError:
        if home.place.path is None:
            raise
        return None, "empty"
    return found.current, found.state
