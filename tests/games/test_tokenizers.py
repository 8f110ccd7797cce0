"""The PGN-character tokenizer, against the golden vectors of Karvonen's specification 1.1 and 1.2."""

from __future__ import annotations

import io
import itertools
import pickle
from pathlib import Path
from typing import Any, NoReturn

import chess
import numpy as np
import pytest

from chessreg.encodings import tokenizers
from chessreg.encodings.tokenizers import PgnCharacters, Tokenizer, tokenizer
from chessreg.errors import BadInputError, NotFoundError

pgn = PgnCharacters()


def test_the_registered_tokenizer_fulfils_the_protocol() -> None:
    found = tokenizer("pgn-char-32")
    assert isinstance(found, Tokenizer)
    assert (found.size, found.stop_ids, found.max_move_tokens) == (32, frozenset({0}), 10)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (";1.e4 e5 2.Nf3", [15, 6, 4, 27, 9, 0, 27, 10, 0, 7, 4, 19, 28, 8]),
        (";1.e4 c5 2.N", [15, 6, 4, 27, 9, 0, 25, 10, 0, 7, 4, 19]),
        (" #+-.0123456789;=BKNOQRabcdefghx", list(range(32))),
        ("", []),
    ],
)
def test_golden_encodings(text: str, ids: list[int]) -> None:
    assert pgn.encode(text).tolist() == ids
    assert pgn.decode(ids) == text
    assert pgn.decode(np.array(ids, np.uint8)) == text


def test_the_vocabulary_is_that_of_the_published_meta_file(shared_data: Path) -> None:
    class Refusing(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> NoReturn:
            raise pickle.UnpicklingError(f"{module}.{name} is refused")

    meta: dict[str, Any] = Refusing(io.BytesIO((shared_data / "probes" / "karvonen-meta.pkl").read_bytes())).load()
    assert meta["vocab_size"] == pgn.size
    assert "".join(meta["itos"][i] for i in range(32)) == pgn.vocabulary
    assert all(pgn.encode(character).tolist() == [i] for character, i in meta["stoi"].items())


def test_many_texts_are_encoded_end_to_end() -> None:
    texts = [";1.e4 e5", "", ";1.d4"]
    ids, offsets = pgn.encode_many(texts)
    assert ids.dtype == np.uint8
    assert offsets.tolist() == [0, 8, 8, 13]
    assert [pgn.decode(ids[a:b]) for a, b in itertools.pairwise(offsets)] == texts


@pytest.mark.parametrize(
    ("texts", "words"), [([";1.e4!"], ["'!'", "index 5"]), (["ab", ";ж4"], ["'ж'", "index 1", "text 1"])]
)
def test_an_unknown_character_is_named_with_its_place(texts: list[str], words: list[str]) -> None:
    with pytest.raises(BadInputError) as caught:
        pgn.encode_many(texts)
    assert all(word in caught.value.message for word in words)


@pytest.mark.parametrize("ids", [[32], [-1], np.array([255])])
def test_an_id_outside_the_vocabulary_is_refused(ids: Any) -> None:
    with pytest.raises(BadInputError, match="vocabulary"):
        pgn.decode(ids)


def test_a_game_is_rendered_and_prompted_as_the_models_were_trained() -> None:
    assert pgn.render([]) == ";"
    assert pgn.render(["e4", "e5", "Nf3"]) == ";1.e4 e5 2.Nf3"
    assert pgn.prompt([]) == ";1."
    assert pgn.prompt(["e4"]) == ";1.e4 "
    assert pgn.prompt(["e4", "e5"]) == ";1.e4 e5 2."


def test_a_prompt_continued_by_spelled_moves_is_the_rendered_game() -> None:
    board, sans = chess.Board(), []
    for uci in ["e2e4", "d7d5", "e4d5", "d8d5", "b1c3", "d5a5", "g1f3"]:
        move = chess.Move.from_uci(uci)
        san = board.san(move)
        assert pgn.prompt(sans) + pgn.spell(board, move) == pgn.render([*sans, san]) + " "
        sans.append(san)
        board.push(move)


@pytest.mark.parametrize(
    ("text", "uci"),
    [
        ("Nf3 ", "g1f3"),
        ("  e4 e5", "e2e4"),
        ("Ng1f3", "g1f3"),  # more than needed, as python-chess reads it
        ("e4;1.d4", "e2e4"),
        ("e5", None),
        ("Nf", None),
        ("--", None),
        ("Z0", None),
        ("", None),
        (" ;e4", None),
        ("1-0", None),
    ],
)
def test_generated_text_is_read_as_a_legal_move_or_none(text: str, uci: str | None) -> None:
    assert pgn.parse(text, chess.Board()) == (chess.Move.from_uci(uci) if uci else None)


def test_an_ambiguous_move_is_none() -> None:
    assert pgn.parse("Nd2", chess.Board("rnbqkbnr/pppppppp/8/8/8/5N2/PPP1PPPP/RNBQKB1R w KQkq - 0 1")) is None


def test_a_name_is_registered_once_and_an_unknown_one_lists_the_known() -> None:
    with pytest.raises(ValueError, match="already"):
        tokenizers.register("pgn-char-32", PgnCharacters)
    with pytest.raises(NotFoundError) as caught:
        tokenizer("bpe")
    assert "pgn-char-32" in caught.value.hint
    assert "pgn-char-32" in tokenizers.names()
