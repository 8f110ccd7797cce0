"""Prompt templates over any pretrained tokenizer: the FEN with one token per character, the answer as a move's
characters.

Source: Junkin 2025, Appendix F, and its code. Templates are kept verbatim and identified by the sha256 of their text,
because paper and code differ in punctuation. Layout, counters, notation and the list of legal moves are settings for
the same reason.

A prompt belongs to a checkpoint: the folder of the weights contains `tokenizer.json`, unchanged, and `prompt.json` with
the settings. The encoding's name contains a digest of both, which is checked on loading.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import chess
import numpy as np

from chessreg.encodings.base import (
    Alignment,
    Content,
    Form,
    Ids,
    Notation,
    Sites,
    Tokens,
    check_alignment,
    check_ids,
    resolve_board,
)
from chessreg.encodings.fen77 import FEN77_TOKENS, Fen77, make_uci_forms
from chessreg.encodings.pgn_char import list_spellings, make_san_forms
from chessreg.errors import DAMAGE_ERRORS, BadInputError, NotFoundError, get_first_line, reraise_lack_of_memory
from chessreg.folders import expand_path
from chessreg.games.boards.moves import replay_boards
from chessreg.named import NameRegistry, clip_text
from chessreg.registry.file_gate import refuse_registry

if TYPE_CHECKING:
    from chessreg.games.datasets.dataset import Games

TEMPLATES: NameRegistry[str] = NameRegistry("prompt template")
"""Template name → text with {FEN}, {LM} (the legal moves) and {BM} (the best move, which is the answer)."""
_FIRST = "You are a chess grandmaster. This is the board position in FEN notation: {FEN}"
_FIRST_OF_CODE = _FIRST + "The legal moves are: {LM}Which of these is the best move? Best move: "
_THIRD = (
    "You are a chess grandmaster. This is the board in fen (Forsyth-Edwards notation). It is your move: {FEN}. Please "
    "select the best move from this list: {LM}%s Please ONLY PLAY MOVES LISTED HERE. ANY move not in here is illegal. "
    "Best move: {BM}"
)
_FOURTH = (
    "You are analyzing a competitive chess game. The current board position is represented in FEN notation: {FEN}. "
    "The legal moves available are: {LM}%s Based on the position, decide which move is the best. Best move: {BM}"
)
for _name, _text in {
    "junkin-1": _FIRST + ". The legal moves are: {LM}. Which of these is the best move? Best move: {BM}",
    "junkin-2": "[White 'Magnus Carlsen'] [Black 'Stockfish'] Board position: {FEN}, Legal Moves: {LM}, "
    "Best Move: {BM}",
    "junkin-3": _THIRD % "..",
    "junkin-4": _FOURTH % "..",
    "junkin-5": "[FEN '{FEN}'] Legal Moves: {LM}. Based on the current board, determine the best move from the "
    "provided options. Best Move: {BM}",
    # the end of the sixth is missing in the paper; this text is the code's
    "junkin-6": "As a world-class chess engine, your task is to analyze the following board position and select the "
    "best move. Board in FEN: {FEN}. Legal moves available: {LM}. Choose the strongest move from the list. "
    "Best move: {BM}",
    "junkin-1-code": _FIRST_OF_CODE + "{BM}",
    "junkin-small": "FEN: {FEN}Best Move: {BM}",
    # only in the code, where the answer is the first of a list: the seventh has a backslash and an n, the eighth a new
    # line
    "junkin-7": _FIRST_OF_CODE + "\\n1. {BM}",
    "junkin-8": _FIRST_OF_CODE + "\n1. {BM}",
    "junkin-f": "You are a chess grandmaster. This is the board in FEN notation: {FEN}. The legal moves are: "
    "{LM}. Which of these is the best move? Best move: {BM}",
    # as in Appendix F, with one full stop after the moves; Appendix K prints two
    "junkin-3f": _THIRD % ".",
    "junkin-4f": _FOURTH % ".",
}.items():
    TEMPLATES.register(_name, _text)

MERGED_TEMPLATES = (
    "junkin-1",
    "junkin-2",
    "junkin-3",
    "junkin-4",
    "junkin-5",
    "junkin-6",
    "junkin-1-code",
    "junkin-small",
)
"""The templates whose words become tokens in the tokenizer of models with random initial weights."""

_EXPANDED_FEN = re.compile(
    r"([pnbrqkPNBRQK./]{71}) ([wb] (?:-|[KQkq]{1,4}) (?:-|[a-h][36])) (?:(\d{1,3} \d{1,3})|\. \.)"
)
"""A FEN in the layout with slashes: squares, three fields, counters (or `. .` if blanked)."""
_MOVE_CHARACTERS = {"uci": 5, "san": 7}  # characters of a move

Layout = Literal["ruoss77", "flattened_with_slashes"]
Counters = Literal["kept", "blanked"]

TEXTS_BEFORE = ("\n", "|", "~")
"""Texts in front of which the inside of a prompt is encoded, because few tokens contain one of them and a letter."""
PREFIX = "prompt-"
"""The prefix of the names of prompt encodings."""
TOKENIZER_FILE, PROMPT_FILE = "tokenizer.json", "prompt.json"
ENCODING_FILES = (TOKENIZER_FILE, PROMPT_FILE)
"""The files of a prompt encoding in a checkpoint's folder."""


class PretrainedTokenizer:
    """A Hugging Face `tokenizer.json` with its tokens for the beginning of a sequence, the end of an answer and
    padding."""

    def __init__(self, path: Path, *, end: str, bos: str | None = None, pad: str | None = None) -> None:
        """Read `path`. Raises NotFoundError if it is missing, BadInputError if it is damaged or lacks a special
        token."""
        self.path, self._tokenizer = path, _read_tokenizer(path)
        self.size = int(self._tokenizer.get_vocab_size())
        self.special = {"bos": bos, "end": end, "pad": pad}
        ids = {name: None if text is None else self._tokenizer.token_to_id(text) for name, text in self.special.items()}
        for name, text in self.special.items():
            if text is not None and ids[name] is None:
                raise BadInputError(f"{path.name} has no token {text!r}", "name special tokens that it has")
        self.bos, self.pad, self.end = ids["bos"], ids["pad"], int(ids["end"])  # type: ignore[arg-type]
        with path.open("rb") as file:
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        inside = self._encode_after("a")
        self._begins_apart = inside is not None and inside != self.encode("a")

    @classmethod
    def from_folder(cls, folder: Path, *, end: str | None = None, bos: str | None = None) -> PretrainedTokenizer:
        """Return the tokenizer of a Hugging Face folder.

        `end` defaults to the eos token named in tokenizer_config.json or config.json; `bos` to the token that the
        tokenizer puts in front of a text (Llama's does, GPT-NeoX's does not). Raises NotFoundError without a
        tokenizer.json, BadInputError if no file names the end token.
        """
        path = folder / TOKENIZER_FILE
        tokenizer = _read_tokenizer(path)
        configs = [read_json_object(folder / name) for name in ("tokenizer_config.json", "config.json")]

        def token(name: str) -> str | None:
            value = configs[0].get(f"{name}_token")
            text = value.get("content") if isinstance(value, dict) else value
            number = configs[1].get(f"{name}_token_id")
            number = number[0] if isinstance(number, list) and number else number
            return text if isinstance(text, str) else tokenizer.id_to_token(number) if type(number) is int else None

        end = token("eos") if end is None else end
        if end is None:
            raise BadInputError(f"{folder.name} does not name the token that ends a text", "name it with --end TOKEN")
        try:
            plain, full_encoding = (tokenizer.encode("a", add_special_tokens=special) for special in (False, True))
        except Exception as error:  # tokenizers raises plain Exception
            reraise_lack_of_memory(error)
            raise BadInputError(f"{folder.name}/{TOKENIZER_FILE} cannot write a text: {error}") from error
        leading_tokens = (
            full_encoding.tokens[: full_encoding.ids.index(plain.ids[0])]
            if plain.ids and plain.ids[0] in full_encoding.ids
            else []
        )
        pad = token("pad")
        has_padding = pad is not None and tokenizer.token_to_id(pad) is not None
        return cls(
            path, end=end, bos=bos or (leading_tokens[0] if leading_tokens else None), pad=pad if has_padding else None
        )

    @property
    def digest(self) -> str:
        """sha256 of the file's digest and the special tokens."""
        return hashlib.sha256(json.dumps([self.sha256, self.special], sort_keys=True).encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text at the start of a prompt, without special tokens."""
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        except Exception as error:  # tokenizers raises plain Exception
            reraise_lack_of_memory(error)
            raise BadInputError(f"the tokenizer cannot write {text[:40]!a}: {error}") from error

    def encode_inside(self, text: str) -> list[int]:
        """Return the tokens of a text that follows another text in a prompt.

        A SentencePiece tokenizer writes `▁` (a space) before a text, but not inside a prompt. Raises BadInputError if
        the text merges with every text tried in front of it.
        """
        if not self._begins_apart or not text:
            return self.encode(text)
        ids = self._encode_after(text)
        if ids is None:
            raise BadInputError(
                f"the tokenizer has no tokens for {text[:40]!a} inside a prompt", "use another tokenizer or template"
            )
        return ids

    def _encode_after(self, text: str) -> list[int] | None:
        """Return the tokens of a text after another one, found by their offsets; None if a token spans both texts."""
        for before in TEXTS_BEFORE:
            try:
                full_encoding = self._tokenizer.encode(before + text, add_special_tokens=False)
            except Exception:  # tokenizers raises plain Exception; another text may work
                continue
            first_position = next(
                (k for k, (_, end) in enumerate(full_encoding.offsets) if end > len(before)), len(full_encoding.ids)
            )
            ids = list(full_encoding.ids)
            if all(start >= len(before) for start, _ in full_encoding.offsets[first_position:]) and self.decode(
                ids
            ).endswith(text):
                return ids[first_position:]
        return None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def character(self, character: str) -> int | None:
        """Return the token that is exactly this character; None if the vocabulary lacks it.

        A candidate counts only if two of it decode to two characters with nothing between them.
        """
        ids = self.encode_inside(character)
        lead = self.encode(TEXTS_BEFORE[0])  # a leading space would be dropped
        text = self._tokenizer.decode(lead) + 2 * character
        for number in (*(ids if len(ids) == 1 else ()), self._tokenizer.token_to_id(character)):
            if number is not None and self._tokenizer.decode([*lead, number, number]) == text:
                return int(number)
        return None


def make_tokenizer(folder: Path, has_merges: bool) -> PretrainedTokenizer:
    """Train a byte-level tokenizer for models with random initial weights; write it to `folder` and return it.

    If `has_merges`, byte-pair encoding merges the words of the published templates into one or a few tokens; otherwise
    every byte is a token. `<s>` begins a sequence, `</s>` ends an answer, `<pad>` pads.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"bos": "<s>", "end": "</s>", "pad": "<pad>"}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=512 if has_merges else len(alphabet) + len(special),
        special_tokens=list(special.values()),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEMPLATES[name] for name in MERGED_TEMPLATES], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / TOKENIZER_FILE))
    return PretrainedTokenizer(folder / TOKENIZER_FILE, **special)


def _read_tokenizer(path: Path) -> Any:
    """Return the `tokenizers.Tokenizer` of a file. Raises NotFoundError or BadInputError."""
    from tokenizers import Tokenizer

    if not path.is_file():
        raise NotFoundError(f"{path.parent.name} has no {path.name}", "a prompt needs a folder with its tokenizer.json")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        reraise_lack_of_memory(error)
        reason = str(error).partition("\n")[0]
        hint = "give a Hugging Face tokenizer.json"
        raise BadInputError(f"{path.name} is not a tokenizer: {reason}", hint) from error


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if the file is missing or holds anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True)
class PromptSettings:
    """The settings of a prompt other than the tokenizer.

    `template` is a name in `TEMPLATES` or a text. `layout` is the 77 characters (the code) or an expanded FEN with
    slashes (the paper's example). `counters` are kept (the code) or blanked (its README). `notation` is uci (the code)
    or san (the paper). `last_separator`: whether `, ` also follows the last legal move (the code).
    """

    template: str = "junkin-small"
    layout: Layout = "ruoss77"
    counters: Counters = "kept"
    notation: Notation = "uci"
    last_separator: bool = False

    @property
    def text(self) -> str:
        """The template's text, verbatim."""
        return self.template if "{" in self.template else TEMPLATES[self.template]

    @property
    def template_name(self) -> str:
        """The template's registered name, or `own` for any other text."""
        return next((name for name, text in TEMPLATES.items() if text == self.text), "own")

    @property
    def legal_list(self) -> bool:
        """Whether the template lists the legal moves."""
        return "{LM}" in self.text

    @property
    def digest(self) -> str:
        """sha256 of the settings, with the template's text in place of its name."""
        return hashlib.sha256(json.dumps(asdict(self) | {"template": self.text}, sort_keys=True).encode()).hexdigest()


class PromptEncoding:
    """The encoding of positions by one template and one tokenizer. Its name contains a digest of both.

    Sites: `last` and `turns` are the prompt's last token, after which the answer is written; `squares` the 64 tokens of
    the board; `fen` all 77 tokens of the position (only in that layout); `all` every token.
    """

    content: Content = "position"
    phases: tuple[str, ...] = ("white", "black")

    def __init__(self, vocabulary: PretrainedTokenizer, settings: PromptSettings | None = None) -> None:
        """Raises BadInputError for an invalid template or setting, and for a character that is not a separate token."""
        self.settings, self._words, self._fen = settings or PromptSettings(), vocabulary, Fen77()
        for field, choices in (("layout", Layout), ("counters", Counters), ("notation", Notation)):
            if (value := getattr(self.settings, field)) not in get_args(choices):
                raise BadInputError(
                    f"{field} {value!r} of prompts does not exist", f"known: {', '.join(get_args(choices))}"
                )
        text = self.settings.text
        check_template(text)
        self.notation: Notation = self.settings.notation
        digest = hashlib.sha256(f"{self.settings.digest} {vocabulary.digest}".encode()).hexdigest()
        self.name = f"{PREFIX}{self.settings.template_name}-{digest[:12]}"
        self.size = self.answer_size = vocabulary.size
        self.stop_ids = frozenset({vocabulary.end})
        self.boundary_ids = frozenset(one for one in (vocabulary.bos, vocabulary.pad) if one is not None)
        self.site_names: tuple[str, ...] = ("last", "turns", "white-turns", "black-turns", "squares", "all")
        if self.settings.layout == "ruoss77":
            self.site_names += ("fen",)
        self.max_move_tokens = _MOVE_CHARACTERS[self.settings.notation] + 1
        before, after = text.removesuffix("{BM}").split("{FEN}")
        self._prefix_ids = [*([] if vocabulary.bos is None else [vocabulary.bos]), *vocabulary.encode(before)]
        self._middle_ids, _, self._suffix_ids = (vocabulary.encode_inside(part) for part in after.partition("{LM}"))
        self._separator = vocabulary.encode_inside(", ")
        alphabet = "".join(self._fen.vocabulary) + ("/ -" if self.settings.layout != "ruoss77" else "")
        alphabet += "abcdefgh12345678qrbn" if self.settings.notation == "uci" else "abcdefgh12345678NBRQKOx+#=-"
        self._characters = {character: self._find_character_token(character) for character in dict.fromkeys(alphabet)}
        self._table = np.array([self._characters[c] for c in self._fen.vocabulary], np.int32)
        self._check_words()

    @classmethod
    def load(cls, folder: Path, name: str | None = None) -> PromptEncoding:
        """Return the encoding stored in a checkpoint's folder.

        Raises NotFoundError without a prompt.json in it, BadInputError if it is damaged or differs from `name`.
        """
        if not (folder / PROMPT_FILE).is_file():
            raise NotFoundError(f"{folder.name} holds no {PROMPT_FILE}", "import its weights with --encoding prompt")
        record = read_json_object(folder / PROMPT_FILE)
        try:
            settings = PromptSettings(**{field: record[field] for field in PromptSettings.__dataclass_fields__})
            tokenizer = PretrainedTokenizer(folder / TOKENIZER_FILE, **record["special"])
        except (KeyError, TypeError) as error:
            raise BadInputError(
                f"{folder.name}/{PROMPT_FILE} is damaged: {error}", "import the weights again"
            ) from error
        encoding = cls(tokenizer, settings)
        if name is not None and encoding.name != name:
            raise BadInputError(
                f"{folder.name} holds the encoding {encoding.name}, not {name}", "import the weights again"
            )
        return encoding

    def with_settings(self, settings: PromptSettings) -> PromptEncoding:
        """Return an encoding with the same tokenizer and other settings."""
        return PromptEncoding(self._words, settings)

    def save(self, folder: Path) -> None:
        """Write the files that `load` reads. Raises BadInputError for a tokenizer that is not stored in a file."""
        if not isinstance(self._words, PretrainedTokenizer):
            raise BadInputError(f"{self.name} has no {TOKENIZER_FILE} to keep")
        if self._words.path.resolve() != (folder / TOKENIZER_FILE).resolve():
            shutil.copyfile(self._words.path, folder / TOKENIZER_FILE)
        record = {**asdict(self.settings), "template": self.settings.text, "special": self._words.special}
        (folder / PROMPT_FILE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def _find_character_token(self, character: str) -> int:
        """Return the token that is exactly this character. Raises BadInputError without one."""
        number = self._words.character(character)
        if number is None:
            raise BadInputError(
                f"the tokenizer has no token for the character {character!r} alone: it is missing or merged",
                "use another tokenizer, or add the character to it",
            )
        return number

    def _check_words(self) -> None:
        """Raise BadInputError unless the tokens of a prompt decode to the template's exact text."""
        board = chess.Board()
        ids = self.boards([board]).ids.tolist()
        decoded_text = self._words.decode(ids[self._words.bos is not None :])
        position = "".join(self._format_position(self._fen.boards([board]).ids))
        moves = ", ".join(self._list_move_texts(board).values())
        moves += ", " * self.settings.last_separator
        text = self.settings.text.replace("{FEN}", position).replace("{LM}", moves).removesuffix("{BM}")
        if decoded_text != text:
            place = next(
                (i for i, (a, b) in enumerate(zip(decoded_text, text, strict=False)) if a != b),
                min(len(decoded_text), len(text)),
            )
            raise BadInputError(
                f"the tokenizer does not write the template as it is: {text[place : place + 20]!r} becomes "
                f"{decoded_text[place : place + 20]!r}",
                "use another tokenizer or another template",
            )

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The text of each token; a token without text is its number in angle brackets."""
        return tuple(self._words.decode([number]) or f"<{number}>" for number in range(self.size))

    # -- positions ------------------------------------------------------------------------------------------------

    def _format_position(self, ids: np.ndarray) -> str:
        """Return the text of one board's position, given its 77 ids."""
        is_blanked = self.settings.counters == "blanked"
        characters = [self._fen.vocabulary[number] for number in ids.tolist()]
        if self.settings.layout == "ruoss77":
            return "".join([*characters[:71], *("......" if is_blanked else characters[71:])])
        ranks = "/".join("".join(characters[start : start + 8]) for start in range(1, 65, 8))
        side, castling, en_passant, *counters = self._fen.decode(ids).split(" ")[1:]
        return " ".join((ranks, side, castling, en_passant, *((".", ".") if is_blanked else counters)))

    def _encode_position(self, ids: np.ndarray) -> np.ndarray:
        """Return the tokens of one board's position, given its 77 ids: int32 [length]."""
        return np.array([self._characters[character] for character in self._format_position(ids)], np.int32)

    def _encode_legal_moves(self, board: chess.Board) -> list[int]:
        """Return the tokens of the list of legal moves, in python-chess's order."""
        ids: list[int] = []
        for number, text in enumerate(self._list_move_texts(board).values()):
            ids += [*(self._separator if number else ()), *self._encode_move_text(text)]
        return ids + self._separator * (self.settings.last_separator and bool(ids))

    def _build_prompt(self, position: np.ndarray, board: chess.Board | None) -> np.ndarray:
        """Return the prompt int32 [length] around a position's tokens, with the legal moves of `board` if given."""
        legal_ids = self._encode_legal_moves(board) if board is not None else []
        ids = np.concatenate(
            [self._prefix_ids, position, np.array([*self._middle_ids, *legal_ids, *self._suffix_ids], np.int32)]
        )
        return ids.astype(np.int32, copy=False)

    def encode(self, text: str) -> np.ndarray:
        """Return the prompt of a FEN, int32 [length]. Raises FenError for an invalid FEN."""
        return self.boards([text]).ids

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Return the FEN of a prompt; blanked counters become 0 and 1."""
        array = check_ids(ids, self.size, self.name)
        start = len(self._prefix_ids)
        if array[:start].tolist() != self._prefix_ids:
            raise BadInputError(f"these ids are not a prompt of {self.name}", "encode a FEN")
        if self.settings.layout == "ruoss77":
            place_by_id = {number: place for place, number in enumerate(self._table.tolist())}
            position = [place_by_id.get(number, -1) for number in array[start : start + FEN77_TOKENS].tolist()]
            if len(position) != FEN77_TOKENS or -1 in position:
                raise BadInputError(f"these ids are not a prompt of {self.name}", "encode a FEN")
            fen = self._fen.decode(np.array(position))
            return fen if self.settings.counters == "kept" else " ".join([*fen.split(" ")[:4], "0", "1"])
        character_by_id = {number: character for character, number in self._characters.items()}
        match = _EXPANDED_FEN.match("".join(character_by_id.get(number, "?") for number in array[start:].tolist()))
        if match is None:
            raise BadInputError(f"these ids are not a prompt of {self.name}", "encode a FEN")
        pieces = re.sub(r"\.+", lambda run: str(len(run[0])), match[1])
        return f"{pieces} {match[2]} {match[3] or '0 1'}"

    def games(self, games: Games, places: Sequence[int] | np.ndarray) -> Tokens:
        """Encode every position of these games, in the same order as `Fen77.games`."""
        boards = None
        if self.settings.legal_list:
            boards = (board for packed_moves in games.moves(places) for board in replay_boards(packed_moves))
        return self._build_prompts(self._fen.games(games, places), boards)

    def boards(self, boards: Sequence[str | chess.Board]) -> Tokens:
        fens = self._fen.boards(boards)
        if not self.settings.legal_list:
            return self._build_prompts(fens, None)
        return self._build_prompts(fens, (chess.Board(one) if isinstance(one, str) else one for one in boards))

    def _build_prompts(self, fens: Tokens, boards: Iterable[chess.Board] | None) -> Tokens:
        """Return the prompts of positions that are encoded as fen-77; `boards` are needed if the template lists legal
        moves."""
        every = fens.ids.reshape(-1, FEN77_TOKENS)
        if boards is None and self.settings.layout == "ruoss77" and len(every):
            first_prompt = self._build_prompt(self._encode_position(every[0]), None)
            ids = np.tile(first_prompt, (len(every), 1))
            width = 71 if self.settings.counters == "blanked" else FEN77_TOKENS
            start = len(self._prefix_ids)
            ids[:, start : start + width] = self._table[every[:, :width]]
            items, lengths = ids.reshape(-1), np.full(len(every), len(first_prompt))
        else:
            boards_or_none = [None] * len(every) if boards is None else boards
            prompts = [
                self._build_prompt(self._encode_position(one), board)
                for one, board in zip(every, boards_or_none, strict=True)
            ]
            items = np.concatenate(prompts) if prompts else np.zeros(0, np.int32)
            lengths = np.fromiter(map(len, prompts), np.int64, len(prompts))
        tokens = Tokens.from_lengths(items, lengths)
        return Tokens(tokens.ids, tokens.offsets, fens.source, fens.ply)

    def sites(self, name: str, tokens: Tokens, alignment: Alignment = "post-ply") -> Sites:
        """Return sites (see the class); both alignments are the same, because an item is one board."""
        check_alignment(alignment)
        start, slashes = len(self._prefix_ids), self.settings.layout != "ruoss77"
        side = start + (72 if slashes else 0)  # the side to move comes after the board, or before it
        lengths = np.diff(tokens.offsets)
        black = np.zeros(len(tokens), bool)
        has_site = lengths > side
        black[has_site] = tokens.ids[tokens.offsets[:-1][has_site] + side] == self._characters["b"]
        if name not in self.site_names:
            raise NotFoundError(f"{self.name} has no site {name!r}", f"known: {', '.join(self.site_names)}")
        if name == "all":
            item = np.repeat(np.arange(len(tokens)), lengths)
            token = np.arange(len(tokens.ids)) - tokens.offsets[item]
        elif name in ("squares", "fen"):
            inside = np.arange(FEN77_TOKENS) if name == "fen" else np.arange(64)
            inside = inside + inside // 8 if slashes else inside + (name == "squares")
            item = np.repeat(np.arange(len(tokens)), len(inside))
            token = np.tile(start + inside, len(tokens))
        else:
            item = np.flatnonzero({"white-turns": ~black, "black-turns": black}.get(name, lengths > 0))
            token = lengths[item] - 1
        return Sites(item, token, tokens.ply[item], black.astype(np.int8)[item])

    def prompt(self, at: chess.Board | Sequence[str]) -> tuple[int, ...]:
        return tuple(self.boards([resolve_board(at)]).ids.tolist())

    # -- moves ----------------------------------------------------------------------------------------------------

    def _list_move_texts(self, board: chess.Board) -> dict[chess.Move, str]:
        """Return {legal move: its text}, in python-chess's order."""
        if self.settings.notation == "uci":
            return {move: move.uci() for move in board.legal_moves}
        return {move: board.san(move) for move in board.legal_moves}

    def _encode_move_text(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a move's text, one per character."""
        return tuple(self._characters[character] for character in text)

    def answers(self, board: chess.Board) -> dict[chess.Move, tuple[int, ...]]:
        return {
            move: (*self._encode_move_text(text), self._words.end)
            for move, text in self._list_move_texts(board).items()
        }

    def answer(self, board: chess.Board, move: chess.Move) -> tuple[int, ...]:
        """Return the tokens of the move's characters and the token that ends the text."""
        text = move.uci() if self.settings.notation == "uci" else board.san(move)
        return (*self._encode_move_text(text), self._words.end)

    def find_origin(self, number: int) -> int | None:
        return None

    def answer_text(self, ids: Ids) -> str:
        return self._words.decode([int(number) for number in ids if int(number) not in self.stop_ids])

    def accepted_texts(self, board: chess.Board) -> tuple[str, ...]:
        if self.settings.notation == "uci":
            return tuple(sorted(move.uci() for move in board.legal_moves))
        return tuple(sorted(list_spellings(board, self._characters)))

    def accepted_ids(self, board: chess.Board) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self._characters[character] for character in text) for text in self.accepted_texts(board))

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        if self.settings.notation == "uci":
            return make_uci_forms(self._characters.__getitem__, 1)
        return make_san_forms(self._characters)

    def parse(self, answer: str | Ids, board: chess.Board) -> chess.Move | None:
        parts = (answer if isinstance(answer, str) else self.answer_text(answer)).split()
        if not parts:
            return None
        try:
            move = board.parse_san(parts[0]) if self.settings.notation == "san" else chess.Move.from_uci(parts[0])
        except ValueError:
            return None
        return move if move and board.is_legal(move) else None

    def is_complete(self, ids: Ids, board: chess.Board) -> bool:
        return len(ids) > 0 and int(ids[-1]) in self.stop_ids


def make_prompt_encoding(
    folder: Path, *, template: str = "junkin-small", end: str | None = None, bos: str | None = None, **settings: Any
) -> PromptEncoding:
    """Return the encoding of a template over the tokenizer of a Hugging Face folder.

    `template` is as in `read_template`; `settings` are fields of `PromptSettings`. Raises NotFoundError for an unknown
    template or a missing tokenizer.json, BadInputError for an unusable tokenizer, template or setting.
    """
    if template not in TEMPLATES:
        template = read_template(template)
    try:
        vocabulary = PretrainedTokenizer.from_folder(folder, end=end, bos=bos)
        return PromptEncoding(vocabulary, PromptSettings(template, **settings))
    except DAMAGE_ERRORS as error:
        raise BadInputError(f"the tokenizer in {folder} cannot be used: {get_first_line(error)}") from error


def read_template(name_or_file: str) -> str:
    """Return the text of a template given as a name in `TEMPLATES`, as a text, or as the path of a text file.

    A line break at the end of the file is dropped. Raises NotFoundError for an unknown template, BadInputError for an
    unreadable file or invalid text.
    """
    text = TEMPLATES.get(name_or_file, name_or_file)
    if "{" not in text:
        path = expand_path(name_or_file)
        if not os.path.isfile(path):  # also handles texts that are too long for a file name
            raise NotFoundError(
                f"{name_or_file[:60]!r} is neither a prompt template nor a file", f"known: {', '.join(TEMPLATES)}"
            )
        refuse_registry(path)
        try:
            text = path.read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, ValueError) as error:
            raise BadInputError(f"{path} is not text: {error}", "write the template in UTF-8") from error
    check_template(text)
    return text


def check_template(text: str) -> None:
    """Raise BadInputError unless the text has one {FEN}, at most one {LM} after it, {BM} at the end, and no
    other part."""
    placeholders = re.findall(r"\{([A-Z_]+)\}", text)
    if unknown := [name for name in placeholders if name not in ("FEN", "LM", "BM")]:
        raise BadInputError(f"a prompt template has no {{{unknown[0]}}}", "its parts are {FEN}, {LM} and {BM}")
    if placeholders.count("LM") > 1:
        raise BadInputError("a prompt template has {LM} at most once; this one has it twice", "remove one {LM}")
    if text.count("{FEN}") != 1 or not text.endswith("{BM}") or "{LM}" in text.partition("{FEN}")[0]:
        raise BadInputError(
            "a prompt template has one {FEN}, optionally {LM} after it, and ends in {BM}: "
            f"{clip_text(text)!r} does not"
        )
