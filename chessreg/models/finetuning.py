"""Fine-tuning of language models on prompts, of all weights or through LoRA (Junkin 2025, section 3.4).

The loss is over the answer and its end token.

The loop is that of `training`; batch k of epoch e is a function of (seed, e, k). Prompts are encoded per batch, so that
a million prompts with legal moves need no memory. A position whose prompt and answer exceed the model's context is left
out and counted; the author's code truncated it, including the answer.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chessreg.encodings.fen77 import FenError
from chessreg.errors import BadInputError, NotFoundError, get_first_line
from chessreg.models.adapters.bridge import load_hugging_face
from chessreg.models.adapters.llama import wrap_hugging_face
from chessreg.models.corpus import IGNORED_LABEL
from chessreg.models.epochs import Batch, EpochOrder, iterate_items
from chessreg.models.train_config import TrainConfig
from chessreg.models.training import BatchCounts, PreparedBatch, Trainer, TrainerOptions, make_autocast
from chessreg.plugins import install_command

if TYPE_CHECKING:
    from chessreg.encodings.prompts import PromptEncoding
    from chessreg.models.adapters.base import Network

QUERIES_KEYS_VALUES = frozenset(
    ("q_proj", "k_proj", "v_proj", "query_key_value", "c_attn", "qkv_proj", "query", "key", "value", "Wqkv", "W_pack")
)
"""Names, in various architectures, of the matrices that produce queries, keys and values."""
HELDOUT_TOKENS = 16_384  # per forward pass


@dataclass(frozen=True)
class FinetuneConfig(TrainConfig):
    """Everything that determines the tuned weights, apart from the prompts.

    `source` is the digest of the initial checkpoint; without one, weights are drawn for `family` and n_layer, n_head,
    n_embd, block_size, vocab_size. lora_rank 0 tunes every weight; `dropout` is LoRA's. `quantized`: the matrices
    adapted by LoRA are stored in 4 bits (NF4 with double quantization: QLoRA).
    """

    block_size: int = 1023
    vocab_size: int = 32
    family: str = "llama"
    source: str = ""
    batch_positions: int = 128
    lora_rank: int = 0
    lora_alpha: float = 32.0
    lora_targets: str = "all"
    quantized: bool = False


class PromptCorpus:
    """Positions as FENs, each with the move (UCI) to answer.

    Labels are the tokens of the answers and their ends; with `trains_on_prompts`, all tokens, as in pretraining.
    """

    def __init__(
        self,
        encoding: PromptEncoding,
        fens: Sequence[str],
        moves: Sequence[str],
        block_size: int,
        trains_on_prompts: bool = False,
    ) -> None:
        self.encoding, self.fens, self.moves, self.block_size = encoding, fens, moves, block_size
        self.trains_on_prompts = trains_on_prompts

    def __len__(self) -> int:
        return len(self.fens)

    def rows(self, places: Sequence[int]) -> list[tuple[np.ndarray, int]]:
        """Return (tokens of prompt and answer with its end, length of the prompt) for each of these positions that
        fits.

        A FEN that the encoding cannot write (a counter of 1,000) does not fit. Raises BadInputError for a move that
        cannot be written.
        """
        boards, rows = self.build_encoder_items(places), []
        try:
            prompts = self.encoding.boards(boards)
        except FenError:
            return [row for place in places for row in self.rows([place])] if len(places) > 1 else []
        for number, place in enumerate(places):
            prompt, board = prompts.item(number), boards[number]
            answer = self.encoding.answer(
                board if isinstance(board, chess.Board) else EMPTY_BOARD, chess.Move.from_uci(self.moves[place])
            )
            if len(prompt) + len(answer) <= self.block_size + 1:  # the answer's end is predicted, but not read
                rows.append((np.concatenate([prompt, answer]), len(prompt)))
        return rows

    def build_encoder_items(self, places: Sequence[int]) -> list[Any]:
        """Return the positions as the encoding's input: as boards only if legal moves or SAN need them."""
        fens = [self.fens[place] for place in places]
        settings = self.encoding.settings
        return [chess.Board(fen) for fen in fens] if settings.legal_list or settings.notation == "san" else fens

    def batches(self, places: Sequence[int], most: int) -> list[tuple[Tensor, Tensor]]:
        """Return inputs and labels int64 [row, length - 1] in portions of at most `most` tokens, shortest rows first.

        Padding is on the right and has no labels.
        """
        rows = sorted(self.rows(places), key=lambda row: len(row[0]))
        portions: list[list[tuple[np.ndarray, int]]] = []
        for row in rows:
            if not portions or len(row[0]) * (len(portions[-1]) + 1) > most:
                portions.append([])
            portions[-1].append(row)
        return [
            pad_rows([(ids, 1 if self.trains_on_prompts else prompt) for ids, prompt in portion])
            for portion in portions
        ]


EMPTY_BOARD = chess.Board(None)


def pad_rows(rows: Sequence[tuple[np.ndarray, int]]) -> tuple[Tensor, Tensor]:
    """Return rows of (tokens, index of the first label) as inputs and labels int64 [row, length - 1]."""
    width = max(len(ids) for ids, _ in rows) - 1
    inputs, labels = torch.zeros(len(rows), width, dtype=torch.int64), torch.full((len(rows), width), IGNORED_LABEL)
    for number, (ids, first) in enumerate(rows):
        row = torch.from_numpy(ids.astype(np.int64))
        inputs[number, : len(row) - 1] = row[:-1]
        labels[number, first - 1 : len(row) - 1] = row[first:]
    return inputs, labels


def make_language_model(config: FinetuneConfig) -> Any:
    """Return a Hugging Face model of the config's family and shape, with weights from torch's generator.

    A Llama has tied embeddings, like Llama-3.2-1B, and SwiGLU of 8/3 d_model; a GPT-NeoX, like Pythia, has neither.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    llama = config.family == "llama"
    shape = AutoConfig.for_model(
        config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.n_embd,
        intermediate_size=8 * -(-config.n_embd // 3) if llama else 4 * config.n_embd,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        max_position_embeddings=config.block_size,
        tie_word_embeddings=llama,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(shape)
    model.config.architectures = [type(model).__name__]  # the class that other tools load
    return model


class TunedModel(nn.Module):
    """A Hugging Face model in training, optionally with LoRA's matrices."""

    adapter: Any
    """The same model as a peft model; None without LoRA."""

    def __init__(self, hf: Any, config: FinetuneConfig, explicit: bool, source: Path | None = None) -> None:
        """`explicit`: compute attention scores explicitly, on a CPU in bfloat16 1.5 times as fast as the fused kernel.
        `source`: the folder of the weights if they are quantized."""
        super().__init__()
        self.source = source
        uses_fused_kernel = not explicit and getattr(hf, "_supports_sdpa", True)
        hf.set_attn_implementation("sdpa" if uses_fused_kernel else "eager")
        disable_dropout(hf)
        hf.train()
        self.plain_head = has_plain_head(hf)
        self.hf = hf
        object.__setattr__(
            self, "adapter", add_lora(hf, config) if config.lora_rank else None
        )  # do not register it as a submodule

    def train(self, mode: bool = True) -> TunedModel:
        """Set the training mode; in a quantized model only of LoRA's dropout.

        On a CPU, bitsandbytes converts matrices in eval mode to a layout for inference and cannot convert them back.
        """
        if self.source is None:
            return super().train(mode)
        self.training = mode
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.train(mode)
        return self

    def forward(self, tokens: Tensor, is_answer: Tensor) -> Tensor:
        """Return logits [n, vocab] at the n tokens of `is_answer`, bool [batch, length]."""
        if not self.plain_head:
            full_logits: Tensor = self.hf(input_ids=tokens, use_cache=False).logits
            return full_logits[is_answer]
        hidden = self.hf.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        logits: Tensor = self.hf.get_output_embeddings()(hidden[is_answer])
        return logits

    def copy_trained(self) -> Network:
        """Return a copy of the model in float32 on the CPU, with LoRA's matrices merged."""
        if self.adapter is None:
            return wrap_hugging_face(copy.deepcopy(self.hf).float().cpu().eval())
        if self.source is not None:
            return wrap_hugging_face(dequantize_model(self.adapter, self.source))
        return wrap_hugging_face(copy.deepcopy(self.adapter).float().cpu().merge_and_unload().eval())

    def save_adapter(self, folder: Path) -> None:
        """Write LoRA's matrices in peft's format: adapter_config.json and adapter_model.safetensors."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        assert self.adapter is not None
        weights = {n: t.detach().cpu().contiguous() for n, t in get_peft_model_state_dict(self.adapter).items()}
        save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        settings = self.adapter.peft_config["default"].to_dict()
        settings = {key: sorted(value) if isinstance(value, set) else value for key, value in settings.items()}
        settings |= {"base_model_name_or_path": "", "inference_mode": True}
        text = json.dumps(settings, indent=2, sort_keys=True, default=str)
        (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")


def disable_dropout(hf: Any) -> None:
    """Set the dropout in a model's own configuration (GPT-2 has some) to 0, as the author does."""
    for module in hf.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


@torch.no_grad()
def has_plain_head(hf: Any) -> bool:
    """Return whether the logits of a model without dropout are the output matrix times the last hidden state.

    Some families scale or cap them.
    """
    tokens = torch.arange(min(8, hf.config.vocab_size), device=hf.device)[None]  # embeddings of padding may be zero
    logits = hf(input_ids=tokens, use_cache=False).logits
    hidden = hf.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    return bool(torch.allclose(hf.get_output_embeddings()(hidden), logits, rtol=1e-3, atol=1e-3))


def list_matrices(hf: Any) -> list[str]:
    """Return the distinct names of the matrices in a model's blocks, without their paths."""
    from transformers.pytorch_utils import Conv1D

    paths = [name.split(".") for name, module in hf.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    return sorted({path[-1] for path in paths if any(part.isdigit() for part in path)})


def choose_lora_targets(hf: Any, targets: str) -> list[str]:
    """Return the matrices that LoRA adapts: `all` matrices of the blocks, or those of queries, keys and values
    (`attention`).

    The author's list for Llama contains names that do not exist, so that only these were adapted.
    Raises BadInputError for a model whose queries, keys and values have unknown names.
    """
    names = list_matrices(hf)
    if targets == "attention":
        names = [name for name in names if name in QUERIES_KEYS_VALUES]
    if not names:
        raise BadInputError(
            f"a {hf.config.model_type} model has no matrices of queries, keys and values that are known",
            "give --lora-targets all",
        )
    return names


def add_lora(hf: Any, config: FinetuneConfig) -> Any:
    """Return the model with LoRA's matrices, its only trainable weights. Raises NotFoundError without peft."""
    require_peft()
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.dropout,
        target_modules=choose_lora_targets(hf, config.lora_targets),
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in hf.modules()),
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # concerns only the two libraries
        return get_peft_model(hf, lora)


def load_quantized(folder: Path, device: str) -> Any:
    """Return a folder's model on the device with its blocks' matrices in NF4, computed in bfloat16 (the author's
    trial)."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return AutoModelForCausalLM.from_pretrained(
        folder,
        quantization_config=quantization,
        device_map={"": device},
        local_files_only=True,
        trust_remote_code=False,
    )


@torch.no_grad()
def dequantize_model(adapter: Any, folder: Path) -> Any:
    """Return a quantized model under LoRA as a plain model in float32 on the CPU, with LoRA's matrices merged."""
    from bitsandbytes.functional import dequantize_4bit
    from transformers.pytorch_utils import Conv1D

    plain = load_hugging_face(folder, torch.float32)
    matrices_of = dict(plain.named_modules())
    for name, module in adapter.get_base_model().named_modules():
        weight = getattr(module.get_base_layer() if hasattr(module, "get_base_layer") else module, "weight", None)
        if name not in matrices_of or getattr(weight, "quant_state", None) is None:
            continue
        assert weight is not None
        full_weight = dequantize_4bit(weight.data, weight.quant_state).float()
        if hasattr(module, "get_delta_weight"):
            full_weight = full_weight + module.get_delta_weight("default").float()
        is_transposed = isinstance(matrices_of[name], Conv1D)  # GPT-2's Conv1D became a Linear
        matrices_of[name].weight.copy_((full_weight.t() if is_transposed else full_weight).cpu())
    return plain


def require_quantization(device: str) -> None:
    """Raise NotFoundError without bitsandbytes, BadInputError for a device on which it cannot quantize."""
    import importlib.util

    if importlib.util.find_spec("bitsandbytes") is None:
        raise NotFoundError(
            "--tune qlora needs the library bitsandbytes, which is not installed",
            "pip install bitsandbytes, or give --tune lora",
        )
    try:
        from bitsandbytes.functional import dequantize_4bit, quantize_4bit

        packed_weight, state = quantize_4bit(torch.ones(64, 64, device=device), quant_type="nf4")
        dequantize_4bit(packed_weight, state)
    except Exception as error:  # the library may be built for other devices
        raise BadInputError(
            f"--tune qlora: bitsandbytes cannot quantize on {device}: {get_first_line(error)}",
            "give --device cuda, or --tune lora",
        ) from error


def require_peft() -> None:
    """Raise NotFoundError, with the install command, if peft is not installed."""
    import importlib.util

    if importlib.util.find_spec("peft") is None:
        raise NotFoundError("LoRA needs the library peft, which is not installed", install_command("peft"))


class Finetuner(Trainer):
    """Trains a language model on prompts. Under LoRA, `state.pt` contains only LoRA's matrices."""

    config: FinetuneConfig
    corpus: Any
    prefetched_batches = 0  # held-out prompts use the same tokenizer

    def __init__(
        self,
        config: FinetuneConfig,
        corpus: PromptCorpus,
        folder: Path,
        options: TrainerOptions | None = None,
        source: Path | None = None,
    ) -> None:
        """`source` is the folder of the initial checkpoint."""
        self.source = source
        super().__init__(config, corpus, folder, options)  # type: ignore[arg-type]

    def make_initial_model(self) -> TunedModel:
        if self.source is None:
            hf = make_language_model(self.config)
        else:
            with torch.random.fork_rng(devices=[]):
                if self.config.quantized:
                    hf = load_quantized(self.source, self.options.device)
                else:
                    hf = load_hugging_face(self.source, torch.float32)
        explicit = self.options.autocast and self.options.device == "cpu"
        return TunedModel(hf, self.config, explicit, self.source if self.config.quantized else None).train()

    def check_corpus(self) -> None:
        """Accept every corpus: a PromptCorpus always has a batch, although none of its positions may fit."""

    def iterate_batches(self, epoch: int, first_batch: int) -> Iterator[Batch]:
        order = EpochOrder(self.config.draw_seed, epoch, len(self.corpus))
        return iterate_items(order, self.config.batch_positions, first_batch)

    def select_weights(self) -> dict[str, Tensor]:
        changed_names = {name for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        return {name: tensor for name, tensor in self.model.state_dict().items() if name in changed_names}

    def set_weights(self, weights: dict[str, Tensor]) -> None:
        missing_names, unknown = self.model.load_state_dict(weights, strict=False)
        if unknown or set(self.select_weights()) & set(missing_names):
            raise ValueError(f"{self.state_path} holds the weights of another model")

    def list_extra_arguments(self) -> dict[str, Any]:
        return {"source": self.source}

    def list_blocks(self) -> list[nn.Module]:
        kinds = self.model.hf._no_split_modules or ()
        return [module for module in self.model.hf.modules() if type(module).__name__ in kinds]

    def choose_idle_portion(self, batch: PreparedBatch) -> tuple[Tensor, Tensor]:
        return torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64)

    def checkpoint_activations(self) -> None:
        if not self.model.hf.supports_gradient_checkpointing:
            raise BadInputError(
                f"--activation-checkpointing: a {self.model.hf.config.model_type} model does not support it",
                "leave it out",
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # later versions have another name for it
            self.model.hf.gradient_checkpointing_enable({"use_reentrant": False})

    def split_rows(self, rows: Batch) -> tuple[list[tuple[Tensor, Tensor]], int]:
        """Return this process's share of a batch as inputs and labels in portions of at most `micro_tokens` tokens, and
        the number of its positions that do not fit the model."""
        places = [row[0] for row in rows[self.options.rank :: self.options.devices]]
        parts = self.corpus.batches(places, self.options.micro_tokens)
        return parts, len(places) - sum(len(inputs) for inputs, _ in parts)

    def share_batch(self, batch: PreparedBatch) -> tuple[list[Any], BatchCounts]:
        """Return the portions, which are of this process alone, and the counts of all processes together.

        Raises BadInputError if no position of the batch fits the model.
        """
        parts, rank_counts = batch.portions, self.count_batch(batch)
        fitting_rows = sum(len(inputs) for inputs, _ in parts)
        counts = torch.tensor([*rank_counts, fitting_rows]).to(self.options.device)
        if self.ranks is not None:
            self.ranks.sum([counts])
        *totals, fitting_rows = counts.tolist()
        if not fitting_rows:
            raise BadInputError(
                f"none of the {totals[-1]} positions of step {self.step} fits the model's {self.config.block_size} "
                "tokens with its answer",
                "use a shorter template, without the legal moves",
            )
        return parts, BatchCounts(*totals)

    def compute_summed_loss(self, forward: Callable[..., Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        is_answer = labels != IGNORED_LABEL
        with make_autocast(self.options):
            logits = forward(inputs.to(self.options.device), is_answer.to(self.options.device))
        return F.cross_entropy(logits.float(), labels[is_answer].to(self.options.device), reduction="sum")

    @torch.no_grad()
    def measure_heldout(self, heldout: PromptCorpus) -> tuple[float, float | None]:
        """Return (nats per answer token, including the end; share of answers whose every token is the most probable
        one)."""
        loss_sum, count, right, answers = 0.0, 0, 0, 0
        self.model.eval()
        for inputs, labels in heldout.batches(range(len(heldout)), HELDOUT_TOKENS):
            is_answer = labels != IGNORED_LABEL
            with make_autocast(self.options):
                logits = self.model(inputs.to(self.options.device), is_answer.to(self.options.device)).float().cpu()
            true = labels[is_answer]
            loss_sum += float(F.cross_entropy(logits, true, reduction="sum"))
            count += len(true)
            wrong = torch.zeros(len(inputs), dtype=torch.int64)
            wrong.index_add_(0, is_answer.nonzero()[:, 0], (logits.argmax(-1) != true).long())
            right, answers = right + int((wrong == 0).sum()), answers + len(inputs)
        self.model.train()
        if not answers:
            raise BadInputError(
                f"no held-out position fits the model's {self.config.block_size} tokens with its answer",
                "use a shorter template, without the legal moves",
            )
        return loss_sum / count, right / answers
