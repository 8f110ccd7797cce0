"""Rounds in which no crash strikes but somebody else: a registry that means harm, a second launch, an old library."""

from __future__ import annotations

import json
import time
from hashlib import sha256
from typing import TYPE_CHECKING

from actors import Moments
from homes import Home
from sqlalchemy import select

from chessreg.registry import tables
from chessreg.registry.identity import make_uuid
from chessreg.registry.tables.types import get_utc_now
from chessreg.session import open_session
from store import artifacts

if TYPE_CHECKING:
    from rounds import Round

EVIL = """
from pathlib import Path
from chessreg.kinds import Kind
Path({mark!r}).write_text("code of another registry ran here")
class Evil(Kind):
    name = "evil"
"""


def hostile_place(this: Round) -> None:
    """A place gives an artifact whose file is outside of it; its digest is right. Nothing may be written there."""
    from chessreg.runs import transfer
    from store.places import open_place

    home, there = this.home, this.home.folder / "hostile"
    steps = int(this.random.integers(2, 5))
    name, content = "../" * steps + "planted", b"planted"
    files = [(name, len(content), sha256(content).hexdigest())]
    digest = artifacts._digest_entries(files)
    folder = there / artifacts.format_artifact_key(digest)
    folder.mkdir(parents=True)
    (there / "store.json").write_text('{"chessreg_store": 1}')
    record = {"chessreg_artifact": 1, "digest": digest, "kind": "page", "bytes": len(content), "files": files}
    (folder / artifacts.MANIFEST).write_text(json.dumps(record))
    (folder / name).resolve().write_bytes(content)
    before, this.spoiled = everything(home), True

    def work() -> None:
        with home.open() as session:
            row = {"digest": digest, "kind": "page", "bytes": len(content), "state": "complete"}
            with session.database.write() as sql:
                sql.add(tables.Artifact(**row, created_at=get_utc_now()))
            item = transfer.TransferItem(digest, "page", len(content))
            transfer.pull_items(session.database, session.store, [item], open_place(str(there)))

    this.struck = True
    code = this.act(work).wait()
    if code != 1:
        this.counts.wrong(f"a pull from a hostile place ended with {code}")
    outside = {path for path in everything(home) - before if "registry.db" not in path}
    if any("planted" in path for path in outside):
        this.counts.wrong(f"a pull wrote outside its store: {sorted(outside)}")


def everything(home: Home) -> set[str]:
    """Every file of a home except those of the hostile place itself."""
    hostile = home.folder / "hostile"
    return {str(p) for p in home.folder.rglob("*") if p.is_file() and hostile not in p.parents}


def hostile_registry(this: Round) -> None:
    """A registry is merged whose runs are of a kind in a file, and that file is in our store. It may not be run."""
    home, mark, this.spoiled = this.home, this.home.folder / "ran", True
    with home.open() as session:
        with session.store.stage("page") as folder:
            (folder / "evil.py").write_text(EVIL.format(mark=str(mark)))
            found = session.store.publish(folder)
        source = f"{found.path / 'evil.py'}:Evil"
    other, spec_hash = home.folder / "hostile.db", sha256(this.random.bytes(8)).hexdigest()
    run_id = make_uuid(spec_hash)
    with open_session(str(other), home.folder / "hostile-store") as session, session.database.write() as sql:
        named = {"name": "evil", "version": 1, "source": source}
        sql.add(tables.KindRecord(**named, result_tables=[], extra_columns={}, determinism="exact"))
        sql.flush()
        sql.add(
            tables.Run(
                id=run_id, kind="evil", version=1, spec={}, spec_hash=spec_hash, explicit=[], units=1,
                created_at=get_utc_now(),
            )
        )  # fmt: skip

    def work() -> None:
        from chessreg.cli.root import run_command_line

        words = ["--registry", home.url, "--store", str(home.folder / "store")]
        run_command_line([*words, "merge", str(other)])
        for rest in (["run", "--resume", run_id.hex], ["board", run_id.hex], ["reproduce", "--rerun", run_id.hex]):
            run_command_line([*words, *rest])

    this.struck = True
    code = this.act(work).wait()
    with home.open() as session, session.database.read() as sql:
        if sql.get(tables.Run, run_id) is None:
            this.counts.add("lost", "the merged run")
    if mark.exists():
        this.counts.wrong(f"a file of the store was run: {mark.read_text()}")
    if code:
        this.counts.wrong(f"the commands ended with {code}")


def two_launches(this: Round) -> None:
    """Two processes launch one spec at the same moment: it is queued once, and done once."""
    from rounds import finish_jobs, launch

    start = Moments()

    def work() -> None:
        while not start.passed:
            time.sleep(0.0002)
        launch(this)

    actors = [this.act(work), this.act(work)]
    time.sleep(0.05)
    start.passed, this.struck = 1, True
    for actor in actors:
        this.unhurt("launch", actor)
    with this.home.open() as session, session.database.read() as sql:
        groups = set(sql.scalars(select(tables.Job.group_id).where(tables.Job.run_id == this.run_id)))
    this.counts.add("doubled", "launches of one spec", len(groups) - 1)
    finish_jobs(this)


def old_library(this: Round) -> None:
    """SQLite is a version that can lose commits of a write-ahead log: it may not write one."""
    from rounds import run

    from chessreg.registry import sqlite

    new = sqlite.dbapi.sqlite_version_info
    sqlite.dbapi.sqlite_version_info = (3, 40, 1)
    try:
        this.what, this.spoiled = "SIGKILL", True
        run(this)
        with this.home.open() as session, session.database.write() as sql:
            mode = "delete" if this.home.server else sql.connection().exec_driver_sql("PRAGMA journal_mode").scalar()
        if mode != "delete":
            this.counts.wrong(f"an old library writes with journal mode {mode}")
    finally:
        sqlite.dbapi.sqlite_version_info = new
