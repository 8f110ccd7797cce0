"""`chessreg lineage` and `chessreg reproduce`: what a thing was made from, and whether it comes out the same again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import Home, emit, fresh, json_option, pass_home
from chessreg.terminal import for_drawing, visible

if TYPE_CHECKING:
    from uuid import UUID

    from rich.tree import Tree

    from chessreg.registry.lineage import Branch


COLOURS = {"invalid": "red", "stale": "yellow", "missing": "red", "failed": "red"}  # the others are cyan


@click.command()
@click.argument("reference", metavar="RUN|DATASET|CHECKPOINT")
@click.option("--up", "direction", flag_value="up", help="Only what it was made from.")
@click.option("--down", "direction", flag_value="down", help="Only what was made from it.")
@json_option
@pass_home
def lineage(home: Home, reference: str, direction: str | None) -> None:
    """Show a run, dataset or checkpoint with what it was made from and what was made from it, as a tree.

    \b
    Example: chessreg lineage reference-board
    """
    from chessreg.registry.lineage import find, tree

    with fresh(home).read() as session:
        node = find(session, reference)
        trees = {way: tree(session, node, up=way == "up") for way in ("up", "down") if direction in (None, way)}
    if home.json:
        emit(home, {way: found.as_dict() for way, found in trees.items()})
        return
    from rich.console import Console

    console = Console(file=for_drawing(sys.stdout), highlight=False)
    for way, found in trees.items():
        console.print(f"[bold]{'made from' if way == 'up' else 'went into'}[/bold]")
        console.print(drawn(found))


def drawn(branch: Branch, onto: Tree | None = None) -> Tree:
    """The tree as rich draws it."""
    from rich.markup import escape as escaped
    from rich.tree import Tree

    def escape(text: str) -> str:
        return escaped(visible(text))

    facts = branch.facts
    field = f"[dim]{escape(branch.field)}:[/dim] " if branch.field not in ("", facts["kind"]) else ""
    state = "" if facts["state"] == "complete" else f" [{COLOURS.get(facts['state'], 'cyan')}]{facts['state']}[/]"
    again = " [dim]… as above[/dim]" if branch.again else ""
    text = (
        f"{field}{escape(facts['kind'])} [bold]{escape(facts['name'] or '')}[/bold] {branch.node.id[-6:]}{state}{again}"
    )
    at = Tree(text) if onto is None else onto.add(text)
    for inner in branch.branches:
        drawn(inner, at)
    return at


SHOWN = 10  # differing rows that are listed


@click.command()
@click.argument("reference", metavar="RUN")
@click.option("--run", "do", is_flag=True, help="Do it again, and compare.")
@json_option
@pass_home
def reproduce(home: Home, reference: str, do: bool) -> None:
    """Print what made a run: the commands, the code, the versions, the machine. With --run, do it again and compare.

    A run of an exact kind is done again apart from this registry, and every row must come out the same. One of a
    statistical kind (games against an engine that cannot be seeded) is done as its next replicate, which stays, and
    the two are compared like any runs. Exit status 1 says that they do not agree.

    \b
    Example: chessreg reproduce reference-board
    """
    from chessreg.entities.reproduce import steps
    from chessreg.registry import read

    database = fresh(home)
    with database.read() as session:
        row = read.run(session, reference)
        made = steps(session, row["id"])
    if not do:
        show(home, row, made)
        return
    agrees = exact(home, row["id"]) if determinism(home, row) == "exact" else statistical(home, row)
    if not agrees:
        click.get_current_context().exit(1)


def show(home: Home, row: dict[str, Any], made: list[dict[str, Any]]) -> None:
    """What made it, in the order in which it can be made."""
    last = row["tries"][-1] if row["tries"] else {}
    code = last.get("code", {})
    if home.json:
        kept = {key: last.get(key) for key in ("host", "code", "chessreg_version", "environment")}
        emit(home, {"run_id": row["id"], "spec": row["spec"], "steps": made, **kept})
        return
    for step in made:
        click.echo(step["command"])
    click.echo(visible(f"# chessreg {last.get('chessreg_version')} on {last.get('host')}"))
    for where, state in code.items():
        if isinstance(state, dict) and state.get("commit"):
            patch = ", with a patch that is kept in the registry" if state.get("patch") else ""
            click.echo(visible(f"# {where} at commit {state['commit'][:12]}{patch}"))
    versions = last.get("environment") or {}
    shown = [f"{name} {versions[name]}" for name in ("torch", "transformers", "chess", "numpy") if name in versions]
    click.echo(f"# {visible(', '.join(shown))}; chessreg reproduce {row['id'].hex[-6:]} --json has all of it")


def determinism(home: Home, row: dict[str, Any]) -> str:
    from chessreg.registry import tables

    with home.session().database.read() as session:
        return str(session.get_one(tables.KindRecord, (row["kind"], row["version"])).determinism)


def exact(home: Home, run_id: UUID) -> bool:
    """Do it again apart, and say whether every row is the same."""
    from chessreg.cli.base import progress_line
    from chessreg.entities.reproduce import again

    session = home.session()
    with progress_line("again", quiet=home.json) as on_progress:
        found = again(session.database, session.store, run_id, on_progress)
    if home.json:
        emit(home, {"agrees": found.agrees, "same": found.same, "differing": found.differing,
                    "outputs_same": found.outputs_same, "outputs_differing": found.outputs_differing})  # fmt: skip
        return found.agrees
    click.echo(f"{found.same:,} rows came out the same, {len(found.differing):,} did not", err=True)
    for line in found.differing[:SHOWN]:
        click.echo(f"  {line}", err=True)
    made = found.outputs_same + len(found.outputs_differing)
    if made:
        click.echo(f"{found.outputs_same} of {made} outputs have the same bytes", err=True)
    return found.agrees


def statistical(home: Home, row: dict[str, Any]) -> bool:
    """Do the next replicate, and compare the two: they agree when no difference's interval leaves 0 out."""
    from chessreg.cli.base import progress_line
    from chessreg.queries.compare import compare
    from chessreg.registry import tables
    from chessreg.runs.kind import recorded as find

    session = home.session()
    with session.database.read() as sql:
        source = sql.get_one(tables.KindRecord, (row["kind"], row["version"])).source
    kind = find(source)
    spec = kind.spec(**row["spec"] | {"replicate": row["spec"].get("replicate", 0) + 1})
    given = tuple(sorted({*row["given"], "replicate"}))
    with progress_line("again", quiet=home.json) as on_progress:
        report = session.run(spec, kind=kind, given=given, on_progress=on_progress)
    if report.state != "complete":
        return False
    found = compare(session.database, [row["id"].hex, report.run_id.hex])
    apart = [m for m in found.metrics if (d := m.differences[1]) and d.low is not None and d.high is not None
             and not d.low <= 0 <= d.high]  # fmt: skip
    if home.json:
        emit(home, found.as_dict() | {"agrees": not apart, "replicate": report.run_id.hex})
    else:
        rows = []
        for m in found.metrics:
            then, now, difference = (*m.values, m.differences[1])
            shown = difference.written("+") if difference else ""
            rows.append({"metric": m.name, "then": then.written(), "again": now.written(), "difference": shown})
        emit(home, rows)
        click.echo(f"replicate {report.run_id.hex[-6:]}: {'agrees' if not apart else 'differs'}", err=True)
    return not apart
