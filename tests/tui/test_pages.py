"""Pages of long lists: every row once, in order, from either end, on both databases; and the words that narrow."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select

from chessreg.errors import BadInputError
from chessreg.registry import names, tables
from chessreg.registry.identity import hash_canonical_json, make_uuid
from chessreg.registry.tables.types import get_utc_now
from chessreg.session import Session, open_session
from tests.quick import quick_first
from tui.data import palette
from tui.data.pages import PAGE_ROWS, JoinedPages, ListPages, count_rows_to
from tui.data.result_rows import find_row, list_results
from tui.data.run_rows import list_run_pages
from tui.data.sql_pages import KeysetPages, iter_stretches

from ..postgres import postgres as postgres

RUNS = 5 * PAGE_ROWS + 37


def fill(session: Session, number: int = RUNS) -> list[Any]:
    """Runs of three kinds, some made at the same moment; every third complete, every tenth named."""
    now, rows = get_utc_now(), []
    for n in range(number):
        spec_hash = hash_canonical_json({"n": n})
        rows.append(
            {
                "id": make_uuid(spec_hash), "kind": ("play", "probe", "edit")[n % 3], "version": 1,
                "spec": {"n": n}, "spec_hash": spec_hash, "explicit": [], "units": 4,
                "created_at": now + timedelta(seconds=n // 3), "completed_at": now if n % 3 == 0 else None,
            }
        )  # fmt: skip
    with session.database.write() as sql:
        sql.execute(insert(tables.Run), rows)
        for row in rows[::10]:
            names.add_annotation(sql, "run", row["id"], "name", f"run-{row['spec']['n']}")
        names.add_annotation(sql, "run", rows[7]["id"], "archive")
        names.add_annotation(sql, "run", rows[8]["id"], "tag", "best")
        for n, withdrawn in ((9, False), (9, True), (11, False), (11, True), (11, False)):  # set, taken back, set
            names.add_annotation(sql, "run", rows[n]["id"], "tag", "twice", withdrawn=withdrawn)
        sql.execute(
            insert(tables.UnitRange),
            [
                {"run_id": rows[1]["id"], "start": 0, "stop": 2, "attempt_id": rows[1]["id"]},
                {"run_id": rows[1]["id"], "start": 1, "stop": 3, "attempt_id": rows[1]["id"]},
            ],
        )
    expected = sorted(rows, key=lambda row: (row["created_at"], row["id"].hex), reverse=True)
    return [row["id"] for row in expected if row["id"] != rows[7]["id"]]


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("pages")
    url = str(folder / "registry.db")
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").empty()
    with open_session(url, folder / "store") as session:
        yield session, fill(session)


def ids(pages: Any, number: int) -> list[Any]:
    return [row["id"] for row in pages.read_page(number)]


@pytest.mark.parametrize("order", quick_first(1, ["shuffled", "forward", "backward"]))
def test_every_run_is_on_one_page_in_order_whichever_page_is_read_first(filled, order: str) -> None:
    session, expected = filled
    pages = list_run_pages(session)
    assert pages.count == len(expected)
    numbers = list(range(6))
    if order == "backward":
        numbers.reverse()
    elif order == "shuffled":
        random.Random(3).shuffle(numbers)
    read = {number: ids(pages, number) for number in numbers}
    assert [id for number in range(6) for id in read[number]] == expected
    assert pages.read_page(6) == []
    assert pages.read_page(-1) == []


def test_a_page_says_what_the_command_line_says_of_its_runs(filled) -> None:
    from chessreg.registry import read

    session, _ = filled
    with session.database.read() as sql:
        told = {row["id"]: row for row in read.list_runs(sql)}
    for number in (0, 5):
        for row in list_run_pages(session).read_page(number):
            assert {key: row[key] for key in told[row["id"]]} == told[row["id"]]


def test_overlapping_ranges_count_their_units_once(filled) -> None:
    session, _ = filled
    found = list_run_pages(session, "kind:probe")
    count_rows_to(found, RUNS)
    (row,) = [row for number in range(3) for row in found.read_page(number) if row["spec"]["n"] == 1]
    assert row["done"] == 3


@pytest.mark.parametrize(
    ("words", "fits"),
    quick_first(6, [
        ("kind:edit", lambda n: n % 3 == 2),
        ("edit", lambda n: n % 3 == 2),
        ("!edit", lambda n: n % 3 != 2),
        ("state:complete", lambda n: n % 3 == 0),
        ("state:planned kind:probe", lambda n: n % 3 == 1 and n != 1),
        ("state:partial", lambda n: n == 1),
        ("RUN-10", lambda n: n in (10, *range(100, 110, 10), *range(1000, 1037, 10))),
        ("name:run-10 play", lambda n: n in (1020,)),
        ("tag:best", lambda n: n == 8),
        ("tag:twice", lambda n: n == 11),
        ("archived", lambda n: n == 7),
        ("kind:", lambda n: True),
        ("100%", lambda n: False),
        ("zzz", lambda n: False),
    ]),
)  # fmt: skip
@pytest.mark.parametrize("stretch", [JoinedPages.STRETCH, 100])
def test_words_narrow_the_runs(filled, words: str, fits: Any, stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they are checked all at once or a few at a time."""
    session, _ = filled
    monkeypatch.setattr(JoinedPages, "STRETCH", stretch)
    found = list_run_pages(session, words)
    count_rows_to(found, RUNS)
    expected = [n for n in range(RUNS) if fits(n) and (n != 7 or words == "archived")]
    assert found.count == len(expected)
    shown = [row["spec"]["n"] for number in range(7) for row in found.read_page(number)]
    assert sorted(shown) == expected
    made = [row["created_at"] for number in range(7) for row in found.read_page(number)]
    assert made == sorted(made, reverse=True)


def test_the_end_of_an_id_finds_its_run(filled) -> None:
    session, expected = filled
    assert expected[5] in ids(list_run_pages(session, f"id:{expected[5].hex[-6:]}"), 0)


def test_the_palette_looks_at_the_names_that_fit_best_first(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(palette, "MAX_RUN_NAMES", 1)
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session:
        fill(session, 60)
        with session.database.write() as sql:
            for n, name in ((1, "odd-ru-10"), (2, "u-1")):
                names.add_annotation(sql, "run", make_uuid(hash_canonical_json({"n": n})), "name", name)
        assert [name for _, name in palette.find_runs_by_name(session, "U-1")] == ["u-1"]


def test_a_field_that_there_is_not_is_named(filled) -> None:
    session, _ = filled
    with pytest.raises(BadInputError, match="runs have no field 'color'"):
        list_run_pages(session, "color:red")


def test_a_list_at_hand_has_pages_too() -> None:
    pages = ListPages([{"n": n} for n in range(PAGE_ROWS + 1)])
    assert (pages.count, len(pages.read_page(0)), pages.read_page(1)) == (PAGE_ROWS + 1, PAGE_ROWS, [{"n": PAGE_ROWS}])


def test_results_come_with_their_own_columns_and_are_found_again_by_part_of_their_key(session: Session) -> None:
    (toy,) = [row for row in list_run_pages(session).read_page(0) if row["name"] == "toy"]
    pages = list_results(session, "score", toy["id"])
    rows = pages.read_page(0)
    assert [row["unit"] for row in rows] == list(range(12))
    assert {"fen", "move", "checks", "run", "result_table"} <= set(rows[0])
    assert "detail" not in rows[0]
    found = find_row(session, {"run_id": toy["id"].hex, "unit": 5}, ["trial", "score"])
    assert found is not None
    assert found["fen"] == rows[5]["fen"]
    assert find_row(session, {"run_id": toy["id"], "unit": 99}, ["score"]) is None


def test_joined_pages_go_on_from_one_source_to_the_next() -> None:
    rows = [{"n": n} for n in range(3 * PAGE_ROWS + 7)]
    cuts = (0, 3, PAGE_ROWS + 5, PAGE_ROWS + 6, len(rows))
    joined = JoinedPages(
        [ListPages(rows[start:stop]) for start, stop in itertools.pairwise(cuts)], ListPages([]).narrow
    )
    assert joined.count == len(rows)
    assert [row for number in range(4) for row in joined.read_page(number)] == rows
    assert list(joined.read_page(4)) == list(joined.read_page(-1)) == []
    assert JoinedPages([], ListPages([]).narrow).count == 0


def test_a_pause_ends_a_step_and_what_was_found_before_it_is_shown() -> None:
    """A word in few rows: the number of checked rows, not of matches, determines when the first rows are shown."""

    def parts() -> Iterator[ListPages | None]:
        for n in range(40):
            yield ListPages([{"n": n}] if n in (0, 39) else [])
            yield None

    pages = JoinedPages(parts(), ListPages([]).narrow)
    assert (pages.count, pages.complete, pages.read_page(0)) == (1, False, [{"n": 0}])
    assert pages.count_more()
    assert (pages.count, pages.complete) == (1, False)
    count_rows_to(pages, 1)
    assert (pages.count, pages.read_page(0)) == (2, [{"n": 0}, {"n": 39}])


@pytest.mark.parametrize("filled", ["sqlite"], indirect=True)
def test_stretches_of_a_key_hold_every_row_once_in_either_order(filled) -> None:
    """Also where several rows are equal in the columns that stretches are cut by."""
    session, _ = filled
    run, size = tables.Run, JoinedPages.STRETCH
    key = (run.created_at, run.id)
    with session.database.read() as sql:
        every = sql.execute(select(*key).order_by(*key)).all()

    def rows(sql: Any, records: list[Any]) -> list[Any]:
        return [{"key": (record.created_at, record.id)} for record in records]

    try:
        for JoinedPages.STRETCH in (37, 5000):
            for cut, falls in itertools.product((key, key[:1]), (False, True)):
                found = [
                    row["key"]
                    for part in iter_stretches(session, run, key, rows=rows, cut=cut, descending=falls)
                    for page in range(-(-part.count // PAGE_ROWS) if part else 0)
                    for row in part.read_page(page)
                ]
                assert found == list(every)[:: -1 if falls else 1]
    finally:
        JoinedPages.STRETCH = size


def test_a_page_is_in_order_though_another_thread_reads_the_page_before_it_meanwhile(filled) -> None:
    session, _ = filled
    key = (tables.Run.created_at, tables.Run.id)

    class Raced(KeysetPages):
        def _build_statement(self, number: int, *how: Any) -> Any:
            statement = super()._build_statement(number, *how)
            if number == 4:
                self.read_page(3)
            return statement

    def ids_of(sql: Any, records: list[Any]) -> list[Any]:
        return [record.id for record in records]

    alone, raced = (pages(session, tables.Run, key, rows=ids_of) for pages in (KeysetPages, Raced))
    assert raced.read_page(4) == alone.read_page(4)


def test_sources_are_counted_on_after_the_first_rows_and_one_that_fails_is_told() -> None:
    asked = []

    def parts(broken: bool = False) -> Iterator[ListPages]:
        for n in range(30):
            asked.append(n)
            if broken and n == 25:
                raise OSError("gone")
            yield ListPages([{"n": n}] * PAGE_ROWS if n % 2 else [])

    pages = JoinedPages(parts(), ListPages([]).narrow)
    assert (pages.count, pages.complete, asked[-1]) == (
        JoinedPages.FIRST,
        False,
        2 * JoinedPages.FIRST // PAGE_ROWS - 1,
    )
    first = pages.read_page(3)
    assert pages.count_more(1)
    assert (pages.count, pages.complete, pages.read_page(3)) == (JoinedPages.FIRST + PAGE_ROWS, False, first)
    count_rows_to(pages, 14 * PAGE_ROWS)
    assert (pages.complete, pages.count, pages.read_page(14)[0]["n"]) == (True, 15 * PAGE_ROWS, 29)
    assert not pages.count_more()
    pages = JoinedPages(parts(broken=True), ListPages([]).narrow)
    with pytest.raises(OSError, match="gone"):
        pages.count_more()
    assert not pages.count_more()
    assert (pages.complete, pages.count) == (False, 12 * PAGE_ROWS), "it is not said to be all"
