"""Residual streams, hook points and edits of whole sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.adapters.bridge import find_firing_hooks
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.edits import ResidualEdit
from chessreg.models.hook_points import LN_FINAL
from chessreg.models.language_model import LanguageModel

TOKENS = torch.randint(32, (3, 40), generator=torch.Generator().manual_seed(0))


def plain_residuals(model: LanguageModel, tokens: Tensor) -> Tensor:
    """The residual stream after each block, by running the blocks by hand."""
    body = model.network
    residual = body.wte(tokens) + body.wpe(torch.arange(tokens.shape[1]))
    out = []
    with torch.no_grad():
        for block in body.h:
            residual = block(residual)
            out.append(residual)
    return torch.stack(out)


def test_residuals_of_all_layers_come_from_one_pass(tiny: LanguageModel) -> None:
    expected = plain_residuals(tiny, TOKENS)
    assert float((tiny.residuals(TOKENS, [0, 1]) - expected).abs().max()) <= 1e-5
    assert torch.equal(tiny.residuals(TOKENS, [1, 0, 1]), tiny.residuals(TOKENS, [0, 1])[[1, 0, 1]])


def test_positions_pick_tokens(tiny: LanguageModel) -> None:
    positions = torch.tensor([[0, 5, 39], [7, 7, 1], [2, 3, 4]])
    whole, picked = tiny.residuals(TOKENS, [0, 1]), tiny.residuals(TOKENS, [0, 1], positions)
    assert picked.shape == (2, 3, 3, 32)
    for row in range(3):
        assert torch.equal(picked[:, row], whole[:, row, positions[row]])


def test_padding_on_the_right_changes_nothing(tiny: LanguageModel) -> None:
    padded = torch.cat([TOKENS[:, :20], torch.zeros(3, 13, dtype=torch.int64)], 1)
    difference = tiny.residuals(padded, [1])[:, :, :20] - tiny.residuals(TOKENS[:, :20], [1])
    assert float(difference.abs().max()) <= 1e-5


def test_the_pass_ends_at_the_last_wanted_layer_and_keeps_fused_attention(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    fused = F.scaled_dot_product_attention

    def counting(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(bool(kwargs["is_causal"]) and kwargs["attn_mask"] is None)
        return fused(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counting)
    tiny.residuals(TOKENS, [0])
    assert calls == [True]
    tiny.residuals(TOKENS, [0, 1])
    assert calls == [True] * 3
    calls.clear()
    DecodingSession(tiny, 2).feed([[1, 2, 3], [4, 5]])  # a first feed needs no mask either
    assert calls == [True] * 2


def test_no_hook_stays_behind(tiny: LanguageModel) -> None:
    before = tiny.logits(TOKENS)
    tiny.residuals(TOKENS, [0], edits=[ResidualEdit(0, torch.ones(32))])
    tiny.logits(TOKENS, edits=[ResidualEdit(1, torch.ones(32))])
    with pytest.raises(NotFoundError):
        tiny.logits(TOKENS, edits=[ResidualEdit(0, torch.ones(32)), ResidualEdit(5, torch.ones(32))])
    assert all(not block._forward_hooks for block in tiny.blocks)
    assert torch.equal(tiny.logits(TOKENS), before)


def test_edits_move_the_residual_by_scale_times_vector(tiny: LanguageModel) -> None:
    vector = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    clean = tiny.residuals(TOKENS, [0])[0]
    added = tiny.residuals(TOKENS, [0], edits=[ResidualEdit(0, vector[0], 2.0)])[0]
    torch.testing.assert_close(added - clean, (2 * vector[0]).expand(3, 40, 32))
    rows = tiny.residuals(TOKENS, [0], edits=[ResidualEdit(0, vector, torch.tensor([1.0, 2.0, 3.0]), op="subtract")])[0]
    torch.testing.assert_close(rows - clean, (-vector * torch.tensor([[1.0], [2.0], [3.0]]))[:, None].expand(3, 40, 32))
    lengths = torch.tensor([40, 10, 1])
    last = tiny.residuals(TOKENS, [0], edits=[ResidualEdit(0, vector[0], token_mask="last")], lengths=lengths)[0]
    moved = (last - clean).abs().amax(-1) > 1e-3
    assert moved.nonzero().tolist() == [[0, 39], [1, 9], [2, 0]]


def test_a_float32_vector_edits_a_bfloat16_model(tiny: LanguageModel) -> None:
    import copy

    half = LanguageModel(copy.deepcopy(tiny.network).bfloat16())
    edit = ResidualEdit(0, torch.ones(32))
    assert half.residuals(TOKENS, [0], edits=[edit]).dtype == torch.bfloat16
    session = DecodingSession(half, 1, [edit])
    assert session.feed([[1, 2, 3]]).dtype == torch.float32
    whole = torch.log_softmax(half.logits(torch.tensor([[1, 2, 3, 4]]), edits=[edit])[0, -1].float(), -1)
    assert float((session.feed([[4]])[0] - whole).abs().max()) < 0.1


def test_tokens_and_layers_are_checked(tiny: LanguageModel) -> None:
    with pytest.raises(NotFoundError, match="no layer 2"):
        tiny.residuals(TOKENS, [2])
    with pytest.raises(BadInputError, match="96 positions"):
        tiny.logits(torch.zeros(1, 97, dtype=torch.int64))
    with pytest.raises(BadInputError, match="outside the vocabulary"):
        tiny.logits(torch.tensor([[32]]))
    with pytest.raises(BadInputError, match="batch, length"):
        tiny.logits(torch.zeros(2, 0, dtype=torch.int64))
    torch.testing.assert_close(tiny.logits(TOKENS[0].tolist()), tiny.logits(TOKENS[:1]))


def test_the_bridge_agrees_with_plain_hooks_and_leaves_the_model_alone(tiny: LanguageModel) -> None:
    before = {name: p.clone() for name, p in tiny.network.named_parameters()}
    logits = tiny.logits(TOKENS)
    names = ["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]
    with torch.inference_mode():
        bridged, cache = tiny.bridge(names).run_with_cache(TOKENS, names_filter=names)
    for layer, name in enumerate(names):
        assert float((cache[name] - tiny.residuals(TOKENS, [layer])[0]).abs().max()) <= 1e-4
    assert float((bridged - logits).abs().max()) <= 1e-4
    assert {name for name, _ in tiny.network.named_parameters()} == set(before)
    assert torch.equal(tiny.logits(TOKENS), logits)


def test_the_bridge_keeps_fused_attention_unless_a_hook_inside_it_is_wanted(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, default = tiny.bridge(["blocks.0.mlp.hook_post"]), tiny.bridge(["blocks.0.attn.hook_pattern"])
    calls: list[int] = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k))
    with torch.inference_mode():
        native(TOKENS)
        assert len(calls) == 2
        default(TOKENS)
        assert len(calls) == 2


def test_activations_under_their_names(tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["blocks.1.attn.hook_pattern", "blocks.0.hook_resid_post", "blocks.1.mlp.hook_post"]
    found = tiny.activations(TOKENS, names)
    assert list(found) == names
    assert found[names[0]].shape == (3, 4, 40, 40)
    assert found[names[2]].shape == (3, 40, 128)
    torch.testing.assert_close(found[names[0]].sum(-1), torch.ones(3, 4, 40))
    monkeypatch.setattr("chessreg.models.adapters.bridge.open_bridge", lambda *_: pytest.fail("no bridge is needed"))
    only = tiny.activations(TOKENS, names[1:2])
    assert float((only[names[1]] - found[names[1]]).abs().max()) <= 1e-4


@pytest.mark.parametrize(
    ("names", "passed"),  # how many places pass each MLP
    [
        (["blocks.0.hook_resid_post", "blocks.1.hook_resid_post"], [120, 4]),
        (["blocks.0.hook_resid_post"], [4]),
        (["hook_embed"], []),
        (["blocks.1.hook_resid_post", LN_FINAL], [120, 120]),
        (["blocks.0.hook_resid_post", "blocks.1.hook_resid_pre"], [4]),  # one block's output by two names
        (["blocks.0.hook_resid_post", "blocks.1.mlp.hook_post"], []),  # the bridge has its own
    ],
)
def test_of_some_places_a_last_block_gives_no_more(tiny: LanguageModel, names: list[str], passed: list[int]) -> None:
    row, token = torch.tensor([0, 2, 2, 0]), torch.tensor([39, 0, 17, 39])
    whole, seen = tiny.activations(TOKENS, names), list[int]()
    handles = [
        block.mlp.register_forward_hook(lambda *found: seen.append(found[2].shape[:-1].numel()))
        for block in tiny.blocks
    ]
    found = tiny.activations_at(TOKENS, names, row, token)
    for handle in handles:
        handle.remove()
    assert found.keys() == whole.keys()
    for name in names:
        assert float((found[name] - whole[name][row, token]).abs().max()) <= 1e-4
    assert seen == passed


def test_every_hook_point_named_fires_and_others_are_not_found(tiny: LanguageModel) -> None:
    names = sorted(find_firing_hooks(tiny.bridge(["blocks.0.attn.hook_pattern"])))
    assert {"hook_embed", "blocks.1.hook_resid_mid", "blocks.0.attn.hook_q", "ln_final.hook_normalized"} <= set(names)
    found = tiny.activations(TOKENS[:1, :4], names)
    assert set(found) == set(names)
    with pytest.raises(NotFoundError, match=r"blocks\.2\.hook_resid_post"):
        tiny.activations(TOKENS, ["blocks.2.hook_resid_post", "hook_embed"])
    with pytest.raises(NotFoundError, match=r"near: blocks\.0\.hook_resid_post"):
        tiny.bridge(["blocks.0.hook_resid_pots"])
