"""`engine-match`: games between two engines of the ladder, to measure a level's strength under a limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field

from chessreg.entities.game import read_stored_games
from chessreg.experiments.matches import (
    EarlyStopping,
    MatchRules,
    MatchSpec,
    PlayedGame,
    build_engine_row,
    build_game_columns,
    check_engine,
    check_pairs,
    describe_stopping,
    explain_chance,
    get_match_number,
    get_model_color,
    make_opening_source,
    plan_matches,
    record_evaluator,
    record_opening,
    report_games,
)
from chessreg.games.boards.openings import Opening
from chessreg.games.engines.opponents import EngineSpec, Limit, find_stockfish, parse_engine, parse_limit
from chessreg.games.engines.pool import EnginePool, count_free_cores
from chessreg.runs.cost import MOVES_PER_GAME, estimate_search_seconds
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import ExecutionOptions, Moves, Processes, Ref

if TYPE_CHECKING:
    from chessreg.games.boards.boardframe import BoardFrame
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

TICK_SECONDS = 0.2
NO_MOVE_LIMIT = 1 << 30
BYTES_PER_GAME = 700  # size of one game in a fragment


class EngineMatchSpec(MatchSpec):
    model_config = ConfigDict(validate_default=True)

    player: str = Field("stockfish:0@time=0.1", description="the engine whose score is measured, as for play")
    opponent: str = Field("stockfish:0@time=0.1", description="the engine that it plays")
    games: int = Field(100, ge=1, description="games to play")
    color: Literal["white", "black", "both"] = Field(
        "white", description="the player's color; both: each opening twice, first with White"
    )
    opening: str = Field("standard", description="standard, random:PLIES or book:FILE")
    book: Annotated[str | None, Ref("book")] = Field(
        None, description="file of the opening book. Left out: taken from --opening book:FILE"
    )
    opening_seed: int = Field(0, description="seed of the openings")
    move_limit: Moves = Field(
        0, ge=0, description="full moves after the opening at which a game is stopped; 0: no limit"
    )
    adjudication: str = Field("nodes=100000", description="Stockfish's limit for evaluating a stopped game, or none")
    against: Annotated[str | None, Ref("run:engine-match")] = Field(
        None, description="match from the same openings that --stop compares with. Left out: both colors of this match"
    )

    @property
    def opening_source(self) -> str:
        return self.opening


class EngineMatchOptions(ExecutionOptions):
    engine_processes: Processes = Field(0, ge=0, description="games in play at once; 0: one for each core")


class EngineMatch(Kind):
    """Games between two engines: the effect of a limit on a level's strength (Karvonen 2024, Appendix E).

    One unit is one game. Under a time limit, at most one search runs per free core.
    """

    name = "engine-match"
    tables = ("game", "statistic")
    determinism = "statistical"
    spec = EngineMatchSpec
    options = EngineMatchOptions
    queries = ("elo by intervention", "games by termination")
    example = "--player capture --opponent random --games 6 --opening random:6 --move-limit 20 --adjudication none"

    def units(self, spec: EngineMatchSpec, inputs: Inputs) -> int:
        return spec.games

    def check(self, spec: EngineMatchSpec, inputs: Inputs) -> None:
        """Raise an error for an engine or a book that is not available."""
        check_pairs(spec, inputs)
        if spec.book is not None:
            inputs.artifact("book", spec.book)
        is_judged = spec.move_limit > 0 and spec.adjudication != "none"
        if is_judged or any(parse_engine(engine).needs_process for engine in (spec.player, spec.opponent)):
            find_stockfish()

    def estimate(self, spec: EngineMatchSpec, inputs: Inputs) -> RunEstimate:
        moves = min(spec.move_limit or MOVES_PER_GAME, MOVES_PER_GAME)
        search_s = moves * (estimate_search_seconds(spec.player) + estimate_search_seconds(spec.opponent))
        judge_s = estimate_search_seconds(spec.adjudication) if spec.move_limit and spec.adjudication != "none" else 0.0
        return RunEstimate(
            {"game": spec.games}, spec.games * BYTES_PER_GAME, describe_stopping(spec),
            cpu_seconds=spec.games * (search_s + judge_s),
        )  # fmt: skip

    def in_order(self, spec: EngineMatchSpec) -> bool:
        return spec.stop != "none"

    def replays(self, spec: EngineMatchSpec) -> bool:
        return not self.explain_chance(spec)

    def explain_chance(self, spec: EngineMatchSpec) -> str:
        return explain_chance((spec.player, spec.opponent), spec.adjudication)

    def run(self, task: Task[EngineMatchSpec, EngineMatchOptions]) -> None:
        play_duel(task)

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """Return a board for the start and one after every ply."""
        return next(read_stored_games(inputs.database, [(UUID(str(row["run_id"])), int(row["unit"]))])).board_views()


# -- the games ---------------------------------------------------------------------------------------------------


@dataclass
class Duel:
    """Plays games between two pools of engines, at most `concurrent_games` at the same time.

    `noise` begins every key of a draw. `adjudicate` is the limit under which stopped games are evaluated.
    """

    player: EnginePool
    opponent: EnginePool
    rules: MatchRules
    get_opening: Callable[[int], Opening]
    noise: tuple[int | str, ...]
    adjudicate: Limit | None
    concurrent_games: int
    tick: Callable[[Collection[PlayedGame]], None] = lambda games: None  # called often with the games in play

    def play(self, units: list[int]) -> Iterator[PlayedGame]:
        """Yield finished games, in the order in which they end."""
        remaining_units = iter(units)
        answers: dict[Future[Any], PlayedGame] = {}
        while True:
            while len(answers) < self.concurrent_games and (unit := next(remaining_units, None)) is not None:
                game = PlayedGame(unit, self.get_opening(unit), self.rules)
                if game.end is None:
                    answers[self._ask(game)] = game
                else:
                    yield game
            if not answers:
                return
            finished_futures, _ = wait(answers, timeout=TICK_SECONDS, return_when="FIRST_COMPLETED")
            self.tick(answers.values())
            for answer in finished_futures:
                game = answers.pop(answer)
                if game.end is not None:
                    game.adjudication_cp = answer.result().score_cp
                    yield game
                    continue
                game.push(answer.result().move)
                if game.end is None:
                    answers[self._ask(game)] = game
                elif game.is_adjudicated and self.adjudicate is not None:
                    answers[self.opponent.analyse(game.find_judged_board(), self.adjudicate)] = game
                else:
                    yield game

    def _ask(self, game: PlayedGame) -> Future[Any]:
        pool = self.player if game.is_model_to_move else self.opponent
        return pool.submit(game.unit, game.board, key=(*self.noise, game.unit, game.ply))


def play_duel(task: Task[EngineMatchSpec, EngineMatchOptions]) -> None:
    """Play the units of this attempt. Only finished games are emitted."""
    spec = task.spec
    player, opponent = parse_engine(spec.player), parse_engine(spec.opponent)
    adjudicate = None if spec.adjudication == "none" else parse_limit(spec.adjudication)
    record_duel(task, player, opponent)
    limits = (player.limit, opponent.limit, adjudicate)
    is_timed = any(limit is not None and limit.kind == "time" for limit in limits)
    concurrent_games = task.options.engine_processes or count_free_cores()
    concurrent_games = min(concurrent_games, count_free_cores()) if is_timed else concurrent_games
    early_stopping = EarlyStopping(task)
    with ExitStack() as stack:
        pools = [
            stack.enter_context(EnginePool(engine, concurrent_games, is_timed=is_timed))
            for engine in (player, opponent)
        ]
        duel = Duel(
            pools[0],
            pools[1],
            MatchRules(get_model_color(spec), spec.move_limit or NO_MOVE_LIMIT),
            make_opening_source(task),
            (spec.seed, spec.replicate),
            adjudicate,
            concurrent_games,
            tick=lambda games: report_games(task, games, spec.move_limit),
        )
        for ended_game in duel.play(task.units):
            ended_game.seconds = time.monotonic() - ended_game.start_time
            for game in early_stopping.take(ended_game):
                emit_duel_game(task, game, early_stopping)
            if early_stopping.decision:
                break


def emit_duel_game(
    task: Task[EngineMatchSpec, EngineMatchOptions], game: PlayedGame, early_stopping: EarlyStopping
) -> None:
    """Emit the rows of one finished game."""
    columns = build_game_columns(game)
    plies = range(len(game.opening.moves), game.ply)
    turns = sum((ply % 2 == 0) == game.color for ply in plies)
    columns.update(turns=turns, first_try_legal=None, tries=None)
    task.emit("game", game.unit, match=get_match_number(task.spec, game.unit), **columns)
    early_stopping.mark_done(game.unit)


def record_duel(task: Task[EngineMatchSpec, EngineMatchOptions], player: EngineSpec, opponent: EngineSpec) -> None:
    """Record the rows that the games refer to. Raises BadInputError if earlier games of this run used another
    engine."""
    spec = task.spec
    engine, player_engine = build_engine_row(opponent), build_engine_row(player)
    check_engine(task, 0, engine)
    check_engine(task, 0, player_engine, "player")
    evaluator = record_evaluator(task, spec.adjudication if spec.move_limit else "none")
    task.record("engine", **engine)
    if player_engine["id"] != engine["id"]:
        task.record("engine", **player_engine)
    opening = record_opening(task)
    for number, color, planned_games in plan_matches(spec):
        task.record(
            "match",
            run_id=task.run_id,
            number=number,
            player=format_engine_name(player, player_engine),
            checkpoint_id=None,
            intervention_id=None,
            engine_id=engine["id"],
            opponent=opponent.text,
            level=opponent.level,
            limit=opponent.limit.text if opponent.limit else None,
            color=color,
            opening=opening,
            opening_seed=spec.opening_seed,
            policy="engine",
            move_limit=spec.move_limit or None,
            planned=planned_games,
            detail={
                "adjudication": spec.adjudication,
                "player": player.text,
                "player_engine_id": UUID(str(player_engine["id"])).hex,
                "player_level": player.level,
                "player_limit": player.limit.text if player.limit else None,
                "book": spec.book,
                **evaluator,
            },
        )


def format_engine_name(spec: EngineSpec, row: dict[str, Any]) -> str:
    """Return an engine's name as a player: `Stockfish 15.1, level 0, time=0.1`."""
    if not spec.needs_process:
        return spec.name
    limit = spec.limit.text if spec.limit else "depth=1, nodes=1"
    random_text = f", random={spec.random_share:g}" if spec.random_share else ""
    return f"{row['name']} {row['version']}, level {spec.level}, {limit}{random_text}"
