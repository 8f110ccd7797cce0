"""Resolves specs: names become input references, and the hash of the canonical form identifies the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel

from chessreg.errors import BadInputError
from chessreg.models import devices
from chessreg.registry.database import Database
from chessreg.registry.identity import hash_canonical_json, make_uuid, shorten_id
from chessreg.registry.run_state import read_complete_units
from chessreg.registry.tables.types import MAX_UNITS
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, read_kind_file
from chessreg.runs.spec import ExecutionOptions, Spec, get_field_reference, get_hashed_settings

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class ResolvedSpec:
    """A spec with input references in place of names, and the resulting identity."""

    kind: Kind
    spec: Spec
    spec_hash: str
    units: int

    @property
    def run_id(self) -> UUID:
        return make_uuid(self.spec_hash)

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, including defaults, as JSON values. They are recorded in the run's row."""
        return self.spec.model_dump(mode="json")


def replace_names(settings: M, inputs: Inputs) -> M:
    """Return the settings with every name or id of an input replaced by its reference, also in nested settings."""
    changes: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value, field_reference = getattr(settings, name), get_field_reference(field)
        if isinstance(value, BaseModel):
            changes[name] = replace_names(value, inputs)
        elif field_reference and isinstance(value, tuple):
            changes[name] = tuple(inputs.reference(field_reference.noun, v) for v in value)
        elif field_reference and value is not None:
            changes[name] = inputs.reference(field_reference.noun, value)
    return settings.model_copy(update=changes)


def resolve_and_hash(kind: Kind, spec: Spec, inputs: Inputs) -> tuple[Spec, str]:
    """Return the spec with input references, and its hash, which identifies the run even before its inputs exist."""
    spec = replace_names(spec, inputs)
    return spec, hash_canonical_json({"kind": kind.name, "version": kind.version, "spec": get_hashed_settings(spec)})


def list_references(settings: Any) -> dict[str, str]:
    """Return field → input reference of a resolved spec. Nested fields are dotted, several values numbered."""
    return {field: reference for field, _, reference in iter_named_inputs(settings)}


def iter_named_inputs(settings: Any, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (field, noun, name or reference) of every input of a spec, resolved or not."""
    for name, field in type(settings).model_fields.items():
        value, field_reference = getattr(settings, name), get_field_reference(field)
        if isinstance(value, BaseModel):
            yield from iter_named_inputs(value, f"{prefix}{name}.")
        elif field_reference and isinstance(value, tuple):
            yield from (
                (f"{prefix}{name}[{place}]", field_reference.noun, reference) for place, reference in enumerate(value)
            )
        elif field_reference and value is not None:
            yield f"{prefix}{name}", field_reference.noun, value


def resolve_spec(kind: Kind, spec: Spec, inputs: Inputs) -> ResolvedSpec:
    """Resolve a spec, count its units and hash it. Raises the errors of inputs that are missing."""
    return count_spec_units(kind, *resolve_and_hash(kind, spec, inputs), inputs)


def count_spec_units(kind: Kind, spec: Spec, spec_hash: str, inputs: Inputs) -> ResolvedSpec:
    """Return `spec`, whose hash is `spec_hash`, with its number of units. Raises BadInputError if there are none or too
    many.
    """
    units = kind.units(spec, inputs)
    if units is None:
        raise BadInputError(f"`units` of kind {kind.name} returned nothing", "return the number of units of a spec")
    if units < 1:
        raise BadInputError(f"this {kind.name} has nothing to do", "its inputs yield no units")
    if units > MAX_UNITS:
        raise BadInputError(
            f"this {kind.name} has {units:,} units, more than the {MAX_UNITS:,} that one run may have",
            "lower --games, or split the run",
        )
    return ResolvedSpec(kind, spec, spec_hash, units + (kind.reduce is not None))


def require_runnable(resolved_spec: ResolvedSpec, options: ExecutionOptions | None, inputs: Inputs) -> None:
    """Raise an error for a problem that the run would find only later.

    With `options`, they are checked for a run on this machine. Pass None in a worker, whose threads are granted by its
    executor, and if they have been checked.
    """
    if options is not None:
        check_execution_options(resolved_spec.kind, resolved_spec.spec, options)
    resolved_spec.kind.check(resolved_spec.spec, inputs)


def check_execution_options(kind: Kind, spec: Spec, options: ExecutionOptions, on: str = "local") -> None:
    """Raise BadInputError for options that the executor `on` or the spec does not allow.

    Threads and devices are compared with this machine's only for a run on it.
    """
    executor = on.partition(":")[0]
    if executor == "local":
        devices.check_threads(options.threads)
        devices.check_device(options.device)
        devices.check_device_count(options.device, getattr(options, "devices", 1))  # of kinds that use several devices
    if executor != "slurm" and (nodes := getattr(options, "nodes", 1)) > 1:
        raise BadInputError(f"--nodes {nodes} requires Slurm", "chessreg launch … --on slurm")
    kind.check_options(spec, options)


def publish_user_files(spec: Spec, inputs: Inputs) -> None:
    """Publish the user's files that a resolved spec names, before its run is recorded."""
    for reference in list_references(spec).values():
        if reference.startswith("sha256:"):
            inputs.store.keep(reference.removeprefix("sha256:"))


def find_missing_units(inputs: Inputs, resolved_spec: ResolvedSpec) -> list[int]:
    """Return the units of a run that the registry does not have yet, in order."""
    with inputs.database.read() as session:
        complete_units = read_complete_units(session, resolved_spec.run_id)
    return [unit for unit in range(resolved_spec.units) if unit not in complete_units]


def describe_kind_change(database: Database, kind: Kind, run_id: UUID) -> list[str]:
    """Return a warning if the file of a custom kind differs from the one that computed this run's results, else []."""
    if (kind_file := read_kind_file(kind)) is None:
        return []
    from chessreg.registry.read import read_kind_file_of_run

    with database.read() as session:
        recorded_file = read_kind_file_of_run(session, run_id)
        if recorded_file is None or recorded_file[1] == kind_file["sha256"] or not read_complete_units(session, run_id):
            return []
    return [
        f"{kind_file['file']} has changed since run {shorten_id(run_id)}, whose results are kept: "
        "increase the kind's `version` to compute them again"
    ]
