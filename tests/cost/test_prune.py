"""Which fusions are pruned, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inductor_plugin.cache import Resources
from inductor_plugin.config import Config
from inductor_plugin.cost.fusion_time import HOST_LAUNCH_US, recomputed_us, repeats
from inductor_plugin.cost.limits import Limits, guard, guard_registers, limits_of
from inductor_plugin.cost.prune import PREDICTED_SPILLS_BYTES, predict
from inductor_plugin.cost.registers import Kernel, unfused_needs
from inductor_plugin.cost.shortlist import FusionEstimate
from inductor_plugin.kernels.resources import SPILL_LIMIT_BYTES
from inductor_plugin.problem.epilogue import Epilogue
from inductor_plugin.problem.target import target
from tests.support.graphs.chains import M, N, access, epilogue, gelu

H200 = target("H200")
K = 2048
TILE = Kernel(
    template="mm",
    tile=(128, 128, 64),
    warps=8,
    stages=3,
    registers=98,
    spilled_bytes=0,
    shared_bytes=65536,
    shape=(M, N, K),
)
LARGE = replace(TILE, tile=(128, 256, 64), registers=179, shared_bytes=98304)
HUGE = replace(TILE, tile=(256, 256, 64), registers=255, shared_bytes=98304)


def estimate(kernel: Kernel, fused: Epilogue, unfused_us: float = 20.0) -> FusionEstimate:
    return FusionEstimate(kernel, fused, H200, Limits(), unfused_us)


def kept(*facts: Any) -> bool:
    """Return whether a fusion is worth compiling."""
    return estimate(*facts).why_not() is None


def pruned(*facts: Any) -> str:
    """Return why a fusion is not worth compiling."""
    reason = estimate(*facts).why_not()
    assert reason is not None
    return reason


def test_a_simple_epilogue_is_kept_and_takes_what_the_kernel_takes() -> None:
    assert kept(TILE, epilogue("relu"))
    fused = predict(TILE, epilogue("relu"), H200).fused
    assert (fused.registers, fused.spilled_bytes, fused.shared_bytes) == (98, 0, 65536)


def test_a_reduction_needs_a_template_that_can() -> None:
    summed = epilogue("relu", reduction="sum")
    assert pruned(TILE, summed).startswith("reduction: sum ")
    assert kept(replace(TILE, reduces=True), summed)


def test_a_product_read_through_a_view_is_pruned() -> None:
    assert pruned(TILE, epilogue("relu", product="other")).startswith("view: ")


def test_a_gathered_operand_is_for_triton_alone() -> None:
    gathered = epilogue("relu", reads=(replace(access("other", buffer="buf7"), elements=64),))
    assert kept(TILE, gathered)
    assert "(buf7)" in pruned(replace(TILE, kind="cutlass"), gathered)


def test_what_memory_gives_in_no_order_costs_a_sector_an_element() -> None:
    full = predict(TILE, epilogue(reads=(access(),)), H200).fused_extra_us.expected
    gathered = predict(TILE, epilogue(reads=(access("other"),)), H200).fused_extra_us.expected
    assert gathered > 10 * full > 0


def test_other_readers_save_less_and_write_more() -> None:
    alone = predict(TILE, epilogue("relu"), H200)
    several = predict(TILE, epilogue("relu", readers=2), H200)
    assert several.fused_extra_us.expected > alone.fused_extra_us.expected
    assert several.separate_us == alone.separate_us


def test_mutation_and_atomic_adds_are_told_apart() -> None:
    assert pruned(TILE, epilogue("relu", mutates=True)).startswith("mutation: ")
    atomic = epilogue("relu", atomic=True, mutates=True)
    assert kept(TILE, atomic)
    assert pruned(replace(TILE, kind="cutlass"), atomic).startswith("atomic add: ")


def prologue(*operations: str) -> Epilogue:
    return epilogue(*operations, position="prologue", writes=())


def test_a_prologue_is_computed_again_for_each_tile() -> None:
    few, many = replace(TILE, shape=(M, 128, K)), replace(TILE, shape=(M, 1 << 16, K))
    cheap = prologue("mul")
    assert kept(few, cheap)
    assert pruned(many, prologue("erf", "tanh", "erf")).startswith("prologue: computed again")
    times = [predict(tile, cheap, H200).fused_extra_us.expected for tile in (few, TILE, many)]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_the_registers_of_a_prologue_are_those_of_its_compiled_kernel() -> None:
    full = replace(TILE, registers=255)
    assert kept(full, prologue("mul"))
    taken = Resources(255, 200, 65536, 256)
    assert "spills" in str(estimate(full, prologue("mul")).why_not_compiled(taken))


def test_large_operands_do_not_prune_a_cutlass_kernel_that_is_not_compiled() -> None:
    """It has as many stages as its epilogue leaves room for."""
    tile = Kernel("cutlass_gemm", (256, 128, 64), 8, 384, kind="cutlass", persistent=True)
    assert kept(tile, epilogue("relu", reads=(access(),) * 3))


def test_a_prologue_that_widens_its_operand_reads_less() -> None:
    narrow = prologue("mul")
    narrow = replace(narrow, reads=(access(dtype="int8"),), writes=(access(),))
    prediction = predict(replace(TILE, shape=(M, 128, K)), narrow, H200)
    assert prediction.fused_extra_us.expected < 0
    wide = replace(narrow, reads=(access(dtype="float32"),))
    assert predict(replace(TILE, shape=(M, 128, K)), wide, H200).fused_extra_us.expected > 0


def test_a_kernel_that_copies_its_operands_has_no_prologue() -> None:
    for changed in (replace(TILE, kind="cutlass"), replace(TILE, template="triton_persistent_tma")):
        assert "without passing them" in pruned(changed, prologue("mul"))


def test_a_value_that_waits_for_a_library_function_takes_registers() -> None:
    prediction = predict(TILE, gelu(), H200)
    assert prediction.fused.registers > predict(TILE, epilogue("erf"), H200).fused.registers
    assert not prediction.fused.spilled_bytes
    assert pruned(HUGE, gelu()).startswith("spills: ")
    assert predict(HUGE, gelu(), H200).fused.registers == 255


def test_what_is_foretold_has_to_spill_twice_what_is_accepted() -> None:
    fused = predict(LARGE, gelu(), H200).fused
    assert SPILL_LIMIT_BYTES < fused.spilled_bytes <= PREDICTED_SPILLS_BYTES
    assert kept(LARGE, gelu())
    taken = Resources(255, fused.spilled_bytes, fused.shared_bytes, 256)
    assert "spills" in str(estimate(LARGE, gelu()).why_not_compiled(taken))


def test_more_live_values_never_take_fewer_registers() -> None:
    for kernel in (TILE, LARGE, replace(TILE, persistent=True)):
        operands = [epilogue(reads=(access(),) * count) for count in range(7)]
        taken = [predict(kernel, operand, H200).fused.registers for operand in operands]
        assert taken == sorted(taken)
        assert taken[0] >= (kernel.registers or 0)


def test_a_larger_tile_in_a_thread_never_takes_fewer_registers() -> None:
    for chain in (gelu(), epilogue(reads=(access(),) * 3), epilogue("relu")):
        taken = [
            predict(
                replace(TILE, tile=(64, n, 64), warps=4, registers=40), chain, H200
            ).fused.registers
            for n in (16, 32, 64, 128, 256)
        ]
        assert taken == sorted(taken)


def test_what_is_not_compiled_is_estimated() -> None:
    bare = replace(TILE, registers=None, spilled_bytes=None, shared_bytes=None)
    fused = predict(bare, epilogue("relu"), H200).fused
    assert 64 < fused.registers < 128
    assert fused.shared_bytes == 65536
    assert kept(bare, epilogue("relu"))


def test_a_column_operand_is_turned_in_shared_memory() -> None:
    column = epilogue(reads=(access("column", "float32"),))
    assert predict(LARGE, column, H200).fused.shared_bytes == 128 * 256 * 4
    assert (
        predict(LARGE, epilogue(reads=(access("row", "float32"),)), H200).fused.shared_bytes
        == 98304
    )


def test_a_launch_that_fusing_saves_counts_where_the_host_launches() -> None:
    small = replace(epilogue("relu"), size=(64, 64), writes=(replace(access(), elements=4096),))
    two = replace(TILE, registers=98)
    once = predict(two, gelu(), H200, unfused_us=1.0)
    assert 0.0 < once.idle_us < 1.0
    lost_us = HOST_LAUNCH_US / 2  # for fewer blocks: more than the epilogue takes in a graph
    facts = replace(small, steps=gelu().steps), H200, Limits(), lost_us / once.idle_us
    graph = FusionEstimate(two, *facts)
    assert str(graph.why_not()).startswith("occupancy: ")
    host = replace(graph, host_counts=True)
    assert host.why_not() is None
    longer = replace(host, unfused_us=4 * host.unfused_us)
    assert str(longer.why_not()).startswith("occupancy: ")


def test_fewer_blocks_cost_time_that_the_epilogue_may_not_save() -> None:
    two = replace(TILE, registers=98)
    assert predict(two, gelu(), H200).fused.blocks < predict(two, gelu(), H200).alone.blocks
    assert pruned(two, gelu(), 1000.0).startswith("occupancy: ")
    assert kept(two, gelu(), 20.0)
    assert kept(replace(two, persistent=True), gelu(), 1000.0)


@pytest.mark.parametrize(
    ("taken", "begins"),
    [
        (Resources(200, 0, 65536, 256), None),
        (Resources(255, 64, 65536, 256), None),
        (Resources(255, 65, 65536, 256), "spills: 65 "),
        (Resources(255, 0, 1 << 20, 256), "shared memory: "),
        (Resources(None, None, None, None), None),
    ],
)
def test_the_compiled_kernel_is_judged_by_what_it_takes(
    taken: Resources, begins: str | None
) -> None:
    reason = estimate(TILE, gelu()).why_not_compiled(taken)
    if begins is None:
        assert reason is None
    else:
        assert str(reason).startswith(begins)


def test_spills_that_were_there_before_are_no_reason() -> None:
    spilling = replace(TILE, spilled_bytes=100)
    assert estimate(spilling, gelu()).why_not_compiled(Resources(98, 100, 0, 256)) is None
    assert estimate(spilling, gelu()).why_not_compiled(Resources(98, 101, 0, 256)) is not None


def test_the_compiled_kernel_counts_and_not_what_was_foretold() -> None:
    assert not kept(HUGE, gelu())
    assert estimate(HUGE, gelu()).why_not_compiled(Resources(250, 0, 98304, 256)) is None


def test_a_product_that_fits_the_second_level_cache_is_read_faster() -> None:
    small = replace(epilogue("relu"), size=(512, 512))
    large = replace(epilogue("relu"), size=(1 << 15, 1 << 12))
    for tile in (small, large):
        separate_us = predict(TILE, tile, H200).separate_us
        assert separate_us.low < separate_us.expected < separate_us.high
    a100 = target("A100")
    bytes_apart = predict(TILE, epilogue("relu"), a100).separate_us.expected
    assert bytes_apart > predict(TILE, epilogue("relu"), H200).separate_us.expected


def test_limits_of_the_options_are_guards() -> None:
    several = epilogue(reads=tuple(access(buffer=f"buf{i}") for i in range(4)))
    assert guard(several, Limits()) is None
    assert guard(several, Limits(buffers=7, arguments=7)) is None
    assert "max_fusion_buffers is 6" in str(guard(several, Limits(buffers=6)))
    assert "max_kernel_arguments is 6" in str(guard(several, Limits(arguments=6)))
    assert "read and write 8" in str(guard(replace(several, readers=1), Limits(buffers=7)))
    assert "take 8" in str(guard(several, Limits(arguments=7), operands=3))


def test_a_tensor_read_twice_counts_once() -> None:
    twice = epilogue(reads=(access(buffer="buf1"), access("row", buffer="buf1")))
    assert guard(twice, Limits(buffers=4)) is None
    assert guard(twice, Limits(buffers=3)) is not None


def test_registers_have_a_limit_of_their_own() -> None:
    assert guard_registers(200, Limits()) is None
    assert guard_registers(200, Limits(registers=200)) is None
    assert "max_fusion_registers is 199" in str(guard_registers(200, Limits(registers=199)))


def test_limits_are_those_of_the_device_type() -> None:
    config = Config.load({"max_fusion_buffers": "cuda=24,64", "max_fusion_registers": 128}, {})
    assert limits_of(config, "cuda") == Limits(24, 0, 128)
    assert limits_of(config, "cpu") == Limits(64, 0, 128)


def test_threads_and_sums_of_a_kernel_are_those_of_the_targets_warps() -> None:
    assert (TILE.block_threads(64), TILE.sums(64)) == (2 * TILE.block_threads(), TILE.sums() // 2)
    bare, wide = replace(TILE, registers=None), replace(H200, warp_size=64)
    assert unfused_needs(bare, wide).registers < unfused_needs(bare, H200).registers
    assert unfused_needs(TILE, wide).blocks < unfused_needs(TILE, H200).blocks


def test_a_prologue_is_repeated_along_the_other_operand() -> None:
    wide = replace(TILE, shape=(1024, 512, 256), tile=(64, 128, 32))
    assert repeats(wide, epilogue("relu", size=(1024, 256))) == 4  # of A, by the tiles along n
    assert repeats(wide, epilogue("relu", size=(256, 1024))) == 4
    assert repeats(wide, epilogue("relu", size=(256, 512))) == 16  # of B, by those along m
    assert repeats(wide, epilogue("relu", size=(512, 256))) == 16
    flat = replace(wide, shape=(256, 1024, 128))
    assert repeats(flat, epilogue("relu", size=(128, 1024))) == 4
    square = replace(wide, shape=(1024, 1024, 256))
    assert repeats(square, epilogue("relu", size=(1024, 256))) == 16  # of either
    assert repeats(replace(wide, shape=()), epilogue("relu", size=(256, 512))) == 1


def test_the_threads_of_a_compiled_kernel_count_if_they_are_known() -> None:
    def blocks(threads: int | None) -> int:
        compiled = Resources(registers=64, spills=0, shared_bytes=1024, threads=threads)
        return predict(TILE, epilogue("relu"), H200, compiled=compiled).fused.blocks

    assert (blocks(None), blocks(256), blocks(512)) == (4, 4, 2)


def test_an_a100_computes_a_prologue_again_at_half_the_rate() -> None:
    a100 = target("A100")
    prologue = epilogue("exp", "exp", position="prologue", size=(M, K))
    later = recomputed_us(TILE, prologue, replace(a100, capability=(8, 6)))
    assert later > 0.0
    assert recomputed_us(TILE, prologue, a100) == pytest.approx(2 * later)
