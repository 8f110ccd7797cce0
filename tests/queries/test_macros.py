"""Macros that statements call."""

from itertools import product

import chess
import duckdb
import numpy as np
import pyarrow as pa
import pytest

from chessreg.games.boards.adjudication import SCORING, score_game
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
        for name, macro in MACROS.items():
            connection.execute(f"CREATE MACRO {name}{macro}")
        asked = "SELECT class_text('piece', $1, 7), class_text('piece', $1, 0), class_text('piece', $1, 6)"
        assert connection.execute(asked, [sites]).fetchone() == (white, black, "Blank")


def test_a_game_scores_in_sql_as_in_python() -> None:
    """Under every policy, for both colors; a forfeit is lost regardless of the rest of its row."""
    ends = [("1-0", None), ("0-1", None), ("1/2-1/2", None), *(("*", cp) for cp in (None, *range(-101, 102)))]
    games = [
        (policy, result, termination, cp, color)
        for policy, termination, color, (result, cp) in product(
            SCORING, ("move_limit", "context_full", "checkmate", "forfeit_illegal"), chess.COLORS, ends
        )
    ]
    columns = [[*column] for column in zip(*games, strict=True)]
    columns[-1] = [chess.COLOR_NAMES[color] for color in columns[-1]]
    with duckdb.connect() as connection:
        for name, macro in MACROS.items():
            connection.execute(f"CREATE MACRO {name}{macro}")
        listed = ", ".join(f"unnest(${place + 1}) AS c{place}" for place in range(len(columns)))
        asked = f"SELECT game_score(c0, c1, c2, c3, c4) FROM (SELECT {listed})"
        scores = [found for (found,) in connection.execute(asked, columns).fetchall()]
    for (policy, result, termination, cp, color), found in zip(games, scores, strict=True):
        own = 0.0 if termination == "forfeit_illegal" else score_game(policy, color, result, cp)
        assert found == own, (policy, result, termination, cp, color)


def test_the_fast_conversion_of_probabilities_gives_the_decimals_of_their_texts() -> None:
    """Also next to halves of the last digit, where a cast of the number differs from a cast of its text."""
    random = np.random.default_rng(0)
    near_halves = (random.integers(10**15, size=50_000) + 0.5) / 1e15
    values = [random.random(50_000), random.random(50_000).astype(np.float32), near_halves, random.random(1000) * 1e-14]
    odd = [0.0, -0.0, 0.5, 1.0, 1.25, -0.3, 999.5, 1e3, np.nan, np.inf]
    with duckdb.connect() as connection:
        connection.execute(f"CREATE MACRO exact_double{MACROS['exact_double']}")
        connection.register("made", pa.table({"x": np.concatenate([*values, odd]).astype(np.float64)}))
        connection.execute("CREATE TABLE masses AS SELECT x FROM made UNION ALL SELECT NULL")
        text, plain = "TRY_CAST(x::VARCHAR AS DECIMAL(18, 15))", "TRY_CAST(x AS DECIMAL(18, 15))"
        asked = "SELECT count(*) FROM masses WHERE {} IS DISTINCT FROM {}"
        assert connection.execute(asked.format("exact_double(x)", text)).fetchone() == (0,)
        assert connection.execute(asked.format(plain, text)).fetchone() != (0,)
