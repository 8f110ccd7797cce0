"""Sparse autoencoders. A kind that fits them emits rows of the table `sae`; nothing else is needed to list them."""

from __future__ import annotations

from chessreg.entities.base import Entity
from chessreg.entities.display import Column, Option
from chessreg.registry import tables


class Saes(Entity):
    """Sparse autoencoders: list, show."""

    table = tables.Sae
    plural = "SAEs"
    place = 60
    columns = (
        Column("run_id", "run"), Column("name", "name"), Column("checkpoint", "model"),
        Column("hook_point", "hook point"), Column("layer", "layer"), Column("architecture", "architecture"),
        Column("features", "features"),
    )  # fmt: skip
    overview_columns = (*columns[2:], Column("tags", "tags"))
    none_yet = "no SAEs: this version has a place for them, but no kind of run makes them"
    hidden = ("detail", "checkpoint_id")
    example = "skill-sae"
    show_options = (Option("layer", "Which of the run's SAEs.", int),)
