"""Bags, the files of ChessBench (Ruoss et al. 2024; Junkin's specification 5.2, 5.3): records, then where each ends.

    record 0, record 1, …, limit 0, limit 1, …      limits: int64, little endian, the byte at which a record ends

A `.bagz` holds each record as a zstd frame of its own, an empty one as nothing. `NAME@3_data.bag` stands for three
files, `NAME-00000-of-00003_data.bag` and on. A record is a FEN with its length before it (a varint, seven bits a byte),
and then

    behavioral_cloning   the best move          state_value   the win probability, float64, big endian
    action_value         a move with its length before it, and the win probability after it
"""

from __future__ import annotations

import itertools
import re
import struct
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.boards.exporting import open_new_file

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import DatasetFile

Coding = Literal["behavioral_cloning", "state_value", "action_value"]
CODINGS: tuple[Coding, ...] = ("behavioral_cloning", "state_value", "action_value")
_BY_SIZE: dict[int, Coding] = {
    **dict.fromkeys((4, 5), "behavioral_cloning"), 8: "state_value", **dict.fromkeys((13, 14), "action_value"),
}  # fmt: skip
"""Bytes behind the FEN → coding."""
SUFFIXES = (".bag", ".bagz")
BATCH_RECORDS = 5_000  # their bytes and places stay in the cache
MAX_RECORD_BYTES = 4096
"""A longer record is none of a position."""
MAX_SHARDS = 99_999
_SHARDED = re.compile(r"(.*)@(\d+)(.*)", re.DOTALL)


class BagError(BadInputError):
    """A file that is no bag, or a record that is of no position: the message names the file, the record, the byte."""


def is_bag(path: Path) -> bool:
    """Whether a file, or a set of shards, is called as bags are."""
    return path.suffix.lower() in SUFFIXES


def list_shards(path: Path) -> list[Path]:
    """The files that `NAME@N_data.bag` stands for, in order; of any other name the file itself.

    NotFoundError names the first that is missing, BadInputError says that N is 0 or above MOST_SHARDS."""
    match = _SHARDED.fullmatch(path.name)
    if match is None or not is_bag(path) or path.exists():
        return [path]
    before, count, behind = match[1], int(match[2]), match[3]
    if not count:
        raise BadInputError(f"{path} asks for 0 shards", f"one file alone is {before}{behind}")
    if count > MAX_SHARDS:
        raise BadInputError(f"{path} asks for {count:,} shards", f"a shard's number has five digits: {MAX_SHARDS:,}")
    files = [path.with_name(f"{before}-{number:05d}-of-{count:05d}{behind}") for number in range(count)]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise NotFoundError(f"{len(missing):,} of {count:,} shards are missing: {missing[0]}", "get them all")
    return files


# -- records --------------------------------------------------------------------------------------------------------


def encode_varint(number: int) -> bytes:
    """A number, seven bits a byte, the lowest first.

    >>> encode_varint(130).hex()
    '8201'
    """
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def encode_record(fen: str, move: str | None = None, win_prob: float | None = None) -> bytes:
    """A record: with a move behavioral cloning, with a win probability state value, with both action value.

    >>> encode_record("8/8/8/8/8/8/8/8 w - - 0 1", "e2e4")[-5:]
    b'1e2e4'
    """
    text, word = fen.encode(), (move or "").encode()
    start = encode_varint(len(text)) + text
    if win_prob is None:
        return start + word
    return start + (encode_varint(len(word)) + word if word else b"") + struct.pack(">d", win_prob)


@dataclass(frozen=True, eq=False)
class Records:
    """Records of positions, as places in the bytes `text` that hold them.

    `fen_starts`, `fen_ends`, `move_starts`, `move_ends` int64 [n] (without moves, the last two are equal);
    `win_prob` float64 [n], NaN where there is none.
    """

    coding: Coding
    text: bytes
    fen_starts: np.ndarray
    fen_ends: np.ndarray
    move_starts: np.ndarray
    move_ends: np.ndarray
    win_prob: np.ndarray

    def __len__(self) -> int:
        return len(self.win_prob)

    def fens(self) -> list[str]:
        """The FENs."""
        return self._cut(self.fen_starts, self.fen_ends)

    def moves(self) -> list[str]:
        """The moves in UCI, empty where the records have none."""
        return self._cut(self.move_starts, self.move_ends)

    def _cut(self, starts: np.ndarray, ends: np.ndarray) -> list[str]:
        text = self.text.decode("latin-1")
        return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def decode_records(
    text: bytes, starts: np.ndarray, ends: np.ndarray, coding: Coding | None = None, where: Any = None
) -> Records:
    """The records text[starts:ends], int64 [n]. coding None: that of the first, known from the length of its end.

    `where(number, reason)` makes the error for a record that is of another coding, or of none."""
    data = np.frombuffer(text + b"\0\0", np.uint8)
    lengths = data[starts].astype(np.int64)
    wide = lengths > 127
    lengths = np.where(wide, (lengths & 127) | data[starts + 1].astype(np.int64) << 7, lengths)
    fen_starts = starts + 1 + wide
    fen_ends = fen_starts + lengths
    rest = ends - fen_ends
    if coding is None:
        size = int(rest[0]) if len(rest) else 4
        coding = _BY_SIZE.get(size)
        if coding is None:
            raise (where or _make_record_error)(0, f"it is no record of {', '.join(CODINGS)}")
    good = (rest >= 4) & (ends > starts) & (lengths > 0) & ~(wide & (data[np.minimum(starts + 1, len(text))] > 127))
    move_starts = move_ends = fen_ends
    if coding == "behavioral_cloning":
        good &= rest <= 5
        move_ends = ends
    elif coding == "state_value":
        good &= rest == 8
    else:
        good &= (rest >= 13) & (rest <= 14)
        good &= data[np.where(good, fen_ends, 0)] == rest - 9
        move_starts, move_ends = fen_ends + 1, ends - 8
    if not good.all():
        number = int((~good).argmax())
        raise (where or _make_record_error)(number, f"it is no record of {coding}")
    win_prob = np.full(len(starts), np.nan)
    if coding != "behavioral_cloning" and len(starts):
        win_prob = data[(ends - 8)[:, None] + np.arange(8)].view(">f8")[:, 0].astype(np.float64)
    return Records(coding, text, fen_starts, fen_ends, move_starts, move_ends, win_prob)


def _make_record_error(number: int, reason: str) -> BagError:
    return BagError(f"record {number}: {reason}")


# -- files ----------------------------------------------------------------------------------------------------------


class Bag:
    """One bag, read with every check that its layout allows; records are read lazily.

    >>> bag = Bag(Path("data/test/behavioral_cloning_data.bag"))  # doctest: +SKIP
    >>> len(bag), bag[0]                                          # doctest: +SKIP
    """

    def __init__(self, path: Path) -> None:
        """NotFoundError, or BagError where the file cannot be a bag: too short, or its index not at the place that it
        names."""
        if not path.is_file():
            raise NotFoundError(f"no file {path}") if not path.exists() else BagError(f"{path} is not a file")
        self.path = path
        self.packed = path.suffix.lower() == ".bagz"
        self._stat = path.stat()
        aside = path.with_name(f"limits.{path.name}")
        self._limits_path = aside if aside.is_file() else path
        size = self._stat.st_size
        limits_size = self._limits_path.stat().st_size
        if 0 < limits_size < 8:
            raise self._error(f"a file of {limits_size} bytes is no bag")
        self.end = 0
        """The byte at which the records end."""
        if limits_size:
            with self._limits_path.open("rb") as file:
                file.seek(limits_size - 8)
                self.end = int.from_bytes(file.read(8), "little", signed=True)
        first = 0 if self._limits_path == aside else self.end
        if not (0 <= self.end <= size) or (limits_size and not first <= limits_size - 8):
            raise self._error(f"its last limit, byte {limits_size - 8:,}, says that the records end at {self.end:,} of "
                              f"{size:,} bytes")  # fmt: skip
        if (limits_size - first) % 8:
            raise self._error(f"its limits, from byte {first:,} to {limits_size:,}, are no whole number of 8 bytes")
        if first != self.end and self.end != size:
            raise self._error(f"its limits end at {self.end:,}, the file at {size:,} bytes")
        self._first = first
        self._count = (limits_size - first) // 8

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> bytes:
        """A record's bytes, unpacked. IndexError for one that is not there."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"record {number} of {len(self)}")
        number %= len(self)
        [(text, starts, ends)] = self._read(number, number + 1, 1)
        return text[int(starts[0]) : int(ends[0])]

    def __iter__(self) -> Iterator[bytes]:
        for text, starts, ends in self._read(0, len(self), BATCH_RECORDS):
            yield from (text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))

    def records(self, at_once: int = BATCH_RECORDS, coding: Coding | None = None) -> Iterator[Records]:
        """The records as positions, `at_once` of them together. BagError names the first that is wrong."""
        number = 0
        for text, starts, ends in self._read(0, len(self), at_once):
            first = number

            def wrong(at: int, reason: str, first: int = first) -> BagError:
                return self._error(reason, first + at)

            made = decode_records(text, starts, ends, coding, wrong)
            coding = made.coding
            number += len(made)
            yield made
        self._unchanged()

    def _unchanged(self) -> None:
        now = self.path.stat()
        if (now.st_size, now.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            raise self._error("it was changed while it was read")

    def _read(self, start: int, stop: int, at_once: int) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
        """Bytes, and where the records start and end in them."""
        with self._limits_path.open("rb") as index, self.path.open("rb") as file:
            for first in range(start, stop, at_once):
                last = min(first + at_once, stop)
                index.seek(self._first + 8 * max(first - 1, 0))
                data = index.read(8 * (last - max(first - 1, 0)))
                limits = np.frombuffer(data[: len(data) // 8 * 8], "<i8").astype(np.int64)
                limits = limits if first else np.concatenate([[0], limits])
                if len(limits) != last - first + 1:
                    raise self._error("it was cut off while it was read", first)
                sizes = np.diff(limits)
                bad = (sizes < 0) | (limits[1:] > self.end) | (limits[:-1] < 0)
                if bad.any():
                    at = int(bad.argmax())
                    raise self._error(
                        f"its limits are not in order: {limits[at]:,}, then {limits[at + 1]:,}, at byte "
                        f"{self._first + 8 * (first + at):,}", first + at,
                    )  # fmt: skip
                if sizes.max(initial=0) > MAX_RECORD_BYTES:
                    raise self._error(f"it has {sizes.max():,} bytes, no position has", first + int(sizes.argmax()))
                file.seek(int(limits[0]))
                text = file.read(int(limits[-1] - limits[0]))
                if len(text) != limits[-1] - limits[0]:
                    raise self._error("it was cut off while it was read", first)
                bounds = limits - limits[0]
                if self.packed:
                    text, bounds = self._unpacked(text, bounds.tolist(), first)
                yield text, bounds[:-1], bounds[1:]

    def _unpacked(self, text: bytes, bounds: list[int], first: int) -> tuple[bytes, np.ndarray]:
        import zstandard

        decompressor = zstandard.ZstdDecompressor()
        pieces = []
        for number, (start, end) in enumerate(itertools.pairwise(bounds), first):
            piece = text[start:end]
            try:
                if piece and zstandard.frame_content_size(piece) > MAX_RECORD_BYTES:
                    raise zstandard.ZstdError("a frame of more bytes than a position has")
                pieces.append(decompressor.decompress(piece, max_output_size=MAX_RECORD_BYTES) if piece else b"")
            except zstandard.ZstdError as error:
                raise self._error(f"its zstd data is damaged: {error}", number) from error
        return b"".join(pieces), np.cumsum([0, *map(len, pieces)])

    def _error(self, reason: str, number: int | None = None) -> BagError:
        if number is None:
            return BagError(f"{self.path} is not a complete bag: {reason}", "download it again")
        with self._limits_path.open("rb") as index:
            index.seek(self._first + 8 * max(number - 1, 0))
            at = int.from_bytes(index.read(8), "little", signed=True) if number else 0
        return BagError(f"{self.path}, record {number:,} at byte {at:,}: {reason}", "download it again")


def write_bag(path: Path, records: Iterable[bytes]) -> int:
    """Write records as a bag (a `.bagz` packed), whole or not at all; returns how many.

    Raises as `open_new_file` does, and BadInputError for a name that is not a bag's."""
    if not is_bag(path):
        raise BadInputError(f"{path} is not called as a bag is", "end its name in .bag or .bagz")
    pack = _make_compressor() if path.suffix.lower() == ".bagz" else bytes
    end = count = 0
    with open_new_file(path) as file, tempfile.TemporaryFile(dir=path.absolute().parent) as limits:
        for one in records:
            data = pack(one) if one else b""
            file.write(data)
            end, count = end + len(data), count + 1
            limits.write(struct.pack("<q", end))
        limits.seek(0)
        while chunk := limits.read(1 << 20):
            file.write(chunk)
    return count


def _make_compressor() -> Any:
    import zstandard

    return zstandard.ZstdCompressor().compress


# -- datasets -------------------------------------------------------------------------------------------------------


def choose_coding(columns: dict[str, bool]) -> Coding:
    """The coding that holds the most of what positions have: {column: whether any row has it}.

    BadInputError where they have neither best moves nor win probabilities."""
    if columns["win_prob"]:
        return "action_value" if columns["action"] else "state_value"
    if columns["best"]:
        return "behavioral_cloning"
    raise BadInputError("these positions have neither best moves nor win probabilities", "a bag holds one of them")


def export_bag(
    positions: DatasetFile, rows: np.ndarray, path: Path, coding: Coding | None = None
) -> tuple[Coding, int]:
    """Write positions of a dataset, at rows int64 [n], as a bag: its coding and the number of records.

    BadInputError for a position that lacks what the coding needs."""
    names = ("best", "action", "win_prob")
    if coding is None:
        table = positions.take(rows, names)
        coding = choose_coding({name: table[name].null_count < len(rows) for name in names})
    move = {"behavioral_cloning": "best", "action_value": "action"}.get(coding)
    value = None if coding == "behavioral_cloning" else "win_prob"
    wanted = [name for name in (move, value) if name]

    def encoded() -> Iterator[bytes]:
        for start in range(0, len(rows), BATCH_RECORDS):
            some = rows[start : start + BATCH_RECORDS]
            columns = positions.take(some, ["fen", *wanted]).to_pydict()
            for place, fen in enumerate(columns["fen"]):
                for name in wanted:
                    if columns[name][place] is None:
                        raise BadInputError(
                            f"position {some[place]:,} has no {name}, which a record of {coding} needs",
                            "choose another --coding",
                        )
                yield encode_record(
                    fen, columns[move][place] if move else None, columns[value][place] if value else None
                )

    return coding, write_bag(path, encoded())
