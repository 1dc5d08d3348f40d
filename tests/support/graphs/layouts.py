"""Layouts of a product's operands: one table for a CPU that runs and a GPU that is simulated."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Steps = tuple[int, ...]
Spec = tuple[Steps, Steps | None]
"""Size and strides of an input; None for a dense one."""


@torch.library.custom_op("layouts::by_columns", mutates_args=())
def by_columns(x: torch.Tensor) -> torch.Tensor:
    """Require the strides of eager's operand, as a library that supports no others."""
    return x.sum(-1)


@by_columns.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[:-1])


@dataclass(frozen=True)
class Case:
    """A product and the layouts of its operands.

    Attributes:
        function: The function that is compiled.
        inputs: Sizes and strides of its inputs, by m, k and n.
        strides: Strides of the last problem's operands, by the same.
        offsets: Offsets of the same operands.
        picky: Operands that are copied for a kernel that requires aligned rows that are not expanded.
        cutlass: The same for CUTLASS on Hopper.
        read: Generated text of a GPU kernel's operands, by m, k and n; empty for a whole buffer.
    """

    function: Callable[..., Any]
    inputs: Callable[[int, int, int], tuple[Spec, ...]]
    strides: Callable[[int, int, int], tuple[Steps, ...]]
    offsets: Steps = (0, 0)
    picky: Steps = ()
    cutlass: Steps = ()
    read: Callable[[int, int, int], tuple[str, ...]] = lambda m, k, n: ("", "")


def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


def reinterpreted(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.mm(torch.mm(a, b).view(-1, c.shape[0]), c)


def part_of_a_result(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.mm(torch.mm(a, b)[:, 32 : 32 + c.shape[0]], c)


def sliced(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a[:, : b.shape[0]], b)


def shifted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    k = b.shape[0]
    return torch.mm(a[1 : 1 + (a.shape[0] - 32) // k * k].view(-1, k), b)


def transposed(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, w.t())


def shared(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a, b.expand(a.shape[0], -1, -1))


def biased(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.addmm(c, a, b)


def channels_last(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Convolve by a filter of 1x1: a product of pixels, whose channels are contiguous."""
    n, c, h, width = x.shape
    return torch.mm(x.permute(0, 2, 3, 1).reshape(n * h * width, c), w.view(w.shape[0], c).t())


def unbacked(a: torch.Tensor, which: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a[torch.nonzero(which).squeeze(1)], b)


def _rows(m: int, k: int, n: int) -> tuple[Steps, ...]:
    return (k, 1), (n, 1)


CASES = {
    "plain": Case(plain, lambda m, k, n: (((m, k), None), ((k, n), None)), _rows),
    "reinterpreted view": Case(
        reinterpreted,
        lambda m, k, n: (((2 * m, 64), None), ((64, k // 2), None), ((k, n), None)),
        _rows,
        read=lambda m, k, n: (f"({m}, {k}), ({k}, 1), 0)", ""),
    ),
    "part of a result": Case(
        part_of_a_result,
        lambda m, k, n: (((m, 64), None), ((64, k + 64), None), ((k, n), None)),
        lambda m, k, n: ((k + 64, 1), (n, 1)),
        offsets=(32, 0),
        read=lambda m, k, n: (f"({m}, {k}), ({k + 64}, 1), 32)", ""),
    ),
    "slice with padding": Case(
        sliced,
        lambda m, k, n: (((m, k + 5), None), ((k, n), None)),
        lambda m, k, n: ((k + 5, 1), (n, 1)),
        picky=(0,),
        cutlass=(0,),
        read=lambda m, k, n: (f"({m}, {k}), ({k + 5}, 1), 0)", ""),
    ),
    "expanded bias": Case(
        biased,
        lambda m, k, n: (((n,), None), ((m, k), None), ((k, n), None)),
        lambda m, k, n: ((0, 1), (k, 1), (n, 1)),
        offsets=(0, 0, 0),
        read=lambda m, k, n: (f"({m}, {n}), (0, 1), 0)", "", ""),
    ),
    "transposed weight": Case(
        transposed,
        lambda m, k, n: (((m, k), None), ((n, k), None)),
        lambda m, k, n: ((k, 1), (1, k)),
        picky=(1,),
        read=lambda m, k, n: ("", f"({k}, {n}), (1, {k}), 0)"),
    ),
    "batch stride 0": Case(
        shared,
        lambda m, k, n: (((4, m, k), None), ((1, k, n), None)),
        lambda m, k, n: ((m * k, k, 1), (0, n, 1)),
        picky=(1,),
        read=lambda m, k, n: ("", f"(4, {k}, {n}), (0, {n}, 1), 0)"),
    ),
    "misaligned base": Case(
        shifted,
        lambda m, k, n: (((m * k + 32,), None), ((k, n), None)),
        _rows,
        offsets=(1, 0),
        picky=(0,),
        cutlass=(0,),
        read=lambda m, k, n: (f"({m}, {k}), ({k}, 1), 1)", ""),
    ),
    "channels-last": Case(
        channels_last,
        lambda m, k, n: (((m // 64, k, 8, 8), (64 * k, 1, 8 * k, k)), ((n, k, 1, 1), None)),
        lambda m, k, n: ((k, 1), (1, k)),
        picky=(1,),
        read=lambda m, k, n: (
            f"({m}, {k}), ({k}, 1), 0)",
            f"({k}, {n}), (1, {k}), 0)",
        ),
    ),
}


def turned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply a value computed from a transposed input, whose layout Inductor chooses."""
    return torch.bmm(torch.relu(a), b)


def fought_over(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiply a value that another operator requires in eager's layout."""
    x = torch.relu(a)
    return torch.bmm(x, b), by_columns(x)


def turned_inputs(m: int, k: int, n: int) -> tuple[Spec, ...]:
    """Return the inputs of `turned` and `fought_over`."""
    return ((4, m, k), (m * k, 1, m)), ((4, k, n), None)
