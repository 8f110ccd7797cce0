"""`chessreg import results`: games and aggregates that others published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import Home, emit, json_option, pass_home

if TYPE_CHECKING:
    from chessreg.runs.spec import Spec

COUNTS = ["run", "format", "rows", "games", "aggregates"]


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--name", help="What to call the import's run.")
@click.option("--format", "format_", metavar="NAME", help="chess_gpt_eval, pgn or grid-search.  [default: by content]")
@click.option(
    "--player", multiple=True, metavar="NAME", help="Whose results the games are; several: most wanted first."
)
@click.option("--checkpoint", metavar="CHECKPOINT", help="The checkpoint of this registry that the model is.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Another name for a player.")
@click.option("--engine-version", help="The engines' version, which no such file tells.")
@click.option("--limit", metavar="LIMIT", help="An engine's limit where the file tells none, such as time=0.1.")
@click.option("--opening", metavar="OPENING", help="standard or random:PLIES, which no such file tells.")
@click.option("--policy", help="How the model's moves were chosen.  [default: as the format's program does]")
@click.option("--adjudication", metavar="LIMIT", help="Let Stockfish evaluate stopped games, such as nodes=100000.")
@click.option("--move-limit", type=click.IntRange(1), help="Full moves after which games were stopped.")
@json_option
@pass_home
def results(home: Home, file: Path, name: str | None, format_: str | None, **settings: Any) -> None:
    """Import results that others published: a CSV of chess_gpt_eval, a tournament's PGN, or a grid search's means.

    Every game is replayed and compared with what its row says. What does not fit is listed, and nothing is dropped in
    silence. The same bytes are recognised.

    \b
    Example: chessreg import results games.csv --name gpt-3.5 --limit time=0.1
    """
    from chessreg.cli.progress import progress_line
    from chessreg.experiments.imported.file import ImportHow, report_of
    from chessreg.experiments.imported.players import name_externals

    spec = spec_of(file, format_, {key: value for key, value in settings.items() if value})
    session = home.session()
    with progress_line("import results", quiet=home.json) as on_progress:
        done = session.run(spec, ImportHow(source=file.name), name=name, on_progress=on_progress)
    if done.missing:
        click.echo(f"interrupted: chessreg import results {file} goes on with it", err=True)
        click.get_current_context().exit(130)
    name_externals(session.database, done.run_id)
    created = done.attempt_id is not None
    report = report_of(session.inputs, done.run_id)
    called = session_name(home, done.run_id)
    if not created:
        click.echo(f"these bytes are run {called} already; nothing was added", err=True)
    if home.json:
        emit(home, {"run_id": done.run_id.hex, "name": called, "kind": done.kind, "created": created, **report})
        return
    tell({"run": called, **report})


def spec_of(file: Path, format_: str | None, given: dict[str, Any]) -> Spec:
    """The spec of the import of this file. Raises for a file or format that there is not, and a setting that does not
    fit."""
    from chessreg.errors import BadInputError
    from chessreg.experiments.imported.aggregates import ImportedAggregatesSpec
    from chessreg.experiments.imported.games import ImportedGamesSpec
    from chessreg.games.foreign import FORMATS, find_format
    from chessreg.runs.settings import build

    found = FORMATS[format_] if format_ else find_format(file)
    model = ImportedGamesSpec if found.holds == "games" else ImportedAggregatesSpec
    if unknown := given.keys() - model.model_fields.keys():
        flag = f"--{min(unknown).replace('_', '-')}"
        raise BadInputError(f"{flag} does not apply to a {found.name} file: it holds no games")
    spec: Spec = build(model, {"file": str(file), "format": found.name, **given})
    return spec


def session_name(home: Home, run_id: Any) -> str:
    """The run's name, or its short id."""
    from chessreg.registry.names import name_of

    with home.session().database.read() as session:
        return name_of(session, "run", run_id) or run_id.hex[-6:]


def tell(report: dict[str, Any]) -> None:
    """The report for people: counts on stdout, then what does not fit."""
    emit(False, {key: report[key] for key in COUNTS if key in report})
    for title in ("results", "terminations", "models", "metrics"):
        if report.get(title):
            click.echo(f"{title}: " + ", ".join(f"{count} {key}" for key, count in report[title].items()))
    if report["oddities"]:
        click.echo("\noddities")
        shown = [{**odd, "rows": some(odd["rows"]), "for example": odd["texts"][0]} for odd in report["oddities"]]
        emit(False, shown, ["code", "count", "rows", "for example"])
    if report["rejected"]:
        click.echo("\nrows without a game")
        emit(False, report["rejected"], ["row", "reason"])
    if not report["oddities"] and not report["rejected"]:
        click.echo("no oddities")


def some(rows: list[int]) -> str:
    """Row numbers, shortened."""
    listed = ", ".join(map(str, rows[:6]))
    return listed if len(rows) <= 6 else f"{listed}, …"
