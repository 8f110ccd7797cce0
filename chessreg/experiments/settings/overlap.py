"""Leakage, measured: the overlap of evaluated games with the games behind a model, probe or vector.

overlap.refuse_overlap(inputs, spec.checkpoint, games, places, spec.allow_overlap) # in Kind.check: whole games found =
overlap.measure_overlap(inputs, spec.checkpoint, EvaluatedGames.from_items(games, places)) # in Kind.run
detail["overlap"] = {"checkpoint": found.columns()}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.settings.games import extract_selection, select_items
from chessreg.games.boards.moves import HashSet, compute_boards_after, hash_move_lists, hash_positions
from chessreg.games.datasets import labels
from chessreg.registry import tables

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games
    from chessreg.games.datasets.positions import Positions
    from chessreg.runs.inputs import Inputs

OPENING_PLIES = 20  # Karvonen's uniqueness check compares the first 20 half-moves (unique_checks.ipynb)
GAMES_AT_ONCE = 2000
# the name under which a run records training games as inputs, to distinguish them from evaluated games
TRAINED_ON = "trained_on"

AllowOverlap = bool
ALLOW_OVERLAP = Field(False, description="continue although evaluated games are among the training games")
"""For a spec that evaluates: `allow_overlap: AllowOverlap = ALLOW_OVERLAP`."""

TrainingItems = list[tuple["Games | Positions", np.ndarray]]
"""Datasets with the rows, int64 [n], of the games or positions that an input depends on."""


@dataclass(frozen=True)
class EvaluatedGames:
    """Hashes of evaluated games: of each move list, uint64 [games]; of its first 20 plies, uint64 [games with 20
    plies]; and of each evaluated position, uint64 [positions]."""

    games: np.ndarray
    openings: np.ndarray
    positions: np.ndarray

    @classmethod
    def from_items(
        cls, items: Games | Positions, places: np.ndarray, item: np.ndarray | None = None, ply: np.ndarray | None = None
    ) -> EvaluatedGames:
        """Return the hashes of games of a dataset.

        The positions are those after `ply` int [n] plies of the games `item` int [n]; without them every position of
        every game. For a dataset of positions, they are all positions at `places`.
        """
        hashes = []
        if items.content == "positions":
            hashes += [positions.hashes for _, positions in labels.iterate_positions(items, places)]
            return cls(join_hashes([]), join_hashes([]), join_hashes(hashes))
        packed_games = items.moves(places)
        for start in range(0, len(places), GAMES_AT_ONCE):
            chunk = places[start : start + GAMES_AT_ONCE]
            boards, offsets = compute_boards_after(packed_games[start : start + GAMES_AT_ONCE])
            if item is None or ply is None:
                hashes.append(hash_positions(boards, number_plies(offsets)))
                continue
            order = np.argsort(chunk, kind="stable")
            indices = order[np.minimum(np.searchsorted(chunk, item, sorter=order), len(chunk) - 1)]
            chunk_rows = np.flatnonzero(chunk[indices] == item)
            hashes.append(hash_positions(boards[offsets[indices[chunk_rows]] + ply[chunk_rows]], ply[chunk_rows]))
        return cls(hash_move_lists(packed_games), hash_openings(packed_games), join_hashes(hashes))

    @classmethod
    def from_rows(cls, items: Games | Positions, places: np.ndarray, positions: np.ndarray) -> EvaluatedGames:
        """Return the hashes of the games at these rows, with the given hashes of positions.

        A dataset of positions has only the positions.
        """
        if items.content == "positions":
            return cls(join_hashes([]), join_hashes([]), positions)
        return cls(items.hashes[places], hash_openings(items.moves(places)), positions)


@dataclass(frozen=True)
class TrainingOverlap:
    """The overlap of evaluated games with training games. The counts are `None` if the training games are unknown.

    `games` of `of_games` games have a move list of the training data. `openings` of `of_openings` share their first 20
    plies with a training game. `positions` of `of_positions` distinct positions occur in a training game.
    """

    games: int | None
    openings: int | None
    positions: int | None
    of_games: int
    of_openings: int
    of_positions: int
    train_games: int | None
    why_unknown: str | None = None

    def columns(self) -> dict[str, Any]:
        """Return plain values, for `detail["overlap"]["checkpoint"]` or `["probe"]` of an entity row."""
        return asdict(self)

    def __str__(self) -> str:
        if self.games is None:
            return f"unknown: {self.why_unknown}"
        return (
            f"{self.games:,} of {self.of_games:,} games, {self.openings:,} of {self.of_openings:,} openings of "
            f"{OPENING_PLIES} plies, {self.positions:,} of {self.of_positions:,} positions"
        )


def measure_overlap(
    inputs: Inputs,
    reference: str,
    evaluated_games: EvaluatedGames,
    on_progress: Callable[[float, str], None] | None = None,
) -> TrainingOverlap:
    """Return the overlap of `evaluated_games` with the games behind a reference: a checkpoint, or a probe, vector or
    cache run.

    Reads the training games once, in pieces of about 3 million positions a second. `on_progress` gets their share.
    """
    training_items, reason = load_training_items(inputs, reference)
    if training_items is None or reason is not None:
        sizes = len(evaluated_games.games), len(evaluated_games.openings), len(np.unique(evaluated_games.positions))
        return TrainingOverlap(None, None, None, *sizes, None, reason)
    return _count_overlap(training_items, evaluated_games, on_progress)


def measure_game_overlap(training_items: TrainingItems, evaluated_games: EvaluatedGames) -> TrainingOverlap:
    """Return the overlap of `evaluated_games` with these games of datasets."""
    return _count_overlap(training_items, evaluated_games, None)


def refuse_overlap(
    inputs: Inputs,
    reference: str,
    games: Games | Positions,
    places: np.ndarray,
    allow: bool,
    subject: str = "the model",
) -> None:
    """Raise BadInputError if whole games of an evaluation are training games, unless `allow`. Reads only hashes of
    games.

    The games are at rows `places` of `games`. `reference` is the model, probe or vector, which the error calls
    `subject`.
    """
    training_items, _ = load_training_items(inputs, reference)
    refuse_game_overlap(training_items or [], games.hashes[places], allow, subject)


def refuse_game_overlap(training_items: TrainingItems, hashes: np.ndarray, allow: bool, subject: str) -> None:
    """Raise BadInputError if games with the move hashes `hashes` uint64 [n] are training games, unless `allow`. The
    error calls the owner of the training data `subject`."""
    if allow:
        return
    hash_set = HashSet(hashes)
    is_seen = np.zeros(len(hash_set), bool)
    for games, places in training_items:
        is_seen[find_hits(hash_set, games.hashes[places])] = True
    shared_count = int(np.isin(hashes, hash_set.sorted_hashes[is_seen]).sum())
    if shared_count:
        length_note = (
            "" if shared_count == len(hashes) else "short games are often equal: leave them out with --min-plies 20; "
        )
        raise BadInputError(
            f"{shared_count:,} of the {len(hashes):,} games to evaluate are among the games that "
            f"{subject} was made from",
            f"{length_note}make disjoint parts with chessreg dataset split, or continue with --allow-overlap",
        )


def load_training_items(inputs: Inputs, reference: str) -> tuple[TrainingItems | None, str | None]:
    """Return the games that a checkpoint, probe, vector or cache depends on, and the reason why some are unknown.

    The games are `None` if all are unknown. A probe and a vector have the games of their cache, including held-out
    ones. A vector without a cache has the games that were put into classes. A tuned model also has the games of the
    model before tuning.
    """
    run = None if reference.startswith("sha256:") else inputs.run(reference, complete=False)
    for source in ("cache", "probe", "of"):  # a vector is made from a cache, a probe's weights or another vector
        if run is not None and isinstance(run.spec.get(source), str):
            return load_training_items(inputs, run.spec[source])
    if run is not None and (run.kind == "cache" or (run.kind == "vector" and run.spec.get("dataset"))):
        return [select_items(extract_selection(run.spec), inputs, TRAINED_ON)], None
    try:
        checkpoint, _ = inputs.checkpoint(reference)
    except NotFoundError:
        if run is not None:
            return None, f"a {run.kind} run does not record its training games"
        return None, "it was imported, and its file does not name its training games"
    if checkpoint.training_datasets is None:
        return None, "the checkpoint was imported without --trained-on"
    training: TrainingItems = []
    for dataset in checkpoint.training_datasets:
        try:
            items, part = inputs.items(dataset, TRAINED_ON)
        except NotFoundError:
            return None, f"its training games ({dataset[:20]}…) are not in this registry"
        training.append((items, items.rows(part)))
    return training, explain_unknown_parent(inputs, checkpoint)


def explain_unknown_parent(inputs: Inputs, checkpoint: tables.Checkpoint) -> str | None:
    """Return why the training games of a tuned model are not all known. This is so if its base model was imported
    without them. Return None if they are known."""
    with inputs.database.read() as session:
        while checkpoint.parent_id is not None and "tuned_from" in (checkpoint.detail.get("source") or {}):
            checkpoint = session.get_one(tables.Checkpoint, checkpoint.parent_id)
        has_datasets = checkpoint.training_datasets is not None
    return None if has_datasets else "the model before tuning was imported without --trained-on"


def _count_overlap(
    training_items: TrainingItems, evaluated_games: EvaluatedGames, on_progress: Callable[[float, str], None] | None
) -> TrainingOverlap:
    """Return how many of `evaluated_games`, their openings and their positions occur in `training_items`."""
    sets = [HashSet(evaluated_games.games), HashSet(evaluated_games.openings), HashSet(evaluated_games.positions)]
    seen_masks = [np.zeros(len(s), bool) for s in sets]
    total, done_items = sum(len(places) for _, places in training_items), 0
    for items, places in training_items:
        if items.content == "positions":
            for _, positions in labels.iterate_positions(items, places):
                seen_masks[2][find_hits(sets[2], positions.hashes)] = True
            continue
        seen_masks[0][find_hits(sets[0], items.hashes[places])] = True
        for start in range(0, len(places), GAMES_AT_ONCE):
            chunk = places[start : start + GAMES_AT_ONCE]
            packed_games = items.moves(chunk)
            seen_masks[1][find_hits(sets[1], hash_openings(packed_games))] = True
            boards, offsets = compute_boards_after(packed_games)
            seen_masks[2][find_hits(sets[2], hash_positions(boards, number_plies(offsets)))] = True
            done_items += len(chunk)
            if on_progress:
                on_progress(done_items / total, "overlap with the training games")
    shared_hashes = [s.sorted_hashes[mask] for s, mask in zip(sets, seen_masks, strict=True)]
    return TrainingOverlap(
        games=int(np.isin(evaluated_games.games, shared_hashes[0]).sum()),
        openings=int(np.isin(evaluated_games.openings, shared_hashes[1]).sum()),
        positions=len(shared_hashes[2]),
        of_games=len(evaluated_games.games),
        of_openings=len(evaluated_games.openings),
        of_positions=len(sets[2]),
        train_games=total,
    )


def find_hits(hash_set: HashSet, hashes: np.ndarray) -> np.ndarray:
    """Return the members of the set that are among the hashes, as indices into `wanted.sorted`, int64."""
    places = hash_set.places(hashes)
    return places[places >= 0]


def hash_openings(packed_games: Sequence[bytes]) -> np.ndarray:
    """Return the hash of the first 20 plies of each game that has 20 plies, uint64."""
    return hash_move_lists(moves[: 2 * OPENING_PLIES] for moves in packed_games if len(moves) >= 2 * OPENING_PLIES)


def number_plies(offsets: np.ndarray) -> np.ndarray:
    """Return the ply of every board, int64 [positions], from offsets int64 [games + 1]."""
    return np.arange(offsets[-1], dtype=np.int64) - np.repeat(offsets[:-1], np.diff(offsets))


def join_hashes(pieces: list[np.ndarray]) -> np.ndarray:
    """Return the concatenation uint64 [n] of hashes, also of an empty list."""
    return np.concatenate([np.zeros(0, np.uint64), *pieces])
