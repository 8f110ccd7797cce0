"""Pending changes of the registry, written one after the other and retried on failure; and past messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from chessreg.errors import ChessregError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session


class DroppedError(ChessregError):
    """The user dropped a change before it was written."""


@dataclass(eq=False)
class Write:
    """A `change` of `what`, such as `star` of a run. Calling it with a session writes it in one transaction."""

    what: str
    change: str
    function: Callable[[SqlSession], Any]
    message: Callable[[Any], str]  # formats the function's return value
    error: str = ""  # error of the last attempt
    dropped: bool = False
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __call__(self, session: Session) -> Any:
        """Write the change. Raises DroppedError, and writes nothing, if it was dropped meanwhile."""
        with session.database.write() as sql:
            answer = self.function(sql)
            sql.flush()
            if self.dropped:
                raise DroppedError(f"{self.change} of {self.what}: dropped")
            return answer


class Writes:
    """Unwritten changes, oldest first. `busy`: the first one is being written."""

    def __init__(self) -> None:
        self.waits: list[Write] = []
        self.busy = False

    def add(self, write: Write) -> None:
        self.waits.append(write)

    @property
    def first(self) -> Write | None:
        return self.waits[0] if self.waits else None

    @property
    def blocked_writes(self) -> list[Write]:
        """All waiting changes if the first one failed, otherwise an empty list."""
        return self.waits if self.waits and self.waits[0].error else []

    def drop(self, write: Write) -> None:
        """Remove a change that was written or dropped."""
        self.waits = [other for other in self.waits if other is not write]


class Notice(NamedTuple):
    """A displayed message and its time."""

    at: datetime
    title: str
    message: str
    severity: str
