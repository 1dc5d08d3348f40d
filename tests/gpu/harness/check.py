"""What a benchmark worker does with one candidate of a GPU case: run it in every way, and compare.

Plain, on another stream, in a CUDA graph that is replayed with other inputs, and, for a CUTLASS
kernel, with other numbers of rows. A kernel that breaks the device costs its own worker.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from inductor_plugin.kernels.call import OpKernel, Tensor
from inductor_plugin.worker.child import bench, operands
from inductor_plugin.worker.child.operands import Guarded
from inductor_plugin.worker.jobs import BenchCandidate
from tests.gpu.harness.cases import case
from tests.gpu.harness.product import ROUNDING, Case, Spec

_REPLAYS = 2


@dataclass
class Report:
    """How one candidate fared; each error is a root mean square, relative to float32's.

    Attributes:
        plain: Error of a plain call.
        stream: Error of a call on another stream.
        graph: Largest error of a replayed CUDA graph, each replay with other inputs.
        rows: Largest error with other numbers of rows; None if it was not tried.
        accepted: The largest error that passes.
        overrun: What was written outside of the output; empty if nothing was.
    """

    plain: float
    stream: float
    graph: float
    rows: float | None
    accepted: float
    overrun: str

    @property
    def good(self) -> bool:
        """Whether all of it is right."""
        errors = [self.plain, self.stream, self.graph, self.rows or 0.0]
        return not self.overrun and all(error <= self.accepted for error in errors)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def checked(identity: str, candidate: BenchCandidate, device: str = "cuda:0") -> Report:
    """Run one candidate of a case in every way; called in a benchmark worker."""
    given = case(identity)
    tensors, expected = made(given.specs, device, seed=1), wanted(identity, device, 1)
    output = replace(candidate.output, device=device)
    accepted = ROUNDING[operands.dtype_of(output)] if given.tolerance is None else given.tolerance
    guarded = Guarded(output)
    call = bound(candidate, tensors, guarded.tensor)
    call()
    report = Report(
        plain=error_of(guarded.tensor, expected),
        stream=0.0,
        graph=0.0,
        rows=None,
        accepted=accepted,
        overrun=guarded.overrun() or "",
    )
    if device.startswith("cuda"):
        report.stream = _on_a_stream(identity, candidate, device)
        report.graph = _in_a_graph(identity, candidate, device)
    if given.rows and isinstance(candidate.kernel, OpKernel):
        errors = [_with_rows(given, candidate, rows, device) for rows in given.rows]
        report.rows = max(errors)
    return report


def bound(
    candidate: BenchCandidate, tensors: Sequence[torch.Tensor], out: torch.Tensor
) -> Callable[[], object]:
    """Return the call of a candidate on a case's tensors, seen as the candidate wants them."""
    inputs = [view(tensor, spec) for tensor, spec in zip(tensors, candidate.inputs, strict=True)]
    return bench.bind(candidate, inputs, out)


def view(tensor: torch.Tensor, spec: Tensor) -> torch.Tensor:
    """Return a tensor with the size and strides of an operand: a bias spread over rows, say."""
    if tuple(tensor.shape) == spec.size:
        return tensor
    offset = tensor.storage_offset() + spec.offset
    return tensor.as_strided(spec.size, spec.stride, offset)


@functools.lru_cache(maxsize=8)
def wanted(identity: str, device: str, seed: int) -> torch.Tensor:
    """Return the product of a case in float32; all its candidates are compared with the same."""
    given = case(identity)
    return given.expected(made(given.specs, device, seed))


def made(specs: Sequence[Spec], device: str, seed: int) -> list[torch.Tensor]:
    """Return the tensors of a case, the same for the same seed."""
    return [_made(spec, device, 100 * seed + number) for number, spec in enumerate(specs)]


def _made(spec: Spec, device: str, seed: int) -> torch.Tensor:
    if spec.given:
        return torch.tensor(spec.given, dtype=spec.dtype, device=device)
    generator = torch.Generator(device=device).manual_seed(seed)
    contiguous = torch.empty(spec.size, device="meta").stride()
    stride = contiguous if spec.stride is None else spec.stride
    elements = 1 + sum((n - 1) * s for n, s in zip(spec.size, stride, strict=True))
    # Whole rows, as an allocation has them: padding behind the last element is readable.
    padded = 16 * math.ceil(max([elements, *stride]) / 16) + 16 * max([0, *stride])
    values = _values(spec, padded, generator, device)
    return values.as_strided(spec.size, stride)


def _values(spec: Spec, count: int, generator: torch.Generator, device: str) -> torch.Tensor:
    if spec.values == "int4":
        return torch.randint(-(2**31), 2**31, (count,), generator=generator, device=device).to(
            spec.dtype
        )
    if spec.values == "small" or not spec.dtype.is_floating_point:
        return torch.randint(-8, 8, (count,), generator=generator, device=device).to(spec.dtype)
    drawn = torch.randn(count, generator=generator, device=device)
    return ((drawn.abs() + 0.5) if spec.values == "scale" else drawn).to(spec.dtype)


def error_of(answer: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the root mean square of the difference over that of what is expected.

    An answer that is not a number, or was never written, is infinitely wrong.
    """
    if answer.shape != expected.shape:
        return math.inf
    wide = expected.double()
    difference = (answer.double() - wide).square().mean().sqrt()
    error = float(difference / wide.square().mean().sqrt())
    return error if math.isfinite(error) else math.inf


def _fresh(candidate: BenchCandidate, device: str) -> torch.Tensor:
    """Return memory for the result, full of what is not a number."""
    spec = replace(candidate.output, device=device)
    elements = operands.storage_elements(spec)
    dtype = operands.dtype_of(spec)
    filled = torch.full((elements * dtype.itemsize,), 0xFF, dtype=torch.uint8, device=device)
    return filled.view(dtype).as_strided(spec.size, spec.stride, spec.offset)


def _on_a_stream(identity: str, candidate: BenchCandidate, device: str) -> float:
    """Call it on a stream behind slow work that brings its inputs: elsewhere it comes too early."""
    specs = case(identity).specs
    own, other = made(specs, device, seed=1), made(specs, device, seed=2)
    out = _fresh(candidate, device)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        cuda: Any = torch.cuda
        cuda._sleep(50_000_000)  # cycles, about 25 ms
        load(own, other)
        bound(candidate, own, out)()
    stream.synchronize()
    return error_of(out, wanted(identity, device, 2))


def _in_a_graph(identity: str, candidate: BenchCandidate, device: str) -> float:
    """Capture a call and replay it with other inputs; return the largest error of the replays."""
    specs = case(identity).specs
    own, out = made(specs, device, seed=1), _fresh(candidate, device)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        bound(candidate, own, out)()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        # Bound inside: a Triton request remembers the stream it was bound on.
        bound(candidate, own, out)()
    worst = 0.0
    for replay in range(_REPLAYS):
        load(own, made(specs, device, seed=3 + replay))
        load([out], [_fresh(candidate, device)])
        graph.replay()
        torch.cuda.synchronize()
        worst = max(worst, error_of(out, wanted(identity, device, 3 + replay)))
    return worst


def load(own: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> None:
    """Put the values of one set of tensors into the memory of another."""
    for mine, theirs in zip(own, other, strict=True):
        target = torch.empty(0, dtype=mine.dtype, device=mine.device)
        source = torch.empty(0, dtype=mine.dtype, device=mine.device)
        target.set_(mine.untyped_storage()).copy_(source.set_(theirs.untyped_storage()))


def _with_rows(given: Case, candidate: BenchCandidate, rows: int, device: str) -> float:
    """Call the same kernel with another number of rows."""
    a = next(one for one in given.specs if len(one.size) > 1)
    fixed = a.size[0]
    specs = [_resized(spec, fixed, rows) for spec in given.specs]
    tensors = made(specs, device, seed=9)
    shape = candidate.output.size
    size = (rows, *shape[1:])
    inputs = [
        replace(one, size=(rows, *one.size[1:]))
        if len(one.size) > 1 and one.size[0] == fixed
        else one
        for one in candidate.inputs
    ]
    resized = replace(candidate, inputs=tuple(inputs), output=replace(candidate.output, size=size))
    guarded = Guarded(replace(resized.output, device=device))
    bound(resized, tensors, guarded.tensor)()
    error = error_of(guarded.tensor, given.expected(tensors))
    return error if guarded.overrun() is None else math.inf


def _resized(spec: Spec, fixed: int, rows: int) -> Spec:
    """Return A with other rows; it lies by rows, so its strides stay."""
    if len(spec.size) < 2 or spec.size[0] != fixed:
        return spec
    return replace(spec, size=(rows, *spec.size[1:]))
