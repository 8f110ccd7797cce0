"""The cost of the store: activations against numpy.save of the same bytes, shuffled reading, fragments.

    python tests/benchmarks/bench_store.py [--megabytes 512] [--rows 1000000] [--json]

Every figure is the best of five, with both sides alternating on one disk; only the ratios matter. The goal for writing
(at least 80 % of numpy.save) holds both sides to the same promise: the bytes are on the disk when the call returns.
Unsynced figures are shown for comparison.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from store import Store
from store.array_writer import ActivationWriter
from store.arrays import ActivationArray
from store.fragments import FragmentWriter, list_pending

D_MODEL = 512
LAYERS = 4
HOOKS = [f"blocks.{layer}.hook_resid_post" for layer in range(LAYERS)]
GOAL = 0.8
JUDGED = "write / numpy.save, synced"


def seconds(
    functions: Mapping[str, Callable[[], object]], after: Callable[[], None] = lambda: None, tries: int = 5
) -> dict[str, float]:
    """The best wall time of each, taking turns so that both sides meet the same load; `after` is not timed."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(tries):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - began)
            after()
    return best


def bench_arrays(root: Path, megabytes: int) -> dict[str, float]:
    """GB/s of writing and reading one group of four layers, and of numpy.save and numpy.load of the same bytes."""
    rows = megabytes * (1 << 20) // (LAYERS * D_MODEL * 2)
    data = {hook: np.random.default_rng(0).integers(0, 1 << 15, (rows, D_MODEL), "u2").view("f2") for hook in HOOKS}
    index = np.arange(rows, dtype=np.int32)
    gigabytes = rows * LAYERS * D_MODEL * 2 / 1e9
    plain = root / "plain"

    def numpy_save(sync: bool) -> None:
        plain.mkdir()
        for hook, values in data.items():
            with open(plain / f"{hook}.npy", "wb") as file:
                np.save(file, values)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())

    def settle() -> None:
        shutil.rmtree(plain, ignore_errors=True)
        shutil.rmtree(root / "store", ignore_errors=True)
        os.sync()

    def write(step: int = 2048) -> Path:  # rows come as a model gives them: a batch of positions, all layers
        with ActivationWriter(Store.create(root / "store"), {"bench": 1}, HOOKS, D_MODEL, "float16", rows) as writer:
            for low in range(0, rows, step):
                part = slice(low, low + step)
                writer.append(
                    {hook: values[part] for hook, values in data.items()}, index[part], index[part], index[part]
                )
            return writer.publish()

    write()
    settle()
    times = seconds({"numpy.save, synced": lambda: numpy_save(True), "store, synced": write}, settle)
    with unsynced():
        times |= seconds({"numpy.save, unsynced": lambda: numpy_save(False), "store, unsynced": write}, settle)
    numpy_save(True)
    array = ActivationArray.open(write())
    times |= seconds(
        {
            "numpy.load": lambda: [np.load(plain / f"{hook}.npy") for hook in HOOKS],
            "store, read all": lambda: [array.read(hook) for hook in HOOKS],
            "store, shuffled batches": lambda: [0 for _ in array.iter_batches(HOOKS, 1024, seed=0)],
            "store, verify": array.verify,
        }
    )
    wanted = np.random.default_rng(1).integers(0, rows, 1000)
    scattered = seconds({"": lambda: array.read(HOOKS[0], wanted)})[""]
    settle()
    return {name: gigabytes / time for name, time in times.items()} | {"ms for 1,000 scattered rows": 1e3 * scattered}


@contextlib.contextmanager
def unsynced() -> Iterator[None]:
    """Both sides write to the page cache only, which measures the writer while the disk keeps up."""
    with mock.patch("os.fsync", return_value=None):
        yield


def bench_fragments(root: Path, rows: int) -> dict[str, float]:
    """Rows a second of game rows with 160 bytes of packed moves: one at a time as a run does, and read for ingest."""
    moves = np.random.default_rng(0).bytes(160)
    store = Store.create(root / "fragments")
    kept = [{"run": "r1", "unit": n, "key": "", "result": "1-0", "plies": 80, "moves": moves, "seed": n * 7,
             "white": "model", "detail": {"legal": n / 3}} for n in range(rows)]  # fmt: skip
    began = time.perf_counter()
    with FragmentWriter(store, "r1", "a1") as writer:
        for row in kept:
            writer.add("game", row)
    written = time.perf_counter() - began
    size = sum(fragment.path.stat().st_size for fragment in list_pending(store))
    began = time.perf_counter()
    count = sum(len(part) for fragment in list_pending(store) for _, part in fragment.read())
    read = time.perf_counter() - began
    assert count == rows
    return {"write rows/s": rows / written, "read rows/s": rows / read, "bytes/row on disk": size / rows}


def bench(megabytes: int = 512, rows: int = 1_000_000, root: Path | None = None) -> dict[str, Any]:
    """All figures, and the two ratios of the goal."""
    with tempfile.TemporaryDirectory(dir=root or Path.cwd(), prefix=".bench-") as folder:
        arrays = bench_arrays(Path(folder), megabytes)
        fragments = bench_fragments(Path(folder), rows)
    ratios = {
        "write / numpy.save, synced": arrays["store, synced"] / arrays["numpy.save, synced"],
        "write / numpy.save, unsynced": arrays["store, unsynced"] / arrays["numpy.save, unsynced"],
    }
    return {"megabytes": megabytes, "arrays GB/s": arrays, "ratios": ratios, "fragments": fragments}


def main() -> int:
    """Print the figures; exit status 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = bench(options.megabytes, options.rows)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        for title in ("arrays GB/s", "fragments"):
            print(title)
            for name, value in result[title].items():
                print(f"  {name:32s} {value:14,.2f}")
        for name, value in result["ratios"].items():
            verdict = f"goal {GOAL:.0%}: {'met' if value >= GOAL else 'MISSED'}" if name == JUDGED else ""
            print(f"{name:34s} {value:6.0%}   {verdict}")
    return 0 if result["ratios"][JUDGED] >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
