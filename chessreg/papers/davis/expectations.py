"""Expectations of a good model: the reference result, each line a bound on columns of a query's rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chessreg.papers.davis.edits import CODE_LAYER_SUFFIX, CODE_SCALE, EDITS_STEP, get_chosen_edit
from chessreg.papers.davis.sizes import SIZES
from chessreg.papers.expected import Judge, combine_judges, judge_interval, make_column_judge
from chessreg.papers.plan import CompleteSteps, Expectation, Finding

Row = Mapping[str, Any]
BLOCK = "blocks."


def make_phase_condition(*names: str) -> Callable[[Row, CompleteSteps], bool]:
    """Return a condition on rows: their phase is one of `names`."""
    return lambda row, steps: row["phase"] in names


def make_scale_condition(scale: str, **columns: str) -> Callable[[Row, CompleteSteps], bool]:
    """Return a condition on rows: columns equal `columns`, and the scale is the code's α or the chosen one."""

    def is_in_scale(row: Row, steps: CompleteSteps) -> bool:
        value = CODE_SCALE if scale == "code" else get_chosen_edit(steps)["scale"]
        return row["scale"] == value and all(row[name] == value for name, value in columns.items())

    return is_in_scale


def format_scale(row: Row) -> str:
    return f"α = {row['scale']:g}"


def judge_best_site(rows: Sequence[Row], steps: CompleteSteps) -> list[Finding]:
    """For each phase, return a finding about the test games at one site: the one where validation games put the joint
    probe furthest above controls.
    """
    smallest, findings = 8.0, []
    compared_rows = [
        (place, row) for place, row in enumerate(rows, 1) if None not in (row["phase"], row["minus_untrained"])
    ]
    for number in sorted({row["phase"] for _, row in compared_rows}):
        phase_pairs = [pair for pair in compared_rows if pair[1]["phase"] == number]
        validation_rows = [row for _, row in phase_pairs if row["split"] == "validation"]
        if not validation_rows:
            continue
        site = max(validation_rows, key=lambda row: row["minus_untrained"])["hook_point"]
        for place, row in phase_pairs:
            if row["split"] == "test" and row["hook_point"] == site:
                value, low, high = (row[f"minus_untrained{end}"] for end in ("", "_low", "_high"))
                label = f"{row['positions']}, {site}, {row['twins']} twins"
                findings.append(Finding(label, value, low, high, judge_interval(value, low, high, smallest), place))
    return findings


def format_block_name(name: str) -> str:
    """Return the readable name of a hook point.

    >>> format_block_name("blocks.3.hook_resid_post")
    'block 3'
    """
    return f"block {name.split('.')[1]}" if name.startswith(BLOCK) else name


def get_row_point(row: Row) -> str:
    return format_block_name(str(row["hook_point"]))


def describe_row_positions(row: Row) -> str:
    """Return the row's phase (or the pooled phases) and hook point as text."""
    return f"{row['positions']}, {get_row_point(row)}"


def is_after_block(row: Row, steps: CompleteSteps) -> bool:
    return str(row["hook_point"]).endswith("hook_resid_post")


def judge_rising_effect(rows: Sequence[Row], steps: CompleteSteps) -> list[Finding]:
    """Judge d of the raw cosine by block: at least 2, and at least that of the block below."""
    findings: list[Finding] = []
    previous_interval: tuple[float, float] | None = None  # the interval of the block below
    for place, row in enumerate(rows, 1):
        if row["cosine"] == "raw" and is_after_block(row, steps):
            value, low, high = row["d"], row.get("d_low"), row.get("d_high")
            verdict = judge_interval(value, low, high, minimum=2.0)
            if value is not None and previous_interval is not None and verdict != "missed":
                ends = value if low is None else low, value if high is None else high
                verdict = (
                    "missed"
                    if ends[1] < previous_interval[0]
                    else "not decided"
                    if ends[0] < previous_interval[1]
                    else verdict
                )
            findings.append(Finding(get_row_point(row), value, low, high, verdict, place))
            if value is not None:
                previous_interval = value if low is None else low, value if high is None else high
    return findings


def judge_sae_expansions(rows: Sequence[Row], steps: CompleteSteps) -> list[Finding]:
    """Report the explained variance of the largest autoencoder minus that of smaller ones at the same site."""
    findings = []
    for place, row in enumerate(rows, 1):
        largest = max((r for r in rows if r["hook_point"] == row["hook_point"]), key=lambda r: r["expansion"])
        if row is not largest and None not in (row["explained_variance"], largest["explained_variance"]):
            label = f"{get_row_point(row)}: {largest['expansion']}× minus {row['expansion']}×, explained variance"
            difference = largest["explained_variance"] - row["explained_variance"]
            findings.append(Finding(label, difference, None, None, "", place))
    return findings


MASS_QUERY, DIFFERENCE_QUERY = "legal move mass by edit", "legal move mass between edits"
EXPANSION_QUERY = "legal move mass by expansion"
SAE_STEPS = ("sae-blocks-*", "sae-ends")


def judge_probe_minus(other: str, scale: str, minimum: float) -> Judge:
    """Return a judge of the difference of type Probe minus type `other`, which must be at least `minimum`. `scale`
    selects the code's α or the chosen one."""
    return make_column_judge(
        make_scale_condition(scale, type="Probe", minus=other), format_scale, "difference", minimum=minimum
    )


def judge_saes(column: str, minimum: float | None = None, maximum: float | None = None) -> Judge:
    """Return a judge of one column of the autoencoders that have the paper's expansion and follow a block.

    `minimum` and `maximum` are the bounds that the paper's numbers suggest; None: no bound.
    """

    def is_judged(row: Row, steps: CompleteSteps) -> bool:
        return is_after_block(row, steps) and row["expansion"] == SIZES[steps.request.size].expansion

    return make_column_judge(
        is_judged, lambda row: f"{get_row_point(row)}: {column.replace('_', ' ')}", column, minimum, maximum
    )


EXPECTATIONS = (
    Expectation(
        "greedy origin strictly legal",
        "≥ 95 %",
        "legal moves by phase",
        ("legality",),
        make_column_judge(
            make_phase_condition("white-destination", "black-destination", "special"),
            lambda row: f"after {row['phase']}",
            "strict",
            minimum=95.0,
        ),
    ),
    Expectation(
        "greedy destination strictly legal",
        "≥ 90 %",
        "legal moves by phase",
        ("legality",),
        make_column_judge(
            make_phase_condition("white-origin", "black-origin"),
            lambda row: f"after {row['phase']}",
            "strict",
            minimum=90.0,
        ),
    ),
    Expectation(
        "joint probe minus random twin, best site of each of phases 0–3",
        "≥ 8 points",
        "probe metrics by layer",
        ("model-joint-*", "twin-*-joint-*"),
        judge_best_site,
    ),
    Expectation(
        "target mass, Probe minus Random of equal length, α 0.5",
        "≥ 0.10",
        DIFFERENCE_QUERY,
        (EDITS_STEP,),
        judge_probe_minus("Random", "code", 0.10),
    ),
    Expectation(
        "target mass, Probe minus Random of equal length, the chosen α",
        "≥ 0.25",
        DIFFERENCE_QUERY,
        (EDITS_STEP,),
        judge_probe_minus("Random", "chosen", 0.25),
    ),
    Expectation(
        "original mass, Random minus None, α 0.5",
        "within ±0.02: the paper's claim, at truly equal length",
        MASS_QUERY,
        (EDITS_STEP,),
        make_column_judge(make_scale_condition("code", type="Random"), format_scale, "original_change", -0.02, 0.02),
    ),
    Expectation(
        "SAE at every block",
        "explained variance ≥ 0.85 at L0 ≤ 40, loss recovered ≥ 0.90",
        "sae reconstruction",
        SAE_STEPS,
        combine_judges(
            judge_saes("explained_variance", minimum=0.85),
            judge_saes("l0", maximum=40.0),
            judge_saes("loss_recovered", minimum=0.90),
        ),
    ),
    Expectation(
        "accuracy, linear minus SAE-Probe",
        "≥ 1 point",
        "probe accuracy by source",
        ("model-joint-*-blocks", "sae-probe-*"),
        make_column_judge(
            lambda row, steps: row["source"] == "sae-latents" and row["split"] == "test",
            describe_row_positions,
            "linear_minus",
            minimum=1.0,
        ),
    ),
    Expectation(
        "target mass at the chosen α, Probe minus SAE-Probe",
        "≥ 0.02",
        DIFFERENCE_QUERY,
        (EDITS_STEP,),
        judge_probe_minus("SAE-Probe", "chosen", 0.02),
    ),
    Expectation(
        "target mass at the chosen α, Probe minus CD-Probe",
        "≥ 0.05",
        DIFFERENCE_QUERY,
        (EDITS_STEP,),
        judge_probe_minus("CD-Probe", "chosen", 0.05),
    ),
    Expectation(
        "target mass at the chosen α, CD-Probe minus DM-Probe",
        "within ±0.03",
        DIFFERENCE_QUERY,
        (EDITS_STEP,),
        make_column_judge(
            make_scale_condition("chosen", type="CD-Probe", minus="DM-Probe"), format_scale, "difference", -0.03, 0.03
        ),
    ),
    Expectation(
        "as published: SAE types barely above None",
        "",
        MASS_QUERY,
        (EDITS_STEP,),
        make_column_judge(
            lambda row, steps: row["type"] in ("SAE-Probe", "CD-Probe"),
            lambda row: f"{row['type']} minus None, {format_scale(row)}",
            "gain",
        ),
    ),
    Expectation(
        "as published: the larger SAE above the smaller",
        "",
        "sae reconstruction",
        (*SAE_STEPS, "sae-smaller-*"),
        judge_sae_expansions,
    ),
    Expectation(
        "as published: edits by the larger SAE above those by the smaller, target mass",
        "",
        EXPANSION_QUERY,
        (f"{EDITS_STEP}{CODE_LAYER_SUFFIX}*",),
        make_column_judge(
            lambda row, steps: True,
            lambda row: f"{row['type']}, {row['expansion']}× minus {row['minus']}×, {format_scale(row)}",
            "difference",
        ),
    ),
    Expectation(
        "Markov, every block: p after Holm",
        "≤ 0.01",
        "markov by layer",
        ("markov",),
        make_column_judge(
            lambda row, steps: row["cosine"] == "raw" and is_after_block(row, steps),
            get_row_point,
            "p_holm",
            maximum=0.01,
        ),
    ),
    Expectation("Markov, every block: d", "≥ 2 and rising", "markov by layer", ("markov",), judge_rising_effect),
    Expectation(
        "Markov, every block: centred, within a class minus another board after the same last move",
        "≥ 0.1",
        "markov by layer",
        ("markov",),
        make_column_judge(
            lambda row, steps: row["cosine"] == "centred" and is_after_block(row, steps),
            get_row_point,
            "beyond_last",
            minimum=0.1,
        ),
    ),
)
