"""`chessreg init`: the registry and store of a folder."""

from __future__ import annotations

import click

from chessreg.cli.base import Home, emit, json_option, pass_home


@click.command()
@json_option
@pass_home
def init(home: Home) -> None:
    """Make the registry and the store of this folder; what is there already stays as it is.

    Without --registry and --store they lie in ./.chessreg/; with --registry alone the store lies beside its file.
    The first command that needs one makes it too.
    """
    from store import Store

    own = home.place.path is not None and home.place.path.parent.name == ".chessreg"
    new = own and home.place.path is not None and not home.place.path.parent.exists()
    database = home.database(create=True)
    if new and home.place.path is not None:
        (home.place.path.parent / ".gitignore").write_text("*\n")  # results are no source code
    store = Store.create(home.store_path)
    emit(home, {"registry": home.place.shown, "store": str(store.root), "data_version": database.data_version()})
