"""SAEs and activations that go to other programs and come from them: commands, Python, and use in experiments."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import chessreg
from chessreg.cli.root import run_command_line
from chessreg.errors import BadInputError, NotFoundError
from chessreg.experiments.probe.spec import ProbeSpec
from chessreg.session import Session, open_session

GOLDEN = Path(__file__).parents[2] / "fixtures" / "saes"
THEIRS = GOLDEN / "saelens-topk"
SAMPLE = Path(chessreg.__file__).parent / "data" / "sample-sae"
POINT = "blocks.1.hook_resid_post"


@pytest.fixture(scope="module")
def opened(world: Path) -> Iterator[Session]:
    with open_session(str(world / "registry.db"), world / "store") as session:
        yield session


@pytest.fixture(scope="module")
def registry(world: Path) -> Iterator[Any]:
    with chessreg.open(world / "registry.db", store=world / "store") as reg:
        yield reg


@pytest.fixture(scope="module")
def imported(registry: Any) -> str:
    registry.import_sae(THEIRS, checkpoint="reference", name="theirs")
    return "theirs"


def command(world: Path, *words: str | Path) -> int:
    return run_command_line(
        ["--registry", str(world / "registry.db"), "--store", str(world / "store"), *map(str, words)]
    )


def test_an_imported_sae_is_listed_loaded_and_exported_bit_for_bit(
    world: Path, registry: Any, imported: str, tmp_path: Path, capsys: Any
) -> None:
    assert command(world, "import", "sae", THEIRS, "--checkpoint", "reference", "--json") == 0
    out, err = capsys.readouterr()
    row = json.loads(out)[0]
    assert "these folders are already imported-sae" in err
    assert "; nothing was added" in err
    assert (row["hook_point"], row["architecture"], row["features"]) == (POINT, "topk", 10)
    assert row["l0"] == pytest.approx(4, abs=0.01)  # latents that are active, of the four largest
    assert command(world, "sae", "verify", imported) == 0
    sae = registry.sae(imported)
    x = torch.from_numpy(registry.cache("reference-fit").read(layer=1).residual[:50])
    assert int((sae.encode(x) > 0).sum(1).max()) <= 4
    made = registry.export_sae(imported, tmp_path / "again")
    assert set(made["files"]) == {"cfg.json", "sae_weights.safetensors"}
    before, after = load_file(THEIRS / "sae_weights.safetensors"), load_file(tmp_path / "again/sae_weights.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(BadInputError, match="exists already"):
        registry.export_sae(imported, tmp_path / "again")
    registry.export_sae(imported, tmp_path / "other", "dictionary_learning", layer=1)
    registry.import_sae(tmp_path / "other", checkpoint="reference", name="through-dictionary")
    assert torch.equal(registry.sae("through-dictionary").encode(x), sae.encode(x))


def test_a_probe_reads_the_latents_of_an_imported_sae(opened: Session, imported: str) -> None:
    spec = ProbeSpec(
        cache="reference-fit", test_cache="reference-test", label="color", source="sae-latents", sae=imported,
        layers=(1,), epochs=1,
    )  # fmt: skip
    report = opened.run(spec, name="of-theirs")
    assert report.state == "complete"
    assert opened.probe("of-theirs", layer=1).weight.shape == (32, 64, 3)


def test_an_sae_that_does_not_fit_is_refused_and_leaves_nothing(world: Path, tmp_path: Path, capsys: Any) -> None:
    other = tmp_path / "elsewhere"
    shutil.copytree(THEIRS, other)
    settings = json.loads((other / "cfg.json").read_text())
    settings["metadata"]["hook_name"] = "blocks.40.hook_resid_post"
    (other / "cfg.json").write_text(json.dumps(settings))
    unnamed = tmp_path / "unnamed"
    shutil.copytree(THEIRS, unnamed)
    del settings["metadata"]["hook_name"]
    (unnamed / "cfg.json").write_text(json.dumps(settings))
    for folders, message in (
        ([SAMPLE, "--hook-points", "blocks.1.hook_resid_post"], "sample-sae has d_model 192, but the model has 32"),
        ([other], "elsewhere reads blocks.40.hook_resid_post, but the model's layers are 0 to 1"),
        ([unnamed], "unnamed does not state its hook point"),
        ([THEIRS, THEIRS], "are both blocks.1.hook_resid_post.10"),
        ([THEIRS, "--hook-points", "blocks.1.hook_resid_post,hook_embed"], "1 folders, but 2 hook points"),
        ([THEIRS, "--hook-points", "blocks.1.attn.hook_z"], "do not read the hook point 'blocks.1.attn.hook_z'"),
        ([tmp_path / "absent"], "does not exist"),
        ([tmp_path], "is not the folder of one SAE"),
    ):
        status = command(world, "import", "sae", *folders, "--checkpoint", "reference", "--name", "wrong")
        _, err = capsys.readouterr()
        assert status in (2, 3, 4), message
        assert message in err
        assert err.count("\n") <= 2
    assert command(world, "sae", "show", "wrong") != 0


@pytest.mark.parametrize("format", ["datasets", "safetensors"])
def test_activations_are_the_same_in_other_formats(registry: Any, format: str, tmp_path: Path) -> None:
    cache = registry.cache("reference-fit")
    made = registry.export_cache("reference-fit", tmp_path / "out", format)
    array = cache.array
    assert made["rows"] == array.rows
    points = cache.groups[0].hook_points
    if format == "datasets":
        from datasets import load_from_disk

        rows = load_from_disk(tmp_path / "out").with_format("numpy")
        assert rows.column_names == ["game", "token", "ply", *points]
        assert all(rows.features[point].shape == (1, array.d_model) for point in points)  # as SAELens requires
        values = {name: rows[:][name] for name in rows.column_names}
        values |= {point: values[point][:, 0] for point in points}
        assert json.loads(rows.info.description)["checkpoint"] == "reference"
    else:
        [file] = sorted((tmp_path / "out").iterdir())
        values = {name: tensor.numpy() for name, tensor in load_file(file).items()}
        with safe_open(file, "np") as content:
            assert json.loads(content.metadata()["facts"])["sites"] == cache.sites
    for name in ("game", "token", "ply"):
        np.testing.assert_array_equal(values[name], getattr(array, name))
    for point in points:
        np.testing.assert_array_equal(values[point], array.read(point))


def test_a_large_cache_is_written_in_several_files(registry: Any, tmp_path: Path, monkeypatch: Any) -> None:
    from datasets import load_from_disk

    from chessreg.runs import activation_export

    array = registry.cache("reference-fit").array
    monkeypatch.setattr(activation_export, "SHARD_BYTES", array.rows * array.d_model)  # of two bytes: two files
    monkeypatch.setattr(activation_export, "PIECE_BYTES", 100_000)
    made = registry.export_cache("reference-fit", tmp_path / "out", hook_points=[POINT])
    assert sum(name.endswith(".arrow") for name in made["files"]) == 2
    rows = load_from_disk(tmp_path / "out").with_format("numpy")
    np.testing.assert_array_equal(rows[:][POINT][:, 0], array.read(POINT))
    with pytest.raises(NotFoundError, match=r"the cache holds no blocks\.77"):
        registry.export_cache("reference-fit", tmp_path / "other", hook_points=["blocks.77.hook_resid_post"])
    assert not (tmp_path / "other").exists()
