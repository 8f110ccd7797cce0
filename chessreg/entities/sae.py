"""Lists and shows sparse autoencoders. `chessreg.experiments.sae` trains, evaluates and reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import select

from chessreg.entities.base import Entity, Row, format_run_annotations
from chessreg.entities.display import (
    Chart,
    Column,
    Option,
    Panel,
    Part,
    Point,
    Series,
    ShowOutput,
    Thing,
    VerifyOutput,
    build_layer_chart,
    format_share,
    list_facts,
)
from chessreg.errors import BadInputError
from chessreg.named import format_count
from chessreg.registry import tables

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session

METRICS = ("l0", "explained_variance", "loss_recovered", "dead_fraction")
MAX_LISTED_LATENTS = 200  # listed on the data screen, strongest first
FREQUENCY_METRIC = "firing_frequency"


def format_brief_value(value: float | None) -> str:
    """Return a number with four significant digits, or "" for None."""
    return "" if value is None else f"{value:.4g}"


class Saes(Entity):
    """Sparse autoencoders: list, show, verify, export. `chessreg run sae` trains them, `chessreg import sae` imports
    them."""

    table = tables.SaeRecord
    plural = "SAEs"
    place = 60
    columns = (
        Column("run_id", "run"), Column("name", "name"), Column("checkpoint", "model"),
        Column("hook_point", "hook point"), Column("layer", "layer"), Column("architecture", "architecture"),
        Column("features", "features"), Column("expansion", "expansion"),
        Column("l0", "L0", text=format_brief_value, number=True),
        Column("explained_variance", "explained variance", text=format_brief_value, number=True),
        Column("loss_recovered", "loss recovered", text=format_brief_value, number=True),
        Column("dead_fraction", "dead", "share"),
    )  # fmt: skip
    overview_columns = (*columns[2:4], Column("layers", "layers"), *columns[5:], Column("tags", "tags"))
    none_yet = "no SAEs yet: chessreg run sae --cache CACHE"
    hidden = ("detail", "checkpoint_id", "statistics")
    list_help = "List the sparse autoencoders, one line per hook point and expansion, with their held-out metrics."
    show_help = "Show one sparse autoencoder: its input, its training and every metric with its interval."
    example = "skill-sae --layer 3"
    show_options = (
        Option("layer", "Layer of the SAE. Left out: the run's only SAE.", int),
        Option("hook_point", "Hook point of the SAE, if a layer has several. Left out: the only one.", metavar="NAME"),
        Option(
            "expansion", "Latents per dimension of the SAE, if a hook point has several. Left out: the only one.", int
        ),
    )
    verify_help = "Read the bytes of a run's SAEs and compare them with their digests."

    def rows(self, sql: SqlSession, reference: str | None = None) -> list[Row]:
        """Return the rows of all SAEs, or of the run `reference`, with their metrics and expansion.

        `statistics` lists the measured metrics with their intervals. A metric that was not measured is None.
        """
        rows = super().rows(sql, reference)
        statistics_by_row = read_sae_statistics(sql, [row["run_id"] for row in rows])
        for row in rows:
            statistics = statistics_by_row.get((row["run_id"], row["unit"]), {})
            row["expansion"] = row["detail"].get("expansion")
            row["statistics"] = [
                {"metric": name, "value": one[0], "low": one[1], "high": one[2], "tokens": one[3]}
                for name, one in statistics.items()
            ]
            row |= {name: statistics[name][0] if name in statistics else None for name in METRICS}
        return rows

    def choose_best(self, rows: list[Row], reference: str, layers: str) -> Row:
        if len({row["layer"] for row in rows}) > 1:
            return super().choose_best(rows, reference, ", ".join(dict.fromkeys(layers.split(", "))))
        names = ", ".join(f"--hook-point {row['hook_point']} --expansion {row['expansion']}" for row in rows)
        raise BadInputError(
            f"{reference} has {format_count(len(rows), self.noun, self.plural)}", f"choose one of {names}"
        )

    def show(self, session: Session, reference: str, **options: Any) -> ShowOutput:
        with session.database.read() as sql:
            rows = self.rows(sql, reference)
        for name in ("hook_point", "expansion"):
            if (value := options.get(name)) is not None:
                rows = [row for row in rows if row[name] == value] or rows
        row = self.choose_row(rows, reference, options.get("layer"))
        details = ("tokens", "train_games", "heldout_games", "l1_coefficient", "sites", "scale")
        row |= {name: row["detail"][name] for name in details if name in row["detail"]}
        output = self.make_output(row)
        return output._replace(parts=(build_metrics_part(row),) if row["statistics"] else ())

    def read_details(self, session: Session, id: UUID) -> Thing:
        with session.database.read() as sql:
            rows, annotations = self.rows(sql, id.hex), format_run_annotations(sql, id)
            latents, histogram = read_strongest_latents(sql, rows), build_firing_chart(sql, rows)
        first_row = rows[0]
        if len({row["expansion"] for row in rows}) > 1:  # a hook point alone does not identify a row
            for row in rows:
                row["hook_point"] += f" {row['expansion']}x"
        by_layer, lines = {"explained_variance": "explained variance", "loss_recovered": "loss recovered"}, {}
        for row in rows:
            for name, label in by_layer.items():
                line = f"{label} {row['expansion']}x"
                row[line], lines[line] = row[name], line
        chart = build_layer_chart("reconstruction by layer", "share", rows, lines, format_share)
        columns = self.columns[3:]
        parts = [Part(f"{self.plural} {len(rows)}", columns, rows, chart)]
        metrics = [{"hook_point": row["hook_point"], **one} for row in rows for one in build_metrics_part(row).rows]
        if metrics:
            parts.append(Part("metrics", (Column("hook_point", "hook point"), *METRIC_COLUMNS), metrics))
        if histogram is not None:
            parts.append(Part("firing", HISTOGRAM, [], histogram))
        if latents:
            parts.append(Part(f"latents {len(latents)}", LATENT_COLUMNS, latents))
        summary = " · ".join(filter(None, [self.plural, first_row.get("checkpoint") or first_row["name"]]))
        return Thing(summary, annotations, [*parts, list_facts(first_row)])

    def verify(self, session: Session, reference: str, **options: Any) -> VerifyOutput:
        with session.database.read() as sql:
            rows = self.rows(sql, reference)
        for row in rows:
            session.store.verify(row["artifact"])
        outcome = f"{format_count(len(rows), 'SAE')} as published"
        return VerifyOutput({"saes": len(rows)}, ["saes"], outcome)


def read_sae_statistics(sql: SqlSession, runs: list[UUID]) -> dict[tuple[UUID, int], dict[str, tuple[Any, ...]]]:
    """Return (run, unit) → metric → (value, low, high, tokens)."""
    table, by_sae = tables.Statistic, dict[tuple[UUID, int], dict[str, tuple[Any, ...]]]()
    columns = (table.value, table.low, table.high, table.n)
    for run_id in dict.fromkeys(runs):
        statement = (
            select(table.unit, table.name, *columns).where(table.run_id == run_id).order_by(table.unit, table.name)
        )
        for unit, name, *values in sql.execute(statement):
            by_sae.setdefault((run_id, unit), {})[name] = tuple(values)
    return by_sae


METRIC_COLUMNS = (
    Column("metric", "metric"), Column("value", "value", text=format_brief_value, number=True),
    Column("low", "95 % from", text=format_brief_value, number=True),
    Column("high", "to", text=format_brief_value, number=True),
    Column("tokens", "tokens"),
)  # fmt: skip


def build_metrics_part(row: Row, name: str = "metrics") -> Part:
    """Return a table of the metrics of an SAE with their intervals."""
    return Part(name, METRIC_COLUMNS, [{**one, "metric": one["metric"].replace("_", " ")} for one in row["statistics"]])


LATENT_COLUMNS = (
    Column("board", "board"), Column("hook_point", "hook point"), Column("item", "latent"),
    Column("value", "strongest", text=format_brief_value, number=True), Column("frequency", "fires at", "share"),
)  # fmt: skip


def read_strongest_latents(sql: SqlSession, rows: list[Row]) -> list[Row]:
    """Return the latents of a run with the largest activations, each with the board reference of its positions."""
    table, run_id = tables.Prediction, rows[0]["run_id"]
    point = {row["unit"]: row["hook_point"] for row in rows}
    latents = sql.scalars(
        select(table).where(table.run_id == run_id, table.value.is_not(None))
        .order_by(table.value.desc(), table.unit, table.item).limit(MAX_LISTED_LATENTS)
    )  # fmt: skip
    return [
        {
            "board": f"{run_id.hex[-6:]}:{one.unit} --item {one.item}", "hook_point": point.get(one.unit, ""),
            "item": one.item, "value": one.value, "frequency": (one.detail or {}).get("frequency"),
            "unit": one.unit, "result_table": "prediction", "name": one.name, "run_id": run_id,
        }
        for one in latents
    ]  # fmt: skip


HISTOGRAM = (Column("frequency", "fires at"), Column("latents", "latents"))


def build_firing_chart(sql: SqlSession, rows: list[Row]) -> Chart | None:
    """Return a chart of the number of latents by firing frequency, one series per hook point. None: nothing was
    measured.
    """
    table = tables.MetricPoint
    series = []
    for row in rows:
        bins = sql.execute(
            select(table.step, table.value)
            .where(table.run_id == row["run_id"], table.unit == row["unit"], table.name == FREQUENCY_METRIC)
            .order_by(table.step)
        ).all()
        if bins:
            points = tuple(Point(f"{10 ** (step / 2):.1e}", value, text=f"{value:.0f}") for step, value in bins)
            series.append(Series(row["hook_point"], points))
    if not series:
        return None
    return Chart("latents by firing frequency", "share of tokens, from", "latents", (Panel("", tuple(series)),), "bars")
