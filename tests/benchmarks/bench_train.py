"""Training steps of a small GPT-2 on rows of UCI squares, and of a FEN encoder on positions, against the same with
PyTorch's fused attention.

    python tests/benchmarks/bench_train.py [--length 143] [--rows 28] [--steps 3] [--threads 1]

The peer is the same model, batch, optimizer and precision, with torch's scaled_dot_product_attention and with GPT-2's
own formula of its activation, as the libraries compute it; a second peer has that in one kernel, as ours does, so that
attention alone is left between the two. Both precisions are timed for all, in turns, in seconds of the processor, which
other processes disturb less than the clock; the best step of each counts. Attention forward and backward is timed by
itself too.

Goal: at 143 tokens the fastest step of ours is at least 1.5 times as fast as the peers' as they are usually run
(bfloat16 autocast). It also prints the remaining gap to the peer in float32, and the share of this processor's
matrix-multiplication rate that the products with weights reach, which bounds the gain from removing everything else. A
FEN encoder of 4 x 128 (78 tokens) trains 1.8 times as fast as with fused attention, of whose last block the peer
computes every token; its share is printed too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch

from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder
from chessreg.models.adapters.gpt2 import ACTIVATIONS, GPT2, GPT2Config, attend_fused
from chessreg.models.train_config import TrainConfig
from chessreg.models.training import TrainerOptions, compute_attention, compute_total_loss, make_optimizers

LAYERS, HEADS, WIDTH, VOCABULARY = 8, 6, 192, 72
PEERS = ("peer", "peer with its activation in one kernel")
PRECISIONS = {"bfloat16": True, "float32": False}


def training_step(side: str, length: int, rows: int, autocast: bool) -> Callable[[], None]:
    """One update on random tokens."""
    torch.manual_seed(0)
    ours = side == "ours"
    config = GPT2Config(LAYERS, HEADS, WIDTH, length, VOCABULARY, activation="gelu_new")
    model = GPT2(config, partial(compute_attention, explicit=True) if ours else attend_fused)
    model.initialise()
    if side == "peer":
        for block in model.h:
            block.mlp.training_activation = ACTIVATIONS["gelu_new"]
    made, how = make_optimizers(model, TrainConfig()), TrainerOptions(autocast=autocast)
    tokens = torch.randint(4, 68, (rows, length + 1))

    def step() -> None:
        (compute_total_loss(model, tokens[:, :-1], tokens[:, 1:], how) / (rows * length)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in made:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def attention_step(side: str, length: int, rows: int, autocast: bool) -> Callable[[], None]:
    """Attention of one layer, forward and backward."""
    ours = side == "ours"
    kind = torch.bfloat16 if autocast else torch.float32
    q, k, v = (torch.randn(rows, HEADS, length, WIDTH // HEADS, dtype=kind, requires_grad=True) for _ in range(3))
    kernel = partial(compute_attention, explicit=True) if ours else attend_fused

    def step() -> None:
        kernel(q, k, v, None, 0.0).sum().backward()

    return step


FEN_LAYERS, FEN_HEADS, FEN_WIDTH = 4, 4, 128


def fen_step(ours: bool, positions: int, autocast: bool) -> Callable[[], None]:
    """One update of a FEN encoder, causal, on random positions."""
    torch.manual_seed(0)
    kernel = partial(compute_attention if ours else attend_fused, causal=True, **({"explicit": True} if ours else {}))
    model = FenEncoder(FenConfig(FEN_LAYERS, FEN_HEADS, FEN_WIDTH, "causal"), kernel)
    model.initialise()
    forward = model if ours else lambda tokens: model.unembed(model.hidden(tokens)[:, -1:])
    made, how = make_optimizers(model, TrainConfig()), TrainerOptions(autocast=autocast)
    tokens, actions = torch.randint(0, 31, (positions, 77)), torch.randint(0, 1968, (positions, 1))

    def step() -> None:
        (compute_total_loss(forward, tokens, actions, how) / positions).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in made:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def multiplied() -> Callable[[], None]:
    """A product of two matrices of 1,024 in bfloat16."""
    a, b = (torch.randn(1024, 1024).bfloat16() for _ in range(2))

    def step() -> None:
        torch.mm(a, b)

    return step


def fastest(steps: dict[tuple[str, str], Callable[[], None]], repeats: int) -> dict[tuple[str, str], float]:
    """Processor seconds of the best of `repeats` steps of each, in turns, after one that warms up."""
    best = dict.fromkeys(steps, float("inf"))
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            began = time.process_time()
            step()
            if repeat:
                best[name] = min(best[name], time.process_time() - began)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=143)
    parser.add_argument("--rows", type=int, default=28)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokens = options.length * options.rows
    best: dict[tuple[str, str], float] = {}
    for what, make, peers in (("attention", attention_step, ("peer",)), ("training", training_step, PEERS)):
        steps = {
            (side, name): make(side, options.length, options.rows, autocast)
            for name, autocast in PRECISIONS.items()
            for side in ("ours", *peers)
        }
        best = fastest({**steps, ("product", "bfloat16"): multiplied()}, options.steps)
        product = best.pop(("product", "bfloat16"))
        for (side, name), seconds in best.items():
            print(
                f"{what}, {side}, {name}: {seconds:.3f} s a step, {tokens / seconds:,.0f} tokens a second of processor"
            )
        for name in PRECISIONS:
            for peer in peers:
                print(f"{what}, {name}: {best[peer, name] / best['ours', name]:.2f} times the {peer}")
    rate = 6 * tokens * (12 * LAYERS * WIDTH**2 + VOCABULARY * WIDTH) / best["ours", "bfloat16"]
    peak = 2 * 1024**3 / product
    print(f"training, bfloat16: {rate / 1e9:,.0f} Gflop/s of weights, {rate / peak:.0%} of products of matrices")
    ours = min(best["ours", name] for name in PRECISIONS)
    both = " and ".join(f"{best[peer, 'bfloat16'] / ours:.2f} times the {peer}" for peer in PEERS)
    print(f"fastest training step of ours: {both} in bfloat16 autocast (goal at least 1.5)")
    print(f"fastest training step of ours: {best['peer', 'float32'] / ours:.2f} times the peer in float32")
    fen(212, options.steps)


def fen(positions: int, repeats: int) -> None:
    """The same of a FEN encoder."""
    steps = {(side, name): fen_step(side == "ours", positions, autocast)
             for name, autocast in PRECISIONS.items() for side in ("ours", "peer")}  # fmt: skip
    best = fastest({**steps, ("product", "bfloat16"): multiplied()}, repeats)
    for side, name in steps:
        print(f"FEN encoder, {side}, {name}: {positions / best[side, name]:,.0f} positions a second of processor")
    weights = 12 * FEN_LAYERS * FEN_WIDTH**2
    last = 10 * FEN_WIDTH**2 * (1 - 1 / 78)  # of the last block all but keys and values is of one token
    rate = 6 * positions * 78 * (weights - last) / best["ours", "bfloat16"]
    peak = 2 * 1024**3 / best["product", "bfloat16"]
    print(
        f"FEN encoder, bfloat16: {best['peer', 'bfloat16'] / best['ours', 'bfloat16']:.2f} times the peer "
        f"(goal at least 1.8); {rate / 1e9:,.0f} Gflop/s of weights, {rate / peak:.0%} of products of matrices"
    )


if __name__ == "__main__":
    main()
