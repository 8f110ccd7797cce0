"""Headline results of runs: one number for each run, and its difference from an earlier run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, and_, case, func, literal, null, select
from sqlalchemy.orm import Session

from chessreg.registry import identity, names, tables

Row = dict[str, Any]

CURVE_METRICS = ("heldout_loss", "validation_loss", "loss")  # in order of preference
MASKED_POLICIES = ("legal", "trie")
"""Policies that choose among the legal moves. Their legal first tries measure nothing, and lists leave them out."""


def read_curve(session: Session, run_id: UUID, most: int = 400) -> tuple[str, list[tuple[int, float]]] | None:
    """Return the name and the last `most` points (step, value) of the metric that shows a run's progress, or None.

    The metric is the loss on held-out data if recorded, else the training loss, of the newest unit that has it.
    """
    point = tables.MetricPoint
    sites = set(
        session.scalars(select(point.name).where(point.run_id == run_id, point.name.in_(CURVE_METRICS)).distinct())
    )
    name = next((name for name in CURVE_METRICS if name in sites), None)
    if name is None:
        return None
    of_curve = (point.run_id == run_id, point.name == name)
    unit = session.scalar(select(func.max(point.unit)).where(*of_curve))
    newest_row = (
        select(point.step, point.value).where(*of_curve, point.unit == unit).order_by(point.step.desc()).limit(most)
    )
    return name, [(step, value) for step, value in reversed(session.execute(newest_row).all())]


class Measure(NamedTuple):
    """A named result. `clean` is the same result without the edit, in the same states."""

    name: str
    value: float
    clean: float | None = None


def read_measures(session: Session, run_id: UUID) -> list[Measure]:
    """Return the results of a run, the most important first.

    These are the model's score in games (0 to 1), legal moves on the board that an edit aims at (texts in %,
    probability mass from 0 to 1), a probe's accuracy (%, of the layer that is best on validation; test games first),
    or the last value of its curve.
    """
    measures = measure_games(session, run_id) or measure_edits(session, run_id) or measure_probe(session, run_id)
    if not measures and (curve := read_curve(session, run_id, 1)) is not None and curve[1]:
        measures = [Measure(curve[0].replace("_", " "), curve[1][-1][1])]
    return measures


def build_game_points_sql(white: ColumnElement[bool]) -> ColumnElement[float | None]:
    """Return the SQL expression of a game's points for the model, NULL without a result or an evaluation.

    `white` is the condition that the model plays White. The rule is `paper` of chessreg.games.boards.adjudication.
    """
    from chessreg.games.boards.adjudication import WIN_CP

    game = tables.Game
    points_won = case((white, game.result == "1-0"), else_=game.result == "0-1")
    own_centipawns = case((white, game.adjudication_cp), else_=-game.adjudication_cp)
    return case(
        (game.result == "1/2-1/2", 0.5), (and_(game.result != "*", points_won), 1.0), (game.result != "*", 0.0),
        (own_centipawns > WIN_CP, 1.0), (own_centipawns < -WIN_CP, 0.0),
        (own_centipawns.is_not(None), 0.5), else_=null(),
    )  # fmt: skip


def measure_games(session: Session, run_id: UUID) -> list[Measure]:
    """Return the mean score of a run's games, from 0 to 1, if it has any."""
    game, match = tables.Game, tables.Match
    mean = (
        select(func.avg(build_game_points_sql(match.color == "white")))
        .select_from(game)
        .join(match, and_(match.run_id == game.run_id, match.number == game.match))
        .where(game.run_id == run_id)
    )
    score = session.scalar(mean)
    return [] if score is None else [Measure("score", float(score))]


def measure_edits(session: Session, run_id: UUID) -> list[Measure]:
    """Return the share of legal moves with and without the edit, for a run with a single edit.

    From sampled texts, or from exact probabilities if none were sampled.
    """
    trial = tables.Trial
    legal = case((trial.sample >= 0, case((trial.legal_modified.is_(True), 1.0), else_=0.0)))
    query = (
        select(trial.condition, func.avg(legal), func.avg(trial.mass_modified))
        .where(trial.run_id == run_id, trial.condition.in_(("clean", "edit")))
        .group_by(trial.condition)
    )
    rows = {condition: (texts, mass) for condition, texts, mass in session.execute(query)}
    edit, clean_rows = rows.get("edit", (None, None)), rows.get("clean", (None, None))
    names_and_scales = (("legal on modified %", 100), ("legal mass on modified", 1))
    return [
        Measure(name, scale * float(value), None if clean_value is None else scale * float(clean_value))
        for (name, scale), value, clean_value in zip(names_and_scales, edit, clean_rows, strict=True)
        if value is not None
    ]


def measure_probe(session: Session, run_id: UUID) -> list[Measure]:
    """Return the accuracy in percent for each split, for the layer with the highest validation accuracy."""
    return [
        Measure(f"{'best layer, ' if layers > 1 else ''}{split} %", share)
        for split, (_, share, layers) in find_best_layers(session, run_id).items()
    ]


def find_best_layers(session: Session, run_id: UUID) -> dict[str, tuple[int | None, float, int]]:
    """Return split → the layer that is best on validation, its accuracy there in %, and how many layers there are; the
    split of test games first."""
    score = tables.Score
    query = (
        select(score.split, score.layer, func.sum(score.correct), func.sum(score.n))
        .where(score.run_id == run_id, score.item >= 0)
        .group_by(score.split, score.layer)
    )
    splits: dict[str, dict[int | None, float]] = defaultdict(dict)
    for split, layer, correct, n in session.execute(query):
        if n:
            splits[split][layer] = 100 * float(correct) / float(n)
    best_layers = {}
    for split in sorted(splits, key=lambda split: (split != "test", split)):
        layers = splits[split]
        chosen_on = splits.get("validation", layers)
        best_layer = max(layers, key=lambda layer: chosen_on.get(layer, 0.0))
        best_layers[split] = best_layer, layers[best_layer], len(layers)
    return best_layers


class ClusterCount(NamedTuple):
    """The number of observations in a part of a cluster, and their hits out of their trials."""

    number: int
    hits: float
    trials: float


# (cluster, part of it) → counts. The parts of an opening are the model's colors; other clusters have one part.
ClusterCounts = dict[tuple[tuple[Any, ...], str], ClusterCount]


def read_cluster_counts(session: Session, run_id: UUID, measure: str, condition: str = "edit") -> ClusterCounts:
    """Return the counts behind a share, clustered as by the catalogue's queries: games by opening,
    states of an edit (under `condition`) and scores of a probe by game. Empty for other measures."""
    key: tuple[Any, ...]
    conditions: tuple[Any, ...]
    source: Any
    part: Any = literal("")
    best_layers = find_best_layers(session, run_id)
    split = measure.removesuffix(" %").removeprefix("best layer, ")
    if measure == "score":
        game, match = tables.Game, tables.Match
        key, points = (
            (match.opening, match.opening_seed, game.opening_number),
            build_game_points_sql(match.color == "white"),
        )
        conditions, part = (game.run_id == run_id, points.is_not(None)), match.color
        source = select(*key, part, func.count(), func.sum(points), func.count()).select_from(game)
        source = source.join(match, and_(match.run_id == game.run_id, match.number == game.match))
    elif measure in ("legal on modified %", "legal mass on modified"):
        trial, key = tables.Trial, (tables.Trial.item,)
        legal: Any = case((trial.legal_modified.is_(True), 1.0), else_=0.0)
        value, sample_condition = (
            (legal, trial.sample >= 0) if measure.startswith("legal on") else (trial.mass_modified, None)
        )
        conditions = (
            trial.run_id == run_id,
            trial.condition == condition,
            value.is_not(None) if sample_condition is None else sample_condition,
        )
        source = select(*key, part, func.count(trial.unit.distinct()), func.sum(value), func.count())
    elif split in best_layers:
        score, key = tables.Score, (tables.Score.item,)
        layer = score.layer.is_not_distinct_from(best_layers[split][0])
        conditions = (score.run_id == run_id, score.split == split, layer, score.item >= 0)
        source = select(*key, part, func.count(score.item.distinct()), func.sum(score.correct), func.sum(score.n))
    else:
        return {}
    rows = session.execute(source.where(*conditions).group_by(*key, part))
    return {(tuple(row[: len(key)]), row[-4]): ClusterCount(row[-3], float(row[-2]), float(row[-1])) for row in rows}


def compute_paired_change(own_counts: ClusterCounts, base_counts: ClusterCounts, scale: int) -> float | None:
    """Return the share of hits in `own_counts` minus that in `base_counts`, times `scale`.

    Counts only the parts of clusters in both arguments. None if they share no part or a side has no trials.
    """
    shared_keys = own_counts.keys() & base_counts.keys()
    shares = []
    for counts in (own_counts, base_counts):
        trials = math.fsum(counts[key].trials for key in shared_keys)
        if not trials:
            return None
        shares.append(scale * math.fsum(counts[key].hits for key in shared_keys) / trials)
    return shares[0] - shares[1]


def get_measure_scale(measure: str) -> int:
    """Return the value of this measure at a share of 1: 100 for a percentage."""
    return 100 if measure.endswith("%") else 1


NEWEST_ENDED_RUNS = 50  # runs whose results both front ends read
MAX_EARLIER_RUNS = 100  # complete runs of a kind that are considered for a comparison
# Settings that may differ between compared runs: sample sizes, seeds, optimization and the edit. Runs that differ in
# any other setting (checkpoint, opponent, label, dataset) are not compared.
FREE_SETTINGS = {
    *("seed", "replicate", "games", "intervention", "layers", "scale", "scales", "scale_rule", "precision", "stop"),
    *("against", "epochs", "steps", "packing", "batch_positions", "batch_games", "batch_tokens", "batch_moves"),
    *("optimizer", "learning_rate", "muon_learning_rate", "schedule", "warmup_steps", "decay_steps", "final_fraction"),
    *("weight_decay", "beta1", "beta2", "grad_clip", "dropout", "init", "normalize_activations"),
}


def compare_with_earlier(session: Session, run_ids: Sequence[UUID]) -> dict[UUID, Row]:
    """Return run id → row with `measure`, `value`, `change` and `than`; runs without a measure are left out.

    `value` is the run's first measure. `change` is its difference from the reference named in `than`: `clean`, or the
    name of the first run of `find_comparable_runs` with the same measure. Runs that share games, openings or states are
    compared on these, as in the catalogue's queries. Both are None without a reference.
    """
    rows = dict[UUID, Row]()
    for run_id in run_ids:
        if not (measures := read_measures(session, run_id)):
            continue
        name, value, is_clean = measures[0]
        row: Row = {"measure": name, "value": value, "change": None, "than": None}
        if is_clean is not None:
            row |= {"change": value - is_clean, "than": "clean"}
        elif (earlier_measure := find_earlier_measure(session, run_id, name)) is not None:
            before, earlier_value = earlier_measure
            run_name = names.read_names_of(session, "run", [before]).get(before) or identity.shorten_id(before.hex)
            own_counts, base_counts = (read_cluster_counts(session, run, name) for run in (run_id, before))
            change = compute_paired_change(own_counts, base_counts, get_measure_scale(name))
            change = value - earlier_value if change is None else change
            row |= {"change": change, "than": run_name}
        rows[run_id] = row
    return rows


def find_earlier_measure(session: Session, run_id: UUID, measure: str) -> tuple[UUID, float] | None:
    """Return the first of the comparable earlier runs that has this measure, with its value; None if none has it."""
    for before in find_comparable_runs(session, run_id):
        value = next((other.value for other in read_measures(session, before) if other.name == measure), None)
        if value is not None:
            return before, value
    return None


def find_comparable_runs(session: Session, run_id: UUID) -> list[UUID]:
    """Return earlier complete runs that asked the same question of the same model, best match first.

    They have the same kind and version, and differ only in FREE_SETTINGS. Sorted by the number of different settings;
    then games without an intervention, whose difference is its effect, before those with another one; then runs that
    read no additional inputs first; then by the number of shared inputs; then newest first.
    """
    run, run_input = tables.Run, tables.RunInput
    record = session.get_one(run, run_id)
    earlier_run = session.execute(
        select(run.id, run.spec)
        .where(run.kind == record.kind, run.version == record.version, run.completed_at.is_not(None), run.id != run_id)
        .where(run.created_at < record.created_at)
        .order_by(run.created_at.desc(), run.id)
        .limit(MAX_EARLIER_RUNS)
    )
    comparable_runs = dict[UUID, tuple[int, bool]]()
    for id, spec in earlier_run:
        differing_names = {name for name in spec.keys() | record.spec.keys() if spec.get(name) != record.spec.get(name)}
        if differing_names <= FREE_SETTINGS:
            has_vector = (spec.get("intervention") or {}).get("vector") is not None
            comparable_runs[id] = len(differing_names), has_vector
    inputs = defaultdict[UUID, set[str]](set)
    for id, reference in session.execute(
        select(run_input.run_id, run_input.reference).where(run_input.run_id.in_([run_id, *comparable_runs]))
    ):
        inputs[id].add(reference)
    run_inputs = inputs[run_id]
    return sorted(
        comparable_runs,
        key=lambda id: (comparable_runs[id], not inputs[id] <= run_inputs, -len(inputs[id] & run_inputs)),
    )
