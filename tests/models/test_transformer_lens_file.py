"""TransformerLens' folded files: represented as they are, and agreeing with the nanoGPT file they were made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chessreg.errors import BadInputError
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import compute_checkpoint_digest, load_model
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.importers import convert_checkpoint
from chessreg.models.language_model import LanguageModel
from chessreg.noise import generator

torch.set_num_threads(1)
SMALL = {"n_layer": 3, "n_head": 4, "n_embd": 32, "block_size": 40, "vocab_size": 32}
KARVONEN = {"n_layer": 8, "n_head": 8, "n_embd": 512, "block_size": 1023, "vocab_size": 32}


def nanogpt(shape: dict[str, int]) -> dict[str, Any]:
    """A nanoGPT checkpoint with weights large enough to matter, LayerNorm weights that are not one included."""
    d, random = shape["n_embd"], torch.Generator().manual_seed(int(generator("nanogpt").integers(1 << 30)))
    sizes = {"transformer.wte": (shape["vocab_size"], d), "transformer.wpe": (shape["block_size"], d)}
    for i in range(shape["n_layer"]):
        sizes |= {f"transformer.h.{i}.attn.c_attn": (3 * d, d), f"transformer.h.{i}.attn.c_proj": (d, d)}
        sizes |= {f"transformer.h.{i}.mlp.c_fc": (4 * d, d), f"transformer.h.{i}.mlp.c_proj": (d, 4 * d)}
    weights = {f"{n}.weight": 1.5 * d**-0.5 * torch.randn(*s, generator=random) for n, s in sizes.items()}
    norms = [f"transformer.h.{i}.ln_{n}" for i in range(shape["n_layer"]) for n in (1, 2)] + ["transformer.ln_f"]
    weights |= {f"{n}.weight": 1 + 0.3 * torch.randn(d, generator=random) for n in norms}
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    model = {f"_orig_mod.{name}": tensor for name, tensor in weights.items()}
    return {"model": model, "model_args": {**shape, "bias": False, "dropout": 0.0}, "iter_num": 600_000}


def folded(checkpoint: dict[str, Any], centre: bool = True) -> dict[str, Tensor]:
    """The state dict of Karvonen's conversion: nanoGPT to TransformerLens 1.10 with its defaults (2.2)."""

    def centred(matrix: Tensor, axis: int) -> Tensor:
        return matrix - matrix.mean(axis, keepdim=True) if centre else matrix

    shape = checkpoint["model_args"]
    raw = {n.removeprefix("_orig_mod."): t for n, t in checkpoint["model"].items()}
    d, heads = shape["n_embd"], shape["n_head"]
    state = {
        "embed.W_E": centred(raw["transformer.wte.weight"], -1),
        "pos_embed.W_pos": centred(raw["transformer.wpe.weight"], -1),
    }
    for i in range(shape["n_layer"]):
        theirs, block = f"transformer.h.{i}", f"blocks.{i}"
        norm1, norm2 = raw[f"{theirs}.ln_1.weight"], raw[f"{theirs}.ln_2.weight"]
        for letter, third in zip("QKV", raw[f"{theirs}.attn.c_attn.weight"].chunk(3), strict=True):
            state[f"{block}.attn.W_{letter}"] = (third * norm1).view(heads, d // heads, d).transpose(1, 2)
            state[f"{block}.attn.b_{letter}"] = torch.zeros(heads, d // heads)
        output = raw[f"{theirs}.attn.c_proj.weight"].view(d, heads, d // heads).permute(1, 2, 0)
        state |= {f"{block}.attn.W_O": centred(output, -1), f"{block}.attn.b_O": torch.zeros(d)}
        state[f"{block}.attn.mask"] = torch.ones(shape["block_size"], shape["block_size"]).tril().bool()
        state[f"{block}.attn.IGNORE"] = torch.tensor(-torch.inf)
        state |= {
            f"{block}.mlp.W_in": (raw[f"{theirs}.mlp.c_fc.weight"] * norm2).T,
            f"{block}.mlp.b_in": torch.zeros(4 * d),
        }
        state[f"{block}.mlp.W_out"] = centred(raw[f"{theirs}.mlp.c_proj.weight"].T, -1)
        state[f"{block}.mlp.b_out"] = torch.zeros(d)
    head = (raw["lm_head.weight"] * raw["transformer.ln_f.weight"]).T
    return {**state, "unembed.W_U": centred(head, -1), "unembed.b_U": torch.zeros(shape["vocab_size"])}


def written(content: Any, path: Path) -> Path:
    torch.save(content, path)
    return path


def both(shape: dict[str, int], folder: Path) -> tuple[LanguageModel, LanguageModel]:
    """The plain and the folded model, imported."""
    checkpoint = nanogpt(shape)
    convert_checkpoint(written(checkpoint, folder / "ckpt.pt"), folder / "plain")
    report = convert_checkpoint(written(folded(checkpoint), folder / "tf_lens_ckpt.pth"), folder / "folded")
    assert (report.format, report.info.residual) == ("transformer_lens", "centred")
    return LanguageModel.load(folder / "plain"), LanguageModel.load(folder / "folded")


@pytest.mark.parametrize("shape", [SMALL, pytest.param(KARVONEN, marks=pytest.mark.slow)], ids=["small", "25M"])
def test_a_folded_file_agrees_with_the_plain_one_and_its_residual_is_centred(
    shape: dict[str, int], tmp_path: Path
) -> None:
    plain, fold = both(shape, tmp_path)
    assert (plain.residual, fold.residual) == ("raw", "centred")
    assert fold.info.architecture["tied_head"] is False
    tokens = torch.randint(32, (2, 40), generator=torch.Generator().manual_seed(1))
    ours, theirs = (model.logits(tokens).log_softmax(-1) for model in (plain, fold))
    assert float((ours - theirs).abs().max()) <= 3e-5 * max(1.0, float(ours.abs().max()))
    assert float(ours.std()) > 0.1
    layers = range(shape["n_layer"])
    raw, centred = (model.residuals(tokens, layers) for model in (plain, fold))
    assert float((raw - raw.mean(-1, keepdim=True) - centred).abs().max()) <= 1e-4
    assert float(raw.mean(-1).abs().max()) > 1e-3  # the two conventions differ on these weights


def test_a_folded_checkpoint_survives_saving_and_comes_home(tmp_path: Path) -> None:
    _, fold = both(SMALL, tmp_path)
    again = convert_checkpoint(tmp_path / "folded", tmp_path / "again")
    assert (again.format, again.info.residual) == ("huggingface", "centred")
    assert again.digest == compute_checkpoint_digest(tmp_path / "folded")
    head = load_model(tmp_path / "again").lm_head.weight
    assert torch.equal(head, fold.network.lm_head.weight)
    assert not torch.equal(head, fold.network.wte.weight)


def test_decoding_goes_through_the_folded_head(tmp_path: Path) -> None:
    plain, fold = both(SMALL, tmp_path)
    told = []
    for model in (plain, fold):
        session = DecodingSession(model, 1)
        told.append(session.sync([[15, 6, 4, 27, 9, 0]]))
    assert torch.allclose(told[0], told[1], atol=1e-3)


def test_hooks_and_twins_of_a_folded_checkpoint(tmp_path: Path) -> None:
    _, fold = both(SMALL, tmp_path)
    tokens = torch.arange(12)[None]
    seen = fold.activations(tokens, ["blocks.1.hook_resid_post", "blocks.1.hook_resid_mid"])
    assert torch.allclose(seen["blocks.1.hook_resid_post"], fold.residuals(tokens, [1])[0], atol=1e-4)
    assert float(seen["blocks.1.hook_resid_mid"].mean(-1).abs().max()) < 1e-4
    assert torch.allclose(fold.bridge()(tokens), fold.logits(tokens), atol=1e-3)
    twin = make_random_gpt2(fold.network.config, seed=3)
    assert twin.lm_head.weight.shape == (32, 32)
    assert not torch.equal(twin.lm_head.weight, twin.wte.weight)


def test_folded_but_not_centred_weights_are_raw(tmp_path: Path) -> None:
    path = written(folded(nanogpt(SMALL), centre=False), tmp_path / "model.pth")
    assert convert_checkpoint(path, tmp_path / "out").info.residual == "raw"


def test_a_file_with_its_layer_norms_is_read_too(tmp_path: Path) -> None:
    checkpoint = nanogpt(SMALL)
    raw = {n.removeprefix("_orig_mod."): t for n, t in checkpoint["model"].items()}
    ones = {n: torch.ones_like(t) if ".ln_" in n else t for n, t in raw.items()}
    state = folded({**checkpoint, "model": ones}, centre=False)
    for i in range(SMALL["n_layer"]):
        for n in (1, 2):
            weight = raw[f"transformer.h.{i}.ln_{n}.weight"]
            state |= {f"blocks.{i}.ln{n}.w": weight, f"blocks.{i}.ln{n}.b": torch.zeros_like(weight)}
    weight = raw["transformer.ln_f.weight"]
    state |= {"ln_final.w": weight, "ln_final.b": torch.zeros_like(weight)}
    report = convert_checkpoint(written(state, tmp_path / "model.pth"), tmp_path / "out")
    assert (report.info.residual, report.info.source["folded"]) == ("raw", False)
    convert_checkpoint(written(checkpoint, tmp_path / "ckpt.pt"), tmp_path / "plain")
    tokens = torch.arange(20)[None]
    found, expected = (LanguageModel.load(tmp_path / name).logits(tokens) for name in ("out", "plain"))
    assert torch.allclose(found, expected, atol=1e-4)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda state: state.pop(name)


WRONG = {
    "missing": (without("blocks.1.mlp.b_in"), "missing: blocks.1.mlp.b_in"),
    "unknown": (lambda s: s.update({"blocks.0.attn.W_rel": torch.ones(2)}), "no such GPT-2 has: blocks.0.attn.W_rel"),
    "shape": (lambda s: s.update({"blocks.2.attn.W_O": torch.ones(4, 8, 31)}), r"blocks.2.attn.W_O has shape"),
    "gap": (lambda s: [s.pop(n) for n in list(s) if n.startswith("blocks.1.")], "not numbered"),
    "bias": (lambda s: s.update({"unembed.b_U": torch.ones(32)}), "unembedding has a bias"),
    "integers": (lambda s: s.update({"embed.W_E": torch.ones(32, 32, dtype=torch.int64)}), "tensors of floats"),
    "heads": (lambda s: s.update({"blocks.0.attn.W_Q": torch.ones(4, 32, 7)}), "do not make up"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_named(name: str, tmp_path: Path) -> None:
    change, message = WRONG[name]
    state = folded(nanogpt(SMALL))
    change(state)
    with pytest.raises(BadInputError, match=message):
        convert_checkpoint(written(state, tmp_path / "model.pth"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("layers", "parameters", "without_positions"), [(8, 25_714_688, 25_190_912), (16, 50_888_704, 50_364_928)]
)
def test_parameter_counts_of_the_paper(layers: int, parameters: int, without_positions: int) -> None:
    shape = {**KARVONEN, "n_layer": layers}
    twin = make_random_gpt2(GPT2Config(**shape), seed=0)
    assert twin.count_parameters()[0] == parameters
    assert parameters - twin.wpe.weight.numel() == without_positions
