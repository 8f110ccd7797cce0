"""Intervals of the results in lists of runs, estimated like those of catalogue queries."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy.orm import Session

from chessreg.named import format_count
from chessreg.registry import measures
from chessreg.registry.measures import ClusterCounts, get_measure_scale

if TYPE_CHECKING:
    from chessreg.queries import stats


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
    scale = get_measure_scale(answer["measure"])
    row["low"], row["high"] = find_rate_ends(own_counts, scale)
    if answer["change"] is None:
        return row
    if answer["than"] == "clean":
        base = measures.read_cluster_counts(session, run_id, answer["measure"], "clean")
    else:
        before = measures.find_earlier_measure(session, run_id, answer["measure"])
        base = {} if before is None else measures.read_cluster_counts(session, before[0], answer["measure"])
    if base:
        difference = stats.estimate_cell_difference(make_cell(own_counts), make_cell(base))
        row["change_low"], row["change_high"] = find_ends(difference, scale)
    return row


def find_rate_ends(counts: ClusterCounts, scale: float = 1) -> tuple[float | None, float | None]:
    """Return the ends of the 95 % interval of hits per trial, times `scale`. An unknown end is None."""
    from chessreg.queries import stats

    return find_ends(stats.estimate_rate(stats.build_clusters(make_cell(counts)), "hits", "trials"), scale)


def make_cell(counts: ClusterCounts) -> stats.Cell:
    """Return the hits and trials of each part of a cluster, by the cluster's text."""
    return {(str(cluster), part): (count.hits, count.trials) for (cluster, part), count in counts.items()}


def find_ends(estimate: stats.Estimate, scale: float) -> tuple[float | None, float | None]:
    """Return the ends of an interval times `scale`."""
    low, high = (None if end is None else scale * end for end in estimate[1:])
    return low, high
