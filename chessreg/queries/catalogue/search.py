"""Find a query by the words of a phrase that is neither its title nor an alias.

Each word of the phrase counts by how few queries have it (its inverse document frequency, as in text retrieval) and by
where a query has it: title and aliases before the question that it answers, before the names of its columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chessreg.queries.catalogue import Entry

ENOUGH = 0.6  # share of the phrase's weight that a query must have
OF_COLUMNS = 1.0  # weight of a word that only columns have: not enough alone
UNKNOWN = 2.5  # weight of a word that no query has
WRITTEN_OUT = {
    "acc": "accuracy", "avg": "average", "baseline": "control", "caa": "steering", "cpl": "centipawn",
    "feature": "latent", "features": "latents", "lmpm": "legal move mass", "prob": "probability", "sf": "stockfish",
    "temp": "temperature", "winrate": "win",
}  # fmt: skip
ENDING = re.compile(r"(?<=...)(ies|es|s|ing|ed|y|e)$")
COMMON = """
a all an and any are as at be by can do does each for from get give good has have how i in is it its list many me model
much my of on one or our per print result results show table that the their them these this to vs was we were what when
where which who why with work works
"""
SAY_NOTHING = frozenset(COMMON.split())


def stems(text: str) -> frozenset[str]:
    """Return the words of a text without their endings and without those that say nothing.

    >>> sorted(stems("How often does the model play legal moves?"))
    ['legal', 'mov', 'often', 'pla']
    """
    words = re.findall(r"[a-z0-9]+", text.lower())
    return frozenset(ENDING.sub("", word) for word in words if word not in SAY_NOTHING)


def ranked_by(phrase: str, entries: Sequence[Entry]) -> list[Entry]:
    """Return the queries that have enough of the phrase's words, the best first."""
    words = stems(" ".join(WRITTEN_OUT.get(word, word) for word in re.findall(r"[a-z0-9]+", phrase.lower())))
    if not words:
        return []
    weights = [word_weights(entry) for entry in entries]
    counts = {word: sum(word in weight for weight in weights) for word in words}
    rarity = {word: math.log((1 + len(entries)) / n) if n else UNKNOWN for word, n in counts.items()}
    scores = []
    for entry, weight in zip(entries, weights, strict=True):
        had = sum(rarity[word] for word in words if word in weight)
        is_subject = any(weight.get(word, 0) > OF_COLUMNS for word in words)
        if is_subject and had >= ENOUGH * sum(rarity.values()):
            scores.append((sum(rarity[word] * weight.get(word, 0.0) for word in words), entry))
    return [entry for _, entry in sorted(scores, key=lambda scored: (-scored[0], scored[1].title))]


def word_weights(entry: Entry) -> dict[str, float]:
    """Return the weight of each word that describes a query."""
    columns = " ".join(column.name.replace("_", " ") for column in entry.columns if not column.hidden)
    weights = dict.fromkeys(stems(columns), OF_COLUMNS)
    weights |= dict.fromkeys(stems(f"{entry.question} {entry.topic}"), 2.0)
    weights |= dict.fromkeys(stems(" ".join(entry.aliases)), 2.5)
    return weights | dict.fromkeys(stems(entry.title), 3.0)
