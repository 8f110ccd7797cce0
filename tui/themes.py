"""Colors: dark, light, high contrast, and the user's own. Every theme, including Textual's, has board colors.

A custom theme is a file FOLDER/NAME.toml, where FOLDER is $XDG_CONFIG_HOME/chessreg/themes (~/.config/…):

    dark = true
    primary = "#3d6f99"            # and secondary, accent, foreground, background, surface, panel, success, …
    [variables]
    board-light = "#687589"        # and the other names of BOARD_DARK
    selection = "#2a3550"          # the row under the cursor; edge: frames without the focus

A text color with too little contrast is replaced by the nearest readable shade (`make_legible`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.style import Style
from textual.app import App
from textual.color import BLACK, WHITE, Color, ColorParseError
from textual.theme import Theme

from chessreg.errors import BadInputError
from chessreg.folders import get_config_folder
from tui.board_colors import ColorSystem, compute_contrast_ratio, downgrade_color, find_nearest_256, get_color_system

# Squares dark enough for white pieces and light enough for black ones. User themes are adjusted to match.
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
        name="chessreg-dark", primary="#6fb8ff", secondary="#9fb0d3", accent="#b9a4ff", foreground="#dbe0e8",
        background="#0f1217", surface="#151a21", panel="#1e242e", success="#86d09b", warning="#f0c069",
        error="#ff8d84", dark=True,
        variables={**BOARD_DARK, "text-muted": "#98a3b5", "selection": "#2a3550", "edge": "#323c4b"},
    ),
    Theme(
        name="chessreg-light", primary="#125ca4", secondary="#4a5a80", accent="#5a3fc2", foreground="#20242c",
        background="#f3f2ee", surface="#fdfcfa", panel="#e9e7e1", success="#1b6b36", warning="#7d4b00",
        error="#b0241d", dark=False,
        variables={**BOARD_DARK, "text-muted": "#565d6b", "selection": "#dfdaf6", "edge": "#c9c5bb"},
    ),
    Theme(
        name="chessreg-contrast", primary="#5ab0ff", secondary="#c0c0c0", accent="#ffff00", foreground="#ffffff",
        background="#000000", surface="#000000", panel="#202020", success="#00ff00", warning="#ffff00",
        error="#ff6a6a", dark=True,
        variables={**BOARD_CONTRAST, "text-muted": "#d0d0d0", "selection": "#003a8c", "edge": "#ffffff"},
    ),
)  # fmt: skip
# With 16 colors every ground is black or white, and text has those of the 16 that are readable on it.
SIXTEEN_DARK = {
    **dict.fromkeys(("background", "surface", "panel", "selection", "warning-muted", "error-muted"), "#000000"),
    "foreground": "#ffffff", "text-muted": "#aaaaaa", "edge": "#555555", "primary": "#55ffff", "secondary": "#aaaaaa",
    "accent": "#ff55ff", "success": "#55ff55", "warning": "#ffff55", "error": "#ff5555",
}  # fmt: skip
SIXTEEN_LIGHT = {
    **dict.fromkeys(("background", "surface", "panel", "selection", "warning-muted", "error-muted"), "#ffffff"),
    "foreground": "#000000", "text-muted": "#555555", "edge": "#aaaaaa", "primary": "#0000aa", "secondary": "#555555",
    "accent": "#aa00aa", "success": "#0000aa", "warning": "#aa0000", "error": "#aa0000",
}  # fmt: skip
DIM_SHARE = 0.75  # share of the text's color in dim text; the rest is the background's
MIN_CONTRAST = 4.5  # minimum contrast of text with its background (WCAG 2, level AA)
BACKGROUND_VARIABLES = ("background", "surface", "panel", "selection")
TEXT_VARIABLES = {  # text color variables, and the theme color that each derives from
    "foreground": "foreground", "text-muted": "text-muted", "text-accent": "accent", "text-success": "success",
    "text-warning": "warning", "text-error": "error", "text-primary": "primary", "text-secondary": "secondary",
}  # fmt: skip
ON_COLOR = (  # texts on other backgrounds
    ("block-cursor-foreground", "primary"), ("background", "accent"), ("background", "warning"),
    ("text-warning", "warning-muted"), ("text-error", "error-muted"),
)  # fmt: skip


def make_readable(
    text: Color, grounds: Sequence[Color], dim: float = 1.0, system: ColorSystem = ColorSystem.TRUECOLOR
) -> Color:
    """Return `text`, or the nearest shade that is readable on each of the backgrounds, also when dimmed.

    Colors are compared as a terminal of this color system shows them. If no lighter or darker shade is readable, return
    white or black, whichever has more contrast.
    """

    def find_worst_contrast(color: Color) -> float:
        return min(
            compute_contrast_ratio(downgrade_color(ground.blend(color, dim), system), downgrade_color(ground, system))
            for ground in grounds
        )

    for step in range(11):
        for end in (WHITE, BLACK):
            shade = text.blend(end, step / 10)
            shade = find_nearest_256(shade) if system is ColorSystem.EIGHT_BIT else shade
            if find_worst_contrast(shade) >= MIN_CONTRAST:
                return shade
    return max((WHITE, BLACK), key=find_worst_contrast)


def make_legible(
    variables: Mapping[str, str], theme: Theme, system: ColorSystem = ColorSystem.TRUECOLOR
) -> dict[str, str]:
    """Return a theme's variables and chessreg's additions (selection, edge), with every text color readable in a
    terminal of this color system. With 16 colors, only whether the theme is dark counts.

    The ANSI themes are returned unchanged, because the terminal chooses their colors.
    """
    theme_colors = {"selection": variables["panel"], "edge": variables["foreground"], **variables}
    background = Color.parse(theme_colors["background"])
    if background.ansi is not None:
        return theme_colors
    if system is ColorSystem.STANDARD:
        sixteen = SIXTEEN_DARK if theme.dark else SIXTEEN_LIGHT
        theme_colors, colors, background = theme_colors | sixteen, sixteen, Color.parse(sixteen["background"])
    else:
        theme_colors |= complete_variables(theme_colors, theme, background)
        colors = {
            variable: getattr(theme, variable, None) or theme_colors[variable] for variable in TEXT_VARIABLES.values()
        }
    if system is ColorSystem.EIGHT_BIT:
        for name in {*BACKGROUND_VARIABLES, *(ground for _, ground in ON_COLOR), "edge"}:
            theme_colors[name] = find_nearest_256(Color.parse(theme_colors[name])).hex
        background = Color.parse(theme_colors["background"])
    grounds = [Color.parse(theme_colors[name]) for name in BACKGROUND_VARIABLES]
    for name, variable in TEXT_VARIABLES.items():
        backgrounds = [Color.parse(theme_colors[ground]) for text, ground in ON_COLOR if text == name]
        dim = DIM_SHARE if name == "foreground" else 1.0
        theme_colors[name] = make_readable(Color.parse(colors[variable]), [*grounds, *backgrounds], dim, system).hex
    theme_colors["block-cursor-foreground"] = make_readable(
        background, [Color.parse(theme_colors["primary"])], system=system
    ).hex
    theme_colors |= {
        "scrollbar": theme_colors["edge"],
        "scrollbar-hover": theme_colors["text-muted"],
        "scrollbar-active": theme_colors["accent"],
    }
    theme_colors |= {f"scrollbar-background{state}": theme_colors["surface"] for state in ("", "-hover", "-active")}
    for name in ("accent", "warning"):  # backgrounds of text in the theme's background color
        theme_colors[name] = make_readable(Color.parse(theme_colors[name]), [background], system=system).hex
    return theme_colors


def complete_variables(variables: Mapping[str, str], theme: Theme, background: Color) -> dict[str, str]:
    """Return the mixed colors of chessreg that a theme does not set itself."""
    mixed_colors = {
        "selection": background.blend(Color.parse(variables["primary"]), 0.25).hex,
        "edge": background.blend(Color.parse(variables["foreground"]), 0.25).hex,
        "text-muted": background.blend(Color.parse(variables["foreground"]), 0.7).hex,
    }
    added_colors = {name: color for name, color in mixed_colors.items() if name not in theme.variables}
    for name in ("warning", "error"):
        added_colors[f"{name}-muted"] = background.blend(Color.parse(variables[name]), 0.15).hex
    return added_colors


def find_cursor_style(app: App[Any]) -> Style | None:
    """Return the style of all text under the cursor with 16 colors: black on white, or the reverse in a light theme.
    None with more colors, where the background alone shows the cursor."""
    if get_color_system(app.console.color_system) is not ColorSystem.STANDARD:
        return None
    colors = SIXTEEN_DARK if app.current_theme.dark else SIXTEEN_LIGHT
    return Style(color=colors["background"], bgcolor=colors["foreground"], bold=True)


def load_themes() -> list[Theme]:
    """Load the user's themes, sorted by name. Raises BadInputError naming an invalid file."""
    return [load_theme(path) for path in sorted((get_config_folder() / "themes").glob("*.toml"))]


def load_theme(path: Path) -> Theme:
    """Load a theme from a file. Raises BadInputError if it is invalid."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(f"{path}: {error}") from error
    colors = {f.name for f in fields(Theme)} - {"name", "dark", "variables", "luminosity_spread", "text_alpha"}
    if unknown_names := sorted(set(values) - colors - {"dark", "variables"}):
        raise BadInputError(
            f"{path}: a theme has no {unknown_names[0]!r}", f"it has dark, variables, {', '.join(sorted(colors))}"
        )
    variables = values.pop("variables", {})
    if not isinstance(variables, dict) or not isinstance(values.get("dark", True), bool):
        raise BadInputError(f"{path}: dark must be true or false, and [variables] a table")
    for name, color in [*values.items(), *variables.items()]:
        if name != "dark":
            check_color(path, name, color)
    if "primary" not in values:
        raise BadInputError(f"{path}: primary is missing", 'primary = "#3d6f99"')
    return Theme(name=path.stem, **values, variables=BOARD_DARK | variables)


def check_color(path: Path, name: str, color: Any) -> None:
    """Raise BadInputError, naming file and setting, if `color` is not a color."""
    try:
        Color.parse(color)
    except (ColorParseError, TypeError, AttributeError) as error:
        raise BadInputError(f"{path}: {name} = {color!r} is not a color", 'such as "#3d6f99" or "green"') from error
