"""Things of one kind that are chosen by name: encodings, labels, policies, formats, …"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from chessreg.errors import NotFoundError

T = TypeVar("T")


class Registry(Generic[T]):
    """Values by name, in the order of their registration.

    >>> rules: Registry[int] = Registry("scale rule")
    >>> rules.register("twice", 2)
    2
    >>> rules["twice"], rules.names()
    (2, ['twice'])
    """

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._values: dict[str, T] = {}

    def register(self, name: str, value: T) -> T:
        """Make a value known by this name, and return it. ValueError when the name is taken."""
        if name in self._values:
            raise ValueError(f"{self.noun} {name!r} is already registered")
        self._values[name] = value
        return value

    def names(self) -> list[str]:
        """All names, in the order of their registration."""
        return list(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __getitem__(self, name: str) -> T:
        """The value of this name. NotFoundError lists those that there are."""
        if name not in self._values:
            raise NotFoundError(f"no {self.noun} {name!r}", f"known: {', '.join(self._values)}")
        return self._values[name]
