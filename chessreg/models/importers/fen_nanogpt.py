"""Junkin's nanoGPT of positions: a ckpt.pt as written by nanoGPT, with 1,968 actions and 78 positions.

The file does not record whether attention is causal, so the user has to specify it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chessreg.errors import BadInputError
from chessreg.models.importers.nanogpt import NanoGPTFile, compute_gpt2_logits, read_model_weights, read_shape
from chessreg.models.importers.registry import Imported, register_format
from chessreg.models.importers.source import CheckpointSource, to_plain_values

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "transformer."
FIRST_TOKEN = 0  # the token before the 77 characters


class FenNanoGPTFile:
    """A nanoGPT file whose model_args belong to a FEN encoder with one table for characters and actions."""

    name = "fen_nanogpt"

    def recognises(self, source: CheckpointSource) -> bool:
        """Return whether the file is nanoGPT's and has the sizes of the 77-character FEN encoding."""
        from chessreg.models.adapters.fen_encoder import ACTIONS, TOKENS

        if not NanoGPTFile().recognises(source):
            return False
        arguments = to_plain_values(source.content["model_args"])
        sizes = {"vocab_size": ACTIONS, "block_size": TOKENS + 1}
        return isinstance(arguments, dict) and all(arguments.get(name) == size for name, size in sizes.items())

    def encoding_of(self, source: CheckpointSource) -> str | None:
        return "fen-77"

    def read(self, source: CheckpointSource) -> Imported:
        """Return the model with its embedding tied to its head. Raises BadInputError without `--attention`."""
        import torch.nn.functional as F

        from chessreg.models.adapters.fen_encoder import FenConfig, FenEncoder

        attention, shape, raw = source.unrecorded_settings.attention, read_shape(source), read_model_weights(source)
        if attention is None:
            raise BadInputError(
                f"{source.path.name} does not record whether the model's attention is causal",
                "give --attention bidirectional, or --attention causal if its name ends in _causal",
            )
        config = FenConfig(shape["n_layer"], shape["n_head"], shape["n_embd"], attention, "tied")

        def reference(tokens: Tensor) -> Tensor:
            padded_tokens = F.pad(tokens, (1, 0), value=FIRST_TOKEN)
            return compute_gpt2_logits(raw, padded_tokens, config.n_head, causal=attention == "causal")[:, -1:]

        weights = {name.removeprefix(PREFIX): tensor.float() for name, tensor in raw.items()}
        iterations = to_plain_values(source.content.get("iter_num"))
        return Imported(
            model=FenEncoder.from_weights(config, weights),
            reference=reference,
            source={
                "model_args": to_plain_values(source.content["model_args"]),
                "iter_num": iterations,
                "attention_from": "user",
            },
        )


register_format(FenNanoGPTFile())
