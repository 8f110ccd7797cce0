"""Rows of jobs: paged and filtered lists, one launch in full, log files read from the end, and the home screen."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    String,
    and_,
    case,
    cast,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    true,
    type_coerce,
)

from chessreg.errors import NotFoundError
from chessreg.registry import measures, read, run_filter, tables, words
from chessreg.registry.run_state import FAILURES, WAITS_IN_CLUSTER
from chessreg.registry.states import get_state_word
from chessreg.registry.tables import Cause, Job, JobState
from chessreg.registry.tables.types import get_utc_now
from chessreg.scheduling import queue, status
from tui import show
from tui.data.pages import Pages, Row
from tui.data.run_rows import count_nouns
from tui.data.sql_pages import ChosenPages

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as SqlSession

    from chessreg.session import Session


IDS = {"id": Job.id, "job": Job.id, "launch": Job.group_id, "run": Job.run_id}
NODE, PARTITION = (Job.detail[(queue.PLACEMENT_KEY, key)].as_string() for key in ("node", "partition"))
IS_RUNNING = and_(Job.state == JobState.RUNNING, not_(WAITS_IN_CLUSTER))
MACHINE = case((Job.executor == "local", Job.host), else_=NODE)
TEXTS = {
    "kind": Job.kind, "on": Job.executor, "machine": MACHINE, "partition": PARTITION, "message": Job.message,
}  # fmt: skip
NUMBERS = {"priority": Job.priority, "tries": Job.tries, "shard": Job.shard + 1}
TIMES = {"launched": Job.created_at, "started": Job.started_at, "ended": Job.ended_at}
FIELDS = ("name", "state", *TEXTS, *NUMBERS, *TIMES, *IDS)
SEARCH_FIELDS = ("kind", "name", "state", "on", "machine", "id", "launch", "run")  # for a word without a field
QUEUE_STATES = (
    "queued",
    "waiting",
    "blocked",
)  # an unstarted job; the exact state depends on other jobs


def list_job_pages(session: Session, text: str = "") -> Pages:
    """Return the jobs that match the filter: running jobs, then waiting ones, then ended ones, newest first.

    A word must appear in the kind, name, executor, host, state, or at the end of the id of the job, launch or run.
    `state:running` searches one field, `tries>1` compares and `!word` negates. Raises BadInputError for an unknown
    field or a field that is computed for display.
    """
    filter_words = [normalize_state_word(word) for word in words.split_words(text)]
    order = case((IS_RUNNING, 0), (Job.state != JobState.ENDED, 1), else_=2)
    conditions = [make_word_condition(session, word) for word in filter_words]
    launch_time = func.min(Job.created_at).over(partition_by=(Job.group_id, Job.run_id))  # shards keep together
    query = select(Job.id).where(*conditions).order_by(order, launch_time.desc(), Job.run_id, Job.shard, Job.id)
    with session.database.read() as sql:
        ids = [id.hex for id in sql.scalars(query)]
        if states := [word for word in filter_words if is_queue_state_word(word)]:
            ids = filter_by_state(sql, ids, states)
    return ChosenPages(session, Job, ids, status.read_job_rows)


def make_word_condition(session: Session, word: str) -> ColumnElement[bool]:
    """Return one word of the filter as a condition on `job`."""
    if word.startswith("!") and len(word) > 1:
        inner = word[1:]
        # filter_by_state decides later whether a queued job waits, so keep all of them here.
        return (
            or_(not_(make_word_condition(session, inner)), Job.state == JobState.QUEUED)
            if is_queue_state_word(word)
            else not_(make_word_condition(session, inner))
        )
    by = lambda field, sign, value: make_field_condition(session, field, sign, value)
    return run_filter.match_word("jobs", word, FIELDS, SEARCH_FIELDS, by)


STATE_EQUALS_PATTERN = re.compile(r"(!?)state(!?)=(.*)")


def normalize_state_word(word: str) -> str:
    """Return `state=x` as `state:x` and `state!=x` as `!state:x`."""
    match = STATE_EQUALS_PATTERN.fullmatch(word)
    return word if match is None else f"{'!' if bool(match[1]) is not bool(match[2]) else ''}state:{match[3]}"


def make_field_condition(session: Session, field: str, sign: str, value: str) -> ColumnElement[bool]:
    """Return the SQL condition that `field` of a job compares by `sign` (`=`, `:`, `<`, …) to `value`.

    Raises BadInputError if the value is not a number or time in a field of numbers or times.
    """
    if not value:  # `kind:` while it is typed
        return literal(1) == literal(1)
    if field in NUMBERS:
        return run_filter.match_number(field, NUMBERS[field], sign, value)
    if field in TIMES:
        return run_filter.match_time(TIMES[field], sign, value)
    if field in TEXTS and sign not in "=:":
        return run_filter.match_text(TEXTS[field], sign, value)
    pattern = run_filter.build_like_pattern(sign, value)
    if field in TEXTS:
        return func.coalesce(TEXTS[field].ilike(pattern, escape="\\"), literal(1) == literal(0))
    if field == "name":
        targets = run_filter.select_annotated_targets("name").where(tables.Annotation.value.ilike(pattern, escape="\\"))
        return make_hex_column(session, Job.run_id).in_(targets)
    if field == "state":
        return make_state_condition(value.lower())
    digits = value.lower().replace("-", "")
    if not set(digits) <= set("0123456789abcdef"):
        return literal(1) == literal(0)
    return make_hex_column(session, IDS[field]).like(f"%{digits}")


def make_state_condition(value: str) -> ColumnElement[bool]:
    """Return the SQL condition of jobs in a state that begins with `value`, such as `run` or `cancelling`."""
    conditions = [
        condition
        for word, condition in make_end_conditions().items()
        if word == value or (word.startswith(value) and word != "ended")
    ]
    if any(state.startswith(value) for state in QUEUE_STATES):
        conditions.append(Job.state == JobState.QUEUED)
    if "waiting".startswith(value):
        conditions.append(and_(WAITS_IN_CLUSTER, not_(Job.cancel)))
    if "running".startswith(value):
        conditions.append(and_(IS_RUNNING, not_(Job.cancel)))
    if "cancelling".startswith(value):
        conditions.append(and_(Job.state == JobState.RUNNING, Job.cancel))
    return or_(*conditions) if conditions else literal(1) == literal(0)


def make_end_conditions() -> dict[str, ColumnElement[bool]]:
    """Return the conditions of the words that describe how a job ended. `failed` covers all failures counted on the
    home screen, `ended` covers every end."""
    causes: dict[str, ColumnElement[bool]] = {get_state_word(cause): Job.cause == cause for cause in Cause}
    killed_causes = causes["killed"]
    causes |= {"cancelled": and_(killed_causes, Job.cancel), "killed": and_(killed_causes, not_(Job.cancel))}
    words = causes | {"failed": or_(*(causes[word] for word in FAILURES)), "ended": true()}
    return {word: and_(Job.state == JobState.ENDED, condition) for word, condition in words.items()}


def is_queue_state_word(word: str) -> bool:
    """Return whether a word distinguishes queued, waiting and blocked jobs."""
    value = word.removeprefix("!").lower().removeprefix("state:")
    return (
        word.removeprefix("!").startswith("state:") and bool(value) and any(s.startswith(value) for s in QUEUE_STATES)
    )


def filter_by_state(sql: SqlSession, ids: Sequence[str], filter_words: Sequence[str]) -> list[str]:
    """Return the jobs whose state matches the words. The state of each queued job is looked up."""
    queued_jobs = {job.id.hex: job for job in sql.scalars(select(Job).where(Job.state == JobState.QUEUED))}

    def has_state(id: str) -> bool:
        if id not in queued_jobs:
            return True
        state, _ = status.find_state(sql, queued_jobs[id])
        return all(
            state.startswith(word.removeprefix("!").removeprefix("state:").lower()) is not word.startswith("!")
            for word in filter_words
        )

    return [id for id in ids if has_state(id)]


def make_hex_column(session: Session, column: Any) -> ColumnElement[str]:
    """Return the SQL expression of an id as 32 hexadecimal digits."""
    if session.database.dialect == "postgresql":
        return func.replace(cast(column, String), "-", "")
    return type_coerce(column, String)


def count_jobs(session: Session) -> dict[str, int]:
    """Return the numbers of running, waiting and ended jobs. Only running jobs are read; an index counts the others."""
    with session.database.read() as sql:
        by_state = dict(sql.execute(select(Job.state, func.count()).group_by(Job.state)).all())
        running_count = sql.scalar(select(func.count()).select_from(Job).where(IS_RUNNING)) or 0
    ended_count = by_state.get(JobState.ENDED, 0)
    return {
        "running": running_count,
        "waiting": sum(by_state.values()) - running_count - ended_count,
        "ended": ended_count,
    }


# -- one launch -------------------------------------------------------------------------------------------------------


class JobView(NamedTuple):
    """A job with the other jobs of its run in the same launch. `settings`, by dotted path, are those with an effect.
    `reason` is the error line in the log of a failed job."""

    job: dict[str, Any]
    settings: dict[str, Any]
    shards: Sequence[Row]
    log: Path | None
    why_no_log: str
    reason: str = ""
    results: tuple[str, Pages, Sequence[Row]] | None = None  # first result table of its run that has rows


def load_job(session: Session, job_id: UUID) -> JobView:
    """Load one job. Raises NotFoundError if it does not exist."""
    from chessreg.runs.kind import list_effective_settings
    from chessreg.runs.spec import flatten_settings
    from chessreg.scheduling.status import find_log

    with session.database.read() as sql:
        record = sql.get(Job, job_id)
        if record is None:
            raise NotFoundError(f"job {job_id.hex[-6:]} was not found", "chessreg jobs")
        full_row = status.read_full_row(sql, record)
        query = select(Job).where(Job.group_id == record.group_id, Job.run_id == record.run_id).order_by(Job.shard)
        shards = status.read_job_rows(sql, sql.scalars(query).all())
        log = find_log(session.store, record)
    settings = list_effective_settings(full_row["kind"], full_row["spec"]) | flatten_settings(
        full_row["execution_options"]
    )
    results = find_first_results(session, record.run_id)
    if log is not None:
        has_failed = full_row["state"] in status.FINAL_STATES and full_row["state"] not in ("complete", "cancelled")
        reason = find_failure_reason(log, full_row["message"] or "") if has_failed else ""
        return JobView(full_row, settings, shards, log, "", reason, results)
    return JobView(full_row, settings, shards, None, status.explain_missing_log(full_row))


def read_log_end(session: Session, job_id: UUID, lines: int) -> list[str]:
    """Return the last lines of a job's log, or the reason why it has no log."""
    job_view = load_job(session, job_id)
    if job_view.log is None:
        return [job_view.why_no_log]
    tail = LogTail(job_view.log).read()
    return [*tail.lines, *([tail.partial_line] if tail.partial_line else [])][-lines:]


REASON_SEARCH_BYTES = 1 << 16  # at the end of a log
REASON_PATTERN = re.compile(
    r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*|error: .*"
    r"|.*\b(?:out of memory|killed|segmentation fault|no space left)\b.*",
    re.IGNORECASE,
)


def find_failure_reason(log: Path, message: str) -> str:
    """Return the last log line that names an error; empty if there is no such line or the job's message contains it."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - REASON_SEARCH_BYTES))
            lines = [clean_log_line(line).strip() for line in file.read().splitlines()]
    except OSError:
        return ""
    line = next((line for line in reversed(lines) if REASON_PATTERN.match(line)), "")
    return "" if line and line in message else line


def find_first_results(session: Session, run_id: UUID) -> tuple[str, Pages, Sequence[Row]] | None:
    """Return the first result table with rows of a run, and its first page."""
    from tui.data.result_rows import RESULT_TABLES, count_result_rows, list_results

    name = next(iter(count_result_rows(session, run_id, list(RESULT_TABLES))), None)
    if name is None:
        return None
    pages = list_results(session, name, run_id)
    return name, pages, pages.read_page(0)


def list_ended_jobs(session: Session, ids: Sequence[UUID]) -> list[Row]:
    """Return the rows of those jobs that have ended."""
    with session.database.read() as sql:
        rows = status.read_job_rows(
            sql, sql.scalars(select(Job).where(Job.id.in_(list(ids)), Job.ended_at.is_not(None))).all()
        )
    return list(rows)


def find_current_job(session: Session, group_id: UUID) -> UUID:
    """Return the job of a launch to show first: the first unfinished one, or the last one."""
    with session.database.read() as sql:
        rows = status.read_job_rows(
            sql, sql.scalars(select(Job).where(Job.group_id == group_id).order_by(Job.created_at, Job.shard)).all()
        )
    active_ids: list[UUID] = [row["id"] for row in rows if row["state"] not in status.FINAL_STATES]
    return active_ids[0] if active_ids else rows[-1]["id"]


# -- changes ----------------------------------------------------------------------------------------------------------


def apply_to_jobs(session: Session, do: Callable[[SqlSession, list[Job]], list[Job]], ids: Sequence[UUID]) -> int:
    """Apply `do` to the jobs, start a supervisor if one is needed, and return the number of changed jobs."""
    from chessreg.scheduling.presence import Presence
    from store.process import is_this_machine

    with session.database.write() as sql:
        changed_jobs = do(sql, list(sql.scalars(select(Job).where(Job.id.in_(list(ids))))))
        is_local = any(is_this_machine(job.host, job.system_id) for job in changed_jobs)
        number = len(changed_jobs)
    if is_local:
        Presence(session.store).start(session.database.reference)
    return number


def list_launch_jobs(session: Session, job_id: UUID) -> list[UUID]:
    """Return all jobs of the launch of a job."""
    launch = select(Job.group_id).where(Job.id == job_id).scalar_subquery()
    with session.database.read() as sql:
        return list(sql.scalars(select(Job.id).where(Job.group_id == launch)))


INITIAL_LOG_BYTES = 1 << 19  # of an existing log
LOG_READ_BYTES = 1 << 20  # in one go
ESCAPE_PATTERN = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")


class LogChunk(NamedTuple):
    """Text added to a log: its complete lines and its incomplete last line.

    `is_replaced`: the log was replaced or truncated, so earlier lines are void.
    """

    lines: list[str]
    partial_line: str
    is_replaced: bool


class LogTail:
    """Reads the lines of a file and then the lines appended to it. `read` may be called from any thread,
    one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped_bytes = 0  # bytes at the beginning that were not read
        self._at, self._rest, self._file = 0, b"", 0

    def read(self) -> LogChunk:
        """Return the text written since the last call; empty if the file does not exist."""
        try:
            with self.path.open("rb") as file:
                return self._read(file)
        except FileNotFoundError:
            return LogChunk([], "", False)

    def _read(self, file) -> LogChunk:  # type: ignore[no-untyped-def]
        import os

        state = os.fstat(file.fileno())
        is_new_file = self._file != state.st_ino or state.st_size < self._at
        if is_new_file:
            self._file, self._rest = state.st_ino, b""
            self._at = self.skipped_bytes = max(0, state.st_size - INITIAL_LOG_BYTES)
        file.seek(self._at)
        data = file.read(LOG_READ_BYTES)
        if is_new_file and self.skipped_bytes:  # from the next whole line on
            line_end = data.find(b"\n") + 1
            self.skipped_bytes, self._at, data = self.skipped_bytes + line_end, self._at + line_end, data[line_end:]
        self._at += len(data)
        *complete_lines, self._rest = (self._rest + data).split(b"\n")
        return LogChunk([clean_log_line(line) for line in complete_lines], clean_log_line(self._rest), is_new_file)


def clean_log_line(line: bytes) -> str:
    """Return a line as a terminal displays it: without escape sequences, and after its last carriage return."""
    text = ESCAPE_PATTERN.sub("", line.decode(errors="replace").rstrip("\r")).rpartition("\r")[2]
    return "".join(c if c.isprintable() else " " for c in text.expandtabs(8))


class HomeSnapshot(NamedTuple):
    """The contents of the home screen.

    `counts` are the numbers of runs, datasets and checkpoints, `jobs` the numbers of jobs by state, `foreground` the
    number of runs in the foreground. `going` and `ended` are rows as in `chessreg status`. `machines` lists each host
    once, and `curves` belong to the running trainings.

    Rows of running jobs also have `at` (the machine), `gpus` (their indexes there, empty on the CPU) and `ran` (seconds
    since the start). Rows of waiting jobs have `after` (the jobs they wait for) and `starts_in` (estimated seconds, or
    None).
    """

    counts: dict[str, int]
    jobs: dict[str, int]
    foreground: int
    active_jobs: Sequence[Row]
    machines: Sequence[Row]
    ended_jobs: Sequence[Row]
    curves: Sequence[Curve]


class Curve(NamedTuple):
    """The curve of a running training: the run, the metric, and its last points (step, value)."""

    run: str
    metric: str
    points: list[tuple[int, float]]


MAX_HOME_CURVES = 6  # that are read


def load_run_answers(session: Session, run_ids: Sequence[UUID]) -> dict[UUID, Row | None]:
    """Return run → its result with its intervals; None for a run without a result."""
    from chessreg.queries.intervals import add_intervals

    with session.database.read() as sql:
        answers = measures.compare_with_earlier(sql, run_ids)
        return {
            run_id: add_intervals(sql, run_id, answers[run_id]) if run_id in answers else None for run_id in run_ids
        }


def list_loads(session: Session) -> list[Row]:
    """Return the hosts with running work and the load that each reported last."""
    machine = tables.Machine
    with session.database.read() as sql:
        load_of = read.read_loads(sql)
        hosts = sql.execute(select(machine.id, machine.host).where(machine.id.in_(load_of))).all()
    return [{"host": host, **load_of[id]} for id, host in hosts]


def add_placements(sql: SqlSession, active_jobs: Sequence[Row]) -> list[Row]:
    """Return the rows with the machine and GPUs of running jobs, and an estimated start for waiting jobs."""
    attempt, machine = tables.Attempt, tables.Machine
    query = (
        select(attempt.run_id, attempt.job_id, attempt.execution_options, machine.host)
        .join(machine, machine.id == attempt.machine_id)
        .where(attempt.state == tables.AttemptState.RUNNING)
    )
    places = {
        (run_id, job_id): (parse_gpu_numbers(options), host) for run_id, job_id, options, host in sql.execute(query)
    }
    seconds_left = {row["run_id"].hex[-6:]: row["seconds_left"] for row in active_jobs}
    names_by_id = {row["run_id"].hex[-6:]: row["name"] for row in active_jobs}
    rows, now = list[Row](), get_utc_now()
    for row in active_jobs:
        machine_name = row.get("machine") if row["state"] == "running" else None
        gpus, host = places.get((row["run_id"], row["id"]), ((), machine_name))
        waits = [seconds_left.get(text.rpartition(" ")[2]) for text in row["waits_for"]]
        run_names = [names_by_id.get(text.rpartition(" ")[2]) or text for text in row["waits_for"]]
        known_waits = [seconds for seconds in waits if seconds is not None]
        starts_in = max(known_waits) if known_waits and len(known_waits) == len(waits) else None
        if starts_in is None:
            starts_in = show.measure_seconds_to_start(row)
        elapsed_s = (now - row["started_at"]).total_seconds() if host is not None and row["started_at"] else None
        rows.append({**row, "at": host, "gpus": gpus, "ran": elapsed_s, "starts_in": starts_in, "after": run_names})
    return rows


def parse_gpu_numbers(options: Row) -> tuple[int, ...]:
    """Return the indexes of the GPUs that an attempt uses on its machine; empty for the CPU.

    >>> parse_gpu_numbers({"device": "cuda", "granted_gpu": "2,3"}), parse_gpu_numbers({"device": "cuda:1"})
    ((2, 3), (1,))
    >>> parse_gpu_numbers({"device": "cpu"}), parse_gpu_numbers({"device": "cuda", "devices": 2})
    ((), (0, 1))
    """
    device, gpu_text = str(options.get("device", "auto")), str(options.get("granted_gpu", ""))
    if device == "cpu":
        return ()
    numbers = (gpu_text or device.partition(":")[2]).split(",")
    if all(number.isdecimal() for number in numbers):
        return tuple(map(int, numbers))
    return tuple(range(int(options.get("devices", 1))))  # without indexes: the first GPUs


def list_hosts(sql: SqlSession) -> list[Row]:
    """Return one row per host: hosts with running work first, then by the time they were last seen.

    A host whose hardware or software changed is recorded as several machines. `running` and `runs` are sums over all of
    them; the other columns describe the machine seen last. `running` includes jobs that have started on the host but
    have not checked in.
    """
    hosts: dict[str, dict[str, Any]] = {}
    for row in read.list_machines(sql):
        newest_host = hosts.setdefault(row["host"], {**row, "running": 0, "runs": 0})
        newest_host["running"] += row["running"]
        newest_host["runs"] += row["runs"]
        if newest_host["load"] is None:
            newest_host |= {key: row[key] for key in ("load", "load_at")}
    attempt = tables.Attempt
    checked_in = exists().where(attempt.job_id == Job.id, attempt.state == tables.AttemptState.RUNNING)
    starting_jobs = select(MACHINE, func.count()).where(IS_RUNNING, ~checked_in, MACHINE.is_not(None)).group_by(MACHINE)
    for host, count in sql.execute(starting_jobs):
        empty_facts = dict.fromkeys(tables.Machine.__table__.columns.keys()) | {"gpus": [], "last_seen": get_utc_now()}
        empty_facts |= {"host": host, "running": 0, "runs": 0, "load": None, "load_at": None}
        hosts.setdefault(host, empty_facts)["running"] += count
    return sorted(hosts.values(), key=lambda row: (row["running"] > 0, row["last_seen"]), reverse=True)


def load_home(session: Session, since: datetime) -> HomeSnapshot:
    """Read the home screen: counts, jobs, machines, curves of running jobs, and runs that ended after `since`."""
    noun_counts, job_counts = count_nouns(session), count_jobs(session)
    with session.database.read() as sql:
        newest_hosts, foreground = list_hosts(sql), len(status.list_foreground(sql))
        active_jobs, ended_jobs = add_placements(sql, status.list_active(sql)), status.list_ended(sql, since)
        curves = list[Curve]()
        for row in {row["run_id"]: row for row in active_jobs if row["state"] == "running"}.values():
            if len(curves) < MAX_HOME_CURVES and (curve := measures.read_curve(sql, row["run_id"])) is not None:
                curves.append(Curve(row["name"] or row["title"], curve[0], curve[1]))
        return HomeSnapshot(noun_counts, job_counts, foreground, active_jobs, newest_hosts, ended_jobs, curves)
