"""A registry and a paper of toy runs, that needs neither model nor engine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from sqlalchemy import select

from chessreg.papers.plan import Paper, Request, Sheet, Step
from chessreg.papers.work import Work
from chessreg.registry import tables

TOY = str(Path(__file__).parent.parent / "kinds" / "toy_kind.py")


@pytest.fixture
def checks(session):
    """How many of a toy run's moves gave check."""

    def count(made, step):
        from uuid import UUID

        run_id = UUID(made.run_id(step))
        with session.database.read() as sql:
            return sum(sql.scalars(select(tables.Score.correct).where(tables.Score.run_id == run_id)))

    return count


@pytest.fixture
def toy_paper(checks):
    """Two runs, and a third whose settings follow from their results; a fourth that anybody may do first."""

    def steps(request: Request) -> list[Step]:
        return [
            Step(
                "best", TOY, lambda made: {"positions": 3, "seed": int(checks(made, "b") > checks(made, "a"))},
                "the table", ("a", "b"), units=3, rows={"score": 3},
            ),
            Step("a", TOY, {"positions": 5, "seed": 1}, "the table"),
            Step("b", TOY, {"positions": 6, "seed": 2}, "the table"),
            Step("slow", TOY, {"positions": 4, "seed": 7, "pause": 0.0}, "nothing"),
        ]  # fmt: skip

    sheet = Sheet("accuracy", "Table 1: nothing in it", "probe accuracy by layer", plots=("probe accuracy by layer",))
    return Paper("toy", "A paper about toys", steps, (sheet,))


@pytest.fixture
def work(session, toy_paper, monkeypatch) -> Work:
    monkeypatch.setattr("chessreg.papers.work.compute_request_digest", lambda session, asked: "abcdef")
    return Work(session, toy_paper, Request("model", "games", "games", 8, 64, "small"))


@pytest.fixture
def interrupt_at():
    """Ask the process to stop, as Ctrl-C does, at the nth progress report."""
    seen = []

    def at(number):
        def report(fraction, text):
            seen.append(fraction)
            if len(seen) == number:
                os.kill(os.getpid(), signal.SIGINT)

        return report

    return at
