"""The test of the tests: without one of its synchronising instructions a kernel is found wrong."""

from __future__ import annotations

import pytest

from inductor_plugin.problem.target import target
from tests.emulator.kernels import gemm
from tests.emulator.kernels.gemm import Case
from tests.emulator.kernels.mutants import Mutant, mutants, noticed
from tests.emulator.kernels.test_gemm import BF16
from tests.emulator.machine.schedule import EAGER, LATE, Schedule
from tests.emulator.runtime.runtime import Runtime

CASE = Case(BF16, 259, 136, 1096, multiprocessors=2)
"""Several tiles a block, and K longer than the stages."""


def test_mutants_are_those_instructions_that_ran() -> None:
    text = "  bar.sync 0;\n@%p1 bar.sync 1, 64;\nbar.syncs 2;\nbar.sync 3;\n"
    results = list(mutants(text, frozenset((1, 2, 3)), "bar.sync"))
    assert [mutant.line for mutant in results] == [1, 2]
    assert results[1].apply(text).split("\n")[1] == "bar.warp.sync -1;"
    assert results[0] == Mutant(1, "bar.sync", "  bar.sync 0;", "bar.warp.sync -1;")


def test_a_wait_is_taken_as_over_and_an_address_is_moved() -> None:
    wait = "mbarrier.try_wait.parity.shared::cta.b64 %p7, [%r3], %r4;"
    store = "@%p1 st.shared.v4.b32 [%r9+-32], {%r1, %r2, %r3, %r4};"
    load = "ld.global.b32 %r1, [%rd4];"
    text, ran = "\n".join((wait, store, load)), frozenset((1, 2, 3))
    (over,) = mutants(text, ran, "mbarrier.try_wait")
    assert over.new == "setp.eq.u32 %p7, 0, 0;"
    (moved,) = mutants(text, ran, "st.shared")
    assert moved.new == store.replace("[%r9+-32]", "[%r9+-16]")
    (moved,) = mutants(text, ran, "ld.global")
    assert moved.new == load.replace("[%rd4]", "[%rd4+16]")


def test_a_copy_by_tma_has_its_address_in_shared_memory_moved_by_a_line_of_it() -> None:
    load = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2, {%r3, %r4}], [%r5];"
    store = (
        "@%p1 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd2, {%r3, %r4}], [%r1+64];"
    )
    first, second = mutants(f"{load}\n{store}", frozenset((1, 2)), "cp.async.bulk.tensor")
    assert first.new == load.replace("[%r1]", "[%r1+128]")
    assert second.new == store.replace("[%r1+64]", "[%r1+192]")


def test_the_beginning_of_an_opcode_is_no_other_opcode() -> None:
    text = "cp.async.commit_group;\nredux.sync.add.s32 %r1, %r2, -1;\nbar.warp.sync -1;\nfence.proxy.async;"
    ran = frozenset(range(1, 5))
    for opcode in ("cp.async.c", "red", "bar.sync", "fence.proxy.tensormap"):
        assert list(mutants(text, ran, opcode)) == []
    assert len(list(mutants(text, ran, "bar.warp.sync"))) == 1


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
    for mutant in mutants(texts[0], outcome.launches[0].lines, opcode):
        with runtime.edited(mutant.apply):
            if not noticed(right):
                missed.append(f"line {mutant.line}: {mutant.old.strip()}")
    assert len(missed) <= redundant, missed
