"""Checks of the arguments of `fmha`: the same errors, wherever a call is refused.

`check_tensor`, `check_number` and so on look at types, before torch's dispatcher refuses an argument
without naming it. `check` looks at shapes, dtypes and devices: the operator's kernels call it, and its
fake implementation, so that a compiled call is refused while it is traced. `read_lengths` reads the
values of cu_seqlens, which only a kernel has.
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
_TYPE_NAMES = ", ".join(map(str, TYPES))

_TORCH: Any = torch
"""``torch._check_type`` and ``_check_value`` accept symbolic sizes; public in all but name."""
_LIMIT = 1 << 63


@dataclass(frozen=True)
class AttentionOperands:
    """The tensors and lengths of a call, named as the parameters of `fmha`.

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
        """Return whether sequences of different lengths are concatenated."""
        return self.cu_seqlens_q is not None


def check_number(name: str, value: Any, expected: str) -> None:
    """Refuse an argument that is not a number; the operator checks its value.

    Raises:
        TypeError: The argument has another type, which torch's dispatcher would refuse without naming it, or is a
            tensor, whose value is unknown in a compiled graph.
    """
    if isinstance(value, Tensor):
        raise TypeError(f"fmha: {name} is a tensor; it is {expected}: call .item() on it")
    if not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and not hasattr(
        value, "__float__"
    ):
        raise TypeError(f"fmha: {name} is {_quoted(value)}; it is {expected}")


def check_length(name: str, value: Any) -> None:
    """Refuse an argument that is not a length; the operator checks its value.

    Raises:
        TypeError: The argument is not an integer, or is a tensor.
    """
    if isinstance(value, Tensor):
        raise TypeError(f"fmha: {name} is a tensor; it is an integer: call .item() on it")
    if value is not None and not _is_integer(value):
        raise TypeError(f"fmha: {name} is {_quoted(value)}; it is an integer, or None")


def check_tensor(name: str, value: Any) -> None:
    """Refuse an argument that is not a tensor with a TypeError."""
    _check_kind(name, value, Tensor, "a tensor")


def check_flag(name: str, value: Any) -> None:
    """Refuse an argument that is not a bool with a TypeError."""
    _check_kind(name, value, (bool, torch.SymBool), "True or False")


def _check_kind(name: str, value: Any, kinds: Any, expected: str) -> None:
    if not isinstance(value, kinds):
        raise TypeError(f"fmha: {name} is {_quoted(value)}; it is {expected}")


def check_window(window: Any) -> None:
    """Refuse a window that is not a pair of 64-bit integers; the operator checks their values.

    Raises:
        TypeError: The window has another type.
        ValueError: An integer has more than 64 bits.
    """
    pair = type(window) in (tuple, list) and len(window) == 2
    if not pair or not all(_is_integer(side) for side in window):
        raise TypeError(
            f"fmha: window is {shown(window)}; it is two integers (left, right), the keys a query sees "
            "before and behind the diagonal, -1 for all of them"
        )
    for side in window:
        if type(side) is int and not -_LIMIT <= side < _LIMIT:
            raise ValueError(
                f"fmha: window is {shown(window)}; it has more than 64 bits, give -1 for all keys"
            )


def shown(value: Any) -> str:
    """Return an argument as error messages show it; works while tracing, too.

    torch.compile (2.14) cannot trace the ``repr`` of a tuple that contains symbols, and the names of
    symbols mean nothing to the caller.
    """
    if type(value) in (tuple, list):
        inside = ", ".join([shown(item) for item in value])
        if type(value) is list:
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, Tensor):
        return "a tensor"
    if _is_integer(value):
        return f"{int(value)}"
    if isinstance(value, (float, torch.SymFloat)):
        return f"{float(value)}"
    return f"{value}"


def _quoted(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else shown(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def check(
    x: AttentionOperands, window: tuple[int, int], softcap: float, scale: float | None = None
) -> None:
    """Refuse a call with invalid arguments, as far as shapes, types and devices show.

    Raises:
        TypeError: A type or a device is wrong or differs from q's.
        ValueError: A shape, a window, the soft-cap or the scale is invalid.
    """
    _check_types(x)
    _check_scalars(x, window, softcap, scale)
    _check_sequences(x)
    _check_shapes(x)
    if x.bias is not None:
        _check_bias(x, x.bias)


def check_gradient(dtype: torch.dtype) -> None:
    """Refuse the gradient of operands that cannot have one.

    Raises:
        TypeError: The operands have 8 bits.
    """
    _type(
        dtype in FLOATS,
        "q is {}, which has no gradient; detach q, k, v and bias, or cast q, k and v to bfloat16",
        dtype,
    )


def read_lengths(x: AttentionOperands) -> Lengths | None:
    """Return where the sequences begin and end, None for a dense call; synchronizes with a GPU.

    Raises:
        RuntimeError: A CUDA graph is being recorded, which cannot copy to the host.
        ValueError: ``cu_seqlens`` decrease, do not begin at 0, do not end at the number of tokens, or a
            sequence is longer than ``max_seqlen`` or than the bias.
    """
    if x.cu_seqlens_q is None or x.cu_seqlens_k is None:
        return None
    if x.q.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "fmha: a CUDA graph cannot record this call with cu_seqlens: FlashAttention does not take it, and what computes "
            "it instead reads the lengths on the host; compile with mode='max-autotune-no-cudagraphs'"
        )
    lengths = Lengths(
        _ends("cu_seqlens_q", x.cu_seqlens_q, "q", x.q, x.max_seqlen_q),
        _ends("cu_seqlens_k", x.cu_seqlens_k, "k", x.k, x.max_seqlen_k),
    )
    for size, ends in zip(() if x.bias is None else x.bias.shape[-2:], lengths, strict=False):
        longest = max(end - start for start, end in ends)
        _value(
            size in (1, longest) or size >= longest,
            "bias {} ends before the longest sequence, which has {} tokens; its last two dimensions "
            "are 1, or the longest of q and of k",
            *(x.bias, longest),
        )
    return lengths


def _type(holds: Any, words: str, *values: Any) -> None:
    _TORCH._check_type(holds, lambda: _message(words, values))


def _value(holds: Any, words: str, *values: Any) -> None:
    _TORCH._check_value(holds, lambda: _message(words, values))


def _message(words: str, values: tuple[Any, ...]) -> str:
    """Return an error's text: tensors as their shapes, traced sizes as their values."""
    return "fmha: " + words.format(*map(_size_or_value, values))


def _check_types(x: AttentionOperands) -> None:
    q = x.q
    _type(q.dtype in TYPES, "q is {}; it takes {}", q.dtype, _TYPE_NAMES)
    for name, operand in (("k", x.k), ("v", x.v)):
        words = "q is {} and {} is {}; cast them to one type"
        _type(operand.dtype == q.dtype, words, q.dtype, name, operand.dtype)
    for name in ("k", "v", "bias", "cu_seqlens_q", "cu_seqlens_k"):
        operand: Tensor | None = getattr(x, name)
        device = q.device if operand is None else operand.device
        words = "q is on {} and {} on {}; move them to one device"
        _type(device == q.device, words, q.device, name, device)
    bias_dtype = None if x.bias is None else x.bias.dtype
    _type(
        bias_dtype in (None, *FLOATS),
        "bias is {}; it is added to the scores, so it takes a floating type, with -inf where a key is "
        "hidden",
        bias_dtype,
    )


def _check_scalars(
    x: AttentionOperands, window: tuple[int, int], softcap: float, scale: float | None
) -> None:
    for name, keys in zip(("left", "right"), window, strict=True):
        words = "window_{} is {}; it is a number of keys, 0 or more, or -1 for all"
        _value(keys >= -1, words, name, keys)
    _value(
        0.0 <= softcap < math.inf, "softcap is {}; it is a positive number, or 0 for none", softcap
    )
    _value(
        scale is None or -math.inf < scale < math.inf,
        "scale is {}; it is a finite number, or None for 1 / sqrt(head_dim)",
        scale,
    )
    for name in ("max_seqlen_q", "max_seqlen_k"):
        longest = getattr(x, name)
        _value(
            longest is None or x.varlen,
            "{} is {} without cu_seqlens_q and cu_seqlens_k; leave it out, the shapes of a dense call "
            "say it",
            *(name, longest),
        )
        words = "{} is {}; it is the length of the longest sequence, 1 or more"
        _value(longest is None or longest >= 1, words, name, longest)


def _check_sequences(x: AttentionOperands) -> None:
    cu_q, cu_k = x.cu_seqlens_q, x.cu_seqlens_k
    _value(
        (cu_q is None) == (cu_k is None),
        "cu_seqlens_{} is missing; give both for sequences behind one another, or neither",
        "k" if cu_k is None else "q",
    )
    if cu_q is None or cu_k is None:
        return
    for name, cu in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        _type(cu.dtype == torch.int32, "{} is {}; call .to(torch.int32) on it", name, cu.dtype)
        _value(
            cu.dim() == 1,
            "{} has the shape {}; it has one dimension, where each sequence begins and where the last "
            "one ends",
            *(name, cu),
        )
        words = "{} has the shape {}, which is no sequence; one has the shape (2,)"
        _value(cu.size(0) >= 2, words, name, cu)
    _value(
        cu_q.size(0) == cu_k.size(0),
        "cu_seqlens_q has the shape {} and cu_seqlens_k {}; both have one number more than there are "
        "sequences",
        *(cu_q, cu_k),
    )


def _check_shapes(x: AttentionOperands) -> None:
    q, k, v, varlen = x.q, x.k, x.v, x.varlen
    layout = "[tokens, heads, head_dim]" if varlen else "[batch, heads, tokens, head_dim]"
    operands = {"q": q, "k": k, "v": v}
    for name, operand in operands.items():
        words = "{} has the shape {}; {} cu_seqlens it is {}"
        with_or_without = "with" if varlen else "without"
        dims = 3 if varlen else 4
        _value(operand.dim() == dims, words, name, operand, with_or_without, layout)
    tokens = 0 if varlen else 2
    for name, operand in operands.items():
        for dim, extent in ((tokens, "tokens"), (1, "heads"), (-1, "head_dim")):
            words = "{} has the shape {} {}, its {} is 0; do not call it where there is nothing to attend"
            _value(operand.size(dim) > 0, words, name, operand, layout, extent)
    pairs = [("heads", 1, "k", "v"), ("tokens", tokens, "k", "v"), ("head_dim", -1, "q", "k")]
    pairs += [] if varlen else [("batch", 0, "q", "k"), ("batch", 0, "q", "v")]
    for extent, dim, first, second in pairs:
        a, b = operands[first], operands[second]
        words = "the {} of {} {} and {} {} differ; both are {}"
        _value(a.size(dim) == b.size(dim), words, extent, first, a, second, b, layout)
    _value(
        q.size(1) % k.size(1) == 0,
        "q {} has {} heads and k {} has {}; the heads of q are a multiple of those of k and v",
        *(q, q.size(1), k, k.size(1)),
    )


def _check_bias(x: AttentionOperands, bias: Tensor) -> None:
    q, k = x.q, x.k
    if x.cu_seqlens_q is None:
        full = (q.size(0), q.size(1), q.size(2), k.size(2))
    else:  # the lengths are values: `read_lengths` checks them
        full = (x.cu_seqlens_q.size(0) - 1, q.size(1))
    sizes = (1,) * (4 - bias.dim()) + tuple(bias.shape)
    _value(len(sizes) == 4, "bias has the shape {}; it has four dimensions at most", bias)
    rest = " and the longest of q and of k" if x.varlen else ""
    words = "bias {} does not broadcast to [batch, heads, queries, keys], which is {}{}"
    for size, whole in zip(sizes, full, strict=False):
        _value(size == 1 or size == whole, words, bias, full, rest)


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


def _size_or_value(value: Any) -> Any:
    sizes: Any = getattr(value, "shape", value)
    if isinstance(value, (Tensor, tuple)):
        return tuple(_number(size) for size in sizes)
    return _number(value)


def _number(size: Any) -> Any:
    """Return the value of a traced size; only for error messages, because it specializes the graph."""
    if not isinstance(size, torch.SymInt):
        return size
    try:
        return int(size)
    except RuntimeError:  # data-dependent
        return size
