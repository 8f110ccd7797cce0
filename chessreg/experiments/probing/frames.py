"""Boards behind a probe's score: what the probe reads off each looked-at position of one game."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np

from chessreg.games.boardframe import BoardFrame, Mark
from chessreg.jobs.inputs import Inputs
from chessreg.registry import tables


def frames_of_score(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """One frame per looked-at position of the game: the position, squares read wrongly marked, confidence as heat."""
    from chessreg.experiments.cache import load_cache
    from chessreg.experiments.probe import ProbeSpec, load_probe
    from chessreg.games.labels import label
    from chessreg.games.reader import boards_of

    with inputs.database.read() as session:
        run = session.get_one(tables.Run, UUID(str(row["run_id"])))
        spec = ProbeSpec(**run.spec)
        recipe = f"run:{run.spec_hash}"
    which = spec.test_cache if row["split"] == "test" and spec.test_cache else spec.cache
    cache = load_cache(inputs, which)
    probe = load_probe(inputs, recipe, int(row["layer"]))
    at = np.flatnonzero(cache.array.game == row["item"])
    games, _ = inputs.dataset(cache.spec.dataset)
    boards, _ = boards_of(games.texts(np.array([row["item"]])))
    classes = label(probe.label)
    residual = cache.read(probe.layer, at)
    logits = np.einsum("pd,dsk->psk", residual, probe.weight, optimize=True)
    logits -= logits.max(-1, keepdims=True)
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    frames = []
    for i, ply in enumerate(cache.array.ply[at].tolist()):
        truth = classes.of(boards[ply : ply + 1])[0]
        read = probability[i].argmax(-1)
        wrong: dict[int, Mark] = {int(s): "wrong" for s in np.flatnonzero(read != truth)}
        frames.append(
            BoardFrame(
                title=f"ply {ply}: layer {probe.layer} reads {64 - len(wrong)} of 64 squares",
                squares=letters(boards[ply]),
                marks=wrong,
                heat={s: float(probability[i, s, truth[s]]) for s in range(64)},
                heat_label="probability of the truth",
            )
        )
    return frames


def letters(values: np.ndarray) -> str:
    """The 64 piece letters of a board of signed piece values int8 [64], a1 first."""
    return "".join("kqrbnp.PNBRQK"[value + 6] for value in values.tolist())
