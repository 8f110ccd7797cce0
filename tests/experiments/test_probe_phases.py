"""Probes of a UCI model by phase: which tokens, which boards, how many; and the metrics that Davis reports."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import select

from chessreg.encodings import get_encoding
from chessreg.entities import checkpoint
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.probe import Probe, ProbeSpec
from chessreg.experiments.probe.data import Labelling, ProbeData, RowSelection, select_rows
from chessreg.experiments.probe.reading import ScoreRankings
from chessreg.experiments.probe_apply import ApplySpec
from chessreg.experiments.settings.sites import EncodedGames
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.models.hook_points import LN_FINAL, RESID_POST
from chessreg.registry import tables
from chessreg.runs.activations import load_cache
from chessreg.runs.fitted import load_probe
from chessreg.session import open_session

FEW = {"min_positions": 50, "epochs": 1}


@pytest.fixture(scope="module")
def session(world):
    """A tiny UCI model with every token of its games cached, `all` to fit on and `held` to test on."""
    network = make_random_gpt2(GPT2Config(2, 2, 32, block_size=160, vocab_size=72), seed=3)
    info = CheckpointInfo.from_network(network, "uci-square-72")
    with open_session(str(world / "registry.db"), world / "store") as opened:
        with opened.store.stage("checkpoint") as folder:
            save_checkpoint(network, folder, info)
            artifact = checkpoint.publish_checkpoint(opened.store, folder, None)
        with opened.database.write() as sql:
            row = checkpoint.build_checkpoint_row(info, artifact.digest, training_datasets=None)
            checkpoint.record_checkpoint(sql, artifact, row, "uci")
        for part, name in (("fit", "all"), ("test", "held")):
            opened.run(
                CacheSpec(checkpoint="uci", dataset=f"sample:{part}", sites="all", hook_points=(RESID_POST, LN_FINAL)),
                name=name,
            )
        yield opened


def cached(session, name="all"):
    return load_cache(session.inputs, session.inputs.reference("run:cache", name))


def test_the_phase_and_the_board_of_a_token_are_those_of_davis_table(session):
    """Davis's phases of `<s> e2 e4 e7 e5 g1`."""
    cache = cached(session)
    game = int(cache.array.game[0])
    first = np.flatnonzero((cache.array.game == game) & (cache.array.token < 6))
    first = first[np.argsort(cache.array.token[first])]
    for alignment, plies in (("pre-ply", [0, 0, 0, 1, 1, 2]), ("post-ply", [0, 0, 1, 1, 2, 2])):
        _, ply, phase = select_rows(session.inputs, cache, RowSelection(alignment=alignment))
        assert phase[first].tolist() == [5, 0, 1, 2, 3, 0]
        assert ply[first].tolist() == plies
    by_phase = [select_rows(session.inputs, cache, RowSelection(phase=phase))[0] for phase in range(6)]
    assert (np.sum(by_phase, 0) == 1).all()
    alone, _, _ = select_rows(session.inputs, cache, RowSelection(phase=2), game=game)
    assert alone.tolist() == (by_phase[2] & (cache.array.game == game)).tolist()


def test_the_last_positions_of_a_cache_and_of_a_probe_are_the_same(session):
    session.run(CacheSpec(checkpoint="uci", dataset="sample:fit", sites="all", last_sites=5), name="ends")
    cache, ends = cached(session), cached(session, "ends")
    usable, _, _ = select_rows(session.inputs, cache, RowSelection(last_sites=5))

    def places(array, keep=slice(None)):
        return sorted(zip(array.game[keep].tolist(), array.token[keep].tolist(), strict=True))

    assert places(cache.array, usable) == places(ends.array)
    last = {game: max(cache.array.token[cache.array.game == game]) for game in np.unique(ends.array.game)}
    assert all(token > last[game] - 5 for game, token in places(ends.array))
    for selection, why in (
        (
            RowSelection(max_sites=3),
            "--skip-sites and --max-sites count from the start of each game, but the cache holds the last 5 sites",
        ),
        (RowSelection(last_sites=6), "--last-sites 6: the cache holds the last 5 sites of each game"),
    ):
        with pytest.raises(BadInputError, match=why):
            select_rows(session.inputs, ends, selection)


def test_a_game_beyond_the_context_has_no_last_positions(session):
    games, _ = session.inputs.dataset(session.inputs.reference("dataset", "sample"))
    written, places = get_encoding("uci-square-72"), np.arange(12)
    lengths = np.diff(written.games(games, places).offsets)
    limit = int(np.median(lengths))
    encoded = EncodedGames.from_items(written, limit, games, places, "all").select_numbered(0, None, 5)
    assert encoded.counts.tolist() == [5 if length <= limit else 0 for length in lengths]
    with pytest.raises(BadInputError, match="--last-sites 5: no game fits the model's context of 160 tokens"):
        raise_for_long_games(session)


def raise_for_long_games(session):
    from chessreg.entities.adding import add_dataset

    path = session.store.root.parent / "long.pgn"
    path.write_text("1. Nf3 Nf6 " + " ".join(f"{n}. Ng1 Ng8 {n + 1}. Nf3 Nf6" for n in range(2, 90, 2)) + " *\n")
    add_dataset(session.database, session.store, [path], name="long")
    session.run(CacheSpec(checkpoint="uci", dataset="long", sites="all", last_sites=5))


def test_a_probe_of_a_phase_is_fitted_and_scored_at_its_tokens_alone(session):
    spec = ProbeSpec(cache="all", test_cache="held", phase="black-origin", label="type", layers=(1,), **FEW)
    assert spec.phase == 2
    report = session.run(spec, name="black-origin")
    inputs = session.inputs
    with session.database.read() as sql:
        row = sql.scalars(select(tables.ProbeRecord).where(tables.ProbeRecord.run_id == report.run_id)).one()
        scores = sql.scalars(select(tables.Score).where(tables.Score.run_id == report.run_id)).all()
        points = sql.scalars(select(tables.MetricPoint).where(tables.MetricPoint.run_id == report.run_id)).all()
    assert (row.positions, row.classes, row.detail["phase"]) == ("black-origins", 7, 2)
    held = cached(session, "held")
    data = ProbeData.load(
        inputs, inputs.reference("run:cache", "held"), Labelling("type"), "test_cache", selection=RowSelection(phase=2)
    )
    rows = np.flatnonzero(data.rows)
    assert sum(score.n for score in scores if score.split == "test") == 64 * len(rows)
    assert (held.array.token[rows] % 4 == 3).mean() > 0.95  # a promotion moves those after it by one
    weight = load_probe(inputs, inputs.reference("run:probe", "black-origin"), 1).weight
    logits = np.einsum("rd,dsk->rsk", held.values(1, rows), weight).reshape(-1, 7).astype(np.float64)
    truth = data.labels[rows].ravel()
    for kind, given in (("logits", logits), ("softmax", np.exp(logits) / np.exp(logits).sum(1, keepdims=True))):
        for k in range(7):
            right, wrong = given[truth == k, k], np.sort(given[truth != k, k])
            ranks = np.searchsorted(wrong, right, "left") + np.searchsorted(wrong, right, "right")
            exact = ranks.mean() / (2 * len(wrong))
            [found] = [p.value for p in points if (p.name, p.step) == (f"test_auc_{kind}", k)]
            assert found == pytest.approx(exact, abs=1e-3)
    applied = session.run(ApplySpec(probe="black-origin", cache="held", allow_overlap=True))
    with session.database.read() as sql:
        again = sql.scalars(select(tables.Score).where(tables.Score.run_id == applied.run_id)).all()
    assert {s.item: s.correct for s in again} == {s.item: s.correct for s in scores if s.split == "test"}
    looked_at = [score for score in scores if score.split == "test"][-1]
    behind = {"run_id": report.run_id, "split": "test", "layer": 1, "item": looked_at.item}
    frames = Probe().board_views(behind, inputs)
    assert len(frames) == looked_at.detail["positions"]
    assert frames[0].title.startswith(f"game {looked_at.item}, token 3 ")
    assert frames[0].ply == 1
    assert " (black-origin), ply 1: layer 1 reads " in frames[0].title
    assert set(frames[0].read) == set(frames[0].marks) != set()
    assert all(0 < one.probability <= 1 for one in frames[0].read.values())
    assert max(frames[0].heat.values()) <= 1


def test_rows_held_out_one_by_one_share_games_with_the_fitted_ones_and_games_do_not(session):
    reference = session.inputs.reference("run:cache", "all")
    data = ProbeData.load(session.inputs, reference, Labelling("color"), "cache", selection=RowSelection(phase=1))
    by_row, by_game = (data.draw_held_out(0.1, 7, by) for by in ("row", "game"))
    assert by_row.sum() == round(0.1 * data.rows.sum())
    assert not (by_row & ~data.rows).any()
    for held, shared in ((by_row, True), (by_game, False)):
        fitted = data.rows & ~held
        assert bool(set(data.item[held]) & set(data.item[fitted])) is shared
    assert not np.array_equal(by_row, data.draw_held_out(0.1, 8, "row"))


def test_the_final_layer_norm_is_probed_with_a_cosine_schedule(session):
    given = {**Probe().preset("davis-corrected-color"), **FEW, "epochs": 2, "last_sites": None}
    spec = ProbeSpec(cache="all", hook_point=LN_FINAL, phase=1, **given)
    assert (spec.label, spec.batch_positions, spec.schedule, spec.split) == ("color", 3000, "cosine", "game")
    assert session.run(spec, name="final").state == "complete"
    assert session.probe("final", 1).hook_point == LN_FINAL


def test_presets_differ_where_paper_code_and_correction_do():
    made = {name: ProbeSpec(cache="x", **settings) for name, settings in Probe.presets.items() if "davis" in name}
    assert len(made) == 9
    paper, code, corrected = (made[f"davis-{name}"] for name in ("paper", "published-code", "corrected"))
    assert [(s.alignment, s.split) for s in (paper, code, corrected)] == [
        ("post-ply", "row"), ("pre-ply", "row"), ("post-ply", "game"),
    ]  # fmt: skip
    assert {(s.epochs, s.learning_rate, s.weight_decay, s.last_sites, s.beta2) for s in made.values()} == {
        (15, 0.009, 0.01, 5, 0.999)
    }
    assert {s.label: s.batch_positions for s in made.values()} == {"piece": 2000, "color": 3000, "type": 3000}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"phase": 5}, r"phase 5 \(special\) has 37 positions to fit on in 41 games; --min-positions requires 1,000"),
        ({"phase": 4}, r"phase 4 \(promotion\)"),
        ({"phase": 6}, r"uci-square-72 has no phase 6 .*0 white-origin"),
        ({"phase": "white-orign"}, "phase 'white-orign' does not exist"),
        ({"label": "joynt"}, "label 'joynt' does not exist"),
        ({"last_sites": 5, "max_sites": 3}, "--last-sites and --max-sites both set the token positions to read"),
        ({"min_positions": 10**6}, r"the cache has [\d,]+ positions to fit on in 41 games"),
        ({"phase": 0, "test_cache": "reference-test"}, "different checkpoints"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(session, settings, why):
    with pytest.raises(ChessregError, match=why) as caught:
        session.run(ProbeSpec(cache="all", **settings))
    assert "\n" not in str(caught.value)


def test_a_probe_of_a_phase_is_refused_on_a_cache_of_other_tokens(session):
    session.run(ProbeSpec(cache="all", phase=0, layers=(1,), **FEW), name="white-origin")
    session.run(CacheSpec(checkpoint="uci", dataset="sample:test", sites="destinations"), name="destinations")
    with pytest.raises(BadInputError, match=r"has phase 0 \(white-origin\)"):
        session.run(ApplySpec(probe="white-origin", cache="destinations", allow_overlap=True))


def test_a_phase_is_typed_by_name_or_number(session, world):
    from click.testing import CliRunner

    from chessreg.cli import chessreg

    there = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
    words = [*there, "run", "probe", "--cache", "all", "--min-positions", "50", "--dry-run", "--json", "--phase"]
    plans = [CliRunner().invoke(chessreg, [*words, phase]) for phase in ("black-destination", "3")]
    assert plans[0].exit_code == 0
    assert plans[0].stdout == plans[1].stdout
    assert '"value": 3' in plans[0].stdout


def test_the_joint_label_is_the_piece_and_hashes_alike():
    from chessreg.runs.spec import get_hashed_settings

    joint, piece = (ProbeSpec(cache="x", label=label) for label in ("joint", "piece"))
    assert get_hashed_settings(joint) == get_hashed_settings(piece)
    with pytest.raises(NotFoundError, match=r"phase .* does not exist"):
        ProbeSpec(cache="x", phase="nowhere")


def test_areas_are_exact_where_scores_lie_apart_and_none_without_both_sides():
    random = np.random.default_rng(1)
    logits = 3 * random.standard_normal((500, 4)).astype(np.float32)
    logits[:, 3] += 400  # a softmax of 1 to the last bit: log-odds still rank it
    truth = random.integers(0, 3, 500)
    rankings = ScoreRankings(4)
    rankings.add(logits[:200], truth[:200])
    rankings.add(logits[200:], truth[200:])
    for k, found in enumerate(rankings.compute_class_areas("logits")[:3]):
        right, wrong = logits[truth == k, k], logits[truth != k, k]
        assert found == pytest.approx((right[:, None] > wrong).mean(), abs=2e-3)
    assert rankings.compute_class_areas("softmax")[3] is None
    assert 0 < rankings.flat("softmax") < 0.5
    assert ScoreRankings(2).flat("logits") is None


def test_what_a_preset_fills_in_is_taken_away_by_none():
    from chessreg.cli.run import build_run_settings, make_kind_command

    probe = Probe()
    for typed, final in (([], 5), (["--last-sites", "none"], None), (["--last-sites", "3"], 3)):
        words = ["--preset", "davis-corrected", "--cache", "fit", *typed]
        spec, _, _ = build_run_settings(probe, make_kind_command(probe, "probe").make_context("probe", words).params)
        assert spec.last_sites == final
