"""Do a paper: plan its steps, do them in order, and tag their runs.

Steps that are not experiments (parts of a dataset, random-init controls of a model, played games as a dataset) are
`PREPARATIONS`. Every other step is a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pydantic import ValidationError
from sqlalchemy import select

from chessreg.entities.adding import add_dataset
from chessreg.entities.checkpoint import register_random_init_control
from chessreg.entities.dataset import get_dataset_content, split_dataset
from chessreg.entities.game import list_game_keys, read_stored_games
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.games.boards.pgn import save_pgn
from chessreg.models.devices import release_memory
from chessreg.named import NameRegistry
from chessreg.papers.plan import (
    CompleteSteps,
    Paper,
    Request,
    RequestedLanguageModel,
    SizeName,
    Step,
    Values,
    is_any_match,
    order_steps,
    put_steps_first,
    replace_references,
    select_steps,
)
from chessreg.queries.result import QueryResult
from chessreg.registry import names, tables
from chessreg.registry.identity import hash_canonical_json, make_uuid
from chessreg.registry.names import CURRENT_ANNOTATIONS
from chessreg.runs.ingest import ingest_fragments
from chessreg.runs.kind import Kind, find_kind
from chessreg.runs.resolve import find_missing_units, resolve_and_hash, resolve_spec
from chessreg.runs.spec import parse_settings

if TYPE_CHECKING:
    from chessreg.session import Session


@dataclass(frozen=True)
class StepPlan:
    """The state of a step: complete, partial, ready, refused (`why`), waiting or unneeded.

    The counts of a waiting step are expectations. A scratch step is unneeded if it is missing and every step that
    depends on it is complete.
    """

    step: Step
    state: str
    units: int
    missing: int
    rows: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    why: str = ""
    share: float = 1.0  # available share of the games that the step asks for

    @property
    def is_done(self) -> bool:
        return self.state in ("complete", "unneeded", "refused")


class Work:
    """One paper on one model and its data, at one size.

    `run_options` are the execution options of every run (device, threads). `only` restricts the work to these steps and
    their dependencies: names of steps, with `*` for any text, or questions of the paper. Empty: all steps.
    """

    def __init__(
        self,
        session: Session,
        paper: Paper,
        request: Request,
        run_options: Mapping[str, Any] = MappingProxyType({}),
        first: Sequence[str] = (),
        only: Sequence[str] = (),
    ) -> None:
        """Create the work. Steps that match `first` (names, patterns of names or questions of the paper) come first."""
        self.session, self.paper, self.request, self.run_options = session, paper, request, run_options
        if paper.check is not None:
            paper.check(session, request)
        self.all_steps = order_steps(put_steps_first(paper, paper.steps(request), first))
        self.steps = select_steps(paper, self.all_steps, only)
        self._completeness: tuple[dict[str, str], frozenset[str]] | None = None
        self.tag = f"{paper.name}-{request.size}-{compute_request_digest(session, request)}"
        self.references: dict[str, str] = {}
        self.refusal_reasons: dict[str, str] = {}  # optional steps whose kind refuses them, with the reason
        self.answers: dict[tuple[Any, ...], QueryResult] = {}

    def get_tag(self, choice: bool) -> str:
        """Return the tag of the results, or of the runs that only choose settings. A query pools runs with one tag."""
        return f"{self.tag}-choice" if choice else self.tag

    @property
    def complete_steps(self) -> CompleteSteps:
        return self.with_references(self.references)

    def with_references(self, references: dict[str, str]) -> CompleteSteps:
        return CompleteSteps(self.session, self.request, self.tag, references, self.answers)

    def settings(self, step: Step, references: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the settings of a step, with `@STEP` replaced by references to the steps' outputs."""
        step_references = self.references if references is None else dict(references)
        values = step.settings(self.with_references(step_references)) if callable(step.settings) else step.settings
        settings: dict[str, Any] = replace_references(values, step_references)
        return settings

    def spec(self, step: Step, references: Mapping[str, str] | None = None) -> tuple[Kind, Any]:
        """Return kind and spec of a step. `references` may name dependencies that do not exist yet.

        Raises BadInputError naming the step and the setting for a wrong setting.
        """
        step_kind = find_kind(step.kind)
        values = self.settings(step, references)
        preset = step_kind.preset(values.pop("preset")) if "preset" in values else {}
        try:
            return step_kind, parse_settings(step_kind.spec, preset | values)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise BadInputError(f"step {step.name}: {wrong}") from error

    def plan(self) -> list[StepPlan]:
        """Return the plan of every step, without doing any."""
        ingest_fragments(self.session.database, self.session.store)
        self.forget()
        shares = compute_game_shares(count_available_games(self.session, self.all_steps), self.all_steps)
        return [scale_step_plan(self.plan_step(step), shares[step.name]) for step in self.steps]

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)

    def forget(self) -> None:
        """Forget the states of all steps, so that they are read again."""
        self.references.clear()
        self.refusal_reasons.clear()
        self._completeness = None

    @property
    def is_finished(self) -> bool:
        """Whether every step is complete, unneeded or refused."""
        return len(self.references) + len(self.refusal_reasons) == len(self.steps)

    @property
    def unneeded_steps(self) -> frozenset[str]:
        """The missing scratch steps on which no unfinished step depends, directly or indirectly."""
        return self._find_complete_steps()[1]

    def _find_complete_steps(self) -> tuple[dict[str, str], frozenset[str]]:
        """Return the references of complete steps and of the scratch steps that they depend on, and the names of
        unneeded steps.

        Computed once after `forget`. A step counts as complete even if its scratch steps are missing.
        """
        if self._completeness is None:
            step_references: dict[str, str] = {}
            missing_steps: set[str] = set()
            complete_names: set[str] = set()
            for step in self.steps:
                reference = self.find_reference(step, step_references) if step.needs <= step_references.keys() else None
                if reference is not None:
                    step_references[step.name] = reference
                if reference is None or not (step.kind in PREPARATIONS or self.find_run(reference)):
                    (missing_steps if not step.scratch else complete_names).add(step.name)
            for step in reversed(self.steps):  # steps come after the steps that they depend on
                if step.name in missing_steps and not step.optional:
                    missing_steps |= step.needs
            self._completeness = step_references, frozenset(complete_names - missing_steps)
        return self._completeness

    def find_reference(self, step: Step, references: Mapping[str, str]) -> str | None:
        """Return the reference of a complete step or of any scratch step, else None."""
        if step.kind in PREPARATIONS:
            return PREPARATIONS[step.kind].find(self.session, self.settings(step, references))
        reference = f"run:{resolve_and_hash(*self.spec(step, references), self.session.inputs)[1]}"
        return reference if step.scratch or self.find_run(reference) else None

    def find_run(self, reference: str) -> tables.Run | None:
        """Return the run of a reference if it is complete, else None."""
        with self.session.database.read() as sql:
            run = sql.get(tables.Run, make_uuid(reference.removeprefix("run:")))
            if run is None or run.completed_at is None:
                return None
            sql.expunge(run)
            return run

    def tag_complete_runs(self) -> None:
        """Tag the runs of all complete steps, also of steps that were not selected, so that tables include them.

        A step whose kind refuses these games is not complete.
        """
        self.steps = self.all_steps
        ingest_fragments(self.session.database, self.session.store)
        self.forget()
        for step in self.steps:
            with suppress(ChessregError):
                self.mark_if_complete(self.plan_step(step))

    def list_run_ids(self, patterns: Sequence[str]) -> list[str]:
        """Return the ids (hex) of the runs of complete steps with these names; `*` matches any text."""
        steps = [s for s in self.steps if s.name in self.references and s.kind not in PREPARATIONS]
        return [self.complete_steps.run_id(step.name) for step in steps if is_any_match(step.name, patterns)]

    def format_runs_option(self, patterns: Sequence[str]) -> str:
        """Return the options of `chessreg query` that select the runs of the steps in `patterns`."""
        return " ".join(f"--run {run[-6:]}" for run in self.list_run_ids(patterns))

    def mark_if_complete(self, step_plan: StepPlan) -> None:
        if step_plan.state == "complete" and step_plan.step.kind not in PREPARATIONS:
            self.tag_run(step_plan.step)

    def has_run(self, choice: bool) -> bool:
        """Return whether any run of the results is complete, or with `choice` any run that chooses settings."""
        return any(
            s.name in self.references and s.choice == choice and not s.scratch and s.kind not in PREPARATIONS
            for s in self.steps
        )

    def plan_step(self, step: Step) -> StepPlan:
        """Return the plan of one step, given the steps before it. Records the reference of a complete step."""
        if not step.needs <= self.references.keys():
            reference = None if step.scratch else self._find_complete_steps()[0].get(step.name)
            if reference is not None:
                run = None if step.kind in PREPARATIONS else self.find_run(reference)
                self.references[step.name] = reference
                return StepPlan(step, "complete", run.units if run else 1, 0)
            return StepPlan(step, "waiting", step.units, step.units, dict(step.rows), step.bytes)
        if step.kind in PREPARATIONS:
            reference = PREPARATIONS[step.kind].find(self.session, self.settings(step))
            if reference is None:
                return StepPlan(step, "ready", 1, 1)
            self.references[step.name] = reference
            return StepPlan(step, "complete", 1, 0)
        step_kind, spec = self.spec(step)
        inputs = self.session.inputs
        run_reference = f"run:{resolve_and_hash(step_kind, spec, inputs)[1]}"
        if (run := self.find_run(run_reference)) is not None:  # its inputs may be missing
            self.references[step.name] = run_reference
            return StepPlan(step, "complete", run.units, 0)
        if step.name in self.unneeded_steps:
            self.references[step.name] = run_reference
            return StepPlan(step, "unneeded", step.units, 0)
        try:
            resolved_spec = resolve_spec(step_kind, spec, inputs)
            if step.optional:
                step_kind.check(resolved_spec.spec, inputs)
        except ChessregError as error:
            if not step.optional:
                raise
            self.refusal_reasons[step.name] = error.message
            return StepPlan(step, "refused", 0, 0, why=error.message)
        missing_units = len(find_missing_units(inputs, resolved_spec))
        if not missing_units:
            self.references[step.name] = f"run:{resolved_spec.spec_hash}"
            return StepPlan(step, "complete", resolved_spec.units, 0)
        estimate = step_kind.estimate(resolved_spec.spec, inputs)
        state = "partial" if missing_units < resolved_spec.units else "ready"
        return StepPlan(step, state, resolved_spec.units, missing_units, dict(estimate.rows), estimate.bytes)

    def run_steps(
        self,
        on_step: Callable[[int, StepPlan], None] = lambda number, plan: None,
        on_progress: Callable[[float, str], None] = lambda fraction, text: None,
    ) -> bool:
        """Do every incomplete step in order; return whether it was interrupted.

        Raises ChessregError naming the step that failed. Complete steps are kept, and the next call continues there.
        """
        self.forget()
        for number, step in enumerate(self.steps, 1):
            step_plan = self.plan_step(step)
            on_step(number, step_plan)
            self.mark_if_complete(step_plan)
            if step_plan.is_done:
                continue
            try:
                if self.run_step(step, on_progress):
                    return True
            except ChessregError as error:
                raise type(error)(f"step {step.name}: {error.message}", error.hint) from error
        return False

    def run_step(self, step: Step, on_progress: Callable[[float, str], None]) -> bool:
        """Do one step; return whether it was interrupted."""
        if step.kind in PREPARATIONS:
            self.references[step.name] = PREPARATIONS[step.kind].make(self.session, self.settings(step))
            return False
        step_kind, spec = self.spec(step)
        report = self.session.run(spec, step_kind.options(**self.run_options), kind=step_kind, on_progress=on_progress)
        release_memory()
        if report.missing:
            if not report.interrupted:
                raise ChessregError(f"{report.missing} of {report.units} units are missing", "run the command again")
            return True
        self.references[step.name] = self.get_reference(report.run_id)
        self.tag_run(step)
        return False

    def get_reference(self, run_id: UUID) -> str:
        with self.session.database.read() as sql:
            return f"run:{sql.get_one(tables.Run, run_id).spec_hash}"

    def tag_run(self, step: Step) -> None:
        """Tag the run of a complete step as one of this paper, unless it has the tag."""
        run_id, tag = UUID(self.complete_steps.run_id(step.name)), self.get_tag(step.choice)
        with self.session.database.read() as sql:
            current_tags = select(CURRENT_ANNOTATIONS.c.value).where(
                CURRENT_ANNOTATIONS.c.noun == "run",
                CURRENT_ANNOTATIONS.c.target == run_id.hex,
                CURRENT_ANNOTATIONS.c.word == "tag",
                CURRENT_ANNOTATIONS.c.value == tag,
            )
            if sql.execute(current_tags).first() is not None:
                return
        with self.session.database.write() as sql:
            names.add_annotation(sql, "run", run_id, "tag", tag)


def make_request(
    session: Session,
    checkpoint: str | None,
    dataset: str | None,
    test: str | None = None,
    size: SizeName = "reference",
    sae: str | None = None,
    positions: str | None = None,
    puzzles: str | None = None,
    beside: Sequence[str] = (),
    language_models: Sequence[str] = (),
) -> Request:
    """Return the models, datasets and size that a paper is run with, after checking their names.

    `dataset` are the games to fit on, `test` those to evaluate on, `positions` and `puzzles` datasets of positions, and
    `beside` further checkpoints to compare. `language_models` are NAME or NAME=LEARNING_RATE. Without a checkpoint the
    games are used only if the positions name their games. Raises NotFoundError or BadInputError for unknown names.
    """
    inputs = session.inputs
    row = inputs.checkpoint(inputs.reference("checkpoint", checkpoint))[0] if checkpoint is not None else None
    if checkpoint is None and dataset is None and test is not None:
        raise BadInputError("--test needs --dataset, the games to fit on", "add --dataset GAMES")
    options = {"--dataset": dataset, "--test": test, "--position-dataset": positions, "--puzzle-dataset": puzzles}
    for name, reference in options.items():
        if reference is None:
            continue
        if ":" in reference:
            raise BadInputError(f"{name} {reference} is a part", "name a whole dataset; the paper cuts its own parts")
        try:
            dataset_id = session.id("dataset", reference)
        except NotFoundError as error:
            raise NotFoundError(error.message, error.hint or "chessreg dataset add FILE --name NAME") from error
        with session.database.read() as sql:
            holds = get_dataset_content(sql.get_one(tables.Dataset, dataset_id))
        content = "positions" if name in ("--position-dataset", "--puzzle-dataset") else "games"
        if holds != content:
            hint = "chessreg dataset list"
            raise BadInputError(f"{name} {reference} is a dataset of {holds}; {name} needs {content}", hint)
    if checkpoint is None or row is None:
        assert positions is not None
        models = [parse_language_model(session, text) for text in language_models]
        if len({model.name for model in models}) < len(models):
            raise BadInputError("--language-model names a model twice", "name each once")
        reason = "" if has_games(session, positions) else f"no position of {positions} names its game"
        reason = reason or ("no games are given (--dataset)" if dataset is None else "")
        fit, other = ("", "") if reason or dataset is None else (dataset, test or dataset)
        return Request("", fit, other, 0, 0, size, positions=positions, puzzles=puzzles,
                       language_models=tuple(models), without_games=reason)  # fmt: skip
    assert dataset is not None
    if sae is not None:
        from chessreg.experiments.edit.checks import check_saes

        check_saes(inputs, inputs.reference("run:sae", sae), None, range(row.layers), row)
    for other in beside:
        encoding = inputs.encoding(inputs.reference("checkpoint", other))
        if encoding.content != "history":
            raise BadInputError(
                f"--beside {other} writes {encoding.name}; it must be a model of games", "chessreg checkpoint list"
            )
    if len({checkpoint, *beside}) <= len(beside):
        raise BadInputError("--beside repeats a model, or the model of --checkpoint", "name each model once")
    return Request(checkpoint, dataset, test or dataset, row.layers, row.d_model, size, sae, other_models=tuple(beside))


def has_games(session: Session, positions: str) -> bool:
    """Return whether the positions of a dataset name their games."""
    with session.database.read() as sql:
        return sql.get_one(tables.Dataset, session.id("dataset", positions)).games > 0


def parse_language_model(session: Session, text: str) -> RequestedLanguageModel:
    """Return the model of NAME or NAME=LEARNING_RATE.

    Raises NotFoundError for an unknown name, BadInputError for a rate that is not a positive number.
    """
    name, _, rate = text.partition("=")
    try:
        value = float(rate) if rate else None
    except ValueError:
        value = math.nan
    if value is not None and not 0 < value < math.inf:
        raise BadInputError(f"--language-model {text}: {rate!r} is not a learning rate", f"write {name}=8e-5")
    row = session.inputs.read_checkpoint_row(session.inputs.reference("checkpoint", name))
    return RequestedLanguageModel(name, row.architecture, value, 12 * row.layers * row.d_model**2)


def compute_request_digest(session: Session, request: Request) -> str:
    """Return six hex digits that identify model and data independently of their names."""
    inputs = session.inputs
    datasets = (request.fit, request.test, request.positions, request.puzzles)
    models = [request.checkpoint, *(model.name for model in request.language_models)]
    references = [
        *(inputs.reference("checkpoint", name) for name in models if name),
        *(inputs.reference("dataset", name) for name in datasets if name),
        *(str(model.learning_rate) for model in request.language_models if model.learning_rate is not None),
    ]
    return hash_canonical_json(references)[:6]


def count_available_games(session: Session, steps: Sequence[Step]) -> dict[str, int]:
    """Return the number of games (or positions) of each dataset or part that the steps read.

    A part that does not exist yet counts with the share that the paper will give it. Missing datasets are left out.
    """
    parts = next(
        (str(s.settings.get("parts", "")) for s in steps if s.kind == "split" and not callable(s.settings)), ""
    )
    shares = dict(each.split("=") for each in parts.split(",") if each)
    available_games: dict[str, int] = {}
    for reference in {step.games_read[0] for step in steps if step.games_read is not None}:
        if reference.startswith("@"):
            continue
        name, separator, part = reference.partition(":")
        try:
            dataset = session.id("dataset", name)
        except NotFoundError:
            continue
        with session.database.read() as sql:
            row, split = sql.get_one(tables.Dataset, dataset), sql.get(tables.Split, (dataset, part))
        if split is not None:
            available_games[reference] = split.games
        elif not separator or part in shares:
            available_games[reference] = int(row.games * float(shares[part])) if separator else row.games
    return available_games


def compute_game_shares(available_games: Mapping[str, int], steps: Sequence[Step]) -> dict[str, float]:
    """Return for each of the ordered steps the available share of the games it asks for.

    A step that reads no games has the smallest share of the steps it needs.
    """
    shares: dict[str, float] = {}
    for step in steps:
        shares[step.name] = min((shares[name] for name in step.needs if name in shares), default=1.0)
        if step.games_read is not None:
            dataset, game_count = step.games_read
            shares[step.name] = min(1.0, available_games.get(dataset, game_count) / game_count)
    return shares


def describe_missing_games(session: Session, steps: Sequence[Step]) -> list[str]:
    """Return a line for each dataset that has fewer games than the steps ask for."""
    game_counts: dict[str, int] = {}
    for dataset, games in (step.games_read for step in steps if step.games_read is not None):
        game_counts[dataset] = max(games, game_counts.get(dataset, 0))
    return [
        f"{dataset} has {game_count:,} games, fewer than the {game_counts[dataset]:,} that this size reads"
        for dataset, game_count in sorted(count_available_games(session, steps).items())
        if game_count < game_counts[dataset]
    ]


def scale_step_plan(step_plan: StepPlan, share: float) -> StepPlan:
    """Return the plan of a step with this share of its games. Counts of a waiting step are scaled."""
    if step_plan.state != "waiting" or share == 1.0:
        return replace(step_plan, share=share)
    units = math.ceil(step_plan.units * share) if step_plan.step.games_read is not None else step_plan.units
    rows = {table: math.ceil(count * share) for table, count in step_plan.rows.items()}
    return replace(
        step_plan, share=share, units=units, missing=units, rows=rows, bytes=math.ceil(step_plan.bytes * share)
    )


def sum_step_plans(plan: Sequence[StepPlan]) -> dict[str, Any]:
    """Return the number of steps by state, and the rows and bytes that incomplete steps will write."""
    states: dict[str, int] = {}
    rows: dict[str, int] = {}
    for step_plan in plan:
        states[step_plan.state] = states.get(step_plan.state, 0) + 1
        if not step_plan.is_done:
            for table, count in step_plan.rows.items():
                rows[table] = rows.get(table, 0) + count
    missing_bytes = sum(p.bytes for p in plan if not p.is_done)
    return {"steps": len(plan), "states": states, "rows": rows, "bytes": missing_bytes}


# -- steps that are not experiments ---------------------------------------------------------------------------


class Preparation(NamedTuple):
    """A step that is not a run: `find` returns the reference of the existing result or None, `make` creates it."""

    find: Callable[[Session, Values], str | None]
    make: Callable[[Session, Values], str]


def find_control(session: Session, settings: Values) -> str | None:
    """Return the digest of the random-init control with this seed (`sha256:...`). None if it is not registered."""
    parent = session.id("checkpoint", settings["checkpoint"])
    with session.database.read() as sql:
        rows = sql.scalars(
            select(tables.Checkpoint).where(
                tables.Checkpoint.parent_id == parent, tables.Checkpoint.source_format == "random-init"
            )
        )
        digest = next((row.artifact for row in rows if row.detail.get("seed") == settings["seed"]), None)
    return digest and f"sha256:{digest}"


def make_control(session: Session, settings: Values) -> str:
    """Register the random-init control of a checkpoint with this seed and return its digest (`sha256:...`)."""
    control = register_random_init_control(
        session.database, session.store, settings["checkpoint"], seed=settings["seed"]
    )
    return f"sha256:{control.artifact}"


def find_parts(session: Session, settings: Values) -> str | None:
    """Return the dataset's name if it has parts of these names, else None. The user may have chosen their bounds."""
    with session.database.read() as sql:
        dataset = names.resolve_id(sql, "dataset", settings["dataset"])
        existing_parts = set(sql.scalars(select(tables.Split.name).where(tables.Split.dataset_id == dataset)))
    part_names = {part.partition("=")[0] for part in settings["parts"].split(",")}
    return str(settings["dataset"]) if part_names <= existing_parts else None


def make_parts(session: Session, settings: Values) -> str:
    """Split the dataset of the settings and return its reference."""
    split_dataset(session.database, session.store, settings["dataset"], settings["parts"], settings["seed"])
    return str(settings["dataset"])


def find_played_games(session: Session, settings: Values) -> str | None:
    """Return the reference of the dataset made from the games of a step, or None if there is none yet."""
    with session.database.read() as sql:
        dataset = sql.scalars(select(tables.Dataset).where(tables.Dataset.source == name_games_file(settings))).first()
        return f"dataset:{dataset.identity}" if dataset else None


def add_played_games(session: Session, settings: Values) -> str:
    """Add the games of a run as a dataset (like `chessreg game export` and `dataset add`); return its reference."""
    run = session.inputs.run(settings["play"])
    games = read_stored_games(session.database, list_game_keys(session.database, run.id))
    with TemporaryDirectory() as folder:
        file = Path(folder) / name_games_file(settings)
        save_pgn((game.record() for game in games), file)
        add_dataset(session.database, session.store, [file], extra={"played": {"run": run.id.hex}})
    dataset = find_played_games(session, settings)
    assert dataset
    return dataset


def name_games_file(settings: Values) -> str:
    """Return the file name of a run's games, which identifies their dataset."""
    return f"{settings['name']} {settings['play'].removeprefix('run:')[:12]}.pgn"


PREPARATIONS: NameRegistry[Preparation] = NameRegistry("preparation")
PREPARATIONS["twin"] = Preparation(find_control, make_control)
PREPARATIONS["split"] = Preparation(find_parts, make_parts)
PREPARATIONS["played-games"] = Preparation(find_played_games, add_played_games)
