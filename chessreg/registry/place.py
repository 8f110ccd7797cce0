"""The location of a registry and of its store."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote_to_bytes

from chessreg.errors import BadInputError
from chessreg.folders import expand_path, get_recordable_path

PROJECT_FOLDER = ".chessreg"
REGISTRY_FILE = "registry.db"
POSTGRESQL_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
MAX_PATH_BYTES = 504  # SQLite's limit of 512 minus `-journal`


@dataclass(frozen=True)
class RegistryPlace:
    """The location of a registry.

    `reference` identifies it in another call or process (`resolve_place` reads it): the absolute path of the SQLite
    file, or the URL of a PostgreSQL database including its password. `path` is the SQLite file, None for PostgreSQL.
    """

    reference: str = field(repr=False)
    path: Path | None = None

    @property
    def dialect(self) -> str:
        return "postgresql" if self.path is None else "sqlite"

    @property
    def results(self) -> Path | None:
        """The folder of Parquet files with the results of complete runs (`queries.mirror`). None for PostgreSQL."""
        return None if self.path is None else self.path.absolute().with_suffix(".results")

    @cached_property
    def is_on_network(self) -> bool:
        """Whether the file is on a network file system."""
        from chessreg.registry import sqlite

        return self.path is not None and sqlite.find_network_file_system(self.path) is not None

    @property
    def masked_location(self) -> str:
        """The path, or the URL with its password masked, for messages."""
        if self.path is not None:
            return str(self.path)
        from chessreg.masking import mask

        return mask(self.reference)

    def __repr__(self) -> str:
        return f"Place({self.masked_location})"


def resolve_place(reference: str | Path | RegistryPlace | None = None) -> RegistryPlace:
    """Return the location of a registry: `reference`, else CHESSREG_REGISTRY, else ./.chessreg/registry.db.

    A plain path means SQLite. A folder, or a path without a suffix that does not exist, means the registry.db in it or
    in its .chessreg. In a URL (sqlite:///PATH) the path is percent-encoded.

    Raises BadInputError for an empty reference, a path that is not UTF-8 or is too long for SQLite, a URL of another
    database system or with SQLite settings, and an in-memory database, which other connections cannot share.
    """
    if isinstance(reference, RegistryPlace):
        return reference
    if isinstance(reference, Path):
        return _make_file_place(reference)
    text = (
        (os.environ.get("CHESSREG_REGISTRY") or f"{PROJECT_FOLDER}/{REGISTRY_FILE}") if reference is None else reference
    )
    if not text:
        raise BadInputError("the registry's name is empty", "leave --registry out for ./.chessreg/")
    scheme, separator, location = text.partition("://")
    if text == ":memory:" or (not separator and text.startswith("file:")):
        raise _not_a_file_error(text)
    if not separator:
        return _make_file_place(Path(text))
    if scheme == "sqlite":
        path, query, _ = location.removeprefix("/").partition("?")
        if not path or path == ":memory:":
            raise _not_a_file_error(text)
        if query:
            hint = "leave them out; write a ? in the path as %3F"
            raise BadInputError(f"{text} has SQLite settings after a ?, which chessreg does not accept", hint)
        return _make_file_place(Path(os.fsdecode(unquote_to_bytes(os.fsencode(path)))))
    if scheme in POSTGRESQL_SCHEMES:
        return RegistryPlace(f"postgresql+psycopg://{location}")
    from chessreg.masking import mask

    raise BadInputError(
        f"{mask(text)} is not a registry: registries are in SQLite or PostgreSQL",
        "give a path, sqlite:////path/registry.db or postgresql://user@host/database",
    )


def resolve_store_path(path: str | Path | None, registry: RegistryPlace) -> Path:
    """Return the store's folder: `path`, else CHESSREG_STORE, else store/ next to a SQLite registry or in ./.chessreg.

    Raises BadInputError for a path that is not UTF-8.
    """
    parent_folder = Path(PROJECT_FOLDER) if registry.path is None else registry.path.parent
    return get_recordable_path(
        expand_path(path or os.environ.get("CHESSREG_STORE") or parent_folder / "store").absolute()
    )


def _make_file_place(path: Path) -> RegistryPlace:
    """Return the place of the registry file that `path` names: a file, a folder with one, or a project folder.

    Raises BadInputError if the path is too long for SQLite.
    """
    path = get_recordable_path(expand_path(path).absolute())
    if path.is_dir() or not (path.suffix or path.exists()):
        project_file = path / PROJECT_FOLDER / REGISTRY_FILE
        path = project_file if project_file.is_file() and not (path / REGISTRY_FILE).is_file() else path / REGISTRY_FILE
    length = len(os.fsencode(os.path.realpath(path)))
    if length > MAX_PATH_BYTES:
        raise BadInputError(
            f"the registry's path has {length} bytes, and SQLite opens at most {MAX_PATH_BYTES}: {path}",
            "use a folder with a shorter path, or choose one with --registry",
        )
    return RegistryPlace(str(path), path)


def _not_a_file_error(text: str) -> BadInputError:
    return BadInputError(f"{text} does not name a file; chessreg keeps registries in files", "give a file's path")
