"""Encodings: how chess is written for a model, and where in what is written a board is looked at.

To add one: a file here that registers an object which fulfils `base.Encoding`; tests/encodings holds it to the
contract."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from chessreg import plugins
from chessreg.encodings.base import Alignment, Encoding, Sites, Tokens
from chessreg.encodings.fen77 import Fen77
from chessreg.encodings.pgn_char import PgnChar
from chessreg.encodings.prompts import PREFIX, PromptEncoding
from chessreg.encodings.uci_square import davis, lcb
from chessreg.errors import ChessregError, NotFoundError
from chessreg.named import Registry, clipped

__all__ = [
    "Alignment",
    "Encoding",
    "Sites",
    "Tokens",
    "get_encoding",
    "get_phase_number",
    "get_phase_site",
    "list_encodings",
    "register_encoding",
]

_encodings: Registry[Encoding] = Registry("encoding")
_broken: list[str] = []  # why files here cannot be loaded


def register_encoding(made: Encoding) -> None:
    """Make an encoding known by its name. ValueError when the name is taken."""
    _encodings.register(made.name, made)


def list_encodings() -> list[str]:
    """All registered names, in the order of their registration."""
    return _encodings.names()


def get_encoding(name: str, folder: Path | None = None) -> Encoding:
    """The encoding of this name. A prompt's is read from the `folder` of its checkpoint.

    NotFoundError lists those that there are, or says that the folder is missing or a file here broken.
    """
    if name not in _encodings and not name.startswith(PREFIX) and _broken:
        raise NotFoundError(f"there is no encoding {name!r}", "; ".join(_broken))
    if not name.startswith(PREFIX):
        return _encodings[name]
    if folder is None:
        raise NotFoundError(
            f"{name} is the encoding of a checkpoint with a tokenizer of its own", "only that checkpoint is asked so"
        )
    return PromptEncoding.load(folder, name)


def get_phase_number(name: str) -> int:
    """The number of a phase that some encoding calls so (each name has one number). NotFoundError lists the names."""
    known = {phase: number for made in _encodings.values() for number, phase in enumerate(made.phases)}
    if name not in known:
        raise NotFoundError(f"there is no phase {clipped(name)!r}", f"there are {', '.join(known)}")
    return known[name]


def get_phase_site(written: Encoding, phase: int) -> str:
    """The name of the sites of a phase: where the encoding has such sites their own, as white-origins."""
    name = written.phases[phase]
    return f"{name}s" if f"{name}s" in written.site_names else name


for _made in (PgnChar(), davis, lcb, Fen77()):
    register_encoding(_made)
for _file in pkgutil.iter_modules(__path__):  # those added later register themselves
    try:
        plugins.own(f"{__name__}.{_file.name}")
    except ChessregError as error:
        _broken.append(error.message)
