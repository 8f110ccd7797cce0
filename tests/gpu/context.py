"""The parts shared by all steps: sizes, the device and its peak speed, timing, and inputs that need no python-chess."""

from __future__ import annotations

import gc
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from chessreg.models.corpus import Corpus
from chessreg.models.devices import set_tf32_products
from chessreg.models.token_file import TokenFile
from chessreg.models.train_config import TextTraining

INPUTS = Path(__file__).parent / "inputs"
"""Token files of a few games of the bundled sample, made by make_inputs.py."""

Precision = Literal["bfloat16", "TF32", "float32"]
PEAKS: dict[str, dict[Precision, float]] = {
    "NVIDIA H100 80GB HBM3": {"bfloat16": 989.4, "TF32": 494.7, "float32": 67.0},
    "NVIDIA H200": {"bfloat16": 989.4, "TF32": 494.7, "float32": 67.0},
    "NVIDIA A100-SXM4-40GB": {"bfloat16": 312.0, "TF32": 156.0, "float32": 19.5},
    "NVIDIA A100-SXM4-80GB": {"bfloat16": 312.0, "TF32": 156.0, "float32": 19.5},
}
"""Peak TFLOP/s of dense matrix products by `torch.cuda.get_device_name()`, from NVIDIA's data sheets of the H100, H200
and A100 (SXM), without sparsity. For other devices the peak is the measured speed of one large product."""


@dataclass(frozen=True)
class Sizes:
    """Shapes are (layers, heads, d_model)."""

    large: tuple[int, int, int] = (12, 12, 768)
    small: tuple[int, int, int] = (8, 8, 512)
    block_size: int = 1023
    batch_rows: int = 100  # an update's rows: 102,300 tokens, as in Karvonen 2024, Table 5
    micro_rows: tuple[int, ...] = (10, 25, 50, 100)
    sae: tuple[int, int] = (768, 12_288)
    sae_batch: int = 4096
    sae_rows: tuple[int, ...] = (256, 1024)
    sae_pass_tokens: int = 65_536
    cached_games: tuple[int, ...] = (32, 256)
    decoded_rows: tuple[int, ...] = (1, 8, 64, 512)
    scored_rows: tuple[int, ...] = (64, 512)
    compared_rows: int = 16
    compared_tokens: int = 255
    matrix: int = 8192
    seconds: float = 2.0  # that one speed is timed for
    compile: bool = True
    training_steps: int = 1_000_000
    warmup_steps: int = 100
    log_steps: int = 20
    evaluated_games: int = 500
    shard_bytes: int = 15 << 20


FULL = Sizes()
TINY = Sizes(
    large=(2, 2, 32), small=(2, 2, 16), block_size=255, batch_rows=4, micro_rows=(2, 4), sae=(16, 64), sae_batch=64,
    sae_rows=(32,), sae_pass_tokens=256, cached_games=(4,), decoded_rows=(1, 4), scored_rows=(4,), compared_rows=2,
    compared_tokens=40, matrix=128, seconds=0.02, compile=False, training_steps=30, warmup_steps=5, log_steps=5,
    evaluated_games=4, shard_bytes=12 << 10,
)  # fmt: skip


@dataclass(frozen=True)
class Context:
    """Where and how large."""

    device: torch.device
    sizes: Sizes

    @cached_property
    def name(self) -> str:
        return torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU"

    def synchronize(self) -> None:
        """Wait until the device has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def release(self) -> None:
        """Give the device's memory back between measurements and record gradients again, also after an error.

        An interruption between two nested `inference_mode` blocks ends them in the wrong order, which leaves the mode.
        """
        gc.collect()
        if torch.is_inference_mode_enabled():
            self._recording.__enter__()
        torch.set_grad_enabled(True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    @cached_property
    def _recording(self) -> torch.inference_mode:
        return torch.inference_mode(False)

    def memory_gb(self) -> float | None:
        """The most memory that tensors took since `release`."""
        return torch.cuda.max_memory_allocated() / 1e9 if self.device.type == "cuda" else None

    def time_call(self, work: Callable[[], Any]) -> float:
        """The mean time of `work` over about `sizes.seconds`, after two calls that are not counted."""
        for _ in range(2):
            self.synchronize()
            began = time.perf_counter()
            work()
            self.synchronize()
        count = max(3, int(self.sizes.seconds / max(time.perf_counter() - began, 1e-6)))
        began = time.perf_counter()
        for _ in range(count):
            work()
        self.synchronize()
        return (time.perf_counter() - began) / count

    def measure_tflops(self, precision: Precision) -> float:
        """The measured speed of one large product of random matrices, in TFLOP/s."""
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        n = self.sizes.matrix
        a, b = (torch.randn(n, n, device=self.device, dtype=dtype) for _ in range(2))
        with set_tf32_products(precision == "TF32"):
            return 2 * n**3 / self.time_call(lambda: a @ b) / 1e12

    def peak_tflops(self, precision: Precision) -> float:
        """The device's peak speed: from PEAKS, else measured."""
        peaks = PEAKS.get(self.name)
        if peaks is not None:
            return peaks[precision]
        if precision not in self._measured_peaks:
            self._measured_peaks[precision] = self.measure_tflops(precision)
        return self._measured_peaks[precision]

    @cached_property
    def _measured_peaks(self) -> dict[Precision, float]:
        return {}

    @cached_property
    def training_speeds(self) -> dict[tuple[int, int, int], dict[tuple[int, bool], float]]:
        """Shape of a model → rows at once and whether compiled → tokens per second, as far as they are measured."""
        return {}

    def fastest_training(self, shape: tuple[int, int, int]) -> tuple[int, bool]:
        """The rows at once, and whether compiled, with which a model of this shape trained fastest; without
        measurements, all rows of an update."""
        speeds = self.training_speeds.get(shape, {})
        unmeasured = self.sizes.micro_rows[-1], self.sizes.compile
        return max(speeds, key=lambda way: speeds[way], default=unmeasured)

    @cached_property
    def games(self) -> TokenFile:
        """The bundled games of PGN characters."""
        return TokenFile.read(INPUTS / "pgn-char-32.npz")

    def corpus(self, tokens: int) -> Corpus:
        """The bundled training games, repeated until there are this many tokens: speed does not depend on the text."""
        return repeat_games(self.games.tokens, self.games.lengths, tokens, self.games.size)


def repeat_games(tokens: np.ndarray, lengths: np.ndarray, least: int, vocab_size: int) -> Corpus:
    """Games as a corpus of at least this many tokens."""
    times = -(-least // len(tokens))
    offsets = np.concatenate([[0], np.cumsum(np.tile(lengths, times), dtype=np.int64)])
    return Corpus(np.tile(tokens, times), offsets, vocab_size)


def pad_rows(rows: Sequence[np.ndarray] | Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids as int64 [rows, longest], zeros on the right."""
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = torch.as_tensor(np.asarray(row, np.int64))
    return tokens


def count_flops_per_token(config: TextTraining, vocab_size: int) -> float:
    """Floating-point operations of one training token, forward and backward: 6N + 12·L·d·T.

    PaLM (Chowdhery et al. 2022), Appendix B: N parameters in matrix products (blocks and output head; embeddings are
    looked up), L layers of width d, T the sequence length. Attention counts all T keys although half are masked, and
    nothing is recomputed. Model FLOPs utilisation (MFU) is this times tokens per second over the device's peak.
    """
    width = config.n_embd
    products = 12 * config.n_layer * width**2 + vocab_size * width
    return 6 * products + 12 * config.n_layer * width * config.block_size


def describe_machine(device: torch.device, root: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """The facts that a reader needs to repeat the run."""
    facts = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads",
        "memory_gb": torch.cuda.get_device_properties(0).total_memory / 1e9 if device.type == "cuda" else None,
        "driver": run_command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "commit": read_commit(root),
        "arguments": " ".join(arguments),
        "started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
    return {name: value for name, value in facts.items() if value is not None}


def read_commit(root: Path) -> str:
    """The commit of the tree; `+` if files differ from it."""
    head = run_command("git", "-C", str(root), "rev-parse", "HEAD")
    if head is None:
        return "unknown: there is no git repository here"
    return f"{head}{'+' if run_command('git', '-C', str(root), 'status', '--porcelain', '-uno') else ''}"


def run_command(*command: str) -> str | None:
    """The output of a command; None if it does not exist or fails."""
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
