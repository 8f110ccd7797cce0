"""`chessreg elo`: Elo and a sequential test from counts."""

from __future__ import annotations

import pytest

from chessreg.queries.match_counts import MatchCounts


def test_the_command_prints_what_the_counts_say(here):
    assert here("elo", "120", "60", "90", "--sprt", "0,40") == 0, here.err
    assert "wins" in here.out
    assert "LLR" in here.out
    found = here.json("elo", "120", "60", "90", "--sprt", "0,40")
    assert (found["wins"], found["draws"], found["losses"]) == (120, 60, 90)
    match = MatchCounts((90, 60, 120))
    assert found["elo"] == match.elo()._asdict()
    assert found["sprt"]["llr"] == match.log_likelihood_ratio(0, 40)
    assert here.json("elo", "0", "0", "0", "0", "300", "--sprt", "0,40")["sprt"]["decision"] == "high"
    assert here("elo", "5", "0", "0") == 0
    assert "≥" in here.out


@pytest.mark.parametrize(
    "words",
    [
        ("1", "2"), ("0", "0", "0"), ("1", "2", "-3"), ("1", "2", "x"), ("1", "2", "3", "--sprt", "5"),
        ("1", "2", "3", "--sprt", "9,1"), ("1", "2", "3", "--sprt", "0,5", "--alpha", "0.7"),
    ],
)  # fmt: skip
def test_the_command_refuses_other_input_in_one_line(here, words):
    assert here("elo", *words) != 0
    assert len(here.err.strip().splitlines()) <= 4, here.err
