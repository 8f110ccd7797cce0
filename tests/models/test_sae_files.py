"""SAEs of SAELens and dictionary_learning compute the libraries' latents, and come back bit-equal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import chessreg
from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.gated_sae import GatedSae
from chessreg.models.sae_files import fold_scale, read_sae_folder, write_sae_folder

GOLDEN = Path(__file__).parents[1] / "fixtures" / "saes"
FOLDERS = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
FOLDED = ("saelens-topk-rescaled", "dictionary-AutoEncoder")
"""The decoders of these are given unit rows, as the libraries do when they load or save them."""


def copy(name: str, folder: Path, **changes: Any) -> Path:
    """A copy of a golden folder with other settings; `metadata=None` removes a setting."""
    shutil.copytree(GOLDEN / name, folder)
    file = folder / ("cfg.json" if name.startswith("saelens") else "config.json")
    settings = json.loads(file.read_text())
    inner = settings if name.startswith("saelens") else settings["trainer"]
    for key, value in changes.items():
        inner.pop(key, None)
        if value is not None:
            inner[key] = value
    file.write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("name", FOLDERS)
def test_latents_and_reconstructions_are_those_of_the_library(name: str) -> None:
    file = read_sae_folder(GOLDEN / name)
    expected = np.load(GOLDEN / name / "expected.npz")
    x = torch.from_numpy(expected["x"])
    assert file.hook_point == "blocks.1.hook_resid_post"
    assert (file.sae.d_model, file.sae.features) == (32, 10)
    np.testing.assert_allclose(file.sae.encode(x).numpy(), expected["latents"], atol=1e-5)
    np.testing.assert_allclose(file.sae.reconstruction(x).numpy(), expected["reconstruction"], atol=1e-5)


def test_the_bundled_sample_is_an_sae_of_the_reference_model() -> None:
    file = read_sae_folder(Path(chessreg.__file__).parent / "data" / "sample-sae")
    assert (file.hook_point, file.sae.d_model, file.sae.features) == ("blocks.3.hook_resid_post", 192, 64)


def test_every_architecture_has_a_golden_file() -> None:
    assert {read_sae_folder(GOLDEN / name).sae.architecture for name in FOLDERS} == {
        "standard", "topk", "jumprelu", "gated",
    }  # fmt: skip


@pytest.mark.parametrize("name", [name for name in FOLDERS if name.startswith("saelens") and name not in FOLDED])
def test_an_sae_of_saelens_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    file = read_sae_folder(GOLDEN / name)
    write_sae_folder(file.sae, tmp_path, "saelens", file.settings["metadata"], file.dtype)
    before, after = (load_file(folder / "sae_weights.safetensors") for folder in (GOLDEN / name, tmp_path))
    assert before.keys() == after.keys()
    assert all(before[key].dtype == after[key].dtype and torch.equal(before[key], after[key]) for key in before)
    settings = json.loads((tmp_path / "cfg.json").read_text())
    assert {key: file.settings[key] for key in settings} == settings


@pytest.mark.parametrize("name", ["AutoEncoderNew", "AutoEncoderTopK", "GatedAutoEncoder", "JumpReluAutoEncoder"])
def test_an_sae_of_dictionary_learning_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    folder = GOLDEN / f"dictionary-{name}"
    file = read_sae_folder(folder)
    write_sae_folder(file.sae, tmp_path, "dictionary_learning", {"layer": 1, "hook_name": "blocks.1.hook_resid_post"})
    before, after = (torch.load(one / "ae.pt", weights_only=True) for one in (folder, tmp_path))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again = read_sae_folder(tmp_path)
    assert (again.settings["trainer"]["dict_class"], again.hook_point) == (name, file.hook_point)


def test_the_scale_of_a_trained_sae_is_multiplied_into_the_weights(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    one = GatedSae.make_initial(16, 32, seed=1, scale=0.37)
    parameters = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator) for name, value in one.parameters().items()
    }
    sae = GatedSae(**parameters, scale=0.37)
    x = 3 * torch.randn(20, 16, generator=generator)
    write_sae_folder(sae, tmp_path, "saelens", {"hook_name": "blocks.0.hook_resid_post"})
    again = read_sae_folder(tmp_path).sae
    assert again.scale == 1
    np.testing.assert_allclose(again.encode(x), sae.encode(x), atol=1e-5)
    np.testing.assert_allclose(again.reconstruction(x), sae.reconstruction(x), atol=1e-5)
    assert fold_scale(again) is again


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalize_activations": "expected_average_only_in"}, "needs a factor that the folder does not have"),
        ({"normalize_activations": "layer_norm"}, "normalize_activations 'layer_norm' cannot be computed"),
        ({"normalize_activations": "constant_norm_rescale"}, "normalize_activations 'constant_norm_rescale'"),
        ({"reshape_activations": "hook_z"}, "reshape_activations 'hook_z' cannot be computed"),
        ({"finetuning_scaling_factor": True}, "finetuning_scaling_factor True cannot be computed"),
        ({"architecture": "transcoder"}, "architecture 'transcoder' of SAELens cannot be read"),
        ({"architecture": "gated"}, "has no weights b_gate, b_mag, r_mag"),
        ({"architecture": "topk"}, "k is None, not the number of latents"),
        ({"architecture": "topk", "k": 11}, "k is 11, but there are 10 latents"),
    ],
)
def test_an_option_that_changes_the_output_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInputError, match=message):
        read_sae_folder(copy("saelens-standard", tmp_path / "sae", **changes))


def test_folders_of_saelens_before_version_6_are_read(tmp_path: Path) -> None:
    old = {"metadata": None, "architecture": None, "hook_name": "blocks.1.hook_resid_post", "hook_layer": 1}
    plain = read_sae_folder(copy("saelens-standard", tmp_path / "plain", **old, activation_fn_str="relu"))
    assert (plain.sae.architecture, plain.hook_point) == ("standard", "blocks.1.hook_resid_post")
    topk = read_sae_folder(
        copy("saelens-topk", tmp_path / "topk", **old, k=None, activation_fn="topk", activation_fn_kwargs={"k": 4})
    )
    expected = np.load(GOLDEN / "saelens-topk" / "expected.npz")
    np.testing.assert_allclose(topk.sae.encode(torch.from_numpy(expected["x"])), expected["latents"], atol=1e-5)


@pytest.mark.parametrize("wrong", ["nan", "shape", "extra", "class", "empty", "truncated"])
def test_a_wrong_folder_is_refused_in_one_line(wrong: str, tmp_path: Path) -> None:
    folder = copy("saelens-jumprelu", tmp_path / "sae")
    file = folder / "sae_weights.safetensors"
    weights = load_file(file)
    if wrong == "nan":
        weights["b_enc"][3] = torch.nan
    elif wrong == "shape":
        weights["W_enc"] = weights["W_enc"][:, :5].contiguous()
    elif wrong == "extra":
        weights["W_skip"] = weights["b_dec"].clone()
    elif wrong == "class":
        folder = copy("dictionary-AutoEncoder", tmp_path / "other", dict_class="CrossCoder")
    if wrong == "empty":
        (folder / "cfg.json").write_text("")
    save_file(weights, file) if wrong != "truncated" else file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BadInputError) as caught:
        read_sae_folder(folder)
    assert "\n" not in caught.value.message
    assert folder.name in caught.value.message or wrong == "truncated"


def test_a_folder_without_an_sae_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"it needs cfg.json and|is not the folder of one SAE"):
        read_sae_folder(tmp_path)
    with pytest.raises(NotFoundError, match="does not exist"):
        read_sae_folder(tmp_path / "absent")


def test_what_dictionary_learning_cannot_compute_is_not_written(tmp_path: Path) -> None:
    sae = read_sae_folder(GOLDEN / "dictionary-BatchTopKSAE").sae
    with pytest.raises(BadInputError, match="has no jumprelu SAE that subtracts the decoder's bias"):
        write_sae_folder(sae, tmp_path, "dictionary_learning", {})
