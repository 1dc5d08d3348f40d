"""Attention of AOTInductor's programs, in C++, computes what `fmha` computes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from inductor_plugin import fmha as typed_fmha
from inductor_plugin.attention.blockwise import accumulator
from inductor_plugin.ops.package import source
from tests.support.attention.calls import GOOD, Case, operands
from tests.support.native import aoti

pytestmark = pytest.mark.compat

fmha: Any = typed_fmha  # called with the keywords of a case

ENTRY = """
extern "C" char const* run(AtenTensorHandle* t, int64_t max_q, int64_t max_k, double scale, double softcap, int64_t left,
                           int64_t right, int32_t bottom_right) {
  static std::string error;
  try {
    inductor_plugin::attention_blocks({t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], max_q, max_k},
                                      {scale, softcap, left, right, bottom_right != 0});
  } catch (std::exception const& caught) {
    error = caught.what();
    return error.c_str();
  }
  return nullptr;
}
"""
NAMES = ("q", "k", "v", "bias", "cu_seqlens_q", "cu_seqlens_k", "lse", "out")


@functools.cache
def entry() -> Callable[..., bytes | None]:
    function = aoti.library(source.sites_text() + source.blocks_text() + ENTRY).run
    function.restype = ctypes.c_char_p
    function.argtypes = (
        ctypes.c_void_p,
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_double, ctypes.c_double),
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int32),
    )
    return function


def blocks(tensors: dict[str, Tensor], case: Case, max_q: int = 0, max_k: int = 0) -> str | None:
    """Call ``attention_blocks``; returns its error."""
    impls = [ctypes.c_void_p(tensors[name]._cdata if name in tensors else 0) for name in NAMES]
    handles = (ctypes.c_void_p * len(NAMES))(
        *(ctypes.addressof(impl) if impl.value else None for impl in impls)
    )
    words = case.keywords
    scale = words.get("scale", tensors["q"].size(-1) ** -0.5)
    mask = case.mask
    numbers = (scale, words.get("softcap", 0.0), mask.left, mask.right, int(mask.bottom_right))
    error = entry()(ctypes.addressof(handles), max_q, max_k, *numbers)
    return error.decode() if error else None


def results(named: dict[str, Tensor], case: Case) -> tuple[Tensor, Tensor]:
    """Return out and lse of the C++."""
    q, v = named["q"], named["v"]
    dtype = torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype
    out = torch.full((*q.shape[:-1], v.size(-1)), 7.0, dtype=dtype)
    rows = (q.size(1), q.size(0)) if case.lengths else q.shape[:-1]
    lse = torch.full(rows, 7.0, dtype=accumulator(q.dtype))
    assert blocks({**named, "lse": lse, "out": out}, case) is None
    return out, lse


def tensors_of(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    return {
        name: value for name, value in operands(case, dtype).items() if isinstance(value, Tensor)
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", GOOD)
def test_the_results_are_those_of_the_operator(name: str, dtype: torch.dtype) -> None:
    case, tensors = GOOD[name], operands(GOOD[name], dtype)
    expected, expected_lse = fmha(**tensors, **case.keywords, return_lse=True)
    out, lse = results(tensors_of(case, dtype), case)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn], ids=str)
def test_narrow_types(dtype: torch.dtype) -> None:
    case = Case(keywords={"causal": True})
    arguments = {name: value.to(dtype) for name, value in tensors_of(case, torch.float32).items()}
    expected, expected_lse = fmha(**arguments, causal=True, return_lse=True)
    out, lse = results(arguments, case)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)


def test_many_blocks_of_strided_operands() -> None:
    case = Case(keywords={"causal": True})
    q, k, v = (torch.randn(2, 300, heads, 48).transpose(1, 2) for heads in (4, 2, 2))
    arguments = {"q": q, "k": k[..., ::2], "v": v[..., 1::2], "bias": torch.randn(300, 1)}
    arguments["q"] = q[..., 24:]
    expected, expected_lse = fmha(**arguments, causal=True, return_lse=True)
    out, lse = results(arguments, case)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)


def test_numbers_that_are_not_finite_stay_in_their_rows() -> None:
    case = Case(heads=(2, 2), keywords={"window": (3, 0)})
    tensors = tensors_of(case, torch.float32)
    tensors["q"][0, 0, 4, 1], tensors["q"][1, 1, 5, 0] = math.nan, math.inf
    tensors["q"][1, 1, 5, 1:], tensors["k"][1, 1, :, 0] = 0.0, 1.0
    expected, expected_lse = fmha(**tensors, window=(3, 0), return_lse=True)
    out, lse = results(tensors, case)
    assert out[0, 0, 4].isnan().all()
    torch.testing.assert_close(out, expected, equal_nan=True)
    torch.testing.assert_close(lse, expected_lse, equal_nan=True)


def test_float_sums_are_as_exact_as_torchs() -> None:
    case = Case(heads=(1, 1))
    q, k, v = (torch.randn(1, 1, 1000, 64) * 3 for _ in range(3))
    exact = fmha(q.double(), k.double(), v.double())
    out, _ = results({"q": q, "k": k, "v": v}, case)
    ours, torchs = ((result - exact).abs().max() for result in (out, fmha(q, k, v)))
    assert ours <= 2 * torchs


@pytest.mark.parametrize(
    ("ends", "max_q", "words"),
    [
        ((1, 5, 17), 0, "cu_seqlens_q begins with 1; the first sequence begins at 0"),
        ((0, 5, 16), 0, "cu_seqlens_q ends at 16, and there are 17 tokens"),
        ((0, 18, 17), 0, "cu_seqlens_q decreases from 18 to 17"),
        ((0, 5, 17), 9, "has a sequence of 12 tokens, and the longest has 9"),
        ((0, 17), 0, "cu_seqlens_q and cu_seqlens_k differ in length"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(ends: tuple[int, ...], max_q: int, words: str) -> None:
    case = Case(lengths=((5, 12), (7, 8)))
    tensors = tensors_of(case, torch.float32)
    tensors["cu_seqlens_q"] = torch.tensor(ends, dtype=torch.int32)
    error = blocks({**tensors, "out": torch.empty_like(tensors["q"])}, case, max_q)
    assert words in str(error)


def test_the_lengths_of_keys_are_checked_too() -> None:
    case = Case(lengths=((5, 12), (7, 8)))
    tensors = tensors_of(case, torch.float32)
    error = blocks({**tensors, "out": torch.empty_like(tensors["q"])}, case, 12, 7)
    assert "cu_seqlens_k has a sequence of 8 tokens, and the longest has 7" in str(error)


@pytest.mark.parametrize(("size", "length"), [((2, 4, 11, 9), 12), ((2, 4, 12, 7), 8)])
def test_a_bias_shorter_than_a_sequence_is_not_read_beyond_its_end(
    size: tuple[int, ...], length: int
) -> None:
    case = Case(lengths=((5, 12), (7, 8)), bias=size)
    tensors = tensors_of(case, torch.float32)
    error = blocks({**tensors, "out": torch.empty_like(tensors["q"])}, case)
    assert f"numbers where a sequence has {length}" in str(error)


@pytest.mark.parametrize("window", [(2**63 - 1, -1), (2**63 - 6, 3), (-1, 2**63 - 1), (0, 0)])
def test_windows_of_63_bits(window: tuple[int, int]) -> None:
    case = Case(tokens=(27, 19), keywords={"window": window})
    tensors = tensors_of(case, torch.float32)
    expected, expected_lse = fmha(**tensors, window=window, return_lse=True)
    out, lse = results(tensors, case)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)


def test_a_row_of_infinity_and_nan_is_nan() -> None:
    tensors = tensors_of(Case(heads=(1, 1)), torch.float32)
    bias = torch.zeros(tensors["q"].size(2), tensors["k"].size(2))
    bias[3, 4], bias[3, 5] = math.inf, math.nan
    expected, expected_lse = fmha(**tensors, bias=bias, return_lse=True)
    out, lse = results({**tensors, "bias": bias}, Case(heads=(1, 1)))
    torch.testing.assert_close(out, expected, equal_nan=True)
    torch.testing.assert_close(lse, expected_lse, equal_nan=True)
