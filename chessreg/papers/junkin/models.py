"""The models of Junkin's paper and their measurements: twins, language models, a ladder of opponents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chessreg.encodings.prompts import TEMPLATES
from chessreg.games.engines.estimators import SIDE_BY_SIDE, WEIGHTS
from chessreg.games.engines.opponents import engine_rating, parse_ladder
from chessreg.papers.cost import thinking
from chessreg.papers.junkin.sizes import Shape, Size
from chessreg.papers.parts import fitted_on
from chessreg.papers.plan import Request, Step, Values

if TYPE_CHECKING:
    from chessreg.papers.plan import Made

FEN = {"architecture": "fen-encoder", "embedding": "own"}
TWINS: dict[str, dict[str, Any]] = {  # specification 2.1, the corrected input; 9.2: the control of equal decisions
    "bidirectional": FEN | {"attention": "bidirectional"},
    "causal": FEN | {"attention": "causal"},
    "games": {"architecture": "gpt2-best-moves", "encoding": "pgn-char-32", "block_size": 2047},
}
TOKENS = {"bidirectional": 78, "causal": 78, "games": 75}
"""That a model reads for each decision: the position and the token before it; or its share of the game, 25, at a third
of the rate, as games are of unequal length."""
READ = 29
"""Tokens that a model of games takes through its blocks for each decision of the reference's games, with branches and
padding, about; a model of positions 78. The column `flops` of `mask ablation` counts them as they were."""
PROMPT = {True: 335, False: 92}
"""Tokens of a prompt of initial weights' tokenizer, with its legal moves and without."""
PRETRAINED_ON = "junkin-1"
"""The template that the language model reads first, with its legal moves, every token of it predicted."""
DRAWS = "nodes=10000"  # Stockfish's limit for drawn games, as they stood before the model's last move
MOVES = 40
"""Of the model in a game of the ladder, about."""
NO_HELP: dict[str, Any] = {"color": "both", "opening": "random:6", "policy": "legal", "temperatures": (0.001,)}
"""How models of the ladder play: at the temperature of the author's first attempt (specification 7.2)."""


def twins(request: Request, size: Size, shape: Shape, seed: int) -> Iterator[Step]:
    """Twins of one shape and seed, and what each answers to positions and puzzles."""
    parameters = 12 * shape.n_layer * shape.n_embd**2
    less = size.steps_at_games_compute or max(1, round(size.steps * READ / TOKENS["causal"]))
    trained = [(name, f"{name}-{shape.name}-{seed}", size.steps) for name in TWINS]
    if seed == shape.seeds[0]:  # as many model FLOPs as its twin of games
        trained.append(("causal", f"causal-{shape.name}-{seed}-at-games-compute", less))
    for name, model, steps in trained:
        settings: dict[str, Any] = {
            **TWINS[name], **size.training, "datasets": (request.positions,), "source_games": fitted_on(request),
            "heldout": request.positions, "heldout_source_games": f"{request.test}:validation",
            "heldout_moves": size.heldout_moves, "heldout_steps": size.heldout_steps, "n_layer": shape.n_layer,
            "n_head": shape.n_head, "n_embd": shape.n_embd, "steps": steps, "batch_moves": size.batch_moves,
            "seed": seed,
        }  # fmt: skip
        counted = steps != size.steps and size.steps_at_games_compute is None
        twin = f"games-{shape.name}-{seed}"
        yield Step(
            model, "train", AtComputeOf(twin, settings) if counted else settings,
            "sections 3.1 and 4.2", ("parts", twin) if counted else ("parts",), units=1,
            rows={"metric_point": 3 * steps // 20},
            bytes=4 * parameters, operations=6.0 * parameters * TOKENS[name] * steps * size.batch_moves,
        )  # fmt: skip
        yield Step(
            f"accuracy-{model}", "move-accuracy",
            {"checkpoint": f"@{model}/checkpoint", "dataset": request.positions, "source_games": f"{request.test}:test",
             "unseen_of": fitted_on(request), "positions": size.positions},
            "sections 4.2 and 4.3", ("parts",), units=size.positions // 15, rows={"prediction": size.positions},
            operations=2.0 * parameters * TOKENS[name] * size.positions,
        )  # fmt: skip
        if request.puzzles is not None and name != "games" and steps == size.steps:
            yield Step(
                f"puzzles-{model}", "puzzles",
                {"checkpoint": f"@{model}/checkpoint", "dataset": request.puzzles, "puzzles": size.puzzles},
                "puzzles", units=size.puzzles, rows={"prediction": size.puzzles},
                operations=2.0 * parameters * TOKENS[name] * 2 * size.puzzles,
            )  # fmt: skip


@dataclass(frozen=True)
class AtComputeOf:
    """The settings with as many steps as take the tokens through the blocks that the training of `twin` took."""

    twin: str
    settings: Values

    def __call__(self, made: Made) -> Values:
        tokens = made.value(
            "SELECT (detail->>'$.source.tokens_read')::BIGINT AS value FROM checkpoint "
            f"WHERE run_id = UUID '{made.run_id(self.twin)}'"
        )
        assert tokens is not None
        return {**self.settings, "steps": max(1, round(tokens / (TOKENS["causal"] * self.settings["batch_moves"])))}


def language_models(request: Request, size: Size) -> Iterator[Step]:
    """A language model that has read prompts, one of initial weights unless it is given, and what became of it by
    tuning on each template with as many supervised moves; what both answer by these templates, and by every published
    one. Its positions are parts of their own, cut by game."""
    shares = "fit=0.5,validation=0.1,test=0.4"
    yield Step("positions", "split", {"dataset": request.positions, "parts": shares, "seed": 0}, "section 4.3")
    read = {"datasets": (f"{request.positions}:fit",), "heldout": f"{request.positions}:validation"}
    known = request.language_model
    shape = size.language_model
    weights = 0 if known else 12 * shape["n_layer"] * shape["n_embd"] ** 2
    if known is None:
        yield finetuned("language-model", {**size.tuning, **shape, **read, "loss": "all"}, PRETRAINED_ON, weights)
    first, then = known or made_by("language-model"), made_by(f"tuned-{PRETRAINED_ON}")
    for template in size.templates:
        tuned = f"tuned-{template}"
        yield asking(request, f"decoding-before-{template}", first, template, size.decoding_positions)
        yield finetuned(tuned, {**size.tuning, **read, "checkpoint": first}, template, weights)
        yield asking(request, f"decoding-{tuned}", made_by(tuned), template, size.decoding_positions)
    done = {("after", PRETRAINED_ON), *(("before", template) for template in size.templates)}
    for template in size.prompts:
        for name, model in (("before", first), ("after", then)):
            if size.prompt_positions != size.decoding_positions or (name, template) not in done:
                yield asking(request, f"prompts-{name}-{template}", model, template, size.prompt_positions)


def made_by(step: str) -> str:
    """The checkpoint that a step makes."""
    return f"@{step}/checkpoint"


def finetuned(name: str, settings: dict[str, Any], template: str, weights: int) -> Step:
    """The tuning of a language model on one template; `weights` are those of its blocks, 0 where they are not known."""
    tokens = PROMPT["{LM}" in TEMPLATES[template]] * settings["steps"] * settings["batch_positions"]
    return Step(
        name, "finetune", {**settings, "template": template}, "section 4.3", ("positions",), units=1,
        rows={"metric_point": settings["steps"] // 10}, operations=6.0 * weights * tokens,
    )  # fmt: skip


def asking(request: Request, name: str, model: str, template: str, positions: int) -> Step:
    """What a language model answers to unseen positions by one template."""
    return Step(
        name, "decoding",
        {"checkpoint": model, "dataset": f"{request.positions}:test", "template": template,
         "positions": positions},
        "section 4.3, Appendix C", ("positions",), units=positions, rows={"prediction": 2 * positions},
    )  # fmt: skip


def ladder(size: Size) -> Iterator[Step]:
    """The twins of positions of the largest shape against every rung, without help by Stockfish, and their ratings by
    every estimator where a rung has a known one."""
    shape, rungs = size.shapes[-1], parse_ladder(size.rungs)
    moves = MOVES * size.games
    thought = moves * sum(thinking(rung.text) for rung in rungs if rung.needs_process)
    for name in ("bidirectional", "causal"):
        yield Step(
            f"ladder-{name}", "play",
            {"checkpoint": f"@{name}-{shape.name}-{shape.seeds[0]}/checkpoint", "ladder": size.rungs,
             "games": size.games, "evaluate_draws": DRAWS, **NO_HELP},
            "section 4 and Appendix I", units=size.games * len(rungs), rows={"game": size.games * len(rungs)},
            operations=24.0 * shape.n_layer * shape.n_embd**2 * TOKENS[name] * moves * len(rungs),
            engine_seconds=thought,
        )  # fmt: skip
    known = sum(engine_rating(rung) is not None for rung in rungs)
    if known:
        units = len(SIDE_BY_SIDE) + len(WEIGHTS) * known
        yield Step(
            "ratings", "rating",
            {"runs": ("@ladder-bidirectional", "@ladder-causal"), "estimator": "all", "anchors": "levels-truncated"},
            "section 4 and Appendix I", units=units, rows={"rating": 2 * units},
        )  # fmt: skip
