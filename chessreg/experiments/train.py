"""`train`: a model from scratch, resumable to the exact next batch."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from chessreg.encodings import encoding
from chessreg.encodings.fen77 import Fen77
from chessreg.errors import BadInputError
from chessreg.games.dataset import holds_positions, numbers
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Estimate, Kind
from chessreg.runs.spec import Added, AtMost, Beta, ExecutionOptions, Ref, Spec, Stored
from store.files import fsync_path, write_synced

if TYPE_CHECKING:
    from chessreg.games.dataset import Games
    from chessreg.models.training import Corpus, PositionCorpus, TrainConfig, TrainHow, TrainPoint
    from chessreg.runs.task import Task

MOST_PARAMETERS = 10**11
GPT2_ONLY = ("activation", "biases", "rows")
FEN_ONLY = ("attention", "embedding", "target")
DatasetRefs = Annotated[tuple[str, ...], Ref("dataset")]


class TrainSpec(Spec):
    datasets: DatasetRefs = Field(description="games to train on, datasets or parts (NAME:PART), comma-separated")
    heldout: Annotated[str | None, Ref("dataset")] = Field(None, description="games for the held-out loss")
    encoding: Annotated[str, Stored("tokenizer")] = Field("pgn-char-32", description="how chess is written")
    architecture: Annotated[Literal["gpt2", "fen-encoder"], Added()] = Field(
        "gpt2", description="gpt2: the next token, of games; fen-encoder: the move of a position (encoding fen-77)"
    )
    min_characters: int = Field(60, ge=2, description="leave out shorter game texts")
    n_layer: Annotated[int, AtMost(1000, "no model has more")] = Field(
        8, ge=1, description="layers (Karvonen Table 5: 8 and 16)"
    )
    n_head: int = Field(8, ge=1, description="attention heads (Table 5)")
    n_embd: Annotated[int, AtMost(100_000, "no model has more")] = Field(512, ge=8, description="d_model (Table 5)")
    block_size: Annotated[int, AtMost(1_000_000, "memory holds them")] = Field(
        1023, ge=8, description="context, in tokens (Table 5)"
    )
    activation: Annotated[Literal["gelu", "gelu_new"], Added()] = Field(
        "gelu", description="of a GPT-2's MLP: exact, or GPT-2's own (Davis)"
    )
    biases: Annotated[bool, Added()] = Field(False, description="a GPT-2 with biases (Davis)")
    dropout: Annotated[float, Added()] = Field(0.0, ge=0, lt=1, description="of embedding, attention and residual")
    attention: Annotated[Literal["causal", "bidirectional"], Added()] = Field(
        "causal", description="of a FEN encoder: what a character of the position sees"
    )
    embedding: Annotated[Literal["own", "tied"], Added()] = Field(
        "own", description="of a FEN encoder: rows of its own, or the author's one table for characters and actions"
    )
    target: Annotated[Literal["best", "played"], Added()] = Field(
        "best", description="of a FEN encoder: the move to predict"
    )
    rows: Literal["blocks", "games", "stream"] = Field(
        "blocks", description="blocks that begin with a game, one game a row, or a stream cut anywhere (Davis)"
    )
    steps: Annotated[int, AtMost(1_000_000_000, "the schedule is no longer")] = Field(
        600_000, ge=1, description="updates (Table 5)"
    )
    batch_tokens: Annotated[int, AtMost(1_000_000_000, "memory holds them")] = Field(
        102_300, ge=64, description="tokens in one update (Table 5: 100 rows)"
    )
    optimizer: Literal["adamw", "muon"] = Field("adamw", description="muon: for the blocks' matrices, AdamW elsewhere")
    learning_rate: float = Field(3e-4, gt=0, description="AdamW's (Table 5)")
    muon_learning_rate: float = Field(0.02, gt=0, description="Muon's")
    schedule: Literal["cosine", "trapezoid"] = Field("cosine", description="how the rates fall (Table 5: cosine)")
    warmup_steps: int = Field(2000, ge=0, description="steps until the full rate (Table 5)")
    decay_steps: int = Field(0, ge=0, description="trapezoid: steps of linear decay at the end")
    final_fraction: float = Field(0.1, ge=0, le=1, description="of the rate, at the end (Table 5: 3e-5 of 3e-4)")
    weight_decay: float = Field(0.1, ge=0, description="on matrices (Table 5)")
    beta1: Beta = Field(0.9, description="AdamW's (Table 5)")
    beta2: Beta = Field(0.95, description="AdamW's (Table 5)")
    grad_clip: float = Field(1.0, gt=0, description="largest gradient norm (Table 5)")
    heldout_steps: int = Field(500, ge=1, description="steps between held-out losses")
    seed: int = Field(1337, description="of initialisation and of the order of games (the author's)")


class TrainHowSettings(ExecutionOptions):
    micro_tokens: Annotated[int, AtMost(1_000_000_000, "memory holds them")] = Field(
        16_384, ge=64, description="most characters in one forward pass; a batch is several"
    )
    autocast: bool = Field(True, description="compute in bfloat16 where that is safe")
    compile: bool = Field(False, description="torch.compile the model")
    log_steps: int = Field(20, ge=1, description="steps between points of the loss curve")
    checkpoint_seconds: float = Field(300.0, gt=0, description="seconds between saved states")


class Train(Kind):
    """Train a model from scratch, of any size.

    A GPT-2 on games (Karvonen 2024, section 3 and Table 5; Davis 1.5, 2), or a FEN encoder, causal or bidirectional, on
    positions (Junkin 2.1).

    The whole training is one unit; its state is saved every few minutes in the run's folder, and an interrupted run
    goes on with the exact next batch. The checkpoint is the output `checkpoint`, in Hugging Face format.
    """

    name = "train"
    example = (
        "--datasets sample:fit --heldout sample:test --n-layer 2 --n-head 2 --n-embd 32 --block-size 255 "
        "--steps 20 --batch-tokens 2048 --warmup-steps 5"
    )
    tables = ("metric_point",)
    spec = TrainSpec
    how = TrainHowSettings
    clocked = ("tokens_per_second",)
    determinism = "statistical"  # exact on one machine with one thread count; kernels differ elsewhere

    def replays(self, spec: TrainSpec) -> bool:
        return True

    def units(self, spec: TrainSpec, inputs: Inputs) -> int:
        if spec.n_embd % spec.n_head:
            raise BadInputError(f"--n-embd {spec.n_embd} is no multiple of --n-head {spec.n_head}")
        if (parameters := parameters_of(spec)) > MOST_PARAMETERS:
            raise BadInputError(f"--n-layer and --n-embd make {parameters:.2g} parameters", "lower one of them")
        check_fit(spec)
        read = [(recipe, "datasets") for recipe in spec.datasets]
        for recipe, field in [*read, *([(spec.heldout, "heldout")] if spec.heldout else [])]:
            if spec.architecture == "gpt2":
                inputs.dataset(recipe, field)
            elif spec.target == "best" and not holds_positions(inputs.items(recipe, field)[0]):
                hint = "--target played, or a dataset of positions"
                raise BadInputError("a dataset of games knows no best moves", hint)
        return 1

    def estimate(self, spec: TrainSpec, inputs: Inputs) -> Estimate:
        parameters = parameters_of(spec)
        tokens = spec.steps * spec.batch_tokens
        remark = f"about {tokens:,} characters, {6 * parameters * tokens:.2g} floating-point operations"
        return Estimate({"metric_point": spec.steps // 20 * 3}, parameters * 4, (remark,))

    def run(self, task: Task[TrainSpec, TrainHowSettings]) -> None:
        from chessreg.models.training import Trainer

        spec = task.spec
        config, how = settings(task)
        made = corpus(spec, spec.datasets, task.inputs, "datasets", stream=spec.rows == "stream")
        trainer = Trainer(config, made, task.folder, how)
        heldout = corpus(spec, (spec.heldout,), task.inputs, "heldout") if spec.heldout else None
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


def parameters_of(spec: TrainSpec) -> int:
    """About how many weights the blocks have."""
    return 12 * spec.n_layer * spec.n_embd**2


def check_fit(spec: TrainSpec) -> None:
    """BadInputError where architecture, encoding and options do not go together."""
    if spec.architecture == "gpt2" and encoding(spec.encoding).content != "history":
        raise BadInputError(f"{spec.encoding} writes positions", "give --architecture fen-encoder")
    if spec.architecture == "fen-encoder" and spec.encoding != Fen77.name:
        raise BadInputError(f"a FEN encoder does not read {spec.encoding}", f"give --encoding {Fen77.name}")
    fields = FEN_ONLY if spec.architecture == "gpt2" else GPT2_ONLY
    for name in fields:
        if getattr(spec, name) != TrainSpec.model_fields[name].default:
            raise BadInputError(f"--{name} is no setting of a {spec.architecture}", "leave it out")


def settings(task: Task[TrainSpec, TrainHowSettings]) -> tuple[TrainConfig, TrainHow]:
    from chessreg.models.devices import prepare
    from chessreg.models.training import TrainConfig, TrainHow

    spec, how = task.spec, task.options
    shared = set(TrainConfig.__dataclass_fields__) & set(TrainSpec.model_fields)
    values = {name: getattr(spec, name) for name in shared}
    values["seed"] = spec.seed + spec.replicate
    if spec.architecture == "fen-encoder":
        values["block_size"] = Fen77.length
    config = TrainConfig(
        vocab_size=encoding(spec.encoding).size,
        explicit_attention=spec.encoding != "pgn-char-32",  # whose runs keep the kernel, and so the digits, they had
        **values,
    )
    device = prepare(how.device, how.threads)
    return config, TrainHow(device, how.micro_tokens, how.autocast, how.compile, how.log_steps, how.checkpoint_seconds)


def corpus(
    spec: TrainSpec, recipes: tuple[str, ...], inputs: Inputs, field: str = "datasets", stream: bool = False
) -> Corpus | PositionCorpus:
    """These datasets as token ids, in their order; short games and copies left out.

    field: the setting that names them.
    """
    from chessreg.models.training import Corpus

    if spec.architecture == "fen-encoder":
        return position_corpus(spec, recipes, inputs, field)
    tokens, lengths = [], []
    for recipe in recipes:
        games, places = chosen_games(spec, recipe, inputs, field)
        for start in range(0, len(places), 10_000):
            written = encoding(spec.encoding).games(games, places[start : start + 10_000])
            tokens.append(written.ids)
            lengths.append(np.diff(written.offsets))
    if not tokens:
        raise BadInputError(f"no game text has {spec.min_characters} characters")
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    made = Corpus(np.concatenate(tokens), offsets)
    return made.stream(spec.block_size) if stream else made


def chosen_games(spec: TrainSpec, recipe: str, inputs: Inputs, field: str) -> tuple[Games, np.ndarray]:
    """The games of a dataset and the rows of those that are trained on."""
    games, part = inputs.dataset(recipe, field)
    places = games.rows(part)
    places = places[~numbers(games.table(["duplicate"]).column("duplicate"))[places]]
    keep = [
        np.array([len(text) >= spec.min_characters for text in games.texts(places[start : start + 10_000])], bool)
        for start in range(0, len(places), 10_000)
    ]
    return games, places[np.concatenate(keep)] if keep else places


def position_corpus(spec: TrainSpec, recipes: tuple[str, ...], inputs: Inputs, field: str) -> PositionCorpus:
    """Every position of these datasets, with the action to predict: the best move, or the one that was played. Of
    datasets of positions a copy of an earlier position is left out."""
    from chessreg.models.training import PositionCorpus

    fen = Fen77()
    tokens, actions = [np.zeros((0, fen.length), np.uint8)], [np.zeros(0, np.int16)]
    seen = np.zeros(0, np.uint64)
    for recipe in recipes:
        items, part = inputs.items(recipe, field)
        if not holds_positions(items):
            games, places = chosen_games(spec, recipe, inputs, field)
            for start in range(0, len(places), 2_000):
                some = places[start : start + 2_000]
                written = fen.games(games, some)
                played = [np.frombuffer(packed, "<u2") for packed in games.moves(some)]
                followed = written.ply < np.array([len(codes) for codes in played])[written.source]
                tokens.append(written.ids.reshape(-1, fen.length)[followed])
                actions.append(fen.actions_of(np.concatenate(played)))
            continue
        places = items.rows(part)
        hashes = items.position_hashes[places]
        first = np.zeros(len(places), bool)
        first[np.unique(hashes, return_index=True)[1]] = True
        places = places[first & ~np.isin(hashes, seen)]
        seen = np.concatenate([seen, hashes])
        table = items.take(places, ["fen", spec.target]).to_pydict()
        asked = [(text, move) for text, move in zip(table["fen"], table[spec.target], strict=True) if move]
        tokens.append(fen.boards([text for text, _ in asked]).ids.reshape(-1, fen.length))
        actions.append(np.array([action(fen, move) for _, move in asked], np.int16))
    made = PositionCorpus(np.concatenate(tokens), np.concatenate(actions))
    if not len(made.actions):
        raise BadInputError(f"no position has a {spec.target} move", "chessreg dataset show NAME")
    return made


def action(fen: Fen77, uci: str) -> int:
    """The action of a move in UCI. BadInputError for one that is none."""
    if uci not in fen.action_ids:
        raise BadInputError(f"{uci} is none of the {fen.answer_size:,} actions of {fen.name}")
    return fen.action_ids[uci]


def curve_path(task: Task[TrainSpec, TrainHowSettings]) -> Any:
    return task.folder / "curve.jsonl"


def write_curve(task: Task[TrainSpec, TrainHowSettings], curve: list[TrainPoint]) -> None:
    """Append the newest point; the curve so far belongs to the state that resumes the run."""
    with curve_path(task).open("a") as file:
        first = not file.tell()
        file.write(json.dumps(asdict(curve[-1])) + "\n")
        file.flush()
        os.fsync(file.fileno())  # the state that is saved after it must not outlive it
    if first:
        fsync_path(task.folder)  # nor may a power cut take the file's name and leave the state's


def read_curve(task: Task[TrainSpec, TrainHowSettings]) -> list[TrainPoint]:
    """The points of earlier attempts up to the saved state; points after it will be measured again."""
    import torch

    from chessreg.models.training import TrainPoint

    path, state = curve_path(task), task.folder / "state.pt"
    if not (path.exists() and state.exists()):
        path.unlink(missing_ok=True)
        return []
    step = torch.load(state, map_location="cpu", weights_only=True)["place"][0]
    kept: dict[int, TrainPoint] = {}
    for line in path.read_text().splitlines():
        with suppress(ValueError):  # the last line of a crash may be cut short; it is past the state
            point = TrainPoint(**json.loads(line))
            if point.step <= step:
                kept[point.step] = point
    aside = path.with_suffix(".tmp")
    write_synced(aside, "".join(json.dumps(asdict(point)) + "\n" for point in kept.values()).encode())
    aside.replace(path)  # whole or as it was: points that are lost here would be measured by nobody
    return list(kept.values())


def emit_point(task: Task[TrainSpec, TrainHowSettings], point: TrainPoint) -> None:
    values = {
        "loss": point.loss,
        "heldout_loss": point.heldout_loss,
        "heldout_accuracy": point.heldout_accuracy,
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
    info = CheckpointInfo.of(model, spec.encoding, tokens_seen=trainer.tokens_seen, source=source)
    with task.output("checkpoint", 0, "checkpoint") as folder:
        save_checkpoint(model, folder, info)
        info = read_info(folder)
    task.record("tokenizer", of_unit=0, **tokenizer_row(spec.encoding))
    task.record(
        "checkpoint",
        of_unit=0,
        **checkpoint_row(info, task.last_output.digest, training_datasets=list(spec.datasets), run_id=task.run_id),
    )
