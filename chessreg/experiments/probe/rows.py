"""Columns of a cache's rows that are computed by encoding its games again: phase, ply by another alignment, end of the
game.

A cache holds game, token and ply of each row. Encoding the games again finds the same sites, and with them the phase of
each token and the board that another alignment gives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chessreg.errors import BadInputError, ChessregError
from chessreg.experiments.settings.games import extract_selection, select_items

if TYPE_CHECKING:
    from chessreg.encodings import Alignment, Encoding
    from chessreg.experiments.settings.sites import EncodedGames
    from chessreg.runs.activations import CachedActivations
    from chessreg.runs.inputs import Inputs


class _Sites(NamedTuple):
    """The sites of one cached row each: phase int8, ply int, and whether the game fits into the model's context."""

    phase: np.ndarray
    ply: np.ndarray
    fits_context: np.ndarray


class EncodedRows(NamedTuple):
    """Columns of a cache's rows that are computed by encoding the games again.

    usable: bool [rows], rows of the requested phase and end of the game. ply: int [rows], of the board that each row is
    labelled with. phase: int8 [rows], -1 if unknown.
    """

    usable: np.ndarray
    ply: np.ndarray
    phase: np.ndarray


def encode_rows(
    inputs: Inputs,
    cache: CachedActivations,
    phase: int | None,
    alignment: Alignment | None,
    last_sites: int | None,
    game: int | None = None,
) -> EncodedRows:
    """Return the rows of a cache that have a phase, or are at the end of their games. game: only rows of this game.

    Raises BadInputError for a phase that the encoding does not have, and if the cache does not hold the end of its
    games.
    """
    encoding = inputs.encoding(cache.checkpoint)
    check_phase(encoding, phase)
    sites = encode_cached_sites(inputs, encoding, cache, alignment, game)
    is_usable = np.ones(len(sites.ply), bool)
    if last_sites is not None:
        is_usable &= mask_last_sites(cache, last_sites) & sites.fits_context
    if phase is not None:
        is_usable &= sites.phase == phase
    return EncodedRows(is_usable, sites.ply, sites.phase)


def check_phase(encoding: Encoding, phase: int | None) -> None:
    """Raise BadInputError for a phase that the encoding does not have."""
    if phase is not None and not 0 <= phase < len(encoding.phases):
        phase_list = ", ".join(f"{number} {name}" for number, name in enumerate(encoding.phases))
        raise BadInputError(f"{encoding.name} has no phase {phase}", f"its phases are {phase_list}")


def mask_last_sites(cache: CachedActivations, last_sites: int) -> np.ndarray:
    """Return whether a row is among the last `last_sites` of its game, bool [rows]."""
    if cache.run.spec["max_sites"] is not None:
        raise BadInputError(
            f"--last-sites counts from the end of each game, but the cache ends at site {cache.run.spec['max_sites']}",
            "leave out --last-sites, or cache without --max-sites",
        )
    if cache.last_sites is not None and cache.last_sites < last_sites:
        raise BadInputError(
            f"--last-sites {last_sites}: the cache holds the last {cache.last_sites} sites of each game"
        )
    number, count = number_rows(cache)
    is_last: np.ndarray = count - number <= last_sites
    return is_last


def number_rows(cache: CachedActivations) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each row among its game's cached rows, from 0, and the number of these rows, int64 [rows]
    each."""
    game = cache.array.game
    order = np.lexsort((cache.array.token, cache.array.ply, game))
    starts = np.flatnonzero(np.diff(game[order], prepend=-1))
    counts = np.diff(starts, append=len(game))
    number, count = np.empty(len(game), np.int64), np.empty(len(game), np.int64)
    number[order] = np.arange(len(game)) - np.repeat(starts, counts)
    count[order] = np.repeat(counts, counts)
    return number, count


def encode_cached_sites(
    inputs: Inputs, encoding: Encoding, cache: CachedActivations, alignment: Alignment | None, game: int | None
) -> _Sites:
    """Return the phase and the ply under this alignment of every cached row, and whether its game fits the model's
    context.

    Raises ChessregError if the cache holds other sites than its spec gives now.
    """
    from chessreg.experiments.settings.sites import EncodedGames

    spec, array = cache.run.spec, cache.array
    items, places = select_items(extract_selection(spec), inputs)
    if game is not None:
        places = places[places == game]
    block_size = inputs.read_checkpoint_row(cache.checkpoint).block_size

    def encode_aligned(alignment: Any) -> EncodedGames:
        games = EncodedGames.from_items(encoding, block_size, items, places, str(spec["sites"]), alignment)
        return games.select_numbered(int(spec["skip_sites"]), spec["max_sites"], cache.last_sites)

    cached_sites = encode_aligned(cache.alignment)
    game_places = places[cached_sites.game]
    site_order = np.lexsort((cached_sites.sites.token, cached_sites.sites.ply, game_places))
    cached_rows = np.arange(len(array.game)) if game is None else np.flatnonzero(array.game == game)
    cached_rows = cached_rows[np.lexsort((array.token[cached_rows], array.ply[cached_rows], array.game[cached_rows]))]
    pairs = ((array.game, game_places), (array.token, cached_sites.sites.token), (array.ply, cached_sites.sites.ply))
    if not all(
        np.array_equal(cached_column[cached_rows], expected_column[site_order])
        for cached_column, expected_column in pairs
    ):
        raise ChessregError(
            f"cache {cache.run.id.hex[-6:]} holds other sites than its spec gives now", "cache the games again"
        )
    other = cached_sites if alignment in (None, cache.alignment) else encode_aligned(alignment)
    sites = _Sites(np.full(len(array.game), -1, np.int8), array.ply.copy(), np.zeros(len(array.game), bool))
    sites.phase[cached_rows] = cached_sites.sites.phase[site_order]
    sites.ply[cached_rows] = other.sites.ply[site_order]
    sites.fits_context[cached_rows] = cached_sites.fits_context[cached_sites.sites.item][site_order]
    return sites


MIN_PHASE_POSITIONS = 1000  # of fitted positions


def check_position_count(
    encoding: Encoding,
    phase: int | None,
    cache: CachedActivations,
    positions: int,
    games: int,
    min_positions: int | None,
) -> None:
    """Raise BadInputError if there are fewer than `min_positions` positions to fit on. None: 1,000 for one phase,
    otherwise 0.

    `games`, `phase` and `cache` describe the positions in the message.
    """
    description = "the cache"
    if min_positions is None:
        min_positions = MIN_PHASE_POSITIONS if phase is not None else 0
    if positions >= min_positions:
        return
    if phase is not None:
        description = f"phase {phase} ({encoding.phases[phase]})"
    raise BadInputError(
        f"{description} has {positions:,} positions to fit on in {games:,} games; --min-positions requires "
        f"{min_positions:,}",
        f"cache more games or other sites (these are {cache.sites}), or lower --min-positions",
    )
