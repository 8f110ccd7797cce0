"""Readout: twins, caches, probes of board and skill, directions and legal moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chessreg.papers.cost import count_forward_operations
from chessreg.papers.karvonen.settings import ONE_SIDED
from chessreg.papers.karvonen.sizes import KarvonenSize
from chessreg.papers.parts import get_fit_dataset
from chessreg.papers.plan import Request, Step

SECTION_4_3 = "section 4.3 (games from random openings)"
SITES_PER_GAME = 33  # dots in the shortest game of the paper's Lichess set
TOKENS_PER_GAME, TOKENS_PER_TREE = 500, 70  # about, for counting operations: of a game, and of a board's legal moves
BOARD_CLASSES = 64 * 13
BOARD_RATE_SHARE = (
    0.2  # the share of the rate that board probes reach: 0.35 of 300 games, less where their cache is larger
)

MAX_PLAYED_GAMES = 4000  # on which the skill probe is measured (section 4.3)


# -- models -----------------------------------------------------------------------------------------------------------


def plan_models(request: Request, size: KarvonenSize) -> Iterator[Step]:
    """Yield random-init controls, and the activations of every model on the games of both parts."""
    for number in range(size.twins):
        yield Step(
            f"twin-{number}", "twin", {"checkpoint": request.checkpoint, "seed": number}, "Tables 1 and 9, Figure 3"
        )
    games = size.fit_games, size.test_games
    for model_name in ("model", *(f"twin-{number}" for number in range(size.twins))):
        yield from plan_model_caches(request, size, model_name, "", games)
        if size.skill_fit_games:
            yield from plan_model_caches(
                request, size, model_name, "-skill", (size.skill_fit_games, size.skill_test_games), size.first_ply // 2
            )
    if size.is_full:
        yield from plan_model_caches(request, size, "model", "-black", games, sites="black-turns")


def plan_model_caches(
    request: Request,
    size: KarvonenSize,
    model_name: str,
    end: str,
    games: tuple[int, int],
    skipped_sites: int = 0,
    **settings: Any,
) -> Iterator[Step]:
    """Yield the steps that cache the activations of one model on the games of both parts.

    `model_name` is `model` or the name of a step that makes a random-init control. `end` is appended to the steps'
    names. `games` are the numbers of games to fit and to test. The first `skipped_sites` sites of a game are skipped.
    """
    for part, dataset, count in zip(
        ("fit", "test"), (get_fit_dataset(request), f"{request.test}:test"), games, strict=True
    ):
        values = {
            "checkpoint": request.checkpoint if model_name == "model" else f"@{model_name}",
            "dataset": dataset,
            "games": count,
            "min_plies": size.min_plies,
            "keep_duplicates": size.is_full,  # as the author does
            "skip_sites": skipped_sites,
            "max_sites": SITES_PER_GAME,
            **settings,
        }
        size_of = 2 * count * (SITES_PER_GAME - skipped_sites) * request.layers * request.d_model
        yield Step(
            f"{model_name}-{part}{end}", "cache", values, "Tables 1, 2, 3 and 9, Figure 3", ("parts",),
            units=count, rows={"metric_point": count}, bytes=size_of, scratch=True,
            operations=count_forward_operations(request, count * TOKENS_PER_GAME),
        )  # fmt: skip


# -- readout ---------------------------------------------------------------------------------------------


def get_skill_suffix(size: KarvonenSize) -> str:
    """Return the suffix of the names of caches for skill."""
    return "-skill" if size.skill_fit_games else ""


def plan_karvonen_probes(request: Request, size: KarvonenSize) -> Iterator[Step]:
    """Yield board and skill probes of every layer: several seeds on the model, one on each twin, and some with the
    paper's fit."""

    def step(
        model_name: str, name: str, serves: str = "Tables 1 and 9, Figure 3", end: str = "", **settings: Any
    ) -> Step:
        values = {
            "cache": f"@{model_name}-fit{end}",
            "test_cache": f"@{model_name}-test{end}",
            "epochs": size.epochs,
            **settings,
        }
        games = (size.skill_test_games if end == "-skill" else 0) or size.test_games
        rows = request.layers * (games + size.fit_games // 10)
        table = "prediction" if "rating" in name else "score"
        weights = BOARD_CLASSES * request.d_model * request.layers if "board" in name else 0  # others take seconds
        return Step(
            f"{model_name}-{name}", "probe", values, serves, units=request.layers, rows={table: rows},
            operations=6.0 * weights * size.fit_games * SITES_PER_GAME * size.epochs, share=BOARD_RATE_SHARE,
        )  # fmt: skip

    first_site, end = size.first_ply // 2, get_skill_suffix(size)
    twins = [(f"twin-{number}", 0) for number in range(size.twins)]
    for model_name, seed in [*(("model", seed) for seed in range(size.seeds)), *twins]:
        yield step(model_name, f"board-{seed}", seed=seed)
        yield step(model_name, f"skill-{seed}", end=end, seed=seed, label="skill", skip_sites=first_site)
    for model_name in ("model", "twin-0"):
        yield step(model_name, "board-paper", preset="paper")
        yield step(model_name, "skill-paper", end=end, preset="paper-skill", skip_sites=first_site)
        serves = "section 3.2 (mean error of the rating)"
        yield step(model_name, "rating", serves, label="rating", skip_sites=first_site)
        yield step(model_name, "rating-paper", serves, preset="paper-rating", skip_sites=first_site, epochs=1)
    for strata in SKILL_STRATA if size.causes else ():
        skill = {"strata": strata}
        yield step(
            "model", f"skill-{strata}", CAUSES_QUERY, end=end, seed=0, label="skill", skip_sites=first_site, skill=skill
        )
    for part in dict.fromkeys(SOURCE_PROBES.values()):
        fit_settings: dict[str, Any] = (
            {"preset": "paper-skill"} if part.endswith("-paper") else {"label": "skill", "seed": 0}
        )
        for draw in range(1, (size.control_draws if has_controls(part, size) else 0) + 1):
            name = f"{part.removeprefix('model-')}-shuffled-{draw}"
            yield step(
                "model",
                name,
                "controls of Table 7",
                end=end,
                **fit_settings,
                skip_sites=first_site,
                shuffled_label_control=draw,
            )
    if size.is_full:
        serves = "section 3.1 (Black's moves)"
        yield step("model", "board-black", serves, end="-black")
        yield step("model", "board-black-paper", serves, end="-black", preset="paper")
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
        operations=count_forward_operations(
            request, size.legality_games * (TOKENS_PER_GAME + TOKENS_PER_TREE * 35 // size.legality_every)
        ),
    )


CAUSES_QUERY = "causes of no skill effect"
SKILL_STRATA = ("balanced", "pooled")  # in addition to classes within each source; only `pooled` contains the source
SKILL_STEP, PROBE_STEP, PAPER_SKILL_STEP, PAPER_PROBE_STEP = (
    "skill",
    "skill-of-probe",
    "skill-paper",
    "skill-of-probe-paper",
)
SOURCE_PROBES = {
    PROBE_STEP: "model-skill-0",
    PAPER_PROBE_STEP: "model-skill-paper",
}  # the source probe of each direction
SOURCE_PROBES |= {f"{PROBE_STEP}-{side}": SOURCE_PROBES[PAPER_PROBE_STEP] for side in ONE_SIDED}
CONTROLLED_VECTORS = (
    SKILL_STEP,
    PROBE_STEP,
    PAPER_SKILL_STEP,
    PAPER_PROBE_STEP,
    *(f"{PROBE_STEP}-{side}" for side in ONE_SIDED),
)
CONTROL_SOURCES = ("shuffled", "random")  # of each vector


def plan_vectors(request: Request, size: KarvonenSize) -> Iterator[Step]:
    """Yield contrastive and probe-derived directions of skill, with shuffled and random directions of the same norm."""

    def step(name: str, serves: str, **settings: Any) -> Step:
        return Step(name, "vector", settings, serves, units=request.layers)

    cache = f"@model-fit{get_skill_suffix(size)}"
    yield step("skill", "Tables 3 and 6, tuned here", source="contrastive", cache=cache, first_ply=size.first_ply)
    yield step(PROBE_STEP, "Table 7, tuned here", source="probe", probe=f"@{SOURCE_PROBES[PROBE_STEP]}")
    paper = {"preset": "paper", "first_ply": size.first_ply, "last_ply": size.min_plies - 1}
    yield step("skill-paper", "Tables 3 and 6", source="contrastive", cache=cache, **paper)
    for side in ("both", *(ONE_SIDED if size.is_full else ())):
        name, serves = ("paper", "Table 7") if side == "both" else (side, "Appendix C")
        yield step(
            f"skill-of-probe-{name}", serves, source="probe", probe=f"@{SOURCE_PROBES[PAPER_PROBE_STEP]}", side=side
        )
    for vector in CONTROLLED_VECTORS:
        for source, draw, direction in list_vector_controls(vector, size):
            settings: dict[str, Any] = {"source": source, "of": f"@{vector}", "seed": draw}
            if source == "shuffled" and vector in SOURCE_PROBES:
                settings |= {"source": "shuffled-probe", "probe": f"@{SOURCE_PROBES[vector]}-shuffled-{draw}"}
            yield step(direction, "controls of Tables 3 and 7 and Appendix C", **settings)


def list_vector_controls(vector: str, size: KarvonenSize) -> list[tuple[str, int, str]]:
    """Return source, draw and step name of each control of a vector; empty if it has no controls."""
    if vector not in CONTROLLED_VECTORS or not has_controls(vector, size):
        return []
    end = "" if vector == SKILL_STEP else f"-of-{vector}"
    draws = range(1, size.control_draws + 1)
    return [(source, draw, f"{source}-{draw}{end}") for source in CONTROL_SOURCES for draw in draws]


def has_controls(name: str, size: KarvonenSize) -> bool:
    """Return whether a vector, or its probe, has controls at this size.

    The paper's own arms have controls if `published_controls` is set. One-sided directions have them if they exist.
    """
    if name.endswith(tuple(f"{PROBE_STEP}-{side}" for side in ONE_SIDED)):
        return size.is_full and size.published_controls
    return size.published_controls or not name.endswith("-paper")


def plan_skill_of_played_games(request: Request, size: KarvonenSize) -> Iterator[Step]:
    """Yield the readings of the skill probes on games that the model played from random openings, as in the paper's
    code.

    The policy is `legal`: under the paper's rule, a model that often writes illegal moves has no game long enough.
    """
    games = min(size.match_games, MAX_PLAYED_GAMES)
    yield Step("played", "played-games", {"play": "@arm-legal-random-none", "name": "random openings"}, SECTION_4_3)
    yield Step(
        "played-cache", "cache",
        {
            "checkpoint": request.checkpoint, "dataset": "@played", "games": games, "min_plies": size.min_plies,
            "max_sites": SITES_PER_GAME,
        },
        SECTION_4_3, units=games, rows={"metric_point": games},
        operations=count_forward_operations(request, games * TOKENS_PER_GAME),
        bytes=2 * games * SITES_PER_GAME * request.layers * request.d_model, scratch=True,
    )  # fmt: skip
    probes = {"played-skill": "model-skill-0", "played-skill-paper": "model-skill-paper"}
    probes |= {f"played-skill-{strata}": f"model-skill-{strata}" for strata in (SKILL_STRATA if size.causes else ())}
    for name, probe in probes.items():
        yield Step(
            name, "probe-apply", {"probe": f"@{probe}", "cache": "@played-cache"}, SECTION_4_3,
            units=request.layers, rows={"prediction": request.layers * games},
        )  # fmt: skip
