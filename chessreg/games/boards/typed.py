"""Typed positions: moves in SAN or UCI, with or without numbers, or a FEN that a short game reaches."""

from __future__ import annotations

import re
from collections.abc import Iterable

import chess

from chessreg.errors import BadInputError

INITIAL = "startpos"  # the initial position, as in UCI
MAX_PLIES = 10
MAX_POSITIONS = 30_000  # search limit, one to five seconds


def find_shortest_game(target: chess.Board, max_plies: int = MAX_PLIES) -> list[chess.Move]:
    """Return the moves of a shortest game from the initial position to `target`, a pure function of the position.

    Among several games, the first in the order of UCI texts. Pieces, side to move, castling rights and en passant must
    match. Raises BadInputError if no game of at most `max_plies` plies reaches the position.

    >>> board = chess.Board("rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq -")
    >>> [move.uci() for move in find_shortest_game(board)]
    ['e2e4', 'c7c5']
    """
    first_ply = 0 if target.turn == chess.WHITE else 1
    for plies in range(first_ply, max_plies + 1, 2):
        board, dead_positions = chess.Board(), set[tuple[int, object]]()
        if _find_moves(board, target, plies, dead_positions):
            return list(board.move_stack)
        if len(dead_positions) > MAX_POSITIONS:
            break
    raise BadInputError(
        f"no game of {max_plies} plies or fewer was found that leads to {target.epd()},"
        " and the model reads moves, not positions",
        "use a book of games (PGN, TSV or CSV)",
    )


def _find_moves(board: chess.Board, target: chess.Board, plies: int, dead_positions: set[tuple[int, object]]) -> bool:
    """Search for exactly `plies` moves from `board` to `target`; on success return True and leave them on the board."""
    if plies == 0:
        return _is_same_position(board, target)
    key = (plies, board._transposition_key())
    if key in dead_positions or len(dead_positions) > MAX_POSITIONS:
        return False
    if _is_too_far(board, target, plies):
        dead_positions.add(key)
        return False
    for move in sorted(board.legal_moves, key=chess.Move.uci):
        board.push(move)
        if _find_moves(board, target, plies - 1, dead_positions):
            return True
        board.pop()
    dead_positions.add(key)
    return False


def _is_same_position(board: chess.Board, target: chess.Board) -> bool:
    """Return whether pieces, castling rights and legal en-passant captures match."""
    return (
        board.board_fen() == target.board_fen()
        and board.clean_castling_rights() == target.clean_castling_rights()
        and (board.ep_square if board.has_legal_en_passant() else None)
        == (target.ep_square if target.has_legal_en_passant() else None)
    )


def _is_too_far(board: chess.Board, target: chess.Board, plies: int) -> bool:
    """Return whether `plies` plies are certainly too few.

    A ply brings one piece to its square (castling two) and captures at most one, a pawn never moves back, and a king or
    rook at home that lost its right must have left and returned.
    """
    rights, target_rights = board.clean_castling_rights(), target.clean_castling_rights()
    if target_rights & ~rights:
        return True
    for color in chess.COLORS:
        turns = (plies + (board.turn == color)) // 2
        missing_pieces = 0
        for piece in chess.PIECE_TYPES:
            missing_pieces += (target.pieces_mask(piece, color) & ~board.pieces_mask(piece, color)).bit_count()
        castles = bool(board.castling_rights & (chess.BB_RANK_1 if color == chess.WHITE else chess.BB_RANK_8))
        first_rank, second = (chess.BB_RANK_1, chess.BB_RANK_2) if color else (chess.BB_RANK_8, chess.BB_RANK_7)
        if target.pieces_mask(chess.PAWN, color) & second & ~board.pieces_mask(chess.PAWN, color):
            return True
        king_at_home = target.pieces_mask(chess.KING, color) & first_rank & chess.BB_FILE_E
        lost_rights = (
            rights & ~target_rights & first_rank & target.pieces_mask(chess.ROOK, color)
        )  # by their rooks' squares
        if king_at_home and lost_rights:
            missing_pieces += 2
        if missing_pieces > turns + castles:
            return True
        captured_pieces = board.occupied_co[not color].bit_count() - target.occupied_co[not color].bit_count()
        if not 0 <= captured_pieces <= turns:
            return True
    return False


_NUMBER = re.compile(r"^\d+\.+")


def parse_typed_sans(text: str) -> tuple[str, ...]:
    """Return the moves that lead to a typed position, as canonical SAN from the initial position.

    A FEN gives the moves of a shortest game. Raises BadInputError for an illegal move, and for a position that no short
    game reaches.

    >>> parse_typed_sans("1. e4 e5 2.g1f3")
    ('e4', 'e5', 'Nf3')
    >>> parse_typed_sans("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1")
    ('e4',)
    >>> parse_typed_sans("startpos")
    ()
    """
    return convert_moves_to_sans(parse_typed_moves(text))


def continue_typed_sans(moves: str, more: str) -> str:
    """Return typed moves `more` that follow `moves` (canonical SAN) as canonical SAN in one line.

    Raises BadInputError for an illegal move.

    >>> continue_typed_sans("e4 e5", "g1f3 2... Nc6")
    'Nf3 Nc6'
    """
    return " ".join(parse_typed_sans(f"{moves} {more}")[len(moves.split()) :])


def parse_typed_moves(text: str) -> list[chess.Move]:
    """Return the moves that lead to a typed position; like `parse_typed_sans`, but as moves."""
    if "/" in text.partition(" ")[0]:
        return find_shortest_game(_parse_position(text))
    if text.strip() == INITIAL:
        return []
    return play_words(_NUMBER.sub("", word) for word in text.split())


def play_words(texts: Iterable[str]) -> list[chess.Move]:
    """Return the moves of these words (SAN or UCI), played from the initial position; empty words are skipped."""
    board = chess.Board()
    for word in filter(None, texts):
        board.push(parse_move(board, word))
    return board.move_stack


def parse_move(board: chess.Board, word: str) -> chess.Move:
    """Return a move written in SAN or UCI. Raises BadInputError if it is not legal on this board."""
    for parse in (board.parse_san, board.parse_uci):
        try:
            if move := parse(word):  # python-chess reads `--` and `0000` as null moves, which are falsy
                return move
        except ValueError:
            continue
    number = f"{board.fullmove_number}{'.' if board.turn else '...'}"
    raise BadInputError(
        f"{number}{word} is not legal in {board.fen()}", "moves are written like e4 e5 Nf3 or e2e4 e7e5"
    )


def convert_moves_to_sans(moves: Iterable[chess.Move]) -> tuple[str, ...]:
    """Return a game's moves in canonical SAN."""
    board = chess.Board()
    return tuple(board.san_and_push(move) for move in moves)


def play_sans(moves: Iterable[str]) -> chess.Board:
    """Return the board after these moves in SAN, with its move stack."""
    board = chess.Board()
    for san in moves:
        board.push_san(san)
    return board


def _parse_position(text: str) -> chess.Board:
    """Return the board of a FEN. Raises BadInputError for an invalid FEN or an illegal position."""
    try:
        target = chess.Board(text.strip())
    except ValueError as error:
        raise BadInputError(f"{text!r} is not a FEN: {error}", "or write moves like e4 e5 Nf3") from error
    if not target.is_valid():
        raise BadInputError(f"{text!r} is not a legal chess position", "or write moves like e4 e5 Nf3")
    return target
