"""The cases of Triton's templates: what Inductor generates for a product or an attention, with real PTX of three architectures.

Their operands, exact results and tolerances are those of the tests in Triton's interpreter (tests/support/triton/products,
tests/support/attention); here an error of 1 is that tolerance.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch.utils import _triton

from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.problem.target import Target, target
from inductor_plugin.templates.triton_attention.block import ForwardBlock
from inductor_plugin.templates.triton_attention.decode import KeySplit
from tests.emulator.kernels import triton
from tests.emulator.machine.schedule import EAGER, LATE, WATCHED, Schedule
from tests.emulator.suite.row import Verdict
from tests.support.attention import backward_cases, forward_cases
from tests.support.attention.lowering import graph, module_of
from tests.support.triton.lowering import Case, Contract, as_float, codes
from tests.support.triton.products import decode, fp8, int4, persistent_tma, split_k

FIRST, LAST = (Schedule(late=True, ahead=ahead) for ahead in ("first", "last"))
RANDOM = tuple(Schedule(late=True, ahead="random", seed=seed) for seed in (5, 6))
SCHEDULES = (WATCHED, EAGER, LATE, FIRST, LAST, *RANDOM)
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
        (
            *("rows and columns", "rows and columns, a long sum"),
            *("1x128 and 128x128", "one row, blocks", "e5m2 by e4m3"),
        ),
    ),
    "int4": (int4.CONTRACT, ("eight inner tiles", "a long group and relu", "padded rows")),
}
"""Cases of each template that run on every architecture it is for."""
_EPILOGUES = {
    "decode": "gelu",
    "split_k": "a bias added",
    "persistent_tma": "a residual",
    "fp8": "a cast to float32",
    "int4": "gelu",
}
"""The fused epilogue of each template that runs there, too."""
_FEW = {"persistent_tma": ("a batch, odd sizes", 2), "fp8": ("1x128 and 128x128", 1)}
"""Cases that also run on a part of a GPU, so many multiprocessors, of which some compute several tiles."""
_MASK_SIZES = (70, 130)
"""Queries and keys of the masks that run: several blocks, and another place of the diagonal by each corner."""


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
def _lowering(gpu: Target) -> Generator[None]:
    """Lower for a GPU that is not there; nothing is kept of it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        as_target(gpu),
    ):
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(Path(folder)))
        patch.setattr(_triton, "has_triton_tma_device", lambda: gpu.capability[0] >= 9)
        yield


def _case(template: str, name: str) -> Case:
    """Return a case of a template's contract, or its epilogue of that name."""
    contract, _ = _PRODUCTS[template]
    return contract.cases[name] if name in contract.cases else contract.epilogues[0][name]


@functools.cache
def _product_code(template: str, name: str, gpu: Target) -> str:
    contract, _ = _PRODUCTS[template]
    with _lowering(gpu):
        (code,) = codes([(contract.template, name, _case(template, name))])
    return code


def _product(template: str, name: str, gpu: Target, schedule: Schedule) -> Verdict:
    case, code = _case(template, name), _product_code(template, name, gpu)
    tensors = case.tensors
    computed = triton.outputs([(code, tensors)], gpu, schedule)
    ((output, *_),) = computed.results
    (expected,) = (case.reference or case.function)(*map(as_float, tensors))
    difference = (output.double() - expected).abs() / (1 + expected.abs())
    known = bool(torch.isfinite(output).all())
    error = float(difference.max()) / case.tolerance if known else torch.inf
    return Verdict(error, computed.changed, computed.launches)


@functools.cache
def _forward_code(trial: forward_cases.Trial, gpu: str) -> str:
    problem = forward_cases.problem_of(trial.case, forward_cases.operands_of(trial), target(gpu))
    with _lowering(target(gpu)), graph():
        return module_of(problem, forward_cases.candidate_of(trial, problem))


def _forward(trial: forward_cases.Trial, gpu: str, schedule: Schedule) -> Verdict:
    operands, code = forward_cases.operands_of(trial), _forward_code(trial, gpu)
    computed = triton.outputs([(code, list(operands.values()))], target(gpu), schedule)
    (results,) = computed.results
    out, lse = forward_cases.expected_of(trial, operands)
    case = trial.case
    rows = slice(sum(case.queries) if isinstance(case.queries, tuple) else None)
    error = forward_cases.error_of(results[0][rows], out[rows]) / _forward_tolerance(trial)
    if trial.lse:
        rows = rows if case.varlen else slice(None)
        wrong = forward_cases.error_of(results[1][..., rows], lse[..., rows])
        error = max(error, wrong / _LSE)
    return Verdict(error, computed.changed, computed.launches)


_LSE = 2e-5
"""Largest error of lse; `forward_cases.LSE_TOLERANCE` is that of the interpreter's exact exp2 and products."""


def _forward_tolerance(trial: forward_cases.Trial) -> float:
    return forward_cases.TOLERANCE[trial.case.dtype]


@functools.cache
def _backward_code(trial: backward_cases.Trial, gpu: str) -> str:
    operands, _ = backward_cases.operands_of(trial.case)
    problem = backward_cases.problem_of(trial.case, operands, target(gpu))
    with _lowering(target(gpu)), graph():
        return module_of(problem, backward_cases.candidate_of(trial, problem))


def _backward(trial: backward_cases.Trial, gpu: str, schedule: Schedule) -> Verdict:
    operands, expected = backward_cases.operands_of(trial.case)
    code = _backward_code(trial, gpu)
    computed = triton.outputs([(code, list(operands.values()))], target(gpu), schedule)
    (results,) = computed.results
    error = max(backward_cases.errors(results, expected).values())
    share = error / backward_cases.TOLERANCE[trial.case.dtype]
    return Verdict(share, computed.changed, computed.launches)


def _runs(gpu: str, block: object) -> bool:
    """Return whether a GPU has the TMA that a kernel needs."""
    return target(gpu).capability[0] >= 9 or not getattr(block, "tma", False)


def _has(gpu: str, dtype: torch.dtype) -> bool:
    """Return whether a GPU's tensor cores take a type."""
    return target(gpu).capability >= (8, 9) or dtype != forward_cases.NARROW


_Trial = TypeVar("_Trial", forward_cases.Trial, backward_cases.Trial)


def _masks(trials: Iterable[_Trial]) -> dict[str, _Trial]:
    """Return a trial for each kind of mask: which sides it limits, and from which corner."""
    kinds: dict[tuple[bool, bool, bool], _Trial] = {}
    for trial in trials:
        case, mask = trial.case, trial.case.mask
        hides = mask != forward_cases.MASKS[-1]
        if trial.group == "masks" and (case.queries, case.keys) == _MASK_SIZES and hides:
            kinds.setdefault((mask.left >= 0, mask.right >= 0, mask.bottom_right), trial)
    return {f"masks {number}": trial for number, trial in enumerate(kinds.values(), 1)}


def forwards(gpu: str) -> dict[str, forward_cases.Trial]:
    """Return each kind of mask, and of each other group two attentions on Hopper, one elsewhere."""
    chosen = _masks(forward_cases.trials())
    for number, trial in enumerate(forward_cases.fast()):
        if (
            trial.group == "masks"
            or not _runs(gpu, trial.kernel)
            or not _has(gpu, trial.case.dtype)
        ):
            continue
        if gpu == "H100" or number % 2:
            kernel = SPECIALIZED if trial.kernel == forward_cases.SPECIALIZED else trial.kernel
            chosen[f"{trial.group} {number % 2 + 1}"] = replace(trial, kernel=kernel)
    chosen["decode in parts"] = _in_parts(forward_cases.trials())
    return chosen


def _in_parts(trials: Iterable[forward_cases.Trial]) -> forward_cases.Trial:
    """Return a decode of three queries whose parts take two steps or more each, and are joined: in those of
    `forward_cases.fast`, only one part has keys."""
    return next(
        replace(trial, case=replace(case, batch=1))
        for trial, case, share in ((each, each.case, each.kernel) for each in trials)
        if isinstance(share, KeySplit)
        and share.splits > 1
        and case.queries == 3
        and isinstance(case.keys, int)
        and case.keys > share.n * 2 * share.splits
    )


def backwards(gpu: str) -> dict[str, backward_cases.Trial]:
    """Return two gradients of each group, with the other GPUs' all of `backward_cases.fast`, and a third of the masks' kinds."""
    place = list(GPUS.values()).index(gpu)
    kinds = list(_masks(backward_cases.trials()).items())
    chosen = dict(kinds[place :: len(GPUS)])
    groups: dict[str, list[backward_cases.Trial]] = {}
    for trial in backward_cases.fast():
        if _runs(gpu, trial.blocks):
            groups.setdefault(trial.group, []).append(trial)
    for group, (*others, last) in groups.items():
        chosen[group] = last
        if group != "masks":
            chosen[f"{group}, another"] = others[place % len(others)]
    return chosen


def _cases() -> dict[str, Compiled]:
    result: dict[str, Compiled] = {}

    def add(template: str, name: str, gpu: str, run: Callable[[Schedule], Verdict]) -> None:
        result[f"triton {template}, {name}, {target(gpu).arch}"] = Compiled(
            f"triton_{template}", gpu, run
        )

    for template, (contract, names) in _PRODUCTS.items():
        for arch in contract.archs:
            gpu = target(GPUS[arch])
            for name in (*names, _EPILOGUES[template]):
                add(template, name, gpu.name, functools.partial(_product, template, name, gpu))
            if template in _FEW:
                name, count = _FEW[template]
                part = replace(gpu, multiprocessors=count)
                run = functools.partial(_product, template, name, part)
                add(template, f"{name}, multiprocessors: {count}", gpu.name, run)
    for gpu in GPUS.values():
        for name, forward in forwards(gpu).items():
            kind = "attention_decode" if forward.group == "decode" else "attention"
            add(kind, name, gpu, functools.partial(_forward, forward, gpu))
        for name, backward in backwards(gpu).items():
            run = functools.partial(_backward, backward, gpu)
            add("attention_backward", name, gpu, run)
    return result


CASES = _cases()
"""All by name."""
