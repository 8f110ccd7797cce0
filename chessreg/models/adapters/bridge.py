"""Any Hugging Face causal model (Llama, GPT-NeoX, …) through TransformerLens' TransformerBridge, in float32 and slowly.

The fast adapters are tested against it. It has no key-value cache: sessions recompute their rows. Bridging changes a
model in place, so a bridged model is saved from weights whose names were recorded before.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chessreg.errors import BadInputError, NotFoundError, get_first_line, reraise_lack_of_memory
from chessreg.models.adapters.base import Network, map_hook_modules, read_config
from chessreg.models.adapters.gpt2 import GPT2
from chessreg.models.hook_points import PATTERNS

SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings",
         "vocab_size", "hidden_act")  # fmt: skip
"""Required settings of a configuration, by transformers' names."""
READABLE = "gpt2, llama, gpt_neox and other transformers with a longest context can be read"
BUFFERS = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")
"""Names of masks and angles that earlier versions of transformers saved as weights."""
RUN_TIME = ("transformers_version", "_name_or_path", "_attn_implementation_autoset", "torch_dtype")


class BridgedModel(Network):
    """A Hugging Face model with TransformerLens's hook points, loaded through TransformerBridge. `blocks` are the
    blocks whose outputs are the residual stream."""

    architecture = "bridge"
    points = PATTERNS

    def __init__(self, hf: Any) -> None:
        """Raises BadInputError for a family that lacks a required setting or that TransformerLens cannot bridge."""
        super().__init__()
        self.hf_config = hf.config
        self.family = hf.config.model_type
        if missing_names := [name for name in SHAPE if not hasattr(hf.config, name)]:
            raise BadInputError(
                f"models of the family {self.family} cannot be read: they have no {missing_names[0]}", READABLE
            )
        self.n_layer, self.d_model = hf.config.num_hidden_layers, hf.config.hidden_size
        self.block_size, self.vocab_size = hf.config.max_position_embeddings, hf.config.vocab_size
        self.outputs = self.vocab_size
        self.weights_by_name = list_weights(hf)
        embedding, head = hf.get_input_embeddings().weight, hf.get_output_embeddings().weight
        self.embedding_size = embedding.numel() + (0 if head is embedding else head.numel())
        token_weights = {id(embedding), id(head), id(getattr(hf.get_output_embeddings(), "bias", None))}
        self.rows_of_tokens = [
            name for name, parameter in self.weights_by_name.items() if id(parameter) in token_weights
        ]
        try:
            self.bridge = build_bridge(hf)
        except (ValueError, NotImplementedError) as error:
            message = f"TransformerLens cannot read models of the family {self.family}: {get_first_line(error)}"
            raise BadInputError(message, READABLE) from error
        self.after = [block.hook_out for block in self.bridge.blocks]

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return self.after

    @property
    def hook_points(self) -> dict[str, nn.Module]:
        first_residual, parts = self.bridge.blocks[0].hook_in, self.bridge
        return map_hook_modules(parts.embed.hook_out, first_residual, self.blocks, parts.ln_final.hook_out)

    def hidden(
        self, tokens: Tensor, positions: Tensor | None = None, cache: Any = None, mask: Tensor | None = None
    ) -> Tensor:
        if cache is not None or mask is not None:
            raise BadInputError(f"a {self.family} model is served without a cache of keys and values")
        residuals: list[Tensor] = []
        handle = self.bridge.unembed.register_forward_pre_hook(lambda module, arguments: residuals.append(arguments[0]))
        try:
            self.bridge(tokens, position_ids=positions, use_cache=False)
        finally:
            handle.remove()
        return residuals[0]

    def unembed(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.bridge.unembed(hidden)
        return logits

    def shape(self) -> dict[str, Any]:
        config = self.hf_config
        return {
            "family": self.family,
            "n_layer": self.n_layer,
            "n_head": config.num_attention_heads,
            "n_embd": self.d_model,
            "d_mlp": config.intermediate_size,
            "block_size": self.block_size,
            "vocab_size": self.vocab_size,
            "activation": config.hidden_act,
            "tied_head": bool(config.tie_word_embeddings),
        }

    def count_parameters(self) -> tuple[int, int]:
        total = sum(parameter.numel() for parameter in self.weights_by_name.values())
        return total, total - self.embedding_size

    def files(self, dtype: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        stored_dtype = getattr(torch, dtype)
        weights = {n: p.detach().to("cpu", stored_dtype).contiguous() for n, p in sorted(self.weights_by_name.items())}
        return {**make_config(self.hf_config), "dtype": dtype}, weights

    @classmethod
    def load(cls, folder: Path, shape: Mapping[str, Any], dtype: torch.dtype) -> BridgedModel:
        return cls(load_hugging_face(folder, dtype))

    def with_vocabulary(self, rows: Sequence[int]) -> BridgedModel:
        config, weights = self.files("float32")
        for name in self.rows_of_tokens:
            weights[name] = weights[name][list(rows)]
        hf = make_untrained_model(reorder_config(config, rows), 0)
        hf.load_state_dict(weights, strict=False, assign=True)
        hf.tie_weights()
        return BridgedModel(hf)

    def make_untrained(self, seed: int) -> BridgedModel:
        """Return a model as transformers initializes it, from `seed`."""
        return BridgedModel(make_untrained_model(self.hf_config, seed))


def list_weights(hf: Any) -> dict[str, nn.Parameter]:
    """Return the weights of a transformers model by their names on disk, each once."""
    tied_names = set(getattr(hf, "all_tied_weights_keys", None) or {}) if hf.config.tie_word_embeddings else set()
    return {name: parameter for name, parameter in hf.named_parameters() if name not in tied_names}


def make_config(config: Any) -> dict[str, Any]:
    """Return the content of config.json for a transformers configuration."""
    return {name: value for name, value in config.to_dict().items() if name not in RUN_TIME}


def make_untrained_model(config: Any, seed: int) -> Any:
    """Return a transformers model with initial weights drawn from `seed`. `config` is a configuration or a dict."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**config) if isinstance(config, dict) else config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).eval()


def load_hugging_face(folder: Path, dtype: torch.dtype) -> Any:
    """Return the causal model of a folder, described by its config.json. Nothing is downloaded, and no code of the
    folder runs.

    transformers resolves the files: model.safetensors, an index of shards, or the same for pytorch_model.bin. Prefixes
    of torch.compile, DDP, FSDP and Lightning are removed from names. An adapter is not applied. Raises BadInputError
    for weights that are missing, unknown, not finite, or of another shape than config.json says.
    """
    from transformers import AutoConfig
    from transformers.utils import logging

    read_config(folder)
    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # its report is raised below, in one line
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        check_claimed_size(folder, config)
        model, report = load_with_report(folder, config, dtype)
        if list_weights(model).keys() <= report["missing_keys"] and report["unexpected_keys"]:
            model, report = load_with_report(folder, config, dtype, key_mapping=PREFIXES)
    except BadInputError:
        raise
    except Exception as error:  # errors of four libraries without a common class
        reraise_lack_of_memory(error)
        hint = "supported are gpt2, llama, gpt_neox and the other architectures of the installed transformers"
        if isinstance(error, OSError):
            hint = "copy all files of the model into the folder"
        raise BadInputError(f"{folder.name} cannot be read: {get_first_line(error)}", hint) from error
    finally:
        logging.set_verbosity(verbosity)
    for name, stored_shape, config_shape in sorted(report["mismatched_keys"]):
        shapes = f"shape {list(stored_shape)}, not {list(config_shape)} as configured"
        raise BadInputError(f"{folder.name}: weight {name} has {shapes}")
    unknown = {name for name in report["unexpected_keys"] if not name.endswith(BUFFERS)}
    if wrong := sorted({*report["missing_keys"], *unknown}):
        raise BadInputError(f"{folder.name}: weights are missing or unknown: {', '.join(wrong[:3])}")
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise BadInputError(f"{folder.name}: weight {name} holds NaN or infinite values")
    return model.eval()


PREFIXES = {r"^(?:(?:_orig_mod|module|model|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+": ""}
"""Prefixes that training wrappers add to names of weights, in any order, as a renaming rule of transformers."""


def load_with_report(folder: Path, config: Any, dtype: torch.dtype, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Return the transformers model of a folder, and the library's report about names and shapes."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        folder, config=config, local_files_only=True, trust_remote_code=False, dtype=dtype, output_loading_info=True,
        ignore_mismatched_sizes=True, adapter_kwargs={"subfolder": NO_ADAPTER}, **options,
    )  # fmt: skip
    return model, report


NO_ADAPTER = "no-adapter"  # transformers looks for an adapter in this subfolder


def check_claimed_size(folder: Path, config: Any) -> None:
    """Raise BadInputError if config.json claims more embeddings and layers than the files have bytes.

    transformers would allocate them all before it compares.
    """
    file_bytes = sum(file.stat().st_size for kind in ("safetensors", "bin") for file in folder.glob(f"*.{kind}"))
    rows = [getattr(config, name, 0) for name in ("vocab_size", "num_hidden_layers")]
    rows += [config.n_positions] if config.model_type == GPT2.architecture else []
    if file_bytes and sum(rows) * getattr(config, "hidden_size", 0) > file_bytes:
        raise BadInputError(
            f"{folder.name}/config.json claims {sum(rows):,} layers and rows of embeddings of {config.hidden_size:,} "
            f"numbers; its weights are {file_bytes:,} bytes"
        )


def to_hugging_face(network: Network) -> Any:
    """Return a copy of the model as a transformers model."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config, weights = network.files(str(next(network.parameters()).dtype).removeprefix("torch."))
    with torch.device("meta"):
        hf = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="sdpa")
    hf.load_state_dict({name: tensor.clone() for name, tensor in weights.items()}, strict=False, assign=True)
    hf.tie_weights()
    return hf.eval()


def reorder_config(config: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Return a config.json whose tokens are rows[0], rows[1], …; special tokens that were dropped become None."""
    place = {row: number for number, row in enumerate(rows)}
    special = {
        name: place.get(config[name])
        for name in ("bos_token_id", "eos_token_id", "pad_token_id")
        if type(config.get(name)) is int
    }
    return {**config, **special, "vocab_size": len(rows)}


def build_bridge(hf: Any, native: bool = False) -> Any:
    """Return a TransformerBridge over a Hugging Face model, which it changes in place.

    Two kinds exist. The default one rebuilds attention with explicit scores and has all hook points. The native one,
    for GPT-2 only, keeps fused attention (four times faster at full length) and has no hook points inside it.
    """
    from transformer_lens.model_bridge.generalized_components import AttentionBridge, LinearBridge
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    def keep_attention(adapter: Any) -> None:
        adapter.component_mapping["blocks"].submodules["attn"] = AttentionBridge(
            name="attn",
            config=adapter.cfg,
            submodules={"o": LinearBridge(name="c_proj")},
            maintain_native_attention=True,
            fused_qkv=True,
        )

    return build_bridge_from_module(
        hf,
        hf.__class__.__name__,
        hf_config=hf.config,
        model_name=hf.config.model_type,
        post_adapter_hook=keep_attention if native else None,
    )


def open_bridge(network: Network, hook_points: Sequence[str] = ()) -> Any:
    """Return a TransformerBridge on which all of `hook_points` fire, with native attention if possible.

    It is a copy, except for a BridgedModel. Treat it as read-only and do not compile it, because hooks registered after
    torch.compile are ignored. Raises NotFoundError, with near misses, for names that never fire.
    """
    names = set(hook_points)
    if isinstance(network, GPT2):
        native = build_bridge(to_hugging_face(network), native=True)
        if names <= find_firing_hooks(native):
            return native
        bridge = build_bridge(to_hugging_face(network))
    elif isinstance(network, BridgedModel):
        bridge = network.bridge
    elif is_known_family(network.architecture):
        bridge = build_bridge(to_hugging_face(network))
    else:
        raise BadInputError(f"TransformerLens has no hook points for the architecture {network.architecture}")
    hook_names = find_firing_hooks(bridge)
    if unknown := sorted(names - hook_names):
        similar_names = difflib.get_close_matches(unknown[0], hook_names, 3)
        hint = (
            f"near: {', '.join(similar_names)}"
            if similar_names
            else "names are TransformerLens', as blocks.3.hook_resid_post"
        )
        raise NotFoundError(f"the model has no hook point {unknown[0]}", hint)
    return bridge


def is_known_family(architecture: str) -> bool:
    """Return whether transformers has models of this architecture."""
    from transformers import CONFIG_MAPPING

    return architecture in CONFIG_MAPPING


def find_firing_hooks(bridge: Any) -> set[str]:
    """Return the hook points that fire in a forward pass, found by running one over two tokens."""
    device = next(bridge.parameters()).device
    with torch.inference_mode():
        _, cache = bridge.run_with_cache(torch.zeros(1, 2, dtype=torch.int64, device=device))
    return set(cache.keys())
