"""How far numbers may be off."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import pytest
import torch

from inductor_plugin.numerics import tolerance


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


def error(found: torch.Tensor, reference: torch.Tensor) -> float:
    return ((found - reference).abs().max() / reference.square().mean().sqrt()).item()


def test_coarser_types_are_allowed_more() -> None:
    order = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
    limits = [tolerance(one, one, 64, tf32=False) for one in order]
    assert limits == sorted(limits)
    assert limits[0] > 0
    assert len(set(limits)) == len(limits)


def test_longer_sums_are_allowed_more() -> None:
    short, long = (tolerance("float32", "float32", k, tf32=False) for k in (16, 65536))
    assert long > short


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
    types = {one for one in vars(torch).values() if isinstance(one, torch.dtype)}
    floating = {one for one in types if one.is_floating_point or one.is_complex}
    # Scales and packed four-bit numbers are no outputs of a matrix product.
    names = {str(one).removeprefix("torch.") for one in floating} - {
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
    }
    assert {one for one in names if tolerance(one, one, 64, tf32=False) == 0.0} == set()


def test_an_empty_sum_has_a_tolerance() -> None:
    assert tolerance("float32", "float32", 0, tf32=False) > 0
