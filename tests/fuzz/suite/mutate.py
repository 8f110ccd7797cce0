"""Inputs that are nearly right: real ones, changed in their own structure (JSON, CSV, zip, safetensors, fragments)."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import zstandard

APART = b"\n=====\n"  # between the files of one input
LARGEST = 1 << 16  # bytes of an input
NUMBERS = (
    "0", "-1", "1", "2", "7", "8", "63", "64", "65", "255", "1e308", "1e309", "-0.0", "nan", "inf", "-inf", "1e-320",
    "2147483648", "4294967295", "9223372036854775807", "9223372036854775808", "18446744073709551616", "9" * 400,
    "1_000", "0x10", "٣", "½", "1.5", ".", "-", "+5", "9" * 5000,
)  # fmt: skip
WORDS = (
    "", " ", "\0", "\n", "\r", "\t", "\x1b[31m", "\x7f", "\u202e", "\ufeff",
    "é", "e\u0301", "ß", "ı", "😀", "\U000e0001",
    "../x", "/etc/passwd", "a/../../b", "~", "*", "%", "_", "'", '"', "`", "\\", ";", "--", "/*", "{}", "[]",
    "{0}", "%s",
    "null", "None", "true", "NaN", "Infinity", "[" * 3000, '{"a":' * 3000, "(" * 3000, "x" * 300, "A" * 5000, "\ud800",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 63, 64, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308,
    float("inf"), float("nan"), "", "x", "0", "-1",
    [], {}, [[]], [None], [0], {"a": 1}, {"": None}, "\0", "\ud800", "../x",
    "x" * 3000, list(range(300)), [1e308] * 3,
)  # fmt: skip
TOKEN = re.compile(rb"[A-Za-z_]+|\d+(?:\.\d+)?|\s+|.", re.DOTALL)


class Mutator:
    """Changed copies of the inputs in `pool`, by one random stream. `words` are the field's own."""

    def __init__(
        self,
        seed: int,
        pool: Sequence[bytes],
        words: Sequence[str] = (),
        command: Callable[[random.Random, bytes], bytes] | None = None,
    ) -> None:
        self.random, self._command = random.Random(seed), command
        self.pool = list(pool)
        self.words = [*words] * 4 + list(WORDS)

    def changed(self, form: str) -> bytes:
        """One input: something of the pool, changed one to five times."""
        data = self.random.choice(self.pool)
        change: Callable[[bytes], bytes] = getattr(self, form)
        for _ in range(self.random.choice((1, 1, 1, 2, 2, 3, 5))):
            try:
                data = change(data) if self.random.random() < 0.8 else self.bytes(data)
            except (
                ValueError,
                KeyError,
                TypeError,
                RecursionError,
                MemoryError,
                zipfile.BadZipFile,
                struct.error,
                zstandard.ZstdError,
            ):
                data = self.bytes(data)  # it is no longer of its form
            except (NotImplementedError, OSError, RuntimeError, zlib.error, EOFError):
                data = self.bytes(data)
        return data[:LARGEST]

    # -- forms ----------------------------------------------------------------------------------------------------

    def bytes(self, data: bytes) -> bytes:
        """Any bytes: flipped, cut, doubled, moved, spliced with another input."""
        at = self.random.randrange(len(data) + 1)
        end = min(len(data), at + self.random.choice((1, 1, 2, 4, 8, 64, 1024)))
        kind = self.random.randrange(7)
        if kind == 0 and data:
            at = min(at, len(data) - 1)
            return data[:at] + bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :]
        if kind == 1:
            return data[:at] + data[end:]
        if kind == 2:
            return data[:at] + data[at:end] * self.random.choice((2, 3, 50)) + data[end:]
        if kind == 3:
            return data[:at] + self.random.randbytes(self.random.choice((1, 2, 4, 8))) + data[end:]
        if kind == 4:
            return data[:at]
        if kind == 5:
            other = self.random.choice(self.pool)
            return data[:at] + other[self.random.randrange(len(other) + 1) :]
        return data[:at] + self.word() + data[at:]

    def text(self, data: bytes) -> bytes:
        """Text: tokens and lines left out, doubled, changed with others, or put in place of numbers and words."""
        if self.random.random() < 0.3:
            lines = data.splitlines(keepends=True)
            return b"".join(self.some(lines))
        tokens = TOKEN.findall(data)
        if not tokens:
            return self.word()
        at = self.random.randrange(len(tokens))
        kind = self.random.randrange(4)
        if kind == 0:
            tokens[at] = self.word()
        elif kind == 1:
            tokens[at] = self.random.choice(NUMBERS).encode()
        elif kind == 2:
            tokens.insert(at, self.word())
        else:
            tokens = self.some(tokens)
        return b"".join(tokens)

    def json(self, data: bytes) -> bytes:
        """A tree: any node replaced, left out, doubled, renamed or put elsewhere."""
        return json.dumps(self.tree(json.loads(data))).encode()

    def csv(self, data: bytes) -> bytes:
        """A table: cells, columns and rows."""
        rows = [line.split(b",") for line in data.split(b"\n")]
        row = self.random.choice(rows)
        kind = self.random.randrange(5)
        if kind == 0:
            row[self.random.randrange(len(row))] = self.word()
        elif kind == 1:
            row[self.random.randrange(len(row))] = self.random.choice(NUMBERS).encode()
        elif kind == 2:
            at = self.random.randrange(max(map(len, rows)))
            rows = [cells[:at] + cells[at + 1 :] for cells in rows]
        elif kind == 3:
            rows = self.some(rows)
        else:
            row[:] = self.some(row)
        return b"\n".join(b",".join(cells) for cells in rows)

    def zip(self, data: bytes) -> bytes:
        """An archive, as torch writes: a member's bytes or name changed, members left out, doubled, moved."""
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
        at = self.random.randrange(len(members))
        if self.random.random() < 0.5:  # most possible errors are in the pickle
            at = next((i for i, (name, _) in enumerate(members) if name.endswith(".pkl")), at)
        name, content = members[at]
        kind = self.random.randrange(6)
        if kind < 4:
            members[at] = name, self.bytes(content) if kind else self.text(content)
        elif kind == 4:
            members[at] = self.word().decode(errors="replace") or "x", content
        else:
            members = self.some(members)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name, content in members:
                archive.writestr(name.replace("\0", "") or "nameless", content)
        return packed.getvalue()

    def safetensors(self, data: bytes) -> bytes:
        """A header's length, its tree, or the numbers behind it."""
        (length,) = struct.unpack("<Q", data[:8])
        header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
        kind = self.random.randrange(4)
        if kind == 0:
            special = self.random.choice(
                (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\0\0\0\0")
            )  # nan, inf …
            at = 4 * self.random.randrange(len(body) // 4 + 1)
            body = body[:at] + special + body[at + 4 :]
        elif kind == 1:
            body = self.bytes(body)
        else:
            header = self.tree(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + body

    def fragment(self, data: bytes) -> bytes:
        """A fragment whose checksum is right again after a line of it was changed."""
        lines = zstandard.ZstdDecompressor().decompress(data, max_output_size=LARGEST).split(b"\n")[:-2]
        at = self.random.randrange(len(lines))
        lines[at] = self.json(lines[at]) if self.random.random() < 0.8 else self.text(lines[at])
        if self.random.random() < 0.2:
            lines[1:] = self.some(lines[1:])
        body = b"\n".join(lines) + b"\n"
        footer = json.dumps({"end": len(lines) - 1, "crc32": zlib.crc32(body)}).encode()
        return zstandard.compress(body + footer + b"\n")

    def command(self, data: bytes) -> bytes:
        """A command's options and arguments, by their types."""
        assert self._command is not None
        return self._command(self.random, data)

    def parts(self, data: bytes) -> bytes:
        """Several files in one input, each changed in its own form."""
        files = data.split(APART)
        at = self.random.randrange(len(files))
        form = (
            self.json if files[at].lstrip()[:1] == b"{" else self.safetensors if b'{"' in files[at][:20] else self.text
        )
        files[at] = form(files[at])
        return APART.join(files)

    # -- parts ----------------------------------------------------------------------------------------------------

    def word(self) -> bytes:
        return self.random.choice(self.words).encode(errors="surrogatepass")

    def some(self, items: Sequence[Any]) -> list[Any]:
        """The items with one left out, doubled, moved or cut off after."""
        found = list(items)
        if found:
            at, kind = self.random.randrange(len(found)), self.random.randrange(4)
            one = found.pop(at)
            if kind == 1:
                found[at:at] = [one] * self.random.choice((2, 3, 30))
            elif kind == 2:
                found.insert(self.random.randrange(len(found) + 1), one)
            elif kind == 3:
                found = found[:at]
        return found

    def tree(self, root: Any) -> Any:
        """A JSON value with one node changed."""
        nodes: list[tuple[Any, Any]] = []
        left = [root]
        while left:
            node = left.pop()
            pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
            for key, child in list(pairs):
                nodes.append((node, key))
                left.append(child)
        if not nodes or self.random.random() < 0.03:
            return self.random.choice(VALUES)
        holder, key = self.random.choice(nodes)
        kind = self.random.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[self.random.choice(self.words)] = holder.pop(key)
        elif kind == 2:
            other, at = self.random.choice(nodes)
            holder[key] = json.loads(json.dumps(other[at])) if at in other or isinstance(other, list) else None
        elif kind == 3 and isinstance(holder, list):
            holder[:] = self.some(holder)
        elif kind == 4:
            holder[key] = [holder[key]] if self.random.random() < 0.5 else {self.random.choice(self.words): holder[key]}
        elif kind == 5:
            holder[key] = self.random.choice(self.words)
        elif kind == 6 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
            with contextlib.suppress(OverflowError):  # half more than a number of 400 digits
                holder[key] += self.random.choice((-1, 1, 0.5, 1000))
        else:
            holder[key] = self.random.choice(VALUES)
        return root
