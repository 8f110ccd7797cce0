"""The reader in python-chess: the complete fallback and the reference. About 50,000 plies per second."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import chess
import numpy as np

from chessreg.games.boards import moves as packed


@dataclass(frozen=True)
class PlayedGames:
    """Games as played.

    `moves` "<u2" [plies] packed as in `moves.py`; `offsets` int64 [games + 1] into it; `texts` the canonical
    PGN-character text of each game's legal plies; `errors`: game -> plies played before the first bad move.
    """

    moves: np.ndarray
    offsets: np.ndarray
    texts: list[str]
    errors: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LegalMoves:
    """The legal moves of positions.

    `codes` "<u2" [moves] packed as in `moves.py`, ascending in each position (castling is the king's move); `offsets`
    int64 [positions + 1] into them; `errors`: position -> the problem of its FEN. A bad position has no moves, like a
    finished game.
    """

    codes: np.ndarray
    offsets: np.ndarray
    errors: dict[int, str]

    @property
    def counts(self) -> np.ndarray:
        """The number of legal moves of each position, int64 [positions]."""
        return np.diff(self.offsets)

    def has(self, codes: np.ndarray) -> np.ndarray:
        """Return whether a move, packed uint16 [positions], is legal in its position: bool [positions]."""
        hits = self.codes == np.repeat(codes, self.counts)
        return np.diff(np.concatenate([[0], np.cumsum(hits)])[self.offsets]) > 0


_NUMBER = re.compile(r"^\d+\.+")


def _play_legal_moves(movetext: str, board: chess.Board, strict: bool) -> Iterator[chess.Move | None]:
    """Yield the moves of a movetext, each played on `board` after its yield; None for a word that is not a legal move.

    With `strict`, `x` must be written for a capture and for nothing else.
    """
    for word in movetext.split():
        san = _NUMBER.sub("", word)
        if not san:
            continue
        try:
            move = board.parse_san(san)
        except ValueError:
            move = chess.Move.null()
        if move and strict and ("x" in san) != board.is_capture(move):
            move = chess.Move.null()
        if not move:  # python-chess reads `--` as a null move
            yield None
            return
        yield move
        board.push(move)


def _make_board_row(board: chess.Board) -> np.ndarray:
    """Return one position, int8 [64]."""
    row = np.zeros(64, np.int8)
    for square, piece in board.piece_map().items():
        row[square] = piece.piece_type if piece.color else -piece.piece_type
    return row


class PythonReader:
    """See `GameReader`."""

    name = "python"

    def play(self, movetexts: Sequence[str]) -> PlayedGames:
        codes: list[bytes] = []
        texts: list[str] = []
        lengths: list[int] = []
        errors: dict[int, int] = {}
        for game, movetext in enumerate(movetexts):
            board = chess.Board()
            sans: list[str] = []
            for move in _play_legal_moves(movetext, board, strict=False):
                if move is None:
                    errors[game] = len(sans)
                    break
                number = f"{len(sans) // 2 + 1}." if len(sans) % 2 == 0 else ""
                sans.append(number + board.san(move))
            codes.append(packed.pack_moves(board.move_stack))
            lengths.append(len(sans))
            texts.append(";" + " ".join(sans))
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(np.array(lengths, np.int64), out=offsets[1:])
        return PlayedGames(np.frombuffer(b"".join(codes), "<u2"), offsets, texts, errors)

    def boards(self, movetexts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, dict[int, int]]:
        rows: list[np.ndarray] = []
        offsets = [0]
        errors: dict[int, int] = {}
        for game, movetext in enumerate(movetexts):
            board = chess.Board()
            for move in _play_legal_moves(movetext, board, strict=True):
                rows.append(_make_board_row(board))
                if move is None:
                    errors[game] = len(rows) - offsets[-1] - 1
                    break
            else:
                rows.append(_make_board_row(board))
            offsets.append(len(rows))
        boards = np.stack(rows) if rows else np.zeros((0, 64), np.int8)
        return boards, np.array(offsets, np.int64), errors

    def targets(self, movetexts: Sequence[str]) -> np.ndarray:
        masks: list[int] = []
        for movetext in movetexts:
            board = chess.Board()
            for move in _play_legal_moves(movetext, board, strict=True):
                masks.append(_make_target_mask(board))
                if move is None:
                    break
            else:
                masks.append(_make_target_mask(board))
        return np.array(masks, np.uint64)

    def legal(self, fens: Sequence[str]) -> LegalMoves:
        codes: list[np.ndarray] = [np.zeros(0, "<u2")]
        errors: dict[int, str] = {}
        for place, fen in enumerate(fens):
            try:
                board = chess.Board(fen)
            except ValueError as error:
                errors[place] = f"no FEN: {error}"
            else:
                if board.status():
                    errors[place] = describe_status(board)
            moves = () if place in errors else board.legal_moves
            codes.append(np.sort(np.frombuffer(packed.pack_moves(moves), "<u2")))
        return LegalMoves(np.concatenate(codes), np.cumsum([len(game_codes) for game_codes in codes]), errors)


def describe_status(board: chess.Board) -> str:
    """Return the first problem that python-chess finds with an impossible board, in words."""
    flag = min(board.status(), key=lambda one: one.value)
    return (flag.name or "bad position").lower().replace("_", " ")


def _make_target_mask(board: chess.Board) -> int:
    """Return a bit board of the target squares of legal moves."""
    mask = 0
    for move in board.generate_legal_moves():
        mask |= 1 << move.to_square
    return mask
