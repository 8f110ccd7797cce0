"""Autoencoders of finished SAE runs, read from the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.gated_sae import NAMES, GatedSae
from chessreg.registry import tables
from chessreg.runs.fitted import read_layer

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs

SAE_FILE = "sae.safetensors"


def build_output_name(hook_point: str, expansion: int) -> str:
    """Return the name of an autoencoder among its run's outputs."""
    return f"{hook_point}.{expansion}x"


def read_sae_folder(folder: Path, scale: float, device: str = "cpu") -> GatedSae:
    """Return the autoencoder in the artifact `folder`, which may be a third party's.

    Raises BadInputError for a damaged file, shapes that do not agree, and NaN or infinite values.
    """
    arrays = read_layer(folder / SAE_FILE, W_gate=2, b_gate=1, r_mag=1, b_mag=1, W_dec=2, b_dec=1)
    features, width = arrays["W_gate"].shape
    of_latents, matrix = (features,), (features, width)
    shapes = dict(zip(NAMES, (matrix, of_latents, of_latents, of_latents, matrix, (width,)), strict=True))
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise BadInputError(
                f"{name} of the SAE has shape {list(arrays[name].shape)}, but its gate requires {list(shape)}"
            )
        if not np.isfinite(arrays[name]).all():
            raise BadInputError(f"{name} of the SAE has NaN or infinite values")
    tensors = {name: torch.from_numpy(arrays[name].astype(np.float32)).to(device) for name in NAMES}
    return GatedSae(**tensors, scale=scale)


def select_sae_rows(inputs: Inputs, reference: str, expansion: int | None = None) -> list[tables.SaeRecord]:
    """Return the rows of one expansion of an SAE run, one per hook point; without `expansion`, of the only one.

    Raises NotFoundError for an expansion that the run lacks, and BadInputError if it has several and none is named.
    """
    rows: list[tables.SaeRecord] = inputs.rows(tables.SaeRecord, inputs.run(reference, "sae"))
    there = list(dict.fromkeys(row.detail.get("expansion") for row in rows))
    if expansion is None and len(there) > 1:
        raise BadInputError(f"this SAE run has the expansions {', '.join(map(str, there))}", "choose with --expansion")
    if expansion is not None and expansion not in there:
        raise NotFoundError(f"this SAE run has no expansion {expansion}", f"it has {', '.join(map(str, there))}")
    return [row for row in rows if expansion in (None, row.detail.get("expansion"))]


def load_sae(
    inputs: Inputs,
    reference: str,
    layer: int | None = None,
    hook_point: str | None = None,
    expansion: int | None = None,
    device: str = "cpu",
) -> GatedSae:
    """Return the autoencoder of one layer or hook point, and of one expansion, of an SAE run; each may be left out if
    the run has only one.

    Raises NotFoundError for one that the run lacks, BadInputError if several match, and for a damaged file.
    """
    rows = select_sae_rows(inputs, reference, expansion)
    fitting = [row for row in rows if layer in (None, row.layer) and hook_point in (None, row.hook_point)]
    there = ", ".join(f"{row.hook_point} (layer {row.layer})" for row in rows)
    if not fitting:
        wanted = hook_point if hook_point is not None else f"layer {layer}"
        raise NotFoundError(f"this SAE run has no SAE of {wanted}", f"it has {there}")
    if len(fitting) > 1:
        raise BadInputError(
            f"this SAE run has {len(fitting)} SAEs that match", f"choose a layer or hook point: {there}"
        )
    return read_sae(inputs, reference, fitting[0], device)


def read_sae(inputs: Inputs, reference: str, row: tables.SaeRecord, device: str = "cpu") -> GatedSae:
    """Return the autoencoder behind a row of the table `sae`."""
    located = inputs.locate_bytes(f"sae {row.hook_point}", reference, row.artifact, row.run_id)
    sae = read_sae_folder(located.path, float(row.detail["scale"]), device)
    if sae.d_model != row.detail["d_model"]:
        raise BadInputError(
            f"the SAE of {row.hook_point} has width {sae.d_model}, but its row has {row.detail['d_model']}"
        )
    return sae
