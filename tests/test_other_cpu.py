"""Trained results are shown equally on every machine. Another machine is always at hand: the kernels for an old CPU,
whose sums have other last bits."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OTHER_CPU = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
BITS = """
import hashlib, torch
x = torch.randn(64, 33, generator=torch.Generator().manual_seed(0))
y = torch.nn.functional.gelu(x @ x.T).softmax(-1) @ x
print(hashlib.sha256(y.numpy().tobytes()).hexdigest())
"""


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=own | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_was_trained_is_shown_the_same_on_another_cpu() -> None:
    with redirect_stdout(StringIO()) as here:
        exec(BITS, {})
    if here.getvalue() == python("-c", BITS, **OTHER_CPU).stdout:
        pytest.skip("these settings change no bit here")
    words = ("-q", "-m", "trained", "-k", "80x24", "-p", "no:cacheprovider", "tests/tui")
    shown = python("-m", "pytest", *words, **OTHER_CPU)
    assert shown.returncode == 0, shown.stdout
