"""A named query over a million games: made through the ingest path, then asked in a new process and again in it.

    python tests/benchmarks/bench_query.py [--games 1000000] [--keep FOLDER] [--json]

Each run ends as `chessreg run` ends it: its rows are written as a Parquet file next to the registry, and its numbers
are stored. Prints bytes per game on disk, the time of the very first answer, of the first answer of a later process
including its start, and of the second answer in it. CPU seconds are compared with a plain DuckDB process that
aggregates the same files. Goals: at most 1 kB a game in SQL and 100 bytes beyond, 1.5 s, 0.2 s, 4 times plain DuckDB.
FOLDER can be one of large_registry.py, which has trials too.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from sqlalchemy import func, select

from chessreg.queries.numbers import store_numbers
from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.registry.identity import hash_canonical_json, make_id, make_uuid
from chessreg.runs.ingest import ingest_fragments
from store import Store
from store.fragments import FragmentWriter

ARMS = 20  # runs: four protocols, each with the plain model and four edits
QUERIES = ("elo by intervention", "games by termination", "legal move mass by edit")
# Plain queries over the same Parquet files: sums and distinct values per arm, without intervals.
PLAIN = {
    "elo by intervention": """SELECT run_id, "match", result, count(*), count(DISTINCT move_hash), sum(first_try_legal),
        sum(turns) FROM read_parquet('{folder}/game-*.parquet') GROUP BY ALL""",
    "games by termination": """SELECT run_id, "match", termination, count(*), avg(plies)
        FROM read_parquet('{folder}/game-*.parquet') GROUP BY ALL""",
    "legal move mass by edit": """SELECT run_id, condition, count(*), count(DISTINCT item), avg(mass_original),
        avg(mass_modified), avg(mass_future), avg(kl), stddev(mass_modified)
        FROM read_parquet('{folder}/trial-*.parquet') GROUP BY ALL""",
}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENDS = ["checkmate", "checkmate", "checkmate", "move_limit", "forfeit_illegal", "threefold"]
SECOND = """
import json, sys, time
from chessreg.queries import run_query
from chessreg.registry.database import Database
with Database.open(sys.argv[1], create=False) as database:
    started = time.perf_counter()
    first = run_query(database, sys.argv[2])
    asked = time.perf_counter()
    second = run_query(database, sys.argv[2])
    done = time.perf_counter()
    assert first.rows == second.rows
    print(json.dumps({"first in process": asked - started, "second": done - asked, "rows": len(first)}))
"""


def fill(database: Database, store: Store, games: int) -> tuple[float, float]:
    """Runs of `games` games in all, as the workers of `run play` leave them; returns the CPU seconds of ingest, and of
    storing the numbers of each run when it ends."""
    with database.write() as session:
        machine, checkpoint, engine = insert_parents(session)
        made = [arm(session, number, games // ARMS, machine, checkpoint, engine) for number in range(ARMS)]
    seconds = stored = 0.0
    for number, (run, attempt) in enumerate(made):
        with FragmentWriter(store, run.id.hex, attempt.id.hex, flush_rows=50_000, flush_bytes=1 << 30) as writer:
            for row in rows(number, run.id, attempt.id, games // ARMS):
                writer.add("game", row)
            writer.add(
                "unit_range", {"run_id": run.id.hex, "start": 0, "stop": run.units, "attempt_id": attempt.id.hex}
            )
        started = time.process_time()
        ingest_fragments(database, store)
        seconds += time.process_time() - started
        started = time.process_time()
        store_numbers(database, run.id)
        stored += time.process_time() - started
    return seconds, stored


def insert_parents(session: Any) -> tuple[UUID, UUID, UUID]:
    """Insert the rows that runs refer to. Return the ids of machine, checkpoint and engine."""
    machine = tables.Machine(
        id=make_id(), host="bench", platform="linux", cpu="x", cores=2, memory_bytes=1, gpus=[], python="3.11",
        last_seen=NOW,
    )  # fmt: skip
    artifact = tables.Artifact(digest="c" * 64, kind="checkpoint", bytes=1, state="complete", created_at=NOW)
    session.add_all([machine, artifact, tables.Tokenizer(name="pgn-char-32", size=1, vocabulary=["a"])])
    session.flush()
    checkpoint = tables.Checkpoint(
        id=make_uuid("c" * 64), artifact="c" * 64, architecture="gpt2", layers=8, d_model=192, heads=6,
        block_size=1023, tokenizer="pgn-char-32", parameters=1, parameters_without_embeddings=1, residual="raw",
        source_format="nanogpt", detail={}, created_at=NOW,
    )  # fmt: skip
    engine = tables.Engine(id=make_id(), name="Stockfish", version="15.1", binary_sha256=None, options={})
    session.add_all([checkpoint, engine])
    session.flush()
    return machine.id, checkpoint.id, engine.id


def arm(session: Any, number: int, games: int, machine: UUID, checkpoint: UUID, engine: UUID) -> tuple[Any, Any]:
    """One run of one arm: its protocol, and for all but every fifth a separate edit."""
    protocol, edit = divmod(number, ARMS // 4)
    spec_hash = hash_canonical_json(["bench", number])
    run = tables.Run(
        id=make_uuid(spec_hash), kind="play", version=1, spec={}, spec_hash=spec_hash, explicit=[], units=games,
        created_at=NOW,
    )  # fmt: skip
    attempt = tables.Attempt(
        id=make_id(), run_id=run.id, machine_id=machine, executor="local", execution_options={}, argv=[], pid=1,
        pid_started=0.5,
        boot_id="b", started_at=NOW, checked_in_at=NOW, next_check_in_seconds=60.0, ended_at=NOW, state="finished",
        cause="finished", chessreg_version="0", code={}, environment={},
    )  # fmt: skip
    intervention = None
    if edit:
        intervention = tables.Intervention(
            id=make_uuid(hash_canonical_json(["bench edit", edit])), checkpoint_id=checkpoint,
            source="contrastive:skill", input_references=["run:x/y"], layers=[3, 4, 5, 6], scale=edit / 10,
            scale_rule="times-mean", token_mask="all", detail={},
        )  # fmt: skip
        intervention = session.merge(intervention)
    session.add(run)
    session.flush()
    session.add(attempt)
    session.flush()
    session.add(
        tables.Match(
            run_id=run.id,
            number=0,
            player="model",
            checkpoint_id=checkpoint,
            intervention_id=intervention.id if intervention else None,
            engine_id=engine,
            opponent=f"stockfish:{protocol}",
            level=protocol,
            limit="nodes=1000",
            color="white",
            opening="random:20",
            opening_seed=0,
            policy="retry:5",
            move_limit=90,
            planned=games,
        )
    )
    session.flush()
    return run, attempt


def rows(number: int, run: UUID, attempt: UUID, games: int) -> Iterator[dict[str, Any]]:
    """Games of 60 to 140 plies with random bytes for moves, none alike."""
    random = np.random.default_rng(number)
    for unit in range(games):
        plies, end = int(random.integers(60, 140)), ENDS[int(random.integers(len(ENDS)))]
        stopped = end == "move_limit"
        result = "*" if stopped else "0-1" if end == "forfeit_illegal" else ("1-0", "0-1", "1/2-1/2")[unit % 3]
        turns = plies // 2
        yield {
            "run_id": run.hex, "unit": unit, "match": 0, "attempt_id": attempt.hex, "opening_number": unit,
            "opening_plies": 20, "plies": plies, "result": result, "termination": end,
            "adjudication_cp": int(random.integers(-500, 500)) if stopped else None, "turns": turns,
            "first_try_legal": turns - int(random.integers(3)), "tries": bytes([1] * turns),
            "moves": random.bytes(2 * plies), "seconds": 1.0, "detail": None,
        }  # fmt: skip


def measured(command: list[str]) -> tuple[float, float]:
    """Seconds and CPU seconds of a command."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - started, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def asked(folder: Path, name: str) -> dict[str, float]:
    """Seconds of the first answer with the start of the process, by the command line, and of a second one."""
    registry = str(folder / "registry.db")
    command = [sys.executable, "-m", "chessreg.cli", "--registry", registry, "query", name, "--format", "csv"]
    times, processor = zip(*(measured(command) for _ in range(3)), strict=True)
    sql = PLAIN[name].format(folder=folder / "registry.results")
    plain = f"import duckdb; duckdb.connect(config={{'threads': 2}}).execute({sql!r}).fetchall()"
    done = subprocess.run([sys.executable, "-c", SECOND, registry, name], check=True, capture_output=True, text=True)
    return {
        "very first": times[0],
        "first, with start-up": min(times),
        "very first, CPU": processor[0],
        "CPU": min(processor),
        "plain DuckDB, CPU": min(measured([sys.executable, "-c", plain])[1] for _ in range(3)),
        **json.loads(done.stdout),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--games", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="use this folder, and the registry in it if there is one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = {}
        if not (folder / "registry.db").exists():
            with Database.open(folder / "registry.db") as database:
                ingested, stored = fill(database, Store.create(folder / "store"), options.games)
                found["ingest, games per CPU s"] = options.games / ingested
                found["end of runs, games per CPU s"] = options.games / stored
        with Database.open(folder / "registry.db", create=False) as database, database.read() as session:
            games, trials = (session.scalar(select(func.count()).select_from(t)) for t in (tables.Game, tables.Trial))
        found["games"], found["trials"] = games, trials
        for name in QUERIES if trials else QUERIES[:-1]:
            found[name] = asked(folder, name)
        parts = {"SQL": "registry.db*", "Parquet": "registry.results/game-*", "fragments": "store/fragments/**/*"}
        found["bytes"] = {
            name: sum(p.stat().st_size for p in folder.glob(pattern) if p.is_file()) for name, pattern in parts.items()
        }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    sizes = ", ".join(f"{size / games:.0f} {name}" for name, size in found["bytes"].items())
    print(f"{games:,} games and {trials:,} trials; bytes per game: {sizes}", end="")
    rates = [f"; {name} {found[name]:,.0f}" for name in found if name.endswith("games per CPU s")]
    print("".join(rates))
    for name in QUERIES if trials else QUERIES[:-1]:
        times = found[name]
        cpu, plain = times["CPU"], times["plain DuckDB, CPU"]
        print(
            f"{name}: very first {times['very first']:.2f} s ({times['very first, CPU']:.2f} CPU s), "
            f"first of a process {times['first, with start-up']:.2f} s (goal 1.5; {cpu:.2f} CPU s, "
            f"{cpu / plain:.1f} times plain DuckDB's {plain:.2f}), second {times['second']:.3f} s (goal 0.2), "
            f"{times['rows']} rows"
        )


if __name__ == "__main__":
    main()
