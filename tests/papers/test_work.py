"""A paper's runs: in the order of their needs, each once, going on where they were stopped."""

import csv
import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from sqlalchemy import select

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.papers import expected
from chessreg.papers.expected import make_column_judge
from chessreg.papers.plan import (
    Expectation,
    Paper,
    Picture,
    Step,
    list_step_references,
    order_steps,
    replace_references,
)
from chessreg.papers.report import write_report
from chessreg.papers.work import Work, sum_step_plans
from chessreg.registry import names, tables
from chessreg.runs.kind import find_kind

from .conftest import TOY


def states(plan):
    return {p.step.name: (p.state, p.units, p.missing) for p in plan}


def test_steps_come_after_what_they_need(work):
    assert [step.name for step in work.steps] == ["a", "b", "best", "slow"]


def test_a_need_that_nothing_meets_and_a_circle_are_refused():
    with pytest.raises(BadInputError, match="step x needs y, which the paper does not have"):
        order_steps([Step("x", "cache", {"of": "@y"}, "")])
    with pytest.raises(BadInputError, match="x → y → x"):
        order_steps([Step("x", "cache", {"of": "@y"}, ""), Step("y", "cache", {"of": ["@x"]}, "")])
    with pytest.raises(BadInputError, match="two steps"):
        order_steps([Step("x", "cache", {}, ""), Step("x", "cache", {}, "")])


def test_references_are_found_and_replaced_at_any_depth():
    settings = {"cache": "@fit", "intervention": {"vector": "@skill", "scale": 2}, "sets": ["each", "@x"]}
    assert list_step_references(settings) == ["fit", "skill", "x"]
    recipes = {"fit": "run:1", "skill": "run:2", "x": "run:3"}
    assert replace_references(settings, recipes) == {
        "cache": "run:1", "intervention": {"vector": "run:2", "scale": 2}, "sets": ("each", "run:3"),
    }  # fmt: skip


def test_every_run_is_told_how(work, session):
    assert not Work(session, work.paper, work.request, {"device": "cpu", "threads": 1}).run_steps()
    with session.database.read() as sql:
        used = {
            (a.execution_options["device"], a.execution_options["threads"]) for a in sql.scalars(select(tables.Attempt))
        }
    assert used == {("cpu", 1)}


def test_what_a_step_held_in_memory_is_gone_before_the_next(work, monkeypatch):
    class Held:
        def __init__(self):
            self.cycle = self

    held, alive, run = [], [], work.session.run

    def run_and_hold(*args, **kwargs):
        alive.append(sum(each() is not None for each in held))
        held.append(weakref.ref(Held()))
        return run(*args, **kwargs)

    monkeypatch.setattr(work.session, "run", run_and_hold)
    gc.disable()
    try:
        work.run_steps()
    finally:
        gc.enable()
    assert len(held) > 2
    assert set(alive) == {0}


def test_a_plan_makes_nothing_and_counts_what_waits_as_expected(work):
    plan = work.plan()
    assert states(plan) == {
        "a": ("ready", 5, 5), "b": ("ready", 6, 6), "best": ("waiting", 3, 3), "slow": ("ready", 4, 4),
    }  # fmt: skip
    assert sum_step_plans(plan) == {"steps": 4, "states": {"ready": 3, "waiting": 1}, "rows": {"score": 18}, "bytes": 0}
    with work.session.database.read() as sql:
        assert sql.scalars(select(tables.Run)).all() == []


def test_doing_it_runs_everything_once_and_tags_the_runs(work, session):
    seen = []
    assert not work.run_steps(lambda number, planned: seen.append((number, planned.step.name, planned.state)))
    assert seen == [(1, "a", "ready"), (2, "b", "ready"), (3, "best", "ready"), (4, "slow", "ready")]
    with session.database.read() as sql:
        runs = sql.scalars(select(tables.Run)).all()
        tagged = sql.execute(
            select(names.CURRENT_ANNOTATIONS.c.target).where(names.CURRENT_ANNOTATIONS.c.value == "toy-small-abcdef")
        ).all()
        attempts = len(sql.scalars(select(tables.Attempt)).all())
    assert len(runs) == len(tagged) == attempts == 4
    again = []
    assert not work.run_steps(lambda number, planned: again.append(planned.state))
    assert again == ["complete"] * 4
    with session.database.read() as sql:
        assert len(sql.scalars(select(tables.Attempt)).all()) == 4


def test_settings_may_follow_from_results(work, session, checks):
    work.run_steps()
    with session.database.read() as sql:
        [best] = sql.scalars(select(tables.Run).where(tables.Run.units == 3))
    assert best.spec["seed"] == int(checks(work.complete_steps, "b") > checks(work.complete_steps, "a"))


def test_a_number_of_no_rows_is_none_and_never_0(work):
    statements = ("SELECT avg(correct) AS value FROM score", "SELECT correct AS value FROM score",
                  "SELECT 0 AS value")  # fmt: skip
    assert [work.complete_steps.value(statement) for statement in statements] == [None, None, 0.0]


def test_an_interrupted_paper_goes_on_where_it_stopped(work, session, interrupt_at):
    assert work.run_steps(on_progress=interrupt_at(7))  # in the second step
    plan = states(work.plan())
    assert plan["a"] == ("complete", 5, 0)
    assert plan["b"][0] == "partial"
    assert plan["best"][0] == "waiting"
    assert not work.run_steps()
    assert {state for state, *_ in states(work.plan()).values()} == {"complete"}


def test_a_setting_that_is_wrong_names_step_and_setting(session, work):
    steps = [Step("a", work.steps[0].kind, {"positions": 0}, "")]
    broken = Work(session, Paper("toy", "", lambda request: steps, ()), work.request)
    with pytest.raises(BadInputError, match="step a: positions: "):
        broken.plan()


def test_a_step_that_fails_is_named(work, monkeypatch):
    def fails(*arguments, **settings):
        raise ChessregError("no room", "make some")

    monkeypatch.setattr(type(work.session), "run", fails)
    with pytest.raises(ChessregError, match="step a: no room"):
        work.run_steps()


def test_the_tables_are_written_with_the_commands_that_print_them(work, tmp_path):
    work.run_steps()
    [sheet] = write_report(work, tmp_path / "out" / "toy")
    assert (sheet.rows, sheet.files[:2]) == (0, ("accuracy.md", "accuracy.csv"))
    text = (tmp_path / "out" / "toy" / "index.md").read_text()
    assert 'chessreg query "probe accuracy by layer" --tag toy-small-abcdef' in text
    page = (tmp_path / "out" / "toy" / "accuracy.md").read_text()
    assert page.startswith("# Table 1: nothing in it\n")
    assert 'chessreg query "probe accuracy by layer" --tag toy-small-abcdef --rows N\n' in page
    assert f"| best | {work.steps[2].kind} | {work.complete_steps.run_id('best')[-6:]} | the table |" in text
    assert (tmp_path / "out" / "toy" / "accuracy-published.csv").read_text().count("\n") > 90


def test_a_report_of_what_is_not_complete_says_so_first(work, tmp_path, interrupt_at):
    assert work.run_steps(on_progress=interrupt_at(7))  # in the second of four steps
    work.tag_complete_runs()
    write_report(work, tmp_path)
    text = (tmp_path / "index.md").read_text()
    assert "**Not complete: 3 of 4 steps are not done.** Unfinished: the table; nothing." in text
    assert f"| best | {work.steps[2].kind} | not done | the table |" in text
    work.run_steps()
    write_report(work, tmp_path)
    assert "ot complete" not in (tmp_path / "index.md").read_text()
    assert "not done" not in (tmp_path / "index.md").read_text()


def test_a_picture_is_drawn_once_its_steps_are_complete_and_says_why_when_it_cannot_be(work, tmp_path):
    def draws(made, path):
        path.write_text(made.run_id("a"))
        return "chessreg board a"

    def cannot(made, path):
        raise ChessregError("no state has a piece")

    pictures = (
        Picture("figure-1", "Figure 1", draws, ("a",)),
        Picture("figure-5", "Figure 5", cannot, ("b",)),
        Picture("later", "Figure 6", draws, ("c",)),
    )
    drawing = Work(work.session, replace(work.paper, pictures=pictures), work.request)
    assert write_report(drawing, tmp_path / "before") == []
    drawing.run_steps()
    made = write_report(drawing, tmp_path / "after")
    assert [(each.title, each.rows, each.files) for each in made[1:]] == [
        ("Figure 1", None, ("figure-1.svg",)), ("Figure 5", None, ()),
    ]  # fmt: skip
    assert (tmp_path / "after" / "figure-1.svg").read_text() == drawing.complete_steps.run_id("a")
    text = (tmp_path / "after" / "index.md").read_text()
    assert "[figure-1.svg](figure-1.svg)\n\n    chessreg board a\n" in text
    assert "## Figure 5\n\n- not drawn: no state has a piece\n" in text


# -- steps that are chosen, or refused; tables of some steps; expectations ------------------------------------------


def test_only_some_steps_are_done_with_what_they_need(work, session):
    part = Work(session, work.paper, work.request, only=("be*",))
    assert [step.name for step in part.steps] == ["a", "b", "best"]
    assert not part.run_steps()
    part.tag_complete_runs()
    assert part.references.keys() == {"a", "b", "best"}
    assert states(part.plan())["slow"] == ("ready", 4, 4)
    assert part.tag == work.tag
    with pytest.raises(NotFoundError, match="'bst' matches no step"):
        Work(session, work.paper, work.request, only=("a", "bst"))


@pytest.fixture
def picky(work, session, monkeypatch):
    """The paper with a run that its kind refuses, which it may."""

    def check(kind, spec, inputs):
        if spec.positions == 9:
            raise BadInputError("9 positions are too many")

    monkeypatch.setattr(find_kind(TOY).__class__, "check", check)
    steps = [*work.paper.steps(work.request), Step("refused", TOY, {"positions": 9}, "Table 2", optional=True)]
    return replace(work.paper, steps=lambda request: steps)


def test_a_paper_goes_on_without_an_optional_step_that_is_refused(picky, work, session, tmp_path):
    whole, seen = Work(session, picky, work.request), {}
    assert not whole.run_steps(lambda number, planned: seen.update({planned.step.name: (planned.state, planned.why)}))
    assert seen["refused"] == ("refused", "9 positions are too many")
    assert whole.is_finished
    assert whole.references.keys() == {"a", "b", "best", "slow"}
    assert sum_step_plans(whole.plan())["rows"] == {}
    write_report(whole, tmp_path)
    assert "| refused | Table 2: 9 positions are too many |" in (tmp_path / "index.md").read_text()
    needed = replace(picky, steps=lambda request: [Step("refused", TOY, {"positions": 9}, "Table 2")])
    with pytest.raises(BadInputError, match="step refused: 9 positions are too many"):
        Work(session, needed, work.request).run_steps()


def test_a_sheet_may_be_of_some_steps(work, session, tmp_path):
    sheets = tuple(replace(work.paper.sheets[0], file=name, steps=(name,)) for name in ("a", "no-*"))
    part = Work(session, replace(work.paper, sheets=sheets), work.request)
    part.run_steps()
    made = write_report(part, tmp_path)
    assert [each.files[0] for each in made] == ["a.md"]
    assert made[0].command == f'chessreg query "probe accuracy by layer" --run {part.complete_steps.run_id("a")[-6:]}'


def test_what_is_expected_is_held_against_the_rows(work, session, tmp_path):
    rows = [{"share": 50.0, "share_low": 40.0, "share_high": 60.0}, {"share": None}, {"share": 90.0}]

    def judged(*bounds):
        return make_column_judge(lambda row, made: True, lambda row: "all", "share", *bounds)(rows, work.complete_steps)

    found = judged(40.0, 60.0)
    assert [(f.value, f.low, f.high, f.outcome, f.row) for f in found] == [
        (50.0, 40.0, 60.0, "met", 1), (None, None, None, "missed", 2), (90.0, None, None, "missed", 3),
    ]  # fmt: skip
    assert [f.outcome for f in judged()] == ["", "", ""]
    outcomes = {
        (45.0, 60.0): "not decided",
        (60.0, None): "not decided",
        (61.0, 90.0): "missed",
        (None, 39.0): "missed",
    }
    assert {bounds: judged(*bounds)[0].outcome for bounds in outcomes} == outcomes  # by the interval
    rows.append({"share": 50.0, "share_low": None, "share_high": None})  # of one game
    assert [judged(*bounds)[-1].outcome for bounds in ((), (40.0, 60.0))] == ["", "not decided"]
    expectations = (
        Expectation("checks", "≥ 1", "toy checks", ("a",), lambda rows, made: found),
        Expectation("nothing", "≥ 2", "toy checks", ("x",), lambda rows, made: found),
    )
    whole = Work(session, replace(work.paper, expectations=expectations), work.request)
    whole.run_steps()
    with patch.object(type(session), "query", lambda self, title, **scope: SimpleNamespace(rows=rows)):
        made = expected.write_reference_result(whole, tmp_path)
    lines = list(csv.DictReader((tmp_path / "reference-result.csv").open()))
    run = whole.complete_steps.run_id("a")[-6:]
    assert [(line["quantity"], line["ours"], line["outcome"]) for line in lines] == [
        ("checks", "50", "met"), ("checks", "", "missed"), ("checks", "90", "missed"), ("nothing", "", "not run"),
    ]  # fmt: skip
    assert lines[2]["query"] == f'chessreg query "toy checks" --run {run} --rows 3'
    assert made == (4, ("reference-result.md", "reference-result.csv"), "1 met, 2 missed, 1 not run")
