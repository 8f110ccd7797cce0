"""The parts of a paper: steps (runs, in order) and sheets (tables and figures)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chessreg.errors import BadInputError, NotFoundError
from chessreg.registry.identity import make_uuid

if TYPE_CHECKING:
    from chessreg.queries.result import QueryResult
    from chessreg.session import Session

Values = Mapping[str, Any]
SizeName = Literal["small", "reference", "paper", "rehearsal"]
SIZE_NAMES: tuple[SizeName, ...] = ("small", "reference", "paper")
"""The sizes that a user can choose. `rehearsal` has the steps and shapes of `paper` with few items (rehearsal.py)."""


@dataclass(frozen=True)
class RequestedLanguageModel:
    """A pretrained model that reads prompts: a checkpoint's name, its architecture, the highest learning rate of its
    tuning (None: that of the paper), and the number of weights in its blocks."""

    name: str
    architecture: str
    learning_rate: float | None = None
    weights: int = 0

    @property
    def text(self) -> str:
        """The value of `--language-model`: NAME or NAME=LEARNING_RATE."""
        return self.name if self.learning_rate is None else f"{self.name}={self.learning_rate}"


@dataclass(frozen=True)
class Request:
    """A user's request. `fit` and `test` are names of datasets and may be equal.

    `layers` and `d_model` are the model's. `sae` is a run of SAEs of its residual after every layer, or None. A paper
    that trains its own models has an empty `checkpoint` and 0 layers; it has `positions` with best moves, optionally
    `puzzles`, and pretrained `language_models`. If the games of the positions are unknown, `fit` and `test` are empty
    and `without_games` is the reason. `other_models` are other models of games, for tables that compare models.
    """

    checkpoint: str
    fit: str
    test: str
    layers: int
    d_model: int
    size: SizeName
    sae: str | None = None
    positions: str | None = None
    puzzles: str | None = None
    language_models: tuple[RequestedLanguageModel, ...] = ()
    without_games: str = ""
    other_models: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompleteSteps:
    """Inputs of functions that compute settings: references of complete steps, and queries over this paper's runs."""

    session: Session
    request: Request
    tag: str
    references: dict[str, str]
    answers: dict[tuple[Any, ...], QueryResult]  # of earlier queries: complete runs do not change

    @property
    def is_rehearsal(self) -> bool:
        """Whether few items are enough. A rehearsed model may play no legal move, so its runs may have no rows to
        choose settings by."""
        return self.request.size == "rehearsal"

    def run_id(self, name: str) -> str:
        """Return the id (hex) of the run of a complete step."""
        return str(make_uuid(self.references[name].removeprefix("run:")).hex)

    def query(self, title: str, *steps: str, **options: Any) -> QueryResult:
        """Return the answer of a catalogue query over the runs of these steps."""
        runs = [self.run_id(name) for name in steps]
        key = title, *runs, *sorted(options.items())
        if key not in self.answers:
            self.answers[key] = self.session.query(title, run=runs, **options)
        return self.answers[key]

    def value(self, statement: str) -> float | None:
        """Return the column `value` of the first row of an SQL statement that has one, else None."""
        from chessreg.queries import run_sql

        return next((float(row["value"]) for row in run_sql(self.session.database, statement).rows
                     if row["value"] is not None), None)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One run of the paper.

    In `settings` the text `@NAME` refers to the output of step NAME, and `@NAME/OUTPUT` to one of several outputs.
    Settings that depend on results are a function, and `after` names the steps that it reads. `units`, `rows` and
    `bytes` are expectations until they can be counted. `operations` are floating-point operations (0: not counted).
    `engine_seconds` are the CPU seconds of a chess engine. `reads` are the dataset and the number of games that are
    read, if a function gives the settings. `share` is the share of this machine's rate that the step reaches, if it
    differs from that of its kind.
    """

    name: str
    kind: str  # a kind of experiment, or one of chessreg.papers.work
    settings: Values | Callable[[CompleteSteps], Values]
    purpose: str
    after: tuple[str, ...] = ()
    units: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    choice: bool = False  # only chooses settings: never shown, or pooled, with results
    scratch: bool = False  # large and only read by other steps: made only if an unfinished step depends on it
    optional: bool = False  # the paper continues without it if its kind refuses it (too few positions)
    operations: float = 0.0
    engine_seconds: float = 0.0
    share: float | None = None
    dataset_games: tuple[str, int] | None = None

    @property
    def games_read(self) -> tuple[str, int] | None:
        """The dataset and the number of games that the step reads, or None."""
        if self.dataset_games is not None or callable(self.settings):
            return self.dataset_games
        dataset, games = self.settings.get("dataset"), self.settings.get("games")
        return (dataset, games) if isinstance(dataset, str) and isinstance(games, int) else None

    @property
    def needs(self) -> frozenset[str]:
        """The steps that must be complete before this one can begin."""
        return frozenset(self.after) | (
            frozenset() if callable(self.settings) else frozenset(list_step_references(self.settings))
        )


@dataclass(frozen=True)
class Sheet:
    """A table or figure: a catalogue query narrowed to the paper's runs, and the plots drawn of it.

    `steps` restricts it to runs of the steps with these names; `*` matches any text. Empty: all runs.
    """

    file: str  # without suffix
    title: str
    query: str
    row_filter: str | None = None
    plots: tuple[str, ...] = ()
    scorings: tuple[str, ...] = ("paper",)
    has_published: bool = True
    tables: tuple[str, ...] = ()  # published tables to compare with; empty: all of this query
    covers_model: bool = False  # rows of the checkpoint, also from other runs
    choices: bool = False  # rows of the runs that choose settings
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A figure that is not a plot of a table. `draw` writes it and returns the command that writes it again.

    It is drawn after the steps in `after` are complete.
    """

    file: str  # without suffix
    title: str
    draw: Callable[[CompleteSteps, Path], str]
    after: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """A measured value for an expectation: its interval, the outcome, and its row in the query's answer.

    The outcome is `met` or `missed` if the whole interval is on one side of the bound, else `not decided`; without a
    bound it is empty.
    """

    what: str
    value: float | None
    low: float | None
    high: float | None
    outcome: str
    row: int  # of the query narrowed to the steps, from 1


@dataclass(frozen=True)
class Expectation:
    """A quantity of a reference result, its expected range, and the query that measures it.

    `judge` turns rows of the answer into findings. `steps` are the steps whose runs are queried; `*` matches any text.
    """

    quantity: str
    expected_range: str
    query: str
    steps: tuple[str, ...]
    judge: Callable[[Sequence[Mapping[str, Any]], CompleteSteps], Sequence[Finding]]


@dataclass(frozen=True)
class Paper:
    """A paper: `steps` for a request, the sheets and pictures that they fill, and expectations of a good model.

    `check` raises BadInputError for a model that the paper is not about, before any step begins. A paper that
    `can_train` its own models takes positions instead of a checkpoint. A paper that `has_comparisons` models accepts
    further models. `remarks` are lines about a request that are printed first: the steps it leaves out, with the
    reason.
    """

    name: str
    title: str
    steps: Callable[[Request], Sequence[Step]]
    sheets: tuple[Sheet, ...]
    pictures: tuple[Picture, ...] = ()
    steps_by_question: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # patterns of steps by the question they answer
    expectations: tuple[Expectation, ...] = ()
    check: Callable[[Session, Request], None] | None = None
    remarks: Callable[[Request], Sequence[str]] = lambda request: ()
    can_train: bool = False
    has_comparisons: bool = False


def put_steps_first(paper: Paper, steps: Sequence[Step], patterns: Sequence[str]) -> list[Step]:
    """Return the steps that match `patterns` first, in its order, then the others.

    An entry of `patterns` is a pattern of names (`arm-legal-*`) or a key of `steps_by_question`. Raises NotFoundError
    for an entry that matches no step.
    """
    first_steps: dict[str, Step] = {}
    for each in patterns:
        first_steps |= {step.name: step for step in match_steps(paper, steps, each)}
    return [*first_steps.values(), *(step for step in steps if step.name not in first_steps)]


def match_steps(paper: Paper, steps: Sequence[Step], question: str) -> list[Step]:
    """Return the steps of a name, a pattern of names or a question of the paper, in the order of its patterns.

    Raises NotFoundError if no step matches.
    """
    patterns = paper.steps_by_question.get(question, (question,))
    matches = [step for pattern in patterns for step in steps if fnmatchcase(step.name, pattern)]
    if not matches:
        question_list = f"{', '.join(paper.steps_by_question)}; " if paper.steps_by_question else ""
        raise NotFoundError(
            f"{question!r} matches no step", f"{question_list}or names as --dry-run shows them, with * and ?"
        )
    return matches


def is_any_match(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a step's name matches one of these patterns, in which `*` matches any text."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def list_step_references(value: Any) -> list[str]:
    """Return the step names of all `@NAME` texts, also in nested settings."""
    if isinstance(value, str):
        return [value[1:].partition("/")[0]] if value.startswith("@") else []
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [name for part in value for name in list_step_references(part)]
    return []


def replace_references(value: Any, references: Mapping[str, str]) -> Any:
    """Return the settings with every `@NAME` replaced by the reference of that step."""
    if isinstance(value, str):
        if not value.startswith("@"):
            return value
        name, slash, output = value[1:].partition("/")
        return references[name] + slash + output
    if isinstance(value, Mapping):
        return {key: replace_references(part, references) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return tuple(replace_references(part, references) for part in value)
    return value


def order_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with each after its dependencies, otherwise in the given order.

    Raises BadInputError for two steps of one name, an unknown dependency, or a cycle.
    """
    by_name = {step.name: step for step in steps}
    if len(by_name) < len(steps):
        raise BadInputError("two steps of the paper have the same name")
    order: list[Step] = []
    placed_names: set[str] = set()
    open_: list[str] = []

    def place(step: Step) -> None:
        if step.name in placed_names:
            return
        if step.name in open_:
            raise BadInputError(f"steps depend on each other: {' → '.join([*open_, step.name])}")
        open_.append(step.name)
        for name in sorted(step.needs, key=lambda n: list(by_name).index(n) if n in by_name else -1):
            if name not in by_name:
                raise BadInputError(f"step {step.name} needs {name}, which the paper does not have")
            place(by_name[name])
        open_.pop()
        placed_names.add(step.name)
        order.append(step)

    for step in steps:
        place(step)
    return order


def select_steps(paper: Paper, steps: Sequence[Step], patterns: Sequence[str]) -> list[Step]:
    """Return the ordered steps that match `patterns`, with their dependencies; all steps if `patterns` is empty.

    An entry is a name (`*` matches any text) or a question of the paper. Raises NotFoundError for an entry that matches
    no step.
    """
    names = {step.name for each in patterns for step in match_steps(paper, steps, each)}
    kept_names: set[str] = set()
    for step in reversed(steps):  # each comes after its dependencies
        if not patterns or step.name in kept_names or step.name in names:
            kept_names |= {step.name, *step.needs}
    return [step for step in steps if step.name in kept_names]
