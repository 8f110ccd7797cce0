"""From others' games to rows: the arms of an import, what they refer to, and the columns of their games."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import chess
import numpy as np

from chessreg.errors import BadInputError
from chessreg.experiments.imported import players
from chessreg.experiments.imported.adjudicate import adjudicator
from chessreg.games.adjudication import Termination
from chessreg.games.foreign.players import UNKNOWN, Player, engine_player
from chessreg.registry import names, tables
from chessreg.registry.tables.types import utc_now

if TYPE_CHECKING:
    from pathlib import Path

    from chessreg.experiments.imported.games import ImportedGamesSpec
    from chessreg.games.foreign import ForeignFile, ForeignGame
    from chessreg.registry.database import Database
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task


@dataclass(frozen=True)
class Arm:
    """Games of one player with one colour against one opponent; `number` is the match's."""

    number: int
    player: Player
    opponent: Player
    color: chess.Color


class Arms:
    """The arms of an import. Games of a file belong to one match when player, opponent and colour are the same."""

    def __init__(self, file: ForeignFile, spec: ImportedGamesSpec) -> None:
        self.spec = spec
        self.rename = players.renamed(spec.rename)
        self.colors: dict[int, chess.Color] = {}
        self.arms: dict[tuple[str, str, chess.Color], Arm] = {}
        self.planned: dict[int, int] = {}
        self.by_row: dict[int, Arm] = {}
        for game in file.games:
            color = players.seen_from(game, spec.player)
            player, opponent = self.called(game.side(color)), self.called(game.side(not color))
            key = (player.text, opponent.text, color)
            arm = self.arms.setdefault(key, Arm(len(self.arms), player, opponent, color))
            self.by_row[game.row] = arm
            self.planned[arm.number] = self.planned.get(arm.number, 0) + 1

    def called(self, player: Player) -> Player:
        """The player under its new name; an engine whose limit the file does not tell has that of the settings."""
        if player.name in self.rename:
            new = self.rename[player.name]
            return replace(player, name=new, text=player.text if player.is_engine else new)
        if player.is_engine and player.level is not None and player.level >= 0 and player.limit is None:
            limit = self.spec.limit
            return engine_player(player.name, player.level, None if limit == UNKNOWN else limit)
        return player

    def is_model(self, player: Player, format: str) -> bool:
        """Whether a player gets the row of an external model: all who are no engine where models play, and in a
        tournament those that the settings name."""
        return not player.is_engine and (format != "pgn" or player.name in self.preferred)

    @property
    def preferred(self) -> set[str]:
        return {players.by_name(self.rename, name) for name in self.spec.player}


def record_arms(task: Task[ImportedGamesSpec, Any], file: ForeignFile, arms: Arms) -> None:
    """The rows that the games refer to: engines, external models, matches."""
    spec = task.spec
    own = own_checkpoint(task.inputs, file, spec) if spec.checkpoint else None
    ids: dict[str, UUID] = {}
    for arm in arms.arms.values():
        for player in (arm.player, arm.opponent):
            if player.is_engine:
                task.record("engine", **players.engine_row(player, spec.engine_version))
            elif own is not None and player.name == own[0]:
                ids[player.name] = own[1]
            elif arms.is_model(player, spec.format) and player.name not in ids:
                row = players.external_row(player.name)
                ids[player.name] = row["id"]
                task.record("checkpoint", **row)
        task.record("match", run_id=task.run_id, **match_columns(arm, spec, file, ids, arms.planned[arm.number]))


def match_columns(
    arm: Arm, spec: ImportedGamesSpec, file: ForeignFile, ids: Mapping[str, UUID], planned: int
) -> dict[str, Any]:
    engine = players.engine_row(arm.opponent, spec.engine_version) if arm.opponent.is_engine else None
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
            "adjudicated_by": adjudicator(spec.adjudication),
        },
    }


def own_checkpoint(inputs: Inputs, file: ForeignFile, spec: ImportedGamesSpec) -> tuple[str, UUID]:
    """The player that `checkpoint` is, under its new name. Raises BadInputError when that is not clear."""
    assert spec.checkpoint is not None
    row, _ = inputs.checkpoint(spec.checkpoint)
    found = list(spec.player) or players.models(file.games)
    if len(found) != 1:
        listed = ", ".join(found[:5]) or "none"
        raise BadInputError(
            f"checkpoint {row.id.hex[-6:]} can be one player, and the file has {len(found)} models: {listed}",
            "say which with --player NAME",
        )
    return players.by_name(players.renamed(spec.rename), found[0]), row.id


def game_columns(game: ForeignGame, arm: Arm, spec: ImportedGamesSpec) -> dict[str, Any]:
    """The columns of a game beside its key and its detail, from the side of the arm's player."""
    plies = spec.opening_plies
    turns = game.turns(arm.color)
    tries, first = game.tries(arm.color), game.first_try_legal(arm.color)
    if plies:  # turns of the opening are nobody's
        before = min(turns, (plies + 1) // 2 if arm.color == chess.WHITE else plies // 2)
        turns -= before
        if tries is not None:
            tries = tries[before:]
            gave_up = game.loser_by_forfeit == arm.color
            first = sum(1 for tried in (tries[:-1] if gave_up else tries) if tried == 1)
        elif first is not None and first > turns:
            first = None
    termination = game.termination
    if termination == Termination.FORFEIT_ILLEGAL and game.loser_by_forfeit != arm.color:
        termination = str(Termination.OPPONENT_FORFEIT)
    return {
        "opening_number": game.row,
        "opening_plies": min(plies, len(game.moves)),
        "plies": len(game.moves),
        "result": game.result,
        "termination": termination,
        "adjudication_cp": None,
        "turns": turns,
        "first_try_legal": first,
        "tries": None if tries is None else np.array(tries, np.uint8).tobytes(),
        "moves": game.packed,
        "seconds": game.seconds,
    }


def record_file(task: Task[Any, Any], path: Path) -> None:
    """The imported file as an artefact row."""
    digest = task.spec.file.removeprefix("sha256:")
    task.record(
        "artefact", digest=digest, kind="results", bytes=path.stat().st_size, state="complete", created_at=utc_now()
    )
    task.record("artefact_location", digest=digest, uri=str(task.store.path(digest)), verified_at=utc_now())


def refuse_again(database: Database, kind: str, run_id: UUID | None, spec: Any) -> None:
    """Raise BadInputError when the same bytes were imported with other settings: their games would count twice."""
    from sqlalchemy import select

    with database.read() as session:
        runs = session.scalars(select(tables.Run).where(tables.Run.kind == kind)).all()
        same = [run for run in runs if run.spec.get("file") == spec.file and run.id != run_id]
        if not same:
            return
        said = select(names.NOW.c.target).where(
            names.NOW.c.noun == "run", names.NOW.c.word.in_([tables.Word.ARCHIVE.value, tables.Word.INVALID.value])
        )
        aside = set(session.scalars(said))
        counted = [run for run in same if run.id.hex not in aside]
        if counted:
            called = names.name_of(session, "run", counted[0].id) or counted[0].id.hex[-6:]
            raise BadInputError(
                f"these bytes are in run {called} already, imported with other settings: they would count twice",
                f"chessreg runs archive {called} takes that import out of all tables",
            )
