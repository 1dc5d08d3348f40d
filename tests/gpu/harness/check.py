"""What a benchmark worker does with one kernel of a GPU case: run it in every way, and compare.

Plain between guard zones, on another stream, in a CUDA graph that is replayed with other inputs; a
CUTLASS kernel also with other numbers of rows or, with an epilogue, with its library gone, where torch
computes the same. A kernel that breaks the device costs its own worker.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor_plugin.kernels.call import OpKernel, TensorSpec
from inductor_plugin.ops import gemm_epilogue
from inductor_plugin.worker.child.launch import bind
from inductor_plugin.worker.child.operands import GuardedOutput
from inductor_plugin.worker.jobs import BenchCandidate
from tests.gpu.cases.product import Case, worst
from tests.gpu.cases.registry import case
from tests.gpu.harness.ways import captured, drawn, load, on_a_stream
from tests.gpu.harness.written import WrittenCall

GONE = f"gone@{'0' * 64}"
"""A kernel nobody has built."""
_REPLAYS = 2
Operator = Callable[..., Any]
Call = Callable[[], object]


@dataclass(frozen=True)
class Report:
    """How one kernel fared.

    Attributes:
        errors: The largest error of what it writes, as a part of what is accepted, by the way it was
            called; ``apart`` is half of how far a kernel and what replaces it are apart, for each may
            be off by what is accepted.
        overrun: What was written outside of the outputs; empty if nothing was.
    """

    errors: Mapping[str, float]
    overrun: str

    @property
    def good(self) -> bool:
        """Whether all of it is right."""
        return not self.overrun and all(error <= 1.0 for error in self.errors.values())

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**self.errors, "overrun": self.overrun}


class Outputs:
    """What a call writes, by name: each between guard zones and full of what is not a number."""

    def __init__(
        self, specs: Mapping[str, TensorSpec], returned: Sequence[str], device: str
    ) -> None:
        """Allocate it; ``returned`` are the names of what is compared, in order."""
        self._returned = returned
        self._guarded = {
            name: GuardedOutput(replace(spec, device=device)) for name, spec in specs.items()
        }
        self.named = {name: guarded.tensor for name, guarded in self._guarded.items()}

    def returned(self) -> tuple[torch.Tensor, ...]:
        """Return what is compared."""
        return tuple(self.named[name] for name in self._returned)

    def spoil(self) -> None:
        """Fill all of it with what is not a number, guard zones too."""
        for tensor in self.named.values():
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            whole.set_(tensor.untyped_storage()).fill_(0xFF)

    def overrun(self) -> str:
        """Return what was written outside; empty if nothing was."""
        damage = {name: guarded.overrun() for name, guarded in self._guarded.items()}
        return "; ".join(f"{name}: {what}" for name, what in damage.items() if what)


@dataclass(frozen=True)
class CandidateKernel:
    """A kernel as it is measured."""

    candidate: BenchCandidate

    def outputs(self, device: str) -> Outputs:
        """Return memory for its result."""
        return Outputs({"out": self.candidate.output}, ("out",), device)

    def bound(self, tensors: Sequence[torch.Tensor], outputs: Outputs) -> Call:
        """Return its call on a case's tensors, seen as the candidate wants them."""
        pairs = zip(tensors, self.candidate.inputs, strict=True)
        inputs = [view(tensor, spec) for tensor, spec in pairs]
        return bind(self.candidate, inputs, outputs.named["out"])

    def more(self, trial: Case, results: Outputs, device: str) -> dict[str, float]:
        """Return its largest error with other numbers of rows, where the case has some."""
        del results
        if not trial.rows or not isinstance(self.candidate.kernel, OpKernel):
            return {}
        return {"rows": max(self._with_rows(trial, rows, device) for rows in trial.rows)}

    def _with_rows(self, trial: Case, rows: int, device: str) -> float:
        fixed = next(spec for spec in trial.specs if len(spec.size) > 1).size[0]
        specs = [_resized(spec, fixed, rows) for spec in trial.specs]
        inputs = tuple(_resized(spec, fixed, rows) for spec in self.candidate.inputs)
        output = self.candidate.output
        output = replace(output, size=(rows, *output.size[1:]))
        resized = CandidateKernel(replace(self.candidate, inputs=inputs, output=output))
        tensors, outputs = drawn(specs, device, seed=9), resized.outputs(device)
        resized.bound(tensors, outputs)()
        error = worst(outputs.returned(), trial.expected(tensors), trial.tolerance)
        return math.inf if outputs.overrun() else error


@dataclass(frozen=True)
class WrittenKernel:
    """A kernel with an epilogue, called as generated code does; tests without a GPU give an operator."""

    call: WrittenCall
    operator: Operator

    def outputs(self, device: str) -> Outputs:
        """Return memory for what it writes."""
        return Outputs(dict(self.call.buffers), self.call.returned, device)

    def bound(self, tensors: Sequence[torch.Tensor], outputs: Outputs) -> Call:
        """Return its call."""
        return functools.partial(self.call.run, self.operator, tensors, outputs.named)

    def more(self, trial: Case, results: Outputs, device: str) -> dict[str, float]:
        """Return the error with its library gone, and how far that is from the kernel's own results."""
        tensors = drawn(trial.specs, device, seed=1)
        gone = WrittenKernel(replace(self.call, kernel=GONE), self.operator)
        outputs = gone.outputs(device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that the library is gone
            gone.bound(tensors, outputs)()
        error = worst(outputs.returned(), wanted(trial, device, 1), trial.tolerance)
        apart = worst(outputs.returned(), results.returned(), trial.tolerance)
        return {"gone": math.inf if outputs.overrun() else error, "apart": apart / 2}


def checked(identity: str, kernel: BenchCandidate | WrittenCall, device: str = "cuda:0") -> Report:
    """Run one kernel of a case in every way; called in a benchmark worker."""
    if isinstance(kernel, WrittenCall):
        operator = torch.ops.inductor_plugin.cutlass_mm_epilogue.out
        return checked_with(WrittenKernel(kernel, operator), case(identity), device)
    return checked_with(CandidateKernel(kernel), case(identity), device)


def checked_with(
    kernel: CandidateKernel | WrittenKernel, trial: Case, device: str = "cuda:0"
) -> Report:
    """Run a kernel in every way that the device has."""

    def error(outputs: Outputs, seed: int) -> float:
        return worst(outputs.returned(), wanted(trial, device, seed), trial.tolerance)

    tensors, outputs = drawn(trial.specs, device, seed=1), kernel.outputs(device)
    kernel.bound(tensors, outputs)()
    errors = {"plain": error(outputs, 1)}
    if device.startswith("cuda"):
        own, others = drawn(trial.specs, device, seed=1), kernel.outputs(device)
        on_a_stream(lambda: kernel.bound(own, others)(), own, drawn(trial.specs, device, seed=2))
        errors["stream"] = error(others, 2)
        own = drawn(trial.specs, device, seed=1)
        graph = captured(lambda: kernel.bound(own, others))
        errors["graph"] = 0.0
        for seed in range(3, 3 + _REPLAYS):
            load(own, drawn(trial.specs, device, seed))
            others.spoil()
            graph.replay()
            torch.cuda.synchronize()
            errors["graph"] = max(errors["graph"], error(others, seed))
    errors |= kernel.more(trial, outputs, device)
    return Report(errors, outputs.overrun())


@functools.lru_cache(maxsize=8)
def wanted(trial: Case, device: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Return the results of a case in float32; all its candidates are compared with the same."""
    return trial.expected(drawn(trial.specs, device, seed))


def view(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return a tensor with the size and strides of an operand: a bias spread over rows, say."""
    if tuple(tensor.shape) == spec.size:
        return tensor
    offset = tensor.storage_offset() + spec.offset
    return tensor.as_strided(spec.size, spec.stride, offset)


def _resized(spec: Any, fixed: int, rows: int) -> Any:
    """Return A with other rows; it lies by rows, so its strides stay. All else is as it was."""
    if len(spec.size) < 2 or spec.size[0] != fixed:
        return spec
    return replace(spec, size=(rows, *spec.size[1:]))


def on_a_cpu(
    a: torch.Tensor, b: torch.Tensor, operands: Any, *others: Any, out: torch.Tensor
) -> None:
    """Compute what the operator computes where its library is gone; without a GPU, too."""
    size = (*a.shape[:-1], b.shape[-1])
    *_, epilogue, aux = others
    library: Any = getattr(gemm_epilogue, "_library")  # noqa: B009
    library(a, b, operands, epilogue, [tensor.view(size) for tensor in aux], out.view(size))
