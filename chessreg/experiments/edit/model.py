"""A model with its probes, and the edits that a spec makes of them for given states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from chessreg.errors import BadInputError
from chessreg.experiments.edit import directions
from chessreg.experiments.edit.directions import Reading, measured, scale_rule
from chessreg.experiments.edit.spec import BLACK, BY_SIDE, WHITE, EditSpec, Setting, probed_layers, settings_of
from chessreg.experiments.edit.states import Removal
from chessreg.experiments.settings.interventions import with_id
from chessreg.games.labels import piece
from chessreg.models.edits import ResidualEdit, mask_named
from chessreg.models.hook_points import hook_point
from chessreg.models.language_model import LanguageModel
from chessreg.runs.fitted import FittedProbe, load_probe

if TYPE_CHECKING:
    from chessreg.models.decoding.session import DecodingSession
    from chessreg.models.gated_sae import GatedSae
    from chessreg.runs.inputs import Inputs


@dataclass(frozen=True)
class Condition:
    """One way to edit: a setting with the probe's own direction (`edit`), or with a control's in its place."""

    name: str
    setting: Setting
    source: str  # edit, random, shuffled, wrong-layer, sham, encode-decode; of next tokens also patch, other (probes)
    draw: int = 0


class EditedModel:
    """The model of an edit run, with the probes of every layer that it edits."""

    def __init__(
        self, spec: EditSpec, inputs: Inputs, device: str | torch.device, model: LanguageModel | None = None
    ) -> None:
        """`model` is the checkpoint's where that is in memory already."""
        self.spec = spec
        self.checkpoint, folder = inputs.checkpoint(spec.checkpoint)
        self.model = model or LanguageModel.load(folder, device=device)
        self.encoding = self.model.encoding
        self.settings = settings_of(spec, inputs)
        self.rule = scale_rule(spec.scale_rule)
        layers = sorted({layer for setting in self.settings for layer in setting.layers})

        def probes_of(reference: str) -> dict[int, FittedProbe]:
            return {layer: finite(load_probe(inputs, reference, layer + spec.probe_shift)) for layer in layers}

        self.probes = probes_of(spec.probe)
        self.others = [probes_of(reference) for reference in spec.other_probes]
        self.other_blacks = [probes_of(reference) for reference in spec.other_black_probes]
        self.reader = load_probe(inputs, spec.probe, max(probed_layers(spec.probe, inputs)))
        self.black: dict[int, FittedProbe] = {}
        if spec.black_probe is not None:
            self.black = probes_of(spec.black_probe)
        self.shuffled: dict[int, FittedProbe] = {}
        if spec.shuffled_probe is not None:
            self.shuffled = probes_of(spec.shuffled_probe)
        self.saes: dict[int, GatedSae] = {}
        if spec.sae is not None:
            from chessreg.experiments.sae.stored import load_sae

            on = str(self.model.device)
            for n in layers:
                self.saes[n] = load_sae(inputs, spec.sae, None, hook_point(n), spec.expansion, on)

    def conditions(self) -> list[Condition]:
        """Every edit, each with its controls behind it. A single edit has no number."""
        spec, conditions = self.spec, []
        for setting in self.settings:
            behind = "" if len(self.settings) == 1 else f"-{setting.number}"
            conditions.append(Condition(f"edit{behind}", setting, "edit"))
            for number in range(len(spec.other_probes)):
                conditions.append(Condition(f"other{number + 1}{behind}", setting, "other", number))
            if spec.patch != "none":
                conditions.append(Condition(f"patch{behind}", setting, "patch"))
            for source, draws in (("random", spec.controls), ("shuffled", spec.shuffled)):
                conditions += [
                    Condition(f"{source}-{setting.number * draws + draw}", setting, source, draw)
                    for draw in range(draws)
                ]
            more = {"wrong-layer": spec.wrong_layer, "sham": spec.sham, "encode-decode": spec.sae is not None}
            for source, wanted in more.items():
                conditions += [Condition(f"{source}-{setting.number}", setting, source)] if wanted else []
        return conditions

    def has_directions(self, removed: Removal) -> bool:
        """Whether every probe that is edited with has a direction for the piece on its square, and for another one
        where labels are permuted."""
        spec, square = self.spec, removed.square
        own = [probe.weight for probe in (*self.probes.values(), *self.black.values())]
        dealt = [probe.weight for probe in self.shuffled.values()]
        if spec.shuffled and not dealt and any(set(directions.known(w, square)) <= {removed.label} for w in own):
            return False
        labels = [label for label, share in ((removed.label, spec.piece), (directions.EMPTY, spec.blank)) if share]
        return all(weight[:, square, label].any() for weight in (*own, *dealt) for label in labels)

    def edits(
        self, setting: Setting, prompts: Sequence[Sequence[int]], removals: Sequence[Removal]
    ) -> list[ResidualEdit]:
        """The edits of a setting, one a layer, each with a direction and a scale for every state.

        With black probes two a layer: one at the tokens where White is to move, those that are written among them, and
        one where Black is (the author's branch both_probes; specification 6.2).
        """
        labels = [removed.label for removed in removals]
        made = []
        for layer in setting.layers:
            for mask in (WHITE, BLACK) if self.black else (self.spec.token_mask,):
                vectors = directions.piece(self.spec, self.probe(layer, mask).weight, removals, labels)
                made.append(self._edit(layer, vectors, mask))
        readings = [self.reading(layer, removals) if self.rule.target else None for layer in setting.layers]
        return measured(self.model, prompts, made, readings, self.rule, setting.value)

    def controls(
        self, condition: Condition, removals: Sequence[Removal], real: Sequence[ResidualEdit]
    ) -> list[ResidualEdit]:
        """A control's edits in place of the `real` ones: at the same layers, as long for every state."""
        if condition.source == "sham":
            return [replace(edit, scale=0.0) for edit in real]
        if condition.source == "encode-decode":
            return [replace(edit, scale=0.0, instead=self.saes[edit.layer].reconstruction) for edit in real]
        if condition.source == "wrong-layer":
            return [
                replace(edit, layer=self.away(edit.layer), reference=self.reference(self.away(edit.layer)))
                for edit in real
            ]
        made = []
        for edit in real:
            if condition.source == "shuffled" and self.shuffled:
                labels = [removed.label for removed in removals]
                vectors = directions.piece(self.spec, self.shuffled[edit.layer].weight, removals, labels)
            else:
                draw = directions.CONTROLS[condition.source]
                weight = self.probe(edit.layer, edit.token_mask).weight
                vectors = draw(self.spec, weight, edit.layer, removals, condition.draw)
            made.append(replace(self._edit(edit.layer, vectors, edit.token_mask), scale=edit.scale))
        return made

    def reference(self, layer: int) -> Callable[[Tensor], Tensor] | None:
        """What is made of the residual after a layer, whose norm the scale is a share of; None: it is a length."""
        return None if self.rule.reference is None else self.rule.reference(self.model.network, layer)

    def away(self, layer: int) -> int:
        """The layer that is half the model's depth away from this one."""
        return (layer + self.model.n_layers // 2) % self.model.n_layers

    def read(
        self, session: DecodingSession, prompts: Sequence[Sequence[int]], edits: Sequence[ResidualEdit] = ()
    ) -> np.ndarray:
        """Logits of the probe of the last layer that has one where each row's move begins, float32 [row, 64, 13].

        The session is that of the edits; no tree of it may be in use.
        """
        residuals = session.residuals([self.reader.layer])
        rows = [torch.tensor([row]) for row in range(len(prompts))]
        return np.concatenate([
            logits_of(residuals[:, row], self.model, prompt, [self.reader], [edit.take(at) for edit in edits])
            for row, (prompt, at) in enumerate(zip(prompts, rows, strict=True))
        ])  # fmt: skip

    def probe(self, layer: int, token_mask: str) -> FittedProbe:
        """The probe whose directions are subtracted at these tokens, in a layer."""
        return self.black[layer] if self.black and token_mask == BLACK else self.probes[layer]

    def reading(self, layer: int, removals: Sequence[Removal]) -> Reading:
        """What a target rule reads at a layer for these states."""
        probe = self.probes[layer]
        own, average = [], []
        for removed in removals:
            board = piece(values_of(removed))[0]
            of_class = probe.weight[:, :, removed.label]
            own.append(of_class[:, removed.square])
            average.append(of_class[:, board != removed.label].mean(1))
        centred = probe.centred and self.model.residual == "raw"
        return Reading(torch.from_numpy(np.stack(own)), torch.from_numpy(np.stack(average)), centred)

    def _edit(self, layer: int, vectors: np.ndarray, token_mask: str) -> ResidualEdit:
        on_device = torch.from_numpy(vectors).to(self.model.device)
        return ResidualEdit(layer, on_device, 1.0, token_mask, op="subtract", reference=self.reference(layer))


def finite(probe: FittedProbe) -> FittedProbe:
    """The probe. Raises BadInputError for weights that are NaN or infinite."""
    if not bool(np.isfinite(probe.weight).all()):
        raise BadInputError(f"the probe of layer {probe.layer} holds NaN or infinite weights", "fit it again")
    return probe


def logits_of(
    residuals: Tensor,
    model: LanguageModel,
    prompt: Sequence[int],
    probes: Sequence[FittedProbe],
    edits: Sequence[ResidualEdit],
) -> np.ndarray:
    """What probes read in the residuals [probes, d_model] of their layers at the last token, float32 [probes, 64, 13].

    The mean that edits themselves add stays in, as it does in TransformerLens (2.3 there).
    """
    tokens = np.array(prompt)
    here = [e for e in edits if mask_named(e.token_mask).of(tokens, model.encoding)[-1]]
    logits = []
    for probe, residual in zip(probes, residuals.float().cpu(), strict=True):
        if probe.centred and model.residual == "raw":
            own = [edit for edit in here if edit.layer <= probe.layer and edit.instead is None]
            added = sum(float(edit.delta(residual)[0, 0].mean()) for edit in own)
            residual = residual - (residual.mean() - added)
        logits.append(np.einsum("d,dsk->sk", residual.numpy(), probe.weight, optimize=True))
    return np.stack(logits)


def values_of(removed: Removal) -> np.ndarray:
    """The original board as occupant values int8 [1, 64], as games.labels takes them."""
    board = np.zeros((1, 64), np.int8)
    for square, occupant in removed.state.board.piece_map().items():
        board[0, square] = occupant.piece_type * (1 if occupant.color else -1)
    return board


PROTOCOL = ("measure", "protocol", "future", "future_unit", "patch", "random_draw", "class_mean", "phase",
            "probe_shift", "decay")  # fmt: skip


DERIVED = ("sae-latents", "sae-contrast", "means")  # sources of probes that are not fitted on residuals


def source_of(probe: FittedProbe) -> str:
    """What an intervention calls a probe's directions: `probe:piece`, or what they were made of, `sae-latent:piece`."""
    source = probe.detail.get("source")
    return f"{source if source in DERIVED else 'probe'}:{probe.label}"


def intervention_row(edited: EditedModel, condition: Condition) -> dict[str, Any]:
    """A row of the intervention table for a condition; its id derives from the rest."""
    spec, setting = edited.spec, condition.setting
    layers, scale = list(setting.layers), setting.value
    if condition.source == "wrong-layer":
        layers = sorted(map(edited.away, layers))
    elif condition.source in ("sham", "encode-decode"):
        scale = 0.0
    if condition.source == "encode-decode":
        from chessreg.experiments.sae.stored import output_name

        expansion = {layer: sae.features // sae.d_model for layer, sae in edited.saes.items()}
        names = [output_name(hook_point(layer), expansion[layer]) for layer in setting.layers]
        source, references = condition.source, [f"{spec.sae}/{name}" for name in names]
    elif condition.source in ("edit", "wrong-layer", "sham"):
        probe = edited.probes[setting.layers[0]] if condition.source == "edit" else None
        source = condition.source if probe is None else source_of(probe)
        references = [f"{spec.probe}/layer-{layer + spec.probe_shift}" for layer in setting.layers]
    elif condition.source == "other":
        source = source_of(edited.others[condition.draw][setting.layers[0]])
        references = [
            f"{spec.other_probes[condition.draw]}/layer-{layer + spec.probe_shift}" for layer in setting.layers
        ]
        if spec.other_black_probes:
            references.append(spec.other_black_probes[condition.draw])
    elif condition.source == "patch":
        later = spec.later or f"{spec.future}-{spec.future_unit}"
        source, references = "patch", [f"later:{later}", f"length:{spec.patch}"]
    elif condition.source == "shuffled" and spec.shuffled_probe is not None:
        source, references = "shuffled", [f"{spec.shuffled_probe}/layer-{layer}" for layer in setting.layers]
    else:
        source, references = condition.source, [f"seed:{spec.seed}/{condition.draw}"]
        if edited.rule.target is not None or condition.source == "shuffled":
            references.append(spec.probe)
    if spec.black_probe is not None and condition.source in ("edit", "wrong-layer", "sham"):
        references += [f"{spec.black_probe}/layer-{layer}" for layer in setting.layers]
    elif spec.black_probe is not None and condition.source == "shuffled" and spec.shuffled_probe is None:
        references.append(spec.black_probe)
    detail: dict[str, Any] = {"piece": spec.piece, "blank": spec.blank}
    if spec.measure == "next-token":
        detail |= {name: getattr(spec, name) for name in PROTOCOL}
    if spec.layers_label:
        detail["layers_label"] = spec.layers_label
    columns = {
        "checkpoint_id": edited.checkpoint.id.hex,
        "source": source,
        "input_references": references,
        "layers": layers,
        "scale": scale,
        "scale_rule": spec.scale_rule,
        "token_mask": spec.token_mask if spec.black_probe is None else BY_SIDE,
        "detail": detail,
    }
    return with_id(columns)
