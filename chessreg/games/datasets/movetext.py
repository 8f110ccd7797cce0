"""Movetext cleaned to SAN words and a result.

Handles, for both readers: comments, variations, annotation glyphs, `1...`, typographic dashes and figurines, zeros for
castling, `e8Q`, `e.p.`. The readers decide whether the words are legal moves.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from chessreg.games.datasets.borders import blank_comments

RESULTS = frozenset({"1-0", "0-1", "1/2-1/2", "*"})
_RESULT_SPELLINGS = {
    **{result: result for result in RESULTS},
    "1:0": "1-0",
    "0:1": "0-1",
    **dict.fromkeys(("1/2", "½", "½-½", "1/2:1/2", "½:½", "0.5-0.5", "0.5:0.5", "=-="), "1/2-1/2"),
}
_SPACED_RESULT = re.compile(
    r"(?<!\S)(?:(1)[ \t]*[-:][ \t]*(0)|(0)[ \t]*[-:][ \t]*(1)|(?:1/2|½|0\.5)[ \t]*[-:][ \t]*(?:1/2|½|0\.5))(?!\S)"
)
_PARENTHESES = re.compile(r"([()])")
_BRACKETED_PROMOTION = re.compile(r"(?<=[18])\(=?([QRBNqrbn])\)")
_MARKS = re.compile(r"\$\d*|[!?]+|\be\.?p\.(?=\s|$)")
_NUMBER = re.compile(
    r"(?<![\w=+#/-])\d+\s*\.[.\s]*(?!\d(?!-[0O]))|(?<!\S)\.{2,}"
)  # `4.0-0` contains a move number, `0.25` does not
_FIRST_NUMBER = re.compile(r"(?<!\S)1\s*\.(?![.\d])")
_FIRST_FOLLOWS = re.compile(r"\s*1\s*\.(?![.\d])")
_NEXT_WORD = re.compile(r"\s*(\d+\s*\.[.\s]*)?([^\s.]\S*)?")
_BORDER = re.compile(
    r"(?<!\S)(?:" + "|".join(re.escape(spelling) for spelling in _RESULT_SPELLINGS) + r")(?!\S)|\n[ \t]*\n"
)
_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_SAN = re.compile(r"(?:[KQRBN][a-h]?[1-8]?x?[a-h][1-8]|(?:[a-h][1-8]?x?)?[a-h][1-8](?:=[QRBN])?|O-O(?:-O)?)[+#]?")
_PROMOTION = re.compile(r"^((?:[a-h][1-8]?x?)?[a-h][18])[=/(]?([QRBNqrbn])\)?$")
_ORNAMENTS = re.compile(r"^P(?=[a-h])|(?<=[1-8])(?:ep|e\.p\.?)$|(?<=[1-8])-(?=[a-h])")
_CASTLING = {**dict.fromkeys(("OO", "00", "oo"), "O-O"), **dict.fromkeys(("OOO", "000", "ooo"), "O-O-O")}
_NULL = frozenset({"--", "Z0", "null", "pass", "@@@@", "0000"})
_GLYPH_WORDS = frozenset({"N", "TN", "D", "RR", "ep", "e.p", "ch", "dis", "dbl", "mate"})
_NUMBER_MARK = re.compile(r"^\d+[-.:]+(?=[a-hKQRBNO])")  # `1-e4`
_GLYPH_END = re.compile(r"(?![-:]|.*--)[^\w\s@\[\]<>\"']+N?|-/?\+|N")

_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
_ZERO_WIDTH = (
    "\u00ad\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufe0e\ufe0f\ufeff"
)
_TYPOGRAPHY = str.maketrans({
    **dict.fromkeys(_DASHES, "-"), **dict.fromkeys(_ZERO_WIDTH),
    **{chr(0xFEE0 + code): chr(code) for code in range(33, 127)},  # full width
    **{figurine: letter for row in ("♔♕♖♗♘♙", "♚♛♜♝♞♟") for figurine, letter in zip(row, "KQRBNP", strict=True)},
    "…": "...", "‥": "..", "×": "x", "⁄": "/", "∕": "/", "‼": "!!", "⁇": "??", "⁈": "?!", "⁉": "!?", "О": "O", "о": "o",
})  # fmt: skip
"""Maps typographic characters to ASCII, among them the Cyrillic letter that resembles an O."""

MAX_GAME_PLIES = 32_767
"""The maximum of the column's type. The longest possible game under the 75-move rule has 17,697 plies."""
_PLAIN_LIMIT = 1 << 17  # characters; shorter texts have fewer than MAX_GAME_PLIES plies


class Movetext(NamedTuple):
    """Cleaned movetext.

    `text` is a reader's input (SAN words; move numbers allowed). `sans` are the source's own words, None if the
    movetext is passed on unchanged. `problem` is (plies before it, reason) or None. If a word is unreadable, `text` has
    only the moves before it, `sans` also that word and the following ones.
    """

    text: str
    sans: list[str] | None
    result: str | None
    problem: tuple[int, str] | None = None


def normalize_result(word: str) -> str | None:
    """Return `1-0`, `0-1`, `1/2-1/2` or `*` for any spelling of it, else None."""
    return _RESULT_SPELLINGS.get("".join(word.translate(_TYPOGRAPHY).split()))


def clean_movetext(moves: str) -> list[Movetext]:
    """Return the games in one movetext. More than one if a first move follows a result or a blank line.

    A movetext that looks like a plain export is returned unchanged. The caller has to compare it with the reader's text
    of the game and call `clean_by_word` if they differ.
    """
    if len(moves) < _PLAIN_LIMIT:
        head, _, tail = moves.strip().replace("\n", " ").rpartition(" ")
        one = tail in RESULTS and not ("1-0" in head or "0-1" in head or "1/2" in head or "*" in head)
        if one and not ("{" in head or "(" in head or "!" in head or "?" in head or "$" in head or ";" in head):
            return [Movetext(head, None, tail)]
    return clean_by_word(moves)


def clean_by_word(moves: str) -> list[Movetext]:
    """Return the same as `clean_movetext`, always word by word."""
    text = blank_comments(moves)
    problem = "a comment is not closed" if "{" in text else "a comment is closed that was not opened"
    brace = min((place for place in (text.find("{"), text.find("}")) if place >= 0), default=-1)
    if brace >= 0:
        text = text[:brace]
    if not text.isascii():
        text = text.translate(_TYPOGRAPHY)
    if "(" in text or ")" in text:
        text, is_unbalanced = _remove_variations(_BRACKETED_PROMOTION.sub(r"=\1", text))
        if is_unbalanced:
            problem, brace = is_unbalanced, len(text)
    if "," in text:
        text = text.replace(",", " ")
    if " - " in text or " : " in text or "0.5" in text:
        text = _SPACED_RESULT.sub(lambda match: "-".join(filter(None, match.groups())) or "1/2-1/2", text)
    text = _MARKS.sub(" ", text)
    words = _split_movetext(text)
    result_place = next((place for place, word in enumerate(words) if word in _RESULT_SPELLINGS), len(words))
    if result_place < len(words) - 1 or _BLANK_LINE.search(text.strip()):
        games = [_make_movetext(_split_movetext(piece)) for piece in _split_games(text)]
    else:
        games = [_make_movetext(words)]
    if brace >= 0:
        last_game = games[-1]
        games[-1] = last_game._replace(problem=last_game.problem or (len(last_game.sans or []), problem))
    return games


def _remove_variations(text: str) -> tuple[str, str]:
    """Return the text outside parentheses, up to the first unbalanced one, and the problem (empty if balanced)."""
    depth = open_brackets = 0
    outside: list[str] = []
    for part in _PARENTHESES.split(text):
        if part == "(":
            if not depth:
                open_brackets = len(outside)
            depth += 1
        elif part == ")":
            if not depth:
                return " ".join(outside), "a stray )"
            depth -= 1
        elif not depth:
            outside.append(part)
    return (" ".join(outside[:open_brackets]), "a variation is not closed") if depth else (" ".join(outside), "")


def _split_movetext(text: str) -> list[str]:
    return _NUMBER.sub(" ", text).split()


def _split_games(text: str) -> list[str]:
    """Return the text of each game in movetext that has a result or a blank line before its end.

    Another game begins there if the next move is numbered 1, or if no move is numbered. If a later move number follows
    a result, the game continues. Words after a result are dropped if the first is not a move and no move number is
    among them.
    """
    has_numbers = _NUMBER.search(text) is not None
    pieces: list[str] = []
    start = search_start = 0
    moves_seen = False
    for border in _BORDER.finditer(text):
        if border.start() < search_start:
            continue
        moves_seen = moves_seen or any(map(normalize_san, _split_movetext(text[search_start : border.start()])))
        search_start = border.end()
        if not moves_seen:
            continue
        number, word = _NEXT_WORD.match(text, border.end()).groups()  # type: ignore[union-attr]  # it matches ""
        word_is_read = word is None or word in _RESULT_SPELLINGS or bool(normalize_san(word)) or is_glyph(word)
        if _FIRST_FOLLOWS.match(text, border.end()) or (not has_numbers and word and normalize_san(word)):
            pieces.append(text[start : border.end()])
            start, moves_seen = border.end(), False
        elif border[0].strip() and number is None and not word_is_read:
            next_number = _FIRST_NUMBER.search(text, border.end())
            end = next_number.start() if next_number else len(text)
            if _NUMBER.search(text, border.end(), end):
                continue  # moves of the same game after an unreadable word
            pieces.append(text[start : border.end()])
            start = search_start = end
            moves_seen = False
    remaining_text = text[start:]
    if not pieces or any(map(normalize_san, _split_movetext(remaining_text))):
        pieces.append(remaining_text)
    return pieces


def _make_movetext(words: list[str]) -> Movetext:
    """Return the Movetext of cleaned words; the last result counts."""
    source: list[str] = []
    result = None
    for word in words:
        spelled_result = _RESULT_SPELLINGS.get(word)
        if spelled_result is not None:
            result = spelled_result
        elif not word.isdigit() or not word.strip("0"):  # a move number without a dot, but not 00
            source.append(word)
    sans = [normalize_san(word) for word in source]
    if "" in sans:
        pairs = [(word, san) for word, san in zip(source, sans, strict=True) if san or not is_glyph(word)]
        source, sans = [word for word, _ in pairs], [san for _, san in pairs]
    if len(source) > MAX_GAME_PLIES:
        return Movetext("", [], result, (MAX_GAME_PLIES, f"more than {MAX_GAME_PLIES:,} plies"))
    if "" in sans:
        ply = sans.index("")
        kind = "null move" if source[ply] in _NULL else "unreadable move"
        return Movetext(" ".join(sans[:ply]), source, result, (ply, f"{kind}: {source[ply][:20]}"))
    return Movetext(" ".join(sans), source, result)


def is_glyph(word: str) -> bool:
    """Return whether a word is an annotation and cannot be a move: `=`, `+/-`, `∞`, `N` for a novelty.

    >>> [is_glyph(word) for word in ("±", "+-", "N", "Nf3", "--")]
    [True, True, True, False, False]
    """
    if word in _GLYPH_WORDS:
        return True
    return not any(character.isalnum() for character in word) and "--" not in word and word not in _NULL


@functools.lru_cache(1 << 16)
def normalize_san(word: str) -> str:
    """Return a word as SAN that both readers accept, or "" if it is not a move. Keeps check marks and disambiguation.

    >>> [normalize_san(word) for word in ("0-0+", "e8Q", "Ng1-f3", "Nf3+-", "hello")]
    ['O-O+', 'e8=Q', 'Ng1f3', 'Nf3', '']
    """
    san = _match_san(word)
    if san:
        return san
    word = _NUMBER_MARK.sub("", word)
    for end in range(len(word), max(len(word) - 8, 1), -1):  # annotation glyphs attached to the move
        san = _match_san(word[:end]) if end == len(word) or _GLYPH_END.fullmatch(word, end) else ""
        if san:
            return san
    return ""


def _match_san(word: str) -> str:
    san = word.rstrip("+#")
    mark = "#" if "#" in word[len(san) :] else "+" if len(san) < len(word) else ""
    san = san.replace("0-0", "O-O").replace("O-0", "O-O").replace("o-o-o", "O-O-O").replace("o-o", "O-O")
    san = _CASTLING.get(san, san)
    san = _ORNAMENTS.sub("", san).replace(":", "x")
    san = _PROMOTION.sub(lambda match: f"{match[1]}={match[2].upper()}", san)
    return san + mark if _SAN.fullmatch(san) else ""


def number_sans(sans: Sequence[str]) -> str:
    """Return the text of a game, as stored in datasets, from moves in SAN.

    >>> number_sans(["e4", "e5", "Nf3"])
    ';1.e4 e5 2.Nf3'
    """
    return ";" + " ".join(f"{i // 2 + 1}.{san}" if i % 2 == 0 else san for i, san in enumerate(sans))
