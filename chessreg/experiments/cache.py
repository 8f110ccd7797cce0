"""`cache`: the residual stream of every layer at chosen token positions of many games, from one forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self

import numpy as np
from pydantic import Field, model_validator
from sqlalchemy import select

from chessreg.encodings import Alignment, Encoding
from chessreg.errors import BadInputError, ChessregError
from chessreg.experiments.settings.games import GameBatches, GameSelection, select_items
from chessreg.experiments.settings.sites import EncodedGames
from chessreg.games.datasets.dataset import convert_column_to_numpy
from chessreg.models.hook_points import PATTERNS, RESID_POST, list_hook_points
from chessreg.registry import tables
from chessreg.runs.activations import describe_unit_gaps
from chessreg.runs.cost import count_reading_operations
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import CheckpointRef, Distinct, Layers

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games
    from chessreg.games.datasets.positions import Positions
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

BYTES_PER_VALUE = {"float16": 2, "bfloat16": 2, "float32": 4}


class CacheSpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    layers: Layers = Field((), description="layers, 0-based. Left out: all")
    hook_points: Annotated[tuple[str, ...], Distinct()] = Field(
        (),
        description=f"hook points to read: {', '.join(PATTERNS)} (* for each layer). Left out: {RESID_POST}",
    )
    sites: str = Field(
        "dots",
        description="tokens to read: turns, white-turns (in PGN characters dots), black-turns (even-spaces), "
        "last, all, or other sites of the encoding; dots in another encoding: white-turns",
    )
    alignment: Alignment = Field(
        "post-ply",
        description="board of a token that ends a move: the board after the move, or before it as in Davis's code",
    )
    skip_sites: int = Field(0, ge=0, description="leave out this many token positions at the start of each game")
    max_sites: int | None = Field(
        None, ge=1, description="keep only the first N token positions of each game (Karvonen: 33 dots). Left out: all"
    )
    last_sites: int | None = Field(
        None,
        ge=1,
        description="keep only the last N token positions of each game that fits the context (Davis: 5). Left out: all",
    )
    dtype: Literal["float16", "bfloat16", "float32"] = Field("float16", description="dtype of the stored activations")

    @model_validator(mode="after")
    def _check_site_limits(self) -> Self:
        if self.last_sites is not None and self.max_sites is not None:
            raise BadInputError(
                "--max-sites counts token positions from a game's start, --last-sites from its end", "give one of them"
            )
        return self


class CacheOptions(GameBatches):
    group_games: int = Field(256, ge=1, description="games per stored group; an interruption loses at most one group")


class HookPointSettings(Protocol):
    """The settings that name a model and its hook points."""

    @property
    def checkpoint(self) -> str: ...
    @property
    def layers(self) -> tuple[int, ...]: ...
    @property
    def hook_points(self) -> tuple[str, ...]: ...


def resolve_hook_points(spec: HookPointSettings, inputs: Inputs) -> list[str]:
    """Return the hook points to read. Raises BadInputError for an unknown layer, and NotFoundError for an unknown hook
    point."""
    checkpoint, _ = inputs.checkpoint(spec.checkpoint)
    layers = spec.layers or tuple(range(checkpoint.layers))
    if max(layers) >= checkpoint.layers or min(layers) < 0:
        raise BadInputError(
            f"--layers: the model has no layer {max(layers)}; its layers are 0 to {checkpoint.layers - 1}"
        )
    if not spec.hook_points:
        return list_hook_points([RESID_POST], layers, checkpoint.layers)
    from chessreg.models.adapters import get_adapter

    if spec.layers and not any("*" in name for name in spec.hook_points):
        raise BadInputError("--layers has no effect: no hook point contains *", "leave out --layers")
    return list_hook_points(spec.hook_points, layers, checkpoint.layers, get_adapter(checkpoint.architecture).points)


class Cache(Kind):
    """Activations of a model at chosen token positions of many games, all layers in one pass.

    The residual stream after each block (`blocks.L.hook_resid_post`) unless --hook-points names others. Karvonen 2024,
    section 3, reads it where White is to move. One unit is one game, or one position of a dataset of positions.
    """

    name = "cache"
    main_settings = (
        "games",
        "layers",
        "hook_points",
        "sites",
        "max_sites",
        "last_sites",
        "skip_sites",
        "alignment",
        "dtype",
        "min_plies",
    )
    example = "--checkpoint reference --dataset sample:fit --games 50 --max-sites 33"
    next_command = "run probe --cache"
    tables = ("metric_point",)
    spec = CacheSpec
    options = CacheOptions

    def units(self, spec: CacheSpec, inputs: Inputs) -> int:
        resolve_hook_points(spec, inputs)
        return len(select_items(spec, inputs)[1])

    def check(self, spec: CacheSpec, inputs: Inputs) -> None:
        """Raise an error for token positions or a dataset that the model's encoding does not support, and for an empty
        selection."""
        items, places = select_items(spec, inputs)
        checkpoint, _ = inputs.checkpoint(spec.checkpoint)
        encoding = inputs.encoding(spec.checkpoint)
        sample_rows = find_longest_items(items, places) if spec.last_sites is None else sample_places(places)
        encoded_games = select_cache_sites(spec, encoding, checkpoint.block_size, items, sample_rows)
        if spec.last_sites is not None and not encoded_games.fits_context.any():
            raise BadInputError(
                f"--last-sites {spec.last_sites}: no game fits the model's context of {checkpoint.block_size} tokens",
                "leave out --last-sites, or use shorter games",
            )
        if not len(encoded_games.sites):
            raise BadInputError(
                f"--skip-sites {spec.skip_sites} leaves no token position of any game",
                f"lower --skip-sites, or choose other tokens than --sites {spec.sites}",
            )

    def estimate(self, spec: CacheSpec, inputs: Inputs) -> RunEstimate:
        games, places = select_items(spec, inputs)
        checkpoint, _ = inputs.checkpoint(spec.checkpoint)
        points = resolve_hook_points(spec, inputs)
        sample = sample_places(places)
        encoded_games = select_cache_sites(spec, inputs.encoding(spec.checkpoint), checkpoint.block_size, games, sample)
        rows = len(encoded_games.sites) * len(places) // len(sample)
        size = rows * len(points) * checkpoint.d_model * BYTES_PER_VALUE[spec.dtype]
        texts = len(places) if inputs.encoding(spec.checkpoint).content == "history" else rows
        return RunEstimate(
            {"metric_point": len(places)},
            size,
            (f"{rows:,} token positions at {len(points)} hook points (from a sample)",),
            count_reading_operations(spec.checkpoint, inputs, texts),
        )

    def run(self, task: Task[CacheSpec, CacheOptions]) -> None:
        from chessreg.models.devices import prepare_device
        from chessreg.models.language_model import LanguageModel

        spec, inputs = task.spec, task.inputs
        games, places = select_items(spec, inputs)
        checkpoint, folder = inputs.checkpoint(spec.checkpoint)
        model = LanguageModel.load(folder, device=prepare_device(task.options.device, task.options.threads))
        points = resolve_hook_points(spec, inputs)
        held_units = resume_groups(task, points, checkpoint)
        for low, high in group_units([unit for unit in task.units if unit not in held_units], task.options.group_games):
            write_activation_group(task, model, points, games, places, checkpoint, low, high)


def resume_groups(task: Task[CacheSpec, CacheOptions], points: list[str], checkpoint: tables.Checkpoint) -> set[int]:
    """Finish the units that interrupted attempts stored without marking them as done, and return all units held by
    groups.

    First the units of registered groups, then the units of groups that are only published. A new group begins where the
    last one ends.
    """
    from store.arrays import ArrayGroup
    from store.arrays import list_groups as published

    missing_units, held_units = set(task.units), set[int]()
    for group in find_disjoint_groups(task):
        group_units = missing_units.intersection(range(group.start, group.stop))
        if group_units:
            task.done(*sorted(group_units))
            held_units |= group_units
    for path in published(task.store, build_group_identity(task, checkpoint)):
        low, high = map(int, path.name.rsplit("-", 2)[1:])
        if (missing_units - held_units).issuperset(range(low, high)):
            ArrayGroup(path).verify()
            record_activation_group(task, path, points, checkpoint, low, high)
            held_units.update(range(low, high))
    return held_units


def find_disjoint_groups(task: Task[CacheSpec, CacheOptions]) -> list[tables.ActivationCache]:
    """Return the registered groups of this run that overlap no other group.

    Raises ChessregError if overlapping groups hold some units, because further groups would overlap them as well.
    """
    group = tables.ActivationCache
    with task.inputs.database.read() as session:
        groups = session.scalars(select(group).where(group.run_id == task.run_id).order_by(group.start)).all()
        wrong = describe_unit_gaps(session, group, task.run_id)
        session.expunge_all()
    separate_groups = [
        one for one in groups if not any(o.start < one.stop and one.start < o.stop for o in groups if o is not one)
    ]
    if wrong and len(separate_groups) < len(groups):
        raise ChessregError(f"cache run {task.run_id.hex[-6:]} {wrong}", "chessreg doctor --fix")
    return separate_groups


def build_group_identity(task: Task[CacheSpec, CacheOptions], checkpoint: tables.Checkpoint) -> dict[str, str]:
    """Return the fields that identify the groups of this run in the store."""
    return {"spec_hash": task.resolved.spec_hash, "residual": checkpoint.residual}


def group_units(units: list[int], size: int) -> list[tuple[int, int]]:
    """Return consecutive ranges [low, high) of the units, each with at most `size` units."""
    ranges: list[tuple[int, int]] = []
    for unit in units:
        if ranges and unit == ranges[-1][1] and unit - ranges[-1][0] < size:
            ranges[-1] = (ranges[-1][0], unit + 1)
        else:
            ranges.append((unit, unit + 1))
    return ranges


SAMPLE_GAMES = 50  # games that are checked for token positions


def sample_places(places: np.ndarray) -> np.ndarray:
    """Return every n-th of these rows: 500 to 1,000 of them, or all."""
    return places[:: max(1, len(places) // 500)]


def find_longest_items(items: Games | Positions, places: np.ndarray) -> np.ndarray:
    """Return the rows of the longest games among these; of positions, the rows with most plies before them."""
    column = "ply" if items.content == "positions" else "plies"
    plies = convert_column_to_numpy(items.take(places, [column])[column])
    return places[np.sort(np.argsort(-plies.astype(np.int64), kind="stable")[:SAMPLE_GAMES])]


def select_cache_sites(
    spec: CacheSpec, encoding: Encoding, block_size: int, games: Games | Positions, places: np.ndarray
) -> EncodedGames:
    """Return the items at rows `places` int [n] of the dataset, encoded for a context of `block_size` tokens, with the
    token positions whose activations are stored."""
    encoded_games = EncodedGames.from_items(encoding, block_size, games, places, spec.sites, spec.alignment)
    return encoded_games.select_numbered(spec.skip_sites, spec.max_sites, spec.last_sites)


def write_activation_group(
    task: Task[CacheSpec, CacheOptions],
    model: LanguageModel,
    points: list[str],
    games: Games | Positions,
    places: np.ndarray,
    checkpoint: tables.Checkpoint,
    low: int,
    high: int,
) -> None:
    """Publish the activations of the units `low` to `high` (exclusive) as one group. An interruption leaves no part of
    it.

    `points` are hook points, and `places` int [units of the run] the rows of the run's games. If another attempt has
    published the group, its group is registered.
    """
    from store.array_writer import ActivationWriter
    from store.errors import AlreadyPublishedError

    spec = task.spec
    identity = build_group_identity(task, checkpoint)
    try:
        writer = ActivationWriter(task.store, identity, points, checkpoint.d_model, spec.dtype, units=(low, high))
    except AlreadyPublishedError as error:
        path = error.path  # another attempt at the same units was faster
    else:
        with writer:
            encoded_games = select_cache_sites(spec, model.encoding, model.block_size, games, places[low:high])
            order, start = np.argsort(np.diff(encoded_games.tokens.offsets), kind="stable"), 0
            for items in encoded_games.iterate_batches(order, task.options.batch_games):
                row, sites = encoded_games.find_item_sites(items)
                if len(sites):
                    residuals = compute_activations(model, points, encoded_games, items, row, sites, spec.dtype)
                    game = places[low:high][encoded_games.game[sites]]
                    index = [game, encoded_games.sites.token[sites], encoded_games.sites.ply[sites]]
                    writer.append(
                        dict(zip(points, residuals, strict=True)), *(column.astype(np.int32) for column in index)
                    )
                start += len(items)
                games_done = low + (high - low) * start // len(order)
                task.progress(min((games_done - task.units[0]) / len(task.units), 1.0), f"{games_done:,} games")
            path = writer.publish()
    record_activation_group(task, path, points, checkpoint, low, high)


def compute_activations(
    model: LanguageModel,
    points: list[str],
    encoded_games: EncodedGames,
    items: np.ndarray,
    row: np.ndarray,
    sites: np.ndarray,
    dtype: str,
) -> list[np.ndarray]:
    """Return one array [sites, d_model] of type `dtype` per hook point, in the order of `points`.

    `items` are numbers of encoded items, one row of the batch each. Site i is token
    `encoded_games.sites.token[sites[i]]` of batch row `row[i]`.
    """
    import torch

    from chessreg.models.language_model import compute_stored_activations

    tokens = encoded_games.pad_tokens(items, int(encoded_games.widths[items].max()))
    at = torch.from_numpy(row), torch.from_numpy(encoded_games.sites.token[sites])
    return compute_stored_activations(model, torch.from_numpy(tokens), points, *at, dtype)


def record_activation_group(
    task: Task[CacheSpec, CacheOptions],
    path: Any,
    points: list[str],
    checkpoint: tables.Checkpoint,
    low: int,
    high: int,
) -> None:
    """Register the group at `path` and mark its units `low` to `high` (exclusive) as done, in one transaction."""
    from store.arrays import ArrayGroup
    from store.files import sync_path

    group = ArrayGroup(path)
    sync_path(path.parent)  # an interrupted attempt may have published it without syncing the folder
    task.record(
        "activation_cache",
        of_unit=low,
        run_id=task.run_id,
        start=low,
        stop=high,
        checkpoint_id=checkpoint.id,
        path=str(path.relative_to(task.store.root)),
        digest=group.digest,
        hook_points=points,
        rows=group.rows,
        d_model=checkpoint.d_model,
        dtype=task.spec.dtype,
        bytes=group.rows * checkpoint.d_model * len(points) * BYTES_PER_VALUE[task.spec.dtype],
    )
    task.emit("metric_point", low, name="rows", step=0, value=float(group.rows))
    task.done(*range(low, high))
