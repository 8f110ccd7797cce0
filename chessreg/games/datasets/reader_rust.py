"""The reader in Rust: the only module that uses the package, its codes and its quirks.

Its boards are uint8 by square a1=0 … h8=63: 0 empty, 1..6 white PNBRQK, 7..12 black. The package drops empty strings,
which would shift later games, so they are never passed to it, and the number of returned games is checked.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from chessreg.games.boards import san
from chessreg.games.datasets.reader_python import LegalMoves, PlayedGames, PythonReader

_VALUES = np.array([0, 1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6], np.int8)
_INITIAL = np.frombuffer(b"\x04\x02\x03\x05\x06\x03\x02\x04" + b"\x01" * 8, np.uint8)
BATCH_POSITIONS = 20_000
_PLAIN = re.compile(r"[pnbrqkPNBRQK1-8/]+ [wb] (?:-|K?Q?k?q?) (?:-|[a-h][36]) \d{1,4} \d{1,4}", re.ASCII)
BATCH_GAMES = 1000  # legal moves need 30 times the memory of the moves played
_START = np.concatenate([_INITIAL, np.zeros(32, np.uint8), np.full(8, 7, np.uint8), _INITIAL[:8] + 6])


def _parse_games(movetexts: Sequence[str]) -> tuple[san.ReplayedGames, dict[int, int]]:
    """Play every movetext; return the games with boards in the package's codes, and errors as in
    `GameReader.boards`."""
    import pyarrow as pa
    import rust_pgn_reader_python_binding as rust

    text_games = [game for game, text in enumerate(movetexts) if text and not text.isspace()]
    texts = movetexts if len(text_games) == len(movetexts) else [movetexts[game] for game in text_games]
    strings = pa.chunked_array([pa.array(texts, pa.large_string())])
    chunks: list[Any] = list(rust.parse_games(strings, num_threads=1, chunk_multiplier=1).chunks) if text_games else []
    if sum(chunk.num_games for chunk in chunks) != len(text_games):
        raise RuntimeError(f"the rust reader was given {len(text_games)} games and returned another number")
    lengths = np.zeros(len(movetexts), np.int64)
    is_mate = np.zeros(len(movetexts), bool)
    is_valid = np.ones(len(movetexts), bool)
    if text_games:
        lengths[text_games] = np.concatenate([np.diff(chunk.move_offsets.astype(np.int64)) for chunk in chunks])
        is_mate[text_games] = np.concatenate([chunk.is_checkmate for chunk in chunks])
        is_valid[text_games] = np.concatenate([chunk.valid for chunk in chunks])
    offsets = np.zeros(len(movetexts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])

    def column(name: str, dtype: type[np.generic]) -> np.ndarray:
        parts = [getattr(chunk, name) for chunk in chunks]
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.zeros(0, dtype)])

    boards = np.concatenate([chunk.boards for chunk in chunks]) if len(chunks) > 1 else None
    boards = boards if boards is not None else chunks[0].boards if chunks else np.zeros(0, np.uint8)
    boards = boards.reshape(-1, 64)
    if len(text_games) < len(movetexts):  # a game without moves still has the initial position
        places = offsets + np.arange(len(offsets))
        empty = np.setdiff1d(np.arange(len(movetexts)), text_games)
        boards = np.insert(boards, (places[:-1] - np.searchsorted(empty, np.arange(len(movetexts))))[empty], _START, 0)
    replayed_games = san.ReplayedGames(
        boards, column("from_squares", np.uint8), column("to_squares", np.uint8), column("promotions", np.int8),
        offsets, is_mate,
    )  # fmt: skip
    return replayed_games, {int(game): int(lengths[game]) for game in np.flatnonzero(~is_valid)}


def _replay_refused(movetexts: Sequence[str], first_replay: PlayedGames) -> PlayedGames:
    """Replay the games that this reader refuses with python-chess, which accepts a missing or extra `x`."""
    refused_games = sorted(first_replay.errors)
    second = PythonReader().play([movetexts[game] for game in refused_games])
    spans = [first_replay.moves[start:end] for start, end in itertools.pairwise(first_replay.offsets.tolist())]
    edges = second.offsets.tolist()
    for place, game in enumerate(refused_games):
        spans[game] = second.moves[edges[place] : edges[place + 1]]
        first_replay.texts[game] = second.texts[place]
    offsets = np.zeros(len(spans) + 1, np.int64)
    np.cumsum([len(span) for span in spans], out=offsets[1:])
    errors = {refused_games[place]: ply for place, ply in second.errors.items()}
    return PlayedGames(np.concatenate(spans), offsets, first_replay.texts, errors)


class RustReader:
    """See `GameReader`. About two million plies per second with texts, six million without."""

    name = "rust"

    def play(self, movetexts: Sequence[str]) -> PlayedGames:
        replayed_games, errors = _parse_games(movetexts)
        characters, ends = san.write_game_texts(replayed_games)
        flat = characters.tobytes().decode("ascii")
        edges = ends.tolist()
        texts = [flat[start:end] for start, end in itertools.pairwise(edges)]
        promotion = np.maximum(replayed_games.promotion, 0).astype(np.uint16)
        codes = replayed_games.origin.astype(np.uint16) | replayed_games.target.astype(np.uint16) << 6 | promotion << 12
        result = PlayedGames(codes.astype("<u2"), replayed_games.offsets, texts, errors)
        return _replay_refused(movetexts, result) if errors else result

    def boards(self, movetexts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, dict[int, int]]:
        replayed_games, errors = _parse_games(movetexts)
        return _VALUES[replayed_games.boards], replayed_games.offsets + np.arange(len(replayed_games.offsets)), errors

    def targets(self, movetexts: Sequence[str]) -> np.ndarray:
        return np.concatenate(
            [_find_targets(movetexts[i : i + BATCH_GAMES]) for i in range(0, len(movetexts), BATCH_GAMES)]
            or [np.zeros(0, np.uint64)]
        )

    def legal(self, fens: Sequence[str]) -> LegalMoves:
        pieces = [
            _find_legal_moves(fens[start : start + BATCH_POSITIONS]) for start in range(0, len(fens), BATCH_POSITIONS)
        ]
        codes = np.concatenate([np.zeros(0, "<u2"), *(piece.codes for piece in pieces)])
        counts = np.concatenate([np.zeros(1, np.int64), *(piece.counts for piece in pieces)])
        errors = {
            number * BATCH_POSITIONS + at: error for number, p in enumerate(pieces) for at, error in p.errors.items()
        }
        return LegalMoves(codes, np.cumsum(counts), errors)


def _find_targets(movetexts: Sequence[str]) -> np.ndarray:
    """Return bit boards uint64 [positions] of the target squares of legal moves."""
    import pyarrow as pa
    import rust_pgn_reader_python_binding as rust

    # The package drops a game without moves, so it is played with one move, and only its first position is kept.
    texts = [text if text and not text.isspace() else "e4" for text in movetexts]
    strings = pa.chunked_array([pa.array(texts, pa.large_string())])
    parsed_games = rust.parse_games(strings, num_threads=1, chunk_multiplier=1, store_legal_moves=True)
    parts, keep = [], []
    for chunk in parsed_games.chunks:
        offsets = chunk.legal_move_offsets.astype(np.int64)
        bits = np.uint64(1) << chunk.legal_move_to_squares.astype(np.uint64)
        ends = np.diff(offsets) > 0
        mask = np.zeros(len(offsets) - 1, np.uint64)
        if ends.any():
            mask[ends] = np.bitwise_or.reduceat(bits, offsets[:-1][ends])
        parts.append(mask)
        keep.append(np.diff(chunk.position_offsets.astype(np.int64)))
    masks, positions = np.concatenate(parts), np.concatenate(keep)
    is_wanted = np.ones(len(masks), bool)
    starts = np.cumsum(positions) - positions
    for game, text in enumerate(movetexts):
        if not text or text.isspace():
            is_wanted[starts[game] + 1] = False
    return masks[is_wanted]


def _find_legal_moves(fens: Sequence[str]) -> LegalMoves:
    """Return legal moves; each FEN is parsed as the start of a game without moves.

    FENs that the package refuses, or that are written in an unusual way, go to python-chess, which accepts more.
    """
    import pyarrow as pa
    import rust_pgn_reader_python_binding as rust

    plain = _PLAIN.fullmatch
    texts = [f'[SetUp "1"]\n[FEN "{fen if plain(fen) else ""}"]\n\n*\n' for fen in fens]
    strings = pa.chunked_array([pa.array(texts, pa.large_string())])
    chunks = rust.parse_games(strings, num_threads=1, chunk_multiplier=1, store_legal_moves=True).chunks
    is_valid = np.concatenate([chunk.valid for chunk in chunks])
    counts = np.zeros(len(fens), np.int64)
    move_counts = np.concatenate([np.diff(chunk.legal_move_offsets.astype(np.int64)) for chunk in chunks])
    if len(is_valid) != len(fens) or len(move_counts) != is_valid.sum():
        raise RuntimeError(f"the rust reader was given {len(fens)} positions and returned another number")
    counts[is_valid] = move_counts
    parts = [
        chunk.legal_move_from_squares.astype(np.int64)
        | chunk.legal_move_to_squares.astype(np.int64) << 6
        | np.maximum(chunk.legal_move_promotions, 0).astype(np.int64) << 12
        for chunk in chunks
    ]
    position = np.repeat(np.arange(len(fens)), counts)
    codes = np.concatenate(parts) | position << 16
    refused_positions = np.flatnonzero(~is_valid)
    second = PythonReader().legal([fens[place] for place in refused_positions.tolist()])
    more = second.codes.astype(np.int64) | np.repeat(refused_positions, second.counts) << 16
    counts[refused_positions] = second.counts
    errors = {int(refused_positions[place]): error for place, error in second.errors.items()}
    return LegalMoves((np.sort(np.concatenate([codes, more])) & 0xFFFF).astype("<u2"), np.cumsum([0, *counts]), errors)
