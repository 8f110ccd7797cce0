"""An option name has one type and one meaning, over the settings of all kinds and the options of all commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import click
import pytest

from chessreg.cli.base import Numbers
from chessreg.cli.root import root as commands
from chessreg.runs.kind import load_kinds
from chessreg.runs.spec import SettingField, describe_settings


class Option(NamedTuple):
    """A setting of a kind or an option of a command: its type, and its description. Choices, references, paths and
    lists of words are text; an option that may be given several times has the type of one value."""

    where: str
    type: str
    text: str


MEANINGS = {
    "adjudication": "evaluat",
    "alignment": "board of a token",
    "all": "also those|include",
    "assist": "Stockfish play",
    "attention": "sees",
    "batch-games": "in one (forward pass|step)",
    "batch-positions": "in one (step|update)",
    "batch-tokens": "tokens in one (step|update)",
    "beta1": "Adam",
    "beta2": "Adam",
    "black": "Black's turns",
    "block-size": "context, in tokens",
    "board": "squares",
    "cache": "activations",
    "checkpoint": "model|checkpoint",
    "color": "color|model's",
    "condition": "edit",
    "counters": "move counters",
    "dataset": "games|positions|puzzles|sampled?",
    "datasets": "games|positions",
    "device": "auto, cpu, cuda",
    "dry-run": "without running|do nothing|change nothing|print the plan",
    "dtype": "numbers|weights|activations",
    "encoding": "written",
    "engine-processes": "0: one for each core",
    "engine-version": "version",
    "every": "every Nth",
    "expansion": "latents",
    "file": "file",
    "files": "saved",
    "final-fraction": "of the rate|share of the learning rate",
    "first": "before the others",
    "first-ply": "ply|plies",
    "format": "chess_gpt_eval|grid-search|training-log|sweep|packs|print|output|a folder for",
    "games": "games",
    "grad-clip": "gradient norm",
    "heldout": "held-out|evaluate on|measure on",
    "heldout-games": "at most this many",
    "hook-point": "hook point|where they read",
    "hook-points": "hook points? (to read|to write|of)|where in the model",
    "keep-duplicates": "occurred before",
    "label": "read|predicts|label",
    "last-ply": "up to this ply|longest",
    "last-separator": "last legal move",
    "later": "moves that follow|later (board|moves)",
    "layer": "layer|run's",
    "layers": "layers|0-based",
    "learning-rate": "Adam",
    "limit": "limit",
    "list": "list",
    "max-sites": "first|from the start",
    "micro-tokens": "one forward pass",
    "min-plies": "shorter",
    "model": "model's|name of the model",
    "move-limit": "full moves",
    "moves": "moves",
    "n-embd": "d_model",
    "n-head": "attention heads",
    "n-layer": "layers",
    "name": "name|call",
    "normalize-activations": "activations",
    "notation": "of moves",
    "opening": "standard",
    "opening-seed": "seed of the openings",
    "opponent": "engine|stockfish",
    "output": "FILE|file|where|folder of",
    "pgn": "file",
    "players": "whose results|model that played",
    "policy": "chosen|legal",
    "port": "port",
    "positions": "positions|of them",
    "precision": "number format",
    "probe": "probe",
    "processes": "process|at once",
    "rename": "name",
    "resamples": "chance|bootstrap|random groupings",
    "residual": "centred",
    "resume": "not complete|missing|resume",
    "run": "run",
    "sae": "SAEs",
    "samples": "sampled|drawn|draws",
    "scale": "length|strength|factor|share",
    "scale-rule": "meaning of --scale",
    "schedule": "rate",
    "scoring": "draws|scored",
    "seed": "seed|of initial",
    "since": "date|since",
    "sort": "Sort by",
    "sites": "tokens",
    "size": "look|minutes",
    "skip-sites": "leave out|skip this many",
    "source-games": "the games that they are of|games of (these|the) positions",
    "steps": "updates",
    "temperature": "of the (samples|sampled texts)",
    "temperatures": "one for each try",
    "template": "prompt template|junkin",
    "threads": "CPU threads",
    "timeout": "after this time|waiting",
    "to": "file|folder",
    "token-mask": "tokens to edit",
    "vector": "vector",
    "warmup-steps": "steps until the full rate|full learning rate",
    "weight-decay": "matrices|Adam",
    "write": "allow changes",
}
"""Name → a pattern that every description of it contains, for names with more than one description."""

EXCEPTIONS = {
    "against": "of `vector show` a vector run, of matches a match",
    "layout": "of prompts how a position is written, of `sae export` the files",
    "measure": "of `heatmap` a stage of the probe, of `lab` what is read of the model",
    "phase": "of `probe` a name, of imports a number",
    "source": "of `probe`, `vector` and imported vectors",
}
"""Names that still have two meanings."""


def type_of_setting(setting: SettingField) -> str:
    if setting.type in (int, float) and not setting.noun:
        return f"several {setting.type.__name__}" if setting.is_list else setting.type.__name__
    return "yes or no" if setting.form == "yes or no" else "text"


def type_of_option(option: click.Option) -> str:
    if option.is_flag and not isinstance(option.flag_value, str):
        return "yes or no"
    if isinstance(option.type, Numbers):
        return "text" if option.type.item is str else f"several {option.type.item.__name__}"
    numbers = {click.types.IntParamType: "int", click.types.FloatParamType: "float"}
    return next((name for number, name in numbers.items() if isinstance(option.type, number)), "text")


def of_commands(command: click.Command, path: str = "") -> Iterator[tuple[str, Option]]:
    """The options of every command but `run KIND` and `launch KIND`, whose options are the settings of kinds."""
    for option in command.params:
        if isinstance(option, click.Option):
            name = max(option.opts, key=len).removeprefix("--")
            yield name, Option(path.strip(), type_of_option(option), option.help or "")
    if isinstance(command, click.Group) and path.strip() not in ("run", "launch"):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from of_commands(inner, f"{path} {name}")


@pytest.fixture(scope="module")
def options() -> Mapping[str, list[Option]]:
    """Every option, by its name without dashes."""
    found: dict[str, list[Option]] = {}
    for name, kind in load_kinds().items():
        for setting in (*describe_settings(kind.spec), *describe_settings(kind.options)):
            found.setdefault(setting.flag.removeprefix("--"), []).append(
                Option(name, type_of_setting(setting), setting.text)
            )
    for name, option in of_commands(commands):
        found.setdefault(name, []).append(option)
    return found


def test_a_name_has_one_type(options: Mapping[str, list[Option]]) -> None:
    two = {name: {option.type: option.where for option in places} for name, places in options.items()}
    two = {name: types for name, types in two.items() if len(types) > 1 and name not in EXCEPTIONS}
    assert not two, f"rename one of each, or change its type: {two}"


def test_a_name_has_one_meaning(options: Mapping[str, list[Option]]) -> None:
    shared = {name for name, places in options.items() if len({option.text for option in places}) > 1}
    assert shared - MEANINGS.keys() - EXCEPTIONS.keys() == set(), (
        "does each name mean one thing? Then add it to MEANINGS"
    )
    for name in sorted(shared - EXCEPTIONS.keys()):
        for option in options[name]:
            assert re.search(MEANINGS[name], option.text, re.IGNORECASE), f"--{name} of {option.where}: {option.text}"


def test_a_name_that_is_no_longer_shared_leaves_the_tables(options: Mapping[str, list[Option]]) -> None:
    shared = {name for name, places in options.items() if len({option.text for option in places}) > 1}
    assert EXCEPTIONS.keys() <= shared
    assert MEANINGS.keys() <= shared
