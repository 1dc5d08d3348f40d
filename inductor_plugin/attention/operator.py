"""The operators that implement `inductor_plugin.fmha`: ``torch.ops.inductor_plugin.fmha`` and its backward.

Importing this module registers them. An exported program that runs in another process, and an AOTInductor package that was
compiled without the plugin's options, need ``from inductor_plugin import fmha`` first.

    fmha           out, and lse or None
    fmha_backward  dq, dk, dv, and dbias or None; not differentiable itself

Shapes and types as in `inductor_plugin.attention.function.fmha`. Strides: out has the order of q's strides,
and each gradient those of ``torch.empty_like`` of its operand; lse is contiguous, float32 (float64 for
float64 operands). A window of -1 is unlimited, less is refused; ``scale=None`` is 1 / sqrt(D).

Training always calls ``fmha`` with ``return_lse=True`` below autograd: lse is saved for the backward, and
returned only if the caller asked for it. So a training graph contains the call with lse, and an inference
graph the call as written.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.utils import flop_counter

from inductor_plugin.attention import blockwise
from inductor_plugin.attention.arguments import (
    AttentionOperands,
    check,
    check_gradient,
    read_lengths,
)
from inductor_plugin.attention.blockwise import BlockwiseGradients, ScoreParams
from inductor_plugin.attention.flash import (
    flash_backward,
    flash_forward,
    why_not_flash,
    widened,
)
from inductor_plugin.attention.flops import backward_flops, forward_flops
from inductor_plugin.problem.attention import Mask

_SEQUENCES = (
    "Tensor? bias=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None"
)
_KEYWORDS = (
    "float? scale=None, SymInt window_left=-1, SymInt window_right=-1, bool bottom_right=True, "
    "float softcap=0.0"
)
FORWARD_SCHEMA = (
    f"fmha(Tensor q, Tensor k, Tensor v, {_SEQUENCES}, *, {_KEYWORDS}, bool return_lse=False) "
    "-> (Tensor, Tensor?)"
)
BACKWARD_SCHEMA = (
    "fmha_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"Tensor? grad_lse=None, {_SEQUENCES}, *, {_KEYWORDS}, bool bias_grad=False) "
    "-> (Tensor, Tensor, Tensor, Tensor?)"
)

_TORCH: Any = torch
_AUTOGRAD: Any = torch.autograd.function
_FLOPS: Any = flop_counter
_DUAL: Any = forward_ad
_OneLevel: Any = _AUTOGRAD._SingleLevelFunction
_ONE_LEVEL: Any = enable_single_level_autograd_function
"""Enables `_SingleLevelFunction`: an operator's autograd kernel runs at one level of torch.func, where a usual
`Function` would dispatch to all levels again."""
_OPERATORS: Any = torch.library.Library("inductor_plugin", "FRAGMENT")
for _schema in (FORWARD_SCHEMA, BACKWARD_SCHEMA):
    _OPERATORS.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
_KEYS: Any = _TORCH._C.DispatchKey
_AUTOCAST: Any = _TORCH._C.DispatchKeySet(_KEYS.AutocastCPU) | _TORCH._C.DispatchKeySet(
    _KEYS.AutocastCUDA
)
FMHA: Any = torch.ops.inductor_plugin.fmha.default
FMHA_BACKWARD: Any = torch.ops.inductor_plugin.fmha_backward.default


def _forward(
    *operands: Any, return_lse: bool = False, **keywords: Any
) -> tuple[Tensor, Tensor | None]:
    """Compute out and lse, on any device of torch; the operands are those of `Operands`."""
    x = AttentionOperands(*operands)
    params = _checked(x, **keywords)
    wide = widened(x)
    if _flash_fits(wide, params, backward=False):
        out, lse = flash_forward(wide, params)
    else:
        out, lse = blockwise.forward(x.q, x.k, x.v, params, bias=x.bias, lengths=read_lengths(x))
    return _restrided(out, out_like(x.q, x.v)), lse if return_lse else None


def _forward_fake(
    *operands: Any, return_lse: bool = False, **keywords: Any
) -> tuple[Tensor, Tensor | None]:
    """Return the results of `_forward` without values."""
    x = AttentionOperands(*operands)
    _checked(x, **keywords)
    q, out = x.q, out_like(x.q, x.v)
    if not return_lse:
        return out, None
    shape = (q.size(1), q.size(0)) if x.varlen else q.shape[:-1]
    return out, q.new_empty(shape, dtype=blockwise.accumulator(q.dtype))


def _backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_lse: Tensor | None = None,
    bias: Tensor | None = None,
    *sequences: Any,
    bias_grad: bool = False,
    **keywords: Any,
) -> BlockwiseGradients:
    """Compute the gradients, on any device of torch."""
    x = AttentionOperands(q, k, v, bias, *sequences)
    params = _checked(x, **keywords)
    check_gradient(q.dtype)
    if grad_lse is None and _flash_fits(x, params, backward=True):
        grads = flash_backward(grad_out, x, out, lse, params)
    else:
        grads = blockwise.backward(
            grad_out,
            q,
            k,
            v,
            out,
            lse,
            params,
            grad_lse=grad_lse,
            bias=bias,
            bias_grad=bias_grad,
            lengths=read_lengths(x),
        )
    pairs = zip((grads.dq, grads.dk, grads.dv), (q, k, v), strict=True)
    dq, dk, dv = (_restrided(grad, torch.empty_like(operand)) for grad, operand in pairs)
    if grads.dbias is None or bias is None:
        return BlockwiseGradients(dq, dk, dv, None)
    return BlockwiseGradients(dq, dk, dv, _restrided(grads.dbias, torch.empty_like(bias)))


def _backward_fake(
    grad_out: Tensor,  # noqa: ARG001  the schema's
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,  # noqa: ARG001
    lse: Tensor,  # noqa: ARG001
    grad_lse: Tensor | None = None,  # noqa: ARG001
    bias: Tensor | None = None,
    *_sequences: Any,
    bias_grad: bool = False,
    **_keywords: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the results of `_backward` without values."""
    check_gradient(q.dtype)
    dbias = torch.empty_like(bias) if bias is not None and bias_grad else None
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), dbias


@contextmanager
def _as_outside() -> Generator[None, None, None]:
    """Turn on gradients, which autograd turns off in a forward, for the next level of torch.func."""
    with torch.enable_grad(), _DUAL._set_fwd_grad_enabled(True):  # noqa: FBT003  theirs
        yield


class _AttentionFunction(_OneLevel):
    """out and lse, with their gradients."""

    @staticmethod
    def forward(
        ctx: Any, keyset: Any, keywords: dict[str, Any], max_seqlens: Any, *tensors: Any
    ) -> tuple[Tensor, Tensor]:
        """Call the operator below autograd; tensors: q, k, v, bias, cu_seqlens_q, cu_seqlens_k."""
        with _as_outside(), _TORCH._C._AutoDispatchBelowAutograd():
            out, lse = FMHA.redispatch(
                keyset & _TORCH._C._after_autograd_keyset,
                *tensors,
                *max_seqlens,
                **keywords,
                return_lse=True,
            )
        ctx.keywords, ctx.max_seqlens = keywords, max_seqlens
        ctx.save_for_backward(*tensors, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        """Return the gradients of q, k, v and bias, and None for the rest."""
        grad_out, grad_lse = gradients
        q, k, v, bias, cu_seqlens_q, cu_seqlens_k, out, lse = ctx.saved_tensors
        if grad_out is None and grad_lse is None:
            return (None,) * 9
        dq, dk, dv, dbias = FMHA_BACKWARD(
            torch.zeros_like(out) if grad_out is None else grad_out,
            q,
            k,
            v,
            out,
            lse,
            grad_lse,
            bias,
            cu_seqlens_q,
            cu_seqlens_k,
            *ctx.max_seqlens,
            **ctx.keywords,
            bias_grad=bias is not None and ctx.needs_input_grad[6],
        )
        return None, None, None, dq, dk, dv, dbias, None, None


def _differentiable(
    keyset: Any, *operands: Any, return_lse: bool = False, **keywords: Any
) -> tuple[Tensor, Tensor | None]:
    """Save the tensors of the backward where a gradient is needed; else redispatch only."""
    x = AttentionOperands(*operands)
    tensors = (x.q, x.k, x.v, x.bias, x.cu_seqlens_q, x.cu_seqlens_k)
    max_seqlens = (x.max_seqlen_q, x.max_seqlen_k)
    needs_grad = any(tensor is not None and tensor.requires_grad for tensor in tensors)
    if any(map(_is_dual, tensors)):
        raise NotImplementedError(
            "fmha: a forward-mode derivative is asked for (torch.func.jvp, jacfwd or linearize, or "
            "torch.autograd.forward_ad), and it has none; take the gradient in reverse mode"
        )
    if torch.is_grad_enabled() and needs_grad:
        check_gradient(x.q.dtype)
        with _ONE_LEVEL():
            out, lse = _AttentionFunction.apply(keyset, keywords, max_seqlens, *tensors)
        return out, lse if return_lse else None
    with _TORCH._C._AutoDispatchBelowAutograd():
        return FMHA.redispatch(
            keyset & _TORCH._C._after_autograd_keyset,
            *tensors,
            *max_seqlens,
            **keywords,
            return_lse=return_lse,
        )


def _is_dual(tensor: Tensor | None) -> bool:
    """Return whether a tensor carries a tangent, which would be dropped silently."""
    if tensor is None or _DUAL._current_level < 0:
        return False
    return _DUAL.unpack_dual(tensor).tangent is not None


class _AttentionGradients(_OneLevel):
    """The gradients; a second derivative raises, instead of treating them as constants."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ARG004  autograd's
        keyset: Any,
        keywords: dict[str, Any],
        *operands: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Call the operator below autograd."""
        with _as_outside(), _TORCH._C._AutoDispatchBelowAutograd():
            return FMHA_BACKWARD.redispatch(
                keyset & _TORCH._C._after_autograd_keyset, *operands, **keywords
            )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:  # noqa: ARG004
        """Refuse."""
        raise RuntimeError(
            "fmha is differentiable once: its gradients have none; detach what was computed from "
            "them, or leave create_graph=True out"
        )


def _differentiable_no_more(keyset: Any, *operands: Any, **keywords: Any) -> Any:
    with _ONE_LEVEL():
        return _AttentionGradients.apply(keyset, keywords, *operands)


def _autocast(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **keywords: Any) -> Any:
    """Cast q, k and v as `scaled_dot_product_attention` does under autocast; 8-bit operands stay."""
    device = q.device.type
    dtype = torch.get_autocast_dtype(device)
    operands = (q, k, v)
    if all(x.dtype != torch.float8_e4m3fn for x in operands):
        operands = tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in operands)
    with _TORCH._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        return FMHA(*operands, *rest, **keywords)


def out_like(q: Tensor, v: Tensor) -> Tensor:
    """Return an uninitialized out: dense, its dimensions in the order of q's strides."""
    dtype = blockwise.result(q.dtype)
    if v.size(-1) == q.size(-1):
        return torch.empty_like(q, dtype=dtype)
    order = sorted(range(q.dim()), key=lambda dim: q.stride(dim), reverse=True)
    sizes = (*q.shape[:-1], v.size(-1))
    dense = q.new_empty([sizes[dim] for dim in order], dtype=dtype)
    return dense.permute([order.index(dim) for dim in range(q.dim())])


def _checked(
    x: AttentionOperands,
    *,
    scale: float | None = None,
    window_left: int = -1,
    window_right: int = -1,
    bottom_right: bool = True,
    softcap: float = 0.0,
) -> ScoreParams:
    check(x, (window_left, window_right), softcap, scale)
    factor: float = x.q.size(-1) ** -0.5 if scale is None else scale
    return ScoreParams(Mask(window_left, window_right, bottom_right), factor, softcap)


def _flash_fits(x: AttentionOperands, params: ScoreParams, *, backward: bool) -> bool:
    device = x.q.device
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    if not x.q.size(0):  # FlashAttention: "batch size must be positive"
        return False
    capability = torch.cuda.get_device_capability(device)
    return why_not_flash(x, params, capability, backward=backward) is None


def _restrided(result: Tensor, empty: Tensor) -> Tensor:
    """Return a result in the strides of the fake implementation."""
    return result if result.stride() == empty.stride() else empty.copy_(result)


for _name, _real, _fake in (
    ("fmha", _forward, _forward_fake),
    ("fmha_backward", _backward, _backward_fake),
):
    for _key in ("CPU", "CUDA"):
        _OPERATORS.impl(_name, _real, _key)
    _TORCH.library.register_fake(f"inductor_plugin::{_name}", _fake, lib=_OPERATORS)
for _key in ("AutocastCPU", "AutocastCUDA"):
    _OPERATORS.impl("fmha", _autocast, _key)
_OPERATORS.impl("fmha", _differentiable, "Autograd", with_keyset=True)
_OPERATORS.impl("fmha_backward", _differentiable_no_more, "Autograd", with_keyset=True)
_FLOPS.register_flop_formula(torch.ops.inductor_plugin.fmha)(forward_flops)
_FLOPS.register_flop_formula(torch.ops.inductor_plugin.fmha_backward)(backward_flops)
