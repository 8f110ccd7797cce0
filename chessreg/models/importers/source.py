"""Opening a file that someone else made, without running anything in it."""

from __future__ import annotations

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

from chessreg.errors import DAMAGE, BadInputError, NotFoundError, first_line
from chessreg.models.importers.orbax import find_parameters_folder, read_arrays

if TYPE_CHECKING:
    from torch import Tensor

    from chessreg.models.adapters.base import AttentionKind, HeadKind, Network

MAX_NAME_CHARACTERS = 1000  # characters of a function or class that a pickle names
CHUNK_BYTES = 1 << 20  # bytes of a member that are in memory at once
MAX_PICKLE_BYTES = 64 << 20  # of a file that is no zip, in which names are looked for
MAX_PLAIN_PICKLE_BYTES = 1 << 20
MAX_PLAIN_VALUES = 100_000
NPZ_DAMAGE: tuple[type[Exception], ...] = (*DAMAGE, OSError, MemoryError, zipfile.BadZipFile, zlib.error)
MAX_UNPACKED_FACTOR = 100  # times the size of a compressed file of arrays

STATE_DICTS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts keep a state dict. Lightning uses the first."""
WRAPPERS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts that torch.compile, DDP, FSDP and activation checkpointing insert into the name of a weight."""
EMBEDDINGS = ("wte.weight", "embed.W_E")
"""The token embedding of a GPT-2 and of a HookedTransformer. Every weight has the prefix of this one."""


@dataclass(frozen=True)
class UnrecordedSettings:
    """Settings that the user gives because the file does not record them; None where the user did not.

    `heads` is the number of attention heads, `attention` the tokens that a token sees, `head` the kind of value that is
    predicted.
    """

    heads: int | None = None
    attention: AttentionKind | None = None
    head: HeadKind | None = None


NONE_GIVEN = UnrecordedSettings()


@dataclass(frozen=True)
class CheckpointSource:
    """A path and its content: `content` is the object of a torch file, a dict of the arrays of a `.npz` or of an orbax
    folder, None for another folder.

    `given` are the settings that the file does not record. `loss` gives the loss of a network on the sample games
    (None: not measured), by which a number of attention heads can be found.
    """

    path: Path
    content: Any = None
    given: UnrecordedSettings = NONE_GIVEN
    loss: Callable[[Network], float | None] = lambda _: None

    @cached_property
    def weights(self) -> dict[str, Tensor] | None:
        """The state dict of a torch file under plain names, None if it has none with a known token embedding.

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
        """What was found, for the message that it is no checkpoint."""
        if self.content is None:
            return f"a folder of {', '.join(sorted(p.name for p in self.path.iterdir())[:5]) or 'nothing'}"
        return f"{'a folder' if self.path.is_dir() else 'a file'} with {describe_contents(self.content)}"


def describe_contents(value: Any, most: int = 8) -> str:
    """An object of a torch file in words, with the shapes of its tensors, for messages about a wrong file.

    >>> describe_contents({"layer": 3, "metadata": {}})
    'the keys layer, metadata'
    """
    shape = f" {list(value.shape)}" if hasattr(value, "shape") else ""
    if not isinstance(value, dict):
        return f"a {type(value).__name__.lower()}{shape}"
    shapes = {str(key): f" {list(v.shape)}" if hasattr(v, "shape") else "" for key, v in value.items()}
    named = [f"{key[:60]}{shapes[key]}" for key in sorted(shapes)]
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return f"the keys {', '.join(named[:most])}{more}" if named else "no keys"


def open_checkpoint(path: Path, given: UnrecordedSettings = NONE_GIVEN) -> CheckpointSource:
    """A folder, or a file of torch, safetensors or numpy. Raises NotFoundError or BadInputError."""
    if not path.exists():
        raise NotFoundError(f"no file or folder {path}")
    if path.is_dir():
        folder = find_parameters_folder(path)
        arrays = None if folder is None else read_arrays(folder)
        return CheckpointSource(path, arrays, given)
    if not path.is_file():
        raise BadInputError(f"{path} is neither a file nor a folder")
    if is_npz(path):
        return CheckpointSource(path, read_npz(path), given)
    return CheckpointSource(path, read_safetensors(path) if is_safetensors(path) else read_torch_file(path), given)


def is_safetensors(path: Path) -> bool:
    """Whether a file begins as safetensors do: the length of a header, and a brace."""
    with path.open("rb") as file:
        start = file.read(9)
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises BadInputError for a damaged file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except DAMAGE as error:
        raise BadInputError(f"{path.name} is damaged: {first_line(error)}") from error
    except SafetensorError as error:
        raise BadInputError(f"{path.name} is damaged: {first_line(error)}") from error
    return tensors


def is_npz(path: Path) -> bool:
    """Whether a file is a zip of arrays as numpy.savez writes it."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return False
    return bool(names) and all(name.endswith(".npy") for name in names)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a `.npz`. Raises BadInputError for a damaged file, and for arrays of objects, whose code never
    runs."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > MAX_UNPACKED_FACTOR * path.stat().st_size:
        raise BadInputError(f"{path.name} is refused: it unpacks to {unpacked:,} bytes", "save it with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except NPZ_DAMAGE as error:
        raise BadInputError(f"{path.name} is damaged or holds more than arrays: {first_line(error)}") from error


def normalize_names(weights: Mapping[Any, Any], file: str) -> dict[str, Tensor]:
    """A state dict without the parts that wrappers insert, and without the prefix of the module that holds the model.

    Raises BadInputError for two weights of one name and for several models in one state dict.

    >>> weights = {"model._orig_mod.transformer.wte.weight": 1, "model._orig_mod.lm_head.weight": 2}
    >>> sorted(normalize_names(weights, "a.pt"))
    ['lm_head.weight', 'transformer.wte.weight']
    """
    named: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        plain = ".".join(part for part in str(name).split(".") if part not in WRAPPERS)
        if plain in named:
            raise BadInputError(f"{file} holds the weight {plain} twice, once as {name}", "save one model to the file")
        named[plain] = tensor
    prefixes = {
        name.removesuffix(end).removesuffix("transformer.")
        for name in named
        for end in EMBEDDINGS
        if f".{name}".endswith(f".{end}")
    }
    if len(prefixes) > 1:
        raise BadInputError(
            f"{file} holds {len(prefixes)} models: {', '.join(sorted(prefixes))}", "save one model to the file"
        )
    prefix = min(prefixes, default="")
    return {name.removeprefix(prefix): tensor for name, tensor in named.items()}


class _Dtype:
    """Stands for numpy.dtype: the code of a type and its byte order. numpy itself does not read the pickle's state."""

    def __init__(self, code: str, *_: Any) -> None:
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


def _read_scalar(dtype: _Dtype, data: bytes) -> float | int | bool:
    """Stands for numpy's constructor of scalars. Raises ValueError for anything but a number."""
    known = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1")
    if dtype.code not in known or dtype.order not in ("<", ">", "|"):
        raise ValueError(f"no number has the type {dtype.order}{dtype.code}")
    number: float | int | bool = np.frombuffer(data, dtype.order + dtype.code)[0].item()
    return number


def _latin1(text: str, encoding: str) -> bytes:
    """Stands for _codecs.encode, which pickles of bytes call. Raises ValueError for another encoding."""
    if encoding != "latin1":
        raise ValueError(f"bytes are not pickled as {encoding!r}")
    return text.encode("latin1")


class _Settings(dict[str, Any]):
    """Stands for argparse.Namespace: its attributes."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.update(state)


class _Dict:
    """Stands for Lightning's AttributeDict: makes a dict."""

    def __new__(cls, *_: Any) -> Any:
        return {}


class _Unread:
    """Stands for values that no import reads: paths and numpy arrays."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


STAND_INS: dict[str, Any] = {
    "numpy.dtype": _Dtype,
    "_codecs.encode": _latin1,
    "argparse.Namespace": _Settings,
    "numpy.ndarray": _Unread,
    **{f"numpy.{core}.multiarray.scalar": _read_scalar for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray._reconstruct": _Unread for core in ("core", "_core")},
    **{f"pathlib.{name}": _Unread for name in ("Path", "PosixPath", "WindowsPath", "PurePosixPath")},
    **{
        f"{package}.AttributeDict": _Dict
        for package in (
            *("pytorch_lightning.utilities.parsing", "lightning.pytorch.utilities.parsing"),
            *("lightning_fabric.utilities.data", "lightning.fabric.utilities.data"),
        )
    },
}
"""Functions and classes that training scripts pickle next to weights, and what is called in their place."""


def read_torch_file(path: Path) -> Any:
    """What torch.save wrote, tensors on the CPU, read by torch's weights-only unpickler: no code of the file runs.

    Numbers of numpy are read as Python's; `STAND_INS` names the other types that are replaced. Raises BadInputError as
    `check_torch_file` does, for a pickle that asks for code and for anything else that torch.save did not write.
    """
    import torch

    members = check_torch_file(path)
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([(o, name) for name, o in STAND_INS.items()]):
            warnings.simplefilter("ignore")  # about pickle protocols; whatever matters is an error
            with path.open("rb") as file:  # of a path torch reads what ends in .safetensors as such, whatever it is
                content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle or archive can raise nearly anything, from EOFError to KeyError
        refuse_code(path)
        raise BadInputError(f"{path} is not a file of tensors written by torch.save, or it is damaged") from error
    check_checksums(path, members)
    return content


def check_torch_file(path: Path) -> list[zipfile.ZipInfo]:
    """Return the members of a torch file's zip (none for torch's older format), without loading it.

    Raises BadInputError for an empty file, a damaged zip, compressed members (torch never writes them; a small file
    could unpack to any size) and overlapping ones.
    """
    if path.stat().st_size == 0:
        raise BadInputError(f"{path} is empty")
    try:
        members = zip_members(path)
    except Exception as error:  # zipfile raises six kinds of errors at damaged directories
        raise BadInputError(f"{path} is a damaged zip, not a torch file") from error
    if members:
        if any(m.compress_type != zipfile.ZIP_STORED for m in members):
            raise BadInputError(f"{path} is a compressed zip, not a torch file")
        if sum(m.file_size for m in members) > path.stat().st_size:
            raise BadInputError(f"{path} is a zip whose members overlap, not a torch file")
    if any(
        len(name) > MAX_NAME_CHARACTERS for name in list_pickled_globals(path)
    ):  # torch searches its message in quadratic time
        raise BadInputError(f"{path} is not a file of tensors written by torch.save, or it is damaged")
    return members


def check_checksums(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Raise BadInputError for a member whose bytes differ from its checksum, which torch does not check.

    A member without a checksum (0, an option of torch) is not checked.
    """
    if damaged := next((m.filename for m in members if m.CRC and compute_member_checksum(path, m) != m.CRC), None):
        raise BadInputError(f"{path} is damaged: its part {damaged} is not what was written", "get the file again")


def refuse_code(path: Path) -> None:
    """Raise BadInputError for a pickle that names functions or classes that neither tensors nor settings need."""
    known = ("torch", "collections")
    foreign = [name for name in list_pickled_globals(path) if name.split(".")[0] not in known and name not in STAND_INS]
    if foreign:
        raise BadInputError(f"{path} is refused: loading it would execute code ({', '.join(foreign[:3])})")


def zip_members(path: Path) -> list[zipfile.ZipInfo]:
    """What a zip holds; nothing for a file that is none."""
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()


def read_member(path: Path, member: zipfile.ZipInfo) -> bytes:
    """A member of a zip that is not compressed, as torch reads it: whatever its checksum says."""
    return b"".join(read_member_chunks(path, member))


def compute_member_checksum(path: Path, member: zipfile.ZipInfo) -> int:
    """The CRC-32 of a member of a zip that is not compressed."""
    crc = 0
    for chunk in read_member_chunks(path, member):
        crc = zlib.crc32(chunk, crc)
    return crc


def read_member_chunks(path: Path, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """The bytes of a member of a zip that is not compressed, some at a time."""
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, 1)
        left = member.file_size
        while left and (chunk := file.read(min(left, CHUNK_BYTES))):
            left -= len(chunk)
            yield chunk


def list_pickled_globals(path: Path) -> list[str]:
    """The functions and classes that a pickle (plain, or inside a torch file) names, read without calling any.

    What cannot be read as a pickle names nothing; a damaged one names what comes before the damage.
    """
    names: list[str] = []
    strings = ["", ""]
    try:
        if zipfile.is_zipfile(path):
            pickled = next(member for member in zip_members(path) if member.filename.endswith("data.pkl"))
            stream = io.BytesIO(read_member(path, pickled))
        else:
            with path.open("rb") as file:
                stream = io.BytesIO(file.read(MAX_PICKLE_BYTES))
        while stream.tell() < len(stream.getbuffer()):  # torch's older files are several pickles, one after the other
            for operation, argument, _ in pickletools.genops(stream):
                if operation.name == "GLOBAL":
                    names.append(str(argument).replace(" ", "."))
                elif operation.name == "STACK_GLOBAL":
                    names.append(".".join(strings))
                elif isinstance(argument, str):
                    strings = [strings[1], argument]
    except Exception:  # what is damaged is refused when it is loaded
        pass
    return list(dict.fromkeys(names))


def to_plain_values(value: Any) -> Any:
    """The value as JSON can hold it: numbers, strings and dicts and lists of them; None for anything else.

    Raises ValueError for more than 100,000 values: a small pickle can refer to the same list any number of times.
    """
    left = MAX_PLAIN_VALUES

    def convert(value: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
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
"""Pickle operations that make dicts, lists, texts and numbers, and call nothing. No tuples: nested ones as keys of a
dict take exponential time to hash."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def read_plain_pickle(path: Path) -> Any:
    """The dicts, lists, texts and numbers of a pickle. Every operation is checked before the first runs.

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
                raise ValueError(f"there is no place {argument}")
        return _PlainUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError as error:
        raise BadInputError(
            f"{path} is refused: it holds more than a vocabulary ({first_line(error)[:60]})",
            "its code is never run; save stoi and itos as plain dicts",
        ) from error
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise BadInputError(f"{path} is damaged: {type(error).__name__} {first_line(error)[:60]}") from error
