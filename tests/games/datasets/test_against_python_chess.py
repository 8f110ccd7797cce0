"""Our PGN reader against python-chess on the same bytes: real games, changed at the level of bytes, words and lines.

Where the two differ on a file, python-chess reads each game that our reader finds by itself. The answer must be the
same, or the same after a construct of `WORDS` is rewritten, or ours must reject the game for a reason of `REASONS`. If
python-chess cuts the whole file into other games, one of `BORDERS` must be in the file. Every entry of these tables has
an example with both answers.
"""

from __future__ import annotations

import io
import itertools
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import chess
import chess.pgn
import pytest
import zstandard

from chessreg.games.boards import moves
from chessreg.games.datasets import borders, rows, sources
from chessreg.games.datasets.borders import RawGame
from chessreg.games.datasets.reader import GameReader, get_reader

LICHESS = Path(__file__).resolve().parents[4] / "shared" / "data" / "games"
TAGS = '[Event "E"]\n[White "W"]\n[Black "B"]\n[Result "1-0"]\n'
FILES, LONGEST_GAME = 250, 700
"""Files in `make test`, and bytes of a game in them before it is changed."""
FILES_SLOW, LONGEST_GAME_SLOW = 20_000, 4000

# -- the two readers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """A game as one of the readers has it: its moves in UCI and White's name, or why it is rejected."""

    moves: str
    white: str = "?"
    reason: str = ""

    def agrees(self, other: Read) -> bool:
        """Whether both are rejected, or both are the same game. Names are compared where they are ASCII."""
        if self.reason or other.reason:
            return bool(self.reason) == bool(other.reason)
        return self.moves == other.moves and (self.white == other.white or not other.white.isascii())

    def __str__(self) -> str:
        return f"! {self.reason}" if self.reason else self.moves


def agree(one: Sequence[Read], other: Sequence[Read]) -> bool:
    return len(one) == len(other) and all(map(Read.agrees, one, other))


class Mainline(chess.pgn.BaseVisitor["Mainline"]):
    """Tags, moves of the main line, and the first error."""

    def begin_game(self) -> None:
        self.headers, self.played, self.error = chess.pgn.Headers({}), list[chess.Move](), ""

    def begin_headers(self) -> chess.pgn.Headers:
        return self.headers

    def visit_header(self, tagname: str, tagvalue: str) -> None:
        self.headers[tagname] = tagvalue

    def begin_variation(self) -> chess.pgn.SkipType:
        return chess.pgn.SKIP

    def visit_move(self, board: chess.Board, move: chess.Move) -> None:
        self.played.append(move)

    def handle_error(self, error: Exception) -> None:
        self.error = self.error or str(error).partition(" in ")[0]

    def result(self) -> Mainline:
        return self

    @property
    def is_standard(self) -> bool:
        """Whether it is a game that our datasets are of."""
        variant, fen = self.headers.get("Variant", "Standard"), self.headers.get("FEN", chess.STARTING_FEN)
        return variant == "Standard" and rows.is_standard_start(fen)


def theirs(text: str) -> list[Read]:
    """Standard games with at least one move, or an error, as python-chess reads them."""
    stream, games = io.StringIO(text), []
    while (game := chess.pgn.read_game(stream, Visitor=Mainline)) is not None:
        if game.is_standard and (game.played or game.error):
            played = " ".join(move.uci() for move in game.played)
            white = game.headers.get("White", "").strip()
            games.append(Read(played, "?" if white in ("", "-") else white, game.error))
    return games


def ours(games: list[RawGame], player: GameReader) -> list[Read]:
    """The same by our reader. Every game that is found is kept, rejected or skipped."""
    block = rows.read_block(b"", 1, player, split=lambda block, line: games)
    found = {reject.row: Read("", reason=reject.reason) for reject in block.rejects}
    for row in block.batch.to_pylist():
        uci = " ".join(move.uci() for move in moves.unpack_moves(row["moves"]))
        found[row["row"]] = Read(uci, (row["white"] or "?").strip())
    assert block.games_read == len(found) + sum(block.tally.skipped.values())
    return [found[row] for row in sorted(found)]


def games_in(path: Path) -> list[RawGame]:
    source, line, games = sources.GameSource(path), 1, []
    for block in source.blocks():
        games += source.split(block, line)
        line += block.count(b"\n")
    return games


def decoded(data: bytes) -> str:
    """As a text file is opened: line ends become newlines; bytes that are not UTF-8 are kept."""
    return data.decode("utf-8", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")


# -- differences between the readers -----------------------------------------------------------------------------------

COMMENT = re.compile(r"(\{[^}]*\}|;[^\n]*|^%[^\n]*)", re.MULTILINE)
TAG_LINE = re.compile(r'^[ \t]*\[[ \t]*[A-Za-z0-9][\w+#=:-]*[ \t]*"', re.MULTILINE | re.ASCII)
ANY_TAG = re.compile(r'^[ \t]*\[|\[[ \t]*[A-Za-z0-9][\w+#=:-]*[ \t]*"')
PLAIN_TAG = re.compile(r'\[[A-Za-z0-9][\w+#=:-]* "[^"\\]*"\]', re.ASCII)
RESULT = r"(?:1-0|0-1|1/2-1/2|\*)"
MOVE = r"(?:[KQRBN]?[a-h]?[1-8]?[-x]?[a-h][1-8](?:=?[QRBN])?|O-O(?:-O)?)[+#]?"


def outside_comments(pattern: str, replacement: str) -> Callable[[str], str]:
    """The change of a movetext by `re.sub`, leaving comments as they are."""

    def changed(text: str) -> str:
        parts = COMMENT.split(text)
        return "".join(part if at % 2 else re.sub(pattern, replacement, part) for at, part in enumerate(parts))

    return changed


def plain_characters(text: str) -> str:
    for pair in ("…...", "–-", "♘N", "♞N", "½1/2"):
        text = text.replace(pair[0], pair[1:])
    return re.sub("[\u00ad\u200b\ufeff]", "", text)


def first_variation_removed(text: str) -> str:
    return re.sub(r"^([^\w(]*[\d.]*\s*)\((?:[^()]|\([^()]*\))*\)", r"\1", COMMENT.sub("", text)).strip()


@dataclass(frozen=True)
class Word:
    """A construct in the moves of a game, both answers to it, and a change after which python-chess reads it as our
    reader does."""

    example: str
    ours: str
    theirs: str
    rewrite: Callable[[str], str] = str


WORDS = {
    "figurines, dashes, ellipses, fractions and invisible characters": Word(
        "1. e4 e5 2. ♘f3 ♞c6 1–0", "e2e4 e7e5 g1f3 b8c6", "e2e4 e7e5 f2f3 c7c6", plain_characters
    ),
    "castling without dashes": Word(
        "1. Nf3 Nf6 2. g3 g6 3. Bg2 Bg7 4. OO 00 1-0",
        "g1f3 g8f6 g2g3 g7g6 f1g2 f8g7 e1g1 e8g8",
        "g1f3 g8f6 g2g3 g7g6 f1g2 f8g7",
        lambda text: outside_comments(r"(?<![\w/.-])(?:OO|00)(?![\w/-])", "O-O")(
            outside_comments(r"(?<=\d\.)OO(?![\w/-])", "O-O")(text)
        ),
    ),
    "N for a novelty at a move": Word(
        "1. e4 e5 2. Nf3N 1-0",
        "e2e4 e7e5 g1f3",
        "! illegal san: 'Nf3N'",
        outside_comments(rf"(?<![\w=])((?:\d+\.+)?{MOVE})N(?!\w)", r"\1"),
    ),
    "a promotion in parentheses": Word(
        "1. a4 b5 2. axb5 a6 3. bxa6 c6 4. a7 c5 5. axb8(Q) 1-0",
        "a2a4 b7b5 a4b5 a7a6 b5a6 c7c6 a6a7 c6c5 a7b8q",
        "! illegal san: 'axb8'",
        outside_comments(r"([18])\(([QRBN])\)", r"\1=\2"),
    ),
    "a colon for a capture": Word(
        "1. e4 d5 2. e:d5 Q:d5 1-0", "e2e4 d7d5 e4d5 d8d5", "! illegal san: 'd5'", outside_comments(":", "x")
    ),
    "a variation before the first move": Word(
        "1. ( 1. e3 ) e4 e5 1-0", "e2e4 e7e5", "! illegal san: 'e4'", first_variation_removed
    ),
    "words after a result that are no moves": Word(
        "1. e4 e5 1-0 -- and so on",
        "e2e4 e7e5",
        "e2e4 e7e5 0000",
        outside_comments(rf"(?s)({RESULT})(?!.*{RESULT}).*$", r"\1"),
    ),
    "another first move after a result": Word(
        "1. e4 e5 1-0\n1. d4 d5 1-0",
        "e2e4 e7e5 / d2d4 d7d5",
        "e2e4 e7e5 d2d4 d7d5",
        outside_comments(rf"({RESULT})\s+(?=(?:(?:\$\d+|[!?]+)\s+)*1\s*\.(?!\.))", r"\1\n\n"),
    ),
}
REASONS = {
    "unreadable move": Word("1. e4 Kz9 e5 1-0", "! unreadable move: Kz9", "e2e4 e7e5"),
    "null move": Word("1. e4 -- 2. d4 1-0", "! null move: --", "e2e4 0000 d2d4"),
    "a comment is not closed": Word("1. e4 { e5 1-0", "! a comment is not closed", "e2e4"),
    "a comment is closed that was not opened": Word(
        "1. e4 } e5 1-0", "! a comment is closed that was not opened", "e2e4 e7e5"
    ),
    "a variation is not closed": Word("1. e4 (e5 1-0", "! a variation is not closed", "e2e4"),
    "a stray )": Word("1. e4 ) e5 1-0", "! a stray )", "e2e4 e7e5"),
}


@dataclass(frozen=True)
class Border:
    """A construct that makes python-chess begin a game elsewhere, both answers to it with a slash between two games,
    and whether a file has it: by the file's text, or by its lines without comments."""

    example: str
    ours: str
    theirs: str
    is_in: Callable[[str, list[str]], bool]


def pairs(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Each line with the one before it."""
    return zip(["", *lines], lines, strict=False)


def is_tag(line: str) -> bool:
    return line.lstrip().startswith("[")


def paragraphs(lines: list[str]) -> list[list[str]]:
    """Groups of lines with blank lines between them."""
    blank = [-1, *(at for at, line in enumerate(lines) if not line.strip()), len(lines)]
    return [lines[start + 1 : end] for start, end in itertools.pairwise(blank) if start + 1 < end]


BORDERS = {
    "a blank line inside the moves": Border(
        TAGS + "\n1. e4 e5\n\n2. Nf3 1-0\n",
        "W e2e4 e7e5 g1f3",
        "W e2e4 e7e5 / ? g1f3",
        lambda text, lines: any(
            not is_tag(before[-1]) and not is_tag(after[0]) for before, after in pairs(paragraphs(lines)) if before
        ),
    ),
    "a game without moves before the tags of the next": Border(
        '[Event "E"]\n[White "W"]\n[Result "*"]\n\n[Event "F"]\n\n1. e4 e5 1-0\n',
        "? e2e4 e7e5",
        "W e2e4 e7e5",
        lambda text, lines: any(
            before and is_tag(before[-1]) and is_tag(after[0]) for before, after in pairs(paragraphs(lines))
        ),
    ),
    "two blank lines after tags": Border(
        TAGS + "\n\n1. e4 e5 1-0\n",
        "W e2e4 e7e5",
        "? e2e4 e7e5",
        lambda text, lines: (
            any(
                not line.strip() and not before.strip() and is_tag(first)
                for first, (before, line) in zip(lines, pairs(lines[1:]), strict=False)
            )
            or re.search(r"\][ \t]*\n[ \t]*\n[ \t]*\n", text) is not None
        ),
    ),
    "tags after moves without a blank line": Border(
        TAGS + "\n1. e4 e5 1-0\n" + TAGS.replace('"W"', '"V"') + "\n1. d4 d5 1-0\n",
        "W e2e4 e7e5 / V d2d4 d7d5",
        "W e2e4 e7e5 / ? d2d4 d7d5",
        lambda text, lines: any(
            is_tag(line) and before.strip() and not is_tag(before) for before, line in pairs(lines)
        ),
    ),
    "tags in the middle of a game": Border(
        TAGS + '\n1. e4 e5\n\n[Event "stray"]\n\n2. Nf3 1-0\n',
        "! unreadable move: [Event",
        "W e2e4 e7e5 / ? g1f3",
        lambda text, lines: any(
            is_tag(line) and before and not is_tag(before) and not re.search(rf"{RESULT}\s*$", before)
            for before, line in pairs([line for line in lines if line.strip()])
        ),
    ),
    "a comment that is not closed before the next game": Border(
        TAGS + "\n1. e4 { e5 1-0\n\n" + TAGS + "\n1. d4 {a queen's pawn} d5 1-0\n",
        "! a comment is not closed / W d2d4 d7d5",
        "W e2e4 d7d5",
        lambda text, lines: any("{" in line for line in lines) or any(map(TAG_LINE.search, COMMENT.findall(text))),
    ),
    'a tag in another form than [Name "value"] on its own line': Border(
        '[Event "E"]\n[Result "1-0"] 1. e4 e5 1-0\n\n [ Event "E" ]\n[White "W"]\n\n1. d4 d5 1-0\n',
        "? e2e4 e7e5 / W d2d4 d7d5",
        "? d2d4 d7d5",
        lambda text, lines: any(ANY_TAG.search(line) and not PLAIN_TAG.fullmatch(line) for line in text.split("\n")),
    ),
    "a byte order mark inside a file": Border(
        TAGS + "\n1. e\ufeff4 e5 1-0\n", "W e2e4 e7e5", "! illegal san: 'e5'", lambda text, lines: "\ufeff" in text[1:]
    ),
}


def by_itself(game: RawGame) -> tuple[str, str]:
    """The text of a game as python-chess is given it: tags in their plain form, moves without blank lines."""
    tags = "".join(line + "\n" for line in game.tags.split("\n") if line.strip())
    if not all(map(PLAIN_TAG.fullmatch, tags.split("\n")[:-1])):
        tags = "".join(f'[{name} "{value}"]\n' for name, value in borders.parse_tags(game.tags).items())
    written = outside_comments(r"\n(?:[ \t]*\n)+(?!\s*1\s*\.)", "\n")(game.moves).strip()
    before, _, after = written.partition("\n\n")
    return tags, written if re.search(rf"{MOVE}|OO|00", before) else f"{before}\n{after}".strip()


def explanations(path: Path, player: GameReader) -> set[str]:
    """Why the readers differ on a file; an empty set where they do not. Raises AssertionError without a reason."""
    text = decoded(path.read_bytes())
    games, judged = games_in(path), theirs(text)
    if agree(ours(games, player), judged):
        return set()
    names, alone = set(), []
    for game in games:
        found = ours([game], player)
        tags, written = by_itself(game)
        answer = theirs(f"{tags}\n{written}\n")
        alone += answer
        if not agree(found, answer):
            names.add(word_of(found, tags, written))
    if not agree(alone, judged):
        lines = COMMENT.sub(lambda comment: "…" if comment[0] else "", text).split("\n")
        present = {name for name, border in BORDERS.items() if border.is_in(text, lines)}
        assert present, f"other borders in {text}"
        names |= present
    return names


def word_of(found: list[Read], tags: str, written: str) -> str:
    """The entry that explains another answer to one game."""
    if len(found) == 1 and (reason := kind_of(found[0])) in REASONS:
        return reason
    everything = written
    for name, word in WORDS.items():
        if agree(found, theirs(f"{tags}\n{word.rewrite(written)}\n")):
            return name
        everything = word.rewrite(everything)
    answer = theirs(f"{tags}\n{everything}\n")
    same = [one.agrees(other) or kind_of(one) in REASONS for one, other in zip(found, answer, strict=False)]
    assert [*same, len(found)] == [*[True] * len(same), len(answer)], f"{found} for {tags}{written}"
    return "several words"


def kind_of(game: Read) -> str:
    return game.reason.partition(":")[0]


# -- changed games -----------------------------------------------------------------------------------------------------

TOKEN = re.compile(rb"\s+|\S+")
INSERTED = [text.encode() for text in (
    "=", "+/=", "+-", "-+", "N", "D", "$", "$14", "!", "?", "!?", "∞", "±", "□", "…", "\u200b", "–", "½",
    "{", "}", "{ a comment }", "{ two\nlines }", "{ a\n\nblank line }", '{\n[Event "quoted"]\n}', "{ [a5] [%clk 1] }",
    "(", ")", "( 1. d4 )", "(e5 {x} (d5))", "; to the end\n", ";", "\n% escape\n", "%",
    "1-0", "0-1", "1/2-1/2", "*", "1:0", "1.", "1...", "2.", "17.", "...", "e4", "Nf3", "O-O", "0-0",
    "OO", "00", "--", "Z0",
    "\n", "\n\n", "\r\n", "\r", "\t", " ", "[", "]", '"', '[Event "x"]\n', '\n[Event "y"]\n', '\n\n[Event "z"]\n\n',
    '\n[ Event "w" ]\n', '\n [Site "s"]\n', '\n[White "A "B" C"]\n', "\n[White Ann]\n", '\n[Variant "Chess960"]\n',
    '\n[FEN "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w HAha - 0 1"]\n',
    '\n[FEN "4k3/8/8/8/8/8/8/4K2R w K - 0 1"]\n',
    "\ufeff", "hello", "e.p.", "+", "#", "x", "-", ",", ".", ":",
)] + [b"\x93", b"\x85", b"\xbd"]  # fmt: skip


def real_games(longest: int) -> list[bytes]:
    """Short games that come with chessreg, and Lichess games with evaluations if the shared data exist."""
    paths = [Path(str(files("chessreg") / "data" / "sample-games.pgn.zst"))]
    paths += [path for name in ("rapid-evals", "lm") if (path := LICHESS / f"lichess-{name}.pgn.zst").exists()]
    games: list[bytes] = []
    for path in paths:
        with path.open("rb") as file:
            text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read(1 << 20)
        found = re.split(rb"(?m)^(?=\[Event )", text)[1:-1]
        games += [game for game in found if len(game) < longest][:150]
    return games


class Changed:
    """Files of one to three games with comments, variations and glyphs, changed in up to three places."""

    def __init__(self, seed: int, games: list[bytes]) -> None:
        self.random, self.games = random.Random(seed), games

    def file(self) -> bytes:
        data = b"".join(self.annotated(self.random.choice(self.games)) for _ in range(self.random.choice((1, 2, 3))))
        ends = self.random.random()
        data = data.replace(b"\n", b"\r\n" if ends < 0.08 else b"\r" if ends < 0.12 else b"\n")
        for _ in range(self.random.choice((0, 1, 1, 1, 1, 2, 2, 3))):
            data = self.changed(data) or b" "
        return data.replace(b"\0", b" ")  # a file with a zero byte is refused

    def annotated(self, game: bytes) -> bytes:
        tags, _, written = game.partition(b"\n\n")
        words = written.split()
        if self.random.random() < 0.3:
            more = (b"{ c }", b"$3", b"(1. e4 {x} e5)", b"{two\nlines}", b"; rest\n", b"!?")
            for at in range(len(words), 0, -1):
                if self.random.random() < 0.1 and not words[at - 1].endswith(b"."):
                    words.insert(at, self.random.choice(more))
        wide = self.random.choice((10, 1000))
        lines = [b" ".join(words[at : at + wide]) for at in range(0, len(words), wide)]
        return tags + b"\n\n" + b"\n".join(lines) + b"\n\n"

    def changed(self, data: bytes) -> bytes:
        kind = self.random.randrange(10)
        if kind < 3:
            gaps = [gap.start() for gap in re.finditer(rb"\s", data)] or [0]
            at = self.random.choice(gaps) if self.random.random() < 0.7 else self.random.randrange(len(data) + 1)
            return data[:at] + b" " * (self.random.random() < 0.7) + self.random.choice(INSERTED) + data[at:]
        if kind < 5:
            at = self.random.randrange(len(data))
            flipped = bytes([data[at] ^ 1 << self.random.randrange(8)])
            end = at + self.random.choice((1, 1, 1, 2, 5, 40))
            return data[:at] + flipped + data[at + 1 :] if kind == 3 else data[:at] + data[end:]
        if kind < 9:
            words = TOKEN.findall(data)
            at, other = self.random.randrange(len(words)), self.random.randrange(len(words))
            if kind == 5:
                words[at] = self.random.choice(INSERTED)
            elif kind == 6:
                words.insert(at, words[at])
            elif kind == 7:
                del words[at]
            else:
                words[at], words[other] = words[other], words[at]
            return b"".join(words)
        lines = data.splitlines(keepends=True)
        at = self.random.randrange(len(lines))
        lines[at : at + 1] = self.random.choice(([lines[at]] * 2, [], [b" " + lines[at]], [lines[at].rstrip() + b" "]))
        return b"".join(lines)


# -- tests -------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("chess.pgn"), "disabled", True)


@pytest.mark.parametrize("name", [*WORDS, *REASONS])
def test_the_examples_of_words_have_both_answers(name: str, tmp_path: Path) -> None:
    word = {**WORDS, **REASONS}[name]
    path = tmp_path / "a.pgn"
    path.write_text(f"{TAGS}\n{word.example}\n", encoding="utf-8")
    assert " / ".join(map(str, ours(games_in(path), get_reader()))) == word.ours
    assert " / ".join(map(str, theirs(path.read_text(encoding="utf-8")))) == word.theirs
    assert explanations(path, get_reader()) - set(BORDERS) == {name}


@pytest.mark.parametrize("name", BORDERS)
def test_the_examples_of_borders_have_both_answers(name: str, tmp_path: Path) -> None:
    border = BORDERS[name]
    path = tmp_path / "a.pgn"
    path.write_text(border.example, encoding="utf-8")
    answers = ours(games_in(path), get_reader()), theirs(border.example)
    shown = [
        " / ".join(str(game) if game.reason else f"{game.white} {game.moves}" for game in games) for games in answers
    ]
    assert shown == [border.ours, border.theirs]
    assert name in explanations(path, get_reader())


def compare(tmp_path: Path, seed: int, count: int, longest: int) -> Counter[str]:
    """The number of uses of each explanation in the changed files; "" for none."""
    changed, names = Changed(seed, real_games(longest)), Counter[str]()
    path, player = tmp_path / "a.pgn", get_reader()
    for number in range(count):
        data = changed.file()
        path.write_bytes(data)
        try:
            names.update(explanations(path, player) or {""})
        except AssertionError as error:
            (tmp_path / "unexplained.pgn").write_bytes(data)
            raise AssertionError(f"file {number} of seed {seed}, in {tmp_path}/unexplained.pgn: {error}") from error
    return names


@pytest.mark.slow
def test_changed_games_are_read_as_python_chess_reads_them(tmp_path: Path) -> None:
    names = compare(tmp_path, 1, FILES, LONGEST_GAME)
    print(names)
    assert names[""] > FILES / 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_changed_games_are_read_as_python_chess_reads_them(tmp_path: Path, seed: int) -> None:
    names = compare(tmp_path, seed, FILES_SLOW // 10, LONGEST_GAME_SLOW)
    print(names)
    assert names[""] > FILES_SLOW / 20
