"""The catalogue: every `.sql` file is one table of a paper, described by its header.

Tables of several experiment kinds are in this folder. Tables of one kind are in its package or next to its file: a kind
in `markov.py` has `markov.sql` and `markov_*.sql`. A file has a header and named statements:

    -- title: games by termination
    -- topic: play                     `chessreg query --list` groups by it
    -- question: How do games end?     the question that the table answers
    -- aliases: terminations, how games end
    -- paper: Karvonen 2024, section 2.2
    -- kinds: play, engine-match
    -- needs: r.spec ->> 'opponent' <> 'none'      condition on a run `r` without which it gives no row, in SQL that
                                       SQLite and PostgreSQL read; `--list` marks queries by it. Left out: any run
    -- also with: EXISTS (SELECT 1 FROM checkpoint)     condition under which it gives rows without any run, likewise
    -- made by: chessreg run play
    -- default: checkpoint, termination; share; n      columns of a printed table: keys; answers; counts. At most eight
    -- columns:
    --   checkpoint: the model
    --   n [games]: games with this termination
    -- statistics:
    --   share = percent(ended, games)          of clusters' counts, with its interval
    --   log10_p = paired_log10_p(sum, squares, n)      of clusters' counts, a number without interval
    --   p_holm = holm(p, run)                  of columns of the table: of p, with one family per run
    -- stored: outcomes, different         relations that are computed once for each part (chessreg.queries.parts)
    -- plot: win rate by level
    --   aliases: karvonen figure 2
    --   form: lines             or bars; dots: one row per x; board: x is a square, and each panel of a series a board
    --   x: level
    --   y: score                with its interval, if it has one
    --   beside: null_mean       additional columns, each drawn like y
    --   baseline: majority      a column drawn without intervals, in gray; equal values of several series once
    --   series: checkpoint      columns; one line or color for each combination
    --   spread: run             rows of a series that differ in this are one point, from their lowest to their highest
    --   panels: opening         columns; one panel for each combination
    --   where: level IS NOT NULL
    -- statements of: games.sql to cells       prepends the statements of the sibling file up to that name
    -- statement: cells        relations that the following statements may name; `scoped` is the runs in scope
    -- statement: base         one row per result, with cell, run_id, unit and attempt_id
    -- statement: sources      if a row is computed from more runs than `base` has: cell, run_id
    -- statement: table        one row per cell, ORDER BY cell
    -- statement: clusters     per cell: the distinct counts of a cluster, and the number of clusters with them
    -- statement: rows         the rows behind a cell; `board` is an argument for `chessreg board`
    -- statement: skipped      for an empty table: run, reason, states and hint of runs that skipped every state
    -- statement: none         for an empty table: the reason, as one text

A query with `stored` relations divides its cells into parts, which share no results, and stores the numbers of each
part in a file. It has these relations:

    -- statement: numbered     part, cell, and the number of the cell in its part; without columns of result tables
    -- statement: parts        part (text), run_id, all that stored numbers depend on except for results; likewise
    -- statement: measured     rows of result tables, selected by `parts`, with part and number

Stored relations and `clusters` have `part` and `number` instead of `cell`. They read `base`, whose place `measured`
takes when they are computed, and otherwise only relations that are computed from `parts`.

A column `warning` is also printed as a note below the table, with its row numbers.

The statement `cells`, or else `base`, must have checkpoint_id, because --checkpoint filters it.

`columns` gives the display order. A statistic's column includes its `_low` and `_high`. `[hidden]` columns are in JSON,
CSV and Parquet only. This module imports only the standard library.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chessreg.errors import ChessregError, NotFoundError
from chessreg.folders import expand_path
from chessreg.named import clip_text
from chessreg.queries.catalogue.search import COLUMN_WORD_WEIGHT, rank_descriptions, weigh_words

PARTS = (
    "title|topic|question|aliases|paper|kinds|needs|also with|made by|default|columns|statistics|plot|statements of|"
    "stored|statement"
)
HEADER = re.compile(rf"^-- ({PARTS}):\s*(.*)$")
COLUMN = re.compile(r"^--   (\w+)(?: \[([^\]]*)\])?: (.+)$")
STATISTIC = re.compile(r"^--   (\w+) = (\w+)\(([\w, ]+)\)$")
PLOT_LINE = re.compile(r"^--   (aliases|form|x|y|beside|baseline|series|spread|panels|where): (.+)$")
LIST_KEYS = ("aliases", "beside", "series", "panels")  # keys whose value is a list of words
SHARED_HEADER = re.compile(r"^([\w.-]+\.sql) to (\w+)$")
MORE = re.compile(r"^--       ?(\S.*)$")
SQL = re.compile(r"\s*(select|with|from)\s", re.IGNORECASE)


@dataclass(frozen=True)
class QueryColumn:
    """A column of a query's table. `unit` is `%`, `games` or another unit, or empty."""

    name: str
    unit: str
    text: str
    hidden: bool = False


MOST_DEFAULTS = 9


@dataclass(frozen=True)
class Defaults:
    """Columns that a printed table shows by default: keys that distinguish the rows, answers with the most important
    one first, and the counts behind them."""

    keys: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.keys, *self.answers, *self.counts)


@dataclass(frozen=True)
class DeclaredStatistic:
    """`name = function(arguments)`: computed from a cell's clusters, or from columns (chessreg.queries.summary)."""

    name: str
    function: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Plot:
    """A figure of a table: `y` with its interval over `x`, with one line or color per series and one axes per panel.

    Each column of `beside` is an additional line, and `baseline` one for reference, in gray. In the form `dots`, each x
    is a row and y is horizontal. In the form `board`, `x` is a square and `y` the heat of a board, one board per panel
    and series.

    Rows of a series that have the same x and differ in `spread` become one point: their mean, from the lowest to the
    highest.
    """

    title: str
    x: str
    y: str
    form: str = "lines"
    aliases: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    baseline: str = ""
    series: tuple[str, ...] = ()
    panels: tuple[str, ...] = ()
    spread: str = ""
    where: str = "true"


@dataclass(frozen=True)
class Entry:
    """One catalogue file."""

    title: str
    topic: str
    question: str
    aliases: tuple[str, ...]
    paper: str
    kinds: tuple[str, ...]  # experiment kinds whose runs it shows
    needs: str  # SQL condition on a run `r` of these kinds; empty: any run of them gives rows
    also_with: str  # SQL condition under which there are rows without any run; empty: none
    made_by: str  # the command that produces its rows
    columns: tuple[QueryColumn, ...]
    default: Defaults  # empty if the file declares no defaults: then all columns are printed
    statistics: tuple[DeclaredStatistic, ...]
    statements: dict[str, str]
    path: Path
    text: str
    plots: tuple[Plot, ...] = ()
    shared_names: tuple[str, ...] = ()  # names of the statements from another file
    stored_names: tuple[str, ...] = ()  # names of the relations that are computed once for each part

    @property
    def digest(self) -> str:
        """The query's hash: sha256 of the file, and of the statements that it shares with another file."""
        shared_texts = [f"\n-- statement: {name}\n{self.statements[name]}" for name in self.shared_names]
        return hashlib.sha256("".join([self.text, *shared_texts]).encode()).hexdigest()

    @property
    def relations(self) -> dict[str, str]:
        """The statements that other statements may name (`base` and those before it), in file order."""
        names = ("table", "clusters", "rows", "skipped", "none")
        return {name: sql for name, sql in self.statements.items() if name not in names}

    def is_called(self, name: str) -> bool:
        """Return whether `name` is the title, an alias or the file's name, in any case."""
        return self.is_titled(name) or _name_key(name) in map(_name_key, self.aliases)

    def is_titled(self, name: str) -> bool:
        """Return whether `name` is the title or the file's name, in any case."""
        return name.endswith(".sql") or _name_key(name) in {_name_key(self.title), _name_key(self.path.stem)}

    def column(self, name: str) -> QueryColumn:
        return next((c for c in self.columns if c.name == name), QueryColumn(name, "", ""))


def read_query_file(path: Path) -> str:
    """Return the text of a query's file. Raises ChessregError if it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChessregError(f"{path.name} is not a query: {error}") from None


def parse_entry(text: str, path: Path) -> Entry:
    """Parse one file. Raises ChessregError with the line that cannot be parsed or the missing shared statement."""
    fields: dict[str, str] = {}
    columns: list[QueryColumn] = []
    statistics: list[DeclaredStatistic] = []
    statements: dict[str, list[str]] = {}
    plots: list[dict[str, str]] = []
    part = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = HEADER.match(line)
        if header:
            part = header[1]
            if part == "statement":
                part = header[2].split()[0]
                statements[part] = []
            elif part == "plot":
                plots.append({"title": header[2].strip()})
            elif part in fields:
                raise ChessregError(f"{path.name}, line {number}: a second {part}: {line}")
            else:
                fields[part] = header[2].strip()
        elif part in statements:
            statements[part].append(line)
        elif part == "columns" and (column := COLUMN.match(line)):
            unit = column[2] or ""
            columns.append(QueryColumn(column[1], "" if unit == "hidden" else unit, column[3], unit == "hidden"))
        elif part == "columns" and columns and (more := MORE.match(line)):
            last = columns.pop()
            columns.append(QueryColumn(last.name, last.unit, f"{last.text} {more[1]}", last.hidden))
        elif part == "statistics" and (match := STATISTIC.match(line)):
            statistics.append(DeclaredStatistic(match[1], match[2], tuple(a.strip() for a in match[3].split(","))))
        elif part == "plot" and (match := PLOT_LINE.match(line)):
            plots[-1][match[1]] = match[2].strip()
        elif part in ("paper", "question", "aliases", "kinds", "needs", "made by") and (more := MORE.match(line)):
            fields[part] += " " + more[1]
        elif line.strip():
            raise ChessregError(f"{path.name}, line {number}: not understood: {line}")
    own_statements = {name: "\n".join(lines).strip() for name, lines in statements.items()}
    shared_statements = read_shared_statements(fields["statements of"], path) if "statements of" in fields else {}
    if duplicates := sorted(shared_statements.keys() & own_statements.keys()):
        raise ChessregError(
            f"{path.name} declares statements that it also shares from another file: {', '.join(duplicates)}"
        )
    own_statements = shared_statements | own_statements
    missing_parts = [f for f in ("title", "paper", "kinds", "made by") if f not in fields]
    missing_parts += [s for s in ("base", "table", "rows") if s not in own_statements]
    if missing_parts:
        raise ChessregError(f"{path.name} has no {', '.join(missing_parts)}")
    default = parse_defaults(fields.get("default", ""), columns, path)
    for plot in plots:
        if missing_keys := [key for key in ("x", "y") if key not in plot]:
            raise ChessregError(f"{path.name}: plot {plot['title']} has no {', '.join(missing_keys)}")
    return Entry(
        title=fields["title"],
        topic=fields.get("topic", "others"),
        question=fields.get("question", ""),
        aliases=_split_words(fields.get("aliases", "")),
        paper=fields["paper"],
        kinds=_split_words(fields["kinds"]),
        made_by=fields["made by"],
        needs=fields.get("needs", ""),
        also_with=fields.get("also with", ""),
        columns=tuple(columns),
        default=default,
        statistics=tuple(statistics),
        statements=own_statements,
        path=path,
        text=text,
        plots=tuple(
            Plot(**{key: _split_words(v) if key in LIST_KEYS else v for key, v in plot.items()})  # type: ignore[arg-type]
            for plot in plots
        ),
        shared_names=tuple(shared_statements),
        stored_names=_split_words(fields.get("stored", "")),
    )


def parse_defaults(header: str, columns: Sequence[QueryColumn], path: Path) -> Defaults:
    """Return the columns that a table shows without --wide, from a header `keys; answers; counts`.

    Raises ChessregError for another form, an unknown or hidden column, and more than MOST_DEFAULTS columns.
    """
    if not header:
        return Defaults()
    parts = [_split_words(part) for part in header.split(";")]
    names = [name for part in parts for name in part]
    unknown_names = sorted(set(names) - {column.name for column in columns if not column.hidden})
    if not 2 <= len(parts) <= 3 or unknown_names or len(names) > MOST_DEFAULTS:
        problem = (
            f"no visible column is called {', '.join(unknown_names)}"
            if unknown_names
            else f"at most {MOST_DEFAULTS} columns"
        )
        raise ChessregError(f"{path.name}: default: {header!r} is not `keys; answers; counts` ({problem})")
    return Defaults(*parts)


def read_shared_statements(header: str, path: Path) -> dict[str, str]:
    """Return the shared statements of `-- statements of: FILE.sql to NAME` as name → SQL: the statements of FILE up to
    and including NAME.

    Raises ChessregError for another form, a missing file or statement, and a file that shares statements itself.
    """
    match = SHARED_HEADER.match(header)
    if match is None:
        raise ChessregError(f"{path.name}: statements of: {header!r} is not FILE.sql to NAME")
    shared_file = path.with_name(match[1])
    if not shared_file.is_file():
        raise ChessregError(f"{path.name}: statements of: {match[1]} does not exist in its folder")
    text = read_query_file(shared_file)
    if re.search(r"^-- statements of:", text, re.MULTILINE):
        raise ChessregError(f"{path.name}: statements of: {match[1]} shares them from another file; name that one")
    statements = parse_entry(text, shared_file).statements
    if match[2] not in statements:
        raise ChessregError(f"{path.name}: statements of: {match[1]} has no statement {match[2]}")
    names = [*statements]
    return {name: statements[name] for name in names[: names.index(match[2]) + 1]}


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def list_kind_query_files(file: Path) -> list[Path]:
    """Return the `.sql` files of a kind's file: decoding.sql and decoding_*.sql of `decoding.py`; all in a package."""
    if file.name == "__init__.py":
        return sorted(file.parent.rglob("*.sql"))
    return [
        path for path in (file.with_suffix(".sql"), *sorted(file.parent.glob(f"{file.stem}_*.sql"))) if path.exists()
    ]


def find_kind_file(path: Path) -> Path | None:
    """Return the file of the user's kind that has this `.sql` file, or None for installed queries."""
    kind_files = [] if path in list_query_files() else sorted(path.parent.glob("*.py"))
    return next(
        (file for file in kind_files if file.name != "__init__.py" and path in list_kind_query_files(file)), None
    )


@cache
def list_query_files() -> tuple[Path, ...]:
    """Return the query files of this folder, of chessreg's kinds, and of installed kinds (entry points
    `chessreg.kinds`)."""
    paths = [*Path(__file__).parent.glob("*.sql"), *(Path(__file__).parents[2] / "experiments").rglob("*.sql")]
    for point in entry_points(group="chessreg.kinds"):
        try:
            module = find_spec(point.module)
        except Exception:  # `chessreg run --help` reports broken packages
            continue
        if module is not None and module.origin is not None:
            paths += list_kind_query_files(Path(module.origin))
    return tuple(sorted(set(paths)))


def list_entries(kind_files: tuple[Path, ...] = ()) -> tuple[Entry, ...]:
    """Return all queries by title, including the current ones of these kind files. Raises ChessregError if two share a
    name."""
    return (
        check_unique_names(
            [
                *list_installed_entries(),
                *parse_files(path for file in kind_files for path in list_kind_query_files(file)),
            ]
        )
        if kind_files
        else list_installed_entries()
    )


@cache
def list_installed_entries() -> tuple[Entry, ...]:
    return check_unique_names(parse_files(list_query_files()))


def parse_files(paths: Iterable[Path]) -> list[Entry]:
    return [parse_entry(read_query_file(path), path) for path in paths]


def check_unique_names(candidates: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the distinct queries, sorted by title. Raises ChessregError if two share a name."""
    unique = list({entry.path: entry for entry in candidates}.values())
    files_by_name: dict[str, str] = {}
    for entry in unique:
        for name in {_name_key(n) for n in (entry.title, *entry.aliases, entry.path.stem)}:
            if name in files_by_name:
                raise ChessregError(f"{entry.path.name} and {files_by_name[name]} both have the name {name!r}")
            files_by_name[name] = entry.path.name
    return tuple(sorted(unique, key=lambda e: e.title))


def find_answerable_titles(
    entries: Sequence[Entry], read_rows: Callable[[str], Iterable[Sequence[Any]]], *, conditions: bool = True
) -> frozenset[str]:
    """Return the titles of the queries with a complete run of their kinds that meets their condition `needs`, or whose
    condition `also with` is met.

    `read_rows` returns the rows of one SELECT over the registry's tables. If it fails, because the condition of a
    custom query is invalid or SQLite is older than 3.38, the kinds alone decide. Raises the errors of `read_rows` for
    those.
    """
    parts = []
    for place, entry in enumerate(entries):
        kinds = ", ".join("'" + kind.replace("'", "''") + "'" for kind in entry.kinds)
        needs = f" AND ({entry.needs})" if conditions and entry.needs else ""
        runs = f"SELECT 1 FROM run AS r WHERE r.completed_at IS NOT NULL AND r.kind IN ({kinds}){needs}"
        alternative = f" OR {entry.also_with}" if conditions and entry.also_with else ""
        parts.append(f"SELECT {place} WHERE EXISTS ({runs}){alternative}")
    try:
        return frozenset(entries[place].title for (place,) in read_rows(" UNION ALL ".join(parts)))
    except Exception:
        if not conditions:
            raise
        return find_answerable_titles(entries, read_rows, conditions=False)


def find_entry(name: str, kind_files: tuple[Path, ...] = (), complete_kinds: Collection[str] | None = None) -> Entry:
    """Return the query with this title or alias (in any case) or file name (`./markov.sql`), or the query of the plot
    with this name, or else the best match for the words of `name` (chessreg.queries.catalogue.search).

    `kind_files`: files of kinds whose queries are included. `complete_kinds`: kinds with complete runs in the registry;
    their queries are preferred on a near tie, and only they are suggested. Raises NotFoundError with similar names, or
    with the command that accepts SQL if `name` is SQL.

    >>> find_entry("Elo by Intervention").title
    'elo by intervention'
    >>> find_entry("legal moves along the game").title
    'legal moves by ply'
    """
    if name.endswith(".sql"):
        path = expand_path(name).resolve()
        if not path.is_file():
            raise NotFoundError(f"{name} does not exist", "chessreg query --list")
        return parse_entry(read_query_file(path), path)
    catalogue = list_entries(kind_files)
    entries_by_name = {
        _name_key(n): entry for entry in catalogue for n in (entry.title, *entry.aliases, entry.path.stem)
    }
    entries_by_plot = {_name_key(n): e for e in catalogue for plot in e.plots for n in (plot.title, *plot.aliases)}
    for names in (entries_by_name, entries_by_plot):
        if _name_key(name) in names:
            return names[_name_key(name)]
    if SQL.match(name):
        line = re.sub(r"\s*\n\s*", " ", name.strip())
        raise NotFoundError("an SQL statement requires --sql", f"chessreg query --sql {shlex.quote(line)}")
    titles = {key: entry.title for key, entry in entries_by_name.items()}
    descriptions = [weigh_entry_words(entry) for entry in catalogue]
    entries_with_runs = {
        place for place, entry in enumerate(catalogue) if not set(entry.kinds).isdisjoint(complete_kinds or ())
    }
    if matches := rank_descriptions(name, descriptions, with_runs=entries_with_runs):
        return catalogue[matches[0]]
    suggestions = rank_descriptions(name, descriptions, least_share=0)
    nearest = [catalogue[place].title for place in suggestions if not complete_kinds or place in entries_with_runs]
    raise NotFoundError(
        f"query {clip_text(name)!r} does not exist",
        _ask_about([*_list_similar_titles(name, titles), *nearest]) or "chessreg query --list",
    )


def weigh_entry_words(entry: Entry) -> dict[str, float]:
    """Return the search weight of each word that describes a query."""
    columns = " ".join(column.name.replace("_", " ") for column in entry.columns if not column.hidden)
    return weigh_words([
        (columns, COLUMN_WORD_WEIGHT), (f"{entry.question} {entry.topic}", 2.0), (" ".join(entry.aliases), 2.5),
        (entry.title, 3.0),
    ])  # fmt: skip


def find_plot(name: str, kind_files: tuple[Path, ...] = ()) -> tuple[Entry, Plot]:
    """Return a plot and its query. `name` is the title or an alias of a plot, the name of a query (its first plot), or
    words, for which the best match is returned.

    `kind_files`: files of kinds whose plots are included. Raises NotFoundError with similar names.
    """
    catalogue = list_entries(kind_files)
    plots_by_name = {
        _name_key(n): (entry, plot) for entry in catalogue for plot in entry.plots for n in (plot.title, *plot.aliases)
    }
    if _name_key(name) in plots_by_name:
        return plots_by_name[_name_key(name)]
    for entry in catalogue:
        if entry.plots and _name_key(name) in map(_name_key, (entry.title, *entry.aliases, entry.path.stem)):
            return entry, entry.plots[0]
    plots = [(entry, plot) for entry in catalogue for plot in entry.plots]
    descriptions = [weigh_entry_words(e) | weigh_words([(" ".join(p.aliases), 2.5), (p.title, 3.0)]) for e, p in plots]
    if matches := rank_descriptions(name, descriptions):
        return plots[matches[0]]
    titles = {key: plot.title for key, (_, plot) in plots_by_name.items()}
    raise NotFoundError(
        f"plot {name!r} does not exist", _ask_about(_list_similar_titles(name, titles)) or "chessreg plot --list"
    )


def _list_similar_titles(name: str, titles: dict[str, str]) -> list[str]:
    """Return the similarly spelled titles (by key)."""
    wanted_key = _name_key(name)
    suggestions = difflib.get_close_matches(wanted_key, titles, n=5, cutoff=0.6)
    suggestions += [key for key in titles if wanted_key and (wanted_key in key or key in wanted_key)]
    return [titles[key] for key in suggestions]


def _ask_about(titles: Sequence[str]) -> str:
    """Return `did you mean …?` with the first three distinct titles, or an empty text."""
    first = list(dict.fromkeys(titles))[:3]
    return "did you mean " + " or ".join(f'"{title}"' for title in first) + "?" if first else ""


@lru_cache(maxsize=1000)
def _name_key(name: str) -> str:
    """Return a name in lower case with single spaces, for comparisons of names."""
    return re.sub(r"[\s_-]+", " ", name.strip().lower())
