"""Doing a paper: what is there already, what a step would do, and the steps one after the other.

Steps that are no experiments (parts of a dataset, random-init controls of a model, played games as a dataset) are
`PREPARATIONS`; every other step is a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pydantic import ValidationError
from sqlalchemy import select

from chessreg.entities.adding import add_dataset
from chessreg.entities.checkpoint import random_twin
from chessreg.entities.dataset import split_dataset
from chessreg.entities.game import games_of, stored_games
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.games.pgn import save_pgn
from chessreg.named import Registry
from chessreg.papers.plan import Paper, Request, SizeName, Step, Values, ordered, replaced
from chessreg.queries.result import QueryResult
from chessreg.registry import names, tables
from chessreg.registry.identity import digest_of, uuid_of
from chessreg.registry.names import NOW
from chessreg.runs.ingest import ingest
from chessreg.runs.kind import Kind, kind
from chessreg.runs.resolve import missing_units, resolve

if TYPE_CHECKING:
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
        if not step.needs <= self.recipes.keys():
            return Planned(step, "waits", step.units, step.units, dict(step.rows), step.bytes)
        if step.kind in PREPARATIONS:
            recipe = PREPARATIONS[step.kind].made(self.session, self.settings(step))
            if recipe is None:
                return Planned(step, "ready", 1, 1)
            self.recipes[step.name] = recipe
            return Planned(step, "complete", 1, 0)
        step_kind, spec = self.spec(step)
        inputs = self.session.inputs
        resolved = resolve(step_kind, spec, inputs)
        missing = len(missing_units(inputs, resolved))
        if not missing:
            self.recipes[step.name] = f"run:{resolved.spec_hash}"
            return Planned(step, "complete", resolved.units, 0)
        estimate = step_kind.estimate(resolved.spec, inputs)
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
        step_kind, spec = self.spec(step)
        report = self.session.run(spec, step_kind.options(**self.how), kind=step_kind, on_progress=on_progress)
        if report.missing:
            if not report.interrupted:
                raise ChessregError(f"{report.missing} of {report.units} units are missing", "the same command goes on")
            return True
        self.recipes[step.name] = self.recipe_of(report.run_id)
        self.mark(step)
        return False

    def recipe_of(self, run_id: UUID) -> str:
        with self.session.database.read() as sql:
            return f"run:{sql.get_one(tables.Run, run_id).spec_hash}"

    def mark(self, step: Step) -> None:
        """Tag a complete step's run as one of this paper's, once."""
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
    row, _ = inputs.checkpoint(inputs.reference("checkpoint", checkpoint))
    for name, reference in (("--dataset", dataset), ("--test", test)):
        if reference is None:
            continue
        if ":" in reference:
            raise BadInputError(f"{name} {reference} is a part", "name a whole dataset; the paper cuts its own parts")
        try:
            inputs.reference("dataset", reference)
        except NotFoundError as error:
            raise NotFoundError(error.message, error.hint or "chessreg dataset add FILE --name NAME") from error
    return Request(checkpoint, dataset, test or dataset, row.layers, row.d_model, size)


def short_digest(session: Session, asked: Request) -> str:
    """Six hex digits of what model and data are, whatever they are called."""
    inputs = session.inputs
    recipes = [
        inputs.reference("checkpoint", asked.checkpoint),
        *(inputs.reference("dataset", d) for d in (asked.fit, asked.test)),
    ]
    return digest_of(recipes)[:6]


def totals(plan: Sequence[Planned]) -> dict[str, Any]:
    """Counts over a plan: steps by state, and what those not complete would still write."""
    states: dict[str, int] = {}
    rows: dict[str, int] = {}
    for planned in plan:
        states[planned.state] = states.get(planned.state, 0) + 1
        if planned.state != "complete":
            for table, count in planned.rows.items():
                rows[table] = rows.get(table, 0) + count
    left = sum(p.bytes for p in plan if p.state != "complete")
    return {"steps": len(plan), "states": states, "rows": rows, "bytes": left}


# -- steps that are no experiments ---------------------------------------------------------------------------


class Preparation(NamedTuple):
    """`made` gives the recipe of what is there already (None: nothing), `make` makes it."""

    made: Callable[[Session, Values], str | None]
    make: Callable[[Session, Values], str]


def made_twin(session: Session, settings: Values) -> str | None:
    parent = session.id("checkpoint", settings["checkpoint"])
    with session.database.read() as sql:
        rows = sql.scalars(
            select(tables.Checkpoint).where(
                tables.Checkpoint.parent_id == parent, tables.Checkpoint.source_format == "random-init"
            )
        )
        found = next((row.artefact for row in rows if row.detail.get("seed") == settings["seed"]), None)
    return found and f"sha256:{found}"


def make_twin(session: Session, settings: Values) -> str:
    found = random_twin(session.database, session.store, settings["checkpoint"], seed=settings["seed"])
    return f"sha256:{found.artefact}"


def made_parts(session: Session, settings: Values) -> str | None:
    """The dataset's name, once it has these parts; whatever their bounds: they may be the user's own."""
    with session.database.read() as sql:
        dataset = names.resolve(sql, "dataset", settings["dataset"])
        there = set(sql.scalars(select(tables.Split.name).where(tables.Split.dataset_id == dataset)))
    wanted = {part.partition("=")[0] for part in settings["parts"].split(",")}
    return str(settings["dataset"]) if wanted <= there else None


def make_parts(session: Session, settings: Values) -> str:
    split_dataset(session.database, session.store, settings["dataset"], settings["parts"], settings["seed"])
    return str(settings["dataset"])


def made_games(session: Session, settings: Values) -> str | None:
    with session.database.read() as sql:
        found = sql.scalars(select(tables.Dataset).where(tables.Dataset.source == file_of_games(settings))).first()
        return f"dataset:{found.identity}" if found else None


def make_games(session: Session, settings: Values) -> str:
    """The games of a run, as `chessreg game export` writes them, added as `chessreg dataset add` does."""
    run = session.inputs.run(settings["play"])
    games = stored_games(session.database, games_of(session.database, run.id))
    with TemporaryDirectory() as folder:
        file = Path(folder) / file_of_games(settings)
        save_pgn((game.record() for game in games), file)
        add_dataset(session.database, session.store, [file], detail={"played": {"run": run.id.hex}})
    found = made_games(session, settings)
    assert found
    return found


def file_of_games(settings: Values) -> str:
    """What the dataset's source is called: of the same run it is the same."""
    return f"{settings['name']} {settings['play'].removeprefix('run:')[:12]}.pgn"


PREPARATIONS: Registry[Preparation] = Registry("preparation")
PREPARATIONS["twin"] = Preparation(made_twin, make_twin)
PREPARATIONS["split"] = Preparation(made_parts, make_parts)
PREPARATIONS["played-games"] = Preparation(made_games, make_games)
