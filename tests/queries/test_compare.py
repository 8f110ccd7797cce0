"""Comparisons on what real runs left: only what differs, and differences over the games that both have."""

from __future__ import annotations

import pytest

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.probe import ProbeSpec
from chessreg.queries.compare import compare
from chessreg.registry import names
from chessreg.registry.identity import new_id
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
    found = compare(probes.database, ["reference-board", "longer"])
    assert found.differing["settings"] == {"epochs": [1, 2]}
    assert not {"code", "machine", "versions"} & found.differing.keys()


def test_a_metric_has_a_value_for_each_and_a_paired_difference(probes: Session):
    found = compare(probes.database, ["reference-board", "longer"])
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


def test_the_pinned_run_is_the_baseline_wherever_it_is_named(probes: Session):
    with probes.database.write() as session:
        names.annotate(session, "run", names.resolve(session, "run", "longer"), "pin")
    found = compare(probes.database, ["reference-board", "longer"])
    assert [subject.label for subject in found.subjects] == ["longer", "reference-board"]
    assert found.metrics[0].differences[0] is None


def test_a_run_that_has_a_name_and_has_not_begun_is_said(session: Session):
    with session.database.write() as sql:
        names.annotate(sql, "run", new_id(), "name", "later")
    with pytest.raises(NotFoundError, match="run later has not begun"):
        compare(session.database, ["later", "later"])


def test_a_run_of_one_attempt_alone_is_refused(probes: Session):
    with pytest.raises(BadInputError, match="nothing to be compared with"):
        compare(probes.database, ["longer"])


def test_one_metric_of_many_that_leaves_0_out_by_chance_is_no_difference():
    """Nineteen metrics as they were, and one whose interval just leaves 0 out: p 0.03 of twenty says nothing."""
    from chessreg.queries.compare import Comparison, Metric
    from chessreg.queries.stats import Estimate

    def metric(name, difference):
        return Metric(name, [Estimate(0.5, None, None)] * 2, [None, difference])

    same = [metric(f"same {n}", Estimate(0.01, -0.2, 0.2)) for n in range(19)]
    chance, real = Estimate(0.1, 0.01, 0.19), Estimate(-0.5, -0.6, -0.4)
    unknown = [metric("no interval", Estimate(0.3, None, None)), metric("not there", None)]
    found = Comparison([], [], metrics=[metric("chance", chance), metric("real", real), *same, *unknown]).corrected()
    assert chance.p() == pytest.approx(0.029, abs=0.001)
    assert found["chance"] > 0.5
    assert found["real"] < 1e-6
    assert len(found) == 21
    assert Comparison([], [], metrics=[metric("chance", chance)]).corrected() == {"chance": chance.p()}
    assert Comparison([], [], metrics=unknown).corrected() == {}
    assert (Estimate(0.1, 0.1, 0.1).p(), Estimate(0.0, 0.0, 0.0).p()) == (0.0, 1.0)
