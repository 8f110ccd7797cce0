"""What a dataset says about itself: the contents of its `dataset.json`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.reader import READER_VERSION

REPORT_FILE = "dataset.json"
GAMES_FILE = "games.parquet"
POSITIONS_FILE = "positions.parquet"
REJECTS_FILE = "rejects.tsv"


@dataclass(frozen=True)
class SourceFile:
    """A file that went in: its name without folders, the sha256 of its bytes as they lay on disk, and their number."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class DatasetReport:
    """Identity and counts. `rejected` and `skipped` map a reason to a number of games.

    `rejected` are bad games inside a good stream, listed in `rejects.tsv`; `skipped` are good games that do not belong
    here (variants, custom starts, no moves, fewer than `min_plies`). `duplicates` are games whose move list came
    before: they are kept, and marked in the column `duplicate`. `noncanonical` counts games whose SAN was rewritten,
    `result_mismatches` those whose Result tag and movetext disagree (the tag is taken unless it is `*`),
    `missing_results` those whose movetext ends without one, `cut` those that their source cuts short inside a word: the
    whole moves before it are kept. `notes` say how a source is laid out where it is no PGN. `salvaged` is why the
    stream ended early, or None.

    In a dataset of positions `games` are the distinct games that they are of (0: not known), `plies` the positions,
    `duplicates` those that came before, and `games_sha256` is that of `positions.parquet`.
    """

    identity: str
    reader_version: int
    filters: dict[str, int]
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
    cut: int = 0
    notes: list[str] = field(default_factory=list)
    content: str = "games"

    def save(self, folder: Path) -> None:
        """Write `dataset.json`."""
        (folder / REPORT_FILE).write_text(json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: Path) -> DatasetReport:
        """Read `dataset.json`. NotFoundError without one; BadInputError when it is not what `save` wrote."""
        path = folder / REPORT_FILE
        try:
            fields: dict[str, Any] = json.loads(path.read_text())
            sources = [SourceFile(**source) for source in fields.pop("sources")]
            return cls(sources=sources, **fields)
        except FileNotFoundError as error:
            raise NotFoundError(f"no dataset in {folder}", "chessreg dataset list") from error
        except (ValueError, TypeError, KeyError) as error:
            raise BadInputError(f"{path} is damaged: {error}", "add the dataset again") from error


def identity(digests: Sequence[str], filters: dict[str, int], **reader: Any) -> str:
    """What makes two datasets the same: the bytes of their sources in order, the filters and the reader's version.

    `reader`: another version than that of games, and what else tells that reader from others."""
    parts = {"sources": list(digests), "filters": filters, "reader": READER_VERSION, **reader}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class Tally:
    """Counts while a dataset is being made."""

    games: int = 0
    plies: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    noncanonical: int = 0
    result_mismatches: int = 0
    missing_results: int = 0
    both_elos: int = 0
    first_date: str | None = None
    last_date: str | None = None
    cut: int = 0

    def reject(self, reason: str) -> None:
        """Count a rejected game by what stands before the colon."""
        kind = reason.partition(":")[0]
        self.rejected[kind] = self.rejected.get(kind, 0) + 1

    def skip(self, reason: str) -> None:
        """Count a skipped game."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def add(self, other: Tally) -> None:
        """Take in the counts of a later block."""
        for name in ("games", "plies", "noncanonical", "result_mismatches", "missing_results", "both_elos", "cut"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.rejected, other.rejected), (self.skipped, other.skipped)):
            for reason, number in theirs.items():
                mine[reason] = mine.get(reason, 0) + number
        self.first_date = min(filter(None, (self.first_date, other.first_date)), default=None)
        self.last_date = max(filter(None, (self.last_date, other.last_date)), default=None)
