"""Maia-2, compared with the results of the package maia2 (tests/fixtures/maia2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch
from torch import Tensor

from chessreg.encodings.maia2 import Maia2Encoding
from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.adapters.maia2 import Maia2
from chessreg.models.checkpoint import load_model
from chessreg.models.decoding.policies import ModelTurn, choose_moves, make_policy
from chessreg.models.decoding.session import open_decoding_session
from chessreg.models.edits import ResidualEdit
from chessreg.models.importers import ImportReport, UnrecordedSettings, check_import, convert_checkpoint
from chessreg.models.importers.source import CheckpointSource
from chessreg.models.language_model import LanguageModel
from tests.fixtures.maia2.make import HERE, SIDE_INFO
from tests.models.foreign import draw_maia2_weights as draw
from tests.models.foreign import save_maia2_file

with np.load(HERE / "expected.npz") as file:
    EXPECTED = dict(file)
FACTS = json.loads(EXPECTED.pop("facts").tobytes())
POSITIONS = list(enumerate(FACTS["positions"]))
maia = Maia2Encoding()


def imported(path: Path, folder: Path, **given: Any) -> ImportReport:
    return convert_checkpoint(path, folder, settings=UnrecordedSettings(**given))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_maia2_file(tmp_path_factory.mktemp("maia2") / "rapid_model.pt").parent


@pytest.fixture(scope="module")
def model(root: Path) -> LanguageModel:
    imported(root / "rapid_model.pt", root / "default")
    return LanguageModel.load(root / "default")


def with_ratings(model: LanguageModel, rating: int, opponent: int) -> LanguageModel:
    """The same weights with other ratings."""
    assert isinstance(model.network, Maia2)
    settings = {**model.network.shape(), "rating": rating, "opponent_rating": opponent}
    config = Maia2.config_type(**{name: settings[name] for name in Maia2.config_type.__dataclass_fields__})
    return LanguageModel(Maia2.from_weights(config, model.network.state_dict()), model.info)


def encode(*boards: str | chess.Board) -> Tensor:
    return torch.from_numpy(maia.boards(boards).ids.reshape(-1, 77).astype(np.int64))


def test_the_moves_are_those_of_the_package() -> None:
    assert list(maia.moves) == FACTS["moves"]


@pytest.mark.parametrize(("number", "position"), POSITIONS)
def test_all_heads_give_the_logits_of_the_package(number: int, position: Any, model: LanguageModel) -> None:
    network = with_ratings(model, *position["ratings"]).network
    assert isinstance(network, Maia2)
    with torch.inference_mode():
        policy, side_info, value = network.predict_heads(encode(position["fen"]))
    for ours, theirs in ((policy[0], "policy"), (side_info[0, SIDE_INFO], "side_info"), (value[0], "value")):
        np.testing.assert_allclose(ours.numpy(), EXPECTED[theirs][number], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("number", "position"), POSITIONS)
def test_legal_moves_have_the_probabilities_of_their_inference(
    number: int, position: Any, model: LanguageModel
) -> None:
    """The package rounds them to four decimals."""
    own, board = with_ratings(model, *position["ratings"]), chess.Board(position["fen"])
    answers = maia.answers(board)
    logits = own.logits(encode(board))[0, 0, [ids[0] for ids in answers.values()]]
    ours = dict(zip((move.uci() for move in answers), logits.softmax(-1).tolist(), strict=True))
    assert ours == pytest.approx(position["probabilities"], rel=0, abs=1.5e-4)
    session = open_decoding_session(own, 1)
    session.sync([maia.prompt(board)])
    [choice] = choose_moves(make_policy("legal", (0.0,)), session, maia, [ModelTurn(0, board, ("test",))])
    assert str(choice.move) == max(ours, key=ours.__getitem__)


def test_positions_and_ratings_differ_by_more_than_the_tolerance() -> None:
    policy = EXPECTED["policy"]
    apart = np.abs(policy[:, None] - policy[None]).max(-1) + np.eye(len(policy))
    assert apart.min() > 0.05


def test_an_import_records_format_ratings_and_a_loss(root: Path, tmp_path: Path) -> None:
    report = imported(root / "rapid_model.pt", tmp_path / "made", rating=1900)
    info = report.info
    assert (report.format, info.encoding, info.head, info.attention) == ("maia2", "maia-2", "action", "bidirectional")
    assert (info.architecture["rating"], info.architecture["opponent_rating"]) == (1900, 1900)
    assert info.parameters == sum(p.numel() for p in load_model(tmp_path / "made").parameters())
    assert report.max_logit_difference < 1e-5
    assert "1900 against 1900" in report.remarks[0]
    assert (report.games.games, report.games.turns) == (20, 95)
    assert report.games.loss is not None
    assert report.games.legal is not None
    other = imported(root / "rapid_model.pt", tmp_path / "other", rating=1900, opponent_rating=1200)
    assert other.digest != report.digest


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [
        ("", "bare"),
        ("module.", "training"),
        ("_orig_mod.", "bare"),
        ("module._orig_mod.", "training"),
        ("net._orig_mod.", "lightning"),
    ],
)
def test_wrappers_and_containers_change_nothing(prefix: str, kind: str, tmp_path: Path, model: LanguageModel) -> None:
    state = {f"{prefix}{name}": tensor for name, tensor in draw().items()}
    content = {"training": {"model_state_dict": state}, "lightning": {"state_dict": state, "epoch": 1}, "bare": state}
    torch.save(content[kind], tmp_path / "file.pt")
    imported(tmp_path / "file.pt", tmp_path / "made")
    ours, theirs = load_model(tmp_path / "made").state_dict(), model.network.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_safetensors_and_halves_are_read(tmp_path: Path, model: LanguageModel) -> None:
    from safetensors.torch import save_file

    save_file(draw(), tmp_path / "model.safetensors")
    assert imported(tmp_path / "model.safetensors", tmp_path / "same").max_logit_difference < 1e-5
    for dtype in (torch.float16, torch.bfloat16):
        halved = {name: t.to(dtype) if t.is_floating_point() else t for name, t in draw().items()}
        save_maia2_file(tmp_path / "half.pt", halved)
        assert imported(tmp_path / "half.pt", tmp_path / str(dtype)).max_logit_difference < 1e-5
        close = LanguageModel.load(tmp_path / str(dtype)).logits(encode(chess.Board()))
        assert 0 < float((close - model.logits(encode(chess.Board()))).abs().max()) < 0.2


def without(name: str) -> dict[str, Tensor]:
    state = draw()
    del state[name]
    return state


DAMAGED: dict[str, tuple[Any, str]] = {
    "a missing matrix": (lambda: without("fc_3.weight"), "weights are missing: fc_3.weight"),
    "a missing block": (lambda: without("chess_cnn.layers.0.conv1.weight"), "weights are missing: chess_cnn.layers.0"),
    "no policy": (lambda: without("fc_1.weight"), "weight fc_1.weight is missing"),
    "an unknown weight": (
        lambda: {**draw(), "fc_9.weight": torch.zeros(2)},
        "no Maia-2 model of this shape has",
    ),
    "other moves": (
        lambda: {**draw(), "fc_1.weight": torch.zeros(1968, 12)},
        "1,968 moves, but Maia-2 has 1,880",
    ),
    "more planes": (
        lambda: {**draw(), "chess_cnn.conv1.weight": torch.zeros(6, 112, 3, 3)},
        "112 planes of the board, but Maia-2 has 18",
    ),
    "more ratings": (
        lambda: {**draw(), "elo_embedding.weight": torch.zeros(40, 5)},
        "40 categories of ratings",
    ),
    "a flat convolution": (lambda: {**draw(), "chess_cnn.conv1.weight": torch.zeros(6, 18)}, "has shape"),
    "a wrong shape": (
        lambda: {**draw(), "pos_embedding": torch.zeros(1, 4, 12)},
        "pos_embedding has shape",
    ),
    "no width": (lambda: {**draw(), "fc_1.weight": torch.zeros(1880, 0)}, "weight fc_1.weight is empty"),
    "a text": (
        lambda: {**draw(), "last_ln.bias": "zeros"},
        "last_ln.bias is not a tensor of floats but str",
    ),
    "integers": (
        lambda: {**draw(), "last_ln.bias": torch.zeros(12, dtype=torch.int64)},
        "not a tensor of floats",
    ),
    "NaN": (lambda: {**draw(), "fc_2.bias": torch.full((2021,), torch.nan)}, "fc_2.bias holds NaN"),
    "a negative variance": (
        lambda: {**draw(), "chess_cnn.bn1.running_var": -torch.ones(6)},
        "a variance in chess_cnn is negative",
    ),
    "a layer out of order": (
        lambda: {n.replace("elo_layers.1", "elo_layers.7"): t for n, t in draw().items()},
        "weights are missing: transformer.elo_layers.1",
    ),
    "no transformer": (
        lambda: {n: t for n, t in draw().items() if "elo_layers" not in n},
        "it has no transformer.elo_layers",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_refused_in_one_line_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    state, message = DAMAGED[case]
    with pytest.raises(BadInputError) as refused:
        imported(save_maia2_file(tmp_path / "model.pt", state()), tmp_path / "made")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "made").exists()


def test_two_weights_of_one_name_are_refused(tmp_path: Path) -> None:
    state = {**draw(), **{f"module.{name}": tensor for name, tensor in draw().items()}}
    with pytest.raises(BadInputError, match="twice, once as module"):
        imported(save_maia2_file(tmp_path / "model.pt", state, ""), tmp_path / "made")


def test_a_number_of_heads_that_does_not_fit_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="are not those of 7 heads"):
        imported(root / "rapid_model.pt", tmp_path / "made", heads=7)


def test_settings_of_other_models_are_refused(root: Path, tmp_path: Path) -> None:
    file = root / "rapid_model.pt"
    with pytest.raises(BadInputError, match="reads maia-2"):
        check_import(file, "fen-77")
    with pytest.raises(BadInputError, match="--vocabulary does not apply to maia-2"):
        check_import(file, vocabulary=file)
    (tmp_path / "meta.pkl").write_bytes(b"of another model in the same folder")
    check_import(save_maia2_file(tmp_path / "model.pt"))
    fixtures = HERE.parent / "searchless_chess" / "behavioral-cloning.npz"
    with pytest.raises(BadInputError, match="so it takes no ratings"):
        check_import(fixtures, settings=UnrecordedSettings(heads=2, rating=1500))
    with pytest.raises(BadInputError, match="reads fen-77"):
        check_import(fixtures, "maia-2", settings=UnrecordedSettings(heads=2))


def test_ratings_of_one_category_give_equal_logits(model: LanguageModel) -> None:
    tokens = encode(chess.Board())
    low, edge, above = (with_ratings(model, rating, 1500).logits(tokens) for rating in (1100, 1199, 1200))
    assert torch.equal(low, edge)
    assert not torch.equal(low, above)
    assert not torch.equal(with_ratings(model, 1500, 1200).logits(tokens), above)


def test_hooks_see_the_mean_of_the_patches_and_change_nothing(model: LanguageModel) -> None:
    tokens, network = encode(chess.Board(), FACTS["positions"][3]["fen"]), model.network
    plain = model.logits(tokens)
    points = list(network.hook_points)
    assert points[0] == "hook_embed"
    assert points[-1] == "ln_final.hook_out"
    seen = model.activations(tokens, points)
    assert all(seen[point].shape == (2, 77, 12) for point in points)
    assert all(torch.equal(seen[point][:, 0], seen[point][:, -1]) for point in points)
    row, token = torch.tensor([0, 1]), torch.tensor([76, 76])
    at = model.activations_at(tokens, points, row, token)
    assert all(torch.equal(at[point], seen[point][:, -1]) for point in points)
    assert isinstance(network, Maia2)
    assert torch.equal(seen["ln_final.hook_out"][:, -1:], network.read(tokens))
    assert torch.equal(model.logits(tokens), plain)


def test_an_edit_moves_the_mean_by_its_vector(model: LanguageModel) -> None:
    tokens, vector = encode(chess.Board()), torch.arange(12.0)
    for mask in ("all", "last", "turns"):
        edit = ResidualEdit(0, vector, 0.5, token_mask=mask)
        moved = model.residuals(tokens, [0], edits=[edit]) - model.residuals(tokens, [0])
        assert torch.allclose(moved[0, 0, -1], 0.5 * vector, atol=1e-5)
        after = model.logits(tokens, edits=[edit])
        assert not torch.allclose(after, model.logits(tokens), atol=1e-3)
        session = open_decoding_session(model, 1, [edit])
        session.sync([maia.prompt(chess.Board())])
        assert torch.allclose(session.logprobs, after[0].log_softmax(-1), atol=1e-5)


def test_only_the_end_of_a_position_has_sites(model: LanguageModel) -> None:
    assert maia.site_names == ("last", "turns", "white-turns", "black-turns", "all")
    with pytest.raises(BadInputError, match="no activations at squares: its tokens are maps of the whole board"):
        maia.sites("squares", maia.boards([chess.Board()]))
    with pytest.raises(NotFoundError, match="site of maia-2 'square' does not exist"):
        maia.sites("square", maia.boards([chess.Board()]))


def test_an_untrained_twin_has_the_shape_and_the_ratings(model: LanguageModel) -> None:
    one, other = model.network.make_untrained(3), model.network.make_untrained(3)
    assert one.shape() == model.network.shape()
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    assert not torch.equal(one(encode(chess.Board())), model.network.make_untrained(4)(encode(chess.Board())))


def test_other_tokens_than_a_position_are_refused(model: LanguageModel) -> None:
    with pytest.raises(BadInputError, match="reads 77 tokens, not 5"):
        model.logits(torch.zeros(1, 5, dtype=torch.int64))


def test_a_file_without_weights_of_maia_is_not_recognized() -> None:
    from chessreg.models.importers.maia2 import Maia2File

    assert not Maia2File().recognises(CheckpointSource(Path("a.pt"), {"model_state_dict": {"weight": torch.zeros(1)}}))
