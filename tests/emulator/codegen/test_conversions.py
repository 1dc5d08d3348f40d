"""``cvt`` bit for bit against torch and ml_dtypes, for every number where there are few, and against exact numbers elsewhere."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.snippet import evaluate

FLOAT8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
HALVES = {"bf16": torch.bfloat16, "f16": torch.float16}
CODES: Array = np.arange(65536, dtype=np.uint32).astype(np.uint16)


def bits_of(tensor: torch.Tensor) -> Array:
    """Return the bits of a tensor of 16-bit floats."""
    return tensor.view(torch.int16).numpy().view(np.uint16)


def floats() -> Array:
    """Return float32 of all kinds: random bits, ties of 16-bit formats and their neighbours."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 32, 12000, dtype=np.uint64).astype(np.uint32)
    ties = bits[:4000] & 0xFFFF0000 | 0x8000
    half_ties = bits[4000:8000] & 0xFFFFE000 | 0x1000
    around = np.concatenate([ties, ties + 1, ties - 1, half_ties, half_ties + 1, half_ties - 1])
    return np.concatenate([bits, around]).view(np.float32)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_float32_to_16_bits(kind: str) -> None:
    values = floats()
    (got,) = evaluate(f"cvt.rn.{kind}.f32 %d, %a;", {"%a": ("f32", values)}, {"%d": "b16"})
    tensor = torch.from_numpy(values)
    wanted = bits_of(tensor.to(HALVES[kind]))
    nan = np.isnan(values)
    assert np.array_equal(got[~nan], wanted[~nan])
    assert (got[nan] == 0x7FFF).all()  # whatever the NaN


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_16_bits_to_float32(kind: str) -> None:
    (got,) = evaluate(f"cvt.f32.{kind} %d, %a;", {"%a": ("b16", CODES)}, {"%d": "f32"})
    wanted = torch.from_numpy(CODES.view(np.int16)).view(HALVES[kind]).float().numpy()
    assert np.array_equal(got, wanted, equal_nan=True)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_pairs_and_rounding_toward_zero(kind: str) -> None:
    values = floats()
    operands = {"%a": ("f32", values), "%b": ("f32", values[::-1].copy())}
    (near,) = evaluate(f"cvt.rn.{kind}x2.f32 %d, %a, %b;", operands, {"%d": "b32"})
    (down,) = evaluate(f"cvt.rz.{kind}x2.f32 %d, %a, %b;", operands, {"%d": "b32"})
    finite = np.isfinite(values)
    wanted = bits_of(torch.from_numpy(values).to(HALVES[kind]))
    assert np.array_equal((near >> 16)[finite], wanted[finite])
    low = (
        torch.from_numpy((down >> 16).astype(np.uint16).view(np.int16)).view(HALVES[kind]).double()
    )
    exact = torch.from_numpy(values).double()
    kept = torch.from_numpy(finite)
    assert (low.abs() <= exact.abs())[kept].all()
    above = torch.from_numpy(((down >> 16) + 1).astype(np.uint16).view(np.int16)).view(HALVES[kind])
    assert ((above.double().abs() > exact.abs()) | above.isnan())[kept].all()


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_every_8_bit_float_widens_as_in_torch(kind: str) -> None:
    text = f"cvt.rn.f16x2.{kind}x2 %d, %a;"
    (got,) = evaluate(text, {"%a": ("b16", CODES)}, {"%d": "b32"})
    for shift in (0, 8):
        codes = (CODES >> shift).astype(np.uint8)
        wanted = torch.from_numpy(codes).view(FLOAT8[kind]).float().numpy()
        half = (got >> (2 * shift)).astype(np.uint16).view(np.float16).astype(np.float32)
        assert np.array_equal(half, wanted, equal_nan=True)


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_to_8_bits(kind: str) -> None:
    """All bfloat16, and ties; what is too large becomes the largest number, where torch has infinity or NaN."""
    largest = {"e4m3": 448.0, "e5m2": 57344.0}[kind]
    exact = bf16_numbers()
    half = torch.arange(256, dtype=torch.uint8).view(FLOAT8[kind]).double()
    ties = (half[:-1] + half[1:]) / 2
    values = np.concatenate([exact, ties[ties.isfinite()].float().numpy()])
    text = f"cvt.rn.satfinite.{kind}x2.f32 %d, %a, 0f3F800000;"
    (got,) = evaluate(text, {"%a": ("f32", values)}, {"%d": "b16"})
    upper = (got >> 8).astype(np.uint8)
    tensor = torch.from_numpy(values)
    inside = tensor.abs() <= largest
    wanted = tensor.to(FLOAT8[kind]).view(torch.uint8).numpy()
    assert np.array_equal(upper[inside.numpy()], wanted[inside.numpy()])
    back = torch.from_numpy(upper).view(FLOAT8[kind]).double()
    outside = (tensor.abs() > largest) & ~tensor.isnan()
    assert torch.equal(back[outside], largest * tensor[outside].sign().double())
    assert back[tensor.isnan()].isnan().all()
    one_as_bits = {"e4m3": 0x38, "e5m2": 0x3C}[kind]
    assert (got.astype(np.uint8) == one_as_bits).all()


def bf16_numbers() -> Array:
    return torch.from_numpy(CODES.view(np.int16)).view(torch.bfloat16).float().numpy()


ML_FLOAT8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
ML_HALVES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}  # that one is numpy's own
LOW_BITS = (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)
"""A number of 16 bits, ties of bfloat16, and what is beside both."""


def every_upper_half() -> Array:
    """Return float32 with all upper 16 bits: all signs, exponents, infinities, subnormal numbers and NaN."""
    return (
        (CODES.astype(np.uint32)[:, None] << 16 | np.array(LOW_BITS, np.uint32))
        .view(np.float32)
        .ravel()
    )


def around_ties(kind: str) -> Array:
    """Return all numbers of an 8-bit float, what is halfway between two of them, and the float32 beside each of these."""
    half = np.arange(256, dtype=np.uint8).view(ML_FLOAT8[kind]).astype(np.float32)
    half = np.sort(half[np.isfinite(half)])
    values = np.concatenate([half, (half[:-1] + half[1:]) / 2])
    ends = (np.float32(-np.inf), np.float32(np.inf))
    return np.concatenate([values, *(np.nextafter(values, end) for end in ends)])


def rounded(values: Array, dtype: type[np.generic]) -> Array:
    """Return numbers as a type; NaN and what is too large for it are no surprise."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype)


def saturated(values: Array, kind: str) -> Array:
    """Return the codes of numbers that are limited to the finite ones first, as ``.satfinite`` does; of NaN 0x7F."""
    largest = np.float32(ml_dtypes.finfo(ML_FLOAT8[kind]).max)
    codes = rounded(np.clip(values, -largest, largest), ML_FLOAT8[kind]).view(np.uint8)
    return np.where(np.isnan(values), np.uint8(0x7F), codes)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_every_upper_half_of_float32_rounds_as_in_ml_dtypes(kind: str) -> None:
    values = every_upper_half()
    (got,) = evaluate(f"cvt.rn.{kind}.f32 %d, %a;", {"%a": ("f32", values)}, {"%d": "b16"})
    wanted = rounded(values, ML_HALVES[kind]).view(np.uint16)
    nan = np.isnan(values)
    assert np.array_equal(got[~nan], wanted[~nan])
    assert (got[nan] == 0x7FFF).all()


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_16_bits_widen_as_in_ml_dtypes(kind: str) -> None:
    (got,) = evaluate(f"cvt.f32.{kind} %d, %a;", {"%a": ("b16", CODES)}, {"%d": "f32"})
    wanted = CODES.view(ML_HALVES[kind]).astype(np.float32)
    known = ~np.isnan(wanted)
    assert np.array_equal(got.view(np.uint32)[known], wanted.view(np.uint32)[known])
    assert np.isnan(got[~known]).all()


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_float32_to_8_bits_as_in_ml_dtypes(kind: str) -> None:
    values = np.concatenate([every_upper_half(), around_ties(kind), floats()])
    other = values[::-1].copy()
    operands = {"%a": ("f32", values), "%b": ("f32", other)}
    (got,) = evaluate(f"cvt.rn.satfinite.{kind}x2.f32 %d, %a, %b;", operands, {"%d": "b16"})
    assert np.array_equal(got >> 8, saturated(values, kind))
    assert np.array_equal(got & 255, saturated(other, kind))


@pytest.mark.parametrize("half", ["bf16", "f16"])
@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_every_16_bits_to_8_bits_as_in_ml_dtypes(kind: str, half: str) -> None:
    other = CODES[::-1].copy()
    both = other.astype(np.uint32) << 16 | CODES
    text = f"cvt.rn.satfinite.{kind}x2.{half}x2 %d, %a;"
    (got,) = evaluate(text, {"%a": ("b32", both)}, {"%d": "b16"})
    low, high = (codes.view(ML_HALVES[half]).astype(np.float32) for codes in (CODES, other))
    assert np.array_equal(got & 255, saturated(low, kind))
    assert np.array_equal(got >> 8, saturated(high, kind))


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_every_8_bit_float_widens_as_in_ml_dtypes(kind: str) -> None:
    (got,) = evaluate(f"cvt.rn.f16x2.{kind}x2 %d, %a;", {"%a": ("b16", CODES)}, {"%d": "b32"})
    for shift in (0, 8):
        codes = (CODES >> shift).astype(np.uint8)
        wanted = codes.view(ML_FLOAT8[kind]).astype(np.float16)
        bits, known = (got >> (2 * shift)).astype(np.uint16), ~np.isnan(wanted)
        assert np.array_equal(bits[known], wanted.view(np.uint16)[known])
        assert np.isnan(bits.view(np.float16)[~known]).all()


@pytest.mark.parametrize("kind", ["e3m2x2", "e2m3x2", "e2m1x2", "ue8m0x2"])
def test_smaller_floats_are_not_known_and_not_guessed(kind: str) -> None:
    values = np.ones(1, np.float32)
    text = f"cvt.rn.satfinite.{kind}.f32 %d, %a, %a;"
    with pytest.raises(PtxError, match=kind):
        evaluate(text, {"%a": ("f32", values)}, {"%d": "b16"})


def half_up(numbers: Array) -> Array:
    """Return whole numbers beside positive ones, ties away from zero."""
    return np.floor(numbers + 0.5)


@pytest.mark.parametrize(
    ("rounding", "function"), [("rna", half_up), ("rn", np.rint), ("rz", np.floor)]
)
def test_tf32_has_ten_bits_behind_the_first(
    rounding: str, function: Callable[[Array], Array]
) -> None:
    """Against exact numbers: neither torch nor ml_dtypes has the type. Its ties are at the thirteenth bit."""
    lows = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x3000], np.uint32)
    upper = CODES[::4].astype(np.uint32)[:, None] << 16
    values = np.concatenate([floats(), (upper | lows).view(np.float32).ravel()])
    values = values[~np.isnan(values)]
    (got,) = evaluate(f"cvt.{rounding}.tf32.f32 %d, %a;", {"%a": ("f32", values)}, {"%d": "b32"})
    finite = np.isfinite(values)
    wide = np.abs(np.where(finite, values, 0).astype(np.float64))
    _, exponent = np.frexp(wide)
    step = np.exp2(np.maximum(exponent - 1, -126) - 10)
    with np.errstate(over="ignore"):
        wanted = np.copysign(function(wide / step) * step, values).astype(np.float32)
    wanted[~finite] = values[~finite]
    assert np.array_equal(got, wanted.view(np.uint32))


@pytest.mark.parametrize(
    ("rounding", "function"),
    [("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)],
)
@pytest.mark.parametrize(
    ("kind", "least", "most"), [("s32", -(2**31), 2**31 - 1), ("u32", 0, 2**32 - 1)]
)
def test_floats_to_integers_stay_in_range(
    rounding: str, function: object, kind: str, least: int, most: int
) -> None:
    assert callable(function)
    edges = [
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        2147483648.0,
        -2147483904.0,
        4294967296.0,
        1e30,
        -1e30,
        np.inf,
        -np.inf,
        np.nan,
    ]
    values = np.concatenate([np.array(edges, np.float32), floats()[:2000]])
    (got,) = evaluate(f"cvt.{rounding}.{kind}.f32 %d, %a;", {"%a": ("f32", values)}, {"%d": "b32"})
    with np.errstate(invalid="ignore"):  # signalling NaN
        wide = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=1e300, neginf=-1e300)
    wanted: Array = np.asarray(function(wide)).clip(least, most).astype(np.int64)
    assert np.array_equal(got.view(np.int32 if kind == "s32" else np.uint32), wanted)


def test_integers_to_floats_round_once() -> None:
    values = np.random.default_rng(4).integers(-(2**63), 2**63 - 1, 5000)
    values[:500] = (values[:500] >> 39 << 39) + (1 << 38) + np.arange(500) % 3 - 1
    operands = {"%a": ("b64", values.view(np.uint64))}
    (single,) = evaluate("cvt.rn.f32.s64 %d, %a;", operands, {"%d": "f32"})
    assert np.array_equal(single, values.astype(np.float32))
    small = values.astype(np.int32)
    (half,) = evaluate(
        "cvt.rn.bf16.s32 %d, %a;", {"%a": ("b32", small.view(np.uint32))}, {"%d": "b16"}
    )
    exact = torch.from_numpy(small).double()
    near = torch.from_numpy(half.view(np.int16)).view(torch.bfloat16).double()
    step = 2.0 ** (exact.abs().clamp(min=1).log2().floor() - 7)
    assert ((near - exact).abs() <= step / 2).all()


def test_a_float_is_rounded_to_a_whole_one() -> None:
    values = np.array([0.5, 1.5, -2.5, 3.7, -3.2, np.inf, np.nan], np.float32)
    for rounding, function in (
        ("rni", np.rint),
        ("rzi", np.trunc),
        ("rmi", np.floor),
        ("rpi", np.ceil),
    ):
        (got,) = evaluate(f"cvt.{rounding}.f32.f32 %d, %a;", {"%a": ("f32", values)}, {"%d": "f32"})
        assert np.array_equal(got, function(values), equal_nan=True), rounding


def test_float64_to_float32_toward_zero() -> None:
    values = np.array([1 + 2**-30, -1 - 2**-24 - 2**-40, 2 - 2**-40, 0.1], np.float64)
    (got,) = evaluate("cvt.rz.f32.f64 %d, %a;", {"%a": ("f64", values)}, {"%d": "f32"})
    assert (np.abs(got.astype(np.float64)) <= np.abs(values)).all()
    assert (np.abs(np.nextafter(got, got * 2).astype(np.float64)) > np.abs(values)).all()


def with_sign(magnitude: int, values: Array) -> Array:
    """Return 16 bits of a magnitude with the signs of numbers."""
    return np.where(np.signbit(values), magnitude | 0x8000, magnitude).astype(np.uint16)


@pytest.mark.parametrize("rounding", ["rn", "rz"])
@pytest.mark.parametrize(("kind", "most"), [("f16", 0x7BFF), ("bf16", 0x7F7F)])
def test_satfinite_leaves_the_largest_number_of_16_bits(
    kind: str, most: int, rounding: str
) -> None:
    values = every_upper_half()
    text = f"""
      cvt.{rounding}.satfinite.{kind}.f32 %d, %a; cvt.{rounding}.{kind}.f32 %e, %a;
      cvt.{rounding}.satfinite.{kind}x2.f32 %f, %a, 0f49742400;
    """
    results = {"%d": "b16", "%e": "b16", "%f": "b32"}
    got, plain, both = evaluate(text, {"%a": ("f32", values)}, results)
    largest = np.array(most, np.uint16).view(ML_HALVES[kind]).astype(np.float32)
    inside, nan = np.abs(values) <= largest, np.isnan(values)
    outside = ~inside & ~nan
    assert np.isinf(values[outside]).any()
    assert np.array_equal(got[inside], plain[inside])
    assert np.array_equal(got[outside], with_sign(most, values[outside]))
    assert (got[nan] == 0x7FFF).all()
    assert np.array_equal(both >> 16, got)
    assert (both & 0xFFFF == {"f16": 0x7BFF, "bf16": 0x4974}[kind]).all()  # of a million


TF32 = {
    0x49742400: 0x49742000,  # a million, less than the thirteenth bit
    0x7F7FFFFF: 0x7F7FE000,
    0xFF7FFFFF: 0xFF7FE000,
    0x7F800000: 0x7F7FE000,
    0xFF800000: 0xFF7FE000,
    0x7F800001: 0x7FFFFFFF,
    0xFFC00001: 0x7FFFFFFF,
}
"""Bits of float32, and of the finite tf32 that is nearest; the NaN of PTX."""


@pytest.mark.parametrize("rounding", ["rn", "rz", "rna"])
def test_tf32_is_limited_and_nan_stays_nan(rounding: str) -> None:
    values = np.array(list(TF32), np.uint32).view(np.float32)
    operands = {"%a": ("f32", values)}
    finite, plain = evaluate(
        f"cvt.{rounding}.satfinite.tf32.f32 %d, %a; cvt.{rounding}.tf32.f32 %e, %a;",
        operands,
        {"%d": "b32", "%e": "b32"},
    )
    assert finite.tolist() == list(TF32.values())
    assert plain[3:].tolist() == [0x7F800000, 0xFF800000, 0x7FFFFFFF, 0x7FFFFFFF]
    if rounding != "rna":
        (relu,) = evaluate(f"cvt.{rounding}.relu.tf32.f32 %d, %a;", operands, {"%d": "b32"})
        assert relu[[0, 2, 4, 5]].tolist() == [0x49742000, 0, 0, 0x7FFFFFFF]


def test_relu_of_8_bit_floats() -> None:
    text = "cvt.rn.relu.f16x2.e4m3x2 %d, %a;"
    codes = np.array([0xB8B8, 0x38B8, 0xFF38], np.uint16)  # -1 and -1, 1 and -1, NaN and 1
    (got,) = evaluate(text, {"%a": ("b16", codes)}, {"%d": "b32"})
    assert got.tolist() == [0, 0x3C000000, 0x7FFF3C00]


@pytest.mark.parametrize("kind", ["s64", "u64"])
def test_long_integers_to_float64_toward_zero(kind: str) -> None:
    wholes = [2**53 + 1, 2**53 + 3, 2**63 - 1, 2**62 + 255, 7, 0]
    wholes += [-whole for whole in wholes] if kind == "s64" else [2**64 - 1, 2**64 - 2048]
    dtype = np.int64 if kind == "s64" else np.uint64
    operands = {"%a": ("b64", np.array(wholes, dtype).view(np.uint64))}
    (got,) = evaluate(f"cvt.rz.f64.{kind} %d, %a;", operands, {"%d": "f64"})
    for whole, near in zip(wholes, got, strict=True):
        beyond = np.nextafter(near, np.inf if whole >= 0 else -np.inf)
        assert abs(float(near)) <= abs(whole) < abs(float(beyond))


@pytest.mark.parametrize(
    "text",
    [
        "cvt.rn.satfinite.f32.f64",
        "cvt.rzi.satfinite.s32.f64",
        "cvt.rzi.relu.s32.f64",
        "cvt.rn.relu.f32.f64",
        "cvt.rn.satfinite.f16.f64",
        "cvt.rn.sat.relu.f16.f64",
    ],
)
def test_limits_that_ptx_does_not_have_are_refused(text: str) -> None:
    words = {"f16": "b16", "f32": "f32", "s32": "b32"}
    operands = {"%a": ("f64", np.ones(1))}
    with pytest.raises(PtxError, match=r"satfinite|relu"):
        evaluate(f"{text} %d, %a;", operands, {"%d": words[text.split(".")[-2]]})
