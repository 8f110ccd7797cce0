"""Command lines made from the tree of commands itself: accepted arguments, values at the edges of their types, existing
names and ids. Only commands that read are in it, and plans of runs."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import click
from mutate import NUMBERS, WORDS

from chessreg.runs.spec import SettingField

READING = {  # the options of each that do more than read, or never end; options that take a path are left out of all
    "runs list": (), "runs show": (), "runs conflicts": (), "jobs": (), "job show": (), "status": (), "machines": (),
    "dataset list": (), "dataset show": (), "dataset verify": (), "checkpoint list": (), "checkpoint show": (),
    "cache list": (), "cache show": (), "cache verify": (), "probe list": (), "probe show": (), "vector list": (),
    "vector show": (), "sae list": (), "sae show": (), "game list": (), "game show": (), "game part": (),
    "engine list": (), "engine ladder": (), "lineage": (), "compare": (), "reproduce": ("--rerun",), "board": (),
    "heatmap": (), "lab": (), "query": (), "gc": ("--remove", "--restore", "--empty"), "db status": (),
}  # fmt: skip
ANYWHERE = ("--registry", "--store", "--debug", "--help", "-h", "--version")
LIKELY = ("0", "1", "2", "3", "5", "8", "0.5", "1.5", "100", "-1")
TEXTS = (
    "none", "standard", "random:4", "random", "stockfish:0@nodes=10", "capture", "legal", "retry:2", "piece", "skill",
    "threat", "all", "last", "turns", "white-turns", "squares", "e4 e5 Nf3", "d5=. d7=p", "nodes=10", "time=0.1",
    "blocks.*.hook_resid_pre", "blocks.1.hook_resid_post", "ln_final.hook_out", "hook_embed", "single_scale",
    "ln-final", "pgn-char-32", "uci-square-77", "fen-77", "7d", "2026-01-01", "elo>1900", "kind:probe", "~rb",
    "!archived", "spec.seed:0", "-metric.loss", "layer = 1", "elo by intervention", "best probe layers", "ratings",
    "select 1", "select * from run", "edit", "clean", "random-0", "P", "e4", "lichess", "book:/etc/passwd", "1GB",
    "cpu", "cuda:7",
)  # fmt: skip


class Commands:
    """Lines of words: a command, then its arguments and options."""

    def __init__(self, session: Any) -> None:
        self.session = session

    @cached_property
    def parameters(self) -> dict[str, dict[str, SettingField | click.Parameter]]:
        """The parameters of each command: by flag, and its arguments by their names."""
        from chessreg.cli.root import root
        from chessreg.runs.kind import find_kind, load_kinds
        from chessreg.runs.spec import describe_settings

        found: dict[str, dict[str, SettingField | click.Parameter]] = {}
        for path, command in leaves(root, ""):
            if path in READING:
                options = {of.opts[-1] if isinstance(of, click.Option) else str(of.name): of for of in command.params}
                found[path] = {
                    name: of
                    for name, of in options.items()
                    if not isinstance(of.type, click.Path) and name not in (*READING[path], *ANYWHERE)
                }
        for name in load_kinds():
            settings = [*describe_settings(find_kind(name).spec), *describe_settings(find_kind(name).options)]
            found[f"run {name}"] = {setting.flag: setting for setting in settings}
        return found

    @cached_property
    def things(self) -> dict[str, list[str]]:
        """Names and ids by noun: dataset, checkpoint, run, run:KIND."""
        from chessreg.entities.base import read_entity_rows
        from chessreg.registry import tables

        found: dict[str, list[str]] = {}
        with self.session.database.read() as sql:
            for noun, table in (("dataset", tables.Dataset), ("checkpoint", tables.Checkpoint), ("run", tables.Run)):
                for row in read_entity_rows(sql, noun, table):
                    called = [row["id"].hex, row["id"].hex[-6:], *([row["name"]] * 3 if row["name"] else [])]
                    found.setdefault(noun, []).extend(called)
                    if noun == "run":
                        found.setdefault(f"run:{row['kind']}", []).extend(called)
        found["dataset"] += ["sample:fit", "sample:test", "sample:", "sample:no"]
        return found

    def allowed(self, words: Sequence[str]) -> bool:
        """Whether a line only reads: a command of the tree, with options that it is known to take."""
        command, *rest = words
        if command not in self.parameters:
            return False
        taken = self.parameters[command]
        options = (word.partition("=")[0] for word in rest if word.startswith("-") and word[1:2] not in "0123456789.")
        return all(option in taken for option in options)

    def examples(self) -> list[bytes]:
        """One valid line for each command: a kind's own example, and existing arguments."""
        chosen = random.Random(0)
        return ["\n".join(self.started(chosen, command)).encode() for command in self.parameters]

    def started(self, chosen: random.Random, command: str) -> list[str]:
        from chessreg.runs.kind import find_kind

        words = [command]
        if command.startswith("run "):
            return words + shlex.split(find_kind(command[4:]).example)
        for name, of in self.parameters[command].items():
            if isinstance(of, click.Argument):
                words += [self.value(chosen, name, of) for _ in range(2 if of.nargs != 1 else 1)]
        return words

    def changed(self, chosen: random.Random, data: bytes) -> bytes:
        """The line with an option more, less or otherwise; or another command's."""
        words = data.decode("utf-8", "surrogateescape").split("\n")
        if chosen.random() < 0.3 or words[0] not in self.parameters:
            words = self.started(chosen, chosen.choice([*self.parameters]))
        taken = self.parameters[words[0]]
        flags = [name for name in taken if name.startswith("-")]
        for _ in range(chosen.choice((1, 1, 2, 3, 5))):
            kind = chosen.randrange(6)
            if kind == 0 and len(words) > 1:
                del words[chosen.randrange(1, len(words))]
            elif kind == 1 and len(words) > 1:
                at = chosen.randrange(1, len(words))
                of = words[at - 1] if words[at - 1] in taken else chosen.choice([*taken] or [""])
                words[at] = self.value(chosen, of, taken.get(of))
            elif flags:
                flag = chosen.choice(flags)
                of_flag = taken[flag]
                plain = isinstance(of_flag, click.Option) and of_flag.is_flag
                words.append(flag if plain else f"{flag}={self.value(chosen, flag, of_flag)}")
        return "\n".join(words).encode("utf-8", "surrogateescape")

    def value(self, chosen: random.Random, name: str, of: SettingField | click.Parameter | None) -> str:
        """A value for a parameter: mostly one of its type, else a useless one."""
        if chosen.random() < 0.15:
            return chosen.choice((*WORDS, *NUMBERS)).replace("\n", " ").encode("utf-8", "ignore").decode()
        noun = of.noun if isinstance(of, SettingField) else noun_of(name)
        if noun and self.things.get(noun):
            several = isinstance(of, SettingField) and of.is_list
            return ",".join(chosen.choice(self.things[noun]) for _ in range(chosen.choice((1, 1, 2)) if several else 1))
        if noun:
            return chosen.choice([*self.things["run"], *self.things["dataset"]]) + chosen.choice(("", ":0", ":1", "/0"))
        if isinstance(of, SettingField) and of.choices:
            return chosen.choice(of.choices)
        if isinstance(of, click.Parameter) and isinstance(of.type, click.Choice):
            return str(chosen.choice([*of.type.choices]))
        number = chosen.choice(LIKELY if chosen.random() < 0.7 else NUMBERS)
        if isinstance(of, SettingField) and of.type is not str:
            return ",".join([number, *(chosen.choice(LIKELY) for _ in range(2))]) if of.is_list else number
        if isinstance(of, click.Parameter) and not isinstance(of.type, click.types.StringParamType):
            return number
        return chosen.choice((*TEXTS, number))


def noun_of(name: str) -> str:
    """The noun that an argument or option of a command refers to, by its name."""
    word = name.lstrip("-").lower()
    for noun in ("dataset", "checkpoint", "run"):
        if word.startswith(noun):
            return noun
    known = {"reference": "run", "references": "run", "probe": "run:probe", "vector": "run:vector"}
    return (known | {"against": "run:vector", "game": "game", "games": "game", "state": "game"}).get(word, "")


def leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """The commands of a group that are not groups, by their words; kinds are left out."""
    if not isinstance(command, click.Group):
        yield path, command
    elif path not in ("run", "launch", "paper"):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from leaves(found, f"{path} {name}".strip())
