"""Positions in a game text, against the golden example of Karvonen's specification 3.2."""

from __future__ import annotations

import numpy as np
import pytest

from chessreg.encodings import positions
from chessreg.errors import BadInputError, NotFoundError

GOLDEN = ";1.e4 c5 2.Nf3 d6 3.d4 cxd4 4.Qxd4 a6 5.Bc4 Nc6 6.Qd1"
SHORT = ";1.e4 c5 2.Nf3 d6 3"


@pytest.mark.parametrize(
    ("name", "characters", "plies"),
    [
        ("dots", [2, 10, 19, 29, 39, 49], [0, 2, 4, 6, 8, 10]),
        ("even-spaces", [5, 14, 22, 34, 43], [1, 3, 5, 7, 9]),
        ("odd-spaces", [8, 17, 27, 37, 47], [2, 4, 6, 8, 10]),
        ("spaces", [5, 8, 14, 17, 22, 27, 34, 37, 43, 47], list(range(1, 11))),
    ],
)
def test_golden_indices_and_plies(name: str, characters: list[int], plies: list[int]) -> None:
    found = positions.find(name, GOLDEN)
    assert [a.tolist() for a in found] == [characters, plies]


@pytest.mark.parametrize("name", ["dots", "even-spaces", "odd-spaces", "spaces"])
def test_the_offset_variant_is_one_character_later_in_the_same_state(name: str) -> None:
    characters, plies = positions.find(name, GOLDEN)
    later, same = positions.find(f"{name}+1", GOLDEN)
    assert later.tolist() == (characters + 1).tolist()
    assert same.tolist() == plies.tolist()


def test_an_offset_past_the_end_of_a_text_is_dropped() -> None:
    assert positions.find("dots+1", ";1.e4 e5 2.")[0].tolist() == [3]
    game, character, _ = positions.find_many("dots+1", [";1.", ";1.e4"])
    assert (game.tolist(), character.tolist()) == ([1], [3])


def test_segments_belong_to_the_side_that_writes_them() -> None:
    white, plies = positions.find("white-segments", SHORT)
    assert white.tolist() == [0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 17, 18]
    assert plies.tolist() == [0] * 5 + [2] * 6 + [4] * 2
    black, plies = positions.find("black-segments", SHORT)
    assert black.tolist() == [5, 6, 7, 14, 15, 16]
    assert plies.tolist() == [1, 1, 1, 3, 3, 3]


def test_a_text_without_spaces_is_all_whites() -> None:
    assert positions.find("white-segments", ";1.e")[0].tolist() == [0, 1, 2, 3]
    assert positions.find("black-segments", ";1.e")[0].tolist() == []


@pytest.mark.parametrize("name", positions.names())
def test_many_texts_give_what_each_gives_alone(name: str) -> None:
    texts = [GOLDEN, "", SHORT, ";1.d4 ", ";"]
    game, character, ply = positions.find_many(name, texts)
    for number, text in enumerate(texts):
        alone = positions.find(name, text)
        mine = game == number
        assert np.array_equal(character[mine], alone[0])
        assert np.array_equal(ply[mine], alone[1])
    assert (np.diff(game) >= 0).all()


def test_no_texts_have_no_positions() -> None:
    assert [len(a) for a in positions.find_many("dots", [])] == [0, 0, 0]


def test_wrong_names_and_texts_are_refused() -> None:
    with pytest.raises(NotFoundError, match="commas"):
        positions.find("commas", GOLDEN)
    with pytest.raises(BadInputError):
        positions.find("dots", ";1.é4")
    with pytest.raises(ValueError, match="already"):
        positions.register("dots", lambda characters, plies: characters == 0)
