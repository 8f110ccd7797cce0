"""The CSV files of chess_gpt_eval (Karvonen 2024) and of its forks.

Three column sets share sixteen columns; the others are optional: `player_*_time`, then `player_*_legal_moves`,
`total_moves` and `illegal_moves`, then `player_*_illegal_moves_details`. player_one is always White. A transcript is an
arbitrary prompt followed by the moves. Scores are text (`1`, `0`, `1/2`, `0.5`) and stored unchanged.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import Any

import chess

from chessreg.errors import BadInputError
from chessreg.games.boards.adjudication import Termination, find_game_end
from chessreg.games.datasets.movetext import RESULTS
from chessreg.games.foreign.game import (
    ForeignFile,
    ForeignGame,
    Oddity,
    RejectedRow,
    compare_result,
    find_termination,
    make_chess_gpt_eval_player,
    note_duplicates,
    parse_engine_limit,
    parse_flag,
    parse_number,
    read_header,
    read_table,
    replay_sans,
)

POLICY = "retry:5"
"""The program asks five times, then the player forfeits (7.2)."""
MOVE_LIMIT = 90
"""MAX_MOVES = 89 for nanoGPT: stopped after 90 full moves. Games of other players have no limit."""

REQUIRED_COLUMNS = frozenset(
    [
        "game_id",
        "transcript",
        "result",
        "player_one",
        "player_two",
        "player_one_score",
        "player_two_score",
        "player_one_illegal_moves",
        "player_two_illegal_moves",
        "player_one_resignation",
        "player_two_resignation",
        "player_one_failed_to_find_legal_move",
        "player_two_failed_to_find_legal_move",
        "game_title",
        "number_of_moves",
        "time_taken",
    ]
)
OPTIONAL_COLUMNS = frozenset(
    [
        "player_one_time",
        "player_two_time",
        "player_one_legal_moves",
        "player_two_legal_moves",
        "total_moves",
        "illegal_moves",
        "player_one_illegal_moves_details",
        "player_two_illegal_moves_details",
    ]
)
SIDES = {chess.WHITE: "player_one", chess.BLACK: "player_two"}
COLOR_NAMES = {chess.WHITE: "White", chess.BLACK: "Black"}
SCORES = {"1-0": (1.0, 0.0), "0-1": (0.0, 1.0), "1/2-1/2": (0.5, 0.5), "*": (0.5, 0.5)}
_FIRST_MOVE = re.compile(r"(?:\A|\n|;)[ \t]*1\.(?=[ \t]*\S)")
_PIECE = re.compile(r"(\d+)\.+|(\S+)")
_TAG_LINE = re.compile(r'\[[A-Za-z][A-Za-z0-9_]* "[^"]*"\]')


def is_chess_gpt_eval(text: str) -> bool:
    """Return whether a text is a CSV of chess_gpt_eval."""
    return set(read_header(text)) >= REQUIRED_COLUMNS


def read_chess_gpt_eval(text: str) -> ForeignFile:
    """Return every row as a game, replayed and compared with its columns. Raises BadInputError for another CSV."""
    if missing_columns := REQUIRED_COLUMNS - set(read_header(text)):
        raise BadInputError(
            f"not a CSV of chess_gpt_eval: it has no column {min(missing_columns)}", "leave out --format"
        )
    rows = read_table(text)
    games: list[ForeignGame] = []
    rejected_rows: list[RejectedRow] = []
    for place, row in enumerate(rows):
        row_game = read_eval_row(place, row)
        if isinstance(row_game, RejectedRow):
            rejected_rows.append(row_game)
        else:
            games.append(row_game)
    note_duplicates(games)
    has_move_limit = any(game.termination == Termination.MOVE_LIMIT for game in games)
    return ForeignFile(len(rows), tuple(games), tuple(rejected_rows), POLICY, MOVE_LIMIT if has_move_limit else None)


def read_eval_row(place: int, row: dict[str, str]) -> ForeignGame | RejectedRow:
    """Return a row's game, or why it was rejected."""
    prompt, moves = split_transcript(row["transcript"])
    sans, oddities = split_half_moves(moves)
    board, fault = replay_sans(sans)
    if fault is not None:
        return RejectedRow(place, f"half-move {len(board.move_stack) + 1}, {fault[:20]!r}, is not legal")
    if row["result"] not in SCORES:
        return RejectedRow(place, f"{row['result'][:20]!r} is not a game result")
    game = ForeignGame(
        row=place,
        id=row["game_id"],
        white=make_chess_gpt_eval_player(row["player_one"], parse_engine_limit(row.get("player_one_time", ""))),
        black=make_chess_gpt_eval_player(row["player_two"], parse_engine_limit(row.get("player_two_time", ""))),
        result=row["result"],
        moves=list(board.move_stack),
        termination=find_termination(board, row["result"]),
        seconds=parse_number(row["time_taken"]),
        source_columns=read_source_columns(row),
        oddities=oddities,
    )
    if unknown_lines := [
        line for line in prompt.splitlines() if line.strip() and not _TAG_LINE.fullmatch(line.strip())
    ]:
        game.record_oddity(
            "prompt is no PGN", f"{len(prompt.splitlines())} lines, of them not tags: {'; '.join(unknown_lines)[:120]}"
        )
    read_eval_ending(game, board, row)
    read_tries(game, row)
    read_details(game, row)
    compare_result(game, board)
    compare_counts(game, board, row)
    return game


def split_transcript(transcript: str) -> tuple[str, str]:
    """Return (prompt, moves). The moves begin at the first `1.` at the start, at the start of a line, or after a `;`.

    >>> split_transcript('[Variant "Standard\\']\\n1. e4 e5')
    ('[Variant "Standard\\']', '1. e4 e5')
    """
    match = _FIRST_MOVE.search(transcript)
    if match is None:
        return transcript.strip(), ""
    start = match.end() - 2
    return transcript[:start].strip("; \n\t"), transcript[start:]


def split_half_moves(text: str) -> tuple[list[str], list[Oddity]]:
    """Return (SAN words, oddities of the move numbers between them).

    >>> split_half_moves("1. e4 e5 2. Nf3\\n2. Nc6")
    (['e4', 'e5', 'Nf3', 'Nc6'], [Oddity(code='repeated move number', text='2. appears before both half-moves')])
    """
    sans: list[str] = []
    oddities = []
    for number_text, word in _PIECE.findall(text):
        if word:
            if word not in RESULTS:
                sans.append(word)
            continue
        half_moves = len(sans) // 2 + 1
        if int(number_text) != half_moves:
            oddities.append(Oddity("wrong move number", f"{number_text}. appears where {half_moves}. is due"))
        elif len(sans) % 2:
            oddities.append(Oddity("repeated move number", f"{number_text}. appears before both half-moves"))
    return sans, oddities


def read_source_columns(row: dict[str, str]) -> dict[str, Any]:
    """Return the row's values that have no other field: scores, counts, and columns of unknown versions."""
    columns: dict[str, Any] = {
        "white_score_given": row["player_one_score"],
        "black_score_given": row["player_two_score"],
        "white_illegal_tries": read_whole_number(row["player_one_illegal_moves"]),
        "black_illegal_tries": read_whole_number(row["player_two_illegal_moves"]),
    }
    extra = {name: value for name, value in row.items() if name not in REQUIRED_COLUMNS | OPTIONAL_COLUMNS}
    return {**columns, "extra": extra} if extra else columns


def read_eval_ending(game: ForeignGame, board: chess.Board, row: dict[str, str]) -> None:
    """Set forfeits, resignations and the move limit, which the board does not show."""
    for color, side in SIDES.items():
        loss_result = "0-1" if color else "1-0"
        is_forfeit = parse_flag(row[f"{side}_failed_to_find_legal_move"])
        is_resignation = parse_flag(row[f"{side}_resignation"])
        if not (is_forfeit or is_resignation):
            continue
        end_word = "forfeited" if is_forfeit else "resigned"
        if find_game_end(board) is not None:
            game.record_oddity(
                "given up after the end",
                f"{COLOR_NAMES[color]} is recorded with {end_word}, but the board shows {find_termination(board, '*')}",
            )
            continue
        game.termination = str(Termination.FORFEIT_ILLEGAL if is_forfeit else Termination.RESIGNATION)
        game.loser_by_forfeit = color
        if game.result != loss_result:
            game.record_oddity(
                "result differs from ending", f"{COLOR_NAMES[color]} {end_word}, but the result is {game.result}"
            )
        if board.turn != color:
            game.record_oddity(
                "given up out of turn", f"{COLOR_NAMES[color]} {end_word} while {COLOR_NAMES[not color]} was to move"
            )
    if game.result == "*" and game.termination == Termination.UNKNOWN:
        if len(game.moves) >= 2 * MOVE_LIMIT:
            game.termination = str(Termination.MOVE_LIMIT)
            game.record_oddity("not adjudicated", "stopped at the move limit; no evaluation is recorded")
        else:
            game.record_oddity("ending not recorded", f"no result after {len(game.moves)} plies")


def read_tries(game: ForeignGame, row: dict[str, str]) -> None:
    """Set the number of turns that were legal at the first try: the row's count, or all turns if no try was illegal."""
    for color, side in SIDES.items():
        turns = game.turns(color)
        illegal = read_whole_number(row[f"{side}_illegal_moves"])
        legal_moves = read_whole_number(row.get(f"{side}_legal_moves", ""))
        legal = turns if illegal == 0 and game.loser_by_forfeit != color else None
        if legal_moves is not None and legal_moves > turns:
            game.record_oddity("more legal first tries than turns", f"{COLOR_NAMES[color]}: {legal_moves} of {turns}")
        elif legal_moves is not None:
            if legal is not None and legal_moves != legal:
                text = f"{COLOR_NAMES[color]}: no illegal try, but {legal_moves} of {turns} turns legal at once"
                game.record_oddity("counts of tries differ", f"{text} (the others may be an opening)")
            legal = legal_moves
        tries = [1] * turns if legal == turns else None
        if color:
            game.white_first_try_legal, game.white_tries = legal, tries
        else:
            game.black_first_try_legal, game.black_tries = legal, tries


def read_details(game: ForeignGame, row: dict[str, str]) -> None:
    """Set the illegal tries listed in the row, and with them the tries of every turn."""
    for color, side in SIDES.items():
        text = row.get(f"{side}_illegal_moves_details", "").strip()
        if not text:
            continue
        try:
            attempts = [(int(d["move_number"]), str(d["attempted_move"])) for d in ast.literal_eval(text)]
        except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
            game.record_oddity("details of tries unreadable", f"{COLOR_NAMES[color]}: {text[:80]}")
            continue
        total = game.source_columns["white_illegal_tries" if color else "black_illegal_tries"]
        if total != len(attempts):
            game.record_oddity(
                "counts of tries differ", f"{COLOR_NAMES[color]}: {total} illegal tries counted, {len(attempts)} listed"
            )
        by_turn = Counter(move_number - 1 for move_number, _ in attempts)
        turns = game.turns(color)
        if any(not 0 <= turn < turns for turn in by_turn):
            game.record_oddity("details of tries unreadable", f"{COLOR_NAMES[color]}: a try after the last move")
            continue
        forfeit_turns = {turns - 1} if game.loser_by_forfeit == color else set()
        tries = [by_turn[turn] + (turn not in forfeit_turns) for turn in range(turns)]
        first_legal_count = sum(1 for turn in range(turns) if not by_turn[turn] and turn not in forfeit_turns)
        first_try_legal = game.first_try_legal(color)
        if first_try_legal is not None and first_try_legal != first_legal_count:
            game.record_oddity(
                "counts of tries differ",
                f"{COLOR_NAMES[color]}: {first_try_legal} turns legal at once counted, {first_legal_count} by the list",
            )
        if color:
            game.white_first_try_legal, game.white_tries = first_legal_count, tries
        else:
            game.black_first_try_legal, game.black_tries = first_legal_count, tries
        numbers: Counter[int] = Counter()
        for move_number, move_text in attempts:
            ply = 2 * (move_number - 1) + (0 if color else 1)
            game.illegal.append((ply, numbers[ply], move_text))
            numbers[ply] += 1
    note_legal_tries(game)


def note_legal_tries(game: ForeignGame) -> None:
    """Record in `game` each try that is listed as illegal but is legal in its position."""
    plies = {ply for ply, _, _ in game.illegal}
    board = chess.Board()
    for ply in range(max(plies, default=-1) + 1):
        for _, _, text in (t for t in game.illegal if t[0] == ply):
            try:
                board.parse_san(text)
            except ValueError:
                continue
            game.record_oddity("illegal try that is legal", f"{text} at half-move {ply + 1}")
        if ply < len(game.moves):
            board.push(game.moves[ply])


def compare_counts(game: ForeignGame, board: chess.Board, row: dict[str, str]) -> None:
    """Note counts and scores that contradict the moves or the result."""
    if read_whole_number(row["number_of_moves"]) != board.fullmove_number:
        game.record_oddity(
            "number of moves differs", f"{row['number_of_moves']} recorded, {board.fullmove_number} on the board"
        )
    scores = (row["player_one_score"].strip(), row["player_two_score"].strip())
    values = tuple(0.5 if score == "1/2" else parse_number(score) for score in scores)
    if any(value is not None and value < 0 for value in values):
        game.record_oddity("score is a sentinel", f"{scores[0]} and {scores[1]}")
    elif values != SCORES[game.result]:
        game.record_oddity("score differs from result", f"{scores[0]} and {scores[1]} for {game.result}")
    title = f"{row['player_one']} vs. {row['player_two']}"
    if row["game_title"] != title:
        game.record_oddity("title differs from players", row["game_title"][:80])


def read_whole_number(text: str) -> int | None:
    """Return a whole number, or None for any other text."""
    value = parse_number(text)
    return int(value) if value is not None and value.is_integer() else None
