"""`chessreg board`: a position of a game or an experiment, as text, SVG or PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chessreg.cli.base import Home, emit, fresh, json_option, pass_home
from chessreg.errors import BadInputError

if TYPE_CHECKING:
    from chessreg.games.boardframe import BoardFrame

FEW = 4  # so many boards are all shown where no ply is given


@click.command()
@click.argument("reference", metavar="GAME")
@click.option("--ply", type=int, help="Which board: 0 is the start, -1 the last.  [default: the last; all where few]")
@click.option("--item", type=int, help="Of a unit with many rows (a probe's layer): the game's row in its dataset.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture instead (one board).")
@click.option("--png", type=click.Path(dir_okay=False, path_type=Path), help="The same picture as PNG.")
@json_option
@pass_home
def board(home: Home, reference: str, ply: int | None, item: int | None, svg: Path | None, png: Path | None) -> None:
    """Draw the boards behind GAME, which is RUN:UNIT: a game's position, an edit's two boards, a probe's reading.

    GAME may also be DATASET:NUMBER, a game or position of a dataset by its row.

    \b
    chessreg board plain:12 --ply 30
    chessreg board plain:12 --ply -1 --svg end.svg
    chessreg board edits:7
    chessreg board sample:40 --ply 12
    chessreg board edits:7 --ply 1 --png after.png
    """
    from chessreg.games.picture import render_svg, render_text

    fresh(home)
    frames = picked(frames_behind(home, reference, item), ply, reference)
    if svg is not None:
        write(svg, render_svg(frames[-1]))
        click.echo(f"{svg}: {frames[-1].title}", err=True)
    if png is not None:
        from chessreg.games.picture import save_frame

        save_frame(frames[-1], png)
        click.echo(f"{png}: {frames[-1].title}", err=True)
    if home.json:
        emit(home, as_object(frames, svg, png))
    elif svg is None and png is None:
        click.echo("\n".join(render_text(frame) for frame in frames), nl=False)


def frames_behind(home: Home, reference: str, item: int | None) -> list[BoardFrame]:
    """The boards of RUN:UNIT, or of DATASET:NUMBER where no run is called so."""
    from chessreg.entities import dataset as datasets
    from chessreg.entities import run as runs
    from chessreg.entities.game import unit_reference
    from chessreg.errors import NotFoundError
    from chessreg.registry import names

    session = home.session()
    with session.database.read() as sql:
        try:
            run_id, unit = unit_reference(sql, reference)
        except NotFoundError as no_run:
            dataset, _, number = reference.replace("/", ":").rpartition(":")
            try:
                names.resolve(sql, "dataset", dataset)
            except NotFoundError:
                raise no_run from None
            return datasets.board_views(session.inputs, dataset, int(number))
    return runs.board_views(session.inputs, run_id, unit, item)


def picked(frames: list[BoardFrame], ply: int | None, reference: str) -> list[BoardFrame]:
    """The frames that are meant. Raises BadInputError for a ply that there is not."""
    if ply is None:
        return frames if len(frames) <= FEW else frames[-1:]
    if not -len(frames) <= ply < len(frames):
        raise BadInputError(f"{reference} has no ply {ply}", f"its boards are 0 to {len(frames) - 1}")
    return [frames[ply]]


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInputError(f"cannot write {path}: {error.strerror}") from error


def as_object(frames: list[BoardFrame], svg: Path | None, png: Path | None = None) -> dict[str, object]:
    """The boards as one JSON object."""
    boards = [
        {
            "title": frame.title,
            "fen": frame.fen,
            "last_move": frame.last_move,
            "marks": {str(square): mark for square, mark in frame.marks.items()},
            "heat": None if frame.heat is None else {str(square): value for square, value in frame.heat.items()},
            "caption": frame.caption,
        }
        for frame in frames
    ]
    return {"boards": boards, "svg": str(svg) if svg else None, "png": str(png) if png else None}
