"""The model card of an exported checkpoint states the registry's facts, and its code runs."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
import yaml

import chessreg
from chessreg.cli.root import run_command_line
from chessreg.errors import NotFoundError
from chessreg.model_card import NOT_RECORDED, format_model_card

from .queries.test_any_value import DEMO


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    with zipfile.ZipFile(DEMO) as packed:
        packed.extractall(folder)
    return folder


def blocks(card: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", card, re.DOTALL)


def test_a_trained_model_has_its_games_script_and_results(demo: Path) -> None:
    with chessreg.open(demo) as reg:
        card = format_model_card(reg, "reference")
        [dataset] = [row for row in reg.datasets() if row["name"] == "lessons"]
        share = reg.query("legal moves by ply", checkpoint="reference").rows[0]
    _, matter, text = card.split("---\n", 2)
    assert yaml.safe_load(matter) == {"library_name": "transformers", "tags": ["chess", "chessreg"]}
    assert f"| lessons | {dataset['games']} |" in text
    assert dataset["artifact"] in text
    script = blocks(text, "sh")[-1]
    assert script.startswith("#!/bin/sh")
    assert "chessreg run train" in script
    assert f"{share['legal']:.1f} [" in text


def test_its_code_loads_the_folder(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    assert run_command_line(["--registry", str(demo), "export", "checkpoint", "reference", str(folder)]) == 0
    [code] = blocks((folder / "README.md").read_text(encoding="utf-8"), "python")
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    exec(code, names)
    assert type(names["model"]).__name__ == "GPT2LMHeadModel"
    assert names["tokenizer"](";1.e4")["input_ids"] == [15, 6, 4, 27, 9]  # type: ignore[operator]


@pytest.mark.slow
def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    from chessreg.entities.checkpoint import import_reference

    with chessreg.init(tmp_path / "reg") as reg:
        import_reference(reg.database, reg.store, "mine", "fen")
        card = format_model_card(reg, "mine")
        assert "# mine" in card
        assert f"The training games are {NOT_RECORDED}." in card or "## Training data\n\n| dataset" in card
        assert not blocks(card, "python"), "transformers has no such architecture"
        with pytest.raises(NotFoundError):
            format_model_card(reg, "none")
