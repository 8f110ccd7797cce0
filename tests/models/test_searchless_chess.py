"""DeepMind's searchless chess models, compared with the results of its code (tests/fixtures/searchless_chess)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch

from chessreg.encodings import get_encoding
from chessreg.encodings.fen77 import Fen77
from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.checkpoint import load_model
from chessreg.models.decoding.next_tokens import NextTokens
from chessreg.models.decoding.policies import ModelTurn, check_policy, choose_moves, make_policy
from chessreg.models.decoding.session import open_decoding_session
from chessreg.models.decoding.values import score_moves
from chessreg.models.edits import ResidualEdit
from chessreg.models.importers import ImportReport, UnrecordedSettings, convert_checkpoint
from chessreg.models.language_model import LanguageModel

HERE = Path(__file__).parents[1] / "fixtures" / "searchless_chess"
with np.load(HERE / "expected.npz") as file:
    EXPECTED = dict(file)
FENS = [str(fen) for fen in EXPECTED["fens"]]
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "behavioral_cloning": ("behavioral-cloning.npz", {}),
    "action_value": ("action-value.npz", {}),
    "state_value": ("state-value", {}),
    "causal": ("causal.npz", {"attention": "causal", "head": "state-value"}),
}
fen = Fen77()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LanguageModel]:
    """The imported models; that of state values comes from an orbax folder and needs tensorstore."""
    root, made = tmp_path_factory.mktemp("searchless"), {}
    for name, (file, given) in FILES.items():
        if file == "state-value" and find_spec("tensorstore") is None:
            continue
        imported(file, root / name, **given)
        made[name] = LanguageModel.load(root / name)
    return made


def imported(file: str, folder: Path, **given: Any) -> ImportReport:
    return convert_checkpoint(HERE / file, folder, settings=UnrecordedSettings(**{"heads": 2, **given}))


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Log-probabilities that differ by at most 1e-4."""
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def model_named(models: dict[str, LanguageModel], name: str) -> LanguageModel:
    if name not in models:
        pytest.skip("the extra orbax is not installed")
    return models[name]


def test_a_model_of_actions_gives_their_log_probabilities(models: dict[str, LanguageModel]) -> None:
    for number, text in enumerate(FENS):
        tokens = torch.from_numpy(fen.encode(text).astype(np.int64))[None]
        legal = sorted(fen.action_ids[move.uci()] for move in chess.Board(text).legal_moves)
        logits = models["behavioral_cloning"].logits(tokens)[0, 0, legal]
        theirs = EXPECTED[f"behavioral_cloning/{number}/log_probs"]
        assert_close(torch.log_softmax(logits, -1).numpy(), theirs)


@pytest.mark.parametrize("name", ["action_value", "state_value", "causal"])
def test_a_model_of_values_gives_their_buckets_of_every_legal_move(name: str, models: dict[str, LanguageModel]) -> None:
    model = model_named(models, name)
    for number, values in enumerate(score_moves(model, [chess.Board(text) for text in FENS])):
        own = "log_probs" if name == "action_value" else "next_log_probs"
        assert_close(values.log_probs, EXPECTED[f"{name}/{number}/{own}"])
        if name != "action_value":
            assert values.state is not None
            assert_close(values.state, EXPECTED[f"{name}/{number}/current_log_probs"])


@pytest.mark.parametrize("name", FILES)
def test_it_plays_the_moves_of_their_engine(name: str, models: dict[str, LanguageModel]) -> None:
    """The fourth board has occurred twice before a move that repeats it."""
    model = model_named(models, name)
    boards = [chess.Board(text) for text in FENS]
    repeated = chess.Board()
    for move in ("g1f3", "g8f6", "f3g1", "f6g8") * 2:
        repeated.push_uci(move)
    boards.append(repeated)
    session = open_decoding_session(model, len(boards))
    session.sync([fen.prompt(board) for board in boards])
    policy = make_policy(*(("legal", (0.0,)) if name == "behavioral_cloning" else ("value", ())))
    turns = [ModelTurn(row, board, ("test", row)) for row, board in enumerate(boards)]
    choices = choose_moves(policy, session, get_encoding("fen-77"), turns)
    assert [str(choice.move) for choice in choices] == EXPECTED[f"{name}/moves"].tolist()


@pytest.mark.parametrize("policy", ["legal", "free", "trie", "retry:5", "value"])
def test_every_policy_plays_legal_moves_of_a_model_of_values(policy: str, models: dict[str, LanguageModel]) -> None:
    model, boards = models["action_value"], [chess.Board(text) for text in FENS]
    session = open_decoding_session(model, len(boards))
    session.sync([fen.prompt(board) for board in boards])
    assert torch.allclose(session.logprobs.exp().sum(1), torch.ones(len(boards)))
    turns = [ModelTurn(row, board, ("test", row)) for row, board in enumerate(boards)]
    for choice, board in zip(choose_moves(make_policy(policy), session, fen, turns), boards, strict=True):
        assert choice.move is not None
        assert choice.move in board.legal_moves
        assert not choice.illegal


def test_the_policy_value_refuses_a_model_of_actions(models: dict[str, LanguageModel]) -> None:
    session = open_decoding_session(models["behavioral_cloning"], 1)
    session.sync([fen.prompt(chess.Board())])
    with pytest.raises(BadInputError, match="--policy legal"):
        choose_moves(make_policy("value"), session, fen, [ModelTurn(0, chess.Board(), ("test",))])
    check_policy("value", "state-value")
    check_policy("retry:5", "action")
    with pytest.raises(BadInputError, match="this one has the head next-token"):
        check_policy("value", "next-token")


def test_a_model_of_values_writes_no_tokens(models: dict[str, LanguageModel]) -> None:
    prompt = fen.prompt(chess.Board())
    with pytest.raises(BadInputError, match="predicts returns and writes no tokens"):
        NextTokens(models["action_value"], [prompt], [(0, 76)], [0])
    assert len(NextTokens(models["behavioral_cloning"], [prompt], [(0, 76)], [0])) == 1


def test_an_edit_of_one_row_changes_the_values_of_its_position_alone(models: dict[str, LanguageModel]) -> None:
    model, boards = models["action_value"], [chess.Board()] * 2
    vector = torch.zeros(2, model.d_model)
    vector[1] = torch.arange(8.0)  # not constant, which a LayerNorm takes away
    clean, edited = score_moves(model, boards, [ResidualEdit(0, vector)])
    np.testing.assert_allclose(clean.log_probs, score_moves(model, boards[:1])[0].log_probs, rtol=0, atol=1e-5)
    assert np.abs(clean.log_probs - edited.log_probs).max() > 1e-3
    session = open_decoding_session(model, 1)
    session.sync([fen.prompt(boards[0])])
    before = session.logprobs.clone()
    branch = session.branch([ResidualEdit(0, vector[1])])
    assert (branch.logprobs - before).nan_to_num(0).abs().max() > 1e-5


def test_activations_of_action_values_are_those_with_the_first_legal_action(models: dict[str, LanguageModel]) -> None:
    model = models["action_value"]
    tokens = torch.from_numpy(fen.encode(chess.STARTING_FEN).astype(np.int64))[None]
    activations = model.activations(tokens, ["blocks.1.hook_resid_post", "ln_final.hook_out"])
    assert all(array.shape == (1, 77, 8) for array in activations.values())
    first = min(fen.action_ids[move.uci()] for move in chess.Board().legal_moves)
    with torch.no_grad():
        whole = model.network.read(torch.cat([tokens, torch.tensor([[first]])], 1))  # type: ignore[operator]
    assert torch.equal(activations["ln_final.hook_out"], whole[:, 1:78])


def test_the_report_says_what_the_file_does_not_record(tmp_path: Path) -> None:
    report = imported("action-value.npz", tmp_path / "out")
    assert (report.format, report.info.encoding, report.info.head) == ("searchless_chess", "fen-77", "action-value")
    assert report.max_logit_difference < 1e-10
    assert report.remarks == [
        "2 attention heads, from --heads; bidirectional attention",
        "read as a model of action values; --predicts state-value for one that reads no action",
    ]
    other = imported("action-value.npz", tmp_path / "other", head="state-value")
    assert other.info.head == "state-value"


def arrays(name: str = "action-value.npz") -> dict[str, np.ndarray]:
    with np.load(HERE / name) as file:
        return dict(file)


REFUSED: dict[str, tuple[dict[str, np.ndarray], dict[str, Any], str]] = {
    "no heads": (arrays(), {"heads": None}, "the number of attention heads for its 8 features (give --heads N)"),
    "heads that do not divide": (arrays(), {"heads": 3}, "give --heads N"),
    "values of actions": (arrays("behavioral-cloning.npz"), {"head": "state-value"}, "predicts actions, not values"),
    "no kind of value": (
        arrays("causal.npz"),
        {},
        "does not record the kind of its predicted values (give --predicts)",
    ),
    "a missing weight": ({n: a for n, a in arrays().items() if n != "linear_1/w"}, {}, "missing: h.0.up.weight"),
    "another weight": ({**arrays(), "extra/w": np.ones((2, 2), np.float32)}, {}, "that no searchless chess model"),
    "integers": ({**arrays(), "linear_1/w": np.ones((8, 32), np.int64)}, {}, "linear_1/w is not an array of floats"),
    "NaN": ({**arrays(), "linear_1/w": np.full((8, 32), np.nan, np.float32)}, {}, "holds NaN or infinite values"),
    "no transformer": ({"embed/embeddings": np.ones((31, 8), np.float32)}, {}, "is not a transformer"),
    "no parameters": ({"a": np.ones(3)}, {}, "not a checkpoint that chessreg can read: a file with the keys a [3]"),
    "objects": ({"embed/embeddings": np.array([print], object)}, {}, "damaged or holds more than arrays"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    content, given, reason = REFUSED[name]
    np.savez(tmp_path / "model.npz", allow_pickle=True, **content)
    with pytest.raises(BadInputError) as caught:
        convert_checkpoint(
            tmp_path / "model.npz", tmp_path / "out", settings=UnrecordedSettings(**{"heads": 2, **given})
        )
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_orbax_folder_without_tensorstore_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(NotFoundError, match=r"pip install 'chessreg\[orbax\]'"):
        imported("state-value", tmp_path / "out")


def test_an_orbax_folder_is_read_at_any_level_and_refused_if_damaged(tmp_path: Path) -> None:
    pytest.importorskip("tensorstore", reason="the extra orbax is not installed")
    digests = {
        imported(path, tmp_path / str(number)).digest
        for number, path in enumerate(("state-value", "state-value/100", "state-value/100/params"))
    }
    assert len(digests) == 1
    shutil.copytree(HERE / "state-value", tmp_path / "damaged")
    for file in (tmp_path / "damaged").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BadInputError, match="is damaged"):
        convert_checkpoint(tmp_path / "damaged", tmp_path / "out", settings=UnrecordedSettings(heads=2))
    assert "jax" not in subprocess.run(
        [sys.executable, "-c", "import sys, tensorstore; print([m for m in sys.modules if m.split('.')[0] == 'jax'])"],
        capture_output=True, text=True,
    ).stdout  # fmt: skip


def test_averaged_parameters_are_named_and_read_on_request(tmp_path: Path) -> None:
    """Their engines load `params` of the last step, their notebook `params_ema`."""
    pytest.importorskip("tensorstore", reason="the extra orbax is not installed")
    step = tmp_path / "9M" / "6400000"
    for name in ("params", "params_ema"):
        shutil.copytree(HERE / "state-value" / "100" / "params", step / name)
    plain, averaged = (imported(str(path), tmp_path / path.name) for path in (tmp_path / "9M", step / "params_ema"))
    assert plain.info.source["parameters"] == "params"
    assert averaged.info.source["parameters"] == "params_ema"
    assert plain.info.source["step"] == averaged.info.source["step"] == 6_400_000
    [remark] = [remark for remark in plain.remarks if "params_ema" in remark]
    assert str(step / "params_ema") in remark
    assert not [remark for remark in averaged.remarks if "params_ema" in remark]


def test_a_saved_model_comes_back(models: dict[str, LanguageModel], tmp_path: Path) -> None:
    folder = models["action_value"].folder
    assert folder is not None
    again = convert_checkpoint(folder, tmp_path / "again")
    tokens = torch.randint(31, (2, 77))
    assert torch.equal(load_model(tmp_path / "again")(tokens), models["action_value"].network(tokens))
    assert again.digest == convert_checkpoint(HERE / "action-value.npz", tmp_path / "b",
                                             settings=UnrecordedSettings(heads=2)).digest  # fmt: skip
