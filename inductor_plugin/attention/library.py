"""The table of the library's attention kernels, and how the plugin calls them.

A benchmark worker calls a kernel with tensors (`FUNCTIONS`); where it wins, the lowering calls the same
function with `Tools` that create Inductor's nodes. So the measured code is the emitted code, including
the cost of converting the results to those of the traced operator:

- statistics (lse) in its form: ``rows`` [B, H, Sq], with varlen [H, Tq]; ``column`` [B, H, Sq, 1]
  (cuDNN); ``padded`` [B, H, Sq rounded up to 32], filled with +inf (efficient); ``cpu`` [B, H, Sq] with
  heads innermost. torch/_meta_registrations.py of torch 2.11 to 2.15 has the shapes; all are natural
  logarithms in float32.
- the output's dimensions in its order in memory.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_plugin.attention import gates
from inductor_plugin.attention import kernel_calls as calls
from inductor_plugin.attention.gates import DispatchContext, Gate
from inductor_plugin.attention.kernel_calls import Kernel, KernelArguments, OperandsByName
from inductor_plugin.attention.tools import MemoizedByVersion, Tools, TorchTools
from inductor_plugin.problem.attention import Attention, Mask, operands_of

PREFIX = "attention_"
"""Prefix of a kernel's name on Inductor's ``extern_kernels``."""

_VARLEN = "torch.nn.attention.varlen"
_FMHA = "inductor_plugin.attention.operator"
_WHEEL = "inductor_plugin.attention.flash_wheel"


@dataclass(frozen=True)
class LibraryKernel:
    """An attention kernel of the library.

    Attributes:
        name: Its name, without the direction.
        forward: Computes (out, lse, ...).
        backward: Computes (dq, dk, dv, ...); None if it has no gradient.
        operator: The operator that is traced where torch chose the kernel, ``namespace.name``; its
            gradient is ``name_backward``. Empty if it is never traced.
        lse_form: Form of its statistics, see the module's docstring.
        diagonal_at_end: Whether a causal mask ends at the last key where Sq != Sk (bottom right), not begins at the
            first. Of ``fmha`` its arguments say so.
        backend: Its name in the option ``attention_backends``; empty if it is offered only where it was traced.
        replaces: Whether it is offered for an attention where another operator was traced; None: never.
        gate: Returns why it cannot compute an attention that it is offered for, None if it can.
        defined_by: Module that defines its operators, if torch does not import it.
        same_as: Name of the row whose kernel its operator calls, which is not offered where the operator was traced; empty if
            there is none.
    """

    name: str
    forward: Kernel
    backward: Kernel | None = None
    operator: str = ""
    lse_form: str = "rows"
    diagonal_at_end: bool = False
    backend: str = ""
    replaces: Callable[[Attention], bool] | None = None
    gate: Gate | None = None
    defined_by: str = ""
    same_as: str = ""

    @property
    def lse_read(self) -> str:
        """The form of lse that its gradient reads; the gradient for CPUs accepts any strides."""
        return "rows" if self.lse_form == "cpu" else self.lse_form

    def load(self) -> None:
        """Register its operators with torch."""
        _load(self.defined_by)

    def why_not(self, attention: Attention, context: DispatchContext) -> str | None:
        """Return why the kernel cannot compute an attention, None if it can."""
        return gates.why_not(self.backend, self.gate, attention, context)

    def run(
        self,
        tools: Tools,
        operands: OperandsByName,
        arguments: KernelArguments,
        *,
        gradient: bool,
    ) -> tuple[Any, ...]:
        """Return (out, lse) or (dq, dk, dv) of its operator."""
        self.load()
        call = self.backward if gradient else self.forward
        assert call is not None, f"{self.name} has no gradient"
        return call(tools, operands, arguments)[: 3 if gradient else 2]


@functools.cache
def _load(module: str) -> None:
    if module:
        importlib.import_module(module)


def _packed(a: Attention) -> bool:
    return a.varlen


def _dense(a: Attention) -> bool:
    return not a.varlen


def _windowed(a: Attention) -> bool:
    return not a.varlen and (a.mask.left >= 0 or a.mask.right > 0)


def _not_windowed(a: Attention) -> bool:
    return not a.varlen and not _windowed(a)


def _any(_a: Attention) -> bool:
    return True


_TABLE = (
    LibraryKernel(
        "flash",
        calls.flash,
        calls.flash_backward,
        operator="aten._scaled_dot_product_flash_attention",
        diagonal_at_end=True,
        backend="FLASH",
        replaces=_not_windowed,
        gate=gates.flash,
    ),
    LibraryKernel(
        "flash_window",
        calls.flash_window,
        calls.flash_window_backward,
        diagonal_at_end=True,
        backend="FLASH",
        replaces=_windowed,
        gate=gates.flash,
    ),
    LibraryKernel(
        "flash_varlen",
        calls.flash_varlen,
        calls.flash_varlen_backward,
        diagonal_at_end=True,
        backend="FLASH",
        replaces=_packed,
        gate=gates.flash,
    ),
    LibraryKernel(
        "varlen",
        calls.varlen,
        calls.varlen_backward,
        operator="torch_attn._varlen_attn",
        diagonal_at_end=True,
        defined_by=_VARLEN,
        same_as="flash_varlen",  # where it does not call cuDNN
    ),
    LibraryKernel(
        "efficient",
        calls.efficient,
        calls.efficient_backward,
        operator="aten._scaled_dot_product_efficient_attention",
        lse_form="padded",
        backend="EFFICIENT",
        replaces=_dense,
        gate=gates.efficient,
    ),
    LibraryKernel(
        "cudnn",
        calls.cudnn,
        calls.cudnn_backward,
        operator="aten._scaled_dot_product_cudnn_attention",
        lse_form="column",
        backend="CUDNN",
        replaces=_dense,
        gate=gates.cudnn,
    ),
    LibraryKernel(
        "cpu",
        calls.cpu,
        calls.cpu_backward,
        operator="aten._scaled_dot_product_flash_attention_for_cpu",
        lse_form="cpu",
    ),
    LibraryKernel(
        "fmha",
        calls.fmha,
        calls.fmha_backward,
        operator="inductor_plugin.fmha",
        defined_by=_FMHA,
    ),
    LibraryKernel(
        "flash3",
        calls.flash_wheel("flash3"),
        diagonal_at_end=True,
        backend="FLASH",
        replaces=_any,
        gate=gates.wheel("flash3", (9,)),
        defined_by=_WHEEL,
    ),
    LibraryKernel(
        "flash4",
        calls.flash_wheel("flash4"),
        diagonal_at_end=True,
        backend="FLASH",
        replaces=_any,
        gate=gates.wheel("flash4", (9, 10)),
        defined_by=_WHEEL,
    ),
)

KERNELS: dict[str, LibraryKernel] = {kernel.name: kernel for kernel in _TABLE}
"""All kernels by name; a new kernel is a new row of the table."""


def rivals(attention: Attention, traced: str) -> list[LibraryKernel]:
    """Return the kernels that are offered for an attention, in the order of the table.

    Args:
        attention: The attention.
        traced: Name of the kernel whose operator was traced; neither it nor what it is the same as is offered.
    """
    known = (traced, KERNELS[traced].same_as)
    return [
        kernel
        for kernel in _TABLE
        if kernel.replaces is not None
        and kernel.name not in known
        and kernel.replaces(attention)
        and not (attention.backward and kernel.backward is None)
    ]


def forward(
    kernel: LibraryKernel, tools: Tools, x: OperandsByName, f: KernelArguments
) -> tuple[Any, Any]:
    """Return (out, lse) of a kernel, converted to the form and order of ``f``; lse may be None."""
    out, lse = kernel.run(tools, x, f, gradient=False)
    if f.order:
        out = tools.dense(out, f.order[0])
    if not f.lse:
        return out, None
    form = kernel.lse_form
    return out, reformed(tools, lse, form, f.form or form, lambda: tools.size(x["q"], 2))


def backward(
    kernel: LibraryKernel, tools: Tools, x: OperandsByName, f: KernelArguments
) -> tuple[Any, Any, Any]:
    """Return (dq, dk, dv) of a kernel; ``x["lse"]`` has the form ``f.form``."""
    form = kernel.lse_read
    lse = reformed(tools, x["lse"], f.form or form, form, lambda: tools.size(x["q"], 2))
    grads = kernel.run(tools, {**x, "lse": lse}, f, gradient=True)
    if f.order:
        grads = tuple(tools.dense(grad, order) for grad, order in zip(grads, f.order, strict=True))
    return grads[0], grads[1], grads[2]


def reformed(tools: Tools, lse: Any, have: str, want: str, rows: Callable[[], Any]) -> Any:
    """Return statistics in another form.

    Args:
        tools: The operations for tensors or for nodes.
        lse: The statistics.
        have: Its form.
        want: The form to return.
        rows: Returns Sq.
    """
    if have == want:
        return lse
    if have == "column":
        lse = tools.squeeze(lse)
    elif have != "rows":
        lse = tools.dense(lse if have == "cpu" else tools.head(lse, rows()), (0, 1, 2))
    if want == "column":
        return tools.unsqueeze(lse)
    if want == "padded":
        return tools.padded(lse, 32, float("inf"))
    return tools.dense(lse, (0, 2, 1)) if want == "cpu" else lse


_TENSORS = TorchTools()
_PADDED = MemoizedByVersion(
    lambda lse: reformed(_TENSORS, lse, "rows", "padded", lambda: lse.size(2))
)


def results(
    name: str,
    gradient: bool,  # noqa: FBT001
    tensors: Sequence[torch.Tensor],
    kwargs: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Return all results of a kernel: (out, lse) or (dq, dk, dv).

    Args:
        name: The kernel.
        gradient: Whether it is the gradient.
        tensors: All operands of the problem, in their order; they are not modified. lse of a gradient is
            [B, H, Sq]; ``form="padded"`` pads it once, outside of the measured time.
        kwargs: As in `inductor_plugin.problem.attention.arguments`, and other fields of `KernelArguments`.
    """
    names, arguments = _read_arguments(gradient, tuple(kwargs.items()))
    _activate(arguments.implementation)
    operands = dict(zip(names, tensors, strict=True))
    if gradient and arguments.form == "padded":
        operands["lse"] = _PADDED(operands["lse"])
    return (backward if gradient else forward)(KERNELS[name], _TENSORS, operands, arguments)


@functools.lru_cache(maxsize=64)
def _read_arguments(
    gradient: bool,  # noqa: FBT001
    kwargs: tuple[tuple[str, Any], ...],
) -> tuple[tuple[str, ...], KernelArguments]:
    """Return names and arguments; cached, because parsing takes longer than a small kernel."""
    rest = dict(kwargs)
    names = operands_of(rest)
    del rest["operands"]
    mask = Mask(rest.pop("left"), rest.pop("right"), rest.pop("bottom_right"))
    form = rest.pop("form", "rows" if gradient else "")
    return names, KernelArguments(mask=mask, lse="lse" in names, form=form, **rest)


def _activate(implementation: str | None) -> None:
    """Select the implementation of ATen's flash operators that the compiling process uses."""
    attention: Any = importlib.import_module("torch.nn.attention")
    if attention.current_flash_attention_impl() == implementation:
        return
    if implementation is None:
        attention.restore_flash_attention_impl()
    else:
        attention.activate_flash_attention_impl(implementation)


_RECORDED_MODULE = "inductor_plugin.attention_library"
"""Inductor hashes a function's module and text into a candidate's identity; records hold this module's."""


def _measured(name: str, gradient: bool) -> Callable[..., torch.Tensor]:  # noqa: FBT001
    def attention(*tensors: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return results(name, gradient, tensors, kwargs)[int(gradient)]

    attention.__name__ = extern_name(name, gradient=gradient)
    attention.__module__ = _RECORDED_MODULE
    return attention


def extern_name(name: str, *, gradient: bool) -> str:
    """Return a kernel's name on Inductor's ``extern_kernels``."""
    return f"{PREFIX}{name}{'_backward' if gradient else ''}"


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    extern_name(name, gradient=direction): _measured(name, direction)
    for direction in (False, True)
    for name, kernel in KERNELS.items()
    if kernel.backward is not None or not direction
}
"""The functions a worker calls, by their names on ``extern_kernels``; they return out, or dk."""
