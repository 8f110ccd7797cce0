"""Changes on their way to the registry: one after the other, held while it cannot be written; and past messages."""

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
    """A change was dropped by hand before it was written."""


@dataclass(eq=False)
class Write:
    """A `change` of `what`: `star` of a run. Called with a session it is written, in one transaction."""

    what: str
    change: str
    function: Callable[[SqlSession], Any]
    message: Callable[[Any], str]  # of the function's answer
    error: str = ""  # why it was not written when it was last tried
    dropped: bool = False
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __call__(self, session: Session) -> Any:
        """Raises DroppedError when it was dropped while it waited for the lock: then nothing is written."""
        with session.database.write() as sql:
            answer = self.function(sql)
            sql.flush()
            if self.dropped:
                raise DroppedError(f"{self.change} of {self.what}: dropped")
            return answer


class Writes:
    """Those that are not written yet, oldest first. `busy`: the first is being written."""

    def __init__(self) -> None:
        self.waits: list[Write] = []
        self.busy = False

    def add(self, write: Write) -> None:
        self.waits.append(write)

    @property
    def first(self) -> Write | None:
        return self.waits[0] if self.waits else None

    @property
    def held(self) -> list[Write]:
        """All that wait, once the first could not be written."""
        return self.waits if self.waits and self.waits[0].error else []

    def drop(self, write: Write) -> None:
        """Take it away: it is written, or shall not be."""
        self.waits = [other for other in self.waits if other is not write]


class Notice(NamedTuple):
    """A message that was shown, and when."""

    at: datetime
    title: str
    message: str
    severity: str
