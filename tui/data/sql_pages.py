"""Pages of the database's rows, found by key, in an order, or by their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, String, func, literal, select, tuple_

from chessreg.errors import BadInputError
from tui.data import table_filter
from tui.data.pages import PAGE_ROWS, JoinedPages, ListPages, Pages, Row, refuse_narrowing
from tui.data.table_filter import View

if TYPE_CHECKING:
    from chessreg.session import Session


class KeysetPages:
    """The rows of one table, in the order of a unique key, newest or lowest first.

    A page is found by the key it begins with. Keys of pages that were read are remembered; another page is reached
    from the nearest of them, from either end: the first and the last page of a million rows cost the same.
    """

    narrow = staticmethod(refuse_narrowing)

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

    def read_page(self, number: int) -> Sequence[Row]:
        wanted_rows = min(PAGE_ROWS, self.count - number * PAGE_ROWS)
        if number < 0 or wanted_rows <= 0:
            return []
        begin = max((known_page for known_page in list(self._starts) if known_page <= number), default=0)
        from_end = number - begin > (self.count // PAGE_ROWS) - number  # once: another thread may read a page meanwhile
        with self._database.read() as sql:
            records = list(sql.scalars(self._build_statement(number, wanted_rows, begin, from_end)))
            if from_end:
                records.reverse()
            if records:
                self._starts[number] = tuple(getattr(records[0], column.key) for column in self._key)
            return self._rows(sql, records)

    def _build_statement(self, number: int, wanted_rows: int, begin: int, from_end: bool) -> Select[Any]:
        """Return the statement for a page, counting rows from the start of page `begin` or from the end."""
        statement = select(self._table).where(*self._where)
        if from_end:
            skipped_rows = max(0, self.count - number * PAGE_ROWS - wanted_rows)
            return statement.order_by(*self._build_order(not self._descending)).limit(wanted_rows).offset(skipped_rows)
        if start := self._starts.get(begin):
            key_tuple, first = tuple_(*self._key), tuple_(*self._bind_start(start))
            statement = statement.where(key_tuple <= first if self._descending else key_tuple >= first)
        ordered_statement = statement.order_by(*self._build_order(self._descending))
        return ordered_statement.limit(wanted_rows).offset((number - begin) * PAGE_ROWS)

    def _bind_start(self, start: tuple[Any, ...]) -> list[Any]:
        return [literal(value, column.type) for value, column in zip(start, self._key, strict=True)]

    def _build_order(self, descending: bool) -> list[Any]:
        return [column.desc() if descending else column.asc() for column in self._key]


def iter_stretches(
    session: Session,
    table: Any,
    key: Sequence[Any],
    *,
    where: Sequence[ColumnElement[bool]] = (),
    fits: Sequence[ColumnElement[bool]] = (),
    rows: Callable[[Any, list[Any]], Sequence[Row]],
    descending: bool = False,
    cut: Sequence[Any] = (),
) -> Iterator[KeysetPages | None]:
    """Yield the matching rows of a table in key order, as sources for JoinedPages.

    The first source scans STRETCH/16 rows; later ones scan up to 8 STRETCH rows. After every STRETCH scanned rows, None
    is yielded. `cut` is the key or a prefix of it.
    """
    cut, size, looked_rows = tuple(cut or key), max(1, JoinedPages.STRETCH // 16), 0
    order = [column.desc() if descending else column.asc() for column in cut]
    cut_tuple, begin = tuple_(*cut), list[ColumnElement[bool]]()
    while True:
        with session.database.read() as sql:
            last_one = select(*cut).where(*where, *begin).order_by(*order).limit(1).offset(size - 1)
            last_key, conditions = sql.execute(last_one).first(), [*where, *begin]
            if last_key is not None:
                bound = tuple_(*(literal(value, column.type) for value, column in zip(last_key, cut, strict=True)))
                conditions.append(cut_tuple >= bound if descending else cut_tuple <= bound)
                begin = [cut_tuple < bound if descending else cut_tuple > bound]
            count = sql.scalar(select(func.count()).select_from(table).where(*conditions, *fits)) or 0
        yield KeysetPages(
            session, table, key, where=[*conditions, *fits], descending=descending, rows=rows, count=count
        )
        if last_key is None:
            return
        pauses, looked_rows = divmod(looked_rows + size, JoinedPages.STRETCH)
        yield from [None] * pauses
        size = min(2 * size, 8 * JoinedPages.STRETCH)


class SortedPages:
    """The rows of one table sorted by a field, then attempt time, then key. Rows without a value come last.

    A page is read from the nearer end.
    """

    def __init__(
        self,
        session: Session,
        table: Any,
        key: Sequence[Any],
        where: Sequence[ColumnElement[bool]],
        field: Callable[[str], Any],
        view: View,
        rows: Callable[[Any, list[Any]], Sequence[Row]],
        narrow_all: Callable[[View], Pages],
    ) -> None:
        """`field(name)` returns the SQL expression of a field, or None if it is unknown."""
        value = field(view.sort)
        if isinstance(value, table_filter.ComputedField):
            value = value.value
        if value is None:
            raise BadInputError(f"rows cannot be sorted by {view.sort.replace('_', ' ')}", "> takes the next column")
        self._session, self._table, self._where, self.narrow = session, table, tuple(where), narrow_all
        attempt = getattr(table, "attempt_id", None)  # a UUID of version 7: by time
        self._ties = tuple(key) if attempt is None else (attempt, *key)
        if isinstance(value.type, String):  # ignore case
            value = func.lower(value)
        self._view, self._rows, self._value = view, rows, value
        with session.database.read() as sql:
            self.count = sql.scalar(select(func.count()).select_from(table).where(*self._where)) or 0

    def read_page(self, number: int) -> Sequence[Row]:
        wanted_rows = min(PAGE_ROWS, self.count - number * PAGE_ROWS)
        if number < 0 or wanted_rows <= 0:
            return []
        before, after = number * PAGE_ROWS, self.count - number * PAGE_ROWS - wanted_rows
        is_reversed = after < before
        value = self._value
        falls = self._view.descending is not is_reversed
        by = value.desc() if falls else value.asc()
        order = [
            by.nulls_first() if is_reversed else by.nulls_last(),
            *(column.desc() if is_reversed else column.asc() for column in self._ties),
        ]
        query = select(self._table).where(*self._where).order_by(*order).limit(wanted_rows).offset(min(before, after))
        with self._session.database.read() as sql:
            records = list(sql.scalars(query))
            if is_reversed:
                records.reverse()
            return self._rows(sql, records)


class ChosenPages:
    """The rows of given ids, in this order."""

    def __init__(
        self, session: Session, table: Any, ids: Sequence[str], rows: Callable[[Any, list[Any]], Sequence[Row]]
    ) -> None:
        self._database, self._table, self._ids, self._rows = session.database, table, ids, rows
        self.count = len(ids)

    def narrow(self, view: View) -> ListPages:
        """Read every row, because states are computed per row. Suitable for a few thousand rows."""
        rows = [row for number in range(-(-self.count // PAGE_ROWS)) for row in self.read_page(number)]
        return ListPages(table_filter.narrow_rows(rows, view))

    def read_page(self, number: int) -> Sequence[Row]:
        wanted_places = (
            [UUID(hex=id) for id in self._ids[number * PAGE_ROWS : (number + 1) * PAGE_ROWS]] if number >= 0 else []
        )
        with self._database.read() as sql:
            records = {
                record.id: record
                for record in sql.scalars(select(self._table).where(self._table.id.in_(wanted_places)))
            }
            return self._rows(sql, [records[id] for id in wanted_places if id in records])
