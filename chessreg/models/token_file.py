"""Token files: games as token ids, and held-out positions with their legal moves, for machines without python-chess.

`chessreg dataset export --token-file` writes them. A token file is an .npz archive (zip members compressed with
deflate, about 160 bytes per game of PGN characters), which `numpy.load` reads without other packages. Its arrays:

    header                                            uint8 [bytes]: UTF-8 JSON with the fields below
    tokens, lengths                                   uint8 [tokens], int32 [games]: the training games end to end, and
                                                      the number of tokens of each
    heldout_tokens, heldout_lengths                   the same of games that are not trained on
    position_item, position_length                    int32 [positions]: the held-out game of a position, and how many
                                                      of its tokens come before the move
    answer_count, answer_length, answer_tokens        int32 [positions], uint8 [moves], uint16 [tokens]: the number of
                                                      legal moves in each position; the number of tokens of each move;
                                                      their tokens as the model must write them, end of move included
    spelling_count, spelling_length, spelling_tokens  the same of all texts that are read as a legal move, without the
                                                      end of the move and without `ignored_ids`

Header: `format`, `version`; `encoding`; `size` and `answer_size`, the numbers of ids that are read and written;
`stop_ids`, which end a written move (none: it ends with its last square); `ignored_ids`, which do not count in a
written move (`x`, `-`, `+` and `#` in SAN); `max_move_tokens`; `source`, which names the datasets and counts games.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from chessreg.errors import BadInputError, NotFoundError, get_first_line, reraise_lack_of_memory
from chessreg.noise import Stream, generator

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.games.datasets.dataset import Games

FORMAT, VERSION = "chessreg-tokens", 1
MAX_UNPACKED_FACTOR = 1_100  # of a zip; a header with a larger array is damaged
ARRAYS = {
    "tokens": np.uint8, "lengths": np.int32, "heldout_tokens": np.uint8, "heldout_lengths": np.int32,
    "position_item": np.int32, "position_length": np.int32,
    "answer_count": np.int32, "answer_length": np.uint8, "answer_tokens": np.uint16,
    "spelling_count": np.int32, "spelling_length": np.uint8, "spelling_tokens": np.uint16,
}  # fmt: skip
BATCH_GAMES = 10_000
IGNORED_CHARACTERS = "x-+#"  # characters that python-chess ignores in SAN
Ids = tuple[int, ...]


@dataclass(frozen=True)
class HeldoutPosition:
    """A held-out position: the tokens before the move, the legal moves as the model must write them, and all their
    spellings without ignored ids."""

    prompt: Ids
    answers: list[Ids]
    spellings: frozenset[Ids]


@dataclass(frozen=True, eq=False)
class TokenFile:
    """The contents of a token file; the module's docstring describes the arrays."""

    encoding: str
    size: int
    answer_size: int
    stop_ids: Ids
    ignored_ids: Ids
    max_move_tokens: int
    tokens: np.ndarray
    lengths: np.ndarray
    heldout_tokens: np.ndarray
    heldout_lengths: np.ndarray
    position_item: np.ndarray
    position_length: np.ndarray
    answer_count: np.ndarray
    answer_length: np.ndarray
    answer_tokens: np.ndarray
    spelling_count: np.ndarray
    spelling_length: np.ndarray
    spelling_tokens: np.ndarray
    source: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the contents of the token file at `path`.

        Raises NotFoundError for a missing file, BadInputError for one that is damaged or not a token file.
        """
        if not path.exists():
            raise NotFoundError(f"{path} does not exist", "chessreg dataset export DATASET FILE --token-file")
        try:
            with np.load(path, allow_pickle=False) as archive:
                header = json.loads(archive["header"].tobytes())
                if header.pop("format") != FORMAT or header.pop("version") != VERSION:
                    raise ValueError(f"it is not a {FORMAT} file of version {VERSION}")
                header |= {name: tuple(header[name]) for name in ("stop_ids", "ignored_ids")}
                content = cls(**header, **{name: archive[name] for name in ARRAYS})
            content._check()
        except Exception as error:  # damage can raise nearly anything in zipfile, its decompressors and numpy
            reraise_lack_of_memory(error, MAX_UNPACKED_FACTOR * path.stat().st_size)
            hint = "write it again: chessreg dataset export DATASET FILE --token-file"
            raise BadInputError(f"{path} is damaged or not a token file: {get_first_line(error)}", hint) from error
        return content

    def write(self, file: IO[bytes]) -> None:
        """Write the file's bytes, which depend on the contents alone."""
        own_names = {each.name for each in fields(self)} - ARRAYS.keys()
        header = {"format": FORMAT, "version": VERSION, **{name: getattr(self, name) for name in sorted(own_names)}}
        arrays = {name: getattr(self, name) for name in ARRAYS}
        np.savez_compressed(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)

    def _check(self) -> None:
        """Raise ValueError unless types, lengths and ids agree."""
        for name, dtype in ARRAYS.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != 1 or (dtype is np.int32 and array.size and array.min() < 0):
                raise ValueError(f"its array {name} is not one-dimensional {np.dtype(dtype)} from 0 on")
        for total, counts in (
            (len(self.tokens), self.lengths),
            (len(self.heldout_tokens), self.heldout_lengths),
            (len(self.answer_length), self.answer_count),
            (len(self.answer_tokens), self.answer_length),
            (len(self.spelling_length), self.spelling_count),
            (len(self.spelling_tokens), self.spelling_length),
        ):
            if total != int(counts.sum(dtype=np.int64)):
                raise ValueError("its lengths do not add up to its arrays")
        for ids, size in (
            (self.tokens, self.size),
            (self.heldout_tokens, self.size),
            (self.answer_tokens, self.answer_size),
            (self.spelling_tokens, self.answer_size),
        ):
            if ids.size and int(ids.max()) >= size:
                raise ValueError(f"it has token {int(ids.max())}, the vocabulary has {size}")
        parallel = (self.position_length, self.answer_count, self.spelling_count)
        if any(len(array) != len(self.position_item) for array in parallel):
            raise ValueError("its arrays of positions differ in length")
        if len(self.position_item):
            if int(self.position_item.max()) >= len(self.heldout_lengths):
                raise ValueError("a position belongs to a game that the file does not contain")
            if (self.position_length > self.heldout_lengths[self.position_item]).any():
                raise ValueError("a position is beyond the end of its game")

    def positions(self, longest: int, count: int | None = None) -> list[HeldoutPosition]:
        """Return the first `count` positions (None: all) whose prompt and move fit into `longest` tokens."""
        starts = np.cumsum(self.heldout_lengths, dtype=np.int64) - self.heldout_lengths
        fitting = np.flatnonzero(self.position_length + self.max_move_tokens <= longest + 1)[:count]
        answers = _split_groups(self.answer_count, self.answer_length, self.answer_tokens, fitting)
        spellings = _split_groups(self.spelling_count, self.spelling_length, self.spelling_tokens, fitting)
        positions = []
        for number, own_answers, texts in zip(fitting.tolist(), answers, spellings, strict=True):
            begin = int(starts[self.position_item[number]])
            prompt = self.heldout_tokens[begin : begin + int(self.position_length[number])]
            positions.append(HeldoutPosition(tuple(prompt.tolist()), own_answers, frozenset(texts)))
        return positions

    def is_legal(self, position: HeldoutPosition, ids: Sequence[int]) -> bool:
        """Return whether a model that writes `ids` after the prompt writes a legal move.

        Without stop ids, a legal move at the beginning of `ids` counts.
        """
        if self.stop_ids:
            end = next((place for place, token in enumerate(ids) if token in self.stop_ids), len(ids))
            return tuple(token for token in ids[:end] if token not in self.ignored_ids) in position.spellings
        return any(tuple(ids[:end]) in position.spellings for end in range(1, len(ids) + 1))


def _split_groups(
    counts: np.ndarray, lengths: np.ndarray, tokens: np.ndarray, groups: np.ndarray
) -> Iterator[list[Ids]]:
    """Yield the texts of each of these `groups`: group i has counts[i] texts, text j has lengths[j] tokens."""
    group_starts = np.cumsum(counts, dtype=np.int64) - counts
    ends = np.cumsum(lengths, dtype=np.int64)
    for group in groups.tolist():
        texts = range(int(group_starts[group]), int(group_starts[group] + counts[group]))
        yield [tuple(tokens[ends[text] - lengths[text] : ends[text]].tolist()) for text in texts]


def export_token_file(
    path: Path,
    encoding: Encoding,
    games: Games,
    rows: np.ndarray,
    heldout: Games,
    heldout_rows: np.ndarray,
    *,
    most: int | None,
    most_heldout: int,
    positions: int,
    source: Mapping[str, Any],
) -> TokenFile:
    """Write the games at `rows` (at most `most`) and, held out, those at `heldout_rows` as the token file `path`.

    Duplicates, and training games whose moves occur among the held-out ones, are left out and counted in `source`.
    Returns the contents. Raises the errors of `make_token_file` and `open_new_file`.
    """
    from chessreg.games.boards.exporting import open_new_file
    from chessreg.games.datasets.dataset import convert_column_to_numpy

    if path.suffix != ".npz":
        raise BadInputError(f"{path} does not end in .npz", "chessreg dataset export DATASET games.npz --token-file")
    with open_new_file(path) as file:
        evaluation_rows = heldout_rows[
            ~convert_column_to_numpy(heldout.table(["duplicate"])["duplicate"])[heldout_rows]
        ][:most_heldout]
        unique_rows = rows[~convert_column_to_numpy(games.table(["duplicate"])["duplicate"])[rows]]
        training_rows = unique_rows[~np.isin(games.hashes[unique_rows], heldout.hashes[evaluation_rows])]
        counts = {
            "duplicates_left_out": len(rows) - len(unique_rows),
            "heldout_left_out": len(unique_rows) - len(training_rows),
        }
        content = make_token_file(
            encoding, games, training_rows[:most], heldout, evaluation_rows, positions, {**source, **counts}
        )
        content.write(file)
    return content


def make_token_file(
    encoding: Encoding,
    games: Games,
    rows: np.ndarray,
    heldout: Games,
    heldout_rows: np.ndarray,
    positions: int,
    source: Mapping[str, Any],
) -> TokenFile:
    """Encode the games at `rows` for training and those at `heldout_rows` for evaluation.

    At most `positions` held-out turns are drawn (the same ones every time) and stored with their legal moves.
    Raises BadInputError if there is no game.
    """
    for name, group_rows in (("train on", rows), ("hold out", heldout_rows)):
        if not len(group_rows):
            raise BadInputError(f"no game remains to {name}", "chessreg dataset show DATASET")
    tokens, lengths = _encode_games(encoding, games, rows)
    heldout_tokens, heldout_lengths = _encode_games(encoding, heldout, heldout_rows)
    ignored_ids = [
        place
        for place, text in enumerate(encoding.vocabulary)
        if encoding.notation == "san" and text in IGNORED_CHARACTERS
    ]
    item, length, answers, spellings = _draw_positions(encoding, ignored_ids, heldout, heldout_rows, positions)
    return TokenFile(
        encoding.name,
        encoding.size,
        encoding.answer_size,
        tuple(sorted(encoding.stop_ids)),
        tuple(ignored_ids),
        encoding.max_move_tokens,
        tokens,
        lengths,
        heldout_tokens,
        heldout_lengths,
        item.astype(np.int32),
        length.astype(np.int32),
        *_flatten_groups(answers),
        *_flatten_groups(spellings),
        dict(source),
    )


def _flatten_groups(groups: Sequence[Sequence[Ids]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return groups of texts as the three arrays that `_split_groups` reads."""
    every = [ids for group in groups for ids in group]
    return (
        np.array([len(group) for group in groups], np.int32),
        np.array([len(ids) for ids in every], np.uint8),
        np.array([token for ids in every for token in ids], np.uint16),
    )


def _encode_games(encoding: Encoding, games: Games, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the token ids uint8 [n] of the games at these rows, and the length of each item, int32."""
    ids, lengths = [], []
    for start in range(0, len(rows), BATCH_GAMES):
        tokens = encoding.games(games, rows[start : start + BATCH_GAMES])
        ids.append(tokens.ids.astype(np.uint8))
        lengths.append(np.diff(tokens.offsets).astype(np.int32))
    return np.concatenate(ids), np.concatenate(lengths)


def _draw_positions(
    encoding: Encoding, ignored_ids: Sequence[int], games: Games, rows: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, list[list[Ids]], list[list[Ids]]]:
    """Draw `count` turns of the games at these rows; return their item int [n], the number of tokens before the move
    int [n], and the answers and the accepted spellings of each. Spellings have no `ignored_ids` ids."""
    from chessreg.games.boards.moves import replay_boards

    tokens = encoding.games(games, rows)
    packed_games = games.moves(rows)
    sites = encoding.sites("turns", tokens)
    source = tokens.source[sites.item]
    plies = np.array([len(moves) // 2 for moves in packed_games], np.int64)
    turns = np.flatnonzero(sites.ply < plies[source])  # the game continued there
    sample = np.sort(generator(Stream.TOKEN_FILE, Stream.POSITIONS).permutation(turns)[:count])
    places_by_ply: dict[int, dict[int, int]] = {}  # of each game
    for place, (game, ply) in enumerate(zip(source[sample].tolist(), sites.ply[sample].tolist(), strict=True)):
        places_by_ply.setdefault(game, {})[ply] = place
    answers: list[list[Ids]] = [[] for _ in sample]
    spellings: list[list[Ids]] = [[] for _ in sample]
    for game, places in places_by_ply.items():
        for ply, board in enumerate(replay_boards(packed_games[game])):
            if ply in places:
                answers[places[ply]] = list(encoding.answers(board).values())
                accepted_ids = encoding.accepted_ids(board)
                spellings[places[ply]] = sorted({tuple(i for i in ids if i not in ignored_ids) for ids in accepted_ids})
    return sites.item[sample], sites.token[sample] + 1, answers, spellings
