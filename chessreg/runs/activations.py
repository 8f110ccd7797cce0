"""Activations of a cache run: the groups of arrays that hold its units, and reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

import numpy as np
from sqlalchemy import select

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.models.hook_points import RESID_POST, get_hook_layer, to_hook_pattern
from chessreg.registry import tables
from chessreg.registry.run_state import list_unit_ranges, read_complete_units
from chessreg.runs.inputs import Inputs

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from store.arrays import ActivationArray


class Activations(NamedTuple):
    """Activations of one layer and the position of each row. All arrays are [rows], in the same order."""

    residual: np.ndarray  # float32 [rows, d_model]
    game: np.ndarray  # int32: the game's row in the whole dataset, even if the cache covers a part
    token: np.ndarray  # int32: the token within the game
    ply: np.ndarray  # int32: plies played before it


def read_labels(inputs: Inputs, cache: CachedActivations, name: str) -> np.ndarray:
    """Return the classes int8 [rows, squares] of a label at each row of a cache. See `Task.labels`."""
    from chessreg.games.datasets.labels import get_label, iterate_positions

    label = get_label(name)
    if label.compute is None:
        raise BadInputError(f"{name} is a label of whole games, not of positions", "subclass chessreg.kinds.Probe")
    items, _ = inputs.items(cache.dataset)
    values = np.zeros((len(cache.array.game), label.squares), np.int8)
    for rows, positions in iterate_positions(items, cache.array.game, cache.array.ply):
        values[rows] = label.compute(positions)
    return values


class CachedActivations:
    """The activations of a cache run, as `chessreg.open().cache(…)` returns them.

    They cover one hook point per layer: the residual stream after it, unless `pattern` names another.
    """

    def __init__(
        self,
        run: tables.Run,
        groups: list[tables.ActivationCache],
        array: ActivationArray,
        n_layers: int,
        pattern: str = RESID_POST,
    ) -> None:
        self.run, self.groups, self.array = run, groups, array
        self.pattern, self._points = pattern, map_cached_hook_points(groups[0], n_layers, pattern)

    @property
    def layers(self) -> list[int]:
        """The cached layers."""
        return list(self._points)

    def hook_point(self, layer: int) -> str:
        """Return the hook point of a layer. Raises NotFoundError if it is not cached."""
        if layer not in self._points:
            raise NotFoundError(
                f"the cache holds no layer {layer} of {self.pattern}",
                f"it holds {summarize_hook_points(self.groups[0].hook_points)}",
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
        """The name of the cached token positions: dots, even-spaces, …"""
        return str(self.run.spec["sites"])

    @property
    def alignment(self) -> str:
        """The board assigned to a token that ends a move: post-ply or pre-ply (`encodings.Alignment`)."""
        return str(self.run.spec["alignment"])

    @property
    def last_sites(self) -> int | None:
        """The number of token positions kept at the end of each game, or None if all were kept."""
        last_sites: int | None = self.run.spec["last_sites"]
        return last_sites

    @property
    def skip_sites(self) -> int:
        """The number of token positions skipped at the start of each game."""
        return int(self.run.spec["skip_sites"])

    @property
    def centred(self) -> bool:
        """Whether the model's weights, and so its residual stream, were centred."""
        return bool(self.array.parts[0].attributes["spec"]["residual"] == "centred")

    def read(self, layer: int, rows: Any = None) -> Activations:
        """Return the activations of one layer with game, token and ply, sorted by game and token.

        With `rows`, return only these stored row numbers, in their order (`batches` yields such numbers). The stored
        order follows the games' lengths and differs from that of any file, so match rows by `game`, not by position.
        """
        array = self.array
        at = np.lexsort((array.token, array.game)) if rows is None else array.list_row_numbers(rows)
        return Activations(self.values(layer, at), array.game[at], array.token[at], array.ply[at])

    def values(self, layer: int, rows: Any = None) -> np.ndarray:
        """Return activations float32 [rows, d_model] of one layer, in stored order, or those of `rows` in their
        order."""
        from store.array_format import decode_float32

        return decode_float32(self.array.read(self.hook_point(layer), rows), self.run.spec["dtype"])

    def batches(self, layer: int, batch_rows: int = 4096, seed: int = 0, epoch: int = 0) -> Any:
        """Yield shuffled batches of one layer, each row once per epoch: `.rows` are row numbers, `[hook point]`
        activations.

        A batch has `batch_rows` rows, the last one fewer. `seed` and `epoch` determine the order.
        """
        return self.array.iter_batches(self.hook_point(layer), batch_rows, seed=seed, epoch=epoch)


def map_cached_hook_points(group: tables.ActivationCache, n_layers: int, pattern: str = RESID_POST) -> dict[int, str]:
    """Return layer → cached hook point of this pattern (`models.hook_points`), in cached order.

    Raises NotFoundError if no hook point matches.
    """
    points = {get_hook_layer(name, n_layers): name for name in group.hook_points if to_hook_pattern(name) == pattern}
    if not points:
        raise NotFoundError(
            f"the cache holds no {pattern}",
            f"it holds {', '.join(dict.fromkeys(map(to_hook_pattern, group.hook_points)))}",
        )
    return points


def load_cache(inputs: Inputs, reference: str, field: str = "cache", pattern: str = RESID_POST) -> CachedActivations:
    """Return the activations behind an input reference.

    `field` is the setting with the reference, for error messages and the record of inputs. `pattern` names the hook
    point of a layer. Raises NotFoundError or BadInputError if they are not completely in the store, CorruptError if
    their bytes differ from those published, and ChessregError if the groups do not cover each unit once.
    """
    from store.arrays import ActivationArray

    run = inputs.run(reference, "cache")
    rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, run)
    rows = choose_groups(run, rows)
    groups = [
        inputs.locate_bytes(field, reference, row.digest, run.id, array=row.path.removeprefix("arrays/"))
        for row in rows
    ]
    array = ActivationArray.open(*(group.path for group in groups))
    require_registered(rows, array.digests)
    return CachedActivations(run, rows, array, count_layers(inputs, rows[0]), pattern)


def load_any_cache(inputs: Inputs, reference: str) -> CachedActivations:
    """Return the activations behind an input reference, opened at the pattern of their first hook point.

    Raises the errors of `load_cache`.
    """
    groups: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, inputs.run(reference, "cache"))
    return load_cache(inputs, reference, pattern=to_hook_pattern(groups[0].hook_points[0]))


def require_registered(rows: Sequence[tables.ActivationCache], digests: Sequence[str]) -> None:
    """Raise CorruptError if the digest of a group differs from the registered one."""
    from store.errors import CorruptError

    for row, digest in zip(rows, digests, strict=True):
        if digest != row.digest:
            raise CorruptError(f"{row.path} differs from the group that is registered", "chessreg doctor --digests")


def count_layers(inputs: Inputs, group: tables.ActivationCache) -> int:
    """Return the number of layers of the model whose activations a group holds."""
    with inputs.database.read() as session:
        return session.get_one(tables.Checkpoint, group.checkpoint_id).layers


def list_cached_layers(inputs: Inputs, reference: str, pattern: str = RESID_POST) -> tuple[int, ...]:
    """Return the layers of a cache run with this hook point pattern. Raises NotFoundError if no hook point matches.

    Reads only the registry.
    """
    rows: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, inputs.run(reference, "cache"))
    return tuple(map_cached_hook_points(rows[0], count_layers(inputs, rows[0]), pattern))


# -- groups: two machines may divide a run differently, so groups may overlap ------------------------------------------


class UnitSpan(Protocol):
    """A range of units [start, stop)."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


S = TypeVar("S", bound=UnitSpan)


def chain_groups(groups: Sequence[S], start: int, stop: int) -> list[S] | None:
    """Return groups that cover units [start, stop) once each, in order, preferring long ones. None if impossible."""
    groups_by_start: dict[int, S] = {}
    for group in sorted(groups, key=lambda group: (group.start, group.stop), reverse=True):
        if group.start not in groups_by_start and (group.stop == stop or group.stop in groups_by_start):
            groups_by_start[group.start] = group
    chain: list[S] = []
    at = start
    while at < stop:
        if at not in groups_by_start:
            return None
        chain.append(groups_by_start[at])
        at = groups_by_start[at].stop
    return chain


def choose_groups(run: tables.Run, groups: Sequence[Any]) -> list[Any]:
    """Return the groups that cover all units of a complete run once each. Raises ChessregError if this is
    impossible."""
    chain = chain_groups(groups, 0, run.units)
    if chain is None:
        raise ChessregError(
            f"{run.kind} run {run.id.hex[-6:]} has units in no group of arrays, or in two", "chessreg doctor --fix"
        )
    return chain


def describe_unit_gaps(session: SqlSession, table: Any, run_id: UUID) -> str:
    """Return how a run's groups differ from its complete units. Empty if they agree."""
    groups = session.scalars(select(table).where(table.run_id == run_id)).all()
    for start, stop in list_unit_ranges(read_complete_units(session, run_id)):
        if chain_groups(groups, start, stop) is None:
            groups_inside = [group for group in groups if group.start < stop and group.stop > start]
            held_units = sum(min(group.stop, stop) - max(group.start, start) for group in groups_inside)
            statement = f"records units {start} to {stop - 1} as done, but its groups"
            if held_units > stop - start:
                return f"{statement} hold {held_units - (stop - start)} of them twice"
            return (
                f"{statement} hold {held_units} of these {stop - start}"
                if held_units < stop - start
                else f"{statement} also hold other units"
            )
    return ""


def summarize_hook_points(hook_points: list[str]) -> str:
    """Return the first and the last hook point, as a table cell."""
    return hook_points[0] if len(hook_points) == 1 else f"{hook_points[0]} … {hook_points[-1]} ({len(hook_points)})"
