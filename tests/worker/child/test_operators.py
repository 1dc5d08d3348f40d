"""No faulty kernel is accepted for any operator and type, and honest ones are: a matrix of operators and faults.

The jobs run in this process; a candidate is the library kernel with a fault around it.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.attention.check.reference import CheckResult
from inductor_plugin.kernels.call import ExternKernel, OpKernel, TensorSpec
from inductor_plugin.problem.definition import Operand, Problem
from inductor_plugin.problem.number_check import (
    NumberCheck,
    added_operands,
    amplitudes,
    steepness,
    tolerance_of,
)
from inductor_plugin.worker.child import bench, inductor
from inductor_plugin.worker.child.product import ProductVerifier
from inductor_plugin.worker.jobs import BenchCandidate, Outcome, Sampling, ScreenJob
from tests.support.candidates import spoiled

pytestmark = pytest.mark.usefixtures("few_objects")

QUICK = Sampling(warmup=1, samples=3, min_sample_ms=0.0, max_total_s=60.0, cold_cache=False)
M, K, N, B = 24, 256, 40, 3


@dataclass(frozen=True)
class Case:
    """An operator with its operands.

    Attributes:
        kernel: The library kernel.
        inputs: Size, stride (empty for contiguous) and type of its operands.
        output: Size and type of its output.
        op: The problem's operator.
        epilogue: What is done to the product, in place of a fused epilogue.
        values: Bytes of the last operand, if they matter.
    """

    kernel: ExternKernel
    inputs: tuple[tuple[tuple[int, ...], tuple[int, ...], str], ...]
    output: tuple[tuple[int, ...], str]
    op: str
    epilogue: Callable[[torch.Tensor], torch.Tensor] | None = None
    values: bytes = b""


def product(op: str, dtype: str) -> Case:
    batch = (B,) if "b" in op.removeprefix("addmm")[:1] else ()
    a, b, d = (*batch, M, K), (*batch, K, N), (*batch, M, N)
    broadcast = (*(0 for _ in d[1:]), 1)
    added = ((d, broadcast, dtype),) if op in ("addmm", "baddbmm") else ()
    return Case(ExternKernel(op), (*added, (a, (), dtype), (b, (), dtype)), (d, dtype), op)


def with_scalars(dtype: str, alpha: float, beta: float) -> Case:
    scalars = (("alpha", alpha), ("beta", beta))
    return replace(product("addmm", dtype), kernel=ExternKernel("addmm", scalars))


def fused(dtype: str, epilogue: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    return replace(product("mm", dtype), epilogue=epilogue)


INT = Case(
    ExternKernel("_int_mm"),
    (((M, K), (), "int8"), ((K, N), (), "int8")),
    ((M, N), "int32"),
    "int_mm",
)
SCALED = Case(
    ExternKernel("_scaled_mm", (("out_dtype", torch.bfloat16),)),
    (
        ((M, K), (), "float8_e4m3fn"),
        ((K, N), (1, K), "float8_e4m3fn"),
        ((1,), (), "float32"),
        ((1,), (), "float32"),
    ),
    ((M, N), "bfloat16"),
    "scaled_mm",
)
GROUPED = Case(
    ExternKernel("_grouped_mm", has_out=False),
    (((M, K), (), "bfloat16"), ((B, K, N), (), "bfloat16"), ((B,), (), "int32")),
    ((M, N), "bfloat16"),
    "grouped_mm",
    values=torch.tensor([8, 15, M], dtype=torch.int32).numpy().tobytes(),
)


def convolution(dtype: str) -> Case:
    arguments: dict[str, Any] = {"bias": None, "stride": [1, 1], "padding": [1, 1]}
    arguments |= {"dilation": [1, 1], "transposed": False, "output_padding": [0, 0], "groups": 1}
    image, filters = ((2, 16, 12, 12), (), dtype), ((32, 16, 3, 3), (), dtype)
    kernel = ExternKernel("convolution", tuple(arguments.items()), has_out=False)
    return Case(kernel, (image, filters), ((2, 32, 12, 12), dtype), "convolution")


def scaled(sums: torch.Tensor) -> torch.Tensor:
    return sums.float() * 0.01


def quantized(sums: torch.Tensor) -> torch.Tensor:
    return (sums.float() * 0.001).round().clamp(-128, 127)


LONG = (((M, 16384), (), "int8"), ((16384, N), (), "int8"))
LARGE_ALONE = ("saturates", "small_is_zero")
"""Not seen with an epilogue: its output may have no digits for large products."""
CASES: dict[str, Case] = {
    **{
        f"mm-{dtype}": product("mm", dtype)
        for dtype in ("float32", "bfloat16", "float16", "float64")
    },
    **{
        f"{op}-{dtype}": product(op, dtype)
        for op in ("addmm", "bmm", "baddbmm")
        for dtype in ("float32", "bfloat16")
    },
    **{
        f"addmm-{dtype}-alpha-{alpha:g}-beta-{beta:g}": with_scalars(dtype, alpha, beta)
        for dtype in ("bfloat16", "float16")
        for alpha, beta in ((0.01, 1.0), (1.0, 0.001), (100.0, 1.0))
    },
    "int_mm": INT,
    "scaled_mm": SCALED,
    "grouped_mm": GROUPED,
    "convolution-float32": convolution("float32"),
    "convolution-bfloat16": convolution("bfloat16"),
    "gelu-bfloat16": fused("bfloat16", torch.nn.functional.gelu),
    "relu-float32": fused("float32", torch.relu),
    "silu-float32": fused("float32", torch.nn.functional.silu),
    "exp-bfloat16": fused("bfloat16", torch.exp),
    "sin-bfloat16": fused("bfloat16", torch.sin),
    "convolution-relu-float32": replace(convolution("float32"), epilogue=torch.relu),
    "int_mm-scaled": replace(INT, output=((M, N), "bfloat16"), epilogue=scaled),
    "int_mm-long-int8": replace(INT, inputs=LONG, output=((M, N), "int8"), epilogue=quantized),
}


def floating(case: Case) -> bool:
    return getattr(torch, case.output[1]).is_floating_point


def faults_of(case: Case) -> Sequence[spoiled.Spoiled]:
    return (
        *spoiled.OF_ALL,
        *(spoiled.OF_FLOATS if floating(case) else ()),
        *(spoiled.OF_SUMS if case.op in ("addmm", "baddbmm") else ()),
        *(spoiled.OF_BATCHES if len(case.output[0]) > 2 else ()),
    )


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bind library kernels with their epilogues, and `spoiled` functions around them."""
    stock = inductor.bind_extern

    def library(kernel: ExternKernel, inputs: Sequence[torch.Tensor], out: Any) -> Any:
        epilogue = bound_case().epilogue
        if epilogue is None:
            return stock(kernel, inputs, out)
        product = stock(replace(kernel, has_out=False), inputs, None)
        return lambda: _into(out, epilogue(torch.as_tensor(product())))

    def candidate(kernel: OpKernel, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> Any:
        case, fault = bound_case(), getattr(spoiled, kernel.op)

        def compute(operands: Sequence[torch.Tensor], result: torch.Tensor) -> None:
            _into(result, library(case.kernel, operands, result)())

        return lambda: fault(compute, inputs, out)

    monkeypatch.setattr(inductor, "bind_extern", library)
    monkeypatch.setattr(inductor, "bind_op", candidate)
    yield
    spoiled.reset()
    bench.release()


def _into(out: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
    return value if out is None else out.copy_(value)


CURRENT: list[Case] = []


def bound_case() -> Case:
    """Return the case of the job that runs."""
    return CURRENT[-1]


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(size, device="meta").stride()


def screened(case: Case, fault: spoiled.Spoiled, folder: Path) -> Outcome:
    CURRENT[:] = [case]
    inputs = [
        TensorSpec(size, stride or contiguous(size), dtype, "cpu", seed=seed)
        for seed, (size, stride, dtype) in enumerate(case.inputs, start=1)
    ]
    if case.values:
        file = folder / "values"
        file.write_bytes(case.values)
        inputs[-1] = replace(inputs[-1], file=str(file))
    output = TensorSpec(case.output[0], contiguous(case.output[0]), case.output[1], "cpu")
    library = BenchCandidate("library", case.kernel, tuple(inputs), output, 20.0)
    candidate = replace(library, candidate_id=fault.__name__, kernel=OpKernel(fault.__name__))
    job = ScreenJob(f"{case.op} {fault.__name__}", library, candidate, QUICK, check(case, inputs))
    return bench.screen(job, lambda _event: None)


def check(case: Case, inputs: Sequence[TensorSpec]) -> NumberCheck:
    """Return the check that `inductor.candidates.check` makes of such a problem."""
    operands = tuple(Operand(s.size, s.stride, s.dtype, "cpu") for s in inputs)
    output = Operand(case.output[0], contiguous(case.output[0]), case.output[1], "cpu")
    epilogue = case.epilogue.__name__ if case.epilogue else ""
    scalars = tuple((n, str(v)) for n, v in case.kernel.kwargs if n in ("alpha", "beta"))
    problem = Problem(case.op, operands, output, epilogue=epilogue, arguments=scalars)
    return NumberCheck(
        tolerance_of(problem, tf32=False),
        tuple((index + 1, factor) for index, factor in amplitudes(problem).items()),
        added=frozenset(index + 1 for index in added_operands(problem)),
        large_values=not problem.epilogue,
        steep=steepness(problem),
        unplanted=frozenset({2} if case.op == "convolution" else ()),
    )


UNSEEN: dict[str, tuple[str, ...]] = {
    "int_mm-scaled": (*LARGE_ALONE, "hides_nan"),  # integers have none
    "addmm-float16-alpha-100-beta-1": ("small_is_zero",),  # 100 * (a @ b) is as small as it can be
    "int_mm-long-int8": ("saturates", "five_percent", "last_term_missing"),  # less than 8 bits show
}


@pytest.mark.parametrize("name", CASES)
def test_no_faulty_kernel_is_accepted(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    accepted: dict[str, str] = {}
    for fault in faults_of(case):
        outcome = screened(case, fault, tmp_path)
        if outcome.status not in ("wrong", "red_zone"):
            accepted[fault.__name__] = f"{outcome.status} {outcome.reason}"
    known = UNSEEN.get(name, LARGE_ALONE if case.epilogue else ())
    assert accepted.keys() == set(known), accepted


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_honest_kernels_are_accepted(case: Case, tmp_path: Path) -> None:
    # With an epilogue the library kernel is called without `out`, whose type its operands' must be.
    for honest in (*spoiled.HONEST, *([spoiled.in_float64] if case.epilogue else [])):
        outcome = screened(case, honest, tmp_path)
        assert (outcome.status, outcome.reason) == ("ok", "")


def test_a_busy_machine_does_not_cut_the_calls_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that waits for a core in each call, and is wrong in the 14th: later than 0.3 s."""
    calls = itertools.count(1)

    def waits(kernel: spoiled.Kernel, inputs: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        time.sleep(0.05)
        kernel(inputs, out)
        if next(calls) % 14 == 0:
            out.mul_(2)

    monkeypatch.setattr(spoiled, "waits", waits, raising=False)
    assert screened(CASES["mm-float32"], waits, tmp_path).status == "wrong"


def test_equal_results_are_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []
    judge = ProductVerifier.judge

    def counted(verifier: ProductVerifier, *outputs: Any) -> CheckResult:
        compared.append(outputs)
        return judge(verifier, *outputs)

    monkeypatch.setattr(ProductVerifier, "judge", counted)
    assert screened(CASES["mm-float32"], spoiled.exact, tmp_path).status == "ok"
    assert len(compared) == 1
