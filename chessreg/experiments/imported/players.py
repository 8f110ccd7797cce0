"""The players of others' results in our registry: external models, engines without a binary, and the arms of an import,
which are the games of one player with one color against one opponent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import chess
from sqlalchemy import select

from chessreg.errors import BadInputError
from chessreg.experiments.imported.specs import ImportedGamesSpec, parse_renames
from chessreg.games.engines.opponents import identify_engine
from chessreg.games.foreign.game import UNKNOWN, MatchPlayer, make_engine_player
from chessreg.registry import names, tables
from chessreg.registry.identity import canonical_digest, uuid_from_digest
from chessreg.registry.tables.types import utc_now

if TYPE_CHECKING:
    from chessreg.games.foreign import ForeignFile, ForeignGame
    from chessreg.registry.database import Database
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

EXTERNAL = "external"


def derive_external_id(name: str) -> UUID:
    """The id of the external model of this name: the same on every machine and in every file."""
    return uuid_from_digest(canonical_digest({"external model": name}))


def build_external_row(name: str, layers: int | None = None) -> dict[str, Any]:
    """The checkpoint row of a model of others' games: a name; what the file does not say is NULL."""
    return {
        "id": derive_external_id(name),
        "artifact": None,
        "layers": layers,
        "training_datasets": None,
        "source_format": EXTERNAL,
        "detail": {"player": name},
        "created_at": utc_now(),
    }


def build_foreign_engine_row(player: MatchPlayer, version: str) -> dict[str, Any]:
    """The row of `engine` for a program that others ran: its binary is not known."""
    columns: dict[str, Any] = {"name": player.engine, "version": version, "binary_sha256": None, "options": {}}
    return {"id": uuid_from_digest(canonical_digest(columns)), **columns}


def choose_side(game: ForeignGame, preferred: Sequence[str]) -> chess.Color:
    """The side whose result a game is: the first preferred player in it, else a model before an engine, else White."""
    for name in preferred:
        for color in (chess.WHITE, chess.BLACK):
            if game.side(color).name == name:
                return color
    return chess.BLACK if game.white.is_engine and not game.black.is_engine else chess.WHITE


def list_model_names(games: Iterable[ForeignGame]) -> list[str]:
    """The names of the players that are no engines, in order of appearance."""
    players = (player for game in games for player in (game.white, game.black))
    return list(dict.fromkeys(player.name for player in players if not player.is_engine))


def simplify_name(player: str) -> str | None:
    """A player's name as a thing can be called, or None where nothing is left of it.

    >>> plain_name("replicate/meta/llama-2-7b:527827021d87"), plain_name("adam_lichess_16layers.pt")
    ('replicate-meta-llama-2-7b', 'adam_lichess_16layers.pt')
    """
    text = re.sub(r"[^A-Za-z0-9._+-]+", "-", player.partition(":")[0]).strip("._+-")[:100]
    return text or None


def name_externals(database: Database, run_id: UUID) -> None:
    """Give the external models of an import their names, where nobody named them and the name is free."""
    with database.read() as session:
        used = session.scalars(select_external_checkpoints(run_id)).all()
        called = names.read_names(session, "checkpoint")
        nameless = {row.id: str(row.detail["player"]) for row in used if row.id not in called}
    taken = set(called.values())
    for id, player in nameless.items():
        name = simplify_name(player)
        if name is None or name in taken or names.LOOKS_LIKE_ID.fullmatch(name.lower()):
            continue
        taken.add(name)
        with database.write() as session:
            names.add_annotation(session, "checkpoint", id, "name", name)


def select_external_checkpoints(run_id: UUID) -> Any:
    """SELECT of the external checkpoints in a run's matches, as players or opponents."""
    match, checkpoint = tables.Match, tables.Checkpoint
    players = select(match.checkpoint_id).where(match.run_id == run_id)
    opponents = select(match.opponent_checkpoint_id).where(match.run_id == run_id)
    return (
        select(checkpoint)
        .where(checkpoint.source_format == EXTERNAL, checkpoint.id.in_(players.union(opponents)))
        .order_by(checkpoint.created_at, checkpoint.id)
    )


def parse_layer_count(model: str) -> int | None:
    """The number of layers in a model's name: `lichess_16layers` has 16."""
    match = re.search(r"(\d+)_?layers?", model)
    return int(match[1]) if match else None


def rename_player(rename: Mapping[str, str], name: str) -> str:
    return rename.get(name, name)


# -- arms -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arm:
    """Games of one player with one color against one opponent; `number` is the match's."""

    number: int
    player: MatchPlayer
    opponent: MatchPlayer
    color: chess.Color


class Arms:
    """The arms of an import. Games of a file belong to one match when player, opponent and color are the same."""

    def __init__(self, file: ForeignFile, spec: ImportedGamesSpec) -> None:
        self.spec = spec
        self.rename = parse_renames(spec.rename)
        self.colors: dict[int, chess.Color] = {}
        self.arms: dict[tuple[str, str, chess.Color], Arm] = {}
        self.planned: dict[int, int] = {}
        self.by_row: dict[int, Arm] = {}
        for game in file.games:
            color = choose_side(game, spec.players)
            player, opponent = self.called(game.side(color)), self.called(game.side(not color))
            key = (player.text, opponent.text, color)
            arm = self.arms.setdefault(key, Arm(len(self.arms), player, opponent, color))
            self.by_row[game.row] = arm
            self.planned[arm.number] = self.planned.get(arm.number, 0) + 1

    def called(self, player: MatchPlayer) -> MatchPlayer:
        """The player under its new name; an engine whose limit the file does not tell has that of the settings."""
        if player.name in self.rename:
            new = self.rename[player.name]
            return replace(player, name=new, text=player.text if player.is_engine else new)
        if player.is_engine and player.level is not None and player.level >= 0 and player.limit is None:
            limit = self.spec.limit
            return make_engine_player(player.name, player.level, None if limit == UNKNOWN else limit)
        return player

    def is_model(self, player: MatchPlayer, format: str) -> bool:
        """Whether a player gets the row of an external model: all who are no engine where models play, and in a
        tournament those that the settings name."""
        return not player.is_engine and (format != "pgn" or player.name in self.preferred)

    @property
    def preferred(self) -> set[str]:
        return {rename_player(self.rename, name) for name in self.spec.players}


def record_arms(task: Task[ImportedGamesSpec, Any], file: ForeignFile, arms: Arms) -> None:
    """The rows that the games refer to: engines, external models, matches."""
    spec = task.spec
    own = resolve_own_checkpoint(task.inputs, file, spec) if spec.checkpoint else None
    ids: dict[str, UUID] = {}
    for arm in arms.arms.values():
        for player in (arm.player, arm.opponent):
            if player.is_engine:
                task.record("engine", **build_foreign_engine_row(player, spec.engine_version))
            elif own is not None and player.name == own[0]:
                ids[player.name] = own[1]
            elif arms.is_model(player, spec.format) and player.name not in ids:
                row = build_external_row(player.name)
                ids[player.name] = row["id"]
                task.record("checkpoint", **row)
        task.record("match", run_id=task.run_id, **build_match_columns(arm, spec, file, ids, arms.planned[arm.number]))


def build_match_columns(
    arm: Arm, spec: ImportedGamesSpec, file: ForeignFile, ids: Mapping[str, UUID], planned: int
) -> dict[str, Any]:
    engine = build_foreign_engine_row(arm.opponent, spec.engine_version) if arm.opponent.is_engine else None
    return {
        "number": arm.number,
        "player": (arm.player.text if arm.player.is_engine else arm.player.name)[:255],
        "checkpoint_id": ids.get(arm.player.name),
        "intervention_id": None,
        "engine_id": engine["id"] if engine else None,
        "opponent": arm.opponent.text[:128],
        "opponent_checkpoint_id": ids.get(arm.opponent.name),
        "level": arm.opponent.level,
        "limit": arm.opponent.limit,
        "color": "white" if arm.color else "black",
        "opening": spec.opening,
        "opening_seed": 0,
        "policy": spec.policy or file.policy,
        "move_limit": spec.move_limit or file.move_limit,
        "planned": planned,
        "detail": {
            "format": spec.format,
            "player_given": arm.player.name,
            "opponent_given": arm.opponent.name,
            "adjudication": spec.adjudication,
            "adjudicated_by": name_adjudicator(spec.adjudication),
        },
    }


def resolve_own_checkpoint(inputs: Inputs, file: ForeignFile, spec: ImportedGamesSpec) -> tuple[str, UUID]:
    """The player that `checkpoint` is, under its new name. Raises BadInputError when that is not clear."""
    assert spec.checkpoint is not None
    row, _ = inputs.checkpoint(spec.checkpoint)
    players = list(spec.players) or list_model_names(file.games)
    if len(players) != 1:
        listed = ", ".join(players[:5]) or "none"
        raise BadInputError(
            f"checkpoint {row.id.hex[-6:]} can be one player, and the file has {len(players)} models: {listed}",
            "say which with --players NAME",
        )
    return rename_player(parse_renames(spec.rename), players[0]), row.id


def name_adjudicator(limit: str) -> str | None:
    """Name and version of the program that evaluates, for the match's record."""
    if limit == "none":
        return None
    engine = identify_engine()
    return f"{engine.name} {engine.version}"
