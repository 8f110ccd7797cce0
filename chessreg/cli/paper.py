"""`chessreg paper`: every table and figure of a paper, from one command."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import FilePath, Group, Home, add_json_option, pass_home, print_output
from chessreg.named import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chessreg.papers.work import StepPlan, Work

MANY_TRIALS = 10_000_000
SIZES = ["small", "reference", "paper"]  # chessreg.papers.plan.SIZE_NAMES, unimported


class PaperGroup(Group):
    """The group of `list` and one command for each paper."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from chessreg.papers import list_papers

        return ["list", *list_papers()]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return `list` or the command of a paper. None if there is no such paper."""
        from chessreg.papers import list_papers

        if name == "list":
            return list_
        paper = list_papers().get(name)
        return (
            make_paper_command(name, paper.title, paper.steps_by_question, paper.can_train, paper.has_comparisons)
            if paper
            else None
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a paper. The error for an unknown paper suggests similar names."""
        from chessreg.papers import find_paper

        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            find_paper(args[0])
        return super().resolve_command(ctx, args)


@click.group(cls=PaperGroup)
def paper() -> None:
    """Run a whole paper: its runs in order, then its tables and figures."""


@click.command("list")
@add_json_option
@pass_home
def list_(home: Home) -> None:
    """List the papers that chessreg can run."""
    from chessreg.papers import list_papers

    rows = [{"name": p.name, "title": p.title, "sheets": [s.title for s in p.sheets]} for p in list_papers().values()]
    print_output(home, rows, ["name", "title"])


def make_paper_command(
    name: str, title: str, firsts: Iterable[str], trains: bool = False, compares: bool = False
) -> click.Command:
    """Return the command `chessreg paper NAME`. `firsts` are the paper's questions, for the help of `--first`."""
    from functools import partial

    option = click.Option
    model_options = [
        option(["--checkpoint"], required=True, metavar="CHECKPOINT", help="Model to run the paper on."),
        option(
            ["--sae"],
            metavar="RUN",
            help="SAEs of every layer, for the encode-decode control of tuned board edits. "
            "Left out: without that control.",
        ),
    ]
    position_options = [
        option(
            ["--position-dataset", "positions"],
            required=True,
            metavar="DATASET",
            help="Positions with best moves, from games of --dataset; the models are trained and measured on them.",
        ),
        option(
            ["--puzzle-dataset", "puzzles"],
            metavar="DATASET",
            help="Puzzles for the models of positions. Left out: no puzzle step.",
        ),
        option(
            ["--language-model", "language_models"],
            multiple=True,
            metavar="CHECKPOINT[=RATE]",
            help="Pretrained language model that reads prompts, tuned at RATE or at the paper's learning rate of its "
            "architecture; repeatable. Left out: models with initial weights, which are first trained on prompts.",
        ),
    ]
    other_options = [
        option(
            ["--beside"],
            multiple=True,
            metavar="CHECKPOINT",
            help="Another model of games, for the table that compares models; repeatable. Left out: no other model.",
        ),
    ]
    note = " Left out, or if the positions do not name their games: no models of games." if trains else ""
    options = [
        *(position_options if trains else model_options),
        *(other_options if compares else []),
        option(
            ["--dataset"],
            required=not trains,
            metavar="DATASET",
            help=f"Games to fit and test on; missing parts fit, validation and test are made.{note}",
        ),
        option(
            ["--test"],
            metavar="DATASET",
            help="Games to test on; all of --dataset is then used to fit. Left out: --dataset is split.",
        ),
        option(
            ["--size"],
            type=click.Choice(SIZES),
            default="reference",
            show_default=True,
            help="Scale of the paper's runs: minutes (small), hours (reference), or the paper's own.",
        ),
        option(
            ["--rehearse"],
            is_flag=True,
            help="With --size paper: run every step at full shape on a few items in a separate registry, and print "
            "its memory, time and errors. The same command continues an interrupted rehearsal. Left out: do the steps.",
        ),
        option(
            ["--fresh"],
            is_flag=True,
            help="With --rehearse: repeat all steps. Left out: only the steps that have not passed yet.",
        ),
        option(["--dry-run"], is_flag=True, help="Print the plan (runs, units, rows, bytes, CPU time); run nothing."),
        option(
            ["--only"],
            multiple=True,
            metavar="STEP",
            help="Run only these steps and the steps that they need, named as for --first; repeatable. --dry-run lists "
            "them. Left out: all steps.",
        ),
        option(
            ["--first"],
            multiple=True,
            metavar="STEP",
            help="Run these steps, and the steps that they need, before the others: a name, a pattern (arm-legal-*) or "
            f"a group: {', '.join(firsts) or 'none'}. Left out: in the paper's order.",
        ),
        option(
            ["--save"],
            type=FilePath(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Write the finished steps to one file for another machine, without activations, and run nothing. "
            "Left out: run the steps.",
        ),
        option(
            ["--load"],
            type=FilePath(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Import a file that --save wrote, then continue. Left out: import nothing.",
        ),
        option(["--report"], is_flag=True, help="Only write the tables of complete steps."),
        option(
            ["--on"],
            metavar="EXECUTOR",
            help="Run the steps as jobs, as `chessreg launch` does: local, slurm:PROFILE or ray. "
            "Left out: in this process.",
        ),
        option(["--device"], metavar="DEVICE", help="Device of every run: auto, cpu, cuda or cuda:N. Left out: auto."),
        option(
            ["--threads"],
            type=click.IntRange(min=1),
            metavar="N",
            help="CPU threads of each run; with fewer threads more jobs run at the same time. "
            "Left out: all, or an equal share for each job.",
        ),
        option(
            ["--output"],
            type=FilePath(file_okay=False, path_type=Path),
            metavar="FOLDER",
            help="Folder of the tables and figures.  [default: papers/ and the paper's tag]",
        ),
        option(["--json"], is_flag=True, help="Print one JSON document."),
    ]
    example = "--dataset games --position-dataset best-moves" if trains else "--checkpoint reference --dataset sample"
    text = f"""{title}

    Runs start in the order of their inputs; complete runs are skipped, interrupted ones resume. Then every table and
    figure is written, with the paper's numbers next to yours.

    \b
    Example: chessreg paper {name} {example} --size small"""
    return click.Command(name, params=options, callback=partial(run_paper, name), help=text, short_help=title)  # type: ignore[arg-type]


@dataclass(frozen=True)
class PaperAction:
    """The action of `chessreg paper`, and the folder of its results."""

    dry_run: bool
    rehearse: bool
    fresh: bool
    save: Path | None
    load: Path | None
    report: bool
    on: str | None
    output: Path | None
    json: bool

    def check(self) -> None:
        """Raise BadInputError for options that exclude each other."""
        from chessreg.errors import BadInputError

        if self.load is not None and (self.dry_run or self.save is not None):
            raise BadInputError("--load changes the registry, --dry-run and --save do not", "give one of them")
        if self.rehearse and (self.dry_run or self.report or self.on is not None or self.save or self.load):
            hint = "leave out --dry-run, --report, --on, --save and --load"
            raise BadInputError("--rehearse excludes other actions", hint)
        if self.fresh and not self.rehearse:
            raise BadInputError("--fresh has no effect without --rehearse", "leave out --fresh, or add --rehearse")
        if (self.dry_run, self.save is not None, self.report).count(True) > 1:
            raise BadInputError("--dry-run, --save and --report exclude each other", "give one of them")


def run_paper(
    name: str, only: tuple[str, ...], first: tuple[str, ...], device: str | None, threads: int | None, **options: Any
) -> None:
    """Run the paper `name`, or only its steps in `only` and before them those in `first`, on `device` with `threads`.

    `options` are the fields of PaperAction, and the models and data that `make_request` expects.
    """
    from chessreg.errors import BadInputError
    from chessreg.models import devices
    from chessreg.papers import find_paper
    from chessreg.papers.work import Work, make_request
    from chessreg.scheduling.executors import open_executor

    action = PaperAction(**{field.name: options.pop(field.name) for field in fields(PaperAction)})
    home = click.get_current_context().find_object(Home)
    assert home
    if action.on is not None:
        open_executor(action.on)  # raises NotFoundError for an unknown executor
    else:
        devices.check_device("auto" if device is None else device)
        devices.check_threads(threads or 0)
    session = home.session()
    execution_options = {key: value for key, value in (("device", device), ("threads", threads)) if value is not None}
    work = Work(
        session,
        find_paper(name),
        make_request(session, **{"checkpoint": None, **options}),
        execution_options,
        first,
        only,
    )
    action.check()
    if action.rehearse and work.request.size != "paper":
        raise BadInputError(f"--rehearse is for the size paper, not {work.request.size}", "add --size paper")
    for line in work.paper.remarks(work.request):
        click.echo(line, err=True)
    if action.load is not None:
        load_saved_paper(work, action.load)
    if action.save is not None:
        save_paper_file(work, action.save, action.json)
    elif action.dry_run:
        print_paper_plan(work, action.json)
    elif action.rehearse:
        print_rehearsal(work, action.fresh, action.json)
    else:
        if action.on is not None and not action.report:
            launch_steps(work, action.on, action.json)
        elif not action.report and run_steps(work, action.json):
            click.echo("interrupted: complete units are kept; the same command resumes", err=True)
            sys.exit(130)
        if action.report or only:
            work.tag_complete_runs()
        write_tables(work, action)


def load_saved_paper(work: Work, file: Path) -> None:
    """Import the results that `--save` wrote on another machine."""
    from chessreg.papers import archive

    loaded_paper, states = archive.load_paper(work, file)
    note = f", {states} begun trainings" if states else ""
    click.echo(
        f"{format_count(loaded_paper.results, 'new result')} of {format_count(loaded_paper.runs, 'run')}{note} "
        f"from {file}",
        err=True,
    )


def save_paper_file(work: Work, file: Path, as_json: bool) -> None:
    """Write the results so far as one file for another machine."""
    from chessreg.papers import archive

    saved_file = archive.save_paper(work, file)
    summary = "{complete} of {steps} steps complete: {runs} runs, {artifacts} artifacts, "
    summary += "{states} begun trainings, {bytes:,} bytes" if saved_file["states"] else "{bytes:,} bytes"
    print_output(True, saved_file) if as_json else click.echo(f"{file}: {summary.format(**saved_file)}", err=True)


def write_tables(work: Work, action: PaperAction) -> None:
    """Write the paper's tables and figures, and print where they are."""
    from chessreg.papers.report import write_report

    folder = action.output or Path("papers") / work.tag
    report_files = write_report(work, folder)
    if action.json:
        files = [str(folder / file) for sheet in report_files for file in sheet.files]
        steps = {"paper": work.paper.name, "tag": work.tag, "folder": str(folder), "steps": len(work.steps)}
        print_output(True, {**steps, "files": files})
        return
    for each in report_files:
        click.echo(f"{'picture' if each.rows is None else f'{each.rows:>5} rows':10}  {each.title}", err=True)
    click.echo(str(folder / "index.md"))


def run_steps(work: Work, quiet: bool) -> bool:
    """Run the missing steps in this process, one line each; return whether the user interrupted them."""
    from chessreg.cli.base import show_progress_line

    total = len(work.steps)
    with show_progress_line("", quiet=quiet) as on_progress:

        def print_step(number: int, step_plan: StepPlan) -> None:
            if not quiet:
                state = f"is {step_plan.state}" if step_plan.is_done else format_count(step_plan.missing, "unit")
                state = f"refused: {step_plan.why}" if step_plan.state == "refused" else state
                click.echo(f"[{number}/{total}] {step_plan.step.name} ({step_plan.step.kind}): {state}", err=True)

        try:
            return work.run_steps(print_step, on_progress)
        except KeyboardInterrupt:  # between two units, as where torch is imported
            return True


def launch_steps(work: Work, on: str, quiet: bool) -> None:
    """Run the missing steps as jobs, and wait for them."""
    from chessreg.cli.base import show_progress_line
    from chessreg.papers.launching import PaperLauncher

    def print_queued(number: int) -> None:
        if not quiet:
            click.echo(
                f"{format_count(number, 'run')} queued on {on}; {len(work.references)} of {len(work.steps)} steps are "
                "complete",
                err=True,
            )

    with show_progress_line("", quiet=quiet) as on_progress:
        stop_reason = PaperLauncher(work, on, print_queued, on_progress).launch_steps()
    if stop_reason:
        click.echo("interrupted: launched jobs continue (chessreg jobs); the same command resumes the paper", err=True)
        sys.exit(130)


def print_rehearsal(work: Work, fresh: bool, as_json: bool) -> None:
    """Rehearse the steps and print each. Exits with status 1 if one of them failed."""
    from dataclasses import asdict

    from chessreg.entities.display import format_size
    from chessreg.papers.rehearsal import FAILED, RehearsedStep, rehearse_paper

    total, number = len(work.steps) + 2, 0

    def print_step(step: RehearsedStep) -> None:
        nonlocal number
        number += 1
        if not as_json:
            reason = f": {step.why}" if step.why else ""
            click.echo(f"[{number}/{total}] {step.name} ({step.kind}): {step.state}{reason}", err=True)

    try:
        steps = rehearse_paper(work, print_step, fresh=fresh)
    except KeyboardInterrupt:
        click.echo("interrupted: passed steps are kept; the same command continues", err=True)
        sys.exit(130)
    failed_steps = [step for step in steps if step.state == FAILED]
    expected_seconds = sum(step.expected_seconds or 0.0 for step in steps)
    rows = [asdict(step) for step in steps]
    if as_json:
        print_output(True, {"steps": rows, "failed": len(failed_steps), "expected_seconds": expected_seconds})
    else:
        shown_rows = [
            row
            | {
                "seconds": f"{row['seconds']:.1f}",
                "memory": format_size(row["peak_bytes"]) if row["peak_bytes"] else "",
                "gpu": "" if row["gpu_bytes"] is None else format_size(row["gpu_bytes"]),
                "whole": format_cpu_time(row["expected_seconds"]),
            }
            for row in rows
        ]
        gpu_columns = ["gpu"] if any(row["gpu_bytes"] is not None for row in rows) else []
        print_output(False, shown_rows, ["name", "kind", "state", "seconds", "memory", *gpu_columns, "whole"])
        click.echo(
            f"{format_count(len(steps), 'step')}, {len(failed_steps)} failed; "
            f"about {format_cpu_time(expected_seconds) or 'an unknown time'} for the whole paper on this machine",
            err=True,
        )
        for step in failed_steps:
            click.echo(f"failed: {step.name}: {step.why}", err=True)
        if failed_steps:
            click.echo("passed steps are kept: the same command repeats only the others", err=True)
        elif len(work.steps) < len(work.all_steps):
            click.echo(f"passed steps are kept in {work.session.store.rehearsals} for the other steps", err=True)
    if failed_steps:
        sys.exit(1)


def print_paper_plan(work: Work, as_json: bool) -> None:
    """Print every step with its units, rows, bytes and time. Numbers of waiting steps are expectations."""
    from chessreg.papers.cost import TRIAL_BYTES, estimate_step_seconds
    from chessreg.papers.work import describe_missing_games, sum_step_plans
    from chessreg.runs.cost import measure_multiplication_rate

    plan = work.plan()
    shortage = describe_missing_games(work.session, work.steps)
    rate = measure_multiplication_rate() if any(p.step.operations or p.step.engine_seconds for p in plan) else 0.0
    times = {
        p.step.name: 0.0
        if p.is_done
        else estimate_step_seconds(p.step, rate, p.share * (p.missing / p.units if p.units else 1.0))
        for p in plan
    }
    rows: list[dict[str, Any]] = [
        {
            "step": p.step.name, "kind": p.step.kind, "state": p.state, "units": p.units, "missing": p.missing,
            "rows": p.rows, "bytes": p.bytes, "cpu_seconds": times[p.step.name], "serves": p.step.purpose, "why": p.why,
        }
        for p in plan
    ]  # fmt: skip
    totals = sum_step_plans(plan) | {"cpu_seconds": sum(each or 0.0 for each in times.values()) if rate else None}
    if as_json:
        print_output(
            True,
            {"paper": work.paper.name, "tag": work.tag, "steps": rows, "totals": totals, "too_few_games": shortage},
        )
        return
    rows_listed = [
        row
        | {
            "rows": ", ".join(f"{count:,} in {table}" for table, count in row["rows"].items()),
            "cpu": format_cpu_time(row["cpu_seconds"]),
        }
        for row in rows
    ]
    columns = ["step", "kind", "state", "units", "missing", "rows", "bytes", *(["cpu"] if rate else []), "serves"]
    print_output(False, rows_listed, columns)
    states = ", ".join(f"{count} {state}" for state, count in totals["states"].items())
    row_counts = ", ".join(f"{count:,} {table}" for table, count in totals["rows"].items()) or "none"
    click.echo(
        f"{format_count(totals['steps'], 'step')}: {states}; rows to come: {row_counts}; "
        f"{totals['bytes']:,} bytes in the store",
        err=True,
    )
    if rate:
        cost = f"about {totals['cpu_seconds'] / 3600:,.1f} core-hours on one thread of this machine"
        click.echo(f"{cost}, of {rate / 1e9:,.0f} Gflop/s; steps of seconds are not counted", err=True)
    click.echo("numbers of waiting steps are expectations, counted when the steps before them are complete", err=True)
    for line in shortage:
        click.echo(line, err=True)
    if (trials := totals["rows"].get("trial", 0)) >= MANY_TRIALS:
        click.echo(
            f"{trials:,} trials need about {trials * TRIAL_BYTES / 1e9:,.0f} GB in SQLite; PostgreSQL is faster "
            "for this number of rows: set CHESSREG_REGISTRY=postgresql://… (docs/machines.md)",
            err=True,
        )


def format_cpu_time(seconds: float | None) -> str:
    """Format a time in minutes, or in hours from 100 minutes on; empty if it is unknown.

    >>> format_cpu_time(0.0), format_cpu_time(90.0), format_cpu_time(36_000.0), format_cpu_time(None)
    ('0 min', '2 min', '10.0 h', '')
    """
    if seconds is None:
        return ""
    return f"{seconds / 3600:,.1f} h" if seconds >= 6000 else f"{seconds / 60:,.0f} min"
