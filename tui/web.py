"""The terminal UI in a browser, by textual-serve: each page that is opened gets a process of its own."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import click

from chessreg.errors import BadInputError

LOCAL = ("127.0.0.1", "localhost", "[::1]")


def serve(registry_url: str, store_path: Path, options: Sequence[str], host: str, port: int) -> None:
    """Serve until Ctrl-C. Raises BadInputError when textual-serve is not installed or the port is taken."""
    try:
        from aiohttp import web
        from textual_serve.server import Server
    except ImportError as error:
        raise BadInputError("--web needs textual-serve", "pip install 'chessreg[web]'") from error

    class OwnPageOnly(Server):
        """Other pages that the browser has open must not reach the app: it can launch jobs and write files."""

        async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
            if not own(request.headers.get("Origin", ""), request.host, host, port):
                raise web.HTTPForbidden(text="only the page that is served here may connect")
            return await super().handle_websocket(request)

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BadInputError(f"cannot listen on {host}:{port}: {error.strerror}", "--port takes another") from error
    if host not in LOCAL:
        click.echo(f"whoever reaches {host}:{port} can do here what you can: there is no password", err=True)
    os.environ |= {"CHESSREG_REGISTRY": registry_url, "CHESSREG_STORE": str(store_path)}  # a URL may hold a password
    words = [sys.executable, "-m", "chessreg.cli", "tui", *options]
    OwnPageOnly(shlex.join(words), host=host, port=port, title="chessreg").serve()


def own(origin: str, asked: str, host: str, port: int) -> bool:
    """Whether a connection comes from our page: its origin is the address asked for, and, served to this machine only,
    that address is this machine's (a name that somebody else made point here is not).

    >>> own("http://127.0.0.1:8000", "127.0.0.1:8000", "127.0.0.1", 8000)
    True
    >>> own("http://evil.example", "127.0.0.1:8000", "127.0.0.1", 8000)
    False
    """
    here = host not in LOCAL or asked in {f"{name}:{port}" for name in LOCAL}
    return here and bool(asked) and urlsplit(origin).netloc == asked
