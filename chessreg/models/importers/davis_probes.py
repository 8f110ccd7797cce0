"""Saved probes of Davis's code: safetensors of 64 maps without bias, one per square (`linear_probe.py`).

`submodules.{square}.weight` is float32 [classes, d_model]; squares are a1, b1 … h8. Layer and phase are not in the file
but in its path, `to_piece_by_color/layer-07/phase-0/model.safetensors`, or in names with these words. Classes in the
author's order are reordered to chessreg's.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from chessreg.encodings.uci_square import davis
from chessreg.errors import BadInputError, get_first_line, reraise_lack_of_memory
from chessreg.models.hook_points import LN_FINAL, RESID_POST, RESID_PRE
from chessreg.models.importers.directions import FileOrigin, ProbeFile

LABELS = {"to_color": "color", "to_piece_by_color": "piece", "to_piece": "type"}
LABEL = re.compile("|".join(sorted(LABELS, key=len, reverse=True)))
WORDS = ("layer", "phase")  # words before the numbers in a path
PLACES = {RESID_PRE: "embeddings", RESID_POST: "blocks", LN_FINAL: "final"}
CLASSES = {3: "color", 7: "type", 13: "piece"}
ORDER = {  # label → the index of each of its classes in the author's file
    "color": [0, 2, 1],  # black, white, empty → black, empty, white
    "type": [0, 1, 2, 3, 4, 5, 6],
    "piece": [5, 4, 3, 2, 1, 0, 12, 6, 7, 8, 9, 10, 11],  # p n b r q k P N B R Q K empty → k q r b n p . P N B R Q K
}
DAVIS_LAYERS = 12  # of the author's model, whose last hidden state (12) is after the final LayerNorm (section 2)


def read_davis_probe(path: Path, name: str) -> ProbeFile:
    """Return a saved probe. `name` is its path, from which layer and phase are read if present.

    Raises BadInputError for a file that is damaged or has other content, and for a name that contradicts it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file_name = name or "the file"
    try:
        tensors = load_file(path)
    except (SafetensorError, KeyError, ValueError, TypeError, OverflowError, RuntimeError) as error:
        reraise_lack_of_memory(error)
        raise BadInputError(f"{file_name} is damaged: {get_first_line(error)}") from error
    keys = [f"submodules.{square}.weight" for square in range(64)]
    if missing_keys := [key for key in keys if key not in tensors]:
        other_tensors = ", ".join(f"{key[:60]} {list(tensor.shape)}" for key, tensor in sorted(tensors.items())[:4])
        raise BadInputError(
            f"{file_name} holds no {missing_keys[0]}, but {other_tensors or 'nothing'}",
            "a probe of Davis's has submodules.0.weight to submodules.63.weight, [classes, d_model] each",
        )
    if more := sorted(tensors.keys() - set(keys)):
        raise BadInputError(f"{file_name} holds {more[0][:60]} in addition to the weights of 64 squares")
    shapes = sorted({tuple(tensors[key].shape) for key in keys})
    if integer_dtypes := [tensors[key].dtype for key in keys if not tensors[key].is_floating_point()]:
        raise BadInputError(f"{file_name}: its weights are {integer_dtypes[0]}, not floats")
    if len(shapes) > 1 or len(shapes[0]) != 2 or shapes[0][0] not in CLASSES or not shapes[0][1]:
        shape_list = " and ".join(str(list(shape)) for shape in shapes[:3])
        raise BadInputError(
            f"{file_name}: the shape of its weights is {shape_list}",
            "known are [3, 7 or 13 classes, d_model], alike on all squares",
        )
    label = CLASSES[shapes[0][0]]
    labels = LABEL.findall(name)
    if labels and LABELS[labels[-1]] != label:
        raise BadInputError(f"{file_name} has {shapes[0][0]} classes, which do not fit the label {labels[-1]}")
    weights = np.stack([tensors[key].float().numpy() for key in keys])  # [square, class, d_model]
    if not np.isfinite(weights).all():
        raise BadInputError(f"{file_name} holds NaN or infinite values")
    index, phase = (re.findall(rf"{word}-(\d{{1,4}})(?!\d)", name) for word in WORDS)
    if phase and int(phase[-1]) >= len(davis.phases):
        raise BadInputError(f"{file_name}: phase {int(phase[-1])} does not exist", "phases are 0 to 5")
    origin = FileOrigin(
        layer=None,
        label=label,
        model=None,
        n_layers=None,
        positions=None,
        first_position=None,
        residual_index=int(index[-1]) if index else None,
        phase=int(phase[-1]) if phase else None,
        raw=True,
        file=file_name,
    )
    return ProbeFile(np.ascontiguousarray(weights[:, ORDER[label]].transpose(2, 0, 1)), origin)


def describe_path(path: Path, blocks: int = DAVIS_LAYERS) -> str:
    """Return label, phase and place named in the path of one of Davis's files, as part of a name; empty for other
    paths.

    >>> describe_path(Path("to_piece_by_color/layer-07/phase-0/model.safetensors"))
    'piece-0-blocks'
    """
    labels, (index, phase) = LABEL.findall(str(path)), (re.findall(rf"{w}-(\d{{1,4}})(?!\d)", str(path)) for w in WORDS)
    if not (labels and index and phase):
        return ""
    place = PLACES.get(get_hook_point(int(index[-1]), blocks)[0], "")
    return f"{LABELS[labels[-1]]}-{int(phase[-1])}-{place}"


def get_hook_point(index: int, blocks: int = DAVIS_LAYERS) -> tuple[str, int]:
    """Return the hook point (with * for the layer) and the 0-based layer of a hidden state of a model with `blocks`
    blocks.

    >>> get_hook_point(7)
    ('blocks.*.hook_resid_post', 6)
    """
    if not 0 <= index <= blocks:
        raise BadInputError(f"layer-{index:02}: the hidden states of {blocks} blocks are 0 to {blocks}")
    if index == 0:
        return RESID_PRE, 0
    return (LN_FINAL, blocks - 1) if index == blocks else (RESID_POST, index - 1)
