"""Which jobs a reference means."""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy import update

from chessreg.errors import NotFoundError
from chessreg.registry import names, tables
from chessreg.registry.identity import new_id
from chessreg.scheduling import queue
from chessreg.scheduling.launch import Expected


def test_a_runs_name_goes_before_the_end_of_a_jobs_id(desk):
    desk.launch(desk.order(count=1, name="e4"), desk.order(count=2, name="other"))
    wanted, other = desk.jobs()
    ending = UUID(hex=other.id.hex[:-6] + "facade")
    with desk.session.database.write() as sql:
        sql.execute(update(tables.Job).where(tables.Job.id == other.id).values(id=ending))
        names.annotate(sql, "checkpoint", new_id(), "name", "fac-ade")

    with desk.session.database.read() as sql:
        assert [job.id for job in queue.find(sql, "e4")] == [wanted.id]
        assert [job.id for job in queue.find(sql, "facade")] == [ending]
        with pytest.raises(NotFoundError, match="no job 'ade'"):
            queue.find(sql, "ade")
    expected = Expected(desk.session.database, desk.session.store)
    assert expected._expected("run", "fac-ade") is not None
    assert expected._expected("checkpoint", "fac-ade") is None


def test_a_jobs_id_that_ends_as_a_run_is_called_is_not_cancelled(desk):
    desk.launch(desk.order(count=1, name="fac-ade"), desk.order(count=2))
    wanted, other = desk.jobs()
    with desk.session.database.write() as sql:
        ending = UUID(hex=other.id.hex[:-6] + "facade")
        sql.execute(update(tables.Job).where(tables.Job.id == other.id).values(id=ending))
        assert [job.id for job in queue.cancel(sql, queue.find(sql, "fac-ade"))] == [wanted.id]
