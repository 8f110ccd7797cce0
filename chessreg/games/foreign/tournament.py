"""PGN files of tournaments: games of named players and engines, with their ratings."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import chess
import chess.pgn

from chessreg.errors import DAMAGE, BadInputError
from chessreg.games import movetext
from chessreg.games.adjudication import Termination
from chessreg.games.foreign.game import (
    ForeignFile,
    ForeignGame,
    Rejected,
    compare_result,
    ending,
    note_duplicates,
    tournament_player,
)

_ELO = re.compile(r"\s*(\d{1,4})\??\s*")
_KEPT = {"Event": "event", "Site": "site", "Date": "date", "Round": "round", "TimeControl": "time_control",
         "Termination": "termination_given", "ECO": "eco"}  # fmt: skip
_NOTHING = frozenset({"", "?", "-", "????.??.??"})
_TERMINATIONS = {
    "time forfeit": Termination.TIME_FORFEIT,
    "rules infraction": Termination.FORFEIT_ILLEGAL,
}
"""The PGN standard's words that say more than the board does."""


def fits(text: str) -> bool:
    start = text.lstrip()[:4000]
    return bool(re.match(r"\[[A-Za-z]\w* \"", start) or re.match(r"(?:\{[^}]*\}\s*)?1\.\s?[a-hNO]", start))


def parsed(stream: io.StringIO, row: int) -> chess.pgn.Game | None:
    """The next game. Raises BadInputError for text that python-chess breaks at: a stray `)` before a `?`, for one."""
    try:
        return chess.pgn.read_game(stream)
    except DAMAGE as error:
        raise BadInputError(f"game {row + 1} is no PGN: {type(error).__name__}: {error}") from error


def read(text: str) -> ForeignFile:
    """Every game, replayed; one with an illegal move or another start position is listed, not kept."""
    games: list[ForeignGame] = []
    rejected: list[Rejected] = []
    row = 0
    stream = io.StringIO(text)
    with quiet_parser():
        while (game := parsed(stream, row)) is not None:
            kept = read_game(row, game)
            if isinstance(kept, Rejected):
                rejected.append(kept)
            else:
                games.append(kept)
            row += 1
    note_duplicates(games)
    return ForeignFile(row, tuple(games), tuple(rejected))


@contextmanager
def quiet_parser() -> Iterator[None]:
    """python-chess logs what it cannot read; it is in `errors` too, and so in our report."""
    logger = logging.getLogger("chess.pgn")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def read_game(row: int, parsed_game: chess.pgn.Game) -> ForeignGame | Rejected:
    headers = parsed_game.headers
    if parsed_game.errors:
        return Rejected(row, str(parsed_game.errors[0])[:200])
    if parsed_game.board().fen() != chess.STARTING_FEN or type(parsed_game.board()) is not chess.Board:
        return Rejected(row, f"it starts from another position: {headers.get('FEN', headers.get('Variant', ''))}")
    result = movetext.result(headers.get("Result", "*"))
    if result is None:
        return Rejected(row, f"{headers['Result'][:20]!r} is no game result")
    board = parsed_game.end().board()
    if not all(board.move_stack):
        return Rejected(row, "it has a null move")
    programs = {side: headers.get(f"{side}Type", "").lower() == "program" for side in ("White", "Black")}
    game = ForeignGame(
        row=row,
        id=headers.get("GameId", headers.get("Site", "")) if "/" in headers.get("Site", "") else "",
        white=tournament_player(headers.get("White", "?"), programs["White"]),
        black=tournament_player(headers.get("Black", "?"), programs["Black"]),
        result=result,
        moves=list(board.move_stack),
        termination=ending(board, result),
        source_columns=source_columns_of(headers),
    )
    termination = _TERMINATIONS.get(headers.get("Termination", "").strip().lower())
    if game.termination == Termination.UNKNOWN and termination is not None:
        game.termination = str(termination)
        game.loser_by_forfeit = {"0-1": chess.WHITE, "1-0": chess.BLACK}.get(result)
    for name in ("White", "Black"):
        if headers.get(name, "?") in _NOTHING:
            game.odd("player has no name", name)
    if not game.moves:
        game.odd("no moves", f"{result} without a move")
    compare_result(game, board)
    return game


def source_columns_of(headers: chess.pgn.Headers) -> dict[str, Any]:
    """Ratings and the tags that say where and how the game was played."""
    columns: dict[str, Any] = {
        name: headers[tag] for tag, name in _KEPT.items() if headers.get(tag, "").strip() not in _NOTHING
    }
    for tag, name in (("WhiteElo", "white_elo"), ("BlackElo", "black_elo")):
        if match := _ELO.fullmatch(headers.get(tag, "")):
            columns[name] = int(match[1])
    return columns
