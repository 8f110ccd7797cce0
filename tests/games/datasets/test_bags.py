"""Bags of ChessBench: golden bytes, refusals, and round trips."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import chess
import numpy as np
import pytest

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.games.datasets import bags
from chessreg.games.datasets.bags import (
    Bag,
    BagError,
    Coding,
    decode_records,
    encode_record,
    encode_varint,
    export_bag,
    list_bag_shards,
    write_bag,
)
from chessreg.games.datasets.positions import Positions, build_position_dataset

START = chess.STARTING_FEN
ABC = bytes.fromhex("61626368656c6c6f 0300000000000000 0300000000000000 0800000000000000")
LEGAL = ("e2e4", "g1f3", "d2d4")


def fens(count: int) -> list[str]:
    """Boards after 0, 1, … moves, promotions among them."""
    boards, rng = [], np.random.default_rng(3)
    board = chess.Board("4k3/P6P/8/8/8/8/p6p/4K3 w - - 0 1")
    while len(boards) < count:
        boards.append(board.fen())
        moves = list(board.legal_moves)
        board.push(moves[rng.integers(len(moves))])
        if board.is_game_over():
            board = chess.Board("4k3/P6P/8/8/8/8/p6p/4K3 w - - 0 1")
    return boards


def records(coding: Coding, count: int = 60) -> list[bytes]:
    made = []
    for number, fen in enumerate(fens(count)):
        moves = sorted((move.uci() for move in chess.Board(fen).legal_moves), key=lambda uci: (-len(uci), uci))
        move = None if coding == "state_value" else moves[0]
        made.append(encode_record(fen, move, None if coding == "behavioral_cloning" else number / count))
    return made


@pytest.fixture
def bag(tmp_path: Path) -> Callable[..., Path]:
    def make(data: bytes | list[bytes], name: str = "x.bag") -> Path:
        path = tmp_path / name
        path.write_bytes(data) if isinstance(data, bytes) else write_bag(path, data)
        return path

    return make


def test_golden_bytes(bag: Callable[..., Path]) -> None:
    cloning, state, action = (
        encode_record(START, "e2e4"),
        encode_record(START, None, 0.5),
        encode_record(START, "e2e4", 0.5),
    )
    assert (len(cloning), cloning[:3].hex(), cloning[-5:].hex()) == (61, "38726e", "3165326534")
    assert (len(state), state[-8:].hex()) == (65, "3fe0000000000000")
    assert (len(action), action[57:62]) == (70, b"\x04e2e4")
    assert (encode_varint(56), encode_varint(130).hex(), encode_varint(200).hex()) == (b"8", "8201", "c801")
    assert bag([b"abc", b"", b"hello"]).read_bytes() == ABC
    made = Bag(bag(ABC, "y.bag"))
    assert (len(made), list(made), made[1], made[-1]) == (3, [b"abc", b"", b"hello"], b"", b"hello")
    with pytest.raises(IndexError, match="record 3 of 3"):
        made[3]
    assert list(Bag(bag(b"", "none.bag"))) == []


def test_a_length_of_two_bytes_is_read() -> None:
    text = encode_varint(130) + b"x" * 130 + b"e2e4"
    made = decode_records(text, np.array([0]), np.array([len(text)]))
    assert (made.fens(), made.moves(), made.coding) == (["x" * 130], ["e2e4"], "behavioral_cloning")


@pytest.mark.parametrize("name", ["x.bag", "x.bagz"])
@pytest.mark.parametrize("coding", bags.CODINGS)
def test_every_coding_goes_in_and_comes_out_byte_for_byte(
    bag: Callable[..., Path], tmp_path: Path, coding: Coding, name: str
) -> None:
    """Through a dataset: the records, and of a .bag the file; read in pieces, they are the same."""
    wanted = records(coding)
    path = bag(wanted, name)
    assert list(Bag(path)) == wanted
    pieces = list(Bag(path).records(batch_records=7))
    assert {piece.coding for piece in pieces} == {coding}
    assert [fen for piece in pieces for fen in piece.fens()] == fens(60)
    report = build_position_dataset([path], tmp_path / "made")
    assert (report.plies, report.rejected) == (60, {})
    made = Positions(tmp_path / "made")
    back = tmp_path / f"back{path.suffix}"
    assert export_bag(made, np.arange(60), back) == (coding, 60)
    assert list(Bag(back)) == wanted
    if path.suffix == ".bag":
        assert back.read_bytes() == path.read_bytes()
    if coding == "behavioral_cloning":
        best = made.take(range(60), ["best"])["best"].to_pylist()
        assert [move for piece in pieces for move in piece.moves()] == best
    else:
        assert [p for piece in pieces for p in piece.win_prob.tolist()] == [number / 60 for number in range(60)]


def limits(*ends: int) -> bytes:
    return struct.pack(f"<{len(ends)}q", *ends)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"abc", "a file of 3 bytes is not a bag"),
        (b"abcdefgh" + limits(9), "the records' end at 9 of 16 bytes"),
        (b"abcdefgh" + limits(-1), "the records' end at -1"),
        (b"abcdefgh" + limits(16), "the records' end at 16"),
        (b"abcdefghi" + limits(8), "not whole 8-byte integers"),
        (b"\x05abcde2e4" + limits(9, 4, 9), "record 1 at byte 9: its limits are not in order: 9, then 4"),
        (b"\x05abcde2e4" + limits(-3, 9), "record 0 at byte 0: its limits are not in order"),
        (b"\x05abcde2e4" + limits(11, 9), "record 0 at byte 0: its limits are not in order"),
        (b"\x04abcde2e4" + limits(9, 9), "record 1 at byte 9: it is not a record of behavioral_cloning"),
        (b"\x09abcde2e4" + limits(9), "record 0 at byte 0: it is not a record"),
        (b"\x80" + limits(1), "record 0 at byte 0: it is not a record"),
        (
            encode_record(START, "e2e4") + encode_record(START, None, 1) + limits(61, 126),
            "record 1 at byte 61: it is not a record of",
        ),
        (
            encode_record(START, None, 1) + encode_record(START, "e2e4") + limits(65, 126),
            "record 1 at byte 65: it is not a record of",
        ),
        (b"x" * 5000 + limits(5000), "record 0 at byte 0: it has 5,000 bytes"),
    ],
)
def test_what_is_no_bag_is_refused_in_one_line_with_record_and_byte(
    bag: Callable[..., Path], tmp_path: Path, data: bytes, reason: str
) -> None:
    path = bag(data)
    with pytest.raises(BagError) as caught:
        build_position_dataset([path], tmp_path / "made")
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["x.bag"]


@pytest.mark.parametrize("name", ["x.bag", "x.bagz"])
def test_a_broken_bag_is_refused_also_with_salvage(bag: Callable[..., Path], tmp_path: Path, name: str) -> None:
    """Cut inside a record, inside the limits, or with limits that are not in order."""
    data = bag(records("state_value"), name).read_bytes()
    ends = np.frombuffer(data[-480:], "<i8").tolist()
    for number, broken in enumerate((data[: ends[40] + 20], data[:-100], data[:-80] + limits(3) + data[-72:])):
        with pytest.raises(BagError, match="download it again"):
            build_position_dataset([bag(broken, f"{number}{name}")], tmp_path / "made", salvage=True)
        assert not (tmp_path / "made").exists()


def test_damaged_zstd_is_refused_with_its_record(bag: Callable[..., Path], tmp_path: Path) -> None:
    path = bag(records("state_value"), "x.bagz")
    data = bytearray(path.read_bytes())
    end = int(np.frombuffer(data[-480:-472], "<i8")[0])
    data[end : end + 4] = b"\0\0\0\0"
    path.write_bytes(data)
    with pytest.raises(BagError, match=rf"record 1 at byte {end}: its zstd data is damaged"):
        list(Bag(path))


def test_limits_in_a_file_of_their_own_are_read(bag: Callable[..., Path]) -> None:
    bag(limits(3, 3, 8), "limits.x.bag")
    assert list(Bag(bag(b"abchello"))) == [b"abc", b"", b"hello"]
    with pytest.raises(BagError, match="its limits end at 8, the file at 9 bytes"):
        Bag(bag(b"abchello!"))


def test_shards_are_one_dataset_in_their_order(bag: Callable[..., Path], tmp_path: Path) -> None:
    wanted = records("action_value", 9)
    for number in range(3):
        bag(wanted[3 * number : 3 * number + 3], f"av-0000{number}-of-00003_data.bag")
    files = list_bag_shards(tmp_path / "av@3_data.bag")
    build_position_dataset(files, tmp_path / "made")
    assert Positions(tmp_path / "made").fens(range(9)) == fens(9)
    files[1].unlink()
    with pytest.raises(NotFoundError, match=r"1 of 3 shards are missing: .*av-00001-of-00003_data\.bag"):
        list_bag_shards(tmp_path / "av@3_data.bag")
    with pytest.raises(BadInputError, match="0 shards"):
        list_bag_shards(tmp_path / "av@0_data.bag")
    with pytest.raises(BadInputError, match=r"100,000 shards .*99,999"):
        list_bag_shards(tmp_path / "foo@100000.bag")
    assert list_bag_shards(tmp_path / "games@3.pgn") == [tmp_path / "games@3.pgn"]


def test_rows_that_are_no_chess_are_rejected_one_by_one(bag: Callable[..., Path], tmp_path: Path) -> None:
    good, bad = (
        encode_record(START, "e2e4", 1.0),
        [encode_record(START, "e2e5", 0.5), encode_record(START, "e2e4", 1.5)],
    )
    bad += [
        encode_record(START, "e2e4", float("nan")),
        encode_record(START[:-1] + "10000", "e2e4", 0.0),
        encode_record("x", "e2e4", 0.0),
    ]
    report = build_position_dataset([bag([good, *bad])], tmp_path / "made")
    assert report.plies == 1
    assert report.rejected == {
        "illegal action move": 1, "a win probability outside 0 to 1": 2, "a counter above 999": 1, "no FEN": 1,
    }  # fmt: skip


def test_a_bag_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    def breaking() -> object:
        yield b"abc"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_bag(tmp_path / "x.bag", breaking())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    write_bag(tmp_path / "x.bag", [b"abc"])
    with pytest.raises(BadInputError, match="exists already"):
        write_bag(tmp_path / "x.bag", [])
    with pytest.raises(BadInputError, match="end its name in"):
        write_bag(tmp_path / "x.bin", [])
    with pytest.raises(NotFoundError, match="folder"):
        write_bag(tmp_path / "none" / "x.bag", [])
    with pytest.raises(ChessregError, match=r"/proc/x\.bag cannot be written") as caught:
        write_bag(Path("/proc/x.bag"), [])
    assert "\n" not in str(caught.value)


def test_positions_without_what_a_coding_needs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "some.csv").write_text(f"fen,best\n{START},e2e4\n{START},\n")
    build_position_dataset([tmp_path / "some.csv"], tmp_path / "made")
    made = Positions(tmp_path / "made")
    with pytest.raises(BadInputError, match="position 1 has no best"):
        export_bag(made, np.arange(2), tmp_path / "x.bag")
    with pytest.raises(BadInputError, match="position 0 has no win_prob"):
        export_bag(made, np.arange(2), tmp_path / "x.bag", "state_value")
    with pytest.raises(BadInputError, match="neither best moves nor win probabilities"):
        export_bag(made, np.array([1]), tmp_path / "x.bag")
    assert {file.name for file in tmp_path.iterdir()} == {"some.csv", "made"}
