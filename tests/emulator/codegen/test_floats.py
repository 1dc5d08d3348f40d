"""Float instructions: rounded once, and NaN, infinities and signed zeros as the PTX ISA says."""

# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.snippet import evaluate

SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1e-38,
        3.4028235e38,
        0.5,
        1.5,
        2.5,
    ],
    np.float32,
)


def pairs() -> tuple[Array, Array]:
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    return a.reshape(-1), b.reshape(-1)


def binary(text: str, a: Array, b: Array) -> Array:
    (got,) = evaluate(text, {"%a": ("f32", a), "%b": ("f32", b)}, {"%d": "f32"})
    return got


def rounded(value: Fraction) -> np.float32:
    """Return an exact number as float32: to the nearest, ties to even."""
    near = np.float32(float(value))
    around = [np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf)]
    candidates = [near, *around]

    def rank(candidate: np.float32) -> tuple[Fraction, int]:
        return abs(Fraction(float(candidate)) - value), int(candidate.view(np.uint32)) & 1

    return min((each for each in candidates if math.isfinite(each)), key=rank)


def hard_operands() -> tuple[Array, Array, Array]:
    """Return operands of a fused multiply-add, many of which are near a tie of float32."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(3000).astype(np.float32) for _ in range(2))
    c = random.standard_normal(3000).astype(np.float32)
    # The sum is near half a step of c: the product is 2^-24 of c and a little.
    a[:1000] = 1 + random.integers(0, 1 << 12, 1000) * np.float32(2**-23)
    b[:1000] = np.float32(2**-24) * (1 + random.integers(-2, 3, 1000) * np.float32(2**-23))
    c[:1000] = 1 + random.integers(0, 1 << 22, 1000) * np.float32(2**-23)
    # The sum is subnormal.
    a[1000:1500] *= np.float32(2**-70)
    b[1000:1500] *= np.float32(2**-70)
    c[1000:1500] *= np.float32(2**-130)
    return a, b, c


def test_a_fused_multiply_add_rounds_once() -> None:
    a, b, c = hard_operands()
    operands = {"%a": ("f32", a), "%b": ("f32", b), "%c": ("f32", c)}
    (got,) = evaluate("fma.rn.f32 %d, %a, %b, %c;", operands, {"%d": "f32"})
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    wanted = np.array([rounded(value) for value in exact], np.float32)
    assert np.array_equal(got, wanted)
    # Two roundings, in float64 and then in float32, give other bits for some of these.
    twice = (a.astype(np.float64) * b + c).astype(np.float32)
    assert not np.array_equal(twice, wanted)


@pytest.mark.parametrize("rounding", ["rm", "rp", "rz"])
def test_a_fused_multiply_add_rounds_in_the_direction_it_names(rounding: str) -> None:
    a, b, c = hard_operands()
    c[:200] = -a[:200] * np.float32(0.5)  # these cancel
    b[:200] = 0.5
    operands = {"%a": ("f32", a), "%b": ("f32", b), "%c": ("f32", c)}
    (got,) = evaluate(f"fma.{rounding}.f32 %d, %a, %b, %c;", operands, {"%d": "f32"})
    for x, y, z, value in zip(a, b, c, np.asarray(got, np.float32), strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        down = rounding == "rm" or (rounding == "rz" and exact > 0)
        side = np.float32(np.inf if down else -np.inf)
        beyond = Fraction(float(np.nextafter(value, side)))
        if exact == 0:
            assert value == 0
            assert np.signbit(value) == (rounding == "rm")
        elif down:
            assert Fraction(float(value)) <= exact < beyond
        else:
            assert beyond < exact <= Fraction(float(value))


def test_a_sum_beyond_the_largest_number_is_the_largest_where_it_is_rounded_down() -> None:
    most = float(np.finfo(np.float32).max)
    a, b = np.array([most, -most], np.float32), np.array([most, most], np.float32)
    operands = {"%a": ("f32", a), "%b": ("f32", b), "%c": ("f32", a)}
    wanted = {"rm": [most, -np.inf], "rp": [np.inf, -most], "rz": [most, -most]}
    for rounding, numbers in wanted.items():
        (got,) = evaluate(f"fma.{rounding}.f32 %d, %a, %b, %c;", operands, {"%d": "f32"})
        assert got.tolist() == numbers, rounding


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_fused_multiply_add_of_halves_rounds_once(kind: str) -> None:
    dtype = torch.float16 if kind == "f16" else torch.bfloat16
    random = torch.Generator().manual_seed(1)
    a, b, c = (torch.randn(4000, generator=random).to(dtype) for _ in range(3))
    c[::2] *= 2**-9
    words = [x.view(torch.int16).numpy().view(np.uint16) for x in (a, b, c)]
    operands = {f"%{name}": ("b16", word) for name, word in zip("abc", words, strict=True)}
    (got,) = evaluate(f"fma.rn.{kind} %d, %a, %b, %c;", operands, {"%d": "b16"})
    # The exact sum of these has less than 64 bits: rounded to float64 to odd, then as torch rounds it.
    wide = np.longdouble
    exact = a.double().numpy().astype(wide) * b.double().numpy() + c.double().numpy()
    near = exact.astype(np.float64)
    sticky = np.where(
        near == exact, near, np.nextafter(near, np.where(exact > near, np.inf, -np.inf))
    )
    even = (near.view(np.uint64) & 1) == 0
    odd = torch.from_numpy(np.where((near != exact) & even, sticky, near))
    wanted = rounded_half(odd, kind)
    assert np.array_equal(got, wanted.view(torch.int16).numpy().view(np.uint16))


def rounded_half(values: torch.Tensor, kind: str) -> torch.Tensor:
    """Return float64 as halves, rounded once; torch goes through float32, but for float16 numpy does not."""
    if kind == "f16":
        return torch.from_numpy(values.numpy().astype(np.float16))
    near = values.float()
    inexact = near.double() != values
    bits = near.view(torch.int32)
    outward = values.abs() > near.double().abs()
    even = (bits & 1) == 0
    bits = torch.where(inexact & even, torch.where(outward, bits + 1, bits - 1), bits)
    return bits.view(torch.float32).to(torch.bfloat16)


def test_sums_of_halves_are_those_of_torch() -> None:
    random = torch.Generator().manual_seed(2)
    for kind, dtype in (("bf16x2", torch.bfloat16), ("f16x2", torch.float16)):
        a, b = (torch.randn(2000, generator=random).to(dtype) for _ in range(2))
        x, y = (t.view(torch.int16).numpy().view(np.uint32) for t in (a, b))
        for name, wanted in (("add", a + b), ("mul", a * b), ("max", torch.maximum(a, b))):
            rounding = "" if name == "max" else ".rn" if "b" in kind else ""
            text = f"{name}{rounding}.{kind} %d, %a, %b;"
            (got,) = evaluate(text, {"%a": ("b32", x), "%b": ("b32", y)}, {"%d": "b32"})
            assert np.array_equal(got.view(np.int16), wanted.view(torch.int16).numpy()), text


def test_sums_of_a_half_and_a_float_are_those_of_floats() -> None:
    """Of sm_100: the first operands have 16 bits, the last one and the result are float32."""
    random = torch.Generator().manual_seed(3)
    for kind, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        a, b = (torch.randn(500, generator=random).to(dtype) for _ in range(2))
        c = torch.randn(500, generator=random)
        x, y = (t.view(torch.int16).numpy().view(np.uint16) for t in (a, b))
        operands = {"%a": ("b16", x), "%b": ("b16", y), "%c": ("f32", c.numpy())}
        exact = (a.double() * b.double() + c.double()).float()  # a product of two halves is exact
        for text, wanted in (
            (f"add.rn.f32.{kind} %d, %a, %c;", a.float() + c),
            (f"sub.rn.f32.{kind} %d, %a, %c;", a.float() - c),
            (f"add.sat.f32.{kind} %d, %a, %c;", (a.float() + c).clamp(0, 1)),
            (f"fma.rn.f32.{kind} %d, %a, %b, %c;", exact),
        ):
            (got,) = evaluate(text, operands, {"%d": "f32"})
            assert np.array_equal(got, wanted.numpy()), text


@pytest.mark.parametrize(
    "text", ["add.relu.f32", "max.sat.f32", "add.sat.f32x2", "fma.rn.relu.f32x2"]
)
def test_limits_that_are_not_there_are_refused(text: str) -> None:
    kind, values = ("b64", np.ones(4)) if "x2" in text else ("f32", SPECIAL)
    operands: dict[str, tuple[str, Array]] = {"%a": (kind, values), "%b": (kind, values)}
    operands["%c"] = operands["%a"]
    third = ", %c" if "fma" in text else ""
    with pytest.raises(PtxError, match=r"PTX line .*(sat|relu|limits)"):
        evaluate(f"{text} %d, %a, %b{third};", operands, {"%d": kind})


@pytest.mark.parametrize("text", ["add.f64.f32", "mul.rn.f32.f16", "max.f32.f16", "add.rm.f32.f16"])
def test_other_types_together_are_refused(text: str) -> None:
    operands = {"%a": ("f32", SPECIAL), "%b": ("f32", SPECIAL)}
    with pytest.raises(PtxError, match=text.replace(".", r"\.")):
        evaluate(f"{text} %d, %a, %b;", operands, {"%d": "f32"})


def test_the_smaller_and_the_larger_of_two_floats() -> None:
    a, b = pairs()
    smaller, larger = binary("min.f32 %d, %a, %b;", a, b), binary("max.f32 %d, %a, %b;", a, b)
    for x, y, low, high in zip(a, b, smaller, larger, strict=True):
        if math.isnan(x) or math.isnan(y):
            other = y if math.isnan(x) else x
            assert same(low, other)
            assert same(high, other)
        else:
            ordered = sorted((float(x), float(y)), key=lambda v: (v, math.copysign(1, v)))
            assert same(low, ordered[0])
            assert same(high, ordered[1])


_BITS = {"f32": (0x80000000, 0x7F800000, 0x7FFFFFFF), "f16": (0x8000, 0x7C00, 0x7FFF)}
_BITS["bf16"] = (0x8000, 0x7F80, 0x7FFF)
"""The bits of -0, infinity, and the NaN that instructions make."""


@pytest.mark.parametrize("kind", _BITS)
@pytest.mark.parametrize("name", ["min", "max"])
def test_nan_wins_with_its_word_and_zeros_have_an_order(name: str, kind: str) -> None:
    negative, infinite, canonical = _BITS[kind]
    nans = [infinite + 1, infinite + 5, negative + infinite + 5, canonical]
    numbers = [0, negative, infinite, negative + infinite, 1, negative + 1]
    width = "b32" if kind == "f32" else "b16"
    grid = np.meshgrid(*[np.array([*numbers, *nans], f"uint{width[1:]}")] * 2)
    a, b = (each.reshape(-1) for each in grid)
    text = f"{name}.{kind} %d, %a, %b; {name}.NaN.{kind} %e, %a, %b;"
    operands = {"%a": (width, a), "%b": (width, b)}
    plain, strict = evaluate(text, operands, {"%d": width, "%e": width})

    def rank(bits: int) -> int:
        return ~(bits & ~negative) if bits & negative else bits

    for x, y, got, with_nan in zip(a.tolist(), b.tolist(), plain, strict, strict=True):
        left = [each for each in (x, y) if each not in nans]
        wanted = (min if name == "min" else max)(left, key=rank) if left else canonical
        assert got == wanted, (hex(x), hex(y))
        assert with_nan == (wanted if len(left) == 2 else canonical), (hex(x), hex(y))
    if kind != "f32":
        operands = {register: ("b32", x.view(np.uint32)) for register, x in (("%a", a), ("%b", b))}
        (both,) = evaluate(f"{name}.NaN.{kind}x2 %d, %a, %b;", operands, {"%d": "b32"})
        assert both.view(np.uint16).tolist() == strict.tolist()


def same(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b and math.copysign(1, a) == math.copysign(1, b)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_a_comparison_with_nan_is_false_unless_it_is_unordered(name: str) -> None:
    a, b = pairs()
    ordered = {
        "eq": a == b,
        "ne": (a != b) & ~np.isnan(a) & ~np.isnan(b),
        "lt": a < b,
        "le": a <= b,
        "gt": a > b,
        "ge": a >= b,
    }[name]
    unordered = np.isnan(a) | np.isnan(b)
    for suffix, wanted in (("", ordered), ("u", ordered | unordered)):
        text = f".reg .pred %p; setp.{name}{suffix}.f32 %p, %a, %b; selp.f32 %d, 0f3F800000, 0f00000000, %p;"
        assert np.array_equal(binary(text, a, b) == 1, wanted), text


def some_halves(kind: str) -> tuple[Array, Array, Array, Array]:
    """Return pairs of halves in a register, and the float32 of each half: all pairs of `SPECIAL` and some numbers."""
    dtype = torch.float16 if kind == "f16" else torch.bfloat16
    low = torch.from_numpy(np.concatenate([pairs()[0], np.linspace(-1, 1, 60, dtype=np.float32)]))
    high = torch.from_numpy(np.concatenate([pairs()[1], np.ones(60, np.float32)])).flip(0)
    words = [x.to(dtype).view(torch.int16).numpy().view(np.uint16) for x in (low, high)]
    wide = [x.to(dtype).float().numpy() for x in (low, high)]
    return words[1].astype(np.uint32) << 16 | words[0], words[0], wide[0], wide[1]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("name", "compared"), [("lt", np.less), ("neu", np.not_equal)])
def test_two_halves_in_a_register_are_compared_each(
    kind: str, name: str, compared: np.ufunc
) -> None:
    a, _, low, high = some_halves(kind)
    b = np.roll(a, 7)
    operands = {"%a": ("b32", a), "%b": ("b32", b)}
    text = f"""
      .reg .pred %p, %q, %c, %s, %t; setp.{name}.{kind}x2 %p|%q, %a, %b;
      selp.b32 %d, 1, 0, %p; @%q add.u32 %d, %d, 2;
      setp.gt.u32 %c, %a, %b; setp.{name}.and.{kind}x2 %s|%t, %a, %b, !%c;
      selp.b32 %e, 1, 0, %s; @%t add.u32 %e, %e, 2;
      set.{name}.{kind}x2.{kind}x2 %f, %a, %b; set.{name}.u32.{kind}x2 %g, %a, %b;
    """
    d, e, f, g = evaluate(text, operands, dict.fromkeys(("%d", "%e", "%f", "%g"), "b32"))
    lower, upper = (compared(x, np.roll(x, 7)).astype(np.uint32) for x in (low, high))
    assert 0 < lower.sum() < len(lower)
    assert not np.array_equal(lower, upper)
    assert np.array_equal(d, lower + 2 * upper)
    assert np.array_equal(e, np.where(a > b, 0, lower + 2 * upper))
    true = {"f16": 0x3C00, "bf16": 0x3F80}[kind]
    assert np.array_equal(f, upper * true << 16 | lower * true)
    assert np.array_equal(g, upper * 0xFFFF << 16 | lower * 0xFFFF)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_comparison_is_written_in_the_type_of_its_result(kind: str) -> None:
    _, words, values, _ = some_halves(kind)
    results = {"f16": "b16", "bf16": "b16", "u16": "b16", "u32": "b32", "s32": "b32", "f32": "b32"}
    bits = dict(
        zip(results, (0x3C00, 0x3F80, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0x3F800000), strict=True)
    )
    operands = {"%a": ("b16", words), "%b": ("b16", np.roll(words, 7))}
    for result, register in results.items():
        text = f"set.ge.{result}.{kind} %d, %a, %b;"
        (got,) = evaluate(text, operands, {"%d": register})
        assert np.array_equal(got, np.where(values >= np.roll(values, 7), bits[result], 0)), text
    with pytest.raises(PtxError, match="a result of f64"):
        evaluate(f"set.ge.f64.{kind} %d, %a, %b;", operands, {"%d": "f64"})


def test_nan_and_numbers_differ() -> None:
    a, b = pairs()
    text = ".reg .pred %p; setp.nan.f32 %p, %a, %b; selp.f32 %d, 0f3F800000, 0f00000000, %p;"
    assert np.array_equal(binary(text, a, b) == 1, np.isnan(a) | np.isnan(b))
    text = ".reg .pred %p; testp.subnormal.f32 %p, %a; selp.f32 %d, 0f3F800000, 0f00000000, %p;"
    assert np.array_equal(binary(text, a, b) == 1, (a != 0) & (np.abs(a) < 1.2e-38))


def test_saturation_and_relu() -> None:
    a, b = pairs()
    limited = binary("add.sat.f32 %d, %a, %b;", a, b)
    with np.errstate(all="ignore"):
        total = a + b
    assert np.array_equal(limited, np.where(np.isnan(total), 0, np.clip(total, 0, 1)))
    with np.errstate(all="ignore"):
        halves = SPECIAL.astype(np.float16)
    words = halves.view(np.uint16)
    (got,) = evaluate(
        "fma.rn.relu.f16 %d, %a, 0x3C00, 0x0000;", {"%a": ("b16", words)}, {"%d": "b16"}
    )
    assert np.array_equal(got.view(np.float16), np.maximum(halves, 0), equal_nan=True)


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("rcp.approx.ftz.f32 %d, %a;", lambda x: 1 / x),
        ("sqrt.rn.f32 %d, %a;", np.sqrt),
        ("rsqrt.approx.f32 %d, %a;", lambda x: 1 / np.sqrt(x)),
        ("ex2.approx.ftz.f32 %d, %a;", np.exp2),
        ("lg2.approx.f32 %d, %a;", np.log2),
        ("tanh.approx.f32 %d, %a;", np.tanh),
        ("sin.approx.f32 %d, %a;", np.sin),
    ],
)
def test_functions_are_within_what_approximations_promise(text: str, function: object) -> None:
    assert callable(function)
    values = np.concatenate([np.linspace(0.01, 8, 500, dtype=np.float32), SPECIAL])
    (got,) = evaluate(text, {"%a": ("f32", values)}, {"%d": "f32"})
    with np.errstate(all="ignore"):
        wanted: Array = np.asarray(function(values.astype(np.float64)))
    finite = np.isfinite(wanted) & (np.abs(wanted) < 3e38)
    assert np.allclose(got[finite], wanted[finite], rtol=1e-6, atol=1e-6)
    assert np.array_equal(np.isnan(got), np.isnan(wanted))


def test_two_floats_in_a_register() -> None:
    values = np.random.default_rng(3).standard_normal((3, 600)).astype(np.float32)
    operands = {
        f"%{name}": ("b64", row.view(np.uint64)) for name, row in zip("abc", values, strict=True)
    }
    (got,) = evaluate("fma.rn.f32x2 %d, %a, %b, %c;", operands, {"%d": "b64"})
    (actual,) = evaluate(
        "fma.rn.f32 %d, %a, %b, %c;",
        {f"%{name}": ("f32", row) for name, row in zip("abc", values, strict=True)},
        {"%d": "f32"},
    )
    assert np.array_equal(got.view(np.float32), actual)
