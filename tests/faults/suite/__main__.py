"""Rounds of induced crashes: kill, fill the disk, repair as a user would, and count faults.

python tests/faults/suite --rounds 2000            all causes on all backends, spread evenly; a table at the end
python tests/faults/suite --rounds 2000 --only 123 one round again (its faults are the same; races may differ)
python tests/faults/suite --rounds 2000 --first 900  the rest of rounds that were stopped after the 900th

stderr reports progress and faults; stdout is the table, or with --json one object per cell. Exit status 1 when anything
was lost, doubled, orphaned or in a wrong state.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import json
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors import Actor, act
from check import COUNTED, at_the_end, whole_home
from homes import BACKENDS, Home, World
from planted import PLANTS
from rounds import CELLS, LEDGER, PLAYS, QUICK, Round, last_line, launch, mend, play, run_it
from sqlalchemy import Engine
from subjects import SUBJECTS, build, facts

from chessreg.registry import provenance
from chessreg.registry.tables.types import get_utc_now

ROUNDS_A_HOME = 24
KINDS = [LEDGER, *SUBJECTS]
STRIDE = 29  # coprime to the number of cells: consecutive rounds differ in cause and kind
SAY_SECONDS = 15.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=44)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="play this round alone")
    parser.add_argument("--first", type=int, default=0, help="skip the rounds before this one: resume after a stop")
    parser.add_argument("--backend", choices=BACKENDS, action="append")
    parser.add_argument("--cause", choices=dict(CELLS), action="append")
    parser.add_argument("--kind", choices=KINDS, action="append", help="what is at work")
    parser.add_argument("--quick", action="store_true", help="only what takes little time is at work")
    parser.add_argument("--stopped-for", type=float, default=0.2, help="seconds that SIGSTOP lasts")
    parser.add_argument("--plant", choices=PLANTS, help="break chessreg in this way first: the counts must not be 0")
    parser.add_argument("--stop", action="store_true", help="end with the first round in which something is wrong")
    parser.add_argument("--debug", action="store_true", help="show where a round broke")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Cells:
    """The counts by cause, backend and kind."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)

    def add(self, this: Round, seconds: float) -> None:
        cell = self.cells[this.cause, this.home.backend, this.subject]
        cell.update({"rounds": 1, "struck": int(this.struck), "milliseconds": int(1000 * seconds)})
        cell.update(this.counts.numbers)

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "cause": cause,
                "backend": backend,
                "kind": kind,
                **{name: cell[name] for name in ("rounds", "struck", *COUNTED)},
                "seconds": round(cell["milliseconds"] / 1000 / cell["rounds"], 2),
            }
            for (cause, backend, kind), cell in sorted(self.cells.items())
        ]

    def table(self) -> str:
        rows = self.rows()
        total: dict[str, Any] = {"cause": "all", "backend": "", "kind": ""}
        total |= {name: sum(row[name] for row in rows) for name in ("rounds", "struck", *COUNTED)}
        total["seconds"] = round(sum(row["seconds"] * row["rounds"] for row in rows) / max(total["rounds"], 1), 2)
        lines = [list(total), *([str(value) for value in row.values()] for row in [*rows, total])]
        columns = [(n < 3, max(len(line[n]) for line in lines)) for n in range(len(lines[0]))]
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
    kinds = asked.kind or (QUICK if asked.quick else KINDS)
    chosen = [(cause, kind) for cause, kind in CELLS if cause in (asked.cause or [cause]) and kind in kinds]
    world, cells = World(backends), Cells()
    for backend in backends:
        warm(world, backend)
    worlds = Worlds(world)
    homes: dict[str, Home] = {}
    wrong, began, said = 0, time.monotonic(), time.monotonic()
    try:
        if asked.plant:  # the reference is from chessreg as it is
            for backend, (cause, kind) in itertools.product(backends, chosen):
                if cause not in PLAYS:
                    worlds.expected(backend, kind)
        order = [chosen[number // len(backends) * STRIDE % len(chosen)] for number in range(asked.rounds)]
        if asked.quick:  # a fork is cheaper before torch is imported
            order.sort(key=lambda cell: cell[0] not in PLAYS)
        for number, (cause, kind) in enumerate(order):
            if asked.only not in (None, number) or number < asked.first:
                continue
            backend = backends[number % len(backends)]
            at = time.monotonic()
            if plain := cause in PLAYS:
                if backend not in homes:
                    homes[backend] = world.home(backend)
                    if asked.plant:
                        PLANTS[asked.plant](homes[backend])
                home, (expected, moments) = homes[backend], ({}, 0)
            else:
                home, (expected, moments) = worlds.copy(backend), worlds.expected(backend, kind)
                if asked.plant:
                    PLANTS[asked.plant](home)
            this = Round(number, asked.seed, cause, kind, home, expected, moments, stopped_for=asked.stopped_for)
            try:
                play(this)
                if not plain or home.rounds % 8 == 7:
                    whole_home(this)
            except Exception as error:
                this.counts.wrong(f"the round broke: {type(error).__name__}: {error}")
                if asked.debug:
                    traceback.print_exc()
                if home.server:
                    home.server.start()  # after any round
            home.rounds += 1
            if not plain:
                world.remove(home)
            elif (
                home.rounds == ROUNDS_A_HOME or this.spoiled or this.counts.notes
            ):  # after a fault the next round begins clean
                world.remove(homes.pop(backend))
            cells.add(this, time.monotonic() - at)
            for note in this.counts.notes:
                print(f"round {number} ({cause}, {backend}, {kind}): {note}", file=sys.stderr)
            wrong += len(this.counts.notes)
            if wrong and asked.stop:
                break
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                print(f"{number + 1} of {asked.rounds} rounds, {said - began:.0f} s, {wrong} wrong", file=sys.stderr)
    finally:  # also when it is asked to end
        print(json.dumps(cells.rows()) if asked.json else cells.table(), flush=True)
        world.close()
    return int(wrong > 0)


class Worlds:
    """The world in which subjects work, and the result of each without a fault; made when needed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.made: dict[str, Home] = {}
        self.known: dict[tuple[str, str], tuple[dict[str, list[str]], int]] = {}

    def copy(self, backend: str) -> Home:
        if backend not in self.made:
            built = self.world.home(backend)
            imported_by(lambda: build(built), built)
            self.made[backend] = self.world.copy(built)
            self.world.remove(built)
        return self.world.copy(self.made[backend])

    def expected(self, backend: str, kind: str) -> tuple[dict[str, list[str]], int]:
        """The facts, and how many moments the work has."""
        if (backend, kind) not in self.known:
            home = self.copy(backend)
            SUBJECTS[kind].prepare(home)
            moments = imported_by(lambda: SUBJECTS[kind].work(home), home)
            self.known[backend, kind] = facts(home), moments
            self.world.remove(home)
        return self.known[backend, kind]


def finished(actor: Actor, said: Path) -> int:
    if actor.wait():
        raise RuntimeError(f"what nothing had struck did not finish: {last_line(said)}")
    return actor.moments.passed


def imported_by(work: Callable[[], object], home: Home) -> int:
    """Run this in an actor, and import its modules here, so that no later fork has to; returns its moments."""
    names = home.folder / "imported"

    def noted() -> None:
        work()
        names.write_text("\n".join(sys.modules))

    moments = finished(act(noted, home.said), home.said)
    for name in names.read_text().split():
        if name not in sys.modules:
            with suppress(Exception):
                importlib.import_module(name)
    names.unlink()
    gc.freeze()
    return moments


def warm(world: World, backend: str) -> None:
    """Do the shared work of every fork once here: its modules are imported, and its SQL is compiled."""
    home = world.home(backend)
    with home.open() as session, session.database.write() as sql:
        sql.connection()
        dialect, compiled = session.database._writer.dialect, session.database._writer._compiled_cache
    begin = Engine.__init__

    def share(self: Any, pool: Any, own: Any, *given: Any, **named: Any) -> None:
        begin(self, pool, dialect if own.name == dialect.name else own, *given, **named)
        if own.name == dialect.name:
            self._compiled_cache = compiled

    Engine.__init__ = share  # type: ignore[method-assign]
    this = Round(-1, 0, "run SIGKILL", LEDGER, home)
    run_it(this)
    mend(home)
    launch(replace(this, number=-2))
    this.recovery = get_utc_now()
    at_the_end(this)
    facts(home)
    world.remove(home)
    gc.freeze()


def light() -> None:
    """The recorded code and packages of attempts are read once, not a thousand times."""
    code, environment = provenance.read_code_state(), provenance.read_packages()
    provenance.read_code_state = lambda folder=None: code  # type: ignore[assignment]
    provenance.read_packages = lambda: environment
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
