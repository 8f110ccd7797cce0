"""Functions that make the directions of each source, layer by layer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.settings.sites import EncodedGames
from chessreg.experiments.settings.skill import permute_classes
from chessreg.experiments.vector import sums
from chessreg.experiments.vector.contrast import ClassedGames, compute_contrast, gather_games
from chessreg.experiments.vector.spec import (
    BoardDirection,
    Cascade,
    Contrast,
    Control,
    OfProbe,
    RandomVector,
    ShuffledProbeVector,
    ShuffledVector,
    SkillDirection,
    VectorOptions,
    VectorSpec,
    resolve_vector_layers,
)
from chessreg.models.hook_points import RESID_POST, to_hook_pattern
from chessreg.named import NameRegistry
from chessreg.registry import tables
from chessreg.runs.fitted import (
    Direction,
    load_direction,
    load_probe,
    load_vector_row,
    read_layer,
    read_probe_rows,
    read_vector_rows,
)
from chessreg.runs.inputs import is_fitted_probe
from chessreg.runs.spec import parse_settings
from chessreg.steering.controls import draw_random_like
from chessreg.steering.directions import compute_board_direction, compute_class_difference, scale_to_norm
from store.errors import NotInStoreError

if TYPE_CHECKING:
    from chessreg.models.edits import ResidualEdit
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task


@dataclass(frozen=True)
class VectorOrigin:
    """Facts that all directions of a run share, for their rows."""

    checkpoint_id: UUID | None  # None: the model is not in this registry
    source: str  # such as contrastive:white_elo, random:contrastive:white_elo, probe:skill
    sites: str
    detail: dict[str, Any]
    games: ClassedGames | None = None  # only for contrasts
    hook_point: str = RESID_POST  # with * for the layer


DirectionSource = tuple[VectorOrigin, Iterator[tuple[int, Direction]]]
"""The origin, and an iterator over (layer, direction) of the requested layers, in order."""

Maker = Callable[["Task[Any, VectorOptions]", list[int]], DirectionSource]
MAKERS: NameRegistry[Maker] = NameRegistry("source of vectors")


def build_contrast_origin(spec: Contrast, source: str, games: ClassedGames) -> VectorOrigin:
    """Return the origin of contrasts of these games. `source` is the first part of its name, such as cascade."""
    min_positions = int(games.positions.max()) if spec.reduction == "summed" else 1
    detail = {
        "positions": spec.reduction,
        "positions_summed": min_positions,
        "first_ply": spec.first_ply,
        "last_ply": spec.last_ply,
        "rating": spec.skill.rating,
        "residual": games.checkpoint.residual,
        **games.describe(),
    }
    return VectorOrigin(games.checkpoint.id, f"{source}:{spec.skill.rating}", games.sites, detail, games, spec.pattern)


@MAKERS.named("contrastive")
@MAKERS.named("contrastive-uncached")
def make_contrastive(task: Task[Contrast, VectorOptions], layers: list[int]) -> DirectionSource:
    """Return the origin and the directions of contrasts between games of strong and weak players."""
    games = gather_games(task.spec, task.inputs)
    origin = build_contrast_origin(task.spec, "contrastive", games)
    return origin, iterate_contrasts(task, task.spec, games, games.classes, layers)


def iterate_contrasts(
    task: Task[Any, VectorOptions], spec: Contrast, games: ClassedGames, classes: np.ndarray, layers: list[int]
) -> Iterator[tuple[int, Direction]]:
    """Yield (layer, contrast) of `layers`: from the cache one layer at a time, else from one forward pass for all
    layers.

    `classes` int [games] are the classes to contrast, which a control permutes. A control reuses the sums that the
    original run kept.
    """
    if games.cache is not None:
        rows = sums.mask_cached_rows(games.cache, spec.first_ply, spec.last_ply)
        for layer in layers:
            class_sums = sums.sum_cached_activations(games.cache, layer, games.places, rows)
            yield layer, compute_contrast(class_sums, games.positions, classes, spec.reduction)
        return
    control = isinstance(task.spec, Control)
    stored_sums = {layer: load_kept_sums(task, layer, games.places) for layer in layers} if control else {}
    if stored_sums and all(class_sums is not None for class_sums in stored_sums.values()):
        for layer, layer_sums_row in stored_sums.items():
            assert layer_sums_row is not None
            yield layer, compute_contrast(layer_sums_row, games.positions, classes, spec.reduction)
        return
    model, encoded_games = load_contrast_model(task, spec, games)
    folder = task.folder / "sums"
    every = sums.sum_resumable(
        model, encoded_games, layers, task.options.batch_games, folder,
        on_progress=lambda done_share: task.progress(
            0.99 * done_share / encoded_games.games, f"{done_share:,} of {encoded_games.games:,} games"
        ),
    )  # fmt: skip
    for number, layer in enumerate(layers):
        contrast = compute_contrast(every[number], games.positions, classes, spec.reduction)
        yield layer, replace(contrast, sums=None if control else every[number])
    shutil.rmtree(folder, ignore_errors=True)


def load_kept_sums(task: Task[Control, VectorOptions], layer: int, places: np.ndarray) -> np.ndarray | None:
    """Return the sums float32 [games, d_model] that the original run of a control kept; None if they are not in the
    store or belong to other games."""
    try:
        artifact = task.inputs.artifact("of", f"{task.spec.of}/sums-{layer}")
    except (NotFoundError, NotInStoreError):
        return None
    sum_tensors = read_layer(artifact.path / "sums.safetensors", sums=2, places=1)
    return sum_tensors["sums"] if np.array_equal(sum_tensors["places"], places) else None


def load_contrast_model(
    task: Task[Any, VectorOptions], spec: Contrast, games: ClassedGames
) -> tuple[LanguageModel, EncodedGames]:
    """Return the model, and the games encoded with the sites of the contrast."""
    from chessreg.models.devices import prepare_device
    from chessreg.models.language_model import LanguageModel

    _, folder = task.inputs.checkpoint(spec.model(task.inputs))
    model = LanguageModel.load(folder, device=prepare_device(task.options.device, task.options.threads))
    encoded_games = sums.encode_ply_sites(
        model.encoding, model.block_size, games.games, games.places, games.sites, spec.first_ply, spec.last_ply
    )
    if games.cache is not None:  # the cache can hold fewer sites than the games have
        encoded_games = encoded_games.take(mask_cached_sites(encoded_games, games, spec))
    assert np.array_equal(encoded_games.counts, games.positions)
    return model, encoded_games


def mask_cached_sites(encoded_games: EncodedGames, games: ClassedGames, spec: Contrast) -> np.ndarray:
    """Return a mask bool [sites] of the games' sites that are cached."""
    assert games.cache is not None
    array = games.cache.array
    rows = sums.mask_cached_rows(games.cache, spec.first_ply, spec.last_ply)
    cached_sites = set(
        zip(array.game[rows].tolist(), array.ply[rows].tolist(), array.token[rows].tolist(), strict=True)
    )
    sites = encoded_games.sites
    wanted_keys = zip(games.places[encoded_games.game].tolist(), sites.ply.tolist(), sites.token.tolist(), strict=True)
    return np.fromiter((site in cached_sites for site in wanted_keys), bool, len(sites))


@MAKERS.named("cascade")
@MAKERS.named("cascade-uncached")
def make_cascade(task: Task[Cascade, VectorOptions], layers: list[int]) -> DirectionSource:
    """Return the origin and the directions of contrasts, each computed with the vectors of the earlier layers added."""
    games = gather_games(task.spec, task.inputs)
    origin = build_contrast_origin(task.spec, "cascade", games)
    origin.detail["cascade_scale"] = task.spec.cascade_scale
    return origin, iterate_cascade(task, task.spec, games, games.classes, layers)


def iterate_cascade(
    task: Task[Any, VectorOptions], spec: Cascade, games: ClassedGames, classes: np.ndarray, layers: list[int]
) -> Iterator[tuple[int, Direction]]:
    """Yield (layer, contrast) of `layers`, each computed while the vectors of the earlier layers are added at every
    token.

    `classes` int [games] are the classes to contrast. Each layer needs one forward pass, because an added vector
    changes all later activations. Earlier layers that were not requested are computed too, or read if this run has
    stored them.
    """
    import torch

    from chessreg.models.edits import ResidualEdit

    assert spec.cascade_scale is not None
    model, encoded_games = load_contrast_model(task, spec, games)
    edits: list[ResidualEdit] = []
    needed_layers = [layer for layer in sorted(resolve_vector_layers(spec, task.inputs)) if layer <= max(layers)]
    for number, layer in enumerate(needed_layers):
        vector = load_stored_vector(task, layer) if classes is games.classes and layer not in layers else None
        if vector is None:

            def report(done_games: int, number: int = number, layer: int = layer) -> None:
                task.progress((number + done_games / encoded_games.games) / len(needed_layers) * 0.99, f"layer {layer}")

            layer_sums = sums.sum_model_activations(
                model, encoded_games, [layer], task.options.batch_games, edits, report
            )[0]
            contrast = compute_contrast(layer_sums, games.positions, classes, spec.reduction)
            if layer in layers:
                yield layer, contrast
            vector = contrast.vector
        edits.append(ResidualEdit(layer, torch.from_numpy(vector).to(model.device), spec.cascade_scale))


def load_stored_vector(task: Task[Any, VectorOptions], layer: int) -> np.ndarray | None:
    """Return the vector of a layer that an earlier attempt of this run stored, or None."""
    from sqlalchemy import select

    with task.inputs.database.read() as session:
        stored_row = session.scalars(
            select(tables.VectorRecord).where(
                tables.VectorRecord.run_id == task.run_id, tables.VectorRecord.layer == layer
            )
        ).first()
        if stored_row is None:
            return None
        session.expunge(stored_row)
    return load_vector_row(task.inputs, f"run:{task.resolved.spec_hash}", stored_row).vector


@MAKERS.named("shuffled")
def make_shuffled(task: Task[ShuffledVector, VectorOptions], layers: list[int]) -> DirectionSource:
    """Repeat the contrast of another run with labels permuted within each stratum, scaled to that run's norms."""
    spec = task.spec
    real = find_labelled_contrast(spec, task.inputs)
    games = gather_games(real, task.inputs)
    permuted_classes = permute_classes(games.classes, games.stratum, spec.seed)
    origin = build_contrast_origin(real, "shuffled", games)
    if isinstance(real, Cascade):
        shuffled_directions = iterate_cascade(task, real, games, permuted_classes, layers)
    else:
        shuffled_directions = iterate_contrasts(task, real, games, permuted_classes, layers)
    return origin, match_norms(task, shuffled_directions)


@MAKERS.named("shuffled-probe")
def make_shuffled_probe(task: Task[ShuffledProbeVector, VectorOptions], layers: list[int]) -> DirectionSource:
    """Repeat the directions of another run with probes fitted to shuffled labels, scaled to that run's norms."""
    spec = task.spec
    real = find_probe_readout(spec, task.inputs)
    first_row = read_vector_rows(task.inputs, spec.of)[layers[0]]
    copied_fields = ("positions", "positions_summed", "residual", "side", "board")
    detail = {name: first_row.detail[name] for name in copied_fields if name in first_row.detail}
    detail |= {"probe": spec.probe, "seed": task.inputs.run(spec.probe, "probe").spec["shuffled_label_control"]}
    shuffled_directions = ((layer, read_direction(real, task.inputs, spec.probe, layer)) for layer in layers)
    return copy_origin(first_row, f"shuffled:{first_row.source}", detail), match_norms(task, shuffled_directions)


def match_norms(
    task: Task[Any, VectorOptions], shuffled_directions: Iterable[tuple[int, Direction]]
) -> Iterator[tuple[int, Direction]]:
    """Yield these directions, scaled to the norms of the control's original vectors."""
    original_reference = task.spec.of
    for layer, shuffled_direction in shuffled_directions:
        norm = load_direction(task.inputs, original_reference, layer).norm
        yield (
            layer,
            Direction(
                scale_to_norm(shuffled_direction.vector, norm),
                detail={"norm_before_matching": shuffled_direction.norm, "of": original_reference},
            ),
        )


def find_labelled_contrast(spec: ShuffledVector, inputs: Inputs) -> Contrast:
    """Return the contrast whose labels a control permutes. Raises BadInputError for vectors that were made without
    labels."""
    real = load_original_spec(spec, inputs)
    if isinstance(real, OfProbe):
        raise BadInputError(
            "a control of vectors from a probe needs a probe fitted to shuffled labels",
            f"run the probe {inputs.run(real.probe, 'probe').id.hex[-6:]} again with --shuffled-label-control 1, then "
            "--source shuffled-probe",
        )
    if not isinstance(real, Contrast):
        raise build_no_labels_error("a file" if real is None else str(real.source))
    return real


def find_probe_readout(spec: ShuffledProbeVector, inputs: Inputs) -> SkillDirection | BoardDirection:
    """Return the spec of the vectors whose probe was fitted again to shuffled labels.

    Raises BadInputError for vectors of another source, and if --probe differs from the original probe in more than its
    labels.
    """
    real = load_original_spec(spec, inputs)
    if not isinstance(real, (SkillDirection, BoardDirection)):
        name = "a file" if real is None else str(real.source)
        if not isinstance(real, Contrast):
            raise build_no_labels_error(name)
        raise BadInputError(f"the labels of {name} vectors are shuffled without a probe", "--source shuffled")
    check_shuffled_probe(spec, real, inputs)
    return real


def load_original_spec(spec: Control, inputs: Inputs) -> Any:
    """Return the spec of a control's original vectors; None for imported vectors."""
    run = inputs.run(spec.of, "vector")
    return parse_settings(VectorSpec, run.spec) if run.kind == "vector" else None


def build_no_labels_error(source: str) -> BadInputError:
    """Return the error for a shuffled control of vectors without labels."""
    return BadInputError(
        f"the registry has no labels to shuffle for vectors from {source}",
        "give a contrastive, cascade or probe run, or --source random",
    )


def check_shuffled_probe(spec: ShuffledProbeVector, real: OfProbe, inputs: Inputs) -> None:
    """Raise BadInputError unless --probe differs from the original probe of the vectors in its labels alone."""
    probe_run = inputs.run(real.probe, "probe")
    if not is_fitted_probe(probe_run.kind):
        raise BadInputError(
            "the probe of these vectors is imported, so its labels are not in the registry", "--source random"
        )
    shuffled_run = inputs.run(spec.probe, "probe")
    if shuffled_run.kind != probe_run.kind or shuffled_run.spec["shuffled_label_control"] is None:
        raise BadInputError("--probe was not fitted to shuffled labels", "run it with --shuffled-label-control 1")
    free = {"shuffled_label_control", "seed", "replicate", "layers", "test_cache", "allow_overlap"}
    for name in probe_run.spec.keys() - free:
        if shuffled_run.spec[name] != probe_run.spec[name]:
            raise BadInputError(
                f"--probe differs from the vectors' probe in more than its labels: "
                f"its {name} is {shuffled_run.spec[name]}, theirs {probe_run.spec[name]}"
            )


def copy_origin(row: tables.ProbeRecord | tables.VectorRecord, source: str, detail: dict[str, Any]) -> VectorOrigin:
    """Return the origin of directions made from another run's rows: the same model, sites and hook point."""
    return VectorOrigin(
        row.checkpoint_id, source[:64], row.positions, detail, hook_point=to_hook_pattern(row.hook_point)
    )


@MAKERS.named("random")
def make_random(task: Task[RandomVector, VectorOptions], layers: list[int]) -> DirectionSource:
    """Draw directions uniformly from the sphere, scaled to the norms of another run's vectors."""
    spec = task.spec
    rows = read_vector_rows(task.inputs, spec.of)
    copied_fields = ("positions", "positions_summed", "residual", "model")
    first_row = rows[layers[0]]
    detail = {name: first_row.detail[name] for name in copied_fields if name in first_row.detail}

    def draw_directions() -> Iterator[tuple[int, Direction]]:
        for layer in layers:
            real = load_direction(task.inputs, spec.of, layer).vector
            yield layer, Direction(draw_random_like(real, layer, spec.seed), detail={"of": spec.of})

    return copy_origin(first_row, f"random:{first_row.source}", detail), draw_directions()


@MAKERS.named("probe")
@MAKERS.named("board")
def make_readout(task: Task[SkillDirection | BoardDirection, VectorOptions], layers: list[int]) -> DirectionSource:
    """Return per layer the difference of a skill probe's class weights, or the direction of a changed board. It has
    unit norm if `direction_norm` is `unit`."""
    spec = task.spec
    first_row = read_probe_rows(task.inputs, spec.probe)[layers[0]]
    detail = {
        "positions": "averaged",
        "positions_summed": 1,
        "residual": "centred" if first_row.detail.get("centred") else "raw",
        "direction_norm": spec.direction_norm,
    }
    if isinstance(spec, BoardDirection):
        detail["board"] = reading = spec.board
    else:
        detail |= {"side": spec.side} if spec.side != "both" else {}
        reading = first_row.label
    if first_row.checkpoint_id is None:
        detail["model"] = first_row.detail.get("model")  # as the imported file states it

    def read_directions() -> Iterator[tuple[int, Direction]]:
        for layer in layers:
            direction = read_direction(spec, task.inputs, spec.probe, layer)
            extra = {"norm_before_matching": direction.norm}
            vector = scale_to_norm(direction.vector, 1.0) if spec.direction_norm == "unit" else direction.vector
            yield layer, replace(direction, vector=vector, detail=extra)

    return copy_origin(first_row, f"probe:{reading}", detail), read_directions()


def check_board_probe(spec: BoardDirection, inputs: Inputs) -> None:
    """Raise BadInputError for probes that do not classify each square into 13 pieces."""
    row = next(iter(read_probe_rows(inputs, spec.probe).values()))
    if row.label != "piece":
        raise BadInputError(
            f"source board needs a probe of the pieces on squares, but this one predicts {row.label}",
            "chessreg run probe --label piece",
        )


def read_direction(spec: SkillDirection | BoardDirection, inputs: Inputs, probe: str, layer: int) -> Direction:
    """Return the direction of one layer that `spec` takes from these probes, float32 [d_model]."""
    weight = np.asarray(load_probe(inputs, probe, layer).weight)
    return (
        compute_board_direction(weight, spec.board)
        if isinstance(spec, BoardDirection)
        else compute_class_difference(weight, spec.side)
    )
