"""Registries of named objects: encodings, labels, policies, formats, kinds."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any, Never, TypeVar

from chessreg.errors import BadInputError, NotFoundError

# Names that users give to entities, parts of datasets, outputs, kinds. They become parts of paths and commands.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class NameRegistry(dict[str, T]):
    """A dict that refuses a second value for a name, keeps the order of registration, and suggests names for an unknown
    one.

    >>> rules: NameRegistry[int] = NameRegistry("scale rule")
    >>> rules.register("single", 1)
    1
    >>> rules["singel"]
    Traceback (most recent call last):
    chessreg.errors.NotFoundError: scale rule 'singel' does not exist (did you mean single?)
    """

    def __init__(self, noun: str, example: str = "") -> None:
        """noun: the word for one object in messages. example: a name with arguments, if names have arguments."""
        super().__init__()
        self.noun, self.example = noun, example

    def __setitem__(self, name: str, value: T) -> None:
        """Raises ValueError if the name is taken."""
        if name in self:
            raise ValueError(f"{self.noun} {name!r} is registered already")
        super().__setitem__(name, value)

    def register(self, name: str, value: T) -> T:
        """Register a value under this name, and return it. Raises ValueError if the name is taken."""
        self[name] = value
        return value

    def named(self, name: str) -> Callable[[F], F]:
        """`register` as a decorator of a function or class."""

        def decorate(function: F) -> F:
            self[name] = function  # type: ignore[assignment]
            return function

        return decorate

    def names(self) -> list[str]:
        """Return all names, in the order of their registration."""
        return list(self)

    def __missing__(self, name: str) -> Never:
        """Raises NotFoundError, which suggests similar names or lists all."""
        suggestions = difflib.get_close_matches(name, self, n=3)
        hint = f"did you mean {' or '.join(suggestions)}?" if suggestions else f"there are {', '.join(self) or 'none'}"
        example = f"; for example {self.example}" if self.example else ""
        raise NotFoundError(f"{self.noun} {clip_text(name)!r} does not exist", hint + example)


def clip_text(text: str, length: int = 60) -> str:
    """Return at most `length` characters of a text, as messages quote it.

    >>> clip_text("e2e4 e7e5", 4)
    'e2e4…'
    """
    return text if len(text) <= length else f"{text[:length]}…"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return a number followed by its noun, in the plural if needed.

    >>> format_count(1, "run"), format_count(1200, "run"), format_count(2, "box", "boxes")
    ('1 run', '1,200 runs', '2 boxes')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def check_name(noun: str, name: str) -> str:
    """Return the name. Raises BadInputError, which names `noun`, for a text that cannot be a name."""
    if not NAME.fullmatch(name):
        raise BadInputError(
            f"{clip_text(name)!a} cannot be the name of {noun}",
            "use up to 100 letters, digits and ._+-, a letter or digit first",
        )
    return name
