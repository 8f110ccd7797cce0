"""`run cache` against a bare forward loop over the same tokens with the same model object and threads.

    python tests/benchmarks/bench_cache.py [--games 200]

Goal: at most 1.15 times the loop's wall time at the best of three batch sizes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from chessreg.encodings import get_encoding
from chessreg.entities.adding import add_sample
from chessreg.entities.checkpoint import import_reference
from chessreg.experiments.cache import CacheOptions, CacheSpec
from chessreg.models.devices import prepare_device
from chessreg.session import Session, open_session


@torch.inference_mode()
def bare_loop(session: Session, texts: list[str], batch: int) -> float:
    """Seconds for plain forward passes of the transformer's blocks over these texts, sorted by length."""
    model = session.model("reference", prepare_device())
    encode = get_encoding("pgn-char-32").encode
    rows = sorted((encode(text[: text.rindex(".") + 1]) for text in texts), key=len)
    began = time.perf_counter()
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        tokens = torch.zeros(len(part), min(max(map(len, part)), model.block_size), dtype=torch.int64)
        for i, ids in enumerate(part):
            tokens[i, : len(ids)] = torch.from_numpy(ids[: tokens.shape[1]].astype(np.int64))
        model.network.hidden(tokens)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--games", type=int, default=200)
    games = parser.parse_args().games
    with tempfile.TemporaryDirectory() as folder, open_session(f"{folder}/r.db", f"{folder}/s") as session:
        add_sample(session.database, session.store, name="sample")
        import_reference(session.database, session.store, name="reference")
        texts = session.dataset("sample").texts(np.arange(games))
        best_loop, best_run = np.inf, np.inf
        for number, batch in enumerate((8, 16, 32)):
            loop = bare_loop(session, texts, batch)
            spec = CacheSpec(checkpoint="reference", dataset="sample", games=games, replicate=number)
            began = time.perf_counter()
            session.run(spec, CacheOptions(batch_games=batch))
            ran = time.perf_counter() - began
            print(f"batch {batch:>3}: bare loop {loop:6.1f} s, run cache {ran:6.1f} s")
            best_loop, best_run = min(best_loop, loop), min(best_run, ran)
        size = sum(f.stat().st_size for f in Path(session.store.arrays).rglob("*") if f.is_file()) / 3e6
        print(
            f"run cache / bare loop at their best: {best_run / best_loop:.2f} (goal at most 1.15); {size:,.0f} MB a run"
        )


if __name__ == "__main__":
    main()
