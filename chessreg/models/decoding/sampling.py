"""Sampling moves token by token, with noise that does not depend on the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chessreg.noise import uniform

if TYPE_CHECKING:
    import chess

    from chessreg.encodings import Encoding
    from chessreg.models.decoding.tree import TokenTree

Key = tuple[int | str, ...]


@dataclass(frozen=True)
class SampledText:
    """One continuation.

    `text` excludes a token that ends the move, `tokens` includes it; `finished`: the move is complete. `logprob` is the
    natural log-probability of the tokens under the model at temperature 1.
    """

    text: str
    tokens: list[int]
    logprob: float
    finished: bool


def draw_tokens(logprobs: np.ndarray, temperatures: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Return token ids int64 [rows] drawn from log-probabilities [rows, vocab] by inverting each row's distribution
    function.

    A row with temperature 0 takes its most probable token. `uniforms` [rows] are in [0, 1).
    """
    scores = logprobs.astype(np.float64)
    scores -= scores.max(1, keepdims=True)
    weights = np.exp(scores / np.where(temperatures > 0, temperatures, 1.0)[:, None])
    ladder = weights.cumsum(1)
    token_ids = (ladder <= (uniforms * ladder[:, -1])[:, None]).sum(1)
    return np.where(temperatures > 0, np.minimum(token_ids, logprobs.shape[1] - 1), scores.argmax(1))


def sample_trees(
    trees: TokenTree,
    encoding: Encoding,
    boards: Sequence[chess.Board],
    keys: Sequence[Sequence[Key]],
    *,
    temperature: Sequence[float],
    max_tokens: int | None = None,
) -> list[list[SampledText]]:
    """Sample continuations of each row, one per key, each until it is complete or has `max_tokens` (default: the
    encoding's).

    `temperature` has one value per key (0 is greedy). `boards` has the position of each row. A key names the draws of a
    continuation, for example (seed, unit, ply, try); this function adds the step, so the result does not depend on the
    rows of a batch. Continuations share the nodes of their row's tree, and existing nodes are not recomputed: after the
    legal moves were scored, most texts cost nothing. Karvonen 2024 (chess_gpt_eval): at most 10 new characters, ending
    at a space.
    """
    limit = encoding.max_move_tokens if max_tokens is None else max_tokens
    heats = np.asarray(temperature, np.float64)
    draws = [(place, number, key) for place, row_keys in enumerate(keys) for number, key in enumerate(row_keys)]
    sequences: list[tuple[int, ...]] = [()] * len(draws)
    totals = np.zeros(len(draws))
    active = list(range(len(draws)))
    while active:
        ready_draws = [i for i in active if trees.has(draws[i][0], sequences[i])]
        if not ready_draws:
            wanted_prefixes: list[set[tuple[int, ...]]] = [set() for _ in range(len(trees))]
            for i in active:
                wanted_prefixes[draws[i][0]].add(sequences[i])
            trees.grow([sorted(row) for row in wanted_prefixes])
            continue
        logprobs = np.stack([trees.logprobs(draws[i][0], sequences[i]) for i in ready_draws])
        heat = heats[[draws[i][1] for i in ready_draws]]
        noise = np.array(
            [uniform(*draws[i][2], len(sequences[i])) if h > 0 else 0.0 for i, h in zip(ready_draws, heat, strict=True)]
        )
        tokens = draw_tokens(logprobs, heat, noise)
        totals[ready_draws] += logprobs[np.arange(len(ready_draws)), tokens]
        for i, token in zip(ready_draws, tokens.tolist(), strict=True):
            sequences[i] = (*sequences[i], token)
        active = [
            i
            for i in active
            if not sequences[i]
            or (len(sequences[i]) < limit and not encoding.is_complete(sequences[i], boards[draws[i][0]]))
        ]
    texts: list[list[SampledText]] = [[] for _ in keys]
    for (place, _, _), ids, total in zip(draws, sequences, totals.tolist(), strict=True):
        complete = encoding.is_complete(ids, boards[place])
        texts[place].append(SampledText(encoding.answer_text(ids), list(ids), total, complete))
    return texts
