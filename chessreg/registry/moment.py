"""Points in time as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from chessreg.errors import BadInputError

AGO = re.compile(r"(\d+)\s*([hdw])")
HOURS = {"h": 1, "d": 24, "w": 24 * 7}


def moment(text: str, now: datetime | None = None) -> datetime:
    """A point in time: an ISO date or time (UTC unless it says otherwise), or how long ago: 12h, 7d, 2w.

    >>> moment("2026-01-31").isoformat()
    '2026-01-31T00:00:00+00:00'
    """
    if ago := AGO.fullmatch(text.strip().lower()):
        return (now or datetime.now(UTC)) - timedelta(hours=int(ago[1]) * HOURS[ago[2]])
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadInputError(f"{text!r} is no date", "for example --since 2026-01-31, or --since 7d") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
