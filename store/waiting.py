"""Waiting for a library that does not notice Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def call_interruptibly(call: Callable[[], T]) -> T:
    """Return what `call` returns, or raise what it raises, from another thread. Ctrl-C ends the wait.

    obstore waits for a server outside Python, up to three minutes with its retries, and does not notice signals. An
    executor of the standard library would wait for the call at the end of the interpreter.
    """
    future: Future[T] = Future()

    def act() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    Thread(target=act, daemon=True).start()
    return future.result()
