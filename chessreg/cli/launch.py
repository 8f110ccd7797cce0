"""`chessreg launch KIND` and `chessreg launch job.toml`: experiments as jobs that outlive this terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import FilePath, Home, print_output
from chessreg.cli.run import (
    KindCommand,
    KindGroup,
    build_run_settings,
    make_kind_command,
    read_last_options,
    read_recorded_run,
    read_toml,
)
from chessreg.errors import BadInputError, NotFoundError

if TYPE_CHECKING:
    from chessreg.runs.kind import Kind
    from chessreg.scheduling.launch import Order, PlannedRun

LAUNCH_OPTIONS = (
    "on",
    "shards",
    "priority",
    "share_gpu",
    "gpu_memory",
)  # how it is launched, as options and in job files
LIST_HEADINGS = {"kind": "kind", "run": "run", "name": "name", "status": "", "units": "units", "missing": "missing",
          "shards": "shards", "waits": "waits for"}  # fmt: skip
DRY_RUN_HEADINGS = {**LIST_HEADINGS, "time": "time"}  # of a dry run


def make_executor_options() -> list[click.Option]:
    """Return the options for the executor. They have no defaults, so that the values of a job file are used."""
    from chessreg.cli.run import make_option
    from chessreg.runs.spec import describe_settings
    from chessreg.scheduling.launch import LaunchOptions

    return [
        *(make_option(setting) for setting in describe_settings(LaunchOptions) if setting.path in LAUNCH_OPTIONS),
        click.Option(
            ["--address"], help="Address of the Ray cluster, with --on ray. Left out: the cluster that Ray finds."
        ),
        click.Option(["--print"], is_flag=True, help="Print the batch scripts of --on slurm; queue nothing."),
        click.Option(["--wait"], is_flag=True, help="Wait until the jobs end; exit status 1 unless all are complete."),
    ]


class LaunchGroup(KindGroup):
    """Subcommands of the kinds, and of job files (names that end in .toml)."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command:
        """Return the command that launches a sweep file (`.toml`) or a kind. Raises NotFoundError."""
        if name.endswith(".toml"):
            return make_file_command(Path(name))
        if ctx.resilient_parsing and ".py" in name:
            raise NotFoundError(f"{name} is not loaded to complete a command line")  # loading it would trust it
        from chessreg.runs.kind import find_kind

        sweep = click.Option(
            ["--sweep"],
            type=FilePath(dir_okay=False),
            help="TOML file with [grid] or [[cells]], one run for each cell. Left out: one run.",
        )
        grid = click.Option(
            ["--grid"],
            multiple=True,
            metavar="SETTING=A|B",
            help="Values of a setting, as NAME=A|B: one run for each value, or combination with other --grid. "
            "Left out: one run.",
        )
        return make_kind_command(find_kind(name), name, LaunchCommand, [*make_executor_options(), sweep, grid])


@click.group(cls=LaunchGroup, invoke_without_command=True, subcommand_metavar="KIND|job.toml [SETTINGS]…")
@click.option(
    "--resume", metavar="RUN", help="Launch the missing units of this run, by name or id. Left out: launch KIND."
)
@click.pass_context
def launch(ctx: click.Context, resume: str | None) -> None:
    """Queue an experiment as jobs that outlive this terminal. The settings are those of `chessreg run KIND`.

    A setting may name the result of another job; the job then waits for it. Complete runs are skipped. A job file holds
    `kind`, settings, and on, shards, priority, name; or several such tables as [[job]], which may refer to each other.
    [grid] or [[cells]] makes a sweep.

    --on slurm:PROFILE submits to a Slurm cluster with the settings of a table in profiles.toml: partition, account,
    qos, gres, constraint, time, mem, cpus, options (of sbatch), setup (lines of bash), python, store and registry
    (paths on the nodes), and poll (seconds between status checks). The file is searched in ./.chessreg/ and its
    parents, where it needs `chessreg trust FILE` once, then in ~/.config/chessreg/. --print shows the batch scripts.
    --on slurm uses the profile `default`, if there is one.

    --on ray:HOST:PORT uses the Ray cluster at that address, --on ray the cluster of this machine.

    \b
        [gpu]                      # profiles.toml
        partition = "a100"
        gres = "gpu:1"
        time = "08:00:00"
        setup = ["module load cuda"]

    \b
    Example: chessreg launch cache --checkpoint reference --dataset sample:fit --name fit --shards 2
             chessreg launch probe --cache fit
             chessreg jobs
    """
    if ctx.invoked_subcommand is None:
        if resume is None:
            click.echo(ctx.get_help())
            return
        home = ctx.find_object(Home)
        assert home
        from chessreg.scheduling.launch import Order

        kind, spec, explicit_names = read_recorded_run(home, resume)
        order = Order(kind, spec, read_last_options(home, kind, resume), explicit_names)
        launch_in_process(home, [order], dry_run=False, wait=False, as_json=False)


class LaunchCommand(KindCommand):
    """The command `chessreg launch KIND`."""

    verb = "launch"

    def execute(self, **params: Any) -> None:
        """Launch the run, or one run for each cell of `--sweep` and `--grid`."""
        home = click.get_current_context().find_object(Home)
        assert home
        if params["sweep"] or params["grid"]:
            orders = make_sweep_orders(self.kind, params)
        else:
            spec, execution, sources = build_run_settings(self.kind, params)
            orders = [make_order(self.kind, spec, execution, tuple(sorted(sources)), params["name"], params)]
        launch_or_print(home, orders, params)


def launch_or_print(home: Home, orders: list[Order], params: dict[str, Any]) -> None:
    """Launch the orders, or print their scripts with `--print`."""
    if params["print"]:
        show_scripts(home, orders, params["json"])
    else:
        launch_in_process(home, orders, dry_run=params["dry_run"], wait=params["wait"], as_json=params["json"])


def make_order(
    kind: Kind, spec: Any, execution: Any, explicit: tuple[str, ...], name: str | None, queueing: dict[str, Any]
) -> Order:
    """Return the order that launches a spec.

    `explicit` are the dotted paths of the settings that the user gave, and `queueing` the options of the executor;
    those not given have their defaults. Raises BadInputError for --address without --on ray.
    """
    from chessreg.scheduling.launch import Order

    executor = "local" if queueing.get("on") is None else queueing["on"]
    if queueing.get("address") is not None:
        if executor != "ray":
            raise BadInputError("--address requires --on ray")
        executor = f"ray:{queueing['address']}"
    more = {key: queueing[key] for key in LAUNCH_OPTIONS if key != "on" and queueing.get(key) is not None}
    return Order(kind, spec, execution, explicit, name, executor, **more)


def make_sweep_orders(kind: Kind, params: dict[str, Any]) -> list[Order]:
    """Return the orders of a sweep file and of --grid, over the settings of the command line."""
    from chessreg.cli.run import collect_given_values
    from chessreg.runs.spec import flatten_settings, merge_settings

    path = params["sweep"] or "--grid"
    table = read_toml(Path(path)) if params["sweep"] else {}
    if grid := read_grid(kind, params["grid"]):
        table = {**table, "grid": flatten_settings(table.get("grid", {})) | grid}
    if unknown_keys := table.keys() - {"grid", "cells"}:
        raise BadInputError(
            f"{path}: {', '.join(sorted(unknown_keys))} is neither grid nor cells", "[grid]\nseed = [0, 1, 2]"
        )
    settings = merge_settings(collect_given_values(kind.spec, params), collect_given_values(kind.options, params))
    file = read_toml(Path(params["spec"])) if params["spec"] else {}
    preset = kind.preset(params["preset"]) if params.get("preset") else {}
    base = merge_settings({k: v for k, v in file.items() if k not in ("kind", "name")}, settings)
    return make_cell_orders(kind, base, preset, table, params["name"], params, str(path))


def read_grid(kind: Kind, assignments: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of `--grid SETTING=A|B`, by path.

    Raises BadInputError for an unknown setting, an invalid value, and a setting given twice.
    """
    from chessreg.runs.spec import describe_settings

    settings = {setting.path: setting for setting in (*describe_settings(kind.spec), *describe_settings(kind.options))}
    grid: dict[str, list[Any]] = {}
    for text in assignments:
        name, equals, values = text.partition("=")
        path = name.strip().removeprefix("--").replace("-", "_")
        if not equals or not all(value.strip() for value in values.split("|")) or path not in settings:
            problem = f"{kind.name} has no setting {name!r}" if path not in settings else "it has no values"
            raise BadInputError(f"--grid {text}: {problem}", '--grid "seed=0|1|2"')
        try:
            grid[path] = [settings[path].parse_text(value) for value in values.split("|")]
        except ValueError as error:
            raise BadInputError(f"--grid {text}: {error}", '--grid "seed=0|1|2"') from error
        if len(set(map(str, grid[path]))) < len(grid[path]):
            raise BadInputError(f"--grid {text} has a value twice")
    return grid


def make_cell_orders(
    kind: Kind,
    base: dict[str, Any],
    preset: dict[str, Any],
    table: dict[str, Any],
    name: str | None,
    queueing: dict[str, Any],
    where: str,
) -> list[Order]:
    """Return one order per cell of `table`'s grid and cells, over `base` and a preset; one order if it has neither.

    `queueing` are the options of the executor. Raises BadInputError, naming `where`, for an unknown setting.
    """
    from chessreg.runs.spec import build_settings, flatten_settings, list_setting_names, merge_settings, nest_settings
    from chessreg.scheduling.launch import combine_grid, make_cell_name

    orders = []
    for number, cell in enumerate(combine_grid(table.get("grid", {}), table.get("cells", ()))):
        values = merge_settings(base, nest_settings(cell))
        unknown_names = values.keys() - list_setting_names(kind.spec) - kind.options.model_fields.keys()
        if unknown_names:
            raise BadInputError(f"{where}: {kind.name} has no setting {', '.join(sorted(unknown_names))}")
        spec = build_settings(
            kind.spec, {k: v for k, v in values.items() if k in list_setting_names(kind.spec)}, preset
        )
        execution = build_settings(kind.options, {k: v for k, v in values.items() if k in kind.options.model_fields})
        explicit_names = tuple(sorted(flatten_settings(preset) | flatten_settings(values)))
        orders.append(make_order(kind, spec, execution, explicit_names, make_cell_name(name, cell, number), queueing))
    return orders


def make_file_command(path: Path) -> click.Command:
    """Return the command `chessreg launch FILE.toml`, which launches the runs that the file describes."""

    def launch_file(**params: Any) -> None:
        home = click.get_current_context().find_object(Home)
        assert home
        launch_or_print(home, read_file_orders(path, params), params)

    return click.Command(
        str(path),
        params=[
            *make_executor_options(),
            click.Option(["--dry-run"], is_flag=True, help="Print the plan and do nothing."),
            click.Option(["--json"], is_flag=True, help="Print one JSON document."),
        ],
        callback=launch_file,
        help=f"Launch the runs that {path} describes.",
    )


def read_file_orders(path: Path, params: dict[str, Any]) -> list[Order]:
    """Return the orders of a job file. Executor options on the command line override it."""
    from chessreg.runs.kind import find_kind as find

    table = read_toml(path)
    general = {key: table.pop(key) for key in LAUNCH_OPTIONS if key in table}
    over = {key: params[key] for key in (*LAUNCH_OPTIONS, "address") if params.get(key) is not None}
    jobs = table.pop("job", None)
    if jobs is None:
        jobs = [table]
    elif not isinstance(jobs, list) or table:
        raise BadInputError(
            f"{path}: only {', '.join(LAUNCH_OPTIONS)} may appear outside [[job]]", "put settings into a [[job]]"
        )
    orders: list[Order] = []
    for number, job in enumerate(jobs, 1):
        place = str(path) if len(jobs) == 1 else f"{path}, job {number}"
        if not isinstance(job, dict) or not isinstance(job.get("kind"), str):
            raise BadInputError(f"{place}: it has no kind", 'kind = "probe"')
        launch_options = {key: job.pop(key) for key in LAUNCH_OPTIONS if key in job}
        kind, name = find(resolve_kind_reference(job.pop("kind"), path)), job.pop("name", None)
        sweep = {key: job.pop(key) for key in ("grid", "cells") if key in job}
        preset = kind.preset(job.pop("preset")) if "preset" in job else {}
        orders += make_cell_orders(kind, job, preset, sweep, name, general | launch_options | over, place)
    return orders


def resolve_kind_reference(kind: str, file: Path) -> str:
    """Return a kind's reference; the path of a kind's file is relative to the job file."""
    kind_file = file.parent / kind.partition(":")[0]
    return str(file.parent / kind) if ".py" in kind and kind_file.is_file() else kind


def launch_in_process(home: Home, orders: list[Order], *, dry_run: bool, wait: bool, as_json: bool) -> None:
    """Plan and queue the orders, start a supervisor if needed, and print the plan (as JSON with `as_json`).

    `dry_run` only prints the plan. `wait` returns after the jobs have ended.
    """
    from chessreg.cli.jobs import format_duration
    from chessreg.runs.attempt import print_warning
    from chessreg.runs.ingest import ingest_fragments
    from chessreg.runs.resolve import describe_kind_change
    from chessreg.scheduling.executors import open_executor
    from chessreg.scheduling.expected_time import describe_busy_cores
    from chessreg.scheduling.launch import launch_orders, plan_orders, preview_run
    from chessreg.scheduling.presence import Presence
    from chessreg.scheduling.queue import find_jobs_at_work

    session = (
        home.session()
        if dry_run
        else home.open_for_adding(
            needs=list_needed_references(orders), check=lambda: [open_executor(order.on) for order in orders]
        )
    )
    ingest_fragments(session.database, session.store)
    if dry_run:
        group, planned_runs = None, plan_orders(orders, session.database, session.store)
    else:
        group, planned_runs = launch_orders(orders, session.database, session.store)
    rows = [make_plan_row(each) for each in planned_runs]
    for each in planned_runs:
        for change in describe_kind_change(session.database, each.order.kind, each.run_id):
            print_warning(change)
    if dry_run:
        for row, each in zip(rows, planned_runs, strict=True):
            preview = preview_run(each, session.database, session.store)
            row |= {name: preview[name] for name in ("seconds", "basis")}
    presence = Presence(session.store)
    has_started = bool(group) and presence.start(home.registry_reference)
    references: list[str] = []
    if wait and not dry_run:
        with session.database.read() as sql:
            earlier_jobs = find_jobs_at_work(
                sql, [each.run_id for each in planned_runs if each.status == "already_queued"]
            )
        references = [id.hex for id in ([group] if group else []) + earlier_jobs]
    if as_json and not references:
        print_output(True, {"group_id": group, "runs": rows, "supervisor": presence.read_holder() if group else None})
    elif not as_json:
        planned_rows = [
            {
                **row,
                "status": row["status"].replace("_", " "),
                "run": row["run_id"].hex[-6:],
                "waits": ", ".join(row["waits_for"]),
            }
            for row in rows
        ]
        for row in planned_rows if dry_run else ():
            explanation = "" if row["missing"] == 0 else "not known"
            row["time"] = explanation if row["seconds"] is None else f"about {format_duration(row['seconds'])}"
        print_output(False, planned_rows, DRY_RUN_HEADINGS if dry_run else LIST_HEADINGS)
        if bases := list(dict.fromkeys(filter(None, (row.get("basis") for row in rows)))):
            busy_note = describe_busy_cores() if any(order.on == "local" for order in orders) else ""
            click.echo(f"time from {'; '.join(filter(None, [*bases, busy_note]))}", err=True)
        if group:
            click.echo(f"launched as {group.hex[-6:]}; chessreg attach {group.hex[-6:]} follows it", err=True)
            if has_started:
                click.echo(f"a supervisor was started for this machine; its log is {presence.log}", err=True)
        elif not dry_run:
            click.echo("nothing was queued: every run is complete or queued already", err=True)
    if references:
        from chessreg.cli.jobs import wait_until_over

        wait_until_over(home, references, None, as_json)


def list_needed_references(orders: list[Order]) -> list[str]:
    """Return the references of these orders that none of them makes."""
    from chessreg.runs.inputs import FILE_NOUNS
    from chessreg.runs.resolve import iter_named_inputs

    order_names = {order.name for order in orders}
    references = [(noun, reference) for order in orders for _, noun, reference in iter_named_inputs(order.spec)]
    return [reference for noun, reference in references if noun not in FILE_NOUNS and reference not in order_names]


def show_scripts(home: Home, orders: list[Order], as_json: bool) -> None:
    """Print the batch scripts that would be submitted, without queueing or writing anything."""
    from chessreg.registry.identity import make_id
    from chessreg.scheduling import queue
    from chessreg.scheduling.executors import open_executor
    from chessreg.scheduling.launch import make_jobs, plan_orders

    if other_executor := next((order.on for order in orders if order.on.partition(":")[0] != "slurm"), None):
        raise BadInputError(f"--print needs --on slurm, not --on {other_executor}", "--on slurm:PROFILE --print")
    session, group, scripts = home.session(), make_id(), []
    for each in plan_orders(orders, session.database, session.store):
        if each.status == "queued":
            jobs = make_jobs(each, group, session.store, Path.cwd())
            works = [queue.make_submission(session.database, session.store, job) for job in jobs]
            shards = [work for work, job in zip(works, jobs, strict=True) if job.shard < job.shards]
            reduce_jobs = [work for work, job in zip(works, jobs, strict=True) if job.shard == job.shards]  # the reduce
            at: Any = open_executor(each.order.on)
            scripts += [script for part in (shards, reduce_jobs) if part for script in at.preview(part)]
    if as_json:
        print_output(True, {"scripts": scripts})
    else:
        click.echo("\n".join(scripts), nl=False)
    if not scripts:
        click.echo("there is nothing to submit: all of it is complete or launched already", err=True)


def make_plan_row(planned_run: PlannedRun) -> dict[str, Any]:
    """Return the fields of a planned run for printing and for `--json`."""
    return {
        "run_id": planned_run.run_id,
        "kind": planned_run.order.kind.name,
        "name": planned_run.order.name,
        "status": planned_run.status,
        "units": planned_run.units,
        "missing": planned_run.missing,
        "shards": planned_run.shards if planned_run.status == "queued" else None,
        "on": planned_run.order.on,
        "priority": planned_run.order.priority,
        "waits_for": [spec_hash[26:32] for spec_hash in planned_run.after],
    }
