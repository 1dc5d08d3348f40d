"""Changes of operands that show what random numbers hide."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inductor_plugin.kernels.call import TensorSpec
from inductor_plugin.worker.child.operands import build
from inductor_plugin.worker.child.stress import (
    EXPONENTS,
    SMALL,
    Stress,
    borders,
    fill_gaps,
    flat,
    limited,
    sites,
)

TYPES = ["float32", "float16", "bfloat16", "float64", "complex64", "float8_e4m3fn", "float8_e5m2"]


def spec(dtype: str, seed: int = 1, pitch: int = 6) -> TensorSpec:
    return TensorSpec((4, 6), (pitch, 1), dtype, "cpu", seed=seed, storage=4 * pitch)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("exponent", [0, 2, 12])
def test_floats_become_larger_and_one_of_them_nan(dtype: str, exponent: int) -> None:
    operand = spec(dtype)
    before, tensor = build(operand), build(operand)
    Stress(exponent, sites([operand], [])).apply({operand: tensor})
    old, new = before.to(torch.complex64).abs(), tensor.to(torch.complex64).abs()
    assert new.isnan().nonzero().tolist() == [[3, 5]]
    larger = new[:3].max() / old[:3].max()
    assert larger == pytest.approx(2.0 ** min(exponent, 5), rel=0.1) or larger > 2**5
    assert bool(new[:3].isfinite().all())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers_become_larger_without_another_sign(dtype: str) -> None:
    operand = spec(dtype)
    before, tensor = build(operand), build(operand)
    Stress(12).apply({operand: tensor})
    assert torch.equal(tensor.sign(), before.sign())
    assert int(tensor.abs().max()) > 10 * int(before.abs().max())
    assert sites([operand], []) == ()


def test_what_is_not_random_stays_as_it_is() -> None:
    operand = replace(spec("float32"), file="weights.bin")
    tensor = torch.ones(4, 6)
    Stress(12, ((1, 0),)).apply({operand: tensor})
    assert torch.equal(tensor, torch.ones(4, 6))


@pytest.mark.parametrize(("dtype", "smaller"), [("float32", 20), ("float16", 8), ("int8", 0)])
def test_small_operands_are_no_zeros(dtype: str, smaller: int) -> None:
    before, tensor = build(spec(dtype)), build(spec(dtype))
    Stress(-20).apply({spec(dtype): tensor})
    assert torch.equal(tensor.double() * 2.0**smaller, before.double())


def test_nan_is_planted_last_and_in_what_is_added_second() -> None:
    a, c = spec("float32", 1, pitch=8), replace(spec("float32", 2), offset=1)
    assert sites([c, a, spec("int8", 3)], [2]) == ((2, 8), (1, 29))
    assert sites([replace(a, file="weights.bin")], []) == ()


def test_further_nan_are_where_tiles_begin_and_end_each_in_a_row_or_a_column_of_its_own() -> None:
    a = TensorSpec((32, 320), (320, 1), "float32", "cpu", seed=1, offset=7)
    rows, columns = zip(*[divmod(i - 7, 320) for _, i in borders([a], [])], strict=True)
    assert list(zip(rows, columns, strict=True))[:4] == [(30, 0), (29, 160), (28, 159), (27, 256)]
    assert (rows[4:], columns[4:]) == ((0, 16, 15, 8), (318, 317, 316, 315))
    weight = replace(a, size=(320, 32), stride=(1, 320))  # the same, seen transposed
    assert {i for _, i in borders([weight], [])} == {
        7 + row + column * 320
        for row, column in [
            (318, 0),
            (317, 16),
            (316, 15),
            (315, 8),
            (0, 30),
            (160, 29),
            (159, 28),
            (256, 27),
        ]
    }
    short = replace(a, size=(7, 320))
    expanded = replace(a, stride=(0, 1))
    assert borders([short, expanded, replace(a, dtype="int8"), replace(a, file="w.bin")], []) == ()
    assert borders([a], [1]) == ()


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


def test_gaps_that_the_library_kernel_reads_are_numbers() -> None:
    base = TensorSpec((4, 8), (8, 1), "float32", "cpu", seed=1)
    tensor = build(base)
    assert fill_gaps([replace(base, size=(4, 3))], {base: tensor}, 0)
    assert flat(base, tensor).view(4, 8)[:, 3:].eq(0).all()
    assert flat(base, tensor).view(4, 8)[:, :3].ne(0).all()


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "int8", "uint8", "bool"]
)
def test_other_numbers_are_in_the_range_of_the_first(dtype: str) -> None:
    spec = TensorSpec((64,), (1,), dtype, "cpu", seed=1)
    before, after = build(spec).double(), build(spec)
    Stress(renewed=True).apply({spec: after})
    changed = after.double()
    assert int((changed == before).sum()) <= 1  # a random number may be 0
    assert bool((changed.abs() <= before.abs().max() + (dtype == "int8")).all())
    if dtype == "float32":  # kernels read no NaN for it
        assert torch.equal(changed, before * -0.5)


def test_gaps_are_before_and_behind_an_operand_that_has_none_between_its_rows() -> None:
    base = TensorSpec((4, 8), (8, 1), "float32", "cpu", seed=1)
    rows = replace(base, size=(2, 8), offset=8)  # one of several chunks
    tensor = build(base)
    assert fill_gaps([rows], {base: tensor})
    assert flat(base, tensor).view(4, 8).isnan().sum(1).tolist() == [8, 0, 0, 8]
    other = build(base)
    assert not fill_gaps([rows, base], {base: other})  # the whole is read, too
    assert not bool(other.isnan().any())


@pytest.mark.parametrize(
    ("dtype", "exponent", "amplitude", "power"),
    [
        ("float32", 20, 1.0, 20),
        ("float16", 20, 1.0, 12),
        ("float16", 5, 1.0, 5),
        ("float16", -20, 1.0, -8),
        ("float16", 20, 2.0**-4, 16),  # smaller numbers may be multiplied by more
        ("float16", -20, 2.0**-4, -4),
        ("float8_e4m3fn", 20, 4.0, 3),
    ],
)
def test_operands_stay_numbers_of_their_type(
    dtype: str, exponent: int, amplitude: float, power: int
) -> None:
    assert limited(dtype, exponent, amplitude) == power


def test_random_numbers_of_every_floating_type_stay_numbers() -> None:
    """Powers of two and numbers of four bits are no operands of a product."""
    types = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    floating = {str(each).removeprefix("torch."): each for each in types if each.is_floating_point}
    for name in floating.keys() - {"float8_e8m0fnu", "float4_e2m1fn_x2"}:
        numbers = torch.finfo(floating[name])
        assert 4.0 * 2.0 ** limited(name, EXPONENTS[0]) < numbers.max, name
        assert 2.0 ** limited(name, SMALL[0]) > numbers.smallest_normal, name


def test_what_is_added_has_an_exponent_of_its_own() -> None:
    a, c = spec("float32", 1), spec("float32", 2)
    tensors = {each: build(each) for each in (a, c)}
    before = {each: tensor.clone() for each, tensor in tensors.items()}
    Stress(5, added=((2, -3),)).apply(tensors)
    assert torch.equal(tensors[a], before[a] * 32)
    assert torch.equal(tensors[c], before[c] / 8)
