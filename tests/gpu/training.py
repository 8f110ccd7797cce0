"""Train a PGN-character model on a token file with the time that is left, write float16 shards and evaluate them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from context import Context, count_flops_per_token, pad_rows, repeat_games
from report import LeftOut
from speed import make_training_config
from torch import Tensor

from chessreg.models.adapters.gpt2 import GPT2, GPT2Config
from chessreg.models.decoding.legal import score_answers
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.language_model import LanguageModel
from chessreg.models.token_file import HeldoutPosition, TokenFile
from chessreg.models.training import Trainer, TrainerOptions, TrainPoint, measure_loss

Measurement = tuple[str, Callable[[], Mapping[str, Any]]]
RESERVE = 0.15  # of the time for this step, kept for writing and evaluating the model
DECAY = 0.4  # of the updates, over which the learning rates fall
SAVE_S = 60.0  # between versions of the shards, in case the machine is taken away
EVALUATED_ROWS = 256  # positions evaluated at once
INDEX = "model.safetensors.index.json"


class Fit:
    """The training step: measurements that build on each other, and the results that can be saved after a signal."""

    def __init__(
        self,
        context: Context,
        games: TokenFile | None,
        folder: Path,
        stopping: Callable[[], bool],
        dropout: float = 0.0,
    ) -> None:
        """`folder` gets the model. Without `games` nothing is trained. `stopping` ends it after the update in hand."""
        self.context, self.games, self.folder, self.stopping = context, games, folder, stopping
        self.dropout = dropout
        self.running = False
        self.trainer: Trainer | None = None
        self.written_step = 0

    def plan_measurements(self, deadline: float) -> Iterator[Measurement]:
        """Train until a part of the time to `deadline` (of time.monotonic) is left, then write and evaluate."""
        end = deadline - RESERVE * max(deadline - time.monotonic(), 0)
        compiled = self.context.fastest_training(self.context.sizes.small)[1]
        yield "training", lambda: self.train(end, compiled)
        if compiled and not self.trained:
            yield "training without torch.compile", lambda: self.train(end, compiled=False)
        if self.trained:
            yield "float16 shards", self.write
            yield "held-out loss", self.evaluate_loss
            yield "first-try legal moves", lambda: self.evaluate_legality(deadline - 0.3 * (deadline - end))
            yield "the shards in transformers", self.compare_with_transformers
            yield "the shards through `chessreg import checkpoint`", self.compare_with_import

    @property
    def trained(self) -> bool:
        """Whether there was an update."""
        return self.trainer is not None and self.trainer.step > 0

    @property
    def updating(self) -> bool:
        """Whether it trains, and the first update, which may compile for a minute, is over."""
        return self.running and self.trained

    def plan_rescue(self) -> Iterator[Measurement]:
        """After a signal: write the model as it is, unless that is done."""
        if self.trainer is not None and self.trainer.step > self.written_step:
            yield "float16 shards", self.write

    # -- training ------------------------------------------------------------------------------------------------------

    def train(self, end: float, compiled: bool) -> dict[str, Any]:
        """Train 8 x 512 with Muon and AdamW and the rates of the bundled reference model."""
        if self.games is None:
            raise LeftOut("no --games FILE was given; chessreg dataset export DATASET FILE --token-file")
        context, sizes = self.context, self.context.sizes
        config = make_training_config(
            context, sizes.small, optimizer="muon" if hasattr(torch.optim, "Muon") else "adamw", learning_rate=0.002,
            muon_learning_rate=0.02, weight_decay=0.01, schedule="trapezoid", warmup_steps=sizes.warmup_steps,
            steps=sizes.training_steps, decay_steps=1, final_fraction=0.02, dropout=self.dropout,
        )  # fmt: skip
        corpus = repeat_games(self.games.tokens, self.games.lengths, 1, self.games.size)
        options = TrainerOptions(
            str(context.device), context.fastest_training(sizes.small)[0] * sizes.block_size, compile=compiled,
            log_steps=sizes.log_steps, checkpoint_seconds=float("inf"),
        )  # fmt: skip
        curve: list[dict[str, float]] = []
        plan = Plan(end, sizes.training_steps)
        last_save = time.monotonic()

        def on_point(point: TrainPoint) -> None:
            nonlocal last_save
            plan.follow(trainer)
            curve.append({"step": point.step, "loss": point.loss, "tokens_per_s": point.tokens_per_second})
            if time.monotonic() - last_save > SAVE_S:
                self.write()
                last_save = time.monotonic()

        if compiled:
            torch.compiler.reset()
        with tempfile.TemporaryDirectory() as folder:
            self.trainer = trainer = EvenTrainer(config, corpus, Path(folder), options)
            began, self.running = time.monotonic(), True
            try:
                trainer.run(on_point, should_stop=lambda: self.stopping() or time.monotonic() >= end)
            finally:
                self.running = False
        if not trainer.step:
            raise LeftOut("no time left")
        flops = count_flops_per_token(config, self.games.size)
        speeds = [point["tokens_per_s"] for point in curve[1:]]  # the first point includes compilation
        tokens_per_s = float(np.median(speeds)) if speeds else trainer.tokens_seen / (time.monotonic() - began)
        return {
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "updates": trainer.step,
            "tokens": trainer.tokens_seen,
            "epochs": trainer.tokens_seen / len(corpus.tokens),
            "loss": curve[-1]["loss"] if curve else None,
            "tokens_per_s": tokens_per_s,
            "mfu": flops * tokens_per_s / (1e12 * context.peak_tflops("bfloat16")),
            "last_learning_rate_factor": trainer.config.rate(trainer.step - 1),
            "optimizer": config.optimizer,
            "dropout": config.dropout,
            "compiled": compiled,
            "curve": curve,
        }

    def write(self) -> dict[str, Any]:
        """Write the model as it is now as a Hugging Face folder."""
        assert self.trainer is not None
        step = self.trainer.step
        config, weights = self.trainer.copy_trained().files("float16")
        shards = write_shards(self.folder, config, weights, self.context.sizes.shard_bytes)
        self.written_step = step
        return {"updates": step, "shards": shards, "bytes": sum(t.nbytes for t in weights.values())}

    # -- evaluation of the written model ------------------------------------------------------------------------------

    def evaluate_loss(self) -> dict[str, Any]:
        """Nats per token on held-out games, each in its own row, in float32."""
        assert self.games is not None
        corpus = repeat_games(self.games.heldout_tokens, self.games.heldout_lengths, 1, self.games.size)
        model = read_shards(self.folder).to(self.context.device)
        games = min(self.context.sizes.evaluated_games, len(corpus.lengths))
        loss, _ = measure_loss(model, corpus, TrainerOptions(str(self.context.device), autocast=False), games)
        return {"nats_per_token": loss, "games": games}

    def evaluate_legality(self, end: float) -> dict[str, Any]:
        """Share of held-out positions at which the most probable text is a legal move, and the mean probability of a
        canonical legal move, in float32, over the positions that fit the time until `end`."""
        assert self.games is not None
        model = LanguageModel(read_shards(self.folder).to(self.context.device))
        positions = self.games.positions(model.block_size)
        legal, masses, longest = 0, list[float](), 0.0
        for start in range(0, len(positions), EVALUATED_ROWS):
            began = time.monotonic()
            if masses and began + longest > end:
                break
            some = positions[start : start + EVALUATED_ROWS]
            session = DecodingSession(model, len(some))
            session.feed([position.prompt for position in some])
            scores = score_answers(session, [position.answers for position in some])
            masses += [float(np.exp(score).sum()) for score in scores]
            texts = write_greedily(session, self.games)
            legal += sum(map(self.games.is_legal, some, texts))
            longest = max(longest, time.monotonic() - began)
        if not masses:
            raise LeftOut("the token file holds no position")
        return {
            "positions": len(masses),
            "legal": legal,
            "legal_share": legal / len(masses),
            "legal_move_mass": float(np.mean(masses)),
        }

    def compare_with_transformers(self) -> dict[str, Any]:
        """Logits of the library's own model of the folder, against ours."""
        import transformers

        theirs = transformers.GPT2LMHeadModel.from_pretrained(self.folder, dtype=torch.float32).eval()
        return self._compare(lambda tokens: theirs(tokens).logits)

    def compare_with_import(self) -> dict[str, Any]:
        """Logits of the model that `chessreg import checkpoint` makes of the folder, against ours."""
        from chessreg.models.importers import convert_checkpoint

        assert self.games is not None
        with tempfile.TemporaryDirectory() as folder:
            convert_checkpoint(self.folder, Path(folder), encoding=self.games.encoding)
            model = LanguageModel.load(folder)
        return self._compare(model.logits)

    @torch.inference_mode()
    def _compare(self, logits: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        tokens = pad_rows([self._longest_position().prompt])
        own = read_shards(self.folder)
        return {"largest_logit_difference": float((logits(tokens) - own(tokens)).abs().max()), "tokens": tokens.numel()}

    def _longest_position(self) -> HeldoutPosition:
        assert self.games is not None
        assert self.trainer is not None
        positions = self.games.positions(self.trainer.config.block_size)
        if not positions:
            raise LeftOut("the token file holds no position")
        return max(positions, key=lambda position: len(position.prompt))


class EvenTrainer(Trainer):
    """A trainer that skips the last, smaller batch of an epoch: another shape would be compiled again."""

    def epoch_batches(self) -> list[list[list[int]]]:
        batches = super().epoch_batches()
        return [batch for batch in batches if len(batch) == len(batches[0])]


class Plan:
    """Sets the number of updates by the measured speed, until the learning rates begin to fall."""

    def __init__(self, end: float, most: int) -> None:
        """`end` of the training, of time.monotonic; `most` updates."""
        self.end, self.most = end, most
        self.first: tuple[int, float] | None = None  # the update and time of the first call: compilation is over

    def follow(self, trainer: Trainer) -> None:
        """Set `steps` and `decay_steps` of the trainer's config. Until the decay begins the rates do not depend on
        them."""
        now, step, config = time.monotonic(), trainer.step, trainer.config
        if self.first is None:
            self.first = step, now
        elif step < config.steps - config.decay_steps:
            seconds = (now - self.first[1]) / (step - self.first[0])
            steps = min(step + max(1, int((self.end - now) / seconds)), self.most)
            trainer.config = replace(config, steps=steps, decay_steps=max(1, int(DECAY * steps)))


def write_greedily(session: DecodingSession, games: TokenFile) -> list[list[int]]:
    """The most probable next token of each row, one after the other, until a move is complete."""
    texts: list[list[int]] = [[] for _ in range(len(session))]
    for length in range(1, games.max_move_tokens + 1):
        new = [
            [] if text and text[-1] in games.stop_ids else [token]
            for text, token in zip(texts, session.logprobs.argmax(-1).tolist(), strict=True)
        ]
        for text, token in zip(texts, new, strict=True):
            text += token
        if not any(new) or length == games.max_move_tokens:
            break
        session.feed(new)
    return texts


# -- shards ------------------------------------------------------------------------------------------------------------


def write_shards(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], limit: int) -> int:
    """Write a Hugging Face folder whose weights are in files of at most `limit` bytes; returns how many files.

    A new folder is written and replaces the old one: whenever the process dies, a whole model exists.
    """
    from safetensors.torch import save_file

    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in weights.items():
        if (
            shards[-1] and sum(t.nbytes + 256 for t in shards[-1].values()) + tensor.nbytes + 1024 > limit
        ):  # with header
            shards.append({})
        shards[-1][name] = tensor
    aside, old = folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")
    for leftover in (aside, old):
        shutil.rmtree(leftover, ignore_errors=True)
    aside.mkdir()
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for file, shard in zip(names, shards, strict=True):
        save_file(shard, aside / file, metadata={"format": "pt"})
    places = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
    index = {"metadata": {"total_size": sum(t.nbytes for t in weights.values())}, "weight_map": places}
    for file, content in (("config.json", config), (INDEX, index)):
        (aside / file).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if folder.exists():
        os.rename(folder, old)
    os.rename(aside, folder)
    shutil.rmtree(old, ignore_errors=True)
    return len(shards)


def read_shards(folder: Path) -> GPT2:
    """The model in such a folder, float32, in eval mode."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    places = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
    weights = {
        name: tensor.float() for file in set(places.values()) for name, tensor in load_file(folder / file).items()
    }
    shape = {name: config[name] for name in ("n_layer", "n_head", "n_embd", "vocab_size", "layer_norm_epsilon")}
    gpt2_config = GPT2Config(**shape, block_size=config["n_positions"], activation=config["activation_function"])
    return GPT2.from_weights(gpt2_config, weights)
