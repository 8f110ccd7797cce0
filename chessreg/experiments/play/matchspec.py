"""The settings that every match has in common, written in one way."""

from __future__ import annotations

from typing import Any, Self

from pydantic import field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.runs.spec import Spec


class MatchSpec(Spec):
    """What the specs of all matches make of their settings `opening`, `book` and `adjudication`: one spelling, so that
    equal matches hash equally, and an error that says what to write. Each spec has these fields with its own defaults.
    """

    @model_validator(mode="before")
    @classmethod
    def _split_book(cls, values: Any) -> Any:
        """`book:FILE` becomes the source `book` and its file, which is then named by its content."""
        if isinstance(values, dict) and str(values.get("opening", "")).startswith("book:"):
            return {**values, "opening": "book", "book": values["opening"].removeprefix("book:")}
        return values

    @field_validator("opening", check_fields=False)
    @classmethod
    def _source(cls, opening: str) -> str:
        from chessreg.games.openings import parse_opening

        return opening if opening == "book" else parse_opening(opening).text

    @field_validator("player", "opponent", check_fields=False)
    @classmethod
    def _one_spelling(cls, engine: str) -> str:
        from chessreg.games.engines import parse_engine

        return parse_engine(engine).text

    @field_validator("adjudication", check_fields=False)
    @classmethod
    def _limit(cls, adjudication: str) -> str:
        from chessreg.games.engines import parse_limit

        return "none" if adjudication == "none" else parse_limit(adjudication).text

    @model_validator(mode="after")
    def _book_has_file(self) -> Self:
        if (getattr(self, "opening", "") == "book") != (getattr(self, "book", None) is not None):
            raise BadInputError("openings of a book need its file", "write --opening book:FILE")
        return self
