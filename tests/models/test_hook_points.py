"""Hook points of a model: the fast adapters against TransformerLens' bridge and plain torch, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.adapters.base import Network
from chessreg.models.adapters.bridge import BridgedModel, build_bridge, to_hugging_face
from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder
from chessreg.models.adapters.gpt2 import GPT2, GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo
from chessreg.models.edits import ResidualEdit
from chessreg.models.hook_points import LN_FINAL, PATTERNS, RESID_POST, RESID_PRE, list_hook_points
from chessreg.models.language_model import LanguageModel
from tests.language_models import hugging_face_model

LAYERS = 3
POINTS = list_hook_points(PATTERNS, range(LAYERS), LAYERS)
TOKENS = torch.randint(31, (2, 77), generator=torch.Generator().manual_seed(0))
EXACT = 1e-10


def strong(network: Network) -> LanguageModel:
    """In float64, with weights so large, norms and biases so uneven, that a wrong order of anything shows."""
    network = network.double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(parameter * 5 if parameter.dim() == 2 else parameter + 0.3 * noise)
    name = "fen-77" if network.head == "action" else "pgn-char-32"
    return LanguageModel(network, CheckpointInfo.from_network(network, name))


def gpt2() -> LanguageModel:
    return strong(make_random_gpt2(GPT2Config(LAYERS, 4, 32, 96, 32, bias=True), 0))


def fen_encoder(attention: str, embedding: str) -> LanguageModel:
    config = FenConfig(LAYERS, 4, 32, attention, embedding)  # type: ignore[arg-type]
    return strong(FenEncoder(config).make_untrained(0))


def close(one: Tensor, other: Tensor, limit: float = EXACT) -> None:
    assert one.dtype == other.dtype == torch.float64
    assert float((one - other).abs().max()) <= limit


def test_gpt2_is_the_bridge_at_every_hook_point_and_in_its_logits() -> None:
    model = gpt2()
    assert isinstance(model.network, GPT2)
    slow = build_bridge(to_hugging_face(model.network))
    logits, cache = slow.run_with_cache(TOKENS, names_filter=POINTS)
    found = model.activations(TOKENS, POINTS)
    assert list(found) == POINTS
    for name in POINTS:
        close(found[name], cache[name])
    close(model.logits(TOKENS), logits)
    assert len({round(float(value.abs().sum()), 6) for value in found.values()}) == len(POINTS) - (LAYERS - 1)


@pytest.mark.parametrize("embedding", ["own", "tied"])
def test_a_causal_fen_encoder_is_the_bridge_of_a_gpt2_with_its_weights(embedding: str) -> None:
    """Its extra token, before the 77, is an ordinary token there."""
    model = fen_encoder("causal", embedding)
    theirs = GPT2(model.network.config.blocks()).double().eval()  # type: ignore[union-attr, operator]
    theirs.load_state_dict(model.network.state_dict(), strict=False)  # the head is not part of the comparison
    first = torch.full((2, 1), model.network.first_token)  # type: ignore[call-overload]
    slow = build_bridge(to_hugging_face(theirs.double()))
    _, cache = slow.run_with_cache(torch.cat([first, TOKENS], 1), names_filter=POINTS)
    found = model.activations(TOKENS, POINTS)
    for name in POINTS:
        close(found[name], cache[name][:, 1:])


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("embedding", ["own", "tied"])
def test_a_fen_encoder_is_plain_torch(attention: str, embedding: str) -> None:
    """torch.nn's own encoder layers, norm first, over the same weights."""
    model = fen_encoder(attention, embedding)
    weights: dict[str, Tensor] = model.network.state_dict()
    ids = torch.cat([torch.full((2, 1), model.network.first_token), TOKENS], 1)  # type: ignore[call-overload]
    embedded = weights["wte.weight"][ids]
    residual = embedded + weights["wpe.weight"]
    expected = {"hook_embed": embedded}
    mask = torch.full((78, 78), -torch.inf, dtype=torch.float64).triu(1) if attention == "causal" else None
    for layer in range(LAYERS):
        expected[f"blocks.{layer}.hook_resid_pre"] = residual
        residual = plain_layer(weights, f"h.{layer}.")(residual, src_mask=mask)
        expected[f"blocks.{layer}.hook_resid_post"] = residual
    expected[LN_FINAL] = nn.functional.layer_norm(residual, (32,), weights["ln_f.weight"])
    for name, value in model.activations(TOKENS, POINTS).items():
        close(value, expected[name][:, 1:])
    head = weights["wte.weight" if embedding == "tied" else "action_head.weight"]
    close(model.logits(TOKENS), expected[LN_FINAL][:, -1:] @ head.T)


def plain_layer(weights: dict[str, Tensor], at: str) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        32, 4, 128, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, bias=False, dtype=torch.float64
    )
    names = {
        "self_attn.in_proj_weight": "attn.c_attn", "self_attn.out_proj.weight": "attn.c_proj",
        "linear1.weight": "mlp.c_fc", "linear2.weight": "mlp.c_proj", "norm1.weight": "ln_1", "norm2.weight": "ln_2",
    }  # fmt: skip
    layer.load_state_dict({ours: weights[f"{at}{theirs}.weight"] for ours, theirs in names.items()})
    return layer.train()  # without dropout nothing else changes, and eval takes a separate fused path


@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
def test_a_bridged_model_is_the_library_s_hidden_states(architecture: str) -> None:
    """Of Llama to 1e-5, because the library computes RMSNorm in float32 for every dtype of the model."""
    limit = 1e-5 if architecture == "llama" else EXACT
    theirs = hugging_face_model(architecture, 32).double()
    with torch.inference_mode():
        states = theirs(TOKENS, output_hidden_states=True).hidden_states
        embedded = theirs.get_input_embeddings()(TOKENS)
    found = LanguageModel(BridgedModel(theirs)).activations(TOKENS, list_hook_points(PATTERNS, range(2), 2))
    close(found["hook_embed"], embedded)
    for layer in range(2):
        close(found[f"blocks.{layer}.hook_resid_pre"], states[layer], limit)
    close(found[LN_FINAL], states[-1], limit)


@pytest.mark.parametrize("model", [gpt2(), fen_encoder("bidirectional", "own")], ids=["gpt2", "fen-encoder"])
def test_a_block_begins_with_what_the_one_before_it_gave_also_when_edited(model: LanguageModel) -> None:
    edit = ResidualEdit(0, torch.randn(32, generator=torch.Generator().manual_seed(2)), 2.0)
    clean = model.activations(TOKENS, POINTS)
    layers = model.residuals(TOKENS, [0, 1], edits=[edit])
    assert torch.equal(clean["blocks.1.hook_resid_pre"], clean["blocks.0.hook_resid_post"])
    assert not torch.equal(layers[1], clean["blocks.1.hook_resid_post"])
    assert torch.equal(model.activations(TOKENS, [LN_FINAL])[LN_FINAL], clean[LN_FINAL])
    assert all(not module._forward_hooks for module in model.network.hook_points.values())


def test_names_are_of_the_model() -> None:
    assert list_hook_points([RESID_PRE], [1, 0], 2) == ["blocks.1.hook_resid_pre", "blocks.0.hook_resid_pre"]
    assert list_hook_points(["blocks.1.hook_resid_post", RESID_POST], [1], 2) == ["blocks.1.hook_resid_post"]
    with pytest.raises(NotFoundError, match=r"no hook point 'blocks\.0\.hook_q'"):
        list_hook_points(["blocks.0.hook_q"], [], 2)
    with pytest.raises(BadInputError, match=r"blocks\.2\.hook_resid_pre is not of one of the model's layers 0 to 1"):
        list_hook_points(["blocks.2.hook_resid_pre"], [], 2)
    with pytest.raises(NotFoundError, match=r"use blocks\.\*\.hook_resid_post"):
        list_hook_points(["hook_embed"], [], 2, Network.points)


def test_an_architecture_that_transformer_lens_does_not_know_refuses_other_names() -> None:
    with pytest.raises(BadInputError, match="fen-encoder"):
        fen_encoder("causal", "own").activations(TOKENS, ["blocks.0.attn.hook_pattern"])


def test_every_adapter_has_the_points_that_it_names() -> None:
    made: list[Any] = [
        gpt2().network,
        fen_encoder("causal", "own").network,
        BridgedModel(hugging_face_model("llama", 32)),
    ]
    for network in made:
        expected = list_hook_points(network.points, range(network.n_layer), network.n_layer)
        assert sorted(network.hook_points) == sorted(expected)
