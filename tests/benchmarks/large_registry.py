"""A registry with millions of games and trials of complete runs, for benchmarks; the rows are made by the database.

    python tests/benchmarks/large_registry.py FOLDER --games 10000000 --trials 50000000   # 20 GB
    python tests/benchmarks/large_registry.py FOLDER --games 0 --trials 50000000 --trials-per-run 100000
    python tests/benchmarks/large_registry.py FOLDER --games 5000000 --url postgresql://…

FOLDER must not exist. Matches and edits have the shape of `run play` and `run edit-next-token`: per protocol the plain
model and four edits; per edit run the clean model, two edits and two random directions in the same states.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from bench_query import ARMS, NOW, arm, insert_parents
from sqlalchemy import text

from chessreg.queries.numbers import store_numbers
from chessreg.registry import tables
from chessreg.registry.database import Database
from chessreg.registry.identity import hash_canonical_json, make_id, make_uuid
from chessreg.runs.kind import load_kinds
from store import Store

CONDITIONS = ("clean", "edit-0", "edit-1", "random-0", "random-1")
STATES_PER_GAME = 10

SERIES = {
    "sqlite": "WITH RECURSIVE units(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM units WHERE n + 1 < {count})",
    "postgresql": "WITH units AS MATERIALIZED (SELECT generate_series(0::bigint, {count} - 1) AS n)",
}
# A different, repeatable number from 0 to modulus - 1 per unit and purpose.
DRAW = "(((n + 1) * 7919 + {seed}) * 104729 + n / 7) % 999983 % {modulus}"
MOVES = {
    "sqlite": "randomblob(2 * ({plies}))",
    "postgresql": "decode(repeat(md5(n::text), (({plies}) / 8)::int), 'hex')",
}
TRIES = {
    "sqlite": "zeroblob(({plies}) / 2)",
    "postgresql": "decode(repeat('00', (({plies}) / 2)::int), 'hex')",
}


def draw(seed: int, modulus: int) -> str:
    return DRAW.format(seed=seed, modulus=modulus)


def insert_games(session: Any, dialect: str, number: int, run: UUID, attempt: UUID, count: int) -> None:
    """Insert games of 60 to 140 plies with different moves."""
    plies = f"60 + {draw(number, 80)}"
    run_text, attempt_text = (id.hex if dialect == "sqlite" else str(id) for id in (run, attempt))
    session.execute(text(f"""
        INSERT INTO game (run_id, unit, match, attempt_id, opening_number, opening_plies, plies, result, termination,
                          adjudication_cp, turns, first_try_legal, tries, moves, move_hash, seconds)
        {SERIES[dialect].format(count=count)}
        SELECT '{run_text}', n, 0, '{attempt_text}', n, 20, {plies},
               CASE WHEN stop THEN '*' WHEN n % 3 = 0 THEN '1-0' WHEN n % 3 = 1 THEN '0-1' ELSE '1/2-1/2' END,
               CASE WHEN stop THEN 'move_limit' WHEN n % 7 = 1 AND n % 3 = 1 THEN 'forfeit_illegal'
                    ELSE 'checkmate' END,
               CASE WHEN stop THEN {draw(number + 2, 1000)} - 500 END, ({plies}) / 2,
               ({plies}) / 2 - {draw(number + 3, 3)}, {TRIES[dialect].format(plies=plies)},
               {MOVES[dialect].format(plies=plies)}, n * 1000003 + {number}, 1.0
        FROM (SELECT n, {draw(number + 1, 6)} = 3 AS stop FROM units) AS drawn
        """.replace(":", "\\:")))  # fmt: skip


def insert_trials(
    session: Any, dialect: str, number: int, run: UUID, attempt: UUID, edits: list[UUID], count: int
) -> None:
    """Insert the trials of one edit run: every condition in every state."""
    run_text, attempt_text, *edit_texts = (id.hex if dialect == "sqlite" else str(id) for id in (run, attempt, *edits))
    for place, condition in enumerate(CONDITIONS):
        edit = f"'{edit_texts[place - 1]}'" if place else "NULL"
        setting = (place - 1) % 2
        mass = f"({draw(number + place, 99991)} + 0.5) / 100000.0"
        detail = (
            f'\'{{"piece": "P", "square": "e4", "half": "report", "mass_future": \' || ({mass} * 0.9) || \''
            + (f', "setting": {setting}, "kl": \' || ({mass} * 2) || \', "edit_norm": 3.25' if place else "")
            + f", \"argmax_kept\": ' || CASE WHEN n % {place + 1} = 0 THEN 'true' ELSE 'false' END || '}}'"
        )
        if dialect == "postgresql":
            detail = f"({detail})::jsonb"
        session.execute(text(f"""
            INSERT INTO trial (run_id, unit, condition, sample, attempt_id, intervention_id, item, ply, text,
                               mass_original, mass_modified, detail)
            {SERIES[dialect].format(count=count // len(CONDITIONS))}
            SELECT '{run_text}', n, '{condition}', -1, '{attempt_text}', {edit}, n / {STATES_PER_GAME},
                   20 + n % {STATES_PER_GAME}, 'e4', {mass}, {mass} / 2, {detail}
            FROM units
            """.replace(":", "\\:")))  # fmt: skip


def fill_registry(database: Database, games: int, trials: int, trials_per_run: int) -> None:
    kinds = load_kinds()
    with database.write() as session:
        machine, checkpoint, engine = insert_parents(session)
        made = [arm(session, number, games // ARMS, machine, checkpoint, engine) for number in range(ARMS)]
        edits = [
            tables.Intervention(
                id=make_uuid(hash_canonical_json(["bench board edit", name])), checkpoint_id=checkpoint,
                source="probe:board" if name < 2 else "random:probe", input_references=["run:x/y"],
                layers=[3 + name % 2], scale=0.5, scale_rule="times-norm", token_mask="last", detail={},
            ) for name in range(4)
        ]  # fmt: skip
        session.add_all(edits)
        session.add_all(
            tables.KindRecord(
                name=kind.name, version=kind.version, source="chessreg", result_tables=list(kind.tables),
                extra_columns=kind.schemas, determinism="exact",
            ) for kind in (kinds["play"], kinds["edit-next-token"])
        )  # fmt: skip
        edit_ids = [edit.id for edit in edits]
    for number, (run, attempt) in enumerate(made if games else []):
        with database.write() as session:
            insert_games(session, database.dialect, number, run.id, attempt.id, games // ARMS)
            complete(session, run.id, attempt.id)
    for number in range(-(-trials // trials_per_run)):
        with database.write() as session:
            count = min(trials, trials_per_run)
            run, attempt = insert_edit_run(session, number, count, machine)
            insert_trials(session, database.dialect, number, run, attempt, edit_ids, count)
            complete(session, run, attempt)


def insert_edit_run(session: Any, number: int, trials: int, machine: UUID) -> tuple[UUID, UUID]:
    spec_hash = hash_canonical_json(["bench edits", number])
    run = tables.Run(
        id=make_uuid(spec_hash), kind="edit-next-token", version=load_kinds()["edit-next-token"].version, spec={},
        spec_hash=spec_hash, explicit=[], units=trials // len(CONDITIONS), created_at=NOW,
    )  # fmt: skip
    session.add(run)
    session.flush()
    attempt = tables.Attempt(
        id=make_id(), run_id=run.id, machine_id=machine, executor="local", execution_options={}, argv=[], pid=1,
        pid_started=0.5, boot_id="b", started_at=NOW, checked_in_at=NOW, next_check_in_seconds=60.0, ended_at=NOW,
        state="finished", cause="finished", chessreg_version="0", code={}, environment={},
    )  # fmt: skip
    session.add(attempt)
    session.flush()
    return run.id, attempt.id


def complete(session: Any, run_id: UUID, attempt_id: UUID) -> None:
    run = session.get_one(tables.Run, run_id)
    session.add(tables.UnitRange(run_id=run_id, start=0, stop=run.units, attempt_id=attempt_id))
    run.completed_at = NOW


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--games", type=int, default=10_000_000)
    parser.add_argument("--trials", type=int, default=50_000_000)
    parser.add_argument("--trials-per-run", type=int, default=1_000_000)
    parser.add_argument("--url", help="PostgreSQL database to fill instead of FOLDER/registry.db")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    started, before = time.perf_counter(), time.process_time()
    with Database.open(options.url or options.folder / "registry.db") as database:
        Store.create(options.folder / "store")
        fill_registry(database, options.games, options.trials, options.trials_per_run)
        print(f"made in {time.perf_counter() - started:.0f} s, {time.process_time() - before:.0f} CPU s")
        started, before = time.perf_counter(), time.process_time()
        store_numbers(database, timeout=3600)
        print(f"numbers stored in {time.perf_counter() - started:.0f} s, {time.process_time() - before:.0f} CPU s")


if __name__ == "__main__":
    main()
