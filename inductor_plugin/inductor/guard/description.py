"""Inputs and constants of a graph as the benchmark worker builds them: their sizes, not their values."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from inductor_plugin.inductor.facts.problem import device_text
from inductor_plugin.inductor.guard.fx_graph import overload
from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.problem import dtype_name
from inductor_plugin.worker.graph_job import MKLDNN_CONVOLUTION, GraphTensor, Input

_CARRIED_BYTES = 1 << 20
"""Largest constant whose values are sent: tables of positions and masks, scalars."""
_ANY = 1 << 16
"""Bound of integers that index nothing."""
_INDEX_NOTHING = frozenset({torch.bool, torch.int8, torch.uint8})
"""Types that are no index: weights of 8 and 4 bits, and masks."""
_INDEXED = ("index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put")
"""Operators with a list of indices, one for each dimension."""
_ALONG = ("gather", "index_select", "scatter", "scatter_add", "scatter_reduce", "index_add")
"""Operators whose integers index a dimension that is their second argument."""


class CannotDescribeError(Exception):
    """A graph reads something that a worker cannot build; the message says what."""


class Described:
    """The inputs and constants of one graph; the same tensor has the same description in all of its compiles."""

    def __init__(self, gm: fx.GraphModule, examples: Sequence[Any]) -> None:
        """Describe the inputs.

        Args:
            gm: The graph before it is compiled.
            examples: Its example inputs, fake or real; symbolic sizes have hints.

        Raises:
            CannotDescribeError: An input is nothing that can be made up.
        """
        self._seeds: dict[int, int] = {}
        self._tensors: list[Tensor] = []  # kept, so that no other gets their number
        self._packings = packings(gm)
        nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.inputs: tuple[Input, ...] = tuple(
            self._input(example, nodes[index] if index < len(nodes) else None)
            for index, example in enumerate(examples)
        )

    def constants(self, values: Mapping[str, Any]) -> tuple[tuple[str, GraphTensor], ...]:
        """Return the constants of a compiled graph.

        Raises:
            CannotDescribeError: One is no tensor, or in a layout that cannot be made up.
        """
        return tuple((name, self._constant(name, value)) for name, value in values.items())

    def _input(self, example: Any, node: fx.Node | None) -> Input:
        if isinstance(example, bool | int | float):
            return example
        if isinstance(example, torch.SymInt):
            return _hint(example)
        if not isinstance(example, Tensor) or example.layout is not torch.strided:
            raise CannotDescribeError(f"an input is {_kind(example)}, which cannot be made up")
        below = _bound(node) if node is not None and not example.is_floating_point() else 2
        return GraphTensor(_spec(example, self._seed(example)), below=below)

    def _constant(self, name: str, value: Any) -> GraphTensor:
        if not isinstance(value, Tensor):
            raise CannotDescribeError(f"constant {name} is {_kind(value)}, which is not carried")
        if value.layout is not torch.strided:
            packing = self._packings.get(id(value))
            if packing is None:
                raise CannotDescribeError(f"constant {name} is packed in a way that is not known")
            dtype, stride = dtype_name(value.dtype), _dense(packing.size)
            spec = TensorSpec(packing.size, stride, dtype, "cpu", seed=self._seed(value))
            return GraphTensor(spec, packing=packing.name, packing_arguments=packing.arguments)
        spec = _spec(value, self._seed(value))
        nbytes = value.untyped_storage().nbytes()
        if nbytes <= _CARRIED_BYTES:
            whole = replace(spec, offset=int(value.storage_offset()), seed=0)
            return GraphTensor(whole, data=_bytes(value))
        if not (value.is_floating_point() or value.dtype in _INDEX_NOTHING):
            raise CannotDescribeError(f"constant {name} holds {nbytes} bytes of integers")
        return GraphTensor(spec, below=2 if value.is_floating_point() else _ANY)

    def _seed(self, tensor: Tensor) -> int:
        if id(tensor) not in self._seeds:
            self._tensors.append(tensor)
        return self._seeds.setdefault(id(tensor), len(self._seeds) + 1)


@dataclass(frozen=True)
class Packing:
    """How a constant in an opaque layout is packed.

    Attributes:
        name: `GraphTensor.packing`.
        size: Sizes of the plain tensor.
        arguments: `GraphTensor.packing_arguments`.
    """

    name: str
    size: tuple[int, ...]
    arguments: tuple[Any, ...]


def packings(gm: fx.GraphModule) -> dict[int, Packing]:
    """Return how the constants in opaque layouts are packed, by their identity.

    oneDNN chooses a layout for the sizes of the call; only the operators that read the constant tell them.
    """
    known: dict[int, Packing] = {}
    for node in gm.graph.nodes:
        operator = overload(node.target) if node.op == "call_function" else None
        if operator is None:
            continue
        schema = operator._schema
        name = schema.name
        names = [argument.name for argument in schema.arguments]
        arguments = dict(zip(names, node.args, strict=False))
        if name.startswith("mkldnn::_linear_pointwise"):
            weight = _constant(gm, arguments["W"])
            batch = torch.Size(_size(node)[:-1]).numel()
            packing = ("mkldnn_linear", weight, (batch,))
        elif name == "mkl::_mkl_linear":
            weight = _constant(gm, arguments["MKL_W"])
            plain = _constant(gm, arguments["ORI_W"])  # the packed one has another size
            packing = ("mkl_linear", plain, (int(arguments["batch_size"]),))
        elif name == "onednn::qlinear_pointwise":
            weight = _constant(gm, arguments["qw"])
            packing = ("onednn_qlinear", weight, (_size(arguments["qx"]),))
        elif name.startswith("mkldnn::_convolution_pointwise"):
            weight = _constant(gm, arguments["W"])
            fixed = (tuple(arguments[each]) for each in ("padding", "stride", "dilation"))
            rest = (*fixed, arguments["groups"], _size(arguments["X"]))
            packing = (MKLDNN_CONVOLUTION, weight, rest)
        else:
            continue
        kind, sized, extra = packing
        if weight is not None and sized is not None and weight.layout is not torch.strided:
            size = tuple(sized.size())
            if kind == "onednn_qlinear":  # packs [N, K] as [K, N]
                size = size[::-1]
            known[id(weight)] = Packing(kind, size, extra)
    return known


def _constant(gm: fx.GraphModule, node: Any) -> Tensor | None:
    """Return the constant that a node reads, None for anything else."""
    value = getattr(gm, str(node.target), None) if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _size(node: fx.Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        raise CannotDescribeError(
            f"the sizes of {node.name}, for which a weight is packed, are not known"
        )
    return tuple(map(_hint, value.size()))


def _dense(size: Sequence[int]) -> tuple[int, ...]:
    return tuple(torch.empty(size, device="meta").stride())


def _bound(node: fx.Node) -> int:
    """Return below which number integers are in bounds of all that they index, as far as the graph tells."""
    bound, seen, waiting = _ANY, {node}, [node]
    while waiting:
        current = waiting.pop()
        for user in current.users:
            bound = min([bound, *_extents(user, current)])
            value = user.meta.get("val")
            integers = isinstance(value, Tensor) and not value.is_floating_point()
            if integers and user not in seen:
                seen.add(user)
                waiting.append(user)
    return bound


def _extents(user: fx.Node, indices: fx.Node) -> list[int]:
    """Return how many elements the dimensions have that a node indexes with these integers."""
    target: Any = user.target
    operator = overload(target)
    name = "" if operator is None else operator._schema.name.rpartition("::")[2]
    source = user.args[0] if user.args else None
    value = source.meta.get("val") if isinstance(source, fx.Node) else None
    if name == "embedding_dense_backward":
        return [_hint(user.args[2])]
    if not isinstance(value, Tensor) or source is indices:
        return []
    if name in _ALONG:
        dim: Any = user.args[1]
        return [_hint(value.size(dim))] if value.dim() else []
    if name == "embedding":
        return [_hint(value.size(0))]
    if name in _INDEXED:
        each: Any = user.args[1]
        return [_hint(value.size(dim)) for dim, index in enumerate(each) if index is indices]
    return []


def _spec(tensor: Tensor, seed: int) -> TensorSpec:
    size = tuple(map(_hint, tensor.size()))
    stride = tuple(map(_hint, tensor.stride()))
    return TensorSpec(size, stride, dtype_name(tensor.dtype), device_text(tensor.device), seed=seed)


def _bytes(tensor: Tensor) -> bytes:
    with unset_fake_temporarily():  # in which memory of a GPU would not be copied
        storage = tensor.untyped_storage().cpu()
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor in layout {value.layout}"
    return f"a {type(value).__name__}"


def _hint(extent: Any) -> int:
    if isinstance(extent, int):
        return extent
    hint = getattr(getattr(extent, "node", None), "hint", None)
    if hint is None:
        raise CannotDescribeError("a size is known only when the graph runs")
    return int(hint)
