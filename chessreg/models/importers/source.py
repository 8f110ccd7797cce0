"""Opening a file that someone else made, without running anything in it."""

from __future__ import annotations

import io
import pickletools
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chessreg.errors import BadInputError, NotFoundError

LONGEST_NAME = 1000  # characters of a function or class that a pickle names
CHUNK = 1 << 20  # bytes of a member that are in memory at once
MOST_BYTES = 64 << 20  # of a file that is no zip, in which names are looked for


@dataclass(frozen=True)
class Source:
    """A path and what it holds: `content` is the object of a torch file, None for a folder."""

    path: Path
    content: Any = None

    @property
    def description(self) -> str:
        """What was found, for the message that it is no checkpoint."""
        if self.content is None:
            return f"a folder of {', '.join(sorted(p.name for p in self.path.iterdir())[:5]) or 'nothing'}"
        return f"a torch file with {contents(self.content)}"


def contents(value: Any, most: int = 8) -> str:
    """An object of a torch file in words, with the shapes of its tensors, for messages about a wrong file.

    >>> contents({"layer": 3, "metadata": {}})
    'the keys layer, metadata'
    """
    shape = f" {list(value.shape)}" if hasattr(value, "shape") else ""
    if not isinstance(value, dict):
        return f"a {type(value).__name__.lower()}{shape}"
    shapes = {str(key): f" {list(v.shape)}" if hasattr(v, "shape") else "" for key, v in value.items()}
    named = [f"{key[:60]}{shapes[key]}" for key in sorted(shapes)]
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return f"the keys {', '.join(named[:most])}{more}" if named else "no keys"


def open_source(path: Path) -> Source:
    """A folder as it is, a file as a torch file. Raises NotFoundError or BadInputError."""
    if not path.exists():
        raise NotFoundError(f"no file or folder {path}")
    return Source(path) if path.is_dir() else Source(path, read_torch_file(path))


def read_torch_file(path: Path) -> Any:
    """What torch.save wrote, tensors on the CPU, read by torch's weights-only unpickler: no code of the file runs.

    Raises BadInputError for a pickle that asks for code, a damaged or truncated file, compressed zip members (torch
    never writes them; a small file could unpack to any size) and anything else that is no torch file. torch itself does
    not look at checksums; a member without one (0, an option of torch) is taken as it is.
    """
    import torch

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
    if any(len(name) > LONGEST_NAME for name in globals_named(path)):  # torch searches its message in quadratic time
        raise BadInputError(f"{path} is not a file of tensors written by torch.save, or it is damaged")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols; whatever matters is an error
            with path.open("rb") as file:  # of a path torch reads what ends in .safetensors as such, whatever it is
                content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle or archive can raise nearly anything, from EOFError to KeyError
        refuse_code(path)
        raise BadInputError(f"{path} is not a file of tensors written by torch.save, or it is damaged") from error
    if damaged := next((m.filename for m in members if m.CRC and checksum(path, m) != m.CRC), None):
        raise BadInputError(f"{path} is damaged: its part {damaged} is not what was written", "get the file again")
    return content


def refuse_code(path: Path) -> None:
    """Raise BadInputError for a pickle that names functions or classes beside those of tensors."""
    if foreign := [name for name in globals_named(path) if name.split(".")[0] not in ("torch", "collections")]:
        raise BadInputError(f"{path} is refused: loading it would execute code ({', '.join(foreign[:3])})")


def zip_members(path: Path) -> list[zipfile.ZipInfo]:
    """What a zip holds; nothing for a file that is none."""
    if not zipfile.is_zipfile(path):
        return []
    with zipfile.ZipFile(path) as archive:
        return archive.infolist()


def stored(path: Path, member: zipfile.ZipInfo) -> bytes:
    """A member of a zip that is not compressed, as torch reads it: whatever its checksum says."""
    return b"".join(chunks(path, member))


def checksum(path: Path, member: zipfile.ZipInfo) -> int:
    """The CRC-32 of a member of a zip that is not compressed."""
    crc = 0
    for chunk in chunks(path, member):
        crc = zlib.crc32(chunk, crc)
    return crc


def chunks(path: Path, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """The bytes of a member of a zip that is not compressed, some at a time."""
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(name + extra, 1)
        left = member.file_size
        while left and (chunk := file.read(min(left, CHUNK))):
            left -= len(chunk)
            yield chunk


def globals_named(path: Path) -> list[str]:
    """The functions and classes that a pickle (plain, or inside a torch file) names, read without calling any.

    What cannot be read as a pickle names nothing; a damaged one names what comes before the damage.
    """
    names: list[str] = []
    strings = ["", ""]
    try:
        if zipfile.is_zipfile(path):
            pickled = next(member for member in zip_members(path) if member.filename.endswith("data.pkl"))
            stream = io.BytesIO(stored(path, pickled))
        else:
            with path.open("rb") as file:
                stream = io.BytesIO(file.read(MOST_BYTES))
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


def plain(value: Any) -> Any:
    """The value as JSON can hold it: numbers, strings and dicts and lists of them; None for anything else."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "item") and getattr(value, "numel", lambda: 0)() == 1:
        value = value.item()
    if isinstance(value, float) and value - value != 0:  # JSON has no NaN and no infinity
        return None
    return value if isinstance(value, bool | int | float | str) else None
