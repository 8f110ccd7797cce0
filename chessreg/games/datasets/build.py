"""Building a dataset of games: source files in, a folder with `games.parquet`, `rejects.tsv`, `dataset.json` out.

Memory is constant: blocks of 4 MiB, at most two per process and one more. Rows go to a scratch file first, because
duplicates are known for certain only at the end; the second pass adds that column and compresses.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from chessreg.errors import BadInputError, ChessregError
from chessreg.games.boards.moves import HashSet
from chessreg.games.datasets import dataset, rows
from chessreg.games.datasets.block_reading import BlockPool, BlockReader, SourceBlock
from chessreg.games.datasets.dataset import DatasetReport, SourceFile
from chessreg.games.datasets.game_filter import EVERY_GAME, GameFilter
from chessreg.games.datasets.reader import READER_VERSION, GameReader, get_reader
from chessreg.games.datasets.remote import InputFile
from chessreg.games.datasets.rows import Reject, Tally
from chessreg.games.datasets.sources import BrokenStreamError, GameSource
from chessreg.games.datasets.transcripts import open_game_source
from store.files import describe_os_error, hash_file, is_disk_full

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS = 10_000
_WORDS = ("result", "white", "black", "event", "date", "eco", "time_control", "termination")
Progress = Callable[[int, int, int], None]
"""Called after each block with (bytes of the sources read, total bytes, games kept so far)."""
_BYTES_PER_PROCESS = 2 << 20  # of sources; starting a process takes as long as reading 4 MiB of PGN
_BATCH_HASHES = 1 << 21  # about 100 MB of memory, for any number of games


def build_dataset(
    files: Sequence[InputFile],
    folder: Path,
    *,
    salvage: bool = False,
    min_plies: int = 0,
    exclude: Mapping[str, np.ndarray] | None = None,
    game_filter: GameFilter = EVERY_GAME,
    on_progress: Progress | None = None,
    reader_name: str = "auto",
    processes: int = 1,
) -> DatasetReport:
    """Read PGN files or transcript CSVs (plain, zst, gz, bz2, zip) into the new dataset `folder`, in their order.

    Games without moves, with fewer than `min_plies`, of variants and from custom starts are skipped and counted, as are
    games that `game_filter` rejects and games whose move hash is in `exclude`: {input reference of a dataset: hashes
    uint64 [n] of its games}. `salvage` keeps the complete games before a break in a stream. The result does not depend
    on `processes`, the greatest number of processes that read blocks (small files are read by fewer).

    Raises BadInputError, and leaves nothing behind, if the folder exists, a stream cannot be decoded completely
    (without `salvage`), a file is not a PGN, or no game is legal.
    """
    if not files:
        raise BadInputError("there are no files to add")
    sources = [open_game_source(path) for path in files]
    player = get_reader(reader_name)
    with create_folder(folder) as temporary:
        return _build_from_sources(
            sources, temporary, player, salvage, min_plies, exclude or {}, game_filter, on_progress, processes
        )


def check_game_file(path: InputFile, salvage: bool = False, reader_name: str = "auto") -> None:
    """Raise the errors of `build_dataset` for a file without a legal game. Reads only up to the first legal game."""
    source, tally, games_read = open_game_source(path), Tally(), 0
    reader, stream = BlockReader(get_reader(reader_name), 0, None, EVERY_GAME), _Stream(source)
    for block in map(reader.read, stream.blocks()):
        tally.add(block.tally)
        games_read += block.games_read
        if tally.games:
            return
    if stream.error and not salvage:
        raise _make_broken_error(source, stream.error)
    raise _make_no_game_error(source, games_read, tally, {})


@contextmanager
def create_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` on success.

    Raises BadInputError if `folder` exists, ChessregError if it cannot be written.
    """
    if folder.exists():
        raise BadInputError(f"{folder} exists already")
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        os.rename(temporary, folder)
    except OSError as error:
        hint = "free some space and add it again" if is_disk_full(error) else ""
        raise ChessregError(f"the dataset cannot be written to {folder}: {describe_os_error(error)}", hint) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _build_from_sources(
    sources: list[GameSource],
    temporary: Path,
    player: GameReader,
    salvage: bool,
    min_plies: int,
    exclude: Mapping[str, np.ndarray],
    game_filter: GameFilter,
    on_progress: Progress | None,
    processes: int,
) -> DatasetReport:
    """Build the dataset in `temporary`; the arguments are those of `build_dataset`."""
    import pyarrow as pa

    total = sum(source.bytes_total for source in sources)
    tally, error, row = Tally(), None, 0
    excluded_games = HashSet(np.concatenate(list(exclude.values()))) if exclude else None
    reader = BlockReader(player, min_plies, excluded_games, game_filter)
    scratch, hashes = temporary / "scratch.arrow", temporary / "hashes"
    with (
        pa.ipc.new_file(
            str(scratch), rows.make_game_schema(), options=pa.ipc.IpcWriteOptions(compression="lz4")
        ) as writer,
        hashes.open("wb") as hashes_out,
        (temporary / dataset.REJECTS_FILE).open("w", encoding="utf-8", newline="") as rejects,
        BlockPool(reader, min(processes, max(1, total // _BYTES_PER_PROCESS))) as pool,
    ):
        rejects.write("row\tsource\tline\tply\treason\n")
        for source in sources:
            before, legal, rejected_before = row, tally.games, dict(tally.rejected)
            stream = _Stream(source)
            for block in pool.read(stream.blocks()):
                batch = block.batch.set_column(0, "row", pa.array(block.batch["row"].to_numpy() + row))
                writer.write_batch(batch.cast(rows.make_game_schema()))
                hashes_out.write(block.hashes.tobytes())
                for reject in block.rejects:
                    write_reject(rejects, reject, row, source.path.name)
                tally.add(block.tally)
                row += block.games_read
                if on_progress:
                    on_progress(sum(s.bytes_done for s in sources), total, tally.games)
            if stream.error:
                if not salvage:
                    raise _make_broken_error(source, stream.error)
                error = f"{source.path.name}: {stream.error}"
                if stream.cut_off:
                    reject = Reject(0, stream.line, 0, "the stream ends inside the game")
                    write_reject(rejects, reject, row, source.path.name)
                    tally.reject(reject.reason)
                    row += 1
            if tally.games == legal and not game_filter.settings():
                raise _make_no_game_error(source, row - before, tally, rejected_before)
    if not tally.games:
        raise _make_no_game_error(sources[0], row, tally, {})
    copies = find_duplicates(hashes, tally.games)
    hashes.unlink()
    write_parquet(scratch, temporary / dataset.GAMES_FILE, copies, rows.make_game_schema(), _WORDS)
    scratch.unlink()
    filters = describe_filters(min_plies, exclude, game_filter)
    files = [SourceFile(source.path.name, source.sha256, source.bytes_total) for source in sources]
    result = DatasetReport(
        identity=identify_dataset([file.sha256 for file in files], filters),
        reader_version=READER_VERSION,
        filters=filters,
        sources=files,
        games=tally.games,
        plies=tally.plies,
        rejected=dict(sorted(tally.rejected.items())),
        skipped=dict(sorted(tally.skipped.items())),
        duplicates=int(copies.sum()),
        noncanonical=tally.noncanonical,
        result_mismatches=tally.result_mismatches,
        missing_results=tally.missing_results,
        both_elos=tally.both_elos,
        first_date=tally.first_date,
        last_date=tally.last_date,
        games_sha256=hash_file(temporary / dataset.GAMES_FILE),
        salvaged=error,
        found=row,
        cut=tally.cut,
        notes=[f"{source.path.name}: {note}" for source in sources for note in source.notes],
    )
    result.save(temporary)
    return result


class _Stream:
    """The blocks of one source up to its end or a break in it."""

    def __init__(self, source: GameSource) -> None:
        self.source, self.line = source, source.first_line
        self.error: str | None = None
        self.cut_off = False

    def blocks(self) -> Iterator[SourceBlock]:
        try:
            for text in self.source.blocks():
                yield SourceBlock(text, self.line, self.source.split)
                self.line += text.count(b"\n")
        except BrokenStreamError as error:
            self.error = str(error.args[0])
            self.cut_off = bool(error.args[1].strip())


def write_reject(file: IO[str], reject: Reject, row: int, name: str) -> None:
    """Write one line of rejects.tsv; `row` is the number of the block's first row."""
    name, reason = (re.sub(r"[\s\x00-\x1f]+", " ", text) for text in (name, reject.reason))  # one line, five cells
    file.write(f"{row + reject.row}\t{name}\t{reject.line}\t{reject.ply}\t{reason}\n")


def _make_broken_error(source: GameSource, reason: str) -> BadInputError:
    hint = "get the file again, or keep the games before the break with --salvage"
    return BadInputError(f"{source.path} cannot be read completely: {reason}", hint)


def _make_no_game_error(source: GameSource, games: int, tally: Tally, before: dict[str, int]) -> BadInputError:
    """Return the error for a source without a legal game. `tally` minus `before` are the counts of this source."""
    new_rejects = {k: n - before.get(k, 0) for k, n in tally.rejected.items() if n > before.get(k, 0)}
    reject_text = (
        ", ".join(f"{number} {reason}" for reason, number in new_rejects.items()) or "nothing but skipped games"
    )
    if not games:
        return BadInputError(f"{source.path} is not a PGN: it holds no game")
    skipped_text = "; ".join(f"{number:,} {reason}" for reason, number in tally.skipped.items())
    hint = f"left out: {skipped_text}" if skipped_text else "is it a PGN of standard chess?"
    return BadInputError(f"{source.path} holds no legal game ({games} found: {reject_text})", hint)


def find_duplicates(path: Path, count: int, batch_hashes: int = _BATCH_HASHES) -> np.ndarray:
    """Return whether each row's hash occurs in an earlier row of the file of hashes, bool [count].

    Reads the file once per `batch_hashes` rows.
    """
    copies = np.zeros(count, bool)
    passes = max(1, -(-count // batch_hashes))
    chunk = 1 << 20
    for number in range(passes):
        chunks: list[np.ndarray] = []
        places: list[np.ndarray] = []
        with path.open("rb") as file:
            start = 0
            while data := file.read(8 * chunk):
                hashes = np.frombuffer(data, "<u8")
                pass_rows = np.flatnonzero(hashes % np.uint64(passes) == number)
                chunks.append(hashes[pass_rows])
                places.append(pass_rows + start)
                start += len(hashes)
        hashes, rows_ = np.concatenate(chunks), np.concatenate(places)
        order = np.argsort(hashes, kind="stable")  # stable, so the first of equal hashes is the earliest row
        sorted_hashes = hashes[order]
        is_copy = sorted_hashes[1:] == sorted_hashes[:-1]
        copies[rows_[order[1:][is_copy]]] = True
    return copies


def write_parquet(
    scratch: Path, path: Path, copies: np.ndarray, schema: pa.Schema, text_columns: Sequence[str]
) -> None:
    """Write the scratch rows with the column `duplicate` as Parquet, in row groups of 10,000; `text_columns` get a
    dictionary."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = schema.append(pa.field("duplicate", pa.bool_(), False))
    with (
        pa.OSFile(str(scratch)) as file,
        pa.ipc.open_file(file) as batches,
        pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=list(text_columns)) as writer,
    ):
        held_batches: list[pa.RecordBatch] = []
        size = start = 0
        for number in range(batches.num_record_batches):
            batch = batches.get_batch(number)
            mark = pa.array(copies[start : start + len(batch)])
            held_batches.append(pa.RecordBatch.from_arrays([*batch.columns, mark], schema=schema))
            start, size = start + len(batch), size + len(batch)
            if size >= ROW_GROUP_ROWS:
                table = pa.Table.from_batches(held_batches, schema)
                full_rows = size - size % ROW_GROUP_ROWS
                writer.write_table(table.slice(0, full_rows), ROW_GROUP_ROWS)
                held_batches, size = table.slice(full_rows).combine_chunks().to_batches(), size - full_rows
        writer.write_table(pa.Table.from_batches(held_batches, schema), ROW_GROUP_ROWS)


def describe_filters(
    min_plies: int, exclude: Iterable[str] = (), game_filter: GameFilter = EVERY_GAME
) -> dict[str, Any]:
    """Return the filters as stored in the report and hashed in the identity; `exclude` are input references of
    datasets."""
    references = sorted(set(exclude))
    return {"min_plies": min_plies, **({"exclude": references} if references else {}), **game_filter.settings()}


def identify_dataset(digests: Sequence[str], filters: dict[str, Any], **reader: Any) -> str:
    """Return a dataset's identity: a digest of its sources' bytes in order, its filters and its reader's version.

    `reader` overrides the version of the reader of games, and adds properties of another reader.
    """
    parts = {"sources": list(digests), "filters": filters, "reader": READER_VERSION, **reader}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
