"""Macros that statements call."""

import duckdb
import pytest

from chessreg.queries.macros import MACROS


@pytest.mark.parametrize(
    ("sites", "white", "black"),
    [
        *[(sites, "My Pawn", "Opp. King") for sites in ("dots", "odd-spaces", "white-turns")],
        *[(sites, "Opp. Pawn", "My King") for sites in ("even-spaces", "black-turns")],
        *[(sites, "White Pawn", "Black King") for sites in ("turns", "all", "white-origins")],
    ],
)
def test_pieces_are_of_who_is_to_move_where_one_side_always_is(sites: str, white: str, black: str) -> None:
    with duckdb.connect() as connection:
        for macro in MACROS:
            connection.execute(macro)
        asked = "SELECT class_text('piece', $1, 7), class_text('piece', $1, 0), class_text('piece', $1, 6)"
        assert connection.execute(asked, [sites]).fetchone() == (white, black, "Blank")
