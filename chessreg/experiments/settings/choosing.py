"""How a model's move is chosen in given positions, as a setting of kinds that play no games."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.models.decoding.policies import Policy, make_policy
from chessreg.runs.spec import Spec

GREEDY = (0.0,)


class ChoosingSpec(Spec):
    """The settings that name a policy of `chessreg.models.decoding.policies`, of any encoding."""

    policy: str = Field(
        "free", description="how a move is chosen: free (the text as it comes), retry:N, trie, legal or value"
    )
    temperatures: tuple[float, ...] = Field(
        (), description="temperatures, one for each try. Left out: 0, the most probable move"
    )

    @field_validator("temperatures")
    @classmethod
    def _in_range(cls, temperatures: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 <= value < 100 for value in temperatures):
            raise BadInputError("a temperature is 0 (the most probable token) or positive", "--temperatures 0,0.5")
        return temperatures

    @model_validator(mode="after")
    def _fits(self) -> ChoosingSpec:
        self.chooser()
        return self

    def chooser(self) -> Policy:
        """The policy. A game result that is written as a move is no move: no game is resigned here.

        Raises NotFoundError for an unknown one, BadInputError for temperatures that do not fit its tries."""
        return make_policy(self.policy, self.temperatures or GREEDY, resigns=False)
