"""The registry itself: who it is, and how often it was written."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, Integer
from sqlalchemy.orm import Mapped, mapped_column

from chessreg.registry.tables.types import Base, UtcDateTime, check


class RegistryState(Base):
    """One row. `data_version` rises in every transaction that writes, so that a snapshot knows when it is old."""

    __tablename__ = "registry_state"
    __table_args__ = (check("one_row", "id = 1"),)
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    registry_id: Mapped[UUID]
    data_version: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
