"""The settings of `markov` (Davis 2026, section 4.5)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.settings.games import GameBatches, GameSelection
from chessreg.experiments.settings.overlap import ALLOW_OVERLAP
from chessreg.models.hook_points import PATTERNS, RESID_POST
from chessreg.runs.spec import CheckpointRef, Distinct, Layers, Plies


class MarkovSpec(GameSelection):
    checkpoint: CheckpointRef = Field(description="the model")
    layers: Layers = Field((), description="layers, 0-based. Left out: all")
    hook_points: Annotated[tuple[str, ...], Distinct()] = Field(
        (),
        description=f"hook points to read: {', '.join(PATTERNS)} (* for each layer). Left out: {RESID_POST}",
    )
    first_ply: Plies = Field(6, ge=1, description="shortest prefix of a game, in plies")
    last_ply: Plies = Field(40, ge=1, description="longest prefix of a game, in plies")
    equal: Literal["position", "placement"] = Field(
        "position",
        description="when boards count as equal: by position (pieces, side to move, castling rights, en "
        "passant), or by the placement of the pieces alone",
    )
    min_members: int = Field(2, ge=2, description="move orders that a position must have")
    max_members: int = Field(16, ge=2, description="at most this many move orders of a position, drawn by seed")
    classes: int = Field(2000, ge=1, description="at most this many positions, drawn by seed")
    distinct_games: bool = Field(False, description="skip positions that share a game with an earlier one")
    resamples: int = Field(1000, ge=1, le=1_000_000, description="random groupings for the null distribution")
    replacement: bool = Field(
        False,
        description="draw each random set with replacement, instead of permuting the move orders among the positions",
    )
    reference_population: Literal["members", "same-plies", "prefixes"] = Field(
        "prefixes",
        description="population for T (its mean cosine) and d (its deviation): members (the chosen move orders), "
        "same-plies (equally many random prefixes of the same plies) or prefixes (of any ply: Davis's wider "
        "population). T and d against members are always reported",
    )
    partner_controls: bool = Field(
        True,
        description="also compare with another board of equal ply and last move, and with a "
        "board that differs in one piece",
    )

    allow_overlap: bool = ALLOW_OVERLAP

    @model_validator(mode="after")
    def _check_bounds(self) -> MarkovSpec:
        if self.last_ply < self.first_ply:
            raise BadInputError(f"--last-ply {self.last_ply} is before --first-ply {self.first_ply}")
        if self.max_members < self.min_members:
            raise BadInputError(f"--max-members {self.max_members} is less than --min-members {self.min_members}")
        return self


class MarkovOptions(GameBatches):
    group_classes: int = Field(
        256, ge=1, description="positions whose states are stored together; a crash loses at most one such group"
    )
