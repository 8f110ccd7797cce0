"""The app in a browser: the real command serves a page, and a page's socket gets the screens."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")


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
        message = await asyncio.wait_for(ws.receive(), 90)
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
