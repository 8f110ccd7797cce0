"""Skill classes as a setting, for skill probes and contrastive vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field
from sqlalchemy import select

from chessreg.noise import Stream, generator
from chessreg.registry import tables
from chessreg.runs.spec import AtMost, Distinct, Settings

if TYPE_CHECKING:
    from chessreg.games.datasets.skill import SkillClasses, SkillReport, SkillRule
    from chessreg.runs.inputs import Inputs


class SkillSettings(Settings):
    """The settings that turn ratings into classes; see `chessreg.games.datasets.skill.SkillRule`."""

    rating: Literal["white_elo", "black_elo"] = Field(
        "white_elo", description="player whose rating is used (Karvonen: White)"
    )
    bins: Annotated[int, AtMost(1000, "ratings have hardly more values")] = Field(
        6, ge=2, description="quantile bins (Karvonen: six, by pandas.qcut)"
    )
    edges: Annotated[tuple[float, ...], Distinct()] = Field(
        (), description="inner edges of fixed bins, such as 1550,2050. Left out: quantile bins"
    )
    keep: Annotated[tuple[int, ...], Distinct()] = Field(
        (0, -1), description="bins to keep as classes, 0 the lowest, -1 the highest"
    )
    strata: str = Field(
        "within",
        description="within: bins within each source and time control; balanced: bins over all, with equally "
        "many games of each class per stratum; pooled: bins over all; or one stratum, such as "
        "lichess.org/rapid",
    )
    mixed_scales: bool = Field(False, description="treat ratings of different scales as one scale")

    def build_rule(self, seed: int) -> SkillRule:
        """Return the rule. `seed` draws the games that balance the strata. Raises BadInputError for inconsistent
        settings."""
        from chessreg.games.datasets.skill import SkillRule

        return SkillRule(**self.model_dump(), seed=seed)


def load_rating_scale(inputs: Inputs, reference: str) -> str | None:
    """Return the rating scale (lichess, stockfish, fide) of a dataset reference, or None if it is unknown."""
    identity = reference.removeprefix("dataset:")[:64]
    with inputs.database.read() as session:
        return session.scalars(select(tables.Dataset.rating_scale).where(tables.Dataset.identity == identity)).first()


def load_skill_classes(
    inputs: Inputs,
    dataset: str,
    places: np.ndarray,
    settings: SkillSettings,
    seed: int,
    skill_report: SkillReport | None = None,
) -> SkillClasses:
    """Return the classes of the games at rows `places` of a dataset reference.

    Raises the errors of `classify_skill`.
    """
    from chessreg.games.datasets.skill import classify_skill

    games, _ = inputs.dataset(dataset)
    return classify_skill(games, places, settings.build_rule(seed), load_rating_scale(inputs, dataset), skill_report)


def permute_classes(classes: np.ndarray, stratum: np.ndarray, seed: int) -> np.ndarray:
    """Return the classes or ratings [games] permuted among the games of each stratum object [games].

    Every count stays the same, and the relation to skill is lost.
    """
    permuted_classes = classes.copy()
    for name in sorted(set(map(str, stratum))):
        stratum_rows = np.flatnonzero(stratum == name)
        permuted_classes[stratum_rows] = classes[
            generator(seed, Stream.SHUFFLED_CLASSES, name).permutation(stratum_rows)
        ]
    return permuted_classes
