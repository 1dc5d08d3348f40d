"""``tcgen05.mma`` whose operands have a scale for each row, against products of matrices.

Where scales lie in tensor memory is written as the PTX ISA describes it ("Layout of the scale factor A matrix for scale_vec::1X").
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.machine.schedule import EAGER, LATE, WATCHED, Schedule
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.snippet import run
from tests.support.emulator.tensor_products import Product

_STORED = """
  .reg .b32 %s<8>, %a_scales, %b_scales; ld.param.u64 %from, [p3]; mad.wide.u32 %from, %tid, 32, %from;
  ld.global.v4.b32 {%s0, %s1, %s2, %s3}, [%from]; ld.global.v4.b32 {%s4, %s5, %s6, %s7}, [%from+16];
  add.u32 %a_scales, %a_tmem, 0; add.u32 %b_scales, %a_tmem, 4;
  shl.b32 %lanes, %warp, 21; add.u32 %lanes, %lanes, %a_scales;
  tcgen05.st.sync.aligned.32x32b.x8.b32 [%lanes], {%s0, %s1, %s2, %s3, %s4, %s5, %s6, %s7};
  tcgen05.wait::st.sync.aligned; bar.sync 0;
"""
_POWERS_OF_TWO = 1 << 23
_KIND = "kind::mxf8f6f4.block_scale.block32"


@dataclass(frozen=True)
class Scaled:
    """A product with scales: A's lie in four columns behind D, B's behind them.

    Attributes:
        columns: N.
        a: Byte of A's scales.
        b: Byte of B's.
        kind: What the instruction says of itself.
        further: Further bits of the instruction descriptor.
        rows: M.
    """

    columns: int = 64
    a: int = 0
    b: int = 0
    kind: str = _KIND
    further: int = _POWERS_OF_TWO
    rows: int = 128

    @property
    def product(self) -> Product:
        """It without scales."""
        return Product("f8f6f4", "e4m3", "e5m2", 32, rows=self.rows, columns=self.columns)

    @property
    def body(self) -> str:
        """The kernel."""
        types = 1 << 10 | self.b << 4 | self.a << 29 | self.further
        word = types | self.columns // 8 << 17 | self.rows // 16 << 24
        operands = f"%db, {word:#x}, [%a_scales], [%b_scales], %keep;"
        text = re.sub(r"%db, \w+, %keep;", operands, self.product.body)
        multiply = "@%one tcgen05.mma"
        return text.replace(multiply, _STORED + multiply).replace("kind::f8f6f4", self.kind)

    def run(
        self,
        body: str,
        schedule: Schedule,
        powers: tuple[Array, Array],
        spoiled: Array | None = None,
    ) -> torch.Tensor:
        """Run a kernel with some scales, as bytes; return D. What is ``spoiled`` is added to what lies in tensor memory."""
        words = [*_words(powers[0], self.a, 4), *_words(powers[1], self.b, 4)]
        lanes = np.stack(words, 1) if spoiled is None else np.stack(words, 1) + spoiled
        arrays = [*self.product.arrays, np.ascontiguousarray(lanes)]
        run(body, arrays, block=128, target="sm_100a", schedule=schedule)
        return self.product.of(arrays[2])

    def wanted(self, powers: tuple[Array, Array]) -> torch.Tensor:
        """Return the product in float64."""
        factors = [
            torch.from_numpy(np.where(each == 255, np.nan, np.exp2(each.astype(float) - 127)))
            for each in powers
        ]
        rows = [
            each.double() * factor[:, None]
            for each, factor in zip(self.product.operands, factors, strict=True)
        ]
        return rows[0] @ rows[1].T


def _words(powers: Array, byte: int, columns: int) -> list[Array]:
    """Return a number for each lane and column; what the product does not read is all ones."""
    words: list[Array] = []
    for column in range(columns):
        mine = np.full(32, 255, np.uint8)
        part = powers[32 * column : 32 * column + 32]
        mine[: len(part)] = part
        lanes = np.full((32, 4), 255, np.uint8)
        lanes[:, byte] = mine
        words.append(np.tile(lanes.view(np.uint32)[:, 0], 4))
    return words


def powers_of(product: Scaled) -> tuple[Array, Array]:
    """Return exponents, one of which is no number."""
    random = np.random.default_rng(3)
    a, b = (random.integers(120, 135, rows) for rows in (product.rows, product.columns))
    b[5] = 255
    return a.astype(np.uint32), b.astype(np.uint32)


PLAIN = Scaled()


@pytest.mark.parametrize(
    "product",
    [
        PLAIN,
        Scaled(columns=32, a=2, b=1),
        Scaled(columns=96, a=1, b=3, kind="kind::mxf8f6f4.block_scale.scale_vec::1X"),
        Scaled(columns=128, a=3, b=2),
    ],
)
@pytest.mark.parametrize("schedule", [EAGER, LATE, WATCHED], ids=str)
def test_each_row_is_multiplied_by_its_scale(product: Scaled, schedule: Schedule) -> None:
    powers = powers_of(product)
    got = product.run(product.body, schedule, powers)
    wanted = product.wanted(powers)
    assert wanted[:, 5].isnan().all()
    assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-4, equal_nan=True)


def test_exponents_of_all_sizes() -> None:
    """The smallest and the largest of one operand meet those of the other: products from 0 to infinity."""
    powers = np.array([0, 1, 63, 126, 127, 128, 191, 253, 254, 255], np.uint32)
    a, b = (np.resize(powers, rows) for rows in (PLAIN.rows, PLAIN.columns))
    got = PLAIN.run(PLAIN.body, EAGER, (a, b))
    wanted = PLAIN.wanted((a, b)).float().double()
    assert wanted.isinf().any()
    assert wanted.isnan().any()
    assert (wanted == 0).any()
    smallest = np.finfo(np.float32).smallest_normal
    assert torch.allclose(got.double(), wanted, rtol=1e-5, atol=float(smallest), equal_nan=True)


def test_the_byte_may_be_named_in_the_address_too() -> None:
    """As CUTLASS does."""
    product = Scaled(columns=32, a=2, b=1)
    named = product.body.replace("%a_tmem, 0;", "%a_tmem, 0x80000000;")
    named = named.replace("add.u32 %lanes, %lanes, %a_scales;", "add.u32 %lanes, %lanes, %a_tmem;")
    named = named.replace("%a_tmem, 4;", "%a_tmem, 0x40000004;")
    powers = powers_of(product)
    plain = product.run(product.body, EAGER, powers)
    assert torch.equal(product.run(named, EAGER, powers).nan_to_num(), plain.nan_to_num())
    other = named.replace("0x40000004", "0xc0000004")
    with pytest.raises(UnmodelledError, match="scales in byte 1, and with an address of byte 3"):
        product.run(other, EAGER, powers)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("%a_tmem, 4;", "%a_tmem, 63;", "columns 127 to 128 of tensor memory are used"),
        ("tcgen05.wait::st.sync.aligned; bar", "bar", "no barrier and no tcgen05.wait orders"),
        (
            "st.sync.aligned; bar.sync 0;",
            "st.sync.aligned;",
            "reads, by a tcgen05.mma, column 64 of",
        ),
    ],
)
def test_scales_are_read_from_tensor_memory_in_order(old: str, new: str, reason: str) -> None:
    assert old in PLAIN.body
    with pytest.raises(FaultError, match="PTX line") as caught:
        PLAIN.run(PLAIN.body.replace(old, new), WATCHED, powers_of(PLAIN))
    assert reason in str(caught.value)


def test_the_four_copies_are_the_same() -> None:
    spoiled = np.zeros((128, 8), np.uint32)
    spoiled[64 + 5, 1] = 1  # the third copy, of row 37 of A
    with pytest.raises(FaultError, match="the four copies of the scale of row 37 differ"):
        PLAIN.run(PLAIN.body, EAGER, powers_of(PLAIN), spoiled)
    spoiled[64 + 5, 1] = 1 << 8  # a byte that the product does not read
    assert PLAIN.run(PLAIN.body, EAGER, powers_of(PLAIN), spoiled)[37, 0].isfinite()


@pytest.mark.parametrize(
    ("product", "changed", "reason"),
    [
        (Scaled(further=0), "", "tcgen05.mma with scales, of 128 rows, and with"),
        (Scaled(rows=64), "", "tcgen05.mma with scales, of 64 rows"),
        (Scaled(further=_POWERS_OF_TWO | 1 << 31), "", "of kind mxf8f6f4 with instruction"),
        (Scaled(further=_POWERS_OF_TWO | 5 << 7), "", "of kind mxf8f6f4 with instruction"),
        (PLAIN, "%a_tmem, 0x100004;", "scales of tcgen05.mma from lane 16 on"),
    ],
)
def test_what_is_not_known_is_refused(product: Scaled, changed: str, reason: str) -> None:
    body = product.body.replace("%a_tmem, 4;", changed or "%a_tmem, 4;")
    with pytest.raises(UnmodelledError, match=reason):
        product.run(body, EAGER, powers_of(product))


@pytest.mark.parametrize("kind", ["kind::f8f6f4.block_scale.block32", "kind::mxf8f6f4"])
def test_this_kind_has_scales_and_no_other(kind: str) -> None:
    product = Scaled(kind=kind)
    with pytest.raises(PtxError, match="mxf8f6f4 has scales, and no other kind"):
        product.run(product.body, EAGER, powers_of(product))


def test_other_scales_are_refused_by_name() -> None:
    other = Scaled(kind="kind::mxf4nvf4.block_scale.block16")
    with pytest.raises(PtxError, match="kind::mxf4nvf4"):
        other.run(other.body, EAGER, powers_of(other))
