"""What is subtracted, and how long: the probe's direction for the piece on its square or a control in its place, and
the scale that a rule gives for each state and layer.

Directions are unit vectors float32 [state, d_model], one for each removal, for one layer. Scales: Karvonen
specification 6.2. With p the probe's direction of the piece on its square, v the unit vector that is subtracted and a
the residual at the site where the move begins, already edited at lower layers: subtracting s v makes the probe's logit
a·p - s v·p, so the logit is T for s = (a·p - T) / (v·p). By Davis's equation 1 the value is a share of a norm of the
residual, at every token that is edited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from chessreg.errors import ChessregError
from chessreg.experiments.edit.spec import EditSpec
from chessreg.experiments.edit.states import Removal
from chessreg.models.adapters.base import Network
from chessreg.models.decoding.session import group_by_length
from chessreg.models.edits import ResidualEdit
from chessreg.named import Registry
from chessreg.noise import generator

if TYPE_CHECKING:
    from chessreg.models.language_model import LanguageModel

EMPTY = 6
PIECES = tuple(label for label in range(13) if label != EMPTY)

Control = Callable[[EditSpec, np.ndarray, int, Sequence[Removal], int], np.ndarray]
"""(spec, probe float32 [d_model, 64, 13], layer, removals, number of the draw) → float32 [state, d_model]."""

CONTROLS: Registry[Control] = Registry("control")


def piece(spec: EditSpec, weight: np.ndarray, removals: Sequence[Removal], labels: Sequence[int]) -> np.ndarray:
    """piece · p - blank · b, normalised (Karvonen specification 6.2); p for these classes, b for the empty square.

    The probe is normalised as it is, also where its residuals are centred (2.3 there).
    """
    squares = [removed.square for removed in removals]
    blend = spec.piece * weight[:, squares, list(labels)] - spec.blank * weight[:, squares, EMPTY]
    return unit(blend.T)


@CONTROLS.named("random")
def random(spec: EditSpec, weight: np.ndarray, layer: int, removals: Sequence[Removal], draw: int) -> np.ndarray:
    """A direction drawn uniformly from the sphere for each state and layer: the same one at every scale."""
    return on_sphere(spec, len(weight), layer, [removed.state.unit for removed in removals], draw)


@CONTROLS.named("shuffled")
def shuffled(spec: EditSpec, weight: np.ndarray, layer: int, removals: Sequence[Removal], draw: int) -> np.ndarray:
    """The same probe's direction on the same square for another piece, drawn for each state: labels permuted."""
    labels = []
    for removed in removals:
        others = [label for label in known(weight, removed.square) if label != removed.label]
        labels.append(int(generator(spec.seed, f"shuffled-{draw}", removed.state.unit).choice(others)))
    return piece(spec, weight, removals, labels)


def known(weight: np.ndarray, square: int) -> list[int]:
    """The pieces that a probe has a direction for on a square: differences of means have none where one was hardly
    seen."""
    return [label for label in PIECES if weight[:, square, label].any()]


Change = tuple[int, int, int]
"""A square, the class of the piece there, and the wanted class: 0 black king … 6 empty … 12 white king."""


def change(spec: EditSpec, weight: np.ndarray, changes: Sequence[Sequence[Change]]) -> np.ndarray:
    """What is added for the changes of each board: the classes that appear minus those that disappear, normalised.

    A piece counts with coefficient `piece`, the empty square with `blank` (0: it is ignored, as Davis's code does,
    specification 6.2). Of one removed piece this is minus what `piece` above gives. Zeros where the probe has no
    direction for one of the classes, as differences of means have none for a class that was hardly seen.
    """
    if spec.class_mean == "remove":
        known = np.linalg.norm(weight, axis=0, keepdims=True) > 0
        weight = np.where(known, weight - weight.mean(axis=2, keepdims=True), 0.0)
    vectors = np.zeros((len(changes), len(weight)))
    for row, own in enumerate(changes):
        terms = [(square, label, sign) for square, old, new in own for label, sign in ((new, 1.0), (old, -1.0))]
        scaled = [
            sign * (spec.blank if label == EMPTY else spec.piece) * weight[:, square, label]
            for square, label, sign in terms
            if (spec.blank if label == EMPTY else spec.piece)
        ]
        if all(term.any() for term in scaled):
            vectors[row] = np.sum(scaled, axis=0)
    size = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: np.ndarray = (vectors / np.where(size > 0, size, 1.0)).astype(np.float32)
    return units


def permuted(spec: EditSpec, unit: int, draw: int, changes: Sequence[Change]) -> list[Change]:
    """The same squares with other pieces, drawn for each state: the control of shuffled labels."""
    random, others = generator(spec.seed, f"shuffled-{draw}", unit), []
    for square, *classes in changes:
        drawn = [c if c == EMPTY else int(random.choice([label for label in PIECES if label != c])) for c in classes]
        others.append((square, drawn[0], drawn[1]))
    return others


def on_sphere(spec: EditSpec, width: int, layer: int, units: Sequence[int], draw: int) -> np.ndarray:
    """A direction drawn uniformly from the sphere for each unit and layer, float32 [units, width]."""
    keys = [(spec.seed, f"random-{draw}", layer, number) for number in units]
    return unit(np.stack([generator(*key).standard_normal(width) for key in keys]))


def of_uniform_matrix(
    spec: EditSpec, shape: tuple[int, int], layer: int, units: Sequence[int], draw: int
) -> np.ndarray:
    """The layer's row of a matrix [layers, d_model] of uniform numbers, divided by the norm of the whole, drawn for
    each unit: Davis's code (specification 9.1, 1). With 12 layers its length is about 0.29."""
    rows = []
    for number in units:
        drawn = generator(spec.seed, f"uniform-{draw}", number).random(shape)
        rows.append(drawn[layer] / np.linalg.norm(drawn))
    return np.stack(rows).astype(np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Each row divided by its norm, float32."""
    scaled: np.ndarray = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)
    return scaled


# -- scales ---------------------------------------------------

MEASURE_TOKENS = 16_384  # the most positions in one measuring pass: bounds memory, not results

Target = Callable[[float, Tensor], Tensor]
"""(the spec's value, mean clean logit float32 [state] of squares without that piece) → target logits [state]."""

Reference = Callable[[Network, int], Callable[[Tensor], Tensor]]
"""(network, layer) → what is made of the residual after that layer, whose norm the value is a share of."""


@dataclass(frozen=True)
class ScaleRule:
    """A rule by name. target None: the value is the scale itself, times the norm of a reference where there is one."""

    name: str
    value: str  # what the spec's value means
    target: Target | None = None
    reference: Reference | None = None


SCALE_RULES: Registry[ScaleRule] = Registry("scale rule")


def register(rule: ScaleRule) -> None:
    """Make a rule known by its name. Raises ValueError when the name is taken."""
    SCALE_RULES[rule.name] = rule


def scale_rule(name: str) -> ScaleRule:
    """The rule of this name. Raises NotFoundError."""
    return SCALE_RULES[name]


register(ScaleRule("single_scale", "length of what is subtracted"))
register(ScaleRule("single_target", "logit that the piece is given", lambda value, mean: torch.full_like(mean, value)))
register(ScaleRule("average_target", "offset to the mean logit of other squares", lambda value, mean: mean + value))
# Davis equation 1: the norm is read at the edited token and layer
register(
    ScaleRule(
        "ln-final",
        "share of the residual's norm after the final LayerNorm",
        reference=lambda network, layer: network.norm().forward,
    )
)
register(
    ScaleRule(
        "ln-next",
        "share of the residual's norm after the next LayerNorm",
        reference=lambda network, layer: network.norm(layer).forward,
    )
)
register(
    ScaleRule(
        "residual-norm", "share of the residual's norm", reference=lambda network, layer: lambda residual: residual
    )
)


@dataclass(frozen=True)
class Reading:
    """What a rule reads at one layer: the probe's directions of the pieces, and the mean logits that it may aim at.

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


def target_scale(residual: Tensor, probe: Tensor, direction: Tensor, target: Tensor) -> Tensor:
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
def measured(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    edits: Sequence[ResidualEdit],
    readings: Sequence[Reading | None],
    rule: ScaleRule,
    value: float,
) -> list[ResidualEdit]:
    """The edits, one a layer in rising order and with a direction for each prompt, with the scales that the rule gives.

    A rule without a target reads nothing: its readings may be None. The scale is found where the move begins (the
    prompt's last position) and kept for the characters that follow.
    """
    if rule.target is None:
        return [replace(edit, scale=value) for edit in edits]
    scales = [torch.zeros(len(prompts)) for _ in edits]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for group in group_by_length(order, [len(prompts[i]) for i in order], MEASURE_TOKENS):
        rows = torch.tensor(group)
        lengths = torch.tensor([len(prompts[i]) for i in group])
        tokens = torch.zeros(len(group), int(lengths.max()), dtype=torch.int64)
        for row, i in enumerate(group):
            tokens[row, : len(prompts[i])] = torch.tensor(prompts[i])
        last = (lengths - 1)[:, None]
        layers = [edit.layer for edit in edits]
        clean = model.residuals(tokens, layers, last)[:, :, 0].float().cpu()
        done: list[ResidualEdit] = []
        added = torch.zeros(len(group))  # mean over d_model of what the edits so far put in at the last position
        for number, (edit, reading) in enumerate(zip(edits, readings, strict=True)):
            assert reading is not None
            own = edit.take(rows)
            at = clean[number]
            if done:
                seen = model.residuals(tokens, [edit.layer], last, edits=done, lengths=lengths)
                at = seen[0, :, 0].float().cpu()
            mean = _dot(reading.residual(clean[number], torch.zeros(len(group))), reading.average[rows])
            direction = own.vector.float().cpu()
            target = rule.target(value, mean)
            scale = target_scale(reading.residual(at, added), reading.probe[rows], direction, target)
            scales[number][rows] = scale
            done.append(replace(own, scale=scale.to(model.device)))
            added = added - scale * direction.mean(-1)
    return [replace(edit, scale=scale.to(model.device)) for edit, scale in zip(edits, scales, strict=True)]


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(-1)
