"""Recorded Triton products as calls of the emulator: those of the project and of Inductor, by records the plugin has written."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.cache import Measured, Record
from inductor_plugin.problem import Problem
from inductor_plugin.problem.definition import problem_in
from inductor_plugin.problem.target import target
from tests.emulator.machine.schedule import EAGER
from tests.emulator.recorded import compiled
from tests.emulator.recorded.call import Call
from tests.emulator.recorded.lowering import OTHER_SOURCE
from tests.emulator.runtime.runtime import Runtime
from tests.support.cache.records import measured
from tests.support.emulator.products import H100, PROBLEMS, A, K, M, N, operand
from tests.support.emulator.recording import record_of
from tests.support.lowering import Arg
from tests.support.triton.products import int4

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")

BF16, FP8, F32 = torch.bfloat16, torch.float8_e4m3fn, torch.float32
ROWS, COLUMNS = Arg((M, K)), Arg((K, N), BF16, (1, K))
SCALED = (
    *(Arg((M, 144), FP8), Arg((144, 144), FP8, (1, 144))),
    *(Arg((M, 1), F32), Arg((1, 144), F32)),
)


def behind(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.mm(a[1:], b),)


def scaled(*operands: torch.Tensor) -> tuple[torch.Tensor]:
    a, b, s, t, c = operands
    return (torch._scaled_mm(a, b, s, t, bias=c, out_dtype=BF16),)


def groups(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch._grouped_mm(a, b, offs=ends, out_dtype=BF16),)


CALLS: dict[str, tuple[str, Callable[..., Any], tuple[Arg, ...]]] = {
    "mm": ("triton_mm", lambda a, b: (a @ b,), (ROWS, COLUMNS)),
    "mm by TMA": ("triton_persistent_tma", lambda a, b: (a @ b,), (ROWS, COLUMNS)),
    "mm of one row": ("triton_decode", lambda a, b: (a @ b,), (Arg((1, 144)), Arg((144, N)))),
    "mm of a long sum": (
        "triton_split_k",
        lambda a, b: (a @ b,),
        (Arg((20, 1040)), Arg((1040, 72))),
    ),
    "mm behind an offset": ("triton_mm", behind, (Arg((M + 1, K)), COLUMNS)),
    "addmm": (
        "triton_persistent_tma",
        lambda c, a, b: (torch.addmm(c, a, b, alpha=0.5, beta=2.0),),
        (Arg((N,)), ROWS, COLUMNS),
    ),
    "bmm": ("triton_bmm", lambda a, b: (a @ b,), (Arg((3, M, K)), Arg((3, K, N)))),
    "baddbmm": (
        "triton_persistent_tma",
        lambda c, a, b: (torch.baddbmm(c, a, b),),
        (Arg((3, M, N)), Arg((3, M, K)), Arg((3, K, N))),
    ),
    "scaled_mm": ("triton_fp8", scaled, (*SCALED, Arg((144,)))),
    "grouped_mm": (
        "triton_grouped_mm",
        groups,
        (ROWS, Arg((2, K, N)), Arg((2,), torch.int32)),
    ),
    "int4": ("triton_int4", int4.int4(64), int4.arguments(5, 72, 256, 4, 64)),
}
"""A kernel, and a call for which it is offered."""


def row_of(record: Record, name: str) -> Measured:
    return next(row for row in record.candidates.values() if row.name == name)


def problem_of(record: Record) -> Problem:
    problem = problem_in(record.problem)
    assert problem is not None
    return problem


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_recorded_kernel_is_right(runtime: Runtime, tmp_path: Path, name: str) -> None:
    kernel, function, arguments = CALLS[name]
    record = record_of(tmp_path / "cache", function, *arguments)
    row = row_of(record, kernel)
    call = compiled.call_of(problem_of(record), row, H100)
    assert isinstance(call, Call), call
    assert call.note == ""
    verdict = call.run(runtime, EAGER)
    assert verdict.error <= 1
    assert verdict.changed == 0
    assert len(verdict.launches) == 1
    assert f"sm_{H100.capability[0]}{H100.capability[1]}" in verdict.launches[0].text


@pytest.mark.slow
def test_another_gpu_has_the_same_configuration_or_none(tmp_path: Path) -> None:
    kernel, function, arguments = CALLS["mm by TMA"]
    record = record_of(tmp_path / "cache", function, *arguments)
    problem, row = problem_of(record), row_of(record, kernel)
    call = compiled.call_of(problem, row, target("B200"))
    assert isinstance(call, Call), call
    assert call.note == OTHER_SOURCE
    assert call.target.name == "B200"
    refused = str(compiled.call_of(problem, row, target("A100")))
    assert "is not offered on A100" in refused
    assert "it needs compute capability 9.0" in refused
    assert "name another candidate" in refused


@pytest.mark.slow
def test_a_call_that_torch_does_not_take_is_refused_with_its_reason() -> None:
    (a, b), problem = SCALED[:2], PROBLEMS["scaled_mm"]
    assert (a.size, b.size) == (problem.inputs[0].size, problem.inputs[1].size)
    odd = replace(problem.inputs[1], size=(144, N), stride=(1, 144))
    wrong = replace(problem, inputs=(problem.inputs[0], odd, *problem.inputs[2:]))
    refused = str(compiled.call_of(wrong, measured("triton_fp8"), H100))
    assert "refuses the call on H100" in refused
    assert "divisible by 16" in refused


def test_what_is_no_product_is_refused() -> None:
    row = measured("triton_convolution2d", kind="triton")
    convolved = Problem("convolution", (A, A), A)
    assert "this is convolution" in str(compiled.call_of(convolved, row, H100))
    ends = operand(2, dtype="int32")
    turned = Problem("grouped_mm", (operand(2, M, K), operand(K, N), ends), operand(2, M, N))
    assert "groups divide the rows of A" in str(compiled.call_of(turned, row, H100))


def test_of_what_a_record_says_only_numbers_become_code() -> None:
    spoiled = replace(int4.problem(), arguments=(("group", "__import__('os')"),))
    row = measured("triton_int4", kind="triton")
    assert "its call cannot be written" in str(compiled.call_of(spoiled, row, H100))


def test_an_operand_is_passed_without_what_it_repeats_and_with_what_lies_before_it() -> None:
    assert compiled._argument(replace(A, offset=64)).size == (64 + M * K,)
    repeated = replace(operand(3, M, K), stride=(0, K, 1))
    assert compiled._argument(repeated).size == (M, K)
    column = replace(operand(M, N), stride=(1, 0))
    assert compiled._argument(column).size == (M, 1)
    assert compiled._inside("b", column, torch.zeros(M, 1)).size() == (M, N)
    assert compiled._inside("bias", column, torch.zeros(M, 1)).size() == (M, 1)
