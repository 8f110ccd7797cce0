"""Keys that arrive all at once, from a macro or over a slow line, have the same effect as one by one."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from textual.events import Key, Paste
from textual.widgets import Input

from tests.quick import quick_first
from tui.escape import AltKeyParser
from tui.screens.boards import BoardScreen
from tui.screens.dialogs import Prompt
from tui.screens.edit import EditScreen
from tui.screens.launch import FormScreen
from tui.screens.queries import SqlEditor
from tui.screens.run import RunScreen

from .conftest import PATIENCE

SEQUENCES = {
    "a tag": [*"4t", *"quick", "enter", "G", "t", *"slow", "enter"],
    "a filter and what it finds": ["4", "slash", *"plain", "enter", "enter"],
    "rooms and lists": [*"245", "enter", "tab", "escape", "4", "j", "j", "enter", "tab", "tab"],
    "notes given up": [*"4n", *"never", "escape", "n", *"kept", "enter", "k", "asterisk"],
    "a form": ["3", "slash", *"prob", "enter", "enter", "e", "ctrl+u", *"89", "enter"],
    "help and back": ["4", "question_mark", "escape", "enter", "question_mark", "escape", "tab"],
    "the palette": ["ctrl+p", "escape", "5", "ctrl+p", "escape", "2"],
    "board by board": ["5", "enter", "l", "l", "l", "h", "right", "escape", "tab", "enter", "l"],
    "a question": ["7", "slash", *"board", "enter", "enter", "tab", "slash", *"layer:0", "enter"],
    "data": ["8", "enter", "escape", "tab", "tab", "enter", "t", *"good", "enter"],
    "the lab": ["6", "slash", "ctrl+u", *"e4", "enter", "right", "right", "left"],
}


ANY = [*"12345678jkGg/ae ?ivnt>x", "enter", "escape", "tab", "shift+tab", "left", "right", "down", "up", "ctrl+u"]


LONG = {"a form", "data", "board by board", "the lab", "rooms and lists", "help and back", "the palette", "a question"}


@pytest.mark.parametrize(
    "keys", [pytest.param(keys, id=n, marks=[pytest.mark.slow] if n in LONG else []) for n, keys in SEQUENCES.items()]
)
async def test_keys_in_a_burst_do_what_they_do_one_by_one(
    drive, world: Path, tmp_path: Path, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await compare(drive, world, tmp_path, keys, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
async def test_so_do_any_keys(drive, world: Path, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    await compare(drive, world, tmp_path, random.Random(seed).choices(ANY, k=14), monkeypatch)


async def compare(drive, world: Path, tmp_path: Path, keys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.typed.KEY_TIMEOUT_S", PATIENCE)
    pictures = []
    for way in ("burst", "press"):
        own = shutil.copytree(world, tmp_path / way / "own")
        async with drive(own, size=(120, 36)) as driver:
            await getattr(driver, way)(*keys)
            pictures.append(driver.text.replace(way, ""))
    assert pictures[0] == pictures[1]


@pytest.mark.slow
async def test_a_burst_writes_a_tag_and_fills_a_field(
    drive, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.typed.KEY_TIMEOUT_S", PATIENCE)
    async with drive(shutil.copytree(world, tmp_path / "own"), size=(160, 40)) as driver:
        await driver.stand_on("plain")
        await driver.burst("t", *"quick", "enter", "slash", *"tag:quick", "enter", "enter")
        assert isinstance(driver.screen, RunScreen)
        assert "quick" in driver.text
        await driver.burst("3", "slash", *"probe", "enter", "enter", "e", "ctrl+u", *"89", "enter")
        assert isinstance(driver.screen, FormScreen)
        assert driver.screen.form.text("cache") == "89"


async def test_what_is_pasted_stands_between_the_keys_before_and_after_it(drive) -> None:
    async with drive(size=(100, 30)) as driver:
        for event in (Key("t", "t"), Key("a", "a"), Paste("bc"), Key("d", "d")):
            driver.app.post_message(event)
        await driver.settle()
        assert isinstance(driver.app.screen, Prompt)
        assert driver.app.screen.query_one(Input).value == "abcd"


async def test_keys_wait_for_a_screen_that_shows_nothing_yet_until_one_that_works_everywhere_drops_them(
    drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tui.screens.runs import RunsScreen

    never = asyncio.Event()

    async def fill(self: RunsScreen) -> None:
        await never.wait()

    monkeypatch.setattr("tui.typed.KEY_TIMEOUT_S", 0.05)
    async with drive(start="home") as driver:
        monkeypatch.setattr(RunsScreen, "fill", fill)
        async with asyncio.timeout(PATIENCE):
            for key in "4jkjkjkjkjkjkjkjkn":
                driver.app.post_message(Key(key, key))
            while driver.app.current_mode != "runs" or not driver.app.typed_keys.is_stuck:
                await asyncio.sleep(0.01)
            assert len(driver.app.typed_keys.waiting) == 17
            for key, room in ("5", "boards"), ("1", "home"):
                driver.app.post_message(Key(key, key))
                while driver.app.current_mode != room or driver.app.typed_keys.waiting:
                    await asyncio.sleep(0.01)
        assert "dropped 17 waiting keys" in driver.notices
        never.set()


async def test_a_key_that_is_held_down_waits_for_nothing_that_is_read_again(
    drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tui.screens.runs import RunsScreen

    monkeypatch.setattr("tui.typed.KEY_TIMEOUT_S", PATIENCE)
    never = asyncio.Event()

    async def fill(self: RunsScreen) -> None:
        await never.wait()

    async with drive(start="runs") as driver:
        monkeypatch.setattr(RunsScreen, "fill", fill)
        for key in "r" + 20 * "j":
            driver.app.post_message(Key(key, key))
        async with asyncio.timeout(PATIENCE / 2):
            while len(driver.app.typed_keys.waiting) != 8:
                await asyncio.sleep(0.01)
        never.set()


async def post_while_reading(driver: Any, gate: threading.Event, *keys: str) -> None:
    """Send keys while a read is held up, let the time limit of keys pass, then release the read."""
    for key in keys:
        driver.app.post_message(Key(key, key if len(key) == 1 else None))
    async with asyncio.timeout(PATIENCE):
        while not driver.app.typed_keys.is_stuck:
            await asyncio.sleep(0.01)
    gate.set()
    await driver.settle()


def hold_up(monkeypatch: pytest.MonkeyPatch, target: str) -> threading.Event:
    """Make a function of `tui.data` wait for the event that is returned."""
    gate, function = threading.Event(), resolve_name(target)

    def held(*arguments: Any, **named: Any) -> Any:
        gate.wait(PATIENCE)
        return function(*arguments, **named)

    monkeypatch.setattr(target, held)
    monkeypatch.setattr("tui.typed.KEY_TIMEOUT_S", 0.05)
    return gate


async def test_keys_typed_while_a_game_is_read_step_through_it(drive, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = hold_up(monkeypatch, "tui.data.board_views.load_boards")
    async with drive(start="boards", size=(120, 36)) as driver:
        await post_while_reading(driver, gate, "enter", *20 * "l", "h")
        assert isinstance(driver.screen, BoardScreen)
        assert driver.screen.frame == min(20, len(driver.screen.boards.views) - 1) - 1


@pytest.mark.parametrize("result_table", ["game", "score"])
async def test_a_key_typed_once_the_first_board_is_being_drawn_waits_for_it(
    drive, result_table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = hold_up(monkeypatch, "tui.data.board_views.load_boards")
    async with drive(start="boards", size=(100, 36)) as driver:
        while driver.screen.result_table != result_table:
            await driver.press("tab")
        driver.app.post_message(Key("enter", None))
        async with asyncio.timeout(PATIENCE):
            while not isinstance(driver.app.screen, BoardScreen) or driver.app.typed_keys.under_way:
                await asyncio.sleep(0.01)
        await post_while_reading(driver, gate, "right", "right", "left")
        assert driver.screen.frame == 1


@pytest.mark.parametrize("help_is_open", quick_first(1, [False, True]))
async def test_keys_typed_while_an_edit_is_read_reach_the_screen_of_edits(
    drive, monkeypatch: pytest.MonkeyPatch, help_is_open: bool
) -> None:
    gate = hold_up(monkeypatch, "tui.data.board_views.load_boards")
    keys = ["question_mark", "escape"] if help_is_open else []
    async with drive(start="boards", size=(120, 36)) as driver:
        await driver.press("tab")
        assert driver.screen.result_table == "trial"
        await post_while_reading(driver, gate, "enter", *keys, "j", "f")
        assert isinstance(driver.screen, EditScreen)
        assert driver.way.startswith("boards ›"), driver.way
        assert driver.screen.at > 0
        assert driver.screen.flipped


async def test_a_screen_that_was_left_while_it_was_read_does_not_replace_another(
    drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = hold_up(monkeypatch, "tui.data.board_views.load_boards")
    async with drive(start="boards", size=(120, 36)) as driver:
        await driver.press("tab")
        listed = driver.screen
        for key in ("enter", "escape"):
            driver.app.post_message(Key(key, None))
        async with asyncio.timeout(PATIENCE):
            while driver.app.screen is listed:
                await asyncio.sleep(0)
            while driver.app.screen is not listed:
                await asyncio.sleep(0)
        gate.set()
        await driver.settle()
        assert driver.screen is listed


async def send(driver: Any, *read: str) -> None:
    """The input from a terminal, in the pieces in which it is read."""
    parser = AltKeyParser()
    for message in [message for text in read for message in parser.feed(text)]:
        driver.app.post_message(message)
    await driver.settle()


@pytest.mark.parametrize("sent", ["\x1b8", "\x1b[56;3u"], ids=["of any terminal", "of kitty"])
async def test_esc_and_a_key_at_once_are_both_done(drive: Any, sent: str) -> None:
    async with drive(size=(120, 36)) as driver:
        await driver.burst("slash", *"plain", "enter")
        assert "1 of 8 runs" in driver.text
        await send(driver, sent)
        assert driver.app.current_mode == "data"
        await driver.press("4")
        assert "8 runs" in driver.text
        assert "1 of 8 runs" not in driver.text


@pytest.mark.parametrize("behind", quick_first(2, ["j", "\x7f", "G", "8", "/", "b"]))
async def test_esc_leaves_a_dialog_and_the_key_behind_it_is_no_text(drive: Any, behind: str) -> None:
    async with drive(size=(120, 36)) as driver:
        await send(driver, *"tabc", "\x1b", behind)
        assert not isinstance(driver.app.screen, Prompt)
        assert driver.app.current_mode == ("data" if behind == "8" else "runs")


async def test_alt_and_a_key_that_is_bound_is_that(drive: Any) -> None:
    async with drive(size=(120, 36), keys={"runs.compare": "alt+c"}) as driver:
        await send(driver, *"tone two", "\x1bb", "X", "\x1b\x7f")  # one word back, and delete the word there
        assert driver.app.screen.query_one(Input).value == "one two"
        await send(driver, "\x1bj")
        assert not isinstance(driver.app.screen, Prompt)
        await send(driver, "\x1bc")
        assert driver.screen.place == "compare"


@pytest.mark.slow
async def test_esc_leads_vim_to_its_normal_mode_however_fast_a_command_follows(drive: Any) -> None:
    async with drive(start="queries", size=(120, 36)) as driver:
        await driver.press("e", "f8", "ctrl+a")
        editor = driver.screen.query_one(SqlEditor)
        editor.text = ""
        await send(driver, *"abc def", "\x1bb", "x")
        assert (editor.text, editor.normal) == ("abc ef", True)
