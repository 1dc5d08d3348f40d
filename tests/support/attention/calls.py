"""Calls of `fmha` for several tests: valid calls to compare, and invalid calls that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from inductor_plugin.problem.attention import Mask


class Case(NamedTuple):
    """One call: shapes [H, Hkv, Sq, Sk, D, Dv], and its keywords."""

    heads: tuple[int, int] = (4, 2)
    tokens: tuple[int, int] = (19, 27)
    dims: tuple[int, int] = (8, 8)
    bias: tuple[int, ...] | None = None
    lengths: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    keywords: dict[str, Any] = {}  # noqa: RUF012  never written to

    @property
    def mask(self) -> Mask:
        left, right = self.keywords.get("window", (-1, -1))
        right = 0 if self.keywords.get("causal") else right
        return Mask(left, right, self.keywords.get("bottom_right", True))


GOOD = {
    "plain": Case(heads=(2, 2)),
    "GQA": Case(),
    "MQA, causal": Case(heads=(4, 1), keywords={"causal": True}),
    "causal, top left": Case(keywords={"causal": True, "bottom_right": False}),
    "more queries than keys, causal": Case(tokens=(27, 19), keywords={"causal": True}),
    "window": Case(keywords={"window": (6, 3)}),
    "left window, top left": Case(keywords={"window": (4, -1), "bottom_right": False}),
    "causal window": Case(keywords={"window": (5, -1), "causal": True}),
    "cap": Case(keywords={"softcap": 0.8, "scale": 0.7}),
    "bias": Case(bias=(2, 4, 19, 27)),
    "bias of keys, window": Case(bias=(4, 1, 27), keywords={"window": (9, 9)}),
    "bias of batches, cap": Case(bias=(2, 1, 1, 27), keywords={"softcap": 1.5}),
    "another head dim of v": Case(dims=(16, 24), keywords={"causal": True}),
    "one query": Case(tokens=(1, 27), keywords={"window": (7, 0)}),
    "varlen": Case(lengths=((5, 0, 9, 3), (7, 4, 2, 6))),
    "varlen, causal window": Case(
        lengths=((5, 9, 3), (7, 2, 6)), keywords={"window": (3, -1), "causal": True}
    ),
    "varlen, top left, bias": Case(
        lengths=((5, 9, 3), (7, 2, 6)),
        bias=(3, 1, 9, 7),
        keywords={"causal": True, "bottom_right": False},
    ),
}


def operands(case: Case, dtype: torch.dtype, seed: int = 0) -> dict[str, Any]:
    """Draw q, k, v, and of bias and cu_seqlens those that the case has."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)

    (heads, kv_heads), (dim, value_dim) = case.heads, case.dims
    if case.lengths is None:
        sq, sk = case.tokens
        tensors = {
            "q": drawn(2, heads, sq, dim),
            "k": drawn(2, kv_heads, sk, dim),
            "v": drawn(2, kv_heads, sk, value_dim),
        }
    else:
        sq, sk = (sum(lengths) for lengths in case.lengths)
        tensors = {
            "q": drawn(sq, heads, dim),
            "k": drawn(sk, kv_heads, dim),
            "v": drawn(sk, kv_heads, value_dim),
        }
        for name, lengths in zip(("cu_seqlens_q", "cu_seqlens_k"), case.lengths, strict=True):
            tensors[name] = cumulated(*lengths)
    if case.bias is not None:
        tensors["bias"] = drawn(*case.bias)
    return tensors


def cumulated(*lengths: int) -> torch.Tensor:
    """Return cu_seqlens of sequences of these lengths."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


class Bad(NamedTuple):
    """A call that is refused.

    Attributes:
        change: Modifies the arguments of a good call: two sequences of 4 and 5 tokens if
            ``varlen``, otherwise q [2, 4, 6, 8] and k, v [2, 2, 7, 8].
        error: Its type.
        text: Part of the message: the value, and what to do.
        values: Whether only a kernel can check it, because it depends on values.
    """

    change: Callable[[dict[str, Any]], Any]
    error: type[Exception]
    text: str
    varlen: bool = False
    values: bool = False


def good_arguments(*, varlen: bool) -> dict[str, Any]:
    """Return the arguments of the call that each bad one changes."""
    if not varlen:
        return {
            "q": torch.ones(2, 4, 6, 8),
            "k": torch.ones(2, 2, 7, 8),
            "v": torch.ones(2, 2, 7, 8),
        }
    cu = cumulated(4, 5)
    return {
        **{name: torch.ones(9, heads, 8) for name, heads in (("q", 4), ("k", 2), ("v", 2))},
        "cu_seqlens_q": cu,
        "cu_seqlens_k": cu.clone(),
    }


def _set(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda arguments: arguments.update(changes)


def _int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


BAD = {
    "window of floats": Bad(_set(window=(1.5, 0)), TypeError, "window is (1.5, 0); it is two integers"),
    "window of bools": Bad(_set(window=(True, 0)), TypeError, "window is (True, 0); it is two"),
    "one number": Bad(_set(window=5), TypeError, "window is 5; it is two integers (left, right)"),
    "window of three": Bad(_set(window=(1, 2, 3)), TypeError, "window is (1, 2, 3); it is two"),
    "left of more than 64 bits": Bad(
        _set(window=(2**70, 0)), ValueError, "it has more than 64 bits, give -1 for all keys"
    ),
    "cap of letters": Bad(
        _set(softcap="a"), TypeError, "softcap is 'a'; it is a positive number, or 0 for none"
    ),
    "scale in a tensor": Bad(
        _set(scale=torch.tensor(0.5)), TypeError, "scale is a tensor; it is a finite number, or None"
    ),
    "cap in a tensor": Bad(
        _set(softcap=torch.ones(2)), TypeError, "softcap is a tensor; it is a positive number"
    ),
    "causal of letters": Bad(
        _set(causal="yes"), TypeError, "causal is 'yes'; it is True or False"
    ),
    "causal of nothing": Bad(_set(causal=None), TypeError, "causal is None; it is True or False"),
    "bottom right of a number": Bad(
        _set(bottom_right=1), TypeError, "bottom_right is 1; it is True or False"
    ),
    "no tensor": Bad(_set(k=[1.0]), TypeError, "k is [1.0]; it is a tensor"),
    "cu_seqlens in a list": Bad(
        _set(cu_seqlens_q=[0, 4, 9]), TypeError, "cu_seqlens_q is [0, 4, 9]; it is a tensor", varlen=True
    ),
    "a longest sequence in a tensor": Bad(
        _set(max_seqlen_q=torch.tensor(5)),
        TypeError,
        "max_seqlen_q is a tensor; it is an integer: call .item() on it",
        varlen=True,
    ),
    "a longest sequence of a float": Bad(
        _set(max_seqlen_k=5.0), TypeError, "max_seqlen_k is 5.0; it is an integer, or None", varlen=True
    ),
    "scale of several numbers": Bad(
        _set(scale=[0.5]), TypeError, "scale is [0.5]; it is a finite number, or None"
    ),
    "left of the wrong sign": Bad(
        _set(window=(-4, 0)), ValueError, "window_left is -4; it is a number of keys, 0 or more"
    ),
    "right of the wrong sign": Bad(
        _set(window=(4, -2)), ValueError, "window_right is -2; it is a number of keys, 0 or more"
    ),
    "causal and keys behind": Bad(
        _set(window=(2, 3), causal=True), ValueError, "causal is True and window is (2, 3)"
    ),
    "negative cap": Bad(_set(softcap=-1.0), ValueError, "softcap is -1.0; it is a positive number"),
    "a scale that is no number": Bad(
        _set(scale=float("nan")), ValueError, "scale is nan; it is a finite number, or None for"
    ),
    "an infinite scale": Bad(_set(scale=float("-inf")), ValueError, "scale is -inf; it is a finite"),
    "window of an integral float": Bad(
        _set(window=(1.0, 0)), TypeError, "window is (1.0, 0); it is two integers"
    ),
    "a short window": Bad(_set(window=(-2, 0)), ValueError, "window_left is -2; it is a number"),
    "window of one": Bad(_set(window=(7,)), TypeError, "window is (7,); it is two integers"),
    "list of three": Bad(_set(window=[1, 2, 3]), TypeError, "window is [1, 2, 3]; it is two"),
    "no queries": Bad(
        _set(q=torch.ones(2, 4, 0, 8)), ValueError, "q has the shape (2, 4, 0, 8) [batch, heads"
    ),
    "no keys": Bad(
        _set(k=torch.ones(2, 2, 0, 8), v=torch.ones(2, 2, 0, 8)),
        ValueError,
        "k has the shape (2, 2, 0, 8) [batch, heads, tokens, head_dim], its tokens is 0",
    ),
    "heads that do not divide": Bad(
        _set(q=torch.ones(2, 5, 6, 8)),
        ValueError,
        "q (2, 5, 6, 8) has 5 heads and k (2, 2, 7, 8) has 2; the heads of q are a multiple",
    ),
    "heads of k and v": Bad(
        _set(v=torch.ones(2, 4, 7, 8)), ValueError, "heads of k (2, 2, 7, 8) and v (2, 4, 7, 8) differ"
    ),
    "keys and values": Bad(
        _set(v=torch.ones(2, 2, 9, 8)), ValueError, "tokens of k (2, 2, 7, 8) and v (2, 2, 9, 8) differ"
    ),
    "head dims": Bad(
        _set(q=torch.ones(2, 4, 6, 16)), ValueError, "head_dim of q (2, 4, 6, 16) and k (2, 2, 7, 8)"
    ),
    "batches": Bad(
        _set(q=torch.ones(3, 4, 6, 8)), ValueError, "batch of q (3, 4, 6, 8) and k (2, 2, 7, 8) differ"
    ),
    "dimensions": Bad(
        _set(q=torch.ones(4, 6, 8)), ValueError, "q has the shape (4, 6, 8); without cu_seqlens it is"
    ),
    "types": Bad(
        _set(k=torch.ones(2, 2, 7, 8, dtype=torch.bfloat16)),
        TypeError,
        "q is torch.float32 and k is torch.bfloat16; cast them to one type",
    ),
    "integers": Bad(
        _set(**{name: torch.ones(2, 2, 7, 8, dtype=torch.int64) for name in "qkv"}),
        TypeError,
        "q is torch.int64; it takes torch.float16",
    ),
    "a mask as bias": Bad(
        _set(bias=torch.ones(6, 7, dtype=torch.bool)), TypeError, "bias is torch.bool; it is added"
    ),
    "a bias of 8 bits": Bad(
        _set(bias=torch.ones(6, 7).to(torch.float8_e4m3fn)), TypeError, "bias is torch.float8_e4m3fn; it"
    ),
    "two types of 8 bits": Bad(
        _set(
            q=torch.ones(2, 4, 6, 8).to(torch.float8_e4m3fn),
            **{name: torch.ones(2, 2, 7, 8).to(torch.float8_e5m2) for name in "kv"},
        ),
        TypeError,
        "q is torch.float8_e4m3fn and k is torch.float8_e5m2; cast them to one type",
    ),
    "another type of 8 bits": Bad(
        _set(**{name: torch.ones(2, 2, 7, 8).to(torch.float8_e5m2) for name in "qkv"}),
        TypeError,
        "q is torch.float8_e5m2; it takes torch.float16",
    ),
    "a bias that does not fit": Bad(
        _set(bias=torch.ones(6, 9)), ValueError, "bias (6, 9) does not broadcast to"
    ),
    "one cu_seqlens": Bad(
        _set(cu_seqlens_k=None), ValueError, "cu_seqlens_k is missing; give both", varlen=True
    ),
    "cu_seqlens of int64": Bad(
        _set(cu_seqlens_q=cumulated(4, 5).long()),
        TypeError,
        "cu_seqlens_q is torch.int64; call .to(torch.int32) on it",
        varlen=True,
    ),
    "cu_seqlens of two dimensions": Bad(
        _set(cu_seqlens_k=cumulated(4, 5)[None]),
        ValueError,
        "cu_seqlens_k has the shape (1, 3); it has one dimension",
        varlen=True,
    ),
    "cu_seqlens of no sequence": Bad(
        _set(cu_seqlens_q=_int32(0), cu_seqlens_k=_int32(0)),
        ValueError,
        "cu_seqlens_q has the shape (1,), which is no sequence",
        varlen=True,
    ),
    "other numbers of sequences": Bad(
        _set(cu_seqlens_k=cumulated(3, 3, 3)),
        ValueError,
        "cu_seqlens_q has the shape (3,) and cu_seqlens_k (4,)",
        varlen=True,
    ),
    "a length without sequences": Bad(
        _set(max_seqlen_q=6), ValueError, "max_seqlen_q is 6 without cu_seqlens_q"
    ),
    "cu_seqlens that decrease": Bad(
        _set(cu_seqlens_q=_int32(0, 7, 4, 9), cu_seqlens_k=cumulated(3, 3, 3)),
        ValueError,
        "cu_seqlens_q decreases from 7 to 4 at index 2",
        varlen=True,
        values=True,
    ),
    "cu_seqlens past the end": Bad(
        _set(cu_seqlens_k=cumulated(4, 8)),
        ValueError,
        "cu_seqlens_k ends at 12, past the end of k, which has 9 tokens",
        varlen=True,
        values=True,
    ),
    "cu_seqlens that begin late": Bad(
        _set(cu_seqlens_k=_int32(1, 4, 9)),
        ValueError,
        "cu_seqlens_k begins with 1; the first sequence begins at 0",
        varlen=True,
        values=True,
    ),
    "a longer sequence than the longest": Bad(
        _set(max_seqlen_q=4),
        ValueError,
        "sequence 1 of cu_seqlens_q has 5 tokens, and max_seqlen_q is 4",
        varlen=True,
        values=True,
    ),
    "a bias that ends early": Bad(
        _set(bias=torch.ones(4, 5)),
        ValueError,
        "bias (4, 5) ends before the longest sequence, which has 5 tokens",
        varlen=True,
        values=True,
    ),
}  # fmt: skip

ONE_OF_EACH_CHECK = (
    "window of floats",
    "left of more than 64 bits",
    "cap in a tensor",
    "causal of letters",
    "no tensor",
    "a longest sequence of a float",
    "left of the wrong sign",
    "causal and keys behind",
    "an infinite scale",
    "no keys",
    "heads that do not divide",
    "types",
    "a bias that does not fit",
    "cu_seqlens of two dimensions",
    "cu_seqlens that decrease",
)
"""One bad call for each kind of check, for tests that compile; the others run all of `BAD` eagerly."""
