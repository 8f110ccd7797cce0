"""The registry for the screens: used off the event loop only, and never written with --read-only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.orm import Session as SqlSession

from chessreg.errors import RegistryError
from chessreg.registry.database import Database
from chessreg.registry.place import RegistryPlace
from chessreg.session import Session
from store import Store
from tui.database_worker import require_off_loop


class OffLoopDatabase(Database):
    """A Database that raises OnEventLoopError on the event loop's thread, and RegistryError if its file was deleted.

    SQLite itself continues to read a deleted file that is open.
    """

    def require_file(self) -> None:
        if self.place.path is not None and not self.place.path.exists():
            raise RegistryError(f"the registry {self.place.path} was deleted", "restore a copy, or quit")

    @contextmanager
    def read(self) -> Iterator[SqlSession]:
        require_off_loop()
        self.require_file()
        with super().read() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[SqlSession]:
        require_off_loop()
        self.require_file()
        with super().write() as session:
            yield session


def open_tui_session(place: RegistryPlace, store_path: Path, read_only: bool = False, create: bool = True) -> Session:
    """Open the registry and the store. With `create`, missing ones are created, unless `read_only`.

    Raises the errors of Database.open and Store.
    """
    require_off_loop()
    database = OffLoopDatabase.open(place, create=create and not read_only)
    database.read_only = read_only
    try:
        if read_only:
            store = Store(store_path, read_only=True)
        else:
            store = Store.create(store_path) if create else Store.open_existing(store_path)
    except BaseException:
        database.close()
        raise
    return Session(database, store)
