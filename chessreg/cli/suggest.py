"""The options that a user may have meant by one that a command does not have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType

import click

# Words of other tools and everyday words → the options that they may mean, the likeliest first.
MEANT: Mapping[str, tuple[str, ...]] = MappingProxyType(
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
    }
)
MOST = 3  # suggestions
ALIKE = 0.8  # least difflib ratio of a suggestion


def meant(command: click.Command, word: str) -> list[str]:
    """Return at most MOST options of `command` that `word` may mean: options listed in MEANT, else options whose name
    ends with `word` (`--scale`: `--intervention.scale`), else options that begin with it or are spelled like it."""
    options = {name for parameter in command.params if isinstance(parameter, click.Option)
               for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--")}  # fmt: skip
    if listed := [option for option in MEANT.get(word, ()) if option in options]:
        return listed[:MOST]
    parts = word.lstrip("-").split("-")
    inside = [option for option in sorted(options) if parts == re.split(r"[-.]", option[2:])[-len(parts) :]]
    begun = [option for option in sorted(options) if len(word) > 3 and option.startswith(word)]
    near = difflib.get_close_matches(word.lstrip("-"), sorted(name[2:] for name in options), n=MOST, cutoff=ALIKE)
    return (inside or begun)[:MOST] or [f"--{name}" for name in near]
