"""The vocabulary that comes with a checkpoint: the text of each row of its embedding, and the rows that an encoding
reads.

Models with one encoding are published with their tokens in any order, and with additional tokens. Without the order,
such a model imports without an error and plays no legal move.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess

from chessreg.encodings import Encoding, get_encoding, list_encodings
from chessreg.encodings.move_tokens import MoveTokens, find_move_tokens
from chessreg.encodings.prompts import read_json_object
from chessreg.encodings.uci_square import UciSquare
from chessreg.errors import DAMAGE_ERRORS, BadInputError, get_first_line, reraise_lack_of_memory
from chessreg.models.importers.game_check import read_sample_games
from chessreg.models.importers.source import read_plain_pickle

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "meta.pkl", "tokenizer_config.json")
"""Files of a folder that may contain its vocabulary, in order of priority. meta.pkl is nanoGPT's; tokenizer_config.json
counts if it has the `char_ords` of a CharacterTokenizer."""
META = "meta.pkl"
SPECIAL_FILES = ("tokenizer_config.json", "special_tokens_map.json", "config.json")
"""Files of a folder that name its special tokens."""
MAX_FILE_BYTES = 64 << 20  # of a tokenizer's file
MAX_LINES = 1 << 20  # of vocab.txt
CHARACTER_TOKENIZER_SPECIALS = ("[CLS]", "[SEP]", "[BOS]", "[MASK]", "[PAD]", "[RESERVED]", "[UNK]")
"""Ids 0 to 6 of a CharacterTokenizer (HyenaDNA's, which is widely copied); its characters follow."""
SPECIALS = {
    "<pad>": ("<|pad|>", "[PAD]"),
    "<s>": ("<|startoftext|>", "<bos>", "<|bos|>", "[BOS]"),
    "</s>": ("<|endoftext|>", "<eos>", "<|eos|>", "[EOS]"),
    "<unk>": ("<|unknown|>", "<|unk|>", "[UNK]"),
}
"""Alternative names of the special tokens, Davis's later names first."""
RESULTS = ("1-0", "0-1")
"""Tokens that consist of game characters but occur in no game of an encoding."""
SPACES = ("Ġ", "▁")
"""A space in byte-level and in SentencePiece vocabularies."""
SPACE_TEXTS = (" ", *SPACES)
MOST_DROPPED_LISTED = 100


@dataclass(frozen=True)
class TokenRows:
    """The rows of an encoding's tokens in a model: `rows[i]` is the row of id i in its embedding and output head.

    `file` is the vocabulary's file, None if the model has none. `dropped_tokens` are the texts of the other rows and
    `unused_rows` is the number of rows without a text. `promotion_case` is how UCI squares write promotion pieces.
    """

    rows: tuple[int, ...]
    file: str | None = None
    dropped_tokens: tuple[str, ...] = ()
    unused_rows: int = 0
    promotion_case: str | None = None

    @property
    def is_reordered(self) -> bool:
        return self.rows != tuple(range(len(self.rows)))

    def as_json(self) -> dict[str, Any]:
        """Return the record stored with the checkpoint.

        Rows are listed if any was moved or dropped; texts of dropped rows have Python's escapes.
        """
        record: dict[str, Any] = {"file": self.file, "promotion_case": self.promotion_case}
        if self.is_reordered or self.dropped_tokens or self.unused_rows:
            token_texts = [
                text[:60].encode("unicode_escape").decode() for text in self.dropped_tokens[:MOST_DROPPED_LISTED]
            ]
            record |= {"rows": list(self.rows), "dropped": token_texts}
            record["dropped_rows"] = len(self.dropped_tokens) + self.unused_rows
        return {name: value for name, value in record.items() if value is not None}


@dataclass(frozen=True)
class Vocabulary:
    """The text of each id in `file`.

    `merged` are the texts that the tokenizer makes by joining others, None if it could make any text. `tokenizer` is
    the tokenizer in the file, None for a file that has only texts.
    """

    file: str
    texts: Mapping[int, str]
    merged: frozenset[str] | None = None
    tokenizer: Tokenizer | None = None

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each text, with spaces as in a game."""
        return {self._normalize_spaces(text): number for number, text in self.texts.items()}

    def _normalize_spaces(self, text: str) -> str:
        for space in () if self._has_space else SPACES:
            text = text.replace(space, " ")
        return text

    @cached_property
    def _has_space(self) -> bool:
        return " " in self.texts.values()

    def find_id(self, text: str, encoding: Encoding) -> int | None:
        """Return the id of a token of the encoding, under any of its names; None if the vocabulary lacks it."""
        aliases = SPECIALS.get(text, ())
        if isinstance(encoding, UciSquare) and text in "qrbn" and text.upper() not in encoding.vocabulary:
            aliases = (text.upper(),)
        return next((self.ids[name] for name in (text, *aliases) if name in self.ids), None)

    def list_texts(self) -> list[str]:
        """Return the text of each id without spaces around it, in order; ids without a text get a separate name.

        A text that a smaller id has too keeps its spaces, or gets a number.
        """
        texts: dict[str, None] = {}
        for number in range(max(self.texts, default=-1) + 1):
            token_text = self.texts.get(number, f"<unused-{number}>")
            plain = self._normalize_spaces(token_text).strip() or token_text
            texts[next(text for text in (plain, token_text, f"{token_text}-{number}") if text not in texts)] = None
        return list(texts)

    def list_missing_tokens(self, encoding: Encoding) -> list[str]:
        """Return the tokens of the encoding that the vocabulary lacks."""
        return [text for text in encoding.vocabulary if self.find_id(text, encoding) is None]

    def describe_difference(self, encoding: Encoding) -> str | None:
        """Return why this is not the encoding's vocabulary, None if it is.

        The reason is a missing or repeated token, or a token that joins several of the encoding's and could occur in a
        game.
        """
        if missing_tokens := self.list_missing_tokens(encoding):
            more = f" and {len(missing_tokens) - 1} more" if len(missing_tokens) > 1 else ""
            return f"it has no token {missing_tokens[0]!r}{more}"
        rows = self._find_rows(encoding)
        counts = Counter(map(self._normalize_spaces, self.texts.values()))
        if repeated_text := next(
            (self.texts[row] for row in rows if counts[self._normalize_spaces(self.texts[row])] > 1), None
        ):
            return f"it has the token {repeated_text!r} twice"
        tokens_pattern = re.compile(
            f"(?:{'|'.join(map(re.escape, sorted(encoding.vocabulary, key=len, reverse=True)))}){{2,}}"
        )
        for text in map(self._normalize_spaces, self._list_other_texts(rows)):
            possible = self.merged is None or text in self.merged
            if possible and text not in RESULTS and tokens_pattern.fullmatch(text):
                return f"its token {text[:40]!r} joins several tokens of a game"
        read_rows = dict(zip(encoding.vocabulary, rows, strict=True))
        texts = [text for text in encoding.vocabulary if not is_special_token(text)]
        return self.describe_changed_text(texts, read_rows, encoding.vocabulary[encoding.prompt([])[0]])

    def describe_changed_text(self, texts: Iterable[str], rows: Mapping[str, int], begin: str) -> str | None:
        """Return how the file's tokenizer changes a game, None if it does not.

        It may read a token as another one (a normalizer to lower case), drop it (a pre-tokenizer that splits at
        spaces), or put a token other than `begin` in front of the game. A model trained with it has not learned such
        an encoding. `texts` are the tokens of moves, and `rows` their ids and that of `begin`.
        """
        if (tokenizer := self.tokenizer) is None:
            return None
        for text in texts:
            written_text, row = self._normalize_spaces(self.texts[rows[text]]), rows[text]
            ids = tokenizer.encode(written_text).ids
            if row not in ids:
                plain = tokenizer.encode(written_text, add_special_tokens=False).ids
                changed_text = "".join(self.texts.get(number, "") for number in plain)
                return (
                    f"its tokenizer reads {text!r} as {changed_text[:40]!r}"
                    if changed_text
                    else f"its tokenizer drops {text!r}"
                )
            first_text = self.texts.get(ids[0], "")
            if ids[0] not in (row, rows[begin]) and first_text not in SPACE_TEXTS:
                return f"its tokenizer begins a text with {first_text[:40]!r}, not with {begin!r}"
        return None

    def map_token_rows(self, encoding: Encoding) -> TokenRows:
        """Return the rows of the tokens of an encoding for which `describe_difference` returns None."""
        rows, case = self._find_rows(encoding), None
        if isinstance(encoding, UciSquare):
            case = "upper" if self.texts[rows[encoding.vocabulary.index("q")]].isupper() else "lower"
        return TokenRows(rows, self.file, tuple(self._list_other_texts(rows)), promotion_case=case)

    def _find_rows(self, encoding: Encoding) -> tuple[int, ...]:
        return tuple(self.find_id(text, encoding) or 0 for text in encoding.vocabulary)

    def _list_other_texts(self, rows: Sequence[int]) -> list[str]:
        """Return the texts of the other ids."""
        chosen_rows = set(rows)
        return [self.texts[number] for number in sorted(self.texts) if number not in chosen_rows]


def match_encoding(
    vocabulary: Vocabulary, encoding: Encoding | None = None, path: Path | None = None
) -> tuple[Encoding, TokenRows]:
    """Return the encoding of a vocabulary (`encoding`, or the one with the fewest dropped tokens) and the rows of its
    tokens.

    If no registered encoding fits, or if it would drop tokens of moves, it is an encoding of moves in the vocabulary's
    own tokens (`encodings.move_tokens`).
    `path` is the folder or file of the vocabulary, whose folder names the special tokens. Raises BadInputError with the
    reason why the given or the nearest encoding does not fit.
    """
    if isinstance(encoding, MoveTokens):
        return encoding, TokenRows(tuple(range(encoding.size)), vocabulary.file)
    candidates = [get_encoding(name) for name in list_encodings()]
    fitting = [
        (one, vocabulary.map_token_rows(one)) for one in candidates if vocabulary.describe_difference(one) is None
    ]
    best_fit = min(fitting, key=lambda fit: (len(fit[1].dropped_tokens), fit[1].is_reordered), default=None)
    hint = f"--vocabulary FILE, if {vocabulary.file} belongs to another model"
    if encoding is not None:
        if reason := vocabulary.describe_difference(encoding):
            other = f"--encoding {best_fit[0].name}" if best_fit else hint
            raise BadInputError(f"{vocabulary.file} is not the vocabulary of {encoding.name}: {reason}", other)
        return encoding, vocabulary.map_token_rows(encoding)
    if best_fit and not best_fit[1].dropped_tokens:
        return best_fit
    texts = vocabulary.list_texts()
    folder = path if path is None or path.is_dir() else path.parent
    try:
        moves = find_move_tokens(texts, find_special_tokens(texts, folder), read_sample_games())
    except BadInputError as error:
        not_moves = error
    else:  # squares alone would fit a vocabulary of pieces and squares too, and drop the pieces
        if not best_fit or moves.move_texts.intersection(best_fit[1].dropped_tokens):
            check_move_vocabulary(vocabulary, moves, folder)
            return moves, TokenRows(tuple(range(moves.size)), vocabulary.file)
    if best_fit:
        return best_fit
    near = candidates
    if set(chess.SQUARE_NAMES) <= set(vocabulary.ids):
        near = [one for one in candidates if isinstance(one, UciSquare)]
    nearest = min(near, key=lambda one: len(vocabulary.list_missing_tokens(one)))
    if not_moves.message:
        raise BadInputError(f"{vocabulary.file} is a vocabulary of moves, but {not_moves.message}", not_moves.hint)
    if 2 * len(vocabulary.list_missing_tokens(nearest)) > nearest.size:
        examples = " and ".join(repr(text[:20]) for text in [*vocabulary.texts.values()][:2])
        raise BadInputError(
            f"{vocabulary.file} has tokens such as {examples}, which no encoding has: {', '.join(list_encodings())}",
            f"{hint}; --encoding prompt for a language model; CONTRIBUTING.md describes how to add an encoding",
        )
    raise BadInputError(
        f"{vocabulary.file} is not the vocabulary of {nearest.name}, the nearest encoding: "
        f"{vocabulary.describe_difference(nearest)}",
        f"{hint}; --encoding prompt for a language model",
    )


def check_move_vocabulary(vocabulary: Vocabulary, moves: MoveTokens, folder: Path | None) -> None:
    """Raises BadInputError if the folder's tokenizer changes games, or names an unknown token as the first one."""
    configs = [] if folder is None else [read_json_object(folder / name) for name in SPECIAL_FILES]
    for config, name in zip(configs, SPECIAL_FILES, strict=False):
        begin = get_token_text(config.get("bos_token"))
        if begin is not None and begin not in moves.vocabulary:
            raise BadInputError(
                f"{name} names {begin[:40]!r} as bos_token, which {vocabulary.file} does not contain",
                "name the token that begins a game",
            )
    rows = {text: number for number, text in enumerate(moves.vocabulary)}
    reason = vocabulary.describe_changed_text(sorted(moves.move_texts), rows, moves.special["bos"])
    if reason is not None:
        raise BadInputError(
            f"{vocabulary.file} is a vocabulary of moves, but {reason}", "--vocabulary FILE: the tokens as a vocab.json"
        )


def get_token_text(value: Any) -> str | None:
    """Return the text of a special token in a tokenizer's settings, written as a text or as a dict; None without."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def find_special_tokens(texts: Sequence[str], folder: Path | None) -> dict[str, str | None]:
    """Return the tokens that begin and end a game, pad, and replace an unknown move; None for one that is not known.

    They are named in the folder's tokenizer_config.json or config.json, or have one of the usual names. Without a token
    that begins a game, the one that ends it is taken, as GPT-2 does.
    """
    special_tokens: dict[str, str | None] = {}
    configs = [] if folder is None else [read_json_object(folder / name) for name in SPECIAL_FILES]
    for name, usual in (("bos", "<s>"), ("eos", "</s>"), ("pad", "<pad>"), ("unk", "<unk>")):
        known_texts = [text for text in (usual, *SPECIALS[usual]) if text in texts]
        for config in configs:
            text, number = get_token_text(config.get(f"{name}_token")), config.get(f"{name}_token_id")
            if text is not None and text in texts:
                known_texts.insert(0, text)
            elif type(number) is int and 0 <= number < len(texts):
                known_texts.append(texts[number])
        special_tokens[name] = known_texts[0] if known_texts else None
    return {**special_tokens, "bos": special_tokens["bos"] or special_tokens["eos"]}


def list_vocabulary_files(folder: Path) -> list[str]:
    """Return the names of the files in a folder that may hold a vocabulary."""
    return [name for name in FILES if (folder / name).is_file()]


# -- files ----------------------------------------------------------------------------------------------------------


def read_vocabulary(path: Path) -> Vocabulary | None:
    """Return the vocabulary of a file, or of the first suitable file of a folder; None for a folder without one.

    Raises BadInputError for a file without a vocabulary. A pickle's code is never run.
    """
    if path.is_dir():
        for name in FILES:
            if (path / name).is_file() and (vocabulary := _read_file(path / name)) is not None:
                return vocabulary
        return None
    vocabulary = _read_file(path) if path.is_file() else None
    if vocabulary is None:
        raise BadInputError(f"{path.name} holds no vocabulary", f"known files: {', '.join(FILES)}")
    return vocabulary


def find_inner_vocabulary(content: Any, file: str) -> Vocabulary | None:
    """Return the vocabulary of stoi or itos that a training script saved in its checkpoint, or under `meta`; else None.

    Raises BadInputError for a damaged one.
    """
    for part in (content, content.get("meta") if isinstance(content, dict) else None):
        if isinstance(part, dict) and ("stoi" in part or "itos" in part):
            try:
                return Vocabulary(file, _read_meta(part))
            except DAMAGE_ERRORS as error:
                reraise_lack_of_memory(error)
                raise BadInputError(f"the stoi and itos of {file} are damaged: {get_first_line(error)}") from error
    return None


def _read_file(path: Path) -> Vocabulary | None:
    """Return the vocabulary of a file; None for a tokenizer_config.json without one."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"more than {MAX_FILE_BYTES >> 20} MiB")
        if path.suffix == ".pkl":
            return Vocabulary(path.name, _read_meta(read_plain_pickle(path)))
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".txt":
            if text.count("\n") > MAX_LINES:
                raise ValueError(f"more than {MAX_LINES:,} lines")
            lines = text.removesuffix("\n").split("\n")
            return Vocabulary(path.name, dict(enumerate(line.removesuffix("\r") for line in lines)))
        return _read_json(path, json.loads(text))
    except DAMAGE_ERRORS as error:
        reason = get_first_line(error)
        if not isinstance(error, ValueError):
            reason = f"{type(error).__name__} {reason}"
        raise BadInputError(f"{path.parent.name}/{path.name} is not a vocabulary: {reason}") from error


def _read_json(path: Path, content: Any) -> Vocabulary | None:
    """Return the vocabulary in a JSON file; None for a tokenizer_config.json without one."""
    if path.name == "tokenizer_config.json":
        if not isinstance(content, dict) or not isinstance(content.get("char_ords"), list):
            return None
        characters = (*CHARACTER_TOKENIZER_SPECIALS, *map(chr, content["char_ords"]))
        return Vocabulary(path.name, dict(enumerate(characters)))
    if isinstance(content, dict) and ("stoi" in content or "itos" in content):
        return Vocabulary(path.name, _read_meta(content))
    if isinstance(content, dict) and isinstance(content.get("model"), dict):  # of the library tokenizers
        model, merged_texts = content["model"], None
        if model.get("type") == "BPE" and not model.get("ignore_merges"):
            merged_texts = frozenset("".join(_split_merge(merge)) for merge in model.get("merges") or [])
        texts = _list_texts(model["vocab"])
        added_tokens = {int(token["id"]): str(token["content"]) for token in content.get("added_tokens") or []}
        return Vocabulary(path.name, texts | added_tokens, merged_texts, _load_tokenizer(content))
    texts = _list_texts(content)
    if (added_file := path.with_name("added_tokens.json")).is_file():
        texts |= _list_texts(json.loads(added_file.read_text(encoding="utf-8")))
    return Vocabulary(path.name, texts, _read_merges(path.with_name("merges.txt")))


def _load_tokenizer(content: Any) -> Tokenizer | None:
    """Return the tokenizer in a tokenizer.json; None for a file that the library cannot load."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(json.dumps(content))
    except Exception:  # the library raises no narrower class
        return None


def is_special_token(text: str) -> bool:
    """Return whether the text is that of a special token such as `<s>` or `[PAD]`."""
    return re.fullmatch(r"<.+>|\[.+\]", text) is not None


def _read_merges(path: Path) -> frozenset[str] | None:
    """Return the texts that the merges of a slow GPT-2 tokenizer make; None without the file."""
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").split("\n")
    lines = lines[1:] if lines[0].startswith("#version") else lines
    return frozenset("".join(_split_merge(line)) for line in lines if line.strip())


def _split_merge(merge: Any) -> list[str]:
    """Return the two tokens of a merge, written `e 4` or `["e", "4"]`."""
    return merge.split(" ") if isinstance(merge, str) else list(merge)


def _list_texts(content: Any) -> dict[int, str]:
    """Return the text of each id in {text: id}, {"id": text}, [text, …] or [[text, score], …]."""
    if isinstance(content, list):
        return {
            number: _check_text(piece if isinstance(piece, str) else piece[0]) for number, piece in enumerate(content)
        }
    if all(isinstance(value, str) for value in content.values()):
        return {int(number): text for number, text in content.items()}
    return _invert_ids(content)


def _read_meta(meta: Any) -> dict[int, str]:
    """Return the text of each id in nanoGPT's meta.pkl. Raises ValueError if stoi and itos disagree."""
    if not isinstance(meta, dict) or not ("stoi" in meta or "itos" in meta):
        raise ValueError("it has neither stoi nor itos")
    by_text = None if meta.get("stoi") is None else _invert_ids(meta["stoi"])
    if meta.get("itos") is None:
        return by_text or {}
    itos = meta["itos"]
    entries = enumerate(itos) if isinstance(itos, list) else itos.items()
    by_id = {int(number): _check_text(text) for number, text in entries}
    if by_text is not None and by_text != by_id:
        raise ValueError("its stoi and itos disagree")
    return by_id


def _invert_ids(ids: Mapping[str, int]) -> dict[int, str]:
    """Return {id: text}. Raises ValueError for an id with two texts and for one that is not an integer from 0 on."""
    texts: dict[int, str] = {}
    for text, number in ids.items():
        if type(number) is not int or number < 0:
            raise ValueError(f"the id of {str(text)[:40]!r} is {str(number)[:40]!r}")
        if number in texts:
            raise ValueError(f"the id {number} is that of {texts[number][:40]!r} and of {str(text)[:40]!r}")
        texts[number] = _check_text(text)
    return texts


def _check_text(value: Any) -> str:
    """Return the text of a token. Raises ValueError for another type."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is not the text of a token")
    return value
