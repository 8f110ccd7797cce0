"""Stored games: as lists, board frames and PGN, and in pairs that share an opening."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import chess
import numpy as np
from sqlalchemy import or_, select, tuple_

from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.boards.adjudication import Termination
from chessreg.games.boards.boardframe import BoardFrame, list_game_views
from chessreg.games.boards.moves import convert_packed_to_sans, unpack_moves
from chessreg.games.boards.pgn import GameRecord
from chessreg.games.boards.picture import format_evaluation
from chessreg.registry import names, tables
from chessreg.registry.identity import shorten_id
from chessreg.registry.read import get_engine_ids

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from chessreg.registry.database import Database

READ_BATCH_GAMES = 300
EVALUATION_LIMITS = ("adjudication", "evaluate_draws", "assist_limit")  # in the detail of a match
PACKED_COLUMNS = frozenset({"moves", "tries"})


@dataclass(frozen=True)
class StoredGame:
    """A stored game with its match, engines, intervention and illegal tries.

    `evaluators` are the engines that evaluated positions of the match: usually one, none if it was not recorded.
    """

    game: tables.Game
    match: tables.Match
    seed: int
    replicate: int
    intervention: tables.Intervention | None
    engine: tables.Engine | None
    evaluators: list[tables.Engine]
    illegal: dict[int, list[str]]  # ply → texts, in order

    @property
    def moves(self) -> list[str]:
        """Return the moves in UCI notation."""
        return [move.uci() for move in unpack_moves(self.game.moves)]

    @property
    def model(self) -> str:
        """Return the display name of the model."""
        return self.match.player

    @property
    def opponent(self) -> str:
        """Return the display name of the opponent with its version: `Stockfish 15.1, level 0, nodes=1000`."""
        if self.match.level is None or self.engine is None:
            return self.match.opponent
        limit = self.match.limit or ("depth=1, nodes=1" if self.match.level < 0 else "limit unknown")
        version = "(version unknown)" if self.engine.version == "unknown" else self.engine.version
        return f"{self.engine.name} {version}, level {self.match.level}, {limit}"

    @property
    def players(self) -> tuple[str, str]:
        """Return the display names of White and Black."""
        both_players = (self.model, self.opponent)
        return both_players if self.match.color == "white" else both_players[::-1]

    @property
    def evaluator_name(self) -> str:
        """Return the evaluating engine with its version, `Stockfish 17.1`; empty if it is not recorded."""
        return " or ".join(f"{engine.name} {engine.version}" for engine in self.evaluators)

    def describe_evaluation(self, limit_name: str) -> str:
        """Return the evaluating engine and a limit of the match as a suffix, ` by Stockfish 17.1, nodes=100000`."""
        limit = (self.match.detail or {}).get(limit_name)
        return f" by {self.evaluator_name}{f', {limit}' if limit else ''}" if self.evaluators else ""

    @property
    def assisted_plies(self) -> list[int]:
        """Return the plies that Stockfish played for the model: the model's turns without a try."""
        game, other = self.game, self.match.color == "black"
        if (self.match.detail or {}).get("assist", "none") == "none":
            return []
        first_ply = game.opening_plies + (game.opening_plies % 2 != other)
        plies = [first_ply + 2 * turn for turn, tries in enumerate(game.tries or b"") if not tries]
        return [ply for ply in plies if ply < game.plies]

    @property
    def move_limit_ply(self) -> int | None:
        """Return the number of plies at which the move limit ends the game, or None if no limit is recorded."""
        limit = self.match.move_limit
        return None if limit is None else self.game.opening_plies + 2 * limit

    def record(self) -> GameRecord:
        """Return the game as a record for PGN."""
        white, black = self.players
        match, game = self.match, self.game
        seeds = f"play {self.seed}, opening {match.opening_seed}, opening number {game.opening_number}"
        headers = {
            "Event": "chessreg match",
            "Round": str(game.unit),
            "Run": game.run_id.hex,
            "Policy": match.policy,
        }
        if match.move_limit is not None:
            headers["MoveLimit"] = str(match.move_limit)
        if self.assisted_plies:
            headers["AssistedPlies"] = " ".join(map(str, self.assisted_plies))
        if match.checkpoint_id is not None:
            headers["Checkpoint"] = match.checkpoint_id.hex
        if self.engine is not None and self.engine.binary_sha256:
            headers["EngineSha256"] = self.engine.binary_sha256
        if self.evaluators:
            limits = {name: (match.detail or {}).get(name) for name in EVALUATION_LIMITS}
            limit_texts = [f"{name}: {limit}" for name, limit in limits.items() if limit not in (None, "none")]
            headers["Evaluator"] = ", ".join([self.evaluator_name, *limit_texts])
            headers["EvaluatorSha256"] = " ".join(engine.binary_sha256 or "?" for engine in self.evaluators)
        return GameRecord(
            moves=self.moves,
            white=white,
            black=black,
            result=game.result,
            termination=Termination(game.termination) if game.termination in list(Termination) else None,
            tries=self.illegal,
            adjudication_cp=game.adjudication_cp,
            model=self.model,
            intervention=describe_intervention(self.intervention) if self.intervention else "none",
            engine=self.opponent,
            limit=match.limit or "none",
            opening=match.opening,
            seeds=seeds + (f", replicate {self.replicate}" if self.replicate else ""),
            headers=headers,
        )

    def board_views(self) -> list[BoardFrame]:
        """Return a frame for the start and one per ply. Target squares of illegal tries are marked."""
        white, black = self.players
        game = self.game
        views = list_game_views(
            self.moves,
            f"{white} – {black}, game {game.unit}",
            tries=self.illegal,
            flipped=self.match.color == "black",
        )
        for ply in range(1, min(game.opening_plies, len(views) - 1) + 1):
            views[ply] = views[ply].with_marks({}, ["opening"])
        for ply in self.assisted_plies:
            views[ply + 1] = views[ply + 1].with_marks({}, ["Stockfish moved for the model"])
        for ply, texts in self.illegal.items():
            place = min(ply + 1, len(views) - 1)
            squares = {square for text in texts if (square := find_target_square(text)) is not None}
            views[place] = views[place].with_marks(dict.fromkeys(squares, "illegal"))
        draw_centipawns = (game.detail or {}).get("draw_cp")
        end_facts = [f"{game.result} by {game.termination.replace('_', ' ')}"]
        if game.adjudication_cp is not None:
            by_engine = self.describe_evaluation("adjudication")
            end_facts.append(f"evaluation {format_evaluation(game.adjudication_cp)}{by_engine}")
        if isinstance(draw_centipawns, int):
            by_engine = self.describe_evaluation("evaluate_draws")
            end_facts.append(
                f"evaluation before the model's last move {draw_centipawns / 100:+.2f} for the model{by_engine}"
            )
        views[-1] = views[-1].with_marks({}, end_facts)
        return views


def describe_intervention(row: tables.Intervention) -> str:
    """Return an intervention as one line for headers and titles: `contrastive:skill x 0.8 at layers 3, 4`."""
    layers = f"layer{'s' * (len(row.layers) != 1)} {', '.join(map(str, row.layers))}"
    mask_suffix = "" if row.token_mask == "all" else f", {row.token_mask} token"
    return f"{row.source} x {row.scale:g} at {layers}{mask_suffix}"


def find_target_square(text: str) -> int | None:
    """Return the last square in the text of a move, or None: `Nf3+` → f3.

    >>> chess.square_name(find_target_square("Raxd1+") or 0), find_target_square("O-O")
    ('d1', None)
    """
    names = [text[i : i + 2] for i in range(len(text) - 1) if text[i : i + 2] in chess.SQUARE_NAMES]
    return chess.parse_square(names[-1]) if names else None


def read_stored_games(database: Database, keys: Iterable[tuple[UUID, int]]) -> Iterator[StoredGame]:
    """Yield the games with these keys (run, unit), in order. Raises NotFoundError naming the first missing game."""
    key_list = list(keys)
    for start in range(0, len(key_list), READ_BATCH_GAMES):
        with database.read() as session:
            batch = _read_game_batch(session, key_list[start : start + READ_BATCH_GAMES])
            session.expunge_all()
        yield from batch


def _read_game_batch(session: Session, keys: list[tuple[UUID, int]]) -> list[StoredGame]:
    """Return the games with these keys (run id, unit), in the same order. Raises NotFoundError for a missing game."""
    by_key: dict[tuple[UUID, int], tables.Game] = {}
    illegal_tries: dict[tuple[UUID, int], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    game, attempt = tables.Game, tables.IllegalAttempt
    for row in session.scalars(select(game).where(tuple_(game.run_id, game.unit).in_(keys))):
        by_key[row.run_id, row.unit] = row
    tries = select(attempt).where(tuple_(attempt.run_id, attempt.unit).in_(keys)).order_by(attempt.ply, attempt.number)
    for try_row in session.scalars(tries):
        illegal_tries[try_row.run_id, try_row.unit][try_row.ply].append(try_row.text)
    games = []
    for run_id, unit in keys:
        if (run_id, unit) not in by_key:
            raise NotFoundError(f"run {shorten_id(run_id)} has no game {unit}", "chessreg game list --run RUN")
        row = by_key[run_id, unit]
        match = session.get_one(tables.Match, (run_id, row.match))
        evaluators = [session.get(tables.Engine, engine_id) for engine_id in get_engine_ids(match)["evaluator"]]
        spec = session.get_one(tables.Run, run_id).spec
        games.append(
            StoredGame(
                game=row,
                match=match,
                seed=int(spec.get("seed", 0)),
                replicate=int(spec.get("replicate", 0)),
                intervention=session.get(tables.Intervention, match.intervention_id) if match.intervention_id else None,
                engine=session.get(tables.Engine, match.engine_id) if match.engine_id else None,
                evaluators=list(filter(None, evaluators)),
                illegal=dict(illegal_tries[run_id, unit]),
            )
        )
    return games


# -- lists and references ---------------------------------------------------------------------------------------------


def list_stored_games(session: Session, run_id: UUID | None = None, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the last `limit` games (None: all) with their match's columns and without packed columns. Newest runs are
    last.
    """
    game, match, run = tables.Game, tables.Match, tables.Run
    runs = [run_id] if run_id else session.scalars(select(run.id).order_by(run.created_at.desc(), run.id.desc()))
    rows: list[dict[str, Any]] = []
    for one in runs:  # one run at a time: sorting all games of a large registry takes seconds
        if limit is not None and len(rows) >= limit:
            break
        statement = select(game).where(game.run_id == one).order_by(game.unit.desc())
        matches = {m.number: m for m in session.scalars(select(match).where(match.run_id == one))}
        if not matches:
            continue
        run_names = names.read_names_of(session, "run", [one])
        for game_row in session.scalars(statement.limit(None if limit is None else limit - len(rows))):
            match_columns = _read_columns(matches[game_row.match], {"run_id", "number"})
            rows.append(
                {"name": run_names.get(one), **_read_columns(game_row, PACKED_COLUMNS | {"detail"}), **match_columns}
            )
    return rows[::-1]


def _read_columns(row: Any, without: Iterable[str] = ()) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in row.__table__.columns if column.key not in without}


def build_full_record(stored_game: StoredGame) -> dict[str, Any]:
    """Return all data of one game: its unpacked columns, match, engines, intervention and illegal tries."""
    game = stored_game.game
    return {
        **_read_columns(game, PACKED_COLUMNS),
        "moves": stored_game.moves,
        "sans": convert_packed_to_sans(game.moves),
        "tries": None if game.tries is None else np.frombuffer(game.tries, np.uint8).tolist(),
        "illegal_attempts": [
            {"ply": ply, "number": number, "text": text}
            for ply, texts in sorted(stored_game.illegal.items())
            for number, text in enumerate(texts)
        ],
        "seed": stored_game.seed,
        "replicate": stored_game.replicate,
        "match": _read_columns(stored_game.match, {"run_id"}),
        "engine": _read_columns(stored_game.engine, {"options"}) if stored_game.engine else None,
        "evaluators": [_read_columns(engine, {"options"}) for engine in stored_game.evaluators],
        "intervention": _read_columns(stored_game.intervention) if stored_game.intervention else None,
    }


def parse_unit_reference(session: Session, reference: str) -> tuple[UUID, int]:
    """Parse RUN:UNIT or RUN/UNIT and return (run, unit).

    Raises BadInputError for another format, NotFoundError if the run does not exist.
    """
    run, _, unit = reference.replace("/", ":").rpartition(":")
    if not run or not (unit.isascii() and unit.isdigit() and len(unit) < 19):
        raise BadInputError(f"{reference!r} is not a game reference", "write RUN:UNIT, for example skill:12")
    return names.resolve_id(session, "run", run), int(unit)


def list_game_keys(database: Database, run_id: UUID) -> list[tuple[UUID, int]]:
    """Return the keys (run, unit) of all games of a run, in order. Raises NotFoundError if it has no games."""
    with database.read() as session:
        units = session.scalars(select(tables.Game.unit).where(tables.Game.run_id == run_id).order_by(tables.Game.unit))
        keys = [(run_id, unit) for unit in units]
    if not keys:
        raise NotFoundError(f"run {shorten_id(run_id)} has no games", "chessreg game list")
    return keys


# -- games from one opening in two arms --------------------------------------------------------------------------


@dataclass(frozen=True)
class PartnerGame:
    """A game of another arm from the same opening. `parts` is the first ply that differs (None: equal games)."""

    run_id: UUID
    unit: int
    arm: str  # the run's name and its player
    is_edited: bool
    plies: int
    parts: int | None


def find_first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """Return the first ply (0 is White's first move) at which two games differ, or None if they are equal.

    The end of the shorter game counts as a difference.

    >>> find_first_difference(["e2e4", "e7e5"], ["e2e4", "c7c5"]), find_first_difference(["e2e4"], ["e2e4"])
    (1, None)
    """
    for ply, (move, other_move) in enumerate(zip(one, other, strict=False)):
        if move != other_move:
            return ply
    return None if len(one) == len(other) else min(len(one), len(other))


def find_partners(session: Session, run_id: UUID, unit: int) -> list[PartnerGame]:
    """Return the games of other arms with the same opening, of the same book or seed, the same color of the model, and
    the same opponent.

    Games of another policy come last, and their arm names it. If this game has an intervention, games without one come
    first, and vice versa. Newer runs come first. Raises NotFoundError if the game does not exist.
    """
    game, match, run = tables.Game, tables.Match, tables.Run
    game_row = session.get(game, (run_id, unit))
    if game_row is None:
        raise NotFoundError(f"run {shorten_id(run_id)} has no game {unit}", "chessreg game list --run RUN")
    match_row = session.get_one(match, (run_id, game_row.match))
    alike = (
        select(game, match)
        .join(match, (match.run_id == game.run_id) & (match.number == game.match))
        .join(run, run.id == game.run_id)
        .where(
            match.opening == match_row.opening,
            match.opening_seed == match_row.opening_seed,
            match.color == match_row.color,
            match.opponent == match_row.opponent,
            match.level.is_not_distinct_from(match_row.level),
            match.limit.is_not_distinct_from(match_row.limit),
            game.opening_number == game_row.opening_number,
            game.opening_plies == game_row.opening_plies,
            or_(game.run_id != run_id, game.match != game_row.match),
        )
        .order_by(run.created_at.desc(), game.run_id, game.unit)
    )
    partner_rows = session.execute(alike).all()
    run_names = names.read_names_of(session, "run", {other.run_id for other, _ in partner_rows})
    opening, moves = game_row.opening_plies, unpack_moves(game_row.moves)
    pairs = []
    for other, partner_match in partner_rows:
        partner_moves = unpack_moves(other.moves)
        if partner_moves[:opening] != moves[:opening]:  # same number in another opening book
            continue
        name = run_names.get(other.run_id) or shorten_id(other.run_id)
        is_edited = partner_match.intervention_id is not None
        policy = f", policy {partner_match.policy}" if partner_match.policy != match_row.policy else ""
        arm = f"{name} ({partner_match.player}{', edited' if is_edited else ''}{policy})"
        partner = PartnerGame(
            other.run_id, other.unit, arm, is_edited, other.plies, find_first_difference(moves, partner_moves)
        )
        pairs.append((bool(policy), is_edited == (match_row.intervention_id is not None), partner))
    return [partner for *_, partner in sorted(pairs, key=lambda pair: pair[:2])]


@dataclass(frozen=True)
class GamePair:
    """Two stored games to compare."""

    one: StoredGame
    other: StoredGame

    @property
    def parts(self) -> int | None:
        """Return the first ply that differs, or None."""
        return find_first_difference(self.one.moves, self.other.moves)

    def as_row(self) -> dict[str, Any]:
        """Return the other game's length, the first ply that differs, and both moves at it: `12.Nf3 | 12.Bc4`."""
        at = self.parts
        return {
            "plies": len(self.other.moves),
            "parts": at,
            "moves": "" if at is None else " | ".join(format_game_move(game, at) for game in (self.one, self.other)),
        }


def format_game_move(game: StoredGame, ply: int) -> str:
    """Return the numbered move at a ply, or the game's result if the game ended before it."""
    moves = convert_packed_to_sans(game.game.moves)
    if ply >= len(moves):
        return f"{game.game.result} by {game.game.termination.replace('_', ' ')}"
    return f"{ply // 2 + 1}.{'' if ply % 2 == 0 else '..'}{moves[ply]}"


def read_game_pair(database: Database, one: tuple[UUID, int], other: tuple[UUID, int]) -> GamePair:
    """Return two games by their keys (run, unit). Raises NotFoundError naming a missing game."""
    return GamePair(*read_stored_games(database, [one, other]))
