"""Aggregates of skill interventions: the grid searches of chess_gpt_eval, one CSV row each.

A row is a mean score or a completion rate of one model under one intervention, over several opponents. Games, opponents
and limits are not recorded; the intervention comes from the author's file name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from chessreg.errors import BadInputError
from chessreg.games.foreign.game import parse_flag, parse_number, read_header, read_table

COLUMNS = frozenset(
    [
        "cell",
        "metric",
        "name",
        "value",
        "n",
        "pct_completed",
        "ci_lo",
        "ci_hi",
        "random_full_moves",
        "coefficient",
        "source",
        "model",
        "layers_in_name",
        "truncated_name",
        "levels",
        "pos_start",
    ]
)
SOURCES = {"caa": "contrastive:skill", "probe": "probe:skill", "none": ""}
"""The author's words for the source of a vector → chessreg's."""
VALUES = {"n": "n", "pct_completed": "percent_without_forfeit", "ci_lo": "low", "ci_hi": "high"}


@dataclass(frozen=True)
class Aggregate:
    """One row.

    `layers` are 0-based, as in the author's file names, and may be incomplete if the name was truncated
    (`detail["truncated_name"]`). `values` maps the metric and n, percent_without_forfeit, low, high to numbers.
    """

    row: int
    model: str
    source: str  # "" without an intervention
    layers: tuple[int, ...]
    coefficient: float
    random_plies: int
    metric: str
    values: dict[str, float]
    detail: dict[str, Any]

    @property
    def opening(self) -> str:
        return f"random:{self.random_plies}" if self.random_plies else "standard"


def is_grid_search(text: str) -> bool:
    """Return whether a text is a grid-search CSV."""
    return set(read_header(text)) >= COLUMNS


def read_grid_search(text: str) -> list[Aggregate]:
    """Return every row. Raises BadInputError that names an unreadable row and column."""
    return [read_aggregate(place, row) for place, row in enumerate(read_table(text))]


def read_aggregate(place: int, row: dict[str, str]) -> Aggregate:
    """Return one row as an Aggregate. Raises BadInputError that names an invalid column."""

    def wrong(column: str) -> BadInputError:
        return BadInputError(f"row {place}: {column} is {row[column][:40]!r}", "every row of a grid-search CSV has it")

    value, turns = parse_number(row["value"]), parse_number(row["random_full_moves"])
    if value is None:
        raise wrong("value")
    if turns is None:
        raise wrong("random_full_moves")
    if row["source"] not in SOURCES:
        raise wrong("source")
    coefficient = parse_number(row["coefficient"])
    if coefficient is None and row["source"] != "none":
        raise wrong("coefficient")
    if not re.fullmatch(r"[\w-]{1,64}", row["metric"]):
        raise wrong("metric")
    if not row["model"].strip():
        raise wrong("model")
    values = {row["metric"]: value}
    values |= {name: cell for column, name in VALUES.items() if (cell := parse_number(row[column])) is not None}
    return Aggregate(
        row=place,
        model=row["model"].strip(),
        source=SOURCES[row["source"]],
        layers=tuple(int(layer) for layer in re.findall(r"\d+", row["layers_in_name"])),
        coefficient=coefficient or 0.0,
        random_plies=2 * int(turns),
        metric=row["metric"],
        values=values,
        detail={
            "cell": row["cell"],
            "name": row["name"],
            "truncated_name": parse_flag(row["truncated_name"]),
            "levels": row["levels"] or None,
            "pos_start": row["pos_start"] or None,
        },
    )
