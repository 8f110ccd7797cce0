"""A registry, a store and the toy kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from chessreg.jobs.kind import Kind, kind
from chessreg.session import Session, open_session

TOY = str(Path(__file__).parent.parent / "kinds" / "toy_kind.py")


@pytest.fixture
def session(tmp_path: Path):
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def toy() -> Kind:
    return kind(TOY)


@pytest.fixture
def run_toy(session: Session, toy: Kind):
    """Run the toy with these settings."""
    return lambda **settings: session.run(toy.spec(**settings), kind=TOY)
