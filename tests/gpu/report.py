"""The report of a run: report.json, and the same as tables in report.md, rewritten after every measurement."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""A measurement: `measurement`, `seconds`, its values; or `error`; or why it is `left_out`."""


class LeftOut(Exception):
    """Raised by a measurement that cannot be made here; the message states the reason."""


@dataclass
class Step:
    """A group of measurements."""

    name: str
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class Goal:
    """The best (or, if `at_most`, the worst) value of a column over the rows of a step, and its required bound."""

    text: str
    step: str
    column: str
    bound: float
    at_most: bool = False
    devices: tuple[str, ...] = ("",)
    """How the names of the devices begin that it is set for."""
    where: Callable[[Row], bool] = lambda row: True

    def judge(self, steps: Sequence[Step], device: str) -> Row:
        rows = [row for step in steps if step.name == self.step for row in step.rows if self.where(row)]
        values = [row[self.column] for row in rows if row.get(self.column) is not None]
        if not values:
            return {"goal": self.text, "measured": None, "outcome": "not measured"}
        value = max(values)
        is_met = value <= self.bound if self.at_most else value >= self.bound
        outcome = ("met" if is_met else "missed") if device.startswith(self.devices) else "set for another device"
        return {"goal": self.text, "measured": value, "outcome": outcome}


HOPPER = ("NVIDIA H100", "NVIDIA H200")
GOALS = (
    Goal(
        "float32 agrees with the CPU: relative difference at most 1e-4",
        "correctness", "relative", 1e-4, at_most=True, where=lambda row: "float32" in row["measurement"],
    ),
    Goal("training of 12 x 768 in bf16 at 40 % MFU or more", "training speed, 12 x 768", "mfu", 0.4, devices=HOPPER),
    Goal("caching at 0.8 of the forward passes' speed or more", "caching", "share_of_forward", 0.8, devices=HOPPER),
    Goal(
        "SAE steps in TF32 at half of the peak or more",
        "sparse autoencoder", "share_of_peak", 0.5, devices=HOPPER,
        where=lambda row: row["measurement"].startswith("TF32"),
    ),
)  # fmt: skip


class Report:
    """Everything measured so far. Each change is written at once, aside and renamed: a crash leaves the last state."""

    def __init__(self, folder: Path, machine: Mapping[str, Any], minutes: float, began: float) -> None:
        """Write the first report of a run that began at `began` (of time.monotonic).

        Raises OSError if the folder cannot be written.
        """
        self.folder = folder
        self.content: dict[str, Any] = {"machine": dict(machine), "minutes": minutes, "state": "running"}
        self.steps: list[Step] = []
        self.began = began
        self._write()

    @property
    def has_errors(self) -> bool:
        """Whether a measurement ended with an error."""
        return any("error" in row for step in self.steps for row in step.rows)

    def begin(self, name: str) -> Step:
        """Add a step."""
        self.steps.append(Step(name))
        self.write()
        return self.steps[-1]

    def record(
        self,
        step: Step,
        label: str,
        seconds: float | None = None,
        values: Mapping[str, Any] | None = None,
        error: str = "",
        left_out: str = "",
    ) -> None:
        """Add a measurement to a step: its values, its error, or why it was left out."""
        row: Row = {"measurement": label, **(values or {})}
        row |= {"seconds": round(seconds, 2)} if seconds is not None else {}
        row |= {"error": error} if error else {}
        row |= {"left_out": left_out} if left_out else {}
        step.rows.append(row)
        print(f"{time.monotonic() - self.began:6.1f} s  {step.name}: {describe_row(row)}", flush=True)
        self.write()

    def interrupt(self, signal_name: str) -> None:
        """Note that a signal ended the run early."""
        self.content["state"] = f"interrupted by {signal_name}"

    def finish(self) -> None:
        """Write the last report."""
        if self.content["state"] == "running":
            self.content["state"] = "complete"
        self.write()

    def write(self) -> None:
        """Write both files. A disk that became full or read-only does not end the run; the report is also printed."""
        try:
            self._write()
        except OSError as error:
            print(f"warning: the report could not be written: {error}", file=sys.stderr, flush=True)

    def _write(self) -> None:
        self.content["seconds"] = round(time.monotonic() - self.began, 1)
        self.content["goals"] = [goal.judge(self.steps, self.content["machine"]["device"]) for goal in GOALS]
        self.content["steps"] = [asdict(step) for step in self.steps]
        for name, text in (
            ("report.json", json.dumps(self.content, indent=1) + "\n"),
            ("report.md", self.format_markdown()),
        ):
            aside = self.folder / f"{name}.tmp"
            try:
                aside.write_text(text, encoding="utf-8")
                os.replace(aside, self.folder / name)
            finally:
                aside.unlink(missing_ok=True)

    def format_markdown(self) -> str:
        """The report as text with one table per step."""
        content = self.content
        machine = [{"machine": name, "": value} for name, value in content["machine"].items()]
        parts = [
            f"# GPU report\n\n{content['state']} after {content['seconds']} s of {60 * content['minutes']:.0f} s\n",
            format_table(machine),
            "## Goals\n",
            format_table(content["goals"]),
        ]
        for step in self.steps:
            parts.append(f"## {step.name[0].upper()}{step.name[1:]}\n")
            rows = [row for row in step.rows if not {"error", "left_out"} & row.keys()]
            others = [f"- {describe_row(row)}\n" for row in step.rows if row not in rows]
            parts += [format_table(rows)] * bool(rows) + others
        return "\n".join(parts)


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table with the columns of all of them; lists are left to report.json."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, list))
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"] if rows else []
    lines += [f"| {' | '.join(format_value(row.get(name)) for name in names)} |" for row in rows]
    return "\n".join([*lines, ""])


def describe_row(row: Row) -> str:
    """A measurement on one line."""
    label = row["measurement"]
    for name in ("error", "left_out"):
        if name in row:
            return f"{label}: {name.replace('_', ' ')}: {' '.join(str(row[name]).split())[:300]}"
    values = {name: value for name, value in row.items() if name != "measurement" and not isinstance(value, list)}
    return f"{label}: {', '.join(f'{name} {format_value(value)}' for name, value in values.items())}"


def format_value(value: Any) -> str:
    """A value as text: numbers with four digits, large ones with thousands separated; None as nothing.

    >>> format_value(0.0123456), format_value(1234567.8), format_value(None)
    ('0.01235', '1,234,568', '')
    """
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value).replace("|", "/").replace("\n", " ")
