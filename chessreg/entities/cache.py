"""Activation caches as a user lists, shows and verifies them; `runs.activations` reads them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import select

from chessreg.entities.base import Entity, Row, format_run_annotations, group_by_run
from chessreg.entities.display import (
    Column,
    Part,
    ShowOutput,
    Thing,
    VerifyOutput,
    format_layers,
    format_size,
    list_facts,
)
from chessreg.errors import ChessregError, NotFoundError
from chessreg.models.hook_points import BLOCK
from chessreg.named import format_count
from chessreg.registry import names, tables
from chessreg.runs.activations import chain_groups, describe_unit_gaps, require_registered, summarize_hook_points
from chessreg.runs.inputs import Inputs

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.registry.database import Database
    from chessreg.session import Session
    from store import Store


def verify_cache(database: Database, store: Store, reference: str) -> dict[str, Any]:
    """Read every byte of a cache and compare it with the registered digests.

    Returns run_id, groups, rows, bytes (of chunk files) and seconds. Raises NotFoundError if the run has no cache or
    its bytes are elsewhere, CorruptError naming a changed chunk, and ChessregError unless the groups cover the run's
    units exactly once.
    """
    from store.arrays import ArrayGroup

    with database.read() as session:
        run_id: UUID = names.resolve_id(session, "cache", reference)
        rows = session.scalars(
            select(tables.ActivationCache)
            .where(tables.ActivationCache.run_id == run_id)
            .order_by(tables.ActivationCache.start)
        ).all()
        problem = describe_unit_gaps(session, tables.ActivationCache, run_id)
        session.expunge_all()
    if problem:
        raise ChessregError(f"cache run {run_id.hex[-6:]} {problem}", "chessreg doctor --fix")
    inputs, start = Inputs(database, store), time.monotonic()
    for row in rows:
        array = row.path.removeprefix("arrays/")  # pulled if absent here
        group = ArrayGroup(inputs.locate_bytes("cache", f"run:{run_id.hex}", row.digest, run_id, array=array).path)
        group.verify()
        require_registered([row], [group.digest])
    if not rows:
        raise NotFoundError(f"run {reference} has no cache", "chessreg cache list")
    return {
        "run_id": run_id,
        "groups": len(rows),
        "rows": sum(row.rows for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "seconds": time.monotonic() - start,
    }


def join_groups(rows: list[Row]) -> list[Row]:
    """Return the groups of a run that cover its units without overlap, ordered by unit. If no chain of groups does so,
    return all of them."""
    spans = [GroupUnits(row["start"], row["stop"], place) for place, row in enumerate(rows)]
    group_chain = chain_groups(spans, min(span.start for span in spans), max(span.stop for span in spans))
    return rows if group_chain is None else [rows[span.place] for span in group_chain]


class GroupUnits(NamedTuple):
    """The units from `start` up to but excluding `stop` of a group, and its index among the groups."""

    start: int
    stop: int
    place: int


class Caches(Entity):
    """Activation caches: list, show, verify, export. `chessreg run cache` makes them."""

    table = tables.ActivationCache
    plural = "caches"
    place = 30
    columns = (
        Column("run_id", "run"), Column("name", "name"), Column("checkpoint", "checkpoint"), Column("rows", "rows"),
        Column("d_model", "d model"), Column("dtype", "dtype"),
        Column("hook_points", "hook points", text=lambda points: summarize_hook_points(points)),
        Column("bytes", "bytes"),
    )  # fmt: skip
    overview_columns = (
        *columns[2:4], Column("bytes", "size", "bytes"), Column("layers", "layers"), *columns[4:6],
        Column("tags", "tags"),
    )  # fmt: skip
    none_yet = "no activation caches yet: chessreg run cache --checkpoint MODEL --dataset GAMES"
    hidden = ("groups",)
    list_help = "List the activation caches, one line per run."
    show_help = "Show one cache and its groups of arrays."
    example = "reference-fit"
    verify_help = "Read every byte of a cache and compare it with the published digests."

    def rows(self, sql: SqlSession, reference: str | None = None) -> list[Row]:
        """Return one row per run: its groups joined, redundant groups left out."""
        caches = group_by_run(super().rows(sql, reference)).values()
        return [
            {
                **{key: rows[0][key] for key in ("name", "checkpoint", "run_id", "checkpoint_id", "hook_points")},
                "start": rows[0]["start"],
                "stop": rows[-1]["stop"],
                "rows": sum(row["rows"] for row in rows),
                **{key: rows[0][key] for key in ("d_model", "dtype")},
                "bytes": sum(row["bytes"] for row in rows),
                "groups": [{k: row[k] for k in ("start", "stop", "rows", "bytes", "path", "digest")} for row in rows],
            }
            for rows in map(join_groups, caches)
        ]

    def summarize_rows(self, rows: list[Row]) -> Row:
        blocks = (BLOCK.match(point) for point in rows[0]["hook_points"])
        return {**rows[0], "layers": format_layers(int(block[1]) for block in blocks if block)}

    def make_output(self, row: Row, lines: Sequence[str] = (), remarks: Sequence[str] = ()) -> ShowOutput:
        groups = [
            f"units {group['start']}–{group['stop'] - 1}  {group['rows']:,} rows  {group['path']}"
            for group in row["groups"]
        ]
        return super().make_output(row, groups, remarks)

    def read_details(self, session: Session, id: UUID) -> Thing:
        with session.database.read() as sql:
            (row,) = self.rows(sql, id.hex)
            annotations = format_run_annotations(sql, id)
        layers = [{"layer": n, "hook_point": point, "values": row["rows"] * row["d_model"]}
                  for n, point in enumerate(row["hook_points"])]  # fmt: skip
        groups = [{**group, "units": f"{group['start']:,} to {group['stop'] - 1:,}"} for group in row["groups"]]
        return Thing(
            f"cache of {row['checkpoint'] or 'an unnamed model'} · {row['rows']:,} rows × {row['d_model']} · "
            f"{format_count(len(layers), 'layer')} · {row['dtype']} · {format_size(row['bytes'])}",
            annotations,
            [
                Part(f"layers {len(layers)}",
                     (Column("layer", "#"), Column("hook_point", "hook point"), Column("values", "values")), layers),
                Part(f"groups {len(groups)}",
                     (Column("units", "units"), Column("rows", "rows"), Column("bytes", "bytes"),
                      Column("path", "path"), Column("digest", "digest")), groups),
                list_facts(row),
            ],
        )  # fmt: skip

    def verify(self, session: Session, reference: str, **options: Any) -> VerifyOutput:
        counts = verify_cache(session.database, session.store, reference)
        summary = f"{format_count(counts['groups'], 'group')}, {format_size(counts['bytes'])}"
        outcome = f"every byte matches the published digests: {summary}"
        return VerifyOutput(counts, list(counts), outcome)
