"""Edits that read the next token: edits a CPU second against the author's loop, and the share of bare forward passes.

    python tests/benchmarks/bench_next_token.py [--games 40] [--plain-games 2] [--layers 8] [--width 192]

Both ways use the same untrained model of UCI squares, random games, the seven prefixes of Davis's code, every layer,
and three edits of equation 1: of a probe's direction, of a random one, and of the later board's residual. The author
takes one game, prefix and layer at a time: a clean pass over the longer prefix as far as the layer, and one over the
prefix for each edit, with a hook on the block. Ours reads a game once and computes only the last token above the edited
layer, all prefixes, layers and edits together. Both must give the same distributions, to 1e-4. Goals: 30 times the
edits per CPU second, and 60 % of the rate of the bare forward passes of the same tokens. `per_600_s`: edits that ten
minutes of one core make. CPU seconds of this process count, so other work on the machine disturbs little.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch

from chessreg.encodings import get_encoding
from chessreg.games.boards.openings import OpeningSpec, make_openings
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.checkpoint import CheckpointInfo
from chessreg.models.decoding.next_tokens import NextTokens
from chessreg.models.edits import ResidualEdit
from chessreg.models.hook_points import format_hook_point
from chessreg.models.language_model import LanguageModel

PREFIXES = (4, 9, 14, 19, 24, 29, 34)
LATER, ALPHA, KINDS = 6, 0.5, 3


def prompts_of(count: int) -> list[dict[int, tuple[int, ...]]]:
    """Of each random game the tokens after 0 to 40 plies."""
    written = get_encoding("uci-square-72")
    games = make_openings(OpeningSpec("random", "40"), 0, range(count))
    return [{ply: written.prompt(game.sans[:ply]) for p in PREFIXES for ply in (p, p + LATER)} for game in games]


def unit(vectors: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(vectors, dim=-1)


def author(model: LanguageModel, games: list[dict[int, tuple[int, ...]]], vectors: torch.Tensor) -> np.ndarray:
    """Probabilities [game, prefix, layer, edit, 72], one pass of one sequence after the other."""
    norm, made = model.network.norm().forward, []
    for number, game in enumerate(games):
        for place, plies in enumerate(PREFIXES):
            for layer in range(model.n_layers):
                tokens, longer = (torch.tensor([game[p]]) for p in (plies, plies + LATER))
                patch = model.activations(longer, [format_hook_point(layer)])[format_hook_point(layer)][0, -1]
                own = [*vectors[number, place, layer], unit(patch)]
                for vector in own:
                    edit = ResidualEdit(layer, vector, ALPHA, "last", reference=norm)
                    made.append(model.logits(tokens, edits=[edit])[0, -1].softmax(-1).numpy())
    return np.array(made).reshape(len(games), len(PREFIXES), model.n_layers, KINDS, -1)


def ours(model: LanguageModel, games: list[dict[int, tuple[int, ...]]], vectors: torch.Tensor) -> np.ndarray:
    """The same."""
    rows = [game[PREFIXES[-1] + LATER] for game in games]
    ends = [(row, len(game[plies]) - 1) for row, game in enumerate(games) for plies in PREFIXES]
    ends += [(row, len(game[plies + LATER]) - 1) for row, game in enumerate(games) for plies in PREFIXES]
    tokens = NextTokens(model, rows, ends, range(model.n_layers))
    sites, made = np.arange(len(games) * len(PREFIXES)), []
    for layer in range(model.n_layers):
        fixed = vectors[:, :, layer].reshape(len(sites), KINDS - 1, -1)
        patch = unit(tokens.residual(layer)[len(sites) :])[:, None]
        own = torch.cat([fixed, patch], 1).reshape(len(sites) * KINDS, -1)
        edit = ResidualEdit(layer, own, ALPHA, "last", reference=model.network.norm().forward)
        made.append(tokens.predict_edited(np.repeat(sites, KINDS), [edit]).exp().numpy())
    shape = len(games), len(PREFIXES), KINDS, -1
    return np.stack([layer.reshape(shape) for layer in made], 2)


def bare(model: LanguageModel, games: list[dict[int, tuple[int, ...]]]) -> None:
    """The forward passes alone: every game's tokens once, and each edited token through the blocks above its layer."""
    longest = torch.tensor([game[PREFIXES[-1] + LATER] for game in games])
    model.logits(longest)
    count = len(games) * len(PREFIXES) * KINDS
    residual = torch.zeros(count, 1, model.d_model)
    with torch.inference_mode():
        for layer in range(model.n_layers):
            model.network.unembed(model.network.hidden(residual[:, :, 0].long(), after=(layer, residual)))  # type: ignore[call-arg]


def seconds(work, *arguments) -> tuple[float, object]:
    start = time.process_time()
    result = work(*arguments)
    return time.process_time() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("games", 40), ("plain-games", 2), ("layers", 8), ("width", 192)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    torch.set_num_threads(1)
    network = make_random_gpt2(GPT2Config(given.layers, 8, given.width, 512, 72), 0)
    model = LanguageModel(network, CheckpointInfo.from_network(network, "uci-square-72"))
    games = [game for game in prompts_of(2 * given.games) if len(game[40]) == 81][: given.games]
    drawn = torch.randn(len(games), len(PREFIXES), given.layers, KINDS - 1, given.width,
                        generator=torch.Generator().manual_seed(0))  # fmt: skip
    vectors = unit(drawn)
    ours(model, games[:1], vectors[:1])
    plain, expected = seconds(author, model, games[: given.plain_games], vectors)
    fast, found = seconds(ours, model, games, vectors)
    floor, _ = seconds(bare, model, games)
    assert np.abs(found[: given.plain_games] - expected).max() < 1e-4
    each = len(PREFIXES) * given.layers * KINDS
    rates = {"author": given.plain_games * each / plain, "ours": len(games) * each / fast}
    print(json.dumps({
        "edits": len(games) * each,
        "author_edits_per_cpu_second": round(rates["author"], 1),
        "edits_per_cpu_second": round(rates["ours"], 1),
        "times_the_author": round(rates["ours"] / rates["author"], 1),
        "share_of_bare_passes": round(floor / fast, 3),
        "per_600_s": round(600 * rates["ours"]),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
