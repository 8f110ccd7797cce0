"""Steps that are no experiments: parts of a dataset, untrained twins of a model, and played games as a dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import select

from chessreg.entities.checkpoints import random_twin
from chessreg.entities.splits import split_dataset
from chessreg.named import Registry
from chessreg.registry import names, tables

if TYPE_CHECKING:
    from chessreg.papers.plan import Values
    from chessreg.session import Session


class Preparation(NamedTuple):
    """`made` gives the recipe of what is there already (None: nothing), `make` makes it."""

    made: Callable[[Session, Values], str | None]
    make: Callable[[Session, Values], str]


def made_twin(session: Session, settings: Values) -> str | None:
    parent = session.id("checkpoint", settings["checkpoint"])
    with session.database.read() as sql:
        rows = sql.scalars(
            select(tables.Checkpoint).where(
                tables.Checkpoint.parent_id == parent, tables.Checkpoint.source_format == "random-init"
            )
        )
        found = next((row.artefact for row in rows if row.detail.get("seed") == settings["seed"]), None)
    return found and f"sha256:{found}"


def make_twin(session: Session, settings: Values) -> str:
    found = random_twin(session.database, session.store, settings["checkpoint"], seed=settings["seed"])
    return f"sha256:{found.artefact}"


def made_parts(session: Session, settings: Values) -> str | None:
    """The dataset's name, once it has these parts; whatever their bounds: they may be the user's own."""
    with session.database.read() as sql:
        dataset = names.resolve(sql, "dataset", settings["dataset"])
        there = set(sql.scalars(select(tables.Split.name).where(tables.Split.dataset_id == dataset)))
    wanted = {part.partition("=")[0] for part in settings["parts"].split(",")}
    return str(settings["dataset"]) if wanted <= there else None


def make_parts(session: Session, settings: Values) -> str:
    split_dataset(session.database, session.store, settings["dataset"], settings["parts"], settings["seed"])
    return str(settings["dataset"])


def made_games(session: Session, settings: Values) -> str | None:
    with session.database.read() as sql:
        found = sql.scalars(select(tables.Dataset).where(tables.Dataset.source == file_of_games(settings))).first()
        return f"dataset:{found.identity}" if found else None


def make_games(session: Session, settings: Values) -> str:
    """The games of a run, as `chessreg game export` writes them, added as `chessreg dataset add` does."""
    from chessreg.entities.datasets import add_dataset
    from chessreg.experiments.play.stored import games_of, stored_games
    from chessreg.games.pgn import save_pgn

    run = session.inputs.run(settings["play"])
    games = stored_games(session.database, games_of(session.database, run.id))
    with TemporaryDirectory() as folder:
        file = Path(folder) / file_of_games(settings)
        save_pgn((game.record() for game in games), file)
        add_dataset(session.database, session.store, [file], detail={"played": {"run": run.id.hex}})
    found = made_games(session, settings)
    assert found
    return found


def file_of_games(settings: Values) -> str:
    """What the dataset's source is called: of the same run it is the same."""
    return f"{settings['name']} {settings['play'].removeprefix('run:')[:12]}.pgn"


PREPARATIONS: Registry[Preparation] = Registry("preparation")
PREPARATIONS["twin"] = Preparation(made_twin, make_twin)
PREPARATIONS["split"] = Preparation(made_parts, make_parts)
PREPARATIONS["played-games"] = Preparation(made_games, make_games)
