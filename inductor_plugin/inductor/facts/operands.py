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
from inductor_plugin.inductor.facts.problem import constant, device_text, is_view
from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.problem import dtype_name
from inductor_plugin.problem.strides import storage_elements
from inductor_plugin.tuning.operand_files import OperandFiles
from inductor_plugin.worker.child.operands import build


class Operands:
    """The operands of a call, each read once for all candidates."""

    def __init__(
        self,
        nodes: Sequence[Any],
        layout: ir.Layout,
        generators: Mapping[int, Callable[[Any], torch.Tensor]],
        files: OperandFiles,
        bias: int | None = None,
    ) -> None:
        """Keep the nodes of a call; they are read when they are first needed.

        Args:
            nodes: Inputs of the call.
            layout: What it writes.
            generators: Inductor's generators of inputs whose values matter, by index.
            files: Where these values are written.
            bias: Index of the bias, if any: random even if it is frozen, since those of many models are zero.
        """
        self.seeds: dict[str, int] = {}
        self._nodes = nodes
        self._layout = layout
        self._generators = generators
        self._files = files
        self._bias = None if bias is None else nodes[bias].get_name()
        # By the node's id; the node is kept alive so that its id is not reused.
        self._views: dict[int, tuple[Any, TensorSpec]] = {}
        self._bases: dict[int, tuple[Any, TensorSpec]] = {}
        self._constants: dict[int, tuple[Any, torch.Tensor | None]] = {}
        self._generated: dict[int, TensorSpec | None] = {}
        self._values: dict[int, torch.Tensor] = {}

    @functools.cached_property
    def views(self) -> tuple[TensorSpec, ...]:
        """Operands of an operator: each input as a view of its storage."""
        return tuple(self.fixed(i) or self.view(node) for i, node in enumerate(self._nodes))

    @functools.cached_property
    def bases(self) -> tuple[TensorSpec, ...]:
        """The storage of each input, filled with random values."""
        return tuple(map(self.base, self._nodes))

    @functools.cached_property
    def distinct_bases(self) -> tuple[TensorSpec, ...]:
        """Operands of a Triton kernel: each buffer once, even if several inputs view it (x @ x.T)."""
        last = {node.get_name(): index for index, node in enumerate(self._nodes)}
        return tuple(self.generated(i) or self.base(self._nodes[i]) for i in last.values())

    @functools.cached_property
    def output(self) -> TensorSpec:
        """What the call writes."""
        return output_tensor(self._layout)

    def view(self, node: Any) -> TensorSpec:
        """Return a node as an operand of a library kernel, see `view_operand`."""
        return _once(self._views, node, lambda: view_operand(node, self.seeds))

    def base(self, node: Any) -> TensorSpec:
        """Return a node as an operand of a template kernel, see `base_operand`."""
        return _once(self._bases, node, lambda: base_operand(node, self.seeds))

    def constant(self, node: Any) -> torch.Tensor | None:
        """Return a node's frozen value, None if it is known only at run time, and for a bias."""
        if node.get_name() == self._bias:
            return None
        return _once(self._constants, node, lambda: constant(node))

    def frozen(self, node: Any) -> TensorSpec | None:
        """Return a dense frozen weight with its own values, None for any other node.

        Only on a CPU, where frozen weights are repacked; elsewhere all candidates get the same random ones.
        """
        value = self.constant(node)
        if value is None or value.device.type != "cpu" or value.layout is not torch.strided:
            return None
        layout = node.get_layout() if is_view(node) else ""
        return self._files.keep(f"{node.get_name()} {layout}", value)

    def generated(self, index: int) -> TensorSpec | None:
        """Return an operand whose values Inductor generates (ends of groups), None for any other.

        Random ends of groups would make kernels access memory out of bounds. They are generated once: candidates
        that see different values cannot be compared.
        """
        if index not in self._generators:
            return None
        if index not in self._generated:
            self._generated[index] = self._generate(index)
        return self._generated[index]

    def fixed(self, index: int) -> TensorSpec | None:
        """Return an operand whose values are the same for all candidates and not random; None for any other."""
        return self.frozen(self._nodes[index]) or self.generated(index)

    def value(self, index: int) -> torch.Tensor:
        """Return an operand in this process's memory: frozen, generated, or random."""
        node = self._nodes[index]
        value = self.constant(node)
        if value is None and self.generated(index) is not None:
            value = self._values[index]
        return value if value is not None else build(self.base(node))

    def _generate(self, index: int) -> TensorSpec | None:
        node, on_cpu = self._nodes[index], self._layout.device.type == "cpu"
        if on_cpu and self.constant(node) is not None:
            return None
        value = generated_value(node, self._generators[index])
        if value is None:
            return None
        self._values[index] = value
        operand = self._files.keep(f"{node.get_name()} (generated)", value)
        return replace(operand, device=device_text(self._layout.device))


def _once(cache: dict[int, tuple[Any, Any]], node: Any, read: Callable[[], Any]) -> Any:
    if id(node) not in cache:
        cache[id(node)] = node, read()
    return cache[id(node)][1]


def base_operand(node: Any, seeds: dict[str, int]) -> TensorSpec:
    """Return the operand of a template kernel: the base of a view, as stock Inductor benchmarks it."""
    base = node.unwrap_view() if isinstance(node, ir.BaseView) else node
    layout = base.get_layout()
    return _tensor(base, compat.hints([layout.offset])[0], seeds)


def view_operand(node: Any, seeds: dict[str, int]) -> TensorSpec:
    """Return the operand of a library kernel: the view itself, on its base's storage."""
    return _tensor(node, compat.hints([node.get_layout().offset])[0], seeds)


def output_tensor(layout: ir.Layout) -> TensorSpec:
    """Return the output of a kernel."""
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
        node: The input; its device need not exist.
        generate: Inductor's generator, which reads the node's size, dtype and device.
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
    size, stride = compat.hints(base.get_size()), compat.hints(compat.strides(base))
    return storage_elements(size, stride, compat.hints([base.get_layout().offset])[0])


class _OnHost:
    """A node that reports the CPU as its device."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def get_device(self) -> torch.device:
        return torch.device("cpu")


@contextmanager
def sizes_kept(nodes: Sequence[Any]) -> Generator[None]:
    """Undo the changes a choice's preprocessor makes to the sizes of its operands.

    Inductor's preprocessor for C++ batches replaces symbols by numbers in the operand's layout
    (`normalize_shapes`, torch/_inductor/codegen/cpp_gemm_template.py) without adding a guard.
    """
    layouts: list[Any] = [node.get_layout() for node in nodes]
    saved = [
        (layout, list(layout.size), list(layout.stride))
        for layout in layouts
        if isinstance(layout, ir.Layout)
    ]
    try:
        yield
    finally:
        layout: Any
        for layout, size, stride in saved:
            layout.size[:], layout.stride[:] = size, stride
