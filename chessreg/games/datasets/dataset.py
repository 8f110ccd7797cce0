"""A dataset on disk: its report, its rows by number, its parts, and verification."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from chessreg.errors import BadInputError, NotFoundError, reraise_lack_of_memory
from chessreg.games.boards import moves
from chessreg.named import check_name
from chessreg.noise import Stream, generator
from store.errors import CorruptError
from store.files import hash_file, read_json

if TYPE_CHECKING:
    import pyarrow as pa


_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


def hash_to_unit_interval(seed: int, hashes: np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) for each hash, float64 [n], the same on every machine; `hashes` uint64 [n], any integer
    seed."""
    key = moves.mix_bits(np.array([(seed * _GOLDEN + _GOLDEN) & _MASK], np.uint64))
    return (moves.mix_bits(hashes.astype(np.uint64, copy=False) ^ key) >> np.uint64(11)) * 2.0**-53


@dataclass(frozen=True)
class DatasetPart:
    """The games whose `hash_to_unit_interval(seed, move_hash)` is in [low, high)."""

    seed: int
    low: float
    high: float

    def contains(self, hashes: np.ndarray) -> np.ndarray:
        """Return whether each move hash is in the part: bool [n] for uint64 [n]."""
        numbers = hash_to_unit_interval(self.seed, hashes)
        return (self.low <= numbers) & (numbers < self.high)


def parse_parts(text: str, seed: int) -> dict[str, DatasetPart]:
    """Return the parts of `train=0.5,test=0.5`, in order. Shares may sum to less than 1; the remainder is in no part.

    Raises BadInputError for a share outside (0, 1], a repeated name, or shares that sum to more than 1.

    >>> parse_parts("train=0.5,test=0.5", 7)["test"]
    DatasetPart(seed=7, low=0.5, high=1.0)
    """
    hint = "write parts as train=0.5,validation=0.1,test=0.4"
    parts: dict[str, DatasetPart] = {}
    low = 0.0
    for piece in text.split(","):
        name, equals, number = (word.strip() for word in piece.partition("="))
        try:
            share = float(number)
        except ValueError:
            share = 0.0
        if not (name and equals and 0 < share <= 1):
            raise BadInputError(f"{piece.strip()!r} is not a part with a share between 0 and 1", hint)
        check_name("a part", name)
        if name in parts:
            raise BadInputError(f"part {name!r} is given twice", hint)
        high = low + share
        if high > 1 + 1e-9:
            raise BadInputError(f"the shares of {text!r} add up to more than 1", hint)
        high = 1.0 if high > 1 - 1e-9 else high  # 0.7 + 0.2 + 0.1 is not 1 in binary
        parts[name] = DatasetPart(seed, low, high)
        low = high
    return parts


REPORT_FILE = "dataset.json"
GAMES_FILE = "games.parquet"
POSITIONS_FILE = "positions.parquet"
REJECTS_FILE = "rejects.tsv"


@dataclass(frozen=True)
class SourceFile:
    """A source file: its name without folders, the sha256 of its bytes on disk, and their number.

    Bytes of the name that are not UTF-8 are recorded as `?`, because neither JSON nor a registry can store them.
    """

    name: str
    sha256: str
    bytes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.encode(errors="replace").decode())


@dataclass(frozen=True)
class DatasetReport:
    """Identity and counts of a dataset. `rejected` and `skipped` map a reason to a number of games.

    `found` counts all games of the sources: kept, rejected or skipped (None in datasets built before it was counted).
    `rejected` are bad games in a good stream, listed in `rejects.tsv`. `skipped` are good games that the dataset
    excludes (variants, custom starts, no moves, fewer than `min_plies`). `duplicates` are games whose moves occurred
    before; they are kept and marked in the column `duplicate`. `noncanonical` counts games whose SAN was rewritten;
    `result_mismatches` those whose Result tag and movetext disagree (the tag wins unless it is `*`); `missing_results`
    those whose movetext ends without a result; `cut` those that their source truncates inside a word (the complete
    moves before it are kept). `notes` describe the layout of sources other than PGN. `salvaged` is the reason why a
    stream ended early, or None.

    In a dataset of positions, `games` counts their distinct games (0 if unknown), `plies` the positions, `duplicates`
    the repeated positions, and `games_sha256` is the digest of `positions.parquet`.
    """

    identity: str
    reader_version: int
    filters: dict[str, Any]
    sources: list[SourceFile]
    games: int
    plies: int
    rejected: dict[str, int]
    skipped: dict[str, int]
    duplicates: int
    noncanonical: int
    result_mismatches: int
    missing_results: int
    both_elos: int
    first_date: str | None
    last_date: str | None
    games_sha256: str
    salvaged: str | None = None
    found: int | None = None
    cut: int = 0
    notes: list[str] = field(default_factory=list)
    content: str = "games"

    def find_miscount(self) -> str | None:
        """Return a sentence if the counts do not add up, else None."""
        counted_items = self.plies if self.content == "positions" else self.games
        accounted_items = counted_items + sum(self.rejected.values()) + sum(self.skipped.values())
        if self.found in (None, accounted_items):
            return None
        return f"{self.found:,} {self.content} were found, and {accounted_items:,} are kept, rejected or skipped"

    def save(self, folder: Path) -> None:
        """Write `dataset.json`."""
        (folder / REPORT_FILE).write_text(
            json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )

    @classmethod
    def load(cls, folder: Path) -> DatasetReport:
        """Return the contents of `dataset.json`. Raises NotFoundError if it is missing, BadInputError if it
        is damaged."""
        path = folder / REPORT_FILE
        try:
            fields: dict[str, Any] = read_json(path)
            sources = [SourceFile(**source) for source in fields.pop("sources")]
            return cls(sources=sources, **fields)
        except FileNotFoundError as error:
            raise NotFoundError(f"{folder} is not a dataset", "chessreg dataset list") from error
        except (ValueError, TypeError, KeyError) as error:
            raise BadInputError(f"{path} is damaged: {error}", "add the dataset again") from error


CONTENTS = {"games": GAMES_FILE, "positions": POSITIONS_FILE}
"""Content of a dataset → its file."""
__all__ = ["DatasetReport", "Games", "SourceFile", "Verification", "verify_games"]


def convert_column_to_numpy(column: pa.ChunkedArray) -> np.ndarray:
    """Return numbers or booleans without nulls, [rows]. pyarrow's own conversion would import pandas (0.25 s)."""
    import pyarrow as pa

    if not pa.types.is_boolean(column.type):
        return np.concatenate(
            [np.from_dlpack(c) for c in column.chunks] or [np.zeros(0, column.type.to_pandas_dtype())]
        )
    bits = [np.unpackbits(np.frombuffer(c.buffers()[1], np.uint8), bitorder="little")[c.offset :][: len(c)]
            for c in column.chunks if len(c)]  # fmt: skip
    return np.concatenate([np.zeros(0, np.uint8), *bits]).view(bool)


def make_arrow_indices(places: np.ndarray) -> pa.Array:
    """Return row positions int64 [n] as indices for `take`, without a copy."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(np.ascontiguousarray(places, np.int64))])


class DatasetFile:
    """The rows of a dataset folder. Indices are row positions in the Parquet file, 0..len-1 (not the column `row`)."""

    content: str
    file_name: ClassVar[str]
    hash_column: ClassVar[str]
    """Determines the part of a row: rows with equal values are always in the same part."""

    def __init__(self, folder: Path, part: DatasetPart | None = None) -> None:
        """With `part`, `len`, `rows` and `table` refer to that part; row positions remain those of the Parquet file.

        Raises NotFoundError if the folder contains no dataset, BadInputError for other content or a damaged Parquet
        file.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.folder = Path(folder)
        self.within = part
        path = self.folder / self.file_name
        if not path.is_file():
            for other, name in CONTENTS.items():
                if (self.folder / name).is_file():
                    hint = f"give a dataset of {self.content}; to list them: chessreg dataset list"
                    raise BadInputError(f"this dataset holds {other}, and {self.content} are needed", hint)
            raise NotFoundError(f"{folder} is not a dataset", "chessreg dataset list")
        try:
            self._file: Any = pq.ParquetFile(path)
        except (pa.ArrowInvalid, OSError) as error:
            reraise_lack_of_memory(error)
            raise BadInputError(f"{path} is damaged: {error}", "chessreg dataset verify") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.within)

    def __len__(self) -> int:
        return self.total if self.within is None else len(self.rows())

    @property
    def total(self) -> int:
        """The number of rows of the whole Parquet file."""
        return int(self._file.metadata.num_rows)

    def part(self, part: DatasetPart) -> Self:
        """Return the same dataset, restricted to a part."""
        return type(self)(self.folder, part)

    @cached_property
    def report(self) -> DatasetReport:
        """The contents of `dataset.json`."""
        return DatasetReport.load(self.folder)

    def stretches(self, min_rows: int) -> Iterator[range]:
        """Yield ranges of row positions of consecutive row groups, each with at least `min_rows` rows except the
        last."""
        begin, stop = 0, 0
        for group in range(self._file.metadata.num_row_groups):
            stop += self._file.metadata.row_group(group).num_rows
            if stop - begin >= min_rows or stop == self.total:
                yield range(begin, stop)
                begin = stop

    def table(self, columns: Sequence[str], positions: range | None = None) -> pa.Table:
        """Return columns of all rows (of the part) in row order, or of the rows at `positions`, in any part.

        Games have `row`, `move_hash`, `plies`, `moves`, `text`, `result`, `white_elo`, `black_elo`, the PGN tags
        `white`, `black`, `event`, `site`, `date`, `eco`, `time_control` and `termination`, and `duplicate`.
        docs/python.md explains them, and the columns of positions. Raises BadInputError for an unknown column.
        """
        unknown = set(columns) - set(self._file.schema_arrow.names)
        if unknown:
            hint = f"columns: {', '.join(self._file.schema_arrow.names)}"
            raise BadInputError(f"a dataset has no column {', '.join(sorted(unknown))}", hint)
        if positions is not None:
            return self.take(positions, columns)
        table = self._read(columns)
        return table if self.within is None else table.take(make_arrow_indices(self.rows()))

    def _read(self, columns: Sequence[str], group: int | None = None) -> pa.Table:
        """Return columns of all rows, or of one row group. Raises CorruptError for a damaged file."""
        import pyarrow as pa

        try:
            if group is None:
                return self._file.read(columns=list(columns))
            return self._file.read_row_group(group, columns=list(columns))
        except (pa.ArrowException, OSError) as error:
            reraise_lack_of_memory(error)
            problem = f"{self.folder / self.file_name} is damaged: {str(error).splitlines()[0]}"
            raise CorruptError(problem, "chessreg dataset verify") from error

    @cached_property
    def hashes(self) -> np.ndarray:
        """The hashes that assign rows to parts, uint64 [total]: of the moves, or of a position's game."""
        return convert_column_to_numpy(self._read([self.hash_column])[self.hash_column])

    def rows(self, part: DatasetPart | None = None) -> np.ndarray:
        """Return the row positions of a part, or of all rows, ascending, int64 [n]."""
        parts = [p for p in (self.within, part) if p is not None]
        if not parts:
            return np.arange(self.total, dtype=np.int64)
        return np.flatnonzero(np.logical_and.reduce([p.contains(self.hashes) for p in parts]))

    def iterate_rows(self, part: DatasetPart | None, columns: Sequence[str]) -> Iterator[tuple[np.ndarray, pa.Table]]:
        """Yield the row positions int64 [n] and these columns of a part (None: all rows), one row group at a time."""
        parts = [p for p in (self.within, part) if p is not None]
        column_names = list(dict.fromkeys([*columns, *([self.hash_column] if parts else [])]))
        start = 0
        for group in range(self._file.metadata.num_row_groups):
            table = self._read(column_names, group)
            rows = np.arange(start, start + len(table))
            start += len(table)
            if parts:
                hashes = convert_column_to_numpy(table[self.hash_column])
                inside = np.flatnonzero(np.logical_and.reduce([p.contains(hashes) for p in parts]))
                rows, table = rows[inside], table.take(make_arrow_indices(inside))
            if len(rows):
                yield rows, table.select(list(columns))

    @cached_property
    def _group_starts(self) -> np.ndarray:
        """The first row position of each row group, and the number of rows."""
        metadata = self._file.metadata
        return np.cumsum([0, *(metadata.row_group(g).num_rows for g in range(metadata.num_row_groups))])

    def take(self, indices: Sequence[int] | np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Return columns of the rows at `indices`, in that order. Reads only the row groups needed."""
        import pyarrow as pa

        row_numbers = np.asarray(indices, np.int64)
        if row_numbers.size and (row_numbers.min() < 0 or row_numbers.max() >= self.total):
            raise BadInputError(f"a row is not among the {self.total:,} {self.content} of {self.folder}")
        starts = self._group_starts
        groups = np.searchsorted(starts, row_numbers, "right") - 1
        pieces, places = [], []
        for group in np.unique(groups).tolist():
            group_rows = np.flatnonzero(groups == group)
            table = self._read(columns, group)
            pieces.append(table.take(make_arrow_indices(row_numbers[group_rows] - starts[group])))
            places.append(group_rows)
        if not pieces:
            return self._file.schema_arrow.empty_table().select(list(columns))
        inverse_order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_tables(pieces).take(make_arrow_indices(inverse_order))


class Games(DatasetFile):
    """The games of a dataset folder."""

    content: Literal["games"] = "games"
    file_name = GAMES_FILE
    hash_column = "move_hash"

    def texts(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """Return the PGN-character texts of the games at row positions."""
        return self.take(indices, ["text"])["text"].to_pylist()

    def moves(self, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """Return the packed moves (`games.boards.moves`) of the games at row positions."""
        return self.take(indices, ["moves"])["moves"].to_pylist()


@dataclass(frozen=True)
class Verification:
    """The result of verifying a dataset. `problems` is empty for an intact dataset."""

    games: int
    replayed: int
    problems: list[str]
    content: str = "games"


def verify_games(folder: Path, *, sample: int = 200, seed: int = 0) -> Verification:
    """Compare a dataset with its report (bytes, counts, all move hashes) and replay a seeded sample in python-chess.

    Raises NotFoundError or BadInputError if the report cannot be read.
    """
    report = DatasetReport.load(folder)
    if not (folder / GAMES_FILE).is_file():
        return Verification(0, 0, [f"{GAMES_FILE} is missing"])
    if hash_file(folder / GAMES_FILE) != report.games_sha256:
        return Verification(0, 0, [f"{GAMES_FILE} is not the file that was written: its sha256 differs"])
    games = Games(folder)
    problems = []
    plies = hashes = copies = 0
    for group in range(games._file.metadata.num_row_groups):
        table = games._read(["plies", "moves", "move_hash", "duplicate"], group)
        packed_games = table["moves"].to_pylist()
        plies += sum(table["plies"].to_pylist())
        copies += sum(table["duplicate"].to_pylist())
        hashes += int((moves.hash_move_lists(packed_games) == table["move_hash"].to_numpy()).sum())
        if [len(code) // 2 for code in packed_games] != table["plies"].to_pylist():
            problems.append(f"the column plies does not fit the moves in row group {group}")
    for name, stored_digest, expected_digest in (
        ("games", len(games), report.games),
        ("plies", plies, report.plies),
        ("duplicates", copies, report.duplicates),
        ("matching move hashes", hashes, report.games),
    ):
        if stored_digest != expected_digest:
            problems.append(f"{stored_digest:,} {name}, but the report counts {expected_digest:,}")
    if miscount := report.find_miscount():
        problems.append(miscount)
    rejects = (folder / REJECTS_FILE).read_text(encoding="utf-8").count("\n") - 1
    if rejects != sum(report.rejected.values()):
        problems.append(f"{REJECTS_FILE} lists {rejects} games, but the report counts {sum(report.rejected.values())}")
    rng = generator(seed, Stream.VERIFY, report.identity)
    sample_rows = np.sort(rng.choice(len(games), min(sample, len(games)), replace=False))
    table = games.take(sample_rows, ["row", "moves", "text"])
    for row, packed_moves, text in zip(*(table[c].to_pylist() for c in ("row", "moves", "text")), strict=True):
        problem = _find_replay_problem(packed_moves, text)
        if problem:
            problems.append(f"game {row} {problem}")
    return Verification(len(games), len(sample_rows), problems)


def _find_replay_problem(packed_moves: bytes, text: str) -> str | None:
    """Return the error that python-chess reports for a game, or None."""
    import chess

    from chessreg.games.datasets.movetext import number_sans

    board = chess.Board()
    sans: list[str] = []
    for move in moves.unpack_moves(packed_moves):
        if not board.is_legal(move):
            return f"holds the illegal move {move} at ply {len(sans)}"
        sans.append(board.san_and_push(move))
    return None if number_sans(sans) == text else "has a text that is not that of its moves"
