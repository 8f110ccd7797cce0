"""The database worker: the screens' only access to the registry. It runs functions on separate threads.

The event loop never waits for a database, so keys work even if a call hangs. The threads are daemons, so a call that
never returns does not block the exit.
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

from chessreg.queries.stop import stop_queries_on

if TYPE_CHECKING:
    from chessreg.session import Session

T = TypeVar("T")
WORKER_THREADS = 4


class OnEventLoopError(RuntimeError):
    """The registry was used on the event loop's thread: a bug."""


def require_off_loop() -> None:
    """Raise OnEventLoopError on a thread that runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise OnEventLoopError("the registry was used on the event loop; use the database worker")


@dataclass(eq=False)
class Call:
    """A pending call, its description `what`, and its start time."""

    what: str
    function: Callable[[Session], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    since: float = field(default_factory=time.monotonic)
    stop: threading.Event = field(default_factory=threading.Event)  # set when the answer is no longer needed


class WaitingCall(NamedTuple):
    """The oldest unanswered call."""

    what: str
    seconds: float


class DatabaseWorker:
    """Threads that share one registry, which the first call opens.

    If `opener` fails, the call fails and the next call retries. `on_answer` is called on the event loop after every
    answer. With `held`, calls wait for `begin`.
    """

    def __init__(
        self,
        opener: Callable[[], Session],
        threads: int = WORKER_THREADS,
        on_answer: Callable[[], None] = lambda: None,
        held: bool = False,
    ) -> None:
        self._opener, self._size, self._on_answer, self._held = opener, threads, on_answer, held
        self._session: Session | None = None
        self._opening = threading.Lock()
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._open: set[Call] = set()
        self._threads: list[threading.Thread] = []

    async def ask(self, description: str, function: Callable[[Session], T]) -> T:
        """Run `function(session)` on a thread and return its result or raise its error.

        `description` is displayed if the call is slow. Cancelling the call interrupts its query.
        """
        loop = asyncio.get_running_loop()
        if not self._held:
            self._start_thread()
        call = Call(description, function, loop, loop.create_future())
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
            self._on_answer()

    def begin(self) -> None:
        """Start handling calls, including those that are already waiting."""
        self._held = False
        for _ in self._open:
            self._start_thread()

    def _start_thread(self) -> None:
        if len(self._threads) < self._size:
            thread = threading.Thread(target=self._work, name=f"database-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def find_oldest_call(self) -> WaitingCall | None:
        """Return the oldest unanswered call."""
        oldest_call = min(self._open, key=lambda call: call.since, default=None)
        return WaitingCall(oldest_call.what, time.monotonic() - oldest_call.since) if oldest_call else None

    @property
    def is_open(self) -> bool:
        """Whether the registry has been opened."""
        return self._session is not None

    def close(self, seconds: float = 1.0) -> None:
        """Close the registry. If a call still uses it after `seconds`, leave closing to the end of the process."""
        for _ in self._threads:
            self._calls.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._session is not None and not any(thread.is_alive() for thread in self._threads):
            self._session.close()
            self._session = None

    def session(self) -> Session:
        """Return the open session. Raises OnEventLoopError on the event loop."""
        require_off_loop()
        with self._opening:
            if self._session is None:
                self._session = self._opener()
            return self._session

    def _work(self) -> None:
        """Call the queued functions one at a time, until None is queued."""
        while (call := self._calls.get()) is not None:
            if call.future.cancelled():
                continue
            try:
                with stop_queries_on(call.stop):
                    answer, error = call.function(self.session()), None
            except Exception as failure:
                answer, error = None, failure
            with suppress(RuntimeError):  # the event loop has ended
                call.loop.call_soon_threadsafe(_set_result, call.future, answer, error)


def _set_result(future: asyncio.Future[Any], answer: Any, error: Exception | None) -> None:
    """Resolve a future with an answer or an error, unless it is resolved or cancelled already."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(answer)
