"""Autoencoders of finished SAE runs, read from the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chessreg.errors import BadInputError, NotFoundError
from chessreg.folders import write_new_folder
from chessreg.registry import names, tables
from chessreg.runs.fitted import read_layer

if TYPE_CHECKING:
    from chessreg.models.sae_files import Layout
    from chessreg.models.sparse_autoencoders import SparseAutoencoder
    from chessreg.runs.inputs import Inputs

SAE_FILE = "sae.safetensors"


def build_output_name(hook_point: str, features: int, d_model: int) -> str:
    """Return the name of an autoencoder among its run's outputs.

    >>> build_output_name("blocks.3.hook_resid_post", 384, 192), build_output_name("blocks.3.hook_resid_post", 64, 192)
    ('blocks.3.hook_resid_post.2x', 'blocks.3.hook_resid_post.64')
    """
    return f"{hook_point}.{features}" if features % d_model else f"{hook_point}.{features // d_model}x"


def read_stored_sae(folder: Path, detail: Mapping[str, Any], device: str = "cpu") -> SparseAutoencoder:
    """Return the autoencoder in the artifact `folder`, which may be a third party's. `detail` is that of its row.

    Raises BadInputError for a damaged file, shapes that do not agree, and NaN or infinite values.
    """
    import torch

    from chessreg.models.sae_files import ARCHITECTURES
    from chessreg.models.sparse_autoencoders import COMMON_SETTINGS

    kind = ARCHITECTURES[detail["architecture"]]
    arrays = read_layer(folder / SAE_FILE, **{name: len(shape) for name, shape in kind.list_shapes(1, 1).items()})
    for name, shape in kind.list_shapes(*arrays["W_dec"].shape).items():
        if arrays[name].shape != shape:
            raise BadInputError(
                f"{name} of the SAE has shape {list(arrays[name].shape)}, but W_dec requires {list(shape)}"
            )
        if not np.isfinite(arrays[name]).all():
            raise BadInputError(f"{name} of the SAE has NaN or infinite values")
    tensors = {name: torch.from_numpy(arrays[name].astype(np.float32)).to(device) for name in kind.names}
    settings = {name: detail[name] for name in (*kind.settings, *COMMON_SETTINGS) if name in detail}
    return kind(**tensors, **settings)


def select_sae_rows(inputs: Inputs, reference: str, expansion: int | None = None) -> list[tables.SaeRecord]:
    """Return the rows of one expansion of an SAE run, one per hook point; without `expansion`, of the only one.

    Raises NotFoundError for an expansion that the run lacks, and BadInputError if it has several and none is named.
    """
    rows: list[tables.SaeRecord] = inputs.rows(tables.SaeRecord, inputs.run(reference, "sae"))
    expansions = list(dict.fromkeys(row.detail.get("expansion") for row in rows))
    if expansion is None and len(expansions) > 1:
        raise BadInputError(
            f"this SAE run has the expansions {', '.join(map(str, expansions))}", "choose with --expansion"
        )
    if expansion is not None and expansion not in expansions:
        raise NotFoundError(f"this SAE run has no expansion {expansion}", f"it has {', '.join(map(str, expansions))}")
    return [row for row in rows if expansion in (None, row.detail.get("expansion"))]


def load_sae(
    inputs: Inputs,
    reference: str,
    layer: int | None = None,
    hook_point: str | None = None,
    expansion: int | None = None,
    device: str = "cpu",
) -> SparseAutoencoder:
    """Return an autoencoder of the SAE run `reference`. `layer` or `hook_point`, and `expansion`, may be None if the
    run has only one.

    Raises NotFoundError if the run has no such autoencoder, BadInputError if several match, and for a damaged file.
    """
    return read_sae(inputs, reference, choose_sae_row(inputs, reference, layer, hook_point, expansion), device)


def choose_sae_row(
    inputs: Inputs, reference: str, layer: int | None, hook_point: str | None, expansion: int | None
) -> tables.SaeRecord:
    """Return the row of the autoencoder that `load_sae` returns. Raises its errors."""
    rows = select_sae_rows(inputs, reference, expansion)
    fitting_rows = [row for row in rows if layer in (None, row.layer) and hook_point in (None, row.hook_point)]
    row_list = ", ".join(f"{row.hook_point} (layer {row.layer})" for row in rows)
    if not fitting_rows:
        wanted_text = hook_point if hook_point is not None else f"layer {layer}"
        raise NotFoundError(f"this SAE run has no SAE of {wanted_text}", f"it has {row_list}")
    if len(fitting_rows) > 1:
        raise BadInputError(
            f"this SAE run has {len(fitting_rows)} SAEs that match", f"choose a layer or hook point: {row_list}"
        )
    return fitting_rows[0]


def export_sae(
    inputs: Inputs,
    reference: str,
    folder: Path,
    layout: Layout = "saelens",
    layer: int | None = None,
    hook_point: str | None = None,
    expansion: int | None = None,
) -> Path:
    """Write the autoencoder that `load_sae` returns as a new folder of SAELens or dictionary_learning.

    The weights have the type of the file that they were imported from, else float32. Returns the folder. Raises the
    errors of `load_sae`, BadInputError if the folder exists or the layout does not have the architecture, and
    NotFoundError if the parent folder is missing.
    """
    from chessreg.models.sae_files import write_sae_folder

    row = choose_sae_row(inputs, reference, layer, hook_point, expansion)
    sae = read_sae(inputs, reference, row)
    imported_metadata = row.detail.get("settings", {}).get("metadata") if layout == row.detail.get("layout") else None
    with inputs.database.read() as session:
        checkpoint = session.get_one(tables.Checkpoint, row.checkpoint_id)
        name = names.read_name(session, "checkpoint", row.checkpoint_id) or row.checkpoint_id.hex[-6:]
    metadata = imported_metadata or {
        "hook_name": row.hook_point,
        "layer": row.layer,
        "model_name": name,
        "context_size": checkpoint.block_size,
        "prepend_bos": False,
        "chessreg_run": row.run_id.hex,
        "chessreg_unit": row.unit,
    }
    with write_new_folder(folder, "export the SAE") as temporary:
        write_sae_folder(sae, temporary, layout, metadata, row.detail.get("dtype", "float32"))
    return folder


def read_sae(inputs: Inputs, reference: str, row: tables.SaeRecord, device: str = "cpu") -> SparseAutoencoder:
    """Return the autoencoder behind a row of the table `sae`."""
    sae_file = inputs.locate_bytes(f"sae {row.hook_point}", reference, row.artifact, row.run_id)
    sae = read_stored_sae(sae_file.path, row.detail, device)
    if sae.d_model != row.detail["d_model"]:
        raise BadInputError(
            f"the SAE of {row.hook_point} has width {sae.d_model}, but its row has {row.detail['d_model']}"
        )
    return sae
