"""Matches: the ladder, the levels of Figure 2, the sweep of skill edits, and the arms of Tables 3 and 7."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from chessreg.experiments.vector.spec import convert_coefficient
from chessreg.papers.cost import count_forward_operations
from chessreg.papers.karvonen.readout import (
    PAPER_PROBE_STEP,
    PAPER_SKILL_STEP,
    PROBE_STEP,
    SKILL_STEP,
    TOKENS_PER_TREE,
    list_vector_controls,
)
from chessreg.papers.karvonen.settings import ONE_SIDED, list_published_edits
from chessreg.papers.karvonen.sizes import SIZES, KarvonenSize
from chessreg.papers.plan import CompleteSteps, Request, Step, Values
from chessreg.runs.cost import estimate_search_seconds

POLICIES = {"retry": "retry:5", "legal": "legal"}
LADDER, SWEEP = "choice of the opponent", "Table 6"
CHOICES = (LADDER, SWEEP)
SIGNS = {"positive": 1, "negative": -1}
MIN_LEGAL_PERCENT = 98.0  # the paper's condition for a skill edit
MAX_LEGAL_LOSS_POINTS = 2.0  # if the unedited model is less legal, this far below it (the paper's models: 99.6, 99.8)
TOKENS_PER_MOVE, MAX_GAME_TOKENS = 12, 1023  # of both sides, approximate; the model's context
OPENINGS = {"standard": "standard", "random": "random:20"}


def plan_karvonen_matches(request: Request, size: KarvonenSize) -> Iterator[Step]:
    """Yield the ladder, the levels of Figure 2, the sweep of skill edits, and the arms of Tables 3 and 7."""
    for number, opponent in enumerate(size.levels):
        yield plan_match(request, f"level-{number}", "Figure 2", size.level_games, opponent=opponent)
    for opening in OPENINGS:
        yield from plan_published_arms(request, size, opening)
    for policy in POLICIES:
        for opening in OPENINGS:
            yield from plan_ladder_and_arms(request, size, policy, opening)
    arms = [f"arm-{policy}-random-{arm}" for policy in POLICIES for arm in ("none", "positive", "negative")]
    for arm in arms:
        yield Step(
            f"quality-{arm.removeprefix('arm-')}", "move-quality",
            {"play": f"@{arm}", "games": min(size.match_games, 100), "judge_limit": size.judge},
            "move quality", units=min(size.match_games, 100), rows={"prediction": 30 * min(size.match_games, 100)},
            engine_seconds=2 * 30 * min(size.match_games, 100) * estimate_search_seconds(size.judge),
        )  # fmt: skip


def plan_engine_matches(size: KarvonenSize) -> Iterator[Step]:
    """Yield Appendix E: level 0 as White against itself with equal and with more time."""
    for number, limit in enumerate(size.engine_limits):
        settings = {
            "player": f"stockfish:0@{size.engine_limits[0]}",
            "opponent": f"stockfish:0@{limit}",
            "games": size.level_games,
            "move_limit": size.move_limit,
            "adjudication": size.adjudication,
        }
        yield Step(
            f"engines-{number}", "engine-match", settings, "Appendix E", units=size.level_games,
            rows={"game": size.level_games},
            engine_seconds=size.level_games * (
                size.move_limit * (estimate_search_seconds(size.engine_limits[0]) + estimate_search_seconds(limit))
                + estimate_search_seconds(size.adjudication)
            ),
        )  # fmt: skip


def plan_match(
    request: Request,
    name: str,
    serves: str,
    games: int,
    after: tuple[str, ...] = (),
    settings: Any = None,
    **values: Any,
) -> Step:
    """Return the step of a match under the paper's protocol, with `values` in place of some of its settings.

    `serves` is the question of the paper, and `settings` a function of the steps in `after` that returns more settings.
    """
    size = SIZES[request.size]
    common_values = {
        "preset": "paper",
        "checkpoint": request.checkpoint,
        "games": games,
        "move_limit": size.move_limit,
        "adjudication": size.adjudication,
    }

    def follow(steps: CompleteSteps) -> Values:
        return {**common_values, **values, **settings(steps)}

    settings_of_step = {**common_values, **values} if settings is None else follow
    moves = min(size.move_limit, MAX_GAME_TOKENS // TOKENS_PER_MOVE)
    trees = moves * TOKENS_PER_TREE if values.get("policy") == "legal" else 0
    search_s = (
        max(map(estimate_search_seconds, size.rungs)) if settings else estimate_search_seconds(values["opponent"])
    )
    return Step(
        name, "play", settings_of_step, serves, after, units=games, rows={"game": games}, choice=serves in CHOICES,
        operations=count_forward_operations(request, games * (moves * TOKENS_PER_MOVE + trees)),
        engine_seconds=games * (moves * search_s + estimate_search_seconds(size.adjudication)),
    )  # fmt: skip


def plan_published_arms(request: Request, size: KarvonenSize, opening: str) -> Iterator[Step]:
    """Yield Tables 3 and 7 as published: level 0, and the layers and scales of Tables 6 and 7.

    The vectors of the paper and of `skill-paper` are sums over eight positions, so its scales are used as printed. The
    paper does not state the boards of Table 7 and of the one-sided directions of Appendix C.
    """
    tables = [("table-3", "Table 3", 6, PAPER_SKILL_STEP), ("table-7", "Table 7", 7, PAPER_PROBE_STEP)]
    if size.is_full:
        tables += [(f"appendix-c-{side}", "Appendix C", 7, f"skill-of-probe-{side}") for side in ONE_SIDED]
    protocol: dict[str, Any] = {"opponent": size.level_0, "opening": OPENINGS[opening]}
    yield plan_match(request, f"table-3-{opening}-none", "Tables 3 and 7", size.match_games, **protocol)
    for name, serves, table, vector in tables:
        for edit in list_published_edits(table, tuple(SIGNS), request.layers, every=size.is_full):
            intervention = {
                "vector": f"@{vector}", "layers": edit.layers, "scale": edit.scale, "layers_label": edit.label
            }  # fmt: skip
            yield plan_match(
                request, f"{name}-{opening}-{edit.goal}-{edit.layer_counting}", serves, size.match_games,
                intervention=intervention, **protocol,
            )  # fmt: skip
            for source, draw, direction in list_vector_controls(vector, size):
                yield plan_match(
                    request, f"{source}-{draw}-{name}-{opening}-{edit.goal}-{edit.layer_counting}",
                    f"controls of {serves}", size.control_games,
                    intervention={**intervention, "vector": f"@{direction}"}, **protocol,
                )  # fmt: skip


def plan_ladder_and_arms(request: Request, size: KarvonenSize, policy: str, opening: str) -> Iterator[Step]:
    """Yield one protocol: the ladder, the sweep (random openings only), and every arm on the same openings.

    The opponent of the sweep and the arms is the rung at which the model's score is nearest to half of the points.
    """
    end = f"{policy}-{opening}"
    protocol = {"opening": OPENINGS[opening], **get_policy_settings(policy, size)}
    rungs = tuple(f"ladder-{end}-{number}" for number in range(len(size.rungs)))
    for name, opponent in zip(rungs, size.rungs, strict=True):
        yield plan_match(request, name, LADDER, size.ladder_games, opponent=opponent, opening_seed=2, **protocol)

    def rung(steps: CompleteSteps) -> str:
        return size.rungs[find_even_rung([read_match_score(steps, name) for name in rungs])]

    baseline = f"sweep-{policy}-none"
    sweep = {
        (sign_name, layers, scale): f"sweep-{policy}-{sign_name}-{layers}-{scale:g}"
        for sign_name in ("positive", "negative")
        for layers in range(len(list_skill_layers(request.layers)))
        for scale in size.skill_scales
    }
    if opening == "random":
        yield plan_match(
            request, baseline, SWEEP, size.sweep_matches, rungs,
            lambda steps: {"opponent": rung(steps)}, opening_seed=1, **protocol,
        )  # fmt: skip
        for (sign_name, layers, scale), name in sweep.items():
            yield plan_match(
                request, name, SWEEP, size.sweep_matches, (SKILL_STEP, *rungs),
                lambda steps, a=layers, s=scale, w=sign_name: {
                    "opponent": rung(steps),
                    "intervention": build_skill_edit(steps, SKILL_STEP, list_skill_layers(request.layers)[a],
                                                     SIGNS[w] * s),
                },
                opening_seed=1, **protocol,
            )  # fmt: skip

    def best(steps: CompleteSteps, sign_name: str) -> tuple[tuple[int, ...], float]:
        """Return layers and scale of the sweep's best edit that kept the model legal, or else those of the paper."""
        sign, legality = SIGNS[sign_name], measure_legality(steps, baseline, policy)
        floor = MIN_LEGAL_PERCENT if legality is None else min(MIN_LEGAL_PERCENT, legality - MAX_LEGAL_LOSS_POINTS)
        points = {}
        for (w, a, s), name in sweep.items():
            legal, point = measure_legality(steps, name, policy), read_match_score(steps, name)
            if w == sign_name and legal is not None and legal >= floor and point is not None and 0 < point < 1:
                points[a, s] = point
        if not points:
            edit = next(list_published_edits(6, (sign_name,), request.layers, every=False))
            return edit.layers, convert_coefficient(edit.scale, positions_summed=1)
        layers, scale = max(points, key=lambda key: (sign * points[key], -key[1]))
        return list_skill_layers(request.layers)[layers], sign * scale

    dependencies = (SKILL_STEP, baseline, *rungs, *sweep.values())
    yield plan_match(
        request, f"arm-{end}-none", "Tables 3 and 7", size.match_games, rungs,
        lambda steps: {"opponent": rung(steps)}, **protocol,
    )  # fmt: skip
    for sign_name in SIGNS:
        arms = [(sign_name, SKILL_STEP, "Table 3")]
        if opening == "random":
            arms.append((f"{sign_name}-of-probe", PROBE_STEP, "Table 7"))
        for arm, vector, serves in arms:
            match_arms = [(arm, vector, serves, size.match_games)]
            for source, draw, direction in list_vector_controls(vector, size):
                match_arms.append((f"{arm}-{source}-{draw}", direction, f"controls of {serves}", size.control_games))
            for name, direction, purpose, games in match_arms:
                yield plan_match(
                    request, f"arm-{end}-{name}", purpose, games, (*dependencies, direction),
                    lambda steps, w=sign_name, v=vector, d=direction: {
                        "opponent": rung(steps),
                        "intervention": build_skill_edit(steps, d, *match_vector_length(steps, v, *best(steps, w)))
                    },
                    **protocol,
                )  # fmt: skip


def get_policy_settings(policy: str, size: KarvonenSize) -> dict[str, Any]:
    """Return the settings of a policy: the paper's retry rule as in its preset, or `legal`, which draws legal moves
    only."""
    if policy == "retry":
        return {"policy": POLICIES[policy]}
    return {"policy": "legal", "move_tokens": 0}


def list_skill_layers(layers: int) -> list[tuple[int, ...]]:
    """Return the paper's layers (Table 6) for any depth, without the last block: the later and the middle layers."""
    if layers < 3:
        return [tuple(range(layers - 1))] if layers > 1 else [(0,)]
    later = tuple(range(2 * layers // 3, layers - 1)) or (layers - 2,)
    middle = tuple(range(max(0, layers // 2 - 1), layers - 1))
    return [later] if later == middle else [later, middle]


def build_skill_edit(steps: CompleteSteps, vector: str, layers: tuple[int, ...], scale: float) -> dict[str, Any]:
    return {"vector": steps.references[vector], "layers": layers, "scale": scale}


def match_vector_length(
    steps: CompleteSteps, vector: str, layers: tuple[int, ...], scale: float
) -> tuple[tuple[int, ...], float]:
    """Return the layers, and the scale that gives `vector` the length of the contrastive vector.

    A probe's vector has length 1.
    """
    return layers, scale if vector == SKILL_STEP else round(scale * measure_mean_norm(steps, layers), 3)


def measure_mean_norm(steps: CompleteSteps, layers: tuple[int, ...]) -> float:
    """Return the mean length of the contrastive vectors of these layers."""
    from chessreg.registry import tables

    inputs = steps.session.inputs
    rows = inputs.rows(tables.VectorRecord, inputs.run(steps.references[SKILL_STEP], "vector"))
    norms = [row.norm for row in rows if row.layer in layers]
    return float(sum(norms) / len(norms))


def read_match_score(steps: CompleteSteps, step: str) -> float | None:
    """Return the points per game of a match, or None if no game counts."""
    return read_match_column(steps, step, "score")


def read_match_column(steps: CompleteSteps, step: str, column: str) -> float | None:
    """Return a column of a match's row, or None if the row or the value is missing."""
    return next((float(row[column]) for row in steps.query("elo by intervention", step).rows
                 if row[column] is not None), None)  # fmt: skip


def measure_legality(steps: CompleteSteps, step: str, policy: str) -> float | None:
    """Return the share of legal moves, %: of first tries, or the mean exact mass if no text is written. None without a
    move."""
    if policy != "legal":
        return read_match_column(steps, step, "first_try_legal")
    return steps.value(
        f"SELECT 100 * avg(legal_mass) AS value FROM play_game WHERE run_id = UUID '{steps.run_id(step)}'"
    )


def find_even_rung(scores: Sequence[float | None]) -> int:
    """Return the index of the rung whose score is nearest to half of the points. Rungs without games come last."""
    distances = [math.inf if score is None else abs(score - 0.5) for score in scores]
    return distances.index(min(distances))
