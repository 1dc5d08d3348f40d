"""Integer instructions against Python's integers, with the edges of each type."""

# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.snippet import evaluate

EDGES = [
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    33,
    63,
    64,
    0x7F,
    0x80,
    0x55555555,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
]


def edges(bits: int) -> list[int]:
    """Return edge values of a width, as unsigned numbers."""
    top = 1 << (bits - 1)
    listed = {
        *(value for value in EDGES if value < 2 * top),
        top - 1,
        top,
        2 * top - 1,
        2 * top - 2,
    }
    return sorted(listed)


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def compare(
    text: str, bits: int, count: int, expected: Callable[..., int], result: int = 0
) -> None:
    """Compare an instruction with ``count`` operands of some bits on all combinations of edges."""
    result = result or bits
    values = edges(bits)
    if count == 3:
        values = values[::2]
    rows = list(itertools.product(values, repeat=count))
    operands = {
        f"%{name}": (f"b{bits}", np.array([row[i] for row in rows], f"uint{bits}"))
        for i, name in enumerate("abc"[:count])
    }
    (got,) = evaluate(text, operands, {"%d": f"b{result}"})
    wanted = [expected(*row) % (1 << result) for row in rows]
    wrong = [(row, g, w) for row, g, w in zip(rows, got.tolist(), wanted, strict=True) if g != w]
    assert wrong[:3] == []


def s32(function: Callable[..., int]) -> Callable[..., int]:
    return lambda *values: function(*(signed(value, 32) for value in values))


def s64(function: Callable[..., int]) -> Callable[..., int]:
    return lambda *values: function(*(signed(value, 64) for value in values))


def truncated(a: int, b: int) -> int:
    """Divide toward zero; all ones for a division by zero."""
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def clamp(value: int) -> int:
    return max(-(2**31), min(2**31 - 1, value))


@pytest.mark.parametrize(
    ("text", "bits", "expected"),
    [
        ("add.s32 %d, %a, %b;", 32, lambda a, b: a + b),
        ("sub.s64 %d, %a, %b;", 64, lambda a, b: a - b),
        ("add.sat.s32 %d, %a, %b;", 32, s32(lambda a, b: clamp(a + b))),
        ("sub.sat.s32 %d, %a, %b;", 32, s32(lambda a, b: clamp(a - b))),
        ("mul.lo.s32 %d, %a, %b;", 32, lambda a, b: a * b),
        ("mul.hi.u32 %d, %a, %b;", 32, lambda a, b: a * b >> 32),
        ("mul.hi.s32 %d, %a, %b;", 32, s32(lambda a, b: a * b >> 32)),
        ("mul.hi.u64 %d, %a, %b;", 64, lambda a, b: a * b >> 64),
        ("mul.hi.s64 %d, %a, %b;", 64, s64(lambda a, b: a * b >> 64)),
        ("div.u32 %d, %a, %b;", 32, lambda a, b: a // b if b else -1),
        ("div.s32 %d, %a, %b;", 32, s32(truncated)),
        ("rem.s64 %d, %a, %b;", 64, s64(lambda a, b: a - b * truncated(a, b))),
        ("rem.u32 %d, %a, %b;", 32, lambda a, b: a % b if b else a),
        ("min.s32 %d, %a, %b;", 32, s32(min)),
        ("max.u64 %d, %a, %b;", 64, max),
        ("max.s16x2 %d, %a, %b;", 32, lambda a, b: pairwise(a, b, max)),
        ("max.relu.s16x2 %d, %a, %b;", 32, lambda a, b: pairwise(a, b, lambda x, y: max(x, y, 0))),
        ("min.relu.s32 %d, %a, %b;", 32, s32(lambda a, b: max(min(a, b), 0))),
        ("and.b32 %d, %a, %b;", 32, lambda a, b: a & b),
        ("xor.b64 %d, %a, %b;", 64, lambda a, b: a ^ b),
        ("shl.b32 %d, %a, %b;", 32, lambda a, b: a << b if b < 32 else 0),
        ("shr.u32 %d, %a, %b;", 32, lambda a, b: a >> b if b < 32 else 0),
        ("shr.s32 %d, %a, %b;", 32, lambda a, b: signed(a, 32) >> min(b, 31)),
    ],
)
def test_two_operands(text: str, bits: int, expected: Callable[..., int]) -> None:
    compare(text, bits, 2, expected)


def pairwise(a: int, b: int, function: Callable[..., int]) -> int:
    low, high = (
        function(signed(a >> shift & 0xFFFF, 16), signed(b >> shift & 0xFFFF, 16)) & 0xFFFF
        for shift in (0, 16)
    )
    return high << 16 | low


def field(a: int, start: int, length: int) -> int:
    """``bfe.s32`` as the PTX ISA describes it, bit by bit."""
    start, length = start & 0xFF, length & 0xFF
    sign = a >> min(start + length - 1, 31) & 1 if length else 0
    bits = [a >> (start + i) & 1 if i < length and start + i < 32 else sign for i in range(32)]
    return sum(bit << i for i, bit in enumerate(bits))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mad.lo.s32 %d, %a, %b, %c;", lambda a, b, c: a * b + c),
        ("mad.hi.s32 %d, %a, %b, %c;", lambda a, b, c: (signed(a, 32) * signed(b, 32) >> 32) + c),
        ("mad.hi.sat.s32 %d, %a, %b, %c;", s32(lambda a, b, c: clamp((a * b >> 32) + c))),
        ("sad.s32 %d, %a, %b, %c;", lambda a, b, c: c + abs(signed(a, 32) - signed(b, 32))),
        ("lop3.b32 %d, %a, %b, %c, 0xCA;", lambda a, b, c: a & b | ~a & c),
        ("bfe.s32 %d, %a, %b, %c;", field),
        (
            "bfe.u32 %d, %a, %b, %c;",
            lambda a, b, c: a >> (b & 0xFF) & ((1 << (c & 0xFF)) - 1),
        ),
        (
            "shf.l.wrap.b32 %d, %a, %b, %c;",
            lambda a, b, c: (b << 32 | a) << (c & 31) >> 32,
        ),
        ("shf.r.clamp.b32 %d, %a, %b, %c;", lambda a, b, c: (b << 32 | a) >> min(c, 32)),
        ("dp4a.s32.u32 %d, %a, %b, %c;", lambda a, b, c: dot(a, b, c)),
    ],
)
def test_three_operands(text: str, expected: Callable[..., int]) -> None:
    compare(text, 32, 3, expected)


@pytest.mark.parametrize(
    "text",
    [
        "mad.lo.sat.s32 %d, %a, %b, %c",
        "mad.hi.sat.u32 %d, %a, %b, %c",
        "mul.hi.sat.s32 %d, %a, %b",
        "add.cc.sat.u32 %d, %a, %b",
        "add.sat.u32 %d, %a, %b",
        "add.sat.s16x2 %d, %a, %b",
        "add.relu.s32 %d, %a, %b",
        "min.sat.s32 %d, %a, %b",
    ],
)
def test_limits_that_ptx_does_not_have_are_refused(text: str) -> None:
    with pytest.raises(PtxError, match=r"PTX line .*(sat|relu)"):
        compare(f"{text};", 32, 3, lambda a, b, c: 0)


def dot(a: int, b: int, c: int) -> int:
    return c + sum(signed(a >> shift & 0xFF, 8) * (b >> shift & 0xFF) for shift in (0, 8, 16, 24))


@pytest.mark.parametrize(
    ("text", "bits", "expected"),
    [
        ("not.b32 %d, %a;", 32, lambda a: ~a),
        ("cnot.b32 %d, %a;", 32, lambda a: int(a == 0)),
        ("neg.s64 %d, %a;", 64, lambda a: -a),
        ("abs.s32 %d, %a;", 32, lambda a: abs(signed(a, 32))),
        ("brev.b32 %d, %a;", 32, lambda a: int(f"{a:032b}"[::-1], 2)),
        ("brev.b64 %d, %a;", 64, lambda a: int(f"{a:064b}"[::-1], 2)),
        ("prmt.b32 %d, %a, 0x11223344, 0x7654;", 32, lambda a: 0x11223344),
        (
            "prmt.b32 %d, %a, 0, 0xBA98;",
            32,
            lambda a: sum(255 << s for s in (0, 8, 16, 24) if a >> s & 0x80),
        ),
        ("bfi.b32 %d, %a, 0x123FFF78, 8, 12;", 32, lambda a: 0x12300078 | (a & 0xFFF) << 8),
    ],
)
def test_one_operand(text: str, bits: int, expected: Callable[..., int]) -> None:
    compare(text, bits, 1, expected)


@pytest.mark.parametrize("bits", [32, 64])
def test_counts_of_bits(bits: int) -> None:
    compare(f"popc.b{bits} %d, %a;", bits, 1, lambda a: a.bit_count(), 32)
    compare(f"clz.b{bits} %d, %a;", bits, 1, lambda a: bits - a.bit_length(), 32)
    compare(f"bfind.u{bits} %d, %a;", bits, 1, lambda a: a.bit_length() - 1, 32)

    def leading(a: int) -> int:
        value = signed(a, bits)
        return (~value if value < 0 else value).bit_length() - 1

    compare(f"bfind.s{bits} %d, %a;", bits, 1, leading, 32)


def test_wide_products_and_carries() -> None:
    compare("mul.wide.s32 %d, %a, %b;", 32, 2, s32(lambda a, b: a * b), 64)
    compare("mad.wide.u32 %d, %a, %b, 1;", 32, 2, lambda a, b: a * b + 1, 64)
    halves = """
      .reg .b32 %l<2>; .reg .b32 %h<2>; .reg .b32 %r<2>;
      mov.b64 {%l0, %h0}, %a; mov.b64 {%l1, %h1}, %b;
    """
    adding = f"{halves} add.cc.u32 %r0, %l0, %l1; addc.u32 %r1, %h0, %h1; mov.b64 %d, {{%r0, %r1}};"
    compare(adding, 64, 2, lambda a, b: a + b)
    taking = f"{halves} sub.cc.u32 %r0, %l0, %l1; subc.u32 %r1, %h0, %h1; mov.b64 %d, {{%r0, %r1}};"
    compare(taking, 64, 2, lambda a, b: a - b)
    both = f"{halves} mad.lo.cc.u32 %r0, %l0, %l1, %h0; madc.hi.u32 %r1, %l0, %l1, 0; mov.b64 %d, {{%r0, %r1}};"
    low = 0xFFFFFFFF
    compare(both, 64, 2, lambda a, b: (a & low) * (b & low) + (a >> 32))


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
def test_comparisons_and_selections(kind: str) -> None:
    bits = int(kind[1:])
    view: Callable[[int], int] = (lambda x: signed(x, bits)) if kind[0] == "s" else (lambda x: x)
    for name, holds in {
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "lt": lambda a, b: a < b,
        "ge": lambda a, b: a >= b,
    }.items():
        text = f".reg .pred %p; setp.{name}.{kind} %p, %a, %b; selp.b{bits} %d, %a, %b, %p;"
        compare(text, bits, 2, lambda a, b, holds=holds: a if holds(view(a), view(b)) else b)


def test_two_predicates_and_a_third() -> None:
    text = """
      .reg .pred %p<4>; .reg .b32 %x; .reg .b32 %y;
      setp.gt.u32 %p3, %a, 7;
      setp.lt.and.u32 %p0|%p1, %a, %b, !%p3;
      selp.u32 %x, 1, 0, %p0; selp.u32 %y, 2, 0, %p1; or.b32 %d, %x, %y;
    """

    def expected(a: int, b: int) -> int:
        return (a < b and a <= 7) + 2 * (not a < b and a <= 7)

    compare(text, 32, 2, expected)


def test_lanes_outside_of_the_guard_keep_their_value() -> None:
    text = """
      .reg .pred %p; mov.b32 %d, 77; setp.lt.u32 %p, %a, %b;
      @%p add.u32 %d, %a, %b; @!%p sub.u32 %d, %d, 7;
    """
    compare(text, 32, 2, lambda a, b: a + b if a < b else 70)


def test_narrow_integers_keep_their_sign_in_wider_registers() -> None:
    values: Array = np.arange(65536, dtype=np.uint16)
    text = """
      .reg .b32 %w; cvt.s32.s16 %d, %a; cvt.u32.u16 %e, %a; cvt.s32.s8 %f, %a; cvt.sat.s8.s32 %w, %d;
      mov.b32 %g, %w;
    """
    d, e, f, g = evaluate(
        text, {"%a": ("b16", values)}, dict.fromkeys(("%d", "%e", "%f", "%g"), "b32")
    )
    short = values.view(np.int16).astype(np.int32)
    assert np.array_equal(d.view(np.int32), short)
    assert np.array_equal(e, values.astype(np.uint32))
    assert np.array_equal(f.view(np.int32), values.astype(np.uint8).view(np.int8).astype(np.int32))
    assert np.array_equal(g.view(np.int32), short.clip(-128, 127))
