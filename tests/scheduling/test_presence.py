"""The supervisor's process: its imports, and the processes mistaken for it."""

from __future__ import annotations

import fcntl
import json

import pytest

from chessreg.errors import ChessregError
from chessreg.scheduling.presence import Presence
from store.process import get_this_process


def test_no_file_of_the_stores_folder_is_executed_by_the_supervisor(session, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f".:{session.store.root.parent}")
    ran = tmp_path / "ran"
    (session.store.root / "sqlalchemy.py").write_text(f"open({str(ran)!r}, 'w')")
    presence = Presence(session.store)

    assert presence.start(session.database.reference)
    presence.stop()

    assert not ran.exists()


def test_the_supervisor_of_another_machine_of_the_same_name_is_told_and_not_asked_for_without_end(session):
    presence = Presence(session.store)
    presence.file.parent.mkdir(exist_ok=True)
    with presence.file.open("w") as file:  # a lock on a network file system as it appears here
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump(get_this_process().record() | {"boot_id": "of another machine"}, file)
        file.flush()
        with pytest.raises(ChessregError, match="another machine named"):
            presence.start(session.database.reference, tries=2)
