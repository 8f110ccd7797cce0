"""Colours: dark, light and high contrast. Every theme, textual's own too, has colours for the board."""

from __future__ import annotations

from textual.theme import Theme

BOARD_DARK = {
    "board-light": "#b9a488", "board-dark": "#8a6f55", "board-white": "#ffffff", "board-black": "#101010",
    "board-last": "#e6c84b", "board-arrow": "#5d9f5d", "board-wrong": "#d0453a", "board-heat": "#2f6db3",
}  # fmt: skip
BOARD_CONTRAST = {
    "board-light": "#8c8c8c", "board-dark": "#595959", "board-white": "#ffffff", "board-black": "#000000",
    "board-last": "#ffd400", "board-arrow": "#00b050", "board-wrong": "#ff2020", "board-heat": "#1f6fff",
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
