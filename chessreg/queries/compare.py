"""Compare runs: the settings, code and machines that differ, and every metric with its difference.

A difference is estimated over the clusters that both runs have (the same games of a dataset, the same openings),
resampled together. If they share none, each run is resampled separately. For edits with controls in the same run (board
edits), the difference from the controls is compared.

A single run that several machines made, as after a merge, is compared by its attempts. Curves over steps and the runs'
machines are also listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import or_, select

from chessreg.entities.run import describe_reference
from chessreg.errors import BadInputError, NotFoundError
from chessreg.queries import stats
from chessreg.queries.ask import run_query
from chessreg.queries.engine import open_shared_engine
from chessreg.queries.significance import adjust_holm
from chessreg.queries.stats import Estimate
from chessreg.queries.summary import FEW_CLUSTERS, FEW_CLUSTERS_NOTE
from chessreg.registry import names, tables
from chessreg.registry.read import describe_run_engines
from chessreg.rows import Rows
from chessreg.runs.kind import find_own_kind, list_effective_settings
from chessreg.runs.spec import flatten_settings, format_value, name_all_settings

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from chessreg.queries.result import QueryResult
    from chessreg.registry.database import Database


# One row per metric, cluster and part, with hits and trials. The names of clusters contain the dataset or the opening,
# so that only equal games and equal openings are paired. Games of one opening are a cluster, paired by color (`part`).
# The dataset is the source of the items, not the training data of the run or its model. Trials of `legality` are greedy
# texts, numbered below 0. Trials of `token-legality` are only the errors; the rates are in its scores.
CLUSTERS = """
WITH subject(number, run_id, attempt_id) AS (VALUES {subjects}),
about AS (
    SELECT r.id AS run_id, r.kind, split_part(coalesce(json_extract_string(r.spec, '$.dataset'),
               json_extract_string(c.spec, '$.dataset')), '[', 1) AS dataset,
           split_part(json_extract_string(t.spec, '$.dataset'), '[', 1) AS test_dataset
    FROM run AS r
    LEFT JOIN run AS c ON 'run:' || c.spec_hash = json_extract_string(r.spec, '$.cache')
    LEFT JOIN run AS t ON 'run:' || t.spec_hash = json_extract_string(r.spec, '$.test_cache')
),
found AS (
    SELECT s.number, 'accuracy, ' || r.split || coalesce(', layer ' || r.layer, '') AS metric,
           coalesce(CASE WHEN r.split = 'test' THEN a.test_dataset END, a.dataset, s.run_id::VARCHAR) || ' ' || r.item
           AS cluster, r.correct::DOUBLE AS hits, r.n::DOUBLE AS trials
    FROM score AS r JOIN subject AS s ON r.run_id = s.run_id AND r.attempt_id = coalesce(s.attempt_id, r.attempt_id)
    JOIN about AS a ON a.run_id = s.run_id
    WHERE r.item >= 0
    UNION ALL BY NAME
    SELECT s.number, u.metric || ', ' || t.condition AS metric,
           coalesce(a.dataset, s.run_id::VARCHAR) || ' ' || t.item AS cluster, u.hits, 1.0::DOUBLE AS trials
    FROM trial AS t JOIN subject AS s ON t.run_id = s.run_id AND t.attempt_id = coalesce(s.attempt_id, t.attempt_id)
    JOIN about AS a ON a.run_id = s.run_id AND a.kind <> 'token-legality',
    LATERAL (
        SELECT unnest(['legal on the original board', 'legal on the modified board',
                       'probability of a legal move, original', 'probability of a legal move, modified']) AS metric,
               unnest([CASE WHEN t.sample >= 0 OR a.kind = 'legality' THEN t.legal_original::INTEGER::DOUBLE END,
                       CASE WHEN t.sample >= 0 THEN t.legal_modified::INTEGER::DOUBLE END,
                       exact(t.mass_original)::DOUBLE, exact(t.mass_modified)::DOUBLE]) AS hits
    ) AS u
    WHERE u.hits IS NOT NULL
    UNION ALL BY NAME
    SELECT s.number, u.metric,
           g.opening_stream || ' ' || g.opening_number AS cluster, g.color AS part, u.hits, u.trials
    FROM games AS g JOIN subject AS s ON g.run_id = s.run_id AND g.attempt_id = coalesce(s.attempt_id, g.attempt_id),
    LATERAL (
        SELECT unnest(['score', 'first try legal', 'forfeits']) AS metric,
               unnest([g.score_paper::DOUBLE, g.first_try_legal::DOUBLE,
                       (g.termination = 'forfeit_illegal')::INTEGER::DOUBLE]) AS hits,
               unnest([1.0::DOUBLE, g.turns::DOUBLE, 1.0::DOUBLE]) AS trials
    ) AS u
    WHERE u.hits IS NOT NULL
)
SELECT number, metric, cluster, coalesce(part, '') AS part, sum(hits) AS hits, sum(trials) AS trials
FROM found GROUP BY ALL ORDER BY ALL
"""
# A metric's value is its last step. If steps are squares, classes, bins or positions in a search, the last step has no
# special meaning: each class share becomes a separate metric, and other such metrics are left out. Points with the name
# of a statistic are its values under chance and are left out.
VALUES = """
WITH subject(number, run_id, attempt_id) AS (VALUES {subjects})
SELECT s.number, m.name || CASE WHEN starts_with(m.name, 'share_of_') THEN ', class ' || m.step ELSE '' END
                 || coalesce(' of unit ' || nullif(m.unit, 0), '') AS metric,
       arg_max(m.value, m.step) AS value, NULL::DOUBLE AS low, NULL::DOUBLE AS high
FROM metric_point AS m
JOIN subject AS s ON m.run_id = s.run_id AND m.attempt_id = coalesce(s.attempt_id, m.attempt_id)
WHERE NOT regexp_matches(m.name, '_square_accuracy$|_auc_(logits|softmax)$|^(firing_frequency|search_.*|positions)$')
  AND NOT EXISTS (SELECT 1 FROM statistic AS t WHERE t.run_id = m.run_id AND t.unit = m.unit AND t.name = m.name)
GROUP BY s.number, metric
UNION ALL BY NAME
SELECT s.number, 'rating of ' || r.player AS metric, r.rating AS value, r.low, r.high
FROM rating AS r JOIN subject AS s ON r.run_id = s.run_id AND r.attempt_id = coalesce(s.attempt_id, r.attempt_id)
UNION ALL BY NAME
SELECT s.number, t.name || coalesce(' of unit ' || nullif(t.unit, 0), '') AS metric, t.value, t.low, t.high
FROM statistic AS t JOIN subject AS s ON t.run_id = s.run_id AND t.attempt_id = coalesce(s.attempt_id, t.attempt_id)
UNION ALL BY NAME
SELECT s.number, 'mean ' || p.name AS metric, avg(p.value) AS value, NULL::DOUBLE AS low, NULL::DOUBLE AS high
FROM prediction AS p
JOIN subject AS s ON p.run_id = s.run_id AND p.attempt_id = coalesce(s.attempt_id, p.attempt_id)
WHERE p.value IS NOT NULL
GROUP BY s.number, p.name
ORDER BY ALL
"""


# kind → the query that compares edits with their controls, its metric, and the metric's unit
CONTROLLED_QUERIES = {
    "play": ("elo by intervention", "score", 1.0),
    "edit": ("board intervention legality", "legal on the modified board", 100.0),
}
# kind → the query whose notes on a run's rows are also notes of a comparison
NOTED_QUERIES = dict.fromkeys(("play", "engine-match", "imported-games"), "elo by intervention") | {"rating": "ratings"}
NOTE_ON_ROWS = "each color has a row"  # the beginning of a note on the rows of the table, which a comparison lacks
FEW_CONTROL_DRAWS = 5  # with fewer control directions, the resampled interval is too narrow


@dataclass(frozen=True)
class Subject:
    """A column of the comparison: a run, or one attempt of a run."""

    label: str
    run_id: UUID
    attempt_id: UUID | None = None
    is_repeated: bool = False  # its rows equal rows ingested earlier, so it has the run's numbers


@dataclass(frozen=True)
class Metric:
    """A metric of all subjects and its differences from the first. Rates are shares of 1."""

    name: str
    values: list[Estimate]
    differences: list[Estimate | None]  # None for the baseline, and if either side lacks the metric
    clusters: int | None = None  # of the subject with the fewest; None for a value without clusters


@dataclass
class RunComparison:
    """The differences between subjects. The first subject is the baseline."""

    subjects: list[Subject]
    kinds: list[str]
    differences: dict[str, dict[str, list[Any]]] = field(
        default_factory=dict
    )  # group → fact → a value for each subject
    metrics: list[Metric] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what a reader of the metrics must know

    def __repr__(self) -> str:
        return repr(self._make_rows())

    def _repr_html_(self) -> str:
        return self._make_rows()._repr_html_()

    def _make_rows(self) -> Rows:
        """Return one row per differing setting and per metric, with a column per subject."""
        labels = [subject.label for subject in self.subjects]
        rows = [
            {"": f"{group} {name}", **dict(zip(labels, map(format_fact, values), strict=True))}
            for group, differences in self.differences.items()
            for name, values in differences.items()
        ]
        rows += [
            {"": each.name, **dict(zip(labels, (v.format_value() for v in each.values), strict=True))}
            for each in self.metrics
        ]
        return Rows(rows, {"": "", **{label: label for label in labels}})

    def correct_p_values(self) -> dict[str, float]:
        """Return metric → p-value that the second subject is a replicate of the first, Holm-adjusted over all metrics
        with an interval.

        Without the adjustment, one of many intervals excludes 0 by chance.
        """
        p_values = {m.name: p for m in self.metrics if (d := m.differences[1]) and (p := d.p()) is not None}
        adjusted_p_values = adjust_holm(list(p_values.values()))
        return {name: p for name, p in zip(p_values, adjusted_p_values, strict=True) if p is not None}

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as a JSON document."""
        return {
            "subjects": [
                {"label": s.label, "run_id": s.run_id.hex, "attempt_id": s.attempt_id.hex if s.attempt_id else None,
                 "kind": kind, "baseline": n == 0}
                for n, (s, kind) in enumerate(zip(self.subjects, self.kinds, strict=True))
            ],
            "differing": self.differences,
            "metrics": [
                {"metric": m.name, "values": [v._asdict() for v in m.values],
                 "differences": [d._asdict() if d else None for d in m.differences]}
                for m in self.metrics
            ],
            "notes": self.notes,
        }  # fmt: skip


def compare_runs(database: Database, references: list[str]) -> RunComparison:
    """Compare runs by name or id. The baseline is the pinned one, or else the first.

    A single run is compared by its attempts. Raises NotFoundError, and BadInputError if there is nothing to compare.
    """
    with database.read() as session:
        subjects = find_subjects(session, references)
        kinds = [session.get_one(tables.Run, s.run_id).kind for s in subjects]
        comparison = RunComparison(subjects, kinds, list_differences(session, subjects))
    metrics = compute_metrics(database, subjects)
    if any(1 < metric.clusters < FEW_CLUSTERS for metric in metrics if metric.clusters is not None):
        comparison.notes.append(FEW_CLUSTERS_NOTE)
    comparison.metrics = metrics + measure_beyond_controls(database, comparison)
    return comparison


def find_subjects(session: Session, references: list[str]) -> list[Subject]:
    """Return the runs to compare, the pinned one first. For a single run, return its attempts.

    Raises NotFoundError if the run has not begun, and BadInputError if it has fewer than two attempts.
    """
    ids = list(dict.fromkeys(names.resolve_id(session, "run", reference) for reference in references))
    run_names = names.read_names_of(session, "run", ids)
    if len(ids) > 1:
        now = names.CURRENT_ANNOTATIONS.c
        pinned_ids = set(session.scalars(select(now.target).where(now.noun == "run", now.word == "pin")))
        ids.sort(key=lambda id: id.hex not in pinned_ids)  # stable: the pinned run, then the given order
        return [Subject(run_names.get(id, id.hex[-6:]), id) for id in ids]
    attempt, machine = tables.Attempt, tables.Machine
    run = session.get(tables.Run, ids[0])
    if run is None:  # launched but not started
        raise NotFoundError(f"run {references[0]} has not begun", f"chessreg jobs {references[0]}")
    units = run.units
    first = set(session.scalars(select(tables.UnitRange.attempt_id).where(tables.UnitRange.run_id == ids[0])))
    conflicting_attempts = set(
        session.scalars(select(tables.Conflict.attempt_id).where(tables.Conflict.run_id == ids[0]))
    )
    rows = session.execute(
        select(attempt.id, attempt.units_done, machine.host)
        .join(machine, machine.id == attempt.machine_id)
        .where(attempt.run_id == ids[0], or_(attempt.id.in_(first), attempt.units_done > 0))
        .order_by(attempt.started_at)
    ).all()
    if len(rows) < 2:
        raise BadInputError(
            f"run {references[0]} cannot be compared by attempts: it has a single one",
            "name a second run: chessreg compare RUN RUN",
        )
    return [
        Subject(f"{host} {id.hex[-6:]}", ids[0], id, done_units >= units and id not in first | conflicting_attempts)
        for id, done_units, host in rows
    ]


# -- differences ------------------------------------------------------------------------------------------------------


def list_differences(session: Session, subjects: list[Subject]) -> dict[str, dict[str, list[Any]]]:
    """Return group → fact → the value of each subject, for all facts that differ.

    A setting without an effect, such as the scale of a run without a vector, has the value None. It differs if its
    recorded value, the default, differs.
    """
    tables_of = [read_run_facts(session, subject) for subject in subjects]
    effective = [read_effective_paths(session, subject) for subject in subjects]
    differences: dict[str, dict[str, list[Any]]] = {}
    for group in tables_of[0]:
        keys = list(dict.fromkeys(key for table in tables_of for key in table[group]))
        rows = {key: [table[group].get(key) for table in tables_of] for key in keys}
        differing_rows = {key: values for key, values in rows.items() if any(v != values[0] for v in values[1:])}
        if differing_rows and group == "settings":
            differing_rows = {
                key: [value if key in paths else None for value, paths in zip(values, effective, strict=True)]
                for key, values in differing_rows.items()
            }
        if differing_rows:
            differences[group] = differing_rows
    return differences


def read_effective_paths(session: Session, subject: Subject) -> set[str]:
    """Return the dotted paths of a run's settings that have an effect, with `kind` and `version`."""
    run = session.get_one(tables.Run, subject.run_id)
    return {"kind", "version", *list_effective_settings(run.kind, run.spec)}


def read_run_facts(session: Session, subject: Subject) -> dict[str, dict[str, Any]]:
    """Return the facts of a run: settings, execution options, code, machine and versions, of the last of several
    attempts."""
    run = session.get_one(tables.Run, subject.run_id)
    attempt = (
        session.get(tables.Attempt, subject.attempt_id) if subject.attempt_id else read_last_attempt(session, run.id)
    )
    machine = session.get(tables.Machine, attempt.machine_id) if attempt else None
    code = attempt.code if attempt else {}
    settings, custom_kind = flatten_settings(run.spec), find_own_kind(run.kind)
    if custom_kind is not None:
        settings = name_all_settings(custom_kind.spec, settings)
    return {
        "settings": {"kind": run.kind, "version": run.version}
        | {path: describe_reference(session, value) for path, value in settings.items()},
        "execution options": flatten_settings(attempt.execution_options) if attempt else {},
        "code": {"chessreg": attempt.chessreg_version if attempt else None} | flatten_settings(code),
        "machine": {
            name: getattr(machine, name, None)
            for name in ("host", "platform", "cpu", "cores", "memory_bytes", "gpus", "driver", "cuda")
        },
        "versions": (dict(attempt.environment) if attempt else {}) | describe_run_engines(session, run.id),
    }


def read_last_attempt(session: Session, run_id: UUID) -> tables.Attempt | None:
    attempt = tables.Attempt
    newest = attempt.started_at.desc(), attempt.id.desc()
    return session.scalars(select(attempt).where(attempt.run_id == run_id).order_by(*newest)).first()


def format_fact(value: Any) -> str:
    """Return a setting or another fact of a run as text; — if it is not set or does not apply."""
    return "—" if value is None else format_value(value)


# -- metrics ----------------------------------------------------------------------------------------------------------


def compute_metrics(database: Database, subjects: list[Subject]) -> list[Metric]:
    """Return every metric of any subject, by name."""
    attempts = [f"UUID '{s.attempt_id}'" if s.attempt_id and not s.is_repeated else "NULL::UUID" for s in subjects]
    values = ", ".join(f"({n}, UUID '{s.run_id}', {attempts[n]})" for n, s in enumerate(subjects))
    answer = open_shared_engine(database).answer(
        {"clusters": CLUSTERS.format(subjects=values), "values": VALUES.format(subjects=values)}
    )
    rates: dict[str, dict[int, stats.Cell]] = {}
    for row in answer["clusters"].to_pylist():
        cells = rates.setdefault(row["metric"], {}).setdefault(row["number"], {})
        cells[row["cluster"], row["part"]] = (row["hits"], row["trials"])
    metrics = [rate_metric(name, cells, len(subjects)) for name, cells in rates.items()]
    estimates_by_subject: dict[str, dict[int, Estimate]] = {}
    for row in answer["values"].to_pylist():
        estimates_by_subject.setdefault(row["metric"], {})[row["number"]] = Estimate(
            row["value"], row["low"], row["high"]
        )
    return metrics + [build_value_metric(name, cells, len(subjects)) for name, cells in estimates_by_subject.items()]


def measure_beyond_controls(database: Database, comparison: RunComparison) -> list[Metric]:
    """Return the effect of each edit minus that of its control directions, from the queries in CONTROLLED_QUERIES. Adds
    the notes of the tables of NOTED_QUERIES to the comparison."""
    subjects, metrics = comparison.subjects, []
    titles = sorted({NOTED_QUERIES[kind] for kind in comparison.kinds if kind in NOTED_QUERIES})
    noted_tables = {title: run_query(database, title, partial=True) for title in titles}
    run_names = read_run_names(database, subjects)
    comparison.notes += list_table_notes(comparison, noted_tables, run_names)
    for kind, (title, measure, unit) in CONTROLLED_QUERIES.items():
        kind_subjects = [s for s, subject_kind in zip(subjects, comparison.kinds, strict=True) if subject_kind == kind]
        if not kind_subjects:
            continue
        table = noted_tables.get(title) or run_query(
            database, title, run=[s.run_id.hex for s in kind_subjects], partial=True
        )
        rows = {s.run_id: list_subject_rows(database, table, s, run_names) for s in kind_subjects if not s.attempt_id}
        for control in ("random", "shuffled"):
            values = [estimate_beyond_control(rows.get(s.run_id, []), f"minus_{control}", unit) for s in subjects]
            if any(value.value is not None for value in values):
                draws = sorted({
                    number for part in rows.values() for row in part if (number := row.get(f"{control}_draws"))
                })  # fmt: skip
                count = " to ".join(map(str, dict.fromkeys((draws[0], draws[-1])))) + " " if draws else ""
                name = f"{measure}, minus {count}{control} {'direction' if draws == [1] else 'directions'}"
                metrics.append(Metric(name, values, [None] * len(subjects)))
                if draws and draws[0] < FEW_CONTROL_DRAWS and title not in noted_tables:
                    comparison.notes.append(f"{name}: below {FEW_CONTROL_DRAWS}, the interval is too narrow")
    return metrics


def read_run_names(database: Database, subjects: Sequence[Subject]) -> dict[UUID, str]:
    """Return run id → name of each subject's run, as tables print it."""
    ids = ", ".join(f"UUID '{subject.run_id}'" for subject in subjects)
    sql = f"SELECT run_id, run FROM runs WHERE run_id IN ({ids})"
    rows = open_shared_engine(database).answer({"runs": sql})["runs"].to_pylist()
    return {UUID(row["run_id"]): row["run"] for row in rows}


def is_row_of_run(row: Mapping[str, Any], run: str | None, *, is_alone: bool = False) -> bool:
    """Return whether a row of a table shows results of `run`. With `is_alone`, the row must not show results of other
    runs."""
    runs = str(row.get("runs", row.get("run")))
    return run is not None and (runs == run if is_alone else run in runs.split(", "))


def list_table_notes(
    comparison: RunComparison, noted_tables: Mapping[str, QueryResult], run_names: Mapping[UUID, str]
) -> list[str]:
    """Return each text of the column `warning` in the rows of the subjects once. A text that does not apply to all
    subjects begins with the labels of its subjects. Texts that refer to rows of the table are left out."""
    labels: dict[str, list[str]] = {}
    for subject, kind in zip(comparison.subjects, comparison.kinds, strict=True):
        rows = noted_tables[NOTED_QUERIES[kind]].rows if kind in NOTED_QUERIES else []
        texts = [
            text
            for row in rows
            if row["warning"] and is_row_of_run(row, run_names.get(subject.run_id))
            for text in row["warning"].split("; ")
        ]
        for text in dict.fromkeys(texts):
            if not text.startswith(NOTE_ON_ROWS):
                labels.setdefault(text, []).append(subject.label)
    count = len(comparison.subjects)
    return [text if len(names) == count else f"{', '.join(names)}: {text}" for text, names in labels.items()]


def list_subject_rows(
    database: Database, table: QueryResult, subject: Subject, run_names: Mapping[UUID, str]
) -> list[dict[str, Any]]:
    """Return the rows of a table that show the subject's run alone. If the table pools the run with other runs, query
    it again for this run and the runs of its controls."""
    run = run_names.get(subject.run_id)
    rows = [row for row in table.rows if is_row_of_run(row, run, is_alone=True)]
    if rows or not any(is_row_of_run(row, run) for row in table.rows):
        return rows
    sql = f"""SELECT DISTINCT c.run_id FROM arms AS e
        JOIN arms AS c ON c.stands_for = e.vector AND c.checkpoint_id = e.checkpoint_id
        WHERE e.run_id = UUID '{subject.run_id}'"""
    controls = [row["run_id"] for row in open_shared_engine(database).answer({"runs": sql})["runs"].to_pylist()]
    assert table.entry
    own_table = run_query(database, table.entry, run=[subject.run_id.hex, *controls], partial=True)
    return [row for row in own_table.rows if is_row_of_run(row, run, is_alone=True)]


def estimate_beyond_control(rows: list[dict[str, Any]], column: str, unit: float) -> Estimate:
    """Return the difference of a subject's edit from its controls, as a share of 1. Unknown if the subject has several
    edits.

    `rows` are the subject's. `column` has the difference, in a unit of which `unit` make a share of 1, such as 100 for
    percent.
    """
    value_rows = [row for row in rows if row[column] is not None]
    if len(value_rows) != 1:
        return stats.UNKNOWN
    return Estimate(
        *(None if (v := value_rows[0][column + end]) is None else v / unit for end in ("", "_low", "_high"))
    )


def rate_metric(name: str, cells: dict[int, stats.Cell], subjects: int) -> Metric:
    """Return a rate (hits / trials) of each subject and its difference from the first, both with intervals.

    `cells` maps a subject's number to its counts. Subjects without trials have unknown values.
    """
    clusters_by_subject = {number: stats.build_clusters(cell) for number, cell in cells.items()}
    values = [
        stats.estimate_rate(clusters_by_subject[n], "hits", "trials") if n in clusters_by_subject else stats.UNKNOWN
        for n in range(subjects)
    ]
    differences: list[Estimate | None] = [None]
    for number in range(1, subjects):
        both = number in cells and 0 in cells
        differences.append(stats.estimate_cell_difference(cells[number], cells[0]) if both else None)
    return Metric(name, values, differences, min(clusters.number for clusters in clusters_by_subject.values()))


def build_value_metric(name: str, cells: dict[int, Estimate], subjects: int) -> Metric:
    """Return a value of each subject and its difference from the first, without an interval."""
    values = [cells.get(n, stats.UNKNOWN) for n in range(subjects)]
    base = values[0].value
    differences = [
        None if n == 0 or base is None or v.value is None else Estimate(v.value - base, None, None)
        for n, v in enumerate(values)
    ]
    return Metric(name, values, differences)


Curve = list[tuple[int, float]]  # (step, value), by step
MACHINE = ("host", "platform", "cpu", "cores", "memory_bytes", "gpus", "driver", "cuda", "torch", "python")


def read_curves(session: Session, subjects: list[Subject]) -> dict[str, list[Curve]]:
    """Return metric → the curve of each subject, empty for a subject without the metric. Metrics with a single step are
    left out. A metric of several layers has a curve for each."""
    point = tables.MetricPoint
    points: dict[tuple[str, int, str], list[Curve]] = {}
    for number, subject in enumerate(subjects):
        layers = read_layers_of_units(session, subject.run_id)
        rows = select(point.name, point.unit, point.step, point.value).where(point.run_id == subject.run_id)
        if subject.attempt_id is not None:
            rows = rows.where(point.attempt_id == subject.attempt_id)
        for name, unit, step, value in session.execute(rows.order_by(point.name, point.unit, point.step)):
            layer = layers.get(unit)
            scope_text = f"layer {layer}" if layer is not None else f"unit {unit}" if unit else ""
            key = name, unit if layer is None else layer, f"{name}, {scope_text}" if scope_text else name
            points.setdefault(key, [[] for _ in subjects])[number].append((step, value))
    return {metric: parts for (*_, metric), parts in sorted(points.items()) if any(len(part) > 1 for part in parts)}


def read_layers_of_units(session: Session, run_id: UUID) -> dict[int, int]:
    """Return unit → layer of a run whose units are layers, such as a probe run; {} for any other run."""
    layers: dict[int, int] = {}
    for table in (tables.ProbeRecord, tables.SaeRecord, tables.VectorRecord):
        rows = select(table.unit, table.layer).where(table.run_id == run_id, table.layer.is_not(None))
        layers |= dict(row.tuple() for row in session.execute(rows))
    return layers if len(set(layers.values())) == len(layers) else {}


def read_machines(session: Session, subjects: list[Subject]) -> list[dict[str, Any]]:
    """Return for each subject the machine of its last attempt, the total seconds of its attempts, and its units per
    hour.

    `hosts` has every machine that took part. None: unknown, or still running.
    """
    attempt, machine = tables.Attempt, tables.Machine
    machine_rows = []
    for subject in subjects:
        rows = select(attempt, machine.host).join(machine, machine.id == attempt.machine_id)
        rows = rows.where(attempt.run_id == subject.run_id)
        if subject.attempt_id is not None:
            rows = rows.where(attempt.id == subject.attempt_id)
        tries = session.execute(rows.order_by(attempt.started_at, attempt.id)).all()
        last = session.get(tables.Attempt, subject.attempt_id) if subject.attempt_id else None
        last = last or read_last_attempt(session, subject.run_id)
        machine_row = session.get(tables.Machine, last.machine_id) if last else None
        ended_attempts = [run_attempt for run_attempt, _ in tries if run_attempt.ended_at is not None]
        seconds = sum(
            ((run_attempt.ended_at or run_attempt.started_at) - run_attempt.started_at).total_seconds()
            for run_attempt in ended_attempts
        )
        units = sum(run_attempt.units_done for run_attempt in ended_attempts)
        machine_rows.append(
            {"label": subject.label, "run_id": subject.run_id.hex}
            | {name: getattr(machine_row, name, None) for name in MACHINE}
            | {
                "hosts": list(dict.fromkeys(host for _, host in tries)),
                "attempts": len(tries),
                "seconds": seconds if ended_attempts else None,
                "units": units,
                "units_an_hour": 3600 * units / seconds if seconds else None,
            }
        )
    return machine_rows
