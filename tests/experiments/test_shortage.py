"""A setting that asks for more games or positions than there are is reported and recorded."""

from __future__ import annotations

import json

import pytest

from chessreg.cli.root import run_command_line


@pytest.fixture
def typed(world, capsys):
    def type_(*words: str) -> tuple[str, str]:
        capsys.readouterr()
        where = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
        assert run_command_line([*where, *words]) == 0
        return tuple(capsys.readouterr())

    return type_


def test_a_run_of_fewer_games_than_asked_for_says_so_and_keeps_the_remark(typed):
    words = ["run", "cache", "--checkpoint", "reference", "--dataset", "sample:test", "--name", "few"]
    available = json.loads(typed(*words, "--dry-run", "--json")[0])["units"]
    assert "available" not in typed(*words, "--dry-run")[1], "the default is an upper limit"
    note = f"--games 400: only {available} are available"
    assert f"note: {note}" in typed(*words, "--games", "400", "--dry-run")[1]
    assert "available" not in typed(*words, "--games", str(available), "--dry-run")[1]
    assert f"chessreg: {note}" in typed(*words, "--games", "400")[1]
    assert note in typed("runs", "show", "few")[1]
    probe = ["run", "probe", "--cache", "few", "--epochs", "1", "--dry-run"]
    assert "available" not in typed(*probe)[1], "a setting of another run"


@pytest.mark.parametrize(
    ("kind", "setting"),
    [("legality", "games"), ("perplexity", "games"), ("token-legality", "games"), ("sae", "games"),
     ("sae", "heldout-games"), ("move-quality", "games"), ("markov", "classes"), ("vector", "games")],
)  # fmt: skip
def test_every_kind_that_reads_games_reports_them(typed, kind, setting):
    words = ["run", kind, "--checkpoint", "reference", "--dataset", "sample"]
    words += ["--source", "contrastive-uncached", "--first-ply", "0"] if kind == "vector" else []
    assert f"--{setting} 4,321: only " in typed(*words, f"--{setting}", "4321", "--dry-run")[1]
