"""Plots: what a query's header asks for, with intervals, the same bytes every time."""

import re

import pytest

from chessreg.errors import BadInputError, NotFoundError
from chessreg.queries import plot
from chessreg.queries.ask import plotted
from chessreg.queries.catalogue import entries, find_plot


@pytest.fixture
def played(database, make):
    """A model against two levels, plain and edited, and one game against a mover without a level."""
    model = make.checkpoint("reference")
    edit = make.intervention(model)
    for level, wins in ((0, 30), (1, 10)):
        for intervention, extra in ((None, 0), (edit, 5)):
            games = [{"result": "1-0" if n < wins + extra else "0-1"} for n in range(40)]
            make.play(model, games, intervention=intervention, level=level)
    make.play(model, [{}], level=-1)
    return database


def drawn(database, name):
    entry, found = find_plot(name)
    return plot.draw(plotted(database, entry, found), found)


def test_every_plot_names_columns_of_its_query():
    for entry in entries():
        statistics = {s.name for s in entry.statistics}
        columns = {c.name for c in entry.columns}
        for wanted in entry.plots:
            assert wanted.y in statistics
            assert {wanted.x, *wanted.series, *wanted.panels} <= columns
            assert wanted.form in ("lines", "bars")


def test_a_line_for_each_arm_with_its_intervals(played):
    figure = drawn(played, "karvonen figure 2")
    [axis] = figure.axes
    lines = axis.containers
    assert [container.get_label() for container in lines] == ["none", "contrastive:skill L3-5 x0.1"]
    line, caps, _ = lines[0].lines
    assert line.get_xdata().tolist() == [0, 1]  # the mover without a level is left out
    assert line.get_ydata().tolist() == pytest.approx([0.75, 0.25])
    lows, highs = (cap.get_ydata() for cap in caps)
    assert (lows < line.get_ydata()).all()
    assert (highs > line.get_ydata()).all()
    assert axis.get_xticks().tolist() == [0, 1]


def test_bars_stand_in_groups(played):
    [axis] = drawn(played, "score by intervention").axes
    assert len(axis.containers) > 1
    assert [label.get_text() for label in axis.get_xticklabels()] == ["random:20"]


def test_the_same_bytes_every_time_and_text_that_can_be_searched(played, tmp_path):
    for name in ("a.svg", "b.svg"):
        plot.write(drawn(played, "win rate by level"), tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert re.search(r">win rate by level<", text)
    plot.write(drawn(played, "win rate by level"), tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"


def test_nothing_to_show_and_a_strange_suffix_are_refused(database, tmp_path):
    with pytest.raises(BadInputError, match="nothing to plot for 'win rate by level'"):
        drawn(database, "win rate by level")
    with pytest.raises(BadInputError, match=r"no figure is written to \.gif"):
        plot.check_suffix(tmp_path / "a.gif")


def test_a_plot_is_found_by_title_alias_or_its_query(database):
    for name in ("win rate by level", "Figure-2", "karvonen figure 2"):
        assert find_plot(name)[1].title == "win rate by level"
    assert find_plot("legal moves by ply")[0].title == "legal moves by ply"
    with pytest.raises(NotFoundError) as caught:
        find_plot("win rate by levl")
    assert caught.value.hint == 'did you mean "win rate by level"?'


def test_a_missing_end_of_an_interval_has_no_whisker(database, make):
    model = make.checkpoint("a")
    make.play(model, [{"result": "0-1"}] * 20, level=0)
    [axis] = drawn(database, "win rate by level").axes
    [container] = axis.containers
    lows, highs = (cap.get_ydata() for cap in container.lines[1])
    assert lows.tolist() == [0]
    assert highs[0] > 0
