"""The app in a browser: the real command serves a page, a page's socket gets the screens, Chromium draws them."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def address(world: Path, tmp_path: Path) -> Iterator[str]:
    """HOST:PORT of `chessreg tui --web` on the world."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
    command = [sys.executable, "-m", "chessreg.cli", *place, "tui", "--web", "--port", str(port), "--read-only"]
    with (tmp_path / "log.txt").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)})
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


async def page(client: aiohttp.ClientSession, address: str) -> str:
    """The page, once the server is there."""
    for _ in range(600):
        try:
            async with client.get(f"http://{address}/") as answer:
                return await answer.text()
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.1)
    raise AssertionError("the server did not come")


async def until(ws: aiohttp.ClientWebSocketResponse, *words: str) -> None:
    """Read what the app draws until all these words were in it."""
    seen = ""
    while not all(word in seen for word in words):
        message = await asyncio.wait_for(ws.receive(), 300)
        assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), seen[-2000:]
        if message.type == aiohttp.WSMsgType.BINARY:
            seen += re.sub(r"\x1b\[[0-9;?<>]*[A-Za-z]", "", message.data.decode(errors="replace"))


async def test_a_page_shows_the_app_and_its_keys_work(address: str) -> None:
    async with aiohttp.ClientSession(headers={"Origin": f"http://{address}"}) as client:
        assert f"ws://{address}/ws" in await page(client, address)
        async with client.ws_connect(f"ws://{address}/ws?width=120&height=40") as ws:
            await until(ws, "chessreg", "read only")
            await ws.send_str(json.dumps(["stdin", "7"]))
            await until(ws, "elo by intervention", "probe accuracy by layer")


async def test_another_page_gets_nothing(address: str) -> None:
    async with aiohttp.ClientSession() as client:
        await page(client, address)
        for headers in ({}, {"Origin": "http://evil.example"}, {"Origin": f"http://x:{1}", "Host": "x:1"}):
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await client.ws_connect(f"ws://{address}/ws", headers=headers)


# -- a real browser ---------------------------------------------------------------------------------------------------


class Tab:
    """A page of the browser, driven by its debugging protocol."""

    def __init__(self, socket: Any) -> None:
        self.socket, self.number = socket, 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        await self.socket.send_json({"id": self.number, "method": method, "params": parameters})
        while True:
            said = await asyncio.wait_for(self.socket.receive_json(), 300)
            if said.get("id") == self.number:
                return said.get("result", {})  # nothing while it goes from page to page

    async def value(self, expression: str) -> Any:
        return (await self.call("Runtime.evaluate", expression=expression)).get("result", {}).get("value")

    async def type(self, key: str) -> None:
        """Click into the topmost line, which does nothing but give the terminal the keyboard; then the key."""
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=640, y=6, button="left", clickCount=1)
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=key, key=key)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def picture(self) -> Any:
        """The page as pixels: (height, width, 3), uint8; None where there is none now."""
        import numpy as np
        from PIL import Image

        shot = (await self.call("Page.captureScreenshot")).get("data")
        if shot is None:
            return None
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(shot))).convert("RGB"))


@asynccontextmanager
async def browsing(url: str, profile: Path) -> AsyncIterator[Tab]:
    assert BROWSER
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
               f"--user-data-dir={profile}", "--window-size=1280,800", "about:blank"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        told = profile / "DevToolsActivePort"
        async with asyncio.timeout(300):
            while not told.exists() or "\n" not in told.read_text():
                await asyncio.sleep(0.05)
        port = told.read_text().split()[0]
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://127.0.0.1:{port}/json") as answer:
                found = next(tab for tab in await answer.json() if tab["type"] == "page")
            async with client.ws_connect(found["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                await tab.call("Page.enable")
                await tab.call("Page.navigate", url=url)
                yield tab
    finally:
        process.terminate()
        process.wait(20)


async def once(tab: Tab, true: Any, what: str, seconds: float = 300.0) -> Any:
    """The picture, once this is true of it."""
    deadline = time.monotonic() + seconds
    while (picture := await tab.picture()) is None or not true(picture):
        assert time.monotonic() < deadline, f"{what} did not come"
        await asyncio.sleep(0.2)
    return picture


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
async def test_a_browser_draws_the_app_and_sends_it_keys(address: str, tmp_path: Path) -> None:
    import numpy as np

    def inked(picture: Any) -> float:
        """Share of pixels that are not the commonest colour: of text, bars and headings."""
        flat = picture.reshape(-1, 3).astype(np.int64) @ (1 << 16, 1 << 8, 1)
        return 1 - np.bincount(np.unique(flat, return_inverse=True)[1]).max() / flat.size

    async with aiohttp.ClientSession() as client:
        await page(client, address)
    async with browsing(f"http://{address}/", tmp_path / "profile") as tab:
        async with asyncio.timeout(300):
            while "-first-byte" not in (await tab.value("document.body.className") or ""):
                await asyncio.sleep(0.1)
        seen: list[Any] = []

        def still(picture: Any) -> bool:
            seen.append(picture)
            return inked(picture) > 0.08 and len(seen) > 2 and (seen[-3] == picture).all()

        drawn = await once(tab, still, "the first screen")
        await tab.type("7")
        other = await once(tab, lambda now: (now != drawn).any(-1).mean() > 0.02, "the queries")
        assert inked(other) > 0.08
