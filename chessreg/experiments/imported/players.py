"""The players of others' results in our registry: external models, engines without a binary, and who is who."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import chess

from chessreg.errors import BadInputError
from chessreg.registry import names, tables
from chessreg.registry.identity import digest_of, uuid_of
from chessreg.registry.tables.types import utc_now

if TYPE_CHECKING:
    from chessreg.games.foreign import ForeignGame
    from chessreg.games.foreign.players import Player
    from chessreg.registry.database import Database

EXTERNAL = "external"


def external_id(name: str) -> UUID:
    """The id of the external model of this name: the same on every machine and in every file."""
    return uuid_of(digest_of({"external model": name}))


def external_row(name: str, layers: int | None = None) -> dict[str, Any]:
    """The checkpoint row of a model that others let play: a name, and nothing that nobody told."""
    return {
        "id": external_id(name),
        "artefact": None,
        "layers": layers,
        "training_datasets": None,
        "source_format": EXTERNAL,
        "detail": {"player": name},
        "created_at": utc_now(),
    }


def engine_row(player: Player, version: str) -> dict[str, Any]:
    """The row of `engine` for a program that others ran: its binary is not known."""
    columns: dict[str, Any] = {"name": player.engine, "version": version, "binary_sha256": None, "options": {}}
    return {"id": uuid_of(digest_of(columns)), **columns}


def renamed(rename: Sequence[str]) -> dict[str, str]:
    """OLD=NEW pairs as a mapping. Raises BadInputError for what is no pair."""
    pairs = [text.rpartition("=") for text in rename]
    if wrong := [text for text, (old, _, new) in zip(rename, pairs, strict=True) if not (old.strip() and new.strip())]:
        raise BadInputError(f"--rename {wrong[0]!r} is no OLD=NEW", "for example --rename model.pt=karvonen-16")
    return {old.strip(): new.strip() for old, _, new in pairs}


def seen_from(game: ForeignGame, preferred: Sequence[str]) -> chess.Color:
    """The side whose result a game is: the first preferred player in it, else a model before an engine, else White."""
    for name in preferred:
        for color in (chess.WHITE, chess.BLACK):
            if game.side(color).name == name:
                return color
    return chess.BLACK if game.white.is_engine and not game.black.is_engine else chess.WHITE


def models(games: Iterable[ForeignGame]) -> list[str]:
    """The names of the players that are no engines, in order of appearance."""
    players = (player for game in games for player in (game.white, game.black))
    return list(dict.fromkeys(player.name for player in players if not player.is_engine))


def plain_name(player: str) -> str | None:
    """A player's name as a thing can be called, or None where nothing is left of it.

    >>> plain_name("replicate/meta/llama-2-7b:527827021d87"), plain_name("adam_lichess_16layers.pt")
    ('replicate-meta-llama-2-7b', 'adam_lichess_16layers.pt')
    """
    text = re.sub(r"[^A-Za-z0-9._+-]+", "-", player.partition(":")[0]).strip("._+-")[:100]
    return text or None


def name_externals(database: Database, run_id: UUID) -> None:
    """Give the external models of an import their names, where nobody named them and the name is free."""
    with database.read() as session:
        used = session.scalars(select_checkpoints(run_id)).all()
        called = names.names(session, "checkpoint")
        nameless = {row.id: str(row.detail["player"]) for row in used if row.id not in called}
    taken = set(called.values())
    for id, player in nameless.items():
        name = plain_name(player)
        if name is None or name in taken or names.LOOKS_LIKE_ID.fullmatch(name.lower()):
            continue
        taken.add(name)
        with database.write() as session:
            names.say(session, "checkpoint", id, "name", name)


def select_checkpoints(run_id: UUID) -> Any:
    """SELECT of the external checkpoints in a run's matches, as players or opponents."""
    from sqlalchemy import select

    match, checkpoint = tables.Match, tables.Checkpoint
    players = select(match.checkpoint_id).where(match.run_id == run_id)
    opponents = select(match.opponent_checkpoint_id).where(match.run_id == run_id)
    return (
        select(checkpoint)
        .where(checkpoint.source_format == EXTERNAL, checkpoint.id.in_(players.union(opponents)))
        .order_by(checkpoint.id)
    )


def layers_told(model: str) -> int | None:
    """The number of layers that a model's name tells: `lichess_16layers` has 16."""
    match = re.search(r"(\d+)_?layers?", model)
    return int(match[1]) if match else None


def by_name(rename: Mapping[str, str], name: str) -> str:
    return rename.get(name, name)
