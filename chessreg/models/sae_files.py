"""Sparse autoencoders in the folders of other programs.

SAELens: `cfg.json` and `sae_weights.safetensors`. dictionary_learning: `config.json` and `ae.pt`. Both name the
architecture, the hook point and the options of the encoder. An option that chessreg cannot compute is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from chessreg.errors import BadInputError, NotFoundError, get_first_line, reraise_lack_of_memory
from chessreg.models.gated_sae import GatedSae
from chessreg.models.hook_points import format_hook_point
from chessreg.models.importers.source import read_safetensors, read_torch_file
from chessreg.models.sparse_autoencoders import JumpReluSae, ReluSae, SparseAutoencoder, TopKSae

Layout = Literal["saelens", "dictionary_learning"]
LAYOUT_FILES: dict[Layout, tuple[str, str]] = {
    "saelens": ("cfg.json", "sae_weights.safetensors"),
    "dictionary_learning": ("config.json", "ae.pt"),
}
"""The settings and the weights of each layout."""
MAX_SETTINGS_BYTES = 1 << 20
WRITTEN_VERSION = "6.0.0"
"""The version of SAELens' layout that `write_sae_folder` states. Loaders convert folders of versions before 6."""

SAELENS_NAMES: dict[str, dict[str, str]] = {
    "standard": {"W_enc": "W_enc", "b_enc": "b_enc"},
    "topk": {"W_enc": "W_enc", "b_enc": "b_enc"},
    "jumprelu": {"W_enc": "W_enc", "b_enc": "b_enc", "threshold": "threshold"},
    "gated": {"W_gate": "W_enc", "b_gate": "b_gate", "r_mag": "r_mag", "b_mag": "b_mag"},
}
"""Architecture → attribute → name of the tensor; W_dec and b_dec have the same names. Encoders are transposed."""
ARCHITECTURES: dict[str, type[SparseAutoencoder]] = {
    one.architecture: one for one in (GatedSae, ReluSae, TopKSae, JumpReluSae)
}
LINEAR = {"W_enc": "encoder.weight", "b_enc": "encoder.bias", "W_dec": "decoder.weight", "b_dec": "b_dec"}
PLAIN = {"W_enc": "W_enc", "b_enc": "b_enc", "W_dec": "W_dec", "b_dec": "b_dec", "threshold": "threshold"}


@dataclass(frozen=True)
class DictionaryClass:
    """A class of dictionary_learning: the architecture, the names of its tensors, and whether it subtracts the
    decoder's bias. `threshold` is True for classes with one threshold for all latents."""

    architecture: str
    names: Mapping[str, str]
    subtracts_bias: bool = True
    threshold: bool = False


DICTIONARY_CLASSES = {
    "AutoEncoder": DictionaryClass("standard", LINEAR | {"b_dec": "bias"}),
    "AutoEncoderNew": DictionaryClass("standard", LINEAR | {"b_dec": "decoder.bias"}, subtracts_bias=False),
    "AutoEncoderTopK": DictionaryClass("topk", LINEAR),
    "BatchTopKSAE": DictionaryClass("jumprelu", LINEAR, threshold=True),
    "MatryoshkaBatchTopKSAE": DictionaryClass("jumprelu", PLAIN, threshold=True),
    "JumpReluAutoEncoder": DictionaryClass("jumprelu", PLAIN, subtracts_bias=False),
    "GatedAutoEncoder": DictionaryClass(
        "gated",
        {
            "W_gate": "encoder.weight", "b_gate": "gate_bias", "r_mag": "r_mag", "b_mag": "mag_bias",
            "W_dec": "decoder.weight", "b_dec": "decoder_bias",
        },
    ),
}  # fmt: skip
UNUSED_TENSORS = ("k", "threshold", "group_sizes")
"""Tensors of dictionary_learning that the chosen architecture may not need."""


@dataclass(frozen=True)
class SaeFile:
    """An autoencoder of a folder, its hook point (None: not stated), and the settings of the folder unchanged.

    `dtype` is the type of the stored weights; the autoencoder's are float32.
    """

    sae: SparseAutoencoder
    layout: Layout
    hook_point: str | None
    settings: dict[str, Any]
    dtype: str


def find_layout(folder: Path) -> Layout:
    """Return the layout of a folder by its files. Raises NotFoundError or BadInputError."""
    if not folder.is_dir():
        raise NotFoundError(f"{folder} is not a folder" if folder.exists() else f"{folder} does not exist")
    for layout, names in LAYOUT_FILES.items():
        if all((folder / name).is_file() for name in names):
            return layout
    expected_files = " or ".join(" and ".join(names) for names in LAYOUT_FILES.values())
    raise BadInputError(f"{folder.name or folder} is not the folder of one SAE", f"it needs {expected_files}")


def list_sae_files(folder: Path) -> dict[str, Path]:
    """Return name → path of the two files of an SAE's folder. Raises NotFoundError or BadInputError."""
    return {name: folder / name for name in LAYOUT_FILES[find_layout(folder)]}


def read_sae_folder(folder: Path, name: str = "") -> SaeFile:
    """Return the autoencoder of a folder in either layout. `name` is the folder's name in messages.

    Raises NotFoundError or BadInputError for a folder without an SAE, a damaged file, an unknown architecture, and an
    option that chessreg cannot compute. No code of the files is run.
    """
    layout, name = find_layout(folder), name or folder.name
    settings_file, weights_file = (folder / file for file in LAYOUT_FILES[layout])
    settings = read_settings(settings_file, name)
    read_file = read_saelens if layout == "saelens" else read_dictionary
    weights = read_safetensors(weights_file) if layout == "saelens" else read_torch_file(weights_file)
    if not isinstance(weights, dict) or not all(isinstance(one, Tensor) for one in weights.values()):
        raise BadInputError(f"{name}/{weights_file.name} is not a file of tensors by name")
    try:
        sae, point = read_file(settings, weights, name)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        reraise_lack_of_memory(error)
        raise BadInputError(f"{name} is damaged: {type(error).__name__} {get_first_line(error)}") from error
    check_sae(sae, name)
    dtype = str(weights["W_dec" if "W_dec" in weights else "decoder.weight"].dtype).removeprefix("torch.")
    return SaeFile(sae, layout, point, settings, dtype)


def read_settings(path: Path, name: str) -> dict[str, Any]:
    """Return the content of a JSON file of settings. Raises BadInputError."""
    try:
        if path.stat().st_size > MAX_SETTINGS_BYTES:
            raise ValueError(f"more than {MAX_SETTINGS_BYTES >> 20} MiB")
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(f"{name}/{path.name} cannot be read: {get_first_line(error)}") from error
    if not isinstance(settings, dict):
        raise BadInputError(f"{name}/{path.name} is not a JSON object of settings")
    return settings


def check_sae(sae: SparseAutoencoder, name: str) -> None:
    """Raise BadInputError for shapes that do not agree, NaN or infinite values, and a k beyond the latents."""
    if sae.W_dec.dim() != 2:
        raise BadInputError(f"{name}: W_dec has shape {list(sae.W_dec.shape)}, not [features, d_model]")
    for tensor, shape in sae.list_shapes(sae.features, sae.d_model).items():
        value = getattr(sae, tensor)
        if tuple(value.shape) != shape:
            raise BadInputError(f"{name}: {tensor} has shape {list(value.shape)}, W_dec requires {list(shape)}")
        if not bool(value.isfinite().all()):
            raise BadInputError(f"{name}: {tensor} has NaN or infinite values")
    if isinstance(sae, TopKSae) and not 1 <= sae.k <= sae.features:
        raise BadInputError(f"{name}: k is {sae.k}, but there are {sae.features} latents")


def to_float(tensor: Tensor, is_transposed: bool = False) -> Tensor:
    """Return a tensor of weights in float32, perhaps transposed. Raises TypeError unless it has floats."""
    if not tensor.is_floating_point():
        raise TypeError(f"weights have type {tensor.dtype}")
    return (tensor.T if is_transposed else tensor).float().contiguous()


# -- SAELens -----------------------------------------------------------------------------------------------------------


def read_saelens(settings: dict[str, Any], weights: dict[str, Tensor], name: str) -> tuple[SparseAutoencoder, Any]:
    """Return the autoencoder of SAELens' settings and weights, and its hook point."""
    metadata = settings.get("metadata") or {}
    old = not isinstance(settings.get("metadata"), dict)  # before version 6
    architecture = settings.get("architecture", "standard" if old else None)
    k = settings.get("k")
    if old and settings.get("activation_fn", settings.get("activation_fn_str")) == "topk":
        architecture, k = "topk", (settings.get("activation_fn_kwargs") or {}).get("k")
    if architecture not in ARCHITECTURES:
        raise BadInputError(
            f"{name}: architecture {architecture!r} of SAELens cannot be read", f"known: {', '.join(ARCHITECTURES)}"
        )
    refuse_saelens_options(settings, weights, name)
    names = SAELENS_NAMES[architecture] | {"W_dec": "W_dec", "b_dec": "b_dec"}
    require_tensors(weights, set(names.values()), {"scaling_factor"}, name)
    tensors = {ours: to_float(weights[theirs], theirs == "W_enc") for ours, theirs in names.items()}
    bias = bool(settings.get("apply_b_dec_to_input", True))
    sae = build_sae(architecture, tensors, bias, k, name)
    if settings.get("rescale_acts_by_decoder_norm"):
        sae = fold_decoder_norms(sae)
    return sae, metadata.get("hook_name") or settings.get("hook_name") or settings.get("hook_point")


def refuse_saelens_options(settings: dict[str, Any], weights: dict[str, Tensor], name: str) -> None:
    """Raise BadInputError for an option of SAELens that changes the input or output of the autoencoder."""
    normalization = settings.get("normalize_activations") or "none"
    if normalization is True or normalization == "expected_average_only_in":
        raise BadInputError(
            f"{name}: normalize_activations {normalization!r} needs a factor that the folder does not have",
            "in SAELens, call sae.fold_activation_norm_scaling_factor(factor) and save it again",
        )
    options: dict[str, tuple[Any, Any]] = {"normalize_activations": (normalization, "none")}
    options["reshape_activations"] = (settings.get("reshape_activations") or "none", "none")
    if settings.get("finetuning_scaling_factor") or "scaling_factor" in weights:
        options["finetuning_scaling_factor"] = (True, False)
    for option, (value, plain) in options.items():
        if value != plain:
            raise BadInputError(f"{name}: {option} {value!r} cannot be computed", f"only {plain!r} can")


def require_tensors(weights: Mapping[str, Tensor], needed_names: set[str], unused_names: set[str], name: str) -> None:
    """Raise BadInputError if one of the weights `needed_names` is missing, or if a weight is neither in `needed_names`
    nor in `unused_names`. `name` is the file's name.
    """
    if missing_names := sorted(needed_names - weights.keys()):
        raise BadInputError(f"{name} has no weights {', '.join(missing_names)}", f"it has {', '.join(sorted(weights))}")
    if unknown := sorted(weights.keys() - needed_names - unused_names):
        raise BadInputError(f"{name} has weights of an unknown architecture: {', '.join(unknown[:5])}")


def build_sae(
    architecture: str, tensors: dict[str, Tensor], subtracts_bias: bool, k: Any, name: str
) -> SparseAutoencoder:
    """Return the autoencoder of an architecture. Raises BadInputError if `k` is needed and not a number."""
    settings: dict[str, Any] = {"subtracts_bias": subtracts_bias}
    if architecture == "topk":
        if type(k) is not int:
            raise BadInputError(f"{name}: k is {k!r}, not the number of latents that stay active")
        settings["k"] = k
    sae: SparseAutoencoder = ARCHITECTURES[architecture](**tensors, **settings)
    return sae


def fold_decoder_norms(sae: SparseAutoencoder) -> SparseAutoencoder:
    """Return an autoencoder of equal output whose decoder has unit rows: the latents are multiplied by the norms.

    If the rows have norm 1 up to rounding, the autoencoder is returned unchanged.
    """
    assert isinstance(sae, ReluSae)
    norms = sae.W_dec.norm(dim=1)
    if torch.allclose(norms, torch.ones_like(norms)):
        return sae
    tensors = {
        "W_enc": sae.W_enc * norms[:, None],
        "b_enc": sae.b_enc * norms,
        "W_dec": sae.W_dec / norms[:, None],
        "b_dec": sae.b_dec,
    }
    return type(sae)(**tensors, **sae.read_settings())


# -- dictionary_learning -----------------------------------------------------------------------------------------------


def read_dictionary(settings: dict[str, Any], weights: dict[str, Tensor], name: str) -> tuple[SparseAutoencoder, Any]:
    """Return the autoencoder of dictionary_learning's settings and weights, and its hook point.

    Latents equal those of its `load_dictionary`, which gives the decoder of an `AutoEncoder` unit columns.
    """
    trainer = settings.get("trainer")
    if not isinstance(trainer, dict):
        raise BadInputError(f"{name}/config.json has no settings of a trainer")
    dictionary_class = trainer.get("dict_class")
    if dictionary_class not in DICTIONARY_CLASSES:
        known_names = ", ".join(DICTIONARY_CLASSES)
        raise BadInputError(
            f"{name}: class {dictionary_class!r} of dictionary_learning cannot be read", f"known: {known_names}"
        )
    class_names = DICTIONARY_CLASSES[dictionary_class]
    names = {
        ours: theirs
        for ours, theirs in class_names.names.items()
        if ours in ARCHITECTURES[class_names.architecture].names
    }
    if class_names.threshold:
        names["threshold"] = "threshold"
    require_tensors(weights, set(names.values()), set(UNUSED_TENSORS), name)
    tensors = {ours: to_float(weights[theirs], is_transposed(ours, theirs)) for ours, theirs in names.items()}
    if class_names.threshold:
        tensors["threshold"] = tensors["threshold"].expand(len(tensors["b_enc"])).contiguous()
    k = trainer.get("k", int(weights["k"]) if "k" in weights else None)
    sae = build_sae(class_names.architecture, tensors, class_names.subtracts_bias, k, name)
    if dictionary_class == "AutoEncoder":
        sae = fold_decoder_norms(sae)
    return sae, find_dictionary_point(trainer)


def is_transposed(ours: str, theirs: str) -> bool:
    """Return whether a tensor of dictionary_learning is the transpose of the attribute of that name.

    Linear layers have weights [outputs, inputs]; plain encoders have [d_model, features].
    """
    return theirs == "decoder.weight" or (ours[0] == theirs[0] == "W" and theirs == "W_enc")


def find_dictionary_point(trainer: Mapping[str, Any]) -> str | None:
    """Return the hook point that the settings of a trainer name, or None.

    >>> find_dictionary_point({"layer": 3, "submodule_name": "resid_post_layer_3"})
    'blocks.3.hook_resid_post'
    """
    layer, module = trainer.get("layer"), str(trainer.get("submodule_name") or "")
    if re.fullmatch(r"blocks\.\d+\.\w+", module):
        return module
    match = re.fullmatch(r"(resid_post|resid_pre)_layer_(\d+)", module)
    if match and int(match[2]) == layer:
        return format_hook_point(int(match[2]), f"blocks.*.hook_{match[1]}")
    return None


# -- writing -----------------------------------------------------------------------------------------------------------


def write_sae_folder(
    sae: SparseAutoencoder, folder: Path, layout: Layout, metadata: Mapping[str, Any], dtype: str = "float32"
) -> None:
    """Write an autoencoder into an existing empty folder. `metadata` has `hook_name`, `layer` and `model_name`.

    The scale of the residual is multiplied into the weights, as SAELens does when it saves. An SAE that was imported in
    the same layout gets the same tensors again, bit for bit, if `dtype` is that of the imported file.

    Raises BadInputError for an architecture that the layout does not have.
    """
    sae = fold_scale(sae)
    stored_dtype = getattr(torch, dtype)
    if layout == "saelens":
        settings, weights = build_saelens(sae, metadata, dtype)
    else:
        settings, weights = build_dictionary(sae, metadata)
    weights = {name: one.to(stored_dtype) if one.is_floating_point() else one for name, one in weights.items()}
    settings_file, weights_file = (folder / name for name in LAYOUT_FILES[layout])
    settings_file.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    if layout == "saelens":
        from safetensors.torch import save_file

        save_file(weights, weights_file)
    else:
        torch.save(weights, weights_file)


def fold_scale(sae: SparseAutoencoder) -> SparseAutoencoder:
    """Return an autoencoder with equal latents and output whose scale is 1."""
    if sae.scale == 1:
        return sae
    factors: dict[str, Callable[[Tensor], Tensor]] = {
        "W_gate": lambda tensor: tensor * sae.scale,
        "W_enc": lambda tensor: tensor * sae.scale,
        "W_dec": lambda tensor: tensor / sae.scale,
        "b_dec": lambda tensor: tensor / sae.scale,
    }
    tensors = {name: factors.get(name, lambda tensor: tensor)(one) for name, one in sae.parameters().items()}
    return type(sae)(**tensors, **sae.read_settings() | {"scale": 1.0})


def build_saelens(
    sae: SparseAutoencoder, metadata: Mapping[str, Any], dtype: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the content of cfg.json and of sae_weights.safetensors."""
    names = SAELENS_NAMES[sae.architecture] | {"W_dec": "W_dec", "b_dec": "b_dec"}
    weights = {
        theirs: (getattr(sae, ours).T if theirs == "W_enc" else getattr(sae, ours)).contiguous()
        for ours, theirs in names.items()
    }
    settings = {
        "d_in": sae.d_model,
        "d_sae": sae.features,
        "dtype": dtype,
        "device": "cpu",
        "apply_b_dec_to_input": sae.subtracts_bias,
        "normalize_activations": "none",
        "reshape_activations": "none",
        **({"k": sae.k, "rescale_acts_by_decoder_norm": False} if isinstance(sae, TopKSae) else {}),
        "metadata": {
            "sae_lens_version": WRITTEN_VERSION,
            "sae_lens_training_version": None,
            **metadata,
        },
        "architecture": sae.architecture,
    }
    return settings, weights


def build_dictionary(sae: SparseAutoencoder, metadata: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the content of config.json and of ae.pt. Raises BadInputError for an unsupported architecture."""
    dictionary_class = find_dictionary_class(sae)
    class_names = DICTIONARY_CLASSES[dictionary_class]
    weights = {
        class_names.names[ours]: (one.T if is_transposed(ours, class_names.names[ours]) else one).contiguous()
        for ours, one in sae.parameters().items()
        if ours in class_names.names
    }
    if isinstance(sae, TopKSae):
        weights |= {"threshold": torch.tensor(-1.0), "k": torch.tensor(sae.k, dtype=torch.int32)}
    trainer = {
        "dict_class": dictionary_class,
        "activation_dim": sae.d_model,
        "dict_size": sae.features,
        **({"k": int(weights["k"])} if "k" in weights else {}),
        "layer": metadata.get("layer"),
        "lm_name": metadata.get("model_name"),
        "submodule_name": metadata.get("hook_name"),
    }
    return {"trainer": trainer}, weights


def find_dictionary_class(sae: SparseAutoencoder) -> str:
    """Return the class of dictionary_learning that computes an autoencoder. Raises BadInputError if none does."""
    if sae.architecture == "standard":
        return "AutoEncoder" if sae.subtracts_bias else "AutoEncoderNew"
    if (sae.architecture == "jumprelu") != sae.subtracts_bias:
        return {"topk": "AutoEncoderTopK", "gated": "GatedAutoEncoder", "jumprelu": "JumpReluAutoEncoder"}[
            sae.architecture
        ]
    bias = "subtracts" if sae.subtracts_bias else "does not subtract"
    raise BadInputError(
        f"dictionary_learning has no {sae.architecture} SAE that {bias} the decoder's bias", "--layout saelens"
    )
