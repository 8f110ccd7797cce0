"""A sharded training (FSDP2) is the training on one process, to rounding, and any number of processes resumes it."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from chessreg.errors import BadInputError
from chessreg.experiments.finetune import FinetuneOptions, FinetuneSpec
from chessreg.experiments.train import BranchSpec, TrainOptions
from chessreg.models.corpus import PositionCorpus
from chessreg.models.ranks import LostProcessError, explain_lost_collective, run_ranks
from chessreg.models.sharding import find_norms
from chessreg.models.train_config import PositionTraining
from chessreg.models.training import Trainer, TrainPoint
from chessreg.runs.kind import find_kind

from .test_ranks import SHORT, followers, losses
from .test_training import HOW, corpus

SHARDED = replace(HOW, fsdp=True)


def read_state(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "state.pt", weights_only=True)
    return state


@pytest.mark.slow
def test_a_sharded_training_resumes_on_any_number_of_processes(tmp_path: Path) -> None:
    """Its states hold whole tensors: those of one process, except for rounding."""
    alone = losses(tmp_path / "one", 1)
    for devices, until, options in ((2, 7, SHARDED), (2, 11, HOW), (1, 14, HOW), (2, SHORT.steps, SHARDED)):
        curve = losses(tmp_path / "mixed", devices, until, options=options)
    assert curve == pytest.approx(alone, abs=1e-5)
    assert followers() == []
    one, mixed = read_state(tmp_path / "one"), read_state(tmp_path / "mixed")
    assert one["model"].keys() == mixed["model"].keys()
    for name, tensor in one["model"].items():
        assert torch.allclose(mixed["model"][name], tensor, atol=1e-5), name
    [state], [other] = one["optimizers"], mixed["optimizers"]
    assert state["param_groups"] == other["param_groups"]
    for number, values in state["state"].items():
        assert values.keys() == other["state"][number].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.allclose(other["state"][number][key], value, atol=1e-5) for key, value in values.items())


@pytest.mark.slow
@pytest.mark.parametrize(("tolerance", "settings", "options"), [
    (1e-4, {"optimizer": "muon"}, {}),
    (1e-3, {}, {"autocast": True}),
    (1e-3, {}, {"autocast": True, "activation_checkpointing": True}),
    (1e-5, {"packing": "games"}, {"micro_tokens": 64}),
])  # fmt: skip
def test_a_sharded_training_has_the_same_losses(
    tolerance: float, settings: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    """With Muon, in bfloat16, with activation checkpointing, and with unequal numbers of passes in three processes."""
    config = replace(SHORT, **settings)
    alone = losses(tmp_path / "one", 1, config=config, options=replace(HOW, **options))
    sharded = losses(tmp_path / "three", 3, config=config, options=replace(SHARDED, **options))
    assert sharded == pytest.approx(alone, abs=tolerance)


@pytest.mark.slow
def test_a_compiled_sharded_training_has_the_same_losses(tmp_path: Path) -> None:
    alone = losses(tmp_path / "one", 1, until=5)
    assert losses(tmp_path / "two", 2, until=5, options=replace(SHARDED, compile=True)) == pytest.approx(
        alone, abs=1e-4
    )


@pytest.mark.slow
def test_a_sharded_encoder_of_positions_has_the_same_losses(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = PositionCorpus(rng.integers(0, 30, (200, 77)).astype(np.uint8), rng.integers(0, 1968, 200))
    config = PositionTraining(n_layer=2, n_head=2, n_embd=32, steps=10, batch_moves=50, warmup_steps=2)
    curves = []
    for devices in (1, 2):
        trainer = Trainer(config, made, tmp_path / str(devices), replace(HOW, fsdp=devices == 2, micro_tokens=800))
        with run_ranks(trainer, devices):
            trainer.run(lambda point: None, made)
        curves.append([(point.loss, point.heldout_loss, point.heldout_accuracy) for point in trainer.curve])
    assert np.array(curves[1], float) == pytest.approx(np.array(curves[0], float), abs=1e-4, nan_ok=True)


def test_each_process_keeps_its_part_and_the_checkpoint_is_whole(tmp_path: Path) -> None:
    trainer = Trainer(SHORT, corpus(), tmp_path, SHARDED)
    sizes: list[int] = []

    def measure(model: Any) -> dict[str, float]:
        for group in trainer.optimizers[0].param_groups:
            sizes.extend(parameter.to_local().numel() for parameter in group["params"])
        assert trainer.is_sharded
        return {"parameters": float(model.count_parameters()[0])}

    with run_ranks(trainer, 2):
        trainer.run(lambda point: None, None, 20, measure=measure)
    whole = sum(parameter.numel() for parameter in trainer.model.parameters())
    assert sum(sizes) == pytest.approx(whole / 2, rel=0.01)
    assert trainer.curve[-1].measured == {"parameters": whole}
    trained = trainer.copy_trained()  # after the other process has ended
    assert not trainer.is_sharded
    for name, tensor in read_state(tmp_path)["model"].items():
        assert torch.equal(trained.state_dict()[name], tensor), name


@pytest.mark.slow
def test_a_sharded_training_whose_process_is_killed_is_lost_and_resumes(tmp_path: Path) -> None:
    trainer = Trainer(SHORT, corpus(), tmp_path, SHARDED)

    def kill(point: TrainPoint) -> None:
        trainer.save()
        [follower] = followers()
        os.kill(follower.pid, signal.SIGKILL)
        psutil.Process(follower.pid).wait(20)

    with pytest.raises(LostProcessError, match="one of the 2 processes of this training has"), run_ranks(trainer, 2):
        trainer.run(kill)
    assert trainer.step == HOW.log_steps
    again = Trainer(SHORT, corpus(), tmp_path, HOW)
    assert again.step == HOW.log_steps
    again.run(lambda point: None)
    assert [p.loss for p in again.curve] == pytest.approx(losses(tmp_path / "one", 1)[:-1], abs=1e-5)


def test_an_error_of_the_model_is_not_taken_for_a_lost_process() -> None:
    with pytest.raises(RuntimeError, match="mat1"), explain_lost_collective(2):
        torch.zeros(2, 3) @ torch.zeros(2, 3)


def test_norms_are_found_among_a_block_s_modules() -> None:
    block = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.RMSNorm(4), nn.GELU())
    assert find_norms(block) == [block[0], block[2]]


def test_sharding_that_is_not_possible_is_refused() -> None:
    with pytest.raises(BadInputError, match="--fsdp"):
        TrainOptions(fsdp=True)
    TrainOptions(fsdp=True, nodes=2)
    branches = BranchSpec(architecture="gpt2-best-moves", datasets=("positions",), source_games="games")
    with pytest.raises(BadInputError, match="gpt2-best-moves"):
        find_kind("train").check_options(branches, TrainOptions(fsdp=True, devices=2))
    quantized = FinetuneSpec(checkpoint="llama", datasets=("positions",), tune="qlora")
    with pytest.raises(BadInputError, match="qlora"):
        find_kind("finetune").check_options(quantized, FinetuneOptions(fsdp=True, devices=2))
