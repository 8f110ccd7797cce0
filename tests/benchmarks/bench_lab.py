"""The lab: how long its process takes for an answer, clean and edited side by side, as moves, layers and scales change.

    python tests/benchmarks/bench_lab.py [--home .chessreg] [--checkpoint reference] [--json]

`--home` is a project with a probe of this checkpoint, such as `make demo` leaves. Prints the first answer (the process
starts, torch and the model are read), then those to new moves and to new scales. Goal: 300 ms for all but the first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from chessreg.lab.question import list_checkpoint_choices
from chessreg.registry.database import Database

LINE = "e4 e5 Nf3 Nc6 Bb5 a6 Ba4 Nf6 O-O Be7 Re1 b5 Bb3 d6 c3 O-O h3 Na5 Bc2 c5 d4 Qc7 Nbd2 cxd4 cxd4 Nc6 Nb3 a5"
SCALES = (0.5, 1.5, 3.0, 12.0, 50.0)


def seconds(process: subprocess.Popen[str], position: dict[str, Any]) -> float:
    """How long one answer takes, from the question's line to the answer's."""
    assert process.stdin is not None
    assert process.stdout is not None
    began = time.perf_counter()
    process.stdin.write(json.dumps({"id": 1, "position": position}) + "\n")
    process.stdin.flush()
    said = json.loads(process.stdout.readline())
    assert "answer" in said, said
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--home", type=Path, default=Path(".chessreg"))
    parser.add_argument("--checkpoint", default="reference")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    registry, store = options.home / "registry.db", options.home / "store"
    if not registry.exists():
        print(f"skipped: no registry in {options.home}, name one with --home (make demo leaves one)")
        return
    with Database.open(registry, create=False) as database, database.read() as session:
        tools = [
            tool
            for choice in list_checkpoint_choices(session)
            if choice.name == options.checkpoint
            for tool in choice.tools
        ]
    probe = next((tool.run_id.hex for tool in tools if tool.kind == "probe"), None)
    if probe is None:
        print(f"skipped: no probe of {options.checkpoint} in {options.home}")
        return
    command = [sys.executable, "-m", "chessreg.lab.worker", str(store)]
    environment = {**os.environ, "CHESSREG_REGISTRY": str(registry)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        asked = {"checkpoint": options.checkpoint, "probe": probe}
        first = seconds(process, {**asked, "moves": "e4 e5"})
        sans = LINE.split()
        moves = [seconds(process, {**asked, "moves": " ".join(sans[:n])}) for n in range(3, len(sans) + 1)]
        scales = [seconds(process, {**asked, "moves": LINE, "scale": scale}) for scale in SCALES]
    found = {
        "first": first,
        "moves, median": float(np.median(moves)), "moves, longest": max(moves),
        "scales, median": float(np.median(scales)), "scales, longest": max(scales),
    }  # fmt: skip
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"first answer {first:.2f} s, with the start of the process")
    for what in ("moves", "scales"):
        median, longest = found[f"{what}, median"], found[f"{what}, longest"]
        print(f"other {what}: median {1000 * median:.0f} ms, longest {1000 * longest:.0f} ms (goal 300)")


if __name__ == "__main__":
    main()
