"""The selection of games or positions of a dataset: a pure function of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from chessreg.errors import BadInputError
from chessreg.games.datasets.dataset import convert_column_to_numpy
from chessreg.runs.spec import DatasetRef, ExecutionOptions, Plies, Spec

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.games.datasets.dataset import Games
    from chessreg.games.datasets.positions import Positions
    from chessreg.runs.inputs import Inputs


class GameSelection(Spec):
    """The settings that select games, for kinds that read a dataset."""

    dataset: DatasetRef = Field(description="games: a dataset, or one part of it (NAME:PART)")
    games: int = Field(10_000, ge=1, description="at most this many games, the first in file order")
    min_plies: Plies = Field(0, ge=0, description="leave out shorter games")
    keep_duplicates: bool = Field(False, description="also use games whose moves occurred before in the file")


class GameBatches(ExecutionOptions):
    """The execution options of kinds that run a model on games."""

    batch_games: int = Field(32, ge=1, description="games in one forward pass")

    @property
    def games_per_encoding(self) -> int:
        """Games that are encoded together, and sorted by length into batches."""
        return 16 * self.batch_games


def select_games(spec: GameSelection, inputs: Inputs, field: str = "dataset") -> tuple[Games, np.ndarray]:
    """Return the dataset, and the rows of the selected games in it, int64 [n], in file order.

    `field` is the name under which the run records this input. Raises BadInputError if no game is selected.
    """
    games, part = inputs.dataset(spec.dataset, field)
    places = games.rows(part)
    table = games.table(["plies", "duplicate"])
    is_long = convert_column_to_numpy(table.column("plies"))[places] >= max(spec.min_plies, 1)
    if not spec.keep_duplicates:
        is_long &= ~convert_column_to_numpy(table.column("duplicate"))[places]
    selected_places = places[is_long][: spec.games]
    note_game_shortage(spec, inputs, int(is_long.sum()))
    if not len(selected_places):
        raise BadInputError(
            f"no game of {format_dataset(inputs, spec.dataset)} has {spec.min_plies} plies", "lower --min-plies"
        )
    return games, selected_places


def select_items(spec: GameSelection, inputs: Inputs, field: str = "dataset") -> tuple[Games | Positions, np.ndarray]:
    """Return the same as `select_games`, also for a dataset of positions.

    There `games` counts positions, `min_plies` the plies before each, and a duplicate is a position that occurred
    before in the file.
    """
    items, part = inputs.items(spec.dataset, field)
    if items.content == "games":
        return select_games(spec, inputs, field)
    places = items.rows(part)
    is_late = convert_column_to_numpy(items.table(["ply"]).column("ply"))[places] >= spec.min_plies
    if not spec.keep_duplicates:
        is_first = np.zeros(items.total, bool)
        is_first[np.unique(items.position_hashes, return_index=True)[1]] = True
        is_late &= is_first[places]
    selected_places = places[is_late][: spec.games]
    note_game_shortage(spec, inputs, int(is_late.sum()))
    if not len(selected_places):
        raise BadInputError(
            f"no position of {format_dataset(inputs, spec.dataset)} comes after {spec.min_plies} plies",
            "lower --min-plies",
        )
    return items, selected_places


def note_game_shortage(spec: GameSelection, inputs: Inputs, available_games: int) -> None:
    """Add a remark if the setting `games` exceeds `available_games`.

    A plain `GameSelection` is skipped, because it holds the settings of another run, such as a cache.
    """
    if type(spec) is not GameSelection:
        inputs.note_shortage(spec, "games", available_games)


def format_dataset(inputs: Inputs, dataset: str) -> str:
    """Return the name that a user types for a dataset, or a part of it, that a spec refers to."""
    from chessreg.entities.run import format_typed_dataset

    with inputs.database.read() as sql:
        return format_typed_dataset(sql, dataset)


def extract_selection(settings: Mapping[str, Any]) -> GameSelection:
    """Return the settings of a spec that select games."""
    return GameSelection(**{name: value for name, value in settings.items() if name in GameSelection.model_fields})


def select_cached_items(inputs: Inputs, reference: str) -> tuple[Games | Positions, np.ndarray]:
    """Return the dataset of a cache run, and the rows of its games or positions in it."""
    return select_items(extract_selection(inputs.run(reference, "cache").spec), inputs)


def build_turn_prompts(
    encoding: Encoding, games: Games, places: np.ndarray, side: str
) -> list[dict[int, tuple[int, ...]]]:
    """Return the prompts of one side's turns in the games at these rows: one dict per game, plies played → tokens,
    ascending.

    `side` is white or black. A turn needs a following move of the game.
    """
    tokens = encoding.games(games, places)
    sites = encoding.sites(f"{side}-turns", tokens)
    plies = convert_column_to_numpy(games.take(places, ["plies"])["plies"])
    prompts: list[dict[int, tuple[int, ...]]] = [{} for _ in places]
    for item, token, ply in zip(sites.item.tolist(), sites.token.tolist(), sites.ply.tolist(), strict=True):
        game = int(tokens.source[item])
        if ply < plies[game]:
            prompts[game][ply] = tuple(tokens.item(item)[: token + 1].tolist())
    return prompts
