"""Branches: moves that were not played, in the row of the game, learned as if each had a separate row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from chessreg.models.branches import BranchCorpus, BranchTrainer, compute_branch_loss, measure_branches
from chessreg.models.train_config import BranchTraining
from chessreg.models.training import make_initial_model
from tests.models.test_training import HOW, corpus

BRANCHED = BranchTraining(
    n_layer=2, n_head=2, n_embd=32, block_size=31, steps=30, warmup_steps=5, learning_rate=5e-3, seed=3, batch_moves=12
)


def branched(games: int = 40) -> BranchCorpus:
    """Games with up to three moves at random places, whose tokens can be learned: the context, reversed."""
    made, rng = corpus(games), np.random.default_rng(1)
    game, seen, answers = [], [], []
    for number, length in enumerate(np.diff(made.offsets).tolist()):
        for place in rng.choice(np.arange(5, min(length, 26)), rng.integers(0, 4) if length > 8 else 0, replace=False):
            start = made.offsets[number]
            game.append(number)
            seen.append(int(place))
            answers.append(made.tokens[start + place - rng.integers(2, 5) : start + place][::-1])
    return BranchCorpus(
        made.tokens, made.offsets, np.array(game), np.array(seen), np.concatenate(answers),
        np.r_[0, np.cumsum([len(answer) for answer in answers])],
    )  # fmt: skip


def batches_of(data: BranchCorpus, epoch: int) -> list[list[list[int]]]:
    return data.batches(BRANCHED.batch_moves, np.random.default_rng([BRANCHED.seed, epoch]))


@pytest.mark.parametrize("game_loss", [0.0, 0.3])
def test_branches_of_a_game_equal_rows_of_their_own(game_loss: float) -> None:
    """Loss and gradients, to 1e-5; and a branch sees neither another branch nor the game after its place."""
    data = branched()
    torch.manual_seed(0)
    model = make_initial_model(BRANCHED, 32)
    rows = list(range(len(data.games)))
    together = sum(
        compute_branch_loss(model, piece, HOW) for piece in data.iterate_passes([[row] for row in rows], game_loss, 400)
    )
    ours = torch.autograd.grad(together, list(model.parameters()))
    alone = torch.zeros(())
    for row in rows:
        start = data.offsets[data.games[row]]
        mine = range(data.first[row], data.first[row + 1])
        for branch in mine:
            prompt = data.tokens[start : start + data.prefix_lengths[branch]].tolist()
            ids = torch.tensor(
                [prompt + data.answers[data.answer_begins[branch] : data.answer_ends[branch]].tolist()]
            ).long()
            logits = model(ids[:, :-1])[0, len(prompt) - 1 :]
            alone = alone + F.cross_entropy(logits, ids[0, len(prompt) :], reduction="sum")
        game = torch.from_numpy(data.tokens[start : start + data.prefix_lengths[mine[-1]]].astype(np.int64))[None]
        alone = alone + game_loss * F.cross_entropy(model(game[:, :-1])[0], game[0, 1:], reduction="sum")
    torch.testing.assert_close(together, alone, atol=0, rtol=1e-5)
    for one, other in zip(ours, torch.autograd.grad(alone, list(model.parameters())), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_every_branch_is_in_one_batch_of_an_epoch_and_batches_have_as_many() -> None:
    data = branched()
    batches = batches_of(data, 0)
    assert batches == batches_of(data, 0) != batches_of(data, 1)
    assert sorted(row for batch in batches for [row] in batch) == list(range(len(data.games)))
    sizes = [int(data.moves[np.array(batch)[:, 0]].sum()) for batch in batches]
    assert len(sizes) == -(-sum(sizes) // 12)
    assert max(sizes) < 12 + 3  # a game is not divided
    cut = [piece.tokens.numel() for piece in data.iterate_passes(batches[0], 0.0, 60)]
    assert len(cut) > 1


def test_a_gpt2_learns_branches_and_goes_on_after_an_interruption(tmp_path: Path) -> None:
    data, points = branched(), []
    whole = BranchTrainer(BRANCHED, data, tmp_path / "whole", HOW)
    whole.run(
        points.append,
        heldout=data,
        heldout_steps=30,
        measure=lambda model: {"wpe": float(model.wpe.weight[0, 0].detach())},
    )
    assert points[-1].loss < 0.7 * points[0].loss
    assert (points[-1].heldout_loss, points[-1].heldout_accuracy) == whole.measure_heldout(data)
    assert points[-1].measured == {"wpe": float(whole.model.wpe.weight[0, 0].detach())}
    assert whole.tokens_seen == sum(
        int(data.moves[np.array(batch)[:, 0]].sum())
        for epoch in range(whole.epoch + 1)
        for batch in batches_of(data, epoch)[: whole.position if epoch == whole.epoch else None]
    )
    pieces = BranchTrainer(BRANCHED, data, tmp_path / "pieces", HOW)
    pieces.run(points.append, should_stop=lambda: pieces.step >= 13)
    pieces = BranchTrainer(BRANCHED, data, tmp_path / "pieces", HOW)
    pieces.run(points.append)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, pieces.model.state_dict()[name]), name


def test_a_move_counts_as_found_where_every_token_is_the_most_probable() -> None:
    data = branched()
    torch.manual_seed(1)
    model = make_initial_model(BRANCHED, 32)
    _, right = measure_branches(model, data, HOW)
    found = 0
    for row, first in enumerate(data.first[:-1]):
        start = data.offsets[data.games[row]]
        for branch in range(first, data.first[row + 1]):
            written = data.tokens[start : start + data.prefix_lengths[branch]].tolist()
            answer = data.answers[data.answer_begins[branch] : data.answer_ends[branch]].tolist()
            for _ in answer:  # as it is decoded
                written.append(int(model(torch.tensor([written]))[0, -1].argmax()))
            found += written[-len(answer) :] == answer
    assert right == found / len(data.prefix_lengths)
