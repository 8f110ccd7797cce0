"""Davis's probe files: read whole, in our order of classes, or refused in one line."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from chessreg.errors import BadInputError
from chessreg.experiments.imported.directions import ImportedProbe, build_import_spec
from chessreg.games.datasets.labels import get_label
from chessreg.models.importers.davis_probes import ORDER, get_hook_point, read_davis_probe
from chessreg.models.importers.source import is_safetensors
from chessreg.registry import tables

AUTHORS = {  # of Davis's code
    "color": ("black", "white", "empty"),
    "type": (*"PNBRQK", "."),
    "piece": (*"pnbrqkPNBRQK", "."),
}


def tensors(classes: int = 13, width: int = 8) -> dict[str, np.ndarray]:
    """Each weight says its square and its class: square * 100 + class."""
    rows = 100.0 * np.arange(64)[:, None] + np.arange(classes)
    return {f"submodules.{s}.weight": np.repeat(rows[s][:, None], width, 1).astype(np.float32) for s in range(64)}


def saved(folder, name="to_piece_by_color/layer-07/phase-0/model.safetensors", **changes):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({**tensors(), **changes}, path)
    return path


def test_classes_are_brought_from_the_authors_order_into_ours():
    for name, theirs in AUTHORS.items():
        ours = ["." if c == "empty" and name != "color" else c for c in get_label(name).classes]
        assert [theirs[place] for place in ORDER[name]] == ours


def test_a_file_is_read_by_its_path_and_its_shapes(tmp_path):
    path = saved(tmp_path)
    file = read_davis_probe(path, str(path))
    assert file.weight.shape == (8, 64, 13)
    assert file.weight[0, 28].tolist() == [2800.0 + place for place in ORDER["piece"]]
    assert (file.origin.label, file.origin.residual_index, file.origin.phase, file.origin.is_centred) == (
        "piece", 7, 0, False,
    )  # fmt: skip
    bare = read_davis_probe(path, "")
    assert (bare.origin.residual_index, bare.origin.phase) == (None, None)
    assert is_safetensors(path)


def test_a_hidden_state_is_the_output_of_the_block_before_it():
    assert get_hook_point(0) == ("blocks.*.hook_resid_pre", 0)
    assert get_hook_point(1) == ("blocks.*.hook_resid_post", 0)
    assert get_hook_point(12) == ("ln_final.hook_out", 11)
    assert get_hook_point(2, blocks=2) == ("ln_final.hook_out", 1)
    with pytest.raises(BadInputError, match="layer-13: the hidden states of 12 blocks are 0 to 12"):
        get_hook_point(13)


def broken(folder, what):
    square = "submodules.5.weight"
    if what == "pickle":
        path = folder / "to_color-layer-01-phase-0.safetensors"
        path.write_bytes(pickle.dumps(pytest.raises))
        return path
    if what == "torch":
        path = folder / "to_color/layer-01/phase-0/model.safetensors"
        path.parent.mkdir(parents=True)
        torch.save({key: torch.from_numpy(value) for key, value in tensors().items()}, path)
        return path
    if what == "cut":
        path = saved(folder)
        path.write_bytes(path.read_bytes()[:-7])
        return path
    if what == "name":
        return saved(folder, "to_color-layer-07-phase-0.safetensors")
    if what == "layer":
        return saved(folder, "to_piece_by_color-phase-0.safetensors")
    if what == "phase":
        return saved(folder, "to_piece_by_color/layer-07/phase-7/model.safetensors")
    if what == "missing":
        path = folder / "few-layer-07.safetensors"
        save_file({square: np.zeros((13, 8), np.float32)}, path)
        return path
    return saved(folder, **{
        "nan": {square: np.full((13, 8), np.nan, np.float32)},
        "shape": {square: np.zeros((13, 9), np.float32)},
        "classes": {key: np.zeros((5, 8), np.float32) for key in tensors()},
        "integers": {square: np.zeros((13, 8), np.int64)},
        "more": {"submodules.64.weight": np.zeros((13, 8), np.float32)},
    }[what])  # fmt: skip


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (
            "pickle",
            "/to_color-layer-01-phase-0.safetensors is refused: loading it would execute code|not a file of tensors",
        ),
        ("torch", r"model.safetensors holds no linear probe, but the keys submodules.0.weight"),
        ("cut", "model.safetensors is damaged"),
        ("name", "has 13 classes, which do not fit the label to_color"),
        ("layer", "does not state its layer"),
        ("phase", r"phase-7/model.safetensors: phase 7 does not exist"),
        ("missing", r"holds no submodules\.0\.weight, but submodules\.5\.weight \[13, 8\]"),
        ("nan", "holds NaN or infinite values"),
        ("shape", r"the shape of its weights is \[13, 8\] and \[13, 9\]"),
        ("classes", r"the shape of its weights is \[5, 8\] .*3, 7 or 13 classes"),
        ("integers", "its weights are torch.int64, not floats"),
        ("more", r"holds submodules\.64\.weight in addition to the weights of 64 squares"),
    ],
)
def test_another_file_is_refused_in_one_line_and_leaves_nothing(session, tmp_path, what, why):
    with pytest.raises(BadInputError, match=why) as caught:
        build_import_spec(ImportedProbe, [broken(tmp_path, what)], session.inputs)
    assert "\n" not in str(caught.value)
    assert not list(session.store.root.glob("artifacts/*/*"))


def test_an_import_names_place_and_phase_and_refuses_what_does_not_go_together(session, tmp_path):
    paths = [saved(tmp_path, f"to_piece_by_color/layer-{n:02}/phase-2/model.safetensors") for n in (1, 2)]
    report = session.run(build_import_spec(ImportedProbe, paths, session.inputs), name="joint")
    probe = session.probe("joint", 1)
    assert (probe.hook_point, probe.label, probe.centred) == ("blocks.1.hook_resid_post", "piece", False)
    assert {k: probe.detail[k] for k in ("phase", "alignment", "last_sites")} == {
        "phase": 2, "alignment": "pre-ply", "last_sites": 5,
    }  # fmt: skip
    with session.database.read() as sql:
        row = sql.get_one(tables.ProbeRecord, (report.run_id, 0))
    assert (row.positions, row.layer, row.checkpoint_id) == ("black-origins", 0, None)
    embeddings = saved(tmp_path, "to_piece_by_color/layer-00/phase-2/model.safetensors")
    other = saved(tmp_path, "to_piece_by_color/layer-03/phase-1/model.safetensors")
    for files, options, why in (
        ([paths[0], embeddings], {}, "have different hook points"),
        ([paths[0], other], {}, "have different phases: 1, 2"),
        (paths, {"layers": (3, 4)}, r"--layers is \(3, 4\), but the paths state \(0, 1\)"),
        (paths, {"phase": 0}, "--phase is 0, but the paths state 2"),
        (
            [paths[0], saved(tmp_path, "plain.safetensors")],
            {},
            f"{tmp_path / 'plain.safetensors'} does not state its layer",
        ),
    ):
        with pytest.raises(BadInputError, match=why):
            build_import_spec(ImportedProbe, files, session.inputs, **options)
    plain = saved(tmp_path, "plain.safetensors")
    with pytest.raises(BadInputError, match="does not state its layer"):
        build_import_spec(ImportedProbe, [plain], session.inputs)
    named = build_import_spec(
        ImportedProbe, [plain], session.inputs, layers=(0,), phase=0, hook_point="ln_final.hook_out"
    )
    assert (named.phase, named.hook_point) == (0, "ln_final.hook_out")
