"""`cache`: the residual stream of every layer at the looked-at positions of many games, in one forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from chessreg.entities.cache import hook_point
from chessreg.errors import BadInputError
from chessreg.experiments.settings.games import GameSelection, select
from chessreg.registry import tables
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import CheckpointRef, How

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


class CacheSpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    layers: tuple[int, ...] = Field((), description="layers, 0-based; none given: all")
    positions: str = Field("dots", description="where to look: dots (White to move), even-spaces (Black), spaces, …")
    first: int = Field(0, ge=0, description="leave out the first positions of each game")
    last: int | None = Field(None, ge=1, description="positions per game counted from the start (Karvonen: 33 dots)")
    dtype: Literal["float16", "bfloat16", "float32"] = Field("float16", description="how numbers are stored")


class CacheHow(How):
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
    """Activations of a model at chosen positions of many games, all layers in one pass.

    Karvonen 2024, section 3: the residual stream after each block (`blocks.L.hook_resid_post`) at every `.`, where
    White is to move. One unit is one game.
    """

    name = "cache"
    example = "--checkpoint reference --dataset sample:fit --games 50 --last 33"
    families = ("metric_point",)
    spec = CacheSpec
    how = CacheHow

    def units(self, spec: CacheSpec, inputs: Inputs) -> int:
        layers_of(spec, inputs)
        return len(select(spec, inputs)[1])

    def estimate(self, spec: CacheSpec, inputs: Inputs) -> Estimate:
        games, places = select(spec, inputs)
        checkpoint, _ = inputs.checkpoint(spec.checkpoint)
        layers = layers_of(spec, inputs)
        sample = places[:: max(1, len(places) // 500)]
        rows = looked_at(spec, games.texts(sample), checkpoint.block_size)[0].size * len(places) // len(sample)
        size = rows * len(layers) * checkpoint.d_model * BYTES[spec.dtype]
        return Estimate(
            {"metric_point": len(places)}, size, (f"{rows:,} positions in {len(layers)} layers (from a sample)",)
        )

    def run(self, task: Task[CacheSpec, CacheHow]) -> None:
        from chessreg.models.devices import prepare
        from chessreg.models.language_model import LanguageModel

        spec, inputs = task.spec, task.inputs
        games, places = select(spec, inputs)
        checkpoint, folder = inputs.checkpoint(spec.checkpoint)
        model = LanguageModel.load(folder, device=prepare(task.how.device, task.how.threads))
        layers = layers_of(spec, inputs)
        for low, high in groups(task.units, task.how.group_games):
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


def looked_at(spec: CacheSpec, texts: list[str], block_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Text index, character index and ply of the positions to store, each int64 [rows]."""
    from chessreg.encodings.positions import find_many

    text, character, ply = find_many(spec.positions, texts)
    starts = np.searchsorted(text, np.arange(len(texts)))
    number = np.arange(len(text)) - starts[text]
    keep = (number >= spec.first) & (character < block_size)
    if spec.last is not None:
        keep &= number < spec.last
    return text[keep], character[keep], ply[keep]


def write_group(
    task: Task[CacheSpec, CacheHow],
    model: Any,
    layers: tuple[int, ...],
    games: Any,
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
            texts = games.texts(places[low:high])
            order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
            for start in range(0, len(order), task.how.batch_games):
                batch = order[start : start + task.how.batch_games]
                rows, character, ply = looked_at(spec, [texts[i] for i in batch], checkpoint.block_size)
                if len(rows):
                    found = activations(model, layers, [texts[i] for i in batch], rows, character, spec.dtype)
                    game = places[low:high][batch][rows].astype(np.int32)
                    writer.append(
                        dict(zip(points, found, strict=True)), game, character.astype(np.int32), ply.astype(np.int32)
                    )
                done = (low - task.units[0] + start + len(batch)) / len(task.units)
                task.progress(min(done, 1.0), f"{low + start + len(batch):,} games")
            path = writer.publish()
    record_group(task, path, points, checkpoint, low, high)


def activations(
    model: Any, layers: tuple[int, ...], texts: list[str], rows: np.ndarray, character: np.ndarray, dtype: str
) -> list[np.ndarray]:
    """One array [positions, d_model] per layer, in the stored type, from one forward pass over the texts."""
    import torch

    from chessreg.encodings.tokenizers import tokenizer

    encode = tokenizer(model.info.tokenizer).encode
    width = int(character.max()) + 1  # what follows the last looked-at character cannot change it
    tokens = np.zeros((len(texts), width), np.int64)
    for i, text in enumerate(texts):
        ids = encode(text[:width])
        tokens[i, : len(ids)] = ids
    residual = model.residuals(torch.from_numpy(tokens), layers)
    at = torch.from_numpy(rows), torch.from_numpy(character)
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
