"""Every parser of third-party bytes reads an input or refuses it in one line: kept inputs, then new ones.

`python tests/fuzz/suite` tries new inputs; `corpus/TARGET` keeps those that once caused a failure, and some that reach
lines which others do not.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
SUITE = HERE / "suite"
sys.path.insert(0, str(SUITE))

from engine import fault, limited, peak  # noqa: E402
from mutate import Mutator  # noqa: E402
from targets import TARGETS, World  # noqa: E402

SECONDS = 600.0  # for each target, in `make slow`


@pytest.fixture(scope="module")
def surroundings() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_are_read_or_refused_in_one_line(name: str, surroundings: World) -> None:
    seeds = TARGETS[name].seeds(surroundings)
    kept = sorted((CORPUS / name).iterdir())
    assert kept
    broken = {path.name: found[0] for path in kept if (found := fault(name, surroundings, path.read_bytes()))}
    assert not broken, f"python tests/fuzz/suite {name} --replay {CORPUS / name}/{next(iter(broken))}"
    with surroundings.fresh():  # real ones: a target that refuses everything would prove nothing
        TARGETS[name].run(surroundings, seeds[0])


def test_the_kept_inputs_are_small() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) <= 300_000


@pytest.mark.slow
def test_an_unexpected_error_a_hang_and_an_error_without_words_are_found(
    surroundings: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chessreg.errors import BadInputError

    def planted(world: World, data: bytes) -> None:
        if data == b"hang":
            while True:
                pass
        if data == b"silent":
            raise BadInputError("")
        if data == b"refused":
            raise BadInputError("no")
        if data == b"large":
            bytearray(peak() + 200 << 20)
        data.decode("ascii")

    monkeypatch.setitem(TARGETS, "planted", TARGETS["typed"].__class__(planted, lambda world: [b"x"], ("bytes",)))
    monkeypatch.setattr("engine.MEGABYTES", 100)
    found = {}
    for data in (b"x", b"refused", b"\xff", b"silent", b"hang", b"large"):
        # slow memory allocation on a loaded machine is not a hang
        monkeypatch.setattr("engine.limited", lambda seconds=3.0 if data == b"hang" else 100.0: limited(seconds))
        found[data] = fault("planted", surroundings, data)
    assert [data for data, fault in found.items() if fault is None] == [b"x", b"refused"]
    told = [fault[0].split()[0] for fault in found.values() if fault]
    assert told == ["UnicodeDecodeError", "BadInputError", "HangError", "holds"]


def test_changed_inputs_are_the_same_again_and_most_of_them_new(surroundings: World) -> None:
    for name in ("manifest", "games", "fragment"):
        target = TARGETS[name]
        seeds = target.seeds(surroundings)
        first, second = (Mutator(5, seeds, target.words) for _ in range(2))
        made = [first.changed(form) for form in target.forms * 20]
        assert made == [second.changed(form) for form in target.forms * 20]
        assert len(set(made) - set(seeds)) > len(made) / 2


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2)
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_parser_in_ten_minutes(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SUITE), name, "--seconds", str(SECONDS), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout)  # how many inputs that were
    assert done.returncode == 0, done.stdout + done.stderr
