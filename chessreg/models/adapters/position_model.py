"""Models that read the 77 characters of a position: the base class of the FEN encoder, searchless chess and Maia-2.

The first two put one token before the characters. Hooks see the residual stream of the characters alone, so that
caches, probes and edits have the same positions in every such model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from chessreg.models.adapters.base import Network, WithoutInitialization, check_weights, map_hook_modules, read_weights
from chessreg.models.hook_points import PATTERNS

TOKENS, CHARACTERS, ACTIONS = 77, 31, 1968


class CharacterHook(nn.Identity):
    """A hook point whose output is the residual stream of the 77 characters."""

    def run_hooks(self, residual: Tensor) -> Tensor:
        """Pass the residual stream [batch, 78 or more, d_model] through the hooks. Without hooks nothing is copied."""
        if not self._forward_hooks:
            return residual
        characters = slice(1, 1 + TOKENS)
        return torch.cat([residual[:, :1], self(residual[:, characters]), residual[:, characters.stop :]], 1)


class PositionModel(Network):
    """A model of positions with blocks `h`, a final norm `ln_f` and a hook point after each part.

    A subclass has a frozen dataclass of settings, the first argument of its constructor, stored as `config`.
    """

    config_type: ClassVar[type[Any]]
    title: ClassVar[str]
    """The name of the architecture in error messages."""
    hook_type: ClassVar[type[CharacterHook]] = CharacterHook
    points = PATTERNS
    block_size, vocab_size, outputs = TOKENS, CHARACTERS, ACTIONS
    config: Any
    h: nn.ModuleList
    ln_f: nn.Module

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.attention = config, config.attention
        self.n_layer, self.d_model = config.n_layer, config.n_embd
        self.embedded, self.first_residual, self.normalised = self.hook_type(), self.hook_type(), self.hook_type()
        self.after = nn.ModuleList(self.hook_type() for _ in range(config.n_layer))

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return list(self.after)

    @property
    def hook_points(self) -> dict[str, nn.Module]:
        return map_hook_modules(self.embedded, self.first_residual, self.blocks, self.normalised)

    def norm(self, layer: int | None = None) -> nn.Module:
        if layer is None or layer == self.n_layer - 1:
            return self.ln_f
        next_norm: nn.Module = self.h[layer + 1].ln_1  # type: ignore[assignment]
        return next_norm

    @abstractmethod
    def initialise(self) -> None:
        """Draw initial weights from torch's global generator."""

    def matrices(self) -> list[nn.Parameter]:
        """Return the weight matrices of the blocks, which Muon optimises."""
        return [p for p in self.h.parameters() if p.dim() == 2]

    def count_parameters(self) -> tuple[int, int]:
        total = sum(p.numel() for p in self.parameters())
        return total, sum(p.numel() for p in [*self.h.parameters(), *self.ln_f.parameters()])

    def files(self, dtype: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        stored_dtype = getattr(torch, dtype)
        weights = {n: t.detach().to("cpu", stored_dtype).contiguous() for n, t in sorted(self.state_dict().items())}
        config = {name: value for name, value in self.shape().items() if name != "family"}
        return {"model_type": self.architecture, "dtype": dtype, **config}, weights

    @classmethod
    def load(cls, folder: Path, shape: Mapping[str, Any], dtype: torch.dtype) -> Self:
        settings = {name: shape[name] for name in cls.config_type.__dataclass_fields__ if name != "dropout"}
        return cls.from_weights(cls.config_type(**settings), read_weights(folder, dtype))

    @classmethod
    def from_weights(cls, config: Any, weights: Mapping[str, Tensor]) -> Self:
        """Return a model in eval mode with these weights, named as in its state_dict.

        Raises BadInputError for missing or unknown weights and for weights of another shape.
        """
        with WithoutInitialization():
            model = cls(config)
        check_weights(weights, {name: tuple(t.shape) for name, t in model.state_dict().items()}, cls.title)
        model.load_state_dict(dict(weights), assign=True)
        return model.eval()

    def copy_trained(self) -> Self:
        """Return a copy in float32 on the CPU, in eval mode."""
        weights = {name: tensor.detach().cpu().float().clone() for name, tensor in self.state_dict().items()}
        return self.from_weights(self.config, weights)

    def make_untrained(self, seed: int) -> Self:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = type(self)(self.config)
            model.initialise()
        return model.eval()
