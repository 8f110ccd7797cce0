"""A dataset on disk: its rows by number, and whether it is still what was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games import moves
from chessreg.games.report import (
    GAMES_FILE,
    POSITIONS_FILE,
    REJECTS_FILE,
    DatasetReport,
    SourceFile,
    file_sha256,
    identity,
)
from chessreg.games.split import Part
from chessreg.noise import generator

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import TypeIs

    from chessreg.games.positions import Positions

CONTENTS = {"games": GAMES_FILE, "positions": POSITIONS_FILE}
"""What a dataset may hold, and the file that it is in."""
__all__ = ["DatasetReport", "Games", "SourceFile", "Verification", "identity", "verify"]


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Numbers or booleans without nulls, [rows]. pyarrow's own conversion loads pandas, a quarter second of a run."""
    import pyarrow as pa

    if not pa.types.is_boolean(column.type):
        return np.concatenate(
            [np.from_dlpack(c) for c in column.chunks] or [np.zeros(0, column.type.to_pandas_dtype())]
        )
    bits = [np.unpackbits(np.frombuffer(c.buffers()[1], np.uint8), bitorder="little")[c.offset :][: len(c)]
            for c in column.chunks if len(c)]  # fmt: skip
    return np.concatenate([np.zeros(0, np.uint8), *bits]).view(bool)


def arrow_indices(places: np.ndarray) -> pa.Array:
    """Places int64 [n] for `take`, as cheaply."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(np.ascontiguousarray(places, np.int64))])


class DatasetFile:
    """The rows of a dataset folder. Indices are row positions in the Parquet, 0..len-1 (not the column `row`)."""

    content: ClassVar[str]
    file_name: ClassVar[str]
    hash_column: ClassVar[str]
    """What rows of one part have in common: equal values are always in the same part."""

    def __init__(self, folder: Path, within: Part | None = None) -> None:
        """With `within`, `len`, `rows` and `table` are of that part alone; row positions stay those of the Parquet.

        NotFoundError when the folder holds no dataset, BadInputError for one of other content or a damaged Parquet."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.folder = Path(folder)
        self.within = within
        path = self.folder / self.file_name
        if not path.is_file():
            for other, name in CONTENTS.items():
                if (self.folder / name).is_file():
                    hint = f"give a dataset of {self.content}: chessreg dataset list tells what each holds"
                    raise BadInputError(f"this dataset holds {other}, and {self.content} are needed", hint)
            raise NotFoundError(f"no dataset in {folder}", "chessreg dataset list")
        try:
            self._file: Any = pq.ParquetFile(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise BadInputError(f"{path} is damaged: {error}", "chessreg dataset verify") from error

    def __len__(self) -> int:
        return self.total if self.within is None else len(self.rows())

    @property
    def total(self) -> int:
        """Rows of the Parquet, whatever part this is."""
        return int(self._file.metadata.num_rows)

    def part(self, part: Part) -> Self:
        """The same dataset, seen as one part of it."""
        return type(self)(self.folder, part)

    @cached_property
    def report(self) -> DatasetReport:
        """What `dataset.json` says."""
        return DatasetReport.load(self.folder)

    def table(self, columns: Sequence[str]) -> pa.Table:
        """These columns of all rows (of the part), in row order. BadInputError for a column that there is not."""
        unknown = set(columns) - set(self._file.schema_arrow.names)
        if unknown:
            hint = f"columns: {', '.join(self._file.schema_arrow.names)}"
            raise BadInputError(f"a dataset has no column {', '.join(sorted(unknown))}", hint)
        table = self._file.read(columns=list(columns))
        return table if self.within is None else table.take(arrow_indices(self.rows()))

    @cached_property
    def hashes(self) -> np.ndarray:
        """What parts are cut by, of the whole Parquet, uint64 [total]: hashes of moves, or of a position's game."""
        return numbers(self._file.read(columns=[self.hash_column])[self.hash_column])

    def rows(self, part: Part | None = None) -> np.ndarray:
        """Row positions of a part, or of all rows, ascending, int64."""
        chosen = [p for p in (self.within, part) if p is not None]
        if not chosen:
            return np.arange(self.total, dtype=np.int64)
        return np.flatnonzero(np.logical_and.reduce([p.contains(self.hashes) for p in chosen]))

    def take(self, indices: Sequence[int] | np.ndarray, columns: Sequence[str]) -> pa.Table:
        """These columns of the rows at these positions, in the order asked for. Reads only the row groups needed."""
        import pyarrow as pa

        wanted = np.asarray(indices, np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= self.total):
            raise BadInputError(f"a row is not among the {self.total:,} {self.content} of {self.folder}")
        metadata = self._file.metadata
        sizes = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
        starts = np.cumsum([0, *sizes])
        groups = np.searchsorted(starts, wanted, "right") - 1
        pieces, places = [], []
        for group in np.unique(groups).tolist():
            mine = np.flatnonzero(groups == group)
            table = self._file.read_row_group(group, columns=list(columns))
            pieces.append(table.take(arrow_indices(wanted[mine] - starts[group])))
            places.append(mine)
        if not pieces:
            return self._file.schema_arrow.empty_table().select(list(columns))
        back = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_tables(pieces).take(arrow_indices(back))


def holds_positions(items: Games | Positions) -> TypeIs[Positions]:
    """Whether a dataset is of positions, not of games."""
    return items.content == "positions"


class Games(DatasetFile):
    """The games of a dataset folder."""

    content = "games"
    file_name = GAMES_FILE
    hash_column = "move_hash"

    def texts(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """The PGN-character texts of the games at row positions."""
        return self.take(indices, ["text"])["text"].to_pylist()

    def moves(self, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """The packed moves (see `chessreg.games.moves`) of the games at row positions."""
        return self.take(indices, ["moves"])["moves"].to_pylist()


@dataclass(frozen=True)
class Verification:
    """What `verify` found in so many games, or positions. `problems` is empty for a dataset that is as written."""

    games: int
    replayed: int
    problems: list[str]
    content: str = "games"


def verify(folder: Path, *, sample: int = 200, seed: int = 0) -> Verification:
    """Compare a dataset with its report (bytes, counts, every move hash) and replay a seeded sample in python-chess.

    Raises NotFoundError or BadInputError when there is nothing to compare.
    """
    recorded = DatasetReport.load(folder)
    if not (folder / GAMES_FILE).is_file():
        return Verification(0, 0, [f"{GAMES_FILE} is missing"])
    if file_sha256(folder / GAMES_FILE) != recorded.games_sha256:
        return Verification(0, 0, [f"{GAMES_FILE} is not the file that was written: its sha256 differs"])
    games = Games(folder)
    problems = []
    plies = hashes = copies = 0
    for group in range(games._file.metadata.num_row_groups):
        table = games._file.read_row_group(group, columns=["plies", "moves", "move_hash", "duplicate"])
        packed = table["moves"].to_pylist()
        plies += sum(table["plies"].to_pylist())
        copies += sum(table["duplicate"].to_pylist())
        hashes += int((moves.move_hashes(packed) == table["move_hash"].to_numpy()).sum())
        if [len(code) // 2 for code in packed] != table["plies"].to_pylist():
            problems.append(f"the column plies does not fit the moves in row group {group}")
    for name, found, expected in (
        ("games", len(games), recorded.games),
        ("plies", plies, recorded.plies),
        ("duplicates", copies, recorded.duplicates),
        ("matching move hashes", hashes, recorded.games),
    ):
        if found != expected:
            problems.append(f"{found:,} {name} where the report says {expected:,}")
    rejects = (folder / REJECTS_FILE).read_text(encoding="utf-8").count("\n") - 1
    if rejects != sum(recorded.rejected.values()):
        problems.append(f"{REJECTS_FILE} lists {rejects} games where the report says {sum(recorded.rejected.values())}")
    rng = generator(seed, "verify", recorded.identity)
    chosen = np.sort(rng.choice(len(games), min(sample, len(games)), replace=False))
    table = games.take(chosen, ["row", "moves", "text"])
    for row, packed, text in zip(*(table[c].to_pylist() for c in ("row", "moves", "text")), strict=True):
        problem = _replayed(packed, text)
        if problem:
            problems.append(f"game {row} {problem}")
    return Verification(len(games), len(chosen), problems)


def _replayed(packed: bytes, text: str) -> str | None:
    """What is wrong with a game according to python-chess, or None."""
    import chess

    from chessreg.games.movetext import numbered

    board = chess.Board()
    words: list[str] = []
    for move in moves.unpack(packed):
        if not board.is_legal(move):
            return f"holds the illegal move {move} at ply {len(words)}"
        words.append(board.san_and_push(move))
    return None if numbered(words) == text else "has a text that is not that of its moves"
