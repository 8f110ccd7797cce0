"""State dicts without settings, bare or from Lightning: facts missing from the file are given, inferred or required."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from chessreg.errors import BadInputError
from chessreg.models.checkpoint import load_model
from chessreg.models.importers import UnrecordedSettings, convert_checkpoint
from tests.language_models import hugging_face_model
from tests.models.foreign import nanogpt_checkpoint, written

Weights = Mapping[str, Tensor]
TOKENS = torch.arange(64).reshape(2, 32) % 32


@pytest.fixture(scope="module")
def conv1d() -> Any:
    """A GPT-2 of the library transformers with 2 heads: its matrices are [in, out]."""
    return hugging_face_model("gpt2", 32, context=64)


def weights_of(conv1d: Any) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in conv1d.state_dict().items()}


def nanogpt_weights(**arguments: Any) -> dict[str, Tensor]:
    return {name.removeprefix("_orig_mod."): t for name, t in nanogpt_checkpoint(**arguments)["model"].items()}


def lightning(weights: Weights, prefix: str, **settings: Any) -> dict[str, Any]:
    """The content that Lightning's ModelCheckpoint writes."""
    return {
        "epoch": 3, "global_step": 100, "pytorch-lightning_version": "2.5.0", "loops": {}, "callbacks": {},
        "state_dict": {prefix + name: tensor for name, tensor in weights.items()},
        "optimizer_states": [{"state": {}, "param_groups": [{"lr": np.float64(1e-3)}]}], "hyper_parameters": settings,
    }  # fmt: skip


@pytest.mark.parametrize("layout", ["bare", "no prefix", "safetensors", "Lightning", "compiled in Lightning", "config"])
def test_a_state_dict_of_transformers_is_read_with_the_heads_that_are_known(
    layout: str, conv1d: Any, tmp_path: Path
) -> None:
    weights, options, path = weights_of(conv1d), {"settings": UnrecordedSettings(heads=2)}, tmp_path / "model.ckpt"
    if layout == "no prefix":
        weights = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    if layout == "safetensors":
        save_file({name: tensor.clone() for name, tensor in weights.items()}, path)
    elif "Lightning" in layout:
        prefix = "model._orig_mod." if "compiled" in layout else "net."
        settings = {"config": argparse.Namespace(n_head=2, where=Path("/data"))}
        options = {}
        written(lightning(weights, prefix, **settings), path)
    else:
        if layout == "config":
            options = {}
            (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": 2}))
        written(weights, path)
    report = convert_checkpoint(path, tmp_path / "out", **options)  # type: ignore[arg-type]
    assert (report.format, report.info.architecture["activation"]) == ("state_dict", "gelu_new")
    assert torch.allclose(load_model(tmp_path / "out")(TOKENS), conv1d(TOKENS).logits, atol=1e-5)
    known_from = "--heads" if options else "its settings"
    assert report.info.source["n_head_from"] == known_from
    assert report.remarks == [f"2 attention heads, from {known_from}; activation gelu_new"]


def test_a_state_dict_of_nanogpt_is_the_same_checkpoint_as_its_whole_file(tmp_path: Path) -> None:
    whole = convert_checkpoint(written(nanogpt_checkpoint(), tmp_path / "ckpt.pt"), tmp_path / "whole")
    path = written(nanogpt_weights(), tmp_path / "bare.pt")
    bare = convert_checkpoint(path, tmp_path / "bare", settings=UnrecordedSettings(heads=4))
    assert bare.digest == whole.digest


@pytest.mark.slow
def test_the_number_of_heads_is_found_by_the_games_of_a_trained_model(tmp_path: Path) -> None:
    from importlib.resources import as_file, files

    from safetensors.torch import load_file

    with as_file(files("chessreg") / "data" / "reference-model") as folder:
        weights = load_file(folder / "model.safetensors")
        heads = json.loads((folder / "config.json").read_text())["n_head"]
    report = convert_checkpoint(written(weights, tmp_path / "bare.pt"), tmp_path / "out")
    assert (report.info.architecture["n_head"], report.info.source["n_head_from"]) == (heads, "sample games")
    assert report.games.legal is not None
    assert report.games.legal > 0.75


REFUSED = {
    "heads of an untrained model": (nanogpt_weights(), {}, "give --heads N, one of 1, 2, 4"),
    "heads that do not divide": (nanogpt_weights(), {"settings": UnrecordedSettings(heads=5)},
                                 "5 attention heads (--heads) do not divide 32"),
    "a name twice": ({**nanogpt_weights(), **lightning(nanogpt_weights(), "module.")["state_dict"]}, {},
                     "holds the weight transformer.wte.weight twice"),
    "names with and without transformer.": (
        {**nanogpt_weights(), "h.0.ln_1.weight": torch.ones(32)}, {}, "weights with and without the prefix transformer."
    ),
    "two models": ({**lightning(nanogpt_weights(), "model.")["state_dict"],
                    **lightning(nanogpt_weights(), "ema.")["state_dict"]}, {}, "holds 2 models: ema., model."),
    "a head of another part": (lightning(nanogpt_weights(), "model.") | {"state_dict": {
        **lightning(nanogpt_weights(), "model.")["state_dict"], "head.weight": torch.ones(32, 32)}},
        {"settings": UnrecordedSettings(heads=4)}, "weights that no GPT-2 of this shape has: transformer.head.weight"),
    "code": (lightning(nanogpt_weights(), "model.", made_by=print), {}, "would execute code"),
    "no positions": ({n: t for n, t in nanogpt_weights().items() if "wpe" not in n}, {}, "has no transformer.wpe."),
    "other matrices": (
        {**nanogpt_weights(), "transformer.h.0.attn.c_attn.weight": torch.ones(32, 32)}, {}, "has shape (32, 32)"
    ),
    "text among weights": ({**nanogpt_weights(), "note": "mine"}, {}, "more than tensors of floats"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_state_dict_that_cannot_be_read_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    content, options, reason = REFUSED[name]
    with pytest.raises(BadInputError) as caught:
        convert_checkpoint(written(content, tmp_path / "model.ckpt"), tmp_path / "out", **options)  # type: ignore[arg-type]
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


PREFIXES = ("module.", "module._orig_mod.", "_orig_mod.module.", "model.", "model.module._orig_mod.", "net.gpt.")


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_nanogpt_file_is_read_whatever_wrapped_its_model(prefix: str, tmp_path: Path) -> None:
    checkpoint = nanogpt_checkpoint()
    expected = convert_checkpoint(written(checkpoint, tmp_path / "one.pt"), tmp_path / "one").digest
    weights = nanogpt_weights()
    wrapped = {prefix + name.replace(".h.0.", ".h.0._orig_mod."): tensor for name, tensor in weights.items()}
    assert convert_checkpoint(
        written({**checkpoint, "model": wrapped}, tmp_path / "two.pt"), tmp_path / "two"
    ).digest == (expected)


def test_numbers_of_numpy_in_a_nanogpt_file_are_numbers(tmp_path: Path) -> None:
    checkpoint = nanogpt_checkpoint()
    checkpoint["model_args"] |= {"n_layer": np.int64(2), "n_head": np.int32(4)}
    checkpoint |= {
        "best_val_loss": np.float64(1.25), "iter_num": np.uint16(9), "losses": np.arange(3.0),
        "config": {"lr": np.float32(0.5), "big": np.dtype(">f8").type(2.5), "yes": np.bool_(True), "out": Path("a")},
    }  # fmt: skip
    source = convert_checkpoint(written(checkpoint, tmp_path / "ckpt.pt"), tmp_path / "out").info.source
    assert (source["best_val_loss"], source["iter_num"]) == (1.25, 9)
    assert source["config"] == {"lr": 0.5, "big": 2.5, "yes": True, "out": None}


def test_a_small_pickle_that_unfolds_without_end_is_refused(tmp_path: Path) -> None:
    nested: list[Any] = ["ha"]
    for _ in range(50):
        nested = [nested, nested]
    path = written({**nanogpt_checkpoint(), "config": {"laughs": nested}}, tmp_path / "ckpt.pt")
    with pytest.raises(BadInputError, match="its settings are more than 100,000 values"):
        convert_checkpoint(path, tmp_path / "out")


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000], ids=["cut", "bytes", "deep"])
def test_a_damaged_configuration_next_to_a_state_dict_is_refused_in_one_line(
    conv1d: Any, tmp_path: Path, content: bytes
) -> None:
    torch.save(weights_of(conv1d), tmp_path / "model.ckpt")
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadInputError, match=r"config\.json is not JSON") as caught:
        convert_checkpoint(tmp_path / "model.ckpt", tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_configuration_may_be_nested_deeply(conv1d: Any, tmp_path: Path) -> None:
    torch.save(weights_of(conv1d), tmp_path / "model.ckpt")
    nested: dict[str, Any] = {"n_head": 2}
    for _ in range(200):
        nested = {"model": nested}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    assert "2 attention heads" in convert_checkpoint(tmp_path / "model.ckpt", tmp_path / "out").remarks[0]
