"""`chessreg demo`: every command in it works in a new folder, a second time nothing is repeated, and its numbers are
those of golden_demo.json on any machine: counts and moves exactly, accuracies and masses within the differences of
kernels (of old CPUs: no count, masses by 2e-6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from chessreg.games.engines.opponents import find_stockfish
from chessreg.registry import names, tables
from chessreg.registry.database import Database

GOLDEN = json.loads((Path(__file__).parent / "golden_demo.json").read_text())
MATCH = "run play --checkpoint reference --opponent capture --policy legal --opening random:6 --games 3 --move-limit 20"
MATCH += " --adjudication none --threads 1"


def numbers(database: Database) -> dict[str, Any]:
    """Squares read right by the probes, exact masses of every edited state, the moves of a match: of the model of PGN
    characters and its untrained control."""
    with database.read() as sql:
        probes = [names.resolve_id(sql, "run", f"{model}-board") for model in ("reference", "untrained")]
        scored = (
            select(tables.Score.layer, func.sum(tables.Score.n), func.sum(tables.Score.correct))
            .join(tables.Run, tables.Run.id == tables.Score.run_id)
            .where(tables.Score.split == "test", tables.Score.item >= 0, tables.Score.run_id.in_(probes))
            .group_by(tables.Score.run_id, tables.Score.layer)
            .order_by(func.min(tables.Run.created_at), tables.Score.layer)
        )
        trial = tables.Trial
        masses = (
            select(trial.unit, trial.condition, trial.ply, trial.fen, trial.mass_original, trial.mass_modified)
            .where(trial.sample < 0, trial.run_id == names.resolve_id(sql, "run", "edits"))
            .order_by(trial.unit, trial.condition)
        )
        played = (
            select(tables.Game.unit, tables.Game.plies, tables.Game.moves, tables.Game.first_try_legal)
            .join(tables.Run, tables.Run.id == tables.Game.run_id)
            .order_by(tables.Run.created_at.desc(), tables.Game.unit)
            .limit(3)
        )
        return {
            "probes": [list(row) for row in sql.execute(scored)],
            "edits": [list(row) for row in sql.execute(masses)],
            "games": [[unit, plies, moves.hex(), legal] for unit, plies, moves, legal in sql.execute(played)],
        }


def of_squares(database: Database) -> dict[str, dict[str, Any]]:
    """Condition → row of the one position in which the model of UCI squares is edited."""
    trial = tables.Trial
    with database.read() as sql:
        rows = sql.scalars(select(trial).where(trial.run_id == names.resolve_id(sql, "run", "figure-4"))).all()
        return {row.condition: {**row.detail, "original": row.mass_original, "aim": row.mass_modified} for row in rows}


def are_golden(found: dict[str, Any]) -> None:
    assert found["games"] == GOLDEN["games"]
    for (layer, n, correct), golden in zip(found["probes"], GOLDEN["probes"], strict=True):
        assert [layer, n] == golden[:2]
        assert correct / n == pytest.approx(golden[2] / golden[1], abs=0.001)
    for (*state, original, modified), golden in zip(found["edits"], GOLDEN["edits"], strict=True):
        assert state == golden[:4]
        assert [original, modified] == [pytest.approx(mass, abs=1e-4) for mass in golden[4:]]


@pytest.mark.timeout(600)
def test_the_demo_runs_is_not_run_twice_and_says_what_it_said_elsewhere(here):
    try:
        find_stockfish()  # adjudicates games at the move limit
    except Exception as error:
        pytest.skip(str(error))
    assert here("demo", "--size", "small") == 0, here.err
    headings = [line.split()[1] for line in here.out.splitlines() if line.lstrip().startswith("#")]
    assert headings == [*["checkpoint"] * 4, *["row"] * 3]
    assert "* target: e5, d7" in here.out
    assert "8 layer with intervention" in here.out
    assert max(len(line) for line in here.out.splitlines() if not line.startswith("[")) < 150  # footnotes are longer
    with Database.open(here.folder / ".chessreg" / "registry.db") as database, database.read() as session:
        attempts = session.scalar(select(func.count()).select_from(tables.Attempt))
        kinds = set(session.scalars(select(tables.Run.kind).where(tables.Run.completed_at.is_not(None))))
    assert kinds == {"cache", "probe", "edit", "edit-next-token", "vector", "play"}
    assert here("demo", "--size", "small") == 0, here.err
    with Database.open(here.folder / ".chessreg" / "registry.db") as database, database.read() as session:
        assert session.scalar(select(func.count()).select_from(tables.Attempt)) == attempts
    assert here(*MATCH.split()) == 0, here.err
    with Database.open(here.folder / ".chessreg" / "registry.db") as database:
        are_golden(numbers(database))
        squares = of_squares(database)
    assert set(squares) == {"clean", "edit", "random-0", "shuffled-0"}
    assert squares["clean"]["original"] > 0.8
    assert squares["edit"]["edit_norm"] == pytest.approx(squares["random-0"]["edit_norm"], rel=1e-4)
    assert squares["edit"]["aim"] != squares["clean"]["aim"]
