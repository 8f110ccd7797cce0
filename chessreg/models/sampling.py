"""Writing moves character by character, with noise that does not depend on the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chessreg.errors import BadInputError
from chessreg.noise import uniform

if TYPE_CHECKING:
    from chessreg.encodings.tokenizers import Tokenizer
    from chessreg.models.decoding import DecodingSession
    from chessreg.models.tree import Continuations

Key = tuple[int | str, ...]


@dataclass(frozen=True)
class SampledText:
    """One continuation. text is without the stop token, tokens with it; finished says whether one was sampled.

    logprob is the natural log-probability of the tokens under the model at temperature 1.
    """

    text: str
    tokens: list[int]
    logprob: float
    finished: bool


def draw(logprobs: np.ndarray, temperatures: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Token ids int64 [rows] from log-probabilities [rows, vocab], by inverting each row's distribution function.

    A row of temperature 0 takes its most probable token. uniforms [rows] in [0, 1).
    """
    scores = logprobs.astype(np.float64)
    scores -= scores.max(1, keepdims=True)
    weights = np.exp(scores / np.where(temperatures > 0, temperatures, 1.0)[:, None])
    ladder = weights.cumsum(1)
    drawn = (ladder <= (uniforms * ladder[:, -1])[:, None]).sum(1)
    return np.where(temperatures > 0, np.minimum(drawn, logprobs.shape[1] - 1), scores.argmax(1))


def sample_moves(
    session: DecodingSession,
    tokenizer: Tokenizer,
    keys: Sequence[Key],
    *,
    temperature: float | Sequence[float] = 1.0,
    max_tokens: int | None = None,
    rows: Sequence[int] | None = None,
    keep: bool = False,
) -> list[SampledText]:
    """One continuation for each row (or for each of `rows`), until a stop token or `max_tokens` (the tokenizer's).

    keys name the draws of each continuation, for example (seed, unit, ply, try); the step is added here, so what is
    sampled does not depend on which rows share a batch. temperature is one number or one for each; 0 is greedy.
    The session comes back as it was; with `keep` it holds the sampled tokens except each row's last, which is a stop
    token that was never fed, or the token at which the limit struck. A row at the model's last position ends
    unfinished. Karvonen 2024 (chess_gpt_eval): at most 10 new characters, ending at a space.
    """
    chosen = list(range(len(session))) if rows is None else list(rows)
    if len(keys) != len(chosen):
        raise BadInputError(f"{len(keys)} noise keys for {len(chosen)} rows")
    limit = tokenizer.max_move_tokens if max_tokens is None else max_tokens
    heats = np.broadcast_to(np.asarray(temperature, np.float64), (len(chosen),))
    before = session.mark()
    written: list[list[int]] = [[] for _ in chosen]
    totals = np.zeros(len(chosen))
    active = [i for i, row in enumerate(chosen) if session.tokens[row]]
    if len(active) < len(chosen):
        raise BadInputError("a row without a prompt cannot be continued")
    for step in range(limit):
        logprobs = session.logprobs[[chosen[i] for i in active]].cpu().numpy()
        noise = np.array([uniform(*keys[i], step) if heats[i] > 0 else 0.0 for i in active])
        tokens = draw(logprobs, heats[active], noise)
        for place, i in enumerate(active):
            written[i].append(int(tokens[place]))
            totals[i] += logprobs[place, tokens[place]]
        active = [
            i
            for i in active
            if written[i][-1] not in tokenizer.stop_ids and len(session.tokens[chosen[i]]) < session.model.block_size
        ]
        if not active or step == limit - 1:
            break
        new: list[list[int]] = [[] for _ in range(len(session))]
        for i in active:
            new[chosen[i]] = written[i][-1:]
        session.feed(new)
    if not keep:
        session.restore(before, chosen)
    return [_sampled(tokenizer, ids, float(total)) for ids, total in zip(written, totals, strict=True)]


def sample_trees(
    trees: Continuations,
    tokenizer: Tokenizer,
    keys: Sequence[Sequence[Key]],
    *,
    temperature: Sequence[float],
    max_tokens: int | None = None,
) -> list[list[SampledText]]:
    """Several continuations of each row, one for each of its keys, of the given temperatures (one a key).

    What `sample_moves` would write with the same keys. Continuations share the nodes of their row's tree, and what the
    tree holds already is not computed again: after the legal moves were scored most texts cost nothing.
    """
    limit = tokenizer.max_move_tokens if max_tokens is None else max_tokens
    heats = np.asarray(temperature, np.float64)
    drawn = [(place, number, key) for place, own in enumerate(keys) for number, key in enumerate(own)]
    written: list[tuple[int, ...]] = [()] * len(drawn)
    totals = np.zeros(len(drawn))
    active = list(range(len(drawn)))
    while active:
        ready = [i for i in active if trees.has(drawn[i][0], written[i])]
        if not ready:
            wanted: list[set[tuple[int, ...]]] = [set() for _ in range(len(trees))]
            for i in active:
                wanted[drawn[i][0]].add(written[i])
            trees.grow([sorted(row) for row in wanted])
            continue
        logprobs = np.stack([trees.logprobs(drawn[i][0], written[i]) for i in ready])
        heat = heats[[drawn[i][1] for i in ready]]
        noise = np.array(
            [uniform(*drawn[i][2], len(written[i])) if h > 0 else 0.0 for i, h in zip(ready, heat, strict=True)]
        )
        tokens = draw(logprobs, heat, noise)
        totals[ready] += logprobs[np.arange(len(ready)), tokens]
        for i, token in zip(ready, tokens.tolist(), strict=True):
            written[i] = (*written[i], token)
        active = [
            i
            for i in active
            if not written[i] or (written[i][-1] not in tokenizer.stop_ids and len(written[i]) < limit)
        ]
    texts = [_sampled(tokenizer, list(ids), float(total)) for ids, total in zip(written, totals, strict=True)]
    found: list[list[SampledText]] = [[] for _ in keys]
    for (place, _, _), text in zip(drawn, texts, strict=True):
        found[place].append(text)
    return found


def _sampled(tokenizer: Tokenizer, ids: list[int], logprob: float) -> SampledText:
    finished = bool(ids) and ids[-1] in tokenizer.stop_ids
    return SampledText(tokenizer.decode(ids[:-1] if finished else ids), ids, logprob, finished)
