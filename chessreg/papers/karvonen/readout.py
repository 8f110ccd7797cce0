"""What is read off: data, twins, caches, probes of board and skill, directions and legal moves."""

from __future__ import annotations

from collections.abc import Iterator

from chessreg.papers.karvonen.sizes import Size
from chessreg.papers.plan import Request, Step

SECTION_4_3 = "section 4.3 (games from random openings)"
DOTS = 33  # looked-at positions of a game (specification 3.3)


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
    for who in ("model", "twin-0"):
        yield Step(
            f"{who}-rating",
            "probe",
            {
                "cache": f"@{who}-fit",
                "test_cache": f"@{who}-test",
                "epochs": size.epochs,
                "label": "rating",
                "first": size.first_ply // 2,
            },
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


def skill_of_played(request: Request, size: Size) -> Iterator[Step]:
    """What the skill probe says of games that the model itself played from random openings, as the paper's code did."""
    yield Step("played", "played-games", {"play": "@arm-legal-random-none", "name": "random openings"}, SECTION_4_3)
    yield Step(
        "played-cache", "cache",
        {
            "checkpoint": request.checkpoint, "dataset": "@played", "games": size.test_games,
            "min_plies": size.min_plies, "last": DOTS,
        },
        SECTION_4_3, units=size.match_games, rows={"metric_point": size.match_games},
        bytes=2 * size.match_games * DOTS * request.layers * request.d_model,
    )  # fmt: skip
    yield Step(
        "played-skill", "probe-apply", {"probe": "@model-skill-0", "cache": "@played-cache"}, SECTION_4_3,
        units=request.layers, rows={"prediction": request.layers * size.match_games},
    )  # fmt: skip
