"""Fixtures: a paper of toy runs, which needs neither a model nor an engine."""

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
    """Return a function that counts the moves of a toy run that gave check."""

    def count(made, step):
        from uuid import UUID

        run_id = UUID(made.run_id(step))
        with session.database.read() as sql:
            return sum(sql.scalars(select(tables.Score.correct).where(tables.Score.run_id == run_id)))

    return count


@pytest.fixture
def toy_paper(checks):
    """Return a paper of two runs, a third whose settings depend on their results, and an independent fourth."""

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
    """Return a function that makes a callback which sends SIGINT at the nth progress report with a word."""
    seen = []

    def at(number, word=""):
        def report(fraction, text):
            if word in text:
                seen.append(fraction)
                if len(seen) == number:
                    os.kill(os.getpid(), signal.SIGINT)

        return report

    return at
