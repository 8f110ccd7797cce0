"""`chessreg import results`, and the tables and boards in which its games appear."""

from __future__ import annotations

import pytest

from chessreg.experiments.imported.file import locate_sample

GAMES, MEANS = locate_sample("sample-results.csv"), locate_sample("sample-aggregates.csv")


def test_an_import_prints_its_report_and_the_same_bytes_are_recognised(here, tmp_path):
    report = here.json("import", "results", GAMES, "--name", "others")
    assert (report["created"], report["kind"], report["name"], report["games"]) == (True, "imported-games", "others", 6)
    assert [(o["code"], o["rows"]) for o in report["oddities"]] == [("not adjudicated", [5])]
    before = here.state()
    copy = tmp_path / "renamed.txt"
    copy.write_bytes(GAMES.read_bytes())
    again = here.json("import", "results", copy)
    assert "these bytes are already run others; nothing was added" in here.err
    assert (again["created"], again["run_id"], again["oddities"]) == (False, report["run_id"], report["oddities"])
    assert here.state() == before
    assert here("import", "results", GAMES) == 0
    assert "results: 1 *, 2 0-1, 2 1-0, 1 1/2-1/2" in here.out
    assert "not adjudicated" in here.out


def test_other_settings_for_the_same_bytes_are_refused(here):
    here.json("import", "results", GAMES, "--name", "others")
    before = here.state()
    assert here("import", "results", GAMES, "--limit", "time=0.5") == 4
    assert "these bytes are already in run others, imported with other settings" in here.err
    assert "hint: chessreg runs archive others" in here.err
    assert here.state()[0] == before[0]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["nothing.csv"], 3, "nothing.csv does not exist"),
        ([GAMES, "--format", "xml"], 3, "format of results 'xml' does not exist"),
        ([GAMES, "--format", "grid-search"], 4, "lacks the columns of the grid-search CSV"),
        ([MEANS, "--limit", "time=1"], 4, "--limit does not apply to a grid-search file"),
        ([GAMES, "--rename", "model"], 4, "--rename 'model' is not OLD=NEW"),
        ([GAMES, "--players", "Nobody"], 4, "player 'Nobody' is not in the file"),
        ([GAMES, "--opening", "book:x.pgn"], 4, "imported games have standard or random openings"),
    ],
)
def test_what_cannot_be_imported_is_said_in_one_line_and_leaves_nothing(here, arguments, status, said):
    before = here.state()[0]
    assert here("import", "results", *arguments) == status
    assert said in here.err
    assert here.err.count("\n") <= 2
    assert here.state()[0] == before


def test_a_file_of_nothing_known_names_what_is_known(here, tmp_path):
    (tmp_path / "notes.txt").write_text("hello\n")
    assert here("import", "results", "notes.txt") == 4
    assert "holds no results in a format that chessreg reads" in here.err
    assert "chess_gpt_eval" in here.err


def test_imported_games_are_listed_drawn_exported_and_rated(here):
    here.json("import", "results", GAMES, "--name", "others")
    [*games] = here.json("game", "list")
    assert len(games) == 6
    shown = here.json("game", "show", "others", "3")
    assert (shown["tries"], shown["first_try_legal"], shown["turns"]) == (None, 7, 8)
    assert here("board", "others:3") == 0, here.err
    assert "sample-model.pt" in here.out
    assert "0-1 by forfeit illegal" in here.out
    assert here("game", "export", "others", "--pgn", "out.pgn") == 0, here.err
    text = (here.folder / "out.pgn").read_text()
    assert text.count('[White "sample-model.pt"]') == 6
    assert here("game", "export", "others", "--pgn", "-") == 0, here.err
    assert here.out == text
    assert here("game", "export", "others", "--pgn", "-", "--json") == 4  # two documents on one stream
    assert here("query", "elo by intervention", "--format", "csv", "--output", "-") == 0, here.err
    assert here.out.startswith("checkpoint,")
    assert here("board", "others:3", "--svg", "-") == 0, here.err
    assert here.out.startswith("<svg")
    assert here("board", "others:3", "--png", "-") == 2
    assert "name a file" in here.err
    assert not (here.folder / "-").exists()
    assert "Stockfish (version unknown), level 0, time=0.1" in text
    [model] = here.json("checkpoint", "list")
    assert (model["name"], model["source_format"], model["artifact"]) == ("sample-model.pt", "external", None)
    assert here("export", "checkpoint", "sample-model.pt", "out") == 4
    assert "its weights are not" in here.err
    rated = here.json("run", "rating", "--runs", "others", "--resamples", "50", "--name", "elo")
    assert rated["state"] == "complete"
    assert here("query", "ratings", "--format", "csv") == 0
    assert here.out.startswith("run,estimator,player,rating,rating_low,rating_high,anchor,games")
    assert here("query", "ratings", "--rows", "1", "--format", "csv") == 0, here.err
    assert "stockfish:1@time=0.1" in here.out


def test_ratings_without_a_known_opponent_say_what_to_give(here):
    here.json("import", "results", GAMES, "--name", "others")
    assert here("run", "rating", "--runs", "others", "--anchors", "none") == 4
    assert "needs opponents of known rating" in here.err
    assert "--anchor NAME=ELO" in here.err
    assert here("run", "rating", "--runs", "others", "--anchor", "nobody=1500") == 3
    assert "player 'nobody' is not in these games" in here.err
    assert here("run", "rating", "--runs", "others", "--estimator", "glicko") == 3
    assert here("run", "rating", "--runs", "others,others") == 4


def test_aggregates_stand_in_a_table_of_their_own(here):
    report = here.json("import", "results", MEANS, "--rename", "sample_8layers=eight")
    assert (report["aggregates"], report["models"]) == (4, {"sample_8layers": 4})
    answer = here.json("query", "imported interventions")
    assert {row["checkpoint"] for row in answer["rows"]} == {"eight"}


@pytest.mark.slow
def test_a_sweep_and_a_log_stand_in_tables_marked_as_imported(here, tmp_path):
    sweep, log = locate_sample("sample-sweep.csv"), locate_sample("sample-training.log")
    assert here("import", "results", sweep) == 4
    assert "give --players NAME, or --checkpoint" in here.err
    given = ("--players", "another", "--color", "white", "--assist", "none", "--limit", "time=0.1", "--name", "sweep")
    report = here.json("import", "results", sweep, *given)
    assert (report["games"], report["results"]) == (30, {"wins": 14, "draws": 3, "losses": 13})
    rows = here.json("query", "wins by level")["rows"]
    assert [(r["opponent"], r["w"], r["d"], r["l"], r["n"]) for r in rows] == [
        ("random", 10, 0, 0, 10),
        ("stockfish:0@time=0.1", 3, 2, 5, 10),
        ("stockfish:1@time=0.1", 1, 1, 8, 10),
    ]
    assert {(r["checkpoint"], r["origin"], r["color"], r["assist"]) for r in rows} == {
        ("another", "imported", "white", "none")
    }
    assert rows[1]["win_low"] < rows[1]["win"] == 30 < rows[1]["win_high"]
    again = here.json("import", "results", sweep, *given)
    assert not again["created"]
    assert here("import", "results", sweep, "--players", "another") == 4
    assert "imported with other settings" in here.err
    assert here("plot", "wins by level", "--out", "wins.svg") == 0, here.err
    assert (here.out, "registry schema" in here.err) == ("wins.svg\n", False)
    assert here("plot", "wins by level", "--out", "wins.svg", "--provenance") == 0, here.err
    assert "registry schema" in here.err
    report = here.json("import", "results", log, "--name", "log")
    assert (report["points"], report["other_lines"], [o["rows"] for o in report["oddities"]]) == (12, 1, [[7]])
    curves = here.json("query", "training curves")["rows"]
    evaluated = [(r["variant"], r["evaluation"], r["value"]) for r in curves if r["metric"] == "heldout_loss"]
    assert evaluated == [(None, 1, 6.031), ("causal", 1, 5.982), ("causal", 2, 5.9911)]
    assert {r["origin"] for r in curves} == {"imported"}
    assert here("plot", "loss curves", "--out", "loss.svg") == 0, here.err
    (tmp_path / "bad.csv").write_text("0,1,2,3\n1,1,1\n")
    before = here.state()[0]
    assert here("import", "results", tmp_path / "bad.csv", "--players", "x") == 4
    assert "line 2: '1,1,1' is not level,wins,draws,losses" in here.err
    assert here.state()[0] == before
