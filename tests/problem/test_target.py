"""Every figure of a target is checked against another one, so that a slip of the pen fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_plugin.errors import InductorPluginError, TargetError
from inductor_plugin.problem.target import Target, from_properties, names, target

ALL = [target(name) for name in names()]
by_name = pytest.mark.parametrize("gpu", ALL, ids=names())

PER_CLOCK: dict[str, dict[str, int]] = {
    # Operations per cycle and multiprocessor: two for each multiply-add of the white papers.
    "A100": {"float16": 2048, "tf32": 1024, "int8": 4096},
    "L40S": {"float16": 1024, "tf32": 512, "int8": 2048, "float8_e4m3fn": 2048},
    "RTX 4090": {"float16": 512, "tf32": 256, "int8": 2048, "float8_e4m3fn": 1024},
    "H100": {"float16": 4096, "tf32": 2048, "int8": 8192, "float8_e4m3fn": 8192},
    "H200": {"float16": 4096, "tf32": 2048, "int8": 8192, "float8_e4m3fn": 8192},
    "B200": {"float16": 8192, "tf32": 4096, "int8": 16384, "float8_e4m3fn": 16384},
}
PER_CAPABILITY = {
    # Shared memory of a multiprocessor in KiB, threads, blocks (CUDA programming guide).
    (8, 0): (164, 2048, 32),
    (8, 9): (100, 1536, 24),
    (9, 0): (228, 2048, 32),
    (10, 0): (228, 2048, 32),
}


def test_the_six_targets_are_there():
    assert names() == ("H100", "H200", "A100", "L40S", "RTX 4090", "B200")


@by_name
def test_rates_are_multiprocessors_times_clock_times_tensor_cores(gpu: Target):
    per_clock = PER_CLOCK[gpu.name]
    per_clock |= {"bfloat16": per_clock["float16"]}
    if "float8_e4m3fn" in per_clock:
        per_clock |= {"float8_e5m2": per_clock["float8_e4m3fn"]}
    assert {dtype for dtype, _ in gpu.rates} == per_clock.keys()
    for dtype, operations in per_clock.items():
        computed = gpu.multiprocessors * gpu.clock_mhz * 1e6 * operations
        assert gpu.rate(dtype) == pytest.approx(computed, rel=0.03), dtype
    assert gpu.clock_mhz <= gpu.max_clock_mhz <= gpu.clock_mhz * 1.1


@by_name
def test_bandwidth_is_two_transfers_a_cycle_over_the_whole_bus(gpu: Target):
    computed = 2 * gpu.memory_clock_mhz * 1e6 * gpu.memory_bus_bits / 8
    assert gpu.memory_bandwidth == pytest.approx(computed, rel=0.03)


@by_name
def test_limits_are_those_of_the_compute_capability(gpu: Target):
    shared_kib, threads, blocks = PER_CAPABILITY[gpu.capability]
    assert gpu.shared_per_multiprocessor == shared_kib << 10
    assert gpu.shared_per_block == (shared_kib - 1) << 10
    assert (gpu.threads_per_multiprocessor, gpu.blocks_per_multiprocessor) == (threads, blocks)
    assert gpu.threads_per_block == 1024
    assert gpu.registers_per_multiprocessor == 65536


@by_name
def test_arch_is_the_capability_with_its_own_instructions(gpu: Target):
    major, minor = gpu.capability
    assert gpu.arch == f"sm_{major}{minor}" + ("a" if major >= 9 else "")


@by_name
def test_memory_is_what_the_name_says_less_what_the_driver_keeps(gpu: Target):
    gigabytes = {"H100": 80, "H200": 141, "A100": 80, "L40S": 48, "RTX 4090": 24, "B200": 180}
    stated = gigabytes[gpu.name]
    assert 0.98 * stated * 1e9 < gpu.memory_bytes <= 1.09 * stated * 1e9
    assert 40 << 20 <= gpu.l2_bytes <= 128 << 20


@by_name
def test_every_figure_has_a_source(gpu: Target):
    assert any("programming guide" in source for source in gpu.sources)
    assert len(gpu.sources) >= 3
    assert all(source.strip() for source in gpu.sources)


def test_chips_that_are_the_same_have_the_same_cores():
    h100, h200 = target("H100"), target("H200")
    assert h200.rates == h100.rates
    assert h200.memory_bandwidth / h100.memory_bandwidth == pytest.approx(1.43, abs=0.01)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("h100", "H100"),
        ("RTX4090", "RTX 4090"),
        ("rtx_4090", "RTX 4090"),
        ("geforce rtx 4090", "RTX 4090"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        (" l40s ", "L40S"),
    ],
)
def test_a_name_is_understood_in_any_case_and_spacing(written: str, meant: str):
    assert target(written).name == meant


def test_an_unknown_name_lists_the_known():
    with pytest.raises(TargetError, match=r"unknown target 'H10'; did you mean 'H100'\?.*L40S"):
        target("H10")
    with pytest.raises(InductorPluginError):
        target("")
    assert issubclass(TargetError, ValueError)


@by_name
def test_its_own_properties_give_it_back(gpu: Target):
    rebuilt = from_properties(gpu.properties())
    rates = dict(rebuilt.rates)
    assert rates == pytest.approx(dict(gpu.rates))
    assert replace(rebuilt, rates=gpu.rates) == gpu


def test_a_whole_known_gpu_is_as_the_table_says():
    facts = target("H100").properties() | {"total_memory": 1 << 30, "clock_rate": 990000}
    assert from_properties(facts) == target("H100")


def test_the_properties_found_on_another_device_win():
    facts = target("H100").properties() | {
        "name": "NVIDIA H100 of another make",
        "total_memory": 1 << 30,
        "clock_rate": 990000,
    }
    gpu = from_properties(facts)
    assert gpu.name == "H100 of another make"
    assert (gpu.memory_bytes, gpu.max_clock_mhz, gpu.clock_mhz) == (1 << 30, 990, 915)
    assert gpu.rate("bfloat16") == pytest.approx(989.4e12 / 2)


def test_a_slice_of_a_gpu_has_the_rate_of_its_multiprocessors():
    facts = target("A100").properties() | {
        "name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "multi_processor_count": 14,
    }
    gpu = from_properties(facts)
    assert gpu.name == "A100-SXM4-80GB MIG 1g.10gb"
    assert gpu.rate("float16") == pytest.approx(312e12 * 14 / 108)


def test_an_unknown_gpu_takes_its_tensor_cores_from_its_capability():
    facts = {"name": "NVIDIA RTX PRO 6000", "major": 12, "minor": 0, "multi_processor_count": 188}
    pro = from_properties(facts)
    assert (pro.arch, pro.name) == ("sm_120a", "RTX PRO 6000")
    per_clock = pro.multiprocessors * pro.clock_mhz * 1e6
    assert pro.rate("bfloat16") == pytest.approx(1024 * per_clock, rel=0.03)
    game = from_properties(facts | {"name": "NVIDIA GeForce RTX 5090"})
    assert game.rate("bfloat16") == pytest.approx(512 * per_clock, rel=0.03)
    assert "its own properties" in game.sources[0]


def test_ampere_cards_have_no_eight_bit_floats():
    facts = {"name": "NVIDIA A40", "major": 8, "minor": 6, "multi_processor_count": 84}
    gpu = from_properties(facts)
    assert gpu.rate("float8_e4m3fn") is None
    assert gpu.rate("bfloat16") is not None
    assert gpu.arch == "sm_86"
    assert gpu.blocks(64, 32, 0) == 16  # of two warps each; 8.9 has 24


def test_what_is_no_gpu_of_a_known_kind_is_an_error():
    v100 = {"name": "Tesla V100", "major": 7, "minor": 0, "multi_processor_count": 80}
    with pytest.raises(TargetError, match=r"compute capability 7\.0"):
        from_properties(v100)
    amd = v100 | {"name": "AMD Instinct MI300X", "gcnArchName": "gfx942", "major": 9, "minor": 4}
    with pytest.raises(TargetError, match="is an AMD GPU"):
        from_properties(amd)


def test_blocks_are_bound_by_the_scarcest_resource():
    h100 = target("H100")
    assert h100.blocks(128, 32, 0) == 16  # 65536 registers are 2048 threads of 32
    assert h100.blocks(128, 255, 0) == 2
    assert h100.blocks(64, 16, 0) == 32
    assert h100.blocks(1024, 32, 0) == 2
    assert h100.blocks(128, 32, 113 << 10) == 2
    assert h100.blocks(128, 32, 114 << 10) == 1
    assert h100.blocks(128, 32, h100.shared_per_block) == 1
    assert h100.blocks(128, 32, h100.shared_per_block + 1) == 0
    assert h100.blocks(1025, 32, 0) == 0
    assert h100.blocks(384, 168, 0) == 1


@by_name
def test_a_warp_of_nvidia_has_32_threads(gpu: Target) -> None:
    assert gpu.warp_size == gpu.properties()["warp_size"] == 32
    assert from_properties(gpu.properties()).warp_size == 32


def test_registers_and_threads_are_counted_by_warps_of_the_target() -> None:
    wide = replace(target("H100"), warp_size=64)
    # 32 threads are a whole warp of 64: 64 KiB of registers are 65536 / (64 * 128) = 8 of them.
    assert wide.blocks(32, 128, 0) == 8
    assert target("H100").blocks(32, 128, 0) == 16
    assert replace(wide, threads_per_multiprocessor=256).blocks(32, 8, 0) == 4
    assert wide.properties()["warp_size"] == 64
    part = wide.properties() | {"multi_processor_count": 66}
    assert from_properties(part).warp_size == 64
