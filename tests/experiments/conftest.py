"""A model that plays: a GPT with weights written by hand, a bigram model of game text.

It writes texts like `Nf3 ` and `exd5 `, of which about one in six is legal: real retries and forfeits, in a fraction of
a millisecond per token, in every fresh clone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from chessreg.encodings import get_encoding
from chessreg.games.boards.openings import OpeningSpec, make_openings
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.models.language_model import LanguageModel

torch.set_num_threads(1)  # tiny matrices: a second thread only waits


def transitions(likes: str, name: str) -> np.ndarray:
    """log P(next token | token) in random games, float64 [tokens, tokens], with the tokens in `likes` made likely."""
    written = get_encoding(name)
    counts = np.full((written.size, written.size), 0.02)
    for opening in make_openings(OpeningSpec("random", "30"), 0, range(60)):
        board = opening.board()
        last = board.pop()
        ids = np.array([*written.prompt(opening.sans[:-1]), *written.answer(board, last)])
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    ids = written.encode(likes)
    np.add.at(counts, (ids[:-1], ids[1:]), counts.sum(1)[ids[:-1]])
    return np.log(counts / counts.sum(1, keepdims=True))


def bigram_model(
    block_size: int = 512, likes: str = "", name: str = "pgn-char-32", table: np.ndarray | None = None
) -> LanguageModel:
    """A one-block GPT: the embedding is one-hot, the MLP a table of transitions, attention writes nothing."""
    size = get_encoding(name).size
    config = GPT2Config(n_layer=1, n_head=1, n_embd=size, block_size=block_size, vocab_size=size, d_mlp=size)
    hf = make_random_gpt2(config, 0)
    wanted = torch.from_numpy(transitions(likes, name) if table is None else table).float()
    block = hf.h[0]
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.zero_()
        hf.wte.weight.copy_(torch.eye(size))
        block.ln_2.weight.fill_(1)
        block.mlp.c_fc.weight.copy_(10 * torch.eye(size))
        active = torch.nn.functional.gelu(10 * torch.nn.functional.layer_norm(torch.eye(size), (size,)))
        block.mlp.c_proj.weight.copy_(torch.linalg.solve(active, 10 * wanted - torch.eye(size)).T)
        hf.ln_f.weight.fill_(2.5)
    return LanguageModel(hf, CheckpointInfo.from_network(hf, name))


@pytest.fixture(scope="session")
def bigram() -> Callable[..., LanguageModel]:
    """Makes the bigram model; `block_size` is its context in characters, `likes` a text that it likes to write."""
    return bigram_model


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bigram") / "checkpoint"
    made = bigram_model().network
    save_checkpoint(made, folder, CheckpointInfo.from_network(made, "pgn-char-32", source={"format": "test"}))
    return folder
