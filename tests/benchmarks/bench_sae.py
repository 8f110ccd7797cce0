"""Training of a gated SAE against its bare matrix products, on one thread, in CPU seconds.

    python tests/benchmarks/bench_sae.py [--batches 8]

A step needs seven products of a batch [tokens, d_model] with a matrix [d_model, latents]: the gate's, two
reconstructions (of the code and of the gate path), the gradients of both codes, and the gradients of W_gate and W_dec.
The peer is these seven alone, whole or in the parts that training takes, whichever is faster, in turns with whole
steps: loss, gradient, Adam, unit columns, dead latents and the curve. For comparison, torch's autograd of the same
formulas.

Goal: training at least 50 % of the products' speed.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from chessreg.experiments.sae.spec import SaeSpec
from chessreg.experiments.sae.training import SaeTrainer
from chessreg.models.devices import flush_denormals
from chessreg.models.gated_sae import CPU_ROWS, GatedSae

BATCH = 4096


def products(x: Tensor, matrix: Tensor, rows: int) -> None:
    """The seven products of a batch, in parts of `rows` rows."""
    summed = torch.zeros_like(matrix)
    for part in x.split(rows):
        code = part @ matrix.T
        again = code @ matrix
        torch.mm(code, matrix, out=again)
        torch.mm(again, matrix.T, out=code)
        torch.mm(again, matrix.T, out=code)
        summed.addmm_(code.T, part)
        summed.addmm_(code.T, part)


def by_autograd(sae: GatedSae, x: Tensor) -> None:
    """Loss and gradient by torch's autograd, whole batches."""
    leaves = {name: value.clone().requires_grad_() for name, value in sae.parameters().items()}
    u = (x - leaves["b_dec"]) @ leaves["W_gate"].T
    gate = torch.relu(u + leaves["b_gate"])
    code = (gate > 0) * torch.relu(u * leaves["r_mag"].exp() + leaves["b_mag"])
    error = x - (code @ leaves["W_dec"] + leaves["b_dec"])
    other = x - (gate @ leaves["W_dec"].detach() + leaves["b_dec"].detach())
    (error.square().sum(1) + gate.sum(1) + other.square().sum(1)).mean().backward()


def seconds(function: Callable[[], None]) -> float:
    began = time.process_time()
    function()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"batches of {BATCH:,} tokens, load {os.getloadavg()[0]:.1f}; CPU seconds, the fastest of {given.batches}")
    with tempfile.TemporaryDirectory() as folder, flush_denormals():
        for width, expansion in ((192, 16), (192, 4), (512, 8)):
            spec = SaeSpec(cache="run:" + "0" * 64, expansions=(expansion,), tokens=BATCH * 1000, batch_tokens=BATCH)
            trainer = SaeTrainer(spec, "blocks.0.hook_resid_post", expansion, width, Path(folder) / "none", "cpu")
            basis = torch.randn(width, width, generator=torch.Generator().manual_seed(1)) / width**0.5
            drawn = torch.randn(BATCH, width, generator=torch.Generator().manual_seed(2))
            x = drawn.abs().pow(2) @ basis
            trainer.learn_scale(x)
            times = dict.fromkeys(("whole", "parts", "step", "autograd"), math.inf)
            for _ in range(given.batches):
                for name, function in (
                    ("whole", lambda x=x, m=trainer.sae.W_gate: products(x, m, BATCH)),
                    ("step", lambda x=x, t=trainer: t.update(x)),
                    ("parts", lambda x=x, m=trainer.sae.W_gate: products(x, m, CPU_ROWS)),
                    ("autograd", lambda x=x, t=trainer: by_autograd(t.sae, x)),
                ):
                    times[name] = min(times[name], seconds(function))
            bare = min(times["whole"], times["parts"])
            print(
                f"d_model {width}, {trainer.features:,} latents: products {bare:.3f}, a step {times['step']:.3f}, "
                f"autograd alone {times['autograd']:.3f}; {BATCH / times['step']:,.0f} tokens/s"
            )
            print(f"training at {bare / times['step']:.0%} of its matrix products (goal at least 50 %)", flush=True)


if __name__ == "__main__":
    main()
