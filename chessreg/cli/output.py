"""How commands print: one JSON document, or a table for people. stdout is data, stderr is talk."""

from __future__ import annotations

import enum
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from rich.console import Console


Columns = list[str] | Mapping[str, str] | None


def plain(value: Any) -> Any:
    """A value as JSON has it: ids as 32 hex digits, times in ISO 8601 with their zone, bytes in hex, NaN as null."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return str(value)


def print_json(data: Any) -> None:
    """One document on stdout."""
    sys.stdout.write(json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def shown(value: Any) -> str:
    """A value in a table's cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    if isinstance(value, UUID):
        return value.hex[-6:]
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone().strftime("%Y-%m-%d %H:%M")
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    value = plain(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def print_table(rows: list[dict[str, Any]], columns: Columns = None) -> None:
    """A table on stdout, as wide as it needs where nobody looks at a screen."""
    if not rows:
        print("nothing yet", file=sys.stderr)
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    headings = _headings(columns, rows[0])
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, heading in headings.items():
        values = [row.get(name) for row in rows]
        numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values if v is not None)
        table.add_column(Text(heading), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(row.get(name))) for name in headings))
    console().print(table)


def print_record(record: Mapping[str, Any], columns: Columns = None) -> None:
    """One object, a line for each field."""
    headings = _headings(columns, record)
    width = max((len(heading) for heading in headings.values()), default=0)
    for name, heading in headings.items():
        sys.stdout.write(f"{heading:<{width}}  {shown(record.get(name))}".rstrip() + "\n")


def _headings(columns: Columns, row: Mapping[str, Any]) -> dict[str, str]:
    if isinstance(columns, Mapping):
        return dict(columns)
    return {name: name.replace("_", " ") for name in (columns or list(row))}


def console() -> Console:
    """stdout for tables: a screen's width on a screen, else wide enough never to cut a row."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 10_000)


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
