"""`chessreg fetch`: others' models and games from the Hugging Face hub."""

from __future__ import annotations

import click

from chessreg.cli.base import Home, emit, json_option, pass_home
from chessreg.models.hub import SOURCES


@click.command()
@click.argument("source", required=False, metavar="NAME")
@click.option("--file", help="Another file of the same repository.")
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit of the repository.")
@click.option("--endpoint", help="A mirror of the hub.  [default: HF_ENDPOINT, else https://huggingface.co]")
@click.option("--name", help="What to call it.  [default: NAME with a dash]")
@click.option("--keep", is_flag=True, help="Keep the downloaded file in the store.")
@json_option
@pass_home
def fetch(
    home: Home,
    source: str | None,
    file: str | None,
    revision: str,
    endpoint: str | None,
    name: str | None,
    keep: bool,
) -> None:
    """Download a model or games and import them; without NAME, list what can be fetched.

    The SHA-256 that the hub publishes is checked and kept. A download that broke off is gone on with.

    \b
    Example: chessreg fetch karvonen/8layers
    """
    from chessreg.cli import checkpoint, dataset
    from chessreg.cli.progress import progress_line
    from chessreg.entities import fetching
    from chessreg.entities.adding import Added
    from chessreg.models.hub import source_named

    if source is None:
        rows = [
            {"name": s.name, "holds": s.holds, "repository": s.repository, "file": s.file, "about": s.about}
            for s in SOURCES.values()
        ]
        emit(home, rows, ["name", "repository", "file", "about"])
        return
    found, session = source_named(source), home.session()
    with progress_line(found.name, quiet=home.json) as on_progress:
        made = fetching.fetch(
            session.database,
            session.store,
            found,
            file=file,
            revision=revision,
            endpoint=endpoint,
            name=name,
            keep=keep,
            on_progress=on_progress,
        )
    if isinstance(made, Added):
        dataset.tell(home, made)
    else:
        checkpoint.tell(home, made)
