"""Source files as a stream of blocks that end between two games: plain, zst, gz, bz2 or zip, with constant memory."""

from __future__ import annotations

import bz2
import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from chessreg.errors import BadInputError, NotFoundError, reraise_lack_of_memory
from chessreg.games.datasets import borders
from chessreg.games.datasets.borders import RawGame
from chessreg.games.datasets.remote import InputFile, fetch_copy

BLOCK_BYTES = 4 << 20
"""Bytes of text per block: about 6,000 games, 200 MB of working memory per worker."""
_MAX_UNCUT_BYTES = borders.MAX_GAME_BYTES
"""Text without a border between games is cut after this many bytes."""
_MAX_WINDOW_BYTES = 1 << 27  # the window of `zstd --long`; a larger one could exhaust memory
_MAGIC = {b"\x28\xb5\x2f\xfd": "zst", b"\x1f\x8b": "gz", b"BZh": "bz2", b"PK\x03\x04": "zip"}
_ARCHIVES = (
    (257, b"ustar", "a tar archive", "tar xf"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x"),
    (0, b"Rar!\x1a\x07", "a RAR archive", "unrar x"),
    (0, b"\xfd7zXZ\0", "an xz file", "unxz"),
    (0, b"\x1f\x9d", "a compress file", "uncompress"),
    (0, b"\x04\x22\x4d\x18", "an lz4 file", "unlz4"),
)
"""(offset of the magic bytes, magic bytes, kind, command that unpacks it) of unsupported files."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # at the start of a file, or between concatenated files


class BrokenStreamError(Exception):
    """Raised when a stream cannot be decoded completely. The message is the reason."""


class _Decoder(Protocol):
    """The part of the interface of bz2 and lzma decompressors that readers use."""

    def decompress(self, data: bytes, /) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


class GameSource:
    """One source file. Once `blocks` is exhausted, `sha256` is the digest of the file's bytes on disk."""

    def __init__(self, path: InputFile, text: bool = True) -> None:
        """Raises NotFoundError; BadInputError for a folder, an empty file and, if `text`, for an archive or other
        binary data."""
        if not path.exists():
            raise NotFoundError(f"{path} does not exist")
        if not path.is_file():
            raise BadInputError(f"{path} is not a file", "give the PGN files themselves")
        self.path = path
        self.bytes_total = path.stat().st_size
        self.bytes_done = 0
        self._digest = hashlib.sha256()
        if not self.bytes_total:
            raise BadInputError(f"{path} is empty")
        try:
            with path.open("rb") as file:
                head = file.read(4096)
        except OSError as error:
            raise BadInputError(f"{path} cannot be read: {error.strerror}") from error
        if not text:
            return
        self.compression = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
        suffix = path.suffix.lower().lstrip(".")
        if suffix in _MAGIC.values() and suffix != self.compression:
            raise BadInputError(f"{path} is not a {suffix} file, despite its name")
        if not self.compression:
            _refuse_archive(path, head)
        if self.compression == "zip":
            self._member = _find_only_member(path)

    @property
    def first_line(self) -> int:
        """The line on which the first block begins."""
        return 1

    @property
    def notes(self) -> list[str]:
        """Remarks on the file's layout, for the report; empty for a PGN."""
        return []

    def split(self, block: bytes, first_line: int) -> Iterator[RawGame]:
        """Yield the games of a block that begins on `first_line`."""
        return borders.iterate_games(block, first_line)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without its digest, which cannot be pickled; another process only splits blocks."""
        return {name: value for name, value in vars(self).items() if name != "_digest"}

    def blocks(self) -> Iterator[bytes]:
        """Yield blocks of complete games.

        Raises BrokenStreamError after the last block if the stream cannot be decoded completely; `args[1]` of the
        exception is the text of the truncated game.
        """
        buffer = bytearray()
        full_bytes = BLOCK_BYTES
        is_skipping = False  # skipping the rest of a game that is too long
        try:
            for chunk in self._text():
                buffer += chunk
                if is_skipping:
                    is_skipping, lines = _drop_long_game(buffer)
                    yield lines
                while len(buffer) >= full_bytes:
                    cut_place = _find_cut(buffer)
                    if not cut_place and len(buffer) >= _MAX_UNCUT_BYTES:
                        is_skipping = _is_one_game(buffer)
                        cut_place = len(buffer) if is_skipping else buffer.rfind(b"\n") + 1
                    if not cut_place:
                        full_bytes = (
                            len(buffer) + BLOCK_BYTES // 4
                        )  # do not search for a border again after a few bytes
                        break
                    yield bytes(buffer[:cut_place])
                    del buffer[:cut_place]
                    full_bytes = BLOCK_BYTES
        except BrokenStreamError as error:
            game_end = borders.find_last_start(buffer)
            if game_end:
                yield bytes(buffer[:game_end])
            raise BrokenStreamError(str(error), bytes(buffer[game_end:])) from error
        if buffer:
            yield bytes(buffer)

    def _read(self, file: IO[bytes], size: int) -> bytes:
        """Read bytes and add them to the digest. Raises BrokenStreamError."""
        try:
            data = file.read(size)
        except OSError as error:
            reraise_lack_of_memory(error)
            raise BrokenStreamError(f"it cannot be read after byte {self.bytes_done}: {error.strerror}") from error
        self._digest.update(data)
        self.bytes_done += len(data)
        return data

    @contextmanager
    def _read_copy(self) -> Iterator[Path]:
        """Yield the file on disk, for a format that is not read from the beginning to the end; add it to the digest."""
        with fetch_copy(self.path) as path:
            with path.open("rb") as file:
                while data := file.read(1 << 20):
                    self._digest.update(data)
            yield path

    def _iterate_zip_content(self) -> Iterator[bytes]:
        """Yield the text of the archive's only file."""
        done_bytes = 0
        try:
            with (
                self._read_copy() as path,
                zipfile.ZipFile(path) as archive,
                archive.open(self._member) as member,
            ):
                while data := member.read(1 << 18):
                    done_bytes += len(data)
                    self.bytes_done = self.bytes_total * done_bytes // max(self._member.file_size, done_bytes)
                    yield data
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
            reraise_lack_of_memory(error)
            raise BrokenStreamError(f"its zip data is damaged, encrypted or of an unknown kind: {error}") from error
        self.bytes_done = self.bytes_total

    def _text(self) -> Iterator[bytes]:
        """Yield the decoded bytes with `\\n` as the only line end and without byte order marks."""
        held_bytes = b""
        for chunk in self._iterate_decoded():
            data = held_bytes + chunk
            cut_place = len(data) - (
                2 if data.endswith(_BYTE_ORDER_MARK[:2]) else data.endswith((b"\r", _BYTE_ORDER_MARK[:1]))
            )
            held_bytes = data[cut_place:]
            yield _normalize_line_ends(data[:cut_place])
        yield _normalize_line_ends(held_bytes)

    def _iterate_decoded(self) -> Iterator[bytes]:
        """Yield the unpacked bytes of the file. Raises BrokenStreamError, and BadInputError for an archive inside."""
        has_begun = False
        for chunk in self._iterate_zip_content() if self.compression == "zip" else self._iterate_decompressed():
            if not has_begun and self.compression:
                _refuse_archive(self.path, chunk)
                has_begun = True
            yield chunk

    def _iterate_decompressed(self) -> Iterator[bytes]:
        """Yield the decompressed bytes of a file that is not a zip. Raises BrokenStreamError."""
        with self.path.open("rb") as file:
            if not self.compression:
                while data := self._read(file, 1 << 20):
                    yield data
                return
            make, errors = _make_decoder(self.compression)
            decoder: _Decoder | None = None
            # Small reads, because zstd may unpack four bytes to 128 KiB.
            while data := self._read(file, 1 << 12):
                while data:
                    if decoder is None:
                        if not data.strip(b"\0"):  # padding after the last member
                            break
                        decoder = make()
                    try:
                        text = decoder.decompress(data)
                    except errors as error:
                        raise BrokenStreamError(f"its {self.compression} data is damaged: {error}") from error
                    if text:
                        yield text
                    data = decoder.unused_data if decoder.eof else b""
                    if decoder.eof:
                        decoder = None
            if decoder is not None:
                raise BrokenStreamError(f"its {self.compression} data is cut off")


def _normalize_line_ends(data: bytes) -> bytes:
    """Return the bytes with `\n` as the only line end and without byte order marks."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return data.replace(_BYTE_ORDER_MARK, b"") if _BYTE_ORDER_MARK in data else data


def _refuse_archive(path: InputFile, head: bytes) -> None:
    """Raise BadInputError if the first bytes of a file, or of its unpacked content, are not text."""
    for place, magic, kind, command in _ARCHIVES:
        if head[place : place + len(magic)] == magic:
            hint = f"unpack it and give the files inside: {command} {path}"
            raise BadInputError(f"{path} holds {kind}, not one text file", hint)
    inside = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
    if inside:
        raise BadInputError(f"{path} is packed twice: it holds a {inside} file", "unpack the outer file first")
    if b"\0" in head:
        is_utf16 = head.startswith((b"\xff\xfe", b"\xfe\xff"))
        hint = (
            "it is UTF-16; save it as UTF-8" if is_utf16 else "games are text in UTF-8 or Windows-1252, or that packed"
        )
        raise BadInputError(f"{path} is not text: its byte {head.index(0) + 1} is zero", hint)


def _find_only_member(path: InputFile) -> zipfile.ZipInfo:
    """Return the only file of an archive, ignoring macOS's additions."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = [m for m in archive.infolist() if not m.is_dir() and not m.filename.startswith("__MACOSX/")]
    except (zipfile.BadZipFile, OSError) as error:
        reraise_lack_of_memory(error)
        raise BadInputError(f"{path} is a damaged zip: {error}", "get the file again") from error
    if len(members) != 1:
        raise BadInputError(
            f"{path} holds {len(members)} files, not one", f"unpack it and give the files inside: unzip {path}"
        )
    return members[0]


def _make_decoder(compression: str) -> tuple[Callable[[], _Decoder], tuple[type[Exception], ...]]:
    """Return (function that makes a decompressor, the errors that it raises)."""
    if compression == "zst":
        import zstandard

        # One frame at a time: a decompressor across frames does not report whether the last one ended.
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
        return decompressor.decompressobj, (zstandard.ZstdError,)
    if compression == "gz":
        return lambda: zlib.decompressobj(31), (zlib.error,)
    return bz2.BZ2Decompressor, (OSError, ValueError)


def _find_cut(buffer: bytearray) -> int:
    """Return the index between two games at which to cut a full buffer, in bytes; 0 if no border is found, so that the
    caller reads on."""
    cut_place = borders.find_last_start(buffer)
    if not cut_place:  # games without tags: after a blank line that follows a result
        for result in (b"1-0\n\n", b"0-1\n\n", b"1/2\n\n", b"*\n\n"):
            place = buffer.rfind(result)
            cut_place = max(cut_place, place + len(result) if place >= 0 else 0)
    return cut_place


def _is_one_game(buffer: bytearray) -> bool:
    """Return whether a long text without a border ends inside a comment or inside a line that is not a list
    of moves."""
    return buffer.rfind(b"{") > buffer.rfind(b"}") or len(buffer) - buffer.rfind(b"\n") > _MAX_UNCUT_BYTES // 2


def _drop_long_game(buffer: bytearray) -> tuple[bool, bytes]:
    """Drop the text before the next game; return whether the game continues, and the line ends that were dropped."""
    starts = borders.find_game_starts(buffer, more=True)
    # A border may span the cut, so keep the last line, or the end of a long one.
    end = int(starts[0]) if len(starts) else max(buffer.rfind(b"\n"), len(buffer) - 256, 0)
    lines = b"\n" * buffer.count(b"\n", 0, end)
    del buffer[:end]
    return not len(starts), lines
