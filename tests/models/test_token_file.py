"""Token files: a written file is read back, positions agree with python-chess, damage is refused in one line."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import chess
import numpy as np
import pytest

from chessreg.encodings import get_encoding
from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.datasets.build import build_dataset
from chessreg.games.datasets.dataset import Games
from chessreg.models.token_file import ARRAYS, HeldoutPosition, TokenFile, export_token_file, make_token_file

TEXTS = (
    "1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. O-O Nf6 5. d4 exd4",
    "1. d4 d5 2. c4 dxc4 3. e3 b5 4. a4 c6 5. axb5 cxb5 6. Qf3 Nd7",
    "1. e4 d5 2. exd5 e6 3. dxe6 Qg5 4. e7 Nf6 5. exf8=Q+ Kxf8",
    "1. e4 e5 2. Nf3 Nc6 3. Nc3 Nf6 4. Bc4 Nxe4",
    "1. e4 e5 2. Nf3 Nc6 3. Nc3 Nf6 4. Bc4 Nxe4",
    "1. c4 e5 2. g3 Nf6 3. Bg2 d5",
)


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Games:
    folder = tmp_path_factory.mktemp("games")
    (folder / "games.pgn").write_text("".join(f'[Event "x"]\n[Result "*"]\n\n{text} *\n\n' for text in TEXTS))
    build_dataset([folder / "games.pgn"], folder / "dataset")
    return Games(folder / "dataset")


def made(games: Games, name: str = "pgn-char-32", positions: int = 1000) -> TokenFile:
    rows = np.arange(len(games))
    return make_token_file(get_encoding(name), games, rows[3:], games, rows[:3], positions, {"dataset": "test"})


def written(content: TokenFile, path: Path) -> Path:
    with path.open("wb") as file:
        content.write(file)
    return path


def board_of(prompt: tuple[int, ...]) -> chess.Board:
    board = chess.Board()
    for word in get_encoding("pgn-char-32").decode(prompt)[1:].split():
        if san := word.rpartition(".")[2]:
            board.push_san(san)
    return board


@pytest.mark.parametrize("name", ["pgn-char-32", "uci-square-72", "uci-square-77", "fen-77"])
def test_what_is_written_comes_back(games: Games, tmp_path: Path, name: str) -> None:
    content = made(games, name)
    path = written(content, tmp_path / "games.npz")
    back = TokenFile.read(path)
    for field in ARRAYS:
        np.testing.assert_array_equal(getattr(back, field), getattr(content, field))
    assert {**vars(back), **dict.fromkeys(ARRAYS)} == {**vars(content), **dict.fromkeys(ARRAYS)}
    tokens = get_encoding(name).games(games, np.arange(3, len(games)))
    np.testing.assert_array_equal(back.tokens, tokens.ids)
    np.testing.assert_array_equal(np.cumsum(back.lengths), tokens.offsets[1:])
    assert written(back, tmp_path / "again.npz").read_bytes() == path.read_bytes()


def test_numpy_alone_reads_it(games: Games, tmp_path: Path) -> None:
    with np.load(written(made(games), tmp_path / "games.npz"), allow_pickle=False) as archive:
        header = json.loads(archive["header"].tobytes())
        first = archive["tokens"][: archive["lengths"][0]]
    assert (header["format"], header["version"], header["encoding"]) == ("chessreg-tokens", 1, "pgn-char-32")
    assert get_encoding("pgn-char-32").decode(first) == games.texts([3])[0]


def test_positions_are_the_turns_of_held_out_games_with_their_legal_moves(games: Games) -> None:
    content, pgn = made(games), get_encoding("pgn-char-32")
    positions = content.positions(1023)
    assert len(positions) == sum(len(moves) // 2 for moves in games.moves([0, 1, 2]))
    for position in positions:
        board = board_of(position.prompt)
        assert pgn.prompt(board) == position.prompt
        assert position.answers == list(pgn.answers(board).values())
    assert content.positions(40) == [
        position for position in positions if len(position.prompt) <= 31
    ]  # room for a move
    assert len(content.positions(1023, 5)) == 5
    drawn = made(games, positions=7)
    assert {p.prompt for p in drawn.positions(1023)} < {p.prompt for p in positions}
    assert len(drawn.positions(1023)) == 7


def test_a_text_is_legal_where_python_chess_reads_it_as_a_legal_move(games: Games) -> None:
    content, pgn = made(games), get_encoding("pgn-char-32")
    positions = content.positions(1023)
    texts = {text for position in positions[::9] for text in pgn.accepted_texts(board_of(position.prompt))[::9]}
    texts |= {"Nf3+", "Qxf3#", "e4", "Ke9", "", "O-O", "0-0", "--", "exf8=Q", "exf8Q", "exf8"}
    legal = 0
    for position in positions[::6]:
        board = board_of(position.prompt)
        for text in sorted(texts):
            ids = pgn.encode(f"{text} Nc6").tolist()
            assert content.is_legal(position, ids) == (pgn.parse(text, board) is not None), text
            legal += content.is_legal(position, ids)
    assert legal > 50


def test_a_move_of_squares_ends_by_itself(games: Games) -> None:
    content, squares = made(games, "uci-square-72"), get_encoding("uci-square-72")
    position = content.positions(255)[0]
    moves = squares.answers(chess.Board())
    assert all(content.is_legal(position, [*ids, 5]) for ids in moves.values())
    assert not content.is_legal(position, [5, 5, 5])


def test_a_model_that_reads_positions_gets_whole_positions(games: Games) -> None:
    positions = made(games, "fen-77", 9).positions(77)
    assert len(positions) == 9
    assert {len(position.prompt) for position in positions} == {77}
    assert all(len(answer) == 1 for position in positions for answer in position.answers)


def test_duplicates_and_held_out_games_are_not_trained_on(games: Games, tmp_path: Path) -> None:
    pgn, rows = get_encoding("pgn-char-32"), np.arange(len(games))

    def exported(name: str, trained: np.ndarray, held: np.ndarray) -> TokenFile:
        limits = {"most": 3, "most_heldout": 5, "positions": 2}
        return export_token_file(tmp_path / name, pgn, games, trained, games, held, **limits, source={})

    content = exported("games.npz", rows, rows[1:2])
    back = TokenFile.read(tmp_path / "games.npz")
    assert back.source == content.source == {"duplicates_left_out": 1, "heldout_left_out": 1}
    starts = np.cumsum(back.lengths) - back.lengths
    texts = [pgn.decode(back.tokens[start : start + n]) for start, n in zip(starts, back.lengths, strict=True)]
    assert texts == games.texts([0, 2, 3])
    for name, trained, held, problem in (
        ("games.npz", rows, rows[:1], "exists already"),
        ("games.txt", rows, rows[:1], r"does not end in \.npz"),
        ("new.npz", rows[:1], rows[:1], "no game remains to train on"),
        ("new.npz", rows, rows[:0], "no game remains to hold out"),
    ):
        with pytest.raises(BadInputError, match=problem):
            exported(name, trained, held)
    assert [file.name for file in tmp_path.iterdir()] == ["games.npz"]


def changed(path: Path, name: str, value: np.ndarray | None) -> None:
    """Replace an array of a token file, or take it away."""
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays |= {name: value} if value is not None else {}
    np.savez_compressed(path, **{key: each for key, each in arrays.items() if value is not None or key != name})


def header_of(path: Path, **fields: object) -> np.ndarray:
    with np.load(path) as archive:
        header = json.loads(archive["header"].tobytes()) | fields
    return np.frombuffer(json.dumps(header).encode(), np.uint8)


def test_damage_is_refused_in_one_line(games: Games, tmp_path: Path) -> None:
    path = written(made(games), tmp_path / "games.npz")
    whole = path.read_bytes()
    with np.load(path) as archive:
        tokens, lengths = archive["tokens"], archive["lengths"]
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
        archive.writestr("header.npy", "no array")
    damaged = [b"", b"no zip", pickled.getvalue(), (tmp_path / "text.zip").read_bytes()]
    damaged += [whole[:end] for end in range(0, len(whole), len(whole) // 9)]
    for place in range(100, len(whole), len(whole) // 23):
        damaged.append(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
    refused = []
    for data in damaged:
        path.write_bytes(data)
        try:
            TokenFile.read(path)  # a changed date in the zip's directory does not matter
        except BadInputError as error:
            refused.append(str(error))
    assert len(refused) > 0.8 * len(damaged)
    assert all(str(path) in message and "\n" not in message for message in refused)
    path.write_bytes(whole)
    for name, value in (
        ("tokens", None),
        ("header", header_of(path, version=2)),
        ("header", header_of(path, more=1)),
        ("header", header_of(path, size=20)),
        ("header", np.frombuffer(b"[]", np.uint8)),
        ("tokens", tokens[:-1]),
        ("tokens", tokens.astype(np.int64)),
        ("tokens", np.full_like(tokens, 32)),
        ("lengths", lengths[None]),
        ("lengths", -lengths),
        ("position_item", np.full(1, 99, np.int32)),
    ):
        path.write_bytes(whole)
        changed(path, name, value)
        with pytest.raises(BadInputError, match="damaged or not a token file"):
            TokenFile.read(path)
    path.unlink()
    with pytest.raises(NotFoundError, match="does not exist"):
        TokenFile.read(path)


def test_a_position_holds_all_spellings_without_marks(games: Games) -> None:
    position: HeldoutPosition = made(games).positions(1023)[0]
    text = get_encoding("pgn-char-32").decode
    assert "Nf3" in {text(ids) for ids in position.spellings}
    assert not any(set(text(ids)) & set("x-+# ") for ids in position.spellings)
