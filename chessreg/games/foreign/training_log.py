"""The output of a training script: losses by step, and evaluations of its checkpoints (Junkin 2025).

`iter N: loss X, time Yms` is a training step and `step N: train loss X, val loss Y` an evaluation of both losses, as
printed by nanoGPT. `ckptN.pt, loss, acc` is an evaluation of a checkpoint, `ckptN_causal.pt` of the variant `causal`.
Time, name and level of Python's logging may precede a message, and a line may contain two messages, as in his files.
Other lines are counted and skipped.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

from chessreg.errors import BadInputError

STEP = re.compile(r"iter\s+(\d{1,12})\s*:\s*loss\s+([^\s,]+)\s*,\s*time\s+([^\s,]+?)\s*ms\b.*", re.IGNORECASE)
LOSSES = re.compile(
    r"step\s+(\d{1,12})\s*:\s*train loss\s+([^\s,]+)\s*,\s*val loss\s+([^\s,]+)(?:\s*,.*)?", re.IGNORECASE
)
EVALUATION = re.compile(r"(?:\S*/)?ckpt(\d{1,12})(?:_(\w{1,32}))?\.pt\s*,\s*([^\s,]+)\s*,\s*([^\s,%]+)\s*(%?)\s*")
LINE_START = re.compile(r"\s*(iter\s+\d|step\s+\d+\s*:\s*train\b|(?:\S*/)?ckpt\d+\w*\.pt\s*,)", re.IGNORECASE)
FORMS = {"iter": "iter N: loss X, time Yms", "step": "step N: train loss X, val loss Y"}
FORM_OF_EVALUATION = "ckptN.pt, loss, accuracy"
LOG_PREFIX = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: - [^\s,]+ - [A-Z]+ -)? ")
"""Matches the prefix that logging writes before a message."""
MAX_SEARCHED_LINES = 5_000  # lines to search before a file is not a training log


@dataclass(frozen=True)
class LogPoint:
    """One value of one metric at a step. `repeat` counts earlier values of the same metric and step, from a checkpoint
    that was evaluated twice."""

    line: int
    name: str  # loss, evaluated_loss, step_milliseconds, heldout_loss, heldout_accuracy; a /VARIANT may follow
    step: int
    value: float
    repeat: int


@dataclass(frozen=True)
class TrainingLog:
    """The points of a log in order, the lines whose value is not finite, and the number of other lines."""

    points: tuple[LogPoint, ...]
    nonfinite_lines: tuple[int, ...]
    other_lines: int
    lines: int

    @property
    def repeats(self) -> int:
        """The largest number of values of one metric at one step."""
        return 1 + max((point.repeat for point in self.points), default=0)


def is_training_log(text: str) -> bool:
    """Return whether one of the first lines contains a training step or an evaluation."""
    return any(
        LINE_START.match(message) for line in text.splitlines()[:MAX_SEARCHED_LINES] for message in split_messages(line)
    )


def split_messages(line: str) -> list[str]:
    """Return the messages of a line, without the prefix of `logging`.

    >>> split_messages("2024-11-09 03:21:01,667 - train - INFO - iter 100: loss 7.18, time 283ms")
    ['iter 100: loss 7.18, time 283ms']
    """
    return [message.strip() for message in LOG_PREFIX.split(line) if message.strip()]


def read_training_log(text: str) -> TrainingLog:
    """Return every value in the log. Accuracies are shares: if one is above 1 or has a percent sign, all are
    percentages.

    Raises BadInputError for a line that starts like a value and is invalid, and for a log without losses.
    """
    entries: list[tuple[int, str, int, float]] = []
    not_finite, other_lines, percent = [], 0, False
    by_line = [(number, split_messages(line)) for number, line in enumerate(text.splitlines(), 1)]
    lines = sum(bool(messages_of_line) for _, messages_of_line in by_line)
    for number, line in ((number, message) for number, messages_of_line in by_line for message in messages_of_line):
        if not LINE_START.match(line):
            other_lines += 1
            continue
        step, evaluation, losses = STEP.fullmatch(line), EVALUATION.fullmatch(line), LOSSES.fullmatch(line)
        if losses:
            at, names, texts = int(losses[1]), ("evaluated_loss", "heldout_loss"), losses.groups()[1:]
        elif step:
            at, names, texts = int(step[1]), ("loss", "step_milliseconds"), step.groups()[1:3]
        elif evaluation:
            variant = f"/{evaluation[2]}" if evaluation[2] else ""
            at, names = int(evaluation[1]), (f"heldout_loss{variant}", f"heldout_accuracy{variant}")
            texts = evaluation.groups()[2:4]
        else:
            form = next((form for word, form in FORMS.items() if line.lower().startswith(word)), FORM_OF_EVALUATION)
            raise BadInputError(f"line {number}: {line[:60]!r} is not {form}")
        values = [_parse_number(value, number) for value in texts]
        if step and values[1] < 0:
            raise BadInputError(f"line {number}: a step must take 0 ms or more, not {values[1]:g}")
        if evaluation and math.isfinite(values[1]):
            percent |= values[1] > 1 or bool(evaluation[5])
            if not 0 <= values[1] <= 100:
                raise BadInputError(f"line {number}: an accuracy must be from 0 to 100 %, not {values[1]:g}")
        if not all(map(math.isfinite, values)):
            not_finite.append(number)
        entries += [
            (number, name, at, value) for name, value in zip(names, values, strict=True) if math.isfinite(value)
        ]
    counts: Counter[tuple[str, int]] = Counter()
    points = []
    for number, name, at, value in entries:
        share = value / 100 if percent and name.startswith("heldout_accuracy") else value
        points.append(LogPoint(number, name, at, share, counts[name, at]))
        counts[name, at] += 1
    if not any("loss" in point.name or "accuracy" in point.name for point in points):
        raise BadInputError(
            "the log has no numeric loss",
            "lines such as: iter 100: loss 3.2, time 115ms; step 500: train loss 3.1, val loss 3.2; ckpt9.pt, 2.7, 25",
        )
    return TrainingLog(tuple(points), tuple(not_finite), other_lines, lines)


def _parse_number(text: str, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInputError(f"line {line}: {text[:30]!r} is not a number") from None
