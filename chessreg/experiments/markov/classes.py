"""Prefixes of games that reach one position by different move orders, and prefixes to compare them with.

Davis 2026, section 4.5: two move lists are equivalent if they lead to the same board. Each move list is kept once,
because equal lists have equal states; only lists that end in the same phase are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chessreg.encodings import Encoding, get_encoding
from chessreg.errors import BadInputError
from chessreg.experiments.markov.spec import MarkovSpec
from chessreg.experiments.settings.games import select_games
from chessreg.experiments.settings.sites import EncodedGames
from chessreg.games.boards.moves import (
    HashSet,
    compute_boards_after,
    compute_rights_after,
    hash_move_lists,
    hash_positions,
)
from chessreg.games.datasets.dataset import Games, hash_to_unit_interval
from chessreg.noise import Stream, generator

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs

READ_SITES = "turns"  # the last token of a prefix, after which the model writes the next move
GAMES_AT_ONCE = 2000
BOARDS_AT_ONCE = 100_000
MAX_PARTNER_TRIES = 8  # prefixes to try before a member gets no partner
HASH_SALTS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
"""Odd factors that make the added parts of a hash independent."""


@dataclass(frozen=True, eq=False)
class Prefixes:
    """Prefixes of games, every move list once; each array [n].

    game int64: row of the dataset; ply int64; phase int64; move int64: the last move, packed; hash uint64: of the move
    list; placement uint64: hash of the pieces on their squares; key uint64: equal within a class.
    """

    game: np.ndarray
    ply: np.ndarray
    phase: np.ndarray
    move: np.ndarray
    hash: np.ndarray
    placement: np.ndarray
    key: np.ndarray

    def __len__(self) -> int:
        return len(self.game)

    def take(self, mask: np.ndarray) -> Prefixes:
        """Return the prefixes that a mask bool [n] or an index array selects."""
        return Prefixes(*(getattr(self, field.name)[mask] for field in fields(self)))

    @classmethod
    def concatenate(cls, parts: Sequence[Prefixes]) -> Prefixes:
        """Return the concatenation of several parts."""
        return cls(*(np.concatenate([getattr(p, field.name) for p in parts]) for field in fields(cls)))


@dataclass(frozen=True, eq=False)
class Classes:
    """The chosen classes, a partner of each member for each control, and the reference population.

    `member` int64 [m]: indices into `prefixes`, class by class. `number` int64 [m]: the class of each, ascending.
    `same_last` int64 [m]: a prefix with equal ply and last move and another board, -1 without one.
    `nearest` int64 [m]: a prefix of equal ply whose board differs in one piece, -1 without one. `reference` int64
    [m]: random prefixes, each of the phase of the member at its index; None if the members are the population.
    `candidate_count` counts the positions that at least `min_members` move orders reach, `orders` these move orders.
    """

    prefixes: Prefixes
    member: np.ndarray
    number: np.ndarray
    same_last: np.ndarray
    nearest: np.ndarray
    reference: np.ndarray | None
    candidate_count: int
    orders: int

    def __len__(self) -> int:
        return int(self.number[-1]) + 1

    @property
    def sizes(self) -> np.ndarray:
        """Members of each class, int64 [classes]."""
        return np.bincount(self.number)

    @property
    def compared_prefixes(self) -> dict[str, np.ndarray]:
        """The prefixes that the members are compared with, by control: int64 [m] each, -1 without one."""
        prefixes_by_name = {"same_last": self.same_last, "nearest": self.nearest}
        return prefixes_by_name if self.reference is None else {**prefixes_by_name, "reference": self.reference}

    def list_needed_prefixes(self, low: int, high: int) -> np.ndarray:
        """Return the prefixes that classes low to high (exclusive) need, including the controls' prefixes, ascending,
        int64."""
        member_slice = slice(*np.searchsorted(self.number, (low, high)))
        every = np.concatenate(
            [self.member[member_slice], *(other[member_slice] for other in self.compared_prefixes.values())]
        )
        return np.unique(every[every >= 0])


def find_classes(spec: MarkovSpec, inputs: Inputs) -> tuple[Games, Classes]:
    """Return the dataset and the classes of a spec. Raises BadInputError if there are none, or if the model reads
    positions."""
    checkpoint, _ = inputs.checkpoint(spec.checkpoint)
    encoding = inputs.encoding(spec.checkpoint)
    if encoding.content == "position":
        raise BadInputError(
            f"{encoding.name} encodes positions, not games, so its states cannot depend on the order of moves",
            "give a model that reads games",
        )
    games, places = select_games(spec, inputs)
    classes = _find_classes(spec, games.folder, tuple(places.tolist()), encoding.name, checkpoint.block_size)
    inputs.note_shortage(spec, "classes", len(classes))
    return games, classes


@lru_cache(maxsize=2)
def _find_classes(spec: MarkovSpec, folder: Path, places: tuple[int, ...], encoding: str, block_size: int) -> Classes:
    """Return the classes; cached by the arguments, because a dataset's folder never changes."""
    games = Games(folder)
    prefixes = collect_prefixes(spec, get_encoding(encoding), block_size, games, np.array(places, np.int64))
    classes = choose_classes(spec, prefixes)
    if spec.reference_population != "members":
        classes = replace(classes, reference=draw_prefixes(spec, prefixes, classes.member))
    if not spec.partner_controls:
        return classes
    return replace(
        classes,
        same_last=find_same_last_partners(spec.seed, prefixes, classes.member),
        nearest=find_nearest_partners(spec.seed, games, prefixes, classes.member),
    )


def collect_prefixes(
    spec: MarkovSpec, encoding: Encoding, block_size: int, games: Games, places: np.ndarray
) -> Prefixes:
    """Return the prefixes of the games at these rows that fit a context of `block_size` tokens, every move list
    once."""
    parts = []
    for start in range(0, len(places), GAMES_AT_ONCE):
        parts.append(_read_prefixes(spec, encoding, block_size, games, places[start : start + GAMES_AT_ONCE]))
    every = Prefixes.concatenate(parts)
    _, first_rows = np.unique(every.hash, return_index=True)
    return every.take(np.sort(first_rows))


def _read_prefixes(spec: MarkovSpec, encoding: Encoding, block_size: int, games: Games, places: np.ndarray) -> Prefixes:
    """Return the prefixes of the games at these rows, including repeated move lists."""
    encoded_games = EncodedGames.from_items(encoding, block_size, games, places, READ_SITES)
    encoded_games = encoded_games.take(
        (encoded_games.sites.ply >= spec.first_ply) & (encoded_games.sites.ply <= spec.last_ply)
    )
    game, ply, phase = encoded_games.game, encoded_games.sites.ply, encoded_games.sites.phase.astype(np.int64)
    packed_games = [moves[: 2 * spec.last_ply] for moves in games.moves(places)]
    boards, offsets = compute_boards_after(packed_games)
    at = offsets[game] + ply
    placement = hash_positions(boards[at], np.zeros(len(at), np.int64))
    key = placement + HASH_SALTS[0] * phase.astype(np.uint64)
    if spec.equal == "position":
        key = (
            key
            + HASH_SALTS[1] * compute_rights_after(packed_games, boards, offsets)[at].astype(np.uint64)
            + HASH_SALTS[2] * (ply % 2).astype(np.uint64)
        )
    codes = np.frombuffer(b"".join(packed_games), "<u2").astype(np.int64)
    before = np.cumsum([0, *(len(moves) // 2 for moves in packed_games)])
    hashes = hash_move_lists(packed_games[g][: 2 * p] for g, p in zip(game.tolist(), ply.tolist(), strict=True))
    return Prefixes(places[game], ply, phase, codes[before[game] + ply - 1], hashes, placement, key)


def choose_classes(spec: MarkovSpec, prefixes: Prefixes) -> Classes:
    """Return the classes that a spec chooses, without partners. Their order is drawn by seed.

    Raises BadInputError if there is no class, or if no phase has two: random sets would equal the classes.
    """
    _, group, sizes = np.unique(prefixes.key, return_inverse=True, return_counts=True)
    is_large = sizes >= spec.min_members
    if not is_large.any():
        raise BadInputError(
            f"no position is reached by {spec.min_members} move orders within plies {spec.first_ply} to "
            f"{spec.last_ply}, of {len(prefixes):,} move lists",
            "more --games, a wider range of --first-ply to --last-ply, or --equal placement",
        )
    inside = np.flatnonzero(is_large[group])
    hash_draws = hash_to_unit_interval(spec.seed, prefixes.hash[inside])
    rank = np.full(len(sizes), np.inf)  # the rank of a class is the smallest number drawn for its members
    np.minimum.at(rank, group[inside], hash_draws)
    order = inside[np.lexsort((hash_draws, rank[group[inside]]))]
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    rows = [row[: spec.max_members] for row in np.split(order, starts[1:])]
    if spec.distinct_games:
        rows = _drop_common_games(rows, prefixes.game, spec.classes)
    rows = rows[: spec.classes]
    if np.bincount(prefixes.phase[[row[0] for row in rows]]).max() < 2:
        raise BadInputError(
            f"random sets stay within one phase, and no phase has two positions; there are {len(rows)} in all",
            "more --games or --classes, a wider range of --first-ply to --last-ply, or --equal placement",
        )
    member = np.concatenate(rows)
    number = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    none = np.full(len(member), -1)
    return Classes(prefixes, member, number, none, none, None, int(is_large.sum()), len(inside))


def _drop_common_games(rows: Sequence[np.ndarray], game: np.ndarray, most: int) -> list[np.ndarray]:
    """Return at most `most` classes in order, except classes that share a game with an earlier one."""
    seen_games: set[int] = set()
    kept_classes: list[np.ndarray] = []
    for row in rows:
        class_games = set(game[row].tolist())
        if not class_games & seen_games and len(kept_classes) < most:
            kept_classes.append(row)
            seen_games |= class_games
    return kept_classes


def draw_prefixes(spec: MarkovSpec, prefixes: Prefixes, member: np.ndarray) -> np.ndarray:
    """Return random prefixes without regard to class, none twice, int64 [members].

    Each has the phase of the member at its index; with reference population `same-plies` also its number of plies.
    """
    random = generator(spec.seed, Stream.MARKOV_REFERENCE)
    group = prefixes.phase if spec.reference_population == "prefixes" else prefixes.ply * 8 + prefixes.phase
    partners = np.empty(len(member), np.int64)
    for number in np.unique(group[member]):
        group_members = np.flatnonzero(group[member] == number)
        partners[group_members] = random.choice(np.flatnonzero(group == number), len(group_members), replace=False)
    return partners


def find_same_last_partners(seed: int, prefixes: Prefixes, member: np.ndarray) -> np.ndarray:
    """Return a partner for each member, int64 [members]: same ply, phase and last move, another placement.

    Drawn by seed; -1 if none of the first `MAX_PARTNER_TRIES` candidates has another placement.
    """
    partner_keys = (prefixes.ply * 8 + prefixes.phase) << 16 | prefixes.move
    order = np.lexsort((prefixes.hash, partner_keys))
    starts, stops = (np.searchsorted(partner_keys[order], partner_keys[member], side) for side in ("left", "right"))
    sizes = stops - starts
    place = (hash_to_unit_interval(seed, prefixes.hash[member]) * sizes).astype(np.int64)
    partners = np.full(len(member), -1)
    for step in range(MAX_PARTNER_TRIES):
        other = order[starts + (place + step) % sizes]
        fits = (partners < 0) & (prefixes.placement[other] != prefixes.placement[member])
        partners[fits] = other[fits]
    return partners


def find_nearest_partners(seed: int, games: Games, prefixes: Prefixes, member: np.ndarray) -> np.ndarray:
    """Return the number of a partner prefix for each member, int64 [members], -1 without a candidate.

    `member` int64 [members] are numbers in `prefixes`. A partner has the same ply and phase, and a board that differs
    in one piece: the boards are equal after one piece is removed from one or both. Among several, `seed` draws.
    """
    member_keys = [
        (keys, member[rows], rows) for keys, rows in _hash_with_piece_off(build_boards(games, prefixes, member))
    ]
    keys = np.concatenate([_key_boards(keys, prefixes, at) for keys, at, _ in member_keys])
    owner = np.concatenate([rows for _, _, rows in member_keys])
    order = np.argsort(keys, kind="stable")
    keys, owner, key_set = keys[order], owner[order], HashSet(keys)
    partners, distances = np.full(len(member), -1), np.full(len(member), np.inf)
    for start in range(0, len(prefixes), BOARDS_AT_ONCE):
        part = np.arange(start, min(start + BOARDS_AT_ONCE, len(prefixes)))
        for hashes, rows in _hash_with_piece_off(build_boards(games, prefixes, part)):
            board_keys = _key_boards(hashes, prefixes, part[rows])
            hit = key_set.contains(board_keys)
            first, last = (np.searchsorted(keys, board_keys[hit], side) for side in ("left", "right"))
            other = np.repeat(part[rows[hit]], last - first)
            askers = owner[np.repeat(first, last - first) + _count_up(last - first)]
            is_different = prefixes.placement[other] != prefixes.placement[member[askers]]
            other, askers = other[is_different], askers[is_different]
            hash_draws = hash_to_unit_interval(seed, prefixes.hash[other] ^ prefixes.hash[member[askers]])
            order = np.lexsort((other, hash_draws, askers))
            askers, other, hash_draws = askers[order], other[order], hash_draws[order]
            best_rows = np.flatnonzero(np.diff(askers, prepend=-1))
            best_rows = best_rows[hash_draws[best_rows] < distances[askers[best_rows]]]
            partners[askers[best_rows]], distances[askers[best_rows]] = other[best_rows], hash_draws[best_rows]
    return partners


def _hash_with_piece_off(boards: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield hashes uint64 [m] and rows int64 [m] of boards int8 [n, 64]: unchanged, then without the piece on a1, b1,
    …"""
    yield hash_positions(boards, np.zeros(len(boards), np.int64)), np.arange(len(boards))
    for square in range(64):
        rows = np.flatnonzero(boards[:, square])
        if len(rows):
            changed_boards = boards[rows]
            changed_boards[:, square] = 0
            yield hash_positions(changed_boards, np.zeros(len(rows), np.int64)), rows


def _key_boards(hashes: np.ndarray, prefixes: Prefixes, rows: np.ndarray) -> np.ndarray:
    """Return hashes uint64 [n] of boards that are equal only for prefixes of equal ply and phase."""
    keys: np.ndarray = hashes + HASH_SALTS[0] * (prefixes.ply[rows] * 8 + prefixes.phase[rows]).astype(np.uint64)
    return keys


def _count_up(counts: np.ndarray) -> np.ndarray:
    """Return 0, 1, … up to each count, concatenated, int64.

    >>> _count_up(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def build_boards(games: Games, prefixes: Prefixes, rows: np.ndarray) -> np.ndarray:
    """Return the boards after the prefixes at these rows, int8 [n, 64]."""
    boards = np.empty((len(rows), 64), np.int8)
    places, place_indices = np.unique(prefixes.game[rows], return_inverse=True)
    for start in range(0, len(places), GAMES_AT_ONCE):
        chunk_rows = np.flatnonzero((place_indices >= start) & (place_indices < start + GAMES_AT_ONCE))
        longest_prefix = int(prefixes.ply[rows[chunk_rows]].max())
        packed_games = [moves[: 2 * longest_prefix] for moves in games.moves(places[start : start + GAMES_AT_ONCE])]
        every, offsets = compute_boards_after(packed_games)
        boards[chunk_rows] = every[offsets[place_indices[chunk_rows] - start] + prefixes.ply[rows[chunk_rows]]]
    return boards
