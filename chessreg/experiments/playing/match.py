"""One attempt at a match: its records, its model and engines, and its games as they end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess

from chessreg.errors import BadInputError
from chessreg.experiments import interventions
from chessreg.experiments.playing.arena import Arena
from chessreg.experiments.playing.game import Rules
from chessreg.experiments.playing.policies import make_policy
from chessreg.experiments.playing.records import engine_row, game_columns, player_name
from chessreg.games.engines import parse_engine, parse_limit
from chessreg.games.openings import Opening, OpeningSpec, openings, parse_opening
from chessreg.games.pool import EnginePool
from chessreg.games.tokenizers import tokenizer
from chessreg.registry import tables

if TYPE_CHECKING:
    from chessreg.experiments.play import PlayHow, PlaySpec
    from chessreg.experiments.playing.game import PlayedGame
    from chessreg.jobs.task import Task

NUMBER = 0  # a play run has one match


def play_match(task: Task[PlaySpec, PlayHow]) -> None:
    """Play the units of this attempt. Only finished games are handed back."""
    from chessreg.models.devices import prepare
    from chessreg.models.language_model import LanguageModel

    spec, how, inputs = task.spec, task.how, task.inputs
    checkpoint, folder = inputs.checkpoint(spec.checkpoint)
    device = prepare(how.device, how.threads)
    model = LanguageModel.load(folder, device=device)
    intervention = interventions.load(spec.intervention, checkpoint, inputs)
    opponent = parse_engine(spec.opponent)
    record_match(task, checkpoint, intervention)
    with EnginePool(opponent, how.engine_processes or None) as pool:
        arena = Arena(
            model,
            tokenizer(checkpoint.tokenizer),
            make_policy(spec.policy, spec.temperatures, spec.resignation == "counts"),
            Rules(chess.WHITE if spec.color == "white" else chess.BLACK, spec.move_limit, spec.context),
            pool,
            opening_maker(task),
            noise=(spec.seed, spec.replicate),
            edits=intervention.edits(device) if intervention else (),
            adjudicate=None if spec.adjudication == "none" else parse_limit(spec.adjudication),
            batch_games=how.batch_games,
            engines_slow=lambda slow: share_cores(how, slow),
            tick=lambda: task.progress(task.units_done / len(task.units), ""),
        )
        for game in arena.play(task.units):
            hand_back(task, game)


def share_cores(how: PlayHow, engines_slow: bool) -> None:
    """One thread for the model while the engines are slower: its other threads would spin on cores that they need."""
    from chessreg.models.devices import prepare

    prepare("cpu", how.threads or int(engines_slow))


def hand_back(task: Task[PlaySpec, PlayHow], game: PlayedGame) -> None:
    """The rows of one finished game."""
    from chessreg.experiments.play import GameDetail

    mass = round(sum(game.legal_mass) / len(game.legal_mass), 4) if game.legal_mass else None
    task.emit("game", game.unit, GameDetail(legal_mass=mass), match=NUMBER, **game_columns(game))
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
    with task.inputs.database.read() as session:
        before = session.get(tables.Match, (task.run_id, NUMBER))
        if before is not None and before.engine_id != engine["id"]:
            other = session.get_one(tables.Engine, before.engine_id)
            raise BadInputError(
                f"the games of this run so far were played against {other.name} {other.version}, "
                f"here is another program: {engine['name']} {engine['version']}",
                "--replicate 1 begins a run of its own",
            )
        player = player_name(session, checkpoint.id)
    task.record("engine", **engine)
    if intervention is not None:
        task.record("intervention", **intervention.row)
    detail: dict[str, Any] = {
        name: getattr(spec, name) for name in ("temperatures", "resignation", "adjudication", "context")
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
        opening=record_book(task) if spec.book else spec.opening,
        opening_seed=spec.opening_seed,
        policy=spec.policy,
        move_limit=spec.move_limit,
        planned=spec.games,
        detail={**detail, "temperatures": list(spec.temperatures), "book": spec.book},
    )


def record_book(task: Task[PlaySpec, PlayHow]) -> str:
    """The book of this match as a row, and the name that the match has for it."""
    from chessreg.games.book import Book
    from chessreg.registry.tables.types import utc_now

    digest, path = book_file(task)
    task.record(
        "artefact", digest=digest, kind="book", bytes=path.stat().st_size, state="complete", created_at=utc_now()
    )
    task.record(
        "opening_book",
        digest=digest,
        source=path.name,
        format=path.suffix.removeprefix("."),
        openings=len(Book.read(path).lines),
        created_at=utc_now(),
    )
    return f"book:{digest[:32]}"


def book_file(task: Task[PlaySpec, PlayHow]) -> tuple[str, Path]:
    """Digest and file of the book."""
    assert task.spec.book
    found = task.inputs.artefact("book", task.spec.book)
    return found.digest, task.store.artefact(found.digest).file


def opening_maker(task: Task[PlaySpec, PlayHow]) -> Callable[[int], Opening]:
    """Opening n of this match, the same in every arm with this opening and opening seed."""
    spec = task.spec
    source = OpeningSpec("book", str(book_file(task)[1])) if spec.book else parse_opening(spec.opening)
    return lambda number: openings(source, spec.opening_seed, [number])[0]
