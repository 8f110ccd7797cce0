"""Every setting of every kind gets a useless value: each value ends in a plan or in one line, and leaves nothing.

A new kind, and a new setting, is in it by existing. `make test` gives one value to each setting, another to the next,
so that all are given to some; `make slow` gives all to each.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest
from sqlalchemy import func, select

from chessreg.cli.root import run_command_line
from chessreg.registry import tables
from chessreg.runs.kind import find_kind, load_kinds
from chessreg.runs.spec import SettingField, describe_settings
from tests.quick import quick_only

from .examples import get_example

TOY = str(Path(__file__).parent / "toy_kind.py")
SECONDS = 5  # of a processor, for one answer
LONG = ",".join(map(str, range(1_000_000)))
NUMBERS = ("-1", "0", "1000000000000", "9" * 400, "nan", "inf", "-inf", "1e308", "", "x")
TEXTS = ("", "../x", "\x1b[31mred", "x" * 200_000, "/etc", "/etc/passwd", "cuda:7", "9" * 400, "nan", "a=b", "x:1", ":")
LISTS = ("", ",", "0,0", "-1", "99", "0-1000000000000", LONG, "nan", "inf", "1e308", "../x", "\x1b[31mred", "a=b")
REFERENCES = ("", "../x", "/etc", "/etc/passwd", "\x1b[31mred", "x" * 200_000, "run:" + "0" * 64, "sha256:" + "f" * 64,
              "dataset:" + "0" * 64, "sample:\x1b[31m", ":", "run:" + "0" * 64 + "/../x")  # fmt: skip
DEVICES = ("cuda:7", "mps", "cuda:-1", "cuda:x", "cpu:9", "", "\x1b[31mred", "/etc/passwd")


def hostile(setting: SettingField) -> tuple[str, ...]:
    if setting.path == "device":
        return DEVICES
    if setting.form == "number":
        return NUMBERS
    if setting.form == "list":
        return LISTS
    if setting.form in ("reference", "references"):
        return REFERENCES
    return TEXTS if setting.form == "text" else ("", "x", "\x1b[31mred")


def held(world: Path, session) -> tuple[object, ...]:
    """The contents of the registry and the store."""
    files = sorted(str(path) for path in (world / "store").rglob("*"))
    with session.database.read() as sql:
        rows = [sql.scalar(select(func.count()).select_from(table)) for table in tables.Base.metadata.sorted_tables]
    return files, rows


def one_line(status: int, err: str) -> bool:
    """Whether this is the form of an error: a line with the problem, and optionally one with a hint."""
    lines = [line.partition(": ")[0] for line in err.splitlines()]
    return status in (2, 3, 4) and lines in (["error"], ["error", "hint"]) and len(err) < 2000


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["one", "every"])
@pytest.mark.parametrize("name", quick_only(("cache", "probe", "edit", "play", "train", TOY), [*load_kinds(), TOY]))
def test_a_value_of_a_setting_is_planned_or_refused_in_one_line(name, every, world, world_session, capsys):
    found, wrong = find_kind(name), []
    before = held(world, world_session)
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
    for number, setting in enumerate([*describe_settings(found.spec), *describe_settings(found.options)], len(name)):
        values = () if setting.form == "yes or no" else hostile(setting)
        for value in values if every or not values else [values[number % len(values)]]:
            capsys.readouterr()
            begun = time.process_time()
            words = [*place, "run", name, *get_example(name), f"{setting.flag}={value}", "--dry-run"]
            status = run_command_line(words)
            took = time.process_time() - begun
            out, err = capsys.readouterr()
            told = one_line(status, err) if status else "error" not in err
            if not told or took > SECONDS or "\x1b" in out + err:
                wrong.append(f"{setting.flag} {value[:30]!r}: {status} in {took:.1f} s: {err[:300]!r}")
    assert not wrong, "\n".join(wrong)
    assert held(world, world_session) == before


FIT = "cache --checkpoint reference --dataset sample:fit --games 4"
EDIT = "edit --checkpoint reference --probe reference-board --dataset sample:test --games 5 --per-game 2"
PLAY = "play --checkpoint reference --opponent random --adjudication none --policy legal"
TRAIN = "train --architecture gpt2 --datasets sample:fit"
NEVER = {  # values that no machine supports, and the option that the message names
    f"{FIT} --sites nowhere": "nowhere",
    f"{FIT} --layers 0,0": "--layers",
    f"{FIT} --layers 7": "layer 7",
    f"{FIT} --layers 1-0": "'1-0' is not a list of ints",
    f"{FIT} --hook-points blocks.0.hook_resid_pre,blocks.0.hook_resid_pre": "--hook-points",
    f"{FIT} --hook-points blocks.0.nothing": "blocks.0.nothing",
    f"{FIT} --skip-sites 100000": "--skip-sites",
    f"{FIT} --min-plies 20000": "--min-plies",
    f"{FIT} --device cuda:7": "--device",
    f"{FIT} --device mps": "--device",
    f"{FIT} --threads 100000": "--threads",
    "cache --checkpoint reference --dataset sample: --games 4": "dataset sample has no part ''",
    "probe --cache reference-fit --layers 1,1": "--layers",
    "probe --cache reference-fit --layers 5": "layer 5",
    "probe --cache reference-fit --beta2 2": "--beta2",
    "probe --cache reference-fit --label nothing": "nothing",
    "probe --cache reference-fit --device cuda:7": "--device",
    "probe-apply --probe reference-board --cache reference-test --layers 1,1": "--layers",
    "vector --source contrastive --cache reference-fit --layers 1,1": "--layers",
    "sae": "give --cache RUN, or --checkpoint and --dataset",
    "sae --cache reference-fit --layers 5": "the model has no layer 5; its layers are 0 to 1",
    "sae --cache reference-fit --hook-points hook_embed": "hook_embed is not in the cache",
    "sae --cache reference-fit --hook-points blocks.0.attn": "no hook point 'blocks.0.attn'",
    "sae --cache reference-fit --sites turns": "--sites is set together with --cache",
    "sae --cache reference-fit --l0 20 --l1-coefficient 1": "--l1-coefficient and --l0 both",
    "sae --cache reference-fit --l0-search 1,2": "--l0-search has no effect without --l0",
    "sae --cache reference-fit --heldout sample:fit": "are among the games that the SAE was made from",
    "sae --checkpoint reference --dataset sample:test --sites nowhere": "nowhere",
    "sae --checkpoint reference --dataset sample:test --games 1": "one game is too few",
    "vector --source contrastive --cache reference-fit --first-ply 20000": "--first-ply",
    "vector --source contrastive --cache reference-fit --first-ply 4 --threads 100000": "--threads",
    f"{EDIT} --layers 1,1": "--layers",
    f"{EDIT} --layers 9": "9",
    f"{EDIT} --layer-sets 0-1000000000000": "0-1000000000000",
    f"{EDIT} --last-move 10000": "--last-move",
    f"{EDIT} --samples 1000 --random-controls 1000 --scales 1,2,3,4,5,6,7,8,9,10,11": "--random-controls",
    f"{PLAY} --opening book:/etc/passwd": "/etc/passwd",
    f"{PLAY} --opening book:FAKE": "FAKE",
    f"{PLAY} --opening random:99999": "random",
    f"{PLAY} --ladder ''": "'--ladder': it is empty",
    f"{PLAY} --name ''": "'' cannot be a name",
    f"{PLAY} --games 200000000": "--games",
    f"{PLAY} --move-limit 10000": "--move-limit",
    f"{PLAY} --device cuda:7": "--device",
    f"{PLAY} --engine-processes 100000": "--engine-processes",
    "engine-match --player random --opponent capture --opening book:/etc/passwd": "/etc/passwd",
    "engine-match --player random --opponent capture --games 200000000": "--games",
    f"{TRAIN} --n-layer 1000 --n-embd 99840": "--n-embd",
    f"{TRAIN} --batch-tokens 1000000000000": "--batch-tokens",
    f"{TRAIN} --beta1 1": "--beta1",
    "train --architecture gpt2 --datasets ,": "'--datasets': it is required",
    "train --architecture gpt2 --datasets none": "dataset 'none' was not found",
    f"{TRAIN} --device mps": "--device",
    "imported-games --file /etc/passwd": "passwd",
    "imported-aggregates --file /etc/passwd": "lacks the columns of the grid-search CSV",
    "imported-probe --files /etc/passwd": "probe-file is not a file of tensors",
    "imported-vector --files /etc/passwd": "vector-file is not a file of tensors",
}


@pytest.mark.parametrize("command", quick_only([*NEVER][::4], NEVER))
def test_what_cannot_be_done_is_refused_before_anything_is_recorded(command, world, world_session, tmp_path, capsys):
    """By `run`, by `run --dry-run` and by `launch`."""
    fake = tmp_path / "book.pgn"
    fake.write_text("root:x:0:0:root:/root:/bin/bash\n")
    words = [str(fake) if word == "FAKE" else word.replace("FAKE", str(fake)) for word in shlex.split(command)]
    before = held(world, world_session)
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
    for verb, *plan in (["run"], ["run", "--dry-run"], ["launch"]):
        status = run_command_line([*place, verb, *words, *plan])
        out, err = capsys.readouterr()
        assert (one_line(status, err), out) == (True, ""), (verb, plan, err)
        assert NEVER[command].replace("FAKE", str(fake)) in err
    assert held(world, world_session) == before


def test_a_book_is_kept_with_the_run_and_not_with_its_plan(world, world_session, tmp_path, capsys):
    (tmp_path / "book.pgn").write_text('[Event "?"]\n\n1. e4 e5 2. Nf3 *\n\n[Event "?"]\n\n1. d4 d5 *\n')
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
    match = (
        f"engine-match --player capture --opponent random --games 2 --opening book:{tmp_path}/book.pgn --move-limit 4"
    )
    words = [*place, "run", *shlex.split(match), "--adjudication", "none"]
    before = held(world, world_session)
    assert run_command_line([*words, "--dry-run"]) == 0
    assert held(world, world_session) == before
    assert run_command_line(words) == 0, capsys.readouterr().err
    kept = world_session.store.list("book")
    assert len(kept) == 1
    assert kept[0].file.read_bytes() == (tmp_path / "book.pgn").read_bytes()
