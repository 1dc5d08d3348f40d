"""``tcgen05.mma`` against products of matrices, and the rules of tensor memory.

Where elements lie in shared memory is written in `test_wgmma`, as the PTX ISA describes it.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.machine.schedule import EAGER, LATE, WATCHED, Schedule
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.runtime.launch import Launch
from tests.emulator.snippet import run
from tests.support.emulator.matrices import values
from tests.support.emulator.shared_memory import COPY, LAYOUTS, descriptor, image, names, store

BEGIN = """
  .reg .b32 %d<32>; .reg .b32 %tmem, %a_tmem, %bar, %warp, %lanes; .reg .pred %one, %done, %first;
  .shared .align 8 .b64 mbar; .shared .align 4 .b32 where;
  mov.u32 %bar, mbar; mov.u32 %tid, %tid.x; setp.eq.u32 %one, %tid, 0; shr.u32 %warp, %tid, 5;
  setp.eq.u32 %first, %warp, 0;
  @%one mbarrier.init.shared::cta.b64 [%bar], 1;
  @%first tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [where], 64;
  bar.sync 0;
  ld.shared.b32 %tmem, [where]; add.u32 %a_tmem, %tmem, 32;
  setp.ne.u32 %keep, 0, 0;
"""
INTO_TENSOR_MEMORY = """
  .reg .b32 %a<8>; ld.param.u64 %from, [p0]; mad.wide.u32 %from, %tid, 32, %from;
  ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%from]; ld.global.v4.b32 {%a4, %a5, %a6, %a7}, [%from+16];
  shl.b32 %lanes, %warp, 21; add.u32 %lanes, %lanes, %a_tmem;
  tcgen05.st.sync.aligned.32x32b.x8.b32 [%lanes], {%a0, %a1, %a2, %a3, %a4, %a5, %a6, %a7};
  tcgen05.wait::st.sync.aligned; bar.sync 0;
"""
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%bar];"
CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "u8": 0, "s8": 1}
RESULTS = {"f16": (0, np.float16), "f32": (1, np.float32), "s32": (2, np.int32)}


@dataclass(frozen=True)
class Product:
    """What is multiplied: [rows, k] by [32, k]; A is in tensor memory if it has no layout."""

    kind: str
    a: str
    b: str
    k: int
    rows: int = 128
    d: str = "f32"
    layout_a: str = "128 bytes"
    layout_b: str = "128 bytes"

    @property
    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A and B."""
        return values((self.rows, self.k), self.a, 1), values((32, self.k), self.b, 2)

    @property
    def arrays(self) -> list[Array]:
        """The kernel's arguments: what is copied to shared memory, and the result."""
        left, right = self.operands
        if self.layout_a:
            first = image(left, LAYOUTS[self.layout_a])
        else:
            first = np.zeros(16384, np.uint8)
            raw = left.contiguous().view(torch.uint8).numpy().reshape(-1)
            first[: raw.size] = raw
        return [first, image(right, LAYOUTS[self.layout_b]), np.zeros((128, 32), np.uint32)]

    @property
    def body(self) -> str:
        """The kernel: it multiplies and gives each thread's lane of tensor memory."""
        turned_a = bool(self.layout_a) and LAYOUTS[self.layout_a].turned
        turned_b = LAYOUTS[self.layout_b].turned
        instruction = RESULTS[self.d][0] << 4 | CODES[self.a] << 7 | CODES[self.b] << 10
        instruction |= turned_a << 15 | turned_b << 16 | 32 // 8 << 17 | self.rows // 16 << 24
        top = 1 << 46 | 2 << 61  # version of sm_100, swizzle of 128 bytes
        left = "%da" if self.layout_a else "[%a_tmem]"
        layout = LAYOUTS[self.layout_a or "128 bytes"]
        return "\n".join(
            [
                COPY.replace("mov.u32 %tid, %tid.x;", BEGIN),
                descriptor("%da", "%left", layout, top) if self.layout_a else INTO_TENSOR_MEMORY,
                descriptor("%db", "%right", LAYOUTS[self.layout_b], top),
                f"@%one tcgen05.mma.cta_group::1.kind::{self.kind} [%tmem], {left}, %db, {instruction:#x}, %keep;",
                f"@%one {COMMIT}",
                "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0; @!%done bra WAIT;",
                "shl.b32 %lanes, %warp, 21; add.u32 %lanes, %lanes, %tmem;",
                f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {names(32)}, [%lanes];",
                "tcgen05.wait::ld.sync.aligned;",
                "bar.sync 0; @%first tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tmem, 64;",
                store(32),
            ]
        )

    def of(self, result: Array) -> torch.Tensor:
        """Return D [rows, 32] from the lanes of tensor memory; f16 lies in the lower half of each column."""
        dtype = RESULTS[self.d][1]
        words = result.astype(np.uint16) if self.d == "f16" else result
        got = torch.from_numpy(words.view(dtype)).double()
        if self.rows == 64:  # the first 16 lanes of each warp's 32
            return got.reshape(4, 32, 32)[:, :16].reshape(64, 32)
        return got

    def run(self, body: str, schedule: Schedule = EAGER) -> tuple[torch.Tensor, Launch]:
        """Run a kernel, and return D and the launch."""
        arrays = self.arrays
        done = run(body, arrays, block=128, target="sm_100a", schedule=schedule)
        return self.of(arrays[2]), done

    def is_right(self, got: torch.Tensor) -> bool:
        """Return whether D is the product of A and B."""
        left, right = self.operands
        tolerance = 5e-3 if self.d == "f16" else 1e-5
        wanted = left.double() @ right.double().T
        return torch.allclose(got, wanted, rtol=tolerance, atol=tolerance * 10)


PLAIN = Product("f16", "bf16", "bf16", 16)
PRODUCTS = {
    "bf16": PLAIN,
    "f16": Product("f16", "f16", "f16", 16),
    "tf32": Product("tf32", "tf32", "tf32", 8),
    "8 bits": Product("f8f6f4", "e4m3", "e5m2", 32),
    "64 rows": Product("f16", "bf16", "bf16", 16, rows=64),
    "A turned": Product("f16", "bf16", "bf16", 16, layout_a="turned"),
    "B turned": Product("f16", "bf16", "bf16", 16, layout_b="turned"),
    "both turned, 64 rows": Product(
        "f16", "f16", "f16", 16, rows=64, layout_a="turned", layout_b="turned"
    ),
    "summed in f16": Product("f16", "f16", "f16", 16, d="f16"),
    "whole numbers": Product("i8", "s8", "s8", 32, d="s32"),
    "A in tensor memory": Product("f16", "bf16", "bf16", 16, layout_a=""),
    "A in tensor memory, 8 bits": Product("f8f6f4", "e4m3", "e4m3", 32, layout_a=""),
    "A in tensor memory, B turned": Product(
        "f16", "f16", "f16", 16, layout_a="", layout_b="turned"
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("schedule", [EAGER, LATE], ids=str)
def test_a_product_in_tensor_memory(name: str, schedule: Schedule) -> None:
    product = PRODUCTS[name]
    got, _ = product.run(product.body, schedule)
    assert product.is_right(got)


def test_tensor_memory_is_not_ready_before_the_commit_is_waited_for() -> None:
    hasty = PLAIN.body.replace("@!%done bra WAIT;", "")
    wait = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;"
    got, done = PLAIN.run(hasty.replace(wait, ""), LATE)
    assert got.isnan().all()
    assert any("1 tcgen05.mma operations" in line for line in done.unfinished)
    spoiled = PLAIN.body.replace(COMMIT, f"{COMMIT} st.shared.b32 [%right], %tid;")
    for schedule, right_numbers in ((EAGER, True), (LATE, False)):
        assert PLAIN.is_right(PLAIN.run(spoiled, schedule)[0]) == right_numbers


DEALLOC = "@%first tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tmem, 64;"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x32.b32"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("[where], 64;", "[where], 32;", "columns 32 to 39 of tensor memory are used"),
        ("add.u32 %a_tmem, %tmem, 32;", "add.u32 %a_tmem, %tmem, 60;", "columns 60 to 67 of"),
        (LOAD, f"add.u32 %lanes, %lanes, 64; {LOAD}", "columns 64 to 95 of tensor memory"),
        ("[%tmem], [%a_tmem]", "[%tmem+48], [%a_tmem]", "columns 48 to 79 of tensor memory"),
        ("[%tmem], [%a_tmem]", "[%tmem], [%a_tmem+30]", "columns 62 to 69 of tensor memory"),
        (LOAD, f"{DEALLOC} bar.sync 0; {LOAD}", "columns 0 to 31 of tensor memory are used"),
        (DEALLOC, "", "block (0, 0, 0) has ended without tcgen05.dealloc of 64 columns"),
    ],
)
def test_tensor_memory_is_allocated_and_given_back(old: str, new: str, reason: str) -> None:
    product = PRODUCTS["A in tensor memory"]
    assert old in product.body
    with pytest.raises(FaultError) as caught:
        product.run(product.body.replace(old, new))
    assert reason in str(caught.value)


LOADED = f"{LOAD} {names(32)}, [%lanes];"
READY = "tcgen05.wait::ld.sync.aligned;"
WAITED = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0; @!%done bra WAIT;"
IN_TENSOR_MEMORY = PRODUCTS["A in tensor memory"]


@pytest.mark.parametrize(
    ("product", "old", "new", "reason"),
    [
        (PLAIN, READY, f"add.u32 %at, %d3, 1; {READY}", ""),
        (PLAIN, READY, "", "gives back column 0 of tensor memory, which is read by"),
        (PLAIN, f"{READY}\nbar.sync 0;", f"bar.sync 0; {READY}", "no barrier orders the two"),
        (PLAIN, "bar.sync 0; @%first tcgen05.d", "@%first tcgen05.d", "no barrier orders the two"),
        (
            PLAIN,
            LOADED,
            f"{LOADED} tcgen05.st.sync.aligned.32x32b.x1.b32 [%lanes], {{%d0}};",
            "writes column 0",
        ),
        (
            PLAIN,
            LOADED,
            f"{LOADED} tcgen05.wait::ld.sync.aligned; tcgen05.st.sync.aligned.32x32b.x1.b32 [%lanes], {{%d0}}; "
            "tcgen05.wait::st.sync.aligned;",
            "",
        ),
        (
            PLAIN,
            LOADED,
            f"{LOADED} tcgen05.wait::ld.sync.aligned; tcgen05.st.sync.aligned.32x32b.x1.b32 [%lanes], {{%d0}};",
            "gives back column 0 of tensor memory, which is written by",
        ),
        (
            PLAIN,
            WAITED,
            "",
            "reads column 0 of tensor memory, which is written by a tcgen05.mma",
        ),
        (IN_TENSOR_MEMORY, "", "", ""),
        (
            IN_TENSOR_MEMORY,
            "tcgen05.wait::st.sync.aligned;",
            "",
            "no barrier and no tcgen05.wait orders",
        ),
        (
            IN_TENSOR_MEMORY,
            "tcgen05.wait::st.sync.aligned; bar.sync 0;",
            "tcgen05.wait::st.sync.aligned;",
            "reads, by a tcgen05.mma, column 32 of tensor memory, which is written by",
        ),
    ],
)
def test_loads_stores_and_products_have_an_order(
    product: Product, old: str, new: str, reason: str
) -> None:
    assert old in product.body
    body = product.body.replace(old, new, 1) if old else product.body
    if not reason:
        product.run(body, WATCHED)
        return
    with pytest.raises(FaultError, match="PTX line") as caught:
        product.run(body, WATCHED)
    assert reason in str(caught.value)


def test_lanes_that_are_left_out_and_a_scaled_d_are_not_known() -> None:
    none = PLAIN.body.replace(", %keep;", ", {%zero, %zero, %zero, 0}, %keep;")
    none = f".reg .b32 %zero; mov.b32 %zero, 0;{none}"
    assert PLAIN.is_right(PLAIN.run(none)[0])
    with pytest.raises(UnmodelledError, match="leaves lanes of its output as they are"):
        PLAIN.run(none.replace("mov.b32 %zero, 0;", "mov.b32 %zero, 4;"))
    with pytest.raises(PtxError, match="D scaled before it is added"):
        PLAIN.run(PLAIN.body.replace(", %keep;", ", %keep, 1;"))
