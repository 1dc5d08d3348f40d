"""Lowers products whose winner is a Triton template, and keeps the facts the interpreter needs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import config as inductor_config

from inductor_plugin.kernels.call import SequenceKernel
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.target import target
from inductor_plugin.registry import default_registry
from inductor_plugin.template import Candidate, Template
from inductor_plugin.tuning.task import TaskCandidate
from inductor_plugin.worker.jobs import BenchCandidate, TritonCompileJob
from tests.support.lowering import Arg, Lab
from tests.support.triton import interpreter
from tests.support.triton.interpreter import Usage

NEEDS_CUDA_BUILD = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]
"""The marks of tests that lower for a simulated GPU."""

H100 = target("H100")
PADDING = 1 << 16
"""Elements after an argument, more than the last step of K reads without a mask."""
SMALLEST_OF = {80: target("A100"), 90: H100, 100: target("B200")}
"""The GPU of a compute capability whose shared memory its kernels must fit into."""


F16 = torch.float16


def mm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    """Multiply two matrices, as a graph does."""
    return (torch.mm(a, b),)


def bmm(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    """Multiply matrices of a batch, as a graph does."""
    return (torch.bmm(a, b),)


def matrix(rows: int, columns: int, **facts: Any) -> Operand:
    """Return a bfloat16 matrix on a CUDA device, row by row."""
    return replace(Operand((rows, columns), (columns, 1), "bfloat16", "cuda"), **facts)


def problem(m: int = 4, n: int = 4096, k: int = 4096, **facts: Any) -> Problem:
    """Return a product of two such matrices, on an H100."""
    product = Problem("mm", (matrix(m, k), matrix(k, n)), matrix(m, n), target=H100)
    return replace(product, **facts)


def batch(b: int, m: int, n: int, k: int, **facts: Any) -> Problem:
    """Return a batch of products of bfloat16 matrices, on an H100."""

    def operand(rows: int, columns: int) -> Operand:
        return Operand((b, rows, columns), (rows * columns, columns, 1), "bfloat16", "cuda")

    products = Problem("bmm", (operand(m, k), operand(k, n)), operand(m, n), target=H100)
    return replace(products, **facts)


@dataclass(frozen=True)
class Lowered:
    """A lowered graph: its code, and the candidates of the template.

    Attributes:
        code: The module that would run.
        entries: All candidates of the template, best first.
        rejected: Which templates took no part, and why.
    """

    code: str
    entries: tuple[TaskCandidate, ...]
    rejected: dict[str, str]

    def job(self, index: int = 0) -> TritonCompileJob:
        """Return the compile job of a candidate."""
        build: Any = self.entries[index].build
        assert isinstance(build, TritonCompileJob)
        return build


@contextmanager
def offered(template: Template) -> Any:
    """Offer a template for the block; it replaces the template of the same name."""
    with mock.patch.dict(default_registry()._templates, {template.name: template}):
        yield


@dataclass(frozen=True)
class Every:
    """Offers all kernels that a template can generate.

    Attributes:
        template: The template.
        make: Returns all its candidates for a problem.
    """

    template: Template
    make: Callable[[Problem], Sequence[Candidate]]

    @property
    def name(self) -> str:
        """Its name."""
        return self.template.name

    @property
    def ops(self) -> tuple[str, ...]:
        """The operators it serves."""
        return self.template.ops

    def reject(self, problem: Problem) -> str | None:
        """Return why it cannot run the problem."""
        return self.template.reject(problem)

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return all kernels, those that would not fit included."""
        return self.make(problem)


def lowered(
    template: Template,
    kernel: str,
    function: Callable[..., Any],
    arguments: Sequence[Arg],
    *,
    winner: int = 0,
    dynamic: bool = False,
) -> Lowered:
    """Lower a function; the candidate ``winner`` of the kernels named ``kernel`` is the fastest."""
    ids: list[str] = []

    def milliseconds(candidate: BenchCandidate) -> float:
        kernel = candidate.kernel
        if isinstance(kernel, SequenceKernel):  # with an epilogue
            return 0.1 if len(kernel.parts) == 1 else 1.0
        return 0.1 if candidate.candidate_id in ids[winner : winner + 1] else 1.0

    def record_ids(candidate: BenchCandidate) -> str:
        for task in lab.products:
            ids[:] = [entry.candidate_id for entry in task.entries if entry.name == kernel]
        return "ok"

    with tempfile.TemporaryDirectory() as folder, offered(template):
        lab = Lab(milliseconds, Path(folder), status=record_ids)
        with lab.open():
            lower = lab.lower_dynamic if dynamic else lab.lower
            code = lower(function, *arguments)
        rejected = lab.record()["rejected"]
    entries = [entry for task in lab.tasks for entry in task.entries if entry.name == kernel]
    return Lowered(code, tuple(entries), rejected)


def values(argument: Arg, seed: int) -> torch.Tensor:
    """Return random values for an argument of a graph, on the CPU.

    Floats are small multiples of 1/8, so that even 8-bit ones hold them and their products are exact:
    a difference is then a wrong element, not a rounding. Between its rows and after it is NaN, which
    times zero is NaN: a read there without a mask is detected.
    """
    generator = torch.Generator().manual_seed(seed)
    size, stride = argument.size, argument.stride or _contiguous(argument.size)
    elements = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    beyond = torch.full((elements + PADDING,), torch.nan)
    if argument.dtype.is_floating_point:
        tensor = beyond.to(argument.dtype).as_strided(size, stride)
    else:
        tensor = torch.zeros(len(beyond), dtype=argument.dtype).as_strided(size, stride)
        low, high = torch.iinfo(argument.dtype).min, torch.iinfo(argument.dtype).max
        return tensor.copy_(torch.randint(low, high, size, generator=generator))
    return tensor.copy_((torch.randn(size, generator=generator) * 2).round() / 8)


def as_float(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype.is_floating_point else tensor


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    return tuple(torch.empty(tuple(size), device="meta").stride())


@dataclass(frozen=True)
class Case:
    """One graph to run in the interpreter.

    Attributes:
        function: What is lowered.
        arguments: Its arguments.
        winner: Which candidate of the template wins.
        reference: The same in float32, where ``function`` itself cannot be called with it.
        tolerance: Largest accepted difference, absolute and relative.
        rows: How many the first argument has when it runs, where it is lowered for any number of
            them; 0 for a static one.
    """

    function: Callable[..., Any]
    arguments: tuple[Arg, ...]
    winner: int = 0
    reference: Callable[..., Any] | None = None
    tolerance: float = 2e-3
    rows: int = 0

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors it is run with."""
        first, *others = self.arguments
        if self.rows:
            first = replace(first, size=(self.rows, *first.size[1:]))
        return [values(argument, seed) for seed, argument in enumerate((first, *others))]


def check(template: Template, kernel: str, cases: Mapping[str, Case]) -> None:
    """Lower all cases, run the generated code, and compare the results with float32."""
    assert kernel == template.name
    check_all([(template, name, case) for name, case in cases.items()])


def codes(cases: Sequence[tuple[Template, str, Case]]) -> list[str]:
    """Return the generated code of (template, name, case), each with the kernel of the template alone."""
    modules: list[str] = []
    for template, name, case in cases:
        # Padding of unknown sizes is decided by a measurement on the device.
        with inductor_config.patch({"shape_padding": False} if case.rows else {}):
            code = lowered(
                template,
                template.name,
                case.function,
                case.arguments,
                winner=case.winner,
                dynamic=case.rows > 0,
            ).code
        assert code.count(".run(") == 1, name
        assert "extern_kernels" not in code.split("async_compile.wait", 1)[1], name
        modules.append(code)
    return modules


def check_all(cases: Sequence[tuple[Template, str, Case]]) -> None:
    """Do as `check` for (template, name, case), all in one process, which takes seconds to start."""
    modules = [(code, case[-1].tensors) for code, case in zip(codes(cases), cases, strict=True)]
    results = interpreter.outputs(modules)
    for (_, name, case), (_, tensors), (output,) in zip(cases, modules, results, strict=True):
        (expected,) = (case.reference or case.function)(*map(as_float, tensors))
        assert torch.isfinite(output).all(), name
        difference = (output.float() - expected).abs() / (1 + expected.abs())
        assert difference.max() <= case.tolerance, f"{name}: {difference.max()}"


def epilogues(
    product: Callable[..., torch.Tensor],
    arguments: tuple[Arg, ...],
    shape: tuple[int, ...],
    reference: Callable[..., torch.Tensor] | None = None,
) -> dict[str, Case]:
    """Return a case for each kind of epilogue of a product.

    Args:
        product: Computes the product of its arguments.
        arguments: Its arguments; the result has the dtype of the first, but for 8-bit ones.
        shape: Shape of the result.
        reference: The same in float32, where the product cannot be called with it.
    """
    dtype = arguments[0].dtype if arguments[0].dtype.itemsize > 1 else torch.bfloat16
    many = len(arguments)

    def case(after: Callable[..., torch.Tensor], *more: Arg) -> Case:
        return Case(
            lambda *tensors: (after(product(*tensors[:many]), *tensors[many:]),),
            (*arguments, *more),
            reference=lambda *tensors: (
                after((reference or product)(*tensors[:many]), *tensors[many:]),
            ),
            tolerance=2e-2 if dtype == torch.bfloat16 else 4e-3,
        )

    return {
        "relu": case(lambda out: out.relu()),
        "a bias added": case(lambda out, c: out + c, Arg(shape[-1:], dtype)),
        "a residual": case(lambda out, r: out + r, Arg(shape, dtype)),
        "gelu": case(torch.nn.functional.gelu),
        "a cast to float32": case(lambda out: out.float()),
    }


@dataclass(frozen=True)
class Graph:
    """One product to compile kernels for.

    Attributes:
        function: What is lowered.
        arguments: Its arguments.
        kernels: How many the template can generate for it; 0 if that is not checked.
    """

    function: Callable[..., Any]
    arguments: tuple[Arg, ...]
    kernels: int = 0


def nothing_more(name: str, arch: int, usage: Usage) -> None:
    """Check nothing of a compiled kernel besides that it fits and does not spill."""


@dataclass(frozen=True)
class Contract:
    """Tests that every Triton template of products has to pass.

    Attributes:
        template: The template.
        rejected: Problems, and a part of the reason for refusing them; empty if it is accepted.
        cases: Graphs that run in the interpreter.
        epilogues: Graphs with epilogues that run there.
        archs: Compute capabilities its kernels are compiled for.
        defaults: Graphs whose first candidate is compiled.
        check: Further check of such a kernel; takes the graph's name, the capability and the kernel.
        every: Returns all kernels it can generate for a problem.
        tiles: Graphs for which all of these are compiled.
    """

    template: Template
    rejected: Mapping[str, tuple[Problem, str]]
    cases: Mapping[str, Case]
    epilogues: tuple[Mapping[str, Case], ...]
    archs: tuple[int, ...]
    defaults: Mapping[str, Graph]
    every: Callable[[Problem], Sequence[Candidate]]
    check: Callable[[str, int, Usage], None] = nothing_more
    tiles: tuple[Graph, ...] = ()


def compiled(graph: Lowered, arch: int, indices: Sequence[int] | None = None) -> list[Usage]:
    """Compile candidates for a compute capability, and check that they neither spill nor overflow.

    Args:
        graph: The lowered graph with its candidates.
        arch: 90 for 9.0.
        indices: Which of them; all by default.
    """
    selected = range(len(graph.entries)) if indices is None else indices
    assert selected
    usages: list[Usage] = []
    for index in selected:
        what = f"{graph.entries[index].description} for sm_{arch}"
        usage = interpreter.compiled(graph.job(index).source, arch)
        print(f"{what}: {usage.registers} registers, {usage.shared} bytes of shared memory")
        assert usage.spills == 0, f"{what}: {usage.spills} bytes spilled"
        assert usage.shared <= SMALLEST_OF[arch].shared_per_block, what
        usages.append(usage)
    return usages
