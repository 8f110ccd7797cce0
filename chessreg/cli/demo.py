"""`chessreg demo`: the main job from real games to tables, as the commands a user would type."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from chessreg.cli.base import Home, pass_home
from chessreg.terminal import Lines, wrap_drawing_stream


@dataclass(frozen=True)
class DemoSize:
    """The amounts of the demo. With `whole` it includes the steps that take minutes."""

    fit_games: int
    test_games: int
    edit_games: int
    match_games: int
    uci_games: int
    uci_edit_games: int
    uci_match_games: int
    cache: str = ""  # further options of `run cache`, …
    probe: str = ""
    edit: str = ""
    match: str = ""
    whole: bool = True


SIZES = {
    "quick": DemoSize(
        360, 50, 200, 0, 100, 50, 8,
        cache=" --batch-games 8", probe=" --layers 3-7", edit=" --no-spellings", whole=False,
    ),
    "full": DemoSize(1200, 400, 420, 60, 300, 100, 24),
    "small": DemoSize(20, 10, 8, 2, 20, 4, 2, match=" --move-limit 20"),
}  # fmt: skip
OPPONENT = "stockfish:-1+random=0.6"  # weak enough for the bundled model, and able to mate it
AFTERWARDS = [
    ("tui", "browse runs, edited boards and games; try edits in the lab"),
    ('query "elo by intervention" --rows 1', "the games behind row 1"),
    ("lineage edits", "everything that the edits were made from, back to the games"),
    ("board edits", "the first edited position"),
    ("query --list", "the other tables"),
]


@dataclass(frozen=True)
class DemoStep:
    """A heading, its commands, and the commands whose output answers it."""

    title: str
    commands: tuple[str, ...]
    answers: tuple[str, ...] = ()


def make_steps(size: DemoSize) -> Iterator[DemoStep]:
    """Yield the demo's steps, in order."""
    pgn, uci = "--checkpoint reference", "--checkpoint uci"
    match = f"--opponent {OPPONENT} --policy legal --temperatures 0.3 --opening random:6{size.match}"
    yield DemoStep(
        "5,000 games, split so that no game is in two parts",
        (
            "dataset add --sample --name sample",
            "dataset split sample --parts fit=0.5,validation=0.1,test=0.4",
        ),
    )
    yield DemoStep(
        "Can the board be read off a small chess model? Linear probes of 64 squares in its residual stream, next to "
        "probes of an untrained model of the same shape",
        (
            "import checkpoint --reference --name reference",
            "checkpoint twin reference --name untrained --seed 0",
            *(
                f"run cache --checkpoint {name} --dataset sample:{part} --games {games} --max-sites 33{size.cache} "
                f"--name {name}-{part}"
                for name in ("reference", "untrained")
                for part, games in (("fit", size.fit_games), ("test", size.test_games))
            ),
            *(
                f"run probe --cache {name}-fit --test-cache {name}-test{size.probe} --name {name}-board"
                for name in ("reference", "untrained")
            ),
        ),
        (
            'query "best probe layers" --where "selected_on = \'validation\'" '
            "--show checkpoint,weights,layer,accuracy,minus_untrained,n_games",
        ),
    )
    yield DemoStep(
        "Remove the piece about to move from the board inside the model: are its moves legal on the edited board? Next "
        "to random directions of the same length",
        (
            f"run edit {pgn} --probe reference-board --dataset sample:test --games {size.edit_games} --per-game 1 "
            f"--layers 3-6 --scale 50{size.edit} --name edits",
        ),
        ('query "board intervention legality"',),
    )
    yield DemoStep(
        "The same edit in a model that writes UCI squares: how much probability goes to moves that are legal on the "
        "edited board?",
        (
            "import checkpoint --reference=uci --name uci",
            f"run cache {uci} --dataset sample:fit --games {size.uci_games} --sites white-turns --max-sites 33"
            f"{size.cache} --name uci-fit",
            "run probe --cache uci-fit --name uci-board",
            f"run edit-next-token {uci} --probe uci-board --dataset sample:test --games {size.uci_edit_games} "
            "--prefixes 4,14,24 --layers 2-5 --scale 1 --name uci-edits",
        ),
        ('query "legal move mass by edit" --run uci-edits',),
    )
    if size.whole:
        yield DemoStep(
            "One position: after 1.e4 d5, edited as if Black had played 1...e5",
            (
                f'run edit-next-token {uci} --probe uci-board --moves "e4 d5" --board "d5=. d7=p e7=. e5=p" '
                "--layers 2-5 --scale 1 --name figure-4",
            ),
            ("board figure-4:0",),
        )
        yield DemoStep(
            "A skill vector: the difference between games of strong and weak players, subtracted during a match, next "
            "to one with shuffled labels",
            (
                "run vector --source contrastive --cache reference-fit --first-ply 20 --name skill",
                "run vector --source shuffled --of skill --seed 1 --name shuffled",
                f"run play {pgn} --games {size.match_games} {match} --name plain",
                *(
                    f"run play {pgn} --games {size.match_games} {match} --intervention.vector {vector} "
                    f"--intervention.layers 3-6 --intervention.scale -2 --name {vector}-subtracted"
                    for vector in ("skill", "shuffled")
                ),
            ),
        )
    yield DemoStep(
        "An edit during a match: the model plays unchanged, and while its states say that its knights, bishops and "
        "queen are not on their first squares",
        (
            'run vector --source board --probe uci-board --board "b1=. c1=. d1=. f1=. g1=." --layers 2-5 --name unseen',
            f"run play {uci} --games {size.uci_match_games} {match} --name uci-plain",
            f"run play {uci} --games {size.uci_match_games} {match} --intervention.vector unseen "
            "--intervention.scale 60 --name uci-unseen",
        ),
        ('query "elo by intervention"',),
    )
    if size.whole:
        yield DemoStep(
            "The papers' numbers next to these, and why they are not yet the same experiment",
            (),
            tuple(
                f'query "{title}" --published'
                for title in ("best probe layers", "board intervention legality", "elo by intervention")
            ),
        )


class Progress(Lines):
    """An output that drops the lines of commands. Progress bars go to the underlying stream."""

    def write(self, text: str) -> int:
        return len(text)


@click.command()
@click.option(
    "--size",
    type=click.Choice(list(SIZES)),
    default="quick",
    show_default=True,
    help="quick: about two minutes; full: more games, skill vectors and the papers' numbers, about ten; small: tests.",
)
@pass_home
def demo(home: Home, size: str) -> None:
    """Run the main workflow: add games, probe a model, edit it, play with it, and print the tables.

    Everything is stored in ./.chessreg/ by the printed commands. Finished steps are skipped.
    """
    from chessreg.cli import chessreg as root
    from chessreg.models.devices import release_memory

    def run_line(line: str) -> None:
        root.main(args=shlex.split(line), prog_name="chessreg", standalone_mode=False, obj=home)
        release_memory()

    def show_line(line: str) -> None:
        click.secho(f"$ chessreg {line}", fg="cyan", file=wrap_drawing_stream(sys.stderr))

    start = time.monotonic()
    for step in make_steps(SIZES[size]):
        click.secho(f"\n{step.title}", bold=True, file=wrap_drawing_stream(sys.stderr))
        for line in step.commands:
            show_line(line)
            out, err = (Progress(wrap_drawing_stream(stream)) for stream in (sys.stdout, sys.stderr))
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                run_line(line)
        for line in step.answers:
            show_line(line)
            run_line(line)
    click.echo(f"\nDone in {time.monotonic() - start:,.0f} s. The interval in [ ] is 95 %. Next:", err=True)
    if activate := format_activation_command():
        click.secho(f"$ {activate}", fg="cyan", file=wrap_drawing_stream(sys.stderr), nl=False)
        click.echo("  # makes the command chessreg available in this shell", err=True)
    for line, reason in AFTERWARDS:
        click.secho(f"$ chessreg {line}", fg="cyan", file=wrap_drawing_stream(sys.stderr), nl=False)
        click.echo(f"  # {reason}", err=True)


def format_activation_command() -> str:
    """Return the command that puts this environment on the PATH; empty if it is not needed or does not exist."""
    import shutil

    script = Path(sys.prefix) / "bin" / "activate"
    if not script.is_file() or shutil.which("chessreg") == str(Path(sys.prefix) / "bin" / "chessreg"):
        return ""
    with contextlib.suppress(ValueError):
        script = script.relative_to(Path.cwd())
    return f"source {shlex.quote(str(script))}"
