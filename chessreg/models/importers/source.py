"""Opening third-party files without running their code."""

from __future__ import annotations

import gzip
import io
import pickle
import pickletools
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chessreg.errors import (
    DAMAGE_ERRORS,
    BadInputError,
    NotFoundError,
    get_first_line,
    reraise_lack_of_memory,
)
from chessreg.models.importers.onnx_graph import find_graph_file, open_graph
from chessreg.models.importers.orbax import find_parameters_folder, read_arrays

if TYPE_CHECKING:
    from torch import Tensor

    from chessreg.models.adapters.base import AttentionKind, HeadKind, Network

MAX_NAME_CHARACTERS = 1000  # of a function or class named in a pickle
CHUNK_BYTES = 1 << 20  # bytes of a member read at once
MAX_PICKLE_BYTES = 64 << 20  # of a plain pickle that is searched for names
MAX_PLAIN_PICKLE_BYTES = 1 << 20
MAX_PLAIN_VALUES = 100_000
NPZ_DAMAGE: tuple[type[Exception], ...] = (*DAMAGE_ERRORS, OSError, MemoryError, zipfile.BadZipFile, zlib.error)
MAX_UNPACKED_FACTOR = 100  # relative to the size of a compressed file of arrays

LC0_SUFFIX = ".pb.gz"
LC0_MAGIC = b"\x0d\xc0\x01\x00\x00"  # field `magic` of lc0's weights file
UNSUPPORTED_MODELS = {
    "a Maia-3 model": (
        ("proj_sq_from.weight", "elo_embedding_low.weight"),
        "it reads the last eight boards of a game, for which chessreg has no encoding",
    ),
}
"""Models that no import reads → weights that identify them, and the reason."""

STATE_DICTS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts store a state dict. Lightning uses the first."""
WRAPPERS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Name parts inserted by torch.compile, DDP, FSDP and activation checkpointing."""
EMBEDDINGS = ("wte.weight", "embed.W_E")
"""The token embedding of a GPT-2 and of a HookedTransformer. All weights share the prefix of this one."""


@dataclass(frozen=True)
class UnrecordedSettings:
    """Settings given by the user because the file does not record them; None if not given.

    `heads` is the number of attention heads, `attention` the tokens that a token sees, `head` the kind of predicted
    value. `rating` and `opponent_rating` are the ratings that a Maia-2 model reads, of the side to move and the other.
    """

    heads: int | None = None
    attention: AttentionKind | None = None
    head: HeadKind | None = None
    rating: int | None = None
    opponent_rating: int | None = None


NO_SETTINGS = UnrecordedSettings()


@dataclass(frozen=True)
class CheckpointSource:
    """A path and its content.

    `content` is the object in a torch file, a dict of the arrays in a `.npz` or an orbax folder, an ONNX graph, or None
    for another folder. `unrecorded_settings` are settings that the file does not record. `loss` returns the loss of a
    network on the sample games (None: not measured), by which the number of attention heads can be found.
    """

    path: Path
    content: Any = None
    unrecorded_settings: UnrecordedSettings = NO_SETTINGS
    loss: Callable[[Network], float | None] = lambda _: None

    @cached_property
    def weights(self) -> dict[str, Tensor] | None:
        """The state dict of a torch file with normalized names, None without a known token embedding.

        Raises BadInputError for a file with several models.
        """
        content = self.content
        for key in STATE_DICTS:
            if isinstance(content, dict) and isinstance(content.get(key), dict):
                content = content[key]
        if not isinstance(content, dict) or not any(str(name).endswith(EMBEDDINGS) for name in content):
            return None
        return normalize_names(content, self.path.name)

    @property
    def description(self) -> str:
        """A description of the content, for the error that it is not a checkpoint."""
        if self.content is None:
            return f"a folder of {', '.join(sorted(p.name for p in self.path.iterdir())[:5]) or 'nothing'}"
        return f"{'a folder' if self.path.is_dir() else 'a file'} with {describe_contents(self.content)}"


def describe_contents(value: Any, most: int = 8) -> str:
    """Return a description of an object in a torch file for error messages: at most `most` keys, with shapes of
    tensors.

    >>> describe_contents({"layer": 3, "metadata": {}})
    'the keys layer, metadata'
    """
    shape = f" {list(value.shape)}" if hasattr(value, "shape") else ""
    if not isinstance(value, dict):
        return f"a {type(value).__name__.lower()}{shape}"
    shapes = {str(key): f" {list(v.shape)}" if hasattr(v, "shape") else "" for key, v in value.items()}
    tensor_texts = [f"{key[:60]}{shapes[key]}" for key in sorted(shapes)]
    more = f" and {len(tensor_texts) - most} more" if len(tensor_texts) > most else ""
    return f"the keys {', '.join(tensor_texts[:most])}{more}" if tensor_texts else "no keys"


def open_checkpoint(path: Path, settings: UnrecordedSettings = NO_SETTINGS) -> CheckpointSource:
    """Return a folder, or a file of torch, safetensors, numpy or ONNX, as a source.

    Raises NotFoundError or BadInputError.
    """
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    if path.is_dir():
        folder = find_parameters_folder(path)
        if folder is not None:
            return CheckpointSource(path, read_arrays(folder), settings)
        graph = find_graph_file(path)
        return CheckpointSource(path, None if graph is None else open_graph(graph), settings)
    if not path.is_file():
        raise BadInputError(f"{path} is neither a file nor a folder")
    if path.suffix == ".onnx":
        return CheckpointSource(path, open_graph(path), settings)
    if path.name.endswith(LC0_SUFFIX) or is_lc0_network(path):
        raise BadInputError(
            f"{path.name} is an lc0 network, which cannot be imported",
            "it reads the last eight boards of a game, for which chessreg has no encoding",
        )
    if is_npz(path):
        return CheckpointSource(path, read_npz(path), settings)
    content = read_safetensors(path) if is_safetensors(path) else read_torch_file(path)
    refuse_unsupported_model(content, path.name)
    return CheckpointSource(path, content, settings)


def is_lc0_network(path: Path) -> bool:
    """Return whether a file is a network of lc0, which its name need not show."""
    try:
        with gzip.open(path) as file:
            return file.read(len(LC0_MAGIC)) == LC0_MAGIC
    except (OSError, EOFError, zlib.error):
        return False


def refuse_unsupported_model(content: Any, file: str) -> None:
    """Raise BadInputError, with the reason, for the weights of a model that no import reads."""
    for key in STATE_DICTS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        return
    weights = {".".join(part for part in str(name).split(".") if part not in WRAPPERS) for name in content}
    for model, (needed_names, reason) in UNSUPPORTED_MODELS.items():
        if weights.issuperset(needed_names):
            raise BadInputError(f"{file} is {model}, which cannot be imported", reason)


def is_safetensors(path: Path) -> bool:
    """Return whether a file begins like safetensors: the length of a header, and a brace."""
    with path.open("rb") as file:
        start = file.read(9)
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file. Raises BadInputError for a damaged file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except DAMAGE_ERRORS as error:
        reraise_lack_of_memory(error)
        raise BadInputError(f"{path.name} is damaged: {get_first_line(error)}") from error
    except SafetensorError as error:
        raise BadInputError(f"{path.name} is damaged: {get_first_line(error)}") from error
    return tensors


def is_npz(path: Path) -> bool:
    """Return whether a file is a zip of arrays, as written by numpy.savez."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return False
    return bool(names) and all(name.endswith(".npy") for name in names)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a `.npz`. Raises BadInputError for a damaged file and for arrays of objects, whose code
    never runs."""
    with zipfile.ZipFile(path) as archive:
        unpacked_bytes = sum(member.file_size for member in archive.infolist())
    if unpacked_bytes > MAX_UNPACKED_FACTOR * path.stat().st_size:
        raise BadInputError(
            f"{path.name} is refused: it unpacks to {unpacked_bytes:,} bytes", "save it with numpy.savez"
        )
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except NPZ_DAMAGE as error:
        reraise_lack_of_memory(error, unpacked_bytes)
        raise BadInputError(f"{path.name} is damaged or holds more than arrays: {get_first_line(error)}") from error


def normalize_names(weights: Mapping[Any, Any], file: str) -> dict[str, Tensor]:
    """Return a state dict without wrappers' name parts and without the prefix of the module that contains the model.

    Raises BadInputError for two weights with one name and for several models in one state dict.

    >>> weights = {"model._orig_mod.transformer.wte.weight": 1, "model._orig_mod.lm_head.weight": 2}
    >>> sorted(normalize_names(weights, "a.pt"))
    ['lm_head.weight', 'transformer.wte.weight']
    """
    unwrapped_weights = remove_wrappers(weights, file)
    prefixes = {
        name.removesuffix(end).removesuffix("transformer.")
        for name in unwrapped_weights
        for end in EMBEDDINGS
        if f".{name}".endswith(f".{end}")
    }
    if len(prefixes) > 1:
        raise BadInputError(
            f"{file} holds {len(prefixes)} models: {', '.join(sorted(prefixes))}", "save one model to the file"
        )
    prefix = min(prefixes, default="")
    return {name.removeprefix(prefix): tensor for name, tensor in unwrapped_weights.items()}


def remove_wrappers(weights: Mapping[Any, Any], file: str) -> dict[str, Tensor]:
    """Return a state dict without wrappers' name parts. Raises BadInputError for two weights with one name."""
    unwrapped_weights: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        plain = ".".join(part for part in str(name).split(".") if part not in WRAPPERS)
        if plain in unwrapped_weights:
            raise BadInputError(f"{file} holds the weight {plain} twice, once as {name}", "save one model to the file")
        unwrapped_weights[plain] = tensor
    return unwrapped_weights


class _Dtype:
    """Replaces numpy.dtype: the code of a type and its byte order. numpy does not read the pickle's state."""

    def __init__(self, code: str, *_: Any) -> None:
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


def _read_scalar(dtype: _Dtype, data: bytes) -> float | int | bool:
    """Replaces numpy's constructor of scalars. Raises ValueError for anything but a number."""
    scalar_types = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1")
    if dtype.code not in scalar_types or dtype.order not in ("<", ">", "|"):
        raise ValueError(f"no number has the type {dtype.order}{dtype.code}")
    number: float | int | bool = np.frombuffer(data, dtype.order + dtype.code)[0].item()
    return number


def _encode_latin1(text: str, encoding: str) -> bytes:
    """Replaces _codecs.encode, which pickles of bytes call. Raises ValueError for another encoding."""
    if encoding != "latin1":
        raise ValueError(f"bytes are not pickled as {encoding!r}")
    return text.encode("latin1")


class _Settings(dict[str, Any]):
    """Replaces argparse.Namespace: its attributes."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.update(state)


class _Dict:
    """Replaces Lightning's AttributeDict: creates a dict."""

    def __new__(cls, *_: Any) -> Any:
        return {}


class _IgnoredValue:
    """Replaces values that no import reads: paths and numpy arrays."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


STAND_INS: dict[str, Any] = {
    "numpy.dtype": _Dtype,
    "_codecs.encode": _encode_latin1,
    "argparse.Namespace": _Settings,
    "numpy.ndarray": _IgnoredValue,
    **{f"numpy.{core}.multiarray.scalar": _read_scalar for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray._reconstruct": _IgnoredValue for core in ("core", "_core")},
    **{f"pathlib.{name}": _IgnoredValue for name in ("Path", "PosixPath", "WindowsPath", "PurePosixPath")},
    **{
        f"{package}.AttributeDict": _Dict
        for package in (
            *("pytorch_lightning.utilities.parsing", "lightning.pytorch.utilities.parsing"),
            *("lightning_fabric.utilities.data", "lightning.fabric.utilities.data"),
        )
    },
}
"""Functions and classes that training scripts pickle next to weights → their replacements."""


def read_torch_file(path: Path) -> Any:
    """Return the object written by torch.save, tensors on the CPU, with torch's weights-only unpickler: no code runs.

    numpy's numbers become Python's; `STAND_INS` replaces other types. Raises BadInputError as `check_torch_file` does,
    for a pickle that requires code, and for anything else that torch.save did not write.
    """
    import torch

    members = check_torch_file(path)
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([(o, name) for name, o in STAND_INS.items()]):
            warnings.simplefilter("ignore")  # about pickle protocols; everything important is an error
            with path.open("rb") as file:  # given a path, torch reads any *.safetensors as safetensors
                content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle or archive can raise nearly anything, from EOFError to KeyError
        reraise_lack_of_memory(error)
        refuse_code(path)
        raise BadInputError(f"{path} is not a file of tensors written by torch.save, or it is damaged") from error
    check_checksums(path, members)
    return content


def check_torch_file(path: Path) -> list[zipfile.ZipInfo]:
    """Return the members of a torch file's zip (none for torch's older format), without loading it.

    Raises BadInputError for an empty file, a damaged zip, compressed members (torch never writes them; a small file
    could unpack to any size) and overlapping members.
    """
    if path.stat().st_size == 0:
        raise BadInputError(f"{path} is empty")
    try:
        members = list_zip_members(path)
    except Exception as error:  # zipfile raises six kinds of errors for damaged directories
        reraise_lack_of_memory(error)
        raise BadInputError(f"{path} is a damaged zip, not a torch file") from error
    if members:
        if any(m.compress_type != zipfile.ZIP_STORED for m in members):
            raise BadInputError(f"{path} is a compressed zip, not a torch file")
        if sum(m.file_size for m in members) > path.stat().st_size:
            raise BadInputError(f"{path} is a zip whose members overlap, not a torch file")
    if any(
        len(name) > MAX_NAME_CHARACTERS for name in list_pickled_globals(path)
    ):  # torch needs quadratic time for long names
        raise BadInputError(f"{path} is not a file of tensors written by torch.save, or it is damaged")
    return members


def check_checksums(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Raise BadInputError for a member whose bytes differ from its checksum, which torch does not verify.

    A member without a checksum (0, an option of torch) is not checked.
    """
    if damaged_member := next(
        (m.filename for m in members if m.CRC and compute_member_checksum(path, m) != m.CRC), None
    ):
        raise BadInputError(
            f"{path} is damaged: the checksum of its part {damaged_member} is wrong", "get the file again"
        )


def refuse_code(path: Path) -> None:
    """Raise BadInputError for a pickle that names functions or classes that neither tensors nor settings need."""
    allowed_modules = ("torch", "collections")
    foreign_names = [
        name
        for name in list_pickled_globals(path)
        if name.split(".")[0] not in allowed_modules and name not in STAND_INS
    ]
    if foreign_names:
        raise BadInputError(f"{path} is refused: loading it would execute code ({', '.join(foreign_names[:3])})")


def list_zip_members(path: Path) -> list[zipfile.ZipInfo]:
    """Return the members of a zip; none for other files."""
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()


def compute_member_checksum(path: Path, member: zipfile.ZipInfo) -> int:
    """Return the CRC-32 of an uncompressed member of a zip."""
    crc = 0
    for chunk in read_member_chunks(path, member):
        crc = zlib.crc32(chunk, crc)
    return crc


def read_member_chunks(path: Path, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the bytes of an uncompressed member of a zip in chunks, without checking its checksum, like torch."""
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, 1)
        remaining_bytes = member.file_size
        while remaining_bytes and (chunk := file.read(min(remaining_bytes, CHUNK_BYTES))):
            remaining_bytes -= len(chunk)
            yield chunk


def list_pickled_globals(path: Path) -> list[str]:
    """Return the functions and classes named in a pickle (plain, or inside a torch file), without calling them.

    A file that is not a pickle gives none; a damaged one gives those before the damage.
    """
    names: list[str] = []
    strings = ["", ""]
    try:
        if zipfile.is_zipfile(path):
            pickle_member = next(member for member in list_zip_members(path) if member.filename.endswith("data.pkl"))
            stream = io.BytesIO(b"".join(read_member_chunks(path, pickle_member)))
        else:
            with path.open("rb") as file:
                stream = io.BytesIO(file.read(MAX_PICKLE_BYTES))
        while stream.tell() < len(stream.getbuffer()):  # torch's older files contain several pickles
            for operation, argument, _ in pickletools.genops(stream):
                if operation.name == "GLOBAL":
                    names.append(str(argument).replace(" ", "."))
                elif operation.name == "STACK_GLOBAL":
                    names.append(".".join(strings))
                elif isinstance(argument, str):
                    strings = [strings[1], argument]
    except Exception:  # damaged files are refused when loaded
        pass
    return list(dict.fromkeys(names))


def to_plain_values(value: Any) -> Any:
    """Return the value in JSON's types: numbers, strings, and dicts and lists of them; None for anything else.

    Raises ValueError for more than 100,000 values: a small pickle can refer to the same list any number of times.
    """
    remaining_values = MAX_PLAIN_VALUES

    def convert(value: Any) -> Any:
        nonlocal remaining_values
        remaining_values -= 1
        if remaining_values < 0:
            raise ValueError(f"its settings are more than {MAX_PLAIN_VALUES:,} values")
        if isinstance(value, dict):
            return {str(k): convert(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [convert(v) for v in value]
        if hasattr(value, "item") and getattr(value, "numel", lambda: 0)() == 1:
            value = value.item()
        if isinstance(value, float) and value - value != 0:  # JSON has no NaN and no infinity
            return None
        return value if isinstance(value, bool | int | float | str) else None

    return convert(value)


PLAIN_OPERATIONS = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT",
    "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_DICT", "DICT", "SETITEM",
    "SETITEMS", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
})  # fmt: skip
"""Pickle operations that create dicts, lists, texts and numbers without calls. No tuples: nested tuples as keys of a
dict take exponential time to hash."""


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that refuses every class and function, so that a file cannot execute code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def read_plain_pickle(path: Path) -> Any:
    """Return the dicts, lists, texts and numbers of a pickle. Every operation is checked before the first runs.

    Raises BadInputError for a pickle of anything else, a large file and a damaged one.
    """
    if path.stat().st_size > MAX_PLAIN_PICKLE_BYTES:
        raise BadInputError(f"{path} has more than {MAX_PLAIN_PICKLE_BYTES >> 10} KiB: it is not a vocabulary")
    data = path.read_bytes()
    try:
        for operation, argument, _ in pickletools.genops(data):
            if operation.name not in PLAIN_OPERATIONS:
                raise pickle.UnpicklingError(f"{operation.name} {argument if argument is not None else ''}".strip())
            if operation.name.endswith("PUT") and argument is not None and int(argument) > len(data):  # takes memory
                raise ValueError(f"place {argument} does not exist")
        return _PlainUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError as error:
        raise BadInputError(
            f"{path} is refused: it holds more than a vocabulary ({get_first_line(error)[:60]})",
            "its code is never run; save stoi and itos as plain dicts",
        ) from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        reraise_lack_of_memory(error)
        raise BadInputError(f"{path} is damaged: {type(error).__name__} {get_first_line(error)[:60]}") from error
