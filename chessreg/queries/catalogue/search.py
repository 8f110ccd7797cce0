"""Find a query by the words of a phrase that is neither its title nor an alias.

A word's weight is its inverse document frequency over the queries, as in text retrieval. A match in the title or an
alias counts more than one in the question, which counts more than one in a column name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence

LEAST_WEIGHT_SHARE = 0.6  # share of the phrase's weight that a query must have
COLUMN_WORD_WEIGHT = 1.0  # weight of a word in column names only: too small for a match by itself
UNKNOWN_WORD_WEIGHT = 2.5  # weight of a word that no query has
WITH_RUNS_FACTOR = 1.15  # on a near tie, a query with runs in the registry comes first
ABBREVIATIONS = {
    "acc": "accuracy", "avg": "average", "baseline": "control", "caa": "steering", "cpl": "centipawn",
    "feature": "latent", "features": "latents", "lmpm": "legal move mass", "lose": "lost",
    "prob": "probability", "sf": "stockfish", "temp": "temperature", "winrate": "win",
}  # fmt: skip
WORD_ENDING = re.compile(r"(?<=...)(ies|y?(?:es|s|ing|ed)|y|e)$")
COMMON = """
a all an and any are as at be by can did do does each for from get give good has have how i in is it its list many
me model models much my number of often on one or our per print result results show table that the their them there
these they this to use used vs was we well were what when where which who why with work works
"""
COMMON_WORDS = frozenset(COMMON.split())


def list_word_stems(text: str) -> frozenset[str]:
    """Return the words of a text without their endings, leaving out common words.

    >>> sorted(list_word_stems("How often does the model play legal moves?"))
    ['legal', 'mov', 'pla']
    """
    words = re.findall(r"[a-z0-9]+", text.lower())
    return frozenset(WORD_ENDING.sub("", word) for word in words if word not in COMMON_WORDS)


def weigh_words(texts: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return the weight of each word in the texts. For a word in several texts, the last text's weight applies."""
    weights: dict[str, float] = {}
    for text, weight in texts:
        weights |= dict.fromkeys(list_word_stems(text), weight)
    return weights


def rank_descriptions(
    phrase: str,
    description_weights: Sequence[Mapping[str, float]],
    *,
    with_runs: Collection[int] = (),
    least_share: float = LEAST_WEIGHT_SHARE,
) -> list[int]:
    """Return the indices of the descriptions with enough of the phrase's words, the best first.

    A description is the weight of each of its words (`weigh_words`). `with_runs`: indices whose score is multiplied by
    WITH_RUNS_FACTOR. At equal scores the earlier one comes first.
    """
    words = list_word_stems(
        " ".join(ABBREVIATIONS.get(word, word) for word in re.findall(r"[a-z0-9]+", phrase.lower()))
    )
    if not words:
        return []
    counts = {word: sum(word in weights for weights in description_weights) for word in words}
    rarity = {
        word: math.log((1 + len(description_weights)) / n) if n else UNKNOWN_WORD_WEIGHT for word, n in counts.items()
    }
    scores = []
    for place, weights in enumerate(description_weights):
        found_weight = sum(rarity[word] for word in words if word in weights)
        is_subject = any(weights.get(word, 0) > COLUMN_WORD_WEIGHT for word in words)
        if is_subject and found_weight >= least_share * sum(rarity.values()):
            score = sum(rarity[word] * weights.get(word, 0.0) for word in words)
            scores.append((-score * (WITH_RUNS_FACTOR if place in with_runs else 1), place))
    return [place for _, place in sorted(scores)]
