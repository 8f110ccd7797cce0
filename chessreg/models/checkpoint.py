"""A checkpoint on disk: a folder with config.json, model.safetensors and chessreg.json; for a model that reads prompts
also tokenizer.json and prompt.json; for a model with a vocabulary of moves also moves.json.

The first two have Hugging Face's format if the architecture is one of theirs, and any other tool loads them.
chessreg.json adds encoding, attention, head, residual convention and the origin of the weights, for which that format
has no fields. Functions import torch only to handle weights, and encodings (python-chess) only for a prompt's files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chessreg.errors import (
    DAMAGE_ERRORS,
    BadInputError,
    NotFoundError,
    get_first_line,
    reraise_lack_of_memory,
)

if TYPE_CHECKING:
    import torch

    from chessreg.models.adapters.base import Network

FORMAT_VERSION = 1
CONFIG, WEIGHTS, INFO = "config.json", "model.safetensors", "chessreg.json"
REQUIRED_KEYS = "family", "n_layer", "n_embd"  # keys of `Network.shape()`


@dataclass(frozen=True)
class CheckpointInfo:
    """The content of chessreg.json.

    `residual` is "raw", or "centred" for weights whose residual stream has mean 0 over d_model (as in
    Karvonen's TransformerLens files). `parameters` counts each weight once, a tied head as part of the embedding,
    without biases that are all zero and frozen; `parameters_without_embeddings` also excludes token and position
    embeddings and an untied output head. `source` has format, digest and everything recorded by the importer or
    trainer.
    """

    encoding: str
    architecture: dict[str, Any]
    parameters: int
    parameters_without_embeddings: int
    block_size: int
    residual: Literal["raw", "centred"] = "raw"
    tokens_seen: int | None = None
    source: dict[str, Any] = field(default_factory=dict)
    attention: Literal["causal", "bidirectional"] = "causal"
    head: Literal["next-token", "action", "action-value", "state-value"] = "next-token"
    format_version: int = FORMAT_VERSION

    @classmethod
    def from_network(
        cls,
        network: Network,
        encoding: str,
        *,
        residual: Literal["raw", "centred"] = "raw",
        tokens_seen: int | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> CheckpointInfo:
        """Return the info of a model in memory, with its architecture and counts. The arguments are fields of the
        class.

        Raises BadInputError for a `shape()` that lacks a required key.
        """
        total, without_embeddings = network.count_parameters()
        shape = network.shape()
        if missing_names := [name for name in REQUIRED_KEYS if name not in shape]:
            raise BadInputError(f"{type(network).__name__}.shape() has no {', '.join(missing_names)}")
        return cls(
            encoding=encoding,
            architecture=shape,
            parameters=total,
            parameters_without_embeddings=without_embeddings,
            block_size=network.block_size,
            residual=residual,
            tokens_seen=tokens_seen,
            source=dict(source or {}),
            attention=network.attention,
            head=network.head,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the stored form.

        `encoding` has its first name, and the defaults of attention and head are omitted, so that the bytes of older
        GPT-2 checkpoints, and the digests in specs, do not change.
        """
        content = asdict(self)
        content["tokenizer"] = content.pop("encoding")
        for name, default in (("attention", "causal"), ("head", "next-token")):
            if content[name] == default:
                del content[name]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> CheckpointInfo:
        """Return the info of a stored form. Raises TypeError for missing or unknown fields."""
        fields = {"encoding" if name == "tokenizer" else name: value for name, value in content.items()}
        return cls(**fields)


def save_checkpoint(
    network: Network,
    folder: Path,
    info: CheckpointInfo,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
) -> None:
    """Write weights, configuration and `info` to `folder`, which is created. Existing files are replaced.

    Equal models give equal bytes. The model is not changed; `dtype` is the type of the stored weights.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config, weights = network.files(dtype)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    for name, content in ((CONFIG, config), (INFO, info.as_json())):
        (folder / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_info(folder: Path) -> CheckpointInfo:
    """Return the content of chessreg.json.

    Raises NotFoundError if the folder is not a checkpoint, BadInputError for an unreadable file.
    """
    path = Path(folder) / INFO
    if not path.is_file():
        raise NotFoundError(f"{folder} is not a checkpoint: it has no {INFO}", "chessreg import checkpoint FILE")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["format_version"]
        if version != FORMAT_VERSION:
            raise BadInputError(f"{path} has format {version}; this chessreg reads format {FORMAT_VERSION}")
        return CheckpointInfo.from_json(content)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInputError(f"{path} is not a checkpoint's {INFO}: {error}") from error


def list_checkpoint_files(folder: Path) -> list[str]:
    """Return the files of a checkpoint's folder that belong to it.

    They include the files of an encoding that belongs to this checkpoint; a tokenizer for other programs is made on
    export.
    """
    from chessreg.encodings import list_encoding_files

    return [CONFIG, WEIGHTS, INFO, *list_encoding_files(folder)]


def copy_encoding(source: Path, folder: Path) -> None:
    """Copy the encoding that belongs to one checkpoint's folder to another, if there is one."""
    from chessreg.encodings import list_encoding_files

    for name in list_encoding_files(source):
        shutil.copyfile(source / name, folder / name)


def load_model(folder: Path, dtype: torch.dtype | None = None) -> Network:
    """Return the model of a checkpoint folder on the CPU, in eval mode, in float32 or the given dtype."""
    import torch

    from chessreg.models.adapters import get_adapter

    shape = read_info(folder).architecture
    try:
        return get_adapter(shape["family"]).load(Path(folder), shape, dtype or torch.float32)
    except DAMAGE_ERRORS as error:
        reraise_lack_of_memory(error)
        raise BadInputError(
            f"the checkpoint in {folder} is damaged: {type(error).__name__} {get_first_line(error)}"
        ) from error


def compute_checkpoint_digest(folder: Path) -> str:
    """Return the checkpoint's identity: sha256 of configuration, weights, encoding and residual convention."""
    info = read_info(folder)
    total = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        with (Path(folder) / name).open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    total.update(f"{info.encoding}\n{info.residual}".encode())
    return total.hexdigest()
