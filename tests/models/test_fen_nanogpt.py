"""Junkin's nanoGPT of positions: read with the attention that the user names, and equal to his own code."""

from pathlib import Path
from typing import Any

import chess
import pytest
import torch

from chessreg.encodings import get_encoding
from chessreg.errors import BadInputError
from chessreg.models.checkpoint import load_model
from chessreg.models.importers import UnrecordedSettings, convert_checkpoint
from tests.models.foreign import nanogpt_checkpoint, written

SHAPE: dict[str, Any] = {"n_embd": 16, "n_head": 2, "block_size": 78, "vocab_size": 1968}
ACTIONS = [0, 317, 169, 1924, 1967]
LOGITS = {  # of these actions at the initial position, from his nanoGPT.py at c035592 with these weights
    "bidirectional": [0.34582, -0.25269, -0.0104, -0.47155, -0.30832],
    "causal": [0.35185, -0.24461, -0.01021, -0.47033, -0.31748],
}


@pytest.mark.parametrize("attention", LOGITS)
def test_logits_are_those_of_his_code(attention: Any, tmp_path: Path) -> None:
    path = written(nanogpt_checkpoint(**SHAPE), tmp_path / "ckpt600000.pt")
    report = convert_checkpoint(path, tmp_path / "out", settings=UnrecordedSettings(attention=attention))
    assert (report.format, report.info.encoding, report.info.head) == ("fen_nanogpt", "fen-77", "action")
    assert (report.info.attention, report.info.architecture["embedding"]) == (attention, "tied")
    tokens = torch.from_numpy(get_encoding("fen-77").encode(chess.STARTING_FEN).astype("int64"))[None]
    with torch.no_grad():
        logits = load_model(tmp_path / "out")(tokens)
    assert logits[0, 0, ACTIONS].tolist() == pytest.approx(LOGITS[attention], abs=2e-5)


REFUSED: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no attention": ({}, None, "does not record whether the model's attention is causal (give --attention"),
    "biases": ({"bias": True}, "causal", "weights that no FEN encoder of this shape has"),
    "no positions": ({"block_size": 79}, "causal", "has a vocabulary of 1968, but encoding pgn-char-32 has 32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_read_is_refused(name: str, tmp_path: Path) -> None:
    changed, attention, reason = REFUSED[name]
    path = written(nanogpt_checkpoint(**{**SHAPE, **changed}), tmp_path / "ckpt.pt")
    with pytest.raises(BadInputError) as caught:
        convert_checkpoint(path, tmp_path / "out", settings=UnrecordedSettings(attention=attention))
    assert reason in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_another_encoding_is_refused(tmp_path: Path) -> None:
    path = written(nanogpt_checkpoint(**SHAPE), tmp_path / "ckpt.pt")
    with pytest.raises(BadInputError, match="--encoding fen-77"):
        convert_checkpoint(
            path, tmp_path / "out", encoding="uci-square-72", settings=UnrecordedSettings(attention="causal")
        )
