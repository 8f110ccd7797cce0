"""Options that a command does not have: the message suggests similar ones."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest

from chessreg.cli.base import Home
from chessreg.cli.root import root
from chessreg.cli.suggest import OPTIONS_BY_WORD, PHRASES, suggest_options

TYPED = {
    "run cache --model reference": "--checkpoint",
    "run play --ckpt reference": "--checkpoint",
    "run train --lr 0.1": "--learning-rate",
    "run train --batch-size 8": "--batch-tokens",
    "run train --gpu 0": "--device",
    "run cache --games-file x.pgn": "--dataset",
    "run play --n 4": "--games",
    "run play --scale 2": "--intervention.scale",
    "run play --vector skill": "--intervention.vector",
    "run play --num-games 4": "--games",
    'query "elo by intervention" --out x.md': "--output",
    'query "elo by intervention" --filter "n > 2"': "--where",
    "runs list --dry": "",
    "runs list --limit 3": "--last",
    "checkpoint list --tail 3": "--last",
    "run probe --dry": "--dry-run",
    "run probe --wieght-decay 0": "--weight-decay",
    "run probe --scale 3": "",
}


@pytest.mark.parametrize("line", TYPED)
def test_a_mistaken_option_is_answered_with_the_right_one(here: Any, line: str) -> None:
    assert here(*shlex.split(line)) == 2
    message = here.err.splitlines()[0]
    assert "has no option" in message
    assert TYPED[line] in message
    assert ("did you mean" in message) == bool(TYPED[line])


COMMANDS = {
    "checkpoint import x.pt": "import checkpoint",
    "vector import x.npy": "import vector",
    "results import x.csv": "import results",
    "dataset import x.pgn": "dataset add",
    "add dataset x.pgn": "dataset add",
    "probe fit": "run probe",
    "sae train": "run sae",
    "cache run": "run cache",
    "run list": "runs list",
    "runs compare a b": "compare",
    "runs query": "query",
    "models": "checkpoint list",
    "model list": "checkpoint list",
    "job cancel x": "cancel",
    "job logs x": "logs",
    "train": "run train",
    "ls": "runs list",
    "querry": "query",
    "querry elo": "query",
    "run prob --cache fit": "run probe",
    "runs shwo x": "runs show",
    **PHRASES,
}


@pytest.mark.parametrize("line", COMMANDS)
def test_an_unknown_command_is_answered_with_an_existing_one(here: Any, line: str) -> None:
    assert here(*line.split()) == 2
    message = here.err.splitlines()[0]
    assert message.startswith("error: command ")
    assert f"did you mean chessreg {COMMANDS[line]}" in message


def commands(group: click.Group, context: click.Context) -> Iterator[click.Command]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, click.Context(command, parent=context, info_name=name))
        else:
            yield command


def test_only_options_of_the_command_are_suggested_and_every_word_is_of_use() -> None:
    useful = set()
    for command in commands(root, click.Context(root, info_name="chessreg", obj=Home())):
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for word in OPTIONS_BY_WORD.keys() - known:
            suggested = suggest_options(command, word)
            assert set(suggested) <= known, (command.name, word)
            useful |= {word} if set(suggested) & set(OPTIONS_BY_WORD[word]) else set()
    assert useful == OPTIONS_BY_WORD.keys()
