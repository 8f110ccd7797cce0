"""Probes of all layers from one cache against the plain way: one model pass per layer, two games a batch, labels in a
Python loop (Karvonen specification 3.4 and 9.1). The plain way's loop is timed on a part of its steps and scaled.

    python tests/benchmarks/bench_probe.py [--games 400] [--seeds 3]

Goals: at least 10 times faster, accuracy within 0.3 points at every layer over 3 seeds. The plain way's accuracy comes
from its own optimiser settings (66 positions a step, learning rate 0.001) on the same activations.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import chess
import numpy as np
import torch
import torch.nn.functional as F
from sqlalchemy import func, select

from chessreg.experiments.cache import CacheSpec, load_cache
from chessreg.experiments.probe import ProbeSpec
from chessreg.experiments.probing.data import ProbeData
from chessreg.games.tokenizers import tokenizer
from chessreg.jobs import checkpoints, datasets, splits
from chessreg.models.devices import prepare
from chessreg.registry import tables
from chessreg.session import Session, open_session

DOTS, EPOCHS = 33, 5


def labels_in_a_loop(text: str) -> np.ndarray:
    """int64 [dots, 64], a board at a time and a square at a time."""
    board, found = chess.Board(), []
    for ply, word in enumerate(text[1:].split()):
        if ply % 2 == 0:
            pieces = [board.piece_at(square) for square in chess.SQUARES]
            found.append([6 if p is None else 6 + (p.piece_type if p.color else -p.piece_type) for p in pieces])
        board.push_san(word.split(".")[-1])
    return np.array(found[:DOTS])


def plain_step_seconds(session: Session, texts: list[str], steps: int) -> float:
    """Seconds of one training step of the plain way, for one layer."""
    model = session.model("reference", prepare())
    encode = tokenizer("pgn-char-32").encode
    weight = (torch.randn(model.d_model, 64 * 13) / model.d_model**0.5).requires_grad_()
    optimizer = torch.optim.AdamW([weight], lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01)
    began = time.perf_counter()
    for step in range(steps):
        for text in texts[2 * step : 2 * step + 2]:  # two games a batch; they differ in length, so one at a time
            dots = [i for i, character in enumerate(text) if character == "."][:DOTS]
            ids = torch.from_numpy(encode(text[: dots[-1] + 1]).astype(np.int64))[None]
            with torch.inference_mode():
                residual = model.residuals(ids, [model.n_layers - 1])[0][0, dots]
            logits = (residual.clone() @ weight).view(-1, 13)
            F.cross_entropy(logits, torch.from_numpy(labels_in_a_loop(text)).flatten(), reduction="sum").backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - began) / steps


def plain_accuracy(fit: ProbeData, test: ProbeData, layer: int, seed: int) -> float:
    """Test accuracy of the plain way's optimiser on the activations of one layer."""
    torch.manual_seed(seed)
    residual, target = torch.from_numpy(fit.cache.read(layer)), torch.from_numpy(fit.labels.astype(np.int64))
    weight = (torch.randn(residual.shape[1], 64 * 13) / residual.shape[1] ** 0.5).requires_grad_()
    optimizer = torch.optim.AdamW([weight], lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(residual)).split(2 * DOTS):
            logits = (residual[batch] @ weight).view(-1, 13)
            (F.cross_entropy(logits, target[batch].flatten(), reduction="sum") / len(batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        read = (torch.from_numpy(test.cache.read(layer)) @ weight).view(-1, 64, 13).argmax(-1).numpy()
    return float((read == test.labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--games", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_session(f"{folder}/r.db", f"{folder}/s") as session:
        datasets.add_sample(session.database, session.store, name="sample")
        splits.split_dataset(session.database, session.store, "sample", "fit=0.6,test=0.4", seed=0)
        checkpoints.import_reference(session.database, session.store, name="reference")
        began = time.perf_counter()
        for part, games in (("fit", given.games), ("test", given.games // 3)):
            spec = CacheSpec(checkpoint="reference", dataset=f"sample:{part}", games=games, last=DOTS)
            session.run(spec, name=part)
        cached = time.perf_counter() - began
        runs, began = [], time.perf_counter()
        for seed in range(given.seeds):
            spec = ProbeSpec(cache="fit", test_cache="test", seed=seed, epochs=EPOCHS, validation=0.02)
            runs.append(session.run(spec).run_id)
        fitted = (time.perf_counter() - began) / given.seeds
        step = plain_step_seconds(session, session.dataset("sample:fit").texts(np.arange(100)), given.steps)
        layers = load_cache(session.inputs, session.inputs.recipe("run:cache", "fit")).layers
        plain = step * EPOCHS * given.games / 2 * len(layers)
        print(f"plain way {plain:,.0f} s for {len(layers)} layers ({step * 1000:.0f} ms a step, scaled)")
        print(
            f"ours {cached:.1f} s to cache and {fitted:.1f} s to fit and score: {plain / (cached + fitted):.1f} times"
        )
        print("faster (goal at least 10)")
        fit, test = (
            ProbeData.load(session.inputs, session.inputs.recipe("run:cache", c), "piece", c) for c in ("fit", "test")
        )
        for layer in layers:
            ours = [accuracy(session, run_id, layer) for run_id in runs]
            theirs = [plain_accuracy(fit, test, layer, seed) for seed in range(given.seeds)]
            one, other = 100 * np.mean(ours), 100 * np.mean(theirs)
            print(f"layer {layer}: ours {one:.2f} %, plain {other:.2f} %, difference {one - other:+.2f}")


def accuracy(session: Session, run_id: object, layer: int) -> float:
    score = tables.Score
    with session.database.read() as sql:
        right, asked = sql.execute(
            select(func.sum(score.correct), func.sum(score.n)).where(
                score.run_id == run_id, score.split == "test", score.layer == layer
            )
        ).one()
    return right / asked


if __name__ == "__main__":
    main()
