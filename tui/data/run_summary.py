"""A run's results in small tables: accuracy by layer, trials by condition, games by match, metrics by unit and step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import and_, func, select

from chessreg.registry import tables
from chessreg.registry.measures import MASKED_POLICIES, ClusterCount, build_game_points_sql
from tui import show
from tui.columns import TableColumn
from tui.data.pages import Row
from tui.interval_bars import IntervalBars, ShownEstimate, make_interval_bars

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession


class Summary(NamedTuple):
    """A small table. A row with `narrows` summarizes the rows of `result_table` that match this filter."""

    title: str
    columns: Sequence[TableColumn]
    rows: Sequence[Row]
    result_table: str = ""
    bars: IntervalBars | None = None


CONDITIONS_WITH_INTERVALS = 12  # of more, as in a sweep, the intervals would take seconds
SQUARE_METRIC = "_square_accuracy"  # its steps are squares
MAX_METRIC_ROWS = 20_000  # that a table of metrics has at most; of more points the long list is shown


def summarize_run(sql: SqlSession, run_id: UUID) -> list[Summary]:
    """Return the tables that have rows, the run's answer first."""
    summaries = (summarize(sql, run_id) for summarize in (summarize_layers, summarize_conditions, summarize_matches))
    return [summary for summary in summaries if summary.rows]


def make_share_column(field: str, heading: str) -> TableColumn:
    """Return the column of a share from 0 to 1, in percent if `heading` ends with %."""

    def format_share(row: Row) -> str:
        ends = (row.get(field), row.get(f"{field}_low"), row.get(f"{field}_high"))
        scale = 100 if heading.endswith("%") else 1
        value, low, high = (None if end is None else scale * end for end in ends)
        return "" if value is None else show.format_value_with_interval(value, low, high, 1 if scale == 100 else 3)

    return TableColumn(field, heading, right=True, text=format_share, whole=True)


def make_share_bars(rows: Sequence[Row], columns: Sequence[TableColumn], *fields: str) -> IntervalBars | None:
    """Return the bars of the first of these shares that several rows have, on the scale of its column."""
    scales = {column.field: 100 if column.heading.endswith("%") else 1 for column in columns}
    bars = (make_interval_bars(field, partial(make_share_estimate, field, scales[field]), rows) for field in fields)
    return next(filter(None, bars), None)


def make_share_estimate(field: str, scale: float, row: Row) -> ShownEstimate | None:
    """Return a share of a row times `scale`, with its interval if it has one."""
    ends = (row.get(field), row.get(f"{field}_low"), row.get(f"{field}_high"))
    value, low, high = (None if end is None else scale * end for end in ends)
    return None if value is None else ShownEstimate(value, low, high)


def make_count_column(field: str, heading: str) -> TableColumn:
    return TableColumn(field, heading, right=True, text=lambda row: show.format_cell_value(row.get(field)), whole=True)


def summarize_layers(sql: SqlSession, run_id: UUID) -> Summary:
    """Return the accuracy of each layer and split as a table. `chosen` marks the layer that is best on validation, or
    on the one split.
    """
    score = tables.Score
    query = (
        select(score.layer, score.split, func.sum(score.correct), func.sum(score.n))
        .where(score.run_id == run_id, score.item >= 0)
        .group_by(score.layer, score.split)
        .order_by(score.layer, score.split)
    )
    layers: dict[int | None, dict[str, Any]] = {}
    splits = dict[str, None]()
    for layer, split, correct, n in sql.execute(query):
        if n:
            splits[split] = None
            row = layers.setdefault(layer, {"layer": layer, "narrows": "" if layer is None else f"layer={layer}"})
            row |= {split: float(correct) / float(n), f"{split} n": int(n)}
    if len(layers) > 1:
        chosen_on = "validation" if "validation" in splits else next(iter(splits))
        best_layer = max(layers.values(), key=lambda row: row.get(chosen_on, 0.0))
        best_layer["chosen"] = f"best on {chosen_on}"
    accuracies = [make_share_column(split, f"{split} accuracy %") for split in splits]
    counts = [make_count_column(f"{split} n", f"{split} predictions") for split in splits]
    chosen_column = TableColumn("chosen", "", text=lambda row: row.get("chosen", ""))
    columns = [make_count_column("layer", "layer"), *accuracies, chosen_column, *counts]
    rows = list(layers.values())
    return Summary("by layer", columns, rows, "score", make_share_bars(rows, columns, *reversed(splits)))


def summarize_conditions(sql: SqlSession, run_id: UUID) -> Summary:
    """Legal texts and legal probability of each condition of an edit, the clean model and the edit first. Up to
    CONDITIONS_WITH_INTERVALS conditions have 95 % intervals, from resampled games."""
    from chessreg.queries.intervals import find_rate_ends

    trial = tables.Trial
    is_sampled = trial.sample >= 0
    texts = func.count().filter(is_sampled)
    rates = {
        "legal_original": (func.count().filter(is_sampled, trial.legal_original.is_(True)), texts),
        "legal_modified": (func.count().filter(is_sampled, trial.legal_modified.is_(True)), texts),
        "mass_original": (func.sum(trial.mass_original), func.count(trial.mass_original)),
        "mass_modified": (func.sum(trial.mass_modified), func.count(trial.mass_modified)),
    }
    query = (
        select(trial.condition, trial.item, func.count(), *chain.from_iterable(rates.values()))
        .where(trial.run_id == run_id)
        .group_by(trial.condition, trial.item)
    )
    games_of = defaultdict[str, list[Any]](list)
    for condition, *game in sql.execute(query):
        games_of[condition].append(game)
    order = {"clean": 0, "edit": 1}
    rows: list[Row] = []
    for condition in sorted(games_of, key=lambda name: (order.get(name, 2), name)):
        games = games_of[condition]
        row = {"condition": condition, "n": sum(game[1] for game in games), "narrows": f"condition={condition}"}
        for place, name in enumerate(rates):
            counts = {
                ((item,), ""): ClusterCount(number, float(values[2 * place] or 0), values[2 * place + 1])
                for item, number, *values in games
            }
            trials = sum(count.trials for count in counts.values())
            row[name] = sum(count.hits for count in counts.values()) / trials if trials else None
            if trials and len(games_of) <= CONDITIONS_WITH_INTERVALS:
                row[f"{name}_low"], row[f"{name}_high"] = find_rate_ends(counts)
        rows.append(row)
    columns = [
        TableColumn("condition", "condition", least=16),
        make_share_column("legal_modified", "legal on modified %"),
        make_share_column("legal_original", "legal on original %"),
        make_share_column("mass_modified", "legal mass on modified"),
        make_share_column("mass_original", "legal mass on original"),
        make_count_column("n", "trials"),
    ]
    bars = make_share_bars(rows, columns, "legal_modified", "mass_modified")
    return Summary("by condition", columns, rows, "trial", bars)


def summarize_matches(sql: SqlSession, run_id: UUID) -> Summary:
    """Return the model's games, score and legal first tries in each match of a run."""
    game, match = tables.Game, tables.Match
    points = build_game_points_sql(match.color == "white")
    query = (
        select(
            match.number, match.color, match.opponent, match.policy, func.count(), func.avg(points),
            *(func.count().filter(points == points_value) for points_value in (1.0, 0.5, 0.0)),
            func.sum(game.first_try_legal), func.sum(game.turns),
        )
        .select_from(game)
        .join(match, and_(match.run_id == game.run_id, match.number == game.match))
        .where(game.run_id == run_id)
        .group_by(match.number, match.color, match.opponent, match.policy)
        .order_by(match.number)
    )  # fmt: skip
    rows: list[Row] = []
    for number, color, opponent, policy, games, score, wins, draws, losses, legal, turns in sql.execute(query):
        has_tries = legal is not None and turns and policy not in MASKED_POLICIES
        first_tries = float(legal) / float(turns) if has_tries else None
        rows.append(
            {"match": number, "color": color, "opponent": opponent, "games": games, "score": score, "won": wins,
             "drawn": draws, "lost": losses, "legal": first_tries, "narrows": f"match={number}"}
        )  # fmt: skip
    columns = [
        TableColumn("opponent", "opponent", widest=40, least=12),
        TableColumn("color", "color"),
        make_share_column("score", "score"),
        *(make_count_column(field, field) for field in ("games", "won", "drawn", "lost")),
    ]
    if any(row["legal"] is not None for row in rows):
        columns.append(make_share_column("legal", "legal on first try %"))
    return Summary("by match", columns, rows, "game", make_share_bars(rows, columns, "score"))


def find_layers(sql: SqlSession, run_id: UUID) -> dict[int, int]:
    """Return unit → layer of a run whose units are layers: by its scores, else by its outputs `layer-N`."""
    score, output = tables.Score, tables.Output
    layers_of_units = select(score.unit, func.min(score.layer)).where(score.run_id == run_id).group_by(score.unit)
    known_layers = {unit: layer for unit, layer in sql.execute(layers_of_units) if layer is not None}
    if known_layers:
        return known_layers
    named_outputs = select(output.unit, output.name).where(output.run_id == run_id, output.name.startswith("layer-"))
    layers = ((unit, name.removeprefix("layer-")) for unit, name in sql.execute(named_outputs))
    return {unit: int(layer) for unit, layer in layers if layer.isdecimal()}


def format_square(square: int) -> str:
    """Return a square's name.

    >>> format_square(0), format_square(15)
    ('a1', 'h2')
    """
    return f"{'abcdefgh'[square % 8]}{square // 8 + 1}"


def tabulate_metrics(sql: SqlSession, run_id: UUID) -> Summary:
    """Return the metrics of a run, without rows if that would be too long a table.

    A row for each layer or unit and each step, and a column for each metric. If all metrics have one unit and step, a
    row for each metric.
    """
    point = tables.MetricPoint
    is_of_run = point.run_id == run_id
    names = sql.scalars(select(point.name).where(is_of_run).distinct().order_by(point.name)).all()
    places = select(point.unit, point.step).where(is_of_run).distinct().subquery()
    if not names or (sql.scalar(select(func.count()).select_from(places)) or 0) > MAX_METRIC_ROWS:
        return Summary("metrics", [], [])
    layer_of = find_layers(sql, run_id)
    by_place: dict[tuple[int, int], dict[str, Any]] = {}
    for unit, step, name, value in sql.execute(
        select(point.unit, point.step, point.name, point.value).where(is_of_run).order_by(point.unit, point.step)
    ):
        row = by_place.setdefault((unit, step), {"unit": unit, "step": step, "layer": layer_of.get(unit)})
        row[f"metric {name}"] = value
    rows = list(by_place.values())
    if len(rows) == 1:
        metric_rows = [{"name": name, "value": rows[0][f"metric {name}"]} for name in names]
        listed_columns = [
            TableColumn("name", "metric", widest=60, role="key"),
            TableColumn("value", "value", right=True, role="value"),
        ]
        return Summary("metrics", listed_columns, metric_rows)
    keys = [field for field in ("unit", "step") if len({row[field] for row in rows}) > 1]
    if len({row["layer"] for row in rows}) > 1:
        keys = ["layer", *(key for key in keys if key != "unit")]
    columns = [make_count_column(f"metric {name}", name.replace("_", " ")) for name in names]
    key_columns = [make_count_column(key, key) for key in keys]
    if "step" in keys and all(name.endswith(SQUARE_METRIC) for name in names):
        key_columns[keys.index("step")] = TableColumn("step", "square", text=lambda row: format_square(row["step"]))
    return Summary("metrics", [*key_columns, *columns], rows)
