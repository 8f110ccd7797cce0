"""The level table."""

from chessreg.games.engines.opponents import get_engine_rating, get_level_rating, parse_engine


def test_levels_have_the_published_ratings_and_no_invented_ones() -> None:
    given = {0: 1320.1, 1: 1467.6, 2: 1608.4, 3: 1742.3, 4: 1922.9, 5: 2203.7, 6: 2363.2, 7: 2499.5, 8: 2596.2}
    given |= {9: 2702.8, 10: 2788.3, 19: 3191.1}
    assert {level: get_level_rating(level) for level in given} == given
    ratings = [get_level_rating(level) for level in range(20)]
    assert ratings == sorted(ratings)  # type: ignore[type-var]
    assert [get_level_rating(level) for level in (-1, 20)] == [None, None]


def test_only_stockfish_has_a_rating() -> None:
    assert get_engine_rating(parse_engine("stockfish:3@nodes=50")) == 1742.3
    assert get_engine_rating(parse_engine("random")) is None
