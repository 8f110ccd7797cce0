"""How long an edit is: the scale that a rule gives for each state and layer.

Karvonen specification 6.2: let p be the probe's direction of the piece on its square, v the unit vector that is
subtracted, and a the residual at the site where the move begins, already edited at lower layers. Subtracting s v makes
the probe's logit a·p - s v·p, so the logit is T for s = (a·p - T) / (v·p). By Davis's equation 1 the value is a share
of a norm of the residual, at every token that is edited.
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
from chessreg.named import Registry

if TYPE_CHECKING:
    from chessreg.models.language_model import LanguageModel

MAX_PASS_TOKENS = 16_384  # the most positions in one measuring pass: bounds memory, not results

Target = Callable[[float, Tensor], Tensor]
"""(the spec's value, mean clean logit float32 [state] of squares without that piece) → target logits [state]."""

Reference = Callable[[Network, int], Callable[[Tensor], Tensor]]
"""(network, layer) → function of the residual after that layer; the value is a share of its norm."""


@dataclass(frozen=True)
class ScaleRule:
    """The meaning of a spec's scale: a target logit, or the scale itself, times the norm of the reference, if any."""

    target: Target | None = None
    reference: Reference | None = None


SCALE_RULES: Registry[ScaleRule] = Registry("scale rule")
SCALE_RULES |= {
    "single_scale": ScaleRule(),  # length of what is subtracted
    "single_target": ScaleRule(lambda value, mean: torch.full_like(mean, value)),  # logit of the piece
    "average_target": ScaleRule(lambda value, mean: mean + value),  # offset to the mean logit of other squares
    # Davis equation 1: a share of the residual's norm at the edited token, after a LayerNorm or as it is
    "ln-final": ScaleRule(reference=lambda network, layer: network.norm().forward),
    "ln-next": ScaleRule(reference=lambda network, layer: network.norm(layer).forward),
    "residual-norm": ScaleRule(reference=lambda network, layer: lambda residual: residual),
}


@dataclass(frozen=True)
class RuleReading:
    """Inputs of a rule at one layer: the probe's directions of the pieces, and the mean logits that it may aim at.

    probe float32 [state, d_model], average float32 [state, d_model]: the mean of that class's directions over the
    squares that do not hold the piece. Logits are linear, so the residual's product with it is their mean logit.
    centred: the probe reads residuals without their mean over d_model, and the model's have one (2.3 there).
    """

    probe: Tensor
    average: Tensor
    centred: bool

    def residual(self, residual: Tensor, added: Tensor) -> Tensor:
        """The residual [state, d_model] as the probe is to see it; `added` [state]: mean of what edits put in.

        TransformerLens does not take the mean of an added vector out again, so neither do we.
        """
        if not self.centred:
            return residual
        return residual - (residual.mean(-1) - added)[:, None]


def solve_target_scale(residual: Tensor, probe: Tensor, direction: Tensor, target: Tensor) -> Tensor:
    """s [state] such that (residual - s · direction) · probe = target; all vectors [state, d_model].

    Raises ChessregError where the direction does not move that logit.
    """
    moved = (direction * probe).sum(-1)
    if bool((moved.abs() < 1e-6 * probe.norm(dim=-1)).any()):
        raise ChessregError(
            "the subtracted direction does not change the piece's logit", "use --scale-rule single_scale"
        )
    return ((residual * probe).sum(-1) - target) / moved


@torch.inference_mode()
def apply_scale_rule(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    edits: Sequence[ResidualEdit],
    readings: Sequence[RuleReading | None],
    rule: ScaleRule,
    value: float,
) -> list[ResidualEdit]:
    """Return the edits, one a layer in rising order and with a direction for each prompt, with the rule's scales.

    A rule without a target reads nothing: its readings may be None. The scale is found where the move begins (the
    prompt's last position) and kept for the characters that follow.
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
        last = (lengths - 1)[:, None]
        layers = [edit.layer for edit in edits]
        clean = model.residuals(tokens, layers, last)[:, :, 0].float().cpu()
        done: list[ResidualEdit] = []
        added = torch.zeros(len(group))  # mean over d_model of the edits so far at the last position
        for number, (edit, reading) in enumerate(zip(edits, readings, strict=True)):
            assert reading is not None
            own = edit.take(rows)
            at = clean[number]
            if done:
                seen = model.residuals(tokens, [edit.layer], last, edits=done, lengths=lengths)
                at = seen[0, :, 0].float().cpu()
            mean = (reading.residual(clean[number], torch.zeros(len(group))) * reading.average[rows]).sum(-1)
            direction = own.vector.float().cpu()
            target = rule.target(value, mean)
            scale = solve_target_scale(reading.residual(at, added), reading.probe[rows], direction, target)
            scales[number][rows] = scale
            done.append(replace(own, scale=scale.to(model.device)))
            added = added - scale * direction.mean(-1)
    return [replace(edit, scale=scale.to(model.device)) for edit, scale in zip(edits, scales, strict=True)]
