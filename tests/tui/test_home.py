"""Home: running jobs, runs that ended since the last visit, and the command that prints the same."""

from __future__ import annotations

import asyncio
import json
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, select

from chessreg.cli.root import run_command_line
from chessreg.registry.database import Database
from chessreg.registry.migrations import back_up_registry
from chessreg.registry.tables import Attempt, Cause, Job, JobState, Machine, MetricPoint, UnitRange
from chessreg.scheduling import status as job_status
from chessreg.session import Session, open_session
from store import Store
from tui import show
from tui.app import LAST_SEEN_KEY
from tui.data.machine_rows import Loads, count_gpus, make_gpu_grid, make_machine_table
from tui.model_process import ModelProcess
from tui.screens.dialogs import Confirm
from tui.screens.home import HomeScreen
from tui.screens.job import JobScreen
from tui.screens.launch import LaunchScreen
from tui.screens.machine import MachineScreen
from tui.screens.run import RunScreen
from tui.widgets.table import PageTable


def status(folder: Path, *words: str) -> Any:
    place = ["--registry", str(folder / "registry.db"), "--store", str(folder / "store")]
    with redirect_stdout(StringIO()) as said:
        assert run_command_line([*place, "status", *words, "--json"]) == 0
    return json.loads(said.getvalue())


def rows(driver: Any, table: str) -> list[Any]:
    shown = driver.screen.query_one(f"#{table}", PageTable)
    return [shown.row(n) for n in range(shown.count)]


@pytest.mark.slow
async def test_what_runs_and_what_has_ended_is_what_the_command_says(drive, queue: Any) -> None:
    async with drive(queue.folder, size=(140, 40), start="") as driver:
        assert isinstance(driver.screen, HomeScreen)
        told = status(queue.folder, "--since", "1d")
        assert [row["id"].hex for row in rows(driver, "going")] == [row["id"] for row in told["going"]]
        assert [row["state"] for row in told["going"]] == ["running", "running", "waiting"]
        assert [(row["id"].hex, row["cause"]) for row in rows(driver, "ended")] == [
            (row["id"], row["cause"]) for row in told["ended"]
        ]
        assert {row["name"]: row["cause"] for row in told["ended"]}["checks"] == "complete"
        assert [f"{sign} {n}" in driver.lines[2] for sign, n in zip("●○✗✓", (2, 1, 1, 1), strict=True)] == [True] * 4
        assert "engine died: Runt" in driver.text
        assert "Ended in the last day" in driver.text
        (machine,) = [row for row in told["machines"] if row["running"]]
        assert len(rows(driver, "machines")) == machine["running"]
        assert "● sums" in driver.text


async def test_enter_opens_the_job_tab_goes_to_what_ended_and_keys_suit_the_row(drive, queue: Any) -> None:
    async with drive(queue.folder, size=(120, 40), start="home") as driver:
        assert "x cancel" in driver.lines[-1]
        assert "R retry" not in driver.lines[-1]
        await driver.press("enter")
        assert isinstance(driver.screen, JobScreen)
        await driver.press("escape", "tab")
        assert driver.screen.table.id == "ended"
        assert "x cancel" not in driver.lines[-1]
        ended = driver.screen.query_one("#ended", PageTable)
        place = next(n for n, row in enumerate(rows(driver, "ended")) if row["cause"] != "complete")
        ended.move(place)
        await driver.settle()
        assert "R retry" in driver.lines[-1]
        ended.move(1 - place)
        await driver.settle()
        assert "R retry" not in driver.lines[-1]
        await driver.press("ctrl+l")
        assert isinstance(driver.screen, LaunchScreen)


async def test_news_are_what_ended_since_the_last_visit_or_in_the_last_day(drive, session: Session) -> None:
    async with drive(size=(120, 40), start="home") as driver:
        assert "8 runs in all" in driver.text
        names = {row["name"] for row in rows(driver, "ended")}
        assert {"board", "edits", "plain", "sure", "toy", "cut"} <= names
        cut = next(row for row in rows(driver, "ended") if row["name"] == "cut")
        assert cut["cause"] != "complete"
        assert (cut["done"], cut["units"]) == (4, 9)
        await driver.press("enter")
        assert isinstance(driver.screen, RunScreen)
        remembered = driver.app.saved_state
    async with drive(size=(120, 40), start="home") as driver:
        assert len(rows(driver, "ended")) == len(names), "the runs of the last day, also after a short absence"
        assert "Ended in the last day" in driver.text
    remembered.set(LAST_SEEN_KEY, (datetime.now(UTC) - timedelta(days=30)).isoformat())
    async with drive(size=(120, 40), start="home") as driver:
        assert len(rows(driver, "ended")) == len(names)
        assert "since your last visit, 2026-01-02 03:04" in driver.text


def test_a_foreground_run_goes_on_and_its_end_is_news(tmp_path: Path) -> None:
    from chessreg.runs.kind import find_kind

    toy, seen = str(Path(__file__).parent.parent / "kinds" / "toy_kind.py"), []
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session:

        def look(fraction: float, text: str) -> None:
            with session.database.read() as sql:
                seen.append(job_status.list_active(sql))

        before = datetime.now(UTC) - timedelta(seconds=1)
        session.run(find_kind(toy).spec(positions=5), kind=toy, name="by-hand", on_progress=look)
        with session.database.read() as sql:
            assert job_status.list_active(sql) == []
            (row,) = job_status.list_ended(sql, before)
            assert job_status.list_ended(sql, datetime.now(UTC)) == []
    assert (row["name"], row["cause"], row["done"], row["units"]) == ("by-hand", "complete", 5, 5)
    during = [rows[0] for rows in seen if rows]
    assert during
    assert {(row["kind"], row["id"], row["units"], row["state"]) for row in during} == {("toy", None, 5, "running")}


async def test_a_job_that_failed_before_its_attempt_is_told(drive, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session, session.database.write() as sql:
        detail = {"spec": {}, "execution_options": {}, "explicit": [], "folder": "/", "store": str(session.store.root)}
        common: dict[str, Any] = {"kind": "toy", "executor": "local", "host": "box", "shards": 1, "detail": detail}
        common |= {"state": JobState.ENDED, "message": "their code is not trusted here", "created_at": now}
        for number, (tries, cause) in enumerate([(1, Cause.FAILED), (0, Cause.KILLED)]):
            ids = {name: UUID(int=10 * number + n) for n, name in enumerate(("id", "group_id", "run_id"), 1)}
            sql.add(Job(**ids, **common, spec_hash="0" * 64, shard=0, tries=tries, cause=cause, ended_at=now))
    with open_session(str(tmp_path / "registry.db"), tmp_path / "store") as session, session.database.read() as sql:
        assert {row["cause"] for row in job_status.list_ended(sql, now - timedelta(hours=1))} == {"failed", "killed"}
    async with drive(tmp_path, size=(140, 40), start="home") as driver:
        assert "✗ 2 failed" in driver.text
        await driver.press("exclamation_mark")
        assert isinstance(driver.screen, JobScreen)
        await driver.press("v")
        assert "its run has not started" in driver.notices


def texts(grid: tuple[Any, Any]) -> list[str]:
    """The lines of a grid of machines, with a blank between cells."""
    columns, lines = grid
    return [" ".join(filter(None, (column.format_cell(line) for column in columns))) for line in lines]


def test_a_gpu_has_its_line_with_load_memory_and_job() -> None:
    def gpu(index: int, busy: float, used: int) -> dict[str, Any]:
        return {"index": index, "name": "NVIDIA H100", "memory_bytes": 80 << 30, "memory_used_bytes": used << 30,
                "busy": busy}  # fmt: skip

    load = {"cpu": 4.0, "cores": 16, "memory_bytes": 64 << 30, "memory_used_bytes": 16 << 30,
            "gpus": [gpu(0, 0.75, 20), gpu(1, 0.0, 79), gpu(2, 0.0, 0), gpu(3, 0.5, 40)]}  # fmt: skip
    row = {"host": "box1", "running": 2, "runs": 9, "load": load, "last_seen": None}
    idle = {**row, "host": "abc", "running": 0, "load": None}
    job = {"at": "box1", "gpus": (1,), "name": "probe", "title": "", "state": "running", "seconds_left": 5.0,
           "ran": 9.0}  # fmt: skip
    told = texts(make_gpu_grid([idle, row], [job], {}, 120))
    assert told[0] == "box1 0 ━━━━━━┄┄ 75 % ━━┄┄┄┄┄┄ 20/80 GiB used by others"
    assert told[1] == "4 × H100 1 ┄┄┄┄┄┄┄┄  0 % ━━━━━━━━ 79/80 GiB ● probe 1.0 s 1.0 s"
    assert told[2] == "CPU ━━┄┄┄┄┄┄ 25 % 2 ┄┄┄┄┄┄┄┄  0 % ┄┄┄┄┄┄┄┄ 0/80 GiB free"
    assert told[4] == "box1 idle · 9 runs · seen"
    tones = {column.field: column.choose_tone for column in make_gpu_grid([row], [job], {}, 120)[0]}
    line = make_gpu_grid([row], [job], {}, 120)[1][1]
    assert tones["busy"](line) == tones["memory"](line) == "warn", "it has a job and does nothing; its memory is full"
    assert count_gpus([idle, row], [job, {**job, "gpus": ()}]) == (1, 4)
    both = {**job, "gpus": (0, 1)}
    lines = texts(make_gpu_grid([row], [both], {}, 120))
    assert ["● probe" in line for line in lines] == [True, True, False, False]
    assert count_gpus([row], [both]) == (2, 4)
    short, _ = texts(make_machine_table([row, idle], [job], 80))
    assert short == "box1 ▆▁▁▅ 1 of 4 ━┄┄┄┄ 25 % ━┄┄┄┄ 25 % ● probe"


def test_a_machine_without_gpus_has_one_line_and_one_more_for_each_other_job() -> None:
    load = {"cpu": 0.0, "cores": 2, "memory_bytes": 8 << 30, "memory_used_bytes": 4 << 30, "gpus": []}
    row = {"host": "box1", "running": 1, "runs": 9, "load": load, "last_seen": None}
    minutes = Loads()
    for at in range(70):
        minutes.note(at, {**load, "cpu": 2.0 * (at >= 69)})
        minutes.note(at, load)  # told already
    assert len(minutes.at) == len(minutes.shares["CPU"]) == 60
    assert minutes.draw_loads("GPU 0", 20) == ""
    job = {"at": "box1", "gpus": (), "name": "probe", "title": "", "state": "running", "seconds_left": 5.0, "ran": 9.0}
    told = texts(make_gpu_grid([row], [job, {**job, "name": "edit"}], {"box1": minutes}, 180))
    assert told[0].startswith("box1 cpu " + "▁" * 11 + "█ ┄")
    assert told[1] == "● edit 1.0 s 1.0 s"
    assert "▁" not in texts(make_gpu_grid([row], [], {"box1": minutes}, 100))[0]  # no room


async def test_enter_on_a_machine_opens_its_page(drive, queue: Any) -> None:
    async with drive(queue.folder, size=(140, 40), start="home") as driver:
        await driver.press("shift+tab", "enter")
        assert isinstance(driver.screen, MachineScreen)
        assert "processor" in driver.text
        assert "Load of the last minutes" in driver.text
        assert [row["state"] for row in rows(driver, "jobs")] == ["running", "running"]
        await driver.press("enter")
        assert isinstance(driver.screen, JobScreen)


async def test_a_running_training_has_its_curve_and_what_failed_is_a_key_away(
    drive, queue: Any, tmp_path: Path
) -> None:
    running = queue.job("sums").run_id
    back_up_registry(queue.folder / "registry.db", tmp_path / "registry.db")  # other tests see no curve in that queue
    (tmp_path / "store").symlink_to(queue.folder / "store")
    with Database.open(tmp_path / "registry.db") as database, database.write() as sql:
        attempt = sql.scalar(select(Attempt.id).where(Attempt.run_id == running))
        for step in range(12):
            sql.add(MetricPoint(run_id=running, unit=0, name="loss", step=step, attempt_id=attempt, value=3 - step / 8))
    async with drive(tmp_path, size=(140, 40), start="home") as driver:
        line = next(line for line in driver.lines if " loss " in line and "step 11" in line)
        assert "loss 3 █" in line
        assert "▁ 1.625 at step 11" in line
        assert "✗ 1 failed: ! opens its log" in driver.text
        await driver.press("exclamation_mark")
        assert isinstance(driver.screen, JobScreen)
        assert "the engine does not answer" in driver.text


@pytest.mark.slow
async def test_a_long_unit_has_a_share_a_rate_and_time_left_and_a_machine_its_latest_sign(
    drive, queue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "format_local_time", lambda time: f"{time:%H:%M}" if time else "")
    monkeypatch.setattr(show, "format_seconds", lambda seconds: "" if seconds is None else f"{seconds:.0f} s")
    back_up_registry(queue.folder / "registry.db", tmp_path / "registry.db")
    Store.create(tmp_path / "store")  # its own: that of the queue holds check-ins of running jobs
    with Database.open(tmp_path / "registry.db") as database, database.write() as sql:
        (machine,) = sql.scalars(select(Machine))
        hour = timedelta(hours=1)
        for number, attempt in enumerate(sql.scalars(select(Attempt).order_by(Attempt.started_at))):
            if attempt.state == "running":  # a quarter of its units in 20 s, and none of them whole
                attempt.progress, attempt.units_done, attempt.doing = 0.25, 0, "31 plies of 4 games in play"
                attempt.checked_in_at = attempt.started_at + timedelta(seconds=20)
                sql.execute(delete(UnitRange).where(UnitRange.attempt_id == attempt.id))
            else:
                attempt.state, attempt.checked_in_at = "finished", machine.last_seen + number * hour
            latest = max(machine.last_seen, *sql.scalars(select(Attempt.checked_in_at)))
    told = status(tmp_path)["machines"]
    assert [datetime.fromisoformat(row["last_seen"]) for row in told] == [latest]
    async with drive(tmp_path, size=(220, 40), start="home") as driver:
        await driver.until("31 plies of 4 games in play")
        line = next(line for line in driver.lines if "31 plies of 4 games in play" in line)
        assert f"{show.draw_bar(0.25)} 25 %" in line
        assert " 60 s " in line
        with Database.open(tmp_path / "registry.db") as database, database.write() as sql:
            for attempt in sql.scalars(select(Attempt).where(Attempt.state == "running")):
                attempt.state, attempt.cause, attempt.ended_at = "lost", "lost", attempt.checked_in_at
            for job in sql.scalars(select(Job).where(Job.state == "running")):
                job.state, job.cause, job.ended_at = "ended", "lost", job.started_at
        await driver.press("r")
        assert f"idle · 3 runs · seen {latest:%H:%M}" in driver.text


async def test_results_and_their_change_are_those_of_the_command(drive, world: Path) -> None:
    told = {row["run_id"]: row["answer"] for row in status(world, "--since", "1d")["ended"] if row["answer"]}
    async with drive(size=(160, 40), start="home") as driver:
        shown = {row["run_id"].hex: row["answer"] for row in rows(driver, "ended") if row["answer"]}
        assert {run: {name: answer[name] for name in told[run]} for run, answer in shown.items()} == told
        changed = [one for one in shown.values() if one["change"] is not None]
        assert changed
        for one in changed:
            line = next(
                line
                for line in driver.lines
                if show.format_measured_value(one) in line and show.format_signed_change(one) in line
            )
            assert f" {one['than']} " in line
            if one["change_low"] is not None:
                assert one["change_low"] <= one["change"] <= one["change_high"]


async def test_what_a_person_interrupted_has_not_failed(drive, world: Path) -> None:
    told = {row["name"]: row["cause"] for row in status(world, "--since", "1d")["ended"]}
    assert told["cut"] == "interrupted"
    async with drive(world, size=(160, 40), start="home") as driver:
        assert f"✓ {len(told) - 1}" in driver.text
        assert "✗ 0" in driver.text
        assert "open" not in driver.text.split("Ended in")[1].splitlines()[0], "there is no failure whose log opens"


async def test_an_empty_registry_is_filled_from_inside(drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.pgn").write_text("1. e4 e5 2. Nf3 Nc6 1/2-1/2\n")
    async with drive(tmp_path, size=(80, 24), start="") as driver:
        assert "D  the demo" in driver.text
        assert "D demo" in driver.lines[-1]
        await driver.press("D")
        assert "Run the demo in this registry?" in driver.text
        await driver.press("n", "A", "e", "ctrl+u")
        await driver.type(str(tmp_path / "no.pgn"))
        await driver.press("enter")
        await driver.once(lambda: "no.pgn" in driver.notices.splitlines()[-1], "why it cannot be read")
        await driver.press("e", "ctrl+u")
        await driver.type(str(tmp_path / "own.pgn"))
        await driver.press("enter")
        assert "chessreg dataset add own.pgn" in driver.text
        await driver.press("enter")
        await driver.until("There are games, but no model yet.")
        assert "A  a model from a file" in driver.text

        async def held(self: ModelProcess) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(ModelProcess, "make_environment", held)
        driver.screen.begin(["import", "checkpoint", "--reference"])
        while not driver.app.model.commands:
            await asyncio.sleep(0)
        await driver.app.action_quit()
        while not isinstance(driver.app.screen, Confirm):
            await asyncio.sleep(0)
        assert "quitting kills: chessreg import checkpoint --reference. Quit?" in driver.app.screen.question


async def test_an_empty_registry_says_what_to_do_next(drive, tmp_path: Path) -> None:
    async with drive(tmp_path, size=(80, 24), start="") as driver:
        assert "chessreg  1 home  2 jobs" in driver.lines[0]
        assert "There are no games yet." in driver.text
        assert "$ chessreg demo" in driver.text
        assert "Machines" not in driver.text


def test_the_command_tells_people_the_same(queue: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--registry", str(queue.folder / "registry.db"), "--store", str(queue.folder / "store")]
    capsys.readouterr()
    assert run_command_line([*place, "status"]) == 0
    said = capsys.readouterr().out
    assert "at the gate" in said
    assert "RuntimeError: the engine does not answer" in said
    assert " cores" in said
    assert run_command_line([*place, "status", "--since", "soon"]) == 4
    assert "not a date" in capsys.readouterr().err
    empty = ["--registry", str(tmp_path / "registry.db"), "--store", str(tmp_path / "store")]
    assert run_command_line([*empty, "init"]) == 0
    assert run_command_line([*empty, "status"]) == 0
    assert "nothing runs" in capsys.readouterr().err


async def test_tiles_have_three_lines_that_are_cut_with_a_mark(drive, studied: Path) -> None:
    """Each tile shows its title, its number and a detail, at every size that has tiles."""
    for size in ((100, 34), (120, 40), (200, 60)):
        async with drive(studied, size=size, start="home") as driver:
            screen = driver.screen
            assert isinstance(screen, HomeScreen)
            for number in range(1, 4):
                screen.query_one("#last").update("\n".join(f"line {n} " + "of a long result " * 9 for n in (1, 2, 3)))
                await driver.settle()
                line = driver.lines[number]
                assert f"line {number} of" in line
                assert line.rstrip().endswith("…")
                assert len(line) <= size[0]
