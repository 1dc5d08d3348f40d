"""The calls of the library's attention kernels, one function for each kernel and direction.

Each runs on tensors (`TorchTools`) and on Inductor's nodes alike, and returns the results of its operator:
(out, lse, ...) or (dq, dk, dv, ...). The table of kernels is in `inductor_plugin.attention.library`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from inductor_plugin.attention.flash import FARTHEST
from inductor_plugin.attention.tools import Tools, whole_bias
from inductor_plugin.problem.attention import Mask

_BSHD = (0, 2, 1, 3)


@dataclass(frozen=True)
class KernelArguments:
    """The arguments of a kernel other than tensors.

    Attributes:
        scale: Factor of q @ k.T.
        mask: Which keys a query sees.
        softcap: Soft cap of the scores; 0: none.
        lse: Whether the statistics (log-sum-exp) are returned (forward).
        form: Form of the statistics that are returned (forward) or read (backward); empty: the kernel's.
        order: Order in memory of the output (forward) or of each of dq, dk and dv (backward), where it
            differs from the kernel's; empty: the kernel's.
        max_q: Tokens of the longest query sequence of a varlen call.
        max_k: Tokens of the longest key sequence.
        implementation: The FlashAttention implementation that replaces FlashAttention 2, if any.
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
        """Return whether a query sees all keys up to the diagonal, and none after it."""
        return self.mask.right == 0 and self.mask.left < 0


OperandsByName = Mapping[str, Any]
Kernel = Callable[[Tools, OperandsByName, KernelArguments], tuple[Any, ...]]


def flash(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """FlashAttention of dense operands; the diagonal of a causal mask ends at the last key."""
    name = "aten._scaled_dot_product_flash_attention"
    return t.call(name, x["q"], x["k"], x["v"], 0.0, f.causal, scale=f.scale)


def flash_backward(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """Gradients of `flash`."""
    q, k = x["q"], x["k"]
    return t.call(
        "aten._scaled_dot_product_flash_attention_backward",
        *(x[name] for name in ("do", "q", "k", "v", "out", "lse")),
        *(None, None, t.size(q, 2), t.size(k, 2), 0.0, f.causal, *_flash_seeds(t, q)),
        scale=f.scale,
    )


def _flash_seeds(t: Tools, like: Any) -> tuple[Any, Any]:
    return t.empty(like, (2,), torch.uint64), t.empty(like, (), torch.uint64)


def flash_window(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """FlashAttention with a window; its dense tensors are [B, S, H, D]."""
    q, k, v = (t.transpose(x[name], 1, 2) for name in ("q", "k", "v"))
    out, lse, *_ = t.call(
        "aten._flash_attention_forward",
        *(q, k, v, None, None, t.size(q, 1), t.size(k, 1), 0.0, f.causal, False),
        **_window_keywords(f),
    )
    return t.transpose(out, 1, 2), lse


def flash_window_backward(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """Gradients of `flash_window`."""
    do, q, k, v, out = (t.transpose(x[name], 1, 2) for name in ("do", "q", "k", "v", "out"))
    grads = t.call(
        "aten._flash_attention_backward",
        *(do, q, k, v, out, x["lse"], None, None, t.size(q, 1), t.size(k, 1), 0.0, f.causal),
        *_flash_seeds(t, q),
        **_window_keywords(f),
    )
    return tuple(t.transpose(grad, 1, 2) for grad in grads)


def _window_keywords(f: KernelArguments) -> dict[str, Any]:
    left, right = (-1, -1) if f.causal else (f.mask.left, f.mask.right)
    sides = {"window_size_left": min(left, FARTHEST), "window_size_right": min(right, FARTHEST)}
    return {"scale": f.scale, **sides}


def flash_varlen(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """FlashAttention of concatenated sequences."""
    return t.call(
        "aten._flash_attention_forward",
        *(x[name] for name in ("q", "k", "v", "cu_q", "cu_k")),
        *(f.max_q, f.max_k, 0.0, f.causal, False),
        **_window_keywords(f),
    )


def flash_varlen_backward(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """Gradients of `flash_varlen`."""
    return t.call(
        "aten._flash_attention_backward",
        *(x[name] for name in ("do", "q", "k", "v", "out", "lse", "cu_q", "cu_k")),
        *(f.max_q, f.max_k, 0.0, f.causal, *_flash_seeds(t, x["q"])),
        **_window_keywords(f),
    )


def varlen(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """Torch's operator for concatenated sequences, which calls FlashAttention or cuDNN."""
    operands = (x[name] for name in ("q", "k", "v", "cu_q", "cu_k"))
    return t.call(
        "torch_attn._varlen_attn", *operands, f.max_q, f.max_k, f.causal, **_varlen_keywords(f)
    )


def varlen_backward(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """Gradients of `varlen`."""
    operands = (x[name] for name in ("do", "q", "k", "v", "out", "lse", "cu_q", "cu_k"))
    seed = t.empty(x["q"], (2,), torch.uint64)
    return t.call(
        "torch_attn._varlen_attn_backward",
        *(*operands, f.max_q, f.max_k, f.causal, seed),
        **_varlen_keywords(f),
    )


def _varlen_keywords(f: KernelArguments) -> dict[str, Any]:
    keywords = {"scale": f.scale, "window_size": [f.mask.left, f.mask.right]}
    return keywords if f.backend is None else {**keywords, "backend": f.backend}


def efficient(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """Memory-efficient attention; the diagonal of a causal mask begins at the first key."""
    name = "aten._scaled_dot_product_efficient_attention"
    operands = (x["q"], x["k"], x["v"], whole_bias(t, x))
    return t.call(name, *operands, f.lse, 0.0, f.causal, scale=f.scale)


def efficient_backward(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """Gradients of `efficient`."""
    # Other strides crash: https://github.com/pytorch/pytorch/issues/138772
    do, out = t.dense(x["do"], _BSHD), t.dense(x["out"], _BSHD)
    return t.call(
        "aten._scaled_dot_product_efficient_attention_backward",
        *(do, x["q"], x["k"], x["v"], whole_bias(t, x), out, x["lse"], *_seeds(t, x["q"])),
        *(0.0, [True, True, True, False], f.causal),
        scale=f.scale,
    )


def _seeds(t: Tools, like: Any) -> tuple[Any, Any]:
    return t.empty(like, (), torch.int64), t.empty(like, (), torch.int64)


def cudnn(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """Attention of cuDNN; the diagonal of a causal mask begins at the first key."""
    name = "aten._scaled_dot_product_cudnn_attention"
    bias = x.get("bias")
    return t.call(name, x["q"], x["k"], x["v"], bias, f.lse, 0.0, f.causal, scale=f.scale)


def cudnn_backward(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """Gradients of `cudnn`."""
    q, k = x["q"], x["k"]
    return t.call(
        "aten._scaled_dot_product_cudnn_attention_backward",
        *(x[name] for name in ("do", "q", "k", "v", "out", "lse")),
        *(*_seeds(t, q), x.get("bias"), None, None, t.size(q, 2), t.size(k, 2), 0.0, f.causal),
        scale=f.scale,
    )


def cpu(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """ATen's fused attention on a CPU."""
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    keywords = {"attn_mask": x.get("bias"), "scale": f.scale}
    return t.call(name, x["q"], x["k"], x["v"], 0.0, f.causal, **keywords)


def cpu_backward(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """Gradients of `cpu`."""
    return t.call(
        "aten._scaled_dot_product_flash_attention_for_cpu_backward",
        *(x[name] for name in ("do", "q", "k", "v", "out", "lse")),
        *(0.0, f.causal),
        attn_mask=x.get("bias"),
        scale=f.scale,
    )


def fmha(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """`inductor_plugin.fmha`."""
    return t.call(
        "inductor_plugin.fmha",
        *(x["q"], x["k"], x["v"], *_sequences(x, f)),
        **_fmha_keywords(f),
        return_lse=f.lse,
    )


def fmha_backward(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    """Gradients of `fmha`."""
    return t.call(
        "inductor_plugin.fmha_backward",
        *(x[name] for name in ("do", "q", "k", "v", "out", "lse")),
        *(None, *_sequences(x, f)),
        **_fmha_keywords(f),
    )


def _sequences(x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
    longest = (f.max_q, f.max_k) if "cu_q" in x else (None, None)
    return x.get("bias"), x.get("cu_q"), x.get("cu_k"), *longest


def _fmha_keywords(f: KernelArguments) -> dict[str, Any]:
    return {
        "scale": f.scale,
        "window_left": f.mask.left,
        "window_right": f.mask.right,
        "bottom_right": f.mask.bottom_right,
        "softcap": f.softcap,
    }


def flash_wheel(package: str) -> Kernel:
    """Return the call of a FlashAttention package; its dense tensors are [B, S, H, D]."""

    def kernel(t: Tools, x: OperandsByName, f: KernelArguments) -> tuple[Any, ...]:
        operands, longest = [x[name] for name in ("q", "k", "v")], (f.max_q, f.max_k)
        if "cu_q" not in x:
            longest = t.size(operands[0], 2), t.size(operands[1], 2)
            operands = [t.transpose(operand, 1, 2) for operand in operands]
        out, lse = t.call(
            "inductor_plugin.flash_wheel",
            *(*operands, x.get("cu_q"), x.get("cu_k"), *longest),
            *(f.scale, f.softcap, f.mask.left, f.mask.right, package),
        )
        return (out if "cu_q" in x else t.transpose(out, 1, 2)), lse

    return kernel
