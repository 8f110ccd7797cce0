"""Settings of projects: `chessreg config`."""

from __future__ import annotations

from pathlib import Path

import pytest

from chessreg import settings
from chessreg.cli.root import run_command_line
from chessreg.errors import BadInputError


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "chessreg" / "source-text.json"


def test_a_setting_holds_for_a_project_and_below_it_and_nowhere_else(tmp_path: Path, config: Path) -> None:
    project, other = tmp_path / "a project.x", tmp_path / "other"
    (project / "sub" / "own").mkdir(parents=True)
    other.mkdir()
    assert settings.is_source_text_recorded(project) == (False, None)
    settings.record_source_text(project, True)
    settings.record_source_text(project / "sub" / "own", False)
    assert settings.is_source_text_recorded(project / "sub") == (True, project)
    assert settings.is_source_text_recorded(project / "sub" / "own") == (False, project / "sub" / "own")
    assert settings.is_source_text_recorded(other) == (False, None)
    assert list(project.rglob("*.json")) == [], "a project that is copied brings no setting"


def test_the_command_shows_and_changes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--folder", str(tmp_path)]
    assert run_command_line(["config", *at]) == 0
    assert "off" in capsys.readouterr().out
    assert run_command_line(["config", "source-text", "on", *at]) == 0
    out = capsys.readouterr().out
    assert "on" in out
    assert str(tmp_path) in out
    assert run_command_line(["config", "sourcetext", "on", *at]) == 2
    assert "source-text" in capsys.readouterr().err
    assert run_command_line(["config", "source-text", "maybe", *at]) == 2


@pytest.mark.parametrize("text", ["{x\n", '{"{folder}": "yes"}', '["{folder}"]', "\x00"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, config: Path, text: str) -> None:
    config.parent.mkdir(parents=True)
    config.write_text(text.replace("{folder}", str(tmp_path)))
    with pytest.raises(BadInputError, match=r"source-text\.json"):
        settings.is_source_text_recorded(tmp_path)


def test_without_a_settings_folder_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert settings.is_source_text_recorded(tmp_path) == (False, None)
