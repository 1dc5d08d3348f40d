"""Faults of our own: calls with one argument wrong, as a mistake in the host code would make it. All have to be noticed.

That the kernel's own host code refuses a call says nothing of the emulator: it counts for the few faults that are in what that code
checks (`CHECKED`); all others have to be launched, and to give wrong numbers or touch memory that is not theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from inductor_plugin.errors import KernelError
from inductor_plugin.ops.gemm_abi import GemmCall, GemmOperand
from inductor_plugin.problem.target import target
from tests.emulator.kernels import attention, fused, gemm, triton
from tests.emulator.machine.schedule import EAGER
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.cases import heads, products, templates, trees


def _added(name: str, value: float) -> Callable[[Any], None]:
    """Return what adds a number to a field."""

    def spoil(call: Any) -> None:
        setattr(call, name, getattr(call, name) + value)

    return spoil


def _zeroed(name: str) -> Callable[[Any], None]:
    def spoil(call: Any) -> None:
        setattr(call, name, 0)

    return spoil


def _swapped(name: str, other: str) -> Callable[[Any], None]:
    def spoil(call: Any) -> None:
        first, second = getattr(call, name), getattr(call, other)
        setattr(call, name, second)
        setattr(call, other, first)

    return spoil


def _head_and_row_swapped(name: str) -> Callable[[Any], None]:
    """Return what swaps the strides of heads and rows of a tensor."""

    def spoil(call: Any) -> None:
        strides = getattr(call, f"stride_{name}")
        strides[1], strides[2] = strides[2], strides[1]

    return spoil


def _every_head_its_own(call: Any) -> None:
    call.heads_kv = call.heads


def _other_corner(call: Any) -> None:
    call.bottom_right = 1 - call.bottom_right


def _half_behind(call: GemmCall) -> None:
    """Let a workspace begin in the middle of its memory."""
    assert call.workspace is not None
    call.workspace += call.workspace_bytes // 256 * 128


def _large_slots_swapped(call: GemmCall) -> None:
    """Swap the two operands of an epilogue that are as large as D: host code refuses a row in place of a column."""
    large = [place for place, slot in enumerate(call.operands) if slot.along_m and slot.along_n]
    first, second = (GemmOperand.from_buffer_copy(call.operands[place]) for place in large)
    call.operands[large[0]], call.operands[large[1]] = second, first


def _exchanged(place: int, other: int) -> Callable[[list[Any]], None]:
    """Return what swaps two arguments of a Triton kernel."""

    def spoil(arguments: list[Any]) -> None:
        arguments[place], arguments[other] = arguments[other], arguments[place]

    return spoil


def _a_program_less(arguments: list[Any]) -> None:
    arguments[-3] -= 1


def _one_group_later(call: GemmCall) -> None:
    assert call.offsets is not None
    call.offsets += 4


_BATCH, _BIAS, _ROW = "sm80 one A for all", "sm80 full bias", "sm80 bias of a row, 8 bytes"
_SCALED, _GROUPED = "sm90 fp8 scales by row, bias", "sm90 grouped, odd"
_HOPPER, _BLACKWELL = "sm90 full bias", "sm100 full bias"
_BACKWARD = "fmha backward, heads of 64"
PRODUCTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "rows of A too far apart": (_BIAS, _added("lead_a", 8)),
    "rows of A too close": (_BIAS, _added("lead_a", -8)),
    "columns of B too far apart": (_BIAS, _added("lead_b", 8)),
    "rows of D too far apart": (_BIAS, _added("lead_d", 8)),
    "rows of C too close": (_BIAS, _added("lead_c", -8)),
    "one B for all": (_BATCH, _zeroed("batch_b")),
    "an A for each": (_BATCH, _added("batch_a", 8)),
    "one D for all": (_BATCH, _zeroed("batch_d")),
    "one C for all": (_BIAS, _zeroed("batch_c")),
    "a sum too short": (_BIAS, _added("k", -8)),
    "a row too few": (_BATCH, _added("m", -1)),
    "a row too many": (_BATCH, _added("m", 1)),
    "columns too many": (_BATCH, _added("n", 8)),
    "alpha forgotten": (_BIAS, _added("alpha", 0.5)),
    "beta with the other sign": (_BIAS, _added("beta", 2.0)),
    "a bias from the next elements on": (_ROW, _added("c", 8)),
    "a matrix too few": (_BATCH, _added("batch", -1)),
    "scales of the other operand": (_SCALED, _swapped("scale_a", "scale_b")),
    "scales from the next row on": (_SCALED, _added("scale_a", 16)),
    "the ends of other groups": (_GROUPED, _one_group_later),
    "a C of the next row, TMA": (_HOPPER, _added("c", 160)),
    "rows of D too close, TMA": (_HOPPER, _added("lead_d", -8)),
    "one A for all, TMA": (_HOPPER, _zeroed("batch_a")),
    "one B for all, stream-K": ("sm90 stream-K, batch", _zeroed("batch_b")),
    "one B for all, Blackwell": (_BLACKWELL, _zeroed("batch_b")),
    "matrices of C too close, Blackwell": (_BLACKWELL, _added("batch_c", -72)),
}
"""Calls of products, before their workspace is planned."""
PLANNED: dict[str, tuple[str, Callable[[GemmCall], None]]] = {
    "half a workspace, stream-K": ("sm90 stream-K, split", _half_behind),
}
"""Calls of products that have their workspace."""
TREES: dict[str, tuple[str, Callable[[GemmCall], None]]] = {
    "operands of an epilogue swapped": ("tree gate_two", _large_slots_swapped),
}
ATTENTIONS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "a key too many on the right": ("fmha causal, more keys", _added("window_right", 1)),
    "a key too few on the left": ("fmha left, more keys", _added("window_left", -1)),
    "the other corner": ("fmha causal, more keys", _other_corner),
    "another scale": ("fmha heads of 64", _added("scale", 0.01)),
    "heads and rows swapped": ("fmha heads of 64", _head_and_row_swapped("k")),
    "heads that are not shared": ("fmha heads of 64", _every_head_its_own),
    "a key too few": ("fmha heads of 64", _added("seq_k", -1)),
    "lse from the next row on": ("fmha heads of 64", _added("lse", 4)),
    "gradients of K and V swapped": (_BACKWARD, _swapped("dk", "dv")),
    "lse and delta swapped": (_BACKWARD, _swapped("lse", "delta")),
    "heads and rows of a gradient swapped": (_BACKWARD, _head_and_row_swapped("dq")),
}
_COMPILED = "triton attention, masks 7, sm_90a"
TRITON: dict[str, tuple[str, Callable[[list[Any]], None]]] = {
    "K and V swapped, Triton": (_COMPILED, _exchanged(1, 2)),
    "a program too few, Triton": (_COMPILED, _a_program_less),
}
"""Arguments of Triton's kernels, by their places, and their grids."""
_ALL: dict[str, tuple[str, Callable[[Any], None]]] = {
    **PRODUCTS,
    **PLANNED,
    **TREES,
    **ATTENTIONS,
    **TRITON,
}
NAMES = tuple(_ALL)
CHECKED = frozenset(("one D for all", "columns too many"))
"""Faults that host code looks for, and refuses: all matrices of a batch written to one place, rows of D that overlap
(templates/cutlass/source/call.h)."""


def case_of(name: str) -> str:
    """Return the name of the case whose call is spoiled."""
    return _ALL[name][0]


def right(runtime: Runtime, name: str) -> bool:
    """Run a spoiled call; return whether its numbers are right nevertheless.

    Raises:
        FaultError: The kernel touched other memory than its operands and workspace, or worse.
        KernelError: It refused the call.
    """
    of, spoil = _ALL[name]
    outcome: gemm.Outcome | attention.Outcome | fused.Outcome
    if name in TRITON:
        with triton.spoiled(spoil):
            verdict = templates.CASES[of].run(EAGER)
        return verdict.error <= 1 and not verdict.changed
    if name in TREES:
        tree = trees.CASES[of]
        case = replace(tree.case, spoil=spoil)
        outcome = fused.run(runtime, case, target(tree.gpu), EAGER)
    elif name in ATTENTIONS:
        head = replace(heads.CASES[of], spoil=spoil)
        outcome = attention.run(runtime, head, target("H100"), EAGER)
    else:
        product, when = products.CASES[of], "spoil_planned" if name in PLANNED else "spoil"
        outcome = gemm.run(
            runtime, replace(product.case, **{when: spoil}), target(product.gpu), EAGER
        )
    return outcome.share <= 1 and not outcome.changed


def wrong(runtime: Runtime, name: str) -> bool:
    """Run a spoiled call; return whether its numbers are wrong, or it was refused and that is for the host code to do.

    Raises:
        FaultError: See `right`.
    """
    try:
        return not right(runtime, name)
    except KernelError:
        return name in CHECKED
