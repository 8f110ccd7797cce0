"""Every command that chessreg prints, in a hint, a message or a help text, exists and takes the options shown."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from chessreg.cli.base import Home
from chessreg.cli.root import move_options_to_front, root

ROOT = Path(__file__).parents[2]
UNKNOWN = "UNKNOWN"  # placeholder for a value that is known when the text is printed
QUOTED = re.compile(r"`chessreg ([^`]+)`")
AFTER_COLON = re.compile(r"(?:; |: |^  )chessreg ([a-z][^;`]*)$")

VERBS = ("has", "keeps", "reads")  # of sentences about chessreg
NAMES = ("chessreg match", "chessreg generated", "chessreg ingest", "chessreg register")  # in data


class Hint(NamedTuple):
    where: str
    command: str


def text_of(node: ast.expr) -> str | None:
    """The text of a literal or an f-string, with UNKNOWN for its values; None for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else UNKNOWN for part in node.values)
        return "".join(map(str, parts))
    return None


def commands_in(text: str) -> Iterator[str]:
    """The commands in a text: a separate line, those in backquotes, and one that ends a line after `: ` or `; `. Two
    may be joined by `&&`."""
    yield from QUOTED.findall(" ".join(text.split()))
    for line in text.splitlines():
        if line in NAMES or re.search(rf"(^|: |; )chessreg ({'|'.join(VERBS)}) ", line):
            continue
        if re.match(r"chessreg [a-z-]", line):
            yield from (command.removeprefix("chessreg ") for command in line.split(" && "))
        else:
            yield from AFTER_COLON.findall(line)


def hints() -> list[Hint]:
    found = []
    for package in ("chessreg", "tui", "store"):
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if "chessreg " not in source:
                continue
            tree = ast.parse(source)
            inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
            inner |= {id(node.left) for node in ast.walk(tree) if isinstance(node, ast.BinOp)}  # more follows
            for node in ast.walk(tree):
                if not isinstance(node, ast.expr) or id(node) in inner or (text := text_of(node)) is None:
                    continue
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                found += [Hint(where, command) for command in commands_in(text)]
    return found


def problem_of(command: str) -> str:
    """Why this command cannot be typed; "" if it can. Values are not checked, nor is anything after UNKNOWN."""
    words = move_options_to_front([UNKNOWN if word == "…" else word for word in shlex.split(command)])
    context, current = click.Context(root, info_name="chessreg", obj=Home()), root
    while isinstance(current, click.Group):
        _, words, _ = current.make_parser(context).parse_args(words)
        if not words:
            return ""  # the group is named, or called for its help
        name, *words = words
        if UNKNOWN in name or name.isupper() or name.endswith((".py", ".toml")):
            return ""
        below = current.get_command(context, name)
        if below is None:
            return f"{context.command_path} has no command {name}"
        current, context = below, click.Context(below, parent=context, info_name=name)
    if words == ["--help"]:
        return ""
    opts, rest, _ = current.make_parser(context).parse_args(words)
    if rest and UNKNOWN not in rest[0]:
        return f"{context.command_path} takes no argument {rest[0]}"
    missing = [p.name for p in current.params if isinstance(p, click.Argument) and p.required and not opts.get(p.name)]
    if missing and words:
        return f"{context.command_path} needs {missing[0]}"
    return ""


def test_every_printed_command_runs_as_printed() -> None:
    wrong, found = [], hints()
    for hint in found:
        try:
            problem = problem_of(hint.command)
        except (click.UsageError, ValueError) as error:
            problem = str(error)
        except Exception as error:
            problem = repr(error)
        if problem:
            wrong.append(f"{hint.where}: chessreg {hint.command}: {problem}")
    assert len(found) > 150
    assert not wrong, "\n".join(wrong)
