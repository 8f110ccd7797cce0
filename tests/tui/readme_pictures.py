"""README's pictures, taken anew of what `make demo` made, or only some of them; look at them before they are committed:

.venv/bin/python -m tests.tui.readme_pictures [--folder .chessreg] [home squares …]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.tui.conftest import Driver, driving, make_app

PICTURES = Path(__file__).parents[2] / "tui" / "pictures"


async def home(driver: Driver) -> None:
    await driver.until("board", "Δ")


async def edit(driver: Driver) -> None:
    await driver.stand_on("edits")
    await driver.press("enter", "enter")
    await driver.until("clean writes", "edited writes")


async def game(driver: Driver) -> None:
    await driver.stand_on("plain")
    await driver.press("enter", "enter", "E", *["right"] * 17, "m")
    await driver.once(lambda: None not in getattr(driver.screen, "evaluations", [None]), "every evaluation")
    await driver.until("evaluation", "(played)")


async def squares(driver: Driver) -> None:
    await driver.go("queries")
    await driver.find_row("accuracy by square")
    await driver.press("enter", "v", "s")
    await driver.type("run:reference-board")
    await driver.press("enter", "tab")


async def compare(driver: Driver) -> None:
    await driver.stand_on("reference-board", "untrained-board", mark=True)
    await driver.press("c", "tab")


async def published(driver: Driver) -> None:
    await driver.go("queries")
    await driver.find_row("board intervention legality")
    await driver.press("enter", "p")


TAKEN: dict[str, tuple[tuple[int, int], Callable[[Driver], Awaitable[None]]]] = {
    "home": ((140, 34), home),
    "edit": ((132, 43), edit),
    "game": ((124, 39), game),
    "squares": ((140, 31), squares),
    "compare": ((118, 23), compare),
    "published": ((150, 15), published),
}


async def take(folder: Path, name: str) -> None:
    """Do the steps of a picture and write it."""
    size, steps = TAKEN[name]
    async with driving(make_app(folder, read_only=True, start="home" if name == "home" else "runs"), size) as driver:
        await steps(driver)
        await driver.settle()
        path = PICTURES / f"{name}.svg"
        path.write_text(driver.app.export_screenshot(title="chessreg"))
        print(path, driver.text, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".chessreg"))
    parser.add_argument("names", nargs="*", choices=[*TAKEN, []], metavar="NAME")
    given = parser.parse_args()
    for name in given.names or TAKEN:
        asyncio.run(take(given.folder, name))
