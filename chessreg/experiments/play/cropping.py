"""Reading on past the model's last position: the oldest text is dropped, character by character (specification 7.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chessreg.encodings.tokenizers import Tokenizer
from chessreg.models.decoding import DecodingSession
from chessreg.models.sampling import Key, draw
from chessreg.noise import uniform


def sample_cropped(
    session: DecodingSession,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    keys: Sequence[Key],
    *,
    temperature: float,
    max_tokens: int,
) -> list[list[int]]:
    """One move's tokens after each prompt, each drawn from the newest tokens that the model can hold; a stop token too.

    Every step moves every token to another position, so nothing is kept: a whole pass for each token. The draws are
    those of `sample_moves` with the same keys. `session` gives the model and the edits and stays as it is.
    """
    scratch = session.model.session(len(prompts), session.edits)
    block = session.model.block_size
    written: list[list[int]] = [[] for _ in prompts]
    active = list(range(len(prompts)))
    for step in range(max_tokens):
        contexts = [[*prompt, *new][-block:] for prompt, new in zip(prompts, written, strict=True)]
        scratch.sync([contexts[r] if r in active else scratch.tokens[r] for r in range(len(prompts))])
        logprobs = scratch.logprobs[active].cpu().numpy()
        noise = np.array([uniform(*keys[r], step) if temperature > 0 else 0.0 for r in active])
        for r, token in zip(active, draw(logprobs, np.full(len(active), temperature), noise), strict=True):
            written[r].append(int(token))
        active = [r for r in active if written[r][-1] not in tokenizer.stop_ids]
        if not active:
            break
    return written
