"""Karvonen 2024, "Emergent World Models and Latent Variable Estimation in Chess-Playing Language Models".

Caches → probes of board and skill on the model and its untrained twins → vectors with their controls → board edits and
matches, settings chosen on games that nothing is reported on. Three sizes: `small` shows that all works in minutes,
`reference` has the games that the headlines need, `paper` the paper's own numbers.
"""

from __future__ import annotations

from chessreg.papers.karvonen.edits import edits
from chessreg.papers.karvonen.matches import matches
from chessreg.papers.karvonen.readout import data, models, probes, vectors
from chessreg.papers.karvonen.sizes import SIZES
from chessreg.papers.plan import Paper, Request, Sheet, Step


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
        Sheet("ladder", "Choice of the opponents of Table 3", "elo by intervention", "intervention = 'none'",
              published=False, choices=True),
        Sheet("terminations", "How the games of Tables 3 and 7 end", "games by termination", published=False),
        Sheet("table-4", "Table 4: how probes are fitted", "probe settings"),
        Sheet("table-5", "Table 5: how models are trained", "training settings", of_model=True),
        Sheet("table-6", "Table 6: best board edits", "best board edit", choices=True),
        Sheet("table-6-skill", "Table 6: best skill edits", "best skill edit", choices=True),
        Sheet("table-8", "Table 8: board edits of one layer", "board intervention legality",
              "layer IS NOT NULL AND edits_tried > 1", plots=("board edits by layer",), choices=True),
        Sheet("table-9", "Table 9: F1 by class", "probe f1 by class", plots=("probe f1 by class",)),
        Sheet("rating-error", "Section 3.2: error of the rating that is read", "rating error by layer",
              plots=("rating error by layer",)),
        Sheet("legal-moves", "Section 2.2: legal moves", "legal moves by ply", plots=("legal moves by ply",)),
    ),
)  # fmt: skip
