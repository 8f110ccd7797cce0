"""Expectations of the twins: the reference result, each line a bound on columns of a query's rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chessreg.papers.expected import combine_judges, judge_interval, make_column_judge
from chessreg.papers.plan import CompleteSteps, Expectation, Finding

Row = Mapping[str, Any]


def is_position_model(row: Row, steps: CompleteSteps) -> bool:
    return bool(row["encoding"] == "fen-77")


def get_model_name(row: Row) -> str:
    return str(row["model"])


def make_difference_condition(prefix: str, amount: str = "") -> Callable[[Row, CompleteSteps], bool]:
    """Return a condition on a row of a comparison: its two models differ in the setting `prefix`, and otherwise only in
    the text `amount`. An empty `amount` means an equal number of moves."""
    return lambda row, steps: str(row["differs"]).startswith(prefix) and str(row["differs"]).partition(",")[2] == amount


def judge_equal_compute(rows: Sequence[Row], steps: CompleteSteps) -> list[Finding]:
    """Judge best moves of a position's model minus its twin of games, and name the difference of their compute.

    A difference of compute above the limit leaves the result open (`mask ablation`, `differs`).
    """

    def describe_row(row: Row) -> str:
        return f"{format_row_shape(row)}, {100 * (row['flops'] / row['twin_flops'] - 1):+.0f} % compute"

    equal = make_column_judge(
        make_difference_condition("input", EQUAL_COMPUTE), describe_row, "legal_best", minimum=1.0
    )(rows, steps)
    separate_judge = make_column_judge(lambda row, steps: row["flops"] is not None and row["twin_flops"] is not None
                 and make_difference_condition("input", " unequal training")(row, steps), describe_row,
                 "legal_best")  # fmt: skip
    return [*equal, *separate_judge(rows, steps)]


def format_row_shape(row: Row) -> str:
    return f"{row['layers']}x{row['d_model']}, seed {row['seed']}"


def judge_fall_with_rating(rows: Sequence[Row], steps: CompleteSteps) -> list[Finding]:
    """Judge each model's share of right first moves at its easiest puzzles minus that at its hardest.

    The two sets of puzzles are disjoint. The interval of the difference joins their intervals by the root of the sum of
    squares (Newcombe 1998).
    """
    findings = []
    for run in dict.fromkeys(row["run"] for row in rows):
        rating_rows = [
            (place, row) for place, row in enumerate(rows, 1) if row["run"] == run and row["rating"] != "all"
        ]
        large_bins = [(place, row) for place, row in rating_rows if row["n"] >= 20]
        if len(large_bins) > 1:
            (place, easiest), (_, hardest) = large_bins[0], large_bins[-1]
            difference = easiest["first"] - hardest["first"]
            label = f"{run}: {easiest['rating']} minus {hardest['rating']}, points"
            low = difference - math.hypot(
                easiest["first"] - get_interval_end(easiest, "low"),
                get_interval_end(hardest, "high") - hardest["first"],
            )
            high = difference + math.hypot(
                get_interval_end(easiest, "high") - easiest["first"],
                hardest["first"] - get_interval_end(hardest, "low"),
            )
            findings.append(
                Finding(label, difference, low, high, judge_interval(difference, low, high, minimum=0.0), place)
            )
    return findings


def get_interval_end(row: Row, end_name: str) -> float:
    """Return one end of the interval of a row's share of first moves; a share of 0 or 1 has one end only."""
    value = row[f"first_{end_name}"]
    return float(row["first"] if value is None else value)


def is_autoregressive(row: Row, steps: CompleteSteps) -> bool:
    return bool(row["mode"] == "autoregressive")


def has_legal_list_pair(row: Row, steps: CompleteSteps) -> bool:
    """Return whether a prompt lists the legal moves, and a model tuned without a list answered the same positions."""
    return bool(row["legal_list"]) and row["list_legal"] is not None


def get_prompt_name(row: Row) -> str:
    return str(row["prompt"])


ACCURACY, ABLATION, PUZZLES = "move accuracy by model", "mask ablation", "puzzles by rating"
EQUAL_COMPUTE = " equal compute"
ACCURACY_STEPS, TUNED_STEPS = ("accuracy-*",), ("decoding-tuned-*",)

EXPECTATIONS = (
    Expectation(
        "greedy legal moves of models of positions",
        "at least 80 %",
        ACCURACY,
        ACCURACY_STEPS,
        make_column_judge(is_position_model, get_model_name, "legal", minimum=80.0),
    ),
    Expectation(
        "best move of models of positions, renormalized over legal moves",
        "at least 11 %",
        ACCURACY,
        ACCURACY_STEPS,
        make_column_judge(is_position_model, get_model_name, "legal_best", minimum=11.0),
    ),
    Expectation(
        "bidirectional minus causal, best move",
        "between -3 and +1 points",
        ABLATION,
        ACCURACY_STEPS,
        make_column_judge(make_difference_condition("mask"), format_row_shape, "legal_best", minimum=-3.0, maximum=1.0),
    ),
    Expectation(
        "bidirectional minus causal, cross-entropy",
        "not lower",
        ABLATION,
        ACCURACY_STEPS,
        make_column_judge(make_difference_condition("mask"), format_row_shape, "nats", minimum=0.0),
    ),
    Expectation(
        "model of positions, causal, minus model of games, best move, equal decisions",
        "at least +1 point",
        ABLATION,
        ACCURACY_STEPS,
        make_column_judge(make_difference_condition("input"), format_row_shape, "legal_best", minimum=1.0),
    ),
    Expectation(
        "the same at equal compute (model FLOPs)", "at least +1 point", ABLATION, ACCURACY_STEPS, judge_equal_compute
    ),
    Expectation(
        "puzzles, first move",
        "at least 10 %, falling with rating",
        PUZZLES,
        ("puzzles-*",),
        combine_judges(
            make_column_judge(
                lambda row, steps: row["rating"] == "all", lambda row: str(row["run"]), "first", minimum=10.0
            ),
            judge_fall_with_rating,
        ),
    ),
    Expectation(
        "legal list minus none, legal answers, equal supervised moves",
        "at least +10 points",
        "prompt ablation",
        TUNED_STEPS,
        make_column_judge(has_legal_list_pair, get_prompt_name, "list_legal", minimum=10.0),
    ),
    Expectation(
        "autoregressive minus teacher-forced, best move",
        "not above 0",
        "decoding modes",
        TUNED_STEPS,
        make_column_judge(is_autoregressive, get_prompt_name, "delta_best", maximum=0.0),
    ),
    Expectation(
        "autoregressive minus teacher-forced, valid answers",
        "not below 0",
        "decoding modes",
        TUNED_STEPS,
        make_column_judge(is_autoregressive, get_prompt_name, "delta_valid", minimum=0.0),
    ),
    Expectation(
        "autoregressive minus teacher-forced, legal answers",
        "not below 0",
        "decoding modes",
        TUNED_STEPS,
        make_column_judge(is_autoregressive, get_prompt_name, "delta_legal", minimum=0.0),
    ),
    Expectation(
        "ladder, wins against a random mover",
        "at least 90 %",
        "wins by level",
        ("ladder-*",),
        make_column_judge(
            lambda row, steps: row["opponent"] == "random", lambda row: str(row["checkpoint"]), "win", minimum=90.0
        ),
    ),
)
