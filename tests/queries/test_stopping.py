"""A query is stopped within a moment in any phase, and an answer of any length is written in constant memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from chessreg.errors import ChessregError
from chessreg.queries import run_query, run_sql
from chessreg.queries.ask import stream_sql
from chessreg.queries.stop import StoppedError, stop_queries_on
from chessreg.session import open_session
from tests.quick import quick_first

ENDS = 120  # seconds, on a busy machine; a statement that is not stopped runs forever
ENDLESS = {
    "counting": "select count(*) from range(1000000000000)",
    "joining": "select * from range(100000000) a, range(1000000) b",
    "recursing": "with recursive t(n) as (select 1 union all select n + 1 from t) select max(n) from t",
}
COMMAND = "import sys; from chessreg.cli.root import run_command_line; sys.exit(run_command_line(sys.argv[1:]))"


@pytest.mark.parametrize("sql", quick_first(1, ENDLESS.values()), ids=ENDLESS)
def test_the_end_of_the_time_stops_a_query_and_the_next_one_is_answered(session, sql):
    run_sql(session.database, "select 1 as a")
    begun = time.monotonic()
    with pytest.raises(ChessregError, match="exceeded its time limit"):
        run_sql(session.database, sql, timeout=0.5)
    assert time.monotonic() - begun < ENDS
    assert run_sql(session.database, "select 2 as a").rows == [{"a": 2}]
    run_query(session.database, "elo by intervention")


@pytest.mark.parametrize("sql", quick_first(1, ENDLESS.values()), ids=ENDLESS)
def test_another_thread_stops_a_query_and_the_next_one_is_answered(session, sql):
    run_sql(session.database, "select 1 as a")
    stop, begun = threading.Event(), time.monotonic()
    timer = threading.Timer(0.3, stop.set)
    timer.start()
    with pytest.raises(StoppedError), stop_queries_on(stop):
        run_sql(session.database, sql)
    assert time.monotonic() - begun < ENDS
    assert run_sql(session.database, "select 2 as a").rows == [{"a": 2}]
    with pytest.raises(StoppedError), stop_queries_on(stop):  # it was stopped before it began
        run_sql(session.database, sql)


def test_the_end_of_the_time_stops_an_answer_that_is_being_written(session):
    run_sql(session.database, "select 1 as a")
    begun = time.monotonic()
    with pytest.raises(ChessregError, match="exceeded its time limit"):
        for _ in stream_sql(session.database, "select * from range(10000000000) limit 9000000000", timeout=1.0):
            pass
    assert time.monotonic() - begun < ENDS


@pytest.mark.parametrize(
    "sql", quick_first(1, [ENDLESS["counting"], "select * from range(10000000000) limit 9000000000"])
)
def test_ctrl_c_stops_a_query(tmp_path, sql):
    open_session(str(tmp_path / "registry.db"), tmp_path / "store").close()
    words = ["--registry", str(tmp_path / "registry.db"), "query", "--sql", sql, "--format", "csv"]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND.replace("sys.exit", "print('begun', flush=True); sys.exit"), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    if "count" in sql:
        at_work = psutil.Process(process.pid)
        until = sum(at_work.cpu_times()[:2]) + 2  # seconds of processor time: it reports nothing while it counts
        while sum(at_work.cpu_times()[:2]) < until:
            time.sleep(0.02)
    else:
        for _ in range(1000):
            process.stdout.readline()
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=ENDS)
    assert process.returncode == 130
    assert "interrupted" in err.splitlines()
    assert "Traceback" not in err
    assert time.monotonic() - begun < ENDS


MEASURED = COMMAND.replace(
    "sys.exit(run_command_line(sys.argv[1:]))",
    "status = run_command_line(sys.argv[1:]); lines = open('/proc/self/status').read().splitlines();"
    "print(next(line.split()[1] for line in lines if line.startswith('VmHWM')), file=sys.stderr); sys.exit(status)",
)


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["csv", "jsonl"])
def test_many_rows_are_written_in_constant_memory(tmp_path, format_):
    open_session(str(tmp_path / "registry.db"), tmp_path / "store").close()
    place, peaks = ["--registry", str(tmp_path / "registry.db")], []
    for rows in (20_000, 200_000):  # of 500 characters: 100 MB
        sql = f"select repeat('x', 500) as text, {rows} - 1 - range as n from range({rows})"
        words = [*place, "query", "--sql", sql, "--format", format_]
        with (tmp_path / "answer").open("w") as file:
            done = subprocess.run(
                [sys.executable, "-c", MEASURED, *words], stdout=file, stderr=subprocess.PIPE, text=True
            )
        assert done.returncode == 0, done.stderr
        peaks.append(int(next(line for line in done.stderr.splitlines() if line.isdigit())) / 1024)
        with (tmp_path / "answer").open() as file:
            lines = sum(1 for _ in file)
            file.seek(max(0, file.tell() - 1000))
            last = file.read().splitlines()[-1]
        assert lines == rows + (format_ == "csv")
        end = json.loads(last)["n"] if format_ == "jsonl" else int(last.rpartition(",")[2])
        assert end == (rows - 1 if rows == 20_000 else 0)  # a short answer is sorted, a long one as it was found
    assert peaks[1] - peaks[0] < 60, f"{peaks} MiB"


def test_a_short_answer_in_parts_has_the_order_and_the_types_of_a_whole_one(session):
    sql = """select * from (values
        (2, 'b', sum_of, uuid '00000000-0000-0000-0000-0000000000b2', true, [1, 2]),
        (1, 'a', sum_of, uuid '00000000-0000-0000-0000-0000000000a1', null, null)
    ) as t(n, text, total, id, flag, list), (select sum(range) as sum_of from range(3))""".replace(
        "sum_of,", "7::hugeint,"
    )
    whole = run_sql(session.database, sql).rows
    assert [row["n"] for row in whole] == [1, 2]
    parts = [part.rows for part in stream_sql(session.database, sql)]
    assert [row for part in parts for row in part] == whole
    assert [list(row) for part in parts for row in part] == [list(row) for row in whole]


def test_a_table_that_nobody_can_read_is_refused(tmp_path, capsys):
    from chessreg.cli.root import run_command_line

    open_session(str(tmp_path / "registry.db"), tmp_path / "store").close()
    words = ["--registry", str(tmp_path / "registry.db"), "query", "--sql", "select * from range(200000)"]
    assert run_command_line(words) == 4
    assert "200,000 rows" in capsys.readouterr().err
