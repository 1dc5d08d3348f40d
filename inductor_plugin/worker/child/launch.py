"""Binds a candidate's kernel to tensors: the call that is checked and measured."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_plugin.cost.host import HOST_FIELD, PYTHON_FIELD
from inductor_plugin.device import BoundCall
from inductor_plugin.kernels.call import (
    CppKernel,
    ExternKernel,
    Kernel,
    OpKernel,
    SequenceKernel,
    Single,
)
from inductor_plugin.ops import sites
from inductor_plugin.ops.native import source
from inductor_plugin.worker.child import inductor
from inductor_plugin.worker.child.triton_launch import BoundLaunch
from inductor_plugin.worker.jobs import BenchCandidate


def launched_as_generated(kernel: Kernel | Single, call: BoundCall) -> bool:
    """Return whether a call launches its kernel as generated code does, so that host times can be compared.

    Not a Triton kernel whose request does more than launch it (memory it zeroes, a gradient's delta), and not an operator
    that Python launches only until the library of call sites is compiled: it takes 20 us then instead of 0.4.
    """
    if launched_by_python(call) and compiles_sites():
        return False
    if isinstance(kernel, SequenceKernel):
        assert isinstance(call, inductor.BoundSequence)
        parts = zip(kernel.parts, call.calls, strict=True)
        return all(launched_as_generated(part.kernel, bound) for part, bound in parts)
    return isinstance(kernel, (ExternKernel, OpKernel)) or isinstance(call, BoundLaunch)


def launched_by_python(call: BoundCall) -> bool:
    """Return whether an operator with a call site, or one of a sequence, is launched by Python: its library is not there."""
    if isinstance(call, inductor.BoundSequence):
        return any(map(launched_by_python, call.calls))
    bound: Any = call.func if isinstance(call, functools.partial) else call  # pyright: ignore[reportUnknownMemberType]
    return isinstance(bound, sites._SiteCall)  # pyright: ignore[reportPrivateUsage]


@functools.cache
def compiles_sites() -> bool:
    """Return whether this machine can compile the library of call sites."""
    return source.why_not_compiled(inductor.cpp_compiler) is None


def bind(
    candidate: BenchCandidate, inputs: Sequence[torch.Tensor], out: torch.Tensor | None
) -> BoundCall:
    """Return the call that runs a candidate's kernel on these operands."""
    kernel = candidate.kernel
    if isinstance(kernel, ExternKernel):
        return inductor.bind_extern(kernel, inputs, out)
    assert out is not None
    if isinstance(kernel, OpKernel):
        return inductor.bind_op(kernel, inputs, out)
    if isinstance(kernel, CppKernel):
        return _bind_cpp(kernel, inputs, out)
    if isinstance(kernel, SequenceKernel):
        return inductor.bind_sequence(kernel, inputs, out)
    return inductor.bind_request(kernel, inputs, out)


def _bind_cpp(kernel: CppKernel, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> BoundCall:
    function = getattr(_library(kernel.library), kernel.symbol)
    arguments = [*(tensor.data_ptr() for tensor in (*inputs, out)), *kernel.sizes]
    function.argtypes = [ctypes.c_ulonglong] * len(arguments)
    function.restype = None
    return functools.partial(function, *arguments)


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)


def launch_conditions(
    call: Callable[[], object], host_ms: float, *, host_bound: bool
) -> tuple[tuple[str, object], ...]:
    """Return what a record says of a candidate's launch: the host's time, where that is known, and whether Python does it."""
    own: dict[str, object] = {"host_bound": True} if host_bound else {}
    if 0 < host_ms < math.inf:
        own[HOST_FIELD] = round(host_ms, 6)
    if launched_by_python(call):
        own[PYTHON_FIELD] = True
    return tuple(own.items())
