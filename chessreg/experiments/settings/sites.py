"""Sites as a setting of other kinds: the tokens of games at which a model is looked at."""

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

BOARDS_PER_GAME = 8  # in one forward pass, where items are boards
COMMON_SITES = {"dots": "white-turns", "even-spaces": "black-turns"}
"""Names that specs hold for sites which every encoding has."""


def resolve_site_name(name: str, of: Encoding) -> str:
    """The encoding's own name of these sites."""
    return name if name in of.site_names else COMMON_SITES.get(name, name)


@dataclass(frozen=True, eq=False)
class EncodedGames:
    """Games as tokens, and the sites of them that a model with this context can see. Items are games or boards."""

    encoding: Encoding
    tokens: Tokens
    sites: Sites
    games: int
    whole: np.ndarray
    """bool [items]: those that the model's context holds whole."""

    @classmethod
    def of(
        cls,
        written: Encoding,
        block_size: int,
        items: Games | Positions,
        places: np.ndarray,
        name: str,
        alignment: Alignment = "post-ply",
    ) -> EncodedGames:
        """The games, or positions, at these rows of a dataset, as a model with a context of `block_size` tokens reads
        them: of a longer game its beginning. NotFoundError for sites that the encoding does not have, BadInputError for
        positions where it writes games, and for a position that is longer than the context."""
        if items.content == "positions":
            ply = items.take(places, ["ply"])["ply"].to_numpy().astype(np.int64)
            tokens = replace(written.boards(items.fens(places)), ply=ply)
        else:
            tokens = written.games(items, places)
        sites = written.sites(resolve_site_name(name, written), tokens, alignment)
        lengths = np.diff(tokens.offsets)
        longest = int(lengths.max(initial=0))
        if written.content == "position" and longest > block_size:
            raise BadInputError(
                f"a position is {longest} tokens by {written.name}, the model reads {block_size}",
                "use a prompt template without the legal moves, or a model with a longer context",
            )
        return cls(written, tokens, sites.take(sites.token < block_size), len(places), lengths <= block_size)

    @cached_property
    def game(self) -> np.ndarray:
        """int64 [sites]: which of the games each site is of; ascending."""
        return self.tokens.source[self.sites.item]

    @cached_property
    def number(self) -> np.ndarray:
        """int64 [sites]: which of its game's sites each one is, from 0."""
        game = self.game
        return np.arange(len(game)) - np.searchsorted(game, np.arange(self.games))[game]

    @property
    def counts(self) -> np.ndarray:
        """int64 [games]: sites of each game."""
        return np.bincount(self.game, minlength=self.games)

    def take(self, keep: np.ndarray) -> EncodedGames:
        """The same games with the sites that a mask bool [sites] chooses."""
        return EncodedGames(self.encoding, self.tokens, self.sites.take(keep), self.games, self.whole)

    def between(self, skip_sites: int, max_sites: int | None, last_sites: int | None) -> EncodedGames:
        """The same games with the sites numbered skip_sites ≤ number < max_sites, and of these the `last_sites` ones at
        the end of a game that the context holds whole: what is cut off has no end to be seen."""
        game, number = self.game, self.number
        keep = number >= skip_sites
        if max_sites is not None:
            keep &= number < max_sites
        if last_sites is not None:
            keep &= (self.counts[game] - number <= last_sites) & self.whole[self.sites.item]
        return self.take(keep)

    def part(self, low: int, high: int) -> EncodedGames:
        """Games low to high alone."""
        first, last = np.searchsorted(self.tokens.source, (low, high))
        offsets = self.tokens.offsets[first : last + 1]
        tokens = Tokens(
            self.tokens.ids[offsets[0] : offsets[-1]],
            offsets - offsets[0],
            self.tokens.source[first:last] - low,
            self.tokens.ply[first:last],
        )
        sites = self.sites.take(slice(*np.searchsorted(self.sites.item, (first, last))))
        moved = Sites(sites.item - first, sites.token, sites.ply, sites.phase)
        return EncodedGames(self.encoding, tokens, moved, high - low, self.whole[first:last])

    def batches(self, order: np.ndarray, batch_games: int) -> Iterator[np.ndarray]:
        """Items in this order, so many games at a time; of boards, which are short, as many as make up for it, and none
        without a site."""
        size = batch_games
        if self.encoding.content == "position":
            order, size = order[self.widths[order] > 0], batch_games * BOARDS_PER_GAME
        for low in range(0, len(order), size):
            yield order[low : low + size]

    def sites_of(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sites of these items, item by item: place of the item among them int64 [s], number of the site."""
        starts = np.searchsorted(self.sites.item, items)
        counts = np.searchsorted(self.sites.item, items, "right") - starts
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(np.arange(len(items)), counts), np.repeat(starts, counts) + within

    @cached_property
    def widths(self) -> np.ndarray:
        """int64 [items]: tokens up to the last site of each item, 0 without one; a board is always whole.

        In a game nothing that follows can change a site, for attention is causal.
        """
        if self.encoding.content == "position":
            lengths = np.diff(self.tokens.offsets)
            return np.where(np.bincount(self.sites.item, minlength=len(lengths)) > 0, lengths, 0)
        width = np.zeros(len(self.tokens), np.int64)
        np.maximum.at(width, self.sites.item, self.sites.token + 1)
        return width

    def padded(self, items: np.ndarray, width: int) -> np.ndarray:
        """Their first tokens int64 [items, width], short ones padded with zeros on the right."""
        tokens = np.zeros((len(items), width), np.int64)
        for row, item in enumerate(items.tolist()):
            ids = self.tokens.item(item)[:width]
            tokens[row, : len(ids)] = ids
        return tokens
