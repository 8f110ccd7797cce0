"""Training data as token ids: games, a stream of games, or positions, in memory or mapped from files.

Imports only numpy. A mapped corpus (`np.memmap`) may be larger than memory. Its rows are read with the system call
`pread`: reading a mapped page in random order would map up to 0.5 MB around each row (ext4, Linux 6.18), which takes 40
times as long and stays in the process's memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, overload

import numpy as np

IGNORED_LABEL = -100  # the label of padding, which cross_entropy skips
MOST_UNRELEASED_LENGTHS = 1 << 18


def release_pages(array: np.ndarray) -> None:
    """Unmap the pages of a mapped array. They remain in the system's file cache; an array in memory is unchanged."""
    mapping = getattr(array, "_mmap", None)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


class RowReader:
    """Reads rows of an array [n, …] in random order, from memory or from the file of a mapped array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self._file: IO[bytes] | None = None

    def __getstate__(self) -> np.ndarray:
        return self.array

    def __setstate__(self, array: np.ndarray) -> None:
        self.array, self._file = array, None

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the rows from `start` to `stop`, in bounds. Raises OSError."""
        file = self._open()
        if file is None:
            return self.array[start:stop]
        return self._interpret(self._read_bytes(file, start, stop - start))

    def take(self, items: np.ndarray) -> np.ndarray:
        """Return the rows at these places int64 [n], in bounds. Raises OSError."""
        file = self._open()
        if file is None:
            return self.array[items]
        return self._interpret(b"".join([self._read_bytes(file, item, 1) for item in items.tolist()]))

    def _open(self) -> IO[bytes] | None:
        """Return the file of a mapped array, None for an array in memory."""
        if self._file is None and getattr(self.array, "_mmap", None) is not None:
            path = Path(self.array.filename)  # type: ignore[attr-defined]
            self._file = path.open("rb", buffering=0)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        return self._file

    def _read_bytes(self, file: IO[bytes], start: int, rows: int) -> bytes:
        row_bytes = self.array.strides[0]
        return os.pread(file.fileno(), rows * row_bytes, self.array.offset + start * row_bytes)  # type: ignore[attr-defined]

    def _interpret(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, self.array.dtype).reshape(-1, *self.array.shape[1:])


class Corpus:
    """Games as token ids below `vocab_size`: `tokens` uint8 [n], game i at offsets[i]:offsets[i + 1], int64. Games
    begin with `;`."""

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray, vocab_size: int = 32) -> None:
        self.tokens, self.offsets, self.vocab_size = tokens, offsets, vocab_size
        self._reader, self._unreleased_lengths = RowReader(tokens), 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def compute_lengths(self, items: np.ndarray) -> np.ndarray:
        """Return the tokens of each of these items, int64 [n] for an index array int64 [n]."""
        self._unreleased_lengths += len(items)
        if self._unreleased_lengths > MOST_UNRELEASED_LENGTHS:
            self._unreleased_lengths = 0
            release_pages(self.offsets)
        return self.offsets[items + 1] - self.offsets[items]

    def has_rows(self, length: int) -> bool:
        """Return whether all items together have at least `length` tokens."""
        return len(self) > 0 and int(self.offsets[-1]) - int(self.offsets[0]) >= length

    def row(self, games: Sequence[int], limit: int) -> np.ndarray:
        """Return the concatenated games, cut at `limit` tokens."""
        return np.concatenate([self._reader.read(start, stop) for start, stop in map(self.find_span, games)])[:limit]

    def find_span(self, item: int) -> tuple[int, int]:
        """Return the first token of an item, and the one after its last."""
        return int(self.offsets[item]), int(self.offsets[item + 1])

    def stream(self, length: int, games: int = 1000) -> TokenStream:
        """Return the concatenated games cut into items of `length` tokens, regardless of the borders between games.

        Of every `games` games, the remainder is dropped, as in Davis's train-chess-gpt.py.
        """
        edges = np.append(self.offsets[:-1:games], self.offsets[-1:]).astype(np.int64)
        return TokenStream(self.tokens, edges, length, self.vocab_size)


class TokenStream(Corpus):
    """Tokens in items of `length`, regardless of the borders between games: those of group i begin at edges[i], and its
    remainder before edges[i + 1] is dropped. `edges` int64 [groups + 1].
    """

    def __init__(self, tokens: np.ndarray, edges: np.ndarray, length: int, vocab_size: int = 32) -> None:
        self.tokens, self.edges, self.length, self.vocab_size = tokens, edges, length, vocab_size
        self.first_items = np.concatenate([[0], np.cumsum(np.diff(edges) // length)])
        self._reader = RowReader(tokens)

    def __len__(self) -> int:
        return int(self.first_items[-1])

    def compute_lengths(self, items: np.ndarray) -> np.ndarray:
        return np.full(len(items), self.length, np.int64)

    def has_rows(self, length: int) -> bool:
        return len(self) > 0

    def find_span(self, item: int) -> tuple[int, int]:
        group = int(np.searchsorted(self.first_items, item, "right")) - 1
        start = int(self.edges[group]) + (item - int(self.first_items[group])) * self.length
        return start, start + self.length


class PositionCorpus:
    """Positions as token ids, uint8 [n, 77], with the action to predict, int16 [n]; or followed by an action, uint16
    [n, 78], with the bucket of its return."""

    vocab_size = 0  # unused: a model of positions has a fixed vocabulary

    def __init__(self, tokens: np.ndarray, actions: np.ndarray) -> None:
        self.tokens, self.actions = tokens, actions
        self._tokens, self._actions = RowReader(tokens), RowReader(actions)

    def __len__(self) -> int:
        return len(self.tokens)

    def compute_lengths(self, items: np.ndarray) -> np.ndarray:
        """Return the tokens of each of these positions, int64 [n]."""
        return np.full(len(items), self.tokens.shape[1], np.int64)

    def has_rows(self, length: int) -> bool:
        """Return whether there is a position."""
        return len(self) > 0

    def take(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens int64 [n, 77 or 78] and the labels int64 [n, 1] of these positions."""
        return self._tokens.take(items).astype(np.int64), self._actions.take(items)[:, None].astype(np.int64)


class MappedTexts(Sequence[str]):
    """Texts in UTF-8: `data` uint8 [n], text i at offsets[i]:offsets[i + 1]."""

    def __init__(self, data: np.ndarray, offsets: np.ndarray) -> None:
        self._data, self._offsets = RowReader(data), RowReader(offsets)

    def __len__(self) -> int:
        return len(self._offsets.array) - 1

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(f"text {number} of {len(self)}")
        start, stop = self._offsets.read(number, number + 2).tolist()
        return self._data.read(start, stop).tobytes().decode()


def collate_rows(corpus: Corpus | PositionCorpus, rows: list[list[int]], limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels, int64 [row, length - 1], padded on the right; the label of padding is IGNORED_LABEL.

    For positions: inputs [row, 77 or 78] and labels [row, 1].
    """
    if isinstance(corpus, PositionCorpus):
        return corpus.take(np.array(rows)[:, 0])
    cut_rows = [corpus.row(games, limit) for games in rows]
    width = max(map(len, cut_rows))
    inputs = np.zeros((len(cut_rows), width - 1), np.int64)
    labels = np.full((len(cut_rows), width - 1), IGNORED_LABEL)
    for i, row in enumerate(cut_rows):
        inputs[i, : len(row) - 1], labels[i, : len(row) - 1] = row[:-1], row[1:]
    return inputs, labels
