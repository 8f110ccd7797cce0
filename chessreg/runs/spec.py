"""Specs, which decide a result and are hashed, and execution options, which do not and are recorded per attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Ref:
    """Marks a spec field that names something in the registry: a dataset, a checkpoint, or a run of some kind.

    On the command line the user gives a name or an id; the resolved spec holds an input reference (`runs.inputs`).
    """

    noun: str  # "dataset", "checkpoint", or "run:KIND"


@dataclass(frozen=True)
class Added:
    """Marks a field added to a kind later: while it has its default it is left out of the hash."""


@dataclass(frozen=True)
class Stored:
    """Marks a field that has been renamed: specs hold, and hash, it under its earlier name, which is accepted too."""

    name: str


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _by_present_names(cls, values: Any) -> Any:
        return by_present_names(cls, values) if isinstance(values, dict) else values


class Spec(Settings):
    """What decides the result. Every field is hashed."""

    seed: int = Field(0, description="seed of everything that is drawn")
    replicate: int = Field(0, ge=0, description="run the same spec anew, as replicate N")


class ExecutionOptions(Settings):
    """Options that do not decide the result: recorded with the attempt, not part of the run's identity."""

    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    threads: int = Field(0, ge=0, description="CPU threads; 0: all of the cores granted")


How: TypeAlias = ExecutionOptions  # its earlier name

DatasetRef = Annotated[str, Ref("dataset")]
CheckpointRef = Annotated[str, Ref("checkpoint")]


def reference_of(field: FieldInfo) -> Ref | None:
    """What a field refers to, also where it may be None (`CheckpointRef | None` keeps the mark inside)."""
    inside = [m for part in get_args(field.annotation) for m in getattr(part, "__metadata__", ())]
    return next((m for m in (*field.metadata, *inside) if isinstance(m, Ref)), None)


def stored_name(name: str, field: FieldInfo) -> str:
    """The name under which specs hold a field."""
    return next((mark.name for mark in field.metadata if isinstance(mark, Stored)), name)


def by_present_names(model: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """The values of a model's fields, those under an earlier name under the present one."""
    present = {stored_name(name, field): name for name, field in model.model_fields.items()}
    return {name if name in model.model_fields else present.get(name, name): value for name, value in values.items()}


def hashed(spec: Settings) -> dict[str, Any]:
    """The hashed part of a spec as plain JSON values by stored names, fields added later left out while they have
    their default."""
    values = spec.model_dump(mode="json")
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if any(isinstance(m, Added) for m in field.metadata) and value == field.get_default():
            del values[name]
        elif isinstance(value, Settings):
            values[name] = hashed(value)
        if name in values:
            values[stored_name(name, field)] = values.pop(name)
    return values
