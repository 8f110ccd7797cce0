"""Datasets: listing, reading, verifying, and splitting into named parts by a seeded hash of the moves."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import select

from chessreg.entities import register
from chessreg.entities.base import Entity, Row, read_entity_rows
from chessreg.entities.bundled import SAMPLE_GAMES, list_bundled_digests
from chessreg.entities.display import (
    Column,
    Option,
    Part,
    ShowOutput,
    Thing,
    VerifyOutput,
    format_annotations,
    list_facts,
)
from chessreg.entities.run import format_typed_reference
from chessreg.errors import BadInputError, ChessregError, NotFoundError, RegistryError
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.read import get_row_values as columns_of
from chessreg.registry.tables.types import get_utc_now
from chessreg.runs.inputs import Inputs
from chessreg.terminal import make_visible

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.games.boards.boardframe import BoardFrame, Role
    from chessreg.games.datasets.dataset import DatasetFile, Verification
    from chessreg.session import Session
    from store import Store

NOUN = "dataset"
GENERATE_OPTIONS = {  # setting → option of `dataset generate`
    "games": "--games",
    "nodes": "--search-nodes",
    "max_plies": "--max-plies",
    "opening_plies": "--opening-plies",
    "resign_share": "--resign-share",
    "seed": "--seed",
}


class Datasets(Entity):
    """Games and positions: add, fetch, generate, split, overlap, verify."""

    table = tables.Dataset
    plural = "datasets"
    place = 10
    columns = (
        Column("id", "id"), Column("name", "name"), Column("content", "holds"), Column("games", "games"),
        Column("plies", "plies"), Column("duplicates", "duplicates"), Column("rejected", "rejected"),
        Column("skipped", "skipped"), Column("rating_scale", "ratings"), Column("licence", "licence"),
        Column("source", "source", widest=40),
    )  # fmt: skip
    overview_columns = (*columns[3:5], Column("parts", "parts"), *columns[5:10], Column("tags", "tags"), columns[10])
    none_yet = "no games yet: chessreg dataset add FILE.pgn --name games"
    hidden = ("report", "parts", "archived", "invalid")
    show_help = "Show a dataset: counts, sources, parts."
    example = "sample"
    show_options = (Option("rejects", "List the rejected games or positions with the reason.", bool),)
    verify_help = "Read every byte of a dataset, compare it with its report, and replay a sample."
    verify_options = (Option("replay", "Games or positions to replay in python-chess.", int, default=200),)

    def overview(self, sql: SqlSession) -> list[Row]:
        parts: dict[UUID, list[str]] = defaultdict(list)
        for split in sql.query(tables.Split).order_by(tables.Split.created_at, tables.Split.low):
            parts[split.dataset_id].append(split.name)
        return [{**row, "parts": parts[row["id"]]} for row in read_entity_rows(sql, self.noun, self.table)]

    def rows(self, sql: SqlSession, reference: str | None = None) -> list[Row]:
        rows = [{**row, "content": get_dataset_content(row)} for row in super().rows(sql, reference)]
        if reference is not None:
            for row in rows:
                splits = sql.query(tables.Split).filter_by(dataset_id=row["id"])
                ordered_splits = splits.order_by(tables.Split.created_at, tables.Split.low)
                row["parts"] = [columns_of(split) for split in ordered_splits]
        return rows

    def show(self, session: Session, reference: str, **options: Any) -> ShowOutput:
        if options.get("rejects"):
            return ShowOutput(read_rejects(session.database, session.store, reference))
        with session.database.read() as sql:
            (row,) = self.rows(sql, reference)
        report, lines = row["report"], format_dataset_counts(row)
        if report.get("cut"):
            lines.append(f"cut           {report['cut']:,} games end inside a move in their source; "
                         "whole moves are kept")  # fmt: skip
        if report.get("salvaged"):
            lines.append(f"salvaged      {make_visible(report['salvaged'])}")
        lines += [f"layout        {note}" for note in report.get("notes", ())]
        for source in report["sources"]:
            lines.append(f"file          {source['name']}  {source['bytes']:,} bytes  sha256 {source['sha256']}")
        for part in row["parts"]:
            bounds = f"seed {part['seed']}, {part['low']:g} to {part['high']:g}"
            lines.append(f"part          {part['name']}  {part['games']:,} {row['content']}  {bounds}")
        return self.make_output(row, lines)

    def read_details(self, session: Session, id: UUID) -> Thing:
        with session.database.read() as sql:
            (row,) = self.rows(sql, id.hex)
        report = row["report"]
        items = Column("games", row["content"])
        copy = "a game with these moves" if row["content"] == "games" else "this board"
        rejects = [{"why": f"{copy} was there already", "how": "duplicate", "games": row["duplicates"]}]
        rejects += [{"why": reason, "how": outcome, "games": number}
                     for outcome in ("rejected", "skipped") for reason, number in report[outcome].items()]  # fmt: skip
        try:
            bad_games = read_rejects(session.database, session.store, id.hex)
        except (ChessregError, OSError):  # its files are not in this store
            bad_games = []
        ratings = f"ratings of {row['rating_scale']}" if row["rating_scale"] else "no rating scale"
        size = f"{row['games']:,} games · {row['plies']:,} {'plies' if row['content'] == 'games' else row['content']}"
        return Thing(
            f"dataset · {size} · {ratings} · {row['licence'] or 'no licence recorded'}",
            format_annotations(row),
            [
                Part(f"parts {len(row['parts'])}",
                     (Column("name", "part"), items, Column("seed", "seed"), Column("low", "from"),
                      Column("high", "to")), row["parts"]),
                Part("left out", (Column("how", "as"), items, Column("why", "why")), rejects),
                Part(f"rejects {len(bad_games):,}",
                     (Column("source", "source"), Column("row", "game"), Column("line", "line"), Column("ply", "ply"),
                      Column("reason", "reason")), bad_games),
                Part("files", (Column("name", "file"), Column("bytes", "bytes"), Column("sha256", "sha256")),
                     report["sources"]),
                list_facts({name: value for name, value in row.items() if name not in ("parts", "content")}),
            ],
        )  # fmt: skip

    def verify(self, session: Session, reference: str, **options: Any) -> VerifyOutput:
        verification = verify_dataset(session.database, session.store, reference, **options)
        counts = {
            verification.content: verification.games,
            "replayed": verification.replayed,
            "ok": not verification.problems,
        }
        return VerifyOutput({**counts, "problems": verification.problems}, list(counts),
                        f"{verification.games:,} {verification.content} match their report; "
                        f"{verification.replayed:,} replayed",
                        verification.problems)  # fmt: skip

    def describe_origin(self, sql: SqlSession, row: Any) -> tuple[str, str]:
        from chessreg.games.datasets.game_filter import GameFilter

        remark, report = f"content {row.identity[:12]}", row.report
        if settings := report.get("generated"):
            words = ["generate", "--levels", ",".join(map(str, settings["levels"]))]
            for name, option in GENERATE_OPTIONS.items():
                words += [option, str(settings[name])]
            remark += f", {settings['engine']} {settings['version']}"
        else:
            places = report.get("addresses") or [name for name, _ in self.list_source_files(sql, row)]
            words = ["add", *(places or ["--sample"])]
            filters = report.get("filters", {})
            words += ["--min-plies", str(filters["min_plies"])] if filters.get("min_plies") else []
            for name in ("exclude", "within"):
                for reference in filters.get(name, ()):
                    words += [f"--{name}", format_typed_reference(sql, reference)]
            words += GameFilter.from_filters(filters).words()
            words += ["--salvage"] if report.get("salvaged") else []
            remark += f", from {report['fetched']['url']}" if report.get("fetched") else ""
        return f"chessreg dataset {shlex.join(words)}", remark

    def list_source_files(self, sql: SqlSession, row: Any) -> list[tuple[str, str]]:
        if row.report.get("addresses"):  # no file is needed
            return []
        sources = [(source["name"], source["sha256"]) for source in row.report.get("sources", ())]
        return [
            (name, digest) for name, digest in sources if name != SAMPLE_GAMES or digest not in list_bundled_digests()
        ]

    def list_following_commands(self, sql: SqlSession, row: Any) -> list[str]:
        name = names.read_name(sql, "dataset", row.id) or row.id.hex[-6:]
        splits = sql.scalars(select(tables.Split).where(tables.Split.dataset_id == row.id))
        commands = []
        for parts in group_splits(splits):
            shares = ",".join(f"{part.name}={part.high - part.low:.12g}" for part in parts)
            commands.append(
                f"chessreg dataset split {shlex.quote(name)} --parts {shlex.quote(shares)} --seed {parts[0].seed}"
            )
        return commands


def group_splits(splits: Iterable[tables.Split]) -> list[list[tables.Split]]:
    """Return the parts of a dataset grouped by the split that made them: parts of one seed, each beginning at the end
    of another.
    """
    ordered_splits = sorted(splits, key=lambda part: (part.seed, part.low, part.name))
    groups = []
    while ordered_splits:
        chain = [ordered_splits.pop(0)]
        while next_parts := [p for p in ordered_splits if p.seed == chain[-1].seed and p.low == chain[-1].high]:
            chain.append(next_parts[0])
            ordered_splits.remove(next_parts[0])
        groups.append(chain)
    return groups


# -- its files ------------------------------------------------------------------------------------------------------


def get_dataset_content(row: tables.Dataset | dict[str, Any]) -> str:
    """Return the content of a dataset: `games` or `positions`."""
    report = row["report"] if isinstance(row, dict) else row.report
    return str(report.get("content", "games"))


def format_dataset_counts(row: dict[str, Any]) -> list[str]:
    """Return lines with the number of games or positions found, kept (with the duplicates among them) and left out."""
    report, content = row["report"], get_dataset_content(row)
    kept_count = row["games"] if content == "games" else row["plies"]
    rejects = [(outcome, number, reason) for outcome in ("skipped", "rejected")
                for reason, number in report[outcome].items()]  # fmt: skip
    found_count = report.get("found")  # absent in datasets of earlier versions
    unit = "moves" if content == "games" else "board"
    counts = [
        (
            "found",
            kept_count + sum(number for _, number, _ in rejects) if found_count is None else found_count,
            content,
        ),
        ("kept", kept_count, content),
        ("duplicates", row["duplicates"], f"of these are marked: an earlier one has the same {unit}"),
        *rejects,
    ]
    return [f"{name:<12}  {number:,} {text}" for name, number, text in counts if number or name in ("found", "kept")]


def open_dataset_file(row: tables.Dataset, folder: Path) -> DatasetFile:
    """Return the open games or positions of a dataset."""
    from chessreg.games.datasets.dataset import Games
    from chessreg.games.datasets.positions import Positions

    return Positions(folder) if get_dataset_content(row) == "positions" else Games(folder)


def locate_dataset(database: Database, store: Store, reference: str) -> tuple[tables.Dataset, Path]:
    """Return a dataset's row and the folder of its files."""
    with database.read() as session:
        row = session.get_one(tables.Dataset, names.resolve_id(session, NOUN, reference))
        session.expunge(row)
    return row, Inputs(database, store).locate_bytes(NOUN, f"dataset:{row.identity}", row.artifact).path


def verify_dataset(database: Database, store: Store, reference: str, *, replay: int = 200) -> Verification:
    """Read every byte of a dataset, compare it with its report, replay `replay` games or positions, and record the
    time.

    Raises StoreError if bytes have changed. `problems` of the result lists other problems.
    """
    from chessreg.games.datasets import dataset, positions

    row, folder = locate_dataset(database, store, reference)
    artifact = store.verify(row.artifact)
    verify = positions.verify_positions if get_dataset_content(row) == "positions" else dataset.verify_games
    verification = verify(folder, sample=replay)
    if not verification.problems:
        with suppress(RegistryError), database.write() as session:  # a read-only registry does not record it
            register.record_verification(session, artifact)
    return verification


def read_rejects(database: Database, store: Store, reference: str) -> list[dict[str, Any]]:
    """Return row, source, line, ply and reason of each game or position rejected when a dataset was added."""
    from chessreg.games.datasets.dataset import REJECTS_FILE

    _, folder = locate_dataset(database, store, reference)
    lines = (folder / REJECTS_FILE).read_text(encoding="utf-8").splitlines()
    keys = lines[0].split("\t")
    rejects = [dict(zip(keys, line.split("\t"), strict=True)) for line in lines[1:]]
    return [{k: v if k in ("source", "reason") else int(v) for k, v in row.items()} for row in rejects]


# -- its parts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overlap:
    """Two parts of a dataset, the number of games (or positions) in both, and the number of distinct ones.

    Games are distinct by their moves, positions by their board.
    """

    part: str
    other: str
    games: int
    move_lists: int


@dataclass(frozen=True)
class SplitReport:
    """The new parts as rows, the number of games outside all of them, and the overlap of every pair of parts."""

    dataset_id: UUID
    parts: list[tables.Split]
    created: int
    outside: int
    overlaps: list[Overlap]
    content: str = "games"


def split_dataset(database: Database, store: Store, reference: str, parts: str, seed: int) -> SplitReport:
    """Split a dataset into `parts` (`train=0.5,test=0.5`) by a hash of the moves (for positions: of their game) with
    `seed`.

    Equal move lists are in the same part, and so are all positions of a game. Parts of one split are therefore
    disjoint. A part with the same bounds is kept; other bounds of an existing part raise BadInputError.
    """
    from chessreg.games.datasets.dataset import DatasetPart, parse_parts
    from chessreg.games.datasets.positions import Positions

    part_names = parse_parts(parts, seed)
    row, folder = locate_dataset(database, store, reference)
    file = open_dataset_file(row, folder)
    hashes = file.hashes
    with database.write() as session:
        register.lock_registrations(session)
        existing_splits = session.scalars(select(tables.Split).where(tables.Split.dataset_id == row.id)).all()
        parts_by_name = {part.name: part for part in existing_splits}
        for name, part in part_names.items():
            old = parts_by_name.get(name)
            if old is not None and (old.seed, old.low, old.high) != (part.seed, part.low, part.high):
                raise BadInputError(
                    f"dataset {reference} has a part {name!r} already: seed {old.seed}, {old.low:g} to {old.high:g}",
                    f"runs may depend on it; call the new part {name}-{seed}",
                )
            if old is None:
                games = int(part.contains(hashes).sum())
                split = tables.Split(
                    dataset_id=row.id, name=name, created_at=get_utc_now(), games=games, **asdict(part)
                )
                session.add(split)
                parts_by_name[name] = split
        session.flush()
        session.expunge_all()
    every = {name: DatasetPart(part.seed, part.low, part.high) for name, part in parts_by_name.items()}
    return SplitReport(
        dataset_id=row.id,
        parts=[parts_by_name[name] for name in part_names],
        created=len(parts_by_name) - len(existing_splits),
        outside=int((~join_masks([part.contains(hashes) for part in part_names.values()])).sum()),
        overlaps=count_overlaps(
            hashes, file.position_hashes if isinstance(file, Positions) else hashes, every, list(part_names)
        ),
        content=file.content,
    )


def join_masks(masks: Sequence[Any]) -> Any:
    """Return the union of masks: bool [n], where each mask is bool [n]."""
    import numpy as np

    return np.logical_or.reduce(masks)


def count_overlaps(hashes: Any, things: Any, parts: dict[str, Any], wanted_parts: Sequence[str]) -> list[Overlap]:
    """Return the overlap of each part in `wanted_parts` with every other part.

    `hashes` uint64 [n] determine the part of each row. `things` uint64 [n] are hashes of the rows' moves or boards, by
    which distinct ones are counted.
    """
    import numpy as np

    masks = {name: part.contains(hashes) for name, part in parts.items()}
    lists = {name: np.unique(things[mask]) for name, mask in masks.items()}
    overlaps = []
    for place, name in enumerate(wanted_parts):
        for other in [*wanted_parts[place + 1 :], *(o for o in parts if o not in wanted_parts)]:
            shared_lists = np.intersect1d(lists[name], lists[other], assume_unique=True)
            overlaps.append(Overlap(name, other, int((masks[name] & masks[other]).sum()), len(shared_lists)))
    return overlaps


@dataclass(frozen=True)
class DatasetOverlap:
    """`shared` of `of` games, positions or boards of one dataset are also in another (`percent` per cent)."""

    what: str
    shared: int
    of: int
    percent: float


def compare_datasets(inputs: Inputs, first: str, second: str) -> list[DatasetOverlap]:
    """Return the overlap of two datasets or parts.

    Two datasets of games are compared by moves, other pairs by the ids of their games. Positions and distinct boards
    are compared by the first four fields of their FEN. Raises BadInputError if games to compare with positions have no
    ids.
    """
    import numpy as np

    from chessreg.games.datasets.positions import find_game_ids

    items = [inputs.items(inputs.reference(NOUN, name), NOUN) for name in (first, second)]
    (own_dataset, _), (other_dataset, _) = items
    rows = [dataset.rows(part) for dataset, part in items]

    def make_row(part_name: str, ours: np.ndarray, other: np.ndarray) -> DatasetOverlap:
        count = int(np.isin(ours, other).sum())
        return DatasetOverlap(part_name, count, len(ours), 100 * count / max(len(ours), 1))

    if own_dataset.content == "games" and other_dataset.content == "games":
        own_hashes, other = (dataset.hashes[item_rows] for (dataset, _), item_rows in zip(items, rows, strict=True))
        return [make_row("games", own_hashes, other), make_row("different move lists", np.unique(own_hashes), other)]
    shared_boards, games = [], []
    for (dataset, _), dataset_rows, name in zip(items, rows, (first, second), strict=True):
        if dataset.content == "positions":
            games.append(dataset.hashes[dataset_rows])
            continue
        game_ids, hashes = find_game_ids(dataset)
        games.append(hashes[np.isin(game_ids, dataset_rows)])
        if not len(games[-1]):
            raise BadInputError(f"no game of {name} has a Lichess id in its Site tag", "use a dataset with ids")
    own_hashes, other = games
    if own_dataset.content == "positions" and other_dataset.content == "positions":
        boards, other_boards = own_dataset.position_hashes[rows[0]], other_dataset.position_hashes[rows[1]]
        shared_boards += [
            make_row("positions by board", boards, other_boards),
            make_row("different boards", np.unique(boards), other_boards),
        ]
    if own_dataset.content == "positions":
        shared_boards.append(make_row("positions by game", own_hashes, other))
    return [*shared_boards, make_row("games by id", np.unique(own_hashes), other)]


# -- its boards -------------------------------------------------------------------------------------------------------


def build_dataset_frames(inputs: Inputs, dataset: str, number: int) -> list[BoardFrame]:
    """Return the boards of a game, one for the start and one per ply, or the board of a position with its best move.

    `number` is the row of the game or position. Raises NotFoundError if the dataset, its files or the row is missing.
    """
    from chessreg.games.boards.boardframe import list_game_views
    from chessreg.games.boards.moves import unpack_moves

    record, folder = locate_dataset(inputs.database, inputs.store, dataset)
    rows = open_dataset_file(record, folder)
    unit = rows.content.removesuffix("s")
    if not 0 <= number < rows.total:
        raise NotFoundError(
            f"dataset {dataset} has no {unit} {number}", f"its {rows.content} are 0 to {rows.total - 1}"
        )
    with inputs.database.read() as session:
        dataset_name = names.read_name(session, "dataset", record.id) or record.id.hex[-6:]
    if unit == "position":
        columns = ["fen", "best", "played", "eval_before", "rating", "game", "ply", "action", "win_prob", "legal"]
        (row,) = rows.take([number], columns).to_pylist()
        return [build_dataset_position_frame(row, f"{dataset_name} position {number}")]
    (row,) = rows.take([number], ["moves", "result", "white_elo", "black_elo"]).to_pylist()
    players = " – ".join("?" if row[side] is None else str(row[side]) for side in ("white_elo", "black_elo"))
    title = f"{dataset_name} game {number}: {players}, {row['result']}"
    return list_game_views([move.uci() for move in unpack_moves(row["moves"])], title)


def build_dataset_position_frame(row: dict[str, Any], title: str) -> BoardFrame:
    """Return the board of a position with an arrow for the best move and thinner ones for other recorded moves."""
    import chess

    from chessreg.games.boards.boardframe import Arrow, BoardFrame
    from chessreg.games.datasets.positions import parse_mate

    board = chess.Board(row["fen"])
    move_columns: tuple[tuple[str, float, Role], ...] = (
        ("best", 1.0, "best"),
        ("played", 0.3, "played"),
        ("action", 0.3, ""),
    )
    arrows = tuple(
        Arrow.from_item((row[name], weight, f"{name} {row[name]}", role))
        for name, weight, role in move_columns
        if row.get(name)
    )
    if row["game"]:
        title += f": game {row['game']}, ply {row['ply']}"
    elif row["rating"] is not None:
        title += f": rating {row['rating']}"
    caption, score = [], row["eval_before"]
    if score is not None:
        mate = parse_mate(score)
        caption.append(f"#{mate} before the move" if mate else f"{score:+.0f} centipawns before the move")
    if row.get("win_prob") is not None:
        suffix = f" after {row['action']}" if row["action"] else ""
        caption.append(f"win probability{suffix} {row['win_prob']:.3f}, of the side to move")
    if row.get("legal") is not None:
        caption.append(f"{row['legal']} legal moves")
    return BoardFrame.from_board(board, title, arrows=arrows, caption=caption, evaluation=score)
