"""Operands of recorded calls: random numbers with the recorded sizes, strides and offsets, by what the operand is for."""

from __future__ import annotations

import math

import torch

from inductor_plugin.problem.definition import Operand
from tests.emulator.kernels import gemm
from tests.emulator.kernels.operand import DeviceTensor, device_tensor


def tensor(role: str, operand: Operand, ends: tuple[int, ...] = ()) -> DeviceTensor:
    """Return an operand.

    Args:
        role: What it is for (`product.ROLES`); empty for an output, which is no number anywhere.
        operand: Its recorded facts.
        ends: Where the rows of each group end, if there are groups.
    """
    dtype: torch.dtype = getattr(torch, operand.dtype)
    numbers = values(role, operand.size, dtype, ends) if role else None
    return device_tensor(operand.size, dtype, operand.stride, numbers, operand.offset)


def values(
    role: str, size: tuple[int, ...], dtype: torch.dtype, ends: tuple[int, ...]
) -> torch.Tensor:
    """Return random numbers for an operand; scales are positive, packed words have any bits."""
    generator = torch.Generator().manual_seed(len(role) + ord(role[-1]))
    if role == "offsets":
        return torch.tensor(ends)
    if role.startswith("scale"):
        return 0.5 + 1.5 * torch.rand(size, generator=generator)
    if role == "b" and dtype == torch.int32:
        return torch.randint(-(2**31), 2**31, size, generator=generator)
    return gemm.random(size, dtype, ord(role))


def ends_of(rows: int, groups: int) -> tuple[int, ...]:
    """Return where the rows of each of some groups end, which a record does not keep: they are as even as can be."""
    return tuple(rows * (group + 1) // groups for group in range(groups))


def elements(operand: Operand) -> int:
    """Return how many elements a storage has that ends with an operand's last one."""
    if not math.prod(operand.size):
        return operand.offset
    steps = zip(operand.size, operand.stride, strict=True)
    return operand.offset + 1 + sum((extent - 1) * step for extent, step in steps)
