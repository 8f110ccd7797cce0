"""Which games of a dataset an experiment looks at: a pure function of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from chessreg.errors import BadInputError
from chessreg.runs.spec import DatasetRef, Spec

if TYPE_CHECKING:
    from chessreg.games.dataset import Games
    from chessreg.runs.inputs import Inputs


class GameSelection(Spec):
    """The settings that name games, for kinds that read a dataset."""

    dataset: DatasetRef = Field(description="games: a dataset, or one part of it (NAME:PART)")
    games: int = Field(10_000, ge=1, description="at most this many games, the first in file order")
    min_plies: int = Field(0, ge=0, description="leave out shorter games")
    keep_duplicates: bool = Field(False, description="also games whose moves occurred before in the file")


def select(spec: GameSelection, inputs: Inputs) -> tuple[Games, np.ndarray]:
    """The dataset, and the places of the selected games in it, int64 [n], in file order."""
    games, part = inputs.dataset(spec.dataset)
    places = games.rows(part)
    table = games.table(["plies", "duplicate"])
    keep = table.column("plies").to_numpy()[places] >= max(spec.min_plies, 1)
    if not spec.keep_duplicates:
        keep &= ~table.column("duplicate").to_numpy(zero_copy_only=False)[places]
    chosen = places[keep][: spec.games]
    if not len(chosen):
        raise BadInputError(f"no game of {spec.dataset[:20]}… has {spec.min_plies} plies", "lower --min-plies")
    return games, chosen


def selection_of(settings: Mapping[str, Any]) -> GameSelection:
    """Of a spec's settings those that name games."""
    return GameSelection(**{name: value for name, value in settings.items() if name in GameSelection.model_fields})


def cached_games(inputs: Inputs, recipe: str) -> tuple[Games, np.ndarray]:
    """The dataset of a cache run, and the places of its games in it."""
    return select(selection_of(inputs.run(recipe, "cache").spec), inputs)
