"""The pool of players and games of a rating: identifies players, scores games and collects known ratings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import chess
import numpy as np
from sqlalchemy import LargeBinary, func, select

from chessreg.entities.game import describe_intervention
from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.rating.spec import RatingSpec, parse_anchor
from chessreg.games.boards.adjudication import Termination, score_game
from chessreg.games.engines.estimators import DRAW, JOINT, LOSS, WIN, Pool
from chessreg.games.engines.opponents import ELO_TABLES, get_opponent_rating
from chessreg.games.foreign.sweep import MAX_GAMES_PER_LEVEL
from chessreg.registry import names, tables
from chessreg.registry.identity import shorten_id
from chessreg.runs.inputs import IMPORTED_PREFIX

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from chessreg.runs.inputs import Inputs

FORFEITS = (Termination.FORFEIT_ILLEGAL, Termination.OPPONENT_FORFEIT)
OUTCOMES = {1.0: WIN, 0.5: DRAW, 0.0: LOSS}
SWEEP = "imported-sweep"
COUNTED_OUTCOMES = {"wins": WIN, "draws": DRAW, "losses": LOSS}


class PlayerKey(NamedTuple):
    """The identity of a player: a checkpoint with its edit and protocol, an engine with its limit and version, or a
    name."""

    checkpoint_id: UUID | None
    intervention_id: UUID | None
    name: str  # of an engine with its limit, or of a player without a checkpoint
    version: str
    policy: str
    opening: str
    assist: str = "none"  # when Stockfish played a model's move; such results belong to a separate player


@dataclass
class RatedPlayer:
    """One player of a pool, with the results of its games. `sides` are the (run, match) that it plays in."""

    key: PlayerKey
    number: int
    label: str = ""
    is_rated: bool = False  # named by a match as the player whose result it is
    elos: list[int] = field(default_factory=list)  # from the tags of the PGN
    results: list[int] = field(default_factory=lambda: [0, 0, 0])
    unscored_games: int = 0
    opponents: set[int] = field(default_factory=set)
    sides: set[tuple[str, int]] = field(default_factory=set)
    origins: set[str] = field(default_factory=set)  # ours, imported


@dataclass(frozen=True)
class LoadedPool:
    """The games of a rating, its players in the order of their numbers, and the origins of known ratings."""

    pool: Pool
    players: list[RatedPlayer]
    sources: dict[int, str]  # player → origin of its anchor


def load_rating_pool(spec: RatingSpec, inputs: Inputs) -> LoadedPool:
    """Return the pool of a spec. Raises BadInputError for a pool without games or without known ratings."""
    players: dict[PlayerKey, RatedPlayer] = {}
    games: list[tuple[int, int, int, tuple[Any, ...]]] = []
    runs = [inputs.run(reference) for reference in spec.runs]
    with inputs.database.read() as session:
        for run in runs:
            add_run_games(session, run, spec, players, games)
        label_players(session, list(players.values()))
    order = list(players.values())
    if not games:
        raise BadInputError("these runs have no games that count", "chessreg game list")
    anchors, sources = collect_anchors(spec, order)
    check_anchors(spec, order, anchors)
    clusters = {cluster_key: number for number, cluster_key in enumerate(dict.fromkeys(game[3] for game in games))}
    first_players, second, outcome = np.array([game[:3] for game in games], np.int64).T
    cluster = np.array([clusters[game[3]] for game in games], np.int64)
    return LoadedPool(
        Pool(tuple(p.label for p in order), first_players, second, outcome, cluster, anchors), order, sources
    )


def add_run_games(
    session: Session,
    run: tables.Run,
    spec: RatingSpec,
    players: dict[PlayerKey, RatedPlayer],
    games: list[tuple[int, int, int, tuple[Any, ...]]],
) -> None:
    """Append the games of one run to `games`, each as (player, opponent, outcome, cluster), and its sides to `players`.

    Player and opponent are numbers in `players`. Games of a cluster are resampled together. Raises BadInputError for a
    run without games.
    """
    game = tables.Game
    matches = {m.number: m for m in session.scalars(select(tables.Match).where(tables.Match.run_id == run.id))}
    if not matches:
        raise BadInputError(f"run {run.id.hex[-6:]} is of kind {run.kind}, which has no games", "chessreg game list")
    sides: dict[int, list[RatedPlayer]] = {}
    if run.kind == SWEEP:
        add_sweep_games(session, run, spec, matches, players, games)
        return
    line = func.substr(game.moves, 1, 2 * game.opening_plies, type_=LargeBinary)
    columns = (game.unit, game.match, game.result, game.termination, game.adjudication_cp, line)
    for unit, number, result, termination, cp, opening, extra in session.execute(
        select(*columns, game.detail).where(game.run_id == run.id).order_by(game.unit)
    ):
        match = matches[number]
        if spec.color not in ("both", match.color) or (not spec.forfeits and termination in FORFEITS):
            continue
        color = chess.WHITE if match.color == "white" else chess.BLACK
        if number not in sides:
            sides[number] = register_sides(session, match, run, players)
        player, opponent = sides[number]
        note_elos(player, opponent, extra or {}, color)
        points = 0.0 if termination == Termination.FORFEIT_ILLEGAL else score_game(spec.scoring, color, result, cp)
        if points is None:
            player.unscored_games += 1
            opponent.unscored_games += 1
            continue
        outcome = OUTCOMES[points]
        count_result(player, opponent, outcome)
        is_own_run = match.opening == "standard" or run.kind.startswith(
            IMPORTED_PREFIX
        )  # no other game is from the same opening
        cluster = (run.id, unit) if is_own_run else (opening,)  # by its moves, because a short book repeats its lines
        games.append((player.number, opponent.number, outcome, cluster))


def add_sweep_games(
    session: Session,
    run: tables.Run,
    spec: RatingSpec,
    matches: dict[int, tables.Match],
    players: dict[PlayerKey, RatedPlayer],
    games: list[tuple[int, int, int, tuple[Any, ...]]],
) -> None:
    """Append the games of an imported sweep, with the arguments of `add_run_games`: wins, draws and losses of one model
    against each level. `matches` are the run's matches by number."""
    point = tables.MetricPoint
    game_count = session.execute(
        select(point.unit, point.name, point.value).where(point.run_id == run.id).order_by(point.unit)
    )
    for unit, name, value in game_count:
        match = matches[unit]
        colors = str((match.detail or {}).get("colors", match.color))
        if name not in COUNTED_OUTCOMES or spec.color not in ("both", colors):
            continue
        if not 0 <= value <= MAX_GAMES_PER_LEVEL:  # another user's registry may contain any number
            raise BadInputError(f"run {shorten_id(run.id)} reports {value:g} {name} against {match.opponent}")
        player, opponent = register_sides(session, match, run, players)
        for number in range(int(value)):
            if spec.scoring != "paper" and COUNTED_OUTCOMES[name] == DRAW:
                player.unscored_games += 1
                opponent.unscored_games += 1
                continue
            count_result(player, opponent, COUNTED_OUTCOMES[name])
            games.append((player.number, opponent.number, COUNTED_OUTCOMES[name], (run.id, unit, name, number)))


def register_sides(
    session: Session, match: tables.Match, run: tables.Run, players: dict[PlayerKey, RatedPlayer]
) -> list[RatedPlayer]:
    """Return the two players of a match, and add them to `players`. The player whose result it is comes first."""
    sides = []
    for is_player in (True, False):
        key = build_player_key(session, match, run, is_player)
        sides.append(players.setdefault(key, RatedPlayer(key, len(players))))
        sides[-1].sides.add((run.id.hex, match.number))
        sides[-1].origins.add("imported" if run.kind.startswith(IMPORTED_PREFIX) else "ours")
    sides[0].is_rated = True
    return sides


def count_result(player: RatedPlayer, opponent: RatedPlayer, outcome: int) -> None:
    """Add one game to the results of both players. `outcome` is `player`'s: an index into wins, draws, losses."""
    player.results[outcome] += 1
    opponent.results[LOSS - outcome] += 1
    player.opponents.add(opponent.number)
    opponent.opponents.add(player.number)


def build_player_key(session: Session, match: tables.Match, run: tables.Run, is_player: bool) -> PlayerKey:
    """Return the key by which a player's games are pooled: of the match's player if `is_player`, else of its
    opponent."""
    detail = match.detail or {}
    checkpoint = match.checkpoint_id if is_player else match.opponent_checkpoint_id
    if checkpoint is not None:
        assist = str(detail.get("assist", "none")) if is_player else "none"
        return PlayerKey(
            checkpoint, match.intervention_id if is_player else None, "", "", match.policy, match.opening, assist
        )
    name, engine_id = (match.player, None) if is_player else (match.opponent, match.engine_id)
    if is_player and "player_engine_id" in detail:  # an engine: named as if it were the opponent
        with suppress(LookupError, ValueError):  # an invalid id in another user's rows is ignored
            name, engine_id = str(detail["player"]), UUID(str(detail["player_engine_id"]))
    engine = session.get(tables.Engine, engine_id) if engine_id else None
    if engine is not None:
        return PlayerKey(None, None, name, engine.version, "", "")
    if is_player and (name.startswith("stockfish:") or name in ("random", "capture")):  # an engine in imported games
        return PlayerKey(None, None, name, str(run.spec.get("engine_version", "unknown")), "", "")
    return PlayerKey(None, None, name, "", "", "")


def note_elos(player: RatedPlayer, opponent: RatedPlayer, extra: dict[str, Any], color: chess.Color) -> None:
    """Append the Elo ratings in the tags of a tournament's game, `extra`, to the `elos` of both players. `color` is the
    color of `player`."""
    player_tag, opponent_tag = ("white_elo", "black_elo") if color else ("black_elo", "white_elo")
    for rated_player, name in ((player, player_tag), (opponent, opponent_tag)):
        if isinstance(extra.get(name), int):
            rated_player.elos.append(extra[name])


def label_players(session: Session, players: list[RatedPlayer]) -> None:
    """Give every player a unique label, as short as the pool allows."""
    checkpoint_names = names.read_noun_names(session, "checkpoint")

    def name_player(key: PlayerKey) -> str:
        if key.checkpoint_id is None:
            return key.name
        row = session.get(tables.Checkpoint, key.checkpoint_id)
        player = row.detail.get("player") if row is not None else None
        name = checkpoint_names.get(key.checkpoint_id) or player or f"checkpoint {shorten_id(key.checkpoint_id)}"
        name = f"{name} (assist {key.assist})" if key.assist != "none" else str(name)
        if key.intervention_id is None:
            return name
        return f"{name} + {describe_intervention(session.get_one(tables.Intervention, key.intervention_id))}"

    def name_with_version(key: PlayerKey) -> str:
        return f"{name_player(key)} ({key.version or ', '.join(t for t in (key.policy, key.opening) if t)})"

    def name_with_ids(key: PlayerKey) -> str:
        ids = [shorten_id(id) for id in (key.checkpoint_id, key.intervention_id) if id]
        return f"{name_with_version(key)} {' '.join(ids)}".rstrip()

    unlabelled_players = players
    for name_function in (name_player, name_with_version, name_with_ids):
        by_text: dict[str, list[RatedPlayer]] = defaultdict(list)
        for player in unlabelled_players:
            by_text[name_function(player.key)[:255]].append(player)
        for text, namesakes in by_text.items():
            for player in namesakes:
                player.label = text
        unlabelled_players = [player for namesakes in by_text.values() if len(namesakes) > 1 for player in namesakes]


def collect_anchors(spec: RatingSpec, players: list[RatedPlayer]) -> tuple[dict[int, float], dict[int, str]]:
    """Return player number → known Elo rating, and player number → origin of that rating. Raises NotFoundError for a
    named player that does not exist."""
    anchors: dict[int, float] = {}
    sources: dict[int, str] = {}
    for number, player in enumerate(players):
        rating = None
        if spec.anchors in ELO_TABLES and player.key.checkpoint_id is None:
            rating = get_opponent_rating(player.key.name, spec.anchors)
        elif spec.anchors == "headers" and player.elos and player.label not in spec.rate:
            rating = float(np.mean(player.elos)) if spec.rate or not player.is_rated else None
        if rating is not None:
            anchors[number], sources[number] = rating, spec.anchors
    by_name = {player.label: number for number, player in enumerate(players)}
    for text in spec.anchor:
        name, rating = parse_anchor(text)
        if name not in by_name:
            raise NotFoundError(f"player {name!r} is not in these games", f"the players are {abbreviate_list(by_name)}")
        anchors[by_name[name]], sources[by_name[name]] = rating, "given"
    if missing_names := [name for name in spec.rate if name not in by_name]:
        raise NotFoundError(
            f"player {missing_names[0]!r} is not in these games", f"the players are {abbreviate_list(by_name)}"
        )
    for name in spec.rate:
        anchors.pop(by_name[name], None)
        sources.pop(by_name[name], None)
    return anchors, sources


def check_anchors(spec: RatingSpec, players: list[RatedPlayer], anchors: dict[int, float]) -> None:
    """Raise BadInputError if all ratings are known, or if the estimator needs known ratings and there are none."""
    if len(anchors) == len(players):
        raise BadInputError(
            "every player's rating is known, so nothing is left to estimate",
            f"exclude one with --rate NAME: {abbreviate_list(player.label for player in players)}",
        )
    if not anchors and spec.estimator not in JOINT:
        raise BadInputError(
            f"--estimator {spec.estimator} needs opponents of known rating, but these games have none",
            "give one with --anchor NAME=ELO, or give --estimator bradley-terry --anchors none",
        )


def abbreviate_list(texts: Iterable[str]) -> str:
    """Return the first eight texts, joined by commas, and `…` if there are more."""
    text_list = list(texts)
    return ", ".join(text_list[:8]) + (", …" if len(text_list) > 8 else "")
