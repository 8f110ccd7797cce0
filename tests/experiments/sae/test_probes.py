"""Probes of an SAE: their fit, their decoded directions, and the kinds that accept them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chessreg.entities.checkpoint import import_checkpoint
from chessreg.entities.run import build_unit_frames
from chessreg.errors import BadInputError
from chessreg.experiments.cache import CacheSpec
from chessreg.experiments.edit import EditSpec
from chessreg.experiments.probe import ProbeSpec
from chessreg.experiments.probe_apply import ApplySpec
from chessreg.experiments.sae import SaeSpec
from chessreg.games.datasets import labels
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.registry import tables
from chessreg.runs.fitted import read_layer
from chessreg.session import Session, open_session

PROBE: dict[str, Any] = {"cache": "reference-fit", "test_cache": "reference-test", "layers": (1,), "epochs": 1}
SMALL: dict[str, Any] = {"expansions": (2,), "tokens": 2000, "batch_tokens": 100, "heldout_games": 4, "boards": 0}


@pytest.fixture(scope="module")
def opened(world: Path) -> Iterator[Session]:
    with open_session(str(world / "registry.db"), world / "store") as session:
        session.run(SaeSpec(cache="reference-fit", **SMALL, l1_coefficient=0.5, learning_rate=3e-3), name="features")
        for source, sae in (("sae-latents", "features"), ("sae-contrast", "features"), ("means", None)):
            session.run(ProbeSpec(**PROBE, source=source, sae=sae), name=f"by-{source}")
        yield session


def tensors(session: Session, name: str) -> dict[str, np.ndarray]:
    with session.database.read() as sql:
        (row,) = sql.query(tables.ProbeRecord).filter_by(run_id=session.id("run", name)).all()
    return read_layer(session.store.path(row.artifact) / "probe.safetensors", weight=3)


def scores(session: Session, name: str, split: str = "test") -> dict[int, tuple[int, int, bytes]]:
    with session.database.read() as sql:
        found = sql.query(tables.Score).filter_by(run_id=session.id("run", name), split=split)
        return {row.item: (row.n, row.correct, row.counts) for row in found}


def fitted_rows(session: Session) -> tuple[torch.Tensor, np.ndarray]:
    """Residuals of the rows that the probes were fitted on, and the pieces on their boards."""
    from chessreg.experiments.probe.data import Labelling, ProbeData

    inputs = session.inputs
    data = ProbeData.load(inputs, inputs.reference("run:cache", "reference-fit"), Labelling("piece"), "cache")
    fitted = np.flatnonzero(data.rows & ~data.draw_held_out(0.1, 0))
    return torch.from_numpy(data.cache.values(1, fitted)), data.labels[fitted]


def test_the_latent_probe_is_decoded_and_scored_on_latents(opened: Session) -> None:
    sae, found = opened.sae("features", layer=1), tensors(opened, "by-sae-latents")
    assert found["latent_weight"].shape == (64, 64, 13)
    decoded = np.einsum("fd,fsc->dsc", sae.W_dec.numpy(), found["latent_weight"]) / sae.scale
    np.testing.assert_allclose(found["weight"], decoded, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(found["decoder_bias"], sae.b_dec.numpy() / sae.scale, rtol=1e-6)
    assert opened.probe("by-sae-latents", layer=1).weight.shape == (32, 64, 13)
    rows = opened.cache("reference-test").read(layer=1)
    games = opened.dataset("sample")
    game = int(rows.game[0])
    mine = rows.game == game
    (_, positions), *_ = labels.iterate_positions(games, rows.game[mine], rows.ply[mine])
    latents = sae.encode(torch.from_numpy(rows.residual[mine])).numpy()
    read = np.einsum("nf,fsc->nsc", latents, found["latent_weight"]).argmax(-1)
    n, correct, _ = scores(opened, "by-sae-latents")[game]
    assert (n, correct) == (read.size, int((read == labels.classify_pieces(positions.boards)).sum()))


def test_a_contrast_is_a_difference_of_mean_reconstructions_and_means_of_residuals(opened: Session) -> None:
    residual, truth = fitted_rows(opened)
    sae = opened.sae("features", layer=1)
    again = sae.decode(sae.encode(residual))
    for name, values in (("by-sae-contrast", again), ("by-means", residual)):
        found = tensors(opened, name)
        np.testing.assert_array_equal(found["n_positions"], np.stack([(truth == c).sum(0) for c in range(13)], 1))
        checked = 0
        for square, piece in ((4, 12), (28, 6), (28, 7), (57, 1), (0, 7)):  # the last, a pawn on a1, is never there
            there = torch.from_numpy(truth[:, square] == piece)
            if there.sum() < 10 or (~there).sum() < 10:
                assert (found["weight"][:, square, piece] == 0).all()
                continue
            checked += 1
            wanted = values[there].double().mean(0) - values[~there].double().mean(0)
            np.testing.assert_allclose(found["weight"][:, square, piece], wanted.numpy(), atol=2e-3, rtol=1e-2)
        assert checked >= 2


def test_a_probe_of_latents_is_held_against_the_linear_one_of_the_same_games(opened: Session) -> None:
    opened.run(ProbeSpec(**PROBE), name="linear")
    rows = opened.query("probe accuracy by source", run=("linear", "by-sae-latents", "by-means")).rows
    assert {(row["source"], row["split"]) for row in rows} == {
        (source, split) for source in ("sae-latents", "means") for split in ("test", "validation")
    }
    own, linear = scores(opened, "by-sae-latents"), scores(opened, "linear")
    assert own.keys() == linear.keys()
    [row] = [row for row in rows if (row["source"], row["split"]) == ("sae-latents", "test")]
    n, correct = sum(each[0] for each in own.values()), sum(each[1] for each in own.values())
    of_linear = sum(each[1] for each in linear.values())
    assert (row["n_games"], row["n"]) == (len(own), n)
    assert row["accuracy"] == pytest.approx(100 * correct / n)
    assert row["linear_minus"] == pytest.approx(100 * (of_linear - correct) / n)
    assert row["linear_minus_low"] <= row["linear_minus"] <= row["linear_minus_high"]


@pytest.mark.parametrize("source", ["sae-latents", "sae-contrast", "means"])
def test_edits_and_boards_take_them_and_other_caches_are_read_alike(opened: Session, source: str) -> None:
    edit = EditSpec(
        checkpoint="reference", probe=f"by-{source}", dataset="sample:test", games=3, per_game=1, layers=(1,)
    )
    assert opened.run(edit).state == "complete"
    opened.run(ApplySpec(probe=f"by-{source}", cache="reference-test"), name=f"applied-{source}")
    assert scores(opened, f"applied-{source}") == scores(opened, f"by-{source}")
    game = min(scores(opened, f"by-{source}", "validation"))
    frames = build_unit_frames(opened.inputs, opened.id("run", f"by-{source}"), 0, game)
    wrong = sum(len(frame.marks) for frame in frames)
    n, correct, _ = scores(opened, f"by-{source}", "validation")[game]
    assert wrong == n - correct


def test_what_does_not_go_together_is_refused(opened: Session, tmp_path: Path) -> None:
    twin = make_random_gpt2(GPT2Config(n_layer=2, n_head=2, n_embd=32, block_size=1023, vocab_size=32), seed=5)
    save_checkpoint(twin, tmp_path / "twin", CheckpointInfo.from_network(twin, "pgn-char-32"))
    import_checkpoint(opened.database, opened.store, tmp_path / "twin", name="twin")
    opened.run(CacheSpec(checkpoint="twin", dataset="sample:fit", games=4, max_sites=8), name="of-twin")
    opened.run(SaeSpec(cache="reference-fit", **SMALL, layers=(0,)), name="only-0")
    for settings, message in (
        ({"source": "sae-latents"}, "source sae-latents needs --sae"),
        ({"sae": "features"}, "source residual does not use --sae"),
        ({"source": "means", "sae": "features"}, "source means does not use --sae"),
        ({"source": "sae-latents", "sae": "only-0"}, "the SAE run has no SAE of blocks.1.hook_resid_post"),
        (
            {"source": "sae-contrast", "sae": "features", "cache": "of-twin", "test_cache": None},
            "another model",
        ),
        ({"source": "means", "label": "rating"}, "needs a label of classes, but rating is a number"),
        ({"source": "sae-latents", "sae": "reference-board"}, "not a sae run"),
    ):
        with pytest.raises(BadInputError, match=message) as caught:
            opened.run(ProbeSpec(**{**PROBE, **settings}))
        assert "\n" not in str(caught.value)
