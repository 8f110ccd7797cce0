"""The tokenizer files of an exported checkpoint, with which `AutoTokenizer` gives the same ids as the encoding.

Position encodings have no such files: a tokenizer.json cannot pad fields to fixed positions.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.encodings.move_tokens import MoveTokens
from chessreg.encodings.pgn_char import PgnChar
from chessreg.encodings.uci_square import UciSquare

if TYPE_CHECKING:
    from chessreg.encodings import Encoding

SQUARE_OR_PIECE = r"[a-h][1-8]|[PNRBQKqrbn]|</?\w+>"
"""Matches one token in the text of a game in UCI squares."""


def write_tokenizer_files(encoding: Encoding, folder: Path) -> list[str]:
    """Write tokenizer.json and tokenizer_config.json for an encoding of games; return the names of the files.

    Texts are as in the encoding: `;1.e4 e5` in characters, `e2e4 e7e5` in squares or moves, with the first token in
    front. An unknown character is an error, as in `encoding.encode`. Returns no names for other encodings.
    """
    if isinstance(encoding, PgnChar):
        steps = {"pre_tokenizer": make_split_step(r"[\s\S]", "Isolated")}
        special: dict[str, str] = {}
    elif isinstance(encoding, UciSquare | MoveTokens):
        if isinstance(encoding, MoveTokens):
            special = {f"{name}_token": text for name, text in encoding.special.items()}
            longest_first = sorted(encoding.vocabulary, key=len, reverse=True)
            pattern = "|".join(map(re.escape, longest_first))
        else:
            special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
            pattern = SQUARE_OR_PIECE
        spaces, tokens = make_split_step(r"\s+", "Removed"), make_split_step(pattern, "Isolated")
        begin = special["bos_token"]
        bos = encoding.vocabulary.index(begin)
        first_token = {"SpecialToken": {"id": begin, "type_id": 0}}
        steps = {
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [spaces, tokens]},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [first_token, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [first_token, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {begin: {"id": begin, "ids": [bos], "tokens": [begin]}},
            },
        }
    else:
        return []
    vocabulary = {text: id for id, text in enumerate(encoding.vocabulary)}
    added_tokens = [
        {"id": vocabulary[text], "content": text, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False, "special": True}
        for text in dict.fromkeys(special.values())
    ]  # fmt: skip
    document: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens, "normalizer": None,
        "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<none>"},
        **steps,
    }  # fmt: skip
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special,
    }  # fmt: skip
    for name, content in (("tokenizer.json", document), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return ["tokenizer.json", "tokenizer_config.json"]


def make_split_step(pattern: str, behavior: str) -> dict[str, Any]:
    """Return a pre-tokenizer step of tokenizer.json that splits at a regular expression."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}
