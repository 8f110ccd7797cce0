"""Rehearse a paper: do every step of the size `paper` on few items, in a temporary registry that is then deleted.

Models, batches of one forward pass, and autoencoders have their full shape, so that an error of shape, path, package,
engine or memory is found in minutes. A model that does not fit in memory is passed through on the meta device, and the
steps after it use one with fewer layers.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psutil

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
from chessreg.runs import transfer
from chessreg.runs.cost import estimate_cpu_seconds, measure_multiplication_rate
from chessreg.runs.resolve import resolve_spec
from chessreg.scheduling.expected_time import START_S
from chessreg.session import Session, open_session
from store.files import make_staging_path

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


def rehearse_paper(work: Work, on_step: Callable[[RehearsedStep], None] = lambda step: None) -> list[RehearsedStep]:
    """Do the steps of `work`, which has the size `paper`, on few items, then write the tables. Return every step.

    Nothing is written to the registry, and only temporary files to the store.
    """
    paper_steps = {step.name: step for step in work.steps}
    rehearsed_steps = [check_disk(work)]
    on_step(rehearsed_steps[0])
    with open_rehearsal(work.session, list_inputs(work.request)) as session:
        rehearsal = Work(session, work.paper, replace(work.request, size="rehearsal"), work.run_options)
        rehearsal.steps = [step for step in rehearsal.all_steps if step.name in paper_steps]
        for step in rehearsal.steps:
            rehearsed_steps.append(rehearse_step(rehearsal, step, paper_steps[step.name]))
            on_step(rehearsed_steps[-1])
        rehearsed_steps.append(measure(TABLES, "report", lambda: write_temporary_report(rehearsal)))
        on_step(rehearsed_steps[-1])
    return rehearsed_steps


def write_temporary_report(rehearsal: Work) -> None:
    """Write the paper's tables and figures into the temporary store, as far as their steps are complete."""
    write_report(rehearsal, rehearsal.session.store.root / "tables")


def list_inputs(request: Request) -> list[str]:
    """Return the names of the models, datasets and runs that a request reads."""
    models = [request.checkpoint, *request.other_models, *(model.name for model in request.language_models)]
    names = [*models, request.fit, request.test, request.positions, request.puzzles, request.sae]
    return list(dict.fromkeys(name for name in names if name))


@contextmanager
def open_rehearsal(session: Session, inputs: list[str]) -> Iterator[Session]:
    """Open a temporary registry and store with these inputs, next to the user's store; delete both after the block.

    The bytes of inputs are links. `chessreg gc` removes what a killed rehearsal leaves.
    """
    folder = make_staging_path(session.store.tmp, "rehearsal")
    folder.mkdir()
    try:
        export_rows(session.database, folder / "registry.db", inputs)
        with open_session(folder / "registry.db", folder / "store") as temporary:
            for item in transfer.find_items(session.database, inputs, inputs=True):
                if item.is_in(session.store):
                    link_item(item, session, temporary)
            yield temporary
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def rehearse_step(rehearsal: Work, step: Step, paper_step: Step) -> RehearsedStep:
    """Do one step on few items. `paper_step` is the same step with the paper's amounts."""
    if missing_steps := sorted(step.needs - rehearsal.references.keys()):
        return RehearsedStep(step.name, step.kind, LEFT_OUT, why=f"needs {', '.join(missing_steps)}")
    remarks: list[str] = []
    costs: list[float | None] = []

    def run_once() -> None:
        if step.kind in PREPARATIONS:
            reference = PREPARATIONS[step.kind].find(rehearsal.session, rehearsal.settings(step))
            if reference is None:
                rehearsal.run_step(step, lambda fraction, text: None)
            else:
                rehearsal.references[step.name] = reference
            return
        kind, spec = rehearsal.spec(step)
        spec = shrink_large_model(kind, spec, rehearsal, remarks)
        resolved_spec = resolve_spec(kind, spec, rehearsal.session.inputs)
        estimate = kind.estimate(resolved_spec.spec, rehearsal.session.inputs)
        costs.append(estimate_cpu_seconds(kind.name, estimate, step.share))
        report = rehearsal.session.run(spec, kind.options(**rehearsal.run_options), kind=kind)
        if report.interrupted:
            raise KeyboardInterrupt
        rehearsal.references[step.name] = rehearsal.get_reference(report.run_id)
        rehearsal.tag_run(step)

    rehearsed_step = measure(step.name, step.kind, run_once)
    if rehearsed_step.state == FAILED and step.optional:
        return replace(rehearsed_step, state=REFUSED)
    if rehearsed_step.state == PASSED:
        paper_seconds = estimate_step_seconds(paper_step, measure_multiplication_rate())
        rehearsed_step = replace(rehearsed_step, why="; ".join(remarks))
        if costs and costs[0] and paper_seconds and not remarks:
            rehearsed_step = replace(
                rehearsed_step, expected_seconds=extrapolate_seconds(rehearsed_step.seconds, costs[0], paper_seconds)
            )
    return rehearsed_step


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
