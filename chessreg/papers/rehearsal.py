"""Rehearse a paper: do every step of the size `paper` on few items, in a separate registry inside the store.

Models, batches of one forward pass, and autoencoders have their full shape, so that an error of shape, path, package,
engine or memory is found in minutes. A model that does not fit in memory is passed through on the meta device, and the
steps after it use one with fewer layers.

The registry and the measurements of passed steps are in `rehearsals/<tag>-<digest>/` of the store. An interrupted
rehearsal continues there. The folder is deleted when every step of the paper has passed.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psutil
from sqlalchemy import select

from chessreg.cgroups import measure_cgroup_memory
from chessreg.entities.display import format_size
from chessreg.entities.merge import export_rows
from chessreg.errors import BadInputError, ChessregError, get_first_line, is_out_of_memory
from chessreg.models.devices import release_memory
from chessreg.papers.cost import TRIAL_BYTES, estimate_step_seconds
from chessreg.papers.plan import Request, Step
from chessreg.papers.report import write_report
from chessreg.papers.work import (
    PREPARATIONS,
    StepPlan,
    Work,
    compute_game_shares,
    count_available_games,
    scale_step_plan,
    sum_step_plans,
)
from chessreg.registry import tables
from chessreg.registry.identity import hash_canonical_json
from chessreg.registry.machine import describe_this_machine
from chessreg.registry.provenance import hash_source_files
from chessreg.runs import transfer
from chessreg.runs.cost import estimate_cpu_seconds, measure_multiplication_rate
from chessreg.runs.resolve import find_missing_units, resolve_spec
from chessreg.scheduling.expected_time import START_S
from chessreg.session import Session, open_session
from store.files import WriterLock, convert_os_errors, discard_path, make_folder, read_json, replace_file

if TYPE_CHECKING:
    from chessreg.models.train_config import TrainConfig
    from chessreg.runs.kind import Kind

SAMPLE_INTERVAL_S = 0.02  # between two measurements of memory
TRAINING_BYTES = 16  # of one float32 weight in training: itself, its gradient and AdamW's two means
SPARE_MEMORY_SHARE = 0.2  # of the available memory, left to the file cache and other processes
TABLES, DISK = "tables", "disk"  # steps of a rehearsal that are not steps of the paper
PASSED, FAILED, REFUSED, LEFT_OUT = "passed", "failed", "refused", "left out"


@dataclass(frozen=True)
class RehearsedStep:
    """One rehearsed step.

    `state`: `passed`, `failed`, `refused` (an optional step) or `left out` (a step that it needs failed), with the
    reason in `why`. `peak_bytes` is the largest memory of this process and its children, `gpu_bytes` PyTorch's largest
    on the GPU (None without one). `expected_seconds` is the measured time, scaled to the paper's amounts (None: its
    work is not counted).
    """

    name: str
    kind: str
    state: str
    seconds: float = 0.0
    peak_bytes: int = 0
    gpu_bytes: int | None = None
    expected_seconds: float | None = None
    why: str = ""


class PassedSteps:
    """The passed steps of a rehearsal, with their measurements, in a file of its folder."""

    def __init__(self, folder: Path) -> None:
        """Read the steps that an earlier process wrote to `folder`, if any."""
        self._path = folder / "passed.json"
        self._rows: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError, ValueError):  # missing or damaged: the steps are rehearsed again
            self._rows = read_json(self._path)

    def find(self, name: str, reference: str) -> RehearsedStep | None:
        """Return the measurements of a step, or None if it has not passed with the result `reference`."""
        row = self._rows.get(name)
        return RehearsedStep(**row["step"]) if row is not None and row["reference"] == reference else None

    def add(self, step: RehearsedStep, reference: str) -> None:
        """Record a passed step, whose result is `reference`."""
        self._rows[step.name] = {"reference": reference, "step": asdict(step)}
        with replace_file(self._path, self._path.with_suffix(".partial")) as file:
            file.write(json.dumps(self._rows).encode())


def rehearse_paper(
    work: Work, on_step: Callable[[RehearsedStep], None] = lambda step: None, *, fresh: bool = False
) -> list[RehearsedStep]:
    """Do the steps of `work`, which has the size `paper`, on few items, then write the tables. Return every step.

    Steps that passed in an earlier rehearsal with the same code, inputs, options and hardware are not repeated, unless
    `fresh`. Nothing is written to the registry. Raises StoreError if another process is rehearsing the same paper, or
    if the store is not writable.
    """
    store, folder = work.session.store, get_rehearsal_folder(work)
    store.require_writable()
    lock = WriterLock(store.tmp, f"rehearsal-{folder.name}", "the rehearsal of this paper")
    try:
        if fresh:
            discard_path(folder)
        rehearsed_steps = rehearse_in_folder(work, folder, on_step)
        if len(work.steps) == len(work.all_steps) and not any(step.state == FAILED for step in rehearsed_steps):
            discard_path(folder)
    finally:
        lock.release()
    return rehearsed_steps


def rehearse_in_folder(work: Work, folder: Path, on_step: Callable[[RehearsedStep], None]) -> list[RehearsedStep]:
    """Do the steps of `rehearse_paper` that have not passed in `folder` yet. Return every step."""
    paper_steps = {step.name: step for step in work.steps}
    rehearsed_steps = [check_disk(work)]
    on_step(rehearsed_steps[0])
    with open_rehearsal(work.session, list_inputs(work.request), folder) as session:
        rehearsal = Work(session, work.paper, replace(work.request, size="rehearsal"), work.run_options)
        rehearsal.steps = [step for step in rehearsal.all_steps if step.name in paper_steps]
        passed_steps = PassedSteps(folder)
        for step in rehearsal.steps:
            rehearsed_steps.append(rehearse_step(rehearsal, step, paper_steps[step.name], passed_steps))
            on_step(rehearsed_steps[-1])
        rehearsed_steps.append(measure(TABLES, "report", lambda: write_temporary_report(rehearsal)))
        on_step(rehearsed_steps[-1])
    return rehearsed_steps


def write_temporary_report(rehearsal: Work) -> None:
    """Write the paper's tables and figures into the rehearsal's store, as far as their steps are complete."""
    write_report(rehearsal, rehearsal.session.store.root / "tables")


def list_inputs(request: Request) -> list[str]:
    """Return the names of the models, datasets and runs that a request reads."""
    models = [request.checkpoint, *request.other_models, *(model.name for model in request.language_models)]
    names = [*models, request.fit, request.test, request.positions, request.puzzles, request.sae]
    return list(dict.fromkeys(name for name in names if name))


def get_rehearsal_folder(work: Work) -> Path:
    """Return the folder of the rehearsal with this code, these inputs and options, and this machine's hardware."""
    inputs, machine = work.session.inputs, describe_this_machine()
    references = [inputs.reference("checkpoint", name) for name in work.request.other_models]
    if work.request.sae is not None:
        references.append(inputs.reference("run:sae", work.request.sae))
    hardware = [machine["cpu"], machine["cores"], machine["gpus"], machine["memory_bytes"] >> 30]
    digest = hash_canonical_json(
        [asdict(work.request), references, dict(work.run_options), hardware, hash_source_files()]
    )
    return work.session.store.rehearsals / f"{work.tag}-{digest[:8]}"


@contextmanager
def open_rehearsal(session: Session, inputs: list[str], folder: Path) -> Iterator[Session]:
    """Open the registry and store in `folder`. If it does not exist, it is created with these inputs.

    The bytes of inputs are links.
    """
    with convert_os_errors("make the folder of the rehearsal", folder):
        make_folder(folder.parent)
        if not folder.exists():
            create_rehearsal(session, inputs, folder)
    with open_session(folder / "registry.db", folder / "store") as separate:
        yield separate


def create_rehearsal(session: Session, inputs: list[str], folder: Path) -> None:
    """Create `folder` with a registry and a store that contain these inputs."""
    with session.store.open_scratch("rehearsal") as staging:
        new_folder = staging / folder.name
        new_folder.mkdir()
        export_rows(session.database, new_folder / "registry.db", inputs)
        with open_session(new_folder / "registry.db", new_folder / "store") as separate:
            for item in transfer.find_items(session.database, inputs, inputs=True):
                if item.is_in(session.store):
                    link_item(item, session, separate)
        new_folder.rename(folder)


def link_item(item: transfer.TransferItem, source: Session, target: Session) -> None:
    """Link the bytes of an artifact or of activations into another store."""
    if item.array is not None:
        source_path, target_path = source.store.get_array_path(item.array), target.store.arrays / item.array
    else:
        source_path = source.store.path(item.digest)
        target_path = target.store.root / source_path.relative_to(source.store.root)
    target_path.parent.mkdir(parents=True, exist_ok=True)
    target_path.symlink_to(source_path, target_is_directory=True)


# -- one step ----------------------------------------------------------------------------------------------------------


def rehearse_step(rehearsal: Work, step: Step, paper_step: Step, passed_steps: PassedSteps) -> RehearsedStep:
    """Do one step on few items, unless it is in `passed_steps`. `paper_step` is the same step with the paper's
    amounts."""
    if missing_steps := sorted(step.needs - rehearsal.references.keys()):
        return RehearsedStep(step.name, step.kind, LEFT_OUT, why=f"needs {', '.join(missing_steps)}")
    remarks: list[str] = []
    costs: list[float | None] = []
    passed_before: RehearsedStep | None = None
    resumed_remark = ""

    def run_once() -> None:
        nonlocal passed_before, resumed_remark
        if step.kind in PREPARATIONS:
            reference = PREPARATIONS[step.kind].find(rehearsal.session, rehearsal.settings(step))
            if reference is None:
                rehearsal.run_step(step, lambda fraction, text: None)
            else:
                passed_before = passed_steps.find(step.name, reference)
                rehearsal.references[step.name] = reference
            return
        kind, spec = rehearsal.spec(step)
        spec = shrink_large_model(kind, spec, rehearsal, remarks)
        resolved_spec = resolve_spec(kind, spec, rehearsal.session.inputs)
        missing_units = len(find_missing_units(rehearsal.session.inputs, resolved_spec))
        passed_before = passed_steps.find(step.name, f"run:{resolved_spec.spec_hash}") if not missing_units else None
        if passed_before is None:
            if not missing_units:
                resumed_remark = "an interrupted rehearsal did it, without a measurement"
            elif missing_units < resolved_spec.units:
                resumed_remark = f"measured on the last {missing_units} of {resolved_spec.units} units"
            estimate = kind.estimate(resolved_spec.spec, rehearsal.session.inputs)
            seconds = estimate_cpu_seconds(kind.name, estimate, step.share)
            costs.append(seconds and seconds * missing_units / resolved_spec.units)
            report = rehearsal.session.run(spec, kind.options(**rehearsal.run_options), kind=kind)
            if report.interrupted:
                raise KeyboardInterrupt
            if is_all_skipped(rehearsal.session, resolved_spec.run_id):
                remarks.append(
                    "every state was skipped (no legal move of the model): memory and time are not those of edits"
                )
        rehearsal.references[step.name] = f"run:{resolved_spec.spec_hash}"
        rehearsal.tag_run(step)

    rehearsed_step = measure(step.name, step.kind, run_once)
    if passed_before is not None:
        return passed_before
    if rehearsed_step.state == FAILED and step.optional:
        return replace(rehearsed_step, state=REFUSED)
    if rehearsed_step.state == PASSED:
        paper_seconds = estimate_step_seconds(paper_step, measure_multiplication_rate())
        rehearsed_step = replace(rehearsed_step, why="; ".join(filter(None, [*remarks, resumed_remark])))
        if costs and costs[0] and paper_seconds and not remarks:
            rehearsed_step = replace(
                rehearsed_step, expected_seconds=extrapolate_seconds(rehearsed_step.seconds, costs[0], paper_seconds)
            )
        passed_steps.add(rehearsed_step, rehearsal.references[step.name])
    return rehearsed_step


def is_all_skipped(session: Session, run_id: UUID) -> bool:
    """Return whether a run of edits skipped every state, as with random weights, which write no legal move."""
    conditions = select(tables.Trial.condition).where(tables.Trial.run_id == run_id).distinct()
    with session.database.read() as sql:
        return set(sql.scalars(conditions)) == {"skipped"}


def extrapolate_seconds(measured_seconds: float, counted_seconds: float, paper_seconds: float) -> float:
    """Return the time of a step whose counted time is `paper_seconds`, given that `counted_seconds` seconds took
    `measured_seconds`.

    The start, which does not grow with the work, is not scaled.

    >>> extrapolate_seconds(3.0, 1.0, 100.0), extrapolate_seconds(20.0, 10.0, 100.0)
    (102.0, 155.0)
    """
    start = min(START_S, max(0.0, measured_seconds - counted_seconds))
    return start + (measured_seconds - start) * paper_seconds / counted_seconds


def measure(name: str, kind: str, action: Callable[[], None]) -> RehearsedStep:
    """Call `action`, and return its time and memory. An error is recorded as the reason of a failed step."""
    release_memory()
    reset_gpu_memory()
    state, reason, start = PASSED, "", time.monotonic()
    with PeakMemory() as memory:
        try:
            with limit_memory():
                action()
        except ChessregError as error:
            state, reason = FAILED, f"{error.message} ({error.hint})" if error.hint else error.message
        except Exception as error:  # an error of any library is a finding
            state, reason = FAILED, f"{type(error).__name__}: {get_first_line(error)}"
            if is_out_of_memory(error):
                reason = f"out of memory ({reason})"
    seconds = time.monotonic() - start
    return RehearsedStep(name, kind, state, seconds, memory.peak_bytes, read_gpu_memory(), None, reason)


# -- memory and disk ---------------------------------------------------------------------------------------------------


class PeakMemory:
    """Measures the largest resident memory of this process and its children inside a `with` block."""

    def __enter__(self) -> PeakMemory:
        self.peak_bytes, self._end_event = 0, threading.Event()
        self._thread = threading.Thread(target=self._measure_memory, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end_event.set()
        self._thread.join()

    def _measure_memory(self) -> None:
        """Update `peak_bytes` with the memory of this process and its children until the block ends."""
        me = psutil.Process()
        while True:
            total = me.memory_info().rss
            for child in me.children(recursive=True):
                with suppress(psutil.Error):
                    total += child.memory_info().rss
            self.peak_bytes = max(self.peak_bytes, total)
            if self._end_event.wait(SAMPLE_INTERVAL_S):
                return


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def reset_gpu_memory() -> None:
    """Free cached GPU memory and reset its peak. Does nothing without a GPU."""
    import torch

    if has_gpu():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def read_gpu_memory() -> int | None:
    """Return PyTorch's largest memory on the GPU since `reset_gpu_memory`, in bytes, or None without a GPU."""
    import torch

    return int(torch.cuda.max_memory_allocated()) if has_gpu() else None


def measure_available_memory(device: str) -> int:
    """Return the memory in bytes that a model can use on a device (cpu, cuda, cuda:N or auto).

    On the CPU that is most of what the machine has available, or of what the job may use (a cgroup, as Slurm's).
    """
    if device != "cpu" and has_gpu():
        import torch

        return int(torch.cuda.mem_get_info()[0])
    available_bytes = min(psutil.virtual_memory().available, measure_cgroup_memory())
    return int(available_bytes * (1 - SPARE_MEMORY_SHARE))


@contextmanager
def limit_memory() -> Iterator[None]:
    """Let an allocation beyond the available memory fail inside the block, instead of having the system kill this
    process.

    Only on Linux, and not with a GPU, whose driver reserves addresses that count as memory.
    """
    import sys

    if sys.platform != "linux" or has_gpu():
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    used_bytes = psutil.Process().memory_info().data
    most = used_bytes + measure_available_memory("cpu")
    if before[1] != resource.RLIM_INFINITY:
        most = min(most, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def check_disk(work: Work) -> RehearsedStep:
    """Compare the estimated bytes of all steps with the free space of the store's disk."""
    needed_bytes = 0

    def sum_plans() -> None:
        nonlocal needed_bytes
        shares = compute_game_shares(count_available_games(work.session, work.all_steps), work.all_steps)
        plans = [StepPlan(step, "waiting", step.units, 0, dict(step.rows), step.bytes) for step in work.steps]
        totals = sum_step_plans([scale_step_plan(plan, shares[plan.step.name]) for plan in plans])
        needed_bytes = totals["bytes"] + TRIAL_BYTES * totals["rows"].get("trial", 0)
        free = shutil.disk_usage(work.session.store.root).free
        if needed_bytes > free:
            raise BadInputError(
                f"the paper needs about {format_size(needed_bytes)}, and {format_size(free)} are free in "
                f"{work.session.store.root}",
                "free space, or move the store",
            )

    disk_step = measure(DISK, "estimate", sum_plans)
    return disk_step if disk_step.why else replace(disk_step, why=f"about {format_size(needed_bytes)}")


# -- models that do not fit --------------------------------------------------------------------------------------------


def shrink_large_model(kind: Kind, spec: Any, rehearsal: Work, remarks: list[str]) -> Any:
    """Return the spec, with one layer if its new model does not fit in memory. The whole model is then passed through
    on the meta device, and a remark names the memory that it needs."""
    if kind.name != "finetune" or spec.family is None:
        return spec
    from chessreg.models.finetuning import FinetuneConfig

    shape = {name: getattr(spec, name) for name in ("family", "n_layer", "n_head", "n_embd", "block_size")}
    weights = check_shape_on_meta(FinetuneConfig(**shape))
    needed_bytes = TRAINING_BYTES * weights
    available_bytes = measure_available_memory(str(rehearsal.run_options.get("device", "auto")))
    if needed_bytes <= available_bytes:
        return spec
    remarks.append(
        f"training {weights:,} weights needs {format_size(needed_bytes)} and {format_size(available_bytes)} are "
        "available: its shapes passed on the meta device, and the next steps use 1 layer; train it with --devices N "
        "--fsdp"
    )
    return spec.model_copy(update={"n_layer": 1})


def check_shape_on_meta(config: TrainConfig) -> int:
    """Pass one row of a full context through a new language model without allocating it, forward and backward. Return
    the number of its weights."""
    import torch

    from chessreg.models.finetuning import FinetuneConfig, make_language_model

    assert isinstance(config, FinetuneConfig)
    with torch.device("meta"):
        model = make_language_model(config)
        tokens = torch.zeros(1, config.block_size, dtype=torch.int64)
        mask = torch.zeros(1, 1, config.block_size, config.block_size)  # transformers would read values to make one
        model(input_ids=tokens, attention_mask=mask, use_cache=False).logits.sum().backward()
    return sum(parameter.numel() for parameter in model.parameters())
