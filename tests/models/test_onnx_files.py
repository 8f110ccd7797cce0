"""Importing ONNX graphs: equal logits, and hostile files refused in one line."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard

from chessreg.entities.fetched import group_files
from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.importers import UnrecordedSettings, check_import, convert_checkpoint
from chessreg.models.language_model import LanguageModel

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
FIXTURES = Path(__file__).parents[1] / "fixtures" / "onnx"
DATA = "model.onnx.data"  # the name that the graph refers to


def unpack(name: str, folder: Path) -> Path:
    """A fixture's graph as `model.onnx` in `folder`, with its data and config.json."""
    folder.mkdir(exist_ok=True)
    for packed in FIXTURES.glob(f"{name}.onnx*.zst"):
        file = folder / packed.name.removesuffix(".zst").replace(name, "model")
        file.write_bytes(zstandard.ZstdDecompressor().decompress(packed.read_bytes()))
    if (FIXTURES / f"{name}.json").is_file():
        shutil.copy(FIXTURES / f"{name}.json", folder / "config.json")
    return folder / "model.onnx"


def altered(name: str, folder: Path, change: Callable[[Any], None]) -> Path:
    """A fixture's graph after `change` of its ModelProto."""
    path = unpack(name, folder)
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def run_original(path: Path, tokens: torch.Tensor) -> np.ndarray:
    """The logits of a graph by onnxruntime."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds: dict[str, np.ndarray] = {}
    for value in session.get_inputs():
        if "mask" in value.name:
            feeds[value.name] = np.ones(tokens.shape, np.int64)
        elif "position" in value.name:
            feeds[value.name] = np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))
        elif value.name.startswith("past"):
            feeds[value.name] = np.zeros((len(tokens), value.shape[1], 0, value.shape[3]), np.float32)
        else:
            feeds[value.name] = tokens.numpy()
    logits: np.ndarray = session.run([session.get_outputs()[0].name], feeds)[0]
    return logits


@pytest.mark.parametrize("name", ["gpt2", "llama", "nano-torchscript", "nano-dynamo", "nano-fixed", "nano-half"])
def test_a_graph_is_imported_with_the_logits_of_onnxruntime(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path / "theirs")
    report = convert_checkpoint(path.parent if name == "gpt2" else path, tmp_path / "out")
    assert report.format == "onnx"
    assert report.games.tokens > 0
    assert report.info.architecture["n_layer"] == 2
    assert report.info.source["external_data"].keys() == ({DATA} if name == "nano-dynamo" else set())
    tokens = torch.randint(32, (1, 32), generator=torch.Generator().manual_seed(1))
    expected = run_original(path, tokens)
    ours = LanguageModel.load(tmp_path / "out").logits(tokens).numpy()[:, -expected.shape[1] :]
    within = 0.01 if name == "nano-half" else 1e-4
    assert float(np.abs(ours - expected).max()) <= within
    assert float(expected.std()) > 0.1
    if name == "nano-half":
        return
    assert report.max_logit_difference <= 1e-5
    if name.startswith("nano"):
        assert report.info.architecture["n_head"] == 2
        assert report.info.architecture["bias"] is False
        assert report.remarks == ["no config.json: 2 attention heads and the activation gelu are those of the graph"]


def test_all_exports_of_one_model_have_the_same_weights(tmp_path: Path) -> None:
    digests = set()
    for name in ("nano-torchscript", "nano-dynamo", "nano-fixed"):
        digests.add(convert_checkpoint(unpack(name, tmp_path / name), tmp_path / f"{name}-out").digest)
    assert len(digests) == 1


def test_a_graph_without_the_settings_of_transformers_is_a_gpt2_or_refused(tmp_path: Path) -> None:
    path = unpack("gpt2", tmp_path / "gpt2")
    with_settings = convert_checkpoint(path, tmp_path / "with")
    (path.parent / "config.json").unlink()
    without = convert_checkpoint(path, tmp_path / "without")
    assert without.digest == with_settings.digest
    with pytest.raises(BadInputError, match="logits differ"):
        convert_checkpoint(path, tmp_path / "wrong", settings=UnrecordedSettings(heads=4))
    llama = unpack("llama", tmp_path / "llama")
    settings = json.loads((llama.parent / "config.json").read_text())
    (llama.parent / "config.json").unlink()
    with pytest.raises(BadInputError, match=r"is not a GPT-2 .* no config.json") as refused:
        convert_checkpoint(llama, tmp_path / "out")
    assert "copy the model's config.json" in (refused.value.hint or "")
    (llama.parent / "config.json").write_text(json.dumps({**settings, "rms_norm_eps": 0.1}))
    with pytest.raises(BadInputError, match="logits differ"):
        convert_checkpoint(llama, tmp_path / "out")
    (llama.parent / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 3}))
    with pytest.raises(BadInputError, match=r"model.onnx: weights are missing or unknown"):
        convert_checkpoint(llama, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_dropout_of_an_export_in_training_mode_is_not_applied(tmp_path: Path) -> None:
    def drop(model: Any) -> None:
        node = next(node for node in model.graph.node if node.op_type == "Softmax")
        dropped = onnx.helper.make_node("Dropout", ["before", "ratio", "training"], [node.output[0]])
        node.output[0] = "before"
        model.graph.node.insert(list(model.graph.node).index(node) + 1, dropped)
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "ratio"))
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.bool_(True), "training"))

    report = convert_checkpoint(altered("nano-fixed", tmp_path / "graph", drop), tmp_path / "out")
    assert report.max_logit_difference <= 1e-5


def set_operator(model: Any, operator: str, domain: str = "") -> None:
    node = next(node for node in model.graph.node if node.op_type == "MatMul")
    node.op_type, node.domain = operator, domain


def set_location(model: Any, location: str) -> None:
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location


def set_external(model: Any, key: str, value: str) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.external_data)
    next(entry for entry in tensor.external_data if entry.key == key).value = value


def add_external_constant(model: Any) -> None:
    tensor = onnx.numpy_helper.from_array(np.zeros(4, np.float32))
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="model.onnx")
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["unused"], value=tensor))


def claim_size(model: Any) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 2)
    tensor.dims[0] = 1 << 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: set_operator(m, "MatMulInteger"), r"is quantized \(MatMulInteger\)"),
        (lambda m: set_operator(m, "MatMulNBits", "com.microsoft"), r"is quantized \(MatMulNBits\)"),
        (lambda m: set_operator(m, "FusedMatMul", "com.microsoft"), r"operator com.microsoft.FusedMatMul"),
        (lambda m: set_operator(m, "MatMul", "evil"), r"operator evil.MatMul, which cannot"),
        (lambda m: set_operator(m, "Loop"), "operator Loop, which cannot"),
        (lambda m: m.functions.add(name="f", domain="local"), "has functions"),
        (lambda m: set_location(m, "../../etc/passwd"), r"is refused: its data would be read from '../../etc/passwd'"),
        (lambda m: set_location(m, "/etc/passwd"), "is refused: its data would be read from '/etc/passwd'"),
        (lambda m: set_location(m, "link"), "is refused: its data would be read from 'link'"),
        (lambda m: set_location(m, "gone.data"), r"keeps its weights in gone.data, which does not exist"),
        (lambda m: set_external(m, "offset", "99999999"), "is damaged: .* is not .* bytes of model.onnx.data"),
        (lambda m: set_external(m, "length", "-4"), "is damaged: .* is not -4 bytes"),
        (lambda m: set_external(m, "length", "9" * 400), "is damaged: .* is not 9{20} bytes"),
        (claim_size, "is damaged"),
        (add_external_constant, "is refused: a constant is stored in another file"),
        (lambda m: m.graph.ClearField("output"), "is damaged: it has no graph"),
        (lambda m: m.graph.input.add(name="pixels"), "has the input pixels"),
    ],
)  # fmt: skip
def test_a_hostile_or_foreign_graph_is_refused_in_one_line(
    change: Callable[[Any], None], message: str, tmp_path: Path
) -> None:
    path = altered("nano-dynamo", tmp_path / "graph", change)
    outside = tmp_path / "secret"
    outside.write_bytes(b"\x00" * (1 << 16))
    (path.parent / "link").symlink_to(outside)
    with pytest.raises(BadInputError, match=message) as refused:
        convert_checkpoint(path, tmp_path / "out")
    assert "\n" not in refused.value.message
    assert not (tmp_path / "out").exists()


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = unpack("nano-fixed", tmp_path / "graph")
    content = path.read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"\x3a\xff\xff\xff\xff\x07" + content[:1000], b"\x89PNG" * 99):
        path.write_bytes(damaged)
        with pytest.raises(BadInputError, match=r"^model.onnx is damaged: it (is not an ONNX|has no) graph"):
            check_import(path)
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.truncate(1 << 31)  # sparse
    with pytest.raises(BadInputError, match="larger than 2 GiB"):
        check_import(path)


def test_data_linked_as_in_the_cache_of_the_hub_is_read(tmp_path: Path) -> None:
    unpack("nano-dynamo", tmp_path / "blobs")
    snapshot = tmp_path / "snapshots" / "commit"
    snapshot.mkdir(parents=True)
    for name in ("model.onnx", DATA):
        (snapshot / name).symlink_to(Path("../../blobs") / name)
    assert convert_checkpoint(snapshot, tmp_path / "out").format == "onnx"


def test_the_graph_of_a_folder_is_chosen_by_name(tmp_path: Path) -> None:
    folder = unpack("gpt2", tmp_path / "graph").parent
    (folder / "model.onnx").rename(folder / "first.onnx")
    assert convert_checkpoint(folder, tmp_path / "out").format == "onnx"
    shutil.copy(folder / "first.onnx", folder / "second.onnx")
    with pytest.raises(BadInputError, match=re.escape("graph has 2 ONNX files: first.onnx, second.onnx")):
        check_import(folder)
    (folder / "onnx").mkdir()
    for name in ("first.onnx", "second.onnx"):
        (folder / name).rename(folder / "onnx" / name.replace("first", "decoder_model"))
    assert convert_checkpoint(folder, tmp_path / "again").info.source["config"] == "config.json"


def test_the_tokenizer_next_to_a_graph_is_its_vocabulary(tmp_path: Path) -> None:
    from chessreg.encodings import get_encoding

    path = unpack("gpt2", tmp_path / "graph")
    tokens = get_encoding("pgn-char-32").vocabulary[::-1]
    (path.parent / "vocab.json").write_text(json.dumps({text: number for number, text in enumerate(tokens)}))
    report = convert_checkpoint(path, tmp_path / "out")
    assert report.info.source["tokenizer"]["file"] == "vocab.json"
    prompt = torch.tensor([[15, 3, 7]])
    expected = run_original(path, 31 - prompt)[..., ::-1]
    assert np.allclose(LanguageModel.load(tmp_path / "out").logits(prompt).numpy(), expected, atol=1e-4)


def test_the_graph_of_a_repository_is_fetched_with_its_data_and_tokenizer() -> None:
    names = ["config.json", "tokenizer.json", "model.onnx", "model.onnx_data", "image.png"]
    assert group_files(names)[0].paths == ("config.json", "model.onnx", "model.onnx_data", "tokenizer.json")
    both = group_files([*names, "model.safetensors"])
    assert both[0].paths == ("config.json", "model.safetensors", "tokenizer.json")


def test_an_onnx_file_without_onnx_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unpack("nano-fixed", tmp_path / "graph")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(NotFoundError, match="which is read with onnx") as refused:
        check_import(path)
    assert refused.value.hint == "pip install 'chessreg[onnx]'"
