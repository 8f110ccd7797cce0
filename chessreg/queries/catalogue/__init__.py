"""The catalogue: every `.sql` file is one table of a paper, with a header that says what it holds.

Tables of several kinds of experiment are in this folder, those of one kind in its package or beside its file: of a
kind in `markov.py` they are `markov.sql` and `markov_*.sql`. A file has a header and named statements:

    -- title: games by termination
    -- topic: play                     `chessreg query --list` groups by it
    -- question: How do games end?     what the table answers
    -- aliases: terminations, how games end
    -- paper: Karvonen 2024, section 2.2
    -- kinds: play, engine-match
    -- made by: chessreg run play
    -- default: checkpoint, termination; share; n      columns of a printed table: keys; answers; counts. At most eight
    -- columns:
    --   checkpoint: the model
    --   n [games]: games that ended so
    -- statistics:
    --   share = percent(ended, games)          of clusters' counts, with its interval
    --   log10_p = paired_log10_p(sum, squares, n)      of clusters' counts, a number alone
    --   p_holm = holm(p, run)                  of columns of the table: of p, a family for each run
    -- plot: win rate by level
    --   aliases: karvonen figure 2
    --   form: lines             or bars, or board: x is a square, and each panel of a series a board
    --   x: level
    --   y: score                with its interval, where it has one
    --   beside: null_mean       further columns, each drawn as y is
    --   series: checkpoint      columns; one line or color for each combination
    --   spread: run             rows of a series that differ in this are one point, from their lowest to their highest
    --   panels: opening         columns; one panel for each combination
    --   where: level IS NOT NULL
    -- statements of: games.sql to cells       those of the file beside this one, up to that name, before its own
    -- statement: cells        relations that the following statements may name; `scoped` is the runs in scope
    -- statement: base         one row per result, with cell, run_id, unit and attempt_id
    -- statement: sources      where a row is computed from more runs than those of `base`: cell, run_id
    -- statement: table        one row per cell, ORDER BY cell
    -- statement: clusters     per cell: distinct (counts of a cluster), and how many clusters have them
    -- statement: rows         what lies behind a cell; `board` is what `chessreg board` takes
    -- statement: skipped      where there is no row: run, reason, states and hint of runs that skipped every state
    -- statement: none         where there is no row: why, one text

A column `warning` is also printed as a note beside the table, with its rows.

The first of `cells` and `base` that is there must have checkpoint_id: --checkpoint narrows it.

`columns` is the shown order; a column that a statistic adds brings its `_low` and `_high`. `[hidden]` columns are in
JSON, CSV and Parquet only. Nothing here imports more than the standard library.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from chessreg.errors import ChessregError, NotFoundError
from chessreg.folders import expanded
from chessreg.named import clipped
from chessreg.queries.catalogue.search import OF_COLUMNS, ranked_by, weighted

PARTS = "title|topic|question|aliases|paper|kinds|made by|default|columns|statistics|plot|statements of|statement"
HEADER = re.compile(rf"^-- ({PARTS}):\s*(.*)$")
COLUMN = re.compile(r"^--   (\w+)(?: \[([^\]]*)\])?: (.+)$")
STATISTIC = re.compile(r"^--   (\w+) = (\w+)\(([\w, ]+)\)$")
PLOTTED = re.compile(r"^--   (aliases|form|x|y|beside|series|spread|panels|where): (.+)$")
LISTED = ("aliases", "beside", "series", "panels")  # of these, the words of several
SHARED = re.compile(r"^([\w.-]+\.sql) to (\w+)$")
MORE = re.compile(r"^--       ?(\S.*)$")
SQL = re.compile(r"\s*(select|with|from)\s", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """A column of a table. `unit` is `%`, `games`, …, or empty."""

    name: str
    unit: str
    text: str
    hidden: bool = False


MOST_DEFAULTS = 8


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
class Statistic:
    """`name = function(arguments)`: computed from a cell's clusters, or from columns (chessreg.queries.summary)."""

    name: str
    function: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Plot:
    """A figure of a table: `y` with its interval over `x`, one line or color a series, one axes a panel. Columns
    `beside` y are lines of their own. Of the form `board` `x` is a square, and y the heat of a board for each panel of
    each series.

    Rows of a series at one x that differ in `spread` become one point: their mean, from the lowest to the highest.
    """

    title: str
    x: str
    y: str
    form: str = "lines"
    aliases: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
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
    kinds: tuple[str, ...]  # of experiment, whose runs it shows
    made_by: str  # the command that makes what it shows
    columns: tuple[Column, ...]
    default: Defaults  # without names where the file declares none: then all columns are printed
    statistics: tuple[Statistic, ...]
    statements: dict[str, str]
    path: Path
    text: str
    plots: tuple[Plot, ...] = ()
    shared: tuple[str, ...] = ()  # names of the statements that are another file's

    @property
    def digest(self) -> str:
        """The query's hash: sha256 of the file, and of the statements that it takes from another."""
        shared = [f"\n-- statement: {name}\n{self.statements[name]}" for name in self.shared]
        return hashlib.sha256("".join([self.text, *shared]).encode()).hexdigest()

    @property
    def relations(self) -> dict[str, str]:
        """The statements that others may name (`base` and those before it), in file order."""
        asked = ("table", "clusters", "rows", "skipped", "none")
        return {name: sql for name, sql in self.statements.items() if name not in asked}

    def is_called(self, name: str) -> bool:
        """Whether `name` is the title, an alias or the file's name, in any case."""
        return name.endswith(".sql") or _key(name) in {_key(n) for n in (self.title, *self.aliases, self.path.stem)}

    def column(self, name: str) -> Column:
        return next((c for c in self.columns if c.name == name), Column(name, "", ""))


def read(path: Path) -> str:
    """The text of a query's file. Raises ChessregError for bytes that are none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChessregError(f"{path.name} is no query: {error}") from None


def parse(text: str, path: Path) -> Entry:
    """Read one file. Raises ChessregError naming the line that is not understood, or what it takes from another file
    and is not there."""
    fields: dict[str, str] = {}
    columns: list[Column] = []
    statistics: list[Statistic] = []
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
            columns.append(Column(column[1], "" if unit == "hidden" else unit, column[3], unit == "hidden"))
        elif part == "columns" and columns and (more := MORE.match(line)):
            last = columns.pop()
            columns.append(Column(last.name, last.unit, f"{last.text} {more[1]}", last.hidden))
        elif part == "statistics" and (made := STATISTIC.match(line)):
            statistics.append(Statistic(made[1], made[2], tuple(a.strip() for a in made[3].split(","))))
        elif part == "plot" and (plotted := PLOTTED.match(line)):
            plots[-1][plotted[1]] = plotted[2].strip()
        elif part in ("paper", "question", "aliases", "kinds", "made by") and (more := MORE.match(line)):
            fields[part] += " " + more[1]
        elif line.strip():
            raise ChessregError(f"{path.name}, line {number}: not understood: {line}")
    own = {name: "\n".join(lines).strip() for name, lines in statements.items()}
    shared = shared_statements(fields["statements of"], path) if "statements of" in fields else {}
    if twice := sorted(shared.keys() & own.keys()):
        raise ChessregError(
            f"{path.name} has statements of its own that it takes from another file: {', '.join(twice)}"
        )
    own = shared | own
    missing = [f for f in ("title", "paper", "kinds", "made by") if f not in fields]
    missing += [s for s in ("base", "table", "rows") if s not in own]
    if missing:
        raise ChessregError(f"{path.name} has no {', '.join(missing)}")
    default = defaults_of(fields.get("default", ""), columns, path)
    for plot in plots:
        if lacks := [key for key in ("x", "y") if key not in plot]:
            raise ChessregError(f"{path.name}: plot {plot['title']} has no {', '.join(lacks)}")
    return Entry(
        title=fields["title"],
        topic=fields.get("topic", "others"),
        question=fields.get("question", ""),
        aliases=_words(fields.get("aliases", "")),
        paper=fields["paper"],
        kinds=_words(fields["kinds"]),
        made_by=fields["made by"],
        columns=tuple(columns),
        default=default,
        statistics=tuple(statistics),
        statements=own,
        path=path,
        text=text,
        plots=tuple(
            Plot(**{key: _words(v) if key in LISTED else v for key, v in plot.items()})  # type: ignore[arg-type]
            for plot in plots
        ),
        shared=tuple(shared),
    )


def defaults_of(header: str, columns: Sequence[Column], path: Path) -> Defaults:
    """Parse `keys; answers; counts`. Raises ChessregError for another form, an unknown or hidden column, and for more
    than MOST_DEFAULTS columns."""
    if not header:
        return Defaults()
    parts = [_words(part) for part in header.split(";")]
    names = [name for part in parts for name in part]
    unknown = sorted(set(names) - {column.name for column in columns if not column.hidden})
    if not 2 <= len(parts) <= 3 or unknown or len(names) > MOST_DEFAULTS:
        wrong = f"no visible column is called {', '.join(unknown)}" if unknown else f"at most {MOST_DEFAULTS} columns"
        raise ChessregError(f"{path.name}: default: {header!r} is not `keys; answers; counts` ({wrong})")
    return Defaults(*parts)


def shared_statements(header: str, path: Path) -> dict[str, str]:
    """name → SQL of what `-- statements of: FILE.sql to NAME` in the file at `path` takes: the statements of the file
    beside it, from the first to NAME.

    Raises ChessregError for another form, a file that is not there or takes statements itself, a name that it lacks.
    """
    named = SHARED.match(header)
    if named is None:
        raise ChessregError(f"{path.name}: statements of: {header!r} is not FILE.sql to NAME")
    beside = path.with_name(named[1])
    if not beside.is_file():
        raise ChessregError(f"{path.name}: statements of: there is no {named[1]} beside it")
    text = read(beside)
    if re.search(r"^-- statements of:", text, re.MULTILINE):
        raise ChessregError(f"{path.name}: statements of: {named[1]} takes its own from another file; name that one")
    statements = parse(text, beside).statements
    if named[2] not in statements:
        raise ChessregError(f"{path.name}: statements of: {named[1]} has no statement {named[2]}")
    names = [*statements]
    return {name: statements[name] for name in names[: names.index(named[2]) + 1]}


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def of_kind(file: Path) -> list[Path]:
    """The `.sql` files of a kind's file: decoding.sql and decoding_*.sql of `decoding.py`; all in a package."""
    if file.name == "__init__.py":
        return sorted(file.parent.rglob("*.sql"))
    return [
        path for path in (file.with_suffix(".sql"), *sorted(file.parent.glob(f"{file.stem}_*.sql"))) if path.exists()
    ]


def kind_file(path: Path) -> Path | None:
    """The file of a user's own kind that a `.sql` file stands beside; None for our queries and those installed."""
    beside = [] if path in files() else sorted(path.parent.glob("*.py"))
    return next((file for file in beside if file.name != "__init__.py" and path in of_kind(file)), None)


@cache
def files() -> tuple[Path, ...]:
    """Those of this folder, of our own kinds, and of kinds that are installed (entry points `chessreg.kinds`)."""
    paths = [*Path(__file__).parent.glob("*.sql"), *(Path(__file__).parents[2] / "experiments").rglob("*.sql")]
    for point in entry_points(group="chessreg.kinds"):
        try:
            module = find_spec(point.module)
        except Exception:  # `chessreg run --help` names a package that is broken
            continue
        if module is not None and module.origin is not None:
            paths += of_kind(Path(module.origin))
    return tuple(sorted(set(paths)))


def entries(beside: tuple[Path, ...] = ()) -> tuple[Entry, ...]:
    """Every query, by title; with those of these files of kinds, as they are now. Raises ChessregError when two answer
    to one name."""
    return checked([*packaged(), *parsed(path for file in beside for path in of_kind(file))]) if beside else packaged()


@cache
def packaged() -> tuple[Entry, ...]:
    return checked(parsed(files()))


def parsed(paths: Iterable[Path]) -> list[Entry]:
    return [parse(read(path), path) for path in paths]


def checked(candidates: Sequence[Entry]) -> tuple[Entry, ...]:
    """These queries by title, each once. Raises ChessregError when two answer to one name."""
    unique = list({entry.path: entry for entry in candidates}.values())
    taken: dict[str, str] = {}
    for entry in unique:
        for name in {_key(n) for n in (entry.title, *entry.aliases, entry.path.stem)}:
            if name in taken:
                raise ChessregError(f"{entry.path.name} and {taken[name]} both answer to {name!r}")
            taken[name] = entry.path.name
    return tuple(sorted(unique, key=lambda e: e.title))


def find(name: str, beside: tuple[Path, ...] = ()) -> Entry:
    """Return the query with this title or alias, in any case, that of a file `./markov.sql`, or else the one that
    matches the words of `name` best (chessreg.queries.catalogue.search).

    `beside`: files of kinds whose queries are looked at too. Raises NotFoundError with the near misses, or for SQL with
    the command that takes it.

    >>> find("Elo by Intervention").title
    'elo by intervention'
    >>> find("legal moves along the game").title
    'legal moves by ply'
    """
    if name.endswith(".sql"):
        path = expanded(name).resolve()
        if not path.is_file():
            raise NotFoundError(f"{name} does not exist", "chessreg query --list")
        return parse(read(path), path)
    catalogue = entries(beside)
    known = {_key(n): entry for entry in catalogue for n in (entry.title, *entry.aliases, entry.path.stem)}
    if _key(name) in known:
        return known[_key(name)]
    if SQL.match(name):
        line = re.sub(r"\s*\n\s*", " ", name.strip())
        raise NotFoundError("SQL of your own goes with --sql", f"chessreg query --sql {shlex.quote(line)}")
    titles = {key: entry.title for key, entry in known.items()}
    if ranked := ranked_by(name, [word_weights(entry) for entry in catalogue]):
        return catalogue[ranked[0]]
    raise NotFoundError(f"there is no query {clipped(name)!r}", _near_misses(name, titles) or "chessreg query --list")


def word_weights(entry: Entry) -> dict[str, float]:
    """Return how much each word that describes a query counts in a search."""
    columns = " ".join(column.name.replace("_", " ") for column in entry.columns if not column.hidden)
    return weighted([
        (columns, OF_COLUMNS), (f"{entry.question} {entry.topic}", 2.0), (" ".join(entry.aliases), 2.5),
        (entry.title, 3.0),
    ])  # fmt: skip


def find_plot(name: str, beside: tuple[Path, ...] = ()) -> tuple[Entry, Plot]:
    """Return the plot with this title or alias, of the only plot's query, or else the one that matches the words of
    `name` best, and the query that it shows.

    `beside`: files of kinds whose plots are included. Raises NotFoundError with the near misses.
    """
    catalogue = entries(beside)
    known = {_key(n): (entry, plot) for entry in catalogue for plot in entry.plots for n in (plot.title, *plot.aliases)}
    if _key(name) in known:
        return known[_key(name)]
    for entry in catalogue:
        if len(entry.plots) == 1 and _key(name) in map(_key, (entry.title, *entry.aliases, entry.path.stem)):
            return entry, entry.plots[0]
    plots = [(entry, plot) for entry in catalogue for plot in entry.plots]
    described = [word_weights(e) | weighted([(" ".join(p.aliases), 2.5), (p.title, 3.0)]) for e, p in plots]
    if ranked := ranked_by(name, described):
        return plots[ranked[0]]
    titles = {key: plot.title for key, (_, plot) in known.items()}
    raise NotFoundError(f"there is no plot {name!r}", _near_misses(name, titles) or "chessreg plot --list")


def _near_misses(name: str, titles: dict[str, str]) -> str:
    """`did you mean …?` of the titles (by key) that are spelled like this; empty if none is."""
    wanted = _key(name)
    near = difflib.get_close_matches(wanted, titles, n=5, cutoff=0.6)
    near += [key for key in titles if wanted and (wanted in key or key in wanted)]
    titles_near = list(dict.fromkeys(titles[key] for key in near))[:3]
    return "did you mean " + " or ".join(f'"{t}"' for t in titles_near) + "?" if titles_near else ""


@lru_cache(maxsize=1000)
def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip().lower())
