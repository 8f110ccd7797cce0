"""Edits of the seven types, chosen on the validation games and reported on the test games (Figures 2 to 6 and the
maps).

The chosen layer and scale α give type Probe the most mass on the target board, on one half of the validation games.
Probes of latents and differences of means are then fitted for that layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from chessreg.errors import BadInputError
from chessreg.papers.cost import count_forward_operations
from chessreg.papers.davis.readout import JOINT_CLASSES, PLY_END_PHASES, get_every_game_settings, plan_early_probe
from chessreg.papers.davis.saes import build_sae_settings, count_latent_operations, list_compared_blocks
from chessreg.papers.davis.sizes import SIZES, DavisSize
from chessreg.papers.plan import CompleteSteps, Request, Step, Values, list_step_references
from chessreg.runs.cost import count_probe_operations

SWEEP_STEP, EDITS_STEP, STRENGTH_STEP, FIGURE_4_STEP = "edit-sweep", "edits", "edit-strength", "figure-4"
CODE_SCALE = 0.5  # of Equation 1 in the published code
CODE_LAYER, CODE_MODEL_LAYERS = 7, 12  # of Figures 4 to 6 in the code, and of how many
CODE_LAYER_SUFFIX = "-at-code-layer"
MAX_MONTH_GAMES = 200_000  # at least the games of any Lichess month of 2013
LINEAR_PROBES = {"probe": "early-joint-3", "black_probe": "early-joint-1"}  # after Black's move, and after White's
DERIVED_SOURCES = {"sae": "sae-latents", "cd": "sae-contrast", "dm": "means"}
FIGURE_4_CASE = {"moves": "e2e4 d7d5", "board": "d5=. d7=p e7=. e5=p"}  # section 4.6


def get_chosen_edit(steps: CompleteSteps) -> dict[str, Any]:
    """Return the layers and the scale with the most target mass of type Probe on the validation half of the games. In a
    rehearsal without such a case, return the layer and scale of the author's code."""
    rows = [row for row in steps.query("edit strength", SWEEP_STEP).rows if row["type"] == "Probe" and row["chosen"]]
    if not rows:
        if steps.is_rehearsal:
            return {"layers": (compute_code_layer(steps.request.layers),), "scale": CODE_SCALE}
        raise BadInputError("the sweep of edits has no case on the validation half of the games", "use a larger --size")
    return {"layers": tuple(rows[0]["layers"]), "scale": float(rows[0]["scale"])}


def list_reported_scales(steps: CompleteSteps) -> tuple[float, ...]:
    """Return the code's scale, and the chosen scale if it differs."""
    return tuple(dict.fromkeys((CODE_SCALE, get_chosen_edit(steps)["scale"])))


def plan_derived_probes(request: Request, size: DavisSize) -> Iterator[Step]:
    """Yield the SAE-, CD- and DM-probes of phases 1 and 3, fitted on the first plies like the linear probes.

    They are fitted at the chosen layer and at the code's layer, where smaller SAEs are also used. If the chosen layer
    is the last one, no attention reads its edits.
    """
    code = compute_code_layer(request.layers)
    places: list[tuple[str, int | None, int]] = [
        ("", None, size.expansion), (CODE_LAYER_SUFFIX, code, size.expansion),
        *((suffix, code, expansion) for suffix, expansion in list_smaller_saes(request, size).items()),
    ]  # fmt: skip
    for (suffix, at, expansion), phase, (short, source) in product(places, PLY_END_PHASES, DERIVED_SOURCES.items()):
        if source == "means" and expansion != size.expansion:
            continue  # differences of means do not use an SAE

        def settings(
            steps: CompleteSteps,
            source: str = source,
            phase: int = phase,
            at: int | None = at,
            expansion: int = expansion,
        ) -> Values:
            [layer] = get_chosen_edit(steps)["layers"] if at is None else (at,)
            values: dict[str, Any] = {"source": source, "layers": (layer,)}
            if source != "means":
                values |= build_sae_settings(request, size, layer, expansion)
            if source == "sae-latents":
                values |= {"epochs": size.sae_probe_epochs, "learning_rate": 0.003}
            step = plan_early_probe(request, size, "", phase, values)
            assert not callable(step.settings)
            return step.settings

        layers = range(request.layers) if at is None else (at,)
        dependencies = sorted(
            {build_sae_settings(request, size, layer, expansion)["sae"].removeprefix("@") for layer in layers}
        )
        after = ("early-fit", "early-test", *((SWEEP_STEP,) if at is None else ()), *dependencies)
        positions = size.early_games * size.early_plies / 2
        if source == "means":
            operations = count_probe_operations(positions, JOINT_CLASSES, request.d_model, is_fitted=False)
        else:
            is_learned = source == "sae-latents"
            positions *= size.sae_probe_epochs if is_learned else 1
            operations = count_latent_operations(request, positions, expansion, is_learned)
        yield Step(
            f"early-{short}-{phase}{suffix}", "probe", settings, "Figure 6", after, units=1,
            rows={"score": size.early_games // 4}, operations=operations,
        )  # fmt: skip


class EditSteps:
    """Factory of the steps of edits: their common settings, and the settings that the sweep decides."""

    def __init__(self, request: Request, size: DavisSize) -> None:
        self.request, self.size = request, size
        self.common_settings = {"checkpoint": request.checkpoint, "min_plies": size.edit_min_plies}

    def step(
        self, name: str, serves: str, games: int, conditions: int, settings: Values, *, probes: Values = LINEAR_PROBES,
        other_probe: str | None = None, choose: tuple[str, ...] = (), part: str = "test",
    ) -> Step:  # fmt: skip
        """Return a step of edits. `conditions` counts each state's conditions without the clean one. `other_probe` is
        the suffix of the steps whose SAE-, CD- and DM-probes are also used. `choose` names the settings that the sweep
        decides: layers, scale, scales (the code's and the chosen one). On the validation part the step is the sweep."""
        request, size = self.request, self.size
        values: dict[str, Any] = {
            "preset": "davis-corrected", **self.common_settings, "dataset": f"{request.test}:{part}", "games": games,
            "prefixes": size.prefixes, **{key: f"@{probe}" for key, probe in probes.items()},
        }  # fmt: skip
        if other_probe is not None:
            for key, phase in (("other_probes", 3), ("other_black_probes", 1)):
                values[key] = tuple(f"@early-{short}-{phase}{other_probe}" for short in DERIVED_SOURCES)
        values |= settings

        def with_choice(steps: CompleteSteps) -> Values:
            best_settings = get_chosen_edit(steps) | {"scales": list_reported_scales(steps)}
            return values | {key: best_settings[key] for key in choose}

        after = ("parts", *((SWEEP_STEP, *list_step_references(values)) if choose else ()))
        units = games * len(values["prefixes"])
        return Step(
            name, "edit-next-token", with_choice if choose else values, serves, after, units=units,
            rows={"trial": units * (1 + conditions)}, bytes=4 * 72 * units * (1 + conditions),
            choice=part == "validation", dataset_games=(values["dataset"], games),
            operations=count_forward_operations(request, games * 2 * max(size.prefixes) + units * conditions),
        )  # fmt: skip


def plan_linear_probe_edits(request: Request, size: DavisSize) -> Iterator[Step]:
    """Yield the steps of edits with linear probes: the sweep that chooses layer and α, the case of Figure 4, edits by
    layer, edits of several layers and tokens, and edits as published."""
    step, layers = EditSteps(request, size).step, request.layers
    yield step(
        SWEEP_STEP, "choice of layer and α", size.sweep_games, 3 * layers * len(size.scales),
        {"layer_sets": tuple(map(str, range(layers))), "scales": size.scales, "shuffled_label_controls": 0},
        part="validation",
    )  # fmt: skip
    rows = {"trial": 2 * layers * (len(size.scales) + 1)}
    yield Step(
        FIGURE_4_STEP,
        "edit-next-token",
        build_case_study,
        "Figure 4",
        ("early-joint-3", SWEEP_STEP),
        units=1,
        rows=rows,
    )
    yield step(
        "edits-by-layer", "ridge plot", size.other_games, 3 * layers,
        {"layer_sets": tuple(map(str, range(layers))), "scales": (CODE_SCALE,), "shuffled_label_controls": 0},
    )  # fmt: skip
    final = {"probe": "model-joint-3-blocks", "black_probe": "model-joint-1-blocks"}
    yield step(
        "edits-final-five", "in addition to Figure 5: probes of the last five positions", size.other_games, 6,
        {"shuffled_label_controls": 0}, probes=final, choose=("layers", "scales"),
    )  # fmt: skip
    paper = {"probe": "paper-joint-3", "black_probe": "paper-joint-1"}
    every = get_every_game_settings(request, size, request.test)
    games = size.edit_games if size.every_layer else size.other_games
    if every:
        every["allow_overlap"] = True  # the author does not check: short games of one month occur in another
        games = MAX_MONTH_GAMES
    code = {"probe": "code-joint-0"} | ({"embedding_probe": "code-joint-0-embeddings"} if size.every_layer else {})
    for name, preset, probes, lowest in (
        ("edits-paper", "davis-paper", paper, 0),
        ("edits-published-code", "davis-published-code", code, 0 if size.every_layer else 1),
    ):
        sets = [layer for layer in range(lowest, layers) if size.every_layer or layer == compute_code_layer(layers)]
        if sets:
            yield step(
                name, "Figure 5 and section 4.7", games, 3 * len(sets),
                {"preset": preset, "layer_sets": tuple(map(str, sets)), "scales": (CODE_SCALE,),
                 **every},
                probes=probes,
            )  # fmt: skip
    layer_ranges = tuple(f"0-{layer}" for layer in range(1, layers))  # as the ICMLA figure, "layer 0 to k"
    if layer_ranges:
        yield step(
            "edits-many-layers", "in addition to Figure 5: several layers", size.other_games, 6 * len(layer_ranges),
            {"layer_sets": layer_ranges, "scales": (0.1, CODE_SCALE), "shuffled_label_controls": 0},
        )  # fmt: skip
    for rule in ("residual-norm", "ln-next"):  # a model's residuals may be much longer than the norm in equation 1
        yield step(
            f"edits-{rule}", "why an edit at the code's α may do little: the norm that α scales", size.other_games, 3,
            {"scale_rule": rule, "scales": (CODE_SCALE,), "shuffled_label_controls": 0}, choose=("layers",),
        )  # fmt: skip
    whites = tuple(plies for plies in size.prefixes if plies % 2 == 0)
    for mask in ("last", "turns"):
        yield step(
            f"edits-tokens-{mask}", "in addition to Figure 5: last token, and every end of a ply", size.other_games, 6,
            {"prefixes": whites, "token_mask": mask, "probe_tokens": "any", "shuffled_label_controls": 0},
            probes={"probe": "early-joint-3"}, choose=("layers", "scales"),
        )  # fmt: skip


def plan_edits_of_all_types(request: Request, size: DavisSize) -> Iterator[Step]:
    """Yield None, Random, Patch, Probe, SAE-, CD- and DM-Probe at the chosen layer, at two scales and at many."""
    step = EditSteps(request, size).step
    main: Values = {"patch": "unit", "random_controls": 1, "shuffled_label_controls": 1}
    yield step(
        EDITS_STEP, "Figures 5 and 6, maps", size.edit_games, 14, main, other_probe="", choose=("layers", "scales")
    )
    yield step(
        STRENGTH_STEP, "Figure 2", size.other_games, 6 * len(size.scales),
        {**main, "shuffled_label_controls": 0, "scales": size.scales}, other_probe="", choose=("layers",),
    )  # fmt: skip
    yield step(
        f"{EDITS_STEP}{CODE_LAYER_SUFFIX}", "Figure 6 at the layer of the code", size.other_games, 14,
        {**main, "layers": (compute_code_layer(request.layers),)}, other_probe=CODE_LAYER_SUFFIX, choose=("scales",),
    )  # fmt: skip
    for suffix in list_smaller_saes(request, size):
        yield step(
            f"{EDITS_STEP}{suffix}", "Figure 6 by a smaller SAE", size.other_games, 4,
            {"layers": (compute_code_layer(request.layers),), "patch": "none", "random_controls": 0,
             "shuffled_label_controls": 0, "other_probes": (f"@early-cd-3{suffix}",),
             "other_black_probes": (f"@early-cd-1{suffix}",)},
            probes={"probe": f"early-sae-3{suffix}", "black_probe": f"early-sae-1{suffix}"}, choose=("scales",),
        )  # fmt: skip


def list_smaller_saes(request: Request, size: DavisSize) -> dict[str, int]:
    """Return the expansions of smaller SAEs at the layer of the code, by the suffix of their probes and edits."""
    is_compared = compute_code_layer(request.layers) in list_compared_blocks(request, size)
    return {f"{CODE_LAYER_SUFFIX}-of-{expansion}x": expansion for expansion in size.smaller if is_compared}


def compute_code_layer(layers: int) -> int:
    """Return the layer that the published code edits in a model of `layers` layers, scaled by depth.

    >>> compute_code_layer(12), compute_code_layer(8), compute_code_layer(2)
    (7, 4, 1)
    """
    return CODE_LAYER * layers // CODE_MODEL_LAYERS


def build_case_study(steps: CompleteSteps) -> Values:
    """Return the settings of Figure 4: Black's pawn back on d7 and his e-pawn on e5, so that White's e-pawn cannot
    move.

    The paper does not state the layer, so every layer is edited. An edit after the last block reaches no attention:
    it can remove a piece from the square that is read next, but not put another piece in its way.
    """
    size, best_settings = SIZES[steps.request.size], get_chosen_edit(steps)
    return {
        **FIGURE_4_CASE, "checkpoint": steps.request.checkpoint, "probe": "@early-joint-3",
        "layer_sets": tuple(map(str, range(steps.request.layers))), "shuffled_label_controls": 0,
        "scales": tuple(sorted({*size.scales, best_settings["scale"]} - {0.0})),
    }  # fmt: skip
