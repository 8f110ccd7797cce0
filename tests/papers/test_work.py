"""A paper's runs: in the order of their needs, each once, going on where they were stopped."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from chessreg.errors import BadInputError, ChessregError
from chessreg.papers.plan import Paper, Picture, Step, ordered, references, replaced
from chessreg.papers.report import write
from chessreg.papers.work import Work, totals
from chessreg.registry import names, tables


def states(plan):
    return {p.step.name: (p.state, p.units, p.missing) for p in plan}


def test_steps_come_after_what_they_need(work):
    assert [step.name for step in work.steps] == ["a", "b", "best", "slow"]


def test_a_need_that_nothing_meets_and_a_circle_are_refused():
    with pytest.raises(BadInputError, match="step x needs y, which the paper does not have"):
        ordered([Step("x", "cache", {"of": "@y"}, "")])
    with pytest.raises(BadInputError, match="x → y → x"):
        ordered([Step("x", "cache", {"of": "@y"}, ""), Step("y", "cache", {"of": ["@x"]}, "")])
    with pytest.raises(BadInputError, match="two steps"):
        ordered([Step("x", "cache", {}, ""), Step("x", "cache", {}, "")])


def test_references_are_found_and_replaced_at_any_depth():
    settings = {"cache": "@fit", "intervention": {"vector": "@skill", "scale": 2}, "sets": ["each", "@x"]}
    assert references(settings) == ["fit", "skill", "x"]
    recipes = {"fit": "run:1", "skill": "run:2", "x": "run:3"}
    assert replaced(settings, recipes) == {
        "cache": "run:1", "intervention": {"vector": "run:2", "scale": 2}, "sets": ("each", "run:3"),
    }  # fmt: skip


def test_every_run_is_told_how(work, session):
    assert not Work(session, work.paper, work.request, {"device": "cpu", "threads": 1}).do()
    with session.database.read() as sql:
        used = {(a.how["device"], a.how["threads"]) for a in sql.scalars(select(tables.Attempt))}
    assert used == {("cpu", 1)}


def test_a_plan_makes_nothing_and_counts_what_waits_as_expected(work):
    plan = work.plan()
    assert states(plan) == {
        "a": ("ready", 5, 5), "b": ("ready", 6, 6), "best": ("waits", 3, 3), "slow": ("ready", 4, 4),
    }  # fmt: skip
    assert totals(plan) == {"steps": 4, "states": {"ready": 3, "waits": 1}, "rows": {"score": 18}, "bytes": 0}
    with work.session.database.read() as sql:
        assert sql.scalars(select(tables.Run)).all() == []


def test_doing_it_runs_everything_once_and_tags_the_runs(work, session):
    seen = []
    assert not work.do(lambda number, planned: seen.append((number, planned.step.name, planned.state)))
    assert seen == [(1, "a", "ready"), (2, "b", "ready"), (3, "best", "ready"), (4, "slow", "ready")]
    with session.database.read() as sql:
        runs = sql.scalars(select(tables.Run)).all()
        tagged = sql.execute(select(names.NOW.c.target).where(names.NOW.c.value == "toy-small-abcdef")).all()
        attempts = len(sql.scalars(select(tables.Attempt)).all())
    assert len(runs) == len(tagged) == attempts == 4
    again = []
    assert not work.do(lambda number, planned: again.append(planned.state))
    assert again == ["complete"] * 4
    with session.database.read() as sql:
        assert len(sql.scalars(select(tables.Attempt)).all()) == 4


def test_settings_may_follow_from_results(work, session, checks):
    work.do()
    with session.database.read() as sql:
        [best] = sql.scalars(select(tables.Run).where(tables.Run.units == 3))
    assert best.spec["seed"] == int(checks(work.made, "b") > checks(work.made, "a"))


def test_an_interrupted_paper_goes_on_where_it_stopped(work, session, interrupt_at):
    assert work.do(on_progress=interrupt_at(7))  # in the second step
    plan = states(work.plan())
    assert plan["a"] == ("complete", 5, 0)
    assert plan["b"][0] == "partial"
    assert plan["best"][0] == "waits"
    assert not work.do()
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
        work.do()


def test_the_tables_are_written_with_the_commands_that_print_them(work, tmp_path):
    work.do()
    [sheet] = write(work, tmp_path / "out" / "toy")
    assert (sheet.rows, sheet.files[:2]) == (0, ("accuracy.md", "accuracy.csv"))
    text = (tmp_path / "out" / "toy" / "index.md").read_text()
    assert 'chessreg query "probe accuracy by layer" --tag toy-small-abcdef' in text
    page = (tmp_path / "out" / "toy" / "accuracy.md").read_text()
    assert page.startswith("# Table 1: nothing in it\n")
    assert 'chessreg query "probe accuracy by layer" --tag toy-small-abcdef --rows N\n' in page
    assert f"| best | {work.steps[2].kind} | {work.made.run_id('best')[-6:]} | the table |" in text
    assert (tmp_path / "out" / "toy" / "accuracy-published.csv").read_text().count("\n") > 90


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
    assert write(drawing, tmp_path / "before") == []
    drawing.do()
    made = write(drawing, tmp_path / "after")
    assert [(each.title, each.rows, each.files) for each in made[1:]] == [
        ("Figure 1", None, ("figure-1.svg",)), ("Figure 5", None, ()),
    ]  # fmt: skip
    assert (tmp_path / "after" / "figure-1.svg").read_text() == drawing.made.run_id("a")
    text = (tmp_path / "after" / "index.md").read_text()
    assert "[figure-1.svg](figure-1.svg)\n\n    chessreg board a\n" in text
    assert "## Figure 5\n\n- not drawn: no state has a piece\n" in text
