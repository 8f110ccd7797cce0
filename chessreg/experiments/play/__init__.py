"""`play`: games of a model against the opponents of a ladder, optionally with an intervention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self
from uuid import UUID

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from chessreg.entities.game import read_stored_games
from chessreg.errors import BadInputError, NotFoundError
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
    name_player,
    plan_matches,
    record_evaluator,
    record_opening,
    report_games,
)
from chessreg.experiments.play.arena import Arena, EngineRoles, ModelPlayer
from chessreg.experiments.settings.overlap import OPENING_PLIES, load_training_items
from chessreg.games.boards.moves import hash_move_lists, hash_moves
from chessreg.games.datasets.dataset import Games
from chessreg.games.engines.assist import ASSIST_LIMIT, Assist
from chessreg.games.engines.opponents import EngineSpec, find_stockfish, parse_engine, parse_ladder, parse_limit
from chessreg.games.engines.pool import EnginePool, count_free_cores
from chessreg.models.checkpoint import read_info
from chessreg.models.decoding.policies import check_policy, make_policy
from chessreg.registry import tables
from chessreg.registry.measures import MASKED_POLICIES
from chessreg.runs.cost import MOVES_PER_GAME, count_choosing_operations, estimate_search_seconds
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import CheckpointRef, ExecutionOptions, Moves, Processes, Ref
from chessreg.steering import interventions
from chessreg.steering.interventions import InterventionSettings, select_vector_rows

if TYPE_CHECKING:
    from pydantic import ValidationInfo

    from chessreg.games.boards.boardframe import BoardFrame
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task


__all__ = ["Play", "PlayOptions", "PlaySpec"]


BYTES_PER_PLY = 2
BYTES_PER_GAME = 900  # estimated share of one game in a fragment

PAPER: dict[str, Any] = {
    "opponent": "stockfish:0@nodes=100000",
    "color": "white",
    "finished_openings": "redraw",
    "policy": "retry:5",  # with its default temperatures
    "move_tokens": 10,
    "resignation": "counts",
    "move_limit": 90,
    "context": "crop",
    "adjudication": "nodes=100000",
    "adjudicate_at": 0,
}
"""The settings of Karvonen 2024 (sections 2.2 and 4.3, Appendix E), completed by its code."""

AUTHOR_2024: dict[str, Any] = {
    **PAPER,
    "opponent": "stockfish:0@time=0.1",
    "finished_openings": "keep",
    "adjudication": "time=0.1",
    "adjudicate_at": 90,
}
"""The settings of `main.py` and the notebooks of chess_gpt_eval.

MAX_MOVES = 89 plays 90 full moves. The notebook evaluates every stopped game at the position after White's 90th move,
counted with the random opening.
"""

JUNKIN_2025: dict[str, Any] = {
    "ladder": ("stockfish:0-10@time=0.1",),
    "games": 1000,
    "color": "both",
    "policy": "retry:6",
    "resignation": "illegal",
    "move_limit": 8849,
    "context": "crop",
    "adjudication": "none",
}
"""The settings of Junkin 2025, Appendix I: more than five illegal moves in a row lose; 500 games for each color
at each level.

Its opening book is not published; `--opening book:FILE` is the user's. The move limit comes from its code.
"""

AUTHOR_2025: dict[str, Any] = {
    **JUNKIN_2025,
    "games": 100,
    "policy": "retry:5",
    "resignation": "counts",
    "assist": "author",
}
"""The settings of Junkin's code (`play_game.py`): 50 games for each color from the start position, and
Stockfish finishes won games.

Two differences remain. Tries after the first are drawn from all tokens (the code: from the 200 most probable; a
language model by the settings of its folder). A language model's answer is read as UCI (the code: as SAN, where
python-chess accepts UCI too).
"""

LADDER: dict[str, Any] = {
    "ladder": ("random", "capture", "stockfish:-1+random=0.4", "stockfish:-1+random=0.2", "stockfish:-1+random=0.1",
               "stockfish:-1", "stockfish:0-10@nodes=1000"),
    "games": 100,
    "color": "both",
    "opening": "random:6",
}  # fmt: skip
"""Opponents from a random mover to level 10, both colors for each opening."""


class PlaySpec(MatchSpec):
    # defaults are normalized too, so that equal specs have equal hashes
    model_config = ConfigDict(validate_default=True)

    checkpoint: CheckpointRef = Field(description="the model that plays")
    opponent: str = Field(
        "stockfish:0",
        description="random, capture, stockfish:-1, or stockfish:LEVEL@nodes=N (0 to 20; default 100,000 nodes); "
        "+random=0.8 after stockfish draws that share of its moves at random",
    )
    ladder: tuple[str, ...] = Field(
        (),
        description="several opponents, --games with each: random,stockfish:-1,stockfish:0-10@nodes=1000. Left out: "
        "--opponent",
    )
    games: int = Field(100, ge=1, description="games to play; of a ladder: on each rung")
    color: Literal["white", "black", "both"] = Field(
        "white", description="the model's color; both: each opening twice, first with White"
    )
    opening: str = Field(
        "standard", description="standard, random:PLIES or book:FILE; game n of every arm starts from opening n"
    )
    finished_openings: Literal["redraw", "keep"] = Field(
        "redraw",
        description="openings whose random plies end the game: redraw or keep (chess_gpt_eval: 5 restarts at most)",
    )
    book: Annotated[str | None, Ref("book")] = Field(
        None, description="file of the opening book. Left out: taken from --opening book:FILE"
    )
    opening_seed: int = Field(0, description="seed of the openings, separate from --seed")
    policy: str = Field(
        "retry:5",
        description="retry:N (sample up to N times, then forfeit), free (once), trie or legal (sample legal moves "
        "only), or value (the highest expected return, of a model of values). Without --temperatures, free, trie and "
        "legal sample at temperature 1",
    )
    temperatures: tuple[float, ...] = Field(
        (),
        description="temperatures, one for each try. Left out: 0.001,0.201,0.401,0.5,0.5 for retry (Karvonen), else 1",
    )
    move_tokens: int = Field(
        0, ge=0, le=64, description="tokens that a try may write; 0: the encoding's limit (10 of pgn-char-32)"
    )
    resignation: Literal["counts", "illegal"] = Field(
        "counts", description="a game result written as a move: counts as resigning (Karvonen), or as an illegal try"
    )
    move_limit: Moves = Field(90, ge=1, description="full moves after the opening at which a game is stopped")
    adjudication: str = Field("nodes=100000", description="Stockfish's limit for evaluating a stopped game, or none")
    adjudicate_at: Moves = Field(
        0, ge=0, description="evaluate the position after White's move of this number; 0: the last position"
    )
    context: Literal["adjudicate", "forfeit", "crop"] = Field(
        "adjudicate", description="when the model's context is full: stop the game, forfeit it, or drop the oldest text"
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="number format of the model's computation (the author: float16 on a GPU)"
    )
    claim_draws: bool = Field(
        False, description="end a game as drawn at the third repetition or after fifty moves, as a claim would"
    )
    assist: Assist = Field(
        "none",
        description="when Stockfish plays the model's move: if its five best moves all win (author: Junkin's code), or "
        "only if the position repeats too. Such plies are marked, and give no rating. Left out: never",
    )
    evaluate_draws: str = Field(
        "none",
        description="Stockfish's limit for evaluating draws before the model's last move. Left out: no evaluation",
    )
    intervention: InterventionSettings = Field(default_factory=InterventionSettings)
    against: Annotated[str | None, Ref("run:play")] = Field(
        None, description="match from the same openings that --stop compares with. Left out: both colors of this match"
    )

    @model_validator(mode="before")
    @classmethod
    def _set_first_opponent(cls, values: Any) -> Any:
        """Set `opponent` to a ladder's first rung, so that equal ladders have equal hashes."""
        if not isinstance(values, dict) or not isinstance(texts := values.get("ladder") or (), (tuple, list)):
            return values
        if not texts or not all(isinstance(text, str) for text in texts):
            return values
        rungs = tuple(rung.text for rung in parse_ladder(texts))
        if (opponent := values.get("opponent")) is not None and opponent != rungs[0]:
            raise BadInputError("--opponent and --ladder both set the model's opponent", "give one of them")
        return {**values, "ladder": rungs, "opponent": rungs[0]}

    @model_validator(mode="after")
    def _check_ladder(self) -> Self:
        if self.ladder and self.stop != "none":
            raise BadInputError("--stop ends one match, but a ladder has several", "give --opponent")
        if len(self.ladder) > 1 and self.color == "both" and self.games % 2:
            raise BadInputError(
                f"{self.games} games against each opponent cannot be divided into pairs of both colors",
                f"--games {self.games + 1}",
            )
        return self

    @field_validator("evaluate_draws")
    @classmethod
    def _limit_at_draws(cls, limit: str) -> str:
        return "none" if limit == "none" else parse_limit(limit).text

    def without_effect(self) -> dict[str, str]:
        idle = super().without_effect()
        if self.policy in MASKED_POLICIES:
            idle |= dict.fromkeys(("move_tokens", "resignation"), f"the policy {self.policy} writes no free text")
        return idle

    @property
    def opponents(self) -> tuple[EngineSpec, ...]:
        """The opponents in order; the model plays `games` games against each."""
        return tuple(parse_engine(text) for text in self.ladder or (self.opponent,))

    @field_validator("temperatures")
    @classmethod
    def _expand_temperatures(cls, temperatures: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        if any(not 0 <= value < 100 for value in temperatures):
            raise BadInputError(
                "a temperature must be 0 (the most probable token) or positive", "--temperatures 0.001,0.5"
            )
        return make_policy(info.data["policy"], temperatures).temperatures if "policy" in info.data else temperatures

    @field_validator("move_tokens")
    @classmethod
    def _normalize_move_tokens(cls, move_tokens: int, info: ValidationInfo) -> int:
        if "policy" not in info.data:  # the policy was refused
            return move_tokens
        return make_policy(info.data["policy"], (), move_tokens=move_tokens).move_tokens

    @field_validator("finished_openings")
    @classmethod
    def _normalize_finished_openings(cls, rule: str, info: ValidationInfo) -> str:
        """Return `redraw` if no plies are drawn, so that equal specs have equal hashes."""
        return rule if info.data.get("opening", "").startswith("random") else "redraw"

    @property
    def opening_source(self) -> str:
        """The text of the openings in the row of the match."""
        if self.finished_openings == "keep" and self.opening.startswith("random:"):
            return self.opening.replace("random:", "random-2024:")
        return self.opening


class PlayOptions(ExecutionOptions):
    parallel_games: int = Field(32, ge=1, description="games in play at once")
    engine_processes: Processes = Field(0, ge=0, description="engines that search at once; 0: one for each core")


class GameDetail(BaseModel):
    """Columns of a game that only this kind has."""

    legal_mass: float | None = Field(None, description="mean exact probability of a legal move; only with policy legal")
    assisted: int | None = Field(None, description="plies that Stockfish played for the model; `tries` has 0 at each")
    draw_cp: int | None = Field(
        None, description="centipawns for the model before its last move of a drawn game; a mate in n is 10,000 - n"
    )
    training_openings: int | None = Field(
        None,
        description="training games of the model with the same first 20 plies; none if its training games are unknown",
    )
    training_games: int | None = Field(None, description="training games of the model with exactly these moves")


class Play(Kind):
    """Games of a model against Stockfish or a simple mover, with or without an intervention.

    Karvonen 2024, Figure 2 and Tables 3 and 7; Junkin 2025, Appendix I. One unit is one game. Game n has opening n in
    every arm, so arms are compared in pairs. A ladder is one run with one match for each rung and color. Stockfish's
    handicapped levels cannot be seeded, so a reproduction compares distributions of results; against other opponents it
    compares games move by move.
    """

    name = "play"
    version = 2  # 2: a full context keeps the text up to the model's last position, as the author's code does
    main_settings = (
        "opponent",
        "games",
        "color",
        "opening",
        "policy",
        "adjudication",
        "intervention.vector",
        "intervention.layers",
        "intervention.scale",
        "intervention.control",
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": PAPER,
        "author-2024": AUTHOR_2024,
        "junkin-2025": JUNKIN_2025,
        "author-2025": AUTHOR_2025,
        "ladder": LADDER,
    }
    tables = ("game", "illegal_attempt", "statistic")
    determinism = "statistical"
    spec = PlaySpec
    options = PlayOptions
    columns: ClassVar[Mapping[str, type[BaseModel]]] = {"game": GameDetail}
    queries = ("elo by intervention", "wins by level", "draws by evaluation", "games by termination")
    example = "--checkpoint reference --opponent random --games 20 --policy legal --opening random:6 --name games"

    def select_queries(self, spec: PlaySpec) -> tuple[str, ...]:
        return tuple(query for query in self.queries if query != "draws by evaluation" or spec.evaluate_draws != "none")

    def units(self, spec: PlaySpec, inputs: Inputs) -> int:
        return spec.games * len(spec.opponents)

    def check(self, spec: PlaySpec, inputs: Inputs) -> None:
        """Raise NotFoundError for a missing engine, checkpoint, vector or book, and BadInputError for a policy that the
        model cannot follow."""
        checkpoint, folder = inputs.checkpoint(spec.checkpoint)
        inputs.encoding(spec.checkpoint)  # raises NotFoundError
        check_policy(spec.policy, read_info(folder).head)
        check_pairs(spec, inputs)
        if spec.intervention.active:
            select_vector_rows(spec.intervention, checkpoint, inputs)
        if spec.book is not None:
            inputs.artifact("book", spec.book)
        needs_evaluations = spec.assist != "none" or spec.evaluate_draws != "none"
        if needs_evaluations or any(opponent.needs_process for opponent in spec.opponents):
            find_stockfish()
        elif spec.adjudication != "none":
            try:
                find_stockfish()
            except NotFoundError as error:
                raise NotFoundError(
                    f"{error.message}: the run needs it to evaluate games at the move limit",
                    f"{error.hint}; or give --adjudication none",
                ) from error

    def estimate(self, spec: PlaySpec, inputs: Inputs) -> RunEstimate:
        tries = "" if spec.policy in MASKED_POLICIES else "; the number of illegal tries depends on the model"
        remarks: tuple[str, ...] = (f"at most {2 * spec.move_limit} plies per game{tries}",)
        games = self.units(spec, inputs)
        if spec.color == "both" and spec.games % 2:
            remarks = ("the last opening is played with White alone; an even number of games gives pairs", *remarks)
        if len(spec.opponents) > 1:
            remarks = (f"{spec.games} games with each of {len(spec.opponents)} opponents", *remarks)
        turns = games * min(spec.move_limit, MOVES_PER_GAME)
        search_s = sum(estimate_search_seconds(opponent.text) for opponent in spec.opponents) / len(spec.opponents)
        judge_s = estimate_search_seconds(spec.adjudication) if spec.adjudication != "none" else 0.0
        return RunEstimate(
            {"game": games}, games * BYTES_PER_GAME, (*remarks, *describe_stopping(spec)),
            count_choosing_operations(spec.checkpoint, inputs, games, turns), turns * search_s + games * judge_s,
        )  # fmt: skip

    def in_order(self, spec: PlaySpec) -> bool:
        return spec.stop != "none"

    def replays(self, spec: PlaySpec) -> bool:
        return not self.explain_chance(spec)

    def explain_chance(self, spec: PlaySpec) -> str:
        return explain_chance([rung.text for rung in spec.opponents], spec.adjudication, spec.evaluate_draws)

    def run(self, task: Task[PlaySpec, PlayOptions]) -> None:
        play_match(task)

    def board_views(self, row: dict[str, Any], inputs: Inputs) -> list[BoardFrame]:
        """Return one board for the start and one for the position after every ply, with the illegal tries."""
        run_id = row["run_id"] if isinstance(row["run_id"], UUID) else UUID(str(row["run_id"]))
        return next(read_stored_games(inputs.database, [(run_id, int(row["unit"]))])).board_views()


# -- the match ---------------------------------------------------------------------------------------------------


def play_match(task: Task[PlaySpec, PlayOptions]) -> None:
    """Play the units of this attempt. Only finished games are stored."""
    import torch

    from chessreg.models.devices import prepare_device
    from chessreg.models.language_model import LanguageModel

    spec, options, inputs = task.spec, task.options, task.inputs
    checkpoint, folder = inputs.checkpoint(spec.checkpoint)
    device = prepare_device(options.device, options.threads)
    model = LanguageModel.load(folder, device=device, dtype=getattr(torch, spec.precision))
    intervention = interventions.load_intervention(spec.intervention, checkpoint, inputs)
    rungs = spec.opponents
    hardest = next((rung for rung in rungs[::-1] if rung.needs_process), rungs[-1])
    adjudicate = None if spec.adjudication == "none" else parse_limit(spec.adjudication)
    judge_draws = None if spec.evaluate_draws == "none" else parse_limit(spec.evaluate_draws)
    training = TrainingGames.from_inputs(inputs, spec.checkpoint)
    record_play_match(task, checkpoint, intervention)
    limits = (*(rung.limit for rung in rungs), adjudicate, judge_draws)
    is_timed = any(limit is not None and limit.kind == "time" for limit in limits)
    cores = Cores(options, device, is_timed, hardest.needs_process or spec.assist != "none", task.threads)
    with EnginePool(
        hardest, options.engine_processes or None, is_timed=is_timed, reserved_cores=cores.reserved_cores
    ) as pool:
        policy = make_policy(spec.policy, spec.temperatures, spec.resignation == "counts", spec.move_tokens)
        arena = Arena(
            ModelPlayer(model, policy, intervention.build_edits(device) if intervention else ()),
            MatchRules(get_model_color(spec), spec.move_limit, spec.context, spec.adjudicate_at, spec.claim_draws),
            pool,
            make_opening_source(task),
            noise=(spec.seed, spec.replicate),
            roles=EngineRoles(adjudicate, judge_draws, spec.assist),
            get_opponent=(lambda unit: rungs[unit // spec.games]) if len(rungs) > 1 else None,
            batch_games=options.parallel_games,
            engines_slow=cores.share,
            tick=lambda games: report_games(task, games, spec.move_limit),
        )
        early_stopping = EarlyStopping(task)
        for game in arena.play(task.units):
            for counted_game in early_stopping.take(game):
                emit_played_game(task, counted_game, training, early_stopping)
            if early_stopping.decision:
                break


class Cores:
    """Divides the cores between model and engines.

    Under a time limit the model's threads and the engines never share a core, because an engine that waits for a core
    searches less. Otherwise one core is left to the engines. `used_threads` collects the numbers of threads of the
    model.
    """

    def __init__(
        self, options: PlayOptions, device: str, is_timed: bool, engines: bool, used_threads: set[int]
    ) -> None:
        self.options, self.is_timed, self.engines, self.used_threads, self.reserved_cores = (
            options,
            is_timed,
            engines,
            used_threads,
            0,
        )
        if is_timed and device == "cpu" and count_free_cores() > 1:
            self.reserved_cores = min(options.threads or 1, count_free_cores() - 1)
        self.share(False)

    def share(self, engines_slow: bool) -> None:
        """Give the model one thread while the engines are slower, because further threads would occupy cores that they
        need."""
        from chessreg.models.devices import count_usable_cores, prepare_device

        free_threads = max(1, count_usable_cores() - self.engines)
        threads = self.options.threads or (1 if engines_slow or self.is_timed else free_threads)
        self.used_threads.add(threads)
        prepare_device("cpu", threads)


def emit_played_game(
    task: Task[PlaySpec, PlayOptions], game: PlayedGame, training: TrainingGames | None, early_stopping: EarlyStopping
) -> None:
    """Emit the rows of one finished game."""
    columns = build_game_columns(game)
    mass = round(sum(game.legal_mass) / len(game.legal_mass), 4) if game.legal_mass else None
    openings, games = training.count_equal_games(columns["moves"]) if training else (None, None)
    draw_cp = None if game.draw_cp is None else game.draw_cp if game.color else -game.draw_cp
    extra = GameDetail(
        legal_mass=mass,
        assisted=None if task.spec.assist == "none" else len(game.assisted_plies),
        draw_cp=draw_cp,
        training_openings=openings,
        training_games=games,
    )
    task.emit("game", game.unit, extra, match=get_match_number(task.spec, game.unit), **columns)
    for ply, number, text in game.illegal:
        task.emit("illegal_attempt", game.unit, ply=ply, number=number, text=text)
    early_stopping.mark_done(game.unit)


def record_play_match(
    task: Task[PlaySpec, PlayOptions],
    checkpoint: tables.Checkpoint,
    intervention: interventions.LoadedIntervention | None,
) -> None:
    """Record the rows that the games refer to: engines, intervention, book, match.

    Raises BadInputError if an earlier attempt of this run used another engine, because their games cannot be pooled.
    """
    spec = task.spec
    with task.inputs.database.read() as session:
        player = name_player(session, checkpoint.id)
    if intervention is not None:
        task.record("intervention", **intervention.row)
    extra: dict[str, Any] = {
        name: getattr(spec, name)
        for name in ("move_tokens", "resignation", "adjudication", "adjudicate_at", "context", "precision")
    }
    if spec.assist != "none":
        extra |= {"assist": spec.assist, "assist_limit": ASSIST_LIMIT.text}
    if spec.evaluate_draws != "none":
        extra["evaluate_draws"] = spec.evaluate_draws
    if spec.claim_draws:
        extra["claim_draws"] = True
    opening = record_opening(task)
    engines, matches = {rung: build_engine_row(rung) for rung in spec.opponents}, plan_matches(spec)
    for place, engine in enumerate(engines.values()):
        check_engine(task, place * len(matches), engine)
    extra |= record_evaluator(task, spec.adjudication, spec.evaluate_draws, spec.assist)
    for place, (rung, engine) in enumerate(engines.items()):
        task.record("engine", **engine)
        for number, color, planned_games in matches:
            task.record(
                "match",
                run_id=task.run_id,
                number=place * len(matches) + number,
                player=player,
                checkpoint_id=checkpoint.id,
                intervention_id=intervention.id if intervention else None,
                engine_id=engine["id"],
                opponent=rung.text,
                level=rung.level,
                limit=rung.limit.text if rung.limit else None,
                color=color,
                opening=opening,
                opening_seed=spec.opening_seed,
                policy=spec.policy,
                move_limit=spec.move_limit,
                planned=planned_games,
                detail={**extra, "temperatures": list(spec.temperatures), "book": spec.book},
            )


# -- training games ----------------------------------------------------------------------------------------------


class TrainingGames:
    """Sorted hashes uint64 [games] of a model's training games: of their first 20 plies, and of all their moves.

    A shorter game has all its plies in the first hash. 16 bytes per game.
    """

    def __init__(self, openings: np.ndarray, games: np.ndarray) -> None:
        self.openings, self.games = np.sort(openings), np.sort(games)

    @classmethod
    def from_inputs(cls, inputs: Inputs, checkpoint: str) -> TrainingGames | None:
        """Return the training games of a checkpoint (an input reference); None if they are unknown or not in the
        store."""
        training, reason = load_training_items(inputs, checkpoint)
        if training is None or reason is not None or not all(isinstance(games, Games) for games, _ in training):
            return None
        openings, game_hashes = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        for games, places in training:
            assert isinstance(games, Games)
            game_hashes.append(games.hashes[places])
            for start in range(0, len(places), 100_000):
                packed_games = games.moves(places[start : start + 100_000])
                openings.append(hash_move_lists(moves[: BYTES_PER_PLY * OPENING_PLIES] for moves in packed_games))
        return cls(np.concatenate(openings), np.concatenate(game_hashes))

    def count_equal_games(self, moves: bytes) -> tuple[int, int]:
        """Return the number of training games with the same first 20 plies as these packed moves, and with the same
        moves."""
        start = hash_moves(moves[: BYTES_PER_PLY * OPENING_PLIES])
        return _count_hashes(self.openings, start), _count_hashes(self.games, hash_moves(moves))


def _count_hashes(hashes: np.ndarray, count: int) -> int:
    """Return the number of entries of the sorted `hashes` that equal the hash `count`."""
    low, high = (np.searchsorted(hashes, np.uint64(count), side) for side in ("left", "right"))
    return int(high - low)
