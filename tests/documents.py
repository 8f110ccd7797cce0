"""README and the pages of docs/: their text, the commands they show, and a check of a command that does not run it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
SEPARATORS = {";", "&&", "||", "|"}
ELLIPSIS = "…"


@dataclass(frozen=True)
class Command:
    """The arguments of a `chessreg` command on a page."""

    arguments: tuple[str, ...]
    is_inline: bool


def code_lines(text: str) -> list[str]:
    """Return the lines of a page's indented blocks and of its fenced blocks without a language or of `bash`."""
    lines, fence = [], None
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fence = None if fence is not None else line.strip("` ")
        elif (fence in ("", "bash")) if fence is not None else line.startswith("    "):
            lines.append(line.strip())
    return lines


def inline_code(text: str) -> list[str]:
    """Return the inline code of a page, each on one line."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


def commands(text: str) -> Iterator[Command]:
    """Yield every `chessreg …` command of a page's code; `\\` at the end of a line continues it."""
    joined = "\n".join(code_lines(text)).replace("\\\n", " ")
    for line in joined.splitlines():
        yield from (Command(tuple(words), False) for words in commands_in(line))
    for code in inline_code(text):
        yield from (Command(tuple(words), True) for words in commands_in(code.replace("\\|", "|")))


def commands_in(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each `chessreg` command of a shell line.

    >>> list(commands_in('timeout 2h chessreg run probe --name "a b"; chessreg status  # what runs'))
    [['run', 'probe', '--name', 'a b'], ['status']]
    """
    if not re.search(r"\bchessreg ", line):
        return
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    arguments: list[str] | None = None
    for word in lexer:
        if word in SEPARATORS:
            if arguments:
                yield arguments
            arguments = None
        elif arguments is not None:
            arguments.append(word)
        elif word.rpartition("/")[2] == "chessreg":
            arguments = []
    if arguments:
        yield arguments


def check_command(root: click.Command, shown: Command) -> None:
    """Raise click.UsageError, or a ChessregError for a kind's settings, if a command cannot be parsed.

    Nothing is run. An abbreviated command, or a command's name in a sentence, may lack required options. A word in
    capitals, as in `chessreg run KIND --help`, matches any word.
    """
    rest = [word for word in shown.arguments if word != ELLIPSIS]
    is_whole = len(rest) == len(shown.arguments)
    command, context = root, click.Context(root, info_name="chessreg")
    while True:
        parsed, words, _ = command.make_parser(context).parse_args(list(rest))
        if not isinstance(command, click.Group) or not words:
            break
        name, *rest = words
        if name.startswith("./") or name.isupper():
            return
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"no command {name!r} in {context.command_path!r}")
        command, context = found, click.Context(found, info_name=name, parent=context)
    if is_whole and "--help" not in rest and (rest or not shown.is_inline):
        check_values(command, context, parsed, rest)


def check_values(command: click.Command, context: click.Context, parsed: dict[str, Any], words: list[str]) -> None:
    """Check choices, required parameters and, of a kind of experiment, the settings that the options make."""
    if hasattr(command, "kind"):
        from chessreg.cli.run import build_run_settings

        made = command.make_context(context.info_name, list(words), parent=context.parent)
        build_run_settings(command.kind, made.params)
        return
    for parameter in command.get_params(context):
        value = parsed.get(parameter.name or "")
        if parameter.required and value in (None, ()):
            raise click.UsageError(f"{context.command_path}: {parameter.name} is missing")
        if isinstance(parameter.type, click.Choice) and isinstance(value, str):
            parameter.type.convert(value, parameter, context)
    if command.name in ("query", "plot") and words[0] != "--list" and "sql" not in parsed:
        check_title(command.name, words[0], parsed.get("kept_columns", ""))


def check_title(command: str, title: str, columns: str) -> None:
    """Check that a query or a plot has this title, and the query these columns."""
    from chessreg.queries.catalogue import find_entry, find_plot

    if command == "plot":
        find_plot(title)
        return
    known = {column.name for column in find_entry(title).columns}
    unknown = set(columns.split(",")) - known - {""}
    if unknown:
        raise click.UsageError(f"{title} has no column {', '.join(sorted(unknown))}")
