"""Edits of chosen tokens, all at once, equal full passes over the prefixes that end there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from chessreg.errors import BadInputError, DivergedError
from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo, save_checkpoint
from chessreg.models.decoding.next_tokens import NextTokens
from chessreg.models.decoding.session import ContextFullError, DecodingSession
from chessreg.models.edits import ResidualEdit
from chessreg.models.language_model import LanguageModel

LAYERS, WIDTH = 3, 32


@pytest.fixture(scope="module")
def squares() -> LanguageModel:
    network = make_random_gpt2(GPT2Config(n_layer=LAYERS, n_head=4, n_embd=WIDTH, block_size=48, vocab_size=72), 0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() == 2:
                parameter *= 4 if "wpe" in name or "wte" in name else 8
    return LanguageModel(network, CheckpointInfo.from_network(network, "uci-square-72"))


def draw(seed: int, *shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


ROWS = [[1, *(4 + (7 * i + 11 * row) % 64 for i in range(length))] for row, length in enumerate((8, 30, 17))]
SITES = [(0, 8), (1, 4), (1, 14), (1, 30), (2, 10)]
WHICH = [0, 1, 1, 2, 2, 2, 3, 4, 0]


def one_by_one(model: LanguageModel, edits: list[ResidualEdit]) -> Tensor:
    """The same by a full pass of each prefix alone."""
    found = []
    for number, site in enumerate(WHICH):
        row, token = SITES[site]
        own = [edit.take(torch.tensor([number])) if edit.per_row else edit for edit in edits]
        found.append(model.logits(torch.tensor([ROWS[row][: token + 1]]), edits=own)[0, -1].log_softmax(-1))
    return torch.stack(found)


def edits_of(model: LanguageModel, layers: tuple[int, ...], scale: float = 0.5) -> list[ResidualEdit]:
    """Davis equation 1 at the last token: lengths are shares of the norm after the final LayerNorm."""
    reference = model.network.norm().forward
    return [ResidualEdit(layer, draw(layer, len(WHICH), WIDTH), scale, "last", reference=reference) for layer in layers]


@pytest.mark.parametrize("layers", [(0,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("packs", [True, False])
def test_edits_of_many_tokens_equal_full_passes(
    squares: LanguageModel, layers: tuple[int, ...], packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DecodingSession, "_should_pack", lambda self, rows, counts, history: packs and history)
    tokens = NextTokens(squares, ROWS, SITES, range(LAYERS))
    clean = torch.stack([
        squares.logits(torch.tensor([ROWS[row][: token + 1]]))[0, -1].log_softmax(-1) for row, token in SITES
    ])  # fmt: skip
    assert float((tokens.logprobs - clean).abs().max()) < 1e-5
    edits = edits_of(squares, layers)
    found = tokens.predict_edited(WHICH, edits)
    assert float((found - one_by_one(squares, edits)).abs().max()) < 1e-5
    assert float((found - tokens.logprobs[WHICH]).abs().amax(1).min()) > 0.05  # each of them does something


def test_an_edit_has_the_length_of_equation_1(squares: LanguageModel) -> None:
    """Davis 2026, Equation 1: ‖h̃ - h‖ = α ‖LN(h)‖, for each reference norm."""
    tokens = torch.tensor([ROWS[1]])
    for layer in range(LAYERS):
        clean = squares.residuals(tokens, [layer])[0, 0, -1]
        for norm in (squares.network.norm(), squares.network.norm(layer), None):
            reference = norm.forward if norm is not None else lambda residual: residual
            edit = ResidualEdit(layer, draw(5, WIDTH), 0.7, "last", reference=reference)
            moved = squares.residuals(tokens, [layer], edits=[edit])[0, 0, -1] - clean
            with torch.inference_mode():
                assert float(moved.norm()) == pytest.approx(0.7 * float(reference(clean).norm()), rel=1e-4)
    assert squares.network.norm(LAYERS - 1) is squares.network.norm()
    assert squares.network.norm(0) is squares.blocks[1].ln_1


def test_an_edit_changes_no_logits_before_its_token(squares: LanguageModel) -> None:
    """Equal to the last bit before the token; the token's own logits differ."""
    tokens, [edit] = torch.tensor([ROWS[1]]), edits_of(squares, (1,))
    clean, edited = squares.logits(tokens), squares.logits(tokens, edits=[edit.take(torch.tensor([0]))])
    assert bool((clean[0, :-1] == edited[0, :-1]).all())
    assert float((clean[0, -1] - edited[0, -1]).abs().max()) > 0.05


def test_length_0_is_the_clean_model_bit_for_bit(squares: LanguageModel) -> None:
    """In a full pass, and together with edits that have a length."""
    tokens = torch.tensor([ROWS[1]])
    still = [edit.take(torch.tensor([0])) for edit in edits_of(squares, (0, 1), 0.0)]
    assert bool((squares.logits(tokens, edits=still) == squares.logits(tokens)).all())
    sites = NextTokens(squares, ROWS, SITES, range(LAYERS))
    scale = torch.tensor([0.0, 0.5] * len(WHICH))[: len(WHICH)]
    found = sites.predict_edited(WHICH, [ResidualEdit(1, draw(3, len(WHICH), WIDTH), scale, "last")])
    same = (found == sites.logprobs[WHICH]).all(1)
    assert same.tolist() == (scale == 0).tolist()
    tiny = sites.predict_edited(
        WHICH, [ResidualEdit(1, draw(3, len(WHICH), WIDTH), 1e-12, "last")]
    )  # computed all the way
    assert float((tiny - sites.logprobs[WHICH]).abs().max()) < 1e-5


def test_without_an_edit_it_is_hugging_faces_pass_of_the_same_weights(squares: LanguageModel, tmp_path: Path) -> None:
    """Equal to transformers' GPT2LMHeadModel."""
    from transformers import GPT2LMHeadModel

    save_checkpoint(
        squares.network, tmp_path / "squares", CheckpointInfo.from_network(squares.network, "uci-square-72")
    )
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "squares").eval()
    found = NextTokens(squares, ROWS, SITES, range(LAYERS)).logprobs.exp()
    for (row, token), own in zip(SITES, found, strict=True):
        with torch.inference_mode():
            logits = theirs(torch.tensor([ROWS[row][: token + 1]])).logits[0, -1]
        assert float((own - logits.softmax(-1)).abs().max()) < 1e-5


def test_a_model_without_a_cache_gives_the_same(squares: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    edits = edits_of(squares, (0, 2))
    fast = NextTokens(squares, ROWS, SITES, range(LAYERS)).predict_edited(WHICH, edits)
    monkeypatch.setattr(type(squares.network), "can_cache", False)
    assert (
        float((NextTokens(squares, ROWS, SITES, range(LAYERS)).predict_edited(WHICH, edits) - fast).abs().max()) < 1e-5
    )


def test_the_fen_encoder_sees_the_edit_of_its_last_token() -> None:
    network = FenEncoder(FenConfig(n_layer=2, n_head=2, n_embd=16)).make_untrained(0)
    model = LanguageModel(network, CheckpointInfo.from_network(network, "fen-77"))
    row = model.encoding.prompt([])
    edit = ResidualEdit(0, 3 * draw(1, 16), 1.0, "last", reference=network.norm().forward)
    found = NextTokens(model, [row], [(0, 76)], [0]).predict_edited([0, 0], [edit])
    full = model.logits(torch.tensor([row]), edits=[edit])[0, -1].log_softmax(-1)
    assert float((found - full).abs().max()) < 1e-5
    assert float((found - model.logits(torch.tensor([row]))[0, -1].log_softmax(-1)).abs().max()) > 1e-3


def test_what_does_not_fit_is_refused(squares: LanguageModel) -> None:
    with pytest.raises(ContextFullError, match="48 positions"):
        NextTokens(squares, [[1] * 49], [(0, 3)], [0])
    with pytest.raises(BadInputError, match="a token of its row"):
        NextTokens(squares, ROWS, [(0, 9)], [0])
    sites = NextTokens(squares, ROWS, SITES, [1])
    with pytest.raises(BadInputError, match="4 directions, but there are 2 sites"):
        sites.predict_edited([0, 1], [ResidualEdit(1, draw(0, 4, WIDTH), token_mask="last")])
    with pytest.raises(BadInputError, match="layer 0 was not kept"):
        sites.predict_edited([0], [ResidualEdit(0, draw(0, WIDTH), token_mask="last")])
    with pytest.raises(DivergedError, match="edited"):
        sites.predict_edited([0], [ResidualEdit(1, torch.full((WIDTH,), float("nan")), token_mask="last")])
    assert sites.predict_edited(np.zeros(0, np.int64), [ResidualEdit(1, draw(0, WIDTH), token_mask="last")]).shape == (
        0,
        72,
    )
