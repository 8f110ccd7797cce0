"""A model with its probes, and the edits that a spec makes with them for given states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

import chess
import numpy as np
import torch
from torch import Tensor

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.edit.spec import (
    BLACK_SEGMENTS,
    BY_SIDE,
    CLEAN,
    WHITE_SEGMENTS,
    EditSettings,
    EditSpec,
    list_edit_settings,
    list_probed_layers,
)
from chessreg.experiments.edit.states import Removal
from chessreg.models.edits import ResidualEdit, get_token_mask
from chessreg.models.hook_points import format_hook_point
from chessreg.models.language_model import LanguageModel
from chessreg.named import clip_text
from chessreg.runs.fitted import FittedProbe, load_probe
from chessreg.steering import controls
from chessreg.steering.conditions import EditCondition, list_conditions
from chessreg.steering.controls import ENCODE_DECODE, RANDOM, SHAM, SHUFFLED, WRONG_LAYER
from chessreg.steering.directions import EMPTY, classify_piece, compute_piece_directions, find_known_pieces
from chessreg.steering.interventions import add_row_id
from chessreg.steering.scale_rules import SCALE_RULES, RuleReading, apply_scale_rule

if TYPE_CHECKING:
    from chessreg.models.decoding.session import DecodingSession
    from chessreg.models.sparse_autoencoders import SparseAutoencoder
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

S = TypeVar("S", bound=EditSettings)


class EditedModel(Generic[S]):
    """The model of an edit run, with the probes of every layer that it edits."""

    def __init__(self, spec: S, inputs: Inputs, device: str | torch.device, model: LanguageModel | None = None) -> None:
        """`model` is the loaded checkpoint, if it is already in memory."""
        self.spec, self.inputs = spec, inputs
        self.checkpoint, folder = inputs.checkpoint(spec.checkpoint)
        self.model = model or LanguageModel.load(folder, device=device)
        self.encoding = self.model.encoding
        self.settings = list_edit_settings(spec, inputs)
        self.rule = SCALE_RULES[spec.scale_rule]
        self.probes = self.load_probes(spec.probe)
        self.black = self.load_probes(spec.black_probe)
        self.shuffled_probes = self.load_probes(spec.shuffled_probe)

    @property
    def layers(self) -> list[int]:
        """The layers that any setting edits, ascending."""
        return sorted({layer for setting in self.settings for layer in setting.layers})

    def load_probes(self, reference: str | None) -> dict[int, FittedProbe]:
        """Return the probes of a run by the layer that they edit; empty without a reference."""
        if reference is None:
            return {}
        return {
            layer: check_finite(load_probe(self.inputs, *self.spec.probe_at(reference, layer))) for layer in self.layers
        }

    # -- conditions -------------------------------------------------------------------------------------------------

    def list_conditions(self) -> list[EditCondition]:
        """Return every edit, each followed by its controls. A single edit has no number in its name."""
        return list_conditions(self.settings, self.spec.other_directions, self.spec.control_draws)

    def find_condition(self, name: str | None) -> EditCondition:
        """Return the condition of this name; without a name the first edit. Raises NotFoundError for an unknown
        name."""
        conditions = {condition.name: condition for condition in self.list_conditions()}
        condition_name = name or next(iter(conditions))
        if condition_name not in conditions:
            raise NotFoundError(
                f"this edit has no condition {clip_text(condition_name)!r}",
                f"its conditions are {', '.join(conditions)}",
            )
        return conditions[condition_name]

    def find_edited_layers(self, condition: EditCondition) -> tuple[int, ...]:
        """Return the layers that a condition edits, ascending."""
        layers = condition.setting.layers
        return tuple(sorted(map(self.find_wrong_layer, layers))) if condition.source == WRONG_LAYER else layers

    def find_wrong_layer(self, layer: int) -> int:
        """Return the layer of the wrong-layer control, half the model's depth away."""
        return controls.find_wrong_layer(layer, self.model.n_layers)

    def get_norm_reference(self, layer: int) -> Callable[[Tensor], Tensor] | None:
        """Return the function of the residual whose norm the scale is a share of; None if the scale is a length."""
        return None if self.rule.reference is None else self.rule.reference(self.model.network, layer)

    # -- interventions ----------------------------------------------------------------------------------------------

    def record(self, task: Task[Any, Any]) -> dict[str, UUID | None]:
        """Record the intervention of every condition. Return condition → its id, None for the clean model."""
        interventions: dict[str, UUID | None] = {CLEAN: None}
        for condition in self.list_conditions():
            row = self.build_intervention_row(condition)
            task.record("intervention", **row)
            interventions[condition.name] = row["id"]
        return interventions

    def build_intervention_row(self, condition: EditCondition) -> dict[str, Any]:
        """Return a condition's row of the intervention table. The id derives from the other columns."""
        spec = self.spec
        source, references = self.describe_origin(condition)
        label = {"layers_label": spec.layers_label} if spec.layers_label else {}
        return add_row_id(
            {
                "checkpoint_id": self.checkpoint.id.hex,
                "source": source,
                "input_references": references,
                "layers": list(self.find_edited_layers(condition)),
                "scale": 0.0 if condition.source in (SHAM, ENCODE_DECODE) else condition.setting.value,
                "scale_rule": spec.scale_rule,
                "token_mask": spec.token_mask if spec.black_probe is None else BY_SIDE,
                "detail": {"piece": spec.piece, "blank": spec.blank, **self.list_further_settings(), **label},
            }
        )

    def list_further_settings(self) -> dict[str, Any]:
        """Return further settings that identify an intervention."""
        return {}

    def describe_origin(self, condition: EditCondition) -> tuple[str, list[str]]:
        """Return the source of a condition's directions, and the references that they come from."""
        spec, source, layers = self.spec, condition.source, condition.setting.layers
        black = [] if spec.black_probe is None else [spec.black_probe]
        if source in (RANDOM, SHUFFLED) and not (source == SHUFFLED and spec.shuffled_probe):
            origin_texts = [f"seed:{spec.seed}/{condition.draw}"]
            origin_texts += [spec.probe] if source == SHUFFLED or self.rule.target is not None else []
            return source, origin_texts + (black if source == SHUFFLED else [])
        if source == SHUFFLED:
            return source, [f"{spec.shuffled_probe}/layer-{layer}" for layer in layers]
        references = ["{}/layer-{}".format(*spec.probe_at(spec.probe, layer)) for layer in layers]
        references += [f"{reference}/layer-{layer}" for reference in black for layer in layers]
        return name_direction_source(self.probes[layers[0]]) if source == "edit" else source, references


class PieceRemovals(EditedModel[EditSpec]):
    """Edits that remove the piece about to move, of a model that then writes whole moves."""

    @cached_property
    def reader(self) -> FittedProbe:
        """The probe of the last probed layer."""
        return load_probe(self.inputs, self.spec.probe, max(list_probed_layers(self.spec.probe, self.inputs)))

    @cached_property
    def saes(self) -> dict[int, SparseAutoencoder]:
        """The SAEs of the encode-decode control, by layer."""
        from chessreg.experiments.sae.stored import load_sae

        on, reference, expansion = str(self.model.device), str(self.spec.sae), self.spec.expansion
        return {n: load_sae(self.inputs, reference, None, format_hook_point(n), expansion, on) for n in self.layers}

    def describe_origin(self, condition: EditCondition) -> tuple[str, list[str]]:
        if condition.source == ENCODE_DECODE:
            from chessreg.experiments.sae.stored import build_output_name

            saes = [(layer, self.saes[layer]) for layer in condition.setting.layers]
            names = [build_output_name(format_hook_point(layer), sae.features, sae.d_model) for layer, sae in saes]
            return condition.source, [f"{self.spec.sae}/{name}" for name in names]
        return super().describe_origin(condition)

    def has_directions(self, removal: Removal) -> bool:
        """Return whether every probe has the directions that the edit of this state needs.

        Each probe needs one for the piece on its square. With permuted labels it also needs one for another piece.
        """
        spec, square = self.spec, removal.square
        probe_weights = [probe.weight for probe in (*self.probes.values(), *self.black.values())]
        shuffled_weights = [probe.weight for probe in self.shuffled_probes.values()]
        drawn_weights = probe_weights if spec.shuffled_label_controls and not shuffled_weights else []
        if any(set(find_known_pieces(weight, square)) <= {removal.label} for weight in drawn_weights):
            return False
        labels = [label for label, share in ((removal.label, spec.piece), (EMPTY, spec.blank)) if share]
        return all(weight[:, square, label].any() for weight in (*probe_weights, *shuffled_weights) for label in labels)

    def build_edits(
        self,
        condition: EditCondition,
        prompts: Sequence[Sequence[int]],
        removals: Sequence[Removal],
        real: Sequence[ResidualEdit] | None = None,
    ) -> list[ResidualEdit]:
        """Return a condition's edits, one per layer, each with a direction and a scale for every state.

        With black probes there are two edits per layer: one at the tokens where White is to move, including the tokens
        of a move, and one where Black is to move (the author's branch both_probes). A control's edits have the layers
        of its setting's edits, and their length in every state. `real` are these edits, if they were computed before.
        """
        setting, source = condition.setting, condition.source
        if source != "edit" and real is None:
            real = self.build_edits(replace(condition, source="edit"), prompts, removals)
        if real is None:
            masks = (WHITE_SEGMENTS, BLACK_SEGMENTS) if self.black else (self.spec.token_mask,)
            edits = [self.edit(condition, layer, removals, mask) for layer in setting.layers for mask in masks]
            readings = [
                self.read_rule_inputs(layer, removals) if self.rule.target else None for layer in setting.layers
            ]
            return apply_scale_rule(self.model, prompts, edits, readings, self.rule, setting.value)
        if source == SHAM:
            return [replace(edit, scale=0.0) for edit in real]
        if source == ENCODE_DECODE:
            return [replace(edit, scale=0.0, instead=self.saes[edit.layer].reconstruction) for edit in real]
        if source == WRONG_LAYER:
            moved_edits = [(edit, self.find_wrong_layer(edit.layer)) for edit in real]
            return [replace(edit, layer=layer, reference=self.get_norm_reference(layer)) for edit, layer in moved_edits]
        random_edits = [self.edit(condition, edit.layer, removals, edit.token_mask) for edit in real]
        return [replace(random_edit, scale=edit.scale) for random_edit, edit in zip(random_edits, real, strict=True)]

    def edit(self, condition: EditCondition, layer: int, removals: Sequence[Removal], token_mask: str) -> ResidualEdit:
        """Return the unscaled edit of a layer with a condition's directions at these tokens."""
        vectors = self.compute_vectors(condition, layer, removals, token_mask)
        on_device = torch.from_numpy(vectors).to(self.model.device)
        return ResidualEdit(layer, on_device, 1.0, token_mask, op="subtract", reference=self.get_norm_reference(layer))

    def compute_vectors(
        self, condition: EditCondition, layer: int, removals: Sequence[Removal], token_mask: str
    ) -> np.ndarray:
        """Return the directions that a condition subtracts at a layer, before scaling: unit vectors float32 [removals,
        d_model]. `token_mask` selects the probe for the tokens to edit."""
        spec, draw = self.spec, condition.draw
        weight = self.probe(layer, token_mask).weight
        if condition.source == RANDOM:
            units = [removal.state.unit for removal in removals]
            return controls.draw_random_directions(spec.seed, draw, layer, units, len(weight))
        labels = [removal.label for removal in removals]
        if condition.source == SHUFFLED and self.shuffled_probes:
            weight = self.shuffled_probes[layer].weight
        elif condition.source == SHUFFLED:
            labels = [self.choose_shuffled_label(weight, removal, draw) for removal in removals]
        squares = [removal.square for removal in removals]
        return compute_piece_directions(weight, squares, labels, spec.piece, spec.blank)

    def choose_shuffled_label(self, weight: np.ndarray, removal: Removal, draw: int) -> int:
        """Return another piece for which the probe has a direction on the square, drawn for the state."""
        changes = [(removal.square, removal.label, EMPTY)]
        [(_, label, _)] = controls.shuffle_pieces(
            self.spec.seed, draw, removal.state.unit, changes, lambda square: find_known_pieces(weight, square)
        )
        return label

    def read(
        self, session: DecodingSession, prompts: Sequence[Sequence[int]], edits: Sequence[ResidualEdit] = ()
    ) -> np.ndarray:
        """Return the logits of the last layer's probe where each row's move begins, float32 [row, 64, 13].

        `session` runs with `edits`. No token tree of it may be in use.
        """
        residuals = session.residuals([self.reader.layer])
        rows = [torch.tensor([row]) for row in range(len(prompts))]
        logits = []
        for row, (prompt, at) in enumerate(zip(prompts, rows, strict=True)):
            row_edits = [edit.take(at) for edit in edits]
            logits.append(compute_square_logits(residuals[:, row], self.model, prompt, [self.reader], row_edits))
        return np.concatenate(logits)

    def probe(self, layer: int, token_mask: str) -> FittedProbe:
        """Return the probe whose directions are subtracted at these tokens of a layer."""
        return self.black[layer] if self.black and token_mask == BLACK_SEGMENTS else self.probes[layer]

    def read_rule_inputs(self, layer: int, removals: Sequence[Removal]) -> RuleReading:
        """Return the inputs of a target rule at a layer for these states."""
        probe = self.probes[layer]
        own_rows, average = [], []
        for removal in removals:
            board = np.array([classify_piece(removal.state.board.piece_at(square)) for square in chess.SQUARES])
            class_weights = probe.weight[:, :, removal.label]
            own_rows.append(class_weights[:, removal.square])
            average.append(class_weights[:, board != removal.label].mean(1))
        is_centred = probe.centred and self.model.residual == "raw"
        return RuleReading(torch.from_numpy(np.stack(own_rows)), torch.from_numpy(np.stack(average)), is_centred)


def check_finite(probe: FittedProbe) -> FittedProbe:
    """Return the probe. Raises BadInputError for weights that are NaN or infinite."""
    if not bool(np.isfinite(probe.weight).all()):
        raise BadInputError(f"the probe of layer {probe.layer} has NaN or infinite weights", "fit it again")
    return probe


def compute_square_logits(
    residuals: Tensor,
    model: LanguageModel,
    prompt: Sequence[int],
    probes: Sequence[FittedProbe],
    edits: Sequence[ResidualEdit],
) -> np.ndarray:
    """Return the logits of probes at the last token, float32 [probes, 64, 13].

    `residuals` float [probes, d_model] come from the probes' layers. For centred probes the mean that the edits
    themselves add is not removed, as in TransformerLens.
    """
    tokens = np.array(prompt)
    site_edits = [e for e in edits if get_token_mask(e.token_mask).compute(tokens, model.encoding)[-1]]
    logits = []
    for probe, residual in zip(probes, residuals.float().cpu(), strict=True):
        if probe.centred and model.residual == "raw":
            earlier_edits = [edit for edit in site_edits if edit.layer <= probe.layer and edit.instead is None]
            edit_shift = sum(float(edit.delta(residual)[0, 0].mean()) for edit in earlier_edits)
            residual = residual - (residual.mean() - edit_shift)
        logits.append(probe.reader()(residual[None])[0].numpy())
    return np.stack(logits)


DERIVED_SOURCES = ("sae-latents", "sae-contrast", "means")  # sources of probes that are not fitted on residuals


def name_direction_source(probe: FittedProbe) -> str:
    """Return the name of a probe's directions as a source: `probe:piece`, or with another origin
    `sae-latents:piece`."""
    source = probe.detail.get("source")
    return f"{source if source in DERIVED_SOURCES else 'probe'}:{probe.label}"
