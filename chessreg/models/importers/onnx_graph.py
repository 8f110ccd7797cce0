"""An ONNX graph of a causal language model: its weights by the modules that use them, and its logits.

Exporters rename the matrices that they transpose (`onnx::MatMul_123`, `val_9`) and store equal tensors once. Modules
are named by the nodes that read the weights: in the node's name (`/h.0/attn/c_attn/MatMul`, torch's TorchScript
exporter and optimum) or in its metadata (torch's dynamo exporter).

The graph runs in onnx's reference implementation, in float64. onnxruntime was not chosen: it computes in float32, and
reads external data before the paths are checked.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chessreg.errors import DAMAGE_ERRORS, BadInputError, NotFoundError, get_first_line, reraise_lack_of_memory

if TYPE_CHECKING:
    from torch import Tensor

GRAPH_FILES = ("model.onnx", "decoder_model.onnx")
"""Names of optimum's graphs, in the order in which a folder is searched."""
GRAPH_FOLDER = "onnx"  # of a repository whose folder has the weights in other formats too
MAX_PROTOBUF_BYTES = (1 << 31) - 1
MAX_ALIASES = 8  # nodes between a weight and its use
SCOPES = "pkg.torch.onnx.name_scopes"
TEST_TOKENS = 8
GRAPH_DAMAGE: tuple[type[Exception], ...] = (*DAMAGE_ERRORS, MemoryError)
AGAIN = "export it again, without quantization or optimization: optimum-cli export onnx --model MODEL FOLDER"
QUANTIZED_OPERATOR = re.compile(r"Quant|MatMulInteger|ConvInteger|QLinear|NBits|QAttention|QGemm")
"""Operators of graphs whose weights are integers."""
OPERATORS = frozenset({
    "Abs", "Add", "And", "Attention", "Cast", "CastLike", "Clip", "Concat", "Constant", "ConstantOfShape", "Cos",
    "CumSum", "Div", "Dropout", "Einsum", "Equal", "Erf", "Exp", "Expand", "Flatten", "Gather", "GatherElements",
    "GatherND", "Gelu", "Gemm", "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "LayerNormalization", "Less",
    "LessOrEqual", "Log", "MatMul", "Max", "Min", "Mod", "Mul", "Neg", "Not", "OneHot", "Or", "Pad", "Pow",
    "RMSNormalization", "Range", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceProd", "ReduceSum", "Relu", "Reshape",
    "RotaryEmbedding", "ScatterND", "Shape", "Sigmoid", "Sin", "Size", "Slice", "Softmax", "Split", "Sqrt", "Squeeze",
    "Sub", "Swish", "Tanh", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
"""Operators of language models. Graphs with others are not run: a Loop need not end."""


@dataclass(frozen=True)
class OnnxGraph:
    """An ONNX file. `proto` is its ModelProto, without the tensors of other files."""

    path: Path
    proto: Any

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def _producers(self) -> dict[str, Any]:
        """The node that computes each value."""
        return {output: node for node in self.proto.graph.node for output in node.output if output}

    @cached_property
    def _tensors(self) -> dict[str, Any]:
        """The TensorProto of each initializer."""
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """The initializers by name, floats in float32 or float64. Raises BadInputError."""
        return {name: self._read_array(tensor) for name, tensor in self._tensors.items()}

    def _read_array(self, tensor: Any) -> np.ndarray:
        from onnx import TensorProto, helper, numpy_helper

        known_types = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE,
                       TensorProto.INT64,
                 TensorProto.INT32, TensorProto.BOOL)  # fmt: skip
        if tensor.data_type not in known_types:
            kind = TensorProto.DataType.Name(tensor.data_type).lower() if tensor.data_type else "untyped"
            raise BadInputError(f"{self.name} is quantized or damaged: {tensor.name[:60]} is {kind}", AGAIN)
        if tensor.data_location == TensorProto.EXTERNAL:
            array = self._read_external(tensor, np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)))
        else:
            try:
                array = numpy_helper.to_array(tensor)
            except GRAPH_DAMAGE as error:
                reraise_lack_of_memory(error, 8 * tensor.ByteSize())
                reason = get_first_line(error)[:80]
                raise BadInputError(f"{self.name} is damaged: {tensor.name[:60]} cannot be read: {reason}") from error
        return array.astype(np.float32) if tensor.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16) else array

    def _read_external(self, tensor: Any, dtype: np.dtype[Any]) -> np.ndarray:
        """Return a tensor of another file. Raises BadInputError unless that file is in the graph's folder."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        file = self.find_external_file(entries.get("location", ""))
        shape, size = tuple(tensor.dims), prod(tensor.dims) * dtype.itemsize
        texts = (entries.get("offset", "0"), entries.get("length", str(size)))
        offset, length = (int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1 for text in texts)
        if min(shape, default=0) < 0 or offset < 0 or length != size or offset + size > file.stat().st_size:
            raise BadInputError(
                f"{self.name} is damaged: {tensor.name[:60]} {list(shape)} is not {texts[1][:20]} bytes of {file.name}",
                "get both files again",
            )
        return np.fromfile(file, dtype, prod(shape), offset=offset).reshape(shape)

    def find_external_file(self, location: str) -> Path:
        """Return the file of external data at a relative path. Raises BadInputError for a path outside the folder.

        A link may lead to the folder of the graph's own target, as in the cache of the Hugging Face hub.
        """
        folder, file = self.path.parent.resolve(), self.path.parent / location
        inside = bool(location) and not re.search(r"^/|\\|:|\x00|(^|/)\.\.(/|$)", location)
        if inside and file.is_file():
            place = file.resolve()
            if place.is_relative_to(folder) or place.parent == self.path.resolve().parent:
                return file
            inside = False
        if not inside:
            raise BadInputError(f"{self.name} is refused: its data would be read from {location[:80]!r}")
        raise BadInputError(f"{self.name} keeps its weights in {location[:80]}, which does not exist",
                            f"copy {location[:80]} to the folder of {self.name}")  # fmt: skip

    @property
    def is_half(self) -> bool:
        """Whether weights are in float16 or bfloat16."""
        from onnx import TensorProto

        return any(t.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16) for t in self._tensors.values())

    @property
    def external_files(self) -> list[str]:
        """The names of the files with external data."""
        entries = (entry for tensor in self._tensors.values() for entry in tensor.external_data)
        return sorted({entry.value for entry in entries if entry.key == "location"})

    def check_nodes(self) -> None:
        """Raise BadInputError for a graph that is quantized, or has operators or attributes that are not read."""
        from onnx import TensorProto

        for node in self.proto.graph.node:
            if QUANTIZED_OPERATOR.search(node.op_type):
                raise BadInputError(f"{self.name} is quantized ({node.op_type[:60]}), which cannot be imported", AGAIN)
        for node in self.proto.graph.node:
            if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
                operator = ".".join(part[:60] for part in (node.domain, node.op_type) if part)
                raise BadInputError(f"{self.name} has the operator {operator}, which cannot be imported", AGAIN)
            for attribute in node.attribute:
                if attribute.t.data_location == TensorProto.EXTERNAL or attribute.t.external_data:
                    raise BadInputError(f"{self.name} is refused: a constant is stored in another file")
        if self.proto.functions or self.proto.graph.sparse_initializer:
            content = "functions" if self.proto.functions else "sparse tensors"
            raise BadInputError(f"{self.name} has {content}, which cannot be imported", AGAIN)

    # -- weights ------------------------------------------------------------------------------------------------------

    def collect_weights(self) -> dict[str, np.ndarray]:
        """Return the weights as `MODULE.weight` and `MODULE.bias`, matrices [out, in] like torch's Linear.

        Raises BadInputError for a module that has two matrices, and the errors of `arrays`.
        """
        weights: dict[str, np.ndarray] = {}
        for name, array in self._iterate_weights():
            if name in weights and not np.array_equal(weights[name], array):
                raise BadInputError(f"{self.name} has two weights for {name[:80]}", AGAIN)
            weights[name] = array
        return weights

    def _iterate_weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and array of each weight, by the operation that uses it; linear layers are [out, in]."""
        for node in self.proto.graph.node:
            module = get_module(node)
            for place, value in enumerate(node.input):
                weight = self._find_weight(value)
                if weight is None:
                    continue
                name, array, is_transposed = weight
                part = name.rpartition(".")[2]
                if node.op_type == "Gather" and place == 0 and array.ndim == 2 and part == "weight":
                    yield f"{module}.weight", array
                elif node.op_type.endswith("Normalization") and place in (1, 2):
                    yield f"{module}.{'weight' if place == 1 else 'bias'}", array
                elif node.op_type == "MatMul" and place == 1 and array.ndim == 2:
                    yield f"{module}.weight", array if is_transposed else array.T
                elif node.op_type == "Gemm" and place == 1 and array.ndim == 2:
                    is_linear = get_attribute(node, "transB", 0) != is_transposed
                    yield f"{module}.weight", array if is_linear else array.T
                elif node.op_type == "Gemm" and place == 2:
                    yield f"{module}.bias", array
                elif node.op_type in ("Add", "Mul") and array.ndim == 1 and part in ("weight", "bias"):
                    yield f"{module}.{part}", array
                elif node.op_type == "Add" and array.ndim in (2, 3):
                    other = self._producers.get(node.input[1 - place])
                    tokens = "" if other is None or other.op_type != "Gather" else get_module(other)
                    if tokens.endswith("wte"):  # a graph of a fixed length has the rows of its positions, looked up
                        yield f"{tokens.removesuffix('wte')}wpe.weight", array.reshape(-1, array.shape[-1])

    def _find_weight(self, value: str) -> tuple[str, np.ndarray, bool] | None:
        """Return (name, array as stored, whether it is used transposed) of a value that is a weight, else None."""
        is_transposed = False
        for _ in range(MAX_ALIASES):
            if value in self._tensors:
                array = self.arrays[value]
                return (value, array, is_transposed) if array.dtype.kind == "f" else None
            node = self._producers.get(value)
            if node is None or node.op_type not in ("Identity", "Cast", "Transpose") or not node.input:
                return None
            is_transposed ^= node.op_type == "Transpose"
            value = node.input[0]
        return None

    # -- logits -------------------------------------------------------------------------------------------------------

    @cached_property
    def input_shape(self) -> tuple[int | None, int | None]:
        """Batch and length that the graph requires, None if any."""
        dims = self._token_input.type.tensor_type.shape.dim
        batch, length = (dim.dim_value or None for dim in dims)
        return batch, length

    @cached_property
    def _token_input(self) -> Any:
        """The graph's input of token ids. Raises BadInputError."""
        from onnx import TensorProto

        inputs = [value for value in self.proto.graph.input if value.name not in self._tensors]
        tokens = [
            value
            for value in inputs
            if value.type.tensor_type.elem_type in (TensorProto.INT64, TensorProto.INT32)
            and len(value.type.tensor_type.shape.dim) == 2
            and not re.search(r"mask|position", value.name)
        ]
        if len(tokens) != 1:
            names = ", ".join(value.name[:40] for value in inputs[:4]) or "none"
            raise BadInputError(f"{self.name} does not read token ids [batch, length] alone; its inputs are {names}")
        return tokens[0]

    def compute_logits(self, tokens: Tensor, exact: bool) -> Tensor:
        """Return logits [batch, length, vocab] of tokens [batch, length], in float64 if `exact`, else in float32.

        Graphs that keep only the last token's logits give length 1.
        """
        import torch

        output = self.proto.graph.output[0].name
        logits = torch.from_numpy(self._run(tokens.numpy(), [output], np.float64 if exact else np.float32)[0])
        if logits.dim() != 3 or logits.shape[0] != len(tokens) or logits.shape[1] not in (1, tokens.shape[1]):
            raise BadInputError(f"{self.name}: its first output {output[:40]} {list(logits.shape)} is not logits")
        return logits.double()

    def find_heads(self) -> int | None:
        """Return the number of attention heads, by the shape of the attention pattern; None without one."""
        patterns = [n.output[0] for n in self.proto.graph.node if n.op_type in ("Softmax", "Attention") and n.output]
        batch, length = self.input_shape
        tokens = np.zeros((batch or 1, length or TEST_TOKENS), np.int64)
        results = self._run(tokens, patterns[:1], np.float32)
        return results[0].shape[1] if results and results[0].ndim == 4 else None

    def _run(self, tokens: np.ndarray, outputs: list[str], dtype: Any) -> list[np.ndarray]:
        """Return values of the graph for tokens [batch, length], with floats of `dtype`. Raises BadInputError."""
        from onnx.reference import ReferenceEvaluator

        proto = type(self.proto)()
        proto.CopyFrom(self.proto)
        for field in ("initializer", "sparse_initializer", "value_info"):
            proto.graph.ClearField(field)
        for node in proto.graph.node:
            set_float_type(node, dtype)
        feeds = {n: array.astype(dtype) if array.dtype.kind == "f" else array for n, array in self.arrays.items()}
        feeds |= self._make_inputs(tokens, dtype)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about casts of masks
                values: list[np.ndarray] = ReferenceEvaluator(proto).run(outputs, feeds)
        except GRAPH_DAMAGE as error:
            raise BadInputError(f"{self.name} cannot be run: {get_first_line(error)[:120]}", AGAIN) from error
        return values

    def _make_inputs(self, tokens: np.ndarray, dtype: Any) -> dict[str, np.ndarray]:
        """Return the graph's inputs for tokens [batch, length] without a padding and without a cache."""
        from onnx import helper

        batch, length = tokens.shape
        inputs = {}
        for value in self.proto.graph.input:
            kind, dims = value.type.tensor_type, [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            if value.name in self._tensors:
                continue
            if value.name == self._token_input.name:
                inputs[value.name] = tokens.astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
            elif "mask" in value.name and kind.elem_type:
                element = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
                inputs[value.name] = np.ones((batch, length), element if element.kind in "bi" else dtype)
            elif "position" in value.name and kind.elem_type:
                places = np.arange(length, dtype=helper.tensor_dtype_to_np_dtype(kind.elem_type))
                inputs[value.name] = places if len(dims) == 1 else np.tile(places, (batch, 1))
            elif value.name.startswith("past_key_values") and len(dims) == 4 and dims[1] > 0 and dims[3] > 0:
                inputs[value.name] = np.zeros((batch, dims[1], 0, dims[3]), dtype)
            else:
                raise BadInputError(f"{self.name} has the input {value.name[:60]}, which language models do not have")
        return inputs


def get_module(node: Any) -> str:
    """Return the dotted name of the module that a node belongs to, empty if neither metadata nor name have it."""
    scopes = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), "")
    names = re.findall(r"'([^']*)'", scopes)
    return str(names[-2]) if len(names) > 1 else ".".join(node.name.split("/")[1:-1])


def get_attribute(node: Any, name: str, default: Any) -> Any:
    """Return the value of a node's attribute."""
    from onnx import helper

    return next((helper.get_attribute_value(one) for one in node.attribute if one.name == name), default)


def set_float_type(node: Any, dtype: Any) -> None:
    """Change the constants and casts of a node from floats of any width to `dtype`, and remove dropout."""
    from onnx import TensorProto, helper, numpy_helper

    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
    if node.op_type == "Dropout":  # of a model exported in training mode
        del node.input[1:]
    for attribute in node.attribute:
        if attribute.name == "to" and attribute.i in floats:
            attribute.i = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        elif attribute.type == attribute.TENSOR and attribute.t.data_type in floats:
            attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype(dtype)))
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            value = np.array(helper.get_attribute_value(attribute), dtype)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))


def open_graph(path: Path) -> OnnxGraph:
    """Return the graph of an ONNX file without reading its weights.

    Raises NotFoundError if onnx is not installed, BadInputError for a damaged file and for operators of other models.
    """
    try:
        import onnx
    except ImportError as error:
        raise NotFoundError(
            f"{path.name} is an ONNX graph, which is read with onnx, and that is not installed",
            "pip install 'chessreg[onnx]'",
        ) from error
    if path.stat().st_size > MAX_PROTOBUF_BYTES:
        raise BadInputError(f"{path.name} is larger than 2 GiB: it is not an ONNX graph")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except Exception as error:  # protobuf's DecodeError has no common class with other errors of damage
        reraise_lack_of_memory(error)
        raise BadInputError(f"{path.name} is damaged: it is not an ONNX graph", "get the file again") from error
    if not proto.graph.node or not proto.graph.output:
        raise BadInputError(f"{path.name} is damaged: it has no graph", "get the file again")
    graph = OnnxGraph(path, proto)
    graph.check_nodes()
    return graph


def find_graph_file(folder: Path) -> Path | None:
    """Return the ONNX file of a folder, or None if it has none or has weights of transformers.

    Raises BadInputError for several files, none of which has a usual name.
    """
    if any(folder.glob("model*.safetensors*")) or any(folder.glob("pytorch_model*.bin*")):
        return None
    for place in (folder, folder / GRAPH_FOLDER):
        files = {path.name: path for path in sorted(place.glob("*.onnx"))} if place.is_dir() else {}
        if graph_file := next((files[name] for name in GRAPH_FILES if name in files), None):
            return graph_file
        if len(files) > 1:
            raise BadInputError(f"{place.name} has {len(files)} ONNX files: {', '.join(list(files)[:4])}",
                                f"name one, such as {place / next(iter(files))}")  # fmt: skip
        if files:
            return next(iter(files.values()))
    return None


def find_config_folder(path: Path) -> Path | None:
    """Return the folder of a graph's config.json: its own, or the one above `onnx`; None without one."""
    folders = [path.parent, *([path.parent.parent] if path.parent.name == GRAPH_FOLDER else [])]
    return next((folder for folder in folders if (folder / "config.json").is_file()), None)


def list_activations(nodes: Iterable[Any]) -> set[str]:
    """Return the activations of GPT-2 in a graph, by transformers' names: gelu, or gelu_new for its approximation."""
    activations = set()
    for node in nodes:
        if node.op_type == "Gelu":
            approximate = get_attribute(node, "approximate", b"none")
            activations.add("gelu_new" if approximate == b"tanh" else "gelu")
        elif node.op_type in ("Erf", "Tanh"):
            activations.add("gelu" if node.op_type == "Erf" else "gelu_new")
    return activations


def read_norm_epsilon(nodes: Iterable[Any], default: float = 1e-5) -> float:
    """Return the epsilon of the first LayerNorm of a graph."""
    norms = (node for node in nodes if node.op_type == "LayerNormalization")
    return next((float(f"{get_attribute(node, 'epsilon', default):.6g}") for node in norms), default)


def name_parameters(weights: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return float32 tensors with the names and values of `weights`."""
    import torch

    return {name: torch.from_numpy(np.array(array, np.float32, order="C")) for name, array in weights.items()}
