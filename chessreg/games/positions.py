"""Datasets of positions: Parquet or CSV in, a folder with `positions.parquet`, `rejects.tsv` and `dataset.json` out.

Columns are known by several names (`COLUMNS`). A CSV without a header is one of puzzles: FEN, moves, rating. A puzzle's
first move is the opponent's (Junkin's specification 5.4), so its position is the one after that.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess
import numpy as np

from chessreg.errors import DAMAGE, BadInputError
from chessreg.games import dataset, movetext
from chessreg.games.build import Progress, earlier, finish, made_aside, write_reject
from chessreg.games.build import identity as identity_of
from chessreg.games.dataset import DatasetFile, DatasetReport, SourceFile, Verification
from chessreg.games.rows import Reject, Tally
from chessreg.games.sources import BrokenStreamError, Source
from chessreg.games.transcripts import COLUMN as TRANSCRIPT
from chessreg.games.transcripts import columns_of, head_of
from chessreg.noise import generator
from store.files import sha256_file

if TYPE_CHECKING:
    import pyarrow as pa

POSITION_READER_VERSION = 1
"""Raised whenever the rows made from the same bytes may change: part of a dataset's identity."""
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
}
"""Column of a dataset → names that it has in files, the first that there is counting; upper or lower case."""
_ROWS = 20_000  # rows of a source read at once
_RIGHTS = frozenset("".join(c for bit, c in enumerate("KQkq") if of >> bit & 1) or "-" for of in range(16))
_PLAIN = re.compile(r"[pnbrqkPNBRQK1-8/]+ [wb] (?:-|[KQkq]{1,4}) (?:-|[a-h][36]) \d{1,4} \d{1,4}", re.ASCII)
_RUNS = {ord(str(run)): "." * run for run in range(1, 9)}
_GAME = re.compile(r"^https?://[^/]+/(\w{8})")
_PARQUET = b"PAR1"


class Positions(DatasetFile):
    """The positions of a dataset folder. Parts are cut by game: no game is in two (by position where none is known)."""

    content = "positions"
    file_name = dataset.POSITIONS_FILE
    hash_column = "game_hash"

    def fens(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """The FENs of the positions at rows."""
        return self.take(indices, ["fen"])["fen"].to_pylist()

    @property
    def position_hashes(self) -> np.ndarray:
        """uint64 [total]: equal for equal pieces, side to move, castling and en passant."""
        return self._file.read(columns=["position_hash"])["position_hash"].to_numpy()


def schema() -> pa.Schema:
    """The columns of `positions.parquet`. Moves are UCI; evaluations are the source's, in centipawns."""
    import pyarrow as pa

    numbers = ("mover_elo", "opponent_elo", "rating")
    return pa.schema([
        pa.field("row", pa.int64(), False), pa.field("game_hash", pa.uint64(), False),
        pa.field("position_hash", pa.uint64(), False), pa.field("fen", pa.string(), False),
        *(pa.field(name, pa.string()) for name in ("best", "played", "line")),
        pa.field("eval_before", pa.float64()), pa.field("eval_after", pa.float64()),
        *(pa.field(name, pa.int32()) for name in numbers), pa.field("judgment", pa.string()),
        pa.field("game", pa.string()), pa.field("ply", pa.int32(), False),
    ])  # fmt: skip


class PositionSource:
    """One file of positions on its way in."""

    def __init__(self, path: Path, names: Sequence[str], source: Source | None) -> None:
        """names: the file's columns. source: of a CSV; None for a Parquet.

        Raises BadInputError where no column is a FEN."""
        self.path, self._source, self._names = path, source, list(names)
        self.bytes_total = path.stat().st_size
        self.bytes_done = 0
        lower = [name.strip().lower() for name in names]
        self.columns = {
            column: next((lower.index(known) for known in every if known in lower), None)
            for column, every in COLUMNS.items()
        }
        if self.columns["fen"] is None:
            raise BadInputError(f"{path} has no column fen", f"its columns are {', '.join(names)[:200]}")
        if self.columns["best"] is not None:
            self.columns["line"] = None

    @property
    def notes(self) -> list[str]:
        known = [f"{self._names[at]} → {name}" for name, at in self.columns.items() if at is not None]
        puzzles = ["puzzles: each position is the one after the line's first move"] * (self.columns["line"] is not None)
        return [f"columns {', '.join(known)}", *puzzles]

    def batches(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Rows of the file as {our column: value}, with the line or row on which the first stands, counted from 1.

        Raises BrokenStreamError where the file cannot be read to its end."""
        yield from self._parquet() if self._source is None else self._csv(self._source)

    def _parquet(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        wanted = {name: self._names[at] for name, at in self.columns.items() if at is not None}
        line = 1
        try:
            file = pq.ParquetFile(self.path)
            for batch in file.iter_batches(_ROWS, columns=list(wanted.values())):
                values = {name: batch[column].to_pylist() for name, column in wanted.items()}
                yield line, [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
                line += len(batch)
                self.bytes_done = self.bytes_total * (line - 1) // max(file.metadata.num_rows, 1)
        except (pa.ArrowException, OSError, *DAMAGE) as error:
            raise BrokenStreamError(_one_line(error)) from error

    def _csv(self, source: Source) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        places = {name: at for name, at in self.columns.items() if at is not None}
        reader = csv.reader(_lines(source))
        if not self.headless:
            next(reader, None)
        rows: list[dict[str, Any]] = []
        line = first = reader.line_num + 1
        try:
            for cells in reader:
                if cells:
                    rows.append({name: cells[at] if at < len(cells) else "" for name, at in places.items()})
                if len(rows) == _ROWS:
                    self.bytes_done = source.bytes_done
                    yield first, rows
                    rows, first = [], reader.line_num + 1
                line = reader.line_num
        except BrokenStreamError:
            yield first, rows  # the whole rows before the break
            raise
        except csv.Error as error:
            raise BadInputError(f"{self.path}, line {line}: {error}", "is it a CSV?") from error
        self.bytes_done = source.bytes_done
        yield first, rows

    headless = False


def _lines(source: Source) -> Iterator[str]:
    """The text of a source line by line."""
    left = b""
    for chunk in source._decoded():
        whole, newline, left = (left + chunk).rpartition(b"\n")
        yield from movetext.decode(whole + newline).splitlines(keepends=True)
    if left:
        yield movetext.decode(left)


def open_positions(path: Path) -> PositionSource | None:
    """The file as a source of positions; None where it is none: a PGN, or transcripts of games.

    Raises NotFoundError, and BadInputError for a damaged Parquet or one without FENs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    head = b""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(len(_PARQUET))
    if head == _PARQUET or (head and path.suffix.lower() == ".parquet"):
        try:
            names = pq.read_schema(path).names
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BadInputError(f"{path} is a damaged Parquet: {_one_line(error)}", "get the file again") from error
        return PositionSource(path, names, None)
    source = Source(path)
    text = head_of(source).removeprefix(b"\xef\xbb\xbf")
    columns = columns_of(text)
    if TRANSCRIPT in columns:
        return None
    if columns and _is_fen(columns[0]):
        if len(columns) > 3:
            raise BadInputError(f"{path} has no header and {len(columns)} columns", "write the columns' names first")
        made = PositionSource(path, ("fen", "moves", "rating")[: len(columns)], Source(path))
        made.headless = True
        return made
    if "fen" not in [column.lower() for column in columns] or "[" in columns[0]:
        return None
    return PositionSource(path, columns, Source(path))


def _one_line(error: Exception) -> str:
    """What a library says of a file's bytes, printable and short."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())[:120]


def _is_fen(text: str) -> bool:
    try:
        chess.Board(text)
    except ValueError:
        return False
    return text.count("/") == 7


def identity(digests: Sequence[str]) -> str:
    """The identity of positions read from files with these digests."""
    return identity_of(digests, {}, reader=POSITION_READER_VERSION, content="positions")


def build(
    files: Sequence[Path], folder: Path, *, salvage: bool = False, on_progress: Progress | None = None
) -> DatasetReport:
    """Read files of positions into the new dataset `folder`, in their order, at constant memory.

    Raises BadInputError, and leaves nothing behind, when the folder exists, a file holds no position, cannot be read to
    its end (unless `salvage`, which keeps the rows before) or has nothing but bad ones. Bad rows are listed.
    """
    sources = [(path, open_positions(Path(path))) for path in files]
    for path, source in sources:
        if source is None:
            raise BadInputError(f"{path} holds no positions", "a column fen is needed")
    with made_aside(folder) as aside:
        return _build([source for _, source in sources if source], aside, salvage, on_progress)


def _build(sources: list[PositionSource], aside: Path, salvage: bool, on_progress: Progress | None) -> DatasetReport:
    import pyarrow as pa

    total = sum(source.bytes_total for source in sources)
    tally, broken, row = Tally(), None, 0
    scratch = aside / "scratch.arrow"
    hashes = {name: aside / name for name in ("game_hash", "position_hash")}
    target = schema()
    with (
        pa.ipc.new_file(str(scratch), target, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer,
        hashes["game_hash"].open("wb") as games,
        hashes["position_hash"].open("wb") as positions,
        (aside / dataset.REJECTS_FILE).open("w", encoding="utf-8", newline="") as rejects,
    ):
        rejects.write("row\tsource\tline\tply\treason\n")
        for source in sources:
            before = tally.plies
            try:
                for line, given in source.batches():
                    kept = []
                    for number, values in enumerate(given):
                        try:
                            kept.append({"row": row + number, **_row(values, tally)})
                        except _BadRowError as bad:
                            tally.reject(str(bad))
                            write_reject(rejects, Reject(number, line + number, 0, str(bad)), row, source.path.name)
                    batch = pa.RecordBatch.from_pylist(kept, schema=target)
                    writer.write_batch(batch)
                    for name, file in (("game_hash", games), ("position_hash", positions)):
                        file.write(batch[name].to_numpy().tobytes())
                    tally.plies += len(kept)
                    row += len(given)
                    if on_progress:
                        on_progress(sum(s.bytes_done for s in sources), total, tally.plies)
            except BrokenStreamError as error:
                if not salvage:
                    hint = "get the file again, or keep the rows before the break with --salvage"
                    raise BadInputError(f"{source.path} cannot be read to its end: {error}", hint) from error
                broken = f"{source.path.name}: {error}"
            if tally.plies == before:
                why = ", ".join(f"{count} {reason}" for reason, count in tally.rejected.items()) or "it has no rows"
                raise BadInputError(f"{source.path} holds no legal position ({why})", "is its column fen one of FENs?")
    copies = earlier(hashes["position_hash"], tally.plies)
    distinct = tally.plies - int(earlier(hashes["game_hash"], tally.plies).sum())
    for path in hashes.values():
        path.unlink()
    finish(scratch, aside / dataset.POSITIONS_FILE, copies, target, ("judgment", "best", "played"))
    scratch.unlink()
    entered = [SourceFile(s.path.name, sha256_file(s.path), s.bytes_total) for s in sources]
    result = DatasetReport(
        identity=identity([file.sha256 for file in entered]),
        reader_version=POSITION_READER_VERSION,
        filters={},
        sources=entered,
        games=distinct if all(source.columns["game"] is not None for source in sources) else 0,
        plies=tally.plies,
        rejected=dict(sorted(tally.rejected.items())),
        skipped={},
        duplicates=int(copies.sum()),
        noncanonical=tally.noncanonical,
        result_mismatches=0,
        missing_results=0,
        both_elos=tally.both_elos,
        first_date=None,
        last_date=None,
        games_sha256=sha256_file(aside / dataset.POSITIONS_FILE),
        salvaged=broken,
        notes=[f"{source.path.name}: {note}" for source in sources for note in source.notes],
        content="positions",
    )
    result.save(aside)
    return result


class _BadRowError(Exception):
    """A row that is no legal position; the message is the reason, with a colon before what is particular to it."""


def _row(given: dict[str, Any], tally: Tally) -> dict[str, Any]:
    """The columns of a row, moves checked on the board. Raises _BadRowError.

    A ply that does not fit the side to move (counted from 1, or of the move before) is taken from the FEN."""
    fen = str(given["fen"] or "").strip()
    try:
        board = _board(fen)
    except ValueError as error:
        raise _BadRowError(f"no FEN: {fen[:80]}") from error
    if status := board.status():
        flag = min(status, key=lambda one: one.value)
        raise _BadRowError(f"{(flag.name or 'bad position').lower().replace('_', ' ')}: {fen[:80]}")
    moves: dict[str, str | None] = {"best": None, "played": None, "line": None}
    if given.get("line"):
        moves |= _puzzle(board, str(given["line"]).split())
        fen = board.fen(en_passant="fen")
    elif fen.count(" ") != 5 or fen.split(" ", 3)[2] not in _RIGHTS:
        fen = board.fen(en_passant="fen")
        tally.noncanonical += 1
    for name in ("best", "played"):
        if given.get(name):
            moves[name] = _legal(board, str(given[name]), f"{name} move")
    game = str(given["game"]).strip() if given.get("game") else None
    if game and (link := _GAME.match(game)):
        game = link[1]
    position = _hash(" ".join(fen.split(" ")[:4]))
    elos = [_number(given.get(name)) for name in ("mover_elo", "opponent_elo")]
    tally.both_elos += None not in elos
    ply = _number(given.get("ply"))
    return {
        "game_hash": _hash(f"game {game}") if game else position,
        "position_hash": position,
        "fen": fen,
        **moves,
        "eval_before": _float(given.get("eval_before")),
        "eval_after": _float(given.get("eval_after")),
        "mover_elo": elos[0],
        "opponent_elo": elos[1],
        "rating": _number(given.get("rating")),
        "judgment": given.get("judgment") or None,
        "game": game,
        "ply": board.ply() if ply is None or ply < 0 or (ply % 2 == 0) != board.turn else ply,
    }


def _board(fen: str) -> chess.Board:
    """`chess.Board(fen)`, which takes three times as long over the squares. ValueError for what is no FEN."""
    if not _PLAIN.fullmatch(fen):
        return chess.Board(fen)
    pieces, turn, castling, en_passant, halfmoves, fullmoves = fen.split(" ")
    ranks = pieces.translate(_RUNS).split("/")
    if [len(rank) for rank in ranks] != [8] * 8:
        return chess.Board(fen)  # which says what is wrong
    masks = dict.fromkeys("PNBRQKpnbrqk", 0)
    for square, letter in enumerate("".join(reversed(ranks))):
        if letter != ".":
            masks[letter] |= 1 << square
    board = chess.Board(None)
    board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings = (
        masks[letter] | masks[letter.lower()] for letter in "PNBRQK"
    )
    for colour, letters in ((chess.WHITE, "PNBRQK"), (chess.BLACK, "pnbrqk")):
        board.occupied_co[colour] = sum(masks[letter] for letter in letters)
    board.occupied = board.occupied_co[chess.WHITE] | board.occupied_co[chess.BLACK]
    board.turn = turn == "w"
    board.set_castling_fen(castling)
    board.ep_square = None if en_passant == "-" else chess.parse_square(en_passant)
    board.halfmove_clock, board.fullmove_number = int(halfmoves), max(int(fullmoves), 1)
    return board


def _puzzle(board: chess.Board, words: Sequence[str]) -> dict[str, str | None]:
    """Play a puzzle's first move on the board; its solution, whose first move is the best one."""
    if len(words) < 2:
        raise _BadRowError("a puzzle without a solution")
    _legal(board, words[0], "move of a puzzle", play=True)
    after = board.copy(stack=False)
    solution = [_legal(after, word, "move of a puzzle", play=True) for word in words[1:]]
    return {"best": solution[0], "line": " ".join(solution)}


def _legal(board: chess.Board, word: str, what: str, play: bool = False) -> str:
    """The UCI of a legal move in UCI or SAN. Raises _BadRowError."""
    for parse in (board.parse_uci, board.parse_san):
        try:
            move = parse(word)
        except ValueError:
            continue
        if move:
            if play:
                board.push(move)
            return move.uci()
    raise _BadRowError(f"illegal {what}: {word[:10]} in {board.fen()}")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _float(value: Any) -> float | None:
    """A finite number, or None."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None


def _number(value: Any) -> int | None:
    """A whole number that fits 32 bits, or None."""
    number = _float(value)
    return int(number) if number is not None and abs(number) < 1 << 31 else None


def verify(folder: Path, *, sample: int = 200, seed: int = 0) -> Verification:
    """Compare a dataset of positions with its report and check a seeded sample on python-chess's board."""
    recorded = DatasetReport.load(folder)
    path = folder / dataset.POSITIONS_FILE
    if not path.is_file():
        return Verification(0, 0, [f"{path.name} is missing"], "positions")
    if sha256_file(path) != recorded.games_sha256:
        return Verification(0, 0, [f"{path.name} is not the file that was written: its sha256 differs"], "positions")
    positions = Positions(folder)
    problems = []
    if len(positions) != recorded.plies:
        problems.append(f"{len(positions):,} positions where the report says {recorded.plies:,}")
    rng = generator(seed, "verify", recorded.identity)
    chosen = np.sort(rng.choice(len(positions), min(sample, len(positions)), replace=False))
    for row in positions.take(chosen, ["row", "fen", "best", "played", "position_hash"]).to_pylist():
        number, stored = row.pop("row"), row.pop("position_hash")
        try:
            if _row(row, Tally())["position_hash"] != stored:
                problems.append(f"position {number} has a hash that is not that of its FEN")
        except _BadRowError as bad:
            problems.append(f"position {number}: {bad}")
    return Verification(len(positions), len(chosen), problems, "positions")
