"""The heartbeat of an attempt: a thread that promises, again and again, when it will check in next.

Check-ins are fragments of their own, so that neither a slow unit nor a registry that does not answer keeps them back.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from chessreg.registry.tables.types import utc_now
from chessreg.runs.load import load
from chessreg.runs.task import Task, plain

if TYPE_CHECKING:
    from store.fragments import FragmentWriter

CHECK_IN_SECONDS = 10.0
# What is promised: twelve times as long. A registry may stand still for a minute, and whoever takes the fragments in
# may come late after that, before anybody takes a living attempt for lost.
PROMISE_SECONDS = 12 * CHECK_IN_SECONDS


class Heart(threading.Thread):
    """Checks in after 1, 2, 4 and 8 seconds, then every ten. A check-in that fails is tried again, and harms nobody."""

    def __init__(self, task: Task[Any, Any], after: Callable[[], None]) -> None:
        super().__init__(name="heart", daemon=True)
        self.task, self.after = task, after
        self._end = threading.Event()

    def run(self) -> None:
        from store.fragments import FragmentWriter

        writer = FragmentWriter(
            self.task.store,
            self.task.run_id.hex,
            self.task.attempt_id.hex,
            flush_rows=1 << 60,  # the rows of one check-in are one fragment
            flush_bytes=1 << 60,
            flush_seconds=math.inf,
        )
        pause = 1.0
        while not self._end.wait(pause):
            pause = min(2 * pause, CHECK_IN_SECONDS)
            with suppress(Exception):
                self._beat(writer)

    def _beat(self, writer: FragmentWriter) -> None:
        row = {
            "id": self.task.attempt_id,
            "checked_in_at": utc_now(),
            "next_check_in_seconds": PROMISE_SECONDS,
            "units_done": self.task.units_done,
            "progress": min(max(float(self.task.fraction), 0.0), 1.0),
            "doing": self.task.doing[:200],
            "load": load(),
        }
        writer.add("check_in", plain(row))
        writer.flush()
        self.after()

    def stop(self) -> None:
        """End it; the attempt's own end is the next thing written."""
        self._end.set()
        if self.is_alive():
            self.join(timeout=60)
