"""`cache`: the residual stream of every layer at chosen sites of many games, in one forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from chessreg.encodings import Alignment
from chessreg.entities.cache import hook_point
from chessreg.errors import BadInputError
from chessreg.experiments.settings.games import GameSelection, select_items
from chessreg.experiments.settings.sites import EncodedGames
from chessreg.registry import tables
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import Added, CheckpointRef, ExecutionOptions, Stored

if TYPE_CHECKING:
    from chessreg.games.dataset import Games
    from chessreg.games.positions import Positions
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


class CacheSpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    layers: tuple[int, ...] = Field((), description="layers, 0-based; none given: all")
    sites: Annotated[str, Stored("positions")] = Field(
        "dots",
        description="tokens to look at: turns, white-turns (in PGN characters dots), black-turns (even-spaces), last, "
        "all, or others of the encoding; dots in another encoding: white-turns",
    )
    alignment: Annotated[Alignment, Added()] = Field(
        "post-ply",
        description="the board of a token that ends a move: after it, or before it, as Davis's code",
    )
    first: int = Field(0, ge=0, description="leave out the first sites of each game")
    last: int | None = Field(None, ge=1, description="sites per game counted from the start (Karvonen: 33 dots)")
    dtype: Literal["float16", "bfloat16", "float32"] = Field("float16", description="how numbers are stored")


class CacheHow(ExecutionOptions):
    batch_games: int = Field(32, ge=1, description="games in one forward pass")
    group_games: int = Field(2048, ge=1, description="games in one stored group, the most a crash can cost")


def layers_of(spec: CacheSpec, inputs: Inputs) -> tuple[int, ...]:
    """The layers to cache; raises BadInputError for one that the model does not have."""
    checkpoint, _ = inputs.checkpoint(spec.checkpoint)
    layers = spec.layers or tuple(range(checkpoint.layers))
    if max(layers) >= checkpoint.layers or min(layers) < 0:
        raise BadInputError(f"layer {max(layers)} is not one of the model's 0 to {checkpoint.layers - 1}")
    return layers


class Cache(Kind):
    """Activations of a model at chosen sites of many games, all layers in one pass.

    The residual stream after each block (`blocks.L.hook_resid_post`); Karvonen 2024, section 3, takes it where White is
    to move. One unit is one game, or one position of a dataset of positions.
    """

    name = "cache"
    example = "--checkpoint reference --dataset sample:fit --games 50 --last 33"
    tables = ("metric_point",)
    spec = CacheSpec
    options = CacheHow

    def units(self, spec: CacheSpec, inputs: Inputs) -> int:
        layers_of(spec, inputs)
        return len(select_items(spec, inputs)[1])

    def check(self, spec: CacheSpec, inputs: Inputs) -> None:
        """Refuses sites, or a dataset of positions, that the model's encoding does not have."""
        items, places = select_items(spec, inputs)
        checkpoint, _ = inputs.checkpoint(spec.checkpoint)
        selected_sites(spec, checkpoint, items, places[:1])

    def estimate(self, spec: CacheSpec, inputs: Inputs) -> Estimate:
        games, places = select_items(spec, inputs)
        checkpoint, _ = inputs.checkpoint(spec.checkpoint)
        layers = layers_of(spec, inputs)
        sample = places[:: max(1, len(places) // 500)]
        rows = len(selected_sites(spec, checkpoint, games, sample).sites) * len(places) // len(sample)
        size = rows * len(layers) * checkpoint.d_model * BYTES[spec.dtype]
        return Estimate(
            {"metric_point": len(places)}, size, (f"{rows:,} sites in {len(layers)} layers (from a sample)",)
        )

    def run(self, task: Task[CacheSpec, CacheHow]) -> None:
        from chessreg.models.devices import prepare
        from chessreg.models.language_model import LanguageModel

        spec, inputs = task.spec, task.inputs
        games, places = select_items(spec, inputs)
        checkpoint, folder = inputs.checkpoint(spec.checkpoint)
        model = LanguageModel.load(folder, device=prepare(task.options.device, task.options.threads))
        layers = layers_of(spec, inputs)
        for low, high in groups(task.units, task.options.group_games):
            write_group(task, model, layers, games, places, checkpoint, low, high)


def groups(units: list[int], size: int) -> list[tuple[int, int]]:
    """Consecutive ranges [low, high) of the units, each at most `size` long."""
    found: list[tuple[int, int]] = []
    for unit in units:
        if found and unit == found[-1][1] and unit - found[-1][0] < size:
            found[-1] = (found[-1][0], unit + 1)
        else:
            found.append((unit, unit + 1))
    return found


def selected_sites(
    spec: CacheSpec, checkpoint: tables.Checkpoint, games: Games | Positions, places: np.ndarray
) -> EncodedGames:
    """The items at these rows of the dataset, with the sites whose activations are to be stored."""
    encoded = EncodedGames.of(checkpoint, games, places, spec.sites, spec.alignment)
    number = encoded.number
    return encoded.take((number >= spec.first) & (number < (len(number) if spec.last is None else spec.last)))


def write_group(
    task: Task[CacheSpec, CacheHow],
    model: LanguageModel,
    layers: tuple[int, ...],
    games: Games | Positions,
    places: np.ndarray,
    checkpoint: tables.Checkpoint,
    low: int,
    high: int,
) -> None:
    """The activations of units low to high as one published group; a crash before its end leaves nothing of it."""
    from store.array_writer import ActivationWriter
    from store.errors import AlreadyPublishedError

    spec = task.spec
    points = [hook_point(layer) for layer in layers]
    identity = {"spec_hash": task.resolved.spec_hash, "residual": checkpoint.residual}
    try:
        writer = ActivationWriter(task.store, identity, points, checkpoint.d_model, spec.dtype, units=(low, high))
    except AlreadyPublishedError as published:
        path = published.path  # an earlier attempt published it and died before it could say so
    else:
        with writer:
            encoded = selected_sites(spec, checkpoint, games, places[low:high])
            order, begun = np.argsort(np.diff(encoded.tokens.offsets), kind="stable"), 0
            for items in encoded.batches(order, task.options.batch_games):
                row, sites = encoded.sites_of(items)
                if len(sites):
                    found = activations(model, layers, encoded, items, row, sites, spec.dtype)
                    game = places[low:high][encoded.game[sites]]
                    index = [game, encoded.sites.token[sites], encoded.sites.ply[sites]]
                    writer.append(dict(zip(points, found, strict=True)), *(column.astype(np.int32) for column in index))
                begun += len(items)
                games_done = low + (high - low) * begun // len(order)
                task.progress(min((games_done - task.units[0]) / len(task.units), 1.0), f"{games_done:,} games")
            path = writer.publish()
    record_group(task, path, points, checkpoint, low, high)


def activations(
    model: LanguageModel,
    layers: tuple[int, ...],
    encoded: EncodedGames,
    items: np.ndarray,
    row: np.ndarray,
    sites: np.ndarray,
    dtype: str,
) -> list[np.ndarray]:
    """One array [sites, d_model] per layer, in the stored type, from one forward pass over the items."""
    import torch

    tokens = encoded.padded(items, int(encoded.widths[items].max()))
    residual = model.residuals(torch.from_numpy(tokens), layers)
    at = torch.from_numpy(row), torch.from_numpy(encoded.sites.token[sites])
    kind = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
    picked = [layer[at[0].to(layer.device), at[1].to(layer.device)].to(kind).cpu() for layer in residual]
    return [(p.view(torch.uint16) if kind is torch.bfloat16 else p).numpy() for p in picked]


def record_group(
    task: Task[CacheSpec, CacheHow], path: Any, points: list[str], checkpoint: tables.Checkpoint, low: int, high: int
) -> None:
    from store.arrays import Group

    group = Group(path)
    task.record(
        "activation_cache",
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
        bytes=group.rows * checkpoint.d_model * len(points) * BYTES[task.spec.dtype],
    )
    task.emit("metric_point", low, name="rows", step=0, value=float(group.rows))
    for unit in range(low, high):
        task.done(unit)
