"""The scope of a catalogue query: the runs and rows that it includes. By default complete runs, neither archived nor
invalid."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.errors import BadInputError, NotFoundError
from chessreg.queries.duck import quote_text
from chessreg.registry.run_filter import parse_moment

if TYPE_CHECKING:
    from chessreg.registry.database import Database


@dataclass(frozen=True)
class Scope:
    """The filters of a query. Values of one option are alternatives; all options must hold.

    checkpoint, run: names or ids. tag: of the run or its checkpoint. machine: host names. since: earliest creation of a
    run, as a date or an age (7d, 12h, 2w). where: an SQL condition over the columns of the table or of the rows behind
    it. partial: include incomplete runs.
    """

    checkpoint: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    tag: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()
    since: str | None = None
    where: str | None = None
    partial: bool = False

    def __post_init__(self) -> None:
        for name in ("checkpoint", "run", "tag", "machine"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value or ()))

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Scope:
        """Return the scope of keyword options. Raises BadInputError for an unknown one."""
        names = {f.name for f in fields(cls)}
        if unknown_names := set(options) - names:
            raise BadInputError(f"a query has no option {min(unknown_names)}", f"it has {', '.join(sorted(names))}")
        return cls(**options)

    def list_set_options(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name)}

    @property
    def hides_runs(self) -> bool:
        """Whether complete runs of the selected checkpoints may be filtered out."""
        return bool(self.run or self.tag or self.machine or self.since or self.where)


@dataclass(frozen=True)
class Filters:
    """A scope as SQL conditions on `runs`, on `cells` (which have checkpoint_id) and on `base`."""

    runs: str
    cells: str
    base: str


def resolve_scope(database: Database, scope: Scope) -> Filters:
    """Resolve a scope's names to ids. Raises NotFoundError for an unknown name, BadInputError for a value that is not a
    date."""
    runs = ["NOT archived", "NOT invalid"]
    runs.append("(state = 'complete' OR done > 0)" if scope.partial else "state = 'complete'")
    cells = ["(checkpoint_id IS NULL OR checkpoint_id NOT IN "
             "(SELECT checkpoint_id FROM checkpoints WHERE archived OR invalid))"]  # fmt: skip
    base = []
    if scope.run:
        runs.append(f"run_id IN ({_resolve_ids(database, 'run', scope.run)})")
    if scope.checkpoint:
        cells.append(f"checkpoint_id IN ({_resolve_ids(database, 'checkpoint', scope.checkpoint)})")
    if scope.since:
        runs.append(f"created_at >= TIMESTAMPTZ {quote_text(parse_moment(scope.since).isoformat())}")
    if scope.run or scope.since:
        cells.append("run_id IS NOT NULL")  # cells without a run are excluded by a scope of runs
    if scope.tag:
        _check_known(scope.tag, _read_distinct_values(database, "tag"), "tag", "chessreg checkpoint tag CHECKPOINT TAG")
        tag_condition = f"word = 'tag' AND value IN ({', '.join(map(quote_text, scope.tag))})"
        tagged_sql = "SELECT target FROM annotated WHERE noun = '{}' AND " + tag_condition
        cells.append(
            f"(run_id IN ({tagged_sql.format('run')}) OR checkpoint_id IN ({tagged_sql.format('checkpoint')}))"
        )
    if scope.machine:
        hosts_by_name = _read_hosts(database)
        _check_known(scope.machine, hosts_by_name, "machine", f"there are {', '.join(hosts_by_name) or 'none yet'}")
        hosts = ", ".join(map(quote_text, scope.machine))
        attempts_sql = (
            f"SELECT a.id FROM attempt AS a JOIN machine AS m ON m.id = a.machine_id WHERE m.host IN ({hosts})"
        )
        base.append(f"attempt_id IN ({attempts_sql})")
    return Filters(*(" AND ".join(part) or "true" for part in (runs, cells, base)))


def _resolve_ids(database: Database, noun: str, references: tuple[str, ...]) -> str:
    from chessreg.registry import names

    with database.read() as session:
        ids: list[UUID] = [names.resolve_id(session, noun, reference) for reference in references]
    return ", ".join(f"UUID '{id}'" for id in ids)


def _check_known(wanted_names: tuple[str, ...], known_names: list[str], noun: str, hint: str) -> None:
    for value in wanted_names:
        if value not in known_names:
            suggestions = difflib.get_close_matches(value, known_names, n=3, cutoff=0.5)
            raise NotFoundError(
                f"{noun} {value!r} does not exist", f"did you mean {' or '.join(suggestions)}?" if suggestions else hint
            )


def _read_distinct_values(database: Database, word: str) -> list[str]:
    """Return the different current values of an annotation word."""
    from sqlalchemy import select

    from chessreg.registry.names import CURRENT_ANNOTATIONS

    with database.read() as session:
        return list(
            session.scalars(select(CURRENT_ANNOTATIONS.c.value).where(CURRENT_ANNOTATIONS.c.word == word).distinct())
        )


def _read_hosts(database: Database) -> list[str]:
    from sqlalchemy import select

    from chessreg.registry.tables import Machine

    with database.read() as session:
        return list(session.scalars(select(Machine.host).distinct()))
