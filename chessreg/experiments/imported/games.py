"""`imported-games`: games of other programs and players, stored as rows of the same tables as games of this
registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import chess
import numpy as np
from pydantic import BaseModel, Field

from chessreg.entities.game import read_stored_games
from chessreg.errors import BadInputError
from chessreg.experiments.imported.file import ImportedFile, ImportOptions, locate_import, record_imported_file
from chessreg.experiments.imported.players import Arm, Arms, record_arms, resolve_own_checkpoint
from chessreg.experiments.imported.specs import ImportedGamesSpec
from chessreg.games.boards.adjudication import ADJUDICATED_ENDS, Termination
from chessreg.games.boards.boardframe import BoardFrame
from chessreg.games.engines.opponents import EngineSpec, find_stockfish, parse_limit
from chessreg.games.engines.pool import EnginePool
from chessreg.games.foreign import ForeignFile, ForeignGame, read_games
from chessreg.runs.cost import parse_seconds
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import RunEstimate
from chessreg.runs.task import Task


class ImportedGame(BaseModel):
    """Columns that only an imported game has, as its file states them."""

    given_id: str = Field("", description="the game's id in its file")
    white: str = Field(description="White's name in the file")
    black: str = Field(description="Black's name in the file")
    white_score_given: str | None = Field(None, description="White's score as the file states it: 1, 0, 1/2, 0.5")
    black_score_given: str | None = None
    white_illegal_tries: int | None = Field(None, description="White's illegal tries over the whole game")
    black_illegal_tries: int | None = None
    white_elo: int | None = None
    black_elo: int | None = None
    event: str | None = None
    site: str | None = None
    date: str | None = None
    round: str | None = None
    eco: str | None = None
    time_control: str | None = None
    termination_given: str | None = None
    extra: dict[str, str] = Field(default_factory=dict, description="columns that no known version of the format has")
    oddities: list[str] = Field(
        default_factory=list, description="contradictions between the row and its moves, as in the import's report"
    )


class ImportedGames(ImportedFile):
    """Games of other programs and players: replayed, compared with their rows, and stored next to our games.

    The CSV files of chess_gpt_eval (Karvonen 2024, section 4.2 and Figure 2) and PGN tournaments. One unit is one row
    of the file. Facts that a file does not state stay unknown: the tries of a turn, an engine's version, the evaluation
    at a move limit (unless --adjudication asks the local Stockfish). The run's report, which `chessreg import results`
    prints, lists every contradiction.
    """

    name = "imported-games"
    tables = ("game", "illegal_attempt")
    spec = ImportedGamesSpec
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {"game": ImportedGame}
    queries = ("elo by intervention", "games by termination")
    example = "--file sample"

    def units(self, spec: ImportedGamesSpec, inputs: Inputs) -> int:
        return read_imported_games(spec, inputs)[0].rows

    def check(self, spec: ImportedGamesSpec, inputs: Inputs) -> None:
        super().check(spec, inputs)
        file = read_imported_games(spec, inputs)[0]
        player_names = {name for game in file.games for name in (game.white.name, game.black.name)}
        if missing_names := [name for name in spec.players if name not in player_names]:
            name_list = ", ".join(sorted(player_names)[:8])
            raise BadInputError(f"player {missing_names[0]!r} is not in the file", f"its players are {name_list}")
        if spec.checkpoint:
            resolve_own_checkpoint(inputs, file, spec)
        if spec.adjudication != "none":
            find_stockfish()

    def estimate(self, spec: ImportedGamesSpec, inputs: Inputs) -> RunEstimate:
        file, path = read_imported_games(spec, inputs)
        tries = sum(len(game.illegal) for game in file.games)
        size = path.stat().st_size
        rows = {"game": len(file.games), "illegal_attempt": tries}
        return RunEstimate(rows, size, cpu_seconds=parse_seconds(size))

    def run(self, task: Task[ImportedGamesSpec, ImportOptions]) -> None:
        file, _ = read_imported_games(task.spec, task.inputs)
        arms = Arms(file, task.spec)
        record_imported_file(task, task.spec.file, "results")
        record_arms(task, file, arms)
        games = {game.row: game for game in file.games}
        evaluations = evaluate_stopped_games(
            [games[unit] for unit in task.units if unit in games], task.spec.adjudication
        )
        for unit in task.units:
            if unit in games:
                game, arm = games[unit], arms.arm_by_row[unit]
                extra = ImportedGame(
                    given_id=game.id,
                    white=game.white.name,
                    black=game.black.name,
                    oddities=[f"{odd.code}: {odd.text}" for odd in game.oddities],
                    **game.source_columns,
                )
                columns = build_imported_columns(game, arm, task.spec) | {"adjudication_cp": evaluations.get(unit)}
                task.emit("game", unit, extra, match=arm.number, **columns)
                for ply, number, text in game.illegal:
                    if (ply % 2 == 0) == arm.color:
                        task.emit("illegal_attempt", unit, ply=ply, number=number, text=text)
            task.done(unit)

    def report(self, spec: ImportedGamesSpec, inputs: Inputs) -> dict[str, Any]:
        return read_imported_games(spec, inputs)[0].report()

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """Return one board for the start and one for the position after every ply, with the illegal tries."""
        run_id = row["run_id"] if isinstance(row["run_id"], UUID) else UUID(str(row["run_id"]))
        return next(read_stored_games(inputs.database, [(run_id, int(row["unit"]))])).board_views()


def read_imported_games(spec: ImportedGamesSpec, inputs: Inputs) -> tuple[ForeignFile, Path]:
    """Return the file's games and its path in the store."""
    path = locate_import(spec, inputs)
    return read_games(path, spec.format), path


def build_imported_columns(game: ForeignGame, arm: Arm, spec: ImportedGamesSpec) -> dict[str, Any]:
    """Return the columns of a game except its key and its `detail`, from the side of the arm's player.

    Turns of the opening do not count: `turns`, `tries` and `first_try_legal` begin after `spec.opening_plies`.
    """
    plies = spec.opening_plies
    turns = game.turns(arm.color)
    tries, first_try_legal = game.tries(arm.color), game.first_try_legal(arm.color)
    if plies:  # the opening plies count for neither side
        before = min(turns, (plies + 1) // 2 if arm.color == chess.WHITE else plies // 2)
        turns -= before
        if tries is not None:
            tries = tries[before:]
            is_forfeit = game.loser_by_forfeit == arm.color
            first_try_legal = sum(1 for try_count in (tries[:-1] if is_forfeit else tries) if try_count == 1)
        elif first_try_legal is not None and first_try_legal > turns:
            first_try_legal = None
    termination = game.termination
    if termination == Termination.FORFEIT_ILLEGAL and game.loser_by_forfeit != arm.color:
        termination = str(Termination.OPPONENT_FORFEIT)
    return {
        "opening_number": game.row,
        "opening_plies": min(plies, len(game.moves)),
        "plies": len(game.moves),
        "result": game.result,
        "termination": termination,
        "adjudication_cp": None,
        "turns": turns,
        "first_try_legal": first_try_legal,
        "tries": None if tries is None else np.array(tries, np.uint8).tobytes(),
        "moves": game.packed_moves,
        "seconds": game.seconds,
    }


def evaluate_stopped_games(games: Iterable[ForeignGame], limit: str) -> dict[int, int]:
    """Return, by row, White's centipawns at the end of each game that was stopped in play; empty for the limit `none`.

    The evaluated position is the one after White's last move, as in the notebooks of chess_gpt_eval.
    """
    stopped_games = [game for game in games if game.result == "*" and game.termination in ADJUDICATED_ENDS]
    if limit == "none" or not stopped_games:
        return {}
    judge_limit = parse_limit(limit)
    with EnginePool(EngineSpec("random"), is_timed=judge_limit.kind == "time") as pool:
        pending = {game.row: pool.analyse(build_judged_board(game), judge_limit) for game in stopped_games}
        return {row: future.result().score_cp for row, future in pending.items()}


def build_judged_board(game: ForeignGame) -> chess.Board:
    """Return the position after White's last move."""
    board = chess.Board()
    for move in game.moves[: len(game.moves) - 1 + len(game.moves) % 2]:
        board.push(move)
    return board
