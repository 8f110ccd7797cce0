"""`edit-next-token`: the record of each case follows Davis 2026, sections 3.5 and 3.6."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any
from uuid import UUID

import chess
import numpy as np
import pytest
import torch
from sqlalchemy import select

from chessreg.encodings import get_encoding
from chessreg.entities.checkpoint import import_checkpoint
from chessreg.errors import BadInputError
from chessreg.experiments.cache import CacheOptions, CacheSpec
from chessreg.experiments.edit import NextTokenEdit, heat
from chessreg.experiments.edit.cases import (
    GamePrefix,
    apply_board_changes,
    build_prefixes,
    iterate_board_copies,
    remove_favourite,
)
from chessreg.experiments.edit.spec import DAVIS_PRESETS, NextTokenEditOptions, NextTokenEditSpec
from chessreg.experiments.edit.states import State
from chessreg.experiments.edit.three_boards import load_probabilities
from chessreg.experiments.probe import ProbeOptions, ProbeSpec
from chessreg.experiments.sae import SaeOptions, SaeSpec
from chessreg.experiments.settings.games import select_games as select_games
from chessreg.games.datasets.labels import parse_board_changes
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.models.edits import ResidualEdit
from chessreg.queries.published import compare_with_published
from chessreg.queries.render import render_result
from chessreg.registry import tables
from chessreg.runs.fitted import load_probe
from chessreg.runs.spec import get_hashed_settings
from chessreg.steering.directions import compute_change_directions

LAYERS, WIDTH, CONTEXT = 3, 32, 64
UCI = get_encoding("uci-square-72")
GAMES = {"dataset": "sample:test", "games": 8, "prefixes": (4, 9, 40)}


@pytest.fixture(scope="module")
def squares(world, tmp_path_factory):
    """A registry with an untrained model of UCI squares, and its probes where White and where Black is to move."""
    from chessreg.session import open_session

    network = make_random_gpt2(GPT2Config(LAYERS, 4, WIDTH, CONTEXT, 72), 0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() == 2:
                parameter *= 4 if "wpe" in name or "wte" in name else 8
    folder = tmp_path_factory.mktemp("squares") / "model"
    save_checkpoint(network, folder, CheckpointInfo.from_network(network, "uci-square-72"))
    with open_session(str(world / "registry.db"), world / "store") as session:
        import_checkpoint(session.database, session.store, folder, name="squares")
        for side, sites in {"white": "white-turns", "black": "black-turns", "dots": "dots"}.items():
            cache = {"checkpoint": "squares", "dataset": "sample:fit", "sites": sites}
            session.run(CacheSpec(**cache), CacheOptions(threads=1), name=f"cache-{side}")
            probe = ProbeSpec(cache=f"cache-{side}", epochs=1)
            session.run(probe, ProbeOptions(threads=1), name=f"probe-{side}")
        for layer in (0, 1):
            probe = ProbeSpec(cache="cache-white", epochs=1, layers=(layer,))
            session.run(probe, ProbeOptions(threads=1), name=f"probe-{layer}")
        yield session


def ran(session, how: NextTokenEditOptions | None = None, **settings: Any) -> tuple[Any, dict[int, dict[str, Any]]]:
    """The report of a run, and its rows by unit and condition."""
    given = {"checkpoint": "squares", "probe": "probe-white", "black_probe": "probe-black", **settings}
    report = session.run(NextTokenEditSpec(**given), how or NextTokenEditOptions(threads=1))
    by_unit: dict[int, dict[str, Any]] = defaultdict(dict)
    with session.database.read() as sql:
        for row in sql.scalars(select(tables.Trial).where(tables.Trial.run_id == report.run_id)):
            by_unit[row.unit][row.condition] = row
        sql.expunge_all()
    return report, by_unit


@pytest.fixture(scope="module")
def everything(squares):
    """A run with every kind of condition at two scales, on whose rows most tests look."""
    return ran(
        squares, **GAMES, layers=(1,), scales=(0.0, 0.5), patch="unit", other_probes=("probe-black",),
        other_black_probes=("probe-white",), king="include", probe_tokens="any",
    )  # fmt: skip


def done(by_unit: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    return [rows for _, rows in sorted(by_unit.items()) if "skipped" not in rows]


def begins(board: chess.Board) -> list[int]:
    return sorted({4 + move.from_square for move in board.legal_moves})


def test_masses_are_those_of_a_full_pass_and_of_enumerated_moves(squares, everything):
    """LMPM (6.4) on three boards of the clean model, and of an edit by equation 1 in a full forward pass."""
    report, by_unit = everything
    model, games = squares.model("squares"), squares.dataset("sample")
    probe = {
        turn: load_probe(squares.inputs, run_of(squares, f"probe-{s}"), 1) for turn, s in ((1, "white"), (0, "black"))
    }
    checked = 0
    for unit, rows in by_unit.items():
        if "skipped" in rows:
            continue
        clean, edit = rows["clean"], rows["edit-1"]
        board, target, later = (chess.Board(fen) for fen in (clean.fen, clean.detail["target"], clean.detail["later"]))
        moves = boards_and_moves(games, clean.item)
        assert board.board_fen() == moves[0][clean.ply].board_fen()
        assert later.fen() == moves[0][clean.ply + 6].fen()
        tokens = torch.tensor([UCI.prompt(moves[1][: clean.ply])])
        logprobs = model.logits(tokens)[0, -1].log_softmax(-1).double()
        square = int(logprobs.argmax()) - 4
        assert clean.detail["square"] == chess.square_name(square)
        assert board.piece_at(square).symbol() == clean.detail["piece"]
        assert target.piece_at(square) is None
        assert target.turn == board.turn
        label = 6 + board.piece_at(square).piece_type * (1 if board.piece_at(square).color else -1)
        weight = probe[int(board.turn)].weight[:, square, label]
        vector = -torch.from_numpy(weight / np.linalg.norm(weight))
        residual = model.residuals(tokens, [1])[0, 0, -1]
        with torch.inference_mode():
            length = 0.5 * float(model.network.norm()(residual).norm())
        made = ResidualEdit(1, vector, length, "last")
        edited = model.logits(tokens, edits=[made])[0, -1].log_softmax(-1).double()
        for row, own in ((clean, logprobs), (edit, edited)):
            p = own.exp().numpy()
            assert row.mass_original == pytest.approx(p[begins(board)].sum(), abs=1e-5)
            assert row.mass_modified == pytest.approx(p[begins(target)].sum(), abs=1e-5)
            assert row.detail["mass_future"] == pytest.approx(p[begins(later)].sum(), abs=1e-5)
            assert row.text == UCI.vocabulary[int(p.argmax())]
            assert row.legal_original == (int(p.argmax()) in begins(board))
            assert row.detail["p_square"] == pytest.approx(p[4 + square], abs=1e-5)
            kl = float((logprobs.exp() * (logprobs - own)).sum())
            assert row.detail["kl"] == pytest.approx(kl, abs=1e-5)
            assert row.detail["argmax_kept"] == (p.argmax() == int(logprobs.argmax()))
            stored = load_probabilities(squares.inputs, report.run_id, unit)[row.condition]
            assert stored == pytest.approx(p, abs=1e-5)
        assert edit.detail["edit_norm"] == pytest.approx(length, rel=1e-4)
        assert edit.detail["kl"] > 1e-3
        checked += 1
    assert checked >= 4


def test_a_later_board_by_its_moves_patches_as_that_of_its_game(squares, everything):
    """One position with `--later`, stored and in the lab, compared with the same prefix of a game."""
    from chessreg.lab.model import Lab
    from chessreg.lab.question import LabPosition, load_stored_edit

    report, by_unit = everything
    rows = next(rows for rows in done(by_unit) if rows["clean"].ply == 4)
    sans = boards_and_moves(squares.dataset("sample"), rows["clean"].item)[1]
    given = {"moves": " ".join(sans[:4]), "later": " ".join(sans[4:10])}
    told = {**given, "layers": (1,), "king": "include", "probe_tokens": "any"}
    [own] = ran(squares, **told, patch="unit", black_probe=None)[1].values()
    assert own["clean"].detail["later"] == rows["clean"].detail["later"]
    for name in ("mass_original", "mass_modified"):
        assert getattr(own["patch"], name) == pytest.approx(getattr(rows["patch-1"], name), abs=1e-5)
    assert own["patch"].detail["mass_future"] == pytest.approx(rows["patch-1"].detail["mass_future"], abs=1e-5)
    asked = LabPosition.from_settings(
        checkpoint="squares", probe="probe-white", **given, layers=(1,), measure="next-token", condition="patch",
        settings=(("probe_tokens", "any"),),
    )  # fmt: skip
    answer = Lab(squares.inputs).ask(asked)
    assert chess.Board(answer.modified_fen).fen() == rows["clean"].detail["later"]
    assert answer.edited.original == pytest.approx(own["patch"].mass_original, abs=1e-5)
    assert answer.edited.modified == pytest.approx(own["patch"].detail["mass_future"], abs=1e-5)
    assert tuple(word for word in asked.storing_arguments if word in ("--later", "--patch")) == ("--later", "--patch")
    taken_up = load_stored_edit(squares.inputs, report.run_id, rows["patch-1"])
    assert (taken_up.sans, taken_up.later, taken_up.condition) == (sans[:4], sans[4:10], "patch")
    assert ("patch", "unit") in taken_up.settings
    for settings, said in (
        ({**told, "patch": "unit", "later": ""}, "--patch needs a later board"),
        ({**told, "later": "Ke7"}, "Ke7"),
        ({**GAMES, "later": "Nc3"}, "--later continues --moves"),
    ):
        with pytest.raises(BadInputError, match=said):
            ran(squares, **settings)


def run_of(session, name: str) -> str:
    return session.inputs.reference("run:probe", name)


def boards_and_moves(games, item: int):
    """Every board of a game, and its moves in SAN."""
    from chessreg.games.boards.moves import unpack_moves
    from chessreg.games.boards.typed import convert_moves_to_sans

    moves = unpack_moves(games.moves([item])[0])
    return list(iterate_board_copies(moves)), convert_moves_to_sans(moves)


def test_length_0_is_the_clean_row_and_all_else_as_long_as_the_probes_edit(everything):
    """Length 0 changes no bit, and every kind of edit has equal length."""
    _, by_unit = everything
    kinds = ("edit", "other1", "patch")
    for rows in done(by_unit):
        assert set(rows) == {"clean", "random-0", "random-1", "shuffled-0", "shuffled-1",
                             *(f"{kind}-{n}" for kind in kinds for n in (0, 1))}  # fmt: skip
        clean = rows["clean"]
        for name in ("edit-0", "other1-0", "patch-0", "random-0", "shuffled-0"):
            row = rows[name]
            assert (row.mass_original, row.mass_modified) == (clean.mass_original, clean.mass_modified)
            assert row.detail["kl"] == row.detail["edit_norm"] == 0
        lengths = [rows[name].detail for name in ("edit-1", "other1-1", "patch-1", "random-1", "shuffled-1")]
        for detail in lengths:
            assert detail["vector_norm"] == pytest.approx(1, abs=1e-5)
            assert detail["edit_norm"] == pytest.approx(0.5 * detail["reference_norm"], rel=1e-5)
            assert detail["edit_norm"] == pytest.approx(lengths[0]["edit_norm"], rel=1e-5)
        masses = {rows[name].mass_modified for name in ("edit-1", "other1-1", "patch-1", "random-1", "shuffled-1")}
        assert len(masses) == 5


def test_what_is_no_case_is_kept_with_its_reason(squares, everything):
    """6.3: a square without a piece, no square, a game that ends too early; kings only where they are asked for."""
    _, by_unit = everything
    skipped = {
        row.detail["skipped"] for rows in by_unit.values() for row in rows.values() if row.condition == "skipped"
    }
    assert skipped == {"empty", "too long"}  # after 40 plies there are 81 tokens
    kings = [unit for unit, rows in by_unit.items() if "clean" in rows and rows["clean"].detail["piece"] in "kK"]
    settings = {**GAMES, "prefixes": (4, 9), "future": 38}
    _, without = ran(squares, **settings, layers=(1,), random_controls=0, shuffled_label_controls=0)
    late = {rows["skipped"].detail["skipped"] for unit, rows in without.items() if unit % 2}
    assert late == {"too short"}  # games of 44 plies have no board 38 plies after the 9th
    for unit, rows in ((3 * unit // 2, rows) for unit, rows in without.items() if unit % 2 == 0):
        assert ("clean" in rows) == ("clean" in by_unit[unit] and unit not in kings)
        if unit in kings:
            assert rows["skipped"].detail["skipped"] == "king"
    status = {unit: chess.Status(by_unit[unit]["clean"].detail["target_status"]) for unit in kings}
    assert all(value & (chess.STATUS_NO_WHITE_KING | chess.STATUS_NO_BLACK_KING) for value in status.values())


def test_batches_groups_and_resuming_change_nothing(squares, everything):
    """The last bits depend on the batch, as in any sum, but draws and choices do not."""
    one, other = (
        ran(squares, how, **GAMES, layer_sets=("0+2", "1"), scales=(0.3,), patch="raw", random_draw="uniform-matrix",
            replicate=replicate)[1]
        for replicate, how in enumerate(
            (NextTokenEditOptions(threads=1), NextTokenEditOptions(threads=1, batch_states=3, group_states=5))
        )
    )  # fmt: skip
    assert one.keys() == other.keys()
    for unit, rows in one.items():
        assert rows.keys() == other[unit].keys()
        for name, row in rows.items():
            if name != "skipped":
                assert row.mass_modified == pytest.approx(other[unit][name].mass_modified, abs=1e-5)
    [first] = {row.unit for row in done(one)[0].values()}
    rows = one[first]
    assert rows["patch-0"].detail["vector_norm"] > 1.5  # raw: the residual's own norm
    assert rows["random-0"].detail["vector_norm"] == pytest.approx(LAYERS**-0.5, abs=0.12)  # of a whole unit matrix
    assert len(rows["edit-0"].detail["scales"]) == 1


def test_settings_of_the_published_code(squares):
    """9.1: the probe of the layer below, fitted anywhere; 6 tokens are 3 plies, with the other side to move."""
    settings = {**DAVIS_PRESETS["davis-published-code"], "games": 4, "prefixes": (4, 9), "layers": (1,)}
    _, by_unit = ran(squares, **{"dataset": "sample:test", "black_probe": None, **settings})
    [row] = {r.intervention_id for rows in done(by_unit) for c, r in rows.items() if c == "edit"}
    with squares.database.read() as sql:
        intervention = sql.get_one(tables.Intervention, row)
        assert intervention.input_references[0].endswith("/layer-0")
        assert intervention.layers == [1]
        assert intervention.detail["protocol"] == "published-code"
        assert intervention.scale_rule == "ln-final"
    spec = NextTokenEditSpec(
        checkpoint="squares", probe="probe-white", dataset="sample:test", **DAVIS_PRESETS["davis-paper"]
    )
    assert spec.protocol == "paper"
    spec = squares_spec(squares, **{**GAMES, "future_unit": "tokens", "prefixes": (4, 9)})
    games, places = select_games(spec, squares.inputs)
    for prefix in build_prefixes(spec, UCI, games, places, range(4)):
        assert prefix.later_prompt[: len(prefix.state.prompt)] == prefix.state.prompt
        assert len(prefix.later_prompt) == len(prefix.state.prompt) + 6
        assert prefix.later.turn != prefix.state.board.turn


def squares_spec(session, **settings: Any) -> NextTokenEditSpec:
    """A spec with its references resolved."""
    from chessreg.runs.resolve import resolve_spec

    spec = NextTokenEditSpec(
        **{"checkpoint": "squares", "probe": "probe-white", "black_probe": "probe-black", **settings}
    )
    return resolve_spec(NextTokenEdit(), spec, session.inputs).spec


def test_figure_3(squares):
    """Davis 2026, Figure 3: the boards of the example, and the squares from which moves begin on each."""
    text = "e2e4 e7e6 d2d4 b7b6 a2a3 c8b7 b1c3 g8h6 c1h6 g7h6 f1e2 d8g5 e2g4 h6h5 g1f3 g5g6"
    boards = list(iterate_board_copies([chess.Move.from_uci(word) for word in text.split()]))
    prefix = GamePrefix(State(0, 0, 8, UCI.prompt([]), boards[8]), boards[14])
    case = remove_favourite(prefix, chess.C1)
    assert [board.fen() for board in case.boards] == [
        "rn1qkb1r/pbpp1ppp/1p2p2n/8/3PP3/P1N5/1PP2PPP/R1BQKBNR w KQkq - 3 5",
        "rn1qkb1r/pbpp1ppp/1p2p2n/8/3PP3/P1N5/1PP2PPP/R2QKBNR w KQkq - 3 5",
        "rn2kb1r/pbpp1p1p/1p2p3/6qp/3PP1B1/P1N5/1PP2PPP/R2QK1NR w KQkq - 0 8",
    ]
    origins = [
        " ".join(chess.square_name(UCI.find_origin(t)) for t in sorted({ids[0] for ids in UCI.answers(b).values()}))
        for b in case.boards
    ]
    assert [" ".join(sorted(own.split())) for own in origins] == [
        "a1 a3 b2 c1 c3 d1 d4 e1 e4 f1 f2 g1 g2 h2",
        "a1 a3 b2 c3 d1 d4 e1 e4 f1 f2 g1 g2 h2",
        "a1 a3 b2 c3 d1 d4 e1 e4 f2 g1 g2 g4 h2",
    ]


CASE = {"moves": "e2e4 d7d5", "board": "d5=. d7=p e7=. e5=p"}


def test_a_probe_of_dots_is_one_of_whites_turns(squares):
    """The default sites of a cache, in the words of PGN characters."""
    directions = []
    for name in ("dots", "white"):
        _, by_unit = ran(squares, **CASE, layers=(1,), black_probe=None, probe=f"probe-{name}")
        [rows] = by_unit.values()
        directions.append(rows["edit"].detail)
    assert directions[0] == directions[1]


def test_figure_4(squares):
    """6.5: four terms of the direction, the target board, and 64 squares before and after as boards."""
    report, by_unit = ran(squares, **CASE, layers=(1,), black_probe=None)
    [rows] = by_unit.values()
    clean = rows["clean"]
    assert clean.detail["target"] == "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2"
    target = chess.Board(clean.detail["target"])
    assert chess.E4 not in {move.from_square for move in target.legal_moves}
    assert rows["edit"].detail["kl"] > 1e-4
    spec = squares_spec(squares, **CASE, black_probe=None)
    weight = load_probe(squares.inputs, spec.probe, 1).weight
    pawn = weight[:, :, 5]
    wanted = -pawn[:, chess.D5] + pawn[:, chess.D7] - pawn[:, chess.E7] + pawn[:, chess.E5]
    board = chess.Board("rnbqkbnr/ppp1pppp/8/3p4/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 0 2")
    case = apply_board_changes(GamePrefix(State(0, -1, 2, UCI.prompt([]), board)), CASE["board"])
    [vector] = compute_change_directions(weight, [case.changes], spec.piece, spec.blank)
    assert vector == pytest.approx(wanted / np.linalg.norm(wanted), abs=1e-6)
    frames = NextTokenEdit().board_views({"run_id": report.run_id, "unit": 0}, squares.inputs)
    assert [frame.title.split(",")[0] for frame in frames] == ["clean", "edit", "edit"]
    stored = load_probabilities(squares.inputs, report.run_id, 0)
    for frame, condition in zip(frames, ("clean", "edit", "edit"), strict=True):
        assert [frame.heat[square] for square in range(64)] == pytest.approx(stored[condition][4:68].tolist(), abs=1e-6)
    assert frames[2].marks[chess.D5] == "removed"
    assert frames[2].marks[chess.E5] == "target"
    assert f"{clean.mass_modified:.3f} to {rows['edit'].mass_modified:.3f}" in frames[2].caption[0]


def test_board_views_of_a_game_have_its_later_board_and_do_without_the_bytes(squares, everything, monkeypatch):
    report, by_unit = everything
    unit, rows = next((u, r) for u, r in sorted(by_unit.items()) if "clean" in r)
    frames = NextTokenEdit().board_views(
        {"run_id": report.run_id, "unit": unit, "condition": "patch-1"}, squares.inputs
    )
    assert len(frames) == 4
    assert all(frame.heat for frame in frames)
    assert frames[3].title == "patch-1, the game's later board"
    monkeypatch.setattr("store.Store.exists", lambda self, digest: False)
    frames = NextTokenEdit().board_views({"run_id": report.run_id, "unit": unit}, squares.inputs)
    assert not any(frame.heat for frame in frames)
    assert rows["clean"].text in frames[0].caption[0]
    with pytest.raises(BadInputError, match="is of kind edit-next-token"):
        heat.load_readings(squares.inputs, report.run_id, unit)
    skipped = next(u for u, r in sorted(by_unit.items()) if "skipped" in r)
    [frame] = NextTokenEdit().board_views({"run_id": report.run_id, "unit": skipped}, squares.inputs)
    assert "skipped" in frame.caption[0]


def test_several_tokens_are_edited_each_by_its_own_norm(squares):
    """Equation 1 at every turn of the prefix, against a hook on a full pass."""
    settings = {**GAMES, "games": 2, "prefixes": (4,)}
    _, by_unit = ran(squares, **settings, layers=(1,), token_mask="turns", black_probe=None,
                     random_controls=0, shuffled_label_controls=0, probe_tokens="any")  # fmt: skip
    model, games = squares.model("squares"), squares.dataset("sample")
    for rows in done(by_unit):
        clean = rows["clean"]
        tokens = torch.tensor([UCI.prompt(boards_and_moves(games, clean.item)[1][: clean.ply])])
        square = chess.parse_square(clean.detail["square"])
        label = 6 + chess.Piece.from_symbol(clean.detail["piece"]).piece_type * (
            1 if clean.detail["piece"].isupper() else -1
        )
        weight = load_probe(squares.inputs, run_of(squares, "probe-white"), 1).weight[:, square, label]
        vector = -torch.from_numpy(weight / np.linalg.norm(weight))
        mask = torch.tensor([n % 2 == 0 for n in range(tokens.shape[1])])

        def hook(module, arguments, residual, vector=vector, mask=mask):
            length = 0.5 * model.network.ln_f(residual).norm(dim=-1, keepdim=True)
            return residual + vector * length * mask[None, :, None]

        handle = model.blocks[1].register_forward_hook(hook)
        try:
            p = model.logits(tokens)[0, -1].softmax(-1).double().numpy()
        finally:
            handle.remove()
        assert rows["edit"].mass_original == pytest.approx(p[begins(chess.Board(clean.fen))].sum(), abs=1e-5)


def test_tokens_that_no_game_has_get_no_probability_unless_asked(squares, tmp_path):
    """LCB's piece letters, as in legality: every distribution of a case is that of the other tokens."""
    network = make_random_gpt2(GPT2Config(2, 2, 16, CONTEXT, 77), 3)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "wte" in name:
                parameter[3:9] *= 50  # it predicts piece letters
    save_checkpoint(network, tmp_path / "lcb", CheckpointInfo.from_network(network, "uci-square-77"))
    import_checkpoint(squares.database, squares.store, tmp_path / "lcb", name="lcb")
    cache = CacheSpec(checkpoint="lcb", dataset="sample:fit", sites="white-turns", games=20)
    squares.run(cache, CacheOptions(threads=1), name="cache-lcb")
    squares.run(ProbeSpec(cache="cache-lcb", epochs=1), ProbeOptions(threads=1), name="probe-lcb")
    settings = {"checkpoint": "lcb", "probe": "probe-lcb", "black_probe": None, "dataset": "sample:test", "games": 4,
                "prefixes": (4,), "layers": (0,), "king": "include", "shuffled_label_controls": 0}  # fmt: skip
    _, by_unit = ran(squares, **settings)
    assert done(by_unit)
    _, unmasked = ran(squares, **settings, mask_unused=False)
    assert {rows["skipped"].detail["skipped"] for rows in unmasked.values()} == {"no square"}
    model, games = squares.model("lcb"), squares.dataset("sample")
    for rows in done(by_unit):
        clean = rows["clean"]
        tokens = torch.tensor([model.encoding.prompt(boards_and_moves(games, clean.item)[1][: clean.ply])])
        logits = model.logits(tokens)[0, -1].double()
        logits[3:9] = -torch.inf
        p = logits.softmax(-1).numpy()
        begun = [i for i in range(77) if model.encoding.find_origin(i) is not None]
        legal = {move.from_square for move in chess.Board(clean.fen).legal_moves}
        assert clean.mass_original == pytest.approx(
            sum(p[i] for i in begun if model.encoding.find_origin(i) in legal), abs=1e-5
        )
        assert rows["edit"].mass_original <= 1


def test_the_published_code_edits_layer_0_with_the_probe_of_the_embeddings(squares):
    """Block L's output is edited with the probe of hidden state L, of which 0 are the embeddings; against a hook."""
    points = ("blocks.*.hook_resid_pre", "blocks.*.hook_resid_post")
    cache = CacheSpec(checkpoint="squares", dataset="sample:fit", sites="white-turns", hook_points=points)
    squares.run(cache, CacheOptions(threads=1), name="cache-of-embeddings")
    fit = ProbeSpec(cache="cache-of-embeddings", epochs=1, layers=(0,), hook_point="blocks.*.hook_resid_pre")
    squares.run(fit, ProbeOptions(threads=1), name="probe-of-embeddings")
    settings = {
        **NextTokenEdit().preset("davis-published-code"), "dataset": "sample:test", "games": 2, "prefixes": (4,),
        "black_probe": None, "probe_shift": -1, "layer_sets": ("0", "1"),
    }  # fmt: skip
    with pytest.raises(BadInputError, match="no probe reads layer -1 for layer 0"):
        ran(squares, **settings)
    with pytest.raises(BadInputError, match=r"--embedding-probe reads .*resid_post, not the embeddings"):
        ran(squares, **settings, embedding_probe="probe-0")
    _, by_unit = ran(squares, **settings, embedding_probe="probe-of-embeddings")
    assert done(by_unit)
    model, games = squares.model("squares"), squares.dataset("sample")
    for rows in done(by_unit):
        clean = rows["clean"]
        tokens = torch.tensor([UCI.prompt(boards_and_moves(games, clean.item)[1][: clean.ply])])
        square, piece = chess.parse_square(clean.detail["square"]), chess.Piece.from_symbol(clean.detail["piece"])
        label = 6 + piece.piece_type * (1 if piece.color else -1)
        for condition, layer, probe in (("edit-0", 0, "probe-of-embeddings"), ("edit-1", 1, "probe-white")):
            weight = load_probe(squares.inputs, run_of(squares, probe), 0).weight[:, square, label]
            vector = -torch.from_numpy(weight / np.linalg.norm(weight))

            def hook(module, arguments, residual, vector=vector):
                length = 0.5 * model.network.ln_f(residual[:, -1:]).norm(dim=-1, keepdim=True)
                return torch.cat([residual[:, :-1], residual[:, -1:] + vector * length], 1)

            handle = model.blocks[layer].register_forward_hook(hook)
            try:
                p = model.logits(tokens)[0, -1].softmax(-1).double().numpy()
            finally:
                handle.remove()
            begun = p[begins(chess.Board(clean.fen))].sum()
            assert rows[condition].mass_original == pytest.approx(begun, abs=1e-5)


def test_a_scale_that_falls_with_the_position(squares):
    """The AAAI variant of 6.1: α(i) = α₀ exp(-k i), i the index of the edited token."""
    _, by_unit = ran(squares, **GAMES, layers=(1,), decay=0.05, random_controls=0, shuffled_label_controls=0)
    for rows in done(by_unit):
        detail, index = rows["edit"].detail, 2 * rows["clean"].ply
        assert detail["scales"][0] == pytest.approx(0.5 * np.exp(-0.05 * index))
        assert detail["edit_norm"] == pytest.approx(detail["scales"][0] * detail["reference_norm"], rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**CASE, "board": "d6=."}, "d6, which is empty"),
        ({**CASE, "board": "e1=."}, "not leave exactly one white king"),
        ({**CASE, "board": "e2=K"}, "not leave exactly one white king"),
        ({**CASE, "board": "e3=k"}, "does not leave exactly one black king"),
        ({**CASE, "board": "d1=p"}, "a pawn on rank 1 or 8"),
        ({**CASE, "board": "f7=P"}, "leaves Black's king in check, and White is to move"),
        ({**CASE, "board": "d5=p"}, "changes nothing"),
        ({**CASE, "board": "d5=x"}, "not a change of a board"),
        ({**CASE, "board": "d5=. d5=p"}, "names d5 twice"),
        ({**GAMES, "board": "d5=."}, "position of --moves"),
        ({**CASE, "probe": "probe-black"}, "--probe was fitted at black-turns, and White is to move after 2 plies"),
        ({**GAMES, "black_probe": "probe-dots"}, "--black-probe was fitted at dots, where White is to move"),
        ({**CASE, "layers": (3,), "probe_shift": -1}, "the model has no layer 3"),
        (
            {**CASE, "layers": (), "probe_shift": -5},
            "no layer [567]: the probe of layer [012] is best, and --probe-shift is -5",
        ),
        ({**GAMES, "black_probe": None}, "Black is to move after 9 plies .*--black-probe"),
        ({**GAMES, "prefixes": (34, 36)}, "about 69 tokens after 34 plies, but the model's context is 64 tokens"),
        ({**CASE, "probe": "reference-board"}, "another checkpoint"),
        ({**CASE, "checkpoint": "reference", "probe": "reference-board"}, "do not name squares or moves"),
        ({"moves": " ".join(["Nf3", "Nf6", "Ng1", "Ng8"] * 8)}, "65 tokens, .* 64 positions"),
        ({**CASE, "scale_rule": "single_target"}, "is not available for edits that read the next token"),
        ({**CASE, "layers": (3,)}, "no probe reads layer 3"),
        ({**CASE, "layers": (0,), "probe_shift": -1}, "no probe reads layer -1 for layer 0: --probe-shift is -1"),
        ({**GAMES, "per_game": 3}, "--per-game both set the states to use"),
        ({**GAMES, "other_probes": ("probe-white",)}, "needs --other-black-probes"),
        ({**GAMES, "prefixes": (4, -1)}, "--prefixes must be plies"),
        ({**GAMES, "prefixes": (600, 500)}, "every game ends earlier, the longest after [0-9]{2,3} plies"),
        ({**CASE, "other_probes": ("probe-0", "probe-1", "probe-white")}, "no probe reads layer 1"),
        ({**CASE, "prefixes": (4,)}, "--prefixes needs games"),
    ],
)
def test_bad_input_is_one_line(squares, settings, message):
    with pytest.raises(BadInputError, match=message) as caught:
        ran(squares, **{"layers": (1,), "black_probe": None, **settings} | (
            {} if "black_probe" in settings or settings.get("moves") or settings.get("probe") else
            {"black_probe": "probe-black"}
        ))  # fmt: skip
    assert "\n" not in str(caught.value)


def test_a_pawn_that_is_moved_back_cannot_be_taken_in_passing(squares):
    """Behind the pawn on e6 the one on e5 has no other move than that capture."""
    case = {"moves": "e2e4 e7e6 e4e5 d7d5", "board": "d5=. d7=p"}
    report, by_unit = ran(squares, **case, layers=(1,), black_probe=None)
    [rows] = by_unit.values()
    target = chess.Board("rnbqkbnr/pppp1ppp/4p3/4P3/8/8/PPPP1PPP/RNBQKBNR w KQkq - 0 3")
    assert rows["clean"].detail["target"] == target.fen()
    assert rows["clean"].detail["target_status"] == chess.STATUS_VALID
    clean = load_probabilities(squares.inputs, report.run_id, 0)["clean"]
    assert rows["clean"].mass_modified == pytest.approx(clean[begins(target)].sum(), abs=1e-5)


def test_the_board_is_one_text_however_it_is_typed():
    given = {"checkpoint": "c", "probe": "p", "moves": "e2e4 d7d5"}
    one, other = (NextTokenEditSpec(**given, board=text) for text in ("e5=p d7=p, d5=. e7=.", CASE["board"]))
    assert get_hashed_settings(one) == get_hashed_settings(other)
    assert NextTokenEditSpec(**get_hashed_settings(one)) == one
    assert (one.scale_rule, one.scale, one.token_mask) == ("ln-final", 0.5, "last")
    assert parse_board_changes(one.board) == [(35, "."), (36, "p"), (51, "p"), (52, ".")]


@pytest.mark.slow
def test_queries_of_legal_move_mass(squares, everything):
    """Means over cases, differences from the same cases' clean rows, and the scale chosen on the other half."""
    report, by_unit = everything
    rows = [row for row in squares.query("legal move mass by edit").rows if UUID(str(row["run_id"])) == report.run_id]
    cases = done(by_unit)
    by_type = {(row["type"], row["scale"]): row for row in rows}
    assert {name for name, _ in by_type} == {"None", "Random", "Patch", "Probe", "Probe 1", "Shuffled"}
    for name, condition in (("Probe", "edit-1"), ("Patch", "patch-1"), ("Random", "random-1")):
        row, own = by_type[name, 0.5], [(case["clean"], case[condition]) for case in cases]
        target = np.array([edit.mass_modified for _, edit in own])
        clean = np.array([clean.mass_modified for clean, _ in own])
        assert row["cases"] == len(own)
        assert row["target"] == pytest.approx(target.mean(), abs=1e-9)
        assert row["target_sd"] == pytest.approx(target.std(ddof=1), abs=1e-9)
        assert row["gain"] == pytest.approx((target - clean).mean(), abs=1e-9)
        assert row["future"] == pytest.approx(np.mean([edit.detail["mass_future"] for _, edit in own]), abs=1e-9)
        assert row["argmax_kept"] == pytest.approx(100 * np.mean([edit.detail["argmax_kept"] for _, edit in own]))
        assert row["protocol"] == "own"
    random = np.array([case["random-1"].mass_modified for case in cases])
    probe = np.array([case["edit-1"].mass_modified for case in cases])
    assert by_type["Probe", 0.5]["minus_random"] == pytest.approx((probe - random).mean(), abs=1e-9)
    between = [
        row for row in squares.query("legal move mass between edits").rows if UUID(str(row["run_id"])) == report.run_id
    ]
    pair = {(row["type"], row["minus"], row["scale"]): row for row in between}
    assert (
        len(pair) == len(between) == 30
    )  # Probe, Probe 1, Patch, Shuffled, Random and None, two by two, at two scales
    other = np.array([case["other1-1"].mass_modified for case in cases])
    assert pair["Probe", "Probe 1", 0.5]["difference"] == pytest.approx((probe - other).mean(), abs=1e-9)
    differences, clean = probe - random, np.array([case["clean"].mass_modified for case in cases])
    assert pair["Probe", "Random", 0.5]["difference"] == pytest.approx(differences.mean(), abs=1e-9)
    assert pair["Probe", "Random", 0.5]["cases"] == len(cases)
    assert pair["Random", "None", 0.5]["difference"] == pytest.approx((random - clean).mean(), abs=1e-9)
    t = differences.mean() / (differences.std(ddof=1) / len(cases) ** 0.5)
    assert (pair["Probe", "Random", 0.5]["paired_log10_p"] < np.log10(0.5)) == (t > 0)
    assert by_type["None", None]["gain"] is None
    assert by_type["Probe", 0.0]["gain"] == 0
    strength = [row for row in squares.query("edit strength").rows if UUID(str(row["run_id"])) == report.run_id]
    [shared, *_] = render_result(squares.query("edit strength", run=report.run_id.hex), "table").splitlines()
    assert "layers [1]" in shared  # a list that every row has is above the table
    for row in strength:
        halves = {"choose": [], "report": []}
        name = {"Probe": "edit", "Patch": "patch", "Random": "random", "Shuffled": "shuffled", "Probe 1": "other1"}
        for case in cases:
            edit = case[f"{name[row['type']]}-{int(row['scale'] > 0)}"]
            halves[edit.detail["half"]].append(edit.mass_modified)
        assert row["chosen_on"] == pytest.approx(np.mean(halves["choose"]), abs=1e-9)
        assert row["target"] == pytest.approx(np.mean(halves["report"]), abs=1e-9)
        other = next(r for r in strength if r["type"] == row["type"] and r["scale"] != row["scale"])
        assert row["chosen"] == (row["chosen_on"] > other["chosen_on"])
    squares_rows = [
        row for row in squares.query("legal move mass by square").rows if UUID(str(row["run_id"])) == report.run_id
    ]
    assert sum(row["cases"] for row in squares_rows if row["type"] == "Probe" and row["scale"]) == len(cases)
    layers = [
        row for row in squares.query("legal move mass by layer").rows if UUID(str(row["run_id"])) == report.run_id
    ]
    assert {row["layer"] for row in layers} == {1}
    published = compare_with_published(squares.database, squares.query("legal move mass by edit")).rows
    lines = [row for row in published if row["column"] == "argmax as of None" and row["row"] == "Probe"]
    assert lines
    assert all("checkpoint: not the paper's (no tag davis-2026:gpt)" in row["comparison"] for row in lines)
    assert any("patch unit, the paper's raw" in row["comparison"] for row in lines)
    assert not any(row["comparison"] == "comparable" for row in published)


@pytest.mark.slow
def test_edits_by_saes_of_two_expansions_are_held_against_each_other_on_the_same_cases(squares):
    small = {"cache": "cache-white", "layers": (1,), "l1_coefficient": 0.5, "heldout_games": 2, "boards": 0}
    probes = [f"of-{expansion}x" for expansion in (1, 2)]
    mass = {}
    for probe, expansions, chosen in zip(probes, ((1,), (1, 2)), (None, 2), strict=True):
        sae = SaeSpec(**small, expansions=expansions, tokens=400, batch_tokens=100)
        squares.run(sae, SaeOptions(threads=1), name=f"saes-of-{probe}")
        contrast = ProbeSpec(
            cache="cache-white", layers=(1,), source="sae-contrast", sae=f"saes-of-{probe}", expansion=chosen
        )
        squares.run(contrast, ProbeOptions(threads=1), name=probe)
    for probe, games in zip(probes, (8, 5), strict=True):
        _, by_unit = ran(
            squares, dataset="sample:test", games=games, prefixes=(4,), layers=(1,), scale=2.0,
            probe=probe, black_probe=None, random_controls=0, shuffled_label_controls=0,
        )  # fmt: skip
        mass[probe] = {(case["clean"].item, case["clean"].ply): case["edit"].mass_modified for case in done(by_unit)}
    [row] = squares.query("legal move mass by expansion").rows
    both = mass["of-1x"].keys() & mass["of-2x"].keys()
    assert 0 < len(both) < len(mass["of-1x"])
    differences = [mass["of-2x"][case] - mass["of-1x"][case] for case in both]
    assert (row["type"], row["expansion"], row["minus"], row["cases"]) == ("CD-Probe", 2, 1, len(both))
    assert row["difference"] == pytest.approx(np.mean(differences), abs=1e-9)
    assert row["difference"] != 0

    squares.run(contrast.model_copy(update={"min_class_positions": 5}), ProbeOptions(threads=1), name="otherwise")
    edit = {"dataset": "sample:test", "games": 5, "prefixes": (4,), "scale": 2.0,
            "layers": (1,), "black_probe": None, "random_controls": 0, "shuffled_label_controls": 0}  # fmt: skip
    for probe, settings in (("otherwise", {}), ("of-2x", {"token_mask": "turns"}), ("of-2x", {"class_mean": "remove"}),
                            ("of-2x", {"decay": 0.1})):  # fmt: skip
        ran(squares, **edit | settings, probe=probe)
    assert len(squares.query("legal move mass by expansion").rows) == 1  # not edited, or not made, as the smaller ones
    ran(squares, **edit, probe="of-2x", patch="unit")
    assert len(squares.query("legal move mass by expansion").rows) == 2  # a patch in the same run changes no edit


def test_probes_of_one_sort_are_types_of_their_own(squares):
    """Two probes of one sort in a run, as by two SAEs: each is held against the other, and against all else."""
    for threshold in (5, 6):
        means = ProbeSpec(cache="cache-white", layers=(1,), source="means", min_class_positions=threshold)
        squares.run(means, ProbeOptions(threads=1), name=f"means-{threshold}")
    report, by_unit = ran(
        squares, dataset="sample:test", games=8, prefixes=(4,), layers=(1,), scale=2.0,
        probe="means-5", other_probes=("means-6", "probe-1"), black_probe=None, random_controls=2,
        shuffled_label_controls=0,
    )  # fmt: skip
    cases, run = done(by_unit), report.run_id.hex
    mass = {
        name: np.mean([case[name].mass_modified for case in cases]) for name in ("edit", "other1", "other2", "clean")
    }
    mass["random"] = np.mean([[case[f"random-{draw}"].mass_modified for draw in range(2)] for case in cases])
    types = {"Probe": "other2", "DM-Probe": "edit", "DM-Probe 1": "other1", "Random": "random", "None": "clean"}
    by_edit = {
        row["type"]: row for row in squares.query("legal move mass by edit", run=run).rows if row["type"] != "Random"
    }
    assert {name: row["probe"] for name, row in by_edit.items()} == {
        "Probe": "probe-1", "DM-Probe": "means-5", "DM-Probe 1": "means-6", "None": None
    }  # fmt: skip
    between = {(row["type"], row["minus"]): row for row in squares.query("legal move mass between edits", run=run).rows}
    assert set(between) == set(itertools.combinations(types, 2))
    for (name, minus), row in between.items():
        assert (row["target"], row["other"]) == pytest.approx((mass[types[name]], mass[types[minus]]), abs=1e-9)
