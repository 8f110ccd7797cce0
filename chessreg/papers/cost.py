"""Estimate the time of a paper's step before its inputs exist, at the rates of `chessreg.runs.cost`."""

from __future__ import annotations

from chessreg.papers.plan import Request, Step
from chessreg.runs.cost import count_forward_pass_operations, estimate_cpu_seconds
from chessreg.runs.kind import RunEstimate

TRIAL_BYTES = 550  # of one row of trial and its index entries in SQLite


def count_forward_operations(request: Request, tokens: float) -> float:
    """Return the operations of forward passes of the request's model over `tokens` tokens."""
    return count_forward_pass_operations(request.layers, request.d_model, tokens)


def estimate_step_seconds(step: Step, rate: float, missing_share: float = 1.0) -> float | None:
    """Return the CPU seconds of the missing share of a step at `rate` operations per second, or None if uncounted."""
    cost = RunEstimate(operations=step.operations, cpu_seconds=step.engine_seconds)
    seconds = estimate_cpu_seconds(step.kind, cost, step.share, lambda: rate)
    return None if seconds is None else missing_share * seconds
