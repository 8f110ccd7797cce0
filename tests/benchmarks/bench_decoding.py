"""New tokens a second: a full recompute for every token against a session that lives from move to move.

    python tests/benchmarks/bench_decoding.py [--games 64] [--turns 5] [--threads 1] [--checkpoint FOLDER]

Both ways use the same model object, dtype and threads and write the same tokens, greedily; only the loop differs. One
turn is: the opponent's text (5 tokens) comes, the model writes 6. Games begin with 200 to 400 tokens. The plain way is
timed on a few games, one at a time. A checkpoint changes nothing but its size: without one, a random 8 x 192 is used.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import chess
import numpy as np
import torch

from chessreg.encodings import get_encoding
from chessreg.models.adapters.gpt2 import GPT2Config, make_random_gpt2
from chessreg.models.decoding.legal import score_legal_moves
from chessreg.models.decoding.session import DecodingSession
from chessreg.models.language_model import LanguageModel

WRITTEN, ANSWER = 6, 5


def greedy_plain(model: LanguageModel, tokens: list[int]) -> list[int]:
    """One game, one token at a time, everything recomputed."""
    new: list[int] = []
    for _ in range(WRITTEN):
        new.append(int(model.logits(torch.tensor([tokens + new]))[0, -1].argmax()))
    return new


def greedy_session(session: DecodingSession) -> list[list[int]]:
    """All games at once, from the log-probabilities that the session has."""
    written: list[list[int]] = [[] for _ in range(len(session))]
    for _ in range(WRITTEN):
        chosen = session.logprobs.argmax(-1).tolist()
        for row, token in zip(written, chosen, strict=True):
            row.append(token)
        session.feed([[token] for token in chosen])
    return written


def bench(model: LanguageModel, games: int, turns: int, plain_games: int = 3) -> dict[str, float]:
    rng = np.random.default_rng(0)
    prefixes = [rng.integers(0, 32, int(n)).tolist() for n in rng.integers(200, 400, games)]
    answers = rng.integers(0, 32, (turns, games, ANSWER)).tolist()
    session = DecodingSession(model, games)
    started = time.perf_counter()
    session.feed(prefixes)
    prefill = time.perf_counter() - started
    started = time.perf_counter()
    first: list[list[int]] = []
    for turn in range(turns):
        session.feed(answers[turn])
        written = greedy_session(session)
        first = first or written
    decoding = time.perf_counter() - started
    started = time.perf_counter()
    plain_games = min(plain_games, games)
    for game in range(plain_games):
        new = greedy_plain(model, prefixes[game] + answers[0][game])
        assert new == first[game], "the two ways must write the same"
    plain = time.perf_counter() - started
    pgn = get_encoding("pgn-char-32")
    started = time.perf_counter()
    score_legal_moves(session, [chess.Board()] * games, pgn)
    legal = time.perf_counter() - started
    new_tokens = games * turns * WRITTEN
    rates = {
        "plain_tokens_per_second": plain_games * WRITTEN / plain,
        "session_tokens_per_second": new_tokens / decoding,
        "session_tokens_per_second_with_prefill": new_tokens / (decoding + prefill),
        "legal_positions_per_second": games / legal,
    }
    return rates | {"ratio": rates["session_tokens_per_second"] / rates["plain_tokens_per_second"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = GPT2Config(n_layer=8, n_head=6, n_embd=192, block_size=1023, vocab_size=32)
    model = LanguageModel.load(options.checkpoint) if options.checkpoint else LanguageModel(make_random_gpt2(config, 0))
    print(json.dumps({name: round(value, 1) for name, value in bench(model, options.games, options.turns).items()}))


if __name__ == "__main__":
    main()
