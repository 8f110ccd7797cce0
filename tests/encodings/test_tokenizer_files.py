"""An exported folder without chessreg: AutoTokenizer gives the ids of the encoding, AutoModel its logits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import chessreg
from chessreg.encodings import get_encoding, list_encodings
from chessreg.encodings.tokenizer_files import write_tokenizer_files
from tests.encodings.conftest import GAMES
from tests.quick import quick_first

OF_GAMES = [name for name in list_encodings() if get_encoding(name).content == "history"]


@pytest.mark.parametrize("name", OF_GAMES)
def test_auto_tokenizer_gives_the_ids_of_the_encoding(name: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    one = get_encoding(name)
    assert write_tokenizer_files(one, tmp_path) == sorted(path.name for path in tmp_path.iterdir())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == one.size
    for movetext in GAMES.values():
        ids = list(one.prompt(movetext.split()))
        text = one.decode(ids)
        assert tokenizer(text)["input_ids"] == one.encode(text).tolist()
        assert one.encode(tokenizer.decode(one.encode(text))).tolist() == one.encode(text).tolist()
    with pytest.raises(Exception, match="UNK"):
        tokenizer("e2e4 @")


def test_a_position_has_no_tokenizer_files(tmp_path: Path) -> None:
    assert write_tokenizer_files(get_encoding("fen-77"), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("which", "text"), quick_first(1, [("uci", "e2e4 e7e5 g1f3"), ("pgn", ";1.e4 e5 2.Nf3")]))
def test_a_bundled_model_is_exported_and_answers_without_chessreg(which: str, text: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from chessreg.entities.checkpoint import export_checkpoint, import_reference

    with chessreg.init(tmp_path / "here") as reg:
        import_reference(reg.database, reg.store, "mine", which)
        folder = export_checkpoint(reg.database, reg.store, "mine", tmp_path / "out")
        ours = reg.model("mine")
        assert reg.import_checkpoint(folder) == reg.checkpoints()[0]["id"]
    with chessreg.init(tmp_path / "there") as other:
        other.import_checkpoint(folder, name="mine")
        assert other.checkpoints()[0]["artifact"] == reg_artifact(tmp_path / "here")
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
    assert tokens[0].tolist() == ours.encoding.encode(text).tolist()
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        np.testing.assert_allclose(theirs(tokens).logits, ours.logits(tokens), atol=2e-5)


def reg_artifact(folder: Path) -> str:
    with chessreg.open(folder) as reg:
        return str(reg.checkpoints()[0]["artifact"])
