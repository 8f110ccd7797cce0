"""The shortest game that leads to a position of an opening: what a model that reads moves is told of an EPD line."""

from __future__ import annotations

import chess

from chessreg.errors import BadInputError

MAX_PLIES = 10
MAX_POSITIONS = 100_000  # tried before a position counts as too far: some ten seconds


def shortest_game(target: chess.Board, max_plies: int = MAX_PLIES) -> list[chess.Move]:
    """The moves of a shortest game from the initial position to `target`, a pure function of the position.

    Of several the first in the order of UCI text. Pieces, side to move, castling rights and en passant must agree.

    >>> [move.uci() for move in shortest_game(chess.Board("rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq -"))]
    ['e2e4', 'c7c5']

    Raises BadInputError when no game of at most `max_plies` plies leads there.
    """
    first = 0 if target.turn == chess.WHITE else 1
    for plies in range(first, max_plies + 1, 2):
        board, dead = chess.Board(), set[tuple[int, object]]()
        if _lead(board, target, plies, dead):
            return list(board.move_stack)
        if len(dead) > MAX_POSITIONS:
            break
    raise BadInputError(
        f"no game of {max_plies} plies or fewer was found that leads to {target.epd()},"
        " and a model reads moves, not positions",
        "use a book of games (PGN, TSV or CSV)",
    )


def _lead(board: chess.Board, target: chess.Board, plies: int, dead: set[tuple[int, object]]) -> bool:
    """Play on from `board` to `target` in exactly so many plies; the moves stay on the board when there is a way."""
    if plies == 0:
        return _same(board, target)
    key = (plies, board._transposition_key())
    if key in dead or len(dead) > MAX_POSITIONS or _too_far(board, target, plies):
        return False
    for move in sorted(board.legal_moves, key=chess.Move.uci):
        board.push(move)
        if _lead(board, target, plies - 1, dead):
            return True
        board.pop()
    dead.add(key)
    return False


def _same(board: chess.Board, target: chess.Board) -> bool:
    return (
        board.board_fen() == target.board_fen()
        and board.clean_castling_rights() == target.clean_castling_rights()
        and (board.ep_square if board.has_legal_en_passant() else None)
        == (target.ep_square if target.has_legal_en_passant() else None)
    )


def _too_far(board: chess.Board, target: chess.Board, plies: int) -> bool:
    """Whether `plies` plies cannot be enough: a ply brings one piece to its square (castling two) and takes one."""
    if target.clean_castling_rights() & ~board.clean_castling_rights():
        return True
    for colour in chess.COLORS:
        turns = (plies + (board.turn == colour)) // 2
        missing = 0
        for piece in chess.PIECE_TYPES:
            missing += (target.pieces_mask(piece, colour) & ~board.pieces_mask(piece, colour)).bit_count()
        castles = bool(board.castling_rights & (chess.BB_RANK_1 if colour == chess.WHITE else chess.BB_RANK_8))
        if missing > turns + castles:
            return True
        taken = board.occupied_co[not colour].bit_count() - target.occupied_co[not colour].bit_count()
        if not 0 <= taken <= turns:
            return True
    return False
