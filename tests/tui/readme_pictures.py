"""Take the pictures of README and docs/tui.md from the registry that `chessreg demo` makes:

.venv/bin/python -m tests.tui.readme_pictures [--folder .chessreg] [home squares …]

Inspect the pictures before you commit them. `tui/pictures/inputs.json` records the inputs of each, and
test_readme_pictures.py fails when they have changed since.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import inspect
import json
import os
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}  # boards and themes are drawn for all colors

from tests.tui.conftest import Driver, driving, make_app

PICTURES = Path(__file__).parents[2] / "tui" / "pictures"
INPUTS = PICTURES / "inputs.json"
SNAPSHOTS = Path(__file__).parent / "__snapshots__"


async def home(driver: Driver) -> None:
    await driver.until("board", "Δ")


async def edit(driver: Driver) -> None:
    await driver.stand_on("edits")
    await driver.press("enter", "enter", "enter")
    await driver.until("clean legal mass", "edited legal mass")


async def game(driver: Driver) -> None:
    await driver.stand_on("uci-plain")
    await driver.press("enter", "enter", "E", *["right"] * 17, "m")
    await driver.once(lambda: None not in getattr(driver.screen, "evaluations", [None]), "every evaluation")
    await driver.until("White's chances", "played")


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


@dataclass(frozen=True)
class Picture:
    """The size of a picture in terminal cells, the keys that lead to its screen, and the inputs of the screen."""

    size: tuple[int, int]
    steps: Callable[[Driver], Awaitable[None]]
    runs: tuple[str, ...]
    """Names of the demo's runs that it shows; empty for all of them."""
    snapshots: tuple[str, ...]
    """Snapshots of the same screen in tests/tui: they change when the screen is drawn in another way."""


TAKEN = {
    "home": Picture((140, 34), home, (), ("test_pictures_of_work/test_home",)),
    "edit": Picture((132, 43), edit, ("edits",), ("test_pictures/test_an_edit",)),
    "game": Picture((124, 39), game, ("uci-plain",), ("test_pictures/test_a_game",)),
    "squares": Picture((140, 31), squares, ("reference-board",), ("test_pictures/test_what_a_probe_reads",)),
    "compare": Picture(
        (118, 23), compare, ("reference-board", "untrained-board"), ("test_pictures_of_data/test_a_comparison",)
    ),
    "published": Picture((150, 15), published, ("edits",), ("test_pictures/test_an_answer",)),
}


def demo_commands(runs: tuple[str, ...]) -> list[str]:
    """Return the demo's commands that make these runs and their inputs, in order; all commands for no runs."""
    from chessreg.cli.demo import SIZES, make_steps

    lines = [line for step in make_steps(SIZES["quick"]) for line in step.commands]
    if not runs:
        return lines
    wanted, needed = set(runs), []
    for line in reversed(lines):
        words = shlex.split(line)
        name = words[words.index("--name") + 1] if "--name" in words else None
        is_split = words[:2] == ["dataset", "split"] and words[2] in wanted
        if name in wanted or is_split:
            needed.insert(0, line)
            wanted |= {word.partition(":")[0] for word in words}
    return needed


def inputs_digest(picture: Picture) -> str:
    """Return the SHA-256 of the inputs of a picture: commands, keys, size, and snapshots of its screen."""
    digest = hashlib.sha256()
    for part in (*demo_commands(picture.runs), inspect.getsource(picture.steps), str(picture.size)):
        digest.update(part.encode() + b"\0")
    for name in picture.snapshots:
        folder, _, test = name.partition("/")
        paths = sorted((SNAPSHOTS / folder).glob(f"{test}[[]*.svg"))
        assert paths, f"no snapshot {name}"
        for path in paths:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def record_inputs(names: list[str]) -> None:
    """Write the digests of the inputs of these pictures, which have just been taken."""
    recorded = json.loads(INPUTS.read_text()) if INPUTS.exists() else {}
    recorded |= {name: inputs_digest(TAKEN[name]) for name in names}
    INPUTS.write_text(json.dumps(dict(sorted(recorded.items())), indent=1) + "\n")


async def take(folder: Path, name: str) -> None:
    """Open the screen of a picture on the registry in `folder` and write the picture."""
    picture = TAKEN[name]
    app = make_app(folder, read_only=True, start="home" if name == "home" else "runs")
    async with driving(app, picture.size) as driver:
        await picture.steps(driver)
        await driver.settle()
        path = PICTURES / f"{name}.svg"
        path.write_text(driver.app.export_screenshot(title="chessreg"))
        print(path, driver.text, sep="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".chessreg"))
    parser.add_argument("names", nargs="*", choices=[*TAKEN, []], metavar="NAME")
    arguments = parser.parse_args()
    names = arguments.names or list(TAKEN)
    for name in names:
        asyncio.run(take(arguments.folder, name))
    record_inputs(names)
