"""Metrics of imported SAEs on the bundled games, at every token: L0, explained variance, loss recovered and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import chess
import numpy as np

from chessreg.errors import DivergedError, NotFoundError
from chessreg.games.boards.moves import pack_moves
from chessreg.games.datasets.movetext import number_sans
from chessreg.models.importers.game_check import MAX_WORK, read_sample_games

if TYPE_CHECKING:
    import torch

    from chessreg.experiments.sae.data import SaeOrigin
    from chessreg.experiments.sae.measuring import SaeMeasurement
    from chessreg.models.language_model import LanguageModel
    from chessreg.models.sparse_autoencoders import SparseAutoencoder
    from chessreg.registry import tables
    from chessreg.runs.task import Task

SITES = "all"
BATCH_GAMES = 8
MIN_GAMES = 4  # a model that cannot read these games in MAX_WORK is not measured
BUNDLED_GAMES = "bundled"


class SampleGames:
    """The bundled games with the interface of a dataset of games, as far as encodings use it."""

    content = "games"

    def moves(self, places: Sequence[int] | np.ndarray) -> list[bytes]:
        """Return the packed moves of games."""
        return [pack_moves(read_sample_games()[place]) for place in places]

    def texts(self, places: Sequence[int] | np.ndarray) -> list[str]:
        """Return the PGN-character texts of games."""
        return [number_sans(list_sans(read_sample_games()[place])) for place in places]


def list_sans(moves: Sequence[chess.Move]) -> list[str]:
    """Return the moves of a game in SAN."""
    board = chess.Board()
    return [board.san_and_push(move) for move in moves]


def measure_imported_saes(
    task: Task[Any, Any],
    checkpoint: str,
    row: tables.Checkpoint,
    saes: Mapping[int, tuple[str, SparseAutoencoder]],
) -> dict[int, SaeMeasurement]:
    """Return the metrics of each unit's SAE on the bundled games: unit → hook point and SAE.

    Nothing is measured if the model's bytes are not in the store, if it is too large to read the games in seconds, or
    if its activations are not finite. Intervals are from resampled games.
    """
    from chessreg.experiments.sae.data import SaeOrigin
    from chessreg.experiments.sae.measuring import measure_saes

    try:
        model = task.model(checkpoint)
    except NotFoundError:
        return {}
    games: Any = SampleGames()
    points = tuple(dict.fromkeys(point for point, _ in saes.values()))
    places = np.arange(len(read_sample_games()))
    origin = SaeOrigin(
        checkpoint, row, points, games, places, games, places, BUNDLED_GAMES, SITES, "post-ply", 0, None, None, False
    )  # fmt: skip
    tokens = len(origin.encode_items(model.encoding, games, places).tokens.ids)
    parameters = sum(one.numel() for one in model.network.parameters())
    count = min(len(places), len(places) * MAX_WORK // max(parameters * tokens, 1))
    if count < MIN_GAMES:
        return {}
    origin = replace(origin, held_places=places[:count])
    try:
        mean_residuals = compute_mean_residuals(model, origin)
        return measure_saes(model, origin, saes, mean_residuals, 0, BATCH_GAMES, task.spec.seed)
    except DivergedError:
        return {}


def compute_mean_residuals(model: LanguageModel, origin: SaeOrigin) -> dict[str, torch.Tensor]:
    """Return hook point → mean residual float32 [d_model] over the tokens of the held-out games."""
    import torch

    from chessreg.experiments.sae.measuring import iterate_measured_batches

    encoded_games = origin.encode_items(model.encoding, origin.held_items, origin.held_places)
    sums = {point: torch.zeros(model.d_model, dtype=torch.float64) for point in origin.points}
    residuals: dict[str, torch.Tensor] = {}
    for items in iterate_measured_batches(encoded_games, BATCH_GAMES, model.block_size):
        lengths = np.minimum(np.diff(encoded_games.tokens.offsets)[items], model.block_size)
        tokens = torch.from_numpy(encoded_games.pad_tokens(items, int(lengths.max())))
        row, sites = encoded_games.find_item_sites(items)
        with torch.inference_mode(), model.watch_hook_points(set(origin.points), residuals.__setitem__):
            model.logits(tokens)
        for point, residual in residuals.items():
            sums[point] += (
                residual[torch.from_numpy(row), torch.from_numpy(encoded_games.sites.token[sites])].double().sum(0)
            )
    return {point: (total / len(encoded_games.sites)).float() for point, total in sums.items()}
