"""How far numbers may be off."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import pytest
import torch

from inductor_plugin.problem.tolerance import Bound, attention_bound, tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_two_right_kernels_agree_and_a_wrong_one_does_not(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(64, 512), torch.randn(512, 64)
    a, b = a.to(dtype), b.to(dtype)
    reference = (a @ b).float()
    split = (a[:, :256] @ b[:256] + a[:, 256:] @ b[256:]).float()
    name = str(dtype).removeprefix("torch.")
    limit = tolerance(name, name, 512, tf32=False)
    assert error(split, reference) <= limit
    assert error(reference * 1.25, reference) > limit


def error(tensor: torch.Tensor, reference: torch.Tensor) -> float:
    return ((tensor - reference).abs().max() / reference.square().mean().sqrt()).item()


def test_coarser_types_are_allowed_more() -> None:
    order = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
    limits = [tolerance(dtype, dtype, 64, tf32=False) for dtype in order]
    assert limits == sorted(limits)
    assert limits[0] > 0
    assert len(set(limits)) == len(limits)


def test_longer_sums_are_allowed_more() -> None:
    short, long = (tolerance("float32", "float32", k, tf32=False) for k in (16, 65536))
    assert long > short


def test_the_longest_sums_still_show_an_error_of_a_thousandth() -> None:
    assert tolerance("float32", "float32", 65536, tf32=False) < 1e-3


def test_tf32_is_allowed_for_float32_operands_only() -> None:
    strict = tolerance("float32", "float32", 64, tf32=False)
    assert tolerance("float32", "float32", 64, tf32=True) > 10 * strict
    assert tolerance("float32", "bfloat16", 64, tf32=True) == strict


@pytest.mark.parametrize("dtype", ["int8", "int32", "bool"])
def test_integers_must_agree_exactly(dtype: str) -> None:
    assert tolerance(dtype, dtype, 64, tf32=False) == 0.0


@pytest.mark.parametrize(("dtype", "part"), [("complex64", "float32"), ("complex128", "float64")])
def test_complex_numbers_may_be_off_like_their_parts(dtype: str, part: str) -> None:
    assert tolerance(dtype, dtype, 64, tf32=False) == tolerance(part, part, 64, tf32=False)


def test_every_floating_type_of_torch_has_a_tolerance() -> None:
    types = {name for name in vars(torch).values() if isinstance(name, torch.dtype)}
    floating = {dtype for dtype in types if dtype.is_floating_point or dtype.is_complex}
    # Scales and packed four-bit numbers are no outputs of a matrix product.
    names = {str(dtype).removeprefix("torch.") for dtype in floating} - {
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
    }
    assert {name for name in names if tolerance(name, name, 64, tf32=False) == 0.0} == set()


def test_an_empty_sum_has_a_tolerance() -> None:
    assert tolerance("float32", "float32", 0, tf32=False) > 0


def bound(library_error: float | None, dtype: str, *, tf32: bool = False) -> Bound:
    return attention_bound(
        library_error, output_dtype=dtype, input_dtype=dtype, reduction=1024, tf32=tf32
    )


def test_an_attention_may_be_twice_as_far_off_as_the_library_kernel() -> None:
    assert bound(0.01, "bfloat16").relative == pytest.approx(0.02, rel=1e-3)
    assert bound(0.01, "bfloat16").unit == 2.0**-8
    assert 1e-6 < bound(0.0, "float32").relative < 3e-6  # another order of summation
    assert bound(0.0, "float64").relative < 1e-14
    assert bound(0.0, "float32", tf32=True).relative > 1e-3


@pytest.mark.parametrize("library_error", [None, 0.0, 1.0])
def test_weights_of_8_bits_bound_an_attention_of_such_operands(library_error: float | None) -> None:
    def of(dtype: str) -> Bound:
        return attention_bound(
            library_error, output_dtype=dtype, input_dtype="float8_e4m3fn", reduction=64, tf32=False
        )

    assert of("bfloat16").relative == pytest.approx(3 / 16, rel=0.02)
    assert of("bfloat16").unit == 2.0**-8
    assert of("float32").relative == 2.0**-9  # lse is made of weights before they are rounded


def test_without_a_library_kernel_the_types_bound_an_attention() -> None:
    limits = [bound(None, dtype).relative for dtype in ("float32", "float16", "bfloat16")]
    assert limits == sorted(limits)
    assert limits[-1] < 0.2
    assert bound(0.01, "bfloat16") + Bound(1.0, 2.0) == Bound(
        bound(0.01, "bfloat16").relative + 1.0, 2.0**-8 + 2.0
    )
