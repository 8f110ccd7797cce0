"""A loaded checkpoint: logits, residual streams of chosen layers, and decoding sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from chessreg.errors import BadInputError, DivergedError, NotFoundError
from chessreg.models.adapters.base import VALUE_HEADS, AttentionKind, HeadKind, Network
from chessreg.models.checkpoint import CheckpointInfo, load_model, read_info
from chessreg.models.edits import ResidualEdit, apply_edits, get_token_mask
from chessreg.models.hook_points import format_hook_point

if TYPE_CHECKING:
    from chessreg.encodings import Encoding


class _LastPointReachedError(Exception):
    """Raised at the last wanted hook point, to skip the rest of the pass."""


TokenIds = Tensor | np.ndarray | Sequence[int] | Sequence[Sequence[int]]
"""Token ids: [batch, length], or one sequence [length], as `encoding.encode` returns it."""


class LanguageModel:
    """A checkpoint in memory with its chessreg.json (`info`). Layers are 0-based.

    The weights are in `network` and never change: hooks and edits are registered for one pass and removed.
    """

    def __init__(
        self, network: Network, info: CheckpointInfo | None = None, name: str = "model", folder: Path | None = None
    ) -> None:
        """`folder` is the checkpoint's folder; a model that reads prompts needs it for its tokenizer."""
        self.network = network.eval()
        self.info = info or CheckpointInfo.from_network(network, "pgn-char-32")
        self.name, self.folder = name, folder

    @classmethod
    def load(
        cls, folder: Path | str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
    ) -> LanguageModel:
        """Return the checkpoint in this folder, computing in `dtype`, which may differ from the stored dtype.

        Raises NotFoundError or BadInputError as `checkpoint.read_info` and `checkpoint.load_model` do.
        """
        folder = Path(folder)
        return cls(load_model(folder, dtype).to(device), read_info(folder), folder.name, folder)

    @cached_property
    def encoding(self) -> Encoding:
        """The model's encoding. Only this imports python-chess; tensors need no encoding."""
        from chessreg.encodings import get_encoding

        return get_encoding(self.info.encoding, self.folder)

    @property
    def attention(self) -> AttentionKind:
        """The tokens that a token sees: "causal" (earlier ones) or "bidirectional" (all)."""
        return self.network.attention

    @property
    def head(self) -> HeadKind:
        """The prediction: the next token after each token, the best action, or the return of actions or positions."""
        return self.network.head

    @property
    def adapter(self) -> str:
        """The name of its architecture, and of the adapter that serves it."""
        return self.network.architecture

    @property
    def residual(self) -> Literal["raw", "centred"]:
        return self.info.residual

    @property
    def n_layers(self) -> int:
        return self.network.n_layer

    @property
    def d_model(self) -> int:
        return self.network.d_model

    @property
    def block_size(self) -> int:
        return self.network.block_size

    @property
    def vocab_size(self) -> int:
        """The number of ids that it reads."""
        return self.network.vocab_size

    @property
    def outputs(self) -> int:
        """The number of ids that it writes: its vocabulary, or actions."""
        return self.network.outputs

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return self.network.blocks

    @torch.inference_mode()
    def logits(self, tokens: TokenIds, *, edits: Sequence[ResidualEdit] = (), lengths: Tensor | None = None) -> Tensor:
        """Return logits [batch, length, outputs] of token ids [batch, length]; for other heads [batch, 1, outputs or
        buckets].

        Rows may be padded on the right if attention is causal. `lengths` [batch] are the rows' unpadded lengths, needed
        by edits at the last position of padded rows.
        """
        tokens = to_batch(tokens)
        self._check(tokens)
        with apply_edits(self.network, self._build_token_masks(edits, tokens, lengths)):
            logits: Tensor = self.network(tokens.to(self.device))
        return logits

    @torch.inference_mode()
    def return_log_probs(
        self, tokens: Tensor, actions: Tensor | None = None, *, edits: Sequence[ResidualEdit] = ()
    ) -> Tensor:
        """Return log-probabilities float32 [batch, buckets] of the return of positions [batch, 77], for the side to
        move.

        For a model of action values, of `actions` int64 [batch] in these positions.
        """
        self._check(tokens)
        tokens = tokens.to(self.device)
        with apply_edits(self.network, self._build_token_masks(edits, tokens, None)):
            all_tokens = tokens if actions is None else torch.cat([tokens, actions.to(self.device)[:, None]], 1)
            return torch.log_softmax(self.network(all_tokens)[:, 0].float(), -1)

    @torch.inference_mode()
    def residuals(
        self,
        tokens: Tensor,
        layers: Sequence[int],
        positions: Tensor | None = None,
        *,
        edits: Sequence[ResidualEdit] = (),
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Return `blocks.L.hook_resid_post` for each of `layers`: [layers, batch, length, d_model], in the model's
        dtype.

        One forward pass, which ends at the last wanted layer and computes no logits. `positions` int [batch, n]
        restricts the result to [layers, batch, n, d_model]. Padding on the right is harmless if attention is causal.
        Edits are applied first, so their own layer is edited in the result. Raises NotFoundError for an unknown layer.
        """
        wanted_points = [format_hook_point(self._check_layer(layer)) for layer in layers]
        return self._read_hook_points(tokens, wanted_points, positions, edits, lengths)

    @torch.inference_mode()
    def _read_hook_points(
        self,
        tokens: Tensor,
        wanted_points: Sequence[str],
        positions: Tensor | None = None,
        edits: Sequence[ResidualEdit] = (),
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Return the activations at hook points of the network itself, like `residuals`."""
        self._check(tokens)
        indices = None if positions is None else positions.to(self.device, torch.int64)[:, :, None]
        length = tokens.shape[1] if positions is None else positions.shape[1]
        out = torch.empty(len(wanted_points), len(tokens), length, self.d_model, dtype=self.dtype, device=self.device)

        def keep(name: str, residual: Tensor) -> None:
            chosen_residual = (
                residual if indices is None else residual.gather(1, indices.expand(-1, -1, residual.shape[-1]))
            )
            for place, other in enumerate(wanted_points):
                if other == name:
                    out[place] = chosen_residual

        if wanted_points:
            with (
                apply_edits(self.network, self._build_token_masks(edits, tokens, lengths)),
                self.watch_hook_points(set(wanted_points), keep, True),
            ):
                self.network.hidden(tokens.to(self.device))
        return out

    def check_answers(self) -> None:
        """Raise BadInputError for a model that cannot write the answers of its encoding."""
        answers = self.encoding.answer_size
        if answers > self.outputs:
            raise BadInputError(
                f"{self.info.encoding} has {answers:,} answers, but a {self.adapter} model has {self.outputs} outputs",
                "chessreg run train --architecture fen-encoder --help",
            )

    def check_writes(self) -> None:
        """Raise BadInputError for a model of values, which writes no tokens."""
        if self.head in VALUE_HEADS:
            raise BadInputError(
                f"a model with the head {self.head} predicts returns and writes no tokens",
                "its legal moves are scored by `chessreg run move-accuracy` and `chessreg run edit`",
            )

    def bridge(self, hook_points: Sequence[str] = ()) -> Any:
        """Return a TransformerBridge on which these TransformerLens hook points fire, for custom hooks.

        Raises NotFoundError for a name that no such model has. See adapters/bridge.py.
        """
        from chessreg.models.adapters.bridge import open_bridge

        return open_bridge(self.network, hook_points)

    def activations(self, tokens: TokenIds, hook_points: Sequence[str]) -> dict[str, Tensor]:
        """Return {TransformerLens name: activation [batch, length, …]} from one pass, each in its hook's dtype.

        No bridge is built for hook points of the adapter (`network.hook_points`). Raises NotFoundError for an unknown
        name.
        """
        tokens = to_batch(tokens)
        names = list(dict.fromkeys(hook_points))
        if self.network.hook_points.keys() >= set(names):
            return dict(zip(names, self._read_hook_points(tokens, names), strict=True))
        with torch.inference_mode():
            _, cache = self.bridge(hook_points).run_with_cache(tokens.to(self.device), names_filter=list(hook_points))
        return {name: cache[name] for name in hook_points}  # the cache also has aliases of a hook

    @torch.inference_mode()
    def activations_at(
        self, tokens: Tensor, hook_points: Sequence[str], row: Tensor, token: Tensor
    ) -> dict[str, Tensor]:
        """Return {TransformerLens name: activation [n, …]} at tokens `token` int64 [n] of rows `row` int64 [n].

        If the last hook point is a block with `at_places` (see Network), that block computes only these tokens.
        """
        at = row.to(self.device), token.to(self.device)
        points, picked_activations = self.network.hook_points, dict[str, Tensor]()
        if not points.keys() >= set(hook_points):
            return {name: activation[at] for name, activation in self.activations(tokens, hook_points).items()}
        self._check(tokens)
        last_point = next(name for name in reversed(points) if name in hook_points)

        def keep(name: str, residual: Tensor) -> None:
            picked_activations[name] = residual[at]

        def end(block: Any, arguments: tuple[Any, ...]) -> None:
            arguments_at = block.at_places(arguments[0], *at, self.network.attention == "causal")
            picked_activations.update(
                {name: arguments_at for name in hook_points if points[name] is block}
            )  # it may have two names
            raise _LastPointReachedError

        block = points[last_point]
        hook = block.register_forward_pre_hook(end) if hasattr(block, "at_places") else nullcontext()
        with hook, self.watch_hook_points(set(hook_points), keep, leave=True):
            self.network.hidden(tokens.to(self.device))
        return picked_activations

    @contextmanager
    def watch_hook_points(
        self, names: set[str], keep: Callable[[str, Tensor], None], leave: bool = False
    ) -> Iterator[None]:
        """Pass the activation at each of these hook points to `keep`.

        With `leave`, the forward pass and the `with` block end after the last hook point.
        """
        points = [(name, module) for name, module in self.network.hook_points.items() if name in names]
        last_point = points[-1][0]

        def hook_of(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
            def hook(module: nn.Module, arguments: Any, residual: Tensor) -> None:
                keep(name, residual)
                if leave and name == last_point:
                    raise _LastPointReachedError

            return hook

        handles = [module.register_forward_hook(hook_of(name)) for name, module in points]
        try:
            yield
        except _LastPointReachedError:
            pass
        finally:
            for handle in handles:
                handle.remove()

    def _build_token_masks(
        self, edits: Sequence[ResidualEdit], tokens: Tensor, lengths: Tensor | None
    ) -> list[tuple[ResidualEdit, Tensor | None]]:
        """Return each edit with its token mask in this batch."""
        masks: list[tuple[ResidualEdit, Tensor | None]] = []
        for edit in edits:
            if edit.token_mask == "all":
                masks.append((edit, None))
                continue
            mask = torch.zeros(tokens.shape, dtype=torch.bool)
            for row, ids in enumerate(tokens.cpu().numpy()):
                length = len(ids) if lengths is None else int(lengths[row])
                token_places = get_token_mask(edit.token_mask).compute(ids[:length], self.encoding)
                mask[row, :length] = torch.from_numpy(np.asarray(token_places, bool))
            masks.append((edit, mask.to(self.device)))
        return masks

    def _check_layer(self, layer: int) -> int:
        """Return a layer. Raises NotFoundError if the model does not have it."""
        if not 0 <= layer < self.n_layers:
            raise NotFoundError(f"{self.name} has no layer {layer}: its layers are 0 to {self.n_layers - 1}")
        return layer

    def _check(self, tokens: Tensor) -> None:
        """Raise BadInputError unless tokens are [batch, length] ids that fit the model's positions and vocabulary."""
        if tokens.dim() != 2 or tokens.shape[1] == 0:
            raise BadInputError(f"tokens are [batch, length] with at least one token, not {list(tokens.shape)}")
        if tokens.shape[1] > self.block_size:
            raise BadInputError(f"{tokens.shape[1]} tokens do not fit the {self.block_size} positions of {self.name}")
        if int(tokens.max()) >= self.vocab_size or int(tokens.min()) < 0:
            raise BadInputError(f"a token id is outside the vocabulary of {self.name} (0 to {self.vocab_size - 1})")


def to_batch(tokens: TokenIds) -> Tensor:
    """Return token ids as an integer tensor [batch, length]; one sequence, as `encoding.encode` returns it, is a batch
    of one."""
    batch = tokens if isinstance(tokens, Tensor) else torch.as_tensor(np.asarray(tokens, np.int64))
    return batch[None] if batch.dim() == 1 else batch


ActivationPass = tuple[Tensor, Tensor, Tensor, Tensor]
"""A forward pass and its target rows: tokens int64 [batch, length]; for n activations their row, their token, and their
row in a larger array, each int64 [n]."""


def collect_activations(
    model: LanguageModel, points: Sequence[str], rows: int, passes: Iterable[ActivationPass]
) -> dict[str, Tensor]:
    """Return hook point → activations float32 [rows, d_model] on the model's device. Each of `passes` names the target
    rows of its activations; rows without a pass are 0."""
    residuals = {point: torch.zeros(rows, model.d_model, device=model.device) for point in points}
    for tokens, row, token, target in passes:
        place = target.to(model.device)
        for point, activations in model.activations_at(tokens, points, row, token).items():
            residuals[point][place] = activations.float()
    return residuals


def compute_stored_activations(
    model: LanguageModel, tokens: Tensor, points: Sequence[str], row: Tensor, token: Tensor, dtype: str
) -> list[np.ndarray]:
    """Return one array [n, d_model] per hook point in the stored type (bfloat16 as uint16), from one forward pass.

    `row` and `token` int64 [n] are as in `LanguageModel.activations_at`. Raises DivergedError for NaN or infinite
    activations, BadInputError for activations that exceed the range of `dtype`.
    """
    residuals = model.activations_at(tokens, points, row, token)
    kind = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
    arrays = []
    for point in points:
        exact = residuals[point]
        stored_values = exact.to(kind)
        if not bool(stored_values.isfinite().all()):
            if not bool(exact.isfinite().all()):
                raise DivergedError(f"activations at {point} are NaN or infinite: the model overflows")
            largest = float(exact.abs().max())
            raise BadInputError(
                f"activations at {point} reach {largest:.3g}, which {dtype} cannot represent", "--dtype bfloat16"
            )
        stored_values = stored_values.cpu()
        arrays.append((stored_values.view(torch.uint16) if kind is torch.bfloat16 else stored_values).numpy())
    return arrays
