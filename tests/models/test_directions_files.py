"""Saved probes and vectors of every age, read without executing code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chessreg.errors import BadInputError
from chessreg.models.importers.directions import read_karvonen_probe, read_karvonen_vector

torch.set_num_threads(1)
PIECE_16 = "karvonen-tf_lens_lichess_16layers_ckpt_no_optimizer_chess_piece_probe_layer_11.pth"
PIECE_RANDOM = "karvonen-tf_lens_randominit_8layers_ckpt_no_optimizer_chess_piece_probe_layer_5.pth"
SKILL_8 = "karvonen-tf_lens_lichess_8layers_ckpt_no_optimizer_chess_skill_probe_layer_7.pth"
VECTOR_16 = "karvonen-lichess_train_layer_12_pos_start_25_activations.pt"
LOGGED = {
    "final_loss": torch.tensor(0.75), "iters": 50_000, "epochs": 4, "acc": torch.tensor(0.99), "layer": 3,
    "linear_probe_name": "chess_piece_probe", "indexing_function_name": "find_dots_indices", "pos_start": 0,
    "config_name": "chess_piece_probe", "dataset_prefix": "lichess_", "num_games": 11_000, "n_layers": 8,
    "model_name": "tf_lens_lichess_8layers_ckpt_no_optimizer", "levels_of_interest": None,
}  # fmt: skip


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def written(content: Any, path: Path) -> Path:
    torch.save(content, path)
    return path


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


# -- the author's own files: the numbers of 3.9 and 5.3 (golden tests 4 and 5) ---------------------------------------


def test_the_sixteen_layer_piece_probe_has_the_published_numbers(shared_data: Path) -> None:
    probe = read_karvonen_probe(shared_data / "probes" / PIECE_16)
    assert probe.weight.shape == (512, 64, 13)
    assert probe.weight.dtype == np.float32
    assert np.linalg.norm(probe.weight) == pytest.approx(243.0709, abs=1e-3)
    assert probe.weight.ravel()[:3] == pytest.approx([-1.045476, -0.734783, -0.640362], abs=1e-6)
    square = {"e1": 4, "e2": 12, "e4": 28, "e8": 60}
    for name, cls, norm in (("e2", 7, 10.9073), ("e1", 12, 12.2513), ("e8", 0, 12.8795), ("e4", 6, 11.5300)):
        assert np.linalg.norm(probe.weight[:, square[name], cls]) == pytest.approx(norm, abs=1e-4)
    origin = probe.origin
    assert (origin.layer, origin.label, origin.positions, origin.first_position) == (11, "piece", "dots", 0)
    assert (origin.model, origin.n_layers) == ("tf_lens_lichess_16layers_ckpt_no_optimizer", 16)
    assert origin.is_centred is True
    assert (probe.train_games, probe.epochs, origin.metadata["num_games"]) == (10_000, 5, 11_000)
    assert origin.metadata["final_loss"] == pytest.approx(0.75736, abs=1e-5)


@pytest.mark.parametrize(
    ("file", "right", "of"), [(PIECE_16, 4213, 4224), (PIECE_RANDOM, 3057, 4224), (SKILL_8, 15, 16)]
)
def test_the_last_accuracies_are_shares_of_one_batch_of_two_games(
    file: str, right: int, of: int, shared_data: Path
) -> None:
    probe = read_karvonen_probe(shared_data / "probes" / file)
    assert probe.origin.metadata["acc"] == pytest.approx(right / of, abs=1e-6)
    assert 2 * (probe.origin.positions_per_game or 0) * probe.weight.shape[1] == of


def test_the_untrained_and_the_skill_probe_have_the_published_numbers(shared_data: Path) -> None:
    untrained = read_karvonen_probe(shared_data / "probes" / PIECE_RANDOM)
    assert np.linalg.norm(untrained.weight) == pytest.approx(196.0819, abs=1e-3)
    assert untrained.origin.metadata["final_loss"] == pytest.approx(52.41270, abs=1e-4)
    skill = read_karvonen_probe(shared_data / "probes" / SKILL_8)
    assert (skill.weight.shape, skill.origin.label) == ((512, 1, 2), "skill")
    low, high = skill.weight[:, 0, 0], skill.weight[:, 0, 1]
    assert np.linalg.norm(low) == pytest.approx(3.0739, abs=1e-4)
    assert np.linalg.norm(high) == pytest.approx(2.9832, abs=1e-4)
    assert cosine(low, high) == pytest.approx(-0.9435, abs=1e-4)
    derived = read_karvonen_vector(shared_data / "probes" / SKILL_8)
    assert derived.source == "probe"
    np.testing.assert_array_equal(derived.vector, high - low)


def test_the_contrastive_vector_has_the_published_numbers(shared_data: Path) -> None:
    found = read_karvonen_vector(shared_data / "probes" / VECTOR_16)
    assert found.high is not None
    assert found.low is not None
    assert (found.source, found.origin.layer, found.origin.positions_per_game) == ("contrastive", 12, 8)
    assert found.vector[:3] == pytest.approx([0.929744, 0.504792, 0.014725], abs=1e-6)
    norms = [np.linalg.norm(side) for side in (found.high, found.low, found.vector)]
    assert norms == pytest.approx([44.60, 45.10, 10.17241], abs=5e-3)
    np.testing.assert_allclose(found.high - found.low, found.vector, atol=1e-5)
    assert abs(float(found.high.mean())) < 1e-3  # the author's residual stream is centred (2.3)
    assert (found.origin.metadata["metadata"]["count_high_elo"], found.origin.is_centred) == (943, True)


# -- the layouts that the public data has no example of ----------------------------------------------------------------


def test_the_oldest_probes_are_a_bare_tensor_whose_name_tells_the_rest(tmp_path: Path) -> None:
    name = "tf_lens_lichess_16layers_ckpt_no_optimizer_chess_piece_probe_layer_12_pos_start_5.pth"
    probe = read_karvonen_probe(written(tensor(1, 16, 8, 8, 13), tmp_path / name))
    origin = probe.origin
    assert (origin.layer, origin.label, origin.n_layers, origin.first_position) == (12, "piece", 16, 5)
    assert (origin.model, origin.is_centred) == ("tf_lens_lichess_16layers_ckpt_no_optimizer", True)
    assert (probe.train_games, probe.epochs, origin.positions_per_game) == (None, None, None)
    nameless = read_karvonen_probe(written(tensor(1, 16, 8, 8, 13), tmp_path / "probe.pth")).origin
    assert (nameless.layer, nameless.label, nameless.model, nameless.is_centred) == (None, "piece", None, None)


def test_older_dicts_lack_keys_and_have_others(tmp_path: Path) -> None:
    content = {**LOGGED, "linear_probe": tensor(1, 16, 8, 8, 3), "process_data": True, "max_lr": 3e-4}
    del content["config_name"], content["n_layers"]
    content["linear_probe_name"] = "chess_color_probe"
    probe = read_karvonen_probe(written(content, tmp_path / "color.pth"))
    assert (probe.weight.shape, probe.origin.label, probe.origin.n_layers) == ((16, 64, 3), "color", 8)
    assert probe.origin.metadata["max_lr"] == 3e-4


@pytest.mark.parametrize(
    ("indexing", "positions"),
    [
        ("find_even_spaces_indices", "even-spaces"),
        ("find_spaces_indices", "spaces"),
        ("get_all_white_pos_indices", "get_all_white_pos_indices"),
    ],
)
def test_positions_and_labels_without_a_name_of_ours_keep_their_own(
    indexing: str, positions: str, tmp_path: Path
) -> None:
    content = {**LOGGED, "linear_probe": tensor(1, 16, 1, 1, 3), "config_name": "chess_eval_probe"}
    probe = read_karvonen_probe(written({**content, "indexing_function_name": indexing}, tmp_path / "p.pth"))
    assert (probe.origin.positions, probe.origin.label) == (positions, "eval")


def test_a_regression_probe_has_one_class(tmp_path: Path) -> None:
    probe = read_karvonen_probe(written(tensor(1, 16, 1, 1), tmp_path / "tf_lens_lichess_16layers_ckpt_layer_12.pth"))
    assert (probe.weight.shape, probe.origin.label) == ((16, 1, 1), "rating")


def test_squares_are_laid_out_from_a1_along_the_ranks(tmp_path: Path) -> None:
    probe = torch.zeros(1, 4, 8, 8, 13)
    probe[0, :, 1, 4, 7] = 1  # rank 2, file e: the square of a white pawn
    weight = read_karvonen_probe(written({**LOGGED, "linear_probe": probe}, tmp_path / "p.pth")).weight
    assert np.argwhere(weight[0]).tolist() == [[12, 7]]


CAA_NAMES = {
    "type=caa_simple_model=16layers_layer=12_activations.pt": ("contrastive", 12, 16),
    "type=caa_cascade_5_6_7_model=8layers_layer=6_activations.pt": ("cascade", 6, 8),
    "lichess_train_layer_14_pos_start_5_levels_05_activations.pt": ("contrastive", 14, None),
}


@pytest.mark.parametrize("name", CAA_NAMES)
def test_vectors_of_every_naming_age(name: str, tmp_path: Path) -> None:
    high, low = tensor(16).detach(), torch.ones(16)
    content = {
        "average_high_elo_activation": high, "average_low_elo_activation": low, "difference_vector": high - low,
        "count_high_elo": 943, "count_low_elo": 1057,
    }  # fmt: skip
    found = read_karvonen_vector(written(content, tmp_path / name))
    assert (found.source, found.origin.layer, found.origin.n_layers) == CAA_NAMES[name]
    np.testing.assert_array_equal(found.vector, (high - low).numpy())


def test_the_oldest_contrasts_are_their_two_averages(tmp_path: Path) -> None:
    high, low = tensor(16).detach(), torch.ones(16)
    sides = {"average_high_elo_activation": high, "average_low_elo_activation": low}
    content = {**sides, "metadata": {"count_high_elo": 943, "count_low_elo": 1057, "description": "all games"}}
    path = written(content, tmp_path / "lichess_train_layer_14_pos_start_25_levels_05_activations.pt")
    found = read_karvonen_vector(path)
    np.testing.assert_array_equal(found.vector, (high - low).numpy())
    assert found.high is not None
    np.testing.assert_array_equal(found.high, high.numpy())
    assert (found.source, found.origin.layer, found.origin.positions) == ("contrastive", 14, "dots")
    assert found.origin.first_position == 25
    assert found.origin.metadata["metadata"]["count_low_elo"] == 1057
    assert read_karvonen_vector(written(content, tmp_path / "activations.pt")).origin.layer is None


def test_a_vector_made_from_a_skill_probe_is_both_probe_and_vector(tmp_path: Path) -> None:
    probe = tensor(1, 16, 1, 1, 2)
    low, high = probe.detach()[0, :, 0, 0, 0], probe.detach()[0, :, 0, 0, 1]
    sides = {"average_low_elo_activation": low, "average_high_elo_activation": high, "difference_vector": high - low}
    content = {**LOGGED, "linear_probe": probe, "config_name": "chess_skill_probe", **sides}
    path = written(content, tmp_path / "skill.pth")
    assert read_karvonen_vector(path).source == "probe"
    weight = read_karvonen_probe(path).weight
    np.testing.assert_array_equal(read_karvonen_vector(path).vector, weight[:, 0, 1] - weight[:, 0, 0])


# -- refusals ----------------------------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("read", [read_karvonen_probe, read_karvonen_vector])
def test_code_in_a_pickle_is_refused_and_never_run(read: Any, tmp_path: Path) -> None:
    path = written({**LOGGED, "linear_probe": tensor(1, 16, 1, 1, 2), "extra": Bomb(tmp_path / "ran")}, tmp_path / "p")
    with pytest.raises(BadInputError, match="would execute code"):
        read(path)
    assert not (tmp_path / "ran").exists()


def wrong_difference() -> dict[str, torch.Tensor]:
    names = ("average_high_elo_activation", "average_low_elo_activation", "difference_vector")
    return dict(zip(names, (torch.ones(4), torch.zeros(4), torch.full((4,), 2.0)), strict=True))


WRONG = {
    "other shapes": (read_karvonen_probe, tensor(1, 16, 9, 9, 2), r"shape \[1, 16, 9, 9, 2\]"),
    "several modes": (read_karvonen_probe, tensor(3, 16, 8, 8, 13), r"shape \[3, 16, 8, 8, 13\]"),
    "a vector": (
        read_karvonen_probe,
        {"difference_vector": torch.ones(4)},
        r"no linear probe, but the keys difference_vector \[4\]",
    ),
    "one average": (
        read_karvonen_vector,
        {"average_high_elo_activation": torch.ones(4), "layer": 3},
        r"no activation vector, but the keys average_high_elo_activation \[4\], layer",
    ),
    "averages of two widths": (
        read_karvonen_vector,
        {"average_high_elo_activation": torch.ones(4), "average_low_elo_activation": torch.ones(5)},
        "averages differ in length: 4 and 5",
    ),
    "a tensor alone": (read_karvonen_vector, torch.ones(4, 2), r"its tensor is not a tensor of floats \[d_model\]"),
    "a list": (read_karvonen_probe, [1, 2], "no linear probe, but a list"),
    "NaN": (read_karvonen_probe, torch.full((1, 4, 1, 1, 2), torch.nan), "NaN"),
    "a board probe": (
        read_karvonen_vector,
        {**LOGGED, "linear_probe": tensor(1, 16, 8, 8, 13)},
        "64 squares and 13 classes",
    ),
    "nothing": (read_karvonen_vector, {"layer": 3}, "no activation vector, but the keys layer"),
    "an empty file": (read_karvonen_vector, {}, "no activation vector, but no keys"),
    "sides that do not fit": (read_karvonen_vector, wrong_difference(), "is not its high average minus its low one"),
    "a matrix": (read_karvonen_vector, {"difference_vector": torch.ones(4, 4)}, r"not a tensor of floats \[d_model\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_direction_is_named(name: str, tmp_path: Path) -> None:
    read, content, message = WRONG[name]
    with pytest.raises(BadInputError, match=message):
        read(written(content, tmp_path / "file.pth"))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"layer": "zero"}, "its layer is 'zero', not a whole number"),
        ({"layer": -1}, "its layer is '-1'"),
        ({"layer": 10**30}, "its layer is '1000"),
        ({"layer": float("nan")}, "its layer is 'nan'"),
        ({"layer": torch.tensor([1, 2])}, "its layer is"),
        ({"iters": "many"}, "its iters is 'many'"),
        ({"epochs": float("inf")}, "its epochs is 'inf'"),
        ({"pos_end": "x"}, "its pos_end is 'x'"),
        ({"metadata": 5}, "its metadata is a int"),
        ({"metadata": {"count_high_elo": "a"}}, "its count_high_elo is 'a'"),
        ({"model_name": "x" * 1000}, "its model_name is 'xxx.*not a name"),
        ({"config_name": ["a"]}, "its config_name is"),
        ({"linear_probe": torch.zeros(1, 32, 8, 8, 13, dtype=torch.int32)}, "is strided of int32, not dense"),
        ({"linear_probe": torch.zeros(1, 32, 8, 8, 13, dtype=torch.complex64)}, "of complex64"),
        ({"linear_probe": torch.zeros(1, 32, 8, 8, 13).to_sparse()}, "is sparse_coo"),
        ({"linear_probe": torch.zeros(1, 0, 8, 8, 13)}, "is empty"),
        ({"linear_probe": torch.zeros(1, 32, 8, 8, 0)}, "is empty"),
    ],
)
def test_what_a_file_says_that_cannot_be_is_one_line(said, why, tmp_path):
    path = tmp_path / "probe.pth"
    torch.save({"linear_probe": torch.zeros(1, 32, 8, 8, 13), "layer": 0, **said}, path)
    with pytest.raises(BadInputError, match=rf"probe\.pth: .*{why}") as caught:
        read_karvonen_probe(path)
    assert "\n" not in str(caught.value)
