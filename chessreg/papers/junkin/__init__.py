"""Junkin & Nathanson 2025, "Causal Masking on Spatial Data" (arXiv 2510.27009).

Twins (models of positions with and without a causal mask, and of games) learn the same decisions and answer unseen
positions → puzzles → language models in prompts with and without the legal moves → a ladder of opponents. The
paper's own table comes first, and the most informative steps before the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chessreg.errors import BadInputError
from chessreg.experiments.finetune import check_tunable
from chessreg.experiments.puzzles import PuzzlesSpec, select_puzzles
from chessreg.experiments.settings.decisions import locate_in_games
from chessreg.papers.junkin.expectations import EXPECTATIONS
from chessreg.papers.junkin.models import (
    TWINS,
    is_split_by_position,
    plan_junkin_ladder,
    plan_language_models,
    plan_position_parts,
    plan_twins,
)
from chessreg.papers.junkin.sizes import SIZES
from chessreg.papers.parts import plan_parts
from chessreg.papers.plan import Paper, Request, Sheet, Step
from chessreg.registry import tables

if TYPE_CHECKING:
    from chessreg.session import Session


def list_junkin_steps(request: Request) -> list[Step]:
    """Return every run: first seeds of each shape, then language models and the ladder, then other seeds."""
    size = SIZES[request.size]
    first_shapes = [(shape, shape.seeds[0]) for shape in size.shapes]
    replicates = [(shape, seed) for shape in size.shapes for seed in shape.seeds[1:]]
    counts = {"dataset": request.positions}
    return [
        *(() if is_split_by_position(request, size) else plan_parts(request)),
        plan_position_parts(request),
        Step("move-counts", "move-counts", counts, "Appendix F", units=1, rows={"metric_point": 60}),
        *(step for shape, seed in first_shapes for step in plan_twins(request, size, shape, seed)),
        *plan_language_models(request, size),
        *plan_junkin_ladder(request, size),
        *(step for shape, seed in replicates for step in plan_twins(request, size, shape, seed)),
    ]


def describe_left_out_models(request: Request) -> list[str]:
    """Return the reason why models of games are left out, as a list of one line; empty if they are included."""
    if not request.without_games:
        return []
    return [f"models of games (games-*, and the steps that need them) are left out: {request.without_games}"]


def check_junkin_request(session: Session, request: Request) -> None:
    """Check the language models, games and puzzles of a request. Datasets with bytes elsewhere are not checked.

    Raises BadInputError if a language model cannot be tuned or has the name of a twin, if no fitted or tested game
    has one of the positions, or if the puzzles have no solution.
    """
    inputs = session.inputs
    here = {
        name: inputs.reference("dataset", name)
        for name in (request.fit, request.test, request.positions, request.puzzles)
        if name and has_dataset_bytes(session, name)
    }
    if (positions := here.get(str(request.positions))) is not None:
        items, _ = inputs.positions(positions)
        for name in dict.fromkeys((request.fit, request.test)):
            if name in here:
                locate_in_games(items, items.rows(None), *inputs.dataset(here[name]))
    if request.puzzles in here:
        try:
            select_puzzles(PuzzlesSpec(checkpoint="", dataset=here[request.puzzles]), inputs)
        except BadInputError as error:
            raise BadInputError(f"--puzzle-dataset {request.puzzles}: {error.message}", error.hint) from error
    for model in request.language_models:
        check_tunable(inputs.read_checkpoint_row(inputs.reference("checkpoint", model.name)))
        if model.name in TWINS:
            raise BadInputError(f"--language-model {model.name} has the name of a twin of this paper",
                                f"chessreg checkpoint name {model.name} OTHER")  # fmt: skip


def has_dataset_bytes(session: Session, dataset: str) -> bool:
    """Return whether a dataset's bytes are in this store."""
    with session.database.read() as sql:
        return session.store.has_content(sql.get_one(tables.Dataset, session.id("dataset", dataset)).artifact)


PAPER = Paper(
    "junkin",
    "Junkin and Nathanson 2025: causal masking on spatial data",
    list_junkin_steps,
    (
        Sheet("mask-ablation", "Sections 3.1 and 4.2: masks and inputs, paired differences of twins", "mask ablation",
              steps=("accuracy-*",), plots=("mask ablation",)),
        Sheet("move-accuracy", "Section 4.3 and Appendix B: best, valid and legal moves, cross-entropy per move",
              "move accuracy by model", steps=("accuracy-*",),
              plots=("move accuracy by model", "cross-entropy by model")),
        Sheet("curves", "Figures of loss: while the models learn", "training curves",
              steps=("bidirectional-*", "causal-*", "games-*", "language-model-*", "tuned-*"),
              plots=("loss curves", "accuracy curves"), has_published=False),
        Sheet("training", "Table D.3: how the models are trained", "training settings",
              steps=("bidirectional-*", "causal-*", "games-*", "language-model-*", "tuned-*"),
              tables=("Appendix D.3",)),
        Sheet("puzzles", "Puzzles by rating", "puzzles by rating", steps=("puzzles-*",), plots=("puzzles by rating",),
              has_published=False),
        Sheet("decoding", "Appendix C and D.5: forced and free answers", "decoding modes", steps=("decoding-*",),
              plots=("decoding modes",)),
        Sheet("prompts", "Section 4.3: prompts, before and after tuning, with and without legal moves",
              "prompt ablation", steps=("decoding-*", "prompts-*"), plots=("prompt ablation",)),
        Sheet("edit-distance", "Samples by their edit distance from the greedy answer, on positions that were "
              "learned and on others (his repository)", "edit distance of answers", steps=("distance-*",),
              plots=("edit distance of answers",), has_published=False),
        Sheet("move-counts", "Appendix F: legal moves per position", "legal moves per position",
              steps=("move-counts",), plots=("legal moves per position", "positions within a list of legal moves")),
        Sheet("wins", "Wins, draws and losses by level", "wins by level", steps=("ladder-*",),
              plots=("wins by level",)),
        Sheet("draws", "Drawn games by their evaluation before the model's last move (his repository)",
              "draws by evaluation", steps=("ladder-*",), plots=("draws by evaluation",)),
        Sheet("elo", "Ratings by every estimator", "elo by estimator", steps=("ratings", "ratings-*"),
              plots=("elo by estimator", "performance by level")),
    ),
    steps_by_question={
        "masks": ("accuracy-*",),
        "language models": ("decoding-*", "prompts-*", "distance-*"),
        "ladder": ("ladder-*", "ratings", "ratings-*"),
    },
    expectations=EXPECTATIONS,
    check=check_junkin_request,
    remarks=describe_left_out_models,
    can_train=True,
)  # fmt: skip
