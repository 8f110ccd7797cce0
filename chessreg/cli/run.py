"""`chessreg run KIND`: any kind of experiment, its settings as options; `chessreg trust`: files with kinds."""

from __future__ import annotations

import inspect
import shlex
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from chessreg.cli.base import FilePath, Group, Home, NameText, Numbers, add_json_option, pass_home, print_output
from chessreg.errors import BadInputError, NotFoundError, RegistryError
from chessreg.named import clip_text, format_count
from chessreg.runs.spec import (
    SettingField,
    describe_settings,
    find_variant_tag,
    flatten_settings,
    format_flag,
    format_value,
    list_setting_names,
    list_variants,
    list_visible_settings,
    name_all_settings,
    nest_settings,
    parse_settings,
)

if TYPE_CHECKING:
    from chessreg.runs.kind import Kind
    from chessreg.runs.resolve import ResolvedSpec
    from chessreg.session import Session


class KindGroup(Group):
    """Subcommands of the kinds of experiment; a path `./my_kind.py[:CLASS]` is accepted as a name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from chessreg.runs.kind import load_kinds

        return list(load_kinds())

    def short_helps(self, ctx: click.Context) -> dict[str, str]:
        from chessreg.runs.kind import load_kinds

        return {name: kind.summary for name, kind in load_kinds().items()}

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete kinds and the group's options; if none fits, a file with a kind."""
        from chessreg.cli.completion import list_kind_names

        kinds = [CompletionItem(name) for name in list_kind_names() if name.startswith(incomplete)]
        return kinds + click.Command.shell_complete(self, ctx, incomplete) or [CompletionItem(incomplete, type="file")]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the kinds, and print a note for each kind that cannot be loaded."""
        from chessreg.runs.kind import load_kinds_and_failures

        super().format_commands(ctx, formatter)
        for error in load_kinds_and_failures()[1].values():
            click.echo(f"note: {error.message}", err=True)

    def get_command(self, ctx: click.Context, name: str) -> click.Command:
        """Return the command that runs a kind. Raises NotFoundError for an unknown kind."""
        from chessreg.runs.kind import find_kind

        if ctx.resilient_parsing and ".py" in name:
            raise NotFoundError(f"{name} is not loaded to complete a command line")  # loading it would trust it
        return make_kind_command(find_kind(name), name)


@click.group(cls=KindGroup, invoke_without_command=True, subcommand_metavar="KIND [SETTINGS]…")
@click.option("--resume", metavar="RUN", help="Resume this incomplete run, by name or id. Left out: run KIND.")
@click.pass_context
def run(ctx: click.Context, resume: str | None) -> None:
    """Run an experiment. A complete run is skipped, and an interrupted one resumes.

    KIND is a kind listed below or a custom file, ./my_kind.py. `chessreg run KIND --help` shows its settings.
    """
    if ctx.invoked_subcommand is None:
        if resume is None:
            click.echo(ctx.get_help())
            return
        home = ctx.find_object(Home)
        assert home
        resume_run(home, resume)


def make_kind_command(
    kind: Kind, name: str, command_class: type[KindCommand] | None = None, more: Sequence[click.Option] = ()
) -> click.Command:
    """Return the command of one kind: its settings, its execution options, and `more` options."""

    settings, execution = build_options(kind.spec), build_options(kind.options)
    preset = click.Option(
        ["--preset"],
        type=click.Choice(list(kind.presets)),
        metavar="PRESET",
        help=f"Use a paper's settings; options override them, and `none` removes a number. One of: "
        f"{', '.join(kind.presets)}. Left out: the defaults.",
    )
    kind_options = [
        *([preset] if kind.presets else []),
        click.Option(
            ["--spec"],
            type=FilePath(dir_okay=False),
            help="Read settings from a TOML file; options override it. Left out: options and defaults only.",
        ),
        click.Option(["--name"], type=NameText(), help="Name of the run. Left out: no name; use its id."),
        *more,
        click.Option(
            ["--dry-run"], is_flag=True, help="Print the plan (units, time, rows, bytes, settings) without running it."
        ),
        click.Option(["--json"], is_flag=True, help="Print one JSON document."),
    ]
    return (command_class or KindCommand)(kind, name, settings, execution, kind_options)


class KindCommand(click.Command):
    """The command `chessreg run KIND`, with its settings in two groups."""

    verb = "run"

    def __init__(
        self, kind: Kind, name: str, settings: list[Any], execution: list[Any], own_options: list[Any]
    ) -> None:
        self.kind, self.execution = kind, execution
        help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=show_help_all,
            help="Show every setting and execution option.",
        )
        self.own_options = [*own_options, help_all]
        text = inspect.getdoc(type(kind)) or ""
        if kind.example:
            text += f"\n\n\b\nExample: chessreg {self.verb} {name}\n  {kind.example.replace(' --', chr(10) + '  --')}"
        super().__init__(
            name,
            params=[*settings, *execution, *self.own_options],
            callback=self.execute,
            help=text,
            short_help=kind.summary,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        self.typed_words = list(args)
        return super().parse_args(ctx, args)

    def find_typed_tag(self, ctx: click.Context) -> str | None:
        """Return the tag's value in the command, its spec file or its preset: help shows that variant."""
        params, _, _ = self.make_parser(ctx).parse_args(self.typed_words)
        tag = find_variant_tag(self.kind.spec)
        from_file = read_toml(Path(params["spec"])) if "spec" in params else {}
        preset = self.kind.preset(params["preset"]) if "preset" in params else {}
        tags = (values[tag] for values in (params, from_file, preset) if tag in values)
        return next(tags, None)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the main settings, or all with `--help-all`. If the spec has variants, those of the given one."""
        is_complete = ctx.meta.get(HELP_ALL, False)
        tag = find_variant_tag(self.kind.spec)
        value, variants = self.find_typed_tag(ctx) if tag else None, list_variants(self.kind.spec)
        visible_settings, variant_note = list(list_visible_settings(self.kind.spec, value)), ""
        if tag and value in variants:
            variant_note = f" of {format_flag([tag])} {value}"
        elif tag:
            del visible_settings[0]
            variant_note = f" of every {tag}"
            with formatter.section(f"{format_flag([tag])} is required (give one with --help for its settings)"):
                formatter.write_dl(
                    [(name, each.model_fields[tag].description or "") for name, each in variants.items()]
                )
        sections = group_settings(self.kind, visible_settings)
        for title, settings in sections.items() if is_complete else list(sections.items())[:2]:
            write_options(ctx, formatter, title + variant_note, [make_option(setting) for setting in settings])
        if is_complete:
            write_options(ctx, formatter, "Execution options (not part of the run's identity)", self.execution)
        help_option = self.get_help_option(ctx)
        write_options(ctx, formatter, "Options", [*self.own_options, *([help_option] if help_option else [])])
        hidden_count = sum(map(len, list(sections.values())[2:]))
        if not is_complete and hidden_count:
            variant_flag = f" {format_flag([tag])} {value}" if value in variants else ""
            more = "1 more setting" if hidden_count == 1 else f"{hidden_count} more settings"
            counts = f"{more} and {len(self.execution)} execution options"
            formatter.write(f"\n{counts}:\n  {ctx.command_path}{variant_flag} --help-all\n")

    def execute(self, **params: Any) -> None:
        """Run the kind in this process, or print its plan with `--dry-run`."""
        home = click.get_current_context().find_object(Home)
        assert home
        spec, execution, sources = build_run_settings(self.kind, params)
        if params["dry_run"]:
            print_plan(make_plan(home.session(), self.kind, spec, execution, sources), params["json"])
        else:
            execute_run(home, self.kind, spec, execution, tuple(sorted(sources)), params["name"], params["json"])


HELP_ALL = "chessreg.help_all"  # in a context: whether help shows every setting
MAIN_SETTINGS = 10  # that --help shows next to the required ones


def show_help_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Print the help with every setting, then exit."""
    if value and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def group_settings(kind: Kind, settings: Sequence[SettingField]) -> dict[str, list[SettingField]]:
    """Return title → settings: the required ones, at most ten main ones, then the others by their table.

    The main ones are the kind's `main_settings`; without those, the first ten other than seed and replicate.
    """
    required_settings = [setting for setting in settings if setting.is_required]
    optional = [setting for setting in settings if not setting.is_required]
    main_settings = [setting for name in kind.main_settings for setting in optional if setting.path == name]
    main = (main_settings or [setting for setting in optional if setting.path not in ("seed", "replicate")])[
        :MAIN_SETTINGS
    ]
    sections = {"Required settings": required_settings, "Main settings": main}
    for setting in optional:
        if setting not in main:
            table = setting.path.rpartition(".")[0].replace("_", " ").replace(".", " ")
            sections.setdefault(f"{table.capitalize()} settings" if table else "Other settings", []).append(setting)
    return sections


def write_options(
    ctx: click.Context, formatter: click.HelpFormatter, title: str, parameters: Sequence[click.Parameter]
) -> None:
    """Write the help of `parameters` as a section with this title. Without visible parameters, write nothing."""
    if records := [record for parameter in parameters if (record := parameter.get_help_record(ctx))]:
        with formatter.section(title):
            formatter.write_dl(records)


def print_plan(plan: dict[str, Any], as_json: bool) -> None:
    """Print the plan in numbers, then the settings that have an effect: given ones first, with names as typed."""
    if as_json:
        print_output(True, plan)
        return
    from chessreg.runs.kind import find_own_kind

    rows = ", ".join(f"{count:,} in {table}" for table, count in plan["rows"].items()) or "not estimated"
    click.echo(f"{plan['kind']} {plan['run_id'][-6:]}")
    click.echo(f"  units  {plan['units']:,}, of which {plan['missing']:,} are missing")
    click.echo(f"  time   {format_time(plan)}")
    click.echo(f"  rerun  {plan['rerun']}")
    click.echo(f"  rows   {rows}")
    click.echo(f"  bytes  {plan['bytes']:,} in the store")
    settings = plan["settings"]
    flat = flatten_settings({name: setting["name"] or setting["value"] for name, setting in settings.items()})
    if custom_kind := find_own_kind(plan["kind"]):
        flat = name_all_settings(custom_kind.spec, flat)
    sources = {path: plan["sources"].get(path, "default") for path in flat}
    for path in sorted(flat, key=lambda path: sources[path] == "default"):
        if path not in plan["without_effect"]:
            click.echo(f"  {path:<22} {clip_text(format_value(flat[path]), 59):<60} {sources[path]}")
    for remark in plan["remarks"]:
        click.echo(f"  note: {remark}", err=True)


def describe_rerun(kind: Kind, spec: Any) -> str:
    """Return whether a rerun of the spec gives the same rows, and the reason if not."""
    if kind.determinism == "exact":
        return "gives the same rows"
    if kind.replays(spec):
        return "gives the same rows on the same machine with the same number of threads"
    reason = kind.explain_chance(spec)
    return f"may differ by chance{': ' * bool(reason)}{reason}"


def format_time(plan: dict[str, Any]) -> str:
    """Return the expected time of the missing units and its basis."""
    from chessreg.cli.jobs import format_duration
    from chessreg.scheduling.expected_time import describe_busy_cores

    if not plan["missing"]:
        return "none: the run is complete"
    if plan["seconds"] is None:
        return f"not known: kind {plan['kind']} counts no operations and has no earlier run in this registry"
    basis = "; ".join(filter(None, (plan["basis"], describe_busy_cores())))
    return f"about {format_duration(plan['seconds'])}, from {basis}"


def build_run_settings(kind: Kind, params: dict[str, Any]) -> tuple[Any, Any, dict[str, str]]:
    """Return the spec, the execution options, and the source of each value that is not a default, by its dotted
    path."""
    from chessreg.runs.spec import build_settings, merge_settings

    from_file = read_toml(Path(params["spec"])) if params["spec"] else {}
    unknown_names = (
        from_file.keys() - list_setting_names(kind.spec) - kind.options.model_fields.keys() - {"kind", "name"}
    )
    if unknown_names:
        raise BadInputError(f"{params['spec']}: {kind.name} has no setting {', '.join(sorted(unknown_names))}")
    if from_file.get("kind", kind.name) != kind.name:
        raise BadInputError(f"{params['spec']} is a spec of kind {from_file['kind']}, not {kind.name}")
    spec_given, execution_given = collect_given_values(kind.spec, params), collect_given_values(kind.options, params)
    preset = kind.preset(params["preset"]) if params.get("preset") else {}
    sources: dict[str, str] = {}
    for values, source in (
        (preset, f"preset {params.get('preset')}"), (from_file, str(params["spec"])),
        (spec_given | execution_given, "given"),
    ):  # fmt: skip
        sources |= dict.fromkeys(flatten_settings(values), source)
    file_settings = {k: v for k, v in from_file.items() if k in list_setting_names(kind.spec)}
    spec = build_settings(kind.spec, merge_settings(file_settings, spec_given), preset)
    execution = build_settings(
        kind.options,
        merge_settings({k: v for k, v in from_file.items() if k in kind.options.model_fields}, execution_given),
    )
    return spec, execution, sources


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file. Raises NotFoundError or BadInputError."""
    if not path.is_file():
        raise NotFoundError(f"{path} does not exist")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also for bytes that are not UTF-8, and numbers of 5,000 digits
        raise BadInputError(f"{path} is not TOML: {error}") from error


def make_plan(session: Session, kind: Kind, spec: Any, execution: Any, sources: dict[str, str]) -> dict[str, Any]:
    """Return the plan of a run as one JSON object: counts, and each setting's value, typed name and source.

    `seconds` is None if the kind counts no operations and has no earlier run; `basis` names the origin of the time.
    """
    from chessreg.runs.ingest import ingest_fragments
    from chessreg.runs.resolve import describe_kind_change, find_missing_units, require_runnable, resolve_spec
    from chessreg.scheduling.expected_time import estimate_time

    ingest_fragments(session.database, session.store)
    inputs = session.inputs
    resolved_spec: ResolvedSpec = resolve_spec(kind, spec, inputs)
    missing_units = find_missing_units(inputs, resolved_spec)
    if missing_units:
        require_runnable(resolved_spec, execution, inputs)
    estimate = kind.estimate(resolved_spec.spec, inputs)
    time = estimate_time(kind, resolved_spec.spec, estimate, resolved_spec.units, len(missing_units), inputs, execution)
    typed_values, resolved_values = spec.model_dump(mode="json"), resolved_spec.spec.model_dump(mode="json")
    return {
        "run_id": resolved_spec.run_id.hex,
        "kind": kind.name,
        "spec_hash": resolved_spec.spec_hash,
        "units": resolved_spec.units,
        "missing": len(missing_units),
        "seconds": time.seconds,
        "like": time.attempts,
        "basis": time.basis,
        "rows": dict(estimate.rows),
        "bytes": estimate.bytes,
        "determinism": kind.determinism,
        "rerun": describe_rerun(kind, spec),
        "settings": {
            name: {
                "value": value,
                "name": typed_values[name] if typed_values.get(name) and typed_values[name] != value else None,
                "source": next((sources[path] for path in sources if path.partition(".")[0] == name), "default"),
            }
            for name, value in (resolved_values | execution.model_dump(mode="json")).items()
        },
        "sources": sources,
        "without_effect": resolved_spec.spec.without_effect(),
        "remarks": [
            *describe_kind_change(session.database, kind, resolved_spec.run_id),
            *inputs.remarks,
            *estimate.remarks,
        ],
    }


def resume_run(home: Home, reference: str) -> None:
    """Resume a run from its recorded spec, with the execution options of its newest attempt."""
    kind, spec, explicit_names = read_recorded_run(home, reference)
    execute_run(home, kind, spec, read_last_options(home, kind, reference), explicit_names, None, False)


MACHINE_OPTIONS = {"device", "devices", "threads"}  # a run may be resumed on another machine


def read_last_options(home: Home, kind: Kind, reference: str) -> Any:
    """Return the execution options of a run's newest attempt, with defaults for MACHINE_OPTIONS."""
    from sqlalchemy import select

    from chessreg.registry.tables import Attempt

    session = home.session()
    newest_attempt = select(Attempt.execution_options).where(Attempt.run_id == session.id("run", reference))
    with session.database.read() as sql:
        options = sql.scalar(newest_attempt.order_by(Attempt.started_at.desc(), Attempt.id.desc()).limit(1)) or {}
    names = kind.options.model_fields.keys() - MACHINE_OPTIONS
    return parse_settings(kind.options, {name: value for name, value in options.items() if name in names})


def read_recorded_run(home: Home, reference: str) -> tuple[Kind, Any, tuple[str, ...]]:
    """Return the recorded kind, spec and given settings of a run."""
    from chessreg.registry import tables
    from chessreg.runs.kind import find_kind_of_record

    session = home.session()
    run_id = session.id("run", reference)
    with session.database.read() as sql:
        record = sql.get(tables.Run, run_id)
        if record is None:  # named when it was launched, and not begun yet
            raise NotFoundError(f"run {reference} has not begun", f"chessreg jobs {reference}")
        kind = find_kind_of_record(sql.get_one(tables.KindRecord, (record.kind, record.version)))
        spec_values, explicit_names = record.spec, tuple(record.explicit)
    return kind, parse_settings(kind.spec, spec_values), explicit_names


def execute_run(
    home: Home, kind: Kind, spec: Any, execution: Any, explicit: tuple[str, ...], name: str | None, as_json: bool
) -> None:
    """Run `spec` of `kind` with a progress line, then print the run's state (as JSON with `as_json`).

    `execution` are the execution options, `explicit` the paths of the settings that the user gave, and `name` the run's
    name.
    """
    from chessreg.cli.base import show_progress_line
    from chessreg.runs.inputs import FILE_NOUNS, list_user_files
    from chessreg.runs.resolve import iter_named_inputs
    from chessreg.runs.unfinished import list_states

    references = [(noun, reference) for _, noun, reference in iter_named_inputs(spec)]
    session = home.open_for_adding(
        needs=[reference for noun, reference in references if noun not in FILE_NOUNS],
        check=lambda: [list_user_files(noun, path) for noun, path in references if noun in FILE_NOUNS],
    )
    with show_progress_line(kind.name, quiet=as_json) as on_progress:
        report = session.run(spec, execution, kind=kind, name=name, explicit=explicit, on_progress=on_progress)
    record = {
        "run_id": report.run_id.hex,
        "kind": report.kind,
        "state": report.state,
        "units": report.units,
        "done": report.units - report.missing,
        "done_now": report.missing_before - report.missing,
        "name": name,
    }
    short_id = report.run_id.hex[-6:]
    if as_json:
        print_output(True, record)
    elif report.attempt_id is None:
        click.echo(
            f"{kind.name} {short_id} is complete already ({format_count(report.units, 'unit')}); nothing to do",
            err=True,
        )
        click.echo(short_id)
    elif report.state == "complete":
        click.echo(f"{kind.name} {short_id} complete: {format_count(report.units, 'unit')}", err=True)
        queries = kind.select_queries(spec) or list_query_titles(kind)
        if kind.next_command:
            click.echo(f"  chessreg {kind.next_command} {shlex.quote(name or short_id)}", err=True)
        for query in queries[:MOST_NAMED_QUERIES]:
            click.echo(f'  chessreg query "{query}"', err=True)
        if len(queries) > MOST_NAMED_QUERIES:
            more = len(queries) - MOST_NAMED_QUERIES
            click.echo(f"  chessreg query --list  # {more} more tables of {kind.name} runs", err=True)
        click.echo(short_id)
    if report.interrupted:
        note = ""
        with suppress(RegistryError):  # one that does not answer
            if list_states(session.database, session.store, report.run_id):
                note = ", and the saved state of the others"
        if getattr(execution, "parallel_games", 1) > 1:
            note += " (whole games; those in play begin again, and fewer are lost with a smaller --parallel-games)"
        click.echo(
            f"interrupted: {report.units - report.missing} of {report.units} units are kept{note}; "
            f"chessreg run --resume {short_id}",
            err=True,
        )
        sys.exit(130)
    if report.missing:
        sys.exit(1)


MOST_NAMED_QUERIES = 3  # that a completed run prints


def list_query_titles(kind: Kind) -> list[str]:
    """Return the titles of the queries whose header names this kind, those of fewest kinds first."""
    from chessreg.queries.catalogue import list_entries
    from chessreg.runs.kind import is_importable

    files = () if is_importable(type(kind).__module__) else (Path(inspect.getfile(type(kind))),)
    entries = sorted(list_entries(files), key=lambda entry: len(entry.kinds))
    return [entry.title for entry in entries if kind.name in entry.kinds]


REMOVED_SETTING = object()
"""The value of an optional number given as `none`, which removes a preset's number."""


class OrNone(click.ParamType):
    """A number, or one of the `empty_words`, such as `none`."""

    def __init__(self, item: type, empty_words: Sequence[str]) -> None:
        self.item, self.empty_words = click.types.convert_type(item), empty_words
        self.name = self.item.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return (
            REMOVED_SETTING if str(value).strip().lower() in self.empty_words else self.item.convert(value, param, ctx)
        )


def build_options(model: Any) -> list[click.Option]:
    """Return an option for every setting, without a click default, to distinguish given from default values."""
    return [make_option(setting) for setting in describe_settings(model)]


def make_option(setting: SettingField) -> click.Option:
    """Return the click option of a setting of a spec."""
    names, text = [setting.flag, name_parameter(setting.path)], f"{setting.text}{format_default(setting)}"
    if setting.form == "yes or no":
        names[0] = f"{setting.flag}/--no-{setting.flag[2:]}"
        return click.Option(names, default=None, help=text)
    kind: Any = setting.type
    if setting.form == "choice":
        kind = click.Choice(setting.choices)
    elif setting.is_list:
        kind = Numbers(setting.type, setting.is_required, setting.empty_words)
    elif setting.optional and setting.type in (int, float):
        kind = OrNone(setting.type, setting.empty_words)
    metavar = setting.noun.removeprefix("run:").upper() or None
    return click.Option(names, type=kind, default=None, help=text, metavar=metavar)


def format_default(setting: SettingField) -> str:
    """Return `[required]` or `[default: …]`; empty without a default, which the setting's text explains."""
    if setting.is_required:
        return "  [required]"
    if setting.shown_default in ("", "none") or setting.is_all(setting.default):
        return ""
    return f"  [default: {setting.default if isinstance(setting.default, bool) else setting.shown_default}]"


def name_parameter(path: str) -> str:
    """Return click's name for the option of a setting's path."""
    return path.replace(".", "_").replace("-", "_").lower()


def collect_given_values(model: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return the values given on the command line, nested as the model is."""
    values = ((setting.path, params.get(name_parameter(setting.path))) for setting in describe_settings(model))
    return nest_settings(
        {path: None if value is REMOVED_SETTING else value for path, value in values if value is not None}
    )


@click.command()
@click.argument("reference", metavar="FILE|DIGEST", required=False)
@click.option("--list", "list_", is_flag=True, help="List the trusted files.")
@click.option(
    "--revoke", "remove", metavar="FILE|DIGEST", help="Stop trusting this file or digest. Left out: trust FILE."
)
@add_json_option
@pass_home
def trust(home: Home, reference: str | None, list_: bool, remove: str | None) -> None:
    """Trust a file with a kind of experiment or with Slurm profiles, so that chessreg loads it.

    Both contain code. Naming a kind (`chessreg run ./my_kind.py`) trusts it. A kind that only a registry names, or a
    profiles.toml outside your settings folder, is loaded only after you have read and trusted it. Trust applies to the
    file's bytes (SHA-256), to you, and to this machine; a changed file must be trusted again. It is stored in your
    settings folder.

    \b
    Example: chessreg trust ./my_kind.py
             chessreg trust .chessreg/profiles.toml
             chessreg trust --list
             chessreg trust --revoke ./my_kind.py
    """
    from chessreg.runs import trust as trusts

    if sum((reference is not None, list_, remove is not None)) != 1:
        raise click.UsageError("give a FILE or a DIGEST, or --list, or --revoke")
    if list_:
        print_output(home, [asdict(row) for row in trusts.list_trusted()], ["digest", "path", "since"])
    elif remove is not None:
        was_removed = trusts.revoke_trust(remove)
        print_output(home, [asdict(row) for row in was_removed], ["digest", "path", "since"])
    elif reference is not None:
        print_output(home, asdict(trusts.trust_reference(reference)))
