"""Sums of activations over the sites of each game, by layer, from which contrasts are computed.

They come from a cache, or from one forward pass over the games, which stores no activations.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chessreg.errors import ChessregError, DivergedError, get_first_line, reraise_lack_of_memory
from chessreg.experiments.settings.sites import EncodedGames
from store.files import replace_file

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.games.datasets.dataset import Games
    from chessreg.models.edits import ResidualEdit
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.activations import CachedActivations

SLICE_ROWS = 1 << 16  # cached rows in memory at once
GROUP_GAMES = 128  # games between two saves of a resumable forward pass


def encode_ply_sites(
    encoding: Encoding,
    block_size: int,
    games: Games,
    places: np.ndarray,
    sites: str,
    first_ply: int,
    last_ply: int | None,
) -> EncodedGames:
    """Return the games at rows `places` of a dataset, encoded for a context of `block_size` tokens, with their `sites`
    (the name of a kind of token positions) of plies `first_ply` to `last_ply` inclusive (None: the last)."""
    encoded_games = EncodedGames.from_items(encoding, block_size, games, places, sites)
    ply = encoded_games.sites.ply
    return encoded_games.take((ply >= first_ply) & (ply <= (np.iinfo(ply.dtype).max if last_ply is None else last_ply)))


def mask_cached_rows(cache: CachedActivations, first_ply: int, last_ply: int | None) -> np.ndarray:
    """Return a mask bool [rows] of the cached positions with plies first_ply to last_ply inclusive."""
    ply = cache.array.ply
    return (ply >= first_ply) & (ply <= (np.iinfo(ply.dtype).max if last_ply is None else last_ply))


def sum_cached_activations(cache: CachedActivations, layer: int, places: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return sums float64 [games, d_model] over the cached rows where `rows` (bool [cached rows]) is True.

    `places` int64 [games] are the dataset rows of the games.
    """
    order = np.argsort(places)
    index = np.minimum(np.searchsorted(places, cache.array.game, sorter=order), len(places) - 1)
    index = order[index]
    is_wanted = rows & (places[index] == cache.array.game)
    sums = np.zeros((len(places), cache.array.d_model))
    for low in range(0, len(rows), SLICE_ROWS):
        slice_rows = np.flatnonzero(is_wanted[low : low + SLICE_ROWS])
        if len(slice_rows):
            values = cache.values(layer, slice(low + int(slice_rows[0]), low + int(slice_rows[-1]) + 1))[
                slice_rows - slice_rows[0]
            ]
            games = index[low + slice_rows]
            at = np.argsort(games, kind="stable")
            starts = np.flatnonzero(np.diff(games[at], prepend=-1))
            sums[games[at][starts]] += np.add.reduceat(values[at].astype(np.float64), starts, axis=0)
    return sums


def sum_model_activations(
    model: LanguageModel,
    encoded_games: EncodedGames,
    layers: Sequence[int],
    batch_games: int,
    edits: Sequence[ResidualEdit] = (),
    on_progress: Callable[[int], None] = lambda number: None,
) -> np.ndarray:
    """Return sums float32 [layers, games, d_model] over the sites of each game, all layers in one forward pass.

    Games of similar length share a batch, and tokens after a game's last site are not computed. A game without a site
    has sum 0. `edits` apply to every pass. `on_progress` gets the number of finished games. Raises DivergedError for
    NaN or infinite activations.
    """
    import torch

    width = encoded_games.widths
    sums = np.zeros((len(layers), encoded_games.games, model.d_model), np.float32)
    order = np.argsort(width, kind="stable")
    order, done_games = order[width[order] > 0], 0
    for items in encoded_games.iterate_batches(order, batch_games):
        row, sites = encoded_games.find_item_sites(items)
        counts = np.bincount(row, minlength=len(items))
        column = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        at, real = np.zeros((2, len(items), counts.max()), np.int64)
        at[row, column], real[row, column] = encoded_games.sites.token[sites], 1
        tokens = encoded_games.pad_tokens(items, int(width[items].max()))
        residual = model.residuals(torch.from_numpy(tokens), layers, torch.from_numpy(at), edits=edits)
        mask = torch.from_numpy(real.astype(bool)).to(residual.device)[None, :, :, None]
        row_index: Any = (slice(None), encoded_games.tokens.source[items])
        np.add.at(sums, row_index, (residual.float() * mask).sum(2).cpu().numpy())
        done_games += len(items)
        on_progress(encoded_games.games * done_games // len(order))
    if not np.isfinite(sums).all():
        raise DivergedError("activations are NaN or infinite: the model overflows")
    return sums


def sum_resumable(
    model: LanguageModel,
    encoded_games: EncodedGames,
    layers: Sequence[int],
    batch_games: int,
    folder: Path,
    on_progress: Callable[[int], None],
) -> np.ndarray:
    """Return the sums of `sum_model_activations`. Each group of games is saved in `folder`, so that a killed pass
    resumes.

    The folder must belong to this run alone, because file names state only layers and games.
    """
    name = "sums-" + "_".join(map(str, layers))
    folder.mkdir(parents=True, exist_ok=True)
    pieces = []
    for low in range(0, encoded_games.games, GROUP_GAMES):
        high = min(low + GROUP_GAMES, encoded_games.games)
        path = folder / f"{name}-{low}.npy"
        if not path.exists():
            shift = partial(_report_shifted, on_progress, low)
            piece = sum_model_activations(
                model, encoded_games.slice_games(low, high), layers, batch_games, on_progress=shift
            )
            with replace_file(path, folder / f".{name}-{low}.{os.getpid()}") as file:
                np.save(file, piece)
        pieces.append(read_group_sums(path))
        on_progress(high)
    return np.concatenate(pieces, axis=1)


def read_group_sums(path: Path) -> np.ndarray:
    """Return the sums float32 [layers, games, d_model] of one group that an earlier attempt saved.

    Raises ChessregError for a damaged file.
    """
    try:
        piece: np.ndarray = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises many types for damaged files
        reraise_lack_of_memory(error, path.stat().st_size)
        raise ChessregError(f"{path} is damaged: {get_first_line(error)}", "remove it to compute it again") from error
    return piece


def _report_shifted(on_progress: Callable[[int], None], low: int, done_games: int) -> None:
    """Report `done_games` games after the `low` games of earlier groups."""
    on_progress(low + done_games)
