"""`run markov` on a model that does not see the order of moves, and on one that sees nothing else."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from sqlalchemy import select

from chessreg.cli.root import run_command_line
from chessreg.entities.adding import add_dataset
from chessreg.entities.checkpoint import import_checkpoint
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.experiments import markov
from chessreg.experiments.markov import MarkovOptions, MarkovSpec
from chessreg.experiments.markov.classes import find_classes
from chessreg.games.boards.moves import unpack_moves
from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.queries import run_query
from chessreg.queries.ask import query_rows_behind
from chessreg.queries.published import compare_with_published
from chessreg.registry import tables
from chessreg.session import Session, open_session
from tests.quick import quick_first

from .orders import bag_of_tokens, pgn_of_orders

SMALL = {"dataset": "orders", "first_ply": 6, "last_ply": 8, "resamples": 60}
PAST = MarkovOptions(group_classes=7, batch_games=3, threads=1, device="cpu")


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    root: Path = tmp_path_factory.mktemp("markov")
    (root / "orders.pgn").write_text(pgn_of_orders())
    with open_session(str(root / "registry.db"), root / "store") as opened:
        add_dataset(opened.database, opened.store, [root / "orders.pgn"], name="orders")
        for name, written, sees in (("bag", "uci-square-72", False), ("place", "uci-square-72", True),
                                    ("characters", "pgn-char-32", False)):  # fmt: skip
            model = bag_of_tokens(written, sees)
            save_checkpoint(model.network, root / name, CheckpointInfo.from_network(model.network, written))
            import_checkpoint(opened.database, opened.store, root / name, name=name)
        fen = FenEncoder(FenConfig(1, 1, 16, "causal")).make_untrained(0)
        save_checkpoint(fen, root / "fen", CheckpointInfo.from_network(fen, "fen-77"))
        import_checkpoint(opened.database, opened.store, root / "fen", name="fen")
        opened.run(MarkovSpec(checkpoint="bag", **SMALL), PAST, name="bag")
        yield opened


def table(session: Session, run: str):
    return {(row["site"], row["cosine"]): row for row in run_query(session.database, "markov by layer", run=[run]).rows}


def test_a_state_that_does_not_depend_on_the_order_has_the_smallest_p(session):
    rows = table(session, "bag")
    assert set(rows) == {("blocks.*.hook_resid_post", "raw"), ("blocks.*.hook_resid_post", "centred")}
    for row in rows.values():
        assert row["p"] == row["p_holm"] == pytest.approx(1 / 61)
        assert row["within"] > 0.99
        assert row["d"] > 1
        assert row["apart"] == pytest.approx(row["within"], abs=0.01)
        assert row["t_low"] < row["t"] < row["t_high"]
        assert row["null_mean_low"] < 0 < row["null_mean_high"] < row["t"]
        assert row["beyond_last_low"] > 0
        assert row["log10_p_last"] < -5
        assert row["done"] == row["planned"] == row["classes"] + 1


def test_a_state_that_is_the_ply_alone_has_the_smallest_p_too_and_the_controls_tell(session):
    """Why a small p is not proof: move orders to one position mostly have the same number of plies."""
    session.run(MarkovSpec(checkpoint="place", **SMALL), PAST, name="place")
    raw = table(session, "place")["blocks.*.hook_resid_post", "raw"]
    assert raw["within"] == pytest.approx(1)
    assert [raw["same_last"], raw["nearest"]] == pytest.approx([1, 1])
    assert raw["p"] == pytest.approx(1 / 61)
    assert raw["beyond_last"] == pytest.approx(0, abs=1e-6)


def population_by_pairs(session: Session, spec: MarkovSpec) -> tuple[float, float]:
    """Mean and deviation of the cosine over the pairs of the spec's reference population, each state from a separate
    forward pass, phases weighted by their classes."""
    resolved = spec.model_copy(
        update={noun: session.inputs.reference(noun, getattr(spec, noun)) for noun in ("checkpoint", "dataset")}
    )
    games, classes = find_classes(resolved, session.inputs)
    rows = classes.member if classes.reference is None else classes.reference
    model, prefixes = session.model(spec.checkpoint), classes.prefixes
    states = []
    for game, ply in zip(prefixes.game[rows].tolist(), prefixes.ply[rows].tolist(), strict=True):
        [moves] = games.moves([game])
        words = " ".join(move.uci() for move in unpack_moves(moves[: 2 * ply]))
        ids = torch.from_numpy(model.encoding.encode(words).astype(np.int64))[None]
        assert ids.shape[1] == 1 + 2 * ply
        states.append(model.residuals(ids, [0])[0, 0, -1].double().numpy())
    first = second = 0.0
    phases = np.unique(prefixes.phase[rows])
    for phase in phases:
        mine = np.flatnonzero(prefixes.phase[rows] == phase)
        cosines = [float(states[i] @ states[j] / np.sqrt(states[i] @ states[i] * (states[j] @ states[j])))
                   for i, j in combinations(mine, 2)]  # fmt: skip
        weight = len(np.unique(classes.number[mine])) / len(classes)
        first += weight * np.mean(cosines)
        second += weight * np.mean(np.square(cosines))
    return first, np.sqrt(second - first**2)


@pytest.mark.parametrize("reference", quick_first(1, ["members", "same-plies", "prefixes"]))
def test_the_reference_population_is_computed_from_its_pairs_and_leaves_p_alone(session, reference):
    spec = MarkovSpec(checkpoint="bag", **{**SMALL, "classes": 8, "first_ply": 4}, reference_population=reference)
    session.run(spec, PAST, name=f"of-{reference}")
    members = spec.model_copy(update={"reference_population": "members"})
    session.run(members, PAST)
    mean, deviation = population_by_pairs(session, spec)
    value, p, _, detail = statistics(session, session.id("run", f"of-{reference}"))["blocks.0.hook_resid_post raw"]
    assert (detail["population"], detail["population_sd"]) == pytest.approx((mean, deviation), abs=1e-5)
    assert value == pytest.approx(detail["within"] - mean, abs=1e-5)
    assert detail["d"] == pytest.approx((detail["within"] - mean) / deviation, rel=1e-4)
    found = table(session, f"of-{reference}")["blocks.*.hook_resid_post", "raw"]
    assert (found["reference_population"], found["t"]) == (reference, pytest.approx(value))
    of_members = statistics(session, session.run(members, PAST).run_id)["blocks.0.hook_resid_post raw"]
    assert (p, detail["at_least"]) == (of_members[1], of_members[3]["at_least"])
    assert detail["within"] == pytest.approx(of_members[3]["within"], abs=1e-6)
    both = (found["t_members"], found["d_members"])
    assert both == pytest.approx((of_members[0], of_members[3]["d"]), rel=1e-4)
    assert (detail["members_mean"], detail["members_sd"]) == pytest.approx(
        (of_members[3]["population"], of_members[3]["population_sd"]), abs=1e-6
    )
    assert (detail["population"] == of_members[3]["population"]) == (reference == "members")


def test_all_hook_points_and_another_encoding_in_one_run(session):
    points = ("hook_embed", "blocks.*.hook_resid_pre", "blocks.*.hook_resid_post", "ln_final.hook_out")
    settings = {**SMALL, "classes": 6, "partner_controls": False, "replacement": True}
    spec = MarkovSpec(checkpoint="characters", hook_points=points, **settings)
    session.run(spec, PAST, name="characters")
    rows = table(session, "characters")
    assert len(rows) == 8
    assert {row["p_holm"] for row in rows.values()} <= {row["p"] * k for row in rows.values() for k in (1, 2, 3, 4)}
    assert {(row["same_last"], row["nearest"], row["beyond_last"]) for row in rows.values()} == {(None, None, None)}
    embeddings = rows["hook_embed", "raw"]  # the last token is a space or a dot: equal in a phase
    assert embeddings["within"] == pytest.approx(1)
    assert (embeddings["p"], embeddings["d"]) == (1, None)


def statistics(session: Session, run_id):
    with session.database.read() as sql:
        rows = sql.scalars(select(tables.Statistic).where(tables.Statistic.run_id == run_id)).all()
        return {row.name: (row.value, row.p, row.n, row.detail) for row in rows}


def test_an_interrupted_run_goes_on_and_has_what_an_undisturbed_one_has(session, tmp_path, monkeypatch):
    spec = MarkovSpec(checkpoint="bag", seed=5, **SMALL)
    stored, calls = markov.store_states, []

    def dies(*arguments):
        calls.append(arguments[-2:])
        if len(calls) == 2:
            raise RuntimeError("the machine went down")
        stored(*arguments)

    monkeypatch.setattr(markov, "store_states", dies)
    with pytest.raises(RuntimeError, match="went down"):
        session.run(spec, PAST)
    monkeypatch.setattr(markov, "store_states", lambda *arguments: (calls.append(arguments[-2:]), stored(*arguments)))
    done = session.run(spec, PAST)
    assert calls[0] == (0, 7)
    assert calls[1] == calls[2] == (7, 14)
    other = session.run(spec.model_copy(update={"replicate": 1}), MarkovOptions(threads=1, device="cpu"))
    ours, theirs = statistics(session, done.run_id), statistics(session, other.run_id)
    assert ours.keys() == theirs.keys()
    for name, (value, p, n, detail) in ours.items():
        assert theirs[name][:3] == (pytest.approx(value, abs=1e-6), p, n)
        wanted = {key: v if isinstance(v, str) else pytest.approx(v, abs=1e-5) for key, v in detail.items()}
        assert wanted == theirs[name][3]


def test_the_rows_behind_a_cell_are_positions_and_each_draws_its_move_orders(session):
    result = run_query(session.database, "markov by layer", run=["bag"])
    behind = query_rows_behind(session.database, result.entry, result.cells[0], run=["bag"]).rows
    assert len(behind) == result.rows[0]["classes"]
    assert sum(row["members"] for row in behind) == result.rows[0]["sequences"]
    with session.database.read() as sql:
        run = sql.scalars(select(tables.Run).where(tables.Run.kind == "markov")).first()
    row = behind[3]
    views = markov.Markov().board_views({"run_id": row["run_id"], "unit": row["unit"]}, session.inputs)
    assert len(views) == row["members"]
    assert {view.fen for view in views} == {row["position"].split()[0]}
    assert len({view.caption for view in views}) == len(views)
    with pytest.raises(NotFoundError, match="is not a position"):
        markov.Markov().board_views({"run_id": run.id, "unit": 9999}, session.inputs)


def test_the_papers_lost_numbers_stand_beside_ours(session):
    rows = compare_with_published(session.database, run_query(session.database, "markov by layer")).rows
    assert {row["paper"] for row in rows} == {"Davis 2026"}
    lost = [row for row in rows if row["published"] is None]
    assert {row["column"] for row in lost} == {"p", "p after Holm", "T", "d"}
    assert all(row["comparison"] == "not comparable: the paper's number is lost" for row in lost)
    ours = [row for row in rows if row["ours"] is not None]
    assert ours
    for row in ours:
        texts = row["comparison"].removeprefix("not comparable: ").split("; ")
        assert "checkpoint: not the paper's (no tag davis-2026:gpt)" in texts
        assert "equal position, the paper's placement" in texts
        assert "resamples 60, the paper's 1000" in texts
        assert "first_ply " in row["not_stated"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"first_ply": 9, "last_ply": 8}, "^--last-ply 8 is before --first-ply 9$"),
        ({"min_members": 5, "max_members": 4}, "^--max-members 4 is less than --min-members 5$"),
        ({"first_ply": 1, "last_ply": 2}, "no position is reached by 2 move orders within plies 1 to 2"),
        ({"classes": 1}, "no phase has two positions; there are 1 in all"),
        ({"checkpoint": "fen"}, "encodes positions, not games"),
        ({"layers": (4,)}, "the model has no layer 4; its layers are 0 to 0"),
        ({"hook_points": ("blocks.*.nowhere",)}, "no hook point 'blocks"),
        ({"resamples": 0}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_before_anything_is_recorded(session, settings, said, capsys):
    with pytest.raises((BadInputError, ChessregError, ValueError), match=said):
        session.run(MarkovSpec(**{"checkpoint": "bag", **SMALL, **settings}), PAST)
    words = []
    for name, value in {"checkpoint": "bag", **SMALL, **settings}.items():
        words += [f"--{name.replace('_', '-')}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    home = ["--registry", session.database.reference, "--store", str(session.store.root)]
    assert run_command_line([*home, "run", "markov", *words]) != 0
    error = capsys.readouterr().err
    assert len([line for line in error.splitlines() if line.startswith("error")]) == 1
    assert "Traceback" not in error


def test_a_dry_run_says_how_many_positions_there_are(session, capsys):
    home = ["--registry", session.database.reference, "--store", str(session.store.root)]
    words = ["--checkpoint", "bag", "--dataset", "orders", "--last-ply", "8", "--classes", "4", "--dry-run", "--json"]
    assert run_command_line([*home, "run", "markov", *words]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["units"] == 5
