"""Lineage of what real runs made: both ways, and what an invalid ancestor makes stale."""

from __future__ import annotations

import shutil

import pytest

from chessreg.errors import NotFoundError
from chessreg.registry import lineage, names
from chessreg.session import open_session


@pytest.fixture
def database(world, tmp_path):
    shutil.copytree(world, tmp_path / "world")
    with open_session(str(tmp_path / "world" / "registry.db"), tmp_path / "world" / "store") as session:
        yield session.database


def named(branch: lineage.Branch) -> set[str]:
    """The names of all nodes below a branch."""
    return {b.facts["name"] for b in branch.branches} | {n for b in branch.branches for n in named(b)}


def test_a_probe_comes_from_its_cache_its_model_and_its_games(database):
    with database.read() as session:
        tree = lineage.tree(session, lineage.find(session, "reference-board"), up=True)
    assert named(tree) == {"reference-fit", "reference", "sample"}
    cache = next(b for b in tree.branches if b.field == "cache")
    assert cache.facts["kind"] == "cache"


def test_games_go_into_all_that_was_made_from_them(database):
    with database.read() as session:
        tree = lineage.tree(session, lineage.find(session, "sample"), up=False)
    assert named(tree) == {"reference-fit", "reference-test", "reference-board", "skill"}
    document = tree.as_dict()
    assert document["noun"] == "dataset"
    assert {branch["kind"] for branch in document["branches"]} >= {"cache"}


def test_what_rests_on_an_invalid_cache_is_stale_until_it_is_valid_again(database):
    with database.write() as session:
        cache = names.resolve(session, "run", "reference-fit")
        names.say(session, "run", cache, "invalid", "wrong games")
    with database.read() as session:
        stale = lineage.stale(session)
        called = names.names(session, "run")
        assert {called[id] for id in stale} == {"reference-board", "skill"}
        up = lineage.tree(session, lineage.find(session, "skill"), up=True)
        assert up.facts["state"] == "stale"
        assert next(b for b in up.branches if b.field == "cache").facts["state"] == "invalid"
    with database.write() as session:
        names.say(session, "run", cache, "invalid", "wrong games", withdrawn=True)
    with database.read() as session:
        assert lineage.stale(session) == {}


def test_an_invalid_checkpoint_or_dataset_makes_all_that_read_it_stale(database):
    for noun, name in (("checkpoint", "reference"), ("dataset", "sample")):
        with database.write() as session:
            target = names.resolve(session, noun, name)
            names.say(session, noun, target, "invalid", "mislabelled")
        with database.read() as session:
            assert len(lineage.stale(session)) == 4
        with database.write() as session:
            names.say(session, noun, target, "invalid", "mislabelled", withdrawn=True)


def test_a_name_that_nothing_has_says_what_comes_near(database):
    with database.read() as session, pytest.raises(NotFoundError, match="no run, checkpoint or dataset") as error:
        lineage.find(session, "reference-bored")
    assert "reference-board" in error.value.hint


def test_tables_say_how_many_of_their_runs_are_stale(database):
    from chessreg.queries import run_query

    fresh = run_query(database, "probe accuracy by layer")
    assert not any("stale" in note for note in fresh.notes)
    with database.write() as session:
        names.say(session, "run", names.resolve(session, "run", "reference-fit"), "invalid", "wrong games")
    after = run_query(database, "probe accuracy by layer")
    assert len(after) == len(fresh)
    assert any("1 of these runs are stale" in note for note in after.notes)
