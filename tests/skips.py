"""The reasons for which a test may be skipped. A test that is skipped for any other reason fails.

Everything that the extra `dev` installs is missing from this list, so a test of it never disappears unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

ALLOWED_REASONS = (
    # programs of the system, most of which `make deps` installs
    r"(no )?Stockfish",
    r"tmux is not installed",
    r"no (slurm|sbatch|scontrol|ssh|ip|unshare)",
    r"(zsh|fish) is not installed",
    r"no Chromium on this machine",
    r"no npm on this machine",
    # packages outside the extra dev
    r"no (MLflow|mlflow|W&B|wandb|Trackio|trackio)( here)?\b",
    r"no (notebook runner|mkdocs) here",
    r"(check-jsonschema|actionlint) cannot be installed here",
    # traits of the machine or its user
    r"no \.\./shared/data next to the checkout",
    r"no file mode stops this user",
    r"no small file system",
    r"no network namespaces here",
    r"needs root, ip and setpriv",
    r"this system has no /dev/full",
    r"(reads|counts open files in) /proc",
    r"this SQLite writes no log",
    r"these settings change no bit here",
)


def is_allowed_reason(reason: str) -> bool:
    """Return whether a test may be skipped for `reason`."""
    return any(re.match(allowed, reason.removeprefix("Skipped: ")) for allowed in ALLOWED_REASONS)


def fail_unlisted_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a report of a skip for an unlisted reason into a failure."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    where = report.longrepr
    reason = where[2] if isinstance(where, tuple) else str(where)
    if not is_allowed_reason(reason):
        report.outcome = "failed"
        report.longrepr = f"{reason}\nThis reason is not listed in tests/skips.py."


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    fail_unlisted_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    fail_unlisted_skip(report)
    return report
