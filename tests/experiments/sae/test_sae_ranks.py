"""Autoencoders that several processes train together equal those of one process, to rounding."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from sqlalchemy import select

from chessreg.experiments.sae import SaeOptions, SaeSpec
from chessreg.experiments.sae.training import SaeTrainer
from chessreg.experiments.sae.work import SaeWork
from chessreg.models.gated_sae import Adam, GatedSae, train_step
from chessreg.models.ranks import LostProcessError, Ranks
from chessreg.registry import tables
from tests.quick import quick_first

from ...models.test_ranks import followers
from .test_sae import SMALL, STREAM, another, opened, points, values

__all__ = ["another", "opened"]

PARTS: dict[str, Any] = {"tokens": 2900, "learning_rate": 3e-3, "boards": 0, "l0": 4.0, "l0_search": (0.5, 4.0)}


@pytest.mark.parametrize("source", quick_first(1, ["model", "cache"]))
def test_two_processes_train_as_one_also_after_one_of_them_is_killed(
    source: str, opened: Any, another: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search first, several layers, a last batch that is smaller, and a start on one process."""
    made = STREAM if source == "model" else {"cache": "reference-fit", **SMALL, "mix_tokens": 65536}
    spec = SaeSpec(**{**made, **PARTS})
    whole = opened.run(spec).run_id
    end_step, steps = SaeWork.end_step, [0]

    def kill(self: SaeWork, trainer: SaeTrainer) -> None:
        end_step(self, trainer)
        steps[0] += 1
        if steps[0] == 7:
            self.save()
            for follower in followers():
                os.kill(follower.pid, signal.SIGKILL)
                follower.wait(20)

    monkeypatch.setattr(SaeWork, "end_step", kill)
    with pytest.raises(LostProcessError, match="one of the 2 processes"):
        another.run(spec, SaeOptions(devices=2))
    assert followers() == []
    assert steps == [7]
    assert another.run(spec, SaeOptions(devices=2)).run_id == whole
    with another.database.read() as sql:
        causes = sql.scalars(select(tables.Attempt.cause).where(tables.Attempt.run_id == whole)).all()
    assert sorted(map(str, causes)) == ["finished", "lost"]
    for unit in range(2):
        assert values(another, whole, unit) == pytest.approx(values(opened, whole, unit), rel=1e-3, abs=1e-4)
        for name in ("train_loss", "train_l0", "search_l0", "train_explained_variance"):
            curve = points(opened, whole, unit, name)
            assert len(curve) > 1
            assert points(another, whole, unit, name) == pytest.approx(curve, rel=1e-3)


class OneOf(Ranks):
    """The process `rank` of `size`, which notes its terms instead of adding them."""

    def sum(self, tensors: list[torch.Tensor]) -> None:
        self.terms = [tensor.clone() for tensor in tensors]


@pytest.mark.parametrize("rows", [1, 2, 5, 64])
def test_the_terms_of_the_processes_add_up_to_the_gradients_of_the_batch(rows: int) -> None:
    """Also of processes without a row."""
    x, terms = torch.randn(rows, 8, generator=torch.Generator().manual_seed(1)), []
    alone = OneOf(0, 1, None)  # type: ignore[arg-type]
    for ranks in [alone, *(OneOf(rank, 3, None) for rank in range(3))]:  # type: ignore[arg-type]
        sae = GatedSae.make_initial(8, 16, 0)
        gradient = {name: torch.empty_like(value) for name, value in sae.parameters().items()}
        train_step(sae, Adam(sae.parameters(), 0.9, 0.999), gradient, x, 0.5, 1e-3, ranks=ranks)
        terms.append(ranks.terms)
    for whole, *parts in zip(*terms, strict=True):
        total = torch.stack(parts).sum(0)
        if whole is terms[0][-1]:  # how many processes have a row at which a latent fired
            whole, total = whole > 0, total > 0
        assert torch.allclose(whole.float(), total.float(), atol=1e-5)
