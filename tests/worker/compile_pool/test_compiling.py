"""Compiles in a pool, local or of a farm. What has neither pool nor process here is about texts: a unit's source, a compiler's words."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import Resources
from inductor_plugin.kernels.unit import CppSource, single_unit, unique_symbol
from inductor_plugin.worker import compile_pool
from inductor_plugin.worker.failure import last_lines
from inductor_plugin.worker.farm.pool import Pool
from inductor_plugin.worker.jobs import (
    Compiled,
    CppCompileJob,
    TritonCompileJob,
)
from inductor_plugin.worker.process import WorkerProcess
from tests.support.fakes.waiting import wait_idle
from tests.support.processes.compiling import (
    GXX,
    SETTINGS,
    Pools,
    a_pool,
    all_pools,
    build,
    shell_compiler,
    source,
    times,
)

__all__ = ["a_pool", "all_pools"]  # fixtures


BLOCK = 'extern "C" __attribute__((used)) int32_t const kernel_block[2] = {65536, 128};'


TRITON_SOURCE = """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.template(
    num_stages=2,
    num_warps=4,
    triton_meta={
        "signature": {"arg_A": "*fp32", "out_ptr0": "*fp32"},
        "device": DeviceProperties(
            type="cuda", index=0, multi_processor_count=132, cc=90, major=9,
            regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, warp_size=32,
        ),
        "constants": {},
        "configs": [{(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]}],
    },
    inductor_meta={"kernel_name": "triton_double", "backend_hash": "0", "max_autotune": True},
)
@triton.jit
def triton_double(arg_A, out_ptr0):
    i = tl.program_id(0) * 64 + tl.arange(0, 64)
    tl.store(out_ptr0 + i, 2 * tl.LOAD(arg_A + i))
"""


def test_a_batch_becomes_one_library_with_one_function_each(pool: Pool, tmp_path: Path):
    built = build(pool, tmp_path, source("a" * 64, 2), source("b" * 64, 3), source("c" * 64, 5))
    assert {compiled.status for compiled in built.values()} == {"ok"}
    assert len({compiled.library for compiled in built.values()}) == 1
    assert [times(built[key * 64], 7) for key in "abc"] == [14, 21, 35]
    assert all(compiled.elapsed_s > 0 for compiled in built.values())


def test_kernels_that_begin_alike_share_it_in_one_library(pool: Pool, tmp_path: Path):
    """A counter that all share shows that its text is compiled once."""
    counter = "static int64_t count() { static int64_t calls = 0; return ++calls; }"

    def counting(key: str, factor: int, text: str = counter) -> CppSource:
        kernel = source(key, factor, text)
        body = kernel.source.replace("(x, y);", "(x, y); *y += 100 * count();")
        return replace(kernel, source=body, shares=True)

    sources = [counting("a", 2), counting("b", 3), counting("c", 5, f"{counter}\n// another")]
    built = build(pool, tmp_path, *sources)
    assert {compiled.status for compiled in built.values()} == {"ok"}
    assert [times(built[key], 7) for key in "abc"] == [114, 221, 135]


def test_one_bad_source_does_not_take_its_batch_down(pool: Pool, tmp_path: Path):
    built = build(pool, tmp_path, source("a", 2), source("bad", 3, "int x = y;"), source("c", 5))
    assert [times(built[key], 7) for key in "ac"] == [14, 35]
    assert built["bad"].status == "compile_failed"
    assert "error" in built["bad"].reason
    assert built["bad"].library is None


def test_macros_that_collide_in_one_unit_compile_alone(pool: Pool, tmp_path: Path):
    clash = [source("a", 2, "const int LIMIT = 1;"), source("b", 3, "#define LIMIT 2")]
    built = build(pool, tmp_path, clash[1], clash[0])
    assert [times(built[key], 7) for key in "ab"] == [14, 21]


def test_a_unit_has_each_include_once_and_renames_only_the_function():
    unit = single_unit([source("a", 2), source("b", 3)])
    assert unit.count("#include <cstdint>") == 1
    assert unit.count("kernel_helper<2>") == 1
    assert f"void {unique_symbol(source('a', 2))}(" in unit
    assert "void kernel(" not in unit


def test_what_nvcc_says_of_each_kernel_comes_back_with_it(pool: Pool, tmp_path: Path):
    sources = source("a" * 64, 2, "// TRAP"), source("b" * 64, 3)
    names = [f"unit_{unique_symbol(source_)}" for source_ in sources]

    def says(*kernels: tuple[str, int, int]) -> None:
        lines = [
            f"ptxas info    : Compiling entry function '{name}' for 'sm_80'\n"
            f"    8 bytes stack frame, {spills} bytes spill stores, {spills} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 0 barriers"
            for name, registers, spills in kernels
        ]
        (tmp_path / "said").write_text("\n".join(lines))

    command = shell_compiler(tmp_path, f"cat {tmp_path}/said")
    first, second = (f"_ZN{len(name)}{name}1kEv" for name in names)
    says((first, 255, 68), (second, 40, 0), ("_Z7helperv", 8, 0))
    both = build(pool, tmp_path, *sources, command=command)
    assert [both[source_.key].resources for source_ in sources] == [
        Resources(255, 68),
        Resources(40, 0),
    ]
    says(("_Z1kv", 168, 4), ("_Z6helperv", 32, 12))
    alone = build(pool, tmp_path, sources[0], command=command)
    assert alone[sources[0].key].resources == Resources(168, 12)
    block = source("d" * 64, 2, f"// TRAP\n{BLOCK}")
    exporting = build(pool, tmp_path, block, command=command)
    assert exporting[block.key].resources == Resources(168, 12, shared_bytes=65536, threads=128)
    other = build(pool, tmp_path, sources[1], command=command)
    assert other[sources[1].key].resources is None
    assert times(other[sources[1].key], 7) == 21


def test_what_a_compiler_says_of_good_kernels_is_no_reason():
    figures = (
        "ptxas info    : 0 bytes gmem\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes "
        "spill loads\nptxas info    : Used 24 registers\n"
    )
    assert last_lines(f"{figures}Segmentation fault\n{figures}") == "Segmentation fault"
    died = "nvcc error   : 'ptxas' died due to signal 11 (Invalid memory reference)"
    assert last_lines(f"nvcc warning : old\n{died}\n{figures}") == died
    assert (
        last_lines(f"x.cu(3): error: no such thing\n{figures}") == "x.cu(3): error: no such thing"
    )


def test_a_compiler_that_hangs_costs_its_kernel_alone(pool: Pool, tmp_path: Path):
    command = shell_compiler(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 600")
    started = time.monotonic()
    sources = source("a", 2), source("hangs", 3, "// TRAP"), source("c", 5)
    built = build(pool, tmp_path, *sources, command=command, limit_s=4.0)
    assert built["hangs"].status == "hung"
    assert [times(built[key], 7) for key in "ac"] == [14, 35]
    assert time.monotonic() - started < 100  # the compiler would sleep for 600 s
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    assert not stat.exists() or ") Z " in stat.read_text()  # init may take its time to reap it


@pytest.mark.parametrize(
    ("trap", "status"),
    [
        ("kill -SEGV $PPID; sleep 600", "crashed"),
        ("kill -KILL $PPID; sleep 600", "out_of_memory"),
        ("kill -KILL $$; sleep 600", "out_of_memory"),
        ("kill -TERM $$; sleep 600", "crashed"),
        ("exit 137", "out_of_memory"),
        (
            "echo 'fatal error: error writing to /tmp/cc.s: No space left on device'; exit 1",
            "skipped",
        ),
        ("echo 'virtual memory exhausted: Cannot allocate memory'; exit 1", "out_of_memory"),
        ("echo 'sorry, unimplemented: PCH allocation failure'; exit 1", "out_of_memory"),
        (
            "echo 'g++: fatal error: Killed signal terminated program cc1plus'; exit 1",
            "out_of_memory",
        ),
        (
            "echo \"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\"; exit 9",
            "out_of_memory",
        ),
    ],
)
def test_a_worker_that_dies_costs_its_kernel_alone(
    pools: Pools, pool: Pool, tmp_path: Path, trap: str, status: str
):
    pools.may_compile_here = status == "skipped"  # a fault of the node
    command = shell_compiler(tmp_path, trap)
    built = build(pool, tmp_path, source("a", 2), source("dies", 3, "// TRAP"), command=command)
    assert built["dies"].status == status
    assert times(built["a"], 7) == 14


def test_who_has_not_begun_is_not_blamed(
    pools: Pools,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    def wrapped(compiles: Callable[..., Any]) -> Callable[..., Any]:
        def compile_stopped(*arguments: Any) -> Any:
            attempt, setup_s = WorkerProcess.attempt, compile_pool.SETUP_S

            def attempt_stopped(process: WorkerProcess, *job: Any) -> Any:
                process.start()
                os.kill(process.pid or 0, signal.SIGSTOP)  # before it takes the job
                return attempt(process, *job)

            WorkerProcess.attempt, compile_pool.SETUP_S = attempt_stopped, 1.0  # pyright: ignore
            try:
                return compiles(*arguments)
            finally:
                WorkerProcess.attempt, compile_pool.SETUP_S = attempt, setup_s  # pyright: ignore

        return compile_stopped

    monkeypatch.setattr(compile_pool, "_WARNED", set[str]())
    pools.may_compile_here = True  # no worker of the nodes begins
    pools.wrap(wrapped)
    compiled = build(pools.open(), tmp_path, source("a", 2), source("b", 3))
    assert [c.status for c in compiled.values()] == ["skipped", "skipped"]
    assert "hung" in compiled["a"].reason
    assert "inductor-plugin: 2 kernels are not compiled" in caplog.text


@pytest.mark.parametrize("limit_s", [0.0, 60.0])
def test_a_limit_of_zero_is_none(pool: Pool, tmp_path: Path, limit_s: float):
    assert build(pool, tmp_path, source("a", 2), limit_s=limit_s)["a"].status == "ok"


def test_temporary_files_of_a_compiler_go_with_its_build(pool: Pool, tmp_path: Path):
    """g++ leaves them where it is killed."""
    command = ("sh", "-c", 'printf %s "$TMPDIR" > {output}')
    compiled = build(pool, tmp_path, source("a", 2), command=command)["a"]
    assert compiled.library is not None
    folder = Path(compiled.library).read_text()
    assert folder == str(tmp_path) or not Path(folder).exists()  # a node has a folder of its own


def test_a_thread_does_not_keep_its_last_job(pool: Pool, tmp_path: Path):
    class Done(list[object]):
        """What is to be called, and what is said."""

    said = Done()
    pool.submit(CppCompileJob((source("a", 2),), ("true",), str(tmp_path), 60.0), said.append)
    assert wait_idle(pool, 100.0)
    assert said
    kept = weakref.ref(said)
    del said
    ends = time.monotonic() + 5
    while kept() is not None and time.monotonic() < ends:
        time.sleep(0.01)
    assert kept() is None


def test_a_worker_without_memory_for_itself_does_not_blame_the_kernel(pools: Pools, tmp_path: Path):
    pools.may_compile_here = True  # all nodes refuse it, and no worker starts here, either
    pool = pools.open(settings=replace(SETTINGS, memory_bytes=1024))
    assert build(pool, tmp_path, source("a", 2))["a"].status == "skipped"


def test_a_full_disk_is_told_once_and_blames_no_kernel(
    pools: Pools,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """A farm compiles it here at last, where the disk is as full."""
    pools.may_compile_here = True
    monkeypatch.setattr(compile_pool, "_WARNED", set[str]())
    pool = pools.open()
    command = ("sh", "-c", "echo 'fatal error: cannot write: No space left on device'; exit 1")
    for key in "ab":
        assert build(pool, tmp_path, source(key, 2), command=command)[key].status == "skipped"
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [each for each in warnings if "kernel is not compiled" in each] == [
        "inductor-plugin: 1 kernel is not compiled: fatal error: cannot write: No space left on device"
    ]
    assert len(warnings) == (3 if pools.farm else 1)  # of a node, and that it is compiled here


def test_a_disk_that_is_full_elsewhere_costs_no_kernel(pools: Pools, tmp_path: Path):
    """A node's."""
    pools.may_compile_here = True
    full = "echo 'No space left on device'; exit 1"
    text = f'case {{output}} in {tmp_path}/*) exec "$@";; *) {full};; esac'
    pool = pools.open()
    for key in "ab":
        built = build(pool, tmp_path, source(key, 2), command=("sh", "-c", text, "sh", *GXX))
        assert (built[key].status, times(built[key], 7)) == ("ok", 14)


def test_a_pool_answers_although_a_job_raises(
    pools: Pools, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A farm tries it here, where it raises, too."""

    def wrapped(_: Callable[..., Any]) -> Callable[..., Any]:
        def compile_broken(*_arguments: object) -> Any:
            raise ValueError("what nobody expected")

        return compile_broken

    pools.may_compile_here = True
    pools.wrap(wrapped)
    compiled = build(pools.open(), tmp_path, source("a", 2))["a"]
    assert compiled.status == "skipped"
    assert "what nobody expected" in caplog.text


def test_a_compiler_that_is_missing_is_a_reason(pool: Pool, tmp_path: Path):
    built = build(pool, tmp_path, source("a", 2), command=("no-such-compiler", "{source}"))
    assert built["a"].status == "compile_failed"
    assert "no-such-compiler" in built["a"].reason


@pytest.mark.compat
def test_triton_compiles_for_a_gpu_that_is_not_there(pool: Pool, tmp_path: Path):
    pytest.importorskip("triton")
    environment = ((("TRITON_CACHE_DIR", str(tmp_path / "triton"))),)
    answers: list[Compiled] = []
    for key, load in (("good", "load"), ("bad", "no_such_function")):
        text = TRITON_SOURCE.replace("LOAD", load)
        job = TritonCompileJob(key, "triton_double", text, environment, 100.0)
        pool.submit(job, answers.extend)
    assert wait_idle(pool, 200.0)
    built = {compiled.key: compiled for compiled in answers}
    assert built["good"].status == "ok", built["good"].reason
    assert built["bad"].status == "compile_failed"
    assert "no_such_function" in built["bad"].reason
    assert len(list((tmp_path / "triton").rglob("*.cubin"))) == 1
    taken = built["good"].resources
    assert taken is not None
    assert taken.registers is not None
    assert 8 <= taken.registers <= 64
    assert (taken.spills, taken.shared_bytes, taken.threads) == (0, 0, 128)
    assert built["bad"].resources is None


def test_flags_from_the_environment_do_not_reach_nvcc(pools: Pools, tmp_path: Path):
    def wrapped(compiles: Callable[..., Any]) -> Callable[..., Any]:
        def compile_flagged(*arguments: Any) -> Any:
            flags = dict.fromkeys(("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "NVCC_OTHER"), "-G")
            os.environ |= flags
            try:
                return compiles(*arguments)
            finally:
                for name in flags:
                    del os.environ[name]

        return compile_flagged

    pools.wrap(wrapped)
    # With these settings no worker runs on a node, which would have the variables that there were when it was started.
    pool = pools.open(settings=replace(SETTINGS, idle_s=SETTINGS.idle_s + 1.0))
    command = ("sh", "-c", f"env > {tmp_path}/variables; : > {{output}}")
    assert build(pool, tmp_path, source("a", 2), command=command)["a"].status == "ok"
    lines = (tmp_path / "variables").read_text().splitlines()
    assert [line for line in lines if line.startswith("NVCC_")] == ["NVCC_OTHER=-G"]
