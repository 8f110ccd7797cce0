"""`chessreg board` and `chessreg heatmap`: positions and a probe's readings as text or pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chessreg.cli.base import (
    STDOUT,
    FilePath,
    Home,
    add_json_option,
    open_with_waiting_results,
    pass_home,
    print_output,
)
from chessreg.errors import BadInputError, report_write_errors
from chessreg.terminal import wrap_data_stream
from store.files import write_whole

if TYPE_CHECKING:
    from chessreg.experiments.edit.heat import Measure, ProbeReadings
    from chessreg.games.boards.boardframe import BoardFrame


MAX_BOARDS = 4  # shown without --ply


@click.command()
@click.argument("reference", metavar="GAME")
@click.option(
    "--ply",
    type=int,
    help="Ply of the board: 0 is the start, -1 the end.  [default: the last; all boards if there are at most 4]",
)
@click.option(
    "--item",
    type=int,
    help="The game's row in its dataset, for a unit with many rows (a probe's layer). Left out: the first row.",
)
@click.option("--condition", help="Condition of an edit: edit-3, random-0, …  [default: the first edit]")
@click.option(
    "--svg",
    type=FilePath(dir_okay=False, allow_dash=True, path_type=Path),
    help="Write the board as an SVG file; - is stdout. Left out: print it.",
)
@click.option(
    "--png", type=FilePath(dir_okay=False, path_type=Path), help="Write the board as a PNG file. Left out: print it."
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["fen", "pgn", "lichess"]),
    help="Print the position as FEN, its game as PGN, or a link to Lichess's analysis. Left out: draw the board.",
)
@click.option(
    "--evaluate",
    metavar="LIMIT",
    help="Evaluate the boards with Stockfish: nodes=N, depth=N or time=S. Left out: no evaluation.",
)
@add_json_option
@pass_home
def board(
    home: Home,
    reference: str,
    ply: int | None,
    item: int | None,
    condition: str | None,
    svg: Path | None,
    png: Path | None,
    form: str | None,
    evaluate: str | None,
) -> None:
    """Draw the boards behind GAME, which is RUN:UNIT: a game's position, an edit's two boards, a probe's reading.

    GAME may also be DATASET:NUMBER, a game or position of a dataset by its row. RUN alone means its first unit, of
    edits the first one that was not skipped. DATASET alone means its first row.

    \b
    chessreg board plain:12 --ply 30
    chessreg board plain:12 --ply -1 --svg end.svg
    chessreg board edits
    chessreg board edits:7
    chessreg board sample:40 --ply 12
    chessreg board edits:7 --ply 1 --png after.png
    chessreg board plain:12 --ply 30 --as lichess
    chessreg board plain:12 --ply 30 --evaluate nodes=10000
    """
    from chessreg.entities.boards import read_board_views
    from chessreg.games.boards.picture import render_svg, render_text

    open_with_waiting_results(home)
    views = choose_frames(read_board_views(home.session().inputs, reference, item, condition), ply, reference)
    if evaluate is not None:
        views = evaluate_boards(views, evaluate)
    if form is not None:
        if home.json:
            raise BadInputError("--json has the position and its FEN", "leave out --as, or --json")
        frame = views[-1]
        if not frame.position:
            click.echo("the side to move is unknown: White is assumed", err=True)
        texts = {"fen": frame.whole_fen, "pgn": frame.pgn.strip(), "lichess": frame.lichess}
        click.echo(texts[form], file=wrap_data_stream(sys.stdout))
        return
    if svg == STDOUT:
        if home.json:
            raise BadInputError("--json prints on stdout too", "name a file instead of -")
        click.echo(render_svg(views[-1]), file=wrap_data_stream(sys.stdout))
    elif svg is not None:
        write_picture(svg, render_svg(views[-1]))
        click.echo(f"{svg}: {views[-1].title}", err=True)
    if png is not None:
        from chessreg.games.boards.picture import save_frame

        save_frame(views[-1], png)
        click.echo(f"{png}: {views[-1].title}", err=True)
    if home.json:
        print_output(home, describe_boards(views, svg, png))
    elif svg is None and png is None:
        click.echo("\n".join(render_text(frame) for frame in views), nl=False)


def evaluate_boards(views: list[BoardFrame], limit: str) -> list[BoardFrame]:
    """Return the boards with Stockfish's evaluation. Raises BadInputError if a position is incomplete."""
    from dataclasses import replace

    from chessreg.games.engines.opponents import parse_engine, parse_limit
    from chessreg.games.engines.pool import EnginePool

    search = parse_limit(limit)
    if not all(frame.position for frame in views):
        raise BadInputError("the side to move on these boards is unknown", "evaluate a game or a position")
    with EnginePool(parse_engine("stockfish:20"), is_timed=search.kind == "time") as pool:
        evaluations = pool.evaluations((frame.position for frame in views), search)
        return [replace(frame, evaluation=value) for frame, value in zip(views, evaluations, strict=True)]


def choose_frames(views: list[BoardFrame], ply: int | None, reference: str) -> list[BoardFrame]:
    """Return the frames to print: those at `ply`, or if it is None all of them, but of more than MAX_BOARDS only the
    last. Raises BadInputError for a ply without a board."""
    from chessreg.games.boards.boardframe import find_ply

    if ply is None:
        return views if len(views) <= MAX_BOARDS else views[-1:]
    return find_ply(views, ply, reference)


def write_picture(path: Path, text: str) -> None:
    with report_write_errors(path):
        write_whole(path, text.encode())


def describe_boards(views: list[BoardFrame], svg: Path | None, png: Path | None = None) -> dict[str, object]:
    """Return the boards and the paths of their pictures, None if not written, as one JSON object."""
    boards = [
        {
            "title": frame.title,
            "fen": frame.fen,
            "last_move": frame.last_move,
            "marks": {str(square): mark for square, mark in frame.marks.items()},
            "heat": None if frame.heat is None else {str(square): value for square, value in frame.heat.items()},
            "caption": frame.caption,
            "arrows": [arrow._asdict() for arrow in frame.arrows],
            "read": {str(square): reading._asdict() for square, reading in frame.read.items()},
            "evaluation": frame.evaluation,
            "position": frame.position or None,
        }
        for frame in views
    ]
    return {"boards": boards, "svg": str(svg) if svg else None, "png": str(png) if png else None}


FILES = "abcdefgh"


@click.command()
@click.argument("reference", metavar="STATE")
@click.option(
    "--class",
    "piece",
    metavar="LETTER",
    help="Piece class: P white pawn, k black king, . empty.  [default: the moved one]",
)
@click.option("--layer", type=int, help="Layer of the probe, 0-based.  [default: the last edited one]")
@click.option("--condition", help="edit, edit-3, random-0, …  [default: the first edit]")
@click.option(
    "--measure",
    type=click.Choice(["probability", "logprob", "logit"]),
    default="logprob",
    show_default=True,
    help="Value to draw, from the probe's logits.",
)
@click.option(
    "--clip",
    type=click.FloatRange(min=0, min_open=True),
    help="Clip values at this magnitude.  [default: 5; for --form reading: 2]",
)
@click.option(
    "--form",
    type=click.Choice(["edit", "reading"]),
    default="edit",
    show_default=True,
    help="edit: before and after (Karvonen Figure 5); reading: truth, clipped, continuous (Figure 1).",
)
@click.option(
    "--output",
    "-o",
    type=FilePath(dir_okay=False, path_type=Path),
    help="File to write, .svg or .png. Left out: print the numbers.",
)
@add_json_option
@pass_home
def heatmap(
    home: Home,
    reference: str,
    piece: str | None,
    layer: int | None,
    condition: str | None,
    measure: Measure,
    clip: float | None,
    form: str,
    output: Path | None,
) -> None:
    """Draw a probe's readings at the start of a move, in the clean and in the edited model.

    STATE is RUN:UNIT of an edit run, or RUN for its first edited state. Without --output the numbers are printed.

    \b
    chessreg heatmap edits:7 --output figure5.svg
    chessreg heatmap edits:7 --form reading --class P --output figure1.png
    chessreg heatmap edits:7 --class N --layer 3 --condition random-0
    """
    from chessreg.entities.boards import resolve_unit
    from chessreg.experiments.edit import heat
    from chessreg.games.boards.picture import check_picture_suffix, save_heatmaps

    open_with_waiting_results(home)
    session = home.session()
    if output is not None:
        check_picture_suffix(output)
    if home.json and output is not None:
        raise BadInputError("--json prints numbers, --output draws them", "give one of them")
    with session.database.read() as sql:
        run_id, unit = resolve_unit(sql, session.inputs, reference)
    readings = heat.load_readings(session.inputs, run_id, unit, condition, layer)
    label = readings.label if piece is None else heat.parse_piece_class(piece)
    if home.json:
        print_output(home, describe_heat(readings, label, measure))
    elif output is None:
        click.echo(format_heat(readings, label, measure), nl=False)
    else:
        title = f"{reference}, layer {readings.layer}, {readings.condition}: {readings.original.fen()}"
        if form == "edit":
            save_heatmaps(heat.build_edit_panels(readings, label, measure, clip or 5.0), output, title)
        else:
            save_heatmaps(heat.build_reading_panels(readings, label, measure, clip or 2.0), output, title, columns=3)
        click.echo(f"{output}: class {heat.PIECE_CLASSES[label]} at layer {readings.layer}", err=True)


def describe_heat(readings: ProbeReadings, label: int, measure: Measure) -> dict[str, Any]:
    """Return the numbers of both boards by square, a1 first."""
    from chessreg.experiments.edit.heat import PIECE_CLASSES

    return {
        "fen": readings.original.fen(),
        "class": PIECE_CLASSES[label],
        "square": readings.square,
        "layer": readings.layer,
        "condition": readings.condition,
        "measure": measure,
        "clean": readings.values("clean", label, measure).tolist(),
        "edited": readings.values("edited", label, measure).tolist(),
    }


def format_heat(readings: ProbeReadings, label: int, measure: Measure) -> str:
    """Return the numbers of both boards as text, rank 8 on top."""
    from chessreg.experiments.edit.heat import MODEL_SIDES

    lines = []
    for side_name in MODEL_SIDES:
        values = readings.values(side_name, label, measure)
        lines.append(f"{side_name} model, layer {readings.layer}, {measure}")
        for rank in range(7, -1, -1):
            lines.append(f"{rank + 1} " + " ".join(f"{values[rank * 8 + file]:z7.2f}" for file in range(8)))
        lines.append("  " + " ".join(f"{name:>7}" for name in FILES))
    return "\n".join(lines) + "\n"
