"""Inductor's IR nodes as operands for the benchmark worker."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._inductor import ir

from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.problem import device_text, dtype_name
from inductor_plugin.kernels.call import Tensor


def base_operand(node: Any, seeds: dict[str, int]) -> Tensor:
    """Return the tensor a template kernel is given: the base of a view, as stock benchmarks it."""
    base = node.unwrap_view() if isinstance(node, ir.BaseView) else node
    layout = base.get_layout()
    return _tensor(base, compat.hints([layout.offset])[0], seeds)


def view_operand(node: Any, seeds: dict[str, int]) -> Tensor:
    """Return the tensor a library kernel is given: the view itself, on its base's storage."""
    return _tensor(node, compat.hints([node.get_layout().offset])[0], seeds)


def output_tensor(layout: ir.Layout) -> Tensor:
    """Return what a kernel writes."""
    return Tensor(
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


def _tensor(node: Any, offset: int, seeds: dict[str, int]) -> Tensor:
    name = node.get_name()
    base = node.unwrap_view() if isinstance(node, ir.BaseView) else node
    return Tensor(
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
