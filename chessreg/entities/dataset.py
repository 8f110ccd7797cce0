"""What a dataset is to a user."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.entities import datasets
from chessreg.entities.base import Entity, Row, entity_rows
from chessreg.entities.display import Column, Option, Part, Printed, Thing, Verified, annotations_of, facts
from chessreg.errors import ChessregError
from chessreg.registry import tables
from chessreg.registry.read import columns as columns_of

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session


class Datasets(Entity):
    """Games and positions: add, fetch, generate, split, verify."""

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
    hidden = ("report", "parts", "notes", "archived", "invalid")
    show_help = "Show a dataset: counts, sources, parts."
    example = "sample"
    show_options = (Option("rejects", "List the games that were rejected, and why.", bool),)
    verify_help = "Read every byte of a dataset again, compare it with its report, and replay a sample of it."
    verify_options = (Option("sample", "Games or positions to replay in python-chess.", int, default=200),)

    def overview(self, sql: SqlSession) -> list[Row]:
        parts: dict[UUID, list[str]] = defaultdict(list)
        for split in sql.query(tables.Split).order_by(tables.Split.created_at, tables.Split.low):
            parts[split.dataset_id].append(split.name)
        return [{**row, "parts": parts[row["id"]]} for row in entity_rows(sql, self.noun, self.table)]

    def rows(self, sql: SqlSession, reference: str | None = None) -> list[Row]:
        rows = [{**row, "content": datasets.content_of(row)} for row in super().rows(sql, reference)]
        if reference is not None:
            for row in rows:
                splits = sql.query(tables.Split).filter_by(dataset_id=row["id"])
                ordered = splits.order_by(tables.Split.created_at, tables.Split.low)
                row["parts"] = [columns_of(split) for split in ordered]
        return rows

    def show(self, session: Session, reference: str, **options: Any) -> Printed:
        if options.get("rejects"):
            return Printed(datasets.rejects(session.database, session.store, reference))
        with session.database.read() as sql:
            (row,) = self.rows(sql, reference)
        report, lines = row["report"], []
        for title in ("rejected", "skipped"):
            lines += [f"{title:<12}  {number:,} {reason}" for reason, number in report[title].items()]
        if report.get("cut"):
            lines.append(f"cut           {report['cut']:,} games end inside a move in their source; "
                         "whole moves are kept")  # fmt: skip
        lines += [f"layout        {note}" for note in report.get("notes", ())]
        for source in report["sources"]:
            lines.append(f"file          {source['name']}  {source['bytes']:,} bytes  sha256 {source['sha256']}")
        for part in row["parts"]:
            bounds = f"seed {part['seed']}, {part['low']:g} to {part['high']:g}"
            lines.append(f"part          {part['name']}  {part['games']:,} {row['content']}  {bounds}")
        lines += [f"note          {note}" for note in row["notes"]]
        return self.printed(row, lines)

    def thing(self, session: Session, id: UUID) -> Thing:
        with session.database.read() as sql:
            (row,) = self.rows(sql, id.hex)
        report = row["report"]
        left_out = [{"why": "a game with these moves was there already", "how": "duplicate",
                     "games": row["duplicates"]}]  # fmt: skip
        left_out += [{"why": why, "how": how, "games": number}
                     for how in ("rejected", "skipped") for why, number in report[how].items()]  # fmt: skip
        try:
            rejects: list[Any] = datasets.rejects(session.database, session.store, id.hex)
        except (ChessregError, OSError):  # its files are elsewhere
            rejects = []
        ratings = f"ratings of {row['rating_scale']}" if row["rating_scale"] else "no rating scale"
        size = f"{row['games']:,} games · {row['plies']:,} {'plies' if row['content'] == 'games' else row['content']}"
        return Thing(
            f"dataset · {size} · {ratings} · {row['licence'] or 'no licence told'}",
            annotations_of(row),
            [
                Part(f"parts {len(row['parts'])}",
                     (Column("name", "part"), Column("games", "games"), Column("seed", "seed"), Column("low", "from"),
                      Column("high", "to")), row["parts"]),
                Part("left out", (Column("how", "as"), Column("games", "games"), Column("why", "why")), left_out),
                Part(f"rejects {len(rejects):,}",
                     (Column("source", "source"), Column("row", "game"), Column("line", "line"), Column("ply", "ply"),
                      Column("reason", "reason")), rejects),
                Part("files", (Column("name", "file"), Column("bytes", "bytes"), Column("sha256", "sha256")),
                     report["sources"]),
                facts({name: value for name, value in row.items() if name not in ("parts", "content")}),
            ],
        )  # fmt: skip

    def verify(self, session: Session, reference: str, **options: Any) -> Verified:
        found = datasets.verify_dataset(session.database, session.store, reference, **options)
        counts = {found.content: found.games, "replayed": found.replayed, "ok": not found.problems}
        return Verified({**counts, "problems": found.problems}, list(counts),
                        f"{found.games:,} {found.content} are as they were added; {found.replayed:,} replayed",
                        found.problems)  # fmt: skip

    def made_by(self, sql: SqlSession, row: Any) -> tuple[str, str]:
        return f"chessreg dataset add {row.source}", f"content {row.identity[:12]}"
