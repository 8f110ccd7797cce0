"""The check on sample games: real models pass it in any order of tokens that is known, and nothing else does."""

from __future__ import annotations

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path

import chess
import pytest
import torch
from safetensors.torch import load_file, save_file

from chessreg.encodings import get_encoding
from chessreg.encodings.prompts import make_prompt_encoding
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo
from chessreg.models.importers import convert_checkpoint, game_check
from chessreg.models.importers.game_check import GameCheck, check_on_games, read_sample_games
from chessreg.models.language_model import LanguageModel
from tests.language_models import network, write_language_model
from tests.quick import quick_first


def bundled(name: str, folder: Path) -> Path:
    """A copy of a model that comes with chessreg."""
    with as_file(files("chessreg") / "data" / name) as source:
        shutil.copytree(source, folder)
    return folder


def reversed_tokens(folder: Path) -> list[str]:
    """Make a bundled GPT-2 one of another program, whose tokens are in reverse order, and return them."""
    (folder / "chessreg.json").unlink()
    weights = load_file(folder / "model.safetensors")
    for name in {"transformer.wte.weight", "lm_head.weight"} & weights.keys():
        weights[name] = weights[name].flip(0).contiguous()
    save_file(weights, folder / "model.safetensors")
    return list(get_encoding("pgn-char-32").vocabulary[::-1])


@pytest.mark.slow
def test_a_model_in_another_order_is_right_with_its_vocabulary_and_marked_without(tmp_path: Path) -> None:
    """An id's logits agree with the original's in both cases: only games distinguish them."""
    folder = bundled("reference-model", tmp_path / "theirs")
    tokens = reversed_tokens(folder)
    without = convert_checkpoint(folder, tmp_path / "without")
    (folder / "vocab.json").write_text(json.dumps({text: number for number, text in enumerate(tokens)}))
    report = convert_checkpoint(folder, tmp_path / "with")
    assert report.games.legal is not None
    assert report.games.loss is not None
    assert report.games.legal > 0.75
    assert report.games.loss < 0.75
    assert report.games.has_learned
    assert (without.games.legal, without.games.has_learned) == (0.0, False)
    assert max(without.max_logit_difference, report.max_logit_difference) < 1e-9


@pytest.mark.parametrize("name", quick_first(1, ["uci-model", "fen-model"]))
def test_the_other_bundled_models_pass(name: str, tmp_path: Path) -> None:
    check = check_on_games(LanguageModel.load(bundled(name, tmp_path / name)))
    assert check.legal is not None
    assert check.legal >= 0.9
    assert check.turns == 95
    assert check.loss is not None
    assert check.entropy is not None
    assert check.loss < check.entropy


def test_the_loss_is_that_of_every_token_of_the_games() -> None:
    """Against a pass over each game alone."""
    model = LanguageModel(
        make_random_gpt2(GPT2Config(n_layer=1, n_head=1, n_embd=16, block_size=512, vocab_size=32), 1)
    )
    written, total, count = model.encoding, 0.0, 0
    for moves in read_sample_games():
        board = chess.Board()
        for move in moves:
            board.push(move)
        ids = torch.tensor([written.prompt(board)])
        losses = torch.nn.functional.cross_entropy(model.logits(ids)[0, :-1], ids[0, 1:], reduction="sum")
        total, count = total + float(losses), count + ids.shape[1] - 1
    check = check_on_games(model)
    assert check.loss == pytest.approx(total / count, abs=1e-5)
    assert check.tokens == count
    assert len(read_sample_games()) == check.games == 20


@pytest.mark.parametrize("name", ["uci-square-72", "uci-square-77", "fen-77"])
def test_untrained_models_of_every_encoding_have_learned_nothing(name: str) -> None:
    made = network("bidirectional-fen-encoder" if name == "fen-77" else "gpt2", get_encoding(name).size)
    check = check_on_games(LanguageModel(made, CheckpointInfo.from_network(made, name)))
    assert check.loss is not None
    assert check.turns == 95
    assert not check.has_learned


def test_a_prompted_model_is_asked_once_a_game(tmp_path: Path) -> None:
    folder = write_language_model(tmp_path / "llama")
    report = convert_checkpoint(folder, tmp_path / "out", encoding=make_prompt_encoding(folder))
    assert 10 <= report.games.turns <= 20
    assert report.games.tokens >= 4 * report.games.turns
    assert not report.games.has_learned


def test_a_large_model_reads_fewer_games(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LanguageModel(
        make_random_gpt2(GPT2Config(n_layer=1, n_head=1, n_embd=16, block_size=512, vocab_size=32), 1)
    )
    whole = check_on_games(model)
    work = 2 * (whole.tokens) * sum(parameter.numel() for parameter in model.network.parameters())
    for share, games in ((1.0, 20), (0.5, 10), (0.01, 4)):
        monkeypatch.setattr(game_check, "MAX_WORK", int(work * share) + 1)
        check = check_on_games(model)
        assert check.games == games
        assert check.loss == pytest.approx(whole.loss, abs=0.2)
        assert abs(check.turns - whole.turns * games / 20) <= 3


def test_what_cannot_be_measured_is_none() -> None:
    short = make_random_gpt2(GPT2Config(n_layer=1, n_head=1, n_embd=8, block_size=4, vocab_size=32), 0)
    check = check_on_games(LanguageModel(short))
    assert (check.legal, check.turns) == (None, 0)
    assert check.tokens == 80  # four of each game
    silent = make_random_gpt2(GPT2Config(n_layer=1, n_head=1, n_embd=8, block_size=80, vocab_size=31), 0)
    assert check_on_games(LanguageModel(silent, CheckpointInfo.from_network(silent, "fen-77"))) == GameCheck(0)
    infinite = make_random_gpt2(GPT2Config(n_layer=1, n_head=1, n_embd=8, block_size=96, vocab_size=32), 0)
    with torch.no_grad():
        infinite.ln_f.weight *= 1e38
        infinite.wte.weight *= 1e38
    check = check_on_games(LanguageModel(infinite))
    assert (check.loss, check.legal, check.has_learned) == (None, None, False)


def test_the_norm_of_residuals_is_that_of_every_token_of_the_first_games() -> None:
    with as_file(files("chessreg") / "data" / "reference-model") as folder:
        model = LanguageModel.load(folder)
    point = "blocks.3.hook_resid_post"
    norms = [
        model.residuals(torch.tensor([text]), [3])[0, 0].norm(dim=-1)
        for text in game_check.get_sample(model.encoding).texts[: game_check.MIN_GAMES]
    ]
    measured = game_check.measure_residual_norms(model, [point])
    assert measured == {point: pytest.approx(float(torch.cat(norms).mean()), rel=1e-5)}
    assert len(torch.cat(norms)) > 300
    with as_file(files("chessreg") / "data" / "fen-model") as folder:
        assert game_check.measure_residual_norms(LanguageModel.load(folder), ["blocks.0.hook_resid_post"]) == {}
