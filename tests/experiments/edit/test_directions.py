"""Golden test 8: the scale that a target rule gives puts the probe's logit at the target, at the dot."""

from __future__ import annotations

from types import SimpleNamespace

import chess
import numpy as np
import pytest
import torch

from chessreg.encodings import get_encoding
from chessreg.errors import BadInputError, ChessregError, NotFoundError
from chessreg.experiments.edit.model import PieceRemovals, check_finite
from chessreg.experiments.edit.spec import EditSpec, list_edit_settings, parse_layers
from chessreg.experiments.edit.states import State, remove_moving_piece
from chessreg.games.datasets.labels import classify_pieces
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.language_model import LanguageModel
from chessreg.runs.fitted import FittedProbe
from chessreg.steering.conditions import EditCondition, EditSetting
from chessreg.steering.controls import shuffle_pieces
from chessreg.steering.directions import compute_change_directions, find_known_pieces
from chessreg.steering.scale_rules import SCALE_RULES, ScaleRule, solve_target_scale

GAMES = [(";1.", "e2e4"), (";1.e4 e5 2.", "g1f3"), (";1.d4 d5 2.c4 e6 3.Nc3 Nf6 4.", "c1g5")]
PGN = get_encoding("pgn-char-32")
RANDOM = {"checkpoint": "c", "probe": "p", "dataset": "d"}


def removals():
    found = []
    for unit, (prompt, move) in enumerate(GAMES):
        board = chess.Board()
        for san in prompt[1:].split()[:-1]:
            board.push_san(san.split(".")[-1])
        found.append(
            remove_moving_piece(
                State(unit, unit, board.ply(), tuple(PGN.encode(prompt).tolist()), board), chess.Move.from_uci(move)
            )
        )
    return found


def edited_model(centred: bool = False, **settings) -> PieceRemovals:
    """A random model of three layers with random probes, made without a registry."""
    hf = make_random_gpt2(GPT2Config(n_layer=3, n_head=4, n_embd=32, block_size=96, vocab_size=32), 5)
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter *= 4 if parameter.dim() == 2 else 1
        hf.wte.weight += 0.5  # a residual with a nonzero mean
    made = PieceRemovals.__new__(PieceRemovals)
    made.spec = EditSpec(**RANDOM | settings)
    made.model, made.encoding = LanguageModel(hf), PGN
    made.rule = SCALE_RULES[made.spec.scale_rule]
    made.shuffled_probes, made.black = {}, {}
    noise = np.random.default_rng(3)
    made.probes = {
        layer: FittedProbe(noise.normal(0.1, 1, (32, 64, 13)).astype(np.float32), "", layer, "piece", centred)
        for layer in range(3)
    }
    return made


def edit_of(setting: EditSetting) -> EditCondition:
    return EditCondition("edit", setting, "edit")


def logits(edited: PieceRemovals, layer: int, edits, row: int, centred: bool) -> np.ndarray:
    """The probe's logits [64, 13] at the dot under edits; the mean that edits add stays in, as in TransformerLens."""
    prompt = torch.tensor([PGN.encode(GAMES[row][0]).tolist()])
    own = [edit.take(torch.tensor([row])) for edit in edits]
    residual = edited.model.residuals(prompt, [layer], edits=own)[0, 0, -1].double().numpy()
    if centred:
        added = sum(edit.delta(torch.zeros(1, 1, 32))[0, 0].double().numpy() for edit in own if edit.layer <= layer)
        residual = residual - (residual - added).mean()
    return np.einsum("d,dsk->sk", residual, edited.probes[layer].weight)


@pytest.mark.parametrize("positions", ["all", "last", "white-segments"])
@pytest.mark.parametrize("centred", [False, True])
def test_the_logit_equals_the_target(positions, centred):
    """s = (a·p - T) / (v·p), a already edited at lower layers; with centred probes on a raw model too (2.3)."""
    edited = edited_model(centred, scale_rule="single_target", token_mask=positions, blank=0.3)
    taken = removals()
    edits = edited.build_edits(
        edit_of(EditSetting(0, (0, 2), -9.0)), [PGN.encode(prompt).tolist() for prompt, _ in GAMES], taken
    )
    for row, removed in enumerate(taken):
        for edit in edits:
            before = logits(edited, edit.layer, [], row, centred)[removed.square, removed.label]
            after = logits(edited, edit.layer, edits, row, centred)[removed.square, removed.label]
            assert after == pytest.approx(-9.0, abs=1e-3)
            assert before != pytest.approx(-9.0, abs=0.1)


def test_the_average_target_is_the_mean_of_other_squares_and_an_offset():
    edited = edited_model(scale_rule="average_target")
    taken = removals()
    edits = edited.build_edits(
        edit_of(EditSetting(0, (1,), 2.5)), [PGN.encode(prompt).tolist() for prompt, _ in GAMES], taken
    )
    for row, removed in enumerate(taken):
        values = np.zeros((1, 64), np.int8)
        for square, found in removed.state.board.piece_map().items():
            values[0, square] = found.piece_type * (1 if found.color else -1)
        clean = logits(edited, 1, [], row, False)[:, removed.label]
        target = clean[classify_pieces(values)[0] != removed.label].mean() + 2.5
        after = logits(edited, 1, edits, row, False)[removed.square, removed.label]
        assert after == pytest.approx(target, abs=1e-3)


def test_a_centred_probe_on_a_raw_model_gives_the_scale_of_the_centred_model():
    """The probe's constant part sees nothing of a centred residual: shifting the raw residual must not matter."""
    scales = []
    for shift in (0.0, 3.0):
        edited = edited_model(True, scale_rule="single_target")
        with torch.no_grad():
            edited.model.network.wpe.weight += shift  # every layer norm takes it out again
        prompts = [PGN.encode(prompt).tolist() for prompt, _ in GAMES]
        scales.append(
            [edit.scale for edit in edited.build_edits(edit_of(EditSetting(0, (0, 1), -9.0)), prompts, removals())]
        )
    for one, other in zip(*scales, strict=True):
        assert torch.allclose(one, other, atol=1e-3)


def test_directions_are_unit_vectors_of_the_right_class():
    edited = edited_model(blank=0.5, piece=2.0)
    weight, taken = edited.probes[1].weight, removals()
    setting = EditSetting(0, (1,), 1.0)
    real = edited.compute_vectors(edit_of(setting), 1, taken, "all")
    for vector, removed in zip(real, taken, strict=True):
        blend = 2.0 * weight[:, removed.square, removed.label] - 0.5 * weight[:, removed.square, 6]
        assert vector == pytest.approx(blend / np.linalg.norm(blend), abs=1e-6)
    for source in ("random", "shuffled"):
        first, second = (EditCondition(f"{source}-{draw}", setting, source, draw) for draw in range(2))
        drawn = edited.compute_vectors(first, 1, taken, "all")
        assert np.linalg.norm(drawn, axis=1) == pytest.approx(1, abs=1e-5)
        assert drawn == pytest.approx(edited.compute_vectors(first, 1, taken, "all"))
        assert not np.allclose(drawn, edited.compute_vectors(second, 1, taken, "all")), source
        assert edited.compute_vectors(first, 1, taken[1:], "all") == pytest.approx(drawn[1:])  # for any batch size
    plain = edited_model()
    for draw in range(20):  # another piece on the same square, never the actual one and never empty
        condition = EditCondition("shuffled", setting, "shuffled", draw)
        for vector, removed in zip(plain.compute_vectors(condition, 1, taken, "all"), taken, strict=True):
            on_square = weight[:, removed.square] / np.linalg.norm(weight[:, removed.square], axis=0)
            [label] = np.flatnonzero(np.abs(on_square.T @ vector - 1) < 1e-4)
            assert label not in (removed.label, 6)


def test_controls_are_as_long_as_the_edit_of_the_same_state():
    edited = edited_model(scale_rule="single_target")
    edited.settings = [EditSetting(0, (0, 2), -4.0)]
    taken = removals()
    real = edited.build_edits(edit_of(edited.settings[0]), [PGN.encode(prompt).tolist() for prompt, _ in GAMES], taken)
    for condition in edited.list_conditions()[1:]:
        for edit, control in zip(real, edited.build_edits(condition, [], taken, real), strict=True):
            assert (control.layer, control.token_mask) == (edit.layer, edit.token_mask)
            lengths = [torch.linalg.norm(e.delta(torch.zeros(1, 1, 32)), dim=-1) for e in (edit, control)]
            assert torch.allclose(*lengths, rtol=1e-4)
            assert not torch.allclose(edit.vector, control.vector, atol=0.1)


def test_with_black_probes_each_side_s_characters_are_edited_by_its_own():
    """The author's branch both_probes: two edits a layer that share no position; controls likewise."""
    edited = edited_model(black_probe="b", random_controls=1)
    noise = np.random.default_rng(4)
    edited.black = {
        layer: FittedProbe(noise.normal(0, 1, (32, 64, 13)).astype(np.float32), "", layer, "piece", False)
        for layer in range(3)
    }
    taken, prompts = removals(), [PGN.encode(prompt).tolist() for prompt, _ in GAMES]
    setting = EditSetting(0, (0, 2), 1.5)
    real = edited.build_edits(edit_of(setting), prompts, taken)
    assert [(edit.layer, edit.token_mask) for edit in real] == [
        (layer, f"{side}-segments") for layer in (0, 2) for side in ("white", "black")
    ]
    white, black = real[2:]
    for row, removed in enumerate(taken):
        for edit, probes in ((white, edited.probes), (black, edited.black)):
            direction = probes[2].weight[:, removed.square, removed.label]
            assert edit.vector[row].numpy() == pytest.approx(direction / np.linalg.norm(direction), abs=1e-6)
    row = 2
    tokens = torch.tensor([prompts[row]])
    own = [edit.take(torch.tensor([row])) for edit in real[:2]]
    moved = (edited.model.residuals(tokens, [0], edits=own) - edited.model.residuals(tokens, [0]))[0, 0]
    by_white = torch.tensor([GAMES[row][0][: end + 1].count(" ") % 2 == 0 for end in range(tokens.shape[1])])
    expected = torch.where(by_white[:, None], own[0].vector, own[1].vector)
    assert torch.allclose(moved, -1.5 * expected, atol=1e-4)
    for condition in (EditCondition("random-0", setting, "random"), EditCondition("shuffled-0", setting, "shuffled")):
        control = edited.build_edits(condition, [], taken, real)
        assert [(c.layer, c.token_mask, c.scale) for c in control] == [(e.layer, e.token_mask, e.scale) for e in real]
        assert not torch.allclose(control[0].vector, real[0].vector)


def test_rules_are_known_by_name_once():
    of_the_residual = ["ln-final", "ln-next", "residual-norm"]
    assert list(SCALE_RULES) == ["single_scale", "single_target", "average_target", *of_the_residual]
    with pytest.raises(NotFoundError, match="single_target"):
        SCALE_RULES["double"]
    with pytest.raises(ValueError, match="registered already"):
        SCALE_RULES["single_scale"] = ScaleRule()
    flat = torch.ones(1, 4)
    with pytest.raises(ChessregError, match="does not change"):
        solve_target_scale(flat, torch.tensor([[1.0, -1.0, 0.0, 0.0]]), flat, torch.zeros(1))


def test_layer_sets_and_scales_multiply():
    assert parse_layers("5+3-4") == (3, 4, 5)
    for wrong in ("", "3-", "6-3", "a", "3,4"):
        with pytest.raises(BadInputError, match="set of layers"):
            parse_layers(wrong)
    inputs = SimpleNamespace()
    spec = EditSpec(**RANDOM, layer_sets=("3-4", "7"), scales=(1.5, -9.0))
    assert [(s.number, s.layers, s.value) for s in list_edit_settings(spec, inputs)] == [
        (0, (3, 4), 1.5),
        (1, (3, 4), -9.0),
        (2, (7,), 1.5),
        (3, (7,), -9.0),
    ]
    with pytest.raises(BadInputError, match="twice"):
        list_edit_settings(EditSpec(**RANDOM, layer_sets=("3", "3-3")), inputs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": (1,), "layer_sets": ("2",)}, "both set the layers to edit"),
        ({"scale": 3.0, "scales": (1.0, 2.0)}, "both set the strength of the edit"),
        ({"layers_label": "4-7"}, "give --layers"),
        ({"shuffled_label_controls": 0, "shuffled_probe": "x"}, "--shuffled-label-controls is 0"),
        ({"black_probe": "x", "token_mask": "last"}, "edits all tokens"),
        ({"black_probe": "x", "scale_rule": "single_target"}, "by a length"),
        ({"piece": 0.0}, "leave no direction"),
        ({"per_game": 31}, "--per-game 31 is more than --last-move 30"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(BadInputError) as caught:
        EditSpec(**RANDOM, **settings)
    assert message in f"{caught.value} {caught.value.hint}"


def test_a_change_of_the_board_adds_what_appears_and_takes_off_what_disappears():
    """Unit length, the empty class only by its own coefficient; nothing where a class has no direction."""
    weight = np.random.default_rng(0).standard_normal((8, 64, 13)).astype(np.float32)
    removal = ((12, 7, 6),)
    [vector] = compute_change_directions(weight, [removal], 1.0, 0.0)
    assert vector == pytest.approx(-weight[:, 12, 7] / np.linalg.norm(weight[:, 12, 7]), abs=1e-6)
    [vector] = compute_change_directions(weight, [removal], 1.0, 1.0)
    wanted = weight[:, 12, 6] - weight[:, 12, 7]
    assert vector == pytest.approx(wanted / np.linalg.norm(wanted), abs=1e-6)
    shifted = weight + np.arange(8, dtype=np.float32)[:, None, None]  # one vector added to all classes
    assert compute_change_directions(shifted, [removal], 1.0, 0.0, True) == pytest.approx(
        compute_change_directions(weight, [removal], 1.0, 0.0, True), abs=1e-5
    )
    weight[:, 12, 7] = 0
    assert not compute_change_directions(weight, [removal], 1.0, 0.0).any()
    assert not compute_change_directions(weight, [removal], 1.0, 0.0, True).any()
    assert compute_change_directions(weight, [((12, 6, 8),)], 1.0, 0.0).any()


def test_labels_are_dealt_among_the_pieces_that_the_probe_knows():
    weight = np.zeros((8, 64, 13), np.float32)
    weight[:, 12, [6, 7, 9]] = 1.0
    assert find_known_pieces(weight, 12) == [7, 9]
    assert find_known_pieces(weight, 13) == []
    drawn = {
        shuffle_pieces(0, draw, 3, [(12, 7, 6)], lambda square: find_known_pieces(weight, square))[0]
        for draw in range(9)
    }
    assert drawn == {(12, 9, 6)}


def test_probes_that_hold_nan_are_refused():
    weight = np.full((8, 64, 13), np.nan, np.float32)
    with pytest.raises(BadInputError, match="layer 3 has NaN"):
        check_finite(FittedProbe(weight, "blocks.3.hook_resid_post", 3, "piece", False))
