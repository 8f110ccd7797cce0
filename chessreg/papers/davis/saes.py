"""Sparse autoencoders of several expansions at every site, and probes of their latents (Tables 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chessreg.models.hook_points import RESID_POST, format_hook_point
from chessreg.papers.cost import count_forward_operations
from chessreg.papers.davis.readout import JOINT_CLASSES, PHASES, SITES
from chessreg.papers.davis.sizes import DavisSize
from chessreg.papers.parts import get_fit_dataset
from chessreg.papers.plan import Request, Step, Values
from chessreg.runs.cost import count_probe_operations

MIX_TOKENS = 65_536  # size of the shuffle buffer, filled before the first step


ALL_SAES_STEP = "sae-blocks-all"  # the run of every site and expansion, where one pass over the tokens trains them all


def build_sae_settings(request: Request, size: DavisSize, layer: int, expansion: int) -> Values:
    """Return the settings of a probe of latents that name the autoencoder after a block: its run, and its expansion if
    the run has several."""
    if size.smaller_everywhere:
        return {"sae": f"@{ALL_SAES_STEP}", "expansion": expansion}
    if expansion != size.expansion:
        return {"sae": f"@sae-smaller-{expansion}"}
    [name] = (name for name, layers in group_blocks(request, size).items() if layer in layers)
    return {"sae": f"@sae-{name}"}


def group_blocks(request: Request, size: DavisSize) -> dict[str, tuple[int, ...]]:
    """Return the blocks whose autoencoders one run trains, by the suffix of its step's name."""
    starts = range(0, request.layers, size.sae_layers)
    groups = [tuple(range(low, min(request.layers, low + size.sae_layers))) for low in starts]
    return {f"blocks-{layers[0]}-{layers[-1]}": layers for layers in groups}


def list_compared_blocks(request: Request, size: DavisSize) -> tuple[int, ...]:
    """Return the blocks that also have smaller autoencoders: all, or at a quarter, half and the end of the depth."""
    layers = request.layers
    return tuple(range(layers)) if size.smaller_everywhere else tuple(sorted({layers // 4, layers // 2, layers - 1}))


def plan_sae_trainings(request: Request, size: DavisSize) -> Iterator[Step]:
    """Yield Table 3: an autoencoder of the paper's expansion at each site, and smaller ones at some or all blocks.

    If all blocks have all expansions, a single run trains them, so that the model reads the tokens once.
    """

    def step(name: str, expansions: tuple[int, ...], points: tuple[str, ...]) -> Step:
        search: Values = {}
        features = sum(expansions) * request.d_model
        if size.sae_l0 is not None:
            search = {"l0": size.sae_l0, "l0_search_tokens": size.sae_search_tokens}
        tokens = size.sae_tokens + 5 * (size.sae_search_tokens or 0)
        return Step(
            name, "sae",
            {"checkpoint": request.checkpoint, "dataset": get_fit_dataset(request), "heldout": f"{request.test}:test",
             "heldout_games": size.heldout_games, "min_plies": size.min_plies, "expansions": expansions,
             "tokens": size.sae_tokens, "batch_tokens": size.sae_batch, "learning_rate": size.sae_learning_rate,
             "precision": size.sae_precision,
             "l1_coefficient": size.sae_l1, "centre": size.sae_centre, "hook_points": points,
             "mix_tokens": min(MIX_TOKENS, size.sae_tokens), **search},
            "Table 3", ("parts",), units=len(points) * len(expansions),
            rows={"statistic": 13 * len(points) * len(expansions), "prediction": features * len(points)},
            bytes=8 * request.d_model * features * len(points),
            operations=14.0 * request.d_model * features * tokens * len(points) + count_forward_operations(request,
                                                                                                           tokens),
        )  # fmt: skip

    def format_points(layers: Iterable[int]) -> tuple[str, ...]:
        return tuple(format_hook_point(layer, RESID_POST) for layer in layers)

    ends = tuple(point for point in SITES if "*" not in point)
    if size.smaller_everywhere:
        yield step(ALL_SAES_STEP, (size.expansion, *size.smaller), (*format_points(range(request.layers)), *ends))
        return
    for name, layers in group_blocks(request, size).items():
        yield step(f"sae-{name}", (size.expansion,), format_points(layers))
    yield step("sae-ends", (size.expansion,), ends)
    for expansion in size.smaller:
        yield step(f"sae-smaller-{expansion}", (expansion,), format_points(list_compared_blocks(request, size)))


def count_latent_operations(request: Request, positions: float, expansion: int, is_learned: bool = True) -> float:
    """Return the floating-point operations of one joint probe of latents, including the encoding of its inputs.

    `positions` counts every epoch. `is_learned` is False for a probe that is computed in closed form.
    """
    latents = expansion * request.d_model
    return (
        count_probe_operations(positions, JOINT_CLASSES, latents, is_learned)
        + 4.0 * positions * request.d_model * latents
    )


def plan_latent_probes(request: Request, size: DavisSize) -> Iterator[Step]:
    """Yield Table 4: probes of the latents of every block and phase, on the rows of the linear probes."""
    small: Values = {"batch_positions": 200, "min_positions": 20} if size.epochs < 15 else {}
    rows = size.fit_games * 5 / 4
    for name, layers in group_blocks(request, size).items():
        for phase in PHASES:
            yield Step(
                f"sae-probe-{phase}-{name}", "probe",
                {"preset": "davis-corrected", "cache": "@model-fit", "test_cache": "@model-test", "phase": phase,
                 "source": "sae-latents", **build_sae_settings(request, size, layers[0], size.expansion),
                 "layers": layers,
                 "epochs": size.sae_probe_epochs, "learning_rate": 0.003, **small},
                "Table 4", units=len(layers), rows={"score": len(layers) * size.test_games},
                operations=len(layers) * count_latent_operations(request, rows * size.sae_probe_epochs, size.expansion),
            )  # fmt: skip
