"""Prompt templates over any pretrained tokenizer: a position in words, its FEN one token a character, and the answer as
the characters of a move (Junkin's specification 1.3 to 1.5).

Templates are kept verbatim with their punctuation and known by the sha256 of their text, never by a number alone: paper
and code differ in full stops and spaces. Layout, counters, notation and the legal list are settings, because there too
the paper says one thing and the code does another.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import chess
import numpy as np

from chessreg.encodings.base import (
    Alignment,
    Content,
    Ids,
    Sites,
    Tokens,
    board_of,
    check_alignment,
    checked_ids,
)
from chessreg.encodings.fen77 import LENGTH, Fen77
from chessreg.encodings.pgn_char import spellings
from chessreg.errors import BadInputError, NotFoundError
from chessreg.games.moves import replay
from chessreg.named import Registry

if TYPE_CHECKING:
    from chessreg.games.dataset import Games

TEMPLATES: Registry[str] = Registry("prompt template")
"""Name → text with {FEN}, {LM} (the legal moves) and {BM} (the best move, which is the answer)."""
_FIRST = "You are a chess grandmaster. This is the board position in FEN notation: {FEN}"
for _name, _text in {
    "junkin-1": _FIRST + ". The legal moves are: {LM}. Which of these is the best move? Best move: {BM}",
    "junkin-2": "[White 'Magnus Carlsen'] [Black 'Stockfish'] Board position: {FEN}, Legal Moves: {LM}, "
    "Best Move: {BM}",
    "junkin-3": "You are a chess grandmaster. This is the board in fen (Forsyth-Edwards notation). It is your move: "
    "{FEN}. Please select the best move from this list: {LM}.. Please ONLY PLAY MOVES LISTED HERE. ANY move not in "
    "here is illegal. Best move: {BM}",
    "junkin-4": "You are analyzing a competitive chess game. The current board position is represented in FEN "
    "notation: {FEN}. The legal moves available are: {LM}.. Based on the position, decide which move is the best. "
    "Best move: {BM}",
    "junkin-5": "[FEN '{FEN}'] Legal Moves: {LM}. Based on the current board, determine the best move from the "
    "provided options. Best Move: {BM}",
    # the end of the sixth is lost in the paper: this is the code's
    "junkin-6": "As a world-class chess engine, your task is to analyze the following board position and select the "
    "best move. Board in FEN: {FEN}. Legal moves available: {LM}. Choose the strongest move from the list. "
    "Best move: {BM}",
    "junkin-1-code": _FIRST + "The legal moves are: {LM}Which of these is the best move? Best move: {BM}",
    "junkin-small": "FEN: {FEN}Best Move: {BM}",
}.items():
    TEMPLATES.register(_name, _text)

_EXPANDED = re.compile(r"([pnbrqkPNBRQK./]{71}) ([wb] (?:-|[KQkq]{1,4}) (?:-|[a-h][36])) (?:(\d{1,3} \d{1,3})|\. \.)")
"""A FEN in the layout with slashes: the squares, three fields, the counters unless they are blanked."""
_MOST = {"uci": 5, "san": 7}  # characters of a move


class Vocabulary(Protocol):
    """A pretrained tokenizer as prompts use it."""

    size: int
    bos: int | None
    """What a sequence begins with, if anything."""
    end: int
    """What a model writes after its answer."""
    pad: int | None

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, nothing put around it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens; specials are left out."""
        ...

    def character(self, character: str) -> int | None:
        """The token that is this character alone, None where there is none."""
        ...


class CharacterTable:
    """A vocabulary of characters, each one token."""

    def __init__(
        self, ids: Mapping[str, int], *, end: int, size: int, bos: int | None = None, pad: int | None = None
    ) -> None:
        self._ids, self.size, self.bos, self.end, self.pad = dict(ids), size, bos, end, pad
        self._characters = {number: character for character, number in ids.items()}

    @classmethod
    def byte_level(cls, offset: int, *, end: int, size: int, bos: int | None = None, pad: int | None = None) -> Any:
        """The single characters of byte-level BPE: printable ASCII c is ord(c) - 33 + offset, a space 220 + offset, a
        new line 198 + offset. Llama 3 has offset 0, GPT-NeoX 2."""
        ids = {chr(code): code - 33 + offset for code in range(33, 127)}
        return cls(ids | {" ": 220 + offset, "\n": 198 + offset}, end=end, size=size, bos=bos, pad=pad)

    def encode(self, text: str) -> list[int]:
        for place, character in enumerate(text):
            if character not in self._ids:
                raise BadInputError(f"character {character!r} at index {place} is not in the table of characters")
        return [self._ids[character] for character in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._characters.get(number, "") for number in ids)

    def character(self, character: str) -> int | None:
        return self._ids.get(character)


class PretrainedTokenizer:
    """A Hugging Face `tokenizer.json`."""

    def __init__(self, path: Path, *, end: str, bos: str | None = None, pad: str | None = None) -> None:
        """Raises NotFoundError without the file; BadInputError where it is damaged, or lacks a special token."""
        from tokenizers import Tokenizer

        if not path.is_file():
            raise NotFoundError(f"no tokenizer {path}", "give a Hugging Face tokenizer.json")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise BadInputError(f"{path} is no tokenizer: {error}", "give a Hugging Face tokenizer.json") from error
        self.size = int(self._tokenizer.get_vocab_size())
        special: dict[str, int] = {}
        for text in (bos, end, pad):
            number = None if text is None else self._tokenizer.token_to_id(text)
            if text is not None and number is None:
                raise BadInputError(f"{path} has no token {text!r}", "name the special tokens that it has")
            if text is not None and number is not None:
                special[text] = number
        self.end = special[end]
        self.bos, self.pad = (None if text is None else special[text] for text in (bos, pad))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def character(self, character: str) -> int | None:
        """Looked up alone; a token that stands for more or less than the character does not count."""
        ids = self._tokenizer.encode(character, add_special_tokens=False).ids
        return ids[0] if len(ids) == 1 and self._tokenizer.decode(ids) == character else None


@dataclass(frozen=True)
class PromptSettings:
    """What decides a prompt beside the tokenizer.

    `template` is a name of `TEMPLATES` or a text; `layout` the 77 characters (the code) or an expanded FEN with its
    slashes (the paper's example); `counters` kept (the code) or blanked (its README); `notation` uci (the code) or san
    (the paper); `last_separator`: also the last legal move is followed by `, ` (the code). `length` is the model's
    context: a prompt that leaves no room for the answer is refused.
    """

    template: str = "junkin-small"
    layout: Literal["ruoss77", "flattened_with_slashes"] = "ruoss77"
    counters: Literal["kept", "blanked"] = "kept"
    notation: Literal["uci", "san"] = "uci"
    last_separator: bool = False
    length: int | None = None

    @property
    def text(self) -> str:
        """The template's text, verbatim."""
        return self.template if "{" in self.template else TEMPLATES[self.template]

    @property
    def legal_list(self) -> bool:
        return "{LM}" in self.text

    @property
    def digest(self) -> str:
        """sha256 of the settings with the template's text in place of its name."""
        return hashlib.sha256(json.dumps(asdict(self) | {"template": self.text}, sort_keys=True).encode()).hexdigest()


class PromptEncoding:
    """The encoding of positions by one template over one vocabulary. Its name holds the digest of its settings."""

    content: Content = "position"
    phases: tuple[str, ...] = ("white", "black")
    default_site = "last"

    def __init__(self, vocabulary: Vocabulary, settings: PromptSettings | None = None) -> None:
        """Raises BadInputError for a template without its parts, or a character that has no token of its own."""
        self.settings, self._words, self._fen = settings or PromptSettings(), vocabulary, Fen77()
        text = self.settings.text
        if text.count("{FEN}") != 1 or not text.endswith("{BM}") or "{LM}" in text.partition("{FEN}")[0]:
            raise BadInputError(
                f"a prompt template has one {{FEN}}, perhaps {{LM}} behind it, and ends in {{BM}}: {text[:60]!r}"
            )
        self.name = f"prompt-{self.settings.digest[:12]}"
        self.size = self.answer_size = vocabulary.size
        self.stop_ids = frozenset({vocabulary.end})
        self.boundary_ids = frozenset(one for one in (vocabulary.bos, vocabulary.pad) if one is not None)
        self.site_names: tuple[str, ...] = ("last", "turns", "white-turns", "black-turns", "squares", "all")
        if self.settings.layout == "ruoss77":
            self.site_names += ("fen",)
        self.max_move_tokens = _MOST[self.settings.notation] + 1
        before, after = text.removesuffix("{BM}").split("{FEN}")
        self._before = [*([] if vocabulary.bos is None else [vocabulary.bos]), *vocabulary.encode(before)]
        self._between, _, self._behind = (vocabulary.encode(part) for part in after.partition("{LM}"))
        self._separator = vocabulary.encode(", ")
        alphabet = "".join(self._fen.vocabulary) + ("/ -" if self.settings.layout != "ruoss77" else "")
        alphabet += "abcdefgh12345678qrbn" if self.settings.notation == "uci" else "abcdefgh12345678NBRQKOx+#=-"
        self._characters = {character: self._character(character) for character in dict.fromkeys(alphabet)}
        self._table = np.array([self._characters[c] for c in self._fen.vocabulary], np.int32)

    def _character(self, character: str) -> int:
        number = self._words.character(character)
        if number is None:
            raise BadInputError(
                f"the tokenizer has no token for the character {character!r} alone: it is missing or merged",
                "use another tokenizer, or add the character to it",
            )
        return number

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The text of every token; of one that has none, its number in angle brackets."""
        return tuple(self._words.decode([number]) or f"<{number}>" for number in range(self.size))

    # -- positions ------------------------------------------------------------------------------------------------

    def _position(self, ids: np.ndarray) -> np.ndarray:
        """The tokens of the position of one board, from its 77 ids."""
        blanked = self.settings.counters == "blanked"
        if self.settings.layout == "ruoss77":
            tokens = self._table[ids]
            if blanked:
                tokens[71:] = self._characters["."]
            return tokens
        characters = [self._fen.vocabulary[number] for number in ids.tolist()]
        ranks = "/".join("".join(characters[start : start + 8]) for start in range(1, 65, 8))
        side, castling, en_passant, *counters = self._fen.decode(ids).split(" ")[1:]
        text = " ".join((ranks, side, castling, en_passant, *((".", ".") if blanked else counters)))
        return np.array([self._characters[character] for character in text], np.int32)

    def _legal_moves(self, board: chess.Board) -> list[int]:
        """The list of legal moves, in python-chess's order."""
        ids: list[int] = []
        for number, move in enumerate(board.legal_moves):
            ids += [*(self._separator if number else ()), *self._written(board, move)]
        return ids + self._separator * (self.settings.last_separator and bool(ids))

    def _tokens(self, position: np.ndarray, board: chess.Board | None) -> np.ndarray:
        listed = self._legal_moves(board) if board is not None else []
        ids = np.concatenate([self._before, position, np.array([*self._between, *listed, *self._behind], np.int32)])
        room = None if self.settings.length is None else self.settings.length - self.max_move_tokens
        if room is not None and len(ids) > room:
            fen = board.fen() if board is not None else "a position"
            raise BadInputError(
                f"the prompt of {fen} has {len(ids)} tokens, and {self.max_move_tokens} of {self.settings.length} are "
                "kept for the answer",
                "use a template without the legal moves, or a model with a longer context",
            )
        return ids.astype(np.int32, copy=False)

    def encode(self, text: str) -> np.ndarray:
        """The prompt of a FEN, int32. FenError for what is none."""
        return self.boards([text]).ids

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The FEN of a prompt; blanked counters are 0 and 1."""
        array = checked_ids(ids, self.size, self.name)
        start = len(self._before)
        if array[:start].tolist() != self._before:
            raise BadInputError(f"these ids are no prompt of {self.name}", "encode a FEN")
        if self.settings.layout == "ruoss77":
            found = {number: place for place, number in enumerate(self._table.tolist())}
            position = [found.get(number, -1) for number in array[start : start + LENGTH].tolist()]
            if len(position) != LENGTH or -1 in position:
                raise BadInputError(f"these ids are no prompt of {self.name}", "encode a FEN")
            fen = self._fen.decode(np.array(position))
            return fen if self.settings.counters == "kept" else " ".join([*fen.split(" ")[:4], "0", "1"])
        written = {number: character for character, number in self._characters.items()}
        whole = _EXPANDED.match("".join(written.get(number, "?") for number in array[start:].tolist()))
        if whole is None:
            raise BadInputError(f"these ids are no prompt of {self.name}", "encode a FEN")
        pieces = re.sub(r"\.+", lambda run: str(len(run[0])), whole[1])
        return f"{pieces} {whole[2]} {whole[3] or '0 1'}"

    def games(self, games: Games, places: Sequence[int] | np.ndarray) -> Tokens:
        """Every position of these games, as `Fen77.games`."""
        boards = None
        if self.settings.legal_list:
            boards = (board for packed in games.moves(places) for board in replay(packed))
        return self._prompts(self._fen.games(games, places), boards)

    def boards(self, boards: Sequence[str | chess.Board]) -> Tokens:
        fens = self._fen.boards(boards)
        if not self.settings.legal_list:
            return self._prompts(fens, None)
        return self._prompts(fens, (chess.Board(one) if isinstance(one, str) else one for one in boards))

    def _prompts(self, fens: Tokens, boards: Iterable[chess.Board] | None) -> Tokens:
        """The prompts of positions that are encoded as fen-77."""
        every = fens.ids.reshape(-1, LENGTH)
        if boards is None and self.settings.layout == "ruoss77" and len(every):
            first = self._tokens(self._position(every[0]), None)
            ids = np.tile(first, (len(every), 1))
            width = 71 if self.settings.counters == "blanked" else LENGTH
            start = len(self._before)
            ids[:, start : start + width] = self._table[every[:, :width]]
            items, lengths = ids.reshape(-1), np.full(len(every), len(first))
        else:
            given = [None] * len(every) if boards is None else boards
            made = [self._tokens(self._position(one), board) for one, board in zip(every, given, strict=True)]
            items = np.concatenate(made) if made else np.zeros(0, np.int32)
            lengths = np.fromiter(map(len, made), np.int64, len(made))
        laid = Tokens.laid(items, lengths)
        return Tokens(laid.ids, laid.offsets, fens.source, fens.ply)

    def sites(self, name: str, tokens: Tokens, alignment: Alignment = "post-ply") -> Sites:
        """`squares`: the 64 characters of the board, `fen`: all of the position's in the 77-character layout; `turns`:
        the last token. Both alignments are the same."""
        check_alignment(alignment)
        start, slashes = len(self._before), self.settings.layout != "ruoss77"
        side = start + (72 if slashes else 0)  # the side to move stands behind the board, or before it
        lengths = np.diff(tokens.offsets)
        black = np.zeros(len(tokens), bool)
        whole = lengths > side
        black[whole] = tokens.ids[tokens.offsets[:-1][whole] + side] == self._characters["b"]
        if name not in self.site_names:
            raise NotFoundError(f"no site of {self.name} {name!r}", f"known: {', '.join(self.site_names)}")
        if name == "all":
            item = np.repeat(np.arange(len(tokens)), lengths)
            token = np.arange(len(tokens.ids)) - tokens.offsets[item]
        elif name in ("squares", "fen"):
            inside = np.arange(LENGTH) if name == "fen" else np.arange(64)
            inside = inside + inside // 8 if slashes else inside + (name == "squares")
            item = np.repeat(np.arange(len(tokens)), len(inside))
            token = np.tile(start + inside, len(tokens))
        else:
            item = np.flatnonzero({"white-turns": ~black, "black-turns": black}.get(name, lengths > 0))
            token = lengths[item] - 1
        return Sites(item, token, tokens.ply[item], black.astype(np.int8)[item])

    def prompt(self, at: chess.Board | Sequence[str]) -> tuple[int, ...]:
        return tuple(self.boards([board_of(at)]).ids.tolist())

    # -- moves ----------------------------------------------------------------------------------------------------

    def _text(self, board: chess.Board, move: chess.Move) -> str:
        return move.uci() if self.settings.notation == "uci" else board.san(move)

    def _written(self, board: chess.Board, move: chess.Move) -> tuple[int, ...]:
        return tuple(self._characters[character] for character in self._text(board, move))

    def answers(self, board: chess.Board) -> dict[chess.Move, tuple[int, ...]]:
        return {move: self.answer(board, move) for move in board.legal_moves}

    def answer(self, board: chess.Board, move: chess.Move) -> tuple[int, ...]:
        """The characters of the move, and the token that ends the text."""
        return (*self._written(board, move), self._words.end)

    def answer_text(self, ids: Ids) -> str:
        return self._words.decode([int(number) for number in ids if int(number) not in self.stop_ids])

    def accepted(self, board: chess.Board) -> tuple[str, ...]:
        if self.settings.notation == "uci":
            return tuple(sorted(move.uci() for move in board.legal_moves))
        return tuple(sorted(spellings(board, self._characters)))

    def accepted_ids(self, board: chess.Board) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self._characters[character] for character in text) for text in self.accepted(board))

    def parse(self, written: str | Ids, board: chess.Board) -> chess.Move | None:
        words = (written if isinstance(written, str) else self.answer_text(written)).split()
        if not words:
            return None
        try:
            move = board.parse_san(words[0]) if self.settings.notation == "san" else chess.Move.from_uci(words[0])
        except ValueError:
            return None
        return move if move and board.is_legal(move) else None

    def complete(self, ids: Ids, board: chess.Board) -> bool:
        return len(ids) > 0 and int(ids[-1]) in self.stop_ids
