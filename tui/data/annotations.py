"""Annotations of things, written and taken back in a transaction of the caller: names, tags, notes, stars, pins, the
archive, what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import select

from chessreg.registry import names, tables

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession


def find_annotated(sql: SqlSession, noun: str, word: str, ids: Sequence[UUID]) -> set[UUID]:
    """Those of these targets that have an annotation with this word now."""
    now = names.CURRENT_ANNOTATIONS.c
    wanted = now.noun == noun, now.word == tables.AnnotationWord(word).value, now.target.in_([id.hex for id in ids])
    return {UUID(hex=target) for target in sql.scalars(select(now.target).where(*wanted))}


def toggle_annotation(sql: SqlSession, noun: str, ids: Sequence[UUID], word: str) -> bool:
    """Add an annotation without a text (star, pin, archive) to all of these, or remove it if all of them have it.

    Returns whether they have it now.
    """
    have = find_annotated(sql, noun, word, ids)
    missing = [id for id in ids if id not in have]
    for id in missing:
        names.add_annotation(sql, noun, id, word)
    for id in ids if not missing else ():
        names.withdraw_annotations(sql, noun, id, word)
    return bool(missing)


def annotate_targets(sql: SqlSession, noun: str, ids: Sequence[UUID], word: str, text: str) -> None:
    """Say it of all of these. Raises BadInputError for a name that cannot be one, or is taken."""
    for id in ids:
        names.add_annotation(sql, noun, id, word, text)


def remove_tag(sql: SqlSession, noun: str, ids: Sequence[UUID], tag: str) -> None:
    for id in ids:
        names.add_annotation(sql, noun, id, "tag", tag, withdrawn=True)


def clear_invalidation(sql: SqlSession, noun: str, ids: Sequence[UUID]) -> None:
    """Take back that they are wrong."""
    for id in ids:
        names.withdraw_annotations(sql, noun, id, "invalid")
