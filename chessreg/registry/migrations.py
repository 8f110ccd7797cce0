"""The schema's revisions: the revision of a registry, its upgrade, and the copy made before that.

Alembic is configured in code, so that an installed wheel needs no checkout: the wheel carries `alembic/` and
`migrations/` as data. It is imported only when something has to be migrated.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from sqlalchemy import Column, Engine, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect, text
from sqlalchemy.schema import CreateTable

from chessreg.errors import ChessregError, NotFoundError, RegistryError
from chessreg.registry import sqlite
from chessreg.registry.engines import (
    SchemaError,
    allow_connections,
    convert_database_errors,
    create_reader_engine,
    create_writer_engine,
    make_sqlalchemy_url,
    require_file,
    timeout_options,
)
from chessreg.registry.place import RegistryPlace, resolve_place
from store.files import describe_os_error, make_file, make_folder

if TYPE_CHECKING:
    from alembic.config import Config

    from chessreg.registry.lease import Lease

VERSION_TABLE = "chessreg_version"
VERSION = Table(  # as Alembic makes it
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
UPGRADE_LOCK_SQL = "SELECT pg_advisory_xact_lock(hashtext('chessreg'))"  # of PostgreSQL, until the transaction ends
SchemaState = Literal["equal", "behind", "unknown", "empty", "foreign"]


@dataclass(frozen=True)
class SchemaStatus:
    """The schema revision of a registry.

    `foreign`: the database holds tables, but none of chessreg's. `unknown`: this chessreg does not have the revision.
    """

    current: str | None
    head: str
    state: SchemaState


def find_folders() -> tuple[Path, Path]:
    """The folders of env.py and of the revisions: inside the package when installed, beside it in a checkout."""
    package = Path(str(files("chessreg")))
    if (package / "_alembic").is_dir():
        return package / "_alembic", package / "_migrations"
    return package.parent / "alembic", package.parent / "migrations"


def make_alembic_config(place: RegistryPlace) -> Config:
    """Alembic's configuration for one registry."""
    from alembic.config import Config

    environment, revisions = find_folders()
    made = Config(stdout=sys.stdout)  # alembic's default is what stdout was when it was imported
    made.set_main_option("script_location", str(environment).replace("%", "%%"))
    made.set_main_option("version_locations", str(revisions).replace("%", "%%"))
    made.set_main_option("path_separator", "newline")
    made.attributes["place"] = place  # not an option: a password may hold a '%'
    return made


def read_revisions() -> dict[str, str | None]:
    """Every revision this chessreg knows, and the one before it; read from the files without importing Alembic."""
    return _parse_revisions(find_folders()[1])


@lru_cache(maxsize=4)
def _parse_revisions(folder: Path) -> dict[str, str | None]:
    revisions: dict[str, str | None] = {}
    for path in sorted(folder.glob("*.py")):
        declared = dict(
            re.findall(
                r"""^(revision|down_revision)\b[^=]*= *["']?([^"'\n]+)["']?$""", path.read_text(encoding="utf-8"), re.M
            )
        )
        before = declared["down_revision"]
        revisions[declared["revision"]] = None if before == "None" else before
    return revisions


def head_revision() -> str:
    """The newest revision that this chessreg knows."""
    known = read_revisions()
    newest = known.keys() - set(known.values())
    if len(newest) != 1:
        raise SchemaError(f"the migrations in {find_folders()[1]} do not end in one revision: {sorted(newest)}")
    return newest.pop()


def read_schema_status(url: str | Path | RegistryPlace | None = None) -> SchemaStatus:
    """The schema revision of a registry. Creates nothing: raises NotFoundError when there is no file."""
    place = resolve_place(url)
    if place.path is not None:
        require_file(place.path)
    with allow_connections(place):
        engine = create_reader_engine(place)
        try:
            return schema_status_of(engine, place)
        finally:
            engine.dispose()


def schema_status_of(engine: Engine, place: RegistryPlace) -> SchemaStatus:
    """The schema revision of the registry behind an engine."""
    with convert_database_errors(place), engine.connect() as connection:
        names = set(inspect(connection).get_table_names())
        if VERSION_TABLE not in names:
            return SchemaStatus(None, head_revision(), "foreign" if names else "empty")
        current: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    if current is None:
        return SchemaStatus(None, head_revision(), "empty")
    if current == head_revision():
        return SchemaStatus(current, head_revision(), "equal")
    return SchemaStatus(current, head_revision(), "behind" if current in read_revisions() else "unknown")


def require_schema(schema: SchemaStatus, place: RegistryPlace) -> None:
    """Raises SchemaError or NotFoundError, naming the command that fixes it, unless the schema is this chessreg's."""
    if schema.state == "empty":
        raise NotFoundError(f"{place.masked} holds no registry yet", "chessreg init")
    if schema.state == "foreign":
        raise SchemaError(
            f"{place.masked} is a database of something else",
            "give chessreg a database of its own, or add its tables to this one with `chessreg db upgrade --shared`",
        )
    if schema.state == "behind":
        raise SchemaError(
            f"the registry {place.masked} has schema {schema.current}; this chessreg needs {schema.head}",
            "chessreg db upgrade"
            if place == resolve_place(None)
            else f"chessreg --registry {shlex.quote(place.masked)} db upgrade",
        )
    if schema.state == "unknown":
        raise SchemaError(
            f"the registry {place.masked} has schema {schema.current}, which this chessreg (schema {schema.head}) "
            "cannot read: a newer chessreg wrote it, or one from before the first release",
            "pip install -U chessreg, or make a new registry with chessreg init",
        )


def upgrade_registry(url: str | Path | RegistryPlace | None = None, *, shared: bool = False) -> SchemaStatus:
    """Bring a registry to the newest schema, making it where there is nothing. Any number of processes may try.

    A SQLite registry that holds rows is copied first (`backups/` beside it). With `shared`, chessreg's tables are
    added to a database that holds other programs' tables. Raises SchemaError for a newer or a foreign one.
    """
    place = resolve_place(url)
    lease: Lease | None = None
    if place.path is not None and place.on_network:
        from chessreg.registry.lease import Lease

        lease = Lease(place.path)
    if place.path is not None:
        _make_registry_folder(place.path)
    new = place.path is not None and not place.path.exists()
    schema = (
        SchemaStatus(None, head_revision(), "empty") if new else read_schema_status(place)
    )  # looked at before anything touches the file
    if schema.state == "unknown" or (schema.state == "foreign" and not shared):
        require_schema(schema, place)
    if lease is not None:
        lease.hold()
    try:
        with allow_connections(place, create=True):
            engine = create_writer_engine(place)
            try:
                saved = back_up_registry(place) if schema.state == "behind" and place.path is not None else None
                if schema.state == "empty":
                    _create_registry(engine, place)
                elif schema.state != "equal":
                    _run_migrations(engine, place, saved)
                return schema_status_of(engine, place)
            finally:
                engine.dispose()
    finally:
        if lease is not None:
            lease.release()


def _create_registry(engine: Engine, place: RegistryPlace) -> None:
    """A new registry: the tables as they are declared, which is what all revisions make, in a fifth of their time."""
    from chessreg.registry.tables import Base, RegistryState

    of_this_one = {"id": 1, "registry_id": uuid4(), "data_version": 0, "created_at": datetime.now(UTC)}
    with convert_database_errors(place), engine.begin() as connection:
        if place.path is None:
            connection.execute(text(UPGRADE_LOCK_SQL))
        if not inspect(connection).get_table_names():  # else another process was first
            Base.metadata.create_all(connection)
            connection.execute(insert(RegistryState), of_this_one)
            connection.execute(CreateTable(VERSION))
            connection.execute(VERSION.insert().values(version_num=head_revision()))
            return
    _run_migrations(engine, place, None)


def _run_migrations(engine: Engine, place: RegistryPlace, saved: Path | None) -> None:
    from alembic import command

    settings = make_alembic_config(place)
    settings.attributes["engine"] = engine
    with convert_database_errors(place):
        try:
            command.upgrade(settings, "head")
        except (ChessregError, OSError):
            raise
        except Exception as error:
            if type(error).__module__.startswith("sqlalchemy"):
                raise  # `explained` says it
            hint = f"nothing was changed; a copy from before is {saved}" if saved else "nothing was changed"
            raise SchemaError(f"the schema of {place.masked} could not be upgraded: {error}", hint) from error


def back_up_registry(url: str | Path | RegistryPlace | None = None, target: Path | None = None) -> Path:
    """Copy a registry while it is in use, and return the copy's path.

    SQLite: one consistent database file, by default in `backups/` beside the registry. PostgreSQL: pg_dump's custom
    format (`pg_restore` reads it), by default in the current folder. An existing target is refused.
    """
    place = resolve_place(url)
    if place.path is not None:
        read_schema_status(place)  # nothing is made for a file that is not a database
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"
    if target is None and place.path is not None:
        target = place.path.parent / "backups" / f"{place.path.stem}-{stamp}.db"
    elif target is None:
        name = re.sub(r"[^\w.-]", "-", make_sqlalchemy_url(place).database or "")
        target = Path(f"chessreg-{name}-{stamp}.dump").absolute()
    if target.exists():
        raise ChessregError(f"{target} exists already", "name another file with --to")
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.parent.name == "backups":
            make_folder(target.parent)
        make_file(aside)
        if place.path is not None:
            _copy_sqlite(place, aside)
        else:
            _dump_postgresql(place, aside)
        aside.rename(target)
    except OSError as error:
        message = f"no backup in {target.parent}: {describe_os_error(error)}"
        raise RegistryError(message, "name a file with --to") from error
    finally:
        aside.unlink(missing_ok=True)
    return target


def _copy_sqlite(place: RegistryPlace, target: Path) -> None:
    """SQLite's backup, in one step: writers go on beside it."""
    try:
        with allow_connections(place), convert_database_errors(place):
            engine = create_reader_engine(place)
            try:
                with engine.connect() as connection:
                    source: Any = connection.connection.dbapi_connection
                    with closing(sqlite.dbapi.connect(target)) as copy:
                        source.backup(copy)
                        copy.execute("PRAGMA journal_mode=DELETE")
            finally:
                engine.dispose()
    except sqlite.dbapi.Error as error:
        message = f"no backup of {place.masked} in {target.parent}: {describe_os_error(error)}"
        raise RegistryError(message, "name a file with --to") from error
    with target.open("rb+") as file:
        os.fsync(file.fileno())


def _dump_postgresql(place: RegistryPlace, target: Path) -> None:
    from chessreg.masking import mask

    program = shutil.which("pg_dump")
    if program is None:
        raise ChessregError(
            "pg_dump is not installed; it makes the backup of a PostgreSQL registry",
            "apt-get install postgresql-client",
        )
    url = make_sqlalchemy_url(place)
    environment = dict(os.environ)
    if url.password:
        environment["PGPASSWORD"] = str(url.password)
    plain = url.set(drivername="postgresql", password=None).update_query_dict(timeout_options(url))
    dsn = plain.render_as_string(hide_password=False)
    done = subprocess.run(
        [program, "--format=custom", f"--file={target}", f"--dbname={dsn}"],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        reason = mask(done.stderr.strip().splitlines()[-1]) if done.stderr.strip() else f"exit code {done.returncode}"
        hint = "install the postgresql-client of the server's version" if "mismatch" in done.stderr else ""
        raise RegistryError(f"pg_dump made no backup of {place.masked}: {reason}", hint)


def _make_registry_folder(path: Path) -> None:
    """The folder of a registry, made when only it is missing (./.chessreg)."""
    folder = path.parent
    if folder.is_dir():
        return
    if not folder.parent.is_dir():
        raise NotFoundError(f"the folder {folder} does not exist", f"mkdir -p {shlex.quote(str(folder))}")
    try:
        make_folder(folder)
    except OSError as error:
        message = f"the folder {folder} cannot be made: {describe_os_error(error)}"
        raise RegistryError(message, "name another with --registry") from error
