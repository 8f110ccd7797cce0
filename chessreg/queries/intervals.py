"""Intervals of the results in lists of runs, estimated like those of catalogue queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy.orm import Session

from chessreg.named import format_count
from chessreg.registry import measures
from chessreg.registry.measures import ClusterCount

if TYPE_CHECKING:
    from chessreg.queries import stats

Counts = Mapping[tuple[Any, ...], ClusterCount]


def add_intervals(session: Session, run_id: UUID, answer: measures.Row) -> measures.Row:
    """Return an answer of `measures.answers` with the 95 % intervals of its value (`low`, `high`) and of its change
    (`change_low`, `change_high`), and `sample`, the number of games or states behind the value: "50 games". An unknown
    end is None, and an unknown sample empty."""
    row = {**answer, "sample": "", "low": None, "high": None, "change_low": None, "change_high": None}
    own_counts = measures.read_cluster_counts(session, run_id, answer["measure"])
    if not own_counts:
        return row
    from chessreg.queries import stats  # imports numpy, which many lists of runs do not need

    states = answer["measure"].startswith("legal ")  # of an edit; a score and a probe's accuracy have games
    row["sample"] = format_count(sum(count.number for count in own_counts.values()), "state" if states else "game")
    scale = 100 if answer["measure"].endswith("%") else 1
    row["low"], row["high"] = find_rate_ends(own_counts, scale)
    if answer["change"] is None:
        return row
    if answer["than"] == "clean":
        base = measures.read_cluster_counts(session, run_id, answer["measure"], "clean")
    else:
        before = measures.find_earlier_measure(session, run_id, answer["measure"])
        base = {} if before is None else measures.read_cluster_counts(session, before[0], answer["measure"])
    if base.keys() == own_counts.keys():
        paired_difference = stats.estimate_rate_difference(
            make_clusters(own_counts, base), "hits", "trials", "base_hits", "base_trials"
        )
        row["change_low"], row["change_high"] = find_ends(paired_difference, scale)
    elif base:
        independent_difference = stats.estimate_independent_difference(
            make_clusters(own_counts), make_clusters(base), "hits", "trials"
        )
        row["change_low"], row["change_high"] = find_ends(independent_difference, scale)
    return row


def find_rate_ends(counts: Counts, scale: float = 1) -> tuple[float | None, float | None]:
    """Return the ends of the 95 % interval of hits per trial, times `scale`. An unknown end is None."""
    from chessreg.queries import stats

    return find_ends(stats.estimate_rate(make_clusters(counts), "hits", "trials"), scale)


def make_clusters(counts: Counts, base: Counts | None = None) -> stats.Clusters:
    """Return the clusters of one run, each with its counts of `base` if that is given."""
    import numpy as np

    from chessreg.queries import stats

    table = {
        "hits": np.array([counts[key].hits for key in counts]),
        "trials": np.array([counts[key].trials for key in counts]),
    }
    if base is not None:
        table |= {
            "base_hits": np.array([base[key].hits for key in counts]),
            "base_trials": np.array([base[key].trials for key in counts]),
        }
    return stats.Clusters(table, np.ones(len(counts), np.int64))


def find_ends(estimate: stats.Estimate, scale: float) -> tuple[float | None, float | None]:
    """Return the ends of an interval times `scale`."""
    low, high = (None if end is None else scale * end for end in estimate[1:])
    return low, high
