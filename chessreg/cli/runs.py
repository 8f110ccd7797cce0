"""`chessreg runs`: experiments that were run."""

from __future__ import annotations

import click

from chessreg.cli.base import Home, emit, fresh, json_option, pass_home
from chessreg.cli.noun import group_of, headings
from chessreg.entities import entity
from chessreg.entities.run import progress

RUN = entity("run")
runs = group_of("run")


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
    from chessreg.registry import read, run_filter

    with fresh(home).read() as session:
        rows = read.runs(session, kind=kind, archived=everything or "archived" in words)
        if words or sort:
            by_id = {row["id"]: row for row in rows}
            fitting = run_filter.find(session, " ".join(words), sort or "created", archived=everything)
            rows = [by_id[id] for id in fitting if id in by_id]
    shown = rows if home.json else [{**row, "progress": progress(row), "tags": " ".join(row["tags"])} for row in rows]
    emit(home, shown, headings(RUN))


@runs.command()
@click.argument("reference", metavar="[RUN]", required=False)
@json_option
@pass_home
def conflicts(home: Home, reference: str | None) -> None:
    """List results that came a second time and were other than those here; the first that came is what counts.

    \b
    Example: chessreg runs conflicts plain
    """
    from chessreg.registry import read

    with fresh(home).read() as session:
        rows = read.conflicts(session, reference)
    if not home.json:
        said = {"attempt_id", "run_id"}
        for row in rows:
            row["key"] = " ".join(f"{name} {value}" for name, value in row["key"].items() if name not in said)
            row["row"] = " ".join(f"{name}={value}" for name, value in row["row"].items() if name not in said)[:100]
    emit(home, rows, {"run": "run", "kind": "kind", "family": "what", "key": "which", "host": "from", "row": "there",
                      "found_at": "found"})  # fmt: skip
