"""Converts a block of PGN to rows of `games.parquet`, and lists the rejected and skipped games."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import chess
import numpy as np

from chessreg.games.boards import moves
from chessreg.games.datasets import borders, movetext
from chessreg.games.datasets.borders import RawGame
from chessreg.games.datasets.game_filter import EVERY_GAME, GameFilter, parse_elo
from chessreg.games.datasets.movetext import Movetext, number_sans
from chessreg.games.datasets.reader import GameReader

if TYPE_CHECKING:
    import pyarrow as pa

_STANDARD = frozenset({"", "?", "-", "standard", "chess", "normal", "classical", "from position", "fromposition"})
_VARIANT_NAMES = ("Crazyhouse", "Antichess", "Atomic", "Horde", "King of the Hill", "Racing Kings", "Three-check")
_VARIANTS = {
    **dict.fromkeys(("chess960", "chess 960", "fischerandom", "fischer random"), "Chess960"),
    **{name.lower(): name for name in _VARIANT_NAMES},
}
_UNKNOWN = frozenset({"", "?", "-", "????.??.??"})
_WORDS = {"white": "White", "black": "Black", "event": "Event", "site": "Site", "eco": "ECO",
          "time_control": "TimeControl", "termination": "Termination"}  # fmt: skip

Split = Callable[[bytes, int], Iterable[RawGame]]
"""(block, its first line) → its games."""


def make_game_schema() -> pa.Schema:
    """Return the schema of `games.parquet`, one row per game; `moves` as in `moves.py`, `text` in PGN characters."""
    import pyarrow as pa

    text_columns = ("white", "black", "event", "site", "date", "eco", "time_control", "termination")
    return pa.schema([
        pa.field("row", pa.int64(), False), pa.field("move_hash", pa.uint64(), False),
        pa.field("plies", pa.int16(), False), pa.field("moves", pa.binary(), False),
        pa.field("text", pa.string(), False), pa.field("result", pa.string(), False),
        pa.field("white_elo", pa.int32()), pa.field("black_elo", pa.int32()),
        *(pa.field(word, pa.string()) for word in text_columns),
    ])  # fmt: skip


@dataclass
class Tally:
    """Counts while a dataset is built."""

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
        """Count a rejected game under the part of its reason before the colon."""
        kind = reason.partition(":")[0]
        self.rejected[kind] = self.rejected.get(kind, 0) + 1

    def skip(self, reason: str, count: int = 1) -> None:
        """Count skipped games."""
        if count:
            self.skipped[reason] = self.skipped.get(reason, 0) + count

    def add(self, other: Tally) -> None:
        """Add the counts of a later block."""
        for name in ("games", "plies", "noncanonical", "result_mismatches", "missing_results", "both_elos", "cut"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for own_counts, other_counts in ((self.rejected, other.rejected), (self.skipped, other.skipped)):
            for reason, number in other_counts.items():
                own_counts[reason] = own_counts.get(reason, 0) + number
        self.first_date = min(filter(None, (self.first_date, other.first_date)), default=None)
        self.last_date = max(filter(None, (self.last_date, other.last_date)), default=None)


@dataclass(frozen=True)
class Reject:
    """A bad game: its row counted from the block's first, its line in the source, the plies before the fault, the
    reason."""

    row: int
    line: int
    ply: int
    reason: str


@dataclass(frozen=True)
class BlockRows:
    """The rows of a block.

    `batch` has the schema of games, with `row` counted from the block's first game; `games_read` counts all games.
    """

    batch: pa.RecordBatch
    hashes: np.ndarray
    games_read: int
    rejects: list[Reject]
    tally: Tally


@dataclass(slots=True)
class _Game:
    """A game as read from its source: row and line, tags, movetext, and whether the source cuts it off."""

    row: int
    line: int
    tags: dict[str, str]
    raw: str
    moves: Movetext
    is_cut: bool = False


EXCLUDED_REASON = "moves of a dataset that is left out"
NO_MOVES = "no moves"
CUSTOM_START = "custom start"


def read_block(
    block: bytes,
    first_line: int,
    reader: GameReader,
    min_plies: int = 0,
    split: Split = borders.iterate_games,
    excluded_games: moves.HashSet | None = None,
    game_filter: GameFilter = EVERY_GAME,
) -> BlockRows:
    """Read a block that begins on line `first_line` of its source and ends between two games; `split` finds its games.

    Games that `game_filter` rejects, and games whose move hashes are in `excluded_games`, are skipped and counted.
    """
    tally = Tally()
    games, games_read = _collect_games(split(block, first_line), tally, game_filter)
    collected_count = len(games)
    games, replayed_games, texts = _play_games(games, reader, tally)
    games_read += len(games) - collected_count
    rejects: list[Reject] = []
    kept_rows: list[int] = []
    for number, game in enumerate(games):
        fault = replayed_games[number][1] or game.moves.problem
        if fault:
            rejects.append(Reject(game.row, game.line, *fault))
            tally.reject(fault[1])
        elif not replayed_games[number][0]:
            tally.skip(NO_MOVES)
        elif len(replayed_games[number][0]) < 2 * min_plies:
            tally.skip(f"fewer than {min_plies} plies")
        elif reason := game_filter.find_rejection(game.tags):  # a second game in one movetext, without tags
            tally.skip(reason)
        else:
            kept_rows.append(number)
    if excluded_games is not None:
        is_excluded = excluded_games.contains(
            moves.hash_move_lists([replayed_games[number][0] for number in kept_rows])
        ).tolist()
        for _ in range(sum(is_excluded)):
            tally.skip(EXCLUDED_REASON)
        kept_rows = [number for number, leave in zip(kept_rows, is_excluded, strict=True) if not leave]
    tally.cut += sum(games[number].is_cut for number in kept_rows)
    packed_games = [replayed_games[number][0] for number in kept_rows]
    hashes = moves.hash_move_lists(packed_games)
    batch = _make_batch([games[n] for n in kept_rows], packed_games, hashes, [texts[n] for n in kept_rows], tally)
    return BlockRows(batch, hashes, games_read, rejects, tally)


def _collect_games(raws: Iterable[RawGame], tally: Tally, game_filter: GameFilter) -> tuple[list[_Game], int]:
    """Return the games to play, and the number of all games."""
    games: list[_Game] = []
    row = 0
    for raw in raws:
        if len(raw.tags) + len(raw.moves) >= borders.MAX_GAME_BYTES:
            problem = 0, f"a game of more than {borders.MAX_GAME_BYTES >> 20} MiB of text"
            games.append(_Game(row, raw.line, {}, "", movetext.Movetext("", [], None, problem), raw.is_cut))
            row += 1
            continue
        tags = borders.parse_tags(raw.tags)
        for number, cleaned_text in enumerate(movetext.clean_movetext(raw.moves)):
            own_tags = tags if number == 0 else {}
            has_no_moves = not cleaned_text.text and not cleaned_text.problem
            if has_no_moves and not raw.tags.strip() and cleaned_text.result is None:
                continue  # remarks before the first game
            empty = "cut before its second word" if raw.is_cut else NO_MOVES
            reason = (
                explain_nonstandard(own_tags)
                or (empty if has_no_moves else None)
                or game_filter.find_rejection(own_tags)
            )
            if reason:
                tally.skip(reason)
            else:
                games.append(_Game(row, raw.line, own_tags, raw.moves, cleaned_text, raw.is_cut))
            row += 1
    return games, row


def explain_nonstandard(tags: dict[str, str]) -> str | None:
    """Return why a game's tags exclude it (a variant, or a custom start), or None for a standard game."""
    variant = tags.get("Variant", "").strip().lower()
    if variant not in _STANDARD:
        return f"variant {_VARIANTS.get(variant, 'other than standard chess')}"
    fen = tags.get("FEN", "").strip()
    return None if fen in ("", "?") or is_standard_start(fen) else CUSTOM_START


def is_standard_start(fen: str) -> bool:
    """Return whether a FEN is the initial position, in any notation of the castling rights.

    >>> is_standard_start("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w HAha - 0 1")
    True
    """
    try:
        board = chess.Board(fen)
    except ValueError:
        return False
    start = chess.Board()
    board.halfmove_clock, board.fullmove_number = start.halfmove_clock, start.fullmove_number
    return board == start


_Outcome = tuple[bytes, tuple[int, str] | None]
"""Packed moves, and a game's fault (plies before it, reason) or None."""


def _play_games(games: list[_Game], reader: GameReader, tally: Tally) -> tuple[list[_Game], list[_Outcome], list[str]]:
    """Return the games with their outcomes and canonical texts.

    If the canonical text of an unchanged movetext differs from it, the movetext is cleaned word by word, which may find
    several games in it, and played again. So no move is lost or misread silently.
    """
    replayed_games, texts = _play_texts(reader, games)
    refused_numbers = [
        number
        for number, game in enumerate(games)
        if game.moves.sans is None and game.moves.text.replace(". ", ".") != texts[number][1:]
    ]
    if refused_numbers:
        word_games = {number: _clean_by_word(games[number]) for number in refused_numbers}
        more, more_texts = (
            iter(items)
            for items in _play_texts(reader, [game for game_parts in word_games.values() for game in game_parts])
        )
        outcomes = []
        extra_games = 0
        for number, game in enumerate(games):
            for part in word_games.get(number, [game]):
                part.row += extra_games
                new = number in word_games
                outcomes.append(
                    (part, next(more) if new else replayed_games[number], next(more_texts) if new else texts[number])
                )
            extra_games += len(word_games.get(number, [game])) - 1
        games, replayed_games, texts = (list(items) for items in zip(*outcomes, strict=True))
    for number, game in enumerate(games):
        sans = game.moves.sans
        packed_moves, error = replayed_games[number]
        if error is not None:
            word = sans[error[0]] if sans is not None else ""
            replayed_games[number] = packed_moves, (error[0], f"illegal move: {word[:20]}")
        elif sans is not None and not game.moves.problem:
            if 2 * len(sans) != len(packed_moves):
                raise RuntimeError(f"the {reader.name} reader played {len(packed_moves) // 2} of {len(sans)} moves")
            tally.noncanonical += number_sans(sans) != texts[number]
    return games, replayed_games, texts


def _clean_by_word(game: _Game) -> list[_Game]:
    """Return the games in a game's movetext, cleaned word by word; the first one keeps the tags."""
    first_game, *further_games = movetext.clean_by_word(game.raw)
    game.moves = first_game
    return [
        game,
        *(_Game(game.row + n, game.line, {}, game.raw, other, game.is_cut) for n, other in enumerate(further_games, 1)),
    ]


def _play_texts(reader: GameReader, games: list[_Game]) -> tuple[list[_Outcome], list[str]]:
    """Play the games' movetexts; return their outcomes and canonical texts."""
    result = reader.play([game.moves.text for game in games])
    data = result.moves.tobytes()
    edges = (2 * result.offsets).tolist()
    errors = {game: (ply, "illegal move") for game, ply in result.errors.items()}
    spans = itertools.pairwise(edges)
    return [(data[start:end], errors.get(game)) for game, (start, end) in enumerate(spans)], result.texts


def _make_batch(
    games: Sequence[_Game], packed_games: list[bytes], hashes: np.ndarray, texts: list[str], tally: Tally
) -> pa.RecordBatch:
    """Return the rows of these games as a record batch, and count them in `tally`."""
    import pyarrow as pa

    tags = [game.tags for game in games]
    plies = np.fromiter(map(len, packed_games), np.int64, len(packed_games)) // 2
    elos = {side: [parse_elo(pairs.get(f"{side}Elo")) for pairs in tags] for side in ("White", "Black")}
    dates = [_read_tag(pairs.get("Date")) or _read_tag(pairs.get("UTCDate")) for pairs in tags]
    known_dates = [date for date in dates if date]
    tally.games, tally.plies = len(games), int(plies.sum())
    tally.both_elos = sum(w is not None and b is not None for w, b in zip(*elos.values(), strict=True))
    tally.first_date, tally.last_date = min(known_dates, default=None), max(known_dates, default=None)
    columns = {
        "row": np.array([game.row for game in games], np.int64),
        "move_hash": hashes,
        "plies": plies.astype(np.int16),
        "moves": packed_games,
        "text": texts,
        "result": [_choose_result(game, tally) for game in games],
        "white_elo": elos["White"],
        "black_elo": elos["Black"],
        "date": dates,
        **{column: [_read_tag(pairs.get(tag)) for pairs in tags] for column, tag in _WORDS.items()},
    }
    target = make_game_schema()
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in target], schema=target)


def _choose_result(game: _Game, tally: Tally) -> str:
    """Return the Result tag, or the movetext's result if it is empty; count missing and contradictory results."""
    header = movetext.normalize_result(game.tags.get("Result", ""))
    written_result = game.moves.result
    tally.missing_results += written_result is None
    tally.result_mismatches += header is not None and written_result is not None and header != written_result
    return (header if header not in (None, "*") else written_result or header) or "*"


def _read_tag(value: str | None) -> str | None:
    """Return a tag's value, None if it is absent or unknown."""
    return None if value is None or value in _UNKNOWN else value
