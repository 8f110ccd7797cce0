"""Identity by content, and short ids."""

from __future__ import annotations

import enum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from chessreg.errors import BadInputError
from chessreg.registry.identity import (
    format_canonical_json,
    hash_canonical_json,
    make_id,
    make_uuid,
    shorten_id,
    shorten_ids,
)


class Color(enum.StrEnum):
    WHITE = "white"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (1, 1.0),
        (-0.0, 0),
        (2.0**70, 2**70),
        ((1, 2), [1, 2]),
        (Color.WHITE, "white"),
        (np.float64(0.5), 0.5),
        (np.arange(2), [0, 1]),
        (PurePosixPath("a/b"), "a/b"),
        (UUID(int=7), UUID(int=7).hex),
    ],
)
def test_what_means_the_same_has_one_identity(one: Any, other: Any) -> None:
    assert format_canonical_json({"x": one}) == format_canonical_json({"x": other})
    assert hash_canonical_json(one) == hash_canonical_json(other)


@pytest.mark.parametrize(("one", "other"), [([1, 2], [2, 1]), (1, True), (1, "1"), (None, False), (0.1, 0.1 + 1e-16)])
def test_what_differs_has_another(one: Any, other: Any) -> None:
    assert hash_canonical_json(one) != hash_canonical_json(other)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {1, 2}, object(), np.array([np.nan])])
def test_what_has_no_one_spelling_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(BadInputError, match=r"value\.optimiser\[1\]"):
        format_canonical_json({"optimiser": [0, value]})


def test_the_digest_is_fixed_for_ever() -> None:
    assert (
        format_canonical_json({"é": [1.5, None, True], "a": 1e22})
        == '{"a":10000000000000000000000,"é":[1.5,null,true]}'
    )
    assert (
        hash_canonical_json({"kind": "toy", "units": 3.0})
        == "3f6beb8e836b2c6a3a94c26f79095d7742852e40bca4ff3587a15cab10c001bf"
    )
    assert make_uuid("ab" * 32) == UUID("abababab-abab-abab-abab-abababababab")


def test_new_ids_sort_in_the_order_they_were_made() -> None:
    made = [make_id() for _ in range(1000)]
    assert sorted(made) == made
    assert len(set(made)) == 1000


def test_a_short_id_is_the_end_lengthened_until_it_is_unique() -> None:
    one, other = UUID("00000000-0000-0000-0000-00000a123456"), UUID("00000000-0000-0000-0000-00000b123456")
    assert shorten_id(one) == "123456"
    assert shorten_id(one, [one, make_id()]) == "123456"
    assert shorten_id(one, [one, other]) == "a123456"
    assert shorten_ids([one, other, one]) == {one.hex: "a123456", other.hex: "b123456"}


def test_a_thousand_ids_made_at_once_stay_short() -> None:
    made = [make_id() for _ in range(1000)]
    found = shorten_ids(made)
    assert len(set(found.values())) == 1000
    assert max(map(len, found.values())) <= 9
    assert all(id.hex.endswith(found[id.hex]) for id in made)
