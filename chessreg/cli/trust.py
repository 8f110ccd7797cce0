"""`chessreg trust`: which files with kinds of experiment may be loaded on this machine."""

from __future__ import annotations

from dataclasses import asdict

import click

from chessreg.cli.base import Home, emit, json_option, pass_home


@click.command()
@click.argument("reference", metavar="FILE|DIGEST", required=False)
@click.option("--list", "list_", is_flag=True, help="List what is trusted.")
@click.option("--remove", metavar="FILE|DIGEST", help="Trust this no more.")
@json_option
@pass_home
def trust(home: Home, reference: str | None, list_: bool, remove: str | None) -> None:
    """Trust a file with a kind of experiment: it may then be loaded where a registry names it.

    Such a file is code. One that you name yourself (`chessreg run ./my_kind.py`) is trusted by that; one that came with
    another's registry is not, until you have read it and say so. What is trusted are its bytes (their sha256), for you
    and on this machine: a changed file is another. It is kept in your settings folder, in no registry.

    \b
    Example: chessreg trust ./my_kind.py
             chessreg trust --list
             chessreg trust --remove ./my_kind.py
    """
    from chessreg.runs import trust as trusts

    if sum((reference is not None, list_, remove is not None)) != 1:
        raise click.UsageError("give a FILE or a DIGEST, or --list, or --remove")
    if list_:
        emit(home, [asdict(row) for row in trusts.trusted()], ["digest", "path", "since"])
    elif remove is not None:
        gone = trusts.remove(remove)
        emit(home, [asdict(row) for row in gone], ["digest", "path", "since"])
    elif reference is not None:
        emit(home, asdict(trusts.trust(reference)))
