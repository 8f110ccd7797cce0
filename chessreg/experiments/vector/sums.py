"""Sums over the looked-at positions of each game, of every layer: all that a contrast needs of the activations.

They come from a cache, or from the model in one forward pass over the games that are wanted (nothing is cached then).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from chessreg.entities.cache import CachedActivations
    from chessreg.models.edits import Edit
    from chessreg.models.language_model import LanguageModel

SLICE = 1 << 16  # cached rows read at once
GROUP = 128  # games between two savings of a forward pass that may be interrupted

Places = tuple[np.ndarray, np.ndarray]
"""Positions of one or more games: index of the game int64 [p], index of the character int64 [p]."""


def positions_in(
    texts: Sequence[str], at: str, block_size: int, first_ply: int, last_ply: int | None
) -> tuple[Places, np.ndarray]:
    """Positions `at` (dots, …) of the texts with plies first_ply to last_ply inclusive, and their number per text."""
    from chessreg.encodings.positions import find_many

    game, character, ply = find_many(at, texts)
    keep = (character < block_size) & (ply >= first_ply)
    if last_ply is not None:
        keep &= ply <= last_ply
    return (game[keep], character[keep]), np.bincount(game[keep], minlength=len(texts))


def cached_rows(cache: CachedActivations, first_ply: int, last_ply: int | None) -> np.ndarray:
    """bool [rows]: the cached positions with plies first_ply to last_ply inclusive."""
    ply = cache.array.ply
    return (ply >= first_ply) & (ply <= (np.iinfo(ply.dtype).max if last_ply is None else last_ply))


def from_cache(cache: CachedActivations, layer: int, places: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Sums float64 [games, d_model] over the rows where `rows` bool [cached rows] is True, for games `places`."""
    order = np.argsort(places)
    index = np.minimum(np.searchsorted(places, cache.array.game, sorter=order), len(places) - 1)
    index = order[index]
    wanted = rows & (places[index] == cache.array.game)
    out = np.zeros((len(places), cache.array.d_model))
    for low in range(0, len(rows), SLICE):
        mine = np.flatnonzero(wanted[low : low + SLICE])
        if len(mine):
            values = cache.read(layer, slice(low + int(mine[0]), low + int(mine[-1]) + 1))[mine - mine[0]]
            games = index[low + mine]
            at = np.argsort(games, kind="stable")
            starts = np.flatnonzero(np.diff(games[at], prepend=-1))
            out[games[at][starts]] += np.add.reduceat(values[at].astype(np.float64), starts, axis=0)
    return out


def from_model(
    model: LanguageModel,
    texts: Sequence[str],
    where: Places,
    layers: Sequence[int],
    batch_games: int,
    edits: Sequence[Edit] = (),
    on_progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Sums float32 [layers, games, d_model] over the positions `where`, all layers in one forward pass.

    Games are taken in batches of similar length; what follows a game's last position is not computed. A game without
    a position has sum 0. `edits` change the residual stream of every pass.
    """
    import torch

    from chessreg.encodings.tokenizers import tokenizer

    encode = tokenizer(model.info.tokenizer).encode
    game, character = where
    counts = np.bincount(game, minlength=len(texts))
    starts = np.cumsum(counts) - counts
    width = np.zeros(len(texts), np.int64)
    np.maximum.at(width, game, character + 1)
    out = np.zeros((len(layers), len(texts), model.d_model), np.float32)
    order = np.argsort(width, kind="stable")
    order = order[width[order] > 0]
    for low in range(0, len(order), batch_games):
        batch = order[low : low + batch_games]
        most = int(counts[batch].max())
        tokens = np.zeros((len(batch), int(width[batch].max())), np.int64)
        at = np.zeros((len(batch), most), np.int64)
        real = np.arange(most) < counts[batch][:, None]
        for i, g in enumerate(batch.tolist()):
            tokens[i, : width[g]] = encode(texts[g][: width[g]])
            at[i, : counts[g]] = character[starts[g] : starts[g] + counts[g]]
        residual = model.residuals(torch.from_numpy(tokens), layers, torch.from_numpy(at), edits=edits)
        mask = torch.from_numpy(real).to(residual.device)[None, :, :, None]
        out[:, batch] = (residual.float() * mask).sum(2).cpu().numpy()
        on_progress(low + len(batch))
    return out


def from_model_resumable(
    model: LanguageModel,
    texts: Sequence[str],
    where: Places,
    layers: Sequence[int],
    batch_games: int,
    folder: Path,
    on_progress: Callable[[int], None],
) -> np.ndarray:
    """`from_model` in groups of games that are kept in `folder`, so that a killed pass goes on where it stopped.

    The folder must be of this run alone: layers, games and positions are a function of the run's spec.
    """
    game, character = where
    name = "sums-" + "_".join(map(str, layers))
    folder.mkdir(parents=True, exist_ok=True)
    pieces = []
    for low in range(0, len(texts), GROUP):
        high = min(low + GROUP, len(texts))
        path = folder / f"{name}-{low}.npy"
        if not path.exists():
            mine = (game >= low) & (game < high)
            here = game[mine] - low, character[mine]
            shift = partial(_shifted, on_progress, low)
            piece = from_model(model, texts[low:high], here, layers, batch_games, on_progress=shift)
            with (folder / f".{name}-{low}.{os.getpid()}").open("wb") as file:
                np.save(file, piece)
            os.replace(file.name, path)
        pieces.append(np.load(path))
        on_progress(high)
    return np.concatenate(pieces, axis=1)


def _shifted(on_progress: Callable[[int], None], low: int, done: int) -> None:
    on_progress(low + done)
