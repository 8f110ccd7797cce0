"""Classes of skill as a setting of other kinds: of probes of skill and of contrastive vectors."""

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
    """How ratings become classes; see `chessreg.games.datasets.skill.SkillRule`."""

    rating: Literal["white_elo", "black_elo"] = Field("white_elo", description="whose rating (Karvonen: White's)")
    bins: Annotated[int, AtMost(1000, "ratings hardly have more values")] = Field(
        6, ge=2, description="quantile bins (Karvonen: six, by pandas.qcut)"
    )
    edges: Annotated[tuple[float, ...], Distinct()] = Field(
        (), description="inner edges of fixed bins, such as 1550,2050. Left out: quantile bins"
    )
    keep: Annotated[tuple[int, ...], Distinct()] = Field(
        (0, -1), description="bins kept as classes, 0 the lowest, -1 the highest"
    )
    strata: str = Field(
        "within",
        description="bins within each source and time control; balanced: over them; pooled: neither; or one of them, "
        "as lichess.org/rapid",
    )
    mixed_scales: bool = Field(False, description="take ratings of different scales for one")

    def rule(self, seed: int) -> SkillRule:
        """The rule; `seed` draws the games that balance the strata. BadInputError for settings that fit no rule."""
        from chessreg.games.datasets.skill import SkillRule

        return SkillRule(**self.model_dump(), seed=seed)


def load_rating_scale(inputs: Inputs, reference: str) -> str | None:
    """The rating scale of a dataset reference's dataset (lichess, stockfish, fide), None when it is not known."""
    identity = reference.removeprefix("dataset:")[:64]
    with inputs.database.read() as session:
        return session.scalars(select(tables.Dataset.rating_scale).where(tables.Dataset.identity == identity)).first()


def load_skill_classes(
    inputs: Inputs,
    dataset: str,
    places: np.ndarray,
    settings: SkillSettings,
    seed: int,
    fitted: SkillReport | None = None,
) -> SkillClasses:
    """Classes of the games at row positions `places` of a dataset reference. Raises as `skill_classes`."""
    from chessreg.games.datasets.skill import classify_skill

    games, _ = inputs.dataset(dataset)
    return classify_skill(games, places, settings.rule(seed), load_rating_scale(inputs, dataset), fitted)


def permute_classes(classes: np.ndarray, stratum: np.ndarray, seed: int) -> np.ndarray:
    """The classes or ratings [games] dealt anew among the games of each stratum object [games]: every count stays, what
    they say of skill goes."""
    dealt = classes.copy()
    for name in sorted(set(map(str, stratum))):
        mine = np.flatnonzero(stratum == name)
        dealt[mine] = classes[generator(seed, Stream.SHUFFLED_CLASSES, name).permutation(mine)]
    return dealt
