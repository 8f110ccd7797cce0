"""The database worker: the only way from the screens to the registry. It runs functions on threads of its own.

The event loop never waits for a database, so that every key is answered while one hangs. The threads are daemons: a
call that never returns does not keep the program from ending either.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from chessreg.queries.stop import stopped_by

if TYPE_CHECKING:
    from chessreg.session import Session

T = TypeVar("T")
WORKER_THREADS = 4


class OnEventLoopError(RuntimeError):
    """The registry was used on the thread that draws: a fault in the program."""


def require_off_loop() -> None:
    """Raises OnEventLoopError on a thread that runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise OnEventLoopError("the registry was used on the event loop; use the database worker")


@dataclass(eq=False)
class Call:
    """A pending call: what it does, as a text, and since when it has been waited for."""

    what: str
    function: Callable[[Session], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    since: float = field(default_factory=time.monotonic)
    stop: threading.Event = field(default_factory=threading.Event)  # nobody waits for the answer any more


class Waiting(NamedTuple):
    """The oldest call that has not been answered."""

    what: str
    seconds: float


class DatabaseWorker:
    """Threads with one open registry between them, which is opened by the first call.

    `opener` opens it; when that fails the call fails, and the next one tries again. `answered` is called on the event
    loop after every answer, as the text about pending calls may change. `held`: calls wait until `begin`.
    """

    def __init__(
        self,
        opener: Callable[[], Session],
        threads: int = WORKER_THREADS,
        answered: Callable[[], None] = lambda: None,
        held: bool = False,
    ) -> None:
        self._opener, self._size, self._answered, self._held = opener, threads, answered, held
        self._session: Session | None = None
        self._opening = threading.Lock()
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._open: set[Call] = set()
        self._threads: list[threading.Thread] = []

    async def ask(self, what: str, function: Callable[[Session], T]) -> T:
        """`function(session)` on one of the threads. Raises what that raises. `what` is shown when it is slow. A query
        that is not waited for any more is stopped."""
        loop = asyncio.get_running_loop()
        if not self._held:
            self._start_thread()
        call = Call(what, function, loop, loop.create_future())
        self._open.add(call)
        self._calls.put(call)
        try:
            answer: T = await call.future
            return answer
        except asyncio.CancelledError:
            call.stop.set()
            raise
        finally:
            self._open.discard(call)
            self._answered()

    def begin(self) -> None:
        """Go to work, at what waits already too."""
        self._held = False
        for _ in self._open:
            self._start_thread()

    def _start_thread(self) -> None:
        if len(self._threads) < self._size:
            thread = threading.Thread(target=self._work, name=f"database-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def waiting(self) -> Waiting | None:
        """The call that has been waited for longest."""
        oldest = min(self._open, key=lambda call: call.since, default=None)
        return Waiting(oldest.what, time.monotonic() - oldest.since) if oldest else None

    @property
    def opened(self) -> bool:
        """Whether the registry has been opened."""
        return self._session is not None

    def close(self, seconds: float = 1.0) -> None:
        """Close the registry, unless a call holds it for longer than this: then the end of the process closes it."""
        for _ in self._threads:
            self._calls.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._session is not None and not any(thread.is_alive() for thread in self._threads):
            self._session.close()
            self._session = None

    def session(self) -> Session:
        """The open registry and store. Raises OnEventLoopError on the event loop."""
        require_off_loop()
        with self._opening:
            if self._session is None:
                self._session = self._opener()
            return self._session

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if call.future.cancelled():
                continue
            try:
                with stopped_by(call.stop):
                    answer, error = call.function(self.session()), None
            except Exception as failure:
                answer, error = None, failure
            with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                call.loop.call_soon_threadsafe(_set_result, call.future, answer, error)


def _set_result(future: asyncio.Future[Any], answer: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(answer)
