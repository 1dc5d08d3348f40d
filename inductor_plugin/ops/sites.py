"""Call sites of compiled kernels: what generated code calls, in place of the operators it is named after.

    launch_buf0 = inductor_plugin.ops.sites.site("inductor_plugin::cutlass_mm.out", ("SYMBOL@DIGEST", "tt", 1, 0, 1))
    launch_buf0(a, b, None, out=buf0)          operands, then the workspace or None

A site computes what its operator computes. Where the library of call sites (`ops.native`) is there, a call costs less host
time than ``torch.mm(out=)``; Python is entered only where the kernel is not bound yet, or does not take the tensors: then
the operator finds it, or falls back, as it does when it is called itself. Elsewhere each call is one of the operator.
While ``torch.profiler`` runs, each call is a range with the names of operator and kernel, ``inductor_plugin::cutlass_mm SYMBOL@DIGEST``.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import profiler

from inductor_plugin.ops import imports_of, launch
from inductor_plugin.ops.kernel_types import types_of
from inductor_plugin.ops.native import library
from inductor_plugin.ops.operators import name_of, resolve

_PRODUCTS = (
    "cutlass_mm",
    "cutlass_addmm",
    "cutlass_scaled_mm",
    "cutlass_scaled_addmm",
    "cutlass_grouped_mm",
    "cutlass_mm_epilogue",
)
"""By `GemmSite::Kind`."""
_NESTED = "cutlass_mm_epilogue"
"""Takes lists of tensors, which a site takes one by one."""
ATTENTIONS = ("cutlass_fmha", "cutlass_fmha_output", "cutlass_fmha_backward")
"""By `AttentionSite::Kind`."""
_BIASES = ("none", "row", "column", "full")
"""By `GemmSite::Bias`."""
_SCALES = (None, "tensor", "rowwise")
"""By `GemmSite::Scale`."""


OBSERVERS: set[Callable[[str], None]] = set()
"""Called with the name of the kernel, ``SYMBOL@DIGEST``, of each call site in generated code."""


def has_site(op: str) -> bool:
    """Return whether an operator, ``namespace::name.overload``, can be called through a site."""
    return name_of(op) in (*_PRODUCTS, *ATTENTIONS)


def site(op: str, arguments: Sequence[Any], reads: int = 0, aux: int = 0) -> Callable[..., Any]:
    """Return a function that calls an operator with tensors: its operands, the workspace or None, and ``out=``.

    Args:
        op: ``inductor_plugin::cutlass_mm.out`` ...
        arguments: The operator's constant arguments: the kernel's name, then the others in order.
        reads: Operands of an epilogue, which follow A and B.
        aux: Outputs of an epilogue besides the last, which follow those.
    """
    for observe in OBSERVERS:
        observe(str(arguments[0]))
    return _launch_of(op, arguments, reads, aux)


def _launch_of(
    op: str, arguments: Sequence[Any], reads: int = 0, aux: int = 0
) -> Callable[..., Any]:
    slow = _SiteCall(op, tuple(arguments), reads, aux)
    sites = library.sites()
    if sites is None:
        return slow
    slow.site = _site(sites, op, arguments, (reads, aux), slow)
    return slow.site.launch


def bound(op: str, arguments: Sequence[Any], out: torch.Tensor) -> Callable[[], Any]:
    """Return the call of a site of its own with these arguments; `OBSERVERS` are not called.

    Args:
        op: As in `site`.
        arguments: All of the operator's arguments before ``workspace`` and ``out``, in its order.
        out: The output.
    """
    if name_of(op) == _NESTED:
        a, b, reads, *constants, aux = arguments
        launch_site = _launch_of(op, constants, len(reads), len(aux))
        return functools.partial(launch_site, a, b, *reads, *aux, None, out=out)
    first = next(place for place, value in enumerate(arguments) if isinstance(value, str))
    return functools.partial(_launch_of(op, arguments[first:]), *arguments[:first], None, out=out)


class _SiteCall:
    """A call of the operator; binds the call site, if there is one, to the kernel that the operator has found."""

    def __init__(self, op: str, arguments: tuple[Any, ...], reads: int, aux: int) -> None:
        """Call ``op`` with these arguments; the rest as in `site`."""
        self.site: library.Site | None = None
        self.name = f"inductor_plugin::{name_of(op)} {arguments[0]}"
        self._operator = resolve(op, imports_of(op))
        self._family = launch.FAMILIES[name_of(op)]
        self._arguments, self._reads, self._aux = arguments, reads, aux
        self._nested = name_of(op) == _NESTED

    def __call__(self, *tensors: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
        *operands, workspace = tensors
        given: list[Any] = [*operands, *self._arguments]
        if self._nested:
            ends = 2 + self._reads
            given = [*operands[:2], operands[2:ends], *self._arguments, operands[ends:]]
        ranged = self.site is None and profiler._is_profiler_enabled
        with _RecordFunctionFast(self.name) if ranged else nullcontext():
            self._operator(*given, workspace=workspace, out=out)
        if self.site is not None:
            self._bind(self.site, out.device)
        return out

    def _bind(self, site: library.Site, device: torch.device) -> None:
        function = launch.find_kernel(self._family, str(self._arguments[0]))
        if function is None:
            site.bind(0, -1, 0)
            return
        address = ctypes.cast(function.entry, ctypes.c_void_p).value or 0
        index = -1 if device.type == "cpu" else device.index or 0
        site.bind(address, index, launch.multiprocessors(device))


def product_numbers(
    op: str, kernel: str, arguments: Sequence[Any], counts: tuple[int, int]
) -> tuple[Any, ...]:
    """Return the fields of a `GemmSite`, in their order.

    Args:
        op: The operator.
        kernel: ``SYMBOL`` or ``SYMBOL@DIGEST``.
        arguments: The constant arguments after the kernel's name.
        counts: Operands and further outputs of an epilogue.
    """
    name = name_of(op)
    order, swizzle, raster, split_k, *scalars = arguments
    bias, alpha, beta = scalars if name == "cutlass_addmm" else ("none", 1.0, 0.0)
    rows = [int(letter == "t") for letter in order]
    launched = (swizzle, raster, split_k, _BIASES.index(bias))
    scale = _SCALES.index(types_of(kernel).scale)
    return (_PRODUCTS.index(name), *rows, *launched, *counts, alpha, beta, scale)


def attention_numbers(op: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the kind of an `AttentionSite`, scale, left, right and bottom_right; arguments as in `product_numbers`."""
    scale, left, right, bottom_right = arguments
    return (ATTENTIONS.index(name_of(op)), scale, left, right, int(bottom_right))


def _site(
    sites: library.Sites,
    op: str,
    arguments: Sequence[Any],
    counts: tuple[int, int],
    slow: _SiteCall,
) -> library.Site:
    name, constants = slow.name, arguments[1:]
    if name_of(op) in ATTENTIONS:
        backward = name_of(op) == "cutlass_fmha_backward"  # its sums are in no fixed order
        veto = torch.are_deterministic_algorithms_enabled if backward else None
        return sites.attention_site(name, slow, veto, *attention_numbers(op, constants))
    return sites.product_site(
        name, slow, *product_numbers(op, str(arguments[0]), constants, counts)
    )
