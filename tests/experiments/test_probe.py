"""`probe`: fits linear structure, scores every game, and never tests on fitted games."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sqlalchemy import select

from chessreg.errors import BadInputError, ChessregError
from chessreg.experiments.cache import CacheOptions, CacheSpec
from chessreg.experiments.probe import Probe, ProbeSpec, training
from chessreg.experiments.probe.data import Labelling, ProbeData
from chessreg.experiments.probe.reading import RatingScaler, score_probe
from chessreg.experiments.probe.spec import PAPER
from chessreg.experiments.probe.training import FitState, ProbeTraining
from chessreg.experiments.probe.work import (
    SingleTensorAdamW,
    clip_gradient,
    compute_gradient_by_autograd,
    compute_gradient_in_one_pass,
    fit_probes,
)
from chessreg.registry import tables
from chessreg.runs.fitted import find_best_layer, load_probe, make_linear_reader
from chessreg.runs.unfinished import list_states, read_progress


class Readable:
    """Activations from which every square is read by a linear rule: layer 1 of size 20, layer 0 pure noise."""

    def __init__(self, rows: int = 3000, width: int = 48) -> None:
        random = np.random.default_rng(0)
        self.stored = {1: 20 * random.standard_normal((rows, width)).astype(np.float32)}
        self.stored[0] = random.standard_normal((rows, width)).astype(np.float32)
        rule = random.standard_normal((width, 64, 3))
        labels = np.einsum("rd,dsk->rsk", self.stored[1], rule).argmax(-1).astype(np.int8)
        self.data = ProbeData(self, None, np.repeat(np.arange(rows // 10), 10).astype(np.int32), labels, 3)
        self.array, self.d_model, self.token, self.ply = self, width, np.arange(rows), np.zeros(rows)

    def hook_point(self, layer):
        return f"blocks.{layer}.hook_resid_post"

    def values(self, layer, rows=slice(None)):
        return self.stored[int(str(layer).split(".")[1]) if isinstance(layer, str) else layer][rows]

    def iter_batches(self, points, size, seed, epoch, keep):
        from store.batches import Batch

        order = np.random.default_rng([seed, epoch]).permutation(np.flatnonzero(keep))
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            yield Batch(rows, {point: self.values(point, rows) for point in points}, "float32")


def fit(spec, data, rows, layers, on_progress=lambda share, text: None, *, standard=None, every=(), state=None):
    """Weights of these layers."""
    every = tuple(every or layers)
    return fit_probes(ProbeTraining(spec, data, rows, layers, every, "cpu", on_progress, standard, state))


def test_a_linear_rule_is_learnt_whatever_the_size_of_the_layer():
    made = Readable()
    rows = made.data.item < 240
    spec = ProbeSpec(cache="run:" + "0" * 64, epochs=12)
    weight = fit(spec, made.data, rows, [0, 1])
    right = {}
    for layer in (0, 1):
        scored = list(score_probe(make_linear_reader(weight[layer]), made.data, ~rows, layer))
        assert [found.game for found in scored] == list(range(240, 300))
        right[layer] = sum(found.correct for found in scored) / sum(found.n for found in scored)
    assert right[1] > 0.93
    assert right[0] < 0.5


def test_our_adamw_is_that_of_torch_bit_for_bit():
    drawn = torch.Generator().manual_seed(5)
    first, wanted = torch.randn(3, 8, 26, generator=drawn), torch.randn(3, 8, 26, generator=drawn)
    ours, theirs = first.clone().requires_grad_(), first.clone().requires_grad_()
    optimizer = SingleTensorAdamW(ours, 0.9, 0.99, 0.01)
    reference = torch.optim.AdamW([theirs], lr=1.0, betas=(0.9, 0.99), weight_decay=0.01)
    for step in range(50):
        rate = 1e-2 * (1 - 0.9 * step / 50)
        for weight in (ours, theirs):
            (weight * wanted).tanh().sum().backward()
        optimizer.step(ours.grad, rate)
        ours.grad = None
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
        reference.zero_grad()
        assert torch.equal(ours, theirs)
    assert not torch.equal(ours, first)


# -- whole games in a step --------------------------------------------------------------------------------------------


def test_a_step_of_whole_games_sees_all_their_rows_and_every_game_once_in_an_epoch():
    data = Readable(rows=210).data
    order = np.random.default_rng(3).permutation(210)  # however the cache is laid out
    scattered = ProbeData(data.cache, None, data.item[order], data.labels[order], 3)
    fitted = data.item % 5 != 0
    for epoch in (0, 1):
        steps = list(data.iterate_whole_games(fitted, 2, 7, epoch))
        games = [tuple(dict.fromkeys(data.item[rows].tolist())) for rows in steps]
        assert [len(found) for found in games] == [2] * 8  # 16 of 21 games
        assert sorted(game for found in games for game in found) == np.unique(data.item[fitted]).tolist()
        for found, rows in zip(games, steps, strict=True):
            assert sorted(rows.tolist()) == np.flatnonzero(np.isin(data.item, found)).tolist()
        elsewhere = list(scattered.iterate_whole_games(fitted[order], 2, 7, epoch))
        assert [set(scattered.item[rows].tolist()) for rows in elsewhere] == list(map(set, games))
        for layer, read in enumerate(data.activations([0, 1], steps[0])):
            np.testing.assert_array_equal(read, data.cache.values(layer)[steps[0]])
    assert [r.tolist() for r in data.iterate_whole_games(fitted, 2, 7, 0)] != [r.tolist() for r in steps]


def by_class(weight, outputs):
    return weight.unflatten(2, (-1, outputs)).mT.flatten(2)


@pytest.mark.parametrize(("squares", "outputs"), [(64, 13), (1, 2), (1, 1)])
def test_the_gradient_in_one_pass_is_that_of_autograd(squares, outputs):
    drawn = torch.Generator().manual_seed(2)
    residual = 3 * torch.randn(4, 10, 16, generator=drawn)
    weight = torch.randn(4, 16, squares * outputs, generator=drawn)
    target = torch.randint(0, outputs, (10, squares), generator=drawn)
    if outputs == 1:
        target = torch.randn(10, 1, generator=drawn)
    wanted = compute_gradient_by_autograd(residual, weight, target, outputs)
    found = compute_gradient_in_one_pass(residual, by_class(weight, outputs), target, outputs)
    assert wanted.abs().max() > 0.1
    torch.testing.assert_close(found, by_class(wanted, outputs), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_a_gradient_is_clipped_as_that_of_a_loss_averaged_over_squares(limit):
    """The author's probe is one module a layer, whose loss HF Trainer clips."""
    torch.manual_seed(0)
    residual, target = torch.randn(2, 10, 6), torch.randint(0, 3, (10, 4))
    weight = torch.randn(2, 6, 4 * 3)
    found = clip_gradient(compute_gradient_by_autograd(residual, weight, target, 3), 4, limit)
    for layer in range(2):
        leaf = weight[layer].clone().requires_grad_()
        logits = (residual[layer] @ leaf).view(-1, 3)
        torch.nn.functional.cross_entropy(logits, target.flatten()).backward()  # the mean over rows and squares
        torch.nn.utils.clip_grad_norm_([leaf], limit)
        torch.testing.assert_close(found[layer] / 4, leaf.grad, rtol=1e-4, atol=1e-9)


def test_a_fit_clips_the_gradients_that_its_spec_says():
    made = Readable(rows=300)
    rows, spec = made.data.item < 24, ProbeSpec(cache="run:" + "0" * 64, epochs=2)
    assert spec.max_grad_norm is None
    free, wide, narrow = (
        fit(spec.model_copy(update={"max_grad_norm": norm}), made.data, rows, [1]) for norm in (None, 1e9, 1e-9)
    )
    np.testing.assert_allclose(free, wide, atol=1e-6)
    assert np.abs(free - narrow).max() > 1e-4


def test_whole_games_are_fitted_as_torch_alone_would_fit_them():
    made = Readable(rows=300)
    rows = made.data.item < 24
    spec = ProbeSpec(cache="run:" + "0" * 64, **{**PAPER, "epochs": 3, "learning_rate": 0.02})
    found = fit(spec, made.data, rows, [1])[0]
    weight = torch.randn(1, 48, 64 * 3, generator=torch.Generator().manual_seed(0))[0] / 48**0.5
    weight.requires_grad_()
    optimizer = torch.optim.AdamW([weight], lr=0.02, betas=(0.9, 0.99), weight_decay=0.01)
    for epoch in range(3):
        for chosen in made.data.iterate_whole_games(rows, 2, 0, epoch):
            logits = torch.from_numpy(made.stored[1][chosen]) @ weight
            target = torch.from_numpy(made.data.labels[chosen].astype(np.int64))
            each = torch.nn.functional.cross_entropy(logits.view(-1, 3), target.flatten(), reduction="none")
            each.view(-1, 64).mean(0).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    np.testing.assert_allclose(found, weight.detach().view(48, 64, 3).numpy(), atol=2e-4)
    assert float(torch.tensor(1e-38) * 0.1) > 0  # afterwards the smallest numbers are no longer taken for 0


def test_a_layer_is_fitted_alike_whichever_others_are_missing():
    made = Readable(rows=300)
    rows = made.data.item < 24
    spec = ProbeSpec(cache="run:" + "0" * 64, batch_games=3, epochs=2)

    def fitted(*layers):
        return fit(spec, made.data, rows, list(layers), every=[0, 1])

    np.testing.assert_array_equal(fitted(0, 1)[1], fitted(1)[0])


@pytest.mark.parametrize("step", [{"batch_games": 3}, {"batch_positions": 40, "schedule": "cosine"}])
def test_an_interrupted_fit_resumes_at_the_next_step_with_the_same_bits(tmp_path, step):
    made = Readable(rows=900)
    rows = made.data.item < 84
    spec = ProbeSpec(cache="run:" + "0" * 64, epochs=4, **step)
    reports = []

    class Stop(Exception):
        pass

    def fit_until(layers, task=None, stop_at=None):
        def report(share, text):
            reports.append(share)
            if task is not None and stop_at is not None and share > stop_at:
                raise Stop

        state = None if task is None else FitState(task, layers)
        return fit(spec, made.data, rows, layers, report, every=[0, 1], state=state)

    whole, whole_reports = fit_until([0, 1]), len(reports)
    task = SimpleNamespace(folder=tmp_path, stopping=True)
    for stop_at in (0.2, 0.5):
        with pytest.raises(Stop):
            fit_until([0, 1], task, stop_at)
    reports.clear()
    np.testing.assert_array_equal(fit_until([0, 1], task), whole)
    assert 0 < len(reports) < whole_reports / 2 + 1
    reports.clear()
    np.testing.assert_array_equal(fit_until([1], task)[0], whole[1])  # the other layer was published meanwhile
    assert reports == []
    (tmp_path / "fit-0_1.pt").write_bytes(b"torn")
    with pytest.raises(ChessregError, match="cannot be read"):
        fit_until([0, 1], task)


def test_a_stopped_run_resumes_its_fit_and_keeps_no_state_after_its_end(world_session, monkeypatch):
    monkeypatch.setattr(training, "SAVE_INTERVAL_S", 0.0)
    spec = ProbeSpec(cache="reference-fit", epochs=30, seed=5, batch_games=2)

    def stop_at_half(share, text):
        if share > 0.4:
            signal.raise_signal(signal.SIGINT)

    report = world_session.run(spec, on_progress=stop_at_half)
    assert report.interrupted
    folder = world_session.store.run_folder(report.run_id.hex)
    [path] = list_states(world_session.database, world_session.store, report.run_id)
    assert 0 < read_progress(path)[0] < 30
    assert world_session.run(spec).state == "complete"
    assert not list(folder.glob("fit-*"))


def test_every_seed_that_a_spec_takes_draws_first_weights():
    made = Readable(rows=300)
    rows = made.data.item < 24
    drawn = []
    for seed in (0, 1 - 2**63, 2**63 - 1):
        spec = ProbeSpec(cache="run:" + "0" * 64, batch_games=3, epochs=1, seed=seed)
        drawn.append(fit(spec, made.data, rows, [0]))
    assert not any(np.array_equal(drawn[0], other) for other in drawn[1:])


def test_a_step_is_of_positions_or_of_games():
    with pytest.raises(BadInputError, match="--batch-games and --batch-positions both set"):
        ProbeSpec(cache="x", batch_games=2, batch_positions=66)
    for name in ("paper", "paper-skill"):
        assert Probe.presets[name]["batch_games"] == 2
    assert Probe.presets["paper-rating"]["batch_games"] == 5


def test_regression_learns_a_linear_rule():
    made = Readable()
    elo = (1500 + 300 * made.stored[1] @ np.random.default_rng(1).standard_normal(48) / 140).astype(np.float32)[:, None]
    data = ProbeData(made, None, made.data.item, elo, 0)
    rows = data.item < 240
    standard = RatingScaler.from_ratings(elo[rows])
    spec = ProbeSpec(cache="run:" + "0" * 64, epochs=12, label="rating")
    weight = fit(spec, data, rows, [0, 1], standard=standard)
    read = made.stored[1] @ weight[1, :, 0, 0] * standard.std + standard.mean
    assert np.abs(read - elo[:, 0])[~rows].mean() < 0.1 * standard.std
    noise = made.stored[0] @ weight[0, :, 0, 0] * standard.std + standard.mean
    assert np.abs(noise - elo[:, 0])[~rows].mean() > 0.5 * standard.std


def test_a_game_is_left_to_fit_on_and_one_alone_is_refused(world_session):
    inputs = world_session.inputs
    spec = ProbeSpec(**inputs.run(inputs.reference("run:probe", "reference-board")).spec)
    data = ProbeData.load(inputs, spec.cache, Labelling("piece"), "cache")
    for by in ("game", "row"):
        assert (~data.draw_held_out(0.9999, 0, by)).any()
    one = CacheSpec(checkpoint="reference", dataset="sample:fit", games=1)
    world_session.run(one, CacheOptions(threads=1), name="one-game")
    with pytest.raises(BadInputError, match="one game is too few to fit and to evaluate a probe"):
        world_session.run(ProbeSpec(cache="one-game", epochs=1))


def test_scores_follow_from_the_stored_probe(world_session):
    inputs = world_session.inputs
    recipe = inputs.reference("run:probe", "reference-board")
    run = inputs.run(recipe)
    spec = ProbeSpec(**run.spec)
    data = ProbeData.load(inputs, spec.cache, Labelling("piece"), "cache")
    held = data.draw_held_out(spec.validation, spec.seed)
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
    assert find_best_layer(inputs, recipe) == max(accuracy, key=accuracy.__getitem__)


def test_labels_are_the_boards_of_python_chess(world_session):
    import chess

    inputs = world_session.inputs
    data = ProbeData.load(inputs, inputs.reference("run:cache", "reference-fit"), Labelling("piece"), "cache")
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
import os, sys, threading
from pathlib import Path

HOUSE = {"chessreg", "store", "tui", "migrations"}
entered = set()

def note(frame, event, argument):  # of calls alone: what it returns would be told of lines and returns
    code, name = frame.f_code, frame.f_globals.get("__name__", "")
    # Not a module, a class or a comprehension, and nothing that dataclasses wrote.
    function = code.co_flags & 2 and not code.co_name.startswith("<") and not code.co_filename.startswith("<")
    if function and name.partition(".")[0] in HOUSE:
        entered.add(name)

sys.settrace(note)
threading.settrace(note)
from chessreg.cli.root import run_command_line
status = run_command_line(sys.argv[1:])
sys.settrace(None)
assert status == 0
print("LOADED", *(name for name in sys.modules if name.partition(".")[0] in HOUSE))
print("ENTERED", *entered)
print("SLOW", *({"torch._dynamo", "pandas", "zarr", "transformers", "duckdb", "scipy"} & set(sys.modules)))
"""


def test_a_run_loads_what_it_needs_and_enters_few_modules(pristine_world, tmp_path):
    world = shutil.copytree(pristine_world, tmp_path / "world")
    words = [*["run", "probe", "--cache", "reference-fit", "--epochs", "1", "--seed", "77", "--registry"], str(world)]
    done = subprocess.run([sys.executable, "-c", LOADED, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded, entered, slow = (line.split()[1:] for line in done.stdout.splitlines()[-3:])
    assert slow == []
    others = ("entities", "queries", "scheduling", "encodings", "runs.transfer", "runs.trust", "registry.lease")
    assert not [name for name in loaded if name.startswith(tuple(f"chessreg.{other}" for other in others))]
    assert len(loaded) <= 85, sorted(loaded)  # with the empty packages of `games`
    assert len(entered) <= 55, sorted(entered)


def test_a_probe_of_shuffled_labels_says_so_and_is_tested_on_true_ones(world_session):
    """Labels are dealt among the fitted games: all that the games that are tested on say of themselves stays."""
    inputs = world_session.inputs
    found = {}
    for draw in (None, 3):
        spec = ProbeSpec(
            cache="reference-fit",
            test_cache="reference-test",
            label="skill",
            skip_sites=2,
            epochs=1,
            shuffled_label_control=draw,
        )
        report = world_session.run(spec)
        with world_session.database.read() as sql:
            rows = sql.scalars(select(tables.Score).where(tables.Score.run_id == report.run_id)).all()
            [label] = set(
                sql.scalars(select(tables.ProbeRecord.label).where(tables.ProbeRecord.run_id == report.run_id))
            )
        assert {row.detail["label"] for row in rows} == {label}
        truth = {(row.split, row.item): (row.detail["game_class"], row.detail["source_class"]) for row in rows}
        found[draw] = label, truth, load_probe(inputs, inputs.reference("run:probe", report.run_id.hex), 1).weight
    assert (found[None][0], found[3][0]) == ("skill", "skill-shuffled")
    assert found[None][1] == found[3][1]
    assert np.abs(found[None][2] - found[3][2]).max() > 1e-3
    rows = world_session.query("best probe layers").rows
    assert {row["label"] for row in rows} >= {"skill", "skill-shuffled"}


@pytest.mark.parametrize("label", ["piece", "skill", "rating"])
def test_labels_are_dealt_among_the_fitted_alone_and_none_is_lost(world_session, label):
    reference = world_session.inputs.reference("run:cache", "reference-fit")

    def data():
        return ProbeData.load(world_session.inputs, reference, Labelling(label), "cache")

    true, dealt, again, other = (data() for _ in range(4))
    fitted = true.rows & ~true.draw_held_out(0.3, 0)
    for one, draw in ((dealt, 4), (again, 4), (other, 5)):
        one.permute_labels(fitted, draw)
    np.testing.assert_array_equal(dealt.labels, again.labels)
    assert (dealt.labels != other.labels).any()
    assert (dealt.labels != true.labels)[fitted].any()
    np.testing.assert_array_equal(dealt.labels[~fitted], true.labels[~fitted])
    if label == "piece":
        assert sorted(map(bytes, dealt.labels[fitted])) == sorted(map(bytes, true.labels[fitted]))
        return
    games, first = np.unique(true.item[fitted], return_index=True)
    assert sorted(dealt.labels[fitted][first, 0]) == sorted(true.labels[fitted][first, 0])
    for game in games:
        assert len(set(dealt.labels[true.item == game, 0])) == 1
