"""`chessreg runs`: experiments that were run."""

from __future__ import annotations

from typing import Any

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.cli.fresh import fresh
from chessreg.cli.words import add_words

LISTED = {
    "id": "id", "name": "name", "kind": "kind", "progress": "state", "attempts": "tries", "host": "host",
    "created_at": "created", "tags": "tags",
}  # fmt: skip


@click.group()
def runs() -> None:
    """Runs: list, show, name, tag, note, archive. `chessreg run` makes them."""


@runs.command("list")
@click.argument("words", metavar="[WORD...]", nargs=-1)
@click.option("--kind", help="Those of one kind.")
@click.option("--all", "everything", is_flag=True, help="Also those in the archive.")
@click.option(
    "--sort", metavar="COLUMN", help="name, units, tags, spec.SETTING, metric.NAME, …; -COLUMN: largest first."
)
@json_option
@pass_home
def list_(home: Home, words: tuple[str, ...], kind: str | None, everything: bool, sort: str | None) -> None:
    """List the runs, the newest last, or those that all the words fit.

    A word is looked for in name, kind, tags, state, machine and id; ~word takes letters with others between them;
    kind: name: tag: state: host: note: since: before: and spec.SETTING: look at one field; !word wants it absent;
    starred, pinned, archived, invalid and stale are words too.

    \b
    Example: chessreg runs list kind:probe since:7d '!stale' --sort -spec.epochs
    """
    from chessreg.registry import read as listing
    from chessreg.registry import run_filter as finding

    with fresh(home).read() as session:
        rows = listing.runs(session, kind=kind, archived=everything or "archived" in words)
        if words or sort:
            by_id = {row["id"]: row for row in rows}
            fitting = finding.find(session, " ".join(words), sort or "created", archived=everything)
            rows = [by_id[id] for id in fitting if id in by_id]
    shown = rows if home.json else [{**row, "progress": progress(row), "tags": " ".join(row["tags"])} for row in rows]
    emit(home, shown, LISTED)


def progress(row: dict[str, Any]) -> str:
    """How a run stands, in a cell: complete, or its state with units done of all."""
    wrong = " (invalid)" if row["invalid"] else " (stale)" if row["stale"] else ""
    return ("complete" if row["state"] == "complete" else f"{row['state']} {row['done']}/{row['units']}") + wrong


@runs.command()
@click.argument("reference", metavar="RUN")
@json_option
@pass_home
def show(home: Home, reference: str) -> None:
    """Show a run in full: its settings, what it read and made, and every attempt with its cause.

    \b
    Example: chessreg runs show reference-board
    """
    from chessreg.registry import read as listing

    with fresh(home).read() as session:
        row = listing.run(session, reference)
    if home.json:
        emit(home, row)
        return
    row["progress"], row["tags"] = progress(row), " ".join(row["tags"])
    emit(home, row, {"id": "run", "name": "name", "kind": "kind", "version": "version", "progress": "state",
                     "created_at": "created", "completed_at": "completed", "spec_hash": "spec", "tags": "tags",
                     "invalid": "invalid", "rests_on_invalid": "rests on", "conflicts": "conflicts"})  # fmt: skip
    sections: list[tuple[str, list[dict[str, Any]], list[str]]] = [
        ("settings", [setting(row, key) for key in row["spec"]], ["setting", "value", "source"]),
        ("read", row["inputs"], ["name", "recipe", "digest", "source_run_id"]),
        ("made", row["outputs"], ["name", "unit", "digest"]),
        ("attempts", row["tries"], ["id", "state", "cause", "host", "started_at", "ended_at", "units_done", "message"]),
    ]
    for title, rows, columns in sections:
        if rows:
            click.echo(f"\n{title}")
            emit(home, rows, columns)
    for note in row["notes"]:
        click.echo(f"\nnote  {note}")


def setting(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {"setting": key, "value": str(row["spec"][key]), "source": "default" if key in row["defaulted"] else "given"}


@runs.command()
@click.argument("reference", metavar="[RUN]", required=False)
@json_option
@pass_home
def conflicts(home: Home, reference: str | None) -> None:
    """List results that came a second time and were other than those here; the first that came is what counts.

    \b
    Example: chessreg runs conflicts plain
    """
    from chessreg.registry import read as listing

    with fresh(home).read() as session:
        rows = listing.conflicts(session, reference)
    if not home.json:
        said = {"attempt_id", "run_id"}
        for row in rows:
            row["key"] = " ".join(f"{name} {value}" for name, value in row["key"].items() if name not in said)
            row["row"] = " ".join(f"{name}={value}" for name, value in row["row"].items() if name not in said)[:100]
    emit(home, rows, {"run": "run", "kind": "kind", "family": "what", "key": "which", "host": "from", "row": "there",
                      "found_at": "found"})  # fmt: skip


add_words(runs, "run")
