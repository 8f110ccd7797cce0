"""What the lab can be asked about: checkpoints with weights here, and the piece probes and vectors of each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import select

from chessreg.registry import names, tables
from chessreg.registry.identity import short

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


@dataclass(frozen=True)
class Tool:
    """A run whose directions edit: probes of pieces, or vectors. Layers are those that it has."""

    kind: str  # probe, vector
    name: str
    run_id: UUID
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """A checkpoint and the tools fitted on it, probes first, newest first."""

    name: str
    checkpoint_id: UUID
    tools: tuple[Tool, ...] = field(default=())


def choices(session: Session) -> list[Choice]:
    """Checkpoints, those with most tools first, then the newest. Those without weights are left out."""
    tools: dict[UUID, list[Tool]] = defaultdict(list)
    called = names.names(session, "run")
    for kind, table in (("probe", tables.Probe), ("vector", tables.Vector)):
        found = select(table.run_id, table.checkpoint_id, table.layer).join(tables.Run, tables.Run.id == table.run_id)
        found = found.where(tables.Run.completed_at.is_not(None))
        if kind == "probe":
            found = found.where(tables.Probe.label == "piece", tables.Probe.classes == 13)
        layers: dict[tuple[UUID, UUID], list[int]] = defaultdict(list)
        for run_id, checkpoint_id, layer in session.execute(
            found.order_by(tables.Run.created_at.desc(), tables.Run.id, table.layer)
        ):
            if checkpoint_id is not None:
                layers[run_id, checkpoint_id].append(layer)
        for (run_id, checkpoint_id), of in layers.items():
            tools[checkpoint_id].append(Tool(kind, called.get(run_id) or short(run_id), run_id, tuple(of)))
    models = names.names(session, "checkpoint")
    checkpoint = tables.Checkpoint
    ids = session.scalars(
        select(checkpoint.id)
        .where(checkpoint.source_format != "external")
        .order_by(checkpoint.created_at.desc(), checkpoint.id)
    )
    made = [Choice(models.get(id) or short(id), id, tuple(tools[id])) for id in ids]
    return sorted(made, key=lambda choice: -len(choice.tools))
