"""Activation caches: their arrays, and whether the bytes are still what was published."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

import numpy as np
from sqlalchemy import select

from chessreg.entities.base import Entity, Row, annotations_of_run, by_run
from chessreg.entities.display import Column, Part, Printed, Thing, Verified, counted, facts, size
from chessreg.errors import ChessregError, NotFoundError
from chessreg.models.hook_points import RESID_POST, layer_of, pattern_of
from chessreg.registry import names, tables
from chessreg.registry.run_state import complete_units
from chessreg.runs.inputs import Inputs
from chessreg.runs.task import ranges

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.registry.database import Database
    from chessreg.session import Session
    from store import Store
    from store.arrays import ActivationArray


class Activations(NamedTuple):
    """Rows of one layer of a cache, and where each was taken: all arrays are [rows], in one order."""

    residual: np.ndarray  # float32 [rows, d_model]
    game: np.ndarray  # int32: the game's row in the whole dataset, also where the cache is of a part of it
    token: np.ndarray  # int32: the token within the game
    ply: np.ndarray  # int32: plies played before it


class CachedActivations:
    """The activations of a cache run, as `chessreg.open().cache(…)` gives them: of one hook point of each layer, which
    is the residual stream after it unless `pattern` names another."""

    def __init__(
        self,
        run: tables.Run,
        groups: list[tables.ActivationCache],
        array: ActivationArray,
        n_layers: int,
        pattern: str = RESID_POST,
    ) -> None:
        self.run, self.groups, self.array = run, groups, array
        self.pattern, self._points = pattern, points_by_layer(groups[0], n_layers, pattern)

    @property
    def layers(self) -> list[int]:
        return list(self._points)

    def hook_point(self, layer: int) -> str:
        """The hook point of a layer. NotFoundError for one that is not cached."""
        if layer not in self._points:
            raise NotFoundError(
                f"the cache holds no layer {layer} of {self.pattern}", f"it holds {span(self.groups[0].hook_points)}"
            )
        return self._points[layer]

    @property
    def checkpoint_id(self) -> Any:
        return self.groups[0].checkpoint_id

    @property
    def checkpoint(self) -> str:
        """The input reference of the model."""
        return str(self.run.spec["checkpoint"])

    @property
    def dataset(self) -> str:
        """The input reference of the games."""
        return str(self.run.spec["dataset"])

    @property
    def sites(self) -> str:
        """The name of the sites whose activations are here: dots, even-spaces, …"""
        return str(self.run.spec["positions"])

    @property
    def first(self) -> int:
        """How many sites at each game's start are left out."""
        return int(self.run.spec["first"])

    @property
    def centred(self) -> bool:
        """Whether the residual stream is that of a model whose weights were centred (Karvonen specification 2.3)."""
        return bool(self.array.parts[0].attributes["spec"]["residual"] == "centred")

    def read(self, layer: int, rows: Any = None) -> Activations:
        """Activations of one layer with the game, token and ply of each: all rows, by game and by token in it.

        `rows`: these alone, in the order asked for, numbered as they are stored (`batches` gives such numbers). How
        they are stored follows the games' lengths, not the order of any file: pair them by `game`, never by place.
        """
        array = self.array
        at = np.lexsort((array.token, array.game)) if rows is None else array.row_numbers(rows)
        return Activations(self.values(layer, at), array.game[at], array.token[at], array.ply[at])

    def values(self, layer: int, rows: Any = None) -> np.ndarray:
        """Activations float32 [rows, d_model] of one layer, as they are stored or in the order asked for."""
        from store.array_format import as_float32

        return as_float32(self.array.read(self.hook_point(layer), rows), self.run.spec["dtype"])

    def batches(self, layer: int, batch_rows: int = 4096, seed: int = 0, epoch: int = 0) -> Any:
        """Shuffled batches of one layer, each row once in an epoch: `.rows` are numbers, `[hook point]` activations."""
        return self.array.iter_batches(self.hook_point(layer), batch_rows, seed=seed, epoch=epoch)


def points_by_layer(group: tables.ActivationCache, n_layers: int, pattern: str = RESID_POST) -> dict[int, str]:
    """layer → the cached hook point of this pattern (`models.hook_points`), in the order in which they were cached.
    NotFoundError where there is none."""
    found = {layer_of(name, n_layers): name for name in group.hook_points if pattern_of(name) == pattern}
    if not found:
        raise NotFoundError(
            f"the cache holds no {pattern}", f"it holds {', '.join(dict.fromkeys(map(pattern_of, group.hook_points)))}"
        )
    return found


def load_cache(inputs: Inputs, reference: str, field: str = "cache", pattern: str = RESID_POST) -> CachedActivations:
    """The activations behind an input reference.

    Raises NotFoundError or BadInputError when they are not all here, CorruptError for bytes that were not published,
    ChessregError when the run's groups do not hold its units once each.
    """
    from store.arrays import ActivationArray

    run = inputs.run(reference, "cache")
    rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, run)
    rows = readable(run, rows)
    groups = [
        inputs.located(field, reference, row.digest, run.id, array=row.path.removeprefix("arrays/")) for row in rows
    ]
    array = ActivationArray.open(*(group.path for group in groups))
    as_registered(rows, array.digests)
    return CachedActivations(run, rows, array, layers_of_model(inputs, rows[0]), pattern)


def as_registered(rows: Sequence[tables.ActivationCache], digests: Sequence[str]) -> None:
    """Raises CorruptError for a group whose digest is not the one that the registry knows."""
    from store.errors import CorruptError

    for row, digest in zip(rows, digests, strict=True):
        if digest != row.digest:
            raise CorruptError(f"{row.path} is not the group that the registry knows", "chessreg doctor --digests")


def layers_of_model(inputs: Inputs, group: tables.ActivationCache) -> int:
    """How many layers the model has whose activations a group holds."""
    with inputs.database.read() as session:
        return session.get_one(tables.Checkpoint, group.checkpoint_id).layers


def cached_layers(inputs: Inputs, reference: str, pattern: str = RESID_POST) -> tuple[int, ...]:
    """The layers of a cache run, from its rows alone. NotFoundError where it holds no hook point of this pattern."""
    rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, inputs.run(reference, "cache"))
    return tuple(points_by_layer(rows[0], layers_of_model(inputs, rows[0]), pattern))


def verify_cache(database: Database, store: Store, reference: str) -> dict[str, Any]:
    """Read every byte of a cache again: run_id, groups, rows, bytes (of chunk files), seconds.

    Raises NotFoundError when it is no cache or its bytes are elsewhere, CorruptError naming the chunk that changed,
    ChessregError when its groups do not hold its units once each.
    """
    from store.arrays import Group

    with database.read() as session:
        run_id: UUID = names.resolve(session, "cache", reference)
        rows = session.scalars(
            select(tables.ActivationCache)
            .where(tables.ActivationCache.run_id == run_id)
            .order_by(tables.ActivationCache.start)
        ).all()
        wrong = differs(session, tables.ActivationCache, run_id)
        session.expunge_all()
    if wrong:
        raise ChessregError(f"cache run {run_id.hex[-6:]} {wrong}", "chessreg doctor --fix")
    inputs, began = Inputs(database, store), time.monotonic()
    for row in rows:
        array = row.path.removeprefix("arrays/")  # pulled where it is not here, or said to be missing, and where it is
        group = Group(inputs.located("cache", f"run:{run_id.hex}", row.digest, run_id, array=array).path)
        group.verify()
        as_registered([row], [group.digest])
    if not rows:
        raise NotFoundError(f"run {reference} has made no cache", "chessreg cache list")
    return {
        "run_id": run_id,
        "groups": len(rows),
        "rows": sum(row.rows for row in rows),
        "bytes": sum(row.bytes for row in rows),
        "seconds": time.monotonic() - began,
    }


def joined(rows: list[Row]) -> list[Row]:
    """Of the groups of a run those that are read, in the order of their units; all where they do not fit together."""
    spans = [Units(row["start"], row["stop"], place) for place, row in enumerate(rows)]
    chosen = chain(spans, min(span.start for span in spans), max(span.stop for span in spans))
    return rows if chosen is None else [rows[span.place] for span in chosen]


class Units(NamedTuple):
    """The units of a group, and its place among others."""

    start: int
    stop: int
    place: int


# -- groups: two machines may have cut a run differently, so there may be groups to spare -----------------------------


class Span(Protocol):
    """Units [start, stop)."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


S = TypeVar("S", bound=Span)


def chain(groups: Sequence[S], start: int, stop: int) -> list[S] | None:
    """Of these groups those that hold units [start, stop) once each, in order, the longest first; None: none do."""
    follows: dict[int, S] = {}
    for group in sorted(groups, key=lambda group: (group.start, group.stop), reverse=True):
        if group.start not in follows and (group.stop == stop or group.stop in follows):
            follows[group.start] = group
    found: list[S] = []
    at = start
    while at < stop:
        if at not in follows:
            return None
        found.append(follows[at])
        at = follows[at].stop
    return found


def readable(run: tables.Run, groups: Sequence[Any]) -> list[Any]:
    """The groups that hold all units of a complete run. Raises ChessregError when no choice of them does."""
    found = chain(groups, 0, run.units)
    if found is None:
        raise ChessregError(
            f"{run.kind} run {run.id.hex[-6:]} has units that no group of arrays holds, or two", "chessreg doctor --fix"
        )
    return found


def differs(session: SqlSession, table: Any, run_id: UUID) -> str:
    """How a run's groups differ from its complete units; empty when they do not."""
    groups = session.scalars(select(table).where(table.run_id == run_id)).all()
    for start, stop in ranges(complete_units(session, run_id)):
        if chain(groups, start, stop) is None:
            inside = [group for group in groups if group.start < stop and group.stop > start]
            held = sum(min(group.stop, stop) - max(group.start, start) for group in inside)
            what = f"says that units {start} to {stop - 1} are done, and its groups"
            if held > stop - start:
                return f"{what} hold {held - (stop - start)} of them twice"
            return f"{what} hold {held} of these {stop - start}" if held < stop - start else f"{what} hold others too"
    return ""


class Caches(Entity):
    """Activation caches: list, show, verify."""

    table = tables.ActivationCache
    plural = "caches"
    place = 30
    columns = (
        Column("run_id", "run"), Column("name", "name"), Column("checkpoint", "checkpoint"), Column("rows", "rows"),
        Column("d_model", "d model"), Column("dtype", "dtype"),
        Column("hook_points", "hook points", text=lambda points: span(points)), Column("bytes", "bytes"),
    )  # fmt: skip
    overview_columns = (
        *columns[2:4], Column("bytes", "size", "bytes"), Column("layers", "layers"), *columns[4:6],
        Column("tags", "tags"),
    )  # fmt: skip
    none_yet = "no activation caches yet: chessreg run cache --checkpoint MODEL --dataset GAMES"
    hidden = ("groups",)
    list_help = "List the activation caches, one line a run."
    show_help = "Show one cache, with the groups of arrays that it is joined from."
    example = "reference-fit"
    verify_help = "Read every byte of a cache again and compare it with what was published."

    def rows(self, sql: SqlSession, reference: str | None = None) -> list[Row]:
        """One row a run: its groups joined, those to spare left out."""
        found = by_run(super().rows(sql, reference)).values()
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
            for rows in map(joined, found)
        ]

    def one(self, rows: list[Row]) -> Row:
        return {**rows[0], "layers": len(rows[0]["hook_points"])}

    def printed(self, row: Row, lines: Sequence[str] = (), remarks: Sequence[str] = ()) -> Printed:
        groups = [
            f"units {group['start']}–{group['stop'] - 1}  {group['rows']:,} rows  {group['path']}"
            for group in row["groups"]
        ]
        return super().printed(row, groups, remarks)

    def thing(self, session: Session, id: UUID) -> Thing:
        with session.database.read() as sql:
            (row,) = self.rows(sql, id.hex)
            annotations = annotations_of_run(sql, id)
        layers = [{"layer": n, "hook_point": point, "values": row["rows"] * row["d_model"]}
                  for n, point in enumerate(row["hook_points"])]  # fmt: skip
        groups = [{**group, "units": f"{group['start']:,} to {group['stop'] - 1:,}"} for group in row["groups"]]
        return Thing(
            f"cache of {row['checkpoint'] or 'an unnamed model'} · {row['rows']:,} rows × {row['d_model']} · "
            f"{counted(len(layers), 'layer')} · {row['dtype']} · {size(row['bytes'])}",
            annotations,
            [
                Part(f"layers {len(layers)}",
                     (Column("layer", "#"), Column("hook_point", "hook point"), Column("values", "values")), layers),
                Part(f"groups {len(groups)}",
                     (Column("units", "units"), Column("rows", "rows"), Column("bytes", "bytes"),
                      Column("path", "path"), Column("digest", "digest")), groups),
                facts(row),
            ],
        )  # fmt: skip

    def verify(self, session: Session, reference: str, **options: Any) -> Verified:
        counts = verify_cache(session.database, session.store, reference)
        outcome = f"every byte is as it was published: {counted(counts['groups'], 'group')}, {size(counts['bytes'])}"
        return Verified(counts, list(counts), outcome)


def span(hook_points: list[str]) -> str:
    """Hook points in a table's cell: the first and the last."""
    return hook_points[0] if len(hook_points) == 1 else f"{hook_points[0]} … {hook_points[-1]} ({len(hook_points)})"
