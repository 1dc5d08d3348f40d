"""Tensors in ordinary memory that stand for tensors of a GPU, with other bytes around them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from inductor_plugin.ops.abi import TensorView
from tests.emulator.memory.allowed import Allowed

_AROUND = 4096
_ALIGNMENT = 128
_POISON = 0xFF
"""No number in any floating-point type, so that what a kernel does not write spoils a result; -1 as an integer."""


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor a kernel reads or writes.

    Attributes:
        tensor: Its elements.
        memory: All bytes, with those before, behind and between the elements.
        before: The same before any kernel ran.
        begin: Where the tensor begins in the memory.
        span: Bytes from its first to its last element.
    """

    tensor: torch.Tensor
    memory: torch.Tensor
    before: torch.Tensor
    begin: int
    span: int

    @property
    def view(self) -> TensorView:
        """Sizes, strides and address, as calls take them."""
        return TensorView(
            tuple(self.tensor.shape), tuple(self.tensor.stride()), self.tensor.data_ptr()
        )

    @property
    def range(self) -> tuple[int, int]:
        """First byte and byte behind the last one."""
        return self.tensor.data_ptr(), self.tensor.data_ptr() + self.span

    def numbers(self) -> torch.Tensor:
        """Return the elements as float64."""
        return self.tensor.to(torch.float64)

    def changed(self, *, output: bool) -> int:
        """Return how many bytes changed, of an output those that are no elements."""
        changed = self.memory != self.before
        if output:
            item = self.tensor.element_size()
            inside = torch.zeros(self.span // item, dtype=torch.bool)
            _own(inside.as_strided(self.tensor.shape, self.tensor.stride()))[...] = True
            changed[self.begin : self.begin + self.span] &= ~inside.repeat_interleave(item)
        return int(changed.sum())


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without what has the same place: along a stride of 0 only the first element."""
    slices = [slice(0, 1) if step == 0 else slice(None) for step in tensor.stride()]
    return tensor[tuple(slices)]


def device_tensor(
    shape: Sequence[int],
    dtype: torch.dtype,
    stride: Sequence[int] | None = None,
    values: torch.Tensor | None = None,
    offset: int = 0,
) -> DeviceTensor:
    """Return a tensor with these values, or full of what is no number (-1 of integers).

    Args:
        shape: Its shape.
        dtype: Its dtype.
        stride: Strides in elements; dense by default.
        values: Of this shape; along a stride of 0 the first of them is that of all.
        offset: Elements between a multiple of 128 bytes and the first one.
    """
    stride = tuple(stride) if stride is not None else torch.empty(tuple(shape)).stride()
    item = dtype.itemsize
    steps = zip(shape, stride, strict=True)
    span = (1 + sum((extent - 1) * step for extent, step in steps)) * item
    span = span if math.prod(shape) else 0
    before = _AROUND + offset * item
    memory = torch.full((before + span + _AROUND + _ALIGNMENT,), _POISON, dtype=torch.uint8)
    begin = -memory.data_ptr() % _ALIGNMENT + before
    data = memory[begin : begin + span].view(dtype)
    tensor = data.as_strided(tuple(shape), stride)
    if values is not None:
        own = _own(tensor)
        own.copy_(values[tuple(slice(extent) for extent in own.shape)])
    return DeviceTensor(tensor, memory, memory.clone(), begin, span)


def workspace(size: int) -> DeviceTensor:
    """Return memory of some bytes, full of others, that a kernel may use."""
    return device_tensor((size,), torch.uint8)


def allowed(operands: Iterable[DeviceTensor]) -> Allowed:
    """Return the memory of operands, all that a kernel may touch."""
    return Allowed(operand.range for operand in operands)
