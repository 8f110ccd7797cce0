"""Bags, the files of ChessBench: records followed by their limits (Ruoss et al. 2024, `bagz.py`).

    record 0, record 1, …, limit 0, limit 1, …      limits: int64, little endian, the byte at which a record ends

A `.bagz` stores each record as a separate zstd frame, an empty record as nothing. `NAME@3_data.bag` denotes three
files, `NAME-00000-of-00003_data.bag` and so on. A record is a FEN after its length (a varint, seven bits per byte), and
then

    behavioral_cloning   the best move          state_value   the win probability, float64, big endian
    action_value         a move after its length, then the win probability after the move
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
from chessreg.games.datasets.remote import InputFile

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import DatasetFile

Coding = Literal["behavioral_cloning", "state_value", "action_value"]
CODINGS: tuple[Coding, ...] = ("behavioral_cloning", "state_value", "action_value")
_CODING_BY_SIZE: dict[int, Coding] = {
    **dict.fromkeys((4, 5), "behavioral_cloning"), 8: "state_value", **dict.fromkeys((13, 14), "action_value"),
}  # fmt: skip
"""Number of bytes after the FEN → coding."""
SUFFIXES = (".bag", ".bagz")
BATCH_RECORDS = 5_000  # keeps their bytes and offsets in the CPU cache
MAX_RECORD_BYTES = 4096
"""A longer record cannot be a position."""
MAX_SHARDS = 99_999
_SHARDED_NAME = re.compile(r"(.*)@(\d+)(.*)", re.DOTALL)


class BagError(BadInputError):
    """Raised for a file that is not a bag and for an invalid record; the message names the file, the record and the
    byte."""


def is_bag(path: InputFile) -> bool:
    """Return whether a path is named as a bag or a set of shards."""
    return path.suffix.lower() in SUFFIXES


def list_bag_shards(path: InputFile) -> list[InputFile]:
    """Return the files that `NAME@N_data.bag` denotes, in order; for any other name the path itself.

    Raises NotFoundError for the first missing file, BadInputError if N is 0 or above MAX_SHARDS.
    """
    match = _SHARDED_NAME.fullmatch(path.name)
    if match is None or not is_bag(path) or path.exists():
        return [path]
    before, count, after = match[1], int(match[2]), match[3]
    if not count:
        raise BadInputError(f"{path} asks for 0 shards", f"one file alone is {before}{after}")
    if count > MAX_SHARDS:
        raise BadInputError(f"{path} asks for {count:,} shards", f"a shard's number has five digits: {MAX_SHARDS:,}")
    files = [path.with_name(f"{before}-{number:05d}-of-{count:05d}{after}") for number in range(count)]
    missing_files = [file for file in files if not file.is_file()]
    if missing_files:
        raise NotFoundError(
            f"{len(missing_files):,} of {count:,} shards are missing: {missing_files[0]}", "download all shards"
        )
    return files


# -- records --------------------------------------------------------------------------------------------------------


def encode_varint(number: int) -> bytes:
    """Return a number as bytes of seven bits each, the lowest first.

    >>> encode_varint(130).hex()
    '8201'
    """
    encoded_bytes = bytearray()
    while number > 127:
        encoded_bytes.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded_bytes, number])


def encode_record(fen: str, move: str | None = None, win_prob: float | None = None) -> bytes:
    """Return a record: behavioral cloning with a move, state value with a win probability, action value with both.

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
    """Records of positions, as offsets into the bytes `text`.

    `fen_starts`, `fen_ends`, `move_starts`, `move_ends` int64 [n] (without moves, the last two are equal); `win_prob`
    float64 [n], NaN if the coding has none.
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
        """Return the FENs."""
        return self._cut(self.fen_starts, self.fen_ends)

    def moves(self) -> list[str]:
        """Return the moves in UCI, empty strings if the coding has none."""
        return self._cut(self.move_starts, self.move_ends)

    def _cut(self, starts: np.ndarray, ends: np.ndarray) -> list[str]:
        """Return the texts text[starts:ends]."""
        text = self.text.decode("latin-1")
        return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def decode_records(
    text: bytes, starts: np.ndarray, ends: np.ndarray, coding: Coding | None = None, source: Any = None
) -> Records:
    """Return the records text[starts:ends], int64 [n]. `coding` defaults to that of the first record, known from its
    length.

    `source(number, reason)` makes the error for a record that is invalid or has another coding.
    """
    data = np.frombuffer(text + b"\0\0", np.uint8)
    lengths = data[starts].astype(np.int64)
    has_two_bytes = lengths > 127
    lengths = np.where(has_two_bytes, (lengths & 127) | data[starts + 1].astype(np.int64) << 7, lengths)
    fen_starts = starts + 1 + has_two_bytes
    fen_ends = fen_starts + lengths
    rest_lengths = ends - fen_ends
    if coding is None:
        size = int(rest_lengths[0]) if len(rest_lengths) else 4
        coding = _CODING_BY_SIZE.get(size)
        if coding is None:
            raise (source or _make_record_error)(0, f"it is not a record of {', '.join(CODINGS)}")
    is_valid = (
        (rest_lengths >= 4)
        & (ends > starts)
        & (lengths > 0)
        & ~(has_two_bytes & (data[np.minimum(starts + 1, len(text))] > 127))
    )
    move_starts = move_ends = fen_ends
    if coding == "behavioral_cloning":
        is_valid &= rest_lengths <= 5
        move_ends = ends
    elif coding == "state_value":
        is_valid &= rest_lengths == 8
    else:
        is_valid &= (rest_lengths >= 13) & (rest_lengths <= 14)
        is_valid &= data[np.where(is_valid, fen_ends, 0)] == rest_lengths - 9
        move_starts, move_ends = fen_ends + 1, ends - 8
    if not is_valid.all():
        number = int((~is_valid).argmax())
        raise (source or _make_record_error)(number, f"it is not a record of {coding}")
    win_prob = np.full(len(starts), np.nan)
    if coding != "behavioral_cloning" and len(starts):
        win_prob = data[(ends - 8)[:, None] + np.arange(8)].view(">f8")[:, 0].astype(np.float64)
    return Records(coding, text, fen_starts, fen_ends, move_starts, move_ends, win_prob)


def _make_record_error(number: int, reason: str) -> BagError:
    return BagError(f"record {number}: {reason}")


# -- files ----------------------------------------------------------------------------------------------------------


class Bag:
    """One bag. All checks that its layout allows run on opening; records are read lazily.

    >>> bag = Bag(Path("data/test/behavioral_cloning_data.bag"))  # doctest: +SKIP
    >>> len(bag), bag[0]                                          # doctest: +SKIP
    """

    def __init__(self, path: Path) -> None:
        """Open the bag at `path` and read the end of its index. Raises NotFoundError for a missing file, BagError if it
        cannot be a bag: too short, or with an inconsistent index."""
        if not path.is_file():
            raise NotFoundError(f"{path} does not exist") if not path.exists() else BagError(f"{path} is not a file")
        self.path = path
        self.is_packed = path.suffix.lower() == ".bagz"
        self._stat = path.stat()
        limits_path = path.with_name(f"limits.{path.name}")
        self._limits_path = limits_path if limits_path.is_file() else path
        size = self._stat.st_size
        limits_size = self._limits_path.stat().st_size
        if 0 < limits_size < 8:
            raise self._error(f"a file of {limits_size} bytes is not a bag")
        self.end = 0
        """The byte at which the records end."""
        if limits_size:
            with self._limits_path.open("rb") as file:
                file.seek(limits_size - 8)
                self.end = int.from_bytes(file.read(8), "little", signed=True)
        first = 0 if self._limits_path == limits_path else self.end
        if not (0 <= self.end <= size) or (limits_size and not first <= limits_size - 8):
            raise self._error(f"its last limit, byte {limits_size - 8:,}, puts the records' end at {self.end:,} of "
                              f"{size:,} bytes")  # fmt: skip
        if (limits_size - first) % 8:
            raise self._error(f"its limits, from byte {first:,} to {limits_size:,}, are not whole 8-byte integers")
        if first != self.end and self.end != size:
            raise self._error(f"its limits end at {self.end:,}, the file at {size:,} bytes")
        self._first = first
        self._count = (limits_size - first) // 8

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> bytes:
        """Return a record's bytes, unpacked. Raises IndexError for a number that is out of range."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"record {number} of {len(self)}")
        number %= len(self)
        [(text, starts, ends)] = self._read(number, number + 1, 1)
        return text[int(starts[0]) : int(ends[0])]

    def __iter__(self) -> Iterator[bytes]:
        for text, starts, ends in self._read(0, len(self), BATCH_RECORDS):
            yield from (text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))

    def records(self, batch_records: int = BATCH_RECORDS, coding: Coding | None = None) -> Iterator[Records]:
        """Yield the records as positions, `batch_records` per batch. Raises BagError for the first invalid record."""
        number = 0
        for text, starts, ends in self._read(0, len(self), batch_records):
            first_record = number

            def wrong(at: int, reason: str, first: int = first_record) -> BagError:
                return self._error(reason, first + at)

            decoded_records = decode_records(text, starts, ends, coding, wrong)
            coding = decoded_records.coding
            number += len(decoded_records)
            yield decoded_records
        self._check_unchanged()

    def _check_unchanged(self) -> None:
        """Raise BagError if the file changed since it was opened."""
        stat = self.path.stat()
        if (stat.st_size, stat.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            raise self._error("it was changed while it was read")

    def _read(self, start: int, stop: int, batch_records: int) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
        """Yield (bytes, starts, ends) of records, `batch_records` per batch."""
        with self._limits_path.open("rb") as index, self.path.open("rb") as file:
            for first in range(start, stop, batch_records):
                last = min(first + batch_records, stop)
                index.seek(self._first + 8 * max(first - 1, 0))
                data = index.read(8 * (last - max(first - 1, 0)))
                limits = np.frombuffer(data[: len(data) // 8 * 8], "<i8").astype(np.int64)
                limits = limits if first else np.concatenate([[0], limits])
                if len(limits) != last - first + 1:
                    raise self._error("it was cut off while it was read", first)
                sizes = np.diff(limits)
                is_invalid = (sizes < 0) | (limits[1:] > self.end) | (limits[:-1] < 0)
                if is_invalid.any():
                    at = int(is_invalid.argmax())
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
                if self.is_packed:
                    text, bounds = self._decompress_frames(text, bounds.tolist(), first)
                yield text, bounds[:-1], bounds[1:]

    def _decompress_frames(self, text: bytes, bounds: list[int], first: int) -> tuple[bytes, np.ndarray]:
        """Decompress zstd frames; return their bytes concatenated, and the bounds int64 [records + 1]."""
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
        """Return a BagError for the file, or for a record and its byte."""
        if number is None:
            return BagError(f"{self.path} is not a complete bag: {reason}", "download it again")
        with self._limits_path.open("rb") as index:
            index.seek(self._first + 8 * max(number - 1, 0))
            at = int.from_bytes(index.read(8), "little", signed=True) if number else 0
        return BagError(f"{self.path}, record {number:,} at byte {at:,}: {reason}", "download it again")


def write_bag(path: Path, records: Iterable[bytes]) -> int:
    """Write records as a bag (compressed for `.bagz`), completely or not at all; return their number.

    Raises the errors of `open_new_file`, and BadInputError for a path that is not a bag.
    """
    if not is_bag(path):
        raise BadInputError(f"{path} is not a bag", "end its name in .bag or .bagz")
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
    """Return the coding that holds most of the positions' data; `columns` maps a column to whether any row has a value.

    Raises BadInputError without best moves and win probabilities.
    """
    if columns["win_prob"]:
        return "action_value" if columns["action"] else "state_value"
    if columns["best"]:
        return "behavioral_cloning"
    raise BadInputError("these positions have neither best moves nor win probabilities", "a bag holds one of them")


def export_bag(
    positions: DatasetFile, rows: np.ndarray, path: Path, coding: Coding | None = None
) -> tuple[Coding, int]:
    """Write positions of a dataset, at `rows` int64 [n], as a bag; return its coding and the number of records.

    Raises BadInputError for a position that lacks a value that the coding needs.
    """
    names = ("best", "action", "win_prob")
    if coding is None:
        table = positions.take(rows, names)
        coding = choose_coding({name: table[name].null_count < len(rows) for name in names})
    move = {"behavioral_cloning": "best", "action_value": "action"}.get(coding)
    value = None if coding == "behavioral_cloning" else "win_prob"
    column_names = [name for name in (move, value) if name]

    def iterate_records() -> Iterator[bytes]:
        for start in range(0, len(rows), BATCH_RECORDS):
            batch_rows = rows[start : start + BATCH_RECORDS]
            columns = positions.take(batch_rows, ["fen", *column_names]).to_pydict()
            for place, fen in enumerate(columns["fen"]):
                for name in column_names:
                    if columns[name][place] is None:
                        raise BadInputError(
                            f"position {batch_rows[place]:,} has no {name}, which a record of {coding} needs",
                            "choose another --coding",
                        )
                yield encode_record(
                    fen, columns[move][place] if move else None, columns[value][place] if value else None
                )

    return coding, write_bag(path, iterate_records())
