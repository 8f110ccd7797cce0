"""A state dict of a GPT-2 without its settings: alone, in a Lightning .ckpt, or as a safetensors file.

Shapes determine everything except the number of attention heads. It comes from `--heads`, from the settings that
Lightning saves, or from a config.json in the same folder. Otherwise it is the number with which the model predicts the
sample games best, if one is clearly best. The layout of the matrices identifies the code: GPT2LMHeadModel keeps them
[in, out] and uses gelu_new, nanoGPT [out, in] with the exact GELU.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError, get_first_line
from chessreg.models.importers.nanogpt import BUFFERS, compute_gpt2_logits, to_file_layout
from chessreg.models.importers.registry import Imported, register_format
from chessreg.models.importers.source import CheckpointSource, to_plain_values
from store.files import read_json

if TYPE_CHECKING:
    from torch import Tensor

    from chessreg.models.adapters.gpt2 import GPT2Config

PREFIX, HEAD = "transformer.", "lm_head.weight"
EMBEDDING, POSITIONS = "transformer.wte.weight", "transformer.wpe.weight"
ATTENTION = "transformer.h.0.attn.c_attn.weight"
SETTINGS = ("hyper_parameters", "hparams", "config", "model_config", "args")
"""Keys under which training scripts save settings. Lightning uses the first."""
HEADS = ("n_head", "num_attention_heads", "n_heads", "num_heads", "heads")
"""Names of the number of attention heads in these settings."""
HEAD_SIZES = range(8, 257)  # features per head considered in the search
CLEARLY_BETTER = 0.05  # minimum lead of the best number of heads, in nats per token


class StateDictFile:
    """A torch or safetensors file with the weights of a GPT-2, without nanoGPT's model_args."""

    name = "state_dict"

    def recognises(self, source: CheckpointSource) -> bool:
        if source.weights is None or "model_args" in source.content:
            return False
        return "wte.weight" in source.weights or EMBEDDING in source.weights

    def encoding_of(self, source: CheckpointSource) -> str | None:
        return None

    def read(self, source: CheckpointSource) -> Imported:
        """Return the import as a GPT-2.

        The head count comes from the settings, or is the one with the lowest loss on sample games. Raises BadInputError
        if the file has no GPT-2 weights.
        """
        from chessreg.models.adapters.gpt2 import GPT2

        name = source.path.name
        if not self.recognises(source):
            raise BadInputError(f"{name} has no state dict of a GPT-2: {source.description}")
        raw, conv1d = transpose_matrices(normalize_weights(source), name)
        settings = read_saved_settings(source)
        config = infer_shape(raw, settings, conv1d)
        heads, heads_source = read_heads(source, settings, config.n_embd)
        if heads is None:
            heads, heads_source = find_best_heads(source, raw, config), "sample games"
        config = replace(config, n_head=heads)
        return Imported(
            model=GPT2.from_weights(config, to_file_layout(raw)),
            reference=functools.partial(
                compute_gpt2_logits, raw, n_head=heads, activation=config.activation, epsilon=config.layer_norm_epsilon
            ),
            source={"n_head_from": heads_source, "activation": config.activation},
            remarks=[f"{heads} attention heads, from {heads_source}; activation {config.activation}"],
        )


def normalize_weights(source: CheckpointSource) -> dict[str, Tensor]:
    """Return the weights by GPT2LMHeadModel's names, without mask buffers and without a tied head. Raises
    BadInputError."""
    import torch

    weights = {name: tensor for name, tensor in (source.weights or {}).items() if not name.endswith(BUFFERS)}
    prefixed_weights = {n if n == HEAD or n.startswith(PREFIX) else PREFIX + n: tensor for n, tensor in weights.items()}
    if len(prefixed_weights) < len(weights):
        raise BadInputError(f"{source.path.name} holds weights with and without the prefix {PREFIX}")
    if not all(isinstance(t, torch.Tensor) and t.is_floating_point() for t in prefixed_weights.values()):
        raise BadInputError(f"{source.path.name}: its state dict holds more than tensors of floats")
    if POSITIONS not in prefixed_weights:
        raise BadInputError(f"{source.path.name}: its state dict has no {POSITIONS}")
    if HEAD in prefixed_weights and torch.equal(prefixed_weights[HEAD], prefixed_weights[EMBEDDING]):
        del prefixed_weights[HEAD]
    return {name: tensor.detach() for name, tensor in prefixed_weights.items()}


def transpose_matrices(weights: dict[str, Tensor], name: str) -> tuple[dict[str, Tensor], bool]:
    """Return the weights with matrices [out, in], and whether the file has them [in, out] like Hugging
    Face's Conv1D."""
    width = weights[EMBEDDING].shape[-1]
    shape = tuple(weights[ATTENTION].shape) if ATTENTION in weights else None
    if shape not in ((width, 3 * width), (3 * width, width)):
        raise BadInputError(f"{name}: {ATTENTION} has shape {shape}, the token embedding {width} columns")
    conv1d = shape == (width, 3 * width)
    transposed_weights = {n: t.t() if conv1d and ".h." in n and t.dim() == 2 else t for n, t in weights.items()}
    return transposed_weights, conv1d


def infer_shape(raw: dict[str, Tensor], settings: dict[str, Any], conv1d: bool) -> GPT2Config:
    """Return the shape of weights with matrices [out, in], with one head."""
    from chessreg.models.adapters.gpt2 import ACTIVATIONS, GPT2Config

    rows, width = raw[EMBEDDING].shape
    inner = raw.get("transformer.h.0.mlp.c_fc.weight")
    activation = settings.get("activation_function")
    epsilon = settings.get("layer_norm_epsilon")
    return GPT2Config(
        n_layer=sum(name.endswith(".ln_1.weight") for name in raw),
        n_head=1,
        n_embd=width,
        block_size=len(raw[POSITIONS]),
        vocab_size=rows,
        d_mlp=None if inner is None or len(inner) == 4 * width else len(inner),
        activation=activation if activation in ACTIVATIONS else "gelu_new" if conv1d else "gelu",
        layer_norm_epsilon=epsilon if isinstance(epsilon, float) else 1e-5,
        tied_head=HEAD not in raw,
    )


def read_saved_settings(source: CheckpointSource) -> dict[str, Any]:
    """Return the settings in the file, or in a config.json of a GPT-2 in the same folder, including those of nested
    dicts.

    Raises BadInputError for a config.json that is not JSON.
    """
    stored_settings = [
        to_plain_values(source.content[key]) for key in SETTINGS if isinstance(source.content.get(key), dict)
    ]
    config = source.path.with_name("config.json")
    if not stored_settings and config.is_file():
        try:
            stored_settings.append(read_json(config))
        except (OSError, ValueError) as error:
            raise BadInputError(f"{config} is not JSON: {get_first_line(error)}", "correct or remove it") from error
    return {key: value for settings in stored_settings for key, value in iterate_entries(settings)}


def iterate_entries(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield keys and values of a dict and of the dicts in it, the outer ones last."""
    dicts = [settings] if isinstance(settings, dict) else []
    for each in dicts:
        dicts.extend(value for value in each.values() if isinstance(value, dict))
    for each in reversed(dicts):
        yield from each.items()


def read_heads(source: CheckpointSource, settings: dict[str, Any], width: int) -> tuple[int | None, str]:
    """Return the number of attention heads and its source; None if neither the user nor the settings give it.

    Raises BadInputError for a number that does not divide the width.
    """
    stored_heads = next((settings[key] for key in HEADS if type(settings.get(key)) is int), None)
    heads, heads_source = (
        (source.unrecorded_settings.heads, "--heads")
        if source.unrecorded_settings.heads
        else (stored_heads, "its settings")
    )
    if heads is not None and (heads < 1 or width % heads):
        raise BadInputError(
            f"{source.path.name}: {heads} attention heads ({heads_source}) do not divide {width} features", "--heads N"
        )
    return heads, heads_source


def find_best_heads(source: CheckpointSource, raw: dict[str, Tensor], config: GPT2Config) -> int:
    """Return the number of heads with which the model predicts the sample games best.

    Raises BadInputError if none is clearly best, as for an untrained model.
    """
    from chessreg.models.adapters.gpt2 import GPT2

    width = config.n_embd
    head_counts = [heads for heads in range(1, width + 1) if width % heads == 0 and width // heads in HEAD_SIZES]
    models = {heads: GPT2.from_weights(replace(config, n_head=heads), to_file_layout(raw)) for heads in head_counts}
    losses = sorted((loss, heads) for heads, model in models.items() if (loss := source.loss(model)) is not None)
    if len(losses) == 1 or (len(losses) > 1 and losses[1][0] - losses[0][0] >= CLEARLY_BETTER):
        return losses[0][1]
    raise BadInputError(
        f"{source.path.name} does not record the number of attention heads for its {width} features, and no number "
        "of heads predicts the sample games clearly best",
        f"give --heads N, one of {', '.join(map(str, head_counts))}" if head_counts else "give --heads N",
    )


register_format(StateDictFile())
