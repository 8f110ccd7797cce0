"""Importing other people's checkpoints: right, verified, and never running their code."""

from __future__ import annotations

import functools
import gzip
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from chessreg.encodings import get_encoding
from chessreg.encodings.uci_square import davis, lcb
from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.checkpoint import CheckpointInfo, compute_checkpoint_digest, load_model, save_checkpoint
from chessreg.models.importers import FORMATS, check_import, convert_checkpoint, register_format
from chessreg.models.importers import registry as importing
from chessreg.models.importers.nanogpt import compute_gpt2_logits
from chessreg.models.language_model import LanguageModel
from tests.models.foreign import ARGUMENTS, nanogpt_checkpoint, written


@pytest.mark.parametrize("bias", [False, True])
def test_a_nanogpt_file_is_imported_with_equal_logits(bias: bool, tmp_path: Path) -> None:
    report = convert_checkpoint(written(nanogpt_checkpoint(bias), tmp_path / "ckpt.pt"), tmp_path / "out")
    assert report.format == "nanogpt"
    assert report.max_logit_difference <= 1e-4
    assert report.tokens_compared == 128
    assert report.info.architecture["bias"] is bias
    assert report.info.block_size == 64
    assert report.info.source["iter_num"] == 7
    assert report.info.source["best_val_loss"] == 1.5
    assert report.info.source["format"] == "nanogpt"
    assert report.digest == compute_checkpoint_digest(tmp_path / "out")
    raw = {n.removeprefix("_orig_mod."): t for n, t in nanogpt_checkpoint(bias)["model"].items()}
    tokens = torch.arange(64)[None] % 32
    raw.pop("transformer.h.0.attn.bias")
    expected = compute_gpt2_logits(raw, tokens, 4)
    assert float((LanguageModel.load(tmp_path / "out").logits(tokens) - expected).abs().max()) <= 1e-4
    assert float(expected.std()) > 0.1


def test_verification_notices_a_wrong_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chessreg.models.importers import nanogpt

    monkeypatch.setattr(nanogpt, "compute_gpt2_logits", functools.partial(compute_gpt2_logits, activation="gelu_new"))
    with pytest.raises(BadInputError, match="logits differ"):
        convert_checkpoint(written(nanogpt_checkpoint(), tmp_path / "ckpt.pt"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_shared_checkpoint_is_imported(shared_data: Path, tmp_path: Path) -> None:
    report = convert_checkpoint(shared_data / "checkpoints" / "lichess-8x192-char.pt", tmp_path)
    assert report.max_logit_difference <= 1e-4
    assert report.info.parameters == 3_744_768
    assert report.info.source["sha256"].startswith("58e56f82f0b7eb3a")


def test_hugging_face_folders_are_imported(tiny: LanguageModel, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=4, n_embd=32, n_positions=64, vocab_size=32, initializer_range=0.3)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "theirs")  # gelu_new, as GPT-2 has it
    report = convert_checkpoint(tmp_path / "theirs", tmp_path / "out")
    assert (report.format, report.info.architecture["activation"]) == ("huggingface", "gelu_new")
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "theirs").eval()
    tokens = torch.arange(60).reshape(2, 30) % 32
    assert torch.allclose(load_model(tmp_path / "out")(tokens), theirs(tokens).logits, atol=1e-5)
    weights = {
        f"transformer.{n}" if i % 2 else n: t for i, (n, t) in enumerate(theirs.transformer.state_dict().items())
    }
    for file in (tmp_path / "theirs").glob("*.safetensors"):
        file.unlink()
    torch.save(weights, tmp_path / "theirs" / "pytorch_model.bin")  # tensors only: no code
    again = convert_checkpoint(tmp_path / "theirs", tmp_path / "again")
    assert again.digest == report.digest


@pytest.fixture(scope="module")
def square_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Hugging Face folders of GPT-2s with 72 and 77 tokens, biases and all, without a tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folders = {}
    for size in (72, 77):
        config = GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=32, vocab_size=size, initializer_range=0.3)
        model = GPT2LMHeadModel(config)
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                torch.nn.init.normal_(parameter, 0.0, 0.3)
        folders[size] = tmp_path_factory.mktemp("squares") / f"gpt-{size}"
        model.save_pretrained(folders[size])
    return folders


def with_tokenizer(source: Path, folder: Path, tokens: list[str], file: str) -> Path:
    """A copy of a model's folder, with a tokenizer of this vocabulary."""
    shutil.copytree(source, folder)
    ids = {text: number for number, text in enumerate(tokens)}
    written = {
        "tokenizer.json": json.dumps({"model": {"type": "WordLevel", "vocab": ids}, "added_tokens": []}),
        "vocab.json": json.dumps(ids),
        "vocab.txt": "\n".join(tokens) + "\n",
    }[file]
    (folder / file).write_text(written)
    return folder


LATER = ["<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|unknown|>", *davis.vocabulary[4:68], *"QRBN"]


@pytest.mark.parametrize(
    ("tokens", "file", "encoding", "case"),
    [
        (list(davis.vocabulary), "tokenizer.json", "uci-square-72", "lower"),
        (LATER, "vocab.json", "uci-square-72", "upper"),
        (list(lcb.vocabulary), "vocab.txt", "uci-square-77", "lower"),
    ],
)
def test_a_tokenizer_of_squares_is_found_by_its_vocabulary(
    square_folders: dict[int, Path], tokens: list[str], file: str, encoding: str, case: str, tmp_path: Path
) -> None:
    from transformers import GPT2LMHeadModel

    folder = with_tokenizer(square_folders[len(tokens)], tmp_path / "theirs", tokens, file)
    report = convert_checkpoint(folder, tmp_path / "out")
    assert (report.info.encoding, report.info.architecture["bias"]) == (encoding, True)
    assert report.info.source["tokenizer"] == {"file": file, "promotion_case": case}
    ids = torch.arange(len(tokens))[None, :32]
    theirs = GPT2LMHeadModel.from_pretrained(folder).eval()
    assert torch.allclose(load_model(tmp_path / "out")(ids), theirs(ids).logits, atol=1e-5)


@pytest.mark.slow
def test_a_tokenizer_of_squares_that_does_not_fit_is_refused_in_one_line(
    square_folders: dict[int, Path], tmp_path: Path
) -> None:
    joined = [*davis.vocabulary[:2], "e2e4", *davis.vocabulary[3:]]
    wrong = with_tokenizer(square_folders[72], tmp_path / "joined", joined, "vocab.json")
    short = with_tokenizer(square_folders[72], tmp_path / "short", list(davis.vocabulary)[:-1], "vocab.json")
    other = with_tokenizer(square_folders[72], tmp_path / "other", list(davis.vocabulary), "tokenizer.json")
    broken = with_tokenizer(square_folders[72], tmp_path / "broken", [], "vocab.json")
    words = with_tokenizer(square_folders[72], tmp_path / "words", [f"w{n}" for n in range(72)], "vocab.json")
    (broken / "vocab.json").write_text("{")
    for folder, encoding, message in (
        (wrong, None, "not the vocabulary of uci-square-72, the nearest encoding: it has no token '</s>'"),
        (short, None, "not the vocabulary of uci-square-72, the nearest encoding: it has no token 'n'"),
        (other, "uci-square-77", "not the vocabulary of uci-square-77: it has no token 'P' and 5 more .*-72"),
        (broken, None, "broken/vocab.json is not a vocabulary"),
        (words, "uci-square-72", "vocab.json is not the vocabulary of uci-square-72: it has no token '<pad>'"),
        (words, None, "vocab.json has tokens such as 'w0' and 'w1', which no encoding has.*--encoding prompt"),
        (square_folders[72], None, "vocabulary of 72, but encoding pgn-char-32 has 32 .--encoding uci-square-72"),
    ):
        with pytest.raises(BadInputError, match=message) as caught:
            convert_checkpoint(folder, tmp_path / "out", encoding=encoding)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    named = convert_checkpoint(square_folders[72], tmp_path / "out", encoding="uci-square-72")
    assert named.info.encoding == "uci-square-72"


MOVES = [f"{file}2{file}{rank}" for file in "abcdefgh" for rank in "34"]
CHARACTERS = get_encoding("pgn-char-32").vocabulary


@pytest.mark.parametrize(
    ("tokens", "file", "message"),
    [
        (CHARACTERS[::-1], "meta.pkl", None),
        ([*CHARACTERS, "\n", "!"], "meta.pkl", None),
        (CHARACTERS[:-1], "meta.pkl", "is not the vocabulary of pgn-char-32, the nearest.*no token .x.*--vocabulary"),
        (CHARACTERS[:-1], "", "has a vocabulary of 31, but encoding pgn-char-32 has 32.*fen-77 or --vocabulary FILE"),
        ([*CHARACTERS, "e4"], "meta.pkl", "its token 'e4' joins several tokens of a game.*--encoding prompt"),
        ([*CHARACTERS, "e4"], "vocab.json", "has a vocabulary of 33.*--vocabulary .*/vocab.json"),
        (MOVES, "meta.pkl", "has tokens such as 'a2a3' and 'a2a4', which no encoding has: pgn-char-32.*CONTRIBUTING"),
        (MOVES, "", "has a vocabulary of 16.*--vocabulary FILE: its meta.pkl or tokenizer.json"),
    ],
)  # fmt: skip
def test_a_nanogpt_file_of_other_tokens_is_reordered_or_refused_with_what_helps(
    tokens: Sequence[str], file: str, message: str | None, tmp_path: Path
) -> None:
    checkpoint = nanogpt_checkpoint(vocab_size=len(tokens))
    torch.save(checkpoint, tmp_path / "ckpt.pt")
    ids = {text: number for number, text in enumerate(tokens)}
    if file == "meta.pkl":
        (tmp_path / file).write_bytes(pickle.dumps({"stoi": ids, "itos": dict(enumerate(tokens))}))
    elif file:
        (tmp_path / file).write_text(json.dumps(ids))
    if message is None:
        assert convert_checkpoint(tmp_path / "ckpt.pt", tmp_path / "out").info.encoding == "pgn-char-32"
        return
    with pytest.raises(BadInputError, match=message) as caught:
        convert_checkpoint(tmp_path / "ckpt.pt", tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_our_own_folder_comes_home_unchanged(tiny: LanguageModel, tmp_path: Path) -> None:
    info = CheckpointInfo.from_network(tiny.network, "pgn-char-32", residual="centred", tokens_seen=9)
    save_checkpoint(tiny.network, tmp_path / "one", info)
    report = convert_checkpoint(tmp_path / "one", tmp_path / "two")
    assert report.digest == compute_checkpoint_digest(tmp_path / "one")
    assert (report.info.residual, report.info.tokens_seen) == ("centred", 9)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize(
    "form", ["torch zip", "torch legacy", "plain pickle", "hidden in weights", "pytorch_model.bin"]
)
def test_a_pickle_that_would_execute_code_is_refused_and_never_run(form: str, tmp_path: Path) -> None:
    path, trace = tmp_path / "ckpt.pt", tmp_path / "executed"
    if form in ("plain pickle", "old pickle"):
        path.write_bytes(pickle.dumps(Bomb(trace), protocol=2 if form == "old pickle" else 4))
    elif form == "pytorch_model.bin":
        path = tmp_path / "folder"
        path.mkdir()
        shape = {k: ARGUMENTS[k] for k in ("n_layer", "n_head", "n_embd", "vocab_size")}
        (path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_positions": 64, **shape}))
        torch.save({"transformer.wte.weight": Bomb(trace)}, path / "pytorch_model.bin")
    else:
        checkpoint = nanogpt_checkpoint()
        content = {**checkpoint, "optimizer": Bomb(trace)} if form == "hidden in weights" else Bomb(trace)
        torch.save(content, path, _use_new_zipfile_serialization=form != "torch legacy")
    with pytest.raises(BadInputError) as caught:
        convert_checkpoint(path, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert "execute code" in str(caught.value)
    assert "system" in str(caught.value)
    assert not trace.exists()
    assert not (tmp_path / "out").exists()


def damaged(kind: str, path: Path) -> None:
    whole = written(nanogpt_checkpoint(), path).read_bytes()
    match kind:
        case "truncated":
            path.write_bytes(whole[: len(whole) // 2])
        case "flipped":
            with zipfile.ZipFile(path) as archive:
                weights = max(archive.infolist(), key=lambda member: member.file_size)
            middle = weights.header_offset + weights.file_size // 2
            path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        case "empty":
            path.write_bytes(b"")
        case "random":
            path.write_bytes(bytes(torch.randint(256, (5000,), generator=torch.Generator().manual_seed(1)).tolist()))
        case "text":
            path.write_text('[Event "a game"]\n\n1. e4 e5 *\n')
        case "safe pickle":
            path.write_bytes(pickle.dumps({"model": 1}))
        case "compressed zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("archive/data.pkl", b"\0" * 50_000_000)
        case "zip of text":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("readme.txt", "nothing here")


@pytest.mark.parametrize(
    "kind", ["truncated", "flipped", "empty", "random", "text", "safe pickle", "compressed zip", "zip of text"]
)
def test_what_is_no_torch_file_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    damaged(kind, tmp_path / "ckpt.pt")
    with pytest.raises(BadInputError, match=r"ckpt\.pt") as caught:
        convert_checkpoint(tmp_path / "ckpt.pt", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_torch_file_without_checksums_is_read(tmp_path: Path) -> None:
    with_checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        written(nanogpt_checkpoint(), tmp_path / "ckpt.pt")
    finally:
        torch.serialization.set_crc32_options(with_checksums)
    assert convert_checkpoint(tmp_path / "ckpt.pt", tmp_path / "out").format == "nanogpt"


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda c: c["model"].pop(f"_orig_mod.{name}")


def changed(name: str, tensor: torch.Tensor) -> Callable[[dict[str, Any]], None]:
    return lambda c: c["model"].update({f"_orig_mod.{name}": tensor})


WRONG = {
    "a weight missing": (without("transformer.h.1.mlp.c_fc.weight"), "missing: transformer.h.1.mlp.c_fc.weight"),
    "a weight too many": (changed("transformer.h.1.extra.weight", torch.zeros(3)), "no GPT-2 of this shape"),
    "a wrong shape": (changed("transformer.h.0.ln_1.weight", torch.ones(31)), r"shape \[31\]"),
    "NaN": (changed("transformer.h.0.ln_1.weight", torch.full((32,), torch.nan)), "NaN"),
    "integers": (changed("transformer.ln_f.weight", torch.ones(32, dtype=torch.int64)), "tensors of floats"),
    "an untied head": (changed("lm_head.weight", torch.zeros(32, 32)), "output head"),
    "other layers than said": (lambda c: c["model_args"].update(n_layer=10**9), "not 1000000000 as configured"),
    "other width than said": (lambda c: c["model_args"].update(n_embd=64), "transformer.wte.weight"),
    "heads that do not divide": (lambda c: c["model_args"].update(n_head=5), "multiple"),
    "no shape": (lambda c: c.update(model_args={}), "model_args must give"),
    "weights that are no dict": (lambda c: c.update(model=[1]), "not a dict of tensors"),
    "no model": (lambda c: c.pop("model"), "not a checkpoint that chessreg can read.*keys best_val_loss"),
}


@pytest.mark.parametrize("name", WRONG)
def test_weights_that_do_not_fit_are_named(name: str, tmp_path: Path) -> None:
    change, message = WRONG[name]
    checkpoint = nanogpt_checkpoint()
    change(checkpoint)
    with pytest.raises(BadInputError, match=message):
        convert_checkpoint(written(checkpoint, tmp_path / "ckpt.pt"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_another_size_is_refused(tmp_path: Path) -> None:
    path = written(nanogpt_checkpoint(vocab_size=40), tmp_path / "ckpt.pt")
    with pytest.raises(BadInputError, match="vocabulary of 40, but encoding pgn-char-32 has 32"):
        convert_checkpoint(path, tmp_path / "out")
    with pytest.raises(NotFoundError, match="no-such"):
        convert_checkpoint(path, tmp_path / "out", encoding="no-such")


def test_paths_formats_and_folders_are_checked(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        convert_checkpoint(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInputError, match="a folder of nothing"):
        convert_checkpoint(tmp_path / "folder", tmp_path / "out")
    config = tmp_path / "folder" / "config.json"
    plain = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 8, "vocab_size": 32}
    for content, message in (
        ("{", "not JSON"),
        ('{"model_type": "llama"}', "no file named model.safetensors"),
        (json.dumps(plain), "no file named model.safetensors"),
        (json.dumps(plain | {"activation_function": "relu"}), "activation relu"),
        (json.dumps(plain | {"scale_attn_by_inverse_layer_idx": True}), "scale_attn_by_inverse_layer_idx"),
        (json.dumps(plain | {"n_layer": "8"}), "positive integers"),
    ):
        config.write_text(content)
        with pytest.raises(BadInputError, match=message):
            convert_checkpoint(tmp_path / "folder", tmp_path / "out")
    path = written(nanogpt_checkpoint(), tmp_path / "ckpt.pt")
    with pytest.raises(NotFoundError, match="import format 'nothing' does not exist"):
        convert_checkpoint(path, tmp_path / "out", format="nothing")
    with pytest.raises(BadInputError, match="not a Hugging Face folder"):
        convert_checkpoint(path, tmp_path / "out", format="huggingface")


def test_a_format_is_registered_once() -> None:
    with pytest.raises(ValueError, match="registered already"):
        register_format(FORMATS["nanogpt"])
    assert importing.FORMATS is FORMATS


def test_a_shape_that_lacks_a_required_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2

    model = make_random_gpt2(GPT2Config(n_layer=1, n_head=1, n_embd=8, block_size=8, vocab_size=32), seed=0)
    monkeypatch.setattr(type(model), "shape", lambda self: {"family": "gpt2", "n_layer": 1})
    with pytest.raises(BadInputError, match=r"GPT2.shape\(\) has no n_embd"):
        CheckpointInfo.from_network(model, "pgn-char-32")


MINE = """
from chessreg.models.importers.registry import register_format

class Mine:
    name = "mine"

    def recognises(self, source):
        return (source.path / "mine.txt").is_file()

register_format(Mine())
"""


def test_a_file_in_the_folder_is_a_format_that_is_asked_before_that_of_hugging_face(tmp_path: Path) -> None:
    """In a separate process, in which the package has one more folder."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "mine.py").write_text(MINE)
    for name in ("mine.txt", "config.json"):
        (tmp_path / name).write_text("{}")
    script = (
        "import importlib.util, sys; from pathlib import Path\n"
        "spec = importlib.util.find_spec('chessreg.models.importers')\n"
        f"spec.submodule_search_locations.append({str(tmp_path / 'more')!r})\n"
        "sys.modules[spec.name] = made = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(made)\n"
        "from chessreg.models.importers.registry import CheckpointSource, recognize_format\n"
        f"print(sorted(made.FORMATS), recognize_format(CheckpointSource(Path({str(tmp_path)!r}))).name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    formats = [
        "fen_nanogpt",
        "huggingface",
        "maia2",
        "mine",
        "nanogpt",
        "onnx",
        "searchless_chess",
        "state_dict",
        "transformer_lens",
    ]
    assert done.stdout == f"{formats} mine\n", done.stderr


def test_an_lc0_network_is_named(tmp_path: Path) -> None:
    (tmp_path / "BT4.pb.gz").write_bytes(b"\x08\x08\x12\x07pytorch")
    with pytest.raises(BadInputError, match="is an lc0 network, which cannot be imported"):
        check_import(tmp_path / "BT4.pb.gz")


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_a_model_of_maia_3_is_named_with_the_reason(prefix: str, tmp_path: Path) -> None:
    names = "proj_sq_from.weight", "elo_embedding_low.weight", "transformer.layers.0.linear1.weight"
    weights = {f"{prefix}{name}": torch.zeros(2, 2) for name in names}
    torch.save({"model_state_dict": weights}, tmp_path / "model.pt")
    with pytest.raises(BadInputError, match="is a Maia-3 model, which cannot be imported") as refusal:
        check_import(tmp_path / "model.pt")
    assert "for which chessreg has no encoding" in refusal.value.hint


def test_a_network_of_lc0_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "BT4").write_bytes(gzip.compress(b"\x0d\xc0\x01\x00\x00 and weights"))
    with pytest.raises(BadInputError, match="BT4 is an lc0 network, which cannot be imported"):
        check_import(tmp_path / "BT4")
