"""Games in a vocabulary of moves, read from a checkpoint's folder: one token per move, or tokens of piece and squares.

The vocabulary is not known in advance. `find_move_tokens` tries the spellings below and takes the first that writes
every legal move of the sample games with the vocabulary's own tokens. The folder of the weights then contains
`moves.json`: the vocabulary, the spelling and the special tokens. The encoding's name contains a digest of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess
import numpy as np

from chessreg.encodings.base import (
    Alignment,
    Content,
    Form,
    Ids,
    Notation,
    Select,
    Sites,
    Tokens,
    TokenView,
    check_alignment,
    check_ids,
    check_whole_game,
    make_history_encoding_error,
    resolve_board,
    select_sites,
)
from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.boards.moves import unpack_moves
from chessreg.named import NameRegistry

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games

PREFIX = "moves-"
"""The prefix of the names of these encodings."""
MOVES_FILE = "moves.json"
PATTERNS = (
    "{from}{to}", "{color}{piece}{from}{to}", "{piece}{from}{to}", "{letter}{from}{to}",
    "{color}{piece} {from} {to}", "{piece} {from} {to}", "{letter} {from} {to}", "{color} {piece} {from} {to}",
    "{color}{piece}{from} {color}{piece}{to}", "{piece}{from} {piece}{to}", "{letter}{from} {letter}{to}",
    "{color}{piece}{from} {to}", "{piece}{from} {to}", "{letter}{from} {to}",
)  # fmt: skip
"""Spellings of a move, with a space between its tokens. `color` is W or B, `piece` P to K, `letter` that of FEN.

Squares alone are not among them: `uci_square` has the known vocabularies, and others would differ in their specials.
"""
PROMOTIONS = ("{0}", "{1}", "={0}", "={1}", "({1})", " {0}", " {1}", " ={0}", " ={1}", " ({1})")
"""Spellings of a promotion after the move: {0} is q, {1} is Q."""
SAN_FORMS = {"san": "", "san-without-checks": "+#"}
"""Spellings in SAN → characters that are left out."""
LOWER_COLOR = "lower "
"""In front of a pattern whose colors are w and b."""
PHASES = ("move", "special")


@dataclass(frozen=True)
class Spelling:
    """How a move is written: a pattern of PATTERNS with a promotion of PROMOTIONS, or a form of SAN_FORMS."""

    pattern: str
    promotion: str = "{0}"

    @property
    def notation(self) -> Notation:
        return "san" if self.pattern in SAN_FORMS else "uci"

    @cached_property
    def needs_board(self) -> bool:
        """Whether the text of a move depends on the board."""
        return self.notation == "san" or "{piece}" in self.pattern or "{letter}" in self.pattern

    @property
    def max_tokens(self) -> int:
        """The maximum number of tokens of a move."""
        return len(self.pattern.removeprefix(LOWER_COLOR).split(" ")) + self.promotion.startswith(" ")

    def write(self, board: chess.Board, move: chess.Move) -> list[str]:
        """Return the texts of a move's tokens. `board` is the position before it."""
        if self.notation == "san":
            san = board.san(move)
            return [san.translate(str.maketrans("", "", SAN_FORMS[self.pattern]))]
        piece = board.piece_type_at(move.from_square) if self.needs_board else None
        return self.write_parts(move, piece or chess.PAWN, board.turn)

    def write_parts(self, move: chess.Move, piece: chess.PieceType, color: chess.Color) -> list[str]:
        """Return the texts of a UCI move's tokens, made with this piece."""
        letter = chess.Piece(piece, color).symbol()
        side = "W" if color else "B"
        text = self.pattern.removeprefix(LOWER_COLOR).format_map({
            "from": chess.SQUARE_NAMES[move.from_square], "to": chess.SQUARE_NAMES[move.to_square],
            "color": side.lower() if self.pattern.startswith(LOWER_COLOR) else side, "piece": letter.upper(),
            "letter": letter,
        })  # fmt: skip
        if move.promotion:
            promotion = chess.piece_symbol(move.promotion)
            text += self.promotion.format(promotion, promotion.upper())
        return text.split(" ")


def list_move_spellings() -> Iterator[Spelling]:
    """Yield all spellings, those with the fewest tokens first."""
    for form in SAN_FORMS:
        yield Spelling(form)
    for pattern in PATTERNS:
        for variant in (pattern, LOWER_COLOR + pattern) if "{color}" in pattern else (pattern,):
            for promotion in PROMOTIONS:
                yield Spelling(variant, promotion)


SITES: NameRegistry[tuple[Select, int]] = NameRegistry("site of move tokens")
for _name, _select in {
    "turns": lambda view: view.turn,
    "white-turns": lambda view: view.turn & (view.after % 2 == 0),
    "black-turns": lambda view: view.turn & (view.after % 2 == 1),
    "last": lambda view: view.last,
    "all": lambda view: np.ones(len(view.ids), bool),
}.items():
    SITES.register(_name, (_select, 0))


class _MoveView(TokenView):
    """The tokens of games with the number of plies played once each token is read."""

    def __init__(self, tokens: Tokens, ends: np.ndarray, special: np.ndarray, bos: int, alignment: Alignment) -> None:
        """`ends` bool [n]: whether a token completes a move; `special` bool [ids]."""
        super().__init__(tokens)
        self.phase = special[self.ids].astype(np.int8)
        total = np.cumsum(ends)
        first_moves = np.concatenate([[0], total])[tokens.offsets[:-1]]
        self.after = total - np.repeat(first_moves, self.lengths)
        self.turn = ends | (self.ids == bos)
        self.ply = self.after if alignment == "post-ply" else self.after - ends


class MoveTokens:
    """The encoding of games by a vocabulary of moves, in the model's own order of tokens.

    A game is the token that begins it, then its moves. A move that the vocabulary cannot write, such as a rare
    promotion, is not among the answers, and is the unknown token in a game.
    """

    content: Content = "history"
    stop_ids: frozenset[int] = frozenset()
    phases: tuple[str, ...] = PHASES

    def __init__(self, vocabulary: Sequence[str], spelling: Spelling, special: Mapping[str, str | None]) -> None:
        """`special` has `bos`, and perhaps `eos`, `pad` and `unk`: texts of the vocabulary."""
        self.vocabulary, self.spelling = tuple(vocabulary), spelling
        self.size = self.answer_size = len(self.vocabulary)
        self._id = {text: number for number, text in enumerate(self.vocabulary)}
        self.special = {name: text for name, text in special.items() if text is not None}
        self._bos = self._id[self.special["bos"]]
        self._unknown_id = self._id.get(self.special.get("unk", ""))
        self.boundary_ids = frozenset(self._id[self.special[name]] for name in self.special if name != "unk")
        self.notation: Notation = spelling.notation
        self.max_move_tokens = spelling.max_tokens
        self.name = f"{PREFIX}{self.digest[:12]}"

    @property
    def digest(self) -> str:
        """sha256 of everything that determines the tokens of a game."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """Return the content of moves.json."""
        return {
            "vocabulary": list(self.vocabulary),
            "pattern": self.spelling.pattern,
            "promotion": self.spelling.promotion,
            "special": dict(self.special),
        }

    def save(self, folder: Path) -> None:
        """Write the file that `load` reads."""
        text = json.dumps(self.as_json(), indent=1, ensure_ascii=False, sort_keys=True)
        (folder / MOVES_FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, name: str | None = None) -> MoveTokens:
        """Return the encoding stored in a checkpoint's folder.

        Raises NotFoundError without a moves.json in it, BadInputError if it is damaged or differs from `name`.
        """
        file = folder / MOVES_FILE
        if not file.is_file():
            raise NotFoundError(f"{folder.name} holds no {MOVES_FILE}", "import the weights again")
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            encoding = cls(record["vocabulary"], Spelling(record["pattern"], record["promotion"]), record["special"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInputError(
                f"{folder.name}/{MOVES_FILE} is damaged: {error}", "import the weights again"
            ) from error
        if name is not None and encoding.name != name:
            raise BadInputError(
                f"{folder.name} holds the encoding {encoding.name}, not {name}", "import the weights again"
            )
        return encoding

    @property
    def site_names(self) -> tuple[str, ...]:
        return tuple(SITES)

    # -- moves ------------------------------------------------------------------------------------------------------

    @cached_property
    def _moves(self) -> dict[tuple[int, ...], tuple[str, bool]]:
        """Return the tokens of every move that the vocabulary can write → its text, and whether a pawn promotes."""
        moves: dict[tuple[int, ...], tuple[str, bool]] = {}
        if self.notation == "san":
            return {(number,): (text, "=" in text) for text, number in self._id.items() if is_san(text)}
        for color in chess.COLORS:
            for move, piece in list_possible_moves(color):
                texts = self.spelling.write_parts(move, piece, color)
                if all(text in self._id for text in texts):
                    moves.setdefault(tuple(map(self._id.__getitem__, texts)), ("".join(texts), bool(move.promotion)))
        return moves

    @property
    def move_texts(self) -> frozenset[str]:
        """The texts of all tokens of moves."""
        return frozenset(self.vocabulary[number] for ids in self._moves for number in ids)

    def find_joined_token(self) -> str | None:
        """Return a token that joins several tokens of moves, so that the tokenizer may write a move differently."""
        parts = "|".join(map(re.escape, sorted(self.move_texts, key=len, reverse=True)))
        joined_pattern = re.compile(f"(?:{parts}){{2,}}")
        return next(
            (text for text in self.vocabulary if text not in self.move_texts and joined_pattern.fullmatch(text)), None
        )

    @cached_property
    def _prefixes(self) -> frozenset[tuple[int, ...]]:
        """Return the beginnings of moves that are not the whole move."""
        return frozenset(ids[:stop] for ids in self._moves for stop in range(1, len(ids)))

    def _find_move_ids(self, board: chess.Board, move: chess.Move) -> tuple[int, ...] | None:
        """Return the tokens of a move, None if the vocabulary cannot write it."""
        texts = self.spelling.write(board, move)
        return tuple(self._id[text] for text in texts) if all(text in self._id for text in texts) else None

    def _encode_move(self, board: chess.Board, move: chess.Move) -> tuple[int, ...]:
        """Return the tokens of a move, or the unknown token. Raises BadInputError without one."""
        ids = self._find_move_ids(board, move)
        if ids is not None:
            return ids
        if self._unknown_id is None:
            raise BadInputError(
                f"the vocabulary of {self.name} has no tokens for the move {move.uci()}, and no unknown token"
            )
        return (self._unknown_id,)

    # -- texts ------------------------------------------------------------------------------------------------------

    def encode(self, text: str) -> np.ndarray:
        """Return the first token and the tokens of the moves, int32 [n]. `text` has moves separated by spaces. It may
        end in the middle of a move."""
        words = text.split()
        ids = [] if words and words[0] == self.special["bos"] else [self._bos]
        for word in words:
            ids.extend(self._split(word))
        return np.array(ids, np.int32)

    def _split(self, word: str) -> Iterator[int]:
        """Yield the tokens of a word, the longest first. Raises BadInputError."""
        place = 0
        while place < len(word):
            for stop in range(len(word), place, -1):
                number = self._id.get(word[place:stop])
                if number is not None and number != self._unknown_id:
                    yield number
                    place = stop
                    break
            else:
                wrong = word[place : place + 10]
                raise BadInputError(f"{wrong!r} is not a token of {self.name}", f"moves are written like {self.sample}")

    @property
    def sample(self) -> str:
        """The first move of White's king pawn, as it is written."""
        return "".join(self.spelling.write(chess.Board(), chess.Move.from_uci("e2e4")))

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Return the moves as words. A leading first token is dropped; other special tokens become words."""
        array = check_ids(ids, self.size, self.name).tolist()
        words: list[str] = []
        prefix: tuple[int, ...] = ()
        for number in array[1:] if array[:1] == [self._bos] else array:
            longer_prefix = (*prefix, number)
            if prefix and (longer_prefix in self._prefixes or longer_prefix in self._moves):
                words[-1] += self.vocabulary[number]
                prefix = longer_prefix
            else:
                words.append(self.vocabulary[number])
                prefix = (number,)
        return " ".join(words)

    # -- games ------------------------------------------------------------------------------------------------------

    def games(self, games: Games, places: Sequence[int] | np.ndarray) -> Tokens:
        """Encode whole games, without a token that ends them; ids are int32."""
        return Tokens.from_items(
            [self._encode_game(unpack_moves(packed_moves)) for packed_moves in games.moves(places)]
        )

    def _encode_game(self, moves: Sequence[chess.Move]) -> np.ndarray:
        board, ids = chess.Board(), [self._bos]
        for ply, move in enumerate(moves):
            if self.spelling.needs_board:
                ids.extend(self._encode_move(board, move))
                board.push(move)
            else:
                board.turn = ply % 2 == 0
                ids.extend(self._encode_move(board, move))
        return np.array(ids, np.int32)

    def boards(self, boards: Sequence[str | chess.Board]) -> Tokens:
        raise make_history_encoding_error(self.name)

    def sites(self, name: str, tokens: Tokens, alignment: Alignment = "post-ply") -> Sites:
        """Return sites. With `post-ply`, the board of the token that completes a move is the one after the move."""
        check_alignment(alignment)
        special = np.isin(np.arange(self.size), list(self.boundary_ids))
        view = _MoveView(tokens, self._find_ends(tokens), special, self._bos, alignment)
        return select_sites(SITES, name, tokens, view)

    def _find_ends(self, tokens: Tokens) -> np.ndarray:
        """Return which tokens complete a move, bool [n]. An unknown token counts as a move."""
        ends = ~np.isin(tokens.ids, list(self.boundary_ids))
        if self.max_move_tokens == 1:
            return ends
        for start, stop in zip(tokens.offsets[:-1].tolist(), tokens.offsets[1:].tolist(), strict=True):
            prefix: tuple[int, ...] = ()
            for place in range(start, stop):
                longer_prefix = (*prefix, int(tokens.ids[place]))
                if prefix and (longer_prefix in self._prefixes or longer_prefix in self._moves):
                    ends[place - 1], prefix = False, longer_prefix
                else:
                    prefix = longer_prefix[-1:]
                if longer_prefix in self._prefixes and longer_prefix not in self._moves:
                    ends[place] = False
        return ends

    def prompt(self, at: chess.Board | Sequence[str]) -> tuple[int, ...]:
        board = resolve_board(at)
        check_whole_game(board, self.name)
        return tuple(self._encode_game(board.move_stack).tolist())

    # -- answers ----------------------------------------------------------------------------------------------------

    def answers(self, board: chess.Board) -> dict[chess.Move, tuple[int, ...]]:
        """Return {legal move: its tokens}, without the moves that the vocabulary cannot write."""
        ids_by_move = ((move, self._find_move_ids(board, move)) for move in board.legal_moves)
        return {move: ids for move, ids in ids_by_move if ids is not None}

    def answer(self, board: chess.Board, move: chess.Move) -> tuple[int, ...]:
        ids = self._find_move_ids(board, move)
        if ids is None:
            raise BadInputError(f"the vocabulary of {self.name} has no tokens for the move {move.uci()}")
        return ids

    @cached_property
    def _origins(self) -> dict[int, int | None]:
        """Return the from-square of all moves that begin with an id; None if they differ."""
        origins: dict[int, int | None] = {}
        if self.notation == "san":
            return origins
        for color in chess.COLORS:
            for move, piece in list_possible_moves(color):
                number = self._id.get(self.spelling.write_parts(move, piece, color)[0])
                if number is not None:
                    is_same = origins.setdefault(number, move.from_square) == move.from_square
                    origins[number] = move.from_square if is_same else None
        return origins

    def find_origin(self, number: int) -> int | None:
        return self._origins.get(number)

    def answer_text(self, ids: Ids) -> str:
        return self.decode(ids)

    def accepted_texts(self, board: chess.Board) -> tuple[str, ...]:
        return tuple(sorted("".join(map(self.vocabulary.__getitem__, ids)) for ids in self.answers(board).values()))

    def accepted_ids(self, board: chess.Board) -> tuple[tuple[int, ...], ...]:
        by_text = {"".join(map(self.vocabulary.__getitem__, ids)): ids for ids in self.answers(board).values()}
        return tuple(by_text[text] for text in sorted(by_text))

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """Return the forms of all moves: for each position in a move, the ids that may be there. Moves that share all
        tokens but the last are one form."""
        continuations: dict[tuple[int, ...], set[int]] = {}
        for ids in self._moves:
            continuations.setdefault(ids[:-1], set()).add(ids[-1])
        return tuple((*(frozenset({one}) for one in head), frozenset(last)) for head, last in continuations.items())

    def parse(self, answer: str | Ids, board: chess.Board) -> chess.Move | None:
        """Return the legal move in the first word of a text, or in the ids up to the end of the first move."""
        if isinstance(answer, str):
            word = answer.split(maxsplit=1)[:1]
            if not word:
                return None
            try:
                ids = list(self._split(word[0]))
            except BadInputError:
                return None
            exact = True
        else:
            ids, exact = [int(number) for number in answer], False
        legal = {tokens: move for move, tokens in self.answers(board).items()}
        for stop in (len(ids),) if exact else range(min(len(ids), self.max_move_tokens), 0, -1):
            if (move := legal.get(tuple(ids[:stop]))) is not None:
                return move
        return None

    def is_complete(self, ids: Ids, board: chess.Board) -> bool:
        """Return whether the ids are a whole move, or cannot become one with further tokens.

        If a longer move on this board begins with the same tokens, such as a pawn's promotion, the ids are not
        complete.
        """
        key = tuple(int(number) for number in ids)
        if key and key not in self._prefixes:
            return True
        if key not in self._moves:
            return False
        return not any(len(tokens) > len(key) and tokens[: len(key)] == key for tokens in self.answers(board).values())


def is_san(text: str) -> bool:
    """Return whether a text has the form of a move in SAN."""
    return chess.SAN_REGEX.fullmatch(text) is not None or text.rstrip("+#") in ("O-O", "O-O-O")


def list_possible_moves(color: chess.Color) -> Iterator[tuple[chess.Move, chess.PieceType]]:
    """Yield every move of a color that some board allows, with its piece."""
    for origin in chess.SQUARES:
        for piece in chess.PIECE_TYPES:
            for target in chess.SquareSet(find_targets(origin, piece, color)):
                if piece == chess.PAWN and chess.square_rank(target) in (0, 7):
                    for promotion in (chess.QUEEN, chess.ROOK, chess.BISHOP, chess.KNIGHT):
                        yield chess.Move(origin, target, promotion), piece
                else:
                    yield chess.Move(origin, target), piece


def find_targets(origin: chess.Square, piece: chess.PieceType, color: chess.Color) -> int:
    """Return the squares that a piece may reach from `origin` on some board, as a bitboard."""
    board = chess.Board(None)
    board.set_piece_at(origin, chess.Piece(piece, color))
    targets = int(board.attacks(origin))
    rank, step = chess.square_rank(origin), 8 if color else -8
    if piece == chess.PAWN:
        if rank in (0, 7):
            return 0
        targets |= chess.BB_SQUARES[origin + step]
        if rank == (1 if color else 6):
            targets |= chess.BB_SQUARES[origin + 2 * step]
    if piece == chess.KING and origin == (chess.E1 if color else chess.E8):
        targets |= chess.BB_SQUARES[origin + 2] | chess.BB_SQUARES[origin - 2]
    return targets


def find_move_tokens(
    vocabulary: Sequence[str], special: Mapping[str, str | None], games: Iterable[Sequence[chess.Move]]
) -> MoveTokens:
    """Return the encoding whose spelling writes every legal move of these games with the vocabulary's tokens.

    The first spelling of `list_move_spellings` that does is chosen, preferring one that writes more promotions. Raises
    BadInputError for a vocabulary of moves without `bos`, and if no spelling writes all moves. The message states how
    many are missing; it is empty if they are half or more, so that the vocabulary is not one of moves.
    """
    vocabulary_set = frozenset(vocabulary)
    boards = (board.copy(stack=False) for board in iterate_boards_of_games(games))
    legal_moves = [(board, move) for board in boards for move in board.legal_moves]
    best_spelling, count = Spelling("{from}{to}"), -1
    for spelling in list_move_spellings():
        if not has_first_moves(spelling, vocabulary_set):
            continue
        write_counts = sum(vocabulary_set.issuperset(spelling.write(board, move)) for board, move in legal_moves)
        write_counts += count_promotions(spelling, vocabulary_set) if write_counts == len(legal_moves) else 0
        if write_counts > count:
            best_spelling, count = spelling, write_counts
    if count < len(legal_moves):
        raise BadInputError(
            f"written as {best_spelling.pattern}, it has no tokens for {len(legal_moves) - count:,} of the "
            f"{len(legal_moves):,} legal moves of the sample games"
            if count > len(legal_moves) // 2
            else ""
        )
    if special.get("bos") is None:
        raise BadInputError("no known token begins a game", "name it as bos_token in tokenizer_config.json")
    encoding = MoveTokens(vocabulary, best_spelling, special)
    if best_spelling.max_tokens > 1 and (joined_token := encoding.find_joined_token()) is not None:
        raise BadInputError(f"its token {joined_token[:40]!r} joins several tokens of a move")
    return encoding


def has_first_moves(spelling: Spelling, vocabulary: frozenset[str]) -> bool:
    """Return whether the vocabulary can write one of both sides' usual first moves."""
    board = chess.Board()
    for uci in ("e2e4", "e7e5", "g1f3", "b8c6"):
        move = chess.Move.from_uci(uci)
        if vocabulary.issuperset(spelling.write(board, move)):
            return True
        board.push(move)
    return False


def count_promotions(spelling: Spelling, vocabulary: frozenset[str]) -> int:
    """Return how many promotions of both sides the vocabulary can write."""
    if spelling.notation == "san":
        return 0
    return sum(
        vocabulary.issuperset(spelling.write_parts(move, piece, color))
        for color in chess.COLORS
        for move, piece in list_possible_moves(color)
        if move.promotion
    )


def iterate_boards_of_games(games: Iterable[Sequence[chess.Move]]) -> Iterator[chess.Board]:
    """Yield the board before every move of these games. The same object is yielded again within a game."""
    for moves in games:
        board = chess.Board()
        for move in moves:
            yield board
            board.push(move)
