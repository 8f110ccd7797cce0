"""Encodings: how chess is written as tokens for a model, and the board at each token.

To add one, add a file to this package that registers an object with the interface `base.Encoding`. The conformance
tests in tests/encodings then check it.
"""

from __future__ import annotations

import pkgutil
from pathlib import Path

from chessreg import plugins
from chessreg.encodings.base import Alignment, Encoding, Sites, Tokens
from chessreg.encodings.fen77 import Fen77
from chessreg.encodings.move_tokens import MOVES_FILE, MoveTokens
from chessreg.encodings.move_tokens import PREFIX as MOVES
from chessreg.encodings.pgn_char import PgnChar
from chessreg.encodings.prompts import ENCODING_FILES, PROMPT_FILE, PromptEncoding
from chessreg.encodings.prompts import PREFIX as PROMPT
from chessreg.encodings.uci_square import davis, lcb
from chessreg.errors import ChessregError, NotFoundError
from chessreg.named import NameRegistry, clip_text

__all__ = [
    "Alignment",
    "Encoding",
    "Sites",
    "Tokens",
    "get_encoding",
    "get_phase_number",
    "get_phase_site",
    "is_stored_encoding",
    "list_encoding_files",
    "list_encodings",
    "register_encoding",
]

_encodings: NameRegistry[Encoding] = NameRegistry("encoding")
_load_errors: list[str] = []  # errors of files of this package that cannot be loaded


def register_encoding(encoding: Encoding) -> None:
    """Register an encoding under its name. Raises ValueError if the name is taken."""
    _encodings.register(encoding.name, encoding)


def list_encodings() -> list[str]:
    """Return the names of all registered encodings, in the order of registration."""
    return _encodings.names()


def get_encoding(name: str, folder: Path | None = None) -> Encoding:
    """Return the encoding with this name. An encoding of one checkpoint (`prompt-…`, `moves-…`) is read from `folder`,
    the checkpoint's folder.

    Raises NotFoundError for an unknown name (the message lists the known ones, or the file of this package that failed
    to load) and for an encoding of one checkpoint without `folder`.
    """
    if not is_stored_encoding(name):
        if name not in _encodings and _load_errors:
            raise NotFoundError(f"encoding {name!r} does not exist", "; ".join(_load_errors))
        return _encodings[name]
    if folder is None:
        raise NotFoundError(f"{name} is the encoding of one checkpoint with its own tokenizer", "name that checkpoint")
    return PromptEncoding.load(folder, name) if name.startswith(PROMPT) else MoveTokens.load(folder, name)


def is_stored_encoding(name: str) -> bool:
    """Return whether an encoding belongs to one checkpoint, whose folder contains its files."""
    return name.startswith((PROMPT, MOVES))


def list_encoding_files(folder: Path) -> list[str]:
    """Return the files of an encoding that a checkpoint's folder contains; none for a registered encoding."""
    if (folder / PROMPT_FILE).is_file():
        return list(ENCODING_FILES)
    return [MOVES_FILE] if (folder / MOVES_FILE).is_file() else []


def get_phase_number(name: str) -> int:
    """Return the number of the phase with this name; a name has the same number in every encoding that uses it.

    Raises NotFoundError for an unknown name.
    """
    numbers = {phase: number for encoding in _encodings.values() for number, phase in enumerate(encoding.phases)}
    if name not in numbers:
        raise NotFoundError(f"phase {clip_text(name)!r} does not exist", f"known: {', '.join(numbers)}")
    return numbers[name]


def get_phase_site(encoding: Encoding, phase: int) -> str:
    """Return the name of the sites of a phase: its own sites if the encoding has them (`white-origins`), else the
    phase's name."""
    name = encoding.phases[phase]
    return f"{name}s" if f"{name}s" in encoding.site_names else name


for _encoding in (PgnChar(), davis, lcb, Fen77()):
    register_encoding(_encoding)
for _file in pkgutil.iter_modules(__path__):  # files added later register themselves
    try:
        plugins.load_custom_module(f"{__name__}.{_file.name}")
    except ChessregError as error:
        _load_errors.append(error.message)
