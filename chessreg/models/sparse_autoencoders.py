"""Sparse autoencoders: the common interface, and the architectures that chessreg reads but does not train.

`gated_sae` has the architecture that it trains. Imports only torch and numpy, as `training` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

COMMON_SETTINGS = ("scale", "subtracts_bias")
"""The numbers that every architecture has besides its tensors."""


class SparseAutoencoder(ABC):
    """The parameters of one autoencoder, float32. It reads residuals multiplied by `scale`.

    b_dec [d_model]. W_dec [features, d_model] has the decoder's columns as rows: row i is the direction that latent i
    writes. If `subtracts_bias`, the encoder subtracts b_dec from the scaled residual.
    """

    architecture: ClassVar[str]
    """The name of the architecture in SAELens and in the registry."""
    names: ClassVar[tuple[str, ...]]
    """The tensors, by the names of their attributes."""
    settings: ClassVar[tuple[str, ...]] = ()
    """The numbers that the architecture needs besides its tensors."""
    W_dec: Tensor
    b_dec: Tensor
    scale: float
    subtracts_bias: bool

    @property
    def d_model(self) -> int:
        return self.W_dec.shape[1]

    @property
    def features(self) -> int:
        return self.W_dec.shape[0]

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters by name."""
        return {name: getattr(self, name) for name in self.names}

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the stored arrays, float32."""
        return {name: np.ascontiguousarray(value.cpu().numpy()) for name, value in self.parameters().items()}

    def read_settings(self) -> dict[str, Any]:
        """Return the numbers that are stored with the arrays."""
        return {name: getattr(self, name) for name in (*self.settings, *COMMON_SETTINGS)}

    @classmethod
    def list_shapes(cls, features: int, d_model: int) -> dict[str, tuple[int, ...]]:
        """Return name → shape of the arrays."""
        matrix = (features, d_model)
        return {name: matrix if name[0] == "W" else (d_model if name == "b_dec" else features,) for name in cls.names}

    def prepare(self, residual: Tensor) -> Tensor:
        """Return the encoder's input [..., d_model] for residuals at the model's scale."""
        scaled_residual = residual * self.scale
        return scaled_residual - self.b_dec if self.subtracts_bias else scaled_residual

    @abstractmethod
    def encode(self, residual: Tensor) -> Tensor:
        """Return the latent code [..., features] of residuals [..., d_model] at the model's scale."""

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Return the residuals [..., d_model], at the model's scale, of latents [..., features]."""
        return (latents @ self.W_dec + self.b_dec) / self.scale

    def reconstruction(self, residual: Tensor) -> Tensor:
        """Return residuals [..., d_model] encoded and decoded, float32."""
        return self.decode(self.encode(residual))


@dataclass(frozen=True)
class ReluSae(SparseAutoencoder):
    """An autoencoder with a ReLU. W_enc [features, d_model]; b_enc [features]."""

    architecture = "standard"
    names = ("W_enc", "b_enc", "W_dec", "b_dec")

    W_enc: Tensor
    b_enc: Tensor
    W_dec: Tensor
    b_dec: Tensor
    scale: float = 1.0
    subtracts_bias: bool = True

    def compute_activations(self, residual: Tensor) -> Tensor:
        """Return W_enc x + b_enc [..., features]."""
        return self.prepare(residual) @ self.W_enc.T + self.b_enc

    @torch.no_grad()
    def encode(self, residual: Tensor) -> Tensor:
        return torch.relu(self.compute_activations(residual))


@dataclass(frozen=True)
class TopKSae(ReluSae):
    """An autoencoder that keeps the `k` largest activations (Gao et al. 2024)."""

    architecture = "topk"
    settings = ("k",)

    k: int = 1

    @torch.no_grad()
    def encode(self, residual: Tensor) -> Tensor:
        largest = torch.topk(self.compute_activations(residual), self.k, dim=-1)
        latents = torch.zeros(*residual.shape[:-1], self.features, device=residual.device)
        return latents.scatter_(-1, largest.indices, torch.relu(largest.values))


@dataclass(frozen=True)
class JumpReluSae(SparseAutoencoder):
    """An autoencoder that keeps the activations above a `threshold` [features] (Rajamanoharan et al. 2024)."""

    architecture = "jumprelu"
    names = ("W_enc", "b_enc", "threshold", "W_dec", "b_dec")

    W_enc: Tensor
    b_enc: Tensor
    threshold: Tensor
    W_dec: Tensor
    b_dec: Tensor
    scale: float = 1.0
    subtracts_bias: bool = False

    @torch.no_grad()
    def encode(self, residual: Tensor) -> Tensor:
        activations = self.prepare(residual) @ self.W_enc.T + self.b_enc
        return torch.where(activations > self.threshold, torch.relu(activations), 0.0)
