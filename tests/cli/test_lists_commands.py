"""`chessreg runs`, `cache`, `probe`, `vector` and `engine`: runs and their outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import click
import pytest

from chessreg.cli.root import COMMANDS
from chessreg.registry import names, tables
from chessreg.registry.database import Database
from chessreg.registry.identity import hash_canonical_json, make_id, make_uuid
from chessreg.registry.tables.types import get_utc_now

TOY = Path(__file__).resolve().parents[1] / "kinds" / "toy_kind.py"


@pytest.fixture
def database(here: Any) -> Database:
    return Database.open(here.folder / ".chessreg" / "registry.db")


def add_run(session: Any, kind: str, seed: int) -> UUID:
    spec = {"seed": seed}
    spec_hash = hash_canonical_json({"kind": kind, "what": spec})
    session.add(
        tables.Run(
            id=make_uuid(spec_hash), kind=kind, version=1, spec=spec, spec_hash=spec_hash, explicit=["seed"],
            units=2, created_at=get_utc_now(), completed_at=get_utc_now(),
        )
    )  # fmt: skip
    return make_uuid(spec_hash)


def add_artifact(session: Any, kind: str, seed: int) -> str:
    digest = hash_canonical_json([kind, seed])
    session.add(tables.Artifact(digest=digest, kind=kind, bytes=1, state="complete", created_at=get_utc_now()))
    session.flush()
    return digest


def test_runs_are_listed_with_how_far_they_are(here: Any) -> None:
    assert here("run", TOY, "--positions", "3", "--name", "toy-run") == 0, here.err
    (row,) = here.json("runs", "list")
    assert set(tables.Run.__table__.columns.keys()) <= row.keys()
    assert (row["kind"], row["name"], row["state"], row["done"], row["units"]) == ("toy", "toy-run", "complete", 3, 3)
    assert here.json("runs", "list", "--kind", "probe") == []
    assert here("runs", "list") == 0
    assert "toy-run" in here.out


def test_lists_keep_the_newest_rows(here: Any) -> None:
    for number in (1, 2, 3):
        assert here("run", TOY, "--positions", number, "--name", f"toy-{number}") == 0, here.err
    for number in (1, 2):
        path = here.folder / f"{number}.pgn"
        path.write_text('[Result "*"]\n\n' + ["1. e4 e5", "1. d4 d5"][number - 1] + " *\n")
        assert here("dataset", "add", path, "--name", f"games-{number}") == 0, here.err
    assert [row["name"] for row in here.json("runs", "list", "--last", 2)] == ["toy-2", "toy-3"]
    assert [row["name"] for row in here.json("runs", "list", "--last", 2, "--sort", "-units")] == ["toy-3", "toy-2"]
    assert len(here.json("runs", "list", "--last", 0)) == 3
    assert [row["name"] for row in here.json("dataset", "list", "--last", 1)] == ["games-2"]
    assert here("runs", "list", "--last", "-1") == 2


def test_a_run_shows_its_settings_attempts_and_machine(here: Any) -> None:
    assert here("run", TOY, "--positions", "3", "--name", "toy-run") == 0, here.err
    row = here.json("runs", "show", "toy-run")
    assert row["spec"]["positions"] == 3
    assert row["explicit"] == ["positions"]
    assert set(row["defaulted"]) == row["spec"].keys() - {"positions"}
    (attempt,) = row["tries"]
    assert (attempt["state"], attempt["cause"], attempt["units_done"]) == ("finished", "finished", 3)
    assert attempt["host"] == row["host"]
    assert here("runs", "show", "toy-run") == 0
    assert "positions" in here.out
    assert "complete" in here.out.splitlines()[-1]


def test_a_run_that_failed_says_why(here: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken_kind.py"
    broken.write_text(TOY.read_text().replace('name = "toy"', 'name = "broken"').replace("task.emit(", "task.emt("))
    assert here("run", broken, "--positions", "2") == 1
    (row,) = here.json("runs", "list", "--kind", "broken")
    assert (row["state"], row["done"], row["units"], row["attempts"]) == ("failed", 0, 2, 1)
    (attempt,) = here.json("runs", "show", row["id"])["tries"]
    assert attempt["state"] == "failed"
    assert "emt" in attempt["message"]
    assert here("runs", "list") == 0
    assert "failed 0/2" in here.out


def test_words_about_runs(here: Any) -> None:
    here("run", TOY, "--positions", "2")
    short = here.json("runs", "list")[0]["id"][-6:]
    for words in (("name", short, "first"), ("tag", "first", "paper"), ("note", "first", "looks odd")):
        assert here("runs", *words) == 0, here.err
    assert here("runs", "invalidate", "first", "--why", "wrong seed") == 0
    row = here.json("runs", "show", "first")
    assert (row["tags"], row["notes"], row["invalid"]) == (["paper"], ["looks odd"], "wrong seed")
    assert here("unmark", "first") == 0
    assert here.json("runs", "show", "first")["invalid"] is None
    assert here("runs", "archive", "first") == 0
    assert here.json("runs", "list") == []
    assert len(here.json("runs", "list", "--all")) == 1
    assert here("runs", "restore", "first") == 0
    assert len(here.json("runs", "list")) == 1
    assert here("runs", "show", "frist") == 3
    assert "first" in here.err


def test_a_probe_is_listed_with_its_accuracy_over_all_games(here: Any, database: Database) -> None:
    with database.write() as session:
        run_id = add_run(session, "probe", 0)
        names.add_annotation(session, "run", run_id, "name", "board")
        checkpoint = make_id()
        names.add_annotation(session, "checkpoint", checkpoint, "name", "tiny")
        for unit, layer in enumerate((3, 5)):
            session.add(
                tables.ProbeRecord(
                    run_id=run_id, unit=unit, artifact=add_artifact(session, "probe", unit), checkpoint_id=checkpoint,
                    hook_point=f"blocks.{layer}.hook_resid_post", layer=layer, label="piece", positions="dots",
                    classes=13, train_games=20, train_positions=900, epochs=1.0, norm=2.5, detail={},
                )
            )  # fmt: skip
            counts = {"validation": [(64, 32), (128, 64 + 32 * unit)], "test": [(64, 60), (192, 100 + unit)]}
            for split, games in counts.items():
                for item, (n, correct) in enumerate(games):
                    session.add(
                        tables.Score(run_id=run_id, unit=unit, split=split, item=item, attempt_id=run_id, layer=layer,
                                     n=n, correct=correct)
                    )  # fmt: skip
    first, second = here.json("probe", "list")
    assert set(tables.ProbeRecord.__table__.columns.keys()) <= first.keys()
    assert (first["name"], first["checkpoint"], first["layer"]) == ("board", "tiny", 3)
    assert first["test_accuracy"] == pytest.approx(160 / 256)
    assert second["test_accuracy"] == pytest.approx(161 / 256)
    assert second["validation_accuracy"] == pytest.approx(128 / 192)
    assert here.json("probe", "show", "board")["layer"] == 5  # the better one on the validation games
    assert here.json("probe", "show", "board", "--layer", "3")["layer"] == 3
    assert here("probe", "show", "board", "--layer", "4") == 3
    assert "3, 5" in here.err
    assert here.json("probe", "list", "--run", "board") == [{**each, "notes": []} for each in (first, second)]


def test_a_cache_joins_the_groups_of_its_run(here: Any, database: Database) -> None:
    with database.write() as session:
        run_id = add_run(session, "cache", 0)
        names.add_annotation(session, "run", run_id, "name", "acts")
        for start, stop in ((10, 30), (0, 10)):
            session.add(
                tables.ActivationCache(
                    run_id=run_id, start=start, stop=stop, checkpoint_id=run_id, path=f"arrays/{start}",
                    digest=hash_canonical_json(start),
                    hook_points=["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"], rows=100 + start, d_model=16,
                    dtype="float16", bytes=1000,
                )
            )  # fmt: skip
    (row,) = here.json("cache", "list")
    assert (row["name"], row["start"], row["stop"], row["rows"], row["bytes"]) == ("acts", 0, 30, 210, 2000)
    assert [group["path"] for group in here.json("cache", "show", "acts")["groups"]] == ["arrays/0", "arrays/10"]
    assert here("cache", "list") == 0
    assert "blocks.0.hook_resid_post … blocks.1.hook_resid_post (2)" in here.out
    assert here("cache", "show", "other") == 3


def test_vectors_are_chosen_by_layer(here: Any, database: Database) -> None:
    with database.write() as session:
        run_id = add_run(session, "vector", 0)
        names.add_annotation(session, "run", run_id, "name", "skill")
        for unit, layer in enumerate((2, 4)):
            session.add(
                tables.VectorRecord(
                    run_id=run_id, unit=unit, artifact=add_artifact(session, "vector", unit), checkpoint_id=run_id,
                    hook_point=f"blocks.{layer}.hook_resid_post", layer=layer, source="contrastive:skill",
                    positions="dots", norm=1.5, detail={},
                )
            )  # fmt: skip
    assert [row["layer"] for row in here.json("vector", "list")] == [2, 4]
    assert here.json("vector", "show", "skill", "--layer", "4")["unit"] == 1
    assert here("vector", "show", "skill") == 4
    assert here("vector", "show", "skill", "--layer", "3") == 3


def test_the_ladder_says_who_can_play_here(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESSREG_STOCKFISH", "no-such-engine")
    rungs = here.json("engine", "ladder")
    assert [rung["opponent"] for rung in rungs[:2]] == ["random", "capture"]
    assert rungs[-1]["level"] == 20
    for rung in rungs:
        assert rung["available"] is not rung["opponent"].startswith("stockfish")
    assert len({rung["opponent"] for rung in rungs}) == len(rungs) >= 28
    assert "+random=SHARE" in here.err
    assert all(rung["elo"] is None for rung in rungs if rung["level"] in (None, -1))
    assert here.json("engine", "list") == []
    assert "doctor" in here.err


def test_engines_that_played_are_listed_beside_the_one_installed(here: Any, database: Database) -> None:
    with database.write() as session:
        session.add(tables.Engine(id=make_id(), name="Stockfish", version="11", binary_sha256="0" * 64, options={}))
        session.add(tables.Engine(id=make_id(), name="Random mover", version="1", binary_sha256=None, options={}))
    rows = here.json("engine", "list")
    known = {row["name"] + row["version"]: row["here"] for row in rows if row["id"]}
    assert known == {"Random mover1": True, "Stockfish11": False}
    assert all(row["here"] for row in rows if row["id"] is None)


NOUNS = ["cache", "checkpoint", "dataset", "engine", "export", "import", "probe", "runs", "vector"]


@pytest.mark.parametrize("noun", NOUNS)
def test_every_command_has_help_with_an_example_and_json(noun: str) -> None:
    group = COMMANDS[noun].load()
    assert isinstance(group, click.Group)
    said = {"name", "tag", "untag", "note", "star", "unstar", "pin", "unpin", "archive", "restore"}
    said |= {"invalidate", "unmark"}
    for name, command in group.commands.items():
        assert command.help, name
        if name not in said:
            assert "Example: chessreg " in command.help, name
            assert any(parameter.name == "json" for parameter in command.params), name


def test_an_empty_registry_has_empty_lists(here: Any) -> None:
    for noun in ("dataset", "checkpoint", "runs", "cache", "probe", "vector"):
        assert here.json(noun, "list") == []
        assert here(noun, "list") == 0
        assert here.out == ""
