"""The registry of import formats, and what every import goes through: recognise, read, verify by logits, save."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import chess

from chessreg.encodings import Encoding, names
from chessreg.encodings import encoding as encoding_named
from chessreg.encodings.prompts import PromptEncoding
from chessreg.encodings.uci_square import UciSquare
from chessreg.errors import DAMAGE, BadInputError, first_line
from chessreg.models.checkpoint import INFO, CheckpointInfo, digest, read_info, save_checkpoint
from chessreg.models.importers.source import Source, open_source
from chessreg.models.importers.tokenizer import encoding_of
from chessreg.named import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from chessreg.models.adapters.base import Network

LARGEST_DIFFERENCE = 1e-4  # in logits; a right conversion gives about 1e-12 in float64, a wrong GELU 5e-3


@dataclass(frozen=True)
class Imported:
    """What a format's reader returns.

    model is the conversion; reference gives logits float64 [batch, length, vocab] from the raw weights without it.
    """

    model: Network
    reference: Callable[[Tensor], Tensor]
    residual: Literal["raw", "centred"] = "raw"
    tokens_seen: int | None = None
    source: dict[str, Any] = field(default_factory=dict)


class ImportFormat(Protocol):
    """One way a checkpoint is kept on disk. A new one is a file in this folder that calls `register`."""

    name: str

    def recognises(self, source: Source) -> bool:
        """Whether the content (never the file's name) is of this format."""

    def read(self, source: Source) -> Imported:
        """Raises BadInputError naming what does not fit."""


@dataclass(frozen=True)
class ImportReport:
    """What was imported, and how far its logits are from the original's on fixed tokens (float64, greatest |Δ|)."""

    format: str
    folder: Path
    info: CheckpointInfo
    digest: str
    max_logit_difference: float
    tokens_compared: int


FORMATS: Registry[ImportFormat] = Registry("import format")


def register(format: ImportFormat) -> None:
    """Make a format known by its name, and the first to be asked. Raises ValueError when the name is taken."""
    FORMATS[format.name] = format


def import_checkpoint(
    path: Path, folder: Path, *, encoding: str | Encoding | None = None, format: str | None = None
) -> ImportReport:
    """Convert the checkpoint at `path` into `folder` (layout: checkpoint.py).

    `encoding` None is the one that a folder of chessreg's own says, or that its tokenizer is (UCI squares), else
    pgn-char-32. The format is recognised by content unless named. Nothing is written unless the conversion's logits
    agree with an independent forward pass over the raw weights. A pickle that would execute code is refused, never run.
    Raises NotFoundError (no such path) or BadInputError (unknown or damaged format, shapes, vocabulary, NaN).
    """
    written, tokenizer = encoding_to_read(Path(path), encoding)
    source = open_source(Path(path))
    chosen = recognise(source, format)
    try:
        imported = chosen.read(source)
        check_encoding(written, imported.model, source.path.name)
        difference, compared = compare_logits(imported)
    except DAMAGE as error:  # a shape, key or type that the format's reader did not look for
        reason = f"{type(error).__name__} {first_line(error)}"
        raise BadInputError(f"{source.path.name} is damaged or no {chosen.name} checkpoint: {reason}") from error
    if not difference <= LARGEST_DIFFERENCE:
        raise BadInputError(f"{source.path.name}: the converted model's logits differ by {difference:.2g}")
    origin = {"format": chosen.name, "file": source.path.name, "sha256": sha256_of(source.path), **imported.source}
    origin |= {"tokenizer": tokenizer} if tokenizer else {}
    info = CheckpointInfo.of(
        imported.model, written.name, residual=imported.residual, tokens_seen=imported.tokens_seen, source=origin
    )
    save_checkpoint(imported.model, folder, info)
    if isinstance(written, PromptEncoding):
        written.save(folder)
    return ImportReport(chosen.name, folder, info, digest(folder), difference, compared)


def check(path: Path, encoding: str | Encoding | None = None) -> None:
    """Raise what `import_checkpoint` would for a path of no known format, and for an encoding that there is not."""
    encoding_to_read(path, encoding)
    recognise(open_source(path))


def encoding_to_read(path: Path, encoding: str | Encoding | None) -> tuple[Encoding, dict[str, str]]:
    """The encoding, and what is to be recorded of a tokenizer of squares: its file and how it writes promotions.

    Raises BadInputError where the folder's tokenizer differs from the given encoding.
    """
    if encoding is None and (path / INFO).is_file():
        encoding = read_info(path).encoding
    if isinstance(encoding, str):
        encoding = encoding_named(encoding, path)
    if encoding is None or isinstance(encoding, UciSquare):
        beside = encoding_of(path, encoding) if path.is_dir() else None
        if beside is not None:
            own, tokenizer = beside
            if encoding is not None and encoding.name != own.name:
                raise BadInputError(
                    f"{path.name}/{tokenizer.file} is {own.name}, not {encoding.name}", f"--encoding {own.name}"
                )
            return own, {"file": tokenizer.file, "promotion_case": tokenizer.promotion_case(own)}
    return encoding or encoding_named("pgn-char-32"), {}


def check_encoding(written: Encoding, model: Network, name: str) -> None:
    """Raise BadInputError for a model that cannot read this encoding. A language model may have rows of its embedding
    that no token of its tokenizer uses; a prompt and its answer must fit its context."""
    prompt, vocabulary = isinstance(written, PromptEncoding), model.vocab_size
    if vocabulary < written.size or (vocabulary > written.size and not prompt):
        fitting = [one for one in names() if encoding_named(one).size == vocabulary]
        other = f"--encoding {fitting[0]}" if fitting else "choose another with --encoding"
        raise BadInputError(
            f"{name} has a vocabulary of {vocabulary}, encoding {written.name} has {written.size}",
            "give the tokenizer.json that the model was trained with" if prompt else other,
        )
    if prompt and (needed := len(written.prompt(chess.Board())) + written.max_move_tokens - 1) > model.block_size:
        raise BadInputError(
            f"{name} reads {model.block_size} tokens; the first position and its answer are {needed} by {written.name}",
            "use a shorter template, without the legal moves",
        )


def recognise(source: Source, name: str | None = None) -> ImportFormat:
    """The format of this name, else the newest that recognises the source. Raises NotFoundError, BadInputError."""
    if name is not None:
        return FORMATS[name]
    for candidate in reversed(FORMATS.values()):
        if candidate.recognises(source):
            return candidate
    raise BadInputError(
        f"{source.path.name} is no checkpoint that chessreg can read: {source.description}",
        f"formats: {', '.join(sorted(FORMATS))}",
    )


def compare_logits(imported: Imported) -> tuple[float, int]:
    """The greatest |Δ logit| between conversion and reference on fixed tokens, and how many tokens that were."""
    import torch

    model = imported.model
    length = min(model.block_size, 128)
    tokens = torch.randint(model.vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    model.double()  # and back, which changes nothing: in float32 the difference is the CPU's
    with torch.no_grad():
        theirs, ours = imported.reference(tokens), model(tokens)
    model.float()
    return float((theirs - ours).abs().max()), tokens.numel()


def sha256_of(path: Path) -> str:
    """sha256 of a file, or of the names and bytes of a folder's files."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    total = hashlib.sha256()
    for file_path in sorted(p for p in path.iterdir() if p.is_file()):
        total.update(file_path.name.encode() + bytes.fromhex(sha256_of(file_path)))
    return total.hexdigest()
