"""A pretrained language model asked in words: imported with a template, then used by the commands of every model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch

from chessreg.cli.root import run_command_line
from chessreg.encodings.prompts import TEMPLATES, PromptEncoding
from chessreg.models.checkpoint import read_info
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.language_model import LanguageModel
from tests.language_models import VOCABULARY, write_language_model, write_tokenizer
from tests.quick import quick_first


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_language_model(tmp_path_factory.mktemp("hf") / "llama", spare=7)


@pytest.fixture
def typed(world: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Types a command; returns its exit status, stdout and stderr."""

    def type_(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        where = ["--registry", str(world / "registry.db"), "--store", str(world / "store")]
        return run_command_line([*where, *map(str, words)]), *capsys.readouterr()

    return type_


def prompted(typed: Any, folder: Path, name: str, *words: object) -> dict[str, Any]:
    status, out, err = typed("import", "checkpoint", folder, "--encoding", "prompt", "--name", name, "--json", *words)
    assert status == 0, err
    shown: dict[str, Any] = json.loads(out)
    return shown


@pytest.mark.slow
def test_every_command_of_a_model_works_on_prompts(typed: Any, llama: Path) -> None:
    row = prompted(typed, llama, "llama")
    assert row["tokenizer"].startswith("prompt-junkin-small-")
    few = ("--checkpoint", "llama", "--dataset", "sample:test", "--games", 2)
    for words in (
        ("run", "legality", *few, "--every", 8, "--mass", "--name", "legal"),
        ("run", "play", "--checkpoint", "llama", "--opponent", "random", "--games", 2, "--policy", "legal",
         "--move-limit", 3, "--adjudication", "none", "--name", "played"),
        ("run", "cache", *few, "--sites", "squares", "--max-sites", 128, "--name", "squares"),
        ("run", "cache", *few, "--sites", "white-turns", "--max-sites", 6, "--name", "turns"),
        ("run", "probe", "--cache", "turns", "--epochs", 1, "--name", "board"),
        ("board", "legal:0"),
    ):  # fmt: skip
        status, _, err = typed(*words)
        assert status == 0, err
    asked = "select min(mass_original) as low, max(mass_original) as high, count(*) as n from legality"
    status, out, err = typed("query", "--sql", asked, "--format", "csv")
    low, high, n = map(float, out.split()[1].split(","))
    assert 0 < low <= high < 1
    assert n > 4
    status, out, err = typed("lab", "--checkpoint", "llama", "--moves", "e4 e5", "--probe", "board")
    assert status == 0, err


def test_tokenizer_and_template_travel_with_the_checkpoint(typed: Any, llama: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("Position {FEN} asks: {BM}\n")
    row = prompted(typed, llama, "own", "--template", own, "--notation", "san", "--counters", "blanked")
    assert row["tokenizer"].startswith("prompt-own-")
    assert typed("checkpoint", "export", "own", tmp_path / "out")[0] == 0
    (own.parent / "own.txt").unlink()
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (llama / "tokenizer.json").read_bytes()
    again = PromptEncoding.load(tmp_path / "out", row["tokenizer"])
    assert (again.settings.text, again.settings.notation) == ("Position {FEN} asks: {BM}", "san")
    status, out, err = typed("import", "checkpoint", tmp_path / "out", "--json")  # its own encoding is the default
    assert status == 0, err
    assert "already" in err
    assert json.loads(out)["id"] == row["id"]
    assert typed("checkpoint", "twin", "own", "--name", "own-twin")[0] == 0
    status, out, _ = typed("checkpoint", "show", "own-twin", "--json")
    assert json.loads(out)["tokenizer"] == row["tokenizer"]


@pytest.mark.slow
def test_another_template_is_another_checkpoint_and_the_same_one_is_recognised(typed: Any, llama: Path) -> None:
    one = prompted(typed, llama, "one", "--template", "junkin-5")
    two = prompted(typed, llama, "two", "--template", "junkin-5", "--layout", "flattened_with_slashes")
    assert one["id"] != two["id"]
    assert one["tokenizer"] != two["tokenizer"]
    assert prompted(typed, llama, "one", "--template", "junkin-5")["id"] == one["id"]


def without(name: str) -> Any:
    def change(folder: Path) -> None:
        (folder / name).unlink()

    return change


def missing_king(folder: Path) -> None:
    """K only occurs in a merge: it has no separate token."""
    path = folder / "tokenizer.json"
    told = json.loads(path.read_text())
    told["model"]["vocab"] = {("<gone>" if token == "K" else token): n for token, n in told["model"]["vocab"].items()}
    told["model"]["merges"] = [pair for pair in told["model"]["merges"] if not any("K" in part for part in pair)]
    path.write_text(json.dumps(told))


def no_end(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()


def template(text: str) -> Any:
    def change(folder: Path) -> None:
        (folder / "template.txt").write_text(text)

    return change


def weights(change: Any) -> Any:
    """One matrix of the model's file changed."""

    def changed(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        held = load_file(folder / "model.safetensors")
        name = "model.layers.0.mlp.down_proj.weight"
        save_file({**held, name: change(held[name].clone())}, folder / "model.safetensors")

    return changed


def unknown_family(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba2000"}))


def without_a_context(folder: Path) -> None:
    """A model that keeps only a state of its input: no token is too far."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {"hidden_size": 32, "num_hidden_layers": 1, "state_size": 4, "vocab_size": VOCABULARY}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba", **shape)).save_pretrained(folder)


def pickled(folder: Path) -> None:
    """Weights in a pickle that calls a function."""
    (folder / "model.safetensors").unlink()
    torch.save({"weight": without}, folder / "pytorch_model.bin")


def without_config_and_tokenizer(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    (folder / "tokenizer.json").unlink()


def test_a_folder_that_is_called_by_a_dot_has_its_name_in_errors(typed: Any, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.chdir(tmp_path / "llama")
    assert "error: llama has no tokenizer.json" in typed("import", "checkpoint", ".", "--encoding", "prompt")[2]


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (weights(lambda matrix: matrix.fill_(float("nan"))), [], "down_proj.weight holds NaN or infinite values"),
        (weights(lambda matrix: matrix[:1].clone()), [], "has shape [1, 32], not [32, 32] as configured"),
        (unknown_family, [], "hint: supported are gpt2, llama, gpt_neox and the other architectures"),
        (without_a_context, [], "models of the family mamba cannot be read"),
        (pickled, [], "pytorch_model.bin is refused: loading it would execute code"),
        (without("tokenizer.json"), [], "llama has no tokenizer.json"),
        (without_config_and_tokenizer, [], "config.json is not JSON"),
        (missing_king, [], "no token for the character 'K' alone"),
        (no_end, [], "does not name the token that ends a text"),
        (template("no place {BM}"), ["--template", "template.txt"], "a prompt template has one {FEN}"),
        (template("{FEN} once, {FEN} twice {BM}"), ["--template", "template.txt"], "a prompt template has one {FEN}"),
        (None, ["--template", "nowhere"], "'nowhere' is neither a prompt template nor a file"),
        (None, ["--template", "model.safetensors"], "is not text"),
        (None, ["--end", "<eot>"], "has no token '<eot>'"),
        (None, ["--bos", "<bos>"], "has no token '<bos>'"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), [], "tokenizer.json is not a tokenizer"),
        (lambda folder: write_tokenizer(folder / "tokenizer.json", vocabulary=400), [], "has a vocabulary of 327"),
        (lambda folder: write_language_model(folder, context=64), [], "reads 64 tokens; the first position"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    typed: Any, llama: Path, tmp_path: Path, change: Any, words: list[str], message: str, monkeypatch: Any
) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "llama"))
    if change is not None:
        change(folder)
    monkeypatch.chdir(folder)
    before = typed("checkpoint", "list", "--json")[1]
    status, out, err = typed("import", "checkpoint", folder, "--encoding", "prompt", *words)
    assert (status != 0, out) == (True, "")
    assert message in err
    assert [line for line in err.splitlines() if not line.startswith("hint: ")] == [err.splitlines()[0]]
    assert typed("checkpoint", "list", "--json")[1] == before


def test_an_encoding_that_does_not_fit_is_refused(typed: Any, llama: Path) -> None:
    for words, message in (
        (
            ("--encoding", "uci-square-72"),
            "not the vocabulary of uci-square-72: it has no token '<pad>' and 65 more",
        ),
        (("--template", "junkin-1"), "--template applies to prompts: give --encoding prompt"),
        (("--encoding", "prompt-junkin-1-0123456789ab"), "holds no prompt.json"),
    ):
        status, _, err = typed("import", "checkpoint", llama, *words)
        assert status != 0
        assert message in err, err
    status, _, err = typed(
        "run",
        "train",
        "--architecture",
        "gpt2",
        "--datasets",
        "sample:fit",
        "--encoding",
        "prompt-junkin-1-0123456789ab",
    )
    assert status != 0
    assert "with its own tokenizer" in err


def test_a_checkpoint_whose_tokenizer_was_changed_is_not_asked(typed: Any, llama: Path, tmp_path: Path) -> None:
    prompted(typed, llama, "changed")
    assert typed("checkpoint", "export", "changed", tmp_path / "out")[0] == 0
    write_tokenizer(tmp_path / "out/tokenizer.json", bos=None)
    status, _, err = typed("import", "checkpoint", tmp_path / "out")
    assert status != 0
    assert "holds the encoding prompt-junkin-small-" in err


@pytest.mark.parametrize("architecture", quick_first(1, ["llama", "gpt_neox", "gpt2"]))
def test_a_batch_of_prompts_of_unequal_length_equals_one_by_one(architecture: str, tmp_path: Path) -> None:
    """Rows are padded on the right, at positions that are never read; with legal moves listed no two prompts are
    equally long."""
    from chessreg.encodings.prompts import make_prompt_encoding
    from chessreg.models.importers import convert_checkpoint

    source = write_language_model(tmp_path / "hf", architecture)
    written = make_prompt_encoding(source, template="junkin-2")
    convert_checkpoint(source, tmp_path / "ours", encoding=written)
    model = LanguageModel.load(tmp_path / "ours", dtype=torch.float64)
    assert read_info(tmp_path / "ours").encoding == model.encoding.name == written.name
    boards = [
        chess.Board(),
        chess.Board("8/8/4k3/8/8/4K3/4P3/8 w - - 0 1"),
        chess.Board("8/8/8/8/8/5k2/6q1/7K w - - 0 1"),
    ]
    prompts = [model.encoding.prompt(board) for board in boards]
    lengths = [len(prompt) for prompt in prompts]
    assert len(set(lengths)) == 3
    padded = torch.zeros(3, max(lengths), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = torch.tensor(prompt)
    together, session = model.residuals(padded, [1])[0], DecodingSession(model, 3)
    logprobs = session.feed(prompts)
    for row, prompt in enumerate(prompts):
        alone = model.residuals(torch.tensor([prompt]), [1])[0, 0]
        assert float((together[row, : len(prompt)] - alone).abs().max()) <= 1e-9
        own = DecodingSession(model, 1).feed([prompt])[0]
        np.testing.assert_allclose(logprobs[row].numpy(), own.numpy(), atol=1e-5)


def test_templates_are_named_in_the_help(typed: Any) -> None:
    status, out, _ = typed("import", "checkpoint", "--help")
    assert status == 0
    assert set(TEMPLATES) <= set(out.replace("\n", " ").replace(",", " ").replace(";", " ").split())
    assert VOCABULARY < 327
