"""DeepMind's searchless chess transformer (Ruoss et al. 2024): from the 77 characters of a position to the best action,
or to buckets of the return of the position or of one action.

The blocks are Llama's without rotary positions: LayerNorm with offset before attention and before a gated MLP (SiLU),
no biases. Token embeddings are multiplied by sqrt(d_model). A token 0 precedes the 77 characters; the prediction is
made at the last token. `head` is "action" for behavioral cloning.

A model of action values reads the action as one more token from the same table. Hooks see only the 77 characters, so
that caches, probes and edits have the same positions in all three kinds. A pass without an action reads the first legal
one, by number, because the model was trained only with an action. An edit after the last block does not reach the
action, and so changes no action value.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chessreg.errors import BadInputError
from chessreg.models.adapters.base import ADAPTERS, AttentionKind, HeadKind
from chessreg.models.adapters.position_model import ACTIONS, CHARACTERS, TOKENS, PositionModel

RETURN_BUCKETS = 128
LONGEST_PERIOD = 1e4  # of the sinusoidal positions


@dataclass(frozen=True)
class SearchlessConfig:
    """The shape of a searchless chess model.

    `rows` is the size of the token table, `positions` that of the position table (None: sinusoids), `buckets` the
    number of return buckets of a value head.
    """

    n_layer: int
    n_head: int
    n_embd: int
    head: HeadKind = "action"
    attention: AttentionKind = "bidirectional"
    d_mlp: int | None = None
    rows: int = ACTIONS
    positions: int | None = TOKENS + 2
    buckets: int = RETURN_BUCKETS
    qk_norm: bool = False
    final_norm: bool = True

    def __post_init__(self) -> None:
        if self.n_embd % self.n_head:
            raise BadInputError(f"n_embd {self.n_embd} is not a multiple of n_head {self.n_head}")
        if self.rows < (min_rows := ACTIONS if self.head == "action-value" else CHARACTERS):
            raise BadInputError(
                f"a model with head {self.head} reads {min_rows} ids, but its table has {self.rows} rows"
            )
        if self.positions is not None and self.positions < self.length:
            raise BadInputError(
                f"a model with head {self.head} reads {self.length} tokens, but has {self.positions} positions"
            )

    @property
    def length(self) -> int:
        """The number of tokens read: one before the characters, the characters, and the action of an action-value
        model."""
        return 1 + TOKENS + (self.head == "action-value")

    @property
    def outputs(self) -> int:
        return ACTIONS if self.head == "action" else self.buckets


def make_sinusoids(length: int, width: int) -> Tensor:
    """Return Vaswani's positions, sines in the first half and cosines in the second: float32 [length, width]."""
    exponents = torch.arange(0, width + 1, 2, dtype=torch.float64) / width
    angles = torch.arange(length, dtype=torch.float64)[:, None] * LONGEST_PERIOD**-exponents
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width].float()


def find_first_legal_actions(tokens: Tensor) -> Tensor:
    """Return the lowest legal action of each position [batch, 77], 0 if none: int64 [batch]."""
    import chess

    from chessreg.encodings.fen77 import Fen77

    fen, actions = Fen77(), []
    for row in tokens.cpu().numpy():
        try:
            board = chess.Board(fen.decode(row))
        except (BadInputError, ValueError):  # not a position, as in a test with random tokens
            actions.append(0)
            continue
        actions.append(min((fen.action_ids[move.uci()] for move in board.legal_moves), default=0))
    return torch.tensor(actions, dtype=torch.int64, device=tokens.device)


class SearchlessAttention(nn.Module):
    """Self-attention without biases, optionally with normalized queries and keys."""

    def __init__(self, config: SearchlessConfig) -> None:
        super().__init__()
        width = config.n_embd
        self.n_head, self.causal = config.n_head, config.attention == "causal"
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.q_norm, self.k_norm = (nn.LayerNorm(width) if config.qk_norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention output float [batch, length, d_model] of the normalized residual."""
        parts = (self.q_norm(self.q(x)), self.k_norm(self.k(x)), self.v(x))
        q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in parts)
        values = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        output: Tensor = self.out(values.transpose(1, 2).flatten(2))
        return output


class SearchlessBlock(nn.Module):
    """Attention and a gated MLP, each after a LayerNorm, each added to the residual stream."""

    def __init__(self, config: SearchlessConfig) -> None:
        super().__init__()
        width, inner = config.n_embd, config.d_mlp or 4 * config.n_embd
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(width), SearchlessAttention(config), nn.LayerNorm(width)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, residual: Tensor) -> Tensor:
        """Return the residual after attention and a SwiGLU layer, float [batch, length, d_model]."""
        residual = residual + self.attn(self.ln_1(residual))
        x = self.ln_2(residual)
        output: Tensor = residual + self.down(F.silu(self.gate(x)) * self.up(x))
        return output


class SearchlessChess(PositionModel):
    """Maps token ids [batch, 77] to logits [batch, 1, actions or buckets].

    A model of action values also accepts [batch, 78], whose last column is the action.
    """

    architecture = "searchless-chess"
    title = "searchless chess model"
    config_type = SearchlessConfig
    config: SearchlessConfig

    def __init__(self, config: SearchlessConfig) -> None:
        super().__init__(config)
        self.head = config.head
        self.embed = nn.Embedding(config.rows, config.n_embd)
        if config.positions is not None:
            self.positions = nn.Embedding(config.positions, config.n_embd)
        self.h = nn.ModuleList(SearchlessBlock(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd) if config.final_norm else nn.Identity()
        self.head_matrix = nn.Linear(config.n_embd, config.outputs)

    def hidden(
        self, tokens: Tensor, positions: Tensor | None = None, cache: Any = None, mask: Tensor | None = None
    ) -> Tensor:
        return self.read(tokens)[:, 1 : 1 + TOKENS]

    def read(self, tokens: Tensor) -> Tensor:
        """Return the final hidden states [batch, 78 or 79, d_model] of the start token, the 77 characters of the FEN,
        and the action if `tokens` have one.

        Raises BadInputError for tokens of another length.
        """
        padded_tokens = F.pad(tokens, (1, 0))
        if self.head == "action-value" and tokens.shape[1] == TOKENS:
            padded_tokens = torch.cat([padded_tokens, find_first_legal_actions(tokens)[:, None]], 1)
        if padded_tokens.shape[1] != self.config.length:
            raise BadInputError(
                f"a {self.architecture} model reads {TOKENS} tokens, not {tokens.shape[1]}", "encode with fen-77"
            )
        embeddings = self.embedded.run_hooks(self.embed(padded_tokens) * math.sqrt(self.d_model))
        residual = self.first_residual.run_hooks(embeddings + self.places(padded_tokens.shape[1]).to(embeddings))
        for block, point in zip(self.h, self.after, strict=True):
            residual = point.run_hooks(block(residual))  # type: ignore[operator]
        return self.normalised.run_hooks(self.ln_f(residual))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [batch, 1, 1968], or [batch, 1, buckets] of the return; `tokens` as in `read`."""
        return self.unembed(self.read(tokens)[:, -1:])

    def places(self, length: int) -> Tensor:
        """Return the embeddings of the first positions, [length, d_model]."""
        if self.config.positions is None:
            return make_sinusoids(length, self.d_model)
        return self.positions.weight[:length]

    def unembed(self, hidden: Tensor) -> Tensor:
        """Return logits [..., 1968] over actions, or [..., buckets] over the return for a value head."""
        logits: Tensor = self.head_matrix(hidden)
        return logits

    def shape(self) -> dict[str, Any]:
        sizes = {"d_mlp": self.config.d_mlp or 4 * self.d_model, "block_size": TOKENS, "vocab_size": CHARACTERS}
        return {"family": self.architecture, **asdict(self.config), **sizes}

    def initialise(self) -> None:
        """Draw Haiku's initial weights: normal, truncated at two deviations.

        The deviation is 0.02 for tokens, 1 for positions, and 1 / sqrt(inputs) for matrices; biases are 0.
        """
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                deviation = 0.02 if module is self.embed else 1.0
            elif isinstance(module, nn.Linear):
                deviation = module.in_features**-0.5
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            else:
                continue
            nn.init.trunc_normal_(module.weight, 0.0, deviation, -2 * deviation, 2 * deviation)


ADAPTERS[SearchlessChess.architecture] = SearchlessChess
