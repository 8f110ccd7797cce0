"""The gated autoencoder: code, loss and gradient, compared with torch's autograd of the formulas."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from chessreg.models import gated_sae
from chessreg.models.gated_sae import (
    Adam,
    GatedSae,
    Precision,
    _compute_gradients,
    compute_gradients,
    normalize_columns,
    remove_parallel_part,
    train_step,
)


def random_sae(dtype: torch.dtype = torch.float64) -> GatedSae:
    made, drawn = GatedSae.make_initial(8, 24, seed=1), torch.Generator().manual_seed(2)
    parameters = {
        name: (value + 0.1 * torch.randn(value.shape, generator=drawn)).to(dtype)
        for name, value in made.parameters().items()
    }
    normalize_columns(parameters["W_dec"])
    return GatedSae(**parameters)


def rows(n: int = 300) -> Tensor:
    return torch.randn(n, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def loss_of(p: dict[str, Tensor], x: Tensor, coefficient: float, detached: bool = True) -> Tensor:
    """The formulas of Rajamanoharan et al. 2024, literally."""
    pi = (x - p["b_dec"]) @ p["W_gate"].T + p["b_gate"]
    w_mag = p["r_mag"].exp()[:, None] * p["W_gate"]
    f = (pi > 0) * torch.relu((x - p["b_dec"]) @ w_mag.T + p["b_mag"])
    decoder = [p["W_dec"], p["b_dec"]]
    w_dec, b_dec = (value.detach() for value in decoder) if detached else decoder
    reconstruction = (x - (f @ p["W_dec"] + p["b_dec"])).square().sum(1)
    auxiliary = (x - (torch.relu(pi) @ w_dec + b_dec)).square().sum(1)
    return (reconstruction + coefficient * torch.relu(pi).sum(1) + auxiliary).mean()


def test_loss_and_gradients_are_those_of_the_formulas() -> None:
    sae, x = random_sae(), rows()
    leaves = {name: value.clone().requires_grad_() for name, value in sae.parameters().items()}
    wanted = loss_of(leaves, x, 0.7)
    wanted.backward()
    found = {name: torch.full_like(value, 5.0) for name, value in sae.parameters().items()}
    loss, fired = compute_gradients(sae, x, 0.7, found)
    torch.testing.assert_close(loss["loss"], wanted.detach())
    for name, leaf in leaves.items():
        torch.testing.assert_close(found[name], leaf.grad, msg=name)
    code = sae.encode(x)
    torch.testing.assert_close(loss["l0"], (code > 0).sum(1).double().mean())
    assert torch.equal(fired, (code > 0).any(0))


def test_products_in_bfloat16_give_nearly_the_same_float32_gradients_and_parts_of_a_batch_the_same_sums() -> None:
    sae, x = random_sae(torch.float32), rows().float()
    of_precision = {}
    for precision, at_once in (("float32", None), ("float32", 7), ("tf32", None), ("bfloat16", None)):
        found = {name: torch.empty_like(value) for name, value in sae.parameters().items()}
        loss, _ = compute_gradients(sae, x, 0.7, found, at_once, precision)
        of_precision[precision, at_once] = {"loss": loss["loss"], "l0": loss["l0"], **found}
    wanted = of_precision.pop(("float32", None))
    for (precision, _), found in of_precision.items():
        for name, value in wanted.items():
            difference = float((found[name] - value).norm() / value.norm())
            assert difference < (0.02 if precision == "bfloat16" else 1e-5), (precision, name)
            if precision != "float32" and name not in ("l0", "loss"):
                assert (difference > 0) is (precision == "bfloat16")  # a CPU has no TF32
            assert found[name].dtype == torch.float32


def test_the_gate_learns_through_the_auxiliary_term_alone() -> None:
    """The Heaviside step lets nothing through, and the decoder learns nothing of the auxiliary term."""
    sae, x = random_sae(), rows()
    with_term = {name: torch.empty_like(value) for name, value in sae.parameters().items()}
    compute_gradients(sae, x, 0.0, with_term)
    assert with_term["b_gate"].abs().sum() > 0
    leaves = {name: value.clone().requires_grad_() for name, value in sae.parameters().items()}
    latents = (sae.encode(x) > 0) * torch.relu((x - leaves["b_dec"]) @ sae.W_gate.T * sae.r_mag.exp() + sae.b_mag)
    (x - (latents @ leaves["W_dec"] + leaves["b_dec"])).square().sum(1).mean().backward()
    torch.testing.assert_close(with_term["W_dec"], leaves["W_dec"].grad)


def test_without_a_magnitude_of_its_own_it_is_a_plain_relu_autoencoder() -> None:
    sae, x = random_sae(), rows()
    plain = GatedSae(sae.W_gate, sae.b_gate, torch.zeros_like(sae.r_mag), sae.b_gate, sae.W_dec, sae.b_dec)
    relu = torch.relu((x - sae.b_dec) @ sae.W_gate.T + sae.b_gate)
    torch.testing.assert_close(plain.encode(x), relu)
    torch.testing.assert_close(plain.decode(plain.encode(x)), relu @ sae.W_dec + sae.b_dec)


def test_a_scale_is_undone_when_decoded() -> None:
    sae, x = random_sae(), rows()
    scaled = GatedSae(**sae.parameters(), scale=4.0)
    torch.testing.assert_close(scaled.encode(x / 4), sae.encode(x))
    torch.testing.assert_close(scaled.decode(scaled.encode(x / 4)), sae.decode(sae.encode(x)) / 4)


def test_scaling_a_decoder_column_cannot_lower_the_loss() -> None:
    """A latent that shrinks with the column's growth would save sparsity, but a step keeps the norm at 1."""
    sae, x = random_sae(), rows()
    adam = Adam(sae.parameters(), 0.9, 0.999)
    gradient = {name: torch.empty_like(value) for name, value in sae.parameters().items()}
    cheated = {name: value.clone() for name, value in sae.parameters().items()}
    cheated["W_dec"] *= 2
    cheated["W_gate"] /= 2
    cheated["b_gate"] /= 2
    cheated["b_mag"] /= 2
    assert loss_of(cheated, x, 5.0) < loss_of(sae.parameters(), x, 5.0)  # so the norm has to be held
    normalize_columns(cheated["W_dec"])
    torch.testing.assert_close(cheated["W_dec"], sae.W_dec)  # nothing of it is left
    bias = sae.b_dec.clone()
    for _ in range(20):
        compute_gradients(sae, x, 5.0, gradient)
        before = gradient["W_dec"].clone()
        remove_parallel_part(gradient["W_dec"], sae.W_dec)
        assert (gradient["W_dec"] * sae.W_dec).sum(1).abs().max() < 1e-10
        assert (before * sae.W_dec).sum(1).abs().max() > 1e-6
        adam.step(gradient, 1e-2)
        normalize_columns(sae.W_dec)
        torch.testing.assert_close(sae.W_dec.norm(dim=1), torch.ones(24, dtype=torch.float64))
    assert not torch.equal(sae.b_dec, bias)
    assert abs(float(sae.b_dec.norm()) - 1) > 1e-3  # the bias keeps its own length


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_is_torchs(dtype: torch.dtype) -> None:
    sae, x = random_sae(dtype), rows().to(dtype)
    theirs = [value.clone().requires_grad_() for value in sae.parameters().values()]
    reference, ours = torch.optim.Adam(theirs, lr=1e-2, betas=(0.8, 0.99)), Adam(sae.parameters(), 0.8, 0.99)
    gradient = {name: torch.empty_like(value) for name, value in sae.parameters().items()}
    for _ in range(5):
        compute_gradients(sae, x, 1.0, gradient)
        for leaf, value in zip(theirs, gradient.values(), strict=True):
            leaf.grad = value.clone()
        reference.step()
        ours.step(gradient, 1e-2)
    for leaf, value in zip(theirs, sae.parameters().values(), strict=True):
        torch.testing.assert_close(leaf.detach(), value)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_a_compiled_step_is_the_same_and_is_not_compiled_again_for_every_coefficient(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """λ rises in every step of the warm-up. The graph is captured as for any backend."""
    counters.clear()
    monkeypatch.setattr(
        gated_sae, "compile_gradients", cache(partial(torch.compile, _compute_gradients, backend="aot_eager"))
    )
    x, made = torch.randn(60, 8, generator=torch.Generator().manual_seed(0)), []
    for compiled in (False, True):
        sae = GatedSae.make_initial(8, 16, 0)
        adam, gradient = (
            Adam(sae.parameters(), 0.9, 0.999),
            {n: torch.empty_like(v) for n, v in sae.parameters().items()},
        )
        for step in range(5):
            loss, _ = train_step(sae, adam, gradient, x, 0.1 * step, 1e-2, precision=precision, is_compiled=compiled)
        made.append([*sae.parameters().values(), *loss.values()])
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(*made, strict=True))
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
