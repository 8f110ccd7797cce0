"""Checks of imported probes and vectors against the settings, and the columns that are stored of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from chessreg.errors import BadInputError
from chessreg.models.hook_points import PATTERNS, RESID_POST, format_hook_point
from chessreg.models.importers.directions import TRANSFORMER_LENS, ProbeFile, VectorFile
from chessreg.named import clip_text
from chessreg.registry import tables
from chessreg.runs.fitted import compute_cosine_similarity

if TYPE_CHECKING:
    from chessreg.experiments.imported.specs import ImportedProbeSpec, ImportedVectorSpec, ImportSpec
    from chessreg.models.importers.directions import FileOrigin
    from chessreg.runs.inputs import Inputs

F = TypeVar("F", bound="ProbeFile | VectorFile")

UNKNOWN_MODEL = "unknown model"


def read_imported_probe_file(path: Path, name: str | None = None) -> ProbeFile:
    """Return the probe of a file: if it is safetensors, chessreg's own or Davis's, else Karvonen's.

    `name` is the original file name if `path` is a copy. Raises BadInputError for any other file.
    """
    from chessreg.models.importers import davis_probes, direction_files, directions, source

    if not source.is_safetensors(path):
        return directions.read_karvonen_probe(path, name)
    name = str(path) if name is None else name
    return direction_files.read_own_probe(path, name) or davis_probes.read_davis_probe(path, name)


def read_imported_vector_file(path: Path, name: str | None = None) -> VectorFile:
    """Return the vector of a file: chessreg's own, Karvonen's, or a tensor of another program. Raises BadInputError."""
    from chessreg.models.importers import direction_files, directions, source

    own_checkpoint = None
    if source.is_safetensors(path):
        own_checkpoint = direction_files.read_own_vector(path, path.name if name is None else name)
    return own_checkpoint or directions.read_karvonen_vector(path, name)


def check_imported_probes(spec: ImportedProbeSpec, files: Sequence[ProbeFile]) -> None:
    """Raise BadInputError unless the probes have one known label and a known hook point."""
    for file in files:
        if not (spec.label or file.origin.label):
            shape = " x ".join(map(str, file.weight.shape))
            raise BadInputError(f"{file.origin.file} does not state the label of its probe ({shape})", "give --label")
    if len({spec.label or file.origin.label for file in files}) > 1:
        raise BadInputError("these probes have different labels", "import each label separately")

    require_hook_point(spec.hook_point)


def require_hook_point(pattern: str) -> None:
    """Raise BadInputError for a pattern that no model has a hook point for."""
    if pattern not in PATTERNS:
        raise BadInputError(f"hook point {clip_text(pattern)!r} does not exist", f"known: {', '.join(PATTERNS)}")


def group_files_by_place(
    paths: Sequence[Path], inputs: Inputs | None = None, checkpoint: str | None = None
) -> dict[str, tuple[Path, ...]]:
    """Return the files of each label, phase and hook point, as the paths of Davis's probes name them.

    All files form one group "" if a path names none of these. `checkpoint` is their model, whose number of layers tells
    which residual index is the last.
    """
    from chessreg.models.importers.davis_probes import DAVIS_LAYERS, describe_path

    blocks = (
        DAVIS_LAYERS
        if not (inputs and checkpoint)
        else inputs.read_checkpoint_row(inputs.reference("checkpoint", checkpoint)).layers
    )
    groups: dict[str, tuple[Path, ...]] = {}
    for path in paths:
        place = describe_path(path, blocks)
        groups[place] = (*groups.get(place, ()), path)
    return {"": tuple(paths)} if "" in groups else groups


def parse_path_settings(
    files: Sequence[ProbeFile], paths: Sequence[Path], inputs: Inputs | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings `layers`, `hook_point` and `phase` that the paths of Davis's files name.

    `files` are the contents of `paths`, and `options` the settings of the user. With `inputs`, layers are counted for
    the named checkpoint; else for Davis's model. Raises BadInputError for a path without a layer, for files of
    different hook points or phases, and for an option that differs from the paths.
    """
    from chessreg.models.importers.davis_probes import DAVIS_LAYERS, get_hook_point

    blocks = DAVIS_LAYERS
    if inputs is not None and options.get("checkpoint"):
        blocks = inputs.read_checkpoint_row(inputs.reference("checkpoint", options["checkpoint"])).layers
    places = []
    for file, path in zip(files, paths, strict=True):
        if file.origin.residual_index is None:
            raise BadInputError(f"{path} does not state its layer", "put layer-NN in its path, or give --layers")
        places.append(get_hook_point(file.origin.residual_index, blocks))
    for title, values in (
        ("hook points", {pattern for pattern, _ in places}),
        ("phases", {file.origin.phase for file in files}),
    ):
        if len(values) > 1:
            value_list = ", ".join(sorted(map(str, values)))
            raise BadInputError(f"these probes have different {title}: {value_list}", "import each one separately")
    settings = {
        "layers": tuple(layer for _, layer in places),
        "hook_point": places[0][0],
        "phase": files[0].origin.phase,
    }
    for name, value in settings.items():
        if options.get(name) not in (None, (), "", value):
            flag = f"--{name.replace('_', '-')}"
            raise BadInputError(f"{flag} is {options[name]}, but the paths state {value}", f"leave out {flag}")
    return settings


def describe_tokens(spec: ImportedProbeSpec, origin: FileOrigin) -> dict[str, Any]:
    """Return the known facts about the tokens that a probe was fitted at.

    Davis fitted at the last five tokens of each game, labelled with the board before the ply
    (`prepare_hidden_states.py` of its code).
    """
    phase = {} if spec.phase is None else {"phase": spec.phase}
    return {**phase, "last_sites": 5, "alignment": "pre-ply"} if origin.raw else phase


def name_imported_sites(spec: ImportedProbeSpec, origin: FileOrigin) -> str:
    """Return the name of the tokens that a probe was fitted at, at most 32 characters."""
    if spec.phase is None:
        return (origin.positions or "unknown")[:32]
    from chessreg.encodings import get_encoding, get_phase_site

    return get_phase_site(get_encoding("uci-square-72"), spec.phase)


def check_imported_vectors(spec: ImportedVectorSpec, files: Sequence[VectorFile]) -> None:
    """Raise BadInputError for an unknown hook point, and for vectors of different sources or positions."""
    require_hook_point(spec.hook_point)
    for file in files:
        resolve_source(spec, file)
    if len({(file.source, file.origin.first_position) for file in files}) > 1:
        raise BadInputError(
            "these files contain different kinds of vectors", "import contrasts and differences of probes separately"
        )


def resolve_source(spec: ImportedVectorSpec, file: VectorFile) -> str:
    """Return the source of a vector: contrastive, cascade, probe or user.

    A file does not record whether its contrast is a cascade; the settings do. Raises BadInputError if the file
    contradicts the settings.
    """
    if spec.source in ("auto", "user", file.source):
        return file.source if spec.source == "auto" else spec.source
    if file.source == "user":
        raise BadInputError(
            f"{file.origin.file} is a tensor without metadata, so its source is user", "leave out --source"
        )
    if "probe" in (spec.source, file.source):
        raise BadInputError(
            f"the source of {file.origin.file} is {file.source}, not {spec.source}", "leave out --source"
        )
    return spec.source


def read_all_files(references: Sequence[str], inputs: Inputs, read_file: Callable[..., F]) -> list[F]:
    """Return the content of every file.

    A file in the store has no name, so messages call it by its number and the start of its digest.
    """
    files: list[F] = []
    for number, reference in enumerate(references, 1):
        path = inputs.store.artifact(inputs.artifact("files", reference).digest).file
        files.append(
            read_file(
                path, f"file {number} ({reference[7:19]}…)" if len(references) > 1 else f"file {reference[7:19]}…"
            )
        )
    return files


def check_files_together(spec: ImportSpec, inputs: Inputs | None, files: Sequence[ProbeFile | VectorFile]) -> None:
    """Raise BadInputError unless the files have different layers of one model, which is the checkpoint's if one is
    named."""
    if spec.layers and len(spec.layers) != len(files):
        raise BadInputError(
            f"{len(files)} files, but {len(spec.layers)} layers", "give one layer for each file, in order"
        )
    by_layer: dict[int, str] = {}
    for unit, file in enumerate(files):
        layer = resolve_layer(spec, unit, file.origin)
        if layer in by_layer:
            raise BadInputError(
                f"{by_layer[layer]} and {file.origin.file} both have layer {layer}", "import one file for each layer"
            )
        by_layer[layer] = file.origin.file
    models = {resolve_model(spec, file.origin) for file in files}
    if len(models) > 1:
        raise BadInputError(f"these files belong to different models: {', '.join(sorted(map(str, models)))}")
    resolve_checkpoint(spec, inputs, files)
    for file in files:
        has_centred_residual(spec, file.origin)
        values, thing = (file.vector, "direction") if isinstance(file, VectorFile) else (file.weight, "probe")
        if not values.any():
            raise BadInputError(f"{file.origin.file} holds only zeros", f"save a {thing}")


def resolve_model(spec: ImportSpec, origin: FileOrigin) -> str | None:
    """Return the model's name in file or settings, or None. Raises BadInputError if the two differ."""
    if spec.model and origin.model and spec.model != origin.model:
        raise BadInputError(f"{origin.file} states the model {origin.model}, not {spec.model}", "leave out --model")
    return origin.model or spec.model or None


def resolve_layer(spec: ImportSpec, unit: int, origin: FileOrigin) -> int:
    """Return the 0-based layer of a file. Raises BadInputError if it is unknown, or if file and settings differ."""
    explicit = spec.layers[unit] if spec.layers else None
    layer = origin.layer if explicit is None else explicit
    if layer is None:
        raise BadInputError(f"{origin.file} does not state its layer", "give --layers, 0-based, one for each file")
    if explicit is not None and origin.layer is not None and explicit != origin.layer:
        raise BadInputError(f"{origin.file} states layer {origin.layer}, not {explicit}", "leave out --layers")
    return layer


def has_centred_residual(spec: ImportSpec, origin: FileOrigin) -> bool:
    """Return whether the file's residual stream had mean 0 over d_model, as in Karvonen's code.

    Raises BadInputError if neither file nor settings name the model or the convention.
    """
    if spec.residual != "auto":
        return spec.residual == "centred"
    if origin.raw or origin.residual:
        return origin.residual == "centred"
    model = resolve_model(spec, origin)
    if model is None:
        raise BadInputError(
            f"{origin.file} does not name its model, so its residual convention is not known",
            "give --checkpoint, --model, or --residual centred (TransformerLens, folded) or raw",
        )

    return model.startswith(TRANSFORMER_LENS)


def resolve_checkpoint(
    spec: ImportSpec, inputs: Inputs | None, files: Sequence[ProbeFile | VectorFile]
) -> tables.Checkpoint | None:
    """Return the named checkpoint; None if none is named. Raises BadInputError if its d_model or layers do not fit the
    files."""
    if spec.checkpoint is None or inputs is None:
        return None
    checkpoint, _ = inputs.checkpoint(inputs.reference("checkpoint", spec.checkpoint))
    name = f"checkpoint {checkpoint.id.hex[-6:]}"
    for unit, file in enumerate(files):
        width = len(file.weight if isinstance(file, ProbeFile) else file.vector)
        if width != checkpoint.d_model:
            raise BadInputError(f"{file.origin.file} has d_model {width}, but {name} has {checkpoint.d_model}")
        n_layers = file.origin.n_layers
        if n_layers is not None and n_layers != checkpoint.layers:
            raise BadInputError(
                f"the model of {file.origin.file} has {n_layers} layers, but {name} has {checkpoint.layers}"
            )
        if (layer := resolve_layer(spec, unit, file.origin)) >= checkpoint.layers:
            raise BadInputError(
                f"{file.origin.file} has layer {layer}, but {name} has layers 0 to {checkpoint.layers - 1}"
            )
    return checkpoint


# -- stored columns ----------------------------------------------------------------------------------------------


def build_imported_detail(
    spec: ImportSpec, origin: FileOrigin, layer: int, pattern: str = RESID_POST
) -> dict[str, Any]:
    """Return the columns of an imported direction. The column `logged` holds the file's own record of its settings."""
    is_centred = has_centred_residual(spec, origin)
    return {
        "hook_point": format_hook_point(layer, pattern),
        "layer": layer,
        "model": resolve_model(spec, origin) or UNKNOWN_MODEL,
        "checkpoint": spec.checkpoint or UNKNOWN_MODEL,
        "centred": is_centred,
        "residual": "centred" if is_centred else "raw",
        "skip_sites": origin.first_position,
        "positions_per_game": origin.positions_per_game,
        "logged": origin.metadata,
    }


def count_games_by_side(origin: FileOrigin) -> dict[str, int]:
    """Return the numbers of games of strong and of weak players that a vector's file states."""
    counts = origin.metadata.get("metadata") or origin.metadata
    counts_of_side = {side: counts.get(f"count_{side}_elo") for side in ("high", "low")}
    return {f"games_{side}": int(count) for side, count in counts_of_side.items() if count is not None}


def measure_two_sides(weight: np.ndarray) -> dict[str, float]:
    """Return norms and cosine of a two-class probe's columns, weight [d_model, 1, 2]; empty for any other shape."""
    if weight.shape[1:] != (1, 2):
        return {}
    low, high = weight[:, 0, 0], weight[:, 0, 1]
    norms = {"norm_low": float(np.linalg.norm(low)), "norm_high": float(np.linalg.norm(high))}
    return {
        **norms,
        "norm_difference": float(np.linalg.norm(high - low)),
        "cosine_sides": compute_cosine_similarity(high, low),
    }
