"""Where a registry is: a URL or a bare path, read once, and never shown with its password."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from chessreg.errors import BadInputError

HOME = ".chessreg"
FILE = "registry.db"
POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")
VALUE = r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s&]+)"
# Upper case only, or the word itself: `tokenizer=…` and `token = ids[0]` in a patch are code, not secrets.
SECRET = re.compile(rf"\b(\w*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY)\b|passw(?:or)?d\b(?==))(\s*[=:]\s*){VALUE}")
CREDENTIALS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^\s/:@]*):([^\s/@]+)@")


@dataclass(frozen=True)
class Place:
    """A registry's place. `url` is what SQLAlchemy takes (with the password); `path` is SQLite's file."""

    url: str = field(repr=False)
    path: Path | None = None

    @property
    def dialect(self) -> str:
        return "postgresql" if self.path is None else "sqlite"

    @property
    def shown(self) -> str:
        """The path, or the URL with its password masked: for messages."""
        return mask(self.url) if self.path is None else str(self.path)

    def __repr__(self) -> str:
        return f"Place({self.shown})"


def place_of(reference: str | Path | None = None) -> Place:
    """A registry's place: as given, or CHESSREG_REGISTRY, or ./.chessreg/registry.db. A bare path means SQLite; that of
    a folder, also of one that is not there yet (a name without a suffix), means the registry.db in it, or in its
    .chessreg.

    Raises BadInputError for a URL of another database system, and for SQLite in memory (readers have their own
    connection, so there is nothing that they could share).
    """
    text = str(reference or os.environ.get("CHESSREG_REGISTRY") or f"{HOME}/{FILE}")
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _file(Path(text))
    if scheme == "sqlite":
        path = unquote(rest.removeprefix("/").partition("?")[0])
        if path in ("", ":memory:"):
            raise BadInputError(f"{text} names no file", "for example sqlite:////home/me/registry.db")
        return _file(Path(path))
    if scheme in POSTGRESQL:
        return Place(f"postgresql+psycopg://{rest}")
    raise BadInputError(
        f"{mask(text)} is no registry: chessreg keeps them in SQLite or PostgreSQL",
        "give a path, sqlite:////path/registry.db or postgresql://user@host/database",
    )


def store_path_of(given: str | Path | None, registry: Place) -> Path:
    """The store's folder: as given, or CHESSREG_STORE, or store/ beside a SQLite registry, or ./.chessreg/store."""
    beside = Path(HOME) if registry.path is None else registry.path.parent
    return Path(given or os.environ.get("CHESSREG_STORE") or beside / "store").expanduser().absolute()


def _file(path: Path) -> Place:
    path = path.expanduser().absolute()
    if path.is_dir() or not (path.suffix or path.exists()):
        within = path / HOME / FILE
        path = within if within.is_file() and not (path / FILE).is_file() else path / FILE
    return Place(f"sqlite:///{path}", path)


def mask(text: str) -> str:
    """Text with passwords in URLs and values of *TOKEN, *SECRET, *PASSWORD replaced by ***.

    >>> mask("postgresql://ann:hunter2@box/chess")
    'postgresql://ann:***@box/chess'
    >>> mask("WANDB_TOKEN=abc --lr=1")
    'WANDB_TOKEN=*** --lr=1'
    """
    return SECRET.sub(r"\1\2***", CREDENTIALS.sub(r"\1:***@", text))
