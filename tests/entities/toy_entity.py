"""A complete noun in one module, as a package provides it: tuned lenses, one per layer, in a custom table."""

from uuid import UUID

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from chessreg.entities.base import Entity
from chessreg.entities.display import Column, Option
from chessreg.registry.tables.types import Base, FiniteFloat, Noun


class Lens(Base):
    """A linear map from a block's output to the logits."""

    __tablename__ = "lens"
    __noun__ = Noun("lens")
    __compared__ = ("artifact",)
    run_id: Mapped[UUID] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    unit: Mapped[int] = mapped_column(primary_key=True)
    artifact: Mapped[str] = mapped_column(ForeignKey("artifact.digest"), index=True)
    layer: Mapped[int]
    hook_point: Mapped[str] = mapped_column(String(128))
    loss: Mapped[float] = mapped_column(FiniteFloat)


class Lenses(Entity):
    """Tuned lenses: list, show."""

    table = Lens
    plural = "lenses"
    columns = (Column("run_id", "run"), Column("name", "name"), Column("layer", "layer"), Column("loss", "loss"))
    none_yet = "no lenses yet: chessreg run lens --checkpoint MODEL"
    example = "mine --layer 3"
    show_options = (Option("layer", "Layer of the lens. Left out: the run's only lens.", int),)
