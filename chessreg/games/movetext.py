"""PGN text: where each game begins, its tags, and its movetext cleaned down to SAN words and a result.

All leniency towards untidy PGN is here, once, in front of both readers: comments, variations, NAGs, `1...`, zeros for
castling, `e8Q`, `e.p.`, missing blank lines, missing tags, byte order marks, CRLF, Latin-1. What is left is legal chess
or it is not, which the reader says.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

_MARK = b"\xef\xbb\xbf"  # the byte order mark: first in a file, or between files that were joined
RESULTS = frozenset({"1-0", "0-1", "1/2-1/2", "*"})
_RESULT_SPELLINGS = {
    **{result: result for result in RESULTS},
    **dict.fromkeys(("1/2", "½-½", "1/2 - 1/2", "0.5-0.5", "=-="), "1/2-1/2"),
}
_TAG = re.compile(r'\[\s*(\w+)\s+"((?:[^"\\\n]|\\.)*)"?\s*\]')
_PLAIN_TAG = re.compile(r'^\[(\w+) "([^"\\\n]*)"\]$', re.MULTILINE)
_TAG_LINES = re.compile(r'(?:[ \t]*\[[ \t]*\w+[ \t]+"[^\n]*(?:\n|\Z)|[ \t]*(?:%[^\n]*)?\n)*')
_ASIDES = re.compile(r"\{[^}]*\}|;[^\n]*|^%[^\n]*", re.MULTILINE)
_INNERMOST = re.compile(r"\([^()]*\)")
_MARKS = re.compile(r"\$\d+|[!?]+|\be\.?p\.(?=\s|$)")
_NUMBER = re.compile(r"(?<![\w=+#/-])\d+\s*\.[.\s]*|(?<!\S)\.{2,}")
_SAN = re.compile(r"(?:[KQRBN][a-h]?[1-8]?x?[a-h][1-8]|(?:[a-h][1-8]?x?)?[a-h][1-8](?:=[QRBN])?|O-O(?:-O)?)[+#]?")
_PROMOTION = re.compile(r"^((?:[a-h][1-8]?x?)?[a-h][18])[=/(]?([QRBNqrbn])\)?$")
_ORNAMENTS = re.compile(r"^P(?=[a-h])|(?<=[1-8])(?:ep|e\.p\.?)$|(?<=[1-8])-(?=[a-h])")
_NULL = frozenset({"--", "Z0", "null", "pass", "@@@@", "0000"})

LONGEST_GAME = 32_767
"""Plies: what fits the column. The longest possible game under the 75-move rule has 17,697."""
LONGEST_TEXT = 8 << 20
"""Characters of one game, tags and comments and all: what is longer is refused."""
_PLAIN_LIMIT = 1 << 17  # characters: fewer plies than the longest game, whatever the moves


class RawGame(NamedTuple):
    """A game as found: the text of its tags, of its moves, and the line (1-based) on which it begins; whether its
    source cuts it short."""

    tags: str
    moves: str
    line: int
    cut: bool = False


class Movetext(NamedTuple):
    """Cleaned movetext. `text` is what a reader takes (SAN words, move numbers allowed); `sans` the source's own SAN
    words where cleaning changed the text, None where it is plain; `problem` is (plies before it, reason) or None."""

    text: str
    sans: list[str] | None
    result: str | None
    problem: tuple[int, str] | None = None


def decode(block: bytes) -> str:
    """Text of bytes in UTF-8, line by line in Latin-1 where that fails; one kind of line end."""
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        text = "\n".join(map(_decode_line, block.split(b"\n")))
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _decode_line(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1")


def starts(block: bytes | bytearray) -> np.ndarray:
    """Byte offsets of lines that begin a game's tags, int64: a line `[X…` whose predecessor is no tag line."""
    data = np.frombuffer(block, np.uint8)
    if len(data) < 2:
        return np.zeros(0, np.int64)
    brackets = np.flatnonzero((data[1:] == ord("[")) & (data[:-1] == ord("\n"))) + 1
    last = data[np.maximum(brackets - 2, 0)]
    last = np.where(last == ord("\r"), data[np.maximum(brackets - 3, 0)], last)
    begins = brackets[last != ord("]")]
    # Only a tag counts: a letter after the bracket (`[%eval` inside a broken comment is none).
    following = data[np.minimum(begins + 1, len(data) - 1)]
    begins = begins[(following | 32 >= ord("a")) & (following | 32 <= ord("z"))]
    return np.concatenate([[0], begins]) if data[0] == ord("[") else begins


def split(block: bytes, first_line: int) -> Iterator[RawGame]:
    """The games of a block that ends between two games. Text without tags or moves is passed over."""
    if _MARK in block:
        block = block.replace(_MARK, b"")
    edges = starts(block)
    if not len(edges) or edges[0] > 0:
        edges = np.concatenate([[0], edges])
    newlines = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    lines = (np.searchsorted(newlines, edges) + first_line).tolist()
    ends = [*edges[1:].tolist(), len(block)]
    held: tuple[str, int] | None = None  # tags whose moves have not come: a blank line stood inside the tags
    for start, end, line in zip(edges.tolist(), ends, lines, strict=True):
        text = decode(block[start:end])
        border = text.find("]\n\n") + 2
        if border < 2 or text[0] != "[" or text.count("\n", 0, border) != text.count("\n[", 0, border) + 1:
            border = _TAG_LINES.match(text).end()  # type: ignore[union-attr]  # it matches the empty string too
        tags, moves = text[:border], text[border:]
        if held is not None:
            if tags.startswith("[Event "):
                yield RawGame(held[0], "", held[1])
            else:
                tags, line = held[0] + tags, held[1]
            held = None
        if moves.strip():
            yield RawGame(tags, moves, line)
        elif tags.strip():
            held = (tags, line)
    if held is not None:
        yield RawGame(held[0], "", held[1])


def result(word: str) -> str | None:
    """`1-0`, `0-1`, `1/2-1/2` or `*` for any spelling of it, None for anything else."""
    return _RESULT_SPELLINGS.get(word.strip())


def tags(text: str) -> dict[str, str]:
    """The tag pairs of a game, escapes resolved; the last of two with one name wins."""
    pairs = _PLAIN_TAG.findall(text)
    if len(pairs) == text.count("["):
        return dict(pairs)
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in _TAG.findall(text)}


def clean(moves: str) -> list[Movetext]:
    """The games in one movetext: one, or more where a result is followed by further moves.

    What looks like a plain export is passed on as it is, unproved: it counts only if the reader's own text of the game
    is the same, and goes through `clean_slowly` otherwise.
    """
    if len(moves) < _PLAIN_LIMIT:
        head, _, tail = moves.strip().replace("\n", " ").rpartition(" ")
        one = tail in RESULTS and not ("1-0" in head or "0-1" in head or "1/2" in head or "*" in head)
        if one and not ("{" in head or "(" in head or "!" in head or "?" in head or "$" in head or ";" in head):
            return [Movetext(head, None, tail)]
    return clean_slowly(moves)


def clean_slowly(moves: str) -> list[Movetext]:
    """The same, word by word."""
    text = _ASIDES.sub(" ", moves)
    broken = "a comment is not closed" if "{" in text else "a comment is closed that was not opened"
    brace = min((place for place in (text.find("{"), text.find("}")) if place >= 0), default=-1)
    if brace >= 0:
        text = text[:brace]
    depth_left = text.count("(")
    while depth_left:
        text, replaced = _INNERMOST.subn(" ", text)
        if not replaced:
            break
        depth_left -= replaced
    bracket = min((place for place in (text.find("("), text.find(")")) if place >= 0), default=-1)
    if bracket >= 0:
        broken, brace = "a variation is not closed" if text[bracket] == "(" else "a stray )", bracket
        text = text[:bracket]
    games = list(_games(_NUMBER.sub(" ", _MARKS.sub(" ", text)).split()))
    if brace >= 0:
        last = games.pop() if games else Movetext("", [], None)
        problem = last.problem or (len(last.sans or []), broken)
        games.append(Movetext(last.text, last.sans, last.result, problem))
    return games or [Movetext("", [], None)]


def _games(tokens: list[str]) -> Iterator[Movetext]:
    """Cut words at results."""
    source: list[str] = []
    for word in tokens:
        result = _RESULT_SPELLINGS.get(word)
        if result is not None:
            yield _movetext(source, result)
            source = []
        elif not word.isdigit():  # a move number without its dot
            source.append(word)
    if source:
        yield _movetext(source, None)


def _movetext(source: list[str], result: str | None) -> Movetext:
    if len(source) > LONGEST_GAME:
        return Movetext("", [], result, (LONGEST_GAME, f"more than {LONGEST_GAME:,} plies"))
    sans = [normal(word) for word in source]
    if "" in sans:
        ply = sans.index("")
        kind = "null move" if source[ply] in _NULL else "unreadable move"
        return Movetext(" ".join(sans[:ply]), source[:ply], result, (ply, f"{kind}: {source[ply][:20]}"))
    return Movetext(" ".join(sans), source, result)


@functools.lru_cache(1 << 16)
def normal(word: str) -> str:
    """A word as SAN that both readers take, "" where it is none. Check marks and disambiguation stay as they are.

    >>> normal("0-0+"), normal("e8Q"), normal("Ng1-f3"), normal("hello")
    ('O-O+', 'e8=Q', 'Ng1f3', '')
    """
    san = word.rstrip("+#")
    mark = "#" if "#" in word[len(san) :] else "+" if len(san) < len(word) else ""
    san = san.replace("0-0", "O-O").replace("O-0", "O-O").replace("o-o-o", "O-O-O").replace("o-o", "O-O")
    san = _ORNAMENTS.sub("", san).replace(":", "x")
    san = _PROMOTION.sub(lambda match: f"{match[1]}={match[2].upper()}", san)
    return san + mark if _SAN.fullmatch(san) else ""


def numbered(sans: Sequence[str]) -> str:
    """The text of a game as datasets keep it, from moves in SAN.

    >>> numbered(["e4", "e5", "Nf3"])
    ';1.e4 e5 2.Nf3'
    """
    return ";" + " ".join(f"{i // 2 + 1}.{san}" if i % 2 == 0 else san for i, san in enumerate(sans))
