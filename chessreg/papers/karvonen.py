"""Karvonen 2024, "Emergent World Models and Latent Variable Estimation in Chess-Playing Language Models".

Caches → probes of board and skill on the model and its untrained twins → vectors with their controls → board edits and
matches, settings chosen on games that nothing is reported on. Three sizes: `small` shows that all works in minutes,
`reference` has the games that the headlines need, `paper` the paper's own numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chessreg.errors import BadInputError
from chessreg.papers.plan import Paper, Request, Sheet, SizeName, Step, Values
from chessreg.papers.work import Made

DOTS = 33  # looked-at positions of a game (specification 3.3)
POLICIES = {"retry": "retry:5", "legal": "legal"}
SIGNS = {"positive": 1, "negative": -1}
OPENINGS = {"standard": "standard", "random": "random:20"}


@dataclass(frozen=True)
class Size:
    """How much of everything is done at one size."""

    fit_games: int
    test_games: int
    min_plies: int  # of cached games: the paper's have all 33 dots
    first_ply: int  # from where skill is read
    seeds: int  # of probes
    twins: int
    epochs: int
    edit_games: int
    edit_states: int  # of each game
    sweep_games: int
    edit_scales: tuple[float, ...]
    skill_scales: tuple[float, ...]
    vector_draws: int  # shuffled and random directions
    legality_games: int
    legality_every: int  # of White's turns
    rungs: tuple[str, ...]
    ladder_games: int
    sweep_matches: int  # games of one setting of the skill sweep
    match_games: int
    match_controls: int  # draws of either control that play
    levels: tuple[str, ...]  # opponents of Figure 2
    level_games: int
    judge: str


def ladder(nodes: int, levels: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"stockfish:{level}@nodes={nodes}" for level in levels)


SIZES: dict[SizeName, Size] = {
    "small": Size(
        fit_games=60, test_games=30, min_plies=40, first_ply=20, seeds=1, twins=1, epochs=2, edit_games=4,
        edit_states=2, sweep_games=4, edit_scales=(5.0, 50.0), skill_scales=(2.0,), vector_draws=1, legality_games=6,
        legality_every=8,
        rungs=("random", "capture"), ladder_games=4, sweep_matches=2, match_games=4, match_controls=1,
        levels=("stockfish:0@nodes=100", "stockfish:1@nodes=100"), level_games=2, judge="nodes=100",
    ),
    "reference": Size(
        fit_games=11_112, test_games=10_000, min_plies=65, first_ply=50, seeds=3, twins=3, epochs=5, edit_games=300,
        edit_states=24, sweep_games=60, edit_scales=(1.5, 6.0, 25.0, 50.0, 100.0), skill_scales=(0.8, 2.0, 4.0),
        vector_draws=5, legality_games=1000, legality_every=2,
        rungs=("random", "capture", "stockfish:-1", *ladder(1000, (0, 2, 4))),
        ladder_games=40, sweep_matches=60, match_games=400, match_controls=1, levels=ladder(1000, (0, 1, 2, 3)),
        level_games=60, judge="nodes=10000",
    ),
    "paper": Size(
        fit_games=11_112, test_games=10_000, min_plies=65, first_ply=50, seeds=3, twins=3, epochs=5, edit_games=250,
        edit_states=30, sweep_games=60, edit_scales=(0.5, 1.0, 1.5, 2.0, 3.0), skill_scales=(0.4, 0.8, 1.6, 4.0),
        vector_draws=5, legality_games=2000,
        legality_every=1, rungs=ladder(100_000, (0, 1, 2, 3)), ladder_games=100, sweep_matches=200,
        match_games=5000, match_controls=2, levels=tuple(f"stockfish:{n}@time=0.1" for n in range(10)),
        level_games=1000, judge="nodes=100000",
    ),
}  # fmt: skip


def steps(request: Request) -> list[Step]:
    """Every run of the paper on this model."""
    size = SIZES[request.size]
    return [
        *data(request),
        *models(request, size),
        *probes(request, size),
        *vectors(request, size),
        *edits(request, size),
        *matches(request, size),
    ]


# -- data and models --------------------------------------------------------------------------------------------------


def data(request: Request) -> Iterator[Step]:
    """Parts: probes and vectors are fitted on `fit`, settings chosen on `validation`, everything reported on `test`."""
    if request.fit == request.test:
        parts = "fit=0.5,validation=0.1,test=0.4"
    else:
        parts = "validation=0.1,test=0.9"
    yield Step("parts", "split", {"dataset": request.test, "parts": parts, "seed": 0}, "all tables")


def fitted_on(request: Request) -> str:
    return f"{request.fit}:fit" if request.fit == request.test else request.fit


def models(request: Request, size: Size) -> Iterator[Step]:
    """Untrained twins, and the activations of every model on the games of either part."""
    for number in range(size.twins):
        yield Step(
            f"twin-{number}", "twin", {"checkpoint": request.checkpoint, "seed": number}, "Tables 1 and 9, Figure 3"
        )
    for who in ("model", *(f"twin-{number}" for number in range(size.twins))):
        for part, dataset, games in (
            ("fit", fitted_on(request), size.fit_games),
            ("test", f"{request.test}:test", size.test_games),
        ):
            settings = {
                "checkpoint": request.checkpoint if who == "model" else f"@{who}",
                "dataset": dataset,
                "games": games,
                "min_plies": size.min_plies,
                "last": DOTS,
            }
            yield Step(
                f"{who}-{part}", "cache", settings, "Tables 1, 2, 3 and 9, Figure 3", ("parts",),
                units=games, rows={"metric_point": games}, bytes=2 * games * DOTS * request.layers * request.d_model,
            )  # fmt: skip


# -- what can be read off ---------------------------------------------------------------------------------------------


def probes(request: Request, size: Size) -> Iterator[Step]:
    """Board and skill probes of every layer: seeds on the model, one on each twin, and the paper's own fitting once."""
    scored = request.layers * (size.test_games + size.fit_games // 10)
    for task in ("board", "skill"):
        for who, seed in [
            *(("model", seed) for seed in range(size.seeds)),
            *((f"twin-{number}", 0) for number in range(size.twins)),
        ]:
            yield Step(
                f"{who}-{task}-{seed}",
                "probe",
                {
                    "cache": f"@{who}-fit",
                    "test_cache": f"@{who}-test",
                    "epochs": size.epochs,
                    "seed": seed,
                    **({"label": "skill", "first": size.first_ply // 2} if task == "skill" else {}),
                },
                "Tables 1 and 9, Figure 3",
                units=request.layers,
                rows={"score": scored},
            )
    yield Step(
        "model-rating",
        "probe",
        {"cache": "@model-fit", "test_cache": "@model-test", "preset": "paper-rating", "first": size.first_ply // 2},
        "section 3.2 (mean error of the rating)",
        units=request.layers,
        rows={"prediction": scored},
    )
    yield Step(
        "legality",
        "legality",
        {
            "checkpoint": request.checkpoint,
            "dataset": f"{request.test}:test",
            "games": size.legality_games,
            "every": size.legality_every,
            "mass": True,
        },
        "section 2.2",
        ("parts",),
        units=size.legality_games,
        rows={"trial": 35 * size.legality_games // size.legality_every},
    )


def vectors(request: Request, size: Size) -> Iterator[Step]:
    """Contrastive and probe-derived directions of skill, with shuffled and random ones of the same norm."""
    yield Step(
        "skill", "vector", {"cache": "@model-fit", "first_ply": size.first_ply}, "Tables 3 and 6", units=request.layers
    )
    yield Step(
        "skill-of-probe", "vector", {"source": "probe", "probe": "@model-skill-0"}, "Table 7", units=request.layers
    )
    for source in ("shuffled", "random"):
        for draw in range(1, size.vector_draws + 1):
            yield Step(
                f"{source}-{draw}",
                "vector",
                {"source": source, "of": "@skill", "seed": draw},
                "controls of Table 3",
                units=request.layers,
            )


# -- board edits ------------------------------------------------------------------------------------------------------


def layer_sets(layers: int) -> tuple[str, ...]:
    """Every layer alone (Table 8), the middle ones together, and every second of them (the paper's range(5,15,2))."""
    low, high = max(0, layers // 2 - 1), max(1, layers - 2)
    sets = [f"{low}-{high}"] if high > low else []
    if high - low >= 4:
        sets.append("+".join(map(str, range(low, high + 1, 2))))
    return (*map(str, range(layers)), *sets)


def edits(request: Request, size: Size) -> Iterator[Step]:
    """A sweep over layers and scales on the validation games, then its best setting with controls on the test games."""
    common: Values = {"checkpoint": request.checkpoint, "probe": "@model-board-0"}
    sweep = len(layer_sets(request.layers))
    states = size.sweep_games * 5
    yield Step(
        "edit-sweep",
        "edit",
        {
            **common, "dataset": f"{request.test}:validation", "games": size.sweep_games, "per_game": 5,
            "layer_sets": layer_sets(request.layers), "scales": size.edit_scales, "controls": 0, "shuffled": 0,
            "spellings": False,
        },
        "Tables 6 and 8, Appendix D",
        ("parts",),
        units=states,
        rows={"trial": states * (1 + sweep * len(size.edit_scales)) * 6},
    )  # fmt: skip
    states = size.edit_games * size.edit_states
    for positions in ("all", "last"):

        def settings(made: Made, positions: str = positions) -> Values:
            return {
                "checkpoint": request.checkpoint, "probe": made.recipes["model-board-0"],
                "dataset": f"{request.test}:test", "games": size.edit_games, "per_game": size.edit_states,
                "positions": positions, "controls": 1, "shuffled": 1, **best_edit(made),
            }  # fmt: skip

        yield Step(
            f"edits-{positions}", "edit", settings, "Table 2", ("parts", "model-board-0", "edit-sweep"),
            units=states, rows={"trial": states * 4 * 6},
        )  # fmt: skip


def best_edit(made: Made) -> dict[str, Any]:
    """Layers and scale of the sweep's best edit: most legal texts on the modified board, then the smaller scale."""
    rows = made.query("board intervention legality", "edit-sweep").rows
    tried = [row for row in rows if row["condition"] == "edit"]
    if not tried:
        raise BadInputError("the sweep of edits has no state with a piece to take off", "a larger --size has more")
    best = max(tried, key=lambda row: (row["modified"] or 0.0, -row["scale"]))
    return {"layers": tuple(best["layers"]), "scale": best["scale"]}


# -- matches ----------------------------------------------------------------------------------------------------------


def matches(request: Request, size: Size) -> Iterator[Step]:
    """The ladder, the levels of Figure 2, the sweep of skill edits, and the arms of Tables 3 and 7."""
    for number, opponent in enumerate(size.levels):
        yield game_step(request, f"level-{number}", "Figure 2", size.level_games, opponent=opponent)
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
    common = {"preset": "paper", "checkpoint": request.checkpoint, "games": games}

    def follow(made: Made) -> Values:
        return {**common, **values, **settings(made)}

    given = {**common, **values} if settings is None else follow
    return Step(name, "play", given, serves, after, units=games, rows={"game": games})


def ladder_and_arms(request: Request, size: Size, policy: str, opening: str) -> Iterator[Step]:
    """One protocol: rungs until one suits, the sweep (random openings only), and every arm on the same openings."""
    end = f"{policy}-{opening}"
    protocol = {"opening": OPENINGS[opening], **policy_settings(policy)}
    rungs = tuple(f"ladder-{end}-{number}" for number in range(len(size.rungs)))
    for name, opponent in zip(rungs, size.rungs, strict=True):
        yield game_step(
            request, name, "choice of the opponent", size.ladder_games, opponent=opponent, opening_seed=2, **protocol
        )

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
            request, f"sweep-{policy}-none", "Table 6", size.sweep_matches, rungs,
            lambda made: {"opponent": rung(made)}, opening_seed=1, **protocol,
        )  # fmt: skip
        for (which, layers, scale), name in sweep.items():
            yield game_step(
                request, name, "Table 6", size.sweep_matches, ("skill", *rungs),
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


def policy_settings(policy: str) -> dict[str, Any]:
    """The paper's retry rule as its preset has it; `legal` draws from legal moves, and writes no text to be cut."""
    return {"policy": POLICIES[policy]} if policy == "retry" else {"policy": "legal", "move_tokens": 0}


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
    inputs = made.session.inputs
    from chessreg.registry import tables

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


# -- what is written --------------------------------------------------------------------------------------------------

PAPER = Paper(
    "karvonen",
    "Karvonen 2024: emergent world models and latent variable estimation in chess-playing language models",
    steps,
    (
        Sheet("table-1", "Table 1: probe accuracy, best layer", "best probe layers",
              plots=("probe accuracy of the best layer",)),
        Sheet("figure-3", "Figure 3: probe accuracy by layer", "probe accuracy by layer",
              plots=("probe accuracy by layer",)),
        Sheet("table-2", "Table 2: board edits", "board intervention legality", "edits_tried = 1",
              plots=("board edits",)),
        Sheet("table-3", "Tables 3 and 7: skill edits", "elo by intervention",
              plots=("score by intervention",), scorings=("paper", "author-2024")),
        Sheet("figure-2", "Figure 2: win rate by level", "elo by intervention", "level >= 0 AND intervention = 'none'",
              plots=("win rate by level",), scorings=("paper", "author-2024")),
        Sheet("terminations", "How the games of Tables 3 and 7 end", "games by termination", published=False),
        Sheet("table-4", "Table 4: how probes are fitted", "probe settings"),
        Sheet("table-5", "Table 5: how models are trained", "training settings"),
        Sheet("table-6", "Table 6: best skill edits", "best skill edit", published=False),
        Sheet("table-8", "Table 8: board edits of one layer", "board intervention legality",
              "layer IS NOT NULL AND edits_tried > 1", plots=("board edits by layer",)),
        Sheet("table-9", "Table 9: F1 by class", "probe f1 by class", plots=("probe f1 by class",)),
        Sheet("rating-error", "Section 3.2: error of the rating that is read", "rating error by layer",
              plots=("rating error by layer",)),
        Sheet("legal-moves", "Section 2.2: legal moves", "legal moves by ply", plots=("legal moves by ply",)),
    ),
)  # fmt: skip
