"""One test that every kind of experiment passes: ours, and a user's in one file. A new kind is in it by existing."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import func, select

from chessreg.cli.root import run_command_line
from chessreg.registry import tables
from chessreg.registry.result_tables import RESULT_TABLES
from chessreg.runs.kind import find_kind, load_kinds
from chessreg.runs.spec import describe_settings, find_variant_tag, list_setting_names, list_variants

from ..file_locks import HAS_PROC_LOCKS, holds_log, read_once, watched
from .examples import get_example

TOY = str(Path(__file__).parent / "toy_kind.py")
EVERY = [*load_kinds(), TOY]
COSTLY = {  # in `make slow`: they take long, or write as another kind does that is in `make test`
    "decoding", "edit-next-token", "engine-match", "finetune", "imported-aggregates", "imported-curves",
    "imported-probe", "imported-sae", "imported-vector", "move-quality", "play", "probe-apply", "sae", "token-legality",
    "vector-apply",
}  # fmt: skip


def command_line(world: Path, *words: str) -> list[str]:
    return ["--registry", str(world / "registry.db"), "--store", str(world / "store"), *words]


@pytest.fixture
def locks_kept(world, world_session, monkeypatch):
    """No command drops the locks of this process, which has the registry open."""
    if not HAS_PROC_LOCKS:
        yield
        return
    read_once(world_session.database)
    with watched(world / "registry.db", monkeypatch):
        yield
    read_once(world_session.database)
    assert holds_log(world / "registry.db")


@pytest.fixture
def chessreg(world, capsys):
    """Types a command in this process; returns its exit status, stdout and stderr."""

    def typed(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run_command_line(command_line(world, *words))
        return status, *capsys.readouterr()

    return typed


def results(session, run_id) -> dict[str, int]:
    """Rows of a run by family."""
    counts = {}
    with session.database.read() as sql:
        for family in RESULT_TABLES:
            table = tables.Base.metadata.tables[family]
            counts[family] = sql.scalar(select(func.count()).select_from(table).where(table.c.run_id == run_id))
    return {family: count for family, count in counts.items() if count}


@pytest.mark.slow
def test_every_kind_has_a_time_estimate_before_its_first_run(chessreg):
    bases = set()
    for name in load_kinds():
        status, out, err = chessreg("run", name, *get_example(name), "--dry-run", "--json")
        assert status == 0, err
        planned = json.loads(out)
        assert 0 < planned["seconds"] < 600, name
        assert planned["basis"].startswith("the " if planned["like"] else "counted operations"), name
        bases.add(planned["basis"])
    assert len(bases) > 1


@pytest.mark.usefixtures("locks_kept")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in COSTLY)) for name in EVERY])
def test_a_kind_is_helped_planned_killed_resumed_reproduced_queried_and_drawn(
    name, world, world_session, chessreg, spawn, tmp_path
):
    session = world_session
    found = find_kind(name)
    example = get_example(name)
    assert example, f"kind {found.name} has no example"

    tag, variants = find_variant_tag(found.spec), list_variants(found.spec)
    for value, model in variants.items() or {"": found.spec}.items():
        _, shown, _ = chessreg("run", name, *([f"--{tag}", value] if value else []), "--help-all")
        listed = {word.strip(",") for line in shown.partition(" settings")[2].splitlines() for word in line.split()[:1]}
        for field in (*model.model_fields, *found.options.model_fields):
            assert any(flag.startswith(f"--{field.replace('_', '-')}") for flag in listed)
        for field in list_setting_names(found.spec) - set(model.model_fields):
            assert f"--{field.replace('_', '-')}" not in listed
    _, shown, _ = chessreg("run", name, "--help")
    assert all(f"  {value} " in shown for value in variants)

    status, out, err = chessreg("run", name, *example, "--dry-run", "--json")
    assert status == 0, err
    planned = json.loads(out)
    run_id = UUID(planned["run_id"])
    assert planned["units"] == planned["missing"] > 0
    assert planned["settings"]["seed"]["source"] == "default"

    process = spawn(command_line(world, "run", name, *example))
    deadline = time.monotonic() + 300
    while process.is_alive() and not units_done(session, run_id):
        assert time.monotonic() < deadline, "no unit was completed"
        time.sleep(0.05)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)

    status, out, err = chessreg("run", name, *example, "--json")
    assert status == 0, err
    report = json.loads(out)
    assert (report["state"], report["done"], report["run_id"]) == ("complete", planned["units"], planned["run_id"])
    rows = results(session, run_id)
    assert rows, "a complete run has results"
    assert set(rows) <= set(found.tables)

    _, _, err = chessreg("run", name, *example)
    assert "nothing to do" in err
    assert results(session, run_id) == rows

    # in a process with different hashes of texts: iteration over a set must not show
    process = spawn(command_line(world, "reproduce", planned["run_id"], "--rerun"), tmp_path / "said")
    process.join()
    assert process.exitcode == 0, (tmp_path / "said").read_text()
    assert results(session, run_id) == rows

    short = len(found.tables) == 1 and found.name not in tables.Base.metadata.tables
    view = (found.name if short else f"{found.name}_{next(iter(rows))}").replace("-", "_")
    asked = f"select count(*) as n from {view} where run_id = '{run_id}'"
    status, out, err = chessreg("query", "--sql", asked, "--format", "csv")
    assert status == 0, err
    assert int(out.split()[1]) == next(iter(rows.values()))

    status, out, err = chessreg("board", f"{planned['run_id']}:0")
    if type(found).board_views is type(found).__mro__[-2].board_views:
        assert status != 0
        assert "no boards" in err
    else:
        assert status == 0, err
        assert out.count("\n") >= 8


def units_done(session, run_id: UUID) -> int:
    with session.database.read() as sql:
        return sql.scalar(select(func.count()).select_from(tables.UnitRange).where(tables.UnitRange.run_id == run_id))


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_kind_runs_with_every_seed_that_it_takes(name, world, chessreg):
    found = find_kind(name)
    seeds = [setting.flag for setting in describe_settings(found.spec) if setting.path in ("seed", "opening_seed")]
    least = [f"{flag}={1 - 2**63}" for flag in seeds]
    status, out, err = chessreg("run", name, *get_example(name), *least, "--json")
    assert status == 0, err
    assert json.loads(out)["state"] == "complete"


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_no_column_depends_on_the_order_of_sets(name, pristine_world, tmp_path, reproduced_under_another_hash_seed):
    folder = Path(shutil.copytree(pristine_world, tmp_path / "world"))
    reproduced_under_another_hash_seed(folder, name, *get_example(name))
