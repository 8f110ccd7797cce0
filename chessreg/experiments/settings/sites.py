"""Token positions (sites) of games at which a model is read, as a setting of kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chessreg.encodings import Alignment, Encoding, Sites, Tokens
from chessreg.errors import BadInputError

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games
    from chessreg.games.datasets.positions import Positions

BOARDS_PER_GAME = 8  # in one forward pass, if items are boards
COMMON_SITES = {"dots": "white-turns", "even-spaces": "black-turns"}
"""Names in specs for sites that every encoding has under another name."""


def resolve_site_name(name: str, encoding: Encoding) -> str:
    """Return the encoding's name of these sites."""
    return name if name in encoding.site_names else COMMON_SITES.get(name, name)


@dataclass(frozen=True, eq=False)
class EncodedGames:
    """Games as tokens, with the sites that fit a model's context. Items are games or boards."""

    encoding: Encoding
    tokens: Tokens
    sites: Sites
    games: int
    fits_context: np.ndarray
    """bool [items]: whether the whole item fits the model's context."""

    @classmethod
    def from_items(
        cls,
        encoding: Encoding,
        block_size: int,
        items: Games | Positions,
        places: np.ndarray,
        name: str,
        alignment: Alignment = "post-ply",
    ) -> EncodedGames:
        """Return the games, or positions, at the rows `places` of a dataset, with their sites named `name`.

        Only the tokens that fit a context of `block_size` are read. Raises NotFoundError for sites that the encoding
        does not have. Raises BadInputError for positions if the encoding writes games, and for a position that is
        longer than the context.
        """
        if items.content == "positions":
            ply = items.take(places, ["ply"])["ply"].to_numpy().astype(np.int64)
            tokens = replace(encoding.boards(items.fens(places)), ply=ply)
        else:
            tokens = encoding.games(items, places)
        sites = encoding.sites(resolve_site_name(name, encoding), tokens, alignment)
        lengths = np.diff(tokens.offsets)
        longest_game = int(lengths.max(initial=0))
        if encoding.content == "position" and longest_game > block_size:
            raise BadInputError(
                f"a position has {longest_game} tokens in {encoding.name}, but the model reads {block_size}",
                "use a prompt template without the legal moves, or a model with a longer context",
            )
        return cls(encoding, tokens, sites.take(sites.token < block_size), len(places), lengths <= block_size)

    @cached_property
    def game(self) -> np.ndarray:
        """int64 [sites]: the game of each site, ascending."""
        return self.tokens.source[self.sites.item]

    @cached_property
    def number(self) -> np.ndarray:
        """int64 [sites]: the number of each site among the sites of its game, from 0."""
        game = self.game
        return np.arange(len(game)) - np.searchsorted(game, np.arange(self.games))[game]

    @property
    def counts(self) -> np.ndarray:
        """int64 [games]: number of sites of each game."""
        return np.bincount(self.game, minlength=self.games)

    def take(self, mask: np.ndarray) -> EncodedGames:
        """Return the same games with the sites at which a mask bool [sites] is True."""
        return EncodedGames(self.encoding, self.tokens, self.sites.take(mask), self.games, self.fits_context)

    def select_numbered(self, skip_sites: int, max_sites: int | None, last_sites: int | None) -> EncodedGames:
        """Return the same games with the sites numbered skip_sites ≤ number < max_sites.

        With `last_sites`, only the last sites of games that fit the context as a whole: a truncated game has no known
        end.
        """
        game, number = self.game, self.number
        mask = number >= skip_sites
        if max_sites is not None:
            mask &= number < max_sites
        if last_sites is not None:
            mask &= (self.counts[game] - number <= last_sites) & self.fits_context[self.sites.item]
        return self.take(mask)

    def slice_games(self, low: int, high: int) -> EncodedGames:
        """Return games low to high alone."""
        first, last = np.searchsorted(self.tokens.source, (low, high))
        offsets = self.tokens.offsets[first : last + 1]
        tokens = Tokens(
            self.tokens.ids[offsets[0] : offsets[-1]],
            offsets - offsets[0],
            self.tokens.source[first:last] - low,
            self.tokens.ply[first:last],
        )
        sites = self.sites.take(slice(*np.searchsorted(self.sites.item, (first, last))))
        shifted_sites = Sites(sites.item - first, sites.token, sites.ply, sites.phase)
        return EncodedGames(self.encoding, tokens, shifted_sites, high - low, self.fits_context[first:last])

    def iterate_batches(self, order: np.ndarray, batch_games: int) -> Iterator[np.ndarray]:
        """Yield arrays int [n] of item numbers, in the order of `order`, with at most `batch_games` games each.

        A batch of boards has more items, because boards are short, and leaves out boards without a site.
        """
        size = batch_games
        if self.encoding.content == "position":
            order, size = order[self.widths[order] > 0], batch_games * BOARDS_PER_GAME
        for low in range(0, len(order), size):
            yield order[low : low + size]

    def find_item_sites(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sites of these items, item by item: index of the item among them int64 [s], and number of the site
        int64 [s]."""
        starts = np.searchsorted(self.sites.item, items)
        counts = np.searchsorted(self.sites.item, items, "right") - starts
        site_numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(np.arange(len(items)), counts), np.repeat(starts, counts) + site_numbers

    @cached_property
    def widths(self) -> np.ndarray:
        """int64 [items]: tokens up to the last site of each item, 0 without a site. A board is always read as a whole.

        Later tokens of a game cannot change a site, because attention is causal.
        """
        if self.encoding.content == "position":
            lengths = np.diff(self.tokens.offsets)
            return np.where(np.bincount(self.sites.item, minlength=len(lengths)) > 0, lengths, 0)
        width = np.zeros(len(self.tokens), np.int64)
        np.maximum.at(width, self.sites.item, self.sites.token + 1)
        return width

    def pad_tokens(self, items: np.ndarray, width: int) -> np.ndarray:
        """Return the first tokens of these items int64 [items, width], padded with zeros on the right."""
        tokens = np.zeros((len(items), width), np.int64)
        for row, item in enumerate(items.tolist()):
            ids = self.tokens.item(item)[:width]
            tokens[row, : len(ids)] = ids
        return tokens
