"""The views that queries may name in addition to the tables, from views.sql and from each kind."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from chessreg.queries.duck import quote_text
from chessreg.queries.macros import MACROS
from chessreg.queries.source import TABLES, build_typed_select, list_table_columns
from chessreg.registry.tables.annotations import ANNOTATION_VIEW_SQL

# Handy views of few rows, computed once per snapshot because a statement uses them up to a dozen times.
COMPUTED_ONCE = frozenset({"annotated", "named", "tagged", "runs", "run_order", "checkpoints", "datasets",
                           "interventions",                  "probe_caches", "run_checkpoint"})  # fmt: skip

# Macros that read a view and are therefore defined after the views. `run_place` orders rows by time, because run ids
# are not in order of time.
MACROS_OF_VIEWS = {"run_place": "(run) AS (SELECT o.place FROM run_order AS o WHERE o.run_id = run)"}

JSON_TYPES = {"integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN", "string": "VARCHAR"}
# The JSON schema's pattern of a text of fixed-width hexadecimal numbers, and the SQL of the list of its numbers.
HEX_PATTERN = re.compile(r"\^\(\[0-9a-f\]\{(\d)\}\)\*\$")
HEX_LIST = """CASE WHEN regexp_full_match({text}, '([0-9a-f]{{{digits}}})*') THEN list_transform(
    range(len({text}) // {digits}), lambda i: ('0x' || substr({text}, {digits} * i + 1, {digits}))::BIGINT) END"""
RUN_COLUMNS = ("run", "kind", "version", "state", "created_at")
# Columns of runs in a view of a kind's runs. The settings of its spec follow.
RUN_VIEW_COLUMNS = ("run_id", "run", "kind", "version", "state", "done", "planned", "tags", "archived", "invalid",
                    "created_at", "completed_at", "spec_hash")  # fmt: skip
DETAIL = "detail"
PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
SPEC_TABLE = "run"  # name of a kind's spec among its result tables
PROBE = "probe"  # its views include users' kinds whose names end in -probe
IMPORTED_PROBE = "imported-probe"
FAMILIES = {"edits": ("edit", "edit-next-token"), "all_saes": ("sae", "imported-sae")}
"""Name of common views → kinds whose rows they have."""
COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
CATALOGUE = re.compile(
    r"(^|\()\s*(show|describe)\b"
    r"|\b(information_schema|(duckdb|pg|pragma|sqlite)_\w+)",
    re.IGNORECASE,
)
COMPUTED_SQL = re.compile(r"\b(query|query_table|json_execute\w*)\s*\(", re.IGNORECASE)
TABLE_NAME = r'"?\w+"?(?:\s+as\s+\w+)?'
TABLE_READ = re.compile(rf"\b(?:from|join|describe|summarize)\s+({TABLE_NAME}(?:\s*,\s*{TABLE_NAME})*)")
IDENTIFIER = re.compile(r"[^A-Za-z0-9_]")


class ExtraType(NamedTuple):
    """The type of an extra column in DuckDB; `hex_digits` of each number of a list that is stored as text."""

    duckdb: str
    hex_digits: int = 0

    def build_value_sql(self, text: str) -> str:
        """Return the SQL expression of a column's value, given the expression of its text. A value of another type is
        NULL."""
        if self.hex_digits:
            return HEX_LIST.format(text=text, digits=self.hex_digits)
        return f"TRY_CAST({text} AS {self.duckdb})"


class KindRow(NamedTuple):
    """A version of a kind: its result tables and the JSON schemas of its extra columns by table; `run` is its spec."""

    name: str
    version: int
    tables: list[str]
    schemas: dict[str, Any]


def parse_kind_record(name: str, version: int, tables: Any, schemas: Any) -> KindRow:
    """Return a registry's record of the kind `name`, from the recorded JSON of its `tables` and its `schemas` by
    setting.

    Parts with an unexpected shape, as in a third-party registry, are left out.
    """
    tables = [table for table in tables if isinstance(table, str)] if isinstance(tables, list) else []
    schemas = {k: v for k, v in schemas.items() if isinstance(v, dict)} if isinstance(schemas, dict) else {}
    return KindRow(name, version, tables, schemas)


def list_installed_kind_rows(files: Iterable[Path] = ()) -> list[KindRow]:
    """Return the kinds of this installation and of these trusted files. Imports all of them."""
    from chessreg.runs.kind import load_kinds, load_trusted_kind

    all_kinds = [*load_kinds().values(), *(load_trusted_kind(str(file)) for file in files)]
    return [KindRow(kind.name, kind.version, list(kind.tables), kind.schemas) for kind in all_kinds]


@cache
def read_handy_views() -> Mapping[str, str]:
    """Return name → SELECT of the views of views.sql, in order of dependency."""
    text = (Path(__file__).parent / "views.sql").read_text(encoding="utf-8")
    annotations = re.sub(
        r"\bat\b", '"at"', ANNOTATION_VIEW_SQL.partition(" AS\n")[2]
    )  # DuckDB parses a bare AT as a keyword
    views = {"annotation_now": annotations}
    for part in text.split("\n-- view: ")[1:]:
        name, _, body = part.partition("\n")
        views[name.strip()] = "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()
    return MappingProxyType({name: views[name] for name in _sort_views(views)})


READER_VIEWS = MappingProxyType({
    "runs": "every run with its state, units done and spec",
    "checkpoints": "every checkpoint with its shape and import checks",
    "datasets": "every dataset and every part of one",
    "games": "every game with its arm and its scores",
    "ply": "every ply of every game: side, move, number of tries",
    "arms": "every arm of a match: players, opening, policy, edit",
    "interventions": "every edit: source, layers, scale",
    "probes": "every probe: run, layer, label, positions",
    "saes": "every sparse autoencoder: run, layer, expansion",
})  # fmt: skip
"""The handy views that users read, with what they have. The others are parts of these or of catalogue queries."""
SHOW_TABLES = re.compile(r"\s*show\s+tables\s*;?\s*", re.IGNORECASE)


def list_described_tables(names: Iterable[str], views: Mapping[str, KindView]) -> list[dict[str, str]]:
    """Return name, use and meaning of tables and views: READER_VIEWS, then views of kinds, then internal ones.

    `views` are the views of kinds. Names that begin with `_` are left out: every such table has a view.
    """
    rows = list[dict[str, str]]()
    for name in names:
        if name in READER_VIEWS:
            rows.append({"name": name, "use": "view", "meaning": READER_VIEWS[name]})
        elif name in views:
            view = views[name]
            table = view.table or name.removeprefix(f"{view.kind}_")
            content = "runs and settings" if name.endswith("_run") else f"rows of table {table}"
            kinds = f"kinds {', '.join(view.members)}" if view.members else f"kind {view.kind}"
            rows.append({"name": name, "use": "kind", "meaning": f"{content}, {kinds}"})
        elif not name.startswith("_"):
            rows.append({"name": name, "use": "internal", "meaning": ""})
    order = {"view": 0, "kind": 1, "internal": 2}
    place = {name: number for number, name in enumerate(READER_VIEWS)}
    return sorted(rows, key=lambda row: (order[row["use"]], place.get(row["name"], 0), row["name"]))


def can_list_tables(sql: str) -> bool:
    """Return whether a SELECT may list tables and views.

    >>> can_list_tables("SHOW TABLES"), can_list_tables("SELECT 'as tables show'")
    (True, False)
    """
    return bool(CATALOGUE.search(COMMENT.sub(" ", sql)))


def is_name_computed(sql: str) -> bool:
    """Return whether a SELECT may read a table or view without writing its name."""
    return bool(COMPUTED_SQL.search(COMMENT.sub(" ", sql)))


def find_named(statements: Iterable[str], texts: Mapping[str, str], *, loosely: bool = False) -> frozenset[str]:
    """Return the tables, views and macros that follow FROM or JOIN, or are called, in the statements or in the texts of
    such tables, views and macros. With `loosely`, return every name that occurs as a word.

    >>> texts = {"games": "SELECT * FROM game", "game": "", "score": ""}
    >>> sorted(find_named(["SELECT score FROM Games"], texts)), sorted(find_named(["score"], texts, loosely=True))
    (['game', 'games'], ['score'])
    """
    names = {name.lower(): name for name in texts}
    found_names: set[str] = set()
    queue = list(statements)
    while queue:
        text = COMMENT.sub(" ", queue.pop().lower())
        matches = [text] if loosely else TABLE_READ.findall(text)
        words = set(re.findall(r"\w+", " ".join(matches))) | {
            name for name in (*MACROS, *MACROS_OF_VIEWS) if name in text
        }
        more = {names[word] for word in words & names.keys()} - found_names
        found_names |= more
        queue += [texts[name] for name in more]
    return frozenset(found_names)


def _sort_views(views: Mapping[str, str]) -> list[str]:
    order: list[str] = []

    def place_view(name: str) -> None:
        for other in views:
            if other not in order and other != name and re.search(rf"\b(FROM|JOIN) {other}\b", views[name]):
                place_view(other)
        if name not in order:
            order.append(name)

    for name in views:
        place_view(name)
    return order


class KindView(NamedTuple):
    """The SELECT of a kind's view. `table`: the result table whose rows it calls `result_rows`. `members`: the kinds of
    a family's view."""

    select: str
    kind: str
    table: str | None = None
    members: tuple[str, ...] = ()


class KindViews(NamedTuple):
    """The views of kinds by name, and the extra columns of their rows by kind and result table."""

    views: Mapping[str, KindView] = MappingProxyType({})
    extras: Mapping[tuple[str, str], Mapping[str, ExtraType]] = MappingProxyType({})


def build_kind_views(
    recorded_rows: Iterable[KindRow], installed_rows: Iterable[KindRow], used_names: Iterable[str]
) -> KindViews:
    """Return the views of kinds: `<kind>_<table>` for each result table, `<kind>` for the first one, `<kind>_run` for
    the runs.

    A family of kinds has common views, with the rows and columns of all members: `edits_trial`, `edits_run`.

    A name of a table or handy view is not replaced (kind `probe`: see `probe_score`). Versions of a kind share one
    view; the newest decides a column's type. The rows' extra columns come from the registry's record, so that every
    process writes the same files. Other extra columns come from `detail`.
    """
    recorded_rows = list(recorded_rows)
    extras = {
        (kind, table): {name: type_ for name, type_ in fields.items() if _is_plain(table, name, type_)}
        for kind, tables in _extra_types(recorded_rows).items()
        for table, fields in tables.items()
        if table in TABLES and DETAIL in list_table_columns(table)
    }
    rows = [*recorded_rows, *installed_rows]
    views: dict[str, KindView] = {}
    taken_names = set(used_names)
    for name, schemas in _extra_types(rows).items():
        versions = sorted((row for row in rows if row.name == name), key=lambda row: -row.version)
        tables = list(dict.fromkeys(t for row in versions for t in row.tables if t in TABLES))
        kinds_by_name = {}
        for table in tables:
            select = _build_result_view(name, table, schemas.get(table, {}), extras.get((name, table), {}))
            kinds_by_name[f"{_make_identifier(name)}_{table}"] = KindView(select, name, table)
        if tables:
            kinds_by_name[_make_identifier(name)] = kinds_by_name[f"{_make_identifier(name)}_{tables[0]}"]
        if SPEC_TABLE in schemas:
            kinds_by_name[f"{_make_identifier(name)}_run"] = KindView(_build_run_view(name, schemas[SPEC_TABLE]), name)
        for view, each in kinds_by_name.items():
            if view not in taken_names:
                taken_names.add(view)
                views[view] = each
    probes = tuple(sorted({row.name for row in rows if row.name.endswith(f"-{PROBE}") and row.name != IMPORTED_PROBE}))
    for table in (*TABLES, SPEC_TABLE):
        if probes and f"{PROBE}_{table}" in views:
            views[f"linear_{PROBE}_{table}"] = views[f"{PROBE}_{table}"]
    for family, members in (*FAMILIES.items(), *([(PROBE, (f"linear-{PROBE}", *probes))] if probes else [])):
        for table in (*TABLES, SPEC_TABLE):
            parts = {member: f"{_make_identifier(member)}_{table}" for member in members}
            parts = {member: part for member, part in parts.items() if part in views}
            if parts:
                select = " UNION ALL BY NAME ".join(f'SELECT * FROM "{part}"' for part in parts.values())
                views[f"{family}_{table}"] = KindView(select, family, members=tuple(parts))
    return KindViews(views, extras)


def _extra_types(kinds: Iterable[KindRow]) -> dict[str, dict[str, dict[str, ExtraType]]]:
    """Return name → type of the extra columns, by kind and table. The table `run` has the settings."""
    types: dict[str, dict[str, dict[str, ExtraType]]] = {}
    for row in sorted(kinds, key=lambda row: row[:2]):
        schemas = types.setdefault(row.name, {})
        for table, schema in row.schemas.items():
            try:
                schemas[table] = schemas.get(table, {}) | list_extra_columns(schema)
            except (AttributeError, TypeError, RecursionError):  # not the JSON schema of a row model
                continue
    return types


def _is_plain(table: str, name: str, type_: ExtraType) -> bool:
    """Return whether an extra column becomes a column of the rows: not an object or list, and with an unused name."""
    return bool(PLAIN.fullmatch(name)) and type_.duckdb != "JSON" and name not in list_table_columns(table)


def build_typed_rows_sql(table: str, dialect: str, extras: Mapping[str, ExtraType]) -> str:
    """Return the SELECT of the rows of the Arrow table `_<table>` with their declared types and these extra columns.

    DuckDB parses the JSON of a row once for all columns.
    """
    select = build_typed_select(table, dialect)
    if not extras:
        return f"SELECT * FROM ({select})"
    paths = ", ".join(f"""'$."{name}"'""" for name in extras)
    values = [
        f"""{type_.build_value_sql(f'"all extra"[{place}]')} AS "{name}\""""
        for place, (name, type_) in enumerate(extras.items(), 1)
    ]
    select_all = f'SELECT *, json_extract_string({DETAIL}, [{paths}]) AS "all extra" FROM ({select})'
    return f'SELECT * EXCLUDE ("all extra"), {", ".join(values)} FROM ({select_all})'


def list_extra_columns(schema: Mapping[str, Any]) -> dict[str, ExtraType]:
    """Return name → type of the columns in a JSON schema of a row model. Objects and lists stay JSON.

    >>> list_extra_columns({"properties": {"cp": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}})
    {'cp': ExtraType(duckdb='BIGINT', hex_digits=0)}
    >>> list_extra_columns({"properties": {"right_at": {"type": "string", "pattern": "^([0-9a-f]{2})*$"}}})
    {'right_at': ExtraType(duckdb='BIGINT[]', hex_digits=2)}
    """
    definitions = schema.get("$defs", {})

    def find_type(schema: Mapping[str, Any]) -> ExtraType:
        if "$ref" in schema:
            return find_type(definitions.get(str(schema["$ref"]).rpartition("/")[2], {}))
        options = [o for o in schema.get("anyOf", schema.get("oneOf", [])) if o.get("type") != "null"]
        if options:
            types = {find_type(o) for o in options}
            if len(types) == 1:
                return types.pop()
            return ExtraType("DOUBLE" if {type_.duckdb for type_ in types} == {"BIGINT", "DOUBLE"} else "JSON")
        if "const" in schema or "enum" in schema:
            values = schema.get("enum", [schema.get("const")])
            if all(isinstance(v, str) for v in values):
                return ExtraType("VARCHAR")
        if numbers := HEX_PATTERN.fullmatch(str(schema.get("pattern"))):
            return ExtraType("BIGINT[]", int(numbers[1]))
        return ExtraType(JSON_TYPES.get(str(schema.get("type")), "JSON"))

    return {name: find_type(column) for name, column in schema.get("properties", {}).items()}


def _build_result_view(kind: str, table: str, fields: Mapping[str, ExtraType], extras: Mapping[str, ExtraType]) -> str:
    """Return the SELECT of the view of a kind's rows in one table: columns, run columns, then `fields` with their
    types.
    """
    columns = [name for name in list_table_columns(table) if name != DETAIL]
    parts = [f'f."{name}"' for name in columns]
    parts += [f'r."{name}" AS "{name}"' for name in RUN_COLUMNS if name not in columns]
    parts += _list_typed_fields(f"f.{DETAIL}", fields, {*columns, *RUN_COLUMNS}, DETAIL, extras)
    joined_tables = "result_rows AS f JOIN runs AS r ON r.run_id = f.run_id"
    return f"SELECT {', '.join(parts)} FROM {joined_tables} WHERE r.kind = {quote_text(kind)}"


def _build_run_view(kind: str, settings: Mapping[str, ExtraType]) -> str:
    parts = [f'r."{name}"' for name in RUN_VIEW_COLUMNS] + _list_typed_fields(
        "r.spec", settings, set(RUN_VIEW_COLUMNS), "spec"
    )
    return f"SELECT {', '.join(parts)} FROM runs AS r WHERE r.kind = {quote_text(kind)}"


def _list_typed_fields(
    source: str,
    fields: Mapping[str, ExtraType],
    used_names: Collection[str],
    prefix: str,
    extras: Mapping[str, ExtraType] = MappingProxyType({}),
) -> list[str]:
    """Return the fields of a JSON column as typed columns. A name already in use gets the prefix. Fields in `extras`
    are columns of `f`."""
    parts = []
    for name, type_ in fields.items():
        path = '$."' + name.replace('"', '\\"') + '"'
        column = f"{prefix}_{name}" if name in used_names else name
        function = "json_extract" if type_.duckdb == "JSON" else "json_extract_string"
        quoted_column = column.replace('"', '""')
        is_column = extras.get(name) == type_
        value = f'f."{name}"' if is_column else type_.build_value_sql(f"{function}({source}, {quote_text(path)})")
        parts.append(f'{value} AS "{quoted_column}"')
    return parts


def _make_identifier(name: str) -> str:
    return IDENTIFIER.sub("_", name)
