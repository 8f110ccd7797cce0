"""A gated sparse autoencoder: encoder, decoder, loss, gradient and one training step.

Rajamanoharan et al. 2024 (Davis, section 3.2). A latent is active if the gate path is above 0; its activation comes
from the magnitude path, which shares the gate's directions and has separate scales and biases. Imports only torch and
numpy, as `training` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from chessreg.models.devices import set_tf32_products
from chessreg.models.sparse_autoencoders import SparseAutoencoder

if TYPE_CHECKING:
    from chessreg.models.ranks import Ranks

NAMES = ("W_gate", "b_gate", "r_mag", "b_mag", "W_dec", "b_dec")
CPU_ROWS = 256  # rows of a batch processed at once, so that intermediate results stay in a CPU core's cache
GPU_MEMORY_SHARE = 1 / 16  # of a GPU's memory, for the intermediate results of the rows processed at once
INTERMEDIATE_TENSORS = 5  # arrays [rows, features] of a step
Precision = Literal["float32", "tf32", "bfloat16"]


@dataclass(frozen=True)
class GatedSae(SparseAutoencoder):
    """The parameters of one gated autoencoder, float32.

    W_gate [features, d_model]; b_gate, r_mag, b_mag [features]. The rows of a trained W_dec have unit norm.
    """

    architecture = "gated"
    names = NAMES

    W_gate: Tensor
    b_gate: Tensor
    r_mag: Tensor
    b_mag: Tensor
    W_dec: Tensor
    b_dec: Tensor
    scale: float = 1.0
    subtracts_bias: bool = True

    @classmethod
    def make_initial(cls, d_model: int, features: int, seed: int, scale: float = 1.0, device: str = "cpu") -> GatedSae:
        """Return an autoencoder with random unit columns, equal gate directions and zero biases.

        The weights are float32 and depend on `seed` alone. `scale` is the factor on residuals before encoding.
        """
        directions = torch.randn(features, d_model, generator=torch.Generator().manual_seed(seed))
        columns = (directions / directions.norm(dim=1, keepdim=True)).to(device)
        none = torch.zeros(features, device=device)
        none_dec = torch.zeros(d_model, device=device)
        return cls(columns.clone(), none.clone(), none.clone(), none.clone(), columns, none_dec, scale)

    @torch.no_grad()
    def encode(self, residual: Tensor) -> Tensor:
        u = self.prepare(residual) @ self.W_gate.T
        magnitude = torch.relu(u * self.r_mag.exp() + self.b_mag)
        return torch.where(u + self.b_gate > 0, magnitude, 0.0)


class Loss(dict[str, Tensor]):
    """Means over a batch: `loss`, its parts `sse` (squared reconstruction error), `l1` (of the gate path) and
    `auxiliary`, and `l0`, the number of active latents."""


def compute_batch_rows(device: torch.device, features: int) -> int:
    """Return how many rows of a batch a step processes at once: CPU_ROWS, or the number that fits GPU_MEMORY_SHARE of a
    GPU.

    It does not depend on free memory, so that a resumed training adds in the same order.
    """
    if device.type != "cuda":
        return CPU_ROWS
    memory = torch.cuda.get_device_properties(device).total_memory * GPU_MEMORY_SHARE
    return max(CPU_ROWS, int(memory / (4 * INTERMEDIATE_TENSORS * features)))


@torch.no_grad()
def compute_gradients(
    sae: GatedSae,
    x: Tensor,
    coefficient: float,
    out: Mapping[str, Tensor],
    rows: int | None = None,
    precision: Precision = "float32",
    batch: int | None = None,
    is_compiled: bool = False,
) -> tuple[Loss, Tensor]:
    """Return the loss over scaled residuals x [n, d_model], and which latents fired (bool [features]).

    L = |x - x̂(f)|² + coefficient · |ReLU(π)|₁ + |x - x̂'(ReLU(π))|², the mean over the n rows; x̂' has W_dec and b_dec
    detached, so that the decoder learns only from the first term. `out` receives the gradient of
    each parameter, overwriting previous values. Seven matrix products; everything else happens in place on `rows` rows
    at a time (default: `compute_batch_rows`).

    `precision` of the matrix products: "tf32" lets a GPU round their factors to TF32 (a CPU computes in float32);
    "bfloat16" rounds factors and results, and stores all arrays [rows, features] in it. Parameters, biases, sums over
    rows and the gradients in `out` are always float32.

    If x is a part of a batch of `batch` rows, loss and gradients are sums over x divided by `batch`, which add up to
    those of the batch.
    """
    with set_tf32_products(precision == "tf32"):
        kind = torch.bfloat16 if precision == "bfloat16" else x.dtype
        rows = rows or compute_batch_rows(x.device, sae.features)
        n = len(x) if batch is None else batch
        # a tensor, because torch.compile compiles again for every value of a number
        factor, sparsity = x.new_full((), coefficient), x.new_full((), coefficient / n, dtype=kind)
        # inside of set_tf32_products, because a compiled function cannot change that setting
        compute = compile_gradients() if is_compiled else _compute_gradients
        return compute(sae, x, factor, sparsity, out, rows, kind, n)


@cache
def compile_gradients() -> Callable[..., tuple[Loss, Tensor]]:
    """Return `_compute_gradients`, compiled."""
    return torch.compile(_compute_gradients)


def _compute_gradients(
    sae: GatedSae,
    x: Tensor,
    coefficient: Tensor,
    sparsity: Tensor,
    out: Mapping[str, Tensor],
    rows: int,
    kind: torch.dtype,
    n: int,
) -> tuple[Loss, Tensor]:
    """Implement `compute_gradients`, with factors and results of products in `kind`. `sparsity` is coefficient / n in
    `kind`."""
    slope = sae.r_mag.exp()
    for value in out.values():
        value.zero_()
    w_gate, w_dec, b_dec = sae.W_gate.to(kind), sae.W_dec.to(kind), sae.b_dec.to(kind)
    sparsity = sparsity.expand(sae.features)
    u_of, both_of, back_of = (x.new_empty(times * min(rows, len(x)), sae.features, dtype=kind) for times in (1, 2, 2))
    sums, strongest = x.new_zeros(4), torch.zeros_like(sae.b_gate, dtype=kind)
    for part in x.split(rows) if len(x) else ():
        m = len(part)
        u, both, back = u_of[:m], both_of[: 2 * m], back_of[: 2 * m]
        code, gate, of_code, of_gate = both[:m], both[m:], back[:m], back[m:]
        centred_part = (part - sae.b_dec).to(kind)
        torch.mm(centred_part, w_gate.T, out=u)
        torch.add(u, sae.b_gate, out=gate).relu_()
        torch.addcmul(sae.b_mag, u, slope, out=code).relu_()
        clear_inactive_values(gate, code)
        error = torch.addmm(b_dec, both, w_dec).view(2, m, -1) - part
        on = torch.sign(code, out=of_code).sum(dtype=x.dtype)  # count_nonzero takes ten times as long
        l1 = gate.sum(dtype=x.dtype)
        sums += torch.stack([error[0].square().sum(), l1, error[1].square().sum(), on])
        torch.maximum(strongest, code.amax(0), out=strongest)
        error *= 2 / n
        out["b_dec"] += error[0].sum(0)
        of_codes, of_gates = error.to(kind)
        add_product(out["W_dec"], code.T, of_codes)
        torch.mm(of_codes, w_dec.T, out=of_code)
        torch.addmm(sparsity, of_gates, w_dec.T, out=of_gate)
        clear_inactive_values(code, of_code)
        clear_inactive_values(gate, of_gate)
        out["b_mag"] += of_code.sum(0, dtype=x.dtype)
        out["b_gate"] += of_gate.sum(0, dtype=x.dtype)
        out["r_mag"] += u.mul_(of_code).sum(0, dtype=x.dtype)
        of_gate.addcmul_(of_code, slope)
        add_product(out["W_gate"], of_gate.T, centred_part)
    out["r_mag"] *= slope
    out["b_dec"] -= (out["b_gate"] + slope * out["b_mag"]) @ sae.W_gate
    sse, l1, auxiliary, l0 = (sums / n).unbind()
    loss = Loss(loss=sse + coefficient * l1 + auxiliary, sse=sse, l1=l1, auxiliary=auxiliary, l0=l0)
    return loss, strongest > 0


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add the matrix product of `a` and `b` to `total`, which may have another dtype."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def clear_inactive_values(positive: Tensor, values: Tensor) -> None:
    """Set values to 0 where `positive` <= 0: the backward pass of a ReLU, several times faster than a mask."""
    torch.ops.aten.threshold_backward.grad_input(values, positive, 0.0, grad_input=values)


@torch.no_grad()
def remove_parallel_part(gradient: Tensor, columns: Tensor) -> None:
    """Remove from the gradient of unit columns [features, d_model] the part along each column, which would change its
    length."""
    gradient -= (gradient * columns).sum(1, keepdim=True) * columns


@torch.no_grad()
def normalize_columns(columns: Tensor) -> None:
    """Scale every column [features, d_model] to unit length."""
    columns /= columns.norm(dim=1, keepdim=True).clamp_min(torch.finfo(columns.dtype).tiny)


class Adam:
    """Equivalent to `torch.optim.Adam`, through the function that it calls: the class's first use imports torch's
    compiler."""

    def __init__(self, parameters: Mapping[str, Tensor], beta1: float, beta2: float) -> None:
        self.parameters, self.betas = dict(parameters), (beta1, beta2)
        self.mean = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self.square = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self.steps = 0
        device = next(iter(parameters.values())).device
        self.counts = [
            torch.zeros((), device=device) for _ in parameters
        ]  # `steps` in the form that torch's kernel needs

    @torch.no_grad()
    def step(self, gradient: Mapping[str, Tensor], learning_rate: float) -> None:
        """Take one step down the gradient."""
        from torch.optim.adam import adam

        names = list(self.parameters)
        adam(
            [self.parameters[name] for name in names],
            [gradient[name] for name in names],
            [self.mean[name] for name in names],
            [self.square[name] for name in names],
            [],
            self.counts,  # incremented by the call
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
        self.steps += 1

    def state(self) -> dict[str, Any]:
        """Return the state that `restore` accepts."""
        return {"mean": self.mean, "square": self.square, "steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the state returned by `state`."""
        for average, stored_value in ((self.mean, state["mean"]), (self.square, state["square"])):
            for name, value in average.items():
                value.copy_(stored_value[name])
        self.steps = int(state["steps"])
        for count in self.counts:
            count.fill_(self.steps)


def train_step(
    sae: GatedSae,
    adam: Adam,
    gradient: Mapping[str, Tensor],
    x: Tensor,
    coefficient: float,
    learning_rate: float,
    rows: int | None = None,
    precision: Precision = "float32",
    ranks: Ranks | None = None,
    is_compiled: bool = False,
) -> tuple[Loss, Tensor]:
    """Update `sae` on scaled residuals x [n, d_model] with Adam; return the result of `compute_gradients`.

    `coefficient` is that of the L1 term, and `rows` the residuals computed at a time. `gradient` is a buffer and is
    overwritten. On a GPU nothing waits for the device. With `ranks`, each process has the whole batch and computes its
    share.
    """
    part = x if ranks is None else x.tensor_split(ranks.size)[ranks.rank]
    loss, firing_counts = compute_gradients(sae, part, coefficient, gradient, rows, precision, len(x), is_compiled)
    if ranks is not None:
        means, fires = torch.stack(list(loss.values())), firing_counts.float()
        ranks.sum([*gradient.values(), means, fires])
        loss, firing_counts = Loss(zip(loss, means.unbind(), strict=True)), fires > 0
    remove_parallel_part(gradient["W_dec"], sae.W_dec)
    adam.step(gradient, learning_rate)
    normalize_columns(sae.W_dec)
    return loss, firing_counts
