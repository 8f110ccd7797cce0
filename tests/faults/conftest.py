"""The examples of all kinds run here, including those that read positions."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def pristine_world(solver_world: Path) -> Path:
    return solver_world
