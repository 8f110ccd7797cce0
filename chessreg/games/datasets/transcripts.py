"""Games as rows of a table: transcript CSVs and Parquet files of games.

Karvonen's games are published as transcript CSVs (Karvonen 2024, section 2.1). A row has a column
`transcript` (`1.e4 e5 2.Nf3` or UCI moves, optionally after a `;`) and usually WhiteElo, BlackElo and Result. Columns
named like PGN tags are read as tags. Rows keep their order.

Two layouts truncate games. In the files for probes, every transcript is cut to the same number of characters (365). In
the training corpus, every row is 1,024 characters of games, `;game;game;…`, the last of which is truncated. The word at
such a cut is dropped even if it is a move: `O-O` may have been `O-O-O`. The moves before it are kept as a game and
counted in the report as cut; its result is `*` unless the row contains one.

A Parquet file of games has a column `transcript`, or `movetext` with the PGN of a game (Lichess's files on Hugging
Face), and columns named like PGN tags in any case.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Iterator
from datetime import date
from typing import Any

import chess

from chessreg.errors import BadInputError, get_first_line, reraise_lack_of_memory
from chessreg.games.datasets import movetext
from chessreg.games.datasets.borders import RawGame, decode_text
from chessreg.games.datasets.remote import InputFile
from chessreg.games.datasets.sources import BLOCK_BYTES, BrokenStreamError, GameSource

TRANSCRIPT_COLUMN = "transcript"
PARQUET, PARQUET_MOVES, BATCH_ROWS = b"PAR1", (TRANSCRIPT_COLUMN, "movetext"), 2000
PLAYERS = ("White", "Black", "WhiteElo", "BlackElo")
TAGS = frozenset(
    (*PLAYERS, "Result", "Event", "Site", "Date", "UTCDate", "ECO", "TimeControl", "Termination", "Variant", "FEN")
)
_TAG_OF = {name.lower(): name for name in TAGS}
_SAMPLE_BYTES = 1 << 18  # bytes of text that determine the layout
_MAX_RECORD_BYTES = 1 << 26
_UCI = re.compile(r"[a-h][1-8][a-h][1-8][qrbnQRBN]?")
_PREFIX = re.compile(r"(1-0|0-1|1/2-1/2|\*)#")  # the author's "results" variant writes the result before the moves


def open_game_source(path: InputFile) -> GameSource:
    """Return a file as a source of games: Parquet, transcript CSV if its first line has that column, else PGN.

    Raises the errors of `GameSource`, and BadInputError for a CSV without that column.
    """
    columns = read_parquet_columns(path) if path.is_file() else None
    if columns is not None and has_game_columns(columns):
        return ParquetGames(path, columns)
    source = GameSource(path)
    head = read_head(source)
    if TRANSCRIPT_COLUMN in parse_header(head):
        return TranscriptSource(path, head)
    if ".csv" in path.suffixes and not head.lstrip().startswith(b"["):
        first_line = ",".join(parse_header(head))[:120] or "empty"
        hint = (
            f"a column fen is of positions, {TRANSCRIPT_COLUMN} of games; without a header a row is FEN, moves, rating"
        )
        raise BadInputError(
            f"{path}: row 1 has neither a column fen or {TRANSCRIPT_COLUMN} nor a FEN: {first_line}", hint
        )
    return GameSource(path)


class TranscriptSource(GameSource):
    """A transcript CSV (plain, zst, gz, bz2, or the only file in a zip)."""

    def __init__(self, path: InputFile, head: bytes | None = None) -> None:
        """Raises the errors of `GameSource`, and BadInputError for a CSV of match results, whose transcripts differ."""
        super().__init__(path)
        head = read_head(GameSource(path)) if head is None else head
        self.columns = parse_header(head)
        if TRANSCRIPT_COLUMN not in self.columns:
            raise BadInputError(f"{path} has no column {TRANSCRIPT_COLUMN!r}")
        if "player_one" in self.columns:
            raise BadInputError(
                f"{path} holds match results of chess_gpt_eval", f"chessreg import results {shlex.quote(str(path))}"
            )
        full_rows = head[: head.rfind(b"\n") + 1] or head
        rows = [dict(zip(self.columns, row, strict=False)) for row in csv.reader(io.StringIO(decode_text(full_rows)))][
            1:
        ]
        texts = [row[TRANSCRIPT_COLUMN] for row in rows if row.get(TRANSCRIPT_COLUMN)]
        lengths = {len(text) for text in texts}
        self.length = lengths.pop() if len(texts) > 1 and len(lengths) == 1 else None
        self.bins = _describe_bins(rows)
        self.has_several_games = any(";" in text[1:] for text in texts)

    @property
    def notes(self) -> list[str]:
        if self.length is None:
            return ["transcripts, one a row", *self.bins]
        if self.has_several_games:
            note = "the last game of a row is cut: its whole moves are kept, with the result *"
            return [f"rows of {self.length:,} characters, several games each; {note}"]
        return [f"transcripts cut to {self.length:,} characters: the whole moves of each are kept", *self.bins]

    def blocks(self) -> Iterator[bytes]:
        """Yield blocks of complete records, without the header. Raises BrokenStreamError as
        `GameSource.blocks` does."""
        buffer, header, full_bytes = bytearray(), True, BLOCK_BYTES
        try:
            for chunk in self._iterate_decoded():
                buffer += chunk
                if header and b"\n" in buffer:
                    del buffer[: buffer.index(b"\n") + 1]
                    header = False
                if not header and len(buffer) >= full_bytes:
                    cut_place = _find_record_end(buffer)
                    if not cut_place and len(buffer) > _MAX_RECORD_BYTES:
                        problem = (
                            "a quote that is never closed" if buffer.count(b'"') % 2 else "a row of more than 64 MiB"
                        )
                        raise BadInputError(f"{self.path} has {problem}", "is it a CSV?")
                    if cut_place:
                        yield bytes(buffer[:cut_place])
                        del buffer[:cut_place]
                    full_bytes = BLOCK_BYTES if cut_place else len(buffer) + BLOCK_BYTES
        except BrokenStreamError as error:
            record_end = 0 if header else _find_record_end(buffer)
            if record_end:
                yield bytes(buffer[:record_end])
            raise BrokenStreamError(str(error), bytes(buffer[record_end:])) from error
        if buffer and not header:
            yield bytes(buffer)

    @property
    def first_line(self) -> int:
        return 2

    def split(self, block: bytes, first_line: int) -> Iterator[RawGame]:
        """Yield the games of a block of complete records, with the first line of each record."""
        reader = csv.reader(io.StringIO(decode_text(block)))
        place = self.columns.index(TRANSCRIPT_COLUMN)
        line = first_line
        try:
            for row in reader:
                transcript = row[place] if len(row) > place else ""
                tags = "".join(
                    f'[{name} "{format_tag_value(value)}"]\n'
                    for name, value in zip(self.columns, row, strict=False)
                    if name in TAGS and value
                )
                yield from split_row(transcript, tags, line, self.length)
                line = first_line + reader.line_num
        except csv.Error as error:
            raise BadInputError(f"{self.path}, line {line}: {error}", "is it a CSV?") from error


def split_row(transcript: str, tags: str, line: int, length: int | None = None) -> Iterator[RawGame]:
    """Yield the games of one transcript; the last one is truncated if the transcript has `length` characters.

    A result is appended to each game, so that a reader sees where it ends.
    """
    is_cut = len(transcript) == length
    pieces = transcript.removeprefix(";").split(";")
    for number, piece in enumerate(pieces, 1):
        is_last = number == len(pieces)
        if is_last and number > 1 and not piece.strip():
            continue  # the row ends with a delimiter
        prefix = _PREFIX.match(piece)
        moves = piece[prefix.end() :] if prefix else piece
        is_broken = is_cut and is_last
        if is_broken:
            moves = moves.rpartition(" ")[0]
        moves = to_san(moves)
        own_tags = tags if len(pieces) == 1 else ""
        result = prefix[1] if prefix else find_result(own_tags)
        yield RawGame(own_tags, f"{' '.join(moves.split())} {result}".strip(), line, is_broken)


def to_san(transcript: str) -> str:
    """Return a transcript of UCI moves in SAN, up to the first illegal move; any other transcript unchanged.

    >>> to_san("e2e4 e7e5 g1f3"), to_san("1.e4 e5")
    ('e4 e5 Nf3', '1.e4 e5')
    """
    words = transcript.split()
    if not all(map(_UCI.fullmatch, words[:2])):
        return transcript
    board, sans = chess.Board(), list[str]()
    for number, word in enumerate(words):
        try:
            sans.append(board.san_and_push(board.parse_uci(word.lower())))
        except ValueError:
            return " ".join([*sans, *words[number:]])
    return " ".join(sans)


def read_parquet_columns(path: InputFile) -> list[str] | None:
    """Return the column names of a Parquet file, or None if it is not Parquet. Raises BadInputError if it
    is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        head = file.read(len(PARQUET))
    if head != PARQUET and not (head and path.suffix.lower() == ".parquet"):
        return None
    try:
        with path.open("rb") as file:
            names: list[str] = pq.read_schema(file).names
    except (pa.ArrowException, OSError, ValueError) as error:
        reraise_lack_of_memory(error)
        raise BadInputError(f"{path} is a damaged Parquet: {get_first_line(error)}", "get the file again") from error
    return names


def has_game_columns(columns: list[str]) -> bool:
    """Return whether these are the columns of a Parquet file of games."""
    lower = {name.lower() for name in columns}
    return "fen" not in lower and not lower.isdisjoint(PARQUET_MOVES)


class ParquetGames(GameSource):
    """A Parquet file of games. A block is lines of JSON, one per row; the line of a game is its row."""

    def __init__(self, path: InputFile, columns: list[str]) -> None:
        super().__init__(path, text=False)
        self.moves = next(name for name in columns if name.lower() in PARQUET_MOVES)
        self.tags = {name: _TAG_OF[name.lower()] for name in columns if name.lower() in _TAG_OF}

    @property
    def notes(self) -> list[str]:
        return [f"Parquet, a game per row: moves in {self.moves}, tags {', '.join(self.tags.values()) or 'none'}"]

    def blocks(self) -> Iterator[bytes]:
        """Yield blocks of rows. Raises BrokenStreamError if the file cannot be read completely."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        done_bytes = 0
        try:
            with self._read_copy() as path:
                parquet = pq.ParquetFile(path)
                for batch in parquet.iter_batches(BATCH_ROWS, columns=[self.moves, *self.tags]):
                    rows = zip(*(batch[name].to_pylist() for name in (self.moves, *self.tags)), strict=True)
                    yield b"".join(json.dumps([_format_value(cell) for cell in row]).encode() + b"\n" for row in rows)
                    done_bytes += len(batch)
                    self.bytes_done = self.bytes_total * done_bytes // parquet.metadata.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            raise BrokenStreamError(get_first_line(error), b"") from error

    def split(self, block: bytes, first_line: int) -> Iterator[RawGame]:
        for line, row in enumerate(block.splitlines(), first_line):
            moves, *values = json.loads(row)
            pairs = zip(self.tags.values(), values, strict=True)
            tags = "".join(f'[{name} "{format_tag_value(value)}"]\n' for name, value in pairs if value)
            if self.moves.lower() == TRANSCRIPT_COLUMN:
                yield from split_row(moves, tags, line)
            else:
                has_result = moves.rpartition(" ")[2].strip() in movetext.RESULTS
                yield RawGame(tags, moves if has_result else f"{moves} {find_result(tags)}", line)


def _format_value(value: Any) -> str:
    """Return a value of a row as the text of a tag or of moves."""
    return "" if value is None else value.strftime("%Y.%m.%d") if isinstance(value, date) else str(value)


def read_head(source: GameSource) -> bytes:
    """Return the first text of a source, without a byte order mark; less if the stream breaks."""
    head = bytearray()
    try:
        for chunk in source._iterate_decoded():
            head += chunk
            if len(head) >= _SAMPLE_BYTES:
                break
    except BrokenStreamError:
        pass
    return bytes(head.removeprefix(b"\xef\xbb\xbf"))


def parse_header(head: bytes) -> list[str]:
    """Return the names in the first line, [] if it is not a line of a CSV."""
    try:
        return [name.strip() for name in next(csv.reader([head.split(b"\n", 1)[0].decode("utf-8")]), [])]
    except (UnicodeDecodeError, csv.Error):
        return []


def _find_record_end(buffer: bytearray) -> int:
    """Return where the last complete record ends: at a line's end outside a quoted field; 0 if there is no such line
    end."""
    end = len(buffer)
    quotes = buffer.count(b'"')
    while (place := buffer.rfind(b"\n", 0, end)) >= 0:
        quotes -= buffer.count(b'"', place, end)
        if quotes % 2 == 0:
            return place + 1
        end = place
    return 0


def format_tag_value(value: str) -> str:
    """Return a cell as a tag's value. pandas writes the ratings of a column with gaps as 1500.0."""
    text = value.strip().replace("\\", "/").replace('"', "'").replace("\n", " ")
    return text.removesuffix(".0") if re.fullmatch(r"\d+\.0", text) else text


def find_result(tags: str) -> str:
    """Return the result in the text of a game's tags, `*` without one."""
    match = re.search(r'\[Result "([^"]*)"\]', tags)
    return (movetext.normalize_result(match[1]) if match else None) or "*"


def _describe_bins(rows: list[dict[str, str]]) -> list[str]:
    """Return the author's rating classes, as named in his file: quantiles of both halves of his games."""
    scores = []
    for side in ("White", "Black"):
        pairs = {(row.get(f"{side}EloBinIndex") or "", row.get(f"{side}EloBinned") or "") for row in rows}
        pairs = {(index, edges) for index, edges in pairs if index and edges}
        if pairs:
            scores.append(f"{side}Elo classes of the file: " + ", ".join(f"{i} {e}" for i, e in sorted(pairs)))
    return scores
