"""A decoding session equals a full recompute of every row, after any earlier operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.decoding.passes import RaggedTokens
from chessreg.models.decoding.session import ContextFullError, DecodingSession
from chessreg.models.edits import TOKEN_MASKS, ResidualEdit, register_token_mask
from chessreg.models.language_model import LanguageModel

CLOSE = 1e-4


@pytest.fixture(params=[False, True], ids=["rectangles", "packed"], autouse=True)
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of passes: the cost alone determines the choice."""
    monkeypatch.setattr(DecodingSession, "_should_pack", lambda self, rows, counts, history: request.param and history)


def random_rows(seed: int, lengths: list[int]) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 32, n).tolist() for n in lengths]


def recomputed(model: LanguageModel, rows: list[list[int]], edits: list[ResidualEdit]) -> Tensor:
    """Log-probabilities after each row, each alone and without a cache."""
    out = []
    for row, tokens in enumerate(rows):
        own = [edit.take(torch.tensor([row])) for edit in edits]
        out.append(torch.log_softmax(model.logits(torch.tensor([tokens]), edits=own)[0, -1], -1))
    return torch.stack(out)


def assert_exact(session: DecodingSession, edits: list[ResidualEdit]) -> None:
    expected = recomputed(session.model, session.tokens, edits)
    actual = session.refresh()
    assert float((actual - expected).abs().max()) <= CLOSE
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


def vector(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


EDITS = {
    "none": [],
    "all": [ResidualEdit(0, vector(1, 32), 3.0, "all", "subtract")],
    "a direction a row": [ResidualEdit(1, vector(2, 5, 32), 2.0), ResidualEdit(0, vector(3, 32), vector(4, 5))],
    "last": [ResidualEdit(0, vector(5, 32), 3.0, "last"), ResidualEdit(1, vector(6, 5, 32), 2.0, "last", "subtract")],
    "all and last": [ResidualEdit(0, vector(7, 32), 2.0, "all"), ResidualEdit(1, vector(8, 32), 3.0, "last")],
    "a prefix-stable mask": [ResidualEdit(0, vector(9, 32), 3.0, "test-even-ids")],
}


@pytest.mark.parametrize("name", EDITS)
def test_a_session_equals_full_recompute_through_its_whole_life(tiny: LanguageModel, name: str) -> None:
    edits = EDITS[name]
    session = DecodingSession(tiny, 5, edits)
    session.feed(random_rows(0, [7, 1, 40, 23, 8]))
    assert_exact(session, edits)
    session.feed(random_rows(1, [3, 1, 0, 5, 0]))
    assert_exact(session, edits)
    session.feed(random_rows(2, [0, 0, 0, 1, 0]))  # a subset, gathered
    assert_exact(session, edits)
    session.rollback([2, 0, 5, 6, 8])
    session.feed(random_rows(3, [4, 2, 0, 0, 20]))
    assert_exact(session, edits)
    order = [3, 0, 4, 4]
    session.select(order)
    edits = [edit.take(torch.tensor(order)) for edit in edits]
    assert_exact(session, edits)
    session.feed(random_rows(4, [1, 2, 0, 3]))
    assert_exact(session, edits)
    session.select([0, 0, 1, 1, 2, 2, 3, 3])
    edits = [edit.take(torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])) for edit in edits]
    session.feed(random_rows(5, [1, 2, 1, 1, 0, 0, 3, 3]))
    assert_exact(session, edits)
    session.select(range(1, 7))
    edits = [edit.take(torch.arange(1, 7)) for edit in edits]
    session.feed(random_rows(6, [1] * 6))
    assert_exact(session, edits)


@pytest.mark.parametrize("name", EDITS)
def test_residuals_of_last_tokens_equal_those_of_a_full_pass(tiny: LanguageModel, name: str) -> None:
    session = DecodingSession(tiny, 5, EDITS[name])
    session.feed(random_rows(0, [7, 1, 40, 23, 8]))
    session.feed(random_rows(1, [3, 1, 0, 5, 0]))
    before = session.refresh().clone()
    found = session.residuals([1, 0])
    for row, tokens in enumerate(session.tokens):
        own, last = [edit.take(torch.tensor([row])) for edit in EDITS[name]], torch.tensor([[len(tokens) - 1]])
        expected = tiny.residuals(torch.tensor([tokens]), [1, 0], last, edits=own)[:, 0, 0]
        torch.testing.assert_close(found[:, row], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(session.refresh(), before, atol=1e-4, rtol=1e-4)
    session.feed(random_rows(2, [2, 1, 0, 1, 0]))
    assert_exact(session, EDITS[name])


@pytest.mark.parametrize("name", EDITS)
def test_rewind_brings_back_an_earlier_state(tiny: LanguageModel, name: str) -> None:
    session = DecodingSession(tiny, 5, EDITS[name])
    session.feed(random_rows(0, [7, 1, 40, 23, 8]))
    lengths, before = [len(tokens) for tokens in session.tokens], session.refresh().clone()
    session.feed(random_rows(1, [2, 3, 0, 1, 1]))
    session.feed(random_rows(2, [0, 1, 0, 1, 1]))
    for row in (0, 1, 3):
        session.rewind(row, lengths[row], before[row])
    assert torch.equal(session.logprobs[[0, 1, 2, 3]], before[[0, 1, 2, 3]])
    assert_exact(session, EDITS[name])
    session.feed(random_rows(3, [2, 2, 2, 2, 2]))
    assert_exact(session, EDITS[name])


def test_sync_feeds_only_what_differs(tiny: LanguageModel) -> None:
    session = DecodingSession(tiny, 3)
    first = random_rows(0, [20, 30, 10])
    session.sync(first)
    widths: list[int] = []
    whole = session.forward

    def counting(new: RaggedTokens, *rest: Any) -> Tensor:
        widths.append(int(new.counts.max()))
        return whole(new, *rest)

    session.forward = counting  # type: ignore[method-assign]
    second = [[*first[0], 1, 2, 3], [*first[1][:25], 4, 5], first[2]]
    session.sync(second)
    assert widths == [3]
    assert session.tokens == second
    assert_exact(session, [])
    session.sync([second[0], second[1][:3], []])
    assert session.tokens[2] == []
    assert bool(session.logprobs[2].isnan().all())
    session.feed([[], [], [5, 6]])
    assert_exact(session, [])


def test_a_full_context_is_reported_before_anything_is_fed(tiny: LanguageModel) -> None:
    session = DecodingSession(tiny, 3)
    session.feed(random_rows(0, [90, 96, 10]))
    assert_exact(session, [])
    with pytest.raises(ContextFullError, match="96 positions") as caught:
        session.feed(random_rows(1, [7, 1, 1]))
    assert caught.value.rows == [0, 1]
    assert [len(tokens) for tokens in session.tokens] == [90, 96, 10]
    session.feed(random_rows(2, [6, 0, 3]))
    assert_exact(session, [])
    with pytest.raises(ContextFullError):
        session.sync([[1] * 97, [1], [1]])


def test_a_subset_of_rows_next_to_full_ones_is_decoded(tiny: LanguageModel) -> None:
    session = DecodingSession(tiny, 2)
    session.feed(random_rows(0, [96, 50]))
    session.feed(random_rows(1, [0, 3]))
    assert_exact(session, [])


def test_the_cheaper_way_is_taken(tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    session = DecodingSession(tiny, 4)
    session.feed(random_rows(0, [3, 4, 3, 60]))
    assert not session._should_pack([0, 1, 2, 3], [1] * 4, history=False)
    assert not session._should_pack([0, 1, 2, 3], [1] * 4, history=True)  # a call for each costs more than it saves
    assert session._should_pack([0, 1, 2, 3], [1, 1, 1, 9], history=True)  # padding would cost more
    session = DecodingSession(tiny, 8)
    session.tokens = [[1] * 900] + [[1] * 90 for _ in range(7)]
    assert session._should_pack(list(range(8)), [1] * 8, history=True)
    assert session._should_pack([2], [1], history=True)


def test_sessions_refuse_what_does_not_fit(tiny: LanguageModel) -> None:
    with pytest.raises(BadInputError, match="5 directions, but there are 3 rows"):
        DecodingSession(tiny, 3, [ResidualEdit(0, vector(0, 5, 32))])
    with pytest.raises(BadInputError, match="2 lists"):
        DecodingSession(tiny, 3).feed([[1], [2]])
    with pytest.raises(BadInputError, match="cannot be taken back"):
        DecodingSession(tiny, 1).rollback([1])
    with pytest.raises(NotFoundError, match="layer 9 does not exist"):
        DecodingSession(tiny, 1, [ResidualEdit(9, vector(0, 32))]).feed([[1]])
    with pytest.raises(NotFoundError, match="token mask 'nowhere' does not exist"):
        ResidualEdit(0, vector(0, 32), token_mask="nowhere")
    with pytest.raises(BadInputError, match="d_model"):
        ResidualEdit(0, torch.zeros(2, 2, 2, 2))
    with pytest.raises(ValueError, match="registered already"):
        register_token_mask(TOKEN_MASKS["all"])


def test_the_trained_model_decodes_games_exactly(trained: LanguageModel) -> None:
    edits = [ResidualEdit(4, vector(1, 192), 0.5, "last"), ResidualEdit(5, vector(2, 192), 0.5)]
    for chosen in ([], edits):
        session = DecodingSession(trained, 3, chosen)
        session.feed(random_rows(0, [40, 250, 120]))
        session.feed(random_rows(1, [5, 1, 9]))
        session.feed(random_rows(2, [1, 1, 1]))
        assert_exact(session, chosen)


def test_cudnn_attention_which_prepares_for_every_length_is_off_in_passes_alone(tiny: LanguageModel) -> None:
    seen: list[bool] = []
    block = tiny.network.h[0]
    handle = block.register_forward_pre_hook(lambda *_: seen.append(torch.backends.cuda.cudnn_sdp_enabled()))
    try:
        before = torch.backends.cuda.cudnn_sdp_enabled()
        session = DecodingSession(tiny, 1)
        session.feed([[1, 2, 3]])
        session.feed([[4]])
    finally:
        handle.remove()
    assert seen == [False, False]
    assert torch.backends.cuda.cudnn_sdp_enabled() is before is True
