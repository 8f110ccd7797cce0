"""The interface of an adapter, which every architecture provides to the rest of chessreg.

An adapter is one file: a torch module with its blocks, residual stream, norms and cache, registered by the name of its
architecture. All other code uses only `Network`. An adapter imports only names and errors of chessreg, so that training
runs on a machine with torch and numpy alone.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from chessreg.errors import BadInputError, reraise_lack_of_memory
from chessreg.models.hook_points import EMBED, LN_FINAL, PATTERNS, RESID_POST, RESID_PRE, format_hook_point
from chessreg.named import NameRegistry

AttentionKind = Literal["causal", "bidirectional"]
HeadKind = Literal["next-token", "action", "action-value", "state-value"]
"""The prediction of a model: the next token after each token; the best action after the last token; buckets of the
return after the position and an action; or buckets of the return after the position."""
VALUE_HEADS = ("action-value", "state-value")


class Network(nn.Module, ABC):
    """The weights of a model and its forward pass, split into the parts that sessions, edits and caches need.

    `blocks` are modules whose output is the residual stream [batch, length, d_model] after that layer; a forward hook
    can read and replace it. `hidden` followed by `unembed` is the whole pass. A block may have `at_places(residual,
    row, token, causal)`, which returns its output [n, d_model] at chosen tokens only, at a lower cost.
    """

    architecture: ClassVar[str]
    attention: AttentionKind = "causal"
    head: HeadKind = "next-token"
    points: ClassVar[tuple[str, ...]] = (RESID_POST,)
    """The hook points of the architecture, with `*` for every block."""
    can_cache: ClassVar[bool] = False
    """Whether `hidden` accepts a SlotCache and a mask; sessions then keep keys and values, and can pack rows."""

    n_layer: int
    d_model: int
    block_size: int
    vocab_size: int
    """The model reads ids 0 to vocab_size - 1."""
    outputs: int
    """The number of ids that the model writes (tokens or actions); for a value head, the actions whose values it
    predicts."""

    @property
    @abstractmethod
    def blocks(self) -> Sequence[nn.Module]: ...

    @property
    def hook_points(self) -> dict[str, nn.Module]:
        """TransformerLens name → module whose output [batch, length, d_model] is that activation, in the order of a
        pass.

        Covers all of `points`; override it if there are more points than the blocks' outputs.
        """
        return {format_hook_point(layer): block for layer, block in enumerate(self.blocks)}

    @abstractmethod
    def hidden(
        self, tokens: Tensor, positions: Tensor | None = None, cache: Any = None, mask: Tensor | None = None
    ) -> Tensor:
        """Return the final hidden states [batch, length, d_model], after the last norm. `positions` default to 0, 1, 2,
        …

        Rows may be padded on the right if attention is causal. `cache` and `mask` require `can_cache`: the mask [batch,
        1, length, keys] is added to the scores (None: plain causal attention). Such networks also accept `after`, a
        layer and its output [batch, length, d_model], to compute only the layers after it.
        """

    @abstractmethod
    def unembed(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., outputs] of final hidden states [..., d_model]; [..., buckets] for a value head."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [batch, length, outputs]; for other heads [batch, 1, outputs or buckets], after the last
        token."""
        hidden = self.hidden(tokens)
        return self.unembed(hidden if self.head == "next-token" else hidden[:, -1:])

    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """Return the architecture as JSON values, for records and for `load`.

        Required are family (the name in ADAPTERS), n_layer and n_embd; n_head is shown if present.
        """

    @abstractmethod
    def count_parameters(self) -> tuple[int, int]:
        """Return the number of parameters with and without embeddings (token, position, untied output head), each
        counted once."""

    @abstractmethod
    def files(self, dtype: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the content of config.json and the weights of model.safetensors by name; equal models give equal
        bytes."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, shape: Mapping[str, Any], dtype: torch.dtype) -> Self:
        """Return the model of a checkpoint folder in eval mode. `shape` is the result of `shape()` when it
        was saved."""

    @abstractmethod
    def make_untrained(self, seed: int) -> Self:
        """Return a model of this shape with initial weights: a pure function of (shape, seed)."""

    def with_vocabulary(self, rows: Sequence[int]) -> Network:
        """Return a model whose token i is this model's token rows[i], in its embedding and in its output head.

        Raises BadInputError if the adapter does not support it.
        """
        raise BadInputError(
            f"the vocabulary of a {self.architecture} model cannot be reordered", "save it in the encoding's order"
        )

    def norm(self, layer: int | None = None) -> nn.Module:
        """Return the norm after a block's output: the next block's first norm, or the final norm (also for None).

        Raises BadInputError if the adapter does not support it.
        """
        raise BadInputError(
            f"a {self.architecture} model does not expose its norms",
            "--scale-rule residual-norm, or single_scale",
        )

    def bias_matrix(self, layer: int) -> nn.Linear:
        """Return the last matrix of a block, whose bias is added to the residual stream at every token.

        Raises BadInputError if the adapter does not support it.
        """
        raise BadInputError(
            f"a {self.architecture} model cannot be edited through a bias", "--form hook gives the same result"
        )


class CausalDecoder(Network):
    """A token embedding, causal blocks and a final norm, with all four hook points and cached keys and values.

    A block's arguments are the residual stream, the result of `block_arguments`, the cache and the mask.
    """

    points = PATTERNS
    can_cache = True
    first_residual: nn.Module
    """The start of the residual stream: passes the embeddings on, so that hooks can be registered."""

    @abstractmethod
    def get_embedding_and_norm(self) -> tuple[nn.Module, nn.Module]:
        """Return the token embedding and the final norm."""

    @abstractmethod
    def compute_embeddings(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        """Return the residual stream [batch, length, d_model] before the first block."""

    def block_arguments(self, tokens: Tensor, positions: Tensor | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return the inputs of every block in a pass other than the residual stream, which has this dtype."""
        return ()

    @property
    def hook_points(self) -> dict[str, nn.Module]:
        embed, final = self.get_embedding_and_norm()
        return map_hook_modules(embed, self.first_residual, self.blocks, final)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        cache: Any = None,
        mask: Tensor | None = None,
        after: tuple[int, Tensor] | None = None,
    ) -> Tensor:
        layer, residual = (
            (-1, self.first_residual(self.compute_embeddings(tokens, positions))) if after is None else after
        )
        arguments = self.block_arguments(tokens, positions, residual.dtype)
        for block in self.blocks[layer + 1 :]:
            residual = block(residual, *arguments, cache, mask)
        final: Tensor = self.get_embedding_and_norm()[1](residual)
        return final


def map_hook_modules(
    embed: nn.Module, first_residual: nn.Module, blocks: Sequence[nn.Module], ln_final: nn.Module
) -> dict[str, nn.Module]:
    """Return TransformerLens name → module, for a model with all four kinds of hook points.

    `embed` is the token embedding, `first_residual` the sum of embeddings. A block's input is the output of the module
    before it.
    """
    modules = {EMBED: embed}
    for layer, (before, block) in enumerate(zip((first_residual, *blocks), blocks, strict=False)):
        modules |= {format_hook_point(layer, RESID_PRE): before, format_hook_point(layer): block}
    return modules | {LN_FINAL: ln_final}


class WithoutInitialization(TorchFunctionMode):
    """Context manager: modules created inside have weights without values, to be assigned; nothing is drawn.

    With the meta device alone, PyTorch would draw them symbolically and import its compiler, half of a run's start-up
    time.
    """

    def __enter__(self) -> Self:
        self._meta = torch.device("meta")
        self._meta.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._meta.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


ADAPTERS: NameRegistry[type[Network]] = NameRegistry("architecture")


def check_weights(weights: Mapping[str, Tensor], expected_shapes: Mapping[str, tuple[int, ...]], title: str) -> None:
    """Raise BadInputError unless the weights have exactly these names and shapes and are finite floats."""
    if missing_names := sorted(expected_shapes.keys() - weights.keys()):
        raise BadInputError(f"weights are missing: {', '.join(missing_names[:3])} ({len(missing_names)} in all)")
    if unknown := sorted(weights.keys() - expected_shapes.keys()):
        raise BadInputError(
            f"weights that no {title} of this shape has: {', '.join(unknown[:3])} ({len(unknown)} in all)"
        )
    for name, shape in expected_shapes.items():
        tensor = weights[name]
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            dtype_name = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise BadInputError(f"weight {name} is not a tensor of floats but {dtype_name}")
        if tuple(tensor.shape) != shape:
            raise BadInputError(f"weight {name} has shape {list(tensor.shape)}, not {list(shape)} as configured")
        if not bool(torch.isfinite(tensor).all()):
            raise BadInputError(f"weight {name} holds NaN or infinite values")


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json. Raises BadInputError for a missing or damaged file."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(f"checkpoint {folder} cannot be read: {error}") from error
    return config


def read_weights(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors of model.safetensors in `dtype`. Raises BadInputError for a missing or damaged file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    except (OSError, ValueError, SafetensorError) as error:
        reraise_lack_of_memory(error)
        raise BadInputError(f"checkpoint {folder} cannot be read: {error}") from error
