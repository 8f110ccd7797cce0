"""Every executor that works here. To add one: a function that makes it, and its name in MAKERS."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chessreg.jobs.executors import Executor


def make_local(request: pytest.FixtureRequest) -> Callable[[], Executor]:
    from chessreg.jobs.executors.local import LocalExecutor

    return lambda: LocalExecutor(read=list, grace=0.5)


MAKERS = {"local": make_local}


@pytest.fixture(params=MAKERS)
def make_executor(request: pytest.FixtureRequest) -> Callable[[], Executor]:
    """Makes one executor object after another over the same machines, as supervisors that follow each other do."""
    return MAKERS[request.param](request)
