"""Tables of probes that pool seeds, compare with untrained twins, and rate every class."""

import struct

import pytest

from chessreg.queries import run_query
from chessreg.queries.ask import query_rows_behind
from chessreg.registry import tables
from tests.quick import quick_first

TRAINED = {
    (0, "validation"): [(64, 60)],
    (1, "validation"): [(64, 50)],
    (0, "test"): [(64, 60), (64, 56), (64, 62)],
    (1, "test"): [(64, 62), (64, 62), (64, 61)],
}
UNTRAINED = {
    (0, "validation"): [(64, 30)],
    (1, "validation"): [(64, 31)],
    (0, "test"): [(64, 40), (64, 41), (64, 40)],
    (1, "test"): [(64, 32), (64, 30), (64, 31)],
}


@pytest.fixture
def probed(make):
    """A model with two probe seeds and two twins with one each."""
    model = make.checkpoint("reference")
    fit, test = make.dataset("january"), make.dataset("february")

    def read(checkpoint):
        return {"cache": make.cache(checkpoint, fit), "test_cache": make.cache(checkpoint, test), "epochs": 5}

    model.read = read(model)
    for seed in (0, 1):
        make.probe(model, TRAINED, name=f"board-{seed}", spec={"seed": seed, **model.read})
    for number in (0, 1):
        twin = make.checkpoint(f"twin-{number}", source_format="random-init", parent_id=model.id)
        make.probe(twin, UNTRAINED, name=f"twin-{number}", spec={"seed": 0, **read(twin)})
    return model


def test_the_layer_is_chosen_on_validation_or_on_test_and_always_reported_on_test(database, probed):
    rows = run_query(database, "karvonen table 1").rows
    assert [(r["weights"], r["selected_on"], r["layer"], r["n_seeds"], r["models"]) for r in rows] == [
        ("trained", "validation", 0, 2, 1),
        ("trained", "test", 1, 2, 1),
        ("untrained", "validation", 1, 2, 2),
        ("untrained", "test", 0, 2, 2),
    ]
    assert [r["accuracy"] for r in rows] == pytest.approx([100 * s / 192 for s in (178, 185, 93, 121)])
    assert {(r["n_games"], r["n"], r["layers_tried"]) for r in rows} == {(3, 384, 2)}


def test_trained_minus_twins_pairs_the_same_games(database, probed):
    validation, test, *untrained = run_query(database, "karvonen table 1", checkpoint="reference").rows
    assert validation["minus_untrained"] == pytest.approx(100 * (178 - 93) / 192)
    assert test["minus_untrained"] == pytest.approx(100 * (185 - 121) / 192)
    assert validation["minus_untrained_low"] < validation["minus_untrained"] < validation["minus_untrained_high"]
    assert (validation["untrained_layer"], test["untrained_layer"]) == (1, 0)
    assert {r["minus_untrained"] for r in untrained} == {None}


@pytest.mark.slow
def test_a_small_difference_from_one_twin_has_a_note(database, make):
    model = make.checkpoint("reference")
    fit, test = make.dataset("january"), make.dataset("february")
    better = {key: [(n, right + (key[1] == "test" and not game)) for game, (n, right) in enumerate(games)]
              for key, games in UNTRAINED.items()}  # fmt: skip

    def probe(checkpoint, scores):
        spec = {"seed": 0, "cache": make.cache(checkpoint, fit), "test_cache": make.cache(checkpoint, test)}
        make.probe(checkpoint, scores, name=f"of-{checkpoint.id}", spec=spec)
        return run_query(database, "best probe layers")

    def twin(name):
        return make.checkpoint(name, source_format="random-init", parent_id=model.id)

    probe(model, better)
    one = probe(twin("twin-0"), UNTRAINED)
    assert [row["minus_untrained"] for row in one.rows[:2]] == [pytest.approx(100 / 192)] * 2
    note = "rows 1, 2: one twin: the interval resamples games, not random initializations"
    assert note in one.notes
    assert note not in probe(twin("twin-1"), UNTRAINED).notes


def test_a_model_that_its_import_found_hardly_trained_is_called_so(database, make):
    for name, loss in (("lost", 3.1), ("good", 1.2)):
        model = make.checkpoint(name, detail={"games": {"loss": loss, "entropy": 3.0, "legal": 0.1}})
        spec = {"seed": 0, "cache": make.cache(model, make.dataset(f"games-{name}"))}
        make.probe(model, TRAINED, name=f"probe-{name}", spec=spec)
    rows = run_query(database, "best probe layers").rows
    assert {row["checkpoint"]: row["weights"] for row in rows} == {"lost": "hardly trained", "good": "trained"}


def test_runs_of_other_settings_are_another_pool(database, make, probed):
    make.probe(probed, TRAINED, name="longer", spec={"seed": 0, **probed.read, "epochs": 9})
    rows = run_query(database, "best probe layers", where="weights = 'trained' AND selected_on = 'test'").rows
    said = "accuracy is in %: 65, not 0.65"  # a share would be compared with percentages
    for where, is_noted in (("accuracy < 0.65", True), ("accuracy>=0.65", True), ("accuracy > 65", False)):
        assert (said in run_query(database, "best probe layers", where=where).notes) is is_noted
    assert sorted(r["runs"] for r in rows) == ["board-0, board-1", "longer"]
    assert {r["run"] for r in query_rows_behind(database, "best probe layers", 1).rows} == {"board-0", "board-1"}


@pytest.mark.parametrize(
    ("which", "differs"),
    quick_first(
        1, [("cache", "dataset"), ("test_cache", "dataset"), ("cache", "alignment"), ("test_cache", "skip_sites")]
    ),
)
def test_fits_and_tests_on_other_caches_are_another_pool_that_says_which(database, make, which, differs):
    """A seed each, and a control of each on the same games."""
    model = make.checkpoint("reference")
    twin = make.checkpoint("twin", source_format="random-init", parent_id=model.id)
    datasets = {name: make.dataset(name) for name in ("january", "february")}
    other, words = {
        "dataset": (datasets["february"], "february"), "alignment": ("pre-ply", "january, pre-ply"),
        "skip_sites": (12, "january, skip_sites 12"),
    }[differs]  # fmt: skip
    for number, settings in enumerate(({}, {differs: other})):
        for checkpoint, scores in ((model, TRAINED), (twin, UNTRAINED)):
            caches = {name: {"dataset": datasets["january"]} for name in ("cache", "test_cache")}
            caches[which] |= settings
            spec = {name: make.cache(checkpoint, **asked) for name, asked in caches.items()}
            make.probe(checkpoint, scores, name=f"{checkpoint.source_format}-{number}", spec={"seed": number, **spec})
    rows = run_query(database, "best probe layers", where="selected_on = 'test' AND weights = 'trained'").rows
    assert {(row["n_seeds"], row["n_games"]) for row in rows} == {(1, 3)}
    assert [row["minus_untrained"] for row in rows] == [pytest.approx(100 * (185 - 121) / 192)] * 2
    column = {"cache": "fitted_on", "test_cache": "tested_on"}[which]
    assert {row["runs"]: row[column] for row in rows} == {"nanogpt-0": "january", "nanogpt-1": words}


@pytest.mark.parametrize("title", quick_first(1, ["probe accuracy by layer", "square accuracy by ply"]))
def test_fits_of_one_number_have_the_same_games(database, make, title):
    """So that a plot takes them for seeds of one fit."""
    model = make.checkpoint("reference")
    twin = make.checkpoint("twin", source_format="random-init", parent_id=model.id)
    scores = {(0, "test"): [(64, 60, {"positions": 1, "right_at": "3c", "ply_first": 0, "ply_step": 2})]}
    january, february = make.dataset("january"), make.dataset("february")
    for name, checkpoint, dataset in (
        ("seed-0", model, january), ("seed-1", model, january), ("other", model, february), ("twin", twin, february)
    ):  # fmt: skip
        spec = {"cache": make.cache(checkpoint, dataset), "seed": ord(name[-1])}
        make.probe(checkpoint, scores, layers=(0,), name=name, spec=spec)
    fits = {row["run"]: row["fit"] for row in run_query(database, title).rows}
    assert fits["seed-0"] == fits["seed-1"] != fits["other"] == fits["twin"]


@pytest.mark.slow
def test_controls_and_linear_probes_of_other_games_stand_beside_none(database, make):
    model = make.checkpoint("reference")
    twin = make.checkpoint("twin", source_format="random-init", parent_id=model.id)
    january, february = make.dataset("january"), make.dataset("february")
    cache, scores = make.cache(model, january), {(0, "test"): [(64, 60), (64, 50)]}
    tests = [make.cache(model, dataset) for dataset in (january, february)]
    for name, test in zip(("on-january", "on-february"), tests, strict=True):
        make.probe(model, scores, layers=(0,), name=name, spec={"cache": cache, "test_cache": test})
    spec = {"cache": cache, "test_cache": tests[1], "source": "means"}
    make.probe(model, scores, layers=(0,), name="means", spec=spec)
    spec = {"cache": make.cache(twin, january), "test_cache": make.cache(twin, february)}
    make.probe(twin, scores, layers=(0,), name="twin", spec=spec)
    rows = run_query(database, "probe metrics by layer", checkpoint="reference", where="twin_of IS NULL").rows
    assert {row["runs"]: row["twins"] for row in rows} == {"on-january": 0, "on-february": 1, "means": 0}
    [row] = run_query(database, "probe accuracy by source").rows
    assert (row["runs"], row["linear_runs"]) == ("means", "on-february")


def test_the_linear_probe_beside_another_was_scored_on_the_same_positions(database, make):
    """Other caches have the same item numbers with other positions; the number of epochs does not matter."""
    model = make.checkpoint("reference")
    caches = {"cache": make.cache(model, make.dataset("fit")), "test_cache": make.cache(model, make.dataset("test"))}
    scores = {(0, split): [(64, 60), (64, 50)] for split in ("validation", "test")}
    common = {**caches, "validation": 0.1, "seed": 0, "skip_sites": 0, "skill": {"rating": "white_elo"}}
    residual = {"before-the-move": {"alignment": "pre-ply"}, "last-five": {"last_sites": 5}, "late": {"skip_sites": 25},
                "other-seed": {"seed": 1}, "linear": {"epochs": 9}, "again": {}}  # fmt: skip
    for days, (name, settings) in enumerate(residual.items()):
        make.probe(model, scores, layers=(0,), name=name, spec={**common, **settings}, days=days)
    make.probe(model, scores, layers=(0,), name="means", spec={**common, "source": "means", "epochs": 1})
    rows = run_query(database, "probe accuracy by source").rows
    linear = {row["split"]: row["linear_runs"] for row in rows}
    assert linear == {"validation": "linear", "test": "other-seed"}  # a seed holds out no game of another cache


@pytest.mark.slow
def test_phases_of_one_fit_are_pooled_and_no_others(database, make):
    """Two caches, and two SAEs on one of them: three fits of two phases each."""
    model, scores = make.checkpoint("reference"), {(0, "test"): [(64, 60), (64, 50)]}
    caches = [make.cache(model, make.dataset(month)) for month in ("january", "february")]
    for number, (cache, sae) in enumerate(((caches[0], "run:16x"), (caches[1], "run:16x"), (caches[0], "run:4x"))):
        for phase, positions in ((1, "white-origin"), (3, "black-origin")):
            spec = {"cache": cache, "phase": phase}
            make.probe(model, scores, layers=(0,), positions=positions, spec=spec)
            spec |= {"source": "sae-latents", "sae": sae}
            make.probe(model, scores, layers=(0,), positions=positions, name=f"fit-{number}-{phase}", spec=spec)
    pooled = [
        row["runs"] for row in run_query(database, "probe accuracy by source").rows if row["positions"] == "pooled"
    ]
    assert sorted(pooled) == ["fit-0-1, fit-0-3", "fit-1-1, fit-1-3", "fit-2-1, fit-2-3"]


def counts(*classes):
    """int32 [3, classes] of (true positives, false positives, false negatives) a class."""
    return b"".join(struct.pack(f"<{len(classes)}i", *row) for row in zip(*classes, strict=True))


def test_f1_is_pooled_and_as_the_author_averages_it(database, make):
    run = make.probe(make.checkpoint("a"), {(0, "validation"): [(64, 60)]}, layers=(0,))
    games = [((8, 2, 0), (300, 1, 2)), ((8, 0, 2), (300, 0, 0)), ((1, 3, 3), (300, 0, 0)), ((1, 0, 4), (300, 2, 1))]
    for item, game in enumerate(games):
        make.add(
            tables.Score(
                run_id=run.id, unit=0, split="test", item=item, attempt_id=run.attempt_id, layer=0, n=64, correct=60,
                counts=counts(*game),
            )
        )  # fmt: skip
    first, second = run_query(database, "karvonen table 9").rows
    assert (first["class"], first["name"], first["n_games"]) == (0, "Opp. King", 4)
    assert (first["true_positives"], first["false_positives"], first["false_negatives"]) == (18, 5, 9)
    assert first["f1"] == pytest.approx(36 / (36 + 5 + 9))
    by_hand = [2 * 16 / (2 * 16 + 2 + 2), 2 * 2 / (2 * 2 + 3 + 7)]  # games 0 and 1, games 2 and 3
    assert first["f1_author"] == pytest.approx(sum(by_hand) / 2, abs=1e-7)
    assert second["f1"] == pytest.approx(2400 / 2406)
    assert len(query_rows_behind(database, "karvonen table 9", 1)) == 4


def test_probe_settings_are_told_once_for_all_seeds(database, make):
    settings = {"learning_rate": 0.001, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.99, "batch_positions": 66}
    model = make.checkpoint("a")
    for seed in (0, 1):
        make.probe(model, TRAINED, name=f"seed-{seed}", spec={**settings, "seed": seed})
    [row] = run_query(database, "karvonen table 4").rows
    assert {name: row[name] for name in settings} == settings
    assert (row["seeds"], row["runs"], row["layers"], row["optimizer"]) == ("0, 1", "seed-0, seed-1", 2, "AdamW")


def test_training_settings_come_from_the_run_or_from_what_the_checkpoint_brought(database, make):
    model = make.checkpoint("imported")
    with database.write() as session:
        row = session.get(tables.Checkpoint, model.id)
        row.detail = {"source": {"iter_num": 600000, "config": {
            "learning_rate": 3e-4, "min_lr": 3e-5, "decay_lr": True, "batch_size": 100, "beta2": 0.95, "dropout": 0.0,
        }}}  # fmt: skip
    make.checkpoint("untrained", source_format="random-init", parent_id=model.id)
    [row] = run_query(database, "karvonen table 5").rows
    told = {"learning_rate": 3e-4, "final_learning_rate": 3e-5, "schedule": "cosine", "optimizer": "adamw",
            "beta2": 0.95, "steps": 600000, "batch_tokens": 102300, "dropout": 0, "layers": 8}  # fmt: skip
    assert {name: row[name] for name in told} == told
    make.play(model, [{}], name="plain")
    assert not run_query(database, "karvonen table 5", run=["plain"]).rows, "no run made this model"


@pytest.mark.slow
def test_many_different_games_take_draws_made_once(database, make):
    """More than 400 kinds of games: the interval is that of games drawn one by one."""
    scores = {(0, "test"): [(2112, 1000 + n) for n in range(500)]}
    make.probe(make.checkpoint("a"), scores, layers=(0,))
    [row] = run_query(database, "probe accuracy by layer").rows
    width = 2 * 1.96 * 100 * (500 / 12**0.5) / 2112 / 500**0.5  # of a mean of 500 draws from a uniform distribution
    assert row["accuracy_high"] - row["accuracy_low"] == pytest.approx(width, rel=0.08)


@pytest.mark.slow
def test_seeds_and_twins_are_resampled_where_they_are_what_varies(database, make):
    """Every game is read alike, but one seed reads half of the squares and one all of them; so do two twins."""
    model = make.checkpoint("reference")
    cache = make.cache(model, "x")
    alike, games = {(0, "validation"): [(64, 40)]}, 30
    for seed, right in enumerate((32, 64)):
        read = {(0, "test"): [(64, right)] * games}
        make.probe(model, alike | read, layers=(0,), name=f"seed-{seed}", spec={"seed": seed, "cache": cache})
        twin = make.checkpoint(f"twin-{seed}", source_format="random-init", parent_id=model.id)
        make.probe(twin, alike | read, layers=(0,), spec={"seed": 0, "cache": make.cache(twin, "x")})
    [trained, twins] = [row for row in run_query(database, "best probe layers").rows if row["selected_on"] == "test"]
    for row in (trained, twins):
        assert row["accuracy"] == 75
        assert row["accuracy_low"] < 50 + 1e-9
        assert row["accuracy_high"] > 90
    assert (trained["minus_untrained"], trained["minus_untrained_low"], trained["minus_untrained_high"]) == (0, -50, 50)
    one = run_query(database, "best probe layers", run="seed-0").rows[0]
    assert one["accuracy_high"] - one["accuracy_low"] < 45  # of games alone


@pytest.fixture
def phases(database, make):
    """A joint probe of two phases, fitted alike, and their controls on three twins; ROC-AUC of the first phase."""
    model = make.checkpoint("uci")
    spec = {"cache": make.cache(model, "x"), "seed": 0}
    for phase, right in ((0, 60), (1, 40)):
        run = make.probe(
            model, {(0, "test"): [(6400, 100 * right), (6400, 100 * right - 800)]}, name=f"phase-{phase}", layers=(0,),
            positions=("white-origins", "white-destinations")[phase], spec={**spec, "phase": phase},
        )  # fmt: skip
        for name, value in (("softmax", 0.9 - phase / 2), ("logits", 0.8)):
            make.add(*(
                tables.MetricPoint(
                    run_id=run.id, unit=0, name=f"test_auc_{name}{flat}", step=step, attempt_id=run.attempt_id,
                    value=value - step / 10,
                )
                for flat, step in (("", 0), ("", 1), ("_flat", 0))
            ))  # fmt: skip
    for number in range(3):
        twin = make.checkpoint(f"twin-{number}", source_format="random-init", parent_id=model.id)
        make.probe(
            twin, {(0, "test"): [(6400, 3200 + 100 * number), (6400, 3200)]}, layers=(0,), positions="white-origins",
            spec={"cache": make.cache(twin, "x"), "seed": number, "phase": 0},
        )  # fmt: skip


@pytest.mark.slow
def test_metrics_are_of_each_phase_and_of_all_together_with_the_controls_of_the_same_phase(database, phases):
    *rows, _, _, twin = run_query(database, "probe metrics by layer", checkpoint="uci").rows
    assert (twin["twin_of"], twin["untrained"], twin["twins"]) == ("uci", None, 0)
    assert [(r["positions"], r["n_games"], r["n"], r["residual_index"]) for r in rows] == [
        ("white-origins", 2, 12800, 1), ("white-destinations", 2, 12800, 1), ("pooled", 2, 25600, 1),
    ]  # fmt: skip
    first, second, pooled = rows
    assert [round(r["accuracy"], 6) for r in rows] == [87.5, 56.25, 71.875]
    # Class 0 is right as often as the accuracy states, class 1 always; both are equally frequent.
    assert first["macro_f1"] == first["f1"] == pytest.approx((87.5 + 100) / 2)
    assert pooled["precision"] == pytest.approx((71.875 + 100) / 2)
    assert (first["auc"], second["auc"], pooled["auc"]) == pytest.approx((0.85, 0.35, 0.6))
    assert (first["flat_auc_logits"], first["auc_logits"]) == pytest.approx((0.8, 0.75))
    assert (first["twins"], second["twins"], pooled["twins"]) == (3, 0, 0)
    assert first["untrained"] == pytest.approx(100 * (32 + 33 + 34 + 3 * 32) / 384)
    assert first["minus_untrained"] == pytest.approx(87.5 - first["untrained"])
    assert second["minus_untrained"] is None


def test_metrics_of_each_class_follow_from_its_counts(database, phases):
    rows = run_query(database, "probe metrics by class", checkpoint="uci").rows
    one, other = (row for row in rows if row["positions"] == "pooled")
    assert (one["name"], one["support"], one["true_positives"]) == ("Black King", 25600, 18400)
    assert (one["precision"], one["recall"], other["f1"]) == pytest.approx((71.875, 71.875, 100))
    assert (one["auc"], other["auc_logits"]) == pytest.approx((0.65, 0.7))
    assert len(query_rows_behind(database, "probe metrics by class", 1 + rows.index(one)).rows) == 4
