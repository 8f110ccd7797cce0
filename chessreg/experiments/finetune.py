"""`finetune`: a language model trained to answer prompts with the best move, resumable at the exact next batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from chessreg.encodings.prompts import PromptEncoding, make_tokenizer
from chessreg.errors import BadInputError
from chessreg.experiments.settings.corpora import TrainingData
from chessreg.experiments.settings.parallel import ModelTrainingOptions
from chessreg.experiments.settings.prompts import (
    PromptSpec,
    check_prompt_room,
    check_prompted_model,
    draw_sample,
)
from chessreg.experiments.train import emit_train_point
from chessreg.noise import Stream
from chessreg.runs.cost import PROMPT_TOKENS, count_forward_pass_operations, count_reading_operations
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import AtMost, Beta, Ref, Share

if TYPE_CHECKING:
    from chessreg.models.finetuning import Finetuner, PromptCorpus
    from chessreg.models.training import TrainPoint
    from chessreg.registry import tables
    from chessreg.runs.task import Task

FAMILIES = ("llama", "gpt_neox")
SHAPE_SETTINGS = ("n_layer", "n_head", "n_embd", "block_size", "tokenizer")
LORA_SETTINGS = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets")
DatasetRefs = Annotated[tuple[str, ...], Ref("dataset")]


class FinetuneSpec(PromptSpec):
    checkpoint: Annotated[str | None, Ref("checkpoint")] = Field(
        None, description="language model to tune, which reads prompts. Left out: --family, with initial weights"
    )
    family: Literal["llama", "gpt_neox"] | None = Field(
        None, description="family of a new language model with initial weights. Left out: --checkpoint"
    )
    n_layer: Annotated[int, AtMost(1000, "every model has fewer")] = Field(4, ge=1, description="layers, with --family")
    n_head: int = Field(4, ge=1, description="attention heads, with --family")
    n_embd: Annotated[int, AtMost(100_000, "every model has fewer")] = Field(
        128, ge=8, description="d_model, with --family"
    )
    block_size: Annotated[int, AtMost(1_000_000, "a longer context does not fit in memory")] = Field(
        640, ge=8, description="context, in tokens, with --family"
    )
    tokenizer: Literal["bpe", "characters"] = Field(
        "bpe", description="tokenizer, with --family: merged words of the published templates, or one token per byte"
    )
    datasets: DatasetRefs = Field(description="positions with best moves, datasets or parts (NAME:PART)")
    heldout: Annotated[str | None, Ref("dataset")] = Field(
        None, description="positions for the held-out loss. Left out: no held-out loss"
    )
    heldout_positions: int = Field(1000, ge=1, description="at most this many held-out positions, drawn by the seed")
    heldout_steps: int = Field(500, ge=1, description="steps between held-out losses")
    loss: Literal["answer", "all"] = Field(
        "answer",
        description="tokens with a loss: the answer and its end token (paper 3.4), or every token of prompt "
        "and answer, as in pretraining",
    )
    tune: Literal["whole", "lora", "qlora"] = Field(
        "whole",
        description="trained weights: all, LoRA's (chessreg[llm]), or LoRA's over 4-bit matrices (NF4; bitsandbytes)",
    )
    lora_rank: int = Field(16, ge=1, le=4096, description="rank of LoRA's matrices (author's trial: 160)")
    lora_alpha: float = Field(32.0, gt=0, description="LoRA's product is multiplied by alpha / rank (author's: 32)")
    lora_dropout: Annotated[float, Share()] = Field(0.0, description="dropout before LoRA's matrices (author's: 0.1)")
    lora_targets: Literal["all", "attention"] = Field(
        "all", description="matrices that LoRA adapts: all of the blocks, or only queries, keys and values"
    )
    steps: Annotated[int, AtMost(1_000_000_000, "every schedule is shorter")] = Field(
        10_000, ge=0, description="updates; 0: the model without training"
    )
    batch_positions: Annotated[int, AtMost(1_000_000, "more positions do not fit in memory")] = Field(
        128, ge=1, description="positions in one update"
    )
    learning_rate: float = Field(8e-5, gt=0, description="learning rate of AdamW (paper D.3)")
    warmup_steps: int = Field(1000, ge=0, description="steps until the full rate")
    final_fraction: float = Field(0.1, ge=0, le=1, description="share of the learning rate at the end of the cosine")
    weight_decay: float = Field(0.0, ge=0, description="weight decay on matrices (the author's code: none)")
    beta1: Beta = Field(0.9, description="β₁ of AdamW (paper D.3)")
    beta2: Beta = Field(0.95, description="β₂ of AdamW (paper D.3)")
    grad_clip: float = Field(1.0, gt=0, description="largest gradient norm")
    seed: int = Field(0, description="seed of initial weights and of the order of positions")

    def without_effect(self) -> dict[str, str]:
        idle = super().without_effect()
        if self.checkpoint is not None:
            idle |= dict.fromkeys(SHAPE_SETTINGS, "--checkpoint has a shape; --family needs one")
        if self.tune == "whole":
            idle |= dict.fromkeys(LORA_SETTINGS, "it needs --tune lora or qlora")
        return idle

    @model_validator(mode="after")
    def _check_model(self) -> FinetuneSpec:
        if (self.checkpoint is None) == (self.family is None):
            raise BadInputError(
                "--checkpoint and --family: finetune needs exactly one model",
                f"give --checkpoint MODEL, or --family {' or '.join(FAMILIES)}",
            )
        for name, reason in self.without_effect().items():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise BadInputError(f"--{name.replace('_', '-')} has no effect: {reason}", "leave it out")
        if self.family is not None and self.tune != "whole":
            raise BadInputError(
                f"--tune {self.tune} needs trained weights, but --family starts with initial ones", "give --tune whole"
            )
        if self.family is not None and self.n_embd % (2 * self.n_head):
            raise BadInputError(
                f"--n-embd {self.n_embd} is not an even multiple of --n-head {self.n_head}",
                "rotary positions need pairs of dimensions per head",
            )
        return self


class FinetuneOptions(ModelTrainingOptions):
    micro_tokens: Annotated[int, AtMost(1_000_000_000, "more tokens do not fit in memory")] | None = Field(
        None,
        ge=64,
        description="maximum tokens in one forward pass of each device; a larger batch is split, and its gradients are "
        "accumulated. Left out: 4,096 on a CPU, else 16,384",
    )


LLAMA: dict[str, Any] = {"steps": 200_000, "warmup_steps": 2000, "batch_positions": 8192, "learning_rate": 8e-5,
                         "final_fraction": 0.0625}  # fmt: skip
PYTHIA: dict[str, Any] = LLAMA | {"batch_positions": 2048, "learning_rate": 3e-4, "final_fraction": 0.2}
PUBLISHED_PROMPT: dict[str, Any] = {"template": "junkin-1", "notation": "san", "layout": "flattened_with_slashes"}


class Finetune(Kind):
    """Fine-tune a language model on prompts that ask for the best move of a position.

    The loss is a mean over the answers and their end tokens in a batch (Junkin 2025, section 3.4, and its code).
    Prompts have no loss, except with --loss all, for a model with initial weights that must first learn to read
    prompts. Held-out losses are of answers. Prompts whose answer does not fit the context are left out and counted. The
    positions of a batch are drawn without replacement, epoch by epoch.

    The whole training is one unit. Its state is saved every few minutes in the run's folder, and an interrupted run
    resumes with the exact next batch. The checkpoint is the output `checkpoint`, in Hugging Face format, with its
    tokenizer and prompt. LoRA's matrices are merged into the weights that they adapt, and stored separately in the
    output `adapter`, which the library peft can read.
    """

    name = "finetune"
    main_settings = (
        "checkpoint",
        "family",
        "tune",
        "lora_rank",
        "steps",
        "batch_positions",
        "learning_rate",
        "heldout",
        "loss",
        "template",
    )
    example = (
        "--family llama --n-layer 1 --n-head 2 --n-embd 32 --block-size 128 --datasets puzzles --heldout puzzles "
        "--steps 4 --batch-positions 4 --warmup-steps 1"
    )
    tables = ("metric_point",)
    spec = FinetuneSpec
    options = FinetuneOptions
    makes_checkpoint = True
    states = ("state.pt",)
    clocked = ("tokens_per_second",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {**LLAMA, **PUBLISHED_PROMPT},
        "paper-pythia": {**PYTHIA, **PUBLISHED_PROMPT},
        "author-2025": LLAMA | {"steps": 100_000, "warmup_steps": 1000, "final_fraction": 0.1,
                                "template": "junkin-small"},
        "author-2025-pythia": PYTHIA | {"steps": 6_000_000, "warmup_steps": 0, "batch_positions": 256,
                                        "template": "junkin-1-code", "last_separator": True},
    }  # fmt: skip
    determinism = "statistical"  # exact on one machine with one thread count; kernels differ elsewhere

    def replays(self, spec: FinetuneSpec) -> bool:
        return True

    def units(self, spec: FinetuneSpec, inputs: Inputs) -> int:
        if spec.checkpoint is not None:
            check_tunable(inputs.read_checkpoint_row(spec.checkpoint))
        for reference, field in [*((one, "datasets") for one in spec.datasets),
                                 *([(spec.heldout, "heldout")] if spec.heldout else [])]:  # fmt: skip
            inputs.positions(reference, field)
        return 1

    def check(self, spec: FinetuneSpec, inputs: Inputs) -> None:
        """Raise an error for LoRA without its library, and for prompts that do not fit the model's context."""
        from chessreg.models.finetuning import require_peft

        if spec.tune != "whole":
            require_peft()
        if spec.checkpoint is not None:
            row, folder = inputs.checkpoint(spec.checkpoint)
            model_encoding = PromptEncoding.load(folder, row.tokenizer)
            check_prompt_room(
                model_encoding.with_settings(spec.prompt_settings(model_encoding.settings)), int(row.block_size or 0)
            )

    def check_options(self, spec: FinetuneSpec, options: FinetuneOptions) -> None:
        if options.fsdp and spec.tune == "qlora":
            raise BadInputError("--fsdp does not support --tune qlora", "give --tune lora")

    def estimate(self, spec: FinetuneSpec, inputs: Inputs) -> RunEstimate:
        remark = f"{spec.steps * spec.batch_positions:,} supervised moves"
        moves = spec.steps * spec.batch_positions
        if spec.checkpoint is not None:
            operations = 3 * count_reading_operations(spec.checkpoint, inputs, moves)
        else:
            operations = 3 * count_forward_pass_operations(
                spec.n_layer, spec.n_embd, moves * min(spec.block_size, PROMPT_TOKENS)
            )
        return RunEstimate({"metric_point": spec.steps // 20 * 3}, 0, (remark,), operations)

    def run(self, task: Task[FinetuneSpec, FinetuneOptions]) -> None:
        with task.lock_states(*self.states):
            self.tune(task)

    def tune(self, task: Task[FinetuneSpec, FinetuneOptions]) -> None:
        """Fine-tune from the last saved state, then emit the curve and publish the checkpoint. Raises StopRequest after
        a signal."""
        from chessreg.models.ranks import run_ranks

        spec = task.spec
        trainer, heldout = build_finetuner(task)

        task.resume(trainer.step / max(spec.steps, 1))

        def on_point(point: TrainPoint) -> None:
            text = f"loss {point.loss:.4f}, {point.tokens_per_second:,.0f} tokens of moves/s"
            task.progress(point.step / max(spec.steps, 1), text)

        with run_ranks(trainer, task.options.devices):
            trainer.run(on_point, heldout, spec.heldout_steps, lambda: task.stopping)
        task.progress(trainer.step / max(spec.steps, 1), "")  # raises StopRequest after a signal
        for point in trainer.curve:
            emit_train_point(task, point)  # type: ignore[arg-type]
        if trainer.curve:
            task.emit("metric_point", 0, name="left_out", step=trainer.step, value=float(trainer.skipped_items))
        publish_finetuned(task, trainer)
        task.done(0)


def check_tunable(checkpoint: tables.Checkpoint) -> None:
    """Raise BadInputError for a model that does not read prompts, or that the library transformers does not support."""
    check_prompted_model(checkpoint)
    if checkpoint.architecture in (*FAMILIES, "gpt2"):  # known without importing a library
        return
    from chessreg.models.adapters.bridge import is_known_family

    if not is_known_family(checkpoint.architecture):
        raise BadInputError(
            f"finetune cannot tune a model of the architecture {checkpoint.architecture}",
            "it tunes causal language models of the library transformers, such as llama, gpt_neox, gpt2 and qwen2",
        )


def build_finetuner(task: Task[FinetuneSpec, FinetuneOptions]) -> tuple[Finetuner, PromptCorpus | None]:
    """Return the trainer, restored to its place in the run, and the held-out prompts."""
    from chessreg.models.devices import prepare_device
    from chessreg.models.finetuning import FinetuneConfig, Finetuner, PromptCorpus, require_quantization

    spec, options = task.spec, task.options
    device = prepare_device(options.device, options.threads)
    family: str | None = spec.family
    source = None
    shape: dict[str, Any] = {name: getattr(spec, name) for name in SHAPE_SETTINGS if name != "tokenizer"}
    digest = ""
    if spec.checkpoint is None:
        tokenizer = make_tokenizer(task.folder / "tokenizer", has_merges=spec.tokenizer == "bpe")
        encoding = PromptEncoding(tokenizer, spec.prompt_settings())
        check_prompt_room(encoding, spec.block_size)
        shape["vocab_size"] = encoding.size
    else:
        row, source = task.inputs.checkpoint(spec.checkpoint)
        model_encoding = PromptEncoding.load(source, row.tokenizer)
        encoding, family, digest = (
            model_encoding.with_settings(spec.prompt_settings(model_encoding.settings)),
            row.architecture,
            str(row.artifact),
        )
        shape = {"block_size": int(row.block_size or 0), "vocab_size": encoding.size}
    shared_settings = ("steps", "learning_rate", "warmup_steps", "final_fraction", "weight_decay", "beta1", "beta2",
              "grad_clip", "batch_positions")  # fmt: skip
    lora: dict[str, Any] = {}
    if spec.tune == "qlora":
        require_quantization(device)
    if spec.tune != "whole":
        lora = {name: getattr(spec, name) for name in ("lora_rank", "lora_alpha", "lora_targets")}
        lora |= {"dropout": spec.lora_dropout, "quantized": spec.tune == "qlora"}
    config = FinetuneConfig(
        **{name: getattr(spec, name) for name in shared_settings},
        **shape,
        **lora,
        family=str(family),
        source=digest,
        seed=spec.seed + spec.replicate,
    )
    # on a CPU, scores of more prompts are so large that every pass allocates them from the system again
    micro_tokens = options.micro_tokens or (4096 if device == "cpu" else 16_384)
    training_options = options.trainer_options(device, micro_tokens)
    fens, moves = TrainingData.from_task(task, spec.datasets).open_labelled_positions()
    corpus = PromptCorpus(encoding, fens, moves, config.block_size, spec.loss == "all")
    heldout = None
    if spec.heldout:
        every = TrainingData.from_task(task, (spec.heldout,), "heldout").open_labelled_positions()
        task.inputs.note_shortage(spec, "heldout_positions", len(every[0]))
        places = draw_sample(len(every[0]), spec.heldout_positions, Stream.HELDOUT, spec.seed)
        sample = [[texts[place] for place in places] for texts in every]
        heldout = PromptCorpus(encoding, sample[0], sample[1], config.block_size)
    return Finetuner(config, corpus, task.folder, training_options, source), heldout


def publish_finetuned(task: Task[FinetuneSpec, FinetuneOptions], trainer: Finetuner) -> None:
    """Publish the tuned model as the output `checkpoint`, with its row, and LoRA's matrices as the output `adapter`."""
    from chessreg.entities.checkpoint import build_checkpoint_row, build_tokenizer_row
    from chessreg.models.checkpoint import CheckpointInfo, read_info, save_checkpoint

    spec, encoding = task.spec, trainer.corpus.encoding
    source: dict[str, Any] = {"format": "chessreg-finetune", "spec_hash": task.resolved.spec_hash}
    parent = None
    layout_names: list[str] = []
    if spec.checkpoint is not None:
        parent = task.inputs.read_checkpoint_row(spec.checkpoint)
        layout_names = list(parent.training_datasets or ())
        source["tuned_from"] = parent.artifact
    model = trainer.copy_trained()
    info = CheckpointInfo.from_network(model, encoding.name, tokens_seen=trainer.tokens_seen, source=source)
    if spec.tune != "whole":
        with task.output("adapter", 0, "adapter") as folder:
            trainer.model.save_adapter(folder)
    with task.output("checkpoint", 0, "checkpoint") as folder:
        save_checkpoint(model, folder, info)
        encoding.save(Path(folder))
        info = read_info(folder)
        tokenizer = build_tokenizer_row(encoding.name, folder)
    task.record("tokenizer", of_unit=0, **tokenizer)
    row = build_checkpoint_row(
        info,
        task.last_output.digest,
        training_datasets=list(dict.fromkeys([*layout_names, *(spec.datasets if spec.steps else ())])),
        parent_id=parent.id if parent else None,
        run_id=task.run_id,
    )
    task.record("checkpoint", of_unit=0, **row)
