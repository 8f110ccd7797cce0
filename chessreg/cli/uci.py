"""`chessreg uci`: a model as an engine of a chess GUI."""

from __future__ import annotations

import os
import sys

import click

from chessreg.cli.base import Home, pass_home
from chessreg.errors import BadInputError


@click.command()
@click.argument("checkpoint")
@click.option("--intervention", default="", help="An intervention's id, or a vector run: what is added to the model.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Set an option of the engine at once.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@pass_home
def uci(home: Home, checkpoint: str, intervention: str, options: tuple[str, ...], device: str) -> None:
    """Be a UCI engine: a model of any encoding in a chess GUI, edited live.

    Reads the protocol on stdin, answers on stdout; what goes wrong is on stderr. Nothing is written to the registry.

    \b
    chessreg --registry /path/.chessreg uci reference
    chessreg uci reference --intervention skill --option Scale=2 --option MultiPV=5

    \b
    Options of the engine, with their defaults:
      Policy legal        how a move is chosen: legal (the model's probabilities, renormalised over legal moves),
                          trie (token by token among those that go on to a legal move), retry:N, free
      Temperature 0       0: the most probable; one number for each try of retry:N, or own: the policy's
      Seed 0              of the draws, with the number of the game and the ply
      Intervention        an intervention's id or a vector run's name or id; empty: the model as it is
      Layers              0-based, as 3-6; empty: all that the intervention has
      Scale               times the direction; empty: the intervention's own; 0: the model as it is
      MultiPV 1           so many legal moves are shown, each with its probability p
      ProbabilityAsScore  true: p stands as the score too (0.43 is 43 %), which is what GUIs show: no evaluation
      Threads             of the CPU

    A move takes one pass of the model: limits of time, depth and nodes change nothing; `go infinite` and `go ponder`
    wait for `stop` with their answer. bestmove is always legal. Where the model or its policy has none, an info string
    says so and names the fallback: `legal` (drawn from its legal moves) where a text is no move; `crop` (it reads the
    newest tokens) where a game is longer than its context; `shortest` (it reads the shortest game to that position)
    where a model of games is given a FEN near the start; `uniform` (any legal move) where it cannot be asked, as at any
    other FEN whose moves are not known.
    """
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise BadInputError("stdin or stdout is closed: a chess GUI speaks through both", "chessreg uci --help")
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints goes elsewhere than the protocol
    from chessreg.lab.player import Player
    from chessreg.lab.uci import Engine, Settings, line_to, run
    from chessreg.models.devices import check, idle_cores

    check(device)
    threads = idle_cores()
    player = Player(home.session().inputs, checkpoint, device, threads)
    engine = Engine(player, checkpoint, line_to(out), Settings(threads=threads))
    for text in (*([f"Intervention={intervention}"] if intervention else []), *options):
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInputError(f"--option {text!r} has no value", "--option MultiPV=5")
        try:
            engine.set(name.strip(), value)
        except ValueError as error:
            raise BadInputError(f"--option {name}: {error}", "chessreg uci --help") from error
    try:
        run(engine, 0)
    finally:
        os.dup2(out, 1)
        os.close(out)
