"""The wheel carries all that the commands read: a registry is made, upgraded and asked far from any checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unpacked wheel."""
    pytest.importorskip("hatchling", reason="no wheel: hatchling is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_a_wheel_upgrades_a_registry_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    own = os.environ | {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}  # its files stay as unpacked
    for line in ("db upgrade --json", "db status --json", "init", "query --list", "tui --help"):
        done = subprocess.run(
            [sys.executable, "-m", "chessreg.cli", *line.split()], cwd=tmp_path, env=own, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    where = subprocess.run(
        [sys.executable, "-c", "from chessreg.registry import migrations; print(*migrations.find_folders())"],
        cwd=tmp_path,
        env=own,
        capture_output=True,
        text=True,
        check=True,
    )
    assert where.stdout.split() == [str(installed / "chessreg" / name) for name in ("_alembic", "_migrations")]


def test_a_wheel_has_every_file_of_the_packages_and_the_revisions(installed: Path) -> None:
    places = {name: name for name in ("chessreg", "store", "tui")}
    places |= {"alembic": "chessreg/_alembic", "migrations": "chessreg/_migrations"}
    here = {
        Path(place) / path.relative_to(ROOT / folder): path
        for folder, place in places.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.parent != ROOT / "tui" / "pictures"
    }
    there = {path.relative_to(installed): path for path in installed.rglob("*") if path.is_file()}
    assert {path.suffix for path in here} >= {".sql", ".toml", ".mako", ".safetensors", ".zst"}
    assert {path for path in there if not path.parts[0].endswith(".dist-info")} == set(here)
    assert all(there[path].read_bytes() == here[path].read_bytes() for path in here)


def test_a_wheel_brings_no_package_that_hides_another(installed: Path) -> None:
    top = {path.name for path in installed.iterdir() if path.is_dir() and not path.name.endswith(".dist-info")}
    assert top == {"chessreg", "store", "tui"}
