"""Readout: the language model itself, caches of its last and of its first positions, probes, composition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chessreg.models.hook_points import LN_FINAL, RESID_POST, RESID_PRE, format_hook_point
from chessreg.papers.cost import count_forward_operations
from chessreg.papers.davis.sizes import PREFIX_PLIES, DavisSize
from chessreg.papers.parts import get_fit_dataset
from chessreg.papers.plan import Request, Step, Values
from chessreg.runs.cost import count_probe_operations

PLACES = {"embeddings": RESID_PRE, "blocks": RESID_POST, "final": LN_FINAL}  # the model's sites, as hook points
SITES = (format_hook_point(0, RESID_PRE), RESID_POST, LN_FINAL)
PRESET_SUFFIXES = {"joint": "", "color": "-color", "type": "-type"}  # the end of the preset's name
SQUARE_CLASSES = {"joint": 13, "color": 3, "type": 7}
JOINT_CLASSES = 64 * SQUARE_CLASSES["joint"]  # classes of squares of a joint probe
PHASES = (0, 1, 2, 3)
PROMOTION_PHASE = 4
PLY_END_PHASES = {
    1: "white-destination",
    3: "black-destination",
}  # phases of the tokens that end a ply: where edits are made
TOKENS_PER_GAME = 145  # about, for counting operations
LAST_POSITIONS = 5


def plan_language_model_tests(request: Request, size: DavisSize) -> Iterator[Step]:
    """Yield Table 2: perplexity by token and ply, and legal tokens by phase, with both rules of a game's end.

    Other models of the request are tested on the same games.
    """
    games = size.lm_games
    cost = count_forward_operations(request, games * TOKENS_PER_GAME)
    for suffix, checkpoint in (("", request.checkpoint), *((f"-of-{other}", other) for other in request.other_models)):
        test_values: Values = {"checkpoint": checkpoint, "dataset": f"{request.test}:test", "min_plies": size.min_plies}
        for policy in ("exclude", "include"):
            yield Step(
                f"perplexity-{policy}{suffix}", "perplexity", {**test_values, "games": games, "end_token": policy},
                "Table 2", ("parts",), units=games, rows={"prediction": games}, operations=cost,
            )  # fmt: skip
        yield Step(
            f"legality{suffix}", "token-legality", {**test_values, "games": games}, "Table 2", ("parts",), units=games,
            rows={"score": 6 * games}, operations=cost,
        )  # fmt: skip
    yield Step(
        "legality-shortest", "token-legality",
        {"preset": "davis", "checkpoint": request.checkpoint, "dataset": f"{request.test}:test",
         "games": size.shortest_games, "allow_overlap": True, **get_every_game_settings(request, size, request.fit)},
        "Table 2, as the published code: the shortest games, among which some are the model's own",
        ("parts",), units=size.shortest_games, rows={"score": 6 * size.shortest_games},
        operations=count_forward_operations(request, size.shortest_games * TOKENS_PER_GAME / 4),
    )  # fmt: skip


def plan_davis_caches(request: Request, size: DavisSize) -> Iterator[Step]:
    """Yield random-init controls and caches: the last five positions of each game at every site.

    The trained model also gets the ends of the first plies, at which edits are made.
    """
    for number in range(size.twins):
        yield Step(f"twin-{number}", "twin", {"checkpoint": request.checkpoint, "seed": number}, "Table 5")
    for model_label in ("model", *(f"twin-{number}" for number in range(size.twins))):
        checkpoint = request.checkpoint if model_label == "model" else f"@{model_label}"
        for part, dataset, games in list_fit_and_test(request, size.fit_games, size.test_games):
            yield Step(
                f"{model_label}-{part}", "cache",
                {"checkpoint": checkpoint, "dataset": dataset, "games": games, "min_plies": size.min_plies,
                 "sites": "all", "last_sites": LAST_POSITIONS, "hook_points": SITES},
                "Tables 4 and 5", ("parts",), units=games, rows={"metric_point": games},
                bytes=2 * LAST_POSITIONS * games * (request.layers + 2) * request.d_model,
                scratch=True, operations=count_forward_operations(request, games * TOKENS_PER_GAME),
            )  # fmt: skip
    if published_settings := get_every_game_settings(request, size, request.fit):
        yield Step(
            "published-fit", "cache",
            {"checkpoint": request.checkpoint, "games": size.fit_games, "sites": "all", "last_sites": LAST_POSITIONS,
             "hook_points": SITES, "alignment": "pre-ply", **published_settings},
            "Figure 5 and section 4.7", units=size.fit_games, rows={"metric_point": size.fit_games},
            bytes=2 * LAST_POSITIONS * size.fit_games * (request.layers + 2) * request.d_model,
            scratch=True, operations=count_forward_operations(request, size.fit_games * TOKENS_PER_GAME),
        )  # fmt: skip
    for part, dataset, games in list_fit_and_test(request, size.early_games, max(1, size.early_games // 4)):
        yield Step(
            f"early-{part}", "cache",
            {"checkpoint": request.checkpoint, "dataset": dataset, "games": games,
             "min_plies": max(size.min_plies, size.early_plies), "sites": "turns", "max_sites": size.early_plies + 1},
            "Figures 2 to 6", ("parts",), units=games, rows={"metric_point": games},
            bytes=2 * (size.early_plies + 1) * games * request.layers * request.d_model,
            scratch=True, operations=count_forward_operations(request, games * 2 * size.early_plies),
        )  # fmt: skip


def get_every_game_settings(request: Request, size: DavisSize, dataset: str) -> dict[str, Any]:
    """Return the settings for the games of published numbers: the whole dataset with its short and repeated games.

    Empty at smaller sizes, and if one dataset is used for fitting and testing, whose parts must stay disjoint.
    """
    if not size.has_all_games or request.fit == request.test:
        return {}
    return {"dataset": dataset, "min_plies": 0, "keep_duplicates": True}


def list_fit_and_test(request: Request, fit: int, test: int) -> list[tuple[str, str, int]]:
    """Return name, dataset and number of the games of both parts."""
    return [("fit", get_fit_dataset(request), fit), ("test", f"{request.test}:test", test)]


def plan_davis_probes(request: Request, size: DavisSize) -> Iterator[Step]:
    """Yield probes of every label, phase and site on the last five positions, also on random-init controls.

    Probes of phases 1 and 3 are also fitted on the first plies, and as the paper and the published code fit them.
    """

    def step(model_label: str, label: str, phase: int, place: str, **settings: Any) -> Step:
        units = request.layers if place == "blocks" else 1
        rows = size.fit_games * LAST_POSITIONS / len(PHASES)
        values = {
            "preset": f"davis-corrected{PRESET_SUFFIXES[label]}", "cache": f"@{model_label}-fit",
            "test_cache": f"@{model_label}-test", "phase": phase, "hook_point": PLACES[place],
            "epochs": size.epochs, **settings,
        }  # fmt: skip
        if size.epochs < 15:  # a small paper has few positions, and smaller steps
            values |= {"batch_positions": 200, "min_positions": 20 if phase != PROMOTION_PHASE else None}
        return Step(
            f"{model_label}-{label}-{phase}-{place}", "probe", values, "Tables 4 and 5", units=units,
            rows={"score": units * (size.test_games + size.fit_games // 20)}, optional=phase == PROMOTION_PHASE,
            operations=units * count_probe_operations(rows * size.epochs, 64 * SQUARE_CLASSES[label], request.d_model),
        )  # fmt: skip

    for model_name in ("model", *(f"twin-{number}" for number in range(size.twins))):
        for label in PRESET_SUFFIXES if model_name == "model" else size.twin_labels:
            for place in PLACES:
                for phase in PHASES:
                    yield step(model_name, label, phase, place)
                if model_name == "model" and place in size.promotions:
                    yield step(model_name, label, PROMOTION_PHASE, place)
    cache = "@published-fit" if get_every_game_settings(request, size, request.fit) else "@model-fit"
    published_values: Values = {"cache": cache, "test_cache": None, "last_sites": LAST_POSITIONS}
    for phase in PLY_END_PHASES:
        yield plan_early_probe(request, size, f"early-joint-{phase}", phase, {})
        yield plan_early_probe(
            request, size, f"paper-joint-{phase}", phase, {"preset": "davis-paper", **published_values}
        )
    yield plan_early_probe(request, size, "code-joint-0", 0, {"preset": "davis-published-code", **published_values})
    if size.every_layer:
        yield plan_early_probe(
            request, size, "code-joint-0-embeddings", 0,
            {"preset": "davis-published-code", **published_values, "hook_point": RESID_PRE},
        )  # fmt: skip
    for place in PLACES:
        for phase in PHASES:
            joint, color, kind = (f"@model-{label}-{phase}-{place}" for label in PRESET_SUFFIXES)
            yield Step(
                f"composition-{phase}-{place}", "probe-composition",
                {"joint_probe": joint, "color_probe": color, "type_probe": kind},
                "compositional map", units=request.layers if place == "blocks" else 1,
                rows={"prediction": JOINT_CLASSES * (request.layers if place == "blocks" else 1)},
            )  # fmt: skip


def plan_early_probe(request: Request, size: DavisSize, name: str, phase: int, settings: Values) -> Step:
    """Return a probe for edits: of the first plies of games unless `settings` decide otherwise."""
    values: dict[str, Any] = {
        "preset": "davis-corrected", "cache": "@early-fit", "test_cache": "@early-test", "last_sites": None,
        "phase": phase, "epochs": min(size.epochs, 5 if not settings else size.epochs), **settings,
    }  # fmt: skip
    if size.epochs < 15:
        values |= {"batch_positions": 200, "min_positions": 20}
    rows = size.early_games * size.early_plies / 2 if values["cache"] == "@early-fit" else size.fit_games * 5 / 4
    return Step(
        name, "probe", values, "Figures 2 to 6", units=request.layers,
        rows={"score": request.layers * size.early_games // 4},
        operations=request.layers * count_probe_operations(rows * values["epochs"], JOINT_CLASSES, request.d_model),
    )  # fmt: skip


def plan_markov_tests(request: Request, size: DavisSize) -> Iterator[Step]:
    """Yield Table 6: prefixes of several move orders, equal by position, and by placement as in the paper.

    A random-init control has the similarity of tokens alone.
    """
    for name, model_name, equal in (
        ("markov", request.checkpoint, "position"),
        ("markov-placement", request.checkpoint, "placement"),
        ("markov-twin", "@twin-0", "position"),
    ):
        yield Step(
            name, "markov",
            {"preset": "paper", "checkpoint": model_name, "dataset": f"{request.test}:test", "games": size.markov_games,
             "equal": equal, "max_members": 1000 if equal == "placement" else 16, "classes": size.markov_classes,
             "resamples": size.resamples, "hook_points": SITES, "min_plies": size.min_plies},
            "Table 6", ("parts",), units=size.markov_classes,
            rows={"prediction": size.markov_classes * (request.layers + 3), "statistic": 2 * (request.layers + 2)},
            operations=count_forward_operations(request,
                                                size.markov_classes * 4 * sum(PREFIX_PLIES) / len(PREFIX_PLIES) * 2),
        )  # fmt: skip
