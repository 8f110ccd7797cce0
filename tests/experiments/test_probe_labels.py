"""Probes of other things than pieces: one square, skill, ratings; by ply, by square, on unseen positions, elsewhere."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest
from sqlalchemy import select

from chessreg.entities.run import build_unit_frames
from chessreg.errors import BadInputError
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.probe import ProbeOptions, ProbeSpec
from chessreg.experiments.probe.data import Labelling, ProbeData, RowSelection, make_allocator, predict_from_keys
from chessreg.experiments.probe.reading import pack_plies
from chessreg.experiments.probe.spec import ProbeScore
from chessreg.experiments.probe_apply import ApplySpec
from chessreg.experiments.settings.skill import SkillSettings
from chessreg.queries import run_sql
from chessreg.registry import tables
from chessreg.runs.fitted import find_best_layer, load_probe, make_linear_reader
from store.errors import DiskFullError
from tests.replays import replay_texts

from ..full_disk import no_space_beyond
from .test_probe import fit

SKILL = SkillSettings(bins=2, strata="pooled")


def probed(session, **settings):
    """A finished probe run on the world's caches, its recipe and its data."""
    given = {"cache": "reference-fit", "test_cache": "reference-test", "epochs": 1, "layers": (1,)}
    report = session.run(ProbeSpec(**{**given, **settings}), ProbeOptions(threads=1, memory_mib=0))
    with session.database.read() as sql:
        run = sql.get_one(tables.Run, report.run_id)
    return run, f"run:{run.spec_hash}"


def rows_of(session, family, run, **wanted):
    with session.database.read() as sql:
        return sql.scalars(select(family).filter_by(run_id=run.id, **wanted)).all()


def loaded(session, run, field="cache", fitted=None):
    spec = ProbeSpec(**run.spec)
    recipe = spec.test_cache if field == "test_cache" else spec.cache
    return ProbeData.load(
        session.inputs, recipe, Labelling(spec.label, spec.skill, skill_report=fitted), field,
        selection=RowSelection.from_spec(spec),
    )  # fmt: skip


def test_scratch_files_in_place_of_memory_change_nothing(world_session, tmp_path):
    recipe = world_session.inputs.reference("run:cache", "reference-fit")
    spec = ProbeSpec(cache=recipe, epochs=1)
    weights = []
    for allocate in (np.empty, make_allocator(tmp_path, memory_mib=0)):
        data = ProbeData.load(world_session.inputs, recipe, Labelling("piece"), "cache", allocate=allocate)
        weights.append(fit(spec, data, ~data.draw_held_out(0.1, 0), [0, 1]))
    assert isinstance(data.labels, np.memmap)
    assert np.array_equal(*weights)
    assert not list(tmp_path.iterdir())  # a scratch file has no name


def test_a_scratch_file_on_a_full_disk_is_an_error_and_not_the_end_of_the_process(tmp_path):
    with (
        pytest.raises(DiskFullError, match=f"keep 4 MiB of labels .* the disk is full at {tmp_path}"),
        no_space_beyond(1 << 20),
    ):
        make_allocator(tmp_path, memory_mib=0)((1 << 20,), np.int32)[:] = 1
    assert not list(tmp_path.iterdir())


def test_right_squares_by_ply_add_up_in_sql_as_the_docstring_says(world_session):
    run, recipe = probed(world_session)
    data = loaded(world_session, run, "test_cache")
    weight = load_probe(world_session.inputs, recipe, 1).weight
    right = np.einsum("rd,dsk->rsk", data.cache.values(1), weight).argmax(-1) == data.labels
    plies = data.cache.array.ply
    expected = {int(ply): right[plies == ply].mean() for ply in np.unique(plies)}
    documented = "WITH" + inspect.getdoc(ProbeScore).partition("WITH")[2]
    mine = f"probe_score WHERE run_id = '{run.id}' AND split = 'test'"
    table = run_sql(world_session.database, documented.replace("probe_score", mine))
    found = {row["ply"]: row["accuracy"] for row in table.to_pandas().to_dict("records")}
    assert found.keys() == expected.keys()
    assert all(abs(found[ply] - expected[ply]) < 1e-9 for ply in expected)


def test_irregular_plies_are_written_out():
    assert pack_plies(np.array([0, 2, 4]), np.array([64, 0, 9])) == {
        "right_at": "400009",
        "ply_first": 0,
        "ply_step": 2,
    }
    assert pack_plies(np.array([0, 0, 300]), np.array([1, 2, 3]))["ply_at"] == "00000012c"


def test_unseen_positions_are_those_that_no_fitted_position_equals(world_session):
    run, recipe = probed(world_session)
    fit_data, test = loaded(world_session, run), loaded(world_session, run, "test_cache")
    spec = ProbeSpec(**run.spec)
    fitted = fit_data.rows & ~fit_data.draw_held_out(spec.validation, spec.seed)

    def states(data, rows):
        games, _ = world_session.inputs.dataset(data.cache.dataset)
        found = []
        for row in np.flatnonzero(rows):
            boards, _ = replay_texts(games.texts(data.item[row : row + 1]))
            ply = int(data.cache.array.ply[row])
            found.append((boards[ply].tobytes(), ply % 2))
        return found

    old = set(states(fit_data, fitted))
    new = np.array([state not in old for state in states(test, test.rows)])
    weight = load_probe(world_session.inputs, recipe, 1).weight
    right = (np.einsum("rd,dsk->rsk", test.cache.values(1), weight).argmax(-1) == test.labels).sum(1)
    scores = rows_of(world_session, tables.Score, run, split="test")
    assert 0 < new.sum() < len(new)
    for row in scores:
        mine = test.item == row.item
        assert row.detail["unseen"] == int(new[mine].sum())
        assert row.detail["unseen_correct"] == int(right[mine & new].sum())


def test_the_accuracy_of_every_square_is_a_metric(world_session):
    run, recipe = probed(world_session)
    test = loaded(world_session, run, "test_cache")
    weight = load_probe(world_session.inputs, recipe, 1).weight
    right = np.einsum("rd,dsk->rsk", test.cache.values(1), weight).argmax(-1) == test.labels
    points = rows_of(world_session, tables.MetricPoint, run, name="test_square_accuracy")
    assert [p.step for p in points] == list(range(64))
    np.testing.assert_allclose([p.value for p in points], right.mean(0))


def test_a_position_range_takes_numbers_within_each_game(world_session):
    run, _ = probed(world_session, label="previous-move", skip_sites=15, max_sites=16)
    assert {row.detail["positions"] for row in rows_of(world_session, tables.Score, run)} == {1}
    data = loaded(world_session, run)
    assert set(data.cache.array.ply[data.rows].tolist()) == {30}
    with pytest.raises(BadInputError, match="number 40"):
        probed(world_session, skip_sites=40)
    with pytest.raises(BadInputError, match="--skip-sites 15 leaves out all that --max-sites 3 keeps"):
        probed(world_session, skip_sites=15, max_sites=3)


def test_a_label_of_one_square_is_fitted_scored_and_drawn(world_session):
    run, recipe = probed(world_session, label="pin")
    assert load_probe(world_session.inputs, recipe, 1).weight.shape == (32, 1, 2)
    rows = rows_of(world_session, tables.Score, run, split="test")
    assert all(row.n == row.detail["positions"] for row in rows)
    assert len(np.frombuffer(rows[0].counts, "<i4")) == 6
    frames = build_unit_frames(world_session.inputs, run.id, 0)
    assert all("reads pin" in frame.title and "true value" in frame.title for frame in frames)


def test_skill_keeps_the_outer_classes_and_stands_beside_its_baselines(world_session):
    run, recipe = probed(world_session, label="skill", skill=SKILL, skip_sites=4)
    data = loaded(world_session, run)
    assert data.skill is not None
    assert json.loads(json.dumps(load_probe(world_session.inputs, recipe, 1).detail["skill"]["games"])) == (
        data.skill.report.games
    )
    games, _ = world_session.inputs.dataset(data.cache.dataset)
    elo = games.table(["white_elo"]).column("white_elo").to_numpy()
    edge = data.skill.report.edges["all"][1]
    test = loaded(world_session, run, "test_cache", data.skill.report)
    weight = load_probe(world_session.inputs, recipe, 1).weight[:, 0]
    for row in rows_of(world_session, tables.Score, run, split="test"):
        mine = test.rows & (test.item == row.item)
        logits = test.cache.values(1, np.flatnonzero(mine)) @ weight
        assert row.detail["game_class"] == int(elo[row.item] > edge)
        assert row.n == mine.sum() == (test.cache.array.game == row.item).sum() - 4
        assert row.correct == int((logits.argmax(1) == row.detail["game_class"]).sum())
        assert row.detail["mean_class"] == int(logits.mean(0).argmax())
        assert row.detail["vote_class"] == int(np.bincount(logits.argmax(1), minlength=2).argmax())
        assert {"majority_class", "length_class", "source_class"} <= row.detail.keys()
    assert "skill" in build_unit_frames(world_session.inputs, run.id, 0)[0].title


def test_baselines_say_what_is_most_frequent_among_fitted_games_of_their_key():
    keys = ["a"] * 6 + ["b"] * 6 + ["rare"]
    truth = np.array([1, 1, 1, 1, 0, np.nan, 0, 0, 0, 0, 0, 1, 1.0])
    assert predict_from_keys(keys, truth, ["a", "b", "rare", "new"], 2).tolist() == [1, 0, 0, 0]
    elo = np.array([1000.0, 1200, 1400, 1600, 1800, np.nan, 2000, 2000, 2000, 2000, 2000, 2000, 900])
    assert predict_from_keys(keys, elo, ["a", "b", "rare"], 0)[:2].tolist() == [1400, 2000]


def test_a_rating_is_read_by_regression_with_its_error_in_elo(world_session):
    run, recipe = probed(world_session, label="rating", skip_sites=4, skill=SkillSettings(strata="pooled"))
    probe = load_probe(world_session.inputs, recipe, 1)
    assert probe.weight.shape == (32, 1, 1)
    test = loaded(world_session, run, "test_cache")
    read = test.cache.values(1) @ probe.weight[:, 0, 0] * probe.detail["std"] + probe.detail["mean"]
    rows = rows_of(world_session, tables.Prediction, run, name="test:white_elo:1")
    assert {row.item for row in rows} == set(test.item.tolist())
    for row in rows:
        mine = test.rows & (test.item == row.item)
        assert row.detail["elo"] == 1000 + 40 * games_number(world_session, test, row.item)
        assert row.value == pytest.approx(read[mine].mean(), rel=1e-4)
        assert row.detail["absolute_error"] == pytest.approx(np.abs(read[mine] - row.detail["elo"]).sum(), rel=1e-4)
    (mae,) = rows_of(world_session, tables.MetricPoint, run, name="test_mae")
    assert mae.value == pytest.approx(np.abs(read - test.labels[:, 0])[test.rows].mean(), rel=1e-4)
    assert find_best_layer(world_session.inputs, recipe) == 1


def games_number(session, data, item: int) -> int:
    """The number of a random game of the world, which made its rating."""
    games, _ = session.inputs.dataset(data.cache.dataset)
    return int(games.table(["row"]).column("row")[int(item)].as_py())


def test_test_games_that_were_fitted_on_are_refused(world_session):
    with pytest.raises(BadInputError, match="the probe was made from"):
        probed(world_session, test_cache="reference-fit")
    run, _ = probed(world_session, test_cache="reference-fit", allow_overlap=True)
    (row,) = rows_of(world_session, tables.ProbeRecord, run)
    shared = row.detail["overlap"]
    assert shared["probe"]["games"] == row.train_games
    assert shared["probe"]["of_games"] > row.train_games  # the held-out games were not fitted on
    assert shared["checkpoint"]["games"] is None  # the world's model does not record its training data


def test_a_probe_applied_scores_as_it_did_on_its_test_games(world_session):
    run, recipe = probed(world_session)
    report = world_session.run(ApplySpec(probe=recipe, cache="reference-test"))
    with world_session.database.read() as sql:
        applied = sql.get_one(tables.Run, report.run_id)
    mine = {(r.item, r.n, r.correct, r.counts, json.dumps(r.detail, sort_keys=True))
            for r in rows_of(world_session, tables.Score, applied)}  # fmt: skip
    theirs = {(r.item, r.n, r.correct, r.counts, json.dumps(r.detail, sort_keys=True))
              for r in rows_of(world_session, tables.Score, run, split="test")}  # fmt: skip
    assert mine == theirs
    assert build_unit_frames(world_session.inputs, applied.id, 0)


def test_skill_is_counted_over_games_that_have_no_rating(world_session):
    run, recipe = probed(world_session, label="skill", skill=SKILL, skip_sites=4)
    report = world_session.run(ApplySpec(probe=recipe, cache="reference-test"))
    with world_session.database.read() as sql:
        applied = sql.get_one(tables.Run, report.run_id)
    rows = rows_of(world_session, tables.Prediction, applied)
    points = {(p.name, p.step): p.value for p in rows_of(world_session, tables.MetricPoint, applied)}
    scored = {r.item: r for r in rows_of(world_session, tables.Score, run, split="test")}
    assert set(scored) <= {r.item for r in rows}
    for row in rows:
        if row.item in scored:
            assert row.detail["vote_class"] == scored[row.item].detail["vote_class"]
    positions = sum(r.detail["positions"] for r in rows)
    assert points["share_of_positions", 0] == sum(r.detail["lowest"] for r in rows) / positions
    assert points["share_of_games_by_vote", 1] == sum(r.value == 1 for r in rows) / len(rows)
    assert points["share_of_games_by_mean", 0] + points["share_of_games_by_mean", 1] == pytest.approx(1)


def test_the_layer_is_chosen_on_validation(world_session):
    run, recipe = probed(world_session, layers=(0, 1))
    rows = rows_of(world_session, tables.Score, run, split="validation")
    right = {layer: np.mean([r.correct / r.n for r in rows if r.layer == layer]) for layer in (0, 1)}
    assert find_best_layer(world_session.inputs, recipe) == max(right, key=right.__getitem__)


def test_black_probes_see_the_board_after_whites_move(world_session):
    report = world_session.run(
        CacheSpec(checkpoint="reference", dataset="sample:fit", games=12, sites="even-spaces", layers=(1,), max_sites=8)
    )
    with world_session.database.read() as sql:
        cache = f"run:{sql.get_one(tables.Run, report.run_id).spec_hash}"
    run, _ = probed(world_session, cache=cache, test_cache=None)
    (row,) = rows_of(world_session, tables.ProbeRecord, run)
    assert row.positions == "even-spaces"
    assert {r.detail["ply_first"] for r in rows_of(world_session, tables.Score, run)} == {1}


def test_a_probe_of_centred_residuals_reads_raw_ones_centred(world_session):
    from chessreg.experiments.probe.reading import iterate_game_logits

    data = ProbeData.load(
        world_session.inputs, world_session.inputs.reference("run:cache", "reference-test"), Labelling("piece"), "cache"
    )
    weight = np.random.default_rng(0).standard_normal((32, 64, 13)).astype(np.float32)
    residual = data.cache.values(1)
    centred = np.einsum("rd,dsk->rsk", residual - residual.mean(1, keepdims=True), weight)
    for found in iterate_game_logits(make_linear_reader(weight), data, data.rows, 1, centre=True):
        np.testing.assert_allclose(found.logits, centred[found.rows], atol=1e-3)


@pytest.mark.parametrize(
    ("stem", "total", "right"),
    [
        ("lichess_16layers_ckpt_no_optimizer_chess_piece_probe_layer_11", 2 * 33 * 64, 4213),
        ("randominit_8layers_ckpt_no_optimizer_chess_piece_probe_layer_5", 2 * 33 * 64, 3057),
        ("lichess_8layers_ckpt_no_optimizer_chess_skill_probe_layer_7", 2 * 8, 15),
    ],
)
def test_the_authors_last_batches_are_whole_numbers_of_our_positions(shared_data, stem, total, right):
    """33 dots per game, and 8 of them from dot 25 on for skill."""
    import torch

    saved = torch.load(shared_data / "probes" / f"karvonen-tf_lens_{stem}.pth", map_location="cpu", weights_only=True)
    assert float(saved["acc"]) == pytest.approx(right / total, abs=1e-6)
