"""Training data of autoencoders: rows of a cache, or activations of a model that reads games on demand.

The batch of a step is a pure function of the spec, so a resumed training gets the same batches as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from chessreg.errors import BadInputError
from chessreg.experiments.sae.spec import SaeSpec
from chessreg.experiments.settings.games import GameSelection, extract_selection, select_cached_items, select_items
from chessreg.experiments.settings.sites import EncodedGames
from chessreg.models.devices import set_tf32_products
from chessreg.models.hook_points import RESID_POST, get_hook_layer, list_hook_points
from chessreg.noise import Stream, generator
from chessreg.registry import tables
from chessreg.runs.activations import load_any_cache

if TYPE_CHECKING:
    import torch

    from chessreg.encodings import Alignment, Encoding
    from chessreg.games.datasets.dataset import Games
    from chessreg.games.datasets.positions import Positions
    from chessreg.models.language_model import ActivationPass, LanguageModel
    from chessreg.models.ranks import Ranks
    from chessreg.runs.inputs import Inputs

    Batches = Iterator[dict[str, torch.Tensor]]

COUNT_GAMES = 2048  # games encoded at once to count their tokens
PLY_STRIDE = 1 << 15  # more than the plies of any game


@dataclass(frozen=True)
class SaeOrigin:
    """Model, hook points, training games and held-out games of a run.

    places, held_places: int64 [n], rows of `items` and of `held_items` in their datasets.
    """

    checkpoint: str  # the input reference
    row: tables.Checkpoint
    points: tuple[str, ...]
    items: Games | Positions
    places: np.ndarray
    held_items: Games | Positions
    held_places: np.ndarray
    held_dataset: str  # the input reference
    sites: str
    alignment: Alignment
    skip_sites: int
    max_sites: int | None
    last_sites: int | None
    exclude_special: bool

    @classmethod
    def from_spec(cls, spec: SaeSpec, inputs: Inputs) -> SaeOrigin:
        """Return the origin of a spec. Raises BadInputError or NotFoundError for missing hook points or games."""
        settings: dict[str, Any] = spec.model_dump()
        if spec.cache is not None:
            settings = inputs.run(spec.cache, "cache").spec
            items, places = select_cached_items(inputs, spec.cache)
        else:
            items, places = select_items(extract_selection(settings), inputs)
            inputs.note_shortage(spec, "games", len(places))
        checkpoint, dataset = str(settings["checkpoint"]), str(settings["dataset"])
        row = inputs.read_checkpoint_row(checkpoint)
        held_items, held_dataset = items, dataset
        if spec.heldout is not None:
            held_dataset = spec.heldout
            heldout_games = GameSelection(dataset=held_dataset, games=spec.heldout_games)
            held_items, held_places = select_items(heldout_games, inputs, "heldout")
        else:
            places, held_places = split_heldout(places, spec.heldout_games, spec.seed)
        inputs.note_shortage(spec, "heldout_games", len(held_places))
        return cls(
            checkpoint,
            row,
            tuple(resolve_sae_points(spec, inputs, row)),
            items,
            places,
            held_items,
            held_places,
            held_dataset,
            str(settings["sites"] if spec.cache is not None else spec.sites),
            settings.get("alignment", "post-ply"),
            int(settings.get("skip_sites", 0)),
            settings.get("max_sites"),
            settings.get("last_sites"),
            spec.exclude_special,
        )

    def list_saes(self, spec: SaeSpec) -> list[tuple[int, str]]:
        """Return the expansion and the hook point of each unit's autoencoder."""
        return [(expansion, point) for expansion in spec.expansions for point in self.points]

    def find_layer(self, point: str) -> int:
        """Return the 0-based layer of a hook point."""
        return get_hook_layer(point, self.row.layers)

    def encode_items(self, encoding: Encoding, items: Games | Positions, places: np.ndarray) -> EncodedGames:
        """Return the games at these rows, encoded, with the sites that autoencoders read."""
        encoded_games = EncodedGames.from_items(
            encoding, self.row.block_size, items, places, self.sites, self.alignment
        )
        encoded_games = encoded_games.select_numbered(self.skip_sites, self.max_sites, self.last_sites)
        return (
            encoded_games.take(~mask_boundary_tokens(encoding, encoded_games))
            if self.exclude_special
            else encoded_games
        )


def resolve_sae_points(spec: SaeSpec, inputs: Inputs, row: tables.Checkpoint) -> list[str]:
    """Return the hook points of a run. Raises BadInputError or NotFoundError for one that the model or cache lacks."""
    layers = spec.layers or tuple(range(row.layers))
    if max(layers) >= row.layers or min(layers) < 0:
        raise BadInputError(f"--layers: the model has no layer {max(layers)}; its layers are 0 to {row.layers - 1}")
    if spec.cache is None:
        from chessreg.models.adapters import get_adapter

        if spec.layers and spec.hook_points and not any("*" in name for name in spec.hook_points):
            raise BadInputError("--layers has no effect: no hook point contains *", "leave it out")
        adapter_points = get_adapter(row.architecture).points
        return list_hook_points(spec.hook_points or (RESID_POST,), layers, row.layers, adapter_points)
    groups: list[tables.ActivationCache] = inputs.rows(tables.ActivationCache, inputs.run(spec.cache, "cache"))
    cached_points = list(groups[0].hook_points)
    if spec.hook_points:
        points = list_hook_points(spec.hook_points, layers, row.layers)
    else:
        points = [name for name in cached_points if not spec.layers or get_hook_layer(name, row.layers) in spec.layers]
    if missing_points := [name for name in points if name not in cached_points]:
        raise BadInputError(f"{missing_points[0]} is not in the cache", f"it holds {', '.join(cached_points)}")
    if not points:
        raise BadInputError(
            f"the cache has no hook point of layer {spec.layers[0]}", f"it holds {', '.join(cached_points)}"
        )
    return points


def split_heldout(places: np.ndarray, heldout_count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the training games and of the held-out games, by a seeded draw.

    At most `heldout_count` games, and at most half of them, are held out. Raises BadInputError for fewer than two
    games.
    """
    if len(places) < 2:
        raise BadInputError(
            "one game is too few to train and to evaluate an SAE", "give more games, or --heldout DATASET"
        )
    order = generator(seed, Stream.SAE_HELDOUT_GAMES).permutation(len(places))
    count = min(heldout_count, len(places) // 2)
    return places[np.sort(order[count:])], places[np.sort(order[:count])]


def mask_boundary_tokens(encoding: Encoding, encoded_games: EncodedGames) -> np.ndarray:
    """Return a mask bool [sites] of the tokens that begin, end or pad a text."""
    tokens, sites = encoded_games.tokens, encoded_games.sites
    return np.isin(tokens.ids[tokens.offsets[sites.item] + sites.token], list(encoding.boundary_ids))


class CacheRows:
    """Batches from a cache in permuted chunks; every row of the training games occurs once in an epoch."""

    def __init__(self, spec: SaeSpec, origin: SaeOrigin, inputs: Inputs, device: str = "cpu") -> None:
        assert spec.cache is not None
        self.device = device
        self.spec, self.cache = spec, load_any_cache(inputs, spec.cache)
        self.array = self.cache.array
        self.mask = np.isin(self.array.game, origin.places)
        if origin.exclude_special:
            self.mask &= ~self.special_rows(origin, inputs.encoding(origin.checkpoint))
        if not self.mask.any():
            raise BadInputError("the cache has no activation of the training games", "lower --heldout-games")

    def special_rows(self, origin: SaeOrigin, encoding: Encoding) -> np.ndarray:
        """Return a mask bool [rows] of the cached tokens that begin, end or pad a text."""
        special = np.zeros(self.array.rows, bool)
        if not encoding.boundary_ids:
            return special
        boards = encoding.content == "position"
        for low in range(0, len(origin.places), COUNT_GAMES):
            places = np.sort(origin.places[low : low + COUNT_GAMES])
            encoded_games = EncodedGames.from_items(encoding, origin.row.block_size, origin.items, places, origin.sites)
            rows = np.flatnonzero(np.isin(self.array.game, places))
            key = np.searchsorted(places, self.array.game[rows]) * PLY_STRIDE + (self.array.ply[rows] if boards else 0)
            tokens = encoded_games.tokens
            item = np.searchsorted(tokens.source * PLY_STRIDE + (tokens.ply if boards else 0), key)
            ids = tokens.ids[tokens.offsets[item] + self.array.token[rows]]
            special[rows] = np.isin(ids, list(encoding.boundary_ids))
        return special

    def batches(self, points: Sequence[str], first: int = 0) -> Batches:
        """Yield the batches from step `first` on, without end: hook point → activations float32 [n, d_model] on the
        device."""
        size = self.spec.batch_tokens
        epoch, skip = divmod(first, -(-int(self.mask.sum()) // size))
        while True:
            for batch in self.array.iter_batches(points, size, self.spec.seed, epoch, keep=self.mask):
                if skip:
                    skip -= 1
                    continue
                yield {point: self.on_device(batch.float32(point)) for point in points}
            epoch += 1

    def on_device(self, rows: np.ndarray) -> torch.Tensor:
        """Return the rows on the device. A GPU copies them from pinned memory while it computes the previous step."""
        import torch

        tensor = torch.from_numpy(rows)
        return tensor if self.device == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)


class ModelRows:
    """Batches from a model that reads the games, in an order drawn for each epoch.

    The tokens of all epochs form one sequence. `mix_tokens` of them are a chunk, whose games pass through the model
    once for all hook points; its rows are permuted and cut into batches. They stay on the model's device.
    """

    def __init__(self, spec: SaeSpec, origin: SaeOrigin, model: LanguageModel, batch_games: int) -> None:
        self.spec, self.origin, self.model, self.batch_games = spec, origin, model, batch_games
        self.rows = -(-max(spec.mix_tokens, spec.batch_tokens) // spec.batch_tokens) * spec.batch_tokens
        self.order = np.zeros(0, np.int64)  # games of all epochs, as indices into `places`
        self.cumulative_tokens = np.zeros(0, np.int64)  # number of tokens up to the end of each game
        self.chunk = lru_cache(maxsize=1)(self._compute_chunk)
        self.ranks: Ranks | None = None

    def _count(self, tokens: int) -> None:
        """Extend `order` and `cumulative_tokens` until they cover `tokens` tokens. Raises BadInputError if an epoch has
        no token."""
        places = self.origin.places
        orders, ends, total = (
            [self.order],
            [self.cumulative_tokens],
            int(self.cumulative_tokens[-1]) if len(self.cumulative_tokens) else 0,
        )
        counted_games, initial_total = len(self.order), total
        while total < tokens:
            epoch, epoch_start = divmod(counted_games, len(places))
            games = generator(self.spec.seed, Stream.EPOCH_GAMES, epoch).permutation(len(places))
            part = games[epoch_start : epoch_start + COUNT_GAMES]
            counts = self.origin.encode_items(self.model.encoding, self.origin.items, places[part]).counts
            orders.append(part)
            ends.append(total + np.cumsum(counts))
            counted_games, total = counted_games + len(part), total + int(counts.sum())
            if counted_games % len(places) == 0 and total == initial_total:
                raise BadInputError(
                    f"no game has a token at {self.origin.sites}", "give other --sites, or longer games"
                )
        self.order, self.cumulative_tokens = np.concatenate(orders), np.concatenate(ends)

    def _compute_chunk(self, number: int, points: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """Return the permuted rows of a chunk: hook point → activations [rows, d_model] on the model's device."""
        from chessreg.models.language_model import collect_activations

        low, high = number * self.rows, (number + 1) * self.rows
        self._count(high)
        first, last = (
            int(np.searchsorted(self.cumulative_tokens, low, "right")),
            int(np.searchsorted(self.cumulative_tokens, high)),
        )
        games = self.order[first : last + 1]
        encoded_games = self.origin.encode_items(self.model.encoding, self.origin.items, self.origin.places[games])
        start = int(self.cumulative_tokens[first]) - int(encoded_games.counts[0])
        place = start - low + np.arange(len(encoded_games.sites))  # index of each site among the chunk's rows
        permutation = generator(self.spec.seed, Stream.SAE_MIXED_TOKENS, number).permutation(self.rows)
        passes = self._iterate_passes(encoded_games, place, permutation)
        if self.ranks is not None:  # each process runs the model on a share of the games
            passes = islice(passes, self.ranks.rank, None, self.ranks.size)
        with set_tf32_products(self.spec.precision != "float32"):
            rows = collect_activations(self.model, points, self.rows, passes)
        if self.ranks is not None:
            self.ranks.sum(list(rows.values()))
        return rows

    def _iterate_passes(
        self, encoded_games: EncodedGames, place: np.ndarray, permutation: np.ndarray
    ) -> Iterator[ActivationPass]:
        """Yield the inputs of the forward passes over these games.

        `place` int64 [sites] numbers each site; `permutation` int64 [rows] is the row of each number.
        """
        import torch

        order = np.argsort(encoded_games.widths, kind="stable")
        for items in encoded_games.iterate_batches(order[encoded_games.widths[order] > 0], self.batch_games):
            row, sites = encoded_games.find_item_sites(items)
            is_in_chunk = (place[sites] >= 0) & (place[sites] < self.rows)
            row, sites = row[is_in_chunk], sites[is_in_chunk]
            if not len(sites):
                continue
            tokens = torch.from_numpy(encoded_games.pad_tokens(items, int(encoded_games.widths[items].max())))
            token, target = encoded_games.sites.token[sites], permutation[place[sites]]
            yield tokens, torch.from_numpy(row), torch.from_numpy(token), torch.from_numpy(target)

    def batches(self, points: Sequence[str], first: int = 0) -> Batches:
        """Yield the batches from step `first` on, without end: hook point → activations float32 [n, d_model]."""
        size, step = self.spec.batch_tokens, first
        while True:
            number, start = divmod(step * size, self.rows)
            chunk = self.chunk(number, tuple(points))
            yield {point: chunk[point][start : start + size] for point in points}
            step += 1
