"""Names and other annotations of things, and the way from what a user types to an id.

A name is a label, not an identity: it can be given, moved and taken back, and after a merge two machines may have used
the same one. It is then written name@host.
"""

from __future__ import annotations

import difflib
import re
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, String, and_, column, exists, func, not_, or_, select, type_coerce
from sqlalchemy import table as view
from sqlalchemy.orm import Session, aliased

from chessreg.errors import BadInputError, NotFoundError
from chessreg.named import NAME
from chessreg.registry import tables
from chessreg.registry.database import rows_among
from chessreg.registry.identity import find_by_suffix, new_id, short
from chessreg.registry.tables.types import utc_now

LOOKS_LIKE_ID = re.compile(r"[0-9a-f]{6,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
HEX = re.compile(r"[0-9a-f-]{2,}")
TICK = timedelta(microseconds=1)
LAST = datetime.max.replace(tzinfo=UTC) - TICK  # another's clock may say anything
NOW = view(
    "annotation_now", column("noun"), column("target"), column("word"), column("value"), column("host"), column("at")
)


def declared() -> dict[str, Any]:
    """The tables whose rows a user calls by a noun, by that noun, as far as this process has imported them."""
    classes = {mapper.class_.__noun__.name: mapper.class_ for mapper in tables.Base.registry.mappers
             if mapper.class_.__noun__ is not None}  # fmt: skip
    return dict(sorted(classes.items()))


def nouns(session: Session | None = None) -> dict[str, Any]:
    """The same with those of installed packages; with a session, those whose table is in this registry."""
    from chessreg.registry import brought

    brought.load()
    return {noun: table for noun, table in declared().items()
            if session is None or brought.is_here(session, table.__table__)}  # fmt: skip


def table_of(noun: str) -> Any:
    """The table of a noun. Raises BadInputError for a noun that things are not called by."""
    known = declared()
    if noun not in known:
        known = nouns()
    if noun not in known:
        raise BadInputError(f"there are no things called {noun!r}", f"nouns are {', '.join(known)}")
    return known[noun]


def of_run(table: Any) -> bool:
    """Whether rows of this table are made by runs, and so go by their run's id and name."""
    return "run_id" in table.__table__.primary_key.columns


def made_by_runs(table: Any) -> bool:
    """Whether runs make rows of this table, so that a run's name finds them too."""
    return "run_id" in table.__table__.columns


def with_arrays(session: Session | None = None) -> list[Any]:
    """Tables of what runs make that own groups of arrays: units, path below the store, digest, bytes. With a session,
    those that are in this registry."""
    return [table for table in nouns(session).values() if of_run(table) and "path" in table.__table__.columns]


def id_of(table: Any) -> Any:
    """The column with the id that names a thing: its run's, or its own."""
    return table.run_id if of_run(table) else table.id


def unindexed(column: Any) -> ColumnElement[Any]:
    """A column by which SQLite shall not look things up: thousands of runs have the same tag, few words one run."""
    return func.coalesce(type_coerce(column, String), "")


def holds() -> tuple[ColumnElement[bool], ...]:
    """Whether an annotation is the newest of its kind, and not one that takes something back."""
    annotation, later = tables.Annotation, aliased(tables.Annotation)
    newer = or_(later.at > annotation.at, and_(later.at == annotation.at, later.id > annotation.id))
    same = (later.noun == annotation.noun, later.target == annotation.target, unindexed(later.word) == annotation.word,
            unindexed(later.value) == annotation.value)  # fmt: skip
    return not_(annotation.withdrawn), not_(exists().where(*same, newer))


def annotate(
    session: Session, noun: str, target: UUID | str, word: str, value: str = "", withdrawn: bool = False
) -> None:
    """Annotate a thing: with a name, tag, note, pin, star, archive or invalid. `withdrawn` takes it back.

    Does nothing if the thing has that annotation already: a command that was killed may be repeated. A new name takes
    the place of all that the thing has (`add_name` leaves them). Raises BadInputError for a word that
    is none, a name that cannot be one, or one that another thing of this noun has.
    """
    try:
        annotated = tables.Word(word)
    except ValueError:
        raise BadInputError(f"{word!r} is no annotation", f"annotations are {', '.join(tables.Word)}") from None
    table_of(noun)
    target_hex = target.hex if isinstance(target, UUID) else UUID(target).hex
    if annotated is tables.Word.NAME and not withdrawn:
        check_free(session, noun, target_hex, value)
        for old in _texts(session, noun, target_hex, annotated):
            if old != value:
                _add(session, noun, target_hex, annotated, old, True)
    if withdrawn or value not in _texts(session, noun, target_hex, annotated):
        _add(session, noun, target_hex, annotated, value, withdrawn)


def add_name(session: Session, noun: str, target: UUID, name: str) -> None:
    """Let a thing go by this name too: those it has stay, and the newest is the one that is shown. Does nothing where
    it has the name. Raises BadInputError for a name that cannot be one or that another thing of this noun has."""
    check_free(session, noun, target, name)
    if name not in _texts(session, noun, target.hex, tables.Word.NAME):
        _add(session, noun, target.hex, tables.Word.NAME, name, False)


def take_back(session: Session, noun: str, target: UUID, word: str) -> list[str]:
    """Remove all annotations of a thing with this word; returns their texts."""
    values = _texts(session, noun, target.hex, tables.Word(word))
    for value in values:
        annotate(session, noun, target, word, value, withdrawn=True)
    return values


def _add(session: Session, noun: str, target: str, word: tables.Word, value: str, withdrawn: bool) -> None:
    """Append to the log. The row is newer than all others of its thing and word, also than those of a fast clock."""
    log, now = tables.Annotation, utc_now()
    same = log.noun == noun, log.target == target, unindexed(log.word) == word
    newest = session.scalar(select(func.max(log.at)).where(*same))
    row = tables.Annotation(
        id=new_id(),
        noun=noun,
        target=target,
        word=word,
        value=value,
        withdrawn=withdrawn,
        host=socket.gethostname(),
        at=now if newest is None else max(now, min(newest, LAST) + TICK),
    )
    session.add(row)
    session.flush()


def _texts(session: Session, noun: str, target: str, word: tables.Word) -> list[str]:
    log = tables.Annotation
    query = select(log.value).where(log.noun == noun, log.target == target, unindexed(log.word) == word, *holds())
    return list(session.scalars(query.order_by(log.at.desc(), log.value)))


def check_name(name: str) -> None:
    """Raises BadInputError unless `name` can be one: letters, digits and ._+-, and not to be taken for an id."""
    if not NAME.fullmatch(name):
        short = ascii(name) if len(name) <= 40 else f"{name[:40]!a}…"  # what helps stands after it
        raise BadInputError(
            f"{short} cannot be a name", "use up to 100 letters, digits and ._+-, a letter or digit first"
        )
    if LOOKS_LIKE_ID.fullmatch(name.lower()):
        raise BadInputError(f"{name!r} cannot be a name: it reads like an id", "add a letter after f, or a dash")


def check_free(session: Session, noun: str, target: UUID | str, name: str) -> None:
    """Raises BadInputError if `name` cannot be one, or another thing of this noun has it."""
    check_name(name)
    own = target.hex if isinstance(target, UUID) else target
    taken = [holder for holder, _ in _holders(session, noun, name) if holder != own]
    if taken:
        raise BadInputError(
            f"the name {name!r} is taken by {noun} {short(taken[0])}",
            "choose another, or take that one's name back first",
        )


def names(session: Session, noun: str) -> dict[UUID, str]:
    """The name of every thing of a noun that has one; a name that several have is written name@host."""
    rows = session.execute(
        select(NOW.c.target, NOW.c.value, NOW.c.host)
        .where(NOW.c.noun == noun, NOW.c.word == tables.Word.NAME.value)
        .order_by(NOW.c.at, NOW.c.value)
    ).all()
    newest = {target: (value, host) for target, value, host in rows}
    held = [value for value, _ in newest.values()]
    shared = {value for value, holders in Counter(held).items() if holders > 1}
    return {
        UUID(hex=target): f"{value}@{host}" if value in shared else value for target, (value, host) in newest.items()
    }


def names_of(session: Session, noun: str, ids: Iterable[UUID]) -> dict[UUID, str]:
    """The same of these things alone: of a few among very many."""
    wanted, name = sorted({id.hex for id in ids}), tables.Word.NAME
    newest: dict[str, tuple[str, str]] = {}
    holders: dict[str, set[str]] = defaultdict(set)
    for target, value, host in _named(session, noun, wanted):
        newest[target] = (value, host)
        holders[value].add(target)
    # Who else was ever called so is found by the index of values: the view would number every annotation of the noun.
    log = tables.Annotation
    query = select(log.target).where(log.noun == noun, log.word == name)
    others = {target for (target,) in rows_among(session, query, log.value, sorted(holders))}
    for target, value, _ in _named(session, noun, sorted(others.difference(wanted))):
        holders[value].add(target)
    return {
        UUID(hex=target): f"{value}@{host}" if len(holders[value]) > 1 else value
        for target, (value, host) in newest.items()
    }


def _named(session: Session, noun: str, targets: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(target, name, host) of these, each thing's newest name last."""
    log = tables.Annotation
    named = log.noun == noun, unindexed(log.word) == tables.Word.NAME
    query = select(log.target, log.value, log.host).where(*named, *holds()).order_by(log.at, log.value)
    yield from rows_among(session, query, log.target, targets)


def name_of(session: Session, noun: str, id: UUID) -> str | None:
    """A thing's name, or None."""
    texts = _texts(session, noun, id.hex, tables.Word.NAME)
    return texts[0] if texts else None


def called(session: Session, noun: str, id: UUID) -> str:
    """A thing's names in a message: `second (also reference)`; without a name the end of its id."""
    newest, *others = _texts(session, noun, id.hex, tables.Word.NAME) or [short(id.hex)]
    return f"{newest} (also {', '.join(others)})" if others else newest


def resolve(session: Session, noun: str, reference: str) -> UUID:
    """The id of the thing that a user means by a name, name@host, a full id, the end of one, or a digest's beginning;
    of what a run made also by the run's name.

    The first of these that fits at all decides. Raises BadInputError when several things fit, NotFoundError with the
    names that come near when none does.
    """
    table = table_of(noun)
    if table.__table__.name not in tables.OWN and noun not in nouns(session):
        raise NotFoundError(f"there is no {noun} {reference!r}: there are none yet", table.__noun__.command)
    reference = reference.strip()
    lookups: tuple[Callable[[], list[UUID]], ...] = (
        lambda: by_name(session, noun, reference),
        lambda: _by_id(session, table, reference),
        lambda: _by_digest(session, table, reference),
    )
    for way in lookups:
        ids = list(dict.fromkeys(way()))
        if len(ids) == 1:
            return ids[0]
        if ids:
            called = names(session, noun)
            which = ", ".join(f"{called.get(id, '')} ({short(id, ids)})".strip() for id in ids[:5])
            raise BadInputError(f"{noun} {reference!r} is ambiguous: {which}", "give an id: one of those in brackets")
    if made_by_runs(table) and by_name(session, "run", reference):
        raise NotFoundError(f"there is no {noun} {reference!r}: the run of this name made none", table.__noun__.command)
    near = near_misses(session, noun, reference)
    hint = f"did you mean {' or '.join(near)}?" if near else table.__noun__.command
    raise NotFoundError(f"there is no {noun} {reference!r}", hint)


def near_misses(session: Session, noun: str, reference: str) -> list[str]:
    """Up to three names of this noun that are spelled like `reference`."""
    called = set(names(session, noun).values())
    if made_by_runs(table_of(noun)):
        called |= set(names(session, "run").values())
    return difflib.get_close_matches(reference, sorted(called), n=3, cutoff=0.5)


def by_name(session: Session, noun: str, reference: str) -> list[UUID]:
    """The ids of those that have this name, as name or name@host; of what a run made also by the run's name."""
    holders = _holders(session, noun, reference)
    if not holders and "@" in reference:
        name, _, host = reference.rpartition("@")
        holders = [(target, where) for target, where in _holders(session, noun, name) if where == host]
    table = table_of(noun)
    if not holders and made_by_runs(table):
        runs = by_name(session, "run", reference)
        return list(session.scalars(select(id_of(table)).where(table.run_id.in_(runs)).distinct()))
    return [UUID(hex=target) for target, _ in holders]


def _holders(session: Session, noun: str, name: str) -> list[tuple[str, str]]:
    """(target, host) of those that have this name now."""
    log = tables.Annotation
    named = log.noun == noun, log.word == tables.Word.NAME, log.value == name
    query = select(log.target, log.host).where(*named, *holds()).order_by(log.at)
    return list(session.execute(query))


def _by_id(session: Session, table: Any, reference: str) -> list[UUID]:
    lowered = reference.lower()
    return find_by_suffix(session, id_of(table), lowered) if HEX.fullmatch(lowered) else []


def _by_digest(session: Session, table: Any, reference: str) -> list[UUID]:
    lowered = reference.lower().removeprefix("sha256:")
    if not re.fullmatch(r"[0-9a-f]{6,64}", lowered):
        return []
    ids: list[UUID] = []
    for digest in table.__noun__.digests:
        begins: ColumnElement[bool] = getattr(table, digest).like(f"{lowered}%")
        ids += session.scalars(select(id_of(table)).where(begins).limit(10))
    return ids
