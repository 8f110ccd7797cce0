"""Fetched from the hub, then imported like a file of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chessreg.entities import register
from chessreg.entities.adding import OnProgress, add_dataset, silent
from chessreg.entities.checkpoint import import_checkpoint
from chessreg.registry.database import Database

if TYPE_CHECKING:
    from chessreg.entities.adding import Added
    from chessreg.entities.checkpoint import Registered
    from chessreg.models.hub import HubSource
    from store import Store


def fetch(
    database: Database,
    store: Store,
    source: HubSource,
    *,
    file: str | None = None,
    revision: str = "main",
    endpoint: str | None = None,
    name: str | None = None,
    keep: bool = False,
    on_progress: OnProgress = silent,
) -> Registered | Added:
    """Download a source and register what it holds: a checkpoint, or a dataset of games.

    A download that breaks off stays in the store's `downloads` folder and is gone on with the next time; once it is
    registered the file is removed, unless `keep`. Its address, commit and SHA-256 are kept with the checkpoint or
    dataset. Raises what downloading and importing raise; then nothing is registered.
    """
    from chessreg.models import hub

    def shown(done: int, total: int | None) -> None:
        on_progress(done / total if total else 0.0, f"{done >> 20:,} MiB")

    register.prepare(database, name)
    noun = "checkpoint" if source.holds == "checkpoint" else "dataset"
    wanted = name or (source.called if file in (None, source.file) else None)
    arrived = hub.fetch(
        source, store.root / "downloads", file=file, revision=revision, endpoint=endpoint, on_progress=shown
    )
    made: Registered | Added
    if noun == "checkpoint":
        made = import_checkpoint(database, store, arrived.path, name=wanted, fetched=arrived.as_json())
    else:
        made = add_dataset(
            database,
            store,
            [arrived.path],
            name=wanted,
            rating_scale="lichess",
            detail={"fetched": arrived.as_json()},
            on_progress=on_progress,
        )
    if not keep:
        arrived.path.unlink()
    return made
