"""``wgmma`` against products of matrices.

Where elements lie in shared memory, and which thread holds which result, is written here as the PTX ISA describes it.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.emulator.arithmetic.arrays import Array
from tests.emulator.fault import FaultError
from tests.emulator.machine.schedule import EAGER, LATE, WATCHED, Schedule
from tests.emulator.races.touched import RaceError
from tests.emulator.snippet import run
from tests.support.emulator.matrices import DTYPES, values
from tests.support.emulator.shared_memory import (
    COPY,
    IMAGE,
    LAYOUTS,
    Layout,
    descriptor,
    image,
    names,
    store,
)

FRAGMENT = """
  .reg .b32 %a<4>; ld.param.u64 %from, [p0]; mad.wide.u32 %from, %tid, 16, %from;
  ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%from];
"""


def wgmma_body(
    shape: str, types: str, count: int, a: Layout | None, b: Layout, times: int = 1
) -> str:
    """Return a kernel that multiplies; A is in registers if it has no layout, four of each thread side by side in memory."""
    turns = [int(layout.turned) for layout in (a, b) if layout is not None and "16" in types]
    flags = "".join(f", {flag}" for flag in ([] if "s32" in types else [1, 1, *turns]))
    left = "%da" if a is not None else "{%a0, %a1, %a2, %a3}"
    product = (
        f"wgmma.mma_async.sync.aligned.{shape}.{types} {names(count)}, {left}, %db, %keep{flags};"
    )
    return "\n".join(
        [
            f".reg .b32 %d<{count}>;",
            COPY,
            FRAGMENT if a is None else descriptor("%da", "%left", a, a.swizzle << 62),
            descriptor("%db", "%right", b, b.swizzle << 62),
            "setp.ne.u32 %keep, 0, 0; wgmma.fence.sync.aligned;",
            *([product, "setp.eq.u32 %keep, 0, 0;"] * times),
            "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
            store(count),
        ]
    )


def of_threads(result: Array, dtype: torch.dtype, columns: int) -> torch.Tensor:
    """Return D [64, columns] from [threads, registers], by the PTX ISA's "Accumulator register fragment"."""
    flat = torch.from_numpy(result.view(np.uint8)).view(dtype).reshape(128, -1)
    tensor = torch.empty(64, columns, dtype=dtype)
    thread, i = np.ogrid[:128, : flat.shape[1]]
    warp, lane = thread // 32, thread % 32
    row = 16 * warp + lane // 4 + 8 * (i // 2 % 2)
    tensor[row, 8 * (i // 4) + lane % 4 * 2 + i % 2] = flat
    return tensor


CASES = [
    ("bf16", "bf16", "f32", 16, 16, "core matrices", "core matrices"),
    ("bf16", "bf16", "f32", 32, 16, "128 bytes", "128 bytes"),
    ("f16", "f16", "f32", 8, 16, "64 bytes", "32 bytes"),
    ("f16", "f16", "f16", 16, 16, "128 bytes", "128 bytes"),
    ("bf16", "bf16", "f32", 64, 16, "turned", "turned"),
    ("bf16", "bf16", "f32", 128, 16, "128 bytes", "turned"),
    ("tf32", "tf32", "f32", 16, 8, "128 bytes", "128 bytes"),
    ("e4m3", "e5m2", "f32", 16, 32, "128 bytes", "128 bytes"),
    ("s8", "s8", "s32", 16, 32, "128 bytes", "64 bytes"),
    ("f16", "f16", "f32", 192, 16, "turned, 64 bytes", "32 bytes"),
    ("bf16", "bf16", "f32", 256, 16, "64 bytes", "turned"),
    ("f16", "f16", "f16", 256, 16, "turned core matrices", "turned, 32 bytes"),
    ("bf16", "bf16", "f32", 256, 16, "turned, 32 bytes", "turned, 64 bytes"),
    ("f16", "f16", "f32", 64, 16, "core matrices", "turned core matrices"),
    ("tf32", "tf32", "f32", 256, 8, "core matrices", "64 bytes"),
    ("e5m2", "e4m3", "f32", 256, 32, "32 bytes", "core matrices"),
    ("u8", "s8", "s32", 256, 32, "64 bytes", "32 bytes"),
]


@pytest.mark.parametrize(("a", "b", "d", "n", "k", "layout_a", "layout_b"), CASES)
def test_a_product_of_a_warp_group(
    a: str, b: str, d: str, n: int, k: int, layout_a: str, layout_b: str
) -> None:
    left, right = values((64, k), a, 1), values((n, k), b, 2)
    count = n // 4 if d == "f16" else n // 2
    result = np.zeros((128, count), np.uint32)
    body = wgmma_body(
        f"m64n{n}k{k}", f"{d}.{a}.{b}", count, LAYOUTS[layout_a], LAYOUTS[layout_b], 2
    )
    images = [image(left, LAYOUTS[layout_a]), image(right, LAYOUTS[layout_b])]
    run(body, [*images, result], block=128)
    got = of_threads(result, DTYPES[d], n).double()
    wanted = 2 * left.double() @ right.double().T  # the second product is added to the first
    tolerance = 5e-3 if d == "f16" else 1e-5
    assert torch.allclose(got, wanted, rtol=tolerance, atol=tolerance * 8)


def fragment(matrix: torch.Tensor) -> Array:
    """Return A [64, k] as the registers of 128 threads, by the PTX ISA's "Register fragment for wgmma matrix A"."""
    rows = matrix.contiguous().view(torch.uint8).numpy().reshape(64, 32)
    result = np.full(IMAGE, 0xEE, np.uint8)
    for thread in range(128):
        warp, lane = thread // 32, thread % 32
        for i in range(4):
            row, byte = 16 * warp + lane // 4 + 8 * (i % 2), lane % 4 * 4 + 16 * (i // 2)
            begin = 16 * thread + 4 * i
            result[begin : begin + 4] = rows[row, byte : byte + 4]
    return result


@pytest.mark.parametrize(
    ("a", "b", "d", "n", "k", "layout_b"),
    [
        ("bf16", "bf16", "f32", 32, 16, "128 bytes"),
        ("bf16", "bf16", "f32", 64, 16, "turned"),
        ("f16", "f16", "f16", 16, 16, "64 bytes"),
        ("tf32", "tf32", "f32", 16, 8, "128 bytes"),
        ("e4m3", "e4m3", "f32", 16, 32, "128 bytes"),
        ("s8", "s8", "s32", 16, 32, "64 bytes"),
        ("bf16", "bf16", "f32", 256, 16, "turned, 32 bytes"),
        ("tf32", "tf32", "f32", 192, 8, "32 bytes"),
    ],
)
def test_a_product_with_a_in_registers(
    a: str, b: str, d: str, n: int, k: int, layout_b: str
) -> None:
    left, right = values((64, k), a, 3), values((n, k), b, 4)
    count = n // 4 if d == "f16" else n // 2
    result = np.zeros((128, count), np.uint32)
    body = wgmma_body(f"m64n{n}k{k}", f"{d}.{a}.{b}", count, None, LAYOUTS[layout_b])
    run(body, [fragment(left), image(right, LAYOUTS[layout_b]), result], block=128)
    got = of_threads(result, DTYPES[d], n).double()
    tolerance = 5e-3 if d == "f16" else 1e-5
    wanted = left.double() @ right.double().T
    assert torch.allclose(got, wanted, rtol=tolerance, atol=tolerance * 8)


def test_a_product_may_not_lose_its_operands_before_it_is_waited_for() -> None:
    left, right = values((64, 16), "bf16", 1), values((16, 16), "bf16", 2)
    layout = LAYOUTS["128 bytes"]
    result = np.zeros((128, 8), np.uint32)
    body = wgmma_body("m64n16k16", "f32.bf16.bf16", 8, layout, layout)
    early = "wgmma.commit_group.sync.aligned;"
    spoiled = body.replace(early, f"{early} st.shared.b32 [%right], %tid;")
    images = [image(left, layout), image(right, layout)]
    run(body, [*images, result], block=128, schedule=LATE)
    run(spoiled, [*images, result], block=128, schedule=EAGER)
    with pytest.raises(
        FaultError, match=r"that the wgmma at PTX line \d+ reads was overwritten before this wait"
    ):
        run(spoiled, [*images, result], block=128, schedule=LATE)


@pytest.mark.parametrize("schedule", [EAGER, LATE], ids=str)
def test_a_product_that_nobody_waits_for_is_unfinished(schedule: Schedule) -> None:
    left, right = values((64, 16), "bf16", 1), values((16, 16), "bf16", 2)
    layout = LAYOUTS["128 bytes"]
    body = wgmma_body("m64n16k16", "f32.bf16.bf16", 8, layout, layout)
    operands = [image(left, layout), image(right, layout), np.zeros((128, 8), np.uint32)]
    assert run(body, operands, block=128, schedule=schedule).unfinished == ()
    left_alone = body[: body.index("wgmma.wait_group")]
    done = run(left_alone, operands, block=128, schedule=schedule)
    (left_over,) = done.unfinished
    assert left_over.startswith("k, PTX line ")
    assert ": wgmma.mma_async.sync.aligned.m64n16k16" in left_over
    assert left_over.endswith(": wgmma operations of 4 warps were never waited for")
    uncommitted = left_alone.replace("wgmma.commit_group.sync.aligned;", "")
    assert run(uncommitted, operands, block=128, schedule=schedule).unfinished == done.unfinished


def test_operands_of_a_product_that_nobody_waits_for_stay() -> None:
    left, right = values((64, 16), "bf16", 1), values((16, 16), "bf16", 2)
    layout = LAYOUTS["128 bytes"]
    body = wgmma_body("m64n16k16", "f32.bf16.bf16", 8, layout, layout)
    spoiled = body[: body.index("wgmma.wait_group")] + "st.shared.b32 [%right], %tid;"
    operands = [image(left, layout), image(right, layout), np.zeros((128, 8), np.uint32)]
    with pytest.raises(FaultError, match="overwritten, and nobody has waited") as caught:
        run(spoiled, operands, block=128, schedule=LATE)
    assert caught.value.place.startswith("k, PTX line ")
    assert ": wgmma.mma_async.sync.aligned.m64n16k16" in caught.value.place


def test_operands_that_threads_write_need_a_proxy_fence() -> None:
    left, right = values((64, 16), "bf16", 1), values((16, 16), "bf16", 2)
    layout = LAYOUTS["128 bytes"]
    body = wgmma_body("m64n16k16", "f32.bf16.bf16", 8, layout, layout)
    images = [image(left, layout), image(right, layout)]
    with pytest.raises(FaultError, match=r"a matrix operand reads .* no fence\.proxy\.async since"):
        run(
            body.replace("fence.proxy.async;", ""),
            [*images, np.zeros((128, 8), np.uint32)],
            block=128,
        )


ONE_WRITES = (
    "setp.eq.u32 %more, %tid, 96; @%more st.shared.b32 [%right], %tid; fence.proxy.async; BARRIER"
)
"""A thread of the last warp."""


def watched(text: str, then: str = "") -> None:
    """Run a product behind some text, in the watched schedule, and ``then`` behind its wait."""
    layout = LAYOUTS["128 bytes"]
    body = wgmma_body("m64n16k16", "f32.bf16.bf16", 8, layout, layout)
    body = body.replace(FENCE, f"{text} {FENCE}").replace(WAIT, f"{WAIT} {then}")
    images = [image(values((rows, 16), "bf16", 1), layout) for rows in (64, 16)]
    run(body, [*images, np.zeros((128, 8), np.uint32)], block=128, schedule=WATCHED)


def test_all_warps_of_a_group_have_an_order_with_what_has_written_its_operands() -> None:
    watched(ONE_WRITES.replace("BARRIER", "bar.sync 0;"))
    first_and_last = "add.u32 %at, %tid, 32; and.b32 %at, %at, 127; setp.lt.u32 %more, %at, 64; @%more bar.sync 1, 64;"
    with pytest.raises(RaceError, match=r"a wgmma of .* reads shared memory that .* warps 3 wrote"):
        watched(ONE_WRITES.replace("BARRIER", first_and_last))


def test_each_warp_of_a_group_knows_of_the_product_that_it_has_waited_for() -> None:
    write = "mad.lo.u32 %at, %tid, 4, %right; st.shared.b32 [%at], %tid;"
    watched("", write)


FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (FENCE, "", "no wgmma.fence between"),
        (FENCE, f"{FENCE} mov.b32 %d3, 0;", "no wgmma.fence between"),
        (FENCE, f"{FENCE} add.u32 %d2, %d2, 0; mov.b32 %d3, %d2;", "no wgmma.fence between"),
        (WAIT, f"mov.b32 %at, %d3; {WAIT}", "used before it was waited for"),
        (WAIT, f"mov.b32 %d3, 0; {WAIT}", "used before it was waited for"),
        (WAIT, "wgmma.wait_group.sync.aligned 1;", "used before it was waited for"),
    ],
)
def test_registers_of_a_product_are_fenced_and_waited_for(old: str, new: str, reason: str) -> None:
    left, right = values((64, 16), "bf16", 1), values((16, 16), "bf16", 2)
    layout = LAYOUTS["128 bytes"]
    body = wgmma_body("m64n16k16", "f32.bf16.bf16", 8, layout, layout)
    images = [image(left, layout), image(right, layout)]
    result = np.zeros((128, 8), np.uint32)
    run(body, [*images, result], block=128)
    with pytest.raises(FaultError, match="PTX line") as caught:
        run(body.replace(old, new), [*images, result], block=128)
    assert reason in str(caught.value)


def test_a_copy_of_what_was_there_before_the_fence_needs_no_other() -> None:
    left, right = values((64, 16), "bf16", 1), values((16, 16), "bf16", 2)
    layout = LAYOUTS["128 bytes"]
    body = wgmma_body("m64n16k16", "f32.bf16.bf16", 8, layout, layout)
    images = [image(left, layout), image(right, layout)]
    results = [np.zeros((128, 8), np.uint32) for _ in range(2)]
    for result, fence in zip(results, (FENCE, f"{FENCE} mov.b32 %d3, %d2;"), strict=True):
        run(body.replace(FENCE, fence), [*images, result], block=128)
    assert (results[0] == results[1]).all()


def test_a_group_that_may_be_pending_keeps_its_registers_alone() -> None:
    """Of two groups the first is waited for: its accumulators may be read, those of the second may not."""
    left, right = values((64, 16), "bf16", 1), values((16, 16), "bf16", 2)
    layout = LAYOUTS["128 bytes"]
    body = wgmma_body("m64n16k16", "f32.bf16.bf16", 8, layout, layout)
    product = next(line for line in body.split("\n") if "mma_async" in line)
    other = product.replace("%d", "%e").replace("%ea", "%da").replace("%eb", "%db")
    two = body.replace(COMMIT, f"{COMMIT} {other} {COMMIT}").replace(
        WAIT, f"wgmma.wait_group.sync.aligned 1; mov.b32 %at, %d3; READ {WAIT}"
    )
    two = ".reg .b32 %e<8>;" + two
    images = [image(left, layout), image(right, layout)]
    result = np.zeros((128, 8), np.uint32)
    run(two.replace("READ", ""), [*images, result], block=128)
    with pytest.raises(FaultError, match="used before it was waited for"):
        run(two.replace("READ", "mov.b32 %at, %e3;"), [*images, result], block=128)
