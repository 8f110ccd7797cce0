"""A half-finished paper as one file: after loading it elsewhere, its complete steps are complete, and the paper
continues."""

import shutil
from contextlib import ExitStack
from types import SimpleNamespace
from zipfile import ZIP_LZMA, ZipFile

import pytest
from sqlalchemy import select, update

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.papers import archive, find_paper
from chessreg.papers.plan import Paper, Request, Step, order_steps, put_steps_first
from chessreg.papers.work import Work
from chessreg.registry import tables
from chessreg.runs.unfinished import read_progress
from chessreg.session import open_session

from .conftest import TOY


@pytest.fixture
def resting(work):
    """Two scratch steps; `early` rests on both, `middle` on the first by way of `early`, `late` on the first alone."""
    steps = [
        Step("scratch-1", TOY, {"positions": 2, "seed": 11}, "", scratch=True),
        Step("scratch-2", TOY, {"positions": 2, "seed": 12}, "", scratch=True),
        Step("early", TOY, {"positions": 3, "seed": 13}, "", ("scratch-1", "scratch-2")),
        Step("middle", TOY, {"positions": 3, "seed": 14}, "", ("early",)),
        Step("late", TOY, {"positions": 4, "seed": 15}, "", ("scratch-1",)),
    ]
    paper = Paper(
        "toy", "Toys", lambda request: steps, (), steps_by_question={"end": ("late", "nothing-*"), "all": ("*",)}
    )
    return replace_paper(work, paper)


def replace_paper(work, paper, first=()):
    return Work(work.session, paper, work.request, first=first)


@pytest.fixture
def elsewhere(resting, tmp_path):
    with open_session(str(tmp_path / "other" / "registry.db"), tmp_path / "other" / "store") as opened:
        yield Work(opened, resting.paper, resting.request)


def states(work):
    return {planned.step.name: planned.state for planned in work.plan()}


def stop_before(name):
    """Interrupts a paper when the step of this name begins."""

    class Stop(Exception):
        pass

    def begin(number, planned):
        if planned.step.name == name:
            raise Stop

    return begin, Stop


def test_steps_come_first_that_are_asked_for_with_what_they_need(resting):
    def order(*first):
        return [
            step.name
            for step in order_steps(put_steps_first(resting.paper, resting.paper.steps(resting.request), first))
        ]

    assert order() == ["scratch-1", "scratch-2", "early", "middle", "late"]
    assert order("end") == ["scratch-1", "late", "scratch-2", "early", "middle"]
    assert order("mid*", "late") == ["scratch-1", "scratch-2", "early", "middle", "late"]
    assert [step.name for step in replace_paper(resting, resting.paper, ["late"]).steps][:2] == ["scratch-1", "late"]
    with pytest.raises(NotFoundError, match="'skull' matches no step") as caught:
        order("skull")
    assert caught.value.hint.startswith("end, all; or names")


@pytest.mark.parametrize("size", ["small", "reference", "paper"])
def test_a_papers_questions_are_answered_by_steps_that_it_has(size):
    paper = find_paper("karvonen")
    steps = paper.steps(Request("m", "d", "e", 8, 64, size))
    for question in paper.steps_by_question:
        assert len(order_steps(put_steps_first(paper, steps, [question]))) == len(steps)
    first = order_steps(put_steps_first(paper, steps, ["skill"]))
    done = [step.name for step in first].index("arm-legal-random-positive-of-probe-random-1")
    assert not [step.name for step in first[:done] if step.name.startswith(("table-", "level-", "arm-retry"))]


def test_what_is_half_done_goes_on_elsewhere_without_the_scratch_that_nothing_needs(resting, elsewhere, tmp_path):
    begin, stopped = stop_before("late")
    with pytest.raises(stopped):
        resting.run_steps(begin)
    saved = archive.save_paper(resting, tmp_path / "half.zip")
    assert (saved["complete"], saved["steps"], saved["runs"]) == (4, 5, 2)  # early and middle; scratch is left out
    for _ in range(2):  # a second time does nothing
        archive.load_paper(elsewhere, tmp_path / "half.zip")
    assert states(elsewhere) == {
        "scratch-1": "ready", "scratch-2": "unneeded", "early": "complete", "middle": "complete", "late": "waiting",
    }  # fmt: skip
    assert not elsewhere.run_steps()
    assert states(elsewhere)["late"] == "complete"
    assert states(elsewhere)["scratch-2"] == "unneeded"
    for name in ("early", "middle"):
        assert elsewhere.complete_steps.run_id(name) == resting.complete_steps.run_id(name)
    archive.save_paper(elsewhere, tmp_path / "whole.zip")
    archive.load_paper(resting, tmp_path / "whole.zip")
    assert set(states(resting).values()) == {"complete"}


def test_a_step_that_is_partly_done_is_taken_along(resting, elsewhere, tmp_path, interrupt_at):
    assert resting.run_steps(on_progress=interrupt_at(6))  # in the third step, of three positions
    archive.save_paper(resting, tmp_path / "half.zip")
    archive.load_paper(elsewhere, tmp_path / "half.zip")
    assert not elsewhere.run_steps()
    assert states(elsewhere)["early"] == "complete"


def attempts(work):
    with work.session.database.read() as sql:
        return {a.id: (a.state, a.ended_at) for a in sql.scalars(select(tables.Attempt))}


def test_an_attempt_at_work_is_lost_in_what_is_saved_until_its_end_is_known(resting, elsewhere, tmp_path, interrupt_at):
    assert resting.run_steps(on_progress=interrupt_at(6))
    ended = attempts(resting)
    attempt, running = tables.Attempt, tables.AttemptState.RUNNING
    with resting.session.database.write() as sql:  # in its state while the run continues
        sql.execute(update(attempt).values(state=running, cause=None, ended_at=None))
    archive.save_paper(resting, tmp_path / "half.zip")
    archive.load_paper(elsewhere, tmp_path / "half.zip")
    taken = attempts(elsewhere)
    assert taken
    assert {state for state, _ in taken.values()} == {tables.AttemptState.LOST}
    assert all(at is not None for _, at in taken.values())
    assert {state for state, _ in attempts(resting).values()} == {running}, "here it is at work still"
    with resting.session.database.write() as sql:
        for id, (state, at) in ended.items():
            sql.execute(update(attempt).where(attempt.id == id).values(state=state, ended_at=at))
    archive.save_paper(resting, tmp_path / "later.zip")
    for _ in range(2):
        archive.load_paper(elsewhere, tmp_path / "later.zip")
        archive.load_paper(elsewhere, tmp_path / "half.zip")
        assert attempts(elsewhere) == {id: ended[id] for id in taken}


def test_a_paper_of_which_nothing_is_here_is_not_saved(resting, tmp_path):
    with pytest.raises(NotFoundError, match="no run of this paper has begun"):
        archive.save_paper(resting, tmp_path / "half.zip")
    assert not list(tmp_path.glob("*.zip"))


@pytest.mark.slow
def test_a_file_of_others_is_refused_in_one_line_and_leaves_nothing(resting, elsewhere, tmp_path, monkeypatch):
    resting.run_steps()
    path = tmp_path / "whole.zip"
    archive.save_paper(resting, path)
    before = sorted(elsewhere.session.store.root.rglob("*"))

    def refused(file, error, match):
        with pytest.raises(error, match=match):
            archive.load_paper(elsewhere, file)
        assert sorted(elsewhere.session.store.root.rglob("*")) == before
        assert states(elsewhere)["early"] == "waiting"

    refused(tmp_path / "none.zip", NotFoundError, "does not exist")
    (tmp_path / "text.zip").write_text("a letter")
    refused(tmp_path / "text.zip", BadInputError, "is not a saved paper")
    (tmp_path / "cut.zip").write_bytes(path.read_bytes()[:-400])
    refused(tmp_path / "cut.zip", BadInputError, "is not a saved paper")
    refused(tmp_path, BadInputError, "is not a saved paper")
    for name in ("../outside", "/etc/outside", "store/../../outside", "registry.db.sh"):
        with ZipFile(tmp_path / "odd.zip", "w") as odd:
            odd.writestr(name, "x")
        refused(tmp_path / "odd.zip", BadInputError, "not a saved paper: it contains")
    with ZipFile(tmp_path / "empty.zip", "w"):
        pass
    refused(tmp_path / "empty.zip", BadInputError, "is not a saved paper")
    with ZipFile(path) as whole, ZipFile(tmp_path / "wrong.zip", "w") as wrong:
        for name in whole.namelist():
            wrong.writestr(name, b"SQLite no more" if name == "registry.db" else whole.read(name))
    refused(tmp_path / "wrong.zip", BadInputError, r"wrong\.zip: the registry registry\.db is not a SQLite database")
    flipped = bytearray(path.read_bytes())
    with ZipFile(path) as whole:
        offset = whole.getinfo("registry.db").header_offset
    flipped[offset + 300 : offset + 340] = bytes(40)  # inside the deflated data
    (tmp_path / "flipped.zip").write_bytes(flipped)
    refused(tmp_path / "flipped.zip", BadInputError, "is not a saved paper: (Error|Bad CRC)")
    for name, changes, why in (
        ("deep", {"paper.json": "[" * 100_000}, r"is not a saved paper \("),
        ("long", {"paper.json": " " * (1 << 20) + "{}"}, "its paper.json is too long"),
        ("rowless", {"registry.db": None}, "it holds no registry.db"),
        ("store", {"store/store.json": "[]"}, "cannot open the store store: its store.json is damaged"),
        ("artifact", {f"store/artifacts/ab/{'ab' * 32}/.artifact.json": "{}"}, "paper: artifact abab.* is damaged"),
    ):
        with ZipFile(path) as whole, ZipFile(tmp_path / f"{name}.zip", "w") as other:
            for member in {*whole.namelist(), *changes}:
                if changes.get(member, "") is not None:
                    other.writestr(member, changes.get(member) or whole.read(member))
        refused(tmp_path / f"{name}.zip", BadInputError, why)
    with ZipFile(tmp_path / "lzma.zip", "w", ZIP_LZMA) as other:
        other.writestr("paper.json", "{}")
    refused(tmp_path / "lzma.zip", BadInputError, "unknown compression")
    with monkeypatch.context() as patched:
        patched.setattr(archive.shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
        refused(path, BadInputError, "would unpack to more than 100 bytes, which are free")
    monkeypatch.setattr(elsewhere, "tag", "toy-small-other")
    refused(path, BadInputError, "is of toy-small-abcdef, this is toy-small-other")
    assert not list(tmp_path.rglob("outside"))


def test_a_file_that_cannot_be_written_leaves_nothing(resting, tmp_path):
    resting.run_steps()
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "half.zip").mkdir()
    with pytest.raises(BadInputError, match="cannot write"):
        archive.save_paper(resting, tmp_path / "locked" / "half.zip")
    with pytest.raises(BadInputError, match="cannot write"):
        archive.save_paper(resting, tmp_path / "nowhere" / "half.zip")
    assert [path.name for path in (tmp_path / "locked").iterdir()] == ["half.zip"]


@pytest.fixture
def training(world, tmp_path):
    """A paper of one training, on two machines that have its games."""
    step = Step("model", "train", {
        "architecture": "gpt2",
        "datasets": ("sample:fit",), "n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 64, "batch_tokens": 512,
        "steps": 40, "warmup_steps": 2,
    }, "nothing")  # fmt: skip
    paper = Paper("toy", "A training", lambda request: [step], ())
    asked = Request("", "sample", "sample", 0, 0, "small")
    with ExitStack() as opened:
        works = []
        for name in ("one", "two"):
            shutil.copytree(world, tmp_path / name)
            session = opened.enter_context(
                open_session(str(tmp_path / name / "registry.db"), tmp_path / name / "store")
            )
            works.append(Work(session, paper, asked, {"threads": 1}))
        yield works


def state_of(work):
    [(_, run)] = archive.find_begun_runs(work).items()
    return work.session.store.runs / run.hex / "state.pt"


@pytest.mark.slow
def test_a_training_that_was_stopped_goes_on_elsewhere_from_one_file(training, tmp_path, interrupt_at):
    here, there = training
    assert here.run_steps(on_progress=interrupt_at(1, "loss"))  # at its first point, of two
    saved = archive.save_paper(here, tmp_path / "half.zip")
    assert (saved["complete"], saved["runs"], saved["states"]) == (0, 1, 1)
    for came in (1, 0):  # a second time does nothing
        assert archive.load_paper(there, tmp_path / "half.zip")[1] == came
    assert read_progress(state_of(there)) == read_progress(state_of(here))
    assert read_progress(state_of(there))[0] == 20
    assert not there.run_steps()
    assert archive.save_paper(there, tmp_path / "whole.zip")["states"] == 0
    assert archive.load_paper(here, tmp_path / "whole.zip")[1] == 0
    assert states(here) == {"model": "complete"}


@pytest.mark.slow
def test_what_steps_to_come_read_is_saved_though_they_are_not_among_those_chosen(training, tmp_path):
    here, there = training
    answers = Step("answers", "perplexity", {"checkpoint": "@model/checkpoint", "dataset": "sample:test"}, "nothing")
    paper = Paper("toy", "A training and its test", lambda request: [*here.all_steps, answers], ())
    first = Work(here.session, paper, here.request, {"threads": 1}, only=("model",))
    assert not first.run_steps()
    assert archive.save_paper(first, tmp_path / "model.zip")["artifacts"] == 1
    assert [step.name for step in first.steps] == ["model"]
    rest = Work(there.session, paper, there.request, {"threads": 1})
    archive.load_paper(rest, tmp_path / "model.zip")
    assert states(rest) == {"model": "complete", "answers": "ready"}
    assert not rest.run_steps()


def test_a_saved_training_that_is_damaged_is_refused_before_anything_is_taken_in(training, tmp_path, interrupt_at):
    here, there = training
    assert here.run_steps(on_progress=interrupt_at(1, "loss"))
    state_of(here).write_bytes(b"cut short")
    with pytest.raises(ChessregError, match=r"state\.pt is not a saved state"):
        archive.save_paper(here, tmp_path / "half.zip")
    shutil.rmtree(state_of(here).parent)
    archive.save_paper(here, tmp_path / "half.zip")
    with ZipFile(tmp_path / "half.zip", "a") as file:
        file.writestr(f"store/runs/{state_of(here).parent.name}/state.pt", b"cut short")
    with pytest.raises(
        BadInputError, match=r"half\.zip is not a saved paper: store/runs/[0-9a-f]{32}/state\.pt"
    ) as caught:
        archive.load_paper(there, tmp_path / "half.zip")
    assert "\n" not in str(caught.value)
    assert archive.find_begun_runs(there) == {}
