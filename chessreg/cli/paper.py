"""`chessreg paper`: every table and figure of a paper, from one command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import Home, emit, json_option, pass_home

if TYPE_CHECKING:
    from chessreg.papers.work import Planned, Work

SIZES = ["small", "reference", "paper"]  # chessreg.papers.plan.SIZES, unimported


class PaperGroup(click.Group):
    """`list`, and one command for each paper."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from chessreg.papers import papers

        return ["list", *papers()]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        from chessreg.papers import papers

        if name == "list":
            return list_
        paper = papers().get(name)
        return command(name, paper.title) if paper else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; of a paper that there is not, those that are spelled like it."""
        from chessreg.papers import find

        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            find(args[0])
        return super().resolve_command(ctx, args)


@click.group(cls=PaperGroup)
def paper() -> None:
    """Do a paper whole: its runs in order, then its tables and figures."""


@click.command("list")
@json_option
@pass_home
def list_(home: Home) -> None:
    """List the papers that chessreg can do."""
    from chessreg.papers import papers

    rows = [{"name": p.name, "title": p.title, "sheets": [s.title for s in p.sheets]} for p in papers().values()]
    emit(home, rows, ["name", "title"])


def command(name: str, title: str) -> click.Command:
    """The command of one paper."""
    from functools import partial

    options = [
        click.Option(["--checkpoint"], required=True, metavar="CHECKPOINT", help="The model."),
        click.Option(["--dataset"], required=True, metavar="DATASET", help="Games to fit on, and to test on: parts "
                     "fit, validation and test of it are made if they are not there."),
        click.Option(["--test"], metavar="DATASET", help="Other games to test on; --dataset is then fitted on whole."),
        click.Option(["--size"], type=click.Choice(SIZES), default="reference", show_default=True,
                     help="How much of everything: minutes, hours, or as the paper."),
        click.Option(["--dry-run"], is_flag=True, help="Print the plan (runs, units, rows, bytes) and do nothing."),
        click.Option(["--report"], is_flag=True, help="Only write the tables of what is there."),
        click.Option(["--on"], metavar="EXECUTOR", help="As jobs, as chessreg launch does: local, slurm:PROFILE, ray."),
        click.Option(["--device"], metavar="DEVICE", help="Of every run: auto, cpu, cuda or cuda:N."),
        click.Option(["--threads"], type=click.IntRange(min=1), metavar="N", help="CPU threads of each run; with --on, "
                     "as many runs go side by side as there is room for."),
        click.Option(["--output"], type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
                     help="Where the tables go  [default: papers/ and the paper's tag]"),
        click.Option(["--json"], is_flag=True, help="Print one JSON document."),
    ]  # fmt: skip
    text = f"""{title}

    Runs in the order of what they need; a run that is complete is skipped, an interrupted one goes on. Then every
    table and figure is written, the paper's numbers beside ours.

    \b
    Example: chessreg paper {name} --checkpoint reference --dataset sample --size small"""
    return click.Command(name, params=options, callback=partial(go, name), help=text, short_help=title)  # type: ignore[arg-type]


def go(
    name: str, checkpoint: str, dataset: str, test: str | None, size: Any, dry_run: bool, report: bool,
    on: str | None, device: str | None, threads: int | None, output: Path | None, json: bool,
) -> None:  # fmt: skip
    from chessreg.papers import find
    from chessreg.papers.work import Work, request

    home = click.get_current_context().find_object(Home)
    assert home
    session = home.session()
    how = {key: value for key, value in (("device", device), ("threads", threads)) if value is not None}
    work = Work(session, find(name), request(session, checkpoint, dataset, test, size), how)
    if dry_run:
        show_plan(work, json)
        return
    if report:
        work.look()
    elif on is not None:
        launch(work, on, json)
    elif interrupted(work, json):
        click.echo("interrupted: complete units are kept; the same command goes on", err=True)
        sys.exit(130)
    from chessreg.papers.report import write

    folder = output or Path("papers") / work.tag
    written = write(work, folder)
    if json:
        files = [str(folder / file) for sheet in written for file in sheet.files]
        emit(True, {"paper": name, "tag": work.tag, "folder": str(folder), "steps": len(work.steps), "files": files})
        return
    for each in written:
        click.echo(f"{'picture' if each.rows is None else f'{each.rows:>5} rows':10}  {each.title}", err=True)
    click.echo(str(folder / "index.md"))


def interrupted(work: Work, quiet: bool) -> bool:
    """Do what is missing, each step with a line of its own; returns whether it was interrupted."""
    from chessreg.cli.base import progress_line

    total = len(work.steps)
    with progress_line("", quiet=quiet) as on_progress:

        def begin(number: int, planned: Planned) -> None:
            if not quiet:
                state = "is complete" if planned.state == "complete" else f"{planned.missing:,} units"
                click.echo(f"[{number}/{total}] {planned.step.name} ({planned.step.kind}): {state}", err=True)

        return work.do(begin, on_progress)


def launch(work: Work, on: str, quiet: bool) -> None:
    """Do what is missing as jobs, and wait for them."""
    from chessreg.cli.base import progress_line
    from chessreg.papers.launching import Launching

    def told(queued: int) -> None:
        if not quiet:
            click.echo(
                f"{queued} runs queued on {on}; {len(work.recipes)} of {len(work.steps)} steps are complete", err=True
            )

    with progress_line("", quiet=quiet) as on_progress:
        stopped = Launching(work, on, told, on_progress).do()
    if stopped:
        click.echo("interrupted: the jobs that are launched go on (chessreg jobs); the same command goes on", err=True)
        sys.exit(130)


def show_plan(work: Work, as_json: bool) -> None:
    """Every step with what it would do; what waits for others is an expectation."""
    from chessreg.papers.work import totals

    plan = work.plan()
    rows = [
        {
            "step": p.step.name, "kind": p.step.kind, "state": p.state, "units": p.units, "missing": p.missing,
            "rows": p.rows, "bytes": p.bytes, "serves": p.step.serves,
        }
        for p in plan
    ]  # fmt: skip
    summed = totals(plan)
    if as_json:
        emit(True, {"paper": work.paper.name, "tag": work.tag, "steps": rows, "totals": summed})
        return
    shown = [row | {"rows": ", ".join(f"{count:,} {table}" for table, count in row["rows"].items())} for row in rows]  # type: ignore[attr-defined]
    emit(False, shown, ["step", "kind", "state", "units", "missing", "rows", "bytes", "serves"])
    states = ", ".join(f"{count} {state}" for state, count in summed["states"].items())
    left = ", ".join(f"{count:,} {table}" for table, count in summed["rows"].items()) or "none"
    click.echo(
        f"{summed['steps']} steps: {states}; rows to come: {left}; {summed['bytes']:,} bytes in the store", err=True
    )
    click.echo("what waits is an expectation: it is counted once the steps before it are there", err=True)
