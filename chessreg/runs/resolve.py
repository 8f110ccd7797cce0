"""Freezing a spec: references become recipes, the canonical form is hashed, and the hash names the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import select

from chessreg.errors import BadInputError
from chessreg.registry import tables
from chessreg.registry.identity import digest_of, uuid_of
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind
from chessreg.runs.spec import Spec, reference_of, what


@dataclass(frozen=True)
class Frozen:
    """A spec whose inputs are named by recipe, with the identity that follows from it."""

    kind: Kind
    spec: Spec
    spec_hash: str
    units: int

    @property
    def run_id(self) -> UUID:
        return uuid_of(self.spec_hash)

    @property
    def what(self) -> dict[str, Any]:
        return what(self.spec)


def with_recipes(spec: Spec, inputs: Inputs) -> Spec:
    """The spec with every reference, also those in nested settings, replaced by its recipe."""
    return _resolved(spec, inputs)


def _resolved(settings: Any, inputs: Inputs) -> Any:
    from pydantic import BaseModel

    changes: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value, reference = getattr(settings, name), reference_of(field)
        if isinstance(value, BaseModel):
            changes[name] = _resolved(value, inputs)
        elif reference and isinstance(value, tuple):
            changes[name] = tuple(inputs.recipe(reference.noun, v) for v in value)
        elif reference and value is not None:
            changes[name] = inputs.recipe(reference.noun, value)
    return settings.model_copy(update=changes)


def identified(kind: Kind, spec: Spec, inputs: Inputs) -> tuple[Spec, str]:
    """The spec with its inputs named by recipe, and its hash: what names a run, also before its inputs are there."""
    spec = with_recipes(spec, inputs)
    return spec, digest_of({"kind": kind.name, "version": kind.version, "what": what(spec)})


def recipes(settings: Any) -> dict[str, str]:
    """Field (nested ones dotted, several numbered) → recipe, of every input that a frozen spec names."""
    from pydantic import BaseModel

    found: dict[str, str] = {}
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            found |= {f"{name}.{inner}": recipe for inner, recipe in recipes(value).items()}
        elif reference_of(field) and isinstance(value, tuple):
            found |= {f"{name}[{place}]": recipe for place, recipe in enumerate(value)}
        elif reference_of(field) and value is not None:
            found[name] = value
    return found


def freeze(kind: Kind, spec: Spec, inputs: Inputs) -> Frozen:
    """Resolve, count the units, hash. Raises what the inputs raise when one of them is not there."""
    spec, spec_hash = identified(kind, spec, inputs)
    units = kind.units(spec, inputs)
    if units < 1:
        raise BadInputError(f"this {kind.name} has nothing to do", "its inputs yield no units")
    return Frozen(kind, spec, spec_hash, units + (kind.reduce is not None))


def missing_units(inputs: Inputs, frozen: Frozen) -> list[int]:
    """The units of a run that the registry does not have yet, in order."""
    with inputs.database.read() as session:
        ranges = session.execute(
            select(tables.UnitRange.start, tables.UnitRange.stop).where(tables.UnitRange.run_id == frozen.run_id)
        ).all()
    done = {unit for start, stop in ranges for unit in range(start, stop)}
    return [unit for unit in range(frozen.units) if unit not in done]
