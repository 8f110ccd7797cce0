"""Training data as corpora of the store: what identifies a corpus, and datasets read as a stream."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chessreg.errors import BadInputError
from chessreg.games.datasets.dataset import convert_column_to_numpy

if TYPE_CHECKING:
    import pyarrow as pa

    from chessreg.encodings import Encoding
    from chessreg.models.corpus import MappedTexts
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task
    from store.corpora import Columns, CorpusWriter

CORPUS_VERSION = 1
"""Increased whenever the arrays made from the same datasets may change."""


@dataclass(frozen=True)
class TrainingData:
    """The datasets in one setting of a run. `report` is called with the current activity; it may raise to stop."""

    inputs: Inputs
    references: Sequence[str]
    field: str = "datasets"
    run_id: str | None = None
    report: Callable[[str], None] = lambda text: None

    @classmethod
    def from_task(cls, task: Task[Any, Any], references: Sequence[str], field: str = "datasets") -> TrainingData:
        """Return the data of a running task, which shows how many items are prepared."""
        return cls(task.inputs, references, field, task.run_id.hex, lambda text: task.progress(task.fraction, text))

    def open_corpus(
        self, description: Mapping[str, Any], columns: Columns, write: Callable[[CorpusWriter], None]
    ) -> dict[str, np.ndarray]:
        """Return the arrays that `write` makes of these datasets, mapped from files. `description` holds the other
        settings that determine them."""
        from store.corpora import open_corpus

        full_description = {"version": CORPUS_VERSION, "datasets": list(self.references), **description}
        for reference in self.references:
            self.inputs.items(
                reference, self.field
            )  # recorded as inputs of the run, also if another run made the corpus
        wait = "waiting for another run that prepares the same training data"
        return open_corpus(self.inputs.store, full_description, columns, write, self.run_id, lambda: self.report(wait))

    def open_labelled_positions(self) -> tuple[MappedTexts, MappedTexts]:
        """Return the FENs and best moves (UCI) of the distinct positions that have a best move, mapped from files.

        Raises BadInputError for games, and if no position has a best move.
        """
        from chessreg.models.corpus import MappedTexts

        def write(writer: CorpusWriter) -> None:
            is_repeated = self.find_repeated_positions(writer.folder / "hashes")
            for name in ("fen", "best"):
                writer.append(f"{name}_offsets", np.zeros(1, np.int64))
            for reference in self.references:
                if self.inputs.items(reference, self.field)[0].content == "games":
                    raise BadInputError("a dataset of games has no best moves", "give a dataset of positions")
                for table in self.iterate_new_positions(reference, ["fen", "best"], is_repeated):
                    labelled_rows = table.filter(table["best"].is_valid())
                    for name in ("fen", "best"):
                        texts = [text.encode() for text in labelled_rows[name].to_pylist()]
                        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
                        writer.append(f"{name}_offsets", writer.rows[name] + ends)
                        writer.append(name, np.frombuffer(b"".join(texts), np.uint8))
                    self.report(f"preparing positions: {writer.rows['fen_offsets'] - 1:,}")
            if not writer.rows["best"]:
                raise BadInputError("no position has a best move", "chessreg dataset show NAME")

        columns: Columns = dict.fromkeys(("fen", "best"), (np.uint8, ()))
        columns = {**columns, **{f"{name}_offsets": (np.int64, ()) for name in ("fen", "best")}}
        arrays = self.open_corpus({"content": "labelled positions"}, columns, write)
        return (MappedTexts(arrays["fen"], arrays["fen_offsets"]), MappedTexts(arrays["best"], arrays["best_offsets"]))

    def iterate_new_positions(
        self, reference: str, columns: Sequence[str], repeated_positions: RepeatedPositions
    ) -> Iterator[pa.Table]:
        """Yield these columns of the positions of one of the datasets that repeat no earlier position of any."""
        import pyarrow as pa

        items, part = self.inputs.positions(reference, self.field)
        for _, table in items.iterate_rows(part, columns):
            yield table.filter(pa.array(~repeated_positions.take(len(table))))

    def find_repeated_positions(self, scratch: Path) -> RepeatedPositions:
        """Return which positions of these datasets repeat an earlier one. `scratch` is a new file, removed again."""
        from chessreg.games.datasets.build import find_duplicates

        count = 0
        with scratch.open("wb") as file:
            for reference in self.references:
                items, part = self.inputs.items(reference, self.field)
                if items.content == "games":
                    continue
                for _, table in items.iterate_rows(part, ["position_hash"]):
                    file.write(convert_column_to_numpy(table["position_hash"]).tobytes())
                    count += len(table)
                    self.report(f"comparing positions: {count:,}")
        is_repeated = find_duplicates(scratch, count) if count else np.zeros(0, bool)
        scratch.unlink()
        return RepeatedPositions(is_repeated)


class RepeatedPositions:
    """The positions of a run's datasets that repeat an earlier one, read once from the first to the last."""

    def __init__(self, is_repeated: np.ndarray) -> None:
        self._repetitions, self._rows_read = is_repeated, 0

    def take(self, count: int) -> np.ndarray:
        """Return the answers for the next `count` positions, bool [count]."""
        self._rows_read += count
        return self._repetitions[self._rows_read - count : self._rows_read]


def identify_encoding(encoding: Encoding) -> str:
    """Return a digest of an encoding's vocabulary and of the source file of its class, which determine its tokens."""
    source = inspect.getsourcefile(type(encoding))
    parts = ["\x1f".join(encoding.vocabulary).encode(), Path(source).read_bytes() if source else b""]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
