"""`chessreg demo`: the main job from real games to tables, as the commands a user would type."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass

import click

from chessreg.cli.base import Home, pass_home


@dataclass(frozen=True)
class Size:
    """How much of everything the demo does."""

    fit_games: int
    test_games: int
    edit_games: int
    match_games: int


SIZES = {"full": Size(1200, 400, 450, 60), "small": Size(40, 20, 8, 2)}
OPPONENT = "random"


def commands(size: Size) -> list[tuple[str, list[str]]]:
    """What is done, and the commands that do it."""
    model = "--checkpoint reference"
    play = f"run play {model} --opponent {OPPONENT} --games {size.match_games} --policy legal --opening random:6"
    return [
        (
            "Games: 5,000 of Stockfish against itself, split so that no move list is in two parts",
            [
                "dataset add --sample --name sample",
                "dataset split sample --parts fit=0.6,test=0.4",
            ],
        ),
        (
            "A model that learned chess from Lichess games, and one of the same shape that learned nothing",
            [
                "import checkpoint --reference --name reference",
                "checkpoint twin reference --name untrained --seed 0",
            ],
        ),
        (
            "Its residual stream wherever White is to move, all layers in one pass",
            [
                f"run cache {who} --dataset sample:{part} --games {games} --last 33 --name {name}-{part}"
                for who, name in ((model, "reference"), ("--checkpoint untrained", "untrained"))
                for part, games in (("fit", size.fit_games), ("test", size.test_games))
            ],
        ),
        (
            "Can the board be read off it? Linear probes of 64 squares in every layer",
            [
                f"run probe --cache {name}-fit --test-cache {name}-test --name {name}-board"
                for name in ("reference", "untrained")
            ],
        ),
        (
            "Take the piece about to move off the board inside the model: do its moves follow?",
            [
                f"run edit {model} --probe reference-board --dataset sample:test --games {size.edit_games} "
                "--per-game 1 --layers 3-6 --scale 50 --name edits",
            ],
        ),
        (
            "Skill: what differs between games of strong and weak engines, then matches with it subtracted",
            [
                "run vector --cache reference-fit --first-ply 20 --name skill",
                f"{play} --name plain",
                f"{play} --intervention.vector skill --intervention.layers 3-6 --intervention.scale -2 --name weakened",
            ],
        ),
        (
            "The papers' tables, and the papers' numbers beside these",
            [
                f'query "{title}"{published}'
                for title in ("probe accuracy by layer", "board intervention legality", "elo by intervention")
                for published in ("", " --published")
            ],
        ),
    ]


@click.command()
@click.option("--size", type=click.Choice(list(SIZES)), default="full", show_default=True, help="small: a quick look.")
@pass_home
def demo(home: Home, size: str) -> None:
    """The main job from end to end: games in, a model probed, edited and playing, the numbers out of SQL.

    Everything goes into ./.chessreg/ by the commands that are printed. What is done already is not done again.
    """
    from chessreg.cli import chessreg as root

    began = time.monotonic()
    for title, lines in commands(SIZES[size]):
        click.secho(f"\n{title}", bold=True, err=True)
        for line in lines:
            click.secho(f"$ chessreg {line}", fg="cyan", err=True)
            root.main(args=shlex.split(line), prog_name="chessreg", standalone_mode=False, obj=home)
    click.echo(f"\ndone in {(time.monotonic() - began) / 60:.1f} minutes; now look at the boards:", err=True)
    click.secho("$ chessreg tui", fg="cyan", err=True)
