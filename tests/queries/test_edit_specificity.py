"""`edit specificity`: effect and damage, controls next to their edit, and the frontier of a sweep."""

from __future__ import annotations

import pytest

from chessreg.queries import run_query
from chessreg.queries.ask import query_plot_rows
from chessreg.queries.catalogue import find_plot
from chessreg.queries.plot import draw_figure
from chessreg.registry import tables

# condition → (setting, source, layers, scale, mass on the modified board, moved)
SWEEP = {
    "edit-0": (0, "probe:piece", (3,), 1.0, 0.5, 0.1),
    "edit-1": (1, "probe:piece", (3,), 2.0, 0.7, 0.2),
    "edit-2": (2, "probe:piece", (3, 4), 1.0, 0.6, 0.3),  # more damage and less effect than edit-1
    "random-1": (1, "random", (3,), 2.0, 0.4, 0.2),
    "wrong-layer-1": (1, "wrong-layer", (7,), 2.0, 0.4, 0.1),
    "encode-decode-1": (1, "encode-decode", (3,), 0.0, 0.4, 0.05),
    "sham-1": (1, "sham", (3,), 0.0, 0.4, 0.0),
}


@pytest.fixture
def sweep(make):
    """An edit run: two games of two states each, every state under every condition; `old` rows lack new columns."""

    def made(old=False, conditions=SWEEP, name="sweep"):
        checkpoint = make.checkpoint("model")
        run = make.run("edit", 4, checkpoint=checkpoint, name=name)
        ids = {c: make.intervention(checkpoint, source, layers, scale).id
               for c, (_, source, layers, scale, *_) in conditions.items()}  # fmt: skip
        rows = []
        for unit in range(4):
            for condition in ("clean", *conditions):
                setting, *_, mass, moved = conditions.get(condition, (None, 0.4, None))
                detail = {"piece": "N", "setting": setting}
                if not old:
                    detail |= {"shared_moved": moved, "shared_kl": moved and 2 * moved, "read_empty": mass,
                               "squares_changed": moved and moved / 2}  # fmt: skip
                rows.append(
                    tables.Trial(
                        run_id=run.id, unit=unit, condition=condition, sample=-1, attempt_id=run.attempt_id,
                        intervention_id=ids.get(condition), item=unit // 2, ply=2 * unit, fen=None, text="Nf3",
                        mass_original=0.9, mass_modified=mass, detail=detail,
                    )
                )  # fmt: skip
        make.add(*rows)
        return run

    return made


def test_each_edit_has_its_controls_beside_it_and_the_frontier_is_told(sweep, database):
    sweep()
    rows = run_query(database, "edit specificity").rows
    shown = [(row["condition"], row["layers"], row["scale"], row["effect"], row["moved"], row["frontier"])
             for row in rows]  # fmt: skip
    assert shown == [
        ("edit", "3", 1.0, 50.0, 10.0, True),
        ("edit", "3", 2.0, 70.0, 20.0, True),
        ("random", "3", 2.0, 40.0, 20.0, None),
        ("wrong-layer", "3", 2.0, 40.0, 10.0, None),
        ("sham", "3", 2.0, 40.0, 0.0, None),
        ("encode-decode", "3", 2.0, 40.0, 5.0, None),
        ("edit", "3-4", 1.0, 60.0, 30.0, False),
    ]
    best = rows[1]
    assert (best["gain"], best["kl"], best["squares_changed"]) == pytest.approx((30.0, 0.4, 10.0))
    assert (best["states"], best["games"], best["measured"], best["edits_tried"]) == (4, 2, 4, 3)


def test_rows_of_earlier_runs_are_missing_and_not_zero(sweep, database):
    sweep(old=True)
    rows = run_query(database, "edit specificity").rows
    assert len(rows) == len(SWEEP)
    for row in rows:
        assert row["effect"] is not None
        assert (row["measured"], row["moved"], row["kl"], row["squares_changed"]) == (0, None, None, None)
        assert (row["moved_low"], row["moved_high"], row["read_empty"], row["frontier"]) == (None, None, None, None)


def test_a_single_edit_of_an_earlier_run_has_no_number_of_its_setting(sweep, database):
    sweep(
        conditions={
            "edit": (None, "probe:piece", (3,), 1.0, 0.5, 0.1),
            "random-0": (None, "random", (3,), 1.0, 0.4, 0.2),
        }
    )
    rows = run_query(database, "edit specificity").rows
    assert [(row["condition"], row["scale"], row["edits_tried"]) for row in rows] == [
        ("edit", 1.0, 1),
        ("random", 1.0, 1),
    ]


def test_it_is_plotted_as_effect_over_damage_and_the_frontier_alone(sweep, database):
    sweep()
    for title, whole in (("edit specificity", True), ("frontier of edits", False)):
        entry, plot = find_plot(title)
        shown = query_plot_rows(database, entry, plot)
        [axis] = draw_figure(shown, plot).axes
        drawn = sorted(tuple(xy) for line in axis.get_lines() for xy in line.get_xydata().tolist() if len(xy) == 2)
        assert {(10.0, 50.0), (20.0, 70.0)} <= set(drawn)
        assert ((30.0, 60.0) in drawn) == whole


@pytest.mark.slow
def test_where_every_state_was_skipped_it_says_why_and_what_to_try(make, database):
    skipped = {"illegal": 3, "king": 1}
    run = make.run("edit", 4, checkpoint=make.checkpoint("model"), name="silent")
    reasons = [reason for reason, states in skipped.items() for _ in range(states)]
    make.add(
        *(
            tables.Trial(
                run_id=run.id, unit=unit, condition="skipped", sample=-1, attempt_id=run.attempt_id, item=unit, ply=4,
                fen="position", text="?", detail={"skipped": reason},
            )
            for unit, reason in enumerate(reasons)
        )
    )  # fmt: skip
    said = (
        "every state of run silent was skipped: 3 because the model's most probable move is illegal, "
        "1 because the king is about to move; try a --checkpoint that plays legal moves or --king include"
    )
    for title in ("edit specificity", "board intervention legality", "best board edit"):
        assert run_query(database, title).notes[0] == said
    assert "skipped" not in run_query(database, "legal move mass by edit").notes[0]  # of runs that read the next token


def test_where_some_states_were_skipped_their_table_is_not_said_to_be_empty_for_it(sweep, make, database):
    run = sweep()
    make.add(
        tables.Trial(
            run_id=run.id, unit=4, condition="skipped", sample=-1, attempt_id=run.attempt_id, item=3, ply=4,
            fen="position", text="?", detail={"skipped": "king"},
        )
    )  # fmt: skip
    [note] = run_query(database, "edit specificity", where="states > 100").notes
    assert note.startswith("nothing fits this scope")
