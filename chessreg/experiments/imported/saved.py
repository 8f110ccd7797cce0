"""Saved probes and vectors on their way in: what they say of themselves, what must fit, what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from chessreg.errors import BadInputError
from chessreg.models.hook_points import hook_point
from chessreg.models.importers.directions import TRANSFORMER_LENS, ProbeFile
from chessreg.registry import tables
from chessreg.runs.fitted import cosine

if TYPE_CHECKING:
    from chessreg.experiments.imported.directions import ImportedProbeSpec, ImportedVectorSpec, ImportSpec
    from chessreg.models.importers.directions import Origin, VectorFile
    from chessreg.runs.inputs import Inputs

F = TypeVar("F", bound="ProbeFile | VectorFile")

UNKNOWN = "unknown model"


def probes_fit(spec: ImportedProbeSpec, found: Sequence[ProbeFile]) -> None:
    for number, file in enumerate(found, 1):
        if not (spec.label or file.origin.label):
            shape = " x ".join(map(str, file.weight.shape))
            raise BadInputError(f"file {number} does not say what its probe ({shape}) reads off", "give --label")
    if len({spec.label or file.origin.label for file in found}) > 1:
        raise BadInputError("these probes read off different things", "import each label by itself")


def vectors_fit(spec: ImportedVectorSpec, found: Sequence[VectorFile]) -> None:
    for file in found:
        how_made(spec, file)
    if len({(file.source, file.origin.first_position) for file in found}) > 1:
        raise BadInputError("these vectors were not made the same way", "import contrasts and probes' each by itself")


def how_made(spec: ImportedVectorSpec, file: VectorFile) -> str:
    """contrastive, cascade or probe. A file of a cascade does not say so: the settings do."""
    if spec.source == "auto" or spec.source == file.source:
        return file.source
    if "probe" in (spec.source, file.source):
        raise BadInputError(f"a file is of source {file.source}, not {spec.source}", "leave out --source")
    return spec.source


def read_all(references: Sequence[str], inputs: Inputs, read: Callable[..., F]) -> list[F]:
    """Every file, by its content alone: in the store it has no name of its own."""
    found: list[F] = []
    for number, reference in enumerate(references, 1):
        path = inputs.store.artefact(inputs.artefact("files", reference).digest).file
        found.append(
            read(path, f"file {number} ({reference[7:19]}…)" if len(references) > 1 else f"file {reference[7:19]}…")
        )
    return found


def fit_together(spec: ImportSpec, inputs: Inputs, found: Sequence[ProbeFile | VectorFile]) -> None:
    """Raises BadInputError unless the files are of one model, that of the checkpoint if one is named, one a layer."""
    if spec.layers and len(spec.layers) != len(found):
        raise BadInputError(f"{len(found)} files, but {len(spec.layers)} layers", "give one layer a file, in order")
    layers = [layer_of(spec, unit, file.origin) for unit, file in enumerate(found)]
    if len(set(layers)) < len(layers):
        raise BadInputError(f"two files are of layer {max(layers, key=layers.count)}", "import one file a layer")
    models = {model_of(spec, file.origin) for file in found}
    if len(models) > 1:
        raise BadInputError(f"these files are of different models: {', '.join(sorted(map(str, models)))}")
    checkpoint_of(spec, inputs, found)
    for file in found:
        centred_of(spec, file.origin)


def model_of(spec: ImportSpec, origin: Origin) -> str | None:
    if spec.model and origin.model and spec.model != origin.model:
        raise BadInputError(f"a file says that its model is {origin.model}, not {spec.model}", "leave out --model")
    return origin.model or spec.model or None


def layer_of(spec: ImportSpec, unit: int, origin: Origin) -> int:
    """The layer of a file, 0-based. Raises BadInputError when nobody tells it, or file and settings differ."""
    given = spec.layers[unit] if spec.layers else None
    told = origin.layer if given is None else given
    if told is None:
        raise BadInputError(f"file {unit + 1} does not say its layer", "give --layers, 0-based, one a file")
    if given is not None and origin.layer is not None and given != origin.layer:
        raise BadInputError(
            f"file {unit + 1} says that it is of layer {origin.layer}, not {given}", "leave out --layers"
        )
    return told


def centred_of(spec: ImportSpec, origin: Origin) -> bool:
    """Whether the file's residual stream had mean 0 over d_model (specification 2.3)."""
    if spec.residual != "auto":
        return spec.residual == "centred"
    model = model_of(spec, origin)
    if model is None:
        raise BadInputError(
            "a file does not say of which model it is, so its residual convention is not known",
            "give --model, or --residual centred (TransformerLens, folded) or raw",
        )

    return model.startswith(TRANSFORMER_LENS)


def checkpoint_of(
    spec: ImportSpec, inputs: Inputs, found: Sequence[ProbeFile | VectorFile]
) -> tables.Checkpoint | None:
    """The checkpoint that was named, if it can be the files' model by its width and layers. Raises BadInputError."""
    if spec.checkpoint is None:
        return None
    checkpoint, _ = inputs.checkpoint(inputs.reference("checkpoint", spec.checkpoint))
    name = f"checkpoint {checkpoint.id.hex[-6:]}"
    for unit, file in enumerate(found):
        width = len(file.weight if isinstance(file, ProbeFile) else file.vector)
        if width != checkpoint.d_model:
            raise BadInputError(f"a file is of a model with d_model {width}, {name} has {checkpoint.d_model}")
        said = file.origin.n_layers
        if said is not None and said != checkpoint.layers:
            raise BadInputError(f"a file is of a model with {said} layers, {name} has {checkpoint.layers}")
        if (layer := layer_of(spec, unit, file.origin)) >= checkpoint.layers:
            raise BadInputError(f"a file is of layer {layer}, {name} has layers 0 to {checkpoint.layers - 1}")
    return checkpoint


# -- what is kept -----------------------------------------------------------------------------------------------------


def detail_of(spec: ImportSpec, origin: Origin, layer: int) -> dict[str, Any]:
    """What is told of every imported direction; `logged` is the file's own record."""
    centred = centred_of(spec, origin)
    return {
        "hook_point": hook_point(layer),
        "layer": layer,
        "model": model_of(spec, origin) or UNKNOWN,
        "checkpoint": spec.checkpoint or UNKNOWN,
        "centred": centred,
        "residual": "centred" if centred else "raw",
        "first_position": origin.first_position,
        "positions_per_game": origin.positions_per_game,
        "logged": origin.logged,
    }


def games_of(origin: Origin) -> dict[str, int]:
    """How many games of strong and of weak players a vector's file says that it contrasts."""
    counts = origin.logged.get("metadata") or origin.logged
    found = {side: counts.get(f"count_{side}_elo") for side in ("high", "low")}
    return {f"games_{side}": int(count) for side, count in found.items() if count is not None}


def two_sides(weight: np.ndarray) -> dict[str, float]:
    """Norms and cosine of a two-class probe's columns, weight [d_model, 1, 2]."""
    if weight.shape[1:] != (1, 2):
        return {}
    low, high = weight[:, 0, 0], weight[:, 0, 1]
    norms = {"norm_low": float(np.linalg.norm(low)), "norm_high": float(np.linalg.norm(high))}
    return {**norms, "norm_difference": float(np.linalg.norm(high - low)), "cosine_sides": cosine(high, low)}
