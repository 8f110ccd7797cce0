"""The record of an attempt, end to end: no secret of a command line, a patch, a file, an error or a log is in it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chessreg import settings
from chessreg.errors import BadInputError
from chessreg.registry import tables
from chessreg.runs.kind import create_kind
from chessreg.scheduling import worker
from chessreg.session import Session
from store.errors import StoreError
from store.places import open_place

from ..test_masking import BY_NAME, BY_SHAPE, WANDB, WORD, secret_in

VALUES = [*BY_SHAPE.values(), *BY_NAME.values()]
SECRETS = {word for value in VALUES for word in secret_in(value)}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, the current folder, that has all kinds of secrets in a changed and in an untracked file."""
    folder = tmp_path / "project"
    folder.mkdir()
    git = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    (folder / "settings.py").write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (folder / "settings.py").write_text("\n".join(VALUES) + "\n")
    (folder / "config.yaml").write_text("\n".join(VALUES) + "\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return folder


def recorded(session: Session) -> str:
    """Everything that is in the registry's files and in the store, as text."""
    place = session.database.place.path
    assert place
    files = [*place.parent.glob(f"{place.name}*"), *(p for p in session.store.root.rglob("*") if p.is_file())]
    with contextlib.closing(sqlite3.connect(place)) as connection:  # long texts continue on other pages of the file
        dump = [*connection.iterdump()]
    return "\n".join([*dump, *(path.read_bytes().decode(errors="replace") for path in files)])


@pytest.mark.parametrize("text", [False, True], ids=["digests", "text"])
def test_no_secret_is_recorded_with_an_attempt(
    session: Session, toy: Any, project: Path, monkeypatch: pytest.MonkeyPatch, text: bool
) -> None:
    settings.record_source_text(project, text)
    monkeypatch.setattr(sys, "argv", ["chessreg", "run", *VALUES, "--password", WORD, f"--wandb-api-key={WANDB}"])

    def fails(task: Any) -> None:
        raise RuntimeError("cannot log in: " + "\n".join(VALUES))

    monkeypatch.setattr(toy, "run", fails)
    with pytest.raises(RuntimeError):
        session.run(toy.spec(positions=1), kind=toy)
    with session.database.read() as sql:
        attempt = sql.query(tables.Attempt).one()
    state = attempt.code["working_folder"]
    assert (state["dirty"], state["changed"], list(state["untracked"])) == (True, ["settings.py"], ["config.yaml"])
    assert ("patch" in state) is text
    assert "***" in str(attempt.argv)
    assert "***" in str(attempt.message)
    session.database.close()
    everything = recorded(session)
    assert "settings.py" in everything
    assert [secret for secret in SECRETS if secret in everything] == []


def test_no_secret_is_in_the_log_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prints(order: Any, folder: Path, here: Any) -> dict[str, Any]:
        for value in VALUES:
            print(value)
            print("a warning:", value, file=sys.stderr)
        return {"cause": "failed", "message": VALUES[0], "exit_code": 1, "attempt": None}

    monkeypatch.setattr(worker, "run_order", prints)
    order = tmp_path / "work.json"
    order.write_text(json.dumps({"try": 1, "title": "toy", "job": "", "run": ""}))
    assert worker.main(order) == 1
    out, err = capsys.readouterr()
    assert out.count("***") > len(VALUES) / 2
    assert [secret for secret in SECRETS if secret in out + err] == []


def test_a_kind_may_not_have_a_setting_that_is_a_secret(toy: Any) -> None:
    from pydantic import create_model

    class Logging(type(toy)):  # type: ignore[misc]
        name = "logging"
        spec = create_model("LoggingSpec", __base__=type(toy).spec, wandb_api_key=(str, ""))

    with pytest.raises(BadInputError, match="setting wandb_api_key would be recorded"):
        create_kind(Logging)


@pytest.mark.parametrize(
    "url", [f"s3://ann:{WORD}@bucket/x", f"https://{WORD}@box/x", f"s3://bucket/x?X-Amz-Signature={WORD}"]
)
def test_the_url_of_a_bucket_has_no_credentials(url: str) -> None:
    with pytest.raises(StoreError, match="must not hold credentials") as caught:
        open_place(url)
    assert WORD not in str(caught.value)
