"""Settings of projects: what `chessreg config` changes, kept in the user's settings folder and in no project."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chessreg.errors import BadInputError, ChessregError
from chessreg.folders import config_folder

FILE = "projects.toml"


@dataclass(frozen=True)
class Setting:
    """A switch of a project. `default` holds for projects that say nothing."""

    name: str
    help: str
    default: bool = False


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("source-text", "record the text of the git patch and of small untracked files with each attempt"),
    )
}


def value_of(name: str, folder: Path) -> tuple[bool, Path | None]:
    """Return the value of a setting in `folder` and the project (this folder or the nearest above) that says so.

    Where there is no settings folder, as without a home, that is the default. Raises BadInputError for a file that
    cannot be read and for a value that is neither true nor false.
    """
    setting, folder = SETTINGS[name], folder.resolve()
    try:
        path = file()
    except BadInputError:
        return setting.default, None
    projects = read(path)
    for project in (folder, *folder.parents):
        table = projects.get(str(project), {})
        value = table.get(name) if isinstance(table, dict) else table
        if value is not None:
            if not isinstance(value, bool):
                raise BadInputError(f"{path}: {name} of {project} is {value!r}", "write true or false")
            return value, project
    return setting.default, None


def change(name: str, folder: Path, value: bool) -> None:
    """Set a setting of the project `folder`. Other lines and comments of the file stay. Raises as `value_of`, and
    ChessregError where the file cannot be written."""
    import tomlkit

    path = file()
    read(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
        project = document.setdefault(str(folder.resolve()), tomlkit.table())
        project[name] = value
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(tomlkit.dumps(document), encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise ChessregError(f"cannot write the settings {path}: {error.strerror}", "check that folder") from error


def file() -> Path:
    """Return the file of the settings. Raises BadInputError where there is no settings folder."""
    return config_folder() / FILE


def read(path: Path) -> dict[str, Any]:
    """Return the tables of the projects, empty if there is no file. Raises BadInputError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(f"{path}: {error}", "fix or remove that file") from error
