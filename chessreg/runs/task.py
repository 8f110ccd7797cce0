"""The argument of a kind's `run`: spec, missing units, inputs, and methods that write rows and artifacts."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from difflib import get_close_matches
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel

from chessreg.errors import ChessregError
from chessreg.named import check_name
from chessreg.registry.machine import describe_this_machine
from chessreg.registry.run_state import list_unit_ranges
from chessreg.registry.tables import Base
from chessreg.registry.tables.types import crop_model_texts, get_utc_now, require_admissible, require_lengths
from chessreg.runs.inputs import Inputs
from chessreg.runs.resolve import ResolvedSpec
from chessreg.runs.spec import ExecutionOptions, Spec
from chessreg.runs.unfinished import lock_states

if TYPE_CHECKING:
    import numpy as np

    from chessreg.models.language_model import LanguageModel
    from chessreg.runs.activations import CachedActivations
    from chessreg.runs.fitted import Direction, FittedProbe
    from store import Store
    from store.artifacts import StoredArtifact
    from store.fragments import FragmentWriter

S = TypeVar("S", bound=Spec)
Options = TypeVar("Options", bound=ExecutionOptions)

TABLE_NAME = itemgetter(0)
FLUSH_INTERVAL_S = 2.0
FLUSH_ROWS = 5000


class StopRequest(Exception):
    """Raised to stop an attempt after a signal. Complete units are kept."""


class Task(Generic[S, Options]):
    """One attempt's share of a run.

    Rows of a unit are held back until `done(unit)`, then written together with the record that the unit is complete. If
    the process is killed, a fragment contains all of them or none.
    """

    def __init__(
        self,
        resolved_spec: ResolvedSpec,
        options: Options,
        units: list[int],
        inputs: Inputs,
        attempt_id: UUID,
        writer: FragmentWriter,
        after_flush: Callable[[], None] = lambda: None,
        on_progress: Callable[[float, str], None] = lambda fraction, text: None,
    ) -> None:
        self.resolved, self.options, self.units, self.inputs = resolved_spec, options, units, inputs
        self.spec: S = resolved_spec.spec  # type: ignore[assignment]
        self.kind, self.run_id, self.attempt_id = resolved_spec.kind, resolved_spec.run_id, attempt_id
        self.units_done = 0
        self.threads: set[int] = set()  # thread counts that the kind has set
        self.stopping = False
        self.fraction, self.fraction_before, self.progress_text = 0.0, 0.0, ""  # progress, written by the next check-in
        self._writer, self._after_flush, self._on_progress = writer, after_flush, on_progress
        self._held_rows: dict[int, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        self._fitting: set[tuple[str, ...]] = set()  # (result table, *columns) of rows that were checked
        self._complete: set[int] = set()
        self._rows = 0
        self._flush_time = time.monotonic()

    @property
    def store(self) -> Store:
        return self.inputs.store

    @property
    def folder(self) -> Path:
        """A folder of this run for data that must outlive the attempt, such as a trainer's state. Not for results."""
        return self.store.run_folder(self.run_id.hex)

    def lock_states(self, *states: str) -> AbstractContextManager[None]:
        """Lock these state files of the run during the block. Raises StoreError naming a process that holds them."""
        return lock_states(self.store, self.run_id, states)

    def model(self, checkpoint: str) -> LanguageModel:
        """Return the model of a checkpoint reference, with the device and threads of the execution options.

        Raises the errors of `Inputs.checkpoint`, and BadInputError for an unavailable device.
        """
        from chessreg.models.devices import prepare_device
        from chessreg.models.language_model import LanguageModel

        _, folder = self.inputs.checkpoint(checkpoint)
        return LanguageModel.load(folder, device=prepare_device(self.options.device, self.options.threads))

    def cache(self, reference: str, hook_point: str | None = None) -> CachedActivations:
        """Return the activations of a cache run: `.read(layer)` and `.batches(layer)`.

        `hook_point`: a pattern such as `blocks.*.hook_resid_pre`; by default the residual stream after each block.
        Raises NotFoundError if the run or the hook point is missing.
        """
        from chessreg.models.hook_points import RESID_POST
        from chessreg.runs.activations import load_cache

        return load_cache(self.inputs, reference, pattern=hook_point or RESID_POST)

    def labels(self, cache: CachedActivations, label: str = "piece") -> np.ndarray:
        """Return the class of each square at each position of a cache, int8 [positions, squares].

        `label`: piece, color, type, threat, legal-move, pin, previous-move or random. Raises BadInputError for a label
        of whole games (skill, rating), NotFoundError for an unknown one.
        """
        from chessreg.runs.activations import read_labels

        return read_labels(self.inputs, cache, label)

    def probe(self, reference: str, layer: int | None = None) -> FittedProbe:
        """Return the probe of one layer of a probe run; by default the layer with the best validation score.

        Raises BadInputError if the run has no such layer.
        """
        from chessreg.runs.fitted import load_probe

        return load_probe(self.inputs, reference, layer)

    def vector(self, reference: str, layer: int) -> Direction:
        """Return the steering vector of one layer of a vector run. Raises BadInputError for a missing layer."""
        from chessreg.runs.fitted import load_direction

        return load_direction(self.inputs, reference, layer)

    # -- results --------------------------------------------------------------------------------------------------

    def emit(self, table: str, unit: int, extra: BaseModel | None = None, **columns: Any) -> None:
        """Add a result row of `unit`. `extra` holds the kind's extra columns. Model-generated text is cropped to its
        column.

        Raises ChessregError for a table that the kind does not declare, unknown or missing columns, a text that is too
        long, and a unit that is done already, whose row would be lost.
        """
        if table not in self.kind.tables:
            raise ChessregError(f"kind {self.kind.name} emits a {table} row, which is not one of its result tables")
        if unit in self._complete:
            raise ChessregError(f"kind {self.kind.name} emits a {table} row of unit {unit} after it was done")
        row = {"run_id": self.run_id, "unit": unit, "attempt_id": self.attempt_id, **columns}
        if extra is not None:
            row["detail"] = extra.model_dump(mode="json")
        if (table, *row) not in self._fitting:
            self._require_columns(table, row)
            self._fitting.add((table, *row))
        require_lengths(Base.metadata.tables[table], row)
        self._held_rows[unit].append((table, crop_model_texts(Base.metadata.tables[table], row)))

    def _require_columns(self, table: str, row: dict[str, Any]) -> None:
        """Raise ChessregError if a row has a column that `table` lacks, or lacks one that `table` requires."""
        columns = Base.metadata.tables[table].c
        for name in row.keys() - set(columns.keys()):
            suggestions = get_close_matches(name, columns.keys(), 1)
            hint = f"did you mean {suggestions[0]}?" if suggestions else f"it has {', '.join(columns.keys())}"
            raise ChessregError(f"kind {self.kind.name} emits a {table} row with the unknown column {name!r}", hint)
        for column in columns:
            if row.get(column.name) is None and not (column.nullable or column.default or column.server_default):
                key = ", part of its key" if column.primary_key else ""
                raise ChessregError(f"kind {self.kind.name} emits a {table} row without {column.name}{key}")

    def record(self, table: str, *, of_unit: int | None = None, **columns: Any) -> None:
        """Add an entity row (probe, vector, match, intervention, engine, …) that results refer to.

        A row with a `unit` (or `of_unit`) is held back with that unit's rows. Other entities are the same in every
        attempt and are written immediately. Raises BadInputError for a text that is too long.
        """
        if table in Base.metadata.tables:
            require_lengths(Base.metadata.tables[table], columns)
        unit = columns.get("unit") if of_unit is None else of_unit
        if unit is not None:
            self._held_rows[unit].append((table, columns))
            return
        self._writer.add(table, to_fragment_row(columns))
        self._rows += 1

    def done(self, *units: int) -> None:
        """Mark units as complete. Their rows are written together: after a crash, all or none of them exist.

        Pass units that share an artifact (such as a group of a cache) in one call. Raises ChessregError for a unit that
        is done already, duplicate keys and values that a table cannot store, and StoreError for a row that cannot be
        written; none of the units is marked then.
        """
        if repeated_units := self._complete.intersection(units):
            raise ChessregError(f"kind {self.kind.name} marks unit {min(repeated_units)} as done twice")
        self._require_rows(units)
        with self._writer.write_together() as rows:
            for unit in units:
                for table, row in self._held_rows.get(unit, ()):
                    rows.add(table, to_fragment_row(row))
            for start, stop in list_unit_ranges(units):
                span = {"run_id": self.run_id, "start": start, "stop": stop, "attempt_id": self.attempt_id}
                rows.add("unit_range", to_fragment_row(span))
        self._rows += len(rows.lines)
        for unit in units:
            self._held_rows.pop(unit, None)
        self._complete.update(units)
        self.units_done += len(units)
        self.progress(max(self.fraction, self.units_done / max(len(self.units), 1)), "")

    def _require_rows(self, units: Iterable[int]) -> None:
        """Raise ChessregError if the rows of these units repeat a key or do not fit their table."""
        for unit in units:
            results = sorted(
                (pair for pair in self._held_rows.get(unit, ()) if pair[0] in self.kind.tables), key=TABLE_NAME
            )
            for name, pairs in groupby(results, TABLE_NAME):
                table, rows = Base.metadata.tables[name], [row for _, row in pairs]
                key = [column.name for column in table.primary_key]
                seen_keys = set[tuple[Any, ...]]()
                for row in rows:
                    if (place := tuple(row.get(column) for column in key)) in seen_keys:
                        key_text = ", ".join(f"{column} {row.get(column)}" for column in key if column != "run_id")
                        raise ChessregError(f"kind {self.kind.name} emits two {name} rows with {key_text}")
                    seen_keys.add(place)
                require_admissible(table, rows)

    def resume(self, fraction: float) -> None:
        """Report that earlier attempts did this share (0 to 1) of the work, so that the remaining time is estimated
        correctly.

        Raises StopRequest after a signal.
        """
        if fraction:
            self.fraction_before = fraction
            self.progress(fraction, "")

    def progress(self, fraction: float, text: str) -> None:
        """Report the progress of this attempt (0 to 1) and its current activity. Raises StopRequest after a signal."""
        self.fraction, self.progress_text = fraction, text or self.progress_text
        self._on_progress(fraction, text)
        now = time.monotonic()
        if self._rows >= FLUSH_ROWS or (self._rows and now - self._flush_time > FLUSH_INTERVAL_S):
            self.flush()
        self.stop_if_asked()

    def stop_if_asked(self) -> None:
        """Raise StopRequest after a signal."""
        if self.stopping:
            raise StopRequest

    def flush(self) -> None:
        """Write the rows of complete units as a fragment."""
        self._rows, self._flush_time = 0, time.monotonic()
        self._writer.flush()
        self._after_flush()

    @contextmanager
    def output(self, name: str, unit: int, kind: str) -> Iterator[Path]:
        """Yield a folder for an artifact. After the block it is published and recorded as this run's output `name`.

        >>> with task.output("layer-3", unit=3, kind="probe") as folder: ...   # doctest: +SKIP
        """
        check_name("an output", name)
        with self.store.stage(kind) as folder:
            yield folder
            artifact = self.store.publish(folder)
        self.record_artifact(artifact, kind, of_unit=unit)
        self.record("output", run_id=self.run_id, name=name, unit=unit, digest=artifact.digest)
        self.last_output = artifact

    def publish_layer(
        self, table: str, unit: int, tensors: Mapping[str, np.ndarray], meta: dict[str, Any], **columns: Any
    ) -> None:
        """Publish the probe or vector of one layer: an artifact (safetensors and meta.json) and its row in `table`.

        `meta` must contain `layer` and `hook_point` and becomes the row's `detail`. `columns` are the other columns.
        """
        from safetensors.numpy import save_file

        with self.output(f"layer-{meta['layer']}", unit, table) as folder:
            save_file(dict(tensors), folder / f"{table}.safetensors")
            (folder / "meta.json").write_text(json.dumps(meta, sort_keys=True), encoding="utf-8")
        self.record(
            table,
            run_id=self.run_id,
            unit=unit,
            artifact=self.last_output.digest,
            hook_point=meta["hook_point"],
            layer=meta["layer"],
            detail=meta,
            **columns,
        )

    def record_artifact(self, artifact: StoredArtifact, kind: str, *, of_unit: int | None = None) -> None:
        """Add the rows of a published artifact: the artifact, and its location on this machine."""
        self.record(
            "artifact",
            of_unit=of_unit,
            digest=artifact.digest,
            kind=kind,
            bytes=artifact.bytes,
            state="complete",
            created_at=get_utc_now(),
        )
        self.record(
            "artifact_location",
            of_unit=of_unit,
            digest=artifact.digest,
            uri=str(artifact.path),
            machine_id=describe_this_machine()["id"],
            verified_at=get_utc_now(),
        )


def to_fragment_row(row: dict[str, Any]) -> dict[str, Any]:
    r"""Return a row for a fragment: ids as hex, times as ISO 8601, and U+0000 in text replaced, which PostgreSQL
    rejects.

    >>> to_fragment_row({"text": "e4\0", "value": 1.0})
    {'text': 'e4�', 'value': 1.0}
    """
    return {key: to_fragment_value(value) for key, value in row.items()}


def to_fragment_value(value: Any) -> Any:
    """Return a value as JSON can hold it: ids as hex, times as ISO 8601, texts without NUL characters."""
    if isinstance(value, UUID):
        return value.hex
    if isinstance(value, datetime):
        return value.isoformat()
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value
