"""`move-quality`: the centipawn loss of a model's moves, at fixed engine nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol
from uuid import UUID

import chess
import numpy as np
import sqlalchemy
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.legality import iterate_first_tries
from chessreg.experiments.matches import TYPICAL_PLIES, build_engine_row, require_same_engine
from chessreg.experiments.settings.choosing import ChoosingSpec
from chessreg.experiments.settings.games import GameBatches, GameSelection, select_games
from chessreg.games.boards.boardframe import BoardFrame, Role
from chessreg.games.boards.moves import unpack_moves
from chessreg.games.engines.opponents import find_stockfish, parse_engine, parse_limit
from chessreg.games.engines.pool import EnginePool, Evaluation
from chessreg.registry import tables
from chessreg.registry.read import find_judge_ids
from chessreg.runs.cost import count_choosing_operations, estimate_search_seconds
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import Plies, Processes, Ref
from chessreg.steering import interventions
from chessreg.steering.interventions import InterventionSettings, select_vector_rows

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

JUDGE = parse_engine("stockfish:20")
MAX_WAITING_BATCHES = 2  # batches of games whose searches may wait while the model writes further moves
MOVE_ROW, GAME_ROW = "centipawn_loss", "game"  # the names of the two kinds of rows
TURNS_PER_GAME = 40  # for estimates


class MoveQualitySpec(ChoosingSpec):
    model_config = ConfigDict(validate_default=True)

    play: Annotated[str | None, Ref("run:play")] = Field(
        None, description="play run whose model's moves are judged. Left out: --checkpoint and --dataset"
    )
    checkpoint: Annotated[str | None, Ref("checkpoint")] = Field(
        None, description="model whose first tries on positions of --dataset are judged. Left out: --play"
    )
    dataset: Annotated[str | None, Ref("dataset")] = Field(
        None, description="games of these positions. Left out: --play"
    )
    games: int = Field(0, ge=0, description="at most this many games, the first ones; 0: all")
    black: bool = Field(False, description="with a dataset: judge Black's turns instead of White's")
    every: Plies = Field(1, ge=1, description="with a dataset: judge every Nth of these turns")
    judge_limit: str = Field("nodes=10000", description="the judge's limit for one search: nodes=N or depth=N")
    cap: int = Field(1000, ge=1, description="cap on evaluations in centipawns, also for mates")
    intervention: InterventionSettings = Field(
        default_factory=InterventionSettings, description="with a dataset: intervention on the model"
    )

    @field_validator("judge_limit")
    @classmethod
    def _check_limit(cls, limit: str) -> str:
        parsed_limit = parse_limit(limit)
        if parsed_limit.kind == "time":
            raise BadInputError(
                f"--judge-limit {limit}: under a time limit the loss depends on the machine", "nodes=10000"
            )
        return parsed_limit.text

    @model_validator(mode="after")
    def _check_source(self) -> MoveQualitySpec:
        sources = {name for name in ("checkpoint", "dataset") if getattr(self, name) is not None}
        if self.play is None and len(sources) < 2:
            raise BadInputError("no moves to judge", "give --play RUN, or --checkpoint and --dataset")
        if self.play is not None:
            sources |= {name for name in ("black",) if self.black} | ({"every"} if self.every != 1 else set())
            sources |= {"intervention"} if self.intervention.active else set()
            sources |= {"policy"} if self.policy != "free" else {"temperatures"} if self.temperatures else set()
            if sources:
                raise BadInputError(
                    f"--play judges the games of a run, so {', '.join(sorted(sources))} cannot be set",
                    "leave it out",
                )
        return self


class MoveQualityOptions(GameBatches):
    engine_processes: Processes = Field(0, ge=0, description="engines that search at once; 0: one for each core")


class MoveDetail(BaseModel):
    """Columns of a judged move (name `centipawn_loss`, item its ply), and of a game (name `game`, item -1)."""

    best: str | None = Field(None, description="of a move: the judge's best move, UCI")
    best_cp: int | None = Field(
        None, description="of a move: the evaluation with the judge's move, capped, from the mover's view"
    )
    move_cp: int | None = Field(None, description="of a move: the evaluation with the played move, likewise")
    legal: bool | None = Field(None, description="of a move: false for an illegal first try")
    color: str | None = Field(None, description="of a game: the model's color")
    game: int | None = Field(None, description="of a game: its row in the dataset, or its unit in the play run")
    judged: int | None = Field(None, description="of a game: number of judged moves")
    illegal: int | None = Field(None, description="of a game: number of illegal first tries, which are not judged")
    median: float | None = Field(None, description="of a game: the median loss")
    checkpoint_id: str | None = Field(None, description="of a game: the model, hex")
    intervention_id: str | None = Field(None, description="of a game: the intervention on the model, hex")
    engine_id: str | None = Field(None, description="of a game: the judge, hex")


class MoveQuality(Kind):
    """Centipawn loss of a model's moves in a play run, or of its first tries on the positions of a dataset.

    First tries are greedy texts; --policy chooses moves in another way. Loss is the judge's evaluation with its own
    best move minus that with the played move. Both are searched from the same position under the same limit, both are
    capped, and the loss is never below 0. One unit is one game. Rows of `prediction`: one per move (name
    `centipawn_loss`, item the ply, value the loss, text the move) and one per game (name `game`, item -1, value the
    mean loss, empty if nothing was judged).
    """

    name = "move-quality"
    main_settings = (
        "play",
        "checkpoint",
        "dataset",
        "games",
        "every",
        "policy",
        "judge_limit",
        "intervention.vector",
        "intervention.layers",
        "intervention.scale",
    )
    tables = ("prediction",)
    spec = MoveQualitySpec
    options = MoveQualityOptions
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {"prediction": MoveDetail}
    example = "--checkpoint reference --dataset sample:test --games 4 --every 8 --judge-limit nodes=100"

    def units(self, spec: MoveQualitySpec, inputs: Inputs) -> int:
        return open_move_source(spec, inputs).count

    def check(self, spec: MoveQualitySpec, inputs: Inputs) -> None:
        """Raise an error for an engine, a vector or an encoding that is not available."""
        find_stockfish()
        if spec.checkpoint is not None:
            checkpoint, _ = inputs.checkpoint(spec.checkpoint)
            inputs.encoding(spec.checkpoint)  # raises NotFoundError
            if spec.intervention.active:
                select_vector_rows(spec.intervention, checkpoint, inputs)

    def estimate(self, spec: MoveQualitySpec, inputs: Inputs) -> RunEstimate:
        games = self.units(spec, inputs)
        turns = games * TURNS_PER_GAME // spec.every
        return RunEstimate(
            {"prediction": games * (1 + TURNS_PER_GAME // spec.every)},
            operations=count_choosing_operations(spec.checkpoint, inputs, games, turns) if spec.checkpoint else 0.0,
            cpu_seconds=2 * turns * estimate_search_seconds(spec.judge_limit),
            remarks=(f"about {TURNS_PER_GAME} turns a game; each needs one search, or two if the moves differ",),
        )

    def run(self, task: Task[MoveQualitySpec, MoveQualityOptions]) -> None:
        judge_moves(task)

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """Return a board for each judged move of a game, with the move and the judge's move as arrows."""
        return build_move_frames(row, inputs)


# -- the moves ---------------------------------------------------------------------------------------------------


@dataclass
class JudgedTurn:
    """A move to judge. `move` is `None` if the text was not a legal move."""

    ply: int
    board: chess.Board
    text: str
    move: chess.Move | None
    best: Future[Evaluation] | None = None
    move_evaluation: Future[Evaluation] | None = None


@dataclass
class JudgedGame:
    """The moves of one game. `game` is its row in the dataset or its unit in the play run."""

    unit: int
    game: int
    turns: list[JudgedTurn] = field(default_factory=list)


class MoveSource(Protocol):
    """The origin of the moves."""

    count: int
    checkpoint_id: UUID | None
    intervention_id: UUID | None

    def games(self, task: Task[MoveQualitySpec, MoveQualityOptions]) -> Iterator[JudgedGame]:
        """Yield the games of the task's units, in order."""
        ...

    def moves(self, unit: int) -> tuple[int, list[chess.Move]]:
        """Return the game's number and all its moves."""
        ...

    def color(self, unit: int) -> str:
        """Return the model's color in this game."""
        ...


class PlayedMoves:
    """The moves of the model in a play run."""

    def __init__(self, spec: MoveQualitySpec, inputs: Inputs) -> None:
        assert spec.play is not None
        self.run = inputs.run(spec.play, "play")
        self.inputs = inputs
        with inputs.database.read() as session:
            games = sqlalchemy.select(sqlalchemy.func.count()).where(tables.Game.run_id == self.run.id)
            played_games = session.scalar(games) or 0
            match = session.get_one(tables.Match, (self.run.id, 0))
            self.checkpoint_id, self.intervention_id = match.checkpoint_id, match.intervention_id
        self.count = min(
            spec.games or played_games, played_games
        )  # a match that stopped early has fewer games than units

    def color(self, unit: int) -> str:
        """Return the model's color in a game, white or black."""
        setting = str(self.run.spec["color"])
        return ("white", "black")[unit % 2] if setting == "both" else setting

    def _read_game_row(self, unit: int) -> tables.Game:
        """Return the stored game of a unit. Raises NotFoundError if the play run has none."""
        with self.inputs.database.read() as session:
            row = session.get(tables.Game, (self.run.id, unit))
            if row is None:
                raise NotFoundError(f"play run {self.run.id.hex[-6:]} has no game {unit}")
            session.expunge(row)
        return row

    def games(self, task: Task[MoveQualitySpec, MoveQualityOptions]) -> Iterator[JudgedGame]:
        """Yield each game with the turns at which the model itself moved, after the opening."""
        for unit in task.units:
            row, is_own_side = self._read_game_row(unit), self.color(unit) == "white"
            game, board = JudgedGame(unit, unit), chess.Board()
            tries = iter(row.tries or b"" if (row.detail or {}).get("assisted") else b"")
            for ply, move in enumerate(unpack_moves(row.moves)):
                # 0: Stockfish moved for the model
                if ply >= row.opening_plies and board.turn == is_own_side and next(tries, 1):
                    game.turns.append(JudgedTurn(ply, board.copy(), move.uci(), move))
                board.push(move)
            yield game

    def moves(self, unit: int) -> tuple[int, list[chess.Move]]:
        """Return the number and the moves of the game of a unit."""
        return unit, unpack_moves(self._read_game_row(unit).moves)


class FirstTries:
    """The first tries of a model at the turns of a dataset's games."""

    def __init__(self, spec: MoveQualitySpec, inputs: Inputs) -> None:
        assert spec.checkpoint is not None
        assert spec.dataset is not None
        all_games = GameSelection(dataset=spec.dataset, games=spec.games or 1 << 62)
        self.dataset, self.places = select_games(all_games, inputs)
        self.count = len(self.places)
        inputs.note_shortage(spec, "games", self.count)
        checkpoint, self.folder = inputs.checkpoint(spec.checkpoint)
        self.checkpoint_id: UUID | None = checkpoint.id
        self._checkpoint, self._load, self._inputs, self._spec = (
            checkpoint,
            interventions.load_intervention,
            inputs,
            spec,
        )
        self.intervention_id: UUID | None = None

    def games(self, task: Task[MoveQualitySpec, MoveQualityOptions]) -> Iterator[JudgedGame]:
        """Yield each game with the model's first tries at its turns. Records the intervention if there is one."""
        from chessreg.models.devices import prepare_device
        from chessreg.models.language_model import LanguageModel

        spec, device = self._spec, prepare_device(task.options.device, task.options.threads)
        model = LanguageModel.load(self.folder, device=device)
        intervention = self._load(spec.intervention, self._checkpoint, self._inputs)
        if intervention is not None:
            self.intervention_id = intervention.id
            task.record("intervention", **intervention.row)
        for start in range(0, len(task.units), task.options.batch_games):
            units = task.units[start : start + task.options.batch_games]
            games = [JudgedGame(unit, int(self.places[unit])) for unit in units]
            edits = intervention.build_edits(device) if intervention else ()
            for turns in iterate_first_tries(
                model, self.dataset, self.places[units], black=spec.black, every=spec.every, edits=edits,
                policy=spec.make_chooser(), seed=spec.seed,
            ):  # fmt: skip
                for turn in turns:
                    judged_turn = JudgedTurn(turn.ply, turn.board.copy(), turn.text, turn.move)
                    games[turn.game].turns.append(judged_turn)
                ply = turns[0].ply if turns else 0
                done_games = start + len(units) * min(ply / TYPICAL_PLIES, 0.99)
                # writing counts as half of the work, searching as the other half
                task.progress((task.units_done + done_games) / 2 / len(task.units), f"ply {ply} of {len(units)} games")
            yield from games

    def color(self, unit: int) -> str:
        """Return the color of the judged turns, white or black."""
        return "black" if self._spec.black else "white"

    def moves(self, unit: int) -> tuple[int, list[chess.Move]]:
        """Return the dataset's row and the moves of the game of a unit."""
        place = int(self.places[unit])
        return place, unpack_moves(self.dataset.moves([place])[0])


def open_move_source(spec: MoveQualitySpec, inputs: Inputs) -> MoveSource:
    """Return the origin of this spec's moves. Raises NotFoundError or BadInputError if it is missing or incomplete."""
    return PlayedMoves(spec, inputs) if spec.play is not None else FirstTries(spec, inputs)


def judge_moves(task: Task[MoveQualitySpec, MoveQualityOptions]) -> None:
    """Search for every move of the task's games. Searches of some games run while the model writes others.

    Raises BadInputError if another engine judged earlier games of this run.
    """
    spec, options = task.spec, task.options
    moves, limit = open_move_source(spec, task.inputs), parse_limit(spec.judge_limit)
    engine = build_engine_row(JUDGE)
    with task.inputs.database.read() as session:
        require_same_engine(session, task.run_id, find_judge_ids(session, task.run_id), engine, "judge")
    task.record("engine", **engine)
    own_searches: deque[JudgedGame] = deque()  # the engine's own move is being searched
    comparisons: deque[JudgedGame] = deque()  # the model's move is searched too, if it differs
    with EnginePool(JUDGE, options.engine_processes or None) as pool:

        def compare() -> None:
            game = own_searches.popleft()
            for turn in game.turns:
                if turn.best is not None and turn.best.result().move != turn.move:
                    turn.move_evaluation = pool.analyse(turn.board, limit, turn.move)
            comparisons.append(game)

        def finish() -> None:
            game = comparisons.popleft()
            emit_judged_game(task, moves, game, engine["id"])

        for game in moves.games(task):
            for turn in game.turns:
                if turn.move is not None:
                    turn.best = pool.analyse(turn.board, limit)
            own_searches.append(game)
            task.progress(task.fraction, "")
            if len(own_searches) > MAX_WAITING_BATCHES * options.batch_games:
                compare()
            if len(comparisons) > options.batch_games:
                finish()
        while own_searches:
            compare()
            if len(comparisons) > options.batch_games:
                finish()
        while comparisons:
            finish()


def emit_judged_game(
    task: Task[MoveQualitySpec, MoveQualityOptions], moves: MoveSource, game: JudgedGame, engine_id: UUID
) -> None:
    """Emit the rows of one game."""
    losses: list[int] = []
    cap = task.spec.cap
    for turn in game.turns:
        if turn.best is None:
            row = {"item": turn.ply, "name": MOVE_ROW, "text": turn.text[:32], "value": None}
            task.emit("prediction", game.unit, MoveDetail(legal=False), **row)
            continue
        sign = 1 if turn.board.turn == chess.WHITE else -1
        best_answer = turn.best.result()
        best_cp = clip_centipawns(sign * best_answer.score_cp, cap)
        move_cp = (
            best_cp
            if turn.move_evaluation is None
            else clip_centipawns(sign * turn.move_evaluation.result().score_cp, cap)
        )
        losses.append(max(0, best_cp - move_cp))
        extra = MoveDetail(
            best=best_answer.move.uci() if best_answer.move else None, best_cp=best_cp, move_cp=move_cp, legal=True
        )
        text = turn.move.uci() if turn.move else turn.text
        task.emit("prediction", game.unit, extra, item=turn.ply, name=MOVE_ROW, text=text, value=float(losses[-1]))
    summary = MoveDetail(
        color=moves.color(game.unit),
        game=game.game,
        judged=len(losses),
        illegal=len(game.turns) - len(losses),
        median=float(np.median(losses)) if losses else None,
        checkpoint_id=moves.checkpoint_id.hex if moves.checkpoint_id else None,
        intervention_id=moves.intervention_id.hex if moves.intervention_id else None,
        engine_id=engine_id.hex,
    )
    mean = float(np.mean(losses)) if losses else None
    task.emit("prediction", game.unit, summary, item=-1, name=GAME_ROW, text=None, value=mean)
    task.done(game.unit)


def clip_centipawns(score_cp: int, cap: int) -> int:
    """Return a score in centipawns, limited to -cap to cap. Mates have larger scores than any sensible cap.

    >>> clip_centipawns(9_997, 1000), clip_centipawns(-130, 1000)
    (1000, -130)
    """
    return max(-cap, min(cap, score_cp))


def build_move_frames(row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
    """Return one frame for each judged move of a unit."""
    games = open_move_source(MoveQualitySpec(**inputs.read_spec(row)), inputs)
    number, moves = games.moves(int(row["unit"]))
    is_flipped = games.color(int(row["unit"])) == "black"
    rows = inputs.read_unit_rows(tables.Prediction, row, tables.Prediction.item)
    judged_rows = {one.item: one for one in rows if one.name == MOVE_ROW}
    views, board = [], chess.Board()
    for ply, move in enumerate(moves):
        if ply in judged_rows:
            frame = _build_move_frame(board, judged_rows[ply], f"game {number}, ply {ply}", is_flipped)
            views.append(replace(frame, ply=ply))
        board.push(move)
    return views


def _build_move_frame(board: chess.Board, row: tables.Prediction, title: str, is_flipped: bool) -> BoardFrame:
    """Return the position with the model's move, the engine's best move if it differs, and the loss in centipawns."""
    extra = row.detail or {}
    if not extra.get("legal"):
        return BoardFrame.from_board(
            board, title, caption=[f"the model writes {row.text!r}: illegal"], flipped=is_flipped
        )
    played_move, best_move = chess.Move.from_uci(row.text or ""), chess.Move.from_uci(extra["best"])
    mover = 1 if board.turn == chess.WHITE else -1
    arrows: list[tuple[int, int, float, str, Role]] = [
        (
            played_move.from_square,
            played_move.to_square,
            1.0,
            f"{board.san(played_move)} (model)",
            "best" if played_move == best_move else "played",
        )
    ]
    caption = [f"{board.san(played_move)}: {extra['move_cp'] / 100:+.2f}, loss {row.value:.0f} centipawns"]
    if played_move != best_move:
        arrows.append((best_move.from_square, best_move.to_square, 0.4, f"{board.san(best_move)} (engine)", "best"))
        caption.append(f"best {board.san(best_move)}: {extra['best_cp'] / 100:+.2f}")
    return BoardFrame.from_board(
        board, title, arrows=arrows, caption=caption, flipped=is_flipped, evaluation=mover * extra["best_cp"]
    )
