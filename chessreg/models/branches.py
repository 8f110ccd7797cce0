"""Games with branches: unplayed moves, learned by a GPT-2 that reads each game once.

The tokens of a branch see the game before it, and themselves: the same as a separate row per move, at the cost of one
pass over the game. Imports only torch and numpy, as `training` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chessreg.models.adapters.gpt2 import GPT2
from chessreg.models.epochs import Batch, make_epoch_generator
from chessreg.models.train_config import BranchTraining
from chessreg.models.training import Trainer, TrainerOptions, make_autocast


@dataclass(frozen=True)
class Branches:
    """Games and their branches as one pass of a GPT-2.

    Tokens and positions are int64 [row, game + branches], each part padded on the right. `mask` float32 [row, 1,
    branches, game + branches] is added to the scores of the branches' queries; the game before them is causal. The
    token after place `source` int64 [n] of the flattened rows is `labels` int64 [n], with loss weight `weights` float32
    [n]. `move` int64 [n] is the branch's number, -1 for tokens of the game.
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    source: Tensor
    labels: Tensor
    weights: Tensor
    move: Tensor
    moves: int

    def logits(self, model: GPT2, options: TrainerOptions) -> Tensor:
        """Return the model's output for each label, float32 [n, outputs]."""
        device = options.device
        with make_autocast(options):
            hidden = model.hidden(self.tokens.to(device), self.positions.to(device), mask=self.mask.to(device))
            return model.unembed(hidden.flatten(0, 1)[self.source.to(device)]).float()


class BranchCorpus:
    """Games as token ids, and moves to predict in them, each a branch that sees only the game before it.

    `tokens` and `offsets` are as in `Corpus`. Branch i belongs to game `game[i]`, after its first `prefix_lengths[i]`
    tokens; its move is answers[answer_offsets[i]:answer_offsets[i + 1]]. A game is cut after its last branch; games
    without one are dropped.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        offsets: np.ndarray,
        game: np.ndarray,
        prefix_lengths: np.ndarray,
        answers: np.ndarray,
        answer_offsets: np.ndarray,
        vocab_size: int = 32,
    ) -> None:
        order = np.lexsort((prefix_lengths, game))
        self.tokens, self.offsets, self.answers, self.vocab_size = tokens, offsets, answers, vocab_size
        self.prefix_lengths, self.answer_begins, self.answer_ends = (
            prefix_lengths[order],
            answer_offsets[:-1][order],
            answer_offsets[1:][order],
        )
        self.games, first_branches, self.moves = np.unique(game[order], return_index=True, return_counts=True)
        self.first = np.append(first_branches, len(game))
        answer_lengths = self.answer_ends - self.answer_begins - 1
        self.lengths = self.prefix_lengths[self.first[1:] - 1] + np.add.reduceat(answer_lengths, first_branches)
        """Tokens of each game with its branches."""
        self.longest = int((self.prefix_lengths + answer_lengths).max())
        """The most tokens that a branch needs before its last one."""

    def batches(self, batch_moves: int, rng: np.random.Generator) -> list[Batch]:
        """Return the games of an epoch in batches of `batch_moves` branches, each of games of similar length."""
        order = rng.permutation(len(self.games))
        buckets = [order[start : start + 4096] for start in range(0, len(order), 4096)]
        order = np.concatenate([bucket[np.argsort(self.lengths[bucket], kind="stable")] for bucket in buckets])
        batch = (np.cumsum(self.moves[order]) - 1) // batch_moves
        batch_orders = np.split(order, np.flatnonzero(np.diff(batch)) + 1)
        return [batch_orders[number][:, None].tolist() for number in rng.permutation(len(batch_orders))]

    def iterate_passes(self, rows: list[list[int]], game_loss: float, most_tokens: int) -> Iterator[Branches]:
        """Yield these games in passes of at most `most_tokens` tokens; their own tokens have the weight `game_loss`."""
        start, game_rows = 0, np.array(rows)[:, 0]
        while start < len(game_rows):
            stop, longest_row = start, 0
            while stop < len(game_rows):
                longest_row = max(longest_row, int(self.lengths[game_rows[stop]]))
                if stop > start and longest_row * (stop + 1 - start) > most_tokens:
                    break
                stop += 1
            yield self.build_branches(game_rows[start:stop], game_loss)
            start = stop

    def build_branches(self, rows: np.ndarray, game_loss: float = 0.0) -> Branches:
        """Return the games at `rows` int [n], with all their branches, as one pass.

        `game_loss` is the weight of the loss at the tokens of the games themselves; 0 leaves them out.
        """
        branch_ranges = [np.arange(self.first[row], self.first[row + 1]) for row in rows]
        spans = [int(self.prefix_lengths[branch_range[-1]]) for branch_range in branch_ranges]
        inner = [
            self.answer_ends[branch_range] - self.answer_begins[branch_range] - 1 for branch_range in branch_ranges
        ]  # number of tokens of each branch that are read
        game, branches = max(spans), max(int(each.sum()) for each in inner)
        tokens = np.zeros((len(rows), game + branches), np.int64)
        positions = np.zeros_like(tokens)
        positions[:, :game] = np.arange(game)
        seen_counts, owner, place = (np.full((len(rows), branches), fill) for fill in (0, -1, 0))
        place[:] = np.arange(branches)
        sources, labels, weights, moves = [], [], [], []
        number = 0
        for row, (branch_range, span, lengths) in enumerate(zip(branch_ranges, spans, inner, strict=True)):
            start, line = self.offsets[self.games[rows[row]]], row * tokens.shape[1]
            tokens[row, :span] = self.tokens[start : start + span]
            if game_loss:
                sources.append(line + np.arange(span - 1))
                labels.append(tokens[row, 1:span])
                weights.append(np.full(span - 1, game_loss))
                moves.append(np.full(span - 1, -1))
            at = 0
            for branch, length in zip(branch_range, lengths, strict=True):
                answer = self.answers[self.answer_begins[branch] : self.answer_ends[branch]].astype(np.int64)
                inside, after = slice(at, at + length), int(self.prefix_lengths[branch])
                tokens[row, game + at : game + at + length] = answer[:-1]
                positions[row, game + at : game + at + length] = after + np.arange(length)
                seen_counts[row, inside], owner[row, inside] = after, number
                sources.append(line + np.append(after - 1, game + at + np.arange(length)))
                labels.append(answer)
                weights.append(np.ones(length + 1))
                moves.append(np.full(length + 1, number))
                at, number = at + int(length), number + 1
        is_same_branch = (owner[:, :, None] == owner[:, None, :]) & (place[:, :, None] >= place[:, None, :])
        is_visible = np.concatenate([np.arange(game) < seen_counts[:, :, None], is_same_branch], 2)
        mask = np.where(is_visible, np.float32(0), np.float32(-np.inf))[:, None]
        ids = (np.concatenate(each) for each in (sources, labels, moves))
        source, label, move = (torch.from_numpy(each) for each in ids)
        weight = torch.from_numpy(np.concatenate(weights).astype(np.float32))
        inputs = torch.from_numpy(tokens), torch.from_numpy(positions), torch.from_numpy(mask)
        return Branches(*inputs, source, label, weight, move, number)


def compute_branch_loss(model: GPT2, piece: Branches, options: TrainerOptions) -> Tensor:
    """Return the weighted sum of the cross-entropy of every label, in nats."""
    losses = F.cross_entropy(piece.logits(model, options), piece.labels.to(options.device), reduction="none")
    return (losses * piece.weights.to(options.device)).sum()


@torch.no_grad()
def measure_branches(model: GPT2, corpus: BranchCorpus, options: TrainerOptions) -> tuple[float, float]:
    """Return (nats per move, summed over its tokens; share of moves whose every token is the most probable one).

    The greedy text is the move exactly in that share. Covers all games of the corpus.
    """
    loss_sum, right = 0.0, 0
    model.eval()
    order = np.argsort(corpus.lengths, kind="stable")[:, None].tolist()
    for piece in corpus.iterate_passes(order, 0.0, options.micro_tokens):
        logits = piece.logits(model, options).cpu()
        loss_sum += float(F.cross_entropy(logits, piece.labels, reduction="sum"))
        wrong = torch.zeros(piece.moves).index_add_(0, piece.move, (logits.argmax(-1) != piece.labels).float())
        right += int((wrong == 0).sum())
    model.train()
    return loss_sum / len(corpus.prefix_lengths), right / len(corpus.prefix_lengths)


class BranchTrainer(Trainer):
    """Trains a GPT-2 on branches. An update has `config.batch_moves` moves, with a loss in nats per move; the tokens of
    the game have the weight `config.game_loss`."""

    config: BranchTraining
    corpus: BranchCorpus  # type: ignore[assignment]
    model: GPT2

    def check_corpus(self) -> None:
        """A BranchCorpus always has a batch."""

    def iterate_batches(self, epoch: int, first_batch: int) -> Iterator[Batch]:
        random = make_epoch_generator(self.config.draw_seed, epoch)
        return iter(self.corpus.batches(self.config.batch_moves, random)[first_batch:])

    def split_rows(self, rows: Batch) -> tuple[list[tuple[Branches]], int]:
        tokens = self.options.micro_tokens // self.options.devices
        return [(piece,) for piece in self.corpus.iterate_passes(rows, self.config.game_loss, tokens)], 0

    def count_targets(self, piece: Branches) -> int:  # type: ignore[override]
        return piece.moves

    def count_read_tokens(self, piece: Branches) -> int:  # type: ignore[override]
        return piece.tokens.numel()

    def compute_summed_loss(self, forward: Callable[..., Tensor], piece: Branches) -> Tensor:  # type: ignore[override]
        return compute_branch_loss(self.model, piece, self.options)

    def measure_heldout(self, heldout: BranchCorpus) -> tuple[float, float]:
        return measure_branches(self.model, heldout, self.options)
