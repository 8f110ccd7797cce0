"""Where a registry is, and its store."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from chessreg.errors import BadInputError
from chessreg.registry.provenance import mask

HOME = ".chessreg"
FILE = "registry.db"
POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")


@dataclass(frozen=True)
class Place:
    """A registry's place. `url` is what SQLAlchemy takes (with the password); `path` is SQLite's file."""

    url: str = field(repr=False)
    path: Path | None = None

    @property
    def dialect(self) -> str:
        return "postgresql" if self.path is None else "sqlite"

    @cached_property
    def on_network(self) -> bool:
        """Whether the file lies on a network file system."""
        from chessreg.registry import sqlite

        return self.path is not None and sqlite.network_file_system(self.path) is not None

    @property
    def masked(self) -> str:
        """The path, or the URL with its password masked: for messages."""
        return mask(self.url) if self.path is None else str(self.path)

    def __repr__(self) -> str:
        return f"Place({self.masked})"


def place_of(reference: str | Path | None = None) -> Place:
    """A registry's place: as given, or CHESSREG_REGISTRY (unset where it is empty), or ./.chessreg/registry.db.

    A bare path means SQLite; that of a folder, also of one that is not there yet (a name without a suffix), means the
    registry.db in it, or in its .chessreg.

    Raises BadInputError for an empty name, a URL of another database system, and for SQLite in memory (readers have
    their own connection, so there is nothing that they could share).
    """
    text = str(os.environ.get("CHESSREG_REGISTRY") or f"{HOME}/{FILE}" if reference is None else reference)
    if not text:
        raise BadInputError("the registry's name is empty", "leave --registry out for ./.chessreg/")
    if ":memory:" in text or "mode=memory" in text:
        raise BadInputError(f"{text} would be a registry in memory; chessreg keeps them in files", "give a file's path")
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _file(Path(text))
    if scheme == "sqlite":
        path = unquote(rest.removeprefix("/").partition("?")[0])
        if not path:
            raise BadInputError(f"{text} names no file", "for example sqlite:////home/me/registry.db")
        return _file(Path(path))
    if scheme in POSTGRESQL:
        return Place(f"postgresql+psycopg://{rest}")
    raise BadInputError(
        f"{mask(text)} is no registry: chessreg keeps them in SQLite or PostgreSQL",
        "give a path, sqlite:////path/registry.db or postgresql://user@host/database",
    )


def store_path_of(path: str | Path | None, registry: Place) -> Path:
    """The store's folder: as given, or CHESSREG_STORE, or store/ beside a SQLite registry, or ./.chessreg/store."""
    beside = Path(HOME) if registry.path is None else registry.path.parent
    return Path(path or os.environ.get("CHESSREG_STORE") or beside / "store").expanduser().absolute()


def _file(path: Path) -> Place:
    path = path.expanduser().absolute()
    if path.is_dir() or not (path.suffix or path.exists()):
        within = path / HOME / FILE
        path = within if within.is_file() and not (path / FILE).is_file() else path / FILE
    return Place(f"sqlite:///{path}", path)
