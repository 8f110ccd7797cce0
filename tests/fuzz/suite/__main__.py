"""Parsers of third-party bytes under changed inputs: each is read or refused in one line, within five seconds and 1 GB.

python tests/fuzz/suite --seconds 600                       every target for ten minutes
python tests/fuzz/suite games sql --seconds 60 --seed 7     two of them
python tests/fuzz/suite games --replay FILE…                the traceback of kept inputs

Failures are in --out, an input and its traceback each; add the input to tests/fuzz/corpus/TARGET when it is fixed. Exit
status 1 when anything failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from engine import fault, fuzz
from targets import TARGETS, World

CORPUS = Path(__file__).resolve().parents[1] / "corpus"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "chessreg-fuzz")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if given.replay:
        return replay(given.targets, given.replay)
    failed = 0
    for name in given.targets or TARGETS:
        count, failures = fuzz(name, given.seconds, given.seed, CORPUS / name, given.out / name)
        lines = given.out / name / "lines"
        reached = lines.read_text() if lines.exists() else "?"
        print(f"{name:18} {count:8,} inputs  {reached:>5} lines  {len(failures)} failures", flush=True)
        for what, where in failures.items():
            print(f"    {what}: {where}", flush=True)
        failed += len(failures)
    return int(bool(failed))


def replay(names: list[str], files: list[Path]) -> int:
    world, failed = World(), 0
    for name in names:
        TARGETS[name].seeds(world)
        for file in files:
            found = fault(name, world, file.read_bytes())
            print(f"{file}: {found[0] if found else 'fine'}")
            print(found[1] if found else "")
            failed += bool(found)
    world.close()
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
