"""`chessreg game`: games that a model played."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click

from chessreg.cli.base import (
    STDOUT,
    FilePath,
    Group,
    Home,
    add_json_option,
    add_last_option,
    add_sort_option,
    open_with_waiting_results,
    pass_home,
    print_output,
    show_progress_line,
)
from chessreg.errors import BadInputError
from chessreg.named import format_count
from chessreg.rows import sort_listed_rows
from chessreg.terminal import wrap_data_stream

if TYPE_CHECKING:
    from chessreg.games.boards.pgn import GameRecord
    from chessreg.registry.database import Database

LIST_HEADINGS = {
    "run_id": "run", "name": "name", "unit": "game", "player": "model", "color": "color", "opponent": "opponent",
    "opening": "opening", "result": "result", "termination": "termination", "plies": "plies", "turns": "turns",
    "first_try_legal": "legal at once",
}  # fmt: skip


@click.group(cls=Group)
def game() -> None:
    """Games that a model played: list, show, export. `chessreg run play` makes them."""


@game.command("list")
@click.option("--run", metavar="RUN", help="List only the results of this run. Left out: of all runs.")
@add_last_option(default=100)
@add_sort_option
@add_json_option
@pass_home
def list_(home: Home, run: str | None, last: int, sort: str | None) -> None:
    """List games, newest last.

    Legal first tries are not shown for the policies legal and trie, which only choose legal moves.

    \b
    chessreg game list --run plain
    chessreg game list --run plain --sort -plies
    """
    from chessreg.entities.game import list_stored_games
    from chessreg.registry import names
    from chessreg.registry.measures import MASKED_POLICIES

    with open_with_waiting_results(home).read() as session:
        run_id = names.resolve_id(session, "run", run) if run else None
        rows = list_stored_games(session, run_id, last or None)
    if not home.json:
        rows = [{**row, "first_try_legal": None if row["policy"] in MASKED_POLICIES else row["first_try_legal"]}
                for row in rows]  # fmt: skip
    print_output(home, sort_listed_rows(rows, sort, LIST_HEADINGS), LIST_HEADINGS)


@game.command()
@click.argument("reference", metavar="GAME")
@click.argument("unit", required=False)
@add_json_option
@pass_home
def show(home: Home, reference: str, unit: str | None) -> None:
    """Show one game, RUN:UNIT or RUN UNIT: as PGN, or with --json in full.

    \b
    Example: chessreg game show plain:12
    """
    from chessreg.entities.game import build_full_record, parse_unit_reference, read_stored_games
    from chessreg.games.boards.pgn import format_game

    database = open_with_waiting_results(home)
    with database.read() as session:
        key = parse_unit_reference(session, reference if unit is None else f"{reference}:{unit}")
    stored_game = next(read_stored_games(database, [key]))
    if home.json:
        print_output(home, build_full_record(stored_game))
    else:
        click.echo(format_game(stored_game.record()), nl=False, file=wrap_data_stream(sys.stdout))


PARTNERS = {"name": "run", "unit": "game", "arm": "arm", "plies": "plies", "parts": "plies alike", "moves": "then"}


@game.command()
@click.argument("reference", metavar="GAME")
@click.argument("other", metavar="[GAME]", required=False)
@add_json_option
@pass_home
def part(home: Home, reference: str, other: str | None) -> None:
    """Show the first move at which a game differs from another one.

    Without a second GAME, it is compared with the games of other arms that have the same opening. Arms have the same
    opponent, policy and color of the model.

    \b
    chessreg game part plain:12
    chessreg game part plain:12 steered:12
    """
    from chessreg.entities.game import find_partners, parse_unit_reference, read_game_pair
    from chessreg.registry import names
    from chessreg.registry.identity import shorten_id

    with open_with_waiting_results(home).read() as session:
        run_id, unit = parse_unit_reference(session, reference)
        partner_rows = find_partners(session, run_id, unit) if other is None else []
        keys = [(p.run_id, p.unit) for p in partner_rows] if other is None else [parse_unit_reference(session, other)]
        run_names = names.read_names_of(session, "run", {key[0] for key in keys})
    arms = {(partner.run_id, partner.unit): partner.arm for partner in partner_rows}
    rows = []
    for key in keys:
        pair = read_game_pair(home.session().database, (run_id, unit), key)
        name = run_names.get(key[0]) or shorten_id(key[0])
        rows.append({"run": key[0].hex, "name": name, "unit": key[1], "arm": arms.get(key, ""), **pair.as_row()})
    if not rows and not home.json:
        click.echo("no other arm played this opening against the same opponent with the same policy", err=True)
        return
    print_output(home, rows, PARTNERS)


@game.command()
@click.argument("source", metavar="RUN|QUERY")
@click.option(
    "--pgn",
    type=FilePath(dir_okay=False, allow_dash=True, path_type=Path),
    required=True,
    help="File to write; - is stdout. A path that ends in .zst is compressed.",
)
@click.option(
    "--row",
    type=click.IntRange(min=1),
    help="Export the games behind this row of the query's table. Left out: the games of all rows.",
)
@click.option(
    "--probabilities",
    is_flag=True,
    help="Run the model again, and write its probabilities as a comment after each of its moves.",
)
@add_json_option
@pass_home
def export(home: Home, source: str, pgn: Path, row: int | None, probabilities: bool) -> None:
    """Write the games of a run, or behind a query's rows, as PGN.

    Headers name model, intervention, engine, limit, opening and seeds; illegal tries and adjudication are comments.

    With --probabilities a comment such as `p=0.2710 legal=0.9954 best=Nf3 0.4312` gives the probability of the move
    among the legal moves, that of all legal moves, and the most probable move if another was played.

    \b
    chessreg game export plain --pgn plain.pgn
    chessreg game export plain --probabilities --pgn commented.pgn
    chessreg game export "elo by intervention" --row 2 --pgn second.pgn
    """
    from chessreg.entities.game import read_stored_games
    from chessreg.games.boards.pgn import save_pgn, write_pgn

    if pgn == STDOUT and home.json:
        raise BadInputError("--json prints on stdout too", "name a file instead of -")

    def save(records: Iterable[GameRecord | str]) -> int:
        if pgn != STDOUT:
            return save_pgn(records, pgn)
        return write_pgn(records, wrap_data_stream(sys.stdout).write)

    database = open_with_waiting_results(home)
    keys = choose_games(database, source, row)
    games = read_stored_games(database, keys)
    if probabilities:
        from chessreg.lab.annotate import annotate_games

        with show_progress_line("games", home.json) as report:

            def report_games(done_games: float) -> None:
                report(done_games / len(keys), f"{int(done_games):,} of {len(keys):,}")

            count = save(annotate_games(home.session().inputs, games, on_progress=report_games))
    else:
        count = save(stored_game.record() for stored_game in games)
    if home.json:
        print_output(home, {"path": str(pgn), "games": count})
    else:
        click.echo(f"{'stdout' if pgn == STDOUT else pgn}: {format_count(count, 'game')}", err=True)


def choose_games(database: Database, source: str, row: int | None) -> list[tuple[UUID, int]]:
    """Return the keys of the games of a run or query; a run's name is tried first."""
    from chessreg.entities.game import list_game_keys
    from chessreg.errors import NotFoundError
    from chessreg.registry import names

    if row is None:
        try:
            with database.read() as session:
                run_id = names.resolve_id(session, "run", source)
        except NotFoundError as not_found:
            no_run = not_found
        else:
            return list_game_keys(database, run_id)
    from chessreg.queries.ask import query_rows_behind, run_query

    try:
        rows = range(1, len(run_query(database, source)) + 1) if row is None else [row]
    except NotFoundError as error:
        if row is None and " " not in source:
            raise no_run from error
        raise
    behind = [decision for number in rows for decision in query_rows_behind(database, source, number).rows]
    if behind and not {"run_id", "unit", "termination"} <= behind[0].keys():
        raise BadInputError(f"{source!r} has no games", 'chessreg game export "elo by intervention" --pgn FILE')
    keys = dict.fromkeys((UUID(str(decision["run_id"])), int(decision["unit"])) for decision in behind)
    if not keys:
        raise NotFoundError(f"{source!r} has no games yet", "chessreg run play --help")
    return list(keys)
