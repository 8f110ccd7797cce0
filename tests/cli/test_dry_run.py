"""`--dry-run`: names as they were typed, given settings first, and a time measured by earlier runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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
    assert re.search(r"^  time   about .*, from counted operations on one CPU thread of this machine$", here.out, re.M)
    planned = here.json(*words)["settings"]
    assert planned["checkpoint"]["name"] == "bundled"
    assert planned["checkpoint"]["value"] not in (None, "bundled")
    assert planned["seed"]["name"] is None


def test_the_time_is_measured_by_earlier_runs_of_the_kind(here: Any) -> None:
    words = ["run", TOY, "--positions", "400", "--dry-run"]
    assert here.json(*words)["seconds"] is None
    assert here(*words) == 0
    assert "time   not known: kind toy counts no operations and has no earlier run here\n" in here.out
    assert here("run", TOY, "--positions", "2") == 0, here.err
    planned = here.json(*words)
    assert planned["like"] == 1
    assert planned["seconds"] > 0
    assert here(*words) == 0
    assert ", from the nearest earlier run\n" in here.out
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
