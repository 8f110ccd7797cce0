"""`chessreg mcp`: the registry as tools for AI agents."""

from __future__ import annotations

import click

import chessreg
from chessreg.cli.base import Home, pass_home
from chessreg.errors import BadInputError
from chessreg.plugins import install_command


@click.command()
@click.option(
    "--write",
    is_flag=True,
    help="Allow changes: also offer a tool that sets names, tags and notes. Left out: read-only.",
)
@pass_home
def mcp(home: Home, write: bool) -> None:
    """Serve the registry to an AI agent over the Model Context Protocol, on stdin and stdout.

    The tools list, query, compare, trace and draw. Without --write nothing is written. An answer has at most 20,000
    characters. The package `mcp` is needed (`pip install mcp`).

    \b
    chessreg mcp
    claude mcp add chessreg -- chessreg --registry /path/of/.chessreg/registry.db mcp
    """
    try:
        from chessreg.agents.server import make_server
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise BadInputError("the package mcp is not installed", install_command("mcp")) from None
    with chessreg.open(home.registry_reference, home.store_path, read_only=not write) as reg:
        make_server(reg).run()
