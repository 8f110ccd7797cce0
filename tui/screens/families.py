"""Which columns the rows of a family are shown with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tui import show
from tui.columns import Column

Row = Mapping[str, Any]
TITLES = {
    "game": "games",
    "trial": "trials",
    "score": "scores",
    "illegal_attempt": "illegal tries",
    "rating": "ratings",
    "prediction": "predictions",
    "metric_point": "metrics",
    "statistic": "statistics",
}
RUN = Column("run", "run", widest=20)


def accuracy(row: Row) -> str:
    return f"{100 * row['correct'] / row['n']:.1f} %" if row["n"] else ""


def first_tries(row: Row) -> str:
    return f"{row['first_try_legal']}/{row['turns']}"


def mass(field: str) -> Column:
    def text(row: Row) -> str:
        return "" if row[field] is None else f"{row[field]:.3f}"

    return Column(field, field.replace("_", " "), right=True, text=text)


def sample(row: Row) -> str:
    return "greedy" if row["sample"] < 0 else str(row["sample"])


KNOWN: dict[str, tuple[Column, ...]] = {
    "game": (
        Column("unit", "game", right=True),
        Column("result", "result"),
        Column("termination", "ended by", least=16),
        Column("plies", "plies", right=True),
        Column("first_try_legal", "legal at once", right=True, text=first_tries),
        Column("adjudication_cp", "centipawns", right=True),
        Column("opening_number", "opening", right=True),
        Column("seconds", "took", right=True, text=lambda row: show.duration(row["seconds"])),
    ),
    "trial": (
        Column("unit", "state", right=True),
        Column("condition", "condition"),
        Column("sample", "sample", right=True, text=sample),
        Column("text", "wrote"),
        Column("legal_original", "legal before"),
        Column("legal_modified", "legal after"),
        mass("mass_original"),
        mass("mass_modified"),
        Column("item", "game", right=True),
        Column("ply", "ply", right=True),
    ),
    "score": (
        Column("unit", "unit", right=True),
        Column("split", "split"),
        Column("item", "game", right=True),
        Column("layer", "layer", right=True),
        Column("n", "n", right=True),
        Column("correct", "right", right=True),
        Column("accuracy", "accuracy", right=True, text=accuracy),
    ),
}
ELSEWHERE = {"run_id", "attempt_id", "intervention_id", "run", "family", "counts", "match", "fen", "opening_plies",
             "turns", "tries", "moves"}  # fmt: skip


def columns_of(family: str, rows: Sequence[Row], with_run: bool = False) -> list[Column]:
    """The columns of a family: those known by heart, then what its kind adds, as the first rows have it."""
    known = list(KNOWN.get(family, ()))
    named = {column.field for column in known} | ELSEWHERE
    fields = dict.fromkeys(name for row in rows[:20] for name in row if name not in named)
    more = [
        Column(name, name.replace("_", " "), right=is_number(rows, name), widest=32)
        for name in fields
        if any(row.get(name) is not None and not isinstance(row.get(name), bytes) for row in rows[:20])
    ]
    return [*([RUN] if with_run else []), *known, *more]


def is_number(rows: Sequence[Row], name: str) -> bool:
    values = [row.get(name) for row in rows[:20] if row.get(name) is not None]
    return bool(values) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
