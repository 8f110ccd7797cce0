"""Games as PGN, with players, settings and events (illegal tries, forfeits, adjudication) as tags and comments.

The movetext is one line per game, as Lichess writes it. Illegal tries are written as `{ illegal: Nf9, Ke9 }` after the
legal move of that turn; a forfeit and an adjudication as comments before the result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import chess

from chessreg.errors import BadInputError, report_write_errors
from chessreg.games.boards.adjudication import ADJUDICATED_ENDS, Termination

RESULTS = ("1-0", "0-1", "1/2-1/2", "*")

_STANDARD_TERMINATION = {
    Termination.FORFEIT_ILLEGAL: "rules infraction",
    Termination.OPPONENT_FORFEIT: "rules infraction",
    Termination.TIME_FORFEIT: "time forfeit",
    Termination.ADJUDICATION: "adjudication",
    Termination.ABANDONED: "abandoned",
    Termination.STALLED: "abandoned",
    Termination.UNTERMINATED: "unterminated",
    Termination.MOVE_LIMIT: "adjudication",
    Termination.CONTEXT_FULL: "adjudication",
    Termination.ENGINE_DIED: "abandoned",
}


@dataclass(frozen=True)
class GameRecord:
    """One played game.

    `moves` are UCI from `fen` (the standard start if None), including the opening. `tries` maps a ply (0-based) to its
    rejected texts; the last key may be len(moves), a turn without a legal move. `comments` maps a ply to another
    comment after its move. `adjudication_cp` is from White's view. `headers` are additional tags; the named fields
    override them.
    """

    moves: Sequence[str]
    white: str
    black: str
    result: str
    termination: Termination | None = None
    tries: Mapping[int, Sequence[str]] = field(default_factory=dict)
    comments: Mapping[int, str] = field(default_factory=dict)
    adjudication_cp: int | None = None
    model: str | None = None
    intervention: str | None = None
    engine: str | None = None
    limit: str | None = None
    opening: str | None = None
    seeds: str | None = None
    fen: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def tags(self) -> dict[str, str]:
        """Return all tags in the order of the file."""
        tags = {"Event": "chessreg", "Site": "?", "Date": "????.??.??", "Round": "?"}
        tags.update(self.headers)
        tags.update({"White": self.white, "Black": self.black, "Result": self.result})
        tag_values = {
            "Model": self.model,
            "Intervention": self.intervention,
            "Engine": self.engine,
            "EngineLimit": self.limit,
            "Opening": self.opening,
            "Seeds": self.seeds,
        }
        tags.update({name: value for name, value in tag_values.items() if value is not None})
        if self.termination is not None:
            tags["Termination"] = _STANDARD_TERMINATION.get(self.termination, "normal")
            tags["TerminationReason"] = str(self.termination)
        if self.fen is not None and self.fen != chess.STARTING_FEN:
            tags.update({"SetUp": "1", "FEN": self.fen})
        return tags


def format_game(record: GameRecord) -> str:
    """Return the PGN text of a game, ending in one newline. Raises BadInputError for an illegal move or an invalid
    result."""
    if record.result not in RESULTS:
        raise BadInputError(f"{record.result!r} is not a game result", f"one of {', '.join(RESULTS)}")
    board = chess.Board(record.fen) if record.fen else chess.Board()
    first_ply = board.ply()
    sans = []
    for ply, text in enumerate(record.moves):
        try:
            sans.append(board.san_and_push(board.parse_uci(text)))
        except ValueError as error:
            raise BadInputError(f"ply {ply}: {text} is not legal in {board.fen()}") from error
    comments = {ply: f"illegal: {', '.join(tries)}" for ply, tries in record.tries.items() if tries}
    for ply, text in record.comments.items():
        comments[ply] = f"{text}; {comments[ply]}" if ply in comments else text
    end_comments = []
    if last_comment := comments.pop(len(sans), None):
        end_comments.append(f"{'White' if board.turn else 'Black'} to move; {last_comment}")
    if record.termination is Termination.FORFEIT_ILLEGAL:
        end_comments.append(f"{'White' if board.turn else 'Black'} found no legal move and forfeits")
    if record.termination is Termination.RESIGNATION:
        end_comments.append(f"{'White' if board.turn else 'Black'} resigns")
    if record.adjudication_cp is not None:
        reason = f" at {record.termination}" if record.termination in ADJUDICATED_ENDS else ""
        end_comments.append(f"adjudication{reason}: {record.adjudication_cp:+d} centipawns for White")
    return format_pgn(record.tags(), sans, record.result, comments, "; ".join(end_comments), first_ply)


def format_pgn(
    tags: Mapping[str, str],
    sans: Sequence[str],
    result: str,
    comments: Mapping[int, str] | None = None,
    end_comment: str = "",
    first_ply: int = 0,
) -> str:
    """Return tags and SAN moves as PGN text.

    `comments` maps the index of a move to the comment after it. `end_comment` is a comment before the result.
    `first_ply` is 0-based.
    """
    lines = [f'[{name} "{_format_tag_value(value)}"]' for name, value in tags.items()]
    tokens: list[str] = []
    renumber = True  # Black's move gets a number at the start and after a comment
    for index, san in enumerate(sans):
        number, black = divmod(first_ply + index, 2)
        if not black:
            tokens.append(f"{number + 1}.")
        elif renumber:
            tokens.append(f"{number + 1}...")
        tokens.append(san)
        renumber = bool(comments and index in comments)
        if comments and index in comments:
            tokens.append(_format_comment(comments[index]))
    if end_comment:
        tokens.append(_format_comment(end_comment))
    tokens.append(result)
    return "\n".join(lines) + "\n\n" + " ".join(tokens) + "\n"


def save_pgn(games: Iterable[GameRecord | str], path: Path) -> int:
    """Write games (records, or PGN texts ending in a newline) to a file, separated by empty lines; return their number.

    A path that ends in `.zst` is compressed. The file is written completely or not at all. Raises BadInputError if it
    cannot be written.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        with report_write_errors(path):
            with contextlib.ExitStack() as stack:
                file: IO[bytes] = stack.enter_context(temporary.open("wb"))
                if path.suffix == ".zst":
                    import zstandard

                    compressor = zstandard.ZstdCompressor(level=19).stream_writer(file, closefd=False)
                    file = stack.enter_context(compressor)
                count = write_pgn(games, lambda text: file.write(text.encode()))
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return count


def write_pgn(games: Iterable[GameRecord | str], write: Callable[[str], object]) -> int:
    """Pass the text of each game to `write`, separated by empty lines; return their number."""
    count = 0
    for game in games:
        text = game if isinstance(game, str) else format_game(game)
        write(("\n" if count else "") + text)
        count += 1
    return count


def _format_tag_value(value: str) -> str:
    # the standard escapes quotes and backslashes, but python-chess and other readers do not unescape them
    return " ".join(str(value).split()).replace("\\", "/").replace('"', "'")


def _format_comment(text: str) -> str:
    # a brace cannot be escaped inside a PGN comment
    return "{ " + " ".join(text.replace("{", "(").replace("}", ")").split()) + " }"
