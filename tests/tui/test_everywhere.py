"""Properties of every screen: palette, help, the copied command, the mouse, and the way back."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.segment import Segment
from textual.color import Color

from tests.quick import quick_first
from tui.app import AsciiFilter
from tui.entries import ENTRIES, ScreenEntry
from tui.screens.help import Palette, find_jump_targets, format_keys_and_command
from tui.themes import THEMES
from tui.widgets.table import PageTable

from .commands import command_of

pytestmark = pytest.mark.usefixtures("near_model")
WORD = re.compile(r"[^\W\d_]{2}")
everywhere = pytest.mark.parametrize("entry", quick_first(3, ENTRIES), ids=lambda entry: entry.name)


@everywhere
async def test_palette_and_help_have_every_action_of_the_room(drive, entry: ScreenEntry) -> None:
    async with drive(size=(160, 110), start=entry.name) as driver:
        screen, actions = driver.screen, driver.screen.list_actions()
        assert {"quit", "help", "palette", "copy_command"} <= {action.method for action in actions}
        palette = Palette(driver.app.screen)
        await palette.startup()
        offered = [hit.help async for hit in palette.discover()]
        assert offered == [format_keys_and_command(action) for action in actions if action.method != "palette"]
        await driver.press("ctrl+p")
        assert driver.app.screen is not screen
        await driver.type("switch the theme")
        theme = driver.app.theme
        await driver.press("enter")
        assert driver.app.screen is screen
        assert driver.app.theme != theme
        await driver.press("question_mark")
        text = driver.text
        for action in actions:
            assert action.text in text
            assert action.shown_keys in text
        await driver.press("escape")
        assert driver.app.screen is screen


def luminance(color: tuple[int, int, int]) -> float:
    """As WCAG 2 has it."""
    red, green, blue = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.slow
async def test_words_stand_out_from_their_ground_in_every_room_and_theme(drive) -> None:
    """By 3 to 1, as WCAG 2 requires of large text; a form of the launch screen is one of the screens, as is the SQL
    screen."""
    async with drive(size=(120, 40)) as driver:
        for room in (*(entry.name for entry in ENTRIES), "form", "sql"):
            await driver.go({"form": "launch", "sql": "queries"}.get(room, room))
            if room == "sql":
                await driver.press("e")
            if room == "form":
                await driver.find_row("edit")
                await driver.press("enter")
            for theme in THEMES:
                driver.app.theme = theme.name
                await driver.settle()
                for segment in (segment for strip in driver.strips for segment in strip):
                    style = segment.style
                    if style is None or style.color is None or style.bgcolor is None or not WORD.search(segment.text):
                        continue
                    ink, ground = (tuple(color.get_truecolor()) for color in (style.color, style.bgcolor))
                    low, high = sorted((luminance(ink), luminance(ground)))
                    assert (high + 0.05) / (low + 0.05) >= 3, (room, theme.name, segment.text, ink, ground)


@everywhere
async def test_what_is_copied_prints_what_is_shown(drive, entry: ScreenEntry, tmp_path: Path) -> None:
    """The command goes to the terminal by OSC 52, into a file, and exists."""
    async with drive(size=(80, 24), start=entry.name) as driver:
        written: list[str] = []
        driver.app._driver.write = written.append
        driver.app.action_copy_command()
        await driver.settle()
        copied = driver.app.clipboard
        assert any(text.startswith("\x1b]52;c;") for text in written)
        assert (tmp_path / "state" / "chessreg" / "tui" / "copied.txt").read_text() == copied
        command_of(shlex.split(copied))


@everywhere
async def test_the_mouse_does_what_keys_do(drive, entry: ScreenEntry) -> None:
    async with drive(size=(100, 30), start=entry.name) as driver:
        screen = driver.screen
        tables = [table for table in screen.query(PageTable) if table.display and table.count > 1]
        for table in tables[:1]:
            await driver.pilot.click(table, offset=(3, 3))  # below the frame and the headings: the second row
            await driver.settle()
            assert table.has_focus
            assert table.cursor == 1
        lowest = driver.lines[-1]
        at = lowest.index("? help")
        await driver.pilot.click(offset=(at, len(driver.lines) - 1))
        await driver.settle()
        assert driver.app.screen is not screen
        await driver.press("escape")
        assert driver.app.screen is screen


@everywhere
async def test_jump_marks_the_parts_of_the_room(drive, entry: ScreenEntry) -> None:
    async with drive(size=(80, 24), start=entry.name) as driver:
        screen = driver.screen
        letters = find_jump_targets(screen)
        await driver.press("ctrl+o")
        assert driver.app.screen is not screen
        letter = max(letters, default="escape")
        await driver.press(letter)
        assert driver.app.screen is screen
        assert not letters or screen.focused is letters[letter]
        assert all(len(line) <= 80 for line in driver.lines)


@pytest.mark.slow
async def test_a_terminal_of_ascii_gets_ascii_in_every_room_until_other_pieces_are_chosen(drive) -> None:
    async with drive(size=(120, 40), start="home", plain=True, glyphs="letters") as driver:
        for room in ("home", "jobs", "launch", "runs", "boards", "lab", "queries", "data"):
            await driver.go(room)
            text = driver.text
            assert text.isascii(), [line for line in text.splitlines() if not line.isascii()]
        await driver.go("boards")
        await driver.press("enter", "right", "right")
        assert driver.text.isascii()
        assert " p " in driver.text
        assert "Right step  Down next row" in driver.lines[-1], "as letters the arrows would be other keys"
        await driver.press("a")
        assert "→ step  ↓ next row" in driver.lines[-1]
        assert set(driver.text) & set("▛▜▙▟"), "pieces of blocks"
        assert "›" in driver.text


def test_stars_and_pins_look_like_themselves_in_ascii() -> None:
    (segment,) = AsciiFilter().apply([Segment("★ best ⚑ sure")], Color(0, 0, 0))
    assert segment.text == "* best ! sure"


@pytest.mark.parametrize(
    ("locale", "figurines"),
    [
        ({"LANG": "C"}, False),
        ({"LC_ALL": "C"}, False),
        ({"LANG": "POSIX"}, False),
        ({"LANG": "C.UTF-8"}, True),
        ({}, True),
    ],
    ids=lambda value: str(value),
)
def test_the_locale_says_whether_there_are_figurines(locale: dict[str, str], figurines: bool) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("LANG", "LC_ALL", "LC_CTYPE", "TERM")}
    code = "from tui.command import has_unicode; print(has_unicode())"
    told = subprocess.run([sys.executable, "-c", code], env=clean | locale, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(figurines)


def test_a_start_reads_no_code_that_only_boards_or_the_registry_need() -> None:
    code = """
import sys
import tui.app, tui.command, tui.keys
from tui.entries import ENTRIES
ENTRIES[0].open()
print(*sorted({"chess", "duckdb", "numpy", "pydantic", "sqlalchemy", "torch"} & set(sys.modules)))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == []
