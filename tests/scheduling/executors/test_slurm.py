"""Properties of Slurm: profiles, batch scripts, preemption, walltime, arrays, an unreachable controller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import select

from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry import tables
from chessreg.registry.identity import make_id
from chessreg.registry.tables import AttemptState, Cause
from chessreg.runs import trust
from chessreg.scheduling import status
from chessreg.scheduling.executors import ResourceNeeds, Submission, SubmissionStatus
from chessreg.scheduling.executors.slurm import CAUSE_OF_END, SlurmExecutor, get_end_status
from chessreg.scheduling.executors.slurm_script import SlurmProfile, find_profile, make_script

from .conformance import Conformance
from .conftest import write_profiles

SLEEP = "print('begun', flush=True); import time; time.sleep(600)"


def work(folder: Path, code: str = SLEEP, group=None, name: str = "probe 3f2a1c 1/4", **needs: object) -> Submission:
    job = make_id()
    argv = (sys.executable, "-u", "-c", code)
    settings = {"device": "cpu", "threads": 1} | needs
    place = folder / "store" / "runs" / "r" / "jobs" / job.hex
    return Submission(job, group or job, argv, place, folder, {"SECRET": "psst"}, ResourceNeeds(**settings), name)


def slurm(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout


def until(executor: SlurmExecutor, handle: str, state: str = "ended", seconds: float = 300) -> SubmissionStatus:
    deadline = time.monotonic() + seconds
    while (seen := executor.poll([handle]).get(handle)) is None or seen.state != state:
        assert time.monotonic() < deadline, f"still {seen}"
        assert seen is None or seen.state != "ended", f"it ended: {seen}"
        time.sleep(0.1)  # each poll runs Slurm's programs
    return seen


# -- profiles ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write ./.chessreg/profiles.toml; returns the folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def write(text: str, where: str = ".chessreg", trusted: bool = True) -> Path:
        (tmp_path / where).mkdir(parents=True, exist_ok=True)
        path = tmp_path / where / "profiles.toml"
        path.write_text(text)
        if trusted:
            trust.trust_reference(str(path))
        return tmp_path

    return write


def test_a_profile_is_found_beside_the_registry_above_it_and_in_the_home(written):
    folder = written('[gpu]\npartition = "near"\n')
    written('[gpu]\npartition = "far"\n[big]\ncpus = 8\n', "config/chessreg")
    below = folder / "deep" / "deeper"
    below.mkdir(parents=True)
    assert find_profile("gpu", folder).partition == "near"
    assert find_profile("gpu", below).partition == "near"
    assert find_profile("big", folder).cpus == 8
    assert find_profile("", folder) == SlurmProfile(), "--on slurm asks for nothing special"
    with pytest.raises(NotFoundError, match=r"profile 'gpo' was not found.*slurm:gpu, slurm:big"):
        find_profile("gpo", folder)
    written("[default]\ncpus = 3\n")
    assert find_profile("", folder).cpus == 3


def test_a_profile_of_a_folder_counts_once_it_is_trusted_and_as_long_as_it_is_the_same(written):
    written("[gpu]\ncpus = 1\n[own]\ncpus = 2\n", "config/chessreg", trusted=False)
    folder = written('[gpu]\nsetup = ["touch pwned"]\n[default]\npython = "/evil"\n', trusted=False)
    file = folder / ".chessreg" / "profiles.toml"
    for name in ("gpu", ""):
        with pytest.raises(trust.NotTrustedError, match=r"Slurm profiles in .*not trusted") as caught:
            find_profile(name, folder)
        assert caught.value.hint == f"read it, then: chessreg trust {file}"
    assert find_profile("own", folder).cpus == 2, "what stands in the user's own settings needs no trust"
    trust.trust_reference(str(file))
    assert find_profile("gpu", folder).setup == ("touch pwned",)
    file.write_text(file.read_text() + "# another\n")
    with pytest.raises(trust.NotTrustedError):
        find_profile("gpu", folder)
    (folder / "store.json").write_text("{}")
    with pytest.raises(trust.NotTrustedError, match="in the store"):
        find_profile("gpu", folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gpu\n", "is not TOML"),
        ("gpu = 3\n", "profile gpu: not a table"),
        ('[gpu]\npartitoin = "a"\n', "unknown setting 'partitoin'"),
        ("[gpu]\ntime = 30\n", "time: input should be a valid string, not 30"),
        ("[gpu]\ncpus = 0\n", "cpus: .*, not 0"),
        ('[gpu]\npartition = "a\\ntouch pwned"\n', "partition: it must be one line"),
        ('[gpu]\noptions = ["--a\\u2028b"]\n', "options: it must be one line"),
    ],
)
def test_a_wrong_profile_is_one_line_with_its_file(written, text: str, said: str):
    with pytest.raises(BadInputError, match=rf"profiles\.toml.*{said}") as caught:
        find_profile("gpu", written(text))
    assert "\n" not in str(caught.value)


# -- scripts ----------------------------------------------------------------------------------------------------------


def test_a_script_asks_for_what_the_profile_says_and_holds_no_secret(tmp_path):
    asked = SlurmProfile(
        partition="a100", gres="gpu:1", time="08:00:00", warning=120, constraint="a&b", mem="32G",
        account="lab", qos="high",
        options=("--exclude=node7",), setup=("module load cuda",), python="/opt/py", store="/nodes/store",
    )  # fmt: skip
    each = work(tmp_path, threads=4, device="auto")
    each = Submission(
        **{**vars(each), "argv": ("python", "-m", "chessreg.scheduling.worker", f"{each.folder}/work.json")}
    )
    text = make_script([each], asked, each.log)
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    for option in (
        '--job-name="probe 3f2a1c 1/4"', "--partition=a100", "--gres=gpu:1", "--time=08:00:00", '--constraint="a&b"',
        "--mem=32G", "--account=lab", "--qos=high", "--cpus-per-task=4", "--no-requeue", "--signal=B:USR1@120"
    ):  # fmt: skip
        assert option in options
    assert options[-1] == "--exclude=node7", "what the profile adds comes last"
    assert f"--output=/nodes/store/runs/r/jobs/{each.job_id.hex}/log.txt" in options
    assert text.endswith(
        f"exec /opt/py -m chessreg.scheduling.worker /nodes/store/runs/r/jobs/{each.job_id.hex}/work.json\n"
    )
    assert text.index("module load cuda") < text.index("exec ")
    assert "psst" not in text
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


def test_a_gpu_is_asked_for_unless_the_work_wants_none(tmp_path):
    with_gpu = SlurmProfile(gres="gpu:1")
    assert "--gres" not in make_script([work(tmp_path, device="cpu")], with_gpu, tmp_path)
    assert "--gres=gpu:1" in make_script([work(tmp_path, device="cuda")], with_gpu, tmp_path)
    assert "--gres" not in make_script([work(tmp_path, device="auto")], SlurmProfile(), tmp_path)
    assert make_script([work(tmp_path, device="cuda")], SlurmProfile(options=("--gpus=1",)), tmp_path)
    with pytest.raises(BadInputError, match="asks for no GPU"):
        make_script([work(tmp_path, device="cuda")], SlurmProfile(), tmp_path)


@pytest.mark.parametrize(
    ("state", "code", "cause", "exit_code", "said"),
    [
        ("COMPLETED", "0:0", Cause.FINISHED, 0, None),
        ("FAILED", "7:0", Cause.FAILED, 7, None),
        ("FAILED", "0:9", Cause.KILLED, 137, "killed by signal 9"),
        ("FAILED", "137:0", Cause.KILLED, 137, "killed by signal 9"),
        ("FAILED", "0:11", Cause.FAILED, 139, "ended by signal 11"),
        ("CANCELLED", "130:0", Cause.KILLED, 130, "cancelled in Slurm"),
        ("TIMEOUT", "0:15", Cause.WALLTIME, 143, "it reached its walltime"),
        ("PREEMPTED", "0:15", Cause.PREEMPTED, 143, "preempted by Slurm"),
        ("OUT_OF_MEMORY", "0:125", Cause.OOM, 253, "Slurm killed it: out of memory"),
        ("NODE_FAIL", "1:0", Cause.LOST, 1, "its node failed: Slurm reports NODE_FAIL, why"),
    ],
)
def test_every_end_has_its_cause(state, code, cause, exit_code, said):
    reason = "why" if state == "NODE_FAIL" else "NonZeroExitCode"
    assert get_end_status(state, code, reason) == ("ended", exit_code, cause, said, None)
    assert state in CAUSE_OF_END


# -- a real cluster ---------------------------------------------------------------------------------------------------


@pytest.fixture
def executor(slurm_cluster: Path, here_polled_often: Path) -> SlurmExecutor:
    return SlurmExecutor()


@pytest.fixture(scope="module")
def overtime(slurm_cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Submission, str]:
    """A work whose walltime is over soon. Slurm checks twice a minute: it is started first and checked last."""
    code = """import signal, sys, time
def end(*_): print('asked', flush=True); sys.exit(130)
signal.signal(signal.SIGTERM, end); print('begun', flush=True); time.sleep(600)"""
    each = work(tmp_path_factory.mktemp("overtime"), code)
    write_profiles(each.cwd, '[default]\npartition = "steady"\n')
    handle = SlurmExecutor().submit([each])[each.job_id]
    deadline = time.monotonic() + 300
    job = json.loads(handle)["job"]
    while "begun" not in (each.log.read_text() if each.log.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    slurm("scontrol", "update", f"JobId={job}", "EndTime=now+2")
    return each, handle


def test_a_launch_becomes_an_array_and_every_result_comes_once(overtime, executor, desk):
    """End to end: the supervisor, sbatch, the real worker, ingest."""
    desk.open_gate()
    desk.launch(desk.order(count=6, shards=2, on="slurm"))
    desk.finish()
    assert desk.states() == ["finished"] * 2, desk.said()
    assert sorted((row.unit, row.value) for row in desk.rows(tables.MetricPoint)) == [(n, n * n) for n in range(6)]
    numbers = [json.loads(job.handle)["job"] for job in desk.jobs()]
    assert {number.partition("_")[0] for number in numbers} == {numbers[0].partition("_")[0]}, "one array"
    assert [number.partition("_")[2] for number in numbers] == ["0", "1"]
    attempts = desk.rows(tables.Attempt)
    assert {(a.executor, a.execution_options["granted_threads"], a.state) for a in attempts} == {
        ("slurm", 1, AttemptState.FINISHED)
    }


def test_a_preempted_shard_waits_for_its_turn_and_does_only_what_is_missing(executor, desk):
    desk.launch(desk.order(count=4, on="slurm", how={"threads": 3}))
    desk.until(lambda: len(desk.rows(tables.UnitRange)) == 2)
    urgent = work(desk.folder, SLEEP, threads=4)
    write_profiles(desk.folder, '[default]\npoll = 0.2\n[urgent]\npoll = 0.2\npartition = "urgent"\n')
    pressing = SlurmExecutor("urgent")
    handle = pressing.submit([urgent])[urgent.job_id]
    desk.until(lambda: desk.jobs()[0].tries == 2, 60)
    (attempt,) = desk.rows(tables.Attempt)
    assert (attempt.state, attempt.cause, attempt.message) == (
        AttemptState.KILLED,
        Cause.PREEMPTED,
        "preempted by Slurm",
    )
    (job,) = desk.jobs()
    assert executor.poll([job.handle])[job.handle].state == "waiting"
    until(pressing, handle, "running")
    pressing.cancel(handle)
    desk.open_gate()
    desk.finish()
    assert desk.states() == ["finished"]
    assert sorted(row.unit for row in desk.rows(tables.MetricPoint)) == list(range(4))
    assert sorted(attempt.units_done for attempt in desk.rows(tables.Attempt)) == [2, 2]


def test_a_job_that_slurm_requeues_resumes_in_the_same_job(executor, desk):
    """`scontrol requeue`, as administrators and clusters with automatic requeueing do. Profiles permit it."""
    write_profiles(desk.folder, '[default]\npoll = 0.2\noptions = ["--requeue"]\n')
    desk.launch(desk.order(count=4, on="slurm"))
    desk.until(lambda: len(desk.rows(tables.UnitRange)) == 2)
    number = json.loads(desk.jobs()[0].handle)["job"]
    slurm("scontrol", "requeue", number)
    desk.until(lambda: "JobState=PENDING" in slurm("scontrol", "show", "job", number))
    # Slurm itself waits 120 s. slurmd refuses a job that begins in the second in which it was ended.
    slurm("scontrol", "update", f"JobId={number}", "StartTime=now+2seconds")
    desk.open_gate()
    desk.finish()
    assert desk.states() == ["finished"], desk.said()
    assert sorted((row.unit, row.value) for row in desk.rows(tables.MetricPoint)) == [(n, n * n) for n in range(4)]
    attempts = desk.rows(tables.Attempt)
    assert sorted((str(attempt.state), attempt.units_done) for attempt in attempts) == [("finished", 2), ("killed", 2)]


def test_a_job_near_its_time_limit_stores_its_work_and_resumes(executor, desk):
    """Slurm sends USR1 before the limit (`warning` of a profile). Here it is sent at once."""
    desk.launch(desk.order(count=4, on="slurm"))
    desk.until(lambda: len(desk.rows(tables.UnitRange)) == 2)
    slurm("scancel", "--signal=USR1", "--full", json.loads(desk.jobs()[0].handle)["job"])
    desk.until(lambda: desk.jobs()[0].tries == 2)
    (attempt,) = desk.rows(tables.Attempt)
    assert (attempt.state, attempt.cause, attempt.units_done) == (AttemptState.KILLED, Cause.WALLTIME, 2)
    desk.open_gate()
    desk.finish()
    assert desk.states() == ["finished"], desk.said()
    assert sorted(attempt.units_done for attempt in desk.rows(tables.Attempt)) == [2, 2]


def test_an_attempt_without_progress_in_its_time_limit_is_not_repeated(executor, desk):
    desk.launch(desk.order(count=4, on="slurm", how={"passed": 0}))
    desk.until(lambda: desk.rows(tables.Attempt))
    slurm("scancel", "--signal=USR1", "--full", json.loads(desk.jobs()[0].handle)["job"])
    desk.finish()
    assert desk.states() == ["walltime"]
    assert desk.jobs()[0].message == "stopped before its time limit"


def test_a_job_in_slurms_queue_waits_for_a_reason_and_then_runs_on_a_node(executor, desk):
    blocker = work(desk.folder, SLEEP, threads=5)
    handle = executor.submit([blocker])[blocker.job_id]
    until(executor, handle, "running")
    desk.launch(desk.order(count=2, on="slurm"))

    def row():
        with desk.session.database.read() as sql:
            return status.read_job_rows(sql, sql.scalars(select(tables.Job)).all())[0]

    desk.until(lambda: row()["reason"])
    waiting = row()
    assert (waiting["state"], waiting["machine"], waiting["partition"]) == ("waiting", None, "main")
    assert waiting["why"].startswith("waits in Slurm: Resources"), waiting["why"]
    assert waiting["scheduler_job"] == json.loads(desk.jobs()[0].handle)["job"]
    assert not desk.rows(tables.Attempt)
    executor.cancel(handle)
    desk.until(lambda: row()["state"] == "running")
    assert row()["machine"] == slurm("hostname").strip().partition(".")[0]
    assert row()["reason"] is None
    desk.open_gate()
    desk.finish()
    assert row()["machine"] == slurm("hostname").strip().partition(".")[0], "which node did it is not forgotten"


def test_a_job_that_somebody_cancels_in_slurm_is_killed_not_failed(executor, tmp_path):
    each = work(tmp_path)
    handle = executor.submit([each])[each.job_id]
    until(executor, handle, "running")
    slurm("scancel", json.loads(handle)["job"])
    seen = until(executor, handle)
    assert (seen.cause, seen.message) == (Cause.KILLED, "cancelled in Slurm")


def test_a_supervisor_that_died_while_submitting_leaves_no_second_job(executor, tmp_path):
    group = make_id()
    works = [work(tmp_path, group=group) for _ in range(2)]
    handles = executor.submit(works)
    before = slurm("squeue", "-h", "-r", "-o", "%i")
    for each in works:  # as the note stood before sbatch had answered
        note = json.loads((each.folder / "slurm.json").read_text())["handle"]
        task = note["job"].partition("_")[2]
        (each.folder / "slurm.json").write_text(json.dumps({"script": note["script"], "task": task, "before": 0}))
    following = SlurmExecutor()
    assert following.submit(works) == handles
    assert SlurmExecutor().submit(works) == handles, "nor when the handle was noted, but not in the registry"
    assert slurm("squeue", "-h", "-r", "-o", "%i") == before
    for handle in handles.values():
        following.cancel(handle)
    assert {until(following, handle).cause for handle in handles.values()} == {Cause.KILLED}
    again = following.submit(works[:1])
    assert again[works[0].job_id] != handles[works[0].job_id], "what has ended is begun anew"
    following.cancel(again[works[0].job_id])
    until(following, again[works[0].job_id])


def test_what_slurm_will_never_take_is_refused_in_its_own_words(executor, tmp_path):
    write_profiles(tmp_path, '[gone]\noptions = ["--qos=nowhere", "--nodelist=nowhere"]\n')
    with pytest.raises(BadInputError, match=r"Invalid node name.*profile gone"):
        SlurmExecutor("gone").submit([work(tmp_path)])


def test_a_partition_that_there_is_not_is_refused_before_anything_is_queued(executor, tmp_path):
    write_profiles(tmp_path, '[gone]\npartition = "main,nowhere"\n[here]\npartition = "main,steady"\n')
    with pytest.raises(BadInputError, match=r"no partition 'nowhere', which profile gone"):
        SlurmExecutor("gone")
    assert SlurmExecutor("here").name == "here"


def test_folders_of_any_printable_name_get_their_logs_and_are_told_apart(executor, tmp_path):
    """Slurm's patterns (%), its comments (#), a shell's signs, and text that resembles other fields of scontrol."""
    folder = tmp_path / '50%j it\'s #1; $(touch pwned) "`x`" !y JobState=FAILED Command=no'
    folder.mkdir()
    write_profiles(folder, "[default]\npoll = 0.2\n")
    group = make_id()
    works = [work(folder, f"print('said {number}')", group=group) for number in range(2)]
    works.append(work(folder, name="x\n#SBATCH --wrap='touch pwned'\u2028$(touch pwned)\rtouch pwned"))
    handles = executor.submit(works)
    until(executor, handles[works[2].job_id], "running")
    executor.cancel(handles[works[2].job_id])
    assert until(executor, handles[works[2].job_id]).cause is Cause.KILLED
    for number, each in enumerate(works[:2]):
        assert until(executor, handles[each.job_id]) == SubmissionStatus("ended", 0, Cause.FINISHED, None)
        assert each.log.read_text() == f"said {number}\n"
    assert not list(tmp_path.rglob("pwned"))


def test_a_setup_line_that_fails_ends_the_job_and_says_why(executor, tmp_path):
    write_profiles(tmp_path, '[default]\npoll = 0.2\nsetup = ["cd /nowhere"]\n')
    each = work(tmp_path, "print('never')")
    handle = executor.submit([each])[each.job_id]
    seen = until(executor, handle)
    assert (seen.cause, seen.exit_code) == (Cause.FAILED, 1)
    assert "/nowhere" in each.log.read_text()


def test_a_controller_that_does_not_answer_proves_nothing(executor, tmp_path, slurm_cluster, monkeypatch):
    each = work(tmp_path)
    handle = executor.submit([each])[each.job_id]
    until(executor, handle, "running")
    config = (slurm_cluster / "slurm.conf").read_text().splitlines()
    away = ["SlurmctldPort=1" if line.startswith("SlurmctldPort") else line for line in config]
    (tmp_path / "away.conf").write_text("\n".join([*away, "MessageTimeout=2", ""]))
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_CONF", str(tmp_path / "away.conf"))
        absent = SlurmExecutor()
        assert absent.poll([handle]) == {}
        assert absent.submit([work(tmp_path)]) == {}, "it waits for its turn"
    assert executor.poll([handle])[handle].state == "running"
    executor.cancel(handle)
    until(executor, handle)


def test_a_number_that_slurm_forgot_or_gave_to_another_is_lost(executor, tmp_path):
    each = work(tmp_path, "pass")
    handle = executor.submit([each])[each.job_id]
    until(executor, handle)
    known = json.loads(handle)
    options = [json.dumps({**known, "job": job}) for job in ("--me", "-h", "", "1 --me", ["1"])]
    assert {str(seen.message) for seen in executor.poll(options).values()} == {"its handle cannot be read"}
    forgotten = json.dumps({**known, "job": "99999999"})
    another = json.dumps({**known, "script": "/somewhere/else.sh"})
    seen = executor.poll([forgotten, another])
    assert {each.cause for each in seen.values()} == {Cause.LOST}
    assert "does not know" in str(seen[forgotten].message)
    assert "another job" in str(seen[another].message)


def test_walltime_is_told_apart_after_a_chance_to_end(overtime, executor):
    each, handle = overtime
    seen = until(executor, handle)
    assert seen.cause is Cause.WALLTIME
    assert "asked" in each.log.read_text()
    assert "DUE TO TIME LIMIT" in each.log.read_text()


def test_without_slurm_the_launch_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(os.environ, "SLURM_CONF", str(tmp_path / "none"))
    with pytest.raises(NotFoundError, match="sbatch was not found"):
        SlurmExecutor("gpu")


class TestLikeEveryExecutor(Conformance):
    @pytest.fixture
    def make_executor(self, slurm_cluster, here_polled_often):
        return SlurmExecutor
