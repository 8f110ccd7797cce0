"""`imported-sae`: sparse autoencoders that other programs trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, model_validator

from chessreg.errors import BadInputError
from chessreg.experiments.imported.directions import ImportedOptions, emit_measured
from chessreg.experiments.imported.file import SAMPLE, locate_sample, record_imported_file
from chessreg.experiments.imported.sae_measures import measure_imported_saes
from chessreg.experiments.sae.stored import SAE_FILE, build_output_name
from chessreg.models.hook_points import PATTERNS, get_hook_layer, to_hook_pattern
from chessreg.named import clip_text
from chessreg.runs.cost import parse_seconds
from chessreg.runs.inputs import SAE_FOLDER
from chessreg.runs.kind import Kind, RunEstimate
from chessreg.runs.spec import Ref, Spec

if TYPE_CHECKING:
    from chessreg.models.sae_files import SaeFile
    from chessreg.registry import tables
    from chessreg.runs.inputs import Inputs
    from chessreg.runs.task import Task

SAMPLE_FOLDER = "sample-sae"
MEASURED_METRICS = 12  # of one SAE of a model that predicts tokens


class ImportedSaeSpec(Spec):
    checkpoint: Annotated[str, Ref("checkpoint")] = Field(description="model whose activations the SAEs read")
    folders: Annotated[tuple[str, ...], Ref(SAE_FOLDER)] = Field(
        min_length=1,
        description="folders of one SAE each, in the layout of SAELens or dictionary_learning; `sample` is one of the "
        "reference model that comes with chessreg",
    )
    hook_points: tuple[str, ...] = Field(
        (), description="hook point of each folder's SAE, such as blocks.3.hook_resid_post. Left out: from the folders"
    )

    @model_validator(mode="before")
    @classmethod
    def _replace_sample(cls, values: Any) -> Any:
        """Replace `sample` by the path of the bundled folder."""
        folders = values.get("folders") if isinstance(values, dict) else None
        if isinstance(folders, (list, tuple)) and SAMPLE in folders:
            place = str(locate_sample(SAMPLE_FOLDER))
            return {**values, "folders": tuple(place if folder == SAMPLE else folder for folder in folders)}
        return values


class ImportedSae(Kind):
    """Sparse autoencoders from folders of SAELens and dictionary_learning: standard, TopK, JumpReLU and gated.

    Probes of latents, edits and Python accept them like trained ones. The weights are stored in float32. An option that
    changes an SAE's input or output and that chessreg cannot compute is refused by name. L0, explained variance and
    loss recovered are measured on 20 bundled games, at every token. One unit is one folder.
    """

    name = "imported-sae"
    version = 2
    example = "--checkpoint reference --folders sample"
    tables = ("metric_point", "statistic")
    spec = ImportedSaeSpec
    options = ImportedOptions

    def units(self, spec: ImportedSaeSpec, inputs: Inputs) -> int:
        return len(spec.folders)

    def estimate(self, spec: ImportedSaeSpec, inputs: Inputs) -> RunEstimate:
        folders = [inputs.artifact("folders", reference) for reference in spec.folders]
        size = sum(file.stat().st_size for folder in folders for file in folder.path.iterdir())
        rows = {"metric_point": 2 * len(folders), "statistic": MEASURED_METRICS * len(folders)}
        return RunEstimate(rows, size, cpu_seconds=parse_seconds(size))

    def check(self, spec: ImportedSaeSpec, inputs: Inputs) -> None:
        row = inputs.read_checkpoint_row(spec.checkpoint)
        paths = [inputs.artifact("folders", reference).path for reference in spec.folders]
        read_imported_saes(spec, paths, row)

    def run(self, task: Task[ImportedSaeSpec, ImportedOptions]) -> None:
        from safetensors.numpy import save_file

        spec, row = task.spec, task.inputs.read_checkpoint_row(task.spec.checkpoint)
        paths = [task.inputs.artifact("folders", reference).path for reference in spec.folders]
        files = read_imported_saes(spec, paths, row)
        file_saes = {unit: (files[unit][1], files[unit][0].sae) for unit in task.units}
        measurements = measure_imported_saes(task, spec.checkpoint, row, file_saes)
        for unit in task.units:
            file, point = files[unit]
            sae, layer = file.sae, get_hook_layer(point, row.layers)
            meta = {
                "hook_point": point,
                "layer": layer,
                "architecture": sae.architecture,
                "features": sae.features,
                "d_model": sae.d_model,
                "expansion": sae.features // sae.d_model if sae.features % sae.d_model == 0 else None,
                "residual": row.residual,
                "layout": file.layout,
                "dtype": file.dtype,
                "settings": file.settings,
                "folder": spec.folders[unit],
                **sae.read_settings(),
            }
            record_imported_file(task, spec.folders[unit], SAE_FOLDER)
            with task.output(build_output_name(point, sae.features, sae.d_model), unit, "sae") as folder:
                save_file(sae.tensors(), folder / SAE_FILE)
                (folder / "meta.json").write_text(json.dumps(meta, sort_keys=True), encoding="utf-8")
            task.record(
                "sae",
                run_id=task.run_id,
                unit=unit,
                artifact=task.last_output.digest,
                checkpoint_id=row.id,
                hook_point=point,
                layer=layer,
                architecture=sae.architecture,
                features=sae.features,
                detail=meta,
            )
            if unit in measurements:
                for name, (value, low, high) in measurements[unit].statistics.items():
                    task.emit(
                        "statistic", unit, name=name, value=value, low=low, high=high, n=measurements[unit].tokens
                    )
            norms = {"decoder_norm": float(sae.W_dec.norm(dim=1).mean()), "bias_norm": float(sae.b_dec.norm())}
            emit_measured(task, unit, norms)


def read_imported_saes(
    spec: ImportedSaeSpec, paths: list[Path], checkpoint: tables.Checkpoint | None
) -> list[tuple[SaeFile, str]]:
    """Return the SAE of each folder and its hook point. `checkpoint` is None where no registry exists yet.

    Raises BadInputError for a folder that is not an SAE of this checkpoint, and for two SAEs with one name.
    """
    from chessreg.models.sae_files import read_sae_folder

    if spec.hook_points and len(spec.hook_points) != len(paths):
        raise BadInputError(
            f"{len(paths)} folders, but {len(spec.hook_points)} hook points",
            "give one for each folder",
        )
    file_saes, hook_points = [], dict[str, str]()
    for unit, path in enumerate(paths):
        name = f"folder {unit + 1}" if spec.folders[unit].startswith("sha256:") else path.name
        file = read_sae_folder(path, name)
        point = spec.hook_points[unit] if spec.hook_points else file.hook_point
        check_place(file, point, name, checkpoint)
        assert point is not None
        output = build_output_name(point, file.sae.features, file.sae.d_model)
        if output in hook_points:
            raise BadInputError(f"{hook_points[output]} and {name} are both {output}", "import one of them separately")
        hook_points[output] = name
        file_saes.append((file, point))
    return file_saes


def check_place(file: SaeFile, point: str | None, name: str, checkpoint: tables.Checkpoint | None) -> None:
    """Raise BadInputError unless the hook point is known and exists in the checkpoint with the SAE's width."""
    if not point:
        raise BadInputError(f"{name} does not state its hook point", "give --hook-points blocks.3.hook_resid_post")
    if to_hook_pattern(point) not in PATTERNS or "*" in point:
        raise BadInputError(
            f"{name}: experiments do not read the hook point {clip_text(point)!r}", f"they read {', '.join(PATTERNS)}"
        )
    if checkpoint is None:
        return
    if not get_hook_layer(point, checkpoint.layers) < checkpoint.layers:
        raise BadInputError(f"{name} reads {point}, but the model's layers are 0 to {checkpoint.layers - 1}")
    if file.sae.d_model != checkpoint.d_model:
        raise BadInputError(f"{name} has d_model {file.sae.d_model}, but the model has {checkpoint.d_model}")
