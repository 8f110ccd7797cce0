"""Comparisons of real runs: only differences, and differences over the games that both have."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import select

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.probe import ProbeSpec
from chessreg.queries import run_query
from chessreg.queries.compare import compare_runs, read_curves
from chessreg.queries.stats import compute_wilson_interval
from chessreg.registry import names, tables
from chessreg.registry.identity import make_id
from chessreg.session import Session


@pytest.fixture(scope="module")
def probes(world, tmp_path_factory):
    """A copy of the world with a second probe run, of one epoch more."""
    import shutil

    from chessreg.session import open_session

    folder = tmp_path_factory.mktemp("compared")
    shutil.copytree(world, folder / "world")
    with open_session(str(folder / "world" / "registry.db"), folder / "world" / "store") as session:
        session.run(ProbeSpec(cache="reference-fit", epochs=2), name="longer")
        yield session


def test_only_settings_that_differ_are_shown(probes: Session):
    found = compare_runs(probes.database, ["reference-board", "longer"])
    assert found.differences["settings"] == {"epochs": [1, 2]}
    assert not {"code", "machine", "versions"} & found.differences.keys()


def test_a_setting_without_an_effect_is_no_value(make, database):
    from chessreg.experiments.play import PlaySpec
    from chessreg.steering.interventions import InterventionSettings

    plain = PlaySpec(checkpoint="model", opponent="random")
    steered = plain.model_copy(update={"intervention": InterventionSettings(vector="calm", scale=4)})
    for name, spec in {"plain": plain, "steered": steered}.items():
        make.run("play", 4, name=name, spec=spec.model_dump(mode="json"))
    differing = compare_runs(database, ["plain", "steered"]).differences["settings"]
    assert differing == {"intervention.vector": [None, "calm"], "intervention.scale": [None, 4.0]}


def test_a_metric_has_a_value_for_each_and_a_paired_difference(probes: Session):
    found = compare_runs(probes.database, ["reference-board", "longer"])
    metric = next(m for m in found.metrics if m.name == "accuracy, validation, layer 1")
    sql = (
        "select sum(correct)::double / sum(n) as accuracy from score join runs using (run_id) "
        "where run = '{}' and split = 'validation' and layer = 1"
    )
    from chessreg.queries import run_sql

    ours = [run_sql(probes.database, sql.format(n)).table["accuracy"][0].as_py() for n in ("reference-board", "longer")]
    assert [v.value for v in metric.values] == pytest.approx(ours)
    difference = metric.differences[1]
    assert difference.value == pytest.approx(ours[1] - ours[0])
    assert difference.low <= difference.value <= difference.high
    alone = metric.values[1]
    assert difference.high - difference.low < alone.high - alone.low  # the same games: they vary together


def test_a_comparison_of_swapped_runs_is_the_negated_one(probes: Session):
    found, swapped = (
        compare_runs(probes.database, names).metrics
        for names in (["reference-board", "longer"], ["longer", "reference-board"])
    )
    by_name = {metric.name: metric.differences[1] for metric in swapped}
    assert any(metric.differences[1] and metric.differences[1].low is not None for metric in found)
    for metric in found:
        theirs = by_name[metric.name]
        assert metric.differences[1] == (theirs and theirs.negate()), metric.name


def test_a_difference_has_the_interval_of_the_table_elo_by_intervention(make, database):
    """Small matches, where one further draw moves an end of the interval by a whole step."""
    random, checkpoint = np.random.default_rng(4), make.checkpoint("reference")
    results = ["1-0", "0-1", "1/2-1/2"]
    plain = [{"result": result} for result in random.choice(results, 10)]
    make.play(checkpoint, plain, name="plain")
    make.play(
        checkpoint, [*plain[1::-1], *plain[2:]], intervention=make.intervention(checkpoint, scale=99), name="tied"
    )
    for number in range(1, 13):
        games = [{"result": result} for result in random.choice(results, random.integers(2, 11))]
        make.play(checkpoint, games, intervention=make.intervention(checkpoint, scale=number), name=f"edit-{number}")
    rows = {row["runs"]: row for row in run_query(database, "elo by intervention").rows}
    edits = sorted(rows.keys() - {"plain"})

    def compare_scores(runs):
        return next(metric.differences for metric in compare_runs(database, runs).metrics if metric.name == "score")

    for name, difference in zip(edits, compare_scores(["plain", *edits])[1:], strict=True):
        table = tuple(rows[name]["delta_score" + end] for end in ("", "_low", "_high"))
        assert tuple(difference) == pytest.approx(table, abs=1e-6), name
    for name in ("tied", "edit-1"):
        assert compare_scores([name, "plain"])[1] == compare_scores(["plain", name])[1].negate()


def test_both_games_of_an_opening_are_one_cluster_paired_by_color(make, database):
    """Black's games are paired with Black's only, and the winner of an opening does not depend on the player."""
    checkpoint = make.checkpoint("reference")
    both = [{"result": "1-0" if n % 4 < 2 else "0-1"} for n in range(40)]  # White, Black, White, …
    make.play(checkpoint, both, color="both", name="both")
    make.play(checkpoint, [{"result": "1-0"}] * 20, name="white")
    metric = next(m for m in compare_runs(database, ["both", "white"]).metrics if m.name == "score")
    assert metric.values[0].value == 0.5
    assert metric.values[0].low == pytest.approx(
        compute_wilson_interval(0.5, 20)[0]
    )  # every opening has one point of 2
    assert metric.differences[1].value == 0.5  # White's games only


def test_the_pinned_run_is_the_baseline_wherever_it_is_named(probes: Session):
    with probes.database.write() as session:
        names.add_annotation(session, "run", names.resolve_id(session, "run", "longer"), "pin")
    found = compare_runs(probes.database, ["reference-board", "longer"])
    assert [subject.label for subject in found.subjects] == ["longer", "reference-board"]
    assert found.metrics[0].differences[0] is None


def test_a_run_that_has_a_name_and_has_not_begun_is_said(session: Session):
    with session.database.write() as sql:
        names.add_annotation(sql, "run", make_id(), "name", "later")
    with pytest.raises(NotFoundError, match="run later has not begun"):
        compare_runs(session.database, ["later", "later"])


def test_a_run_of_one_attempt_alone_is_refused(probes: Session):
    with pytest.raises(BadInputError, match="cannot be compared by attempts"):
        compare_runs(probes.database, ["longer"])


def test_one_metric_of_many_that_leaves_0_out_by_chance_is_no_difference():
    """Nineteen unchanged metrics, and one whose interval just excludes 0: p 0.03 among twenty is not significant."""
    from chessreg.queries.compare import Metric, RunComparison
    from chessreg.queries.stats import Estimate

    def metric(name, difference):
        return Metric(name, [Estimate(0.5, None, None)] * 2, [None, difference])

    same = [metric(f"same {n}", Estimate(0.01, -0.2, 0.2)) for n in range(19)]
    chance, real = Estimate(0.1, 0.01, 0.19), Estimate(-0.5, -0.6, -0.4)
    unknown = [metric("no interval", Estimate(0.3, None, None)), metric("not there", None)]
    found = RunComparison(
        [], [], metrics=[metric("chance", chance), metric("real", real), *same, *unknown]
    ).correct_p_values()
    assert chance.p() == pytest.approx(0.029, abs=0.001)
    assert found["chance"] > 0.5
    assert found["real"] < 1e-6
    assert len(found) == 21
    assert RunComparison([], [], metrics=[metric("chance", chance)]).correct_p_values() == {"chance": chance.p()}
    assert RunComparison([], [], metrics=unknown).correct_p_values() == {}
    assert (Estimate(0.1, 0.1, 0.1).p(), Estimate(0.0, 0.0, 0.0).p()) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("width", "difference"),
    [(120, "-0.03043 [-0.0333, -0.0275]"), (78, "-0.03 [-0.033, -0.02"), (60, "-0.03043 [-0.0333, -0.0275]")],
)
def test_numbers_of_a_narrow_comparison_are_rounded_and_never_cut(monkeypatch, capsys, width, difference):
    from chessreg.cli import base, runs
    from chessreg.queries.compare import Metric
    from chessreg.queries.stats import Estimate

    for module in (base, runs):
        monkeypatch.setattr(module, "get_screen_width", lambda: width)
    values = [Estimate(0.7524, 0.743, 0.762), Estimate(0.722, 0.714, 0.729)]
    metric = Metric("accuracy", values, [None, Estimate(-0.03043, -0.0333, -0.0275)])
    runs.print_metrics(["board", "untrained"], [metric])
    out = capsys.readouterr().out
    assert difference in out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= width


def scores(run, right):
    """A score row a game, of ten predictions each."""
    return [
        tables.Score(run_id=run.id, unit=0, split="all", item=item, attempt_id=run.attempt_id, n=10, correct=correct)
        for item, correct in enumerate(right)
    ]


def test_games_are_those_that_were_looked_at_whatever_the_models_were_trained_on(make, database):
    """Two models of other training sets, each compared with the games: their games are pairs."""
    games, made = make.dataset("lichess"), []
    for name in ("ours", "theirs"):
        run = make.run("token-legality", 4, name=name, spec={"dataset": f"{games}[0,0.0,0.5]"})
        with database.read() as session:
            digests = {
                "dataset": session.scalars(
                    select(tables.Dataset.artifact).where(tables.Dataset.source == "lichess")
                ).one(),
                "trained_on": make.dataset(f"training games of {name}").removeprefix("dataset:"),
            }
        make.add(*(tables.RunInput(run_id=run.id, name=n, reference="", digest=d) for n, d in digests.items()))
        made.append(run)
    for run, right in zip(made, ([1, 9, 2, 8], [2, 9, 3, 9]), strict=True):
        make.add(*scores(run, right))
    [metric] = compare_runs(database, ["ours", "theirs"]).metrics
    assert metric.differences[1].value == pytest.approx(0.075)
    assert metric.differences[1].low >= 0  # no game is read worse; apart they leave it open


def test_test_games_of_probes_are_pairs_whatever_the_probes_were_fitted_on(make, database):
    def cache(dataset):
        return f"run:{make.run('cache', 1, spec={'dataset': dataset}).spec_hash}"

    checkpoint, test = make.checkpoint("m"), cache(make.dataset("test"))
    for name, hits in (("ours", [1, 9, 2, 8]), ("theirs", [2, 9, 3, 9])):
        right = [(10, correct) for correct in hits]
        make.probe(checkpoint, {(0, "test"): right, (0, "validation"): right}, name=name,
                   spec={"cache": cache(make.dataset(name)), "test_cache": test})  # fmt: skip
    metrics = {metric.name: metric.differences[1] for metric in compare_runs(database, ["ours", "theirs"]).metrics}
    assert metrics["accuracy, test, layer 0"].low >= 0
    assert metrics["accuracy, validation, layer 0"].low < 0  # other games


def test_what_chance_makes_of_a_statistic_is_not_its_value(make, database):
    """The null's points of `markov` go by the name of the statistic."""
    name = "blocks.0.hook_resid_post raw"
    for run in (make.run("markov", 1, name="ours"), make.run("markov", 1, name="theirs")):
        of_run = {"run_id": run.id, "unit": 0, "attempt_id": run.attempt_id, "name": name}
        make.add(tables.Statistic(value=0.005, p=0.01, n=9, **of_run))
        make.add(*(tables.MetricPoint(step=step, value=0.02, **of_run) for step in range(3)))
    [metric] = compare_runs(database, ["ours", "theirs"]).metrics
    assert metric.name == name
    assert [value.value for value in metric.values] == [0.005, 0.005]


def test_a_class_a_bin_or_a_place_in_a_search_is_no_step_of_a_curve(make, database):
    names = ("validation_auc_softmax", "test_square_accuracy", "firing_frequency", "search_l0", "positions",
             "share_of_games_by_vote", "test_auc_softmax_flat", "loss")  # fmt: skip
    for run in (make.run("toy", 1, name="ours"), make.run("toy", 1, name="theirs")):
        of_run = {"run_id": run.id, "unit": 0, "attempt_id": run.attempt_id}
        make.add(
            *(tables.MetricPoint(name=name, step=step, value=step / 4, **of_run) for name in names for step in (1, 3))
        )
    found = {metric.name: metric.values[0].value for metric in compare_runs(database, ["ours", "theirs"]).metrics}
    assert found == {"share_of_games_by_vote, class 1": 0.25, "share_of_games_by_vote, class 3": 0.75,
                     "test_auc_softmax_flat": 0.75, "loss": 0.75}  # fmt: skip


def test_curves_of_layers_are_named_by_the_layer_in_its_order(make, database):
    checkpoint = make.checkpoint("m")
    for name, layers in (("ours", (2, 10)), ("theirs", (10,))):
        run = make.probe(checkpoint, {}, layers=layers, name=name)
        for unit, layer in enumerate(layers):
            of_run = {"run_id": run.id, "unit": unit, "attempt_id": run.attempt_id, "name": "test_square_accuracy"}
            make.add(*(tables.MetricPoint(step=square, value=layer / 16, **of_run) for square in range(2)))
    subjects = compare_runs(database, ["ours", "theirs"]).subjects
    with database.read() as session:
        curves = read_curves(session, subjects)
    assert curves == {
        "test_square_accuracy, layer 2": [[(0, 0.125), (1, 0.125)], []],
        "test_square_accuracy, layer 10": [[(0, 0.625), (1, 0.625)], [(0, 0.625), (1, 0.625)]],
    }
    assert list(curves) == sorted(curves, key=lambda name: len(name))


def test_the_legal_rate_of_given_games_is_compared(make, database):
    checkpoint = make.checkpoint("m")
    make.legality(checkpoint, [[(True, 0.75), (False, 0.5)], [(True, 1.0)]], name="ours")
    make.legality(checkpoint, [[(True, None), (True, None)], [(True, None)]], name="theirs")
    found = {metric.name: metric.values for metric in compare_runs(database, ["ours", "theirs"]).metrics}
    assert [value.value for value in found["legal on the original board, clean"]] == pytest.approx([2 / 3, 1])
    assert found["probability of a legal move, original, clean"][0].value == pytest.approx(0.75)


def test_errors_alone_are_no_sample_of_legality(make, database):
    """`token-legality` has trials of its errors only: their mean is not the probability of a legal token."""
    for run in (make.run("token-legality", 1, name="ours"), make.run("token-legality", 1, name="theirs")):
        error = tables.Trial(run_id=run.id, unit=0, condition="clean", sample=-2, attempt_id=run.attempt_id, item=0,
                             ply=2, text="e4", legal_original=False, mass_original=0.1)  # fmt: skip
        make.add(error, *scores(run, [9]))
    found = {metric.name: metric.values[0].value for metric in compare_runs(database, ["ours", "theirs"]).metrics}
    assert found == {"accuracy, all": 0.9}
