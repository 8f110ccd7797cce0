"""PGN characters, compared with golden vectors of Karvonen's code."""

from __future__ import annotations

import io
import itertools
import pickle
from pathlib import Path
from typing import Any, NoReturn

import chess
import numpy as np
import pytest

from chessreg.encodings import Tokens
from chessreg.encodings.pgn_char import SITES, PgnChar
from chessreg.errors import BadInputError

pgn = PgnChar()
GOLDEN = ";1.e4 c5 2.Nf3 d6 3.d4 cxd4 4.Qxd4 a6 5.Bc4 Nc6 6.Qd1"
SHORT = ";1.e4 c5 2.Nf3 d6 3"


def sites(name: str, *texts: str) -> list[list[int]]:
    found = pgn.sites(name, pgn.texts(texts))
    columns = [found.token, found.ply] if len(texts) == 1 else [found.item, found.token, found.ply]
    return [column.tolist() for column in columns]


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
    assert tuple(meta["itos"][i] for i in range(32)) == pgn.vocabulary
    assert all(pgn.encode(character).tolist() == [i] for character, i in meta["stoi"].items())


def test_many_texts_are_encoded_end_to_end() -> None:
    texts = [";1.e4 e5", "", ";1.d4"]
    tokens = pgn.texts(texts)
    assert tokens.ids.dtype == np.uint8
    assert tokens.offsets.tolist() == [0, 8, 8, 13]
    assert [pgn.decode(tokens.item(i)) for i in range(3)] == texts


@pytest.mark.parametrize(
    ("texts", "words"), [([";1.e4!"], ["'!'", "index 5"]), (["ab", ";ж4"], ["'ж'", "index 1", "text 1"])]
)
def test_an_unknown_character_is_named_with_its_place(texts: list[str], words: list[str]) -> None:
    with pytest.raises(BadInputError) as caught:
        pgn.texts(texts)
    assert all(word in caught.value.message for word in words)


def test_prompts_are_written_as_the_models_were_trained() -> None:
    assert pgn.decode(pgn.prompt([])) == ";1."
    assert pgn.decode(pgn.prompt(["e4"])) == ";1.e4 "
    assert pgn.decode(pgn.prompt(["e4", "e5"])) == ";1.e4 e5 2."


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


@pytest.mark.parametrize(
    ("name", "characters", "plies"),
    [
        ("dots", [2, 10, 19, 29, 39, 49], [0, 2, 4, 6, 8, 10]),
        ("even-spaces", [5, 14, 22, 34, 43], [1, 3, 5, 7, 9]),
        ("odd-spaces", [8, 17, 27, 37, 47], [2, 4, 6, 8, 10]),
        ("spaces", [5, 8, 14, 17, 22, 27, 34, 37, 43, 47], list(range(1, 11))),
        ("turns", [2, 5, 10, 14, 19, 22, 29, 34, 39, 43, 49], list(range(11))),
    ],
)
def test_golden_sites_and_plies(name: str, characters: list[int], plies: list[int]) -> None:
    assert sites(name, GOLDEN) == [characters, plies]


@pytest.mark.parametrize("name", ["dots", "even-spaces", "odd-spaces", "spaces"])
def test_the_offset_variant_is_one_character_later_in_the_same_state(name: str) -> None:
    characters, plies = sites(name, GOLDEN)
    assert sites(f"{name}+1", GOLDEN) == [[character + 1 for character in characters], plies]


def test_an_offset_past_the_end_of_a_text_is_dropped() -> None:
    assert sites("dots+1", ";1.e4 e5 2.") == [[3], [0]]
    assert sites("dots+1", ";1.", ";1.e4")[:2] == [[1], [3]]


def test_segments_belong_to_the_side_that_writes_them() -> None:
    white, plies = sites("white-segments", SHORT)
    assert white == [0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 17, 18]
    assert plies == [0] * 5 + [2] * 6 + [4] * 2
    assert sites("black-segments", SHORT) == [[5, 6, 7, 14, 15, 16], [1, 1, 1, 3, 3, 3]]


def test_a_text_without_spaces_is_all_whites() -> None:
    assert sites("white-segments", ";1.e")[0] == [0, 1, 2, 3]
    assert sites("black-segments", ";1.e")[0] == []


@pytest.mark.parametrize("name", SITES.names())
def test_many_texts_give_what_each_gives_alone(name: str) -> None:
    texts = [GOLDEN, "", SHORT, ";1.d4 ", ";"]
    alone = [pgn.sites(name, pgn.texts([text])) for text in texts]
    both = pgn.sites(name, pgn.texts(texts))
    assert both.item.tolist() == [number for number, found in enumerate(alone) for _ in found.token]
    for column in ("token", "ply", "phase"):
        assert getattr(both, column).tolist() == list(itertools.chain(*(getattr(a, column).tolist() for a in alone)))


def test_no_texts_have_no_sites() -> None:
    assert len(pgn.sites("dots", pgn.texts([]))) == 0
    assert len(pgn.sites("dots", Tokens.from_items([]))) == 0
