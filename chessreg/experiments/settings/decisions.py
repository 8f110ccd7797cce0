"""Decisions: positions with a best move, and the game and ply of each.

A model of positions reads the position, and a model of games the game before it. Both decide on the same positions,
which makes them comparable (a control that Junkin 2025 lacks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chessreg.encodings.fen77 import Fen77
from chessreg.errors import BadInputError
from chessreg.games.datasets.dataset import convert_column_to_numpy
from chessreg.noise import uniform

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.games.datasets.dataset import DatasetPart, Games
    from chessreg.games.datasets.positions import Positions
    from chessreg.runs.inputs import Inputs

GAMES_AT_ONCE = 2000
BOARD_CHARACTERS = slice(0, 65)  # side to move and squares; counters and rights have several spellings


@dataclass(frozen=True)
class Decisions:
    """Positions at rows `places` int64 [n] of a dataset.

    If their games are known, decision i is in game `game[i]` (a row of `games`, int64) after `ply[i]` plies.
    """

    positions: Positions
    places: np.ndarray
    games: Games | None = None
    game: np.ndarray | None = None
    ply: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.places)

    def select(self, mask: np.ndarray) -> Decisions:
        """Return the decisions at these indices, or where a mask bool [n] is True."""
        game, ply = (None if each is None else each[mask] for each in (self.game, self.ply))
        return Decisions(self.positions, self.places[mask], self.games, game, ply)

    def read_columns(self, *names: str) -> dict[str, list[str]]:
        """Return these columns of the positions, in order."""
        values: dict[str, list[str]] = self.positions.take(self.places, list(names)).to_pydict()
        return values

    def draw_order(self, key: str) -> np.ndarray:
        """Return an order of the decisions, int64 [n], drawn by game and ply.

        The order of two decisions does not depend on other positions in the file or on their order. The first thousand
        come from many games, while the first of the file come from few.
        """
        hashes = convert_column_to_numpy(self.positions.take(self.places, ["game_hash"])["game_hash"]).tolist()
        plies = convert_column_to_numpy(self.positions.take(self.places, ["ply"])["ply"]).tolist()
        return np.argsort([uniform(key, *each) for each in zip(hashes, plies, strict=True)], kind="stable")

    def number_games(self) -> np.ndarray:
        """Return the number of each decision's game, int64 [n], in order of first occurrence. Intervals are clustered
        by it."""
        hashes = convert_column_to_numpy(self.positions.take(self.places, ["game_hash"])["game_hash"])
        _, first_rows, group = np.unique(hashes, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first_rows))[group]

    def encode_prompts(self, encoding: Encoding) -> list[tuple[int, ...] | None]:
        """Return the prompt of each decision: the position, or the game before it. None for a position that the
        encoding cannot write."""
        if encoding.content == "position":
            fens = self.read_columns("fen")["fen"]
            try:
                boards = encoding.boards(fens)
            except BadInputError:  # one of them cannot be written
                return [encode_position(encoding, fen) for fen in fens]
            return [tuple(boards.item(item).tolist()) for item in range(len(fens))]
        ids, offsets, prompt_lengths, item = self.encode_histories(encoding)
        return [
            tuple(ids[offsets[i] : offsets[i] + n].tolist())
            for i, n in zip(item.tolist(), prompt_lengths.tolist(), strict=True)
        ]

    def encode_histories(self, encoding: Encoding) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the tokens of the distinct games, and the part of them that each decision reads.

        The four arrays are: all ids; int64 [games + 1], the start of each game in them; int64 [n], the number of tokens
        of its game that each decision reads; int64 [n], its game. Raises BadInputError if the games are unknown.
        """
        rows, item = np.unique(self._require_game_rows, return_inverse=True)
        assert self.games is not None
        assert self.ply is not None
        ids, lengths, prompt_lengths = [], [np.zeros(1, np.int64)], np.zeros(len(self), np.int64)
        for start in range(0, len(rows), GAMES_AT_ONCE):
            part = rows[start : start + GAMES_AT_ONCE]
            tokens = encoding.games(self.games, part)
            turns = [encoding.sites(f"{side}-turns", tokens) for side in ("white", "black")]
            most = max(int(sites.ply.max(initial=0)) for sites in turns) + 1
            place = np.zeros((len(part), most), np.int64)
            for sites in turns:
                place[tokens.source[sites.item], sites.ply] = sites.token + 1
            chunk_decisions = np.flatnonzero((item >= start) & (item < start + len(part)))
            prompt_lengths[chunk_decisions] = place[item[chunk_decisions] - start, self.ply[chunk_decisions]]
            ids.append(tokens.ids)
            lengths.append(np.diff(tokens.offsets))
        return np.concatenate(ids), np.cumsum(np.concatenate(lengths)), prompt_lengths, item

    @property
    def _require_game_rows(self) -> np.ndarray:
        """Return the row in `games` of each decision's game, int64 [n]. Raises BadInputError if the games are
        unknown."""
        if self.game is None:
            raise BadInputError(
                "a model of games reads the game before a position, and these games are unknown",
                "give --source-games DATASET, the games of the positions",
            )
        return self.game


def encode_position(encoding: Encoding, fen: str) -> tuple[int, ...] | None:
    """Return the tokens of a position, or None if the encoding cannot represent it."""
    try:
        return tuple(encoding.boards([fen]).ids.tolist())
    except BadInputError:
        return None


def load_decisions(
    inputs: Inputs, reference: str, games: str | None, field: str, games_field: str = "games", has_check: bool = True
) -> Decisions:
    """Return the positions of a dataset that have a best move, in file order; with `games` only positions of these
    games.

    `field` and `games_field` are the names under which the run records these inputs. Raises BadInputError if no
    position is left, and with `has_check` (70,000 positions a second) if a game has another position at that ply.
    """
    items, part = inputs.items(reference, field)
    if items.content == "games":
        raise BadInputError("a dataset of games has no best moves", "give a dataset of positions")
    places = items.rows(part)
    has_best = np.array([move is not None for move in items.take(places, ["best"])["best"].to_pylist()], bool)
    places = places[has_best] if len(places) else places
    if not len(places):
        raise BadInputError("no position has a best move", "chessreg dataset show NAME")
    if games is None:
        return Decisions(items, places)
    decisions = locate_in_games(items, places, *inputs.dataset(games, games_field))
    if has_check:
        check_decisions(decisions)
    return decisions


def locate_in_games(positions: Positions, places: np.ndarray, games: Games, part: DatasetPart | None) -> Decisions:
    """Return the positions at rows `places` int [n] that occur in a game of `games`, or of `part` of it.

    Raises BadInputError if none of them does.
    """
    inside = games.rows(part)
    game = positions.games_of(games)[places]
    game = np.where(np.isin(game, inside), game, -1)
    ply = convert_column_to_numpy(positions.take(places, ["ply"])["ply"]).astype(np.int64)
    has_game = game >= 0
    if not has_game.any():
        raise BadInputError(
            "none of the positions occurs in these games",
            "a position's column game must be the id in its game's tag Site (https://lichess.org/ID)",
        )
    return Decisions(positions, places[has_game], games, game[has_game], ply[has_game])


def check_decisions(decisions: Decisions) -> None:
    """Raise BadInputError for a position that does not occur in its game."""
    fen = Fen77()
    assert decisions.games is not None
    assert decisions.game is not None
    assert decisions.ply is not None
    order = np.argsort(decisions.game, kind="stable")
    rows, first_rows = np.unique(decisions.game[order], return_index=True)
    ends = np.append(first_rows[1:], len(order))
    for start in range(0, len(rows), GAMES_AT_ONCE):
        part = rows[start : start + GAMES_AT_ONCE]
        chunk_order = order[first_rows[start] : ends[start + len(part) - 1]]
        game_positions = fen.games(decisions.games, part)
        begin = np.searchsorted(game_positions.source, np.arange(len(part) + 1))
        item = np.searchsorted(part, decisions.game[chunk_order])
        at = begin[item] + decisions.ply[chunk_order]
        inside = at < begin[item + 1] - 1  # a decision precedes a move of the game
        texts = decisions.select(chunk_order).read_columns("fen")["fen"]
        position_boards = fen.boards(texts).ids.reshape(-1, fen.length)[:, BOARD_CHARACTERS]
        game_boards = game_positions.ids.reshape(-1, fen.length)[np.where(inside, at, 0), BOARD_CHARACTERS]
        wrong = np.flatnonzero(~inside | (position_boards != game_boards).any(1))
        if len(wrong):
            raise BadInputError(
                f"{texts[wrong[0]]} is not the position of its game after {decisions.ply[chunk_order][wrong[0]]} plies",
                "give the games that contain the positions",
            )
