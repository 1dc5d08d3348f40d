"""The library's attention kernels, one function each, which run on tensors and on Inductor's nodes alike.

A benchmark worker calls them with tensors (`function`); where one wins, the lowering calls the same
function with `Tools` that make Inductor's nodes. So what is measured is what is emitted, with the cost
of giving back what the operator that was traced would have given:

- statistics (lse) in its form: ``rows`` [B, H, Sq], with varlen [H, Tq]; ``column`` [B, H, Sq, 1]
  (cuDNN); ``padded`` [B, H, Sq rounded up to 32], +inf behind (efficient); ``cpu`` [B, H, Sq] with heads
  innermost. torch/_meta_registrations.py of torch 2.11 to 2.15 has the shapes; all are natural
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

from inductor_plugin.attention.tools import Once, Tools, TorchTools, whole_bias
from inductor_plugin.problem.attention import Mask

PREFIX = "attention_"
"""Before a kernel's name on Inductor's ``extern_kernels``."""

FORMS = {"efficient": "padded", "cudnn": "column", "cpu": "cpu"}
"""The form of a kernel's statistics, where it is not ``rows``."""

_BSHD = (0, 2, 1, 3)


@dataclass(frozen=True)
class Facts:
    """What a kernel is called with besides tensors.

    Attributes:
        scale: Factor of q @ k.T.
        mask: Which keys a query sees.
        softcap: Soft cap of the scores; 0: none.
        lse: Whether statistics are wanted (forward).
        form: Form of the statistics, wanted (forward) or given (backward); empty: the kernel's own.
        order: Order in memory of the output (forward) or of dq, dk and dv in turn (backward), where
            the kernel's own is another one; empty: its own.
        max_q: Tokens of the longest query sequence of a varlen call.
        max_k: Tokens of the longest key sequence.
        implementation: What was activated in the place of FlashAttention 2.
        backend: Number of the backend of torch 2.15's varlen operator.
    """

    scale: float
    mask: Mask
    softcap: float = 0.0
    lse: bool = False
    form: str = ""
    order: tuple[tuple[int, ...], ...] = ()
    max_q: Any = 0
    max_k: Any = 0
    implementation: str | None = None
    backend: int | None = None

    @property
    def causal(self) -> bool:
        """Return whether a query sees no later key, and all before."""
        return self.mask.right == 0 and self.mask.left < 0


Operands = Mapping[str, Any]
Kernel = Callable[[Tools, Operands, Facts], tuple[Any, ...]]


def forward(name: str, tools: Tools, x: Operands, f: Facts) -> tuple[Any, Any]:
    """Return (out, lse) of a kernel in the form and the order that are wanted; lse may be None."""
    out, lse = FORWARD_KERNELS[name](tools, x, f)[:2]
    if f.order:
        out = tools.dense(out, f.order[0])
    if not f.lse:
        return out, None
    own = FORMS.get(name, "rows")
    return out, reformed(tools, lse, own, f.form or own, lambda: tools.size(x["q"], 2))


def backward(name: str, tools: Tools, x: Operands, f: Facts) -> tuple[Any, Any, Any]:
    """Return (dq, dk, dv) of a kernel; ``x["lse"]`` has the form ``f.form``."""
    own = "rows" if name == "cpu" else FORMS.get(name, "rows")  # a CPU's takes any strides
    lse = reformed(tools, x["lse"], f.form or own, own, lambda: tools.size(x["q"], 2))
    grads = BACKWARD_KERNELS[name](tools, {**x, "lse": lse}, f)[:3]
    if f.order:
        grads = tuple(tools.dense(one, order) for one, order in zip(grads, f.order, strict=True))
    return grads[0], grads[1], grads[2]


def reformed(tools: Tools, lse: Any, have: str, want: str, rows: Callable[[], Any]) -> Any:
    """Return statistics in another form.

    Args:
        tools: What they are handled with.
        lse: The statistics.
        have: Their form.
        want: The wanted one.
        rows: Gives Sq.
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


def _flash(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    name = "aten._scaled_dot_product_flash_attention"
    return t.call(name, x["q"], x["k"], x["v"], 0.0, f.causal, scale=f.scale)


def _flash_backward(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    q, k = x["q"], x["k"]
    return t.call(
        "aten._scaled_dot_product_flash_attention_backward",
        *(x[name] for name in ("do", "q", "k", "v", "out", "lse")),
        *(None, None, t.size(q, 2), t.size(k, 2), 0.0, f.causal, *_flash_seeds(t, q)),
        scale=f.scale,
    )


def _flash_seeds(t: Tools, like: Any) -> tuple[Any, Any]:
    return t.empty(like, (2,), torch.uint64), t.empty(like, (), torch.uint64)


def _window(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    """FlashAttention with a window; its dense tensors are [B, S, H, D]."""
    q, k, v = (t.transpose(x[name], 1, 2) for name in ("q", "k", "v"))
    out, lse, *_ = t.call(
        "aten._flash_attention_forward",
        *(q, k, v, None, None, t.size(q, 1), t.size(k, 1), 0.0, f.causal, False),
        **_windows(f),
    )
    return t.transpose(out, 1, 2), lse


def _window_backward(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    do, q, k, v, out = (t.transpose(x[name], 1, 2) for name in ("do", "q", "k", "v", "out"))
    grads = t.call(
        "aten._flash_attention_backward",
        *(do, q, k, v, out, x["lse"], None, None, t.size(q, 1), t.size(k, 1), 0.0, f.causal),
        *_flash_seeds(t, q),
        **_windows(f),
    )
    return tuple(t.transpose(one, 1, 2) for one in grads)


def _windows(f: Facts) -> dict[str, Any]:
    left, right = (-1, -1) if f.causal else (f.mask.left, f.mask.right)
    return {"scale": f.scale, "window_size_left": left, "window_size_right": right}


def _packed(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    return t.call(
        "aten._flash_attention_forward",
        *(x[name] for name in ("q", "k", "v", "cu_q", "cu_k")),
        *(f.max_q, f.max_k, 0.0, f.causal, False),
        **_windows(f),
    )


def _packed_backward(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    return t.call(
        "aten._flash_attention_backward",
        *(x[name] for name in ("do", "q", "k", "v", "out", "lse", "cu_q", "cu_k")),
        *(f.max_q, f.max_k, 0.0, f.causal, *_flash_seeds(t, x["q"])),
        **_windows(f),
    )


def _varlen(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    operands = (x[name] for name in ("q", "k", "v", "cu_q", "cu_k"))
    return t.call("torch_attn._varlen_attn", *operands, f.max_q, f.max_k, f.causal, **_varlens(f))


def _varlen_backward(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    operands = (x[name] for name in ("do", "q", "k", "v", "out", "lse", "cu_q", "cu_k"))
    seed = t.empty(x["q"], (2,), torch.uint64)
    return t.call(
        "torch_attn._varlen_attn_backward",
        *(*operands, f.max_q, f.max_k, f.causal, seed),
        **_varlens(f),
    )


def _varlens(f: Facts) -> dict[str, Any]:
    told = {"scale": f.scale, "window_size": [f.mask.left, f.mask.right]}
    return told if f.backend is None else {**told, "backend": f.backend}


def _efficient(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    name = "aten._scaled_dot_product_efficient_attention"
    operands = (x["q"], x["k"], x["v"], whole_bias(t, x))
    return t.call(name, *operands, f.lse, 0.0, f.causal, scale=f.scale)


def _efficient_backward(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    # Otherwise it crashes: https://github.com/pytorch/pytorch/issues/138772
    do, out = t.dense(x["do"], _BSHD), t.dense(x["out"], _BSHD)
    return t.call(
        "aten._scaled_dot_product_efficient_attention_backward",
        *(do, x["q"], x["k"], x["v"], whole_bias(t, x), out, x["lse"], *_seeds(t, x["q"])),
        *(0.0, [True, True, True, False], f.causal),
        scale=f.scale,
    )


def _seeds(t: Tools, like: Any) -> tuple[Any, Any]:
    return t.empty(like, (), torch.int64), t.empty(like, (), torch.int64)


def _cudnn(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    name = "aten._scaled_dot_product_cudnn_attention"
    bias = x.get("bias")
    return t.call(name, x["q"], x["k"], x["v"], bias, f.lse, 0.0, f.causal, scale=f.scale)


def _cudnn_backward(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    q, k = x["q"], x["k"]
    return t.call(
        "aten._scaled_dot_product_cudnn_attention_backward",
        *(x[name] for name in ("do", "q", "k", "v", "out", "lse")),
        *(*_seeds(t, q), x.get("bias"), None, None, t.size(q, 2), t.size(k, 2), 0.0, f.causal),
        scale=f.scale,
    )


def _cpu(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    told = {"attn_mask": x.get("bias"), "scale": f.scale}
    return t.call(name, x["q"], x["k"], x["v"], 0.0, f.causal, **told)


def _cpu_backward(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    return t.call(
        "aten._scaled_dot_product_flash_attention_for_cpu_backward",
        *(x[name] for name in ("do", "q", "k", "v", "out", "lse")),
        *(0.0, f.causal),
        attn_mask=x.get("bias"),
        scale=f.scale,
    )


def _fmha(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    return t.call(
        "inductor_plugin.fmha",
        *(x["q"], x["k"], x["v"], *_sequences(x, f)),
        **_fmha_keywords(f),
        return_lse=f.lse,
    )


def _fmha_backward(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
    return t.call(
        "inductor_plugin.fmha_backward",
        *(x[name] for name in ("do", "q", "k", "v", "out", "lse")),
        *(None, *_sequences(x, f)),
        **_fmha_keywords(f),
    )


def _sequences(x: Operands, f: Facts) -> tuple[Any, ...]:
    longest = (f.max_q, f.max_k) if "cu_q" in x else (None, None)
    return x.get("bias"), x.get("cu_q"), x.get("cu_k"), *longest


def _fmha_keywords(f: Facts) -> dict[str, Any]:
    return {
        "scale": f.scale,
        "window_left": f.mask.left,
        "window_right": f.mask.right,
        "bottom_right": f.mask.bottom_right,
        "softcap": f.softcap,
    }


def _wheel(package: str) -> Kernel:
    def kernel(t: Tools, x: Operands, f: Facts) -> tuple[Any, ...]:
        """FlashAttention from its own package; its dense tensors are [B, S, H, D]."""
        operands, longest = [x[name] for name in ("q", "k", "v")], (f.max_q, f.max_k)
        if "cu_q" not in x:
            longest = t.size(operands[0], 2), t.size(operands[1], 2)
            operands = [t.transpose(one, 1, 2) for one in operands]
        out, lse = t.call(
            "inductor_plugin.flash_wheel",
            *(*operands, x.get("cu_q"), x.get("cu_k"), *longest),
            *(f.scale, f.softcap, f.mask.left, f.mask.right, package),
        )
        return (out if "cu_q" in x else t.transpose(out, 1, 2)), lse

    return kernel


FORWARD_KERNELS: dict[str, Kernel] = {
    "flash": _flash,
    "flash_window": _window,
    "flash_varlen": _packed,
    "varlen": _varlen,
    "efficient": _efficient,
    "cudnn": _cudnn,
    "cpu": _cpu,
    "fmha": _fmha,
    "flash3": _wheel("flash3"),
    "flash4": _wheel("flash4"),
}
"""What computes (out, lse, ...), by name."""

BACKWARD_KERNELS: dict[str, Kernel] = {
    "flash": _flash_backward,
    "flash_window": _window_backward,
    "flash_varlen": _packed_backward,
    "varlen": _varlen_backward,
    "efficient": _efficient_backward,
    "cudnn": _cudnn_backward,
    "cpu": _cpu_backward,
    "fmha": _fmha_backward,
}
"""What computes (dq, dk, dv, ...), by name."""

_TENSORS = TorchTools()
_PADDED = Once(lambda lse: reformed(_TENSORS, lse, "rows", "padded", lambda: lse.size(2)))


def results(
    name: str,
    gradient: bool,  # noqa: FBT001
    tensors: Sequence[torch.Tensor],
    kwargs: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Return all that a kernel computes: (out, lse) or (dq, dk, dv).

    Args:
        name: The kernel.
        gradient: Whether it is the gradient.
        tensors: All operands of the problem, in their order; nothing is written to them. lse of a
            gradient is [B, H, Sq]; ``form="padded"`` pads it once, as the traced operator has it.
        kwargs: As in `inductor_plugin.problem.attention.arguments`, and more of `Facts` by name.
    """
    names, facts = _told(gradient, tuple(kwargs.items()))
    _activate(facts.implementation)
    given = dict(zip(names, tensors, strict=True))
    if gradient and facts.form == "padded":
        given["lse"] = _PADDED(given["lse"])
    return (backward if gradient else forward)(name, _TENSORS, given, facts)


@functools.lru_cache(maxsize=64)
def _told(gradient: bool, kwargs: tuple[tuple[str, Any], ...]) -> tuple[list[str], Facts]:  # noqa: FBT001
    """Return names and facts; kept, since it would take longer than a small kernel."""
    told = dict(kwargs)
    names = str(told.pop("operands")).split(",")
    mask = Mask(told.pop("left"), told.pop("right"), told.pop("bottom_right"))
    form = told.pop("form", "rows" if gradient else "")
    facts = Facts(mask=mask, lse="lse" in names, form=form, **told)
    return names, facts


def _activate(implementation: str | None) -> None:
    """Let ATen's flash operators be what they are in the process that compiles."""
    attention: Any = importlib.import_module("torch.nn.attention")
    if attention.current_flash_attention_impl() == implementation:
        return
    if implementation is None:
        attention.restore_flash_attention_impl()
    else:
        attention.activate_flash_attention_impl(implementation)


def _measured(name: str, gradient: bool) -> Callable[..., torch.Tensor]:  # noqa: FBT001
    def attention(*tensors: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return results(name, gradient, tensors, kwargs)[int(gradient)]

    attention.__name__ = extern_name(name, gradient=gradient)
    return attention


def extern_name(name: str, *, gradient: bool) -> str:
    """Return a kernel's name on Inductor's ``extern_kernels``."""
    return f"{PREFIX}{name}{'_backward' if gradient else ''}"


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    extern_name(name, gradient=direction): _measured(name, direction)
    for direction, kernels in ((False, FORWARD_KERNELS), (True, BACKWARD_KERNELS))
    for name in kernels
}
"""What a worker calls, by its name on ``extern_kernels``: returns out, or dk."""
