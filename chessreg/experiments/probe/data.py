"""Data of a probe: rows of a cache, their games, their labels, and baselines.

Baselines use no activations: they predict skill from a game's length, or from its source and time control.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from chessreg.errors import BadInputError
from chessreg.experiments.settings.overlap import EvaluatedGames
from chessreg.experiments.settings.skill import SkillSettings, load_skill_classes, permute_classes
from chessreg.games.datasets import labels
from chessreg.games.datasets.labels import Label
from chessreg.models.hook_points import RESID_POST
from chessreg.noise import Stream, generator
from chessreg.runs.activations import CachedActivations, load_cache
from chessreg.runs.inputs import Inputs
from store.files import allocate_space, convert_os_errors

if TYPE_CHECKING:
    from chessreg.encodings import Alignment
    from chessreg.games.datasets.dataset import Games
    from chessreg.games.datasets.positions import Positions
    from chessreg.games.datasets.skill import SkillClasses, SkillReport

Allocate = Callable[[tuple[int, ...], type[np.generic]], np.ndarray]
MIB = 1 << 20
HELD_BYTES = 256 * MIB


class RowSelection(NamedTuple):
    """Sites skip_sites ≤ number < max_sites of each game, or its `last_sites` last ones; of these, one phase.

    phase: an index into the encoding's phases. alignment: None keeps the boards as they were cached. A probe's
    meta.json uses the same names.
    """

    skip_sites: int = 0
    max_sites: int | None = None
    last_sites: int | None = None
    phase: int | None = None
    alignment: Alignment | None = None

    @classmethod
    def from_spec(cls, spec: Any) -> RowSelection:
        """Return the selection of a probe run's settings."""
        return cls(*(getattr(spec, name) for name in cls._fields))

    @classmethod
    def from_detail(cls, detail: Mapping[str, Any]) -> RowSelection:
        """Return the selection that a probe was fitted on, from its meta.json."""
        return cls(detail.get("skip_sites") or 0, *(detail.get(name) for name in cls._fields[1:]))

    def as_detail(self) -> dict[str, Any]:
        """Return the fields for meta.json: always `skip_sites` and `max_sites`, the others if they are set."""
        return {k: v for k, v in self._asdict().items() if k in ("skip_sites", "max_sites") or v is not None}


@dataclass(frozen=True)
class Labelling:
    """The label that a probe predicts: its name and, for labels of games, the rule of its classes.

    fitted: the skill report of the games that the probe was fitted on, whose edges are used again. truth: False if the
    skill or rating of the games is not needed; the labels are then 0.
    """

    name: str
    skill: SkillSettings | None = None
    seed: int = 0
    skill_report: SkillReport | None = None
    truth: bool = True


@dataclass(frozen=True)
class ProbeData:
    """A cache with labels.

    items: the dataset. item: int32 [rows], the game of each row, or the position of a dataset of positions. labels:
    int8 [rows, squares] classes, -1 for a game without a class; float32 [rows, 1] Elo for regression, NaN without a
    rating. positions: uint64 [rows], hashes equal for equal positions. usable: bool [rows], the selected rows that have
    a label. ply: int [rows], of the board that each row is labelled with. phase: int8 [rows], if the selection needs
    it.
    """

    cache: CachedActivations
    items: Games | Positions
    item: np.ndarray
    labels: np.ndarray
    classes: int
    positions: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    usable: np.ndarray | None = None
    skill: SkillClasses | None = None  # of the games in `places`
    places: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    aligned_plies: np.ndarray | None = None
    phase: np.ndarray | None = None

    @property
    def ply(self) -> np.ndarray:
        """int [rows]: plies before the board that each row is labelled with."""
        return self.cache.array.ply if self.aligned_plies is None else self.aligned_plies

    @classmethod
    def load(
        cls,
        inputs: Inputs,
        reference: str,
        labelling: Labelling,
        field: str,
        *,
        selection: RowSelection = RowSelection(),  # noqa: B008 (it is a tuple)
        allocate: Allocate = np.empty,
        game: int | None = None,
        pattern: str = RESID_POST,
    ) -> ProbeData:
        """Return a cache with labels, which are derived from the cache's dataset and never stored with the activations.

        selection: the rows to use. allocate creates the arrays that grow with the cache. game: label only the rows of
        this game, as one board view needs. pattern: the hook point of each layer. Raises BadInputError if no row is
        left.
        """
        cache = load_cache(inputs, reference, field, pattern)
        label = labels.get_label(labelling.name)
        items, _ = inputs.items(cache.dataset)
        if label.source != "position" and items.content == "positions":
            raise BadInputError(
                f"{labelling.name} is a label of games, but the cache is of positions",
                "choose a label of positions, such as --label piece",
            )
        item = cache.array.game
        is_usable, ply, phase = select_rows(inputs, cache, selection, game)
        places = np.unique(item).astype(np.int64)
        game_classes, classes = None, len(label.classes)
        if label.source != "position" and labelling.truth:
            game_classes = load_skill_classes(
                inputs,
                cache.dataset,
                places,
                labelling.skill or SkillSettings(),
                labelling.seed,
                labelling.skill_report,
            )
            classes = len(game_classes.report.games) if label.source == "skill" else 0
        shape = (len(item), label.squares)
        values = allocate(shape, np.float32 if label.source == "rating" else np.int8)
        if label.compute is None:
            values[:] = 0
        hashes = allocate((len(item),), np.uint64)
        selected_rows = np.arange(len(item)) if game is None else np.flatnonzero(item == game)
        for rows, positions in labels.iterate_positions(items, item[selected_rows], ply[selected_rows]):
            hashes[selected_rows[rows]] = positions.hashes
            if label.compute is not None:
                values[selected_rows[rows]] = label.compute(positions)
        if game_classes is not None:
            game_labels = game_classes.classes if label.source == "skill" else game_classes.rating
            values[:, 0] = game_labels[np.searchsorted(places, item)]
        if game_classes is not None:
            is_usable &= np.isfinite(values[:, 0]) if label.source == "rating" else values[:, 0] >= 0
        if not is_usable.any():
            raise build_empty_selection_error(inputs, cache, field, selection)
        return cls(cache, items, item, values, classes, hashes, is_usable, game_classes, places, ply, phase)

    @property
    def rows(self) -> np.ndarray:
        """bool [rows]: the rows to use."""
        return np.ones(len(self.item), bool) if self.usable is None else self.usable

    def draw_held_out(self, share: float, seed: int, unit: Literal["game", "row"] = "game") -> np.ndarray:
        """Return which usable rows are held out of fitting, bool [rows], drawn by the seed.

        Either whole games are held out, or single rows as in Davis's code, where rows of one game may be on both sides
        (4.2). The draw does not depend on the layout of the cache. At least one of two or more is left to fit on.
        """

        def count(number: int) -> int:
            return max(1, min(round(share * number), number - 1))

        if unit == "row":
            rows = np.flatnonzero(self.rows)
            rows = rows[np.lexsort((self.cache.array.token[rows], self.cache.array.ply[rows], self.item[rows]))]
            row_order = generator(seed, Stream.VALIDATION_ROWS).permutation(len(rows))[: count(len(rows))]
            is_held_out = np.zeros(len(self.item), bool)
            is_held_out[rows[row_order]] = True
            return is_held_out
        games = np.unique(self.item[self.rows])
        order = generator(seed, Stream.VALIDATION_GAMES).permutation(len(games))
        heldout_games = games[order[: count(len(games))]]
        return np.isin(self.item, heldout_games) & self.rows

    def find_majority_classes(self, rows: np.ndarray) -> np.ndarray:
        """Return the most frequent class of each square over these rows, int8 [squares], a baseline without
        activations."""
        counts = np.zeros((self.classes, self.labels.shape[1]), np.int64)
        fit_rows = np.flatnonzero(rows)
        for start in range(0, len(fit_rows), 1 << 16):
            part = self.labels[fit_rows[start : start + (1 << 16)]]
            counts += np.stack([(part == k).sum(0) for k in range(self.classes)])
        return counts.argmax(0).astype(np.int8)

    def select_evaluated(self, rows: np.ndarray) -> EvaluatedGames:
        """Return the evaluated games and positions of these rows, for comparison with training games."""
        return EvaluatedGames.from_rows(self.items, np.unique(self.item[rows]).astype(np.int64), self.positions[rows])

    def iterate_whole_games(self, rows: np.ndarray, games: int, seed: int, epoch: int) -> Iterator[np.ndarray]:
        """Yield the row numbers int64 [n] of `games` games at a time, where `rows` is True; every game once per epoch.

        The order is drawn from seed and epoch over the games' numbers, independent of the layout of the cache.
        """
        row_numbers = np.flatnonzero(rows)
        row_numbers = row_numbers[np.argsort(self.item[row_numbers], kind="stable")]
        pieces = np.split(row_numbers, np.flatnonzero(np.diff(self.item[row_numbers])) + 1)
        order = generator(seed, Stream.EPOCH_GAMES, epoch).permutation(len(pieces))
        for start in range(0, len(order), games):
            yield np.concatenate([pieces[place] for place in order[start : start + games]])

    def activations(self, layers: Sequence[int], rows: np.ndarray) -> np.ndarray:
        """Return the activations float32 [layers, n, d_model] of these rows. Each run of consecutive rows, such as a
        game's, is one read."""
        layer_activations = np.empty((len(layers), len(rows), self.cache.array.d_model), np.float32)
        edges = np.flatnonzero(np.diff(rows, prepend=-2, append=-2) != 1)
        for start, stop in pairwise(edges.tolist()):
            stored_rows = slice(int(rows[start]), int(rows[start]) + stop - start)
            for place, layer in enumerate(layers):
                layer_activations[place, start:stop] = self.cache.values(layer, stored_rows)
        return layer_activations

    def reader(self, layers: Sequence[int]) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function like `activations` of these layers, for many calls. Small arrays are read once and kept in
        memory."""
        if 4 * len(layers) * len(self.item) * self.cache.array.d_model > HELD_BYTES:
            return partial(self.activations, layers)
        values = np.stack([self.cache.values(layer) for layer in layers])
        return lambda rows: values[:, rows]

    def permute_labels(self, rows: np.ndarray, draw: int) -> None:
        """Permute the labels among the usable rows where `rows` bool [rows] is True, in place, for a control.

        Labels of games are permuted between games, within each stratum of skill. Labels of boards are permuted between
        positions. Other rows keep their labels. Rows are ordered by game, ply and token first, so the layout of the
        cache does not matter.
        """
        row_numbers = np.flatnonzero(rows & self.rows)
        if self.skill is None:
            row_numbers = row_numbers[
                np.lexsort((self.cache.array.token[row_numbers], self.ply[row_numbers], self.item[row_numbers]))
            ]
            permutation = generator(draw, Stream.SHUFFLED_LABELS).permutation(len(row_numbers))
            self.labels[row_numbers] = self.labels[row_numbers[permutation]]
            return
        games, first_rows, game_indices = np.unique(self.item[row_numbers], return_index=True, return_inverse=True)
        stratum = self.skill.stratum[np.searchsorted(self.places, games)]
        self.labels[row_numbers, 0] = permute_classes(self.labels[row_numbers[first_rows], 0], stratum, draw)[
            game_indices
        ]


def select_rows(
    inputs: Inputs, cache: CachedActivations, selection: RowSelection, game: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the usable rows of a cache, bool [rows]; int [rows], the ply of the board that each row is labelled with;
    int8 [rows], its phase, if the selection needs it.

    game: select only rows of this game, for a board view. Raises BadInputError for a phase that the encoding does not
    have, and if the cache lacks the end of the games that the counts refer to.
    """
    is_usable = mask_site_range(cache, selection.skip_sites, selection.max_sites)
    if game is not None:
        is_usable &= cache.array.game == game
    if selection[2:] == (None, None, None):
        return is_usable, cache.array.ply, None

    from chessreg.experiments.probe.rows import encode_rows

    encoded_games = encode_rows(inputs, cache, selection.phase, selection.alignment, selection.last_sites, game)
    return is_usable & encoded_games.usable, encoded_games.ply, encoded_games.phase


def mask_site_range(cache: CachedActivations, skip_sites: int, max_sites: int | None) -> np.ndarray:
    """Return whether the number of a row among its game's positions is in [skip_sites, max_sites), bool [rows].

    Numbers count from the game's first position, even if the cache leaves some out (Karvonen's pos_start, pos_end).
    """
    if skip_sites <= cache.skip_sites and max_sites is None:
        return np.ones(len(cache.array.game), bool)
    if cache.last_sites is not None:
        raise BadInputError(
            "--skip-sites and --max-sites count from the start of each game, but the cache holds the last "
            f"{cache.last_sites} sites",
            "leave them out, or cache without --last-sites",
        )

    from chessreg.experiments.probe.rows import number_rows

    number = number_rows(cache)[0] + cache.skip_sites
    return (number >= skip_sites) & (number < (np.iinfo(np.int64).max if max_sites is None else max_sites))


def build_empty_selection_error(
    inputs: Inputs, cache: CachedActivations, field: str, selection: RowSelection
) -> BadInputError:
    """Return the error for a selection without rows in a cache."""
    if selection.phase is not None:
        name = inputs.encoding(cache.checkpoint).phases[selection.phase]
        return BadInputError(
            f"no cached position of {field} has phase {selection.phase} ({name})",
            f"the cache has the sites {cache.sites}: cache --sites all, or the sites of that phase",
        )
    if selection.last_sites is not None:
        return BadInputError(f"{field} has no game that fits the model's context as a whole", "leave out --last-sites")
    if selection.max_sites is not None and selection.skip_sites >= selection.max_sites:
        return BadInputError(
            f"--skip-sites {selection.skip_sites} leaves out all that --max-sites {selection.max_sites} keeps",
            "lower --skip-sites, or raise --max-sites",
        )
    return BadInputError(
        f"no cached position of {field} has number {selection.skip_sites} or more", "lower --skip-sites"
    )


def make_allocator(folder: Path, memory_mib: int) -> Allocate:
    """Return a function that allocates arrays in memory up to the limit in total, then in scratch files of the
    folder."""
    free_bytes = memory_mib * MIB

    def allocate(shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
        nonlocal free_bytes
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if size <= free_bytes:
            free_bytes -= size
            return np.empty(shape, dtype)
        return allocate_scratch_array(folder, shape, dtype)

    return allocate


def allocate_scratch_array(folder: Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array in an unnamed file, whose space is released with the array.

    Raises DiskFullError if the disk has too little space.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not size:
        return np.empty(shape, dtype)
    action = f"keep {size / MIB:,.0f} MiB of labels beyond --memory-mib in a file"
    with convert_os_errors(action, folder), tempfile.TemporaryFile(dir=folder) as file:
        allocate_space(file, size)
        return np.memmap(file, dtype, "r+", shape=shape)


def resolve_label(name: str, classes: int) -> Label:
    """Return the label with its classes. The number of skill classes depends on the games."""
    label = labels.get_label(name)
    if label.source == "skill":
        return replace(label, classes=("low", "high") if classes == 2 else tuple(map(str, range(classes))))
    return label


# -- baselines --------------------------------------------------------------------------------------------------------

LENGTH_BINS = 10
MIN_KEY_GAMES = 5  # a key with fewer fitted games predicts the overall value


def compute_baseline_keys(
    inputs: Inputs, data: ProbeData, edges: np.ndarray | None = None
) -> dict[str, list[Hashable]]:
    """Return baseline → the key of each game in `data.places`. `edges` of the length bins come from
    `compute_length_edges`."""
    assert data.skill is not None
    games, _ = inputs.dataset(data.cache.dataset)
    table = games.take(data.places, ["plies", "time_control"])
    plies = table.column("plies").to_numpy()
    control = table.column("time_control").to_pylist()
    bins = np.searchsorted(compute_length_edges(plies) if edges is None else edges, plies)
    source = [(str(s), c) for s, c in zip(data.skill.stratum, control, strict=True)]
    return {"majority": [0] * len(plies), "length": bins.tolist(), "source": list(source)}


def compute_length_edges(plies: np.ndarray) -> np.ndarray:
    """Return the inner edges of ten bins with equally many games, float64 [<= 9]."""
    return np.unique(np.quantile(plies, np.linspace(0, 1, LENGTH_BINS + 1)[1:-1]))


def predict_from_keys(
    fit_keys: Sequence[Hashable], fit_values: np.ndarray, keys: Sequence[Hashable], classes: int
) -> np.ndarray:
    """Return the prediction of a key for each game, float64 [games].

    It is the most frequent class (with `classes` 0 the mean) of the fitted games with that key, or of all fitted games
    if too few have it. Games with `fit_values` -1 or NaN do not count. A logistic regression on the key's indicator
    cannot do better on the games that it was fitted on.
    """
    has_value = np.isfinite(fit_values) & ((fit_values >= 0) | (classes == 0))
    table: dict[Hashable, list[float]] = {}
    for key, value, is_kept in zip(fit_keys, fit_values.tolist(), has_value.tolist(), strict=True):
        if is_kept:
            table.setdefault(key, []).append(value)

    def best_guess(values: Sequence[float]) -> float:
        if classes == 0:
            return float(np.mean(values))
        return float(np.bincount(np.asarray(values, np.int64), minlength=classes).argmax())

    overall_guess = best_guess(fit_values[has_value].tolist())
    guess_by_key = {key: best_guess(values) for key, values in table.items() if len(values) >= MIN_KEY_GAMES}
    return np.array([guess_by_key.get(key, overall_guess) for key in keys], np.float64)
