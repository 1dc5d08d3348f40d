"""Which buffers are the arguments of a Triton kernel, recorded while Inductor generates its benchmark."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any

from torch._inductor.codegen.common import SizeArg, WorkspaceArg, WorkspaceZeroMode
from torch._inductor.codegen.triton import TritonKernel

from inductor_plugin.inductor.facts import compat
from inductor_plugin.kernels.call import Zeros
from inductor_plugin.problem import dtype_name

_NAME = "codegen_kernel_benchmark"
_RECORDED: ContextVar[list[str | int | Zeros] | None] = ContextVar("recorded", default=None)
"""What `recorded` returns; of the thread alone, since several may compile."""


def install() -> None:
    """Record the arguments of kernels inside of `recorded`."""
    if installed():
        return
    stock: Any = getattr(TritonKernel, _NAME)

    @functools.wraps(stock)
    def recording(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = _RECORDED.get()
        if arguments is not None:
            _, call_args, signature, _ = kernel.args.python_argdefs()
            arguments[:] = [_argument(*pair) for pair in zip(call_args, signature, strict=True)]
            arguments.extend(int(extra) for extra in kernel.kernel_benchmark_extra_args())
        return stock(kernel, *args, **kwargs)

    recording.__module__ = __name__
    setattr(TritonKernel, _NAME, recording)


def uninstall() -> None:
    """Restore Inductor's own method."""
    if installed():
        setattr(TritonKernel, _NAME, getattr(TritonKernel, _NAME).__wrapped__)


def installed() -> bool:
    """Return True if arguments can be recorded."""
    return getattr(getattr(TritonKernel, _NAME, None), "__module__", "") == __name__


@contextlib.contextmanager
def recorded() -> Generator[list[str | int | Zeros]]:
    """Record the arguments of the kernel whose benchmark this thread generates in the block.

    Raises:
        RuntimeError: Arguments cannot be recorded any more: the hooks were removed meanwhile.
    """
    arguments: list[str | int | Zeros] = []
    token = _RECORDED.set(arguments)
    try:
        yield arguments
    finally:
        _RECORDED.reset(token)
    if not installed():
        raise RuntimeError("the plugin was disabled while a kernel was generated")


def _argument(name: Any, signature: Any) -> str | int | Zeros:
    if isinstance(signature, WorkspaceArg):
        each_call = signature.zero_mode == WorkspaceZeroMode.ZERO_ON_CALL
        return Zeros(compat.hints([signature.count])[0], dtype_name(signature.dtype), each_call)
    if isinstance(signature, SizeArg):
        return 0 if "seed_offset" in signature.name else compat.hints([signature.expr])[0]
    return str(name)
