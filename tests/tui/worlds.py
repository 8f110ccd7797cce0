"""Registries made by real, tiny runs, and the output of commands for them."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from chessreg.cli.root import run_command_line
from chessreg.registry import provenance, tables
from chessreg.runs.kind import find_kind
from chessreg.session import Session, open_session

from ..conftest import made_once, random_game

TOY = str(Path(__file__).parent.parent / "kinds" / "toy_kind.py")


def bigram_checkpoint(folder: Path, texts: list[str]) -> None:
    """A one-block GPT that has the pairs of characters of game texts in its MLP: about one move in six is legal, so
    that games have retries and forfeits."""
    import torch

    from chessreg.encodings.pgn_char import PgnChar
    from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
    from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint

    torch.set_num_threads(1)
    pgn = PgnChar()
    counts = np.full((pgn.size, pgn.size), 0.02)
    for text in texts:
        ids = pgn.encode(text)
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    model = make_random_gpt2(GPT2Config(n_layer=1, n_head=1, n_embd=32, block_size=512, vocab_size=32, d_mlp=32), 0)
    table = torch.from_numpy(np.log(counts / counts.sum(1, keepdims=True)))
    unit = torch.eye(32, dtype=torch.float64)
    active = torch.nn.functional.gelu(10 * torch.nn.functional.layer_norm(unit, (32,)))
    out = torch.linalg.solve(active, 10 * table - unit).T
    block = model.h[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.wte.weight.copy_(unit)
        block.ln_2.weight.fill_(1)
        block.mlp.c_fc.weight.copy_(10 * unit)
        block.mlp.c_proj.weight.copy_((out * 4096).round() / 4096)  # the same bits on every CPU
        model.ln_f.weight.fill_(2.5)
    save_checkpoint(model, folder, CheckpointInfo.from_network(model, PgnChar.name, source={"format": "test"}))


@contextmanager
def same_code() -> Iterator[None]:
    """Runs of one commit, also where the checkout is changed meanwhile."""
    state = {"root": "/project", "commit": "c0ffee" * 6 + "c0ff", "branch": "main", "remote": None, "dirty": False,
             "changed": [], "patch_sha256": None, "untracked": {}}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "read_repository_state", lambda folder: state)
        yield


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with registry and store: a dataset, a model, caches, a probe, edits, two matches, the toy, and a run
    that was interrupted."""
    return made_once("tui", make_world, tmp_path_factory)


def make_world(root: Path) -> None:
    from chessreg.experiments.cache import CacheSpec
    from chessreg.experiments.edit.spec import EditSpec
    from chessreg.experiments.play import PlayOptions, PlaySpec
    from chessreg.experiments.probe import ProbeSpec
    from chessreg.games.datasets.movetext import number_sans

    games = [random_game(n, 40, "tui world") for n in range(24)]
    (root / "games.pgn").write_text("".join(f"{game}\n\n" for game in games))
    sans = [[node.san() for node in game.mainline()] for game in games]
    bigram_checkpoint(root / "bigram", [number_sans(moves) + " " for moves in sans])
    play = PlaySpec(
        checkpoint="bigram", opponent="random", games=3, opening="random:6", move_limit=8, adjudication="none"
    )
    place = ["--registry", str(root / "registry.db"), "--store", str(root / "store")]
    for command in (
        ["dataset", "add", str(root / "games.pgn"), "--name", "games"],
        ["dataset", "split", "games", "--parts", "fit=0.6,test=0.4"],
        ["import", "checkpoint", str(root / "bigram"), "--name", "bigram"],
    ):
        assert run_command_line([*place, *command]) == 0
    with same_code(), open_session(str(root / "registry.db"), root / "store") as session:
        for part in ("fit", "test"):
            session.run(
                CacheSpec(checkpoint="bigram", dataset=f"games:{part}", games=5, max_sites=3), name=f"cache-{part}"
            )
        session.run(ProbeSpec(cache="cache-fit", test_cache="cache-test", epochs=1), name="board")
        edits = EditSpec(checkpoint="bigram", probe="board", dataset="games:test", games=2, spellings=False)
        session.run(edits, name="edits")
        session.run(play, PlayOptions(threads=1), name="plain")
        sure = play.model_copy(update={"policy": "legal", "temperatures": (1.0,)})
        session.run(sure, PlayOptions(threads=1), name="sure")
        toy = find_kind(TOY)
        session.run(toy.spec(positions=12), kind=TOY, name="toy")
        cut = session.run(toy.spec(positions=9, seed=1), kind=TOY, name="cut", on_progress=interrupt_at(4))
        assert cut.interrupted
        assert cut.state == "partial"


def interrupt_at(unit: int) -> Callable[[float, str], None]:
    calls = iter(range(1, 1000))

    def on_progress(fraction: float, text: str) -> None:
        if next(calls) >= unit:
            raise KeyboardInterrupt

    return on_progress


@pytest.fixture
def session(world: Path) -> Iterator[Session]:
    with open_session(str(world / "registry.db"), world / "store") as opened:
        yield opened


@pytest.fixture(scope="session")
def studied(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the world with more to compare: a longer probe, a model of three layers with its untrained twin and its
    probe, vectors and a control, legality, two trainings, and the interrupted run completed."""
    return made_once("studied", lambda root: study_world(world, root), tmp_path_factory)


def study_world(world: Path, root: Path) -> None:
    from chessreg.encodings.pgn_char import PgnChar
    from chessreg.entities.checkpoint import register_random_init_control
    from chessreg.experiments.cache import CacheSpec
    from chessreg.experiments.legality import LegalitySpec
    from chessreg.experiments.probe import ProbeSpec
    from chessreg.experiments.settings.skill import SkillSettings
    from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
    from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
    from tests.specs import train_spec, vector_spec

    shutil.copytree(world, root, dirs_exist_ok=True)
    deep = make_random_gpt2(GPT2Config(n_layer=3, n_head=1, n_embd=16, block_size=512, vocab_size=32), 7)
    save_checkpoint(deep, root / "deep", CheckpointInfo.from_network(deep, PgnChar.name, source={"format": "test"}))
    place = ["--registry", str(root / "registry.db"), "--store", str(root / "store")]
    assert run_command_line([*place, "import", "checkpoint", str(root / "deep"), "--name", "deep"]) == 0
    with same_code(), open_session(str(root / "registry.db"), root / "store") as session:
        register_random_init_control(session.database, session.store, "deep", name="untrained")
        session.run(ProbeSpec(cache="cache-fit", test_cache="cache-test", epochs=2), name="longer")
        for part in ("fit", "test"):
            session.run(
                CacheSpec(checkpoint="deep", dataset=f"games:{part}", games=5, max_sites=3), name=f"deep-{part}"
            )
        session.run(ProbeSpec(cache="deep-fit", test_cache="deep-test", epochs=1), name="deep-board")
        vectors = vector_spec(
            source="contrastive-uncached", checkpoint="deep", dataset="games", first_ply=0, skill=SkillSettings(bins=2)
        )
        session.run(vectors, name="skill")
        session.run(vector_spec(source="random", of="skill"), name="control")
        session.run(LegalitySpec(checkpoint="deep", dataset="games:test", games=2, every=10), name="legal")
        for n, rate in enumerate((3e-3, 1e-2)):
            train = train_spec(
                architecture="gpt2",
                datasets=("games:fit",), heldout="games:test", n_layer=1, n_head=1, n_embd=8, block_size=64, steps=12,
                batch_tokens=130, warmup_steps=2, heldout_steps=6, learning_rate=rate,
            )  # fmt: skip
            session.run(train, find_kind("train").options(threads=1, log_steps=3), name=f"train-{n}")
        level_losses(session)
        toy = find_kind(TOY)
        session.run(toy.spec(positions=9, seed=1), kind=TOY)  # the rest of "cut"


def level_losses(session: Session) -> None:
    """Give trainings losses by their steps: a curve of real ones has its dots where the CPU's last bits put them."""
    point = tables.MetricPoint
    with session.database.write() as sql:
        for n in range(2):
            losses = point.run_id == session.id("run", f"train-{n}"), point.name.in_(("loss", "heldout_loss"))
            for row in sql.scalars(select(point).where(*losses)):
                row.value = 3.5 - (n + 1) * row.step / 16 + (row.name == "heldout_loss") / 8


@pytest.fixture
def study(studied: Path) -> Iterator[Session]:
    with open_session(str(studied / "registry.db"), studied / "store") as opened:
        yield opened


@pytest.fixture
def command(studied: Path) -> Callable[..., Any]:
    """The output of a command as JSON, in the studied world. May be asked while an app runs, which takes stdout."""

    def ask(*words: str) -> Any:
        place = ["--registry", str(studied / "registry.db"), "--store", str(studied / "store")]
        with redirect_stdout(io.StringIO()) as told:
            assert run_command_line([*place, *words, "--json"]) == 0
        return json.loads(told.getvalue())

    return ask
