"""An ONNX file of a causal language model, as exported by optimum or torch.onnx.

With a config.json next to it, the graph may be of any architecture that transformers names its modules after: its
weights are read as those of a Hugging Face folder. Without one, a GPT-2 is recognized by the names of its modules, and
its shape, activation, epsilon and number of heads are those of the graph. The conversion is compared with the graph.
"""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chessreg.errors import BadInputError
from chessreg.models.importers.huggingface import check_gpt2, make_gpt2_config, read_foreign, read_model_config
from chessreg.models.importers.nanogpt import to_file_layout
from chessreg.models.importers.onnx_graph import (
    OnnxGraph,
    find_config_folder,
    list_activations,
    name_parameters,
    read_norm_epsilon,
)
from chessreg.models.importers.registry import EXACT_PARAMETERS, Imported, compute_sha256, register_format
from chessreg.models.importers.source import EMBEDDINGS, CheckpointSource
from chessreg.models.importers.state_dict import HEAD, infer_shape, normalize_weights

if TYPE_CHECKING:
    from torch import Tensor

    from chessreg.models.adapters.base import Network
    from chessreg.models.adapters.gpt2 import GPT2


class OnnxFile:
    """An ONNX graph: a file, or a folder with optimum's file names."""

    name = "onnx"

    def recognises(self, source: CheckpointSource) -> bool:
        return isinstance(source.content, OnnxGraph)

    def encoding_of(self, source: CheckpointSource) -> str | None:
        return None

    def read(self, source: CheckpointSource) -> Imported:
        """Return the import as a GPT-2, or as the model type in config.json. Raises BadInputError if the file is not a
        graph."""
        graph = source.content
        if not isinstance(graph, OnnxGraph):
            raise BadInputError(f"{source.path.name} is not an ONNX graph: {source.description}")
        folder = find_config_folder(graph.path)
        config = None if folder is None else read_model_config(folder)
        weights = name_parameters(graph.collect_weights())
        if config is not None and config["model_type"] != "gpt2":
            model = read_with_transformers(graph, config, weights)
        else:
            model = read_gpt2(replace(source, content=weights), graph, folder, config)
        exact = sum(tensor.numel() for tensor in weights.values()) <= EXACT_PARAMETERS
        return Imported(
            model=model,
            reference=functools.partial(graph.compute_logits, exact=exact),
            tokens_shape=graph.input_shape,
            is_rounded=graph.is_half,
            source={
                "config": None if config is None else "config.json",
                "external_data": {name: compute_sha256(graph.path.parent / name) for name in graph.external_files},
            },
            remarks=[] if config else [f"no config.json: {describe_shape(model)}"],
        )


def describe_shape(model: Network) -> str:
    """Return the settings of a GPT-2 that weights alone do not determine."""
    shape = model.shape()
    return f"{shape['n_head']} attention heads and the activation {shape['activation']} are those of the graph"


def read_gpt2(source: CheckpointSource, graph: OnnxGraph, folder: Path | None, config: dict[str, Any] | None) -> GPT2:
    """Return a GPT-2 whose weights are `source.content`. Raises BadInputError for weights of other models."""
    from chessreg.models.adapters.gpt2 import GPT2

    if not any(name.endswith(EMBEDDINGS[0]) for name in source.content):
        names = ", ".join(sorted(source.content)[:3]) or "no named weights"
        raise BadInputError(
            f"{graph.name} is not a GPT-2 ({names}), and no config.json is in its folder",
            "copy the model's config.json there, or export it with: optimum-cli export onnx --model MODEL FOLDER",
        )
    raw = normalize_weights(source)
    if folder is not None and config is not None:
        check_gpt2(folder, config)
        return GPT2.from_weights(make_gpt2_config(config, HEAD not in raw), to_file_layout(raw))
    nodes = graph.proto.graph.node
    activations = list_activations(nodes)
    if len(activations) != 1:
        names = " and ".join(sorted(activations)) or "no GELU"
        raise BadInputError(f"{graph.name} has {names}, where a GPT-2 has one activation")
    settings = {"activation_function": activations.pop(), "layer_norm_epsilon": read_norm_epsilon(nodes)}
    heads = source.unrecorded_settings.heads or graph.find_heads()
    if heads is None:
        raise BadInputError(f"{graph.name} does not show its number of attention heads", "give --heads N")
    return GPT2.from_weights(replace(infer_shape(raw, settings, False), n_head=heads), to_file_layout(raw))


def read_with_transformers(graph: OnnxGraph, config: dict[str, Any], weights: dict[str, Tensor]) -> Network:
    """Return the model of a config.json with these weights, as a Hugging Face folder is read."""
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / graph.name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return read_foreign(folder, config)[0]


register_format(OnnxFile())
