"""The training loop: token ids in, a Hugging Face checkpoint and a loss curve out (Karvonen 2024, Table 5).

Imports only torch and numpy, so that the same file trains on any GPU machine. Everything that determines the result is
in a `TrainConfig` (train_config.py). Batch k of epoch e is a function of (seed, e, k) (epochs.py), so a resumed run
sees the same batches as an uninterrupted one.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from chessreg.errors import BadInputError, ChessregError, get_first_line, reraise_lack_of_memory
from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder
from chessreg.models.adapters.gpt2 import GPT2, GPT2Config, attend_fused
from chessreg.models.adapters.searchless_chess import SearchlessChess, SearchlessConfig
from chessreg.models.corpus import IGNORED_LABEL, Corpus, PositionCorpus, collate_rows
from chessreg.models.epochs import SEED_COUNT, Batch, iterate_batches
from chessreg.models.prefetch import prefetch
from chessreg.models.ranks import END, NEXT_STEP, Ranks, explain_lost_collective
from chessreg.models.sharding import gather_tensors, shard_model, shard_optimizer_state
from chessreg.models.train_config import (
    POSITION_TRAININGS,
    GPT2Training,
    PositionTraining,
    SearchlessTraining,
    TextTraining,
    TrainConfig,
)

TrainableModel = GPT2 | FenEncoder | SearchlessChess

PREFETCHED_BATCHES = 4
# commands to the other processes of a sharded training
GATHER_WEIGHTS, GATHER_OPTIMIZERS, RUN_FORWARD = "weights", "optimizers", "forward"


def make_initial_model(config: TrainConfig, vocab_size: int) -> TrainableModel:
    """Return the model of a configuration with initial weights from torch's generator."""
    shape, explicit = (config.n_layer, config.n_head, config.n_embd), config.explicit_attention
    if isinstance(config, PositionTraining):
        kernel = functools.partial(compute_attention, causal=config.attention == "causal", explicit=explicit)
        model: TrainableModel = FenEncoder(
            FenConfig(*shape, config.attention, config.embedding, config.dropout), kernel
        )
    elif isinstance(config, SearchlessTraining):
        model = SearchlessChess(SearchlessConfig(*shape, config.head, config.attention, buckets=config.buckets))
    else:
        assert isinstance(config, GPT2Training)
        sizes = GPT2Config(
            *shape,
            config.block_size,
            vocab_size,
            activation=config.activation,
            bias=config.biases,
            dropout=config.dropout,
        )
        model = GPT2(sizes, functools.partial(compute_attention, explicit=explicit))
    model.initialise()
    return model


@dataclass(frozen=True)
class TrainerOptions:
    """Options that do not affect the result: where and in what portions it is computed."""

    device: str = "cpu"
    micro_tokens: int = 16_384  # maximum tokens per forward pass; a batch has several (gradient accumulation)
    autocast: bool = True
    compile: bool = False
    log_steps: int = 20
    checkpoint_seconds: float = 300.0
    devices: int = 1  # number of processes that share each batch (ranks.py)
    rank: int = 0  # the number of this process
    activation_checkpointing: bool = False  # compute activations again in the backward pass instead of keeping them
    fsdp: bool = False  # shard weights, gradients and optimizer states over the processes (sharding.py)


@dataclass(frozen=True)
class TrainPoint:
    """One point of the loss curve.

    Losses are nats per token, or per move if moves are learned (tokens_seen then counts moves); heldout_accuracy is the
    share of moves that are the most probable action or text. `measured` has further measurements of the model by name.
    """

    step: int
    tokens_seen: int
    loss: float
    heldout_loss: float | None
    learning_rate_factor: float
    tokens_per_second: float
    heldout_accuracy: float | None = None
    measured: Mapping[str, float] = field(default_factory=dict)


def compute_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool = True,
    explicit: bool = False,
) -> Tensor:
    """Return the attention of q, k, v, each [batch, head, length, d_head], in the same shape.

    `mask` [batch, 1, n, length] is added to the scores of the last n queries; the earlier ones are causal among
    themselves. On a CPU, the fused kernel's backward pass is slow for small heads. From 256 tokens on, slices of 128
    queries, each over the keys it can see, take half its time (2 cores, d_head 32, length 416); below, `explicit`
    scores take 0.4 of it in bfloat16 and more in float32 (tests/benchmarks/bench_train.py). Otherwise the fused kernel
    is used.
    """
    batch, heads, length, d_head = q.shape
    if mask is not None:
        first = length - mask.shape[2]
        game = q[:, :, :first], k[:, :, :first], v[:, :, :first]
        before = compute_attention(*game, None, dropout, causal, explicit)
        scores = (q[:, :, first:] @ k.transpose(2, 3)) * d_head**-0.5 + mask.to(q.dtype)
        return torch.cat([before, F.dropout(torch.softmax(scores, -1), dropout) @ v], 2)
    explicit = explicit and (q.dtype == torch.bfloat16 or dropout > 0)
    if q.device.type != "cpu" or (length < 256 and not explicit) or (length >= 256 and not causal):
        return attend_fused(q, k, v, mask, dropout, causal)
    q, k, v = (x.reshape(batch * heads, length, d_head) for x in (q, k, v))
    if length < 256:
        hidden = torch.zeros((length, length), dtype=q.dtype)
        if causal:
            hidden = torch.full_like(hidden, -torch.inf).triu(1)
        scores = torch.baddbmm(hidden, q, k.transpose(1, 2), alpha=d_head**-0.5)
        return (F.dropout(torch.softmax(scores, -1), dropout) @ v).view(batch, heads, length, d_head)
    slices = []
    for start in range(0, length, 128):
        end = min(start + 128, length)
        hidden = torch.full((end - start, end), -torch.inf, dtype=q.dtype).triu(start + 1)
        scores = torch.baddbmm(hidden, q[:, start:end], k[:, :end].transpose(1, 2), alpha=d_head**-0.5)
        slices.append(F.dropout(torch.softmax(scores, -1), dropout) @ v[:, :end])
    return torch.cat(slices, 1).view(batch, heads, length, d_head)


def make_optimizers(model: TrainableModel, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Return AdamW for all weights, or Muon for the blocks' matrices and AdamW for the rest. Only matrices have weight
    decay."""
    matrices = {id(p) for p in model.matrices()} if config.optimizer == "muon" else set()
    remaining_parameters = [p for p in model.parameters() if id(p) not in matrices]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in remaining_parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in remaining_parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2))
    ]
    if matrices:
        optimizers.append(
            torch.optim.Muon(model.matrices(), lr=config.muon_learning_rate, weight_decay=config.weight_decay)
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["full_rate"] = group["lr"]
    return optimizers


def make_autocast(options: TrainerOptions) -> AbstractContextManager[Any]:
    """Return the context manager of the forward pass: bfloat16 autocast, or nothing."""
    device = options.device.split(":")[0]
    return torch.autocast(device, torch.bfloat16) if options.autocast else nullcontext()


def compute_total_loss(
    forward: Callable[[Tensor], Tensor], inputs: Tensor, labels: Tensor, options: TrainerOptions
) -> Tensor:
    """Return the summed cross-entropy in nats of the `labels` [batch, length] that are not padding, given `inputs`
    [batch, length]."""
    with make_autocast(options):
        logits = forward(inputs.to(options.device))
    return F.cross_entropy(logits.float().flatten(0, 1), labels.to(options.device).flatten(), reduction="sum")


@torch.no_grad()
def measure_loss(
    model: TrainableModel, corpus: Corpus | PositionCorpus, options: TrainerOptions, games: int = 500
) -> tuple[float, float | None]:
    """Return nats per token over the first `games` games, each in its own row, and None.

    For positions (16 times `games`): nats per move, and the share of moves that are the most probable action.
    """
    positions = isinstance(corpus, PositionCorpus)
    limit, at_once = model.block_size + 1, 256 if positions else 16
    most = min(16 * games if positions else games, len(corpus))
    order = np.argsort(corpus.compute_lengths(np.arange(most)), kind="stable").tolist()
    loss_sum, count, right = 0.0, 0, 0
    model.eval()
    for start in range(0, len(order), at_once):
        rows = [[item] for item in order[start : start + at_once]]
        inputs, labels = map(torch.from_numpy, collate_rows(corpus, rows, limit))
        if positions:
            with make_autocast(options):
                logits = model(inputs.to(options.device)).float()[:, 0].cpu()
            loss_sum += float(F.cross_entropy(logits, labels[:, 0], reduction="sum"))
            right += int((logits.argmax(-1) == labels[:, 0]).sum())
        else:
            loss_sum += float(compute_total_loss(model, inputs, labels, options))
        count += int((labels != IGNORED_LABEL).sum())
    model.train()
    return loss_sum / count, right / count if positions else None


def split_batch(inputs: Tensor, labels: Tensor, options: TrainerOptions) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a batch in portions of at most `micro_tokens` tokens, at least one per process."""
    rows = max(1, min(options.micro_tokens // inputs.shape[1], -(-len(inputs) // options.devices)))
    yield from zip(inputs.split(rows), labels.split(rows), strict=True)


STATE = "state.pt"


@dataclass(frozen=True)
class PreparedBatch:
    """A batch in portions of one forward pass, with the place in the data after it. `skipped_items` counts its items
    that do not fit the model."""

    epoch: int
    position: int
    portions: list[Any]
    skipped_items: int = 0


class BatchCounts(NamedTuple):
    """Numbers of a batch: targets to predict, tokens through the model, items left out."""

    targets: int
    tokens: int
    skipped_items: int


class Trainer:
    """A model, its optimizers, its position in the data and its loss curve; `run` trains until `config.steps`.

    The state is stored in `folder/state.pt`; a Trainer over a folder with a state resumes at the next batch. The config
    may differ from the saved one only in `steps`.

    Raises BadInputError for a corpus without a batch.
    """

    prefetched_batches = PREFETCHED_BATCHES  # 0: batches are prepared between the updates

    def __init__(
        self, config: TrainConfig, corpus: Corpus | PositionCorpus, folder: Path, options: TrainerOptions | None = None
    ) -> None:
        self.config, self.corpus, self.folder = config, corpus, folder
        self.options = options or TrainerOptions()
        self.ranks: Ranks | None = None
        self.is_sharded = False
        torch.manual_seed(config.draw_seed)
        self.model = self.make_initial_model().to(self.load_device)
        if self.options.activation_checkpointing:
            self.checkpoint_activations()
        self.optimizers = make_optimizers(self.model, config)
        self.step = self.tokens_seen = self.epoch = self.position = 0
        self.skipped_items = 0  # drawn items that do not fit the model
        self.tokens_read: int | None = 0  # tokens through the model, including padding; None: not in an old state
        self.check_corpus()
        self.batches = self.prepare_batches()
        self.curve: list[TrainPoint] = []
        self.recent_losses: list[Tensor] = []  # losses of the steps since the last point of the curve
        if self.state_path.exists():
            self.load()

    @property
    def state_path(self) -> Path:
        return self.folder / STATE

    @property
    def load_device(self) -> str:
        """The device of a new model: the CPU until it is sharded, because a GPU may be too small for the whole."""
        return "cpu" if self.options.fsdp else self.options.device

    def make_initial_model(self) -> Any:
        """Return the initial model; random draws come from torch's generator."""
        return make_initial_model(self.config, self.corpus.vocab_size)

    def list_blocks(self) -> list[torch.nn.Module]:
        """Return the model's blocks, which are sharded one by one."""
        return list(self.model.h)

    def checkpoint_activations(self) -> None:
        """Keep only the input of each block, from which the backward pass computes its activations again."""
        for block in self.model.h:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)

    def check_corpus(self) -> None:
        """Raise BadInputError for a corpus without a batch."""
        is_filled = isinstance(self.config, TextTraining) and self.config.packing == "blocks"
        if not self.corpus.has_rows(self.model.block_size + 1 if is_filled else 1):
            hint = "a smaller --block-size, --packing games, or more games"
            raise BadInputError("all games together have fewer tokens than the model's context", hint)

    def iterate_batches(self, epoch: int, first_batch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch from batch `first_batch` on: rows of items of the corpus."""
        return iterate_batches(self.corpus, self.config, epoch, first_batch)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights that training changes, by name; of a sharded model, whole tensors on the CPU."""
        return self.gather(GATHER_WEIGHTS, self.select_weights())

    def select_weights(self) -> dict[str, Tensor]:
        """Return the tensors of the model that training changes, by name."""
        return dict(self.model.state_dict())

    def optimizer_states(self) -> list[dict[str, Any]]:
        """Return the optimizers' states; of a sharded model, with whole tensors on the CPU."""
        states: list[dict[str, Any]] = self.gather(GATHER_OPTIMIZERS, [each.state_dict() for each in self.optimizers])
        return states

    def gather(self, command: str, state: Any) -> Any:
        """Return a state with whole tensors in rank 0, which sends the other processes the command to take part."""
        if not self.is_sharded:
            return state
        self.command(command)
        return gather_tensors(state, keep=self.options.rank == 0)

    def set_weights(self, weights: dict[str, Tensor]) -> None:
        """Set weights returned by `weights`."""
        self.model.load_state_dict(weights)

    @property
    def device(self) -> str:
        return self.options.device

    def make_follower(self) -> Callable[[int, str], Callable[[Ranks], None]]:
        """Return the function that makes another process follow this training (ranks.py)."""
        arguments = (self.config, self.corpus, self.folder)
        return functools.partial(build_follower, type(self), arguments, self.options, self.list_extra_arguments())

    def list_extra_arguments(self) -> dict[str, Any]:
        """Return the arguments that a subclass's constructor has in addition."""
        return {}

    def connect(self, ranks: Ranks) -> None:
        """Share all further steps with these processes."""
        self.ranks = ranks
        self.options = replace(self.options, devices=ranks.size, rank=ranks.rank)
        if self.options.fsdp:
            self.shard()

    def shard(self) -> None:
        """Keep only this process's part of the weights and of the optimizers' states."""
        states = self.optimizer_states()
        shard_model(self.model, self.list_blocks(), self.options.device, self.options.autocast)
        self.optimizers = make_optimizers(self.model, self.config)
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(shard_optimizer_state(state, optimizer))
        self.is_sharded = True

    def build_whole_model(self) -> Any:
        """Return a copy of a sharded model that is not sharded, on the CPU."""
        with torch.random.fork_rng(devices=[]):
            initial_model = self.make_initial_model()
        initial_model.load_state_dict(self.weights(), strict=False)  # the others are not trained
        return initial_model

    def split_rows(self, rows: Batch) -> tuple[list[Any], int]:
        """Return a batch as inputs and labels in portions of one forward pass, and the number of items left out."""
        inputs, labels = map(torch.from_numpy, collate_rows(self.corpus, rows, self.model.block_size + 1))
        return list(split_batch(inputs, labels, self.options)), 0

    def prepare_batches(self) -> Iterator[PreparedBatch]:
        """Yield the batches after the trainer's place, epoch after epoch, without end."""
        epoch, position = self.epoch, self.position
        while True:
            for rows in self.iterate_batches(epoch, position):
                position += 1
                yield PreparedBatch(epoch, position, *self.split_rows(rows))
            epoch, position = epoch + 1, 0

    @contextmanager
    def prefetch_batches(self) -> Iterator[None]:
        """Prepare batches in a thread during the block."""
        if not self.prefetched_batches:
            yield
            return
        try:
            with prefetch(self.prepare_batches(), self.prefetched_batches) as self.batches:
                yield
        finally:
            self.batches = self.prepare_batches()  # from the trainer's place, which the thread is ahead of

    def share_batch(self, batch: PreparedBatch) -> tuple[list[Any], BatchCounts]:
        """Return this process's portions of a batch, and the counts of the whole batch."""
        return batch.portions[self.options.rank :: self.options.devices], self.count_batch(batch)

    def count_batch(self, batch: PreparedBatch) -> BatchCounts:
        """Return the counts of all portions of a batch."""
        targets = sum(self.count_targets(*part) for part in batch.portions)
        tokens = sum(self.count_read_tokens(*part) for part in batch.portions)
        return BatchCounts(targets, tokens, batch.skipped_items)

    def count_targets(self, inputs: Tensor, labels: Tensor) -> int:
        """Return the number of tokens or moves that one portion predicts."""
        return int((labels != IGNORED_LABEL).sum())

    def count_read_tokens(self, inputs: Tensor, labels: Tensor) -> int:
        """Return the number of tokens in one portion, including padding and the first token of a model of positions."""
        return inputs.numel() + (len(inputs) if isinstance(self.config, POSITION_TRAININGS) else 0)

    def compute_summed_loss(self, forward: Callable[..., Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the summed cross-entropy of one portion, in nats."""
        return compute_total_loss(forward, inputs, labels, self.options)

    def measure_heldout(self, heldout: Any) -> tuple[float, float | None]:
        """Return the held-out loss and accuracy, like `measure_loss`."""
        return measure_loss(self.model, heldout, self.options)

    def save(self) -> None:
        """Write the state. A crash, a power failure or a full disk (DiskFullError) leaves the previous state."""
        from store.files import replace_file

        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "config": asdict(self.config),
            "model": self.weights(),
            "optimizers": self.optimizer_states(),
            "place": [self.step, self.tokens_seen, self.epoch, self.position],
            "left_out": self.skipped_items,
            "tokens_read": self.tokens_read,
            "since": torch.stack(self.recent_losses) if self.recent_losses else torch.zeros(0),
            "curve": [asdict(point) for point in self.curve],
        }
        with replace_file(self.state_path, self.state_path.with_suffix(".tmp")) as file:
            torch.save(state, file)

    def load(self) -> None:
        """Load the state. Raises ChessregError if it is damaged or belongs to another training."""
        try:
            state = torch.load(self.state_path, map_location=self.load_device, weights_only=True)
            differing_settings = {k for k, v in asdict(self.config).items() if state["config"].get(k) != v} - {"steps"}
            if differing_settings:
                raise ValueError(f"it was trained with another {', '.join(sorted(differing_settings))}")
            self.set_weights(state["model"])
            for optimizer, saved_state in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved_state)
            self.step, self.tokens_seen, self.epoch, self.position = state["place"]
            self.skipped_items, self.tokens_read = state["left_out"], state["tokens_read"]
            self.recent_losses = list(state["since"])
            self.curve = [TrainPoint(**point) for point in state["curve"]]
        except Exception as error:  # torch raises various types for files that it did not write
            reraise_lack_of_memory(error)
            raise ChessregError(
                f"the saved state {self.state_path} cannot be read: {get_first_line(error)}",
                "remove it to start from scratch",
            ) from error
        self.batches = self.prepare_batches()

    def copy_trained(self) -> TrainableModel:
        """Return a copy of the model in float32 on the CPU, in eval mode."""
        return (self.build_whole_model() if self.is_sharded else self.model).copy_trained()

    def train_step(self, forward: Callable[[Tensor], Tensor]) -> Tensor:
        """Make one update; return the batch's mean loss as a tensor, so that nothing waits for the device."""
        batch = next(self.batches)
        parts, counts = self.share_batch(batch)
        if self.config.dropout:  # the same draws in a resumed run, different ones in every process
            torch.manual_seed((self.config.draw_seed << 32 | self.options.rank << 56 | self.step) % SEED_COUNT)
        loss_sum = torch.zeros((), device=self.options.device)
        idle = self.count_idle_passes(batch, len(parts))
        for part in parts:
            loss = self.compute_summed_loss(forward, *part) / counts.targets
            loss.backward()
            loss_sum += loss.detach()
        for _ in range(idle):
            (self.compute_summed_loss(forward, *self.idle_portion) * 0.0).backward()
        if self.ranks is not None:
            self.share_gradients(self.ranks, loss_sum)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip)
        factor = self.config.rate(self.step)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full_rate"] * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.epoch, self.position = batch.epoch, batch.position
        self.skipped_items += counts.skipped_items
        self.tokens_seen += counts.targets
        if self.tokens_read is not None:
            self.tokens_read += counts.tokens
        return loss_sum

    def count_idle_passes(self, batch: PreparedBatch, own_passes: int) -> int:
        """Return how many more portions than this process, which has `own_passes`, another one has.

        All processes of a sharded training must make the same number of passes: in each, they gather the weights and
        sum the gradients together.
        """
        if not self.is_sharded or self.ranks is None:
            return 0
        self.idle_portion = self.choose_idle_portion(batch)
        return self.ranks.find_largest(own_passes, self.options.device) - own_passes

    def choose_idle_portion(self, batch: PreparedBatch) -> Any:
        """Return inputs and labels for passes whose result is not used."""
        return batch.portions[0]

    def share_gradients(self, ranks: Ranks, loss_sum: Tensor) -> None:
        """Sum the gradients and the loss over all processes. The backward pass has summed the gradients of a sharded
        model."""
        if self.is_sharded:
            ranks.sum([loss_sum])
            return
        weights = [p for p in self.model.parameters() if p.requires_grad]
        for parameter in weights:
            if parameter.grad is None:  # this process had no share of the batch
                parameter.grad = torch.zeros_like(parameter)
        ranks.sum([*(p.grad for p in weights if p.grad is not None), loss_sum])

    def forward_pass(self) -> Callable[[Tensor], Tensor]:
        """Return the model's forward pass, compiled if `options.compile`."""
        return torch.compile(self.model) if self.options.compile else self.model

    def follow(self, ranks: Ranks) -> None:
        """Take the steps that rank 0 commands, which alone writes and reports."""
        self.connect(ranks)
        forward = self.forward_pass()
        actions: dict[str, Callable[[], object]] = {
            NEXT_STEP: lambda: self.train_step(forward),
            GATHER_WEIGHTS: self.weights,
            GATHER_OPTIMIZERS: self.optimizer_states,
            RUN_FORWARD: self.run_idle_forward,
        }
        with self.prefetch_batches():
            while (command := ranks.receive()) != END:
                actions[command]()

    @torch.no_grad()
    def run_idle_forward(self) -> None:
        """Take part in a forward pass of rank 0."""
        self.compute_summed_loss(self.model, *self.idle_portion)

    @contextmanager
    def command_forwards(self) -> Iterator[None]:
        """Let the other processes of a sharded model take part in each forward pass inside the block."""
        if not self.is_sharded:
            yield
            return
        hook = self.model.register_forward_pre_hook(lambda *_: self.command(RUN_FORWARD), prepend=True)
        try:
            yield
        finally:
            hook.remove()

    def command(self, command: str) -> None:
        """Send a command from rank 0 to the other processes, if there are any."""
        if self.ranks is not None and self.options.rank == 0:
            self.ranks.send(command)

    def run(
        self,
        on_point: Callable[[TrainPoint], None],
        heldout: Any = None,
        heldout_steps: int = 500,
        should_stop: Callable[[], bool] = lambda: False,
        measure: Callable[[Any], Mapping[str, float]] | None = None,
    ) -> None:
        """Train until `config.steps`, or until `should_stop()`; save the state every few minutes and at the end.

        `on_point` receives a TrainPoint every `options.log_steps` steps; every `heldout_steps` steps it includes a
        held-out loss and the result of `measure` for a copy of the model.
        """
        with explain_lost_collective(self.options.devices):
            with self.prefetch_batches():
                self._run(on_point, heldout, heldout_steps, should_stop, measure)
            self.save()
            if self.is_sharded:
                self.model, self.is_sharded = self.build_whole_model(), False

    def _run(
        self,
        on_point: Callable[[TrainPoint], None],
        heldout: Any,
        heldout_steps: int,
        should_stop: Callable[[], bool],
        measure: Callable[[Any], Mapping[str, float]] | None,
    ) -> None:
        """Run as `run` does, without saving at the end."""
        forward = self.forward_pass()
        saved_at = clock = time.monotonic()
        tokens = self.tokens_seen
        while self.step < self.config.steps and not should_stop():
            self.command(NEXT_STEP)
            self.recent_losses.append(self.train_step(forward))
            is_last_step = self.step == self.config.steps
            if self.step % self.options.log_steps == 0 or is_last_step:
                loss, now = float(torch.stack(self.recent_losses).mean()), time.monotonic()
                if not math.isfinite(loss):
                    raise FloatingPointError(f"the loss is {loss} at step {self.step}")
                held_losses: tuple[float | None, float | None] = (None, None)
                more: Mapping[str, float] = {}
                if self.step % heldout_steps == 0 or is_last_step:
                    with self.command_forwards():
                        held_losses = self.measure_heldout(heldout) if heldout is not None else held_losses
                    more = measure(self.copy_trained()) if measure is not None else more
                rate = (self.tokens_seen - tokens) / (now - clock)
                factor = self.config.rate(self.step - 1)
                point = TrainPoint(
                    self.step, self.tokens_seen, loss, held_losses[0], factor, rate, held_losses[1], more
                )
                self.curve.append(point)
                self.recent_losses, tokens, clock = [], self.tokens_seen, time.monotonic()
                try:
                    on_point(point)
                except BaseException:  # the run was interrupted: save, so that no step is repeated
                    self.save()
                    raise
            if time.monotonic() - saved_at > self.options.checkpoint_seconds:
                self.save()
                saved_at = time.monotonic()


def build_follower(
    trainer_type: Callable[..., Trainer],
    arguments: tuple[Any, ...],
    options: TrainerOptions,
    extra: dict[str, Any],
    rank: int,
    device: str,
) -> Callable[[Ranks], None]:
    """Build the trainer of process `rank` on its device; return its loop."""
    return trainer_type(*arguments, replace(options, rank=rank, device=device), **extra).follow
