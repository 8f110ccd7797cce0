"""The terminal UI in a browser, by textual-serve: each page that is opened gets a process of its own."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from chessreg.errors import BadInputError

LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(registry_url: str, store_path: Path, options: Sequence[str], host: str, port: int) -> None:
    """Serve until Ctrl-C. Raises BadInputError when textual-serve is not installed or the port is taken."""
    try:
        from textual_serve.server import Server
    except ImportError as error:
        raise BadInputError("--web needs textual-serve", "pip install 'chessreg[web]'") from error
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BadInputError(f"cannot listen on {host}:{port}: {error.strerror}", "--port takes another") from error
    if host not in LOCAL:
        click.echo(f"whoever reaches {host}:{port} can do here what you can: there is no password", err=True)
    os.environ |= {"CHESSREG_REGISTRY": registry_url, "CHESSREG_STORE": str(store_path)}  # a URL may hold a password
    words = [sys.executable, "-m", "chessreg.cli", "tui"]
    Server(shlex.join([*words, *options]), host=host, port=port, title="chessreg").serve()
