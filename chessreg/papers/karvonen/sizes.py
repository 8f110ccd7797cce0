"""Sizes of Karvonen's paper: `small` in minutes, `reference` for the main results, `paper` as published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chessreg.games.engines.opponents import LADDER
from chessreg.papers.plan import SizeName


@dataclass(frozen=True)
class KarvonenSize:
    """The amounts and settings of one size."""

    fit_games: int
    test_games: int
    min_plies: int  # of cached games: the paper's have all 33 dots
    first_ply: int  # skill is read from this ply on
    seeds: int  # of probes
    twins: int
    epochs: int
    edit_games: int
    edit_states: int  # of each game
    sweep_games: int
    edit_scales: tuple[float, ...]
    skill_scales: tuple[float, ...]
    control_draws: int  # shuffled and random directions per skill vector
    legality_games: int
    legality_every: int  # of White's turns
    rungs: tuple[str, ...]
    ladder_games: int
    sweep_matches: int  # games of one setting of the skill sweep
    match_games: int
    control_games: int  # of each draw
    levels: tuple[str, ...]  # opponents of Figure 2
    level_games: int
    engine_limits: tuple[str, ...]  # Appendix E: level 0 under the first of these against itself under each
    judge: str
    level_0: str  # the opponent of Tables 3 and 7
    appendix_masks: tuple[str, ...]  # token masks of the board edits of Table 8 and the appendices
    published_controls: bool  # also run controls of the skill arms with published settings
    causes: bool  # measure possible causes of skill edits without effect
    is_full: bool  # both ways to count layers, probes of Black's moves, and the skill edits of Appendix C
    skill_fit_games: int = 0  # games of a separate cache for skill, whose probes use a third; 0: the board's cache
    skill_test_games: int = 0
    move_limit: int = 90  # games that reach it are evaluated under `adjudication`
    adjudication: str = "nodes=100000"


def list_engine_levels(nodes: int, levels: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"stockfish:{level}@nodes={nodes}" for level in levels)


WEAKER_THAN_LEVEL_0 = tuple(
    engine.text for engine in LADDER if engine.level in (None, -1)
)  # for models that lose to level 0

SIZES: dict[SizeName, KarvonenSize] = {
    "small": KarvonenSize(
        fit_games=60, test_games=30, min_plies=40, first_ply=20, seeds=1, twins=1, epochs=2, edit_games=4,
        edit_states=2, sweep_games=2, edit_scales=(1.5, 50.0), skill_scales=(2.0,), control_draws=2, legality_games=6,
        legality_every=8,
        rungs=("random", "capture"), ladder_games=4, sweep_matches=2, match_games=4, control_games=2,
        levels=("stockfish:0@nodes=100", "stockfish:1@nodes=100"), level_games=2,
        engine_limits=("nodes=100", "nodes=200"), judge="nodes=100",
        move_limit=15, adjudication="nodes=1000", level_0="stockfish:0@nodes=100", appendix_masks=("last",),
        published_controls=False, causes=False, is_full=False,
    ),
    "reference": KarvonenSize(
        fit_games=5_556, test_games=5_000, min_plies=65, first_ply=50, seeds=3, twins=3, epochs=5, edit_games=120,
        edit_states=24, sweep_games=40, edit_scales=(1.5, 12.0, 50.0, 100.0), skill_scales=(0.8, 2.0, 4.0),
        control_draws=5, legality_games=1000, legality_every=2,
        rungs=(*WEAKER_THAN_LEVEL_0, *list_engine_levels(1000, (0, 2, 4))),
        ladder_games=40, sweep_matches=40, match_games=400, control_games=80,
        levels=list_engine_levels(1000, (0, 1, 2, 3)),
        level_games=60, engine_limits=("nodes=1000", "nodes=10000", "nodes=100000"), judge="nodes=10000",
        level_0="stockfish:0@nodes=1000", appendix_masks=("last",), published_controls=True, causes=True, is_full=False,
    ),
    "paper": KarvonenSize(
        fit_games=11_111, test_games=10_000, min_plies=65, first_ply=50, seeds=3, twins=3, epochs=5, edit_games=250,
        edit_states=30, sweep_games=60, edit_scales=(0.5, 1.0, 1.5, 2.0, 3.0), skill_scales=(0.4, 0.8, 1.6, 4.0),
        control_draws=5, legality_games=2000,
        legality_every=1, rungs=(*WEAKER_THAN_LEVEL_0, *list_engine_levels(100_000, (0, 1, 2, 3))), ladder_games=100,
        sweep_matches=200,
        match_games=5000, control_games=1000, levels=tuple(f"stockfish:{n}@time=0.1" for n in range(10)),
        level_games=1000, engine_limits=("time=0.1", "time=1", "time=10"), judge="nodes=100000",
        level_0="stockfish:0@nodes=100000", appendix_masks=("last", "all"), published_controls=True, causes=True,
        is_full=True, skill_fit_games=33_400, skill_test_games=30_000,
    ),
}  # fmt: skip
SIZES["rehearsal"] = replace(
    SIZES["paper"], fit_games=60, test_games=30, skill_fit_games=120, skill_test_games=60, epochs=1, edit_games=8,
    edit_states=4, sweep_games=12, legality_games=6, legality_every=8, ladder_games=2, sweep_matches=2, match_games=2,
    control_games=2, level_games=2, move_limit=40, adjudication="nodes=1000", judge="nodes=1000",
    rungs=(*WEAKER_THAN_LEVEL_0, *list_engine_levels(1000, (0, 1, 2, 3))), level_0="stockfish:0@nodes=1000",
)  # fmt: skip
