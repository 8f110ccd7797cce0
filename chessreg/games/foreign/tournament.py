"""PGN files of matches and tournaments: games of named players and engines, with their ratings.

The tag `Termination`, or the comment after the last move, states how a game ended. cutechess-cli, fastchess and
c-chess-cli write such comments: `{..., White makes an illegal move: e1e3}`, `{Black's connection stalls}`, `{White wins
by adjudication: user decision}`. Programs of language models write the illegal move itself as the game's last word.
"""

from __future__ import annotations

import re
from typing import Any

import chess

from chessreg.games.boards.adjudication import Termination, find_game_end
from chessreg.games.datasets import borders, movetext, rows
from chessreg.games.datasets.movetext import Movetext
from chessreg.games.foreign.game import (
    ForeignFile,
    ForeignGame,
    RejectedRow,
    compare_result,
    find_termination,
    make_tournament_player,
    note_duplicates,
    replay_sans,
)

_ELO = re.compile(r"\s*(\d{1,4})\??\s*")
_COLUMN_BY_TAG = {"Event": "event", "Site": "site", "Date": "date", "Round": "round", "TimeControl": "time_control",
         "Termination": "termination_given", "ECO": "eco"}  # fmt: skip
_EMPTY_VALUES = frozenset({"", "?", "-", "????.??.??"})
_REMARKS = re.compile(r"(?:\s|\{[^}]*\}|[;%][^\n]*)*")
_GAME_START = re.compile(r'\[[ \t]*[A-Za-z0-9][\w+#=:-]*[ \t]+"|1\.\s?[a-hNO♘♞]')
_COMMENT = re.compile(r"\{([^}]*)\}")
_TERMINATIONS = {
    "illegal move": Termination.FORFEIT_ILLEGAL,
    "rules infraction": Termination.FORFEIT_ILLEGAL,
    "time forfeit": Termination.TIME_FORFEIT,
    "on time": Termination.TIME_FORFEIT,
    "outoftime": Termination.TIME_FORFEIT,
    "stall": Termination.STALLED,
    "abandon": Termination.ABANDONED,
    "disconnect": Termination.ABANDONED,
    "adjudication": Termination.ADJUDICATION,
    "resign": Termination.RESIGNATION,
    "agreement": Termination.AGREEMENT,
    "unterminated": Termination.UNTERMINATED,
}
"""Words in a Termination tag → why the game stopped; from the PGN standard, cutechess-cli, fastchess, Lichess and
chess.com (`Ann won on time`)."""
_ENDINGS = re.compile(
    r"\b(?:(?P<side>White|Black)(?:'s)? (?P<what>makes an illegal move|found no legal move|loses on time|"
    r"connection stalls|stalls|disconnects|resigns|wins by adjudication)|Draw by (?P<draw>adjudication|agreement))"
    r"(?:: *(?P<move>[^\s,}]+))?"
)
_TERMINATION_BY_PHRASE = {
    "makes an illegal move": Termination.FORFEIT_ILLEGAL,
    "found no legal move": Termination.FORFEIT_ILLEGAL,  # in chessreg's files
    "loses on time": Termination.TIME_FORFEIT,
    "connection stalls": Termination.STALLED,
    "stalls": Termination.STALLED,
    "disconnects": Termination.ABANDONED,
    "resigns": Termination.RESIGNATION,
    "wins by adjudication": Termination.ADJUDICATION,
    "adjudication": Termination.ADJUDICATION,
    "agreement": Termination.AGREEMENT,
}
"""Words in the last comment → why the game stopped."""
_LOSING_TERMINATIONS = frozenset({
    Termination.FORFEIT_ILLEGAL, Termination.TIME_FORFEIT, Termination.STALLED, Termination.ABANDONED,
    Termination.RESIGNATION,
})  # fmt: skip
"""Endings that one side causes in its turn."""


def is_tournament(text: str) -> bool:
    """Return whether a text begins like a PGN, after comments."""
    start = _REMARKS.match(text)
    return start is not None and _GAME_START.match(text, start.end()) is not None


def read_tournament(text: str) -> ForeignFile:
    """Return every game, replayed.

    Games from another start position, and games with an illegal move before their last word, are rejected.
    """
    games: list[ForeignGame] = []
    rejected_rows: list[RejectedRow] = []
    for raw in borders.iterate_games(text.encode("utf-8", "replace"), 1):
        tags = borders.parse_tags(raw.tags)
        for number, moves in enumerate(movetext.clean_by_word(raw.moves)):
            row = len(games) + len(rejected_rows)
            game = read_game(row, tags if number == 0 else {}, moves, raw.moves)
            if isinstance(game, RejectedRow):
                rejected_rows.append(game)
            else:
                games.append(game)
    note_duplicates(games)
    return ForeignFile(len(games) + len(rejected_rows), tuple(games), tuple(rejected_rows))


def read_game(row: int, tags: dict[str, str], moves: Movetext, move_text: str) -> ForeignGame | RejectedRow:
    """Return the game with these tags and cleaned moves, or why it was rejected; `move_text` is the movetext with
    comments."""
    if reason := rows.explain_nonstandard(tags):
        problem = (
            f"it starts from another position: {tags['FEN']}"
            if reason == rows.CUSTOM_START
            else f"it is of the {reason}"
        )
        return RejectedRow(row, problem)
    result = movetext.normalize_result(tags.get("Result", "*"))
    result = moves.result if result in (None, "*") and moves.result else result
    if result is None:
        return RejectedRow(row, f"{tags['Result'][:20]!r} is not a game result")
    sans = moves.sans or []
    board, fault = replay_sans(map(movetext.normalize_san, sans))
    plies = len(board.move_stack)
    if fault is None and moves.problem:
        return RejectedRow(row, f"half-move {plies + 1}: {moves.problem[1]}")
    if fault is not None and plies < len(sans) - 1:
        return RejectedRow(row, f"half-move {plies + 1}, {sans[plies][:20]!r}, is not legal")
    if not sans and result == "*":
        return RejectedRow(row, "it has totals, no game" if "Results" in tags else "it has neither moves nor a result")
    programs = {side: tags.get(f"{side}Type", "").lower() == "program" for side in ("White", "Black")}
    game = ForeignGame(
        row=row,
        id=tags.get("GameId", tags.get("Site", "")) if "/" in tags.get("Site", "") else "",
        white=make_tournament_player(tags.get("White", "?"), programs["White"]),
        black=make_tournament_player(tags.get("Black", "?"), programs["Black"]),
        result=result,
        moves=list(board.move_stack),
        termination=find_termination(board, result),
        source_columns=read_tag_columns(tags),
    )
    read_tagged_ending(game, board, tags, move_text)
    if fault is not None:
        read_illegal_end(game, board, sans[plies])
    for name in ("White", "Black"):
        if tags.get(name, "?") in _EMPTY_VALUES:
            game.record_oddity("player has no name", name)
    if not game.moves:
        game.record_oddity("no moves", f"{result} without a move")
    compare_result(game, board)
    return game


def read_tagged_ending(game: ForeignGame, board: chess.Board, tags: dict[str, str], movetext: str) -> None:
    """Set the termination of `game` if `board`, its last position, does not show it: from `tags`, then from the last
    comment in `movetext`."""
    termination_tag = tags.get("Termination", "").lower()
    tag_termination = next(
        (termination for word, termination in _TERMINATIONS.items() if word in termination_tag), None
    )
    if tag_termination is None and tags.get("TerminationReason", "") in list(Termination):  # in chessreg's files
        tag_termination = Termination(tags["TerminationReason"])
    loser = {"0-1": chess.WHITE, "1-0": chess.BLACK}.get(game.result)
    comments = _COMMENT.findall(movetext)
    if comments and (match := _ENDINGS.search(" ".join(comments[-1].split()))):
        tag_termination = tag_termination or _TERMINATION_BY_PHRASE[match["what"] or match["draw"]]
        if game.result == "*" and match["side"]:
            loser = match["side"] == "White"
        if match["what"] == "makes an illegal move" and match["move"] and find_game_end(board) is None:
            game.illegal.append((len(game.moves), 0, match["move"]))
    if tag_termination is None or game.termination != Termination.UNKNOWN:
        return
    if tag_termination is Termination.FORFEIT_ILLEGAL and loser is None:
        game.record_oddity("forfeit without a loser", f"{tags.get('Termination', '')}, but the result is {game.result}")
        return
    game.termination = str(tag_termination)
    if tag_termination in _LOSING_TERMINATIONS:
        game.loser_by_forfeit = loser


def read_illegal_end(game: ForeignGame, board: chess.Board, word: str) -> None:
    """Record the illegal move that ends a game: a forfeit of the side to move if it lost."""
    if not game.illegal:
        game.illegal.append((len(game.moves), 0, word))
    if game.result != ("0-1" if board.turn else "1-0"):
        game.record_oddity(
            "illegal move at the end",
            f"{word[:20]} at half-move {len(game.moves) + 1}, but the result is {game.result}",
        )
    elif game.termination in (Termination.UNKNOWN, Termination.ADJUDICATION):
        game.termination, game.loser_by_forfeit = str(Termination.FORFEIT_ILLEGAL), board.turn


def read_tag_columns(tags: dict[str, str]) -> dict[str, Any]:
    """Return ratings and the tags about place and conditions of the game."""
    columns: dict[str, Any] = {
        name: tags[tag] for tag, name in _COLUMN_BY_TAG.items() if tags.get(tag, "").strip() not in _EMPTY_VALUES
    }
    for tag, name in (("WhiteElo", "white_elo"), ("BlackElo", "black_elo")):
        if match := _ELO.fullmatch(tags.get(tag, "")):
            columns[name] = int(match[1])
    return columns
