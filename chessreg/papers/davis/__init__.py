"""Davis, Vasquez Ferrer & Sukthankar 2026, "Exploring the Limits of Probes for Latent Representation Edits in GPT
Models", with the maps of the ICMLA 2024 paper before it.

Order of the steps: the language model, edits with linear probes (layer and α chosen on separate validation games),
probes of color, type and both at every site and phase and on random-init controls, the Markov test with its controls,
sparse autoencoders, edits of all seven types, matches with an edit, probes of latents. The most informative steps come
first, so that an interrupted paper already has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chessreg.errors import BadInputError
from chessreg.papers.davis.edits import (
    CODE_LAYER_SUFFIX,
    EDITS_STEP,
    FIGURE_4_STEP,
    STRENGTH_STEP,
    SWEEP_STEP,
    plan_derived_probes,
    plan_edits_of_all_types,
    plan_linear_probe_edits,
)
from chessreg.papers.davis.expectations import EXPANSION_QUERY, EXPECTATIONS
from chessreg.papers.davis.figures import (
    draw_case_boards,
    draw_case_squares,
    draw_edit_masses,
    draw_latent_edit_masses,
    draw_ridge_plot,
    draw_square_maps,
)
from chessreg.papers.davis.matches import plan_davis_matches
from chessreg.papers.davis.readout import (
    PLY_END_PHASES,
    plan_davis_caches,
    plan_davis_probes,
    plan_language_model_tests,
    plan_markov_tests,
)
from chessreg.papers.davis.saes import plan_latent_probes, plan_sae_trainings
from chessreg.papers.davis.sizes import SIZES
from chessreg.papers.parts import plan_parts
from chessreg.papers.plan import Paper, Picture, Request, Sheet, Step

if TYPE_CHECKING:
    from chessreg.session import Session


def list_davis_steps(request: Request) -> list[Step]:
    """Return the steps of the paper for a request, in order."""
    size = SIZES[request.size]
    return [
        *plan_parts(request),
        *plan_language_model_tests(request, size),
        *plan_linear_probe_edits(request, size),  # each step comes after its dependencies
        *plan_davis_caches(request, size),
        *plan_davis_probes(request, size),
        *plan_markov_tests(request, size),
        *plan_sae_trainings(request, size),
        *plan_derived_probes(request, size),
        *plan_edits_of_all_types(request, size),
        *plan_davis_matches(request, size),
        *plan_latent_probes(request, size),
    ]


def check_davis_request(session: Session, request: Request) -> None:
    """Raise BadInputError if the model's tokens have no phases of a move. Edits need the token that ends a ply."""
    inputs = session.inputs
    encoding = inputs.encoding(inputs.reference("checkpoint", request.checkpoint))
    if not set(PLY_END_PHASES.values()) <= set(encoding.phases):
        raise BadInputError(
            f"{request.checkpoint} writes {encoding.name}, but the paper is about models of UCI squares",
            "`chessreg run train --architecture gpt2 --encoding uci-square-72`, or `chessreg paper karvonen`",
        )


PAPER = Paper(
    "davis",
    "Davis 2026: the limits of probes for latent representation edits in GPT models",
    list_davis_steps,
    (
        Sheet("table-2-perplexity", "Table 2: perplexity", "perplexity", steps=("perplexity-*",),
              plots=("perplexity",)),
        Sheet("table-2-legal-moves", "Table 2: legal moves by phase", "legal moves by phase", steps=("legality*",),
              plots=("legal moves by phase",)),
        Sheet("table-3", "Table 3: sparse autoencoders", "sae reconstruction", steps=("sae-blocks-*", "sae-ends"),
              plots=("sae reconstruction by layer", "loss recovered by sae", "sparsity of saes")),
        Sheet("expansions", "Section 4.3: autoencoders of several expansions", "sae reconstruction",
              steps=("sae-blocks-*", "sae-smaller-*"), plots=("sae reconstruction by layer",), has_published=False),
        Sheet("table-4", "Table 4: probes of latents", "probe metrics by layer", steps=("sae-probe-*",),
              plots=("probe metrics by layer",), tables=("Table 4",)),
        Sheet("table-4-beside-5", "Tables 4 and 5 compared: the cost of latents", "probe accuracy by source",
              steps=("sae-probe-*", "model-joint-*-blocks"), plots=("probe accuracy by source",), has_published=False),
        Sheet("table-5", "Table 5: linear probes", "probe metrics by layer", steps=("model-joint-*", "twin-*-joint-*"),
              plots=("probe metrics by layer",), tables=("Table 5",)),
        Sheet("color-and-type", "Section 4.4: probes of color and of type", "probe metrics by layer",
              steps=("*-color-*", "*-type-*"), plots=("probe metrics by layer",), has_published=False),
        Sheet("probes-of-edits", "Probes that edits are made with: of the first plies, and as published",
              "probe metrics by layer", steps=("early-joint-*", "paper-joint-*", "code-joint-*"), has_published=False),
        Sheet("compositional-map", "Compositional map (ICMLA 2024)", "probe composition", steps=("composition-*",),
              plots=("probe composition",)),
        Sheet("table-6", "Table 6: the Markov test", "markov by layer", steps=("markov", "markov-*"),
              plots=("markov statistic by layer", "markov effect by layer", "markov beyond the last move")),
        Sheet("choice", "Choice of layer and α, on the validation games", "edit strength", steps=(SWEEP_STEP,),
              has_published=False, choices=True),
        Sheet("figure-2", "Figure 2: the effect of α", "edit strength", steps=(STRENGTH_STEP,),
              plots=("edit strength",)),
        Sheet("figure-5", "Figures 5 and 6 and section 4.8: legal move mass", "legal move mass by edit",
              steps=(EDITS_STEP,), plots=("legal move mass by edit",)),
        Sheet("protocols", "Figure 5 and section 4.7, as the text and as the published code have it",
              "legal move mass by edit", steps=("edits-paper", "edits-published-code")),
        Sheet("differences", "Types held against each other, same cases", "legal move mass between edits",
              steps=(EDITS_STEP,), plots=("difference of edits",), has_published=False),
        Sheet("differences-at-code-layer", "Types held against each other at the layer of the code",
              "legal move mass between edits", steps=(f"{EDITS_STEP}{CODE_LAYER_SUFFIX}",), has_published=False),
        Sheet("edits-by-expansion", "Sections 4.3 and 4.8: edits by autoencoders of several expansions",
              EXPANSION_QUERY, steps=(f"{EDITS_STEP}{CODE_LAYER_SUFFIX}*",), plots=("difference of expansions",),
              has_published=False),
        Sheet("ridge", "Ridge plot (ICMLA 2024): mass by edited layer", "legal move mass by layer",
              steps=("edits-by-layer",), plots=("legal move mass by layer",)),
        Sheet("square-maps", "Square maps (ICMLA 2024): mass by piece and square", "legal move mass by square",
              steps=(EDITS_STEP,)),
        Sheet("beside", "In addition to Figure 5: probes of last positions, several layers, several tokens",
              "legal move mass by edit", steps=("edits-final-five", "edits-many-layers", "edits-tokens-*"),
              has_published=False),
        Sheet("causes", "Why Probe may gain little at the code's α: the norm that α scales, one layer, other probes",
              "legal move mass by edit", has_published=False,
              steps=(EDITS_STEP, "edits-residual-norm", "edits-ln-next", "edits-many-layers", "edits-final-five")),
        Sheet("elo", "Elo by intervention: pieces missing from their initial squares", "elo by intervention",
              steps=("match-*",), has_published=False),
        Sheet("figure-4-strength", "Figure 4's position at every layer and α", "edit strength", steps=(FIGURE_4_STEP,),
              has_published=False),
    ),
    (
        Picture("figure-3", "Figure 3: original, target and later board of a case", draw_case_boards, (EDITS_STEP,)),
        Picture("figure-4", "Figure 4: squares before and after an edit", draw_case_squares,
                (FIGURE_4_STEP, SWEEP_STEP)),
        Picture("figure-5-cases", "Figure 5: None, Random, Probe and Patch, over cases", draw_edit_masses,
                (EDITS_STEP,)),
        Picture("figure-6-cases", "Figure 6: probes of latents, over cases", draw_latent_edit_masses, (EDITS_STEP,)),
        Picture("ridge-cases", "Ridge plot: mass by edited layer, over cases", draw_ridge_plot, ("edits-by-layer",)),
        Picture("square-maps-drawn", "Square maps: mean mass by piece and square", draw_square_maps,
                (EDITS_STEP, SWEEP_STEP)),
    ),
    steps_by_question={
        "headlines": ("legality", "edit-sweep", "figure-4", "edits-by-layer", "model-joint-*-blocks", "markov"),
        "edits of all types": ("edits",),
        "random-init controls": ("twin-*-joint-*",),
        "what latents cost": ("sae-blocks-*", "sae-probe-*"),
    },
    expectations=EXPECTATIONS,
    check=check_davis_request,
    has_comparisons=True,
)  # fmt: skip
