"""Plots: the elements that a query's header declares, with intervals, the same bytes every time."""

import itertools
import re
from dataclasses import replace

import pyarrow as pa
import pytest

from chessreg.errors import BadInputError, NotFoundError
from chessreg.queries import plot, run_query
from chessreg.queries.ask import query_plot_rows
from chessreg.queries.catalogue import Plot, QueryColumn, find_plot, list_entries
from chessreg.queries.result import QueryResult


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
    return plot.draw_figure(query_plot_rows(database, entry, found), found)


def test_every_plot_names_columns_of_its_query():
    for entry in list_entries():
        columns = {c.name for c in entry.columns}
        for wanted in entry.plots:
            assert {wanted.x, wanted.y, *wanted.beside, *wanted.series, *wanted.panels} <= columns
            assert wanted.baseline in {"", *columns}
            assert wanted.baseline or wanted.y != "accuracy" or "majority" not in columns
            assert wanted.form in ("lines", "bars", "dots", "board")


def test_columns_beside_y_are_lines_with_intervals_of_their_own():
    rows = {"layer": [0, 1], "t": [0.5, 0.75], "t_low": [0.25, 0.5], "t_high": [1.0, 1.0]}
    rows |= {"null_mean": [0.0, None], "null_mean_low": [-0.125, None], "null_mean_high": [0.25, None]}
    result = QueryResult(pa.table(rows), {})
    wanted = Plot("t and chance", "layer", "t", beside=("null_mean",))
    shown = plot.list_line_rows(result, wanted)
    assert [(row[plot.LINE_KEY], row["layer"], row["t"], row["t_low"], row["t_high"]) for row in shown] == [
        ("t", 0, 0.5, 0.25, 1.0),
        ("null mean", 0, 0.0, -0.125, 0.25),
        ("t", 1, 0.75, 0.5, 1.0),
    ]
    [axis] = plot.draw_figure(result, wanted).axes
    assert [container.get_label() for container in axis.containers] == ["t", "null mean"]


def test_a_baseline_is_one_gray_line_unless_the_series_differ_in_it():
    rows = {"model": ["a", "a", "b", "b"], "layer": [0, 1, 0, 1], "right": [70.0, 75.0, 66.0, 68.0]}
    rows |= {"right_low": [69.0, 74.0, 65.0, 67.0], "right_high": [71.0, 76.0, 67.0, 69.0], "majority": [64.0] * 4}
    wanted = Plot("right", "layer", "right", series=("model",), baseline="majority")
    [axis] = plot.draw_figure(QueryResult(pa.table(rows), {}), wanted).axes
    assert axis.get_legend_handles_labels()[1] == ["majority", "a, right", "b, right"]
    [line] = [line for line in axis.lines if line.get_label() == "majority"]
    assert (line.get_color(), list(line.get_ydata())) == ("0.4", [64.0, 64.0])

    rows["majority"] = [64.0, 64.0, 60.0, 60.0]
    [axis] = plot.draw_figure(QueryResult(pa.table(rows), {}), wanted).axes
    assert {"a, majority", "b, majority"} <= {line.get_label() for line in axis.lines}


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


def test_the_score_of_each_intervention_is_a_row_and_random_directions_share_one(database, make):
    model = make.checkpoint("m")
    skill = make.vector(model, "contrastive:skill")
    make.play(model, [{"result": "1-0"}, {"result": "0-1"}] * 10)
    make.play(model, [{"result": "0-1"}] * 20, intervention=make.intervention(model, skill.source, vector=skill))
    for seed in range(12):
        vector = make.vector(model, "random:contrastive:skill", of=skill, seed=seed)
        games = [{"result": "1-0" if n < seed else "0-1"} for n in range(20)]
        make.play(model, games, intervention=make.intervention(model, vector.source, vector=vector))
    figure = drawn(database, "score by intervention")
    [axis] = figure.axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["none", "contrastive:skill L3-5 x0.1", "random:contrastive:skill L3-5 x0.1"]
    [container] = axis.containers
    points, (lows, highs), _ = container.lines
    assert points.get_xdata().tolist() == pytest.approx([0.5, 0.0, 5.5 / 20])
    assert lows.get_xdata().tolist()[1:] == [0, 0]
    assert highs.get_xdata()[1] == pytest.approx(1 - 0.05 ** (1 / 20), abs=1e-5)  # the bound of a score of 0
    assert highs.get_xdata()[2] == pytest.approx(11 / 20)
    assert axis.get_xlim()[0] < 0  # the point at 0 is not cut
    [marks] = [line for line in axis.lines if line.get_marker() == "|" and len(line.get_xdata()) == 12]
    assert set(marks.get_ydata().tolist()) == {points.get_ydata()[2]}
    assert figure.get_suptitle() == (
        "Score by intervention\n(whiskers are 95 % intervals;\n"
        "for means over seeds, from the lowest to the highest seed;\n"
        "small marks are single seeds)"
    )


def test_directions_of_different_vectors_are_not_pooled(database, make):
    model = make.checkpoint("m")
    for name in ("late", "early"):
        skill = make.vector(model, "contrastive:skill")
        make.say("run", skill.id, "name", name)
        drawn_vectors = [make.vector(model, "random:contrastive:skill", of=skill, seed=seed) for seed in (1, 2)]
        for vector in (skill, *drawn_vectors):
            make.play(model, [{}, {}], intervention=make.intervention(model, vector.source, vector=vector))
    [axis] = drawn(database, "score by intervention").axes
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        f"{source}contrastive:skill L3-5 x0.1 ({name})" for source in ("", "random:") for name in ("early", "late")
    ]


def test_a_bar_of_zero_is_labelled(database):
    rows = {"x": ["a", "b", "c"], "y": [0.0, 2.0, 0.0], "y_low": [None, 1.0, None], "y_high": [0.5, 3.0, None]}
    [axis] = plot.draw_figure(QueryResult(pa.table(rows), {}), Plot("bars", "x", "y", form="bars")).axes
    assert [(text.get_text(), text.xy) for text in axis.texts] == [("0", (0.0, 0.5)), ("0", (2.0, 0.0))]


@pytest.mark.parametrize("form", ["bars", "dots"])
def test_single_values_of_bars_and_dots_lie_at_their_mean(form):
    rows = {"x": ["a", "a", "b"], "y": [1.0, 3.0, 2.0], "seed": [1, 2, None]}
    [axis] = plot.draw_figure(QueryResult(pa.table(rows), {}), Plot("p", "x", "y", form=form, spread="seed")).axes
    marks = axis.lines[0]
    coordinates = [marks.get_xdata().tolist(), marks.get_ydata().tolist()]
    assert (coordinates if form == "bars" else coordinates[::-1]) == [[0, 0], [1, 3]]


@pytest.mark.parametrize("form", ["bars", "dots"])
def test_rows_that_share_a_label_lie_side_by_side(form):
    """Such as matches with several random directions, which the column `intervention` calls by one name."""
    rows = {"opening": ["book"] * 4, "score": [0.4, 0.5, 0.6, 0.7], "intervention": ["none", *["random L4"] * 3]}
    arms = Plot("arms", "opening", "score", form=form, series=("intervention",))
    [axis] = plot.draw_figure(QueryResult(pa.table(rows), {}), arms).axes
    plain, controls = axis.containers
    if form == "bars":
        ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in (*plain, *controls)]
        assert [bar.get_height() for bar in controls] == [0.5, 0.6, 0.7]
    else:
        lines = [container.lines[0] for container in (plain, controls)]
        ends = [(place, place) for line in lines for place in line.get_ydata()]
        assert lines[1].get_xdata().tolist() == [0.5, 0.6, 0.7]
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(ends))
    assert -0.5 < ends[0][0] < ends[-1][1] < 0.5


def differences():
    """Differences of two edits at two layers, one of them with an unknown interval."""
    rows = {"pair": ["a minus b", "a minus b", "a minus c"], "layer": [7, 4, 7], "difference": [0.3, 0.2, -0.1]}
    rows |= {"difference_low": [0.2, 0.1, None], "difference_high": [0.4, 0.5, None]}
    return QueryResult(pa.table(rows), {}, column_notes=(QueryColumn("difference", "points", ""),))


def test_dots_are_rows_with_a_horizontal_interval():
    figure = plot.draw_figure(differences(), Plot("pairs", "pair", "difference", form="dots", series=("layer",)))
    [axis] = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a minus b", "a minus c"]
    assert axis.yaxis_inverted()  # the first row is on top
    assert axis.get_xlabel() == "difference (points)"
    first, second = axis.containers
    assert [container.get_label() for container in axis.containers] == ["layer 7", "layer 4"]
    dots, (low, high), _ = first.lines
    assert dots.get_xdata().tolist() == [0.3, -0.1]
    assert low.get_xdata().tolist() == pytest.approx([0.2, -0.1])  # an unknown end has no whisker
    assert high.get_xdata().tolist() == pytest.approx([0.4, -0.1])
    assert dots.get_ydata()[0] < second.lines[0].get_ydata()[0] < 0.5  # both are in the first row
    assert [line.get_xdata() for line in axis.lines if list(line.get_xdata()) == [0, 0]]  # the line at zero
    assert "(whiskers are 95 % intervals)" in figure.get_suptitle()


def test_panels_of_dots_have_the_same_rows_and_the_same_axis():
    wanted = Plot("pairs", "pair", "difference", form="dots", panels=("layer",))
    upper, lower = plot.draw_figure(differences(), wanted).axes
    assert [upper.get_title(), lower.get_title()] == ["layer 7", "layer 4"]
    assert upper.get_xlim() == lower.get_xlim()
    assert len(upper.get_yticks()) == len(lower.get_yticks()) == 2
    assert [upper.get_xlabel(), lower.get_xlabel()] == ["", "difference (points)"]


def test_no_line_at_zero_where_all_values_are_on_one_side():
    rows = QueryResult(pa.table({"x": ["a", "b"], "y": [3.0, 4.0]}), {})
    figure = plot.draw_figure(rows, Plot("both", "x", "y", form="dots"))
    assert not [line for line in figure.axes[0].lines if list(line.get_xdata()) == [0, 0]]
    assert figure.get_suptitle() == "Both"  # without whiskers, none are named


def test_every_run_behind_a_mean_is_drawn():
    rows = {"layer": [0, 0, 1, 1], "run": ["a", "b", "a", "b"], "accuracy": [1.0, 3.0, 2.0, 6.0]}
    figure = plot.draw_figure(QueryResult(pa.table(rows), {}), Plot("runs", "layer", "accuracy", spread="run"))
    drawn = [line.get_ydata().tolist() for line in figure.axes[0].lines]
    assert [1.0, 3.0, 2.0, 6.0] in drawn
    assert [2.0, 4.0] in drawn
    assert figure.get_suptitle() == "Runs\n(lines are means over runs, small dots are single runs)"  # no whiskers


def test_the_title_names_a_plural_column_once():
    rows = {"layer": [0, 0], "runs": ["a", "b"], "accuracy": [1.0, 3.0]}
    figure = plot.draw_figure(QueryResult(pa.table(rows), {}), Plot("metrics", "layer", "accuracy", spread="runs"))
    assert figure.get_suptitle() == "Metrics\n(lines are means over runs, small dots are single runs)"


@pytest.mark.parametrize(("names", "is_rotated"), [(["a", "b"], False), (["Opp. Pawn"] * 13, True)])
def test_labels_of_bars_that_would_overlap_are_rotated(names, is_rotated):
    names = [f"{name} {number}" for number, name in enumerate(names)]
    rows = QueryResult(pa.table({"name": names, "f1": [0.5] * len(names)}), {})
    [axis] = plot.draw_figure(rows, Plot("f1", "name", "f1", form="bars")).axes
    assert {bool(label.get_rotation()) for label in axis.get_xticklabels()} == {is_rotated}


def test_many_panels_are_in_rows_of_three():
    rows = {"x": [1] * 7, "y": [1.0] * 7, "panel": list("abcdefg")}
    figure = plot.draw_figure(QueryResult(pa.table(rows), {}), Plot("panels", "x", "y", panels=("panel",)))
    assert [axis.get_title() for axis in figure.axes if axis.get_visible()] == [f"panel {x}" for x in "abcdefg"]
    assert figure.get_figwidth() == 3 * plot.PANEL_INCHES[0]


def test_the_same_bytes_every_time_and_text_that_can_be_searched(played, tmp_path):
    for name in ("a.svg", "b.svg"):
        plot.write_figure(drawn(played, "win rate by level"), tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert re.search(r">Win rate by level<", text)
    plot.write_figure(drawn(played, "win rate by level"), tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"


def test_nothing_to_show_and_a_strange_suffix_are_refused(database, tmp_path):
    with pytest.raises(BadInputError, match="nothing to plot for 'win rate by level'"):
        drawn(database, "win rate by level")
    with pytest.raises(BadInputError, match=r"figures cannot be written to \.gif"):
        plot.check_suffix(tmp_path / "a.gif")


def test_a_plot_without_a_point_says_which_rows_it_shows(played):
    entry, plot_of_levels = find_plot("win rate by level")
    shown = query_plot_rows(played, entry, replace(plot_of_levels, where="level > 99"))
    with pytest.raises(BadInputError) as refused:
        plot.draw_figure(shown, plot_of_levels)
    rows = len(run_query(played, entry))
    assert rows > 1
    assert refused.value.hint == (
        f"it shows rows with level > 99; none of its {rows} rows is one, as chessreg query {entry.title!r} prints them"
    )


def test_a_plot_is_found_by_title_alias_or_its_query(database):
    for name in ("win rate by level", "Figure-2", "karvonen figure 2"):
        assert find_plot(name)[1].title == "win rate by level"
    assert find_plot("legal moves by ply")[0].title == "legal moves by ply"
    assert find_plot("win rate by levl")[1].title == "win rate by level"
    with pytest.raises(NotFoundError) as caught:
        find_plot("scoer by intervntion")
    assert caught.value.hint.startswith('did you mean "score by intervention"')


def test_a_missing_end_of_an_interval_has_no_whisker(database, make):
    model = make.checkpoint("a")
    make.play(model, [{"result": "0-1"}] * 20, level=0)
    [axis] = drawn(database, "win rate by level").axes
    [container] = axis.containers
    lows, highs = (cap.get_ydata() for cap in container.lines[1])
    assert lows.tolist() == [0]
    assert highs[0] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("error::UserWarning")  # matplotlib's, of a layout that does not fit
def test_a_long_legend_makes_the_figure_higher_and_leaves_the_axes_their_height(tmp_path):
    def axes_of(series):
        names = [f"shuffled:probe:skill L{n}-6 x-36.444, stockfish:0@nodes=100" for n in range(series)]
        table = pa.table({"x": [1] * series, "score": [0.5] * series, "intervention": names})
        figure = plot.draw_figure(
            QueryResult(table, {}), Plot("arms", "x", "score", form="bars", series=("intervention",))
        )
        plot.write_figure(figure, tmp_path / "arms.svg")
        return figure.axes[0].get_window_extent().height / figure.dpi

    assert axes_of(40) > 0.7 * axes_of(8)


def test_the_plot_of_a_query_with_several_plots_is_its_first_one(played):
    assert find_plot("elo by intervention")[1].title == "score by intervention"


def test_notes_of_a_plot_name_its_points_and_count_the_rows_that_are_not_drawn(played):
    entry, found = find_plot("win rate by level")
    rows = len(run_query(played, entry))
    assert rows > 1
    shown = query_plot_rows(played, entry, replace(found, where="intervention <> 'none'"))
    assert 0 < len(shown) < rows
    assert not [note for note in shown.notes if note.startswith("row")]
    assert shown.notes[-1] == (
        f"{rows - len(shown)} of {rows} rows are not drawn, because they do not have intervention <> 'none'; "
        "all rows: chessreg query 'elo by intervention'"
    )


def test_a_version_in_a_legend_has_its_name():
    rows = [{"policy": "legal", "engine_version": "1"}, {"policy": "legal", "engine_version": "17.1"}]
    assert list(plot.group_rows(rows, ["engine_version"])) == ["engine version 1", "engine version 17.1"]
