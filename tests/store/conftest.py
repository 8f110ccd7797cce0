"""A separate store for every test, and activations to store in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store import Store
from store.array_writer import ActivationWriter

HOOKS = ("blocks.0.hook_resid_post", "blocks.1.hook_resid_post")
D_MODEL = 16


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def random_bits(rows: int, dtype: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Random bits of the stored type for each hook point: NaNs, infinities and denormals are among them."""
    generator = np.random.default_rng(seed)
    size = 4 if dtype == "float32" else 2
    kind = {"float16": "<f2", "bfloat16": "<u2", "float32": "<f4"}[dtype]
    return {hook: np.frombuffer(generator.bytes(rows * D_MODEL * size), kind).reshape(rows, D_MODEL) for hook in HOOKS}


@pytest.fixture
def activations() -> Callable[..., dict[str, np.ndarray]]:
    """`activations(rows, dtype, seed)`: see random_bits."""
    return random_bits


@pytest.fixture
def write(store: Store) -> Callable[..., tuple[Path, dict[str, np.ndarray]]]:
    """Write and publish one group with 64 rows per chunk; returns its folder and the written values."""

    def make(
        rows: int = 300, dtype: str = "float16", units: tuple[int, int] = (0, 10), seed: int = 0, **options: Any
    ) -> tuple[Path, dict[str, np.ndarray]]:
        data = options.pop("data", None) or random_bits(rows, dtype, seed)
        spec = options.pop("spec", {"kind": "cache", "dtype": dtype})
        step = options.pop("step", 37)
        size = 4 if dtype == "float32" else 2
        with ActivationWriter(
            store, spec, HOOKS, D_MODEL, dtype, rows, units=units, chunk_bytes=64 * D_MODEL * size
        ) as writer:
            for low in range(0, rows, step):
                index = np.arange(low, min(low + step, rows))
                part = {hook: values[low : low + step] for hook, values in data.items()}
                writer.append(part, units[0] + index // 50, index % 50, index % 7)
            return writer.publish(), data

    return make
