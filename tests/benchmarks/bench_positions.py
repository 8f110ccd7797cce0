"""How fast positions are read, encoded and looked into, each against a loop over records in Python: ratios.

    python tests/benchmarks/bench_positions.py --positions 100000

fen      77 tokens of each FEN, against a loop that expands one FEN after the other
bag      a .bag's records: where their FENs and moves are, and their win probabilities, against a reader that takes one
         record after the other and decodes its components; and the same with the texts cut out
legal    the legal moves of each position, against python-chess
add      a dataset of positions made from a Parquet, against a loop that checks each row on python-chess's board
scoring  what `move-accuracy` asks the bundled FEN encoder of 2,048 of them (best, valid and legal moves, legal mass),
         against the bare forward passes over their tokens, one thread: these are to be at least 60 % of the time

Positions are the Lichess ones next to the checkout if they exist, else of random games. CPU seconds, the best of some.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import random
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from bench_play import load

from chessreg.encodings.fen77 import Fen77
from chessreg.experiments.move_accuracy import judge_decisions
from chessreg.experiments.settings.decisions import Decisions
from chessreg.games.datasets.bags import Bag, encode_record, write_bag
from chessreg.games.datasets.positions import Positions, build_position_dataset
from chessreg.games.datasets.reader import find_legal_moves

CHARACTERS = {character: number for number, character in enumerate("0123456789abcdefghpnrkqPBNRQKw.")}
FEWER = 20  # a loop gets this share of the positions


def tokens_of(fen: str) -> np.ndarray:
    """One FEN's 77 tokens, character by character."""
    board, side, castling, en_passant, halfmoves, fullmoves = fen.split(" ")
    text = side
    for character in board.replace("/", ""):
        text += "." * int(character) if character in "12345678" else character
    for field, length in ((castling, 4), (en_passant, 2), (halfmoves, 3), (fullmoves, 3)):
        text += ("" if field == "-" else field).ljust(length, ".")
    return np.array([CHARACTERS[character] for character in text], np.uint8)


class Coder:
    """A record's components, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def text(self, nested: bool) -> str:
        length = self.varint() if nested else len(self.data) - self.at
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8")

    def number(self) -> float:
        self.at += 8
        return float(struct.unpack(">d", self.data[self.at - 8 : self.at])[0])


class Records:
    """A bag as a sequence of records."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.start = struct.unpack("<q", self.map[-8:])[0]

    def __len__(self) -> int:
        return (len(self.map) - self.start) // 8

    def limit(self, number: int) -> int:
        at = self.start + 8 * number
        return int(struct.unpack("<q", self.map[at : at + 8])[0])

    def __getitem__(self, number: int) -> bytes:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return bytes(self.map[self.limit(number - 1) if number else 0 : self.limit(number)])


def loop_of_bag(path: Path) -> list[tuple[str, str, float]]:
    found = []
    records = Records(path)
    for number in range(len(records)):
        coder = Coder(records[number])
        found.append((coder.text(True), coder.text(True), coder.number()))
    return found


def loop_of_rows(fens: list[str], moves: list[str]) -> list[tuple[str, int]]:
    kept = []
    for fen, move in zip(fens, moves, strict=True):
        board = chess.Board(fen)
        if board.is_valid() and board.is_legal(chess.Move.from_uci(move)):
            kept.append((fen, board.legal_moves.count()))
    return kept


def real(count: int) -> list[str]:
    """FENs: the Lichess positions next to the checkout, or those of random games."""
    path = Path(__file__).resolve().parents[3] / "shared" / "data" / "positions" / "lichess-best-moves.parquet"
    if path.is_file():
        return list(next(pq.ParquetFile(path).iter_batches(count, columns=["fen"]))["fen"].to_pylist())
    random.seed(0)
    fens: list[str] = []
    board = chess.Board()
    while len(fens) < count:
        fens.append(board.fen())
        board.push(random.choice(list(board.legal_moves)))
        if board.is_game_over() or board.ply() > 120:
            board = chess.Board()
    return fens


def seconds(work: Callable[[], Any], repeat: int) -> float:
    """CPU seconds, the fewest of `repeat` times."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def scoring(positions: Positions, count: int, repeat: int) -> None:
    with ExitStack() as stack:
        model = load(stack.enter_context(as_file(files("chessreg") / "data" / "fen-model")), stack)
        assert model is not None
        torch.set_num_threads(1)
        asked = Decisions(positions, np.arange(min(count, len(positions))))
        ids = torch.from_numpy(np.array(asked.encode_prompts(model.encoding)))

        def passes() -> None:
            with torch.inference_mode():
                for tokens in ids.split(128):
                    model.logits(tokens)

        passes()
        bare, ours = (seconds(work, repeat) for work in (passes, lambda: list(judge_decisions(model, asked))))
        rates = f"{len(asked) / ours:>12,.0f} /s   passes {len(asked) / bare:>8,.0f} /s"
        print(f"{'scoring':<12} {rates}   {bare / ours:.0%} of the time (goal at least 60 %)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    fens = real(options.positions)
    few = fens[:: max(len(fens) // (options.positions // FEWER), 1)]
    scale = len(fens) / len(few)
    legal = find_legal_moves(fens)
    codes = [int(legal.codes[start]) if end > start else 0 for start, end in itertools.pairwise(legal.offsets)]
    moves = [chess.Move(code & 63, code >> 6 & 63, code >> 12 or None).uci() if code else "a1a2" for code in codes]
    fen77 = Fen77()

    def told(name: str, ours: float, loop: float) -> None:
        print(f"{name:<12} {len(fens) / ours:>12,.0f} /s   loop {len(fens) / loop:>10,.0f} /s   {loop / ours:.1f}x")

    assert np.array_equal(fen77.boards(few).ids.reshape(-1, 77), np.stack([tokens_of(fen) for fen in few]))
    told(
        "fen",
        seconds(lambda: fen77.boards(fens), options.repeat),
        scale * seconds(lambda: [tokens_of(fen) for fen in few], options.repeat),
    )
    with tempfile.TemporaryDirectory() as folder:
        bag = Path(folder) / "x.bag"
        write_bag(bag, (encode_record(fen, move, 0.5) for fen, move in zip(fens, moves, strict=True)))

        def texts() -> list[tuple[str, str, float]]:
            return [row for some in Bag(bag).records()
                    for row in zip(some.fens(), some.moves(), some.win_prob.tolist(), strict=True)]  # fmt: skip

        assert texts() == loop_of_bag(bag)
        loop = seconds(lambda: loop_of_bag(bag), options.repeat)
        told("bag", seconds(lambda: sum(map(len, Bag(bag).records())), options.repeat), loop)
        told("bag, texts", seconds(texts, options.repeat), loop)
        told(
            "legal",
            seconds(lambda: find_legal_moves(fens), options.repeat),
            scale * seconds(lambda: [list(chess.Board(fen).legal_moves) for fen in few], 1),
        )
        pq.write_table(pa.table({"fen": fens, "best": moves}), Path(folder) / "x.parquet")
        made = iter(range(options.repeat))
        few_moves = [moves[place] for place in range(0, len(fens), max(len(fens) // (options.positions // FEWER), 1))]
        told(
            "add",
            seconds(
                lambda: build_position_dataset([Path(folder) / "x.parquet"], Path(folder) / f"made{next(made)}"),
                options.repeat,
            ),
            scale * seconds(lambda: loop_of_rows(few, few_moves), 1),
        )
        scoring(Positions(Path(folder) / "made0"), 2048, options.repeat)


if __name__ == "__main__":
    main()
