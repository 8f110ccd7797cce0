"""An edit's forms, its positions, and its share in a session's cache."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from chessreg.encodings import Encoding
from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.edits import ResidualEdit, get_token_mask
from chessreg.models.language_model import LanguageModel

CLOSE = 1e-4
TEXT = ";1.e4 e5 2.Nf3 Nc6 3.Bb5 a6 4.Ba4 Nf6 5."


def vector(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(pgn: Encoding, text: str = TEXT) -> Tensor:
    return torch.tensor([pgn.encode(text).tolist()])


def test_a_bias_and_a_hook_give_equal_logits_at_every_token(tiny: LanguageModel, pgn: Encoding) -> None:
    """As in chess_gpt_eval: the vector as bias of mlp.c_proj, against the vector added to resid_post."""
    settings = [(0, 3.0, "add"), (1, -2.0, "subtract")]
    forms = {
        form: [ResidualEdit(layer, vector(layer, 32), scale, "all", op, form) for layer, scale, op in settings]  # type: ignore[arg-type]
        for form in ("hook", "mlp-bias")
    }
    tokens = ids(pgn)
    before = [block.mlp.c_proj.bias for block in tiny.blocks]  # type: ignore[union-attr]
    hooked, biased = (tiny.logits(tokens, edits=edits) for edits in forms.values())
    assert float((hooked - biased).abs().max()) < CLOSE
    assert float((hooked - tiny.logits(tokens)).abs().max()) > 0.1
    assert all(block.mlp.c_proj.bias is old for block, old in zip(tiny.blocks, before, strict=True))  # type: ignore[union-attr]
    sessions = [DecodingSession(tiny, 1, edits) for edits in forms.values()]
    for session in sessions:  # prompt and generated tokens alike
        session.feed([tokens[0, :10].tolist()])
        for token in tokens[0, 10:].tolist():
            session.feed([[token]])
    assert float((sessions[0].logprobs - sessions[1].logprobs).abs().max()) < CLOSE
    residual = tiny.residuals(tokens, [0], edits=forms["mlp-bias"]) - tiny.residuals(tokens, [0])
    assert torch.allclose(residual[0, 0], 3.0 * vector(0, 32).expand(tokens.shape[1], -1), atol=CLOSE)


def test_an_edit_may_put_something_in_the_place_of_the_residual(tiny: LanguageModel, pgn: Encoding) -> None:
    """At the tokens of its mask the vector is added, equally in one pass and in a session."""

    def half(residual: Tensor) -> Tensor:
        return residual / 2

    tokens, clean = ids(pgn), tiny.residuals(ids(pgn), [0])[0, 0]
    edit = ResidualEdit(0, vector(1, 32), 2.0, "dots", instead=half)
    edited = tiny.residuals(tokens, [0], edits=[edit])[0, 0]
    dots = torch.from_numpy(get_token_mask("dots").compute(tokens[0].numpy(), pgn))
    assert 0 < int(dots.sum()) < len(dots)
    assert torch.equal(edited[~dots], clean[~dots])
    assert torch.allclose(edited[dots], clean[dots] / 2 + 2 * vector(1, 32), atol=CLOSE)
    session = DecodingSession(tiny, 1, [edit])
    for token in tokens[0].tolist():
        session.feed([[token]])
    whole = tiny.logits(tokens, edits=[edit])[0, -1].log_softmax(-1)
    assert float((session.logprobs[0] - whole).abs().max()) < CLOSE
    branch = DecodingSession(tiny, 1)
    branch.feed([tokens[0].tolist()])
    assert float((branch.branch([edit]).logprobs[0] - whole).abs().max()) < CLOSE
    with pytest.raises(BadInputError, match="one vector at every token"):
        ResidualEdit(0, vector(1, 32), form="mlp-bias", instead=half)


def test_a_model_with_biases_keeps_them_under_a_bias_edit(tiny: LanguageModel, pgn: Encoding) -> None:
    """As a folded model has them: the edit adds to the bias, it does not replace it."""
    model = LanguageModel(copy.deepcopy(tiny.network))
    with torch.no_grad():
        model.blocks[1].mlp.c_proj.bias.copy_(vector(4, 32))  # type: ignore[union-attr]
    hooked, biased = (
        model.logits(ids(pgn), edits=[ResidualEdit(1, vector(5, 32), 2.0, form=form)])  # type: ignore[arg-type]
        for form in ("hook", "mlp-bias")
    )
    assert float((hooked - biased).abs().max()) < CLOSE


def test_a_bias_cannot_edit_some_positions_or_differ_by_row() -> None:
    with pytest.raises(BadInputError, match="every token"):
        ResidualEdit(0, vector(1, 32), token_mask="last", form="mlp-bias")
    with pytest.raises(BadInputError, match="every token"):
        ResidualEdit(0, vector(1, 2, 32), form="mlp-bias")
    with pytest.raises(BadInputError, match="form 'weights' does not exist"):
        ResidualEdit(0, vector(1, 32), form="weights")  # type: ignore[arg-type]


def test_segments_are_those_of_karvonens_code(pgn: Encoding) -> None:
    """Golden test 2: `;1.e4 c5 2.Nf3 d6 3` has white [[0..4],[8..13],[17,18]] and black [[5,6,7],[14,15,16]]."""
    tokens = pgn.encode(";1.e4 c5 2.Nf3 d6 3")
    white = get_token_mask("white_segments").compute(tokens, pgn)
    black = get_token_mask("black-segments").compute(tokens, pgn)
    assert white.nonzero()[0].tolist() == [0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 17, 18]
    assert black.nonzero()[0].tolist() == [5, 6, 7, 14, 15, 16]
    with pytest.raises(NotFoundError, match="token mask 'green-segments' does not exist"):
        get_token_mask("green-segments")


@pytest.mark.parametrize("positions", ["last", "all", "white_segments", "black_segments"])
def test_a_branch_equals_a_full_recompute(tiny: LanguageModel, pgn: Encoding, positions: str) -> None:
    """Every character by a full forward pass in which the edit touches these positions."""
    prompts = [pgn.encode(text).tolist() for text in (TEXT, TEXT[:11], TEXT[:25])]
    edits = [
        ResidualEdit(0, vector(1, 3, 32), 2.0, positions),
        ResidualEdit(1, vector(2, 32), 1.5, positions, "subtract"),
    ]
    clean = DecodingSession(tiny, 3)
    clean.feed(prompts)
    before = clean.logprobs.clone()
    branch = clean.branch(edits)
    for step in range(6):
        for row, tokens in enumerate(branch.tokens):
            own = [edit.take(torch.tensor([row])) for edit in edits]
            full = torch.log_softmax(tiny.logits(torch.tensor([tokens]), edits=own)[0, -1], -1)
            assert float((branch.logprobs[row] - full).abs().max()) < CLOSE, (step, row)
        branch.feed([[int(token)] for token in branch.logprobs.argmax(-1)])
    assert torch.equal(clean.logprobs, before)
    more = clean.feed([[5], [], [6]])  # its own keys and values are untouched
    fresh = DecodingSession(tiny, 3)
    assert float((fresh.feed([list(t) for t in clean.tokens]) - more).abs().max()) < CLOSE


def test_an_edited_session_has_no_branches(tiny: LanguageModel) -> None:
    with pytest.raises(BadInputError, match="no clean keys"):
        DecodingSession(tiny, 1, [ResidualEdit(0, vector(1, 32))]).branch([])
