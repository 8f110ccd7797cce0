"""Datasets of positions: Parquet, CSV or bags in; a folder with `positions.parquet`, `rejects.tsv`, `dataset.json` out.

Columns have several accepted names (`COLUMNS`). A CSV without a header contains puzzles: FEN, moves, rating. A puzzle's
first move is the opponent's (as in Lichess's puzzles), so its position is the one after that move.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import chess
import numpy as np

from chessreg.errors import DAMAGE_ERRORS, BadInputError, reraise_lack_of_memory
from chessreg.games.boards.adjudication import LICHESS_MATE_CP
from chessreg.games.boards.moves import HashSet
from chessreg.games.datasets import bags, dataset
from chessreg.games.datasets.borders import decode_text
from chessreg.games.datasets.build import Progress, create_folder, find_duplicates, write_parquet, write_reject
from chessreg.games.datasets.build import identify_dataset as identity_of
from chessreg.games.datasets.dataset import DatasetFile, DatasetReport, SourceFile, Verification
from chessreg.games.datasets.reader import find_legal_moves
from chessreg.games.datasets.reader_python import describe_status
from chessreg.games.datasets.remote import InputFile, fetch_copy
from chessreg.games.datasets.rows import Reject, Tally
from chessreg.games.datasets.sources import BrokenStreamError, GameSource
from chessreg.games.datasets.transcripts import TRANSCRIPT_COLUMN as TRANSCRIPT
from chessreg.games.datasets.transcripts import has_game_columns, parse_header, read_head, read_parquet_columns
from chessreg.noise import Stream, generator
from store.files import describe_os_error, hash_file

if TYPE_CHECKING:
    import pyarrow as pa

    from chessreg.games.datasets.dataset import Games

POSITION_READER_VERSION = 4
"""Incremented whenever the rows made from the same bytes may change; part of a dataset's identity."""
COLUMNS = {
    "fen": ("fen",),
    "best": ("sf_best_uci", "best_uci", "best_move", "bestmove", "best"),
    "played": ("played_uci", "played_move", "played"),
    "line": ("moves",),
    "eval_before": ("eval_before_cp", "eval_before", "eval_cp", "cp", "eval"),
    "eval_after": ("eval_after_cp", "eval_after"),
    "mover_elo": ("mover_elo",),
    "opponent_elo": ("opp_elo", "opponent_elo"),
    "rating": ("rating",),
    "judgment": ("judgment",),
    "game": ("game_id", "game", "gameurl"),
    "ply": ("ply",),
    "action": ("action",),
    "win_prob": ("win_prob", "win_probability"),
}
"""Column of a dataset → its accepted names in files, in order of priority, in upper or lower case."""
Batch = tuple[Sequence[int], dict[str, list[Any]]]
_MOVES = ("best", "played", "action")
_OPTIONAL = ("best", "played", "line", "eval_before", "eval_after", "rating", "mover_elo", "opponent_elo", "judgment",
             "game", "action", "win_prob")  # fmt: skip
_BATCH_ROWS = 20_000  # rows of a source per batch
_MAX_LINE_BYTES = 16 << 20  # bytes
NO_MOVE = "0000"  # UCI's null move before a puzzle's solution: the FEN is the position to solve
MAX_COUNTER = 999  # counters have three digits in FEN-77 and prompts
RATINGS = ("mover_elo", "opponent_elo", "rating")
MAX_RATING = 9999
_CASTLING = {"e1h1": ("K", "e1g1"), "e1a1": ("Q", "e1c1"), "e8h8": ("k", "e8g8"), "e8a8": ("q", "e8c8")}
"""Castling written as king takes rook → (the right to it, the king's move)."""
_RIGHTS = frozenset("".join(c for bit, c in enumerate("KQkq") if of >> bit & 1) or "-" for of in range(16))
_PLAIN = re.compile(r"[pnbrqkPNBRQK1-8/]+ [wb] (?:-|(?=\S)K?Q?k?q?) (?:-|[a-h][36]) \d{1,3} \d{1,3}", re.ASCII)
_GAME = re.compile(r"^https?://[^/]+/(\w{8})")


class Positions(DatasetFile):
    """The positions of a dataset folder.

    Parts are cut by game, so that no game is in two parts (by position if the game is unknown).
    """

    content: Literal["positions"] = "positions"
    file_name = dataset.POSITIONS_FILE
    hash_column = "game_hash"

    def fens(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """Return the FENs of the positions at rows."""
        return self.take(indices, ["fen"])["fen"].to_pylist()

    def moves(self, indices: Sequence[int] | np.ndarray, column: str = "best") -> np.ndarray:
        """Return the moves at rows in a column of moves (best, played, action), packed uint16 [n] as in `moves.py`; 0
        if missing.

        `Fen77.encode_actions` converts them to actions.
        """
        words = self.take(indices, [column])[column].to_pylist()
        return np.array([pack_uci(word) if word else 0 for word in words], np.uint16)

    def evaluations(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source's evaluations before the move at rows: (centipawns float64 [n], moves to mate int64 [n]).

        Centipawns are NaN if missing or a mate; moves to mate are 0 if there is no mate. Signs are the source's
        (Lichess: White's view).
        """
        values = self.take(indices, ["eval_before"])["eval_before"].to_numpy()
        mates = np.array([parse_mate(value) for value in values.tolist()], np.int64)
        return np.where(mates != 0, np.nan, values), mates

    def legal_counts(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the number of legal moves at rows, int64 [n]."""
        return self.take(indices, ["legal"])["legal"].to_numpy().astype(np.int64)

    def games_of(self, games: Games) -> np.ndarray:
        """Return the row of each position's game in a dataset of games, int64 [total]; -1 if the game is absent or
        unknown.

        Games are matched by the id in their Site tag; the first game with an id counts.
        """
        site_ids, hashes = find_game_ids(games)
        distinct, first_rows = np.unique(hashes, return_index=True)
        rows = np.append(site_ids[first_rows], -1)
        return rows[HashSet(distinct).places(self.hashes)]

    @property
    def position_hashes(self) -> np.ndarray:
        """uint64 [total], equal for equal pieces, side to move, castling rights and legal en-passant captures, however
        the FEN is written. Differs from the hashes of boards (`games/boards/moves.py`), which ignore rights."""
        return self._read(["position_hash"])["position_hash"].to_numpy()

    def new_rows(
        self, part: dataset.DatasetPart | None, seen_hashes: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (rows, hashes) of a part: the rows that repeat no earlier row and no position in `seen_hashes`, and
        the updated `seen_hashes`.

        Rows are int64 [n] in file order; `seen_hashes` is uint64, as in `position_hashes`.
        """
        rows = self.rows(part)
        hashes = self.position_hashes[rows]
        is_first = np.zeros(len(rows), bool)
        is_first[np.unique(hashes, return_index=True)[1]] = True
        if seen_hashes is None:
            return rows[is_first], hashes
        return rows[is_first & ~np.isin(hashes, seen_hashes)], np.concatenate([seen_hashes, hashes])


def parse_mate(evaluation: float) -> int:
    """Return the moves to mate of an evaluation, 0 for one in centipawns.

    >>> parse_mate(29996), parse_mate(-29999), parse_mate(35)
    (4, -1, 0)
    """
    most = LICHESS_MATE_CP
    moves_left = round(most - abs(evaluation)) if abs(evaluation) <= most else most  # also for NaN
    return (moves_left if evaluation > 0 else -moves_left) if 0 < moves_left < 1000 else 0


def find_game_ids(games: Games) -> tuple[np.ndarray, np.ndarray]:
    """Return rows int64 [n] and `game_hash` uint64 [n] of the games whose Site tag contains a Lichess id."""
    sites = games._read(["site"])["site"].to_pylist()
    ids = [_GAME.match(site or "") for site in sites]
    rows = np.array([row for row, match in enumerate(ids) if match], np.int64)
    return rows, np.array([_hash_game_id(match[1]) for match in ids if match], np.uint64)


def make_position_schema() -> pa.Schema:
    """Return the schema of `positions.parquet`.

    Moves are UCI; evaluations are the source's, in centipawns; `legal` is the number of legal moves; `win_prob` [0, 1]
    is for the side to move, after the move `action` if there is one (ChessBench).
    """
    import pyarrow as pa

    return pa.schema([
        pa.field("row", pa.int64(), False), pa.field("game_hash", pa.uint64(), False),
        pa.field("position_hash", pa.uint64(), False), pa.field("fen", pa.string(), False),
        *(pa.field(name, pa.string()) for name in ("best", "played", "line")),
        pa.field("eval_before", pa.float64()), pa.field("eval_after", pa.float64()),
        *(pa.field(name, pa.int32()) for name in RATINGS), pa.field("judgment", pa.string()),
        pa.field("game", pa.string()), pa.field("ply", pa.int32(), False), pa.field("legal", pa.int16(), False),
        pa.field("action", pa.string()), pa.field("win_prob", pa.float64()),
    ])  # fmt: skip


class PositionSource:
    """A source file of positions."""

    def __init__(self, path: InputFile, names: Sequence[str], source: GameSource | None) -> None:
        """`names` are the file's columns; `source` is the CSV's stream, None for a Parquet file.

        Raises BadInputError without a column of FENs.
        """
        self.path, self._source, self._names = path, source, list(names)
        self._digest = ""
        self.bytes_total = path.stat().st_size
        self.bytes_done = 0
        lower = [name.strip().lower() for name in names]
        self.columns = {
            column: next((lower.index(known_name) for known_name in every if known_name in lower), None)
            for column, every in COLUMNS.items()
        }
        repeated_names = [names[at] for at in self.columns.values() if at is not None and lower.count(lower[at]) > 1]
        if repeated_names:
            raise BadInputError(f"{path} has two columns {repeated_names[0]}", "remove or rename one of them")
        if self.columns["fen"] is None:
            raise BadInputError(f"{path} has no column fen", f"its columns are {', '.join(names)[:200]}")
        if self.columns["best"] is not None:
            self.columns["line"] = None

    @property
    def notes(self) -> list[str]:
        mappings = [f"{self._names[at]} → {name}" for name, at in self.columns.items() if at is not None]
        puzzles = ["puzzles: each position is the one after the line's first move"] * (self.columns["line"] is not None)
        return [f"columns {', '.join(mappings)}", *puzzles]

    def batches(self) -> Iterator[Batch]:
        """Yield (line or row numbers counted from 1, {column of a dataset: values}).

        Raises BrokenStreamError if the file cannot be read completely.
        """
        yield from self._read_parquet() if self._source is None else self._read_csv(self._source)

    def _read_parquet(self) -> Iterator[Batch]:
        """Yield the known columns of a Parquet file in batches. Raises BrokenStreamError for a damaged file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        column_names = {name: self._names[at] for name, at in self.columns.items() if at is not None}
        line = 1
        try:
            with self._read_copy() as path:
                file = pq.ParquetFile(path)
                for batch in file.iter_batches(_BATCH_ROWS, columns=list(column_names.values())):
                    yield (
                        range(line, line + len(batch)),
                        {name: _list_values(batch[at]) for name, at in column_names.items()},
                    )
                    line += len(batch)
                    self.bytes_done = self.bytes_total * (line - 1) // max(file.metadata.num_rows, 1)
        except (pa.ArrowException, OSError, *DAMAGE_ERRORS) as error:
            raise BrokenStreamError(_shorten_error(error)) from error

    def _read_csv(self, source: GameSource) -> Iterator[Batch]:
        """Yield the known columns of a CSV file in batches.

        A stream that breaks off raises BrokenStreamError after its last complete row. Raises BadInputError for an
        invalid line.
        """
        places = {name: at for name, at in self.columns.items() if at is not None}
        reader = csv.reader(_read_lines(source))
        if not self.headless:
            next(reader, None)
        lines: list[int] = []
        rows: list[list[str]] = []
        line = reader.line_num

        def batch() -> Batch:
            self.bytes_done = source.bytes_done
            return lines, {
                name: [cells[at] if at < len(cells) else "" for cells in rows] for name, at in places.items()
            }

        try:
            for cells in reader:
                if cells:
                    lines.append(line + 1)
                    rows.append(cells)
                line = reader.line_num
                if len(rows) == _BATCH_ROWS:
                    yield batch()
                    lines, rows = [], []
        except BrokenStreamError:
            yield batch()  # the complete rows before the break
            raise
        except csv.Error as error:
            raise BadInputError(f"{self.path}, line {line + 1}: {error}", "is it a CSV?") from error
        yield batch()

    headless = False

    @contextmanager
    def _read_copy(self) -> Iterator[Path]:
        """Yield the file on disk, and compute its digest."""
        with fetch_copy(self.path) as path:
            self._digest = hash_file(path)
            yield path

    @property
    def sha256(self) -> str:
        """Digest of the file's bytes, once `batches` is exhausted."""
        if self._source is None:
            return self._digest
        return hash_file(self.path) if isinstance(self.path, Path) else self._source.sha256


class BagSource(PositionSource):
    """A bag of ChessBench as a source of positions (`bags.py`)."""

    def __init__(self, path: InputFile) -> None:
        """Raises BagError if the file on disk cannot be a bag; a remote one is checked when it is read."""
        self.path, self._source, self._digest = path, None, ""
        if isinstance(path, Path):
            bags.Bag(path)
        self.bytes_total, self.bytes_done = path.stat().st_size, 0
        self.columns = dict.fromkeys(COLUMNS)
        self._coding: str | None = None

    @property
    def notes(self) -> list[str]:
        return [f"records of {self._coding}"]

    def batches(self) -> Iterator[Batch]:
        """See `PositionSource.batches`. Raises BagError for the first invalid record."""
        line = 1
        try:
            with self._read_copy() as path:
                for records in bags.Bag(path).records():
                    self._coding = records.coding
                    columns: dict[str, list[Any]] = {"fen": records.fens()}
                    if records.coding != "state_value":
                        columns["best" if records.coding == "behavioral_cloning" else "action"] = records.moves()
                    if records.coding != "behavioral_cloning":
                        columns["win_prob"] = records.win_prob.tolist()
                    self.bytes_done += int(sum(map(len, columns["fen"])))
                    yield range(line, line + len(records)), columns
                    line += len(records)
        except OSError as error:
            reraise_lack_of_memory(error)
            raise BrokenStreamError(f"it cannot be read: {describe_os_error(error)}") from error
        self.bytes_done = self.bytes_total


def _list_values(column: pa.Array) -> list[Any]:
    """Return a column's values: bytes as text, NaN (which pandas writes for missing values) as None."""
    import pyarrow as pa

    if pa.types.is_floating(column.type):
        return [None if value is None or math.isnan(value) else value for value in column.to_pylist()]
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [None if value is None else value.decode("utf-8", "replace") for value in column.to_pylist()]
    return list(column.to_pylist())


def _read_lines(source: GameSource) -> Iterator[str]:
    """Yield the text of a source line by line, without a byte order mark. Raises BadInputError for a line that is too
    long."""
    remaining_bytes, mark = b"", b"\xef\xbb\xbf"
    for chunk in source._iterate_decoded():
        full_lines, newline, remaining_bytes = (remaining_bytes + chunk).removeprefix(mark).rpartition(b"\n")
        mark = b""
        if len(remaining_bytes) > _MAX_LINE_BYTES:
            raise BadInputError(f"{source.path} has a line of more than {_MAX_LINE_BYTES >> 20} MiB", "is it a CSV?")
        yield from decode_text(full_lines + newline).splitlines(keepends=True)
    if remaining_bytes:
        yield decode_text(remaining_bytes)


def open_positions(path: InputFile) -> PositionSource | None:
    """Return a file as a source of positions, or None if it contains games (PGN, transcripts or a Parquet file of
    games).

    Raises NotFoundError, and BadInputError for a damaged file and for a Parquet file of neither.
    """
    if bags.is_bag(path):
        return BagSource(path)
    names = read_parquet_columns(path) if path.is_file() else None
    if names is not None:
        return None if has_game_columns(names) else PositionSource(path, names, None)
    source = GameSource(path)
    text = read_head(source).removeprefix(b"\xef\xbb\xbf")
    columns = parse_header(text)
    if TRANSCRIPT in columns:
        return None
    if columns and _is_fen(columns[0]):
        if len(columns) > 3:
            raise BadInputError(
                f"{path} has no header and {len(columns)} columns", "add a line with the names of the columns"
            )
        position_source = PositionSource(path, ("fen", "moves", "rating")[: len(columns)], GameSource(path))
        position_source.headless = True
        return position_source
    if "fen" not in [column.lower() for column in columns] or "[" in columns[0]:
        first_column = columns[0] if len(columns) == 1 else ""
        for separator in (";", "\t"):
            cells = [cell.strip(' "') for cell in first_column.split(separator)]
            if len(cells) > 1 and ("fen" in map(str.lower, cells) or _is_fen(cells[0])):
                raise BadInputError(f"{path} separates its columns by {separator!r}", "separate them by commas")
        return None
    return PositionSource(path, columns, GameSource(path))


def _shorten_error(error: Exception) -> str:
    """Return a library's error about a file's bytes in one short printable line."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())[:120]


def _is_fen(text: str) -> bool:
    """Return whether python-chess reads a text as a FEN."""
    try:
        chess.Board(text)
    except ValueError:
        return False
    return text.count("/") == 7


@dataclass(frozen=True)
class PositionFilter:
    """A filter of legal positions.

    A position passes after at least `min_plies` plies, if its game and the position are not in `exclude`, and if its
    game is in `within`. Both map input references of datasets to hashes uint64 [n] (`exclude`: game and position
    hashes). A dataset of games excludes by game, a dataset of positions by position.
    """

    min_plies: int = 0
    exclude: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    within: Mapping[str, np.ndarray] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the filter as stored in the report and hashed in the identity; {} if every position passes."""
        filters = {"min_plies": self.min_plies, "exclude": sorted(self.exclude), "within": sorted(self.within)}
        return {name: value for name, value in filters.items() if value}

    @functools.cached_property
    def _sets(self) -> list[HashSet]:
        """The hashes of excluded games, of excluded positions, and of the games that positions must belong to."""
        kinds = [list(kind) for kind in zip(*self.exclude.values(), strict=True)] or [[], []]
        return [
            HashSet(np.concatenate([np.zeros(0, np.uint64), *hash_sets]))
            for hash_sets in (*kinds, self.within.values())
        ]

    def keeps(
        self, legal: np.ndarray, ply: np.ndarray, games: np.ndarray, positions: np.ndarray, tally: Tally
    ) -> np.ndarray:
        """Return which of the rows `legal` bool [n] pass, bool [n]; the others are counted in `tally`."""
        if not self.as_json():
            return legal
        shut_games, shut_positions, open_games = self._sets
        legal_moves = legal
        for reason, is_out in (
            ("below --min-plies", ply < self.min_plies),
            ("of an excluded dataset", shut_games.contains(games) | shut_positions.contains(positions)),
            ("of games outside --within", ~open_games.contains(games) if self.within else np.zeros(len(ply), bool)),
        ):
            tally.skip(reason, int((legal_moves & is_out).sum()))
            legal_moves = legal_moves & ~is_out
        return legal_moves


def identify_position_dataset(digests: Sequence[str], position_filter: PositionFilter | None = None) -> str:
    """Return the identity of positions read from files with these digests through a filter."""
    filters = position_filter.as_json() if position_filter else {}
    return identity_of(digests, filters, reader=POSITION_READER_VERSION, content="positions")


def build_position_dataset(
    files: Sequence[InputFile],
    folder: Path,
    *,
    salvage: bool = False,
    position_filter: PositionFilter | None = None,
    on_progress: Progress | None = None,
) -> DatasetReport:
    """Read files of positions into the new dataset `folder`, in order, with constant memory: 100,000 rows per second.

    `salvage` keeps the rows before a break in a file. Bad rows are listed in `rejects.tsv`. Raises BadInputError, and
    leaves nothing behind, if the folder exists, or a file has no positions, cannot be read completely (without
    `salvage`) or has only bad rows.
    """
    sources = [(path, open_positions(path)) for path in files]
    for path, source in sources:
        if source is None:
            raise BadInputError(f"{path} holds no positions", "a column fen is needed")
    with create_folder(folder) as temporary:
        return _build_from_position_sources(
            [source for _, source in sources if source],
            temporary,
            salvage,
            position_filter or PositionFilter(),
            on_progress,
        )


def _build_from_position_sources(
    sources: list[PositionSource],
    temporary: Path,
    salvage: bool,
    position_filter: PositionFilter,
    on_progress: Progress | None,
) -> DatasetReport:
    """Build the dataset in `temporary`; the arguments are those of `build_position_dataset`."""
    import pyarrow as pa

    total = sum(source.bytes_total for source in sources)
    tally, source_error, row = Tally(), None, 0
    held_columns, unread_columns = Counter[str](), Counter[str]()
    scratch = temporary / "scratch.arrow"
    hashes = {name: temporary / name for name in ("game_hash", "position_hash")}
    target = make_position_schema()
    with (
        pa.ipc.new_file(str(scratch), target, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer,
        hashes["game_hash"].open("wb") as games,
        hashes["position_hash"].open("wb") as positions,
        (temporary / dataset.REJECTS_FILE).open("w", encoding="utf-8", newline="") as rejects,
    ):
        rejects.write("row\tsource\tline\tply\treason\n")
        for source in sources:
            legal, before, example = tally.plies, {**tally.rejected, **tally.skipped}, ""
            try:
                for lines, columns in source.batches():
                    kept_rows, problems = _check_rows(columns, len(lines), row, position_filter, tally, unread_columns)
                    for place, reason in problems.items():
                        tally.reject(reason)
                        example = example or f"; row {lines[place]}: {reason}"
                        write_reject(rejects, Reject(place, lines[place], 0, reason), row, source.path.name)
                    batch = pa.RecordBatch.from_arrays([kept_rows[column] for column in target.names], schema=target)
                    writer.write_batch(batch)
                    held_columns.update({name: len(batch) - batch[name].null_count for name in _OPTIONAL})
                    for name, file in (("game_hash", games), ("position_hash", positions)):
                        file.write(batch[name].to_numpy().tobytes())
                    tally.plies += len(batch)
                    row += len(lines)
                    if on_progress:
                        on_progress(sum(s.bytes_done for s in sources), total, tally.plies)
            except BrokenStreamError as error:
                if not salvage:
                    hint = "get the file again, or keep the rows before the break with --salvage"
                    raise BadInputError(f"{source.path} cannot be read completely: {error}", hint) from error
                source_error = f"{source.path.name}: {error}"
            if tally.plies == legal:
                raise _make_no_position_error(source, tally, before, example)
    copies = find_duplicates(hashes["position_hash"], tally.plies)
    distinct = tally.plies - int(find_duplicates(hashes["game_hash"], tally.plies).sum())
    for path in hashes.values():
        path.unlink()
    write_parquet(scratch, temporary / dataset.POSITIONS_FILE, copies, target, ("judgment", *_MOVES))
    scratch.unlink()
    source_files = [SourceFile(s.path.name, s.sha256, s.bytes_total) for s in sources]
    result = DatasetReport(
        identity=identify_position_dataset([file.sha256 for file in source_files], position_filter),
        reader_version=POSITION_READER_VERSION,
        filters=position_filter.as_json(),
        sources=source_files,
        games=distinct if all(source.columns["game"] is not None for source in sources) else 0,
        plies=tally.plies,
        rejected=dict(sorted(tally.rejected.items())),
        skipped=dict(sorted(tally.skipped.items())),
        duplicates=int(copies.sum()),
        noncanonical=tally.noncanonical,
        result_mismatches=0,
        missing_results=0,
        both_elos=tally.both_elos,
        first_date=None,
        last_date=None,
        games_sha256=hash_file(temporary / dataset.POSITIONS_FILE),
        salvaged=source_error,
        found=row,
        notes=[
            *(f"{source.path.name}: {note}" for source in sources for note in source.notes),
            "rows with "
            + (
                ", ".join(f"{name} {held_columns[name]:,}" for name in _OPTIONAL if held_columns[name]) or "a FEN alone"
            ),
            *(
                f"{name} left empty where it is not a {'rating' if name in RATINGS else 'number'}: {rows:,}"
                for name, rows in unread_columns.items()
                if rows
            ),
        ],
        content="positions",
    )
    result.save(temporary)
    return result


def _make_no_position_error(
    source: PositionSource, tally: Tally, before: dict[str, int], example: str
) -> BadInputError:
    """Return the error for a source without a legal position. `tally` minus `before` are the counts of this source."""
    reject_counts = {**tally.rejected, **tally.skipped}
    reject_counts = {reason: more for reason, count in reject_counts.items() if (more := count - before.get(reason, 0))}
    count_text = ", ".join(f"{count} {reason}" for reason, count in reject_counts.items()) or "it has no rows"
    hint = "--min-plies, --exclude, --within choose" if reject_counts.keys() & tally.skipped.keys() else ""
    hint = "is its column fen one of FENs?" if reject_counts.keys() == {"no FEN"} else hint
    return BadInputError(f"{source.path} holds no legal position ({count_text}){example}", hint)


class _BadRowError(Exception):
    """Raised for a row that is not a legal position. Its message is the reason; details of the row follow a colon."""


def _check_rows(
    columns: Mapping[str, list[Any]],
    count: int,
    first_line: int,
    position_filter: PositionFilter,
    tally: Tally,
    unread_columns: Counter[str],
) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """Return the columns of the kept rows, numbered from `first_line`, and {row: reason} of the bad rows.

    A ply that does not fit the side to move (counted from 1, or of the move before) is taken from the FEN. Text in
    place of a number, and ratings below 0 or above 9,999, become empty and are counted in `unread_columns` by column.
    """
    import pyarrow as pa

    fens, words = _prepare_texts(columns, count)
    legal, problems = _check_moves(fens, words, tally)
    for place in [at for at, line in enumerate(words["line"]) if not line] if "line" in columns else ():
        problems.setdefault(place, "a puzzle without a solution")
    chances = _to_floats(columns.get("win_prob"), count)
    for place in np.flatnonzero(~((chances >= 0) & (chances <= 1))).tolist() if "win_prob" in columns else ():
        if columns["win_prob"][place] not in (None, ""):  # also for NaN
            problems.setdefault(place, f"a win probability outside 0 to 1: {columns['win_prob'][place]}")
    games = [_parse_game_id(_format_game_id(game)) for game in columns.get("game", ())] or [None] * count
    position_hash, game_hash, ply = _compute_keys(fens, games, _to_floats(columns.get("ply"), count), problems)
    mask = np.ones(count, bool)
    mask[list(problems)] = False
    mask &= position_filter.keeps(mask, ply, game_hash, position_hash, tally)
    ratings = {name: _to_floats(columns.get(name), count) for name in RATINGS}
    for name in ("eval_before", "eval_after", "ply", *ratings):
        is_not_number = np.array([_is_not_number(value) for value in columns.get(name) or ()] or np.zeros(count), bool)
        if name in ratings:
            is_out_of_range = (ratings[name] < 0) | (ratings[name] > MAX_RATING)
            ratings[name][is_out_of_range] = np.nan
            is_not_number |= is_out_of_range
        unread_columns.update({name: int((mask & is_not_number).sum())})
    tally.both_elos += int((mask & ~np.isnan(ratings["mover_elo"]) & ~np.isnan(ratings["opponent_elo"])).sum())

    def floats(values: np.ndarray) -> pa.Array:
        return pa.array(values[mask], mask=np.isnan(values[mask]))

    def integers(values: np.ndarray) -> pa.Array:
        none = ~(np.abs(values[mask]) < 1 << 31)
        return pa.array(np.where(none, 0, values[mask]).astype(np.int32), mask=none)

    def texts(values: Sequence[str | None]) -> pa.Array:
        return pa.array(itertools.compress(values, mask), pa.string())

    return {
        "row": pa.array(first_line + np.flatnonzero(mask)),
        "game_hash": pa.array(game_hash[mask]),
        "position_hash": pa.array(position_hash[mask]),
        "fen": texts(fens),
        **{name: texts(word_texts) for name, word_texts in words.items()},
        **{name: floats(_to_floats(columns.get(name), count)) for name in ("eval_before", "eval_after")},
        **{name: integers(values) for name, values in ratings.items()},
        "judgment": texts([str(word) if word else None for word in columns.get("judgment", ())] or [None] * count),
        "game": texts(games),
        "ply": pa.array(ply[mask].astype(np.int32)),
        "legal": pa.array(legal[mask]),
        "win_prob": floats(chances),
    }, problems  # fmt: skip


Words = dict[str, list[str | None]]  # column of moves → the text of each row


def _prepare_texts(columns: Mapping[str, list[Any]], count: int) -> tuple[list[str], Words]:
    """Return FENs and moves as texts. Castling written as king takes rook becomes the king's move if the
    right exists."""
    fens = [str(fen or "").strip() for fen in columns["fen"]]
    words = {name: [str(word).strip() if word else None for word in columns.get(name, ())] or [None] * count
             for name in (*_MOVES, "line")}  # fmt: skip
    for name in _MOVES:
        for place in [at for at, word in enumerate(words[name]) if word in _CASTLING]:
            right, castling = _CASTLING[words[name][place] or ""]
            if right in "".join(fens[place].split(" ")[2:3]):
                words[name][place] = castling
    return fens, words


def _check_moves(fens: list[str], words: Words, tally: Tally) -> tuple[np.ndarray, dict[int, str]]:
    """Return the number of legal moves int16 of each row, and {row: reason} of the bad rows; normalize FENs and moves
    in place.

    Rows in python-chess's format with UCI moves are checked together; other rows one by one.
    """
    count = len(fens)
    plain = [place for place, fen in enumerate(fens) if _PLAIN.fullmatch(fen) and not words["line"][place]]
    moves = find_legal_moves([fens[place] for place in plain])
    is_valid, legal = np.zeros(count, bool), np.zeros(count, np.int16)
    is_valid[plain] = [place not in moves.errors for place in range(len(plain))]
    legal[plain] = moves.counts
    for name in _MOVES:
        given_words = words[name]
        if any(given_words):
            codes = np.array([pack_uci(given_words[place] or "") for place in plain], np.uint16)
            none = np.array([not given_words[place] for place in plain], bool)
            is_valid[plain] &= moves.has(codes) | none
    problems: dict[int, str] = {}
    for place in np.flatnonzero(~is_valid).tolist():
        try:
            row = _check_row(fens[place], {name: given_words[place] for name, given_words in words.items()})
        except _BadRowError as error:
            problems[place] = str(error)
            continue
        tally.noncanonical += row.is_rewritten
        fens[place], legal[place] = row.fen, row.legal
        for name, word in row.moves.items():
            words[name][place] = word
    return legal, problems


def _compute_keys(
    fens: list[str], games: list[str | None], given_ply: np.ndarray, bad_rows: Collection[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return position_hash uint64, game_hash uint64 and ply int64 of each row.

    `games` are game ids, None if unknown. `given_ply` float [rows] is used where it agrees with the side to move.
    `bad_rows` have no valid FEN.
    """
    fields = [fen.rsplit(" ", 2) if place not in bad_rows else ("", "0", "0") for place, fen in enumerate(fens)]
    position_hash = np.frombuffer(
        b"".join(_hash_text(_normalize_en_passant(position_text)) for position_text, _, _ in fields), "<u8"
    )
    game_hash = np.array([position_hash[place] if game is None else _hash_game_id(game)
                          for place, game in enumerate(games)], np.uint64)  # fmt: skip
    ply = np.array(
        [2 * max(int(number) - 1, 0) + (" b " in position_text) for position_text, _, number in fields], np.int64
    )
    fits = (given_ply >= 0) & (given_ply < 1 << 31) & (np.floor(given_ply) % 2 == ply % 2)
    return position_hash, game_hash, np.where(fits, np.where(fits, given_ply, 0).astype(np.int64), ply)


@dataclass(frozen=True)
class _CheckedRow:
    """A row checked separately: its FEN, whether that was rewritten, its moves and the number of legal moves."""

    fen: str
    is_rewritten: bool
    moves: dict[str, str | None]
    legal: int


def _check_row(fen: str, words: Mapping[str, str | None]) -> _CheckedRow:
    """Check a row with python-chess. Raises _BadRowError."""
    try:
        board = chess.Board(fen)
    except ValueError as error:
        raise _BadRowError(f"no FEN: {fen[:80]}") from error
    if max(board.halfmove_clock, board.fullmove_number) > MAX_COUNTER:
        raise _BadRowError(f"a counter above {MAX_COUNTER}: {fen[:80]}")
    if board.status():
        raise _BadRowError(f"{describe_status(board)}: {fen[:80]}")
    moves: dict[str, str | None] = {}
    is_rewritten = False
    line = words.get("line")
    if line:
        moves = _play_puzzle(board, line.split())
        if max(board.halfmove_clock, board.fullmove_number) > MAX_COUNTER:
            raise _BadRowError(f"a counter above {MAX_COUNTER}: {board.fen()}")
    fields = fen.split(" ")
    if line or len(fields) != 6 or fields[2] not in _RIGHTS or max(map(len, fields[4:])) > 3:
        is_rewritten, fen = not line, board.fen(en_passant="legal" if line else "fen")
    moves |= {name: _parse_legal_move(board, word, f"{name} move") for name in _MOVES if (word := words.get(name))}
    return _CheckedRow(fen, is_rewritten, moves, board.legal_moves.count())


def _play_puzzle(board: chess.Board, moves: Sequence[str]) -> dict[str, str | None]:
    """Play a puzzle's first move on the board, which may be the null move; return its solution, whose first move is the
    best move."""
    if len(moves) < 2:
        raise _BadRowError("a puzzle without a solution")
    if moves[0] != NO_MOVE:
        _parse_legal_move(board, moves[0], "move of a puzzle", play=True)
    after = board.copy(stack=False)
    solution = [_parse_legal_move(after, word, "move of a puzzle", play=True) for word in moves[1:]]
    return {"best": solution[0], "line": " ".join(solution)}


def _parse_legal_move(board: chess.Board, word: str, title: str, play: bool = False) -> str:
    """Return the UCI of a legal move `word`, written in UCI or SAN; with `play`, also make it on the board. Raises
    _BadRowError, which calls the move `title`."""
    for parse in (board.parse_uci, board.parse_san):
        try:
            move = parse(word)
        except ValueError:
            continue
        if move:
            if play:
                board.push(move)
            return move.uci()
    raise _BadRowError(f"illegal {title}: {word[:10]} in {board.fen()}")


@functools.lru_cache(1 << 12)
def pack_uci(uci: str) -> int:
    """Return a UCI move packed as in `moves.py`; 0 for a text that is not a move."""
    try:
        move = chess.Move.from_uci(uci)
    except ValueError:
        return 0
    return move.from_square | move.to_square << 6 | (move.promotion or 0) << 12


def _normalize_en_passant(position_text: str) -> str:
    """Return the first four fields of a FEN, with the en-passant square only if a pawn can capture there."""
    fields = position_text.split(" ")
    if fields[-1] in ("", "-") or chess.Board(f"{position_text} 0 1").has_legal_en_passant():
        return position_text
    return " ".join([*fields[:-1], "-"])


def _hash_text(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


@functools.lru_cache(1 << 12)
def _hash_game_id(game: str) -> int:
    return int.from_bytes(_hash_text(f"game {game}"), "little")


def _format_game_id(game_text: Any) -> str:
    """Return a game's id as text. pandas stores whole numbers as floats in columns with missing values."""
    if game_text is None:
        return ""
    return f"{game_text:.0f}" if isinstance(game_text, float) and game_text.is_integer() else str(game_text).strip()


@functools.lru_cache(1 << 12)
def _parse_game_id(text: str) -> str | None:
    """Return a game's id, extracted from a Lichess link; None for an empty text."""
    link, number = _GAME.match(text), re.fullmatch(r"(\d+)\.0", text)
    return link[1] if link else number[1] if number else text or None


def _to_floats(values: Sequence[Any] | None, count: int) -> np.ndarray:
    """Return the finite numbers among values, float64 [count]; NaN for anything else."""
    if not values:
        return np.full(count, np.nan)
    try:
        numbers = np.array(values, np.float64)
    except (TypeError, ValueError):
        numbers = np.array([_to_float(value) for value in values])
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _to_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _is_not_number(value: Any) -> bool:
    """Return whether a value is present but not a finite number."""
    if value is None or not str(value).strip() or (isinstance(value, float) and math.isnan(value)):
        return False
    return not math.isfinite(_to_float(value))


def verify_positions(folder: Path, *, sample: int = 200, seed: int = 0) -> Verification:
    """Compare a dataset of positions with its report, and check a seeded sample with python-chess."""
    report = DatasetReport.load(folder)
    path = folder / dataset.POSITIONS_FILE
    if not path.is_file():
        return Verification(0, 0, [f"{path.name} is missing"], "positions")
    if hash_file(path) != report.games_sha256:
        return Verification(0, 0, [f"{path.name} is not the file that was written: its sha256 differs"], "positions")
    positions = Positions(folder)
    problems = []
    if len(positions) != report.plies:
        problems.append(f"{len(positions):,} positions, but the report counts {report.plies:,}")
    if miscount := report.find_miscount():
        problems.append(miscount)
    rng = generator(seed, Stream.VERIFY, report.identity)
    sample_rows = np.sort(rng.choice(len(positions), min(sample, len(positions)), replace=False))
    for row in positions.take(sample_rows, ["row", "fen", "best", "played", "position_hash"]).to_pylist():
        try:
            checked_row = _check_row(row["fen"], {name: row[name] for name in ("best", "played")})
            hashed_text = _normalize_en_passant(checked_row.fen.rsplit(" ", 2)[0])
            if int.from_bytes(_hash_text(hashed_text), "little") != row["position_hash"]:
                problems.append(f"position {row['row']} has a hash that is not that of its FEN")
        except _BadRowError as bad:
            problems.append(f"position {row['row']}: {bad}")
    return Verification(len(positions), len(sample_rows), problems, "positions")
