"""A registry with a model that plays: a GPT with weights written by hand, a bigram model of game text.

It writes things like `Nf3 ` and `exd5 `, of which one in six or so is legal: real retries and forfeits, in a fraction
of a millisecond a token, on every fresh clone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chessreg.games.engines import find_stockfish
from chessreg.games.openings import OpeningSpec, openings
from chessreg.games.tokenizers import PgnCharacters, Tokenizer
from chessreg.jobs.checkpoints import import_checkpoint
from chessreg.models.checkpoint import CheckpointInfo, gpt2_config, save_checkpoint
from chessreg.models.language_model import LanguageModel
from chessreg.models.random_twin import random_twin
from chessreg.session import Session, open_session

torch.set_num_threads(1)  # tiny matrices: a second thread only waits

NAME = "bigram"


def transitions() -> np.ndarray:
    """log P(next character | character) in the text of random games, float64 [32, 32]."""
    pgn = PgnCharacters()
    counts = np.full((pgn.size, pgn.size), 0.02)
    for opening in openings(OpeningSpec("random", "30"), 0, range(60)):
        ids = pgn.encode(pgn.render(opening.sans) + " ")
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    return np.log(counts / counts.sum(1, keepdims=True))


def bigram_model(block_size: int = 512) -> LanguageModel:
    """A one-block GPT: the embedding is one-hot, the MLP a table of transitions, attention writes nothing."""
    size = PgnCharacters.size
    config = gpt2_config(n_layer=1, n_head=1, n_embd=size, block_size=block_size, vocab_size=size, d_mlp=size)
    hf = random_twin(config, 0)
    table = torch.from_numpy(transitions()).float()
    block = hf.transformer.h[0]
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.zero_()
        hf.transformer.wte.weight.copy_(torch.eye(size))
        block.ln_2.weight.fill_(1)
        block.mlp.c_fc.weight.copy_(10 * torch.eye(size))
        active = torch.nn.functional.gelu(10 * torch.nn.functional.layer_norm(torch.eye(size), (size,)))
        block.mlp.c_proj.weight.copy_(torch.linalg.solve(active, 10 * table - torch.eye(size)))
        hf.transformer.ln_f.weight.fill_(2.5)
    return LanguageModel(hf)


@pytest.fixture(scope="session")
def model() -> LanguageModel:
    return bigram_model()


@pytest.fixture(scope="session")
def small() -> LanguageModel:
    """The same with room for 64 characters."""
    return bigram_model(block_size=64)


@pytest.fixture(scope="session")
def pgn() -> Tokenizer:
    return PgnCharacters()


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bigram") / "checkpoint"
    made = bigram_model()
    save_checkpoint(made.hf, folder, CheckpointInfo.of(made.hf, PgnCharacters.name, source={"format": "test"}))
    return folder


@pytest.fixture
def session(tmp_path: Path, checkpoint_folder: Path) -> Iterator[Session]:
    """A registry and store with the bigram model in it."""
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as opened:
        import_checkpoint(opened.database, opened.store, checkpoint_folder, name=NAME)
        yield opened


@pytest.fixture
def play(session: Session) -> Callable[..., Any]:
    """Run a match with these settings; `how` is a dict of how-settings. Returns the run's report."""
    from chessreg.experiments.play import PlayHow, PlaySpec

    def run(how: dict[str, Any] | None = None, **settings: Any) -> Any:
        spec = PlaySpec(**{"checkpoint": NAME, "opponent": "random", "adjudication": "none", **settings})
        return session.run(spec, PlayHow(**{"device": "cpu", "threads": 1, **(how or {})}))

    return run


@pytest.fixture(scope="session")
def stockfish() -> Path:
    """The installed Stockfish; tests that need it are skipped where there is none."""
    from chessreg.errors import NotFoundError

    try:
        return find_stockfish()
    except NotFoundError as error:
        pytest.skip(str(error))


VECTORS = '''
import numpy as np
from chessreg.jobs.kind import Kind
from chessreg.jobs.spec import CheckpointRef, Spec

class VectorSpec(Spec):
    checkpoint: CheckpointRef
    layers: tuple[int, ...] = (0,)
    d_model: int = 32

class Vectors(Kind):
    """Directions 3, 4, 5, ... for tests: rows and files as the kind `vector` leaves them."""
    name, families, spec = "vector", ("metric_point",), VectorSpec

    def units(self, spec, inputs):
        return len(spec.layers)

    def run(self, task):
        from safetensors.numpy import save_file
        checkpoint, _ = task.inputs.checkpoint(task.spec.checkpoint)
        for unit in task.units:
            layer = task.spec.layers[unit]
            vector = np.arange(3, 3 + task.spec.d_model, dtype=np.float32) * (layer + 1)
            with task.output(f"layer-{layer}", unit, "vector") as folder:
                save_file({"vector": vector}, folder / "vector.safetensors")
                (folder / "meta.json").write_text("{}")
            task.record("vector", run_id=task.run_id, unit=unit, artefact=task.last_output.digest,
                        checkpoint_id=checkpoint.id, hook_point=f"blocks.{layer}.hook_resid_post", layer=layer,
                        source="contrastive:white_elo", positions="dots", norm=float(np.linalg.norm(vector)), detail={})
            task.done(unit)
'''


@pytest.fixture
def make_vectors(session: Session, tmp_path: Path) -> Callable[..., str]:
    """Make a run of kind `vector` on the bigram model and return its id."""
    from chessreg.jobs.kind import kind

    path = tmp_path / "test_vector_kind.py"
    path.write_text(VECTORS)

    def make(**settings: Any) -> str:
        spec = kind(str(path)).spec(**{"checkpoint": NAME, **settings})
        return session.run(spec, kind=str(path)).run_id.hex  # type: ignore[no-any-return]

    return make
