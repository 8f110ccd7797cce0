"""The faults that doctor finds in registry and store, and their state after a fix."""

from __future__ import annotations

import json
import shutil

from sqlalchemy import delete, func, select

from chessreg import doctor as health
from chessreg.cli.root import run_command_line
from chessreg.entities.merge import merge_source
from chessreg.registry import migrations, tables
from chessreg.registry.place import resolve_place
from chessreg.registry.tables import ArtifactState
from chessreg.runs import transfer
from chessreg.session import open_session
from store.places import open_place


def found(session) -> list[health.Problem]:
    return list(health.find_problems(session.database, session.store, session.database.reference, digests=True))


def count(session, table) -> int:
    with session.database.read() as sql:
        return sql.scalar(select(func.count()).select_from(table)) or 0


def test_a_registry_that_is_well_has_nothing_to_find(session, run_toy):
    run_toy(positions=3)
    assert found(session) == []


def test_results_that_a_restored_backup_does_not_know_come_back_once(session, run_toy, tmp_path):
    run_toy(positions=3)
    path = resolve_place(session.database.reference).path
    migrations.back_up_registry(session.database.reference, tmp_path / "backup.db")
    run_toy(positions=4, seed=1)
    session.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup.db", path)
    with open_session(str(path), tmp_path / "store") as again:
        assert count(again, tables.Score) == 3
        (problem,) = found(again)
        assert "the registry lacks" in problem.detail
        assert problem.hint == "chessreg doctor --fix"
        assert health.apply_fix(problem).startswith("fixed")
        assert found(again) == []
        assert (count(again, tables.Score), count(again, tables.Run), count(again, tables.Conflict)) == (7, 2, 0)


def test_artifacts_that_were_begun_are_completed_if_their_bytes_are_here(session, tmp_path):
    (tmp_path / "words.txt").write_text("a chess game")
    here, away = session.store.add(tmp_path / "words.txt", "file").digest, "ab" * 32
    with session.database.write() as sql:
        for digest in (here, away):
            row = {
                "kind": "file",
                "bytes": 12,
                "state": ArtifactState.STAGING,
                "created_at": tables.types.get_utc_now(),
            }
            sql.add(tables.Artifact(digest=digest, **row))
    problems = {problem.detail.split()[1]: problem for problem in found(session)}
    assert problems.keys() == {here[:12], away[:12]}
    assert health.apply_fix(problems[here[:12]]).startswith("fixed")
    assert health.apply_fix(problems[away[:12]]) == "not by itself"
    (left,) = found(session)
    assert "its bytes are not in the store" in left.detail
    with session.database.write() as sql:
        assert sql.get_one(tables.Artifact, here).state is ArtifactState.COMPLETE
        sql.execute(delete(tables.Artifact).where(tables.Artifact.digest == away))
    assert found(session) == []


def test_activations_that_a_merge_did_not_bring_are_not_here_and_not_broken(session, world, capsys):
    """The other registry was made on this very machine, so that its runs' attempts were here."""
    merge_source(session.database, session.store, str(world / "registry.db"))
    made = transfer.find_items(session.database, ["reference-test"], inputs=False)
    arrays = [item for item in made if item.array is not None]
    short = session.id("run", "reference-test").hex[-6:]
    words = ["--registry", session.database.reference, "--store", str(session.store.root), "doctor", "--json"]
    before = session.database.data_version()
    for more in ([], ["--fix"]):
        run_command_line([*words, *more])
        checks = {check["check"]: check for check in json.loads(capsys.readouterr().out)}
        assert (checks["activations"]["state"], checks["work"]["state"]) == ("optional", "ok")
        assert "are not in the store: the runs were merged, which copies rows" in checks["activations"]["detail"]
        assert "files" not in checks
    assert session.database.data_version() == before
    [away] = health.find_remote_bytes(session.database, session.store)
    assert short in away.detail
    transfer.pull_items(session.database, session.store, arrays, open_place(str(world / "store")))
    assert short not in "".join(each.detail for each in health.find_remote_bytes(session.database, session.store))
    assert list(health.find_missing_files(session.database, session.store)) == []
    shutil.rmtree(arrays[0].path(session.store))
    [gone] = health.find_missing_files(session.database, session.store)
    assert gone.detail == f"activations of run {short} is not in {session.store.root}"
