"""The supervisor's process: what it imports, and who is taken for it."""

from __future__ import annotations

from chessreg.scheduling.presence import Presence


def test_no_file_of_the_stores_folder_is_executed_by_the_supervisor(session, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f".:{session.store.root.parent}")
    ran = tmp_path / "ran"
    (session.store.root / "sqlalchemy.py").write_text(f"open({str(ran)!r}, 'w')")
    presence = Presence(session.store)

    assert presence.start(session.database.url)
    presence.stop()

    assert not ran.exists()
