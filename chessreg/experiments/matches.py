"""Settings, openings, games and rows that all kinds of matches share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self
from uuid import UUID

import chess
import numpy as np
from pydantic import Field, field_validator, model_validator
from sqlalchemy import select

from chessreg.errors import BadInputError
from chessreg.games.boards.adjudication import (
    ADJUDICATED_ENDS,
    GameEnd,
    Termination,
    find_game_end,
    make_loss,
    score_game,
)
from chessreg.games.boards.moves import pack_moves
from chessreg.games.boards.openings import Book, Opening, OpeningSpec, make_openings, parse_opening
from chessreg.games.engines.assist import can_take_over
from chessreg.games.engines.opponents import EngineSpec, identify_engine, parse_engine, parse_limit
from chessreg.games.engines.sprt import COLOR_PAIR_VALUES, DIFFERENCE_VALUES, compute_log_likelihood_ratio, parse_stop
from chessreg.registry import tables
from chessreg.registry.identity import hash_canonical_json, make_uuid, shorten_id
from chessreg.registry.names import read_name
from chessreg.registry.read import EVALUATORS, describe_engine, get_engine_ids
from chessreg.registry.tables.types import get_utc_now
from chessreg.runs.spec import Spec

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from chessreg.games.engines.pool import Evaluation
    from chessreg.models.decoding.policies import MoveChoice
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task


class MatchSpec(Spec):
    """The settings that all matches share, with one spelling of `opening`, `book` and `adjudication`.

    Equal matches therefore hash equally. Each spec declares these fields with its own defaults.
    """

    stop: str = Field(
        "none",
        description="stop early by a sequential test, such as sprt:-0.05,0.05 (LOW,HIGH in points per "
        "game[,ALPHA,BETA]) over pairs of games from one opening, of --against or of --color both. Left "
        "out: play all games",
    )

    @model_validator(mode="before")
    @classmethod
    def _split_book(cls, values: Any) -> Any:
        """Split `book:FILE` into the source `book` and its file, which is then identified by its content."""
        if isinstance(values, dict) and str(values.get("opening", "")).startswith("book:"):
            return {**values, "opening": "book", "book": values["opening"].removeprefix("book:")}
        return values

    @field_validator("opening", check_fields=False)
    @classmethod
    def _normalize_opening_source(cls, opening: str) -> str:
        return opening if opening == "book" else parse_opening(opening).text

    @field_validator("player", "opponent", check_fields=False)
    @classmethod
    def _normalize_engine(cls, engine: str) -> str:
        return parse_engine(engine).text

    @field_validator("adjudication", check_fields=False)
    @classmethod
    def _normalize_evaluation_limit(cls, adjudication: str) -> str:
        return "none" if adjudication == "none" else parse_limit(adjudication).text

    @field_validator("stop")
    @classmethod
    def _normalize_stop_rule(cls, stop: str) -> str:
        rule = parse_stop(stop)
        return rule.text if rule else "none"

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        opponent_run, has_both_colors = getattr(self, "against", None), getattr(self, "color", "") == "both"
        if self.stop != "none" and opponent_run is None and not has_both_colors:
            raise BadInputError(
                "--stop needs pairs of games from one opening",
                "give --against RUN (a match with the same openings, such as one without an edit), or --color both",
            )
        if self.stop == "none" and opponent_run is not None:
            raise BadInputError("--against has no effect without --stop", "give --stop sprt:-0.05,0.05")
        rule = parse_stop(self.stop)
        if rule and opponent_run is None and not COLOR_PAIR_VALUES[0] < rule.low < rule.high < COLOR_PAIR_VALUES[-1]:
            raise BadInputError(
                f"--stop {self.stop}: the bounds must be between {COLOR_PAIR_VALUES[0]} and {COLOR_PAIR_VALUES[-1]}",
                "give for example --stop sprt:-0.05,0.05",
            )
        return self

    def without_effect(self) -> dict[str, str]:
        """Return the settings without effect, and the reason for each.

        The seed of the openings is not among them: a paper uses one seed for all of its matches, including those from
        the standard position, and the command that reproduces such a run must be accepted.
        """
        opening, idle = getattr(self, "opening", ""), super().without_effect()
        if not opening.startswith("random"):
            idle["finished_openings"] = f"no plies are drawn for the opening {opening}"
        if getattr(self, "adjudication", "") == "none":
            idle["adjudicate_at"] = "no stopped game is evaluated"
        return idle

    @model_validator(mode="after")
    def _check_book(self) -> Self:
        if (getattr(self, "opening", "") == "book") != (getattr(self, "book", None) is not None):
            raise BadInputError("--opening book needs a file", "write --opening book:FILE")
        return self


# -- openings ----------------------------------------------------------------------------------------------------


class OpeningSettings(Protocol):
    """The settings that determine the openings and colors of the games."""

    @property
    def book(self) -> str | None: ...
    @property
    def color(self) -> str: ...
    @property
    def games(self) -> int: ...
    @property
    def opening_seed(self) -> int: ...
    @property
    def opening_source(self) -> str: ...


def make_opening_source(task: Task[Any, Any]) -> Callable[[int], Opening]:
    """Return a function from unit to opening, equal in every arm with the same opening and opening seed.

    Game n of each opponent has opening n. With both colors, games 2n and 2n + 1 have opening n.
    """
    spec: OpeningSettings = task.spec
    source = OpeningSpec("book", str(find_book(task)[1])) if spec.book else parse_opening(spec.opening_source)
    games = 2 if spec.color == "both" else 1
    return lambda unit: make_openings(source, spec.opening_seed, [unit % spec.games // games])[0]


def record_opening(task: Task[Any, Any]) -> str:
    """Return the match's name for its openings. A book is recorded first."""
    spec: OpeningSettings = task.spec
    return record_book(task) if spec.book else spec.opening_source


def record_book(task: Task[Any, Any]) -> str:
    """Record the book of this match, and return the match's name for it."""
    digest, path = find_book(task)
    task.record(
        "artifact", digest=digest, kind="book", bytes=path.stat().st_size, state="complete", created_at=get_utc_now()
    )
    task.record(
        "opening_book",
        digest=digest,
        source=path.name,
        format=path.suffix.removeprefix("."),
        openings=len(Book.read(path).lines),
        created_at=get_utc_now(),
    )
    return f"book:{digest[:32]}"


def find_book(task: Task[Any, Any]) -> tuple[str, Path]:
    """Return the digest and the file of the book."""
    assert task.spec.book
    artifact = task.inputs.artifact("book", task.spec.book)
    return artifact.digest, task.store.artifact(artifact.digest).file


def get_model_color(spec: OpeningSettings) -> chess.Color | None:
    """Return the model's color in every game; None: White in games of even number, Black in the others."""
    return {"white": chess.WHITE, "black": chess.BLACK}.get(spec.color)


def plan_matches(spec: OpeningSettings) -> list[tuple[int, str, int]]:
    """Return the matches of a run: number, color of the model, planned games. With both colors there is one match for
    each."""
    if spec.color != "both":
        return [(0, spec.color, spec.games)]
    return [(0, "white", (spec.games + 1) // 2), (1, "black", spec.games // 2)]


def get_match_number(spec: OpeningSettings, unit: int) -> int:
    """Return the number of a unit's match. Matches of a ladder are numbered rung by rung."""
    rung = unit // spec.games
    return 2 * rung + unit % 2 if spec.color == "both" else rung


# -- one game ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatchRules:
    """Conditions that end a game in addition to the rules of chess, as in chess_gpt_eval.

    `move_limit` full moves are counted from the end of the opening. If the model's context cannot hold one more move,
    `context_full` decides: `adjudicate` (like the move limit), `forfeit`, or `crop` (continue with the newest
    characters, as chess_gpt_eval does). A stopped game is evaluated at its end, or after White's move number
    `adjudicate_at` if that is not 0 and the game reached it (chess_gpt_eval's notebook: 90). With `claim_draws`, a
    third repetition or fifty moves end the game as a draw.
    """

    color: chess.Color | None  # the model's color; None: alternating
    move_limit: int = 90
    context_full: Literal["adjudicate", "forfeit", "crop"] = "adjudicate"
    adjudicate_at: int = 0
    claim_draws: bool = False


@dataclass
class PlayedGame:
    """A game in play.

    `tries` has one entry for each turn of the model. `illegal` is (ply, number, text). `assisted_plies` are the plies
    that Stockfish played for the model, after 0 tries. `unaided_ply` is the last at which Stockfish declined to play.
    `draw_cp`: White's centipawns before the model's last move of a drawn game.
    """

    unit: int
    opening: Opening
    rules: MatchRules
    board: chess.Board = field(init=False)
    sans: list[str] = field(init=False)
    tries: list[int] = field(default_factory=list)
    first_try_legal: int = 0
    illegal: list[tuple[int, int, str]] = field(default_factory=list)
    legal_mass: list[float] = field(default_factory=list)
    end: GameEnd | None = None
    adjudication_cp: int | None = None
    draw_cp: int | None = None
    assisted_plies: list[int] = field(default_factory=list)
    unaided_ply: int = -1
    start_time: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.board = self.opening.board()
        self.sans = list(self.opening.sans)
        self.end = find_game_end(self.board, self.rules.claim_draws)  # random-2024 returns finished games

    @property
    def is_model_to_move(self) -> bool:
        """Whether the game has not ended and the model is to move."""
        return self.end is None and self.board.turn == self.color

    @property
    def color(self) -> chess.Color:
        """The model's color. In a match with both colors, White in games of even number."""
        return self.unit % 2 == 0 if self.rules.color is None else self.rules.color

    @property
    def ply(self) -> int:
        """Number of plies so far, including the opening."""
        return len(self.sans)

    @property
    def is_adjudicated(self) -> bool:
        """Whether the game was stopped in play, so that an evaluation decides its result."""
        return self.end is not None and self.end.termination in ADJUDICATED_ENDS and self.end.result == "*"

    def find_judged_board(self) -> chess.Board:
        """Return the position that is evaluated if the game is stopped."""
        plies = 2 * self.rules.adjudicate_at - 1
        if not 0 < plies < self.ply:
            return self.board
        board = self.board.root()
        for move in self.board.move_stack[:plies]:
            board.push(move)
        return board

    def push(self, move: chess.Move) -> None:
        """Play a legal move, and end the game if the move ends it."""
        self.sans.append(self.board.san_and_push(move))
        self.end = find_game_end(self.board, self.rules.claim_draws)
        if self.end is None and self.ply - len(self.opening.moves) >= 2 * self.rules.move_limit:
            self.end = GameEnd(Termination.MOVE_LIMIT, "*")

    def take(self, choice: MoveChoice) -> None:
        """Play the model's turn: its move, or the forfeit or resignation that ends the game."""
        self.tries.append(choice.tries)
        self.first_try_legal += choice.move is not None and not choice.illegal
        self.illegal += [(self.ply, number, text) for number, text in enumerate(choice.illegal)]
        if choice.legal_mass is not None:
            self.legal_mass.append(choice.legal_mass)
        if choice.move is not None:
            self.push(choice.move)
        else:
            termination = Termination.RESIGNATION if choice.is_resignation else Termination.FORFEIT_ILLEGAL
            self.end = make_loss(self.color, termination)

    def advise(self, lines: Sequence[Evaluation]) -> None:
        """Apply Stockfish's evaluation before a turn of the model: play its best move if it wins in any case."""
        best = lines[0].move if can_take_over(lines, self.board.turn) else None
        if best is None:
            self.unaided_ply = self.ply
            return
        self.assisted_plies.append(self.ply)
        self.tries.append(0)
        self.push(best)

    def find_last_choice(self) -> chess.Board | None:
        """Return the position of the model's last move; None if it never moved."""
        board = self.board.copy()
        while len(board.move_stack) > len(self.opening.moves):
            board.pop()
            if board.turn == self.color:
                return board
        return None

    def fill_context(self) -> None:
        """End the game by the rules, because the model's context is full."""
        if self.rules.context_full == "forfeit":
            self.end = make_loss(self.color, Termination.CONTEXT_FULL)
        else:
            self.end = GameEnd(Termination.CONTEXT_FULL, "*")


# -- early stopping ----------------------------------------------------------------------------------------------


TYPICAL_PLIES = 120  # of a game without a move limit, to estimate progress


def report_games(task: Task[Any, Any], games: Iterable[PlayedGame], move_limit: int | None) -> None:
    """Report the progress of the games that are not emitted.

    Each game counts by its plies, because the games of a batch end late and together. A game that has ended counts
    as 0.99 until it is evaluated.
    """
    games = list(games)
    longest = 2 * move_limit if move_limit else TYPICAL_PLIES
    played_plies = [game.ply - len(game.opening.moves) for game in games]
    share = sum(
        0.99 if game.end else min(plies / longest, 0.99) for game, plies in zip(games, played_plies, strict=True)
    )
    ended_games = sum(game.end is not None for game in games)
    text = f"{sum(played_plies):,} plies of {len(games) - ended_games} games in play" if games else ""
    if ended_games:
        text += f", {ended_games} in evaluation"
    task.progress(min((task.units_done + share) / max(len(task.units), 1), 1.0), text)


class EarlyStopping:
    """The games of a match that count: all of them, or up to the pair at which the stopping rule decides.

    Pairs are counted in the order of their units, and a game is emitted after all games before it. The order in which
    games end, the number of parallel games and interruptions therefore do not change the result.
    """

    def __init__(self, task: Task[Any, Any]) -> None:
        self.task, self.rule = task, parse_stop(task.spec.stop)
        self.pending_games: dict[int, PlayedGame] = {}
        self.next, self.decision, self.counts = 0, "", [0] * 5
        if self.rule is None:
            return
        # another process may work on these units as well; they are counted here in any case
        own_units = frozenset(task.units)
        with task.inputs.database.read() as session:
            self.points = {
                unit: points for unit, points in load_game_points(session, task.run_id).items() if unit not in own_units
            }
            opponent_run = task.spec.against
            self.base = None if opponent_run is None else load_game_points(session, task.inputs.run(opponent_run).id)
        self.values = COLOR_PAIR_VALUES if self.base is None else DIFFERENCE_VALUES
        while self.next in self.points:  # of earlier attempts, which did not decide the match
            self._count(self.next)

    def take(self, game: PlayedGame) -> Iterator[PlayedGame]:
        """Yield the games that can be emitted now that this game has ended, in the order of their units."""
        if self.rule is None:
            yield game
            return
        self.pending_games[game.unit] = game
        while not self.decision and (ended_game := self.pending_games.pop(self.next, None)) is not None:
            assert ended_game.end is not None
            color = "white" if ended_game.color else "black"
            self.points[ended_game.unit] = score_game_points(
                color, ended_game.end.result, ended_game.end.termination, ended_game.adjudication_cp
            )
            self._count(ended_game.unit)
            self.decision = self.rule.decision(self.counts, self.values)
            yield ended_game
            while self.next in self.points:
                self._count(self.next)

    def _count(self, unit: int) -> None:
        """Count the pair that this unit completes. A pair with an unscored game does not count."""
        self.next = unit + 1
        own_points = self.points[unit]
        other = self.points.get(unit - 1) if self.base is None else self.base.get(unit)
        if own_points is None or other is None or (self.base is None and unit % 2 == 0):
            return
        self.counts[round(2 * (own_points + other) if self.base is None else 2 * (own_points - other) + 2)] += 1

    def mark_done(self, unit: int) -> None:
        """Mark a unit whose rows were emitted as done.

        With the last counted unit, also emit the result of the test and mark the units that will not be played as done.
        """
        task, rest = self.task, []
        if self.rule is not None and (self.decision or unit == task.spec.games - 1):
            ratio = compute_log_likelihood_ratio(self.counts, self.values, self.rule.low, self.rule.high)
            result_texts = {"low": f"accepts {self.rule.low:g}", "high": f"accepts {self.rule.high:g}"}
            name = f"{self.rule.text} {result_texts.get(self.decision, 'undecided')}"
            task.emit(
                "statistic", unit, name=name, value=ratio, low=None, high=None, p=None, n=sum(self.counts), detail=None
            )
            rest = [later_unit for later_unit in task.units if later_unit > unit]
        task.done(unit, *rest)


def score_game_points(color: str, result: str, termination: str, cp: int | None) -> float | None:
    """Return the points (0, ½ or 1) of a game for its model under the paper's rule; None if nothing scores it.

    `color` is the model's, and `cp` the evaluation in centipawns of a game that was stopped, or None. An illegal move
    loses.
    """
    if termination == Termination.FORFEIT_ILLEGAL:
        return 0.0
    return score_game("paper", chess.WHITE if color == "white" else chess.BLACK, result, cp)


def load_game_points(session: Session, run_id: UUID) -> dict[int, float | None]:
    """Return the points of every stored game of a run, by unit."""
    game, match = tables.Game, tables.Match
    rows = session.execute(
        select(game.unit, match.color, game.result, game.termination, game.adjudication_cp)
        .join(match, (match.run_id == game.run_id) & (match.number == game.match))
        .where(game.run_id == run_id)
    )
    return {unit: score_game_points(color, *end_fields) for unit, color, *end_fields in rows}  # type: ignore[arg-type]


def describe_stopping(spec: Any) -> tuple[str, ...]:
    """Return the remark of a dry run for a match that may stop early."""
    if spec.stop == "none":
        return ()
    return (f"{spec.stop} may end the match after fewer games; one shard plays all of them in order",)


PAIRED_SETTINGS = (
    *("color", "opening", "opening_seed", "book", "finished_openings", "opponent", "move_limit", "adjudication"),
    *("adjudicate_at", "policy"),
)


def check_pairs(spec: Any, inputs: Inputs) -> None:
    """Raise BadInputError if the games of the --against match cannot be paired with these: other settings, or fewer
    games."""
    if spec.against is None:
        return
    run = inputs.run(spec.against)
    other = type(spec)(**run.spec)
    differing_names = [name for name in PAIRED_SETTINGS if getattr(spec, name, None) != getattr(other, name, None)]
    if differing_names:
        option_list = ", ".join(f"--{name.replace('_', '-')} {getattr(other, name)}" for name in differing_names)
        raise BadInputError(
            f"the match of --against was played with {option_list}: its games cannot be paired with these"
        )
    with inputs.database.read() as session:
        available_games = len(load_game_points(session, run.id))
    if available_games < spec.games:
        raise BadInputError(
            f"the match of --against has {available_games:,} games, and this one has {spec.games:,}",
            f"--games {available_games}",
        )


# -- rows --------------------------------------------------------------------------------------------------------


EVALUATOR = parse_engine("stockfish:20")  # evaluates positions at full strength


def build_engine_row(spec: EngineSpec) -> dict[str, Any]:
    """Return the row of `engine` for this opponent: the local Stockfish binary, or a built-in mover.

    Raises NotFoundError if the opponent needs Stockfish and it is not installed.
    """
    if spec.needs_process:
        engine = identify_engine()
        columns: dict[str, Any] = {
            "name": engine.name,
            "version": engine.version,
            "binary_sha256": engine.sha256,
            "options": dict(engine.options),
        }
    else:
        columns = {"name": spec.kind, "version": "1", "binary_sha256": None, "options": {}}
    return {"id": make_uuid(hash_canonical_json(columns)), **columns}


def explain_chance(engines: Sequence[str], *evaluations: str) -> str:
    """Return why games of these engines do not replay move by move: engines without a seed and limits in seconds; empty
    if they replay.

    `evaluations` are the limits under which positions are evaluated; each may be `none`.
    """
    specs = [parse_engine(engine) for engine in engines]
    limits = [*(spec.limit for spec in specs), *(parse_limit(text) for text in evaluations if text != "none")]
    timed_texts = dict.fromkeys(limit.text for limit in limits if limit is not None and limit.kind == "time")
    reasons = [f"the limit {text} depends on the speed of the machine" for text in timed_texts]
    if any(not spec.seedable and (spec.limit is None or spec.limit.kind != "time") for spec in specs):
        reasons.insert(0, "Stockfish below its full level draws moves at random, without a seed")
    return ", and ".join(reasons)


ENGINE_ROLES = {"opponent": "played against", "player": "played by", "evaluator": "evaluated by", "judge": "judged by"}


def check_engine(task: Task[Any, Any], number: int, engine: dict[str, Any], role: str = "opponent") -> None:
    """Raise BadInputError if earlier games of match `number` had another engine in this role, because they cannot be
    pooled. A match that does not record an engine in this role is accepted."""
    with task.inputs.database.read() as session:
        match = session.get(tables.Match, (task.run_id, number))
        if match is not None:
            require_same_engine(session, task.run_id, get_engine_ids(match)[role], engine, role)


def require_same_engine(
    session: Session, run_id: UUID, earlier_ids: Sequence[UUID], engine: dict[str, Any], role: str
) -> None:
    """Raise BadInputError if `engine`, a row of `engine`, is not among the recorded engines of this role."""
    if not earlier_ids or engine["id"] in earlier_ids:
        return
    row = session.get(tables.Engine, earlier_ids[0])
    earlier = "another engine" if row is None else describe_engine(row.name, row.version, row.binary_sha256)
    current = describe_engine(engine["name"], engine["version"], engine["binary_sha256"])
    if earlier == current:
        current += " with other options"
    place, fix = "the engine", "start a separate run with --replicate 1"
    if engine["binary_sha256"]:
        place, fix = identify_engine().path, f"set CHESSREG_STOCKFISH to the earlier program, or {fix}"
    raise BadInputError(
        f"the earlier games of run {shorten_id(run_id)} were {ENGINE_ROLES[role]} {earlier}, but {place} is {current}",
        fix,
    )


def record_evaluator(task: Task[Any, Any], *limits: str) -> dict[str, list[str]]:
    """Record the engine that evaluates positions under these limits. Return its entry in the detail of a match.

    The entry is empty if every limit is `none`, and Stockfish need not be installed then. Raises NotFoundError if it is
    missing otherwise, and BadInputError if another engine evaluated earlier games of this run.
    """
    if all(limit == "none" for limit in limits):
        return {}
    engine = build_engine_row(EVALUATOR)
    check_engine(task, 0, engine, "evaluator")
    task.record("engine", **engine)
    return {EVALUATORS: [engine["id"].hex]}


def build_game_columns(game: PlayedGame) -> dict[str, Any]:
    """Return the columns of a finished game, except its key and its detail."""
    assert game.end is not None
    return {
        "opening_number": game.opening.number,
        "opening_plies": len(game.opening.moves),
        "plies": game.ply,
        "result": game.end.result,
        "termination": str(game.end.termination),
        "adjudication_cp": game.adjudication_cp,
        "turns": len(game.tries) - len(game.assisted_plies),
        "first_try_legal": game.first_try_legal,
        "tries": np.array(game.tries, np.uint8).tobytes(),
        "moves": pack_moves(game.board.move_stack),
        "seconds": round(game.seconds, 3),
    }


def name_player(session: Session, checkpoint_id: UUID) -> str:
    """Return a match's name for the model: the checkpoint's current name, or its short id."""
    return read_name(session, "checkpoint", checkpoint_id) or f"checkpoint {shorten_id(checkpoint_id)}"
