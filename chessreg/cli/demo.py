"""`chessreg demo`: the main job from real games to tables, as the commands a user would type."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import dataclass

import click

from chessreg.cli.base import Home, pass_home
from chessreg.terminal import for_drawing


@dataclass(frozen=True)
class Size:
    """How much of everything the demo does."""

    fit_games: int
    test_games: int
    edit_games: int
    match_games: int
    uci_games: int
    uci_edit_games: int
    match: str  # what else the matches are given


SIZES = {"full": Size(1200, 400, 420, 60, 300, 100, ""), "small": Size(20, 10, 8, 2, 20, 4, " --move-limit 20")}
OPPONENT = "stockfish:-1+random=0.6"  # weak enough for the bundled model, and able to mate it
AFTERWARDS = [
    ("tui", "runs, boards before and after an edit, games, the lab"),
    ("lineage edits", "what the edits were made from, back to the games"),
    ("board edits:0", "the first edited position"),
    ("board uci-edits:0", "one of the other model: probabilities of squares, before and after"),
    ("query --list", "the other tables"),
]


def commands(size: Size) -> list[tuple[str, list[str]]]:
    """What is done, and the commands that do it."""
    model = "--checkpoint reference"
    match = f"--opponent {OPPONENT} --policy legal --temperatures 0.3 --opening random:6{size.match}"
    play = f"run play {model} --games {size.match_games} {match}"
    of_uci = f"run play --checkpoint uci --games {max(2, 2 * size.match_games // 5)} {match}"
    edit = "--intervention.layers 3-6 --intervention.scale -2"
    return [
        (
            "Games: 5,000 of Stockfish against itself, split so that no move list is in two parts",
            [
                "dataset add --sample --name sample",
                "dataset split sample --parts fit=0.5,validation=0.1,test=0.4",
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
                f"run cache {who} --dataset sample:{part} --games {games} --max-sites 33 --name {name}-{part}"
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
            "A model that writes UCI squares, not text: change its board, and other squares come next. One position "
            "(after 1.e4 d5, as if Black had played e5), then prefixes of games",
            [
                "import checkpoint --reference=uci --name uci",
                f"run cache --checkpoint uci --dataset sample:fit --games {size.uci_games} --sites white-turns "
                "--max-sites 33 --name uci-fit",
                "run probe --cache uci-fit --name uci-board",
                'run edit-next-token --checkpoint uci --probe uci-board --moves "e4 d5" --board "d5=. d7=p e7=. e5=p" '
                "--layers 2-5 --scale 1 --name figure-4",
                "board figure-4:0",
                f"run edit-next-token --checkpoint uci --probe uci-board --dataset sample:test --games "
                f"{size.uci_edit_games} --prefixes 4,14,24 --layers 2-5 --scale 1 --name uci-edits",
            ],
        ),
        (
            "The same model in matches: as it is, and while its states say that knights, bishops and queen are not "
            "where they began",
            [
                'run vector --source probe --probe uci-board --board "b1=. c1=. d1=. f1=. g1=." --layers 2-5 '
                "--name unseen",
                f"{of_uci} --name uci-plain",
                f"{of_uci} --intervention.vector unseen --intervention.scale 60 --name uci-unseen",
            ],
        ),
        (
            "Skill: subtract what differs between games of strong and weak engines, and what differs when labels are "
            "shuffled; on this model no weakening by skill has been shown",
            [
                "run vector --cache reference-fit --first-ply 20 --name skill",
                "run vector --source shuffled --of skill --seed 1 --name shuffled",
                f"{play} --name plain",
                f"{play} --intervention.vector skill {edit} --name weakened",
                f"{play} --intervention.vector shuffled {edit} --name control",
            ],
        ),
        (
            "The papers' tables; a table's row N is made of what --rows N shows",
            [
                'query "probe accuracy by layer" --where "split = \'test\'" '
                "--show checkpoint,layer,n_games,accuracy,majority,unseen,chosen",
                'query "best probe layers" --show checkpoint,weights,selected_on,layer,accuracy,minus_untrained',
                'query "board intervention legality" '
                "--show condition,intervention,states,original,modified,delta_modified,delta_random",
                'query "legal move mass by edit" --run uci-edits '
                "--show checkpoint,type,cases,original,target,gain,minus_random",
                'query "elo by intervention" --show checkpoint,intervention,n,w,d,l,score,delta_score,delta_shuffled',
            ],
        ),
        (
            "The papers' numbers beside these, and why they are not yet the same experiment",
            [
                f'query "{title}" --published'
                for title in ("best probe layers", "board intervention legality", "elo by intervention")
            ],
        ),
    ]


@click.command()
@click.option("--size", type=click.Choice(list(SIZES)), default="full", show_default=True, help="small: a quick look.")
@pass_home
def demo(home: Home, size: str) -> None:
    """Run the main job from end to end: games in, a model probed, edited and playing, the numbers out of SQL.

    Everything goes into ./.chessreg/ by the commands that are printed. What is done already is not done again.
    """
    from chessreg.cli import chessreg as root
    from chessreg.models.devices import release_memory

    began = time.monotonic()
    for title, lines in commands(SIZES[size]):
        click.secho(f"\n{title}", bold=True, file=for_drawing(sys.stderr))
        for line in lines:
            click.secho(f"$ chessreg {line}", fg="cyan", file=for_drawing(sys.stderr))
            root.main(args=shlex.split(line), prog_name="chessreg", standalone_mode=False, obj=home)
            release_memory()
    click.echo(f"\ndone in {(time.monotonic() - began) / 60:.1f} minutes. What to look at now:", err=True)
    for line, why in AFTERWARDS:
        click.secho(f"$ chessreg {line:<28}", fg="cyan", file=for_drawing(sys.stderr), nl=False)
        click.echo(f"  {why}", err=True)
