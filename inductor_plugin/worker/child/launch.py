"""Binds a candidate's kernel to tensors: the call that is checked and measured."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch

from inductor_plugin.kernels.call import (
    CppKernel,
    ExternKernel,
    Kernel,
    OpKernel,
    SequenceKernel,
    Single,
)
from inductor_plugin.worker.child import inductor
from inductor_plugin.worker.jobs import BenchCandidate

Call = Callable[[], object]


def launched_as_generated(kernel: Kernel | Single) -> bool:
    """Return whether a kernel is launched here as generated code launches it, so that host times can be compared.

    Not Triton kernels: Inductor's requests pass over the fast path of its launcher (3.6 instead of 0.8 us, torch 2.14), and
    its modules for benchmarks set the device for each kernel.
    """
    if isinstance(kernel, SequenceKernel):
        return all(launched_as_generated(part.kernel) for part in kernel.parts)
    return isinstance(kernel, (ExternKernel, OpKernel))


def bind(
    candidate: BenchCandidate, inputs: Sequence[torch.Tensor], out: torch.Tensor | None
) -> Call:
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


def _bind_cpp(kernel: CppKernel, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> Call:
    function = getattr(_library(kernel.library), kernel.symbol)
    arguments = [*(tensor.data_ptr() for tensor in (*inputs, out)), *kernel.sizes]
    function.argtypes = [ctypes.c_ulonglong] * len(arguments)
    function.restype = None
    return functools.partial(function, *arguments)


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)
