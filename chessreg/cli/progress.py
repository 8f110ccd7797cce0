"""One line of progress on stderr, only where somebody can see it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_line(title: str, quiet: bool = False) -> Iterator[Callable[[float, str], None]]:
    """Yields a function (fraction 0 to 1, text). Silent when stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda fraction, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True) as progress:
        task = progress.add_task(title, total=1.0, note="")
        last = 0.0

        def report(fraction: float, text: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last > 0.1 or fraction >= 1:
                last = now
                progress.update(task, completed=fraction, note=text)

        yield report
