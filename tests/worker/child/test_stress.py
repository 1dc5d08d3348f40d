"""Changes of operands that show what random numbers hide."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.worker.child.operands import build, checksum
from inductor_plugin.worker.child.stress import Stress, fill_gaps, flat, sites

TYPES = ["float32", "float16", "bfloat16", "float64", "complex64", "float8_e4m3fn", "float8_e5m2"]


def spec(dtype: str, seed: int = 1, pitch: int = 6) -> TensorSpec:
    return TensorSpec((4, 6), (pitch, 1), dtype, "cpu", seed=seed, storage=4 * pitch)


@pytest.mark.parametrize("dtype", [*TYPES, "int8", "uint8", "int32", "bool"])
@pytest.mark.parametrize("exponent", [0, 2, 12])
def test_a_change_is_undone(dtype: str, exponent: int) -> None:
    operand = spec(dtype)
    tensor = build(operand)
    before = checksum(tensor)
    planted = sites([operand], [])
    with Stress(exponent, planted).applied({operand: tensor}):
        changed = checksum(tensor)
        if planted:
            assert bool(tensor.to(torch.complex64).isnan().any())
    assert (changed != before) == bool(
        planted or (exponent and dtype in ("int8", "uint8", "int32"))
    )
    assert checksum(tensor) == before


@pytest.mark.parametrize("dtype", TYPES)
def test_large_operands_stay_finite(dtype: str) -> None:
    operand = spec(dtype)
    tensor = build(operand)
    largest = tensor.to(torch.complex64).abs().max()
    with Stress(12).applied({operand: tensor}):
        large = tensor.to(torch.complex64)
        assert bool(large.isfinite().all())
        assert large.abs().max() >= 16 * largest


def test_nan_is_planted_last_and_in_what_is_added_first() -> None:
    a, c = spec("float32", 1, pitch=8), replace(spec("float32", 2), offset=1)
    assert sites([c, a, spec("int8", 3)], [2]) == ((2, 1), (1, 29))
    assert sites([replace(a, file="weights.bin")], []) == ()


def test_gaps_are_what_no_operand_of_the_library_kernel_covers() -> None:
    base = TensorSpec((4, 8), (8, 1), "float32", "cpu", seed=1)
    left = replace(base, size=(4, 3))
    right = replace(left, offset=5)
    tensor = build(base)
    assert fill_gaps([left, right], {base: tensor})
    assert flat(base, tensor).view(4, 8).isnan().sum(0).tolist() == [0, 0, 0, 4, 4, 0, 0, 0]
    whole = build(base)
    assert not fill_gaps([base], {base: whole})
    assert not fill_gaps([replace(base, size=(8, 4), stride=(1, 8))], {base: whole})
    assert not bool(whole.isnan().any())
