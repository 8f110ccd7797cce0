"""What the lab is asked: a position that somebody gives, or a state of an edit run; and of which models and tools."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from sqlalchemy import select

from chessreg.errors import BadInputError, ChessregError
from chessreg.experiments.edit.spec import EditSpec
from chessreg.games.typed import typed_moves
from chessreg.registry import names, tables
from chessreg.registry.identity import short

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class Position(BaseModel):
    """A position by its moves, and what is done to the model in it.

    With a vector its direction is added; without one the probe's direction for the piece that the clean model moves is
    subtracted, as kind `edit` does it. A probe is read on every layer that it has, also where a vector is added.
    References are names, ids or recipes. Without layers the probe's best one is edited, or all that the vector has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    checkpoint: str
    moves: str = ""  # SAN or UCI, or a FEN near the start
    probe: str | None = None
    vector: str | None = None
    layers: tuple[int, ...] = ()
    scale: float = 1.5
    positions: Literal["all", "last"] = "last"

    @classmethod
    def of(cls, **settings: Any) -> Position:
        """A question. Raises BadInputError for what cannot be asked."""
        try:
            return cls(**settings)
        except ValidationError as error:
            cause = (error.errors()[0].get("ctx") or {}).get("error")
            raise cause if isinstance(cause, ChessregError) else BadInputError(str(error)) from None

    @field_validator("moves")
    @classmethod
    def _one_spelling(cls, moves: str) -> str:
        return " ".join(typed_moves(moves))

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.layers and not (self.probe or self.vector):
            raise BadInputError("layers without a probe or a vector to edit them with", "give --probe or --vector")
        return self

    def spec(self) -> EditSpec:
        """The edit run that stores what a probe's edit shows here. Raises BadInputError for a vector's."""
        if self.probe is None or self.vector is not None:
            raise BadInputError("an edit run is of a probe's edit", "vectors are stored by chessreg run play")
        if not self.moves:
            raise BadInputError("the initial position cannot be stored", "make a move first")
        return EditSpec(
            checkpoint=self.checkpoint,
            probe=self.probe,
            moves=self.moves,
            layers=self.layers,
            scale=self.scale,
            token_mask=self.positions,
            king="include",
        )

    @property
    def stored_by(self) -> list[str]:
        """The words behind `chessreg` that store the edit as a run. Raises what `spec` raises."""
        spec = self.spec()
        words = ["run", "edit", "--checkpoint", spec.checkpoint, "--probe", spec.probe, "--moves", spec.moves]
        words += ["--layers", ",".join(map(str, spec.layers))] if spec.layers else []
        return [*words, "--scale", f"{spec.scale:g}", "--token-mask", spec.token_mask, "--king", spec.king]

    @property
    def command(self) -> list[str]:
        """The words behind `chessreg` that show the same."""
        words = ["lab", "--checkpoint", self.checkpoint, "--moves", self.moves]
        for name, value in (("--probe", self.probe), ("--vector", self.vector)):
            words += [name, value] if value else []
        words += ["--layers", ",".join(map(str, self.layers))] if self.layers else []
        words += ["--scale", f"{self.scale:g}"]
        return words if self.positions == "last" else [*words, "--positions", self.positions]


class StoredState(BaseModel):
    """A state of an edit run under one of its conditions (the first edit, where none is named)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str  # its id in hexadecimal digits
    unit: int
    condition: str | None = None


# -- what can be asked about --------------------------------------------------------------------------------


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
