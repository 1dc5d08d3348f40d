"""`inductor_plugin.fmha`: attention with what `torch.nn.functional.scaled_dot_product_attention` cannot say."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from inductor_plugin.attention.arguments import (
    check_flag,
    check_length,
    check_number,
    check_tensor,
    check_window,
    written,
)
from inductor_plugin.attention.operator import FMHA


@overload
def fmha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = ...,
    cu_seqlens_q: Tensor | None = ...,
    cu_seqlens_k: Tensor | None = ...,
    max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    window: tuple[int, int] = ...,
    causal: bool = ...,
    bottom_right: bool = ...,
    softcap: float = ...,
    scale: float | None = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...


@overload
def fmha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = ...,
    cu_seqlens_q: Tensor | None = ...,
    cu_seqlens_k: Tensor | None = ...,
    max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    window: tuple[int, int] = ...,
    causal: bool = ...,
    bottom_right: bool = ...,
    softcap: float = ...,
    scale: float | None = ...,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@overload
def fmha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = ...,
    cu_seqlens_q: Tensor | None = ...,
    cu_seqlens_k: Tensor | None = ...,
    max_seqlen_q: int | None = ...,
    max_seqlen_k: int | None = ...,
    window: tuple[int, int] = ...,
    causal: bool = ...,
    bottom_right: bool = ...,
    softcap: float = ...,
    scale: float | None = ...,
    return_lse: bool,
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
    """Return softmax(cap(scale * q @ k.T) + bias, where the mask keeps) @ v.

    Query i sees key j if ``i + shift - left <= j <= i + shift + right``, where ``window`` is
    (left, right) in keys, both ends included, and -1 lifts a limit. The diagonal lies so that the last
    query sees the last key (``bottom_right``: shift = Sk - Sq) or the first the first one (shift = 0).
    A row that sees no key has out = 0, lse = +inf and no gradient.

    Sequences of different lengths are given behind one another, q as [Tq, H, D], with
    ``cu_seqlens_q`` and ``cu_seqlens_k``; mask and shift are each sequence's own. On a CPU their values
    are checked; on a GPU they are not, since that would wait for it: numbers that decrease or point
    past the end read memory that is not the call's.

    Differentiable once by q, k, v and bias, through out and lse, in reverse mode (forward mode is
    refused); torch.func.grad and vjp take it, vmap does not. Under torch.compile the plugin
    measures its kernels for the call; without it a GPU runs FlashAttention where that can express
    it, and torch's matrix products otherwise (there, varlen calls wait for the GPU).

    Operands of 8 bits (float8_e4m3fn) are read as they are and give a bfloat16 out; they have no
    gradient. Scales of whole tensors belong to ``scale`` (those of q and k) and to out (that of v).

    Args:
        q: [B, H, Sq, D], any strides; float16, bfloat16, float32, float64 or float8_e4m3fn. Under
            autocast q, k and v of other types than the last two are cast to its type, as
            `scaled_dot_product_attention` does.
        k: [B, Hkv, Sk, D], of q's type; H is a multiple of Hkv, and consecutive heads of q share one.
        v: [B, Hkv, Sk, Dv].
        bias: Added to the scores, broadcast to [B, H, Sq, Sk] (varlen: [B, H, longest q, longest k],
            of which a sequence takes its beginning); a floating type, -inf hides a key.
        cu_seqlens_q: int32 [B + 1]: where each sequence begins in q, and the number of tokens last.
        cu_seqlens_k: int32 [B + 1]: the same for k and v.
        max_seqlen_q: Tokens of the longest sequence of q, which a GPU kernel is launched for; None
            takes all tokens, which is right and slower.
        max_seqlen_k: The same for k.
        window: Keys seen before and behind the diagonal; -1 is all of them, less is an error.
        causal: The same as a right window of 0.
        bottom_right: Where the diagonal lies, if Sq and Sk differ.
        softcap: cap(x) = softcap * tanh(x / softcap), before the bias; 0 is none.
        scale: Factor of q @ k.T; None is 1 / sqrt(D).
        return_lse: Return the logarithm of each row's sum of exponentials too.

    Returns:
        out [B, H, Sq, Dv], of q's type (bfloat16 for 8 bits), dense, its dimensions in the order of q's
        strides; varlen [Tq, H, Dv]. With ``return_lse`` also lse [B, H, Sq], varlen [H, Tq]: natural
        logarithm, float32 (float64 for float64 operands). Of a batch of 0 all are empty.

    Raises:
        TypeError: A window that is no pair of integers; a scale or soft-cap that is no number, a length
            that is no integer (a tensor is neither); types or devices that differ; a gradient of operands
            of 8 bits.
        NotImplementedError: A forward-mode derivative.
        ValueError: Shapes that do not fit, a length or head count of 0, heads that do not divide, a
            window below -1, a scale that is not finite, cu_seqlens that decrease or end elsewhere than the tokens.

    Alignment and empty rows are FlashAttention's (flash_attn_interface.py, 2.8: "if causal=True, the
    causal mask is aligned to the bottom right corner"), windows those of its ``window_size``; top-left
    is what `scaled_dot_product_attention` does for ``is_causal``.
    """
    for name, one in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, one)
    given = {"bias": bias, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    for name, one in given.items():
        if one is not None:
            check_tensor(name, one)
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
                f"fmha: causal is True and window is {written(window)}, whose right side shows keys behind "
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
