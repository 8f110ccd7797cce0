"""Threads: as many as this process may use, or as other work leaves idle."""

import os

import pytest

from chessreg.errors import BadInputError
from chessreg.models.devices import count_idle_cores, count_usable_cores, prepare_device


def test_cores_are_those_that_openmp_was_told_of(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for said, expected in (("", 8), ("3", 3), ("99", 8), ("0", 8), ("many", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        assert count_usable_cores() == expected


@pytest.mark.parametrize(("load", "idle"), [(0.1, 8), (2.9, 5), (7.6, 1), (40.0, 1)])
def test_idle_cores_are_what_other_work_leaves(monkeypatch, load, idle):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert count_idle_cores() == idle


def test_a_device_that_is_none_is_refused():
    with pytest.raises(BadInputError, match="'tpu' is not a device"):
        prepare_device("tpu", 1)
    with pytest.raises(BadInputError, match="cuda:99 does not exist"):
        prepare_device("cuda:99", 1)
