"""Schema revisions: reading the revision of a registry, upgrading it, and the backup made before an upgrade.

Alembic is configured in code, so an installed wheel needs no checkout: the wheel contains `alembic/` and `migrations/`
as data. Alembic is imported only when a migration is needed.
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
    require_registry_file,
    timeout_options,
)
from chessreg.registry.place import RegistryPlace, resolve_place
from store.files import describe_os_error, make_file, make_folder

if TYPE_CHECKING:
    from alembic.config import Config

    from chessreg.registry.lease import Lease

VERSION_TABLE = "chessreg_version"
VERSION = Table(  # as Alembic creates it
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
UPGRADE_LOCK_SQL = "SELECT pg_advisory_xact_lock(hashtext('chessreg'))"  # held until the transaction ends
SchemaState = Literal["equal", "behind", "unknown", "empty", "foreign"]


@dataclass(frozen=True)
class SchemaStatus:
    """The schema revision of a registry.

    `foreign`: the database contains tables, but none of chessreg's. `unknown`: this version of chessreg lacks the
    revision.
    """

    current: str | None
    head: str
    state: SchemaState


def find_folders() -> tuple[Path, Path]:
    """Return the folders of env.py and of the revisions: inside the installed package, or next to it in a checkout."""
    package = Path(str(files("chessreg")))
    if (package / "_alembic").is_dir():
        return package / "_alembic", package / "_migrations"
    return package.parent / "alembic", package.parent / "migrations"


def make_alembic_config(place: RegistryPlace) -> Config:
    """Return Alembic's configuration for one registry."""
    from alembic.config import Config

    environment, revisions = find_folders()
    config = Config(stdout=sys.stdout)  # alembic binds stdout at import
    config.set_main_option("script_location", str(environment).replace("%", "%%"))
    config.set_main_option("version_locations", str(revisions).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes["place"] = place  # not an option: a password may hold a '%'
    return config


def read_revisions() -> dict[str, str | None]:
    """Return revision → previous revision for all known revisions, without importing Alembic."""
    return _parse_revisions(find_folders()[1])


@lru_cache(maxsize=4)
def _parse_revisions(folder: Path) -> dict[str, str | None]:
    revisions: dict[str, str | None] = {}
    for path in sorted(folder.glob("*.py")):
        variables = dict(
            re.findall(
                r"""^(revision|down_revision)\b[^=]*= *["']?([^"'\n]+)["']?$""", path.read_text(encoding="utf-8"), re.M
            )
        )
        before = variables["down_revision"]
        revisions[variables["revision"]] = None if before == "None" else before
    return revisions


def get_head_revision() -> str:
    """Return the newest known revision."""
    revisions = read_revisions()
    newest_revisions = revisions.keys() - set(revisions.values())
    if len(newest_revisions) != 1:
        raise SchemaError(
            f"the migrations in {find_folders()[1]} do not end in one revision: {sorted(newest_revisions)}"
        )
    return newest_revisions.pop()


def read_schema_status(url: str | Path | RegistryPlace | None = None) -> SchemaStatus:
    """Return the schema status of a registry. Creates nothing. Raises NotFoundError if the file does not exist."""
    place = resolve_place(url)
    if place.path is not None:
        require_registry_file(place.path)
    with allow_connections(place):
        engine = create_reader_engine(place)
        try:
            return read_engine_schema_status(engine, place)
        finally:
            engine.dispose()


def read_engine_schema_status(engine: Engine, place: RegistryPlace) -> SchemaStatus:
    """Return the schema status of the registry that `engine` connects to."""
    with convert_database_errors(place), engine.connect() as connection:
        names = set(inspect(connection).get_table_names())
        if VERSION_TABLE not in names:
            return SchemaStatus(None, get_head_revision(), "foreign" if names else "empty")
        current: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    if current is None:
        return SchemaStatus(None, get_head_revision(), "empty")
    if current == get_head_revision():
        return SchemaStatus(current, get_head_revision(), "equal")
    return SchemaStatus(current, get_head_revision(), "behind" if current in read_revisions() else "unknown")


def require_schema(schema: SchemaStatus, place: RegistryPlace) -> None:
    """Raise SchemaError or NotFoundError, with the command that fixes it, unless the schema is the current one."""
    if schema.state == "empty":
        raise NotFoundError(f"{place.masked_location} does not contain a registry yet", "chessreg init")
    if schema.state == "foreign":
        raise SchemaError(
            f"{place.masked_location} contains another program's tables",
            "use a separate database, or add chessreg's tables to this one with `chessreg db upgrade --shared`",
        )
    if schema.state == "behind":
        raise SchemaError(
            f"the registry {place.masked_location} has schema {schema.current}; this chessreg needs {schema.head}",
            "chessreg db upgrade"
            if place == resolve_place(None)
            else f"chessreg --registry {shlex.quote(place.masked_location)} db upgrade",
        )
    if schema.state == "unknown":
        raise SchemaError(
            f"the registry {place.masked_location} has schema {schema.current}, which this chessreg "
            f"(schema {schema.head}) cannot read: a newer chessreg wrote it, or one from before the first release",
            "pip install -U chessreg, or make a new registry with chessreg init",
        )


def upgrade_registry(url: str | Path | RegistryPlace | None = None, *, shared: bool = False) -> SchemaStatus:
    """Upgrade a registry to the newest schema, or create it. Several processes may do this concurrently.

    A SQLite registry with rows is copied to `backups/` next to it first. With `shared`, chessreg's tables are added to
    a database that contains other programs' tables. Raises SchemaError for a newer or foreign schema.
    """
    place = resolve_place(url)
    lease: Lease | None = None
    if place.path is not None and place.is_on_network:
        from chessreg.registry.lease import Lease

        lease = Lease(place.path)
    if place.path is not None:
        _make_registry_folder(place.path)
    new = place.path is not None and not place.path.exists()
    schema = (
        SchemaStatus(None, get_head_revision(), "empty") if new else read_schema_status(place)
    )  # read before anything opens the file
    if schema.state == "unknown" or (schema.state == "foreign" and not shared):
        require_schema(schema, place)
    if lease is not None:
        lease.hold()
    try:
        with allow_connections(place, create=True):
            engine = create_writer_engine(place)
            try:
                backup_path = back_up_registry(place) if schema.state == "behind" and place.path is not None else None
                if schema.state == "empty":
                    _create_registry(engine, place)
                elif schema.state != "equal":
                    _run_migrations(engine, place, backup_path)
                return read_engine_schema_status(engine, place)
            finally:
                engine.dispose()
    finally:
        if lease is not None:
            lease.release()


def _create_registry(engine: Engine, place: RegistryPlace) -> None:
    """Create the tables as they are declared. This equals running all revisions and takes a fifth of the time."""
    from chessreg.registry.tables import Base, RegistryState

    registry_row = {"id": 1, "registry_id": uuid4(), "data_version": 0, "created_at": datetime.now(UTC)}
    with convert_database_errors(place), engine.begin() as connection:
        if place.path is None:
            connection.execute(text(UPGRADE_LOCK_SQL))
        if not inspect(connection).get_table_names():  # otherwise another process was faster
            Base.metadata.create_all(connection)
            connection.execute(insert(RegistryState), registry_row)
            connection.execute(CreateTable(VERSION))
            connection.execute(VERSION.insert().values(version_num=get_head_revision()))
            return
    _run_migrations(engine, place, None)


def _run_migrations(engine: Engine, place: RegistryPlace, saved_copy: Path | None) -> None:
    """Upgrade the schema to the newest revision. Raises SchemaError that names `saved_copy` if a migration fails."""
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
                raise  # converted by `convert_database_errors`
            hint = f"nothing was changed; a copy from before is {saved_copy}" if saved_copy else "nothing was changed"
            raise SchemaError(f"the schema of {place.masked_location} could not be upgraded: {error}", hint) from error


def back_up_registry(url: str | Path | RegistryPlace | None = None, target: Path | None = None) -> Path:
    """Copy a registry while it is in use, and return the path of the copy.

    SQLite: one consistent database file, by default in `backups/` next to the registry. PostgreSQL: the custom format
    of pg_dump (for `pg_restore`), by default in the current folder. Raises ChessregError if the target exists.
    """
    place = resolve_place(url)
    if place.path is not None:
        read_schema_status(place)  # raises before creating anything if it is not a database
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"
    if target is None and place.path is not None:
        target = place.path.parent / "backups" / f"{place.path.stem}-{stamp}.db"
    elif target is None:
        name = re.sub(r"[^\w.-]", "-", make_sqlalchemy_url(place).database or "")
        target = Path(f"chessreg-{name}-{stamp}.dump").absolute()
    if target.exists():
        raise ChessregError(f"{target} exists already", "choose another file with --to")
    part_path = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.parent.name == "backups":
            make_folder(target.parent)
        make_file(part_path)
        if place.path is not None:
            _copy_sqlite(place, part_path)
        else:
            _dump_postgresql(place, part_path)
        part_path.rename(target)
    except OSError as error:
        message = f"cannot write a backup to {target.parent}: {describe_os_error(error)}"
        raise RegistryError(message, "choose a file with --to") from error
    finally:
        part_path.unlink(missing_ok=True)
    return target


def _copy_sqlite(place: RegistryPlace, target: Path) -> None:
    """Copy a SQLite registry with SQLite's backup function in one step. Other processes may write meanwhile."""
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
        message = f"cannot back up {place.masked_location} to {target.parent}: {describe_os_error(error)}"
        raise RegistryError(message, "choose a file with --to") from error
    with target.open("rb+") as file:
        os.fsync(file.fileno())


def _dump_postgresql(place: RegistryPlace, target: Path) -> None:
    from chessreg.masking import mask

    program = shutil.which("pg_dump")
    if program is None:
        raise ChessregError(
            "pg_dump, which backs up a PostgreSQL registry, is not installed",
            "apt-get install postgresql-client",
        )
    url = make_sqlalchemy_url(place)
    environment = dict(os.environ)
    if url.password:
        environment["PGPASSWORD"] = str(url.password)
    plain_url = url.set(drivername="postgresql", password=None).update_query_dict(timeout_options(url))
    dsn = plain_url.render_as_string(hide_password=False)
    process = subprocess.run(
        [program, "--format=custom", f"--file={target}", f"--dbname={dsn}"],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if process.returncode:
        reason = (
            mask(process.stderr.strip().splitlines()[-1])
            if process.stderr.strip()
            else f"exit code {process.returncode}"
        )
        hint = "install the postgresql-client of the server's version" if "mismatch" in process.stderr else ""
        raise RegistryError(f"pg_dump could not back up {place.masked_location}: {reason}", hint)


def _make_registry_folder(path: Path) -> None:
    """Create the folder of a registry if its parent exists (such as ./.chessreg)."""
    folder = path.parent
    if folder.is_dir():
        return
    if not folder.parent.is_dir():
        raise NotFoundError(f"the folder {folder} does not exist", f"mkdir -p {shlex.quote(str(folder))}")
    try:
        make_folder(folder)
    except OSError as error:
        message = f"the folder {folder} cannot be created: {describe_os_error(error)}"
        raise RegistryError(message, "choose another with --registry") from error
