"""Maia-2 (Tang et al. 2024, arXiv 2409.20553): a human-like policy that reads a position and the ratings of both
players.

Convolutions with residual connections read 18 planes of the board and give a few maps of its squares, called patches.
Each patch becomes a token of a transformer. Its queries also depend on the two ratings. The mean of the tokens after
the final norm gives a policy over 1,880 moves, facts about the next move (side info), and the expected result.

The board is that of the side to move, which plays upwards as White. The ratings are settings of the model, so the same
weights with other ratings are another checkpoint. The normalizations of the convolutions are part of their weights.

A patch is not a token of the position, so hooks see the mean of the patches, repeated at all 77 characters. A change of
the last one is added to every patch, which changes their mean by as much.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chessreg.errors import BadInputError
from chessreg.models.adapters.base import ADAPTERS, AttentionKind
from chessreg.models.adapters.position_model import CHARACTERS, TOKENS, CharacterHook, PositionModel

MOVES = 1880
SIDE_INFO = 6 + 6 + 1 + 64 + 64 + MOVES
"""Logits of the moved piece, the captured piece, check, the from-square, the to-square, and each move's legality."""
PLANES, VALUE_WIDTH = 18, 128
RATING_CATEGORIES = 11
LOWEST_RATING, HIGHEST_RATING, RATING_STEP = 1100, 2000, 100
CHARACTER_IDS = {character: number for number, character in enumerate("0123456789abcdefghpnrkqPBNRQKw.")}
CASTLING, EN_PASSANT_FILE, EN_PASSANT_RANK = slice(65, 69), 69, 70
"""Places of these fields in the 77 characters."""


def get_rating_category(rating: int) -> int:
    """Return Maia-2's category of a rating: 0 below 1100, 10 from 2000 on, and one for each 100 in between.

    >>> [get_rating_category(rating) for rating in (800, 1099, 1100, 1500, 1999, 2000, 2800)]
    [0, 0, 1, 5, 9, 10, 10]
    """
    inside = min(max(rating, LOWEST_RATING - RATING_STEP), HIGHEST_RATING)
    return (inside - LOWEST_RATING + RATING_STEP) // RATING_STEP


@functools.cache
def make_piece_tables() -> tuple[Tensor, Tensor]:
    """Return the piece planes of each character, float32 [31, 12], for White and for Black to move.

    The first six planes are the mover's pawns, knights, bishops, rooks, queens and kings.
    """
    white = torch.zeros(CHARACTERS, 12)
    for plane, character in enumerate("PNBRQKpnbrqk"):
        white[CHARACTER_IDS[character], plane] = 1
    return white, white.roll(6, 1)


def build_planes(tokens: Tensor) -> Tensor:
    """Return the planes float32 [batch, 18, 8, 8] of positions int [batch, 77], with the mover's first rank on top.

    Six planes of pieces for each side, one that is always 1, four of castling rights (the mover's first, king side
    first), and one of the en passant square.
    """
    black = tokens[:, 0] == CHARACTER_IDS["b"]
    tables = [table.to(tokens.device) for table in make_piece_tables()]
    squares = tokens[:, 1:65]
    pieces = torch.where(black[:, None, None], tables[1][squares], tables[0][squares])
    board = pieces.mT.unflatten(-1, (8, 8))  # rank 8 on top
    board = torch.where(black[:, None, None, None], board, board.flip(2))
    rights = tokens[:, CASTLING, None] == torch.tensor([CHARACTER_IDS[c] for c in "KQkq"], device=tokens.device)
    has_rights = rights.any(1)
    has_rights = torch.where(black[:, None], has_rights.roll(2, 1), has_rights)
    file = tokens[:, EN_PASSANT_FILE, None] - CHARACTER_IDS["a"] == torch.arange(8, device=tokens.device)
    rank = tokens[:, EN_PASSANT_RANK, None] - 1 == torch.arange(8, device=tokens.device)
    rank = torch.where(black[:, None], rank.flip(1), rank)
    en_passant_plane = (rank[:, :, None] & file[:, None]).float()
    ones = torch.ones_like(en_passant_plane)
    castling = has_rights.float()[:, :, None, None] * ones[:, None]
    return torch.cat([board, ones[:, None], castling, en_passant_plane[:, None]], 1)


@dataclass(frozen=True)
class Maia2Config:
    """The shape of a Maia-2 model, and the ratings of the side to move and its opponent (Lichess)."""

    n_layer: int
    n_head: int
    n_embd: int
    d_head: int
    d_mlp: int
    patches: int
    channels: int
    convolutions: int
    d_rating: int
    rating: int = 1500
    opponent_rating: int = 1500

    @property
    def attention(self) -> AttentionKind:
        return "bidirectional"


class MeanHook(CharacterHook):
    """A hook point whose output is the mean of the patches, at each of the 77 characters."""

    def run_hooks(self, residual: Tensor) -> Tensor:
        """Pass the mean of the patches [batch, patches, d_model] through the hooks. Without hooks nothing is
        computed."""
        if not self._forward_hooks:
            return residual
        mean = residual.mean(1, keepdim=True).expand(-1, TOKENS, -1)
        output: Tensor = self(mean)
        return residual if output is mean else residual + (output[:, -1:] - mean[:, -1:])


class ResidualConvolutions(nn.Module):
    """Two convolutions whose sum with the input is rectified."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, maps: Tensor) -> Tensor:
        return F.relu(maps + self.second(F.relu(self.first(maps))))


class RatingAttention(nn.Module):
    """Self-attention whose queries also depend on the ratings."""

    def __init__(self, config: Maia2Config) -> None:
        super().__init__()
        inner = config.n_head * config.d_head
        self.n_head = config.n_head
        self.qkv = nn.Linear(config.n_embd, 3 * inner, bias=False)
        self.of_ratings = nn.Linear(2 * config.d_rating, inner, bias=False)
        self.out = nn.Linear(inner, config.n_embd)

    def forward(self, x: Tensor, ratings: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        parts = (q + self.of_ratings(ratings), k, v)
        q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in parts)
        values = F.scaled_dot_product_attention(q, k, v)
        output: Tensor = self.out(values.transpose(1, 2).flatten(2))
        return output


class Maia2Block(nn.Module):
    """Attention and an MLP (GELU), each after a LayerNorm, each added to the residual stream."""

    def __init__(self, config: Maia2Config) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = (
            nn.LayerNorm(config.n_embd),
            RatingAttention(config),
            nn.LayerNorm(config.n_embd),
        )
        self.up, self.down = nn.Linear(config.n_embd, config.d_mlp), nn.Linear(config.d_mlp, config.n_embd)

    def forward(self, residual: Tensor, ratings: Tensor) -> Tensor:
        residual = residual + self.attn(self.ln_1(residual), ratings)
        output: Tensor = residual + self.down(F.gelu(self.up(self.ln_2(residual))))
        return output


class Maia2(PositionModel):
    """Maps token ids [batch, 77] to logits [batch, 1, 1880] over moves as the side to move sees them."""

    architecture = "maia-2"
    title = "Maia-2 model"
    config_type = Maia2Config
    hook_type = MeanHook
    config: Maia2Config
    head = "action"
    outputs = MOVES

    def __init__(self, config: Maia2Config) -> None:
        super().__init__(config)
        self.stem = nn.Conv2d(PLANES, config.channels, 3, padding=1)
        self.cnn = nn.ModuleList(ResidualConvolutions(config.channels) for _ in range(config.convolutions))
        self.to_patches = nn.Conv2d(config.channels, config.patches, 3, padding=1)
        self.embed, self.embed_norm = nn.Linear(64, config.n_embd), nn.LayerNorm(config.n_embd)
        self.positions = nn.Embedding(config.patches, config.n_embd)
        self.ratings = nn.Embedding(RATING_CATEGORIES, config.d_rating)
        self.h = nn.ModuleList(Maia2Block(config) for _ in range(config.n_layer))
        self.ln_f, self.head_norm = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.policy = nn.Linear(config.n_embd, MOVES)
        self.side_info = nn.Linear(config.n_embd, SIDE_INFO)
        self.value_in, self.value_out = nn.Linear(config.n_embd, VALUE_WIDTH), nn.Linear(VALUE_WIDTH, 1)

    def hidden(
        self, tokens: Tensor, positions: Tensor | None = None, cache: Any = None, mask: Tensor | None = None
    ) -> Tensor:
        return self.read(tokens).expand(-1, TOKENS, -1)

    def read(self, tokens: Tensor) -> Tensor:
        """Return the mean of the patches after the final norm, [batch, 1, d_model].

        Raises BadInputError for tokens of another length.
        """
        if tokens.shape[1] != TOKENS:
            raise BadInputError(
                f"a {self.architecture} model reads {TOKENS} tokens, not {tokens.shape[1]}", "encode with maia-2"
            )
        maps = F.relu(self.stem(build_planes(tokens).to(self.stem.weight.dtype)))
        for block in self.cnn:
            maps = block(maps)
        embeddings = self.embedded.run_hooks(self.embed_norm(self.embed(self.to_patches(maps).flatten(2))))
        residual = self.first_residual.run_hooks(embeddings + self.positions.weight)
        categories = [get_rating_category(rating) for rating in (self.config.rating, self.config.opponent_rating)]
        ratings = self.ratings.weight[categories].flatten()
        for block, point in zip(self.h, self.after, strict=True):
            residual = point.run_hooks(block(residual, ratings))  # type: ignore[operator]
        return self.normalised.run_hooks(self.ln_f(residual)).mean(1, keepdim=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.unembed(self.read(tokens))

    def unembed(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.policy(self.head_norm(hidden))
        return logits

    def predict_heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the policy logits [batch, 1880], the side info logits [batch, 2021] and the value [batch].

        The value estimates the result for the side to move: 1 a win, 0 a draw, -1 a loss.
        """
        hidden = self.head_norm(self.read(tokens)[:, 0])
        value: Tensor = self.value_out(F.relu(self.value_in(hidden)))
        return self.policy(hidden), self.side_info(hidden), value[:, 0]

    def shape(self) -> dict[str, Any]:
        return {"family": self.architecture, **asdict(self.config), "block_size": TOKENS, "vocab_size": CHARACTERS}

    def count_parameters(self) -> tuple[int, int]:
        total = sum(p.numel() for p in self.parameters())
        excluded_modules = (self.positions, self.ratings, self.policy, self.side_info, self.value_in, self.value_out)
        return total, total - sum(p.numel() for module in excluded_modules for p in module.parameters())

    def initialise(self) -> None:
        """Draw initial weights as Maia-2 does: PyTorch's defaults, which the constructor draws."""


ADAPTERS[Maia2.architecture] = Maia2
