"""Names and other annotations of entities, and the lookup from a user's reference to an id.

A name is a label, not an identity: it can be assigned, moved and withdrawn. After a merge, two machines may have used
the same name, which is then shown as name@host, or name@ID if both are of one host.
"""

from __future__ import annotations

import difflib
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, String, and_, column, exists, func, not_, or_, select, type_coerce
from sqlalchemy import table as view
from sqlalchemy.orm import Session, aliased

from chessreg.errors import BadInputError, NotFoundError
from chessreg.named import NAME, clip_text
from chessreg.registry import tables
from chessreg.registry.database import select_by_keys
from chessreg.registry.identity import find_by_suffix, make_id, shorten_id
from chessreg.registry.tables.types import get_utc_now

LOOKS_LIKE_ID = re.compile(r"[0-9a-f]{6,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ID_PART = re.compile(r"[0-9a-f-]{2,}")
CLOCK_STEP = timedelta(microseconds=1)
LATEST_TIME = datetime.max.replace(tzinfo=UTC) - CLOCK_STEP  # clocks of other machines may be wrong
TEXT_NAMES = {
    tables.AnnotationWord.TAG: "tag",
    tables.AnnotationWord.NOTE: "note",
    tables.AnnotationWord.INVALID: "reason",
}
"""Annotation with a text → the word for the text in messages."""
CURRENT_ANNOTATIONS = view(
    "annotation_now", column("noun"), column("target"), column("word"), column("value"), column("host"), column("at")
)


def list_declared_nouns() -> dict[str, Any]:
    """Return noun → table for the entities that this process has imported."""
    classes = {mapper.class_.__noun__.name: mapper.class_ for mapper in tables.Base.registry.mappers
             if mapper.class_.__noun__ is not None}  # fmt: skip
    return dict(sorted(classes.items()))


def list_noun_tables(session: Session | None = None) -> dict[str, Any]:
    """Return noun → table, including entities of installed packages. With a session, only tables in that registry."""
    from chessreg.registry import brought

    brought.load_package_nouns()
    return {noun: table for noun, table in list_declared_nouns().items()
            if session is None or brought.has_table(session, table.__table__)}  # fmt: skip


def get_noun_table(noun: str) -> Any:
    """Return the table of a noun. Raises BadInputError for an unknown noun."""
    nouns = list_declared_nouns()
    if noun not in nouns:
        nouns = list_noun_tables()
    if noun not in nouns:
        raise BadInputError(f"unknown noun {noun!r}", f"nouns are {', '.join(nouns)}")
    return nouns[noun]


def is_keyed_by_run(table: Any) -> bool:
    """Return whether rows of `table` are identified by their run's id and name."""
    return "run_id" in table.__table__.primary_key.columns


def has_run_column(table: Any) -> bool:
    """Return whether runs create rows of `table`, so that a run's name finds them."""
    return "run_id" in table.__table__.columns


def list_array_tables(session: Session | None = None) -> list[Any]:
    """Return the tables whose rows own groups of arrays. With a session, only tables in that registry."""
    return [
        table
        for table in list_noun_tables(session).values()
        if is_keyed_by_run(table) and "path" in table.__table__.columns
    ]


def get_id_column(table: Any) -> Any:
    """Return the column with the id that identifies an entity: the run's id, or its own."""
    return table.run_id if is_keyed_by_run(table) else table.id


def disable_index(column: Any) -> ColumnElement[Any]:
    """Return `column` as an expression that SQLite does not look up by index.

    Many runs share a tag, while one run has few annotations, so another index is faster.
    """
    return func.coalesce(type_coerce(column, String), "")


@cache
def is_current() -> tuple[ColumnElement[bool], ...]:
    """Return the SQL conditions for an annotation that is the newest of its kind and not withdrawn."""
    annotation, later = tables.Annotation, aliased(tables.Annotation)
    is_newer = or_(later.at > annotation.at, and_(later.at == annotation.at, later.id > annotation.id))
    is_same_key = (
        later.noun == annotation.noun,
        later.target == annotation.target,
        disable_index(later.word) == annotation.word,
        disable_index(later.value) == annotation.value,
    )
    return not_(annotation.withdrawn), not_(exists().where(*is_same_key, is_newer))


def add_annotation(
    session: Session, noun: str, target: UUID | str, word: str, value: str = "", withdrawn: bool = False
) -> None:
    """Add an annotation to an entity: a name, tag, note, pin, star, archive or invalid. `withdrawn` removes it.

    Does nothing if the entity has the annotation already, so an interrupted command can be repeated. A new name
    replaces the entity's earlier names (`add_name` keeps them). Raises BadInputError for an unknown word, an invalid
    name, a name that another entity of this noun has, an empty text, or a tag of several lines.
    """
    try:
        annotation_word = tables.AnnotationWord(word)
    except ValueError:
        raise BadInputError(
            f"{word!r} is not an annotation", f"annotations are {', '.join(tables.AnnotationWord)}"
        ) from None
    get_noun_table(noun)
    target_hex = target.hex if isinstance(target, UUID) else UUID(target).hex
    if annotation_word in TEXT_NAMES and not withdrawn:
        require_annotation_text(annotation_word, value)
    if annotation_word is tables.AnnotationWord.NAME and not withdrawn:
        require_free_name(session, noun, target_hex, value)
        for old in _read_annotation_values(session, noun, target_hex, annotation_word):
            if old != value:
                _append_annotation(session, noun, target_hex, annotation_word, old, True)
    if withdrawn or value not in _read_annotation_values(session, noun, target_hex, annotation_word):
        _append_annotation(session, noun, target_hex, annotation_word, value, withdrawn)


def require_annotation_text(word: tables.AnnotationWord, value: str) -> None:
    """Raise BadInputError for an empty text, and for a tag with control characters, which no filter can name."""
    if not value.strip():
        raise BadInputError(f"the {TEXT_NAMES[word]} is empty", "give a text")
    if word == tables.AnnotationWord.TAG and not value.isprintable():
        raise BadInputError(f"{clip_text(value)!a} cannot be a tag", "use one line of text, or add a note instead")


def add_name(session: Session, noun: str, target: UUID, name: str) -> None:
    """Give the entity `target` (its id) of this noun an additional name; the newest one is shown.

    Does nothing if it has the name already. Raises BadInputError for an invalid name, or one that another entity of
    this noun has.
    """
    require_free_name(session, noun, target, name)
    if name not in _read_annotation_values(session, noun, target.hex, tables.AnnotationWord.NAME):
        _append_annotation(session, noun, target.hex, tables.AnnotationWord.NAME, name, False)


def withdraw_annotations(session: Session, noun: str, target: UUID, word: str) -> list[str]:
    """Withdraw all annotations of the entity `target` with `word` (name, tag, star, …), and return their values."""
    values = _read_annotation_values(session, noun, target.hex, tables.AnnotationWord(word))
    for value in values:
        add_annotation(session, noun, target, word, value, withdrawn=True)
    return values


def _append_annotation(
    session: Session, noun: str, target: str, word: tables.AnnotationWord, value: str, withdrawn: bool
) -> None:
    """Append a row to the log, with a time later than all earlier rows of the same entity and word.

    `target` is the entity's id as hex digits. `withdrawn` cancels an earlier row with the same `value`.
    """
    log, now = tables.Annotation, get_utc_now()
    is_same_key = log.noun == noun, log.target == target, disable_index(log.word) == word
    newest_at = session.scalar(select(func.max(log.at)).where(*is_same_key))
    row = tables.Annotation(
        id=make_id(),
        noun=noun,
        target=target,
        word=word,
        value=value,
        withdrawn=withdrawn,
        host=socket.gethostname(),
        at=now if newest_at is None else max(now, min(newest_at, LATEST_TIME) + CLOCK_STEP),
    )
    session.add(row)
    session.flush()


def _read_annotation_values(session: Session, noun: str, target: str, word: tables.AnnotationWord) -> list[str]:
    log = tables.Annotation
    query = select(log.value).where(
        log.noun == noun, log.target == target, disable_index(log.word) == word, *is_current()
    )
    return list(session.scalars(query.order_by(log.at.desc(), log.value)))


def require_name(name: str) -> None:
    """Raise BadInputError unless `name` is a valid name: letters, digits and ._+-, and not mistakable for an id."""
    if not NAME.fullmatch(name):
        shown_name = ascii(name) if len(name) <= 40 else f"{name[:40]!a}…"  # keep the hint visible
        raise BadInputError(
            f"{shown_name} cannot be a name", "use up to 100 letters, digits and ._+-, a letter or digit first"
        )
    if LOOKS_LIKE_ID.fullmatch(name.lower()):
        raise BadInputError(f"{name!r} cannot be a name: it looks like an id", "add a letter after f, or a dash")


def require_free_name(session: Session, noun: str, target: UUID | str, name: str) -> None:
    """Raise BadInputError if `name` is invalid, or if another entity of this noun has it."""
    require_name(name)
    target_hex = target.hex if isinstance(target, UUID) else target
    holders = [holder for holder, _ in _find_holders(session, noun, name) if holder != target_hex]
    if holders:
        holder = shorten_id(holders[0])
        command = {"run": "runs", "checkpoint": "checkpoint", "dataset": "dataset"}.get(noun)
        rename = f", or rename that one: chessreg {command} name {holder} OTHER" if command else ""
        raise BadInputError(f"the name {name!r} is taken by {noun} {holder}", f"choose another name{rename}")


def read_noun_names(session: Session, noun: str) -> dict[UUID, str]:
    """Return id → name for all named entities of a noun. A name shared by several is written as by
    `format_shared_name`."""
    rows = session.execute(
        select(CURRENT_ANNOTATIONS.c.target, CURRENT_ANNOTATIONS.c.value, CURRENT_ANNOTATIONS.c.host)
        .where(CURRENT_ANNOTATIONS.c.noun == noun, CURRENT_ANNOTATIONS.c.word == tables.AnnotationWord.NAME.value)
        .order_by(CURRENT_ANNOTATIONS.c.at, CURRENT_ANNOTATIONS.c.value)
    ).all()
    newest_names = {target: (value, host) for target, value, host in rows}
    hosts = defaultdict(list)
    for value, host in newest_names.values():
        hosts[value].append(host)
    return {
        UUID(hex=target): format_shared_name(value, host, target, hosts[value])
        for target, (value, host) in newest_names.items()
    }


def format_shared_name(name: str, host: str, target: str, hosts: Sequence[str]) -> str:
    """Return the name of an entity as lists show it. `hosts` are those of all entities with this name.

    >>> format_shared_name("mine", "box", "0" * 32, ["box"])
    'mine'
    >>> format_shared_name("mine", "box", "0" * 32, ["box", "gpu"])
    'mine@box'
    >>> format_shared_name("mine", "box", "0" * 32, ["box", "box"])
    'mine@000000'
    """
    if len(hosts) < 2:
        return name
    return f"{name}@{host if hosts.count(host) == 1 else shorten_id(target)}"


def read_names_of(session: Session, noun: str, ids: Iterable[UUID]) -> dict[UUID, str]:
    """Return id → name for the given entities. Faster than `read_noun_names` for a few of many entities."""
    id_hexes, name = sorted({id.hex for id in ids}), tables.AnnotationWord.NAME
    newest_names: dict[str, tuple[str, str]] = {}
    holders: dict[str, dict[str, str]] = defaultdict(dict)  # name → target → host
    for target, value, host in _iter_names(session, noun, id_hexes):
        newest_names[target] = (value, host)
        holders[value][target] = host
    # Other holders of these names, by the index of values: the view would number every annotation of the noun.
    log = tables.Annotation
    query = select(log.target).where(log.noun == noun, log.word == name)
    other_targets = {target for (target,) in select_by_keys(session, query, log.value, sorted(holders))}
    for target, value, host in _iter_names(session, noun, sorted(other_targets.difference(id_hexes))):
        holders[value][target] = host
    return {
        UUID(hex=target): format_shared_name(value, host, target, [*holders[value].values()])
        for target, (value, host) in newest_names.items()
    }


def _iter_names(session: Session, noun: str, targets: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (target, name, host) for the given entities, the newest name of each last."""
    log = tables.Annotation
    is_name = log.noun == noun, disable_index(log.word) == tables.AnnotationWord.NAME
    query = select(log.target, log.value, log.host).where(*is_name, *is_current()).order_by(log.at, log.value)
    yield from select_by_keys(session, query, log.target, targets)


def read_name(session: Session, noun: str, id: UUID) -> str | None:
    """Return the name of an entity, or None."""
    texts = _read_annotation_values(session, noun, id.hex, tables.AnnotationWord.NAME)
    return texts[0] if texts else None


def describe_names(session: Session, noun: str, id: UUID) -> str:
    """Return an entity's names for a message, as `second (also reference)`; without a name, the end of its id."""
    newest_name, *other_names = _read_annotation_values(session, noun, id.hex, tables.AnnotationWord.NAME) or [
        shorten_id(id.hex)
    ]
    return f"{newest_name} (also {', '.join(other_names)})" if other_names else newest_name


def resolve_id(session: Session, noun: str, reference: str | UUID) -> UUID:
    """Return the id that a user's reference means. From Python it may be the id itself.

    Tried in this order: a name or name@host (for results of runs, the run's name too), a full id or the end of one, the
    beginning of a digest. The first that matches decides. Raises BadInputError if several entities match, and
    NotFoundError with similar names if none does.
    """
    table = get_noun_table(noun)
    if table.__table__.name not in tables.OWN_TABLES and noun not in list_noun_tables(session):
        raise NotFoundError(f"{noun} {reference!r} was not found: the registry has none yet", table.__noun__.command)
    reference = str(reference).strip()
    lookups: tuple[Callable[[], list[UUID]], ...] = (
        lambda: find_by_name(session, noun, reference),
        lambda: _find_by_id(session, table, reference),
        lambda: _find_by_digest(session, table, reference),
    )
    for way in lookups:
        ids = list(dict.fromkeys(way()))
        if len(ids) == 1:
            return ids[0]
        if ids:
            names_by_id = read_noun_names(session, noun)
            id_texts = ", ".join(f"{names_by_id.get(id, '')} ({shorten_id(id, ids)})".strip() for id in ids[:5])
            raise BadInputError(f"{noun} {reference!r} is ambiguous: {id_texts}", "give one of the ids in brackets")
    if has_run_column(table) and find_by_name(session, "run", reference):
        raise NotFoundError(
            f"{noun} {reference!r} was not found: the run of this name made none", table.__noun__.command
        )
    suggestions = suggest_names(session, noun, reference)
    hint = f"did you mean {' or '.join(suggestions)}?" if suggestions else table.__noun__.command
    raise NotFoundError(f"{noun} {reference!r} was not found", hint)


def suggest_names(session: Session, noun: str, reference: str) -> list[str]:
    """Return up to three names of this noun that are spelled like `reference`."""
    known_names = set(read_noun_names(session, noun).values())
    if has_run_column(get_noun_table(noun)):
        known_names |= set(read_noun_names(session, "run").values())
    return difflib.get_close_matches(reference, sorted(known_names), n=3, cutoff=0.5)


def find_by_name(session: Session, noun: str, reference: str) -> list[UUID]:
    """Return the ids of entities named `reference` (name, name@host or name@ID). Results of runs are found by the
    run's name too."""
    holders = _find_holders(session, noun, reference)
    if not holders and "@" in reference:
        name, _, suffix = reference.rpartition("@")
        named_ids = _find_holders(session, noun, name)
        holders = [(target, host) for target, host in named_ids if host == suffix]
        holders = holders or [(target, host) for target, host in named_ids if suffix == shorten_id(target)]
    table = get_noun_table(noun)
    if not holders and has_run_column(table):
        runs = find_by_name(session, "run", reference)
        return list(session.scalars(select(get_id_column(table)).where(table.run_id.in_(runs)).distinct()))
    return [UUID(hex=target) for target, _ in holders]


def _find_holders(session: Session, noun: str, name: str) -> list[tuple[str, str]]:
    """Return (target, host) of the entities that have this name now."""
    log = tables.Annotation
    is_name = log.noun == noun, log.word == tables.AnnotationWord.NAME, log.value == name
    query = select(log.target, log.host).where(*is_name, *is_current()).order_by(log.at)
    return list(session.execute(query))


def _find_by_id(session: Session, table: Any, reference: str) -> list[UUID]:
    lowercase = reference.lower()
    return find_by_suffix(session, get_id_column(table), lowercase) if ID_PART.fullmatch(lowercase) else []


def _find_by_digest(session: Session, table: Any, reference: str) -> list[UUID]:
    """Return at most ten ids per digest column whose digest begins with `reference` (6 to 64 hex digits)."""
    lowercase = reference.lower().removeprefix("sha256:")
    if not re.fullmatch(r"[0-9a-f]{6,64}", lowercase):
        return []
    ids: list[UUID] = []
    for digest in table.__noun__.digests:
        begins: ColumnElement[bool] = getattr(table, digest).like(f"{lowercase}%")
        ids += session.scalars(select(get_id_column(table)).where(begins).limit(10))
    return ids
