"""Games that reach the same positions by other move orders, and a model that does not see the order."""

from __future__ import annotations

import chess
import chess.pgn
import torch

from chessreg.encodings import get_encoding
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo
from chessreg.models.language_model import LanguageModel
from chessreg.noise import generator

STEPS = {chess.WHITE: "a2a3 b2b4 c2c4 d2d3 e2e4 f2f3 g2g3 h2h4", chess.BLACK: "a7a6 b7b5 c7c5 d7d6 e7e5 f7f6 g7g6 h7h5"}


def shuffled_game(base: int, order: int, each: int = 4) -> chess.pgn.Game:
    """The same pawn steps of both sides for one `base`, in the order `order`; any order of them is legal. Of two bases,
    0 and 1, 2 and 3, …, one of White's pawns goes one square in the one and two in the other."""
    mixed = {}
    for side, steps in STEPS.items():
        chosen = generator("steps", base // 2, int(side)).permutation(steps.split())[:each]
        if side and base % 2:
            chosen[0] = chosen[0][:3] + ("4" if chosen[0][3] == "3" else "3")
        mixed[side] = generator("order", base, order, int(side)).permutation(chosen)
    game = chess.pgn.Game()
    game.headers.update({"Result": "*", "Round": f"{base}.{order}"})
    node: chess.pgn.GameNode = game
    for white, black in zip(mixed[chess.WHITE], mixed[chess.BLACK], strict=True):
        node = node.add_variation(chess.Move.from_uci(str(white))).add_variation(chess.Move.from_uci(str(black)))
    return game


def pgn_of_orders(bases: int = 12, orders: int = 4) -> str:
    """A PGN of such games."""
    return "".join(f"{shuffled_game(base, order)}\n\n" for base in range(bases) for order in range(orders))


def bag_of_tokens(name: str, order_matters: bool = False) -> LanguageModel:
    """One block whose attention averages all tokens before: its state depends on which squares occurred, hardly on
    their order; with `order_matters` on nothing but the place of the last token."""
    size = get_encoding(name).size
    network = make_random_gpt2(GPT2Config(n_layer=1, n_head=1, n_embd=64, block_size=128, vocab_size=size), 0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        block = network.h[0]
        block.ln_1.weight.fill_(1)
        random = torch.Generator().manual_seed(1)
        if order_matters:
            network.wpe.weight.normal_(generator=random)
        else:
            network.wte.weight.copy_(0.01 * torch.randn(size, 64, generator=random))
            block.attn.c_attn.weight[128:].copy_(torch.eye(64))
            block.attn.c_proj.weight.copy_(torch.eye(64))
        network.ln_f.weight.fill_(1)
    return LanguageModel(network, CheckpointInfo.from_network(network, name))
