"""Metrics of autoencoders on held-out tokens: reconstruction, sparsity and cross-entropy (Davis 2026,
Table 3).

One pass reads the held-out games. Sums are kept by game, so that intervals come from resampled games.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chessreg.errors import BadInputError, DivergedError
from chessreg.models.hook_points import LN_FINAL, format_hook_point
from chessreg.models.sparse_autoencoders import SparseAutoencoder
from chessreg.noise import Stream, generator

if TYPE_CHECKING:
    from chessreg.experiments.sae.data import SaeOrigin
    from chessreg.experiments.settings.sites import EncodedGames
    from chessreg.models.language_model import LanguageModel

TOKENS_AT_ONCE = 8192
RESAMPLE_COUNT = 1000
SPLICE_NAMES = ("with_sae", "zero_ablation", "mean_ablation")
SUM_NAMES = (
    "tokens",
    "sse",
    "l0",
    "l1",
    "cosine",
    "square",
    "predicted",
    "ce_without_sae",
    *(f"ce_{s}" for s in SPLICE_NAMES),
)


@dataclass
class StrongestActivations:
    """The strongest activation of each latent in each of at most `count` texts, in descending order.

    `value` float32 [count, features]; 0 is an empty entry.
    """

    value: Tensor
    locations: Tensor  # int32 [3, count, features]: game, token and ply of each value

    @classmethod
    def make_empty(cls, count: int, features: int) -> StrongestActivations:
        """Return empty entries for `count` texts and `features` latents."""
        return cls(torch.zeros(count, features), torch.zeros(3, count, features, dtype=torch.int32))

    def add_codes(self, code: Tensor, starts: np.ndarray, locations: np.ndarray) -> None:
        """Add the codes [n, features] of the sites of some texts. `starts` has the first site of each text, which may
        have no site; `locations` int [3, n] has game, token and ply."""
        if not len(self.value) or not len(code):
            return
        parts = np.split(np.arange(len(code)), starts[1:])
        strongest = [code[part[0] : part[-1] + 1].max(0) for part in parts if len(part)]
        offsets = torch.tensor([int(part[0]) for part in parts if len(part)])
        value = torch.stack([one.values for one in strongest]).cpu()
        index = torch.stack([one.indices for one in strongest]).cpu() + offsets[:, None]
        at = torch.from_numpy(locations.astype(np.int32))[:, index]
        value, at = torch.cat([self.value, value]), torch.cat([self.locations, at], 1)
        self.value, indices = value.topk(len(self.value), dim=0)
        self.locations = at.gather(1, indices.expand(3, -1, -1))


@dataclass
class SaeMeasurement:
    """Sums of one autoencoder over the held-out tokens.

    sums float64 [games, SUM_NAMES]; x_sum, error_sum float64 [games, d_model]; fired int64 [features]: number of tokens
    at which each latent is active.
    """

    sums: np.ndarray
    x_sum: np.ndarray
    error_sum: np.ndarray
    firing_counts: np.ndarray
    strongest: StrongestActivations
    has_cross_entropy: bool  # whether cross-entropies exist; a model of actions has none
    statistics: dict[str, tuple[float, float, float]] = field(default_factory=dict)  # value, low, high

    @property
    def tokens(self) -> int:
        """Number of held-out tokens at the autoencoder's sites."""
        return int(self.sums[:, 0].sum())


def measure_saes(
    model: LanguageModel,
    origin: SaeOrigin,
    saes: Mapping[int, tuple[str, SparseAutoencoder]],
    mean_residuals: Mapping[str, Tensor],
    boards: int,
    batch_games: int,
    seed: int,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> dict[int, SaeMeasurement]:
    """Return the metrics of every autoencoder on the held-out games, by unit.

    saes: unit → hook point and autoencoder. mean_residuals: the mean residual float32 [d_model] of each hook point, for
    mean ablation. Cross-entropy is in nats per token, over all next tokens of the games; the residual is replaced at
    the autoencoder's sites. Raises BadInputError if no held-out game has such a site.
    """
    encoded_games = origin.encode_items(model.encoding, origin.held_items, origin.held_places)
    if not len(encoded_games.sites):
        raise BadInputError(f"no held-out game has a token at {origin.sites}", "give other --sites, or longer games")
    games, width, predicts = len(origin.held_places), model.d_model, model.head == "next-token"
    measurements = {
        unit: SaeMeasurement(
            np.zeros((games, len(SUM_NAMES))), np.zeros((games, width)), np.zeros((games, width)),
            np.zeros(sae.features, np.int64), StrongestActivations.make_empty(boards, sae.features), predicts,
        )
        for unit, (_, sae) in saes.items()
    }  # fmt: skip
    done_tokens, total = 0, len(encoded_games.tokens)
    for items in iterate_measured_batches(encoded_games, batch_games, model.block_size):
        measure_batch(model, origin, encoded_games, items, saes, mean_residuals, measurements)
        done_tokens += len(items)
        on_progress(done_tokens / total)
    for one in measurements.values():
        one.statistics = compute_sae_statistics(one, seed)
    return measurements


def iterate_measured_batches(encoded_games: EncodedGames, batch_games: int, block_size: int) -> Iterator[np.ndarray]:
    """Yield batches of items of similar length, at most `TOKENS_AT_ONCE` tokens in each if it has several items."""
    lengths = np.minimum(np.diff(encoded_games.tokens.offsets), block_size)
    order = np.argsort(lengths, kind="stable")
    low = 0
    while low < len(order):
        high = low + batch_games
        while high > low + 1 and lengths[order[low:high]].max() * len(order[low:high]) > TOKENS_AT_ONCE:
            high -= 1
        yield order[low:high]
        low = high


def measure_batch(
    model: LanguageModel,
    origin: SaeOrigin,
    encoded_games: EncodedGames,
    items: np.ndarray,
    saes: Mapping[int, tuple[str, SparseAutoencoder]],
    mean_residuals: Mapping[str, Tensor],
    measurements: Mapping[int, SaeMeasurement],
) -> None:
    """Add `items` int [n], numbers of encoded items, to the sums of every autoencoder in `measurements`.

    `saes` maps a unit to its hook point and autoencoder. `mean_residuals` maps a hook point to the mean residual
    float32 [d_model], for the mean ablation.
    """
    lengths = np.minimum(np.diff(encoded_games.tokens.offsets)[items], model.block_size)
    tokens = torch.from_numpy(encoded_games.pad_tokens(items, int(lengths.max())))
    row, sites = encoded_games.find_item_sites(items)
    game = encoded_games.tokens.source[items]
    site_games = game[row]
    row_at, token_at = torch.from_numpy(row).to(model.device), torch.from_numpy(encoded_games.sites.token[sites])
    token_at = token_at.to(model.device)
    residuals: dict[str, Tensor] = {}
    with model.watch_hook_points(
        {point for point, _ in saes.values()}, lambda name, residual: residuals.__setitem__(name, residual)
    ):
        logits = model.logits(tokens)
    locations = np.stack(
        [origin.held_places[site_games], encoded_games.sites.token[sites], encoded_games.sites.ply[sites]]
    )
    starts = np.searchsorted(row, np.arange(len(items)))
    original = compute_cross_entropy(logits, tokens, lengths) if model.head == "next-token" else None

    def compute_spliced_nats(point: str, replacement: Tensor) -> np.ndarray:
        """Return the nats of each item with `replacement` [sites or 1, d_model] in place of the residual at the
        sites."""
        spliced_residuals = residuals[point].clone()
        spliced_residuals[row_at, token_at] = replacement.to(spliced_residuals)
        return compute_cross_entropy(compute_logits_after(model, point, tokens, spliced_residuals), tokens, lengths)[0]

    ablation_nats: dict[str, dict[str, np.ndarray]] = {}  # hook point → nats, shared by all expansions
    for unit, (point, sae) in saes.items():
        one, x = measurements[unit], residuals[point][row_at, token_at].float()
        code = sae.encode(x)
        reconstruction = sae.decode(code)
        if not bool(reconstruction.isfinite().all()):
            raise DivergedError(f"activations at {point} are NaN or infinite: the model overflows")
        add_site_sums(one, site_games, x, code, reconstruction)
        one.strongest.add_codes(code, starts, locations)
        if original is None:
            continue
        if point not in ablation_nats:
            replacements = {
                "zero_ablation": torch.zeros_like(reconstruction[:1]),
                "mean_ablation": mean_residuals[point][None],
            }
            ablation_nats[point] = {name: compute_spliced_nats(point, value) for name, value in replacements.items()}
        nll, count = original
        add_game_values(one, game, "predicted", count)
        add_game_values(one, game, "ce_without_sae", nll)
        for name, values in {"with_sae": compute_spliced_nats(point, reconstruction), **ablation_nats[point]}.items():
            add_game_values(one, game, f"ce_{name}", values)


def add_game_values(one: SaeMeasurement, game: np.ndarray, name: str, values: np.ndarray) -> None:
    """Add `values` [n] to column `name` of the sums, each at its game, `game` int [n]."""
    np.add.at(one.sums[:, SUM_NAMES.index(name)], game, values)


def add_site_sums(one: SaeMeasurement, game: np.ndarray, x: Tensor, code: Tensor, reconstruction: Tensor) -> None:
    """Add the sums over sites: x and its reconstruction `reconstruction` [n, d_model], and its code [n, features]."""
    x64, error = x.double(), (reconstruction - x).double()
    columns = {
        "tokens": torch.ones(len(x)),
        "sse": error.square().sum(1),
        "l0": (code > 0).sum(1),
        "l1": code.sum(1, dtype=torch.float64),
        "cosine": F.cosine_similarity(x64, reconstruction.double(), dim=1),
        "square": x64.square().sum(1),
    }
    for name, values in columns.items():
        add_game_values(one, game, name, values.cpu().numpy())
    np.add.at(one.x_sum, game, x64.cpu().numpy())
    np.add.at(one.error_sum, game, error.cpu().numpy())
    one.firing_counts += (code > 0).sum(0).cpu().numpy()


def compute_cross_entropy(logits: Tensor, tokens: Tensor, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the summed nats of all next tokens of each row, float64 [batch], and the number of these tokens."""
    counts = np.maximum(lengths - 1, 0)
    if tokens.shape[1] < 2:
        return np.zeros(len(tokens)), counts
    nll = F.cross_entropy(logits[:, :-1].float().transpose(1, 2), tokens[:, 1:].to(logits.device), reduction="none")
    real = torch.arange(1, tokens.shape[1])[None] < torch.from_numpy(lengths)[:, None]
    return torch.where(real, nll.cpu().double(), 0.0).sum(1).numpy(), counts


@torch.inference_mode()
def compute_logits_after(model: LanguageModel, point: str, tokens: Tensor, residual: Tensor) -> Tensor:
    """Return the logits [batch, length, vocab] of `tokens` [batch, length] when `residual` [batch, length, d_model]
    replaces the residual stream at hook point `point`.

    Earlier blocks are not computed if the adapter can start at that hook point.
    """
    network: Any = model.network
    layers = {format_hook_point(layer): layer for layer in range(model.n_layers)}
    logits: Tensor
    if point == LN_FINAL:
        logits = network.unembed(residual)
    elif network.can_cache and point in layers:
        logits = network.unembed(network.hidden(tokens.to(model.device), after=(layers[point], residual)))
    else:
        handle = network.hook_points[point].register_forward_hook(lambda module, arguments, output: residual)
        try:
            logits = model.logits(tokens)
        finally:
            handle.remove()
    return logits


# -- from sums to statistics -------------------------------------------------------------------------------------


def compute_sae_statistics(one: SaeMeasurement, seed: int) -> dict[str, tuple[float, float, float]]:
    """Return name → value and ends of its 95 % interval, from resampled games."""
    games = len(one.sums)
    resamples = generator(seed, Stream.SAE_BOOTSTRAP).multinomial(games, [1 / games] * games, RESAMPLE_COUNT)
    weights = np.concatenate([np.ones((1, games), np.int64), resamples]).astype(np.float64)
    sums = dict(zip(SUM_NAMES, (weights @ one.sums).T, strict=True))
    metrics = compute_sae_metrics(sums, weights @ one.x_sum, weights @ one.error_sum, one.has_cross_entropy)
    intervals = {}
    for name, (value, *interval) in metrics.items():
        if np.isfinite(value):
            finite_values = [other for other in interval if np.isfinite(other)]
            low, high = np.quantile(finite_values, [0.025, 0.975]) if finite_values else (value, value)
            intervals[name] = float(value), float(low), float(high)
    intervals["silent_fraction"] = (float((one.firing_counts == 0).mean()),) * 3
    return intervals


def compute_sae_metrics(
    sums: Mapping[str, np.ndarray], x_sum: np.ndarray, error_sum: np.ndarray, predicts: bool
) -> dict[str, list[float]]:
    """Return every metric, as defined in this module, of n resamples: `sums` maps a column to its sums [n], `x_sum` and
    `error_sum` [n, d_model] are sums of inputs and of errors. Cross-entropies need `predicts`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        n = sums["tokens"]
        error = sums["sse"] - np.square(error_sum).sum(1) / n
        variance_sum = sums["square"] - np.square(x_sum).sum(1) / n
        metrics = {name: sums[name] / n for name in ("l0", "l1", "cosine")}
        metrics["sse_per_token"] = sums["sse"] / n
        metrics["mse_per_dim"] = metrics["sse_per_token"] / x_sum.shape[1]
        metrics["explained_variance"] = 1 - error / variance_sum
        if predicts:
            entropies = ("ce_without_sae", *(f"ce_{name}" for name in SPLICE_NAMES))
            metrics |= {name: sums[name] / sums["predicted"] for name in entropies}
            added_loss = metrics["ce_with_sae"] - metrics["ce_without_sae"]
            metrics["loss_recovered"] = 1 - added_loss / (metrics["ce_zero_ablation"] - metrics["ce_without_sae"])
    return {name: value.tolist() for name, value in metrics.items()}


MIN_HALF_DECADE = -16  # half decades; the lowest also counts latents active at less than one in 1e8 tokens


def count_firing_frequencies(firing_counts: np.ndarray, tokens: int) -> dict[int, int]:
    """Return the number of latents by firing frequency, in half decades: -4 is 0.01 to 0.0316 of the tokens.

    Latents that are never active are not counted.
    """
    frequency = firing_counts[firing_counts > 0] / tokens
    bins = np.maximum(np.floor(2 * np.log10(frequency) + 1e-9), MIN_HALF_DECADE).astype(int)
    return {int(place): int(count) for place, count in zip(*np.unique(bins, return_counts=True), strict=True)}
