"""`train`: a PGN-character GPT from scratch, resumable to the exact next batch."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from chessreg.errors import BadInputError
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import How, Ref, Spec

if TYPE_CHECKING:
    from chessreg.models.training import Corpus, TrainConfig, TrainHow, TrainPoint
    from chessreg.runs.task import Task

DatasetRefs = Annotated[tuple[str, ...], Ref("dataset")]


class TrainSpec(Spec):
    datasets: DatasetRefs = Field(description="games to train on, datasets or parts (NAME:PART), comma-separated")
    heldout: Annotated[str | None, Ref("dataset")] = Field(None, description="games for the held-out loss")
    tokenizer: str = Field("pgn-char-32", description="how games are written")
    min_characters: int = Field(60, ge=2, description="leave out shorter game texts")
    n_layer: int = Field(8, ge=1, description="layers (Karvonen Table 5: 8 and 16)")
    n_head: int = Field(8, ge=1, description="attention heads (Table 5)")
    n_embd: int = Field(512, ge=8, description="d_model (Table 5)")
    block_size: int = Field(1023, ge=8, description="context, in characters (Table 5)")
    rows: Literal["blocks", "games"] = Field("blocks", description="blocks of 1,024 characters, or one game a row")
    steps: int = Field(600_000, ge=1, description="updates (Table 5)")
    batch_tokens: int = Field(102_300, ge=64, description="characters in one update (Table 5: 100 rows)")
    optimizer: Literal["adamw", "muon"] = Field("adamw", description="muon: for the blocks' matrices, AdamW elsewhere")
    learning_rate: float = Field(3e-4, gt=0, description="AdamW's (Table 5)")
    muon_learning_rate: float = Field(0.02, gt=0, description="Muon's")
    schedule: Literal["cosine", "trapezoid"] = Field("cosine", description="how the rates fall (Table 5: cosine)")
    warmup_steps: int = Field(2000, ge=0, description="steps until the full rate (Table 5)")
    decay_steps: int = Field(0, ge=0, description="trapezoid: steps of linear decay at the end")
    final_fraction: float = Field(0.1, ge=0, le=1, description="of the rate, at the end (Table 5: 3e-5 of 3e-4)")
    weight_decay: float = Field(0.1, ge=0, description="on matrices (Table 5)")
    beta1: float = Field(0.9, description="AdamW's (Table 5)")
    beta2: float = Field(0.95, description="AdamW's (Table 5)")
    grad_clip: float = Field(1.0, gt=0, description="largest gradient norm (Table 5)")
    heldout_steps: int = Field(500, ge=1, description="steps between held-out losses")
    seed: int = Field(1337, description="of initialisation and of the order of games (the author's)")


class TrainHowSettings(How):
    micro_tokens: int = Field(16_384, ge=64, description="most characters in one forward pass; a batch is several")
    autocast: bool = Field(True, description="compute in bfloat16 where that is safe")
    compile: bool = Field(False, description="torch.compile the model")
    log_steps: int = Field(20, ge=1, description="steps between points of the loss curve")
    checkpoint_seconds: float = Field(300.0, gt=0, description="seconds between saved states")


class Train(Kind):
    """Train a PGN-character GPT from scratch: Karvonen 2024, section 3 and Table 5, any size.

    The whole training is one unit; its state is saved every few minutes in the run's folder, and an interrupted run
    goes on with the exact next batch. The checkpoint is the output `checkpoint`, in Hugging Face format.
    """

    name = "train"
    example = (
        "--datasets sample:fit --heldout sample:test --n-layer 2 --n-head 2 --n-embd 32 --steps 30 "
        "--batch-tokens 2048 --warmup-steps 5"
    )
    families = ("metric_point",)
    spec = TrainSpec
    how = TrainHowSettings
    determinism = "statistical"  # exact on one machine with one thread count; kernels differ elsewhere

    def units(self, spec: TrainSpec, inputs: Inputs) -> int:
        if spec.n_embd % spec.n_head:
            raise BadInputError(f"--n-embd {spec.n_embd} is no multiple of --n-head {spec.n_head}")
        for recipe in (*spec.datasets, *([spec.heldout] if spec.heldout else [])):
            inputs.dataset(recipe)
        return 1

    def estimate(self, spec: TrainSpec, inputs: Inputs) -> Estimate:
        parameters = 12 * spec.n_layer * spec.n_embd**2
        tokens = spec.steps * spec.batch_tokens
        remark = f"about {tokens:,} characters, {6 * parameters * tokens:.2g} floating-point operations"
        return Estimate({"metric_point": spec.steps // 20 * 3}, parameters * 4, (remark,))

    def run(self, task: Task[TrainSpec, TrainHowSettings]) -> None:
        from chessreg.models.training import Trainer

        spec = task.spec
        config, how = settings(task)
        trainer = Trainer(config, corpus(spec, spec.datasets, task.inputs), task.folder, how)
        heldout = corpus(spec, (spec.heldout,), task.inputs) if spec.heldout else None
        curve: list[TrainPoint] = read_curve(task)

        def on_point(point: TrainPoint) -> None:
            curve.append(point)
            write_curve(task, curve)
            text = f"loss {point.loss:.4f}, {point.tokens_per_second:,.0f} characters/s"
            task.progress(point.step / spec.steps, text)

        trainer.run(on_point, heldout, spec.heldout_steps, lambda: task.stopping)
        task.progress(trainer.step / spec.steps, "")  # raises Stop when it was asked to end
        for point in curve:
            emit_point(task, point)
        publish(task, trainer)
        task.done(0)


def settings(task: Task[TrainSpec, TrainHowSettings]) -> tuple[TrainConfig, TrainHow]:
    from chessreg.encodings.tokenizers import tokenizer
    from chessreg.models.devices import prepare
    from chessreg.models.training import TrainConfig, TrainHow

    spec, how = task.spec, task.how
    shared = set(TrainConfig.__dataclass_fields__) & set(TrainSpec.model_fields)
    values = {name: getattr(spec, name) for name in shared}
    values["seed"] = spec.seed + spec.replicate
    config = TrainConfig(vocab_size=tokenizer(spec.tokenizer).size, **values)
    device = prepare(how.device, how.threads)
    return config, TrainHow(device, how.micro_tokens, how.autocast, how.compile, how.log_steps, how.checkpoint_seconds)


def corpus(spec: TrainSpec, recipes: tuple[str, ...], inputs: Inputs) -> Corpus:
    """The texts of these datasets as token ids, in their order; short ones and copies left out."""
    from chessreg.encodings.tokenizers import tokenizer
    from chessreg.models.training import Corpus

    encode = tokenizer(spec.tokenizer)
    tokens, lengths = [], []
    for recipe in recipes:
        games, part = inputs.dataset(recipe)
        places = games.rows(part)
        places = places[~games.table(["duplicate"]).column("duplicate").to_numpy(zero_copy_only=False)[places]]
        for start in range(0, len(places), 10_000):
            texts = [t for t in games.texts(places[start : start + 10_000]) if len(t) >= spec.min_characters]
            if texts:
                ids, offsets = encode.encode_many(texts)
                tokens.append(ids)
                lengths.append(np.diff(offsets))
    if not tokens:
        raise BadInputError(f"no game text has {spec.min_characters} characters")
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    return Corpus(np.concatenate(tokens), offsets)


def curve_path(task: Task[TrainSpec, TrainHowSettings]) -> Any:
    return task.folder / "curve.jsonl"


def write_curve(task: Task[TrainSpec, TrainHowSettings], curve: list[TrainPoint]) -> None:
    """Append the newest point; the curve so far belongs to the state that resumes the run."""
    with curve_path(task).open("a") as file:
        file.write(json.dumps(asdict(curve[-1])) + "\n")


def read_curve(task: Task[TrainSpec, TrainHowSettings]) -> list[TrainPoint]:
    """The points of earlier attempts up to the saved state; points after it will be measured again."""
    import torch

    from chessreg.models.training import TrainPoint

    path, state = curve_path(task), task.folder / "state.pt"
    if not (path.exists() and state.exists()):
        path.unlink(missing_ok=True)
        return []
    step = torch.load(state, map_location="cpu", weights_only=True)["place"][0]
    points = [TrainPoint(**json.loads(line)) for line in path.read_text().splitlines()]
    kept = {point.step: point for point in points if point.step <= step}
    path.write_text("".join(json.dumps(asdict(point)) + "\n" for point in kept.values()))
    return list(kept.values())


def emit_point(task: Task[TrainSpec, TrainHowSettings], point: TrainPoint) -> None:
    values = {
        "loss": point.loss,
        "heldout_loss": point.heldout_loss,
        "tokens_seen": float(point.tokens_seen),
        "tokens_per_second": point.tokens_per_second,
    }
    for name, value in values.items():
        if value is not None:
            task.emit("metric_point", 0, name=name, step=point.step, value=float(value))


def publish(task: Task[TrainSpec, TrainHowSettings], trainer: Any) -> None:
    """The trained model as the output `checkpoint`, with its row."""
    from chessreg.entities.checkpoint import checkpoint_row, tokenizer_row
    from chessreg.models.checkpoint import CheckpointInfo, read_info, save_checkpoint

    spec = task.spec
    model = trainer.trained()
    source = {"format": "chessreg-train", "spec_hash": task.resolved.spec_hash, "finished": time.strftime("%Y-%m-%d")}
    info = CheckpointInfo.of(model, spec.tokenizer, tokens_seen=trainer.tokens_seen, source=source)
    with task.output("checkpoint", 0, "checkpoint") as folder:
        save_checkpoint(model, folder, info)
        info = read_info(folder)
    task.record("tokenizer", **tokenizer_row(spec.tokenizer))
    task.record(
        "checkpoint",
        **checkpoint_row(info, task.last_output.digest, training_datasets=list(spec.datasets), run_id=task.run_id),
    )
