"""The syntax of filters such as `units>5`, `kind:probe` and `!starred`, shared by lists of runs and jobs and by all
tables."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

WORD_PATTERN = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
TERM_PATTERN = re.compile(r"([A-Za-z_#][\w.#]*)(>=|<=|!=|[:=<>])(.*)", re.DOTALL)
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "=": operator.eq, ":": operator.eq,
}  # fmt: skip
TRUTH_WORDS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def split_words(text: str) -> list[str]:
    """Return the words of a filter. Values with spaces are written in double quotes.

    >>> split_words('name:"two words" !cut')
    ['name:"two words"', '!cut']
    """
    return WORD_PATTERN.findall(text)


def parse_term(word: str) -> tuple[str, str, str] | None:
    """Return field, sign and value of a word such as `units>=5`, or None for a plain word.

    >>> parse_term("units>=5"), parse_term('name:"two words"'), parse_term("probe")
    (('units', '>=', '5'), ('name', ':', 'two words'), None)
    """
    match = TERM_PATTERN.fullmatch(word)
    return None if match is None else (match[1], match[2], match[3].replace('"', ""))
