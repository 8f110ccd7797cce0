"""Skill classes: games binned by one side's rating.

Ratings of different sources, or of bullet and classical games, are not on one scale, and a probe can distinguish
sources without any notion of skill. So bins can be restricted to one source and time-control class.

Karvonen 2024, section 3.2, and its lichess_data_filtering.ipynb: `pandas.qcut` into six bins of White's Elo, of which
the lowest and the highest are classified. Beyond the paper, bins can lie within one source and time-control class or be
balanced over them, and ratings of different scales are refused.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chessreg.errors import BadInputError
from chessreg.noise import Stream, uniform

if TYPE_CHECKING:
    import pyarrow as pa

    from chessreg.games.datasets.dataset import Games


COLUMNS = ("site", "event", "time_control")
"""Columns of `games.parquet` that `compute_strata` and `find_rating_scales` read."""

_HOST = re.compile(r"(?:https?://)?(?:www\.)?([a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,})(?:/|$)", re.IGNORECASE)
_CLASSES = ("ultrabullet", "bullet", "blitz", "rapid", "classical", "correspondence", "standard")
_STAGE = re.compile(r"(?:\d+/)?(\d+)(?:\+(\d+))?")


@cache
def get_rating_source(site: str | None, event: str | None) -> str:
    """Return the host of the Site tag, `generated` for games of chessreg's engines, `named site`, or `unnamed`.

    >>> get_rating_source("https://lichess.org/ljsUecFp", "Rated Rapid game"), get_rating_source("Wijk aan Zee", None)
    ('lichess.org', 'named site')
    """
    from chessreg.games.engines.selfplay import EVENT

    if event == EVENT:
        return "generated"
    host = _HOST.match(site or "")
    return host[1].lower() if host else "named site" if site else "unnamed"


@cache
def estimate_seconds(time_control: str | None) -> int | None:
    """Return Lichess's estimate of a player's seconds per game: base + 40 increments. None without a readable clock.

    >>> estimate_seconds("600+5"), estimate_seconds("300"), estimate_seconds("40/7200:3600"), estimate_seconds("-")
    (800, 300, 10800, None)
    """
    total = 0
    for stage in (time_control or "").split(":"):
        match = _STAGE.fullmatch(stage.strip())
        if not match:
            return None
        total += int(match[1]) + 40 * int(match[2] or 0)
    return total


@cache
def classify_time_control(time_control: str | None, event: str | None) -> str:
    """Return Lichess's class by estimated duration; without a readable TimeControl, the class named in the Event tag.

    >>> classify_time_control("600+5", None), classify_time_control("-", "Rated Blitz game")
    ('rapid', 'blitz')
    """
    words = set((event or "").lower().split())
    class_name = next((name for name in _CLASSES if name in words), None)
    duration = estimate_seconds(time_control)
    if duration is None:
        return class_name or "no clock"
    for name, limit in (("ultrabullet", 30), ("bullet", 180), ("blitz", 480), ("rapid", 1500)):
        if duration < limit:
            return name
    return "classical"


def compute_strata(table: pa.Table) -> np.ndarray:
    """Return `source/time class` of each game, an object array [n]; `table` has the columns `COLUMNS`."""
    rows = zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True)
    return np.array(
        [f"{get_rating_source(site, event)}/{classify_time_control(clock, event)}" for site, event, clock in rows],
        object,
    )


def find_rating_scales(table: pa.Table, dataset_scale: str | None) -> np.ndarray:
    """Return the rating scale of each game's Elo tags, an object array [n]: the dataset's scale, else its source's."""
    if dataset_scale:
        return np.full(len(table), dataset_scale, object)
    scale_names = {"lichess.org": "lichess", "generated": "stockfish"}
    pairs = zip(table.column("site").to_pylist(), table.column("event").to_pylist(), strict=True)
    return np.array([scale_names.get(get_rating_source(*pair), "unknown") for pair in pairs], object)


Rating = Literal["white_elo", "black_elo"]
POLICIES = ("within", "balanced", "pooled")
MIN_GAMES_PER_BIN = 3  # a stratum with fewer games per quantile bin is excluded


@dataclass(frozen=True)
class SkillRule:
    """How ratings become classes. Raises BadInputError for a rule that cannot make two classes.

    `bins`: number of quantile bins, each (low, high], the lowest including its lower edge; `edges`: fixed bins instead,
    open at both ends. `keep`: the bins that become classes 0, 1, …, counted from the lowest, -1 the highest; empty:
    all. `strata`: `within` (quantiles within each source and time-control class), `balanced` (the same edges for all,
    then equal numbers of games of each class in every stratum), `pooled` (the same edges for all: source and skill are
    confounded), or the name of one stratum, such as `lichess.org/rapid`, to use only its games.
    """

    rating: Rating = "white_elo"
    bins: int = 6
    edges: tuple[float, ...] = ()
    keep: tuple[int, ...] = (0, -1)
    strata: str = "within"
    mixed_scales: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        bins = len(self.edges) + 1 if self.edges else self.bins
        if bins < 2:
            raise BadInputError("skill needs at least two bins")
        if any(a >= b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise BadInputError("the edges of fixed bins must rise", f"got {', '.join(map(str, self.edges))}")
        if self.edges and self.strata == "within":
            raise BadInputError(
                "fixed edges are the same for every source and time control, not within each",
                "strata: balanced, pooled, or the name of one stratum",
            )
        if self.keep:
            places = [place % bins if -bins <= place < bins else -1 for place in self.keep]
            if -1 in places or len(places) < 2 or any(a >= b for a, b in itertools.pairwise(places)):
                raise BadInputError(
                    f"bins {', '.join(map(str, self.keep))} of {bins} cannot be kept",
                    f"at least two, from the lowest up, of 0 to {bins - 1} or -1 for the highest",
                )


@dataclass(frozen=True)
class SkillReport:
    """The composition of the skill classes, ready for JSON."""

    rating: str
    scales: list[str]  # of the classified games
    strata: str
    edges: dict[str, list[float]]  # stratum, or "all" → its bins' edges
    games: list[int]  # in each class
    by_stratum: dict[str, list[int]]  # stratum → games in each class
    dropped: dict[str, int] = field(default_factory=dict)  # why → games

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """Return one line with the games per class, the edges and the exclusions."""
        parts = [f"{name} {' '.join(f'{e:.0f}' for e in edges)}" for name, edges in self.edges.items()]
        edges = ", ".join(parts[:3]) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")
        text = "".join(f"; {count:,} {reason}" for reason, count in self.dropped.items())
        return f"{' / '.join(f'{n:,}' for n in self.games)} games by {self.rating} ({edges}){text}"


@dataclass(frozen=True)
class SkillClasses:
    """The classes of n games, in the order of the input."""

    classes: np.ndarray  # int8 [n], 0 the weakest; -1: excluded
    rating: np.ndarray  # float64 [n], Elo; NaN if unknown
    stratum: np.ndarray  # object [n], `source/time class`
    rule: SkillRule
    report: SkillReport

    @property
    def classified_games(self) -> np.ndarray:
        """Indices of the classified games, int64, ascending."""
        return np.flatnonzero(self.classes >= 0)

    def select_first(self, total: int | None = None, per_class: int | None = None) -> np.ndarray:
        """Return the indices of the first `total` classified games, of which at most `per_class` per class.

        Karvonen's paper says 2,000 games of each class; his code uses the first 2,000 in total (`caa.py`).
        """
        game_indices = self.classified_games[:total]
        if per_class is None:
            return game_indices
        classes = self.classes[game_indices]
        number = np.zeros(len(game_indices), np.int64)
        for k in np.unique(classes):
            number[classes == k] = np.arange((classes == k).sum())
        return game_indices[number < per_class]


def compute_quantile_edges(values: np.ndarray, bins: int) -> np.ndarray:
    """Return the edges float64 [<= bins + 1] of quantile bins, like `pandas.qcut(duplicates="drop")`.

    >>> compute_quantile_edges(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), 2).tolist()
    [1.0, 3.0, 5.0]
    """
    return np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)))


def assign_bins(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the bin (low, high] of each value, int64 [n]; -1 outside. The lowest bin includes its lower edge."""
    bins = np.searchsorted(edges, values, side="left") - 1
    bins[values == edges[0]] = 0
    bins[~((values >= edges[0]) & (values <= edges[-1]))] = -1
    return bins


def classify_skill(
    games: Games,
    places: np.ndarray,
    rule: SkillRule,
    rating_scale: str | None,
    skill_report: SkillReport | None = None,
) -> SkillClasses:
    """Return the classes of the games at row positions `places` int64 [n] of a dataset with this rating scale.

    `skill_report` is the report of the games that a probe was fitted on; its edges are reused, widened to every rating.
    Equal settings and games give equal classes in any batch and on any machine. Raises BadInputError for mixed
    rating scales, an unknown stratum, and an empty class.
    """
    table = games.take(places, [rule.rating, *COLUMNS])
    rating = table.column(rule.rating).to_numpy(zero_copy_only=False).astype(np.float64)
    stratum = compute_strata(table)
    scales = find_rating_scales(table, rating_scale)
    drop_counts: dict[str, int] = {}

    def leave_out(mask: np.ndarray, reason: str) -> np.ndarray:
        if mask.any():
            drop_counts[reason] = drop_counts.get(reason, 0) + int(mask.sum())
        return mask

    is_rated = ~leave_out(~np.isfinite(rating), f"without {rule.rating}")
    if rule.strata not in POLICIES:
        is_rated &= _select_stratum(rule.strata, stratum, is_rated, leave_out)
    if not rule.mixed_scales:
        refuse_mixed_scales(scales[is_rated].tolist())
    edges = skill_report.edges if skill_report else _compute_edges(rule, rating, stratum, is_rated)
    bins = np.full(len(places), -1, np.int64)
    for name, group in _group_games(rule, stratum, is_rated):
        if name in edges:
            outer_edges = np.array(edges[name])
            if skill_report:
                outer_edges[[0, -1]] = -np.inf, np.inf
            bins[group] = assign_bins(rating[group], outer_edges)
    leave_out(
        is_rated & (bins < 0), "of strata too small for these bins" if not skill_report else "of strata not fitted on"
    )
    classes = _keep_bins(rule, bins, edges, stratum)
    leave_out(is_rated & (bins >= 0) & (classes < 0), "of bins not kept")
    if rule.strata == "balanced":
        balanced_classes = _balance_strata(classes, stratum, places, rule.seed)
        leave_out((classes >= 0) & (balanced_classes < 0), "to balance the strata")
        classes = balanced_classes
    number = len(rule.keep) or max((len(e) - 1 for e in edges.values()), default=0)
    counts = [int((classes == k).sum()) for k in range(number)]
    if len(counts) < 2 or not all(counts):
        raise BadInputError(
            f"{rule.rating} makes no {max(number, 2)} classes of these {len(places):,} games",
            f"{'/'.join(map(str, counts)) or 'no'} games a class; {int(is_rated.sum()):,} are rated: "
            "more games, fewer bins or other strata",
        )
    by_stratum = {
        str(name): [int(((stratum == name) & (classes == k)).sum()) for k in range(number)]
        for name in sorted(set(stratum[classes >= 0]))
    }
    used_scales = sorted(set(scales[classes >= 0]))
    report = SkillReport(rule.rating, used_scales, rule.strata, edges, counts, by_stratum, drop_counts)
    return SkillClasses(classes.astype(np.int8), rating, stratum, rule, report)


def refuse_mixed_scales(scales: Sequence[str]) -> None:
    """Raise BadInputError for ratings of more than one scale."""
    counts = {name: scales.count(name) for name in sorted(set(scales))}
    if len(counts) > 1:
        scale_list = ", ".join(f"{count:,} games rated by {name}" for name, count in counts.items())
        raise BadInputError(
            f"ratings of different scales are not comparable: {scale_list}",
            "choose one stratum, or allow mixed scales",
        )


def _select_stratum(name: str, stratum: np.ndarray, is_rated: np.ndarray, leave_out: Any) -> np.ndarray:
    """Return which games are in the stratum `name`, bool [n]. Other rated games are passed to `leave_out` with
    a reason. Raises BadInputError if no rated game is in it.
    """
    if name not in set(stratum[is_rated]):
        stratum_names, counts = np.unique(stratum[is_rated].astype(str), return_counts=True)
        order = np.argsort(-counts, kind="stable")[:8]
        stratum_list = ", ".join(f"{stratum_names[i]} ({counts[i]:,})" for i in order) or "none with ratings"
        raise BadInputError(
            f"the stratum {name!r} has no games", f"strata: {', '.join(POLICIES)}, or one of {stratum_list}"
        )
    leave_out(is_rated & (stratum != name), f"not of {name}")
    return stratum == name


def _group_games(rule: SkillRule, stratum: np.ndarray, is_rated: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return (name, mask) of the sets of games that share edges."""
    if rule.strata != "within":
        return [("all", is_rated)]
    return [(str(name), is_rated & (stratum == name)) for name in sorted(set(stratum[is_rated]))]


def _compute_edges(
    rule: SkillRule, rating: np.ndarray, stratum: np.ndarray, is_rated: np.ndarray
) -> dict[str, list[float]]:
    """Return stratum → edges of its rating bins, in Elo; `all` if strata are pooled or the rule names edges. Strata
    with too few games are omitted.

    `rating`, `stratum` and `is_rated` are [games].
    """
    if rule.edges:
        values = rating[is_rated]
        low, high = (min(values.min(), rule.edges[0]), max(values.max(), rule.edges[-1])) if len(values) else (0, 0)
        return {"all": [float(low) - 1, *rule.edges, float(high) + 1]}
    edges_of = {}
    for name, group in _group_games(rule, stratum, is_rated):
        if group.sum() >= MIN_GAMES_PER_BIN * rule.bins:
            edges = compute_quantile_edges(rating[group], rule.bins)
            if len(edges) > max(2, len(rule.keep)):
                edges_of[name] = [float(edge) for edge in edges]
    return edges_of


def _keep_bins(rule: SkillRule, bins: np.ndarray, edges: dict[str, list[float]], stratum: np.ndarray) -> np.ndarray:
    """Return the class of each game, int64 [n]: the place of its bin in `rule.keep`, -1 for other bins. `bins` int [n]
    are bin numbers. Bins with equal `edges` count as one."""
    if not rule.keep:
        return bins
    classes = np.full(len(bins), -1, np.int64)
    counts = np.array([len(edges.get(str(s), edges.get("all", [0]))) - 1 for s in stratum], np.int64)
    for k, place in enumerate(rule.keep):
        bin_place = place if place >= 0 else counts + place
        classes[(bins >= 0) & (bins == bin_place)] = k
    return classes


def _balance_strata(classes: np.ndarray, stratum: np.ndarray, places: np.ndarray, seed: int) -> np.ndarray:
    """Return `classes` int [n] with equal numbers of games per class in every stratum; the others become -1. A draw by
    `seed` and the game's row `places` selects them."""
    balanced_classes = np.full(len(classes), -1, np.int64)
    kinds = np.unique(classes[classes >= 0])
    for name in set(stratum[classes >= 0]):
        groups = [np.flatnonzero((stratum == name) & (classes == k)) for k in kinds]
        smallest = min(map(len, groups))
        for k, group in zip(kinds, groups, strict=True):
            number = np.array([uniform(seed, Stream.SKILL_BALANCE, int(places[i])) for i in group])
            balanced_classes[group[np.argsort(number, kind="stable")[:smallest]]] = k
    return balanced_classes
