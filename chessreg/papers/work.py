"""Doing a paper: what is there already, what a step would do, and the steps one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.papers.plan import Paper, Request, SizeName, Step, ordered, replaced
from chessreg.papers.preparing import PREPARATIONS
from chessreg.queries.result import QueryResult

if TYPE_CHECKING:
    from chessreg.runs.kind import Kind
    from chessreg.session import Session


@dataclass(frozen=True)
class Planned:
    """How a step stands: complete, partial, ready, or waiting for others (then its counts are expectations)."""

    step: Step
    state: str
    units: int
    missing: int
    rows: dict[str, int] = field(default_factory=dict)
    bytes: int = 0


@dataclass(frozen=True)
class Made:
    """What functions of settings may look at: the recipes of complete steps, and queries over this paper's runs."""

    session: Session
    request: Request
    tag: str
    recipes: dict[str, str]
    answers: dict[tuple[Any, ...], QueryResult]  # of queries asked before: complete runs do not change

    def run_id(self, name: str) -> str:
        """The id of a complete step's run, hex."""
        from chessreg.registry.identity import uuid_of

        return str(uuid_of(self.recipes[name].removeprefix("run:")).hex)

    def query(self, title: str, *steps: str, **options: Any) -> QueryResult:
        """A catalogue query over the runs of these steps."""
        runs = [self.run_id(name) for name in steps]
        asked = title, *runs, *sorted(options.items())
        if asked not in self.answers:
            self.answers[asked] = self.session.query(title, run=runs, **options)
        return self.answers[asked]


class Work:
    """One paper on one model and its data, at one size; `how` (device, threads) is told to every run of it."""

    def __init__(
        self, session: Session, paper: Paper, request: Request, how: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.session, self.paper, self.request, self.how = session, paper, request, how
        self.steps = ordered(paper.steps(request))
        self.tag = f"{paper.name}-{request.size}-{short_digest(session, request)}"
        self.recipes: dict[str, str] = {}
        self.answers: dict[tuple[Any, ...], QueryResult] = {}

    def tag_of(self, choice: bool) -> str:
        """The tag of the results, or of the runs that only choose settings: a query pools what has one tag."""
        return f"{self.tag}-choice" if choice else self.tag

    @property
    def made(self) -> Made:
        return Made(self.session, self.request, self.tag, self.recipes, self.answers)

    def settings(self, step: Step, recipes: Mapping[str, str] | None = None) -> dict[str, Any]:
        given = step.settings(self.made) if callable(step.settings) else step.settings
        found: dict[str, Any] = replaced(given, self.recipes if recipes is None else recipes)
        return found

    def spec(self, step: Step, recipes: Mapping[str, str] | None = None) -> tuple[Kind, Any]:
        """Kind and spec of a step whose needs are met, or whose needs `recipes` names though they are yet to come.

        Raises BadInputError naming step and setting for wrong ones.
        """
        from pydantic import ValidationError

        from chessreg.runs.kind import kind

        found = kind(step.kind)
        values = self.settings(step, recipes)
        preset = found.preset(values.pop("preset")) if "preset" in values else {}
        try:
            return found, found.spec(**(preset | values))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise BadInputError(f"step {step.name}: {wrong}") from error

    def plan(self) -> list[Planned]:
        """Every step as it stands. Nothing is made."""
        from chessreg.runs.ingest import ingest

        ingest(self.session.database, self.session.store)
        self.recipes.clear()
        return [self.planned(step) for step in self.steps]

    def look(self) -> None:
        """See what is complete, and tag it: for the tables of what is there."""
        for planned in self.plan():
            self.mark_if_complete(planned)

    def mark_if_complete(self, planned: Planned) -> None:
        if planned.state == "complete" and planned.step.kind not in PREPARATIONS:
            self.mark(planned.step)

    def has(self, choice: bool) -> bool:
        """Whether any run of the results, or of those that choose settings, is complete."""
        return any(s.name in self.recipes and s.choice == choice and s.kind not in PREPARATIONS for s in self.steps)

    def planned(self, step: Step) -> Planned:
        """How one step stands, after those before it; a complete one's recipe is known from then on."""
        from chessreg.runs.resolve import missing_units, resolve

        if not step.needs <= self.recipes.keys():
            return Planned(step, "waits", step.units, step.units, dict(step.rows), step.bytes)
        if step.kind in PREPARATIONS:
            recipe = PREPARATIONS[step.kind].made(self.session, self.settings(step))
            if recipe is None:
                return Planned(step, "ready", 1, 1)
            self.recipes[step.name] = recipe
            return Planned(step, "complete", 1, 0)
        kind, spec = self.spec(step)
        inputs = self.session.inputs
        resolved = resolve(kind, spec, inputs)
        missing = len(missing_units(inputs, resolved))
        if not missing:
            self.recipes[step.name] = f"run:{resolved.spec_hash}"
            return Planned(step, "complete", resolved.units, 0)
        estimate = kind.estimate(resolved.spec, inputs)
        state = "partial" if missing < resolved.units else "ready"
        return Planned(step, state, resolved.units, missing, dict(estimate.rows), estimate.bytes)

    def do(
        self,
        on_step: Callable[[int, Planned], None] = lambda number, planned: None,
        on_progress: Callable[[float, str], None] = lambda fraction, text: None,
    ) -> bool:
        """Do every step that is not complete, in order; returns whether it was interrupted.

        Raises ChessregError naming the step that failed; what is complete is kept, and the next call goes on there.
        """
        self.recipes.clear()
        for number, step in enumerate(self.steps, 1):
            planned = self.planned(step)
            on_step(number, planned)
            self.mark_if_complete(planned)
            if planned.state == "complete":
                continue
            try:
                if self.one(step, on_progress):
                    return True
            except ChessregError as error:
                raise type(error)(f"step {step.name}: {error.message}", error.hint) from error
        return False

    def one(self, step: Step, on_progress: Callable[[float, str], None]) -> bool:
        """Do one step; returns whether it was interrupted."""
        if step.kind in PREPARATIONS:
            self.recipes[step.name] = PREPARATIONS[step.kind].make(self.session, self.settings(step))
            return False
        kind, spec = self.spec(step)
        report = self.session.run(spec, kind.options(**self.how), kind=kind.source, on_progress=on_progress)
        if report.missing:
            if not report.interrupted:
                raise ChessregError(f"{report.missing} of {report.units} units are missing", "the same command goes on")
            return True
        self.recipes[step.name] = self.recipe_of(report.run_id)
        self.mark(step)
        return False

    def recipe_of(self, run_id: UUID) -> str:
        from chessreg.registry import tables

        with self.session.database.read() as sql:
            return f"run:{sql.get_one(tables.Run, run_id).spec_hash}"

    def mark(self, step: Step) -> None:
        """Tag a complete step's run as one of this paper's, once."""
        from sqlalchemy import select

        from chessreg.registry import names
        from chessreg.registry.names import NOW

        run_id, tag = UUID(self.made.run_id(step.name)), self.tag_of(step.choice)
        with self.session.database.read() as sql:
            known = select(NOW.c.value).where(
                NOW.c.noun == "run", NOW.c.target == run_id.hex, NOW.c.word == "tag", NOW.c.value == tag
            )
            if sql.execute(known).first() is not None:
                return
        with self.session.database.write() as sql:
            names.say(sql, "run", run_id, "tag", tag)


def request(
    session: Session, checkpoint: str, dataset: str, test: str | None = None, size: SizeName = "reference"
) -> Request:
    """The request, after a look at what it names. Raises NotFoundError or BadInputError for what is not there."""
    inputs = session.inputs
    row, _ = inputs.checkpoint(inputs.recipe("checkpoint", checkpoint))
    for name, reference in (("--dataset", dataset), ("--test", test)):
        if reference is None:
            continue
        if ":" in reference:
            raise BadInputError(f"{name} {reference} is a part", "name a whole dataset; the paper cuts its own parts")
        try:
            inputs.recipe("dataset", reference)
        except NotFoundError as error:
            raise NotFoundError(error.message, error.hint or "chessreg dataset add FILE --name NAME") from error
    return Request(checkpoint, dataset, test or dataset, row.layers, row.d_model, size)


def short_digest(session: Session, asked: Request) -> str:
    """Six hex digits of what model and data are, whatever they are called."""
    from chessreg.registry.identity import digest_of

    inputs = session.inputs
    recipes = [
        inputs.recipe("checkpoint", asked.checkpoint),
        *(inputs.recipe("dataset", d) for d in (asked.fit, asked.test)),
    ]
    return digest_of(recipes)[:6]


def totals(plan: Sequence[Planned]) -> dict[str, Any]:
    """Counts over a plan: steps by state, and what those not complete would still write."""
    states: dict[str, int] = {}
    rows: dict[str, int] = {}
    for planned in plan:
        states[planned.state] = states.get(planned.state, 0) + 1
        if planned.state != "complete":
            for family, count in planned.rows.items():
                rows[family] = rows.get(family, 0) + count
    left = sum(p.bytes for p in plan if p.state != "complete")
    return {"steps": len(plan), "states": states, "rows": rows, "bytes": left}
