"""The user's key file. Clashes are reported before the app starts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from textual.keys import _character_to_key

from chessreg.errors import BadInputError
from chessreg.folders import get_config_folder
from tui.actions import (
    ACTIONS,
    EVERYWHERE,
    PLACES_WITH_OWN_KEYS,
    apply_keys,
    check_keys,
    check_shared_places,
    check_table_keys,
    check_text_keys,
)

KEY_PATTERN = re.compile(r"((ctrl|alt|shift|meta|super)\+)*([a-zA-Z0-9]|[a-z][a-z0-9_]+)")


def get_keys_path() -> Path:
    """Return the path of keys.toml in XDG_CONFIG_HOME/chessreg or ~/.config/chessreg."""
    return get_config_folder() / "keys.toml"


def load_keys() -> dict[str, str]:
    """Return the user's keys by action name, in Textual's notation; empty without a file.

    Raises BadInputError for invalid TOML, an unknown action or key, two actions of one place (or of a screen and its
    table) with the same key, and printable keys where text is typed.
    """
    file = get_keys_path()
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(f"{file}: {error}") from error
    from chessreg.runs.spec import flatten_settings  # imports pydantic

    keys = {name: parse_keys(file, name, text) for name, text in flatten_settings(values).items()}
    names = {action.name for action in ACTIONS}
    if unknown_keys := sorted(keys.keys() - names):
        raise BadInputError(f"{file}: action {unknown_keys[0]!r} does not exist", "chessreg tui --keys")
    try:
        check_keys(custom_actions := apply_keys(ACTIONS, keys))
        check_shared_places(custom_actions)
        check_table_keys(custom_actions)
        check_text_keys(custom_actions)
    except ValueError as error:
        raise BadInputError(f"{file}: {error}", "give one of them another key") from error
    return keys


def parse_keys(file: Path, name: str, text: object) -> str:
    """Return one or several keys, separated by spaces, in Textual's notation: `? f1` becomes question_mark,f1."""
    if not isinstance(text, str) or not text.split():
        raise BadInputError(f"{file}: the key of {name} is {text!r}", f'{name} = "x", or "x ctrl+x"')
    keys = [_character_to_key(word) if len(word) == 1 else word for word in text.split()]
    if wrong_key := next((key for key in keys if not KEY_PATTERN.fullmatch(key)), None):
        raise BadInputError(f"{file}: {wrong_key!r} of {name} is not a key", "such as x, ctrl+x, f5, pagedown, ?")
    return ",".join(keys)


def format_key_file() -> str:
    """Return a template for the key file: every action with its default keys, commented out."""
    lines = [f"# {get_keys_path()}: remove the # to change a key; separate several keys with spaces"]
    place = ""
    for action in ACTIONS:
        if action.place != place:
            place = action.place
            custom_lines = (
                " (they may repeat keys of everywhere)" if place in PLACES_WITH_OWN_KEYS and place != EVERYWHERE else ""
            )
            lines += ["", f"# {place}{custom_lines}"]
        lines.append(f'#"{action.name}" = "{action.keys.replace(",", " ")}"  # {action.text}')
    return "\n".join(lines) + "\n"
