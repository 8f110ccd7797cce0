"""`probe`: fits what is linear, scores every game, and never tests on what it was fitted on."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from sqlalchemy import select

from chessreg.entities.probe import best_layer, load_probe
from chessreg.errors import BadInputError
from chessreg.experiments.probe import ProbeSpec
from chessreg.experiments.probe.data import ProbeData
from chessreg.experiments.probe.reading import score
from chessreg.experiments.probe.work import AdamW, Standard, fit
from chessreg.registry import tables


class Readable:
    """Activations from which every square is read by a linear rule: layer 1 of size 20, layer 0 pure noise."""

    def __init__(self, rows: int = 3000, width: int = 48) -> None:
        random = np.random.default_rng(0)
        self.values = {1: 20 * random.standard_normal((rows, width)).astype(np.float32)}
        self.values[0] = random.standard_normal((rows, width)).astype(np.float32)
        rule = random.standard_normal((width, 64, 3))
        labels = np.einsum("rd,dsk->rsk", self.values[1], rule).argmax(-1).astype(np.int8)
        self.data = ProbeData(self, None, np.repeat(np.arange(rows // 10), 10).astype(np.int32), labels, 3)
        self.array, self.d_model, self.token, self.ply = self, width, np.arange(rows), np.zeros(rows)

    def hook_point(self, layer):
        return f"blocks.{layer}.hook_resid_post"

    def read(self, layer, rows=slice(None)):
        return self.values[int(str(layer).split(".")[1]) if isinstance(layer, str) else layer][rows]

    def iter_batches(self, points, size, seed, epoch, keep):
        from store.batches import Batch

        order = np.random.default_rng([seed, epoch]).permutation(np.flatnonzero(keep))
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            yield Batch(rows, {point: self.read(point, rows) for point in points}, "float32")


def test_a_linear_rule_is_learnt_whatever_the_size_of_the_layer():
    made = Readable()
    rows = made.data.item < 240
    spec = ProbeSpec(cache="run:" + "0" * 64, epochs=12)
    weight = fit(spec, made.data, rows, [0, 1], "cpu", lambda fraction, text: None)
    right = {}
    for layer in (0, 1):
        scored = list(score(weight[layer], made.data, ~rows, layer))
        assert [found.game for found in scored] == list(range(240, 300))
        right[layer] = sum(found.correct for found in scored) / sum(found.n for found in scored)
    assert right[1] > 0.93
    assert right[0] < 0.5


def test_our_adamw_is_that_of_torch_bit_for_bit():
    drawn = torch.Generator().manual_seed(5)
    first, wanted = torch.randn(3, 8, 26, generator=drawn), torch.randn(3, 8, 26, generator=drawn)
    ours, theirs = first.clone().requires_grad_(), first.clone().requires_grad_()
    optimizer = AdamW(ours, 0.9, 0.99, 0.01)
    reference = torch.optim.AdamW([theirs], lr=1.0, betas=(0.9, 0.99), weight_decay=0.01)
    for step in range(50):
        rate = 1e-2 * (1 - 0.9 * step / 50)
        for weight in (ours, theirs):
            (weight * wanted).tanh().sum().backward()
        optimizer.step(rate)
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
        reference.zero_grad()
        assert ours.grad is None
        assert torch.equal(ours, theirs)
    assert not torch.equal(ours, first)


def test_regression_learns_a_linear_rule():
    made = Readable()
    elo = (1500 + 300 * made.values[1] @ np.random.default_rng(1).standard_normal(48) / 140).astype(np.float32)[:, None]
    data = ProbeData(made, None, made.data.item, elo, 0)
    rows = data.item < 240
    standard = Standard.of(elo[rows])
    spec = ProbeSpec(cache="run:" + "0" * 64, epochs=12, label="rating")
    weight = fit(spec, data, rows, [0, 1], "cpu", lambda fraction, text: None, standard)
    read = made.values[1] @ weight[1, :, 0, 0] * standard.std + standard.mean
    assert np.abs(read - elo[:, 0])[~rows].mean() < 0.1 * standard.std
    noise = made.values[0] @ weight[0, :, 0, 0] * standard.std + standard.mean
    assert np.abs(noise - elo[:, 0])[~rows].mean() > 0.5 * standard.std


def test_scores_follow_from_the_stored_probe(world_session):
    inputs = world_session.inputs
    recipe = inputs.reference("run:probe", "reference-board")
    run = inputs.run(recipe)
    spec = ProbeSpec(**run.spec)
    data = ProbeData.load(inputs, spec.cache, "piece", "cache")
    held = data.held_out(spec.validation, spec.seed)
    assert not set(data.item[held]) & set(data.item[~held])
    with world_session.database.read() as sql:
        rows = sql.scalars(select(tables.Score).where(tables.Score.run_id == run.id)).all()
    assert {row.item for row in rows} == set(data.item[held].tolist())
    for row in rows:
        weight = load_probe(inputs, recipe, row.layer).weight
        at = np.flatnonzero(data.item == row.item)
        read = np.einsum("rd,dsk->rsk", data.cache.values(row.layer, at), weight).argmax(-1)
        truth = data.labels[at]
        assert (row.n, row.correct) == (truth.size, int((read == truth).sum()))
        positive, false_positive, false_negative = np.frombuffer(row.counts, "<i4").reshape(3, 13)
        assert (positive + false_negative).tolist() == np.bincount(truth.ravel(), minlength=13).tolist()
        assert (positive + false_positive).tolist() == np.bincount(read.ravel(), minlength=13).tolist()
        assert row.detail["exact"] == int((read == truth).all(1).sum())


def test_the_best_layer_is_chosen_on_validation(world_session):
    inputs = world_session.inputs
    recipe = inputs.reference("run:probe", "reference-board")
    with world_session.database.read() as sql:
        rows = sql.scalars(select(tables.Score).where(tables.Score.run_id == inputs.run(recipe).id)).all()
    accuracy = {
        layer: sum(r.correct for r in rows if r.layer == layer and r.split == "validation")
        / sum(r.n for r in rows if r.layer == layer and r.split == "validation")
        for layer in (0, 1)
    }
    assert best_layer(inputs, recipe) == max(accuracy, key=accuracy.__getitem__)


def test_labels_are_the_boards_of_python_chess(world_session):
    import chess

    inputs = world_session.inputs
    data = ProbeData.load(inputs, inputs.reference("run:cache", "reference-fit"), "piece", "cache")
    games, _ = inputs.dataset(data.cache.dataset)
    item = int(data.item[0])
    board, boards = chess.Board(), []
    for word in games.texts(np.array([item]))[0][1:].split():
        boards.append(board.copy(stack=False))
        board.push_san(word.split(".")[-1])
    for row in np.flatnonzero(data.item == item):
        pieces = [boards[data.cache.array.ply[row]].piece_at(s) for s in chess.SQUARES]
        expected = [6 if p is None else 6 + (p.piece_type if p.color else -p.piece_type) for p in pieces]
        assert data.labels[row].tolist() == expected


def test_a_layer_that_is_not_cached_is_refused(world_session):
    with pytest.raises(BadInputError, match="layer 5"):
        world_session.run(ProbeSpec(cache="reference-fit", layers=(5,)))


LOADED = """
import sys
from chessreg.experiments.probe import ProbeSpec
from chessreg.session import open_session
with open_session(sys.argv[1], sys.argv[2]) as session:
    session.run(ProbeSpec(cache="reference-fit", epochs=1, seed=77))
slow = {"torch._dynamo", "pandas", "zarr", "transformers", "duckdb", "scipy"}
ours = {"chessreg.games.reader", "chessreg.games.san", "chessreg.games.build", "chessreg.entities.gc"}
print(sorted((slow | ours) & set(sys.modules)))
"""


def test_a_run_loads_neither_a_compiler_nor_what_adds_games(pristine_world, tmp_path):
    world = shutil.copytree(pristine_world, tmp_path / "world")
    command = [sys.executable, "-c", LOADED, str(world / "registry.db"), str(world / "store")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
