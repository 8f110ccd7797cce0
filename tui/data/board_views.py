"""Load the boards of a row: board views of its kind, the state of an edit, or two games from the same opening."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import select

from chessreg.errors import ChessregError, NotFoundError
from chessreg.registry import names, tables
from tui import show
from tui.data.result_rows import DATASET_GAME, RESULT_TABLES, find_row, flatten_record, name_runs
from tui.data.result_rows import format_points as game_points

if TYPE_CHECKING:
    from chessreg.entities.game import PartnerGame, StoredGame
    from chessreg.experiments.edit.three_boards import StoredCase
    from chessreg.games.boards.boardframe import BoardFrame
    from chessreg.lab.question import StoredEdit
    from chessreg.session import Session


DATASET_TAGS = {
    "White": "white", "Black": "black", "Result": "result", "WhiteElo": "white_elo", "BlackElo": "black_elo",
    "ECO": "eco",
}  # fmt: skip
FIRST_MOVES = 6  # plies of a game that are written out
KINDS_WITH_OWN_SCREEN = ("edit", "edit-next-token")  # kinds with a screen that asks the process that holds the model


class Boards(NamedTuple):
    """The board views of one row, the complete row, and the name of its run."""

    row: dict[str, Any]
    views: list[BoardFrame]
    run: str
    kind: str
    limit: int | None = None  # of a game: the frame at its move limit
    pgn: str = ""  # of a game
    checkpoint: str = (
        ""  # the model whose game or answer this is, in hexadecimal digits; of a dataset's game the newest
    )
    facts: tuple[str, ...] = ()  # of a game: its result, the edit of its model, and more
    layers: Mapping[int, int] = MappingProxyType({})  # layer → unit: what probes of the run read of the same game
    model: str = ""  # the name of `checkpoint`; of an edited player, that it is asked without the edit


def load_boards(session: Session, row: Mapping[str, Any]) -> Boards:
    """Return the boards of a row that names its run and unit, or of a dataset's game.

    `views` is empty for kinds with a separate screen. Raises NotFoundError if the row, its run or its kind is missing,
    or if its kind does not draw boards.
    """
    from chessreg.runs.kind import find_kind_of_record

    if row.get("result_table") == DATASET_GAME:
        from chessreg.entities.dataset import build_dataset_frames

        views = build_dataset_frames(session.inputs, row["dataset_id"].hex, row["unit"])
        newest_checkpoint = find_newest_checkpoint(session)
        checkpoint_name = name_checkpoint(session, newest_checkpoint)
        pgn = format_dataset_game(row, views[-1]) if views[-1].moves else ""
        return Boards(
            dict(row), views, row["run"], "dataset", pgn=pgn, checkpoint=newest_checkpoint, model=checkpoint_name
        )
    run_id = row["run_id"] if isinstance(row["run_id"], UUID) else UUID(str(row["run_id"]))
    with session.database.read() as sql:
        run = sql.get(tables.Run, run_id)
        if run is None:
            raise NotFoundError(f"run {run_id.hex[-6:]} is not in this registry", "chessreg runs list")
        record = sql.scalars(
            select(tables.KindRecord).where(
                tables.KindRecord.name == run.kind, tables.KindRecord.version == run.version
            )
        ).first()
        run_name = name_runs(sql, {run_id})[run_id]
    if record is None:
        raise NotFoundError(f"kind {run.kind} of run {run_name} is not recorded in this registry")
    result_tables = (
        [row["result_table"]] if row.get("result_table") else [f for f in record.result_tables if f in RESULT_TABLES]
    )
    full_row = find_row(session, row, result_tables)
    if full_row is None:
        raise NotFoundError(f"unit {row.get('unit')} of run {run_name} has no stored row")
    if run.kind in KINDS_WITH_OWN_SCREEN:
        return Boards(full_row, [], run_name, run.kind)
    kind = find_kind_of_record(record, session.store.read_only)
    views = kind.board_views({k: v for k, v in full_row.items() if k != "result_table"}, session.inputs)
    if not views:
        raise NotFoundError(f"{run.kind} runs have no boards", "i shows all fields of the row")
    if full_row["result_table"] == "game":
        from chessreg.entities.game import read_stored_games
        from chessreg.games.boards.pgn import format_game

        game = next(read_stored_games(session.database, [(full_row["run_id"], full_row["unit"])]))
        model = game.match.checkpoint_id
        suffix = "" if game.intervention is None else " without the edit"
        return Boards(
            full_row, views, run_name, run.kind, game.move_limit_ply, format_game(game.record()),
            "" if model is None else model.hex, describe_game(game), model=game.model + suffix,
        )  # fmt: skip
    checkpoint, layers = find_run_checkpoint(session, run.spec), find_score_layers(session, full_row)
    model_name = name_checkpoint(session, checkpoint)
    facts = describe_cached_game(session, run.spec, full_row)
    return Boards(
        full_row, views, run_name, run.kind, checkpoint=checkpoint, facts=facts, layers=layers, model=model_name
    )


def format_dataset_game(row: Mapping[str, Any], last_frame: BoardFrame) -> str:
    """Return a dataset's game as PGN, from its row and its last position."""
    import chess.pgn

    game = chess.pgn.Game.from_board(chess.Board())
    game.add_line(map(chess.Move.from_uci, last_frame.moves))
    for tag, column in DATASET_TAGS.items():
        if row.get(column) not in (None, ""):
            game.headers[tag] = str(row[column])
    return f"{game}\n"


def describe_cached_game(session: Session, spec: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the dataset, ratings, result and first moves of the game that a score is about, if it is in the store."""
    from chessreg.entities.dataset import build_dataset_frames

    cache = spec.get("test_cache") if row.get("split") == "test" and spec.get("test_cache") else spec.get("cache")
    if row["result_table"] != "score" or row.get("item") is None or not isinstance(cache, str):
        return ()
    try:
        reference = str(session.inputs.run(cache, "cache").spec["dataset"])
        identity = reference.removeprefix("dataset:").partition("[")[0]
        with session.database.read() as sql:
            dataset = sql.scalars(select(tables.Dataset.id).where(tables.Dataset.identity == identity)).one_or_none()
        views = build_dataset_frames(session.inputs, dataset.hex, int(row["item"])) if dataset is not None else []
    except ChessregError:
        return ()
    moves = " ".join(view.caption[0] for view in views[1 : 1 + FIRST_MOVES] if view.caption)
    titles = [view.title for view in views[:1]]
    return (*titles, *([re.sub(r"\d+\.\.\. ", "", moves)] if moves else []))


def describe_game(game: StoredGame) -> tuple[str, ...]:
    """Return a game's result, the edit of its model and its evaluation at the end, a line each."""
    from chessreg.entities.game import describe_intervention
    from chessreg.games.boards.picture import format_evaluation
    from chessreg.registry.measures import MASKED_POLICIES

    row, color = game.game, game.match.color
    points = {"": "not scored", "0": "lost", "½": "drew", "1": "won"}
    points_scored = points[game_points({"result": row.result, "adjudication_cp": row.adjudication_cp}, color)]
    end = row.termination.replace("_", " ")
    lines = [
        f"{row.result} by {end} after {show.format_count(row.plies, 'ply', 'plies')} · {game.model} {points_scored}"
    ]
    edit = "unedited" if game.intervention is None else describe_intervention(game.intervention)
    lines.append(f"{game.model} as {color.title()}, {edit}")
    if row.first_try_legal is not None and game.match.policy not in MASKED_POLICIES:
        lines.append(f"{row.first_try_legal} of {show.format_count(row.turns, 'turn', 'turns')} legal on the first try")
    if row.adjudication_cp is not None:
        limit = (game.match.detail or {}).get("adjudication")
        judge = f" (Stockfish, {format_limit(limit)})" if limit else ""
        lines.append(f"evaluation at the move limit {format_evaluation(row.adjudication_cp)}{judge}")
    return tuple(lines)


def find_score_layers(session: Session, row: Mapping[str, Any]) -> dict[int, int]:
    """Return layer → unit of a run's scores of one game, for a row that is one of them; empty for other rows."""
    if row["result_table"] != "score" or row["layer"] is None:
        return {}
    score = tables.Score
    conditions = (score.run_id == row["run_id"], score.split == row["split"], score.item == row["item"])
    with session.database.read() as sql:
        layers = sql.execute(
            select(score.layer, score.unit).where(*conditions, score.layer.is_not(None)).order_by(score.layer)
        )
        return {layer: unit for layer, unit in layers if layer is not None}


class BoardPreview(NamedTuple):
    """The boards of a row, and its facts if it is a game."""

    views: list[BoardFrame]
    facts: tuple[str, ...]


def preview_boards(session: Session, row: Mapping[str, Any]) -> BoardPreview | None:
    """Return the boards of a row of a list, or None if it has no boards."""
    from chessreg.experiments.edit.three_boards import build_case_frames

    try:
        boards = load_boards(session, row)
        views = boards.views
        if boards.kind == "edit-next-token":
            views = build_case_frames(boards.row, session.inputs)
        elif not views:
            views = load_state_boards(session, row).boards
    except ChessregError:
        return None
    facts = boards.facts
    if boards.kind == "dataset" and len(views) > 1:
        moves = [view.caption[0] for view in views[1:] if view.caption]
        facts = (views[0].title, re.sub(r"\d+\.\.\. ", "", " ".join(moves)))
    return BoardPreview(views, facts) if views else None


def find_run_checkpoint(session: Session, spec: Mapping[str, Any]) -> str:
    """Return the id of the checkpoint named in a run's spec, or an empty string if it is not in this registry."""
    if not isinstance(reference := spec.get("checkpoint"), str):
        return ""
    try:
        return session.inputs.checkpoint(reference)[0].id.hex
    except ChessregError:
        return ""


def find_newest_checkpoint(session: Session) -> str:
    """Return the id of the checkpoint that the lab opens with, or an empty string if there is no checkpoint."""
    from chessreg.lab.question import list_checkpoint_choices

    with session.database.read() as sql:
        choices = list_checkpoint_choices(sql)
    return choices[0].checkpoint_id.hex if choices else ""


def name_checkpoint(session: Session, checkpoint: str) -> str:
    """Return the name of a checkpoint, or the last digits of its id."""
    if not checkpoint:
        return ""
    with session.database.read() as sql:
        return names.read_name(sql, "checkpoint", UUID(checkpoint)) or show.abbreviate_id(checkpoint)


EVALUATION_LIMIT = "nodes=10000"  # the limit of one evaluation


def format_limit(limit: str) -> str:
    """Return an engine's limit in words.

    >>> format_limit("nodes=100000"), format_limit("time=0.1"), format_limit("depth=8")
    ('100,000 nodes', '0.1 s', 'depth 8')
    """
    name, _, value = limit.partition("=")
    if name == "nodes" and value.isdigit():
        return f"{int(value):,} nodes"
    return f"{value} s" if name == "time" else limit.replace("=", " ")


def iter_evaluations(views: Sequence[BoardFrame]) -> Generator[int, None, None]:
    """Yield Stockfish's evaluation of each view, in centipawns from White's side, as `chessreg board` prints it.

    Raises NotFoundError if Stockfish is not installed.
    """
    from chessreg.games.engines.opponents import parse_engine, parse_limit
    from chessreg.games.engines.pool import EnginePool

    with EnginePool(parse_engine("stockfish:20")) as pool:
        yield from pool.evaluations((frame.whole_fen for frame in views), parse_limit(EVALUATION_LIMIT))


class EditedState(NamedTuple):
    """The two boards of a condition; a state that was skipped has one, and no condition."""

    run: str
    run_id: UUID
    unit: int
    boards: list[BoardFrame]
    condition: str
    conditions: list[str]
    row: dict[str, Any]  # the greedy row of the condition
    edit: StoredEdit | None = None  # the edit of the condition; None for a skipped state
    case: StoredCase | None = None  # for runs that read the next token


def load_state_boards(session: Session, row: Mapping[str, Any], condition: str = "") -> EditedState:
    """Return the state of a trial under `condition`; by default, under the trial's condition.

    Raises NotFoundError if the run has no such state.
    """
    from chessreg.experiments.edit.board_views import build_state_boards
    from chessreg.experiments.edit.three_boards import load_stored_case
    from chessreg.lab.question import load_stored_edit

    run_id, unit, trial = UUID(str(row["run_id"])), int(row["unit"]), tables.Trial
    with session.database.read() as sql:
        rows = sql.scalars(
            select(trial)
            .where(trial.run_id == run_id, trial.unit == unit, trial.sample == -1)
            .order_by(trial.condition)
        ).all()
        run_name, kind = name_runs(sql, {run_id})[run_id], sql.get_one(tables.Run, run_id).kind
        sql.expunge_all()
    if not rows:
        raise NotFoundError(f"run {run_name} has no state {unit}")
    target_condition = str(condition or row.get("condition") or "clean")
    key = {"run_id": run_id, "unit": unit, "condition": target_condition}
    case, boards = None, list["BoardFrame"]()
    conditions = sorted((r.condition for r in rows if r.condition not in ("clean", "skipped")), key=edit_sort_key)
    if kind == "edit-next-token":
        case = load_stored_case(session.inputs, run_id, unit)
        shown_condition = (
            "" if case.skip_reason else target_condition if target_condition in conditions else conditions[0]
        )
    else:
        boards, shown_condition = build_state_boards(key, session.inputs)
    shown_row = next((r for r in rows if r.condition == shown_condition), rows[0])
    edit = load_stored_edit(session.inputs, run_id, shown_row) if shown_condition else None
    return EditedState(
        run_name, run_id, unit, boards, shown_condition, conditions, flatten_record(shown_row), edit, case
    )


def edit_sort_key(condition: str) -> tuple[bool, str, int]:
    """Return a sort key: `edit`, `edit-0`, `edit-1`, …, then the controls."""
    name, _, number = condition.partition("-")
    return name != "edit", name, int(number or 0)


class Side(NamedTuple):
    """One game: the run's name, its board views, and the one at its move limit where that was recorded."""

    run: str
    run_id: UUID
    unit: int
    views: list[BoardFrame]
    limit: int | None


class Sides(NamedTuple):
    """A game, the chosen one of its partners, and the ply where they part."""

    sides: tuple[Side, Side]
    partners: list[PartnerGame]
    partner_place: int
    parts: int | None
    moves: str  # what both played there


def load_sides(session: Session, row: Mapping[str, Any], place: int) -> Sides | None:
    """Return a game next to its partner number `place`, or None if no other arm played this opening."""
    from chessreg.entities.game import find_partners, read_game_pair

    run_id, unit = UUID(str(row["run_id"])), int(row["unit"])
    with session.database.read() as sql:
        partners = find_partners(sql, run_id, unit)
        run_names = name_runs(sql, {run_id, *(partner.run_id for partner in partners)})
    if not partners:
        return None
    place %= len(partners)
    partner = partners[place]
    pair = read_game_pair(session.database, (run_id, unit), (partner.run_id, partner.unit))
    sides = [
        Side(run_names[game.game.run_id], game.game.run_id, game.game.unit, game.board_views(), game.move_limit_ply)
        for game in (pair.one, pair.other)
    ]
    return Sides((sides[0], sides[1]), partners, place, pair.parts, pair.as_row()["moves"])
