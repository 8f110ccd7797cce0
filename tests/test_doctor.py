"""What doctor finds in registry and store, and what becomes of it when that is mended."""

from __future__ import annotations

import shutil

from sqlalchemy import delete, func, select

from chessreg import doctor as health
from chessreg.registry import migrations, tables
from chessreg.registry.engines import place_of
from chessreg.registry.tables import ArtefactState
from chessreg.session import open_session


def found(session) -> list[health.Problem]:
    return list(health.problems(session.database, session.store, session.database.url, digests=True))


def count(session, table) -> int:
    with session.database.read() as sql:
        return sql.scalar(select(func.count()).select_from(table)) or 0


def test_a_registry_that_is_well_has_nothing_to_find(session, run_toy):
    run_toy(positions=3)
    assert found(session) == []


def test_results_that_a_restored_backup_does_not_know_come_back_once(session, run_toy, tmp_path):
    run_toy(positions=3)
    path = place_of(session.database.url).path
    migrations.backup(session.database.url, tmp_path / "backup.db")
    run_toy(positions=4, seed=1)
    session.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup.db", path)
    with open_session(str(path), tmp_path / "store") as again:
        assert count(again, tables.Score) == 3
        (problem,) = found(again)
        assert "does not know them" in problem.detail
        assert problem.mend == "chessreg doctor --fix"
        assert health.mend(problem).startswith("mended")
        assert found(again) == []
        assert (count(again, tables.Score), count(again, tables.Run), count(again, tables.Conflict)) == (7, 2, 0)


def test_artefacts_that_were_begun_are_completed_if_their_bytes_are_here(session, tmp_path):
    (tmp_path / "words.txt").write_text("a chess game")
    here, away = session.store.add(tmp_path / "words.txt", "file").digest, "ab" * 32
    with session.database.write() as sql:
        for digest in (here, away):
            row = {"kind": "file", "bytes": 12, "state": ArtefactState.STAGING, "created_at": tables.types.utc_now()}
            sql.add(tables.Artefact(digest=digest, **row))
    problems = {problem.detail.split()[1]: problem for problem in found(session)}
    assert problems.keys() == {here[:12], away[:12]}
    assert health.mend(problems[here[:12]]).startswith("mended")
    assert health.mend(problems[away[:12]]) == "not by itself"
    (left,) = found(session)
    assert "its bytes are not here" in left.detail
    with session.database.write() as sql:
        assert sql.get_one(tables.Artefact, here).state is ArtefactState.COMPLETE
        sql.execute(delete(tables.Artefact).where(tables.Artefact.digest == away))
    assert found(session) == []
