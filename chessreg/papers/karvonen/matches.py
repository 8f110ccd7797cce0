"""Matches: the ladder, the levels of Figure 2, the sweep of skill edits, and the arms of Tables 3 and 7."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from chessreg.papers.karvonen.settings import ONE_SIDED, published
from chessreg.papers.karvonen.sizes import SIZES, Size
from chessreg.papers.plan import Request, Step, Values
from chessreg.papers.work import Made

POLICIES = {"retry": "retry:5", "legal": "legal"}
LADDER, SWEEP = "choice of the opponent", "Table 6"
CHOICES = (LADDER, SWEEP)
SIGNS = {"positive": 1, "negative": -1}
OPENINGS = {"standard": "standard", "random": "random:20"}


def matches(request: Request, size: Size) -> Iterator[Step]:
    """The ladder, the levels of Figure 2, the sweep of skill edits, and the arms of Tables 3 and 7."""
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
            {"play": f"@{arm}", "games": min(size.match_games, 100), "limit": size.judge},
            "move quality", units=min(size.match_games, 100), rows={"prediction": 30 * min(size.match_games, 100)},
        )  # fmt: skip


def engines(size: Size) -> Iterator[Step]:
    """Appendix E: level 0 as White against itself with as much time, and with more."""
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
    """A match under the paper's protocol, but for `values`."""
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

    given = {**common, **values} if settings is None else follow
    choice = serves in CHOICES
    return Step(name, "play", given, serves, after, units=games, rows={"game": games}, choice=choice)


def published_arms(request: Request, size: Size, opening: str) -> Iterator[Step]:
    """Tables 3 and 7 as they were played: level 0, and the layers and scales of Tables 6 and 7.

    The paper's vectors are sums over eight positions, and so are those of `skill-paper`: its scales hold as printed. On
    which boards Table 7 and the one-sided directions of Appendix C were played is not stated.
    """
    tables = [("table-3", "Table 3", 6, "skill-paper"), ("table-7", "Table 7", 7, "skill-of-probe-paper")]
    if size.whole:
        tables += [(f"appendix-c-{side}", "Appendix C", 7, f"skill-of-probe-{side}") for side in ONE_SIDED]
    protocol = {"opponent": size.level_0, "opening": OPENINGS[opening]}
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


def ladder_and_arms(request: Request, size: Size, policy: str, opening: str) -> Iterator[Step]:
    """One protocol: rungs until one suits, the sweep (random openings only), and every arm on the same openings."""
    end = f"{policy}-{opening}"
    protocol = {"opening": OPENINGS[opening], **policy_settings(policy, size)}
    rungs = tuple(f"ladder-{end}-{number}" for number in range(len(size.rungs)))
    for name, opponent in zip(rungs, size.rungs, strict=True):
        yield game_step(request, name, LADDER, size.ladder_games, opponent=opponent, opening_seed=2, **protocol)

    def rung(made: Made) -> str:
        return size.rungs[suitable([score(made, name) for name in rungs])]

    sweep = {
        (which, layers, scale): f"sweep-{policy}-{which}-{layers}-{scale:g}"
        for which in ("positive", "negative")
        for layers in range(len(skill_layers(request.layers)))
        for scale in size.skill_scales
    }
    if opening == "random":
        yield game_step(
            request, f"sweep-{policy}-none", SWEEP, size.sweep_matches, rungs,
            lambda made: {"opponent": rung(made)}, opening_seed=1, **protocol,
        )  # fmt: skip
        for (which, layers, scale), name in sweep.items():
            yield game_step(
                request, name, SWEEP, size.sweep_matches, ("skill", *rungs),
                lambda made, a=layers, s=scale, w=which: {
                    "opponent": rung(made),
                    "intervention": edit_of(made, "skill", skill_layers(request.layers)[a], SIGNS[w] * s),
                },
                opening_seed=1, **protocol,
            )  # fmt: skip

    def best(made: Made, which: str) -> tuple[tuple[int, ...], float]:
        sign = SIGNS[which]
        tried = {(a, s): sign * score(made, name) for (w, a, s), name in sweep.items() if w == which}
        layers, scale = max(tried, key=lambda key: (tried[key], -key[1]))
        return skill_layers(request.layers)[layers], sign * scale

    needed = ("skill", *rungs, *sweep.values())
    yield game_step(
        request, f"arm-{end}-none", "Tables 3 and 7", size.match_games, rungs,
        lambda made: {"opponent": rung(made)}, **protocol,
    )  # fmt: skip
    for which in ("positive", "negative"):
        arms = [(which, "skill")]
        arms += [
            (f"{which}-{c}-{d}", f"{c}-{d}") for c in ("shuffled", "random") for d in range(1, size.match_controls + 1)
        ]
        if opening == "random":
            arms.append((f"{which}-of-probe", "skill-of-probe"))
        for arm, vector in arms:
            yield game_step(
                request, f"arm-{end}-{arm}", "Table 7" if vector == "skill-of-probe" else "Table 3", size.match_games,
                (*needed, vector),
                lambda made, w=which, v=vector: {
                    "opponent": rung(made), "intervention": matched(made, v, *best(made, w))
                },
                **protocol,
            )  # fmt: skip


def policy_settings(policy: str, size: Size) -> dict[str, Any]:
    """The paper's retry rule as its preset has it; `legal` draws from legal moves, and writes no text to be cut."""
    if policy == "retry":
        return {"policy": POLICIES[policy]}
    return {"policy": "legal", "move_tokens": 0, "move_limit": size.legal_move_limit or size.move_limit}


def skill_layers(layers: int) -> list[tuple[int, ...]]:
    """The paper's choices (Table 6) for any depth, without the last block: the later layers, and the middle ones."""
    if layers < 3:
        return [tuple(range(layers - 1))] if layers > 1 else [(0,)]
    later = tuple(range(2 * layers // 3, layers - 1)) or (layers - 2,)
    middle = tuple(range(max(0, layers // 2 - 1), layers - 1))
    return [later] if later == middle else [later, middle]


def edit_of(made: Made, vector: str, layers: tuple[int, ...], scale: float) -> dict[str, Any]:
    return {"vector": made.recipes[vector], "layers": layers, "scale": scale}


def matched(made: Made, vector: str, layers: tuple[int, ...], scale: float) -> dict[str, Any]:
    """The edit with another direction of the same length: a probe's has length 1, a control that of the vector."""
    if vector != "skill-of-probe":
        return edit_of(made, vector, layers, scale)
    return edit_of(made, vector, layers, round(scale * mean_norm(made, layers), 3))


def mean_norm(made: Made, layers: tuple[int, ...]) -> float:
    """Mean length of the contrastive vectors of these layers."""
    from chessreg.registry import tables

    inputs = made.session.inputs
    rows = inputs.rows(tables.Vector, inputs.run(made.recipes["skill"], "vector"))
    norms = [row.norm for row in rows if row.layer in layers]
    return float(sum(norms) / len(norms))


def score(made: Made, step: str) -> float:
    """Points per game of a match."""
    [row] = made.query("elo by intervention", step).rows
    return float(row["score"] or 0.0)


def suitable(scores: Sequence[float]) -> int:
    """The rung on which the model scores nearest to half of the points (20 to 80 % where there is such a one)."""
    return min(range(len(scores)), key=lambda number: (abs(scores[number] - 0.5), number))
