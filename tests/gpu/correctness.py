"""The bundled models, an edit and an SAE step on the device, in float32 and bfloat16, against float32 on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch
from context import INPUTS, Context, pad_rows
from torch import Tensor

from chessreg.models.decoding.session import DecodingSession
from chessreg.models.edits import ResidualEdit
from chessreg.models.gated_sae import Adam, GatedSae, Precision, train_step
from chessreg.models.language_model import LanguageModel
from chessreg.models.token_file import TokenFile

ROOT = INPUTS.parents[2]
MODELS = {"reference-model": "pgn-char-32", "uci-model": "uci-square-72", "fen-model": "fen-77"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Measurement = tuple[str, Callable[[], Mapping[str, Any]]]


def plan_comparisons(context: Context) -> Iterator[Measurement]:
    """Every comparison, as a name and a function that returns the differences."""
    models = {name: Bundled(context, name) for name in MODELS}
    for dtype in DTYPES:
        for name, model in models.items():
            yield f"{name}, {dtype}: logits", partial(model.compare_logits, dtype)
            yield f"{name}, {dtype}: residual after every block", partial(model.compare_residuals, dtype)
            yield f"{name}, {dtype}: logits under an edit", partial(model.compare_logits, dtype, True)
            if model.file.encoding == "fen-77":
                yield f"{name}, {dtype}: policy over legal moves", partial(model.compare_policy, dtype)
            else:
                yield f"{name}, {dtype}: decoding session", partial(model.compare_session, dtype)
        yield f"SAE step, {dtype}", partial(compare_sae_step, context, dtype)


class Bundled:
    """A bundled model on the CPU and on the device, with the tokens that it reads."""

    def __init__(self, context: Context, name: str) -> None:
        self.context, self.folder = context, ROOT / "chessreg" / "data" / name
        self.file = TokenFile.read(INPUTS / f"{MODELS[name]}.npz")

    @cached_property
    def cpu(self) -> LanguageModel:
        return LanguageModel.load(self.folder)

    @cache  # noqa: B019
    def load_on_device(self, dtype: str) -> LanguageModel:
        return LanguageModel.load(self.folder, self.context.device, DTYPES[dtype])

    @cached_property
    def rows(self) -> list[np.ndarray]:
        """Held-out items, cut to the model's context."""
        sizes, starts = self.context.sizes, np.cumsum(self.file.heldout_lengths)
        items = np.split(self.file.heldout_tokens, starts[:-1])[: sizes.compared_rows]
        if self.file.encoding == "fen-77":  # a position is read whole
            return items
        return [item[: min(sizes.compared_tokens, self.cpu.block_size)] for item in items]

    @cached_property
    def mask(self) -> Tensor:
        """Which tokens are not padding, bool [rows, length]."""
        return torch.arange(max(map(len, self.rows))) < torch.tensor([len(row) for row in self.rows])[:, None]

    @cached_property
    def edit(self) -> ResidualEdit:
        """A random direction added after the middle block at every token, half as long as the mean residual."""
        layer = self.cpu.n_layers // 2
        residual = self.cpu.residuals(pad_rows(self.rows), [layer])[0][self.mask]
        direction = torch.randn(self.cpu.d_model, generator=torch.Generator().manual_seed(0))
        return ResidualEdit(layer, direction / direction.norm() * 0.5 * residual.norm(dim=-1).mean())

    def _compute_logits(self, model: LanguageModel, edited: bool) -> Tensor:
        logits = model.logits(pad_rows(self.rows), edits=[self.edit] if edited else [])
        return logits if model.head == "action" else logits[self.mask.to(logits.device)]

    @cache  # noqa: B019
    def compute_cpu_logits(self, edited: bool) -> Tensor:
        return self._compute_logits(self.cpu, edited)

    def compare_logits(self, dtype: str, edited: bool = False) -> dict[str, Any]:
        theirs, ours = self.compute_cpu_logits(edited), self._compute_logits(self.load_on_device(dtype), edited)
        same = (theirs.argmax(-1) == ours.cpu().argmax(-1)).double().mean()
        return {**compare(theirs, ours), "same_choice": float(same)}

    def compare_residuals(self, dtype: str) -> dict[str, Any]:
        layers = range(self.cpu.n_layers)
        theirs, ours = (
            model.residuals(pad_rows(self.rows), layers).cpu()[:, self.mask]
            for model in (self.cpu, self.load_on_device(dtype))
        )
        each = [compare(one, other)["relative"] for one, other in zip(theirs, ours, strict=True)]
        return {**compare(theirs, ours), "relative": max(each), "relative_by_block": each}

    def compare_session(self, dtype: str) -> dict[str, Any]:
        """Log-probabilities after each row, fed in two parts to a session on the device, against whole passes here."""
        theirs = torch.stack([self.cpu.logits(pad_rows([row]))[0, -1].log_softmax(-1) for row in self.rows])
        session = DecodingSession(self.load_on_device(dtype), len(self.rows))
        session.feed([row[: len(row) // 2].tolist() for row in self.rows])
        return compare(theirs, session.feed([row[len(row) // 2 :].tolist() for row in self.rows]))

    def compare_policy(self, dtype: str) -> dict[str, Any]:
        """Probabilities of the legal moves, renormalised, at held-out positions."""
        positions = self.file.positions(self.cpu.block_size, 4 * self.context.sizes.compared_rows)
        tokens = pad_rows([position.prompt for position in positions])
        theirs, ours = (model.logits(tokens)[:, 0].float().cpu() for model in (self.cpu, self.load_on_device(dtype)))
        shares, same = [], []
        for position, one, other in zip(positions, theirs, ours, strict=True):
            actions = [answer[0] for answer in position.answers]
            pair = torch.stack([one[actions].softmax(-1), other[actions].softmax(-1)])
            shares.append(pair)
            same.append(float(pair[0].argmax() == pair[1].argmax()))
        pairs = torch.cat(shares, 1)
        distance = [float((pair[0] - pair[1]).abs().sum()) / 2 for pair in shares]
        return {
            **compare(pairs[0], pairs[1]),
            "same_choice": float(np.mean(same)),
            "mean_total_variation": float(np.mean(distance)),
        }


def compare_sae_step(context: Context, dtype: str) -> dict[str, Any]:
    """Gradients of one training step on random residuals against the CPU's in float64: the parameter that differs most.

    float32 is not a reference here: in sums of another order, single gates open or close.
    """
    width, features = context.sizes.sae
    x = torch.randn(context.sizes.sae_batch // 4, width, generator=torch.Generator().manual_seed(1))
    results = []
    precision: Precision = "bfloat16" if dtype == "bfloat16" else "float32"
    for device, dtype_of_sums in ((torch.device("cpu"), torch.float64), (context.device, torch.float32)):
        initial = GatedSae.make_initial(width, features, seed=0, device=str(device))
        sae = replace(initial, **{name: value.to(dtype_of_sums) for name, value in initial.parameters().items()})
        gradient = {name: torch.empty_like(value) for name, value in sae.parameters().items()}
        adam = Adam(sae.parameters(), 0.9, 0.999)
        rows = x.to(device, dtype_of_sums)
        used = "float32" if dtype_of_sums is torch.float64 else precision  # float32: the dtype of the rows
        parts, _ = train_step(sae, adam, gradient, rows, 1.0, 3e-4, precision=used)
        results.append((float(parts["loss"]), gradient))
    (loss, theirs), (other, ours) = results
    each = {name: compare(theirs[name], ours[name]) for name in theirs}
    worst = max(each, key=lambda name: each[name]["relative"])
    return {**each[worst], "worst": worst, "loss": loss, "loss_difference": abs(other - loss)}


def compare(expected: Tensor, actual: Tensor) -> dict[str, float]:
    """Return the largest difference, and the norm of the difference over the norm of `expected`.

    Raises ValueError for NaN or infinite values.
    """
    expected, actual = expected.double().cpu(), actual.double().cpu()
    if not bool(actual.isfinite().all()):
        raise ValueError("the device's result holds NaN or infinite values")
    delta = actual - expected
    return {"largest": float(delta.abs().max()), "relative": float(delta.norm() / expected.norm())}
