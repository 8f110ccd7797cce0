"""The terminal UI in a browser, by textual-serve. Each open page has a separate process.

Anyone with the URL can use the page. The URL starts with a random token, and requests that lack the token get no
answer. If the token leaks, other pages in the same browser still have no access: the socket checks Origin (only this
page) and Host (only names that cannot be redirected to this machine).
"""

from __future__ import annotations

import html
import ipaddress
import os
import secrets
import shlex
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import click

from chessreg import child
from chessreg.errors import BadInputError
from chessreg.masking import mask
from chessreg.plugins import install_command
from tui import show

HEADERS = {
    "Referrer-Policy": "no-referrer",  # the token is part of the URL
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
}
# textual-serve does not focus the terminal until the user clicks on it
FOCUS_SCRIPT = """<script>
const focus = setInterval(() => {
  const keys = document.querySelector(".xterm-helper-textarea");
  if (keys) { keys.focus(); clearInterval(focus); }
}, 50);
</script>
"""


def serve_pages(registry: str, store_path: Path, options: Sequence[str], host: str, port: int) -> None:
    """Serve the app at `host` and `port` until Ctrl-C. `options` are those of `chessreg tui` in each session.

    Raises BadInputError when textual-serve is not installed or the port is taken.
    """
    try:
        import aiohttp_jinja2
        from aiohttp import web
        from textual_serve.server import Server
    except ImportError as error:
        raise BadInputError("--web needs textual-serve", install_command("textual-serve")) from error

    token = secrets.token_urlsafe(32)
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/{token}/"

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        first_part = request.path.split("/")[1]
        if not secrets.compare_digest(first_part.encode(), token.encode()):
            raise web.HTTPForbidden(text="open the URL that chessreg printed, which includes a token", headers=HEADERS)
        if not is_local_host(request.host, host) or not is_own_origin(request.headers.get("Origin"), request.host):
            raise web.HTTPForbidden(text="only the page served here may send requests", headers=HEADERS)
        return await handler(request)

    class GuardedServer(Server):
        """textual-serve below the token. Its page uses the host name and port of the browser's request."""

        async def _make_app(self) -> web.Application:
            outer = web.Application(middlewares=[guard])
            outer.add_subapp(f"/{token}", await super()._make_app())
            outer.on_response_prepare.append(add_headers)
            return outer

        async def on_startup(self, app: web.Application) -> None:
            click.echo(f"{url}\nserves the terminal UI until Ctrl-C; anyone with this URL can use it")

        async def handle_index(self, request: web.Request) -> web.Response:
            size = request.query.get("fontsize", "")
            below = f"{request.scheme}://{request.host}/{token}"
            context = {
                "font_size": int(size) if size.isascii() and size.isdigit() and len(size) < 4 else 16,
                "app_websocket_url": f"ws{below.removeprefix('http')}/ws",
                "config": {"static": {"url": f"{below}/static/"}},
                "application": {"name": self.title},
            }
            page = aiohttp_jinja2.render_template("app_index.html", request, context)
            text = (page.text or "").replace("</head>", f"<title>{title}</title></head>", 1)
            page.text = text.replace("</body>", f"{FOCUS_SCRIPT}</body>")
            return page

        async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
            if "Origin" not in request.headers:  # browsers always send Origin when opening a socket
                raise web.HTTPForbidden(text="only the page served here may connect", headers=HEADERS)
            return await super().handle_websocket(request)

        def initialize_logging(self) -> None:
            """Disable request logging, because paths contain the token."""

    title = html.escape(f"chessreg · {show.shorten_place(mask(registry))}")

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(HEADERS)

    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not an address"
        raise BadInputError(f"cannot listen on {host}:{port}: {reason}", "choose another --host or --port") from error
    if not is_loopback(host):
        tunnel = f"ssh -L {port}:localhost:{port} {socket.gethostname()}"
        click.echo(f"http is not encrypted: anyone on the network path can read the URL; safer: {tunnel}", err=True)
    os.environ |= child.build_child_environment() | {
        "CHESSREG_REGISTRY": registry,
        "CHESSREG_STORE": str(store_path),
    }  # a URL may contain a password
    command = child.build_python_command("chessreg.cli", "tui", *options)
    GuardedServer(shlex.join(command), host=host, port=port, title="chessreg").serve()


def is_loopback(name: str) -> bool:
    """Return whether a host's name or address is reachable from this machine only.

    >>> [is_loopback(name) for name in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "", "box")]
    [True, True, True, False, False, False]
    """
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_local_host(requested_host: str, host: str) -> bool:
    """Return whether the Host of a request names this machine, as protection against DNS rebinding. On a loopback
    address, accept loopback names with any port, because tunnels change the port. Otherwise, accept any IP address and
    this machine's names.

    >>> [is_local_host(asked, "127.0.0.1") for asked in ("127.0.0.1:8000", "localhost:9", "[::1]:8000", "x:8000", "")]
    [True, True, True, False, False]
    >>> [is_local_host(asked, "box") for asked in ("box:8000", "10.0.0.5:8000", "evil.example:8000")]
    [True, True, False]
    """
    try:
        name = urlsplit(f"//{requested_host}").hostname or ""
    except ValueError:
        return False
    if is_loopback(host) or is_loopback(name):
        return is_loopback(name)
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return name in {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}


def is_own_origin(origin: str | None, requested_host: str) -> bool:
    """Return whether a request comes from our page, by its Origin. Browsers omit Origin if the user opens the URL.

    >>> origins = ("http://127.0.0.1:8000", "http://evil.example", None)
    >>> [is_own_origin(origin, "127.0.0.1:8000") for origin in origins]
    [True, False, True]
    """
    return origin is None or origin in (f"http://{requested_host}", f"https://{requested_host}")
