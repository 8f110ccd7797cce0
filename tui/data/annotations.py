"""Add and withdraw annotations (name, tag, note, star, pin, archive, invalid) within the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import select

from chessreg.registry import names, tables

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession


def find_annotated(sql: SqlSession, noun: str, word: str, ids: Sequence[UUID]) -> set[UUID]:
    """Return the targets among `ids` that currently have an annotation of this type."""
    now = names.CURRENT_ANNOTATIONS.c
    conditions = now.noun == noun, now.word == tables.AnnotationWord(word).value, now.target.in_([id.hex for id in ids])
    return {UUID(hex=target) for target in sql.scalars(select(now.target).where(*conditions))}


def toggle_annotation(sql: SqlSession, noun: str, ids: Sequence[UUID], word: str) -> bool:
    """Annotate all of `ids` with a `word` that has no text (star, pin, archive), or remove it if all of them have it.

    Returns whether they have it now.
    """
    annotated_ids = find_annotated(sql, noun, word, ids)
    missing_ids = [id for id in ids if id not in annotated_ids]
    for id in missing_ids:
        names.add_annotation(sql, noun, id, word)
    for id in ids if not missing_ids else ():
        names.withdraw_annotations(sql, noun, id, word)
    return bool(missing_ids)


def annotate_targets(sql: SqlSession, noun: str, ids: Sequence[UUID], word: str, text: str) -> None:
    """Add the annotation `word` with `text` to every id of this noun. Raises BadInputError if a name is invalid or
    already used.
    """
    for id in ids:
        names.add_annotation(sql, noun, id, word, text)


def remove_tag(sql: SqlSession, noun: str, ids: Sequence[UUID], tag: str) -> None:
    """Withdraw `tag` from every id of this noun."""
    for id in ids:
        names.add_annotation(sql, noun, id, "tag", tag, withdrawn=True)


def clear_invalidation(sql: SqlSession, noun: str, ids: Sequence[UUID]) -> None:
    """Withdraw the invalidation of every target."""
    for id in ids:
        names.withdraw_annotations(sql, noun, id, "invalid")
