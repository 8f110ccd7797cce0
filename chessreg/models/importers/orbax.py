"""Folders written by orbax: the arrays of a tree of parameters, read with tensorstore and without JAX.

An array is a zarr array named by its path in the tree with dots, `MODULE.PARAMETER`. All arrays are in one OCDBT
database (orbax's default), or each in its own folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chessreg.errors import BadInputError, NotFoundError, get_first_line, reraise_lack_of_memory

DATABASE = "manifest.ocdbt"
ARRAY_FILES = (".zarray", "zarr.json")
DRIVERS = {".zarray": "zarr", "zarr.json": "zarr3"}
PARAMETERS = "params"
AVERAGED_PARAMETERS = "params_ema"  # the exponential moving average of the parameters, next to them


def find_parameters_folder(path: Path) -> Path | None:
    """Return the folder of arrays in `path`: itself, its `params`, or those of its last training step; None without
    arrays."""
    steps = [child for child in path.iterdir() if child.is_dir() and child.name.isdigit()]
    latest_folders = [max(steps, key=lambda child: int(child.name))] if steps else []
    candidates = [path, path / PARAMETERS, *(folder for step in latest_folders for folder in (step / PARAMETERS, step))]
    return next((folder for folder in candidates if has_arrays(folder)), None)


def has_arrays(folder: Path) -> bool:
    """Return whether orbax wrote arrays to this folder."""
    if not folder.is_dir():
        return False
    return (folder / DATABASE).is_file() or any((child / name).is_file() for name in ARRAY_FILES
                                                for child in folder.iterdir() if child.is_dir())  # fmt: skip


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an orbax folder by name, `MODULE/PARAMETER`.

    Raises NotFoundError if tensorstore is not installed, BadInputError for a damaged folder.
    """
    try:
        import tensorstore
    except ImportError as error:
        raise NotFoundError(
            f"{folder.name} is a folder of orbax, which is read with tensorstore, and that is not installed",
            "pip install 'chessreg[orbax]'",
        ) from error
    base = f"file://{folder.resolve()}/"
    store: Any = {"driver": "ocdbt", "base": base} if (folder / DATABASE).is_file() else base
    try:
        keys = [key.decode() for key in tensorstore.KvStore.open(store).result().list().result()]
        arrays = {}
        for key in keys:
            name, _, file = key.rpartition("/")
            if file in DRIVERS and name:
                inner = {**store, "path": f"{name}/"} if isinstance(store, dict) else f"{base}{name}/"
                spec = {"driver": DRIVERS[file], "kvstore": inner}
                module, _, parameter = name.rpartition(".")
                arrays[f"{module}/{parameter}"] = np.asarray(tensorstore.open(spec, read=True).result().read().result())
    except (ValueError, OSError, UnicodeDecodeError) as error:
        reraise_lack_of_memory(error)
        raise BadInputError(f"{folder} is damaged: {get_first_line(error)[:200]}") from error
    return arrays
