"""`--dry-run`: names as they were typed, given settings first, and a time measured by earlier runs."""

from __future__ import annotations

import os
import re
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from chessreg.errors import BadInputError
from chessreg.experiments.cache import CacheOptions, CacheSpec
from chessreg.experiments.probe import ProbeOptions, ProbeSpec
from chessreg.experiments.sae import SaeOptions, SaeSpec
from chessreg.experiments.train import TextSpec, TrainOptions
from chessreg.registry import tables
from chessreg.runs.kind import RunEstimate, find_kind
from chessreg.scheduling.expected_time import describe_busy_cores, estimate_time
from chessreg.scheduling.launch import Order, launch_orders, plan_orders, preview_run
from chessreg.session import open_session

TOY = Path(__file__).parent.parent / "kinds" / "toy_kind.py"
GAMES = '[White "a"]\n[Black "b"]\n[Result "1-0"]\n\n1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 1-0\n\n'


def test_the_given_settings_come_first_and_things_go_by_the_names_that_were_typed(here: Any) -> None:
    (here.folder / "games.pgn").write_text(GAMES)
    assert here("dataset", "add", "games.pgn", "--name", "few") == 0, here.err
    assert here("import", "checkpoint", "--reference", "--name", "bundled") == 0, here.err
    words = ["run", "perplexity", "--checkpoint", "bundled", "--dataset", "few", "--dry-run"]
    assert here(*words) == 0, here.err
    lines = [line.split() for line in here.out.splitlines()]
    names = [line[0] for line in lines]
    settings = lines[names.index("bytes") + 1 :]
    assert {line[0]: line[1] for line in settings[:2]} == {"checkpoint": "bundled", "dataset": "few"}
    assert [line[-1] for line in settings] == ["given"] * 2 + ["default"] * (len(settings) - 2)
    assert "sha256" not in here.out
    assert re.search(r"^  time   about .*, from counted operations on one CPU thread of this machine", here.out, re.M)
    assert "  rerun  gives the same rows\n" in here.out
    planned = here.json(*words)["settings"]
    assert planned["checkpoint"]["name"] == "bundled"
    assert planned["checkpoint"]["value"] not in (None, "bundled")
    assert planned["seed"]["name"] is None


def test_of_a_table_of_settings_only_the_given_ones_are_called_given(here: Any) -> None:
    assert here("import", "checkpoint", "--reference", "--name", "bundled") == 0, here.err
    words = ["run", "play", "--checkpoint", "bundled", "--opponent", "random", "--games", "2"]
    assert here(*words, "--opening", "random:2", "--dry-run") == 0, here.err
    assert "  rerun  gives the same rows on the same machine with the same number of threads\n" in here.out
    assert here("import", "vector", save_direction(here.folder), "--checkpoint", "bundled", "--layers", "3",
                "--name", "calm") == 0, here.err  # fmt: skip
    assert "without a value" not in here.err
    steered = [*words, "--intervention.vector", "calm", "--intervention.scale", "4"]
    assert here(*steered, "--dry-run") == 0, here.err
    sources = {line.split()[0]: line.split()[-1] for line in here.out.splitlines()}
    assert (sources["intervention.vector"], sources["intervention.scale"]) == ("given", "given")
    assert sources["intervention.token_mask"] == "default"
    assert here(*steered, "--name", "steered") == 0, here.err
    assert "elo by intervention" in here.err
    assert "draws by evaluation" not in here.err
    shown = here.json("runs", "show", "steered")
    assert shown["explicit"] == ["checkpoint", "games", "intervention.scale", "intervention.vector", "opponent"]
    assert here("runs", "show", "steered") == 0, here.err
    assert not re.search(r"sha256:|run:[0-9a-f]|dataset:[0-9a-f]", here.out)  # names of inputs, not their hashes
    assert re.search(r"^torch +\d", here.out, re.M)


def save_direction(folder: Path) -> str:
    np.save(folder / "direction.npy", np.ones(192, np.float32))
    return "direction.npy"


def test_the_time_is_measured_by_earlier_runs_of_the_kind(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", TOY, "--positions", "400", "--dry-run"]
    assert here.json(*words)["seconds"] is None
    assert here(*words) == 0
    assert "time   not known: kind toy counts no operations and has no earlier run in this registry\n" in here.out
    assert here("run", TOY, "--positions", "2") == 0, here.err
    planned = here.json(*words)
    assert planned["like"] == 1
    assert planned["seconds"] > 0
    assert here(*words) == 0
    assert ", from the nearest earlier run" in here.out
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr("chessreg.models.devices.count_usable_cores", lambda: 4)
    assert describe_busy_cores() == ""
    monkeypatch.setattr(os, "getloadavg", lambda: (15.0, 0.0, 0.0))
    assert describe_busy_cores() == "this machine is busy now: expect 4 times as long"
    assert here("run", TOY, "--positions", "2", "--dry-run") == 0
    assert "time   none: the run is complete\n" in here.out


def test_a_launch_is_timed_as_a_run_is(here: Any) -> None:
    words = ["launch", TOY, "--dry-run", "--positions"]
    assert here.json(*words, "400")["runs"][0]["seconds"] is None
    assert here(*words, "400") == 0
    assert here.out.splitlines()[-1].endswith("not known")
    assert here("run", TOY, "--positions", "2") == 0, here.err
    (one,) = here.json(*words, "400")["runs"]
    (shared,) = here.json(*words, "400", "--shards", "4")["runs"]
    assert 0 < shared["seconds"] < one["seconds"]
    assert here(*words, "400", "--grid", "positions=2|400") == 0, here.err
    assert here.out.count("not known") == 0


def test_a_loaded_machine_does_not_slow_the_estimate(here: Any) -> None:
    """The pace is that of the fastest quarter of earlier work, and a crowded machine is counted out."""
    for positions in ("2", "3", "4"):
        assert here("run", TOY, "--positions", positions) == 0, here.err
    lasted = {2: (10.0, {"cpu": 8.0, "cores": 2}), 3: (90.0, None), 4: (400.0, {"cpu": 1.0, "cores": 2})}
    with open_session() as session, session.database.write() as sql:
        for attempt in sql.scalars(select(tables.Attempt)):
            seconds, attempt.load = lasted[attempt.units_done]
            attempt.ended_at = attempt.started_at + timedelta(seconds=seconds)
    planned = here.json("run", TOY, "--positions", "400", "--dry-run")
    assert planned["missing"] == 400
    assert planned["seconds"] == pytest.approx(30.0 * 400)  # 2 of 9 units are less than a quarter
    assert planned["basis"] == "the fastest of 3 earlier runs, as if nothing else had run (they took 10 to 400 s)"


def test_a_run_that_waits_for_its_inputs_is_timed_by_earlier_runs(pristine_world: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(pristine_world, tmp_path / "world")
    with open_session(str(folder / "registry.db"), folder / "store") as session:
        orders = [
            Order(find_kind("cache"), CacheSpec(checkpoint="reference", dataset="sample", games=3), CacheOptions(),
                  name="more"),
            Order(find_kind("probe"), ProbeSpec(cache="more"), ProbeOptions()),
            Order(find_kind("probe"), ProbeSpec(cache="more", epochs=2), ProbeOptions(), shards=2),
        ]  # fmt: skip
        planned = plan_orders(orders, session.database, session.store)
        _, waiting, shared = (preview_run(each, session.database, session.store) for each in planned)
    assert waiting["waits_for"] == [planned[0].spec_hash[26:32]]
    assert (waiting["units"], waiting["missing"]) == (None, None)
    assert waiting["seconds"] > shared["seconds"] > 0
    assert waiting["basis"].endswith("; its inputs do not exist yet")


def test_the_devices_of_a_training_share_its_time(pristine_world: Path) -> None:
    spec = TextSpec(architecture="gpt2", datasets=("sample",))
    with open_session(str(pristine_world / "registry.db"), pristine_world / "store") as session:

        def estimate(**options: Any) -> float:
            work = RunEstimate(operations=1e15)
            time = estimate_time(find_kind("train"), spec, work, 1, 1, session.inputs, TrainOptions(**options))
            assert time.seconds is not None
            return time.seconds

        assert estimate(devices=4, nodes=2) == pytest.approx(estimate() / 8)
        assert estimate(devices=4, device="cpu") == estimate()


def test_several_machines_without_slurm_are_refused_before_a_job_is_made(pristine_world: Path, tmp_path: Path) -> None:
    """Also if the run waits for its inputs."""
    folder = shutil.copytree(pristine_world, tmp_path / "world")
    with open_session(str(folder / "registry.db"), folder / "store") as session:
        cached = CacheSpec(checkpoint="reference", dataset="sample", games=3)
        orders = [
            Order(find_kind("cache"), cached, CacheOptions(), name="more"),
            Order(find_kind("sae"), SaeSpec(cache="more"), SaeOptions(nodes=2)),
        ]
        with pytest.raises(BadInputError, match="--nodes 2 requires Slurm"):
            launch_orders(orders, session.database, session.store)
        with session.database.read() as sql:
            assert not sql.scalars(select(tables.Job)).all()
