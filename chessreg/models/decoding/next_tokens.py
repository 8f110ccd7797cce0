"""Log-probabilities after chosen tokens, for the clean model and under many edits of each of these tokens.

Rows are read once. An edit of the last token leaves all earlier ones unchanged, so only the chosen token is recomputed,
above the first edited layer, against the keys and values of its row: all edits of all tokens in one pass. The edited
passes are those of a session (`DecodingSession.forward`, passes.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from chessreg.errors import BadInputError, DivergedError
from chessreg.models.decoding.passes import RaggedTokens
from chessreg.models.decoding.session import PREFILL_TOKENS, ContextFullError, group_by_length, open_decoding_session
from chessreg.models.decoding.tree import TREE_TOKENS
from chessreg.models.edits import ResidualEdit
from chessreg.models.hook_points import format_hook_point

if TYPE_CHECKING:
    from chessreg.encodings import Encoding
    from chessreg.models.language_model import LanguageModel


ROW_TOKENS = 256  # maximum edited tokens of one row per pass; limits the columns of the cache, not the results


class NextTokens:
    """Log-probabilities after the chosen tokens of some rows, clean and edited.

    Equal to a full pass over the prefix that ends at the chosen token, to about 1e-5.
    """

    def __init__(
        self,
        model: LanguageModel,
        rows: Sequence[Sequence[int]],
        sites: Sequence[tuple[int, int]],
        layers: Sequence[int],
    ) -> None:
        """`rows` are token ids, `sites` (row, index of a token); the blocks' outputs of `layers` are kept at the sites.

        Raises ContextFullError for rows longer than the model's context, DivergedError for NaN, BadInputError for a
        model of values.
        """
        model.check_writes()
        full_rows = [number for number, row in enumerate(rows) if len(row) > model.block_size]
        if full_rows:
            raise ContextFullError(full_rows, model.block_size)
        self.model, self.layers = model, sorted(set(layers))
        self.row = np.array([row for row, _ in sites], np.int64)
        self.token = np.array([token for _, token in sites], np.int64)
        lengths = np.array([len(row) for row in rows], np.int64)
        if len(self.row) and not bool(((self.token >= 0) & (self.token < lengths[self.row])).all()):
            raise BadInputError("a site must be the index of a token of its row")
        self._session = open_decoding_session(model, len(rows))
        self._session.tokens = [list(row) for row in rows]
        shape = len(self.layers), len(sites), model.d_model
        self.residuals = torch.zeros(shape, dtype=model.dtype, device=model.device)
        """The outputs of the blocks at the sites, [layers, sites, d_model], clean."""
        self.logprobs = torch.zeros(len(sites), model.outputs, device=model.device)
        """Of the clean model, float32 [sites, outputs]."""
        order = np.argsort(lengths, kind="stable").tolist()
        for group in group_by_length(order, [int(lengths[row]) for row in order], PREFILL_TOKENS):
            self._read(sorted(group))

    def __len__(self) -> int:
        return len(self.row)

    def residual(self, layer: int) -> Tensor:
        """Return the clean output of a block at the sites, [sites, d_model]."""
        return self.residuals[self.layers.index(layer)]

    @torch.inference_mode()
    def predict_edited(self, sites: Sequence[int] | np.ndarray, edits: Sequence[ResidualEdit]) -> Tensor:
        """Return log-probabilities float32 [n, outputs] after these sites under edits of their tokens; sites may
        repeat.

        Edits are ordered by layer, with a direction for each of the n (or one for all). Raises DivergedError if the
        edited model's logits are NaN.
        """
        site_indices = np.asarray(sites, np.int64)
        first_layer = min(edit.layer for edit in edits)
        if first_layer not in self.layers:
            raise BadInputError(f"the output of layer {first_layer} was not kept at these sites")
        for edit in edits:
            if edit.per_row and edit.rows != len(site_indices):
                raise BadInputError(f"the edit has {edit.rows} directions, but there are {len(site_indices)} sites")
        logprobs = self.logprobs[torch.from_numpy(site_indices).to(self.model.device)]
        edited_sites = np.flatnonzero(
            ~np.all([np.broadcast_to(has_zero_scale(edit), len(site_indices)) for edit in edits], axis=0)
        )
        order = edited_sites[np.argsort(self.row[site_indices[edited_sites]], kind="stable")]
        for part in split_passes(self.row[site_indices[order]]):
            batch_sites = order[part]
            logprobs[torch.from_numpy(batch_sites).to(logprobs.device)] = self._compute_edited(
                batch_sites, site_indices[batch_sites], edits, first_layer
            )
        return logprobs

    def _compute_edited(
        self, owners: np.ndarray, sites: np.ndarray, edits: Sequence[ResidualEdit], first_layer: int
    ) -> Tensor:
        """Return log-probabilities float32 [n, outputs] of one pass over these edited tokens; `first_layer` is the
        first edited layer.
        """
        session = self._session
        rows, counts = np.unique(self.row[sites], return_counts=True)
        lengths = np.array([len(session.tokens[row]) for row in rows], np.int64)
        visible_masks, begin = [], 0
        for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
            before = self.token[sites[begin : begin + count]]
            mask = np.zeros((count, length + count), bool)
            mask[:, :length] = np.arange(length) < before[:, None]
            mask[np.arange(count), length + np.arange(count)] = True
            visible_masks.append(mask)
            begin += count
        ids = np.array(
            [session.tokens[row][token] for row, token in zip(self.row[sites], self.token[sites], strict=True)]
        )
        after = first_layer, self.residual(first_layer)[torch.from_numpy(sites).to(self.model.device)]
        masks = [None] * len(edits)
        new = RaggedTokens(rows.tolist(), counts, lengths, ids, self.token[sites], visible_masks, masks, owners, after)
        return self._head(session.forward(new, edits=edits), "the edited model's logits are NaN", "a smaller scale")

    @torch.inference_mode()
    def _read(self, rows: list[int]) -> None:
        """Run one clean pass over complete rows."""
        session = self._session
        counts = np.array([len(session.tokens[row]) for row in rows], np.int64)
        starts = dict(zip(rows, (np.cumsum(counts) - counts).tolist(), strict=True))
        sites = np.flatnonzero(np.isin(self.row, rows))
        places = [starts[row] + token for row, token in zip(self.row[sites], self.token[sites], strict=True)]
        at = torch.tensor(places, dtype=torch.int64, device=self.model.device)
        site_tensor = torch.from_numpy(sites).to(self.model.device)
        points = {format_hook_point(layer): place for place, layer in enumerate(self.layers)}

        def keep(point: str, residual: Tensor) -> None:
            self.residuals[points[point], site_tensor] = residual[at]

        ids = np.concatenate([np.array(session.tokens[row], np.int64) for row in rows])
        positions = np.concatenate([np.arange(count) for count in counts])
        new = RaggedTokens(rows, counts, np.zeros_like(counts), ids, positions, None, [])
        hidden = session.forward(new, keep, (), points)
        self.logprobs[site_tensor] = self._head(hidden[at], "the model's logits are NaN: its activations overflow")

    def _head(self, hidden: Tensor, problem: str, hint: str = "") -> Tensor:
        """Return log-probabilities of final hidden states. Raises DivergedError with `problem` for NaN."""
        logprobs = torch.log_softmax(self.model.network.unembed(hidden).float(), -1)
        if bool(logprobs.isnan().any()):
            raise DivergedError(problem, hint)
        return logprobs


def has_zero_scale(edit: ResidualEdit) -> np.ndarray:
    """Return whether an edit has length 0, bool, for each of its rows; it then equals the clean model bit for bit."""
    scale = edit.scale
    return np.asarray(scale.cpu() == 0 if isinstance(scale, Tensor) else scale == 0)


def split_passes(rows: np.ndarray) -> list[slice]:
    """Return slices of ascending row numbers int [n], one per pass: at most TREE_TOKENS, and at most ROW_TOKENS of one
    row."""
    stretches, begin, pass_rows = [], 0, 0
    for place in range(len(rows)):
        pass_rows = pass_rows + 1 if place > begin and rows[place] == rows[place - 1] else 1
        if place - begin >= TREE_TOKENS or pass_rows > ROW_TOKENS:
            stretches.append(slice(begin, place))
            begin, pass_rows = place, 1
    return [*stretches, slice(begin, len(rows))] if len(rows) else []


def iterate_next_token_logprobs(
    model: LanguageModel, sequences: Sequence[np.ndarray], batch: int = 32, masked_ids: Collection[int] = ()
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (number, log-probabilities float32 [length, vocabulary] after each token) of every sequence, shortest
    first.

    Tokens in `masked_ids` have probability 0. Raises BadInputError for a model that predicts actions, DivergedError for
    NaN or infinite logits.
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
            logits[..., sorted(masked_ids)] = -torch.inf
            logprobs = logits.log_softmax(-1).cpu().numpy()
        for row, number in enumerate(numbers):
            yield number, logprobs[row, : len(sequences[number])]


def get_masked_ids(encoding: Encoding) -> frozenset[int]:
    """Return the ids that no game contains and that the evaluation masks, such as the piece letters of Toshniwal's LCB
    models. Empty for other encodings."""
    return getattr(encoding, "masked_ids", frozenset())
