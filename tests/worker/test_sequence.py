"""Several kernels as one candidate: on CPU tensors, directly and in a benchmark worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from inductor_plugin.kernels.call import (
    BufferRef,
    ExternKernel,
    ModuleKernel,
    OpKernel,
    SequenceKernel,
    SequenceStep,
    TensorSpec,
    Zeros,
)
from inductor_plugin.problem.number_check import NumberCheck
from inductor_plugin.problem.tolerance import Tolerance
from inductor_plugin.worker.bench_worker import BenchWorker
from inductor_plugin.worker.child import inductor, operands
from inductor_plugin.worker.jobs import (
    BenchCandidate,
    FinalJob,
    Sampling,
    ScreenJob,
    WorkerSettings,
)
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.compat

QUICK = Sampling(warmup=1, samples=3, min_sample_ms=0.05, max_total_s=5.0, cold_cache=False)

A = TensorSpec((16, 32), (32, 1), "float32", "cpu", seed=1)
B = TensorSpec((32, 8), (8, 1), "float32", "cpu", seed=2)
BIAS = TensorSpec((8,), (1,), "float32", "cpu", seed=3)
D = TensorSpec((16, 8), (8, 1), "float32", "cpu")

BIASED = """
import torch

def call(args):
    product, bias, out, count = args
    assert count == out.numel()
    torch.add(product, bias, out=out)
"""
"""What Inductor writes to measure a fusion, in plain torch: its arguments include what it writes."""
FUSED = """
import torch

def call(args):
    a, b, bias, out, count = args
    torch.add(torch.mm(a, b), bias, out=out)
"""
COUNTING = """
import torch

def call(args):
    product, memory, out = args
    memory += 1
    torch.mul(product, memory[-1], out=out)
"""

PRODUCT = SequenceStep(ExternKernel("mm"), (BufferRef(0), BufferRef(1)), BufferRef(3))
APART = SequenceKernel(
    (
        PRODUCT,
        SequenceStep(ModuleKernel(BIASED), (BufferRef(3), BufferRef(2), BufferRef(4), 16 * 8)),
    ),
    (D,),
)
TOGETHER = SequenceKernel(
    (
        SequenceStep(
            ModuleKernel(FUSED), (BufferRef(0), BufferRef(1), BufferRef(2), BufferRef(3), 16 * 8)
        ),
    )
)


def candidate(name: str, kernel: SequenceKernel, *inputs: TensorSpec) -> BenchCandidate:
    return BenchCandidate(name, kernel, inputs or (A, B, BIAS), D, 20.0)


def ran(
    kernel: SequenceKernel, *specs: TensorSpec, times: int = 1
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return what a sequence writes, and its operands."""
    inputs = [operands.build(spec) for spec in specs]
    out = torch.full((16, 8), torch.nan)
    run: Any = inductor.bind_sequence(kernel, inputs, out)
    for _ in range(times):
        run()
    return out, inputs


def test_the_parts_run_in_order_through_scratch_memory() -> None:
    out, (a, b, bias) = ran(APART, A, B, BIAS)
    torch.testing.assert_close(out, a @ b + bias)


def test_one_kernel_writes_the_same() -> None:
    apart, _ = ran(APART, A, B, BIAS)
    together, _ = ran(TOGETHER, A, B, BIAS)
    torch.testing.assert_close(together, apart)


def test_it_runs_again_and_again() -> None:
    """A kernel must not take its arguments out of the list."""
    out, (a, b, bias) = ran(APART, A, B, BIAS, times=3)
    torch.testing.assert_close(out, a @ b + bias)


def test_operators_are_parts_too() -> None:
    kernel = SequenceKernel(
        (replace(PRODUCT, kernel=OpKernel("aten::mm.out")), APART.parts[1]), (D,)
    )
    out, (a, b, bias) = ran(kernel, A, B, BIAS)
    torch.testing.assert_close(out, a @ b + bias)


def test_a_tensor_is_seen_with_other_strides() -> None:
    """A transposed second operand, and a bias that stands at the end of a larger tensor."""
    wide = TensorSpec((8, 32), (32, 1), "float32", "cpu", seed=4)
    long = TensorSpec((24,), (1,), "float32", "cpu", seed=5)
    product = replace(PRODUCT, arguments=(BufferRef(0), BufferRef(1, (32, 8), (1, 32))))
    behind = replace(
        APART.parts[1],
        arguments=(BufferRef(3), BufferRef(2, (16, 8), (0, 1), 16), BufferRef(4), 16 * 8),
    )
    out, (a, b, bias) = ran(SequenceKernel((product, behind), (D,)), A, wide, long)
    torch.testing.assert_close(out, a @ b.t() + bias[16:])


def test_memory_of_a_kernel_is_zero_when_it_is_first_run() -> None:
    counting = SequenceStep(ModuleKernel(COUNTING), (BufferRef(2), Zeros(4, "int32"), BufferRef(3)))
    kernel = SequenceKernel((replace(PRODUCT, out=BufferRef(2)), counting), (D,))
    once, (a, b) = ran(kernel, A, B)
    torch.testing.assert_close(once, a @ b)
    twice, _ = ran(kernel, A, B, times=2)  # it is the kernel's to clean up
    torch.testing.assert_close(twice, 2 * (a @ b))


def test_memory_that_generated_code_zeroes_is_zero_in_each_call() -> None:
    """It is part of what the kernel takes: the unfused kernel that it is measured against has it in its calls, too."""
    memory = Zeros(4, "int32", each_call=True)
    counting = SequenceStep(ModuleKernel(COUNTING), (BufferRef(2), memory, BufferRef(3)))
    kernel = SequenceKernel((replace(PRODUCT, out=BufferRef(2)), counting), (D,))
    twice, (a, b) = ran(kernel, A, B, times=2)
    torch.testing.assert_close(twice, a @ b)


def test_each_module_is_its_own() -> None:
    """Two modules define the same name: the second must not be called for the first."""
    kernel = SequenceKernel(
        (
            PRODUCT,
            SequenceStep(ModuleKernel(BIASED), (BufferRef(3), BufferRef(2), BufferRef(4), 128)),
            SequenceStep(
                ModuleKernel(BIASED.replace("add", "mul")),
                (BufferRef(4), BufferRef(2), BufferRef(4), 128),
            ),
        ),
        (D,),
    )
    out, (a, b, bias) = ran(kernel, A, B, BIAS)
    torch.testing.assert_close(out, (a @ b + bias) * bias)


@pytest.fixture(name="worker", scope="module")
def a_worker() -> Iterator[BenchWorker]:
    settings = WorkerSettings(
        sys_path=(str(REPOSITORY), *sys.path),
        kind="bench",
        threads=1,
        memory_bytes=0,
        allow_tf32=True,
        float32_precision="highest",
        deterministic=False,
    )
    worker = BenchWorker(settings)
    yield worker
    worker.close()


def screened(worker: BenchWorker, competitor: BenchCandidate) -> Any:
    library = candidate("unfused", APART)
    return worker.screen(
        ScreenJob("a fusion", library, competitor, QUICK, NumberCheck(Tolerance(1e-4, 1e-4)))
    )


def test_fused_against_unfused_in_a_worker(worker: BenchWorker) -> None:
    library, fused = candidate("unfused", APART), candidate("fused", TOGETHER)
    for measured_kernel in (library, fused):
        outcome = screened(worker, measured_kernel)
        assert (outcome.status, len(outcome.samples_ms)) == ("ok", 3)
    (first, second) = worker.final(FinalJob("a fusion", (library, fused), 4, QUICK))
    assert 3 <= len(first.samples_ms) == len(second.samples_ms) <= 4  # all, or those of calm turns
    assert min(*first.samples_ms, *second.samples_ms) > 0


TWO_OUTPUTS = """
import torch

def call(args):
    a, b, bias, product, out = args
    torch.mm(a, b, out=product)
    torch.add(product, bias, out=out)
    FAULT
"""


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("", ""),
        ("product[3] = 0", "(in its output buf0)"),
        ("torch.as_strided(product, (129,), (1,))[128] = 7", "behind its output"),
    ],
)
def test_all_outputs_of_a_fusion_are_compared(worker: BenchWorker, fault: str, said: str) -> None:
    """The product is needed elsewhere, too, so that the fused kernel writes it as well."""
    arguments = tuple(map(BufferRef, range(5)))
    fused = SequenceStep(ModuleKernel(TWO_OUTPUTS.replace("FAULT", fault)), arguments)
    library = candidate("unfused", replace(APART, names=("buf0",)))
    both = candidate("fused", SequenceKernel((fused,), (D,), ("buf0",)))
    check = NumberCheck(Tolerance(1e-4, 1e-4))
    outcome = worker.screen(ScreenJob("two outputs", library, both, QUICK, check))
    assert outcome.status == ("ok" if not said else "wrong" if "buf0" in said else "red_zone")
    assert outcome.reason.endswith(said)


@pytest.mark.parametrize(
    ("source", "status", "reason"),
    [
        pytest.param(FUSED.replace("add(", "sub("), "wrong", "error", id="wrong"),
        pytest.param(
            FUSED + "    raise ValueError('it raises')\n", "raised", "it raises", id="raises"
        ),
        pytest.param(
            FUSED + "    import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n",
            "crashed",
            "SIGSEGV",
            id="crashes",
        ),
        pytest.param(
            FUSED + "    torch.as_strided(out, (16, 9), (9, 1), out.storage_offset()).fill_(1.0)\n",
            "red_zone",
            "behind its output",
            id="overruns",
        ),
        pytest.param("def call(args)", "raised", "import", id="no module"),
    ],
)
def test_a_fused_kernel_that_misbehaves(
    worker: BenchWorker, source: str, status: str, reason: str
) -> None:
    kernel = SequenceKernel((replace(TOGETHER.parts[0], kernel=ModuleKernel(source)),))
    outcome = screened(worker, candidate(f"fused-{status}", kernel))
    assert outcome.status == status
    assert reason in outcome.reason
    assert screened(worker, candidate("fused", TOGETHER)).status == "ok"


def test_one_that_hangs_is_ended(worker: BenchWorker) -> None:
    kernel = SequenceKernel(
        (replace(TOGETHER.parts[0], kernel=ModuleKernel(FUSED + "    while True: pass\n")),)
    )
    outcome = screened(worker, replace(candidate("fused-hangs", kernel), timeout_s=1.0))
    assert outcome.status == "hung"
    assert screened(worker, candidate("fused", TOGETHER)).status == "ok"
