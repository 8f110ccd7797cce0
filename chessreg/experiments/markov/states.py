"""The model's states after prefixes of games: computed for a group of classes at a time, stored, and read back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import select

from chessreg.errors import DAMAGE_ERRORS, BadInputError, ChessregError, get_first_line, reraise_lack_of_memory
from chessreg.experiments.cache import compute_activations
from chessreg.experiments.markov.classes import READ_SITES, Classes
from chessreg.experiments.markov.spec import MarkovOptions, MarkovSpec
from chessreg.experiments.settings.sites import EncodedGames
from chessreg.registry import tables
from chessreg.runs.inputs import Inputs

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games
    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.task import Task

PARTNER_NAMES = ("same_last", "nearest")
STATES_FILE = "states.safetensors"


def store_states(
    task: Task[MarkovSpec, MarkovOptions],
    model: LanguageModel,
    points: list[str],
    games: Games,
    classes: Classes,
    low: int,
    high: int,
) -> None:
    """Store the states that classes low to high (exclusive) need, as one artifact of unit `low`.

    One forward pass reads all hook points. Raises DivergedError for NaN or infinite activations.
    """
    from safetensors.numpy import save_file

    prefixes = classes.prefixes.take(classes.list_needed_prefixes(low, high))
    places, place_indices = np.unique(prefixes.game, return_inverse=True)
    encoded_games = EncodedGames.from_items(model.encoding, model.block_size, games, places, READ_SITES)
    stride = int(encoded_games.sites.ply.max()) + 1
    encoded_games = encoded_games.take(
        np.isin(encoded_games.game * stride + encoded_games.sites.ply, place_indices * stride + prefixes.ply)
    )
    states = {point: np.empty((len(encoded_games.sites), model.d_model), np.float32) for point in points}
    width = encoded_games.widths
    done_count = 0
    for items in encoded_games.iterate_batches(np.argsort(width, kind="stable"), task.options.batch_games):
        row, sites = encoded_games.find_item_sites(items)
        values = compute_activations(model, points, encoded_games, items, row, sites, "float32")
        for point, value in zip(points, values, strict=True):
            states[point][sites] = value
        done_count += len(items)
        part = low + (high - low) * done_count / len(width)
        task.progress(min((part - task.units[0]) / len(task.units), 1.0), f"{len(encoded_games.sites):,} states")
    index = {"game": places[encoded_games.game].astype(np.int64), "ply": encoded_games.sites.ply.astype(np.int64)}
    with task.output(f"states-{low}-{high}", low, "states") as folder:
        save_file({**states, **index}, folder / STATES_FILE)


class StoredStates:
    """The states that the units of a run have stored, in the order of its classes' members."""

    def __init__(self, task: Task[MarkovSpec, MarkovOptions], classes: Classes) -> None:
        """Locate the states of all members and partners. Raises ChessregError if the states of a class are missing."""
        inputs = Inputs(task.inputs.database, task.store)  # a new one: a run's own outputs are not among its inputs
        output = tables.Output
        with task.inputs.database.read() as session:
            rows = session.execute(
                select(output.name, output.digest).where(output.run_id == task.run_id).order_by(output.unit)
            ).all()
        reference = f"run:{task.resolved.spec_hash}"
        self._paths = [
            inputs.locate_bytes(name, f"{reference}/{name}", digest, task.run_id).path / STATES_FILE
            for name, digest in rows
        ]
        prefixes, stride = classes.prefixes, int(classes.prefixes.ply.max()) + 1
        keys = [self._read("game", path) * stride + self._read("ply", path) for path in self._paths]
        every = np.concatenate(keys) if keys else np.zeros(0, np.int64)
        order = np.argsort(every, kind="stable")
        self._rows: dict[str, np.ndarray] = {}
        for name, prefix_numbers in {"member": classes.member, **classes.compared_prefixes}.items():
            key = prefixes.game[prefix_numbers] * stride + prefixes.ply[prefix_numbers]
            place = np.minimum(np.searchsorted(every[order], key), max(len(every) - 1, 0))
            if not len(every) or (every[order][place] != key)[prefix_numbers >= 0].any():
                raise ChessregError("the store lacks states of some positions", "chessreg doctor --digests")
            self._rows[name] = np.where(prefix_numbers >= 0, order[place], -1)

    @staticmethod
    def _read(name: str, path: Path) -> np.ndarray:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "numpy") as file:
                values: np.ndarray = file.get_tensor(name)
        except (OSError, SafetensorError, *DAMAGE_ERRORS) as error:  # type: ignore[misc]
            reraise_lack_of_memory(error)
            raise BadInputError(f"{path} is damaged: {get_first_line(error)}", "chessreg doctor --digests") from error
        return values

    def read_hook_point(self, point: str) -> dict[str, np.ndarray]:
        """Return the states float32 [members, d_model] at a hook point, by name: of the members and of each control's
        partners.

        A missing partner is NaN.
        """
        every = np.concatenate([self._read(point, path) for path in self._paths])
        states = {}
        for name, rows in self._rows.items():
            states[name] = every[rows]
            states[name][rows < 0] = np.nan
        return states
