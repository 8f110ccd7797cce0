"""Transcript CSVs, the form in which Karvonen's games are published (specification of Karvonen 2024, 1.3 and 1.4).

A row has a column `transcript` (`1.e4 e5 2.Nf3`, a `;` before it or not) and mostly WhiteElo, BlackElo and Result;
columns that are called as PGN tags are read as those. Rows keep their order.

Two layouts cut games short. In the files that probes are made from every transcript is cut to the same number of
characters (365). In the training corpus every row is 1,024 characters of whole games, `;game;game;…`, the last of
which is cut. The word at such a cut is dropped even where it happens to be a move: `O-O` may have been `O-O-O`, and
nothing labelled depends on it. What comes before it is kept as a game and counted in the report as cut; its result is
`*` unless the row tells it.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from chessreg.errors import BadInputError
from chessreg.games import movetext
from chessreg.games.borders import RawGame, decode
from chessreg.games.sources import BLOCK, BrokenStreamError, Source

COLUMN = "transcript"
PLAYERS = ("White", "Black", "WhiteElo", "BlackElo")
TAGS = frozenset(
    (*PLAYERS, "Result", "Event", "Site", "Date", "UTCDate", "ECO", "TimeControl", "Termination", "Variant", "FEN")
)
_SAMPLE = 1 << 18  # bytes of text by which the layout is recognised
_LONGEST_RECORD = 1 << 26
_PREFIX = re.compile(r"(1-0|0-1|1/2-1/2|\*)#")  # the author's "results" variant writes the result before the moves


def open_source(path: Path) -> Source:
    """The file as a source of games: a transcript CSV if its first line has that column, else PGN.

    Raises what `Source` does, and BadInputError for a CSV without that column.
    """
    source = Source(path)
    head = head_of(source)
    if COLUMN in columns_of(head):
        return TranscriptSource(path, head)
    if ".csv" in path.suffixes and not head.lstrip().startswith(b"["):
        first = ",".join(columns_of(head))[:120] or "empty"
        hint = f"a column fen is of positions, {COLUMN} of games; without a header a row is FEN, moves, rating"
        raise BadInputError(f"{path}: row 1 names no column fen or {COLUMN}, and is no FEN: {first}", hint)
    return Source(path)


class TranscriptSource(Source):
    """A transcript CSV (plain, zst, gz, bz2, or alone in a zip)."""

    def __init__(self, path: Path, head: bytes | None = None) -> None:
        """Raises what `Source` does, and BadInputError for a CSV of matches, which has transcripts of another kind."""
        super().__init__(path)
        head = head_of(Source(path)) if head is None else head
        self.columns = columns_of(head)
        if COLUMN not in self.columns:
            raise BadInputError(f"{path} has no column {COLUMN!r}")
        if "player_one" in self.columns:
            raise BadInputError(
                f"{path} holds match results of chess_gpt_eval", f"chessreg import results {shlex.quote(str(path))}"
            )
        whole = head[: head.rfind(b"\n") + 1] or head
        rows = [dict(zip(self.columns, row, strict=False)) for row in csv.reader(io.StringIO(decode(whole)))][1:]
        texts = [row[COLUMN] for row in rows if row.get(COLUMN)]
        lengths = {len(text) for text in texts}
        self.length = lengths.pop() if len(texts) > 1 and len(lengths) == 1 else None
        self.bins = _bins(rows)
        self.several = any(";" in text[1:] for text in texts)

    @property
    def notes(self) -> list[str]:
        if self.length is None:
            return ["transcripts, one a row", *self.bins]
        if self.several:
            kept = "the last game of a row is cut: its whole moves are kept, with the result *"
            return [f"rows of {self.length:,} characters, several games each; {kept}"]
        return [f"transcripts cut to {self.length:,} characters: the whole moves of each are kept", *self.bins]

    def blocks(self) -> Iterator[bytes]:
        """Blocks of whole records, without the header. Raises BrokenStreamError as `Source.blocks` does."""
        buffer, header, full = bytearray(), True, BLOCK
        try:
            for chunk in self._decoded():
                buffer += chunk
                if header and b"\n" in buffer:
                    del buffer[: buffer.index(b"\n") + 1]
                    header = False
                if not header and len(buffer) >= full:
                    cut = _whole_records(buffer)
                    if not cut and len(buffer) > _LONGEST_RECORD:
                        what = "a quote that is never closed" if buffer.count(b'"') % 2 else "a row of more than 64 MiB"
                        raise BadInputError(f"{self.path} has {what}", "is it a CSV?")
                    if cut:
                        yield bytes(buffer[:cut])
                        del buffer[:cut]
                    full = BLOCK if cut else len(buffer) + BLOCK
        except BrokenStreamError as error:
            whole = 0 if header else _whole_records(buffer)
            if whole:
                yield bytes(buffer[:whole])
            raise BrokenStreamError(str(error), bytes(buffer[whole:])) from error
        if buffer and not header:
            yield bytes(buffer)

    @property
    def first_line(self) -> int:
        return 2

    def split(self, block: bytes, first_line: int) -> Iterator[RawGame]:
        """The games of a block of whole records, with the line on which each one's record begins."""
        reader = csv.reader(io.StringIO(decode(block)))
        place = self.columns.index(COLUMN)
        line = first_line
        try:
            for row in reader:
                transcript = row[place] if len(row) > place else ""
                tags = "".join(
                    f'[{name} "{_tag(value)}"]\n'
                    for name, value in zip(self.columns, row, strict=False)
                    if name in TAGS and value
                )
                yield from self._games(transcript, tags, line)
                line = first_line + reader.line_num
        except csv.Error as error:
            raise BadInputError(f"{self.path}, line {line}: {error}", "is it a CSV?") from error

    def _games(self, transcript: str, tags: str, line: int) -> Iterator[RawGame]:
        """The games of one transcript. A result ends each, so that a reader sees where it ends."""
        cut = self.length is not None and len(transcript) == self.length
        pieces = transcript.removeprefix(";").split(";")
        for number, piece in enumerate(pieces, 1):
            last = number == len(pieces)
            if last and number > 1 and not piece.strip():
                continue  # the row ends with a delimiter
            prefix = _PREFIX.match(piece)
            moves = piece[prefix.end() :] if prefix else piece
            broken = cut and last
            if broken:
                moves = moves.rpartition(" ")[0]
            own = tags if len(pieces) == 1 else ""
            result = prefix[1] if prefix else _result(own)
            yield RawGame(own, f"{' '.join(moves.split())} {result}".strip(), line, broken)


def head_of(source: Source) -> bytes:
    """The first text of a source, without a byte order mark; what there is of it where the stream breaks."""
    head = bytearray()
    try:
        for chunk in source._decoded():
            head += chunk
            if len(head) >= _SAMPLE:
                break
    except BrokenStreamError:
        pass
    return bytes(head.removeprefix(b"\xef\xbb\xbf"))


def columns_of(head: bytes) -> list[str]:
    """The names in the first line, [] where it is no line of a CSV."""
    try:
        return [name.strip() for name in next(csv.reader([head.split(b"\n", 1)[0].decode("utf-8")]), [])]
    except (UnicodeDecodeError, csv.Error):
        return []


def _whole_records(buffer: bytearray) -> int:
    """Where the last whole record ends, 0 if nowhere: at a line's end that no quoted field spans."""
    end = len(buffer)
    quotes = buffer.count(b'"')
    while (place := buffer.rfind(b"\n", 0, end)) >= 0:
        quotes -= buffer.count(b'"', place, end)
        if quotes % 2 == 0:
            return place + 1
        end = place
    return 0


def _tag(value: str) -> str:
    """A cell as a tag's value; pandas writes the ratings of an incomplete column as 1500.0."""
    text = value.strip().replace("\\", "/").replace('"', "'").replace("\n", " ")
    return text.removesuffix(".0") if re.fullmatch(r"\d+\.0", text) else text


def _result(tags: str) -> str:
    match = re.search(r'\[Result "([^"]*)"\]', tags)
    return (movetext.result(match[1]) if match else None) or "*"


def _bins(rows: list[dict[str, str]]) -> list[str]:
    """The author's classes by rating, as his file names them: quantiles of both halves of his games."""
    scores = []
    for side in ("White", "Black"):
        pairs = {(row.get(f"{side}EloBinIndex") or "", row.get(f"{side}EloBinned") or "") for row in rows}
        pairs = {(index, edges) for index, edges in pairs if index and edges}
        if pairs:
            scores.append(f"{side}Elo classes of the file: " + ", ".join(f"{i} {e}" for i, e in sorted(pairs)))
    return scores
