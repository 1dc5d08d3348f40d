"""Inductor's IR nodes as operands for the benchmark worker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch._inductor import ir

from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.problem import constant, device_text, dtype_name
from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.tuning.operand_files import OperandFiles


class Operands:
    """The operands of one call, each read once however many candidates ask for it."""

    def __init__(
        self,
        nodes: Sequence[Any],
        layout: ir.Layout,
        generators: Mapping[int, Callable[[Any], torch.Tensor]],
        files: OperandFiles,
    ) -> None:
        """Read nothing yet.

        Args:
            nodes: Inputs of the call.
            layout: What it writes.
            generators: Inductor's generators of inputs whose values matter.
            files: Where such values are written.
        """
        self.seeds: dict[str, int] = {}
        self._nodes = nodes
        self._layout = layout
        self._generators = generators
        self._files = files
        # By a node's id, and with the node, so that no id is used twice.
        self._views: dict[int, tuple[Any, TensorSpec]] = {}
        self._bases: dict[int, tuple[Any, TensorSpec]] = {}
        self._constants: dict[int, tuple[Any, torch.Tensor | None]] = {}
        self._generated: dict[int, TensorSpec | None] = {}

    @functools.cached_property
    def views(self) -> tuple[TensorSpec, ...]:
        """What an operator is given: each input as the view it is."""
        return tuple(self.generated(i) or self.view(node) for i, node in enumerate(self._nodes))

    @functools.cached_property
    def bases(self) -> tuple[TensorSpec, ...]:
        """The storage under each input, random throughout."""
        return tuple(map(self.base, self._nodes))

    @functools.cached_property
    def distinct_bases(self) -> tuple[TensorSpec, ...]:
        """What a Triton kernel is given: each buffer once, however many inputs view it (x @ x.T)."""
        last = {node.get_name(): index for index, node in enumerate(self._nodes)}
        return tuple(self.generated(i) or self.base(self._nodes[i]) for i in last.values())

    @functools.cached_property
    def output(self) -> TensorSpec:
        """What the call writes."""
        return output_tensor(self._layout)

    def view(self, node: Any) -> TensorSpec:
        """Return what a library kernel is given for a node, see `view_operand`."""
        return _once(self._views, node, lambda: view_operand(node, self.seeds))

    def base(self, node: Any) -> TensorSpec:
        """Return what a template kernel is given for a node, see `base_operand`."""
        return _once(self._bases, node, lambda: base_operand(node, self.seeds))

    def constant(self, node: Any) -> torch.Tensor | None:
        """Return a node's frozen value, None if it is known at run time only."""
        return _once(self._constants, node, lambda: constant(node))

    def generated(self, index: int) -> TensorSpec | None:
        """Return an operand whose values Inductor generates (ends of groups), None for any other.

        Random ends of groups would make a kernel read and write outside its operands.
        """
        if index not in self._generators or self._layout.device.type == "cpu":
            return None
        if index not in self._generated:
            self._generated[index] = self._generate(index)
        return self._generated[index]

    def _generate(self, index: int) -> TensorSpec | None:
        node = self._nodes[index]
        value = generated_value(node, self._generators[index])
        if value is None:
            return None
        kept = self._files.keep(f"{node.get_name()} (generated)", value)
        return replace(kept, device=device_text(self._layout.device))


def _once(known: dict[int, tuple[Any, Any]], node: Any, read: Callable[[], Any]) -> Any:
    if id(node) not in known:
        known[id(node)] = node, read()
    return known[id(node)][1]


def base_operand(node: Any, seeds: dict[str, int]) -> TensorSpec:
    """Return the tensor a template kernel is given: the base of a view, as stock benchmarks it."""
    base = node.unwrap_view() if isinstance(node, ir.BaseView) else node
    layout = base.get_layout()
    return _tensor(base, compat.hints([layout.offset])[0], seeds)


def view_operand(node: Any, seeds: dict[str, int]) -> TensorSpec:
    """Return the tensor a library kernel is given: the view itself, on its base's storage."""
    return _tensor(node, compat.hints([node.get_layout().offset])[0], seeds)


def output_tensor(layout: ir.Layout) -> TensorSpec:
    """Return what a kernel writes."""
    return TensorSpec(
        size=compat.hints(layout.size),
        stride=compat.hints(layout.stride),
        dtype=dtype_name(layout.dtype),
        device=device_text(layout.device),
        offset=compat.hints([layout.offset])[0],
    )


def generated_value(node: Any, generate: Callable[[Any], Any]) -> torch.Tensor | None:
    """Return what Inductor generates for a node, in this process's memory; None if nothing.

    Args:
        node: The input; its device may be one that is not there.
        generate: Inductor's generator, which asks the node for size, type and device.
    """
    return generate(_OnHost(node))


def _tensor(node: Any, offset: int, seeds: dict[str, int]) -> TensorSpec:
    name = node.get_name()
    base = node.unwrap_view() if isinstance(node, ir.BaseView) else node
    return TensorSpec(
        size=compat.hints(node.get_size()),
        stride=compat.hints(compat.strides(node)),
        dtype=dtype_name(node.get_dtype()),
        device=device_text(node.get_device()),
        offset=offset,
        seed=seeds.setdefault(name, len(seeds) + 1),
        storage=_storage(base),
    )


def _storage(base: Any) -> int:
    size = compat.hints(base.get_size())
    stride = compat.hints(compat.strides(base))
    offset = compat.hints([base.get_layout().offset])[0]
    if 0 in size:
        return offset
    return offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


class _OnHost:
    """A node that says it is on the CPU."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def get_device(self) -> torch.device:
        return torch.device("cpu")


@contextmanager
def sizes_kept(nodes: Sequence[Any]) -> Generator[None]:
    """Undo what a choice's preprocessor does to the sizes of its operands.

    Inductor's for C++ batches writes numbers over symbols in the operand's layout
    (`normalize_shapes`, torch/_inductor/codegen/cpp_gemm_template.py), which no guard holds it to.
    """
    layouts: list[Any] = [one.get_layout() for one in nodes]
    kept = [
        (one, list(one.size), list(one.stride)) for one in layouts if isinstance(one, ir.Layout)
    ]
    try:
        yield
    finally:
        written: Any
        for written, size, stride in kept:
            written.size[:], written.stride[:] = size, stride
