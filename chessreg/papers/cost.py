"""What a step costs: its floating-point operations at the rate that this machine multiplies matrices, one thread, and
the seconds that an engine thinks.

A kind reaches a share of that rate, and what is no multiplication, as legal moves, is in it. Those of caches and edits
are measured on a model of 8 × 192, and so is that of probes, 0.6 to 1.2 of residuals and of latents. That of
autoencoders is `make bench`'s, that of training is of a FEN encoder of 4 × 128 in bfloat16, that of fine-tuning of a
Llama of 4 × 128 on prompts with legal moves (0.65 without), those of play and legality are of games of 8 × 192 by legal
moves; the others are guesses.
"""

from __future__ import annotations

import time

from chessreg.papers.plan import Request, Step

SHARE = {
    "cache": 0.5, "edit": 0.15, "edit-next-token": 0.15, "finetune": 0.45, "legality": 0.3, "markov": 0.1,
    "perplexity": 0.3, "play": 0.35, "probe": 0.8, "sae": 0.6, "token-legality": 0.1, "train": 1.2,
}  # fmt: skip
NODES_A_SECOND, SHALLOW = 1e6, 0.001  # of Stockfish 15 on one thread; a search of few nodes
LOGIT = 2500  # multiplications that take as long as the softmax of one logit with its gradient: 26 ns
SIZE, TIMES = 512, 9


def forward(request: Request, tokens: float) -> float:
    """Operations of forward passes over so many tokens: two for each weight of the blocks."""
    return 24.0 * request.layers * request.d_model**2 * tokens


def probing(positions: float, outputs: int, width: int, learnt: bool = True) -> float:
    """Operations of fitting a probe of so many classes of squares to `width` numbers at so many positions, each epoch's
    counted; or, where nothing is learnt, of the means of each class."""
    return positions * outputs * ((6.0 if learnt else 2.0) * width + LOGIT)


def multiplying() -> float:
    """Floating-point operations in a second of one thread, of products of float32 matrices: the best of some."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        matrix = torch.randn(SIZE, SIZE)
        best = float("inf")
        for _ in range(TIMES):
            start = time.thread_time()
            matrix @ matrix
            best = min(best, time.thread_time() - start)
    finally:
        torch.set_num_threads(threads)
    return 2 * SIZE**3 / max(best, 1e-9)


def seconds(step: Step, rate: float, share_missing: float = 1.0) -> float | None:
    """CPU seconds of what is missing of a step, about, at so many operations a second; None where nobody counted."""
    if not step.engine_seconds and (not step.operations or step.kind not in SHARE):
        return None
    return share_missing * (step.operations / (rate * (step.share or SHARE.get(step.kind, 1.0))) + step.engine_seconds)


def thinking(limit: str) -> float:
    """CPU seconds of one search under a limit, about: `nodes=100000`, `time=0.1`, `depth=8` or an opponent's text."""
    text = limit.rpartition("@")[2].partition("+")[0]
    name, _, value = text.partition("=")
    if name == "time":
        return float(value)
    return float(value) / NODES_A_SECOND if name == "nodes" else SHALLOW
