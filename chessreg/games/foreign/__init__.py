"""Published third-party results: files of games, aggregates, counts and training curves, read and checked."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.foreign import chess_gpt_eval, grid, sweep, tournament, training_log
from chessreg.games.foreign.game import ForeignFile, ForeignGame, Oddity, RejectedRow, read_source_text
from chessreg.named import NameRegistry

__all__ = [
    "FORMATS",
    "ForeignFile",
    "ForeignGame",
    "Format",
    "Oddity",
    "RejectedRow",
    "find_format",
    "read_games",
]


@dataclass(frozen=True)
class Format:
    """A file format. `fits` recognizes a file's text; `games` reads it if the format contains games."""

    name: str
    holds: Literal["games", "aggregates", "counts", "curves"]
    summary: str
    fits: Callable[[str], bool]
    games: Callable[[str], ForeignFile] | None = None


FORMATS: NameRegistry[Format] = NameRegistry("format of results")
for _format in (
    Format(
        "chess_gpt_eval",
        "games",
        "one CSV row a game, as adamkarvonen/chess_gpt_eval and its forks write (16 to 24 columns)",
        chess_gpt_eval.is_chess_gpt_eval,
        chess_gpt_eval.read_chess_gpt_eval,
    ),
    Format(
        "pgn", "games", "a tournament: games of named players", tournament.is_tournament, tournament.read_tournament
    ),
    Format(
        "grid-search", "aggregates", "means and completion rates by intervention, one CSV row each", grid.is_grid_search
    ),
    Format("sweep", "counts", "level,wins,draws,losses: a line for each of Stockfish's levels", sweep.is_sweep),
    Format(
        "training-log", "curves", "iter N: loss X, time Yms; ckptN.pt, loss, accuracy", training_log.is_training_log
    ),
):
    FORMATS[_format.name] = _format


def find_format(path: Path) -> Format:
    """Return the format of a file, recognized by its content.

    Raises NotFoundError for a missing file, BadInputError for an unknown format.
    """
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    text = read_source_text(path)
    for candidate in FORMATS.values():
        if candidate.fits(text):
            return candidate
    format_list = "; ".join(f"{f.name}: {f.summary}" for f in FORMATS.values())
    raise BadInputError(f"{path} holds no results in a format that chessreg reads", format_list)


def read_games(path: Path, name: str) -> ForeignFile:
    """Return the games of a file. Raises BadInputError if it has no games, or none that can be kept."""
    file_format = FORMATS[name]
    if file_format.games is None:
        raise BadInputError(
            f"a {name} file holds {file_format.holds}, not games", f"chessreg import results {shlex.quote(str(path))}"
        )
    games = _read_cached(file_format.games, read_source_text(path))
    if not games.rows:
        raise BadInputError(f"{path.name} holds no games")
    if not games.games:
        reasons = list(dict.fromkeys(reject.text for reject in games.rejected_rows))
        more = f"; {len(reasons) - 1} other reason{'s' * (len(reasons) > 2)}" if len(reasons) > 1 else ""
        problem = f"{path.name} has {games.rows:,} games, of which none can be imported: {reasons[0]}{more}"
        raise BadInputError(problem, "give a file of games from the standard start, with moves or a result")
    return games


@functools.lru_cache(maxsize=2)  # a run reads its file before it starts, in its estimate, work and report
def _read_cached(games: Callable[[str], ForeignFile], text: str) -> ForeignFile:
    return games(text)
