"""The beginnings of the games of a PGN, and their tags.

A game begins at a line with a tag that does not follow another line with a tag and is not inside a comment. Comments
are `{...}` over any number of lines, `;` to the end of the line, and lines that begin with `%`. A brace comment that is
never closed ends at the next game: the next line with a tag, if another `{` comes between that line and the next `}`,
or if no `}` follows. Blank lines, comments and text without moves may interrupt tags. Tags in the middle of a game,
after which its move numbers continue, do not begin a game: they belong to its movetext.

Ordinary files are searched with numpy. A block with anything unusual is scanned token by token instead; both methods
give the same borders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

MAX_GAME_BYTES = 8 << 20
"""Maximum bytes of one game with its tags and comments, and of one comment; a longer game is rejected."""

_NAME = r"[A-Za-z0-9][\w+#=:-]*"
_VALUE = r'[^"\\\n]*(?:(?:\\.|"(?![ \t]*\]))[^"\\\n]*)*'  # quotes are escaped, or not followed by a bracket
_TAG = rf'\[[ \t]*{_NAME}[ \t]*"{_VALUE}"[ \t]*\]'
_ANY_TAG = re.compile(rf'\[[ \t]*({_NAME})[ \t]*"(?:({_VALUE})"[ \t]*\]|([^\n]*))', re.ASCII)
_PLAIN_TAG = re.compile(r'^\[(\w+) "([^"\\\n]*)"\]$', re.MULTILINE)
_TAG_NAMES = re.compile(rf"^[ \t]*\[[ \t]*({_NAME})", re.MULTILINE | re.ASCII)
_ENDS_IN_RESULT = r"(?:1-0|0-1|1/2|\*)[ \t]*$"
_NO_MOVES_FOLLOW = rf'(?=\n[ \t]*(?:\n|\Z|\[[ \t]*{_NAME}[ \t]*")|\Z)'
_TEXT_AFTER_TAG = (  # text after a tag on its line that is not movetext
    rf'[^\n]*"\][ \t]*$|(?![ \t]*\d+[ \t]*\.|[^\n]*{_ENDS_IN_RESULT})[^\n]*{_NO_MOVES_FOLLOW}'
)
_HEADER_LINE = re.compile(
    rf"[ \t]*(?:{_TAG}(?:{_TEXT_AFTER_TAG})?|\[[^\n]*|[%;][^\n]*)?[ \t]*(?:\n|\Z)?", re.MULTILINE | re.ASCII
)
_REMARK_LINES = re.compile(r"^[ \t]*[%;][^\n]*", re.MULTILINE)
_TAG_BEGINS = re.compile(rf'^[ \t]*\[[ \t]*{_NAME}[ \t]*"'.encode(), re.MULTILINE)
_TAG_BYTES = re.compile(rf"[ \t]*{_TAG}".encode())
_RESULT_AT_END = re.compile(_ENDS_IN_RESULT)
_BLANK_LINE_AT_END = re.compile(r"\n[ \t]*\n[ \t]*\Z")
_TEXT_AFTER_TAG_BYTES = re.compile(_TEXT_AFTER_TAG.encode(), re.MULTILINE)
_BRACKET_OR_COMMENT = re.compile(rb"^[ \t]*\[[ \t]*[A-Za-z0-9]|\{|;[^\n]*|^%[^\n]*", re.MULTILINE)
_COMMENTS = re.compile(r"\{[^}]*\}|;[^\n]*|^%[^\n]*", re.MULTILINE)
_MOVE_LIKE = re.compile(r"[a-h][1-8]|[O0]-[O0]")
_MOVE_NUMBER = re.compile(r"(?<!\S)(\d{1,4})\s*\.")
_UNDEFINED_BYTES = {byte: chr(byte) for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}
_CP1252 = {byte: _UNDEFINED_BYTES.get(byte) or bytes([byte]).decode("cp1252") for byte in range(0x80, 0xA0)}
_DEEPEST_INDENT = 32  # columns; a line with more indentation is left to the exact scan
_FIRST_TAG = np.frombuffer(b"[Event ", np.uint8)


class RawGame(NamedTuple):
    """One game: the text of its tags and of its moves, its first line (1-based), and whether its source
    truncates it."""

    tags: str
    moves: str
    line: int
    is_cut: bool = False


def decode_text(block: bytes) -> str:
    """Return bytes as text: UTF-8, or Windows-1252 for lines that are not UTF-8. Line ends become `\\n`."""
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        text = "\n".join(map(_decode_line, block.split(b"\n")))
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _decode_line(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        return line.decode("latin-1").translate(_CP1252)


def find_game_starts(block: bytes | bytearray, *, more: bool = False) -> np.ndarray:
    """Return the byte offsets of the lines on which games begin, int64, in a block that begins between two games.

    With `more`, further text follows the block, and borders that depend on that text are omitted.
    """
    quick = _find_starts_by_numpy(block)
    return np.array(_find_starts_by_scan(bytes(block), more), np.int64) if quick is None else quick


def _find_starts_by_numpy(block: bytes | bytearray) -> np.ndarray | None:
    """Return the borders of an ordinary block, None for a block that has to be scanned."""
    data = np.frombuffer(block, np.uint8)
    at = np.flatnonzero(data == ord("["))
    if not len(at):
        return np.zeros(0, np.int64)
    after = data[np.minimum(at + 1, len(data) - 1)]
    letter = after | 32
    at = at[((letter >= ord("a")) & (letter <= ord("z"))) | ((after >= 48) & (after <= 57)) | (after == 32)
            | (after == 9)]  # fmt: skip
    before = at - 1
    for _ in range(_DEEPEST_INDENT):
        blank = np.flatnonzero((before >= 0) & ((data[before] == 32) | (data[before] == 9)))
        if not len(blank):
            break
        before[blank] -= 1
    else:
        return None
    lines = before[(before < 0) | (data[before] == ord("\n"))] + 1
    newlines = np.flatnonzero(data == ord("\n"))
    numbers = np.searchsorted(newlines, lines)
    is_continuation = np.zeros(len(lines), bool)
    is_continuation[1:] = numbers[1:] == numbers[:-1] + 1
    ends = (
        newlines[numbers[:-1][is_continuation[1:]]] - 1
    )  # the last characters of tag lines that precede another tag line
    if (data[ends] != ord("]")).any() or (data[ends - 1] != ord('"')).any():
        return None
    line_starts = lines[~is_continuation]
    if b"{" in block:
        last_open, last_close = (
            _find_last_before(line_starts, data == ord("{")),
            _find_last_before(line_starts, data == ord("}")),
        )
        if (last_open > last_close).any():
            return None
    plain = np.zeros(len(line_starts), bool)
    if len(data) > len(_FIRST_TAG):
        window = np.minimum(line_starts, len(data) - len(_FIRST_TAG))[:, None] + np.arange(len(_FIRST_TAG))
        plain = (data[window] == _FIRST_TAG).all(axis=1)
    for place in line_starts[~plain].tolist():
        if _TAG_BEGINS.match(block, place) is None:
            return None
    return line_starts


def _find_last_before(places: np.ndarray, is_marked: np.ndarray) -> np.ndarray:
    """Return the last marked position before each place, int64, -1 if none."""
    positions = np.concatenate([[-1], np.flatnonzero(is_marked)])
    return positions[np.searchsorted(positions, places) - 1]


def _find_starts_by_scan(block: bytes, more: bool) -> list[int]:
    """Return the borders of any block, found token by token."""
    starts: list[int] = []
    place, close = 0, -1
    group, next_line = -1, -1  # start of the tag lines that belong to no game yet; start of the next such line
    while (match := _BRACKET_OR_COMMENT.search(block, place)) is not None:
        at = match.start()
        if block[at : at + 1] == b"{":
            if close < at and close != len(block):
                close = block.find(b"}", at)
                close = len(block) if close < 0 else close
            border = _TAG_BEGINS.search(block, at, close)
            if border and _is_never_closed(block, at, close, border.start(), more):
                place = border.start()
            elif close < len(block):
                place = close + 1
            else:
                break
        elif block[at : at + 1] in (b";", b"%"):
            place = match.end()
        else:
            if at != next_line:
                group = at
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            if _TAG_BEGINS.match(block, at) is None:  # perhaps a tag without quotes
                place, next_line = match.end(), end + 1
                continue
            if group >= 0:
                starts.append(group)
                group = -1
            tag = _TAG_BYTES.match(block, at)
            if tag and not _TEXT_AFTER_TAG_BYTES.match(block, tag.end()):  # moves on the line of the last tag
                place, next_line = tag.end(), -1
            else:
                place, next_line = end, end + 1
    return starts


def _is_never_closed(block: bytes, at: int, close: int, border: int, more: bool) -> bool:
    """Return whether the comment at `at` ends at the border rather than at the `}` at `close` (the block's length if
    none)."""
    if close - at > MAX_GAME_BYTES or block.find(b"{", border, close) >= 0:
        return True
    return close == len(block) and not more


def find_last_start(buffer: bytearray) -> int:
    """Return where the last game of a buffer certainly begins; 0 if at the buffer's start or unknown."""
    place = buffer.rfind(b"\n[Event ")
    if place > 0 and buffer.rfind(b"{", 0, place) <= buffer.rfind(b"}", 0, place):
        line = buffer.rfind(b"\n", 0, place) + 1
        if not buffer[line:place].lstrip(b" \t").startswith(b"[") and _TAG_BEGINS.match(buffer, place + 1):
            return place + 1
    starts = find_game_starts(buffer, more=True)
    return int(starts[-1]) if len(starts) else 0


def iterate_games(block: bytes, first_line: int) -> Iterator[RawGame]:
    """Yield the games of a block that begins and ends between two games. Text without tags or moves is skipped."""
    edges = find_game_starts(block)
    if not len(edges) or edges[0] > 0:
        edges = np.concatenate([[0], edges])
    newlines = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    lines = (np.searchsorted(newlines, edges) + first_line).tolist()
    ends = [*edges[1:].tolist(), len(block)]
    game: _OpenGame | None = None  # the last game, which is complete only when the next begins
    for start, end, line in zip(edges.tolist(), ends, lines, strict=True):
        text = decode_text(block[start:end])
        border = text.find("]\n\n") + 2
        if border < 2 or text[0] != "[" or text.count("\n", 0, border) != text.count("\n[", 0, border) + 1:
            border = _find_header_end(text)
        tags, moves = text[:border], text[border:]
        if game is not None:
            if tags and game.can_take_tags(tags):
                game.tags.append(tags)
                game.moves, game.line = [moves], game.line if game.tags[0].strip() else line
                continue
            if _is_continuation(game.moves[-1], moves):
                game.moves.append(text)
                continue
            yield game.build_raw_game()
        game = _OpenGame([tags], [moves], line) if tags.strip() or _skip_comments(moves).strip() else None
    if game is not None:
        yield game.build_raw_game()


@dataclass(slots=True)
class _OpenGame:
    """A game to which further tags or text may belong; `names` are the tag names after the first tags."""

    tags: list[str]
    moves: list[str]
    line: int
    names: set[str] = field(default_factory=set)

    def can_take_tags(self, tags: str) -> bool:
        """Return whether the game has no moves so far and none of these tags."""
        if _MOVE_LIKE.search(_skip_comments(self.moves[-1])):
            return False
        if not self.names:
            self.names.update(_TAG_NAMES.findall(self.tags[0]))
        new = set(_TAG_NAMES.findall(tags))
        if not self.names.isdisjoint(new):
            return False
        self.names |= new
        return True

    def build_raw_game(self) -> RawGame:
        return RawGame("".join(self.tags), "".join(self.moves), self.line)


def _find_header_end(text: str) -> int:
    """Return where a game's tags end, including the blank lines and remarks between and after them."""
    place = 0
    while (line := _HEADER_LINE.match(text, place)) is not None and line.end() > place:
        place = line.end()
    return place


def _skip_comments(moves: str) -> str:
    """Return movetext, without comments if it begins with one."""
    return blank_comments(moves) if moves.lstrip()[:1] in ("{", ";", "%") else moves


def _is_continuation(before: str, moves: str) -> bool:
    """Return whether a movetext after tags continues the movetext before them.

    It does if `before` has no result and the first move number of `moves` is not 1; after a blank line, the number has
    to follow the previous one.
    """
    if moves.lstrip().startswith("1.") or _RESULT_AT_END.search(before.rstrip()):
        return False
    first_number, numbers = _MOVE_NUMBER.search(blank_comments(moves)), _MOVE_NUMBER.findall(blank_comments(before))
    if not numbers or (first_number is not None and int(first_number[1]) == 1):
        return False
    return not _BLANK_LINE_AT_END.search(before) or (
        first_number is not None and 0 <= int(first_number[1]) - int(numbers[-1]) <= 2
    )


def blank_comments(moves: str) -> str:
    """Return movetext in which white space (not a line end) replaces each closed comment."""
    return _COMMENTS.sub("\x1f", moves)


def parse_tags(text: str) -> dict[str, str]:
    """Return the tag pairs of a game with escapes resolved; the last of two tags with the same name wins."""
    pairs = _PLAIN_TAG.findall(text)
    if len(pairs) == text.count("["):
        return dict(pairs)
    tags = {}
    for name, value, tail in _ANY_TAG.findall(_REMARK_LINES.sub("", text)):
        tags[name] = re.sub(r'\\(["\\])', r"\1", value) if not tail else tail.rstrip('"] \t')
    return tags
