"""`chessreg launch … --on slurm:PROFILE --print`: the batch script on stdout, and nothing done."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TOY = Path(__file__).parent.parent / "kinds" / "toy_kind.py"
needs_slurm = pytest.mark.skipif(shutil.which("sbatch") is None, reason="no sbatch here: make deps")


@needs_slurm
def test_print_shows_the_script_and_does_nothing(here, monkeypatch):
    file = here.folder / ".chessreg" / "profiles.toml"
    file.write_text('[gpu]\npartition = "a100"\nsetup = ["module load cuda"]\n')
    assert here("launch", TOY, "--on", "slurm:gpu", "--print") == 4
    assert f"hint: read it, then: chessreg trust {file}" in here.err
    assert here("trust", file) == 0, here.err
    before = here.state()
    assert here("launch", TOY, "--on", "slurm:gpu", "--shards", "2", "--device", "cpu", "--print") == 0, here.err
    assert here.out.startswith("#!/bin/bash\n")
    assert "#SBATCH --partition=a100\n" in here.out
    assert "#SBATCH --array=0-1\n" in here.out
    assert subprocess.run(["bash", "-n"], input=here.out, text=True).returncode == 0
    (script,) = here.json("launch", TOY, "--on", "slurm:gpu", "--device", "cpu", "--print")["scripts"]
    assert "--array" not in script
    assert here.state() == before
    assert here("jobs", "--all") == 0
    assert "toy" not in here.out


@needs_slurm
def test_what_cannot_be_printed_is_one_line(here):
    assert here("launch", TOY, "--on", "slurm:gpu", "--print") == 3
    assert "profile 'gpu' was not found" in here.err
    assert "chessreg/profiles.toml" in here.err
    assert here("launch", TOY, "--print") == 4
    assert "--print needs --on slurm, not --on local" in here.err
    file = here.folder / ".chessreg" / "profiles.toml"
    file.write_text('[gpu]\npartitoin = "a100"\n')
    assert here("trust", file) == 0
    assert here("launch", TOY, "--on", "slurm:gpu") == 4
    assert "unknown setting 'partitoin'" in here.err
    assert here.err.count("\n") <= 2


def test_help_says_what_a_profile_is(here):
    assert here("launch", "--help") == 0
    assert "profiles.toml" in here.out
    assert "~/.config/chessreg/" in here.out
