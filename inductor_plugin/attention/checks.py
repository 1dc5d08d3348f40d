"""What `fmha` refuses, in the same words wherever it is noticed.

`check` sees shapes, types and devices: the operator's kernels call it, and its fake implementation,
so that a compiled call is refused while it is traced. `read_lengths` sees the values of cu_seqlens,
which only a kernel has.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inductor_plugin.attention.blockwise import Lengths

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types of a bias, and of operands that have gradients."""
TYPES = (*FLOATS, torch.float8_e4m3fn)

_TORCH: Any = torch
"""Its checks take sizes that are not known yet, and are public in all but name."""


@dataclass(frozen=True)
class Operands:
    """The tensors of a call, with the names its user gave them by.

    Attributes:
        q: [B, H, Sq, D], or varlen [Tq, H, D].
        k: [B, Hkv, Sk, D], or [Tk, Hkv, D].
        v: [B, Hkv, Sk, Dv], or [Tk, Hkv, Dv].
        bias: Broadcast to [B, H, Sq, Sk].
        cu_seqlens_q: int32 [B + 1].
        cu_seqlens_k: int32 [B + 1].
        max_seqlen_q: The longest sequence of q.
        max_seqlen_k: The longest sequence of k.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None

    @property
    def varlen(self) -> bool:
        """Return whether sequences of different lengths lie behind one another."""
        return self.cu_seqlens_q is not None


def check(
    given: Operands, window: tuple[int, int], softcap: float, scale: float | None = None
) -> None:
    """Refuse a call that has no meaning, by what is known without its values.

    Raises:
        TypeError: A type or a device is wrong or differs from q's.
        ValueError: A shape, a window, the soft-cap or the scale is.
    """
    _check_types(given)
    _check_scalars(given, window, softcap, scale)
    _check_sequences(given)
    _check_shapes(given)
    if given.bias is not None:
        _check_bias(given, given.bias)


def check_gradient(dtype: torch.dtype) -> None:
    """Refuse the gradient of operands that have none.

    Raises:
        TypeError: They are of 8 bits.
    """
    _TORCH._check_type(
        dtype in FLOATS,
        lambda: (
            f"fmha: q is {dtype}, which has no gradient; detach q, k, v and bias, or cast q, k and v to "
            "bfloat16"
        ),
    )


def read_lengths(given: Operands) -> Lengths | None:
    """Return where the sequences begin and end; on a GPU this waits for it. None for a dense call.

    Raises:
        ValueError: They decrease, begin elsewhere than at 0, end elsewhere than the tokens, or one
            is longer than it was said to be, or than the bias is.
    """
    if given.cu_seqlens_q is None or given.cu_seqlens_k is None:
        return None
    found = Lengths(
        _ends("cu_seqlens_q", given.cu_seqlens_q, "q", given.q, given.max_seqlen_q),
        _ends("cu_seqlens_k", given.cu_seqlens_k, "k", given.k, given.max_seqlen_k),
    )
    for size, ends in zip(() if given.bias is None else given.bias.shape[-2:], found, strict=False):
        longest = max(end - start for start, end in ends)
        if size not in (1, longest) and size < longest:
            raise ValueError(
                f"fmha: bias {_shape(given.bias)} ends before the longest sequence, which has "
                f"{longest} tokens; its last two dimensions are 1, or the longest of q and of k"
            )
    return found


def _check_types(given: Operands) -> None:
    q = given.q
    _TORCH._check_type(
        q.dtype in TYPES,
        lambda: f"fmha: q is {q.dtype}; it takes {', '.join(map(str, TYPES))}",
    )
    for name, one in (("k", given.k), ("v", given.v)):
        _TORCH._check_type(
            one.dtype == q.dtype,
            lambda name=name, one=one: (
                f"fmha: q is {q.dtype} and {name} is {one.dtype}; cast them to one type"
            ),
        )
    for name in ("k", "v", "bias", "cu_seqlens_q", "cu_seqlens_k"):
        one: Tensor | None = getattr(given, name)
        device = None if one is None else one.device
        _TORCH._check_type(
            device in (None, q.device),
            lambda name=name, device=device: (
                f"fmha: q is on {q.device} and {name} on {device}; move them to one device"
            ),
        )
    added = None if given.bias is None else given.bias.dtype
    _TORCH._check_type(
        added in (None, *FLOATS),
        lambda: (
            f"fmha: bias is {added}; it is added to the scores, so it takes a floating type, "
            "with -inf where a key is hidden"
        ),
    )


def _check_scalars(
    given: Operands, window: tuple[int, int], softcap: float, scale: float | None
) -> None:
    for name, keys in zip(("left", "right"), window, strict=True):
        _TORCH._check_value(
            keys >= -1,
            lambda name=name, keys=keys: (
                f"fmha: window_{name} is {_number(keys)}; it is a number of keys, 0 or more, or -1 for all"
            ),
        )
    _TORCH._check_value(
        0.0 <= softcap < math.inf,
        lambda: f"fmha: softcap is {softcap}; it is a positive number, or 0 for none",
    )
    _TORCH._check_value(
        scale is None or -math.inf < scale < math.inf,
        lambda: f"fmha: scale is {scale}; it is a finite number, or None for 1 / sqrt(head_dim)",
    )
    for name in ("max_seqlen_q", "max_seqlen_k"):
        longest = getattr(given, name)
        _TORCH._check_value(
            longest is None or given.varlen,
            lambda name=name, longest=longest: (
                f"fmha: {name} is {_number(longest)} without cu_seqlens_q and cu_seqlens_k; leave it out, "
                "the shapes of a dense call say it"
            ),
        )
        _TORCH._check_value(
            longest is None or longest >= 1,
            lambda name=name, longest=longest: (
                f"fmha: {name} is {_number(longest)}; it is the length of the longest sequence, 1 or more"
            ),
        )


def _check_sequences(given: Operands) -> None:
    cu_q, cu_k = given.cu_seqlens_q, given.cu_seqlens_k
    _TORCH._check_value(
        (cu_q is None) == (cu_k is None),
        lambda: (
            f"fmha: cu_seqlens_{'k' if cu_k is None else 'q'} is missing; give both for sequences "
            "behind one another, or neither"
        ),
    )
    for name, cu in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        if cu is None:
            continue
        _TORCH._check_type(
            cu.dtype == torch.int32,
            lambda name=name, cu=cu: f"fmha: {name} is {cu.dtype}; call .to(torch.int32) on it",
        )
        _TORCH._check_value(
            cu.dim() == 1,
            lambda name=name, cu=cu: (
                f"fmha: {name} has the shape {_shape(cu)}; it has one dimension, where each "
                "sequence begins and where the last one ends"
            ),
        )
        _TORCH._check_value(
            cu.size(0) >= 2,
            lambda name=name, cu=cu: (
                f"fmha: {name} has the shape {_shape(cu)}, which is no sequence; one has the shape (2,)"
            ),
        )
    if cu_q is not None and cu_k is not None:
        _TORCH._check_value(
            cu_q.size(0) == cu_k.size(0),
            lambda: (
                f"fmha: cu_seqlens_q has the shape {_shape(cu_q)} and cu_seqlens_k {_shape(cu_k)}; "
                "both have one number more than there are sequences"
            ),
        )


def _check_shapes(given: Operands) -> None:
    q, k, v, varlen = given.q, given.k, given.v, given.varlen
    wanted = "[tokens, heads, head_dim]" if varlen else "[batch, heads, tokens, head_dim]"
    for name, one in (("q", q), ("k", k), ("v", v)):
        _TORCH._check_value(
            one.dim() == (3 if varlen else 4),
            lambda name=name, one=one: (
                f"fmha: {name} has the shape {_shape(one)}; {'with' if varlen else 'without'} "
                f"cu_seqlens it is {wanted}"
            ),
        )
    tokens = 0 if varlen else 2
    for name, one in (("q", q), ("k", k), ("v", v)):
        for dim, what in ((tokens, "tokens"), (1, "heads"), (-1, "head_dim")):
            _TORCH._check_value(
                one.size(dim) > 0,
                lambda name=name, one=one, what=what: (
                    f"fmha: {name} has the shape {_shape(one)} {wanted}, its {what} is 0; do not "
                    "call it where there is nothing to attend"
                ),
            )
    same = [("heads", 1, k, v, "k", "v"), ("tokens", tokens, k, v, "k", "v")]
    same += [("head_dim", -1, q, k, "q", "k")]
    same += [] if varlen else [("batch", 0, q, k, "q", "k"), ("batch", 0, q, v, "q", "v")]
    for what, dim, a, b, a_name, b_name in same:
        _TORCH._check_value(
            a.size(dim) == b.size(dim),
            lambda what=what, a=a, b=b, a_name=a_name, b_name=b_name: (
                f"fmha: the {what} of {a_name} {_shape(a)} and {b_name} {_shape(b)} differ; both "
                f"are {wanted}"
            ),
        )
    _TORCH._check_value(
        q.size(1) % k.size(1) == 0,
        lambda: (
            f"fmha: q {_shape(q)} has {_number(q.size(1))} heads and k {_shape(k)} has "
            f"{_number(k.size(1))}; the heads of q are a multiple of those of k and v"
        ),
    )


def _check_bias(given: Operands, bias: Tensor) -> None:
    q, k = given.q, given.k
    if given.cu_seqlens_q is None:
        full = (q.size(0), q.size(1), q.size(2), k.size(2))
    else:  # the lengths are values: `read_lengths` looks at them
        full = (given.cu_seqlens_q.size(0) - 1, q.size(1))
    sizes = (1,) * (4 - bias.dim()) + tuple(bias.shape)
    _TORCH._check_value(
        len(sizes) == 4,
        lambda: f"fmha: bias has the shape {_shape(bias)}; it has four dimensions at most",
    )
    for size, whole in zip(sizes, full, strict=False):
        _TORCH._check_value(
            size == 1 or size == whole,
            lambda: (
                f"fmha: bias {_shape(bias)} does not broadcast to [batch, heads, queries, keys], "
                f"which is {_shape(full)}"
                + (" and the longest of q and of k" if given.varlen else "")
            ),
        )


def _ends(
    name: str, cu: Any, of: str, tensor: Tensor, longest: int | None
) -> list[tuple[int, int]]:
    bounds: list[int] = cu.tolist()
    if bounds[0] != 0:
        raise ValueError(f"fmha: {name} begins with {bounds[0]}; the first sequence begins at 0")
    pairs = list(itertools.pairwise(bounds))
    for index, (start, end) in enumerate(pairs):
        if end < start:
            raise ValueError(
                f"fmha: {name} decreases from {start} to {end} at index {index + 1}; it says where "
                "each sequence begins and where the last one ends"
            )
        if longest is not None and end - start > longest:
            raise ValueError(
                f"fmha: sequence {index} of {name} has {end - start} tokens, and max_seqlen_{of} is "
                f"{longest}; it is the length of the longest"
            )
    if bounds[-1] != tensor.size(0):
        where = "past the end" if bounds[-1] > tensor.size(0) else "before the end"
        raise ValueError(
            f"fmha: {name} ends at {bounds[-1]}, {where} of {of}, which has {tensor.size(0)} tokens"
        )
    return pairs


def _shape(sizes: Any) -> tuple[Any, ...]:
    return tuple(_number(one) for one in getattr(sizes, "shape", sizes))


def _number(size: Any) -> Any:
    """Return a traced size's value, which only a message may ask for: it ties the graph to it."""
    try:
        return None if size is None else int(size)
    except RuntimeError:  # it depends on data
        return size
