"""`edit`: the record of each state follows the definition, for any batch size."""

from __future__ import annotations

import shutil
from collections import defaultdict
from types import SimpleNamespace
from uuid import UUID

import chess
import numpy as np
import pytest
import torch
from sqlalchemy import select

from chessreg.encodings import get_encoding
from chessreg.entities.checkpoint import import_checkpoint
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.experiments.cache import CacheOptions, CacheSpec
from chessreg.experiments.edit import BoardEdit, heat
from chessreg.experiments.edit.editor import Editor, compute_divergences
from chessreg.experiments.edit.model import PieceRemovals
from chessreg.experiments.edit.spec import EditOptions, EditSpec
from chessreg.experiments.edit.states import State, build_states, explain_skip, remove_moving_piece
from chessreg.experiments.probe import ProbeOptions, ProbeSpec
from chessreg.experiments.settings.games import select_games as select_games
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.models.decoding.legal import score_answers
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.edits import ResidualEdit
from chessreg.registry import tables
from chessreg.runs.fitted import load_probe
from chessreg.session import open_session
from chessreg.steering.conditions import EditCondition, EditSetting
from chessreg.steering.scale_rules import SCALE_RULES


@pytest.fixture(scope="module")
def bigram_board(world, bigram, tmp_path_factory):
    """The bigram model with its cache and its probe, in the world of this file."""
    model, folder = bigram(likes=".Nc3 "), tmp_path_factory.mktemp("bigram") / "bigram"
    save_checkpoint(model.network, folder, CheckpointInfo.from_network(model.network, "pgn-char-32"))
    with open_session(str(world / "registry.db"), world / "store") as session:
        import_checkpoint(session.database, session.store, folder, name="bigram")
        fit = CacheSpec(checkpoint="bigram", dataset="sample:fit", max_sites=10)
        session.run(fit, CacheOptions(threads=1), name="bigram-fit")
        session.run(ProbeSpec(cache="bigram-fit", epochs=1), ProbeOptions(threads=1), name="bigram-board")


@pytest.fixture
def edited(bigram_board, world_session):
    """Edits of the bigram model on the world's games: the spec's recipes resolved, and its rows by state."""
    session = world_session

    def run(how=None, **settings):
        spec = EditSpec(
            **{"checkpoint": "bigram", "probe": "bigram-board", "dataset": "sample:test", "games": 6, "per_game": 4}
            | {"spellings": False}
            | settings
        )
        report = session.run(spec, how or EditOptions(threads=1))
        by_unit = defaultdict(dict)
        with session.database.read() as sql:
            stored = EditSpec(**sql.get_one(tables.Run, report.run_id).spec)
            for row in sql.scalars(select(tables.Trial).where(tables.Trial.run_id == report.run_id)):
                by_unit[row.unit][row.condition, row.sample] = row
            sql.expunge_all()
        return stored, by_unit

    return run


def test_a_run_alone_means_its_first_edited_state(edited, world_session):
    from chessreg.entities.boards import read_board_views, resolve_unit

    _, by_unit = edited(random_controls=0, samples=0)
    [run_id] = {row.run_id for rows in by_unit.values() for row in rows.values()}
    skipped, first = (
        min(unit for unit, rows in by_unit.items() if (("skipped", -1) in rows) == is_skipped)
        for is_skipped in (True, False)
    )
    inputs, run = world_session.inputs, run_id.hex
    with inputs.database.read() as sql:
        assert resolve_unit(sql, inputs, run) == (run_id, first)
        assert resolve_unit(sql, inputs, f"{run}:{skipped}") == (run_id, skipped)
    assert [frame.title for frame in read_board_views(inputs, run)] == [
        frame.title for frame in read_board_views(inputs, f"{run}:{first}")
    ]
    [frame] = read_board_views(inputs, f"{run}:{skipped}")
    row = by_unit[skipped]["skipped", -1]
    reasons = {"illegal": "the most probable move is illegal", "king": "the king is about to move"}
    assert frame.caption == (f"skipped: {reasons[row.detail['skipped']]} (the model writes {row.text!r})",)


@pytest.mark.slow
def test_no_column_depends_on_the_order_of_sets(bigram_board, world, tmp_path, reproduced_under_another_hash_seed):
    """Of a model that writes moves: masses of every spelling are added up."""
    words = "edit --checkpoint bigram --probe bigram-board --dataset sample:test --games 3 --per-game 4 --samples 1"
    folder = shutil.copytree(world, tmp_path / "world")
    assert reproduced_under_another_hash_seed(folder, *words.split())["same"] > 3 * 4


def test_a_state_has_every_condition_or_a_reason(edited):
    _, by_unit = edited(random_controls=2, samples=3)
    done = [rows for rows in by_unit.values() if ("skipped", -1) not in rows]
    skipped = [rows for rows in by_unit.values() if ("skipped", -1) in rows]
    assert done
    assert skipped
    expected = {(c, s) for c in ("clean", "edit", "random-0", "random-1", "shuffled-0") for s in (-1, 0, 1, 2)}
    assert all(set(rows) == expected for rows in done)
    assert all(len(rows) == 1 for rows in skipped)
    assert {rows["skipped", -1].detail["skipped"] for rows in skipped} <= {"illegal", "king"}


def test_a_piece_that_the_probe_has_no_direction_for_is_a_reason(edited, world_session):
    """Differences of means know nothing of a piece that was hardly seen on its square."""
    means = ProbeSpec(cache="bigram-fit", source="means", min_class_positions=30)
    world_session.run(means, ProbeOptions(threads=1), name="bigram-means")
    spec, by_unit = edited(probe="bigram-means")
    weight = load_probe(world_session.inputs, spec.probe, 0).weight
    skipped = [rows["skipped", -1] for rows in by_unit.values() if ("skipped", -1) in rows]
    unknown = [row for row in skipped if row.detail["skipped"] == "no direction"]
    assert unknown
    for row in unknown:
        square = chess.Move.from_uci(row.detail["move"]).from_square
        piece = chess.Board(row.fen).piece_at(square)
        assert not weight[:, square, 6 + piece.piece_type * (1 if piece.color else -1)].any()


def test_the_piece_is_off_the_modified_board_and_the_rest_is_as_it_was(edited):
    _, by_unit = edited()
    for rows in by_unit.values():
        if ("skipped", -1) in rows:
            continue
        clean = rows["clean", -1]
        board, move = chess.Board(clean.fen), chess.Move.from_uci(clean.detail["move"])
        assert board.parse_san(clean.text) == move
        assert board.piece_at(move.from_square).symbol() == clean.detail["piece"]
        assert board.piece_type_at(move.from_square) != chess.KING
        modified = board.copy(stack=False)
        modified.remove_piece_at(move.from_square)
        parse = get_encoding("pgn-char-32").parse
        for row in rows.values():
            assert row.legal_original == (parse(row.text, board) is not None)
            assert row.legal_modified == (parse(row.text, modified) is not None)
        assert not clean.legal_modified or modified.parse_san(clean.text) != move


def test_exact_masses_equal_teacher_forcing_one_move_at_a_time(edited, world_session):
    spec, by_unit = edited(scale=0.0, random_controls=0, samples=0)
    model, pgn = world_session.model("bigram"), get_encoding("pgn-char-32")
    games, places = select_games(spec, world_session.inputs)
    unit, rows = next((u, r) for u, r in sorted(by_unit.items()) if ("skipped", -1) not in r)
    (state,) = build_states(spec, get_encoding("pgn-char-32"), games, places, [unit])
    mass = 0.0
    for move in state.board.legal_moves:
        ids = torch.from_numpy(np.array([*state.prompt, *pgn.answer(state.board, move)]))[None]
        logprobs = model.logits(ids).log_softmax(-1)[0]
        start = len(state.prompt)
        mass += float(torch.exp(logprobs[torch.arange(start - 1, ids.shape[1] - 1), ids[0, start:]].sum()))
    assert rows["clean", -1].mass_original == pytest.approx(mass, abs=1e-5)
    assert rows["edit", -1].mass_original == pytest.approx(mass, abs=1e-5)  # an edit of scale 0 changes nothing


def test_batches_do_not_change_what_is_drawn(edited):
    def texts(by_unit):
        return {(u, *key): row.text for u, rows in by_unit.items() for key, row in rows.items()}

    few = {"seed": 3, "games": 3, "per_game": 2}
    one, many = (
        edited(EditOptions(batch_states=1, threads=1), **few),
        edited(EditOptions(batch_states=12, threads=1), **few, replicate=1),
    )
    assert texts(one[1]) == texts(many[1])


def test_states_of_a_game_differ_and_short_games_have_fewer(edited, world_session):
    spec, _ = edited(per_game=30, games=3, samples=0, random_controls=0, shuffled_label_controls=0)
    games, places = select_games(spec, world_session.inputs)
    found = build_states(spec, get_encoding("pgn-char-32"), games, places, range(90))
    plies = defaultdict(list)
    for state in found:
        plies[state.item].append(state.ply)
        assert state.board.turn
        assert get_encoding("pgn-char-32").decode(state.prompt).endswith(".")
    assert all(p == list(range(0, 2 * len(p), 2)) for p in plies.values())
    assert 0 < len(found) < 90


def test_probes_of_another_model_are_refused(edited):
    with pytest.raises(BadInputError, match="another checkpoint"):
        edited(checkpoint="reference")


@pytest.mark.slow
def test_a_sweep_holds_every_state_under_every_edit(edited, world_session):
    """Layer sets times scales in one run; the best is chosen on one half of the games and reported on the other."""
    _, by_unit = edited(layer_sets=("0",), scales=(0.5, 8.0, 40.0), games=10, per_game=1, samples=4)
    done = [rows for rows in by_unit.values() if ("skipped", -1) not in rows]
    edits = [f"edit-{n}" for n in range(3)]
    for rows in done:
        assert {c for c, _ in rows} == {
            "clean",
            *edits,
            *(f"{c}-{n}" for c in ("random", "shuffled") for n in range(3)),
        }
        for number, name in enumerate(edits):
            greedy = rows[name, -1]
            assert greedy.detail["setting"] == number
            assert greedy.detail["scales"] == [(0.5, 8.0, 40.0)[number]]
            assert greedy.detail["half"] == rows["clean", -1].detail["half"]
            assert rows[f"random-{number}", -1].detail["scales"] == greedy.detail["scales"]
    half_of = {rows["clean", -1].item: rows["clean", -1].detail["half"] for rows in done}
    assert set(half_of.values()) == {"choose", "report"}

    def share(name: str, half: str) -> float:
        texts = [
            row.legal_modified
            for rows in done
            for (condition, sample), row in rows.items()
            if condition == name and sample >= 0 and half_of[row.item] == half
        ]
        return 100 * sum(texts) / len(texts)

    def mass(name: str) -> float:  # between equal shares
        return sum(rows[name, -1].mass_modified for rows in done if half_of[rows[name, -1].item] == "choose")

    best = max(edits, key=lambda name: (share(name, "choose"), mass(name)))
    run_id = done[0]["clean", -1].run_id
    answer = [row for row in world_session.query("best board edit").rows if UUID(str(row["run_id"])) == run_id]
    chosen, upper = sorted(answer, key=lambda row: row["choice"])
    assert (chosen["tried"], upper["tried"]) == (3, 3)
    assert chosen["scale"] == (0.5, 8.0, 40.0)[edits.index(best)]
    assert chosen["chosen_modified"] == pytest.approx(share(best, "choose"))
    assert chosen["modified"] == pytest.approx(share(best, "report"))
    most = [max(sum(rows[name, s].legal_modified for s in range(4)) for name in edits) for rows in done]
    assert upper["modified"] == pytest.approx(100 * sum(most) / (4 * len(done)))
    assert upper["states"] == len(done)


def test_equal_positions_have_equal_keys_and_others_have_not(edited):
    _, by_unit = edited(random_controls=0, shuffled_label_controls=0, samples=0, games=6)
    keys = defaultdict(set)
    for rows in by_unit.values():
        for row in rows.values():
            if row.fen:
                keys[row.detail["position"]].add(" ".join(row.fen.split()[:4]))
    assert len(keys) > 6
    assert all(len(boards) == 1 for boards in keys.values())


def test_kings_are_moved_when_they_are_included(edited):
    _, skipping = edited(random_controls=0, shuffled_label_controls=0, samples=1)
    _, included = edited(random_controls=0, shuffled_label_controls=0, samples=1, king="include")
    for unit, rows in skipping.items():
        if ("skipped", -1) in rows and rows["skipped", -1].detail["skipped"] == "king":
            assert included[unit]["clean", -1].detail["piece"] == "K"
        else:
            assert set(included[unit]) == set(rows)
    reasons = {rows["skipped", -1].detail["skipped"] for rows in included.values() if ("skipped", -1) in rows}
    assert reasons <= {"illegal"}


def test_the_fixed_guard_asks_the_modified_board():
    """White's only pieces that can move: the pawn that is taken off. The author's guard checks the original board."""
    board = chess.Board("7k/8/8/8/8/1qp5/7P/K7 w - - 0 1")
    move = chess.Move.from_uci("h2h4")
    named = {"checkpoint": "c", "probe": "p", "dataset": "d"}
    assert move in board.legal_moves
    assert explain_skip(EditSpec(**named), board, move) is None
    assert explain_skip(EditSpec(**named, guard="fixed"), board, move) == "no moves"
    assert explain_skip(EditSpec(**named, guard="fixed"), chess.Board(), chess.Move.from_uci("e2e4")) is None
    assert explain_skip(EditSpec(**named), board, None) == "illegal"


@pytest.mark.parametrize("positions", ["last", "white-segments"])
def test_edited_texts_are_those_of_a_full_recompute(edited, world_session, positions):
    """Karvonen 2024, section 4.2: greedy texts, each character by a full pass with the edit at these positions."""
    settings = {
        "token_mask": positions,
        "scale_rule": "single_target",
        "scale": -3.0,
        "samples": 0,
        "random_controls": 0,
    }
    spec, by_unit = edited(**settings, shuffled_label_controls=0, games=3, per_game=2, max_tokens=7)
    model, pgn = world_session.model("bigram"), get_encoding("pgn-char-32")
    probe = world_session.probe("bigram-board", 0)
    games, places = select_games(spec, world_session.inputs)
    checked = 0
    for state in build_states(spec, get_encoding("pgn-char-32"), games, places, sorted(by_unit)):
        rows = by_unit[state.unit]
        if ("skipped", -1) in rows:
            continue
        detail = rows["edit", -1].detail
        label = 6 + chess.Piece.from_symbol(detail["piece"]).piece_type
        own = torch.from_numpy(probe.weight[:, chess.parse_square(detail["square"]), label].copy())
        edit = ResidualEdit(0, own / own.norm(), detail["scales"][0], positions, "subtract")
        ids = list(state.prompt)
        residual = model.residuals(torch.tensor([ids]), [0], edits=[edit])[0, 0, -1]
        assert float(residual @ own) == pytest.approx(-3.0, abs=1e-3)
        written = []
        while len(written) < 7 and written[-1:] != [0]:
            written.append(int(model.logits(torch.tensor([ids + written]), edits=[edit])[0, -1].argmax()))
        assert rows["edit", -1].text == pgn.decode(written).strip()
        checked += 1
    assert checked


def test_both_masses_stand_on_the_greedy_row(edited):
    _, by_unit = edited(random_controls=0, shuffled_label_controls=0, samples=0, games=1, per_game=3, spellings=True)
    [greedy, *_] = [rows["edit", -1] for rows in by_unit.values() if ("edit", -1) in rows]
    for board in ("original", "modified"):
        assert greedy.detail[f"spelled_{board}"] >= getattr(greedy, f"mass_{board}") - 1e-6
    assert 0 <= greedy.detail["spelled_missed"] < 0.01


def test_what_cannot_be_edited_is_refused_before_anything_runs(edited):
    for settings, message in [
        ({"layers": (5,)}, "no probe reads layer 5"),
        ({"scale_rule": "double"}, "scale rule 'double' does not exist"),
        ({"layer_sets": ("0", "1")}, "no probe reads layer 1"),
    ]:
        with pytest.raises(ChessregError, match=message):
            edited(**settings)


def test_games_that_the_probe_was_fitted_on_are_refused(edited):
    with pytest.raises(BadInputError, match="the probe was made from"):
        edited(dataset="sample:fit")
    _, by_unit = edited(dataset="sample:fit", allow_overlap=True, games=1, per_game=1)
    assert by_unit


def test_the_part_that_was_edited_is_recorded_and_not_the_one_that_the_probe_read(edited, world_session):
    spec, _ = edited(seed=7)
    with world_session.database.read() as sql:
        runs = sql.scalars(select(tables.Run).where(tables.Run.kind == "edit")).all()
        (run,) = (run for run in runs if run.spec["seed"] == 7)
        read = sql.scalars(select(tables.RunInput).where(tables.RunInput.run_id == run.id)).all()
    recipes = {row.name: row.reference for row in read}
    assert recipes["dataset"] == spec.dataset
    assert recipes["trained_on"] == world_session.inputs.reference("dataset", "sample:fit")


@pytest.mark.slow
def test_readings_before_and_after_are_the_probe_s_logits(edited, world_session, tmp_path):
    from chessreg.experiments.edit import heat
    from chessreg.games.boards.picture import save_frame, save_heatmaps

    spec, by_unit = edited(scale_rule="single_target", scale=-3.0, samples=1, games=3, per_game=2)
    unit, rows = next((u, r) for u, r in sorted(by_unit.items()) if ("skipped", -1) not in r)
    inputs = world_session.inputs
    found = heat.load_readings(inputs, rows["clean", -1].run_id, unit)
    assert (found.layer, found.condition) == (0, "edit")
    assert found.edited_logits[found.square, found.label] == pytest.approx(-3.0, abs=1e-3)
    games, places = select_games(spec, inputs)
    [state] = build_states(spec, get_encoding("pgn-char-32"), games, places, [unit])
    ids = list(state.prompt)
    residual = world_session.model("bigram").residuals(torch.tensor([ids]), [0])[0, 0, -1].numpy()
    logits = np.einsum("d,dsk->sk", residual, world_session.probe("bigram-board", 0).weight)
    assert found.clean == pytest.approx(logits, abs=1e-3)
    for label in (heat.parse_piece_class("P"), heat.parse_piece_class("k")):
        expected = logits[:, label] - np.log(np.exp(logits).sum(1))
        assert found.values("clean", label) == pytest.approx(expected, abs=1e-3)
    boards = heat.build_edit_panels(found, found.label, "logprob", 5.0)
    assert [(panel.low, panel.high) for panel in boards] == [(-5.0, 0.0)] * 4
    assert len(heat.build_reading_panels(found, heat.parse_piece_class("P"), "logprob", 2.0)) == 3
    for suffix, magic in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        save_heatmaps(boards, tmp_path / f"heat{suffix}", "title")
        assert (tmp_path / f"heat{suffix}").read_bytes().startswith(magic)
    frames = BoardEdit().board_views({"run_id": rows["clean", -1].run_id, "unit": unit}, inputs)
    assert len(frames) == 2
    values = found.values("edited", found.label, "probability")
    assert frames[1].heat[found.square] == pytest.approx(values[found.square])
    assert frames[0].heat[found.square] == pytest.approx(
        found.values("clean", found.label, "probability")[found.square]
    )
    save_frame(frames[1], tmp_path / "board.png")
    assert (tmp_path / "board.png").read_bytes().startswith(b"\x89PNG")
    random = heat.load_readings(inputs, rows["clean", -1].run_id, unit, "random-0")
    assert not np.allclose(random.edited_logits, found.edited_logits, atol=0.01)
    with pytest.raises(NotFoundError, match="no condition"):
        heat.load_readings(inputs, rows["clean", -1].run_id, unit, "edit-7")


def test_each_side_s_characters_are_edited_by_its_own_probe(edited, world_session):
    plain, _ = edited(games=2, per_game=2, samples=1)  # the checkpoint and its probe are in this registry
    session = world_session
    cache = CacheSpec(checkpoint="bigram", dataset="sample:fit", max_sites=10, sites="even-spaces")
    session.run(cache, CacheOptions(threads=1), name="bigram-black")
    session.run(ProbeSpec(cache="bigram-black", epochs=1), ProbeOptions(threads=1), name="bigram-black-board")
    spec, by_unit = edited(games=2, per_game=2, samples=1, scale=3.0, black_probe="bigram-black-board")
    assert spec.black_probe != spec.probe == plain.probe
    rows = next(rows for rows in by_unit.values() if ("edit", -1) in rows)
    assert rows["edit", -1].detail["scales"] == [3.0]  # one a layer, as long for both sides
    with session.database.read() as sql:
        conditions = ("edit", "random-0", "shuffled-0")
        made = {c: sql.get(tables.Intervention, rows[c, -1].intervention_id) for c in conditions}
        assert {row.token_mask for row in made.values()} == {"by-side"}
        assert made["edit"].input_references == [f"{spec.probe}/layer-0", f"{spec.black_probe}/layer-0"]
    with pytest.raises(BadInputError, match="where White is to move"):
        edited(black_probe="bigram-board")


def test_an_imported_probe_edits_as_one_of_ours_and_needs_its_checkpoint(edited, world_session, tmp_path):
    """Karvonen's layout [modes, d_model, rank, file, class], with centred residuals."""
    from chessreg.experiments.imported.specs import ImportedProbeSpec

    edited(games=1, per_game=1)  # the checkpoint and its probe are in this registry
    weight = torch.from_numpy(world_session.probe("bigram-board", 0).weight).reshape(1, -1, 8, 8, 13).contiguous()
    file = tmp_path / "tf_lens_bigram_chess_piece_probe_layer_0.pth"
    torch.save({"linear_probe": weight, "layer": 0, "indexing_function_name": "find_dots_indices"}, file)
    for name, checkpoint in (("theirs", "bigram"), ("unknown", None)):
        world_session.run(ImportedProbeSpec(files=(str(file),), checkpoint=checkpoint, residual="centred"), name=name)
    assert world_session.probe("theirs", 0).centred
    settings = {
        "scale_rule": "single_target",
        "scale": -2.0,
        "samples": 0,
        "random_controls": 0,
        "shuffled_label_controls": 0,
    }
    _, ours = edited(**settings, games=2, per_game=2)
    _, theirs = edited(probe="theirs", **settings, games=2, per_game=2)
    unit, rows = next((u, r) for u, r in sorted(theirs.items()) if ("edit", -1) in r)
    assert rows["clean", -1].text == ours[unit]["clean", -1].text
    # the same directions; centring takes the residual's own mean out of the logit, so the scale differs
    assert rows["edit", -1].detail["scales"] != ours[unit]["edit", -1].detail["scales"]
    with pytest.raises(BadInputError, match="is imported, and its checkpoint is unknown"):
        edited(probe="unknown")


@pytest.mark.slow
def test_heat_maps_on_the_command_line(edited, world, tmp_path, capsys):
    import json

    from chessreg.cli.root import run_command_line

    _, by_unit = edited(games=3, per_game=2, samples=1)
    unit, rows = next((u, r) for u, r in sorted(by_unit.items()) if ("skipped", -1) not in r)
    run = rows["clean", -1].run_id.hex
    place = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]

    def command(*words: str) -> tuple[int, str, str]:
        status = run_command_line([*place, *words])
        return status, *capsys.readouterr()

    status, out, _ = command("heatmap", f"{run}:{unit}", "--class", "k", "--measure", "logit", "--json")
    assert (status, json.loads(out)["class"], len(json.loads(out)["edited"])) == (0, "k", 64)
    status, out, _ = command("heatmap", f"{run}:{unit}")
    assert status == 0
    assert out.count("\n") == 20
    for name in ("five.svg", "five.png"):
        assert command("heatmap", f"{run}:{unit}", "--output", str(tmp_path / name))[0] == 0
        assert (tmp_path / name).stat().st_size > 1000
    reading = ["--form", "reading", "--class", "P", "--output", str(tmp_path / "one.svg")]
    assert command("heatmap", f"{run}:{unit}", *reading)[0] == 0
    assert command("board", f"{run}:{unit}", "--ply", "1", "--png", str(tmp_path / "board.png"))[0] == 0
    made = sorted(path.name for path in tmp_path.iterdir() if path.suffix)
    assert made == ["board.png", "five.png", "five.svg", "one.svg"]
    for words, wanted, message in [
        ((f"{run}:{unit}", "--class", "X"), 4, "is not a class of a piece probe"),
        ((f"{run}:999",), 3, "has no state 999"),
        ((f"{run}:{unit}", "--condition", "edit-9"), 3, "no condition"),
        ((f"{run}:{unit}", "--output", str(tmp_path / "a.gif")), 4, "is not a picture"),
        (("reference-board:0",), 4, "is of kind probe"),
    ]:
        status, out, err = command("heatmap", *words)
        assert (status, out) == (wanted, "")
        assert message in err
    assert made == sorted(path.name for path in tmp_path.iterdir() if path.suffix)


# -- aim and damage ---------------------------------------------------------------------------------------------------


def greedy_rows(by_unit, condition):
    return [rows[condition, -1] for rows in by_unit.values() if (condition, -1) in rows]


def test_damage_is_what_one_state_computed_by_itself_gives(edited, world_session):
    _, by_unit = edited(scale=4.0, samples=0)
    unit, rows = next((u, r) for u, r in sorted(by_unit.items()) if ("edit", -1) in r)
    run_id, inputs = rows["edit", -1].run_id, world_session.inputs
    with world_session.database.read() as sql:
        last = max(
            sql.scalars(
                select(tables.ProbeRecord.layer).where(
                    tables.ProbeRecord.run_id == world_session.id("run", "bigram-board")
                )
            )
        )
    chosen = {}
    for condition in ("clean", "edit", "random-0", "shuffled-0"):
        found = heat.load_edited_state(inputs, run_id, unit, None if condition == "clean" else condition)
        model, removed = found.removals.model, found.removal
        session = DecodingSession(model, 1, () if condition == "clean" else found.edits)
        session.feed([found.state.prompt])
        original, modified = (model.encoding.answers(board) for board in removed.boards)
        both = sorted(original.keys() & modified.keys(), key=str)
        ways = [ids for move in both for ids in sorted({original[move], modified[move]})]
        [scores] = score_answers(session, [ways])
        total = dict(zip(ways, np.exp(scores), strict=True))
        chosen[condition] = np.array([sum(total[ids] for ids in {original[m], modified[m]}) for m in both])
        row = rows[condition, -1].detail
        assert row["shared_mass"] == pytest.approx(chosen[condition].sum(), abs=1e-5)
        if condition == "clean":
            assert not row.keys() & {"shared_moved", "shared_kl", "squares_changed"}
            continue
        p, q = (chosen[name] / chosen[name].sum() for name in ("clean", condition))
        assert row["shared_moved"] == pytest.approx(abs(p - q).sum() / 2, abs=1e-5)
        assert row["shared_kl"] == pytest.approx((p * np.log(p / q)).sum(), abs=1e-4)
        read = heat.load_readings(inputs, run_id, unit, condition, layer=last)
        others = [square for square in range(64) if square != removed.square]
        changed = (read.clean.argmax(1) != read.edited_logits.argmax(1))[others]
        assert row["squares_changed"] == pytest.approx(changed.mean())
        assert row["read_empty"] == pytest.approx(read.values("edited", 6, "probability")[removed.square], abs=1e-5)
    assert rows["edit", -1].detail["shared_moved"] > 0.001


def test_a_move_that_both_boards_have_counts_however_either_writes_it(edited, world_session):
    """Without the knight on f3 the other's move to d2 needs no file: it is the same move."""
    board = chess.Board("4k3/8/8/8/8/5N2/8/1N2K3 w - - 0 1")
    state = State(0, 0, 0, (0,), board)
    answers = Editor.list_removal_answers(
        SimpleNamespace(encoding=get_encoding("pgn-char-32"), spec=SimpleNamespace(spellings=False)),
        remove_moving_piece(state, chess.Move.from_uci("f3g5")),
    )
    texts = [{get_encoding("pgn-char-32").answer_text(ids) for ids in ways} for ways in answers.shared_texts]
    assert {"Nbd2", "Nd2"} in texts
    assert {"Na3"} in texts
    assert not any("f" in text for ways in texts for text in ways if text.startswith("Nf"))


def test_a_sham_changes_nothing(edited, world_session):
    _, by_unit = edited(scale=4.0, samples=0, sham_control=True)
    sham, clean = greedy_rows(by_unit, "sham-0"), greedy_rows(by_unit, "clean")
    assert len(sham) == len(clean) > 0
    for row, base in zip(sham, clean, strict=True):
        assert row.text == base.text
        assert row.mass_modified == pytest.approx(base.mass_modified, abs=1e-5)
        assert row.detail["squares_changed"] == 0
        assert row.detail["shared_moved"] == pytest.approx(0, abs=1e-5)
    with world_session.database.read() as sql:
        row = sql.get_one(tables.Intervention, sham[0].intervention_id)
        assert (row.source, row.layers, row.scale) == ("sham", [0], 0.0)


@pytest.mark.slow
def test_encode_decode_puts_the_autoencoders_reconstruction_in_the_place_of_the_residual(edited, world_session):
    """The reading is the clean model's reading of the reconstruction: nothing is subtracted, at any scale."""
    from chessreg.experiments.sae import SaeSpec
    from chessreg.experiments.sae.stored import load_sae

    small = {"expansions": (2,), "tokens": 2000, "batch_tokens": 100, "heldout_games": 4, "boards": 0}
    wanted = SaeSpec(cache="bigram-fit", l1_coefficient=0.5, learning_rate=3e-3, **small)
    world_session.run(wanted, name="features")
    inputs = world_session.inputs
    spec, by_unit = edited(scale=4.0, samples=0, sae="features", token_mask="last", games=2, per_game=2)
    rows, clean = greedy_rows(by_unit, "encode-decode-0"), greedy_rows(by_unit, "clean")
    assert len(rows) == len(clean) > 0
    sae = load_sae(inputs, inputs.reference("run:sae", "features"), layer=0)
    model, probe = world_session.model("bigram"), load_probe(inputs, spec.probe, 0).weight
    games, places = select_games(spec, inputs)
    for row in rows:
        [state] = build_states(spec, get_encoding("pgn-char-32"), games, places, [row.unit])
        residual = model.residuals(torch.tensor([state.prompt]), [0])[0, 0, -1]
        logits = np.einsum("d,dsk->sk", sae.reconstruction(residual[None])[0].numpy(), probe)
        square = chess.parse_square(row.detail["square"])
        there = np.exp(logits[square] - logits[square].max())
        assert row.detail["read_empty"] == pytest.approx(there[6] / there.sum(), abs=1e-4)
    assert any(row.detail["shared_moved"] > 1e-4 for row in rows)
    with world_session.database.read() as sql:
        row = sql.get_one(tables.Intervention, rows[0].intervention_id)
        assert (row.source, row.layers, row.scale) == ("encode-decode", [0], 0.0)
        assert row.input_references == [f"{inputs.reference('run:sae', 'features')}/blocks.0.hook_resid_post.2x"]
    both = wanted.model_copy(update={"expansions": (1, 2)})
    world_session.run(both, name="two-expansions")
    _, chosen = edited(scale=4.0, samples=0, sae="two-expansions", expansion=2, token_mask="last", games=2, per_game=2)
    again = greedy_rows(chosen, "encode-decode-0")
    assert [(row.unit, row.text, row.mass_modified) for row in again] == [
        (row.unit, row.text, row.mass_modified) for row in rows
    ]
    for expansion, message in ((None, "has the expansions 1, 2"), (7, "has no expansion 7")):
        with pytest.raises((BadInputError, NotFoundError), match=message):
            edited(samples=0, sae="two-expansions", expansion=expansion, games=2, per_game=2)
    with pytest.raises(BadInputError, match="chooses among the SAEs of --sae"):
        EditSpec(checkpoint="bigram", probe="p", dataset="sample:test", expansion=2)
    shown = world_session.query("edit specificity").rows
    assert "encode-decode" in {found["condition"] for found in shown}
    with pytest.raises(BadInputError, match="trained on another checkpoint"):
        world_session.run(
            EditSpec(checkpoint="reference", probe="reference-board", dataset="sample:test", sae="features")
        )


def test_a_wrong_layer_is_half_the_depth_away_and_takes_the_same_direction(edited):
    made = PieceRemovals.__new__(PieceRemovals)
    made.model, made.rule = SimpleNamespace(n_layers=16), SCALE_RULES["single_scale"]
    real = [ResidualEdit(layer, torch.full((3, 4), float(layer)), 2.0, op="subtract") for layer in (5, 7, 9, 11, 13)]
    wrong = made.build_edits(EditCondition("wrong-layer-0", EditSetting(0, (), 2.0), "wrong-layer"), [], [], real)
    assert [edit.layer for edit in wrong] == [13, 15, 1, 3, 5]
    assert all(
        (one.vector is other.vector, one.scale, one.op) == (True, 2.0, "subtract")
        for one, other in zip(wrong, real, strict=True)
    )
    with pytest.raises(BadInputError, match="needs a model with more than one layer"):
        edited(wrong_layer_control=True)


def test_what_both_choose_alike_is_no_damage_however_much_it_weighs():
    assert compute_divergences(np.array([0.1, 0.3]), np.array([0.2, 0.6])) == pytest.approx((0.0, 0.0))
    assert compute_divergences(np.array([0.5, 0.5]), np.array([0.0, 1.0]))[0] == 0.5
    assert compute_divergences(np.array([0.25, 0.75]), np.array([0.5, 0.5])) == pytest.approx(
        (0.25, 0.25 * np.log(0.5) + 0.75 * np.log(1.5))
    )
