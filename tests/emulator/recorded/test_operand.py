"""Operands of recorded calls."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import replace

import torch

from tests.emulator.recorded.operand import elements, ends_of, tensor
from tests.support.emulator.products import A, K, M, operand


def test_it_has_the_recorded_sizes_strides_and_offset() -> None:
    operand_a = tensor("a", replace(A, stride=(K + 8, 1), offset=64))
    assert operand_a.tensor.shape == (M, K)
    assert operand_a.tensor.stride() == (K + 8, 1)
    assert operand_a.tensor.dtype == torch.bfloat16
    assert (operand_a.tensor.data_ptr() - 2 * 64) % 128 == 0
    assert bool(operand_a.tensor.isfinite().all())
    assert bool(tensor("", A).tensor.isnan().all())


def test_its_values_are_of_what_it_is_for() -> None:
    assert bool((tensor("scale_a", operand(7, 1, dtype="float32")).tensor >= 0.5).all())
    assert tensor("offsets", operand(3, dtype="int32"), (1, 2, 9)).tensor.tolist() == [1, 2, 9]
    packed = tensor("b", operand(4, 2, 32, 4, dtype="int32")).tensor
    assert int(packed.max()) > 1 << 29
    assert int(packed.min()) < -(1 << 29)


def test_groups_are_as_even_as_can_be_and_hold_all_rows() -> None:
    assert ends_of(10, 3) == (3, 6, 10)
    assert ends_of(10, 0) == ()


def test_a_storage_ends_with_the_last_element() -> None:
    assert elements(replace(A, offset=64)) == 64 + M * K
    assert elements(replace(A, stride=(0, 1))) == K
    assert elements(replace(operand(0, 4), offset=3)) == 3
