"""Settings for choosing a model's move in given positions, for kinds that do not play games."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from chessreg.errors import BadInputError
from chessreg.models.decoding.policies import Policy, make_policy
from chessreg.runs.spec import Spec

GREEDY = (0.0,)


class ChoosingSpec(Spec):
    """The settings of a policy of `chessreg.models.decoding.policies`, for any encoding."""

    policy: str = Field(
        "free", description="how a move is chosen: free (the greedy text), retry:N, trie, legal or value"
    )
    temperatures: tuple[float, ...] = Field(
        (), description="temperatures, one for each try. Left out: 0, the most probable move"
    )

    @field_validator("temperatures")
    @classmethod
    def _check_temperatures(cls, temperatures: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 <= value < 100 for value in temperatures):
            raise BadInputError(
                f"--temperatures {min(temperatures):g}: a temperature is 0 (the most probable "
                "token) or positive, below 100",
                "--temperatures 0,0.5",
            )
        return temperatures

    @model_validator(mode="after")
    def _check_policy(self) -> ChoosingSpec:
        self.make_chooser()
        return self

    def make_chooser(self) -> Policy:
        """Return the policy. A game result written as a move is an illegal move, because no game is played to its end.

        Raises NotFoundError for an unknown policy, and BadInputError for temperatures that do not fit its tries.
        """
        return make_policy(self.policy, self.temperatures or GREEDY, resigns=False)
