from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.errors import WorkerError
from inductor_plugin.kernels.call import (
    CppKernel,
    ExternKernel,
    RequestKernel,
    TensorSpec,
)
from inductor_plugin.kernels.unit import CppSource
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.worker import cpu_timer
from inductor_plugin.worker.bench_farm.bench import Bench, FarmBench, finder_of
from inductor_plugin.worker.bench_worker import BenchWorker, measure_in_process
from inductor_plugin.worker.child import inductor
from inductor_plugin.worker.child.operands import GuardedOutput, build
from inductor_plugin.worker.compile_pool import CompilePool
from inductor_plugin.worker.cpu_timer import CpuTimer
from inductor_plugin.worker.devices.lookup import facts_of
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    CallJob,
    Compiled,
    CppCompileJob,
    FinalJob,
    Outcome,
    Sampling,
    ScreenJob,
    Status,
)
from tests.support.candidates import faults
from tests.support.candidates.operands import tensor
from tests.support.fakes.nodes import FakeBenchCluster, bench_on
from tests.support.fakes.waiting import wait_idle
from tests.support.worker.benched import LIBRARY, SETTINGS, A, B, C, candidate

QUICK = Sampling(warmup=1, samples=3, min_sample_ms=0.05, max_total_s=5.0, cold_cache=False)
TOLERANCE = 1e-4
CHECK = NumberCheck(Tolerance(TOLERANCE, TOLERANCE))


def job(competitor: BenchCandidate, library: BenchCandidate | None = LIBRARY) -> ScreenJob:
    return ScreenJob("one problem", library, competitor, QUICK, CHECK if library else None)


@pytest.fixture(
    name="worker",
    scope="module",
    params=["local", "farm", pytest.param("ray", marks=pytest.mark.slow)],
)
def a_worker(request: pytest.FixtureRequest) -> Generator[Bench, None, None]:
    """The local worker, and that of a farm: on a node in this process, and on one of Ray. What one passes, all pass."""
    worker: Bench = BenchWorker(SETTINGS)
    if request.param == "farm":
        worker = bench_on(FakeBenchCluster("node"), SETTINGS)
    if request.param == "ray":
        address: str = request.getfixturevalue("measuring_cluster").address
        device = str(facts_of("cpu")["name"])
        worker = FarmBench(
            SETTINGS, finder_of(f"ray:{address}", SETTINGS, device, lambda node: None)
        )
    worker.prewarm()
    yield worker
    worker.close()


def test_library_kernels_and_candidates_are_measured(worker: Bench):
    assert worker.why_not_available() is None
    outcome = worker.screen(job(LIBRARY))
    assert (outcome.status, len(outcome.samples_ms), outcome.error) == ("ok", 3, None)
    outcome = worker.screen(job(candidate("good")))
    assert (outcome.status, len(outcome.samples_ms), outcome.reason) == ("ok", 3, "")
    assert outcome.error is not None
    assert 0 <= outcome.error < TOLERANCE
    assert outcome.elapsed_s > 0


@pytest.mark.parametrize(
    ("fault", "status", "reason", "restarted"),
    [
        ("raises", "raised", "ValueError: this candidate raises", False),
        ("segfaults", "crashed", "SIGSEGV", True),
        ("hangs", "hung", "ended after 1.0 s", True),
        ("hangs_busy", "hung", "ended after 1.0 s", True),
        ("no_memory", "out_of_memory", "can't allocate memory", False),
        ("killed", "out_of_memory", "SIGKILL", True),
        ("sticky", "sticky_error", "illegal memory access", True),
        ("wrong", "wrong", "error 0.0", False),
        ("writes_nothing", "wrong", "NaN", False),
        ("overruns", "red_zone", "16 bytes behind", True),
    ],
)
def test_a_fault_costs_that_candidate_alone(
    worker: Bench,
    caplog: pytest.LogCaptureFixture,
    fault: str,
    status: Status,
    reason: str,
    restarted: bool,
):
    assert worker.screen(job(candidate("good"))).status == "ok"
    before = worker.pid
    with caplog.at_level(logging.DEBUG):
        outcome = worker.screen(job(candidate(fault, timeout_s=1.0)))
    assert (outcome.candidate_id, outcome.status) == (fault, status)
    assert reason in outcome.reason
    assert "\n" not in outcome.reason
    assert outcome.samples_ms == ()
    assert f"measuring {fault}" in caplog.text
    assert worker.screen(job(candidate("good"))).status == "ok"
    assert (worker.pid != before) is restarted


def test_who_runs_out_of_memory_that_others_hold_is_measured_another_time():
    worker = BenchWorker(SETTINGS)
    try:
        outcome = worker.screen(job(candidate("crowded")))
        assert (outcome.status, outcome.no_device) == ("skipped", True)
        assert "others hold 78.8 GiB of the device's 80.0" in outcome.reason
        worker.release()
        assert worker.pid is not None
    finally:
        worker.close()


def test_a_candidate_that_dirties_its_operands_does_not_make_others_wrong(worker: Bench):
    assert worker.screen(job(candidate("good"))).status == "ok"
    worker.screen(job(candidate("dirty")))
    assert worker.screen(job(candidate("good"))).status == "ok"


def test_a_library_kernel_that_fails_is_not_the_candidate_s_fault(worker: Bench):
    library = candidate("raises")
    fresh = replace(job(candidate("good"), library), problem_id="another problem")
    outcome = worker.screen(fresh)
    assert (outcome.candidate_id, outcome.status) == ("good", "skipped")
    assert outcome.reason.startswith("raises: raised: ValueError")
    assert worker.screen(job(candidate("good"))).status == "ok"


def test_operands_that_cannot_be_built_are_not_the_candidate_s_fault(worker: Bench):
    huge = replace(LIBRARY, inputs=(tensor(1 << 20, 1 << 20), B))
    outcome = worker.screen(job(huge, None))
    assert outcome.status == "skipped"
    assert "operands" in outcome.reason


def test_finals_go_on_without_the_one_that_breaks(worker: Bench):
    racers = (LIBRARY, candidate("breaks_later"), candidate("good"))
    outcomes = worker.final(FinalJob("one problem", racers, 12, QUICK))
    assert [outcome.candidate_id for outcome in outcomes] == ["library-mm", "breaks_later", "good"]
    library, broken, good = outcomes
    assert broken.status == "crashed"
    assert library.status == good.status == "ok"
    # Those from before the crash are kept; on a busy machine not all turns are calm.
    assert 0 < len(library.samples_ms) == len(good.samples_ms) <= 13


def test_finals_stop_when_their_time_is_over(worker: Bench):
    short = replace(QUICK, max_total_s=0.0)
    outcomes = worker.final(FinalJob("one problem", (LIBRARY, candidate("good")), 99999, short))
    assert [outcome.candidate_id for outcome in outcomes] == ["library-mm", "good"]
    assert all(0 < len(outcome.samples_ms) < 99999 for outcome in outcomes)


@pytest.mark.parametrize(
    ("name", "inputs", "output", "options"),
    [
        ("addmm", (tensor(8, seed=3), A, B), C, {}),
        ("bmm", (tensor(4, 16, 32), tensor(4, 32, 8)), tensor(4, 16, 8), {}),
        ("baddbmm", (C, A, B), C, None),
        ("_int_mm", (tensor(32, 32, dtype="int8"), tensor(32, 32, dtype="int8")), None, {}),
        ("convolution", (tensor(1, 3, 8, 8), tensor(4, 3, 3, 3)), tensor(1, 4, 6, 6), "conv"),
    ],
)
def test_library_kernels_of_other_products_run(
    worker: Bench, name: str, inputs: Any, output: Any, options: Any
):
    if name == "baddbmm":
        inputs = tensor(4, 16, 8), tensor(4, 16, 32), tensor(4, 32, 8)
        output = tensor(4, 16, 8)
    if name == "_int_mm":
        output = tensor(32, 32, dtype="int32")
    keywords: tuple[tuple[str, Any], ...] = ()
    if options == "conv":
        pairs = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "transposed": False}
        keywords = (*pairs.items(), ("bias", None), ("output_padding", (0, 0)), ("groups", 1))
    kernel = ExternKernel(name, keywords, has_out=options != "conv")
    competitor = BenchCandidate(name, kernel, inputs, output, 20.0)
    outcome = worker.screen(ScreenJob(name, None, competitor, QUICK, None))
    assert outcome.status == "ok", outcome.reason


@pytest.mark.parametrize("packing", ["mkl_linear", "mkldnn_linear"])
def test_packed_weights_are_packed_in_the_worker(worker: Bench, packing: str):
    available = torch.backends.mkl if packing == "mkl_linear" else torch.backends.mkldnn
    if not available.is_available():
        pytest.skip(f"this torch is built without {packing.partition('_')[0]}")
    weight = tensor(8, 32, seed=2, stride=(1, 8))  # the library kernel's B, transposed
    packed = replace(weight, packing=packing, packing_batch=16)
    if packing == "mkl_linear":
        kernel = ExternKernel("_mkl_linear", (("B", None), ("batch_size", 16)), has_out=False)
        inputs = A, packed, weight
    else:
        words: tuple[tuple[str, Any], ...] = (
            ("B", None),
            ("attr", "none"),
            ("scalars", []),
            ("algorithm", ""),
        )
        kernel = ExternKernel("_linear_pointwise", words, has_out=False)
        inputs = A, packed
    outcome = worker.screen(job(BenchCandidate(packing, kernel, inputs, C, 20.0)))
    assert outcome.status == "ok", outcome.reason
    assert outcome.error is not None


def test_a_compiled_kernel_runs_with_weights_from_a_file(worker: Bench, tmp_path: Path):
    text = """
#include <cstdint>
extern "C" void gemm(const float* a, const float* bt, float* c, uint64_t m)
{
    for (uint64_t i = 0; i < m; ++i)
        for (int j = 0; j < 8; ++j) {
            float sum = 0;
            for (int k = 0; k < 32; ++k) sum += a[i * 32 + k] * bt[j * 32 + k];
            c[i * 8 + j] = sum;
        }
}
"""
    command = ("g++", "{source}", "-O1", "-shared", "-fPIC", "-o", "{output}")
    answers: list[Compiled] = []
    pool = CompilePool(1, replace(SETTINGS, kind="compile"), 0)
    compile_job = CppCompileJob((CppSource("k", text, "gemm"),), command, str(tmp_path), 60.0)
    pool.submit(compile_job, answers.extend)
    assert wait_idle(pool, 60.0)
    pool.close()
    file = tmp_path / "transposed.bin"
    file.write_bytes(build(B).t().contiguous().numpy().tobytes())
    assert answers[0].library is not None
    kernel = CppKernel(answers[0].symbol, answers[0].library, (16,))
    competitor = BenchCandidate("cpp", kernel, (A, tensor(8, 32, file=str(file))), C, 20.0)
    outcome = worker.screen(job(competitor))
    assert outcome.status == "ok", outcome.reason
    assert len(outcome.samples_ms) == 3
    cold = replace(job(competitor), sampling=replace(QUICK, cold_cache=True))
    assert (
        worker.screen(cold).status == "ok"
    )  # its echo has addresses of memory that is still there
    too_far = replace(competitor, kernel=replace(kernel, sizes=(17,)))
    assert worker.screen(job(too_far)).status == "red_zone"


def test_a_worker_computes_as_its_parent_does(worker: Bench):
    assert worker.call(CallJob("torch", "get_num_threads"), 60.0) == 3
    assert worker.call(CallJob("torch", "get_float32_matmul_precision"), 60.0) == "medium"
    assert worker.call(CallJob("torch", "are_deterministic_algorithms_enabled"), 60.0) is True
    assert worker.call(CallJob("torch", "is_grad_enabled"), 60.0) is False
    code = "import torch; assert torch.backends.cuda.matmul.allow_tf32"
    assert worker.call(CallJob("builtins", "exec", (code,)), 60.0) is None
    code = "assert 'torch._inductor.lowering' not in __import__('sys').modules"  # seconds saved
    assert worker.call(CallJob("builtins", "exec", (code,)), 60.0) is None


def test_a_worker_that_never_starts_is_an_error_after_two_attempts():
    worker = BenchWorker(replace(SETTINGS, sys_path=()))
    with pytest.raises(WorkerError, match="does not start"):
        worker.screen(job(candidate("good")))
    assert worker._process.starts == 2  # pyright: ignore[reportPrivateUsage]
    assert "does not start" in str(worker.why_not_available())
    assert worker._process.starts == 4  # pyright: ignore[reportPrivateUsage]
    worker.close()


def test_a_pickled_request_makes_its_own_launch(worker: Bench):
    kernel = RequestKernel(pickle.dumps(faults.Request()))
    competitor = BenchCandidate("request", kernel, (A, B), C, 60.0)
    assert worker.screen(job(competitor)).status == "ok"
    broken = replace(competitor, kernel=RequestKernel(b"no pickle"))
    assert worker.screen(job(broken)).status == "raised"


def test_what_cannot_travel_is_measured_at_home():
    outcome = measure_in_process(lambda: sum(range(100)), "here", QUICK, 10.0)
    assert (outcome.candidate_id, outcome.status) == ("here", "ok")
    assert len(outcome.samples_ms) == 3


def test_at_home_operands_are_in_the_caches_in_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no others for an echo, and a library kernel whose code is cold is no match for rivals whose code is not."""
    calls: list[str] = []

    def evict(_: CpuTimer) -> None:
        calls.append("evicted")

    monkeypatch.setattr(CpuTimer, "_evict", evict)
    monkeypatch.setattr(cpu_timer, "_MOST_CALLS", 2)  # whatever else runs here
    cold = replace(QUICK, samples=1, warmup=0, cold_cache=True)
    assert measure_in_process(lambda: calls.append("called"), "here", cold, 10.0).status == "ok"
    _, *behind = "".join(each[0] for each in calls).split("e")
    assert set(behind) == {"c" * 5}  # an echo, the call, one that is not timed, two that are


def test_at_home_too_a_candidate_may_raise_or_hang():
    def fail() -> None:
        raise MemoryError("no more")

    assert measure_in_process(fail, "here", QUICK, 10.0).status == "out_of_memory"
    started = time.monotonic()
    outcome = measure_in_process(lambda: time.sleep(3), "here", QUICK, 0.3)
    assert outcome == Outcome("here", "hung", outcome.reason, elapsed_s=outcome.elapsed_s)
    assert time.monotonic() - started < 2


def test_a_limit_of_zero_is_none(worker: Bench):
    assert worker.screen(job(candidate("good", timeout_s=0.0))).status == "ok"
    assert measure_in_process(lambda: None, "here", QUICK, 0.0).status == "ok"


@pytest.mark.compat
def test_the_short_cuts_are_inductor_s_own_functions():
    registered = inductor.load_inductor()
    for name in inductor.SHORT_CUTS:
        assert inductor.extern_function(name) == getattr(registered, name)
    assert inductor.extern_function("bias_addmm") is registered.bias_addmm
    with pytest.raises(LookupError, match="no_such_kernel"):
        inductor.extern_function("no_such_kernel")


@pytest.mark.parametrize(
    "spec",
    [
        tensor(4, 6),
        tensor(4, 6, dtype="bfloat16", stride=(1, 4), offset=5),
        tensor(4, 6, dtype="float8_e4m3fn"),
        tensor(4, 6, dtype="int8"),
        tensor(4, 6, dtype="uint8"),
        tensor(4, 6, dtype="bool"),
        tensor(4, 6, dtype="complex64"),
        tensor(4, 6, stride=(0, 1)),
        tensor(0, 6),
    ],
    ids=lambda spec: f"{spec.dtype}-{spec.stride}",
)
def test_operands_are_as_specified_and_the_same_each_time(spec: TensorSpec):
    left, other = build(spec), build(spec)
    assert (tuple(left.shape), left.stride()) == (spec.size, spec.stride)
    assert (str(left.dtype), left.storage_offset()) == (f"torch.{spec.dtype}", spec.offset)
    assert torch.equal(left.to(torch.complex64), other.to(torch.complex64))
    changed = build(replace(spec, seed=9))
    assert not left.numel() or not torch.equal(
        left.to(torch.complex64), changed.to(torch.complex64)
    )


def test_a_view_and_its_base_hold_the_same_values():
    base = tensor(5, 12, seed=4, storage=60)
    view = replace(base, size=(5, 4), offset=4)
    assert torch.equal(build(view), build(base)[:, 4:8])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32", "float8_e5m2"])
def test_a_guarded_output_is_whole_until_someone_writes_outside(dtype: str):
    spec = tensor(5, 7, dtype=dtype, stride=(9, 1), offset=3)
    guarded = GuardedOutput(spec)
    assert (guarded.tensor.stride(), guarded.overrun()) == (spec.stride, None)
    assert guarded.tensor.data_ptr() % guarded.tensor.element_size() == 0
    if dtype != "int32":
        assert guarded.tensor.float().isnan().all()
    guarded.tensor.zero_()
    assert guarded.overrun() is None
    place = guarded.tensor.storage_offset()
    for outside, words in ((place + 100, "behind"), (place - 100, "before")):
        torch.as_strided(guarded.tensor, (1,), (1,), outside).zero_()
        assert words in str(guarded.overrun())
