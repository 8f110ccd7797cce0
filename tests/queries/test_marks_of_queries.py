"""The mark of `query --list`: which queries a registry has runs for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chessreg.queries.ask import list_answerable_titles
from chessreg.queries.catalogue import list_entries
from chessreg.registry.database import Database

from ..postgres import postgres as postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, empty_registry, tmp_path):
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    if request.param == "sqlite":
        (tmp_path / "registry.db").write_bytes(empty_registry.read_bytes())
    else:
        url = str(request.getfixturevalue("postgres").migrated())
    with Database.open(url) as opened:
        yield opened


def test_a_condition_decides_together_with_the_kinds(database, make):
    probe = {"label": "piece", "source": "residual", "sae": None}
    make.run("probe", 1, spec=probe)
    make.run("decoding", 1, spec={"samples": 0})
    marked = list_answerable_titles(database, list_entries())
    assert {"accuracy by square", "best probe layers", "decoding modes"} <= marked
    unmarked = {"probe accuracy by source", "rating error by layer", "edit distance of answers", "elo by intervention"}
    assert not unmarked & marked
    make.run("probe", 1, spec=probe | {"source": "sae-latents"})
    make.run("decoding", 1, spec={"samples": 5})
    now = list_answerable_titles(database, list_entries())
    assert now - marked == {"probe accuracy by source", "edit distance of answers"}


def test_without_a_valid_condition_the_kinds_decide(database, make):
    make.run("decoding", 1, spec={"samples": 0})
    entries = [replace(entry, needs="no such column") for entry in list_entries() if entry.kinds == ("decoding",)]
    assert list_answerable_titles(database, entries) == {entry.title for entry in entries}


def test_an_imported_checkpoint_alone_gives_training_settings(database, make):
    assert list_answerable_titles(database, list_entries()) == frozenset()
    make.checkpoint("reference")
    assert list_answerable_titles(database, list_entries()) == {"training settings"}
