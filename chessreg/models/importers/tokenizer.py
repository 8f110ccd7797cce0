"""The vocabulary that lies beside a Hugging Face folder's weights, and which encoding of UCI squares it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chess

from chessreg.encodings import encoding, names
from chessreg.encodings.uci_square import UciSquare
from chessreg.errors import DAMAGE, BadInputError, first_line

FILES = ("tokenizer.json", "vocab.json", "vocab.txt")
LARGEST = 64 << 20  # bytes of a tokenizer's file
SPECIALS = {"<|pad|>": "<pad>", "<|startoftext|>": "<s>", "<|endoftext|>": "</s>", "<|unknown|>": "<unk>"}
"""Davis's later names of the same tokens (specification 1.1)."""


@dataclass(frozen=True)
class FolderTokenizer:
    """A tokenizer's file and its tokens by id."""

    file: str
    tokens: dict[int, str]

    @property
    def has_squares(self) -> bool:
        """Whether it writes squares as tokens, and so is of an encoding of UCI squares or of none."""
        return set(chess.SQUARE_NAMES) <= set(self.tokens.values())

    def promotion_case(self, of: UciSquare) -> str:
        """How it writes promotion pieces: `upper` or `lower`."""
        return "upper" if self.tokens[int(of.encode("e7e8q")[-1])].isupper() else "lower"

    def difference(self, of: UciSquare) -> str | None:
        """What keeps it from being this encoding: the first token that differs, or None."""
        if len(self.tokens) != of.size:
            return f"it has {len(self.tokens)} tokens, {of.name} has {of.size}"
        promotions = {of.vocabulary.index(letter) for letter in "qrbn"}
        for number, text in enumerate(of.vocabulary):
            own = SPECIALS.get(self.tokens.get(number, ""), self.tokens.get(number))
            same = own == text or (number in promotions and own is not None and own.lower() == text)
            if not same:
                return f"id {number} is {own!r}, in {of.name} it is {text!r}"
        return None


def read_tokenizer(folder: Path) -> FolderTokenizer | None:
    """The vocabulary in a folder's tokenizer.json, vocab.json or vocab.txt (a token a line), if it has one.

    Raises BadInputError for a file that holds none.
    """
    for name in FILES:
        path = folder / name
        if not path.is_file():
            continue
        try:
            if path.stat().st_size > LARGEST:
                raise ValueError(f"more than {LARGEST >> 20} MiB")
            return FolderTokenizer(name, tokens_of(path))
        except DAMAGE as error:
            reason = f"{type(error).__name__} {first_line(error)}"
            raise BadInputError(f"{folder.name}/{name} is no tokenizer's vocabulary: {reason}") from error
    return None


def tokens_of(path: Path) -> dict[int, str]:
    if path.suffix == ".txt":
        return dict(enumerate(path.read_text(encoding="utf-8").splitlines()))
    content: Any = json.loads(path.read_text(encoding="utf-8"))
    added: list[dict[str, Any]] = []
    if path.name == "tokenizer.json":
        content, added = content["model"]["vocab"], content.get("added_tokens") or []
    entries = content.items() if isinstance(content, dict) else ((piece[0], n) for n, piece in enumerate(content))
    return {int(number): str(text) for text, number in entries} | {int(a["id"]): str(a["content"]) for a in added}


def encoding_of(folder: Path, given: UciSquare | None = None) -> tuple[UciSquare, FolderTokenizer] | None:
    """The encoding that the folder's tokenizer is; None without a tokenizer of squares.

    Raises BadInputError for one of squares that is no encoding's, with what differs from the nearest, and for one of
    other words where an encoding of squares of its size is `given`.
    """
    tokenizer = read_tokenizer(folder)
    if tokenizer is None:
        return None
    if not tokenizer.has_squares:
        if given is not None and len(tokenizer.tokens) == given.size:
            raise BadInputError(
                f"{folder.name}/{tokenizer.file} is not {given.name}: it has no tokens of squares",
                "take the file away if the model is not read with it",
            )
        return None
    known = [one for one in map(encoding, names()) if isinstance(one, UciSquare)]
    for one in known:
        if tokenizer.difference(one) is None:
            return one, tokenizer
    nearest = min(known, key=lambda one: abs(one.size - len(tokenizer.tokens)))
    raise BadInputError(
        f"{folder.name}/{tokenizer.file} fits no encoding: {tokenizer.difference(nearest)}",
        f"encodings of squares: {', '.join(one.name for one in known)}; CONTRIBUTING.md shows how to add one",
    )
