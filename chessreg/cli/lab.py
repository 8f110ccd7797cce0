"""A model used without storing anything: on one position (`chessreg lab`), or as a GUI's engine (`chessreg uci`)."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from chessreg.cli.base import Home, add_json_option, open_with_waiting_results, pass_home, print_output
from chessreg.cli.run import build_options, collect_given_values
from chessreg.errors import BadInputError
from chessreg.lab.question import LabPosition, StoredState
from chessreg.named import clip_text


@click.command(params=[option for option in build_options(LabPosition) if option.name != "settings"])
@click.argument("state", metavar="[STATE]", required=False)
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another setting of `chessreg run edit` or `edit-next-token`, such as scale-rule=ln-next; repeatable. "
    "Left out: the kind's defaults.",
)
@click.option("--layer", type=int, help="Layer of the probe's boards.  [default: the last edited one]")
@click.option("--top", type=click.IntRange(min=0), default=5, show_default=True, help="Moves shown for each model.")
@add_json_option
@pass_home
def lab(home: Home, state: str | None, settings: tuple[str, ...], layer: int | None, top: int, **params: Any) -> None:
    """Compare the clean and the edited model at one position: probe readings, moves, legal move mass.

    STATE is RUN:UNIT of a run of kind edit, or RUN for its first edited state. Or give --checkpoint and --moves, or
    --fen. `chessreg run edit --moves …` and `run edit-next-token --moves …` store an edit.

    \b
    chessreg lab --checkpoint reference --probe reference-board --moves "e4 e5 Nf3" --scale 2
    chessreg lab --checkpoint uci --probe uci-board --moves "e4 d5" --board "d5=. d7=p" --scale 1
    chessreg lab --checkpoint uci --probe uci-board --moves e4 --measure next-token
      --later "d5 Nc3" --condition patch
    chessreg lab edits:7 --condition random-0
    """
    from chessreg.entities.boards import resolve_unit
    from chessreg.lab.answer import format_answer
    from chessreg.lab.model import Lab
    from chessreg.models.devices import prepare_device

    database, values = open_with_waiting_results(home), collect_given_values(LabPosition, params)
    question: LabPosition | StoredState
    if state is not None:
        if settings or values.keys() - {"condition"}:
            raise BadInputError("STATE has its own model, moves and edit", "leave out the other options")
        with database.read() as session:
            run_id, unit = resolve_unit(session, home.session().inputs, state)
        question = StoredState(run=run_id.hex, unit=unit, condition=values.get("condition"))
    elif "checkpoint" not in values:
        raise BadInputError("a model is missing", "give --checkpoint NAME, or RUN:UNIT of an edit run")
    else:
        question = LabPosition.from_settings(**values, settings=tuple(map(split_pair, settings)))
    prepare_device("cpu")
    answer = Lab(home.session().inputs).ask(question)
    if home.json:
        print_output(home, answer.summary())
    else:
        click.echo(format_answer(answer, layer, top), nl=False)


def split_pair(text: str) -> tuple[str, str]:
    """Split NAME=VALUE. Raises BadInputError for other texts."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise BadInputError(f"{clip_text(text)!r} is not NAME=VALUE", "--setting scale-rule=ln-next")
    return name.strip().replace("-", "_"), value.strip()


@click.command()
@click.argument("checkpoint")
@click.option(
    "--intervention",
    default="",
    help="Intervention or vector run that is added to the model. Left out: the model alone.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an option of the engine at the start, as NAME=VALUE; repeatable. Left out: the engine's defaults.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@pass_home
def uci(home: Home, checkpoint: str, intervention: str, options: tuple[str, ...], device: str) -> None:
    """Run a model of any encoding as a UCI engine in a chess GUI, edited live.

    Reads the protocol on stdin and answers on stdout; errors go to stderr. Nothing is written to the registry.

    \b
    chessreg --registry /path/.chessreg uci reference
    chessreg uci reference --intervention skill --option Scale=2 --option MultiPV=5

    \b
    Options of the engine, with their defaults:
      Policy legal        how a move is chosen: legal (the model's probabilities, renormalized over
                          legal moves), trie (token by token, only tokens of legal moves), retry:N,
                          free, or value (the highest expected return, of a model of values)
      Temperature 0       0: the most probable move; one number for each try of retry:N, or own: the
                          policy's temperature
      Seed 0              seed of the draws, together with the number of the game and the ply
      Intervention        an intervention's id or a vector run's name or id; empty: the unchanged
                          model
      Layers              0-based, such as 3-6; empty: all layers of the intervention
      Scale               factor on the direction; empty: as recorded; 0: the unchanged model
      MultiPV 1           number of legal moves shown, each with its probability p
      ProbabilityAsScore  true: p is also the score (0.43 is 43 %) for GUIs that only show scores; it
                          is not an evaluation
      Threads             CPU threads

    A move takes one forward pass, so limits of time, depth and nodes have no effect. `go infinite` and `go ponder`
    answer after `stop`. bestmove is always legal. If the model or its policy gives no legal move, an info string names
    the fallback: `legal` (drawn from its legal moves) if a text is not a move; `crop` (it reads the newest tokens) if a
    game is longer than its context; `shortest` (it reads the shortest game to that position) if a model of games gets a
    FEN near the start; `uniform` (any legal move) for any other FEN whose moves are unknown.
    """
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise BadInputError("stdin or stdout is closed: a chess GUI speaks through both", "chessreg uci --help")
    stdout = os.dup(1)
    os.dup2(2, 1)  # output of libraries must not enter the protocol
    from chessreg.lab.player import LabPlayer
    from chessreg.lab.uci import UciEngine, UciSettings, make_line_writer, run_engine
    from chessreg.models.devices import check_device, count_idle_cores

    check_device(device)
    threads = count_idle_cores()
    player = LabPlayer(home.session().inputs, checkpoint, device, threads)
    engine = UciEngine(player, checkpoint, make_line_writer(stdout), UciSettings(threads=threads))
    for text in (*([f"Intervention={intervention}"] if intervention else []), *options):
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInputError(f"--option {text!r} has no value", "--option MultiPV=5")
        try:
            engine.set(name.strip(), value)
        except ValueError as error:
            raise BadInputError(f"--option {name}: {error}", "chessreg uci --help") from error
    try:
        run_engine(engine, 0)
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
