"""Lineage of real runs: in both directions, and the outputs that an invalid ancestor makes stale."""

from __future__ import annotations

import shutil

import pytest

from chessreg.entities.merge import MergeReport, merge_registry
from chessreg.errors import NotFoundError
from chessreg.registry import lineage, names, read, tables
from chessreg.registry.identity import make_id
from chessreg.runs.kind import find_kind as load_kind
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
        tree = lineage.build_tree(session, lineage.find_node(session, "reference-board"), up=True)
    assert named(tree) == {"reference-fit", "reference", "sample"}
    cache = next(b for b in tree.branches if b.field == "cache")
    assert cache.facts["kind"] == "cache"


def test_games_go_into_all_that_was_made_from_them(database):
    with database.read() as session:
        tree = lineage.build_tree(session, lineage.find_node(session, "sample"), up=False)
    assert named(tree) == {"reference-fit", "reference-test", "reference-board", "skill"}
    document = tree.as_dict()
    assert document["noun"] == "dataset"
    assert {branch["kind"] for branch in document["branches"]} >= {"cache"}


def test_a_lineage_names_the_files_and_engines(database):
    from chessreg.entities.lineage_tree import build_described_tree, iter_branches, list_details

    digest = "ab" * 32
    with database.write() as session:
        engine = tables.Engine(id=make_id(), name="Stockfish", version="17.1", binary_sha256=digest, options={})
        run_id = names.resolve_id(session, "run", "skill")
        match = tables.Match(
            run_id=run_id, number=0, player="m", engine_id=engine.id, opponent="stockfish:0", color="white",
            opening="standard", opening_seed=0, policy="legal", planned=1,
        )  # fmt: skip
        session.add_all([engine, match])
    with database.read() as session:
        tree = build_described_tree(session, lineage.find_node(session, "skill"), up=True)
        facts = {branch.node.noun: branch.facts for branch in iter_branches(tree)}
        report = session.get_one(tables.Dataset, names.resolve_id(session, "dataset", "sample")).report
    [file] = report["sources"]
    assert facts["dataset"]["files"] == [{"name": file["name"], "sha256": file["sha256"]}]
    assert list_details(facts["dataset"]) == [f"file {file['name']} sha256 {file['sha256'][:12]}"]
    assert list_details(tree.facts) == ["opponent Stockfish 17.1 sha256 abababababab"]


def test_what_rests_on_an_invalid_cache_is_stale_until_it_is_valid_again(database):
    with database.write() as session:
        cache = names.resolve_id(session, "run", "reference-fit")
        names.add_annotation(session, "run", cache, "invalid", "wrong games")
    with database.read() as session:
        stale = lineage.find_stale_runs(session)
        called = names.read_noun_names(session, "run")
        assert {called[id] for id in stale} == {"reference-board", "skill"}
        up = lineage.build_tree(session, lineage.find_node(session, "skill"), up=True)
        assert up.facts["state"] == "stale"
        assert next(b for b in up.branches if b.field == "cache").facts["state"] == "invalid"
    with database.write() as session:
        names.add_annotation(session, "run", cache, "invalid", "wrong games", withdrawn=True)
    with database.read() as session:
        assert lineage.find_stale_runs(session) == {}


def test_an_invalid_checkpoint_or_dataset_makes_all_that_read_it_stale(database):
    for noun, name in (("checkpoint", "reference"), ("dataset", "sample")):
        with database.write() as session:
            target = names.resolve_id(session, noun, name)
            names.add_annotation(session, noun, target, "invalid", "mislabelled")
        with database.read() as session:
            assert len(lineage.find_stale_runs(session)) == 4
        with database.write() as session:
            names.add_annotation(session, noun, target, "invalid", "mislabelled", withdrawn=True)


def test_a_name_that_nothing_has_says_what_comes_near(database):
    with database.read() as session, pytest.raises(NotFoundError, match="no run, checkpoint or dataset") as error:
        lineage.find_node(session, "reference-bored")
    assert "reference-board" in error.value.hint


def test_tables_say_how_many_of_their_runs_are_stale(database):
    from chessreg.queries import run_query

    fresh = run_query(database, "probe accuracy by layer")
    assert not any("stale" in note for note in fresh.notes)
    with database.write() as session:
        names.add_annotation(
            session, "run", names.resolve_id(session, "run", "reference-fit"), "invalid", "wrong games"
        )
    after = run_query(database, "probe accuracy by layer")
    assert len(after) == len(fresh)
    assert any("1 of these runs are stale" in note for note in after.notes)


TWO_PARTS = """
from typing import Annotated

from chessreg.kinds import Kind, Ref, Spec


class CountedSpec(Spec):
    datasets: Annotated[tuple[str, ...], Ref("dataset")]


class Counted(Kind):
    name, tables, spec = "counted", ("score",), CountedSpec

    def units(self, spec, inputs):
        return 1

    def run(self, task):
        for dataset in task.spec.datasets:
            games, part = task.inputs.dataset(dataset, "datasets")
            task.emit("score", 0, split=dataset[-20:], item=0, n=len(games.rows(part)), correct=0)
        task.done(0)
"""


def test_two_parts_of_one_dataset_are_two_inputs_and_come_along_with_a_merge(database, world_session, tmp_path):
    (tmp_path / "counted.py").write_text(TWO_PARTS)
    kind = load_kind(str(tmp_path / "counted.py"))
    spec = kind.spec(datasets=("sample:fit", "sample:test"))
    run_id = world_session.run(spec, kind=str(tmp_path / "counted.py")).run_id
    expected = {("datasets", world_session.inputs.reference("dataset", part)) for part in spec.datasets}
    merge_registry(database, world_session.database, MergeReport())
    for registry in (world_session.database, database):
        with registry.read() as session:
            assert {(row["name"], row["reference"]) for row in read.read_run(session, run_id.hex)["inputs"]} == expected
            (branch,) = lineage.build_tree(session, lineage.find_node(session, run_id.hex), up=True).branches
            assert (branch.field, branch.facts["name"]) == ("datasets", "sample")
