"""``mma.sync`` against products of matrices: which lane holds which element is written as the PTX ISA's tables have it."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.snippet import run
from tests.support.emulator.matrices import DTYPES, values

LANES = range(32)


@dataclass(frozen=True)
class Kind:
    """Types of an instruction, and elements of a 32-bit register of A and B."""

    shape: str
    k: int
    a: str
    b: str
    c: str
    per_register: int


KINDS = [
    Kind("m16n8k16", 16, "bf16", "bf16", "f32", 2),
    Kind("m16n8k16", 16, "f16", "f16", "f32", 2),
    Kind("m16n8k16", 16, "f16", "f16", "f16", 2),
    Kind("m16n8k8", 8, "bf16", "bf16", "f32", 2),
    Kind("m16n8k8", 8, "tf32", "tf32", "f32", 1),
    Kind("m16n8k4", 4, "tf32", "tf32", "f32", 1),
    Kind("m16n8k32", 32, "s8", "s8", "s32", 4),
    Kind("m16n8k32", 32, "u8", "s8", "s32", 4),
    Kind("m16n8k16", 16, "s8", "s8", "s32", 4),
    Kind("m16n8k32", 32, "e4m3", "e5m2", "f32", 4),
]


def registers(elements: torch.Tensor) -> Array:
    """Return [lanes, elements] as [lanes, registers] of 32 bits."""
    raw = elements.contiguous().view(torch.uint8).reshape(32, -1)
    return raw.numpy().view(np.uint32)


def places_a(kind: Kind) -> list[tuple[int, int, int]]:
    """Return (register and element, row from the lane's, column from the lane's) of A, in order."""
    width, result = kind.per_register, list[tuple[int, int, int]]()
    for piece in range(max(1, kind.k // (4 * width))):
        for half in range(2):
            result += [(0, 8 * half, piece * 4 * width + i) for i in range(width)]
    return result


def fragments(kind: Kind, a: torch.Tensor, b: torch.Tensor) -> tuple[Array, Array]:
    width = kind.per_register
    left, right = [], []
    for lane in LANES:
        group, thread = lane // 4, lane % 4
        left.append(
            torch.stack([a[group + row, thread * width + at] for _, row, at in places_a(kind)])
        )
        pieces = range(max(1, kind.k // (4 * width)))
        right.append(
            torch.stack(
                [b[thread * width + i + p * 4 * width, group] for p in pieces for i in range(width)]
            )
        )
    return registers(torch.stack(left)), registers(torch.stack(right))


def accumulators(c: torch.Tensor) -> Array:
    """Return C [16, 8]: lane 4 * row + column / 2 has rows r and r + 8."""
    lanes = [
        torch.stack([c[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] for i in range(4)])
        for lane in LANES
    ]
    return registers(torch.stack(lanes))


def listed(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def transfer(verb: str, place: int, name: str, count: int) -> str:
    """Return loads or stores of a lane's registers, which lie side by side."""
    lines = [
        f"ld.param.u64 %p{place}, [p{place}]; mad.wide.u32 %p{place}, %lane, {4 * count}, %p{place};"
    ]
    for i in range(count):
        address = f"[%p{place}+{4 * i}]"
        pair = f"%{name}{i}, {address}" if verb == "ld" else f"{address}, %{name}{i}"
        lines.append(f"{verb}.global.b32 {pair};")
    return "\n".join(lines)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.shape}-{kind.a}-{kind.b}-{kind.c}")
def test_a_product_of_fragments_is_a_product_of_matrices(kind: Kind) -> None:
    a, b = values((16, kind.k), kind.a, 1), values((kind.k, 8), kind.b, 2)
    c = values((16, 8), kind.c, 3)
    left, right = fragments(kind, a, b)
    third = accumulators(c)
    result = np.zeros_like(third)
    counts = left.shape[1], right.shape[1], third.shape[1]
    opcode = f"mma.sync.aligned.{kind.shape}.row.col.{kind.c}.{kind.a}.{kind.b}.{kind.c}"
    names = ".reg .b32 %lane, %a<4>, %b<4>, %c<4>, %d<4>; .reg .b64 %p<4>; mov.u32 %lane, %laneid;"
    body = "\n".join(
        [
            names,
            *(transfer("ld", i, "abc"[i], counts[i]) for i in range(3)),
            f"{opcode} {listed('d', counts[2])}, {listed('a', counts[0])}, {listed('b', counts[1])}, "
            f"{listed('c', counts[2])};",
            transfer("st", 3, "d", counts[2]),
        ]
    )
    arrays = [np.ascontiguousarray(x) for x in (left, right, third)]
    run(body, [*arrays, result])
    wanted = a.double() @ b.double() + c.double()
    got = torch.from_numpy(result.view(np.uint8)).view(DTYPES[kind.c]).reshape(32, 4).double()
    expected = torch.from_numpy(accumulators(wanted.to(DTYPES[kind.c])).view(np.uint8))
    expected = expected.view(DTYPES[kind.c]).reshape(32, 4).double()
    if kind.c == "s32":
        assert torch.equal(got, expected)
    else:
        tolerance = 4e-3 if kind.c == "f16" else 2e-6
        assert torch.allclose(got, expected, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_go_to_shared_memory_and_back(count: int, transposed: bool) -> None:
    """``ldmatrix``: lane 4 * row + place has elements 2 * place and 2 * place + 1 of a row of each matrix."""
    matrices = np.arange(count * 64, dtype=np.uint16).reshape(count, 8, 8)
    result = np.zeros((32, count), np.uint32)
    again = np.zeros((count, 8, 8), np.uint16)
    turn = ".trans" if transposed else ""
    vector = listed("r", count)
    body = f"""
      .reg .b32 %lane, %at, %to, %r<4>; .reg .b64 %p<4>; .reg .pred %few; .reg .b64 %x, %y;
      .shared .align 16 .b8 tile[512]; .shared .align 16 .b8 other[512];
      mov.u32 %lane, %laneid; mov.u32 %at, tile; mad.lo.u32 %at, %lane, 16, %at;
      mov.u32 %to, other; mad.lo.u32 %to, %lane, 16, %to;
      setp.lt.u32 %few, %lane, {8 * count};
      ld.param.u64 %p0, [p0]; mad.wide.u32 %p0, %lane, 16, %p0;
      @%few ld.global.v2.b64 {{%x, %y}}, [%p0];
      st.shared.v2.b64 [%at], {{%x, %y}};
      bar.warp.sync -1;
      ldmatrix.sync.aligned.m8n8.x{count}{turn}.shared.b16 {vector}, [%at];
      {transfer("st", 1, "r", count)}
      stmatrix.sync.aligned.m8n8.x{count}{turn}.shared.b16 [%to], {vector};
      bar.warp.sync -1;
      ld.shared.v2.b64 {{%x, %y}}, [%to];
      ld.param.u64 %p2, [p2]; mad.wide.u32 %p2, %lane, 16, %p2;
      @%few st.global.v2.b64 [%p2], {{%x, %y}};
    """
    run(body, [matrices, result, again])
    seen = matrices.transpose(0, 2, 1) if transposed else matrices
    wanted = seen.reshape(count, 8, 4, 2)
    got = result.view(np.uint16).reshape(8, 4, count, 2).transpose(2, 0, 1, 3)
    assert np.array_equal(got, wanted)
    assert np.array_equal(again, matrices)


def test_a_matrix_is_transposed_between_lanes() -> None:
    matrix = np.arange(64, dtype=np.uint16).reshape(8, 8)
    result = np.zeros(32, np.uint32)
    body = f"""
      .reg .b32 %lane, %a0, %r0; .reg .b64 %p<2>; mov.u32 %lane, %laneid;
      {transfer("ld", 0, "a", 1)}
      movmatrix.sync.aligned.m8n8.trans.b16 %r0, %a0;
      {transfer("st", 1, "r", 1)}
    """
    run(body, [matrix, result])
    assert np.array_equal(result.view(np.uint16).reshape(8, 8), matrix.T)
