"""Matches: the ladder, the levels of Figure 2, the sweep of skill edits, and the arms of Tables 3 and 7."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from chessreg.experiments.vector.spec import convert_coefficient
from chessreg.papers.cost import forward
from chessreg.papers.karvonen.readout import PROBE, PROBE_PAPER, SKILL, SKILL_PAPER, TOKENS_A_TREE, controls
from chessreg.papers.karvonen.settings import ONE_SIDED, published
from chessreg.papers.karvonen.sizes import SIZES, Size
from chessreg.papers.plan import Made, Request, Step, Values
from chessreg.runs.cost import search_seconds

POLICIES = {"retry": "retry:5", "legal": "legal"}
LADDER, SWEEP = "choice of the opponent", "Table 6"
CHOICES = (LADDER, SWEEP)
SIGNS = {"positive": 1, "negative": -1}
LEGAL = 98.0  # %: the paper's condition for an edit of skill; or, where the unedited model's own share is lower,
LEGAL_LOSS = 2.0  # so many points below that: the paper's models have 99.6 and 99.8
TOKENS_A_MOVE, TOKENS_OF_CONTEXT = 12, 1023  # about, of both sides; what a game can be long
OPENINGS = {"standard": "standard", "random": "random:20"}


def matches(request: Request, size: Size) -> Iterator[Step]:
    """Yield the ladder, the levels of Figure 2, the sweep of skill edits, and the arms of Tables 3 and 7."""
    for number, opponent in enumerate(size.levels):
        yield game_step(request, f"level-{number}", "Figure 2", size.level_games, opponent=opponent)
    for opening in OPENINGS:
        yield from published_arms(request, size, opening)
    for policy in POLICIES:
        for opening in OPENINGS:
            yield from ladder_and_arms(request, size, policy, opening)
    arms = [f"arm-{policy}-random-{arm}" for policy in POLICIES for arm in ("none", "positive", "negative")]
    for arm in arms:
        yield Step(
            f"quality-{arm.removeprefix('arm-')}", "move-quality",
            {"play": f"@{arm}", "games": min(size.match_games, 100), "judge_limit": size.judge},
            "move quality", units=min(size.match_games, 100), rows={"prediction": 30 * min(size.match_games, 100)},
            engine_seconds=2 * 30 * min(size.match_games, 100) * search_seconds(size.judge),
        )  # fmt: skip


def engines(size: Size) -> Iterator[Step]:
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
                size.move_limit * (search_seconds(size.engine_limits[0]) + search_seconds(limit))
                + search_seconds(size.adjudication)
            ),
        )  # fmt: skip


def game_step(
    request: Request,
    name: str,
    serves: str,
    games: int,
    after: tuple[str, ...] = (),
    settings: Any = None,
    **values: Any,
) -> Step:
    """Return a match under the paper's protocol, with other `values` of some settings."""
    size = SIZES[request.size]
    common = {
        "preset": "paper",
        "checkpoint": request.checkpoint,
        "games": games,
        "move_limit": size.move_limit,
        "adjudication": size.adjudication,
    }

    def follow(made: Made) -> Values:
        return {**common, **values, **settings(made)}

    settings_of_step = {**common, **values} if settings is None else follow
    moves = min(size.move_limit, TOKENS_OF_CONTEXT // TOKENS_A_MOVE)
    trees = moves * TOKENS_A_TREE if values.get("policy") == "legal" else 0
    thought = max(map(search_seconds, size.rungs)) if settings else search_seconds(values["opponent"])
    return Step(
        name, "play", settings_of_step, serves, after, units=games, rows={"game": games}, choice=serves in CHOICES,
        operations=forward(request, games * (moves * TOKENS_A_MOVE + trees)),
        engine_seconds=games * (moves * thought + search_seconds(size.adjudication)),
    )  # fmt: skip


def published_arms(request: Request, size: Size, opening: str) -> Iterator[Step]:
    """Yield Tables 3 and 7 as published: level 0, and the layers and scales of Tables 6 and 7.

    The vectors of the paper and of `skill-paper` are sums over eight positions, so its scales are used as printed. The
    paper does not state the boards of Table 7 and of the one-sided directions of Appendix C.
    """
    tables = [("table-3", "Table 3", 6, SKILL_PAPER), ("table-7", "Table 7", 7, PROBE_PAPER)]
    if size.whole:
        tables += [(f"appendix-c-{side}", "Appendix C", 7, f"skill-of-probe-{side}") for side in ONE_SIDED]
    protocol: dict[str, Any] = {"opponent": size.level_0, "opening": OPENINGS[opening]}
    yield game_step(request, f"table-3-{opening}-none", "Tables 3 and 7", size.match_games, **protocol)
    for name, serves, table, vector in tables:
        for edit in published(table, tuple(SIGNS), request.layers, every=size.whole):
            intervention = {
                "vector": f"@{vector}", "layers": edit.layers, "scale": edit.scale, "layers_label": edit.label
            }  # fmt: skip
            yield game_step(
                request, f"{name}-{opening}-{edit.goal}-{edit.counted}", serves, size.match_games,
                intervention=intervention, **protocol,
            )  # fmt: skip
            for source, draw, direction in controls(vector, size):
                yield game_step(
                    request, f"{source}-{draw}-{name}-{opening}-{edit.goal}-{edit.counted}", f"controls of {serves}",
                    size.control_games, intervention={**intervention, "vector": f"@{direction}"}, **protocol,
                )  # fmt: skip


def ladder_and_arms(request: Request, size: Size, policy: str, opening: str) -> Iterator[Step]:
    """One protocol: rungs until one suits, the sweep (random openings only), and every arm on the same openings."""
    end = f"{policy}-{opening}"
    protocol = {"opening": OPENINGS[opening], **policy_settings(policy, size)}
    rungs = tuple(f"ladder-{end}-{number}" for number in range(len(size.rungs)))
    for name, opponent in zip(rungs, size.rungs, strict=True):
        yield game_step(request, name, LADDER, size.ladder_games, opponent=opponent, opening_seed=2, **protocol)

    def rung(made: Made) -> str:
        return size.rungs[suitable([score(made, name) for name in rungs])]

    unedited = f"sweep-{policy}-none"
    sweep = {
        (which, layers, scale): f"sweep-{policy}-{which}-{layers}-{scale:g}"
        for which in ("positive", "negative")
        for layers in range(len(skill_layers(request.layers)))
        for scale in size.skill_scales
    }
    if opening == "random":
        yield game_step(
            request, unedited, SWEEP, size.sweep_matches, rungs,
            lambda made: {"opponent": rung(made)}, opening_seed=1, **protocol,
        )  # fmt: skip
        for (which, layers, scale), name in sweep.items():
            yield game_step(
                request, name, SWEEP, size.sweep_matches, (SKILL, *rungs),
                lambda made, a=layers, s=scale, w=which: {
                    "opponent": rung(made),
                    "intervention": edit_of(made, SKILL, skill_layers(request.layers)[a], SIGNS[w] * s),
                },
                opening_seed=1, **protocol,
            )  # fmt: skip

    def best(made: Made, which: str) -> tuple[tuple[int, ...], float]:
        """Layers and scale of the sweep's best edit that kept the model legal, or the paper's if there is none."""
        sign, whole = SIGNS[which], legality(made, unedited, policy)
        floor = LEGAL if whole is None else min(LEGAL, whole - LEGAL_LOSS)
        points = {}
        for (w, a, s), name in sweep.items():
            legal, point = legality(made, name, policy), score(made, name)
            if w == which and legal is not None and legal >= floor and point is not None and 0 < point < 1:
                points[a, s] = point
        if not points:
            edit = next(published(6, (which,), request.layers, every=False))
            return edit.layers, convert_coefficient(edit.scale, positions_summed=1)
        layers, scale = max(points, key=lambda key: (sign * points[key], -key[1]))
        return skill_layers(request.layers)[layers], sign * scale

    needed = (SKILL, unedited, *rungs, *sweep.values())
    yield game_step(
        request, f"arm-{end}-none", "Tables 3 and 7", size.match_games, rungs,
        lambda made: {"opponent": rung(made)}, **protocol,
    )  # fmt: skip
    for which in SIGNS:
        arms = [(which, SKILL, "Table 3")]
        if opening == "random":
            arms.append((f"{which}-of-probe", PROBE, "Table 7"))
        for arm, vector, serves in arms:
            played = [(arm, vector, serves, size.match_games)]
            for source, draw, direction in controls(vector, size):
                played.append((f"{arm}-{source}-{draw}", direction, f"controls of {serves}", size.control_games))
            for name, direction, why, games in played:
                yield game_step(
                    request, f"arm-{end}-{name}", why, games, (*needed, direction),
                    lambda made, w=which, v=vector, d=direction: {
                        "opponent": rung(made), "intervention": edit_of(made, d, *matched(made, v, *best(made, w)))
                    },
                    **protocol,
                )  # fmt: skip


def policy_settings(policy: str, size: Size) -> dict[str, Any]:
    """Return the settings of a policy: the paper's retry rule as in its preset, or `legal`, which draws legal moves
    only."""
    if policy == "retry":
        return {"policy": POLICIES[policy]}
    return {"policy": "legal", "move_tokens": 0}


def skill_layers(layers: int) -> list[tuple[int, ...]]:
    """The paper's choices (Table 6) for any depth, without the last block: the later layers, and the middle ones."""
    if layers < 3:
        return [tuple(range(layers - 1))] if layers > 1 else [(0,)]
    later = tuple(range(2 * layers // 3, layers - 1)) or (layers - 2,)
    middle = tuple(range(max(0, layers // 2 - 1), layers - 1))
    return [later] if later == middle else [later, middle]


def edit_of(made: Made, vector: str, layers: tuple[int, ...], scale: float) -> dict[str, Any]:
    return {"vector": made.references[vector], "layers": layers, "scale": scale}


def matched(made: Made, vector: str, layers: tuple[int, ...], scale: float) -> tuple[tuple[int, ...], float]:
    """Return the layers, and the scale that makes a vector as long as the contrastive one. A probe's vector has length
    1."""
    return layers, scale if vector == SKILL else round(scale * mean_norm(made, layers), 3)


def mean_norm(made: Made, layers: tuple[int, ...]) -> float:
    """Return the mean length of the contrastive vectors of these layers."""
    from chessreg.registry import tables

    inputs = made.session.inputs
    rows = inputs.rows(tables.Vector, inputs.run(made.references[SKILL], "vector"))
    norms = [row.norm for row in rows if row.layer in layers]
    return float(sum(norms) / len(norms))


def score(made: Made, step: str) -> float | None:
    """Return the points per game of a match, or None if no game counts."""
    return of_match(made, step, "score")


def of_match(made: Made, step: str, column: str) -> float | None:
    """Return a column of a match's row, or None if the row or the value is missing."""
    return next((float(row[column]) for row in made.query("elo by intervention", step).rows
                 if row[column] is not None), None)  # fmt: skip


def legality(made: Made, step: str, policy: str) -> float | None:
    """Return the share of legal moves, %: of first tries, or the mean exact mass if no text is written. None without a
    move."""
    if policy != "legal":
        return of_match(made, step, "first_try_legal")
    return made.value(f"SELECT 100 * avg(legal_mass) AS value FROM play_game WHERE run_id = UUID '{made.run_id(step)}'")


def suitable(scores: Sequence[float | None]) -> int:
    """Return the index of the rung whose score is nearest to half of the points. Rungs without games come last."""
    distances = [math.inf if score is None else abs(score - 0.5) for score in scores]
    return distances.index(min(distances))
