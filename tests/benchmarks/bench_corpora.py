"""Training on corpora larger than memory: peak memory, start of an epoch, batches a second, place of a resumed run.

    python tests/benchmarks/bench_corpora.py [--games 10000000] [--positions 100000000] [--folder .benchmarks]

Writes random tokens once: games of about 350 PGN characters (Karvonen's average), and positions of 77 characters with
an action; 3.5 and 7.9 GB for the numbers above. Each training runs in a separate process, with a model so small that
data dominate: rows of 1,024 tokens (`blocks`), one game per row (`games`), a stream, and 2,048 positions. Peak memory
is the process's largest resident set, mapped files included; the same training of 1,000 items is subtracted.

Goals: less than 2 GB in addition to the model, and the first batch of an epoch in less than 2 seconds. The time to
reach the middle of an epoch, as a resumed run does, is printed too, and the batches a second without training, from the
file cache and after it was dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from store.corpora import CorpusWriter, map_array

GAME_TOKENS = 350
CHUNK = 100_000
SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 16, "steps": 20, "warmup_steps": 2}
GOAL_BYTES, GOAL_START_S = 2e9, 2.0


def write_games(folder: Path, games: int) -> None:
    rng = np.random.default_rng(0)
    with CorpusWriter(folder, {"tokens": (np.uint8, ()), "offsets": (np.int64, ())}) as writer:
        writer.append("offsets", np.zeros(1, np.int64))
        for start in range(0, games, CHUNK):
            lengths = rng.integers(GAME_TOKENS // 2, GAME_TOKENS * 3 // 2, min(CHUNK, games - start))
            writer.append("offsets", writer.rows["tokens"] + np.cumsum(lengths))
            writer.append("tokens", rng.integers(0, 32, int(lengths.sum()), np.uint8))


def write_positions(folder: Path, positions: int) -> None:
    rng = np.random.default_rng(0)
    with CorpusWriter(folder, {"tokens": (np.uint8, (77,)), "actions": (np.int16, ())}) as writer:
        for start in range(0, positions, CHUNK):
            count = min(CHUNK, positions - start)
            writer.append("tokens", rng.integers(0, 31, (count, 77), np.uint8))
            writer.append("actions", rng.integers(0, 1968, count, np.int16))


def make_once(root: Path, content: str, items: int) -> Path:
    """Return the folder of a corpus, written if it is not there."""
    folder = root / f"{content}-{items}"
    if not folder.exists():
        aside = Path(tempfile.mkdtemp(dir=root))
        (write_positions if content == "positions" else write_games)(aside, items)
        aside.rename(folder)
    return folder


def drop_cache(folder: Path) -> None:
    """Remove the files of a folder from the system's file cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_training(folder: Path, packing: str) -> dict[str, Any]:
    """Train on a corpus in this process, and return the measurements."""
    import torch

    from chessreg.models.corpus import Corpus, PositionCorpus, collate_rows
    from chessreg.models.epochs import iterate_batches
    from chessreg.models.train_config import PositionTraining, TextTraining
    from chessreg.models.training import Trainer, TrainerOptions

    torch.set_num_threads(1)
    names = ("tokens", "actions") if packing == "positions" else ("tokens", "offsets")
    arrays: Any = [map_array(folder / f"{name}.npy") for name in names]
    config: Any
    if packing == "positions":
        corpus: Any = PositionCorpus(*arrays)
        config = PositionTraining(**SHAPE, batch_moves=2048)  # type: ignore[arg-type]
    else:
        config = TextTraining(**SHAPE, packing=packing, batch_tokens=16 * 1023)  # type: ignore[arg-type]
        corpus = Corpus(*arrays)
        corpus = corpus.stream(config.block_size) if packing == "stream" else corpus
    measured: dict[str, Any] = {}
    for epoch in (0, 1):
        began = time.perf_counter()
        next(iterate_batches(corpus, config, epoch))
        measured["start_s"] = max(measured.get("start_s", 0.0), time.perf_counter() - began)
    with tempfile.TemporaryDirectory() as state:
        Trainer(config, corpus, Path(state), TrainerOptions(autocast=False)).run(lambda point: None)
    measured["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    total = int(corpus.offsets[-1]) // (16 * 1024) if packing == "blocks" else len(corpus) // 16
    middle = {"positions": len(corpus) // 4096, "blocks": total // 2, "games": total // 4, "stream": total // 2}[
        packing
    ]
    began = time.perf_counter()
    next(iterate_batches(corpus, config, 0, middle))
    measured["resume_s"] = time.perf_counter() - began
    for name in ("cold", "warm"):
        if name == "cold":
            drop_cache(folder)
        began, count = time.perf_counter(), 0
        for batch in islice(iterate_batches(corpus, config, 2), 200):
            collate_rows(corpus, batch, config.block_size + 1 if packing != "positions" else 0)
            count += 1
        measured[f"{name}_batches_s"] = count / (time.perf_counter() - began)
    return measured


def measure(folder: Path, packing: str) -> dict[str, Any]:
    """Return the measurements of a separate process."""
    command = [sys.executable, __file__, "--measure", str(folder), packing]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--games", type=int, default=10_000_000)
    parser.add_argument("--positions", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[2] / ".benchmarks")
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "PACKING"))
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure_training(Path(given.measure[0]), given.measure[1])))
        return
    given.folder.mkdir(exist_ok=True)
    failed = False
    for packing in ("blocks", "games", "stream", "positions"):
        content, items = ("positions", given.positions) if packing == "positions" else ("games", given.games)
        few = measure(make_once(given.folder, content, 1000), packing)
        many = measure(make_once(given.folder, content, items), packing)
        more = many["peak_bytes"] - few["peak_bytes"]
        failed |= more >= GOAL_BYTES or many["start_s"] >= GOAL_START_S
        print(
            f"{packing}, {items:,} {content}: {more / 1e9:.2f} GB more than 1,000 ({many['peak_bytes'] / 1e9:.2f} GB "
            f"in all; goal < 2 more), epoch starts in {many['start_s']:.2f} s (goal < 2), middle reached in "
            f"{many['resume_s']:.2f} s, {many['warm_batches_s']:,.0f} batches/s ({many['cold_batches_s']:,.0f} with a "
            f"cold file cache)",
            flush=True,
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
