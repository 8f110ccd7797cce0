"""Probes of all layers from one cache against the plain way: one model pass per layer, two games a batch, labels in a
Python loop (Karvonen specification 3.4 and 9.1). The plain way's loop is timed on a part of its steps and scaled.

    python tests/benchmarks/bench_probe.py [--games 400] [--seeds 3]

Goals: at least 10 times faster, accuracy within 0.3 points at every layer over 3 seeds. Both fit with the same loss,
optimiser, learning rate, number of positions in a step and normalised residuals: they differ in the loop alone. The
accuracy of 66 positions of two games in a step, the author's, is printed too: a step's positions then resemble each
other, its gradient is noisier, and the probe up to a point worse. That is the batches, not the loop: positions drawn
from all games bring the plain way to ours.
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

from chessreg.encodings import encoding
from chessreg.entities.adding import add_sample
from chessreg.entities.checkpoint import import_reference
from chessreg.entities.dataset import split_dataset
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.probe import ProbeSpec
from chessreg.experiments.probe.data import ProbeData
from chessreg.models.devices import prepare
from chessreg.registry import tables
from chessreg.runs.activations import load_cache
from chessreg.session import Session, open_session

DOTS, EPOCHS = 33, 5
SETTINGS = ProbeSpec(cache="", epochs=EPOCHS, batch_positions=2 * DOTS, validation=0.02)


def labels_in_a_loop(text: str) -> np.ndarray:
    """int64 [dots, 64], a board at a time and a square at a time."""
    board, found = chess.Board(), []
    for ply, word in enumerate(text[1:].split()):
        if ply % 2 == 0:
            pieces = [board.piece_at(square) for square in chess.SQUARES]
            found.append([6 if p is None else 6 + (p.piece_type if p.color else -p.piece_type) for p in pieces])
        board.push_san(word.split(".")[-1])
    return np.array(found[:DOTS])


def optimizer_of(weight: torch.Tensor) -> torch.optim.Optimizer:
    betas = (SETTINGS.beta1, SETTINGS.beta2)
    return torch.optim.AdamW([weight], lr=SETTINGS.learning_rate, betas=betas, weight_decay=SETTINGS.weight_decay)


def first_weight(width: int) -> torch.Tensor:
    return (SETTINGS.init * torch.randn(width, 64 * 13) / width**0.5).requires_grad_()


def plain_step(
    weight: torch.Tensor, optimizer: torch.optim.Optimizer, residual: torch.Tensor, target: torch.Tensor, done: float
) -> None:
    """One step on two games' positions; `done` is the share of the steps done before."""
    for group in optimizer.param_groups:
        group["lr"] = SETTINGS.learning_rate * (1 - 0.9 * done)
    logits = (residual @ weight).view(-1, 13)
    (F.cross_entropy(logits, target.flatten(), reduction="sum") / len(residual)).backward()
    optimizer.step()
    optimizer.zero_grad()


def plain_step_seconds(session: Session, texts: list[str], steps: int) -> float:
    """Seconds of one training step of the plain way, for one layer."""
    model = session.model("reference", prepare())
    encode = encoding("pgn-char-32").encode
    weight = first_weight(model.d_model)
    optimizer = optimizer_of(weight)
    began = time.perf_counter()
    for step in range(steps):
        residuals, labels = [], []
        for text in texts[2 * step : 2 * step + 2]:  # they differ in length, so the model sees one at a time
            dots = [i for i, character in enumerate(text) if character == "."][:DOTS]
            ids = torch.from_numpy(encode(text[: dots[-1] + 1]).astype(np.int64))[None]
            with torch.inference_mode():
                residuals.append(model.residuals(ids, [model.n_layers - 1])[0][0, dots])
            labels.append(torch.from_numpy(labels_in_a_loop(text)))
        residual = torch.cat(residuals).clone()
        plain_step(weight, optimizer, residual / residual.square().mean().sqrt(), torch.cat(labels), 0.0)
    return (time.perf_counter() - began) / steps


def plain_accuracy(fit: ProbeData, test: ProbeData, layer: int, seed: int, by_game: bool) -> float:
    """Test accuracy of the plain way on the activations and fitted games of ours. by_game: two whole games in a step,
    else as many positions of any games."""
    torch.manual_seed(seed)
    residual, target = torch.from_numpy(fit.cache.values(layer)), torch.from_numpy(fit.labels.astype(np.int64))
    scale = residual[:4096].square().mean().sqrt()
    fitted = np.flatnonzero(~fit.held_out(SETTINGS.validation, seed))
    pieces = [fitted[fit.item[fitted] == game] for game in np.unique(fit.item[fitted])] if by_game else fitted[:, None]
    games, together = [torch.from_numpy(piece) for piece in pieces], 2 if by_game else 2 * DOTS
    weight = first_weight(residual.shape[1])
    optimizer = optimizer_of(weight)
    steps, step = EPOCHS * -(-len(games) // together), 0
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(games)).split(together):
            rows = torch.cat([games[i] for i in chosen.tolist()])
            plain_step(weight, optimizer, residual[rows] / scale, target[rows], step / steps)
            step += 1
    with torch.no_grad():
        read = (torch.from_numpy(test.cache.values(layer)) / scale @ weight).view(-1, 64, 13).argmax(-1).numpy()
    return float((read == test.labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--games", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_session(f"{folder}/r.db", f"{folder}/s") as session:
        add_sample(session.database, session.store, name="sample")
        split_dataset(session.database, session.store, "sample", "fit=0.6,test=0.4", seed=0)
        import_reference(session.database, session.store, name="reference")
        began = time.perf_counter()
        for part, games in (("fit", given.games), ("test", given.games // 3)):
            spec = CacheSpec(checkpoint="reference", dataset=f"sample:{part}", games=games, last=DOTS)
            session.run(spec, name=part)
        cached = time.perf_counter() - began
        runs, began = [], time.perf_counter()
        for seed in range(given.seeds):
            spec = SETTINGS.model_copy(update={"cache": "fit", "test_cache": "test", "seed": seed})
            runs.append(session.run(spec).run_id)
        fitted = (time.perf_counter() - began) / given.seeds
        step = plain_step_seconds(session, session.dataset("sample:fit").texts(np.arange(100)), given.steps)
        layers = load_cache(session.inputs, session.inputs.reference("run:cache", "fit")).layers
        plain = step * EPOCHS * given.games / 2 * len(layers)
        print(f"plain way {plain:,.0f} s for {len(layers)} layers ({step * 1000:.0f} ms a step, scaled)")
        print(
            f"ours {cached:.1f} s to cache and {fitted:.1f} s to fit and score: {plain / (cached + fitted):.1f} times"
        )
        print("faster (goal at least 10)")
        fit, test = (
            ProbeData.load(session.inputs, session.inputs.reference("run:cache", c), "piece", c)
            for c in ("fit", "test")
        )
        for layer in layers:
            ours = [accuracy(session, run_id, layer) for run_id in runs]
            seeds = range(given.seeds)
            one = 100 * np.mean(ours)
            other, of_two = (
                100 * np.mean([plain_accuracy(fit, test, layer, seed, by_game) for seed in seeds])
                for by_game in (False, True)
            )
            print(
                f"layer {layer}: ours {one:.2f} %, plain {other:.2f} %, difference {one - other:+.2f} (goal 0.3);"
                f" plain with two whole games a step {of_two:.2f} %",
                flush=True,
            )


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
