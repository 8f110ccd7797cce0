"""A training that was stopped on one machine continues with its next batch on another."""

from __future__ import annotations

import os
import shutil
import signal
from types import SimpleNamespace

import pytest

from chessreg.entities.merge import export_rows, merge_source
from chessreg.errors import ChessregError
from chessreg.experiments.train import TrainOptions
from chessreg.registry import tables
from chessreg.runs import unfinished
from chessreg.session import open_session
from store.errors import StoreError
from store.places import open_place
from tests.specs import train_spec

SPEC = train_spec(
    architecture="gpt2", datasets=("sample:fit",), n_layer=1, n_head=2, n_embd=16, block_size=64,
    batch_tokens=512, steps=24, warmup_steps=2
)  # fmt: skip
HOW = TrainOptions(threads=1, log_steps=4, autocast=False)


@pytest.fixture
def machines(world, tmp_path):
    """Two machines with the same games."""
    for name in ("one", "two"):
        shutil.copytree(world, tmp_path / name)
    homes = [(str(tmp_path / name / "registry.db"), tmp_path / name / "store") for name in ("one", "two")]
    with open_session(*homes[0]) as one, open_session(*homes[1]) as two:
        yield one, two


def train(session, until=None):
    """Train to the end, or until Ctrl-C at a share of it."""

    def report(fraction, text):
        if until is not None and fraction >= until:
            os.kill(os.getpid(), signal.SIGINT)

    return session.run(SPEC, HOW, on_progress=report).run_id


def place_of(session, run_id):
    return unfinished.read_progress(session.store.runs / run_id.hex / "state.pt")[0]


def carried(one, two, run_id, share):
    """From one machine to another by way of a folder, as push, merge and pull do it."""
    there = open_place(str(share / "store"), create=True)
    sent = unfinished.copy_states(one.database, one.store, there, [run_id.hex])
    export_rows(one.database, share / "registry.db", [run_id.hex])
    merge_source(two.database, two.store, str(share / "registry.db"))
    return sent, unfinished.copy_states(two.database, there, two.store, [run_id.hex])


def results(session, run_id):
    with session.database.read() as sql:
        points = sql.query(tables.MetricPoint).filter_by(run_id=run_id).all()
        checkpoint = sql.query(tables.Checkpoint).filter_by(run_id=run_id).one()
        values = {(point.name, point.step): point.value for point in points if point.name != "tokens_per_second"}
        return values, session.model(checkpoint.id.hex).network.state_dict()


def test_a_training_moves_from_machine_to_machine_and_ends_as_if_it_had_stayed(machines, tmp_path):
    one, two = machines
    run_id = train(one, until=0.3)
    began = place_of(one, run_id)
    assert 0 < began < 24
    assert carried(one, two, run_id, tmp_path / "stick") == (1, 1)
    assert train(two, until=0.7) == run_id
    assert began < place_of(two, run_id) < 24
    assert carried(one, two, run_id, tmp_path / "stick") == (0, 0), "what is further stays"
    assert carried(two, one, run_id, tmp_path / "stick") == (1, 1)
    assert place_of(one, run_id) == place_of(two, run_id)
    train(one)
    with one.database.read() as sql:
        assert sql.query(tables.Attempt).filter_by(run_id=run_id).count() == 3
    shutil.rmtree(two.store.runs / run_id.hex)
    train(two)  # from the beginning to the end
    (curve, weights), (stayed, as_stayed) = results(one, run_id), results(two, run_id)
    assert curve == stayed
    assert all((weights[name] == tensor).all() for name, tensor in as_stayed.items())
    assert unfinished.copy_states(one.database, one.store, two.store, [run_id.hex]) == 0, "complete"


def test_a_state_is_not_replaced_under_a_process_that_trains_nor_by_a_damaged_one(machines, tmp_path):
    one, two = machines
    run_id = train(one, until=0.3)
    carried(one, two, run_id, tmp_path / "stick")
    train(one, until=0.7)
    with (
        unfinished.lock_states(two.store, run_id, ["state.pt"]),
        pytest.raises(StoreError, match="is being written by process"),
    ):
        unfinished.carry_states(two.database, one.store, two.store, [run_id])
    before = place_of(two, run_id)
    (one.store.runs / run_id.hex / "state.pt").write_bytes(b"cut short")
    with pytest.raises(ChessregError, match="is not a saved state"):
        unfinished.carry_states(two.database, one.store, two.store, [run_id])
    assert place_of(two, run_id) == before
    assert [path.name for path in (two.store.runs / run_id.hex).iterdir()] == ["state.pt"]


def test_a_bucket_takes_no_states_and_says_so_by_their_number(machines):
    one, _ = machines
    run_id = train(one, until=0.3)
    assert unfinished.copy_states(one.database, one.store, SimpleNamespace(), [run_id.hex]) == 0
