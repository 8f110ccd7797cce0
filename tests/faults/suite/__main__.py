"""Rounds of induced crashes: kill, fill the disk, mend as a user would, count what is wrong.

python tests/faults/suite --rounds 1000            all causes on all backends, spread evenly; a table at the end
python tests/faults/suite --seed 7 --only 123      one round again (its faults are the same; races may differ)

stderr tells how far it is and what is wrong; stdout is the table, or with --json one object a cell. Exit status 1
when anything was lost, doubled, orphaned or in a wrong state.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
import time
from collections import Counter, defaultdict
from typing import Any

from check import COUNTED, whole_home
from homes import BACKENDS, Home, World
from planted import PLANTS
from rounds import PLAYS, Round, play

from chessreg.registry import provenance

ROUNDS_A_HOME = 24  # every cause twice
SAY_SECONDS = 15.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=44)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="play this round alone")
    parser.add_argument("--backend", choices=BACKENDS, action="append")
    parser.add_argument("--cause", choices=PLAYS, action="append")
    parser.add_argument("--plant", choices=PLANTS, help="break chessreg in this way first: the counts must not be 0")
    parser.add_argument("--stop", action="store_true", help="end with the first round in which something is wrong")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Cells:
    """What was counted, by cause and backend."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def add(self, this: Round, seconds: float) -> None:
        cell = self.cells[this.cause, this.home.backend]
        cell.update({"rounds": 1, "struck": int(this.struck), "milliseconds": int(1000 * seconds)})
        cell.update(this.counts.numbers)

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "cause": cause,
                "backend": backend,
                **{name: cell[name] for name in ("rounds", "struck", *COUNTED)},
                "seconds": round(cell["milliseconds"] / 1000 / cell["rounds"], 2),
            }
            for (cause, backend), cell in sorted(self.cells.items())
        ]

    def table(self) -> str:
        rows = self.rows()
        total: dict[str, Any] = {"cause": "all", "backend": ""}
        total |= {name: sum(row[name] for row in rows) for name in ("rounds", "struck", *COUNTED)}
        total["seconds"] = round(sum(row["seconds"] * row["rounds"] for row in rows) / max(total["rounds"], 1), 2)
        lines = [list(total), *([str(value) for value in row.values()] for row in [*rows, total])]
        columns = [(n < 2, max(len(line[n]) for line in lines)) for n in range(len(lines[0]))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if words else cell.rjust(width)
                for cell, (words, width) in zip(line, columns, strict=True)
            )
            for line in lines
        )


def main() -> int:
    asked = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    light()
    backends = tuple(asked.backend or BACKENDS)
    causes = list(asked.cause or PLAYS)
    world, cells = World(backends), Cells()
    homes: dict[str, Home] = {}
    wrong, began, said = 0, time.monotonic(), time.monotonic()
    try:
        numbers = [asked.only] if asked.only is not None else range(asked.rounds)
        for number in numbers:
            backend = backends[number // len(causes) % len(backends)]
            if backend not in homes:
                homes[backend] = world.home(backend)
                if asked.plant:
                    PLANTS[asked.plant](homes[backend])
            home = homes[backend]
            this = Round(number, asked.seed, causes[number % len(causes)], home)
            at = time.monotonic()
            try:
                play(this)
                if home.rounds + 1 == ROUNDS_A_HOME or number + len(backends) * len(causes) > numbers[-1]:
                    whole_home(this)
            except Exception as error:
                this.counts.wrong(f"the round broke: {type(error).__name__}: {error}")
                if home.server:
                    home.server.start()  # whatever the round had done to it
            home.rounds += 1
            if home.rounds == ROUNDS_A_HOME or this.counts.notes:  # after a fault the next round begins clean
                world.remove(homes.pop(backend))
            cells.add(this, time.monotonic() - at)
            for note in this.counts.notes:
                print(f"round {number} ({this.cause}, {backend}): {note}", file=sys.stderr)
            wrong += len(this.counts.notes)
            if wrong and asked.stop:
                break
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                print(f"{number + 1} of {asked.rounds} rounds, {said - began:.0f} s, {wrong} wrong", file=sys.stderr)
    finally:
        world.close()
    print(json.dumps(cells.rows()) if asked.json else cells.table())
    return int(wrong > 0)


def light() -> None:
    """What every attempt records of its code and packages is read once, not a thousand times."""
    code, environment = provenance.code_state(), provenance.environment()
    provenance.code_state = lambda folder=None: code  # type: ignore[assignment]
    provenance.environment = lambda: environment
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
