"""The test of the tests: without one of its synchronising instructions a kernel is found wrong."""

from __future__ import annotations

import numpy as np
import pytest

from inductor_plugin.problem.target import target
from tests.emulator.fault import DeadlockError
from tests.emulator.kernels import gemm
from tests.emulator.kernels.gemm import Case
from tests.emulator.kernels.mutants import ALL, Mutant, mutants, noticed
from tests.emulator.machine.schedule import EAGER, LATE, Schedule
from tests.emulator.runtime.module import LoadedModule
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.snippet import module, run
from tests.support.emulator.products import BF16

CASE = Case(BF16, 259, 136, 1096, multiprocessors=2)
"""Several tiles a block, and K longer than the stages."""


def test_mutants_are_those_instructions_that_ran() -> None:
    text = "  bar.sync 0;\n@%p1 bar.sync 1, 64;\nbar.syncs 2;\nbar.sync 3;\n"
    results = list(mutants(text, frozenset((1, 2, 3)), "bar.sync"))
    assert [(mutant.line, mutant.change) for mutant in results] == [
        (1, "taken out"),
        (2, "taken out"),
        (2, "64 + 32"),
    ]
    assert results[1].apply(text).split("\n")[1] == "bar.warp.sync -1;"
    assert results[0] == Mutant(1, "bar.sync", "  bar.sync 0;", "bar.warp.sync -1;")


def test_a_wait_is_taken_as_over_and_an_address_is_moved() -> None:
    wait = "mbarrier.try_wait.parity.shared::cta.b64 %p7, [%r3], %r4;"
    store = "@%p1 st.shared.v4.b32 [%r9+-32], {%r1, %r2, %r3, %r4};"
    load = "ld.global.b32 %r1, [%rd4];"
    text, ran = "\n".join((wait, store, load)), frozenset((1, 2, 3))
    over, _ = mutants(text, ran, "mbarrier.try_wait")
    assert over.new == "setp.eq.u32 %p7, 0, 0;"
    (moved,) = mutants(text, ran, "st.shared")
    assert moved.new == store.replace("[%r9+-32]", "[%r9+-16]")
    (moved,) = mutants(text, ran, "ld.global")
    assert moved.new == load.replace("[%rd4]", "[%rd4+16]")


@pytest.mark.parametrize(
    ("line", "poisoned"),
    [
        ("@%p1 ld.global.b16 { %rs1 }, [ %rd4 + 0 ];", "@%p1 mov.b16 %rs1, 0x7FFF;"),
        (
            "ld.shared.v2.b32 {%r1, %f2}, [%r9];",
            "mov.b32 %r1, 0x7FFFFFFF; mov.b32 %f2, 0x7FFFFFFF;",
        ),
        ("ld.shared.u64 %rd1, [%r9];", "mov.b64 %rd1, 0x7FFFFFFFFFFFFFFF;"),
        (
            "@%p2 st.shared.v2.b32 [%r9], {%r1, %r2};",
            "{ .reg .b32 %bent; mov.b32 %bent, 0x7FFFFFFF; @%p2 st.shared.v2.b32 [%r9+16], {%bent, %bent}; }",
        ),
        (
            "st.global.b16 [%rd1+2], %rs3;",
            "{ .reg .b16 %bent; mov.b16 %bent, 0x7FFF; st.global.b16 [%rd1+18], %bent; }",
        ),
    ],
)
def test_nan_takes_the_place_of_what_is_loaded_or_stored(line: str, poisoned: str) -> None:
    opcode = ".".join(line[line.find("%p") + 4 if line[0] == "@" else 0 :].split(".")[:2])
    (bent,) = mutants(line, frozenset((1,)), opcode)
    of_nan, large, small = bent.poisoned()
    assert (of_nan.new, of_nan.line, of_nan.old) == (poisoned, 1, line)
    for instead, value in ((large, "0x7B7B"), (small, "0xFBFB")):
        assert instead.new.replace("7B", "FF").replace("FB", "FF") == poisoned.replace("7F", "FF")
        assert value in instead.new
        assert compiles(instead.new)
    assert compiles(of_nan.new)


def test_only_loads_and_stores_have_values_that_nan_can_take_the_place_of() -> None:
    for line, opcode in (
        ("bar.sync 0;", "bar.sync"),
        ("cp.async.ca.shared.global [%r1], [%rd2], 8;", "cp.async.c"),
        ("atom.global.add.u32 %r1, [%rd2], 1;", "atom"),
    ):
        (bent,) = mutants(line, frozenset((1,)), opcode)
        assert not list(bent.poisoned())


def test_a_copy_by_tma_has_its_address_in_shared_memory_moved_by_a_line_of_it() -> None:
    load = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2, {%r3, %r4}], [%r5];"
    store = (
        "@%p1 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd2, {%r3, %r4}], [%r1+64];"
    )
    first, _, _, second, *_ = mutants(f"{load}\n{store}", frozenset((1, 2)), "cp.async.bulk.tensor")
    assert first.new == load.replace("[%r1]", "[%r1+128]")
    assert second.new == store.replace("[%r1+64]", "[%r1+192]")


def test_the_beginning_of_an_opcode_is_no_other_opcode() -> None:
    text = "cp.async.commit_group;\nredux.sync.add.s32 %r1, %r2, -1;\nbar.warp.sync -1;\nfence.proxy.async;"
    ran = frozenset(range(1, 5))
    for opcode in ("cp.async.c", "red", "bar.sync", "fence.proxy.tensormap"):
        assert list(mutants(text, ran, opcode)) == []
    assert len(list(mutants(text, ran, "bar.warp.sync"))) == 1


REGISTERS = """
  .reg .b16 %h1, %rs<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<9>; .reg .b128 %q1;
  .shared .align 128 .b8 tile[4096];
"""
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster"
MULTICAST = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
    "[%r1], [%rd2, {%r3, %r4}], [%r5], %h1, %rd3;"
)
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2, {%r3, %r4}], [%r5];"
SPIN = "ld.acquire.gpu.global.b32 %r1, [%rd1];"
WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}"
TCGEN05 = "tcgen05.mma.cta_group::1.kind::f16 [%r1], "


def bent(line: str, operand: str, count: int) -> str:
    """Return a line with more in an operand, whose place it names by ``@`` behind the guard."""
    guard, at, rest = line.rpartition("@%p1 ")
    after = f"{guard}{at}{rest.replace('@', '%bent')}"
    return f"{{ .reg .b32 %bent; add.s32 %bent, {operand}, {count}; {after} }}"


def further(line: str) -> list[str]:
    """Return a copy of a tile with each of its coordinates one further."""
    places = (("@, %r4", "%r3"), ("%r3, @", "%r4"))
    return [bent(line.replace("%r3, %r4", both), operand, 1) for both, operand in places]


def flipped(line: str, operand: str) -> str:
    return f"{{ .reg .b32 %bent; xor.b32 %bent, {operand}, 1; {line.replace('@', '%bent')} }}"


def without_first(line: str) -> str:
    less = ".reg .b16 %less; add.s16 %less, %h1, -1; and.b16 %bent, %less, %h1;"
    return f"{{ .reg .b16 %bent; {less} {line.replace('@', '%bent')} }}"


TAKEN_OUT = (
    "cp.async.wait_all;",
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];",
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 64;",
    "mbarrier.arrive_drop.shared::cta.b64 %rd1, [%r1];",
    "mbarrier.inval.shared::cta.b64 [%r1];",
    "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1], %rd1;",
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [%r1], 128;",
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];",
    "barrier.arrive 1, 64;",
    "griddepcontrol.wait;",
    "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32;",
)
BENT = {
    "barrier.sync 1;": ["bar.warp.sync -1;"],
    "bar.sync %r1, %r2;": ["bar.warp.sync -1;", bent("bar.sync %r1, @;", "%r2", 32)],
    "@%p1 barrier.cta.arrive 2, 96;": ["", bent("@%p1 barrier.cta.arrive 2, @;", "96", 32)],
    "@%p1 mbarrier.init.shared::cta.b64 [%r1], 2;": [
        "",
        bent("@%p1 mbarrier.init.shared::cta.b64 [%r1], @;", "2", 1),
    ],
    "cp.async.wait_group 2;": ["", "cp.async.wait_group 3;"],
    "@%p1 cp.async.bulk.wait_group.read 0 ;": ["", "@%p1 cp.async.bulk.wait_group.read 1 ;"],
    "wgmma.wait_group.sync.aligned 0;": ["", "wgmma.wait_group.sync.aligned 1;"],
    "barrier.cta.sync.aligned 1;": ["bar.warp.sync -1;"],
    "bar.red.popc.u32 %r1, 0, %p1;": ["selp.b32 %r1, 1, 0, %p1;"],
    "barrier.cta.red.popc.aligned.u32 %r1, 0, !%p1;": ["selp.b32 %r1, 0, 1, %p1;"],
    "bar.red.or.pred %p2, 0, 64, !%p1;": ["not.pred %p2, %p1;"],
    "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], %r2;": [
        "setp.eq.u32 %p1, 0, 0;",
        flipped("mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], @;", "%r2"),
    ],
    "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 1, 1000;": [
        "setp.eq.u32 %p1, 0, 0;",
        flipped("mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], @, 1000;", "1"),
    ],
    "mbarrier.try_wait.shared::cta.b64 %p1, [%r1], %rd1;": ["setp.eq.u32 %p1, 0, 0;"],
    "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r2;": [
        "",
        "{ .reg .b32 %bent; add.s32 %bent, %r2, 16; "
        "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %bent; }",
    ],
    "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd2, {%r3, %r4}], [%r1];": [
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd2, {%r3, %r4}], [%r1+128];",
        *further(
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd2, {%r3, %r4}], [%r1];"
        ),
    ],
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 64, [%r2];": [
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+16], [%rd1], 64, [%r2];"
    ],
    "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 64;": [
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1+16], [%r1], 64;"
    ],
    LOAD: [LOAD.replace("[%r1]", "[%r1+128]"), *further(LOAD)],
    MULTICAST: [
        MULTICAST.replace("[%r1]", "[%r1+128]"),
        *further(MULTICAST),
        without_first(MULTICAST.replace("%h1", "@")),
    ],
    f"{COMMIT}.multicast::cluster.b64 [%r1], %h1;": [
        "",
        without_first(f"{COMMIT}.multicast::cluster.b64 [%r1], @;"),
    ],
    f"{COMMIT}.b64 [%r1];": [""],
    SPIN: [SPIN.replace("[%rd1]", "[%rd1+16]")],
    "ld.volatile.global.b32 %r1, [%rd1];": ["ld.volatile.global.b32 %r1, [%rd1+16];"],
    "ld.v2.b32 {%r1, %r2}, [%rd1];": ["ld.v2.b32 {%r1, %r2}, [%rd1+16];"],
    "ld.shared.b32 %r1, [tile];": ["ld.shared.b32 %r1, [tile+16];"],
    "mapa.shared::cluster.u32 %r1, %r2, %r3;": ["mov.u32 %r1, %r2;"],
    "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r2];": [
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r2+16];"
    ],
    "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r1};": [
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2+16], {%r1};"
    ],
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;": [
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+16], 32;"
    ],
    f"{WGMMA}, %rd1, %rd2, %p1, 1, 1, 0, 0;": [
        "{ .reg .b64 %bent; add.s64 %bent, %rd1, 8; "
        + f"{WGMMA}, %bent, %rd2, %p1, 1, 1, 0, 0; }}",
        "{ .reg .b64 %bent; add.s64 %bent, %rd2, 8; "
        + f"{WGMMA}, %rd1, %bent, %p1, 1, 1, 0, 0; }}",
    ],
    f"{TCGEN05}%rd1, %rd2, %r2, %p1;": [
        TCGEN05.replace("[%r1]", "[%r1+16]") + "%rd1, %rd2, %r2, %p1;",
        "{ .reg .b64 %bent; add.s64 %bent, %rd1, 8; " + f"{TCGEN05}%bent, %rd2, %r2, %p1; }}",
        "{ .reg .b64 %bent; add.s64 %bent, %rd2, 8; " + f"{TCGEN05}%rd1, %bent, %r2, %p1; }}",
    ],
}


def every_mutant(line: str) -> list[str]:
    """Return what all opcodes make of an instruction."""
    return [mutant.new for opcode in ALL for mutant in mutants(line, frozenset((1,)), opcode)]


def compiles(line: str) -> bool:
    """Return whether the emulator knows an instruction."""
    target = "sm_100a" if "tcgen05" in line or "cluster" in line else "sm_90a"
    LoadedModule(module(f"{REGISTERS}{line}", 0, target)).kernel("k")
    return True


@pytest.mark.parametrize("line", TAKEN_OUT)
def test_what_synchronises_is_taken_out(line: str) -> None:
    assert compiles(line)
    assert "" in every_mutant(line)


@pytest.mark.parametrize("line", BENT)
def test_every_address_descriptor_and_count_is_bent_and_remains_ptx(line: str) -> None:
    assert compiles(line)
    assert every_mutant(line) == BENT[line]
    assert all(compiles(new) for new in BENT[line])


def test_what_is_done_to_an_instruction_is_said_unless_it_is_taken_out() -> None:
    text = "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r2;"
    (gone,) = mutants(text, frozenset((1,)), "mbarrier.arrive")
    (more,) = mutants(text, frozenset((1,)), "mbarrier.arrive.expect_tx")
    assert gone.described == text
    assert more.described == f"{text} (%r2 + 16)"


def test_a_bent_count_of_bytes_is_one_that_never_comes() -> None:
    line = "@%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 256;"
    body = f"""
      .reg .b32 %tid, %bar; .reg .b64 %from; .reg .pred %p, %done;
      .shared .align 16 .b8 tile[256]; .shared .align 8 .b64 mbar;
      mov.u32 %tid, %tid.x; mov.u32 %bar, mbar; ld.param.u64 %from, [p0]; setp.eq.u32 %p, %tid, 0;
      @%p mbarrier.init.shared::cta.b64 [%bar], 1;
      bar.sync 0;
{line}
      @%p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%from], 256, [%bar];
    L: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;
      @!%done bra L;
    """
    (place,) = (number for number, each in enumerate(body.split("\n"), 1) if each == line)
    (more,) = mutants(body, frozenset((place,)), "mbarrier.arrive.expect_tx")
    source = np.zeros(64, np.uint32)
    run(body, [source])
    with pytest.raises(DeadlockError, match="16 bytes still expected"):
        run(more.apply(body), [source])


COPY = """
  .reg .b32 %tid, %bar, %x, %at, %zero; .reg .b64 %from, %to; .reg .pred %p, %done;
  .shared .align 16 .b8 tile[128]; .shared .align 8 .b64 mbar;
  mov.u32 %tid, %tid.x; mov.u32 %bar, mbar; mov.u32 %at, tile; mad.lo.u32 %at, %tid, 4, %at;
  ld.param.u64 %from, [p0]; ld.param.u64 %to, [p1]; mad.wide.u32 %to, %tid, 4, %to;
  setp.eq.u32 %p, %tid, 0; mov.u32 %zero, 0;
  @%p mbarrier.init.shared::cta.b64 [%bar], 1;
  bar.sync 0;
  @%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 128;
  @%p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%from], 128, [%bar];
L:
  mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], %zero;
  @!%done bra L;
  bar.sync 1, 32;
  ld.shared.b32 %x, [%at]; st.global.b32 [%to], %x;
"""
IN_GROUPS = """
  .reg .b32 %tid, %x, %at; .reg .b64 %from, %to;
  .shared .align 16 .b8 tile[128];
  mov.u32 %tid, %tid.x; mov.u32 %at, tile; mad.lo.u32 %at, %tid, 4, %at;
  ld.param.u64 %from, [p0]; ld.param.u64 %to, [p1];
  mad.wide.u32 %from, %tid, 4, %from; mad.wide.u32 %to, %tid, 4, %to;
  cp.async.ca.shared.global [%at], [%from], 4;
  cp.async.commit_group;
  cp.async.wait_group 0;
  ld.shared.b32 %x, [%at]; st.global.b32 [%to], %x;
"""


def copied(body: str) -> bool:
    """Run a copy of 32 numbers through shared memory; return whether they arrive."""
    numbers, result = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    run(body, [numbers, result], schedule=LATE)
    return bool((result == numbers).all())


@pytest.mark.parametrize(
    ("body", "opcode", "changes"),
    [
        (COPY, "mbarrier.init", ["taken out", "1 + 1"]),
        (COPY, "mbarrier.try_wait", ["taken as over", "%zero ^ 1"]),
        (COPY, "bar.sync", ["taken out", "taken out", "32 + 32"]),
        (IN_GROUPS, "cp.async.wait_group", ["taken out", "up to 1"]),
    ],
)
def test_a_bent_count_parity_or_group_is_noticed(
    body: str, opcode: str, changes: list[str]
) -> None:
    assert copied(body)
    every = list(mutants(body, frozenset(range(1, body.count("\n") + 2)), opcode))
    assert [mutant.change for mutant in every] == changes
    bent = [mutant for mutant in every if mutant.change != "taken out"]
    assert all(noticed(lambda mutant=mutant: copied(mutant.apply(body))) for mutant in bent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("opcode", "schedule", "redundant"),
    [
        ("fence.proxy.async", EAGER, 0),
        ("wgmma.fence", EAGER, 1),  # of the main loop: nothing writes registers since the first
        ("wgmma.wait_group", LATE, 0),
        ("cp.async.bulk.commit_group", LATE, 0),
        ("cp.async.bulk.wait_group", LATE, 2),  # where no more groups are pending than it allows
    ],
)
def test_a_missing_instruction_is_noticed(
    runtime: Runtime, opcode: str, schedule: Schedule, redundant: int
) -> None:
    gpu, texts = target("H100"), list[str]()

    def kept(text: str) -> str:
        texts.append(text)
        return text

    def right() -> bool:
        outcome = gemm.run(runtime, CASE, gpu, schedule)
        return outcome.error <= 1 and not outcome.changed and not outcome.launches[0].unfinished

    with runtime.edited(kept):
        outcome = gemm.run(runtime, CASE, gpu, schedule)
    assert outcome.error <= 1
    missed: list[str] = []
    every = mutants(texts[0], outcome.launches[0].lines, opcode)
    for mutant in (each for each in every if each.change == "taken out"):
        with runtime.edited(mutant.apply):
            if not noticed(right):
                missed.append(f"line {mutant.line}: {mutant.old.strip()}")
    assert len(missed) <= redundant, missed
