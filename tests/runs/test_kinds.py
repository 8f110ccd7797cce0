"""Finding kinds: the bundled ones, a user's file, and errors in such a file."""

from __future__ import annotations

import ast
import builtins
import hashlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy
from pydantic import Field, model_validator

from chessreg.entities.reproduce import list_steps, write_script_lines
from chessreg.errors import BadInputError, ChessregError, NotFoundError, describe_error
from chessreg.registry import tables
from chessreg.runs.ingest import ingest_fragments
from chessreg.runs.kind import find_kind, find_kind_of_record, find_kind_of_spec, find_own_kind, load_kinds
from chessreg.runs.spec import Spec, build_settings
from chessreg.scheduling.launch import Order, plan_orders, preview_run
from store import StoreError

TOY = Path(__file__).parent.parent / "kinds" / "toy_kind.py"


def test_our_kinds_are_found_by_name_and_by_recorded_source():
    assert {"cache", "probe", "vector", "edit", "play", "train"} <= set(load_kinds())
    for found in load_kinds().values():
        assert type(find_kind(found.source)) is type(found)
        assert found.summary.endswith(".")


def test_a_kind_may_be_given_as_its_class():
    kind = find_kind("cache")
    assert find_kind_of_spec(build_settings(kind.spec, {"checkpoint": "a", "dataset": "b"}), type(kind)).name == "cache"


def test_listing_the_kinds_imports_nothing_heavy():
    code = (
        "from chessreg.runs.kind import load_kinds; load_kinds(); import sys;"
        "print(*sorted({'torch', 'transformers', 'zarr', 'textual', 'duckdb', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_kind_in_a_file_needs_no_class_name_when_there_is_one():
    assert find_kind(str(TOY)).name == find_kind(f"{TOY}:Toy").name == "toy"


def test_a_run_records_the_file_of_its_kind_which_its_script_checks(session, run_toy):
    run_id = run_toy(positions=1).run_id
    digest = hashlib.sha256(TOY.read_bytes()).hexdigest()
    with session.database.read() as sql:
        attempt = sql.scalars(sqlalchemy.select(tables.Attempt).where(tables.Attempt.run_id == run_id)).one()
        steps = list_steps(sql, run_id)
    assert attempt.code["kind_file"] == {"file": "toy_kind.py", "sha256": digest}
    lines = write_script_lines(steps, session.store)
    assert f"{digest}  toy_kind.py" in lines
    assert lines[-1].startswith("chessreg run ./toy_kind.py:Toy ")
    hostile = {"command": "chessreg x", "afterwards": [], "files": [{"name": "a", "sha256": "0\nFILES\nrm -rf ."}]}
    assert write_script_lines([hostile], session.store).count("FILES") == 1
    assert not any(line.startswith("rm") for text in write_script_lines([hostile], session.store)
                   for line in text.split("\n"))  # fmt: skip


def test_a_changed_kind_file_is_reported_when_earlier_results_are_kept(session, tmp_path, capsys):
    file = tmp_path / "odd_kind.py"
    for text in (kind_of("tables = ('score',)"), kind_of("tables = ('score',)") + "# changed"):
        file.write_text(text)
        kind = find_kind(str(file))
        session.run(kind.spec(), kind=kind)
    assert capsys.readouterr().err.count("odd_kind.py has changed since run") == 1
    (planned_run,) = plan_orders([Order(kind, kind.spec(), kind.options())], session.database, session.store)
    assert preview_run(planned_run, session.database, session.store)["remarks"][0].startswith("odd_kind.py has changed")


def kind_of(tables: str, run: str = "pass", name: str = "odd") -> str:
    """The text of a file with a kind of two units, of which `run` does one."""
    return f"""
from chessreg.kinds import Kind

class Odd(Kind):
    name = "{name}"
    {tables}

    def units(self, spec, inputs):
        return 2

    def run(self, task):
        for unit in task.units:
            {run}
            task.done(unit)
"""


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("import nothing_of_that_name", BadInputError, "fails to import"),
        ("x = 1", BadInputError, "defines no kind"),
        (
            "from chessreg.runs.kind import Kind\nclass A(Kind):\n    name = 'a'\n    tables = ('nonsense',)",
            BadInputError,
            r"no method units\(self, spec, inputs\)",
        ),
        ("x = (1\n", BadInputError, r"odd_kind.py, line 1: '\(' was never closed"),
        (kind_of("tables = ('nonsense',)"), BadInputError, "result tables"),
        (kind_of("tables = 'score'"), BadInputError, r"is a text, not a tuple \(tables = \(\"score\",\)\)"),
        (kind_of("tables = ('score',)", name="legality"), BadInputError, "chessreg has a kind legality already"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_in_one_line(tmp_path, text, error, says):
    path = tmp_path / "odd_kind.py"
    path.write_text(text)
    with pytest.raises(error, match=says):
        find_kind(str(path))


POINT = "task.emit('metric_point', unit, name='loss', step=0, value={})"
ROW = "task.emit('score', unit, split='x', item=1, n=1, correct=1)"


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (ROW.replace("split", "splitt"), "with the unknown column 'splitt' (did you mean split?)"),
        (ROW.replace("split='x', ", ""), "without split, part of its key"),
        (ROW.replace("n=1", "n=None"), "without n"),
        (ROW.replace("n=1", "n='many'"), "its n cannot be 'many'"),
        (ROW.replace("'x'", "'x' * 33"), "its split cannot be 'xxxx"),
        ("task.record('engine', name='x', version='y' * 65)", "shorten its 65 characters to 64"),
        (f"{ROW}; {ROW}", "emits two score rows with unit 0, split x, item 1"),
        (f"{ROW}; task.record('dream', unit=unit)", "unknown table 'dream'"),
        (POINT.format("float('nan')"), "metric_point row of unit 0, field value: NaN or infinite"),
        (POINT.format("'low'"), "were quarantined: its rows cannot be read"),
    ],
)
def test_a_row_that_its_table_cannot_take_is_told_and_keeps_nobody_back(session, tmp_path, run, says, run_toy):
    path = tmp_path / "wrong_kind.py"
    path.write_text(kind_of("tables = ('score', 'metric_point')", run))
    found = find_kind(str(path))
    with pytest.raises((ChessregError, StoreError), match=re.escape(says)):
        session.run(found.spec(), kind=str(path))
    with session.database.read() as sql:
        assert sql.scalars(sqlalchemy.select(tables.Attempt.state)).one() is tables.AttemptState.FAILED
        assert not sql.scalars(sqlalchemy.select(tables.Score.n)).all()
    assert not ingest_fragments(session.database, session.store).waiting
    assert run_toy().state == "complete"


def test_our_kinds_are_ours_whatever_source_a_registry_has_for_them(session, tmp_path):
    path = tmp_path / "evil_kind.py"
    path.write_text("raise SystemExit")
    record = tables.KindRecord(name="legality", version=1, source=f"{path}:Evil", result_tables=["rating"])
    assert find_kind_of_record(record) is not None
    assert all(find_own_kind(name).source == found.source for name, found in load_kinds().items())


def test_an_unknown_kind_names_those_there_are():
    with pytest.raises(NotFoundError, match="probe"):
        find_kind("prob")


def test_every_public_name_of_a_kind_file_is_there():
    import chessreg.kinds

    assert all(getattr(chessreg.kinds, name) for name in chessreg.kinds.__all__)


RAISING = """
from chessreg.kinds import Kind, Spec

class Raising(Kind):
    name = "raising"
    tables = ("score",)
    spec = Spec

    def units(self, spec, inputs):
        return 1

    def run(self, task):
        self.halve(0)

    def halve(self, number):
        return 1 / number
"""


def test_an_error_of_a_users_own_kind_is_told_with_its_name_and_line(tmp_path, session):
    path = tmp_path / "raising_kind.py"
    path.write_text(RAISING)
    with pytest.raises(ZeroDivisionError) as caught:
        session.run(find_kind(str(path)).spec(), kind=str(path))
    message, hint, status = describe_error(caught.value)
    assert message == "your kind raising raised ZeroDivisionError: division by zero"
    assert hint.startswith(f"{path}, line 16")
    assert status == 1
    assert describe_error(ValueError("x"))[1].startswith("this is a fault in chessreg")


class Between(Spec):
    low: int = 0
    high: int = 1

    @model_validator(mode="after")
    def _in_order(self):
        if self.high < self.low:
            raise ValueError(f"high {self.high} is below low {self.low}")
        return self


def test_what_is_wrong_with_settings_together_is_told_without_the_name_of_an_option():
    with pytest.raises(BadInputError, match=r"^high 1 is below low 2"):
        build_settings(Between, {"low": 2})


def test_settings_are_made_without_a_look_at_their_source(monkeypatch):
    """Kinds are imported on several threads at once, and there `ast.parse` of CPython 3.11 fails now and then."""
    monkeypatch.setattr(ast, "parse", lambda *_, **__: pytest.fail("a source was parsed"))

    class Asked(Spec):
        games: int = Field(2, description="games to play")

    assert Asked().games == 2


def test_two_threads_that_load_one_file_run_it_once_and_get_one_class(tmp_path):
    path = tmp_path / "slow_kind.py"
    path.write_text(f"import time\nRUNS.append(1)\ntime.sleep(0.2)\n{TOY.read_text()}")
    builtins.RUNS = []
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: find_kind(str(path)), range(4)))
        assert builtins.RUNS == [1]
        assert len({type(each) for each in found}) == 1
    finally:
        del builtins.RUNS
