"""Commands that the UI names: whether there are such."""

from __future__ import annotations

import click

from chessreg.cli.root import root


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words begin with, and the words after it. Fails if it does not exist."""
    left = list(words)
    assert left.pop(0) == "chessreg"
    command: click.Command = root
    context = click.Context(root)
    while left and isinstance(command, click.Group) and not left[0].startswith("-"):
        found = command.get_command(context, left.pop(0))
        assert found is not None, words
        command = found
    return command, left
