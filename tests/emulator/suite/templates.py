"""The cases of Triton's templates: what Inductor generates for a product or an attention, with real PTX of three architectures.

Their operands, exact results and tolerances are those of the tests in Triton's interpreter (tests/support/triton/products,
tests/support/attention); here an error of 1 is that tolerance.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch.utils import _triton

from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.problem.target import target
from inductor_plugin.templates.triton_attention.block import ForwardBlock
from tests.emulator.kernels import triton
from tests.emulator.machine.schedule import EAGER, LATE, WATCHED, Schedule
from tests.emulator.suite.row import Verdict
from tests.support.attention import backward_cases, forward_cases
from tests.support.attention.lowering import graph, module_of
from tests.support.triton.lowering import Contract, as_float, codes
from tests.support.triton.products import decode, fp8, int4, persistent_tma, split_k

LAST = Schedule(late=True, ahead="last")
SCHEDULES = (WATCHED, EAGER, LATE, LAST)
"""Of all templates; compiling takes longer than running, and is done once for all of them."""
GPUS = {80: "A100", 90: "H100", 100: "B200"}
SPECIALIZED = ForwardBlock(128, 128, 3, 4, tma=True, specialize=True)
"""Tensor cores do not take the 32 rows that the interpreter runs. Offered on Blackwell; on Hopper, where an H200 computed wrong
numbers with Triton 3.6, the emulator computes right ones with 3.8."""

_PRODUCTS: dict[str, tuple[Contract, tuple[str, ...]]] = {
    "decode": (
        decode.CONTRACT,
        ("one row, odd sizes", "17 rows of a linear layer, scaled", "a batch, transposed, padded"),
    ),
    "split_k": (
        split_k.CONTRACT,
        ("a few rows", "a scaled bias", "transposed, padded strides", "a batch, odd sizes"),
    ),
    "persistent_tma": (
        persistent_tma.CONTRACT,
        ("rows by rows", "padded strides, relu and a residual", "a batch, odd sizes", "bfloat16"),
    ),
    "fp8": (
        fp8.CONTRACT,
        ("rows and columns", "1x128 and 128x128", "one row, blocks", "e5m2 by e4m3"),
    ),
    "int4": (int4.CONTRACT, ("eight inner tiles", "a long group and relu", "padded rows")),
}
"""Cases of each template that run on every architecture it is for."""


@dataclass(frozen=True)
class Compiled:
    """A case: what runs it, and where.

    Attributes:
        template: Name of the template.
        gpu: Name of the GPU.
        run: Runs it in a schedule.
    """

    template: str
    gpu: str
    run: Callable[[Schedule], Verdict]


@contextmanager
def _lowering(gpu: str) -> Generator[None]:
    """Lower for a GPU that is not there; nothing is kept of it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        as_target(gpu),
    ):
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(Path(folder)))
        patch.setattr(_triton, "has_triton_tma_device", lambda: target(gpu).capability[0] >= 9)
        yield


@functools.cache
def _product_code(template: str, name: str, gpu: str) -> str:
    contract, _ = _PRODUCTS[template]
    with _lowering(gpu):
        (code,) = codes([(contract.template, name, contract.cases[name])])
    return code


def _product(template: str, name: str, gpu: str, schedule: Schedule) -> Verdict:
    contract, _ = _PRODUCTS[template]
    case, code = contract.cases[name], _product_code(template, name, gpu)
    tensors = case.tensors
    ((output, *_),), launches = triton.outputs([(code, tensors)], target(gpu), schedule)
    (expected,) = (case.reference or case.function)(*map(as_float, tensors))
    difference = (output.double() - expected).abs() / (1 + expected.abs())
    known = bool(torch.isfinite(output).all())
    error = float(difference.max()) / case.tolerance if known else torch.inf
    return Verdict(error, 0, launches)


@functools.cache
def _forward_code(trial: forward_cases.Trial, gpu: str) -> str:
    problem = forward_cases.problem_of(trial.case, forward_cases.operands_of(trial), target(gpu))
    with _lowering(gpu), graph():
        return module_of(problem, forward_cases.candidate_of(trial, problem))


def _forward(trial: forward_cases.Trial, gpu: str, schedule: Schedule) -> Verdict:
    operands, code = forward_cases.operands_of(trial), _forward_code(trial, gpu)
    (results,), launches = triton.outputs([(code, list(operands.values()))], target(gpu), schedule)
    out, lse = forward_cases.expected_of(trial, operands)
    case = trial.case
    rows = slice(sum(case.queries) if isinstance(case.queries, tuple) else None)
    error = forward_cases.error_of(results[0][rows], out[rows]) / _forward_tolerance(trial)
    if trial.lse:
        rows = rows if case.varlen else slice(None)
        wrong = forward_cases.error_of(results[1][..., rows], lse[..., rows])
        error = max(error, wrong / _LSE)
    return Verdict(error, 0, launches)


_LSE = 2e-5
"""Largest error of lse; `forward_cases.LSE_TOLERANCE` is that of the interpreter's exact exp2 and products."""


def _forward_tolerance(trial: forward_cases.Trial) -> float:
    return forward_cases.TOLERANCE[trial.case.dtype]


@functools.cache
def _backward_code(trial: backward_cases.Trial, gpu: str) -> str:
    operands, _ = backward_cases.operands_of(trial.case)
    problem = backward_cases.problem_of(trial.case, operands, target(gpu))
    with _lowering(gpu), graph():
        return module_of(problem, backward_cases.candidate_of(trial, problem))


def _backward(trial: backward_cases.Trial, gpu: str, schedule: Schedule) -> Verdict:
    operands, expected = backward_cases.operands_of(trial.case)
    code = _backward_code(trial, gpu)
    (results,), launches = triton.outputs([(code, list(operands.values()))], target(gpu), schedule)
    errors = backward_cases.errors(results, expected).values()
    return Verdict(max(errors) / backward_cases.TOLERANCE[trial.case.dtype], 0, launches)


def _runs(gpu: str, block: object) -> bool:
    """Return whether a GPU has the TMA that a kernel needs."""
    return target(gpu).capability[0] >= 9 or not getattr(block, "tma", False)


def _has(gpu: str, dtype: torch.dtype) -> bool:
    """Return whether a GPU's tensor cores take a type."""
    return target(gpu).capability >= (8, 9) or dtype != forward_cases.NARROW


def _forwards(gpu: str) -> dict[str, forward_cases.Trial]:
    """Return two attentions of each group on Hopper, one elsewhere."""
    chosen: dict[str, forward_cases.Trial] = {}
    for number, trial in enumerate(forward_cases.fast()):
        if not _runs(gpu, trial.kernel) or not _has(gpu, trial.case.dtype):
            continue
        if gpu == "H100" or number % 2:
            kernel = SPECIALIZED if trial.kernel == forward_cases.SPECIALIZED else trial.kernel
            chosen[f"{trial.group} {number % 2 + 1}"] = replace(trial, kernel=kernel)
    return chosen


def _backwards(gpu: str) -> dict[str, backward_cases.Trial]:
    """Return one gradient of each group."""
    chosen: dict[str, backward_cases.Trial] = {}
    for trial in backward_cases.fast():
        if _runs(gpu, trial.blocks):
            chosen[trial.group] = trial
    return chosen


def _cases() -> dict[str, Compiled]:
    result: dict[str, Compiled] = {}

    def add(template: str, name: str, gpu: str, run: Callable[[Schedule], Verdict]) -> None:
        result[f"triton {template}, {name}, {target(gpu).arch}"] = Compiled(
            f"triton_{template}", gpu, run
        )

    for template, (contract, names) in _PRODUCTS.items():
        for arch in contract.archs:
            for name in names:
                run = functools.partial(_product, template, name, GPUS[arch])
                add(template, name, GPUS[arch], run)
    for gpu in GPUS.values():
        for name, forward in _forwards(gpu).items():
            kind = "attention_decode" if forward.group == "decode" else "attention"
            add(kind, name, gpu, functools.partial(_forward, forward, gpu))
        for name, backward in _backwards(gpu).items():
            run = functools.partial(_backward, backward, gpu)
            add("attention_backward", name, gpu, run)
    return result


CASES = _cases()
"""All by name."""
