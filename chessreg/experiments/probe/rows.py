"""Columns of a cache's rows from encoding the games again: phase, board by another alignment, game's end.

A cache holds game, token and ply of each row. The phase of a token, and the board that another alignment gives it,
follow from its encoding, by which the same sites are found again.
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
    phase: np.ndarray
    ply: np.ndarray
    whole: np.ndarray


class EncodedRows(NamedTuple):
    """Columns of a cache's rows that are computed by encoding the games again.

    usable: bool [rows], those of the wanted phase and end. ply int [rows]: of the board that each row
    is labelled with. phase int8 [rows], -1 where it is not known.
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
    """The rows of a cache that are of a phase, or at the end of their games. game: of this one alone.

    Raises BadInputError for a phase that the encoding does not have, and for an end that the cache does not hold.
    """
    written = inputs.encoding(cache.checkpoint)
    check_phase(written, phase)
    sites = encode_cached_sites(inputs, written, cache, alignment, game)
    usable = np.ones(len(sites.ply), bool)
    if last_sites is not None:
        usable &= mask_last_sites(cache, last_sites) & sites.whole
    if phase is not None:
        usable &= sites.phase == phase
    return EncodedRows(usable, sites.ply, sites.phase)


def check_phase(written: Encoding, phase: int | None) -> None:
    if phase is not None and not 0 <= phase < len(written.phases):
        known = ", ".join(f"{number} {name}" for number, name in enumerate(written.phases))
        raise BadInputError(f"{written.name} has no phase {phase}", f"it has {known}")


def mask_last_sites(cache: CachedActivations, last_sites: int) -> np.ndarray:
    """bool [rows]: whether a row is among the last `last_sites` of its game."""
    if cache.run.spec["max_sites"] is not None:
        raise BadInputError(
            f"the cache ends at site {cache.run.spec['max_sites']} of each game; --last-sites counts from the end",
            "--last-sites none, or cache without --max-sites",
        )
    if cache.last_sites is not None and cache.last_sites < last_sites:
        raise BadInputError(f"the cache holds the last {cache.last_sites} sites of each game, not {last_sites}")
    number, count = number_rows(cache)
    last: np.ndarray = count - number <= last_sites
    return last


def number_rows(cache: CachedActivations) -> tuple[np.ndarray, np.ndarray]:
    """int64 [rows] each: which of its game's cached rows a row is, from 0, and how many the game has."""
    game = cache.array.game
    order = np.lexsort((cache.array.token, cache.array.ply, game))
    starts = np.flatnonzero(np.diff(game[order], prepend=-1))
    counts = np.diff(starts, append=len(game))
    number, count = np.empty(len(game), np.int64), np.empty(len(game), np.int64)
    number[order] = np.arange(len(game)) - np.repeat(starts, counts)
    count[order] = np.repeat(counts, counts)
    return number, count


def encode_cached_sites(
    inputs: Inputs, written: Encoding, cache: CachedActivations, alignment: Alignment | None, game: int | None
) -> _Sites:
    """Phase, ply under this alignment, and whether the game is whole in the model's context, of every cached row.

    Raises ChessregError where the cache holds other sites than its spec gives today.
    """
    from chessreg.experiments.settings.sites import EncodedGames

    spec, array = cache.run.spec, cache.array
    items, places = select_items(extract_selection(spec), inputs)
    if game is not None:
        places = places[places == game]
    block_size = inputs.checkpoint_row(cache.checkpoint).block_size

    def encoded(aligned: Any) -> EncodedGames:
        games = EncodedGames.of(written, block_size, items, places, str(spec["sites"]), aligned)
        return games.between(int(spec["skip_sites"]), spec["max_sites"], cache.last_sites)

    own = encoded(cache.alignment)
    of_game = places[own.game]
    theirs = np.lexsort((own.sites.token, own.sites.ply, of_game))
    mine = np.arange(len(array.game)) if game is None else np.flatnonzero(array.game == game)
    mine = mine[np.lexsort((array.token[mine], array.ply[mine], array.game[mine]))]
    pairs = ((array.game, of_game), (array.token, own.sites.token), (array.ply, own.sites.ply))
    if not all(np.array_equal(held[mine], present[theirs]) for held, present in pairs):
        raise ChessregError(
            f"cache {cache.run.id.hex[-6:]} holds other sites than its spec gives now", "cache the games again"
        )
    other = own if alignment in (None, cache.alignment) else encoded(alignment)
    sites = _Sites(np.full(len(array.game), -1, np.int8), array.ply.copy(), np.zeros(len(array.game), bool))
    sites.phase[mine] = own.sites.phase[theirs]
    sites.ply[mine] = other.sites.ply[theirs]
    sites.whole[mine] = own.whole[own.sites.item][theirs]
    return sites


MIN_PHASE_POSITIONS = 1000  # fitted positions


def check_position_count(
    written: Encoding,
    phase: int | None,
    cache: CachedActivations,
    positions: int,
    games: int,
    least: int | None,
) -> None:
    """Raises BadInputError for fewer positions than a probe shall have, of one phase at least 1,000."""
    few = "the cache"
    if least is None:
        least = MIN_PHASE_POSITIONS if phase is not None else 0
    if positions >= least:
        return
    if phase is not None:
        few = f"phase {phase} ({written.phases[phase]})"
    raise BadInputError(
        f"{few} has {positions:,} positions to fit on in {games:,} games, --min-positions asks for {least:,}",
        f"cache more games, or sites that have them ({cache.sites} are cached), or lower --min-positions",
    )
