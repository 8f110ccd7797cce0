"""`imported-probe` and `imported-vector`: published probes and vectors, from their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.imported.file import record_imported_file
from chessreg.experiments.imported.saved import (
    build_imported_detail,
    check_files_together,
    check_imported_probes,
    check_imported_vectors,
    count_games_by_side,
    describe_tokens,
    measure_two_sides,
    name_imported_sites,
    parse_path_settings,
    read_all_files,
    read_imported_probe_file,
    read_imported_vector_file,
    resolve_checkpoint,
    resolve_layer,
    resolve_source,
)
from chessreg.experiments.imported.specs import ImportedProbeSpec, ImportedVectorSpec
from chessreg.models.importers.directions import VectorFile
from chessreg.runs.cost import parse_seconds
from chessreg.runs.fitted import Direction, compute_cosine_similarity
from chessreg.runs.inputs import Inputs
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import ExecutionOptions

if TYPE_CHECKING:
    from chessreg.models.importers.directions import ProbeFile
    from chessreg.runs.task import Task


class ImportedOptions(ExecutionOptions):
    file_names: str = Field("", description="names of the files, for display. Left out: none")
    fetched: str = Field("", description="repository and commit that the files were fetched from. Left out: none")


class _ImportedDirections(Kind):
    """The part that both kinds share: files, units and estimate."""

    tables = ("metric_point",)
    options = ImportedOptions

    def units(self, spec: Any, inputs: Inputs) -> int:
        return len(spec.files)

    def estimate(self, spec: Any, inputs: Inputs) -> RunEstimate:
        size = sum(inputs.artifact("files", reference).path.stat().st_size for reference in spec.files)
        return RunEstimate({"metric_point": 4 * len(spec.files)}, size, cpu_seconds=parse_seconds(size))


class ImportedProbe(_ImportedDirections):
    """Linear probes from published files: Karvonen's saved probes of every version, Davis's safetensors.

    Karvonen 2024, section 3; Davis 2026, section 3.3. Imported probes are accepted wherever a probe run is. Facts that
    a file does not state stay unknown. The accuracy stored in Karvonen's files covers one batch of two games, so it is
    not recorded as a score. One unit is one file.
    """

    name = "imported-probe"
    example = "--files sample"
    spec = ImportedProbeSpec

    def check(self, spec: ImportedProbeSpec, inputs: Inputs) -> None:
        read_probes(spec, inputs)

    def run(self, task: Task[ImportedProbeSpec, ImportedOptions]) -> None:
        spec, files = task.spec, read_probes(task.spec, task.inputs)
        checkpoint = resolve_checkpoint(spec, task.inputs, files)
        for unit in task.units:
            file = files[unit]
            extra = build_imported_detail(spec, file.origin, resolve_layer(spec, unit, file.origin), spec.hook_point)
            label = spec.label or file.origin.label
            token_detail = {**describe_tokens(spec, file.origin), **file.origin.detail}
            meta = {**extra, "label": label, "file": spec.files[unit], **token_detail}
            record_imported_file(task, spec.files[unit], "probe-file")
            games, each = file.train_games, file.origin.positions_per_game
            columns = {
                "train_games": games,
                "train_positions": None if games is None or each is None else games * each,
                "epochs": None if file.epochs is None else float(file.epochs),
                **file.origin.columns,
            }
            task.publish_layer(
                "probe",
                unit,
                {"weight": np.ascontiguousarray(file.weight)},
                meta,
                checkpoint_id=None if checkpoint is None else checkpoint.id,
                label=label,
                positions=name_imported_sites(spec, file.origin),
                classes=file.weight.shape[-1],
                norm=float(np.linalg.norm(file.weight)),
                **columns,
            )
            measurements = {"norm": float(np.linalg.norm(file.weight)), **measure_two_sides(file.weight)}
            log_values = {
                "final_loss": file.origin.metadata.get("final_loss"),
                "last_accuracy": file.origin.metadata.get("acc"),
            }
            emit_measured(task, unit, {**measurements, **log_values})


class ImportedVector(_ImportedDirections):
    """Activation vectors from files: Karvonen's contrasts, differences of skill probes, tensors from other programs.

    Karvonen 2024, section 4. Imported vectors are accepted wherever a vector run is. A contrast keeps the author's
    form, a difference of sums over eight positions, so his coefficient is the scale. A tensor without metadata is
    stored unchanged, with source `user`. One unit is one file.
    """

    name = "imported-vector"
    example = "--files sample"
    spec = ImportedVectorSpec

    def check(self, spec: ImportedVectorSpec, inputs: Inputs) -> None:
        read_vectors(spec, inputs)

    def run(self, task: Task[ImportedVectorSpec, ImportedOptions]) -> None:
        spec, files = task.spec, read_vectors(task.spec, task.inputs)
        checkpoint = resolve_checkpoint(spec, task.inputs, files)
        for unit in task.units:
            file = files[unit]
            direction = Direction(file.vector, file.high, file.low)
            source_name = resolve_source(spec, file)
            label = spec.label or file.origin.label or ("vector" if source_name == "user" else "unknown")
            rating = {"WhiteEloBinIndex": "white_elo", "BlackEloBinIndex": "black_elo"}.get(
                str(file.origin.metadata.get("column_name")), label
            )
            source = f"{source_name}:{rating if source_name in ('contrastive', 'cascade') else label}"[:64]
            source = file.origin.columns.get("source") or source
            extra = build_imported_detail(spec, file.origin, resolve_layer(spec, unit, file.origin), spec.hook_point)
            is_summed = source_name in ("contrastive", "cascade")
            meta = {
                **extra,
                "source": source,
                "file": spec.files[unit],
                "positions": "summed" if is_summed else "averaged",
                "positions_summed": file.origin.positions_per_game if is_summed else 1,
                **count_games_by_side(file.origin),
                **direction.compute_side_norms(),
                **file.origin.detail,
            }
            record_imported_file(task, spec.files[unit], "vector-file")
            task.publish_layer(
                "vector",
                unit,
                direction.tensors(),
                meta,
                checkpoint_id=None if checkpoint is None else checkpoint.id,
                source=source,
                positions=(file.origin.positions or ("given by the user" if source_name == "user" else "unknown"))[:32],
                norm=direction.norm,
            )
            sides = (
                {}
                if file.high is None or file.low is None
                else {"cosine_sides": compute_cosine_similarity(file.high, file.low)}
            )
            emit_measured(task, unit, {"norm": direction.norm, **direction.compute_side_norms(), **sides})


# -- reading and checking ----------------------------------------------------------------------------------------


def read_probes(spec: ImportedProbeSpec, inputs: Inputs) -> list[ProbeFile]:
    """Return the probe of each file. Raises BadInputError for a file that is not a probe, and for files that cannot
    belong to one run."""
    files = read_all_files(spec.files, inputs, read_imported_probe_file)
    check_files_together(spec, inputs, files)
    check_imported_probes(spec, files)
    return files


def read_vectors(spec: ImportedVectorSpec, inputs: Inputs) -> list[VectorFile]:
    """Return the vector of each file. Raises BadInputError for a file that is not a vector, and for files that cannot
    belong to one run."""
    files = read_all_files(spec.files, inputs, read_imported_vector_file)
    check_files_together(spec, inputs, files)
    check_imported_vectors(spec, files)
    return files


def build_import_spec(
    kind: type[ImportedProbe] | type[ImportedVector],
    paths: Sequence[Path],
    inputs: Inputs | None,
    name: str | None = None,
    **options: Any,
) -> ImportedProbeSpec | ImportedVectorSpec:
    """Return the spec of an import of these files.

    Layer, model, label and cascade come from `options`, then from the files, then from their names. `name` is the
    run's; it is also the label of tensors without metadata, unless `options` has one. `inputs` is `None` where no
    registry exists yet; `checkpoint` is not looked up then. All checks run first, so a refused file leaves nothing in
    the store. Raises BadInputError, and NotFoundError for a missing file.
    """
    named_files, unnamed_files = read_direction_files(kind, paths)
    settings: dict[str, Any] = {}
    if kind is ImportedProbe and any(file.origin.residual_index is not None for file in named_files):
        settings = parse_path_settings(named_files, paths, inputs, options)
    settings |= get_stated_hook_point(named_files, options)
    for setting in ("layer", "model", "label"):
        values = [getattr(file.origin, setting) for file in named_files]
        if any(getattr(file.origin, setting) is None for file in unnamed_files) and None not in values:
            settings[{"layer": "layers"}.get(setting, setting)] = tuple(values) if setting == "layer" else values[0]
    if kind is ImportedVector and any(file.source == "cascade" for file in named_files):
        settings["source"] = "cascade"
    if any(
        isinstance(file, VectorFile) and file.source == "user" and not file.origin.residual for file in unnamed_files
    ):
        settings |= get_residual_setting(inputs, options.get("checkpoint"))
        settings |= {"label": name} if name else {}
    in_files = {
        "layers": tuple(f.origin.layer for f in unnamed_files),
        "model": unnamed_files[0].origin.model,
        "label": unnamed_files[0].origin.label,
    }
    options = {
        name: value for name, value in options.items() if value not in (None, "", ()) and value != in_files.get(name)
    }  # an option that repeats the files' metadata leaves the spec unchanged
    spec = kind.spec(files=tuple(map(str, paths)), **{**settings, **options})
    check_files_together(spec, inputs, unnamed_files)
    fits: Callable[..., None] = check_imported_probes if kind is ImportedProbe else check_imported_vectors
    fits(spec, unnamed_files)
    return spec


def get_stated_hook_point(files: Sequence[ProbeFile | VectorFile], options: dict[str, Any]) -> dict[str, str]:
    """Return the setting of the hook point that the files state, if they do.

    Raises BadInputError for files of different hook points, and for an option that differs from theirs.
    """
    hook_points = sorted({file.origin.hook_point for file in files if file.origin.hook_point})
    if len(hook_points) > 1:
        raise BadInputError(
            f"these files have different hook points: {', '.join(hook_points)}", "import each one separately"
        )
    if hook_points and options.get("hook_point") not in (None, "", hook_points[0]):
        raise BadInputError(
            f"the files have the hook point {hook_points[0]}, not {options['hook_point']}", "leave out --hook-point"
        )
    return {"hook_point": hook_points[0]} if hook_points else {}


def get_residual_setting(inputs: Inputs | None, checkpoint: str | None) -> dict[str, str]:
    """Return the residual convention of a tensor without metadata: that of its checkpoint, if one is named."""
    if inputs is None or not checkpoint:
        return {}
    convention = inputs.read_checkpoint_row(inputs.reference("checkpoint", checkpoint)).residual
    return {"residual": convention} if convention else {}


def read_direction_files(
    kind: type[ImportedProbe] | type[ImportedVector], paths: Sequence[Path]
) -> tuple[list[Any], list[Any]]:
    """Return two lists of the files' contents: read with their names, and without. Error messages call both by their
    paths."""
    read_file: Callable[..., Any] = read_imported_probe_file if kind is ImportedProbe else read_imported_vector_file
    for path in paths:
        if not path.is_file():
            raise NotFoundError(f"{path} is a folder, not a file" if path.is_dir() else f"{path} does not exist")
    named_files = [read_file(path) for path in paths]
    unnamed_files = [(path, read_file(path, "")) for path in paths]
    return named_files, [replace(file, origin=replace(file.origin, file=str(path))) for path, file in unnamed_files]


def emit_measured(task: Task[Any, Any], unit: int, measurements: dict[str, Any]) -> None:
    """Emit each value that is known as a metric of a unit, and mark the unit as done."""
    for name, value in measurements.items():
        if value is not None:
            task.emit("metric_point", unit, name=name, step=0, value=float(value))
    task.done(unit)
