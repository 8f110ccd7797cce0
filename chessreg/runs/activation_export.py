"""Cached activations in the formats of other programs: a Hugging Face dataset, or safetensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chessreg.errors import NotFoundError
from chessreg.folders import write_new_folder
from chessreg.runs.activations import CachedActivations, summarize_hook_points

if TYPE_CHECKING:
    from chessreg.runs.inputs import Inputs
    from store.arrays import ActivationArray

ExportFormat = Literal["datasets", "safetensors"]
SHARD_BYTES = 500 << 20  # of one file
PIECE_BYTES = 32 << 20  # read and written at once
INDEX_COLUMNS = ("game", "token", "ply")


def export_activations(
    cache: CachedActivations,
    folder: Path,
    format: ExportFormat,
    hook_points: Sequence[str] = (),
    facts: dict[str, Any] | None = None,
    on_progress: Callable[[float, str], None] = lambda fraction, text: None,
) -> Path:
    """Write the rows of a cache as a new folder, in their stored order, and return the folder.

    `datasets`: a folder for `datasets.load_from_disk`, with one row per token position. It has the columns `game`,
    `token` and `ply` (int32), and one [1, d_model] per hook point. SAELens trains on it with `context_size=1`.
    `safetensors`: files of the arrays `game`, `token` and `ply` [rows], and one array [rows, d_model] per hook point.
    bfloat16 becomes float32 in a dataset, because Arrow lacks it.

    `hook_points`: those to write, by default all. `facts` are stored with the data. Raises NotFoundError for a hook
    point that is not cached and for a missing parent folder, BadInputError if the folder exists, and StoreError.
    """
    array = cache.array
    cached_points = list(cache.groups[0].hook_points)
    if missing_points := [name for name in hook_points if name not in cached_points]:
        raise NotFoundError(
            f"the cache holds no {missing_points[0]}", f"it holds {summarize_hook_points(cached_points)}"
        )
    points = list(hook_points) or cached_points
    write = write_dataset if format == "datasets" else write_safetensors
    with write_new_folder(folder, "export the activations") as staging:
        write(array, staging, points, facts or {}, on_progress)
    return folder


def list_row_ranges(array: ActivationArray, points: Sequence[str], item_bytes: int) -> list[tuple[int, int]]:
    """Return the first row of each file and the row after its last, for values of `item_bytes` bytes."""
    rows = max(SHARD_BYTES // (len(points) * array.d_model * item_bytes), 1)
    return [(low, min(low + rows, array.rows)) for low in range(0, max(array.rows, 1), rows)]


def iterate_pieces(low: int, high: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of rows [low, high) that are read at once."""
    step = max(PIECE_BYTES // row_bytes, 1)
    for first in range(low, high, step):
        yield first, min(first + step, high)


def write_dataset(
    array: ActivationArray,
    folder: Path,
    points: Sequence[str],
    facts: dict[str, Any],
    on_progress: Callable[[float, str], None],
) -> None:
    """Write the folder that `datasets.load_from_disk` reads: Arrow streams, dataset_info.json and state.json.

    `points` are the hook points, and `facts` the description of the activations in dataset_info.json.
    """
    import pyarrow as pa
    from datasets import Array2D, DatasetInfo, Features, Value

    from store.array_format import decode_float32

    dtype = "float16" if array.dtype == "float16" else "float32"
    columns: dict[str, Any] = {name: Value("int32") for name in INDEX_COLUMNS}
    columns |= {name: Array2D((1, array.d_model), dtype) for name in points}
    features = Features(columns)
    schema = features.arrow_schema
    shards = list_row_ranges(array, points, np.dtype(dtype).itemsize)
    names = [f"data-{number:05d}-of-{len(shards):05d}.arrow" for number in range(len(shards))]
    for name, (low, high) in zip(names, shards, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            for first, last in iterate_pieces(low, high, 4 * array.d_model * len(points)):
                arrays = [pa.array(getattr(array, column)[first:last], pa.int32()) for column in INDEX_COLUMNS]
                for point in points:
                    stored_values = array.read(point, slice(first, last))
                    values = stored_values if dtype == "float16" else decode_float32(stored_values, array.dtype)
                    arrays.append(build_matrices(values, schema.field(point).type))
                stream.write_batch(pa.record_batch(arrays, schema=schema))
                on_progress(last / array.rows, "writing activations")
    DatasetInfo(description=json.dumps(facts, sort_keys=True), features=features).write_to_directory(str(folder))
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": facts.get("fingerprint", ""),
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")


def build_matrices(values: np.ndarray, type: Any) -> Any:
    """Return values [rows, d_model] as an Arrow array of matrices [1, d_model] of an extension type."""
    import pyarrow as pa

    rows, width = values.shape
    flat = pa.array(values.reshape(-1))
    inner = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * width), flat)
    outer = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32)), inner)
    return pa.ExtensionArray.from_storage(type, outer)


def write_safetensors(
    array: ActivationArray,
    folder: Path,
    points: Sequence[str],
    facts: dict[str, Any],
    on_progress: Callable[[float, str], None],
) -> None:
    """Write the hook points `points` as files of safetensors in the stored type, and `facts` as facts.json."""
    import torch
    from safetensors.torch import save_file

    shards = list_row_ranges(array, points, 4 if array.dtype == "float32" else 2)
    for number, (low, high) in enumerate(shards):
        tensors = {column: torch.from_numpy(getattr(array, column)[low:high].copy()) for column in INDEX_COLUMNS}
        for point in points:
            values = torch.from_numpy(array.read(point, slice(low, high)))
            tensors[point] = values.view(torch.bfloat16) if array.dtype == "bfloat16" else values
        save_file(
            tensors,
            folder / f"activations-{number:05d}-of-{len(shards):05d}.safetensors",
            metadata={"facts": json.dumps(facts, sort_keys=True)},
        )
        on_progress(high / max(array.rows, 1), "writing activations")


def describe_cache(inputs: Inputs, cache: CachedActivations) -> dict[str, Any]:
    """Return the facts about a cache that an export records: model, dataset, token positions, run."""
    from chessreg.registry import names

    with inputs.database.read() as session:
        model = names.read_name(session, "checkpoint", cache.checkpoint_id) or cache.checkpoint_id.hex[-6:]
        run = names.read_name(session, "run", cache.run.id) or cache.run.id.hex[-6:]
    return {
        "run": run,
        "run_id": cache.run.id.hex,
        "checkpoint": model,
        "checkpoint_reference": cache.checkpoint,
        "dataset_reference": cache.dataset,
        "sites": cache.sites,
        "alignment": cache.alignment,
        "residual": "centred" if cache.centred else "raw",
        "d_model": cache.array.d_model,
        "dtype": cache.array.dtype,
        "rows": cache.array.rows,
        "fingerprint": cache.run.id.hex[:16],
    }
