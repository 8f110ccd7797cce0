"""Encoding × adapter × kind: each works on a tiny model made here, or a line says what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from chessreg.encodings import encoding
from chessreg.encodings.prompts import prompt_of_folder
from chessreg.entities.checkpoint import import_checkpoint
from chessreg.errors import ChessregError
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.edit import EditSpec
from chessreg.experiments.legality import LegalitySpec
from chessreg.experiments.move_quality import MoveQualitySpec
from chessreg.experiments.play import PlaySpec
from chessreg.experiments.probe import ProbeSpec
from chessreg.experiments.vector import VectorSpec
from chessreg.models.adapters import Network
from chessreg.models.adapters.bridge import Bridged
from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder
from chessreg.models.adapters.gpt2 import GPT2Config, random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.session import Session, open_session
from tests.language_models import write_language_model, write_tokenizer

ENCODINGS = ("pgn-char-32", "uci-square-72", "uci-square-77", "fen-77", "prompt")
ADAPTERS = ("gpt2", "causal-fen-encoder", "bidirectional-fen-encoder", "llama", "gpt_neox")
KINDS = ("cache", "probe", "vector", "legality", "move-quality", "edit", "play")
LONG = 448  # tokens of the longest game of the world, a little more
SMALL: dict[str, Any] = {"dataset": "sample:fit", "games": 3}

REFUSED = {
    **{(name, f"{mask}-fen-encoder", kind): "vocabulary of 31"
       for name in ENCODINGS if name != "fen-77" for mask in ("causal", "bidirectional") for kind in KINDS},
    **{("fen-77", adapter, kind): "1,968 answers"
       for adapter in ("gpt2", "llama", "gpt_neox") for kind in ("legality", "move-quality", "edit", "play")},
}  # fmt: skip
"""What is missing where a cell does not work; every other works."""


def network(adapter: str, vocabulary: int) -> Network:
    """2 layers, d_model 32, of random weights."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

    if adapter == "gpt2":
        return random_gpt2(GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=LONG, vocab_size=vocabulary), 0)
    if adapter.endswith("fen-encoder"):
        return FenEncoder(FenConfig(2, 2, 32, adapter.partition("-")[0])).untrained(0)  # type: ignore[arg-type]
    torch.manual_seed(0)
    shape = {"vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 2, "max_position_embeddings": LONG}
    if adapter == "llama":
        return Bridged(LlamaForCausalLM(LlamaConfig(**shape)).eval())
    return Bridged(GPTNeoXForCausalLM(GPTNeoXConfig(**shape)).eval())


@pytest.fixture(scope="module")
def session(world: Path) -> Iterator[Session]:
    with open_session(str(world / "registry.db"), world / "store") as opened:
        yield opened


@pytest.fixture(scope="module")
def imported(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """The checkpoint of an encoding and an adapter, imported once; the refusal, as often as it is asked for."""
    done: dict[tuple[str, str], str | ChessregError] = {}
    root = tmp_path_factory.mktemp("matrix")

    def ensure(name: str, adapter: str) -> str:
        if (name, adapter) not in done:
            try:
                done[name, adapter] = bring_in(session, name, adapter, root / f"{name}-{adapter}")
            except ChessregError as error:
                done[name, adapter] = error
        found = done[name, adapter]
        if isinstance(found, ChessregError):
            raise found
        return found

    return ensure


def bring_in(session: Session, name: str, adapter: str, folder: Path) -> str:
    """A checkpoint of random weights, saved and imported; a prompt's is a Hugging Face folder with a tokenizer."""
    if name == "prompt" and not adapter.endswith("fen-encoder"):
        write_language_model(folder, adapter, LONG)
    else:
        made = network(adapter, encoding("fen-77" if name == "prompt" else name).size)
        save_checkpoint(made, folder, CheckpointInfo.of(made, name))
    if name == "prompt" and adapter.endswith("fen-encoder"):
        write_tokenizer(folder / "tokenizer.json")
    written = prompt_of_folder(folder, end="</s>") if name == "prompt" else name
    import_checkpoint(session.database, session.store, folder, name=folder.name, encoding=written)
    return folder.name


def attempt(session: Session, checkpoint: str, kind: str) -> None:
    """Run the kind at its smallest. What it needs of earlier kinds is run too, and is there after the first time."""
    cache = CacheSpec(checkpoint=checkpoint, last=4, sites="white-turns", dataset="sample:fit", games=36)
    if kind in ("cache", "probe", "vector", "edit"):
        session.run(cache, name=f"{checkpoint}-cache")
    if kind in ("probe", "edit"):
        session.run(ProbeSpec(cache=f"{checkpoint}-cache", epochs=1), name=f"{checkpoint}-probe")
    if kind == "vector":
        session.run(VectorSpec(cache=f"{checkpoint}-cache", first_ply=2))
    elif kind == "legality":
        session.run(LegalitySpec(checkpoint=checkpoint, every=40, mass=True, **SMALL))
    elif kind == "move-quality":
        session.run(MoveQualitySpec(checkpoint=checkpoint, every=40, limit="nodes=50", **SMALL))
    elif kind == "edit":
        edit = EditSpec(checkpoint=checkpoint, probe=f"{checkpoint}-probe", samples=1, last_move=20, per_game=1,
                        dataset="sample:test", games=2)  # fmt: skip
        session.run(edit)
    elif kind == "play":
        session.run(PlaySpec(checkpoint=checkpoint, opponent="random", games=2, policy="retry:1", move_limit=4,
                             opening="random:4", adjudication="none"))  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_cell_works_or_says_what_is_missing(
    session: Session, imported: Callable[[str, str], str], name: str, adapter: str, kind: str
) -> None:
    missing = REFUSED.get((name, adapter, kind))
    if missing is None:
        attempt(session, imported(name, adapter), kind)
        return
    with pytest.raises(ChessregError, match=missing) as caught:
        attempt(session, imported(name, adapter), kind)
    assert "\n" not in str(caught.value)
