"""Karvonen 2024, "Emergent World Models and Latent Variable Estimation in Chess-Playing Language Models".

Order of the steps: caches, probes of board and skill on the model and its random-init controls, steering vectors with
their controls, board edits, matches. Edits and matches use the published settings, and settings chosen on separate
validation games. Sizes: `small` takes minutes, `reference` has enough games for the main results, and `paper` uses
every published setting and number of games.
"""

from __future__ import annotations

from chessreg.papers.karvonen.edits import draw_edit_readings, draw_pawn_readings, plan_board_edits
from chessreg.papers.karvonen.matches import plan_engine_matches, plan_karvonen_matches
from chessreg.papers.karvonen.readout import plan_karvonen_probes, plan_models, plan_skill_of_played_games, plan_vectors
from chessreg.papers.karvonen.sizes import SIZES
from chessreg.papers.parts import plan_parts
from chessreg.papers.plan import Paper, Picture, Request, Sheet, Step


def list_karvonen_steps(request: Request) -> list[Step]:
    """Return the steps of the paper for a request, in order."""
    size = SIZES[request.size]
    return [
        *plan_parts(request),
        *plan_models(request, size),
        *plan_karvonen_probes(request, size),
        *plan_vectors(request, size),
        *plan_board_edits(request, size),
        *plan_karvonen_matches(request, size),
        *plan_skill_of_played_games(request, size),
        *plan_engine_matches(size),
    ]


# Steps by the question they answer, for `paper karvonen --first skill`. The protocol is the most informative one for a
# weak model: legal moves only, from random openings.
BOARD_STEPS = ("model-board-0", "twin-0-board-0", "table-2-last-*", "edits-*")
CAUSE_STEPS = ("model-skill-0", "twin-0-skill-0", "model-skill-balanced", "model-skill-pooled", "played-skill*")
SKILL_STEPS = tuple(f"arm-legal-random-{arm}" for arm in ("none", "negative", "positive", "negative-*", "positive-*"))

# The whole paper in slices of at most two core-hours at the reference size, most informative first. `--only SLICE` also
# completes the steps that the slice needs. tests/fixtures/karvonen/README.md lists the cost of each slice.
CONTRAST_STEPS = tuple(
    f"arm-legal-random-{arm}" for arm in ("none", "negative", "positive", "*tive-shuffled-*", "*tive-random-*")
)
SLICES = {
    "slice-skill": CONTRAST_STEPS,
    "slice-board": BOARD_STEPS,
    "slice-causes": (*CAUSE_STEPS, "arm-legal-random-*-of-probe*", "quality-legal-*"),
    "slice-probes": ("model-*", "twin-*", "legality"),
    "slice-published-board": ("table-2-*", "table-8-*", "appendix-*-last-*", "appendix-*-all-*"),
    "slice-published-skill": ("level-*", "table-3-*", "table-7-*", "*-table-3-*", "*-table-7-*"),
    "slice-retry": ("*-retry-*",),
    "slice-rest": ("*",),
}

PAPER = Paper(
    "karvonen",
    "Karvonen 2024: emergent world models and latent variable estimation in chess-playing language models",
    list_karvonen_steps,
    (
        Sheet("table-1", "Table 1: probe accuracy, best layer", "best probe layers",
              plots=("probe accuracy of the best layer",)),
        Sheet("figure-3", "Figure 3: probe accuracy by layer", "probe accuracy by layer",
              plots=("probe accuracy by layer",)),
        Sheet("table-2", "Table 2 and Appendices C and D: board edits", "board intervention legality",
              "edits_tried = 1",
              plots=("board edits",), tables=("Table 2",)),
        Sheet("table-3", "Tables 3 and 7 and Appendix C: skill edits", "elo by intervention", "policy <> 'engine'",
              plots=("score by intervention",), scorings=("paper", "author-2024"), tables=("Table 3", "Table 7")),
        Sheet("skill-causes", "Where skill shows no effect: the three likeliest causes", "causes of no skill effect",
              has_published=False),
        Sheet("figure-2", "Figure 2: win rate by level", "elo by intervention",
              "level >= 0 AND intervention = 'none' AND policy <> 'engine'",
              plots=("win rate by level",), scorings=("paper", "author-2024"),
              tables=("Figure 2", "Figure 2, an earlier version", "Section 2.2")),
        Sheet("ladder", "Choice of the opponents of Table 3", "elo by intervention", "intervention = 'none'",
              has_published=False, choices=True),
        Sheet("terminations", "How the games of Tables 3 and 7 end", "games by termination", has_published=False),
        Sheet("table-4", "Table 4: how probes are fitted", "probe settings"),
        Sheet("table-5", "Table 5: how models are trained", "training settings", covers_model=True),
        Sheet("table-6", "Table 6: best board edits", "best board edit", tables=("Table 6",), choices=True),
        Sheet("table-6-skill", "Table 6: best skill edits", "best skill edit", choices=True),
        Sheet("table-8", "Table 8: board edits of one layer", "board intervention legality",
              "layer IS NOT NULL AND edits_tried > 1", plots=("board edits by layer",), tables=("Table 8",)),
        Sheet("appendix-d", "Appendix D: the best scale of each state", "best board edit",
              "choice = 'best of scales per state' AND len(layers) > 1", tables=("Appendix D",)),
        Sheet("specificity", "Beyond the paper: intended and other effects of edits", "edit specificity",
              "edits_tried = 1", plots=("edit specificity",), has_published=False),
        Sheet("frontier", "Beyond the paper: the frontier of the sweep's edits", "edit specificity",
              plots=("frontier of edits", "edit specificity"), has_published=False, choices=True),
        Sheet("table-9", "Table 9: F1 by class", "probe f1 by class", plots=("probe f1 by class",)),
        Sheet("rating-error", "Section 3.2: error of the rating read by a probe", "rating error by layer",
              plots=("rating error by layer",)),
        Sheet("appendix-e", "Appendix E: the effect of more time at one level", "elo by intervention",
              "policy = 'engine'", scorings=("paper", "author-2024"), tables=("Appendix E",)),
        Sheet("random-openings", "Section 4.3: skill read off games from random openings", "skill of other games",
              plots=("skill of other games",)),
        Sheet("unique-games", "Section 2.2: games that are not in the training set", "unique games"),
        Sheet("accuracy-by-ply", "Accuracy of probes by ply", "square accuracy by ply",
              plots=("square accuracy by ply",), has_published=False),
        Sheet("accuracy-by-square", "Accuracy of board probes by square", "accuracy by square", has_published=False),
        Sheet("move-quality", "Quality of the moves of Table 3", "move quality",
              plots=("move quality", "move quality by move"), has_published=False),
        Sheet("legal-moves", "Section 2.2: legal moves", "legal moves by ply", plots=("legal moves by ply",)),
    ),
    (
        Picture("figure-1", "Figure 1: white pawns as a board probe reads them", draw_pawn_readings,
                ("model-board-0", "edits-all")),
        Picture("figure-5", "Figure 5: readings before and after an edit", draw_edit_readings, ("edits-all",)),
    ),
    {"board": BOARD_STEPS, "skill": SKILL_STEPS, "causes": CAUSE_STEPS,
     "headlines": (*BOARD_STEPS, *CAUSE_STEPS, *SKILL_STEPS), **SLICES},
)  # fmt: skip
