"""Hugging Face folders are read from the files that transformers reads, regardless of other files in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from chessreg.errors import BadInputError
from chessreg.models.checkpoint import load_model
from chessreg.models.importers import convert_checkpoint
from chessreg.models.importers import registry as importing
from chessreg.models.importers.huggingface import HuggingFaceFolder
from tests.language_models import hugging_face_model
from tests.quick import quick_first

Weights = Mapping[str, Tensor]
TOKENS = torch.arange(64).reshape(2, 32) % 32


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of 2 layers as the library saves it, in one safetensors file."""
    folder = tmp_path_factory.mktemp("original") / "gpt2"
    hugging_face_model("gpt2", 32, context=64).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(original: Path) -> Tensor:
    from transformers import AutoModelForCausalLM

    logits: Tensor = AutoModelForCausalLM.from_pretrained(original).eval()(TOKENS).logits
    return logits.detach()


def weights_of(original: Path) -> dict[str, Tensor]:
    return dict(load_file(original / "model.safetensors"))


def others(weights: Weights) -> dict[str, Tensor]:
    """Weights of the same names and shapes, and of other values."""
    return {name: torch.full_like(tensor, 0.25) for name, tensor in weights.items()}


def folder_of(original: Path, folder: Path, weights: Weights | None = None, **config: Any) -> Path:
    """A folder with the original's config.json, and these weights in model.safetensors."""
    folder.mkdir()
    settings = json.loads((original / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | config))
    if weights is not None:
        save_file(dict(weights), folder / "model.safetensors")
    return folder


def shards(folder: Path, weights: Weights, kind: str) -> Path:
    """The weights in two files of one kind, and their index."""
    stem, save = ("model", save_file) if kind == "safetensors" else ("pytorch_model", torch.save)
    names, index = sorted(weights), dict[str, str]()
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"{stem}-{number:05}-of-00002.{kind}"
        save({name: weights[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / f"{stem}.{kind}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def put(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        if isinstance(content, dict) and name.endswith(".safetensors"):
            save_file(content, folder / name)
        elif name.endswith((".bin", ".pt")):
            torch.save(content, folder / name)
        else:
            (folder / name).write_bytes(content)
    return folder


Make = Callable[[Path, Path, dict[str, Tensor]], Path]
READ: dict[str, Make] = {
    "an older copy": lambda o, d, w: put(folder_of(o, d, w), {"model_old.safetensors": others(w)}),
    "an EMA before it in the alphabet": lambda o, d, w: put(folder_of(o, d, w), {"ema.safetensors": others(w)}),
    "consolidated": lambda o, d, w: put(folder_of(o, d, w), {"consolidated.safetensors": {"tok": torch.ones(2)}}),
    "._model": lambda o, d, w: put(folder_of(o, d, w), {"._model.safetensors": b"\0\5\x16\7Mac OS X"}),
    "an adapter": lambda o, d, w: put(
        folder_of(o, d, w),
        {"adapter_config.json": b'{"peft_type": "LORA", "r": 2, "base_model_name_or_path": "gpt2"}',
         "adapter_model.safetensors": {"base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight": torch.ones(2, 32)}},
    ),
    "an older pytorch_model.bin": lambda o, d, w: put(folder_of(o, d, w), {"pytorch_model.bin": others(w)}),
    "training_args.bin": lambda o, d, w: put(folder_of(o, d, w), {"training_args.bin": print}),
    "an index of others": lambda o, d, w: shards(folder_of(o, d, w), others(w), "safetensors"),
    "shards": lambda o, d, w: shards(folder_of(o, d), w, "safetensors"),
    "shards of .bin": lambda o, d, w: shards(folder_of(o, d), w, "bin"),
    "shards and an older .bin": lambda o, d, w: put(
        shards(folder_of(o, d), w, "safetensors"), {"pytorch_model.bin": others(w)}
    ),
    "one .bin": lambda o, d, w: put(folder_of(o, d), {"pytorch_model.bin": w}),
    "no prefix": lambda o, d, w: folder_of(o, d, {n.removeprefix("transformer."): t for n, t in w.items()}),
    **{
        f"the prefix {prefix}": lambda o, d, w, prefix=prefix: folder_of(o, d, {prefix + n: t for n, t in w.items()})  # type: ignore[misc]
        for prefix in ("_orig_mod.", "module.", "model.", "module._orig_mod.", "_orig_mod.module.", "model.module.")
    },
    "a prefix in .bin": lambda o, d, w: put(
        folder_of(o, d), {"pytorch_model.bin": {f"module.{n}": t for n, t in w.items()}}
    ),
    "a stored tied head": lambda o, d, w: folder_of(o, d, {**w, "lm_head.weight": w["transformer.wte.weight"].clone()}),
    "mask buffers": lambda o, d, w: folder_of(
        o, d, {**w, "transformer.h.0.attn.bias": torch.ones(1, 1, 64, 64).tril().bool(),
               "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}
    ),
    "code that is not asked for": lambda o, d, w: folder_of(o, d, w, auto_map={"AutoModelForCausalLM": "evil.Model"}),
    "an untied head": lambda o, d, w: folder_of(
        o, d, {**w, "lm_head.weight": w["transformer.wte.weight"].clone()}, tie_word_embeddings=False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", quick_first(8, READ))
def test_a_folder_is_read_from_the_files_that_transformers_reads(
    name: str, original: Path, expected: Tensor, tmp_path: Path
) -> None:
    folder = READ[name](original, tmp_path / "theirs", weights_of(original))
    report = convert_checkpoint(folder, tmp_path / "out")
    assert torch.allclose(load_model(tmp_path / "out")(TOKENS), expected, atol=1e-5)
    assert report.max_logit_difference < 1e-9
    remarks = {
        "an older copy": "not read: model_old.safetensors",
        "an EMA before it in the alphabet": "not read: ema.safetensors",
        "an adapter": "adapter is not applied",
    }
    assert remarks.get(name, "") in " ".join(report.remarks)
    assert bool(report.remarks) == (name in remarks or name in ("consolidated", "an index of others"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_read_as_transformers_reads_it(dtype: torch.dtype, original: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    half = {name: tensor.to(dtype) for name, tensor in weights_of(original).items()}
    folder = folder_of(original, tmp_path / "theirs", half, dtype=str(dtype).removeprefix("torch."))
    convert_checkpoint(folder, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert torch.allclose(load_model(tmp_path / "out")(TOKENS), theirs(TOKENS).logits, atol=1e-5)


def flipped(folder: Path) -> Path:
    """One bit of the largest part changed."""
    path = folder / "pytorch_model.bin"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return folder


def without(folder: Path, name: str) -> Path:
    (folder / name).unlink()
    return folder


REFUSED: dict[str, tuple[Make, str]] = {
    "a missing shard": (
        lambda o, d, w: without(shards(folder_of(o, d), w, "safetensors"), "model-00002-of-00002.safetensors"),
        "model-00002-of-00002.safetensors",
    ),
    "shards without their index": (
        lambda o, d, w: without(shards(folder_of(o, d), w, "safetensors"), "model.safetensors.index.json"),
        "no file named model.safetensors",
    ),
    "names with and without a prefix": (
        lambda o, d, w: folder_of(o, d, {("module." if n.endswith("bias") else "") + n: t for n, t in w.items()}),
        "weights are missing or unknown: module.transformer.h.0.",
    ),
    "two models": (
        lambda o, d, w: folder_of(o, d, {**w, **{f"_orig_mod.{n}": t for n, t in others(w).items()}}),
        "weights are missing or unknown: _orig_mod.transformer",
    ),
    "another context": (lambda o, d, w: folder_of(o, d, w, n_positions=32), "wpe.weight has shape [64, 32]"),
    "another width": (lambda o, d, w: folder_of(o, d, w, n_inner=100), "has shape [128], not [100] as configured"),
    "a layer too many": (lambda o, d, w: folder_of(o, d, w, n_layer=3), "missing or unknown: transformer.h.2."),
    "a layer too few": (lambda o, d, w: folder_of(o, d, w, n_layer=1), "missing or unknown: transformer.h.1."),
    "a billion layers": (lambda o, d, w: folder_of(o, d, w, n_layer=10**9), "claims 1,000,000,096 layers and rows"),
    "a billion tokens": (lambda o, d, w: folder_of(o, d, w, vocab_size=10**9), "claims 1,000,000,066 layers and rows"),
    "an untied head that is not there": (
        lambda o, d, w: folder_of(o, d, w, tie_word_embeddings=False), "missing or unknown: lm_head.weight"
    ),
    "code in a .bin": (
        lambda o, d, w: put(folder_of(o, d), {"pytorch_model.bin": {**w, "x": print}}), "would execute code"
    ),
    "code in a shard": (
        lambda o, d, w: shards(folder_of(o, d), {**w, "x": print}, "bin"),  # type: ignore[dict-item]
        "would execute code",
    ),
    "a damaged .bin": (
        lambda o, d, w: flipped(put(folder_of(o, d), {"pytorch_model.bin": w})), "the checksum of its part"
    ),
    "NaN": (
        lambda o, d, w: folder_of(o, d, {**w, "transformer.ln_f.bias": torch.full((32,), torch.nan)}), "holds NaN"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_that_contradicts_itself_is_refused_in_one_line(name: str, original: Path, tmp_path: Path) -> None:
    make, reason = REFUSED[name]
    folder = make(original, tmp_path / "theirs", weights_of(original))
    with pytest.raises(BadInputError) as caught:
        convert_checkpoint(folder, tmp_path / "out")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_wrong_conversion_of_a_folder_is_noticed(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a large model is compared in float32."""
    from chessreg.models.importers import huggingface

    folder = folder_of(original, tmp_path / "theirs", weights_of(original))
    right = huggingface.make_gpt2_config
    for limit in (importing.EXACT_PARAMETERS, 0):
        monkeypatch.setattr(importing, "EXACT_PARAMETERS", limit)
        monkeypatch.setattr(huggingface, "make_gpt2_config", right)
        assert convert_checkpoint(folder, tmp_path / f"right-{limit}").max_logit_difference < 1e-4
        monkeypatch.setattr(huggingface, "make_gpt2_config", lambda config, tied: right({**config, "n_head": 4}, tied))
        with pytest.raises(BadInputError, match="the converted model's logits differ by"):
            convert_checkpoint(folder, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_weights_are_shared_with_the_library_and_not_copied(original: Path) -> None:
    """A large folder is held once: the converted model's matrices are those that the library loaded."""
    imported = HuggingFaceFolder().read(importing.open_checkpoint(original))
    (library,) = imported.reference.args  # type: ignore[attr-defined]
    theirs = {tensor.untyped_storage().data_ptr() for tensor in library.parameters()}
    assert {tensor.untyped_storage().data_ptr() for tensor in imported.model.parameters()} <= theirs


EXAMPLES = "inputs/checkpoints"


def test_the_shared_examples_are_read(shared_data: Path, tmp_path: Path) -> None:
    """Layouts of public bug reports; all hold one of two random models."""
    digests = {}
    for path in sorted((shared_data / EXAMPLES).iterdir()):
        digests[path.name] = convert_checkpoint(path, tmp_path / path.name).digest
    same = ("h05-sharded-bin", "h13-adapter-beside", "h16-orig_mod", "h34-second-safetensors", "h37-consolidated")
    assert len({digests[name] for name in same}) == 1
    assert len({digests[name] for name in ("n03-module.pt", "n04-module-orig.pt", "n07-np-loss.pt")}) == 1
