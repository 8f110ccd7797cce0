"""The registry of import formats, and the steps of every import: recognize, read, verify logits, save."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import chess

from chessreg.encodings import Encoding, list_encodings
from chessreg.encodings import get_encoding as encoding_named
from chessreg.encodings.move_tokens import MoveTokens
from chessreg.encodings.prompts import PromptEncoding
from chessreg.errors import (
    DAMAGE_ERRORS,
    BadInputError,
    NotFoundError,
    get_first_line,
    reraise_lack_of_memory,
)
from chessreg.models.checkpoint import INFO, CheckpointInfo, compute_checkpoint_digest, read_info, save_checkpoint
from chessreg.models.importers.game_check import GameCheck, check_on_games, measure_loss_on_games
from chessreg.models.importers.onnx_graph import OnnxGraph, find_config_folder
from chessreg.models.importers.source import NO_SETTINGS, CheckpointSource, UnrecordedSettings, open_checkpoint
from chessreg.models.importers.vocabulary import (
    META,
    TokenRows,
    Vocabulary,
    find_inner_vocabulary,
    list_vocabulary_files,
    match_encoding,
    read_vocabulary,
)
from chessreg.named import NameRegistry

if TYPE_CHECKING:
    from torch import Tensor, nn

    from chessreg.models.adapters.base import Network

LARGEST_DIFFERENCE = 1e-4  # in logits; a correct conversion has about 1e-12 in float64, a wrong GELU 5e-3
LARGEST_RELATIVE_DIFFERENCE = 1e-3  # relative to the largest logit, in float32
EXACT_PARAMETERS = 1 << 28  # a larger model is compared in float32, to save memory
MAIA2 = "maia-2"
"""The encoding of Maia-2 models, which no other model reads."""
PADDED_TO = (8, 16, 32, 64, 128)
"""Multiples to which the rows of an embedding are rounded up for speed."""


@dataclass(frozen=True)
class Imported:
    """The result of a format's reader.

    `model` is the conversion; `reference` computes logits float64 [batch, length, vocab] from the raw weights without
    it.
    """

    model: Network
    reference: Callable[[Tensor], Tensor]
    residual: Literal["raw", "centred"] = "raw"
    tokens_shape: tuple[int | None, int | None] = (None, None)
    """Batch and length that the reference requires, None if any."""
    is_rounded: bool = False
    """Whether the reference has constants in float16, so that its logits differ by more than an exact conversion's."""
    tokens_seen: int | None = None
    source: dict[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    """Sentences that inform the user about this import."""


class ImportFormat(Protocol):
    """A checkpoint format. To add one, put a file in this folder that calls `register_format`."""

    name: str

    def recognises(self, source: CheckpointSource) -> bool:
        """Return whether the content (never the file's name) has this format."""

    def encoding_of(self, source: CheckpointSource) -> str | None:
        """Return the encoding of all models of this format; None if a vocabulary or the user names it."""

    def read(self, source: CheckpointSource) -> Imported:
        """Return the import. Raises BadInputError that names the problem."""


@dataclass(frozen=True)
class ImportReport:
    """An import: the greatest |Δ| between its logits and the original's on fixed tokens, and its results on the sample
    games."""

    format: str
    folder: Path
    info: CheckpointInfo
    digest: str
    max_logit_difference: float
    tokens_compared: int
    games: GameCheck
    remarks: Sequence[str]


FORMATS: NameRegistry[ImportFormat] = NameRegistry("import format")


def register_format(format: ImportFormat) -> None:
    """Register a format under its name; later formats are tried first. Raises ValueError if the name is taken."""
    FORMATS[format.name] = format


def convert_checkpoint(
    path: Path,
    folder: Path,
    *,
    encoding: str | Encoding | None = None,
    format: str | None = None,
    vocabulary: Path | None = None,
    settings: UnrecordedSettings = NO_SETTINGS,
) -> ImportReport:
    """Convert the checkpoint at `path` into `folder` (layout: checkpoint.py).

    `encoding` defaults to that of the format, of a folder saved by chessreg, or of the vocabulary, else pgn-char-32.
    `vocabulary` is a file or folder with the order of the tokens, for a checkpoint that has none next to it; `settings`
    are settings that the file does not record. The format is recognized by content unless named. Tokens are brought
    into the encoding's order. No weights are written unless the conversion's logits agree with an independent forward
    pass over the raw weights. A pickle that would execute code is refused.

    Raises NotFoundError for a missing path, BadInputError for an unknown or damaged format, wrong shapes or vocabulary,
    and NaN.
    """
    from chessreg.models.language_model import LanguageModel

    path = Path(path)
    source = open_checkpoint(path, settings)
    file_format = recognize_format(source, format)
    resolved_encoding, rows = resolve_encoding(source, choose_encoding(source, file_format, encoding), vocabulary)

    if isinstance(resolved_encoding, PromptEncoding | MoveTokens):
        folder.mkdir(parents=True, exist_ok=True)
        resolved_encoding.save(folder)

    def loss(model: Network) -> float | None:
        reordered_model = reorder_tokens(
            model, fit_rows(resolved_encoding, rows, model, path, is_named=encoding is not None)
        )
        return measure_loss_on_games(
            LanguageModel(
                reordered_model, CheckpointInfo.from_network(reordered_model, resolved_encoding.name), folder=folder
            )
        )

    try:
        result = file_format.read(dataclasses.replace(source, loss=loss))
        rows = fit_rows(resolved_encoding, rows, result.model, path, is_named=encoding is not None)
        model = reorder_tokens(result.model, rows)
        difference, largest, token_count = compare_logits(result, model, rows)
    except DAMAGE_ERRORS as error:  # a shape, key or type that the format's reader did not expect
        reraise_lack_of_memory(error)
        reason = f"{type(error).__name__} {get_first_line(error)}"
        raise BadInputError(f"{path.name} is damaged or not a {file_format.name} checkpoint: {reason}") from error
    exact = is_compared_exactly(model) and not result.is_rounded
    if not difference <= (LARGEST_DIFFERENCE if exact else LARGEST_RELATIVE_DIFFERENCE * largest):
        raise BadInputError(f"{path.name}: the converted model's logits differ by {difference:.2g}")
    origin = {"format": file_format.name, "file": path.name, "sha256": compute_sha256(path), **result.source}
    origin |= {"tokenizer": rows.as_json()} if rows else {}
    info = CheckpointInfo.from_network(
        model, resolved_encoding.name, residual=result.residual, tokens_seen=result.tokens_seen, source=origin
    )
    save_checkpoint(model, folder, info)
    games = check_on_games(LanguageModel(model, info, folder.name, folder))
    return ImportReport(
        file_format.name,
        folder,
        info,
        compute_checkpoint_digest(folder),
        difference,
        token_count,
        games,
        result.remarks,
    )


def check_import(
    path: Path,
    encoding: str | Encoding | None = None,
    vocabulary: Path | None = None,
    settings: UnrecordedSettings = NO_SETTINGS,
) -> None:
    """Raise the errors of `convert_checkpoint` for an unknown format, an unknown encoding and an unsuitable
    vocabulary."""
    source = open_checkpoint(path, settings)
    resolve_encoding(source, choose_encoding(source, recognize_format(source), encoding), vocabulary)


def choose_encoding(
    source: CheckpointSource, format: ImportFormat, encoding: str | Encoding | None
) -> str | Encoding | None:
    """Return the given encoding, else that of the format. Raises BadInputError if they differ, and for ratings given to
    a model that reads none."""
    format_encoding = format.encoding_of(source)
    if (
        format_encoding is not None
        and encoding is not None
        and format_encoding != (encoding if isinstance(encoding, str) else encoding.name)
    ):
        raise BadInputError(
            f"{source.path.name} is a {format.name} checkpoint, which reads {format_encoding}",
            f"--encoding {format_encoding}, or leave out --encoding",
        )
    if format_encoding != MAIA2 and (
        source.unrecorded_settings.rating is not None or source.unrecorded_settings.opponent_rating is not None
    ):
        raise BadInputError(
            f"{source.path.name} is not a .pt of Maia-2, so it takes no ratings",
            "leave out --rating and --opponent-rating",
        )
    return encoding or format_encoding


def resolve_encoding(
    source: CheckpointSource, encoding: str | Encoding | None, vocabulary: Path | None = None
) -> tuple[Encoding, TokenRows | None]:
    """Return the encoding, and the rows of its tokens if there is a vocabulary: the given one, that in a torch file,
    that of a folder, or a meta.pkl next to a file.

    Raises BadInputError if the vocabulary lacks tokens of the encoding or contradicts the folder's chessreg.json.
    """
    path, is_chessreg_folder = source.path, source.path.is_dir() and (source.path / INFO).is_file()
    if encoding is None and is_chessreg_folder:
        encoding = read_info(path).encoding
    if isinstance(encoding, str):
        encoding = encoding_named(encoding, path)
    if isinstance(encoding, PromptEncoding):  # a prompt's vocabulary is its tokenizer
        if vocabulary is not None:
            raise BadInputError(
                "--vocabulary does not apply to a prompt", "leave it out: a prompt has a tokenizer.json"
            )
        return encoding, None
    if encoding is not None and encoding.name == MAIA2:  # the model reads planes of the board
        if vocabulary is not None:
            raise BadInputError(f"--vocabulary does not apply to {encoding.name}", "leave it out")
        return encoding, None
    token_texts = find_vocabulary(source, vocabulary)
    if token_texts is None:
        return encoding or encoding_named("pgn-char-32"), None
    matched_encoding, rows = match_encoding(token_texts, encoding, vocabulary or path)
    if is_chessreg_folder and rows.is_reordered:
        raise BadInputError(
            f"{path.name}/{token_texts.file} has the tokens of {matched_encoding.name} "
            f"in a different order from that in {INFO}",
            f"remove {token_texts.file} if chessreg saved the weights, {INFO} if another program did",
        )
    return matched_encoding, rows


def find_vocabulary(source: CheckpointSource, vocabulary_path: Path | None) -> Vocabulary | None:
    """Return the given vocabulary, or that of the checkpoint. Raises NotFoundError or BadInputError."""
    path = source.path
    if vocabulary_path is not None:
        if not vocabulary_path.exists():
            raise NotFoundError(
                f"{vocabulary_path} does not exist", "--vocabulary takes a meta.pkl, a tokenizer or its folder"
            )
        dataset_path = vocabulary_path / read_dataset_name(source)
        content = read_vocabulary(vocabulary_path) or (read_vocabulary(dataset_path) if dataset_path.is_dir() else None)
        if content is None:
            raise BadInputError(
                f"{vocabulary_path} holds no vocabulary", "give the file: meta.pkl, tokenizer.json or vocab.json"
            )
        return content
    if path.is_dir():
        return read_vocabulary(path)
    if isinstance(source.content, OnnxGraph) and (folder := find_config_folder(path)) is not None:
        return read_vocabulary(folder)
    if (inside := find_inner_vocabulary(source.content, path.name)) is not None:
        return inside
    meta_file = path.with_name(META)
    return read_vocabulary(meta_file) if meta_file.is_file() else None


def read_dataset_name(source: CheckpointSource) -> str:
    """Return the folder of a nanoGPT file's dataset below nanoGPT's data folder, `.` if unknown."""
    config = source.content.get("config") if isinstance(source.content, dict) else None
    name = config.get("dataset") if isinstance(config, dict) else None
    return name if isinstance(name, str) and name.isprintable() and "/" not in name else "."


def fit_rows(
    encoding: Encoding, rows: TokenRows | None, model: Network, path: Path, is_named: bool
) -> TokenRows | None:
    """Return the rows of the encoding's tokens, None if they are all of the model's rows in order.

    A vocabulary rounded up to a multiple of 8 to 128 is cut to the first rows; if the user did not name the encoding,
    only if no other encoding would fit. A language model may have rows without a token; a prompt and its answer must
    fit its context. Raises BadInputError for a model that cannot read this encoding.
    """
    prompt, size, name = isinstance(encoding, PromptEncoding), model.vocab_size, path.name
    if rows is not None:
        if max(rows.rows) >= size:
            raise BadInputError(
                f"{name} has a vocabulary of {size}, but {rows.file} names row {max(rows.rows)}",
                f"--vocabulary FILE, if {rows.file} belongs to another model",
            )
        if rows.file == META and len(rows.rows) + len(rows.dropped_tokens) > size:  # nanoGPT takes the size from it
            raise BadInputError(
                f"{name} has a vocabulary of {size}, but {META} has {len(rows.rows) + len(rows.dropped_tokens)} tokens",
                f"--vocabulary FILE, if {META} belongs to another model",
            )
        return dataclasses.replace(rows, unused_rows=max(size - len(rows.rows) - len(rows.dropped_tokens), 0))
    if size < encoding.size or (size > encoding.size and not prompt):
        tokens = [one for one in map(encoding_named, list_encodings()) if one.answer_size == one.size]
        padded_tokens = [one for one in tokens if size in list_padded_sizes(one.size)]
        if size > encoding.size and (padded_tokens == [encoding] or (is_named and encoding in padded_tokens)):
            return TokenRows(tuple(range(encoding.size)), unused_rows=size - encoding.size)
        other_names = [one for one in list_encodings() if one != MAIA2]  # which belongs to its own format
        fitting_names = [one for one in other_names if encoding_named(one).size == size] or [
            one.name for one in padded_tokens
        ]
        hint = "give the tokenizer.json that the model was trained with"
        if not prompt:
            neighbor_files = [] if path.is_dir() else list_vocabulary_files(path.parent)
            file = (
                shlex.quote(str(path.with_name(neighbor_files[0])))
                if neighbor_files
                else "FILE: its meta.pkl or tokenizer.json"
            )
            hint = " or ".join([*(f"--encoding {one}" for one in fitting_names), f"--vocabulary {file}"])
        raise BadInputError(
            f"{name} has a vocabulary of {size}, but encoding {encoding.name} has {encoding.size}", hint
        )
    if (
        prompt
        and (needed_tokens := len(encoding.prompt(chess.Board())) + encoding.max_move_tokens - 1) > model.block_size
    ):
        raise BadInputError(
            f"{name} reads {model.block_size} tokens; "
            f"the first position and its answer are {needed_tokens} by {encoding.name}",
            "use a shorter template, without the legal moves",
        )
    return None


def list_padded_sizes(size: int) -> set[int]:
    """Return the sizes of an embedding of `size` tokens whose rows were rounded up.

    >>> sorted(list_padded_sizes(77))
    [80, 96, 128]
    """
    return {-(-size // multiple) * multiple for multiple in PADDED_TO} - {size}


def reorder_tokens(model: Network, rows: TokenRows | None) -> Network:
    """Return the model with its tokens in the encoding's order."""
    if rows is None or (not rows.is_reordered and len(rows.rows) == model.vocab_size):
        return model
    return model.with_vocabulary(rows.rows)


def recognize_format(source: CheckpointSource, name: str | None = None) -> ImportFormat:
    """Return the format with this name, else the last registered one that recognizes the source.

    Raises NotFoundError or BadInputError.
    """
    if name is not None:
        return FORMATS[name]
    for candidate in reversed(FORMATS.values()):
        if candidate.recognises(source):
            return candidate
    raise BadInputError(
        f"{source.path.name} is not a checkpoint that chessreg can read: {source.description}",
        f"formats: {', '.join(sorted(FORMATS))}",
    )


def compare_logits(result: Imported, model: Network, rows: TokenRows | None) -> tuple[float, float, int]:
    """Return (greatest |Δ logit| between `model` and the reference, greatest |logit|, number of tokens compared).

    `rows` are the rows of the model's tokens in the original.
    """
    import torch

    batch, length = result.tokens_shape
    shape = (batch or 2, length or min(model.block_size, 128))
    tokens = torch.randint(model.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    place = torch.arange(model.vocab_size) if rows is None else torch.tensor(rows.rows)
    exact = is_compared_exactly(model)
    with torch.no_grad():
        reference_logits = result.reference(place[tokens])
        if model.head == "next-token":
            reference_logits = reference_logits[..., place]
        if exact:
            model.double()  # reversible; in float32, rounding would dominate the difference
        model_logits = model(tokens)[
            :, -reference_logits.shape[1] :
        ]  # a graph may have the logits of the last token only
        model.float()
    return float((reference_logits - model_logits).abs().max()), float(reference_logits.abs().max()), tokens.numel()


def is_compared_exactly(model: nn.Module) -> bool:
    """Return whether logits are compared in float64."""
    return sum(parameter.numel() for parameter in model.parameters()) <= EXACT_PARAMETERS


def compute_sha256(path: Path) -> str:
    """Return the sha256 of a file, or of the names and bytes of all files in a folder, recursively."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    total = hashlib.sha256()
    for file_path in sorted(p for p in path.rglob("*") if p.is_file()):
        total.update(file_path.relative_to(path).as_posix().encode() + bytes.fromhex(compute_sha256(file_path)))
    return total.hexdigest()
