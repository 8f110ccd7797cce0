"""Adapters: each against the library it replaces, or against itself computed the slow way."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chessreg.errors import BadInputError
from chessreg.models.adapters import ADAPTERS, BridgedModel, Llama, get_adapter
from chessreg.models.adapters.bridge import to_hugging_face
from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder
from chessreg.models.adapters.gpt2 import GPT2, GPT2Config, make_random_gpt2
from chessreg.models.adapters.llama import wrap_hugging_face
from chessreg.models.checkpoint import CheckpointInfo, read_info, save_checkpoint
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.decoding.tree import TokenTree
from chessreg.models.edits import ResidualEdit
from chessreg.models.importers import convert_checkpoint
from chessreg.models.language_model import LanguageModel

TOKENS = torch.randint(32, (3, 40), generator=torch.Generator().manual_seed(0))


def hugging_face(kind: str, vocabulary: int = 32, **options: Any) -> Any:
    """A tiny Llama with grouped queries, or a GPT-NeoX."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "max_position_embeddings": 96, "initializer_range": 0.4}
    if kind == "llama":
        shape |= {"num_key_value_heads": 2, "tie_word_embeddings": True, **options}
        return LlamaForCausalLM(LlamaConfig(**shape)).eval()
    return GPTNeoXForCausalLM(GPTNeoXConfig(**shape)).eval()


def bridged(kind: str) -> LanguageModel:
    return LanguageModel(BridgedModel(hugging_face(kind)))


def fen_encoder(attention: str = "bidirectional", embedding: str = "own") -> LanguageModel:
    network = FenEncoder(FenConfig(2, 4, 32, attention, embedding)).make_untrained(1)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter *= 8 if parameter.dim() == 2 else 1
    return LanguageModel(network, CheckpointInfo.from_network(network, "fen-77"))


class Slow(GPT2):
    """A GPT-2 whose sessions keep no keys and values."""

    can_cache = False


@pytest.mark.parametrize("options", [{}, {"activation": "gelu_new", "bias": True}, {"tied_head": False, "d_mlp": 40}])
def test_gpt2_equals_the_library_transformers(options: dict[str, Any]) -> None:
    bias = options.pop("bias", False)
    config = GPT2Config(n_layer=3, n_head=4, n_embd=32, block_size=96, vocab_size=32, **options)
    drawn = torch.Generator().manual_seed(4)
    weights = {
        name: tensor * 4 + (0.1 * torch.randn(tensor.shape, generator=drawn) if bias else 0)
        for name, tensor in make_random_gpt2(config, 3).weights().items()
    }
    model = LanguageModel(GPT2.from_weights(config, weights))
    assert isinstance(model.network, GPT2)
    assert model.network.has_biases is bias
    theirs = to_hugging_face(model.network)
    with torch.inference_mode():
        expected = theirs(TOKENS, output_hidden_states=True)
    assert float((model.logits(TOKENS) - expected.logits).abs().max()) <= 1e-5
    assert float((model.residuals(TOKENS, [0, 1]) - torch.stack(expected.hidden_states[1:3])).abs().max()) <= 1e-5
    session = DecodingSession(model, 3)
    session.feed([row[:7].tolist() for row in TOKENS])
    found = session.feed([row[7:].tolist() for row in TOKENS])
    assert float((found - expected.logits[:, -1].log_softmax(-1)).abs().max()) <= 1e-4


@pytest.mark.parametrize("mask", ["all", "last", "test-even-ids"])
def test_a_session_that_recomputes_equals_one_that_keeps_keys_and_values(tiny: LanguageModel, mask: str) -> None:
    assert isinstance(tiny.network, GPT2)
    slow = LanguageModel(Slow.from_weights(tiny.network.config, tiny.network.weights()))
    vectors = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
    edits = [ResidualEdit(0, vectors, 2.0, mask), ResidualEdit(1, vectors[0], -1.0, mask)]
    sessions = [DecodingSession(model, 3, edits) for model in (tiny, slow)]
    grown = [[(1, 2, 3), (1, 4)], [(5,)], [(6, 7, 8, 9), (6, 7)]]

    def same(one: Any, other: Any) -> None:
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=2e-4)

    same(*(session.feed([[1, 2, 3, 4], [5], [6, 7]]) for session in sessions))
    for depth in (1, 2):
        trees = [TokenTree(session) for session in sessions]
        for tree in trees:
            tree.grow([[node[:depth] for node in row] for row in grown])
            tree.grow(grown)
        for place, row in enumerate(grown):
            same(*(tree.lines(place, [(), *row]) for tree in trees))
    same(*(session.feed([[8], [], [9, 10, 11]]) for session in sessions))
    for session in sessions:
        session.rollback([1, 0, 2])
    same(*(session.refresh() for session in sessions))
    same(*(session.residuals([0, 1]) for session in sessions))
    for session in sessions:
        session.select([2, 0, 0])
    same(*(session.feed([[1], [2, 3], [4]]) for session in sessions))


SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "options",
    [
        {"num_key_value_heads": 2},
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False, "head_dim": 12},
        {"rope_parameters": {"rope_theta": 5e5, **SCALED, "original_max_position_embeddings": 24}},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}},
    ],
    ids=["grouped", "biased", "llama3", "linear"],
)
def test_llama_equals_the_library_transformers(options: dict[str, Any], tmp_path: Path) -> None:
    theirs, drawn = hugging_face("llama", **options), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(generator=drawn)
    with torch.inference_mode():
        expected = theirs(TOKENS, output_hidden_states=True)
    model = LanguageModel(wrap_hugging_face(theirs))
    assert isinstance(model.network, Llama)
    assert float((model.logits(TOKENS) - expected.logits).abs().max()) <= 2e-4
    assert float((model.residuals(TOKENS, [0])[0] - expected.hidden_states[1]).abs().max()) <= 2e-4
    session = DecodingSession(model, 3)
    session.feed([row[:7].tolist() for row in TOKENS])
    session.feed([row[7:9].tolist() for row in TOKENS[:2]] + [[]])
    found = session.feed([row[9:].tolist() for row in TOKENS[:2]] + [TOKENS[2, 7:].tolist()])
    assert float((found - expected.logits[:, -1].log_softmax(-1)).abs().max()) <= 2e-4
    slow = BridgedModel(theirs)
    assert (model.network.shape(), model.network.count_parameters()) == (slow.shape(), slow.count_parameters())
    (config, weights), (other, others) = model.network.files("float32"), slow.files("float32")
    assert config == other
    assert list(weights) == list(others)
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    twin, its = model.network.make_untrained(3).files("float32")[1], slow.make_untrained(3).files("float32")[1]
    assert all(torch.equal(twin[name], its[name]) for name in its)


def test_a_llama_of_other_positions_goes_through_the_bridge(tmp_path: Path) -> None:
    theirs = hugging_face("llama", rope_parameters={"rope_theta": 1e4, "rope_type": "dynamic", "factor": 4.0})
    theirs.save_pretrained(tmp_path / "theirs")
    convert_checkpoint(tmp_path / "theirs", tmp_path / "ours", encoding="pgn-char-32")
    model = LanguageModel.load(tmp_path / "ours")
    assert model.adapter == "bridge"
    with torch.inference_mode():
        assert float((model.logits(TOKENS) - theirs(TOKENS).logits).abs().max()) <= 1e-4


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_other_architectures_are_imported_edited_and_saved(kind: str, tmp_path: Path) -> None:
    theirs = hugging_face(kind)
    theirs.save_pretrained(tmp_path / "theirs")
    report = convert_checkpoint(tmp_path / "theirs", tmp_path / "ours", encoding="pgn-char-32")
    assert report.max_logit_difference <= 1e-4
    assert (report.info.architecture["family"], report.info.encoding) == (kind, "pgn-char-32")
    model = LanguageModel.load(tmp_path / "ours")
    served = "llama" if kind == "llama" else "bridge"
    assert (model.adapter, model.attention, model.head) == (served, "causal", "next-token")
    assert report.info.parameters == sum(p.numel() for p in theirs.parameters())
    with torch.inference_mode():
        expected = theirs(TOKENS, output_hidden_states=True)
    assert float((model.logits(TOKENS) - expected.logits).abs().max()) <= 1e-4
    assert float((model.residuals(TOKENS, [0])[0] - expected.hidden_states[1]).abs().max()) <= 1e-4
    session = DecodingSession(model, 2)
    session.feed([TOKENS[0, :20].tolist(), TOKENS[1, :33].tolist()])
    found = session.feed([TOKENS[0, 20:].tolist(), TOKENS[1, 33:].tolist()])
    assert float((found - expected.logits[:2, -1].log_softmax(-1)).abs().max()) <= 1e-4
    layers = theirs.model.layers if kind == "llama" else theirs.gpt_neox.layers
    vector = torch.randn(32, generator=torch.Generator().manual_seed(1))
    layers[0].register_forward_hook(
        lambda block, given, out: (out[0] + vector, *out[1:]) if isinstance(out, tuple) else out + vector
    )
    with torch.inference_mode():
        edited = theirs(TOKENS).logits
    assert float((edited - expected.logits).abs().max()) > 0.1
    assert float((model.logits(TOKENS, edits=[ResidualEdit(0, vector)]) - edited).abs().max()) <= 1e-4
    with pytest.raises(BadInputError, match="through a bias"):
        model.logits(TOKENS, edits=[ResidualEdit(0, vector, form="mlp-bias")])
    save_checkpoint(model.network, tmp_path / "again", read_info(tmp_path / "ours"))
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "ours/model.safetensors").read_bytes()
    twin = model.network.make_untrained(3)
    assert torch.equal(twin(TOKENS), model.network.make_untrained(3)(TOKENS))


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize(
    "places", [[(0, 76), (2, 3), (2, 40), (0, 9), (2, 0)], [(row, n) for n in range(60) for row in (1, 0)]]
)
def test_the_last_block_at_some_places_gives_what_the_whole_pass_does(
    attention: str, places: list[tuple[int, int]]
) -> None:
    model, (row, token) = fen_encoder(attention), torch.tensor(places).T
    tokens = torch.randint(31, (3, 77), generator=torch.Generator().manual_seed(0))
    name = f"blocks.{model.n_layers - 1}.hook_resid_post"
    found = model.activations_at(tokens, [name], row, token)[name]
    torch.testing.assert_close(found, model.activations(tokens, [name])[name][row, token], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("embedding", ["own", "tied"])
def test_a_fen_encoder_is_saved_edited_and_asked(attention: str, embedding: str, tmp_path: Path) -> None:
    model = fen_encoder(attention, embedding)
    save_checkpoint(model.network, tmp_path, model.info)
    info = read_info(tmp_path)
    assert (info.encoding, info.attention, info.head) == ("fen-77", attention, "action")
    again = LanguageModel.load(tmp_path)
    tokens = torch.randint(31, (3, 77), generator=torch.Generator().manual_seed(0))
    logits = model.logits(tokens)
    assert torch.equal(again.logits(tokens), logits)
    assert logits.shape == (3, 1, 1968)
    changed = tokens.clone()
    changed[:, 50] = (changed[:, 50] + 1) % 31
    moved = (model.residuals(changed, [1]) - model.residuals(tokens, [1]))[0].abs().amax(-1) > 0
    assert bool(moved[:, :50].any()) is (attention == "bidirectional")  # the part that a causal mask removes
    assert bool(moved[:, 50:].all())
    vector = torch.randn(32, generator=torch.Generator().manual_seed(1))
    edit = ResidualEdit(0, vector, 3.0)
    added = model.residuals(tokens, [0], edits=[edit]) - model.residuals(tokens, [0])
    torch.testing.assert_close(added[0], (3 * vector).expand(3, 77, 32))
    session = DecodingSession(model, 3, [edit])
    expected = model.logits(tokens, edits=[edit])[:, 0].log_softmax(-1)
    assert float((session.feed(tokens.tolist()) - expected).abs().max()) <= 1e-5
    assert TokenTree(session).lines(1, [()]).shape == (1, 1968)
    with pytest.raises(BadInputError, match="77 tokens"):
        model.logits(tokens[:, :70])


def test_the_authors_encoder_has_his_number_of_parameters() -> None:
    with torch.device("meta"):
        model = FenEncoder(FenConfig(embedding="tied"))
    assert model.count_parameters()[0] == 26_222_080
    assert model.count_parameters()[0] - model.wpe.weight.numel() == 26_182_144


def test_an_architecture_is_registered_once() -> None:
    assert get_adapter("gpt2") is GPT2
    assert get_adapter("llama") is Llama
    assert get_adapter("gpt_neox") is BridgedModel
    with pytest.raises(ValueError, match="registered already"):
        ADAPTERS["gpt2"] = GPT2


@pytest.mark.slow
def test_gpt2_llama_and_fen_encoder_run_without_transformers(tiny: LanguageModel, tmp_path: Path) -> None:
    save_checkpoint(tiny.network, tmp_path / "gpt2", CheckpointInfo.from_network(tiny.network, "pgn-char-32"))
    save_checkpoint(fen_encoder().network, tmp_path / "fen", fen_encoder().info)
    llama = wrap_hugging_face(hugging_face("llama"))
    save_checkpoint(llama, tmp_path / "llama", CheckpointInfo.from_network(llama, "pgn-char-32"))
    script = f"""
        import sys
        from chessreg.models.decoding.session import DecodingSession
        from chessreg.models.language_model import LanguageModel

        DecodingSession(LanguageModel.load("{tmp_path}/gpt2"), 1).feed([[1, 2, 3]])
        DecodingSession(LanguageModel.load("{tmp_path}/llama"), 1).feed([[1, 2, 3]])
        DecodingSession(LanguageModel.load("{tmp_path}/fen"), 1).feed([[0] * 77])
        print(*sorted({{"torch", "torch._dynamo", "transformers", "transformer_lens"}} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "torch"


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_the_last_block_of_a_fen_encoder_need_only_know_its_last_token(attention: str) -> None:
    """Logits, and gradients of every weight, equal those of the whole pass, and a hook there sees all of it."""
    model = FenEncoder(FenConfig(3, 2, 16, attention)).make_untrained(4).train()
    tokens = torch.randint(0, 31, (5, 77), generator=torch.Generator().manual_seed(0))
    whole = model.unembed(model.hidden(tokens)[:, -1:])
    torch.testing.assert_close(model(tokens), whole, atol=1e-5, rtol=1e-4)
    weight = torch.randn(whole.shape, generator=torch.Generator().manual_seed(1))
    grads = [torch.autograd.grad((out * weight).sum(), list(model.parameters())) for out in (model(tokens), whole)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
    seen = []
    handle = model.blocks[-1].register_forward_hook(lambda module, given, out: seen.append(out.shape))
    model(tokens)
    handle.remove()
    assert seen == [(5, 77, 16)]
