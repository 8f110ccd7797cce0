"""A position as a person types it: moves in SAN or UCI, with or without numbers, or a FEN."""

from __future__ import annotations

import re
from collections.abc import Iterable

import chess

from chessreg.errors import BadInputError
from chessreg.games.shortest import shortest_game

_NUMBER = re.compile(r"^\d+\.+")


def typed_moves(text: str) -> tuple[str, ...]:
    """The moves that lead to a typed position, as canonical SAN from the initial position; of a FEN the shortest game.

    >>> typed_moves("1. e4 e5 2.g1f3")
    ('e4', 'e5', 'Nf3')
    >>> typed_moves("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1")
    ('e4',)

    Raises BadInputError naming the move that is not legal, or for a position that no short game leads to.
    """
    return sans(moves_to(text))


def moves_to(text: str) -> list[chess.Move]:
    """The same as moves."""
    if "/" in text.partition(" ")[0]:
        return shortest_game(_position(text))
    return played(_NUMBER.sub("", word) for word in text.split())


def played(words: Iterable[str]) -> list[chess.Move]:
    """The moves that these words are, one after the other; empty words are passed over."""
    board = chess.Board()
    for word in filter(None, words):
        board.push(one_move(board, word))
    return board.move_stack


def one_move(board: chess.Board, word: str) -> chess.Move:
    """One move in SAN or UCI. Raises BadInputError when it is not legal on this board."""
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


def sans(moves: Iterable[chess.Move]) -> tuple[str, ...]:
    """Canonical SAN of a game's moves."""
    board = chess.Board()
    return tuple(board.san_and_push(move) for move in moves)


def board_after(moves: Iterable[str]) -> chess.Board:
    """The position after these moves (SAN), with its moves on the stack."""
    board = chess.Board()
    for san in moves:
        board.push_san(san)
    return board


def _position(text: str) -> chess.Board:
    try:
        target = chess.Board(text.strip())
    except ValueError as error:
        raise BadInputError(f"{text!r} is no FEN: {error}", "or write moves like e4 e5 Nf3") from error
    if not target.is_valid():
        raise BadInputError(f"{text!r} is no position of a game of chess", "or write moves like e4 e5 Nf3")
    return target
