"""The history of a number is printed as commands that work, and an exact run is reproduced."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shlex
import shutil
import zipfile
from types import SimpleNamespace

import chess
import pytest
from sqlalchemy import func, select, update

from chessreg.cli.root import run_command_line
from chessreg.doctor import find_problems
from chessreg.entities.reproduce import RepeatedRun, list_steps, repeat_run, write_script_lines
from chessreg.errors import BadInputError
from chessreg.experiments.cache import Cache
from chessreg.experiments.edit import EditSpec
from chessreg.experiments.play import Play, PlaySpec
from chessreg.games.boards.moves import pack_moves, unpack_moves
from chessreg.queries import run_query
from chessreg.registry import tables
from chessreg.registry.identity import make_id
from chessreg.registry.read import EVALUATORS
from chessreg.runs.task import StopRequest
from chessreg.runs.transfer import explain_unreachable, find_items
from chessreg.session import open_session
from store.arrays import ArrayGroup

from ..conftest import queries_with_runs
from ..fixtures.demo.make import HERE as DEMO
from ..fixtures.demo.make import games

EDIT = EditSpec(checkpoint="reference", probe="reference-board", dataset="sample:test", games=2, per_game=3, samples=1)
PLAY = PlaySpec(
    checkpoint="reference", opponent="stockfish:0@nodes=1", games=4, policy="legal", opening="random:6", move_limit=10
)


@pytest.fixture
def session(world, tmp_path):
    shutil.copytree(world, tmp_path / "world")
    with open_session(str(tmp_path / "world" / "registry.db"), tmp_path / "world" / "store") as opened:
        yield opened


def typed(session, *words):
    """Run a command on this registry; returns its exit status and output."""
    session.close()
    out, err = io.StringIO(), io.StringIO()
    where = ["--registry", session.database.reference, "--store", str(session.store.root)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run_command_line([*where, *words])
    return status, SimpleNamespace(out=out.getvalue(), err=err.getvalue())


def test_steps_are_commands_in_an_order_that_works(session):
    with session.database.read() as sql:
        commands = [step["command"] for step in list_steps(sql, session.id("run", "reference-board"))]
    assert commands[-1] == "chessreg run probe --cache reference-fit --epochs 1 --name reference-board"
    cache = "chessreg run cache --checkpoint reference --dataset sample:fit --max-sites 16 --name reference-fit"
    order = [commands.index(cache), len(commands) - 1]
    assert order == sorted(order)
    assert any(c.startswith("chessreg dataset add games.pgn --name sample") for c in commands[: order[0]])
    assert any(c.startswith("chessreg import checkpoint") and "--name reference" in c for c in commands[: order[0]])


@pytest.mark.parametrize("name", ["reference-fit", "reference-board"])
def test_an_exact_run_comes_out_the_same_and_leaves_nothing_behind(session, name):
    before = session.database.data_version()
    fragments = sorted((session.store.root / "fragments").rglob("*"))
    found = repeat_run(session.database, session.store, session.id("run", name))
    assert found.is_equal
    assert found.outputs_same > 0
    assert session.database.data_version() == before
    assert sorted((session.store.root / "fragments").rglob("*")) == fragments
    assert list(session.store.tmp.iterdir()) == []


@pytest.mark.slow
def test_what_a_run_made_and_nobody_has_any_more_is_made_again_and_kept(session):
    for name in ("reference-board", "reference-test"):
        made = find_items(session.database, [name], inputs=False)
        for item in made:
            shutil.rmtree(item.path(session.store))
        short = session.id("run", name).hex[-6:]
        assert explain_unreachable(session.database, made[0])[1] == f"chessreg reproduce {short} --rerun"
        if made[0].array is not None:  # artifacts of a copied world are known where it was made
            [gone] = [
                found.hint for found in find_problems(session.database, session.store, session.database.reference)
            ]
            assert gone == f"`chessreg doctor --fix`, else chessreg reproduce {short} --rerun"
        found = repeat_run(session.database, session.store, session.id("run", name))
        assert (found.is_equal, sorted(found.outputs_kept)) == (True, sorted(item.what for item in made))
        for item in made:
            if item.array is None:
                session.store.verify(item.digest)
            else:
                ArrayGroup(item.path(session.store)).verify()
        assert repeat_run(session.database, session.store, session.id("run", name)).outputs_kept == []


def test_bytes_that_came_out_otherwise_are_not_kept(session):
    [item] = find_items(session.database, ["reference-test"], inputs=False)
    shutil.rmtree(item.path(session.store))
    with session.database.write() as sql:
        sql.execute(update(tables.ActivationCache).values(digest="0" * 64))
    found = repeat_run(session.database, session.store, session.id("run", "reference-test"))
    assert (found.is_equal, found.outputs_kept) == (False, [])
    assert not item.path(session.store).exists()


def test_a_row_that_was_changed_is_found(session):
    run_id = session.id("run", "reference-board")
    with session.database.write() as sql:
        row = sql.scalars(select(tables.Score).where(tables.Score.run_id == run_id)).first()
        row.correct += 3
        place = f"score {row.unit} {row.split} {row.item}"
        now = row.correct - 3
    found = repeat_run(session.database, session.store, run_id)
    assert found.differing == [place]
    assert {name: vars(column) for name, column in found.columns.items()} == {
        "score.correct": {
            "rows": 1,
            "largest": 3.0,
            "relative": 3 / (now + 3),
            "first": f"{place}: {now + 3} then, {now} now",
        }
    }
    status, said = typed(session, "reproduce", "reference-board", "--rerun")
    assert status == 1
    assert f"score.correct: 1 row, by at most 3 ({3 / (now + 3):.2g} of the value)" in said.err


def test_games_come_out_move_by_move_and_the_first_other_move_is_named(session):
    session.run(PLAY.model_copy(update={"opponent": "random"}), name="seedable")
    run_id = session.id("run", "seedable")
    assert repeat_run(session.database, session.store, run_id).is_equal
    with session.database.write() as sql:
        game = sql.get_one(tables.Game, (run_id, 2))
        moves = unpack_moves(game.moves)
        game.moves = pack_moves([*moves[:9], chess.Move.from_uci("a1h8"), *moves[10:]])
    found = repeat_run(session.database, session.store, run_id)
    assert found.differing == ["game 2"]
    assert found.columns["game.moves"].first == f"game 2: from place 9: a1h8 then, {moves[9].uci()} now"


def test_an_engine_that_differs_is_named(session):
    session.run(PLAY.model_copy(update={"opponent": "random"}), name="seedable")
    run_id, engine_id = session.id("run", "seedable"), make_id()
    with session.database.write() as sql:
        sql.add(tables.Engine(id=engine_id, name="Stockfish", version="9", binary_sha256="a" * 64, options={}))
        match = sql.get_one(tables.Match, (run_id, 0))
        match.detail = {**match.detail, EVALUATORS: [engine_id.hex]}
    found = repeat_run(session.database, session.store, run_id)
    assert found.is_equal
    then, now = found.engines["evaluator"]
    assert (then, now[:10]) == ("Stockfish 9 (sha256 aaaaaaaaaaaa)", "Stockfish ")
    status, said = typed(session, "reproduce", "seedable", "--rerun")
    assert status == 0
    assert f"evaluator: {then} then, {now} now" in said.err


def test_a_run_is_done_again_with_as_many_threads_and_as_large_batches(session, monkeypatch):
    asked = []
    monkeypatch.setattr(Cache, "run", lambda self, task: asked.append(task.options) or stopped(task))
    run_id = session.id("run", "reference-fit")
    with session.database.write() as sql:
        [attempt] = sql.scalars(select(tables.Attempt).where(tables.Attempt.run_id == run_id))
        attempt.execution_options = {**attempt.execution_options, "threads": 0, "used_threads": [1], "batch_games": 3}
    with pytest.raises(KeyboardInterrupt):
        repeat_run(session.database, session.store, run_id)
    assert [(options.threads, options.batch_games) for options in asked] == [(1, 3)]


def test_rows_that_are_no_rows_are_compared_as_they_are():
    found = RepeatedRun()
    found.row("game", "game 1", {"moves": b"abc", "detail": [1]}, {"moves": b"abd", "detail": None})
    assert found.columns["game.moves"].first == "game 1: 616263 then, 616264 now"


def stopped(task):
    raise StopRequest


def test_a_column_that_older_rows_do_not_have_is_not_compared(session):
    session.run(EDIT, name="edits")
    run_id = session.id("run", "edits")
    with session.database.write() as sql:
        for row in sql.scalars(select(tables.Trial).where(tables.Trial.run_id == run_id, tables.Trial.sample == -1)):
            row.detail = {name: value for name, value in row.detail.items() if name != "half"}
    found = repeat_run(session.database, session.store, run_id)
    assert found.is_equal
    assert found.newer == {"trial.detail.half"}


@pytest.mark.slow
def test_a_reproduction_changes_no_table(session):
    """Rows and intervals of every catalogue query; the match's opponent cannot be seeded, so a replicate is played."""
    session.run(PLAY, name="unseedable")
    session.run(EDIT, name="edits")
    answers = {entry.title: run_query(session.database, entry) for entry in queries_with_runs(session.database)}
    before = {title: answer for title, answer in answers.items() if len(answer)}
    version = session.database.data_version()
    status, said = typed(session, "reproduce", "edits", "--rerun", "--json")
    assert (status, json.loads(said.out)["agrees"]) == (0, True)
    status, said = typed(session, "reproduce", "unseedable", "--rerun", "--json")
    answer = json.loads(said.out)
    assert status == (0 if answer["agrees"] else 1)
    assert answer["subjects"][0]["label"] == "unseedable"
    assert {"score", "first try legal"} <= {metric["metric"] for metric in answer["metrics"]}
    assert session.database.data_version() == version
    assert len(before["elo by intervention"]) > 0
    assert len(before) > 5
    for title, then in before.items():
        now = run_query(session.database, title)
        assert (now.rows, now.notes) == (then.rows, then.notes), title
    assert list(session.store.tmp.iterdir()) == []


@pytest.mark.parametrize(
    ("opponent", "adjudication", "replays"),
    [
        ("random", "none", True),
        ("capture", "nodes=100", True),
        ("stockfish:20@nodes=50", "none", True),
        ("stockfish:20@depth=2+random=0.5", "none", True),
        ("random", "time=0.01", False),
        ("stockfish:20@time=0.01", "none", False),
        ("stockfish:19@nodes=50", "none", False),
        ("stockfish:-1", "none", False),
    ],
)
def test_only_games_that_nothing_but_a_seed_decides_are_held_to_their_moves(opponent, adjudication, replays):
    spec = PLAY.model_copy(update={"opponent": opponent, "adjudication": adjudication})
    assert Play().replays(spec) == replays
    assert not Play().replays(spec.model_copy(update={"evaluate_draws": "time=0.1"}))


def test_ctrl_c_leaves_nothing(session, monkeypatch):
    monkeypatch.setattr(Cache, "run", lambda self, task: stopped(task))
    with pytest.raises(KeyboardInterrupt):
        repeat_run(session.database, session.store, session.id("run", "reference-fit"))
    assert list(session.store.tmp.iterdir()) == []


def test_a_run_that_is_not_complete_is_refused(session):
    with session.database.write() as sql:
        sql.query(tables.Run).update({"completed_at": None})
    with pytest.raises(BadInputError, match="is not complete"):
        repeat_run(session.database, session.store, session.id("run", "skill"))
    with session.database.read() as sql:
        assert sql.scalar(select(func.count()).select_from(tables.Run)) > 0


def run_script(lines, files, folder, monkeypatch):
    """Run the commands of a script in a folder that has only these files, and check them as the script does."""
    for name, data in files.items():
        (folder / name).write_bytes(data)
    monkeypatch.chdir(folder)
    for variable in ("CHESSREG_REGISTRY", "CHESSREG_STORE"):
        monkeypatch.delenv(variable, raising=False)
    if "FILES" in lines:
        checked = lines[lines.index("sha256sum --check --quiet <<'FILES'") + 1 : lines.index("FILES")]
        for line in checked:
            digest, _, name = line.partition("  ")
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert run_command_line(["init"]) == 0
    for line in lines:
        if line.startswith("chessreg "):
            words = shlex.split(line, comments=True)[1:]
            assert run_command_line(words) == 0, line


@pytest.mark.parametrize("runs", [["edits", "ratings"]])
def test_the_script_of_a_run_makes_it_in_an_empty_folder(runs, tmp_path, monkeypatch, capsys):
    """The demo registry's runs, from its own files and nothing else."""
    with zipfile.ZipFile(DEMO / "demo.zip") as packed:
        packed.extractall(tmp_path / "demo")
    given = {"games.pgn": games(range(40), 40).encode(), "lessons.pgn": games(range(100, 130), 40).encode()}
    for run in runs:
        with open_session(str(tmp_path / "demo" / "registry.db"), tmp_path / "demo" / "store") as session:
            with session.database.read() as sql:
                made = list_steps(sql, session.id("run", run))
            lines = write_script_lines(made, session.store)
            wanted = {step["id"] for step in made if step["noun"] == "run"}
        folder = tmp_path / run
        folder.mkdir()
        run_script(lines, given, folder, monkeypatch)
        with open_session() as session, session.database.read() as sql:
            here = {row.id.hex for row in sql.scalars(select(tables.Run)) if row.completed_at}
        assert here == wanted


def test_a_file_without_a_name_is_called_by_its_digest_and_two_of_one_name_are_refused(session):
    step = {"command": "chessreg x", "afterwards": []}
    files = [{"name": "a.pgn", "sha256": "0" * 64}, {"name": "a.pgn", "sha256": "1" * 64}]
    with pytest.raises(BadInputError, match="two different files"):
        write_script_lines([{**step, "files": files}], session.store)
    gone = {"name": "v.npy", "sha256": "sha256:" + "2" * 64}
    lines = write_script_lines(
        [{**step, "command": f"chessreg run x --files {gone['sha256']}", "files": [gone]}], session.store
    )
    assert lines[-1] == "chessreg run x --files v.npy"
