"""Scale rules: the length of an edit for each state and layer.

Karvonen 2024, section 4.2 and Appendix D. Let p be the probe's direction of the piece on its square, v the unit vector
that is subtracted, and a the residual at the site where the move begins, with the edits of lower layers. Subtracting s
v changes the probe's logit to a·p - s v·p. The logit is T for s = (a·p - T) / (v·p). In Davis's equation 1 the value is
a share of a norm of the residual, at every edited token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chessreg.errors import ChessregError
from chessreg.models.adapters.base import Network
from chessreg.models.decoding.session import group_by_length
from chessreg.models.edits import ResidualEdit
from chessreg.named import NameRegistry

if TYPE_CHECKING:
    from chessreg.models.language_model import LanguageModel

MAX_PASS_TOKENS = 16_384  # bounds the memory of a measuring pass; does not change results

Target = Callable[[float, Tensor], Tensor]
"""(the spec's value, mean clean logit float32 [state] over squares without that piece) → target logits [state]."""

Reference = Callable[[Network, int], Callable[[Tensor], Tensor]]
"""(network, layer) → function of the residual after that layer. The scale is a share of the norm of its result."""


@dataclass(frozen=True)
class ScaleRule:
    """The meaning of a spec's scale.

    With `target`, the scale determines a target logit; otherwise it is a length. With `reference`, the length is a
    share of the norm of the reference.
    """

    target: Target | None = None
    reference: Reference | None = None


SCALE_RULES: NameRegistry[ScaleRule] = NameRegistry("scale rule")
SCALE_RULES |= {
    "single_scale": ScaleRule(),  # length of the subtracted vector
    "single_target": ScaleRule(lambda value, mean: torch.full_like(mean, value)),  # logit of the piece
    "average_target": ScaleRule(lambda value, mean: mean + value),  # offset to the mean logit of other squares
    # Davis equation 1: a share of the residual's norm at the edited token, after a LayerNorm or without one
    "ln-final": ScaleRule(reference=lambda network, layer: network.norm().forward),
    "ln-next": ScaleRule(reference=lambda network, layer: network.norm(layer).forward),
    "residual-norm": ScaleRule(reference=lambda network, layer: lambda residual: residual),
}


@dataclass(frozen=True)
class RuleReading:
    """Inputs of a rule at one layer.

    probe float32 [state, d_model]: the probe's directions of the pieces. average float32 [state, d_model]: the mean of
    the class's directions over the squares that do not hold the piece. Logits are linear, so the product with the
    residual is the mean logit of these squares. centred: the probe reads residuals without their mean over d_model, and
    the model's residuals have one.
    """

    probe: Tensor
    average: Tensor
    is_centred: bool

    def residual(self, residual: Tensor, edit_mean: Tensor) -> Tensor:
        """Return the residual [state, d_model] in the form that the probe reads.

        `edit_mean` float [state] is the mean over d_model of the earlier edits. It is not removed, because
        TransformerLens does not remove it.
        """
        if not self.is_centred:
            return residual
        return residual - (residual.mean(-1) - edit_mean)[:, None]


def solve_target_scale(residual: Tensor, probe: Tensor, direction: Tensor, target: Tensor) -> Tensor:
    """Return s [state] such that (residual - s · direction) · probe = target; all vectors are [state, d_model].

    Raises ChessregError where the direction does not change that logit.
    """
    projection = (direction * probe).sum(-1)
    if bool((projection.abs() < 1e-6 * probe.norm(dim=-1)).any()):
        raise ChessregError(
            "the subtracted direction does not change the piece's logit", "use --scale-rule single_scale"
        )
    return ((residual * probe).sum(-1) - target) / projection


@torch.inference_mode()
def apply_scale_rule(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    edits: Sequence[ResidualEdit],
    readings: Sequence[RuleReading | None],
    rule: ScaleRule,
    value: float,
) -> list[ResidualEdit]:
    """Return the edits with the scales of a rule. `value` is the spec's scale, which the rule reads as a length or as a
    logit.

    `prompts` are token ids. `edits` has one edit per layer in ascending order, with a direction per prompt, and
    `readings` the probe of each. A rule without a target needs no readings, which may then be `None`. The scale is
    computed at the last position of the prompt, where the move begins, and kept for the characters that follow.
    """
    if rule.target is None:
        return [replace(edit, scale=value) for edit in edits]
    scales = [torch.zeros(len(prompts)) for _ in edits]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for group in group_by_length(order, [len(prompts[i]) for i in order], MAX_PASS_TOKENS):
        rows = torch.tensor(group)
        lengths = torch.tensor([len(prompts[i]) for i in group])
        tokens = torch.zeros(len(group), int(lengths.max()), dtype=torch.int64)
        for row, i in enumerate(group):
            tokens[row, : len(prompts[i])] = torch.tensor(prompts[i])
        last_tokens = (lengths - 1)[:, None]
        layers = [edit.layer for edit in edits]
        clean = model.residuals(tokens, layers, last_tokens)[:, :, 0].float().cpu()
        scaled_edits: list[ResidualEdit] = []
        edit_mean = torch.zeros(len(group))  # mean over d_model of the edits so far, at the last position
        for number, (edit, reading) in enumerate(zip(edits, readings, strict=True)):
            assert reading is not None
            row_edit = edit.take(rows)
            at = clean[number]
            if scaled_edits:
                residuals = model.residuals(tokens, [edit.layer], last_tokens, edits=scaled_edits, lengths=lengths)
                at = residuals[0, :, 0].float().cpu()
            mean = (reading.residual(clean[number], torch.zeros(len(group))) * reading.average[rows]).sum(-1)
            direction = row_edit.vector.float().cpu()
            target = rule.target(value, mean)
            scale = solve_target_scale(reading.residual(at, edit_mean), reading.probe[rows], direction, target)
            scales[number][rows] = scale
            scaled_edits.append(replace(row_edit, scale=scale.to(model.device)))
            edit_mean = edit_mean - scale * direction.mean(-1)
    return [replace(edit, scale=scale.to(model.device)) for edit, scale in zip(edits, scales, strict=True)]
