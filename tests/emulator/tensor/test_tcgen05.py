"""``tcgen05.mma`` against products of matrices, and the rules of tensor memory.

Where elements lie in shared memory is written in `test_wgmma`, as the PTX ISA describes it.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.emulator.fault import FaultError, UnmodelledError
from tests.emulator.machine.schedule import EAGER, LATE, WATCHED, Schedule
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.races.touched import RaceError
from tests.emulator.snippet import run
from tests.support.emulator.shared_memory import names
from tests.support.emulator.tensor_products import COMMIT, Product

TURNED_TF32 = "turned, pieces of 32 bytes"
PLAIN = Product("f16", "bf16", "bf16", 16)
WAITED = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0; @!%done bra WAIT;"
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
    "64 columns": Product("f16", "f16", "bf16", 16, columns=64, layout_a="64 bytes"),
    "192 columns": Product("f8f6f4", "e5m2", "e4m3", 32, columns=192, layout_b="64 bytes"),
    "256 columns": Product("f16", "bf16", "bf16", 16, columns=256, layout_b="turned"),
    "256 columns, 64 rows": Product(
        "i8", "u8", "s8", 32, rows=64, columns=256, d="s32", layout_b="32 bytes"
    ),
    "A in tensor memory, 256 columns": Product(
        "f16", "f16", "f16", 16, columns=256, d="f16", layout_a="", layout_b="core matrices"
    ),
    "no swizzle": Product("tf32", "tf32", "tf32", 8, layout_a="core matrices"),
    "turned, 64 and 32 bytes": Product(
        "f16", "bf16", "f16", 16, layout_a="turned, 64 bytes", layout_b="turned, 32 bytes"
    ),
    "turned without swizzle": Product(
        "f16",
        "f16",
        "f16",
        16,
        columns=64,
        layout_a="turned core matrices",
        layout_b="turned core matrices",
    ),
    "8 bits, turned": Product(
        "f8f6f4", "e4m3", "e4m3", 32, layout_a="turned", layout_b="turned, 32 bytes"
    ),
    "tf32, A turned": Product("tf32", "tf32", "tf32", 8, layout_a=TURNED_TF32),
    "tf32, B turned": Product("tf32", "tf32", "tf32", 8, columns=64, layout_b=TURNED_TF32),
    "tf32, both turned": Product(
        "tf32", "tf32", "tf32", 8, rows=64, layout_a=TURNED_TF32, layout_b=TURNED_TF32
    ),
    "a pair, 256 rows": Product("f16", "bf16", "bf16", 16, rows=256, columns=64, pair=True),
    "a pair, 128 rows": Product("f16", "f16", "f16", 16, rows=128, columns=128, pair=True),
    "a pair, 256 columns": Product(
        "f8f6f4", "e4m3", "e5m2", 32, rows=256, columns=256, layout_a="64 bytes", pair=True
    ),
    "a pair, 192 columns, 128 rows": Product(
        "i8", "s8", "u8", 32, rows=128, columns=192, d="s32", layout_b="32 bytes", pair=True
    ),
    "a pair, both turned": Product(
        "f16", "bf16", "bf16", 16, 256, 128, layout_a="turned", layout_b="turned", pair=True
    ),
    "a pair, tf32, both turned": Product(
        "tf32", "tf32", "tf32", 8, 256, 64, layout_a=TURNED_TF32, layout_b=TURNED_TF32, pair=True
    ),
    "a pair, A in tensor memory": Product("f16", "f16", "f16", 16, 256, 64, layout_a="", pair=True),
    "a pair, 128 rows, A in tensor memory": Product(
        "f16", "bf16", "bf16", 16, 128, 64, layout_a="", pair=True
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
    (left,) = (line for line in done.unfinished if "tcgen05.mma" in line)
    assert left.startswith("k, PTX line ")
    assert left.endswith(", %keep: 1 operations were never waited for")
    spoiled = PLAIN.body.replace(COMMIT, f"{COMMIT} st.shared.b32 [%right], %tid;")
    for schedule, right_numbers in ((EAGER, True), (LATE, False)):
        assert PLAIN.is_right(PLAIN.run(spoiled, schedule)[0]) == right_numbers


@pytest.mark.parametrize(("bits", "sign"), [(1 << 13, -1), (1 << 14, -1), (3 << 13, 1)])
@pytest.mark.parametrize("name", ["bf16", "tf32", "8 bits"])
def test_factors_are_negated(name: str, bits: int, sign: int) -> None:
    """By bit 13 A, by bit 14 B (PTX ISA, "Instruction descriptor")."""
    product = PRODUCTS[name]
    word = int(re.findall(r"(0x\w+), %keep;", product.body)[0], 16)
    got, _ = product.run(product.body.replace(f"{word:#x}, %keep", f"{word | bits:#x}, %keep"))
    assert product.is_right(sign * got)


def test_a_commit_tells_of_the_products_before_it_alone() -> None:
    """A second product may still read what the first one has read, when that one's commit is seen."""
    multiply = next(line for line in PLAIN.body.splitlines() if "tcgen05.mma" in line)
    write = f"{WAITED} @%one st.shared.b32 [%right], %tid;"
    before = PLAIN.body.replace(multiply, f"{multiply} {multiply}").replace(WAITED, write)
    PLAIN.run(before, WATCHED)
    behind = PLAIN.body.replace(f"@%one {COMMIT}", f"@%one {COMMIT} {multiply}")
    with pytest.raises(RaceError, match=r"writes shared memory that a tcgen05\.mma of .* reads"):
        PLAIN.run(behind.replace(WAITED, write), WATCHED)


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
        (
            DEALLOC,
            "",
            ": @%first tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [where], 64 [",
        ),
    ],
)
def test_tensor_memory_is_allocated_and_given_back(old: str, new: str, reason: str) -> None:
    product = PRODUCTS["A in tensor memory"]
    assert old in product.body
    with pytest.raises(FaultError, match="k, PTX line") as caught:
        product.run(product.body.replace(old, new))
    assert reason in str(caught.value)


LOADED = f"{LOAD} {names(32)}, [%lanes];"
READY = "tcgen05.wait::ld.sync.aligned;"
OVER_A = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%lanes], {%a0}; tcgen05.wait::st.sync.aligned;"
IN_TENSOR_MEMORY = PRODUCTS["A in tensor memory"]


def beside(lanes: int) -> str:
    """Return a load of 16 lanes, a store so many lanes further that does not wait for it, and the load of all."""
    return (
        f"tcgen05.ld.sync.aligned.16x64b.x2.b32 {names(2)}, [%lanes]; add.u32 %at, %lanes, {lanes << 16}; "
        f"tcgen05.st.sync.aligned.16x64b.x2.b32 [%at], {names(2)}; tcgen05.wait::st.sync.aligned; {LOADED}"
    )


@pytest.mark.parametrize(
    ("product", "old", "new", "reason"),
    [
        (PLAIN, READY, f"add.u32 %at, %d3, 1; {READY}", ""),
        (PLAIN, LOADED, beside(16), ""),
        (PLAIN, LOADED, beside(0), "writes column 0 of tensor memory, which is read by"),
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
        (IN_TENSOR_MEMORY, WAITED, f"{WAITED} {OVER_A}", ""),
        (
            IN_TENSOR_MEMORY,
            WAITED,
            f"{OVER_A} {WAITED}",
            "writes column 32 of tensor memory, which is read by a tcgen05.mma",
        ),
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


@pytest.mark.parametrize("name", ["a pair, 256 rows", "a pair, 128 rows, A in tensor memory"])
def test_a_pair_of_blocks_is_in_order(name: str) -> None:
    product = PRODUCTS[name]
    got, done = product.run(product.body, WATCHED)
    assert product.is_right(got)
    assert done.unfinished == ()


@pytest.mark.parametrize(
    ("product", "layout", "error", "reason"),
    [
        (PRODUCTS["tf32, A turned"], 2, FaultError, "layout 2 of tf32 along M or N"),
        (PRODUCTS["A turned"], 1, FaultError, "layout 1 of bf16 along M or N"),
        (PRODUCTS["tf32"], 1, UnmodelledError, "pieces of 32 bytes along K"),
        (PLAIN, 3, UnmodelledError, "layout 3, base offset 0"),
    ],
)
def test_a_layout_fits_its_elements(
    product: Product, layout: int, error: type[FaultError], reason: str
) -> None:
    multiply = "@%one tcgen05.mma"
    changed = (
        f"and.b64 %da, %da, 0x1FFFFFFFFFFFFFFF; or.b64 %da, %da, {layout << 61:#x}; {multiply}"
    )
    with pytest.raises(error, match="PTX line") as caught:
        product.run(product.body.replace(multiply, changed))
    assert reason in str(caught.value)


def test_d_begins_at_lane_0() -> None:
    """Of 128 rows, and of a pair, which take all lanes."""
    for name in ("bf16", "a pair, 256 rows", "a pair, 128 rows"):
        product = PRODUCTS[name]
        with pytest.raises(FaultError, match=r"with D from lane 32 on, which takes all lanes"):
            product.run(product.body.replace("[%tmem], %da", "[%tmem+0x200000], %da"))


ALLOC = """
  .reg .b32 %tid, %slot, %t; .reg .b64 %out; .reg .pred %first, %second; .shared .align 4 .b32 where;
  ld.param.u64 %out, [p0]; mov.u32 %tid, %tid.x; setp.lt.u32 %first, %tid, 32; setp.ge.u32 %second, %tid, 32; mov.u32 %slot, where;
  BEFORE @%first tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [where], 32; BEHIND
  bar.sync 0; ld.shared.b32 %t, [where]; @%first tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 32;
"""


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("", "@%second ld.shared.b32 %t, [where];"),
        ("@%second st.shared.b32 [where], 5;", ""),
        (
            "",
            "mov.b32 %t, 0x200000; @%second tcgen05.st.sync.aligned.32x32b.x1.b32 [%t], {%tid}; @%second tcgen05.wait::st.sync.aligned;",
        ),
    ],
    ids=["its address is read", "its address is written before", "its columns are written"],
)
def test_an_allocation_has_an_order_with_what_others_do(before: str, behind: str) -> None:
    text = ALLOC.replace("BEFORE", before and f"{before} ORDER")
    text = text.replace("BEHIND", behind and f"ORDER {behind}")
    facts = {"block": 64, "target": "sm_100a", "schedule": WATCHED}
    arrays = [np.zeros(1, np.uint32)]
    run(text.replace("ORDER", "bar.sync 0;"), arrays, **facts)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RaceError):
        run(text.replace("ORDER", ""), arrays, **facts)  # pyright: ignore[reportArgumentType]


def test_lanes_that_are_left_out_and_a_scaled_d_are_not_known() -> None:
    none = PLAIN.body.replace(", %keep;", ", {%zero, %zero, %zero, 0}, %keep;")
    none = f".reg .b32 %zero; mov.b32 %zero, 0;{none}"
    assert PLAIN.is_right(PLAIN.run(none)[0])
    with pytest.raises(UnmodelledError, match="leaves lanes of its output as they are"):
        PLAIN.run(none.replace("mov.b32 %zero, 0;", "mov.b32 %zero, 4;"))
    with pytest.raises(PtxError, match="D scaled before it is added"):
        PLAIN.run(PLAIN.body.replace(", %keep;", ", %keep, 1;"))
