"""How each source makes its directions: layer by layer, from what the spec names."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.settings.sites import EncodedGames
from chessreg.experiments.settings.skill import permuted
from chessreg.experiments.vector import sums
from chessreg.experiments.vector.contrast import ClassedGames, contrast, gather
from chessreg.experiments.vector.spec import CONTRASTS, VectorOptions, VectorSpec, layers_of
from chessreg.models.hook_points import RESID_POST, pattern_of
from chessreg.named import Registry
from chessreg.registry import tables
from chessreg.runs.fitted import (
    Direction,
    load_direction,
    load_probe,
    probe_rows,
    read_layer,
    read_vector,
    vector_rows,
)
from chessreg.steering.controls import random_like
from chessreg.steering.directions import board_direction, class_difference, with_norm
from store.errors import NotInStoreError

if TYPE_CHECKING:
    from chessreg.models.edits import ResidualEdit
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task


@dataclass(frozen=True)
class Origin:
    """What all directions of a run have in common, for their rows."""

    checkpoint_id: UUID | None  # None: of a model that is not in this registry
    source: str  # as contrastive:white_elo, random:contrastive:white_elo, probe:skill
    sites: str
    detail: dict[str, Any]
    games: ClassedGames | None = None  # of contrasts
    hook_point: str = RESID_POST  # with * for the layer


Made = tuple[Origin, Iterator[tuple[int, Direction]]]
"""The origin, and (layer, direction) of each wanted layer, in order."""

Maker = Callable[["Task[VectorSpec, VectorOptions]", list[int]], Made]
MAKERS: Registry[Maker] = Registry("source of vectors")


def contrast_origin(spec: VectorSpec, source: str, games: ClassedGames) -> Origin:
    summed = int(games.positions.max()) if spec.reduction == "summed" else 1
    detail = {
        "positions": spec.reduction,
        "positions_summed": summed,
        "first_ply": spec.first_ply,
        "last_ply": spec.last_ply,
        "rating": spec.skill.rating,
        "residual": games.checkpoint.residual,
        **games.describe(),
    }
    return Origin(games.checkpoint.id, f"{source}:{spec.skill.rating}", games.sites, detail, games, spec.hook_point)


@MAKERS.named("contrastive")
def contrastive(task: Task[VectorSpec, VectorOptions], layers: list[int]) -> Made:
    games = gather(task.spec, task.inputs)
    origin = contrast_origin(task.spec, "contrastive", games)
    return origin, contrasts(task, task.spec, games, games.classes, layers)


def contrasts(
    task: Task[VectorSpec, VectorOptions], spec: VectorSpec, games: ClassedGames, classes: np.ndarray, layers: list[int]
) -> Iterator[tuple[int, Direction]]:
    """The contrast of every layer: from the cache a layer at a time, else from one forward pass for all.

    A control finds the sums of that pass where the real run kept them.
    """
    if games.cache is not None:
        rows = sums.cached_rows(games.cache, spec.first_ply, spec.last_ply)
        for layer in layers:
            class_sums = sums.from_cache(games.cache, layer, games.places, rows)
            yield layer, contrast(class_sums, games.positions, classes, spec.reduction)
        return
    kept = {layer: kept_sums(task, layer, games.places) for layer in layers} if task.spec.of else {}
    if kept and all(class_sums is not None for class_sums in kept.values()):
        for layer, known in kept.items():
            assert known is not None
            yield layer, contrast(known, games.positions, classes, spec.reduction)
        return
    model, encoded = run_on(task, spec, games)
    folder = task.folder / "sums"
    every = sums.from_model_resumable(
        model, encoded, layers, task.options.batch_games, folder,
        on_progress=lambda done: task.progress(0.99 * done / encoded.games, f"{done:,} of {encoded.games:,} games"),
    )  # fmt: skip
    for number, layer in enumerate(layers):
        made = contrast(every[number], games.positions, classes, spec.reduction)
        yield layer, replace(made, sums=None if task.spec.of else every[number])
    shutil.rmtree(folder, ignore_errors=True)


def kept_sums(task: Task[VectorSpec, VectorOptions], layer: int, places: np.ndarray) -> np.ndarray | None:
    """The sums float32 [games, d_model] that the run behind a control kept, when they are here and of these games."""
    try:
        artifact = task.inputs.artifact("of", f"{task.spec.of}/sums-{layer}")
    except (NotFoundError, NotInStoreError):
        return None
    kept = read_layer(artifact.path / "sums.safetensors", sums=2, places=1)
    return kept["sums"] if np.array_equal(kept["places"], places) else None


def run_on(
    task: Task[VectorSpec, VectorOptions], spec: VectorSpec, games: ClassedGames
) -> tuple[LanguageModel, EncodedGames]:
    """The model, and the games with their sites."""
    from chessreg.models.devices import prepare
    from chessreg.models.language_model import LanguageModel

    reference = games.cache.checkpoint if games.cache else spec.checkpoint
    assert reference
    _, folder = task.inputs.checkpoint(reference)
    model = LanguageModel.load(folder, device=prepare(task.options.device, task.options.threads))
    encoded = sums.encoded_games(
        model.encoding, model.block_size, games.games, games.places, games.sites, spec.first_ply, spec.last_ply
    )
    if games.cache is not None:  # the cache may hold fewer sites than the games have
        encoded = encoded.take(cached_too(encoded, games, spec))
    assert np.array_equal(encoded.counts, games.positions)
    return model, encoded


def cached_too(encoded: EncodedGames, games: ClassedGames, spec: VectorSpec) -> np.ndarray:
    """bool [sites]: those of the games' sites that are cached."""
    assert games.cache is not None
    array = games.cache.array
    rows = sums.cached_rows(games.cache, spec.first_ply, spec.last_ply)
    cached = set(zip(array.game[rows].tolist(), array.ply[rows].tolist(), array.token[rows].tolist(), strict=True))
    sites = encoded.sites
    wanted = zip(games.places[encoded.game].tolist(), sites.ply.tolist(), sites.token.tolist(), strict=True)
    return np.fromiter((site in cached for site in wanted), bool, len(sites))


@MAKERS.named("cascade")
def cascade(task: Task[VectorSpec, VectorOptions], layers: list[int]) -> Made:
    games = gather(task.spec, task.inputs)
    origin = contrast_origin(task.spec, "cascade", games)
    origin.detail["cascade_scale"] = task.spec.cascade_scale
    return origin, cascaded(task, task.spec, games, games.classes, layers)


def cascaded(
    task: Task[VectorSpec, VectorOptions], spec: VectorSpec, games: ClassedGames, classes: np.ndarray, layers: list[int]
) -> Iterator[tuple[int, Direction]]:
    """Each layer's contrast while the vectors of the run's earlier layers are added at every token.

    One pass for each layer: what is added changes all later activations. Layers that are not asked for, but come
    before one that is, are computed too, or read when this run has them.
    """
    import torch

    from chessreg.models.edits import ResidualEdit

    assert spec.cascade_scale is not None
    model, encoded = run_on(task, spec, games)
    edits: list[ResidualEdit] = []
    needed = [layer for layer in sorted(layers_of(spec, task.inputs)) if layer <= max(layers)]
    for number, layer in enumerate(needed):
        vector = stored(task, layer) if classes is games.classes and layer not in layers else None
        if vector is None:

            def report(done: int, number: int = number, layer: int = layer) -> None:
                task.progress((number + done / encoded.games) / len(needed) * 0.99, f"layer {layer}")

            layer_sums = sums.from_model(model, encoded, [layer], task.options.batch_games, edits, report)[0]
            made = contrast(layer_sums, games.positions, classes, spec.reduction)
            if layer in layers:
                yield layer, made
            vector = made.vector
        edits.append(ResidualEdit(layer, torch.from_numpy(vector).to(model.device), spec.cascade_scale))


def stored(task: Task[VectorSpec, VectorOptions], layer: int) -> np.ndarray | None:
    """The vector of a layer that an earlier attempt at this run made, if one did."""
    from sqlalchemy import select

    with task.inputs.database.read() as session:
        kept = session.scalars(
            select(tables.Vector).where(tables.Vector.run_id == task.run_id, tables.Vector.layer == layer)
        ).first()
        if kept is None:
            return None
        session.expunge(kept)
    return read_vector(task.inputs, f"run:{task.resolved.spec_hash}", kept).vector


@MAKERS.named("shuffled")
def shuffled(task: Task[VectorSpec, VectorOptions], layers: list[int]) -> Made:
    """The directions of another run again from labels dealt anew within each stratum, with that run's norms: its
    contrast, or the class differences of probes that were fitted to such labels."""
    spec = task.spec
    real = labelled(spec, task.inputs)
    if real.source == "probe":
        return of_shuffled_probe(task, real, layers)
    games = gather(real, task.inputs)
    dealt = permuted(games.classes, games.stratum, spec.seed)
    origin = contrast_origin(real, "shuffled", games)
    again = (cascaded if real.source == "cascade" else contrasts)(task, real, games, dealt, layers)

    return origin, ((layer, with_norm_of_original(task, layer, made)) for layer, made in again)


def with_norm_of_original(task: Task[VectorSpec, VectorOptions], layer: int, made: Direction) -> Direction:
    """Return a control's direction with the norm of the vector that it stands for."""
    norm = load_direction(task.inputs, task.spec.of or "", layer).norm
    detail = {"norm_before_matching": made.norm, "of": task.spec.of}
    return Direction(with_norm(made.vector, norm), detail=detail)


def of_shuffled_probe(task: Task[VectorSpec, VectorOptions], real: VectorSpec, layers: list[int]) -> Made:
    spec = task.spec
    assert spec.of
    assert spec.probe
    first = vector_rows(task.inputs, spec.of)[layers[0]]
    kept = ("positions", "positions_summed", "residual", "side", "board")
    detail = {name: first.detail[name] for name in kept if name in first.detail}
    detail |= {"probe": spec.probe, "seed": task.inputs.run(spec.probe, "probe").spec["shuffled_label_control"]}

    taken = ((layer, read_as(real, task.inputs, spec.probe, layer)) for layer in layers)
    matched = ((layer, with_norm_of_original(task, layer, made)) for layer, made in taken)
    return origin_like(first, f"shuffled:{first.source}", detail), matched


def labelled(spec: VectorSpec, inputs: Inputs) -> VectorSpec:
    """The spec whose labels a shuffled control deals anew.

    BadInputError for vectors that were made without labels, and for a --probe that is missing, in vain, or fitted
    otherwise than that of the vectors but for the labels.
    """
    assert spec.of
    run = inputs.run(spec.of, "vector")
    source = "a file" if run.kind != "vector" else str(run.spec["source"])
    if source not in (*CONTRASTS, "probe"):
        raise BadInputError(
            f"vectors from {source} have no labels here that could be shuffled",
            "give a contrastive, cascade or probe run, or --source random",
        )
    real = VectorSpec(**run.spec)
    if source == "probe":
        check_shuffled_probe(spec, real, inputs)
    elif spec.probe is not None:
        raise BadInputError(f"--probe is set, but labels of {source} vectors are shuffled without it")
    return real


def check_shuffled_probe(spec: VectorSpec, real: VectorSpec, inputs: Inputs) -> None:
    """Raise BadInputError unless --probe was fitted as the probe behind the vectors, but for its labels."""
    from chessreg.experiments.probe.spec import ProbeSpec

    assert real.probe
    theirs = inputs.run(real.probe, "probe")
    if theirs.kind != "probe":
        raise BadInputError("these vectors are of an imported probe, whose labels are not here", "--source random")
    if spec.probe is None:
        raise BadInputError(
            "vectors from a probe need another probe, of shuffled labels",
            f"run the probe {theirs.id.hex[-6:]} again with --shuffled-label-control 1, and give it as --probe",
        )
    mine = inputs.run(spec.probe, "probe")
    shuffled = None if mine.kind != "probe" else ProbeSpec(**mine.spec)
    if shuffled is None or shuffled.shuffled_label_control is None:
        raise BadInputError("--probe was not fitted to shuffled labels", "run it with --shuffled-label-control 1")
    free = {"shuffled_label_control", "seed", "replicate", "layers", "test_cache", "allow_overlap"}
    wanted = ProbeSpec(**theirs.spec).model_dump(exclude=free)
    for name, value in shuffled.model_dump(exclude=free).items():
        if value != wanted[name]:
            raise BadInputError(
                f"--probe differs from that of the vectors in more than its labels: {name} is {value}, theirs "
                f"{wanted[name]}"
            )


def origin_like(row: tables.Probe | tables.Vector, source: str, detail: dict[str, Any]) -> Origin:
    """The origin of directions made from another run's rows: of the same model, sites and hook point."""
    return Origin(row.checkpoint_id, source[:64], row.positions, detail, hook_point=pattern_of(row.hook_point))


@MAKERS.named("random")
def random(task: Task[VectorSpec, VectorOptions], layers: list[int]) -> Made:
    """Directions drawn from the sphere, with the norms of another run's."""
    spec = task.spec
    assert spec.of
    rows = vector_rows(task.inputs, spec.of)
    kept = ("positions", "positions_summed", "residual", "model")
    first = rows[layers[0]]
    detail = {name: first.detail[name] for name in kept if name in first.detail}

    def drawn() -> Iterator[tuple[int, Direction]]:
        for layer in layers:
            real = load_direction(task.inputs, spec.of or "", layer).vector
            yield layer, Direction(random_like(real, layer, spec.seed), detail={"of": spec.of})

    return origin_like(first, f"random:{first.source}", detail), drawn()


@MAKERS.named("probe")
def probe(task: Task[VectorSpec, VectorOptions], layers: list[int]) -> Made:
    """The difference of a skill probe's class weights, or what a probe of boards reads as a board; of unit norm unless
    asked otherwise."""
    spec = task.spec
    assert spec.probe
    rows = probe_rows(task.inputs, spec.probe)
    first = rows[layers[0]]
    detail = {
        "positions": "averaged",
        "positions_summed": 1,
        "residual": "centred" if first.detail.get("centred") else "raw",
        "direction_norm": spec.direction_norm,
        **({"side": spec.side} if spec.side != "both" else {}),
        **({"board": spec.board} if spec.board else {}),
    }
    if first.checkpoint_id is None:
        detail["model"] = first.detail.get("model")  # what the file says

    def taken() -> Iterator[tuple[int, Direction]]:
        for layer in layers:
            made = read_as(spec, task.inputs, spec.probe or "", layer)
            extra = {"norm_before_matching": made.norm}
            vector = with_norm(made.vector, 1.0) if spec.direction_norm == "unit" else made.vector
            yield layer, replace(made, vector=vector, detail=extra)

    return origin_like(first, f"probe:{spec.board or first.label}", detail), taken()


def check_probe(spec: VectorSpec, inputs: Inputs) -> None:
    """Raise BadInputError for a --board of probes that do not tell the 13 pieces of each square."""
    assert spec.probe
    row = next(iter(probe_rows(inputs, spec.probe).values()))
    if spec.board and row.label != "piece":
        raise BadInputError(
            f"--board needs a probe of the pieces on squares, and that one reads {row.label}",
            "chessreg run probe --label piece",
        )


def read_as(spec: VectorSpec, inputs: Inputs, probe: str, layer: int) -> Direction:
    """The direction of a layer of these probes that `spec` asks for."""
    weight = np.asarray(load_probe(inputs, probe, layer).weight)
    return board_direction(weight, spec.board) if spec.board else class_difference(weight, spec.side)
