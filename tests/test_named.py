"""Things known by name."""

from __future__ import annotations

import pytest

from chessreg.errors import NotFoundError
from chessreg.named import NameRegistry


def labels() -> NameRegistry[int]:
    made: NameRegistry[int] = NameRegistry("label", "piece, color")
    made["piece"] = 13
    made["color"] = 3
    return made


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="label 'piece' is registered already"):
        labels()["piece"] = 2


def test_an_unknown_name_is_answered_with_those_that_come_near_else_with_all() -> None:
    with pytest.raises(
        NotFoundError, match=r"label 'pieces' does not exist .*did you mean piece\?; for example piece, color"
    ):
        labels()["pieces"]
    with pytest.raises(NotFoundError, match="there are piece, color"):
        labels()["zzz"]


def test_it_is_a_mapping_in_the_order_of_addition() -> None:
    made = labels()
    assert list(made) == ["piece", "color"]
    assert made.get("zzz") is None
    assert "piece" in made
    assert "zzz" not in made
    assert len(made) == 2


def test_a_decorator_returns_what_it_decorates() -> None:
    made: NameRegistry[object] = NameRegistry("rule")

    @made.named("double")
    def double(value: int) -> int:
        return 2 * value

    assert made["double"] is double
    assert double(2) == 4
