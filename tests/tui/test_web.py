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
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from chessreg.cli.root import run_command_line

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def serving(world: Path, tmp_path: Path, *options: str) -> Iterator[str]:
    """The URL that `chessreg tui --web` prints on the world; its log is `log.txt`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
    command = [sys.executable, "-u", "-m", "chessreg.cli", *place, "tui", "--web", "--port", str(port), *options]
    said = tmp_path / "log.txt"
    with said.open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)})
    try:
        deadline = time.monotonic() + 300
        while not (found := re.search(rf"http://\S+:{port}/\S+/", said.read_text())):
            assert server.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)
        yield found[0]
    finally:
        server.terminate()
        server.wait(300)


@pytest.fixture
def url(world: Path, tmp_path: Path) -> Iterator[str]:
    with serving(world, tmp_path) as url:
        yield url


def parts(url: str) -> tuple[str, str]:
    """HOST:PORT and the token."""
    _, _, address, token, _ = url.split("/")
    return address, token


async def page(client: aiohttp.ClientSession, url: str) -> str:
    """The page, once the server responds."""
    for _ in range(600):
        try:
            async with client.get(url) as answer:
                assert answer.status == 200
                return await answer.text()
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.1)
    raise AssertionError("the server did not come")


async def until(ws: aiohttp.ClientWebSocketResponse, *words: str) -> str:
    """Read the app's output until it has contained all these words; returns all of it. An app that draws nothing for a
    while is made to draw everything, because only changed parts of a line are drawn."""
    seen, tries = "", 0
    while not all(word in seen for word in words):
        try:
            message = await ws.receive(timeout=5)
        except TimeoutError:
            tries += 1
            assert tries < 30, seen[-2000:]
            await ws.send_str(json.dumps(["resize", {"width": 120 - tries % 2, "height": 40}]))
            continue
        assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), seen[-2000:]
        if message.type == aiohttp.WSMsgType.BINARY:
            seen += re.sub(r"\x1b\[[0-9;?<>]*[A-Za-z]", "", message.data.decode(errors="replace"))
    return seen


async def status(client: aiohttp.ClientSession, url: str, headers: dict[str, str] | None = None) -> int:
    async with client.get(url, headers=headers, allow_redirects=False) as answer:
        return answer.status


async def test_a_page_shows_the_app_and_its_keys_work(url: str) -> None:
    address, token = parts(url)
    async with aiohttp.ClientSession(headers={"Origin": f"http://{address}"}) as client:
        text = await page(client, url)
        socket_url = f"ws://{address}/{token}/ws"
        assert socket_url in text
        assert "keys.focus()" in text, "keys work before one clicks"
        scripts = re.findall(rf"(?:src|href)=\"(http://{address}/[^\"]*)", text)
        assert len(scripts) == 2
        for script in scripts:
            assert await status(client, script) == 200
        async with client.ws_connect(f"{socket_url}?width=120&height=40") as ws:
            await until(ws, "chessreg", "read only")
            await ws.send_str(json.dumps(["stdin", "7"]))
            await until(ws, "elo by intervention", "probe accuracy by layer")
            await ws.send_str(json.dumps(["stdin", "/"]))
            await until(ws, "to the list")
            await ws.send_str(json.dumps(["stdin", "termination\r"]))
            await until(ws, "Enter open")
            await ws.send_str(json.dumps(["stdin", "\r"]))
            await until(ws, "games by termination: ")  # the line below the answer
            for key in ("w", "\x13"):  # a file of the table, a picture of the screen
                await ws.send_str(json.dumps(["stdin", key]))
                await until(ws, "--read-only: nothing was changed")
            print("a query in a browser: 4 keys beyond what is typed")


async def test_without_the_token_nothing_is_answered(url: str) -> None:
    address, token = parts(url)
    assert len(token) >= 43
    ours = {"Origin": f"http://{address}"}
    async with aiohttp.ClientSession() as client:
        await page(client, url)
        for first in ("", "x" * len(token), token[:-1], token.swapcase(), f"{token}x", f"%20{token}", "ä"):
            for rest in ("", "/", "/ws", "/static/js/textual.js", "/static/", "/download/x", f"/{token}/ws"):
                path = f"{first}{rest}"
                for asked in (path, f"{path}?token={token}"):
                    assert await status(client, f"http://{address}/{asked}", ours) == 403, asked
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await client.ws_connect(f"ws://{address}/{first + '/' if first else ''}ws", headers=ours)
        async with client.post(url) as answer:
            assert answer.status == 405


async def test_another_page_gets_nothing(url: str) -> None:
    address, token = parts(url)
    port = address.partition(":")[2]
    foreign = [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": f"http://127.0.0.1:{int(port) + 1}"},
        {"Origin": "http://x:1", "Host": "x:1"},  # a name that was made to point here
        {"Origin": f"http://127.0.0.1.evil.example:{port}", "Host": f"127.0.0.1.evil.example:{port}"},
        {"Origin": "http://10.0.0.5:80", "Host": "10.0.0.5:80"},
    ]
    async with aiohttp.ClientSession() as client:
        await page(client, url)
        for headers in foreign:
            assert await status(client, url, headers) == 403, headers
            assert await status(client, f"{url}static/js/textual.js", headers) == 403, headers
        for headers in ({}, *foreign):
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await client.ws_connect(f"ws://{address}/{token}/ws", headers=headers)
        tunnel = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}
        assert await status(client, url, tunnel) == 200


@pytest.mark.slow
async def test_a_page_may_change_things_only_with_write(world: Path, tmp_path: Path) -> None:
    with serving(world, tmp_path, "--write") as url:
        address, token = parts(url)
        async with aiohttp.ClientSession(headers={"Origin": f"http://{address}"}) as client:
            await page(client, url)
            async with client.ws_connect(f"ws://{address}/{token}/ws?width=120&height=40") as ws:
                assert "read only" not in await until(ws, "chessreg", "registry.db")


async def test_beyond_this_machine_there_is_a_token_too_and_names_are_checked(world: Path, tmp_path: Path) -> None:
    with serving(world, tmp_path, "--host", "0.0.0.0") as printed:
        url = printed.replace("0.0.0.0", "127.0.0.1")
        address, _ = parts(url)
        assert "http is not encrypted" in (tmp_path / "log.txt").read_text()
        async with aiohttp.ClientSession() as client:
            text = await (await client.get(url, headers={"Host": "10.0.0.5:80"})).text()
            assert "ws://10.0.0.5:80/" in text
            assert re.search(r"<title>chessreg · [^<]*registry\.db</title>", text)
            assert await status(client, f"http://{address}/") == 403
            assert await status(client, url, {"Host": "evil.example"}) == 403
            assert await status(client, url, {"Host": socket.gethostname()}) == 200
        log = (tmp_path / "log.txt").read_text()
        assert log.count(parts(url)[1]) == 1, "requests are not logged: their paths hold the token"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--write"], "--write needs --web"),
        (["--web", "--write", "--read-only"], "--write needs --web"),
        (["--web", "--host", "no such host"], "cannot listen on no such host:8000"),
        (["--web", "--registry", "missing.db"], "does not exist"),
    ],
)
def test_what_cannot_be_served_is_said(
    options: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHESSREG_REGISTRY", raising=False)
    here = [] if "--registry" in options else ["--registry", str(tmp_path / "registry.db")]
    if here:
        assert run_command_line([*here, "init"]) == 0
        capsys.readouterr()
    assert run_command_line([*here, "tui", *options]) != 0
    assert says in capsys.readouterr().err
    assert not (tmp_path / "missing.db").exists()


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
        """The page as pixels: (height, width, 3), uint8; None if it does not exist now."""
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
        process.wait(300)


async def once(tab: Tab, true: Any, what: str, seconds: float = 300.0) -> Any:
    """The picture, once this is true of it."""
    deadline = time.monotonic() + seconds
    while (picture := await tab.picture()) is None or not true(picture):
        assert time.monotonic() < deadline, f"{what} did not come"
        await asyncio.sleep(0.2)
    return picture


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
async def test_a_browser_draws_the_app_and_sends_it_keys(url: str, tmp_path: Path) -> None:
    import numpy as np

    def inked(picture: Any) -> float:
        """Share of pixels that are not the commonest color: of text, bars and headings."""
        flat = picture.reshape(-1, 3).astype(np.int64) @ (1 << 16, 1 << 8, 1)
        return 1 - np.bincount(np.unique(flat, return_inverse=True)[1]).max() / flat.size

    async with aiohttp.ClientSession() as client:
        await page(client, url)
    async with browsing(url, tmp_path / "profile") as tab:
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
