"""Names of things, and the resolution of typed text to an id."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import make_id
from chessreg.registry.tables.types import get_utc_now


def said(session: Session) -> list[tuple[str, str]]:
    """(word, value) that hold now."""
    rows = session.execute(text("SELECT word, value FROM annotation_now ORDER BY word, value"))
    return [(word, value) for word, value in rows]


def from_host(session: Session, host: str, target: UUID) -> None:
    """As if another machine had set it and the two registries were merged."""
    session.execute(update(tables.Annotation).where(tables.Annotation.target == target.hex).values(host=host))


def test_the_log_keeps_everything_and_the_view_shows_the_present(database: Database, rows: Any) -> None:
    with database.write() as session:
        run = rows.run(session).id
        for word, value, withdrawn in [
            ("tag", "paper", False),
            ("tag", "old", False),
            ("tag", "old", True),
            ("pin", "", False),
            ("pin", "", True),
            ("pin", "", False),
            ("note", "two", False),
        ]:
            names.add_annotation(session, "run", run, word, value, withdrawn)
        assert said(session) == [("note", "two"), ("pin", ""), ("tag", "paper")]
        assert len(session.scalars(select(tables.Annotation)).all()) == 7


def test_a_thing_has_one_name_and_a_new_one_takes_its_place(database: Database, rows: Any) -> None:
    with database.write() as session:
        run = rows.run(session).id
        assert names.read_name(session, "run", run) is None
        names.add_annotation(session, "run", run, "name", "first")
        names.add_annotation(session, "run", run, "name", "second")
        assert names.read_name(session, "run", run) == "second"
        assert names.read_noun_names(session, "run") == {run: "second"}
        assert names.resolve_id(session, "run", "second") == run
        with pytest.raises(NotFoundError):
            names.resolve_id(session, "run", "first")
        names.add_annotation(session, "run", run, "name", "second", withdrawn=True)
        assert names.read_noun_names(session, "run") == {}


@pytest.mark.parametrize(("word", "value"), [("name", "first"), ("tag", "paper"), ("note", "odd"), ("pin", "")])
def test_what_a_thing_has_already_is_not_said_again(database: Database, rows: Any, word: str, value: str) -> None:
    with database.write() as session:
        run = rows.run(session).id
    versions = set()
    for _ in range(3):  # a command that was killed, and typed again
        with database.write() as session:
            names.add_annotation(session, "run", run, word, value)
        versions.add(database.data_version())
    assert len(versions) == 1
    with database.write() as session:
        names.add_annotation(session, "run", run, word, value, withdrawn=True)
        names.add_annotation(session, "run", run, word, value)
        assert said(session) == [(word, value)]
        assert len(session.scalars(select(tables.Annotation)).all()) == 3


@pytest.mark.parametrize("at", [get_utc_now() + timedelta(days=10), names.LATEST_TIME + names.CLOCK_STEP])
def test_what_a_machine_with_a_fast_clock_said_is_replaced_and_taken_back(
    database: Database, rows: Any, at: datetime
) -> None:
    with database.write() as session:
        run = rows.run(session).id
        for word, value in (("name", "first"), ("tag", "old"), ("invalid", "bad")):
            names.add_annotation(session, "run", run, word, value)
        session.execute(update(tables.Annotation).values(at=at))
        names.add_annotation(session, "run", run, "name", "second")
        assert names.withdraw_annotations(session, "run", run, "tag") == ["old"]
        assert names.withdraw_annotations(session, "run", run, "invalid") == ["bad"]
        assert said(session) == [("name", "second")]


def test_a_name_that_another_thing_has_is_refused_until_it_is_taken_back(database: Database, rows: Any) -> None:
    with database.write() as session:
        one, two = rows.run(session, 1).id, rows.run(session, 2).id
        names.add_annotation(session, "run", one, "name", "mine")
        with pytest.raises(BadInputError, match=f"taken by run {one.hex[-6:]}"):
            names.add_annotation(session, "run", two, "name", "mine")
        names.add_annotation(session, "run", one, "name", "mine")  # repeating it changes nothing
        names.add_annotation(session, "dataset", two, "name", "mine")  # another noun
        names.add_annotation(session, "run", one, "name", "mine", withdrawn=True)
        names.add_annotation(session, "run", two, "name", "mine")
        assert names.resolve_id(session, "run", "mine") == two


@pytest.mark.parametrize(("word", "value"), [("note", ""), ("invalid", " \n"), ("tag", ""), ("tag", "a\nb")])
def test_an_empty_note_or_a_tag_of_several_lines_is_refused(
    word: str, value: str, database: Database, rows: Any
) -> None:
    with database.write() as session:
        run = rows.run(session).id
        with pytest.raises(BadInputError, match=r"the (note|reason|tag) is empty|cannot be a tag"):
            names.add_annotation(session, "run", run, word, value)
        names.add_annotation(session, "run", run, "note", "two\nlines")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-x",
        "a b",
        "a/b",
        "a@b",
        "ä",
        "x" * 101,
        "漢" * 5000,
        "c0ffee",
        "DEADBEEF",
        "a:b",
        "01a1fd90-15f1-736e-9f87-391196fe6f2c",
    ],
)
def test_names_that_would_be_taken_for_something_else_are_refused(name: str) -> None:
    with pytest.raises(BadInputError, match="cannot be a name") as told:
        names.require_name(name)
    assert len(told.value.message) < 300, "what helps stands after it, on the same screen"


@pytest.mark.parametrize("name", ["a", "lichess-lm", "8x192.v2", "2013-01", "face", "run_1", "l5+l6", "0001"])
def test_ordinary_names_are_accepted(name: str) -> None:
    names.require_name(name)


def test_words_and_nouns_are_closed_sets(database: Database) -> None:
    with database.write() as session:
        with pytest.raises(BadInputError, match="'shout' is not an annotation"):
            names.add_annotation(session, "run", make_id(), "shout", "x")
        with pytest.raises(BadInputError, match="unknown noun 'knight'"):
            names.add_annotation(session, "knight", make_id(), "tag", "x")
        with pytest.raises(BadInputError, match="unknown noun 'knight'"):
            names.resolve_id(session, "knight", "x")


def test_a_reference_is_a_name_an_id_its_end_or_the_beginning_of_a_digest(database: Database, rows: Any) -> None:
    with database.write() as session:
        ids = [rows.run(session, seed).id for seed in range(30)]
        names.add_annotation(session, "run", ids[0], "name", ids[1].hex[-4:])  # a name goes before the end of an id
        run = session.get_one(tables.Run, ids[2])
        for reference in (run.spec_hash[:8], run.spec_hash, f"sha256:{run.spec_hash[:10]}"):
            assert names.resolve_id(session, "run", reference) == ids[2]
        for reference in (str(ids[2]), ids[2].hex, ids[2].hex.upper(), ids[2].hex[-6:]):
            assert names.resolve_id(session, "run", reference) == ids[2]
        assert names.resolve_id(session, "run", ids[1].hex[-4:]) == ids[0]
        data = rows.dataset(session)
        assert names.resolve_id(session, "dataset", data.identity[:7]) == data.id


def test_what_fits_several_things_is_refused_with_their_names(database: Database, rows: Any) -> None:
    with database.write() as session:
        ids = [rows.run(session, seed).id for seed in range(40)]
        ends: dict[str, list[UUID]] = {}
        for id in ids:
            ends.setdefault(id.hex[-2:], []).append(id)
        end, shared = next((end, group) for end, group in ends.items() if len(group) > 1)
        names.add_annotation(session, "run", shared[0], "name", "clear")
        with pytest.raises(BadInputError, match=rf"'{end}' is ambiguous: .*clear \(\w+\)"):
            names.resolve_id(session, "run", end)


def test_of_one_name_twice_on_a_machine_the_ids_in_brackets_are_accepted(database: Database, rows: Any) -> None:
    with database.write() as session:
        ids = [rows.run(session, seed).id for seed in range(2)]
        for id, name in zip(ids, ("same", "other"), strict=True):
            names.add_annotation(session, "run", id, "name", name)
        session.execute(text("UPDATE annotation SET value = 'same'"))  # as a merge brings it
        with pytest.raises(BadInputError, match="ambiguous") as caught:
            names.resolve_id(session, "run", "same")
        assert caught.value.hint == "give one of the ids in brackets"
        listed = re.findall(r"\((\w+)\)", str(caught.value.message))
        assert {names.resolve_id(session, "run", each) for each in listed} == set(ids)


def test_a_name_given_on_two_machines_is_told_apart_by_the_host(database: Database, rows: Any) -> None:
    with database.write() as session:
        one, two = rows.run(session, 1).id, rows.run(session, 2).id
        names.add_annotation(session, "run", one, "name", "best")
        from_host(session, "box1", one)
        names.add_annotation(session, "run", two, "name", "better")
        session.execute(text("UPDATE annotation SET value = 'best', host = 'box2' WHERE value = 'better'"))
        assert names.read_noun_names(session, "run") == {one: "best@box1", two: "best@box2"}
        assert names.resolve_id(session, "run", "best@box2") == two
        with pytest.raises(BadInputError, match="best@box1"):
            names.resolve_id(session, "run", "best")
        from_host(session, "box1", two)  # two registries of one machine
        shown = {id: f"best@{id.hex[-6:]}" for id in (one, two)}
        assert names.read_noun_names(session, "run") == names.read_names_of(session, "run", shown) == shown
        assert {id: names.resolve_id(session, "run", name) for id, name in shown.items()} == {one: one, two: two}


def test_what_is_not_there_brings_names_that_come_near(database: Database, rows: Any) -> None:
    with database.write() as session:
        names.add_annotation(session, "run", rows.run(session).id, "name", "probe-lichess")
        with pytest.raises(NotFoundError, match=r"run 'probe-lichss' was not found \(did you mean probe-lichess\?\)"):
            names.resolve_id(session, "run", "probe-lichss")
        with pytest.raises(NotFoundError, match=r"run 'zzz' was not found \(chessreg runs list\)"):
            names.resolve_id(session, "run", "zzz")


def test_a_run_that_made_no_probe_is_told_as_such(database: Database, rows: Any) -> None:
    with database.write() as session:
        names.add_annotation(session, "run", rows.run(session).id, "name", "match")
        with pytest.raises(NotFoundError, match=r"probe 'match' was not found: the run of this name made none"):
            names.resolve_id(session, "probe", "match")


def test_a_probe_goes_by_the_name_of_its_run(database: Database, rows: Any) -> None:
    with database.write() as session:
        run, other, data = rows.run(session, 1), rows.run(session, 2), rows.dataset(session)
        session.add(
            tables.ProbeRecord(
                run_id=run.id, unit=3, artifact=data.artifact, checkpoint_id=make_id(), hook_point="h",
                layer=3, label="piece", positions="dots", classes=13, train_games=1, train_positions=1, epochs=1.0,
                norm=1.0, detail={},
            )
        )  # fmt: skip
        names.add_annotation(session, "run", run.id, "name", "pieces")
        names.add_annotation(session, "run", other.id, "name", "games")
        assert (
            names.resolve_id(session, "probe", "pieces")
            == names.resolve_id(session, "probe", run.id.hex[-6:])
            == run.id
        )
        with pytest.raises(NotFoundError):
            names.resolve_id(session, "probe", "games")
