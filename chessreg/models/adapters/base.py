"""What every architecture gives the rest of the house, written once: the contract of an adapter.

An adapter is one file: a torch module with its blocks, residual stream, norms and cache, that registers itself by the
name of its architecture. Everything above speaks to `Network` alone. Of the house it imports names and errors only, so
that training runs on a bare GPU box.
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

from chessreg.errors import BadInputError
from chessreg.models.hook_points import EMBED, LN_FINAL, PATTERNS, RESID_POST, RESID_PRE, hook_point
from chessreg.named import Registry

AttentionKind = Literal["causal", "bidirectional"]
HeadKind = Literal["next-token", "action", "action-value", "state-value"]
"""What a model predicts: the next token after each; the best action after the last; buckets of the return after the
position and an action, or after the position."""
VALUE_HEADS = ("action-value", "state-value")


class Network(nn.Module, ABC):
    """The weights of a model and its forward pass, in the parts that sessions, edits and caches need.

    `blocks` are modules whose output is the residual stream [batch, length, d_model] after that layer; a forward hook
    on one sees and may replace it. `hidden` then `unembed` is the whole pass. A block may have `at_places(residual,
    row, token, causal)`: its output [n, d_model] at these places of the residual stream before it, for less than the
    whole.
    """

    architecture: ClassVar[str]
    attention: AttentionKind = "causal"
    head: HeadKind = "next-token"
    points: ClassVar[tuple[str, ...]] = (RESID_POST,)
    """The hook points that it has, `*` for every block."""
    cached: ClassVar[bool] = False
    """Whether `hidden` takes a SlotCache, and a mask with it: then sessions keep keys and values, and pack rows."""

    n_layer: int
    d_model: int
    block_size: int
    vocab_size: int
    """Ids that it reads: 0 to vocab_size - 1."""
    outputs: int
    """Ids that it writes: tokens, or actions. Of a value head: the actions whose values it gives."""

    @property
    @abstractmethod
    def blocks(self) -> Sequence[nn.Module]: ...

    @property
    def hook_points(self) -> dict[str, nn.Module]:
        """TransformerLens' name → the module whose output [batch, length, d_model] is that activation, in the order in
        which a pass meets them. All of `points`; without more of them than the blocks' outputs this need not change."""
        return {hook_point(layer): block for layer, block in enumerate(self.blocks)}

    @abstractmethod
    def hidden(
        self, tokens: Tensor, positions: Tensor | None = None, cache: Any = None, mask: Tensor | None = None
    ) -> Tensor:
        """Final hidden states [batch, length, d_model], after the last norm. positions default to 0, 1, 2, …

        Rows may be padded on the right where attention is causal. cache and mask only where `cached`: mask
        [batch, 1, length, keys] is added to the scores (None: plain causal attention). There it also takes `after`, a
        layer and its output [batch, length, d_model]: what comes after that block is computed, and nothing before.
        """

    @abstractmethod
    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits [..., outputs] of final hidden states [..., d_model]; of a value head [..., buckets]."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, outputs]; of other heads [batch, 1, outputs or buckets], after the last
        token."""
        hidden = self.hidden(tokens)
        return self.unembed(hidden if self.head == "next-token" else hidden[:, -1:])

    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """The architecture for records, of values that JSON has. Required are family (the name in ADAPTERS), n_layer
        and n_embd; n_head is shown where it is given. `load` gets it all back."""

    @abstractmethod
    def count_parameters(self) -> tuple[int, int]:
        """Parameters with and without embeddings (tokens, positions, an output head of its own), each counted once."""

    @abstractmethod
    def files(self, dtype: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """config.json and the weights of model.safetensors, by their names on disk; equal models give equal bytes."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, shape: Mapping[str, Any], dtype: torch.dtype) -> Self:
        """The model of a checkpoint folder in eval mode. `shape` is what `shape()` gave when it was saved."""

    @abstractmethod
    def untrained(self, seed: int) -> Self:
        """A model of this shape with initial weights: a pure function of (shape, seed)."""

    def with_vocabulary(self, rows: Sequence[int]) -> Network:
        """A model whose token i is this one's token rows[i], in its embedding and in its output head.

        Raises BadInputError where the adapter cannot do this.
        """
        raise BadInputError(
            f"the vocabulary of a {self.architecture} model cannot be reordered", "save it in the encoding's order"
        )

    def norm(self, layer: int | None = None) -> nn.Module:
        """The norm that the output of a block passes next: that of the next block, or the final one (also None)."""
        raise BadInputError(
            f"the norms of a {self.architecture} model are not to be had apart from its blocks",
            "--scale-rule residual-norm, or single_scale",
        )

    def bias_matrix(self, layer: int) -> nn.Linear:
        """The last matrix of a block, whose bias is added to the residual stream at every token."""
        raise BadInputError(
            f"an edit as a bias is not to be had in a {self.architecture} model", "give --form hook, which is the same"
        )


class CausalDecoder(Network):
    """An embedding of tokens, causal blocks and a final norm, with all four hook points and cached keys and values.

    A block takes the residual stream, the arguments that `block_arguments` gives, the cache and the mask.
    """

    points = PATTERNS
    cached = True
    begin: nn.Module
    """Where the residual stream starts: passes the embeddings on, a place for hooks."""

    @abstractmethod
    def ends(self) -> tuple[nn.Module, nn.Module]:
        """The embedding of tokens, and the final norm."""

    @abstractmethod
    def embedded(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        """The residual stream [batch, length, d_model] before the first block."""

    def block_arguments(self, tokens: Tensor, positions: Tensor | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return the inputs of every block in a pass other than the residual stream, which has this dtype."""
        return ()

    @property
    def hook_points(self) -> dict[str, nn.Module]:
        embed, final = self.ends()
        return map_hook_points(embed, self.begin, self.blocks, final)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        cache: Any = None,
        mask: Tensor | None = None,
        after: tuple[int, Tensor] | None = None,
    ) -> Tensor:
        layer, residual = (-1, self.begin(self.embedded(tokens, positions))) if after is None else after
        arguments = self.block_arguments(tokens, positions, residual.dtype)
        for block in self.blocks[layer + 1 :]:
            residual = block(residual, *arguments, cache, mask)
        final: Tensor = self.ends()[1](residual)
        return final


def map_hook_points(
    embed: nn.Module, begin: nn.Module, blocks: Sequence[nn.Module], ln_final: nn.Module
) -> dict[str, nn.Module]:
    """The hook points of a model that has all: what its embedding of tokens, the sum that the blocks begin with, each
    block and the final norm give. A block begins with what the one before it gave."""
    modules = {EMBED: embed}
    for layer, (before, block) in enumerate(zip((begin, *blocks), blocks, strict=False)):
        modules |= {hook_point(layer, RESID_PRE): before, hook_point(layer): block}
    return modules | {LN_FINAL: ln_final}


class WithoutInitialization(TorchFunctionMode):
    """Modules made within get weights without values, to be assigned; nothing is drawn for them.

    On the meta device alone PyTorch would draw them symbolically, and import its compiler for it: half a run's start.
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


ADAPTERS: Registry[type[Network]] = Registry("architecture")


def check_weights(weights: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], what: str) -> None:
    """Raise BadInputError unless weights have exactly these names and shapes and are finite floats."""
    if missing := sorted(expected.keys() - weights.keys()):
        raise BadInputError(f"weights are missing: {', '.join(missing[:3])} ({len(missing)} in all)")
    if unknown := sorted(weights.keys() - expected.keys()):
        raise BadInputError(
            f"weights that no {what} of this shape has: {', '.join(unknown[:3])} ({len(unknown)} in all)"
        )
    for name, shape in expected.items():
        tensor = weights[name]
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise BadInputError(f"weight {name} is not a tensor of floats")
        if tuple(tensor.shape) != shape:
            raise BadInputError(f"weight {name} has shape {list(tensor.shape)}, the configuration says {list(shape)}")
        if not bool(torch.isfinite(tensor).all()):
            raise BadInputError(f"weight {name} holds NaN or infinite values")


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of config.json. BadInputError for a file that is damaged or not there."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(f"checkpoint {folder} cannot be read: {error}") from error
    return config


def read_weights(folder: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors of model.safetensors, in `dtype`. BadInputError for a file that is damaged or not there."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    except (OSError, ValueError, SafetensorError) as error:
        raise BadInputError(f"checkpoint {folder} cannot be read: {error}") from error
