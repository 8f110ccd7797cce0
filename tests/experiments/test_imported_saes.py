"""An imported SAE is measured on the bundled games with its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chessreg.entities import load_entity
from chessreg.errors import NotFoundError
from chessreg.experiments.imported.sae_measures import SampleGames
from chessreg.experiments.imported.saes import ImportedSaeSpec
from chessreg.models.importers.game_check import read_sample_games
from chessreg.models.sae_files import read_sae_folder
from chessreg.runs.task import Task
from chessreg.session import Session

GOLDEN = Path(__file__).parents[1] / "fixtures" / "saes"


@pytest.fixture
def measured(world_session: Session) -> dict[str, float]:
    spec = ImportedSaeSpec(checkpoint="reference", folders=(str(GOLDEN / "saelens-topk"),))
    report = world_session.run(spec)
    with world_session.database.read() as sql:
        [row] = load_entity("sae").rows(sql, report.run_id.hex)
    assert row["explained_variance"] is not None
    [listed] = world_session.query("sae reconstruction", run=report.run_id.hex).rows
    assert (listed["l0"], listed["explained_variance"]) == (row["l0"], row["explained_variance"])
    return {"l0": row["l0"], "explained_variance": row["explained_variance"], "tokens": row["statistics"][0]["tokens"]}


def test_l0_and_explained_variance_are_those_of_a_plain_pass(
    world_session: Session, measured: dict[str, float]
) -> None:
    model, file = world_session.model("reference"), read_sae_folder(GOLDEN / "saelens-topk")
    assert file.hook_point is not None
    residuals = []
    for text in SampleGames().texts(np.arange(len(read_sample_games()))):
        tokens = torch.from_numpy(model.encoding.encode(text).astype(np.int64))[None]
        residuals.append(model.activations(tokens, [file.hook_point])[file.hook_point][0])
    x = torch.cat(residuals).double()
    error = x - file.sae.reconstruction(x.float()).double()
    explained = 1 - (error - error.mean(0)).square().sum() / (x - x.mean(0)).square().sum()
    assert measured["tokens"] == len(x)
    assert measured["explained_variance"] == pytest.approx(float(explained), abs=1e-4)
    assert measured["l0"] == pytest.approx(float((file.sae.encode(x.float()) > 0).sum(1).double().mean()), abs=1e-6)


def test_an_sae_is_imported_without_metrics_if_the_model_is_elsewhere(
    world_session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(task: Task[Any, Any], checkpoint: str) -> None:
        raise NotFoundError(f"{checkpoint} is only on another machine")

    monkeypatch.setattr(Task, "model", refuse)
    report = world_session.run(ImportedSaeSpec(checkpoint="reference", folders=(str(GOLDEN / "saelens-jumprelu"),)))
    with world_session.database.read() as sql:
        [found] = load_entity("sae").rows(sql, report.run_id.hex)
    assert (found["l0"], found["statistics"], found["architecture"]) == (None, [], "jumprelu")
