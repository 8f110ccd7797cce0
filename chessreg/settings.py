"""The setting of `chessreg config`: whether the text of a project's changed files is recorded.

It is kept in the user's settings folder and in no project, so that a copied project cannot switch it on.
"""

from __future__ import annotations

import json
from pathlib import Path

from chessreg.errors import BadInputError, ChessregError
from chessreg.folders import get_config_folder
from store.files import read_json, write_whole

FILE = "source-text.json"


def is_source_text_recorded(folder: Path) -> tuple[bool, Path | None]:
    """Return whether text is recorded in `folder`, and the project (this folder or the nearest above) with the setting.

    Without a settings folder, as for a user without a home, nothing is recorded. Raises BadInputError for a settings
    file that cannot be read.
    """
    try:
        path = get_settings_file()
    except BadInputError:
        return False, None
    projects, folder = read_projects(path), folder.resolve()
    for project in (folder, *folder.parents):
        if (value := projects.get(str(project))) is not None:
            return value, project
    return False, None


def record_source_text(folder: Path, value: bool) -> None:
    """Set whether the text of changed files is recorded for the project `folder`. Raises BadInputError, and
    ChessregError if it cannot be written.
    """
    path = get_settings_file()
    projects = read_projects(path) | {str(folder.resolve()): value}
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, json.dumps(projects, indent=1).encode())
    except OSError as error:
        raise ChessregError(f"cannot write the settings {path}: {error.strerror}", "check that folder") from error


def get_settings_file() -> Path:
    """Return the path of the settings. Raises BadInputError without a settings folder."""
    return get_config_folder() / FILE


def read_projects(path: Path) -> dict[str, bool]:
    """Return project folder → value, empty without a file. Raises BadInputError for a damaged file."""
    try:
        projects = read_json(path)
        if not isinstance(projects, dict) or not all(isinstance(value, bool) for value in projects.values()):
            raise ValueError("it does not map folders to true or false")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadInputError(f"{path}: {error}", "fix or remove that file") from error
    return projects
