"""Format values, progress, speed and sizes as text. Times are local; tests replace functions that depend on the
machine."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from chessreg.entities.display import format_measured_value as format_measured_value
from chessreg.entities.display import format_signed_change as format_signed_change
from chessreg.entities.display import format_size as format_size
from chessreg.entities.display import format_value_with_interval as format_value_with_interval
from chessreg.named import format_count as format_count
from chessreg.rows import format_float
from tui import show


def format_local_time(time: datetime | None) -> str:
    """Return a time in the local time zone, to the minute."""
    if time is None:
        return ""
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone().strftime("%Y-%m-%d %H:%M")


def abbreviate_id(id: UUID | str) -> str:
    """Return the end of an id as shown in lists. A short id is returned unchanged."""
    return id.hex[-6:] if isinstance(id, UUID) else id[-6:] if len(id) == 32 else id


def trim_provenance(text: str) -> str:
    """Return the provenance of a table without the rows read, which `chessreg query` prints."""
    return text.partition("; read ")[0]


def format_host(name: str | None) -> str:
    return name or ""


def shorten_place(text: str) -> str:
    """Return the folder and file of the registry, or its URL without a password."""
    if "://" in text:
        return text
    parts = [part for part in text.split("/") if part]
    return "/".join(parts[-3:]) if len(parts) <= 3 else "…/" + "/".join(parts[-3:])


def format_seconds(seconds: float | None) -> str:
    """Return a duration in its two largest units.

    >>> format_seconds(7.25), format_seconds(75), format_seconds(7260), format_seconds(None)
    ('7.2 s', '1 min 15 s', '2 h 1 min', '')
    """
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def format_cell_value(thing: Any) -> str:
    """Return any value as a one-line text."""
    if isinstance(thing, enum.Enum):
        thing = thing.value
    if thing is None:
        return ""
    if isinstance(thing, bool):
        return "yes" if thing else "no"
    if isinstance(thing, str):
        return " ".join(thing.split())
    if isinstance(thing, UUID):
        return abbreviate_id(thing)
    if isinstance(thing, datetime):
        return format_local_time(thing)
    if isinstance(thing, float):
        return format_float(thing)
    if isinstance(thing, int):
        return f"{thing:,}"
    if isinstance(thing, (bytes, memoryview)):
        return f"{len(bytes(thing)):,} bytes"
    return json.dumps(thing, ensure_ascii=False, default=str)


def format_full_value(thing: Any) -> str:
    """Return a value with complete ids and all digits."""
    if isinstance(thing, UUID):
        return thing.hex
    if isinstance(thing, float):
        return repr(thing)
    if isinstance(thing, (bytes, memoryview)):
        return bytes(thing).hex()
    if isinstance(thing, str):
        return thing
    if isinstance(thing, (dict, list)):
        flat = isinstance(thing, list) and not any(isinstance(one, (dict, list)) for one in thing)
        tall = not flat and len(str(thing)) > 60
        return json.dumps(thing, ensure_ascii=False, default=str, indent=2 if tall else None)
    return format_cell_value(thing)


def join_words(names: Sequence[str]) -> str:
    """Join words as in a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


FULL, PART, EMPTY = "━", "╸", "┄"
BAR_SIGNS = {FULL, PART, EMPTY, " "}


def draw_bar(share: float | None, width: int = 10) -> str:
    """Draw a share as a bar of `width` cells that is readable without color.

    >>> draw_bar(0.5, 8), draw_bar(None, 4), draw_bar(1, 4)
    ('━━━━┄┄┄┄', '    ', '━━━━')
    """
    if share is None:
        return " " * width
    halves = round(2 * width * min(max(share, 0.0), 1.0))
    return (FULL * (halves // 2) + PART * (halves % 2)).ljust(width, EMPTY)


def format_percent(share: float | None) -> str:
    """Return a share in percent, rounded down so that 100 % means complete."""
    return "" if share is None else f"{int(100 * share + 1e-9)} %"


def format_probability(probability: float) -> str:
    """Return a probability with three decimals, or one digit if it is smaller.

    >>> format_probability(0.4163), format_probability(0.00042), format_probability(0.0)
    ('0.416', '0.0004', '0.000')
    """
    return f"{probability:.3f}" if probability >= 0.001 or not probability else f"{probability:.1g}"


def format_rate(a_second: float | None) -> str:
    """Return units per second, minute or hour: the shortest span with at least one unit.

    >>> format_rate(12.34), format_rate(0.5), format_rate(0.001), format_rate(None)
    ('12.3/s', '30.0/min', '3.6/h', '')
    """
    if not a_second:
        return ""
    for span, name in ((1, "s"), (60, "min"), (3600, "h")):
        if a_second * span >= 1 or name == "h":
            return f"{a_second * span:.1f}/{name}"
    return ""


def format_job_pace(row: Mapping[str, Any]) -> str:
    """Return the rate of a job and its remaining time (12.3/s, 4 min 0 s left), or when its scheduler will start it."""
    if (starts_in := measure_seconds_to_start(row)) is not None:
        return f"starts in {show.format_seconds(starts_in)}"
    time_left = f"{show.format_seconds(row['seconds_left'])} left" if row["seconds_left"] is not None else ""
    return ", ".join(filter(None, [format_rate(row["rate"]), time_left]))


def measure_seconds_to_start(row: Mapping[str, Any]) -> float | None:
    """Return the seconds until a cluster's scheduler expects to start a waiting job. None if it gave no time, or if
    that time has passed."""
    if row["state"] != "waiting" or not row.get("starts_at"):
        return None
    seconds = (datetime.fromisoformat(row["starts_at"]) - datetime.now(UTC)).total_seconds()
    return seconds if seconds > 0 else None


def format_result_words(finding: Mapping[str, Any]) -> str:
    """Return a run's result in words with its sample, and its difference from an earlier run of the same kind.

    >>> format_result_words({"measure": "test %", "value": 93.256, "sample": "50 games", "change": 1.5, "than": "b"})
    '93.3 % test · 50 games · Δ +1.5 to b'
    """
    parts = [f"{format_measured_value(finding)} {finding['measure'].removesuffix(' %')}"]
    parts.append(finding.get("sample", ""))
    parts.append(f"Δ {format_signed_change(finding)} to {finding['than']}" if format_signed_change(finding) else "")
    return " · ".join(filter(None, parts))


SPARKS = "▁▂▃▄▅▆▇█"


def draw_sparkline(values: Sequence[float], width: int, low: float | None = None, high: float | None = None) -> str:
    """Draw values in `width` cells, scaled to their range or to `low` and `high`.

    If several values share a cell, the last one is drawn.

    >>> draw_sparkline([1, 2, 3, 4], 4), draw_sparkline([0.5], 4, 0, 1), draw_sparkline([], 4)
    ('▁▃▆█', '▅', '')
    """
    span = max(1, -(-len(values) // max(1, width)))
    cells = [values[min(n + span, len(values)) - 1] for n in range(0, len(values), span)]
    if not cells:
        return ""
    least, highest = min(cells) if low is None else low, max(cells) if high is None else high
    steps = len(SPARKS) - 1
    return "".join(SPARKS[round(steps * min(1.0, max(0.0, (v - least) / ((highest - least) or 1.0))))] for v in cells)


def format_units_done(row: Mapping[str, Any]) -> str:
    """Return the number of done and of all units: 3/12."""
    return f"{row['done']:,}/{row['units']:,}" if row["units"] else ""
