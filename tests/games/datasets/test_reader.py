"""One conformance suite over both readers: legality, canonical text, boards, and the handling of bad moves."""

from __future__ import annotations

import random

import chess
import numpy as np
import pytest

from chessreg.errors import NotFoundError
from chessreg.games.boards import moves, san
from chessreg.games.datasets.movetext import number_sans
from chessreg.games.datasets.reader import GameReader, get_reader
from tests.replays import replay_texts

render = number_sans
MOVE_HASH = 12486363250364357059


@pytest.fixture(params=["rust", "python"])
def player(request: pytest.FixtureRequest) -> GameReader:
    return get_reader(request.param)


def ints(board: chess.Board) -> list[int]:
    pieces = (board.piece_at(square) for square in chess.SQUARES)
    return [0 if p is None else p.piece_type if p.color else -p.piece_type for p in pieces]


def random_game(seed: int, plies: int) -> chess.Board:
    """Random moves with a preference for promotions, captures and castling, which are hard cases of canonical SAN."""
    rng = random.Random(seed)
    board = chess.Board()
    while len(board.move_stack) < plies and (legal := list(board.legal_moves)):
        board.push(rng.choices(legal, [taste(board, move) for move in legal])[0])
    return board


def taste(board: chess.Board, move: chess.Move) -> int:
    pawn = board.piece_type_at(move.from_square) == chess.PAWN
    return 1 + 30 * bool(move.promotion) + 4 * board.is_castling(move) + 8 * board.is_en_passant(move) + 3 * pawn


def sans_of(board: chess.Board) -> list[str]:
    return moves.convert_packed_to_sans(moves.pack_moves(board.move_stack))


def test_random_games_come_back_with_python_chess_moves_texts_and_boards(player: GameReader) -> None:
    games = [random_game(seed, 240) for seed in range(40 if player.name == "rust" else 6)]
    sans = [sans_of(game) for game in games]
    played = player.play([" ".join(words) for words in sans])
    assert played.errors == {}
    assert played.texts == [render(words) for words in sans]
    packed = played.moves.tobytes()
    boards, offsets, errors = player.boards([" ".join(words) for words in sans])
    assert errors == {}
    assert boards.dtype == np.int8
    for number, game in enumerate(games):
        start, end = 2 * played.offsets[number : number + 2]
        assert moves.unpack_moves(packed[start:end]) == game.move_stack
        expected = [ints(board) for board in moves.replay_boards(packed[start:end])]
        assert boards[offsets[number] : offsets[number + 1]].tolist() == expected
    promotions = sum(bool(move.promotion) for game in games for move in game.move_stack)
    assert promotions > 20  # otherwise the games do not test their subjectr


@pytest.mark.parametrize(
    "line",
    [
        "f3 e5 g4 Qh4#",  # mate
        "e4 e5 Ke2 d5 d4 Qg5 Nf3 Bg4 h3 Bxf3+ gxf3",
        "e4 d5 e5 f5 exf6 Kf7 fxg7 Kg6 gxh8=N+ Kg5",  # en passant, promotion to a knight with check
        "e4 e5 Nf3 Nc6 Bc4 Bc5 O-O Nf6 Re1 O-O",
        "d4 d5 Nc3 Nc6 Bf4 Bf5 Qd2 Qd7 O-O-O O-O-O",
        "d4 e6 Nc3 Bb4 Nf3 Nf6 Nd2",  # the knight on c3 is pinned: no `fd2`
        "d4 d5 Nf3 Nf6 Nbd2 Nbd7 Nb3 Nb6 Nfd2 Nfd7",  # by file
        "a4 h5 a5 h4 Ra4 Rh5 Rh4 Rhh4",
    ],
)
def test_lines_that_are_spelled_with_care(player: GameReader, line: str) -> None:
    words: list[str] = []
    board = chess.Board()
    for word in line.split():
        try:
            words.append(board.san_and_push(board.parse_san(word)))
        except ValueError:
            break
    assert len(words) >= 4
    assert player.play([" ".join(words)]).texts == [render(words)]


def written(board: chess.Board, move: chess.Move) -> str:
    """The SAN writer's word for one move of any position: random games hardly ever come to the hard ones."""
    codes = {(t, c): t + (0 if c else 6) for t in chess.PIECE_TYPES for c in chess.COLORS}
    after = board.copy()
    after.push(move)
    boards = np.zeros((2, 64), np.uint8)
    for row, position in enumerate([board, after]):
        for square, piece in position.piece_map().items():
            boards[row, square] = codes[piece.piece_type, piece.color]
    m = san._MoveSlice(
        boards,
        np.array([0]),
        np.array([move.from_square]),
        np.array([move.to_square]),
        np.array([move.promotion or -1], np.int8),
        np.array([board.king(chess.WHITE)]),
        np.array([board.king(chess.BLACK)]),
    )
    table = san._write_letters(m, np.array([1]), np.array([after.is_checkmate()]), np.array([True]))
    return table[table != 0].tobytes().decode()


@pytest.mark.parametrize(
    ("fen", "uci", "expected"),
    [
        ("8/8/8/2k5/8/8/8/Q1Q1Q2K w - - 0 1", "c1c3", None),
        ("7k/8/8/Q7/8/8/8/Q1Q4K w - - 0 1", "a1c3", "Qa1c3+"),  # file and rank both shared
        ("8/8/8/8/Q1Q4k/8/8/2Q4K w - - 0 1", "c4f4", None),
        ("4k3/8/8/1N3N2/8/8/1N3N2/4K3 w - - 0 1", "b5d4", None),
        ("4k3/8/8/1N3N2/8/1N3N2/8/4K3 w - - 0 1", "b5d4", "Nb5d4"),
        ("k3r3/8/8/8/4N3/8/1N6/4K3 w - - 0 1", "b2d3", "Nd3"),
        ("k7/8/8/8/1b6/2N5/8/4K1N1 w - - 0 1", "g1e2", "Ne2"),  # the other knight is pinned on the diagonal
        ("k3r3/8/8/8/4R3/8/4K3/R7 w - - 0 1", "a1a4", "Ra4+"),  # the rook on e4 may not leave the file
        ("k3r3/8/8/8/4R3/8/4K3/6R1 w - - 0 1", "e4e8", None),
        ("3R2k1/8/8/8/8/8/3R4/6K1 b - - 0 1", "g8g7", None),
        ("8/6b1/8/R2Pp2k/8/8/8/4K3 w - e6 0 1", "d5e6", "dxe6+"),  # en passant opens the rank: both pawns leave it
        ("3q4/8/8/8/3pP3/8/3K4/k7 b - e3 0 1", "d4e3", "dxe3+"),
        ("k7/8/1B6/2Pp4/8/8/8/4K2R w K d6 0 1", "c5d6", None),
        ("5k2/8/8/8/8/8/8/4K2R w K - 0 1", "e1g1", "O-O+"),  # the castled rook gives check
        ("3k4/8/8/8/8/8/8/R3K3 w Q - 0 1", "e1c1", "O-O-O+"),
        ("k7/7P/8/8/8/8/8/4K3 w - - 0 1", "h7h8q", "h8=Q+"),
        ("3r2k1/2P5/8/8/8/8/8/4K3 w - - 0 1", "c7d8r", "cxd8=R+"),
        ("4k3/8/8/8/4B3/8/8/4RK2 w - - 0 1", "e4h7", "Bh7+"),  # discovered
        ("4k3/8/8/8/4b3/8/8/4R1K1 b - - 0 1", "e8d8", None),
        ("4k3/4p3/8/8/4B3/8/8/4RK2 w - - 0 1", "e4h7", "Bh7"),
        ("8/8/8/8/8/4k3/5P2/4K3 w - - 0 1", "f2f4", None),
        ("8/8/8/6k1/8/8/5P2/4K3 w - - 0 1", "f2f4", "f4+"),
        ("4k3/5p2/8/6K1/8/8/8/8 b - - 0 1", "f7f6", "f6+"),
        ("4k3/5p2/4K3/8/8/8/8/8 b - - 0 1", "f7f5", "f5"),
    ],
)
def test_the_san_writer_agrees_with_python_chess_in_hard_positions(fen: str, uci: str, expected: str | None) -> None:
    board, move = chess.Board(fen), chess.Move.from_uci(uci)
    assert board.is_legal(move)
    assert written(board, move) == board.san(move)
    assert expected in (None, board.san(move))


@pytest.mark.parametrize(
    ("movetext", "plies"),
    [
        ("e4 e5 Ke3", 2),
        ("e4 e5 Nf3 Nc6 N", 4),
        ("d4 d5 Nf3 Nf6 Nd2", 4),  # ambiguous
        ("e4 --", 1),
        ("--", 0),
        ("e4 e5 Ke2 Ke7 Nf3 Nf6 O-O", 6),
        ("O-O", 0),
        ("e4 d5 e5 f5 Nf3 Nc6 exf6", 6),  # en passant a move too late
        ("Nhf3", 0),
        ("f3 e5 g4 Qh4# a3", 4),  # nothing is legal after mate
    ],
)
def test_a_game_stops_before_its_first_bad_move(player: GameReader, movetext: str, plies: int) -> None:
    given = ["e4 e5", movetext, "", "d4"]
    played = player.play(given)
    assert played.errors == {1: plies}
    assert np.diff(played.offsets).tolist() == [2, plies, 0, 1]
    assert played.texts[1] == render(movetext.split()[:plies])
    boards, offsets, errors = player.boards(given)
    assert errors == {1: plies}
    assert np.diff(offsets).tolist() == [3, plies + 1, 1, 2]
    assert boards[offsets[2]].tolist() == ints(chess.Board())


@pytest.mark.parametrize(
    ("movetext", "text"),
    [
        ("1. e4 e5 2. Nf3", ";1.e4 e5 2.Nf3"),
        ("1.e4 e5 2.Nf3", ";1.e4 e5 2.Nf3"),
        ("e4  e5\nNf3", ";1.e4 e5 2.Nf3"),
        ("e4+ e5# Ng1f3", ";1.e4 e5 2.Nf3"),
        ("f3 e5 g4 Qh4", ";1.f3 e5 2.g4 Qh4#"),
        ("", ";"),
        ("  ", ";"),
    ],
)
def test_numbers_and_careless_marks_make_no_difference(player: GameReader, movetext: str, text: str) -> None:
    assert player.play([movetext]).texts == [text]


@pytest.mark.parametrize("given", [[], [""], ["", ""], ["", "e4"], ["e4", ""]])
def test_empty_games_keep_their_place(player: GameReader, given: list[str]) -> None:
    played = player.play(given)
    assert played.texts == [";1.e4" if text else ";" for text in given]
    boards, offsets, _ = player.boards(given)
    assert len(offsets) == len(given) + 1
    assert len(boards) == sum(2 if text else 1 for text in given)


def test_texts_cut_inside_a_move_are_read_up_to_there(player: GameReader) -> None:
    texts = [";1.e4 e5 2.N", ";1.e4 e5 2.", ";1.", ";", ";1.d4 d5"]
    boards, offsets = replay_texts(texts, cut=True, name=player.name)
    assert np.diff(offsets).tolist() == [3, 3, 1, 1, 3]
    assert boards[offsets[2]].tolist() == ints(chess.Board())


def test_readers_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_reader().name == "rust"
    with pytest.raises(NotFoundError, match="perl"):
        get_reader("perl")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert get_reader().name == "python"
    with pytest.raises(NotFoundError) as caught:
        get_reader("rust")
    assert "pip install" in caught.value.hint


def test_moves_are_packed_as_documented_and_hashed_for_ever() -> None:
    line = [chess.Move.from_uci(u) for u in ("e2e4", "e7e5", "e1g1", "a7a8q")]
    packed = moves.pack_moves(line)
    assert np.frombuffer(packed, "<u2").tolist() == [12 | 28 << 6, 52 | 36 << 6, 4 | 6 << 6, 48 | 56 << 6 | 5 << 12]
    assert moves.unpack_moves(packed) == line
    assert moves.hash_moves(packed) == MOVE_HASH
    assert moves.hash_move_lists([packed, b""]).tolist() == [MOVE_HASH, moves.hash_moves(b"")]


def test_targets_of_legal_moves_are_those_of_python_chess(player: GameReader) -> None:
    games = [random_game(seed, 240) for seed in range(12 if player.name == "rust" else 3)]
    movetexts = [" ".join(sans_of(game)) for game in games]
    movetexts[1:1] = ["", "f3 e5 g4 Qh4#"]
    games[1:1] = [chess.Board(), chess.Board()]
    for san_word in movetexts[2].split():
        games[2].push_san(san_word)
    found = player.targets(movetexts)
    expected = []
    for game in games:
        for board in moves.replay_boards(moves.pack_moves(game.move_stack)):
            expected.append(sum({1 << move.to_square for move in board.legal_moves}))
    assert found.dtype == np.uint64
    assert found.tolist() == expected
    assert player.targets([]).tolist() == []


def test_legal_moves_of_positions_are_those_of_python_chess(player: GameReader) -> None:
    """Ascending, castling as the king's move; an invalid position has none, and the reason is given."""
    fens = ["hello", "8/8/8/8/8/8/8/K7 w - - 0 1"]
    for seed in range(3):
        game = random_game(seed, 120)
        board = chess.Board()
        for move in game.move_stack:
            fens.append(board.fen(en_passant="fen"))
            board.push(move)
    fens += ["QQQQQQQ1/QQ6/1PPPPPP1/8/6pp/6pk/6p1/4K3 w - - 0 1", "k7/P7/K7/8/8/8/8/8 b - - 0 1"]
    found = player.legal(fens)
    assert found.codes.dtype == np.dtype("<u2")
    assert found.offsets.shape == (len(fens) + 1,)
    assert sorted(found.errors) == [0, 1]
    assert found.errors[1] == "no black king"
    for place, fen in enumerate(fens):
        legal = [] if place in found.errors else list(chess.Board(fen).legal_moves)
        mine = found.codes[found.offsets[place] : found.offsets[place + 1]]
        assert mine.tolist() == sorted(np.frombuffer(moves.pack_moves(legal), "<u2").tolist()), fen
    first = np.array([found.codes[min(at, len(found.codes) - 1)] for at in found.offsets[:-1]], np.uint16)
    assert found.has(first).tolist() == (found.counts > 0).tolist()
    assert not found.has(np.zeros(len(fens), np.uint16)).any()
    assert player.legal([]).offsets.tolist() == [0]
