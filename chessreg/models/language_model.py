"""A loaded checkpoint: logits, residual streams of chosen layers in one pass, and decoding sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from chessreg.errors import BadInputError, NotFoundError
from chessreg.models.checkpoint import CheckpointInfo, load_model, read_info
from chessreg.models.edits import Edit, editing, position_set

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

    from chessreg.models.decoding import DecodingSession


class _Reached(Exception):
    """The last wanted layer is done; nothing after it needs computing."""


class LanguageModel:
    """A checkpoint in memory, and what its chessreg.json says (`info`). Layers are 0-based.

    The Hugging Face model is at `hf`, unchanged: hooks and edits are registered for one pass and removed.
    """

    def __init__(self, hf: GPT2LMHeadModel, info: CheckpointInfo | None = None, name: str = "model") -> None:
        self.hf = hf.eval()
        self.info = info or CheckpointInfo.of(hf, "pgn-char-32")
        self.name = name

    @classmethod
    def load(
        cls, folder: Path | str, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
    ) -> LanguageModel:
        """The checkpoint in this folder, computing in `dtype` whatever it is stored in.

        Raises NotFoundError or BadInputError as `checkpoint.read_info` and `checkpoint.load_model` do.
        """
        folder = Path(folder)
        return cls(load_model(folder, dtype).to(device), read_info(folder), folder.name)

    @property
    def tokenizer(self) -> str:
        return self.info.tokenizer

    @property
    def residual(self) -> Literal["raw", "centred"]:
        return self.info.residual

    @property
    def n_layers(self) -> int:
        return int(self.hf.config.n_layer)

    @property
    def d_model(self) -> int:
        return int(self.hf.config.n_embd)

    @property
    def block_size(self) -> int:
        return int(self.hf.config.n_positions)

    @property
    def vocab_size(self) -> int:
        return int(self.hf.config.vocab_size)

    @property
    def device(self) -> torch.device:
        return self.hf.transformer.wte.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.hf.transformer.wte.weight.dtype

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return self.hf.transformer.h

    @torch.inference_mode()
    def logits(self, tokens: Tensor, *, edits: Sequence[Edit] = (), lengths: Tensor | None = None) -> Tensor:
        """Logits [batch, length, vocab] of token ids [batch, length]; rows may be padded on the right.

        lengths [batch] are the rows' own lengths; edits at the last position need them when rows are padded.
        """
        self._check(tokens)
        with editing(self.blocks, self._masked(edits, tokens, lengths)):
            return self.hf(tokens.to(self.device), use_cache=False).logits

    @torch.inference_mode()
    def residuals(
        self,
        tokens: Tensor,
        layers: Sequence[int],
        positions: Tensor | None = None,
        *,
        edits: Sequence[Edit] = (),
        lengths: Tensor | None = None,
    ) -> Tensor:
        """`blocks.L.hook_resid_post` for each of `layers`: [layers, batch, length, d_model], in the model's dtype.

        One forward pass, which ends at the last wanted layer and computes no logits. positions int [batch, n] keeps
        only those (then [layers, batch, n, d_model]). Padding on the right is harmless: attention is causal.
        Edits are applied first, so their own layer is seen edited. Raises NotFoundError for an unknown layer.
        """
        self._check(tokens)
        wanted = [self._layer(layer) for layer in layers]
        chosen = None if positions is None else positions.to(self.device, torch.int64)[:, :, None]
        length = tokens.shape[1] if positions is None else positions.shape[1]
        out = torch.empty(len(wanted), len(tokens), length, self.d_model, dtype=self.dtype, device=self.device)

        def keep(layer: int, residual: Tensor) -> None:
            kept = residual if chosen is None else residual.gather(1, chosen.expand(-1, -1, residual.shape[-1]))
            for place, other in enumerate(wanted):
                if other == layer:
                    out[place] = kept

        if wanted:
            with editing(self.blocks, self._masked(edits, tokens, lengths)), self.watching(set(wanted), keep, True):
                self.hf.transformer(tokens.to(self.device), use_cache=False)
        return out

    def session(self, rows: int, edits: Sequence[Edit] = ()) -> DecodingSession:
        """A decoding session of `rows` empty rows, whose every pass is edited with `edits`."""
        from chessreg.models.decoding import DecodingSession

        return DecodingSession(self, rows, edits)

    def bridge(self, hook_points: Sequence[str] = ()) -> Any:
        """A TransformerBridge over a copy of the model, on which these TransformerLens hook points fire.

        Raises NotFoundError for a name that no such model has. See bridge.py.
        """
        from chessreg.models.bridge import bridge

        return bridge(self, hook_points)

    def activations(self, tokens: Tensor, hook_points: Sequence[str]) -> dict[str, Tensor]:
        """Activations under TransformerLens names, each as its hook sees it; residual streams without a bridge."""
        from chessreg.models.bridge import activations

        return activations(self, tokens, hook_points)

    def all_hook_points(self) -> list[str]:
        """Every TransformerLens name that fires on this model, sorted."""
        from chessreg.models.bridge import all_hook_points

        return all_hook_points(self)

    @contextmanager
    def watching(self, layers: set[int], keep: Callable[[int, Tensor], None], leave: bool = False) -> Iterator[None]:
        """Give each layer's residual to `keep`; `leave` the forward pass, and the `with`, after the last of them."""
        last = max(layers)

        def hook_of(layer: int) -> Callable[[nn.Module, Any, Tensor], None]:
            def hook(block: nn.Module, arguments: Any, residual: Tensor) -> None:
                keep(layer, residual)
                if leave and layer == last:
                    raise _Reached

            return hook

        handles = [self.blocks[layer].register_forward_hook(hook_of(layer)) for layer in layers]
        try:
            yield
        except _Reached:
            pass
        finally:
            for handle in handles:
                handle.remove()

    def _masked(
        self, edits: Sequence[Edit], tokens: Tensor, lengths: Tensor | None
    ) -> list[tuple[Edit, Tensor | None]]:
        """Each edit with its positions in this batch."""
        masked: list[tuple[Edit, Tensor | None]] = []
        for edit in edits:
            if edit.positions == "all":
                masked.append((edit, None))
                continue
            mask = torch.zeros(tokens.shape, dtype=torch.bool)
            for row, ids in enumerate(tokens.cpu().numpy()):
                own = len(ids) if lengths is None else int(lengths[row])
                chosen = position_set(edit.positions).mask(ids[:own], self.tokenizer)
                mask[row, :own] = torch.from_numpy(np.asarray(chosen, bool))
            masked.append((edit, mask.to(self.device)))
        return masked

    def _layer(self, layer: int) -> int:
        if not 0 <= layer < self.n_layers:
            raise NotFoundError(f"no layer {layer} in {self.name}: it has layers 0 to {self.n_layers - 1}")
        return layer

    def _check(self, tokens: Tensor) -> None:
        if tokens.dim() != 2 or tokens.shape[1] == 0:
            raise BadInputError(f"tokens are [batch, length] with at least one token, not {list(tokens.shape)}")
        if tokens.shape[1] > self.block_size:
            raise BadInputError(f"{tokens.shape[1]} tokens do not fit the {self.block_size} positions of {self.name}")
        if int(tokens.max()) >= self.vocab_size or int(tokens.min()) < 0:
            raise BadInputError(f"a token id is outside the vocabulary of {self.name} (0 to {self.vocab_size - 1})")
