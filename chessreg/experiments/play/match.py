"""One attempt at a match: its records, its model and engines, and its games as they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import chess

from chessreg.encodings.tokenizers import tokenizer
from chessreg.experiments.play.arena import Arena
from chessreg.experiments.play.game import Rules
from chessreg.experiments.play.policies import make_policy
from chessreg.experiments.play.records import check_engine, engine_row, game_columns, player_name
from chessreg.experiments.play.starts import opening_maker, record_opening
from chessreg.experiments.play.uniqueness import TrainingGames
from chessreg.experiments.settings import interventions
from chessreg.games.engines import parse_engine, parse_limit
from chessreg.games.pool import EnginePool, free_cores
from chessreg.registry import tables

if TYPE_CHECKING:
    from chessreg.experiments.play.game import PlayedGame
    from chessreg.experiments.play.kind import PlayHow, PlaySpec
    from chessreg.runs.task import Task

NUMBER = 0  # a play run has one match


def play_match(task: Task[PlaySpec, PlayHow]) -> None:
    """Play the units of this attempt. Only finished games are handed back."""
    import torch

    from chessreg.models.devices import prepare
    from chessreg.models.language_model import LanguageModel

    spec, how, inputs = task.spec, task.how, task.inputs
    checkpoint, folder = inputs.checkpoint(spec.checkpoint)
    device = prepare(how.device, how.threads)
    model = LanguageModel.load(folder, device=device, dtype=getattr(torch, spec.precision))
    intervention = interventions.load(spec.intervention, checkpoint, inputs)
    opponent = parse_engine(spec.opponent)
    adjudicate = None if spec.adjudication == "none" else parse_limit(spec.adjudication)
    training = TrainingGames.of(inputs, spec.checkpoint)
    record_match(task, checkpoint, intervention)
    timed = any(limit is not None and limit.kind == "time" for limit in (opponent.limit, adjudicate))
    cores = Cores(how, device, timed, opponent.needs_process)
    with EnginePool(opponent, how.engine_processes or None, timed=timed, reserved_cores=cores.reserved) as pool:
        arena = Arena(
            model,
            tokenizer(checkpoint.tokenizer),
            make_policy(spec.policy, spec.temperatures, spec.resignation == "counts", spec.move_tokens),
            Rules(
                chess.WHITE if spec.color == "white" else chess.BLACK,
                spec.move_limit,
                spec.context,
                spec.adjudicate_at,
            ),
            pool,
            opening_maker(task),
            noise=(spec.seed, spec.replicate),
            edits=intervention.edits(device) if intervention else (),
            adjudicate=adjudicate,
            batch_games=how.batch_games,
            engines_slow=cores.share,
            tick=lambda: task.progress(task.units_done / len(task.units), ""),
        )
        for game in arena.play(task.units):
            hand_back(task, game, training)


class Cores:
    """Who computes where. Under a time limit the model's threads and the engines never share a core: an engine that
    waits for one searches less in its time. Otherwise one core is left to engines."""

    def __init__(self, how: PlayHow, device: str, timed: bool, engines: bool) -> None:
        self.how, self.timed, self.engines, self.reserved = how, timed, engines, 0
        if timed and device == "cpu" and free_cores() > 1:
            self.reserved = min(how.threads or 1, free_cores() - 1)
        self.share(False)

    def share(self, engines_slow: bool) -> None:
        """One thread for the model while the engines are slower: its other threads would spin on cores they need."""
        from chessreg.models.devices import cores, prepare

        usual = max(1, cores() - self.engines)
        prepare("cpu", self.how.threads or (1 if engines_slow or self.timed else usual))


def hand_back(task: Task[PlaySpec, PlayHow], game: PlayedGame, training: TrainingGames | None) -> None:
    """The rows of one finished game."""
    from chessreg.experiments.play.kind import GameDetail

    columns = game_columns(game)
    mass = round(sum(game.legal_mass) / len(game.legal_mass), 4) if game.legal_mass else None
    openings, games = training.like(columns["moves"]) if training else (None, None)
    detail = GameDetail(legal_mass=mass, training_openings=openings, training_games=games)
    task.emit("game", game.unit, detail, match=NUMBER, **columns)
    for ply, number, text in game.illegal:
        task.emit("illegal_attempt", game.unit, ply=ply, number=number, text=text)
    task.done(game.unit)


def record_match(
    task: Task[PlaySpec, PlayHow], checkpoint: tables.Checkpoint, intervention: interventions.Intervention | None
) -> None:
    """The rows that the games refer to: engine, intervention, book, match.

    Raises BadInputError when an earlier attempt of this run met another engine: its games cannot be pooled with these.
    """
    spec = task.spec
    opponent = parse_engine(spec.opponent)
    engine = engine_row(opponent)
    check_engine(task, NUMBER, engine)
    with task.inputs.database.read() as session:
        player = player_name(session, checkpoint.id)
    task.record("engine", **engine)
    if intervention is not None:
        task.record("intervention", **intervention.row)
    detail: dict[str, Any] = {
        name: getattr(spec, name)
        for name in ("move_tokens", "resignation", "adjudication", "adjudicate_at", "context", "precision")
    }
    task.record(
        "match",
        run_id=task.run_id,
        number=NUMBER,
        player=player,
        checkpoint_id=checkpoint.id,
        intervention_id=intervention.id if intervention else None,
        engine_id=engine["id"],
        opponent=opponent.text,
        level=opponent.level,
        limit=opponent.limit.text if opponent.limit else None,
        color=spec.color,
        opening=record_opening(task),
        opening_seed=spec.opening_seed,
        policy=spec.policy,
        move_limit=spec.move_limit,
        planned=spec.games,
        detail={**detail, "temperatures": list(spec.temperatures), "book": spec.book},
    )
