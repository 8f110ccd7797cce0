"""Run a paper as jobs. A step is launched with its dependencies, or after the results that decide its settings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from chessreg.errors import ChessregError
from chessreg.papers.work import PREPARATIONS

if TYPE_CHECKING:
    from chessreg.papers.plan import Step
    from chessreg.papers.work import Work
    from chessreg.scheduling.launch import Order

POLL_INTERVAL_S = 1.0
MAX_RELAUNCHES = 2  # of a step whose job was lost because its machine went down


class PaperLauncher:
    """Launch a paper's steps as jobs of an executor. Parts, random-init controls and datasets are made in this process.

    `on_launch` receives the number of runs queued in a round. `on_progress` receives the share of complete steps and
    the numbers of running and waiting jobs as text.
    """

    def __init__(
        self,
        work: Work,
        executor: str,
        on_launch: Callable[[int], None] = lambda number: None,
        on_progress: Callable[[float, str], None] = lambda fraction, text: None,
    ) -> None:
        self.work, self.executor, self.on_launch, self.on_progress = work, executor, on_launch, on_progress
        self.launched_references: dict[str, str] = {}  # references of incomplete steps that are launched
        self.losses: Counter[str] = Counter()  # of steps

    def launch_steps(self) -> bool:
        """Launch and wait until every step is complete. Return True if interrupted; the jobs then continue.

        A lost job is launched again, at most twice. Raises ChessregError naming a step whose job failed. The other jobs
        continue, and the next call launches the failed step again.
        """
        self.work.forget()
        try:
            while not self.launch_round():
                self.wait_for_job()
        except KeyboardInterrupt:
            return True
        return False

    def launch_round(self) -> bool:
        """Launch the steps that can be launched now; return whether every step is complete."""
        from chessreg.runs.ingest import ingest_fragments
        from chessreg.scheduling.launch import launch_orders

        work, session = self.work, self.work.session
        ingest_fragments(session.database, session.store)
        self.raise_failed()
        orders = self.orders()
        if orders:
            _, launch_plan = launch_orders(orders, session.database, session.store)
            self.on_launch(sum(each.status == "queued" for each in launch_plan))
        return work.is_finished

    def orders(self) -> list[Order]:
        """Return the runs to launch now, whose settings are known. Steps that are not runs are done meanwhile."""
        from chessreg.runs.resolve import resolve_and_hash
        from chessreg.scheduling.launch import Order

        work = self.work
        orders = []
        for step in work.steps:
            if step.name in work.references or step.name in work.refusal_reasons:
                continue
            if step.name in self.launched_references and not self.is_complete(step.name):
                continue
            if step.needs <= work.references.keys():
                step_plan = work.plan_step(step)
                work.mark_if_complete(step_plan)
                if step_plan.is_done:
                    self.launched_references.pop(step.name, None)
                    continue
                if step.kind in PREPARATIONS:
                    work.run_step(step, self.on_progress)
                    continue
            if self.has_known_settings(step):
                kind, spec = work.spec(step, work.references | self.launched_references)
                self.launched_references[step.name] = f"run:{resolve_and_hash(kind, spec, work.session.inputs)[1]}"
                orders.append(
                    Order(
                        kind,
                        spec,
                        kind.options(**work.run_options),
                        tuple(sorted(spec.model_fields_set)),
                        on=self.executor,
                    )
                )
        return orders

    def has_known_settings(self, step: Step) -> bool:
        """Return whether the step's settings are known: its dependencies are complete, or it uses only their names."""
        references = self.work.references.keys()
        if step.kind in PREPARATIONS or callable(step.settings) or step.optional:
            return step.needs <= references
        return step.needs <= references | self.launched_references.keys()

    # -- states of jobs ---------------------------------------------------------------------------------------

    def run_id(self, step: str) -> UUID:
        from chessreg.registry.identity import make_uuid

        return make_uuid(self.launched_references[step].removeprefix("run:"))

    def is_complete(self, step: str) -> bool:
        """Return whether the run of a step is complete."""
        from chessreg.registry import tables

        with self.work.session.database.read() as sql:
            run = sql.get(tables.Run, self.run_id(step))
            return run is not None and run.completed_at is not None

    def rows(self) -> list[dict[str, Any]]:
        """Return the newest jobs of every incomplete run, as `chessreg jobs` lists them."""
        from sqlalchemy import select

        from chessreg.registry.tables import Job
        from chessreg.scheduling import status

        run_ids = [self.run_id(step) for step in self.launched_references]
        newest_jobs: dict[UUID, list[Job]] = {}
        with self.work.session.database.read() as sql:
            jobs = select(Job).where(Job.run_id.in_(run_ids)).order_by(Job.created_at, Job.shard, Job.id)
            for job in sql.scalars(jobs):
                run_jobs = newest_jobs.setdefault(job.run_id, [])
                if run_jobs and run_jobs[0].group_id != job.group_id:
                    run_jobs.clear()
                run_jobs.append(job)
            return status.read_job_rows(sql, [job for job_ids in newest_jobs.values() for job in job_ids])

    def wait_for_job(self) -> None:
        """Return after a job has ended, or if no job is left."""
        from chessreg.runs.ingest import ingest_fragments
        from chessreg.scheduling.presence import Presence
        from chessreg.scheduling.status import FINAL_STATES

        session, share = self.work.session, len(self.work.references) / len(self.work.steps)
        before: int | None = None
        while True:
            Presence(session.store).start(
                session.database.reference
            )  # unless it runs: no other process would start the jobs
            ingest_fragments(session.database, session.store)
            rows = self.rows()
            unfinished_jobs = sum(row["state"] not in FINAL_STATES for row in rows)
            if unfinished_jobs == 0 or (before is not None and unfinished_jobs < before):
                return
            before = unfinished_jobs
            running_jobs = sum(row["state"] == "running" for row in rows)
            self.on_progress(share, f"{running_jobs} running, {unfinished_jobs - running_jobs} to come")
            time.sleep(POLL_INTERVAL_S)

    def raise_failed(self) -> None:
        """Raise ChessregError for the first step whose newest job failed. Lost jobs are launched again."""
        from chessreg.scheduling.status import FINAL_STATES

        steps = {self.run_id(step): step for step in self.launched_references}
        for row in self.rows():
            step = steps[row["run_id"]]
            if (
                step not in self.launched_references
                or row["state"] not in FINAL_STATES - {"complete", "blocked"}
                or self.is_complete(step)
            ):
                continue
            if row["state"] == "lost" and self.losses[step] < MAX_RELAUNCHES:
                self.losses[step] += 1
                del self.launched_references[step]
                continue
            reason = f": {row['message']}" if row["message"] else ""
            raise ChessregError(
                f"step {step}: its job ended as {row['state']}{reason}",
                f"chessreg logs {row['id'].hex[-6:]}; the same command launches it again",
            )
