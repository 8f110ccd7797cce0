"""`train`: training of a model from scratch, resumable at the exact next batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import chess
import numpy as np
from pydantic import Field

from chessreg.encodings import get_encoding, list_encodings
from chessreg.encodings.fen77 import Fen77
from chessreg.errors import BadInputError
from chessreg.experiments.settings.corpora import TrainingData, identify_encoding
from chessreg.experiments.settings.decisions import Decisions, load_decisions
from chessreg.experiments.settings.parallel import ModelTrainingOptions
from chessreg.games.datasets.dataset import convert_column_to_numpy
from chessreg.models.train_config import (
    BranchTraining,
    PositionTraining,
    SearchlessTraining,
    TextTraining,
    TrainConfig,
)
from chessreg.noise import Stream
from chessreg.runs.cost import POSITION_TOKENS
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import AtMost, Ref, Spec

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games
    from chessreg.models.branches import BranchCorpus
    from chessreg.models.corpus import Corpus, PositionCorpus
    from chessreg.models.training import TrainPoint
    from chessreg.runs.task import Task
    from store.corpora import Columns, CorpusWriter

MAX_PARAMETERS = 10**11
DatasetRefs = Annotated[tuple[str, ...], Ref("dataset")]
SEED = Field(TrainConfig.seed, description="seed of initial weights and of the order of the data (the author's)")


class AnyTraining(Spec):
    """Settings of every training that are not in its `TrainConfig`."""

    datasets: DatasetRefs = Field(
        description="games or positions to train on, datasets or parts (NAME:PART), comma-separated"
    )
    heldout: Annotated[str | None, Ref("dataset")] = Field(
        None, description="games or positions for the held-out loss. Left out: no held-out loss"
    )
    heldout_steps: int = Field(500, ge=1, description="steps between held-out losses")

    @property
    def draw_seed(self) -> int:
        """The seed of all draws. A replicate has other initial weights and another order of the data."""
        return self.seed + self.replicate


class MovesOfPositions(AnyTraining):
    """Settings of training on positions with best moves, with held-out positions chosen by number and by game."""

    heldout_source_games: Annotated[str | None, Ref("dataset")] = Field(
        None, description="games of the held-out positions. Left out: --source-games"
    )
    heldout_moves: int = Field(
        0,
        ge=0,
        le=8000,
        description="held-out positions on which legal moves are counted as well; 0: all "
        "held-out positions, without counting",
    )
    heldout_order: Literal["file", "drawn"] = Field(
        "file",
        description="order in which --heldout-moves are chosen: file order, which may cover few games, or an "
        "order drawn by game and ply that is the same for every seed",
    )


class GamesEncoding(Spec):
    """The encoding of games for a GPT-2."""

    encoding: str = Field("pgn-char-32", description=f"how games are written: {', '.join(list_encodings())}")

    @property
    def explicit_attention(self) -> bool:
        """Whether attention is computed by explicit matrix products instead of a fused kernel."""
        # runs of this encoding keep the attention kernel, and with it the digits, of earlier versions
        return self.encoding != "pgn-char-32"


class TextSpec(GamesEncoding, AnyTraining, TextTraining):
    seed: int = SEED
    architecture: Literal["gpt2"] = Field(description="a GPT-2 learns the next token of games")
    min_characters: int = Field(60, ge=2, description="leave out shorter game texts, in characters")


class BranchSpec(GamesEncoding, MovesOfPositions, BranchTraining):
    seed: int = SEED
    architecture: Literal["gpt2-best-moves"] = Field(
        description="a GPT-2 reads games, and learns the best move at positions of them"
    )
    source_games: Annotated[str, Ref("dataset")] = Field(
        description="games of the positions in --datasets. Left out: the positions alone"
    )


class PositionSpec(MovesOfPositions, PositionTraining):
    seed: int = SEED
    architecture: Literal["fen-encoder"] = Field(description="a FEN encoder, causal or bidirectional, learns moves")
    target: Literal["best", "played"] = Field("best", description="move to predict; for games: the played one")
    min_characters: int = Field(60, ge=2, description="for games: leave out shorter game texts, in characters")
    source_games: Annotated[str | None, Ref("dataset")] = Field(
        None, description="of positions: the games that they are of; only positions of these games are learned"
    )

    @property
    def encoding(self) -> str:
        return Fen77.name

    @property
    def explicit_attention(self) -> bool:
        return True


class SearchlessSpec(AnyTraining, SearchlessTraining):
    seed: int = SEED
    architecture: Literal["searchless-chess"] = Field(
        description="DeepMind's transformer of positions learns moves, or win probabilities of a bag"
    )

    @property
    def encoding(self) -> str:
        return Fen77.name


TrainSpec = Annotated[TextSpec | BranchSpec | PositionSpec | SearchlessSpec, Field(discriminator="architecture")]


class TrainOptions(ModelTrainingOptions):
    micro_tokens: Annotated[int, AtMost(1_000_000_000, "more tokens do not fit in memory")] = Field(
        16_384,
        ge=64,
        description="maximum characters in one forward pass of each device; a larger batch is split, and its gradients "
        "are accumulated",
    )


DAVIS: dict[str, Any] = {  # Davis's published train-chess-gpt.py; the number of steps is reconstructed
    "architecture": "gpt2", "encoding": "uci-square-72", "min_characters": 2, "n_layer": 12, "n_head": 12,
    "n_embd": 768, "block_size": 512, "activation": "gelu_new", "biases": True, "dropout": 0.1, "packing": "stream",
    "steps": 4_100_000, "batch_tokens": 3072, "learning_rate": 2e-4, "warmup_steps": 0, "final_fraction": 0.0,
    "weight_decay": 0.01, "beta2": 0.999,
}  # fmt: skip
# a model for two CPU cores; one game per row, so that prompts begin at position 0
DAVIS_SMALL: dict[str, Any] = DAVIS | {
    "n_layer": 8, "n_head": 6, "n_embd": 192, "block_size": 255, "dropout": 0.0, "packing": "games", "steps": 17_000,
    "batch_tokens": 4096, "learning_rate": 1e-3, "warmup_steps": 300,
}  # fmt: skip


AUTHOR: dict[str, Any] = {  # Junkin's public code and its logs
    "architecture": "fen-encoder", "attention": "bidirectional", "embedding": "tied",
    "n_layer": 8, "n_head": 8, "n_embd": 512, "batch_moves": 2048, "steps": 600_000, "learning_rate": 3e-4,
    "warmup_steps": 2000, "final_fraction": 0.1, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0,
}  # fmt: skip
JUNKIN: dict[str, dict[str, Any]] = {
    "junkin-author-2025": AUTHOR,
    "junkin-paper": AUTHOR | {"steps": 200_000},  # section 4.1 of the paper; its logs have 600,000
    "junkin-corrected": AUTHOR | {"embedding": "own"},
}


RUOSS: dict[str, Any] = {  # the 9M model; Adam at a constant rate. The paper also keeps an average of the weights
    "architecture": "searchless-chess", "head": "action-value", "n_layer": 8, "n_head": 8, "n_embd": 256,
    "batch_moves": 4096, "steps": 10_000_000, "learning_rate": 1e-4, "warmup_steps": 0, "final_fraction": 1.0,
    "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "grad_clip": 1.0,
}  # fmt: skip


class Train(Kind):
    """Train a model from scratch, of any size.

    A GPT-2 on games (Karvonen 2024, section 2 and Table 5; Davis 2026), a FEN encoder, causal or bidirectional, on
    positions (Junkin 2025), or DeepMind's transformer on moves or win probabilities (Ruoss et al. 2024). A GPT-2 on
    best moves is the FEN encoders' twin: it reads the game of its positions once, and each best move is a branch that
    sees only the game before it.

    The whole training is one unit. Its state is saved every few minutes in the run's folder, and an interrupted run
    resumes with the exact next batch. The checkpoint is the output `checkpoint`, in Hugging Face format.
    """

    name = "train"
    main_settings = (
        "n_layer",
        "n_head",
        "n_embd",
        "block_size",
        "steps",
        "batch_tokens",
        "batch_moves",
        "learning_rate",
        "heldout",
        "encoding",
    )
    example = (
        "--architecture gpt2 --datasets sample:fit --heldout sample:test --n-layer 2 --n-head 2 --n-embd 32 "
        "--block-size 255 --steps 20 --batch-tokens 2048 --warmup-steps 5"
    )
    tables = ("metric_point",)
    spec = TrainSpec
    options = TrainOptions
    makes_checkpoint = True
    states = ("state.pt",)
    clocked = ("tokens_per_second",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "davis": DAVIS,
        "davis-small": DAVIS_SMALL,
        "ruoss-9m": RUOSS,
    } | JUNKIN
    determinism = "statistical"  # exact on one machine with one thread count; kernels differ elsewhere

    def replays(self, spec: TrainSpec) -> bool:
        return True

    def units(self, spec: TrainSpec, inputs: Inputs) -> int:
        if spec.n_embd % spec.n_head:
            raise BadInputError(f"--n-embd {spec.n_embd} is not a multiple of --n-head {spec.n_head}")
        if (parameters := count_parameters(spec)) > MAX_PARAMETERS:
            raise BadInputError(
                f"--n-layer and --n-embd give {parameters:.2g} parameters, more than {MAX_PARAMETERS:.0e}",
                "lower one of them",
            )
        check_architecture(spec)
        references = [(reference, "datasets") for reference in spec.datasets]
        for reference, field in [*references, *([(spec.heldout, "heldout")] if spec.heldout else [])]:
            if (games := get_source_games(spec, field)) is not None:
                inputs.dataset(games, get_source_field(field))
            if isinstance(spec, TextSpec):
                inputs.dataset(reference, field)
            elif isinstance(spec, SearchlessSpec):
                check_training_positions(spec, reference, inputs, field)
            elif getattr(spec, "target", "best") == "best" and inputs.items(reference, field)[0].content == "games":
                hint = "give --target played, or a dataset of positions"
                raise BadInputError("a dataset of games has no best moves", hint)
        return 1

    def check(self, spec: TrainSpec, inputs: Inputs) -> None:
        """Raise BadInputError if the games are too few to fill one row."""
        if not isinstance(spec, TextSpec) or spec.packing == "games":
            return
        needed_tokens, available_tokens = spec.block_size + (spec.packing == "blocks"), 0
        for reference in spec.datasets:
            games, part = inputs.dataset(reference, "datasets")
            if len(games.rows(part)) >= needed_tokens:
                return  # counting their tokens would take long; Trainer finds out if most of them are copies
            available_tokens += sum(len(ids) for ids, _ in encode_games(spec, reference, inputs, "datasets"))
        if available_tokens < needed_tokens:
            hint = (
                f"give --block-size {available_tokens // 2}, --packing games, or more games"
                if available_tokens >= 16
                else "add more games"
            )
            raise BadInputError(
                f"the games have {available_tokens:,} tokens, but --packing {spec.packing} needs {needed_tokens:,}",
                hint,
            )

    def check_options(self, spec: TrainSpec, options: TrainOptions) -> None:
        if options.fsdp and isinstance(spec, BranchSpec):
            hint = "leave it out: --devices alone divides each batch"
            raise BadInputError(f"--fsdp does not support --architecture {spec.architecture}", hint)

    def estimate(self, spec: TrainSpec, inputs: Inputs) -> RunEstimate:
        parameters = count_parameters(spec)
        if isinstance(spec, TextSpec):
            tokens = spec.steps * spec.batch_tokens
            remark = f"about {tokens:,} characters, {6 * parameters * tokens:.2g} floating-point operations"
        else:
            tokens = spec.steps * spec.batch_moves * (1 if isinstance(spec, BranchSpec) else POSITION_TOKENS)
            remark = f"about {spec.steps * spec.batch_moves:,} moves to predict"
        return RunEstimate({"metric_point": spec.steps // 20 * 3}, parameters * 4, (remark,), 6.0 * parameters * tokens)

    def run(self, task: Task[TrainSpec, TrainOptions]) -> None:
        with task.lock_states(*self.states):
            self.train(task)

    def train(self, task: Task[TrainSpec, TrainOptions]) -> None:
        """Train from the last saved state, then emit the curve and publish the checkpoint. Raises StopRequest after a
        signal."""
        from chessreg.models.branches import BranchTrainer
        from chessreg.models.devices import prepare_device
        from chessreg.models.ranks import run_ranks
        from chessreg.models.training import Trainer

        spec = task.spec
        options = task.options.trainer_options(
            prepare_device(task.options.device, task.options.threads), task.options.micro_tokens
        )
        corpus = build_corpus(spec, TrainingData.from_task(task, spec.datasets))
        trainer_type: type[Trainer] = BranchTrainer if isinstance(spec, BranchSpec) else Trainer
        trainer = trainer_type(spec, corpus, task.folder, options)  # type: ignore[arg-type]
        heldout = build_corpus(spec, TrainingData.from_task(task, (spec.heldout,), "heldout")) if spec.heldout else None
        measures_heldout_moves = isinstance(spec, MovesOfPositions) and spec.heldout_moves
        measure = make_heldout_measure(spec, task.inputs) if measures_heldout_moves else None  # type: ignore[arg-type]

        task.resume(trainer.step / spec.steps)

        def on_point(point: TrainPoint) -> None:
            token_noun = "characters" if isinstance(spec, TextSpec) else "moves"
            text = f"loss {point.loss:.4f}, {point.tokens_per_second:,.0f} {token_noun}/s"
            task.progress(point.step / spec.steps, text)

        with run_ranks(trainer, task.options.devices):
            trainer.run(on_point, heldout, spec.heldout_steps, lambda: task.stopping, measure)
        task.progress(trainer.step / spec.steps, "")  # raises StopRequest after a signal
        for point in trainer.curve:
            emit_train_point(task, point)
        publish_trained(task, trainer)
        task.done(0)


def check_training_positions(spec: SearchlessSpec, reference: str, inputs: Inputs, field: str) -> None:
    """Raise BadInputError for a dataset without positions that have the columns to predict."""
    items, part = inputs.items(reference, field)
    needed_columns = LABEL_COLUMNS[spec.head]
    if items.content == "games":
        raise BadInputError(
            f"games have no {' and no '.join(needed_columns)}", "give a dataset of positions, such as a bag"
        )
    places = items.rows(part)
    if not all(items.take(places, [name])[name].null_count < len(places) for name in needed_columns):
        raise BadInputError(
            f"--head {spec.head} learns from positions with {' and '.join(needed_columns)}, and no position has both"
            if len(needed_columns) > 1
            else f"--head {spec.head} learns from positions with {needed_columns[0]}, and no position has it",
            "chessreg dataset show NAME",
        )


def count_parameters(spec: TrainSpec) -> int:
    """Return the approximate number of weights of the blocks."""
    return 12 * spec.n_layer * spec.n_embd**2


def check_architecture(spec: TrainSpec) -> None:
    """Raise BadInputError if the encoding or the held-out data do not fit the other settings."""
    if isinstance(spec, SearchlessSpec) and spec.dropout:
        raise BadInputError("--dropout is not available for this architecture", "leave --dropout out")
    if isinstance(spec, GamesEncoding) and get_encoding(spec.encoding).content != "history":
        raise BadInputError(f"--encoding {spec.encoding} writes positions", "give --architecture fen-encoder")
    if not isinstance(spec, MovesOfPositions):
        return
    if isinstance(spec, PositionSpec) and spec.target != "best" and (spec.source_games or spec.heldout_moves):
        hint = "leave them out, or leave out --target"
        raise BadInputError("--source-games and --heldout-moves need positions with best moves", hint)
    if (spec.heldout_source_games is not None or spec.heldout_moves) and not spec.heldout:
        raise BadInputError("--heldout-source-games and --heldout-moves need held-out positions", "give --heldout")
    if isinstance(spec, BranchSpec) and spec.heldout and spec.heldout_source_games is None:
        raise BadInputError("the games of the held-out positions are missing", "give --heldout-source-games")
    if spec.heldout_order != "file" and not spec.heldout_moves:
        raise BadInputError("--heldout-order has no effect if all held-out positions are used", "give --heldout-moves")


def build_corpus(spec: TrainSpec, data: TrainingData) -> Corpus | PositionCorpus | BranchCorpus:
    """Return datasets as token ids, in their order, without short games and copies.

    A stream is cut for training only; held-out games are read one by one. Branches are in memory, everything else is
    mapped from files that later runs use again.
    """
    if isinstance(spec, BranchSpec):
        return build_branch_corpus(spec, data)
    if isinstance(spec, SearchlessSpec):
        return build_labelled_corpus(spec, data)
    if isinstance(spec, PositionSpec):
        has_heldout_moves = data.field == "heldout" and spec.heldout_moves
        has_decisions = get_source_games(spec, data.field) is not None or has_heldout_moves
        return (build_decision_corpus if has_decisions else build_position_corpus)(spec, data)
    corpus = build_game_corpus(spec, data)
    return corpus.stream(spec.block_size) if spec.packing == "stream" and data.field == "datasets" else corpus


def build_game_corpus(spec: TextSpec, data: TrainingData) -> Corpus:
    """Return the selected games of these datasets. Raises BadInputError if there are none."""
    from chessreg.models.corpus import Corpus

    encoding = get_encoding(spec.encoding)

    def write(writer: CorpusWriter) -> None:
        writer.append("offsets", np.zeros(1, np.int64))
        for reference in data.references:
            for ids, lengths in encode_games(spec, reference, data.inputs, data.field):
                writer.append("offsets", writer.rows["tokens"] + np.cumsum(lengths))
                writer.append("tokens", ids)
                data.report(f"preparing games: {writer.rows['offsets'] - 1:,}")
        if not writer.rows["tokens"]:
            raise BadInputError(f"--min-characters {spec.min_characters}: no game text is that long")

    dtype = np.uint8 if encoding.size <= 1 << 8 else np.uint16 if encoding.size <= 1 << 16 else np.int32
    description = {
        "content": "games",
        "encoding": encoding.name,
        "encoding_sha256": identify_encoding(encoding),
        "min_characters": spec.min_characters,
    }
    arrays = data.open_corpus(description, {"tokens": (dtype, ()), "offsets": (np.int64, ())}, write)
    return Corpus(arrays["tokens"], arrays["offsets"], encoding.size)


def encode_games(spec: TextSpec, reference: str, inputs: Inputs, field: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the token ids of the selected games of a dataset, and their lengths, some thousand games at a time."""
    for games, places in iterate_training_games(spec, reference, inputs, field):
        encoded_games = get_encoding(spec.encoding).games(games, places)
        yield encoded_games.ids, np.diff(encoded_games.offsets)


def iterate_training_games(
    spec: TextSpec | PositionSpec, reference: str, inputs: Inputs, field: str
) -> Iterator[tuple[Games, np.ndarray]]:
    """Yield the games of the dataset `reference` with rows int [n] of those to train on, some thousand rows at a time.
    Duplicates and games with fewer than `spec.min_characters` are left out. `field` is the setting that names the
    dataset, for errors."""
    import pyarrow.compute as pc

    games, part = inputs.dataset(reference, field)
    for places, table in games.iterate_rows(part, ["duplicate", "text"]):
        is_long = convert_column_to_numpy(pc.greater_equal(pc.utf8_length(table["text"]), spec.min_characters))
        selected_places = places[is_long & ~convert_column_to_numpy(table["duplicate"])]
        if len(selected_places):
            yield games, selected_places


def open_position_corpus(
    data: TrainingData,
    description: Mapping[str, Any],
    write: Callable[[CorpusWriter], None],
    missing_message: str,
    tokens: tuple[type[np.generic], int] = (np.uint8, Fen77.length),
) -> PositionCorpus:
    """Return the positions that `write` makes of these datasets; `tokens` is the dtype and the length of one position.

    Raises BadInputError with the message `missing_message` if there are none.
    """
    from chessreg.models.corpus import PositionCorpus

    dtype, length = tokens

    def write_some(writer: CorpusWriter) -> None:
        write(writer)
        if not writer.rows["actions"]:
            raise BadInputError(missing_message, "chessreg dataset show NAME")

    full_description = {"content": "positions", "encoding_sha256": identify_encoding(Fen77()), **description}
    columns: Columns = {"tokens": (dtype, (length,)), "actions": (np.int16, ())}
    return PositionCorpus(**data.open_corpus(full_description, columns, write_some))


def append_positions(data: TrainingData, writer: CorpusWriter, tokens: np.ndarray, actions: Any) -> None:
    """Append `tokens` [n, 77 or 78] and labels `actions` [n] to the corpus of `writer`, and report progress."""
    writer.append("tokens", tokens)
    writer.append("actions", np.asarray(actions, np.int16))
    data.report(f"preparing positions: {writer.rows['actions']:,}")


def build_position_corpus(spec: PositionSpec, data: TrainingData) -> PositionCorpus:
    """Return every position of these datasets, with the action to predict: the best or the played move.

    Copies of an earlier position in datasets of positions are left out. Raises BadInputError if no position has such a
    move.
    """
    fen = Fen77()

    def write(writer: CorpusWriter) -> None:
        repeated_positions = data.find_repeated_positions(writer.folder / "hashes")
        for reference in data.references:
            if data.inputs.items(reference, data.field)[0].content == "games":
                for tokens, actions in encode_played_moves(spec, reference, data):
                    append_positions(data, writer, tokens, actions)
                continue
            for table in data.iterate_new_positions(reference, ["fen", spec.target], repeated_positions):
                labelled_rows = table.filter(table[spec.target].is_valid())
                tokens = fen.boards(labelled_rows["fen"].to_pylist()).ids.reshape(-1, fen.length)
                moves = labelled_rows[spec.target].to_pylist()
                append_positions(data, writer, tokens, [encode_action(fen, move) for move in moves])

    description = {"target": spec.target, "min_characters": spec.min_characters}
    return open_position_corpus(data, description, write, f"no position has a {spec.target} move")


def encode_played_moves(
    spec: PositionSpec, reference: str, data: TrainingData
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the positions of a dataset of games with the moves played in them, 2,000 games at a time."""
    fen = Fen77()
    for games, places in iterate_training_games(spec, reference, data.inputs, data.field):
        for start in range(0, len(places), 2_000):
            part = places[start : start + 2_000]
            encoded_games = fen.games(games, part)
            played_codes = [np.frombuffer(packed_moves, "<u2") for packed_moves in games.moves(part)]
            has_next_move = encoded_games.ply < np.array([len(codes) for codes in played_codes])[encoded_games.source]
            yield (
                encoded_games.ids.reshape(-1, fen.length)[has_next_move],
                fen.encode_actions(np.concatenate(played_codes)),
            )


LABEL_COLUMNS = {"action": ("best",), "action-value": ("action", "win_prob"), "state-value": ("win_prob",)}
"""Head → the columns of a position that it learns from. If an action is given, the win probability is that of the
action."""


def build_labelled_corpus(spec: SearchlessSpec, data: TrainingData) -> PositionCorpus:
    """Return the positions of these datasets that have the columns to predict: best moves, or buckets of win
    probabilities.

    Raises BadInputError if no position has them.
    """
    from chessreg.models.decoding.values import find_buckets

    fen, has_actions = Fen77(), spec.head == "action-value"

    def write(writer: CorpusWriter) -> None:
        for reference in data.references:
            items, part = data.inputs.items(reference, data.field)
            for _, table in items.iterate_rows(part, ["fen", "best", "action", "win_prob"]):
                has_labels = np.logical_and.reduce(
                    [convert_column_to_numpy(table[name].is_valid()) for name in LABEL_COLUMNS[spec.head]]
                )
                if spec.head == "state-value":
                    has_labels &= convert_column_to_numpy(table["action"].is_null())
                labelled_rows = table.take(np.flatnonzero(has_labels))
                tokens = fen.boards(labelled_rows["fen"].to_pylist()).ids.reshape(-1, fen.length).astype(np.uint16)
                if has_actions:
                    actions = [encode_action(fen, move) for move in labelled_rows["action"].to_pylist()]
                    tokens = np.concatenate([tokens, np.array(actions, np.uint16)[:, None]], 1)
                if spec.head == "action":
                    append_positions(
                        data, writer, tokens, [encode_action(fen, m) for m in labelled_rows["best"].to_pylist()]
                    )
                else:
                    chances = np.array(labelled_rows["win_prob"].to_pylist(), np.float64)
                    append_positions(data, writer, tokens, find_buckets(chances, spec.buckets))

    missing_message = f"no position has the columns that --head {spec.head} learns from"
    description = {"head": spec.head, "buckets": spec.buckets}
    return open_position_corpus(data, description, write, missing_message, (np.uint16, fen.length + has_actions))


def get_source_games(spec: AnyTraining, field: str) -> str | None:
    """Return the dataset of games from which the positions of the setting `field` (`datasets` or `heldout`) come, or
    None."""
    name = get_source_field(field)
    return getattr(spec, name) if isinstance(spec, MovesOfPositions) else None


def get_source_field(field: str) -> str:
    """Return the setting that has the source games of the datasets in a setting."""
    return "source_games" if field == "datasets" else "heldout_source_games"


def select_training_decisions(spec: MovesOfPositions, reference: str, inputs: Inputs, field: str) -> Decisions:
    """Return the positions of a dataset to train on, or held out. A position that occurs twice is two decisions."""
    decisions = load_decisions(inputs, reference, get_source_games(spec, field), field, get_source_field(field))
    if field == "heldout":
        inputs.note_shortage(spec, "heldout_moves", len(decisions))
    if field != "heldout" or not 0 < spec.heldout_moves < len(decisions):
        return decisions
    order = decisions.draw_order(Stream.HELDOUT) if spec.heldout_order == "drawn" else np.arange(len(decisions))
    return decisions.select(np.sort(order[: spec.heldout_moves]))


def build_decision_corpus(spec: PositionSpec, data: TrainingData) -> PositionCorpus:
    """Return the decisions of these datasets as training data of a FEN encoder."""
    fen = Fen77()

    def write(writer: CorpusWriter) -> None:
        for reference in data.references:
            decisions = select_training_decisions(spec, reference, data.inputs, data.field)
            for start in range(0, len(decisions), 10_000):
                table = decisions.select(np.arange(start, min(start + 10_000, len(decisions)))).read_columns(
                    "fen", "best"
                )
                tokens = fen.boards(table["fen"]).ids.reshape(-1, fen.length)
                append_positions(data, writer, tokens, [encode_action(fen, move) for move in table["best"]])

    description: dict[str, Any] = {"source_games": get_source_games(spec, data.field)}
    if data.field == "heldout":
        description |= {"heldout_moves": spec.heldout_moves, "heldout_order": spec.heldout_order}
    return open_position_corpus(data, description, write, "no position has a best move")


def build_branch_corpus(spec: BranchSpec, data: TrainingData) -> BranchCorpus:
    """Return decisions as branches of their games. Raises BadInputError for a game longer than the context."""
    from chessreg.models.branches import BranchCorpus

    every = [select_training_decisions(spec, reference, data.inputs, data.field) for reference in data.references]
    encoding = get_encoding(spec.encoding)
    ids, lengths, games, prompt_lengths, answers, before = [], [np.zeros(1, np.int64)], [], [], [], 0
    for each in every:
        prompt_ids, offsets, places, item = each.encode_histories(encoding)
        ids.append(prompt_ids)
        lengths.append(np.diff(offsets))
        games.append(item + before)
        prompt_lengths.append(places)
        before += len(offsets) - 1
        table = each.read_columns("fen", "best")
        for text, move in zip(table["fen"], table["best"], strict=True):
            answers.append(np.array(encoding.answer(chess.Board(text), chess.Move.from_uci(move)), np.uint8))
    offsets = np.cumsum([0, *map(len, answers)])
    corpus = BranchCorpus(
        np.concatenate(ids), np.cumsum(np.concatenate(lengths)), np.concatenate(games), np.concatenate(prompt_lengths),
        np.concatenate(answers), offsets, encoding.size,
    )  # fmt: skip
    if corpus.longest > spec.block_size:
        hint = f"--block-size {corpus.longest}"
        raise BadInputError(f"--block-size {spec.block_size:,}: a move comes after {corpus.longest:,} tokens", hint)
    return corpus


def make_heldout_measure(spec: BranchSpec | PositionSpec, inputs: Inputs) -> Callable[[Any], Mapping[str, float]]:
    """Return a function that measures a model on the held-out positions: shares of legal and best moves, 0 to 1."""
    from chessreg.experiments.move_accuracy import judge_decisions
    from chessreg.models.checkpoint import CheckpointInfo
    from chessreg.models.language_model import LanguageModel

    assert spec.heldout is not None
    heldout_decisions = select_training_decisions(spec, spec.heldout, inputs, "heldout")

    def measure(network: Any) -> Mapping[str, float]:
        model = LanguageModel(network, CheckpointInfo.from_network(network, spec.encoding))
        verdicts = [verdict for _, verdict in judge_decisions(model, heldout_decisions)]
        names = {"valid": "valid", "legal": "legal", "legal_best": "best_of_legal", "mass": "legal_mass"}
        metric_means = {
            metric: float(np.mean([getattr(each, name) for each in verdicts])) for name, metric in names.items()
        }
        return {f"heldout_{name}": value for name, value in metric_means.items()}

    return measure


def encode_action(fen: Fen77, uci: str) -> int:
    """Return the action of a move in UCI. Raises BadInputError for a move without an action."""
    if uci not in fen.action_ids:
        raise BadInputError(f"{uci} is not one of the {fen.answer_size:,} actions of {fen.name}")
    return fen.action_ids[uci]


def emit_train_point(task: Task[TrainSpec, TrainOptions], point: TrainPoint) -> None:
    """Emit the values of one point of the training curve as metrics of unit 0."""
    values = {
        "loss": point.loss,
        "heldout_loss": point.heldout_loss,
        "heldout_accuracy": point.heldout_accuracy,
        "tokens_seen": float(point.tokens_seen),
        "tokens_per_second": point.tokens_per_second,
        **point.measured,
    }
    for name, value in values.items():
        if value is not None:
            task.emit("metric_point", 0, name=name, step=point.step, value=float(value))


def publish_trained(task: Task[TrainSpec, TrainOptions], trainer: Any) -> None:
    """Publish the trained model as the output `checkpoint`, and record its row."""
    from chessreg.entities.checkpoint import build_checkpoint_row, build_tokenizer_row
    from chessreg.models.checkpoint import CheckpointInfo, read_info, save_checkpoint

    spec = task.spec
    model = trainer.copy_trained()
    source = {"format": "chessreg-train", "spec_hash": task.resolved.spec_hash, "finished": time.strftime("%Y-%m-%d")}
    source |= {} if trainer.tokens_read is None else {"tokens_read": trainer.tokens_read}
    info = CheckpointInfo.from_network(model, spec.encoding, tokens_seen=trainer.tokens_seen, source=source)
    with task.output("checkpoint", 0, "checkpoint") as folder:
        save_checkpoint(model, folder, info)
        info = read_info(folder)
    task.record("tokenizer", of_unit=0, **build_tokenizer_row(spec.encoding))
    task.record(
        "checkpoint",
        of_unit=0,
        **build_checkpoint_row(
            info,
            task.last_output.digest,
            training_datasets=[games] if (games := get_source_games(spec, "datasets")) else list(spec.datasets),
            run_id=task.run_id,
        ),
    )
