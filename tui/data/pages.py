"""Long lists in pages: a table that is scrolled holds a few pages of rows, never all; those of the
database are found by key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from sqlalchemy import ColumnElement, Select, func, literal, select, tuple_

if TYPE_CHECKING:
    from chessreg.session import Session


PAGE = 200
Row = Mapping[str, Any]


class Pages(Protocol):
    """A list of `count` rows in pages of PAGE. `page` may be called from several threads."""

    count: int

    def page(self, number: int) -> Sequence[Row]: ...


class Listed:
    """Rows that are all here, as pages."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows, self.count = rows, len(rows)

    def page(self, number: int) -> Sequence[Row]:
        return self.rows[number * PAGE : (number + 1) * PAGE]


class KeysetPages:
    """The rows of one table, in the order of a unique key, newest or lowest first.

    A page is found by the key it begins with. Keys of pages that were read are remembered; another page is reached
    from the nearest of them, from either end: the first and the last page of a million rows cost the same.
    """

    def __init__(
        self,
        session: Session,
        table: Any,
        key: Sequence[Any],
        *,
        where: Sequence[ColumnElement[bool]] = (),
        descending: bool = False,
        rows: Callable[[Any, list[Any]], Sequence[Row]],
        count: int | None = None,
    ) -> None:
        self._database, self._table, self._key = session.database, table, tuple(key)
        self._where, self._descending, self._rows = tuple(where), descending, rows
        self._starts: dict[int, tuple[Any, ...]] = {}
        if count is None:
            with self._database.read() as sql:
                count = sql.scalar(select(func.count()).select_from(table).where(*self._where)) or 0
        self.count = count

    def page(self, number: int) -> Sequence[Row]:
        wanted = min(PAGE, self.count - number * PAGE)
        if number < 0 or wanted <= 0:
            return []
        with self._database.read() as sql:
            records = list(sql.scalars(self._statement(number, wanted)))
            if self._from_end(number):
                records.reverse()
            if records:
                self._starts[number] = tuple(getattr(records[0], column.key) for column in self._key)
            return self._rows(sql, records)

    def _from_end(self, number: int) -> bool:
        begin = self._nearest(number)
        return number - begin > (self.count // PAGE) - number

    def _nearest(self, number: int) -> int:
        return max((known for known in list(self._starts) if known <= number), default=0)

    def _statement(self, number: int, wanted: int) -> Select[Any]:
        statement = select(self._table).where(*self._where)
        begin = self._nearest(number)
        if self._from_end(number):
            skipped = max(0, self.count - number * PAGE - wanted)
            return statement.order_by(*self._order(not self._descending)).limit(wanted).offset(skipped)
        if start := self._starts.get(begin):
            whole, first = tuple_(*self._key), tuple_(*self._bound(start))
            statement = statement.where(whole <= first if self._descending else whole >= first)
        ordered = statement.order_by(*self._order(self._descending))
        return ordered.limit(wanted).offset((number - begin) * PAGE)

    def _bound(self, start: tuple[Any, ...]) -> list[Any]:
        return [literal(value, column.type) for value, column in zip(start, self._key, strict=True)]

    def _order(self, descending: bool) -> list[Any]:
        return [column.desc() if descending else column.asc() for column in self._key]


class JoinedPages:
    """The rows of several sources, one after the other."""

    def __init__(self, parts: Sequence[Pages]) -> None:
        self._parts = parts
        self._starts = list(accumulate((part.count for part in parts), initial=0))
        self.count = self._starts[-1]

    def page(self, number: int) -> Sequence[Row]:
        at, end = number * PAGE, min((number + 1) * PAGE, self.count)
        page: list[Row] = []
        while 0 <= at < end:
            part = bisect_right(self._starts, at) - 1
            inner, skipped = divmod(at - self._starts[part], PAGE)
            rows = self._parts[part].page(inner)[skipped : skipped + end - at]
            if not rows:
                break  # they were fewer when they were read than when they were counted
            page += rows
            at += len(rows)
        return page


class ChosenPages:
    """The rows of these ids, in this order: what a search has found, which no key leads to."""

    def __init__(
        self, session: Session, table: Any, ids: Sequence[str], rows: Callable[[Any, list[Any]], Sequence[Row]]
    ) -> None:
        self._database, self._table, self._ids, self._rows = session.database, table, ids, rows
        self.count = len(ids)

    def page(self, number: int) -> Sequence[Row]:
        wanted = [UUID(hex=id) for id in self._ids[number * PAGE : (number + 1) * PAGE]] if number >= 0 else []
        with self._database.read() as sql:
            records = {
                record.id: record for record in sql.scalars(select(self._table).where(self._table.id.in_(wanted)))
            }
            return self._rows(sql, [records[id] for id in wanted if id in records])
