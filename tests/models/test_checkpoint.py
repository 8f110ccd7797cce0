"""Checkpoints on disk: saved, read back, counted, exported from training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.adapters.gpt2 import GPT2, GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, compute_checkpoint_digest, load_model, read_info, save_checkpoint
from chessreg.models.corpus import Corpus
from chessreg.models.language_model import LanguageModel
from chessreg.models.train_config import TextTraining
from chessreg.models.training import Trainer

TOKENS = torch.arange(60).reshape(2, 30) % 32


def saved(model: LanguageModel, folder: Path, dtype: str = "float32") -> Path:
    info = CheckpointInfo.from_network(model.network, "pgn-char-32", tokens_seen=123, source={"format": "test"})
    save_checkpoint(model.network, folder, info, dtype)  # type: ignore[arg-type]
    return folder


def test_a_lack_of_memory_is_not_a_damaged_checkpoint(
    tiny: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tiny, tmp_path / "one")
    monkeypatch.setattr(type(tiny.network), "load", lambda *_: torch.empty(1 << 50))
    with pytest.raises(RuntimeError, match="allocate memory"):
        load_model(folder)


def test_a_saved_checkpoint_comes_back_bit_for_bit(tiny: LanguageModel, tmp_path: Path) -> None:
    folder = saved(tiny, tmp_path / "one")
    assert torch.equal(load_model(folder)(TOKENS), tiny.network(TOKENS))
    info = read_info(folder)
    assert (info.encoding, info.residual, info.tokens_seen, info.block_size) == ("pgn-char-32", "raw", 123, 96)
    assert info.architecture["bias"] is False
    assert info.source == {"format": "test"}
    model = LanguageModel.load(folder)
    assert (model.n_layers, model.d_model, model.block_size, model.vocab_size) == (2, 32, 96, 32)


def test_any_other_tool_loads_the_folder(tiny: LanguageModel, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    other = AutoModelForCausalLM.from_pretrained(saved(tiny, tmp_path), local_files_only=True)
    assert torch.allclose(other(TOKENS).logits, tiny.network(TOKENS), atol=1e-6)


def test_bfloat16_halves_the_file_and_computes_in_float32(tiny: LanguageModel, tmp_path: Path) -> None:
    full, half = saved(tiny, tmp_path / "full"), saved(tiny, tmp_path / "half", "bfloat16")
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (full, half)]
    assert sizes[1] < 0.6 * sizes[0]
    model = LanguageModel.load(half)
    assert model.dtype == torch.float32
    rounded = {n: p.bfloat16().float() for n, p in tiny.network.named_parameters()}
    assert all(torch.equal(p, rounded[n]) for n, p in model.network.named_parameters())
    assert tiny.dtype == torch.float32  # the model in memory is not changed


def test_the_digest_is_of_the_content(tiny: LanguageModel, tmp_path: Path) -> None:
    one, two = saved(tiny, tmp_path / "one"), saved(tiny, tmp_path / "two")
    assert compute_checkpoint_digest(one) == compute_checkpoint_digest(two)
    other = make_random_gpt2(tiny.network.config, 5)
    save_checkpoint(other, tmp_path / "three", CheckpointInfo.from_network(other, "pgn-char-32"))
    save_checkpoint(
        tiny.network, tmp_path / "four", CheckpointInfo.from_network(tiny.network, "pgn-char-32", residual="centred")
    )
    assert (
        len(
            {
                compute_checkpoint_digest(one),
                compute_checkpoint_digest(tmp_path / "three"),
                compute_checkpoint_digest(tmp_path / "four"),
            }
        )
        == 3
    )


@pytest.mark.parametrize(("layers", "parameters"), [(8, 25_714_688), (16, 50_888_704)])
def test_parameters_count_as_in_the_paper(layers: int, parameters: int) -> None:
    shape = {"n_layer": layers, "n_head": 8, "n_embd": 512, "block_size": 1023, "vocab_size": 32}
    model = make_random_gpt2(GPT2Config(**shape), 0)  # type: ignore[arg-type]
    total, without_embeddings = model.count_parameters()
    assert total == parameters
    assert total - model.wpe.weight.numel() == parameters - 523_776
    assert without_embeddings == parameters - 523_776 - 32 * 512
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameters


def test_biases_that_a_model_has_are_kept_and_counted(tiny: LanguageModel, tmp_path: Path) -> None:
    assert isinstance(tiny.network, GPT2)
    weights = {name: tensor.clone() for name, tensor in tiny.network.weights().items()}
    weights["transformer.h.1.mlp.c_proj.bias"] += 1.0
    model = GPT2.from_weights(tiny.network.config, weights)
    info = CheckpointInfo.from_network(model, "pgn-char-32")
    assert info.architecture["bias"] is True
    assert info.parameters > tiny.network.count_parameters()[0]
    assert all(p.requires_grad for p in model.parameters())
    save_checkpoint(model, tmp_path, info)
    assert torch.equal(load_model(tmp_path)(TOKENS), model(TOKENS))


def test_a_trained_gpt_leaves_with_equal_logits(tmp_path: Path) -> None:
    config = TextTraining(n_layer=3, n_head=4, n_embd=32, block_size=400)
    trainer = Trainer(config, Corpus(np.zeros(900, np.uint8), np.array([0, 450, 900])), tmp_path)
    model, tokens = trainer.copy_trained(), torch.randint(32, (2, 400))
    with torch.no_grad():
        assert float((trainer.model(tokens) - model(tokens)).abs().max()) <= 1e-5
    assert model.count_parameters()[0] == sum(p.numel() for p in trainer.model.parameters())
    model.wte.weight.data.zero_()
    assert bool(trainer.model.wte.weight.any())  # a copy


def test_a_random_twin_is_a_function_of_shape_and_seed() -> None:
    config = GPT2Config(n_layer=8, n_head=4, n_embd=64, block_size=128, vocab_size=32)
    one, again, other = make_random_gpt2(config, 1), make_random_gpt2(config, 1), make_random_gpt2(config, 2)
    assert torch.equal(one(TOKENS), again(TOKENS))
    assert not torch.equal(one(TOKENS), other(TOKENS))
    block = one.h[3]
    assert float(block.mlp.c_fc.weight.detach().std()) == pytest.approx(0.02, rel=0.03)
    assert float(block.mlp.c_proj.weight.detach().std()) == pytest.approx(0.02 / 4, rel=0.03)
    assert float(block.attn.c_proj.weight.detach().std()) == pytest.approx(0.02 / 4, rel=0.05)
    assert bool((block.ln_1.weight == 1).all())
    assert not any(bool(p.any()) for name, p in one.named_parameters() if name.endswith(".bias"))


def test_what_is_no_checkpoint_is_refused(tiny: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"chessreg\.json"):
        LanguageModel.load(tmp_path)
    folder = saved(tiny, tmp_path / "cut")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInputError, match="cannot be read"):
        load_model(folder)
    weights.write_bytes(whole)
    content = json.loads((folder / "chessreg.json").read_text())
    (folder / "chessreg.json").write_text(json.dumps(content | {"format_version": 99}))
    with pytest.raises(BadInputError, match="format 99"):
        read_info(folder)
    (folder / "chessreg.json").write_text("{}")
    with pytest.raises(BadInputError):
        read_info(folder)
