"""Splits: named parts of a dataset, cut by a seeded hash of the moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import select

from chessreg.entities import register
from chessreg.entities.datasets import folder_of, opened
from chessreg.errors import BadInputError
from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.registry.tables.types import utc_now

if TYPE_CHECKING:
    from store import Store


@dataclass(frozen=True)
class Overlap:
    """Two parts of a dataset, the games (or positions) that are in both, and how many different ones: move lists, or
    boards, which may recur in positions of different games."""

    part: str
    other: str
    games: int
    move_lists: int


@dataclass(frozen=True)
class SplitReport:
    """The parts asked for as rows, the games that are in none of them, and every pair of parts with what they share."""

    dataset_id: UUID
    parts: list[tables.Split]
    created: int
    outside: int
    overlaps: list[Overlap]
    content: str = "games"


def split_dataset(database: Database, store: Store, reference: str, parts: str, seed: int) -> SplitReport:
    """Cut a dataset into parts (`train=0.5,test=0.5`) by a seeded hash of the moves (of positions: of their game).

    Equal move lists share a part, and so do all positions of a game: nothing is in two parts of one split. A part that
    exists with the same bounds is left alone; one with other bounds raises BadInputError. `overlaps` counts, over all
    parts of the dataset, what the parts asked for share with each other and with earlier ones.
    """
    from chessreg.games.positions import Positions
    from chessreg.games.split import Part, parse_parts

    wanted = parse_parts(parts, seed)
    row, folder = folder_of(database, store, reference)
    file = opened(row, folder)
    hashes = file.hashes
    with database.write() as session:
        register.one_at_a_time(session)
        existing = session.scalars(select(tables.Split).where(tables.Split.dataset_id == row.id)).all()
        recorded = {part.name: part for part in existing}
        for name, part in wanted.items():
            old = recorded.get(name)
            if old is not None and (old.seed, old.low, old.high) != (part.seed, part.low, part.high):
                raise BadInputError(
                    f"dataset {reference} has a part {name!r} already: seed {old.seed}, {old.low:g} to {old.high:g}",
                    f"what was run on it must stay true: call the new part {name}-{seed}",
                )
            if old is None:
                games = int(part.contains(hashes).sum())
                made = tables.Split(dataset_id=row.id, name=name, created_at=utc_now(), games=games, **asdict(part))
                session.add(made)
                recorded[name] = made
        session.flush()
        session.expunge_all()
    every = {name: Part(part.seed, part.low, part.high) for name, part in recorded.items()}
    return SplitReport(
        dataset_id=row.id,
        parts=[recorded[name] for name in wanted],
        created=len(recorded) - len(existing),
        outside=int((~inside_any([part.contains(hashes) for part in wanted.values()])).sum()),
        overlaps=overlaps(hashes, file.position_hashes if isinstance(file, Positions) else hashes, every, list(wanted)),
        content=file.content,
    )


def inside_any(masks: Sequence[Any]) -> Any:
    """bool [n]: in any of the masks bool [n]."""
    import numpy as np

    return np.logical_or.reduce(masks)


def overlaps(hashes: Any, things: Any, parts: dict[str, Any], wanted: Sequence[str]) -> list[Overlap]:
    """What each wanted part shares with every other part: rows by the hashes uint64 [n] that parts are cut by, and
    different ones by the hashes `things` uint64 [n] of their moves or positions."""
    import numpy as np

    inside = {name: part.contains(hashes) for name, part in parts.items()}
    lists = {name: np.unique(things[mask]) for name, mask in inside.items()}
    found = []
    for place, name in enumerate(wanted):
        for other in [*wanted[place + 1 :], *(o for o in parts if o not in wanted)]:
            shared = np.intersect1d(lists[name], lists[other], assume_unique=True)
            found.append(Overlap(name, other, int((inside[name] & inside[other]).sum()), len(shared)))
    return found
