"""Marks of annotated fields: the meaning of a setting, and the values that it may have.

They need no library, so that plain dataclasses can carry them (`models/train_config.py`). `runs.spec.Settings` checks
them, and they are not part of the recorded schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Doc:
    """The meaning of a field, as help shows it."""

    text: str


@dataclass(frozen=True)
class AtLeast:
    """Marks the smallest value of a number."""

    value: float

    def refuse(self, value: Any) -> None:
        if value is not None and value < self.value:
            raise ValueError(f"at least {self.value:,}")


@dataclass(frozen=True)
class Above:
    """Marks a number that is larger than this one."""

    value: float

    def refuse(self, value: Any) -> None:
        if value is not None and value <= self.value:
            raise ValueError(f"more than {self.value:,}")


@dataclass(frozen=True)
class AtMost:
    """Marks the largest value of a number, with the reason."""

    value: float
    why: str

    def refuse(self, value: Any) -> None:
        if value is not None and value > self.value:
            raise ValueError(f"at most {self.value:,}: {self.why}")


@dataclass(frozen=True)
class Share:
    """Marks a number from 0 to less than 1."""

    def refuse(self, value: Any) -> None:
        if not 0 <= value < 1:
            raise ValueError("at least 0 and less than 1")


@dataclass(frozen=True)
class Distinct:
    """Marks a list that names nothing twice."""

    def refuse(self, value: Any) -> None:
        for place, item in enumerate(value):
            if item in value[:place]:
                raise ValueError(f"{item!r} is there twice")


BOUNDS = (AtLeast, Above, AtMost, Share, Distinct)
