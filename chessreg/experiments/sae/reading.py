"""Autoencoders that a run has made, read back and checked against what they are to be used on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.sae.gated import GatedSae
from chessreg.registry import tables

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs


def sae_rows(inputs: Inputs, reference: str) -> list[tables.Sae]:
    """The rows of an SAE run, one a hook point."""
    return inputs.rows(tables.Sae, inputs.run(reference, "sae"))


def load_sae(
    inputs: Inputs, reference: str, layer: int | None = None, hook_point: str | None = None, device: str = "cpu"
) -> GatedSae:
    """The autoencoder of one layer, or hook point, of an SAE run; of the only one, where neither is named.

    Raises NotFoundError for one that the run lacks, BadInputError where several are meant, and for a damaged file.
    """
    rows = sae_rows(inputs, reference)
    fitting = [row for row in rows if layer in (None, row.layer) and hook_point in (None, row.hook_point)]
    there = ", ".join(f"{row.hook_point} (layer {row.layer})" for row in rows)
    if not fitting:
        wanted = hook_point if hook_point is not None else f"layer {layer}"
        raise NotFoundError(f"that SAE run has none of {wanted}", f"it has {there}")
    if len(fitting) > 1:
        raise BadInputError(f"that SAE run has {len(fitting)} that fit", f"say which layer or hook point: {there}")
    return read_sae(inputs, reference, fitting[0], device)


def read_sae(inputs: Inputs, reference: str, row: tables.Sae, device: str = "cpu") -> GatedSae:
    """The autoencoder behind a row of the table `sae`."""
    located = inputs.located(f"sae {row.hook_point}", reference, row.artefact, row.run_id)
    sae = GatedSae.load(located.path, float(row.detail["scale"]), device)
    if sae.d_model != row.detail["d_model"]:
        raise BadInputError(f"the SAE of {row.hook_point} is {sae.d_model} wide, its row says {row.detail['d_model']}")
    return sae
