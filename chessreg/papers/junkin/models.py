"""The models of Junkin's paper and their measurements: twins, language models, a ladder of opponents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chessreg.encodings.prompts import TEMPLATES
from chessreg.games.engines.estimators import DRAW_WEIGHTS, SIDE_BY_SIDE
from chessreg.games.engines.opponents import get_engine_rating, parse_ladder
from chessreg.papers.junkin.sizes import JunkinSize, TwinShape
from chessreg.papers.parts import get_fit_dataset
from chessreg.papers.plan import Request, Step, Values
from chessreg.runs.cost import estimate_search_seconds

if TYPE_CHECKING:
    from chessreg.papers.plan import CompleteSteps

FEN_MODEL = {"architecture": "fen-encoder", "embedding": "own"}
TWINS: dict[str, dict[str, Any]] = {  # the corrected input, and a control with equal decisions
    "bidirectional": FEN_MODEL | {"attention": "bidirectional"},
    "causal": FEN_MODEL | {"attention": "causal"},
    "games": {"architecture": "gpt2-best-moves", "encoding": "pgn-char-32", "block_size": 2047},
}
TOKENS_PER_DECISION = {"bidirectional": 78, "causal": 78, "games": 75}
"""Tokens per decision, for estimates. Models of positions read the position and one token before it. Models of games
read 25 tokens per decision, three times as slowly because games differ in length."""
GAME_TOKENS_PER_DECISION = 29
"""Approximate tokens per decision that pass through the blocks of a model of games, with branches and padding (model of
positions: 78). The column `flops` of `mask ablation` has the measured number."""
PROMPT_TOKENS = {True: 335, False: 92}
"""Tokens of a prompt with the tokenizer of initial weights, by whether it lists the legal moves."""
PRETRAINING_TEMPLATE = "junkin-1"
"""The template of the first training, which lists the legal moves. The loss covers every token."""
DRAW_EVALUATION_LIMIT = "nodes=10000"  # Stockfish's limit; drawn games are evaluated before the model's last move
SAMPLES_PER_POSITION = 20  # in the figure of edit distances
MOVES_PER_GAME = 40
"""Approximate number of the model's moves in a game of the ladder."""


# -- the positions of a request --------------------------------------------------------------------------------------


def is_split_by_position(request: Request, size: JunkinSize) -> bool:
    """Return whether all models learn and are measured on the same parts of the positions.

    Otherwise twins use parts of the games, and language models use parts of the positions.
    """
    return size.one_set or not request.fit


def plan_position_parts(request: Request) -> Step:
    """Return the step that cuts the positions into parts: by game, or by position if the games are unknown."""
    shares = "fit=0.5,validation=0.1,test=0.4"
    return Step("positions", "split", {"dataset": request.positions, "parts": shares, "seed": 0}, "all tables")


def get_training_positions(request: Request, size: JunkinSize) -> dict[str, Any]:
    """Return the settings of `train` for the positions that twins learn, and for held-out positions."""
    name = request.positions
    if not is_split_by_position(request, size):
        return {"datasets": (name,), "source_games": get_fit_dataset(request),
                "heldout": name, "heldout_source_games": f"{request.test}:validation"}  # fmt: skip
    games = {"source_games": request.fit, "heldout_source_games": request.test} if request.fit else {}
    return {"datasets": (f"{name}:fit",), "heldout": f"{name}:validation", **games}


def get_test_positions(request: Request, size: JunkinSize) -> dict[str, Any]:
    """Return the settings of `move-accuracy` for the positions of every model's test, which no model has learned."""
    name = request.positions
    if not is_split_by_position(request, size):
        return {"dataset": name, "source_games": f"{request.test}:test", "unseen_of": get_fit_dataset(request),
                "positions": size.positions}  # fmt: skip
    games = {"source_games": request.test} if request.test else {}
    return {"dataset": f"{name}:test", "unseen_of": f"{name}:fit", "positions": size.positions, **games}


def list_part_steps(request: Request, size: JunkinSize) -> tuple[str, ...]:
    """Return the name of the step that makes the parts for fitting and testing: of positions or of games."""
    return ("positions",) if is_split_by_position(request, size) else ("parts",)


# -- twins -----------------------------------------------------------------------------------------------------------


def plan_twins(request: Request, size: JunkinSize, shape: TwinShape, seed: int) -> Iterator[Step]:
    """Yield the twins of one shape and seed, and their tests on positions and puzzles."""
    parameters = 12 * shape.n_layer * shape.n_embd**2
    less = size.steps_at_games_compute or max(
        1, round(size.steps * GAME_TOKENS_PER_DECISION / TOKENS_PER_DECISION["causal"])
    )
    trainings = [(name, f"{name}-{shape.name}-{seed}", size.steps) for name in TWINS if name != "games" or request.fit]
    if seed == shape.seeds[0] and request.fit:  # the model FLOPs of its twin of games
        trainings.append(("causal", f"causal-{shape.name}-{seed}-at-games-compute", less))
    after = list_part_steps(request, size)
    for name, model, steps in trainings:
        settings: dict[str, Any] = {
            **TWINS[name], **size.training, **get_training_positions(request, size),
            "heldout_moves": size.heldout_moves,
            "heldout_steps": size.heldout_steps, "n_layer": shape.n_layer, "n_head": shape.n_head,
            "n_embd": shape.n_embd, "steps": steps, "batch_moves": size.batch_moves, "seed": seed,
        }  # fmt: skip
        is_counted = steps != size.steps and size.steps_at_games_compute is None
        twin = f"games-{shape.name}-{seed}"
        yield Step(
            model, "train", StepsAtEqualCompute(twin, settings) if is_counted else settings,
            "sections 3.1 and 4.2", (*after, twin) if is_counted else after, units=1,
            rows={"metric_point": 3 * steps // 20},
            bytes=4 * parameters, operations=6.0 * parameters * TOKENS_PER_DECISION[name] * steps * size.batch_moves,
        )  # fmt: skip
        yield plan_accuracy_test(
            request, size, model, f"@{model}/checkpoint", 2.0 * parameters * TOKENS_PER_DECISION[name]
        )
        if request.puzzles is not None and name != "games" and steps == size.steps:
            yield Step(
                f"puzzles-{model}", "puzzles",
                {"checkpoint": f"@{model}/checkpoint", "dataset": request.puzzles, "puzzles": size.puzzles},
                "puzzles", units=size.puzzles, rows={"prediction": size.puzzles},
                operations=2.0 * parameters * TOKENS_PER_DECISION[name] * 2 * size.puzzles,
            )  # fmt: skip


def plan_accuracy_test(request: Request, size: JunkinSize, model: str, checkpoint: str, operations: float) -> Step:
    """Return the test of a model on the shared positions. `operations` counts one position."""
    return Step(
        f"accuracy-{model}", "move-accuracy", {"checkpoint": checkpoint, **get_test_positions(request, size)},
        "sections 4.2 and 4.3", list_part_steps(request, size), units=size.positions // 15,
        rows={"prediction": size.positions},
        operations=operations * size.positions,
    )  # fmt: skip


@dataclass(frozen=True)
class StepsAtEqualCompute:
    """Settings whose number of steps passes the same number of tokens through the blocks as the training of `twin`."""

    twin: str
    settings: Values

    def __call__(self, steps: CompleteSteps) -> Values:
        tokens = steps.value(
            "SELECT (detail->>'$.source.tokens_read')::BIGINT AS value FROM checkpoint "
            f"WHERE run_id = UUID '{steps.run_id(self.twin)}'"
        )
        assert tokens is not None
        return {
            **self.settings,
            "steps": max(1, round(tokens / (TOKENS_PER_DECISION["causal"] * self.settings["batch_moves"]))),
        }


# -- language models -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromptedModel:
    """A language model of the paper: its name in steps, the tuned checkpoint, its tuning, and the number of block
    weights.

    0 weights: unknown. `initial` is its shape if its weights are drawn.
    """

    label: str
    checkpoint: str
    tuning: Values
    weights: int = 0
    initial: Values | None = None


def list_prompted_models(request: Request, size: JunkinSize) -> list[PromptedModel]:
    """Return the language models of the request, by default the size's models with initial weights."""
    if not request.language_models:
        return [
            PromptedModel(label, refer_to_checkpoint(f"language-model-{label}"), size.get_tuning(shape["family"]),
                   12 * shape["n_layer"] * shape["n_embd"] ** 2, shape)
            for label, shape in size.language_models.items()
        ]  # fmt: skip
    readers = []
    for model in request.language_models:
        rate = {} if model.learning_rate is None else {"learning_rate": model.learning_rate}
        readers.append(
            PromptedModel(model.name, model.name, {**size.get_tuning(model.architecture), **rate}, model.weights)
        )
    return readers


def plan_language_models(request: Request, size: JunkinSize) -> Iterator[Step]:
    """Yield the steps of each language model: its training if it has initial weights, its tuning, and its tests.

    Tunings on different templates use the same number of supervised moves. Models are tested with their templates, and
    before tuning with every published one.
    """
    data_settings = {"datasets": (f"{request.positions}:fit",), "heldout": f"{request.positions}:validation"}
    for reader in list_prompted_models(request, size):
        if reader.initial is not None:
            values = {**reader.tuning, **reader.initial, **data_settings, "loss": "all"}
            yield plan_tuning(f"language-model-{reader.label}", values, PRETRAINING_TEMPLATE, reader.weights)
        first_checkpoint, tuned_checkpoint = (
            reader.checkpoint,
            refer_to_checkpoint(name_tuning_step(reader, PRETRAINING_TEMPLATE)),
        )
        for template in size.templates:
            step_name = name_tuning_step(reader, template)
            yield plan_prompt_test(request, size, f"decoding-before-{reader.label}-{template}", first_checkpoint,
                         template, size.decoding_positions)  # fmt: skip
            yield plan_tuning(
                step_name, {**reader.tuning, **data_settings, "checkpoint": first_checkpoint}, template, reader.weights
            )
            yield plan_prompt_test(
                request,
                size,
                f"decoding-{step_name}",
                refer_to_checkpoint(step_name),
                template,
                size.decoding_positions,
            )
        cases = {("after", PRETRAINING_TEMPLATE), *(("before", template) for template in size.templates)}
        for template in size.prompts:
            for name, model in (("before", first_checkpoint), ("after", tuned_checkpoint)):
                if name == "after" and not size.has_prompts_after_tuning:
                    continue
                if size.prompt_positions != size.decoding_positions or (name, template) not in cases:
                    yield plan_prompt_test(request, size, f"prompts-{name}-{reader.label}-{template}", model, template,
                                 size.prompt_positions)  # fmt: skip
        if size.distance_positions:
            yield from plan_answer_samples(request, size, reader.label, tuned_checkpoint)
        if is_split_by_position(request, size):
            yield plan_accuracy_test(
                request, size, reader.label, tuned_checkpoint, 2.0 * reader.weights * PROMPT_TOKENS[True]
            )


def name_tuning_step(reader: PromptedModel, template: str) -> str:
    """Return the name of the step that tunes a language model on a template."""
    return f"tuned-{reader.label}-{template}"


def refer_to_checkpoint(step: str) -> str:
    """Return the reference of the checkpoint that a step writes."""
    return f"@{step}/checkpoint"


def plan_tuning(name: str, settings: dict[str, Any], template: str, weights: int) -> Step:
    """Return the tuning of a language model on one template. `weights` is the number of block weights (0: unknown)."""
    tokens = PROMPT_TOKENS["{LM}" in TEMPLATES[template]] * settings["steps"] * settings["batch_positions"]
    return Step(
        name, "finetune", {**settings, "template": template}, "section 4.3", ("positions",), units=1,
        rows={"metric_point": settings["steps"] // 10}, operations=6.0 * weights * tokens,
    )  # fmt: skip


def plan_prompt_test(request: Request, size: JunkinSize, name: str, model: str, template: str, positions: int) -> Step:
    """Return the test `name` of the language model `model` on `positions` unseen positions with one prompt template."""
    return Step(
        name, "decoding",
        {"checkpoint": model, "dataset": f"{request.positions}:test", "template": template, **size.prompt_settings,
         "positions": positions},
        "section 4.3, Appendix C", ("positions",), units=positions, rows={"prediction": 2 * positions},
    )  # fmt: skip


def plan_answer_samples(request: Request, size: JunkinSize, label: str, model: str) -> Iterator[Step]:
    """Yield samples of a tuned model's answers to learned and to unseen positions (a figure of the author's
    repository)."""
    for part in ("fit", "test"):
        yield Step(
            f"distance-{label}-{part}", "decoding",
            {"checkpoint": model, "dataset": f"{request.positions}:{part}", "template": PRETRAINING_TEMPLATE,
             **size.prompt_settings,
             "positions": size.distance_positions, "samples": SAMPLES_PER_POSITION},
            "edit distances (his repository)", ("positions",), units=size.distance_positions,
            rows={"prediction": 4 * size.distance_positions},
        )  # fmt: skip


# -- the ladder ------------------------------------------------------------------------------------------------------


def plan_junkin_ladder(request: Request, size: JunkinSize) -> Iterator[Step]:
    """Yield the matches of every model against every rung, without Stockfish's help, and the ratings by every
    estimator.

    The models are the twins of the largest shape and the tuned language models. The model of games also has a rating
    of its games with White.
    """
    shape = size.shapes[-1]
    blocks = 12 * shape.n_layer * shape.n_embd**2
    players = {
        name: (f"@{name}-{shape.name}-{shape.seeds[0]}/checkpoint", blocks * TOKENS_PER_DECISION[name])
        for name in size.twins_that_play if name != "games" or request.fit
    }  # fmt: skip
    if size.language_models_play:
        players |= {
            reader.label: (
                refer_to_checkpoint(name_tuning_step(reader, PRETRAINING_TEMPLATE)),
                reader.weights * PROMPT_TOKENS[True],
            )
            for reader in list_prompted_models(request, size)
        }
    for name, (checkpoint, work) in players.items():
        yield plan_ladder_match(size, name, checkpoint, work)
    yield from plan_ratings(size, [f"@ladder-{name}" for name in players], "ratings", "both")
    if "games" in players:
        yield from plan_ratings(size, ["@ladder-games"], "ratings-games-white", "white")


def plan_ladder_match(size: JunkinSize, name: str, checkpoint: str, work: int) -> Step:
    """Return one model's ladder. `work` is the product of weights and tokens of one move."""
    rungs = parse_ladder(size.rungs)
    search_s = (
        MOVES_PER_GAME * size.games * sum(estimate_search_seconds(rung.text) for rung in rungs if rung.needs_process)
    )
    preset = size.protocol.get("preset")
    return Step(
        f"ladder-{name}", "play",
        {**size.protocol, "checkpoint": checkpoint, "ladder": size.rungs, "games": size.games,
         "evaluate_draws": DRAW_EVALUATION_LIMIT},
        f"section 4 and Appendix I: {f'preset {preset}, ' if preset else ''}{size.games:,} games a level, both colors",
        units=size.games * len(rungs), rows={"game": size.games * len(rungs)},
        operations=2.0 * work * MOVES_PER_GAME * size.games * len(rungs), engine_seconds=search_s,
    )  # fmt: skip


def plan_ratings(size: JunkinSize, runs: Sequence[str], name: str, color: str) -> Iterator[Step]:
    """Yield the ratings of the ladders `runs` with one color, if a rung of the ladder has a known rating."""
    rated_count = sum(get_engine_rating(rung) is not None for rung in parse_ladder(size.rungs))
    if rated_count:
        units = len(SIDE_BY_SIDE) + len(DRAW_WEIGHTS) * rated_count
        yield Step(
            name, "rating",
            {"runs": tuple(runs), "estimator": "all", "anchors": "levels-truncated", "color": color},
            "section 4 and Appendix I", units=units, rows={"rating": len(runs) * units},
        )  # fmt: skip
