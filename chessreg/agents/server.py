"""A registry for AI agents: tools of the Model Context Protocol that list, query, compare and draw.

The command opens registry and store for reading only, so every attempt to write raises. Answers have at
most MAX_ANSWER_CHARS characters, so that a large table does not fill an agent's context: rows are left out from the
end, and the answer has their number and the offset of the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from chessreg.errors import BadInputError, ChessregError
from chessreg.queries.result import QueryResult
from chessreg.rows import to_plain
from store.errors import StoreError

if TYPE_CHECKING:
    from chessreg.api import Registry

MAX_ANSWER_CHARS = 20_000
MAX_ROWS = 500
MAX_TEXT_CHARS = 2_000
JOB_FIELDS = ("run_id", "kind", "name", "cause", "message", "done", "units", "machine", "ended_at")
MAX_ITEMS = 200  # of a list or mapping inside a row

INSTRUCTIONS = """
This registry records experiments on chess-playing language models: which checkpoint, vector, scale, seed and machine
produced each number.

Start with `list_queries` (a phrase such as "probe accuracy" ranks them), then `query`. Every row of a table can be
traced: `rows_behind` lists its games, trials or scores with their run, `lineage` the inputs and outputs of a run,
dataset or checkpoint, `show` the settings and attempts of a run. `compare_runs` lists the differences between runs.
`published` lists the papers' numbers next to this registry's, with the settings that differ: do not compare rows that
it marks as not comparable. `sql` answers everything else; `SHOW TABLES` and `DESCRIBE runs` list tables, views and
columns.

Columns that end in _low and _high are the ends of 95 % intervals. A difference whose interval contains 0 is not an
effect.
Notes under a table are part of the answer. Runs that are incomplete, archived or invalid are left out of queries.
""".strip()

P = ParamSpec("P")
Limit = Annotated[int, Field(ge=1, le=MAX_ROWS, description="Most rows to return.")]
Offset = Annotated[int, Field(ge=0, description="Rows to skip.")]
Noun = Annotated[
    str, Field(description="run, checkpoint, dataset, cache, probe, vector, sae, or a noun of an installed package.")
]
Reference = Annotated[str, Field(description="A name, or an id or its beginning.")]
BoardReference = Annotated[str, Field(description="RUN:UNIT, or DATASET:ROW.")]
QueryName = Annotated[str, Field(description="A title, an alias, or words that describe the question.")]


def make_server(reg: Registry) -> MCPServer:
    """Return a server with the tools of this registry. It can annotate entities unless the registry is opened for
    reading only.
    """
    server = MCPServer("chessreg", version=version("chessreg"), instructions=INSTRUCTIONS)
    lock = Lock()  # the SDK calls tools in threads

    def add_tool(function: Callable[P, Mapping[str, Any]], *, writes: bool = False) -> None:
        @wraps(function)
        def answer(*arguments: P.args, **settings: P.kwargs) -> str:
            try:
                with lock:
                    return bound_answer(function(*arguments, **settings))
            except (ChessregError, StoreError) as error:
                raise ToolError(f"{error.message}. Hint: {error.hint}" if error.hint else error.message) from error

        annotations = ToolAnnotations(read_only_hint=not writes, destructive_hint=False, open_world_hint=False)
        server.add_tool(answer, annotations=annotations, structured_output=False)

    def list_queries(phrase: str = "") -> dict[str, Any]:
        """List the catalogue's queries with their questions; `has_runs` is false if the registry lacks runs for one.

        With a phrase, return the query that answers it best.
        """
        from chessreg.queries.ask import list_answerable_titles, list_trusted_kind_files
        from chessreg.queries.catalogue import list_entries

        entries = list_entries(list_trusted_kind_files(reg.database))
        if phrase:
            entries = (find_query(reg, phrase),)
        answerable_titles = list_answerable_titles(reg.database, entries)
        rows = [
            {"title": e.title, "question": e.question, "made_by": e.made_by,
             "has_runs": e.title in answerable_titles}
            for e in entries
        ]  # fmt: skip
        return {"rows": rows}

    def query(
        name: QueryName, where: str = "", checkpoint: str = "", run: str = "", limit: Limit = 50, offset: Offset = 0
    ) -> dict[str, Any]:
        """Return the table of a catalogue query, with units, notes and 95 % intervals.

        `where` is a SQL condition on its columns; `checkpoint` and `run` keep only the rows of one of them. Rows are
        numbered from 1 for `rows_behind`, which needs the same conditions.
        """
        rows = reg.query(find_query(reg, name).title, **make_query_arguments(where, checkpoint, run))
        return describe_table(rows, limit, offset, number="row")

    def rows_behind(
        name: QueryName,
        row: Annotated[int, Field(ge=1)],
        where: str = "",
        checkpoint: str = "",
        run: str = "",
        limit: Limit = 50,
        offset: Offset = 0,
    ) -> dict[str, Any]:
        """Return the games, trials or scores behind row `row` (counted from 1) of the query `name`. The tool `board`
        accepts the column `board` of these rows."""
        row_table = reg.rows(find_query(reg, name).title, row, **make_query_arguments(where, checkpoint, run))
        return describe_table(row_table, limit, offset)

    def published(name: QueryName, limit: Limit = 50, offset: Offset = 0) -> dict[str, Any]:
        """Return the papers' numbers for a query, this registry's next to them, and every setting that differs."""
        return describe_table(reg.published(find_query(reg, name).title), limit, offset)

    def sql(select: str, limit: Limit = 50, offset: Offset = 0) -> dict[str, Any]:
        """Return the answer to one SELECT (DuckDB's dialect) over the registry's tables and views.

        `SHOW TABLES` and `DESCRIBE view` list them.
        """
        return describe_table(reg.sql(select), limit, offset)

    def list_things(noun: Noun, words: str = "", limit: Limit = 50, offset: Offset = 0) -> dict[str, Any]:
        """List runs, checkpoints, datasets, caches, probes, vectors or autoencoders, oldest first.

        For runs, `words` filters: names, and conditions such as `kind:probe`, `state:failed`, `since:7d`, `!stale`.
        """
        if words and noun != "run":
            raise BadInputError("`words` filters runs only", "leave them out, or use sql")
        rows = reg.runs(words) if noun == "run" else reg.things(noun)
        names = dict.fromkeys(("id", *rows.headings, "tags", "notes", "invalid"))
        filled_names = [name for name in names if any(row.get(name) not in (None, "", []) for row in rows)]
        return page_rows([{name: row.get(name) for name in filled_names} for row in rows], limit, offset)

    def show(noun: Noun, reference: Reference) -> dict[str, Any]:
        """Return all details of one entity: of a run its settings, state, attempts, machine, commit and results."""
        from chessreg.entities import load_entity

        details = load_entity(noun).show(reg, reference)
        parts = {part.name: [dict(row) for row in part.rows] for part in details.parts}
        data = details.data if isinstance(details.data, Mapping) else {"rows": details.data}
        return {
            **data,
            **parts,
            **({"text": list(details.lines)} if details.lines else {}),
            "notes": list(details.remarks),
        }

    def lineage(reference: Reference) -> dict[str, Any]:
        """Return the inputs (`up`) and outputs (`down`) of a run, dataset or checkpoint as trees."""
        return {way: repr(tree).splitlines() for way, tree in reg.lineage(reference).items()}

    def compare_runs(runs: Annotated[list[str], Field(min_length=1, max_length=20)]) -> dict[str, Any]:
        """Return the settings that differ between runs, and each metric with its difference from the first run.

        A single run is compared by its attempts.
        """
        return reg.compare(*runs).as_dict()

    def board(
        reference: Annotated[str, Field(description="RUN:UNIT or DATASET:ROW.")],
        ply: int = -1,
        item: Annotated[int | None, Field(description="A probe's game: its row in the dataset.")] = None,
        condition: Annotated[str, Field(description="Condition of an edit, such as random-0.")] = "",
    ) -> dict[str, Any]:
        """Return a board as text and FEN: of a game after `ply` half-moves (0 is the start, -1 the end), of an edit, or
        of a probe's reading. A probe's unit is a layer; without `item` its first game."""
        from chessreg.entities.boards import read_board_views
        from chessreg.games.boards.boardframe import find_ply
        from chessreg.games.boards.picture import render_text

        frames = read_board_views(reg.inputs, reference, item, condition or None)
        frame = find_ply(frames, ply, reference)[-1]
        return {
            "boards": len(frames),
            "title": frame.title,
            "fen": frame.whole_fen if frame.position else frame.fen,
            "caption": list(frame.caption),
            "text": render_text(frame).splitlines(),
        }

    def status() -> dict[str, Any]:
        """Return the registry's location, the number of runs, datasets, checkpoints, … in it, and its queued, running
        and recent jobs.
        """
        from chessreg.entities import list_nouns

        jobs = reg.status()
        return {
            "registry": reg.database.place.masked_location,
            "counts": {noun: len(reg.things(noun)) for noun in list_nouns()},
            "queued_or_running": list(jobs["going"]),
            "ended_in_the_last_day": [{name: job.get(name) for name in JOB_FIELDS} for job in jobs["ended"]],
        }

    def annotate(
        noun: Noun,
        reference: Reference,
        key: Annotated[str, Field(pattern="^(name|tag|note)$", description="name, tag or note.")],
        text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)],
    ) -> dict[str, Any]:
        """Set the `key` (name, tag or note) of the `noun` that `reference` identifies to `text`. Notes and tags can be
        withdrawn on the command line.
        """
        {"name": reg.name, "tag": reg.tag, "note": reg.note}[key](reference, text, noun=noun)
        return {key: text}

    for tool in (
        status,
        list_queries,
        query,
        rows_behind,
        published,
        sql,
        list_things,
        show,
        lineage,
        compare_runs,
        board,
    ):
        add_tool(tool)
    if not reg.database.read_only:
        add_tool(annotate, writes=True)
    return server


def find_query(reg: Registry, name: str) -> Any:
    """Return the catalogue query with this title or alias, or the best match. On a near tie, a query with runs in the
    registry comes first. Raises BadInputError for a path, which could name any file of the server's user."""
    from chessreg.queries.ask import find_recorded_entry

    if "/" in name or name.lower().endswith((".sql", ".py")):
        raise BadInputError(f"{name[:80]!r} is a file, not the title of a query", "list_queries")
    return find_recorded_entry(reg.database, name)


def make_query_arguments(where: str, checkpoint: str, run: str) -> dict[str, Any]:
    """Return the conditions that are not empty, as arguments of `Registry.query`."""
    options = {"where": where, "checkpoint": (checkpoint,) if checkpoint else (), "run": (run,) if run else ()}
    return {name: value for name, value in options.items() if value}


def describe_table(result: QueryResult, limit: int, offset: int, number: str = "") -> dict[str, Any]:
    """Return a page of a result's rows, the meaning of its columns, and its notes.

    Columns without a value on any row are left out, and named under `empty_columns`. `number` is the name of a first
    column that numbers the rows from 1.
    """
    filled_names = [name for name in result.columns if result.table[name].null_count < len(result)]
    rows = [
        ({number: n} if number else {}) | {name: row[name] for name in filled_names}
        for n, row in enumerate(result.rows, 1)
    ]
    columns = (result.column(name) for name in filled_names)
    return {
        **page_rows(rows, limit, offset),
        "columns": {c.name: f"{c.text} [{c.unit}]" if c.unit else c.text for c in columns if c.text},
        "empty_columns": [name for name in result.columns if name not in filled_names],
        "notes": list(result.notes),
    }


def page_rows(rows: Sequence[Any], limit: int, offset: int) -> dict[str, Any]:
    """Return at most `limit` rows from `offset` as a document: `total_rows`, `offset` and `rows`."""
    return {"total_rows": len(rows), "offset": offset, "rows": rows[offset : offset + limit]}


def bound_answer(document: Mapping[str, Any]) -> str:
    """Return a document as JSON of at most MAX_ANSWER_CHARS characters.

    Long texts and lists are shortened with a mark. If that does not suffice, `rows` are left out from the end, and
    `next_offset` is the offset of the first missing row. Raises BadInputError if even that does not suffice.
    """
    answer = shorten(to_plain(document))
    rows, offset = answer.get("rows"), answer.get("offset", 0)
    total = answer.get("total_rows", 0)
    while True:
        if isinstance(rows, list) and offset + len(rows) < total:
            answer["next_offset"] = offset + len(rows)
        text = json.dumps(answer, ensure_ascii=False, allow_nan=False)
        if len(text) <= MAX_ANSWER_CHARS:
            return text
        if not rows or len(rows) == 1:
            raise BadInputError(
                f"the answer has {len(text):,} characters, more than {MAX_ANSWER_CHARS:,}",
                "ask for less, for example named columns with sql",
            )
        row_count = len(rows) * MAX_ANSWER_CHARS // len(text)
        del rows[max(1, min(row_count, len(rows) - 1)) :]


def shorten(value: Any) -> Any:
    """Return a JSON value whose texts have at most MAX_TEXT_CHARS characters, and whose lists and mappings inside rows
    have at most MAX_ITEMS entries."""
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT_CHARS else f"{value[:MAX_TEXT_CHARS]}… ({len(value):,} characters)"
    if isinstance(value, list):
        items = [shorten(item) for item in value[:MAX_ROWS]]
        return items if len(value) <= MAX_ROWS else [*items, f"… ({len(value):,} items)"]
    if isinstance(value, dict):
        return {name: shorten(item) for name, item in list(value.items())[:MAX_ITEMS]}
    return value
