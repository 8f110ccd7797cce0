"""A filter of games by their tags: time control, ratings, rated or casual, termination."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from chessreg.errors import BadInputError
from chessreg.games.datasets.skill import classify_time_control

TIME_CLASSES = ("ultrabullet", "bullet", "blitz", "rapid", "classical", "correspondence")
_CLOCK = re.compile(r"(\d+)(?:\+(\d+))?")
_ELO = re.compile(r"\s*(\d{1,4})\??\s*")


def parse_elo(value: str | None) -> int | None:
    """Return the rating in an Elo tag, such as `1500` or the provisional `1500?`; None if absent, unreadable or 0.

    >>> parse_elo("1500?"), parse_elo("?"), parse_elo("0")
    (1500, None, None)
    """
    match = _ELO.fullmatch(value) if value else None
    return (int(match[1]) or None) if match else None


def parse_clock(text: str) -> str | None:
    """Return a single-stage time control in seconds as BASE+INCREMENT, or None.

    >>> parse_clock("300"), parse_clock("180+2"), parse_clock("40/7200:3600")
    ('300+0', '180+2', None)
    """
    match = _CLOCK.fullmatch(text.strip())
    return f"{int(match[1])}+{int(match[2] or 0)}" if match else None


@dataclass(frozen=True)
class GameFilter:
    """Conditions on a game's tags, all of which must hold. A game whose tags lack the needed information does not pass.

    `time_control`: Lichess's classes by estimated duration (base + 40 increments: ultrabullet under 30 s, bullet under
    180 s, blitz under 480 s, rapid under 1,500 s, else classical; without a clock, the class in the Event tag), or
    clocks in seconds as BASE+INCREMENT. `rated`: the first word of Lichess's Event tag, Rated or Casual. `min_rating`,
    `max_rating`: inclusive bounds of both players' Elo. `termination`: values of the Termination tag, in any case.

    Raises BadInputError for an unknown time control and for bounds that exclude every game.
    """

    time_control: tuple[str, ...] = ()
    rated: bool | None = None
    min_rating: int | None = None
    max_rating: int | None = None
    max_rating_difference: int | None = None
    termination: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("min_rating", "max_rating", "max_rating_difference"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise BadInputError(f"--{name.replace('_', '-')} {value} is below 0")
        controls = {parse_clock(text) or text.strip().lower() for text in self.time_control}
        if unknown := sorted(text for text in controls if parse_clock(text) is None and text not in TIME_CLASSES):
            raise BadInputError(
                f"--time-control {unknown[0]} is not a time control",
                f"one of {', '.join(TIME_CLASSES)}, or a clock in seconds such as 180+2",
            )
        low, high = self.min_rating, self.max_rating
        if low is not None and high is not None and low > high:
            raise BadInputError(f"--min-rating {low} is above --max-rating {high}")
        object.__setattr__(self, "time_control", tuple(sorted(controls)))
        object.__setattr__(self, "termination", tuple(sorted({text.strip().lower() for text in self.termination})))

    def settings(self) -> dict[str, Any]:
        """Return the conditions as JSON values; they are part of a dataset's identity."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value not in (None, ())
        }

    @classmethod
    def from_filters(cls, filters: Mapping[str, Any]) -> GameFilter:
        """Return the filter among the filters of a dataset's report."""
        return cls(**{field.name: filters[field.name] for field in fields(cls) if field.name in filters})

    def words(self) -> list[str]:
        """Return the conditions as options of `chessreg dataset add`."""
        words: list[str] = []
        for name, value in self.settings().items():
            if name == "rated":
                words.append("--rated" if value else "--casual")
            else:
                text = ",".join(value) if isinstance(value, list) else str(value)
                words += [f"--{name.replace('_', '-')}", text]
        return words

    def find_rejection(self, tags: Mapping[str, str]) -> str | None:
        """Return why a game with these tags is rejected, or None."""
        if self is EVERY_GAME:
            return None
        return (
            self._reject_by_time_control(tags)
            or self._reject_by_rated(tags)
            or self._reject_by_rating(tags)
            or self._reject_by_termination(tags)
        )

    def _reject_by_time_control(self, tags: Mapping[str, str]) -> str | None:
        """Return why the time control excludes a game, or None."""
        if not self.time_control:
            return None
        text = tags.get("TimeControl", "")
        time_class = classify_time_control(text, tags.get("Event"))
        if time_class == "no clock" and parse_clock(text) is None:
            return "time control unknown"
        return None if {time_class, parse_clock(text)} & {*self.time_control} else f"not {', '.join(self.time_control)}"

    def _reject_by_rated(self, tags: Mapping[str, str]) -> str | None:
        """Return why a game is excluded as rated or as casual, or None."""
        if self.rated is None:
            return None
        word, expected_word = tags.get("Event", "").lower().partition(" ")[0], "rated" if self.rated else "casual"
        if word not in ("rated", "casual"):
            return "rated or casual unknown"
        return None if word == expected_word else word

    def _reject_by_rating(self, tags: Mapping[str, str]) -> str | None:
        """Return why the players' ratings exclude a game, or None."""
        low, high, difference = self.min_rating, self.max_rating, self.max_rating_difference
        if low is high is difference is None:
            return None
        white, black = parse_elo(tags.get("WhiteElo")), parse_elo(tags.get("BlackElo"))
        if white is None or black is None:
            return "a player's rating unknown"
        if low is not None and min(white, black) < low:
            return f"a player rated below {low}"
        if high is not None and max(white, black) > high:
            return f"a player rated above {high}"
        is_apart = difference is not None and abs(white - black) > difference
        return f"ratings more than {difference} apart" if is_apart else None

    def _reject_by_termination(self, tags: Mapping[str, str]) -> str | None:
        """Return why the way in which a game ended excludes it, or None."""
        if not self.termination or tags.get("Termination", "").strip().lower() in self.termination:
            return None
        return f"termination not {', '.join(self.termination)}"


EVERY_GAME = GameFilter()
