"""The torch operators that run compiled CUTLASS attention kernels.

    cutlass_fmha.out(q, k, v, lse, ...)                                attention with its lse
    cutlass_fmha_output.out(q, k, v, ...)                              attention alone
    cutlass_fmha_backward.out(d_out, q, k, v, o, lse, delta, dq, dv, ...)   its gradients; out is dk

They are written into generated code. Behind the operands they take the kernel's name, then ``scale``,
``left``, ``right`` and ``bottom_right`` (`attention.Mask`). A kernel is named and looked for as
`gemm_op` does it. Where its library is gone, or it does not take the operands, `attention_reference`
computes the same in float32, with one warning a kernel.

Nothing here waits for the device, and what is allocated comes from torch's allocator on the stream
the kernel runs on: calls can be captured into a CUDA graph.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from inductor_plugin.attention import unfused as reference
from inductor_plugin.attention.cutlass_abi import (
    WORKSPACE_ALIGNMENT,
    FmhaCall,
    FmhaFunction,
    load,
    run,
    workspace_bytes,
)
from inductor_plugin.attention.cutlass_call import CALLS, View, backward_of, forward_of
from inductor_plugin.errors import CallRefusedError, KernelError
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops import gemm
from inductor_plugin.problem import Operand
from inductor_plugin.problem.attention import Mask

_MASK = "str kernel, float scale, int left, int right, bool bottom_right"
_SCHEMAS = {
    "cutlass_fmha.out": (
        f"(Tensor q, Tensor k, Tensor v, Tensor(b!)? lse, {_MASK}, "
        "*, Tensor(c!)? workspace=None, Tensor(a!) out) -> Tensor(a!)"
    ),
    "cutlass_fmha_output.out": (
        f"(Tensor q, Tensor k, Tensor v, {_MASK}, "
        "*, Tensor(b!)? workspace=None, Tensor(a!) out) -> Tensor(a!)"
    ),
    "cutlass_fmha_backward.out": (
        "(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor delta, "
        f"Tensor(b!) dq, Tensor(c!) dv, {_MASK}, "
        "*, Tensor(d!)? workspace=None, Tensor(a!) out) -> Tensor(a!)"
    ),
}

_LOG = logging.getLogger(__name__)
_LIBRARY: Any = torch.library
"""It is typed in part."""
_OPERATORS: Any = _LIBRARY.Library("inductor_plugin", "FRAGMENT")
_warned: set[str] = set()


def workspace_needed(
    kernel: OpKernel, operands: Sequence[Operand], output: Operand, device: torch.device
) -> int:
    """Return how many bytes a call needs besides its operands, 0 for none or where that is not known.

    The backward keeps dq in float32, lse and delta at aligned rows, and with shared heads of K and V
    each head's dk and dv there. Generated code allocates them and hands them over as ``workspace=``;
    an operator that is given none allocates its own.

    Args:
        kernel: The operator, the kernel's name and what follows it.
        operands: As the operator takes them.
        output: What it writes.
        device: Where it will run; its multiprocessors do not count here.
    """
    try:
        function = _located(str(kernel.args[0]))
        if function is None:
            return 0
        name = kernel.op.partition("::")[2].partition(".")[0]
        views = [View(one.size, one.stride) for one in operands]
        call = CALLS[name](
            *views,
            *kernel.args[1:],
            out=View(output.size, output.stride),
            sm_count=1,
            device=device.index or 0,
        )
        return workspace_bytes(function, call) if _has_work(call) else 0
    except KernelError:  # a call of it will say so
        return 0


def cutlass_fmha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Tensor | None,
    kernel: str,
    scale: float,
    left: int,
    right: int,
    bottom_right: bool,  # noqa: FBT001 - an operator's arguments have no names in generated code
    *,
    workspace: Tensor | None = None,
    out: Tensor,
) -> Tensor:
    """Write softmax(scale * q @ k.T, where the mask keeps) @ v to ``out``.

    Args:
        q: [batch, heads, seq_q, dim], the last dimension contiguous.
        k: [batch, heads_kv, seq_k, dim].
        v: As k.
        lse: float32 [batch, heads, seq_q], dense: natural logarithms of the sums are written there;
            None if nobody wants them.
        kernel: ``SYMBOL@DIGEST``.
        scale: Factor of q @ k.T.
        left: Keys before the diagonal that a query sees; negative: all.
        right: Keys behind it; negative: all.
        bottom_right: Whether the last query stands at the last key; else the first at the first.
        workspace: Memory of the kernel's, uint8; None to allocate what it needs.
        out: As q.
    """
    mask = Mask(left, right, bottom_right)

    def make() -> FmhaCall:
        given = None if lse is None else _row_view(lse, "lse")
        return forward_of(
            *map(_view, (q, k, v)), given, scale, left, right, bottom_right, **_written(out)
        )

    def library() -> Tensor:
        result, sums = reference.forward(q, k, v, mask=mask, scale=scale, dtype=torch.float32)
        if lse is not None:
            lse.copy_(sums)
        return out.copy_(result)

    return _answered(kernel, make, library, workspace, out)


def cutlass_fmha_output(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: str,
    scale: float,
    left: int,
    right: int,
    bottom_right: bool,  # noqa: FBT001 - see `cutlass_fmha`
    *,
    workspace: Tensor | None = None,
    out: Tensor,
) -> Tensor:
    """Write the output alone; as `cutlass_fmha`."""
    mask = (scale, left, right, bottom_right)
    return cutlass_fmha(q, k, v, None, kernel, *mask, workspace=workspace, out=out)


def cutlass_fmha_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    delta: Tensor,
    dq: Tensor,
    dv: Tensor,
    kernel: str,
    scale: float,
    left: int,
    right: int,
    bottom_right: bool,  # noqa: FBT001 - see `cutlass_fmha`
    *,
    workspace: Tensor | None = None,
    out: Tensor,
) -> Tensor:
    """Write the gradients of an attention to ``dq``, ``dv`` and, of k, to ``out``.

    The kernel adds up dq in no fixed order: where torch is asked for deterministic algorithms it is
    not used.

    Args:
        d_out: Gradient of the output, as q.
        q: As in `cutlass_fmha`, like k and v.
        k: See q.
        v: See q.
        o: The output.
        lse: What the forward wrote.
        delta: float32 [batch, heads, seq_q], dense: sums of output * d_out over dim.
        dq: As q.
        dv: As v.
        kernel: As in `cutlass_fmha`, like all that follows.
        scale: See kernel.
        left: See kernel.
        right: See kernel.
        bottom_right: See kernel.
        workspace: See kernel.
        out: As k.
    """
    mask = Mask(left, right, bottom_right)

    def make() -> FmhaCall:
        if torch.are_deterministic_algorithms_enabled():
            raise CallRefusedError(
                f"{kernel.partition('@')[0]}: its dq depends on the order of sums"
            )
        rows = _row_view(lse, "lse"), _row_view(delta, "delta")
        views = (*map(_view, (d_out, q, k, v, o)), *rows, *map(_view, (dq, dv)))
        return backward_of(*views, scale, left, right, bottom_right, **_written(out))

    def library() -> Tensor:
        result = reference.backward(d_out, q, k, v, mask=mask, scale=scale, dtype=torch.float32)
        dq.copy_(result.dq)
        dv.copy_(result.dv)
        return out.copy_(result.dk)

    return _answered(kernel, make, library, workspace, out)


def _answered(
    kernel: str,
    make: Callable[[], FmhaCall],
    library: Callable[[], Tensor],
    memory: Tensor | None,
    out: Tensor,
) -> Tensor:
    """Start a kernel, or compute the reference where it is gone or does not take the operands.

    Args:
        kernel: ``SYMBOL@DIGEST``.
        make: Gives its call.
        library: Writes the same.
        memory: Its workspace, if the caller has one.
        out: What is written.

    Raises:
        KernelError: It did not start, its workspace does not fit, or its library is named by a path
            and does not load or does not take the operands.
    """
    try:
        function = _located(kernel)
        if function is None:
            _warn(kernel, f"the library of {kernel.partition('@')[0]} is not in the cache any more")
            return library()
        call = make()
        if not _has_work(call):
            return library()
        return _started(function, call, memory, out)
    except CallRefusedError as refusal:
        if "@/" in kernel:
            raise
        _warn(kernel, str(refusal))
    return library()


def _started(function: FmhaFunction, call: FmhaCall, memory: Tensor | None, out: Tensor) -> Tensor:
    """Start a kernel on the current stream of the output's device."""
    if memory is None:
        needed = workspace_bytes(function, call)
        # From the caching allocator: inside a CUDA graph it comes from the graph's own pool.
        memory = torch.empty(needed, dtype=torch.uint8, device=out.device)
    elif reason := _unfit(memory, out.device):
        raise KernelError(f"{function.symbol}: {reason}")
    # The kernel's function compares the size with its need before it writes anything.
    call.workspace, call.workspace_bytes = memory.data_ptr(), memory.numel()
    _launch(function, call, out.device)
    return out


def _launch(function: FmhaFunction, call: FmhaCall, device: torch.device) -> None:
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream().cuda_stream
        _LOG.debug("%s on %s, stream %#x", function.symbol, device, stream)
        run(function, call, stream)


def _has_work(call: FmhaCall) -> bool:
    return 0 not in (call.batch, call.heads, call.heads_kv, call.seq_q, call.seq_k, call.dim)


def _unfit(memory: Tensor, device: torch.device) -> str | None:
    """Return why a tensor cannot be a workspace, None if it can."""
    if memory.dtype != torch.uint8 or not memory.is_contiguous():
        return f"the workspace must be contiguous uint8, it is {memory.dtype} {memory.stride()}"
    if memory.device != device:
        return f"the workspace is on {memory.device}, the output on {device}"
    if memory.data_ptr() % WORKSPACE_ALIGNMENT:
        return f"the workspace must begin at a multiple of {WORKSPACE_ALIGNMENT} bytes"
    return None


def _view(operand: Tensor) -> View:
    if operand.stride(-1) != 1 and operand.size(-1) > 1:
        raise CallRefusedError(f"the last dimension must be contiguous, strides {operand.stride()}")
    return View(operand.shape, operand.stride(), operand.data_ptr())


def _row_view(rows: Tensor, name: str) -> View:
    if rows.dtype != torch.float32 or not rows.is_contiguous():
        raise CallRefusedError(f"{name} must be dense float32, it is {rows.dtype} {rows.stride()}")
    return View(rows.shape, rows.stride(), rows.data_ptr())


def _written(out: Tensor) -> dict[str, Any]:
    return {
        "out": _view(out),
        "sm_count": gemm.multiprocessors(out.device),
        "device": out.device.index or 0,
    }


@functools.lru_cache(maxsize=4096)
def _loaded(symbol: str, path: str) -> FmhaFunction:
    return load(path, symbol)


def _located(kernel: str) -> FmhaFunction | None:
    """Return a kernel, or None where no cache directory has its library."""
    symbol, _, place = kernel.partition("@")
    path = place if place.startswith("/") else gemm.library_path(place)
    return None if path is None else _loaded(symbol, str(path))


def _warn(kernel: str, reason: str) -> None:
    """Say once why a kernel is not used."""
    symbol = kernel.partition("@")[0]
    if symbol in _warned:
        return
    _warned.add(symbol)
    warnings.warn(
        f"{reason}, attention is computed in plain torch instead; compile the model again to choose "
        "anew",
        RuntimeWarning,
        stacklevel=5,
    )


def _fake(*_: Any, out: Tensor, **__: Any) -> Tensor:
    return out


def _define() -> None:
    functions: dict[str, Callable[..., Tensor]] = {
        "cutlass_fmha.out": cutlass_fmha,
        "cutlass_fmha_output.out": cutlass_fmha_output,
        "cutlass_fmha_backward.out": cutlass_fmha_backward,
    }
    for name, function in functions.items():
        _OPERATORS.define(name + _SCHEMAS[name])
        _OPERATORS.impl(name, function, "CUDA")
        _LIBRARY.register_fake(f"inductor_plugin::{name}", _fake, lib=_OPERATORS)


_define()
