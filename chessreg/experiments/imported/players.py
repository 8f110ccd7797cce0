"""The players of imported games as rows of the registry: external models, engines without a binary, and arms.

An arm is the games of one player with one color against one opponent.
"""

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
from chessreg.experiments.matches import record_evaluator
from chessreg.games.foreign.game import UNKNOWN, MatchPlayer, make_engine_player
from chessreg.registry import names, tables
from chessreg.registry.identity import hash_canonical_json, make_uuid
from chessreg.registry.tables.types import get_utc_now

if TYPE_CHECKING:
    from chessreg.games.foreign import ForeignFile, ForeignGame
    from chessreg.registry.database import Database
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

EXTERNAL = "external"


def derive_external_id(name: str) -> UUID:
    """Return the id of the external model of this name; it is the same on every machine and for every file."""
    return make_uuid(hash_canonical_json({"external model": name}))


def build_external_row(name: str, layers: int | None = None) -> dict[str, Any]:
    """Return the checkpoint row of an external model: its name, and NULL for everything the file does not state."""
    return {
        "id": derive_external_id(name),
        "artifact": None,
        "layers": layers,
        "training_datasets": None,
        "source_format": EXTERNAL,
        "detail": {"player": name},
        "created_at": get_utc_now(),
    }


def build_foreign_engine_row(player: MatchPlayer, version: str) -> dict[str, Any]:
    """Return the row of `engine` for an engine of an imported file. Its binary is unknown."""
    columns: dict[str, Any] = {"name": player.engine, "version": version, "binary_sha256": None, "options": {}}
    return {"id": make_uuid(hash_canonical_json(columns)), **columns}


def choose_side(game: ForeignGame, preferred_players: Sequence[str]) -> chess.Color:
    """Return the side whose result a game counts for: the first preferred player in it, else a model before an engine,
    else White."""
    for name in preferred_players:
        for color in (chess.WHITE, chess.BLACK):
            if game.side(color).name == name:
                return color
    return chess.BLACK if game.white.is_engine and not game.black.is_engine else chess.WHITE


def list_model_names(games: Iterable[ForeignGame]) -> list[str]:
    """Return the names of the players that are not engines, in order of appearance."""
    players = (player for game in games for player in (game.white, game.black))
    return list(dict.fromkeys(player.name for player in players if not player.is_engine))


def simplify_name(player: str) -> str | None:
    """Return a player's name as a valid name of an entity, or None if no valid character remains.

    >>> simplify_name("replicate/meta/llama-2-7b:527827021d87"), simplify_name("adam_lichess_16layers.pt")
    ('replicate-meta-llama-2-7b', 'adam_lichess_16layers.pt')
    """
    text = re.sub(r"[^A-Za-z0-9._+-]+", "-", player.partition(":")[0]).strip("._+-")[:100]
    return text or None


def name_externals(database: Database, run_id: UUID) -> None:
    """Name the external models of an import that have no name yet, each by its player's name if that is free."""
    with database.read() as session:
        checkpoints = session.scalars(select_external_checkpoints(run_id)).all()
        checkpoint_names = names.read_noun_names(session, "checkpoint")
        unnamed_players = {row.id: str(row.detail["player"]) for row in checkpoints if row.id not in checkpoint_names}
    used_names = set(checkpoint_names.values())
    for id, player in unnamed_players.items():
        name = simplify_name(player)
        if name is None or name in used_names or names.LOOKS_LIKE_ID.fullmatch(name.lower()):
            continue
        used_names.add(name)
        with database.write() as session:
            names.add_annotation(session, "checkpoint", id, "name", name)


def select_external_checkpoints(run_id: UUID) -> Any:
    """Return the SELECT of the external checkpoints in a run's matches, as players or opponents."""
    match, checkpoint = tables.Match, tables.Checkpoint
    players = select(match.checkpoint_id).where(match.run_id == run_id)
    opponents = select(match.opponent_checkpoint_id).where(match.run_id == run_id)
    return (
        select(checkpoint)
        .where(checkpoint.source_format == EXTERNAL, checkpoint.id.in_(players.union(opponents)))
        .order_by(checkpoint.created_at, checkpoint.id)
    )


def parse_layer_count(model: str) -> int | None:
    """Return the number of layers that a model's name states, or None: 16 for `lichess_16layers`."""
    match = re.search(r"(\d+)_?layers?", model)
    return int(match[1]) if match else None


def rename_player(rename: Mapping[str, str], name: str) -> str:
    """Return the new name of a player, or its name unchanged if `rename` does not contain it."""
    return rename.get(name, name)


# -- arms -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arm:
    """The games of one player with one color against one opponent; `number` is that of its row in `match`."""

    number: int
    player: MatchPlayer
    opponent: MatchPlayer
    color: chess.Color


class Arms:
    """The arms of an import. Games of a file belong to one match if player, opponent and color are the same."""

    def __init__(self, file: ForeignFile, spec: ImportedGamesSpec) -> None:
        self.spec = spec
        self.rename = parse_renames(spec.rename)
        self.colors: dict[int, chess.Color] = {}
        self.arms: dict[tuple[str, str, chess.Color], Arm] = {}
        self.game_counts: dict[int, int] = {}
        self.arm_by_row: dict[int, Arm] = {}
        for game in file.games:
            color = choose_side(game, spec.players)
            player, opponent = self.rename_player(game.side(color)), self.rename_player(game.side(not color))
            key = (player.text, opponent.text, color)
            arm = self.arms.setdefault(key, Arm(len(self.arms), player, opponent, color))
            self.arm_by_row[game.row] = arm
            self.game_counts[arm.number] = self.game_counts.get(arm.number, 0) + 1

    def rename_player(self, player: MatchPlayer) -> MatchPlayer:
        """Return the player under its new name. An engine without a limit in the file gets the limit of the
        settings."""
        if player.name in self.rename:
            new = self.rename[player.name]
            return replace(player, name=new, text=player.text if player.is_engine else new)
        if player.is_engine and player.level is not None and player.level >= 0 and player.limit is None:
            limit = self.spec.limit
            return make_engine_player(player.name, player.level, None if limit == UNKNOWN else limit)
        return player

    def is_model(self, player: MatchPlayer, format: str) -> bool:
        """Return whether a player gets the row of an external model.

        Every player except engines gets one; in a PGN file only the players that the settings name.
        """
        return not player.is_engine and (format != "pgn" or player.name in self.player_names)

    @property
    def player_names(self) -> set[str]:
        """The names, after renaming, of the players whose results count."""
        return {rename_player(self.rename, name) for name in self.spec.players}


def record_arms(task: Task[ImportedGamesSpec, Any], file: ForeignFile, arms: Arms) -> None:
    """Record the rows that the games refer to: engines, external models, matches.

    Raises BadInputError if another engine evaluated earlier games of this run.
    """
    spec = task.spec
    evaluator = record_evaluator(task, spec.adjudication)
    own_checkpoint = resolve_own_checkpoint(task.inputs, file, spec) if spec.checkpoint else None
    ids: dict[str, UUID] = {}
    for arm in arms.arms.values():
        for player in (arm.player, arm.opponent):
            if player.is_engine:
                task.record("engine", **build_foreign_engine_row(player, spec.engine_version))
            elif own_checkpoint is not None and player.name == own_checkpoint[0]:
                ids[player.name] = own_checkpoint[1]
            elif arms.is_model(player, spec.format) and player.name not in ids:
                row = build_external_row(player.name)
                ids[player.name] = row["id"]
                task.record("checkpoint", **row)
        columns = build_match_columns(arm, spec, file, ids, arms.game_counts[arm.number], evaluator)
        task.record("match", run_id=task.run_id, **columns)


def build_match_columns(
    arm: Arm,
    spec: ImportedGamesSpec,
    file: ForeignFile,
    ids: Mapping[str, UUID],
    game_count: int,
    evaluator: Mapping[str, list[str]],
) -> dict[str, Any]:
    """Return the columns of an arm's row in `match`. `ids` has the checkpoint of each model by name. `evaluator` is the
    entry of `record_evaluator`."""
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
        "planned": game_count,
        "detail": {
            "format": spec.format,
            "player_given": arm.player.name,
            "opponent_given": arm.opponent.name,
            "adjudication": spec.adjudication,
            **evaluator,
        },
    }


def resolve_own_checkpoint(inputs: Inputs, file: ForeignFile, spec: ImportedGamesSpec) -> tuple[str, UUID]:
    """Return the name, after renaming, and the checkpoint id of the player that --checkpoint is.

    Raises BadInputError unless exactly one player can be that model.
    """
    assert spec.checkpoint is not None
    row, _ = inputs.checkpoint(spec.checkpoint)
    players = list(spec.players) or list_model_names(file.games)
    if len(players) != 1:
        player_list = ", ".join(players[:5]) or "none"
        raise BadInputError(
            f"checkpoint {row.id.hex[-6:]} can be only one player, but the file has {len(players)} models: "
            f"{player_list}",
            "name it with --players NAME",
        )
    return rename_player(parse_renames(spec.rename), players[0]), row.id
