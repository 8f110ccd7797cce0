"""The papers' own numbers, with ours next to them.

A TOML file holds the values of one paper. A series names the query that recomputes it, the column with the same
quantity (`measure`), and our rows to compare with each value (`role`, an SQL condition).

Our number is comparable if every recorded setting of every run behind its row equals the paper's. `run` names the
paper's run behind the value (`paper_runs`), with its full settings; `with` changes some of them for a series or a
value. Every difference is listed. Other conditions concern facts of a row that are not settings: `facts` (columns with
the paper's values), `counts` (equal within 1 %) and `versions` (equal, or a minor release of the same version).
`layers` (each reading of the paper's text, as 3-6 or 5,7,9) and `scale` are such conditions on an edit. As in the
paper, scales of contrastive vectors refer to sums over eight positions. `not_comparable` is the reason why no run can
reproduce the paper's number.

The values of a series with `settings` are not measurements: each equals ours or differs. The bytes do not show that a
checkpoint or dataset is the paper's own, because most are not public. A user marks them with a tag, for example
`chessreg checkpoint tag CHECKPOINT karvonen-2024:8-layer`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.errors import ChessregError, NotFoundError
from chessreg.queries.ask import list_warnings
from chessreg.queries.catalogue import QueryColumn
from chessreg.queries.duck import quote_text
from chessreg.queries.published.paper_runs import PaperComparison, PaperRun, PaperRuns, RecordedRun
from chessreg.queries.published.recorded import read_runs_by_row, read_world
from chessreg.queries.result import QueryResult
from chessreg.runs.spec import merge_settings

if TYPE_CHECKING:
    import pyarrow as pa

    from chessreg.queries.engine import QueryEngine
    from chessreg.registry.database import Database


@dataclass(frozen=True)
class RowCondition:
    """A condition on a row of ours (SQL) for comparing two numbers, and the reason (SQL of a text) if it fails."""

    holds: str
    otherwise: str


EDIT_KEYS = ("layers", "scale")  # keys of a value that are conditions on its edit
AUTHORS_POSITIONS = 8  # Karvonen's contrastive vectors are sums over this number of positions
RELATIVE_TOLERANCE = 0.01  # of scales and game counts: closer values count as equal


@dataclass(frozen=True)
class PublishedValue:
    """One published number. `factor` converts our measure to its unit.

    A `setting` equals ours or differs: by more than `tolerance`, as a share of it, or if one of `alike` fails.
    """

    paper: str
    table: str
    row: str
    column: str
    value: float | None
    unit: str
    query: str
    measure: str
    role: str
    conditions: tuple[RowCondition, ...]
    factor: float = 1.0
    note: str = ""
    is_lost: bool = False
    setting: bool = False
    tolerance: float = 1e-6
    alike: tuple[RowCondition, ...] = ()
    runs: tuple[str, ...] = ()  # the paper's runs behind it, one per experiment kind
    changes: Mapping[str, Any] = field(default_factory=dict)  # changes to the settings of `runs`
    described_runs: PaperRuns = field(default_factory=lambda: PaperRuns())
    columns: frozenset[str] = frozenset()  # columns of the row that have conditions or have no effect

    @property
    def paper_runs(self) -> list[PaperRun]:
        """The paper's runs behind the value. Raises ChessregError for a run without description."""
        return [self.described_runs.run(name, self.changes) for name in self.runs]


def expand_values(document: dict[str, Any], paper_runs: PaperRuns) -> list[PublishedValue]:
    """Return the values of one file. Raises ChessregError for an unknown key."""
    values = []
    for series in document["series"]:
        for item in series["values"]:
            known_keys = {"row", "column", "value", "role", "measure", "note", "lost", "factor", "layers", "scale",
                     "tolerance", "run", "with", "facts", "counts", "versions", "unaffected",
                     "not_comparable"}  # fmt: skip
            if unknown_keys := set(item) - known_keys:
                raise ChessregError(f"{series['table']}: {', '.join(sorted(unknown_keys))} is not a known key")
            roles = [r for r in (series.get("role"), item.get("role")) if r]
            is_lost, setting = item.get("lost", False), series.get("settings", False)
            facts, counts, versions = (
                {**series.get(key, {}), **item.get(key, {})} for key in ("facts", "counts", "versions")
            )
            row_conditions = list_row_conditions(facts, counts, versions)
            if reason := item.get("not_comparable", series.get("not_comparable")):
                row_conditions.append(RowCondition("false", quote_text(reason)))
            edit_conditions, runs = list_edit_conditions(item), item.get("run", series.get("run", []))
            values.append(
                PublishedValue(
                    paper=document["paper"],
                    table=series["table"],
                    row=item["row"],
                    column=item.get("column", series.get("column", "")),
                    value=None if is_lost else float(item["value"]),
                    unit=series["unit"],
                    query=series["query"],
                    measure=item.get("measure", series.get("measure", "")),
                    role=" AND ".join(f"({r})" for r in roles) or "true",
                    conditions=(*row_conditions, *(() if setting else edit_conditions)),
                    factor=float(item.get("factor", series.get("factor", 1.0))),
                    note=item.get("note", series.get("note", "")),
                    is_lost=is_lost,
                    setting=setting,
                    tolerance=item.get("tolerance", 1e-6),
                    alike=tuple(edit_conditions) if setting else (),
                    runs=(runs,) if isinstance(runs, str) else tuple(runs),
                    changes=merge_settings(series.get("with", {}), item.get("with", {})),
                    described_runs=paper_runs,
                    columns=frozenset(
                        {
                            *facts,
                            *counts,
                            *versions,
                            *item.get("unaffected", ()),
                            *(f"edit_{n}" for n in EDIT_KEYS if n in item),
                        }
                    ),
                )
            )
    return values


def list_row_conditions(
    facts: Mapping[str, Any], counts: Mapping[str, float], versions: Mapping[str, str]
) -> list[RowCondition]:
    """Return the conditions that columns of our row have the paper's values, counts within 1 %."""
    conditions = []
    for column, value in facts.items():
        literal, name = format_sql_literal(value), f'"{column}"'
        condition = f"abs({name} - {literal}) <= 1e-9" if isinstance(value, float) else f"{name} = {literal}"
        conditions.append(RowCondition(condition, build_difference_sql(column, value)))
    for column, number in counts.items():
        condition = f'abs("{column}" / {number} - 1) <= {RELATIVE_TOLERANCE}'
        conditions.append(RowCondition(condition, build_difference_sql(column, number)))
    for column, version in versions.items():
        condition = f"""regexp_matches("{column}", '(^| ){version}(\\.|$)')"""
        conditions.append(RowCondition(condition, build_difference_sql(column, version)))
    return conditions


def build_difference_sql(column: str, value: Any) -> str:
    """Return the SQL of a text that names our value of a column and the paper's."""
    before, suffix = f"{column} ", f", the paper's {value}"
    return f"""{quote_text(before)} || coalesce("{column}"::VARCHAR, 'unknown') || {quote_text(suffix)}"""


def format_sql_literal(value: Any) -> str:
    """Return a value of a TOML file as SQL."""
    if isinstance(value, list):
        return f"[{', '.join(map(format_sql_literal, value))}]"
    return quote_text(value) if isinstance(value, str) else str(value).lower()


def list_edit_conditions(item: dict[str, Any]) -> list[RowCondition]:
    """Return the conditions that the edit of our row has the layers and the scale of the published one."""
    conditions = []
    if layers := item.get("layers"):
        layer_list = ", ".join(map(quote_text, layers))
        mismatch_text = f"'layers ' || edit_layers || ', the paper''s ' || '{' or '.join(layers)}'"
        conditions.append(RowCondition(f"edit_layers IN ({layer_list})", mismatch_text))
    if scale := item.get("scale"):
        mismatch_text = f"'scale ' || round(edit_scale, 6) || ', the paper''s {scale}'"
        conditions.append(RowCondition(f"abs(edit_scale / {scale} - 1) <= {RELATIVE_TOLERANCE}", mismatch_text))
    return conditions


@cache
def list_published_values() -> tuple[PublishedValue, ...]:
    """Return every published number, in the order of the files."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    documents = [tomllib.loads(path.read_text(encoding="utf-8")) for path in files]
    by_paper: dict[str, list[dict[str, Any]]] = {}
    for document in documents:
        by_paper.setdefault(document["paper"], []).append(document)
    runs_by_paper = {paper: PaperRuns(paper_entries) for paper, paper_entries in by_paper.items()}
    values: list[PublishedValue] = []
    for document in documents:
        for series in document["series"]:
            _expand_curves(series)
        values += expand_values(document, runs_by_paper[document["paper"]])
    return tuple(values)


def _expand_curves(series: dict[str, Any]) -> None:
    """Expand the curves of a series into values, in place.

    `by_layer` has rows of numbers, one per layer: the paper counts layers from 1, the registry from 0. `by` has rows of
    numbers, one per entry of `names`; `of` is the condition on a name.
    """
    values = series.setdefault("values", [])
    for curve in series.pop("by", ()):
        for name, value in zip(series["names"], curve["values"], strict=True):
            role = f"({curve['role']}) AND {series['of'].format(name=name)}"
            values.append({**get_shared_keys(curve), "row": f"{curve['row']}, {name}", "value": value, "role": role})
    for curve in series.pop("by_layer", ()):
        for layer, value in enumerate(curve["values"]):
            role = f"({curve['role']}) AND {series['layer'].format(layer=layer)}"
            values.append(
                {**get_shared_keys(curve), "row": f"{curve['row']}, layer {layer + 1}", "value": value, "role": role}
            )


def get_shared_keys(curve: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a curve that all of its numbers share: all keys except `values`."""
    return {key: value for key, value in curve.items() if key != "values"}


COLUMNS = {
    "paper": "the paper",
    "table": "its table or figure",
    "row": "row there",
    "column": "column there",
    "unit": "unit of all numbers of this row",
    "published": "the paper's number",
    "ours": "ours, with its interval",
    "ours_low": "",
    "ours_high": "",
    "our_row": "row of the same query without --published; --rows N shows the rows behind it",
    "difference": "ours minus published, with the interval of ours; only where the two are comparable",
    "difference_low": "",
    "difference_high": "",
    "model": "our model",
    "comparison": "comparable, or every difference; of a setting: same, or differs",
    "not_stated": "our values of settings that the paper does not state",
    "note": "on the published number",
}


HIDDEN = ("not_stated",)  # in JSON, CSV and Parquet only


def compare_with_published(database: Database, result: QueryResult, table_names: Sequence[str] = ()) -> QueryResult:
    """Return the published numbers that a query recomputes, each next to ours. `table_names` limits them to the named
    tables.

    Raises NotFoundError if no published numbers are known.
    """
    import pyarrow as pa

    from chessreg.queries.engine import open_shared_engine

    assert result.entry
    published_values = [
        v
        for v in list_published_values()
        if v.query == result.entry.title and (not table_names or v.table in table_names)
    ]
    if not published_values:
        raise NotFoundError(f"no published numbers are known for {result.entry.title!r}", "ask without --published")
    engine = open_shared_engine(database)
    row_descriptions = describe_rows(engine, result)
    rows: list[dict[str, Any]] = []
    player_rows = find_matching_rows(engine, published_values, row_descriptions)
    runs, world = (read_runs_by_row(database, result), read_world(database, engine)) if player_rows else ([], None)
    for number, value in enumerate(published_values):
        for row in player_rows.get(number, []):
            assert world
            add_differences(row, runs[row["place"]], value, PaperComparison(value.described_runs, world))
        rows += build_comparison_lines(value, player_rows.get(number, []))
    types = {name: pa.float64() if name.split("_")[0] in ("published", "ours", "difference") else pa.string()
             for name in COLUMNS} | {"our_row": pa.int64()}  # fmt: skip
    table = pa.table({n: pa.array([row.get(n) for row in rows], types[n]) for n in COLUMNS})
    warnings_by_row = list_warnings(result.table)
    notes = list_warnings(result.table, "our row", {row["our_row"] for row in rows if row.get("our_row")})
    notes += [note for note in result.notes if note not in warnings_by_row]
    for question, text in (
        (False, "rows are comparable with the paper's"),
        (True, "settings are the same as the paper's"),
    ):
        lines = [row for row in rows if row["setting"] == question]
        if lines:
            alike = sum(row["comparison"] in ("comparable", "same") for row in lines)
            notes.append(f"{alike} of {len(lines)} {text}")
    meta = {**result.meta, "published": True, "rows": table.num_rows}
    units = {row["unit"] for row in rows}
    unit = units.pop() if len(units) == 1 else ""
    numbers = ("published", "ours", "difference")
    columns = tuple(QueryColumn(n, unit if n in numbers else "", text, n in HIDDEN) for n, text in COLUMNS.items())
    return QueryResult(table, meta, notes, column_notes=columns)


def drop_unmatched(result: QueryResult) -> QueryResult:
    """Return the comparison without the published numbers that have no counterpart, and note their number. If no number
    has a counterpart, return `result` unchanged."""
    kept_places = [place for place, row in enumerate(result.rows) if row["ours"] is not None]
    number = len(result) - len(kept_places)
    if not kept_places or not number:
        return result
    note = f"{number} published numbers have no counterpart in this registry; --format csv and --json list them all"
    return replace(result, table=result.table.take(kept_places), notes=[*result.notes, note])


def add_differences(
    row: dict[str, Any], runs: Sequence[RecordedRun], value: PublishedValue, comparison: PaperComparison
) -> None:
    """Add to the reasons of our `row` every difference between the settings of its `runs` and the paper's.

    `value` is the published number, and `comparison` compares the settings. Settings that the paper does not state are
    added with our values.
    """
    differences, free = dict.fromkeys(filter(None, [row["reasons"]])), dict[str, None]()
    if value.runs and not runs:
        differences["no run of this registry is behind the row"] = None
    for run in runs if value.runs else ():
        by_paper_run = [(comparison.list_differences(run, paper), paper) for paper in value.paper_runs]
        texts, paper = min(by_paper_run, key=lambda each: (each[1].kind != run.kind, len(each[0])))
        differences |= dict.fromkeys(texts)
        free |= dict.fromkeys(comparison.list_unstated_settings(run, paper))
    row["reasons"], row["not_stated"] = "; ".join(differences), ", ".join(free) or None


def find_matching_rows(
    engine: QueryEngine, published_values: list[PublishedValue], ours: pa.Table
) -> dict[int, list[dict[str, Any]]]:
    """Return for each published value, by number, our matching rows with the reasons against a comparison."""
    values_by_number = {number: value for number, value in enumerate(published_values) if not value.is_lost}
    if not values_by_number or not ours.num_rows:
        return {}
    parts = ", ".join(f'coalesce(bool_or({has_part(value)}), false) AS "{n}"' for n, value in values_by_number.items())
    [matches] = engine.query_arrow_table(
        ours, f"SELECT {parts} FROM result"
    ).to_pylist()  # one pass: most values have no match
    selects = [
        select_matching_rows(number, value, ours) for number, value in values_by_number.items() if matches[str(number)]
    ]
    rows_of: dict[int, list[dict[str, Any]]] = {}
    if selects:
        for row in engine.query_arrow_table(ours, " UNION ALL ".join(selects) + " ORDER BY number, place").to_pylist():
            rows_of.setdefault(row["number"], []).append(row)
    return rows_of


def has_part(value: PublishedValue) -> str:
    """Return the SQL condition that a row of ours matches a published value."""
    return f'({value.role}) AND "{value.measure}" IS NOT NULL'


def build_reason_sql(condition: RowCondition) -> str:
    """Return the SQL of the reason for a failed condition, also if a value named in the reason is unknown."""
    unknown_text = "'not recorded: a setting that the paper''s number depends on'"
    return (
        f"CASE WHEN NOT coalesce(({condition.holds}), false) THEN coalesce({condition.otherwise}, {unknown_text}) END"
    )


def select_matching_rows(number: int, value: PublishedValue, ours: pa.Table) -> str:
    """Return the SELECT of our rows that match a published value, which has this number."""
    reasons, alternatives = (
        ", ".join(["NULL", *map(build_reason_sql, conditions)]) for conditions in (value.conditions, value.alike)
    )
    ends = [f'"{e}"' if (e := value.measure + end) in ours.column_names else "NULL" for end in ("_low", "_high")]
    return f"""SELECT {number} AS number, place, "{value.measure}"::DOUBLE AS ours, {ends[0]} AS low,
        {ends[1]} AS high, checkpoint AS model,
        concat_ws('; ', {reasons}) AS reasons, concat_ws('; ', {alternatives}) AS differs
        FROM result WHERE {has_part(value)}"""


def build_comparison_lines(value: PublishedValue, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one line for each of our matching rows, or a single line without our number."""
    line: dict[str, Any] = {
        "paper": value.paper,
        "table": value.table,
        "row": value.row,
        "column": value.column,
        "unit": value.unit,
        "published": value.value,
        "setting": value.setting,
        "note": "lost" + (f": {value.note}" if value.note else "") if value.is_lost else value.note or None,
    }
    if value.is_lost:
        return [{**line, "comparison": "not comparable: the paper's number is lost"}]
    lines = []
    for row in rows:
        factor = value.factor
        our_values = {
            f"ours{end}": _multiply(row[field], factor)
            for end, field in (("", "ours"), ("_low", "low"), ("_high", "high"))
        }
        our_values |= {"our_row": row["place"] + 1, "model": row["model"],
                 "not_stated": row.get("not_stated")}  # fmt: skip
        if row["reasons"]:
            lines.append({**line, **our_values, "comparison": f"not comparable: {row['reasons']}"})
        else:
            assert value.value is not None
            ends = {f"difference{e}": _subtract(our_values[f"ours{e}"], value.value) for e in ("", "_low", "_high")}
            lines.append(
                {
                    **line,
                    **our_values,
                    **ends,
                    "comparison": choose_comparison_word(value, our_values["ours"], row["differs"]),
                }
            )
    return lines or [{**line, "comparison": "not comparable: no row of ours matches"}]


def choose_comparison_word(value: PublishedValue, ours: float | None, differs: str) -> str:
    """Return the word for a published value next to our comparable number: `comparable` for a result, and for a setting
    `same` or `differs`. `differs` is the reason for a difference, or empty."""
    assert value.value is not None
    assert ours is not None
    if not value.setting:
        return "comparable"
    if differs:
        return f"differs: {differs}"
    return "same" if isclose(ours, value.value, rel_tol=value.tolerance) else "differs"


def describe_rows(engine: QueryEngine, result: QueryResult) -> pa.Table:
    """Return our rows with additional columns about their model and edit (TYPES).

    Conditions and roles of published values refer to these columns. They are NULL for rows without a model or an edit.
    """
    import pyarrow as pa

    answer = engine.answer(
        {
            "checkpoints": """SELECT checkpoint_id, layers, random_init, tags, parent_id, architecture,
                attention, tokenizer AS encoding FROM checkpoints""",
            # for vectors that are not from a probe: the equivalent scale of a sum over eight positions
            "interventions": f"""SELECT i.intervention_id, i.source,
                layers_text(TRY_CAST(i.layers AS BIGINT[])) AS layers,
                i.scale * CASE WHEN i.source LIKE 'probe:%' THEN 1 ELSE coalesce(v.summed, {AUTHORS_POSITIONS})
                    / {AUTHORS_POSITIONS} END AS scale
                FROM interventions AS i
                LEFT JOIN (SELECT 'run:' || r.spec_hash AS reference,
                                  max(TRY_CAST(json_extract_string(v.detail, '$.positions_summed') AS DOUBLE)) AS summed
                           FROM vector AS v JOIN run AS r ON r.id = v.run_id GROUP BY ALL) AS v
                    ON v.reference = json_extract_string(i.input_references, '$[0]')""",
        }
    )
    keys = {"checkpoints": "checkpoint_id", "interventions": "intervention_id"}
    by_id = {name: {row[key]: row for row in answer[name].to_pylist()} for name, key in keys.items()}
    added_columns: dict[str, list[Any]] = {name: [] for name in TYPES}
    for place, row in enumerate(result.rows):
        model = by_id["checkpoints"].get(row.get("checkpoint_id"), {})
        trained_model = by_id["checkpoints"].get(model.get("parent_id"), {}) if model.get("random_init") else model
        edit = by_id["interventions"].get(row.get("intervention_id"), {})
        for name, column in (
            ("place", place),
            ("model_layers", model.get("layers")),
            ("model_random", model.get("random_init")),
            ("model_tags", trained_model.get("tags")),
            ("model_encoding", model.get("encoding")),
            ("model_architecture", model.get("architecture")),
            ("model_attention", model.get("attention")),
            ("model_tuned", model.get("parent_id") is not None and not model.get("random_init")),
            ("edit_source", edit.get("source")),
            ("edit_scale", edit.get("scale")),
            ("edit_layers", edit.get("layers")),
        ):
            added_columns[name].append(column)
    table = result.table
    for name, kind in TYPES.items():
        table = table.append_column(name, pa.array(added_columns[name], getattr(pa, kind)()))
    return table


TYPES = {
    "place": "int64",
    "model_layers": "int64",
    "model_random": "bool_",
    "model_tags": "string",
    "model_encoding": "string",
    "model_architecture": "string",
    "model_attention": "string",
    "model_tuned": "bool_",
    "edit_source": "string",
    "edit_scale": "float64",
    "edit_layers": "string",
}


def _multiply(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _subtract(value: float | None, published_value: float) -> float | None:
    return None if value is None else round(value - published_value, 6)
