"""Time estimates of runs that have no earlier run to measure by: operations counted, divided by this machine's rate.

A kind counts the floating-point operations of its matrix products, and the CPU seconds of other work, such as engine
searches (`Kind.estimate`). The rate is that of float32 matrix products on one thread. Each kind reaches a share of it;
the share also covers work that is not a matrix product, such as legal moves.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from chessreg import child

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.kind import RunEstimate

# Measured on a model of 8 × 192: cache, edit, play, legality (by legal moves), probe (0.6 to 1.2 of residuals and of
# latents). Measured elsewhere: sae (`make bench`), train (a FEN encoder of 4 × 128 in bfloat16), finetune (a Llama of
# 4 × 128 on prompts with legal moves; 0.65 without). The other shares are guesses.
RATE_SHARES = {
    "cache": 0.5, "edit": 0.15, "edit-next-token": 0.15, "finetune": 0.45, "legality": 0.3, "markov": 0.1,
    "perplexity": 0.3, "play": 0.35, "probe": 0.8, "sae": 0.6, "token-legality": 0.1, "train": 1.2,
}  # fmt: skip
OTHER_RATE_SHARE = 0.3  # of kinds that are not measured
TOKENS_PER_GAME = 500  # of a game written as PGN characters; shorter in the other encodings
TOKENS_PER_MOVE = 6
MOVES_PER_GAME = 40  # of one side
LEGAL_MOVE_TOKENS = 70  # read to compare all legal moves of a position
SOFTMAX_OPERATIONS = 2500  # that take as long as the softmax of one logit and its gradient, 26 ns
NODES_PER_SECOND, SHALLOW_SEARCH_S = 1e6, 0.001  # of Stockfish 15 on one thread; a search of few nodes
POSITION_TOKENS = 78  # of a FEN padded to 77 characters, and the answer
PROMPT_TOKENS = 335  # of a position with its legal moves, in a language model's tokens
FILE_BYTES_PER_SECOND = 2e6  # parsed text of imported files
MEASURE_RATE = """
import time
import numpy as np
size = 512
matrix = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
times = []
for _ in range(9):
    start = time.thread_time()
    matrix @ matrix
    times.append(time.thread_time() - start)
print(2 * size**3 / max(min(times), 1e-9))
"""
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


@lru_cache(maxsize=1)
def measure_multiplication_rate() -> float:
    """Return the operations per second of float32 matrix products on one thread, the best of nine measurements.

    A separate process measures it, because the number of threads of a BLAS library cannot be changed once it is loaded.
    """
    process = subprocess.run(
        [sys.executable, "-P", "-c", MEASURE_RATE],
        env=child.build_child_environment() | ONE_THREAD, capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    return float(process.stdout)


def estimate_cpu_seconds(
    kind: str,
    estimate: RunEstimate,
    share: float | None = None,
    rate: Callable[[], float] = measure_multiplication_rate,
) -> float | None:
    """Return the CPU seconds of a whole run on one thread, or None if its kind counts no work.

    `share`: the share of the rate that the run reaches, if it differs from its kind's.
    """
    if not estimate.operations and not estimate.cpu_seconds:
        return None
    share = share or RATE_SHARES.get(kind, OTHER_RATE_SHARE)
    return (estimate.operations / (rate() * share) if estimate.operations else 0.0) + estimate.cpu_seconds


def count_forward_pass_operations(layers: int, d_model: int, tokens: float) -> float:
    """Return the operations of forward passes over `tokens` tokens: two per weight of the blocks and token."""
    return 24.0 * layers * d_model**2 * tokens


def count_convolution_operations(channels: int) -> float:
    """Return the operations of a residual block of two 3 × 3 convolutions over 64 squares."""
    return 2 * 64 * 2.0 * 9 * channels**2


def count_reading_operations(checkpoint: str, inputs: Inputs, texts: float, more_tokens: float = 0.0) -> float:
    """Return the operations of a checkpoint that reads `texts` games (a model of positions: positions), and
    `more_tokens` tokens in addition."""
    row = inputs.read_checkpoint_row(checkpoint)
    shape = row.detail.get("shape") or {}
    if shape.get("convolutions"):  # Maia-2 reads a position and its moves in one pass of few tokens
        blocks = count_forward_pass_operations(row.layers, row.d_model, shape["patches"])
        return texts * (blocks + shape["convolutions"] * count_convolution_operations(shape["channels"]))
    tokens = texts * min(row.block_size, TOKENS_PER_GAME) + more_tokens
    return count_forward_pass_operations(row.layers, row.d_model, tokens)


def count_choosing_operations(checkpoint: str, inputs: Inputs, games: float, turns: float) -> float:
    """Return the operations of a checkpoint that compares the legal moves of `turns` positions in `games` games."""
    if inputs.encoding(checkpoint).content == "history":
        return count_reading_operations(checkpoint, inputs, games, turns * LEGAL_MOVE_TOKENS)
    return count_reading_operations(checkpoint, inputs, turns, turns * LEGAL_MOVE_TOKENS)


def count_probe_operations(positions: float, outputs: int, width: int, is_fitted: bool = True) -> float:
    """Return the operations of fitting a probe with `outputs` logits to `width` numbers at `positions` positions.

    Positions count once per epoch. If nothing is fitted: the operations of the mean of each class.
    """
    return positions * outputs * ((6.0 if is_fitted else 2.0) * width + SOFTMAX_OPERATIONS)


def parse_seconds(size_bytes: int) -> float:
    """Return the CPU seconds of parsing an imported file."""
    return size_bytes / FILE_BYTES_PER_SECOND


def estimate_search_seconds(limit: str) -> float:
    """Return the CPU seconds of one search under a limit: `nodes=100000`, `time=0.1`, `depth=8` or an opponent's text.

    >>> [estimate_search_seconds(limit) for limit in ("nodes=100000", "stockfish:3@time=0.1", "random")]
    [0.1, 0.1, 0.001]
    """
    text = limit.rpartition("@")[2].partition("+")[0]
    name, _, value = text.partition("=")
    if name == "time":
        return float(value)
    return float(value) / NODES_PER_SECOND if name == "nodes" else SHALLOW_SEARCH_S
