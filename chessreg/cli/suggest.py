"""Suggestions for mistyped commands and options: words of other tools, swapped words, and similar spellings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import click

from chessreg.errors import ChessregError

# Options of other tools and everyday words → the options that they may mean, the likeliest first.
OPTIONS_BY_WORD: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "--model": ("--checkpoint",),
        "--ckpt": ("--checkpoint",),
        "--weights": ("--checkpoint",),
        "--model-name": ("--checkpoint",),
        "--lr": ("--learning-rate",),
        "--wd": ("--weight-decay",),
        "--gpu": ("--device",),
        "--gpus": ("--device",),
        "--cuda": ("--device",),
        "--cpu": ("--device",),
        "--out": ("--output", "--pgn", "--svg", "--png", "--save"),
        "--outfile": ("--output", "--pgn", "--svg", "--png", "--save"),
        "--output": ("--pgn", "--svg", "--png", "--save"),
        "--file": ("--output", "--pgn", "--spec"),
        "--config": ("--spec",),
        "--n": ("--games", "--positions", "--samples", "--tokens", "--lines"),
        "--num": ("--games", "--positions", "--samples", "--tokens"),
        "--count": ("--games", "--positions", "--samples", "--tokens"),
        "--num-games": ("--games",),
        "--n-games": ("--games",),
        "--max-games": ("--games",),
        "--games-file": ("--dataset", "--datasets"),
        "--data": ("--dataset", "--datasets", "--cache"),
        "--games": ("--dataset", "--datasets"),
        "--pgn": ("--dataset", "--datasets"),
        "--input": ("--dataset", "--datasets", "--cache", "--file"),
        "--activations": ("--cache",),
        "--acts": ("--cache",),
        "--iters": ("--steps", "--epochs"),
        "--iterations": ("--steps", "--epochs"),
        "--max-steps": ("--steps",),
        "--epochs": ("--steps",),
        "--batch": ("--batch-tokens", "--batch-games", "--batch-positions", "--batch-states"),
        "--batch-size": ("--batch-tokens", "--batch-games", "--batch-positions", "--batch-states"),
        "--bs": ("--batch-tokens", "--batch-games", "--batch-positions", "--batch-states"),
        "--context-length": ("--block-size",),
        "--ctx": ("--block-size",),
        "--seq-len": ("--block-size",),
        "--d-model": ("--n-embd",),
        "--hidden-size": ("--n-embd",),
        "--heads": ("--n-head",),
        "--num-heads": ("--n-head",),
        "--num-layers": ("--n-layer",),
        "--warmup": ("--warmup-steps",),
        "--layer": ("--layers",),
        "--hook": ("--hook-points", "--hook-point"),
        "--hook-name": ("--hook-points", "--hook-point"),
        "--steering-vector": ("--intervention.vector", "--vector"),
        "--alpha": ("--intervention.scale", "--scale"),
        "--coefficient": ("--intervention.scale", "--scale"),
        "--strength": ("--intervention.scale", "--scale"),
        "--engine": ("--opponent",),
        "--stockfish": ("--opponent",),
        "--expansion-factor": ("--expansion",),
        "--sparsity": ("--l1-coefficient", "--l0"),
        "--target": ("--label",),
        "--temp": ("--temperatures", "--temperature"),
        "--random-seed": ("--seed",),
        "--workers": ("--processes", "--threads", "--shards"),
        "--num-workers": ("--processes", "--threads", "--shards"),
        "--jobs": ("--processes", "--threads", "--shards"),
        "--run-name": ("--name",),
        "--title": ("--name",),
        "--filter": ("--where",),
        "--csv": ("--format",),
        "--reason": ("--why",),
        "--limit": ("--last",),
        "--tail": ("--last",),
        "--head": ("--last",),
        "--top": ("--last",),
    }
)
MAX_SUGGESTIONS = 3
MIN_SIMILARITY = 0.8  # difflib ratio
NOUN_SYNONYMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "model": ("checkpoint",),
        "models": ("checkpoint",),
        "weights": ("checkpoint",),
        "data": ("dataset",),
        "games": ("game", "dataset"),
        "experiment": ("runs",),
        "experiments": ("runs",),
        "run": ("runs",),
        "activations": ("cache",),
        "steering": ("vector",),
        "table": ("query",),
        "tables": ("query",),
        "figure": ("plot",),
    }
)
VERB_SYNONYMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ls": ("list",),
        "log": ("logs",),
        "import": ("add",),
        "load": ("import", "add"),
        "add": ("import",),
        "download": ("fetch",),
        "get": ("show", "fetch"),
        "info": ("show",),
        "rename": ("name",),
        "stop": ("cancel",),
        "kill": ("cancel",),
        "delete": ("invalidate",),
        "remove": ("invalidate",),
        "rm": ("invalidate",),
        "fit": ("run",),
        "train": ("run",),
        "make": ("run",),
        "create": ("run", "init"),
        "start": ("run",),
    }
)
PHRASES: Mapping[str, str] = MappingProxyType(
    {
        "sql": "query --sql",
        "select": "query --sql",
        "list": "runs list",
        "ls": "runs list",
        "show": "runs show",
        "fit": "run probe",
        "resume": "run --resume",
        "watch": "attach",
        "top": "attach",
        "ui": "tui",
        "gui": "tui",
        "results": "query --list",
        "validate": "unmark",
        "upgrade": "db upgrade",
        "backup": "db backup",
    }
)


def suggest_commands(root: click.Group, context: click.Context, words: Sequence[str]) -> list[str]:
    """Return at most three commands, without `chessreg`, that the unknown command `words` may mean.

    `context` is that of `root`. Both orders of the first two words are tried, with their synonyms, so that
    `checkpoint import` finds `import checkpoint`; then commands of the group `first` spelled like the second word; then
    commands spelled like the first word; then either word alone.
    """
    first, *other_words = (word.lower() for word in words[:2] if not word.startswith("-"))
    pairs: list[tuple[str, ...]] = []
    for second in other_words:
        for one in _list_synonyms(first):
            for other in _list_synonyms(second):
                pairs += [(one, other), (other, one)]
    commands = [pair for pair in pairs if _is_command(root, context, pair)]
    group = root.get_command(context, first)
    if not commands and other_words and isinstance(group, click.Group):
        similar_names = difflib.get_close_matches(other_words[0], group.list_commands(context), cutoff=0.7)
        commands = [(first, name) for name in similar_names]
    is_known = first in PHRASES or any(_is_command(root, context, (word,)) for word in _list_synonyms(first))
    if not commands and not is_known:
        similar_names = difflib.get_close_matches(first, root.list_commands(context), cutoff=MIN_SIMILARITY)
        commands = [(name,) for name in similar_names]
    commands += [(word,) for word in other_words if not commands and _is_command(root, context, (word,))]
    if not commands and first in PHRASES:
        return [PHRASES[first]]
    if not commands:
        commands = [("run", first)] if _is_command(root, context, ("run", first)) else []
        commands += [(noun, "list") for noun in _list_synonyms(first) if _is_command(root, context, (noun, "list"))]
    return list(dict.fromkeys(" ".join(pair) for pair in commands))[:MAX_SUGGESTIONS]


def _list_synonyms(word: str) -> list[str]:
    """Return a word, its singular or plural, and its synonyms."""
    forms = [word, *VERB_SYNONYMS.get(word, ()), *NOUN_SYNONYMS.get(word, ())]
    return [*forms, word.removesuffix("s") if word.endswith("s") else f"{word}s"]


def _is_command(root: click.Group, context: click.Context, words: Sequence[str]) -> bool:
    """Return whether `words` name a command or group, starting at `root`."""
    group: click.Command = root
    for word in words:
        if not isinstance(group, click.Group):
            return False
        try:
            command = group.get_command(context, word)
        except ChessregError:  # no such kind or paper
            return False
        if command is None:
            return False
        group = command
    return True


def suggest_options(command: click.Command, word: str) -> list[str]:
    """Return at most three options of `command` that `word` may mean.

    Options that MEANT lists for `word` come first, else options whose name ends with it (`--scale`:
    `--intervention.scale`), else options that begin with it or are spelled like it.
    """
    options = {name for parameter in command.params if isinstance(parameter, click.Option)
               for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--")}  # fmt: skip
    if meant_options := [option for option in OPTIONS_BY_WORD.get(word, ()) if option in options]:
        return meant_options[:MAX_SUGGESTIONS]
    parts = word.lstrip("-").split("-")
    matching_options = [option for option in sorted(options) if parts == re.split(r"[-.]", option[2:])[-len(parts) :]]
    completed_options = [option for option in sorted(options) if len(word) > 3 and option.startswith(word)]
    similar_options = difflib.get_close_matches(
        word.lstrip("-"), sorted(name[2:] for name in options), n=MAX_SUGGESTIONS, cutoff=MIN_SIMILARITY
    )
    return (matching_options or completed_options)[:MAX_SUGGESTIONS] or [f"--{name}" for name in similar_options]
