"""`chessreg lineage` and `chessreg reproduce`: inputs and outputs of an entity, and reruns that compare its rows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import Home, add_json_option, open_with_waiting_results, pass_home, print_output
from chessreg.named import format_count
from chessreg.terminal import make_visible, wrap_drawing_stream

if TYPE_CHECKING:
    from uuid import UUID

    from rich.tree import Tree

    from chessreg.registry.lineage import Branch
    from chessreg.session import Session


COLORS = {"invalid": "red", "stale": "yellow", "missing": "red", "failed": "red"}  # the others are cyan


@click.command()
@click.argument("reference", metavar="RUN|DATASET|CHECKPOINT")
@click.option("--up", "direction", flag_value="up", help="Show only its inputs.")
@click.option("--down", "direction", flag_value="down", help="Show only its outputs.")
@add_json_option
@pass_home
def lineage(home: Home, reference: str, direction: str | None) -> None:
    """Show a run, dataset or checkpoint with its inputs and outputs, as a tree.

    Runs have their settings, machine and engines, datasets and checkpoints the files that they were imported from.

    \b
    Example: chessreg lineage reference-board
    """
    from chessreg.entities.lineage_tree import build_described_tree
    from chessreg.registry.lineage import find_node

    with open_with_waiting_results(home).read() as session:
        node = find_node(session, reference)
        ways = [way for way in ("up", "down") if direction in (None, way)]
        trees = {way: build_described_tree(session, node, up=way == "up") for way in ways}
    if home.json:
        print_output(home, {way: node_tree.as_dict() for way, node_tree in trees.items()})
        return
    from rich.console import Console

    console = Console(file=wrap_drawing_stream(sys.stdout), highlight=False)
    for way, node_tree in trees.items():
        heading = f"[bold]{'made from' if way == 'up' else 'went into'}[/bold]"
        console.print(heading if node_tree.branches else f"{heading}: nothing")
        if node_tree.branches or way == "up":
            console.print(draw_tree(node_tree))


def draw_tree(branch: Branch, onto: Tree | None = None) -> Tree:
    """Return the tree for rich."""
    from rich.markup import escape as escaped
    from rich.tree import Tree

    from chessreg.entities.lineage_tree import list_details

    def escape(text: str) -> str:
        return escaped(make_visible(text))

    facts = branch.facts
    field = f"[dim]{escape(branch.field)}:[/dim] " if branch.field not in ("", facts["kind"]) else ""
    state = "" if facts["state"] == "complete" else f" [{COLORS.get(facts['state'], 'cyan')}]{facts['state']}[/]"
    note = " [dim]… as above[/dim]" if branch.again else ""
    name = f"[bold]{escape(facts['name'])}[/bold] " if facts["name"] else ""
    details = " · ".join(filter(None, (facts.get("settings"), facts.get("host"))))
    description = f"  [dim]{escape(details)}[/dim]" if details and not branch.again else ""
    artifact = "artifact " if branch.node.noun == "file" else ""  # its digest is not the sha256sum of the file
    text = f"{field}{escape(facts['kind'])} {name}{artifact}{branch.node.id[-6:]}{state}{note}{description}"
    at = Tree(text) if onto is None else onto.add(text)
    for source in () if branch.again else list_details(facts):
        at.add(escape(source))
    for inner in branch.branches:
        draw_tree(inner, at)
    return at


SIGNIFICANCE_LEVEL = 0.05  # of all metrics of a replicate together


@click.command()
@click.argument("reference", metavar="RUN")
@click.option("--rerun", "do", is_flag=True, help="Run it again on this machine, and compare.")
@add_json_option
@pass_home
def reproduce(home: Home, reference: str, do: bool) -> None:
    """Print a shell script that repeats a run on another machine, with its code, versions and machine. With
    --rerun, run it again on this machine and compare.

    The script checks its input files by SHA-256. It needs nothing else from this machine.

    A rerun does not change this registry, and every row must be the same; otherwise the differing columns are listed
    with the size of the difference. Engines that differ from those of the run are named. Outputs that are missing here
    are kept if their digests match. Games against an engine that cannot be seeded are played as the next replicate,
    and the two matches are compared metric by metric, with Holm's correction at a level of 5 %. `chessreg run …
    --replicate 1` stores a replicate. Exit status 1 if they do not agree.

    \b
    Example: chessreg reproduce reference-board
    """
    from chessreg.entities.reproduce import is_repeatable, list_steps
    from chessreg.registry import read

    database = open_with_waiting_results(home)
    with database.read() as session:
        row = read.read_run(session, reference)
        steps = list_steps(session, row["id"])
    if not do:
        print_script(home, row, steps)
        return
    opened_session = home.session()
    way = rerun_exactly if is_repeatable(opened_session.database, row["id"]) else rerun_statistically
    if not way(home, opened_session, row["id"]):
        click.get_current_context().exit(1)


def print_script(home: Home, row: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Print a shell script that makes the run on another machine; code, versions and host are comments."""
    from chessreg.entities.reproduce import resolve_step_files, write_script_lines
    from chessreg.registry.read import describe_engine

    store = home.session().store
    last_try = row["tries"][-1] if row["tries"] else {}
    code = last_try.get("code", {})
    if home.json:
        facts = {key: last_try.get(key) for key in ("host", "code", "chessreg_version", "environment")}
        facts["engines"] = row["engines"]
        print_output(
            home,
            {
                "run_id": row["id"],
                "spec": row["spec"],
                "steps": [resolve_step_files(step, store) for step in steps],
                **facts,
            },
        )
        return
    for line in write_script_lines(steps, store):
        click.echo(line)
    click.echo(make_visible(f"# chessreg {last_try.get('chessreg_version')} on {last_try.get('host')}"))
    for part_name, state in code.items():
        if isinstance(state, dict) and state.get("commit"):
            note = f", with changes (sha256 {str(state['patch_sha256'])[:12]})" if state.get("patch_sha256") else ""
            note += "; --json has them" if state.get("patch") else ""
            click.echo(make_visible(f"# {part_name} at commit {str(state['commit'])[:12]}{note}"))
        elif part_name == "chessreg":
            digest = f"; {state['file']}: sha256 {state['sha256'][:12]}" if state.get("sha256") else ""
            click.echo(make_visible(f"# commit unknown: not installed from a git checkout{digest}"))
            click.echo("# chessreg --version prints the digest of the chessreg that is installed")
    for engine in row["engines"]:
        engine_text = describe_engine(engine["name"], engine["version"], engine["binary_sha256"])
        click.echo(make_visible(f"# {' and '.join(engine['roles'])}: {engine_text}"))
    versions = last_try.get("environment") or {}
    versions_listed = [
        f"{name} {versions[name]}" for name in ("torch", "transformers", "chess", "numpy") if name in versions
    ]
    click.echo(f"# {make_visible(', '.join(versions_listed))}; in full: chessreg reproduce {row['id'].hex[-6:]} --json")


def rerun_exactly(home: Home, session: Session, run_id: UUID) -> bool:
    """Rerun, and print whether every row is the same."""
    from chessreg.cli.base import show_progress_line
    from chessreg.entities.reproduce import repeat_run

    with show_progress_line("again", quiet=home.json) as on_progress:
        outcome = repeat_run(session.database, session.store, run_id, on_progress)
    if home.json:
        print_output(home, outcome.as_dict())
        return outcome.is_equal
    click.echo(f"{format_count(outcome.same, 'row')} came out the same, {len(outcome.differing):,} did not", err=True)
    for column, differences in outcome.columns.items():
        click.echo(make_visible(f"  {column}: {differences.describe()}"), err=True)
    if outcome.newer:
        click.echo(f"not compared, as the run does not have them: {', '.join(sorted(outcome.newer))}", err=True)
    print_engine_differences(outcome.engines)
    output_count = outcome.outputs_same + len(outcome.outputs_differing)
    if output_count:
        click.echo(f"{outcome.outputs_same} of {output_count} outputs have the same bytes", err=True)
    for output in outcome.outputs_kept:
        click.echo(make_visible(f"kept, because its bytes were not in the store: {output}"), err=True)
    return outcome.is_equal


def rerun_statistically(home: Home, session: Session, run_id: UUID) -> bool:
    """Run a replicate and compare it: the two agree if no metric differs, with Holm's correction at a level of 5 %.

    If no metric has an interval, the agreement is unknown.
    """
    from chessreg.cli.base import show_progress_line
    from chessreg.entities.reproduce import find_engine_differences, replicate_run
    from chessreg.queries.compare import compare_runs

    with (
        show_progress_line("again", quiet=home.json) as on_progress,
        replicate_run(session.database, session.store, run_id, on_progress) as (remote, replicate),
    ):
        comparison = compare_runs(remote, [run_id.hex, replicate.hex])
        engines = find_engine_differences(remote, run_id, remote, replicate)
    p = comparison.correct_p_values()
    differing_names = [name for name, p_value in p.items() if p_value < SIGNIFICANCE_LEVEL]
    agrees = bool(p) and not differing_names
    if home.json:
        print_output(home, comparison.as_dict() | {"p_holm": p, "agrees": agrees if p else None})
        return agrees
    rows = []
    for m in comparison.metrics:
        then_value, now_value, difference = (*m.values, m.differences[1])
        difference_text = difference.format_value("+") if difference else ""
        p_value = f"{p[m.name]:.2g}" if m.name in p else ""
        rows.append(
            {
                "metric": m.name, "then": then_value.format_value(), "again": now_value.format_value(),
                "difference": difference_text,
                "p (Holm)": p_value,
            }
        )  # fmt: skip
    print_output(home, rows)
    print_engine_differences(engines)
    if not p:
        click.echo(
            "the replicate is inconclusive: no metric has an interval, because there are too few games", err=True
        )
    elif differing_names:
        click.echo(f"the replicate differs in {', '.join(differing_names)}", err=True)
    else:
        summary = f"{len(p)} metrics differ" if len(p) > 1 else "1 metric differs"
        click.echo(f"the replicate agrees: none of {summary} (5 %, by Holm)", err=True)
    return agrees


def print_engine_differences(engines: Mapping[str, tuple[str, str]]) -> None:
    """Print each role in which the engines of a run and of its repetition differ."""
    for role, (then, now) in engines.items():
        click.echo(make_visible(f"  {role}: {then} then, {now} now"), err=True)
