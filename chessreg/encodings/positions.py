"""Which characters of a game text are looked at, and the ply of the board state each one stands for.

The state at character i is the one after as many plies as there are spaces among characters 0..i: a space belongs to
the move that follows it (Karvonen specification 3.2). Texts are in PGN characters (`;1.e4 e5 2.Nf3`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from chessreg.errors import BadInputError, NotFoundError

Select = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(characters uint8 [n], plies int64 [n]) -> bool [n]: which characters are positions."""

_DOT, _SPACE = ord("."), ord(" ")
_positions: dict[str, tuple[Select, int]] = {}


def register(name: str, select: Select, offset: int = 0) -> None:
    """Make a choice of positions known by name. ValueError when the name is taken.

    offset: so many characters after those selected, in the same state; past the end of a text there is none.
    """
    if name in _positions:
        raise ValueError(f"positions {name!r} are already registered")
    _positions[name] = select, offset


def names() -> list[str]:
    """All registered names, in the order of their registration."""
    return list(_positions)


def find(name: str, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Character indices int64 [p] of these positions in one text, and the ply of each, int64 [p].

    >>> [a.tolist() for a in find("dots", ";1.e4 c5 2.Nf3 d6 3.d4")]
    [[2, 10, 19], [0, 2, 4]]
    """
    _, characters, plies = find_many(name, [text])
    return characters, plies


def find_many(name: str, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The positions of many texts, text by text: index of the text, index of the character, ply; each int64 [p].

    Raises NotFoundError for an unknown name and BadInputError for text that is not ASCII.
    """
    if name not in _positions:
        raise NotFoundError(f"no positions {name!r}", f"known: {', '.join(_positions)}")
    joined = "".join(texts)
    if not joined.isascii():
        raise BadInputError("a game text holds a character outside ASCII", "positions are found in PGN characters")
    characters = np.frombuffer(joined.encode(), np.uint8)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    starts = np.cumsum(lengths) - lengths
    game = np.repeat(np.arange(len(texts), dtype=np.int64), lengths)
    spaces = np.zeros(len(characters) + 1, np.int64)
    np.cumsum(characters == _SPACE, out=spaces[1:])
    plies = spaces[1:] - np.repeat(spaces[starts], lengths)
    select, offset = _positions[name]
    chosen = np.flatnonzero(select(characters, plies))
    inside = chosen - starts[game[chosen]] + offset < lengths[game[chosen]]
    chosen = chosen[inside] + offset
    return game[chosen], chosen - starts[game[chosen]], plies[chosen]


for _name, _select in {
    "dots": lambda characters, plies: characters == _DOT,
    "even-spaces": lambda characters, plies: (characters == _SPACE) & (plies % 2 == 1),
    "odd-spaces": lambda characters, plies: (characters == _SPACE) & (plies % 2 == 0),
    "spaces": lambda characters, plies: characters == _SPACE,
}.items():
    register(_name, _select)
    register(f"{_name}+1", _select, offset=1)
register("white-segments", lambda characters, plies: plies % 2 == 0)
register("black-segments", lambda characters, plies: plies % 2 == 1)
