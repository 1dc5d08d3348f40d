"""`inductor_plugin.fmha`: attention with options that `torch.nn.functional.scaled_dot_product_attention` lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, overload

from torch import Tensor

from inductor_plugin.attention.arguments import (
    check_flag,
    check_length,
    check_number,
    check_tensor,
    check_window,
    shown,
)
from inductor_plugin.attention.operator import FMHA

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in `typing` since Python 3.11


class _Options(TypedDict, total=False):
    """The options of `fmha` that do not change the type of its result."""

    bias: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    window: tuple[int, int]
    causal: bool
    bottom_right: bool
    softcap: float
    scale: float | None


@overload
def fmha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[False] = ...,
    **options: Unpack[_Options],
) -> Tensor: ...


@overload
def fmha(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], **options: Unpack[_Options]
) -> tuple[Tensor, Tensor]: ...


@overload
def fmha(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool, **options: Unpack[_Options]
) -> Tensor | tuple[Tensor, Tensor]: ...


def fmha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    window: tuple[int, int] = (-1, -1),
    causal: bool = False,
    bottom_right: bool = True,
    softcap: float = 0.0,
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return softmax(cap(scale * q @ k.T) + bias, for keys the mask allows) @ v.

    Query i sees key j if ``i + shift - left <= j <= i + shift + right``, where ``window`` is
    (left, right) in keys, both ends included; -1 is unlimited. The diagonal aligns the last query with
    the last key (``bottom_right``: shift = Sk - Sq) or the first query with the first key (shift = 0).
    A row that sees no key has out = 0, lse = +inf and no gradient.

    Sequences of different lengths are concatenated, q as [Tq, H, D], with ``cu_seqlens_q`` and
    ``cu_seqlens_k``; mask and shift apply to each sequence. Their values are checked on a CPU, but not
    on a GPU, which would have to be synchronized: values that decrease or exceed the number of tokens
    read out of bounds there.

    The operator is differentiable once with respect to q, k, v and bias, through out and lse, in
    reverse mode (forward mode is refused); torch.func.grad and vjp support it, vmap does not. Under
    torch.compile the plugin measures its kernels for the call; without it a GPU runs FlashAttention
    where that supports the call, and torch's matrix products otherwise (varlen calls then synchronize).

    Operands of 8 bits (float8_e4m3fn) give a bfloat16 out; they have no gradient. Multiply the scales
    of whole tensors into ``scale`` (for q and k) and into out (for v).

    Args:
        q: [B, H, Sq, D], any strides; float16, bfloat16, float32, float64 or float8_e4m3fn. Under
            autocast q, k and v are cast to its type, except from the last two, as
            `scaled_dot_product_attention` does.
        k: [B, Hkv, Sk, D], of q's type; H is a multiple of Hkv, consecutive heads of q share a head of k.
        v: [B, Hkv, Sk, Dv].
        bias: Added to the scores, broadcast to [B, H, Sq, Sk] (varlen: [B, H, longest q, longest k],
            of which a sequence uses the beginning); a floating type, -inf hides a key.
        cu_seqlens_q: int32 [B + 1]: where each sequence begins in q, and the number of tokens last.
        cu_seqlens_k: int32 [B + 1]: the same for k and v.
        max_seqlen_q: Tokens of the longest sequence of q, which sizes the grid of a GPU kernel; None
            uses the number of all tokens, which is correct but slower.
        max_seqlen_k: The same for k.
        window: Keys seen before and after the diagonal; -1 is all of them, less is an error.
        causal: Equivalent to a right window of 0.
        bottom_right: Alignment of the diagonal where Sq and Sk differ.
        softcap: cap(x) = softcap * tanh(x / softcap), before the bias; 0 is none.
        scale: Factor of q @ k.T; None is 1 / sqrt(D).
        return_lse: Return the log-sum-exp of each row too.

    Returns:
        out [B, H, Sq, Dv], of q's type (bfloat16 for 8 bits), dense, its dimensions in the order of q's
        strides; varlen [Tq, H, Dv]. With ``return_lse`` also lse [B, H, Sq], varlen [H, Tq]: natural
        logarithm, float32 (float64 for float64 operands). A batch of 0 gives empty results.

    Raises:
        TypeError: A window is not a pair of integers; a scale or soft-cap is not a number or a length not
            an integer (a tensor is neither); types or devices differ; operands of 8 bits need a gradient.
        NotImplementedError: A forward-mode derivative is requested.
        ValueError: Shapes do not match, a length or head count is 0, H is not a multiple of Hkv, a window
            is below -1, a scale is not finite, cu_seqlens decrease or do not end at the number of tokens.

    Alignment, empty rows and windows are those of FlashAttention (flash_attn_interface.py, 2.8: "if
    causal=True, the causal mask is aligned to the bottom right corner"; ``window_size``); top-left
    alignment is that of `scaled_dot_product_attention` for ``is_causal``.
    """
    for name, operand in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, operand)
    optional = {"bias": bias, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    for name, operand in optional.items():
        if operand is not None:
            check_tensor(name, operand)
    check_window(window)
    check_length("max_seqlen_q", max_seqlen_q)
    check_length("max_seqlen_k", max_seqlen_k)
    flags = {"causal": causal, "bottom_right": bottom_right, "return_lse": return_lse}
    for name, flag in flags.items():
        check_flag(name, flag)
    check_number("softcap", softcap, "a positive number, or 0 for none")
    if scale is not None:
        check_number("scale", scale, "a finite number, or None for 1 / sqrt(head_dim)")
    left, right = window
    if causal:
        if right > 0:
            raise ValueError(
                f"fmha: causal is True and window is {shown(window)}, whose right side shows keys behind "
                "the diagonal; leave one of them out"
            )
        right = 0
    out, lse = FMHA(
        q,
        k,
        v,
        bias,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        scale=scale,
        window_left=left,
        window_right=right,
        bottom_right=bottom_right,
        softcap=softcap,
        return_lse=return_lse,
    )
    return (out, lse) if return_lse else out
