"""How fast the device trains, fits sparse autoencoders, caches, decodes and scores legal moves.

Everything goes through the code that chessreg's runs use. Models have random weights and read the bundled games,
repeated: speed depends on neither.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from context import Context, Precision, count_flops_per_token, pad_rows
from torch import Tensor

from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.decoding.legal import score_answers
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.devices import set_tf32_products
from chessreg.models.gated_sae import Adam, GatedSae, train_step
from chessreg.models.gated_sae import Precision as SaePrecision
from chessreg.models.hook_points import format_hook_point
from chessreg.models.language_model import (
    ActivationPass,
    LanguageModel,
    collect_activations,
    compute_stored_activations,
)
from chessreg.models.train_config import TextTraining
from chessreg.models.training import Trainer, TrainerOptions

Measurement = tuple[str, Callable[[], Mapping[str, Any]]]
Shape = tuple[int, int, int]
DOT = 4  # the character before White's moves, at which `run cache` reads activations by default
SAE_PRECISIONS: dict[Precision, SaePrecision] = {"TF32": "tf32", "bfloat16": "bfloat16", "float32": "float32"}
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def plan_steps(context: Context) -> dict[str, Iterator[Measurement]]:
    """The steps by name."""
    sizes = context.sizes
    return {
        "matrix products": plan_products(context),
        "training speed, 12 x 768": plan_training(context, sizes.large),
        "sparse autoencoder": plan_saes(context),
        "caching": plan_caching(context),
        "decoding": plan_decoding(context),
        "legal moves": plan_legal_moves(context),
        "training speed, 8 x 512": plan_training(context, sizes.small),
    }


def plan_products(context: Context) -> Iterator[Measurement]:
    """The best rate of the device, next to the peak to which the shares below refer."""
    for precision in ("bfloat16", "TF32", "float32"):
        yield precision, partial(measure_product, context, precision)


def measure_product(context: Context, precision: Precision) -> dict[str, Any]:
    return {"measured_tflops": context.measure_tflops(precision), "peak_tflops": context.peak_tflops(precision)}


# -- training ----------------------------------------------------------------------------------------------------------


def make_training_config(context: Context, shape: Shape, **settings: Any) -> TextTraining:
    """A model of PGN characters as Karvonen 2024 trains it: blocks of 1,023 characters, 100 of them in an update."""
    sizes = context.sizes
    layers, heads, width = shape
    return TextTraining(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        block_size=sizes.block_size,
        batch_tokens=sizes.batch_rows * sizes.block_size,
        **settings,
    )


def plan_training(context: Context, shape: Shape) -> Iterator[Measurement]:
    """Micro-batches of growing size without torch.compile, then the fastest with it."""
    for rows in context.sizes.micro_rows:
        yield f"eager, {rows} rows at once", partial(measure_training, context, shape, rows, compiled=False)
    if context.sizes.compile:
        rows, _ = context.fastest_training(shape)
        yield f"torch.compile, {rows} rows at once", partial(measure_training, context, shape, rows, compiled=True)


def measure_training(context: Context, shape: Shape, rows: int, compiled: bool) -> dict[str, Any]:
    """Whole updates of the trainer in bf16 autocast: batch, forward, backward, clipping, AdamW."""
    sizes = context.sizes
    config = make_training_config(context, shape)
    options = TrainerOptions(str(context.device), rows * sizes.block_size, compile=compiled)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, context.corpus(100 * config.batch_tokens), Path(folder), options)
        forward: Any = trainer.model
        if compiled:
            torch.compiler.reset()  # an earlier model's shapes would make these dynamic, and slower
            forward = torch.compile(trainer.model)
        began = time.perf_counter()
        trainer.train_step(forward)
        context.synchronize()
        first = time.perf_counter() - began
        seconds = context.time_call(lambda: trainer.train_step(forward))
    tokens_per_s = trainer.tokens_seen / trainer.step / seconds
    flops = count_flops_per_token(config, context.games.size)
    context.training_speeds.setdefault(shape, {})[rows, compiled] = tokens_per_s
    return {
        "tokens_per_s": tokens_per_s,
        "ms_per_update": 1000 * seconds,
        "mfu": flops * tokens_per_s / (1e12 * context.peak_tflops("bfloat16")),
        "first_update_s": first,
        "memory_gb": context.memory_gb(),
    }


# -- sparse autoencoders -----------------------------------------------------------------------------------------------


def plan_saes(context: Context) -> Iterator[Measurement]:
    """Each precision of `run sae`: a step with the rows that the device has room for, or fewer at once; then one pass
    of a model over its tokens and autoencoders after every block."""
    for precision in SAE_PRECISIONS:
        for rows in (None, *context.sizes.sae_rows):
            label = f"{precision}, {'all' if rows is None else rows} rows at once"
            yield label, partial(measure_sae, context, precision, rows)
    for precision in SAE_PRECISIONS:
        yield f"{precision}, model and all blocks in one pass", partial(measure_sae_pass, context, precision)


class Autoencoder:
    """An autoencoder on the device, with its training step."""

    def __init__(self, context: Context, width: int, features: int) -> None:
        self.sae = GatedSae.make_initial(width, features, seed=0, device=str(context.device))
        self.adam = Adam(self.sae.parameters(), 0.9, 0.999)
        self.gradient = {name: torch.empty_like(value) for name, value in self.sae.parameters().items()}

    def step(self, x: Tensor, precision: SaePrecision, rows: int | None = None) -> None:
        train_step(self.sae, self.adam, self.gradient, x, 1.0, 3e-4, rows, precision)


def measure_sae(context: Context, precision: Precision, rows: int | None) -> dict[str, Any]:
    """Whole training steps: loss, gradient, Adam, unit columns. 14·d·F operations per token (seven products)."""
    width, features = context.sizes.sae
    trained = Autoencoder(context, width, features)
    x = torch.randn(context.sizes.sae_batch, width, device=context.device)
    tokens_per_s = len(x) / context.time_call(lambda: trained.step(x, SAE_PRECISIONS[precision], rows))
    tflops = 14 * width * features * tokens_per_s / 1e12
    return {
        "tokens_per_s": tokens_per_s,
        "tflops": tflops,
        "share_of_peak": tflops / context.peak_tflops(precision),
        "memory_gb": context.memory_gb(),
    }


def measure_sae_pass(context: Context, precision: Precision) -> dict[str, Any]:
    """Tokens of one chunk of `run sae` without a cache: the model runs over them once, in TF32 unless the precision is
    float32. Their residuals stay on the device, where autoencoders after all its blocks are trained on them."""
    sizes = context.sizes
    layers, heads, width = sizes.large
    config = GPT2Config(layers, heads, width, sizes.block_size, context.games.size)
    model = LanguageModel(make_random_gpt2(config, seed=0).to(context.device))
    points = [format_hook_point(layer) for layer in range(layers)]
    saes = {point: Autoencoder(context, width, sizes.sae[1]) for point in points}
    passes, total = make_passes(context, sizes.sae_pass_tokens)

    def collect() -> dict[str, Tensor]:
        with set_tf32_products(precision != "float32"):
            return collect_activations(model, points, total, passes)

    def train() -> None:
        rows = collect()
        for low in range(0, total, sizes.sae_batch):
            for point, trained in saes.items():
                trained.step(rows[point][low : low + sizes.sae_batch], SAE_PRECISIONS[precision])

    seconds = context.time_call(train)
    return {
        "tokens_per_s": total / seconds,
        "sae_tokens_per_s": total * len(points) / seconds,
        "share_of_time_in_model": context.time_call(collect) / seconds,
        "memory_gb": context.memory_gb(),
    }


def make_passes(context: Context, least: int, rows_at_once: int = 32) -> tuple[list[ActivationPass], int]:
    """Forward passes over the bundled games, every token in a random place of at least `least` rows; and the rows."""
    corpus = context.corpus(least)
    limit = context.sizes.block_size
    games = [corpus.row([game], limit) for game in range(len(corpus.lengths))]
    ends = np.cumsum([len(game) for game in games])
    games = games[: int(np.searchsorted(ends, least)) + 1]
    total = int(sum(map(len, games)))
    places = torch.from_numpy(np.random.default_rng(0).permutation(total))
    passes, done = [], 0
    for low in range(0, len(games), rows_at_once):
        part = games[low : low + rows_at_once]
        row = torch.cat([torch.full((len(game),), number) for number, game in enumerate(part)])
        token = torch.cat([torch.arange(len(game)) for game in part])
        passes.append((pad_rows(part), row, token, places[done : done + len(row)]))
        done += len(row)
    return passes, total


# -- caching -----------------------------------------------------------------------------------------------------------


def make_small_model(context: Context, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """An untrained model of PGN characters."""
    layers, heads, width = context.sizes.small
    config = GPT2Config(layers, heads, width, context.sizes.block_size, context.games.size)
    return LanguageModel(make_random_gpt2(config, seed=0).to(context.device, dtype))


def plan_caching(context: Context) -> Iterator[Measurement]:
    """`run cache` computes in float32; TF32 shows the cost of that."""
    for precision in ("float32", "TF32"):
        for games in context.sizes.cached_games:
            yield f"{precision}, {games} games at once", partial(measure_caching, context, precision, games)


def measure_caching(context: Context, precision: Precision, games: int) -> dict[str, Any]:
    """Residuals after every block at the dots of games, as float16 in memory here, against forward passes alone.

    Writing to disk is not part of it.
    """
    model = make_small_model(context)
    corpus = context.corpus(1)
    count = len(corpus.lengths)
    limit = context.sizes.block_size
    tokens = pad_rows([corpus.row([game % count], limit) for game in range(games)])
    row, token = (tokens == DOT).nonzero(as_tuple=True)
    points = [format_hook_point(layer) for layer in range(model.n_layers)]
    with set_tf32_products(precision == "TF32"), torch.inference_mode():
        forward_seconds = context.time_call(lambda: model.network.hidden(tokens.to(context.device)))
        cache_seconds = context.time_call(
            lambda: compute_stored_activations(model, tokens, points, row, token, "float16")
        )
    return {
        "rows_per_s": len(row) / cache_seconds,
        "tokens_per_s": tokens.numel() / cache_seconds,
        "forward_rows_per_s": len(row) / forward_seconds,
        "share_of_forward": forward_seconds / cache_seconds,
        "memory_gb": context.memory_gb(),
    }


# -- decoding and legal moves ------------------------------------------------------------------------------------------


def plan_decoding(context: Context) -> Iterator[Measurement]:
    for dtype in DTYPES:
        for rows in context.sizes.decoded_rows:
            yield f"{dtype}, {rows} games at once", partial(measure_decoding, context, dtype, rows)


def measure_decoding(context: Context, dtype: str, rows: int) -> dict[str, Any]:
    """Greedy tokens of a session whose rows hold 200 to 400 tokens (or a quarter of the context) at the beginning."""
    model = make_small_model(context, DTYPES[dtype])
    random = np.random.default_rng(0)
    longest = min(400, model.block_size // 4)
    prefixes = [random.integers(0, 32, int(n)).tolist() for n in random.integers(longest // 2, longest, rows)]
    session = DecodingSession(model, rows)
    began = time.perf_counter()
    logprobs = session.feed(prefixes)
    context.synchronize()
    prompt_seconds = time.perf_counter() - began
    steps, began = 0, time.perf_counter()
    while steps < 8 or (time.perf_counter() - began < context.sizes.seconds and steps < model.block_size // 2):
        logprobs = session.feed([[token] for token in logprobs.argmax(-1).tolist()])  # waits for the device
        steps += 1
    seconds = time.perf_counter() - began
    return {
        "tokens_per_s": rows * steps / seconds,
        "ms_per_token": 1000 * seconds / steps,
        "prompt_tokens_per_s": sum(map(len, prefixes)) / prompt_seconds,
        "memory_gb": context.memory_gb(),
    }


def plan_legal_moves(context: Context) -> Iterator[Measurement]:
    for rows in context.sizes.scored_rows:
        yield f"float32, {rows} positions at once", partial(measure_legal_moves, context, rows)


def measure_legal_moves(context: Context, rows: int) -> dict[str, Any]:
    """The exact probability of every legal move at held-out positions whose prompts the session holds."""
    model = make_small_model(context)
    bundled_positions = context.games.positions(model.block_size)
    positions = [bundled_positions[number % len(bundled_positions)] for number in range(rows)]
    session = DecodingSession(model, rows)
    session.feed([position.prompt for position in positions])
    answers = [position.answers for position in positions]
    seconds = context.time_call(lambda: score_answers(session, answers))
    return {
        "positions_per_s": rows / seconds,
        "moves_per_s": sum(map(len, answers)) / seconds,
        "memory_gb": context.memory_gb(),
    }
