"""What a model predicts at every token of given sequences, each read once from its beginning."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from chessreg.errors import BadInputError, DivergedError

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.models.language_model import LanguageModel


def next_token_logprobs(
    model: LanguageModel, sequences: Sequence[np.ndarray], batch: int = 32, masked: Collection[int] = ()
) -> Iterator[tuple[int, np.ndarray]]:
    """(its number, log-probabilities float32 [length, vocabulary] of what follows each token) of every sequence of
    token ids, the shortest first; `masked` tokens have probability 0.

    Raises BadInputError for a model that predicts actions, DivergedError for logits that are NaN or infinite.
    """
    if model.head != "next-token" or model.attention != "causal":
        raise BadInputError(f"a {model.adapter} model predicts no next token", "use a model of games")
    order = np.argsort([len(ids) for ids in sequences], kind="stable").tolist()
    for start in range(0, len(order), batch):
        numbers = order[start : start + batch]
        width = max(len(sequences[number]) for number in numbers)
        tokens = torch.zeros((len(numbers), width), dtype=torch.int64)
        for row, number in enumerate(numbers):
            ids = sequences[number]
            tokens[row, : len(ids)] = torch.from_numpy(np.asarray(ids).astype(np.int64))
        with torch.inference_mode():
            logits = model.logits(tokens).float()
            if not bool(logits.isfinite().all()):
                raise DivergedError("the model's logits are NaN or infinite")
            logits[..., sorted(masked)] = -torch.inf
            logprobs = logits.log_softmax(-1).cpu().numpy()
        for row, number in enumerate(numbers):
            yield number, logprobs[row, : len(sequences[number])]


def unused_ids(encoding: Encoding) -> frozenset[int]:
    """Tokens of the vocabulary that no game is written with: LCB's piece letters, masked in its evaluation."""
    return getattr(encoding, "masked_ids", frozenset())
