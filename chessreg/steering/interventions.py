"""Interventions on the residual stream as a setting of kinds: the directions of a vector run, a scale and a control.

Karvonen 2024, section 4.3: `scale` times a direction is added after the chosen blocks, at every token. Directions are
stored as per-token means. The author's coefficient 0.1 on sums over eight positions is therefore scale 0.8 in chessreg
(caa.py of his code).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from uuid import UUID

import numpy as np
from pydantic import Field, field_validator, model_validator

from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.hook_points import check_editable
from chessreg.registry.identity import hash_canonical_json, make_uuid
from chessreg.runs.fitted import load_vector, read_vector_rows
from chessreg.runs.spec import Layers, Ref, Settings
from chessreg.steering.controls import CONTROLS

if TYPE_CHECKING:
    from chessreg.models.edits import ResidualEdit
    from chessreg.registry import tables
    from chessreg.runs.inputs import Inputs

SCALE_RULE = "times-mean"  # the vector is a per-token mean difference: it is multiplied, never normalized


class InterventionSettings(Settings):
    """The directions to add, and where to add them. Without a vector the model is not edited."""

    vector: Annotated[str | None, Ref("run:vector")] = Field(
        default=None, description="vector run to add. Left out: no intervention"
    )
    layers: Layers = Field(default=(), description="layers to edit, 0-based. Left out: all layers of the vector run")
    scale: float = Field(
        default=1.0,
        description="factor on the vector as stored, a mean per token for contrastive ones; positive adds, negative "
        "subtracts",
    )
    token_mask: Literal["all", "last"] = Field(default="all", description="tokens to edit: all, or only the newest")
    control: str = Field(
        default="none", description="random: add a random direction of the same norm instead. Left out: the vector"
    )
    control_seed: int = Field(default=0, description="seed of the control's directions")
    form: Literal["hook", "mlp-bias"] = Field(
        default="hook",
        description="hook after the block, or bias of its last matrix as in chess_gpt_eval; both give the same results",
    )
    layers_label: str = Field(
        default="",
        description="a paper's name for these layers, such as 11-15, shown next to them. Left out: the numbers only",
    )

    @field_validator("layers")
    @classmethod
    def _sort_layers(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(layers)))

    @field_validator("control")
    @classmethod
    def _check_control(cls, control: str) -> str:
        CONTROLS[control]  # raises NotFoundError
        return control

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        """Refuse settings without effect, because two specs of the same experiment must not differ."""
        fields = type(self).model_fields
        changed_fields = [name for name, field in fields.items() if getattr(self, name) != field.default]
        if self.vector is None and changed_fields:
            raise BadInputError(
                f"intervention.{changed_fields[0]} is set, but --intervention.vector is missing",
                "give --intervention.vector RUN",
            )
        if self.vector is not None and self.scale == 0:
            raise BadInputError(
                "--intervention.scale 0 changes nothing", "leave out --intervention.vector, or give another scale"
            )
        if self.control == "none" and self.control_seed:
            raise BadInputError("intervention.control_seed is set, but the control none draws nothing", "")
        if self.form == "mlp-bias" and self.token_mask != "all":
            raise BadInputError(
                "--intervention.form mlp-bias edits every token",
                "--intervention.token-mask all, or --intervention.form hook",
            )
        return self

    def without_effect(self) -> dict[str, str]:
        """Return setting → reason for settings without an effect: all if no vector is given, or the seed if no control
        is."""
        if self.vector is None:
            return dict.fromkeys((name for name in type(self).model_fields if name != "vector"), "there is no vector")
        return {"control_seed": "the control none draws nothing"} if self.control == "none" else {}

    @property
    def active(self) -> bool:
        """Whether the settings name a vector, so that the model is edited."""
        return self.vector is not None


# -- from settings to directions, edits and the registry's row -------------------------------------------------------


@dataclass(frozen=True)
class LoadedIntervention:
    """The directions of an intervention after its control was applied: layer → float32 [d_model]."""

    settings: InterventionSettings
    directions: dict[int, np.ndarray]
    row: dict[str, Any]  # of the table `intervention`

    @property
    def id(self) -> UUID:
        """The id of the row of `intervention`."""
        run_id: UUID = self.row["id"]
        return run_id

    def build_edits(self, device: str = "cpu") -> list[ResidualEdit]:
        """Return one residual edit per layer, for a model or a decoding session on `device`."""
        import torch

        from chessreg.models.edits import ResidualEdit

        edits = []
        for layer, direction in self.directions.items():
            vector = torch.from_numpy(direction).to(device)
            settings = self.settings
            edits.append(ResidualEdit(layer, vector, settings.scale, settings.token_mask, "add", settings.form))
        return edits


def load_intervention(
    settings: InterventionSettings, checkpoint: tables.Checkpoint, inputs: Inputs
) -> LoadedIntervention | None:
    """Return the intervention of these settings on a checkpoint, or None if the settings have no vector.

    Raises NotFoundError for a layer that the vector run does not have. Raises BadInputError if the vector run belongs
    to another checkpoint or is incomplete.
    """
    if settings.vector is None:
        return None
    rows = select_vector_rows(settings, checkpoint, inputs)
    directions = {}
    for layer in rows:
        real = load_vector(inputs, settings.vector, layer)
        directions[layer] = CONTROLS[settings.control](real, layer, settings.control_seed)
    columns = {
        "checkpoint_id": checkpoint.id,
        "source": next(iter(rows.values())).source if settings.control == "none" else settings.control,
        "input_references": [settings.vector],
        "layers": list(rows),
        "scale": settings.scale,
        "scale_rule": SCALE_RULE,
        "token_mask": settings.token_mask,
        "detail": {name: getattr(settings, name) for name in ("control", "control_seed", "form", "layers_label")},
    }
    return LoadedIntervention(settings, directions, add_row_id(columns))


def add_row_id(columns: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table `intervention` with its `id`, which is a hash of all other columns."""
    return {"id": make_uuid(hash_canonical_json(columns)), **columns}


def read_intervention_settings(row: tables.Intervention) -> InterventionSettings:
    """Return the settings of a recorded intervention.

    Raises BadInputError for an edit of pieces, whose directions differ from position to position.
    """
    if row.scale_rule != SCALE_RULE or len(row.input_references) != 1:
        raise BadInputError(
            f"intervention {row.id.hex[-6:]} ({row.source}) edits pieces of single positions",
            "give the intervention of a match, or a vector run",
        )
    control = {name: row.detail[name] for name in ("control", "control_seed", "form")}
    return InterventionSettings(
        vector=row.input_references[0], layers=tuple(row.layers), scale=row.scale, token_mask=row.token_mask, **control
    )


def select_vector_rows(
    settings: InterventionSettings, checkpoint: tables.Checkpoint, inputs: Inputs
) -> dict[int, tables.VectorRecord]:
    """Return the rows of the vector run that the settings use, by layer.

    Checks everything that can be checked without reading a file. Raises NotFoundError for a layer that the run does not
    have, and BadInputError for vectors of another checkpoint or of a hook point that cannot be edited.
    """
    assert settings.vector is not None
    run = inputs.run(settings.vector, "vector")
    by_layer = read_vector_rows(inputs, settings.vector)
    if missing_layers := [layer for layer in settings.layers if layer not in by_layer]:
        layer_list = ", ".join(map(str, sorted(by_layer)))
        raise NotFoundError(
            f"vector run {run.id.hex[-6:]} has no layer {missing_layers[0]}", f"its layers are {layer_list}"
        )
    if any(row.checkpoint_id != checkpoint.id for row in by_layer.values()):
        raise BadInputError(
            f"vector run {run.id.hex[-6:]} was computed on another checkpoint",
            "run the vector experiment on the checkpoint that plays",
        )
    check_editable(f"vector run {run.id.hex[-6:]}", next(iter(by_layer.values())).hook_point)
    return {layer: by_layer[layer] for layer in settings.layers or sorted(by_layer)}
