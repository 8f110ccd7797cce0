"""The training loop: it learns, resumes on the very next batch, and imports nothing of the house."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from chessreg.errors import BadInputError, ChessregError
from chessreg.models.corpus import IGNORED_LABEL, Corpus, collate_rows
from chessreg.models.epochs import iterate_batches
from chessreg.models.train_config import TextTraining
from chessreg.models.training import Trainer, TrainerOptions, TrainPoint, compute_attention
from tests.quick import quick_first

CONFIG = TextTraining(
    n_layer=2,
    n_head=2,
    n_embd=32,
    block_size=31,
    steps=40,
    batch_tokens=310,
    warmup_steps=5,
    learning_rate=5e-3,
    seed=3,
)
HOW = TrainerOptions(log_steps=5, autocast=False, micro_tokens=160)


def corpus(games: int = 300) -> Corpus:
    """Games that can be learnt: `;` and a run that counts up from a random start."""
    rng = np.random.default_rng(0)
    rows = [np.r_[15, (rng.integers(20) + np.arange(rng.integers(8, 60))) % 12] for _ in range(games)]
    return Corpus(np.concatenate(rows).astype(np.uint8), np.r_[0, np.cumsum([len(r) for r in rows])])


def trained(config: TextTraining, folder: Path, stops: int = 0) -> tuple[Trainer, list[TrainPoint]]:
    """A finished run, interrupted and taken up again `stops` times on the way."""
    points: list[TrainPoint] = []
    for stop in range(1, stops + 1):
        trainer = Trainer(config, corpus(), folder, HOW)
        at = config.steps * stop // (stops + 1)
        trainer.run(points.append, should_stop=lambda trainer=trainer, at=at: trainer.step >= at)
        assert trainer.step == at
    trainer = Trainer(config, corpus(), folder, HOW)
    trainer.run(points.append, heldout=corpus(20), heldout_steps=20)
    return trainer, points


FITS = quick_first(2, [("blocks", "adamw"), ("games", "muon"), ("blocks", "muon"), ("games", "adamw")])


@pytest.mark.parametrize(("rows", "optimizer"), FITS)
def test_the_loss_falls(rows: str, optimizer: str, tmp_path: Path) -> None:
    config = replace(CONFIG, packing=rows, optimizer=optimizer)
    _, points = trained(config, tmp_path)
    assert points[0].loss > 3.0
    assert points[-1].loss < 0.6 * points[0].loss
    assert [p.step for p in points if p.heldout_loss is not None] == [20, 40]
    assert points[-1].heldout_loss is not None
    assert points[-1].heldout_loss < 2.2
    assert all(p.tokens_per_second > 0 for p in points)


@pytest.mark.parametrize(("rows", "optimizer"), FITS)
def test_an_interrupted_run_ends_with_the_same_weights_and_curve(rows: str, optimizer: str, tmp_path: Path) -> None:
    config = replace(CONFIG, packing=rows, optimizer=optimizer)
    whole, curve = trained(config, tmp_path / "whole")
    pieces, joined = trained(config, tmp_path / "pieces", stops=2)  # between two points of the curve
    assert [(point.step, point.loss) for point in joined] == [(point.step, point.loss) for point in curve]
    assert whole.epoch > 0  # the interruptions lie in several epochs
    assert (pieces.step, pieces.tokens_seen, pieces.epoch, pieces.position) == (
        whole.step,
        whole.tokens_seen,
        whole.epoch,
        whole.position,
    )
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, pieces.model.state_dict()[name]), name


def test_an_interrupted_run_with_dropout_draws_the_same(tmp_path: Path) -> None:
    """Davis's model: biases, gelu_new, dropout. It drops in training only."""
    config = replace(CONFIG, steps=12, biases=True, activation="gelu_new", dropout=0.3)
    whole, curve = trained(config, tmp_path / "whole")
    pieces, joined = trained(config, tmp_path / "pieces", stops=2)
    assert [(point.step, point.loss) for point in joined] == [(point.step, point.loss) for point in curve]
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, pieces.model.state_dict()[name]), name
    tokens = torch.arange(12)[None]
    made = whole.copy_trained()
    torch.manual_seed(0)
    dropped = whole.model(tokens)
    assert not torch.equal(dropped, whole.model(tokens))
    torch.testing.assert_close(whole.model.eval()(tokens), made(tokens))  # without dropout
    assert torch.equal(made(tokens), made(tokens))


@pytest.mark.parametrize("length", [5, 143])
@pytest.mark.parametrize("causal", [True, False])
def test_explicit_attention_equals_the_fused_kernel(length: int, causal: bool) -> None:
    q, k, v = (torch.randn(2, 3, length, 8, generator=torch.Generator().manual_seed(n)) for n in range(3))
    halved = [x.bfloat16() for x in (q, k, v)]
    ours = compute_attention(*halved, None, 0.0, causal=causal, explicit=True)
    assert ours.dtype == torch.bfloat16
    fused = compute_attention(*(x.float() for x in halved), None, 0.0, causal=causal)
    torch.testing.assert_close(ours.float(), fused, atol=2e-2, rtol=2e-2)
    torch.manual_seed(0)
    dropped = compute_attention(q, k, v, None, 0.5, causal=causal, explicit=True)  # of the same scores
    torch.manual_seed(0)
    kept = F.dropout(torch.ones(6, length, length), 0.5)
    scores = (q @ k.transpose(-1, -2)) * 8**-0.5 + (torch.full((length, length), -torch.inf).triu(1) if causal else 0)
    torch.testing.assert_close(dropped, (torch.softmax(scores, -1) * kept.view(2, 3, length, length)) @ v)


def test_another_recipe_does_not_resume(tmp_path: Path) -> None:
    trained(replace(CONFIG, steps=2), tmp_path)
    with pytest.raises(ChessregError, match="another learning_rate"):
        Trainer(replace(CONFIG, learning_rate=1e-3), corpus(), tmp_path, HOW)
    longer, _ = trained(replace(CONFIG, steps=4), tmp_path)
    assert longer.step == 4


@pytest.mark.parametrize("rows", ["blocks", "games"])
def test_batches_are_a_function_of_seed_and_epoch(rows: str) -> None:
    config = replace(CONFIG, packing=rows)
    first = list(iterate_batches(corpus(), config, 0))
    assert first == list(iterate_batches(corpus(), config, 0))
    assert first != list(iterate_batches(corpus(), config, 1))
    assert first != list(iterate_batches(corpus(), replace(config, seed=4), 0))
    games = [game for batch in first for row in batch for game in row]
    assert len(games) == len(set(games))
    if rows == "games":
        assert sorted(games) == list(range(300))


def test_rows_begin_with_a_game_and_padding_is_ignored() -> None:
    data = corpus()
    for rows in ("blocks", "games"):
        batch = next(iterate_batches(data, replace(CONFIG, packing=rows), 0))
        inputs, labels = collate_rows(data, batch, CONFIG.block_size + 1)
        assert bool((inputs[:, 0] == 15).all())
        assert inputs.shape[1] <= CONFIG.block_size
        for row, games in enumerate(batch):
            expected = data.row(games, CONFIG.block_size + 1)
            own = labels[row][labels[row] != IGNORED_LABEL]
            assert own.tolist() == expected[1:].tolist()
        if rows == "blocks":
            assert inputs.shape[1] == CONFIG.block_size
            assert not bool((labels == IGNORED_LABEL).any())


@pytest.mark.parametrize("length", [17, 255, 256, 300, 1023])
def test_sliced_attention_equals_the_fused_kernel(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, 3, length, 8, generator=generator, requires_grad=True) for _ in range(3))
    ours, fused = compute_attention(q, k, v, None, 0.0), F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(ours, fused, atol=1e-5, rtol=1e-4)
    weight = torch.randn(ours.shape, generator=generator)
    for one, other in zip(
        torch.autograd.grad((ours * weight).sum(), (q, k, v)),
        torch.autograd.grad((fused * weight).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_the_learning_rate_follows_its_schedule() -> None:
    cosine = TextTraining(steps=100, warmup_steps=10)
    assert cosine.rate(0) == pytest.approx(0.1)
    assert cosine.rate(9) == cosine.rate(10) == 1.0
    assert cosine.rate(55) == pytest.approx(0.55)
    assert cosine.rate(100) == pytest.approx(0.1)
    flat = replace(cosine, schedule="trapezoid", decay_steps=20)
    assert flat.rate(50) == 1.0
    assert flat.rate(90) == pytest.approx(0.55)


def test_seeds_below_0_and_above_32_bits_are_seeds_too(tmp_path: Path) -> None:
    losses = set()
    for seed in (1, -1, 5_000_000_000, -(2**63) + 1, 2**64 - 2):
        _, points = trained(replace(CONFIG, seed=seed, dropout=0.1, steps=2), tmp_path / str(seed))
        losses.add(points[-1].loss)
    assert len(losses) == 5


@pytest.mark.parametrize("rows", ["blocks", "stream"])
def test_a_corpus_that_fills_no_row_is_told(tmp_path: Path, rows: Literal["blocks", "stream"]) -> None:
    few = corpus(2)
    few = few.stream(1023) if rows == "stream" else few
    with pytest.raises(BadInputError, match=r"have fewer tokens than the model's context .*--packing games"):
        Trainer(replace(CONFIG, packing=rows, block_size=1023), few, tmp_path, HOW)
    assert not list(tmp_path.iterdir())


def test_models_train_decode_and_fit_saes_without_other_packages() -> None:
    """On a bare GPU machine neither the rest of chessreg nor its libraries, such as python-chess, can be imported."""
    script = """
        import sys

        class Blocked:
            heavy = "sqlalchemy alembic chess zarr pyarrow duckdb textual click pydantic rich transformers".split()
            light = "models", "errors", "marks", "named", "noise", "plugins"

            def find_spec(self, name, path=None, target=None):
                parts = name.split(".")
                own = parts[0] == "chessreg" and len(parts) > 1 and parts[1] not in self.light
                if parts[0] in self.heavy or parts[0] in ("store", "tui") or own:
                    raise ImportError(f"{name} is blocked")

        sys.meta_path.insert(0, Blocked())
        import torch

        from chessreg.models.decoding.legal import score_answers
        from chessreg.models.decoding.session import DecodingSession
        from chessreg.models.gated_sae import GatedSae
        from chessreg.models.language_model import LanguageModel
        from chessreg.models.train_config import TextTraining
        from chessreg.models.training import Trainer, make_initial_model

        model = LanguageModel(make_initial_model(TextTraining(n_layer=2, n_embd=16, n_head=2, block_size=32), 32))
        session = DecodingSession(model, 2)
        session.feed([[15, 6, 4], [15, 6]])
        scores = score_answers(session, [[(27, 9)], [(4,), (5,)]])
        print(Trainer.__module__, GatedSae.__module__, [len(row) for row in scores])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "chessreg.models.training chessreg.models.gated_sae [1, 2]"


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_activation_checkpointing_trains_the_same_with_fewer_kept_activations(tmp_path: Path, dropout: float) -> None:
    config, kept, weights = replace(CONFIG, steps=3, dropout=dropout), [], []
    for checkpointing in (False, True):
        options = replace(HOW, activation_checkpointing=checkpointing)
        trainer, sizes = Trainer(config, corpus(), tmp_path / str(checkpointing), options), [0]

        def pack(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes[0] += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            trainer.compute_summed_loss(trainer.model, *next(trainer.prepare_batches()).portions[0])
        trainer.run(lambda point: None)
        kept.append(sizes[0])
        weights.append(trainer.copy_trained().state_dict())
    assert kept[1] < 0.6 * kept[0]
    assert all(torch.equal(weights[0][name], tensor) for name, tensor in weights[1].items())
