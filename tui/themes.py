"""Colors: dark, light, high contrast, and the user's own. Every theme, textual's own too, has colors for the board.

A theme of one's own is a file FOLDER/NAME.toml, where FOLDER is $XDG_CONFIG_HOME/chessreg/themes (~/.config/…):

    dark = true
    primary = "#3d6f99"            # and secondary, accent, foreground, background, surface, panel, success, …
    [variables]
    board-light = "#687589"        # and the other names of BOARD_DARK
"""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import Theme

from chessreg.errors import BadInputError
from chessreg.folders import config_folder

# Squares dark enough for white pieces and light enough for black ones. Those of a user's theme are made so.
BOARD_DARK = {
    "board-light": "#687589", "board-dark": "#535f72", "board-white": "#fffdf6", "board-black": "#060709",
    "board-last": "#83722f", "board-arrow": "#3f7d4c", "board-best": "#2f6fb8", "board-wrong": "#b4531c",
    "board-heat": "#1f7f86", "board-cursor": "#d0c2ff",
}  # fmt: skip
BOARD_CONTRAST = {
    "board-light": "#767676", "board-dark": "#5a5a5a", "board-white": "#ffffff", "board-black": "#000000",
    "board-last": "#7d6c00", "board-arrow": "#00802f", "board-best": "#0070c0", "board-wrong": "#d02020",
    "board-heat": "#0066d0", "board-cursor": "#ffff00",
}  # fmt: skip
THEMES = (
    Theme(
        name="chessreg-dark", primary="#3d6f99", secondary="#5b7f5b", accent="#d7a65f", foreground="#dcdcd6",
        background="#16181b", surface="#1c1f23", panel="#262a30", success="#6fae6f", warning="#d7a65f",
        error="#d0605a", dark=True, variables=BOARD_DARK,
    ),
    Theme(
        name="chessreg-light", primary="#2f6690", secondary="#4f7a4f", accent="#8a5a12", foreground="#1d1f21",
        background="#fafaf7", surface="#f1f1ec", panel="#e3e3dc", success="#2f7d32", warning="#9a6700",
        error="#b3261e", dark=False, variables=BOARD_DARK,
    ),
    Theme(
        name="chessreg-contrast", primary="#0050d0", secondary="#00a000", accent="#ffff00", foreground="#ffffff",
        background="#000000", surface="#000000", panel="#202020", success="#00ff00", warning="#ffff00",
        error="#ff4040", dark=True, variables=BOARD_CONTRAST,
    ),
)  # fmt: skip


def folder() -> Path:
    """Where the user's own themes are."""
    return config_folder() / "themes"


def own_themes() -> list[Theme]:
    """The user's themes, by name. Raises BadInputError naming the file that is no theme."""
    return [theme_of(path) for path in sorted(folder().glob("*.toml"))]


def theme_of(path: Path) -> Theme:
    """One file as a theme. Raises BadInputError saying what is wrong with it."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(f"{path}: {error}") from error
    colors = {f.name for f in fields(Theme)} - {"name", "dark", "variables", "luminosity_spread", "text_alpha"}
    if unknown := sorted(set(values) - colors - {"dark", "variables"}):
        raise BadInputError(
            f"{path}: a theme has no {unknown[0]!r}", f"it has dark, variables, {', '.join(sorted(colors))}"
        )
    variables = values.pop("variables", {})
    if not isinstance(variables, dict) or not isinstance(values.get("dark", True), bool):
        raise BadInputError(f"{path}: dark is true or false, [variables] a table")
    for name, color in [*values.items(), *variables.items()]:
        if name != "dark":
            check_color(path, name, color)
    if "primary" not in values:
        raise BadInputError(f"{path}: primary is missing", 'primary = "#3d6f99"')
    return Theme(name=path.stem, **values, variables=BOARD_DARK | variables)


def check_color(path: Path, name: str, color: Any) -> None:
    try:
        Color.parse(color)
    except (ColorParseError, TypeError, AttributeError) as error:
        raise BadInputError(f"{path}: {name} = {color!r} is no color", 'such as "#3d6f99" or "green"') from error
