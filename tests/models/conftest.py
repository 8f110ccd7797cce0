"""A tiny random GPT that every fresh clone can test with, and the shared trained checkpoint where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chessreg.encodings import Encoding, get_encoding
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.edits import TOKEN_MASKS, TokenMask, register_token_mask
from chessreg.models.importers import convert_checkpoint
from chessreg.models.language_model import LanguageModel

torch.set_num_threads(1)  # tiny matrices: a second thread only waits, the longer the busier the machine

# A mask that is prefix-stable, in addition to "all".
if "test-even-ids" not in TOKEN_MASKS:
    register_token_mask(TokenMask("test-even-ids", True, lambda ids, _: ids % 2 == 0))


def tiny_model(seed: int = 0, block_size: int = 96) -> LanguageModel:
    """2 layers, d_model 32; weights ten times nanoGPT's, so that its predictions are far from uniform."""
    hf = make_random_gpt2(GPT2Config(n_layer=2, n_head=4, n_embd=32, block_size=block_size, vocab_size=32), seed)
    with torch.no_grad():
        for name, parameter in hf.named_parameters():
            if parameter.dim() == 2:
                parameter *= 4 if "wpe" in name or "wte" in name else 10
    return LanguageModel(hf)


@pytest.fixture(scope="session")
def tiny() -> LanguageModel:
    return tiny_model()


@pytest.fixture(scope="session")
def pgn() -> Encoding:
    return get_encoding("pgn-char-32")


@pytest.fixture(scope="session")
def trained(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    folder = tmp_path_factory.mktemp("trained")
    convert_checkpoint(shared_data / "checkpoints" / "lichess-8x192-char.pt", folder)
    return LanguageModel.load(folder)
