"""Expectations of the twins: the reference result, each line a bound on columns of a query's rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chessreg.papers.expected import both, each, judged
from chessreg.papers.plan import Expectation, Finding, Made

Row = Mapping[str, Any]


def of_positions(row: Row, made: Made) -> bool:
    return bool(row["encoding"] == "fen-77")


def model(row: Row) -> str:
    return str(row["model"])


def differing(what: str, amount: str = "") -> Callable[[Row, Made], bool]:
    """Return a judge of pairs that differ in this alone, after the same number of moves or another equal `amount`."""
    return lambda row, made: str(row["differs"]).startswith(what) and str(row["differs"]).partition(",")[2] == amount


def at_equal_compute(rows: Sequence[Row], made: Made) -> list[Finding]:
    """Judge best moves of a position's model minus its twin of games, and name the difference of their compute.

    A difference of compute above the limit leaves the result open (`mask ablation`, `differs`).
    """

    def told(row: Row) -> str:
        return f"{shape(row)}, {100 * (row['flops'] / row['twin_flops'] - 1):+.0f} % compute"

    equal = each(differing("input", EQUAL), told, "legal_best", least=1.0)(rows, made)
    apart = each(lambda row, made: row["flops"] is not None and row["twin_flops"] is not None
                 and differing("input", " unequal training")(row, made), told, "legal_best")  # fmt: skip
    return [*equal, *apart(rows, made)]


def shape(row: Row) -> str:
    return f"{row['layers']}x{row['d_model']}, seed {row['seed']}"


def falling(rows: Sequence[Row], made: Made) -> list[Finding]:
    """Judge each model's share of right first moves at its easiest puzzles minus that at its hardest.

    The two sets of puzzles are disjoint, so the interval joins both by the root of their squares (Newcombe 1998).
    """
    findings = []
    for run in dict.fromkeys(row["run"] for row in rows):
        rated = [(place, row) for place, row in enumerate(rows, 1) if row["run"] == run and row["rating"] != "all"]
        enough = [(place, row) for place, row in rated if row["n"] >= 20]
        if len(enough) > 1:
            (place, easiest), (_, hardest) = enough[0], enough[-1]
            difference = easiest["first"] - hardest["first"]
            what = f"{run}: {easiest['rating']} minus {hardest['rating']}, points"
            low = difference - math.hypot(
                easiest["first"] - end(easiest, "low"), end(hardest, "high") - hardest["first"]
            )
            high = difference + math.hypot(
                end(easiest, "high") - easiest["first"], hardest["first"] - end(hardest, "low")
            )
            findings.append(Finding(what, difference, low, high, judged(difference, low, high, least=0.0), place))
    return findings


def end(row: Row, which: str) -> float:
    """Return one end of the interval of a row's share of first moves; a share of 0 or 1 has one end only."""
    known = row[f"first_{which}"]
    return float(row["first"] if known is None else known)


def alone(row: Row, made: Made) -> bool:
    return bool(row["mode"] == "autoregressive")


def listed(row: Row, made: Made) -> bool:
    """Whether a prompt lists the legal moves, and a model tuned without a list answered the same positions."""
    return bool(row["legal_list"]) and row["list_legal"] is not None


def prompt(row: Row) -> str:
    return str(row["prompt"])


ACCURACY, ABLATION, PUZZLES = "move accuracy by model", "mask ablation", "puzzles by rating"
EQUAL = " equal compute"
ASKED, TUNED = ("accuracy-*",), ("decoding-tuned-*",)

EXPECTATIONS = (
    Expectation("greedy legal moves of models of positions", "at least 80 %", ACCURACY, ASKED,
                each(of_positions, model, "legal", least=80.0)),
    Expectation("best move of models of positions, renormalised over legal moves", "at least 11 %", ACCURACY, ASKED,
                each(of_positions, model, "legal_best", least=11.0)),
    Expectation("bidirectional minus causal, best move", "between -3 and +1 points", ABLATION, ASKED,
                each(differing("mask"), shape, "legal_best", least=-3.0, most=1.0)),
    Expectation("bidirectional minus causal, cross-entropy", "not lower", ABLATION, ASKED,
                each(differing("mask"), shape, "nats", least=0.0)),
    Expectation("model of positions, causal, minus model of games, best move, equal decisions", "at least +1 point",
                ABLATION, ASKED, each(differing("input"), shape, "legal_best", least=1.0)),
    Expectation("the same at equal compute (model FLOPs)", "at least +1 point", ABLATION, ASKED,
                at_equal_compute),
    Expectation("puzzles, first move", "at least 10 %, falling with rating", PUZZLES, ("puzzles-*",),
                both(each(lambda row, made: row["rating"] == "all", lambda row: str(row["run"]), "first", least=10.0),
                     falling)),
    Expectation("legal list minus none, legal answers, equal supervised moves", "at least +10 points",
                "prompt ablation", TUNED, each(listed, prompt, "list_legal", least=10.0)),
    Expectation("autoregressive minus teacher-forced, best move", "not above 0", "decoding modes", TUNED,
                each(alone, prompt, "delta_best", most=0.0)),
    Expectation("autoregressive minus teacher-forced, valid answers", "not below 0", "decoding modes", TUNED,
                each(alone, prompt, "delta_valid", least=0.0)),
    Expectation("autoregressive minus teacher-forced, legal answers", "not below 0", "decoding modes", TUNED,
                each(alone, prompt, "delta_legal", least=0.0)),
    Expectation("ladder, wins against a random mover", "at least 90 %", "wins by level", ("ladder-*",),
                each(lambda row, made: row["opponent"] == "random", lambda row: str(row["checkpoint"]), "win",
                     least=90.0)),
)  # fmt: skip
