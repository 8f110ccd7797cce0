"""What a paper is made of: steps (runs to be done, in order) and sheets (tables and figures to be written)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chessreg.errors import BadInputError

if TYPE_CHECKING:
    from chessreg.papers.work import Made

Values = Mapping[str, Any]
SizeName = Literal["small", "reference", "paper"]
SIZES: tuple[SizeName, ...] = ("small", "reference", "paper")


@dataclass(frozen=True)
class Request:
    """What the user asks for. `fit` and `test` are references to datasets (NAME); `test` may be the same as `fit`.

    `layers` and `d_model` are the model's.
    """

    checkpoint: str
    fit: str
    test: str
    layers: int
    d_model: int
    size: SizeName


@dataclass(frozen=True)
class Step:
    """One run of the paper.

    In `settings` the text `@NAME` stands for what step NAME makes. Settings that follow from results of other steps
    are a function of what is made so far; the steps that it reads are then named in `after`. `units`, `rows` and
    `bytes` are what to expect before that can be counted.
    """

    name: str
    kind: str  # a kind of experiment, or one of chessreg.papers.work
    settings: Values | Callable[[Made], Values]
    serves: str
    after: tuple[str, ...] = ()
    units: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    choice: bool = False  # only chooses settings: never shown, or pooled, with results

    @property
    def needs(self) -> frozenset[str]:
        """The steps that must be complete before this one can begin."""
        return frozenset(self.after) | (
            frozenset() if callable(self.settings) else frozenset(references(self.settings))
        )


@dataclass(frozen=True)
class Sheet:
    """A table or figure: a catalogue query narrowed to the paper's runs, and the plots drawn of it."""

    file: str  # without suffix
    title: str
    query: str
    where: str | None = None
    plots: tuple[str, ...] = ()
    scorings: tuple[str, ...] = ("paper",)
    published: bool = True
    tables: tuple[str, ...] = ()  # of the published numbers of this query only these; none given: all
    of_model: bool = False  # of the checkpoint, whatever runs made it
    choices: bool = False  # of the runs that choose settings, not of the results


@dataclass(frozen=True)
class Picture:
    """A figure that is no plot of a table. `draw` writes it, and gives the command that does so again.

    It is drawn once the steps in `after` are complete.
    """

    file: str  # without suffix
    title: str
    draw: Callable[[Made, Path], str]
    after: tuple[str, ...]


@dataclass(frozen=True)
class Paper:
    """A paper: `steps` for a request, and the sheets and pictures that they fill."""

    name: str
    title: str
    steps: Callable[[Request], Sequence[Step]]
    sheets: tuple[Sheet, ...]
    pictures: tuple[Picture, ...] = ()


def references(value: Any) -> list[str]:
    """The step names in `@NAME` texts, also in nested settings."""
    if isinstance(value, str):
        return [value[1:]] if value.startswith("@") else []
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [name for part in value for name in references(part)]
    return []


def replaced(value: Any, recipes: Mapping[str, str]) -> Any:
    """The settings with every `@NAME` as the recipe of that step."""
    if isinstance(value, str):
        return recipes[value[1:]] if value.startswith("@") else value
    if isinstance(value, Mapping):
        return {key: replaced(part, recipes) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return tuple(replaced(part, recipes) for part in value)
    return value


def ordered(steps: Sequence[Step]) -> list[Step]:
    """The steps, each after those that it needs, otherwise as they were given.

    Raises BadInputError for two of one name, a need that no step meets, or a circle.
    """
    by_name = {step.name: step for step in steps}
    if len(by_name) < len(steps):
        raise BadInputError("two steps of the paper have one name")
    order: list[Step] = []
    placed: set[str] = set()
    open_: list[str] = []

    def place(step: Step) -> None:
        if step.name in placed:
            return
        if step.name in open_:
            raise BadInputError(f"steps wait for each other: {' → '.join([*open_, step.name])}")
        open_.append(step.name)
        for name in sorted(step.needs, key=lambda n: list(by_name).index(n) if n in by_name else -1):
            if name not in by_name:
                raise BadInputError(f"step {step.name} needs {name}, which the paper does not have")
            place(by_name[name])
        open_.pop()
        placed.add(step.name)
        order.append(step)

    for step in steps:
        place(step)
    return order
